"""Clipping and scaling: what is done to gradients before they are applied, read from both.

There are two kinds of evidence, which `clipping_of` and `factor_of` read alike, because neither shows everything. What
TF1's kernels apply is in its graph, whatever the optimizer computes from it; but only the probe of an optimizer runs
that. What gradient descent adds to weights is the learning rate times what it applies: so the steps of either program
show it, also what a port's optimizer does in its own code, and what trainings do that are not probed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

RTOL = 1e-4  # of what is applied, relative to the greatest element
_SAME_LIMIT = 0.01  # relative tolerance for equal limits, which updates show with the rounding of weights

GLOBAL_NORM, NORM_OF_EACH, EACH_ELEMENT = "global norm", "norm of each", "each element"

_Arrays = Mapping[str, np.ndarray]
# What of gradients is limited -> the limit, and whether the step shows it; if not, it is the least possible one.
_Limits = dict[str, tuple[float, bool]]


class Clipping(NamedTuple):
    """What of gradients is limited, such as `GLOBAL_NORM`, and the limit; nothing if gradients are not clipped."""

    what: str = ""
    limit: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self)) or "none"


NOT_CLIPPED = Clipping()


class AppliedStep(NamedTuple):
    """The gradients of a step by name, and what is applied in their place, as far as that is known.

    Attributes:
      gradients: the gradients.
      applied: what is applied.
      rounding: how far rounding may move the elements of what is applied; none if it does not.
    """

    gradients: _Arrays
    applied: _Arrays
    rounding: Mapping[str, float]

    def is_close(self, name: str, expected: np.ndarray) -> bool:
        """Return whether what is applied is an expected array, but for rounding."""
        atol = self.rounding.get(name, 0.0) + RTOL * np.abs(expected).max(initial=0)
        return bool((np.abs(self.applied[name] - expected) <= atol).all())

    def agrees(self, expected: _Arrays) -> bool:
        """Return whether all that is applied is as expected."""
        return all(self.is_close(name, expected[name]) for name in self.applied)


def clipping_of(steps: Sequence[AppliedStep]) -> Clipping | None:
    """Return how gradients are clipped in all steps; None if that is not known."""
    found = [_limits(step) for step in steps]
    for what in found[0] if found else ():
        limits = [each[what] for each in found if what in each]
        shown = [limit for limit, is_shown in limits if is_shown]
        if len(limits) < len(found):
            continue
        if not shown:
            return NOT_CLIPPED
        if np.ptp(shown) <= _SAME_LIMIT * max(shown) and max(limits)[0] <= (1 + _SAME_LIMIT) * max(shown):
            return Clipping(what, f"{np.median(shown):.4g}")
    return None


def _limits(step: AppliedStep) -> _Limits:
    """Return how the gradients of a step may be clipped."""
    gradients, applied = step.gradients, step.applied
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    total = float(np.linalg.norm(list(norms.values())))
    if not applied or not np.isfinite(total):
        return {}
    greatest = {name: float(np.abs(gradients[name]).max(initial=0)) for name in applied}
    if step.agrees(gradients):
        return {
            GLOBAL_NORM: (total, False),
            NORM_OF_EACH: (max(norms[name] for name in applied), False),
            EACH_ELEMENT: (max(greatest.values()), False),
        }
    found: _Limits = {}
    own = {name: projection(array, gradients[name]) for name, array in applied.items()}
    share = own[max(greatest, key=greatest.__getitem__)]
    if 0 < share < 1 and step.agrees({name: share * gradients[name] for name in applied}):
        found[GLOBAL_NORM] = share * total, True
    clipped = [own[name] * norms[name] for name in own if own[name] < 1 - RTOL]
    if clipped and min(clipped) > 0 and step.agrees({name: own[name] * gradients[name] for name in own}):
        kept = [norms[name] for name in own if own[name] >= 1 - RTOL]
        least = (1 + _SAME_LIMIT) * max(clipped)
        if np.ptp(clipped) <= _SAME_LIMIT * max(clipped) and max(kept, default=0) <= least:
            found[NORM_OF_EACH] = float(np.median(clipped)), True
    limit = max(float(np.abs(array).max(initial=0)) for array in applied.values())
    if limit > 0 and step.agrees({name: np.clip(gradients[name], -limit, limit) for name in own}):
        found[EACH_ELEMENT] = limit, True
    return found


def factor_of(steps: Sequence[AppliedStep], names: Sequence[str]) -> float | None:
    """Return the one number that the gradients of variables are multiplied by in all steps; None if there is none."""
    pairs = [(step, name, step.gradients[name]) for step in steps for name in names if name in step.applied]
    pairs = [(step, name, array) for step, name, array in pairs if array.any()]
    if not pairs or not all(np.isfinite(array).all() for _, _, array in pairs):
        return None
    step, name, array = max(pairs, key=lambda pair: float(np.abs(pair[2]).max()))
    factor = projection(step.applied[name], array)
    return factor if all(step.is_close(name, factor * array) for step, name, array in pairs) else None


def projection(array: np.ndarray, other: np.ndarray) -> float:
    """Return the factor of another array that is nearest to an array."""
    square = float(np.square(other).sum())
    return float((array * other).sum()) / square if square else 1.0
