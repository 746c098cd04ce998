"""One call of a shim method as TensorFlow 1 saw it: the building of a fresh graph.

TF1 code keeps its bookkeeping (variable scopes, collections, counters for unique names) on the default graph.
While a program runs, that bookkeeping is a new one and belongs to the program alone: eagerly it is that of an
empty graph which is the default graph although ops execute at once; inside a function it is put in the
place of the function graph's own, and the function graph's own comes back afterwards.
"""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import variable_scope as vs

from detrand.shim.dispatchers import LazyLoss, dispatchers, layer_constructors
from detrand.shim.emulated_graph import (
    EagerGraph,
    eager_graph,
    function_graph,
    name_in_graph,
    name_in_scope,
    names_stay_free,
)
from detrand.shim.program_state import (
    LayerNames,
    Program,
    current_scope_name,
    current_store,
    in_program,
    legacy_keras_backends,
    local,
)

__all__ = [
    "Beginning",
    "LazyLoss",
    "Program",
    "VariableStore",
    "beginning",
    "current_scope_name",
    "current_store",
    "in_program",
    "name_in_graph",
    "name_in_scope",
    "names_stay_free",
    "tf1_program",
]

VariableStore: Any = vs._VariableStore  # what tf.compat.v1.get_variable keeps its variables in


@dataclass(frozen=True)
class Beginning:
    """Where a program begins: in an empty graph, or in the middle of another program.

    Attributes:
      variable_scope: the variable scope, of which the program's own is a copy; None for that of an empty graph.
      names: how often each name has been taken before: of ops and scopes, of variable scopes, of the layers of each
        legacy Keras.
    """

    variable_scope: Any = None
    names: tuple[dict[Any, int], ...] = ({}, {}, {}, {})

    @property
    def name_scope(self) -> str:
        """Name of the name scope, with a slash at its end if it is not the root."""
        return self.variable_scope.original_name_scope if self.variable_scope else ""


def beginning() -> Beginning:
    """Returns the beginning of a program that goes on from where the calling code is."""
    scope = copy.copy(vs.get_variable_scope())
    if in_program() and ops.get_default_graph() is local.programs[-1].graph:
        return Beginning(scope, (*local.programs[-1].names(), {}, {}))
    scope._reuse = False  # AUTO_REUSE is what TensorFlow makes of it in a scope that is entered eagerly
    return Beginning(scope)


@contextlib.contextmanager
def tf1_program(store: Any, start: Beginning, notes_layers: bool = True) -> Iterator[Program]:
    """Runs the block as a TF1 program.

    Args:
      store: where ``get_variable`` looks for variables, and what ``tf.Variable`` makes them by.
      start: where it begins.
      notes_layers: whether to note in `Program.layers` which Keras layers it makes. It takes a replaced constructor,
        and having that costs as much as all else together.
    """
    names, scopes, *layer_names = start.names
    own_graph = eager_graph if context.executing_eagerly() else function_graph
    constructors = layer_constructors if notes_layers else contextlib.nullcontext()
    with dispatchers, constructors, own_graph(names, start.name_scope) as graph, _layers_named(layer_names):
        graph._collections[vs._VARSTORE_KEY] = [store]
        scope_store = vs.get_variable_scope_store()
        scope_store.variable_scopes_count = dict(scopes)
        if start.variable_scope is not None:
            scope_store.current_scope = copy.copy(start.variable_scope)
        program = Program(store, graph)
        local.programs.append(program)
        try:
            yield program
        finally:
            local.programs.pop()
        if in_program():
            collected, taken = dict(graph._collections), program.names()
    if in_program():
        _hand_over(collected, taken, graph)


@contextlib.contextmanager
def _layers_named(taken: list[dict[Any, int]]) -> Iterator[None]:
    """Counts the names of unnamed v1 layers from where a program begins."""
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
    """Lets the program that has run this one, a layer that calls another one, see its collections and names."""
    outer = local.programs[-1] if in_program() else None
    if outer is None or not (
        outer.graph is graph or (isinstance(outer.graph, EagerGraph) and isinstance(graph, EagerGraph))
    ):
        return
    for key in collected.keys() - {vs._VARSTORE_KEY, vs._VARSCOPESTORE_KEY}:
        members = outer.graph.get_collection_ref(key)
        known = {id(member) for member in members}
        members.extend(member for member in collected[key] if id(member) not in known)
    names, scopes, *layers = taken
    _raise_counts(outer.graph._names_in_use, names)
    _raise_counts(vs.get_variable_scope_store().variable_scopes_count, scopes)
    for keras_backend, counters in zip(legacy_keras_backends(), layers, strict=True):
        layer_names = LayerNames(keras_backend)
        counts = layer_names.counters or collections.defaultdict(int)
        _raise_counts(counts, counters)
        layer_names.counters = counts


def _raise_counts(counts: dict[Any, int], others: dict[Any, int]) -> None:
    for name, count in others.items():
        counts[name] = max(counts.get(name, 0), count)
