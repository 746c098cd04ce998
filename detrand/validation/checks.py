"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

A check runs both programs through a `Runner` and returns what it `Found`. `run_check` makes a `CheckResult` of that.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand.arguments import and_more, plural
from detrand.checkpoints.loading import NameMapProposal
from detrand.checkpoints.training_state import AVERAGE
from detrand.comparison.closeness import Closeness
from detrand.comparison.values import Comparison, LeafComparison, compare, compare_by_path
from detrand.errors import CheckpointError, MigrationError, VariableCreationError
from detrand.seeding.callsite import describe_error, line_of_user
from detrand.seeding.streams import RandomOp
from detrand.steps.comparison import StepsComparison
from detrand.validation.audit.hyperparameters import INITIALIZER, OPTIMIZER, REGULARIZER
from detrand.validation.compare_outcomes import compare_outcomes, finding_of, findings_of_averages, place_of
from detrand.validation.diagnosis.causes import causes, causes_of_loss, describe_causes, is_close, words_of
from detrand.validation.diagnosis.causes_of_training import (
    AVERAGES_OF_WEIGHTS,
    MOVING_AVERAGES,
    UPDATED,
    Cause,
    cause_of_updates,
    causes_of_training,
)
from detrand.validation.diagnosis.remedies import remedy_of
from detrand.validation.migration import Migration, split_expected
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.precision import dtype_policy, variable_dtype
from detrand.validation.programs.activations import describe_activations
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import ADDED_LOSS, Outcome, RunConfig, numpy_seeded
from detrand.validation.programs.port import (
    Port,
    initial_values_of_port,
    run_port_from_checkpoint,
    run_port_in_functional_model,
)
from detrand.validation.programs.tf1 import count_overflowing
from detrand.validation.reference import (
    CHECKPOINT,
    CONSTANT_MODE,
    CONSTANT_WEIGHTS,
    DISTINCT_TRAINING,
    DISTINCT_WEIGHTS,
    INFERENCE,
    TRAINING,
)
from detrand.validation.results import AuditedHyperparameter, CheckResult, Finding, Found, PairedVariable, Place
from detrand.validation.runner import FoundNames, Runner
from detrand.validation.training.compare import (
    AVERAGES_BEGIN,
    SPLIT,
    compare_trainings,
    splits_differently,
    updates_agree,
    with_moving_averages_of,
)
from detrand.validation.training.port import lines_of_optimizer, make_port_optimizer, port_loss_of, train_port
from detrand.validation.training.probe import RATE, SIZES, needed_changes, rates_that_differ, steps_that_differ
from detrand.validation.training.steps import WEIGHT_AVERAGES, Training, train_step_of
from detrand.variables.comparison import VariablesComparison
from detrand.variables.creation import catch_and_raise_created_variables
from detrand.variables.spec import VariableSpec


def _variables_created_once(runner: Runner) -> Found:
    with dtype_policy(runner.migration.dtype_policy), numpy_seeded(runner.migration.numpy_seed):
        port = Port(runner.migration)
        port(training=False)
        try:
            with catch_and_raise_created_variables():
                port(training=False)
            # A branch that is built only in training may create its variables now, but no later.
            port(training=True)
            with catch_and_raise_created_variables():
                port(training=True)
                port(training=False)
        except VariableCreationError as error:
            return Found(False, "the port creates variables when it is called again", str(error))
    return Found(True, "no variables created after the first call (5 calls)")


_NO_VARIABLES = (
    "No variables of the port were found. Variables in the closure of a plain function cannot be found: return a Keras "
    "layer, a model or a tf.Module that owns them."
)


def paired_variables(runner: Runner) -> tuple[PairedVariable, ...]:
    """Return the variables of both programs in pairs, then those that only one program has."""
    comparison = runner.compared_variables()

    def form(spec: VariableSpec) -> str:
        return f"{spec.dtype} {spec.shape}"

    return (
        *(PairedVariable(pair.tf1_name, pair.port_name, form(pair.tf1), form(pair.port)) for pair in comparison.pairs),
        *(PairedVariable(name, "", form(spec), "") for name, spec in comparison.only_in_tf1.items()),
        *(PairedVariable("", name, "", form(spec)) for name, spec in comparison.only_in_port.items()),
    )


def _variables_match(runner: Runner) -> Found:
    found, left_out = _compare_all_variables(runner), runner.training_state()
    if runner.missing_names:
        found = _with_missing_names(found, runner)
    if not left_out:
        return found
    needed = f"left out {plural(len(left_out), 'variable')} of TF1's optimizer"
    details = f"{found.details}\n{needed}, which the port does not have: {and_more(left_out, 5)}".lstrip("\n")
    return replace(found, summary=f"{found.summary}; {needed}", details=details)


def _compare_all_variables(runner: Runner) -> Found:
    dtype = variable_dtype(runner.migration.dtype_policy)
    tf1, port = runner.variables()
    if not tf1 and not port:
        return Found(True, "neither program has variables")
    difference = runner.compared_variables()
    count = plural(len(tf1), "variable")
    if difference.ok:
        policy = "" if dtype == "float32" else f" (float32 in TF1 is {dtype} in the port)"
        if runner.found_names is None and (swapped := runner.better_names()):
            return _swapped(swapped)
        forms = difference.in_another_form()
        titles = [f"; {line.rstrip(':')}" for line in forms if not line.startswith(" ")]
        equal = f"shapes, dtypes and trainable flags are equal{policy}{''.join(titles)}"
        if runner.found_names is not None:
            return _names_differ(runner.found_names, f"{count}: {equal}", forms)
        return Found(True, f"{count}: names, {equal}", "\n".join(forms))
    report = str(difference)
    if not port:
        summary = f"{count} in TF1, none in the port"
        finding = Finding("variables", summary, remedy=_NO_VARIABLES)
        return Found(False, summary, f"{report}\n{_NO_VARIABLES}", findings=(finding,))
    return Found(False, report.splitlines()[0], report, findings=tuple(_findings_of_variables(runner, difference)))


