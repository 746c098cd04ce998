"""Dtype policies of ports: the dtypes that their layers compute in, and how close they can be to TF1's float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from detrand.changes import Changes
from detrand.comparison.closeness import Closeness
from detrand.comparison.values import leaves_by_path
from detrand.packages import is_loaded
from detrand.validation.noise.floor import greatest_of

# Policy -> the dtype that layers compute in, and the dtype of their variables.
POLICIES = {
    "mixed_float16": ("float16", "float32"),
    "mixed_bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float64": ("float64", "float64"),
}
_EPSILONS = 8
_EPSILON_OF = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def half_precision(policy: str | None) -> str | None:
    """Return the dtype that layers compute in under a policy, if it is less precise than TF1's float32; else None."""
    dtype = "float32" if policy is None else POLICIES[policy][0]
    return dtype if dtype in ("float16", "bfloat16") else None


def variable_dtype(policy: str | None) -> str:
    """Return the dtype under a policy of variables that are float32 in TF1."""
    return "float32" if policy is None else POLICIES[policy][1]


@contextlib.contextmanager
def dtype_policy(policy: str | None) -> Iterator[None]:
    """Set the policy of the Keras 3 and tf_keras layers that are made in the block; None changes nothing."""
    if policy is None:
        yield
        return
    import keras

    policies = [("Keras 3's policy", keras.config.dtype_policy, keras.config.set_dtype_policy)]
    if is_loaded("tensorflow"):
        from tf_keras import mixed_precision

        policies += [("tf_keras's policy", mixed_precision.global_policy, mixed_precision.set_global_policy)]
    with Changes() as changes:
        for name, get, set_policy in policies:
            changes.restore(name, get, set_policy)
            set_policy(policy)
        yield


class PolicyTolerance:
    """How close a port under a policy must be to TF1 in float32; ``str()`` describes it.

    Each op of the port rounds to the compute dtype, so the unit of its error is that dtype's epsilon, the distance from
    1 to the next number (2**-10 in float16, 2**-7 in bfloat16). If the port computes in float64, the unit is float32's
    epsilon, because TF1 rounds. The guide's relative tolerance of 1e-6 is about 8 epsilons of float32, and so the
    relative tolerance is 8 epsilons here. The absolute tolerance is 8 epsilons of the greatest element: within an
    output, elements that are small because greater terms cancel are no more precise than these terms.

    >>> PolicyTolerance("mixed_bfloat16").closeness(np.array([0.5, -2.0], np.float32))("output").atol
    0.125

    Attributes:
      rtol: the relative tolerance.
      rounds_variables: whether variables, and numbers that are computed only from variables, are rounded too.
    """

    def __init__(self, policy: str):
        self._dtype = half_precision(policy) or "float32"
        self.rtol = _EPSILONS * _EPSILON_OF[self._dtype]
        self.rounds_variables = variable_dtype(policy) == self._dtype

    def closeness(self, desired: Any) -> Callable[[str], Closeness]:
        """Return how close each array of a structure that TF1 computed must be, by its path; integers must be equal."""
        arrays = {path: np.asarray(leaf) for path, leaf in leaves_by_path(desired).items()}
        greatest = {path: greatest_of(array) for path, array in arrays.items() if array.dtype.kind == "f"}

        def closeness_of(path: str) -> Closeness:
            rtol = self.rtol if path in greatest else 0.0
            return Closeness(rtol, rtol * greatest.get(path, 0.0), equal_nan=False)

        return closeness_of

    def __str__(self) -> str:
        return f"rtol={self.rtol:g}, atol={self.rtol:g} of the greatest element: {_EPSILONS} epsilons of {self._dtype}"
