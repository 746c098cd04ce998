"""Dataflow: the variables and constants that the tensors of a graph come from, also inside of functions.

`operations` yields the ops of a graph and of the functions that it calls: the body of a ``tf.while_loop``, the branches
of a ``tf.cond`` and a ``tf.function`` are graphs of their own. Each op comes with the `Dataflow` of its graph, which
knows what a function's arguments are outside of it, except for the variables of a loop, which the loop changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from detrand.checkpoints.upstream import all_upstream, input_ops, upstream
from detrand.packages import tf
from detrand.validation.frameworks.traces import OF_SHAPES

ADDS = ("AddV2", "Add")
_PASSED_ON = (
    *("Identity", "ReadVariableOp", "Cast", "Reshape", "ExpandDims", "Squeeze", "StopGradient"),
    *("Enter", "Switch"),  # of the older loops and conditionals, which are in the graph itself
)
_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    **dict.fromkeys(ADDS, np.add),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Maximum": np.maximum,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    **dict.fromkeys(("Identity", "Cast", "Enter", "PlaceholderWithDefault"), np.positive),
}


def operations(graph: tf.Graph, flow: Dataflow) -> Iterator[tuple[tf.Operation, Dataflow]]:
    """Yield the ops of a graph and of all functions that it calls, each with the dataflow of its graph."""
    for op in graph.get_operations():
        yield op, flow
        for inner, inner_flow in flow.inside(op):
            yield from operations(inner, inner_flow)


class Dataflow:
    """The origin of the tensors of one graph.

    Args:
      names: the TF1 names of the variables, by the names of the ops that variables are read from.
      numbers: the arguments of a function that are constants, by the names of their placeholders.
    """

    def __init__(self, names: Mapping[str, str], numbers: Mapping[str, float] | None = None):
        self._names, self._numbers = names, numbers or {}

    def variable(self, tensor: tf.Tensor) -> str | None:
        """Return the variable that a tensor is the value of, or None."""
        while tensor.op.name not in self._names and tensor.op.type in _PASSED_ON:
            tensor = tensor.op.inputs[0]
        return self._names.get(tensor.op.name)

    def number(self, tensor: tf.Tensor, depth: int = 4) -> float | None:
        """Return the number that all elements of a constant are, or None.

        It may be computed through ``depth`` ops; a whole network may consist of sums.
        """
        op = tensor.op
        if op.name in self._numbers:
            return self._numbers[op.name]
        if op.type in _ARITHMETIC and depth:
            operands = [self.number(operand, depth - 1) for operand in op.inputs]
            return None if None in operands else float(_ARITHMETIC[op.type](*operands))
        if op.type == "Fill":
            return self.number(op.inputs[1], depth - 1)
        if op.type != "Const" or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
            return None
        value = tf.make_ndarray(op.get_attr("value"))  # after tf.get_static_value, the constant could not be fed
        return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else None

    def number_and_rest(self, op: tf.Operation, types: Collection[str]) -> tuple[float, tf.Tensor] | None:
        """Return the constant number and the other operand of an op of some types; None if neither is a number."""
        operands = list(op.inputs) if op.type in types else []
        for constant, rest in zip(operands, operands[::-1], strict=True):
            if (number := self.number(constant)) is not None:
                return number, rest
        return None

    def nearest_variables(self, tensor: tf.Tensor) -> list[str]:
        """Return the variables that the last ops before a tensor take that take any."""
        for ops in upstream([tensor.op], input_ops):
            if found := self._taken_by(ops):
                return sorted(found)
        return []

    def all_variables(self, tensor: tf.Tensor) -> set[str]:
        """Return all variables that a tensor is computed from."""
        return self._taken_by(all_upstream([tensor.op], input_ops))

    def depends_on_data(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor is computed from what is fed to the graph, and not only from its shape."""
        ops = all_upstream([tensor.op], lambda op: () if op.type in OF_SHAPES else input_ops(op))
        captured = {inner.op for _, inner in getattr(tensor.graph, "captures", ())}
        return any(op.type in ("Placeholder", "PlaceholderV2", "IteratorGetNext") and op not in captured for op in ops)

    def _taken_by(self, ops: Iterable[tf.Operation]) -> set[str]:
        return {name for op in ops for operand in op.inputs if (name := self.variable(operand))}

    def inside(self, op: tf.Operation) -> Iterator[tuple[tf.Graph, Dataflow]]:
        """Yield the graphs of the functions that an op calls, each with its dataflow."""
        from detrand._patching.graphs import function_graphs

        for graph in function_graphs(op):
            pairs = zip(graph.inputs, graph.outputs, strict=True) if "While" in op.type else ()
            changed = {argument.op.name for argument, after in pairs if argument.op is not back_through(after).op}
            # From the last one: a conditional keeps its first input, which selects the branch.
            pairs = zip(graph.inputs[::-1], list(op.inputs)[::-1], strict=False)
            given = {argument.op.name: tensor for argument, tensor in pairs if argument.op.name not in changed}
            names = {name: variable for name, tensor in given.items() if (variable := self.variable(tensor))}
            numbers = {name: number for name, tensor in given.items() if (number := self.number(tensor)) is not None}
            yield graph, Dataflow(names, numbers)


def back_through(tensor: tf.Tensor, *types: str) -> tf.Tensor:
    """Return the tensor that identities and ops of other types have as their first input, one after another."""
    while tensor.op.type in ("Identity", *types):
        tensor = tensor.op.inputs[0]
    return tensor
