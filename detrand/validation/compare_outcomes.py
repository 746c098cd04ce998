"""`compare_outcomes`: the comparison of what both programs computed in one run config, and its explanation.

A difference is explained by the first divergence, by likely causes, and by random ops that differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.arguments import and_more, percent, plural, shorten
from detrand.comparison.closeness import Closeness
from detrand.comparison.metrics import OutputMetric, metric_of
from detrand.comparison.values import Comparison, compare_by_path, leaves_by_path
from detrand.random_op_diff import describe_source, describe_uncontrolled, describe_without_counterpart
from detrand.seeding.callsite import UNKNOWN, describe_error
from detrand.seeding.streams import RandomOp
from detrand.steps.comparison import greatest_absolute
from detrand.validation.audit.hyperparameters import INITIALIZER, OPTIMIZER, RATE, REGULARIZER, layer_of
from detrand.validation.diagnosis.causes.arrays import is_rearranged
from detrand.validation.diagnosis.causes.averages import momenta
from detrand.validation.diagnosis.causes.cause import Cause, describe_causes, of_hyperparameter, of_values
from detrand.validation.diagnosis.causes.computation import DRAWS_NUMPY, causes
from detrand.validation.diagnosis.causes.values import unconfirmed
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.name_map import variables_by_op
from detrand.validation.diagnosis.op_kinds import PLUMBING, kind
from detrand.validation.diagnosis.search import Diagnosis
from detrand.validation.frameworks.traces import TracedOp
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import MULTIPLE, NoiseFloor, OutputNoise, greatest_of, is_floating, most_rounding
from detrand.validation.noise.variants import IN_FLOAT64
from detrand.validation.programs.counterparts import without_counterpart
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import Origin, Outcome, UntracedPortError
from detrand.validation.programs.sample_variances import nearer
from detrand.validation.programs.tf1 import count_vanishing, float_arrays
from detrand.validation.reference import DISTINCT_WEIGHTS, INFERENCE
from detrand.validation.results import AuditedHyperparameter, Fault, Finding, Found, Place
from detrand.validation.runner import Runner
from detrand.variables.comparison import VariablesComparison
from detrand.variables.pairing import exact_role_of

_UPDATES = "variables that the call changes"
_OF_STRUCTURE = ("structure", "missing in actual", "missing in desired")  # reasons for which outputs are no pairs


def compare_outcomes(runner: Runner, tf1: Outcome, port: Outcome, *how: str, explain: bool = True) -> Found:
    """Compare what the two programs computed in one config, with remarks on it, and explain a difference if asked.

    The regularization loss is left out, because regularizers-match compares it.
    """
    migration = runner.migration
    comparisons, floor = _compare(runner, tf1, port)
    if [leaf.reason for leaf in comparisons["outputs"].leaves] == ["nothing to compare"]:
        return Found(True, "every output is empty, so there is nothing to compare", compared=False)
    summaries = [_in_one_line(name, comparison) for name, comparison in comparisons.items()]
    summaries += _remarks_on_run(migration, tf1, port, how)
    summaries += _remarks_on_outputs(tf1, len(comparisons["outputs"].leaves), is_measured=migration.measures_rounding)
    summaries += _remarks_on_leaves(comparisons["outputs"])
    computed = {"tf1": {0: _computed(tf1)}, "port": {0: _computed(port)}}
    found = Found(True, "; ".join(summaries), comparisons=comparisons, noise=floor, computed=computed)
    found = replace(found, metrics=_metrics(migration, tf1, port))
    if all(comparisons.values()):
        return replace(found, compared=_proves_something(runner, tf1))
    return _explained(found, runner, tf1, port) if explain else replace(found, ok=False)


def _metrics(migration: Migration, tf1: Outcome, port: Outcome) -> tuple[OutputMetric, ...]:
    """Return the metrics of outputs for which the migration asks, of those that both programs have."""
    leaves, others = leaves_by_path(tf1.outputs), leaves_by_path(port.outputs)
    found = [
        metric_of(path, name, np.asarray(leaf), np.asarray(others[path]))
        for path, leaf in leaves.items()
        if path in others
        for name in migration.metrics_of(path)
    ]
    return tuple(filter(None, found))


def _proves_something(runner: Runner, tf1: Outcome) -> bool:
    """Return whether some output is neither 0 nor NaN everywhere, in this run config or with distinct weights."""

    def shows(outputs: Any) -> bool:
        arrays = float_arrays(outputs)
        return not arrays or any(bool(array[~np.isnan(array)].any()) for array in arrays)

    return shows(tf1.outputs) or shows(runner.tf1.outcome(DISTINCT_WEIGHTS).outputs)


def _explained(found: Found, runner: Runner, tf1: Outcome, port: Outcome) -> Found:
    """Return what a check found with an explanation of the difference; it passes if that is rounding."""
    outputs = found.comparisons["outputs"]
    diagnosis, not_found = _diagnosis(runner, tf1, port, outputs)
    if by_rounding := _by_rounding(found, runner, tf1, port, diagnosis):
        return by_rounding
    random_ops, of_draws = list[Cause](), list[Finding]()
    if tf1.config.mode == "num_random_ops" and not _explained_without_draws(diagnosis.divergences):
        random_ops, of_draws = _without_counterpart(runner, tf1, port)
    uncontrolled = ""
    if tf1.config.weights == "initial":
        uncontrolled = describe_uncontrolled(tf1.uncontrolled, port.uncontrolled, port_name="the port")
    divergence = next(iter(diagnosis.divergences), None)
    # Both programs have run with the same weights, and regularizers add to the loss only.
    hyperparameters = [each for each in runner.audit.differing if each.name not in (INITIALIZER, REGULARIZER)]
    draws_numpy = not runner.migration.seed_numpy and (tf1.draws_numpy or port.draws_numpy)
    of_averages = list(findings_of_averages(runner, tf1, port))
    likely = causes(
        divergence,
        outputs.first_divergence,
        None,
        hyperparameters,
        draws_numpy=draws_numpy,
        random_ops=random_ops,
    )
    titles = tuple(dict.fromkeys([*(each.title for each in likely), *(each.title for each in of_averages if outputs)]))

    differences = []
    for name, comparison in found.comparisons.items():
        if not comparison:
            origins, floor = (tf1.origins, found.noise) if name == "outputs" else ({}, None)
            differences.append(f"{name}: {_first_difference(comparison, origins, floor)}")
    divergences = tuple(map(str, diagnosis.divergences))
    details = [
        *divergences,
        describe_causes(titles) if titles else "",
        not_found,
        *differences,
        uncontrolled,
    ]
    summaries = [found.summary, *(each.title for each in random_ops[:1])]
    if divergence is not None:
        summaries.append(f"first divergence at {divergence.op}")
    findings = [
        finding_of(runner, each, causes(each, hyperparameters=hyperparameters)) for each in diagnosis.divergences
    ]
    findings = list(_one_for_each_fault(runner, diagnosis.divergences, findings))
    rest = causes(
        None,
        outputs.first_divergence,
        None,
        hyperparameters,
        draws_numpy=draws_numpy,
    )
    if _explain_draws(findings, runner.audit.hyperparameters, port):
        of_draws = []
    elif any(each.fault is Fault.DRAWN_SHAPE for each in of_draws):  # the ops that draw differ because of it
        unknown = [each for each in findings if each.fault is Fault.UNEXPLAINED]
        consequences = {Fault.UNEXPLAINED}
        if runner.agree(runner.tf1.outcome(INFERENCE), runner.port(INFERENCE)):  # other ops and axes compute the same
            consequences |= {Fault.OPS, Fault.AXES}
        findings = [each for each in findings if each.fault not in consequences]
        if len(unknown) == len(of_draws):  # these have the lines of the layers, too
            of_draws = [replace(each, port=other.port) for each, other in zip(of_draws, unknown, strict=True)]
    findings[:0] = [*(finding_of_cause(runner, "computation", each) for each in rest), *of_draws]
    if _has_idle_dropouts(runner.audit.hyperparameters, port):
        findings = [
            replace(each, remedy=_PASS_TRAINING) if each.fault is Fault.RANDOM_OP_OF_TF1 else each for each in findings
        ]
    findings += of_averages
    if any(leaf.reason in _OF_STRUCTURE for leaf in outputs.leaves):
        remedy = "return the outputs of both programs in the same structure"
        findings.insert(0, Finding("computation", _in_one_line("outputs", outputs), remedy=remedy))
    if not findings:
        name, comparison = next((name, each) for name, each in found.comparisons.items() if not each)
        title = _in_one_line(name, comparison)
        if runner.framework.no_graph:
            findings = _untraced(runner, title, hyperparameters)
        else:
            findings = [Finding("computation", f"{title}; {_UNKNOWN_CAUSE}", fault=Fault.UNEXPLAINED)]
    findings = [_with_uncontrolled(each, (*tf1.uncontrolled, *port.uncontrolled)) for each in findings]
    return replace(
        found,
        ok=False,
        summary="; ".join(summaries),
        details="\n\n".join(filter(None, details)),
        causes=titles,
        findings=tuple(findings),
        divergences=divergences,
        tensors=diagnosis.tensors,
    )


_UNKNOWN_CAUSE = "the cause is not known"


def _without_counterpart(runner: Runner, tf1: Outcome, port: Outcome) -> tuple[list[Cause], list[Finding]]:
    """Return the random ops that only one program has, or that draw another shape in it, as causes and as findings."""
    of_tf1, of_port = (
        without_counterpart(one.random_ops, other.random_ops) for one, other in ((tf1, port), (port, tf1))
    )
    of_tf1 = [op for op in of_tf1 if op.op_seed not in tf1.unused]
    kinds = ([(op.op_type, op.dtype, op.phase) for op in ops] for ops in (of_tf1, of_port))
    if of_tf1 and len({*map(tuple, kinds)}) == 1:
        likely, findings = list[Cause](), list[Finding]()
        for op, other in zip(of_tf1, of_port, strict=True):
            likely.append(of_values("shape of random numbers", op.shape, other.shape, fault=Fault.DRAWN_SHAPE))
            places = Place(op.op_type, op.caller), Place(other.op_type, other.caller)
            findings.append(finding_of_cause(runner, "computation", likely[-1], *places))
        return likely, findings
    likely = [
        *(Cause(each, fault=Fault.RANDOM_OP_OF_TF1) for each in describe_without_counterpart(of_tf1, ())),
        *(Cause(each, fault=Fault.RANDOM_OP_OF_PORT) for each in describe_without_counterpart((), of_port)),
    ]
    return likely, [finding_of_cause(runner, "computation", each) for each in likely]


def _with_uncontrolled(finding: Finding, draws: Sequence[RandomOp]) -> Finding:
    """Return a finding; if its cause is unknown, with the draws that no scope controls as possible causes.

    Initial values are none: the port has TF1's.
    """
    draws = [each for each in draws if each.phase != "init"]
    if finding.fault is not Fault.UNEXPLAINED or not draws:
        return finding
    possible = (f"no scope controls {describe_source(each)} at {each.caller}" for each in draws)
    title = finding.title.removesuffix(f"; {_UNKNOWN_CAUSE}")
    return replace(finding, title=title, others=tuple(dict.fromkeys(possible)), fault=Fault.POSSIBLE)


def _explain_draws(
    findings: Sequence[Finding], hyperparameters: Sequence[AuditedHyperparameter], port: Outcome
) -> bool:
    """Return whether findings explain that random ops have no counterpart.

    A port that has TF1's dropouts, draws nothing and does not normalize as in training never passes on that it trains.
    """
    faults = {each.fault for each in findings}
    if not faults.isdisjoint({Fault.RANDOM_OP_OF_TF1, Fault.RANDOM_OP_OF_PORT, Fault.RANDOM_OP_ELSEWHERE}):
        return True
    return Fault.NORMALIZES_IN_INFERENCE in faults and _has_idle_dropouts(hyperparameters, port)


_PASS_TRAINING = "pass the training argument on to the port's dropout: it has TF1's rate, but draws nothing"


def _has_idle_dropouts(hyperparameters: Sequence[AuditedHyperparameter], port: Outcome) -> bool:
    """Return whether a port has a dropout of TF1's rate, and draws nothing in training."""
    has_dropouts = any(each.name == RATE and each.same for each in hyperparameters)
    return has_dropouts and port.config.training and all(op.phase == "init" for op in port.random_ops)


