"""The probe of both optimizers: gradients and steps that a short training does not reach.

Few steps show no clipping of large gradients, no epsilon and no late boundary of a schedule. So both optimizers also
train a few small variables, whose gradients are given, from tiny to huge ones, and their learning rates are read at far
steps. The variables have names and ranks of the model's, because an optimizer may treat a bias in its own way.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detrand._patching.optimizers import learning_rate_of
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import as_array, port_scope
from detrand.validation.programs.upstream import all_upstream, input_ops
from detrand.validation.training.compare import compare_trainings
from detrand.validation.training.port import make_port_optimizer, train_port
from detrand.validation.training.steps import Training, train_step_of
from detrand.validation.training.tf1 import train_in_session, training_graph
from detrand.variables.spec import VariableSpec

# The greatest element of the gradient of each step. They grow, so that no weight is too large for an update to show,
# and each has another direction, so that no decay of weights looks like it.
SIZES = tuple(10.0**power for power in range(-10, 4))
_DIRECTION = np.array([1.0, -0.5, 0.25, -0.75], np.float32)
_CONFIG = RunConfig(training=True, mode="constant")
_LAST_STEP = 10**7
RATE = "learning_rate"
# Of a learning rate, and of the greatest one of all steps: a power of the step is rounded, and so is 1 minus a share.
_RTOL, _OF_GREATEST = 1e-4, 1e-6


class ProbeOfTF1(NamedTuple):
    """What TF1's optimizer does with the gradients, and its learning rates by step; none if it has no rate."""

    training: Training
    rates: dict[int, float]


def probe_tf1(migration: Migration, variables: Mapping[str, VariableSpec]) -> ProbeOfTF1:
    """Train the small variables in a session, and read the learning rates."""
    probe = _probe_of(migration, _shapes(migration, variables), {})
    batches = probe.training_batches()
    training = train_in_session(probe, batches, _CONFIG.mode)
    with training_graph(probe, batches[0], _CONFIG.mode) as graph:
        rate = graph.before.get("learning_rate")
        if rate is None:
            return ProbeOfTF1(training, {})
        global_step = tf.compat.v1.train.get_global_step()
        given = tf.compat.v1.placeholder(global_step.dtype, ())
        assignment = tf.compat.v1.assign(global_step, given)
        rates = {}
        for step in _far_steps(rate):
            graph.session.run(assignment, {given: step})
            rates[step] = float(graph.session.run(rate, graph.feeds(batches[0])))
    return ProbeOfTF1(training, rates)


def steps_that_differ(
    migration: Migration, tf1: ProbeOfTF1, port_names: Mapping[str, str]
) -> tuple[Training, list[int]]:
    """Train them with the port's optimizer, and return that training, and the steps whose updates differ.

    The names of the port's variables are given by TF1's.
    """
    initial = {name: np.zeros_like(array) for name, array in tf1.training.steps[0]["weights"].items()}
    probe = _probe_of(migration, {name: array.shape for name, array in initial.items()}, port_names)
    port = train_port(probe, probe.training_batches(), _CONFIG, tf1.training, initial, compiled=False, guided=True)
    comparison, _ = compare_trainings(probe, port, tf1.training, guided=True)
    return port, [step for step, by_name in comparison.steps.items() if not by_name.get("updates", True)]


def needed_changes(
    migration: Migration, tf1: ProbeOfTF1, port_names: Mapping[str, str], changes: Mapping[str, Any]
) -> list[str]:
    """Return which changes make the port's optimizer agree with TF1's; none if all of them together do not.

    Args:
      migration: the migration.
      tf1: what TF1's optimizer does.
      port_names: the names of the port's variables, by TF1's.
      changes: TF1's values of attributes of the port's optimizer, by name; of `RATE`, TF1's learning rate in each step.
    """
    train = train_step_of(migration)

    def agrees(names: Sequence[str]) -> bool:
        def changed() -> Any:
            optimizer = train.port_optimizer()
            if RATE in names:
                rate = _schedule_for(optimizer, changes[RATE])
                optimizer = type(optimizer).from_config({**optimizer.get_config(), RATE: rate})
            for name in names:
                if name != RATE:
                    setattr(optimizer, name, changes[name])
            return optimizer

        probed = replace(migration, train=replace(train, port_optimizer=changed))
        return not steps_that_differ(probed, tf1, port_names)[1]

    needed = list(changes)
    if not changes or not agrees(needed):
        return []
    for name in changes:
        rest = [each for each in needed if each != name]
        needed = rest if agrees(rest) else needed
    return needed


