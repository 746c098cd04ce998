"""The TF1 program of a migration: built in a graph of its own, run in a session.

`run_tf1` builds and runs it once; in `tf1_program`, it can be looked at before it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.arguments import quote
from detrand.checkpoints.loading import RestoredSession, restore_session
from detrand.comparison.values import leaves_by_path
from detrand.errors import DetrandError, MigrationError
from detrand.random_tool import DeterministicRandomTestTool
from detrand.seeding.callsite import describe_error, site_of_op
from detrand.validation.batches import describe_batch
from detrand.validation.migration import Migration
from detrand.validation.programs.distinct_weights import Scale, changed, distinct_weights, has_scale, scale_of
from detrand.validation.programs.outcome import InitialDraws, Origin, Outcome, RunConfig, checkpoint_of, tool_of
from detrand.validation.programs.replicas import Replicas, Towers, build_towers
from detrand.variables.reset import reset_variables
from detrand.variables.sources import JoinedVariable, joined_variables, variables_of

# Constant weights: the official guide's value, and others for networks whose outputs overflow or vanish with it, and
# would then equal anything.
CONSTANTS = (0.001, 0.01, 0.0001, 0.1, 1e-5, 1e-6)


def run_tf1(migration: Migration, config: RunConfig) -> Outcome:
    """Build the TF1 program in a new graph and run it once in a session.

    Raises:
      MigrationError: if it cannot be built or run.
    """
    with tf1_program(migration, config) as program:
        outcome, _ = program.run()
        return outcome


@contextlib.contextmanager
def tf1_program(migration: Migration, config: RunConfig) -> Iterator[TF1Program]:
    """Build the TF1 program of a migration in a new graph, to be run in a config.

    Raises:
      MigrationError: if it cannot be built, or if the block raises.
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
                    f"tf1 of {migration.name} returned {quote(towers.outputs)}, which holds no tensor, so there is "
                    "nothing to compare. Return the outputs"
                )
            losses = tf.compat.v1.losses.get_regularization_losses()
            loss = tf.add_n(losses) if losses else None
            session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])
            feeds = dict(zip(tf.nest.flatten(inputs), tf.nest.flatten(batch), strict=True))
            yield TF1Program(migration, config, session, tool, feeds, towers, loss, initial_draws)
    except DetrandError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the TF1 program of {migration.name} cannot be run: {describe_error(error)}; its inputs are "
            f"{describe_batch(batch)}"
        ) from error


