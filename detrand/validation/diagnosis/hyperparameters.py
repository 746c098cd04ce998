"""What is set in a program: epsilons, momenta, dropout rates, initializers, by the variable that they go with.

The `Hyperparameters` of both programs have the same keys, so that `detrand.validation.diagnosis.audit` can compare
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from detrand._patching.keras import underlying_variable
from detrand._patching.optimizers import hyperparameters_of_tf1_optimizer
from detrand.validation.diagnosis.dataflow import Dataflow, walk
from detrand.validation.diagnosis.initial_values import (
    DRAWS,
    CreatedVariables,
    describe_initial_value,
    describe_initializer,
)
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, port_scope
from detrand.variables.partitioned import JoinedVariable, joined_variables
from detrand.variables.sources import is_layer_or_module, parts_of

# (TF1 name of a variable, or what else it is of, name of the hyperparameter) -> value
Hyperparameters = dict[tuple[str, str], Any]

EPSILON, MOMENTUM, INITIALIZER, RATES = "epsilon", "momentum", "initializer", "rates"
FORGET_BIAS, REGULARIZER = "forget bias", "regularizer"
DROPOUT = "dropout"

_FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_FUSED_CELLS = ("LSTMBlockCell", "BlockLSTM")
_ADDS, _SUBTRACTIONS = ("AddV2", "Add"), ("AssignSubVariableOp", "AssignSub")

_Found = Iterator[tuple[tuple[str, str], Any]]


def hyperparameters_of_graph(graph: tf.Graph) -> Hyperparameters:
    """Returns what is set in a TF1 graph."""
    variables = joined_variables("graph", graph)
    names = {part.op.name: name for name, variable in variables.items() for part in variable.parts}
    found = hyperparameters_of_ops(graph, names)
    for name, variable in variables.items():
        initial_value = describe_initial_value(variable.parts[0].initial_value)
        if initial_value is not None:
            found[name, INITIALIZER] = initial_value
    trained = [variable for variable in variables.values() if variable.spec.trainable and len(variable.parts) == 1]
    whole = {variable.parts[0].op.name: names[variable.parts[0].op.name] for variable in trained}
    losses = graph.get_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES)
    found |= {(name, REGULARIZER): value for name, value in regularizers_of(losses, whole).items()}
    return found


def hyperparameters_of_ops(graph: tf.Graph, names: Mapping[str, str]) -> Hyperparameters:
    """Returns what ops say of normalizations, moving averages, recurrent cells and dropout.

    Args:
      graph: the graph; what is in its loops, conditionals and functions counts, too.
      names: the TF1 names of the variables, by the names of the ops that variables are read from.
    """
    found: Hyperparameters = {}
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


def hyperparameters_of_layers(model: Any, names: Mapping[int, str]) -> Hyperparameters:
    """Returns what the layers in a layer, model or module are set to: their attributes, which they compute with.

    Args:
      model: a port that has its variables.
      names: the TF1 names of its variables, by the ids of the variables that TensorFlow knows.
    """
    found: Hyperparameters = {}
    rates: set[float] = set()
    for layer in parts_of(model):
        rates.update(filter(None, _rates(layer)))
        for weight in getattr(layer, "weights", ()):
            name = names.get(id(underlying_variable(weight)))
            if name is None:
                continue
            found.update(
                ((name, key), value) for key in (EPSILON, MOMENTUM) if (value := _number_of(layer, key)) is not None
            )
            with contextlib.suppress(Exception):  # an initializer of the user's may need what is not here
                found.update(((name, INITIALIZER), value) for value in _initializer(layer, weight))
    if rates:
        found[DROPOUT, RATES] = tuple(sorted(rates))
    return found


def _number_of(layer: Any, attribute: str) -> float | None:
    value = getattr(layer, attribute, None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _rates(layer: Any) -> Iterator[float | None]:
    if "Dropout" in type(layer).__name__:
        yield _number_of(layer, "rate")
    elif hasattr(layer, "recurrent_dropout"):
        yield _number_of(layer, "dropout")
        yield _number_of(layer, "recurrent_dropout")


def _initializer(layer: Any, weight: Any) -> Iterator[str]:
    """Yields what a layer's own weight starts from: what its initializer would add to a graph."""
    name = weight.name.rpartition("/")[2].removesuffix(":0")
    names = (f"{name}_initializer", f"{name.removesuffix('_kernel')}_initializer")
    initializer = next((found for found in (getattr(layer, each, None) for each in names) if callable(found)), None)
    if initializer is None:
        return
    shape, dtype = tuple(weight.shape), tf.as_dtype(weight.dtype).name
    value = describe_initializer(lambda: initializer(shape, dtype=dtype))
    if value is not None:
        yield (
            f"{value}, 1 for the forget gate" if name == "bias" and getattr(layer, "unit_forget_bias", False) else value
        )