def _findings_of_variables(runner: Runner, comparison: VariablesComparison) -> Iterator[Finding]:
    """Yield a finding for each way in which variables differ, at the first variable that does."""
    items: dict[str, list[str]] = {}
    for line in comparison.differences("TF1", "the port"):
        if line.startswith(" "):
            items[next(reversed(items), "")].append(line.strip())
        else:
            items[line.rstrip(":")] = []
    of_pairs = {pair.names: pair.tf1_name for pair in comparison.pairs}
    lines_of_tf1, lines_of_port = runner.lines_of_variables
    for title, lines in items.items():
        text = next(iter(lines), "")
        first = next((names for names in of_pairs if text.startswith(f"{names}: ")), text.partition(": ")[0])
        name = of_pairs.get(first, first.partition(" (name_map: ")[0])
        in_tf1 = first in of_pairs or title.startswith("only in TF1")
        port_name = comparison.port_names.get(name, name)
        yield Finding(
            "variables",
            f"variables: {title}: {and_more(lines, 4, '; ')}",
            Place(name, lines_of_tf1.get(name, "")) if in_tf1 else None,
            Place(port_name, lines_of_port.get(name, "")) if not title.startswith("only in TF1") else None,
        )


def _names_differ(found: FoundNames, equal: str, reshaped: Sequence[str]) -> Found:
    """Return what the check found if only names differ, with the name map to write down."""
    pairs = found.pairs
    names = {name: other for name, other in pairs.names.items() if name != other}
    proposal = NameMapProposal(
        {**found.cells, **names},
        pairs.doubts,
        () if found.outputs_agree else pairs.in_order,
    )
    number = len(names) + sum(map(len, found.cells))
    count = f"names{' or forms' if found.cells else ''} of {plural(number, 'variable')}"
    if not found.proof:
        summary = f"{count} differ, and the outputs do not show which variable is which"
        if found.gave_up:
            summary += f": the search stopped after {plural(found.gave_up, 'run')} of the port without progress"
        details = f"{summary}. The other checks use this name_map. Correct it, and pass it as Migration(name_map=...):"
        finding = Finding(
            "names", summary, remedy="pass the pairs of this check, corrected, as Migration(name_map=...)"
        )
        return Found(False, summary, f"{details}\n{proposal}", findings=(finding,))
    details = f"{count} differ, but {found.proof}. To write the pairs down, pass Migration(name_map=...):\n{proposal}"
    return Found(True, f"{equal}; {count} differ, but {found.proof}", "\n".join([details, *reshaped]))


def _with_missing_names(found: Found, runner: Runner) -> Found:
    """Return what the check found, failed because the user's name map names variables that the port does not have."""
    port = runner.variables()[1]
    names = runner.found_names
    proven = names.pairs.names if names is not None and names.proof else {}
    lines = []
    for name, missing in runner.missing_names.items():
        nearest = [proven[name]] if name in proven else difflib.get_close_matches(missing, port, n=1, cutoff=0.0)
        line = f"name_map names the port variable {missing!r} for {name!r}, which does not exist"
        lines.append("; nearest: ".join([line, *map(repr, nearest)]))
    more = f"; {plural(len(lines) - 1, 'more entry', 'more entries')}" if len(lines) > 1 else ""
    likely = (f"name_map names variables that the port does not have: {and_more(runner.missing_names.values(), 4)}",)
    return replace(
        found,
        ok=False,
        summary=f"{lines[0]}{more}; {found.summary}",
        details="\n".join([*lines, found.details]),
        causes=likely,
    )


def _swapped(names: Mapping[str, tuple[str, str]]) -> Found:
    """Return what the check found if the outputs agree only with other pairs than the names or the name map say."""
    pairs = [f"{name} is {right} in the port, not {used}" for name, (used, right) in names.items()]
    details = [
        "With distinct weights, the outputs agree only if these variables are paired. If the names are right, the port "
        "uses one variable in place of another. If not, pass Migration(name_map=...) with:",
        *(f"    {name!r}: {right!r},  # not {used!r}" for name, (used, right) in names.items()),
    ]
    more = f"; {plural(len(pairs) - 1, 'more variable')}" if len(pairs) > 1 else ""
    summary = f"swapped: {pairs[0]}{more}"
    return Found(False, summary, "\n".join([summary, *details]), (f"variables are swapped: {and_more(names, 4)}",))


# A loss that is summed in a different order may differ by some units in the last place for each term. It has no
# absolute tolerance: a loss of small weights would vanish in it.
_LOSS_RTOL, _LOSS_ATOL = 1e-5, 0.0
_INITIAL_VALUES_RTOL = 1e-5  # of the greatest element: a limit may be computed in a different precision


