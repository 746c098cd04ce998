"""Trains the port of a migration, eagerly or in a ``tf.function``, and records each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching
from detrand.checkpoints.pairing import mapped_name
from detrand.comparison.step_recorder import StepRecorder
from detrand.errors import MigrationError
from detrand.validation.execution import Port, Setting, functions_as_written, port_scope
from detrand.validation.migration import Migration, describe_error
from detrand.validation.optimizer_state import Slots, as_in_tf1, slots_of
from detrand.validation.own_variables import check_new_optimizer
from detrand.validation.training import (
    Training,
    checked_loss,
    checked_optimizer,
    record_step,
    train_step_of,
    values_of_step,
    with_regularization,
)
from detrand.variables.sources import named_variables
from detrand.variables.whole_variables import WholeVariable, whole_variables


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
        port = _TrainedPort(migration, tf1.variables)
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
    return Training(recorder, port.cannot_tell, tuple(variables))


def make_port_optimizer(migration: Migration) -> Any:
    """Makes the optimizer of the port.

    Raises:
      MigrationError: if the factory raises, or returns something else, or one that it has returned before.
    """
    try:
        optimizer = train_step_of(migration).tf2_optimizer()
    except Exception as error:
        raise MigrationError(f"tf2_optimizer of {migration.name} cannot be made: {describe_error(error)}") from error
    checked_optimizer("tf2_optimizer", optimizer, "apply_gradients")
    check_new_optimizer(migration.name, optimizer)
    return optimizer


class _TrainedPort:
    """A port, its optimizer and its metrics."""

    def __init__(self, migration: Migration, tf1_names: Iterable[str]):
        self._train = train_step_of(migration)
        self._tf1_names = {mapped_name(migration.name_map, name): name for name in tf1_names}
        port = Port(migration)
        self._model, self._variables = port.model, port.variables
        self._optimizer = make_port_optimizer(migration)
        # Eagerly, too, there is a global step if the optimizer's rate depends on it; it may have counted before.
        self._global_step = tf.compat.v1.train.get_global_step() if self._is_of_tf1() else None
        if self._global_step is not None:
            self._global_step.assign(0)
        self._metrics = {name: self._train.metric("tf2", name) for name in self._train.metrics}
        for metric in self._metrics.values():
            if hasattr(metric, "reset_state"):
                metric.reset_state()

    @property
    def cannot_tell(self) -> frozenset[str]:
        """What it has no way to tell."""
        told = {
            "learning_rate": self._learning_rate() is not None,
            "regularization_loss": hasattr(self._model, "losses"),
        }
        return frozenset(name for name, is_told in told.items() if not is_told)

    def variables(self) -> dict[str, WholeVariable]:
        """Returns the variables of the port under their TF1 names."""
        named = whole_variables("tf2", self._variables)
        return {self._tf1_names.get(name, name): variable for name, variable in named.items()}

    def slots(self) -> Slots:
        """Returns what the optimizer keeps of the variables now, as arrays."""
        return tf.nest.map_structure(lambda slot: slot.numpy(), slots_of(self._optimizer, self.variables()))

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives variables other values, those that there are with their shapes."""
        for name, variable in self.variables().items():
            if name in arrays and arrays[name].shape == variable.spec.shape:
                for part, array in zip(variable.parts, variable.cut(arrays[name]), strict=True):
                    part.assign(array)

    def step(self, inputs: Any, labels: Any, guide: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Computes a step, updates the variables, and returns what was computed before.

        Args:
          inputs: of the model.
          labels: of the loss.
          guide: gradients that the optimizer gets in place of the port's own, by the variables' TF1 names.
        """
        with tf.GradientTape() as tape:
            outputs = self._model(*inputs, training=True)
            loss = checked_loss("tf2_loss", self._train.tf2_loss(labels, outputs))
            loss, regularization = with_regularization(loss, getattr(self._model, "losses", ()))
            scaled, scale = self._scaled(loss)
        metrics = {name: metric(labels, outputs) for name, metric in self._metrics.items()}
        return self._update(tape, outputs, regularization, loss, scaled, scale, metrics, guide)

    @tf.autograph.experimental.do_not_convert
    def _update(
        self,
        tape: tf.GradientTape,
        outputs: Any,
        regularization: Any,
        loss: Any,
        scaled: Any,
        scale: Any,
        metrics: Any,
        guide: Any,
    ) -> dict[str, Any]:
        trained = self._trainable_variables()
        gradients = tape.gradient(scaled, [_patching.underlying_variable(variable) for variable in trained])
        gradients = [_times(gradient, None if scale is None else 1 / scale) for gradient in gradients]
        pairs = list(zip(gradients, trained, strict=True))
        before = values_of_step(
            rate=self._learning_rate(),
            outputs=outputs,
            regularization=regularization,
            loss=loss,
            metrics=metrics,
            variables=self.variables(),
            gradients=pairs,
        )
        if not hasattr(self._optimizer, "scale_loss"):
            scale = None  # only Keras 3's optimizers take gradients of the scaled loss
        guided = self._guided(pairs, guide)
        self._apply([(_times(gradient, scale), variable) for gradient, variable in guided if gradient is not None])
        return before

    def _scaled(self, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the loss as the optimizer scales it, for gradients that float16 can hold, and how much it does."""
        for name in ("scale_loss", "get_scaled_loss"):  # of Keras 3's optimizers, of tf_keras's LossScaleOptimizer
            if hasattr(self._optimizer, name):
                scale_loss = getattr(self._optimizer, name)
                scaled = scale_loss(loss)
                return (loss, None) if scaled is loss else (scaled, tf.convert_to_tensor(scale_loss(tf.ones([]))))
        return loss, None

    def _guided(self, pairs: list[tuple[Any, Any]], guide: Mapping[str, tf.Tensor]) -> list[tuple[Any, Any]]:
        gradients: dict[int, tf.Tensor] = {}
        for name, variable in self.variables().items():
            if name in guide and guide[name].shape == variable.spec.shape:
                gradients.update(zip(map(id, variable.parts), variable.cut(guide[name]), strict=True))
        return [
            (_in_form_of(gradient, gradients.get(id(_patching.underlying_variable(variable)), gradient)), variable)
            for gradient, variable in pairs
        ]

    def _trainable_variables(self) -> list[Any]:
        variables = named_variables(self._variables).values()
        if not hasattr(self._model, "trainable_weights"):
            return [variable for variable in variables if variable.trainable]
        # The variables of a frozen tf_keras layer still say that they are trainable.
        trainable = {id(_patching.underlying_variable(weight)) for weight in self._model.trainable_weights}
        return [variable for variable in variables if id(_patching.underlying_variable(variable)) in trainable]

    def _is_of_tf1(self) -> bool:
        return isinstance(self._optimizer, tf.compat.v1.train.Optimizer)

    def _learning_rate(self) -> Any:
        is_of_tf1 = self._is_of_tf1()
        return (_patching.learning_rate_of_tf1 if is_of_tf1 else _patching.learning_rate_of_keras)(self._optimizer)

    def _apply(self, pairs: list[tuple[Any, Any]]) -> None:
        if _patching.is_instance_of_loaded(self._optimizer, "keras", "Optimizer"):
            self._optimizer.apply_gradients(pairs)  # it applies constraints, which Keras's own variables have
            return
        pairs = [(gradient, _patching.underlying_variable(variable)) for gradient, variable in pairs]
        if self._is_of_tf1():
            self._optimizer.apply_gradients(pairs, global_step=self._global_step)
        else:
            self._optimizer.apply_gradients(pairs)


def _times(gradient: Any, factor: Any) -> Any:
    if gradient is None or factor is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _in_form_of(gradient: Any, values: Any) -> Any:
    """Returns a gradient with other values: an optimizer updates less where only slices of a variable have one."""
    if not isinstance(gradient, tf.IndexedSlices) or isinstance(values, tf.IndexedSlices):
        return values
    indices, _ = tf.unique(gradient.indices)
    return tf.IndexedSlices(tf.gather(values, indices), indices, gradient.dense_shape)
