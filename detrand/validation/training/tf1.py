"""The training of a TF1 program in a session: `train_in_session` builds it, and records each step.

For a port in half precision, `measure_gradient_noise` repeats the steps with TF1 rounded in the same way.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.optimizers import hyperparameters_of_tf1_optimizer, learning_rate_of_tf1
from detrand.errors import DetrandError, MigrationError
from detrand.random_tool import DeterministicRandomTestTool
from detrand.seeding.callsite import describe_error
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration, TrainStep
from detrand.validation.noise.variants import Rerun, Snapshot, Variant, as_written, rounded_to
from detrand.validation.precision import half_precision
from detrand.validation.programs.replicas import Replicas, Towers, build_towers, in_own_containers
from detrand.validation.programs.tf1 import fetch, session_as_written
from detrand.validation.training.steps import (
    MEANS_OF_TOWERS,
    Slots,
    Training,
    checked_loss,
    checked_optimizer,
    record_step,
    slots_of,
    train_step_of,
    values_of_step,
    with_regularization,
)
from detrand.variables.partitioned import JoinedVariable, joined_variables


@dataclass(frozen=True)
class TrainingGraph:
    """The graph of a TF1 program's training, in a session whose variables are initialized.

    Attributes:
      session: the session.
      fed: the placeholders of inputs and labels.
      towers: the program, once for each replica.
      before: the values of a step before its update, by name.
      done: a tensor that is computed after the update.
      variables: the variables of the model by name.
      slots: the slots of the optimizer.
      hyperparameters: the hyperparameters of the optimizer, by the names of their constants in the graph.
    """

    session: tf.compat.v1.Session
    fed: Any
    towers: Towers
    before: dict[str, Any]
    done: tf.Tensor
    variables: dict[str, JoinedVariable]
    slots: Slots
    hyperparameters: dict[str, np.ndarray]

    def feeds(self, batch: Any) -> dict[Any, np.ndarray]:
        """Return the inputs and labels of a step by their placeholders."""
        return dict(zip(tf.nest.flatten(self.fed), tf.nest.flatten(batch), strict=True))

    @property
    def after(self) -> tuple[dict[str, list[Any]], Slots]:
        """The variables and slots, which a step updates."""
        return {name: variable.parts for name, variable in self.variables.items()}, self.slots


def train_in_session(migration: Migration, batches: Sequence[Any], mode: str) -> Training:
    """Build the training of the TF1 program in a new graph, and run a step for each batch in a session.

    Raises:
      MigrationError: if it cannot be built or run, or the loss of the first step is not a finite scalar.
    """
    with training_graph(migration, batches[0], mode) as graph:
        recorder = StepRecorder()
        half = half_precision(migration.dtype_policy)
        starts = []
        for step, batch in enumerate(batches):
            if half is not None:
                inputs = {placeholder.op.name: array for placeholder, array in graph.feeds(batch).items()}
                starts.append(StepStart(Snapshot.of(graph.session), inputs))
            values, _ = fetch(graph.session, (graph.before, graph.done), graph.feeds(batch))
            if step == 0 and not np.isfinite(values["loss"]).all():
                raise MigrationError(
                    f"the loss of the TF1 program of {migration.name} is {values['loss']} in the first step, so there "
                    "is nothing to compare; check the labels, tf1_loss and the outputs"
                )
            record_step(recorder, step, values, graph.variables, *graph.session.run(graph.after))
            if graph.towers.copies:
                copies = graph.session.run(graph.towers.copies)
                recorder.record(step, **{MEANS_OF_TOWERS: {name: np.mean(of, 0) for name, of in copies.items()}})
        found = [] if half is None else measure_gradient_noise(half, graph.before["gradients"], starts)
        noise = [{name: graph.variables[name].joined(parts) for name, parts in of.items()} for of in found]
    not_exposed = frozenset() if "learning_rate" in graph.before else frozenset({"learning_rate"})
    return Training(recorder, not_exposed, tuple(graph.variables), gradient_noise=tuple(noise))


@contextlib.contextmanager
def training_graph(migration: Migration, batch: Any, mode: str) -> Iterator[TrainingGraph]:
    """Build the training of the TF1 program in a new graph.

    Args:
      migration: the migration.
      batch: inputs and labels; only their shapes and dtypes matter.
      mode: the mode of the `DeterministicRandomTestTool`.

    Raises:
      MigrationError: if it cannot be built, or if the block raises.
    """
    replicas = Replicas(migration.name, migration.strategy)
    try:
        with DeterministicRandomTestTool(migration.seed, mode).scope(), session_as_written() as session:
            yield _built(migration, replicas, batch, session)
    except DetrandError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the TF1 program of {migration.name} cannot be trained: {describe_error(error)}"
        ) from error


def _built(migration: Migration, replicas: Replicas, batch: Any, session: tf.compat.v1.Session) -> TrainingGraph:
    v1, train = tf.compat.v1, train_step_of(migration)
    fed = tf.nest.map_structure(lambda array: v1.placeholder(array.dtype, array.shape), batch)
    inputs, labels = fed
    towers = build_towers(migration, replicas, inputs, training=True)
    outputs = towers.outputs
    loss = checked_loss("tf1_loss", train.tf1_loss(in_own_containers(labels), outputs))
    loss, regularization = with_regularization(loss, v1.losses.get_regularization_losses())
    metrics = {name: _updated(train.metric("tf1", name)(in_own_containers(labels), outputs)) for name in train.metrics}
    variables = joined_variables("tf1", session.graph)  # before the optimizer adds its own

    optimizer = train.tf1_optimizer()
    global_step = v1.train.get_or_create_global_step()
    compute_gradients = checked_optimizer("tf1_optimizer", optimizer, "compute_gradients").compute_gradients
    pairs = compute_gradients(loss, **_trained(train, variables))
    before = values_of_step(
        rate=learning_rate_of_tf1(optimizer),
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
        done = tf.constant(True)  # a tensor, which can be fetched
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
    towers.copy_state(session)
    given = hyperparameters_of_tf1_optimizer(optimizer).values()
    constants = [each for each in given if tf.is_tensor(each) and each.op.type == "Const" and each.dtype.is_floating]
    hyperparameters = {constant.name: tf.make_ndarray(constant.op.get_attr("value")) for constant in constants}
    return TrainingGraph(session, fed, towers, before, done, variables, slots_of(optimizer, variables), hyperparameters)


def _trained(train: TrainStep, variables: Mapping[str, JoinedVariable]) -> dict[str, list[Any]]:
    """Return the ``var_list`` for ``compute_gradients``, or nothing if all variables are trained.

    Raises:
      MigrationError: if a pattern of the migration's list matches no variable.
    """
    if train.var_list is None:
        return {}
    trainable = {name: variable for name, variable in variables.items() if variable.spec.trainable}
    for pattern in train.var_list:
        if not fnmatch.filter(trainable, pattern):
            raise MigrationError(
                f"var_list has {pattern!r}, which matches no trainable variable of the TF1 program; it has "
                f"{', '.join(trainable) or 'none'}"
            )
    return {"var_list": [part for name in filter(train.trains, trainable) for part in trainable[name].parts]}


def _updated(metric: Any) -> Any:
    """Return the value of a metric that includes this step: the second of ``(value, update_op)``."""
    return metric[1] if isinstance(metric, (tuple, list)) else metric


# The number of rounded variants, and the ULPs by which their weights and inputs are off: with more than 1 ULP, more of
# the gradient's jumps show.
_VARIANTS, _UNITS = 8, 4.0


class StepStart(NamedTuple):
    """What a training step starts from: the program, and inputs and labels by the names of their placeholders."""

    snapshot: Snapshot
    inputs: dict[str, np.ndarray]


def measure_gradient_noise(
    dtype: tf.DType, gradients: Mapping[str, Sequence[Any]], starts: Sequence[StepStart]
) -> list[dict[str, list[np.ndarray]]]:
    """Return how far each element of the gradients moves when the steps are repeated in variants that round to a dtype.

    Args:
      dtype: float16 or bfloat16.
      gradients: the gradients of the parts of each variable, in the default graph, by the variable's name; None where
        there is none.
      starts: what each step starts from.

    Returns:
      For each step, the greatest absolute difference of each element; infinity where a variant overflows.
    """
    of_parts = {name: parts for name, parts in gradients.items() if parts[0] is not None}
    tensors = {
        (name, part): tf.convert_to_tensor(gradient).name
        for name, parts in of_parts.items()
        for part, gradient in enumerate(parts)
    }
    exact = _repeated(as_written(starts[0].snapshot), tensors, starts)
    noise = [{key: np.zeros_like(array) for key, array in of_step.items()} for of_step in exact]
    for seed in range(_VARIANTS):
        rounded = _repeated(rounded_to(dtype, seed, _UNITS)(starts[0].snapshot), tensors, starts)
        for of_step, found, desired in zip(noise, rounded, exact, strict=True):
            for key, greatest in of_step.items():
                difference = np.nan_to_num(np.abs(found[key] - desired[key]), nan=np.inf, posinf=np.inf)
                np.maximum(greatest, difference, out=greatest)
    return [
        {name: [of_step[name, part] for part in range(len(parts))] for name, parts in of_parts.items()}
        for of_step in noise
    ]


def _repeated(variant: Variant, tensors: Mapping[Any, str], starts: Sequence[StepStart]) -> list[dict[Any, np.ndarray]]:
    """Return the tensors of each step of a variant, in one session, so that a random op continues in each step."""
    found = []
    with Rerun(starts[0].snapshot, variant) as rerun:
        for snapshot, inputs in starts:
            rerun.assign(snapshot.variables)
            found.append(rerun.fetch(tensors, inputs))
    return found
