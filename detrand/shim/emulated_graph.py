"""The TF1 graph that one call of a decorated method seems to build.

TF1 code keeps its bookkeeping (variable scopes, collections, counters for unique names) on the default graph. In an
`EmulatedGraph`, the default graph looks empty to it, and what it notes there is discarded at the end. In eager mode,
this is an empty graph, which is the default graph although ops execute at once. Inside a function, it is the function's
graph, whose own bookkeeping is put aside. `emulate_graph` opens an emulated graph.
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
    empty_default_graph,
    name_counts,
    public_collections,
    start_in,
    without_reuse,
)
from detrand.changes import Changes
from detrand.seeding.callsite import Site


class EmulatedGraph:
    """The TF1 graph that one call of a decorated method seems to build."""

    def __init__(self, graph: Any, store: Any):
        self.graph = graph
        self.store = store
        self.templates: set[int] = set()  # ids of the templates that have been called
        self.layers: list[tuple[Any, Site]] = []  # the Keras layers that have been made, and where
        self.has_keras_variables = False  # whether Keras has made variables

    def bookkeeping(self) -> list[tuple[Any, str, Any]]:
        """Return what TF1 code has noted so far, as attributes of objects, each with a copy of its value."""
        return [(owner, name, copied(getattr(owner, name))) for owner, name in bookkeeping(self.graph, self.store)]

    def names(self) -> list[dict[Any, int]]:
        """Return how often each name has been taken so far, in the order of `name_counts`."""
        return [dict(getattr(owner, name)) for owner, name in name_counts(self.graph)]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.emulated: tuple[EmulatedGraph, ...] = ()  # the innermost last


_thread = _Thread()


def in_emulated_graph() -> bool:
    """Return whether the calling thread is in an emulated graph."""
    return bool(_thread.emulated)


def current_emulated_graph() -> EmulatedGraph:
    """Return the innermost emulated graph that the calling thread is in."""
    return _thread.emulated[-1]


def copied(noted: Any) -> Any:
    """Return a copy of a dict and of the lists in it."""
    return {key: list(value) if isinstance(value, list) else value for key, value in noted.items()}


@dataclass(frozen=True)
class Beginning:
    """Where an emulated graph begins: empty, or in the middle of another emulated graph.

    Without a variable scope it is empty; ``names`` is what `EmulatedGraph.names` returns of the other one.
    """

    variable_scope: Any = None
    names: tuple[dict[Any, int], ...] = ()

    @property
    def name_scope(self) -> str:
        """Name of the name scope, with a slash at its end if it is not the root."""
        return self.variable_scope.original_name_scope if self.variable_scope else ""


def beginning_here() -> Beginning:
    """Return the beginning of an emulated graph that continues from where the calling code is."""
    # AUTO_REUSE is what TensorFlow makes of `reuse` in a scope that is entered eagerly.
    scope = tf.compat.v1.get_variable_scope()
    if in_emulated_graph() and tf.compat.v1.get_default_graph() is current_emulated_graph().graph:
        return Beginning(copy.copy(scope), tuple(current_emulated_graph().names()))
    return Beginning(without_reuse(scope))


@contextlib.contextmanager
def emulate_graph(store: Any, start: Beginning) -> Iterator[EmulatedGraph]:
    """Run the block in an emulated graph with a variable store, whose ``construct`` does what ``tf.Variable`` does."""
    with empty_default_graph(start.name_scope, _construct_variable) as graph, _names_taken(graph, start.names):
        start_in(graph, store, start.variable_scope)
        emulated = EmulatedGraph(graph, store)
        with Changes() as changes:
            changes.set(_thread, "emulated", (*_thread.emulated, emulated))
            yield emulated
        if in_emulated_graph():
            collected, taken = public_collections(graph), emulated.names()
    if in_emulated_graph():
        _hand_over(collected, taken, graph)


@contextlib.contextmanager
def _names_taken(graph: Any, taken: tuple[dict[Any, int], ...]) -> Iterator[None]:
    """Count names from where an emulated graph begins."""
    counters = name_counts(graph)
    with Changes() as changes:
        for (owner, name), counts in zip(counters, taken or [{}] * len(counters), strict=True):
            changes.set(owner, name, dict(counts))
        yield


def _hand_over(collected: dict[Any, list[Any]], taken: list[dict[Any, int]], graph: Any) -> None:
    """Add collections and names to the emulated graph around: that of a layer that has called another layer."""
    outer = current_emulated_graph()
    if outer.graph is not graph and not (isinstance(outer.graph, EagerGraph) and isinstance(graph, EagerGraph)):
        return
    for key, items in collected.items():
        members = outer.graph.get_collection_ref(key)
        known = {id(member) for member in members}
        members.extend(item for item in items if id(item) not in known)
    for (owner, name), counts in zip(name_counts(outer.graph), taken, strict=True):
        greatest = collections.Counter(getattr(owner, name)) | collections.Counter(counts)
        setattr(owner, name, dict(greatest))


def _construct_variable(next_creator: Any, **kwargs: Any) -> Any:
    if not in_emulated_graph():  # in the thread of a replica, which has this creator, too
        return next_creator(**kwargs)
    emulated = current_emulated_graph()
    if _is_called_by_keras():
        emulated.has_keras_variables = True
        return next_creator(**kwargs)
    return emulated.store.construct(next_creator, **kwargs)


def _is_called_by_keras() -> bool:
    """Return whether the code that called TensorFlow is Keras, which keeps its variables itself."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("tensorflow.", "detrand.")):
        frame = frame.f_back
    # In a thread of TensorFlow's, the outermost frame is TensorFlow's own.
    return frame is not None and frame.f_globals.get("__name__", "").startswith(("keras.", "tf_keras."))
