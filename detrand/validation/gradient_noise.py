"""How far the gradients of a TF1 program move when it is rounded to half precision, as a port under a dtype policy is.

No number of epsilons bounds that: where rounding moves a unit across the kink of a relu, or makes another element the
greatest, the gradient jumps by what one example adds. So the program itself is rounded, from weights and inputs that
are off by the rounding of some layers, often enough that such jumps are seen, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand.validation.ways_of_computing import Rerun, Snapshot, Variant, as_written, rounded_to

_VARIANTS = 8
_UNITS = 4.0  # in the last place, by which weights and inputs are off: more jump than of a single rounding


class Step(NamedTuple):
    """What a step of a training was run with.

    Attributes:
      snapshot: the program before it.
      inputs: inputs and labels, by the names of their placeholders.
    """

    snapshot: Snapshot
    inputs: dict[str, np.ndarray]


def measure_gradient_noise(
    dtype: tf.DType, gradients: Mapping[str, Sequence[Any]], steps: Sequence[Step]
) -> list[dict[str, list[np.ndarray]]]:
    """Runs each step of a training again, several times, rounded in each.

    Args:
      dtype: what it is rounded to.
      gradients: those of each variable's parts, by the variable's name; None where there is none.
      steps: what they were run with; the graph is the default one.

    Returns:
      For each step, the greatest absolute difference of each element of the gradients; infinity where one overflows.
    """
    of_parts = {name: parts for name, parts in gradients.items() if parts[0] is not None}
    tensors = {
        (name, part): tf.convert_to_tensor(gradient).name
        for name, parts in of_parts.items()
        for part, gradient in enumerate(parts)
    }
    exact = _run(as_written(steps[0].snapshot), tensors, steps)
    noise = [{key: np.zeros_like(array) for key, array in of_step.items()} for of_step in exact]
    for seed in range(_VARIANTS):
        found = _run(rounded_to(dtype, seed, _UNITS)(steps[0].snapshot), tensors, steps)
        for of_step, rounded, desired in zip(noise, found, exact, strict=True):
            for key, greatest in of_step.items():
                difference = np.nan_to_num(np.abs(rounded[key] - desired[key]), nan=np.inf, posinf=np.inf)
                np.maximum(greatest, difference, out=greatest)
    return [
        {name: [of_step[name, part] for part in range(len(parts))] for name, parts in of_parts.items()}
        for of_step in noise
    ]


def _run(variant: Variant, tensors: Mapping[Any, str], steps: Sequence[Step]) -> list[dict[Any, np.ndarray]]:
    """Runs the steps in one session, so that random ops draw a further run in each."""
    found = []
    with Rerun(steps[0].snapshot, variant) as rerun:
        for snapshot, inputs in steps:
            rerun.assign(snapshot.variables)
            found.append(rerun.fetch(tensors, inputs))
    return found
