"""Initial weights: what the TF1 initializers that scale with a variable's shape draw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from detrand.errors import ArgumentError
from detrand.philox.arguments import Shape, dimensions, float_dtype, real
from detrand.philox.distributions import normal, truncated_normal, uniform

_STDDEV_OF_TRUNCATED = 0.87962566103423978  # of a standard normal truncated at 2, as TensorFlow has it
_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "untruncated_normal", "uniform")


def variance_scaling(
    shape: Shape,
    seed: int,
    op_seed: int,
    run: int = 0,
    dtype: Any = "float32",
    *,
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
) -> np.ndarray:
    """Draws what ``tf.compat.v1.variance_scaling_initializer`` draws in a TF1 session.

    Numbers of mean 0 and variance ``scale / n``, n being the inputs of a unit, its outputs, or the mean of both.

    >>> variance_scaling((3, 2), seed=42, op_seed=0, scale=2.0)  # he_normal
    array([[-0.27941236,  0.4813733 ],
           [-0.14567651, -1.0916818 ],
           [ 1.1034079 ,  0.32512897]], dtype=float32)

    Args:
      shape: Shape of the variable, TensorFlow's way round: units of a dense kernel are its last dimension, and a
        convolution's dimensions in space come first.
      seed: As for `uniform`, and so are op_seed, run and dtype.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before: 0 for the first time that the variables are initialized.
      dtype: dtype of the variable.
      scale: Greater than 0.
      mode: ``"fan_in"``, ``"fan_out"`` or ``"fan_avg"``.
      distribution: ``"truncated_normal"``, ``"untruncated_normal"`` or ``"uniform"``.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    for name, value, accepted in (("mode", mode, _MODES), ("distribution", distribution, _DISTRIBUTIONS)):
        if not isinstance(value, str) or value not in accepted:
            raise ArgumentError(f"{name}={value!r}: must be one of {', '.join(accepted)}. Pass one of these strings.")
    real("scale", scale, float_dtype(dtype)[1])
    if scale <= 0:
        raise ArgumentError(f"scale={scale!r}: must be greater than 0. Pass the one of the TF1 program's initializer.")
    dims = dimensions(shape)
    fan_in, fan_out = _fans(dims)
    variance = scale / max(1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode])
    if distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return uniform(dims, seed, op_seed, run, dtype, minval=-limit, maxval=limit)
    if distribution == "untruncated_normal":
        return normal(dims, seed, op_seed, run, dtype, stddev=math.sqrt(variance))
    return truncated_normal(dims, seed, op_seed, run, dtype, stddev=math.sqrt(variance) / _STDDEV_OF_TRUNCATED)


def glorot_uniform(shape: Shape, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32") -> np.ndarray:
    """Draws what ``tf.compat.v1.get_variable`` draws by default in a TF1 session, and every layer that leaves it to it.

    It is `variance_scaling` with ``scale=1.0, mode="fan_avg", distribution="uniform"``.

    >>> glorot_uniform((3, 2), seed=42, op_seed=0)
    array([[ 0.7349541 ,  0.9120617 ],
           [-0.01172233,  0.0462569 ],
           [ 0.4643575 , -0.09541094]], dtype=float32)

    Args:
      shape: As for `variance_scaling`, and so are all others.
      seed: The op's attribute ``seed``.
      op_seed: The op's attribute ``seed2``.
      run: How often the op has run before.
      dtype: dtype of the variable.

    Returns:
      An array of `shape` and `dtype`.

    Raises:
      ArgumentError: An argument is not as above.
    """
    return variance_scaling(shape, seed, op_seed, run, dtype, scale=1.0, mode="fan_avg", distribution="uniform")


def _fans(dims: tuple[int, ...]) -> tuple[int, int]:
    """Returns how many inputs and outputs a unit has, as TensorFlow counts them."""
    if len(dims) < 2:
        return (math.prod(dims),) * 2
    field = math.prod(dims[:-2])
    return field * dims[-2], field * dims[-1]
