"""What is set in a program: epsilons, momenta, dropout rates, initializers, by the variable that they go with.

Either program's `Settings` has the same keys, so that the two can be laid side by side: `detrand.validation.audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from detrand.validation.dataflow import Dataflow, walk
from detrand.validation.initial_values import DRAWS, describe_initial_value
from detrand.validation.regularizers import regularizers_of
from detrand.variables.whole_variables import whole_variables

# (TF1 name of a variable, or what else it is of, name of the setting) -> value
Settings = dict[tuple[str, str], Any]

EPSILON, MOMENTUM, INITIALIZER, RATES = "epsilon", "momentum", "initializer", "rates"
FORGET_BIAS, REGULARIZER = "forget bias", "regularizer"
DROPOUT = "dropout"

_FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_FUSED_CELLS = ("LSTMBlockCell", "BlockLSTM")
_ADDS, _SUBTRACTIONS = ("AddV2", "Add"), ("AssignSubVariableOp", "AssignSub")

_Found = Iterator[tuple[tuple[str, str], Any]]


def settings_of_graph(graph: tf.Graph) -> Settings:
    """Returns what is set in a TF1 graph."""
    variables = whole_variables("graph", graph)
    names = {part.op.name: name for name, variable in variables.items() for part in variable.parts}
    found = settings_of_ops(graph, names)
    for name, variable in variables.items():
        initial_value = describe_initial_value(variable.parts[0].initial_value)
        if initial_value is not None:
            found[name, INITIALIZER] = initial_value
    trained = [variable for variable in variables.values() if variable.spec.trainable and len(variable.parts) == 1]
    whole = {variable.parts[0].op.name: names[variable.parts[0].op.name] for variable in trained}
    losses = graph.get_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES)
    found |= {(name, REGULARIZER): value for name, value in regularizers_of(losses, whole).items()}
    return found


def settings_of_ops(graph: tf.Graph, names: Mapping[str, str]) -> Settings:
    """Returns what ops say of normalizations, moving averages, recurrent cells and dropout.

    Args:
      graph: the graph; what is in its loops, conditionals and functions counts, too.
      names: the TF1 names of the variables, by the names of the ops that variables are read from.
    """
    found: Settings = {}
    rates: dict[str, set[float]] = {}
    for op, flow in walk(graph, Dataflow(names)):
        if op.type in _FUSED:
            found.update(_of_fused_normalization(op, flow))
        elif op.type in ("Rsqrt", "Sqrt"):
            found.update(_of_normalization(op, flow))
        elif op.type in _SUBTRACTIONS or op.type in ("AssignVariableOp", "Assign"):
            found.update(_of_moving_average(op, flow))
        elif op.type == "Split" and len(op.outputs) == 4:
            found.update(_of_recurrent_cell(op, flow))
        elif op.type in _FUSED_CELLS:
            bias = flow.variable(op.inputs[-1])
            found.update({(bias, FORGET_BIAS): float(op.get_attr("forget_bias"))} if bias else {})
        elif op.type == "GreaterEqual" and _is_drawn(op.inputs[0]):
            rate = flow.number(op.inputs[1])
            if rate:
                rates.setdefault(_dropped_out(op, flow), set()).add(float(f"{rate:.6g}"))  # of float32, no more is told
    found.update(((of, RATES), tuple(sorted(of_place))) for of, of_place in rates.items())
    return found


def _of_fused_normalization(op: tf.Operation, flow: Dataflow) -> _Found:
    variables = [flow.variable(tensor) for tensor in op.inputs[1:]]
    yield from (((name, EPSILON), op.get_attr("epsilon")) for name in variables if name)
    kept = 1 - op.get_attr("exponential_avg_factor") if op.type == "FusedBatchNormV3" else 0.0
    if op.get_attr("is_training") and kept:  # it updates the moving averages, its last two inputs, itself
        yield from (((name, MOMENTUM), kept) for name in variables[2:] if name)


def _of_normalization(op: tf.Operation, flow: Dataflow) -> _Found:
    """Yields the epsilon of ``1 / sqrt(variance + epsilon)``, by the variance or by what that is multiplied by."""
    added = op.inputs[0].op
    if added.type not in _ADDS:
        return
    for variance, constant in (added.inputs, reversed(added.inputs)):
        epsilon = flow.number(constant)
        if epsilon is None:
            continue
        tensors = _factors(op)
        if not any(flow.variable(tensor) for tensor in tensors):
            # What is normalized may be multiplied by it first, and by the variable then.
            tensors = [factor for user in op.outputs[0].consumers() if user.type == "Mul" for factor in _factors(user)]
        for name in filter(None, (flow.variable(tensor) for tensor in (variance, *tensors))):
            yield (name, EPSILON), epsilon
        return


def _factors(op: tf.Operation) -> list[tf.Tensor]:
    """Returns what the output of an op is multiplied by, and that output itself."""
    return [factor for user in op.outputs[0].consumers() if user.type == "Mul" for factor in user.inputs]


def _of_moving_average(op: tf.Operation, flow: Dataflow) -> _Found:
    """Yields the momentum of ``v -= (v - x) * (1 - momentum)`` and of ``v = v * momentum + x * (1 - momentum)``."""
    name, change = flow.variable(op.inputs[0]), op.inputs[1].op
    if name is None:
        return
    if op.type in _SUBTRACTIONS and change.type == "Mul":
        numbers = flow.numbers_in(change)
        if len(numbers) == 1:
            yield (name, MOMENTUM), 1 - numbers[0]
    elif change.type in _ADDS:
        for product in (tensor.op for tensor in change.inputs):
            numbers = flow.numbers_in(product) if product.type == "Mul" else []
            if len(numbers) == 1 and any(flow.variable(factor) == name for factor in product.inputs):
                yield (name, MOMENTUM), numbers[0]


def _of_recurrent_cell(split: tf.Operation, flow: Dataflow) -> _Found:
    """Yields what an LSTM cell adds to its forget gate: 0 if three of its gates go through sigmoids as they are."""
    summed = split.inputs[1].op
    bias = next(filter(None, map(flow.variable, summed.inputs)), None)
    users = [user for gate in split.outputs for user in gate.consumers()]
    added = [user for user in users if user.type in _ADDS and _is_squashed(user)]
    if bias is None or len(added) + sum(user.type == "Sigmoid" for user in users) != 3:
        return
    numbers = [number for user in added for number in flow.numbers_in(user)]
    if len(added) == len(numbers) <= 1:
        yield (bias, FORGET_BIAS), numbers[0] if numbers else 0.0


def _is_squashed(op: tf.Operation) -> bool:
    return any(user.type == "Sigmoid" for user in op.outputs[0].consumers())


def _is_drawn(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is drawn from a uniform distribution."""
    while tensor.op.type in (*_ADDS, "Mul", "Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return DRAWS.get(tensor.op.type) == "uniform"


def _dropped_out(mask: tf.Operation, flow: Dataflow) -> str:
    """Returns what dropout is applied to: the layer before it, if there is one."""
    users = [user for user in mask.outputs[0].consumers() if user.type in ("Select", "SelectV2", "Cast")]
    for user in users:
        kept = [user.inputs[1]]
        if user.type == "Cast":
            products = [product for product in user.outputs[0].consumers() if product.type == "Mul"]
            kept = [factor for product in products for factor in product.inputs if factor.op is not user]
        layers = {layer_of(name) for tensor in kept for name in flow.nearest_variables(tensor)}
        if layers:
            return f"{DROPOUT} after {' and '.join(sorted(layers))}"
    return DROPOUT


def layer_of(variable: str) -> str:
    """Returns the scope of a variable, and of one that is in none, its name."""
    return variable.rpartition("/")[0] or variable


def listed(rates: Iterable[float]) -> str:
    """Returns the rates of one place, or of all that have none, as text."""
    return ", ".join(dict.fromkeys(f"{rate:.6g}" for rate in sorted(rates)))
