"""What is set in a port: as its layers tell it, and for what they do not, as the ops do that it adds to a function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from detrand.validation.execution import Setting
from detrand.validation.initial_values import CreatedVariables
from detrand.validation.layer_settings import settings_of_layers
from detrand.validation.migration import Migration
from detrand.validation.port_execution import Port, port_scope
from detrand.validation.regularizers import regularizers_of
from detrand.validation.settings import INITIALIZER, REGULARIZER, Settings, settings_of_ops
from detrand.variables.sources import is_layer_or_module
from detrand.variables.whole_variables import WholeVariable, whole_variables


class PortSettings:
    """A new port that has its variables; the settings of one that is no layer or module are not known.

    Args:
      migration: the migration.
      tf1_names: those of the variables of the TF1 program.
    """

    def __init__(self, migration: Migration, tf1_names: Iterable[str]):
        self._migration = migration
        with port_scope(migration, Setting(training=False, mode="constant")), CreatedVariables().watched() as created:
            self._port = Port(migration)
            self._port(training=False)
        self._created = created
        self._variables: dict[str, WholeVariable] = {}  # by their TF1 names
        if is_layer_or_module(self._port.variables):
            names = migration.tf1_names(tf1_names)
            variables = whole_variables("tf2", self._port.variables)
            self._variables = {names.get(name, name): variable for name, variable in variables.items()}

    def of_layers(self) -> Settings:
        """Returns what its layers are set to, and how its variables were initialized."""
        if not self._variables:
            return {}
        made = {name: self._created.initializer_of(whole.parts[0]) for name, whole in self._variables.items()}
        initializers = {(name, INITIALIZER): value for name, value in made.items() if value is not None}
        names = {id(part): name for name, variable in self._variables.items() for part in variable.parts}
        return initializers | settings_of_layers(self._port.variables, names)

    def of_ops(self, training: bool) -> Settings:
        """Returns what its ops and its losses tell where it is called in a ``tf.function``, which is not run."""
        if not self._variables:
            return {}
        keeps_losses = hasattr(self._port.model, "losses")
        losses: list[Any] = []

        def look(outputs: Any) -> Any:
            losses.extend(loss for loss in (self._port.model.losses if keeps_losses else ()) if _is_symbolic(loss))
            return outputs

        with port_scope(self._migration, Setting(training, "constant")):
            graph = self._port.graph(training, look)
        handles = {id(part.handle): (name, whole) for name, whole in self._variables.items() for part in whole.parts}
        read = [(inner.op.name, *handles[id(outer)]) for outer, inner in graph.captures if id(outer) in handles]
        found = settings_of_ops(graph, {op: name for op, name, _ in read})
        if keeps_losses:
            trained = {op: name for op, name, whole in read if whole.spec.trainable and len(whole.parts) == 1}
            found |= {(name, REGULARIZER): value for name, value in regularizers_of(losses, trained).items()}
        return found


def _is_symbolic(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and tf.is_symbolic_tensor(tensor)
