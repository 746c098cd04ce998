"""The training of a TF1 program in a session: `train_in_session` builds it, and records each step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detrand._patching.optimizers import hyperparameters_of_tf1_optimizer
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.comparison.structures import map_structure
from detrand.errors import MigrationError
from detrand.packages import tf
from detrand.random_op_diff import uncontrolled_in
from detrand.random_tool import DeterministicRandomTestTool
from detrand.validation.audit.hyperparameters import lines_of_penalties, regularizers_in_total_loss
from detrand.validation.frameworks.tensorflow import TensorFlow
from detrand.validation.migration import Migration
from detrand.validation.programs.replicas import INPUT, Replicas, Towers, build_towers, in_own_containers, losses_added
from detrand.validation.programs.sample_variances import MovingAverages, SampleVariances
from detrand.validation.programs.tf1 import fetch, ops_of_updates, tf1_session
from detrand.validation.programs.update_order import all_run, order_updates
from detrand.validation.training import steps
from detrand.validation.training.loss import total_loss_of_tf1
from detrand.validation.training.penalties import Decay, decays_in_update
from detrand.validation.training.steps import AVERAGES_OF_BATCH, MEANS_OF_TOWERS, Slots, Training, train_step_of
from detrand.validation.training.train_op import Update, norms_of_slices, update_of
from detrand.variables.sources import joined_variables
from detrand.variables.tf1_view import TF1View


@dataclass(frozen=True)
class TrainingGraph:
    """The graph of a TF1 program's training, in a session whose variables are initialized, in the scope of a tool.

    A step is fed inputs and labels. It computes values before its update, the variances of samples, and a tensor that
    is done after the update; then the parts of the variables, and the slots, are read as they are after the step. The
    hyperparameters of the optimizer have the names of their constants in the graph. Some variables are of the loss, and
    not of the model.
    """

    session: tf.compat.v1.Session
    tool: DeterministicRandomTestTool
    fed: Any
    towers: Towers
    before: dict[str, Any]
    samples: SampleVariances
    update: Update
    done: tf.Tensor
    after: tuple[dict[int, tf.Tensor], Slots]
    view: TF1View
    hyperparameters: dict[str, np.ndarray]
    unordered: tuple[str, ...]
    regularizers: dict[str, str]
    decays: dict[str, Decay]
    lines_of_penalties: dict[str, str]
    of_loss: tuple[str, ...]
    norms_of_slices: tf.Tensor | None

    @property
    def update_ops(self) -> frozenset[str]:
        """The names of those of the program's ``UPDATE_OPS`` that a step runs."""
        run = {op.name for op in all_run([self.done])}
        return frozenset(run & {op.name for op in ops_of_updates(self.session.graph)})

    def sliced(self) -> Iterator[str]:
        """Yield the variables whose gradients come in slices of rows that the inputs choose."""
        fed = {placeholder.op for placeholder in tf.nest.flatten(self.fed)}
        positions = {id(part): position for position, part in enumerate(self.view.parts)}
        for gradient, part in self.update.gradients:
            if isinstance(gradient, tf.IndexedSlices) and not fed.isdisjoint(_upstream_of_values(gradient.indices)):
                yield from self.view.names_of(positions[id(part)])

    def feeds(self, batch: Any) -> dict[Any, np.ndarray]:
        """Return the inputs and labels of a step by their placeholders."""
        return dict(zip(tf.nest.flatten(self.fed), tf.nest.flatten(batch), strict=True))


def _upstream_of_values(tensor: tf.Tensor) -> set[tf.Operation]:
    """Return all ops on whose values, and not only shapes, a tensor depends."""
    return all_upstream([tensor.op], lambda op: [] if op.type in ("Shape", "Size", "Rank") else input_ops(op))


def train_in_session(migration: Migration, batches: Sequence[Any], mode: str, rates: Sequence[float] = ()) -> Training:
    """Build the training of the TF1 program in a new graph, and run a step for each batch in a session.

    Where learning rates are given, each step has one of them in place of its own.

    Raises:
      MigrationError: if it cannot be built or run, or the loss of the first step is not a finite scalar.
    """
    with training_graph(migration, batches[0], mode) as graph:
        trained: list[dict[str, Any]] = []
        norms, of_slices = list[tuple[float, float]](), [] if graph.norms_of_slices is None else [graph.norms_of_slices]
        averages = MovingAverages(_values_before(graph))
        for step, batch in enumerate(batches):
            feeds, before = graph.feeds(batch), dict(graph.before)
            if rates:  # a fed tensor cannot be fetched
                feeds[before["learning_rate"]] = before["learning_rate"] = np.float32(rates[step])
            fetches = before, graph.samples.fetches, of_slices, graph.done
            values, variances, norms_of_step, _ = fetch(graph.session, fetches, feeds)
            norms.extend((float(norm), float(factor)) for norm, factor in norms_of_step)
            if step == 0 and not np.isfinite(values["loss"]).all():
                raise MigrationError(
                    f"the loss of the TF1 program of {migration.name} is {values['loss']} in the first step, so there "
                    "is nothing to compare; check the labels, tf1_loss and the outputs"
                )
            trained.append(steps.recorded(values, graph.view, *graph.session.run(graph.after)))
            if of_batch := averages.of_batch(trained[step].get("moving_averages", {}), variances):
                trained[step][AVERAGES_OF_BATCH] = of_batch
            if graph.towers.copies:
                copies = graph.session.run(graph.towers.copies)
                trained[step][MEANS_OF_TOWERS] = {name: np.mean(of, 0) for name, of in copies.items()}
    not_exposed = tuple({"learning_rate"} - graph.before.keys())
    return Training(
        tuple(trained),
        not_exposed,
        unordered=graph.unordered,
        sliced=tuple(graph.sliced()),
        norms_of_slices=tuple(norms),
        lines=graph.update.lines,
        schedule=graph.update.schedule,
        regularizers=graph.regularizers,
        decays={name: decay.penalty for name, decay in graph.decays.items()},
        lines_of_penalties=graph.lines_of_penalties,
        uncontrolled=uncontrolled_in(graph.tool.random_ops),
        of_loss=graph.of_loss,
    )


