"""A few uniform numbers, drawn eagerly: by the formula for hundreds of op seeds at once, not by a kernel for each.

To run a kernel takes longer than a few numbers are worth. Philox makes any number from its op seed alone, so what the
next ops draw can be computed with what this one does, whatever they turn out to be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.tensorflow import dims_in_eager, eager_float32
from detrand.philox.generator import fractions_of_op_seeds
from detrand.seeding.regions import OpNode

_MOST = 16  # numbers that an op may draw here, and their dimensions, of which NumPy has fewer than TensorFlow
_BITS_OF_BLOCK = 8
_IN_BLOCK = (1 << _BITS_OF_BLOCK) - 1
_BLOCKS_KEPT = 8
_UINT64 = 2**64 - 1  # the kernels read the seeds, which may be negative, as unsigned

_blocks: dict[tuple[int, int], np.ndarray] = {}  # seed and number of a block of op seeds to the numbers of each


def draw(shape: Any, seed: int, op_seed: int, place: OpNode | None) -> tuple[tf.Tensor, tuple[int, ...], str] | None:
    """Draws a few numbers, float32.

    Args:
      shape: the shape, as the op was given it.
      seed: the op's seed.
      op_seed: the op's op seed.
      place: the place whose next run it is; None for a run 0.

    Returns:
      The tensor with its shape and the name of its dtype; None where that is up to the kernel, or it says what is
      wrong.
    """
    if place is not None:
        return None
    try:
        dims = dims_in_eager(shape)
    except (AttributeError, tf.errors.InvalidArgumentError):
        return None
    if dims is None or len(dims) > _MOST:
        return None
    count = math.prod(dims)
    # Where there is nothing to draw, the other dimensions may be greater than NumPy's or TensorFlow's.
    if not 0 < count <= _MOST or (dims and min(dims) < 0):
        return None
    # A copy: a tensor can share memory with its array, and would keep the whole block alive.
    array = _numbers_of(seed, op_seed)[:count].copy().reshape(dims)
    return eager_float32(array), tuple(dims), "float32"


def _numbers_of(seed: int, op_seed: int) -> np.ndarray:
    try:
        return _blocks[seed, op_seed >> _BITS_OF_BLOCK][op_seed & _IN_BLOCK]
    except KeyError:
        _make_block(seed, op_seed >> _BITS_OF_BLOCK)
        return _numbers_of(seed, op_seed)


def _make_block(seed: int, block: int) -> None:
    if len(_blocks) >= _BLOCKS_KEPT:
        _blocks.clear()
    first = block << _BITS_OF_BLOCK & _UINT64
    _blocks[seed, block] = fractions_of_op_seeds(seed & _UINT64, first, _IN_BLOCK + 1, _MOST)
