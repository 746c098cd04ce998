"""Argument checks of `detrand.philox`: shapes, seeds, runs, dtypes and real numbers."""

from __future__ import annotations

import contextlib
import importlib
import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np

from detrand.errors import ArgumentError
from detrand.philox.generator import BLOCK, RESERVED, Philox

Shape = SupportsIndex | Iterable[SupportsIndex]

FLOATS = ("float16", "bfloat16", "float32", "float64")


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
    number = None
    if not isinstance(value, (bool, np.bool_)):  # operator.index(True) is 1, but a bool as a seed is a mistake
        with contextlib.suppress(TypeError):
            number = operator.index(value)
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


def float_dtype(dtype: Any, accepted: tuple[str, ...] = FLOATS) -> tuple[str, np.dtype]:
    """Return the name of a float dtype, and the dtype."""
    name = dtype_name(dtype, accepted)
    if name != "bfloat16":
        return name, np.dtype(name)
    try:
        return name, np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise ArgumentError(
            "dtype='bfloat16': NumPy has no bfloat16. Install the package ml_dtypes, or choose a different dtype."
        ) from None


def dtype_name(dtype: Any, accepted: tuple[str, ...]) -> str:
    """Return the name of a dtype that is given in any form."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)  # a dtype, a scalar type, or a name
    if isinstance(name, str) and name in accepted:
        return name
    raise ArgumentError(f"dtype={dtype!r}: must be one of {', '.join(accepted)}. Pass that name as a string.")
