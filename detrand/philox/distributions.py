"""Uniform and normal distributions: uniform floats and integers, dropout masks, normals and truncated normals.

Source: TensorFlow's ``random_distributions.h``.
"""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand.errors import ArgumentError
from detrand.philox.arguments import Shape, checked_dtype, documented, integer, real, start
from detrand.philox.generator import Philox, in_blocks

CUTOFF = 2.0  # a truncated normal is redrawn unless its absolute value is less
TRUNCATED_RESERVED = 64  # counters that a truncated normal reserves for each number of an output group
LEAST_UNIFORM = 1e-7  # Box-Muller takes the logarithm of no smaller number


@documented
def uniform(
    shape: Shape,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "float32",
    *,
    minval: float = 0,
    maxval: float = 1,
    drawn: int | None = None,
) -> np.ndarray:
    """Draw the numbers that ``tf.random.uniform(shape, minval, maxval, dtype)`` draws in a TF1 session, exactly.

    >>> uniform((3,), seed=42, op_seed=0, run=1)
    array([0.3661809 , 0.01545334, 0.6758038 ], dtype=float32)

    Args:
      minval: The least number. Each number is ``x * (maxval - minval) + minval`` for an x in [0, 1), computed and
        rounded in `dtype` as in TensorFlow. (TensorFlow flushes subnormal results to zero; `detrand` does not.)
      maxval: The limit above `minval`.
    """
    kind = checked_dtype(dtype)
    low, high = real("minval", minval, kind), real("maxval", maxval, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    fractions = in_blocks(dims, kind, lambda offsets: philox.fractions(offsets, kind.name))
    if low == 0 and high == 1:
        return fractions
    with np.errstate(over="ignore"):  # infinite where TensorFlow's are
        return _affine(fractions, high - low, low)


@documented
def randint(
    shape: Shape,
    low: int,
    high: int,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "int32",
    *,
    drawn: int | None = None,
) -> np.ndarray:
    """Draw the integers that ``tf.random.uniform(shape, low, high, dtype=tf.int32)`` draws in a TF1 session, exactly.

    The numbers are ``low + word % (high - low)``, so they are slightly uneven unless the range is a power of 2.

    >>> randint((6,), 1, 7, seed=42, op_seed=0)
    array([6, 2, 4, 2, 4, 4], dtype=int32)

    Args:
      low: The least number, in the range of `dtype`.
      high: One more than the greatest number, in the range of `dtype`; low < high.
      dtype: ``"int32"`` or ``"int64"``.
    """
    kind = checked_dtype(dtype, ("int32", "int64"))
    unsigned = np.dtype(f"u{kind.name}")
    limits = np.iinfo(kind)
    least, end = (integer(n, v, limits.min, limits.max + 1) for n, v in (("low", low), ("high", high)))
    if least >= end:
        raise ArgumentError(f"low={low}, high={high}: low must be less than high. Swap them, or widen the range.")
    dims, philox = start(shape, seed, op_seed, run, drawn)
    span, offset = (unsigned.type(x % 2 ** (8 * kind.itemsize)) for x in (end - least, least))

    def integers_of(offsets: np.ndarray) -> np.ndarray:
        integers = philox.words(offsets).view(unsigned)
        np.remainder(integers, span, integers)
        return np.add(integers, offset, integers)  # wraps round to the negative numbers

    return in_blocks(dims, kind, integers_of)


@documented
def dropout_mask(
    shape: Shape,
    rate: float,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "float32",
    *,
    drawn: int | None = None,
) -> np.ndarray:
    """Return the mask of the elements that ``tf.nn.dropout`` keeps in a TF1 session, exactly.

    The output of the dropout is ``np.where(mask, x * dtype(1 / (1 - rate)), 0)``. With rate 0, TensorFlow draws
    nothing and keeps everything, and the mask is all True. ``tf.compat.v1.nn.dropout(x, keep_prob)`` has
    ``rate=1 - keep_prob`` in the dtype of keep_prob: for a float32 placeholder, pass ``1 - np.float32(keep_prob)``.

    >>> dropout_mask((2, 4), rate=0.5, seed=42, op_seed=0)
    array([[ True,  True, False,  True],
           [ True, False, False,  True]])

    Args:
      shape: Shape of the dropout's input, or its `noise_shape`: ints >= 0.
      rate: The fraction dropped, 0 <= rate < 1; it is rounded to `dtype` as in TensorFlow.
      dtype: dtype of the dropout's input, as for `uniform`; each dtype draws different numbers.

    Returns:
      A bool array of `shape`: True where the element is kept.
    """
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ArgumentError(
            f"rate={rate!r}: must be the fraction dropped, 0 <= rate < 1. For a keep_prob, pass 1 - keep_prob."
        )
    threshold = checked_dtype(dtype).type(rate)
    return np.asarray(uniform(shape, seed, op_seed, run, dtype, drawn=drawn) >= threshold)


@documented
def normal(
    shape: Shape,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "float32",
    *,
    mean: float = 0,
    stddev: float = 1,
    drawn: int | None = None,
) -> np.ndarray:
    """Draw the numbers that ``tf.random.normal(shape, mean, stddev, dtype)`` draws in a TF1 session.

    Logarithms, sines and cosines are computed by the C library, as in TensorFlow, so the numbers are identical on
    Linux on x86-64: 0 ULPs apart in every dtype, measured with TensorFlow 2.21 and glibc 2.36
    (``test_floats_equal_the_sessions``). This takes one call into C for each pair, about 0.2 microseconds a number.
    If `ctypes` finds no ``logf``, a float64 logarithm rounded to float32 is used instead: 0.34 % of the float32
    numbers then differ, by at most 2 ULPs (``test_normals_without_the_c_librarys_logf_are_close``).

    >>> normal((2, 2), seed=42, op_seed=0)
    array([[-0.30101568,  0.51859164],
           [-0.15693977, -1.1760874 ]], dtype=float32)

    Args:
      mean: The mean. Each number is ``x * stddev + mean`` for a standard normal x, computed and rounded in `dtype` as
        in TensorFlow.
      stddev: The standard deviation.
    """
    return _scaled(box_muller, start(shape, seed, op_seed, run, drawn), dtype, mean, stddev)


@documented
def truncated_normal(
    shape: Shape,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "float32",
    *,
    mean: float = 0,
    stddev: float = 1,
    drawn: int | None = None,
) -> np.ndarray:
    """Draw the numbers that ``tf.random.truncated_normal(shape, mean, stddev, dtype)`` draws in a TF1 session.

    Each number is ``x * stddev + mean`` for a standard normal x with abs(x) < 2. The numbers are as close to
    TensorFlow's as those of `normal`. As in the kernel, x is compared with 2 before it is rounded to a 16-bit dtype, so
    the rounded number may be 2.0.

    >>> truncated_normal((4,), seed=42, op_seed=0)
    array([-0.30101568,  0.51859164, -0.15693977, -1.1760874 ], dtype=float32)

    Args:
      mean: The mean before truncation, as for `normal`.
      stddev: The standard deviation before truncation, as for `normal`.
    """
    return _scaled(_truncated_normals, start(shape, seed, op_seed, run, drawn), dtype, mean, stddev)


def _scaled(
    sample: Callable[[Philox, np.ndarray, str], np.ndarray],
    started: tuple[tuple[int, ...], Philox],
    dtype: Any,
    mean: float,
    stddev: float,
) -> np.ndarray:
    """Draw ``x * stddev + mean`` for each x that `sample` makes of a block of counters."""
    dims, philox = started
    kind = checked_dtype(dtype)
    offset, scale = real("mean", mean, kind), real("stddev", stddev, kind)
    drawn = in_blocks(dims, kind, lambda offsets: sample(philox, offsets, kind.name))
    with np.errstate(over="ignore"):
        return _affine(drawn, scale, offset)


def _affine(x: np.ndarray, scale: Any, offset: Any) -> np.ndarray:
    """Return ``x * scale + offset``, rounded after each operation as in TensorFlow; overwrites `x`."""
    np.multiply(x, scale, out=x)
    np.add(x, offset, out=x)
    return x


def box_muller(philox: Philox, offsets: np.ndarray, name: str) -> np.ndarray:
    """Compute standard normals from the `Philox.fractions` of some counters, as TensorFlow's kernels do: sine first."""
    name = "float64" if name == "float64" else "float32"  # 16-bit normals are rounded float32 ones
    uniforms = philox.fractions(offsets, name)
    kind = uniforms.dtype
    log = math.log if name == "float64" else _LOGF
    logs = np.fromiter(
        map(log, np.maximum(uniforms[0::2], kind.type(LEAST_UNIFORM)).tolist()), kind, len(uniforms) // 2
    )
    radii = np.sqrt(kind.type(-2) * logs)
    # The angle is computed in float64 and rounded, as in the kernel. NumPy's complex exponential calls the C library's
    # sine and cosine, as TensorFlow does; np.sin has its own loops, whose last bit may differ.
    circle = np.zeros(len(radii), f"complex{16 * kind.itemsize}")
    circle.imag = uniforms[1::2].astype(np.float64) * (2 * np.pi)
    np.exp(circle, out=circle)
    np.multiply(circle.imag, radii, out=uniforms[0::2])
    np.multiply(circle.real, radii, out=uniforms[1::2])
    return uniforms


def _truncated_normals(philox: Philox, offsets: np.ndarray, name: str) -> np.ndarray:
    """Compute the numbers of some groups: the first normals that are small enough in each group's counters."""
    name, size = ("float64", 2) if name == "float64" else ("float32", 4)
    groups = np.empty((len(offsets), size), name)
    starts = offsets * np.uint64(size * TRUNCATED_RESERVED)
    filled = np.zeros(len(groups), np.intp)
    rows = np.arange(len(groups))  # the groups that still lack numbers
    while len(rows):
        normals = box_muller(philox, starts[rows], name).reshape(len(rows), size)
        for candidates in normals.T:
            taken = (np.abs(candidates) < CUTOFF) & (filled[rows] < size)
            groups[rows[taken], filled[rows[taken]]] = candidates[taken]
            filled[rows[taken]] += 1
        rows = rows[filled[rows] < size]
        starts += np.uint64(1)
    return groups


def _c_logf() -> Callable[[float], float]:
    # NumPy's float32 logarithm has its own loops, with which 12 % of all radii would differ, by up to 2 ULPs.
    try:
        logf = ctypes.PyDLL(None).logf  # unlike CDLL, PyDLL does not release the GIL for each number
    except (AttributeError, OSError, TypeError):  # the platform does not expose the C library's names
        return math.log
    logf.argtypes, logf.restype = [ctypes.c_float], ctypes.c_float
    return logf


_LOGF = _c_logf()
