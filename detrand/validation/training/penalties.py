"""Penalties of weights: what the total loss of a training adds for a variable, such as its weight decay.

They come in words, as the audit reads them: ``"0.005 sum(w**2) + 0.1 sum(abs(w))"``, or ``"none"``. `decays_in_update`
reads those that TF1's update adds to gradients, and `with_penalties` gives a training other ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, site_of_op
from detrand.validation.audit.dataflow import ADDS, Dataflow
from detrand.validation.audit.hyperparameters import AMOUNTS, SQUARES, factors_of
from detrand.validation.training.steps import WEIGHT_AVERAGES, Training
from detrand.validation.training.train_op import Update
from detrand.variables.tf1_view import TF1View

Penalties = Mapping[str, tuple[str, str]]  # TF1 name of a variable -> its penalties in two programs


class Decay(NamedTuple):
    """A weight decay that TF1's update adds to a gradient: the penalty of the same effect, and its line if known."""

    penalty: str
    line: str


def decays_in_update(update: Update, view: TF1View) -> dict[str, Decay]:
    """Return the weight decay that an update adds to gradients of the loss, by variable, of those in one part."""
    names = {id(view.parts_of(name)[0]): name for name in view.specs if len(view.parts_of(name)) == 1}
    flow, found = Dataflow({part.op.name: names[id(part)] for part in view.parts if id(part) in names}), {}
    for part, gradient, of_loss in update.applied:
        name = names.get(id(part))
        if name is None or of_loss is None or of_loss.op not in all_upstream([gradient.op], input_ops):
            continue
        terms = list(_terms_of_variable(gradient, name, flow, of_loss))
        if decay := sum(factor for factor, _ in terms):
            site = site_of_op(terms[0][1])
            found[name] = Decay(f"{decay / 2:.6g} {SQUARES}", "" if site == UNKNOWN else str(site))
    return found


def _terms_of_variable(
    tensor: tf.Tensor, name: str, flow: Dataflow, gradient: tf.Tensor, factor: float = 1.0
) -> Iterator[tuple[float, tf.Operation]]:
    """Yield how many times a variable itself is in a sum with a gradient, and the op that takes the variable there."""
    op = tensor.op
    operands = list(op.inputs) if op.type in ("Identity", "Cast", "AddN", *ADDS) else []
    if not operands and (parts := flow.number_and_rest(op, ("Mul",))) is not None:
        factor, operands = factor * parts[0], [parts[1]]
    for operand in operands if tensor is not gradient else ():
        if flow.variable(operand) == name:
            yield factor, op
        else:
            yield from _terms_of_variable(operand, name, flow, gradient, factor)


def loss_of_penalty(penalty: str, weight: np.ndarray) -> float:
    """Return what a penalty adds to the loss."""
    sums = {SQUARES: np.square(weight, dtype=np.float64).sum(), AMOUNTS: np.abs(weight, dtype=np.float64).sum()}
    return sum(factor * float(sums[kind]) for kind, factor in factors_of(penalty).items())


def _gradient_of_penalty(penalty: str, weight: np.ndarray) -> np.ndarray:
    slopes = {SQUARES: 2 * np.asarray(weight, np.float64), AMOUNTS: np.sign(weight, dtype=np.float64)}
    return np.asarray(sum((factor * slopes[kind] for kind, factor in factors_of(penalty).items()), np.float64(0)))


def with_penalties(training: Training, initial: Mapping[str, np.ndarray], penalties: Penalties) -> Training:
    """Return a training with the second penalty of each variable in place of the first, in its losses and gradients.

    The weights of step 0 are the initial values; the updates stay as they are. A decay of these variables is then a
    part of the loss.
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
    decays = {name: decay for name, decay in training.decays.items() if name not in penalties}
    return replace(training, steps=tuple(changed), decays=decays)


def without_variables(training: Training, names: Collection[str]) -> Training:
    """Return a training without some variables, such as those that only a penalty trains."""

    def without(part: str, values: Any) -> Any:
        if part == "slots":
            return {kind: without("", of_kind) for kind, of_kind in values.items()}
        return {name: array for name, array in values.items() if name not in names}

    kinds, steps = {"gradients", "weights", "moving_averages", "slots", WEIGHT_AVERAGES}, list[dict[str, Any]]()
    for step in training.steps:
        changed = {part: without(part, values) if part in kinds else values for part, values in step.items()}
        if not changed.get("moving_averages", True):  # as where a program has none
            del changed["moving_averages"]
        steps.append(changed)
    return replace(training, steps=tuple(steps))
