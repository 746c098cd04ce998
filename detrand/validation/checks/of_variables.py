"""The checks of what belongs to variables: their initial values and regularizers."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detrand.arguments import plural
from detrand.comparison.closeness import Closeness
from detrand.comparison.values import Comparison, LeafComparison, compare, compare_by_path
from detrand.errors import passing_over
from detrand.validation.audit.hyperparameters import INITIALIZER, REGULARIZER, Hyperparameters
from detrand.validation.checks.computation import drawn_by_replicas
from detrand.validation.checks.penalties import findings_of_regularizers, only_split_differently
from detrand.validation.checks.seeds import findings_of_initial_seeds
from detrand.validation.checks.training import NOT_COMPARED
from detrand.validation.diagnosis.causes.cause import CLOSE, describe_causes, use_value
from detrand.validation.diagnosis.causes.computation import DRAWS_NUMPY, causes
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import ADDED_LOSS, Outcome
from detrand.validation.reference import (
    CONSTANT_MODE,
    CONSTANT_WEIGHTS,
    DISTINCT_WEIGHTS,
    INFERENCE,
    TRAINING,
)
from detrand.validation.results import AuditedHyperparameter, Finding, Found, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import SPLIT
from detrand.validation.training.penalties import loss_of_penalty

# A loss that is summed in a different order may differ by some units in the last place for each term. It has no
# absolute tolerance: a loss of small weights would vanish in it.
_LOSS_RTOL, _LOSS_ATOL = 1e-5, 0.0
_INITIAL_VALUES_RTOL = 1e-5  # of the greatest element: a limit may be computed in a different precision


def initializers_match(runner: Runner) -> Found:
    """Check that the port draws TF1's initial values."""
    migration, tf1 = runner.migration, runner.tf1.outcome(CONSTANT_MODE)
    if not tf1.initial:
        return Found(True, "TF1 has no variables")
    fresh = runner.fresh_port
    policy, rearranged = migration.policy_tolerance, fresh.view.constants()
    rtol = policy.rtol if policy is not None and policy.rounds_variables else _INITIAL_VALUES_RTOL
    in_words = {each.of: each for each in runner.audit.hyperparameters if each.name == INITIALIZER}
    draws_alike = fresh.port.framework.draws_initial_values
    drawn_by = {} if draws_alike else _drawn_by(runner)
    together = _describe_together(drawn_by, tf1.initial, fresh.arrays)
    leaves: list[LeafComparison] = []
    differing, count, alike = dict[str, _Values](), 0, 0
    for name, expected in tf1.initial.items():
        found = fresh.arrays.get(name)
        if found is None or found.shape != expected.shape or expected.dtype.kind not in "fiub":
            continue  # variables-match reports it
        words = in_words.get(name)
        count += 1
        # A variable in a different form is drawn in that form, so its numbers come in a different order.
        if name in rearranged and words is not None and words.same and not _is_constant(expected):
            continue
        atol = rtol * float(np.abs(expected).max(initial=0))
        close = Closeness(rtol, atol, equal_nan=True)
        compared = compare_by_path(
            {name: found}, {name: expected}, {f"[{name!r}]": close}.__getitem__, check_dtype=False
        )
        described = None if words is None or words.same else _Values(words.tf1, words.port)
        if not compared and not draws_alike:
            described = described or together.get(name) or _describe_distributions(expected, found)
            if described is None:
                alike += 1
                continue
        leaves += compared.leaves
        if not compared:
            greatest = compared.leaves[0].greatest_absolute
            numbers = "different numbers" + (f", {greatest.in_words('max |difference|')}" if greatest else "")
            differing[name] = described or _describe_constants(expected, found) or _Values(more=numbers)
    comparisons = {"initial values": Comparison(tuple(leaves))}
    if not count:
        return Found(True, "the programs have no variables in common", compared=False)
    of_seeds = tuple(findings_of_initial_seeds(runner, fresh.drawn_by))
    if not differing:
        summary = f"{plural(count, 'variable')}: the port draws TF1's initial values"
        if alike:
            summary = (
                f"{count - alike} of {plural(count, 'variable')} have TF1's initial values; the port draws {alike} "
                "with other numbers, of TF1's mean and standard deviation"
            )
        summary = f"{of_seeds[0].title}; {summary}, each with its own seed" if of_seeds else summary
        return Found(not of_seeds, summary, comparisons=comparisons, findings=of_seeds)
    of_words = [in_words[name] for name in differing if name in in_words and not in_words[name].same]
    draws_numpy = not migration.seed_numpy and (tf1.draws_numpy or runner.port(INFERENCE).draws_numpy)
    likely = tuple(each.title for each in causes(hyperparameters=of_words, draws_numpy=draws_numpy))
    result = _found_of_variables(runner, "initializers", differing, plural(count, "variable"), comparisons, likely)
    remedies = {name: f"draw the initial values as TF1 does: {words}" for name, words in drawn_by.items()}
    from_numpy = f"{DRAWS_NUMPY.remedy} if np.random draws these values" if draws_numpy else ""
    findings = [
        replace(each, remedy=remedies.get(name) or each.remedy or from_numpy)
        for name, each in zip(differing, result.findings, strict=True)
    ]
    return replace(result, findings=(*findings, *of_seeds))