def _explained_without_draws(divergences: Sequence[Divergence]) -> bool:
    """Return whether outputs agree once faults are corrected that have nothing to do with random numbers.

    A random op that one program lacks is then no fault: a dropout whose keep_prob is fed draws in inference, too.
    """
    return bool(divergences) and divergences[-1].rest_agrees and not any(any(each.drawing) for each in divergences)


def findings_of_averages(runner: Runner, tf1: Outcome, port: Outcome) -> Iterator[Finding]:
    """Yield a finding for each variable that a call changes in another way, where it is known how it differs."""
    comparisons, _ = _compare(runner, tf1, port)
    if comparisons.get(_UPDATES, True):
        return
    only_known = not comparisons["outputs"]
    of_port, of_tf1 = _comparable_updates(tf1, port)
    before = distinct_weights(tf1.config.scales)
    names = before.keys() & of_tf1.keys()
    changed, expected = ({name: of[name] - before[name] for name in of if name in names} for of in (of_port, of_tf1))
    of_tf1_lines, port_names = runner.lines_of_variables[0], runner.compared_variables().port_names
    causes_of = momenta(changed, expected, before, runner.audit.differing, only_known=only_known)
    never = [name for name in of_tf1 if name not in of_port]
    if never and not only_known:
        title = f"the port never updates {and_more(never, 4)}, which each step of TF1 updates"
        remedy = "update these variables in the port: call its Keras layer with training=True, or assign to them"
        causes_of[never[0]] = Cause(title, "the call leaves it as it was", remedy=remedy)
    of_port_lines = runner.lines_of_updates(causes_of, port.config)
    for name, cause in causes_of.items():
        places = Place(name, of_tf1_lines.get(name, "")), Place(port_names.get(name, name), of_port_lines.get(name, ""))
        yield finding_of_cause(runner, "averages", cause, *places)


