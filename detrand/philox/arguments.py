"""Arguments that the functions of `detrand.philox` have in common: their documentation and their checks."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, TypeVar

import numpy as np

from detrand.arguments import as_int
from detrand.errors import ArgumentError
from detrand.philox.generator import BLOCK, RESERVED, Philox

Shape = SupportsIndex | Iterable[SupportsIndex]

FLOATS = ("float16", "bfloat16", "float32", "float64")

Draw = TypeVar("Draw", bound=Callable[..., np.ndarray])

_DOCUMENTATION = {
    "shape": "Dimensions, ints >= 0; ``()`` draws one number.",
    "seed": "The op's attribute ``seed``, 0 <= seed < 2**63.",
    "op_seed": "The op's attribute ``seed2``, 0 <= op_seed < 2**63.",
    "run": "The number of earlier runs of the op with the same shape. The counter wraps at 2**128.",
    "dtype": """``"float16"``, ``"bfloat16"`` (with `ml_dtypes` installed), ``"float32"`` or ``"float64"``, as a name or
    as a NumPy, `ml_dtypes` or TensorFlow dtype.""",
    "drawn": """How many numbers the op has drawn before in all its runs, instead of `run`, for an op whose shape
    changes from run to run.""",
}
_RETURNS = "\n\nReturns:\n  An array of `shape` and `dtype`."
_RAISES = "\n\nRaises:\n  ArgumentError: An argument is out of range or of the wrong type."


def documented(draw: Draw) -> Draw:
    """Add to a function's docstring what all functions have in common, where it does not say something else."""
    before, args, own = (inspect.getdoc(draw) or "").partition("Args:\n")
    common = [
        f"  {name}: {description}\n"
        for name, description in _DOCUMENTATION.items()
        if name in inspect.signature(draw).parameters and f"  {name}: " not in own
    ]
    draw.__doc__ = before + args + "".join(common) + own + ("" if "Returns:" in own else _RETURNS) + _RAISES
    return draw


def start(shape: Shape, seed: int, op_seed: int, run: int, drawn: int | None) -> tuple[tuple[int, ...], Philox]:
    """Check the arguments of every draw, and return the shape and the generator at the run's first counter."""
    dims = dimensions(shape)
    key, high = (integer(n, v, 0, 2**63) for n, v in (("seed", seed), ("op_seed", op_seed)))
    if key == high == 0:
        high = 2**31 - 1
    run = integer("run", run, 0, 2**128)
    count = math.prod(dims)
    before = run * count
    if drawn is not None:
        before = integer("drawn", drawn, 0, 2**128)
        if run:
            raise ArgumentError(f"run={run}, drawn={drawn}: both count earlier numbers. Pass only one of them.")
    return dims, Philox(key, (high << 64) + before * RESERVED, most=min(count, BLOCK))


def dimensions(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple."""
    if isinstance(shape, (int, np.integer)):
        return (integer("shape", shape, 0, 2**63),)
    try:
        dims = tuple(shape)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # ValueError: a tf.TensorShape of unknown rank
        raise ArgumentError(
            f"shape={shape!r}: must be an int or a sequence of ints >= 0. Pass a tuple, such as (2, 3)."
        ) from None
    return tuple(integer(f"shape[{i}]", dim, 0, 2**63) for i, dim in enumerate(dims))


def integer(name: str, value: Any, low: int, limit: int) -> int:
    """Return an integer of any type as an int, low <= value < limit."""
    number = as_int(value)
    if number is None or not low <= number < limit:
        raise ArgumentError(f"{name}={value!r}: must be an int, {low} <= {name} < {limit}. Pass an int in that range.")
    return number


def real(name: str, value: Any, kind: np.dtype) -> Any:
    """Return a real number in a float dtype, where it must be finite."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
            number = kind.type(value)
            if np.isfinite(number):
                return number
    raise ArgumentError(f"{name}={value!r}: must be a real number, finite in {kind.name}. Pass an int or a float.")


def checked_dtype(dtype: Any, accepted: tuple[str, ...] = FLOATS) -> np.dtype:
    """Return NumPy's dtype for a dtype that is given in any form."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)  # a dtype, a scalar type, or a name
    if not isinstance(name, str) or name not in accepted:
        raise ArgumentError(f"dtype={dtype!r}: must be one of {', '.join(accepted)}. Pass that name as a string.")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise ArgumentError(
            "dtype='bfloat16': NumPy has no bfloat16. Install the package ml_dtypes, or choose a different dtype."
        ) from None
