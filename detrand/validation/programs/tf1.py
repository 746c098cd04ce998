"""The TF1 program of a migration: built in a graph of its own, run in a session.

In `tf1_program` it is built, and can be looked at before it runs. A `TF1Graph` can be opened again in another session,
with other op seeds and weights: building a graph takes much longer than running it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detrand._patching.patches import Patches
from detrand.arguments import quote
from detrand.checkpoints.graph_files import GraphFile
from detrand.checkpoints.pairing import RestoredSession
from detrand.checkpoints.upstream import name_of
from detrand.comparison.structures import flatten
from detrand.comparison.values import leaves_by_path
from detrand.errors import DetrandError, MigrationError
from detrand.packages import tf
from detrand.random_tool import DeterministicRandomTestTool, stream_of
from detrand.seeding.callsite import UNKNOWN, describe_error, site_of_op
from detrand.seeding.streams import RandomOp, Stream
from detrand.validation.batches import Input, describe_batch
from detrand.validation.migration import Migration
from detrand.validation.programs.activations import activation_of, find_activations, inputs_of
from detrand.validation.programs.calibration import calibrated
from detrand.validation.programs.counterparts import (
    Position,
    controlled,
    has_op_seed,
    in_loops,
    positions_in,
    unused_in,
)
from detrand.validation.programs.distinct_weights import Scale, changed, distinct_weights, has_scale, scale_of
from detrand.validation.programs.outcome import (
    ADDED_LOSS,
    Origin,
    Outcome,
    RunConfig,
    numpy_draws_from_now,
    numpy_seeded,
)
from detrand.validation.programs.replicas import INPUT, Replicas, Towers, build_towers, losses_added
from detrand.validation.programs.sample_variances import SampleVariances, as_of_batch
from detrand.validation.programs.update_order import all_run, order_updates
from detrand.variables.reset import reset_variables
from detrand.variables.sources import joined_variables, variables_of
from detrand.variables.tf1_view import TF1View

# Constant weights: the official guide's value, and others for networks whose outputs overflow or vanish with it, and
# would then equal anything.
CONSTANTS = (0.001, 0.01, 0.0001, 0.1, 1e-5, 1e-6)


@contextlib.contextmanager
def tf1_session(
    migration: Migration,
    tool: DeterministicRandomTestTool,
    inputs: tuple[Input, ...],
    use: str,
    graph: tf.Graph | None = None,
) -> Iterator[tf.compat.v1.Session]:
    """Open a session that runs a graph as it was written, both the default ones, in the scope of a tool.

    The graph is a new one by default.

    Grappler is off, because it rounds differently where it folds a batch normalization into the convolution before it.

    Raises:
      MigrationError: if the block raises: with these inputs, the TF1 program cannot be ``"run"`` or ``"trained"``.
    """
    from detrand._patching.graphs import CONTROL_FLOW_V2, EAGER_OUTSIDE_FUNCTIONS, answering_at_once, in_functions_only

    graph = graph or tf.Graph()
    try:
        with (
            Patches() as patches,
            numpy_seeded(migration.numpy_seed),
            tool.scope(),
            graph.as_default(),
            tf.compat.v1.Session(config=config_as_written()) as session,
        ):
            patches.replace(EAGER_OUTSIDE_FUNCTIONS, answering_at_once)
            if isinstance(migration.tf1, GraphFile):
                patches.replace(CONTROL_FLOW_V2, in_functions_only)
            yield session
    except DetrandError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the TF1 program of {migration.name} cannot be {use}: {describe_error(error)}; its inputs are "
            f"{describe_batch(inputs)}"
        ) from error


def ops_of_updates(graph: tf.Graph) -> list[tf.Operation]:
    """Return the ops in a graph's collection ``UPDATE_OPS``, which may hold tensors and variables."""
    return [getattr(each, "op", each) for each in graph.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)]


