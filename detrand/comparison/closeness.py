"""The measure of how far two arrays of one shape are apart: elements that are not close, and greatest differences.

    measure(actual, desired, kind, closeness) -> `Tally`

Two elements are close if ``|actual - desired| <= atol + rtol * |desired|``, computed in float64, or in a wider dtype
if a leaf has one. Integers, bools and strings are close if they are equal. A distance in ULPs is the number of steps
from one number of the dtype to the next.

Leaves are measured in blocks that fit a core's cache, so the float64 temporaries take a few megabytes for a leaf of any
size, and NumPy's passes over them do not wait for memory.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from detrand.comparison.leaves import Kind, Leaf
from detrand.errors import ArgumentError

_NUMERIC: tuple[Kind, ...] = ("bool", "int", "float", "complex")  # each kind can be converted to the later ones
_FLOATING: tuple[Kind, ...] = ("float", "complex")
_BLOCK = 1 << 15


class Closeness(NamedTuple):
    """The rule for when two elements are close.

    Attributes:
      rtol: tolerance relative to ``|desired|``.
      atol: absolute tolerance.
      equal_nan: whether NaN equals NaN.
    """

    rtol: float
    atol: float
    equal_nan: bool

    @classmethod
    def checked(cls, rtol: Any, atol: Any, equal_nan: Any) -> Closeness:
        """Return a closeness of the user's arguments.

        Raises:
          ArgumentError: unless ``rtol`` and ``atol`` are finite and not negative.
        """
        return cls(_not_negative("rtol", rtol), _not_negative("atol", atol), bool(equal_nan))

    def for_kind(self, kind: Kind) -> Closeness:
        """Return the closeness for numbers of a kind: only floating-point numbers may differ."""
        return self if kind in _FLOATING else self._replace(rtol=0.0, atol=0.0)


def _not_negative(name: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= 0):
        raise ArgumentError(f"{name}={value!r}: must be a finite number that is not negative. 0 requires equality")
    return float(value)


def common_kind(actual: Kind, desired: Kind) -> Kind | None:
    """Return the common kind in which numbers of two kinds are compared; None if they cannot be compared."""
    if actual in _NUMERIC and desired in _NUMERIC:
        return max(actual, desired, key=_NUMERIC.index)
    return actual if actual == desired else None


class _Block(NamedTuple):
    """The differences in one block. Arrays have the block's length, or length 1 if the whole block is equal."""

    mismatch: np.ndarray
    difference: np.ndarray | None = None
    relative: np.ndarray | None = None
    both_nan: int = 0
    nans: tuple[int, int] = (0, 0)  # in actual and in desired
    infs: tuple[int, int] = (0, 0)
    ulps: int | None = None


class Greatest:
    """The greatest amount so far, without NaN, and its position in the flat leaf."""

    amount: float | None = None
    position: int | None = None

    def offer(self, amounts: np.ndarray, start: int) -> None:
        """Update it with the amounts of the block that starts at a position."""
        if amounts.dtype.kind == "f":
            amounts[np.isnan(amounts)] = -1
        best = int(amounts.argmax())
        if amounts[best] >= 0 and (self.amount is None or amounts[best] > self.amount):
            self.amount = float(amounts[best]) if amounts.dtype.kind == "f" else int(amounts[best])
            self.position = start + best


class Tally:
    """The differences in the blocks of a leaf so far.

    Attributes:
      mismatched: how many elements are not close.
      both_nan: how many elements are NaN in both.
      nans: how many elements are NaN in actual, and in desired.
      infs: how many elements are infinite in actual, and in desired.
      first: the first element that is not close.
      absolute: the greatest ``|actual - desired|``.
      relative: the greatest ``|actual - desired| / |desired|`` where desired is not 0.
      ulps: the greatest distance in ULPs; None where ULPs are not counted.
      by_magnitude: k -> the number of elements with a finite ``|actual - desired|`` from 10**k to below 10**(k + 1).
    """

    def __init__(self) -> None:
        self.mismatched = self.both_nan = 0
        self.nans = self.infs = (0, 0)
        self.first, self.absolute, self.relative = Greatest(), Greatest(), Greatest()
        self.ulps: int | None = None
        self.by_magnitude: Counter[int] = Counter()

    def add(self, block: _Block, start: int) -> None:
        """Add the differences in the block that starts at a position."""
        if block.mismatch.any():
            self.mismatched += int(np.count_nonzero(block.mismatch))
            if self.first.position is None:
                self.first.position = start + int(block.mismatch.argmax())
        if block.difference is not None:
            self.by_magnitude.update(_magnitudes(block.difference))
            self.absolute.offer(block.difference, start)
        if block.relative is not None:
            self.relative.offer(block.relative, start)
        self.both_nan += block.both_nan
        self.nans = (self.nans[0] + block.nans[0], self.nans[1] + block.nans[1])
        self.infs = (self.infs[0] + block.infs[0], self.infs[1] + block.infs[1])
        self.ulps = max((ulps for ulps in (self.ulps, block.ulps) if ulps is not None), default=None)


def _magnitudes(difference: np.ndarray) -> dict[int, int]:
    amounts = difference[difference > 0].astype(np.float64)
    exponents = np.floor(np.log10(amounts[np.isfinite(amounts)]))
    return {
        int(exponent): int(count) for exponent, count in zip(*np.unique(exponents, return_counts=True), strict=True)
    }