def _initializers_match(runner: Runner) -> Found:
    migration, tf1 = runner.migration, runner.tf1.outcome(CONSTANT_MODE)
    if not tf1.initial:
        return Found(True, "TF1 has no variables")
    more = len(runner.tf1.outcome(TRAINING).variables) > len(runner.tf1.outcome(INFERENCE).variables)
    values, view, drawn_by = initial_values_of_port(migration, runner.tf1.shapes(), training=more)
    policy, rearranged = migration.policy_tolerance, view.constants()
    rtol = policy.rtol if policy is not None and policy.rounds_variables else _INITIAL_VALUES_RTOL
    in_words = {each.of: each for each in runner.audit.hyperparameters if each.name == INITIALIZER}
    leaves: list[LeafComparison] = []
    differing, count = {}, 0
    for name, expected in tf1.initial.items():
        found = values.get(name)
        if found is None or found.shape != expected.shape or expected.dtype.kind not in "fiub":
            continue  # variables-match reports it
        words = in_words.get(name)
        count += 1
        # A variable in a different form is drawn in that form, so its numbers come in a different order.
        if name in rearranged and words is not None and words.same:
            continue
        atol = rtol * float(np.abs(expected).max(initial=0))
        close = Closeness(rtol, atol, equal_nan=True)
        compared = compare_by_path(
            {name: found}, {name: expected}, {f"[{name!r}]": close}.__getitem__, check_dtype=False
        )
        leaves += compared.leaves
        if not compared:
            described = "" if words is None or words.same else f"{words.tf1} (TF1), {words.port} (port)"
            greatest = compared.leaves[0].greatest_absolute
            numbers = "different numbers" + (f", {greatest.in_words('max |difference|')}" if greatest else "")
            differing[name] = described or numbers
    comparisons = {"initial values": Comparison(tuple(leaves))}
    if not count:
        return Found(True, "the programs have no variables in common", compared=False)
    of_seeds = tuple(_findings_of_initial_seeds(runner, drawn_by))
    if not differing:
        summary = f"{plural(count, 'variable')}: the port draws TF1's initial values"
        summary = f"{of_seeds[0].title}; {summary}, each with its own seed" if of_seeds else summary
        return Found(not of_seeds, summary, comparisons=comparisons, findings=of_seeds)
    of_words = [in_words[name] for name in differing if name in in_words and not in_words[name].same]
    draws_numpy = not migration.seed_numpy and (tf1.draws_numpy or runner.port(INFERENCE).draws_numpy)
    likely = causes(hyperparameters=of_words, draws_numpy=draws_numpy)
    result = _found_of_variables(runner, "initializers", differing, plural(count, "variable"), comparisons, likely)
    return replace(result, findings=(*result.findings, *of_seeds))


def _repeated(port: Sequence[_Drawn], tf1: Sequence[RandomOp]) -> Iterator[tuple[_Drawn, _Drawn]]:
    """Yield pairs of the port's random ops that draw the same numbers outside of a scope, unless some of TF1 do, too.

    Each is given with its name. A scope gives each op its own numbers, so that nothing else shows it.
    """

    def numbers(op: RandomOp) -> tuple[Any, ...]:
        return op.own_seed, op.op_type, op.shape, op.dtype

    of_tf1 = Counter(numbers(op) for op in tf1 if op.own_seed is not None)
    kinds_in_tf1 = {each[1:] for each, count in of_tf1.items() if count > 1}
    first: dict[Any, _Drawn] = {}
    for drawn in port:
        op = drawn[1]
        if op.own_seed is not None and op.shape != () and numbers(op)[1:] not in kinds_in_tf1:
            earlier = first.setdefault(numbers(op), drawn)
            if earlier is not drawn:
                yield earlier, drawn


_Drawn = tuple[str, RandomOp]


def _findings_of_initial_seeds(runner: Runner, drawn_by: Mapping[str, Sequence[RandomOp]]) -> Iterator[Finding]:
    """Yield a finding for each variable of the port that gets the numbers of another one."""
    drawn = [(name, op) for name, ops in drawn_by.items() for op in ops]
    port_names, (of_tf1, of_port) = runner.compared_variables().port_names, runner.lines_of_variables
    for (first, _), (second, _) in _repeated(drawn, runner.tf1.outcome(CONSTANT_MODE).random_ops):
        names = [port_names.get(name, name) for name in (first, second)]
        yield Finding(
            "initializers",
            f"{names[0]} and {names[1]} start with the same numbers: their initializers draw from one seed",
            Place(second, of_tf1.get(second, "")),
            Place(names[1], of_port.get(second, "")),
            confirmed="they have the same seed, distribution and shape",
        )


def _findings_of_seeds(runner: Runner) -> Iterator[Finding]:
    """Yield a finding for each random op of the port that repeats its own numbers, or those of another one."""
    tf1, drawn = runner.tf1.outcome(TRAINING).random_ops, [("", op) for op in runner.port(TRAINING).random_ops]
    drawn = [("", op) for _, op in drawn if op.phase == "compute" and op.own_seed is not None]
    stateless = {op.shape for op in tf1 if op.op_seed is None}
    for _, op in drawn:
        if op.own_seed is not None and op.own_seed[1] is None and op.shape not in stateless:
            title = f"the port draws the same numbers in every step: from the seed {op.own_seed[0]}, an integer"
            place = Place(f"{op.op_type} {op.shape}", op.caller)
            yield Finding("computation", title, port=place, confirmed="each call begins with this seed")
    of_generators = [each for each in drawn if each[1].own_seed and each[1].own_seed[1] is not None]
    for (_, first), (_, second) in _repeated(of_generators, tf1):
        title = f"two random ops of the port draw the same numbers: from the seed {(first.own_seed or (0,))[0]}, both"
        lines = runner.lines_of_seeds.get((first.own_seed or (0,))[0], ())
        lines = (lines[-1], lines[0]) if len(lines) > 1 else (second.caller, first.caller)
        places = [Place(f"{second.op_type} {second.shape}", line) for line in lines]
        yield Finding("computation", title, port=places[0], more=(places[1],), confirmed="they have the same seed")