class PortHyperparameters:
    """A new port that has its variables; the hyperparameters of one that is no layer or module are not known.

    Args:
      migration: the migration.
      tf1_names: those of the variables of the TF1 program.
    """

    def __init__(self, migration: Migration, tf1_names: Iterable[str]):
        self._migration = migration
        with port_scope(migration, RunConfig(training=False, mode="constant")), CreatedVariables().watched() as created:
            self._port = Port(migration)
            self._port(training=False)
        self._created = created
        self._variables: dict[str, JoinedVariable] = {}  # by their TF1 names
        if is_layer_or_module(self._port.variables):
            names = migration.tf1_names(tf1_names)
            variables = joined_variables("port", self._port.variables)
            self._variables = {names.get(name, name): variable for name, variable in variables.items()}

    def of_layers(self) -> Hyperparameters:
        """Returns what its layers are set to, and how its variables were initialized."""
        if not self._variables:
            return {}
        made = {name: self._created.initializer_of(whole.parts[0]) for name, whole in self._variables.items()}
        initializers = {(name, INITIALIZER): value for name, value in made.items() if value is not None}
        names = {id(part): name for name, variable in self._variables.items() for part in variable.parts}
        return initializers | hyperparameters_of_layers(self._port.variables, names)

    def of_ops(self, training: bool) -> Hyperparameters:
        """Returns what its ops and its losses tell where it is called in a ``tf.function``, which is not run."""
        if not self._variables:
            return {}
        keeps_losses = hasattr(self._port.model, "losses")
        losses: list[Any] = []

        def look(outputs: Any) -> Any:
            losses.extend(loss for loss in (self._port.model.losses if keeps_losses else ()) if _is_symbolic(loss))
            return outputs

        with port_scope(self._migration, RunConfig(training, "constant")):
            graph = self._port.graph(training, look)
        handles = {id(part.handle): (name, whole) for name, whole in self._variables.items() for part in whole.parts}
        read = [(inner.op.name, *handles[id(outer)]) for outer, inner in graph.captures if id(outer) in handles]
        found = hyperparameters_of_ops(graph, {op: name for op, name, _ in read})
        if keeps_losses:
            trained = {op: name for op, name, whole in read if whole.spec.trainable and len(whole.parts) == 1}
            found |= {(name, REGULARIZER): value for name, value in regularizers_of(losses, trained).items()}
        return found


def _is_symbolic(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and tf.is_symbolic_tensor(tensor)


OPTIMIZER = "optimizer"

# What TF1's optimizers call otherwise than Keras's.
_NAMES = {
    "lr": "learning_rate",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "use_nesterov": "nesterov",
    "weight_decay_rate": "weight_decay",
}
# What optimizers do without an argument that says so.
_UNSAID: dict[str, dict[str, Any]] = {
    "GradientDescentOptimizer": {"kind": "SGD", "momentum": 0.0, "nesterov": False},
    "MomentumOptimizer": {"kind": "SGD"},
    "AdagradOptimizer": {"epsilon": 0.0},  # ResourceApplyAdagrad divides by the root of the accumulator alone
    "RMSPropOptimizer": {"kind": "RMSprop", "initial rms": 1.0},  # RMSPropOptimizer._create_slots
    "RMSprop": {"initial rms": 0.0},  # Optimizer.add_variable_from_reference's default
}
# What Keras's can do beside, and TF1's do not.
_IN_KERAS_ALONE = ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "amsgrad", "use_ema")
_OF_NO_MEANING = {
    "name",
    "use_locking",
    "use_own_namescope_for_non_slot_vars",
    "jit_compile",
    "is_legacy_optimizer",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
}


