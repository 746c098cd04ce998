"""Which ops of TensorFlow code are the same places of a program although they are executed, or traced, several times.

A graph has the ops of a loop's body once; eager code executes the body again and again. A ``tf.function`` that creates
variables is traced twice and is still one program. A dataset that is made in each step has a function that is
traced in each. What initializes a variable runs once, however often the step around it does.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand._patching import function_traces
from detrand._patching.patches import Patches
from detrand._patching.tensorflow import (
    DATASET_FUNCTION,
    EAGER_COND,
    SMART_CONDS,
    SWITCH_CASE_BRANCHES,
    WHILE_LOOPS,
    executing_eagerly,
)
from detrand._patching.variables import CREATE_VARIABLE, UnreadVariable
from detrand.seeding import regions, streams
from detrand.seeding.streams import Cursor

_PARALLEL_ITERATIONS = 2  # its position among the arguments of a loop that follow its functions


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    for target in WHILE_LOOPS:
        patches.replace(target, _repeating_its_ops)
    patches.replace(EAGER_COND, functools.partial(_in_branches, lambda pred: True))
    for target in SMART_CONDS:
        patches.replace(target, functools.partial(_in_branches, tf.is_tensor))
    patches.replace(SWITCH_CASE_BRANCHES, _in_numbered_branches)
    patches.replace(DATASET_FUNCTION, _traced_with_the_same_ops)
    patches.replace(function_traces.FUNCTION_INITIALIZE, _collecting_first_trace)
    patches.replace(function_traces.CONCRETE_FUNCTION, _tracing_twice_in_a_graph)
    patches.replace(function_traces.FUNCTION_TRACE, _replaying_first_trace)
    patches.replace(function_traces.ENCLOSING_XLA_CONTEXT, _traced_for_each_call)
    patches.replace(CREATE_VARIABLE, _marking_initialization)


def _repeating_its_ops(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets each iteration of an eager loop after the first run the ops of the first once more.

    A graph's loop runs one iteration at a time: were there several, which of them draws which run would be left to
    chance.
    """

    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None or not (callable(cond) and callable(body)):
            return original(cond, body, *args, **kwargs)
        if not executing_eagerly():
            if len(args) > _PARALLEL_ITERATIONS:
                args = (*args[:_PARALLEL_ITERATIONS], 1, *args[_PARALLEL_ITERATIONS + 1 :])
            else:
                kwargs["parallel_iterations"] = 1
            return original(cond, body, *args, **kwargs)
        with cursor.control_flow(regions.LOOP) as run:
            return original(functools.partial(run, 0, cond), functools.partial(run, 1, body), *args, **kwargs)

    return while_loop


def trying_its_step_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets Keras's ``rnn`` call its step once to learn shapes: what that draws is thrown away, and takes no op seed."""
    signature = inspect.signature(original)

    def rnn(step_function: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None or signature.bind(step_function, *args, **kwargs).arguments.get("unroll"):
            return original(step_function, *args, **kwargs)
        calls = itertools.count()

        def step(*step_args: Any) -> Any:
            if next(calls):
                return step_function(*step_args)
            with cursor.shape_inference(is_executed=lambda: cursor.is_initializing):
                return step_function(*step_args)

        return original(step, *args, **kwargs)

    return rnn


def _in_branches(is_conditional: Callable[[Any], bool], original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the branches of an eager conditional apart: a graph has the ops of both."""

    def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        cursor = _cursor_in_region()
        if cursor is None or not is_conditional(pred) or not (callable(true_fn) and callable(false_fn)):
            return original(pred, true_fn, false_fn, *args, **kwargs)
        with cursor.control_flow(regions.CONDITIONAL) as run:
            branches = [functools.partial(run, index, function) for index, function in enumerate((true_fn, false_fn))]
            return original(pred, *branches, *args, **kwargs)

    return cond


def _in_numbered_branches(original: Callable[..., Any]) -> Callable[..., Any]:
    def branches_of(*args: Any, **kwargs: Any) -> Any:
        branches = original(*args, **kwargs)
        cursor = _cursor_in_region()
        if cursor is None:
            return branches
        return [functools.partial(_run_branch, cursor, index, function) for index, function in enumerate(branches)]

    return branches_of


def _run_branch(cursor: Cursor, index: int, function: Callable[[], Any]) -> Any:
    with cursor.control_flow(regions.SWITCH) as run:
        return run(index, function)


def _traced_with_the_same_ops(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the function of a dataset that is made in each step take the op seeds that it took in the first."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        cursor = _cursor_in_region()
        if cursor is None:
            return original(self, *args, **kwargs)
        with cursor.control_flow(regions.DATASET_FUNCTION) as run:
            return run(0, original, self, *args, **kwargs)

    return __init__


def _cursor_in_region() -> Cursor | None:
    cursor = streams.current()
    return cursor if cursor is not None and cursor.in_region and executing_eagerly() else None


def _collecting_first_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        cursor = streams.current()
        if cursor is None:
            original(self, *args, **kwargs)
            return
        with cursor.first_trace(comes_again=not executing_eagerly()) as trace:
            original(self, *args, **kwargs)
        function_traces.note_for_second_trace(self, (cursor, trace))

    return initialize


def _tracing_twice_in_a_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Says so of ``get_concrete_function``, which looks for its own trace as a second call would."""

    def get_concrete_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.current() is None or executing_eagerly():
            return original(self, *args, **kwargs)
        with function_traces.traced_twice(self):
            return original(self, *args, **kwargs)

    return get_concrete_function


def _replaying_first_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the second trace of a ``tf.function``, one that has created variables say, take the seeds of the first."""

    def create_concrete_function(
        function_type: Any, type_context: Any, func_graph: Any, tracing_options: Any, *args: Any, **kwargs: Any
    ) -> Any:
        note = function_traces.pop_note_for_second_trace(tracing_options)
        if note is None or note[0] is not streams.current():
            return original(function_type, type_context, func_graph, tracing_options, *args, **kwargs)
        cursor, trace = note
        with cursor.second_trace(trace):
            return original(function_type, type_context, func_graph, tracing_options, *args, **kwargs)

    return create_concrete_function


def _traced_for_each_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a ``tf.function`` that is called while a graph is built be traced for that call alone.

    Two calls are two places of the program, as in a graph that is made by calling the Python function. One trace would
    give them one op seed; and which kernels it shares between them is up to TensorFlow's optimizers. Nor would a trace
    that was made elsewhere be what XLA can compile.
    """

    def enclosing_xla_context() -> Any:  # TensorFlow asks for it in graphs alone: eager calls cost nothing
        return original() if streams.current() is None else function_traces.context_of_one_call()

    return enclosing_xla_context


def _marking_initialization(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None or cls is UnreadVariable:
            return original(cls, *args, **kwargs)
        with cursor.initializing():
            return original(cls, *args, **kwargs)

    return create
