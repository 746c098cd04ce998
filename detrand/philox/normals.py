"""Normal and truncated normal numbers.

The logarithms, sines and cosines are the C library's, as TensorFlow's are.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand.philox.arguments import Shape, float_dtype, real, start
from detrand.philox.generator import BLOCK, Philox, in_blocks
from detrand.philox.uniforms import affine

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
