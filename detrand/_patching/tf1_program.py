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
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import template
from tensorflow.python.ops import variable_scope as vs
from tensorflow.python.ops.losses import util as losses_util

from detrand import callsite
from detrand._patching.keras import LAYER_CONSTRUCTORS
from detrand._patching.patches import Patches, Shared, Target
from detrand.callsite import Site
from detrand.errors import ScopeError

VariableStore: Any = vs._VariableStore  # what tf.compat.v1.get_variable keeps its variables in
_WHILE_LOOP_MODULES = (
    "tensorflow.python.ops.while_loop",
    "tensorflow.compat.v1",
    "tensorflow._api.v2.compat.v1",
)
_WITHOUT_NAMES = ("tensorflow.", "keras.", "tf_keras.")


class _Local(threading.local):
    def __init__(self) -> None:
        self.programs: list[Program] = []  # the innermost last
        self.graphs: list[_EagerGraph] = []  # that no program uses now: making one takes longer than cleaning one


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
        copies = [(owner, name, _copy(getattr(owner, name))) for owner, name in noted]
        return copies + [(owner, "counters", owner.counters) for owner in map(_LayerNames, _legacy_keras_backends())]

    def names(self) -> list[dict[Any, int]]:
        """Returns how often each name has been taken so far: of ops and scopes, of variable scopes, of layers."""
        layers = [_LayerNames(keras_backend).counters or {} for keras_backend in _legacy_keras_backends()]
        return [dict(self.graph._names_in_use), dict(vs.get_variable_scope_store().variable_scopes_count), *layers]


_local = _Local()


def _copy(noted: Any) -> Any:
    return {key: list(value) if isinstance(value, list) else value for key, value in noted.items()}


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
    if in_program() and ops.get_default_graph() is _local.programs[-1].graph:
        return Beginning(scope, (*_local.programs[-1].names(), {}, {}))
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
    own_graph = _eager_graph if context.executing_eagerly() else _function_graph
    constructors = _layer_constructors.held() if notes_layers else contextlib.nullcontext()
    with _dispatchers.held(), constructors, own_graph(names, start.name_scope) as graph, _layers_named(layer_names):
        graph._collections[vs._VARSTORE_KEY] = [store]
        scope_store = vs.get_variable_scope_store()
        scope_store.variable_scopes_count = dict(scopes)
        if start.variable_scope is not None:
            scope_store.current_scope = copy.copy(start.variable_scope)
        program = Program(store, graph)
        _local.programs.append(program)
        try:
            yield program
        finally:
            _local.programs.pop()
        if in_program():
            collected, taken = dict(graph._collections), program.names()
    if in_program():
        _hand_over(collected, taken, graph)


@contextlib.contextmanager
def _eager_graph(names: dict[str, int], name_scope: str) -> Iterator[Any]:
    """Lets what executes in the block note in a graph of its own what a TF1 graph would know."""
    outer, eager_context = ops.get_default_graph(), context.context()
    graph = _local.graphs.pop() if _local.graphs else _EagerGraph()
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
        _local.graphs.append(graph)


@contextlib.contextmanager
def _function_graph(names: dict[str, int], name_scope: str) -> Iterator[Any]:
    """Lets the function graph that is being built look empty in the block."""
    graph: Any = ops.get_default_graph()
    with (
        _attribute_set(graph, "_collections", {}),
        _own_names(graph, names, name_scope),
        graph._variable_creator_scope(_constructed_in_program),
    ):
        yield graph


@contextlib.contextmanager
def _layers_named(taken: list[dict[Any, int]]) -> Iterator[None]:
    """Counts the names of unnamed v1 layers from where a program begins."""
    counted = [_LayerNames(keras_backend) for keras_backend in _legacy_keras_backends()]
    before = [layers.counters for layers in counted]
    for layers, counters in zip(counted, taken, strict=False):
        layers.counters = counters or None
    try:
        yield
    finally:
        for layers, former in zip(counted, before, strict=True):
            layers.counters = former


def _constructed_in_program(next_creator: Any, **kwargs: Any) -> Any:
    if not in_program():
        return next_creator(**kwargs)
    program = _local.programs[-1]
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


