"""The findings of a loss that differs: the ops at which the losses diverge, or the one number that explains them.

`findings_of_loss` looks for known faults of a whole loss first (`detrand.validation.checks.loss_faults`), and then for
the ops. Where these say little, `detrand.validation.checks.numbers` finds a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detrand.errors import passing_over
from detrand.steps.comparison import StepsComparison
from detrand.validation.checks.loss_faults import LossFaults, PortLoss, with_lines_of_losses
from detrand.validation.checks.numbers import Number, numbers_of_loss
from detrand.validation.diagnosis.causes.cause import Cause
from detrand.validation.diagnosis.causes.loss import broadcast_in_one, causes_of_loss
from detrand.validation.diagnosis.divergence import Divergence, confirmation
from detrand.validation.outcomes.findings import finding_of, finding_of_cause, place_of
from detrand.validation.reference import TRAINING
from detrand.validation.results import Fault, Finding, Found, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import compare_trainings
from detrand.validation.training.loss import LossInput
from detrand.validation.training.steps import Training, train_step_of


def findings_of_loss(runner: Runner, likely: Sequence[Cause]) -> list[Finding]:
    """Return a finding for each difference in the loss; none if it cannot be traced."""
    faults = known = None
    with passing_over():  # the difference is worth more than its place
        faults = LossFaults(runner)
        known = faults.in_part()
    if known is not None:
        return [known]
    divergences, inputs = tuple[Divergence, ...](), tuple[LossInput, ...]()
    with passing_over():  # the difference is worth more than its place
        divergences, inputs = runner.divergences_of_loss()
    if faults is None:
        return _traced(runner, likely, divergences, inputs)
    if len(divergences) == 1 and divergences[0].is_edit and not any(each.confirmed for each in likely):
        return _traced(runner, (), divergences, inputs)
    with passing_over():  # the difference is worth more than its place
        if any(each.fault is Fault.MULTIPLE for each in likely) and not faults.is_multiple:
            likely = ()  # two steps may have nearly the same outputs
    in_terms: Sequence[Finding] = ()
    if not any(each.confirmed for each in likely):
        with passing_over():  # the difference is worth more than its place
            in_terms = faults.in_terms()
    likely = () if in_terms else likely  # what explains the whole loss is no fault of a term
    found = _traced(runner, likely, divergences, inputs)
    # A number that gives TF1's loss may stand for a sum in place of a mean.
    is_reduction = any(each.fault is Fault.SUM_OR_MEAN for each in in_terms)
    is_sure = len(found) == 1 and found[0].confirmed and (found[0].tf1 is not None or not is_reduction)
    if is_sure and not any(_are_swapped(each) for each in divergences):
        return found
    known = None if in_terms else faults.as_a_whole()
    if known is not None:
        return [known]
    return found if is_sure else list(in_terms) or found


def is_reproduced(runner: Runner, of_step: tuple[float, float]) -> bool:
    """Return whether losses differ by what they did in a training step, given the port's loss and TF1's.

    They do not if a loss depends on more than its outputs and the step, such as a number that a model counts.
    """
    actual, desired = _losses_of_outputs(runner)
    recorded = of_step[0] - of_step[1]
    if not math.isfinite(recorded):
        return True
    within = _OF_DIFFERENCE * abs(recorded) + _OF_LOSS * abs(of_step[1])
    return actual is not None and abs(actual - desired - recorded) <= within


def agrees(runner: Runner) -> bool:
    """Return whether the port's loss of TF1's outputs is TF1's loss."""
    actual, desired = _losses_of_outputs(runner)
    return actual is not None and math.isclose(actual, desired, rel_tol=_OF_LOSS)


def _losses_of_outputs(runner: Runner) -> tuple[float | None, float]:
    """Return the port's loss of TF1's outputs, None if it is not known, and TF1's."""
    (name,) = (trace := runner.tf1.trace_of_loss()).outputs.values()
    return PortLoss(runner, runner.tf1.loss_of_outputs()).value, float(trace.values[name].elements[0])


_OF_DIFFERENCE, _OF_LOSS = 1e-2, 1e-4  # relative: how far a difference of losses may be from the one of a step