def measure(actual: Leaf, desired: Leaf, kind: Kind, closeness: Closeness) -> Tally:
    """Compare two leaves of one shape as numbers or strings of their `common_kind`.

    >>> from detrand.comparison.leaves import read_leaf
    >>> leaves = (read_leaf(np.array(values), "x") for values in ([1.0, 2.0], [1.0, 2.5]))
    >>> tally = measure(*leaves, "float", Closeness(1e-6, 1e-5, equal_nan=False))
    >>> tally.mismatched, tally.absolute.amount, tally.absolute.position
    (1, 0.5, 1)
    """
    tally = Tally()
    a, d = actual.array.reshape(-1), desired.array.reshape(-1)
    coarser = _coarser(a.dtype, d.dtype) if actual.kind == desired.kind and kind in _FLOATING else None
    with np.errstate(all="ignore"):  # Inf and NaN are counted and reported instead
        for start in range(0, a.size, _BLOCK):
            x, y = a[start : start + _BLOCK], d[start : start + _BLOCK]
            if x.dtype == y.dtype and not (x != y).any():  # without NaN, since NaN != NaN
                block = _equal_block(x, kind, coarser)
            elif kind in _FLOATING:
                block = _float_block(x, y, kind, closeness, coarser)
            elif kind == "int":
                block = _int_block(x, y)
            else:
                block = _Block(x != y)
            tally.add(block, start)
    return tally


def _equal_block(x: np.ndarray, kind: Kind, coarser: np.dtype | None) -> _Block:
    same, zero = np.zeros(1, bool), np.zeros(1)
    if kind in _FLOATING:
        infs = int(np.count_nonzero(np.isinf(x)))
        return _Block(same, zero, zero, infs=(infs, infs), ulps=None if coarser is None else 0)
    return _Block(same, zero, zero) if kind == "int" else _Block(same)


_PRECISIONS: dict[Kind, Any] = {
    "float": (np.float64, np.longdouble),
    "complex": (np.complex128, np.clongdouble),
}


def _float_block(x: np.ndarray, y: np.ndarray, kind: Kind, closeness: Closeness, coarser: np.dtype | None) -> _Block:
    """Measure in float64 or complex128, or in the wider dtype of a leaf."""
    ulps = None if coarser is None else _ulps(x, y, coarser)
    narrow, wide = _PRECISIONS[kind]
    precision = wide if x.dtype.char in "gG" or y.dtype.char in "gG" else narrow
    x, y = x.astype(precision, copy=False), y.astype(precision, copy=False)
    equal = x == y
    difference = np.abs(x - y)
    difference[equal] = 0  # Inf - Inf is NaN
    scale = np.abs(y)
    # Inf is close only to itself, although |1 - Inf| <= atol + rtol * Inf. numpy.isclose agrees, except where
    # rtol * desired overflows to Inf: there an actual Inf counts as close to a finite number.
    close = equal | ((difference <= closeness.atol + closeness.rtol * scale) & np.isfinite(x) & np.isfinite(y))
    nans = np.isnan(x), np.isnan(y)
    both_nan = nans[0] & nans[1]
    if closeness.equal_nan:
        close |= both_nan
    relative = difference / scale
    relative[np.isinf(difference)] = np.inf  # Inf / Inf is NaN
    relative[scale == 0] = np.nan
    relative[equal] = 0
    return _Block(
        ~close,
        difference,
        relative,
        both_nan=int(np.count_nonzero(both_nan)),
        nans=(int(np.count_nonzero(nans[0])), int(np.count_nonzero(nans[1]))),
        infs=(int(np.count_nonzero(np.isinf(x))), int(np.count_nonzero(np.isinf(y)))),
        ulps=ulps,
    )


def _int_block(x: np.ndarray, y: np.ndarray) -> _Block:
    """Measure without overflow: |x - y| of 64-bit integers fits uint64, where the wrap-around cancels out."""
    if "u" in x.dtype.kind + y.dtype.kind and np.result_type(x, y).kind == "f":
        x, y = x.astype(object), y.astype(object)  # only Python's integers hold the difference of int64 and uint64
        difference = np.abs(x - y)
    else:
        difference = np.where(
            x > y, x.astype(np.uint64) - y.astype(np.uint64), y.astype(np.uint64) - x.astype(np.uint64)
        )
    relative = difference.astype(np.float64) / np.abs(y.astype(np.float64))
    relative[y == 0] = np.nan
    relative[x == y] = 0
    return _Block(x != y, difference, relative)


def _coarser(a: np.dtype, d: np.dtype) -> np.dtype | None:
    """Return the floating-point dtype with fewer bits of precision; None where ULPs are not counted."""
    parts: dict[str, np.dtype] = {"F": np.dtype(np.float32), "D": np.dtype(np.float64)}
    a, d = parts.get(a.char, a), parts.get(d.char, d)
    if a.char in "gG" or d.char in "gG":  # an 80-bit number has no integer of its size
        return None
    finfo: Any = getattr(
        sys.modules.get("ml_dtypes"), "finfo", np.finfo
    )  # ml_dtypes is loaded if an array has one of its dtypes
    return a if finfo(a).nmant < finfo(d).nmant else d


def _ulps(x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> int | None:
    """Return the greatest distance in steps of the dtype; None if every element is NaN.

    The bits of positive floating-point numbers, read as integers, count the numbers from 0 on (IEEE 754).
    """
    if x.dtype.kind == "c":
        x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (x, y))
    x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    bits = np.dtype(f"u{dtype.itemsize}")
    i, j = np.abs(x).view(bits), np.abs(y).view(bits)
    steps = np.where(np.signbit(x) == np.signbit(y), np.maximum(i, j) - np.minimum(i, j), i + j)
    known = ~(np.isnan(x) | np.isnan(y))
    return int(steps[known].max()) if known.any() else None
