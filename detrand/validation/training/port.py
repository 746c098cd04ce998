"""The training of a port: `train_port` makes a new port and trains it, eagerly or in a ``tf.function``.

`TrainedPort` computes the steps, on replicas if there are any.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from detrand._patching.flax import OptaxOptimizer, is_optax
from detrand._patching.keras import is_instance_of_loaded, underlying_variable
from detrand._patching.optimizers import (
    AVERAGE_OF_WEIGHT,
    is_tf1_optimizer,
    is_torch_optimizer,
    learning_rate_of,
    make_slots,
)
from detrand.arguments import takes_one_argument
from detrand.comparison.structures import map_structure
from detrand.errors import ComparisonError, MigrationError, passing_over
from detrand.packages import is_loaded, tf
from detrand.random_op_diff import uncontrolled_in
from detrand.seeding.callsite import UNKNOWN, describe_error, site_of_argument
from detrand.validation.frameworks.torch import parameters_of
from detrand.validation.migration import Migration
from detrand.validation.programs.layer_sites import LayerSites
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import (
    Port,
    as_array,
    built_port,
    check_new_optimizer,
    port_scope,
)
from detrand.validation.programs.replicas import in_own_containers
from detrand.validation.programs.sample_variances import MovingAverages
from detrand.validation.training import steps
from detrand.validation.training.clipping import EACH_ELEMENT, GLOBAL_NORM, NORM_OF_EACH
from detrand.validation.training.steps import (
    AVERAGES_OF_BATCH,
    WEIGHT_AVERAGES,
    Slots,
    Training,
    train_step_of,
)
from detrand.variables.sources import joined_variables, named_variables


class TrainedConstantsError(ComparisonError):
    """A step of the port has trained elements that come from no TF1 variable, and are constants of the ``name_map``.

    Attributes:
      names: the port's names of the variables with such elements.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(f"a step of the port trains elements of {', '.join(names)} that come from no TF1 variable")
        self.names = names


def train_port(
    migration: Migration,
    batches: Sequence[Any],
    config: RunConfig,
    tf1: Training,
    initial: Mapping[str, np.ndarray],
    *,
    compiled: bool,
    guided: bool = False,
) -> Training:
    """Make a new port, give it TF1's initial values, and train it with one step for each batch.

    Two trainings drift apart by rounding only, and some optimizers amplify that: Adam's first update of a weight whose
    gradient is 1e-9 instead of 0 is the whole learning rate. A guided port shows what is a fault: it begins each step
    with TF1's variables, and its optimizer gets TF1's gradients, so a difference comes from the step itself.

    The batches are inputs and labels of each step.
    """
    shapes = {name: array.shape for name, array in tf1.variables_after(0).items()}
    built, *random_ops = built_port(migration, config, shapes)
    with port_scope(migration, config) as tool, built.framework.as_written():
        built.set_weights(config, initial)
        of_tf1 = tf1.steps[0]["gradients"] if guided else {}
        stopped = {name for name, array in of_tf1.items() if array is None}
        whole = {name for name in of_tf1 if name not in tf1.sliced and _are_of_all_rows(name, tf1)}
        port = TrainedPort(built, compiled, stopped, whole)
        trained: list[dict[str, Any]] = []
        rates: list[Any] = []
        averages = MovingAverages(built.view().values())
        for number, batch in enumerate(batches):
            guide = {}
            if guided:
                given = tf1.steps[number]["gradients"]
                guide = {name: built.framework.dense(array) for name, array in given.items() if array is not None}
                if number > 0:
                    port.begin_after(tf1, number - 1)
                    averages.begin(built.view().values())
            with tool.step(), built.framework.sample_variances() as variances:
                values = port.step(*built.tensors(batch), guide)
            rates.append(values.get("learning_rate"))
            arrays, slots = port.after()
            trained.append(steps.recorded(values, port.view(), arrays, steps.as_in_tf1(slots, rates)))
            if of_batch := averages.of_batch(trained[number].get("moving_averages", {}), variances):
                trained[number][AVERAGES_OF_BATCH] = of_batch
            port.check_copies()
            port.check_constants()
    return Training(
        tuple(trained),
        port.not_exposed,
        replicas=port.replicas.count,
        averaged=port.averaged,
        in_slices=tuple(port.sliced) if port.is_of_keras3 else (),
        sliced=tuple(port.sliced),
        clipping=port.clipping,
        uncontrolled=uncontrolled_in((*itertools.chain(*random_ops), *tool.random_ops)),
        constants=built.view().constants(),
    )