def _drawn_by(runner: Runner) -> dict[str, str]:
    """Return by what TF1 draws initial values, in words, by the names of the variables; without constants."""
    hyperparameters: Hyperparameters = {}
    with passing_over():  # the audit reports it
        hyperparameters = runner.tf1.hyperparameters() or {}
    found = {name: str(words) for (name, what), words in hyperparameters.items() if what == INITIALIZER}
    return {name: words for name, words in found.items() if not words.startswith("constant")}


def _describe_together(
    drawn_by: Mapping[str, str], tf1: Mapping[str, np.ndarray], port: Mapping[str, np.ndarray]
) -> dict[str, _Values]:
    """Return how initial values differ that TF1 draws alike, and the port draws alike, by their names.

    TF1's arrays begin with the same numbers in constant mode, so the largest one stands for all.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name, words in drawn_by.items():
        if name in tf1 and name in port and not (_is_constant(tf1[name]) or _is_constant(port[name])):
            groups[words].append(name)
    found: dict[str, _Values] = {}
    for names in groups.values():
        of_tf1 = max((tf1[name] for name in names), key=np.size)
        of_port = np.concatenate([port[name].ravel() for name in names])
        described = _describe_distributions(of_tf1, of_port)
        if described is not None and not any(_describe_distributions(port[name], of_port) for name in names):
            found |= dict.fromkeys(names, described)
    return found


class _Values(NamedTuple):
    """What differs in a variable: TF1's value and the port's in words, or more than that."""

    tf1: str = ""
    port: str = ""
    more: str = ""

    def __str__(self) -> str:
        return f"{self.tf1} (TF1), {self.port} (port){self.more}" if self.tf1 else self.more

    @property
    def remedy(self) -> str:
        """What to change in the port; empty if TF1's value is not all that says it."""
        if self == _FORGET_BIAS:
            to_layer = "pass unit_forget_bias=True to the layer: TF1 adds 1 for the forget gate"
            return f"if this is the bias of an LSTM, {to_layer}"
        return use_value(self.tf1) if self.tf1 and not self.more else ""


_FORGET_BIAS = _Values("constant 0", "-1 and 0")  # without the 1 that TF1 adds in each step


def _describe_constants(tf1: np.ndarray, port: np.ndarray) -> _Values | None:
    """Return which few numbers the port has in place of one; None if these are not few."""
    numbers = [f"{number:.6g}" for number in np.unique(port)]
    if not _is_constant(tf1) or len(numbers) > _MOST_NUMBERS:
        return None
    return _Values(f"constant {tf1.flat[0]:.6g}", " and ".join(numbers))


def _describe_distributions(tf1: np.ndarray, port: np.ndarray) -> _Values | None:
    """Return how the distributions of two arrays differ; None if chance may explain that.

    The logarithm of a standard deviation has a standard deviation of ``1 / sqrt(2 * size)`` by chance, or less if the
    numbers have smaller tails than normal ones.
    """
    arrays = [np.asarray(array, np.float64) for array in (tf1, port)]
    constants = [f"constant {array.flat[0]:.6g}" if _is_constant(array) else "" for array in arrays]
    if any(constants):
        return _Values(*(constant or "random numbers" for constant in constants))
    if arrays[0].size == 1:
        return None
    (tf1_mean, port_mean), (tf1_deviation, port_deviation) = (
        [float(function(array)) for array in arrays] for function in (np.mean, np.std)
    )
    chance = _MOST_DEVIATIONS / math.sqrt(arrays[0].size)
    if abs(math.log(port_deviation / tf1_deviation)) > chance:
        return _Values(f"standard deviation {tf1_deviation:.3g}", f"{port_deviation:.3g}")
    if abs(port_mean - tf1_mean) > chance * math.hypot(tf1_deviation, port_deviation):
        return _Values(f"mean {tf1_mean:.3g}", f"{port_mean:.3g}")
    return None


