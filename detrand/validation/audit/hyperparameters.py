"""Hyperparameters of both programs: epsilons, momenta, dropout rates, initializers, regularizers and optimizers.

TF1's are read from the ops of its graph (`hyperparameters_of_graph`), the port's from the attributes of its layers and
from the ops of a ``tf.function`` that calls it (`PortHyperparameters`), and an optimizer's from its arguments
(`hyperparameters_of_optimizer`). All are `Hyperparameters` with the same keys; `detrand.validation.audit.audit`
compares them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from detrand._patching.flax import OptaxOptimizer
from detrand._patching.keras import underlying_variable
from detrand._patching.optimizers import (
    hyperparameters_of_tf1_optimizer,
    hyperparameters_of_torch_optimizer,
    initial_rms_in_torch,
    is_tf1_optimizer,
    is_torch_optimizer,
)
from detrand.checkpoints.upstream import input_ops
from detrand.errors import passing_over
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, site_of_op
from detrand.validation.audit.dataflow import ADDS, Dataflow, back_through, operations
from detrand.validation.audit.initial_values import DRAWS, describe_initial_value, describe_initializer
from detrand.validation.frameworks.framework import Framework
from detrand.validation.frameworks.tensorflow import is_tensor
from detrand.validation.frameworks.traces import FUSED_NORMALIZATIONS
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import FreshPort, port_scope
from detrand.variables.sources import joined_variables, parts_of, spec_of
from detrand.variables.tf1_view import TF1View

# (owner: the TF1 name of a variable, or "optimizer" and the like; name of the hyperparameter) -> value
Hyperparameters = dict[tuple[str, str], Any]

EPSILON, MOMENTUM, FORGET_BIAS, RATE = "epsilon", "momentum", "forget bias", "rate"
INITIAL_RMS, BATCH_AXIS = "initial rms", "axis of the batch"
INITIALIZER, REGULARIZER, ACTIVATION = "initializer", "regularizer", "activation"
DECAY = "decay in gradients"  # of TF1, as a regularizer
DROPOUT, OPTIMIZER = "dropout", "optimizer"  # owners
WEIGHT_DECAY = (OPTIMIZER, "weight_decay")

_ACTIVATIONS = (
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Tanh", "Sigmoid", "Softplus", "Softsign", "Softmax"),
    "LogSoftmax",
)
_SUBTRACTIONS = ("AssignSubVariableOp", "AssignSub")
_ASSIGNMENTS = ("AssignVariableOp", "Assign")

_Found = Iterator[tuple[tuple[str, str], Any]]


def hyperparameters_of_graph(graph: tf.Graph, losses: Iterable[tf.Tensor] | None = None) -> Hyperparameters:
    """Return the hyperparameters of a TF1 graph; of its regularization losses, unless other losses are given."""
    view = TF1View(joined_variables("graph", graph))
    if losses is None:
        losses = graph.get_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES)
    initial_values = ((name, view.parts_of(name)[0].initial_value) for name in view.specs)
    initializers = _initializers((name, describe_initial_value(value)) for name, value in initial_values)
    return _of_ops(graph, view, _reads_of_graph(view), losses) | initializers


def _initializers(described: Iterable[tuple[str, str | None]]) -> Hyperparameters:
    return {(name, INITIALIZER): value for name, value in described if value is not None}


def _of_ops(
    graph: tf.Graph, view: TF1View, read: Mapping[str, int], losses: Iterable[tf.Tensor] | None
) -> Hyperparameters:
    """Return what shows in the ops of a graph and its functions, given the parts by the ops they are read from."""
    found: Hyperparameters = {}
    for op, flow in operations(graph, Dataflow(_names_of_reads(view, read))):
        if op.type in FUSED_NORMALIZATIONS:
            found.update(_of_fused_normalization(op, flow))
        elif op.type in ("Rsqrt", "Sqrt"):
            found.update(_of_normalization(op, flow))
        elif op.type in (*_SUBTRACTIONS, *_ASSIGNMENTS):
            found.update(_of_moving_average(op, flow))
        elif op.type == "Split" and len(op.outputs) == 4:
            found.update(_of_recurrent_cell(op, flow))
        elif op.type in _ACTIVATIONS:
            for key, value in _of_activation(op, flow):
                found[key] = " and ".join(sorted({*str(found.get(key, value)).split(" and "), value}))
        elif op.type == "GreaterEqual" and _is_drawn(op.inputs[0]) and (rate := flow.number(op.inputs[1])):
            key = _dropped_out(op, flow), RATE
            found[key] = tuple(sorted({*found.get(key, ()), float(f"{rate:.6g}")}))  # float32 has no more digits
    return found | ({} if losses is None else _of_losses(losses, view, read))


def _of_losses(losses: Iterable[tf.Tensor], view: TF1View, read: Mapping[str, int]) -> Hyperparameters:
    """Return the regularizers of the variables that are in one part; one program may freeze what the other trains."""
    regularizers = regularizers_of(losses, _names_of_whole(view, read))
    return {(name, REGULARIZER): value for name, value in regularizers.items()}


def _names_of_reads(view: TF1View, read: Mapping[str, int]) -> dict[str, str]:
    """Return the names of variables by the ops that they are read from."""
    return {op: " and ".join(view.names_of(position)) for op, position in read.items()}


def _names_of_whole(view: TF1View, read: Mapping[str, int]) -> dict[str, str]:
    """Return the names of those variables that are in one part."""
    names = _names_of_reads(view, read)
    return {op: name for op, name in names.items() if len(view.positions.get(name, ())) == 1}


def _of_activation(op: tf.Operation, flow: Dataflow) -> _Found:
    """Yield the activation of a layer, for the variable that is the last one of the layer before it."""
    before = back_through(op.inputs[0], "Reshape").op
    operands = list(before.inputs)
    if before.type in FUSED_NORMALIZATIONS:
        operands = operands[2:]  # its offset
    elif before.type in ADDS:  # the offset may come as `offset - mean * scale`
        operands += [
            each.inputs[0] for each in (back_through(operand, "Cast").op for operand in operands) if each.type == "Sub"
        ]
    variables = [name for name in map(flow.variable, operands) if name]
    value = f"LeakyRelu of slope {op.get_attr('alpha'):.6g}" if op.type == "LeakyRelu" else op.type
    yield from (((name, ACTIVATION), value) for name in variables[:1])


def _of_fused_normalization(op: tf.Operation, flow: Dataflow) -> _Found:
    variables = [flow.variable(tensor) for tensor in op.inputs[1:]]
    yield from (((name, EPSILON), op.get_attr("epsilon")) for name in variables if name)
    kept = 1 - op.get_attr("exponential_avg_factor") if op.type == "FusedBatchNormV3" else 0.0
    if op.get_attr("is_training") and kept:  # the op updates the moving averages, its last two inputs
        yield from (((name, MOMENTUM), kept) for name in variables[2:] if name)


def _of_normalization(op: tf.Operation, flow: Dataflow) -> _Found:
    """Yield the epsilon of ``1 / sqrt(variance + epsilon)``, for the variance or the variables that multiply it."""
    parts = flow.number_and_rest(op.inputs[0].op, ADDS)
    if parts is None:
        return
    epsilon, variance = parts
    factors = _factors(op)
    if not any(flow.variable(tensor) for tensor in factors):
        # What is normalized may be multiplied first, and by the variable then.
        factors = [factor for product in _users(op, "Mul") for factor in _factors(product)]
    yield from (((name, EPSILON), epsilon) for name in map(flow.variable, (variance, *factors)) if name)


def _factors(op: tf.Operation) -> list[tf.Tensor]:
    """Return the factors of all products that an op's output is in."""
    return [factor for product in _users(op, "Mul") for factor in product.inputs]