def _untraced(runner: Runner, title: str, hyperparameters: Sequence[AuditedHyperparameter]) -> list[Finding]:
    """Return the findings of outputs that differ where no op of the port is known; none if its variables explain it."""
    variables = runner.compared_variables()
    if variables.only_in_tf1 or variables.only_in_port or variables.differing_in("shape"):
        return []
    of_tf1, of_port = runner.lines_of_variables
    of_layers = []
    for each in hyperparameters:
        if each.of != OPTIMIZER:
            name = next((name for name in of_tf1 if layer_of(name) == each.of), None)
            in_tf1, in_port = (
                None if name is None else Place(each.of, lines.get(name, "")) for lines in (of_tf1, of_port)
            )
            of_layers.append(finding_of_cause(runner, "computation", of_hyperparameter(each), in_tf1, in_port))
    return of_layers or [Finding("computation", title, remedy=runner.framework.remedy)]


def findings_of_variables(runner: Runner) -> Iterator[Finding]:
    """Yield a finding for each way in which variables differ, at the first variable that does."""
    comparison = runner.compared_variables()
    lines_of_tf1, lines_of_port = runner.lines_of_variables
    for each in comparison.groups("TF1", "the port"):
        fault, of_fault = _FAULTS_OF_VARIABLES[each.what]
        name, count, remedy = " + ".join(each.tf1_names), len(each.lines), ". ".join(each.advice) or of_fault
        title = f"variables: {each.title} ({count}): {and_more(each.lines, 4, '; ')}"
        first = each.tf1_names[0]
        line_of_port = lines_of_port.get(first) or lines_of_port.get(each.port_name, "")
        of_tf1, of_port = Place(name, lines_of_tf1.get(first, "")), Place(each.port_name, line_of_port)
        if fault is Fault.VARIABLE_OF_PORT and (shared := _shared_in_tf1(runner)):
            pairs = (f"{copy} for {name}" for copy, name in shared.items())
            title = f"variables: the port has copies of variables that TF1 shares ({count}): {and_more(pairs, 4)}"
            remedy = "make the layer once in the port, and call it at each place"
            of_tf1 = Place(shared[name], lines_of_tf1.get(shared[name], ""))
        elif fault in (Fault.VARIABLE_OF_TF1, Fault.VARIABLE_OF_PORT) and not each.advice:
            remedy = _remedy_of_one_program(comparison)
        elif fault is Fault.TRAINABLE:
            remedy = _remedy_of_trainable(comparison)
        yield Finding(
            "variables",
            title,
            None if fault is Fault.VARIABLE_OF_PORT and of_tf1.op == name else of_tf1,
            None if fault is Fault.VARIABLE_OF_TF1 else of_port,
            remedy=remedy,
            fault=fault,
        )


