"""The measure of how far two arrays of one shape are apart: elements that are not close, and greatest differences.

Two elements are close if ``|actual - desired| <= atol + rtol * |desired|``, computed in float64, or in a wider dtype
if a leaf has one. Integers, bools and strings are close if they are equal. A distance in ULPs is the number of steps
from one number of the dtype to the next.
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
FLOATING: tuple[Kind, ...] = ("float", "complex")
_BLOCK = 1 << 15  # elements whose float64 temporaries fit a core's cache; a leaf of any size needs no more memory


class Closeness(NamedTuple):
    """The rule for when two elements are close; ``equal_nan`` is whether NaN equals NaN."""

    rtol: float
    atol: float
    equal_nan: bool

    @classmethod
    def checked(cls, rtol: Any, atol: Any, equal_nan: Any) -> Closeness:
        """Return a closeness of the user's arguments, whose tolerances must be finite and not negative."""
        for name, value in (("rtol", rtol), ("atol", atol)):
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value >= 0):
                raise ArgumentError(
                    f"{name}={value!r}: must be a finite number that is not negative. 0 requires equality"
                )
        return cls(float(rtol), float(atol), bool(equal_nan))


def common_kind(actual: Kind, desired: Kind) -> Kind | None:
    """Return the common kind in which numbers of two kinds are compared; None if they cannot be compared."""
    if actual in _NUMERIC and desired in _NUMERIC:
        return max(actual, desired, key=_NUMERIC.index)
    return actual if actual == desired else None


class Greatest(NamedTuple):
    """The greatest amount in a leaf, and the position of its first element of that amount."""

    amount: float
    position: int


class Tally:
    """The differences between two leaves: attributes of `LeafComparison`, with positions in the flat leaf."""

    def __init__(self) -> None:
        self.mismatched = self.both_nan = 0
        self.first: int | None = None
        self.absolute: Greatest | None = None
        self.relative: Greatest | None = None
        self.ulps: int | None = None
        self.by_magnitude: Counter[int] = Counter()

    def add(self, start: int, close: np.ndarray, *differences: np.ndarray) -> None:
        """Add a block that starts at a position: what is close, then, of numbers, ``|x - y|`` and ``|x - y| / |y|``."""
        self.mismatched += int(np.count_nonzero(~close))
        if self.first is None and not close.all():
            self.first = start + int(close.argmin())
        if differences:
            difference, relative = differences
            self.absolute = _greater(self.absolute, difference, start)
            self.relative = _greater(self.relative, relative, start)
            amounts = difference[difference > 0].astype(np.float64)
            exponents = np.floor(np.log10(amounts[np.isfinite(amounts)])).astype(int)
            values, counts = np.unique(exponents, return_counts=True)
            self.by_magnitude.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _greater(known: Greatest | None, amounts: np.ndarray, start: int) -> Greatest | None:
    greatest = np.fmax.reduce(amounts)  # NaN only if every amount is
    if np.isnan(float(greatest)) or (known is not None and greatest <= known.amount):
        return known
    amount = float(greatest) if amounts.dtype.kind == "f" else int(greatest)
    return Greatest(amount, start + int((amounts == greatest).argmax()))


def measure(actual: Leaf, desired: Leaf, kind: Kind, closeness: Closeness) -> Tally:
    """Compare two leaves of one shape as numbers or strings of their `common_kind`."""
    tally = Tally()
    a, d = actual.array.reshape(-1), desired.array.reshape(-1)
    coarser = _coarser(a.dtype, d.dtype) if actual.kind == desired.kind and kind in FLOATING else None
    with np.errstate(all="ignore"):  # Inf and NaN are reported instead
        for start in range(0, a.size, _BLOCK):
            x, y = a[start : start + _BLOCK], d[start : start + _BLOCK]
            if x.dtype == y.dtype and not (x != y).any():
                x, y = x[:1], y[:1]  # equal leaves take a twentieth of the time
            if kind in FLOATING:
                tally.add(start, *_float_differences(x, y, closeness))
                tally.both_nan += int(np.count_nonzero(np.isnan(x) & np.isnan(y)))
            elif kind == "int":
                tally.add(start, *_int_differences(x, y))
            else:
                tally.add(start, x == y)
            if coarser is not None and (ulps := _ulps(x, y, coarser)).size:
                tally.ulps = max(tally.ulps or 0, int(ulps.max()))
    if tally.absolute and tally.absolute.amount and tally.relative and not tally.relative.amount:
        tally.relative = None  # only elements whose desired value is 0 differ
    return tally


def _float_differences(x: np.ndarray, y: np.ndarray, closeness: Closeness) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is close, ``|x - y|`` and ``|x - y| / |y|``, in float64 or in the wider dtype of a leaf."""
    precision = np.result_type(np.result_type(x, np.float64), y)  # float8 and bfloat16 have no common dtype
    x, y = x.astype(precision, copy=False), y.astype(precision, copy=False)
    equal = x == y
    difference = np.abs(x - y)
    difference[equal] = 0  # Inf - Inf is NaN
    scale = np.abs(y)
    # Inf is close only to itself, although |1 - Inf| <= atol + rtol * Inf. numpy.isclose agrees, except where
    # rtol * desired overflows to Inf: there an actual Inf counts as close to a finite number.
    close = equal | ((difference <= closeness.atol + closeness.rtol * scale) & np.isfinite(x) & np.isfinite(y))
    if closeness.equal_nan:
        close |= np.isnan(x) & np.isnan(y)
    relative = difference / scale
    relative[np.isinf(difference)] = np.inf  # Inf / Inf is NaN
    relative[scale == 0] = np.nan
    relative[equal] = 0
    return close, difference, relative


def _int_differences(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is equal, ``|x - y|`` without overflow, and ``|x - y| / |y|``."""
    if np.result_type(x, y).kind == "f":
        x, y = x.astype(object), y.astype(object)  # only Python's integers hold the difference of int64 and uint64
        difference = np.abs(x - y)
    else:
        # The difference of 64-bit integers fits uint64, where the wrap-around cancels out.
        larger, smaller = np.maximum(x, y).astype(np.uint64), np.minimum(x, y).astype(np.uint64)
        difference = larger - smaller
    relative = difference.astype(np.float64) / np.abs(y.astype(np.float64))
    relative[y == 0] = np.nan
    equal = difference == 0
    relative[equal] = 0
    return equal, difference, relative


def _coarser(a: np.dtype, d: np.dtype) -> np.dtype | None:
    """Return the floating-point dtype with fewer bits of precision; None where ULPs are not counted."""
    a, d = np.empty(0, a).real.dtype, np.empty(0, d).real.dtype
    if "g" in (a.char, d.char):  # an 80-bit number has no integer of its size
        return None
    # ml_dtypes is loaded if an array has one of its dtypes
    finfo: Any = getattr(sys.modules.get("ml_dtypes"), "finfo", np.finfo)
    return a if finfo(a).nmant < finfo(d).nmant else d


def _ulps(x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the distances of the elements that are not NaN, in steps of the dtype.

    The bits of positive floating-point numbers, read as integers, count the numbers from 0 on (IEEE 754).
    """
    if x.dtype.kind == "c":
        x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (x, y))
    x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    bits = np.dtype(f"u{dtype.itemsize}")
    i, j = np.abs(x).view(bits), np.abs(y).view(bits)
    steps = np.where(np.signbit(x) == np.signbit(y), np.maximum(i, j) - np.minimum(i, j), i + j)
    return steps[~(np.isnan(x) | np.isnan(y))]