def _are_of_all_rows(name: str, tf1: Training) -> bool:
    """Return whether all rows of a variable have gradients in each step, as those that a penalty is computed of."""
    arrays = [step["gradients"][name] for step in tf1.steps]
    return all(array is not None and array.ndim and array.reshape(len(array), -1).any(axis=1).all() for array in arrays)


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
    if tf1.variables_after(0) and not variables:
        raise MigrationError(
            f"port of {migration.name} returned a port that creates its variables when it is first called, which its "
            "replicas cannot do in a tf.function; call it once inside port, for example with zeros"
        )


def port_loss_of(port: Port, step: int, labels: Any, outputs: Any) -> float:
    """Return the loss that a port's training computes in a step from outputs, without regularization."""
    with port_scope(port.migration, RunConfig(training=True)):
        make_optimizer_of_step(port.migration, step)
        labels, outputs = port.tensors((labels, outputs))
        return float(as_array(train_step_of(port.migration).port_loss(labels, outputs)))


def lines_of_optimizer(make: Callable[..., Any]) -> dict[str, str]:
    """Return the lines that make an optimizer and its learning rate; none if the factory raises or makes none."""
    sites = LayerSites()
    with passing_over():  # the check reports what a factory raises
        with sites.watched():
            optimizer = _made_optimizer(make, ())
        if isinstance(optimizer, OptaxOptimizer):  # a pair of functions, which has no constructor
            made = site_of_argument(make)
            return {} if made == UNKNOWN else {"optimizer": str(made), "learning_rate": str(made)}
        with _scratch_graph():
            return sites.lines_of_optimizer(optimizer, learning_rate_of(optimizer))
    return {}


def _scratch_graph() -> contextlib.AbstractContextManager[Any]:
    """Return a scope whose ops are built in a temporary graph of TensorFlow, if that is loaded."""
    if not is_loaded("tensorflow"):
        return contextlib.nullcontext()
    from detrand._patching.graphs import scratch_function_graph

    return scratch_function_graph()


def make_port_optimizer(migration: Migration, trained: Sequence[Any] = ()) -> Any:
    """Make the optimizer of the port; one of PyTorch gets the variables that it trains, or else an example.

    Raises:
      MigrationError: if the factory raises, or returns no optimizer, or one that it has returned before.
    """
    factory = train_step_of(migration).port_optimizer
    try:
        optimizer = _made_optimizer(factory, trained)
    except Exception as error:
        raise MigrationError(f"port_optimizer of {migration.name} raised {describe_error(error)}") from error
    if is_torch_optimizer(optimizer) and not takes_one_argument(factory):
        raise MigrationError(
            f"port_optimizer of {migration.name} takes no argument, but an optimizer of PyTorch gets the parameters of "
            "the port. Write port_optimizer=lambda parameters: torch.optim.Adam(parameters, 0.001), for example"
        )
    if isinstance(optimizer, OptaxOptimizer) and takes_one_argument(factory):
        raise MigrationError(
            f"port_optimizer of {migration.name} takes an argument, but an optimizer of optax needs none. Write "
            "port_optimizer=lambda: optax.adam(0.001), for example"
        )
    if is_instance_of_loaded(optimizer, "flax.nnx", "Optimizer"):
        raise MigrationError(
            f"port_optimizer of {migration.name} returned an nnx.Optimizer, which updates a module of its own. Return "
            "the optimizer of optax that it is given, as in port_optimizer=lambda: optax.adam(0.001)"
        )
    if not is_torch_optimizer(optimizer) and not isinstance(optimizer, OptaxOptimizer):
        steps.checked_optimizer("port_optimizer", optimizer, "apply_gradients")
    check_new_optimizer(migration.name, optimizer)
    return optimizer


def make_optimizer_of_step(migration: Migration, step: int) -> None:
    """Make the optimizer of the port as it is before a step, for a loss that reads how many updates it has made."""
    if takes_one_argument(train_step_of(migration).port_optimizer):  # one of PyTorch, which counts none
        return
    counter = counter_of(make_port_optimizer(migration))
    if counter is not None:
        counter.assign(step)


def counter_of(optimizer: Any) -> Any:
    """Return the variable in which the updates of an optimizer are counted; None if there is none to be set."""
    if hasattr(optimizer, "iterations"):
        return optimizer.iterations
    is_of_tf1 = is_tf1_optimizer(optimizer)
    return tf.compat.v1.train.get_or_create_global_step() if is_of_tf1 else None