def _read(output: Any) -> Any:
    """Return an output, or the tensor that reads it if it is a variable."""
    handle = output.handle if isinstance(output, tf.Variable) and hasattr(output, "handle") else None
    if not isinstance(handle, tf.Tensor):
        return output
    return next((op.outputs[0] for op in handle.consumers() if op.type == "ReadVariableOp"), output)


def config_as_written() -> tf.compat.v1.ConfigProto:
    """Return the config of a session that runs its graph as it was written."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


@contextlib.contextmanager
def tf1_program(
    migration: Migration, config: RunConfig, built: TF1Graph | None = None, updates: frozenset[str] | None = None
) -> Iterator[TF1Program]:
    """Build the TF1 program of a migration, or take a graph that `TF1Program.can_run_again`, to be run in a config.

    In training it runs those of its ``UPDATE_OPS`` whose names are given; all of them by default.

    Raises:
      MigrationError: if it cannot be built, or if the block raises.
    """
    batch = migration.first_batch()
    tool = DeterministicRandomTestTool(migration.seed, config.mode)
    with tf1_session(migration, tool, batch, "run", None if built is None else built.graph) as session:
        if built is None:
            built = _built(migration, config, tool, batch, updates)
        else:
            built.take_op_seeds(config.mode)
        session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])
        yield TF1Program(migration, config, session, tool, built)


def _built(
    migration: Migration,
    config: RunConfig,
    tool: DeterministicRandomTestTool,
    batch: tuple[Input, ...],
    run_updates: frozenset[str] | None,
) -> TF1Graph:
    """Build the TF1 program of a migration in the default graph."""
    graph = tf.compat.v1.get_default_graph()
    inputs = tf.nest.map_structure(lambda array: tf.compat.v1.placeholder(array.dtype, array.shape, INPUT), batch)
    draws_numpy = numpy_draws_from_now()
    towers = build_towers(migration, Replicas(migration.name, migration.strategy), inputs, config.training)
    if not any(map(tf.is_tensor, tf.nest.flatten(towers.outputs, expand_composites=True))):
        raise MigrationError(
            f"tf1 of {migration.name} returned {quote(towers.outputs)}, which holds no tensor, so there is "
            "nothing to compare. Return the outputs"
        )
    loss, loss_with_functions = (
        tf.add_n(losses) if losses else None
        for losses in (losses_added(towers), losses_added(towers, of_functions=True))
    )
    computed = *tf.nest.flatten(towers.outputs, expand_composites=True), loss, loss_with_functions
    run = [each for each in computed if tf.is_tensor(each)]
    updates = ops_of_updates(graph)
    if run_updates is not None:
        updates = [op for op in updates if op.name in run_updates]
    if config.training:
        run += updates
    unordered = order_updates(graph, run)
    fetched = tuple(getattr(each, "op", each) for each in run)
    feeds = dict(zip(tf.nest.flatten(inputs), tf.nest.flatten(batch), strict=True))
    view = TF1View(joined_variables("tf1", graph))
    random_ops = tool.random_ops
    stream = stream_of(tool)
    losses = loss, loss_with_functions
    return TF1Graph(graph, feeds, towers, *losses, view, draws_numpy(), unordered, fetched, updates, random_ops, stream)


@dataclass(frozen=True)
class TF1Graph:
    """A TF1 program in a graph.

    The feeds are the migration's inputs by their placeholders, the random ops are those that were added to the graph,
    and their op seeds are from the stream. The rest is as in the `Outcome`, with tensors for arrays.
    """

    graph: tf.Graph
    feeds: dict[Any, np.ndarray]
    towers: Towers
    regularization_loss: Any
    loss_with_functions: Any
    view: TF1View
    draws_numpy: bool
    unordered: tuple[str, ...]
    fetched: tuple[tf.Operation, ...]
    updates: list[tf.Operation]
    random_ops: tuple[RandomOp, ...]
    stream: Stream

    @functools.cached_property
    def _seeded(self) -> dict[int, tf.Operation]:
        """The ops of the graph that draw with an op seed of their own, by that op seed."""
        by_seeds: defaultdict[tuple[int, int], list[tf.Operation]] = defaultdict(list)
        for op in filter(has_op_seed, self.graph.get_operations()):
            by_seeds[op.get_attr("seed"), op.get_attr("seed2")].append(op)
        found = {}
        for random_op in controlled(self.random_ops):
            ops = by_seeds[self.stream.seeds_of(random_op.op_seed or 0)]
            if [op.type for op in ops] == [random_op.op_type]:
                found[random_op.op_seed or 0] = ops[0]
        return found

    def can_run_in(self, mode: str) -> bool:
        """Return whether all random ops are in the graph itself, and can take the op seeds of a mode there.

        Random numbers may also be drawn in a function, or eagerly, while the graph is built.
        """
        in_any_mode = self.stream.mode == "num_random_ops" and len(self._seeded) == len(controlled(self.random_ops))
        return in_any_mode or mode == self.stream.mode

    def take_op_seeds(self, mode: str) -> None:
        """Give the random ops the op seeds of a mode; a session that has run them cannot run them any more."""
        from detrand._patching.graphs import set_integer

        if self.stream.mode == "num_random_ops":
            for op_seed, op in self._seeded.items():
                set_integer(op, "seed2", self.stream.seeds_of(op_seed if mode == self.stream.mode else 0)[1])

    def random_ops_in(self, mode: str) -> tuple[RandomOp, ...]:
        """Return the random ops with the op seeds of a mode."""
        if mode == self.stream.mode:
            return self.random_ops
        return tuple(op if op.op_seed is None else replace(op, op_seed=0) for op in self.random_ops)


@dataclass(frozen=True)
class TF1Program:
    """A TF1 program in a session of its graph, in the scope of a tool; local variables and tables are initialized."""

    migration: Migration
    config: RunConfig
    session: tf.compat.v1.Session
    tool: DeterministicRandomTestTool
    built: TF1Graph

    @property
    def can_run_again(self) -> bool:
        """Whether another session of the graph draws what this one did; not if the program draws while it runs."""
        return not self.built.draws_numpy and self.tool.random_ops in ((), self.built.random_ops)

    def run(self) -> Outcome:
        """Give the variables their values and run the program once, or with constants until one shows enough."""
        graph, distinct = self.session.graph, self.config.weights == "distinct"
        activations = self._activations() if distinct else []
        inputs = {op.name: inputs_of(op) for op in activations if op.graph is graph and graph.is_fetchable(op)}
        updates = self._updates() if distinct and self.config.training else None
        samples = SampleVariances(graph, self._run).fetches if updates is not None else []
        losses = self.built.regularization_loss, self.built.loss_with_functions
        fetches = self.built.towers.outputs, losses, inputs, samples, updates
        tried = []
        for complete in self._complete_configs():
            restored = self.set_variables(complete)
            initialized = complete.weights == "initial"
            before = self._values_of(
                self.built.view.specs if initialized else (scale.name for scale in complete.scales)
            )
            fetched = fetch(self.session, fetches, self.built.feeds)
            compared = fetched[0], fetched[1][0]
            flaws = count_overflowing(compared), count_vanishing(compared)
            changes = {} if initialized else changed(before, self._values_of(before))
            tried.append((flaws, complete, restored, before, changes, fetched))
            if flaws == (0, 0):
                break
        _, config, restored, before, changes, fetched = min(tried, key=lambda run: run[0])
        outputs, (loss, with_functions), measured, variances, _ = fetched
        return Outcome(
            config,
            outputs,
            loss,
            variables_of(self.session.graph),
            self.tool.random_ops or self.built.random_ops_in(self.config.mode),
            positions=self._positions(),
            unused=self._unused(),
            in_loops=tuple(sorted(in_loops(self.session.graph))) if self.migration.strategy is None else (),
            initial=before if config.weights == "initial" else {},
            changed=changes,
            of_batch=as_of_batch(before, changes, variances),
            restored=restored,
            origins=self.origins(),
            lines=self._lines(),
            activations=tuple(activation_of(op, measured.get(op.name)) for op in activations),
            draws_numpy=self.built.draws_numpy,
            unordered=self.built.unordered,
            loss_with_functions=with_functions,
        )

    @functools.cached_property
    def _run(self) -> set[tf.Operation]:
        """All ops that a session executes when it runs the program."""
        return all_run([*self.built.fetched, *(self.built.updates if self.config.training else ())])

    def _positions(self) -> dict[int, Position]:
        """Return the positions of random ops that have op seeds of their own; towers have each op several times."""
        if self.config.mode == "constant" or self.migration.strategy is not None:
            return {}
        names = {
            part.op.name: self.built.view.names_of(position) for position, part in enumerate(self.built.view.parts)
        }
        return positions_in(self.session.graph, names)

    def _unused(self) -> tuple[int, ...]:
        """Return the op seeds of random ops that nothing depends on; of towers, each of which has them, none."""
        if self.config.mode == "constant" or self.migration.strategy is not None:
            return ()
        return tuple(sorted(unused_in(self.session.graph, self.built.fetched)))

    def _activations(self) -> list[tf.Operation]:
        outputs = [leaf for leaf in tf.nest.flatten(self.built.towers.outputs) if isinstance(leaf, tf.Tensor)]
        return find_activations(self.session.graph, outputs, [part.op.name for part in self.built.view.parts])

    def _updates(self) -> tf.Tensor:
        """Return a tensor that waits for the updates of moving averages, which a session runs when it trains."""
        with tf.control_dependencies(self.built.updates):
            return tf.constant(True)

    def after_updates(self, names: Iterable[str]) -> dict[str, tf.Tensor]:
        """Return the elements of each of the variables after one run of the program."""
        run = [
            leaf for leaf in tf.nest.flatten(self.built.towers.outputs, expand_composites=True) if tf.is_tensor(leaf)
        ]
        with tf.control_dependencies([*run, self._updates()] if self.config.training else run):
            return {
                name: tf.concat([tf.reshape(part.read_value(), [-1]) for part in self.built.view.parts_of(name)], 0)
                for name in names
            }

    def set_variables(self, config: RunConfig) -> RestoredSession | None:
        """Give the variables the values of a config, which has the constant or the scales of its weights."""
        from detrand.checkpoints.loading import restore_session

        restored = None
        if config.weights == "constant":
            assert config.constant is not None
            if self.built.view.parts:
                reset_variables(self.session.graph, config.constant, session=self.session)
        elif config.weights == "checkpoint":
            assert self.migration.checkpoint is not None
            path = os.fsdecode(self.migration.checkpoint)
            restored = restore_session(self.session, path, self.migration.name_map)
        else:
            self.session.run(tf.compat.v1.global_variables_initializer())
            self._assign_distinct(config.scales)
        self.built.towers.copy_state(self.session)
        return restored

    def _lines(self) -> dict[str, str]:
        """Return the lines that make the variables and the first added loss, by name, where user code makes them."""
        sites = {name: site_of_op(self.built.view.parts_of(name)[0].op) for name in self.built.view.specs}
        graph, keys = self.session.graph, (tf.compat.v1.GraphKeys.LOSSES, tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES)
        losses = [loss for key in keys for loss in graph.get_collection(key) if isinstance(loss, tf.Tensor)]
        if losses:
            sites[ADDED_LOSS] = site_of_op(losses[0].op)
        return {name: str(site) for name, site in sites.items() if site != UNKNOWN}

    def origins(self) -> dict[str, Origin]:
        """Return where each output comes from in the graph, by the output's path."""
        graph = self.session.graph
        positions = {op.name: position for position, op in enumerate(graph.get_operations())}
        # Made by the user's code; joined outputs are not.
        of_first = {path: _read(leaf) for path, leaf in leaves_by_path(self.built.towers.of_first).items()}
        leaves = {path: _read(leaf) for path, leaf in leaves_by_path(self.built.towers.outputs).items()}
        return {
            path: Origin(positions[of_first[path].op.name], name_of(leaf), str(site_of_op(of_first[path].op)))
            for path, leaf in leaves.items()
            if isinstance(leaf, tf.Tensor) and leaf.graph is graph
        }

    def _complete_configs(self) -> list[RunConfig]:
        """Return the config with the scales of its weights, or with each of the constants that may suit."""
        config = self.config
        if config.weights == "constant" and config.constant is None:
            return [replace(config, constant=constant) for constant in CONSTANTS]
        if config.weights == "distinct" and not config.scales:
            self.session.run(tf.compat.v1.global_variables_initializer())
            names = [name for name, spec in self.built.view.specs.items() if has_scale(spec)]
            scales = {name: scale_of(name, array) for name, array in self._values_of(names).items()}
            holders = {part.op.name: name for name in names for part in self.built.view.parts_of(name)}
            suitable = calibrated(scales, self.session.graph, holders, self._run, self._measure)
            # A second run in training would draw other dropout masks.
            choices = [suitable] if config.training else [suitable, tuple(scales.values())]
            return [replace(config, scales=choice) for choice in choices]
        return [config]

    def _measure(self, scales: tuple[Scale, ...], copy: tf.Graph, scalars: list[tf.Tensor]) -> list[float]:
        """Return what scalars in a copy of the graph are with distinct weights; the variables are initialized."""
        self._assign_distinct(scales)
        v1 = tf.compat.v1
        variables = [*v1.global_variables(), *v1.local_variables()]
        with v1.Session(graph=copy, config=config_as_written()) as session:
            _assign(session, zip(variables, self.session.run(variables), strict=True))
            session.run([op.name for op in v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)])
            return session.run(scalars, {placeholder.name: array for placeholder, array in self.built.feeds.items()})

    def _assign_distinct(self, scales: tuple[Scale, ...]) -> None:
        arrays = self.built.view.to_parts(distinct_weights(scales))
        _assign(self.session, [(self.built.view.parts[position], array) for position, array in arrays.items()])
        self.built.towers.copy_state(self.session)

    def _values_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        positions = {position for name in names for position in self.built.view.positions[name]}
        return self.built.view.from_parts(
            self.session.run({position: self.built.view.parts[position] for position in positions})
        )