# How variables differ -> the fault and its remedy, which depends on the variables where it is empty.
_FAULTS_OF_VARIABLES = {
    "only in TF1": (Fault.VARIABLE_OF_TF1, ""),
    "only in port": (Fault.VARIABLE_OF_PORT, ""),
    "shape": (
        Fault.SHAPE,
        "give the port's layers TF1's sizes; for a variable that has the same numbers in a different form, pass a "
        "Rearranged in name_map",
    ),
    "dtype": (Fault.OTHER, "give the port's layers TF1's dtype, or pass Migration(dtype_policy=...)"),
    "trainable": (Fault.TRAINABLE, ""),
}


def _remedy_of_trainable(comparison: VariablesComparison) -> str:
    """Return what to do about variables that only one program trains."""
    remedy = "freeze these variables in the port, as with trainable=False of their layer"
    if any(pair.tf1.trainable for pair in comparison.differing_in("trainable")):
        remedy = (
            "make these variables trainable in the port. If TF1 does not train them either, pass the names of those "
            "that it trains as TrainStep(var_list=[...]), as to minimize(var_list=...), or its training op as "
            "TrainStep(tf1_train_op=...)"
        )
    if _frozen_normalizations(comparison):
        remedy += ". A frozen BatchNormalization of Keras normalizes with its moving averages, in training too"
    return remedy


_ARGUMENTS_OF_LAYERS = {"bias": "use_bias", "gamma": "scale", "beta": "center"}


def _remedy_of_one_program(comparison: VariablesComparison) -> str:
    """Return what to do about variables that only one program has; empty if only their names may differ."""
    if comparison.only_in_tf1 and comparison.only_in_port:
        return ""
    kinds = {name.rpartition("/")[2] for name in (*comparison.only_in_tf1, *comparison.only_in_port)}
    argument = _ARGUMENTS_OF_LAYERS.get(kinds.pop(), "") if len(kinds) == 1 else ""
    if argument:
        return f"pass {argument}={bool(comparison.only_in_tf1)} to the port's layer"
    if comparison.only_in_tf1:
        return "add these variables to the port, and what TF1 computes from them"
    return "remove these variables from the port, and what it computes from them"


