"""Runs the TF1 program of a migration: built in a graph of its own, run in a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.arguments import quote
from detrand.checkpoints.loading import RestoredSession, restore_session
from detrand.comparison.values import leaves_by_path
from detrand.errors import DetrandError, MigrationError
from detrand.random_tool import DeterministicRandomTestTool
from detrand.seeding import callsite
from detrand.seeding.callsite import describe_error
from detrand.validation.batches import describe_batch
from detrand.validation.migration import Migration
from detrand.validation.programs.distinct_weights import Scale, changed, distinct_weights, has_scale, scale_of
from detrand.validation.programs.outcome import InitialDraws, Origin, Outcome, RunConfig, checkpoint_of, tool_of
from detrand.validation.programs.replicas import Replicas, Towers, build_towers
from detrand.variables.partitioned import JoinedVariable, joined_variables
from detrand.variables.reset import reset_variables
from detrand.variables.sources import variables_of

# What all variables are set to: the official guide's value, and others for networks whose outputs overflow
# or vanish with it, and would then equal anything.
CONSTANTS = (0.001, 0.01, 0.0001, 0.1, 1e-5, 1e-6)


def run_tf1(
    migration: Migration, config: RunConfig, watch: Callable[[tf.Graph], dict[str, tf.Tensor]] = lambda graph: {}
) -> Outcome:
    """Builds the TF1 program in a new graph and runs it once in a session.

    Args:
      migration: the migration.
      config: how to run it.
      watch: picks tensors of the graph that are computed in the same run.

    Raises:
      MigrationError: if it cannot be built or run.
    """
    with tf1_program(migration, config) as program:
        session, graph = program.session, program.session.graph
        fetches = program.towers.outputs, program.regularization_loss, watch(graph)
        origins = _origins(graph, program.towers)
        restored = None
        if config.distinct_weights and not config.scales:
            config = replace(config, scales=program.scales())
        if config.mode is None and not config.from_checkpoint and not config.distinct_weights:
            config, fetched = _run_with_constants(program, config, fetches)
        else:
            restored = program.set_variables(migration, config)
            fetched = fetch(session, fetches, program.feeds)
        outputs, loss, inner = fetched
        return Outcome(
            config,
            outputs,
            loss,
            variables_of(graph),
            program.tool.random_ops,
            changed=program.changed(config) if config.distinct_weights else {},
            initialized=program.initial_draws.by_variable(joined_variables("tf1", graph)),
            restored=restored,
            origins=origins,
            inner=inner,
        )


@dataclass(frozen=True)
class TF1Program:
    """A TF1 program in the graph of a session; local variables and tables are initialized.

    Attributes:
      session: the session.
      tool: whose scope it is built in.
      feeds: the migration's inputs, by their placeholders.
      towers: what the program is, and what it returns.
      regularization_loss: the sum of its regularization losses; None if it has none.
      initial_draws: which op seeds its variables took.
    """

    session: tf.compat.v1.Session
    tool: DeterministicRandomTestTool
    feeds: dict[Any, np.ndarray]
    towers: Towers
    regularization_loss: Any
    initial_draws: InitialDraws

    def set_variables(self, migration: Migration, config: RunConfig) -> RestoredSession | None:
        """Gives the variables the values that a config says; returns what comes from a checkpoint, if it does."""
        restored = None
        if config.from_checkpoint:
            restored = restore_session(self.session, checkpoint_of(migration), migration.name_map)
        elif config.distinct_weights:
            self.session.run(tf.compat.v1.global_variables_initializer())
            self._assign(self._distinct_weights(config))
        elif config.mode is None:
            assert config.constant is not None
            self.reset_variables(config.constant)
        else:
            self.session.run(tf.compat.v1.global_variables_initializer())
        self.towers.copy_state(self.session)
        return restored

    def scales(self) -> tuple[Scale, ...]:
        """Returns how the initial values of the variables are distributed."""
        self.session.run(tf.compat.v1.global_variables_initializer())
        names = [name for name, variable in self._variables().items() if has_scale(variable)]
        return tuple(scale_of(name, array) for name, array in self._values_of(names).items())

    def changed(self, config: RunConfig) -> dict[str, np.ndarray]:
        """Returns the variables that do not have the weights of their own any more, by name."""
        before = self._distinct_weights(config)
        return changed(before, self._values_of(before))

    def _values_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        variables = self._variables()
        values = self.session.run({name: variables[name].parts for name in names})
        return {name: variables[name].joined(of_parts) for name, of_parts in values.items()}

    def _variables(self) -> dict[str, JoinedVariable]:
        return joined_variables("tf1", self.session.graph)

    def _distinct_weights(self, config: RunConfig) -> dict[str, np.ndarray]:
        return distinct_weights(config.scales, self._variables())

    def _assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives variables other values: an initializer assigns its input, which variables may have in common."""
        variables = self._variables()
        assigned = [
            pair
            for name, array in arrays.items()
            for pair in zip(variables[name].parts, variables[name].cut(array), strict=True)
        ]
        while assigned:
            feeds: dict[str, np.ndarray] = {}
            chosen, later = [], []
            for variable, array in assigned:
                fed = variable.initializer.inputs[1].name
                if fed in feeds:
                    later.append((variable, array))
                else:
                    feeds[fed] = array
                    chosen.append(variable.initializer)
            self.session.run(chosen, feeds)
            assigned = later

    def reset_variables(self, constant: float) -> None:
        """Sets all variables to one value, if there are any."""
        if variables_of(self.session.graph):
            reset_variables(self.session.graph, constant, session=self.session)
            self.towers.copy_state(self.session)


