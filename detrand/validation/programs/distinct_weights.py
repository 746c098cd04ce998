"""Weights that differ from variable to variable and from element to element, the same in both programs.

One value in all variables does not tell which of two is used for what. Initial weights do not either, where the port
makes two of a kind in another order, or where zeros in the last layer hide all that comes before.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrand.variables.partitioned import JoinedVariable

# TF1 name of a variable, mean and standard deviation of its initial value: they tell what size serves a model.
Scale = tuple[str, float, float]
_OF_VECTORS = 0.2  # by how much a bias, or a variance, is above the constant that it starts from


def scale_of(name: str, array: np.ndarray) -> Scale:
    """Returns how an initial value is distributed."""
    wide = np.asarray(array, np.float64)
    return name, float(wide.mean()), 0.0 if (wide == wide.flat[0]).all() else float(wide.std())


def has_scale(variable: JoinedVariable) -> bool:
    """Returns whether a variable can have weights of its own: integers, a global step, say, keep their values."""
    shape: tuple[Any, ...] | None = variable.spec.shape
    if shape is None or None in shape or 0 in shape:
        return False
    return variable.spec.dtype in ("float16", "bfloat16", "float32", "float64")


def distinct_weights(scales: tuple[Scale, ...], variables: Mapping[str, JoinedVariable]) -> dict[str, np.ndarray]:
    """Returns what is to be assigned to the variables, by name.

    What was drawn gets other numbers of that mean and deviation. What was constant gets, if it is a matrix or more,
    numbers as `glorot_uniform` draws them around it; else numbers that are a little greater, for variances must not be
    negative.

    Args:
      scales: of the variables of TF1.
      variables: those of either program, by their TF1 names.
    """
    arrays = {}
    for name, mean, deviation in scales:
        if name not in variables or not has_scale(variables[name]):
            continue
        shape: tuple[Any, ...] = variables[name].spec.shape or ()
        if deviation:
            low, high = (mean + side * np.sqrt(3) * deviation for side in (-1, 1))
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


def changed(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the values of the variables that have others than before, by name."""
    return {name: array for name, array in after.items() if not np.array_equal(array, before[name], equal_nan=True)}