def _schedule_for(optimizer: Any, rates: Sequence[float]) -> Any:
    """Return a schedule with a learning rate for each of the first steps, for an optimizer of Keras 3 or tf_keras."""
    is_of_keras3 = isinstance(optimizer, keras.optimizers.Optimizer)
    package: Any = keras if is_of_keras3 else sys.modules["tf_keras"]

    class Rates(package.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            last = len(rates) - 1
            if is_of_keras3:
                ops = keras.ops
                return ops.take(ops.convert_to_tensor(rates, "float32"), ops.minimum(ops.cast(step, "int32"), last))
            return tf.gather(tf.constant(rates, tf.float32), tf.minimum(tf.cast(step, tf.int32), last))

    return Rates()


def rates_that_differ(migration: Migration, tf1: ProbeOfTF1) -> dict[int, tuple[float, float]]:
    """Return the steps at which the learning rates differ, with TF1's and the port's."""
    with port_scope(migration, _CONFIG):
        optimizer = make_port_optimizer(migration)
        has_counter = hasattr(optimizer, "iterations")
        counter = optimizer.iterations if has_counter else tf.compat.v1.train.get_or_create_global_step()
        port = {}
        for step in tf1.rates if learning_rate_of(optimizer) is not None else ():
            counter.assign(step)
            port[step] = float(as_array(learning_rate_of(optimizer)))
    greatest = max(map(abs, tf1.rates.values()), default=0.0)
    return {
        step: (tf1.rates[step], rate)
        for step, rate in port.items()
        if not np.isclose(rate, tf1.rates[step], _RTOL, _OF_GREATEST * greatest, equal_nan=True)
    }


def _shapes(migration: Migration, variables: Mapping[str, VariableSpec]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the probe's variables: one of each last name and rank that the model trains."""
    trains = train_step_of(migration).trains
    found: dict[tuple[str, int], str] = {}
    for name, spec in variables.items():
        if spec.trainable and spec.shape and trains(name):
            found.setdefault((name.rpartition("/")[2], len(spec.shape)), name)
    shapes = {name: (1,) * (rank - 1) + _DIRECTION.shape for (_, rank), name in found.items()}
    return shapes or {"probe/weights": _DIRECTION.shape}


def _probe_of(migration: Migration, shapes: Mapping[str, tuple[int, ...]], port_names: Mapping[str, str]) -> Migration:
    """Return a migration whose optimizers train variables of these shapes, each with the inputs as its gradient."""

    def tf1(gradients: tf.Tensor, training: bool) -> tf.Tensor:
        zeros = tf.zeros_initializer()
        made = [tf.compat.v1.get_variable(name, shape, initializer=zeros) for name, shape in shapes.items()]
        return tf.add_n([tf.reduce_sum(gradients * variable) for variable in made])

    names = {name: port_names.get(name, name) for name in shapes}
    names = {name: name if ", " in other else other for name, other in names.items()}  # of several, in another form
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
        port=lambda: _Port({names[name]: shape for name, shape in shapes.items()}),
        inputs=lambda: [np.float32(size) * np.roll(_DIRECTION, step)[np.newaxis] for step, size in enumerate(SIZES)],
        name_map=names,
        train=train,
    )


class _Port(keras.layers.Layer):
    """The port of the probe's program, with variables of given names and shapes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(name="probe")
        self.variables_by_name = {name: self._made(name, shape) for name, shape in shapes.items()}

    def _made(self, path: str, shape: tuple[int, ...]) -> keras.Variable:
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            return keras.Variable(np.zeros(shape), dtype="float32", name=name)

    def call(self, gradients: Any) -> Any:
        return sum(keras.ops.sum(gradients * variable) for variable in self.variables_by_name.values())


def _far_steps(rate: tf.Tensor) -> Sequence[int]:
    """Return the first steps, powers of ten, and the steps around the numbers that a learning rate is computed from."""
    found = {0, 1, 2, 3, *(digit * 10**power for power in range(8) for digit in (1, 2, 5))}
    for op in all_upstream([rate.op], input_ops):
        value = tf.get_static_value(op.outputs[0]) if op.type == "Const" else None
        if value is None or np.asarray(value).dtype.kind not in "iuf":
            continue
        for number in np.asarray(value, np.float64).reshape(-1):
            if 1 < number <= _LAST_STEP:
                around = (multiple * int(number) + offset for multiple in (1, 2, 3) for offset in (-1, 0, 1))
                found |= {*around, int(number) // 2, 3 * int(number) // 2}
    return sorted(step for step in found if step <= _LAST_STEP)
