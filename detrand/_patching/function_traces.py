"""Private names of TensorFlow for how it traces a ``tf.function`` and finds its traces again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from detrand._patching.patches import Target
from detrand.changes import Changes

FUNCTION_INITIALIZE = Target(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "Function._initialize",
    ("self", "args", "kwds"),
)
CONCRETE_FUNCTION = Target(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "Function._get_concrete_function_garbage_collected",
    ("self",),
)
FUNCTION_CALL = Target(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function.__call__", ("self",)
)
FUNCTION_TRACE = Target(
    "tensorflow.python.eager.polymorphic_function.tracing_compilation",
    "_create_concrete_function",
    ("function_type", "type_context", "func_graph", "tracing_options"),
)
FUNCTION_CONTEXT = Target(
    "tensorflow.python.eager.polymorphic_function.function_context", "make_function_context", ("scope_type",)
)
ENCLOSING_XLA_CONTEXT = Target(
    "tensorflow.python.eager.polymorphic_function.function_context", "_enclosing_xla_context", ()
)
_NOTE = "_detrand_first_trace"
_IS_TRACED_TWICE = "_detrand_is_traced_twice"


@contextlib.contextmanager
def traced_twice(function: Any) -> Iterator[None]:
    """Mark a ``tf.function`` whose first trace is made inside as one that is traced a second time at once."""
    with Changes() as changes:
        changes.on_undo(vars(function).pop, _IS_TRACED_TWICE, None)
        setattr(function, _IS_TRACED_TWICE, True)
        yield


def note_for_second_trace(function: Any, note: object) -> None:
    """Leave a note for the second trace of a ``tf.function`` whose first trace has ended, if a second will follow."""
    if function._created_variables:
        second = function._no_variable_creation_config
    elif getattr(function, _IS_TRACED_TWICE, False):
        second = function._variable_creation_config
    else:
        return
    setattr(second.python_function, _NOTE, note)


def pop_note(tracing_options: Any) -> Any:
    """Remove and return the note that was left for a trace that is about to begin; None if there is none."""
    return getattr(tracing_options.python_function, "__dict__", {}).pop(_NOTE, None)


def leave_note(tracing_options: Any, note: object) -> None:
    """Leave a note for the next trace of a function that is being traced."""
    setattr(tracing_options.python_function, _NOTE, note)


class _OneCall:
    """The context of one call of a function, which TensorFlow takes to need a trace of its own."""

    __slots__ = ("__weakref__",)

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


_pending = threading.local()  # the newest context, until its trace is made


def context_of_one_call() -> _OneCall:
    """Return a new context, for which TensorFlow looks up a trace and then makes one."""
    _pending.context = context = _OneCall()
    return context


def in_context_of(context: Any, number: int) -> Any:
    """Return the context in which TensorFlow looks up a trace, made different for each number."""
    return context._replace(context=context.context._replace(xla_context_id=-number))


def keep_context_with(func_graph: Any) -> None:
    """Keep the newest context as long as the graph of its trace: TensorFlow finds traces by the id of their context."""
    func_graph._detrand_context = vars(_pending).pop("context", None)