def loss_of_other_outputs(runner: Runner, of_step: tuple[float, float]) -> Found | None:
    """Compare the losses of TF1's outputs with distinct weights, given the port's loss and TF1's of the first step.

    The outputs of the initial weights are often near 0, or near each other, and leave a term of the loss at 0. The
    losses are computed in float64, so that they do not differ by rounding. Return None if the losses overflow or cannot
    be computed, or if a loss depends on more than the outputs, such as the number of the step.
    """
    others = runner.of_other_outputs()
    losses = _losses_of_other_outputs(runner)
    if losses is None:
        return None
    comparison = _compared(runner, *losses)
    if not comparison:
        again = _losses_of_other_outputs(others)
        if again is None or not all(_compared(runner, *pair) for pair in zip(again, of_step, strict=True)):
            return None
        # What does not depend on the outputs, such as penalties of weights, one program may have elsewhere.
        comparison = _compared(runner, losses[0] - again[0] + again[1], losses[1])
    if comparison:
        return Found(True, "the losses of outputs with distinct weights agree")
    train = train_step_of(runner.migration)
    of_tf1, of_port = (train.line_of_loss(each) for each in ("tf1", "port"))
    unknown = Finding(
        "training",
        "the losses of the same outputs differ",
        Place("the loss", of_tf1, f"{losses[1]:.7g}"),
        Place("the loss", of_port, f"{losses[0]:.7g}"),
        fault=Fault.UNEXPLAINED,
    )
    findings = findings_of_loss(others, ()) or [unknown]
    summary = f"the losses of outputs with distinct weights differ: {losses[1]:.7g} (TF1), {losses[0]:.7g} (port)"
    found = [
        replace(each, symptom="loss", confirmed=f"{each.confirmed}; {_SEEN}" if each.confirmed else "")
        for each in findings
    ]
    return Found(False, summary, str(comparison), findings=tuple(found))


_SEEN = "seen in the losses of outputs with distinct weights"


def difference_elsewhere(runner: Runner) -> float | None:
    """Return by how much the port's loss of outputs with distinct weights is greater than TF1's; None if not known."""
    with passing_over():  # the loss may not be one that can be traced
        losses = _losses_of_other_outputs(runner)
        return None if losses is None else losses[0] - losses[1]
    return None


def _losses_of_other_outputs(runner: Runner) -> tuple[float, float] | None:
    """Return the losses of other outputs of the port and of TF1; None if one is not known."""
    other = runner.tf1.loss_of_other_outputs()
    actual = None if other is None else PortLoss(runner, other[0]).value
    return None if other is None or actual is None else (actual, other[1])


def _compared(runner: Runner, actual: float, desired: float) -> StepsComparison:
    """Return the comparison of two trainings of one step that have computed nothing but a loss."""
    port, tf1 = (Training(({"loss": np.float32(each), "gradients": {}},), ()) for each in (actual, desired))
    return compare_trainings(runner.migration, port, tf1)[0]


def _are_swapped(divergence: Divergence) -> bool:
    """Return whether two tensors are in each other's places, and not those that one op takes."""
    tf1, port = divergence.operands
    return divergence.is_swap and set(tf1) != set(port)


