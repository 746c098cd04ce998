"""Compares what steps change weights by.

Where both programs start a step from the same weights and gradients, what is left is the arithmetic of the optimizer.
An absolute tolerance that serves weights would pass a change that is wrong by less in each step, such as a small weight
decay or any fault at a small learning rate, and adds up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detrand.comparison.values import Comparison
from detrand.validation.compare_by_size import compare_by_size

_UNITS = 2  # in the last place of the greatest weight: each program rounds what it adds up


def compare_updates(
    actual: Mapping[str, np.ndarray],
    desired: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
    rtol: float,
    actual_before: Mapping[str, np.ndarray] | None = None,
) -> Comparison:
    """Compares a step's updates.

    Args:
      actual: the port's weights after the step, by their TF1 names.
      desired: TF1's.
      before: what TF1 began with.
      rtol: the relative tolerance.
      actual_before: what the port began with; the same by default.
    """
    port_before = before if actual_before is None else actual_before
    names = [
        name for name in desired if _are_alike(actual.get(name), desired[name], before.get(name), port_before.get(name))
    ]
    ours = {name: actual[name] - port_before[name] for name in names}
    theirs = {name: desired[name] - before[name] for name in names}
    rounding = {name: float(_UNITS * np.spacing(np.abs(before[name]).max(initial=0))) for name in names}
    return compare_by_size(ours, theirs, rtol, "updates", rounding=rounding)


def _are_alike(*arrays: np.ndarray | None) -> bool:
    kinds = {(array.shape, array.dtype) if isinstance(array, np.ndarray) else None for array in arrays}
    return len(kinds) == 1 and None not in kinds