def _regularizers_match(runner: Runner) -> Found:
    asked = [INFERENCE, TRAINING, CONSTANT_WEIGHTS, DISTINCT_WEIGHTS]
    asked_of = [config for config in asked if _drawn_by_replicas(runner, config) is None]
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
        losses = port.regularization_loss, tf1.regularization_loss
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
    if runner.migration.train is not None and _total_losses_agree(runner):
        return Found(True, f"{_NOT_COMPARED[SPLIT]}; the total losses of training agree", comparisons=comparisons)
    likely = causes(losses=differing[0][1] if differing else None, hyperparameters=words)
    of_variables = {each.of: f"{each.tf1} (TF1), {each.port} (port)" for each in words}
    if not words:
        how, (port_loss, tf1_loss), tf1, port = differing[0]
        values = (f"{'none' if loss is None else f'{float(loss):.6g}'}" for loss in (tf1_loss, port_loss))
        of_variables[ADDED_LOSS] = "{} (TF1), {} (port) in ".format(*values) + how
        for name, loss, of_program in ("TF1", tf1_loss, 0), ("the port", port_loss, 1):
            if loss is None and any(pair[of_program].regularization_loss is not None for pair in pairs):
                likely = (f"{name} adds its regularization loss in inference only, so training does not use it",)
        if runner.loss_depends_on_inputs(port):
            agree = runner.agree(tf1, port)
            which = "which agree" if agree else "which differ: fix these first"
            depends = f"a term of the port's loss (activity_regularizer, add_loss) depends on its outputs, {which}"
            of_variables[ADDED_LOSS] += f"; {depends}"
            likely = likely if agree else (depends, *likely)
    explain_all = words and all(_explain_losses(words, *pair) for pair in pairs if pair[0].config.weights == "distinct")
    confirmed = "with TF1's regularizers, the regularization losses agree" if explain_all else ""
    return _found_of_variables(runner, "regularizers", of_variables, "", comparisons, likely, confirmed)


def _explain_losses(regularizers: Sequence[AuditedHyperparameter], tf1: Outcome, port: Outcome) -> bool:
    """Return whether the regularization losses differ by just these regularizers, with distinct weights."""
    weights = distinct_weights(tf1.config.scales)
    if not all(each.of in weights for each in regularizers):
        return False
    losses = [0.0 if each.regularization_loss is None else float(each.regularization_loss) for each in (tf1, port)]
    of_tf1 = sum(_regularization(each.tf1, weights[each.of]) for each in regularizers)
    of_port = sum(_regularization(each.port, weights[each.of]) for each in regularizers)
    return is_close(losses[0] - losses[1], of_tf1 - of_port)


def _regularization(regularizer: str, weight: np.ndarray) -> float:
    """Return the loss of a weight, given its regularizer in words, such as ``"0.01 sum(w**2) + 0.1 sum(abs(w))"``."""
    sums = {
        "sum(w**2)": np.square(weight, dtype=np.float64).sum(),
        "sum(abs(w))": np.abs(weight, dtype=np.float64).sum(),
    }
    terms = (term.split(" ", 1) for term in regularizer.split(" + ") if regularizer != "none")
    return sum(float(factor) * float(sums[kind]) for factor, kind in terms)


def _total_losses_agree(runner: Runner) -> bool:
    """Return whether both programs have one total loss of TF1's outputs, of which they regularize different parts."""
    migration, config = runner.migration, runner.port(TRAINING).config
    tf1 = runner.tf1.training(config.mode).steps[0]
    _, labels = runner.tf1.batches[0]
    try:
        loss = port_loss_of(migration, labels, tf1["outputs"])
    except Exception:  # training-steps reports it
        return False
    regularization = runner.port(TRAINING).regularization_loss
    added = {} if regularization is None else {"regularization_loss": regularization}
    total = loss + float(added.get("regularization_loss", 0.0))
    return migration.strategy is None and splits_differently({"loss": total, **added}, tf1)


def _found_of_variables(
    runner: Runner,
    what: str,
    differing: Mapping[str, str],
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
            f"{what.removesuffix('s')} differs: {told}",
            Place(name, of_tf1.get(name, "")),
            Place(port_names.get(name, name), of_port.get(name, "")),
            confirmed=confirmed,
        )
        for name, told in _without_numbers(differing).items()
    ]
    return Found(
        False, summary, details, likely, comparisons=comparisons, findings=tuple(findings), differing=tuple(differing)
    )


def _without_numbers(differing: Mapping[str, str]) -> dict[str, str]:
    """Return what differs in each variable, without the numbers where one kind of distribution stands for another.

    The numbers depend on the shape of the variable. A kind of which there is only one keeps its numbers.
    """
    kinds = {}
    for name, words in differing.items():
        both = [re.split(r" of | from | -?\d", value)[0] for value in words.removesuffix(" (port)").split(" (TF1), ")]
        kinds[name] = "{} (TF1), {} (port)".format(*both) if len(set(both)) == 2 else words
    counts = Counter(kinds.values())
    return {name: kinds[name] if counts[kinds[name]] > 1 else words for name, words in differing.items()}


def _constant_weights(runner: Runner) -> Found:
    tf1 = runner.tf1.outcome(CONSTANT_WEIGHTS)
    of_distinct = _compare_with_distinct_weights(runner, DISTINCT_WEIGHTS)
    # Distinct weights explain more: where all weights are equal, many other numbers are equal, too.
    found = _compare(runner, CONSTANT_WEIGHTS, explain=of_distinct is None or of_distinct.ok)
    about = f"all variables {tf1.config.constant:g}" if tf1.variables else "TF1 has no variables"
    return _together(replace(found, summary=f"{about}: {found.summary}"), of_distinct)


def _random_training(runner: Runner) -> Found:
    found = _compare(runner, TRAINING)
    of_seeds = tuple(_findings_of_seeds(runner))
    # Replicas have their own moving averages, which differ from the towers'.
    if runner.migration.strategy is None and found.compared:
        if found.ok:
            found = _together(found, _compare_with_distinct_weights(runner, DISTINCT_TRAINING))
        elif runner.compared_variables().has_all_of_tf1:
            tf1 = runner.tf1.outcome(DISTINCT_TRAINING)
            of_averages = findings_of_averages(runner, tf1, runner.port(tf1.config))
            found = replace(found, findings=(*found.findings, *of_averages))
    if not of_seeds:
        return found
    summary = f"{of_seeds[0].title}; in a scope: {found.summary}"
    return replace(found, ok=False, summary=summary, findings=(*found.findings, *of_seeds))


