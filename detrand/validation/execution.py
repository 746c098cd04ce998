"""Runs both programs of a migration in the same way, so that what they compute can be compared.

The TF1 program is built in a graph of its own and run in a session; the port is called eagerly. Either runs in
the scope of a new `DeterministicRandomTestTool`; its variables are initialized, or all set to one value, or come from
a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand import _patching, callsite
from detrand.arguments import quote
from detrand.checkpoints.loading import RestoredSession, load_tf1_checkpoint, restore_session
from detrand.comparison.values import leaves_by_path
from detrand.errors import DetrandError, MigrationError
from detrand.random_tool import DeterministicRandomTestTool, draw_in_float32, tool_with_op_seeds
from detrand.seeding.streams import RandomOp
from detrand.validation.batches import describe_batch
from detrand.validation.migration import Migration, describe_error
from detrand.validation.own_variables import check_new, variables_source
from detrand.validation.precision import dtype_policy
from detrand.validation.replicas import Replicas
from detrand.validation.towers import Towers, build_towers
from detrand.variables.reset import reset_variables
from detrand.variables.sources import VariableSpec, variables_of

# What all variables are set to: the official guide's value, and others for networks whose outputs overflow
# or vanish with it, and would then equal anything.
CONSTANTS = (0.001, 0.01, 0.0001, 0.1, 1e-5, 1e-6)


@dataclass(frozen=True)
class Setting:
    """How a program is run.

    Attributes:
      training: passed to the program.
      mode: of the `DeterministicRandomTestTool`; None sets all variables to one value instead of initializing
        them.
      constant: that value; None lets the TF1 program find one of `CONSTANTS` that serves.
      from_checkpoint: whether variables come from the migration's checkpoint instead.
      op_seeds: what the port's random ops take, one after the other, where they come in another order than TF1's.
    """

    training: bool
    mode: str | None
    constant: float | None = None
    from_checkpoint: bool = False
    op_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a program computed.

    Attributes:
      setting: how it was run; with mode None, ``constant`` is the value that was used.
      outputs: what it returned, with arrays for tensors.
      regularization_loss: the sum of its regularization losses; None if it has none.
      variables: its variables, by name.
      random_ops: the random ops that it ran.
      keeps_losses: whether it is of a kind that has losses: a ``tf.Module`` or a function is not.
      restored: what of the checkpoint the TF1 program has; None if its variables do not come from one.
      origins: where each of the outputs comes from in the TF1 graph, by the path that `compare` calls it by.
      inner: what was asked for of the tensors in between, by their names.
    """

    setting: Setting
    outputs: Any
    regularization_loss: np.ndarray | None
    variables: dict[str, VariableSpec]
    random_ops: tuple[RandomOp, ...]
    keeps_losses: bool = True
    restored: RestoredSession | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    inner: dict[str, np.ndarray] = field(default_factory=dict)


class Origin(NamedTuple):
    """Where a tensor comes from.

    Attributes:
      position: of its op among those of the graph, in the order in which they were added.
      name: name of its op.
      caller: ``file:line`` of the user's code that added it.
    """

    position: int
    name: str
    caller: str


