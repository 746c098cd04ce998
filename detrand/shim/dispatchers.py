"""What of TensorFlow and Keras works otherwise inside a TF1 program; outside of one it falls through."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import template
from tensorflow.python.ops import variable_scope as vs
from tensorflow.python.ops.losses import util as losses_util

from detrand._patching.keras import LAYER_CONSTRUCTORS
from detrand._patching.patches import Patches, Shared, Target
from detrand.seeding import callsite
from detrand.shim.emulated_graph import EagerGraph
from detrand.shim.program_state import attribute_set, copied, current_store, in_program, local

_WHILE_LOOP_MODULES = (
    "tensorflow.python.ops.while_loop",
    "tensorflow.compat.v1",
    "tensorflow._api.v2.compat.v1",
)
_WITHOUT_NAMES = ("tensorflow.", "keras.", "tf_keras.")


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
        return not local.programs and context.executing_eagerly()

    def __getattr__(self, name: str) -> Any:
        return getattr(context, name)


def _noted(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if in_program():
            local.programs[-1].layers.append((self, callsite.user_site()))

    return init


def _identity(original: Any) -> Any:
    def get_collection(self: Any, name: Any, scope: Any = None) -> Any:
        found = original(self, name, scope)
        if not in_program():
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


def _from_store(original: Any) -> Any:
    def variable_v1(**kwargs: Any) -> Any:
        create = getattr(current_store(), "create", None) if in_program() else None
        return original(**kwargs) if create is None else create(original, **kwargs)

    return variable_v1


def _made_anew(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A template that is kept from one program to the next has not been called yet in the next one's graph.
        if in_program() and id(self) not in local.programs[-1].templates:
            local.programs[-1].templates.add(id(self))
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
        now = local.programs[-1].bookkeeping()
        if before is None:
            before = now
            return function(*args)
        with contextlib.ExitStack() as stack:
            for owner, name, noted in before:
                stack.enter_context(attribute_set(owner, name, copied(noted) if noted else noted))
            return function(*args)

    return repeat


def _named_for_callers_outside_tensorflow(original: Any) -> Any:
    def name_scope(name: Any, default_name: Any = None, values: Any = None, skip_on_eager: bool = True) -> Any:
        # Eagerly TensorFlow opens no scopes for its own ops, which cost time, and yields None for their names;
        # TF1 libraries use the same function, and the name.
        if skip_on_eager and local.programs:
            skip_on_eager = sys._getframe(1).f_globals.get("__name__", "").startswith(_WITHOUT_NAMES)
        return original(name, default_name, values, skip_on_eager)

    return name_scope


def _unique(original: Any) -> Any:
    def enter(self: Any) -> Any:
        # A graph numbers the name scopes that are entered again; eager mode does not.
        name = self._name
        if not name or name[-1] == "/" or not local.programs:
            return original(self)
        graph, eager_context = local.programs[-1].graph, context.context()
        if not eager_context.executing_eagerly() or not isinstance(graph, EagerGraph):
            return original(self)
        self._name = graph.unique_name((eager_context.scope_name or "") + name) + "/"
        try:
            return original(self)
        finally:
            self._name = name

    return enter


dispatchers = Shared(_install)
layer_constructors = Shared(_install_constructors)
