"""Control flow and functions of TensorFlow: which executions and traces are the same op nodes of a program.

A graph has the ops of a loop's body once; eager code executes the body again and again. A ``tf.function`` that creates
variables is traced twice and is still one program. A dataset that is made in each step has a function that is traced
in each step. What initializes a variable runs once, however often the step around it does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from detrand._patching import function_traces
from detrand._patching.graphs import builds_a_function
from detrand._patching.patches import Patches, Replacements
from detrand._patching.tensorflow import (
    DATASET_FUNCTION,
    EAGER_COND,
    SMART_CONDS,
    SWITCH_CASE_BRANCHES,
    WHILE_LOOPS,
    executing_eagerly,
)
from detrand._patching.variables import CREATE_VARIABLE, is_unread
from detrand.errors import ScopeError
from detrand.seeding import cursors, regions
from detrand.seeding.cursors import Cursor, Trace, governed

_PARALLEL_ITERATIONS = 2  # its position among the arguments of a loop after the loop's functions


def install(patches: Patches) -> None:
    """Install the dispatchers."""
    patches.replace_all(_dispatchers())


@functools.cache
def _dispatchers() -> Replacements:
    return Replacements(
        {
            **dict.fromkeys(WHILE_LOOPS, _while_loop),
            EAGER_COND: _eager_cond,
            **dict.fromkeys(SMART_CONDS, _smart_cond),
            SWITCH_CASE_BRANCHES: _switch_case_branches,
            DATASET_FUNCTION: _dataset_function,
            function_traces.FUNCTION_INITIALIZE: _first_trace,
            function_traces.CONCRETE_FUNCTION: _get_concrete_function,
            function_traces.FUNCTION_TRACE: _trace,
            function_traces.ENCLOSING_XLA_CONTEXT: _context_of_one_call,
            function_traces.FUNCTION_CONTEXT: _function_context,
            CREATE_VARIABLE: _create_variable,
        }
    )


@governed
def _while_loop(cursor: Cursor, original: Any, cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    """Make each iteration of an eager loop a further run of the ops of the first iteration.

    A graph's loop runs one iteration at a time. With several in parallel, which iteration draws which run would be
    left to chance.
    """
    if not (callable(cond) and callable(body)):
        return original(cond, body, *args, **kwargs)
    if not executing_eagerly():
        if len(args) > _PARALLEL_ITERATIONS:
            args = (*args[:_PARALLEL_ITERATIONS], 1, *args[_PARALLEL_ITERATIONS + 1 :])
        else:
            kwargs["parallel_iterations"] = 1
        return original(cond, body, *args, **kwargs)
    with cursor.control_flow(regions.LOOP) as run:
        return original(functools.partial(run, 0, cond), functools.partial(run, 1, body), *args, **kwargs)


def _in_branches(
    is_conditional: Callable[[Any], bool],
    cursor: Cursor,
    original: Any,
    pred: Any,
    true_fn: Any = None,
    false_fn: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make the branches of an eager conditional regions of their own: a graph has the ops of both."""
    if not _is_in_eager_region(cursor) or not is_conditional(pred) or not (callable(true_fn) and callable(false_fn)):
        return original(pred, true_fn, false_fn, *args, **kwargs)
    with cursor.control_flow(regions.CONDITIONAL) as run:
        branches = [functools.partial(run, index, function) for index, function in enumerate((true_fn, false_fn))]
        return original(pred, *branches, *args, **kwargs)


_eager_cond = governed(functools.partial(_in_branches, lambda pred: True))
_smart_cond = governed(functools.partial(_in_branches, tf.is_tensor))


