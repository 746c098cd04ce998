"""The checks that run both programs once, with the same weights and random numbers, and compare what they compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detrand.arguments import and_more, plural
from detrand.checkpoints.graph_files import GraphFile
from detrand.checkpoints.training_state import AVERAGE
from detrand.comparison.structures import flatten
from detrand.comparison.values import compare
from detrand.errors import CheckpointError, MigrationError
from detrand.packages import needed_by
from detrand.seeding.callsite import describe_error
from detrand.validation.checks.seeds import findings_of_seeds
from detrand.validation.outcomes.explanation import compare_outcomes, findings_of_averages
from detrand.validation.programs.activations import describe_activations
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import (
    run_port_from_checkpoint,
    run_port_in_functional_model,
)
from detrand.validation.programs.tf1 import count_overflowing, float_arrays
from detrand.validation.reference import (
    CHECKPOINT,
    CONSTANT_MODE,
    CONSTANT_WEIGHTS,
    DISTINCT_TRAINING,
    DISTINCT_WEIGHTS,
    INFERENCE,
    TRAINING,
)
from detrand.validation.results import Finding, Found
from detrand.validation.runner import Runner


def as_recorded(runner: Runner) -> Found:
    """Compare what TF1's graph computes here with what it computed in TensorFlow 1."""
    migration = runner.migration
    assert isinstance(migration.tf1, GraphFile)
    original = migration.tf1.original
    assert original is not None
    if migration.seed != original.seed:
        given, recorded = migration.seed, original.seed
        reason = f"the seed is {given}, but TF1 was recorded with {recorded}: pass Migration(seed={recorded})"
        return Found(True, reason, compared=False)
    if not compare(migration.first_batch(), original.inputs, 0.0, 0.0, equal_nan=True):
        reason = "the inputs are not the recorded ones: pass those in assets.extra/detrand.npz"
        return Found(True, reason, compared=False)
    configs = {"inference": INFERENCE, "training": TRAINING}
    if migration.checkpoint == migration.tf1.checkpoint:
        configs["checkpoint"] = CHECKPOINT
    of_version = f"TensorFlow {original.tensorflow}"
    for run, config in configs.items():
        if run in original.outputs:
            tf1 = runner.tf1.outcome(config)
            found = compare_outcomes(runner, tf1, replace(tf1, outputs=original.outputs[run]), explain=False)
            if not found.ok:
                title = f"TF1's graph computes other numbers here than in {of_version}"
                finding = Finding("original", f"{title} ({run})")
                details = str(found.comparisons["outputs"])
                return replace(found, summary=f"{title}: {run}: {found.summary}", details=details, findings=(finding,))
    return Found(True, f"TF1's graph computes here what it computed in {of_version}: {', '.join(original.outputs)}")


def constant_weights(runner: Runner) -> Found:
    """Compare the outputs where all weights are equal, and where each is distinct."""
    tf1 = runner.tf1.outcome(CONSTANT_WEIGHTS)
    of_distinct = _compare_with_distinct_weights(runner, DISTINCT_WEIGHTS)
    # Distinct weights explain more: where all weights are equal, many other numbers are equal, too.
    found = compare_in(runner, CONSTANT_WEIGHTS, explain=of_distinct is None or of_distinct.ok)
    about = f"all variables {tf1.config.constant:g}" if tf1.variables else "TF1 has no variables"
    found = _together(replace(found, summary=f"{about}: {found.summary}"), of_distinct)
    return found if of_distinct is None else _with_other_inputs(runner, found)


def _with_other_inputs(runner: Runner, found: Found) -> Found:
    """Return what a check found with what other inputs show, where those of the migration are weak."""
    if not found.ok or not runner.weaknesses:
        return found
    config = runner.tf1.outcome(DISTINCT_WEIGHTS).config
    try:
        tf1 = runner.probe.tf1.outcome(config)
        if not all(np.isfinite(array).all() for array in float_arrays(tf1.outputs)):
            raise MigrationError("TF1's outputs overflow")
        of_probe = compare_in(runner.probe, config)
    except Exception as error:  # a model may take no other inputs
        return replace(found, summary=f"{found.summary}; not compared with other inputs: {describe_error(error)}")
    if of_probe.ok:
        summary = f"{found.summary}; with other inputs: {of_probe.summary}"
        return replace(found, summary=summary, compared=found.compared or of_probe.compared)
    weak = "; ".join(each.words for each in runner.weaknesses)
    return with_reason(of_probe, f"with other inputs ({weak})", found)