def _traced(
    runner: Runner, likely: Sequence[Cause], divergences: Sequence[Divergence], inputs: Sequence[LossInput]
) -> list[Finding]:
    """Return a finding for each difference of the ops of the loss; none if it cannot be traced.

    What explains the whole loss says more than the ops at which the losses diverge, unless one op is all that differs.
    A loss that is a multiple of TF1's leaves no tensor that could be given TF1's value, but has multiples of its
    gradients.
    """
    findings = [finding_of(runner, each, causes_of_loss(each, inputs), "training") for each in divergences]
    train = train_step_of(runner.migration)
    found = [with_lines_of_losses(replace(each, title=f"loss: {each.title}"), train) for each in findings]
    whole = likely[0] if likely else Cause("")
    is_summed, is_broadcast = whole.fault is Fault.SUM_OR_MEAN, whole.fault is Fault.BROADCAST
    for each, finding in zip(divergences, found, strict=True):
        confirmed = whole.confirmed if is_broadcast else ""
        if broadcast := broadcast_in_one(each, confirmed=bool(confirmed)):
            cause, op, is_in_tf1 = broadcast
            known = _replaced(runner, finding, cause._replace(title=f"loss: {cause.title}", confirmed=confirmed))
            return [known if is_in_tf1 else replace(known, port=place_of(op, ""))]
    in_one_place = len(found) == 1 and bool(found[0].confirmed)
    if in_one_place and divergences[0].is_edit and not whole.confirmed:
        return found
    if whole.fault is Fault.CONSTANT and len(found) == 1:  # it does no harm
        return [_replaced(runner, found[0], whole)]
    if is_summed and in_one_place and found[0].fault not in _LESS_THAN_A_SUM:
        return found
    are_named = all(each.fault not in _ONLY_OPS for each in found)
    are_exact = in_one_place or all(each.attribute for each in divergences)
    if not found or (are_named and are_exact and not is_summed):
        return _one_for_each_number(divergences, found)
    confirmed = whole.confirmed or (found[0].confirmed if is_summed and in_one_place else "")
    number = (
        None
        if is_summed or is_broadcast or whole.fault is Fault.READING
        else _finding_of_number(runner, terms=not confirmed)
    )
    if number is not None and (number.confirmed or not confirmed):
        return [number]
    if not confirmed and not is_summed and (len(found) == 1 or (are_named and len(found) <= _MOST_REWRITTEN)):
        return found
    first, others = found[0], tuple(dict.fromkeys(each.title for each in found))
    if confirmed or first.fault is not Fault.OTHER_TENSORS:
        title = whole.title or "the losses of the same outputs differ"
        first, others = _replaced(runner, first, whole._replace(title=title)), ("", *others)
    return [replace(first, others=() if confirmed else others[1:], confirmed=confirmed)]


def _one_for_each_number(divergences: Sequence[Divergence], findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with one for a number that several ops of a line take, such as the delta of a Huber loss."""
    places = dict[tuple[object, ...], list[int]]()
    for position, (divergence, finding) in enumerate(zip(divergences, findings, strict=True)):
        values = divergence.attributes.get(divergence.attribute)
        lines = [place and place.line for place in (finding.tf1, finding.port)]
        key = (position,) if values is None else (*values, *lines)
        places.setdefault(key, []).append(position)
    found = []
    for first, *others in places.values():
        finding = findings[first]
        if others:
            given = f"with TF1's number at all {len(others) + 1} ops that take it"
            confirmed = confirmation(given, rest_agrees=divergences[others[-1]].rest_agrees)
            finding = replace(finding, confirmed=confirmed, count=len(others) + 1)
        found.append(finding)
    return found


def _replaced(runner: Runner, finding: Finding, cause: Cause) -> Finding:
    """Return a finding with another cause."""
    found = finding_of_cause(runner, finding.kind, cause, finding.tf1, finding.port)
    return replace(
        finding, title=found.title, confirmed=found.confirmed, remedy=found.remedy, fault=found.fault, others=()
    )


_MOST_REWRITTEN = 2  # differences that a loss may show which is written differently in the port
_ONLY_OPS = {Fault.UNEXPLAINED, Fault.POSSIBLE, Fault.OPS}
_LESS_THAN_A_SUM = {*_ONLY_OPS, Fault.ONLY_IN_ONE, Fault.TERM, Fault.RANDOM_OP_OF_TF1, Fault.RANDOM_OP_OF_PORT}


def _finding_of_number(runner: Runner, *, terms: bool) -> Finding | None:
    """Return the finding of a number in the port's loss that makes it TF1's; of several, it names them all."""
    tf1, config = runner.tf1, runner.port(TRAINING).config
    numbers: Sequence[Number] = ()
    with passing_over():  # the difference is worth more than its place
        given = (
            tf1.loss_of_outputs().migration,
            config,
            tf1.trace_of_loss(),
            tf1.shapes(),
            tf1.outcome(TRAINING).initial,
        )
        others = tf1.loss_of_other_outputs()
        other = None if others is None else (others[0].migration, others[1])
        numbers = numbers_of_loss(*given, terms=terms, other=other)
    if not numbers:
        return None
    first, *rest = dict.fromkeys(f"loss: {each.title}" for each in numbers)
    number = numbers[0]
    finding = Finding(
        "training",
        first,
        place_of(number.tf1, number.needed),
        place_of(number.port, number.value),
        confirmed="" if rest else f"with {number.needed} here, the losses agree",
        others=tuple(rest),
        remedy=number.remedy,
    )
    return with_lines_of_losses(finding, train_step_of(runner.migration))
