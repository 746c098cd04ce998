"""Draws of TensorFlow 1's random ops as NumPy functions of the counter that an op has come to.

Each takes the op's state by name: its ``seed``, its ``op_seed`` and the low 64 bits of its ``counter``, which each run
moves on by what it reserves. What a run reserves depends on how many numbers it draws, so a counter says more than the
number of the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand import philox
from detrand.packages import needed_by
from detrand.philox.generator import BLOCK, RESERVED, UINT64, Philox, in_blocks

PHILOX_ALGORITHM = 1  # Philox's number among the algorithms of the stateless kernels
_MAX_INT32 = 2**31 - 1
_CYCLES_IN_ONE_THREAD = 200_000


def reserved(op_type: str, shape: Any) -> int:
    """Return how far a run of an op, whose output has this shape, moves the counter on."""
    if op_type == "RandomShuffle":
        return reserved_by_permutation(shape[0]) if math.prod(shape) > 1 else 0
    if op_type == "Multinomial":  # two numbers a sample, in rows of a multiple of four
        rows, samples = shape
        shape = (rows, -(-samples // 4) * 4, 2)
    return math.prod(shape) * RESERVED


def reserved_by_permutation(size: Any) -> Any:
    """Return how far a shuffle of `size` rows, an int or a tensor, moves the counter on: by one for four swaps."""
    return (size + 2) // 4


def permutation(size: int, seed: int, op_seed: int, counter: int) -> np.ndarray:
    """Draw the order, int32, into which ``tf.random.shuffle`` puts `size` elements.

    For each position, a word of 32 bits decides which of the elements from there on is swapped to it. Source:
    TensorFlow's CPU kernel, ``random_shuffle_op.cc``.
    """
    swaps = max(size - 1, 0)
    words = Philox(seed & UINT64, (op_seed & UINT64) << 64 | counter, BLOCK)
    drawn = in_blocks((swaps,), np.dtype(np.uint32), words.words)
    order = list(range(size))
    for first, other in enumerate((drawn % np.arange(size, 1, -1, dtype=np.uint32)).tolist()):
        order[first], order[first + other] = order[first + other], order[first]
    return np.array(order, np.int32)


def philox_draw(draw: Callable[..., np.ndarray], *args: Any, counter: int, **kwargs: Any) -> np.ndarray:
    """Draw with a function of `detrand.philox`."""
    return draw(*args, drawn=counter // RESERVED, **kwargs)


def affine(
    draw: Callable[..., np.ndarray], shape: Any, dtype: str, factor: np.ndarray, offset: np.ndarray, **state: int
) -> np.ndarray:
    """Draw ``x * factor + offset``, rounded as TensorFlow's two ops do."""
    drawn = philox_draw(draw, shape, dtype=dtype, **state)
    return drawn * factor.astype(drawn.dtype) + offset.astype(drawn.dtype)


def integers(shape: Any, low: np.ndarray, high: np.ndarray, dtype: str, **state: int) -> np.ndarray:
    """Draw integers of a 32-bit or 64-bit dtype from the range of two scalars."""
    return philox_draw(philox.randint, shape, int(low), int(high), dtype=dtype, **state)


def multinomial(logits: np.ndarray, num_samples: int, **state: int) -> np.ndarray:
    """Draw classes, int64 of shape ``(len(logits), num_samples)``, as the op ``Multinomial`` does.

    A sample is the first class up to which the probabilities sum to more than a uniform number. Source: TensorFlow's
    CPU kernel, ``multinomial_op.cc``. A kernel that splits a large batch among threads draws different numbers.
    """
    samples = np.empty((len(logits), num_samples), np.int64)
    uniforms = philox_draw(philox.uniform, samples.shape, dtype="float64", **state)
    for row, uniform, out in zip(logits.astype(np.float64), uniforms, samples, strict=True):
        finite = np.isfinite(row)
        greatest = row[finite].max(initial=-np.finfo(np.float64).max)
        # math.exp is the C library's exponential, as the kernel's is; NumPy has its own.
        weights = [math.exp(x - greatest) if ok else 0.0 for x, ok in zip(row.tolist(), finite, strict=True)]
        cumulative = np.array(list(itertools.accumulate(weights)))
        out[:] = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return samples


def is_multinomial_split(rows: int, num_samples: int, classes: int) -> bool:
    """Return whether TensorFlow's kernel splits a batch among threads, if there are several.

    The kernel estimates its own run time, and the thread pool starts a second thread at 210,000 cycles. Source:
    ``multinomial_op.cc`` in TensorFlow, ``TensorCostModel`` in Eigen.
    """
    return rows * 50 * (num_samples * math.log2(max(classes, 1)) + classes) > _CYCLES_IN_ONE_THREAD


def gamma(shape: Any, alpha: np.ndarray, dtype: str, **state: int) -> np.ndarray:
    """Draw numbers of a shape as ``RandomGamma`` does: for each alpha, if its dimensions are the shape's last ones.

    An alpha of other dimensions is broadcast to the shape, and one number is drawn for each element.
    """
    for_each = tuple(shape)[: len(shape) - alpha.ndim]
    if (*for_each, *alpha.shape) != tuple(shape):
        for_each, alpha = (), np.broadcast_to(alpha, shape)
    return philox_draw(philox.gamma, for_each, alpha, dtype=dtype, **state)


def binomial(shape: Any, counts: np.ndarray, probabilities: np.ndarray, dtype: str, **state: int) -> np.ndarray:
    """Draw by ``tf.random.stateless_binomial`` from a drawn seed: TensorFlow 1 has no such op."""
    with needed_by("A binomial draw in the scope of a DeterministicRandomTestTool"):
        import tensorflow as tf

    counts, probabilities = counts.astype(dtype), probabilities.astype(dtype)
    with tf.device("/CPU:0"):
        return tf.random.stateless_binomial(shape, seeds(**state), counts, probabilities, dtype).numpy()


def seeds(**state: int) -> np.ndarray:
    """Draw the two numbers, int32, of a stateless op's seed."""
    return philox_draw(philox.randint, (2,), 0, _MAX_INT32, **state)
