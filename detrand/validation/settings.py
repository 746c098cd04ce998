"""What is set in a program: epsilons, momenta, dropout rates, initializers, by the variable that they go with.

Either program's `Settings` has the same keys, so that the two can be laid side by side: `detrand.validation.audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.variables.whole_variables import whole_variables

# (TF1 name of a variable, or what else it is of, name of the setting) -> value
Settings = dict[tuple[str, str], Any]

EPSILON, MOMENTUM, INITIALIZER, RATES = "epsilon", "momentum", "initializer", "rates"
DROPOUT = "dropout"

_FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_PASSED_ON = ("Identity", "ReadVariableOp", "Cast", "Reshape", "ExpandDims", "Squeeze", "StopGradient")
_ADDS, _SUBTRACTIONS = ("AddV2", "Add"), ("AssignSubVariableOp", "AssignSub")
_DRAWS = {"RandomUniform": "uniform", "RandomStandardNormal": "normal", "TruncatedNormal": "truncated normal"}
_DRAWS |= {f"Stateless{name}{version}": kind for name, kind in _DRAWS.items() for version in ("", "V2")}
_DRAWS |= {f"StatelessRandomNormal{version}": "normal" for version in ("", "V2")}
_ARITHMETIC = {
    "AddV2": np.add,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Maximum": np.maximum,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
}


def settings_of_graph(graph: tf.Graph) -> Settings:
    """Returns what is set in a TF1 graph."""
    variables = whole_variables("graph", graph)
    names = {part.op.name: name for name, variable in variables.items() for part in variable.parts}
    found = settings_of_ops(graph.get_operations(), names)
    for name, variable in variables.items():
        initial_value = describe_initial_value(variable.parts[0].initial_value)
        if initial_value is not None:
            found[name, INITIALIZER] = initial_value
    return found


def settings_of_ops(operations: Iterable[tf.Operation], names: Mapping[str, str]) -> Settings:
    """Returns what ops say of normalizations, moving averages and dropout.

    Args:
      operations: of a graph.
      names: the TF1 names of the variables, by the names of the ops that variables are read from.
    """
    found: Settings = {}
    rates: set[float] = set()
    for op in operations:
        if op.type in _FUSED:
            variables = [_variable(tensor, names) for tensor in op.inputs[1:]]
            found.update(((name, EPSILON), op.get_attr("epsilon")) for name in variables if name)
            kept = 1 - op.get_attr("exponential_avg_factor") if op.type == "FusedBatchNormV3" else 0.0
            if op.get_attr("is_training") and kept:  # it updates the moving averages, its last two inputs, itself
                found.update(((name, MOMENTUM), kept) for name in variables[2:] if name)
        elif op.type in ("Rsqrt", "Sqrt"):
            found.update(_of_normalization(op, names))
        elif op.type in _SUBTRACTIONS or op.type in ("AssignVariableOp", "Assign"):
            found.update(_of_moving_average(op, names))
        elif op.type == "GreaterEqual" and _draw(op.inputs[0]):
            rates.update(filter(None, [_number(op.inputs[1])]))
    if rates:
        found[DROPOUT, RATES] = listed(rates)
    return found


def _of_normalization(op: tf.Operation, names: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yields the epsilon of ``1 / sqrt(variance + epsilon)``, by the variance or by what that is multiplied by."""
    added = op.inputs[0].op
    if added.type not in _ADDS:
        return
    for variance, constant in (added.inputs, reversed(added.inputs)):
        epsilon = _number(constant)
        if epsilon is None:
            continue
        tensors = _factors(op)
        if not any(_variable(tensor, names) for tensor in tensors):
            # What is normalized may be multiplied by it first, and by the variable then.
            tensors = [factor for user in op.outputs[0].consumers() if user.type == "Mul" for factor in _factors(user)]
        for name in filter(None, (_variable(tensor, names) for tensor in (variance, *tensors))):
            yield (name, EPSILON), epsilon
        return


def _factors(op: tf.Operation) -> list[tf.Tensor]:
    """Returns what the output of an op is multiplied by, and that output itself."""
    return [factor for user in op.outputs[0].consumers() if user.type == "Mul" for factor in user.inputs]