@governed
def _switch_case_branches(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    branches = original(*args, **kwargs)
    if not _is_in_eager_region(cursor):
        return branches

    def run_branch(index: int, function: Callable[[], Any]) -> Any:
        with cursor.control_flow(regions.SWITCH) as run:
            return run(index, function)

    return [functools.partial(run_branch, index, function) for index, function in enumerate(branches)]


@governed
def _dataset_function(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Give the function of a dataset that is made in each step the op seeds that it took in the first step."""
    if not _is_in_eager_region(cursor):
        return original(*args, **kwargs)
    with cursor.control_flow(regions.DATASET_FUNCTION) as run:
        return run(0, original, *args, **kwargs)


def _is_in_eager_region(cursor: Cursor) -> bool:
    return cursor.in_region and executing_eagerly()


@governed
def _first_trace(cursor: Cursor, original: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    with cursor.first_trace(comes_again=not executing_eagerly()) as trace:
        original(function, *args, **kwargs)
    function_traces.note_for_second_trace(function, _FirstTrace(cursor, trace, executing_eagerly()))


class _FirstTrace(NamedTuple):
    """What the traces of a function that follow its first one need to know."""

    cursor: Cursor
    ops: Trace
    was_eager: bool  # whether the function was called in eager code
    second: Any = None  # the type of the second trace, if a third trace of the type will follow


@governed
def _get_concrete_function(cursor: Cursor, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Announce that ``get_concrete_function`` in a graph traces twice, since it finds its own trace as a call would."""
    if executing_eagerly():
        return original(function, *args, **kwargs)
    with function_traces.traced_twice(function):
        return original(function, *args, **kwargs)


def _trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the second trace of a ``tf.function``, such as one that has created variables, take the first's op seeds.

    TensorFlow makes a third trace in the second call if initial values depend on the function's arguments: it makes
    the second in a ``tf.cond`` that asks whether the variables are initialized.
    """

    def create_concrete_function(
        function_type: Any, type_context: Any, func_graph: Any, tracing_options: Any, *args: Any, **kwargs: Any
    ) -> Any:
        function_traces.keep_context_with(func_graph)
        first: _FirstTrace | None = function_traces.pop_note(tracing_options)
        trace = functools.partial(original, function_type, type_context, func_graph, tracing_options, *args, **kwargs)
        if first is None or cursors.current() is not first.cursor:
            return trace()
        if first.second is None and first.was_eager and not executing_eagerly():
            function_traces.leave_note(tracing_options, first._replace(second=function_type))
        elif first.second is not None:
            function_traces.leave_note(tracing_options, first)
            if function_type != first.second:
                return trace()
            if drawn := [op.site for op in first.ops if op.phase == "compute"]:
                raise ScopeError(
                    f"the tf.function that draws at {drawn[0]} is traced a third time, with ops that count their runs "
                    "from 0 and would repeat numbers. TensorFlow does so if the initial value of a variable that the "
                    "function creates depends on its arguments. Create the variable before the function is called."
                )
        with first.cursor.second_trace(first.ops):
            return trace()

    return create_concrete_function


@governed
def _context_of_one_call(cursor: Cursor, original: Any) -> Any:
    """Make TensorFlow trace a ``tf.function`` that is called while a graph is built anew for that call.

    Two calls have op nodes of their own, as in a graph that is made by calling the Python function. One trace would
    give them one op seed, and which kernels they share would be up to TensorFlow's optimizers. Nor could XLA compile a
    trace that was made elsewhere. TensorFlow asks for this context only in graphs, so eager calls cost nothing.
    """
    return function_traces.context_of_one_call()


@governed
def _function_context(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Make TensorFlow trace a ``tf.function`` anew if the stream asks for it; the trace has the stream's op seeds."""
    context, stream = original(*args, **kwargs), cursor.stream
    is_new = stream.traces_anew and executing_eagerly()
    return function_traces.in_context_of(context, stream.number) if is_new else context


@governed
def _create_variable(cursor: Cursor, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    if is_unread(cls):
        return original(cls, *args, **kwargs)
    # As in a TF1 graph, an initial value does not depend on what is built around it.
    independent = tf.control_dependencies(None) if builds_a_function() else contextlib.nullcontext()
    with cursor.initializing(), independent:
        return original(cls, *args, **kwargs)
