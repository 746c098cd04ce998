"""The probe of a model: other inputs, where those of the migration are too weak to show some faults.

A batch of one has the same sum and mean, a constant image has no axes that could be swapped, and a clip that is never
reached could be any other. `weaknesses` says what the inputs do not show, and `probed` returns a migration with inputs
of the same kind that may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.structures import flatten, map_structure
from detrand.validation.migration import Migration
from detrand.validation.programs.activations import NOT_MEASURED, Activation

_BATCH = 2  # the size of a batch in place of one
_WIDER = 16.0  # how many times the greatest input is exceeded, where an activation is not exercised


class Weakness(NamedTuple):
    """What the inputs of a migration do not show."""

    words: str
    is_of_batch: bool = False  # a larger batch shows it
    is_of_range: bool = False  # greater inputs show it


def weaknesses(migration: Migration, runs: Sequence[Sequence[Activation]]) -> tuple[Weakness, ...]:
    """Return what the inputs of a migration do not show, given the activations of runs with them."""
    arrays = [array for array in flatten(list(migration.first_batch())) if array.dtype.kind == "f"]
    found = []
    if _is_of_one(migration):
        found.append(Weakness("a batch of one has the same sum and mean", is_of_batch=True))
    if any(array.size > 1 and not (array != array.flat[0]).any() for array in arrays):
        found.append(Weakness("inputs are constant"))
    exercised = {each.name for run in runs for each in run if not each.flaw}
    flawed = [each for run in runs for each in run if each.flaw not in ("", NOT_MEASURED)]
    if idle := dict.fromkeys(f"{each.op} ({each.flaw})" for each in flawed if each.name not in exercised):
        found.append(Weakness(f"not exercised: {and_more(idle, 3)}", is_of_range=True))
    return tuple(found)


def probed(migration: Migration, weak: Sequence[Weakness]) -> Migration:
    """Return a migration with other inputs for the weaknesses, of the same dtypes, signs and ranges."""
    is_of_one = _is_of_one(migration)
    wider = _WIDER if any(each.is_of_range for each in weak) else 1.0
    generator = np.random.default_rng(migration.seed)

    def other(array: np.ndarray) -> np.ndarray:
        tiled = np.repeat(array, _BATCH, 0) if is_of_one and array.shape[:1] == (1,) else array
        return _like(tiled, generator, wider)

    inputs = tuple(map_structure(other, list(migration.first_batch())))
    train = migration.train
    if train is not None:
        labels = migration.training_batches()[0][1]
        train = replace(train, labels=map_structure(other, labels), steps=1)
    return replace(migration, inputs=inputs, train=train, checkpoint=None)


def _is_of_one(migration: Migration) -> bool:
    return all(array.shape[:1] == (1,) for array in flatten(list(migration.first_batch())))


def _like(array: np.ndarray, generator: np.random.Generator, wider: float) -> np.ndarray:
    """Return random elements in place of those of an array, in their range; of floats, in a wider one of their sign."""
    if array.dtype.kind not in "biuf" or not array.size:
        return array
    least, greatest = array.min(), array.max()
    if array.dtype.kind in "biu":
        return generator.integers(int(least), int(greatest) + 1, array.shape).astype(array.dtype)
    if not np.isfinite(array).all():
        return array
    if set(np.unique(array)) <= {0.0, 1.0} and least < greatest:
        return generator.permuted(array.reshape(-1)).reshape(array.shape)  # a mask, or classes
    size = wider * max(abs(float(least)), abs(float(greatest)), 1e-3)
    numbers = generator.uniform(0.0, size, array.shape)
    if least < 0:
        numbers *= generator.choice([-1.0, 1.0], array.shape)
    return numbers.astype(array.dtype)
