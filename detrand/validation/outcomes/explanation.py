"""`compare_outcomes`: the comparison of what both programs computed in one run config, and its explanation.

A difference is explained by the first divergence, by likely causes, and by random ops that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.metrics import OutputMetric, metric_of
from detrand.comparison.values import Comparison, leaves_by_path
from detrand.random_op_diff import describe_source, describe_uncontrolled, describe_without_counterpart
from detrand.seeding.callsite import describe_error
from detrand.seeding.streams import RandomOp
from detrand.steps.comparison import greatest_absolute
from detrand.validation.audit.hyperparameters import INITIALIZER, OPTIMIZER, RATE, REGULARIZER, layer_of
from detrand.validation.diagnosis.causes.averages import momenta
from detrand.validation.diagnosis.causes.cause import Cause, describe_causes, of_hyperparameter, of_values
from detrand.validation.diagnosis.causes.computation import causes
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.search import Diagnosis
from detrand.validation.migration import Migration
from detrand.validation.outcomes.comparison import (
    OF_STRUCTURE,
    UPDATES,
    comparable_updates,
    comparisons_of,
    comparisons_within,
    first_difference,
    in_one_line,
    is_rounding,
    may_be_rounding,
    remarks_on_leaves,
    remarks_on_outputs,
    remarks_on_run,
)
from detrand.validation.outcomes.findings import UNKNOWN_CAUSE, explained_by_variables, finding_of, finding_of_cause
from detrand.validation.programs.counterparts import without_counterpart
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import Outcome, UntracedPortError
from detrand.validation.programs.tf1 import float_arrays
from detrand.validation.reference import DISTINCT_WEIGHTS, INFERENCE
from detrand.validation.results import AuditedHyperparameter, Fault, Finding, Found, Place
from detrand.validation.runner import Runner


def compare_outcomes(runner: Runner, tf1: Outcome, port: Outcome, *how: str, explain: bool = True) -> Found:
    """Compare what the two programs computed in one config, with remarks on it, and explain a difference if asked.

    The regularization loss is left out, because regularizers-match compares it.
    """
    migration = runner.migration
    comparisons, floor = comparisons_of(runner, tf1, port)
    if [leaf.reason for leaf in comparisons["outputs"].leaves] == ["nothing to compare"]:
        return Found(True, "every output is empty, so there is nothing to compare", compared=False)
    summaries = [in_one_line(name, comparison) for name, comparison in comparisons.items()]
    summaries += remarks_on_run(migration, tf1, port, how)
    summaries += remarks_on_outputs(tf1, len(comparisons["outputs"].leaves), is_measured=migration.measures_rounding)
    summaries += remarks_on_leaves(comparisons["outputs"])
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


def _computed(outcome: Outcome) -> Mapping[str, Any]:
    loss = outcome.regularization_loss
    return {"outputs": outcome.outputs, **({} if loss is None else {"regularization_loss": loss})}


def _explained(found: Found, runner: Runner, tf1: Outcome, port: Outcome) -> Found:
    """Return what a check found with an explanation of the difference; it passes if that is rounding."""
    outputs = found.comparisons["outputs"]
    diagnosis, not_found = _diagnosis(runner, tf1, port, outputs)
    if by_rounding := _by_rounding(found, runner, tf1, port, diagnosis):
        return by_rounding
    random_ops, of_draws = list[Cause](), list[Finding]()
    if tf1.config.mode == "num_random_ops" and not _explained_without_draws(diagnosis.divergences):
        random_ops, of_draws = _without_counterpart(runner, tf1, port)
    # Both programs have run with the same weights, and regularizers add to the loss only.
    hyperparameters = [each for each in runner.audit.differing if each.name not in (INITIALIZER, REGULARIZER)]
    draws_numpy = not runner.migration.seed_numpy and (tf1.draws_numpy or port.draws_numpy)
    of_averages = list(findings_of_averages(runner, tf1, port))
    divergence = next(iter(diagnosis.divergences), None)
    likely = causes(
        divergence,
        outputs.first_divergence,
        None,
        hyperparameters,
        draws_numpy=draws_numpy,
        random_ops=random_ops,
    )
    titles = tuple(dict.fromkeys([*(each.title for each in likely), *(each.title for each in of_averages if outputs)]))
    divergences = tuple(map(str, diagnosis.divergences))
    details = [*divergences, describe_causes(titles) if titles else "", not_found, *_differences(found, tf1, port)]
    summaries = [found.summary, *(each.title for each in random_ops[:1])]
    if divergence is not None:
        summaries.append(f"first divergence at {divergence.op}")

    findings = [
        finding_of(runner, each, causes(each, hyperparameters=hyperparameters)) for each in diagnosis.divergences
    ]
    findings = list(explained_by_variables(runner, diagnosis.divergences, findings))
    rest = causes(None, outputs.first_divergence, None, hyperparameters, draws_numpy=draws_numpy)
    findings, of_draws = _without_consequences_of_draws(runner, port, findings, of_draws)
    findings[:0] = [*(finding_of_cause(runner, "computation", each) for each in rest), *of_draws]
    if _has_idle_dropouts(runner.audit.hyperparameters, port):
        findings = [
            replace(each, remedy=_PASS_TRAINING) if each.fault is Fault.RANDOM_OP_OF_TF1 else each for each in findings
        ]
    findings += of_averages
    if any(leaf.reason in OF_STRUCTURE for leaf in outputs.leaves):
        remedy = "return the outputs of both programs in the same structure"
        findings.insert(0, Finding("computation", in_one_line("outputs", outputs), remedy=remedy))
    findings = findings or _without_cause(runner, found, hyperparameters)
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


def _differences(found: Found, tf1: Outcome, port: Outcome) -> list[str]:
    """Return the first difference of each comparison in words, and the draws that no scope controls."""
    differences = []
    for name, comparison in found.comparisons.items():
        if not comparison:
            origins, floor = (tf1.origins, found.noise) if name == "outputs" else ({}, None)
            differences.append(f"{name}: {first_difference(comparison, origins, floor)}")
    if tf1.config.weights == "initial":
        differences.append(describe_uncontrolled(tf1.uncontrolled, port.uncontrolled, port_name="the port"))
    return differences


def _without_consequences_of_draws(
    runner: Runner, port: Outcome, findings: list[Finding], of_draws: list[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Return findings of ops and of random ops without those of one kind that the other kind explains."""
    if _explain_draws(findings, runner.audit.hyperparameters, port):
        return findings, []
    if not any(each.fault is Fault.DRAWN_SHAPE for each in of_draws):
        return findings, of_draws
    # The ops that draw differ because of the shape that they draw.
    unknown = [each for each in findings if each.fault is Fault.UNEXPLAINED]
    consequences = {Fault.UNEXPLAINED}
    if runner.agree(runner.tf1.outcome(INFERENCE), runner.port(INFERENCE)):  # other ops and axes compute the same
        consequences |= {Fault.OPS, Fault.AXES}
    findings = [each for each in findings if each.fault not in consequences]
    if len(unknown) == len(of_draws):  # these have the lines of the layers, too
        of_draws = [replace(each, port=other.port) for each, other in zip(of_draws, unknown, strict=True)]
    return findings, of_draws


