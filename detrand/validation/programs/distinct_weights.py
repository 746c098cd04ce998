"""Distinct weights: they differ from variable to variable and from element to element, and are equal in both programs.

Constant weights do not show which of two variables is used for what. Initial values do not show it either if the port
makes two variables of a kind in a different order, or if a last layer of zeros hides everything before it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrand.variables.sources import JoinedVariable

# A variable's TF1 name, and the mean and standard deviation of its initial value, which show the size that suits it.
Scale = tuple[str, float, float]
_OF_VECTORS = 0.2  # the most that an element of a bias or variance is above its constant initial value


def distinct_weights(scales: tuple[Scale, ...], variables: Mapping[str, JoinedVariable]) -> dict[str, np.ndarray]:
    """Return the distinct weights of variables, by their TF1 names.

    A variable that was drawn gets different numbers of the same mean and deviation. A matrix that was constant gets
    numbers as `glorot_uniform` draws them, around that constant. A vector that was constant gets numbers that are a
    little greater, because variances must not be negative.
    """
    arrays = {}
    for name, mean, deviation in scales:
        if name not in variables or not has_scale(variables[name]):
            continue
        shape: tuple[Any, ...] = variables[name].spec.shape or ()
        if deviation:
            low, high = mean - np.sqrt(3) * deviation, mean + np.sqrt(3) * deviation
        elif len(shape) > 1:
            limit = np.sqrt(6 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
            low, high = mean - limit, mean + limit
        else:
            low, high = mean, mean + _OF_VECTORS
        # In float32 and in place: a layer may have 100 million weights.
        array = np.asarray(np.random.default_rng(zlib.crc32(name.encode())).random(shape, np.float32))
        array *= high - low
        array += low
        arrays[name] = array.astype(variables[name].parts[0].dtype.as_numpy_dtype, copy=False)
    return arrays


def scale_of(name: str, array: np.ndarray) -> Scale:
    """Return the scale of a variable's initial value."""
    wide = np.asarray(array, np.float64)
    return name, float(wide.mean()), 0.0 if (wide == wide.flat[0]).all() else float(wide.std())


def has_scale(variable: JoinedVariable) -> bool:
    """Return whether a variable can have distinct weights: integers, such as a global step, keep their values."""
    shape: tuple[Any, ...] | None = variable.spec.shape
    if shape is None or None in shape or 0 in shape:
        return False
    return variable.spec.dtype in ("float16", "bfloat16", "float32", "float64")


def changed(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that differ from those before, by name."""
    return {name: array for name, array in after.items() if not np.array_equal(array, before[name], equal_nan=True)}
