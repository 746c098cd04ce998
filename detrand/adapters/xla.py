"""Random ops where XLA compiles: in ``tf.function(jit_compile=True)``, and in functions called inside one.

XLA has kernels of its own for the stateful random ops, which know no seeds and draw different numbers in each process.
So no such op gets into a graph that will be compiled. The same numbers take its place, computed by
`detrand.adapters.xla_draws` from a counter that is kept in a variable and moved on by each execution.
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
from detrand.seeding import callsite
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers."""
    patches.replace(_xla.CALL_IN_GRAPH, _call_in_graph)
    patches.replace(_xla.LIFT_TO_GRAPH, _lift_to_graph)
    _xla.replace_add_in_random_ops(patches, _add)


def added_to_graph(cursor: Cursor, op_type: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add a random op that has its seeds to the graph that is built, or its numbers where XLA compiles the graph.

    Args:
      cursor: what governs the thread.
      op_type: TensorFlow's name of the op.
      original: adds the op; takes `args` and `kwargs`.
      *args: arguments of the op.
      **kwargs: arguments of the op.

    Raises:
      ScopeError: if its numbers cannot be computed in a compiled program.
    """
    if not _xla.is_compiled() or cursor.is_initializing:  # initial values are computed once, and elsewhere
        return original(*args, **kwargs)
    draw = xla_draws.DRAWS.get(op_type)
    if draw is None:
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} would be compiled by XLA, which cannot draw a session's numbers "
            "with it. Draw outside the compiled function and pass it the numbers, or leave out jit_compile=True. "
            "These random ops can be compiled in a scope: " + ", ".join(xla_draws.DRAWS)
        )
    if _xla.has_sessions():
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} would be compiled by XLA and run by a tf.compat.v1.Session, where "
            "XLA counts no runs. Leave XLA out of the TF1 program."
        )
    arguments = {**dict(zip(parameters_of(original), args, strict=False)), **kwargs}
    seeds = arguments.pop("seed", 0) or 0, arguments.pop("seed2", 0) or 0
    arguments.pop("name", None)
    with no_recording():  # no gradient passes what is drawn
        return draw(xla_draws.Counter(_xla.new_counter(), *seeds), **arguments)


@governed
def _call_in_graph(cursor: Cursor, original: Any, atomic: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse a compiled call of a function that was traced before, by ``get_concrete_function`` for example."""
    if _xla.is_compiled():
        for op in _xla.ops_of_function(atomic):
            if op.type in RANDOM_OPS:
                raise ScopeError(
                    f"the function that is called at {callsite.user_site()}, and compiled by XLA there, was traced "
                    f"elsewhere with a {op.type} in it ({op.name}). XLA would draw different numbers with that op in "
                    "each process. Call the tf.function itself, inside the tool's scope, instead of a "
                    "ConcreteFunction of it."
                )
    return original(atomic, *args, **kwargs)


@governed
def _lift_to_graph(cursor: Cursor, original: Any, tensors: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Allow TensorFlow to lift a variable's initial value out of a compiled function although it is drawn there."""
    counters = _xla.counters_captured_by(list(tensors)) if tensors else []
    if not counters or args or kwargs.get("sources") is not None:
        return original(tensors, graph, *args, **kwargs)
    kwargs.update(sources=[inside for _, inside in counters], handle_captures=True)
    return original(tensors, graph, **kwargs)


@governed
def _add(cursor: Cursor, original: Any, x: Any, y: Any, name: Any = None) -> Any:
    """Keep XLA from fusing the product and the sum that scale a draw: a fused operation rounds only once."""
    if not executing_eagerly() and _xla.is_compiled():
        x = xla_draws.as_rounded(x)
    return original(x, y, name=name)
