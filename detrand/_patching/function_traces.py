"""What detrand uses without a public name of how TensorFlow traces a ``tf.function``, and finds its traces again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from detrand._patching.patches import Target

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
FUNCTION_TRACE = Target(
    "tensorflow.python.eager.polymorphic_function.tracing_compilation",
    "_create_concrete_function",
    ("function_type", "type_context", "func_graph", "tracing_options"),
)
ENCLOSING_XLA_CONTEXT = Target(
    "tensorflow.python.eager.polymorphic_function.function_context", "_enclosing_xla_context", ()
)
_NOTE = "_detrand_first_trace"
_IS_TRACED_TWICE = "_detrand_is_traced_twice"


@contextlib.contextmanager
def traced_twice(function: Any) -> Iterator[None]:
    """Says that a ``tf.function`` whose first trace is made inside is traced a second time at once."""
    setattr(function, _IS_TRACED_TWICE, True)
    try:
        yield
    finally:
        vars(function).pop(_IS_TRACED_TWICE, None)


def note_for_second_trace(function: Any, note: object) -> None:
    """Leaves a note for the second trace of a ``tf.function`` whose first is over, if there is to be one."""
    if function._created_variables:
        second = function._no_variable_creation_config
    elif getattr(function, _IS_TRACED_TWICE, False):
        second = function._variable_creation_config
    else:
        return
    setattr(second.python_function, _NOTE, note)


def pop_note_for_second_trace(tracing_options: Any) -> Any:
    """Returns the note that was left for a trace that is about to begin, if it is a second one, and removes it."""
    return getattr(tracing_options.python_function, "__dict__", {}).pop(_NOTE, None)


class _OneCall:
    """What TensorFlow takes for the context of a function's call that has a trace of its own."""

    __slots__ = ()

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


_calls: list[_OneCall] = []  # traces are kept by the identity of these, which nothing else may ever have


def context_of_one_call() -> _OneCall:
    """Returns another context at each call."""
    call = _OneCall()
    _calls.append(call)
    return call
