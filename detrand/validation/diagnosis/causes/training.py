"""Likely causes of a difference of two trainings: learning rates, losses, gradients, updates, averages.

`causes_of_training` takes the evidence of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.values import Comparison
from detrand.steps.comparison import StepsComparison
from detrand.validation.audit.hyperparameters import REGULARIZER
from detrand.validation.diagnosis.causes.arrays import factor_between
from detrand.validation.diagnosis.causes.averages import (
    AVERAGES_OF_WEIGHTS,
    MOVING_AVERAGES,
    of_averages_of_weights,
    of_moving_averages,
)
from detrand.validation.diagnosis.causes.cause import CLOSE, Cause
from detrand.validation.diagnosis.causes.computation import causes
from detrand.validation.diagnosis.causes.loss import of_loss_of_outputs, of_losses
from detrand.validation.diagnosis.causes.updates import UPDATED, of_updates
from detrand.validation.frameworks.traces import Value
from detrand.validation.results import AuditedHyperparameter, OwnForm
from detrand.validation.training.steps import Step, Training

_SAME = 1e-6  # relative tolerance for equal learning rates
_FEW_RATES = 3  # so many may be those of the step before because the schedule has other boundaries
_OF_SHIFT = 0.01  # of the difference of learning rates, how far these may differ from those of the step before or after
_WITH_GRADIENTS = "with TF1's gradients, the updates agree"
_STOPS = "tf.stop_gradient or detach()"


def causes_of_training(
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    hyperparameters: Sequence[AuditedHyperparameter],
    port_loss: Callable[[int, Any], float | None],
    elsewhere: Callable[[], float | None],
) -> dict[str, tuple[Cause, ...]]:
    """Return the likely causes of each part of a step that differs by itself, the likeliest first, by the part's name.

    A part that differs only because an earlier one does is left out: gradients differ where outputs do. Given a step,
    ``port_loss`` returns the port's loss of outputs and the step's labels, without regularization. ``elsewhere``
    returns how much greater the port's loss of very different outputs is than TF1's; None if that is not known.
    """
    found: dict[str, tuple[Cause, ...]] = {}
    for name in comparison.names:
        if all(by_name.get(name, True) for by_name in comparison.steps.values()):
            continue
        if name in MOVING_AVERAGES and not MOVING_AVERAGES.isdisjoint(found):
            continue
        differing = [step for step, by_name in comparison.steps.items() if not by_name.get(name, True)]
        step = next((each for each in differing if not _follows(name, comparison.steps[each])), None)
        of_step = differing[0] if step is None else step  # outputs that differ do not hide a loss that does
        if name == "loss" and (
            of_loss := tuple(of_loss_of_outputs(port, tf1, comparison, port_loss, elsewhere, of_step))
        ):
            found[name] = of_loss
            continue
        if step is None or any(
            name in kinds and not kinds.isdisjoint(found) for kinds in (UPDATED, AVERAGES_OF_WEIGHTS)
        ):
            continue
        if name in MOVING_AVERAGES and _are_trained(comparison.steps[step][name], port.steps[step], tf1.steps[step]):
            continue
        found[name] = tuple(dict.fromkeys(_causes_of_part(name, step, port, tf1, comparison, hyperparameters)))
    return found


def _causes_of_part(
    name: str,
    step: int,
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    hyperparameters: Sequence[AuditedHyperparameter],
) -> Iterable[Cause]:
    """Return the likely causes of a part that differs by itself in a step."""
    port_step, tf1_step = port.steps[step], tf1.steps[step]
    in_both = name in port_step and name in tf1_step
    if name == "learning_rate":
        return [_learning_rate(port.steps, tf1.steps, tf1.schedule.function)]
    if name == "regularization_loss":
        losses = port_step.get(name), tf1_step.get(name)
        regularizers = [each for each in hyperparameters if each.name == REGULARIZER]
        return causes(losses=losses, hyperparameters=regularizers)
    if name == "loss" and in_both:
        return of_losses(port_step, tf1_step, port.replicas, [], "")
    if name == "gradients" and in_both:
        of_gradients = _gradients(port_step[name], tf1_step[name], comparison.steps[step][name])
        updates_agree = all(by_name.get(each, True) for by_name in comparison.steps.values() for each in UPDATED)
        return (each._replace(confirmed=_WITH_GRADIENTS * updates_agree) for each in of_gradients)
    if name in UPDATED:
        return of_updates(port, tf1, step, comparison.steps[step], hyperparameters)
    if name in AVERAGES_OF_WEIGHTS:
        return of_averages_of_weights(port.steps, tf1.steps)
    if name in MOVING_AVERAGES and "moving_averages" in port_step and "moving_averages" in tf1_step:
        return of_moving_averages(port.steps, tf1.steps, hyperparameters)
    return ()


# The parts of a step on which a part depends. Updates are made of TF1's gradients where a port is guided.
_DEPENDS_ON = {
    "metrics": {"outputs"},
    "regularization_loss": set[str](),
    "loss": {"outputs", "regularization_loss"},
    "gradients": {"outputs", "regularization_loss", "loss"},
    **{name: {"outputs"} for name in MOVING_AVERAGES},
    **{name: {"learning_rate"} for name in UPDATED},
    **{name: {"learning_rate", *UPDATED} for name in AVERAGES_OF_WEIGHTS},
}


def _follows(name: str, comparisons: Mapping[str, Comparison]) -> bool:
    """Return whether a part of a step differs because an earlier part of it does."""
    return not all(comparisons.get(each, True) for each in _DEPENDS_ON.get(name, ()))


def _are_trained(comparison: Comparison, port: Step, tf1: Step) -> bool:
    """Return whether all moving averages that differ are variables that only one program trains."""
    parts = "gradients", "moving_averages"
    trained, averages = (port.get(part, {}).keys() ^ tf1.get(part, {}).keys() for part in parts)
    paths = [leaf.path for leaf in comparison.leaves if not leaf.ok and leaf.path.endswith("]")]
    return (
        bool(averages or paths)
        and averages <= trained
        and all(any(f"[{name!r}]" in path for name in trained) for path in paths)
    )


def _learning_rate(port: Sequence[Step], tf1: Sequence[Step], schedule: str) -> Cause:
    port_rates, tf1_rates = ([float(step["learning_rate"]) for step in steps] for steps in (port, tf1))
    by_size = sorted(range(len(tf1_rates)), key=lambda each: np.isclose(port_rates[each], tf1_rates[each], _SAME, 0))
    step = next(each for each in by_size if port_rates[each] != tf1_rates[each])
    cause = of_rates(step, dict(enumerate(tf1_rates)), dict(enumerate(port_rates)), schedule)
    for how, of_step, port_part, tf1_part in (
        ("late", "the step before", port_rates[1:], tf1_rates[:-1]),
        ("early", "the next step", port_rates[:-1], tf1_rates[1:]),
    ):
        difference = np.abs(np.subtract(port_part, tf1_part)).max(initial=0)
        if difference > _OF_SHIFT * np.abs(np.subtract(port_rates, tf1_rates)).max():
            continue
        remedy = f"change the learning rate of the port one step {'later' if how == 'early' else 'earlier'}"
        if len(set(tf1_rates)) > _FEW_RATES or 1 < len(set(tf1_rates)) == len(tf1_rates):
            title = f"the port's learning-rate schedule is one step {how}: its rate is TF1's rate of {of_step}"
            return Cause(title, remedy=remedy)
        if len(set(tf1_rates)) > 1:
            title = f"{cause.title}; each rate of the port is TF1's of {of_step}"
            return cause._replace(title=title, remedy=remedy)
    return cause


def of_rates(step: int, tf1: Mapping[int, float], port: Mapping[int, float], schedule: str = "") -> Cause:
    """Return the cause that learning rates by step differ in a step, given the name of TF1's schedule."""
    values = f"{tf1[step]:g} (TF1), {port[step]:g} (port)"
    changes = [len(set(rates.values())) > 1 for rates in (tf1, port)]
    if changes[0] == changes[1]:
        remedy = "make the port's schedule compute TF1's rates" if changes[0] else f"use {tf1[step]:g} in the port"
        return Cause(f"learning rate differs in step {step}: {values}", remedy=remedy)
    who, remedy = "the port", "pass TF1's rate, a number, to the port's optimizer"
    if changes[0]:
        who, remedy = "TF1", "pass a schedule that computes TF1's rates to the port's optimizer"
    if changes[0] and schedule:
        who, computes = f"TF1 ({schedule})", f"that computes what {schedule} does in TF1"
        remedy = f"pass a schedule of keras.optimizers.schedules to the port's optimizer {computes}"
    title = f"learning rate changes only in {who} until step {max(tf1):,}; in step {step}: {values}"
    return Cause(title, remedy=remedy, own_form=(OwnForm.SCHEDULE, schedule) if changes[0] and schedule else None)