def _users(op: tf.Operation, *types: str) -> list[tf.Operation]:
    """Return the ops of some types that take an op's first output."""
    return [user for user in op.outputs[0].consumers() if user.type in types]


def _of_moving_average(op: tf.Operation, flow: Dataflow) -> _Found:
    """Yield the momentum of ``v -= (v - x) * (1 - momentum)`` and of ``v = v * momentum + x * (1 - momentum)``."""
    name, change = flow.variable(op.inputs[0]), op.inputs[1].op
    if name is None:
        return
    if op.type in _SUBTRACTIONS:
        if (parts := flow.number_and_rest(change, ("Mul",))) is not None:
            yield (name, MOMENTUM), 1 - parts[0]
    elif change.type in ADDS:
        for product in input_ops(change):
            parts = flow.number_and_rest(product, ("Mul",))
            if parts is not None and flow.variable(parts[1]) == name:
                yield (name, MOMENTUM), parts[0]


def _of_recurrent_cell(split: tf.Operation, flow: Dataflow) -> _Found:
    """Yield the number that an LSTM cell adds to its forget gate, 0 if all three gates go into sigmoids directly."""
    summed = split.inputs[1].op
    bias = next(filter(None, map(flow.variable, summed.inputs)), None)
    users = [user for gate in split.outputs for user in gate.consumers()]
    added = [user for user in users if user.type in ADDS and _users(user, "Sigmoid")]
    if bias is None or len(added) + sum(user.type == "Sigmoid" for user in users) != 3:
        return
    numbers = [parts[0] for user in added if (parts := flow.number_and_rest(user, ADDS)) is not None]
    if len(added) == len(numbers) <= 1:
        yield (bias, FORGET_BIAS), numbers[0] if numbers else 0.0