def _values_before(graph: TrainingGraph) -> Mapping[str, np.ndarray]:
    """Return the variables before the first step, if any of them may average the variance of a sample."""
    parts, _ = graph.session.run(graph.after) if graph.samples.fetches else ({}, {})
    before: Mapping[str, np.ndarray] = graph.view.from_parts(parts, values=True)
    return before


@contextlib.contextmanager
def training_graph(migration: Migration, batch: Any, mode: str) -> Iterator[TrainingGraph]:
    """Build the training of the TF1 program in a new graph, for batches like the given inputs and labels.

    Raises:
      MigrationError: if it cannot be built, or if the block raises.
    """
    tool = DeterministicRandomTestTool(migration.seed, mode)
    with tf1_session(migration, tool, batch[0], "trained") as session:
        yield _built(migration, batch, session, tool)


def _built(
    migration: Migration, batch: Any, session: tf.compat.v1.Session, tool: DeterministicRandomTestTool
) -> TrainingGraph:
    v1, train = tf.compat.v1, train_step_of(migration)
    fed = tf.nest.map_structure(lambda array: v1.placeholder(array.dtype, array.shape, INPUT), batch)
    inputs, labels = fed
    towers = build_towers(migration, Replicas(migration.name, migration.strategy), inputs, training=True)
    outputs = towers.outputs
    fetched = map_structure(lambda each: tf.identity(each) if isinstance(each, tf.Variable) else each, outputs)
    of_model = joined_variables("tf1", session.graph)
    has_step = v1.train.get_global_step() is not None
    step = v1.train.get_or_create_global_step()  # which the loss may read
    added = losses_added(towers)
    loss, regularization = total_loss_of_tf1(train.tf1_loss, in_own_containers(labels), outputs, added)
    metrics = {name: _updated(train.metric("tf1", name)(in_own_containers(labels), outputs)) for name in train.metrics}
    variables = joined_variables("tf1", session.graph)  # before the optimizer adds its own
    view = TF1View({name: each for name, each in variables.items() if has_step or name != step.op.name})
    regularizers = regularizers_in_total_loss(loss, view)
    update = update_of(migration, view, loss, [outputs, regularization, metrics])
    decays = decays_in_update(update, view)
    lines = {name: decay.line for name, decay in decays.items() if decay.line} | lines_of_penalties([loss], view)
    before = steps.values_of_step(
        rate=update.rate,
        outputs=fetched,
        regularization=regularization,
        loss=loss,
        metrics=metrics,
        framework=TensorFlow(),
        view=view,
        gradients=update.gradients,
    )
    of_slices = norms_of_slices(update)
    computed = [
        tensor for tensor in tf.nest.flatten([before, of_slices], expand_composites=True) if tf.is_tensor(tensor)
    ]
    with tf.control_dependencies(update.run):
        done = tf.constant(True)  # a tensor, which can be fetched
    samples = SampleVariances(session.graph, all_run([done, *computed]))
    parts = dict(enumerate(view.parts))
    after = tf.nest.map_structure(tf.convert_to_tensor, (parts, steps.slots_of(update.optimizers, view)))
    unordered = order_updates(session.graph, [done, *computed])
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
    towers.copy_state(session)
    given = [each for one in update.optimizers for each in hyperparameters_of_tf1_optimizer(one).values()]
    constants = [each for each in given if tf.is_tensor(each) and each.op.type == "Const" and each.dtype.is_floating]
    hyperparameters = {constant.name: tf.make_ndarray(constant.op.get_attr("value")) for constant in constants}
    return TrainingGraph(
        session=session,
        tool=tool,
        fed=fed,
        towers=towers,
        before=before,
        samples=samples,
        update=update,
        done=done,
        after=after,
        view=view,
        hyperparameters=hyperparameters,
        unordered=unordered,
        regularizers=regularizers,
        decays=decays,
        lines_of_penalties=lines,
        of_loss=tuple(name for name in view.specs if name not in of_model),
        norms_of_slices=of_slices,
    )


def _updated(metric: Any) -> Any:
    """Return the value of a metric that includes this step: the second of ``(value, update_op)``."""
    return metric[1] if isinstance(metric, (tuple, list)) else metric
