"""The numbers that TensorFlow's stateful random ops draw, computed in NumPy alone.

What a stateful kernel with the attributes ``(seed, op_seed)`` draws on its ``run``-th execution (from 0), `n` numbers
at a time, is a pure function::

    start   = op_seed * 2**64 + run * n * 256               a 128-bit counter
    words   = Philox4x32-10(counter=start + g, key=seed)    four 32-bit words for each g = 0, 1, 2, ...
    numbers = distribution(words)

A 32-bit or smaller number takes one word, a 64-bit one takes two; Box-Muller makes two normals of two numbers' words.
The truncated normal discards normals that are too large, so its numbers come in groups (of four, or two of 64 bits)
that each have counters of their own: 64 for each number, 256 words. So what is drawn depends on the shape only
through n, and in run 0 not even on n: the first numbers of a longer draw are those of a shorter one.

>>> uniform((3, 1), seed=42, op_seed=0) * 3
array([[2.5063772],
       [2.7488918],
       [1.4839486]], dtype=float32)

The kernels take ``(0, 0)`` to mean "no seed, be nondeterministic"; ``tf.compat.v1.get_seed`` gives them
``(0, 2**31 - 1)`` instead. The functions here do the same with ``seed=0, op_seed=0``.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, for Philox and its constants;
TensorFlow's CPU kernels ``RandomUniform``, ``RandomUniformInt``, ``RandomStandardNormal`` and ``TruncatedNormal``
(``philox_random.h``, ``random_distributions.h``, ``random_op_cpu.h``) for the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np

from detrand.errors import ArgumentError

Shape = SupportsIndex | Iterable[SupportsIndex]
_Convert = Callable[[np.ndarray], np.ndarray]

_MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
_INTEGERS = ("int32", "int64")
_RESERVED = 256  # counters that a kernel moves on by for each number; words that a truncated normal may use for one
_CUTOFF = 2.0  # where the truncated normal is truncated
_BLOCK = 1 << 14  # counters at a time: the six 64-bit buffers of `_Philox` then stay in a core's second-level cache
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))  # these and the next: Salmon et al.
_WEYL = (0xBB67AE85, 0x9E3779B9)  # what each round adds to the key's high and low half
_WORD = np.uint64(2**32 - 1)
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)  # where a 64-bit number's halves are


def uniform(shape: Shape, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32") -> np.ndarray:
    """Draws what ``tf.random.uniform`` draws in a TF1 session: numbers in [0, 1), bit for bit.

    >>> uniform((3,), seed=42, op_seed=0, run=1)
    array([0.3661809 , 0.01545334, 0.6758038 ], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before, from 0. The counter wraps at 2**128.
      dtype: ``"float16"``, ``"bfloat16"`` (with `ml_dtypes` installed), ``"float32"`` or ``"float64"``, as a name or
        as a NumPy, `ml_dtypes` or TensorFlow dtype.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    name, kind = _float_dtype(dtype)
    return _draw(*_start(shape, seed, op_seed, run), kind, lambda words: _fractions(words, name, kind))


def normal(shape: Shape, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32") -> np.ndarray:
    """Draws what ``tf.random.normal`` draws in a TF1 session, with mean 0 and standard deviation 1.

    The logarithms, sines and cosines are the C library's, as TensorFlow's are, so on Linux the numbers are bit-equal:
    0 ULPs apart in every dtype, measured with TensorFlow 2.21 and glibc 2.36 (``test_floats_equal_the_sessions``).
    That takes a call into C for each pair, about 0.2 microseconds a number. Where `ctypes` cannot find ``logf``, a
    float64 logarithm rounded to float32 stands in: 0.34 per cent of the float32 numbers then differ, by 2 ULPs at
    most (``test_normals_without_the_c_librarys_logf``).

    >>> normal((2, 2), seed=42, op_seed=0)
    array([[-0.30101568,  0.51859164],
           [-0.15693977, -1.1760874 ]], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before, from 0. The counter wraps at 2**128.
      dtype: As for `uniform`.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    name, kind = _float_dtype(dtype)
    return _draw(*_start(shape, seed, op_seed, run), kind, lambda words: _normals(words, name).astype(kind))


def truncated_normal(shape: Shape, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32") -> np.ndarray:
    """Draws what ``tf.random.truncated_normal`` draws in a TF1 session: normals x with abs(x) < 2.

    As near to TensorFlow's numbers as `normal` is. The comparison with 2 comes before the rounding to a 16-bit
    dtype, as in the kernel, so that 2.0 itself may come out there.

    >>> truncated_normal((4,), seed=42, op_seed=0)
    array([-0.30101568,  0.51859164, -0.15693977, -1.1760874 ], dtype=float32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before, from 0. The counter wraps at 2**128.
      dtype: As for `uniform`.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    name, kind = _float_dtype(dtype)
    dims, philox = _start(shape, seed, op_seed, run)
    count = math.prod(dims)
    size = 2 if name == "float64" else 4  # numbers in an output group: as many as one counter's words make
    out = np.empty((-(-count // size), size), kind)
    for first in range(0, len(out), _BLOCK):
        _fill_truncated(out[first : first + _BLOCK], first, philox, name)
    return out.reshape(-1)[:count].reshape(dims)


def randint(
    shape: Shape, low: int, high: int, seed: int, op_seed: int, run: int = 0, dtype: Any = "int32"
) -> np.ndarray:
    """Draws what ``tf.random.uniform(shape, low, high, dtype=tf.int32)`` draws in a TF1 session, bit for bit.

    The numbers are ``low + word % (high - low)``: as in TensorFlow, slightly uneven unless the range is a power of 2.

    >>> randint((6,), 1, 7, seed=42, op_seed=0)
    array([6, 2, 4, 2, 4, 4], dtype=int32)

    Args:
      shape: Dimensions, ints >= 0; ``()`` draws one number.
      low: The least number, within `dtype`.
      high: One more than the greatest number, within `dtype` itself; low < high.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before, from 0. The counter wraps at 2**128.
      dtype: ``"int32"`` or ``"int64"``.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    kind = np.dtype(_dtype_name(dtype, _INTEGERS))
    limits = np.iinfo(kind)
    least, end = (_integer(n, v, limits.min, limits.max + 1) for n, v in (("low", low), ("high", high)))
    if least >= end:
        raise ArgumentError(f"low={low}, high={high}: low must be less than high. Swap them, or widen the range.")

    def convert(words: np.ndarray) -> np.ndarray:
        unsigned = words if kind.itemsize == 4 else _pairs(words[0::2], words[1::2])
        span, offset = (unsigned.dtype.type(x % 2 ** (8 * kind.itemsize)) for x in (end - least, least))
        return (unsigned % span + offset).view(kind)  # unsigned addition wraps round to the negative numbers

    return _draw(*_start(shape, seed, op_seed, run), kind, convert)


def dropout_mask(
    shape: Shape, rate: float, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32"
) -> np.ndarray:
    """Tells which elements ``tf.nn.dropout`` keeps in a TF1 graph, bit for bit.

    >>> dropout_mask((2, 4), rate=0.5, seed=42, op_seed=0)
    array([[ True,  True, False,  True],
           [ True, False, False,  True]])

    Args:
      shape: Shape of the dropout's input, or its `noise_shape`: ints >= 0.
      rate: Fraction dropped, 0 <= rate < 1; rounded to `dtype`, as TensorFlow does.
      seed: The op's attribute ``seed``, 0 <= seed < 2**63.
      op_seed: The op's attribute ``seed2``, 0 <= op_seed < 2**63.
      run: How often the op has run before, from 0. The counter wraps at 2**128.
      dtype: dtype of the dropout's input, as for `uniform`: each draws other numbers.

    Returns:
      A bool array of `shape`: True where the element is kept, and scaled by 1 / (1 - rate).

    Raises:
      ArgumentError: An argument is not as above.
    """
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ArgumentError(
            f"rate={rate!r}: must be a number with 0 <= rate < 1, the fraction dropped. "
            "For a keep_prob, pass 1 - keep_prob."
        )
    _, kind = _float_dtype(dtype)
    return np.asarray(uniform(shape, seed, op_seed, run, dtype) >= kind.type(rate))


def _float_dtype(dtype: Any) -> tuple[str, np.dtype]:
    name = _dtype_name(dtype, tuple(_MANTISSA_BITS))
    if name != "bfloat16":
        return name, np.dtype(name)
    try:
        return name, np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise ArgumentError(
            "dtype='bfloat16': NumPy alone has no bfloat16. Install the package ml_dtypes, or choose another dtype."
        ) from None


def _dtype_name(dtype: Any, accepted: tuple[str, ...]) -> str:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)  # a dtype, a scalar type, or a name
    if isinstance(name, str) and name in accepted:
        return name
    raise ArgumentError(f"dtype={dtype!r}: must be one of {', '.join(accepted)}. Pass that name as a string.")


def _integer(name: str, value: Any, low: int, limit: int) -> int:
    number = None
    if not isinstance(value, (bool, np.bool_)):  # operator.index takes True for 1, and a flag as a seed is a slip
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or not low <= number < limit:
        raise ArgumentError(f"{name}={value!r}: must be an int, {low} <= {name} < {limit}. Pass an int in that range.")
    return number


def _draw(dims: tuple[int, ...], philox: _Philox, kind: np.dtype, convert: _Convert) -> np.ndarray:
    """Draws numbers of a distribution that uses the same number of words for each: `convert` makes it of words."""
    count = math.prod(dims)
    size = 2 if kind.itemsize == 8 else 4  # numbers that one counter's words make
    groups = -(-count // size)
    out = np.empty(groups * size, kind)
    for first in range(0, groups, _BLOCK):
        last = min(first + _BLOCK, groups)
        out[first * size : last * size] = convert(philox(np.arange(first, last, dtype=np.uint64)))
    return out[:count].reshape(dims)


def _start(shape: Shape, seed: int, op_seed: int, run: int) -> tuple[tuple[int, ...], _Philox]:
    """Checks the arguments that every draw has; returns the shape and the generator at the run's first counter."""
    dims = _dimensions(shape)
    key, high = (_integer(n, v, 0, 2**63) for n, v in (("seed", seed), ("op_seed", op_seed)))
    if key == high == 0:
        high = 2**31 - 1
    run = _integer("run", run, 0, 2**128)
    count = math.prod(dims)
    return dims, _Philox(key, (high << 64) + run * count * _RESERVED, most=min(-(-count // 2), _BLOCK))


def _dimensions(shape: Shape) -> tuple[int, ...]:
    if isinstance(shape, (int, np.integer)):
        return (_integer("shape", shape, 0, 2**63),)
    try:
        dims = tuple(shape)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # ValueError: a tf.TensorShape of unknown rank
        raise ArgumentError(
            f"shape={shape!r}: must be an int or a sequence of ints >= 0. Pass a tuple, such as (2, 3)."
        ) from None
    return tuple(_integer(f"shape[{i}]", dim, 0, 2**63) for i, dim in enumerate(dims))


class _Philox:
    """Philox4x32-10 with one key, from one 128-bit counter on; it owns the buffers that its arithmetic needs."""

    def __init__(self, key: int, counter: int, most: int):
        self._counter = counter % 2**128
        self._buffers = np.empty((6, most), np.uint64)
        # Round r xors key + r * weyl (in two halves) into the high words of its products. What an odd round's takes
        # meets the even round's low words, so one pass over the even round's products can xor both in.
        halves = zip((key >> 32, key % 2**32), _WEYL, strict=True)
        keys = [[(half + r * weyl) % 2**32 for r in range(10)] for half, weyl in halves]
        self._keys = [[np.uint64(k[r] << 32 | k[r + 1]) for k in keys] for r in range(0, 10, 2)]

    def __call__(self, offsets: np.ndarray) -> np.ndarray:
        """Returns the words at `offsets` (uint64, from the start): four uint32 for each counter, in order."""
        # A round multiplies words 0 and 2 by constants, and the high and low words of the two products go different
        # ways. They are the odd and even elements of a 32-bit view: nothing needs to be shifted or masked.
        buffers = x0, x2, p0, p1, q0, q1 = self._buffers[:, : len(offsets)]
        x0_low, x2_low, p0_low, p1_low, q0_low, q1_low = (b.view(np.uint32)[_LOW::2] for b in buffers)
        p0_high, p1_high, q0_high, q1_high = (b.view(np.uint32)[_HIGH::2] for b in buffers[2:])
        np.add(offsets, np.uint64(self._counter % 2**64), out=p0)
        np.add(p0 < offsets, np.uint64(self._counter >> 64), out=p1)  # the lower half wrapped: carry one
        np.bitwise_and(p0, _WORD, out=x0)
        np.bitwise_and(p1, _WORD, out=x2)
        q1_low[:] = p0_high
        q0_low[:] = p1_high
        for key0, key1 in self._keys:
            np.multiply(x0, _MULTIPLIERS[0], out=p0)
            np.multiply(x2, _MULTIPLIERS[1], out=p1)
            p0 ^= key0
            p1 ^= key1
            np.bitwise_xor(p1_high, q1_low, out=x0_low)
            np.bitwise_xor(p0_high, q0_low, out=x2_low)
            np.multiply(x0, _MULTIPLIERS[0], out=q0)
            np.multiply(x2, _MULTIPLIERS[1], out=q1)
            np.bitwise_xor(q1_high, p1_low, out=x0_low)
            np.bitwise_xor(q0_high, p0_low, out=x2_low)
        words = np.empty((len(offsets), 4), np.uint32)
        for column, word in enumerate((x0_low, q1_low, x2_low, q0_low)):
            words[:, column] = word
        return words.reshape(-1)


def _fractions(words: np.ndarray, name: str, kind: np.dtype) -> np.ndarray:
    """Returns the low bits of each word (of each two for float64) as a fraction in [0, 1): as many as a mantissa has.

    TensorFlow puts them into the mantissa of a number in [1, 2) and subtracts 1: the same number, both being exact.
    """
    bits = _MANTISSA_BITS[name]
    mantissas = _pairs(words[1::2], words[0::2]) if kind.itemsize == 8 else words
    mantissas = mantissas & mantissas.dtype.type(2**bits - 1)
    # NumPy converts signed integers faster, and these are the same
    return mantissas.view(f"int{8 * mantissas.itemsize}").astype(kind) * kind.type(2.0**-bits)


def _pairs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return high.astype(np.uint64) << np.uint64(32) | low


def _normals(words: np.ndarray, name: str) -> np.ndarray:
    """Returns Box-Muller's normals, sine first: two for each two uniforms; float32 if `name` is a 16-bit dtype."""
    name = "float64" if name == "float64" else "float32"
    kind = np.dtype(name)
    uniforms = _fractions(words, name, kind)
    log = math.log if name == "float64" else _LOGF
    logs = np.fromiter(map(log, np.maximum(uniforms[0::2], kind.type(1e-7)).tolist()), kind, len(uniforms) // 2)
    radii = np.sqrt(kind.type(-2) * logs)
    # The angle is computed in float64 and rounded, as the kernel does. Of NumPy's functions, the exponential of a
    # complex number is the one whose sine and cosine are the C library's, so TensorFlow's; np.sin has its own loops.
    circle = np.zeros(len(radii), f"complex{16 * kind.itemsize}")
    circle.imag = uniforms[1::2].astype(np.float64) * (2 * np.pi)
    np.exp(circle, out=circle)
    normals = np.empty(len(uniforms), kind)
    np.multiply(circle.imag, radii, out=normals[0::2])
    np.multiply(circle.real, radii, out=normals[1::2])
    return normals


def _fill_truncated(out: np.ndarray, first: int, philox: _Philox, name: str) -> None:
    """Fills each row of `out`, output groups `first` onwards, with the first normals of its own that are near 0."""
    size = out.shape[1]
    starts = np.arange(first, first + len(out), dtype=np.uint64) * np.uint64(size * _RESERVED // 4)
    filled = np.zeros(len(out), np.intp)
    rows = np.arange(len(out))  # the groups that still lack numbers
    while len(rows):
        normals = _normals(philox(starts[rows]), name).reshape(len(rows), size)
        for candidates in normals.T:
            taken = (np.abs(candidates) < _CUTOFF) & (filled[rows] < size)
            out[rows[taken], filled[rows[taken]]] = candidates[taken]
            filled[rows[taken]] += 1
        rows = rows[filled[rows] < size]
        starts += np.uint64(1)


def _c_logf() -> Callable[[float], float]:
    # NumPy's float32 logarithm has its own loops: 12 per cent of all radii would differ, by up to 2 ULPs
    try:
        logf = ctypes.CDLL(None).logf
    except (AttributeError, OSError, TypeError):  # a platform whose processes do not show the C library's names
        return math.log
    logf.argtypes, logf.restype = [ctypes.c_float], ctypes.c_float
    return logf


_LOGF = _c_logf()
