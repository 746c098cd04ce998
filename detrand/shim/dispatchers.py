"""The functions of TensorFlow and Keras that behave differently inside an emulated graph.

Enter `dispatchers` around an emulated graph, and `layer_constructors` around one whose new layers are to be noted.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detrand._patching.graphs import (
    ENTER_NAME_SCOPE,
    GET_COLLECTION,
    KEEP_BOOKKEEPING,
    NAME_SCOPE,
    STORE_CREATES_VARIABLE,
    TEMPLATE_CALLS,
    TEMPLATE_STORE,
    EagerGraph,
    check_overridden,
    context_with_mode,
    eager_name_scope,
    forget_first_call,
    rename_scope,
    variable_store,
)
from detrand._patching.keras import LAYER_CONSTRUCTORS
from detrand._patching.patches import Patches, Replacements, Shared, with_signature_of
from detrand._patching.tensorflow import WHILE_LOOPS, executing_eagerly
from detrand.changes import Changes, attribute_set
from detrand.seeding import callsite
from detrand.shim.emulated_graph import copied, current_emulated_graph, in_emulated_graph

_context = context_with_mode(lambda: not in_emulated_graph() and executing_eagerly())
_WITHOUT_NAMES = ("tensorflow.", "keras.", "tf_keras.")


def _install(patches: Patches) -> None:
    check_overridden()
    for module in KEEP_BOOKKEEPING:
        patches.set(module, "context", _context)
    for target in TEMPLATE_CALLS:
        patches.replace(target, _called_first_in_each_graph)
    patches.replace(TEMPLATE_STORE, _call_store_kept)
    patches.replace(STORE_CREATES_VARIABLE, _created_by_store)
    patches.replace(GET_COLLECTION, _by_identity)
    for target in WHILE_LOOPS:
        patches.replace(target, _named_once)
    patches.replace(NAME_SCOPE, _named_for_callers_outside_tensorflow)
    patches.replace(ENTER_NAME_SCOPE, _numbered)


def _install_constructors(patches: Patches) -> None:
    patches.replace_when_imported(_noting())


@functools.cache
def _noting() -> Replacements:
    return Replacements(dict.fromkeys(LAYER_CONSTRUCTORS, _noted))


dispatchers = Shared(_install)
layer_constructors = Shared(_install_constructors)


def _noted(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if in_emulated_graph():
            current_emulated_graph().layers.append((self, callsite.user_site()))

    return with_signature_of(original, init)


def _by_identity(original: Any) -> Any:
    def get_collection(self: Any, name: Any, scope: Any = None) -> Any:
        found = original(self, name, scope)
        if not in_emulated_graph():
            return found
        return _IdentityList(item.compute() if isinstance(item, LazyLoss) else item for item in found)

    return get_collection


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
    """A regularization loss in a collection, computed when the collection is read."""

    regularizer: Callable[[Any], Any]
    variable: tf.Variable

    def compute(self) -> Any:
        """Return the loss."""
        return self.regularizer(self.variable)


def _created_by_store(original: Any) -> Any:
    def variable_v1(**kwargs: Any) -> Any:
        create = getattr(variable_store(), "create", None)
        return original(**kwargs) if create is None else create(original, **kwargs)

    return variable_v1


def _called_first_in_each_graph(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A template may be kept from one call to the next, in whose graph it has not been called yet.
        if in_emulated_graph() and id(self) not in current_emulated_graph().templates:
            current_emulated_graph().templates.add(id(self))
            forget_first_call(self)
        return original(self, *args, **kwargs)

    return call


def _call_store_kept(original: Any) -> Any:
    def as_default(self: Any) -> Any:
        # A template that was made eagerly, outside every emulated graph, would use a store of its own.
        return contextlib.nullcontext() if in_emulated_graph() else original(self)

    return as_default


def _named_once(original: Any) -> Any:
    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        # A graph has each op of a loop once. In eager mode each iteration would take new names.
        if in_emulated_graph() and executing_eagerly():
            cond, body = _repeating(cond), _repeating(body)
        return original(cond, body, *args, **kwargs)

    return while_loop


def _repeating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that finds all names and collections, in each call, as they were in the first call."""
    before: list[tuple[Any, str, Any]] | None = None

    def repeat(*args: Any) -> Any:
        nonlocal before
        now = current_emulated_graph().bookkeeping()
        if before is None:
            before = now
            return function(*args)
        with contextlib.ExitStack() as stack:
            for owner, name, noted in before:
                stack.enter_context(attribute_set(owner, name, copied(noted)))
            return function(*args)

    return repeat


def _named_for_callers_outside_tensorflow(original: Any) -> Any:
    def name_scope(name: Any, default_name: Any = None, values: Any = None, skip_on_eager: bool = True) -> Any:
        # In eager mode TensorFlow saves the time for name scopes of its own ops, and yields None. TF1 libraries call
        # the same function, and use the name.
        if skip_on_eager and in_emulated_graph():
            skip_on_eager = sys._getframe(1).f_globals.get("__name__", "").startswith(_WITHOUT_NAMES)
        return original(name, default_name, values, skip_on_eager)

    return name_scope


def _numbered(original: Any) -> Any:
    def enter(self: Any) -> Any:
        # A graph numbers name scopes that are entered again; eager mode does not.
        name = self.name
        if not name or name[-1] == "/" or not in_emulated_graph() or not executing_eagerly():
            return original(self)
        graph = current_emulated_graph().graph
        if not isinstance(graph, EagerGraph):
            return original(self)
        with Changes() as changes:
            changes.on_undo(rename_scope, self, name)
            rename_scope(self, graph.unique_name(eager_name_scope() + name) + "/")
            return original(self)

    return enter
