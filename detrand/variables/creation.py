"""Scopes that find variables which a model creates instead of reusing its own.

Two patched functions see every creation: the metaclass that creates all variables of TensorFlow, in any graph, and the
constructor of Keras 3's variables. One creation can contain others (a Keras variable holds a TensorFlow variable, a
strategy's variable holds one for each replica), so only the outermost creation in a thread counts.

Each thread has the observers of the scopes that it is in. A thread that is started inside a scope starts with the
observers of its parent.
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

import tensorflow as tf

from detrand._patching.graphs import scratch_function_graph
from detrand._patching.keras import KERAS3_CREATE_VARIABLE, KERAS3_INITIALIZE_LATER, keras3_dtype, keras3_path
from detrand._patching.patches import Patches, Shared
from detrand._patching.variables import CREATE_VARIABLE, scoped_variable_name
from detrand.arguments import plural
from detrand.errors import VariableCreationError
from detrand.scopes import Scope
from detrand.seeding import callsite, cursors
from detrand.variables.sources import name_of, shape_tuple, spec_of

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


@dataclass(frozen=True)
class CreatedVariable:
    """A variable that was, or was about to be, created.

    Attributes:
      name: its name with all scopes, without ``:0``; of a Keras 3 variable, its path.
      shape: its shape, with ``None`` for each unknown dimension; ``None`` if the rank is unknown.
      dtype: the name of its dtype; ``None`` if it is unknown.
      caller: ``file:line`` of the user's code.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str | None
    caller: str

    @classmethod
    def of(cls, variable: Any, caller: str) -> CreatedVariable:
        """Return the description of an existing variable."""
        spec = spec_of(variable)
        return cls(name_of(variable), spec.shape, spec.dtype, caller)

    def columns(self) -> tuple[str, str, str, str]:
        """Return the name, shape, dtype and line as text."""
        shape, dtype = ("unknown" if value is None else value for value in (self.shape, self.dtype))
        return self.name, f"shape {shape}", f"dtype {dtype}", f"at {self.caller}"


class _Observer:
    """The reaction of a scope to creations in its threads."""

    open = True

    def attempted(self, describe: Callable[[], CreatedVariable]) -> None:
        """Called before a variable is created."""

    def created(self, variable: Any, caller: str) -> None:
        """Called after a variable was created."""

    def end(self, error: BaseException | None) -> None:
        """Called when the scope is left, with the error that leaves it, if any."""


class _Refusing(_Observer):
    def __init__(self) -> None:
        self._message: str | None = None

    def attempted(self, describe: Callable[[], CreatedVariable]) -> None:
        name, shape, dtype, line = describe().columns()
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
        self._created: list[CreatedVariable] = []
        # A replica can get the variable that another replica has created. A tf.function behaves differently if a
        # variable still exists, so the references are weak.
        self._seen: dict[int, weakref.ref[Any]] = {}

    def created(self, variable: Any, caller: str) -> None:
        with self._lock:
            seen = self._seen.get(id(variable))
            if seen is None or seen() is not variable:
                self._seen[id(variable)] = weakref.ref(variable)
                self._created.append(CreatedVariable.of(variable, caller))

    def end(self, error: BaseException | None) -> None:
        if not self._created:
            return
        count = plural(len(self._created), "variable was", "variables were")
        listing = f"{count} created inside catch_and_raise_created_variables():\n{_table(self._created)}"
        if error is None:
            raise VariableCreationError(f"{listing}\n{_REMEDY}")
        if sys.version_info >= (3, 11):
            error.add_note(f"Before this error, {listing}")


def _table(created: list[CreatedVariable]) -> str:
    rows = [variable.columns() for variable in created]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0  # nothing follows it
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)) for row in rows)


class _Thread(threading.local):
    """The observers of the calling thread, innermost last, and whether it is inside a creation."""

    def __init__(self) -> None:
        self.observers: list[_Observer] = []
        self.creating = False

    def open_observers(self) -> list[_Observer]:
        # A scope of the parent can end before the thread does, or be left in a different thread.
        self.observers = [observer for observer in self.observers if observer.open]
        return self.observers


_thread = _Thread()


def _observe(make_observer: Callable[[], _Observer], stack: contextlib.ExitStack) -> None:
    observer = make_observer()

    def end(kind: Any, error: BaseException | None, traceback: Any) -> None:
        observer.open = False
        observer.end(error)

    stack.enter_context(_dispatchers)
    _thread.observers.append(observer)
    stack.push(end)


def _install(patches: Patches) -> None:
    patches.run_threads_in(_scope_of_child_thread)
    patches.replace(CREATE_VARIABLE, _observed_variable)
    for target, make in (
        (KERAS3_CREATE_VARIABLE, _observed_keras3_variable),
        (KERAS3_INITIALIZE_LATER, _unobserved),
    ):
        patches.when_imported(target.module, functools.partial(Patches.replace, target=target, make=make))


