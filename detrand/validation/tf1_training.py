"""Trains the TF1 program of a migration in a session, and records each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching
from detrand.comparison.step_recorder import StepRecorder
from detrand.errors import DetrandError, MigrationError
from detrand.random_tool import DeterministicRandomTestTool
from detrand.validation.execution import fetch, session_as_written
from detrand.validation.migration import Migration, describe_error
from detrand.validation.optimizer_state import slots_of
from detrand.validation.replicas import Replicas
from detrand.validation.towers import build_towers
from detrand.validation.training import (
    MEANS,
    Training,
    checked_loss,
    checked_optimizer,
    record_step,
    train_step_of,
    values_of_step,
    with_regularization,
)
from detrand.variables.whole_variables import whole_variables


def train_in_session(migration: Migration, batches: Sequence[Any], mode: str) -> Training:
    """Builds the TF1 program and its training in a new graph, and runs a step for each batch in a session.

    Raises:
      MigrationError: if it cannot be built or run, or the loss of the first step is no finite scalar.
    """
    replicas = Replicas(migration.name, migration.strategy)
    try:
        with DeterministicRandomTestTool(migration.seed, mode).scope(), session_as_written() as session:
            return _train_in_session(migration, replicas, batches, session)
    except DetrandError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the TF1 program of {migration.name} cannot be trained: {describe_error(error)}"
        ) from error


def _train_in_session(
    migration: Migration, replicas: Replicas, batches: Sequence[Any], session: tf.compat.v1.Session
) -> Training:
    v1, train = tf.compat.v1, train_step_of(migration)
    fed = tf.nest.map_structure(lambda array: v1.placeholder(array.dtype, array.shape), batches[0])
    inputs, labels = fed
    towers = build_towers(migration, replicas, inputs, training=True)
    outputs = towers.outputs
    loss, regularization = with_regularization(
        checked_loss("tf1_loss", train.tf1_loss(labels, outputs)), v1.losses.get_regularization_losses()
    )
    metrics = {name: _updated(train.metric("tf1", name)(labels, outputs)) for name in train.metrics}
    variables = whole_variables("tf1", session.graph)  # the optimizer's are not the model's

    optimizer = train.tf1_optimizer()
    global_step = v1.train.get_or_create_global_step()
    pairs = checked_optimizer("tf1_optimizer", optimizer, "compute_gradients").compute_gradients(loss)
    rate = _patching.learning_rate_of_tf1(optimizer)
    before = values_of_step(
        rate=rate,
        outputs=outputs,
        regularization=regularization,
        loss=loss,
        metrics=metrics,
        variables=variables,
        gradients=pairs,
    )
    computed = [tensor for tensor in tf.nest.flatten(before, expand_composites=True) if tf.is_tensor(tensor)]
    with tf.control_dependencies([*v1.get_collection(v1.GraphKeys.UPDATE_OPS), *computed]):
        update = optimizer.apply_gradients(pairs, global_step)
    with tf.control_dependencies([update]):
        done = tf.constant(True)  # a tensor, which is what is fetched
    slots = slots_of(optimizer, variables)
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
    towers.copy_state(session)

    recorder = StepRecorder()
    for step, batch in enumerate(batches):
        feeds = dict(zip(tf.nest.flatten(fed), tf.nest.flatten(batch), strict=True))
        values, _ = fetch(session, (before, done), feeds)
        if step == 0 and not np.isfinite(values["loss"]).all():
            raise MigrationError(
                f"the loss of the TF1 program of {migration.name} is {values['loss']} in the first step, so there is "
                "nothing to compare; look at the labels, at tf1_loss and at the outputs"
            )
        arrays, of_slots = session.run(({name: variable.parts for name, variable in variables.items()}, slots))
        record_step(recorder, step, values, variables, arrays, of_slots)
        if towers.copies:
            recorder.record(step, **{MEANS: {name: np.mean(of, 0) for name, of in session.run(towers.copies).items()}})
    return Training(recorder, frozenset({"learning_rate"} if rate is None else ()), tuple(variables))


def _updated(metric: Any) -> Any:
    """Returns the value of a metric that counts this step: of ``(value, update_op)``, the second."""
    return metric[1] if isinstance(metric, (tuple, list)) else metric
