"""A graph that computes in float64 what another one computes in float32, float16 or bfloat16.

Every edge that carried such a number carries a float64. Ops that draw random numbers stay as they are, or they would
draw others; what they draw is converted, exactly. So do ops that have no kernel for float64 or whose definition says
float32: what they take is rounded, and what they compute is converted. A fused batch normalization, which has none, but
is in most convolutional networks, is put together from ops that have one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.graphs import has_float64_kernel
from detrand._patching.random_ops import EXPLICIT_OPS, RANDOM_OPS
from detrand.validation.noise.graph_bodies import Body, Node, arguments_of, bodies_of

_DOUBLE = tf.float64.as_datatype_enum
_NARROW = frozenset(dtype.as_datatype_enum for dtype in (tf.float16, tf.bfloat16, tf.float32))
_BATCH_NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_NO_NUMBER = "flow"  # the argument by which ops on a TensorArray wait for each other
# What these make of a number depends on its dtype.
_OF_DTYPE = frozenset(("Bitcast", "DecodeRaw", "PyFunc", "PyFuncStateless", "EagerPyFunc"))


def widen_to_float64(graph_def: Any) -> tuple[dict[str, str], Counter[str]]:
    """Lets a graph, and its functions, compute in float64, in place.

    Args:
      graph_def: a ``GraphDef``.

    Returns:
      What now is called otherwise, of the tensors of the graph: old name to new; and how many ops of which type still
      round, random ones left out.

    Raises:
      ValueError: if it has an op that nobody knows.
    """
    kept: Counter[str] = Counter()
    bodies = bodies_of(graph_def)  # before the signatures of functions change
    for body in bodies:
        for node in body.original_nodes():
            if not _widen(body, node):
                kept[node.op] += 1
        body.finish()
    for function in graph_def.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = _wide(argument.type)
    return bodies[0].rerouted, kept


def _wide(dtype: int) -> int:
    return _DOUBLE if dtype in _NARROW else dtype


def _widen(body: Body, node: Node) -> bool:
    """Lets a node compute in float64; returns False for one that, other than by drawing, still rounds to less."""
    replaced = node.op in _BATCH_NORMALIZATIONS and _replace_batch_normalization(body, node)
    definition = body.definition(node)
    inputs, outputs = (arguments_of(node, of) for of in (definition.input_arg, definition.output_arg))
    draws = node.op in RANDOM_OPS or node.op in EXPLICIT_OPS or "Random" in node.op
    narrow = frozenset(
        attribute.name
        for attribute in definition.attr
        if attribute.type == "type" and node.attr[attribute.name].type in _NARROW
    )
    lacks_kernel = bool(narrow) and not has_float64_kernel(node.op, narrow)
    if not (draws or lacks_kernel or node.op in _OF_DTYPE):
        _widen_attributes(node)

    rounds = False
    for number, (old, new) in enumerate(zip(inputs, arguments_of(node, definition.input_arg), strict=True)):
        if old.dtype in _NARROW and new.dtype != _DOUBLE:
            cast = body.add("Cast", node, [node.input[number]], SrcT=tf.float64, DstT=tf.as_dtype(new.dtype))
            node.input[number] = body.output(cast)
            rounds |= not new.name.startswith(_NO_NUMBER)
    for number, (old, new) in enumerate(zip(outputs, arguments_of(node, definition.output_arg), strict=True)):
        if old.dtype in _NARROW and new.dtype != _DOUBLE and not (replaced and number < 3):
            computed = body.output(node, number)
            cast = body.add("Cast", node, [computed], SrcT=tf.as_dtype(new.dtype), DstT=tf.float64)
            body.replace_output(node, number, cast)
            rounds |= not new.name.startswith(_NO_NUMBER)
    return draws or replaced or not rounds


def _widen_attributes(node: Node) -> None:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "type":
            value.type = _wide(value.type)
        elif kind == "list":
            value.list.type[:] = [_wide(dtype) for dtype in value.list.type]
        elif kind == "tensor" and value.tensor.dtype in _NARROW:
            value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(np.float64)))


def _replace_batch_normalization(body: Body, node: Node) -> bool:
    """Lets other ops compute in float64 what a fused batch normalization does, but for what its gradient alone takes.

    Returns:
      False if that is not done: for channels that come first, and where it also updates moving averages.
    """
    layout, training = node.attr["data_format"].s.decode(), node.attr["is_training"].b
    updates = "exponential_avg_factor" in node.attr and node.attr["exponential_avg_factor"].f != 1
    if not layout.endswith("C") or (training and updates):
        return False
    inputs, scale, offset, mean, variance = node.input[:5]

    def compute(op_type: str, *operands: str) -> str:
        return body.output(body.add(op_type, node, operands, T=tf.float64))

    def mean_of(tensor: str) -> str:
        axes = body.constant(node, np.arange(len(layout) - 1, dtype=np.int32))
        return body.output(body.add("Mean", node, [tensor, axes], T=tf.float64, Tidx=tf.int32))

    def size_of(tensor: str) -> str:
        size = body.add("Size", node, [tensor], T=tf.float64, out_type=tf.int32)
        return body.output(body.add("Cast", node, [body.output(size)], SrcT=tf.int32, DstT=tf.float64))

    if training:
        mean = mean_of(inputs)
        variance = mean_of(compute("SquaredDifference", inputs, mean))
    epsilon = body.constant(node, np.float64(node.attr["epsilon"].f))
    factor = compute("Mul", scale, compute("Rsqrt", compute("AddV2", variance, epsilon)))
    normalized = compute("AddV2", compute("Mul", compute("Sub", inputs, mean), factor), offset)
    if training:  # the op returns an estimate of the variance that is not biased
        count = compute("RealDiv", size_of(inputs), size_of(mean))
        degrees = compute("Sub", count, body.constant(node, np.float64(1)))
        variance = compute("Mul", variance, compute("RealDiv", count, degrees))
    for number, computed in enumerate((normalized, mean, variance)):
        body.replace_output(node, number, body.add("Identity", node, [compute("Identity", computed)], T=tf.float64))
    return True
