"""The lines of a port that belong to its layers: where each was made, and which of them added an op.

The ops of a Keras layer are added by Keras, often in a functional model that nobody's code calls. What its user wrote
is the line that makes the layer.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from detrand._patching.flax import MAKE_MODULE
from detrand._patching.keras import (
    ADD_WEIGHT,
    LAYER_CALLS,
    LAYER_CONSTRUCTORS,
    OPERATION_CONSTRUCTOR,
    OPTIMIZER_CONSTRUCTORS,
    SCHEDULE_CONSTRUCTORS,
    is_instance_of_loaded,
)
from detrand._patching.optimizers import schedule_of
from detrand._patching.patches import Patches, Replacements, Shared, with_signature_of
from detrand.changes import Changes
from detrand.packages import is_loaded, tf
from detrand.seeding.callsite import UNKNOWN, Site, is_framework, is_of_user, site, site_of_op


class _Call(NamedTuple):
    """A call of a layer that added the ops of a graph from one position up to another one."""

    layer: Any
    graph: tf.Graph
    start: int
    end: int


class _Watching(threading.local):
    """What the innermost block notes."""

    sites: LayerSites | None = None


_watching = _Watching()


class LayerSites:
    """Where layers and optimizers were made, and which layer added an op of a graph."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Site]] = {}  # by id; the layer is kept so that the id stays its own
        self._called: dict[int, Site] = {}  # by id, where user code calls the layer for the first time
        self._calls: list[_Call] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the layers that are made and called in the block, and the optimizers and schedules that are made."""
        with Changes() as changes:
            _patches.install(changes)
            changes.set(_watching, "sites", self)
            yield

    def note_construction(self, made: Any) -> None:
        """Note that user code makes a layer or an optimizer now."""
        if id(made) not in self._made:
            self._made[id(made)] = made, _site_of_construction(made)

    def note_weight(self, weight: Any, frame: Any) -> None:
        """Note the line that makes a weight, if it is in user code. Other weights have the line of their layer."""
        caller = site(frame.f_code.co_filename, frame.f_lineno)
        if not is_framework(caller.filename):
            self._made[id(weight)] = weight, caller

    def note_caller(self, layer: Any, frame: Any) -> None:
        """Note the frame that calls a layer, if it is of user code: in a functional model, the model calls it later."""
        caller = site(frame.f_code.co_filename, frame.f_lineno)
        if not is_framework(caller.filename):
            self._called.setdefault(id(layer), caller)

    def note_call(self, layer: Any, graph: tf.Graph, start: int) -> None:
        """Note that a call of a layer has added the ops of a graph from a position on."""
        if graph.version > start:
            self._calls.append(_Call(layer, graph, start, graph.version))

    def made(self, kind: type) -> list[Any]:
        """Return the objects of a type that were made, in this order."""
        return [each for each, _ in self._made.values() if isinstance(each, kind)]

    def line_of(self, made: Any) -> str:
        """Return the line that made a layer, a weight, an optimizer or a schedule; empty if it is not known."""
        _, place = self._made.get(id(made), (None, UNKNOWN))
        return "" if place == UNKNOWN else str(place)

    def lines_of_optimizer(self, optimizer: Any, rate: Any) -> dict[str, str]:
        """Return the lines that made an optimizer and, in the user's code or else by a schedule, its learning rate."""
        made, computed = self.line_of(optimizer), UNKNOWN
        if is_instance_of_loaded(rate, "tensorflow", "Tensor") and hasattr(rate, "graph"):
            computed = site_of_op(rate.op)
        of_rate = self.line_of(schedule_of(optimizer)) if computed == UNKNOWN else str(computed)
        return {"optimizer": made, "learning_rate": of_rate or made}

    def sites_of(self, operations: list[tf.Operation]) -> dict[str, str]:
        """Return the lines of ops, by name: where the innermost layer was made, and the line that calls it.

        An op that the user's own code adds in the layer has the line of that code.
        """
        layers: dict[int, _Call] = {}
        for call in self._calls:
            if operations and call.graph is operations[0].graph and self.line_of(call.layer):
                for position in range(call.start, call.end):
                    inner = layers.get(position)
                    if inner is None or inner.end - inner.start > call.end - call.start:
                        layers[position] = call
        return {op.name: self._describe(op, layers.get(position)) for position, op in enumerate(operations)}

    def _describe(self, op: tf.Operation, call: _Call | None) -> str:
        line = site_of_op(op)
        if call is None or _is_in_users_call(op):
            return str(line)
        _, made = self._made[id(call.layer)]
        if _is_called_by_model(op):
            line = self._called.get(id(call.layer), UNKNOWN)
        return str(made) if line in (UNKNOWN, made) else f"{made}, called at {line}"