_MOST_DEVIATIONS = 5
_MOST_NUMBERS = 2


def _is_constant(array: np.ndarray) -> bool:
    """Return whether no chance has made an array of initial values: a single number may be drawn."""
    return bool(np.ptp(array) == 0 and (array.size > 1 or array.flat[0] in (0, 1)))


def regularizers_match(runner: Runner) -> Found:
    """Check that the programs have the same regularization losses."""
    asked = [INFERENCE, TRAINING, CONSTANT_WEIGHTS, DISTINCT_WEIGHTS]
    asked_of = [config for config in asked if drawn_by_replicas(runner, config) is None]
    of_tf1 = [runner.tf1.outcome(config) for config in asked_of]
    pairs = [(tf1, runner.port(tf1.config)) for tf1 in of_tf1]
    if not any(tf1.regularization_loss is not None or port.regularization_loss is not None for tf1, port in pairs):
        return Found(True, "neither program has a regularization loss")
    if not all(port.keeps_losses for _, port in pairs):
        summary = "regularization loss not compared: the port has no losses attribute"
        if runner.migration.train is not None:
            return Found(True, f"{summary}; training-steps compares the total loss")
        return Found(True, summary, compared=False)
    policy, check_dtype = runner.migration.policy_tolerance, runner.migration.dtype_policy is None
    rtol = policy.rtol if policy is not None and policy.rounds_variables else _LOSS_RTOL
    comparisons, differing, one_sided = {}, [], ""
    for tf1, port in sorted(pairs, key=lambda pair: not pair[0].config.training):
        losses = port.regularization_loss, _comparable_loss(tf1, port)
        if all(loss is None for loss in losses):
            continue
        weights = "TF1's initial values" if tf1.config.weights == "initial" else f"{tf1.config.weights} weights"
        how = f"{'training' if tf1.config.training else 'inference'} with {weights}"
        # A loss that only a call in inference adds is not trained.
        if any(loss is None for loss in losses) and not tf1.config.training and TRAINING in asked_of:
            one_sided = (
                f"; in inference only {'TF1' if losses[0] is None else 'the port'} has one, which is not trained"
            )
            continue
        comparisons[how] = compare(*losses, rtol, _LOSS_ATOL, check_dtype=check_dtype)
        if not comparisons[how]:
            differing.append((how, losses, tf1, port))
    words = [each for each in runner.audit.differing if each.name == REGULARIZER]
    if not differing and (not words or rtol > _LOSS_RTOL):  # a policy rounds the factors, too
        of = plural(sum(each.name == REGULARIZER for each in runner.audit.hyperparameters), "variable")
        where = "in training" if one_sided else "in inference and in training"
        summary = f"regularization losses are equal {where}{one_sided}; regularizers of {of} are equal"
        return Found(True, summary, comparisons=comparisons)
    if runner.migration.train is not None and only_split_differently(runner):
        return Found(True, f"{NOT_COMPARED[SPLIT]}; both add the same penalties", comparisons=comparisons)
    first_losses = differing[0][1] if differing else None
    of_losses = causes(losses=first_losses, hyperparameters=words)
    likely = tuple(each.title for each in of_losses)
    of_variables = {each.of: _Values(each.tf1, each.port) for each in words}
    if not words:
        how, (port_loss, tf1_loss), tf1, port = differing[0]
        values = ["none" if loss is None else f"{float(loss):.6g}" for loss in (tf1_loss, port_loss)]
        of_loss = _Values(values[0], values[1], f" in {how}")
        for name, loss, of_program in ("TF1", tf1_loss, 0), ("the port", port_loss, 1):
            if loss is None and any(pair[of_program].regularization_loss is not None for pair in pairs):
                likely = (f"{name} adds its regularization loss in inference only, so training does not use it",)
        if runner.loss_depends_on_inputs(port):
            agree = runner.agree(tf1, port)
            which = "which agree" if agree else "which differ: fix these first"
            depends = f"a term of the port's loss (activity_regularizer, add_loss) depends on its outputs, {which}"
            of_loss = of_loss._replace(more=f"{of_loss.more}; {depends}")
            likely = likely if agree else (depends, *likely)
        of_variables[ADDED_LOSS] = of_loss
    explain_all = words and all(_explain_losses(words, *pair) for pair in pairs if pair[0].config.weights == "distinct")
    confirmed = "with TF1's regularizers, the regularization losses agree" if explain_all else ""
    result = _found_of_variables(runner, "regularizers", of_variables, "", comparisons, likely, confirmed)
    if words:
        return replace(result, findings=tuple(findings_of_regularizers(runner, confirmed)))
    in_both = first_losses is not None and all(loss is not None for loss in first_losses)
    remedy = next((each.remedy for each in of_losses if in_both and each.title in likely[:1]), "")
    return replace(result, findings=tuple(replace(each, remedy=each.remedy or remedy) for each in result.findings))