@contextlib.contextmanager
def tf1_program(migration: Migration, config: RunConfig) -> Iterator[TF1Program]:
    """Builds the TF1 program of a migration in a new graph.

    Raises:
      MigrationError: if it cannot be built, or if what is done with it in the block raises.
    """
    batch = migration.first_batch()
    replicas = Replicas(migration.name, migration.strategy)
    tool = tool_of(migration, replace(config, op_seeds=()))
    try:
        with tool.scope(), session_as_written() as session:
            inputs = tf.nest.map_structure(lambda array: tf.compat.v1.placeholder(array.dtype, array.shape), batch)
            with InitialDraws(tool).watched() as initial_draws:
                towers = build_towers(migration, replicas, inputs, config.training)
            if not any(map(tf.is_tensor, tf.nest.flatten(towers.outputs, expand_composites=True))):
                raise MigrationError(
                    f"tf1 of {migration.name} returned {quote(towers.outputs)}, which holds no tensor: there is "
                    "nothing to compare; return the outputs"
                )
            losses = tf.compat.v1.losses.get_regularization_losses()
            loss = tf.add_n(losses) if losses else None
            session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])
            feeds = dict(zip(tf.nest.flatten(inputs), tf.nest.flatten(batch), strict=True))
            yield TF1Program(session, tool, feeds, towers, loss, initial_draws)
    except DetrandError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the TF1 program of {migration.name} cannot be run: {describe_error(error)}; its inputs are "
            f"{describe_batch(batch)}"
        ) from error


def _origins(graph: tf.Graph, towers: Towers) -> dict[str, Origin]:
    positions = {op.name: position for position, op in enumerate(graph.get_operations())}
    of_first = leaves_by_path(towers.of_first)  # the user's code has made these, and not what joins towers
    return {
        path: Origin(positions[of_first[path].op.name], leaf.op.name, caller_of(of_first[path].op))
        for path, leaf in leaves_by_path(towers.outputs).items()
        if isinstance(leaf, tf.Tensor) and leaf.graph is graph
    }


def caller_of(op: tf.Operation) -> str:
    """Returns ``file:line`` of the user's code that added an op to a graph."""
    for frame in reversed(list(op.traceback or ())):
        if not callsite.is_framework(frame.filename):
            return str(callsite.site(frame.filename, frame.lineno))
    return str(callsite.UNKNOWN)


@contextlib.contextmanager
def session_as_written() -> Iterator[tf.compat.v1.Session]:
    """Opens a session in a new graph, both the default ones, that runs the graph as it was written.

    TensorFlow's rewriting of graphs is off: it folds a batch normalization into the convolution before it, say, and
    then rounds otherwise.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        yield session


def _run_with_constants(program: TF1Program, config: RunConfig, fetches: Any) -> tuple[RunConfig, Any]:
    """Runs the program with each value of `CONSTANTS` until one shows something in every output."""
    found: dict[float, tuple[tuple[int, int], Any]] = {}
    for constant in CONSTANTS if config.constant is None else (config.constant,):
        program.reset_variables(constant)
        fetched = fetch(program.session, fetches, program.feeds)
        flaws = count_overflowing(fetched), count_vanishing(fetched)
        found[constant] = flaws, fetched
        if flaws == (0, 0):
            break
    best = min(found, key=lambda constant: found[constant][0])
    return replace(config, constant=best), found[best][1]


def count_overflowing(values: Any) -> int:
    """Returns how many of the arrays in a structure hold NaN or Inf."""
    return sum(not np.isfinite(array).all() for array in float_arrays(values))


def count_vanishing(values: Any) -> int:
    """Returns how many of the arrays in a structure are so near 0 that an absolute tolerance hides what they hold."""
    return sum(bool(np.abs(array).max() < 1e-4) for array in float_arrays(values) if array.any())


def float_arrays(values: Any) -> list[np.ndarray]:
    """Returns the arrays of floats in a structure that are not empty."""
    arrays = [leaf for leaf in tf.nest.flatten(values) if isinstance(leaf, (np.ndarray, np.generic))]
    return [np.asarray(array) for array in arrays if array.dtype.kind == "f" and array.size]


def fetch(session: tf.compat.v1.Session, structure: Any, feeds: dict[Any, np.ndarray]) -> Any:
    """Runs a session once for the tensors in a structure; whatever else is in it stays as it is."""
    leaves = tf.nest.flatten(structure)
    fetched = {i: leaf for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
    values = session.run(fetched, feeds)
    leaves = [values.get(i, leaf) for i, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves)