def _compare_with_distinct_weights(runner: Runner, config: RunConfig) -> Found | None:
    """Return what a comparison with distinct weights finds; None if the programs cannot have them."""
    if not runner.compared_variables().has_all_of_tf1 or not runner.tf1.outcome(config).variables:
        return None
    tf1 = runner.tf1.outcome(config)
    if count_overflowing(tf1.outputs):
        return Found(True, "not compared with distinct weights, which overflow")
    found = _compare(runner, config)
    in_inference = () if config == DISTINCT_WEIGHTS else runner.tf1.outcome(DISTINCT_WEIGHTS).activations
    of_activations = describe_activations(tf1.activations, in_inference) if found.ok else ()
    return replace(found, summary="; ".join([f"distinct weights: {found.summary}", *of_activations]))


def _together(found: Found, of_distinct: Found | None) -> Found:
    """Return what two comparisons found, the second one with distinct weights."""
    if of_distinct is None or not found.compared:
        return found
    if of_distinct.ok:
        return replace(found, summary=f"{found.summary}; {of_distinct.summary}")
    return replace(of_distinct, summary=f"{of_distinct.summary}; {found.summary}")


def _constant_mode(runner: Runner) -> Found:
    if runner.migration.strategy is not None:  # the functional model would be made outside of the replicas
        return _compare(runner, CONSTANT_MODE, "called directly")
    outputs = runner.port(TRAINING).outputs
    if any(type(leaf) in (bool, int, float, complex, str) for leaf in tf.nest.flatten(outputs)):
        return _compare(runner, CONSTANT_MODE, "called directly: a Keras functional model returns tensors only")
    in_model = run_port_in_functional_model(runner.migration, runner.tf1.outcome(CONSTANT_MODE), runner.tf1.shapes())
    if in_model is None:
        return _compare(runner, CONSTANT_MODE, "called directly: the port is not a Keras layer")
    return compare_outcomes(runner, runner.tf1.outcome(CONSTANT_MODE), in_model, "in a Keras functional model")


def _compare(runner: Runner, config: RunConfig, *how: str, explain: bool = True) -> Found:
    """Compare both programs in a run config; see `compare_outcomes`."""
    tf1 = runner.tf1.outcome(config)
    not_compared = _drawn_by_replicas(runner, config)
    return not_compared or compare_outcomes(runner, tf1, runner.port(tf1.config), *how, explain=explain)


def _drawn_by_replicas(runner: Runner, config: RunConfig) -> Found | None:
    """Return the result of a check that cannot compare: replicas draw their own numbers, and TF1 has no towers."""
    tf1 = runner.tf1.outcome(config)
    if not tf1.whole_batch or all(op.phase == "init" for op in runner.port(tf1.config).random_ops):
        return None
    summary = (
        f"each replica draws its own numbers, but TF1 runs on the whole batch: {tf1.whole_batch}; validate the port "
        "without the strategy as well"
    )
    return Found(True, summary, compared=False)


def _checkpoint(runner: Runner) -> Found:
    try:
        tf1 = runner.tf1.outcome(CHECKPOINT)
        port = run_port_from_checkpoint(runner.migration, tf1)
    except CheckpointError as error:
        report = str(error)
        return Found(False, report.splitlines()[0], report)
    assert tf1.restored is not None
    names, unused = tf1.restored.tf1_names, tf1.restored.unused
    averages = sum(name.endswith(AVERAGE) for name in names)
    of_them = f", {averages} of them moving averages" if averages else ""
    how = [f"{plural(len(names), 'variable')} from the checkpoint{of_them}"]
    if unused:
        how.append(f"not in the TF1 program: {and_more(unused, 3)}")
    return compare_outcomes(runner, tf1, port, *how)


# Summaries of what one of the programs cannot compute, by the name under which it would be recorded.
_NOT_COMPARED = {
    "gradients": "gradients not compared: the golden file was recorded without the dtype policy, which rounds them",
    "learning_rate": "learning rates not compared: an optimizer keeps none, or TF1 has several optimizers",
    "regularization_loss": "the port has no losses attribute: port_loss must add the regularization losses",
    WEIGHT_AVERAGES: "moving averages of weights not compared: the port's optimizer is not one of Keras",
    AVERAGES_BEGIN: (
        "the port's moving averages of weights begin with the weights after step 0, TF1's with the initial weights; "
        "compared from step 1 on, each step from TF1's averages"
    ),
    SPLIT: "regularization losses not compared: one program has in its loss what the other one adds as regularization",
}


