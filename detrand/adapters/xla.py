"""A stream's numbers into what XLA compiles: ``tf.function(jit_compile=True)``, and what is called inside one.

XLA has kernels of its own for the stateful random ops, which know no seeds: they draw other numbers in each process.
So no such op gets into a graph that is to be compiled. In its place are the same numbers, computed from a counter
that is kept in a variable and moved on by each execution, as the kernel of the op would. How they are computed is up to
`detrand.adapters.xla_draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detrand._patching import xla as _xla
from detrand._patching.patches import Patches, parameters_of
from detrand._patching.random_ops import RANDOM_OPS
from detrand._patching.tensorflow import executing_eagerly, no_recording
from detrand.adapters import xla_draws
from detrand.errors import ScopeError
from detrand.seeding import callsite, streams
from detrand.seeding.streams import Cursor


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    patches.replace(_xla.CALL_IN_GRAPH, _refusing_uncontrolled_ops)
    patches.replace(_xla.LIFT_TO_GRAPH, _with_counters)
    _xla.replace_add_in_random_ops(patches, _of_a_rounded_product)


def added_to_graph(cursor: Cursor, op_type: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Adds a random op that has its seeds to the graph that is built, or, where XLA compiles that, its numbers.

    Args:
      cursor: what governs the thread.
      op_type: TensorFlow's name of the op.
      original: adds the op.
      *args: what ``original`` takes.
      **kwargs: likewise.

    Raises:
      ScopeError: if its numbers cannot be computed in a compiled program.
    """
    if not _xla.is_compiled() or cursor.is_initializing:  # initial values are computed once, and elsewhere
        return original(*args, **kwargs)
    draw = xla_draws.DRAWS.get(op_type)
    if draw is None:
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} is to be compiled by XLA, which cannot draw a session's numbers "
            "with it. Draw outside of the compiled function and pass it the numbers, or compile without "
            "jit_compile=True. Of the random ops that can be compiled, in a scope: " + ", ".join(xla_draws.DRAWS)
        )
    if _xla.has_sessions():
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} is to be compiled by XLA and run by a tf.compat.v1.Session. XLA "
            "counts no runs there: leave XLA out of the graph that others are compared with"
        )
    arguments = {**dict(zip(parameters_of(original), args, strict=False)), **kwargs}
    seeds = arguments.pop("seed", 0) or 0, arguments.pop("seed2", 0) or 0
    arguments.pop("name", None)
    with no_recording():  # no gradient passes what is drawn
        return draw(xla_draws.Counter(_xla.new_counter(), *seeds), **arguments)


def _refusing_uncontrolled_ops(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that was traced for good before, by ``get_concrete_function`` say, is as it is."""

    def make_call_op_in_graph(atomic: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.current() is not None and _xla.is_compiled():
            for op in _xla.ops_of_function(atomic):
                if op.type in RANDOM_OPS:
                    raise ScopeError(
                        f"a function that is called at {callsite.user_site()}, and compiled by XLA there, was traced "
                        f"elsewhere with a {op.type} in it ({op.name}). XLA would draw other numbers with that in "
                        "each process. Call the tf.function itself, inside the tool's scope, instead of a "
                        "ConcreteFunction of it"
                    )
        return original(atomic, *args, **kwargs)

    return make_call_op_in_graph


def _with_counters(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets TensorFlow take out of a compiled function what a variable is initialized with, although that is drawn."""

    def lift_to_graph(tensors: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        counters = _xla.counters_captured_by(list(tensors)) if streams.current() is not None and tensors else []
        if not counters or args or kwargs.get("sources") is not None:
            return original(tensors, graph, *args, **kwargs)
        kwargs.update(sources=[inside for _, inside in counters], handle_captures=True)
        return original(tensors, graph, **kwargs)

    return lift_to_graph


def _of_a_rounded_product(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps XLA from making one operation, which rounds once, of the product and the sum that scale what is drawn."""

    def add(x: Any, y: Any, name: Any = None) -> Any:
        if streams.current() is not None and not executing_eagerly() and _xla.is_compiled():
            x = xla_draws.as_rounded(x)
        return original(x, y, name=name)

    return add
