"""Trains the port of a migration, eagerly or in a ``tf.function``, and records each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from detrand.comparison.step_recorder import StepRecorder
from detrand.errors import MigrationError
from detrand.validation.execution import Setting
from detrand.validation.migration import Migration
from detrand.validation.optimizer_state import as_in_tf1
from detrand.validation.port_execution import Port, functions_as_written, port_scope
from detrand.validation.trained_port import TrainedPort
from detrand.validation.training import Training, record_step
from detrand.variables.sources import named_variables


def train_port(
    migration: Migration,
    batches: Sequence[Any],
    mode: str,
    tf1: Training,
    *,
    compiled: bool,
    guided: bool = False,
    op_seeds: Sequence[int] = (),
) -> Training:
    """Makes a new port and trains it, a step for each batch.

    Two programs that are trained drift apart by rounding alone, and some optimizers make that great: Adam's first
    update of a weight whose gradient is 1e-9, where it should be 0, is the whole learning rate. A guided port tells
    that from a fault. In each step it starts from the variables that the TF1 program had, and its optimizer gets the
    TF1 program's gradients, so what differs then comes from the step itself.

    Args:
      migration: the migration.
      batches: inputs and labels of each step.
      mode: of the `DeterministicRandomTestTool`.
      tf1: how training the TF1 program went.
      compiled: whether the step is a ``tf.function``.
      guided: whether it is guided by the TF1 program.
      op_seeds: what its random ops take, one after the other, where they come in another order than TF1's.

    Raises:
      MigrationError: if the port or its optimizer cannot be made, or the loss is no scalar.
    """
    setting = Setting(training=True, mode=mode, op_seeds=tuple(op_seeds))
    with port_scope(migration, setting) as tool, functions_as_written():
        port = TrainedPort(migration, tf1.variables)
        step: Any = tf.function(port.step) if compiled else port.step
        recorder = StepRecorder()
        rates: list[Any] = []
        for number, batch in enumerate(batches):
            if guided and number > 0:
                former = tf1.recorder[number - 1]
                port.assign({**former["weights"], **former.get("moving_averages", {})})
            guide = tf1.recorder[number]["gradients"] if guided else {}
            gradients = {name: tf.constant(array) for name, array in guide.items() if array is not None}
            with tool.step():
                values = step(*tf.nest.map_structure(tf.constant, batch), gradients)
            variables = port.variables()
            arrays = {name: [part.numpy() for part in variable.parts] for name, variable in variables.items()}
            rates.append(values.get("learning_rate"))
            record_step(recorder, number, values, variables, arrays, as_in_tf1(port.slots(), rates))
            port.check_copies()
    return Training(
        recorder,
        port.cannot_tell,
        tuple(variables),
        replicas=port.replicas.count,
        meant=port.meant,
        in_slices=port.in_slices,
    )


def check_trainable(migration: Migration, tf1: Training) -> None:
    """Checks that a port on replicas has its variables before it is trained: no function can make them on a replica.

    Raises:
      MigrationError: if it has none, where the TF1 program has some.
    """
    if migration.strategy is None:
        return
    with port_scope(migration, Setting(training=True, mode="constant")):
        port = Port(migration)
    try:
        variables = named_variables(port.variables)
    except ValueError:  # so says tf_keras of a model that is not built
        variables = {}
    if tf1.variables and not variables:
        raise MigrationError(
            f"tf2 of {migration.name} returned a port that makes its variables when it is first called, which its "
            "replicas cannot do in a tf.function; call it once inside tf2, with zeros, say"
        )
