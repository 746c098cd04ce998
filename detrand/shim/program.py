"""A TF1 program: one call of a decorated method, run as the building of a fresh TF1 graph.

TF1 code keeps its bookkeeping (variable scopes, collections, counters for unique names) on the default graph. While a
program runs, the default graph looks empty to it, and what it notes there belongs to the program only. `run_program`
runs a program; `in_program`, `current_program` and the other functions are for code that runs inside.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detrand._patching.graphs import (
    EagerGraph,
    bookkeeping,
    names_in_use,
    names_in_use_set,
    public_collections,
    set_variable_store,
    start_in_variable_scope,
    variable_scope_counts,
    without_reuse,
)
from detrand._patching.keras import LayerNames, legacy_keras_backends
from detrand.errors import ScopeError
from detrand.seeding.callsite import Site
from detrand.shim.emulated_graph import emulated_graph, take_name


class Program:
    """The state of a running TF1 program.

    Args:
      store: its variable store.
      graph: its graph.
    """

    def __init__(self, store: Any, graph: Any):
        self.graph = graph
        self.store = store
        self.templates: set[int] = set()  # ids of the templates that it has called
        self.layers: list[tuple[Any, Site]] = []  # the Keras layers that it has made, and where
        self.has_keras_variables = False  # whether Keras has made variables in it

    def bookkeeping(self) -> list[tuple[Any, str, Any]]:
        """Return what the program has noted so far, as attributes of objects, each with a copy of its value."""
        noted = [(owner, name, copied(getattr(owner, name))) for owner, name in bookkeeping(self.graph, self.store)]
        return noted + [(owner, "counters", owner.counters) for owner in map(LayerNames, legacy_keras_backends())]

    def names(self) -> list[dict[Any, int]]:
        """Return how often each name has been taken so far: of ops and scopes, of variable scopes, of layers."""
        layers = [LayerNames(keras_backend).counters or {} for keras_backend in legacy_keras_backends()]
        return [dict(names_in_use(self.graph)), dict(variable_scope_counts()), *layers]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.programs: list[Program] = []  # the innermost last


_thread = _Thread()


def in_program() -> bool:
    """Return whether the calling thread runs a program."""
    return bool(_thread.programs)


def current_program() -> Program:
    """Return the innermost program that the calling thread runs."""
    return _thread.programs[-1]


def copied(noted: Any) -> Any:
    """Return a copy of a dict and of the lists in it."""
    return {key: list(value) if isinstance(value, list) else value for key, value in noted.items()}


@dataclass(frozen=True)
class Beginning:
    """Where a program begins: in an empty graph, or in the middle of another program.

    Attributes:
      variable_scope: the variable scope that the program starts with a copy of; None for the one of an empty graph.
      names: how often each name has been taken before: of ops and scopes, of variable scopes, of the layers of each
        legacy Keras.
    """

    variable_scope: Any = None
    names: tuple[dict[Any, int], ...] = ({}, {}, {}, {})

    @property
    def name_scope(self) -> str:
        """Name of the name scope, with a slash at its end if it is not the root."""
        return self.variable_scope.original_name_scope if self.variable_scope else ""


def beginning_here() -> Beginning:
    """Return the beginning of a program that continues from where the calling code is."""
    # AUTO_REUSE is what TensorFlow makes of `reuse` in a scope that is entered eagerly.
    scope = tf.compat.v1.get_variable_scope()
    if in_program() and tf.compat.v1.get_default_graph() is current_program().graph:
        return Beginning(copy.copy(scope), (*current_program().names(), {}, {}))
    return Beginning(without_reuse(scope))


@contextlib.contextmanager
def run_program(store: Any, start: Beginning) -> Iterator[Program]:
    """Run the block as a TF1 program.

    Args:
      store: the variable store, where ``get_variable`` looks for variables; its ``construct`` does what
        ``tf.Variable`` does.
      start: where the program begins.
    """
    names, scopes, *layer_names = start.names
    with emulated_graph(names, start.name_scope, _construct_variable) as graph, _layers_named(layer_names):
        set_variable_store(graph, store)
        start_in_variable_scope(scopes, start.variable_scope)
        program = Program(store, graph)
        _thread.programs.append(program)
        try:
            yield program
        finally:
            _thread.programs.pop()
        if in_program():
            collected, taken = public_collections(graph), program.names()
    if in_program():
        _hand_over(collected, taken, graph)


@contextlib.contextmanager
def _layers_named(taken: list[dict[Any, int]]) -> Iterator[None]:
    """Number unnamed v1 layers from where a program begins."""
    counted = [LayerNames(keras_backend) for keras_backend in legacy_keras_backends()]
    before = [layers.counters for layers in counted]
    for layers, counters, former in zip(counted, taken, before, strict=False):
        if counters or former:
            layers.counters = counters or None
    try:
        yield
    finally:
        for layers, former in zip(counted, before, strict=True):
            layers.counters = former


def _hand_over(collected: dict[Any, list[Any]], taken: list[dict[Any, int]], graph: Any) -> None:
    """Add a program's collections and names to the program that has run it: a layer that calls another layer."""
    outer = current_program()
    if outer.graph is not graph and not (isinstance(outer.graph, EagerGraph) and isinstance(graph, EagerGraph)):
        return
    for key, items in collected.items():
        members = outer.graph.get_collection_ref(key)
        known = {id(member) for member in members}
        members.extend(item for item in items if id(item) not in known)
    names, scopes, *layers = taken
    _raise_counts(names_in_use(outer.graph), names)
    _raise_counts(variable_scope_counts(), scopes)
    for keras_backend, counters in zip(legacy_keras_backends(), layers, strict=True):
        layer_names = LayerNames(keras_backend)
        counts = layer_names.counters or collections.defaultdict(int)
        _raise_counts(counts, counters)
        layer_names.counters = counts


def _raise_counts(counts: dict[Any, int], others: dict[Any, int]) -> None:
    for name, count in others.items():
        counts[name] = max(counts.get(name, 0), count)


# --- Names and variables in a program -----------------------------------------------------------------------


def name_in_graph(name: str) -> str:
    """Return the name that TF1 gives a variable, with a number if its graph has the name; it is taken from then on.

    Raises:
      ScopeError: in a thread that the program's code has started.
    """
    if not in_program():
        raise ScopeError(
            f"variable {name!r} was asked for in a thread that a method decorated with track_tf1_style_variables has "
            "started. Ask for it in the thread that runs the method, and pass it to the other thread."
        )
    return name[:-1] if name.endswith("/") else take_name(name, names_in_use(current_program().graph))


def name_in_scope(name: str) -> str:
    """Return the name that TF1 gives a variable that is prefixed with the current name scope; it is taken then."""
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    if name.endswith("/"):
        return name[:-1]
    return take_name(f"{scope}/{name}" if scope else name, names_in_use(current_program().graph))


def names_stay_free() -> contextlib.AbstractContextManager[None]:
    """Return a scope in which the names that ops and scopes get are not taken from the program's graph."""
    return names_in_use_set(current_program().graph, {})


def _construct_variable(next_creator: Any, **kwargs: Any) -> Any:
    if not in_program():
        return next_creator(**kwargs)
    program = current_program()
    if _is_called_by_keras():
        program.has_keras_variables = True
        return next_creator(**kwargs)
    return program.store.construct(next_creator, **kwargs)


def _is_called_by_keras() -> bool:
    """Return whether the code that called TensorFlow is Keras, which keeps its variables itself."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("tensorflow.", "detrand.")):
            return module.startswith(("keras.", "tf_keras."))
        frame = frame.f_back  # type: ignore[assignment]
    return False