def _training_steps(runner: Runner) -> Found:
    not_compared = _drawn_by_replicas(runner, TRAINING)
    if not_compared is not None:
        return not_compared
    tf1, config = runner.tf1.outcome(TRAINING), runner.port(TRAINING).config
    executions = {
        "eagerly": _train(runner, config, compiled=False),
        "in a tf.function": _train(runner, config, compiled=True),
    }

    summaries = _each_once({how: _in_one_line(*trained) for how, trained in executions.items()})
    left_out = {name for unguided, _ in executions.values() for name in unguided.left_out}
    summaries += [_NOT_COMPARED[name] for name in sorted(left_out)]
    summaries += runner.tf1.training(config.mode).unordered
    (eager, _), (compiled, _) = executions.values()
    averages = compiled.tf1.steps[0].get("moving_averages", ())
    if compiled.port.replicas > 1 and not tf1.whole_batch and not set(averages).issubset(compiled.port.averaged):
        summaries.append("the port keeps the moving averages of the first replica; TF1's are those of the first tower")
    differing = {how: counted for how, (_, counted) in executions.items() if not counted.comparison}
    details = _each_once(
        {how: str(each.comparison) for how, each in differing.items()}, " (actual: port, desired: TF1)"
    )

    def port_loss(step: int) -> float | None:
        _, labels = runner.tf1.batches[step]
        with contextlib.suppress(Exception):  # the outputs may have a different structure
            return port_loss_of(runner.migration, labels, compiled.tf1.steps[step]["outputs"])
        return None

    of_tf1 = [
        causes_of_training(each.port, each.tf1, each.comparison, runner.audit.differing, port_loss)
        for each in differing.values()
    ]
    parts = {name: causes for each in reversed(of_tf1) for name, causes in each.items()}
    likely = tuple(dict.fromkeys(cause.title for causes in parts.values() for cause in causes))
    findings = list(_findings_of_training(runner, differing, parts))
    if not details:
        of_probe, findings = _probe_of_optimizers(runner, compiled.tf1.lines)
        summaries += of_probe
    trainings = {}
    for how, (unguided, counted) in executions.items():
        if not unguided.comparison:
            trainings[f"{how}, left to itself"] = unguided.comparison
        trainings[how] = counted.comparison
    steps_of = {
        "tf1": compiled.tf1.steps,
        "port": eager.port.steps,
        "port in a tf.function": compiled.port.steps,
    }
    return Found(
        not details and not findings,
        "; ".join(summaries),
        "\n\n".join([describe_causes(likely), *details] if likely else details),
        likely,
        findings=tuple(findings),
        trainings=trainings,
        training_noise={how: counted.noise for how, (_, counted) in executions.items() if counted.noise is not None},
        computed={run: dict(enumerate(steps)) for run, steps in steps_of.items()},
    )


def _findings_of_training(
    runner: Runner, differing: Mapping[str, _Trained], parts: Mapping[str, tuple[Cause, ...]]
) -> Iterator[Finding]:
    """Yield a finding for each part of a step that differs by itself."""
    of_optimizers = {RATE: RATE, **dict.fromkeys(UPDATED, "optimizer")}
    of_optimizers |= dict.fromkeys(AVERAGES_OF_WEIGHTS, "average")
    port_lines, needed = dict[str, str](), list[str]()
    if not parts.keys().isdisjoint(of_optimizers):
        port_lines = lines_of_optimizer(train_step_of(runner.migration).port_optimizer)
        needed = _needed_in_optimizer(runner, rates_differ=RATE in parts)
    tf1_lines = next((each.tf1.lines for each in differing.values()), {})
    for name, likely in parts.items():
        if name == "loss" and (found := _findings_of_loss(runner)):
            yield from found
            continue
        comparisons = [each.comparison.steps for each in differing.values()]
        step, of_step = next((n, by[name]) for of in comparisons for n, by in of.items() if not by.get(name, True))
        leaf = of_step.first_divergence
        assert leaf is not None
        of_tf1, of_port = _lines_of(runner, leaf.path)
        if name in of_optimizers:
            of_tf1 = tf1_lines.get(of_optimizers[name], "")
            of_port = port_lines.get(of_optimizers[name], port_lines.get("optimizer", ""))
        kind, variable = _KINDS_OF_PARTS.get(name, "training"), _variable(leaf.path)
        if kind == "averages" and variable:
            of_port = runner.lines_of_updates([variable], runner.port(TRAINING).config)[variable]
        desired, actual = leaf.first_mismatch.texts() if leaf.first_mismatch else ("", "")
        place = f"step {step}, {leaf.path}"
        places: tuple[Place | None, Place | None] = Place(place, of_tf1, desired), Place(place, of_port, actual)
        if name in UPDATED and (of_optimizer := [each for each in needed if each != RATE]):
            yield from (Finding(kind, title, *places, confirmed=_WITH_VALUE) for title in of_optimizer)
            continue
        first, *others = likely or (Cause(f"{leaf.path} differs in step {step}"),)
        if name == "gradients" and (stop := _stop_of_gradients(runner, of_step)):
            (title, places), others = stop, []
            first = first._replace(title=title)
        confirmed = _WITH_VALUE if name == RATE and RATE in needed else first.confirmed
        yield Finding(kind, first.title, *places, confirmed=confirmed, others=tuple(each.title for each in others))


def _stop_of_gradients(runner: Runner, gradients: Comparison) -> tuple[str, tuple[Place | None, Place | None]] | None:
    """Return a title and the places, if only one program stops the gradients that differ."""
    agree = {_variable(leaf.path): leaf.ok for leaf in gradients.leaves}
    names = [name for name, ok in agree.items() if not ok]
    found = runner.stop_of_gradients(agree)
    if found is None:
        return None
    who, *ops = found
    op = ops[who != "TF1"]
    what = {"StopGradient": "tf.stop_gradient", "IdentityN": "tf.custom_gradient"}.get(op.type, op.type) if op else ""
    verb = "replaces" if what == "tf.custom_gradient" else "stops"
    return f"only {who} {verb} gradients of {and_more(names, 4)} ({what})", (place_of(ops[0], ""), place_of(ops[1], ""))


_KINDS_OF_PARTS = {
    **{"outputs": "computation", "regularization_loss": "regularizers"},
    **dict.fromkeys(MOVING_AVERAGES, "averages"),
}
_WITH_VALUE = "with TF1's value in the port's optimizer, the updates agree"


def _needed_in_optimizer(runner: Runner, *, rates_differ: bool) -> list[str]:
    """Return which of TF1's values the port's optimizer needs, in words; `RATE` for the learning rates."""
    audited = {each.name.replace(" ", "_"): each for each in runner.audit.differing if each.of == OPTIMIZER}
    audited.pop(RATE, None)
    try:
        tf1, optimizer = runner.tf1.probe(), make_port_optimizer(runner.migration)
        if tf1 is None:
            return []
        changes: dict[str, Any] = {
            name: _value_of(each.tf1) for name, each in audited.items() if hasattr(optimizer, name)
        }
        if rates_differ:
            changes[RATE] = [float(step[RATE]) for step in tf1.training.steps]
        needed = needed_changes(runner.migration, tf1, runner.compared_variables().port_names, changes)
    except Exception:  # an optimizer may be made for the model's variables only
        return []
    return [words_of(audited[name]) if name in audited else name for name in needed]


