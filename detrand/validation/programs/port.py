"""Runs the port of a migration: made by the factory, called eagerly, in a ``tf.function`` or in a functional model."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.keras import is_instance_of_loaded, layer_names_counted_anew
from detrand.checkpoints.loading import load_tf1_checkpoint
from detrand.errors import MigrationError
from detrand.random_tool import DeterministicRandomTestTool, make_keras_draw_float32
from detrand.seeding.callsite import describe_error
from detrand.validation.migration import Migration
from detrand.validation.precision import dtype_policy
from detrand.validation.programs.distinct_weights import changed, distinct_weights
from detrand.validation.programs.outcome import InitialDraws, Outcome, RunConfig, checkpoint_of, tool_of
from detrand.validation.programs.replicas import Replicas, in_own_containers
from detrand.variables.partitioned import JoinedVariable, joined_variables
from detrand.variables.reset import reset_variables
from detrand.variables.sources import is_layer_or_module, named_variables, parts_of, variables_of


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


@contextlib.contextmanager
def port_scope(migration: Migration, config: RunConfig) -> Iterator[DeterministicRandomTestTool]:
    """Opens what a port is made and run in: the scope of a new tool, and the migration's dtype policy."""
    tool = tool_of(migration, config)
    if migration.dtype_policy is not None:
        make_keras_draw_float32(tool)
    with dtype_policy(migration.dtype_policy), tool.scope():
        yield tool


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
        self._batch = tf.nest.map_structure(tf.constant, migration.first_batch())
        self.replicas = Replicas(migration.name, migration.strategy)
        self._losses: list[Any] = []
        try:
            # A port has the same names whenever it is made.
            with layer_names_counted_anew(), self.replicas.scope():
                self.model: Any = migration.port()
        except Exception as error:
            raise MigrationError(f"port of {migration.name} cannot make the port: {describe_error(error)}") from error
        if not callable(self.model):
            raise MigrationError(
                f"port of {migration.name} returned {self.model!r} of type {type(self.model).__name__}, which cannot "
                "be called; return a layer, a model or a function"
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
        function = tf.function(lambda *batch: look(self.model(*in_own_containers(batch), training=training)))
        return function.get_concrete_function(*self._batch).graph

    def reset(self, config: RunConfig) -> bool:
        """Gives the variables the values that a config says, if there are any; returns whether it says some."""
        if config.constant is not None and variables_of(self.variables):
            reset_variables(self.variables, config.constant)
        if config.distinct_weights:
            variables = self._by_tf1_names(config)
            for name, array in distinct_weights(config.scales, variables).items():
                for part, piece in zip(variables[name].parts, variables[name].cut(array), strict=True):
                    part.assign(piece)
        return config.mode is None

    def _by_tf1_names(self, config: RunConfig) -> dict[str, JoinedVariable]:
        tf1_names = self._migration.tf1_names(name for name, _, _ in config.scales)
        variables = joined_variables("port", self.variables)
        return {tf1_names[name]: variable for name, variable in variables.items() if name in tf1_names}

    def _changed(self, config: RunConfig) -> dict[str, np.ndarray]:
        """Returns the variables that do not have the weights of their own any more, by their TF1 names."""
        variables = self._by_tf1_names(config)
        before = distinct_weights(config.scales, variables)
        joined = {name: variables[name].joined([part.numpy() for part in variables[name].parts]) for name in before}
        return changed(before, joined)

    def load(self, path: str, names: Mapping[str, str | None]) -> None:
        """Loads from a checkpoint what has a name in the port."""
        load_tf1_checkpoint(self.variables, path, names.get)

    def outcome(
        self, config: RunConfig, outputs: Any, tool: DeterministicRandomTestTool, draws: InitialDraws | None = None
    ) -> Outcome:
        """Returns what the port has computed, and what it consists of now."""
        losses = self._losses or [self._own_losses()]
        return Outcome(
            config,
            tf.nest.map_structure(_as_array, outputs),
            None if losses[0] is None else (tf.add_n(losses) / len(losses)).numpy(),
            variables_of(self.variables),
            tool.random_ops,
            {} if draws is None else draws.by_variable(joined_variables("port", self.variables)),
            changed=self._changed(config) if config.distinct_weights else {},
            keeps_losses=hasattr(self.model, "losses"),
        )


def _as_array(leaf: Any) -> Any:
    return leaf.numpy() if tf.is_tensor(leaf) and hasattr(leaf, "numpy") else leaf


def run_port(migration: Migration, config: RunConfig) -> Outcome:
    """Makes a new port and runs it once, as `run_tf1` runs the TF1 program."""
    with port_scope(migration, config) as tool, InitialDraws(tool).watched() as draws:
        port = Port(migration)
        outputs = port(config.training)
        if port.reset(config):
            outputs = port(config.training)
        return port.outcome(config, outputs, tool, draws)


def run_port_from_checkpoint(migration: Migration, tf1: Outcome) -> Outcome:
    """Makes a new port and runs it with the weights that the TF1 program had.

    Raises:
      CheckpointError: if the port has other variables.
    """
    assert tf1.restored is not None
    with port_scope(migration, tf1.config) as tool:
        port = Port(migration)
        port(tf1.config.training)
        port.load(checkpoint_of(migration), tf1.restored.port_names)
        return port.outcome(tf1.config, port(tf1.config.training), tool)


def run_port_in_functional_model(migration: Migration, config: RunConfig) -> Outcome | None:
    """Runs a new port inside a Keras functional model.

    Returns:
      What it computed, or None if the port is no layer, which alone can be part of such a model.
    """
    with port_scope(migration, config) as tool:
        port = Port(migration)
        keras = _keras_of(port.model)
        if keras is None:
            return None
        batch = migration.first_batch()
        inputs = tf.nest.map_structure(
            lambda array: keras.Input(batch_shape=array.shape, dtype=tf.as_dtype(array.dtype).name), list(batch)
        )
        model = keras.Model(inputs, port.model(*in_own_containers(inputs)))
        outputs = model(tf.nest.map_structure(tf.constant, list(batch)), training=config.training)
        return port.outcome(config, outputs, tool)


def _keras_of(model: Any) -> Any:
    for package, name in (("keras", "Layer"), ("tf_keras", "layers.Layer")):
        if is_instance_of_loaded(model, package, name):
            return __import__(package)
    return None


# Layers, modules and optimizers of the ports that have been made, by their ids: equality may be the user's.
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def variables_source(model: Any) -> Any:
    """Returns what `variables_of` and its like take for a port: a plain function shows none of its variables."""
    owner = getattr(model, "__self__", model)  # of a method
    return owner if is_layer_or_module(owner) else []


def check_new(name: str, model: Any) -> None:
    """Checks that a port is a new one, with no layer or module of a former one that has variables.

    Raises:
      MigrationError: if it is not.
    """
    owner = variables_source(model)
    parts = parts_of(owner) if is_layer_or_module(owner) else []
    for part in parts:
        if _made.get(id(part)) is part and getattr(part, "built", True) and named_variables(part):
            what = f"the same {type(part).__name__}" if part is model else f"ports with the same {_described(part)}"
            raise MigrationError(
                f"port of {name} returned {what} twice, which still has the variables of the first; make it anew "
                "inside port, so that each call returns a new port"
            )
    for part in parts:
        _made[id(part)] = part


def check_new_optimizer(name: str, optimizer: Any) -> None:
    """Checks that the optimizer of a port is a new one.

    Raises:
      MigrationError: if it is not.
    """
    if _made.get(id(optimizer)) is optimizer:
        raise MigrationError(
            f"port_optimizer of {name} returned the same {type(optimizer).__name__} twice, which still has the slots "
            "of the first training; make it anew inside port_optimizer, so that each call returns a new one"
        )
    _made[id(optimizer)] = optimizer


def _described(part: Any) -> str:
    return f"{type(part).__name__} {part.name!r}" if getattr(part, "name", None) else type(part).__name__