_dispatchers = Shared(_install)


def _scope_of_child_thread() -> contextlib.AbstractContextManager[None] | None:
    observers = list(_thread.open_observers())
    return _observed_thread(observers) if observers else None


@contextlib.contextmanager
def _observed_thread(observers: list[_Observer]) -> Iterator[None]:
    _thread.observers = observers
    yield


def _observed_variable(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        observers = _observers_of_creation()
        arguments = _creation_arguments(cls, args, kwargs) if observers else None
        if arguments is None:
            return original(cls, *args, **kwargs)
        caller = str(callsite.user_site())
        _announce(observers, lambda: _attempted_variable(arguments, caller))
        variable = _unobserved(original)(cls, *args, **kwargs)
        for observer in observers:
            observer.created(variable, caller)
        return variable

    return create


def _observed_keras3_variable(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        observers = _observers_of_creation()
        arguments = _bound(signature, (self, *args), kwargs) if observers else None
        # If the initializer is a TensorFlow variable, the creation of that variable counts instead.
        if arguments is None or isinstance(arguments.get("initializer"), tf.Variable):
            original(self, *args, **kwargs)
            return
        caller = str(callsite.user_site())
        _announce(observers, lambda: _attempted_keras3_variable(self, arguments, caller))
        _unobserved(original)(self, *args, **kwargs)
        for observer in observers:
            observer.created(self, caller)

    return create


def _unobserved(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose creations do not count: they are parts of a creation that was counted."""

    def create(*args: Any, **kwargs: Any) -> Any:
        before, _thread.creating = _thread.creating, True
        try:
            return original(*args, **kwargs)
        finally:
            _thread.creating = before

    return create


def _observers_of_creation() -> list[_Observer]:
    return [] if _thread.creating else list(_thread.open_observers())


def _announce(observers: list[_Observer], describe: Callable[[], CreatedVariable]) -> None:
    for observer in reversed(observers):
        observer.attempted(describe)


def _creation_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call that creates a variable; None if the call wraps an existing variable.

    TensorFlow creates variable objects for the results of assignments, for variables in a function's inputs and for
    the parts of a strategy's variable, from a resource or variables and without an initial value.
    """
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    if "initial_value" not in signature.parameters:
        return None
    arguments = _bound(signature, (None, *args), kwargs)
    return None if arguments is None or arguments.get("handle") is not None else arguments


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return dict(signature.bind_partial(*args, **kwargs).arguments)
    except TypeError:
        return None  # the call will fail


def _attempted_variable(arguments: dict[str, Any], caller: str) -> CreatedVariable:
    definition = arguments.get("variable_def")
    if definition is not None:
        return CreatedVariable(definition.variable_name.removesuffix(":0"), None, None, caller)
    shape, dtype, value = arguments.get("shape"), arguments.get("dtype"), arguments.get("initial_value")
    if isinstance(value, functools.partial) and value.args:
        # get_variable and tf_keras pass an initializer with its shape and dtype.
        shape = value.args[0] if shape is None else shape
        dtype = value.keywords.get("dtype") if dtype is None else dtype
    name = scoped_variable_name(arguments.get("name"))
    return CreatedVariable(name, *_shape_and_dtype(value, shape, dtype), caller)


def _attempted_keras3_variable(variable: Any, arguments: dict[str, Any], caller: str) -> CreatedVariable:
    path = keras3_path(variable, arguments.get("name"))
    initializer, shape, dtype = (arguments.get(name) for name in ("initializer", "shape", "dtype"))
    if callable(initializer) or isinstance(initializer, str):
        dtype = keras3_dtype(dtype)
    else:
        shape = None  # the shape of the initial value counts
    return CreatedVariable(path, *_shape_and_dtype(initializer, shape, dtype), caller)


def _shape_and_dtype(value: Any, shape: Any, dtype: Any) -> tuple[tuple[int | None, ...] | None, str | None]:
    if shape is None or dtype is None:
        tensor = _traced(value, dtype)
        if tensor is not None:
            shape = tensor.shape if shape is None else shape
            dtype = tensor.dtype if dtype is None else dtype
    return shape_tuple(shape), None if dtype is None else tf.as_dtype(dtype).base_dtype.name


def _traced(value: Any, dtype: Any) -> tf.Tensor | None:
    """Return an initial value as a tensor of a temporary graph: nothing runs, and no op seed is used."""
    cursor = cursors.current()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(scratch_function_graph())
            if cursor is not None:
                stack.enter_context(cursor.shape_inference(is_executed=lambda: False))
            return tf.convert_to_tensor(_unobserved(value)() if callable(value) else value, dtype)
    except Exception:  # whatever the user's function raises; the creation itself will raise the error
        return None