def _value_of(text: str) -> Any:
    """Return the value of an optimizer's hyperparameter, given its text."""
    flags = {"none": None, "True": True, "False": False}
    return flags[text] if text in flags else float(text)


def _probe_of_optimizers(runner: Runner, tf1_lines: Mapping[str, str]) -> tuple[list[str], list[Finding]]:
    """Return what gradients and steps show that the training does not reach: summaries, and findings if they differ.

    The programs of the migration are not run for it. A port in half precision or on replicas is not probed.
    """
    migration = runner.migration
    if migration.dtype_policy is not None or migration.strategy is not None:
        return [], []
    if train_step_of(migration).tf1_train_op is not None:
        return ["optimizers not probed: tf1_train_op trains the model only"], []
    try:
        tf1 = runner.tf1.probe()
        if tf1 is None:
            return ["optimizers not probed: the golden file has no probe of TF1's"], []
        rates = rates_that_differ(migration, tf1)
        port, differing = steps_that_differ(migration, tf1, runner.compared_variables().port_names)
    except Exception as error:  # an optimizer may be made for the model's variables only
        return [f"optimizers not probed: {describe_error(error.__cause__ or error)}"], []
    if not rates and not differing:
        sizes = f"for gradients from {SIZES[0]:g} to {SIZES[-1]:g}"
        until = f", and their learning rates until step {max(tf1.rates):,}" if tf1.rates else ""
        return [f"the optimizers agree {sizes}{until}"], []
    values = "", ""
    if rates:
        step, (of_tf1, of_port) = next(iter(rates.items()))
        where, values = RATE, (f"{of_tf1:g}", f"{of_port:g}")
        confirmed = "where the learning rates are equal, the updates agree"
        if differing:
            confirmed = _WITH_VALUE if RATE in _needed_in_optimizer(runner, rates_differ=True) else ""
        likely = [Cause(f"learning rate differs in step {step}: {of_tf1:g} (TF1), {of_port:g} (port)", confirmed)]
    else:
        step, where = differing[0], "updates"
        likely = [Cause(each, _WITH_VALUE) for each in _needed_in_optimizer(runner, rates_differ=False)]
        likely = likely or [cause_of_updates(port, tf1.training, differing)]
    port_lines, made = lines_of_optimizer(train_step_of(migration).port_optimizer), RATE if rates else "optimizer"
    place = f"step {step}, {where}"
    places = Place(place, tf1_lines.get(made, ""), values[0]), Place(place, port_lines.get(made, ""), values[1])
    return [likely[0].title], [Finding("training", each.title, *places, confirmed=each.confirmed) for each in likely]


def _lines_of(runner: Runner, path: str) -> tuple[str, str]:
    """Return the lines of both programs of the variable that a path of a step names; empty if they are not known."""
    of_tf1, of_port = runner.lines_of_variables
    return of_tf1.get(_variable(path), ""), of_port.get(_variable(path), "")


def _variable(path: str) -> str:
    """Return the variable that a path of a step names, by its TF1 name; empty if it names none."""
    return path.rpartition("['")[2].removesuffix("']")


def _findings_of_loss(runner: Runner) -> list[Finding]:
    """Return a finding for each difference in the loss; none if it cannot be traced."""
    try:
        divergences, inputs = runner.divergences_of_loss()
    except Exception:  # the difference is worth more than its place
        return []
    findings = [finding_of(each, causes_of_loss(each, inputs), "training") for each in divergences]
    line = train_step_of(runner.migration).line_of_loss  # for an op of a framework's loss
    ports = [each.port and replace(each.port, line=each.port.line or line) for each in findings]
    return [replace(each, title=f"loss: {each.title}", port=port) for each, port in zip(findings, ports, strict=True)]


class _Trained(NamedTuple):
    """A training of the port beside TF1's.

    Attributes:
      port: the training of the port.
      tf1: the training of TF1, with moving averages read as the port's are.
      comparison: the comparison of the two.
      left_out: names that are not compared, because one of the programs does not know them.
      noise: the noise floor of the comparison; None if it was not measured.
    """

    port: Training
    tf1: Training
    comparison: StepsComparison
    left_out: frozenset[str]
    noise: TrainingNoise | None


def _train(runner: Runner, config: RunConfig, *, compiled: bool) -> tuple[_Trained, _Trained]:
    """Return a training left to itself, and the one that counts: guided by TF1's variables if the first differs."""
    migration = runner.migration

    def train(tf1: Training, guided: bool) -> _Trained:
        initial = runner.tf1.outcome(TRAINING).initial
        port = train_port(migration, runner.tf1.batches, config, tf1, initial, compiled=compiled, guided=guided)
        tf1 = with_moving_averages_of(tf1, port)
        noise = runner.tf1.training_noise(config.mode, guided=guided)
        return _Trained(port, tf1, *compare_trainings(migration, port, tf1, guided=guided, noise=noise), noise)

    unguided = train(runner.tf1.training(config.mode), guided=False)
    if unguided.comparison and updates_agree(migration, unguided.port, unguided.tf1):
        return unguided, unguided
    guided = train(unguided.tf1, guided=True)
    counted = unguided if unguided.comparison and guided.comparison else guided
    return unguided, counted