def hyperparameters_of_optimizer(optimizer: Any) -> Hyperparameters:
    """Returns what an optimizer of ``tf.compat.v1.train``, Keras 3 or tf_keras is set to.

    >>> import tensorflow as tf
    >>> hyperparameters_of_optimizer(tf.compat.v1.train.AdagradOptimizer(0.1))["optimizer", "initial_accumulator_value"]
    0.1

    A learning rate that follows a schedule is left out: what it comes to is compared in each step.
    """
    is_of_tf1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    found = _given_to_tf1(optimizer) if is_of_tf1 else optimizer.get_config()
    found = {name: None if name in _IN_KERAS_ALONE and not value else value for name, value in found.items()}
    of_class = type(optimizer)
    if of_class.__module__.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
        unsaid = {"kind": of_class.__name__.removesuffix("Optimizer"), **_UNSAID.get(of_class.__name__, {})}
        found = {**dict.fromkeys(_IN_KERAS_ALONE), **found, **unsaid}
    # Of a class of the user's, nobody knows what else it does.
    numbers = {name: _number(value) for name, value in found.items() if name not in _OF_NO_MEANING}
    return {(OPTIMIZER, name): value for name, value in numbers.items() if value is not ...}


def _given_to_tf1(optimizer: Any) -> dict[str, Any]:
    given = hyperparameters_of_tf1_optimizer(optimizer)
    if isinstance(optimizer, tf.compat.v1.train.RMSPropOptimizer):
        given["rho"] = given.pop("decay")
    return {_NAMES.get(name, name): value for name, value in given.items()}


def _number(value: Any) -> Any:
    """Returns a hyperparameter as it is shown; Ellipsis for one that is no number, as a schedule."""
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        value = tf.get_static_value(value)
        return ... if value is None else float(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return ...


_SQUARES, _ABSOLUTES = "sum(w**2)", "sum(abs(w))"
_SUMS = ("AddV2", "Add", "AddN")

_Terms = list[tuple[str, str, float]]  # variable, what is summed, factor


def regularizers_of(losses: Iterable[tf.Tensor], variables: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the regularizer of each variable as text, such as ``"0.005 sum(w**2)"``; None for one that has none.

    >>> with tf.Graph().as_default():
    ...     w = tf.compat.v1.get_variable("w", (3,))
    ...     regularizers_of([0.01 * tf.nn.l2_loss(w)], {w.op.name: "w"})
    {'w': '0.005 sum(w**2)'}

    Args:
      losses: the regularization losses, tensors of a graph.
      variables: the names of the variables, by the names of the ops that they are read from. Those that are in a loss
        of another kind are left out: what that does with them is not known.
    """
    flow = Dataflow(variables)
    found: dict[str, dict[str, float]] = {name: {} for name in variables.values()}
    for loss in losses:
        terms = _terms(loss, flow)
        if terms is None:
            for name in flow.all_variables(loss):
                found.pop(name, None)
            continue
        for name, kind, factor in terms:
            if name in found:
                found[name][kind] = found[name].get(kind, 0.0) + factor
    return {name: _in_words(factors) for name, factors in found.items()}


def _in_words(factors: Mapping[str, float]) -> str | None:
    return " + ".join(f"{factor:.6g} {kind}" for kind, factor in sorted(factors.items()) if factor) or None


def _terms(loss: tf.Tensor, flow: Dataflow) -> _Terms | None:
    """Returns what a loss is the sum of; None if it is anything else."""
    op = loss.op
    if flow.number(loss) == 0:
        return []
    if op.type in ("Identity", "Cast"):
        return _terms(op.inputs[0], flow)
    if op.type in _SUMS:
        parts = [_terms(operand, flow) for operand in op.inputs]
        return None if None in parts else [term for part in parts for term in part or ()]
    if op.type == "Mul":
        for factor, rest in (op.inputs, list(op.inputs)[::-1]):
            number = flow.number(factor)
            if number is not None:
                terms = _terms(rest, flow)
                return None if terms is None else [(name, kind, number * value) for name, kind, value in terms]
        return None
    if op.type == "L2Loss":
        name = flow.variable(op.inputs[0])
        return None if name is None else [(name, _SQUARES, 0.5)]
    if op.type == "Sum" and loss.shape.rank == 0:
        return _terms_of_sum(op.inputs[0].op, flow)
    return None


def _terms_of_sum(summed: tf.Operation, flow: Dataflow) -> _Terms | None:
    names = {flow.variable(operand) for operand in summed.inputs}
    if summed.type == "Pow" and flow.number(summed.inputs[1]) == 2:
        names, kind = {flow.variable(summed.inputs[0])}, _SQUARES
    elif summed.type in ("Square", "Mul"):
        kind = _SQUARES
    elif summed.type == "Abs":
        kind = _ABSOLUTES
    else:
        return None
    (name,) = names if len(names) == 1 else (None,)
    return None if name is None else [(name, kind, 1.0)]
