"""What TensorFlow 1's random ops draw that `detrand.philox` has no function for, computed on the host.

Each function takes the op's place in the stream: seed, op seed, and how often the op has run before.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching, philox

_PHILOX = 1  # the algorithm number that the stateless kernels know Philox by
_RESERVED = 256  # counters that an op moves on by for each number
_MAX_INT32 = 2**31 - 1


def permutation(size: int, seed: int, op_seed: int, run: int = 0, first_counter: int | None = None) -> np.ndarray:
    """Returns the order, int32, into which ``tf.random.shuffle`` puts so many elements.

    Args:
      size: how many.
      seed: the op's attribute ``seed``.
      op_seed: the op's attribute ``seed2``.
      run: how often the op has run before, with that size.
      first_counter: where the op's counter is, if it has run with other sizes.
    """
    counter = run * counters_of_shuffle(size) if first_counter is None else first_counter
    with tf.device("/CPU:0"):
        order = np.arange(size, dtype=np.int32)
        return _patching.stateless_kernels().stateless_shuffle(order, *_state(seed, op_seed, counter)).numpy()


def counters_of_shuffle(size: int) -> int:
    """Returns how many counters ``tf.random.shuffle`` of so many elements uses: one for four swaps."""
    return -(-max(size - 1, 0) // 4)


def multinomial(logits: np.ndarray, num_samples: int, seed: int, op_seed: int, run: int) -> np.ndarray:
    """Draws classes, int64 of shape ``(len(logits), num_samples)``, as the op ``Multinomial`` does.

    A sample is the first class up to which the probabilities sum to more than a uniform number. Source: TensorFlow's
    CPU kernel, ``multinomial_op.cc``. It reserves two numbers for each sample, in a multiple of four samples a row,
    and uses one, row after row; where it splits large batches among threads, it does not draw these numbers.
    """
    rows = len(logits)
    reserved = rows * -(-num_samples // 4) * 4 * 2
    uniforms = philox.uniform((reserved,), seed, op_seed, run, "float64")[: rows * num_samples]
    drawn = np.empty((rows, num_samples), np.int64)
    for row, samples, out in zip(logits.astype(np.float64), uniforms.reshape(drawn.shape), drawn, strict=True):
        finite = np.isfinite(row)
        greatest = row[finite].max(initial=-np.finfo(np.float64).max)
        # math.exp is the C library's exponential, as the kernel's is; NumPy has its own.
        weights = [math.exp(x - greatest) if ok else 0.0 for x, ok in zip(row.tolist(), finite, strict=True)]
        cumulative = np.array(list(itertools.accumulate(weights)))
        out[:] = np.searchsorted(cumulative, samples * cumulative[-1], side="right")
    return drawn


def gamma(shape: Any, alpha: np.ndarray, dtype: str, seed: int, op_seed: int, run: int) -> np.ndarray:
    """Draws an array of `shape`, whose last dimensions are those of `alpha`, as ``RandomGamma`` does for each alpha.

    An `alpha` that has other dimensions is broadcast to `shape`, and one number drawn for each.
    """
    alpha = alpha.astype(dtype)
    if tuple(shape)[len(shape) - alpha.ndim :] != alpha.shape:
        alpha = np.broadcast_to(alpha, shape)
    state = _state(seed, op_seed, run * math.prod(shape) * _RESERVED)
    with tf.device("/CPU:0"):
        return _patching.stateless_kernels().stateless_random_gamma_v3(shape, *state, alpha).numpy()


def binomial(
    shape: Any, counts: np.ndarray, probabilities: np.ndarray, dtype: str, seed: int, op_seed: int, run: int
) -> np.ndarray:
    """Draws as ``tf.random.stateless_binomial`` from a seed that is drawn: TensorFlow 1 has no such op."""
    counts, probabilities = counts.astype(dtype), probabilities.astype(dtype)
    with tf.device("/CPU:0"):
        return tf.random.stateless_binomial(shape, seeds(seed, op_seed, run), counts, probabilities, dtype).numpy()


def seeds(seed: int, op_seed: int, run: int) -> np.ndarray:
    """Draws the two numbers, int32, of a stateless op's seed."""
    return philox.randint((2,), 0, _MAX_INT32, seed, op_seed, run)


def _state(seed: int, op_seed: int, counter: int) -> tuple[np.ndarray, np.ndarray, int]:
    return np.array([seed], np.uint64), np.array([counter, op_seed], np.uint64), _PHILOX