def _hand_over(collected: dict[Any, list[Any]], taken: list[dict[Any, int]], graph: Any) -> None:
    """Lets the program that has run this one, a layer that calls another one, see its collections and names."""
    outer = _local.programs[-1] if in_program() else None
    if outer is None or not (
        outer.graph is graph or (isinstance(outer.graph, _EagerGraph) and isinstance(graph, _EagerGraph))
    ):
        return
    for key in collected.keys() - {vs._VARSTORE_KEY, vs._VARSCOPESTORE_KEY}:
        members = outer.graph.get_collection_ref(key)
        known = {id(member) for member in members}
        members.extend(member for member in collected[key] if id(member) not in known)
    names, scopes, *layers = taken
    _raise_counts(outer.graph._names_in_use, names)
    _raise_counts(vs.get_variable_scope_store().variable_scopes_count, scopes)
    for keras_backend, counters in zip(_legacy_keras_backends(), layers, strict=True):
        layer_names = _LayerNames(keras_backend)
        counts = layer_names.counters or collections.defaultdict(int)
        _raise_counts(counts, counters)
        layer_names.counters = counts


def _raise_counts(counts: dict[Any, int], others: dict[Any, int]) -> None:
    for name, count in others.items():
        counts[name] = max(counts.get(name, 0), count)


def in_program() -> bool:
    """Returns whether the calling thread is inside a program."""
    return bool(_local.programs)


def current_store() -> Any:
    """Returns the store that ``get_variable`` would look in."""
    return vs._get_default_variable_store()


def current_scope_name() -> str:
    """Returns the name of the variable scope that is open."""
    return vs.get_variable_scope().name


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
    return name[:-1] if name.endswith("/") else _unique_name(name, _local.programs[-1].graph._names_in_use)


def name_in_scope(name: str) -> str:
    """Returns the name that TF1 gives a variable that the current name scope is put in front of; it is taken then."""
    graph = _local.programs[-1].graph
    scope = ops.get_default_graph().get_name_scope()
    if name.endswith("/"):
        return name[:-1]
    return _unique_name(f"{scope}/{name}" if scope else name, graph._names_in_use)


def names_stay_free() -> contextlib.AbstractContextManager[None]:
    """Returns a scope in which the names that ops and scopes get are not taken from the program's graph."""
    return _attribute_set(_local.programs[-1].graph, "_names_in_use", {})


class _EagerGraph(tf.Graph):
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

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Any]:
        # TF1 code makes a graph the default in order to add to it, and variable_scope does so as well.
        if ops.get_default_graph() is self and context.executing_eagerly():
            yield self
        else:
            with super().as_default(), context.eager_mode():
                yield self

    def get_name_scope(self) -> str:
        return (context.context().scope_name or "").rstrip("/")

    def get_collection(self, name: Any, scope: Any = None) -> Any:
        if name is vs._VARSCOPESTORE_KEY or name is vs._VARSTORE_KEY:  # asked for all the time, by TensorFlow alone
            return self._collections.get(name, ())
        return super().get_collection(name, scope)

    def add_to_collections(self, names: Any, value: Any) -> None:
        for name in {names} if isinstance(names, str) else set(names):
            self._collections.setdefault(name, []).append(value)


@contextlib.contextmanager
def _attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


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
    taken[name.lower()] = number + 1
    unique = name
    while number and unique.lower() in taken:
        unique = f"{name}_{number}"
        number += 1
    taken.setdefault(unique.lower(), 1)
    return unique


def _legacy_keras_backends() -> list[Any]:
    names = ("tensorflow.python.keras.backend", "tf_keras.src.backend")
    return [sys.modules[name] for name in names if name in sys.modules]


class _LayerNames:
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
        self._all.pop(self._graph, None)
        if counters is not None:
            self._all[self._graph] = counters.copy()


class _IdentityList(list):
    """A collection whose members are found by identity: comparing variables by ``==`` compares their values."""

    def __contains__(self, item: object) -> bool:
        return any(item is member for member in self)

    def index(self, item: Any, *bounds: int) -> int:  # type: ignore[override]
        for position in range(*slice(*(bounds or (None,))).indices(len(self))):
            if self[position] is item:
                return position
        raise ValueError(f"{item!r} is not in the collection")

    def remove(self, item: Any) -> None:
        del self[self.index(item)]


@dataclass(frozen=True, eq=False)
class LazyLoss:
    """A regularization loss in a collection, computed when the collection is read.

    Attributes:
      regularizer: returns the loss of a variable, a scalar tensor.
      variable: the variable.
    """

    regularizer: Callable[[Any], Any]
    variable: tf.Variable

    def compute(self) -> Any:
        """Returns the loss."""
        return self.regularizer(self.variable)