@dataclass(frozen=True)
class TF1Program:
    """A TF1 program in the graph of a session; local variables and tables are initialized.

    Attributes:
      migration: the migration.
      config: how to run the program.
      session: the session.
      tool: the program is built in its scope.
      feeds: the migration's inputs, by their placeholders.
      towers: the program and its outputs.
      regularization_loss: the sum of its regularization losses; None if it has none.
      initial_draws: the op seeds of its variables.
    """

    migration: Migration
    config: RunConfig
    session: tf.compat.v1.Session
    tool: DeterministicRandomTestTool
    feeds: dict[Any, np.ndarray]
    towers: Towers
    regularization_loss: Any
    initial_draws: InitialDraws

    def run(self, inner: Mapping[str, tf.Tensor] | None = None) -> tuple[Outcome, dict[str, np.ndarray]]:
        """Give the variables their values and run the program once.

        Args:
          inner: other tensors of the graph, by name.

        Returns:
          The outcome, and the arrays of the other tensors.
        """
        fetches = self.towers.outputs, self.regularization_loss, dict(inner or {})
        origins = _origins(self.session.graph, self.towers)
        config, restored, changed_weights = self.config, None, {}
        if config.weights == "distinct" and not config.scales:
            config = replace(config, scales=self._scales())
        if config.weights == "constant":
            constant, fetched = self._run_with_constants(fetches)
            config = replace(config, constant=constant)
        else:
            restored = self._set_variables(config)
            fetched = fetch(self.session, fetches, self.feeds)
        if config.weights == "distinct":
            before = self._distinct_weights(config)
            changed_weights = changed(before, self._values_of(before))
        outputs, loss, inner_values = fetched
        outcome = Outcome(
            config,
            outputs,
            loss,
            variables_of(self.session.graph),
            self.tool.random_ops,
            initialized=self.initial_draws.by_variable(self._variables()),
            changed=changed_weights,
            restored=restored,
            origins=origins,
        )
        return outcome, inner_values

    def set_variables(self) -> None:
        """Give the variables their values; the config has the constant or the scales of its weights."""
        self._set_variables(self.config)

    def _set_variables(self, config: RunConfig) -> RestoredSession | None:
        if config.weights == "constant":
            assert config.constant is not None
            self._set_constant(config.constant)
            return None
        if config.weights == "checkpoint":
            restored = restore_session(self.session, checkpoint_of(self.migration), self.migration.name_map)
        else:
            restored = None
            self.session.run(tf.compat.v1.global_variables_initializer())
            if config.weights == "distinct":
                self._assign(self._distinct_weights(config))
        self.towers.copy_state(self.session)
        return restored

    def _run_with_constants(self, fetches: Any) -> tuple[float, Any]:
        """Run the program with each of `CONSTANTS` until one shows something in every output; return the best."""
        tried: dict[float, tuple[tuple[int, int], Any]] = {}
        for constant in CONSTANTS if self.config.constant is None else (self.config.constant,):
            self._set_constant(constant)
            fetched = fetch(self.session, fetches, self.feeds)
            flaws = count_overflowing(fetched), count_vanishing(fetched)
            tried[constant] = flaws, fetched
            if flaws == (0, 0):
                break
        best = min(tried, key=lambda constant: tried[constant][0])
        return best, tried[best][1]

    def _set_constant(self, constant: float) -> None:
        if variables_of(self.session.graph):
            reset_variables(self.session.graph, constant, session=self.session)
        self.towers.copy_state(self.session)

    def _scales(self) -> tuple[Scale, ...]:
        """Return the scales of the initial values of the variables."""
        self.session.run(tf.compat.v1.global_variables_initializer())
        names = [name for name, variable in self._variables().items() if has_scale(variable)]
        return tuple(scale_of(name, array) for name, array in self._values_of(names).items())

    def _values_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        variables = self._variables()
        values = self.session.run({name: variables[name].parts for name in names})
        return {name: variables[name].joined(parts) for name, parts in values.items()}

    def _variables(self) -> dict[str, JoinedVariable]:
        return joined_variables("tf1", self.session.graph)

    def _distinct_weights(self, config: RunConfig) -> dict[str, np.ndarray]:
        return distinct_weights(config.scales, self._variables())

    def _assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Give variables values by feeding their initializers' inputs; variables that share an input take turns."""
        variables = self._variables()
        waiting = [
            pair
            for name, array in arrays.items()
            for pair in zip(variables[name].parts, variables[name].cut(array), strict=True)
        ]
        while waiting:
            feeds: dict[str, np.ndarray] = {}
            initializers, later = [], []
            for variable, array in waiting:
                fed = variable.initializer.inputs[1].name
                if fed in feeds:
                    later.append((variable, array))
                else:
                    feeds[fed] = array
                    initializers.append(variable.initializer)
            self.session.run(initializers, feeds)
            waiting = later


def _origins(graph: tf.Graph, towers: Towers) -> dict[str, Origin]:
    positions = {op.name: position for position, op in enumerate(graph.get_operations())}
    of_first = leaves_by_path(towers.of_first)  # made by the user's code; joined outputs are not
    return {
        path: Origin(positions[of_first[path].op.name], leaf.op.name, str(site_of_op(of_first[path].op)))
        for path, leaf in leaves_by_path(towers.outputs).items()
        if isinstance(leaf, tf.Tensor) and leaf.graph is graph
    }


@contextlib.contextmanager
def session_as_written() -> Iterator[tf.compat.v1.Session]:
    """Open a session in a new graph, both the default ones, that runs the graph as it was written.

    Grappler is off, because it rounds differently where it folds a batch normalization into the convolution before it.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        yield session


def count_overflowing(values: Any) -> int:
    """Return how many arrays in a structure hold NaN or Inf."""
    return sum(not np.isfinite(array).all() for array in float_arrays(values))


def count_vanishing(values: Any) -> int:
    """Return how many arrays in a structure are so near 0 that an absolute tolerance hides their differences."""
    return sum(bool(np.abs(array).max() < 1e-4) for array in float_arrays(values) if array.any())


def float_arrays(values: Any) -> list[np.ndarray]:
    """Return the arrays of floats in a structure that are not empty."""
    arrays = [leaf for leaf in tf.nest.flatten(values) if isinstance(leaf, (np.ndarray, np.generic))]
    return [np.asarray(array) for array in arrays if array.dtype.kind == "f" and array.size]


def fetch(session: tf.compat.v1.Session, structure: Any, feeds: dict[Any, np.ndarray]) -> Any:
    """Run a session once, and return a structure with arrays for its tensors."""
    leaves = tf.nest.flatten(structure)
    fetched = {i: leaf for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
    values = session.run(fetched, feeds)
    leaves = [values.get(i, leaf) for i, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves)
