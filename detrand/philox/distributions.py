"""Uniform numbers: floats, integers, and the masks of dropout."""

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
    """Draws what ``tf.random.uniform(shape, minval, maxval, dtype)`` draws in a TF1 session, bit for bit.

    >>> uniform((3,), seed=42, op_seed=0, run=1)
    array([0.3661809 , 0.01545334, 0.6758038 ], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before with the same shape, from 0. The counter wraps at 2**128.
      dtype: ``"float16"``, ``"bfloat16"`` (with `ml_dtypes` installed), ``"float32"`` or ``"float64"``, as a name or
        as a NumPy, `ml_dtypes` or TensorFlow dtype.
      minval: Numbers are ``x * (maxval - minval) + minval`` of x in [0, 1), in `dtype` and with its rounding, as
        TensorFlow's. (Where that is subnormal, TensorFlow makes it zero, and `detrand` does not.)
      maxval: See `minval`.
      drawn: For an op whose shape changes from run to run, instead of `run`: how many numbers it has drawn before, in
        all its runs together.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    name, kind = float_dtype(dtype)
    low, high = real("minval", minval, kind), real("maxval", maxval, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    fractions = in_blocks(dims, kind, lambda offsets, words: philox.fractions(offsets, name, words))
    if low == 0 and high == 1:
        return fractions
    with np.errstate(over="ignore"):  # infinite where TensorFlow's are
        return affine(fractions, high - low, low)


def affine(x: np.ndarray, scale: Any, offset: Any) -> np.ndarray:
    """Returns ``x * scale + offset``, rounded to their dtype twice, as two ops of TensorFlow do; overwrites `x`."""
    np.multiply(x, scale, out=x)
    np.add(x, offset, out=x)
    return x


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
    """Draws what ``tf.random.uniform(shape, low, high, dtype=tf.int32)`` draws in a TF1 session, bit for bit.

    The numbers are ``low + word % (high - low)``: as in TensorFlow, slightly uneven unless the range is a power of 2.

    >>> randint((6,), 1, 7, seed=42, op_seed=0)
    array([6, 2, 4, 2, 4, 4], dtype=int32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      low: The least number, within `dtype`.
      high: One more than the greatest number, within `dtype` itself; low < high.
      seed: As for `uniform`, and so are op_seed, run and drawn.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before.
      dtype: ``"int32"`` or ``"int64"``.
      drawn: Instead of `run`, how many numbers the op has drawn before.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
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
    """Tells which elements ``tf.nn.dropout`` keeps in a TF1 graph, bit for bit.

    The outputs are ``np.where(mask, x * dtype(1 / (1 - rate)), 0)``. With rate 0, TensorFlow draws nothing and keeps
    everything, and so does the mask. ``tf.compat.v1.nn.dropout(x, keep_prob)`` is dropout at ``rate=1 - keep_prob``,
    of whatever type keep_prob has: for a placeholder of float32, pass ``1 - np.float32(keep_prob)``.

    >>> dropout_mask((2, 4), rate=0.5, seed=42, op_seed=0)
    array([[ True,  True, False,  True],
           [ True, False, False,  True]])

    Args:
      shape: Shape of the dropout's input, or its `noise_shape`: ints >= 0.
      rate: Fraction dropped, 0 <= rate < 1; rounded to `dtype`, as TensorFlow does.
      seed: As for `uniform`, and so are op_seed, run and drawn.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before.
      dtype: dtype of the dropout's input, as for `uniform`: each draws other numbers.
      drawn: Instead of `run`, how many numbers the op has drawn before: for batches of different sizes.

    Returns:
      A bool array of `shape`: True where the element is kept.

    Raises:
      ArgumentError: An argument is not as above.
    """
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ArgumentError(
            f"rate={rate!r}: must be a number with 0 <= rate < 1, the fraction dropped. "
            "For a keep_prob, pass 1 - keep_prob."
        )
    _, kind = float_dtype(dtype)
    return np.asarray(uniform(shape, seed, op_seed, run, dtype, drawn=drawn) >= kind.type(rate))


_CUTOFF = 2.0  # where the truncated normal is truncated
_COUNTERS = 64  # for each number of a truncated normal
_LEAST_UNIFORM = 1e-7  # of which the kernels take a logarithm


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
    """Draws what ``tf.random.normal(shape, mean, stddev, dtype)`` draws in a TF1 session.

    The logarithms, sines and cosines are the C library's, as TensorFlow's are, so on Linux on x86-64 the numbers are
    bit-equal: 0 ULPs apart in every dtype, measured with TensorFlow 2.21 and glibc 2.36
    (``test_floats_equal_the_sessions``). That takes a call into C for each pair, about 0.2 microseconds a number.
    Where `ctypes` cannot find ``logf``, a float64 logarithm rounded to float32 stands in: 0.34 per cent of the float32
    numbers then differ, by 2 ULPs at most (``test_normals_without_the_c_librarys_logf``).

    >>> normal((2, 2), seed=42, op_seed=0)
    array([[-0.30101568,  0.51859164],
           [-0.15693977, -1.1760874 ]], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: As for `uniform`, and so are op_seed, run, dtype and drawn.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before.
      dtype: dtype of the numbers.
      mean: Numbers are ``x * stddev + mean`` of standard normals x, in `dtype` and with its rounding, as TensorFlow's.
      stddev: See `mean`.
      drawn: Instead of `run`, how many numbers the op has drawn before.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
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
    """Draws what ``tf.random.truncated_normal(shape, mean, stddev, dtype)`` draws in a TF1 session.

    Standard normals x with abs(x) < 2, then ``x * stddev + mean``. As near to TensorFlow's numbers as `normal` is.
    The comparison with 2 comes before the rounding to a 16-bit dtype, as in the kernel, so that 2.0 itself may come
    out there.

    >>> truncated_normal((4,), seed=42, op_seed=0)
    array([-0.30101568,  0.51859164, -0.15693977, -1.1760874 ], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: As for `uniform`, and so are op_seed, run, dtype and drawn.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before.
      dtype: dtype of the numbers.
      mean: As for `normal`.
      stddev: As for `normal`.
      drawn: Instead of `run`, how many numbers the op has drawn before.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    name, kind = float_dtype(dtype)
    offset, scale = real("mean", mean, kind), real("stddev", stddev, kind)
    dims, philox = start(shape, seed, op_seed, run, drawn)
    count = math.prod(dims)
    size = 2 if name == "float64" else 4  # numbers in an output group: as many as one counter's words make
    out = np.empty((-(-count // size), size), kind)
    for first in range(0, len(out), BLOCK):
        _fill_truncated(out[first : first + BLOCK], first, philox, name)
    with np.errstate(over="ignore"):
        return affine(out.reshape(-1)[:count].reshape(dims), scale, offset)


def box_muller(philox: Philox, offsets: np.ndarray, name: str, out: np.ndarray | None = None) -> np.ndarray:
    """Computes standard normals from the words of some counters, as TensorFlow's kernels do: sine first, then cosine.

    Args:
      philox: The generator.
      offsets: uint64 of shape (n,), ascending: which counters.
      name: Name of a float dtype.
      out: Where to make them, uint32 of shape (n, 4); None for new memory.

    Returns:
      A flat array: float64, two for each counter, if that is `name`; otherwise float32, four for each.
    """
    name = "float64" if name == "float64" else "float32"  # 16-bit normals are rounded float32 ones
    uniforms = philox.fractions(offsets, name, out)
    kind = uniforms.dtype
    log = math.log if name == "float64" else _LOGF
    logs = np.fromiter(
        map(log, np.maximum(uniforms[0::2], kind.type(_LEAST_UNIFORM)).tolist()), kind, len(uniforms) // 2
    )
    radii = np.sqrt(kind.type(-2) * logs)
    # The angle is computed in float64 and rounded, as the kernel does. Of NumPy's functions, the exponential of a
    # complex number is the one whose sine and cosine are the C library's, so TensorFlow's; np.sin has its own loops.
    circle = np.zeros(len(radii), f"complex{16 * kind.itemsize}")
    circle.imag = uniforms[1::2].astype(np.float64) * (2 * np.pi)
    np.exp(circle, out=circle)
    np.multiply(circle.imag, radii, out=uniforms[0::2])
    np.multiply(circle.real, radii, out=uniforms[1::2])
    return uniforms


def _fill_truncated(out: np.ndarray, first: int, philox: Philox, name: str) -> None:
    """Fills each row of `out`, output groups `first` onwards, with the first normals of its own that are near 0."""
    size = out.shape[1]
    starts = np.arange(first, first + len(out), dtype=np.uint64) * np.uint64(size * _COUNTERS)
    filled = np.zeros(len(out), np.intp)
    rows = np.arange(len(out))  # the groups that still lack numbers
    while len(rows):
        normals = box_muller(philox, starts[rows], name).reshape(len(rows), size)
        for candidates in normals.T:
            taken = (np.abs(candidates) < _CUTOFF) & (filled[rows] < size)
            out[rows[taken], filled[rows[taken]]] = candidates[taken]
            filled[rows[taken]] += 1
        rows = rows[filled[rows] < size]
        starts += np.uint64(1)


def _c_logf() -> Callable[[float], float]:
    # NumPy's float32 logarithm has its own loops: 12 per cent of all radii would differ, by up to 2 ULPs
    try:
        logf = ctypes.PyDLL(None).logf  # which, unlike CDLL, does not release the interpreter for each number
    except (AttributeError, OSError, TypeError):  # a platform whose processes do not show the C library's names
        return math.log
    logf.argtypes, logf.restype = [ctypes.c_float], ctypes.c_float
    return logf


_LOGF = _c_logf()
