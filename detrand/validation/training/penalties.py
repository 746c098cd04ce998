"""Penalties of weights: what the total loss of a training adds for a variable, such as its weight decay.

They come in words, as the audit reads them: ``"0.005 sum(w**2) + 0.1 sum(abs(w))"``, or ``"none"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from detrand.validation.audit.hyperparameters import AMOUNTS, SQUARES, factors_of
from detrand.validation.training.steps import Training

Penalties = Mapping[str, tuple[str, str]]  # TF1 name of a variable -> its penalties in two programs


def loss_of_penalty(penalty: str, weight: np.ndarray) -> float:
    """Return what a penalty adds to the loss."""
    sums = {SQUARES: np.square(weight, dtype=np.float64).sum(), AMOUNTS: np.abs(weight, dtype=np.float64).sum()}
    return sum(factor * float(sums[kind]) for kind, factor in factors_of(penalty).items())


def _gradient_of_penalty(penalty: str, weight: np.ndarray) -> np.ndarray:
    slopes = {SQUARES: 2 * np.asarray(weight, np.float64), AMOUNTS: np.sign(weight, dtype=np.float64)}
    return np.asarray(sum((factor * slopes[kind] for kind, factor in factors_of(penalty).items()), np.float64(0)))


def with_penalties(training: Training, initial: Mapping[str, np.ndarray], penalties: Penalties) -> Training:
    """Return a training with the second penalty of each variable in place of the first, in its losses and gradients.

    The weights of step 0 are the initial values; the updates stay as they are.
    """
    if not penalties:
        return training
    changed = []
    for number, step in enumerate(training.steps):
        before = initial if number == 0 else training.variables_after(number - 1)
        loss, gradients = np.float64(step["loss"]), dict(step["gradients"])
        for name, (own, other) in penalties.items():
            if name not in before:
                continue
            loss += loss_of_penalty(other, before[name]) - loss_of_penalty(own, before[name])
            slope = _gradient_of_penalty(other, before[name]) - _gradient_of_penalty(own, before[name])
            if name in gradients:
                given = gradients[name]
                total = slope if given is None else given + slope
                gradients[name] = np.asarray(total, before[name].dtype)
        changed.append({**step, "loss": loss.astype(np.asarray(step["loss"]).dtype), "gradients": gradients})
    return replace(training, steps=tuple(changed))
