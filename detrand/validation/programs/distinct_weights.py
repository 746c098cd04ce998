"""Distinct weights: they differ from variable to variable and from element to element, and are equal in both programs.

Constant weights do not show which of two variables is used for what. Initial values do not show it either if the port
makes two variables of a kind in a different order, or if a last layer of zeros hides everything before it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from detrand.variables.spec import VariableSpec

_OF_CHANNELS = 2.0  # the deviation of a weight's greatest channel, relative to the median one's
_OF_VECTORS = 0.2  # the most that an element of a bias or variance is above its constant initial value


class Scale(NamedTuple):
    """A variable's TF1 name and shape, and the mean and standard deviation of its initial value."""

    name: str
    shape: tuple[int, ...]
    mean: float
    deviation: float


def distinct_weights(scales: tuple[Scale, ...]) -> dict[str, np.ndarray]:
    """Return the distinct weights of variables, by their TF1 names.

    A variable that was drawn gets different numbers of the same mean and deviation. A matrix that was constant gets
    numbers as `glorot_uniform` draws them, around that constant. A vector that was constant gets numbers that are a
    little greater, because variances must not be negative.
    """
    arrays = {}
    for name, shape, mean, deviation in scales:
        if deviation:
            low, high = mean - np.sqrt(3) * deviation, mean + np.sqrt(3) * deviation
        elif len(shape) > 1:
            limit = np.sqrt(6 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
            low, high = mean - limit, mean + limit
        else:
            low, high = mean, mean + _OF_VECTORS
        # In float32 and in place: a layer may have 100 million weights.
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        array = np.asarray(rng.random(shape, np.float32))
        array *= high - low
        array += low
        if deviation and not mean and len(shape) > 1:
            array *= _of_channels(shape[-1], rng)
        arrays[name] = array
    return arrays


def _of_channels(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return factors with an RMS of 1, some small and some great, for the elements along a weight's last axis."""
    factors = np.geomspace(1 / _OF_CHANNELS, _OF_CHANNELS, count) if count > 1 else np.ones(1)
    return rng.permutation(factors / np.sqrt(np.mean(factors**2))).astype(np.float32)


def scale_of(name: str, array: np.ndarray) -> Scale:
    """Return the scale of a variable's initial value."""
    wide = np.asarray(array, np.float64)
    return Scale(name, wide.shape, float(wide.mean()), 0.0 if (wide == wide.flat[0]).all() else float(wide.std()))


def has_scale(spec: VariableSpec) -> bool:
    """Return whether a variable can have distinct weights: integers, such as a global step, keep their values."""
    if spec.shape is None or None in spec.shape or 0 in spec.shape:
        return False
    return spec.dtype in ("float16", "bfloat16", "float32", "float64")


def changed(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that differ from those before, by name."""
    return {name: after[name] for name in before if not np.array_equal(after[name], before[name], equal_nan=True)}