def _shared_in_tf1(runner: Runner) -> dict[str, str]:
    """Return, for each variable that only the port has, one that TF1 uses at several places and that may stand for it.

    Nothing is returned unless there is one for each, and the port has all of TF1's variables.
    """
    comparison = runner.compared_variables()
    if comparison.only_in_tf1:
        return {}
    trace = runner.tf1.ops()
    holding = variables_by_op(trace, {pair.tf1_name for pair in comparison.pairs})
    uses = Counter[str]()
    for op in trace.ops.values():
        taken = {holding[source] for source in op.sources if source in holding}
        if kind(op) not in PLUMBING:
            uses.update(taken)
        elif len(taken) == 1:
            holding[op.name] = taken.pop()
    found = dict[str, str]()
    for name, spec in comparison.only_in_port.items():
        for pair in comparison.pairs:
            is_like = pair.port.shape == spec.shape and exact_role_of(pair.port_name) == exact_role_of(name)
            if is_like and uses[pair.tf1_name] > 1:
                uses[pair.tf1_name] -= 1
                found[name] = pair.tf1_name
                break
    return found if len(found) == len(comparison.only_in_port) else {}


def _frozen_normalizations(comparison: VariablesComparison) -> set[str]:
    """Return the layers with moving averages of which variables are frozen in one program only."""
    averages = {layer_of(pair.tf1_name) for pair in comparison.pairs if pair.tf1.trainable is False}
    flags = ((pair, {pair.tf1.trainable, pair.port.trainable}) for pair in comparison.pairs)
    return averages & {layer_of(pair.tf1_name) for pair, of_pair in flags if of_pair == {True, False}}