def run_tf1(
    migration: Migration, setting: Setting, watch: Callable[[tf.Graph], dict[str, tf.Tensor]] = lambda graph: {}
) -> Outcome:
    """Builds the TF1 program in a new graph and runs it once in a session.

    Args:
      migration: the migration.
      setting: how to run it.
      watch: picks tensors of the graph that are computed in the same run.

    Raises:
      MigrationError: if it cannot be built or run.
    """
    with tf1_program(migration, setting) as program:
        session, graph = program.session, program.session.graph
        fetches = program.towers.outputs, program.regularization_loss, watch(graph)
        origins = _origins(graph, program.towers)
        restored = None
        if setting.mode is None and not setting.from_checkpoint:
            setting, fetched = _run_with_constants(program, setting, fetches)
        else:
            restored = program.set_variables(migration, setting)
            fetched = fetch(session, fetches, program.feeds)
        outputs, loss, inner = fetched
        return Outcome(
            setting,
            outputs,
            loss,
            variables_of(graph),
            program.tool.random_ops,
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
    """

    session: tf.compat.v1.Session
    tool: DeterministicRandomTestTool
    feeds: dict[Any, np.ndarray]
    towers: Towers
    regularization_loss: Any

    def set_variables(self, migration: Migration, setting: Setting) -> RestoredSession | None:
        """Gives the variables the values that a setting says; returns what comes from a checkpoint, if it does."""
        restored = None
        if setting.from_checkpoint:
            restored = restore_session(self.session, checkpoint_of(migration), migration.name_map)
        elif setting.mode is None:
            assert setting.constant is not None
            self.reset_variables(setting.constant)
        else:
            self.session.run(tf.compat.v1.global_variables_initializer())
        self.towers.copy_state(self.session)
        return restored

    def reset_variables(self, constant: float) -> None:
        """Sets all variables to one value, if there are any."""
        if variables_of(self.session.graph):
            reset_variables(self.session.graph, constant, session=self.session)
            self.towers.copy_state(self.session)


@contextlib.contextmanager
def tf1_program(migration: Migration, setting: Setting) -> Iterator[TF1Program]:
    """Builds the TF1 program of a migration in a new graph.

    Raises:
      MigrationError: if it cannot be built, or if what is done with it in the block raises.
    """
    batch = migration.first_batch()
    replicas = Replicas(migration.name, migration.strategy)
    tool = tool_of(migration, replace(setting, op_seeds=()))
    try:
        with tool.scope(), session_as_written() as session:
            inputs = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in batch]
            towers = build_towers(migration, replicas, inputs, setting.training)
            if not any(map(tf.is_tensor, tf.nest.flatten(towers.outputs, expand_composites=True))):
                raise MigrationError(
                    f"tf1 of {migration.name} returned {quote(towers.outputs)}, which holds no tensor: there is "
                    "nothing to compare; return the outputs"
                )
            losses = tf.compat.v1.losses.get_regularization_losses()
            loss = tf.add_n(losses) if losses else None
            session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])
            yield TF1Program(session, tool, dict(zip(inputs, batch, strict=True)), towers, loss)
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


@contextlib.contextmanager
def functions_as_written() -> Iterator[None]:
    """Lets functions that are called in the block run as they were written, as `session_as_written` lets graphs."""
    options = tf.config.optimizer
    before = options.get_experimental_options()["disable_meta_optimizer"]
    options.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        options.set_experimental_options({"disable_meta_optimizer": before})


def checkpoint_of(migration: Migration) -> str:
    """Returns the path of the checkpoint of a migration that has one."""
    assert migration.checkpoint is not None
    return os.fsdecode(migration.checkpoint)


def tool_of(migration: Migration, setting: Setting) -> DeterministicRandomTestTool:
    """Returns a new tool for a program that runs in a setting."""
    if setting.op_seeds:
        return tool_with_op_seeds(migration.seed, setting.op_seeds)
    return DeterministicRandomTestTool(migration.seed, setting.mode or "constant")


@contextlib.contextmanager
def port_scope(migration: Migration, setting: Setting) -> Iterator[DeterministicRandomTestTool]:
    """Opens what a port is made and run in: the scope of a new tool, and the migration's dtype policy."""
    tool = tool_of(migration, setting)
    if migration.dtype_policy is not None:
        draw_in_float32(tool)
    with dtype_policy(migration.dtype_policy), tool.scope():
        yield tool


def _run_with_constants(program: TF1Program, setting: Setting, fetches: Any) -> tuple[Setting, Any]:
    """Runs the program with each value of `CONSTANTS` until one shows something in every output."""
    found: dict[float, tuple[tuple[int, int], Any]] = {}
    for constant in CONSTANTS if setting.constant is None else (setting.constant,):
        program.reset_variables(constant)
        fetched = fetch(program.session, fetches, program.feeds)
        flaws = count_overflowing(fetched), count_vanishing(fetched)
        found[constant] = flaws, fetched
        if flaws == (0, 0):
            break
    best = min(found, key=lambda constant: found[constant][0])
    return replace(setting, constant=best), found[best][1]


def count_overflowing(values: Any) -> int:
    """Returns how many of the arrays in a structure hold NaN or Inf."""
    return sum(not np.isfinite(array).all() for array in _float_arrays(values))


def count_vanishing(values: Any) -> int:
    """Returns how many of the arrays in a structure are so near 0 that an absolute tolerance hides what they hold."""
    return sum(bool(np.abs(array).max() < 1e-4) for array in _float_arrays(values) if array.any())


def _float_arrays(values: Any) -> list[np.ndarray]:
    arrays = [leaf for leaf in tf.nest.flatten(values) if isinstance(leaf, (np.ndarray, np.generic))]
    return [np.asarray(array) for array in arrays if array.dtype.kind == "f" and array.size]


def fetch(session: tf.compat.v1.Session, structure: Any, feeds: dict[Any, np.ndarray]) -> Any:
    """Runs a session once for the tensors in a structure; whatever else is in it stays as it is."""
    leaves = tf.nest.flatten(structure)
    fetched = {i: leaf for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
    values = session.run(fetched, feeds)
    leaves = [values.get(i, leaf) for i, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves)


class Port:
    """A port, made by the migration's factory, and called as its program is.

    Attributes:
      model: what the factory returned.
      variables: what `variables_of` finds its variables in.
      replicas: those that it runs on.

    Raises:
      MigrationError: if the factory raises, or returns something that cannot be called or is not new.
    """

    def __init__(self, migration: Migration):
        self._migration = migration
        self._batch = tuple(tf.constant(array) for array in migration.first_batch())
        self.replicas = Replicas(migration.name, migration.strategy)
        self._losses: list[Any] = []
        try:
            # A port has the same names whenever it is made.
            with _patching.layer_names_counted_anew(), self.replicas.scope():
                self.model: Any = migration.tf2()
        except Exception as error:
            raise MigrationError(f"tf2 of {migration.name} cannot make the port: {describe_error(error)}") from error
        if not callable(self.model):
            raise MigrationError(
                f"tf2 of {migration.name} returned {self.model!r} of type {type(self.model).__name__}, which cannot be "
                "called; return a layer, a model or a function"
            )
        check_new(migration.name, self.model)
        self.variables = variables_source(self.model)

    def __call__(self, training: bool) -> Any:
        """Calls the port on the migration's inputs, on each replica with its part of them."""
        outputs, self._losses = self._called(*self._batch, training=training)
        return outputs

    def _called(self, *batch: Any, training: bool) -> tuple[Any, list[Any]]:
        """Returns what the port has returned, and the regularization loss of each replica."""
        results = self.replicas.run(lambda *part: (self.model(*part, training=training), self._own_losses()), *batch)
        return self.replicas.joined([outputs for outputs, _ in results]), [loss for _, loss in results]

    def _own_losses(self) -> Any:
        losses = list(getattr(self.model, "losses", ()))
        return tf.add_n(losses) if losses else None

    def in_function(self, training: bool, look: Callable[[Any], Any] = lambda outputs: outputs) -> Any:
        """Calls the port on the migration's inputs in a ``tf.function``, to which they are arguments.

        Args:
          training: passed to the port.
          look: takes the port's outputs where the function is traced; returns what the function is to return.
        """
        # In the threads of replicas, AutoGraph does not tell which line of the user's it has rewritten.
        converts = self.replicas.count == 1
        return tf.function(lambda *batch: look(self._called(*batch, training=training)[0]), autograph=converts)(
            *self._batch
        )

    def graph(self, training: bool, look: Callable[[Any], Any] = lambda outputs: outputs) -> tf.Graph:
        """Returns the graph that calling the port adds to a ``tf.function``; it is not run. Arguments as above."""
        function = tf.function(lambda *batch: look(self.model(*batch, training=training)))
        return function.get_concrete_function(*self._batch).graph

    def reset(self, constant: float) -> None:
        """Sets all variables to one value, if there are any."""
        if variables_of(self.variables):
            reset_variables(self.variables, constant)

    def load(self, path: str, names: Mapping[str, str | None]) -> None:
        """Loads from a checkpoint what has a name in the port."""
        load_tf1_checkpoint(self.variables, path, names.get)

    def outcome(self, setting: Setting, outputs: Any, tool: DeterministicRandomTestTool) -> Outcome:
        """Returns what the port has computed, and what it consists of now."""
        losses = self._losses or [self._own_losses()]
        return Outcome(
            setting,
            tf.nest.map_structure(_as_array, outputs),
            None if losses[0] is None else (tf.add_n(losses) / len(losses)).numpy(),
            variables_of(self.variables),
            tool.random_ops,
            keeps_losses=hasattr(self.model, "losses"),
        )


def _as_array(leaf: Any) -> Any:
    return leaf.numpy() if tf.is_tensor(leaf) and hasattr(leaf, "numpy") else leaf


def run_port(migration: Migration, setting: Setting) -> Outcome:
    """Makes a new port and runs it once, as `run_tf1` runs the TF1 program."""
    with port_scope(migration, setting) as tool:
        port = Port(migration)
        outputs = port(setting.training)
        if setting.constant is not None:
            port.reset(setting.constant)
            outputs = port(setting.training)
        return port.outcome(setting, outputs, tool)


def run_port_from_checkpoint(migration: Migration, tf1: Outcome) -> Outcome:
    """Makes a new port and runs it with the weights that the TF1 program had.

    Raises:
      CheckpointError: if the port has other variables.
    """
    assert tf1.restored is not None
    with port_scope(migration, tf1.setting) as tool:
        port = Port(migration)
        port(tf1.setting.training)
        port.load(checkpoint_of(migration), tf1.restored.port_names)
        return port.outcome(tf1.setting, port(tf1.setting.training), tool)


def run_port_in_functional_model(migration: Migration, setting: Setting) -> Outcome | None:
    """Runs a new port inside a Keras functional model.

    Returns:
      What it computed, or None if the port is no layer, which alone can be part of such a model.
    """
    with port_scope(migration, setting) as tool:
        port = Port(migration)
        keras = _keras_of(port.model)
        if keras is None:
            return None
        batch = migration.first_batch()
        inputs = [keras.Input(batch_shape=array.shape, dtype=tf.as_dtype(array.dtype).name) for array in batch]
        model = keras.Model(inputs, port.model(*inputs))
        outputs = model([tf.constant(array) for array in batch], training=setting.training)
        return port.outcome(setting, outputs, tool)


def _keras_of(model: Any) -> Any:
    for package, name in (("keras", "Layer"), ("tf_keras", "layers.Layer")):
        if _patching.is_instance_of_loaded(model, package, name):
            return __import__(package)
    return None


def cached(run: Callable[[Migration, Setting], Outcome]) -> Callable[[Migration, Setting], Outcome]:
    """Lets several checks share one run of a program."""
    outcomes: dict[Setting, Outcome] = {}

    def run_once(migration: Migration, setting: Setting) -> Outcome:
        if setting not in outcomes:
            outcomes[setting] = run(migration, setting)
        return outcomes[setting]

    return run_once