def _install(patches: Patches) -> None:
    for module in (vs, template, losses_util):
        patches.set(module, "context", _GraphModeContext())
    for template_class in ("Template", "EagerTemplate"):
        patches.replace(Target("tensorflow.python.ops.template", f"{template_class}.__call__", ("self",)), _made_anew)
    patches.replace(
        Target("tensorflow.python.ops.variable_scope", "EagerVariableStore.as_default", ("self",)), _program_store_kept
    )
    patches.replace(Target("tensorflow.python.ops.variable_scope", "_variable_v1", ()), _from_store)
    patches.replace(Target("tensorflow.python.framework.ops", "Graph.get_collection", ("self", "name")), _identity)
    for module_name in _WHILE_LOOP_MODULES:
        patches.replace(Target(module_name, "while_loop", ("cond", "body", "loop_vars")), _built_once)
    patches.replace(
        Target("tensorflow.python.framework.ops", "name_scope", ("name", "default_name", "values", "skip_on_eager")),
        _named_for_callers_outside_tensorflow,
    )
    patches.replace(Target("tensorflow.python.framework.ops", "name_scope_v2.__enter__", ("self",)), _unique)


def _install_constructors(patches: Patches) -> None:
    for target in LAYER_CONSTRUCTORS:
        patches.when_imported(target.module, functools.partial(Patches.replace, target=target, make=_noted))


class _GraphModeContext:
    """What a module asks for the mode, where that decides about bookkeeping: inside a program it is a graph's."""

    def executing_eagerly(self) -> bool:
        return not _local.programs and context.executing_eagerly()

    def __getattr__(self, name: str) -> Any:
        return getattr(context, name)


def _noted(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if in_program():
            _local.programs[-1].layers.append((self, callsite.user_site()))

    return init


def _identity(original: Any) -> Any:
    def get_collection(self: Any, name: Any, scope: Any = None) -> Any:
        found = original(self, name, scope)
        if not in_program():
            return found
        return _IdentityList(item.compute() if isinstance(item, LazyLoss) else item for item in found)

    return get_collection


def _from_store(original: Any) -> Any:
    def variable_v1(**kwargs: Any) -> Any:
        create = getattr(current_store(), "create", None) if in_program() else None
        return original(**kwargs) if create is None else create(original, **kwargs)

    return variable_v1


def _made_anew(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A template that is kept from one program to the next has not been called yet in the next one's graph.
        if in_program() and id(self) not in _local.programs[-1].templates:
            _local.programs[-1].templates.add(id(self))
            self._first_call, self._variables_created = True, False
            self._variable_scope_context_manager = None
        return original(self, *args, **kwargs)

    return call


def _program_store_kept(original: Any) -> Any:
    def as_default(self: Any) -> Any:
        # A template that was made eagerly, outside of any program, would keep its variables to itself.
        return contextlib.nullcontext() if in_program() else original(self)

    return as_default


def _built_once(original: Any) -> Any:
    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        # A graph has the ops of a loop once, however often they run; eagerly each iteration makes them again.
        if in_program() and context.executing_eagerly():
            cond, body = _repeating(cond), _repeating(body)
        return original(cond, body, *args, **kwargs)

    return while_loop


def _repeating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that finds all names and collections, on each call, as they were on the first one."""
    before: list[tuple[Any, str, Any]] | None = None

    def repeat(*args: Any) -> Any:
        nonlocal before
        now = _local.programs[-1].bookkeeping()
        if before is None:
            before = now
            return function(*args)
        with contextlib.ExitStack() as stack:
            for owner, name, noted in before:
                stack.enter_context(_attribute_set(owner, name, _copy(noted) if noted else noted))
            return function(*args)

    return repeat


def _named_for_callers_outside_tensorflow(original: Any) -> Any:
    def name_scope(name: Any, default_name: Any = None, values: Any = None, skip_on_eager: bool = True) -> Any:
        # Eagerly TensorFlow opens no scopes for its own ops, which cost time, and yields None for their names;
        # TF1 libraries use the same function, and the name.
        if skip_on_eager and _local.programs:
            skip_on_eager = sys._getframe(1).f_globals.get("__name__", "").startswith(_WITHOUT_NAMES)
        return original(name, default_name, values, skip_on_eager)

    return name_scope


def _unique(original: Any) -> Any:
    def enter(self: Any) -> Any:
        # A graph numbers the name scopes that are entered again; eager mode does not.
        name = self._name
        if not name or name[-1] == "/" or not _local.programs or not context.executing_eagerly():
            return original(self)
        graph = ops.get_default_graph()
        if not isinstance(graph, _EagerGraph):
            return original(self)
        self._name = graph.unique_name((context.context().scope_name or "") + name) + "/"
        try:
            return original(self)
        finally:
            self._name = name

    return enter


_dispatchers = Shared(_install)
_layer_constructors = Shared(_install_constructors)
