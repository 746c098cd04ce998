"""The probe of both optimizers: gradients and steps that a short training does not reach.

Few steps show no clipping of large gradients, no epsilon and no late boundary of a schedule. So both optimizers also
train variables whose gradients are given, from tiny to huge ones, and their learning rates are read at far steps. The
variables have the names, constraints and, unless the model is large, the shapes of those that the training trains,
because an optimizer may treat a bias in its own way. A training op of the user is built for them once more.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.flax import OptaxOptimizer, is_optax
from detrand._patching.keras import is_instance_of_loaded
from detrand._patching.optimizers import (
    before_each_step_in_torch,
    epsilon_as_in_tf1,
    epsilon_in_root,
    has_hyperparameter,
    is_tf1_optimizer,
    is_torch_optimizer,
    learning_rate_of,
    set_hyperparameter,
    without_bias_correction,
)
from detrand.arguments import takes_one_argument
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.errors import MigrationError, passing_over
from detrand.packages import keras, tf
from detrand.validation.audit.hyperparameters import WEIGHT_DECAY
from detrand.validation.frameworks import flax, torch
from detrand.validation.migration import Migration, TrainStep
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import as_array, port_scope
from detrand.validation.programs.update_order import all_run
from detrand.validation.training.compare import compare_trainings
from detrand.validation.training.port import CLIPPING_ARGUMENTS, counter_of, make_port_optimizer, train_port
from detrand.validation.training.steps import LEARNING_RATE, Training, train_step_of
from detrand.validation.training.tf1 import TrainingGraph, train_in_session, training_graph

# The greatest element of the gradient of each step. They grow, so that no weight is too large for an update to show,
# and each has another direction, so that no decay of weights looks like it.
SIZES = tuple(10.0**power for power in range(-10, 4))
_DIRECTION = np.array([1.0, -0.5, 0.25, -0.75], np.float32)
_CONFIG = RunConfig(training=True, mode="constant")
_LAST_STEP, _GROWTH = 10**7, 1.2
_STEPS_IN_TORCH = 1001
APPLIED = "applied gradients"
_MOST = 40  # variables, which take seconds
_LARGEST = 100_000  # elements of all variables; the probe of a model with more has small variables
EPSILON_OF_ADAM = "Adam adds epsilon after it has corrected the bias of the moments, TF1's adds it before"
EPSILON_OF_RMSPROP = "PyTorch's RMSprop adds epsilon to the root of the average, TF1's to the average"
BIAS_OF_ADAM = "Adam corrects the bias of its moments, TF1's optimizer uses them as they are"
# Of a learning rate, and of the greatest one of all steps: a power of the step is rounded, and so is 1 minus a share.
_RTOL, _OF_GREATEST = 1e-4, 1e-6
_OF_STEP = 4 * 2.0**-24  # how far rounding to float32 moves a step, relative to it
_OF_JUMP = 0.1  # of a learning rate, and of a jump, how much it may change in the steps around


class ProbeOfTF1(NamedTuple):
    """What TF1's optimizer does with the gradients.

    Attributes:
      training: the training of the probe's variables.
      rates: the learning rates by step; none if it has no rate.
      applied: the gradients that its kernels apply in each step, by name, as far as they are known.
      boundary: the first step after the greatest jump of the learning rate; 0 if it does not jump.
      beyond: the same training with the learning rate before this jump in its first half, and then with the one after.
      not_probed: why only the learning rates can be compared; empty if the updates can, too.
    """

    training: Training
    rates: dict[int, float]
    applied: tuple[dict[str, np.ndarray], ...]
    boundary: int
    beyond: Training | None
    not_probed: str = ""


class InPort(NamedTuple):
    """A port's variable that is the counterpart of a variable of TF1, and whether its gradients come in slices."""

    name: str
    constraint: Any = None
    is_sliced: bool = False


