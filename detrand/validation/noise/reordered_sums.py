"""A graph whose sums add the same terms in another order: mathematically the same numbers, rounded otherwise.

Both operands of a matrix product are reordered along the axis that it sums over, those of a convolution along the
channels of the input; what a reduction reduces, along its axes; the batch that a batch normalization takes moments of,
and the classes of a softmax, which are put back into order afterwards. What is summed within the window of a
convolution or of a pooling stays as it is.

A reduction of TensorFlow's adds pairs of sums, whatever the order of its terms, and is far more precise than a product
with ones, which adds one term after another. That is an order of its own, for reductions alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from detrand.validation.noise.graph_bodies import Body, Node, Reference, bodies_of

Order = Literal["from the last term on", "from another term on", "one term after another"]
ORDERS: tuple[Order, ...] = get_args(Order)
_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_SHIFT = 3


def reorder_sums(graph_def: Any, order: Order) -> tuple[dict[str, str], int]:
    """Reorders the sums of a graph, and of its functions, in place.

    Args:
      graph_def: a ``GraphDef`` that has shapes: ``graph.as_graph_def(add_shapes=True)``.
      order: the new order.

    Returns:
      What now is called otherwise, of the tensors of the graph: old name to new; and how many ops have another order.
    """
    bodies = bodies_of(graph_def)
    count = 0
    for body in bodies:
        reordering = _Reordering(body, order)
        reorder = _REDUCTIONS_ONE_BY_ONE if order == "one term after another" else _SUMS
        for node in body.original_nodes():
            if node.op in reorder and _dtype(node) in _FLOATS:
                count += bool(reorder[node.op](reordering, node))
        body.finish()
    return bodies[0].rerouted, count


def _dtype(node: Node) -> tf.DType | None:
    enum = next((node.attr[name].type for name in ("T", "Tx") if name in node.attr), 0)
    return tf.as_dtype(enum) if enum else None


class _Reordering:
    """Brings what the nodes of a body take into another order."""

    def __init__(self, body: Body, order: Order):
        self.body, self.order = body, order
        nodes = body.original_nodes()
        self.shapes = {node.name: _shapes(node) for node in nodes}
        self._constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}

    def input(self, node: Node, number: int, axis: int) -> None:
        """Reorders an input of a node along an axis."""
        axes = self.body.constant(node, np.array([axis], np.int32))
        node.input[number] = self.body.output(self._reordered(node, node.input[number], axes, tf.int32))

    def input_along(self, node: Node, number: int, axes: int) -> None:
        """Reorders an input of a node along the axes that another one holds."""
        dtype = tf.as_dtype(node.attr["Tidx"].type or tf.int32.as_datatype_enum)
        flat = self.body.constant(node, np.array([-1], np.int32))
        listed = self.body.add("Reshape", node, [node.input[axes], flat], T=dtype, Tshape=tf.int32)
        reordered = self._reordered(node, node.input[number], self.body.output(listed), dtype)
        node.input[number] = self.body.output(reordered)

    def output_back(self, node: Node, number: int, axis: int) -> None:
        """Puts an output of a node back into order."""
        axes = self.body.constant(node, np.array([axis], np.int32))
        restored = self._reordered(node, self.body.output(node, number), axes, tf.int32, back=True)
        self.body.replace_output(node, number, restored)

    def _reordered(self, node: Node, tensor: Reference, axes: Reference, dtype: tf.DType, back: bool = False) -> Node:
        of: dict[str, Any] = {"T": _dtype(node)}
        if self.order == "from the last term on":
            return self.body.add("ReverseV2", node, [tensor, axes], Tidx=dtype, **of)
        shape = self.body.add("Shape", node, [axes], T=dtype, out_type=tf.int32)
        by = self.body.constant(node, np.array(-_SHIFT if back else _SHIFT, np.int32))
        shifts = self.body.add("Fill", node, [self.body.output(shape), by], T=tf.int32, index_type=tf.int32)
        return self.body.add("Roll", node, [tensor, self.body.output(shifts), axes], Tshift=tf.int32, Taxis=dtype, **of)

    def shape_of_input(self, node: Node, number: int) -> list[int] | None:
        """Returns the shape of an input, with -1 for what is not known; None if its rank is not."""
        name, _, output = node.input[number].partition(":")
        shapes = self.shapes.get(name, [])
        position = int(output.rpartition(":")[2] or 0)
        return shapes[position] if position < len(shapes) else None

    def constant_input(self, node: Node, number: int) -> np.ndarray | None:
        """Returns the value of an input, if it is a constant."""
        value = self._constants.get(node.input[number].partition(":")[0])
        return None if value is None else tf.make_ndarray(value)


def _shapes(node: Node) -> list[list[int] | None]:
    if "_output_shapes" not in node.attr:  # asking a proto's map for a key adds it
        return []
    return [
        None if shape.unknown_rank else [dimension.size for dimension in shape.dim]
        for shape in node.attr["_output_shapes"].list.shape
    ]


def _matrix_product(reordering: _Reordering, node: Node) -> bool:
    reordering.input(node, 0, 0 if node.attr["transpose_a"].b else 1)
    reordering.input(node, 1, 1 if node.attr["transpose_b"].b else 0)
    return True


def _batch_matrix_product(reordering: _Reordering, node: Node) -> bool:
    reordering.input(node, 0, -2 if node.attr["adj_x"].b else -1)
    reordering.input(node, 1, -1 if node.attr["adj_y"].b else -2)
    return True


def _einsum(reordering: _Reordering, node: Node) -> bool:
    operands, _, result = node.attr["equation"].s.decode().replace(" ", "").partition("->")
    labels = operands.split(",")
    summed = [label for label in dict.fromkeys(labels[0]) if label.isalpha() and label not in result]
    summed = [label for label in summed if all(operand.count(label) == 1 for operand in labels)]
    for label, (number, operand) in itertools.product(summed, enumerate(labels)):
        before, _, after = operand.partition(label)
        reordering.input(node, number, -len(after) - 1 if "." in before else len(before))
    return bool(summed)


def _convolution(reordering: _Reordering, node: Node) -> bool:
    channels_last = node.attr["data_format"].s.decode().endswith("C")
    inputs, filters = (reordering.shape_of_input(node, number) for number in (0, 1))
    if inputs is None or filters is None:
        return False
    axis = len(inputs) - 1 if channels_last else 1
    if inputs[axis] != filters[-2] or inputs[axis] < 2:  # groups, each of which is summed over by itself
        return False
    reordering.input(node, 0, axis)
    reordering.input(node, 1, len(filters) - 2)
    return True


def _transposed_convolution(reordering: _Reordering, node: Node) -> bool:
    channels_last = node.attr["data_format"].s.decode().endswith("C")
    filters, (computed,) = reordering.shape_of_input(node, 1), reordering.shapes[node.name] or [None]
    if filters is None or computed is None:
        return False
    axis = len(filters) - 1 if channels_last else 1
    if computed[axis] != filters[-2]:
        return False
    reordering.input(node, 1, len(filters) - 1)
    reordering.input(node, 2, axis)
    return True


def _reduction(reordering: _Reordering, node: Node) -> bool:
    if reordering.shape_of_input(node, 0) == []:  # a sum over no axes, which losses take of what is summed already
        return False
    reordering.input_along(node, 0, axes=1)
    return True


def _reduction_one_by_one(reordering: _Reordering, node: Node) -> bool:
    axes = reordering.constant_input(node, 1)
    if axes is None or not axes.size:
        return False
    body, of = reordering.body, {"T": _dtype(node)}
    terms = node.input[0]
    for axis in (int(axis) for axis in axes.reshape(-1)):
        # The sums of what comes from each term on; the first is that of all.
        sums = body.add("Cumsum", node, [terms, body.constant(node, np.int32(axis))], Tidx=tf.int32, reverse=True, **of)
        places = [body.constant(node, value) for value in (np.array([0], np.int32), np.int32(axis))]
        taken = {"Tparams": of["T"], "Tindices": tf.int32, "Taxis": tf.int32}
        terms = body.output(body.add("GatherV2", node, [body.output(sums), *places], **taken))
    if node.op == "Mean":
        count = body.add("Size", node, [node.input[0]], T=of["T"], out_type=tf.int32)
        means = body.add("Size", node, [terms], T=of["T"], out_type=tf.int32)
        counts = body.add("FloorDiv", node, [body.output(count), body.output(means)], T=tf.int32)
        divisor = body.add("Cast", node, [body.output(counts)], SrcT=tf.int32, DstT=of["T"])
        terms = body.output(body.add("RealDiv", node, [terms, body.output(divisor)], **of))
    node.input[0] = terms  # along its axes there is one term left
    return True


def _sum_of_many(reordering: _Reordering, node: Node) -> bool:
    count = node.attr["N"].i
    terms = list(node.input[:count])
    shift = 1 if count > 2 else 0
    terms = terms[::-1] if reordering.order == "from the last term on" else terms[shift:] + terms[:shift]
    node.input[:count] = terms
    return count > 2


def _sum_by_segment(reordering: _Reordering, node: Node) -> bool:
    reordering.input(node, 0, 0)
    # The ids are integers, whose dtype has a name of its own.
    ids = reordering.body.add("Identity", node, [node.input[1]], T=tf.as_dtype(node.attr["Tindices"].type))
    reordering.input(ids, 0, 0)
    node.input[1] = reordering.body.output(ids)
    return True


def _batch_normalization(reordering: _Reordering, node: Node) -> bool:
    if not node.attr["is_training"].b:
        return False
    reordering.input(node, 0, 0)
    reordering.output_back(node, 0, 0)
    return True


def _softmax(reordering: _Reordering, node: Node) -> bool:
    reordering.input(node, 0, -1)
    reordering.output_back(node, 0, -1)
    return True


_SUMS: dict[str, Callable[[_Reordering, Node], bool]] = {
    "MatMul": _matrix_product,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matrix_product),
    "Einsum": _einsum,
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _transposed_convolution),
    **dict.fromkeys(("Sum", "Mean", "EuclideanNorm", "Prod"), _reduction),
    "AddN": _sum_of_many,
    "UnsortedSegmentSum": _sum_by_segment,
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_normalization),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
}
_REDUCTIONS_ONE_BY_ONE: dict[str, Callable[[_Reordering, Node], bool]] = dict.fromkeys(
    ("Sum", "Mean"), _reduction_one_by_one
)
