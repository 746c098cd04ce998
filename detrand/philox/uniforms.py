"""Uniform numbers: floats, integers, and the masks of dropout."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from detrand.errors import ArgumentError
from detrand.philox.arguments import Shape, dtype_name, float_dtype, integer, real, start
from detrand.philox.generator import IN_ORDER, LOW_HALF_FIRST, in_blocks


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