def _without_cause(runner: Runner, found: Found, hyperparameters: Sequence[AuditedHyperparameter]) -> list[Finding]:
    """Return the findings of a difference that no op explains."""
    name, comparison = next((name, each) for name, each in found.comparisons.items() if not each)
    title = in_one_line(name, comparison)
    if runner.framework.no_graph:
        return _untraced(runner, title, hyperparameters)
    return [Finding("computation", f"{title}; {UNKNOWN_CAUSE}", fault=Fault.UNEXPLAINED)]


def _diagnosis(runner: Runner, tf1: Outcome, port: Outcome, outputs: Comparison) -> tuple[Diagnosis, str]:
    """Return where the programs diverge; and why that could not be found, if it could not."""
    nothing = Diagnosis((), {}, {})
    differing = [leaf.path for leaf in outputs.leaves if not leaf.ok and leaf.reason not in OF_STRUCTURE]
    if not differing or tf1.config.weights == "checkpoint":
        return nothing, ""
    try:
        return runner.diagnosis(port.config, differing), ""
    except UntracedPortError as error:
        return nothing, f"The first divergence is not named: {error}"
    except Exception as error:  # the difference is worth more than its place
        return nothing, f"The first divergence could not be found: {describe_error(error)}"


def _by_rounding(found: Found, runner: Runner, tf1: Outcome, port: Outcome, diagnosis: Diagnosis) -> Found | None:
    """Return a check that passes, if what it found is rounding; else None."""
    outputs = found.comparisons["outputs"]
    if found.comparisons.get(UPDATES, True) and is_rounding(runner.migration, port, outputs, diagnosis):
        greatest = greatest_absolute([outputs])
        words = f"outputs differ by rounding only: max |difference| {greatest:.2g}, and they agree in float64"
        summary = found.summary.replace(in_one_line("outputs", outputs), words, 1)
        return replace(found, summary=summary, tensors=diagnosis.tensors)
    divergence = next(iter(diagnosis.divergences), None)
    if found.noise is None or runner.is_beyond_rounding(divergence) or not may_be_rounding(found, tf1):
        return None
    floor = runner.tf1.noise_floor(tf1)
    comparisons = comparisons_within(runner.migration, tf1, port, floor)
    if not all(comparisons.values()):
        runner.note_beyond_rounding(divergence)
        return None
    before, after = (
        "; ".join(in_one_line(*each) for each in by_name.items()) for by_name in (found.comparisons, comparisons)
    )
    return replace(found, summary=found.summary.replace(before, after, 1), comparisons=comparisons, noise=floor)


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
    title = finding.title.removesuffix(f"; {UNKNOWN_CAUSE}")
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


_PASS_TRAINING = "call the port's dropout in training mode: it has TF1's rate, but draws nothing"


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
    """Yield a finding for each variable that a call changes differently, where it is known how it differs."""
    comparisons, _ = comparisons_of(runner, tf1, port)
    if comparisons.get(UPDATES, True):
        return
    only_known = not comparisons["outputs"]
    of_port, of_tf1 = comparable_updates(tf1, port)
    before = distinct_weights(tf1.config.scales)
    names = before.keys() & of_tf1.keys()
    changed, expected = ({name: of[name] - before[name] for name in of if name in names} for of in (of_port, of_tf1))
    of_tf1_lines, port_names = runner.lines_of_variables[0], runner.compared_variables().port_names
    causes_of = momenta(changed, expected, before, runner.audit.differing, only_known=only_known)
    never = [name for name in of_tf1 if name not in of_port]
    if never and not only_known:
        title = f"the port never updates {and_more(never, 4)}, which each step of TF1 updates"
        remedy = "update these variables in the port: call its layer in training mode, or assign to them"
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
