"""A graph whose sums add the same terms in another order: mathematically the same numbers, rounded otherwise.

Both operands of a matrix product are reordered along the axis that it sums over, those of a convolution along the
channels of the input; what a reduction reduces, along its axes; the batch that a batch normalization takes moments of,
and the classes of a softmax, which are put back into order afterwards. What is summed within the window of a
convolution or of a pooling stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from detrand.validation.graph_bodies import Body, Node, Reference, bodies_of

Order = Literal["from the last term on", "from another term on"]
ORDERS: tuple[Order, ...] = ("from the last term on", "from another term on")
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
        for node in body.original_nodes():
            if node.op in _SUMS and _dtype(node) in _FLOATS:
                count += bool(_SUMS[node.op](reordering, node))
        body.finish()
    return bodies[0].rerouted, count


def _dtype(node: Node) -> tf.DType | None:
    enum = next((node.attr[name].type for name in ("T", "Tx") if name in node.attr), 0)
    return tf.as_dtype(enum) if enum else None


class _Reordering:
    """Brings what the nodes of a body take into another order."""

    def __init__(self, body: Body, order: Order):
        self.body, self.order = body, order
        self.shapes = {node.name: _shapes(node) for node in body.original_nodes()}

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
    reordering.input_along(node, 0, axes=1)
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
