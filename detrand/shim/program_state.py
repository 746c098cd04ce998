"""What a running TF1 program has of its own: its graph, its store of variables, and what it has noted so far."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tensorflow.python.framework import ops
from tensorflow.python.ops import variable_scope as vs

from detrand.seeding.callsite import Site


class _Local(threading.local):
    def __init__(self) -> None:
        self.programs: list[Program] = []  # the innermost last


class Program:
    """What a running program has of its own."""

    def __init__(self, store: Any, graph: Any):
        self.graph = graph
        self.store = store
        self.templates: set[int] = set()  # those that it has called
        self.layers: list[tuple[Any, Site]] = []  # those that it has made, and where
        self.has_keras_variables = False  # whether Keras has made variables in it

    def bookkeeping(self) -> list[tuple[Any, str, Any]]:
        """Returns what the program has noted so far, as attributes of objects, each with a copy of its value."""
        scopes = vs.get_variable_scope_store()
        noted = [
            (self.graph, "_collections"),
            (self.graph, "_names_in_use"),
            (scopes, "variable_scopes_count"),
            (self.store, "_vars"),
            (self.store, "_partitioned_vars"),
        ]
        copies = [(owner, name, copied(getattr(owner, name))) for owner, name in noted]
        return copies + [(owner, "counters", owner.counters) for owner in map(LayerNames, legacy_keras_backends())]

    def names(self) -> list[dict[Any, int]]:
        """Returns how often each name has been taken so far: of ops and scopes, of variable scopes, of layers."""
        layers = [LayerNames(keras_backend).counters or {} for keras_backend in legacy_keras_backends()]
        return [dict(self.graph._names_in_use), dict(vs.get_variable_scope_store().variable_scopes_count), *layers]


local = _Local()


def in_program() -> bool:
    """Returns whether the calling thread is inside a program."""
    return bool(local.programs)


def current_store() -> Any:
    """Returns the store that ``get_variable`` would look in."""
    return vs._get_default_variable_store()


def current_scope_name() -> str:
    """Returns the name of the variable scope that is open."""
    return vs.get_variable_scope().name


def copied(noted: Any) -> Any:
    """Returns a copy of a dict and of the lists in it."""
    return {key: list(value) if isinstance(value, list) else value for key, value in noted.items()}


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute another value in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def legacy_keras_backends() -> list[Any]:
    """Returns the modules in which the Kerases with v1 layers, as far as they are loaded, count their names."""
    names = ("tensorflow.python.keras.backend", "tf_keras.src.backend")
    return [sys.modules[name] for name in names if name in sys.modules]


class LayerNames:
    """The numbers that unnamed layers have got in the default graph, of one Keras."""

    def __init__(self, keras_backend: Any):
        self._all, self._graph = keras_backend.PER_GRAPH_OBJECT_NAME_UIDS, ops.get_default_graph()

    @property
    def counters(self) -> dict[Any, int] | None:
        """A copy of the numbers, by class name; None where there are none."""
        counters = self._all.get(self._graph)
        return None if counters is None else counters.copy()

    @counters.setter
    def counters(self, counters: dict[Any, int] | None) -> None:
        if counters is not None:
            self._all[self._graph] = counters.copy()
        else:
            self._all.pop(self._graph, None)
