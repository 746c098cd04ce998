"""Compares arrays that are held to their size: gradients, what optimizers keep of them, and what they make of them.

Most are smaller than an absolute tolerance that serves outputs. And where terms cancel, as for a bias before a batch
normalization, nothing but the rounding of greater numbers is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.comparison.leaves import MISSING
from detrand.comparison.values import Comparison, LeafComparison, compare

# How far an array may be off: for its own greatest element, and for that of all arrays.
_OF_OWN_GREATEST, _OF_ALL_GREATEST = 1e-4, 1e-5
_OF_NOISE = 2.0  # a port rounds elsewhere than what the noise is measured of


def compare_by_size(
    actual: Mapping[str, Any],
    desired: Mapping[str, Any],
    rtol: float,
    name: str,
    *,
    multiple: float = 1.0,
    noise: Mapping[str, np.ndarray] | None = None,
    rounding: Mapping[str, float] | None = None,
    check_dtype: bool = True,
) -> Comparison:
    """Compares arrays of one kind.

    Args:
      actual: the port's, by the TF1 names of the variables that they belong to; None on both sides is equal.
      desired: TF1's.
      rtol: the relative tolerance.
      name: what the paths begin with.
      multiple: how many times as far they may be off as gradients: squares of these are off by twice as much.
      noise: how far each element moves when TF1 is rounded as the port is, where that was measured.
      rounding: how far an array may be off besides, for what it was computed from.
      check_dtype: whether dtypes must be equal, too.
    """
    greatest = {variable: _greatest(array) for variable, array in desired.items()}
    floor = _OF_ALL_GREATEST * max(greatest.values(), default=0.0)
    leaves: list[LeafComparison] = []
    for variable in dict.fromkeys([*desired, *actual]):
        ours, theirs = actual.get(variable, MISSING), desired.get(variable, MISSING)
        if ours is theirs is None:  # the loss depends on it on neither side
            continue
        atol = multiple * max(_OF_OWN_GREATEST * greatest.get(variable, 0.0), floor)
        atol += (rounding or {}).get(variable, 0.0)
        path = f"{name}[{variable!r}]"
        if noise and variable in noise and isinstance(ours, np.ndarray) and ours.shape == theirs.shape:
            found = _compare_rounded(ours, theirs, rtol, max(atol, rtol * greatest[variable]), noise[variable])
        else:
            found = compare(ours, theirs, multiple * rtol, atol, check_dtype=check_dtype)
        leaves += (replace(leaf, path=path) for leaf in found.leaves)
    return Comparison(tuple(leaves))


def _compare_rounded(ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float, noise: np.ndarray) -> Comparison:
    """Compares a gradient that rounding moves: what jumps is held to the greatest jump, the rest to its own noise."""
    jumps = noise > atol
    found = compare(ours, theirs, rtol, max(atol, _OF_NOISE * noise.max(initial=0)), check_dtype=False)
    if not found or not jumps.any():
        return found
    without_jumps = np.where(jumps, theirs, ours)
    return compare(without_jumps, theirs, rtol, max(atol, _OF_NOISE * noise[~jumps].max(initial=0)), check_dtype=False)


def _greatest(array: np.ndarray | None) -> float:
    return 0.0 if array is None else float(np.nan_to_num(np.abs(array).max(initial=0)))