def _one_for_each_fault(
    runner: Runner, divergences: Sequence[Divergence], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield the findings of divergences, with that of variables in place of those which these explain.

    Where an op takes a variable that only one program has, or one of a different shape, the variable is the fault.
    Statistics of the batch in place of moving averages make all ops of a normalization differ.
    """
    comparison, of_variables = runner.compared_variables(), {each.fault: each for each in findings_of_variables(runner)}
    only = comparison.only_in_tf1.keys(), comparison.only_in_port.keys()
    other_shapes = comparison.differing_in("shape")
    of_other_shapes = {name for pair in other_shapes for name in (*pair.tf1_names, pair.port_name)}
    frozen, normalizations = _frozen_normalizations(comparison), set[str]()
    found: list[tuple[Finding, set[str]]] = []
    explained = set[str]()  # layers and lines
    for divergence, finding in zip(divergences, findings, strict=True):
        # A line may make several layers, and an op may take no variable.
        where = {layer_of(name) for names in divergence.variables for name in names}
        where |= {op.line for op in (divergence.port,) if op is not None and op.line != str(UNKNOWN)}
        explanation = None
        takes_other_shape = not of_other_shapes.isdisjoint(frozenset().union(*divergence.variables))
        if takes_other_shape and divergence.port is not None and iteration_of(divergence.port.name)[1]:
            explanation = Fault.SHAPE  # the ops of a cell depend on each other
        elif finding.fault in (Fault.NORMALIZES_IN_TRAINING, Fault.NORMALIZES_IN_INFERENCE):
            normalizations |= where
            if where & frozen:
                frozen |= where
                explanation = Fault.TRAINABLE
        elif finding.fault not in _OF_BOTH_PROGRAMS:
            sides = zip((Fault.VARIABLE_OF_TF1, Fault.VARIABLE_OF_PORT), divergence.variables, only, strict=True)
            explanation = next((fault for fault, names, known in sides if names & known), None)
            if explanation is None and takes_other_shape:
                explanation = Fault.SHAPE
            if explanation is None and where & normalizations:
                continue
        of_variable = None if explanation is None else of_variables.get(explanation)
        if of_variable is None:
            found.append((finding, where))
            continue
        explained |= where
        confirmed = replace(of_variable, confirmed=finding.confirmed, rest_agrees=finding.rest_agrees)
        found.append((confirmed, where))
    for finding, where in found:  # one iteration of a loop may take no variable that another one takes
        if finding.fault not in (Fault.UNEXPLAINED, Fault.POSSIBLE) or where.isdisjoint(explained):
            yield finding


# Faults of what both programs have, which no variable of only one of them explains.
_OF_BOTH_PROGRAMS = {Fault.VALUE, Fault.ACTIVATION, Fault.DROPOUT, Fault.REDUCTION, Fault.AXES, Fault.ORDER}


def finding_of_cause(
    runner: Runner, kind: str, cause: Cause, tf1: Place | None = None, port: Place | None = None
) -> Finding:
    """Return the finding that a cause is, with its remedy in the framework of the port.

    A computation whose cause is not confirmed has no remedy: it may not be what differs. Draws from NumPy have one:
    they do differ.
    """
    is_known = bool(cause.confirmed) or kind != "computation" or cause == DRAWS_NUMPY
    own_form = runner.framework.own_form(*cause.own_form) if is_known and cause.own_form is not None else ""
    remedy = (own_form or cause.remedy) if is_known else ""
    return Finding(kind, cause.title, tf1, port, confirmed=cause.confirmed, remedy=remedy, fault=cause.fault)


def finding_of(runner: Runner, divergence: Divergence, likely: Sequence[Cause], kind: str = "computation") -> Finding:
    """Return the finding that a divergence is: its likeliest cause, if it is confirmed."""
    confirmed = divergence.confirmed or (
        "both hold the same numbers, in another order" if is_rearranged(divergence) else ""
    )
    is_known = bool(confirmed and likely and likely[0] not in unconfirmed(divergence))
    where = f"another result at {divergence.op}"
    cause = (
        Cause(where, fault=Fault.POSSIBLE) if likely else Cause(f"{where}; {_UNKNOWN_CAUSE}", fault=Fault.UNEXPLAINED)
    )
    cause = (likely[0] if is_known else cause)._replace(confirmed=confirmed)
    values = divergence.attributes.get(divergence.attribute)
    greatest = None if divergence.leaf is None else divergence.leaf.greatest_absolute
    if values is None and greatest is not None:
        values = greatest.texts()
    tf1_value, port_value = values or ("", "")
    (tf1_op, port_op), drawing = (divergence.tf1, divergence.port), divergence.drawing
    if cause.fault is Fault.RANDOM_OP_OF_TF1 and drawing[0] is not None:
        tf1_op, tf1_value = drawing[0], ""
    elif cause.fault is Fault.RANDOM_OP_OF_PORT and drawing[1] is not None:
        port_op, port_value = drawing[1], ""
    elif cause.fault in (Fault.MASK, Fault.RANDOM_OP_ELSEWHERE):
        (tf1_op, port_op), tf1_value, port_value = drawing, "", ""
    elif cause.fault is Fault.SOFTMAX_MASK and divergence.masking is not None:
        (tf1_op, port_op), tf1_value, port_value = (each.op for each in divergence.masking), "", ""
    producer, user = divergence.producer, "" if port_op is None else _line_of(port_op)
    if producer is not None and (_line_of(producer) or not user):  # what is missing comes after it
        used = f", used at {user}" if user and user not in producer.line else ""
        port_op = replace(producer, line=producer.line + used)
        tf1_value = port_value = ""
    return replace(
        finding_of_cause(runner, kind, cause, place_of(tf1_op, tf1_value), place_of(port_op, port_value)),
        others=() if is_known else tuple(each.title for each in likely),
        count=divergence.count,
        rest_agrees=divergence.rest_agrees,
        is_exact=divergence.is_exact,
        is_of_weights=any(op is not None and op.type == "ReadVariableOp" for op in (divergence.tf1, port_op)),
    )


def _by_rounding(found: Found, runner: Runner, tf1: Outcome, port: Outcome, diagnosis: Diagnosis) -> Found | None:
    """Return a check that passes, if what it found is rounding; else None."""
    outputs = found.comparisons["outputs"]
    if found.comparisons.get(_UPDATES, True) and _is_rounding(runner.migration, port, outputs, diagnosis):
        greatest = greatest_absolute([outputs])
        words = f"outputs differ by rounding only: max |difference| {greatest:.2g}, and they agree in float64"
        summary = found.summary.replace(_in_one_line("outputs", outputs), words, 1)
        return replace(found, summary=summary, tensors=diagnosis.tensors)
    divergence = str(next(iter(diagnosis.divergences), ""))
    if found.noise is None or divergence in runner.faults or not _may_be_rounding(found, tf1):
        return None
    floor = runner.tf1.noise_floor(tf1)
    comparisons = _compare_within(runner.migration, tf1, port, floor)
    if not all(comparisons.values()):
        runner.faults |= {divergence} - {""}
        return None
    before, after = (
        "; ".join(_in_one_line(*each) for each in by_name.items()) for by_name in (found.comparisons, comparisons)
    )
    return replace(found, summary=found.summary.replace(before, after, 1), comparisons=comparisons, noise=floor)


def _may_be_rounding(found: Found, tf1: Outcome) -> bool:
    """Return whether no difference is greater than what a variant may show."""
    arrays = {"outputs": leaves_by_path(tf1.outputs), _UPDATES: leaves_by_path(tf1.changed)}
    for name, comparison in found.comparisons.items():
        for leaf in comparison.leaves:
            if leaf.ok:
                continue
            array = np.asarray(arrays[name].get(leaf.path, ()))
            if leaf.reason != "values" or leaf.greatest_absolute is None or not is_floating(array):
                return False
            if not (leaf.greatest_absolute.amount or 0.0) <= MULTIPLE * most_rounding(array):
                return False
    return True


def _remarks_on_run(migration: Migration, tf1: Outcome, port: Outcome, how: tuple[str, ...]) -> Iterator[str]:
    """Yield what a reader of the summary must know of how the programs ran."""
    yield from how
    yield from tf1.unordered
    if migration.dtype_policy is not None:
        yield f"port in {migration.dtype_policy}"
    if migration.strategy is not None:
        yield f"port on replicas, TF1 {'on the whole batch' if tf1.whole_batch else 'in as many towers'}"
    order = [op.op_seed for op in tf1.random_ops if op.run == 0]
    times = Counter(port.config.op_seeds)
    positions = [order.index(op_seed) for op_seed in times if op_seed in order]
    if positions != sorted(positions):
        yield "the port's random ops run in a different order; each drew what its counterpart in TF1 draws"
    if in_turn := sum(count for count in times.values() if count > 1):
        yield f"{in_turn} random ops of the port draw in turn what TF1 draws in a loop"
    if samples := nearer(port.changed, tf1.changed, tf1.of_batch):
        yield (
            f"{plural(len(samples), 'moving variance')} compared as of the batch (n): TF1 averages the variance of a "
            "sample (n - 1), the port that of the batch"
        )
    if samples := nearer(tf1.changed, port.changed, port.of_batch):
        yield (
            f"{plural(len(samples), 'moving variance')} compared as of the batch (n): the port averages the variance "
            "of a sample (n - 1), TF1 that of the batch"
        )


def _remarks_on_outputs(tf1: Outcome, count: int, *, is_measured: bool) -> Iterator[str]:
    """Yield how many outputs prove little."""
    vanishing = 0 if is_measured else count_vanishing(tf1.outputs)
    if vanishing:
        yield f"{vanishing} of {plural(count, 'output')} too near 0 to prove much"
    zeros = sum(not array.any() for array in float_arrays(tf1.outputs))
    if zeros and tf1.config.constant is None:  # where all weights are equal, a normalization gives zeros
        proves_nothing = f"{zeros} of {count} outputs are 0, so this check proves nothing about them"
        yield "every output is 0, so this check proves nothing" if zeros == count else proves_nothing
    if sum(bool(np.isnan(array).all()) for array in float_arrays(tf1.outputs)) == count:
        yield "every output is NaN, so this check proves nothing"


def _remarks_on_leaves(outputs: Comparison) -> Iterator[str]:
    """Yield in what outputs differ though they are equal."""
    for leaf in outputs.leaves:
        if leaf.ok and leaf.both_nan:
            yield f"{leaf.path}: {leaf.both_nan} of {plural(leaf.size, 'element')} NaN in both programs"
        if leaf.ok and leaf.actual.dtype != leaf.desired.dtype and "int" in f"{leaf.actual.dtype}":
            yield f"{leaf.path}: {leaf.desired.dtype} in TF1 and {leaf.actual.dtype} in the port, with equal values"


_OF_DIFFERENCE = 0.1  # a graph adds as eager code does, so it differs far less from the port than the port from TF1
_OF_ROUNDING = 1e-3  # of the tolerance: in float64, a difference by rounding all but vanishes


def _is_rounding(migration: Migration, port: Outcome, outputs: Comparison, diagnosis: Diagnosis) -> bool:
    """Return whether outputs differ by rounding only; not where the user says how close they must be.

    The graph that computes in float64 must be what the port computes: in float32, it has the port's outputs. The
    constants of both are in float32, so dividing by sqrt(2) differs from multiplying by 1 / sqrt(2) in the last place.
    """
    leaves = leaves_by_path(port.outputs)
    differing = [leaf for leaf in outputs.leaves if not leaf.ok]
    if not differing or not migration.measures_rounding:
        return False
    for leaf in differing:
        if any(tolerance.covers(leaf.path) for tolerance in migration.tolerances):
            return False
        greatest = leaf.greatest_absolute
        if leaf.reason != "values" or greatest is None:
            return False
        found, again = np.asarray(leaves[leaf.path]), diagnosis.as_written.get(leaf.path)
        if again is None or found.shape != again.shape:
            return False
        if not np.abs(found.astype(np.float64) - again).max() <= _OF_DIFFERENCE * (greatest.amount or 0.0):
            return False
        allowed = leaf.atol + leaf.rtol * abs(greatest.desired)
        of_constants = 0.5 * OutputNoise.of(found).ulp
        if not diagnosis.greatest.get(leaf.path, np.inf) <= max(_OF_ROUNDING * allowed, of_constants):
            return False
    return True


def place_of(op: TracedOp | None, value: str) -> Place | None:
    """Return an op of a program as a place, with the value there."""
    return None if op is None else Place(f"{op.name} ({op.type})", _line_of(op), value)


def _line_of(op: TracedOp) -> str:
    """Return the line that adds an op; empty if it is not known."""
    return "" if op.line == str(UNKNOWN) else op.line


def _diagnosis(runner: Runner, tf1: Outcome, port: Outcome, outputs: Comparison) -> tuple[Diagnosis, str]:
    """Return where the programs diverge; and why that could not be found, if it could not."""
    nothing = Diagnosis((), {}, {})
    differing = [leaf.path for leaf in outputs.leaves if not leaf.ok and leaf.reason not in _OF_STRUCTURE]
    if not differing or tf1.config.weights == "checkpoint":
        return nothing, ""
    try:
        return runner.diagnosis(port.config, differing), ""
    except UntracedPortError as error:
        return nothing, f"The first divergence is not named: {error}"
    except Exception as error:  # the difference is worth more than its place
        return nothing, f"The first divergence could not be found: {describe_error(error)}"


def _computed(outcome: Outcome) -> Mapping[str, Any]:
    loss = outcome.regularization_loss
    return {"outputs": outcome.outputs, **({} if loss is None else {"regularization_loss": loss})}


def _compare(runner: Runner, tf1: Outcome, port: Outcome) -> tuple[dict[str, Comparison], NoiseFloor | None]:
    """Return comparisons by name, and how far TF1's numbers move if that was measured.

    It is measured only if numbers differ by more than they move by being rounded to their dtype.
    """
    comparisons = _compare_within(runner.migration, tf1, port, runner.tf1.noise_floor(tf1, {}))
    if all(comparisons.values()):
        return comparisons, None
    floor = runner.tf1.noise_floor(tf1, IN_FLOAT64)
    return (comparisons if floor is None else _compare_within(runner.migration, tf1, port, floor)), floor


def _compare_within(
    migration: Migration, tf1: Outcome, port: Outcome, floor: NoiseFloor | None
) -> dict[str, Comparison]:
    policy, check_dtype = migration.policy_tolerance, migration.dtype_policy is None
    of_outputs: Callable[[str], Closeness]
    if policy is not None:
        of_outputs = policy.closeness(tf1.outputs)
    else:
        measured = None if floor is None else floor.closeness_of
        of_outputs = migration.output_tolerances.closeness(tf1.outputs, measured)
    of_updates = (lambda path: of_outputs("")) if floor is None else _of_updates(tf1, floor)
    found = compare_by_path(
        port.outputs,
        tf1.outputs,
        lambda path: of_outputs(path)._replace(equal_nan=True),
        check_dtype=check_dtype,
        check_width=False,
    )
    comparisons = {"outputs": _in_order_of_computation(found, tf1)}
    if any(updates := _comparable_updates(tf1, port)):
        comparisons[_UPDATES] = compare_by_path(*updates, of_updates, check_dtype=False)
    return comparisons


def _of_updates(tf1: Outcome, floor: NoiseFloor) -> Callable[[str], Closeness]:
    """Return how close the new values of variables must be, by path."""
    before = distinct_weights(tf1.config.scales)
    changes = {name: array - before[name] for name, array in tf1.changed.items() if name in before}
    by_rate = {f"[{name!r}]": _OF_RATE * greatest_of(change) for name, change in changes.items()}

    def closeness_of(path: str) -> Closeness:
        close = floor.closeness_of_update(path)
        return close._replace(atol=close.atol + by_rate.get(path, 0.0))

    return closeness_of


_OF_RATE = 1e-3  # of a change: programs round 1 minus a momentum differently, by 1e-4 of it if the momentum is 0.9997


def _comparable_updates(tf1: Outcome, port: Outcome) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the variables that a call of the port, and of TF1, changed, without those that say nothing of the port."""
    if not tf1.config.training:
        return port.changed, tf1.changed
    expected = tf1.changed | nearer(port.changed, tf1.changed, tf1.of_batch)
    found = port.changed | nearer(tf1.changed, port.changed, port.of_batch)
    # A session that trains may update more variables than the program says in UPDATE_OPS.
    return {name: array for name, array in found.items() if name in expected}, expected


def _in_order_of_computation(comparison: Comparison, tf1: Outcome) -> Comparison:
    """Return a comparison of outputs in TF1's order of computation, in which a fault is passed on."""
    positions = {path: origin.position for path, origin in tf1.origins.items()}
    return Comparison(tuple(sorted(comparison.leaves, key=lambda leaf: positions.get(leaf.path, math.inf))))


def _first_difference(comparison: Comparison, origins: Mapping[str, Origin], floor: NoiseFloor | None) -> str:
    """Return the first leaf that differs in full, and the others by path."""
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    verb = "differs" if len(differing) == 1 else "differ"
    lines = [
        f"{len(differing)} of {len(comparison.leaves)} {verb} (actual: port, desired: TF1); first:",
        str(differing[0]),
    ]
    if origin := origins.get(differing[0].path):
        lines.append(f"  computed in TF1 by {origin.name}, at {origin.caller}")
    if floor is not None and (noise := floor.outputs.get(differing[0].path)):
        lines.append(f"  noise floor of TF1 {noise.floor:.2g}, tolerance {noise.tolerance:.2g}")
    if len(differing) > 1:
        others = [
            f"{leaf.path} ({percent(leaf.mismatched, leaf.size)})" if leaf.size else leaf.path for leaf in differing[1:]
        ]
        lines.append(f"others: {', '.join(others)}")
    return "\n".join(lines)


def _in_one_line(name: str, comparison: Comparison) -> str:
    differing = comparison.first_divergence
    if differing is not None and differing.reason == "structure":
        tf1, port = (shorten(side.form, 60) for side in (differing.desired, differing.actual))
        return f"{name} differ in structure: {differing.path} is {tf1} (TF1), {port} (port)"
    if differing is not None:
        reason = "" if differing.reason == "values" else f" ({differing.reason})"
        return f"{name} differ; first: {differing.path}{reason}"
    greatest = greatest_absolute([comparison])
    return f"{name} identical" if greatest == 0 else f"{name} within {greatest:.2g}"