def _comparable_loss(tf1: Outcome, port: Outcome) -> np.ndarray | None:
    """Return TF1's regularization loss; with the losses of training that the model computes, if the port has them."""
    whole, own = tf1.loss_with_functions, port.regularization_loss
    if whole is not None and own is not None and compare(own, whole, _LOSS_RTOL, _LOSS_ATOL):
        return whole
    return tf1.regularization_loss


def _explain_losses(regularizers: Sequence[AuditedHyperparameter], tf1: Outcome, port: Outcome) -> bool:
    """Return whether the regularization losses differ by just these regularizers, with distinct weights."""
    weights = distinct_weights(tf1.config.scales)
    if not all(each.of in weights for each in regularizers):
        return False
    losses = [0.0 if each.regularization_loss is None else float(each.regularization_loss) for each in (tf1, port)]
    of_tf1 = sum(loss_of_penalty(each.tf1, weights[each.of]) for each in regularizers)
    of_port = sum(loss_of_penalty(each.port, weights[each.of]) for each in regularizers)
    return math.isclose(losses[0] - losses[1], of_tf1 - of_port, rel_tol=CLOSE, abs_tol=_LOSS_RTOL * max(losses))


def _found_of_variables(
    runner: Runner,
    what: str,
    differing: Mapping[str, _Values],
    count: str,
    comparisons: dict[str, Comparison],
    likely: tuple[str, ...] = (),
    confirmed: str = "",
) -> Found:
    """Return the result of a check of which some variables fail, given what differs in each, in words."""
    first, words = next(iter(differing.items()))
    summary = f"{what} differ; first: {first}: {words}"
    if count:
        summary = f"{what} of {len(differing)} of {count} differ; first: {first}: {words}"
    details = "\n".join([f"{what} that differ:", *(f"  {name}: {words}" for name, words in differing.items())])
    if likely:
        details = f"{describe_causes(likely)}\n\n{details}"
    port_names, (of_tf1, of_port) = runner.compared_variables().port_names, runner.lines_of_variables
    findings = [
        Finding(
            what,
            f"{what.removesuffix('s')} differs: {values}",
            Place(name, of_tf1.get(name, "")),
            Place(port_names.get(name, name), of_port.get(name, "")),
            confirmed=confirmed,
            remedy=values.remedy,
        )
        for name, values in _without_numbers(differing).items()
    ]
    return Found(
        False, summary, details, likely, comparisons=comparisons, findings=tuple(findings), differing=tuple(differing)
    )


def _without_numbers(differing: Mapping[str, _Values]) -> dict[str, _Values]:
    """Return what differs in each variable, without the numbers where one kind of distribution stands for another.

    The numbers depend on the shape of the variable. A kind that has the same ones in all variables keeps its numbers.
    """
    kinds = {}
    for name, values in differing.items():
        both = [re.split(r" of | from | -?\d", value)[0] for value in (values.tf1, values.port)]
        kinds[name] = _Values(*both) if len(set(both)) == 2 and not values.more else values
    counts = Counter(kind for kind, _ in {(kinds[name], values) for name, values in differing.items()})
    return {name: kinds[name] if counts[kinds[name]] > 1 else values for name, values in differing.items()}