def _each_once(texts: Mapping[str, str], remark: str = "") -> list[str]:
    """Return each text once, after what it is about and a remark."""
    about: dict[str, list[str]] = {}
    for what, text in texts.items():
        about.setdefault(text, []).append(what)
    return [f"{' and '.join(what)}{remark}: {text}" for text, what in about.items()]


def _in_one_line(unguided: _Trained, counted: _Trained) -> str:
    drifts = counted.comparison and not unguided.comparison
    drift = f"; left to itself, the port drifts: {unguided.comparison.summary}" if drifts else ""
    return f"{counted.comparison.summary}{drift}"


class Check(NamedTuple):
    """A check: what it runs, and the checks whose faults also make it fail."""

    run: Callable[[Runner], Found]
    depends_on: tuple[str, ...] = ()


# A check that calls a port several times needs variables that last, and wrong variables or wrong outputs have
# consequences in every later check.
CHECKS = {
    "variables-created-once": Check(_variables_created_once),
    "variables-match": Check(_variables_match),
    "initializers-match": Check(_initializers_match, ("variables-match",)),
    "regularizers-match": Check(_regularizers_match, ("variables-match",)),
    "constant-weights": Check(_constant_weights, ("variables-created-once", "variables-match")),
    "random-inference": Check(partial(_compare, config=INFERENCE), ("variables-match",)),
    "random-training": Check(_random_training, ("variables-match",)),
    "constant-mode": Check(_constant_mode, ("variables-match",)),
    "checkpoint": Check(_checkpoint, ("variables-created-once", "variables-match")),
    "training-steps": Check(
        _training_steps, ("variables-created-once", "variables-match", "regularizers-match", "random-training")
    ),
}


def checks_of(migration: Migration) -> list[str]:
    """Return the names of the checks that apply to a migration, in order."""
    left_out = {"checkpoint": migration.checkpoint is None, "training-steps": migration.train is None}
    return [name for name in CHECKS if not left_out.get(name)]


def run_check(name: str, runner: Runner, before: Sequence[CheckResult] = ()) -> CheckResult:
    """Run one check of `CHECKS`; its result names the failed checks before it that it depends on."""
    started = time.perf_counter()
    found = _with_dependencies(name, _found(name, runner), [check for check in before if not check.ok])
    found = _with_expected(name, found, runner.migration.expect)
    findings = tuple(
        replace(finding, checks=(name,), remedy=finding.remedy or _remedy(finding))
        for finding in _findings(name, found, before)
    )
    found = replace(found, findings=findings)
    return CheckResult(name=name, seconds=time.perf_counter() - started, **vars(found))


def _remedy(finding: Finding) -> str:
    """Return what to change in the port; nothing if it is not confirmed that this is what differs."""
    return remedy_of(finding.title) if finding.confirmed or finding.kind != "computation" else ""


# What the findings of a check are about.
_KINDS = {
    **{"variables-created-once": "variables", "variables-match": "variables", "initializers-match": "initializers"},
    **{"regularizers-match": "regularizers", "checkpoint": "checkpoint", "training-steps": "training"},
}


def _findings(name: str, found: Found, before: Sequence[CheckResult]) -> tuple[Finding, ...]:
    """Return the findings of a check; one of its own for a check that fails and does not say what it found."""
    if found.ok:
        return ()
    roots = [check for check in before if not check.ok and check.name in CHECKS[name].depends_on]
    if found.findings:
        known = {finding.kind for check in roots for finding in check.findings}
        of_weights = "variables" in known  # without a counterpart, a weight differs, and what is computed from it
        findings = [each for each in found.findings if name != "training-steps" or each.kind not in known]
        return tuple(each for each in findings if not (of_weights and each.is_of_weights))
    if found.raised is not None:
        for check in before:
            if check.raised == found.raised:
                return check.findings
        kind, where = found.raised
        place = Place(kind.__name__, where) if where != found.summary else None
        title = found.summary.removeprefix("raised ").replace(f" ({where})", "")
        return (Finding("error", title, port=place),)
    if roots:
        return ()  # a consequence of what those checks found
    title, *others = found.causes or (found.summary,)
    return (Finding(_KINDS.get(name, "computation"), title, others=tuple(others)),)


def _found(name: str, runner: Runner) -> Found:
    """Return what a check found; any exception fails it but a `MigrationError`: then there is nothing to check."""
    try:
        return CHECKS[name].run(runner)
    except MigrationError:
        raise
    except Exception as error:
        summary = f"raised {describe_error(error)}"
        return Found(False, summary, summary, raised=(type(error), line_of_user(error) or summary))


def _with_dependencies(name: str, found: Found, failed: Sequence[CheckResult]) -> Found:
    """Return what a check found with a note on the failed checks that it depends on."""
    for earlier in failed:
        if found.raised is not None and found.raised == earlier.raised:
            summary = f"raised the same error as {earlier.name}"
            return replace(found, summary=summary, details=summary)
    roots = [earlier.name for earlier in failed if earlier.name in CHECKS[name].depends_on]
    if not roots:
        return found
    them, first = " and ".join(roots), "that" if len(roots) == 1 else "those"
    details = "" if found.ok else f"Depends on {them}, which failed. Fix {first} first.\n\n{found.details}"
    return replace(found, summary=f"after {them} failed: {found.summary}", details=details)


def _with_expected(name: str, found: Found, expected: Sequence[str]) -> Found:
    """Return what a check found, accepted if all that fails is expected; an exception never is."""
    patterns = {each: pattern for each in expected for check, pattern in [split_expected(each)] if check == name}
    if found.ok or found.raised is not None or not patterns:
        return found
    differing = found.differing or ("",)
    accepted = {each: fnmatch.filter(differing, pattern or "*") for each, pattern in patterns.items()}
    accepted = {each: names for each, names in accepted.items() if names}
    ok = set(itertools.chain(*accepted.values())) == set(differing)
    return replace(found, ok=ok, accepted=tuple(accepted))
