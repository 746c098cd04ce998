"""A JAX primitive: a Python function that returns an array, called once in every execution of a program.

``jax.experimental.io_callback`` is similar, but JAX moves a callback without inputs out of a loop that is
differentiated, and shares its result among the lanes of a ``vmap``: numbers would repeat. This primitive has an effect
of its own, which JAX allows only in compiled programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from detrand.errors import PatchError, ScopeError
from detrand.packages import install

try:
    from jax._src import callback as jax_callback
    from jax._src import core, dispatch, effects
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    _is_at_top = core.trace_state_clean
    _ORDERED = jax_callback._OrderedIOEffect
    _lower_callback = jax_callback.io_callback_lowering
    scope = jax.make_user_context(None)  # JAX traces functions anew where its value is different
except (ImportError, AttributeError) as error:
    raise PatchError(
        f"detrand supports JAX 0.7 or newer, but JAX {jax.__version__} lacks a private name that detrand uses "
        f"({error}). Install another release of JAX ({install('jax')}), or a newer detrand."
    ) from error

_REMEDY = (
    "JAX might draw once for all iterations or lanes, or more than once. Draw before it and pass the numbers in, or "
    "use Python's for and if"
)


class _RandomOp(effects.Effect):
    def __repr__(self) -> str:  # JAX puts it into its message
        return f"a random op in the scope of a DeterministicRandomTestTool. {_REMEDY}"


_EFFECTS = frozenset({_ORDERED, _RandomOp()})
effects.lowerable_effects.add_type(_RandomOp)

_draw = Primitive("detrand_draw")
_draw.multiple_results = True
dispatch.prim_requires_devices_during_lowering.add(_draw)


def draw(
    op_type: str, numbers: Callable[..., np.ndarray], shape: tuple[int, ...], dtype: Any, *operands: Any
) -> jax.Array:
    """Return what ``numbers(*operands)`` returns in each execution of the program being traced; outside a trace, now.

    The operands are arrays or tracers, through which no gradient passes; the result has the shape and dtype. The type
    is that of TensorFlow's op.
    """
    aval = jax.core.ShapedArray(shape, dtype)
    operands = tuple(jax.lax.stop_gradient(operand) for operand in operands)
    (drawn,) = _draw.bind(*operands, op_type=op_type, numbers=numbers, aval=aval)
    return drawn


def is_traced(value: Any) -> bool:
    """Return whether a value becomes known only when the program being traced is executed."""
    return isinstance(value, jax.core.Tracer)


def is_tracing() -> bool:
    """Return whether what is called now becomes a part of a program, or may."""
    return not _is_at_top()


@_draw.def_impl
def _now(*operands: Any, op_type: str, numbers: Callable[..., np.ndarray], aval: Any) -> list[jax.Array]:
    return [jax.numpy.asarray(numbers(*map(np.asarray, operands)), aval.dtype)]


@_draw.def_effectful_abstract_eval
def _abstract(*operands: Any, op_type: str, numbers: Callable[..., np.ndarray], aval: Any) -> Any:
    return [aval], _EFFECTS


def _lower(ctx: Any, *operands: Any, op_type: str, numbers: Callable[..., np.ndarray], aval: Any) -> Any:
    def call(*arrays: Any) -> tuple[np.ndarray]:
        return (np.asarray(numbers(*map(np.asarray, arrays)), aval.dtype),)

    return _lower_callback(ctx, *operands, callback=call, sharding=None, ordered=True, result_avals=(aval,))


mlir.register_lowering(_draw, _lower, cacheable=False)


def _refuse_lanes(axis_data: Any, operands: Any, dims: Any, **params: Any) -> Any:
    raise ScopeError(f"jax.vmap of a random op in the scope of a DeterministicRandomTestTool: {_REMEDY}.")


batching.fancy_primitive_batchers[_draw] = _refuse_lanes
