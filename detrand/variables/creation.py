"""Scopes that find variables which a model creates instead of reusing its own.

Two patched functions see every creation: the metaclass that creates all variables of TensorFlow, in any graph, and the
constructor of Keras 3's variables. One creation can contain others (a Keras variable holds a TensorFlow variable, a
strategy's variable holds one for each replica), so only the outermost creation in a thread counts.

A thread that is started inside a scope starts with the observers of its parent.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from detrand._patching.keras import KERAS3_CREATE_VARIABLE, KERAS3_INITIALIZE_LATER, keras3_dtype, keras3_path
from detrand._patching.patches import Patches, Replacements, Shared
from detrand._patching.variables import CREATE_VARIABLE, scoped_variable_name
from detrand.arguments import plural
from detrand.changes import Changes, attribute_set, locked
from detrand.errors import VariableCreationError
from detrand.packages import is_loaded, tf
from detrand.scopes import Entered, Scope
from detrand.seeding import callsite, cursors
from detrand.variables.sources import is_tensorflow_variable, name_of, spec_of
from detrand.variables.spec import dtype_name, shape_tuple

_Shape = tuple[int | None, ...] | None  # None if the rank is unknown
_Description = tuple[str, _Shape, str | None]  # the name with all scopes or the path, the shape, and the dtype if known

_REMEDY = (
    "A model that creates variables when it is called again computes with new weights instead of its own. Create each "
    "variable once, in __init__ or build, keep it on self and reuse it. In a method decorated with "
    "track_tf1_style_variables, use tf.compat.v1.get_variable, get_or_create_layer for a Keras layer, and a different "
    "name for each tf.compat.v1.layers layer."
)


def assert_no_variable_creations() -> Scope:
    """Return a context manager in which no variable can be created.

    It covers ``tf.Variable`` and the variables of TF1 graphs, Keras 3, tf_keras and distribution strategies, in the
    thread that enters it and in threads started inside. An attempt raises before anything is changed: no variable is
    created or added to a graph's collections or to a layer, and no random number is drawn. If the shape or dtype is
    given only by a function that returns the initial value, the function is traced in a temporary graph.

    >>> import tensorflow as tf
    >>> from detrand import assert_no_variable_creations
    >>> weight = tf.Variable([1.0, 2.0])
    >>> with assert_no_variable_creations():
    ...     _ = weight * 3.0

    It also decorates functions:

    >>> @assert_no_variable_creations()
    ... def call(inputs):
    ...     return inputs * tf.Variable([1.0, 2.0], name="scale")
    >>> call(3.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    detrand.errors.VariableCreationError: variable 'scale' (shape (2,), dtype float32) was about to be created at ...

    Raises:
      VariableCreationError: (a `ValueError`) at the attempt, with the variable's name, shape and dtype, and the line
        of user code that creates it. If the code inside catches this error, it is raised again at the end of the block.
    """
    return Scope("assert_no_variable_creations()", functools.partial(_observe, _Refusing))


def catch_and_raise_created_variables() -> Scope:
    """Return a context manager that raises at its end if variables were created inside, with a list of them.

    It covers the same variables as `assert_no_variable_creations`. An exception of the code inside is not replaced;
    from Python 3.11 on, the list is added to it as a note.

    >>> from detrand import catch_and_raise_created_variables
    >>> with catch_and_raise_created_variables():  # doctest: +ELLIPSIS
    ...     a, b = tf.Variable(1.0, name="a"), tf.Variable([1, 2], name="b")
    Traceback (most recent call last):
    detrand.errors.VariableCreationError: 2 variables were created inside catch_and_raise_created_variables():
      a  shape ()    dtype float32  at ...
      b  shape (2,)  dtype int32    at ...

    Raises:
      VariableCreationError: (a `ValueError`) at the end of the block, with the name, shape, dtype and line of user
        code of each variable, in the order of their creation.
    """
    return Scope("catch_and_raise_created_variables()", functools.partial(_observe, _Collecting))


class _Observer:
    """The reaction of a scope to creations in its threads."""

    open = False

    def attempted(self, describe: Callable[[], _Description], caller: str) -> None:
        """Called before a variable is created."""

    def created(self, variable: Any, caller: str) -> None:
        """Called after a variable was created."""

    def end(self, error: BaseException | None) -> None:
        """Called at the end of the block, with the error that leaves it, if any."""


class _Refusing(_Observer):
    _message: str | None = None

    def attempted(self, describe: Callable[[], _Description], caller: str) -> None:
        name, shape, dtype, line = _columns(*describe(), caller)
        self._message = (
            f"variable {name!r} ({shape}, {dtype}) was about to be created {line}, inside "
            f"assert_no_variable_creations(). {_REMEDY}"
        )
        raise VariableCreationError(self._message)

    def end(self, error: BaseException | None) -> None:
        if error is None and self._message is not None:
            raise VariableCreationError(f"{self._message} The code inside caught this error and continued.")


class _Collecting(_Observer):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[tuple[str, ...]] = []
        self._created: list[tuple[str, str]] = []
        # A replica can get the variable that another replica has created. A tf.function behaves differently if a
        # variable still exists, so the references are weak.
        self._seen: dict[int, weakref.ref[Any]] = {}

    def created(self, variable: Any, caller: str) -> None:
        locked(self._lock, self._note, variable, caller)

    def _note(self, variable: Any, caller: str) -> None:
        seen = self._seen.get(id(variable))
        if seen is None or seen() is not variable:
            self._seen[id(variable)] = weakref.ref(variable)
            spec = spec_of(variable)
            self._rows.append(_columns(name_of(variable), spec.shape, spec.dtype, caller))
            self._created.append((name_of(variable), caller))

    def end(self, error: BaseException | None) -> None:
        if not self._rows:
            return
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in self._rows]
        count = plural(len(lines), "variable was", "variables were")
        listing = "\n  ".join([f"{count} created inside catch_and_raise_created_variables():", *lines])
        if error is None:
            raised = VariableCreationError(f"{listing}\n{_REMEDY}")
            raised.created = tuple(self._created)
            raise raised
        if sys.version_info >= (3, 11):
            error.add_note(f"Before this error, {listing}")


def _columns(name: str, shape: _Shape, dtype: str | None, caller: str) -> tuple[str, ...]:
    shape_text, dtype_text = ("unknown" if value is None else value for value in (shape, dtype))
    return name, f"shape {shape_text}", f"dtype {dtype_text}", f"at {caller}"


class _Thread(threading.local):
    """Whether the calling thread is inside a creation.

    Inside a call of ``tf.Variable``, it is known what the call may create: a variable creator may also find a variable
    that exists, as a decorated method does.
    """

    def __init__(self) -> None:
        self.creating = False
        self.may_create: _Creation | None = None


_thread = _Thread()
_observers: Entered[_Observer] = Entered("detrand_observers")


@contextlib.contextmanager
def _observe(make_observer: Callable[[], _Observer]) -> Iterator[None]:
    observer = make_observer()
    with Changes() as changes:
        _dispatchers.install(changes)
        changes.set(observer, "open", True)
        _observers.enter(observer, changes)
        try:
            yield
        except BaseException as error:
            observer.end(error)
            raise
    observer.end(None)


def _install(patches: Patches) -> None:
    patches.run_threads_in(_scope_of_child_thread)
    patches.replace_when_imported(_creations())


@functools.cache
def _creations() -> Replacements:
    return Replacements(
        {
            CREATE_VARIABLE: _observed_in_tensorflow,
            KERAS3_CREATE_VARIABLE: _observed_in_keras3,
            KERAS3_INITIALIZE_LATER: _unobserved,
        }
    )


_dispatchers = Shared(_install)


def _scope_of_child_thread() -> contextlib.AbstractContextManager[None] | None:
    observers = _observers.all()
    return _observing(observers) if observers else None


@contextlib.contextmanager
def _observing(observers: tuple[_Observer, ...]) -> Iterator[None]:
    with Changes() as changes:
        for observer in observers:
            _observers.enter(observer, changes)
        yield


def _observed_in_tensorflow(original: Callable[..., Any]) -> Callable[..., Any]:
    return _observed(original, _creation_in_tensorflow)


def _observed_in_keras3(original: Callable[..., Any]) -> Callable[..., Any]:
    return _observed(original, functools.partial(_creation_in_keras3, inspect.signature(original)))


def _observed(
    original: Callable[..., Any], creation: Callable[..., Callable[[], _Description] | None]
) -> Callable[..., Any]:
    """Return a replacement of a function that creates variables, whose first argument is the class or the object.

    Args:
      original: the function.
      creation: called with the arguments of a call; returns what describes the variable that the call is about to
        create, or None if the call creates none.
    """

    def create(owner: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _thread.may_create
        asks_creators = _asks_creators(owner)
        observers = () if _thread.creating or (asked and asks_creators) else _observers.all()
        describe = None
        if observers:
            with contextlib.suppress(TypeError):  # of wrong arguments, with which the call will fail
                describe = creation(owner, *args, **kwargs)
        if describe is None:
            return original(owner, *args, **kwargs)
        if asked is not None:
            asked.begin()
            return _unobserved(original)(owner, *args, **kwargs)
        created = _Creation(observers, describe, str(callsite.user_site()))
        if asks_creators:
            with attribute_set(_thread, "may_create", created):
                variable = original(owner, *args, **kwargs)
        else:
            created.begin()
            variable = _unobserved(original)(owner, *args, **kwargs)
        created.end(owner if variable is None else variable)  # a constructor returns None
        return variable

    return create


def _asks_creators(owner: Any) -> bool:
    """Return whether variable creators decide which class is created by a call of a class."""
    # A variable compares by value.
    return is_loaded("tensorflow") and (owner is tf.Variable or owner is tf.compat.v1.Variable)


@dataclass
class _Creation:
    """A creation that a line of user code asks for, and whether it has begun."""

    observers: tuple[_Observer, ...]
    describe: Callable[[], _Description]
    caller: str
    has_begun: bool = False

    def begin(self) -> None:
        """Inform the observers before a variable is created; a distributed variable consists of several."""
        if not self.has_begun:
            self.has_begun = True
            for observer in reversed(self.observers):
                observer.attempted(self.describe, self.caller)

    def end(self, variable: Any) -> None:
        """Inform the observers of the variable, if it was created."""
        for observer in self.observers if self.has_begun else ():
            observer.created(variable, self.caller)


def _unobserved(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose creations do not count: they are parts of a creation that was counted."""

    def create(*args: Any, **kwargs: Any) -> Any:
        with attribute_set(_thread, "creating", True):
            return original(*args, **kwargs)

    return create


def _creation_in_tensorflow(cls: Any, *args: Any, **kwargs: Any) -> Callable[[], _Description] | None:
    """Return what describes the variable that a call creates; None if the call wraps an existing variable.

    TensorFlow creates variable objects for the results of assignments, for variables in a function's inputs and for
    the parts of a strategy's variable, from a resource or variables and without an initial value.
    """
    signature = inspect.signature(cls.__init__)
    arguments = signature.bind_partial(cls, *args, **kwargs).arguments
    if "initial_value" not in signature.parameters or arguments.get("handle") is not None:
        return None

    def describe() -> _Description:
        definition = arguments.get("variable_def")
        if definition is not None:
            return definition.variable_name.removesuffix(":0"), None, None
        shape, dtype, value = arguments.get("shape"), arguments.get("dtype"), arguments.get("initial_value")
        if isinstance(value, functools.partial) and value.args:
            # get_variable and tf_keras pass an initializer with its shape and dtype.
            shape = value.args[0] if shape is None else shape
            dtype = value.keywords.get("dtype") if dtype is None else dtype
        return scoped_variable_name(arguments.get("name")), *_shape_and_dtype(value, shape, dtype)

    return describe


def _creation_in_keras3(
    signature: inspect.Signature, variable: Any, *args: Any, **kwargs: Any
) -> Callable[[], _Description] | None:
    """Return what describes the variable that a call creates; None if a TensorFlow variable in it counts instead."""
    arguments = signature.bind_partial(variable, *args, **kwargs).arguments
    value, shape, dtype = (arguments.get(name) for name in ("initializer", "shape", "dtype"))
    if is_tensorflow_variable(value):
        return None

    def describe() -> _Description:
        path = keras3_path(variable, arguments.get("name"))
        if callable(value) or isinstance(value, str):
            return path, *_shape_and_dtype(value, shape, keras3_dtype(dtype))
        return path, *_shape_and_dtype(value, None, dtype)  # the shape of the value counts

    return describe


def _shape_and_dtype(value: Any, shape: Any, dtype: Any) -> tuple[_Shape, str | None]:
    if shape is None or dtype is None:
        tensor = _traced(value, dtype)
        if tensor is not None:
            shape = tensor.shape if shape is None else shape
            dtype = tensor.dtype if dtype is None else dtype
    return shape_tuple(shape), None if dtype is None else dtype_name(dtype)


def _traced(value: Any, dtype: Any) -> Any:
    """Return an initial value as a tensor of a temporary graph: nothing runs, and no op seed is used."""
    if not is_loaded("tensorflow"):
        return None if callable(value) else np.asarray(value)
    from detrand._patching.graphs import scratch_function_graph

    cursor = cursors.current()
    unseeded = contextlib.nullcontext() if cursor is None else cursor.shape_inference(is_executed=lambda: False)
    try:
        with scratch_function_graph(), unseeded:
            return tf.convert_to_tensor(_unobserved(value)() if callable(value) else value, dtype)
    except Exception:  # whatever the user's function raises; the creation itself will raise the error
        return None
