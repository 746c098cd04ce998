"""The graphs that TF1 programs keep their notes in: names, collections, and who makes their variables.

Eagerly it is an empty graph, which is the default graph although ops execute at once. Inside a function it is the
function's graph, which looks empty for as long as the program runs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import variable_scope as vs

from detrand.errors import ScopeError
from detrand.shim.program_state import attribute_set, in_program, local


class _Free(threading.local):
    def __init__(self) -> None:
        self.graphs: list[EagerGraph] = []  # that no program uses now: making one takes longer than cleaning one


_free = _Free()


@contextlib.contextmanager
def eager_graph(names: dict[str, int], name_scope: str) -> Iterator[Any]:
    """Lets what executes in the block note in a graph of its own what a TF1 graph would know."""
    outer, eager_context = ops.get_default_graph(), context.context()
    graph = _free.graphs.pop() if _free.graphs else EagerGraph()
    graph.start(outer, names)
    scope_before, eager_context.scope_name = eager_context.scope_name, name_scope
    default_graphs = ops._default_graph_stack.stack
    default_graphs.append(graph)
    try:
        yield graph
    finally:
        default_graphs.remove(graph)
        eager_context.scope_name = scope_before
        graph.clear()
        _free.graphs.append(graph)


class EagerGraph(tf.Graph):
    """Holds the bookkeeping of TF1 code whose ops execute at once; no op is ever added to it."""

    def start(self, outer: Any, names: dict[str, int]) -> None:
        """Makes it that of a new program, which runs where another graph is the default."""
        self._collections: dict[Any, list[Any]] = {}
        self._names_in_use = dict(names)
        # The priority is that of tf.variable_creator_scope.
        self._variable_creator_stack = [*outer._variable_creator_stack, (100, _constructed_in_program)]
        self._distribution_strategy_stack = list(outer._distribution_strategy_stack)

    def clear(self) -> None:
        """Lets go of what the program has noted."""
        self._collections = {}
        self._variable_creator_stack = self._distribution_strategy_stack = []

    def as_default(self) -> contextlib.AbstractContextManager[Any]:
        """Makes it the default graph, in eager mode."""
        # TF1 code makes a graph the default in order to add to it, and variable_scope does so as well.
        if ops.get_default_graph() is self and context.executing_eagerly():
            return contextlib.nullcontext(self)
        return self._as_default_eagerly()

    @contextlib.contextmanager
    def _as_default_eagerly(self) -> Iterator[Any]:
        with super().as_default(), context.eager_mode():
            yield self

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Returns a name as TF1 would number it."""
        # Most names are asked for once.
        if mark_as_used and not self._name_stack and name.lower() not in self._names_in_use:
            self._names_in_use[name.lower()] = 1
            return name
        return super().unique_name(name, mark_as_used)

    def get_name_scope(self) -> str:
        """Returns the name scope that is open, eagerly."""
        return (context.context().scope_name or "").rstrip("/")

    def get_collection(self, name: Any, scope: Any = None) -> Any:
        """Returns the members of a collection."""
        if name is vs._VARSCOPESTORE_KEY or name is vs._VARSTORE_KEY:  # asked for all the time, by TensorFlow alone
            return self._collections.get(name, ())
        return super().get_collection(name, scope)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Adds a value to collections."""
        for name in {names} if isinstance(names, str) else set(names):
            self._collections.setdefault(name, []).append(value)


@contextlib.contextmanager
def function_graph(names: dict[str, int], name_scope: str) -> Iterator[Any]:
    """Lets the function graph that is being built look empty in the block."""
    graph: Any = ops.get_default_graph()
    with (
        attribute_set(graph, "_collections", {}),
        _own_names(graph, names, name_scope),
        graph._variable_creator_scope(_constructed_in_program),
    ):
        yield graph


@contextlib.contextmanager
def _own_names(graph: Any, names: dict[str, int], name_scope: str) -> Iterator[None]:
    """Names scopes and ops as an empty graph would, although the function graph has ops of other programs.

    TF1 code reads names (tf_slim makes the keys of its end points of them). An op is therefore named
    twice: the program's name decides what comes after it, and with the surrounding scope in front, and
    a number if need be, it is unique in the graph.
    """
    taken, scope_before = graph._names_in_use, graph._name_stack
    surrounding_scope = "" if name_scope else scope_before  # a program in a program is in its scopes already
    create_op = graph._create_op_internal

    def create_named_op(
        op_type: str,
        inputs: Any,
        dtypes: Any = None,
        input_types: Any = None,
        name: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        name = name or op_type
        name = name[:-1] if name[-1] == "/" else graph.unique_name(name)
        name = _unique_name(f"{surrounding_scope}/{name}" if surrounding_scope else name, taken)
        return create_op(op_type, inputs, dtypes, input_types, name + "/", *args, **kwargs)

    graph._names_in_use, graph._name_stack = dict(names), name_scope.rstrip("/")
    graph._create_op_internal = create_named_op
    try:
        yield
    finally:
        graph._names_in_use, graph._name_stack = taken, scope_before
        if hasattr(create_op, "__self__"):  # the method of the class; otherwise it is that of an outer program
            del graph._create_op_internal
        else:
            graph._create_op_internal = create_op


def _unique_name(name: str, taken: dict[str, int]) -> str:
    """Does what ``Graph.unique_name`` does, for a whole name."""
    number = taken.get(name.lower(), 0)
    if not number:
        taken[name.lower()] = 1
        return name
    taken[name.lower()] = number + 1
    unique = name
    while number and unique.lower() in taken:
        unique = f"{name}_{number}"
        number += 1
    taken.setdefault(unique.lower(), 1)
    return unique


def name_in_graph(name: str) -> str:
    """Returns the name that TF1 gives a variable: another one where something in its graph has that name.

    The name is taken from then on.

    Raises:
      ScopeError: in a thread that the program's code has started.
    """
    if not in_program():
        raise ScopeError(
            f"variable {name!r} was asked for in a thread that a method decorated with track_tf1_style_variables has "
            "started; ask for it in the thread that runs the method, and hand it over"
        )
    return name[:-1] if name.endswith("/") else _unique_name(name, local.programs[-1].graph._names_in_use)


def name_in_scope(name: str) -> str:
    """Returns the name that TF1 gives a variable that the current name scope is put in front of; it is taken then."""
    graph = local.programs[-1].graph
    scope = ops.get_default_graph().get_name_scope()
    if name.endswith("/"):
        return name[:-1]
    return _unique_name(f"{scope}/{name}" if scope else name, graph._names_in_use)


def names_stay_free() -> contextlib.AbstractContextManager[None]:
    """Returns a scope in which the names that ops and scopes get are not taken from the program's graph."""
    return attribute_set(local.programs[-1].graph, "_names_in_use", {})


def _constructed_in_program(next_creator: Any, **kwargs: Any) -> Any:
    if not in_program():
        return next_creator(**kwargs)
    program = local.programs[-1]
    if _is_called_by_keras():
        program.has_keras_variables = True
        return next_creator(**kwargs)
    return program.store.construct(next_creator, **kwargs)


def _is_called_by_keras() -> bool:
    """Returns whether it is Keras that has called TensorFlow, which keeps its variables itself."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("tensorflow.", "detrand.")):
            return module.startswith(("keras.", "tf_keras."))
        frame = frame.f_back  # type: ignore[assignment]
    return False