def probe_tf1(migration: Migration, training: Training, constraints: Mapping[str, Any]) -> ProbeOfTF1:
    """Train variables like those of a training in a session, given TF1's constraints of all of them by name.

    Raises:
      MigrationError: if the optimizer does not do there what it does in the training.
    """
    weights = training.steps[0]["weights"]
    trained = [name for name, gradient in training.steps[0]["gradients"].items() if gradient is not None]
    names = _chosen({name: weights[name].ndim for name in trained})
    gradients = {name: [step["gradients"][name] for step in training.steps] for name in training.sliced}
    sliced = [name for name in names if name in gradients and not all(_rows_of(each).all() for each in gradients[name])]
    shapes = _shapes({name: weights[name] for name in names}, sliced)
    probe = _probe_of(migration, shapes, sliced, constraints, {})
    batches = probe.training_batches()
    probed = train_in_session(probe, batches, _CONFIG.mode)
    for of_model, step in zip(training.steps, probed.steps, strict=False):
        with_model, without = (float(each.get(LEARNING_RATE, np.nan)) for each in (of_model, step))
        if not np.array_equal(with_model, without, equal_nan=True):
            raise MigrationError(f"TF1's learning rate is {with_model:g} with the model, {without:g} without it")
    if probed.steps[0]["gradients"].keys() != set(names):
        raise MigrationError("TF1 trains different variables without the model")
    with training_graph(probe, batches[0], _CONFIG.mode) as graph:
        of_other = (
            "" if graph.update.of_loss else "tf1_train_op takes gradients of a tensor that it computes from the loss"
        )
        applied: tuple[dict[str, np.ndarray], ...] = tuple({} for _ in batches)
        with passing_over():  # a branch that is not taken has no gradients
            applied = tuple(_applied(graph, batches))
        rates, fed = _rates(graph, batches[0]), graph.before.get(LEARNING_RATE)
        read = {each.name for op in all_run(graph.update.run) for each in op.inputs}
        is_used = fed is not None and fed.name in read  # a function may return another tensor in each call
    boundary, beyond = _boundary(rates), None
    if boundary and is_used and not of_other:
        half = len(SIZES) // 2
        around = [rates[boundary - 1]] * half + [rates[boundary]] * (len(SIZES) - half)
        beyond = train_in_session(probe, batches, _CONFIG.mode, around)
    return ProbeOfTF1(probed, rates, applied, boundary, beyond, of_other)


def _boundary(rates: Mapping[int, float]) -> int:
    """Return the first step after the greatest jump of a learning rate between two steps; 0 if there is none."""
    found = {}
    for step in rates:
        around = np.array([rates.get(number, np.nan) for number in range(step - 2, step + 2)])
        before, jump, after = np.abs(np.diff(around))
        least, greatest = sorted(around[1:3])
        if least > 0 and jump > _OF_JUMP * greatest and max(before, after) < _OF_JUMP * jump:
            found[greatest / least] = step
    return found[max(found)] if found else 0