def _made_optimizer(factory: Callable[..., Any], trained: Sequence[Any]) -> Any:
    optimizer = factory(parameters_of(trained)) if takes_one_argument(factory) else factory()
    return OptaxOptimizer(optimizer) if is_optax(optimizer) else optimizer


# The arguments with which Keras's optimizers clip gradients, and what each limits, in words.
CLIPPING_ARGUMENTS = {"global_clipnorm": GLOBAL_NORM, "clipnorm": NORM_OF_EACH, "clipvalue": EACH_ELEMENT}


class TrainedPort:
    """A port with its optimizer and its metrics.

    The optimizer gets no gradients of the variables in ``stopped``, given by their TF1 names. Of those in ``whole``, it
    gets TF1's gradients in no slices.

    Attributes:
      step: computes a step, eagerly or in a ``tf.function``.
      replicas: the replicas that it runs on.
      view: returns the view of the variables that the port has now.
      is_of_keras3: whether its optimizer is one of Keras 3.
      sliced: the variables of which its optimizer has got gradients in slices, by their TF1 names.
    """

    def __init__(self, port: Port, compiled: bool, stopped: Collection[str], whole: Collection[str]):
        migration, train = port.migration, train_step_of(port.migration)
        self._trains = train.trains
        self._model, self._variables, self.replicas = port.model, port.variables, port.replicas
        self._framework, self._tensors = port.framework, port.tensors
        self.view = port.view
        self.sliced: set[str] = set()
        self._stopped, self._whole = stopped, {*whole}
        with self.replicas.scope():
            self._optimizer = make_port_optimizer(migration, self._trained_variables())
            self._framework.check_optimizer(self._optimizer)
            self._is_of_tf1 = is_tf1_optimizer(self._optimizer)
            self.is_of_keras3 = is_instance_of_loaded(self._optimizer, "keras", "Optimizer")
            if self.replicas.count > 1:  # in a function no replica can make slots
                make_slots(self._optimizer, [*map(self._as_optimized, self._trained_variables())])
        # There is a global step, eagerly too, if the optimizer's rate depends on it.
        self._global_step = tf.compat.v1.train.get_global_step() if self._is_of_tf1 else None
        metrics = {name: train.metric("port", name) for name in train.metrics}
        for metric in metrics.values():
            if hasattr(metric, "reset_state"):
                metric.reset_state()
        called: list[Any] = [port.function, train.port_loss, *metrics.values()]
        self.step: Any = self._step
        if compiled:
            from detrand._patching.tensorflow import converted_by_autograph, function_as_is

            # Only the user's functions are converted: it takes seconds to convert all that a step calls.
            called, self.step = list(map(converted_by_autograph, called)), function_as_is(self._step)
        line = train.line_of_loss("port")
        self._loss_at = f"port_loss ({line})" if line else "port_loss"
        self._call, self._loss, *of_metrics = called
        self._metrics = dict(zip(metrics, of_metrics, strict=True))

    @property
    def not_exposed(self) -> tuple[str, ...]:
        """The names of a step whose values it does not expose."""
        exposes = {
            "learning_rate": learning_rate_of(self._optimizer) is not None,
            "regularization_loss": self._framework.keeps_losses(self._model),
            WEIGHT_AVERAGES: hasattr(self._optimizer, "use_ema"),
        }
        return tuple(name for name, exposed in exposes.items() if not exposed)

    @property
    def clipping(self) -> str | None:
        """The argument with which its optimizer clips gradients, empty without one; None if it may clip in code."""
        given = {name: getattr(self._optimizer, name) for name in CLIPPING_ARGUMENTS if hasattr(self._optimizer, name)}
        return next(filter(given.get, given), "" if len(given) == len(CLIPPING_ARGUMENTS) else None)

    @property
    def averaged(self) -> tuple[str, ...]:
        """The variables that are averaged over the replicas when read."""
        if self._framework.no_graph:
            return ()
        view, mean = self.view(), tf.VariableAggregation.MEAN
        return tuple(name for name in view.specs if all(part.aggregation == mean for part in view.parts_of(name)))

    def after(self) -> tuple[dict[int, np.ndarray], Slots]:
        """Return the values of the variables' parts and of the optimizer's slots."""
        view = self.view()
        slots = steps.slots_of([self._optimizer], view)
        values = {position: part.numpy() for position, part in enumerate(view.parts)}
        return values, map_structure(as_array, slots)

    def begin_after(self, tf1: Training, step: int) -> None:
        """Give the port the variables, and the moving averages of weights, that TF1 has after a step."""
        view = self.view()
        view.assign(tf1.variables_after(step))
        averages = steps.slots_of([self._optimizer], view).get(AVERAGE_OF_WEIGHT, {})
        of_tf1 = view.to_parts(tf1.steps[step].get(WEIGHT_AVERAGES, {}))
        for position in averages.keys() & of_tf1.keys():
            averages[position].assign(of_tf1[position])

    def check_copies(self) -> None:
        """Raise a `ComparisonError` unless all replicas have the same weights."""
        view = self.view()
        trainable = ((position, part) for position, part in enumerate(view.parts) if part.trainable)
        for position, part in trainable:
            first, *others = [copy.numpy() for copy in self.replicas.copies(part)]
            if not all(np.array_equal(first, other, equal_nan=True) for other in others):
                raise ComparisonError(
                    f"the replicas have different values of {' and '.join(view.names_of(position))} after an update, "
                    "so its gradient is not summed over them; the optimizer must aggregate gradients"
                )

    def check_constants(self) -> None:
        """Raise a `TrainedConstantsError` if a step has changed what is constant in TF1."""
        if names := self.view().changed_constants():
            raise TrainedConstantsError(names)

    def _step(self, inputs: Any, labels: Any, guide: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Compute a step, update the variables, and return the values of the step before the update.

        The guide holds gradients for the optimizer in place of the port's own, by the variables' TF1 names.
        """
        rate = learning_rate_of(self._optimizer)
        if rate is not None:  # before the update
            rate = self._framework.dense(as_array(rate) if self._framework.no_graph else rate)
        computed = self.replicas.run(lambda x, y: self._on_replica(x, y, guide), inputs, labels)
        outputs, losses, regularizations, gradients = zip(*computed, strict=True)
        joined = self.replicas.joined(outputs)
        metrics = {name: metric(in_own_containers(labels), joined) for name, metric in self._metrics.items()}
        if self._framework.no_graph:
            joined, losses, regularizations, metrics, gradients = map_structure(
                as_array, (joined, losses, regularizations, metrics, gradients)
            )
        return steps.values_of_step(
            rate=rate,
            outputs=joined,
            regularization=_sum(regularizations),
            loss=_sum(losses),
            metrics=metrics,
            framework=self._framework,
            view=self.view(),
            gradients=zip(map(_sum, zip(*gradients, strict=True)), self._trained_variables(), strict=True),
        )

    def _on_replica(
        self, inputs: Any, labels: Any, guide: Mapping[str, tf.Tensor]
    ) -> tuple[Any, tf.Tensor, tf.Tensor | None, list[Any]]:
        """Compute a step for a part of the batch, and update the variables together with the other replicas.

        Returns:
          The outputs, the loss with regularization, the regularization loss, and the gradients of the trained
          variables. Over all replicas, losses and gradients add up to those of the step.
        """

        def compute() -> tuple[Any, Any]:
            outputs = self._call(*inputs, training=True)
            loss = self._loss(labels, outputs)
            of_layers = [of_layer / self.replicas.count for of_layer in self._framework.losses(self._model)]
            loss, regularization = steps.total_loss(self._loss_at, loss, of_layers)
            scaled, scale = self._scaled(loss)
            return scaled, (outputs, loss, regularization, scale)

        others, gradients = self._framework.loss_and_gradients(compute, self._trained_variables, self._model)
        trained = self._trained_variables()
        outputs, loss, regularization, scale = others
        outputs = map_structure(self._before_update, outputs)
        gradients = [_times(gradient, None if scale is None else 1 / scale) for gradient in gradients]
        self._update(gradients, trained, guide, scale)
        return outputs, loss, regularization, gradients

    def _before_update(self, output: Any) -> Any:
        """Return an output as it is before the update: it may be a variable, or share the memory of one."""
        if self._framework.no_graph:
            return self._tensors(as_array(output))
        is_variable = isinstance(output, tf.Variable) or is_instance_of_loaded(output, "keras", "Variable")
        return tf.convert_to_tensor(output) if is_variable else output

    def _scaled(self, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the loss as the optimizer scales it, so that float16 holds its gradients, and the scale or None."""
        for name in ("scale_loss", "get_scaled_loss"):  # of Keras 3's optimizers, of tf_keras's LossScaleOptimizer
            if hasattr(self._optimizer, name):
                scale_loss = getattr(self._optimizer, name)
                scaled = scale_loss(loss)
                # In float32: float16 does not hold every scale.
                return (loss, None) if scaled is loss else (scaled, scale_loss(self._tensors(np.ones([], np.float32))))
        return loss, None

    def _update(
        self, gradients: Sequence[Any], trained: Sequence[Any], guide: Mapping[str, tf.Tensor], scale: Any
    ) -> None:
        """Update variables by their gradients, or by those of the guide where it has any."""
        view = self.view()
        given = view.to_parts(guide)
        if self._framework.no_graph:
            given = self._tensors(given)
        positions = {id(part): position for position, part in enumerate(view.parts)}
        if not self.is_of_keras3:
            scale = None  # other optimizers take gradients of the loss that is not scaled
        pairs = []
        for gradient, variable in zip(gradients, trained, strict=True):
            position = positions[id(underlying_variable(variable))]
            names, used = view.names_of(position), gradient
            if _is_in_slices(gradient):
                self.sliced.update(names)
            if position in given:
                is_whole = not self._whole.isdisjoint(names) or not _is_in_slices(gradient)
                used = given[position] / self.replicas.count if is_whole else self._share_of(given[position], gradient)
            if names and all(name in self._stopped for name in names):
                used = None
            # Keras 3's casts by itself, after it has taken out its scale, and others get gradients of their framework.
            if used is not None and not (self.is_of_keras3 or self._framework.no_graph):
                used = tf.cast(used, variable.dtype)
            if used is not None:
                pairs.append((_times(used, scale), self._as_optimized(variable)))
        counted = {"global_step": self._global_step} if self._is_of_tf1 else {}
        if not pairs:  # everything is frozen, and Keras's optimizers would raise
            return
        self._framework.update(self._optimizer, pairs, **counted)

    def _share_of(self, whole: tf.Tensor, gradient: Any) -> Any:
        """Return a replica's share of a whole gradient, in the slices of its own gradient.

        Optimizers leave rows without slices as they are. Keras 3's see each slice of a row; others add them up first. A
        slice of zeros, as of an example without weight, stays one.
        """
        indices = gradient.indices if self.is_of_keras3 else tf.unique(gradient.indices)[0]

        def summed(slices: tf.Tensor) -> tf.Tensor:
            """Return for each slice the sum of all replicas' slices of its row."""
            rows = tf.math.unsorted_segment_sum(slices, indices, whole.shape[0])
            return tf.gather(self.replicas.sum(rows), indices)

        rows = tf.gather(whole, indices)
        count = summed(tf.ones_like(rows))
        shares = rows / count
        if self.is_of_keras3:
            own = tf.cast(gradient.values, whole.dtype)
            size = summed(tf.abs(own))
            part = tf.where(size > 0, tf.abs(own) / size, 1 / count)
            shares = tf.where(count > 1, own + (rows - summed(own)) * part, shares)
        return tf.IndexedSlices(shares, indices, gradient.dense_shape)

    def _trained_variables(self) -> list[Any]:
        """Return the variables that a step trains, as the port has them."""
        variables = list(named_variables(self._variables).values())
        joined = joined_variables("port", self._variables).values()
        trainable = [part for each in joined if each.spec.trainable for part in each.parts]
        view = self.view()
        names = [view.names_of(position) for position in range(len(view.parts))]  # none if it has constants only
        trains = [not of_part or any(map(self._trains, of_part)) for of_part in names]
        trained = {id(part) for part, is_trained in zip(view.parts, trains, strict=True) if is_trained}
        trained &= set(map(id, trainable))
        return [variable for variable in variables if id(underlying_variable(variable)) in trained]

    def _as_optimized(self, variable: Any) -> Any:
        """Return a variable as the optimizer takes it: Keras 3's applies the constraints of Keras variables."""
        return variable if self.is_of_keras3 else underlying_variable(variable)


def _times(gradient: Any, factor: tf.Tensor | None) -> Any:
    if gradient is None or factor is None:
        return gradient
    if _is_in_slices(gradient):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _is_in_slices(gradient: Any) -> bool:
    return is_instance_of_loaded(gradient, "tensorflow", "IndexedSlices")


def _sum(values: Sequence[Any]) -> Any:
    """Return the sum of the replicas' values that are not None."""
    values = [value for value in values if value is not None]
    return tf.add_n([tf.convert_to_tensor(value) for value in values]) if len(values) > 1 else next(iter(values), None)
