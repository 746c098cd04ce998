"""The calibration of distinct weights: what a layer computes from a weight gets a suitable root mean square (RMS).

With TF1's initial weights, the inputs of activations may be so small that every activation is linear, or so large that
it is saturated. A calibration divides each tensor that is linear in a weight by its RMS, in a copy of the graph, before
anything takes it. So one run measures all layers. What is inside of a loop cannot be measured; its weights suit inputs
with an RMS of 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import numpy as np

from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.packages import tf
from detrand.validation.programs.activations import ACTIVATIONS, KINKS
from detrand.validation.programs.distinct_weights import Scale

# Where an activation is curved, greater inputs would amplify rounding from layer to layer.
_RMS, _RMS_BEFORE_KINKS = 0.7, 2.0
# A relu keeps proportions, so its inputs may be so great that some pass the kink of a relu6, which the port may have.
_RMS_BEFORE_LINES = 6.0
_MADE_OF_LINES = ("Relu", "LeakyRelu", "Relu6", "Maximum", "Minimum")
_SUMS_PRODUCTS = frozenset(
    (
        *("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "SparseTensorDenseMatMul"),
        *("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3DBackpropInputV2"),
    )
)
_LOOKS_UP = frozenset(("ResourceGather", "ResourceGatherNd", "Gather", "GatherV2", "GatherNd"))
# If all inputs are variables and constants, these ops are linear in the variables.
_PASSES_ON = _LOOKS_UP | {
    *("Identity", "ReadVariableOp", "Cast", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Tile", "Pad", "Neg"),
    *("Concat", "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "Slice", "StridedSlice", "Enter"),
}


def calibrated(
    scales: Mapping[str, Scale],
    graph: tf.Graph,
    holders: Mapping[str, str],
    run: Collection[tf.Operation],
    measure: Callable[[tuple[Scale, ...], tf.Graph, list[tf.Tensor]], list[float]],
) -> tuple[Scale, ...]:
    """Return scales of distinct weights that suit a network, given those of its initial values by TF1 name.

    Args:
      scales: the scales of the initial values.
      graph: the graph of the TF1 program.
      holders: the TF1 names of variables, by the names of the ops that hold their parts.
      run: the ops that the program runs.
      measure: returns the values of scalars in a copy of the graph, with distinct weights of some scales.
    """
    drawn = {name for name, scale in scales.items() if scale.deviation > abs(scale.mean)}
    matrices = {name for name, scale in scales.items() if len(scale.shape) > 1}
    uses = _uses(graph, {op: name for op, name in holders.items() if name in scales}, drawn, matrices)
    uses = {tensor: names for tensor, names in uses.items() if tensor.op in run}
    weights = (drawn & matrices).union(*uses.values())
    first = {name: _of_fan_in(scale) if name in weights else scale for name, scale in scales.items()}
    copy, sizes = _normalizing_copy(graph, uses)
    logarithms: defaultdict[str, list[float]] = defaultdict(list)
    for names, size in zip(uses.values(), measure(tuple(first.values()), copy, sizes), strict=True):
        for name in names:
            logarithms[name].append(math.log(size))
    # A weight with several uses is divided by the geometric mean of their sizes.
    for name, of_uses in logarithms.items():
        first[name] = first[name]._replace(deviation=first[name].deviation / math.exp(np.mean(of_uses)))
    return tuple(first.values())


def _of_fan_in(scale: Scale) -> Scale:
    return scale._replace(mean=0.0, deviation=1 / math.sqrt(math.prod(scale.shape[:-1] or scale.shape)))


def _uses(
    graph: tf.Graph, holders: Mapping[str, str], drawn: set[str], matrices: set[str]
) -> dict[tf.Tensor, frozenset[str]]:
    """Return the tensors that are linear in weights and can be fetched, and the TF1 names of these.

    A weight is a variable that the graph multiplies other tensors with and sums, or a matrix that was drawn around 0.
    """
    linear_in = {op: frozenset([name]) for op, name in holders.items()}  # by the name of an op
    given = set(holders)  # ops that compute the same whatever the inputs of the program are
    uses: dict[tf.Tensor, frozenset[str]] = {}
    for op in graph.get_operations():
        weights = [tensor for tensor in op.inputs if tensor.op.name in linear_in]
        names = frozenset[str]().union(*(linear_in[tensor.op.name] for tensor in weights))
        draws = op.op_def.is_stateful and op.type not in ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
        if op.type == "Const" or (op.inputs and not draws and all(tensor.op.name in given for tensor in op.inputs)):
            given.add(op.name)
            of_factor = op.type == "Mul" or (op.type == "RealDiv" and op.inputs[0] in weights)
            if weights and (op.type in _PASSES_ON or (of_factor and len(weights) == 1)):
                linear_in[op.name] = names
        elif not weights:
            continue
        elif op.type in _SUMS_PRODUCTS and names <= matrices | drawn:
            uses[op.outputs[0]] = names
        elif op.type == "Mul" and names <= drawn and [each.type for each in op.outputs[0].consumers()] == ["Sum"]:
            uses[op.outputs[0].consumers()[0].outputs[0]] = names
        elif op.type in _LOOKS_UP | {"Mul"} and names <= matrices & drawn:
            uses[op.outputs[0]] = names
        elif op.type in ("Add", "AddV2", "Sub") and names <= matrices & drawn:
            uses |= {tensor: linear_in[tensor.op.name] for tensor in weights}
    return {tensor: names for tensor, names in uses.items() if graph.is_fetchable(tensor.op)}


def _normalizing_copy(graph: tf.Graph, uses: Collection[tf.Tensor]) -> tuple[tf.Graph, list[tf.Tensor]]:
    """Return a copy of a graph that divides tensors by their size before anything takes them, and these sizes.

    A size is the RMS relative to the RMS that is suitable. One that is 0 or not finite counts as 1.
    """
    from detrand._patching.graphs import replace_input

    ends, sizes = {tensor.op for tensor in uses}, []

    def before(kinds: Collection[str]) -> set[tf.Operation]:
        taken = [source for op in graph.get_operations() if op.type in kinds for source in input_ops(op)]
        return all_upstream(taken, lambda op: () if op in ends or op.type in ACTIVATIONS else input_ops(op))

    before_kinks, before_lines = before(KINKS), before(_MADE_OF_LINES)
    with tf.Graph().as_default() as copy:
        tf.import_graph_def(graph.as_graph_def(), name="")
        for original in uses:
            tensor = copy.get_tensor_by_name(original.name)
            taken = [(op, index) for op in tensor.consumers() for index, each in enumerate(op.inputs) if each is tensor]
            suitable = _RMS_BEFORE_KINKS if original.op in before_kinks else _RMS
            suitable = _RMS_BEFORE_LINES if original.op in before_lines else suitable
            size = tf.sqrt(tf.reduce_mean(tf.square(tf.cast(tensor, tf.float32)))) / suitable
            size = tf.where((size > 0) & tf.math.is_finite(size), size, 1.0)
            normalized = tensor / tf.cast(size, tensor.dtype)
            for op, index in taken:
                replace_input(op, index, normalized)
            sizes.append(size)
    return copy, sizes