def with_reason(of_probe: Found, reason: str, found: Found) -> Found:
    """Return what a probe found, which fails a check that found nothing by itself."""
    findings = [
        replace(each, confirmed=f"{each.confirmed}; seen {reason}" if each.confirmed else "")
        for each in of_probe.findings
    ]
    return replace(of_probe, summary=f"{reason}: {of_probe.summary}; {found.summary}", findings=tuple(findings))


def random_training(runner: Runner) -> Found:
    """Compare the outputs in training, and what a call changes."""
    found = compare_in(runner, TRAINING)
    of_seeds = tuple(findings_of_seeds(runner))
    # Replicas have their own moving averages, which differ from the towers'.
    if runner.migration.strategy is None and found.comparisons:
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
    found = compare_in(runner, config)
    in_inference = runner.tf1.outcome(DISTINCT_WEIGHTS).activations
    of_activations = describe_activations(tf1.activations, in_inference) if found.ok else ()
    return replace(found, summary="; ".join([f"distinct weights: {found.summary}", *of_activations]))


def _together(found: Found, of_distinct: Found | None) -> Found:
    """Return what two comparisons found, the second one with distinct weights."""
    if of_distinct is None or not (found.compared or of_distinct.comparisons):
        return found
    if of_distinct.ok:
        return replace(found, summary=f"{found.summary}; {of_distinct.summary}")
    return replace(of_distinct, summary=f"{of_distinct.summary}; {found.summary}")


def constant_mode(runner: Runner) -> Found:
    """Compare the outputs in training of a functional model around the port, where all ops draw the same numbers."""
    if runner.migration.strategy is not None:  # the functional model would be made outside of the replicas
        return compare_in(runner, CONSTANT_MODE, "called directly")
    outputs = runner.port(TRAINING).outputs
    if any(type(leaf) in (bool, int, float, complex, str) for leaf in flatten(outputs)):
        return compare_in(runner, CONSTANT_MODE, "called directly: a Keras functional model returns tensors only")
    tf1, op_seeds = runner.tf1.outcome(CONSTANT_MODE), runner.op_seeds_of_loops()
    in_model = run_port_in_functional_model(runner.migration, tf1, runner.tf1.shapes(), op_seeds)
    if in_model is None:
        return compare_in(runner, CONSTANT_MODE, "called directly: the port is not a Keras layer")
    return compare_outcomes(runner, tf1, in_model, "in a Keras functional model")


def compare_in(runner: Runner, config: RunConfig, *how: str, explain: bool = True) -> Found:
    """Compare both programs in a run config; see `compare_outcomes`."""
    tf1 = runner.tf1.outcome(config)
    not_compared = drawn_by_replicas(runner, config)
    return not_compared or compare_outcomes(runner, tf1, runner.port(tf1.config), *how, explain=explain)


def drawn_by_replicas(runner: Runner, config: RunConfig) -> Found | None:
    """Return the result of a check that cannot compare: replicas draw their own numbers, and TF1 has no towers."""
    tf1 = runner.tf1.outcome(config)
    if not tf1.whole_batch or all(op.phase == "init" for op in runner.port(tf1.config).random_ops):
        return None
    summary = (
        f"each replica draws its own numbers, but TF1 runs on the whole batch: {tf1.whole_batch}; validate the port "
        "without the strategy as well"
    )
    return Found(True, summary, compared=False)


def checkpoint(runner: Runner) -> Found:
    """Compare the outputs with the weights of a checkpoint."""
    try:
        tf1 = runner.tf1.outcome(CHECKPOINT)
    except CheckpointError as error:
        remedy = (
            "pass a checkpoint of the whole program, and build the program with the arguments with which it was "
            "trained; -v lists what does not fit"
        )
        return _not_restored(error, remedy if error.does_not_fit else "")
    try:
        with needed_by("Reading a checkpoint"):
            port = run_port_from_checkpoint(runner.migration, tf1)
    except CheckpointError as error:
        return _not_restored(error, "")
    assert tf1.restored is not None
    names, unused = tf1.restored.tf1_names, tf1.restored.unused
    averages = sum(name.endswith(AVERAGE) for name in names)
    of_them = f", {averages} of them moving averages" if averages else ""
    how = [f"{plural(len(names), 'variable')} from the checkpoint{of_them}"]
    if unused:
        how.append(f"not in the TF1 program: {and_more(unused, 3)}")
    return compare_outcomes(runner, tf1, port, *how)


def _not_restored(error: CheckpointError, remedy: str) -> Found:
    """Return what the check found if a checkpoint cannot be restored, given what to do about it."""
    title = str(error).splitlines()[0]
    return Found(False, title, str(error), findings=(Finding("checkpoint", title, remedy=remedy),))