def _site_of_construction(made: Any) -> Site:
    """Return the line of user code that makes an object; where a validation makes it, the line of its class."""
    caller: Any = sys._getframe(2)
    frame = caller
    for _ in range(_DEEPEST):  # the constructor of a subclass calls that of the framework's class
        if frame is None:
            break
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is made:
            caller = frame.f_back
        frame = frame.f_back
    while caller is not None:
        filename = caller.f_code.co_filename
        if not is_framework(filename):
            return site(filename, caller.f_lineno)
        if filename.startswith(_VALIDATION) and filename != __file__:
            break
        caller = caller.f_back
    return _site_of_class(type(made))


_DEEPEST = 30  # frames from the constructor of a framework's class to that of the user's subclass
_VALIDATION = os.path.dirname(os.path.dirname(__file__)) + os.sep


def _site_of_class(kind: type) -> Site:
    """Return the line of a method of a user's class; `UNKNOWN` for a framework's class."""
    for name in ("call", "__call__", "update_step", "__init__"):
        code = getattr(inspect.unwrap(vars(kind).get(name, kind)), "__code__", None)
        if code is not None and not is_framework(code.co_filename):
            return site(code.co_filename, code.co_firstlineno)
    return UNKNOWN


def _install(patches: Patches) -> None:
    patches.replace_when_imported(_noting())


@cache
def _noting() -> Replacements:
    constructors = (*LAYER_CONSTRUCTORS, *OPTIMIZER_CONSTRUCTORS, *SCHEDULE_CONSTRUCTORS)
    return Replacements(
        {
            **dict.fromkeys(constructors, _noting_construction),
            OPERATION_CONSTRUCTOR: partial(_noting_construction, is_op=True),
            MAKE_MODULE: _noting_module,
            **dict.fromkeys(LAYER_CALLS, _noting_call),
            **dict.fromkeys(ADD_WEIGHT, _noting_weight),
        }
    )


_patches = Shared(_install)


def _noting_construction(original: Callable[..., Any], *, is_op: bool = False) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        sites = _watching.sites
        # An op that a layer makes in its call is no part of a functional model.
        if sites is not None and not (is_op and _is_in_function()):
            sites.note_construction(self)
        original(self, *args, **kwargs)

    return with_signature_of(original, init)


def _is_in_function() -> bool:
    if not is_loaded("tensorflow"):
        return False
    from detrand._patching.graphs import builds_a_function

    return builds_a_function()


def _noting_module(original: Callable[..., Any]) -> Callable[..., Any]:
    def construct(cls: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if _watching.sites is not None:
            _watching.sites.note_construction(self)
        original(cls, self, *args, **kwargs)

    return with_signature_of(original, construct)


def _noting_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        sites = _watching.sites
        if sites is None:
            return original(self, *args, **kwargs)
        sites.note_caller(self, sys._getframe(1))
        if not is_loaded("tensorflow"):
            return original(self, *args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        start = graph.version
        result = original(self, *args, **kwargs)
        sites.note_call(self, graph, start)
        return result

    return call


def _noting_weight(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        weight = original(self, *args, **kwargs)
        if _watching.sites is not None:
            _watching.sites.note_weight(weight, sys._getframe(1))
        return weight

    return with_signature_of(original, add_weight)


_CALLS = tuple(target.module.replace(".", "/") + ".py" for target in LAYER_CALLS)


def _is_in_users_call(op: tf.Operation) -> bool:
    """Return whether the user's code, and not a layer of a framework, added an op."""
    for frame in reversed(op.traceback or ()):
        if frame.name == "__call__" and frame.filename.replace("\\", "/").endswith(_CALLS):
            return False
        if is_of_user(frame):
            return True
    return False


def _is_called_by_model(op: tf.Operation) -> bool:
    """Return whether a functional or Sequential model, and not the user's code, calls the layer that added an op."""
    for frame in reversed(op.traceback or ()):
        if frame.filename.replace("\\", "/").endswith(_MODELS):
            return True
        if is_of_user(frame):
            return False
    return False


_MODELS = ("keras/src/ops/function.py", "keras/src/models/sequential.py", "keras/src/engine/functional.py")