def _applied(graph: TrainingGraph, batches: Sequence[Any]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the gradients that are applied in each step of a new training, by the names of their variables."""
    positions = {id(part): position for position, part in enumerate(graph.view.parts)}
    known = {positions[id(each.part)]: tf.convert_to_tensor(each.gradient) for each in graph.update.applied}
    graph.session.run(tf.compat.v1.global_variables_initializer())
    for batch in batches:
        arrays, _ = graph.session.run((known, graph.done), graph.feeds(batch))
        yield graph.view.from_parts(arrays)


def _rates(graph: TrainingGraph, batch: Any) -> dict[int, float]:
    """Return the learning rates at far steps; none if it has none, or if more than steps change it."""
    rate, session, v1 = graph.before.get(LEARNING_RATE), graph.session, tf.compat.v1
    if rate is None:
        return {}
    upstream = all_upstream([rate.op], input_ops)
    variables = [*v1.global_variables(), *v1.local_variables()]
    variables = [each for each in variables if getattr(each, "handle", each).op in upstream]
    session.run([each.initializer for each in variables])
    first = session.run(variables)
    session.run(graph.done, graph.feeds(batch))
    changes = [after - before for before, after in zip(first, session.run(variables), strict=True)]
    if any(np.any((change != 0) & (change != 1)) for change in changes):
        return {}
    counters = [(each, start) for each, start, change in zip(variables, first, changes, strict=True) if np.all(change)]
    given = [v1.placeholder(start.dtype, start.shape) for _, start in counters]
    assignments = [v1.assign(each, value) for (each, _), value in zip(counters, given, strict=True)]
    rates = {}
    for step in _far_steps(rate):
        session.run(assignments, {value: start + step for value, (_, start) in zip(given, counters, strict=True)})
        rates[step] = float(session.run(rate, graph.feeds(batch)))
    return rates


def steps_that_differ(
    migration: Migration, tf1: ProbeOfTF1, counterparts: Mapping[str, InPort]
) -> tuple[Training, list[int]]:
    """Train them with the port's optimizer, and return that training, and the steps whose updates differ.

    The counterparts of TF1's variables in the port are given by TF1's names.
    """
    initial = {name: np.zeros_like(array) for name, array in tf1.training.steps[0]["weights"].items()}
    in_port = {name: counterparts.get(name, InPort(name)) for name in initial}
    shapes = {name: array.shape for name, array in initial.items()}
    probe = _probe_of(migration, shapes, tf1.training.sliced, {}, in_port)
    port = train_port(probe, probe.training_batches(), _CONFIG, tf1.training, initial, compiled=False, guided=True)
    comparison, _ = compare_trainings(probe, port, tf1.training, guided=True)
    return port, [step for step, by_name in comparison.steps.items() if not by_name.get("updates", True)]


def depends_on_model(
    migration: Migration, tf1: Training, initial: Mapping[str, np.ndarray], counterparts: Mapping[str, InPort]
) -> bool:
    """Return whether the port's optimizer updates variables of the model differently from others of the same names.

    An optimizer may look variables up in the model. TF1's training of the model, which begins with these initial
    values, must agree with the port's. The result is False, too, if the model is large or gradients come in slices,
    because the probe cannot repeat such a training.
    """
    weights = tf1.steps[0]["weights"]
    trained = [name for name, gradient in tf1.steps[0]["gradients"].items() if gradient is not None]
    shapes = {name: weights[name].shape for name in trained}
    if tf1.sliced or sum(map(math.prod, shapes.values())) > _LARGEST:
        return False
    kinds = ("gradients", "weights")
    steps = [{kind: {name: step[kind][name] for name in trained} for kind in kinds} for step in tf1.steps]
    guide = Training(tuple(steps), ())
    in_port = {name: counterparts.get(name, InPort(name)) for name in trained}
    probe = _probe_of(migration, shapes, (), {}, in_port)
    batches = probe.training_batches()[: len(steps)]
    values = {name: initial[name] for name in trained}
    port = train_port(probe, batches, _CONFIG, guide, values, compiled=False, guided=True)
    comparison, _ = compare_trainings(probe, port, guide, guided=True)
    return any(not by_name.get("updates", True) for by_name in comparison.steps.values())


def differs_beyond(migration: Migration, tf1: ProbeOfTF1, counterparts: Mapping[str, InPort]) -> Training | None:
    """Return the port's training with the learning rates of TF1's `beyond`, if its updates differ; else None.

    An optimizer of TF1 is not trained with other rates, as they are no attribute of it.
    """
    optimizer = make_port_optimizer(migration)
    if tf1.beyond is None or is_tf1_optimizer(optimizer):
        return None
    train, rates = train_step_of(migration), [float(step[LEARNING_RATE]) for step in tf1.beyond.steps]
    changed = _with_optimizer(train, lambda optimizer: _with_rates(optimizer, rates))
    of_boundary = tf1._replace(training=tf1.beyond)
    port, differing = steps_that_differ(replace(migration, train=changed), of_boundary, counterparts)
    return port if differing else None


def needed_changes(
    migration: Migration, tf1: ProbeOfTF1, counterparts: Mapping[str, InPort], changes: Mapping[str, Any]
) -> list[str]:
    """Return which changes make the port's optimizer agree with TF1's; none if all of them together do not.

    Args:
      migration: the migration.
      tf1: what TF1's optimizer does.
      counterparts: the port's variables, by TF1's names.
      changes: TF1's values of attributes of the port's optimizer, by name; of `LEARNING_RATE`, TF1's learning rate in
        each step; of `APPLIED`, the gradients that TF1's kernels apply in each step, which the port's optimizer gets.
    """
    train = train_step_of(migration)

    def agrees(names: Sequence[str]) -> bool:
        def changed(optimizer: Any) -> Any:
            if LEARNING_RATE in names:
                optimizer = _with_rates(optimizer, changes[LEARNING_RATE])
            own = (LEARNING_RATE, APPLIED, EPSILON_OF_ADAM, EPSILON_OF_RMSPROP, BIAS_OF_ADAM)
            given = {name: changes[name] for name in names if name not in own}
            given |= {name: None for name in CLIPPING_ARGUMENTS if APPLIED in names and hasattr(optimizer, name)}
            for name, value in given.items():
                set_hyperparameter(optimizer, name, value)
            if EPSILON_OF_ADAM in names:
                epsilon_as_in_tf1(optimizer)
            if EPSILON_OF_RMSPROP in names:
                epsilon_in_root(optimizer)
            if BIAS_OF_ADAM in names:
                without_bias_correction(optimizer)
            return optimizer

        steps = tf1.training.steps
        if APPLIED in names:
            pairs = zip(steps, changes[APPLIED], strict=True)
            steps = tuple({**step, "gradients": step["gradients"] | applied} for step, applied in pairs)
        guide = tf1._replace(training=replace(tf1.training, steps=steps))
        probed = replace(migration, train=_with_optimizer(train, changed))
        return not steps_that_differ(probed, guide, counterparts)[1]

    needed = list(changes)
    if not changes or not agrees(needed):
        return []
    for name in changes:
        rest = [each for each in needed if each != name]
        needed = rest if agrees(rest) else needed
    return needed


def _with_optimizer(train: TrainStep, change: Callable[[Any], Any]) -> TrainStep:
    """Return a training whose optimizer of the port is changed."""
    make = train.port_optimizer
    if takes_one_argument(make):
        return replace(train, port_optimizer=lambda parameters: change(make(parameters)))

    def changed() -> Any:
        optimizer = make()
        return change(OptaxOptimizer(optimizer) if is_optax(optimizer) else optimizer)

    return replace(train, port_optimizer=changed)


def without_decay(migration: Migration) -> Migration | None:
    """Return a migration whose port's optimizer decays no weights; None if it has no argument for the decay."""
    if not has_hyperparameter(make_port_optimizer(migration), WEIGHT_DECAY[1]):
        return None

    def change(optimizer: Any) -> Any:
        set_hyperparameter(optimizer, WEIGHT_DECAY[1], 0.0)
        return optimizer

    return replace(migration, train=_with_optimizer(train_step_of(migration), change))


def _with_rates(optimizer: Any, rates: Sequence[float]) -> Any:
    """Return an optimizer with a learning rate for each of the first steps."""
    if isinstance(optimizer, OptaxOptimizer):
        set_hyperparameter(
            optimizer, LEARNING_RATE, lambda step: np.asarray(rates, np.float32)[min(int(step), len(rates) - 1)]
        )
        return optimizer
    if not is_torch_optimizer(optimizer):
        optimizer.learning_rate = _schedule_for(optimizer, rates)
        return optimizer
    before_each_step_in_torch(
        optimizer, lambda step: set_hyperparameter(optimizer, LEARNING_RATE, rates[min(step, len(rates) - 1)])
    )
    return optimizer


def _schedule_for(optimizer: Any, rates: Sequence[float]) -> Any:
    """Return a schedule with a learning rate for each of the first steps, for an optimizer of Keras 3 or tf_keras."""
    is_of_keras3 = is_instance_of_loaded(optimizer, "keras", "optimizers.Optimizer")
    package: Any = keras if is_of_keras3 else sys.modules["tf_keras"]

    class Rates(package.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            last = len(rates) - 1
            if is_of_keras3:
                ops = keras.ops
                return ops.take(ops.convert_to_tensor(rates, "float32"), ops.minimum(ops.cast(step, "int32"), last))
            return tf.gather(tf.constant(rates, tf.float32), tf.minimum(tf.cast(step, tf.int32), last))

    return Rates()


def rates_that_differ(migration: Migration, tf1: ProbeOfTF1) -> tuple[dict[int, float], list[int]]:
    """Return the port's learning rates by step, and the steps at which they differ from TF1's.

    An optimizer of PyTorch has no counter that can be set, so it makes the first steps, with gradients of zeros. A step
    is rounded, too: a steep schedule, such as one in cycles, may differ by what a few ULPs of the step change.
    """
    with port_scope(migration, _CONFIG):
        optimizer, port = make_port_optimizer(migration), dict[int, float]()
        is_of_torch, counter = is_torch_optimizer(optimizer), counter_of(optimizer)
        around = sorted({step + more for step in tf1.rates for more in (-1, 0, 1) if step + more >= 0})
        steps = range(_STEPS_IN_TORCH + 1) if is_of_torch else around
        for step in steps if learning_rate_of(optimizer) is not None and tf1.rates else ():
            if not is_of_torch:
                counter.assign(step)
            port[step] = float(as_array(learning_rate_of(optimizer)))
            if is_of_torch:
                torch.step_with_zeros(optimizer)
    greatest = max(map(abs, tf1.rates.values()), default=0.0)

    def agrees(step: int) -> bool:
        slope = max(abs(port[step] - port.get(step + more, port[step])) for more in (-1, 1))
        atol = _OF_GREATEST * greatest + (_OF_STEP * step * slope if np.isfinite(slope) else 0.0)
        return bool(np.isclose(port[step], tf1.rates[step], _RTOL, atol, equal_nan=True))

    read = {step: rate for step, rate in port.items() if step in tf1.rates}
    return read, [step for step in read if not agrees(step)]


def _chosen(ranks: Mapping[str, int]) -> list[str]:
    """Return the names of variables, given their ranks; of many, the first and last of each last name and rank."""
    if len(ranks) <= _MOST:
        return list(ranks)
    kinds = {name: (name.rpartition("/")[2], rank) for name, rank in ranks.items()}
    first = {kind: name for name, kind in reversed(kinds.items())}
    last = {kind: name for name, kind in kinds.items()}
    return [name for name, kind in kinds.items() if name in (first[kind], last[kind])]


def _shapes(weights: Mapping[str, np.ndarray], sliced: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the probe's variables: those of the weights, or small ones of these ranks."""
    if sum(array.size for array in weights.values()) <= _LARGEST:
        return {name: array.shape for name, array in weights.items()}
    last, found = _DIRECTION.shape, dict[str, tuple[int, ...]]()
    for name, array in weights.items():
        first = last if name in sliced else (1,)
        found[name] = (first + (1,) * (array.ndim - 2) + last) if array.ndim > 1 else last * array.ndim
    return found


def _rows_of(gradient: np.ndarray) -> Any:
    """Return whether each row of a gradient has any element that is not 0."""
    return np.any(gradient.reshape(len(gradient), -1), axis=1)


def _probe_of(
    migration: Migration,
    shapes: Mapping[str, tuple[int, ...]],
    sliced: Collection[str],
    constraints: Mapping[str, Any],
    in_port: Mapping[str, InPort],
) -> Migration:
    """Return a migration whose optimizers train variables of these shapes, each with the inputs as its gradient.

    Those that are sliced have a gradient of half of their rows, of other rows in each step.
    """
    positions = {name: np.arange(math.prod(shape)).reshape(shape) % _DIRECTION.size for name, shape in shapes.items()}

    def tf1(gradients: tf.Tensor, step: tf.Tensor, training: bool) -> tf.Tensor:
        terms = []
        for name, shape in shapes.items():
            initializer, constraint = tf.zeros_initializer(), constraints.get(name)
            weights = tf.compat.v1.get_variable(name, shape, initializer=initializer, constraint=constraint)
            given = tf.gather(gradients[0], positions[name])
            if name in sliced:
                rows = (step[0] + tf.range((shape[0] + 1) // 2)) % shape[0]
                given, weights = tf.gather(given, rows), tf.gather(weights, rows)
            terms.append(tf.reduce_sum(given * weights))
        loss = tf.add_n(terms)
        tf.compat.v1.losses.add_loss(loss)  # for a training op that calls tf.losses.get_total_loss()
        return loss

    in_port = {name: in_port.get(name, InPort(name)) for name in shapes}
    in_port = {  # of several, in another form
        name: InPort(name) if ", " in other.name else other for name, other in in_port.items()
    }
    is_of_torch = takes_one_argument(train_step_of(migration).port_optimizer)
    if is_of_torch:  # which knows no names
        in_port = {name: InPort(f"probed_{number}") for number, name in enumerate(shapes)}

    def port() -> Any:
        by_name = {in_port[name].name: shape for name, shape in shapes.items()}
        if is_of_torch:
            return torch.probed_module(by_name)
        if "optax" in sys.modules and isinstance(make_port_optimizer(migration), OptaxOptimizer):
            return flax.probed_module(by_name)
        return _keras_port([(in_port[name], positions[name], name in sliced) for name in shapes])

    train = replace(
        train_step_of(migration),
        labels=lambda: [np.zeros(1, np.float32)] * len(SIZES),
        tf1_loss=lambda labels, outputs: outputs,
        port_loss=lambda labels, outputs: outputs,
        var_list=None,
        metrics={},
        steps=len(SIZES),
    )
    return Migration(
        name=migration.name,
        seed=migration.seed,
        tf1=tf1,
        port=port,
        inputs=lambda: [
            (np.float32(size) * np.roll(_DIRECTION, step)[np.newaxis], np.array([step], np.int32))
            for step, size in enumerate(SIZES)
        ],
        name_map={name: other.name for name, other in in_port.items()},
        train=train,
    )


def _keras_port(variables: Sequence[tuple[InPort, np.ndarray, bool]]) -> Any:
    """Return the port of the probe's program, whose variables have gradients at given positions of its input.

    It is given TF1's gradients, so only their form matters: in slices where both programs have slices.
    """

    class Probe(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="probe")
            self.terms = [
                (self._made(each, array.shape), array, each.is_sliced and is_sliced)
                for each, array, is_sliced in variables
            ]

        def _made(self, variable: InPort, shape: tuple[int, ...]) -> keras.Variable:
            *scopes, name = variable.name.split("/")
            with contextlib.ExitStack() as stack:
                for scope in scopes:
                    stack.enter_context(keras.name_scope(scope))
                made = keras.Variable(np.zeros(shape), dtype="float32", name=name)
            made.constraint = variable.constraint
            return made

        def call(self, gradients: Any, step: Any) -> Any:
            ops, total = keras.ops, 0.0
            for variable, positions, is_sliced in self.terms:
                given, weights = ops.take(gradients[0], positions), variable
                if is_sliced:
                    rows = (step[0] + ops.arange((len(positions) + 1) // 2, dtype="int32")) % len(positions)
                    given, weights = ops.take(given, rows, axis=0), ops.take(variable, rows, axis=0)
                total += ops.sum(given * weights)
            return total

    return Probe()


def _far_steps(rate: tf.Tensor) -> Sequence[int]:
    """Return steps that grow by a share, and those around the numbers that a learning rate is computed from."""
    from detrand._patching.graphs import function_graphs

    found = {0, 1, 2, 3, *(digit * 10**power for power in range(8) for digit in (1, 2, 5))}
    found |= {round(float(f"{_GROWTH**power:.2g}")) for power in range(math.floor(math.log(_LAST_STEP, _GROWTH)))}
    upstream = all_upstream([rate.op], input_ops)
    inner = (
        each for op in upstream for graph in function_graphs(op, conditions=True) for each in graph.get_operations()
    )
    for op in (*upstream, *inner):
        value = tf.get_static_value(op.outputs[0]) if op.type == "Const" else None
        if value is None or np.asarray(value).dtype.kind not in "iuf":
            continue
        for number in np.asarray(value, np.float64).reshape(-1):
            if 1 < number <= _LAST_STEP:
                around = (multiple * int(number) + offset for multiple in (1, 2, 3) for offset in (-1, 0, 1))
                found |= {*around, int(number) - 2, int(number) + 2, int(number) // 2, 3 * int(number) // 2}
    return sorted(step for step in found if 0 <= step <= _LAST_STEP)
