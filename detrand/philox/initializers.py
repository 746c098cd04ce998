"""Initial weights of the TF1 initializers whose scale depends on the variable's shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from detrand.errors import ArgumentError
from detrand.philox.arguments import Shape, checked_dtype, dimensions, documented, real
from detrand.philox.distributions import normal, truncated_normal, uniform

_STDDEV_OF_TRUNCATED = 0.87962566103423978  # of a standard normal truncated at 2; TensorFlow's constant
_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "untruncated_normal", "uniform")


@documented
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
    """Draw the weights that ``tf.compat.v1.variance_scaling_initializer`` draws in a TF1 session.

    The weights have mean 0 and variance ``scale / n``, where n is the number of inputs of a unit, of its outputs, or
    the mean of both.

    >>> variance_scaling((3, 2), seed=42, op_seed=0, scale=2.0)  # he_normal
    array([[-0.27941236,  0.4813733 ],
           [-0.14567651, -1.0916818 ],
           [ 1.1034079 ,  0.32512897]], dtype=float32)

    Args:
      shape: Shape of the variable in TensorFlow's order: the units of a dense kernel are its last dimension, and the
        spatial dimensions of a convolution come first.
      scale: Greater than 0.
      mode: ``"fan_in"``, ``"fan_out"`` or ``"fan_avg"``.
      distribution: ``"truncated_normal"``, ``"untruncated_normal"`` or ``"uniform"``.
    """
    for name, value, accepted in (("mode", mode, _MODES), ("distribution", distribution, _DISTRIBUTIONS)):
        if not isinstance(value, str) or value not in accepted:
            raise ArgumentError(f"{name}={value!r}: must be one of {', '.join(accepted)}. Pass one of these strings.")
    real("scale", scale, checked_dtype(dtype))
    if scale <= 0:
        raise ArgumentError(f"scale={scale!r}: must be greater than 0, as in the TF1 initializer.")
    dims = dimensions(shape)
    fan_in, fan_out = _fans(dims)
    variance = scale / max(1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode])
    if distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return uniform(dims, seed, op_seed, run, dtype, minval=-limit, maxval=limit)
    if distribution == "untruncated_normal":
        return normal(dims, seed, op_seed, run, dtype, stddev=math.sqrt(variance))
    return truncated_normal(dims, seed, op_seed, run, dtype, stddev=math.sqrt(variance) / _STDDEV_OF_TRUNCATED)


@documented
def glorot_uniform(shape: Shape, seed: int, op_seed: int, run: int = 0, dtype: Any = "float32") -> np.ndarray:
    """Draw the weights that ``tf.compat.v1.get_variable`` draws by default in a TF1 session.

    This is `variance_scaling` with ``scale=1.0, mode="fan_avg", distribution="uniform"``, the initializer of every
    TF1 layer that is given none.

    >>> glorot_uniform((3, 2), seed=42, op_seed=0)
    array([[ 0.7349541 ,  0.9120617 ],
           [-0.01172233,  0.0462569 ],
           [ 0.4643575 , -0.09541094]], dtype=float32)

    Args:
      shape: Shape of the variable, as for `variance_scaling`.
    """
    return variance_scaling(shape, seed, op_seed, run, dtype, scale=1.0, mode="fan_avg", distribution="uniform")


def _fans(dims: tuple[int, ...]) -> tuple[int, int]:
    """Return how many inputs and outputs a unit has, as TensorFlow counts them."""
    if len(dims) < 2:
        return (math.prod(dims),) * 2
    field = math.prod(dims[:-2])
    return field * dims[-2], field * dims[-1]