def _gradients(port: Mapping[str, Any], tf1: Mapping[str, Any], comparison: Comparison) -> Iterator[Cause]:
    """Yield how gradients differ, of the last variable first: backpropagation reaches that one first."""
    differing = [leaf.path for leaf in comparison.leaves if not leaf.ok]
    names: list[str] = [name for name in reversed(list(tf1)) if any(f"[{name!r}]" in path for path in differing)]
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        if only := [name for name in mine if name not in other]:
            yield _trained_in_one_program(who, and_more(only, 4))
    if port.keys() != tf1.keys():
        return
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        stopped = [name for name in names if mine.get(name) is None and other.get(name) is not None]
        if stopped:
            name = stopped[0]
            none = f"in {who}, the gradient of {name} is None"
            between = f"between {name} and the loss in the port"
            yield Cause(
                f"{none}: either the loss does not depend on {name}, or something stops its gradient",
                remedy=f"stop the gradient {between}, too ({_STOPS})" if who == "TF1" else f"remove {_STOPS} {between}",
            )
    for name in names:
        arrays = tf1.get(name), port.get(name)
        if any(array is None for array in arrays):
            continue
        ratio = factor_between(*(Value.of(np.asarray(array)) for array in arrays))
        if ratio is not None:
            title = f"the gradient of {name} in the port is {ratio:.4g} times TF1's"
            yield Cause(title, remedy="scale or clip gradients in the port as TF1 does")
            return
    for name, (who, rows) in ((name, _rows_of_one_program(tf1[name], port[name])) for name in names):
        if rows:
            named = f"{'row' if len(rows) == 1 else 'rows'} {and_more(map(str, rows), 4)} of {name}"
            cause = _trained_in_one_program(who, named)
            yield cause._replace(own_form=(OwnForm.TRAIN_ROWS, "")) if who == "TF1" else cause
            return
    if names:
        title = f"the outputs and the loss agree, but the gradient of {names[0]} does not"
        between = f"between {names[0]} and the loss in the port"
        yield Cause(title, remedy=f"stop gradients {between} where TF1 stops them, and nowhere else ({_STOPS})")


def _trained_in_one_program(who: str, names: str) -> Cause:
    """Return the cause that only TF1 or only the port trains some variables, or rows of one."""
    freeze = f"freeze {names} in the port, or pass TrainStep(var_list=...)"
    train = f"train {names} in the port, as TF1's training op does"
    return Cause(f"only {who} trains {names}", remedy=train if who == "TF1" else freeze)


def _rows_of_one_program(tf1: Any, port: Any) -> tuple[str, list[int]]:
    """Return the one program that has gradients of some rows of a variable, and these rows, if the others agree."""
    arrays = [np.asarray(each, np.float64) for each in (tf1, port) if each is not None]
    if len(arrays) < 2 or arrays[0].ndim < 2 or arrays[0].shape != arrays[1].shape:
        return "", []
    flat = [array.reshape(len(array), -1) for array in arrays]
    differing = (np.abs(flat[0] - flat[1]) > CLOSE * np.abs(flat[0]).max(initial=0)).any(1)
    for who, other in (("TF1", flat[1]), ("the port", flat[0])):
        if differing.any() and not differing.all() and not other[differing].any():
            return who, np.flatnonzero(differing).tolist()
    return "", []