def _of_moving_average(op: tf.Operation, names: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yields the momentum of ``v -= (v - x) * (1 - momentum)`` and of ``v = v * momentum + x * (1 - momentum)``."""
    name, change = _variable(op.inputs[0], names), op.inputs[1].op
    if name is None:
        return
    if op.type in _SUBTRACTIONS and change.type == "Mul":
        numbers = [number for number in map(_number, change.inputs) if number is not None]
        if len(numbers) == 1:
            yield (name, MOMENTUM), 1 - numbers[0]
    elif change.type in _ADDS:
        for product in (tensor.op for tensor in change.inputs):
            factors = product.inputs if product.type == "Mul" else ()
            numbers = [number for number in map(_number, factors) if number is not None]
            if len(numbers) == 1 and any(_variable(factor, names) == name for factor in factors):
                yield (name, MOMENTUM), numbers[0]


def describe_initial_value(tensor: tf.Tensor) -> str | None:
    """Returns how an initial value is made, in words, such as ``"uniform from -0.5 to 0.5"``; None if it is not known.

    >>> with tf.Graph().as_default():
    ...     print(describe_initial_value(tf.random.uniform((3, 2), -0.5, 0.5)))
    uniform from -0.5 to 0.5
    """
    constant = _number(tensor)
    if constant is not None:
        return f"constant {constant:.6g}"
    scale, shift = 1.0, 0.0
    for _ in range(20):  # that many steps lead from no draw to its variable
        op = tensor.op
        if op.type in _DRAWS:
            kind = _DRAWS[op.type]
            if kind == "uniform":
                return f"uniform from {shift:.6g} to {scale + shift:.6g}"
            return f"{kind} of stddev {abs(scale):.6g}" + (f" and mean {shift:.6g}" if shift else "")
        if "Qr" in (op.type, *(operand.op.type for operand in op.inputs)):  # the sign of its columns is set
            return "orthogonal" + (f", times {scale:.6g}" if scale != 1 else "")
        if op.type in ("Mul", *_ADDS) and len(op.inputs) == 2:
            numbers = [_number(operand) for operand in op.inputs]
            if (numbers[0] is None) == (numbers[1] is None):
                return None
            number = numbers[0] if numbers[1] is None else numbers[1]
            assert number is not None
            scale, shift = (scale * number, shift) if op.type == "Mul" else (scale, shift + scale * number)
            tensor = op.inputs[0 if numbers[0] is None else 1]
        elif op.inputs:
            tensor = op.inputs[0]
        else:
            break
    return None


def _draw(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is drawn from a uniform distribution."""
    while tensor.op.type in (*_ADDS, "Mul", "Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return _DRAWS.get(tensor.op.type) == "uniform"


def _variable(tensor: tf.Tensor, names: Mapping[str, str]) -> str | None:
    """Returns the variable that a tensor is read from, if it is one as it stands."""
    while tensor.op.name not in names and tensor.op.type in _PASSED_ON:
        tensor = tensor.op.inputs[0]
    return names.get(tensor.op.name)


def _number(tensor: tf.Tensor, depth: int = 4) -> float | None:
    """Returns the one number that all elements of a constant are, or None.

    Args:
      tensor: the tensor.
      depth: through how many ops it may come: a whole network may consist of sums.
    """
    op = tensor.op
    if op.type in _ARITHMETIC and depth:
        operands = [_number(operand, depth - 1) for operand in op.inputs]
        return None if None in operands else float(_ARITHMETIC[op.type](*operands))
    if op.type in ("Identity", "Cast") and depth:
        return _number(op.inputs[0], depth - 1)
    if op.type == "Fill":
        return _number(op.inputs[1], depth - 1)
    if op.type != "Const" or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return None
    value = tf.make_ndarray(op.get_attr("value"))  # tf.get_static_value would forbid that it is fed
    return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else None


def listed(rates: Iterable[float]) -> str:
    """Returns rates as one setting: which layer has which cannot be told."""
    return ", ".join(dict.fromkeys(f"{rate:.6g}" for rate in sorted(rates)))
