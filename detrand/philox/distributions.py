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
from detrand.philox.arguments import Shape, dtype_name, float_dtype, integer, real, start
from detrand.philox.generator import BLOCK, IN_ORDER, LOW_HALF_FIRST, Philox, in_blocks

CUTOFF = 2.0  # a truncated normal is redrawn unless its absolute value is less
TRUNCATED_RESERVED = 64  # counters that a truncated normal reserves for each number of an output group
LEAST_UNIFORM = 1e-7  # Box-Muller takes the logarithm of no smaller number


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
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: The number of earlier runs of the op with the same shape. The counter wraps at 2**128.
      dtype: ``"float16"``, ``"bfloat16"`` (with `ml_dtypes` installed), ``"float32"`` or ``"float64"``, as a name or
        as a NumPy, `ml_dtypes` or TensorFlow dtype.
      minval: The least number. Each number is ``x * (maxval - minval) + minval`` for an x in [0, 1), computed and
        rounded in `dtype` as in TensorFlow. (TensorFlow flushes subnormal results to zero; `detrand` does not.)
      maxval: The limit above `minval`.
      drawn: How many numbers the op has drawn before in all its runs, instead of `run`, for an op whose shape changes
        from run to run.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is out of range or of the wrong type.
    """
    name, kind = float_dtype(dtype)
    low, high = real("minval", minval, kind), real("maxval", maxval, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    fractions = in_blocks(dims, kind, lambda offsets, words: philox.fractions(offsets, name, words))
    if low == 0 and high == 1:
        return fractions
    with np.errstate(over="ignore"):  # infinite where TensorFlow's are
        return affine(fractions, high - low, low)


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
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      low: The least number, in the range of `dtype`.
      high: One more than the greatest number, in the range of `dtype`; low < high.
      seed: The op's attribute ``seed``.
      op_seed: The op's attribute ``seed2``.
      run: The number of earlier runs of the op.
      dtype: ``"int32"`` or ``"int64"``.
      drawn: How many numbers the op has drawn before, instead of `run`.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is out of range or of the wrong type.
    """
    kind = np.dtype(dtype_name(dtype, ("int32", "int64")))
    unsigned = np.dtype(f"u{kind.name}")
    limits = np.iinfo(kind)
    least, end = (integer(n, v, limits.min, limits.max + 1) for n, v in (("low", low), ("high", high)))
    if least >= end:
        raise ArgumentError(f"low={low}, high={high}: low must be less than high. Swap them, or widen the range.")
    dims, philox = start(shape, seed, op_seed, run, drawn)
    span, offset = (unsigned.type(x % 2 ** (8 * kind.itemsize)) for x in (end - least, least))

    def fill(offsets: np.ndarray, words: np.ndarray) -> np.ndarray:
        integers = philox.words(offsets, words, LOW_HALF_FIRST if kind.itemsize == 8 else IN_ORDER).view(unsigned)
        np.remainder(integers, span, integers)
        return np.add(integers, offset, integers)  # wraps round to the negative numbers

    return in_blocks(dims, kind, fill)


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
      seed: The op's attribute ``seed``.
      op_seed: The op's attribute ``seed2``.
      run: The number of earlier runs of the op.
      dtype: dtype of the dropout's input, as for `uniform`; each dtype draws different numbers.
      drawn: How many numbers the op has drawn before, instead of `run`, for batches of different sizes.

    Returns:
      A bool array of `shape`: True where the element is kept.

    Raises:
      ArgumentError: An argument is out of range or of the wrong type.
    """
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ArgumentError(
            f"rate={rate!r}: must be the fraction dropped, 0 <= rate < 1. For a keep_prob, pass 1 - keep_prob."
        )
    _, kind = float_dtype(dtype)
    return np.asarray(uniform(shape, seed, op_seed, run, dtype, drawn=drawn) >= kind.type(rate))


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
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``.
      op_seed: The op's attribute ``seed2``.
      run: The number of earlier runs of the op.
      dtype: dtype of the numbers, as for `uniform`.
      mean: The mean. Each number is ``x * stddev + mean`` for a standard normal x, computed and rounded in `dtype` as
        in TensorFlow.
      stddev: The standard deviation.
      drawn: How many numbers the op has drawn before, instead of `run`.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is out of range or of the wrong type.
    """
    name, kind = float_dtype(dtype)
    offset, scale = real("mean", mean, kind), real("stddev", stddev, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    numbers = in_blocks(dims, kind, lambda offsets, words: box_muller(philox, offsets, name, words))
    with np.errstate(over="ignore"):  # infinite where TensorFlow's are
        return affine(numbers, scale, offset)


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
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``.
      op_seed: The op's attribute ``seed2``.
      run: The number of earlier runs of the op.
      dtype: dtype of the numbers, as for `uniform`.
      mean: The mean before truncation, as for `normal`.
      stddev: The standard deviation before truncation, as for `normal`.
      drawn: How many numbers the op has drawn before, instead of `run`.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is out of range or of the wrong type.
    """
    name, kind = float_dtype(dtype)
    offset, scale = real("mean", mean, kind), real("stddev", stddev, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    count = math.prod(dims)
    size = 2 if name == "float64" else 4  # numbers in an output group: as many as the words of one counter make
    out = np.empty((-(-count // size), size), kind)
    for first in range(0, len(out), BLOCK):
        _fill_truncated(out[first : first + BLOCK], first, philox, name)
    with np.errstate(over="ignore"):
        return affine(out.reshape(-1)[:count].reshape(dims), scale, offset)


def affine(x: np.ndarray, scale: Any, offset: Any) -> np.ndarray:
    """Return ``x * scale + offset``, rounded after each operation as in TensorFlow; overwrites `x`."""
    np.multiply(x, scale, out=x)
    np.add(x, offset, out=x)
    return x


def box_muller(philox: Philox, offsets: np.ndarray, name: str, out: np.ndarray | None = None) -> np.ndarray:
    """Compute standard normals from the words of some counters, as TensorFlow's kernels do: sine first, then cosine.

    Args:
      philox: The generator.
      offsets: The counters, uint64 of shape (n,), ascending.
      name: Name of a float dtype.
      out: Memory for the result, uint32 of shape (n, 4); None for new memory.

    Returns:
      A flat array: two float64 numbers for each counter if `name` is float64, else four float32 numbers for each.
    """
    name = "float64" if name == "float64" else "float32"  # 16-bit normals are rounded float32 ones
    uniforms = philox.fractions(offsets, name, out)
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


def _fill_truncated(out: np.ndarray, first: int, philox: Philox, name: str) -> None:
    """Fill each row of `out`, the output groups from `first` on, with the first normals in its range of counters."""
    size = out.shape[1]
    starts = np.arange(first, first + len(out), dtype=np.uint64) * np.uint64(size * TRUNCATED_RESERVED)
    filled = np.zeros(len(out), np.intp)
    rows = np.arange(len(out))  # the groups that still lack numbers
    while len(rows):
        normals = box_muller(philox, starts[rows], name).reshape(len(rows), size)
        for candidates in normals.T:
            taken = (np.abs(candidates) < CUTOFF) & (filled[rows] < size)
            out[rows[taken], filled[rows[taken]]] = candidates[taken]
            filled[rows[taken]] += 1
        rows = rows[filled[rows] < size]
        starts += np.uint64(1)


def _c_logf() -> Callable[[float], float]:
    # NumPy's float32 logarithm has its own loops, with which 12 % of all radii would differ, by up to 2 ULPs.
    try:
        logf = ctypes.PyDLL(None).logf  # unlike CDLL, PyDLL does not release the GIL for each number
    except (AttributeError, OSError, TypeError):  # the platform does not expose the C library's names
        return math.log
    logf.argtypes, logf.restype = [ctypes.c_float], ctypes.c_float
    return logf


_LOGF = _c_logf()