def _assign(session: tf.compat.v1.Session, arrays: Iterable[tuple[Any, np.ndarray]]) -> None:
    """Give variables arrays, in a session of their graph or a copy, by feeding their initializers' inputs, in turns."""
    waiting = list(arrays)
    while waiting:
        turn = {variable.initializer.inputs[1].name: (variable, array) for variable, array in waiting}
        feeds = {fed: array for fed, (_, array) in turn.items()}
        session.run([variable.initializer.name for variable, _ in turn.values()], feeds)
        done = {id(variable) for variable, _ in turn.values()}
        waiting = [pair for pair in waiting if id(pair[0]) not in done]


def count_overflowing(values: Any) -> int:
    """Return how many arrays in a structure hold NaN or Inf."""
    return sum(not np.isfinite(array).all() for array in float_arrays(values))


def count_vanishing(values: Any) -> int:
    """Return how many arrays in a structure are so near 0 that an absolute tolerance hides their differences."""
    return sum(bool(np.abs(array).max() < 1e-4) for array in float_arrays(values) if array.any())


def float_arrays(values: Any) -> list[np.ndarray]:
    """Return the arrays of floats in a structure that are not empty."""
    arrays = [leaf for leaf in flatten(values) if isinstance(leaf, (np.ndarray, np.generic))]
    return [np.asarray(array) for array in arrays if array.dtype.kind == "f" and array.size]


def fetch(session: tf.compat.v1.Session, structure: Any, feeds: dict[Any, np.ndarray]) -> Any:
    """Run a session once, and return a structure with arrays for its tensors."""
    leaves = tf.nest.flatten(structure)
    fetched = {i: leaf for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
    values = session.run(fetched, feeds)
    leaves = [values.get(i, leaf) for i, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves)