def _is_drawn(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is drawn from a uniform distribution."""
    return DRAWS.get(back_through(tensor, *ADDS, "Mul", "Cast").op.type) == "uniform"


def _dropped_out(mask: tf.Operation, flow: Dataflow) -> str:
    """Return the owner of a dropout rate: dropout after the layer before it, if there is one."""
    for user in _users(mask, "Select", "SelectV2", "Cast"):
        kept = [user.inputs[1]] if user.type != "Cast" else [each for each in _factors(user) if each.op is not user]
        layers = {layer_of(name) for tensor in kept for name in flow.nearest_variables(tensor)}
        if layers:
            return f"{DROPOUT} after {' and '.join(sorted(layers))}"
    return DROPOUT


def layer_of(variable: str) -> str:
    """Return the scope of a variable, or its name if it is in no scope."""
    return variable.rpartition("/")[0] or variable


def regularizers_in_total_loss(loss: tf.Tensor, view: TF1View) -> dict[str, str]:
    """Return the regularizers in the total loss of a TF1 graph by variable, ``"none"`` where it has none."""
    found = _of_losses([loss], view, _reads_of_graph(view))
    return {name: value or "none" for (name, _), value in found.items()}


def lines_of_penalties(losses: Iterable[tf.Tensor], view: TF1View) -> dict[str, str]:
    """Return the lines of user code that penalize the variables of a TF1 graph in losses, the first for each."""
    return _lines_of_penalties(losses, _names_of_whole(view, _reads_of_graph(view)))


def _lines_of_penalties(losses: Iterable[tf.Tensor], variables: Mapping[str, str]) -> dict[str, str]:
    flow, found = Dataflow(variables), dict[str, str]()
    for name, _, _, op in (term for loss in losses for term in _terms(loss, flow)):
        if (site := site_of_op(op)) != UNKNOWN:
            found.setdefault(name, str(site))
    return found


def _reads_of_graph(view: TF1View) -> dict[str, int]:
    """Return the positions of the variables of a TF1 graph by the ops that they are read from."""
    return {part.op.name: position for position, part in enumerate(view.parts)}


SQUARES, AMOUNTS = "sum(w**2)", "sum(abs(w))"
_SUMMED = {**dict.fromkeys(("Square", "Pow", "Mul"), SQUARES), "Abs": AMOUNTS}
_SHAPED = ("Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Sum")  # the sum of all elements stays as it is
_JOINED = (*ADDS, "AddN", "Sub", "Pack", "ConcatV2")
_UNKNOWN = "unknown"


def regularizers_of(losses: Iterable[tf.Tensor], variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return the regularizer of each variable as text, or None if it has none; variables of other losses are left out.

    What depends on data, as the loss of the outputs does, is no regularizer.

    >>> with tf.Graph().as_default():
    ...     w = tf.compat.v1.get_variable("w", (3,))
    ...     regularizers_of([0.01 * tf.nn.l2_loss(w)], {w.op.name: "w"})
    {'w': '0.005 sum(w**2)'}
    """
    flow = Dataflow(variables)
    found: dict[str, dict[str, float]] = {name: {} for name in variables.values()}
    for loss in losses:
        for name, kind, factor, _ in _terms(loss, flow):
            if name in found:
                found[name][kind] = found[name].get(kind, 0.0) + factor
    return {name: _describe_regularizer(factors) for name, factors in found.items() if _UNKNOWN not in factors}


def factors_of(regularizer: str) -> dict[str, float]:
    """Return the factors of a regularizer in words by what they multiply.

    >>> factors_of("0.005 sum(w**2) + 0.1 sum(abs(w))")
    {'sum(w**2)': 0.005, 'sum(abs(w))': 0.1}
    """
    terms = (term.split(" ", 1) for term in regularizer.split(" + ") if regularizer != "none")
    return {kind: float(factor) for factor, kind in terms}


def with_decay(regularizer: str | None, decay: str) -> str | None:
    """Return the sum of two regularizers in words.

    >>> with_decay("0.1 sum(abs(w))", "0.005 sum(w**2)")
    '0.1 sum(abs(w)) + 0.005 sum(w**2)'
    """
    factors = Counter(factors_of(regularizer or "none"))
    factors.update(factors_of(decay))
    return _describe_regularizer(factors)


def _describe_regularizer(factors: Mapping[str, float]) -> str | None:
    return " + ".join(f"{factor:.6g} {kind}" for kind, factor in sorted(factors.items()) if factor) or None


def _terms(loss: tf.Tensor, flow: Dataflow, factor: float = 1.0) -> Iterator[tuple[str, str, float, tf.Operation]]:
    """Yield the terms that the sum of a tensor's elements is the sum of: variable, what is summed, factor, op."""
    op, size = loss.op, loss.shape.num_elements()
    if flow.number(loss) == 0:
        return
    operands = list(op.inputs[:-1] if op.type == "ConcatV2" else op.inputs)
    sizes = [operand.shape.num_elements() for operand in operands]
    if op.type in _SHAPED:
        yield from _terms(operands[0], flow, factor)
        return
    if op.type == "Neg":
        yield from _terms(operands[0], flow, -factor)
        return
    if op.type == "Mean" and size and sizes[0]:
        yield from _terms(operands[0], flow, factor * size / sizes[0])
        return
    if op.type in _JOINED and (all(sizes) or len({*map(str, (each.shape for each in (loss, *operands)))}) == 1):
        for number, (operand, of_operand) in enumerate(zip(operands, sizes, strict=True)):
            sign = -1 if op.type == "Sub" and number else 1
            repeated = size / of_operand if op.type in (*ADDS, "Sub") and size and of_operand else 1
            yield from _terms(operand, flow, sign * repeated * factor)
        return
    parts = flow.number_and_rest(op, ("Mul",))
    if parts is None and op.type == "RealDiv" and (divisor := flow.number(op.inputs[1])):
        parts = 1 / divisor, op.inputs[0]
    if parts is not None and parts[1].shape.num_elements() == size:
        yield from _terms(parts[1], flow, factor * parts[0])
        return
    is_square = op.type == "Pow" and flow.number(op.inputs[1]) == 2
    names = {flow.variable(operand) for operand in (op.inputs[:1] if is_square else op.inputs)}
    name = names.pop() if len(names) == 1 else None
    if name is not None and op.type == "L2Loss":
        yield name, SQUARES, factor / 2, op
    elif name is not None and op.type in _SUMMED and (op.type != "Pow" or is_square):
        yield name, _SUMMED[op.type], factor, op
    else:
        yield from ((name, _UNKNOWN, factor, op) for name in _apart_from_data(loss, flow))


def _apart_from_data(loss: tf.Tensor, flow: Dataflow) -> set[str]:
    """Return the variables of those parts of a loss that depend on no data."""
    if not flow.depends_on_data(loss):
        return flow.all_variables(loss)
    if loss.op.type not in (*_SHAPED, *_JOINED, "Mean", "Mul", "RealDiv", "Neg"):
        return set()
    parts = [each for each in loss.op.inputs if each.shape.rank == 0 or each.op.type in (*ADDS, "Sub")]
    return set[str]().union(*(_apart_from_data(part, flow) for part in parts))


class PortHyperparameters:
    """The hyperparameters of a port.

    Attributes:
      view: the view of its variables; there are none in a port that is no layer and no module.
    """

    def __init__(self, migration: Migration, fresh: FreshPort):
        self._migration, self._port, self.view = migration, fresh.port, fresh.view
        self._initializers, self._initial_values = fresh.initializers, fresh.arrays

    def of_layers(self) -> Hyperparameters:
        """Return the attributes of its layers, and the initializers of its variables."""
        whole = [name for name, own_names in self.view.own_names.items() if len(own_names) == 1]
        found = [(name, self._initializers.get(id(self.view.parts_of(name)[0]))) for name in whole]
        known = [(name, value) for name, value in found if value is not None]
        initializers = _initializers((name, describe_initializer(value)) for name, value in known)
        names = {id(part): " and ".join(self.view.names_of(number)) for number, part in enumerate(self.view.parts)}
        found_in_layers = initializers | self._of_layers(names)
        with port_scope(self._migration, RunConfig(True)), self._port.framework.dropout_rates() as rates:
            if rates is not None:
                self._port(training=True)
                found_in_layers |= {(DROPOUT, RATE): tuple(sorted(rates))} if rates else {}
        for name in self.view.constants():
            key, positions, value = (name, INITIALIZER), self.view.positions[name], self._initial_values[name]
            if value.size > 1 and np.ptp(value) == 0:  # in TF1's form; one number may be random
                found_in_layers[key] = f"constant {value.flat[0]:.6g}"
            elif len(positions) > 1:
                numbers = {id(self.view.parts[position]): str(position) for position in positions}
                of_parts = self._of_layers(numbers)
                words: list[Any] = [of_parts.get((number, INITIALIZER)) for number in numbers.values()]
                found_in_layers.pop(key, None)
                found_in_layers |= {key: " and ".join(dict.fromkeys(words))} if None not in words else {}
        return found_in_layers

    def _of_layers(self, names: Mapping[int, str]) -> Hyperparameters:
        return hyperparameters_of_layers(self._port.variables, names, self._port.framework)

    def of_ops(self, training: bool) -> Hyperparameters:
        """Return the hyperparameters of its ops and losses in a ``tf.function``, which is not run."""
        graph, view, read, losses = self._traced(training)
        found = _of_ops(graph, view, read, losses)
        for name, constants in self.view.constants().items():  # Keras has the forget bias in the bias
            if (name, FORGET_BIAS) in found:
                found[name, FORGET_BIAS] += float(constants.max())
        return found

    def lines_of_penalties(self) -> dict[str, str]:
        """Return the lines of user code that penalize variables, such as in the port's loss, by their TF1 names."""
        _, view, read, losses = self._traced(training=True)
        return _lines_of_penalties(losses or (), _names_of_whole(view, read))

    def _traced(self, training: bool) -> tuple[tf.Graph, TF1View, dict[str, int], list[Any] | None]:
        """Return the graph of a ``tf.function`` that calls it, its variables, where they are read, and its losses."""
        losses: list[Any] = []
        train = self._migration.train if training else None
        port = self._port if train is None else self._port.made_anew(training)

        def look(outputs: Any) -> Any:
            # A function that creates variables is traced twice; the later graph is the one that runs.
            losses[:] = filter(tf.is_symbolic_tensor, getattr(port.model, "losses", ()))
            if train is not None:
                with passing_over():  # training-steps reports it
                    _, labels = self._migration.training_batches()[0]
                    losses.append(tf.convert_to_tensor(train.port_loss(port.tensors(labels), outputs)))
            return outputs

        with port_scope(self._migration, RunConfig(training, "constant")):
            graph = port.graph(training, look)
        view = port.view()
        handles = {id(part.handle): position for position, part in enumerate(view.parts)}
        read = {inner.op.name: handles[id(outer)] for outer, inner in graph.captures if id(outer) in handles}
        return graph, view, read, losses if hasattr(port.model, "losses") or losses else None


def hyperparameters_of_layers(
    model: Any, names: Mapping[int, str], framework: Framework | None = None
) -> Hyperparameters:
    """Return the hyperparameters that are attributes of layers in a port, given the names of variables by their ids."""
    framework, layers = framework or Framework(), parts_of(model)

    def attribute(layer: Any, name: str) -> float | None:
        value = framework.hyperparameter(layer, name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    rates = sorted({rate for layer in layers for rate in _rates(layer, attribute) if rate})
    found: Hyperparameters = {(DROPOUT, RATE): tuple(rates)} if rates else {}
    for layer in layers:
        for weight in framework.weights(layer):
            name = names.get(id(underlying_variable(weight)))
            if name is None:
                continue
            values = {
                EPSILON: attribute(layer, "epsilon"),
                MOMENTUM: attribute(layer, "momentum"),
                INITIALIZER: _initializer(layer, weight),
            }
            found.update(((name, each), value) for each, value in values.items() if value is not None)
    return found


def _rates(layer: Any, attribute: Callable[[Any, str], float | None]) -> Iterator[float | None]:
    if "Dropout" in type(layer).__name__:
        yield attribute(layer, "rate")
    elif hasattr(layer, "recurrent_dropout"):
        yield attribute(layer, "dropout")
        yield attribute(layer, "recurrent_dropout")


def _initializer(layer: Any, weight: Any) -> str | None:
    """Return the initializer of a layer's own weight in words."""
    name = weight.name.rpartition("/")[2].removesuffix(":0")
    names = (f"{name}_initializer", f"{name.removesuffix('_kernel')}_initializer")
    initializer = next((found for found in (getattr(layer, each, None) for each in names) if callable(found)), None)
    if initializer is None:
        return None
    shape, dtype = tuple(weight.shape), spec_of(weight).dtype
    value = describe_initializer(lambda: initializer(shape, dtype=dtype))
    if value is not None and name == "bias" and getattr(layer, "unit_forget_bias", False):
        return f"{value}, 1 for the forget gate"
    return value


# TF1's names of what Keras's optimizers name differently.
_KERAS_NAMES = {
    "lr": "learning_rate",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "decay": "rho",
    "use_nesterov": "nesterov",
    "weight_decay_rate": "weight_decay",
}
# What optimizers do without an argument for it.
_IMPLIED: dict[str, dict[str, Any]] = {
    "GradientDescentOptimizer": {"kind": "SGD", "momentum": 0.0, "nesterov": False},
    "MomentumOptimizer": {"kind": "SGD"},
    "AdagradOptimizer": {"epsilon": 0.0},  # ResourceApplyAdagrad divides by the root of the accumulator only
    "RMSPropOptimizer": {"kind": "RMSprop", INITIAL_RMS: 1.0},  # RMSPropOptimizer._create_slots
    "RMSprop": {INITIAL_RMS: 0.0},  # the default of Optimizer.add_variable_from_reference
}
_ONLY_IN_KERAS = ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "amsgrad", "use_ema")
_IGNORED = ("use_locking", "use_own_namescope_for_non_slot_vars")  # of TF1: they change no number


def hyperparameters_of_optimizer(optimizer: Any) -> Hyperparameters:
    """Return the hyperparameters of an optimizer of ``tf.compat.v1.train``, Keras 3, tf_keras, PyTorch or optax.

    A learning rate that follows a schedule is left out: its value is compared in each step.

    >>> import tensorflow as tf
    >>> hyperparameters_of_optimizer(tf.compat.v1.train.AdagradOptimizer(0.1))["optimizer", "initial_accumulator_value"]
    0.1
    """
    if is_tf1_optimizer(optimizer):
        given = hyperparameters_of_tf1_optimizer(optimizer)
        given = {_KERAS_NAMES.get(name, name): value for name, value in given.items()}
    elif is_torch_optimizer(optimizer):
        given = hyperparameters_of_torch_optimizer(optimizer)
    elif isinstance(optimizer, OptaxOptimizer):
        given = {name.replace("initial_rms", INITIAL_RMS): each for name, each in optimizer.hyperparameters.items()}
    else:
        given = _config_of(optimizer)
    given = {name: None if name in _ONLY_IN_KERAS and not value else value for name, value in given.items()}
    kind = optimizer.kind if isinstance(optimizer, OptaxOptimizer) else type(optimizer).__name__
    if not is_own(optimizer):
        of_kind = {} if isinstance(optimizer, OptaxOptimizer) else dict(_IMPLIED.get(kind, {}))
        if INITIAL_RMS in of_kind and is_torch_optimizer(optimizer):
            of_kind[INITIAL_RMS] = initial_rms_in_torch(optimizer)
        implied = {"kind": kind.removesuffix("Optimizer"), **of_kind}
        given = {**dict.fromkeys(_ONLY_IN_KERAS), **given, **implied}
    return {(OPTIMIZER, name): value for name, value in _known_values(given) if name not in _IGNORED}


def is_own(optimizer: Any) -> bool:
    """Return whether an optimizer is of a user's class, which may do anything."""
    if isinstance(optimizer, OptaxOptimizer):
        return not optimizer.kind
    return type(optimizer).__module__.partition(".")[0] not in ("tensorflow", "keras", "tf_keras", "torch")


def _config_of(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of an optimizer of Keras; as its attributes, if it or its schedule has no ``get_config``."""
    try:
        return dict(optimizer.get_config())
    except Exception:  # Keras raises NotImplementedError, and a user's class may raise anything
        names = {name for kind in type(optimizer).__mro__ for name in inspect.signature(kind).parameters}
        return {name: getattr(optimizer, name) for name in names - {"learning_rate"} if hasattr(optimizer, name)}


def _known_values(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of an optimizer that are numbers, flags, text or None; a schedule is none of these."""
    for name, value in given.items():
        if value is None or isinstance(value, (bool, str)):
            yield name, value
            continue
        with contextlib.suppress(TypeError, ValueError):
            yield name, float(tf.get_static_value(value) if is_tensor(value) else value)
