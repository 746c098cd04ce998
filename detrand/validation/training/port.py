"""The training of a port: `train_port` makes a new port and trains it, eagerly or in a ``tf.function``.

`TrainedPort` computes the steps, on replicas if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.keras import is_instance_of_loaded, underlying_variable
from detrand._patching.optimizers import learning_rate_of_keras, learning_rate_of_tf1, make_slots
from detrand.errors import ComparisonError, MigrationError
from detrand.seeding.callsite import describe_error
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, check_new_optimizer, functions_as_written, port_scope
from detrand.validation.programs.replicas import in_own_containers
from detrand.validation.training.steps import (
    Slots,
    Training,
    as_in_tf1,
    checked_loss,
    checked_optimizer,
    record_step,
    slots_of,
    train_step_of,
    values_of_step,
    with_regularization,
)
from detrand.variables.partitioned import JoinedVariable, joined_variables
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
    """Make a new port, and train it with one step for each batch.

    Two trainings drift apart by rounding only, and some optimizers amplify that: Adam's first update of a weight whose
    gradient is 1e-9 instead of 0 is the whole learning rate. A guided port tells rounding from a fault: it begins each
    step with TF1's variables, and its optimizer gets TF1's gradients, so a difference comes from the step itself.

    Args:
      migration: the migration.
      batches: inputs and labels of each step.
      mode: the mode of the `DeterministicRandomTestTool`.
      tf1: the training of the TF1 program.
      compiled: whether the step is a ``tf.function``.
      guided: whether it is guided by TF1.
      op_seeds: the op seeds of its random ops in order, if their order differs from TF1's.

    Raises:
      MigrationError: if the port or its optimizer cannot be made, or the loss is not a scalar.
    """
    config = RunConfig(training=True, mode=mode, op_seeds=tuple(op_seeds))
    with port_scope(migration, config) as tool, functions_as_written():
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
            rates.append(values.get("learning_rate"))
            record_step(recorder, number, values, port.variables(), port.arrays(), as_in_tf1(port.slots(), rates))
            port.check_copies()
    return Training(
        recorder,
        port.not_exposed,
        tuple(port.variables()),
        replicas=port.replicas.count,
        averaged=port.averaged,
        in_slices=port.in_slices,
    )


def check_trainable(migration: Migration, tf1: Training) -> None:
    """Raise a `MigrationError` if a port on replicas has no variables yet; in a function it could not create them."""
    if migration.strategy is None:
        return
    with port_scope(migration, RunConfig(training=True, mode="constant")):
        port = Port(migration)
    try:
        variables = named_variables(port.variables)
    except ValueError:  # raised by tf_keras for a model that is not built
        variables = {}
    if tf1.variables and not variables:
        raise MigrationError(
            f"port of {migration.name} returned a port that creates its variables when it is first called, which its "
            "replicas cannot do in a tf.function; call it once inside port, for example with zeros"
        )


def make_port_optimizer(migration: Migration) -> Any:
    """Make the optimizer of the port.

    Raises:
      MigrationError: if the factory raises, or returns no optimizer, or one that it has returned before.
    """
    try:
        optimizer = train_step_of(migration).port_optimizer()
    except Exception as error:
        raise MigrationError(f"port_optimizer of {migration.name} raised {describe_error(error)}") from error
    checked_optimizer("port_optimizer", optimizer, "apply_gradients")
    check_new_optimizer(migration.name, optimizer)
    return optimizer


class TrainedPort:
    """A port with its optimizer and its metrics.

    Attributes:
      replicas: the replicas that it runs on.
    """

    def __init__(self, migration: Migration, tf1_names: Iterable[str]):
        self._train = train_step_of(migration)
        self._tf1_names = migration.tf1_names(tf1_names)
        port = Port(migration)
        self._model, self._variables, self.replicas = port.model, port.variables, port.replicas
        with self.replicas.scope():
            self._optimizer = make_port_optimizer(migration)
            if self.replicas.count > 1:  # in a function no replica can make slots
                make_slots(self._optimizer, self._optimized(self._trainable_variables()))
        # There is a global step, eagerly too, if the optimizer's rate depends on it; it may have counted before.
        self._global_step = tf.compat.v1.train.get_global_step() if self._is_of_tf1() else None
        if self._global_step is not None:
            self._global_step.assign(0)
        self._in_slices: set[int] = set()  # ids of variables that have had such gradients
        self._metrics = {name: self._train.metric("port", name) for name in self._train.metrics}
        for metric in self._metrics.values():
            if hasattr(metric, "reset_state"):
                metric.reset_state()

    @property
    def not_exposed(self) -> frozenset[str]:
        """The names of a step whose values it does not expose."""
        exposed = {
            "learning_rate": self._learning_rate() is not None,
            "regularization_loss": hasattr(self._model, "losses"),
        }
        return frozenset(name for name, is_exposed in exposed.items() if not is_exposed)

    def variables(self) -> dict[str, JoinedVariable]:
        """Return the variables of the port under their TF1 names."""
        named = joined_variables("port", self._variables)
        return {self._tf1_names.get(name, name): variable for name, variable in named.items()}

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """Return the values of the variables' parts."""
        return {name: [part.numpy() for part in variable.parts] for name, variable in self.variables().items()}

    def slots(self) -> Slots:
        """Return the optimizer's slots as arrays."""
        return tf.nest.map_structure(lambda slot: slot.numpy(), slots_of(self._optimizer, self.variables()))

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign arrays to the variables of their names, if the shapes agree."""
        for name, variable in self.variables().items():
            if name in arrays and arrays[name].shape == variable.spec.shape:
                for part, array in zip(variable.parts, variable.cut(arrays[name]), strict=True):
                    part.assign(tf.cast(array, part.dtype))

    @property
    def in_slices(self) -> frozenset[str]:
        """The variables whose gradients Keras 3's optimizer got in slices."""
        return frozenset(
            name
            for name, variable in self.variables().items()
            if self._is_of_keras3() and any(id(part) in self._in_slices for part in variable.parts)
        )

    @property
    def averaged(self) -> frozenset[str]:
        """The variables that are averaged over the replicas when read."""
        mean = tf.VariableAggregation.MEAN
        return frozenset(name for name, variable in self.variables().items() if variable.parts[0].aggregation == mean)

    def check_copies(self) -> None:
        """Raise a `ComparisonError` unless all replicas have the same weights."""
        for name, variable in self.variables().items():
            for part in variable.parts if variable.spec.trainable else ():
                first, *others = [copy.numpy() for copy in self.replicas.copies(part)]
                if not all(np.array_equal(first, other, equal_nan=True) for other in others):
                    raise ComparisonError(
                        f"the replicas have different values of {name} after an update, so its gradient is not summed "
                        "over them; the optimizer must aggregate gradients"
                    )

    def step(self, inputs: Any, labels: Any, guide: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Compute a step, update the variables, and return the values of the step before the update.

        Args:
          inputs: the inputs of the model.
          labels: the labels of the loss.
          guide: gradients for the optimizer in place of the port's own, by the variables' TF1 names.
        """
        rate = self._learning_rate()
        rate = None if rate is None else tf.convert_to_tensor(rate)  # before the update
        results = self.replicas.run(lambda *part: self._on_replica(part[0], part[1], guide), inputs, labels)
        outputs = self.replicas.joined([result.outputs for result in results])
        return values_of_step(
            rate=rate,
            outputs=outputs,
            regularization=_sum([result.regularization for result in results]),
            loss=_sum([result.loss for result in results]),
            metrics={name: metric(in_own_containers(labels), outputs) for name, metric in self._metrics.items()},
            variables=self.variables(),
            gradients=zip(
                map(_sum, zip(*(result.gradients for result in results), strict=True)),
                self._trainable_variables(),
                strict=True,
            ),
        )

    def _on_replica(self, inputs: Any, labels: Any, guide: Mapping[str, tf.Tensor]) -> _Computed:
        """Compute a step for a part of the batch, and update the variables together with the other replicas."""
        with tf.GradientTape() as tape:
            outputs = self._model(*inputs, training=True)
            loss = checked_loss("port_loss", self._train.port_loss(labels, outputs))
            losses = [of_layer / self.replicas.count for of_layer in getattr(self._model, "losses", ())]
            loss, regularization = with_regularization(loss, losses)
            scaled, scale = self._scaled(loss)
        gradients = self._update(tape, scaled, scale, guide)
        return _Computed(outputs, regularization, loss, gradients)

    @tf.autograph.experimental.do_not_convert
    def _update(self, tape: tf.GradientTape, scaled: Any, scale: Any, guide: Any) -> list[Any]:
        trained = self._trainable_variables()
        gradients = tape.gradient(scaled, [underlying_variable(variable) for variable in trained])
        gradients = [_times(gradient, None if scale is None else 1 / scale) for gradient in gradients]
        if not hasattr(self._optimizer, "scale_loss"):
            scale = None  # only Keras 3's optimizers take gradients of the scaled loss
        guided = self._guided(list(zip(gradients, trained, strict=True)), guide)
        self._apply([(_times(gradient, scale), variable) for gradient, variable in guided if gradient is not None])
        return gradients

    def _scaled(self, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the loss as the optimizer scales it, so that float16 holds its gradients, and the scale or None."""
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
        guided = []
        for gradient, variable in pairs:
            if isinstance(gradient, tf.IndexedSlices):
                self._in_slices.add(id(underlying_variable(variable)))
            whole = gradients.get(id(underlying_variable(variable)))
            guided.append((gradient if whole is None else self._share_of(whole, gradient), variable))
        return guided

    def _share_of(self, whole: tf.Tensor, gradient: Any) -> Any:
        """Return a replica's share of a whole gradient, in slices if its own gradient is in slices.

        Optimizers leave rows without slices as they are. Keras 3's see each slice of a row; others add them up first.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            return whole / self.replicas.count
        indices = gradient.indices if self._is_of_keras3() else tf.unique(gradient.indices)[0]
        rows = tf.shape(whole, out_type=indices.dtype)[:1]
        ones = tf.scatter_nd(indices[:, tf.newaxis], tf.ones(tf.shape(indices), whole.dtype), rows)
        having = tf.gather(self.replicas.sum(ones), indices)
        having = tf.reshape(having, [-1, *[1] * (whole.shape.rank - 1)])
        slices = tf.gather(whole, indices) / having
        if self._is_of_keras3():
            own = tf.cast(tf.gather(self.replicas.sum(tf.convert_to_tensor(gradient)), indices), whole.dtype)
            slices = tf.where(having > 1, tf.cast(gradient.values, whole.dtype) + (slices - own / having), slices)
        return tf.IndexedSlices(slices, indices, gradient.dense_shape)

    def _trainable_variables(self) -> list[Any]:
        listed = [whole for name, whole in self.variables().items() if self._train.trains(name)]
        trained = {id(part) for whole in listed for part in whole.parts}
        variables = [
            variable
            for variable in named_variables(self._variables).values()
            if id(underlying_variable(variable)) in trained
        ]
        if not hasattr(self._model, "trainable_weights"):
            return [variable for variable in variables if variable.trainable]
        # The variables of a frozen tf_keras layer are still marked as trainable.
        trainable = {id(underlying_variable(weight)) for weight in self._model.trainable_weights}
        return [variable for variable in variables if id(underlying_variable(variable)) in trainable]

    def _is_of_tf1(self) -> bool:
        return isinstance(self._optimizer, tf.compat.v1.train.Optimizer)

    def _is_of_keras3(self) -> bool:
        return is_instance_of_loaded(self._optimizer, "keras", "Optimizer")

    @tf.autograph.experimental.do_not_convert
    def _learning_rate(self) -> Any:
        is_of_tf1 = self._is_of_tf1()
        return (learning_rate_of_tf1 if is_of_tf1 else learning_rate_of_keras)(self._optimizer)

    def _optimized(self, variables: list[Any]) -> list[Any]:
        """Return variables as the optimizer takes them: Keras 3's applies the constraints of Keras variables."""
        if self._is_of_keras3():
            return variables
        return [underlying_variable(variable) for variable in variables]

    def _apply(self, pairs: list[tuple[Any, Any]]) -> None:
        if not pairs:  # for example, everything is frozen; Keras's optimizers would raise
            return
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        pairs = list(zip(gradients, self._optimized(variables), strict=True))
        if self._is_of_tf1():
            self._optimizer.apply_gradients(pairs, global_step=self._global_step)
        else:
            self._optimizer.apply_gradients(pairs)


class _Computed(NamedTuple):
    """What one replica computes in a step; losses and gradients are summed over the replicas.

    Attributes:
      outputs: the outputs for its part of the batch.
      regularization: the sum of the regularization losses.
      loss: the loss with regularization.
      gradients: the gradients of the trainable variables.
    """

    outputs: Any
    regularization: Any
    loss: tf.Tensor
    gradients: list[Any]


def _times(gradient: Any, factor: Any) -> Any:
    if gradient is None or factor is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _sum(values: Sequence[Any]) -> Any:
    """Return the sum of the replicas' values that are not None."""
    values = [value for value in values if value is not None]
    return tf.add_n([tf.convert_to_tensor(value) for value in values]) if len(values) > 1 else next(iter(values), None)
