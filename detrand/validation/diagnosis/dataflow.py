"""Follows tensors of a graph back to the variables and constants that they come from, into functions, too.

The body of a ``tf.while_loop``, the branches of a ``tf.cond`` and what a ``tf.function`` calls are graphs of their own.
What an op hands to one of these is what its arguments are, if it stays that way: a loop changes its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from detrand._patching.graphs import function_graphs

_PASSED_ON = (
    *("Identity", "ReadVariableOp", "Cast", "Reshape", "ExpandDims", "Squeeze", "StopGradient"),
    *("Enter", "Switch"),  # of loops and conditionals of the older kind, which are in the graph itself
)
_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "AddV2": np.add,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Maximum": np.maximum,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
}


class Dataflow:
    """What the tensors of one graph come from.

    Args:
      names: the TF1 names of the variables, by the names of the ops that variables are read from.
      numbers: those of a function's arguments that are constants, by the names of their placeholders.
    """

    def __init__(self, names: Mapping[str, str], numbers: Mapping[str, float] | None = None):
        self._names, self._numbers = names, numbers or {}

    def variable(self, tensor: tf.Tensor) -> str | None:
        """Returns the variable that a tensor is read from, if it is one as it stands."""
        while tensor.op.name not in self._names and tensor.op.type in _PASSED_ON:
            tensor = tensor.op.inputs[0]
        return self._names.get(tensor.op.name)

    def number(self, tensor: tf.Tensor, depth: int = 4) -> float | None:
        """Returns the one number that all elements of a constant are, or None.

        Args:
          tensor: the tensor.
          depth: through how many ops it may come: a whole network may consist of sums.
        """
        op = tensor.op
        if op.name in self._numbers:
            return self._numbers[op.name]
        if op.type in _ARITHMETIC and depth:
            operands = [self.number(operand, depth - 1) for operand in op.inputs]
            return None if None in operands else float(_ARITHMETIC[op.type](*operands))
        if op.type in ("Identity", "Cast", "Enter") and depth:
            return self.number(op.inputs[0], depth - 1)
        if op.type == "Fill":
            return self.number(op.inputs[1], depth - 1)
        if op.type != "Const" or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
            return None
        value = tf.make_ndarray(op.get_attr("value"))  # tf.get_static_value would forbid that it is fed
        return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else None

    def numbers_in(self, op: tf.Operation) -> list[float]:
        """Returns the operands of an op that are constants of one number."""
        return [number for number in map(self.number, op.inputs) if number is not None]

    def nearest_variables(self, tensor: tf.Tensor) -> list[str]:
        """Returns the variables in the last op before a tensor, or ops equally near, that takes any."""
        seen: set[str] = set()
        ops = [tensor.op]
        while ops:
            found = [self.variable(operand) for op in ops for operand in op.inputs]
            if any(found):
                return sorted({name for name in found if name})
            seen.update(op.name for op in ops)
            before = {operand.op.name: operand.op for op in ops for operand in op.inputs}
            ops = [op for name, op in before.items() if name not in seen]
        return []

    def all_variables(self, tensor: tf.Tensor) -> set[str]:
        """Returns all variables that a tensor is computed from."""
        seen, waiting = {tensor.op.name}, [tensor.op]
        found = set()
        while waiting:
            for operand in waiting.pop().inputs:
                found.add(self.variable(operand))
                if operand.op.name not in seen:
                    seen.add(operand.op.name)
                    waiting.append(operand.op)
        return {name for name in found if name}

    def inside(self, op: tf.Operation) -> Iterator[tuple[tf.Graph, Dataflow]]:
        """Yields the graphs of the functions that an op calls, each with what its tensors come from."""
        for graph in function_graphs(op):
            # A conditional keeps its first input, which says which branch to take.
            arguments = [
                (inner, outer) for inner, outer in zip(graph.inputs[::-1], list(op.inputs)[::-1], strict=False)
            ]
            changed: set[str] = set()
            if "While" in op.type:
                pairs = zip(graph.inputs, graph.outputs, strict=True)
                changed = {inner.op.name for inner, after in pairs if inner.op is not _source(after).op}
            names, numbers = {}, {}
            for inner, outer in arguments:
                if inner.op.name not in changed:
                    names[inner.op.name], numbers[inner.op.name] = self.variable(outer), self.number(outer)
            yield (
                graph,
                Dataflow(
                    {name: variable for name, variable in names.items() if variable is not None},
                    {name: number for name, number in numbers.items() if number is not None},
                ),
            )


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def walk(graph: tf.Graph, flow: Dataflow) -> Iterator[tuple[tf.Operation, Dataflow]]:
    """Yields the ops of a graph and of all functions that it calls, each with what its tensors come from."""
    for op in graph.get_operations():
        yield op, flow
        for inner, inner_flow in flow.inside(op):
            yield from walk(inner, inner_flow)
