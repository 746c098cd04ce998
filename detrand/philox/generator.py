"""The generator Philox4x32-10 in NumPy: random words from a key and counters, and fractions from words.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, for the function and its constants;
TensorFlow's ``random_distributions.h`` for the fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BLOCK = 1 << 14  # counters at a time, so that the six 64-bit buffers of `Philox` fit a core's second-level cache

_LOW, _HIGH = 0, 1  # positions of the halves of a 64-bit number, which is little-endian where TensorFlow runs
IN_ORDER = (0, 1, 2, 3)
HIGH_HALF_FIRST = (1, 0, 3, 2)  # for 64-bit numbers of two words each

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the low and the high half of the key in each round
WORD = 2**32 - 1
UINT64 = 2**64 - 1  # the kernels read the seeds, which may be negative, as unsigned
RESERVED = 256  # counters that a run of an op reserves for each number, however many of them the number takes
MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}

_INVERSES = tuple(pow(multiplier, -1, 2**32) for multiplier in MULTIPLIERS)
_MULTIPLIER_0, _MULTIPLIER_1 = (np.array(multiplier, np.uint64) for multiplier in MULTIPLIERS)


class Philox:
    """The words of a 64-bit key from a 128-bit counter on, of at most `most` counters in one call."""

    def __init__(self, key: int, counter: int, most: int):
        self._counter = counter
        halves = zip((key & WORD, key >> 32), WEYL, strict=True)
        low, high = ([(half + r * weyl) & WORD for r in range(ROUNDS)] for half, weyl in halves)
        self._first_keys = (low[:2], high[:2])
        # A round xors its key into the high words of its products, and the next round xors its own into their low
        # words. One pass over the products of an even round does both.
        self._keys = [
            tuple(np.array(half[r] << 32 | half[r + 1], np.uint64) for half in (low, high)) for r in range(2, ROUNDS, 2)
        ]
        self._buffers = np.zeros((6, most), np.uint64)

    def words(self, offsets: np.ndarray, order: tuple[int, ...] = IN_ORDER) -> np.ndarray:
        """Compute the words of some counters, as a flat uint32 array of four for each.

        `offsets`, uint64 of shape (n,), ascend; they count from the first counter. `order` has the position of each of
        the four words.
        """
        out = np.empty((len(offsets), 4), np.uint32)
        self._write_words(offsets, [out[:, column] for column in order])
        return out.reshape(-1)

    def _write_words(self, offsets: np.ndarray, columns: Sequence[np.ndarray]) -> None:
        low = self._counter & WORD
        carry, last_carry = (low + int(offset) >> 32 for offset in (offsets[0], offsets[-1]))
        if carry == last_carry:
            first = np.uint64((low - (carry << 32)) % 2**64)
            higher = (self._counter >> 32) + carry
            higher_words = (higher & WORD, higher >> 32 & WORD, higher >> 64 & WORD)
            self._rounds(offsets, first, higher_words, columns)
        else:
            cut = int(np.searchsorted(offsets, np.uint64((carry + 1 << 32) - low)))
            self._write_words(offsets[:cut], [column[:cut] for column in columns])
            self._write_words(offsets[cut:], [column[cut:] for column in columns])

    def _rounds(
        self, offsets: np.ndarray, first: np.uint64, higher_words: tuple[int, int, int], columns: Sequence[np.ndarray]
    ) -> None:
        """Write the words of counters that differ only in word 0, which is `first` + `offsets`."""
        # A round multiplies words 0 and 2 by constants, and uses the high and the low words of the two products
        # separately. These are the odd and even elements of a 32-bit view, without any shifting or masking.
        buffers = self._buffers[:, : len(offsets)]
        halves = buffers.view(np.uint32)
        x0, x2, p0, p1, q0, q1 = buffers
        x0_low, x2_low, p0_low, p1_low, q0_low, q1_low = halves[:, _LOW::2]
        p0_high, p1_high, q0_high, q1_high = halves[2:, _HIGH::2]

        # Two of the first four products are the same for every counter.
        word1, word2, word3 = higher_words
        (key0, next_key0), (key1, next_key1) = self._first_keys
        np.add(offsets, first, x0)
        np.multiply(x0, _MULTIPLIER_0, p0)
        np.bitwise_xor(p0_high, np.uint32(word3 ^ key1), x2_low)
        same = MULTIPLIERS[1] * word2
        np.multiply(x2, _MULTIPLIER_1, q1)
        np.bitwise_xor(q1_high, np.uint32(same & WORD ^ next_key0), x0_low)
        same = MULTIPLIERS[0] * (same >> 32 ^ word1 ^ key0)
        np.bitwise_xor(p0_low, np.uint32(same >> 32 ^ next_key1), x2_low)
        q0.fill(same & WORD)

        results = [(x0_low, x2_low)] * 3 + [(columns[0], columns[2])]
        for (keys0, keys1), (result0, result2) in zip(self._keys, results, strict=True):
            np.multiply(x0, _MULTIPLIER_0, p0)
            np.multiply(x2, _MULTIPLIER_1, p1)
            np.bitwise_xor(p0, keys1, p0)
            np.bitwise_xor(p1, keys0, p1)
            np.bitwise_xor(p1_high, q1_low, x0_low)
            np.bitwise_xor(p0_high, q0_low, x2_low)
            np.multiply(x0, _MULTIPLIER_0, q0)
            np.multiply(x2, _MULTIPLIER_1, q1)
            np.bitwise_xor(q1_high, p1_low, result0)
            np.bitwise_xor(q0_high, p0_low, result2)
        columns[1][:] = q1_low
        columns[3][:] = q0_low

    def fractions(self, offsets: np.ndarray, name: str) -> np.ndarray:
        """Compute numbers in [0, 1) from the words of some counters, as TensorFlow's kernels do.

        The low bits of a word (of two words for float64) become the mantissa of a number in [1, 2), minus 1. Each
        counter makes two float64 numbers if `name` is float64, else four float32 numbers, in a flat array.
        """
        if name == "float64":
            unsigned, order, size, bias = np.uint64, HIGH_HALF_FIRST, 52, 1023
        else:
            unsigned, order, size, bias = np.uint32, IN_ORDER, 23, 127
        mantissas = self.words(offsets, order).view(unsigned)
        if MANTISSA_BITS[name] < size:
            np.left_shift(mantissas, unsigned(size - MANTISSA_BITS[name]), mantissas)
        np.bitwise_and(mantissas, unsigned(2**size - 1), mantissas)
        np.bitwise_or(mantissas, unsigned(bias << size), mantissas)
        numbers = mantissas.view(f"float{8 * mantissas.itemsize}")
        np.subtract(numbers, numbers.dtype.type(1), numbers)
        return numbers


def counter_words(words: Sequence[Any], key: int) -> tuple[Any, Any, Any, Any]:
    """Return the words of the counters from which a key makes four words: the inverse of `Philox.words`.

    Each word is an int, or uint64 of any shape that broadcasts with the others.
    """
    x0, x1, x2, x3 = words
    for r in reversed(range(ROUNDS)):  # a round multiplies two words, and xors their high halves with the other two
        key_low, key_high = (half + r * weyl & WORD for half, weyl in zip((key & WORD, key >> 32), WEYL, strict=True))
        before0, before2 = x3 * _INVERSES[0] & WORD, x1 * _INVERSES[1] & WORD
        x1 = x0 ^ before2 * MULTIPLIERS[1] >> 32 ^ key_low
        x3 = x2 ^ before0 * MULTIPLIERS[0] >> 32 ^ key_high
        x0, x2 = before0, before2
    return x0, x1, x2, x3


def in_blocks(dims: tuple[int, ...], kind: np.dtype, numbers_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Draw numbers block by block, in groups of four, or of two if they have 64 bits.

    `numbers_of` takes the positions of some groups, as uint64.
    """
    count = math.prod(dims)
    size = 2 if kind.itemsize == 8 else 4  # as many as the words of one counter make
    groups = -(-count // size)
    out = np.empty((groups, size), kind)
    for first in range(0, groups, BLOCK):
        block = out[first : first + BLOCK]
        offsets = np.arange(first, first + len(block), dtype=np.uint64)
        block[:] = numbers_of(offsets).reshape(block.shape)
    return out.reshape(-1)[:count].reshape(dims)
