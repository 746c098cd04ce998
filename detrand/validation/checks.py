"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

A check gets both programs' outcomes through `Runner` and returns a `Found`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from detrand.checkpoints.training_state import AVERAGE
from detrand.errors import ArgumentError, CheckpointError, MigrationError, VariableCreationError
from detrand.random_op_diff import diff_random_ops
from detrand.seeding.callsite import describe_error, line_of_user
from detrand.validation.compare_outcomes import compare_outcomes
from detrand.validation.diagnosis.causes import causes_of_training, describe_causes
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.precision import dtype_policy, variable_dtype
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port
from detrand.validation.programs.tf1 import count_overflowing
from detrand.validation.reference import CHECKPOINT, CONSTANT_MODE, CONSTANT_WEIGHTS, INFERENCE, TRAINING
from detrand.validation.results import CheckResult, Found
from detrand.validation.runner import Runner
from detrand.validation.training.compare import compare_trainings, read_as, updates_agree
from detrand.validation.training.port import train_port
from detrand.variables.comparison import compare_variables
from detrand.variables.creation import catch_and_raise_created_variables


def _variables_created_once(runner: Runner) -> Found:
    with dtype_policy(runner.migration.dtype_policy):
        return _created_once(Port(runner.migration))


def _created_once(port: Port) -> Found:
    port(training=False)
    try:
        with catch_and_raise_created_variables():
            port(training=False)
        # A branch that is built in training alone may create its variables now, but no later.
        port(training=True)
        with catch_and_raise_created_variables():
            port(training=True)
            port(training=False)
    except VariableCreationError as error:
        return Found(False, "the port creates variables when it is called again", str(error))
    return Found(True, "5 calls, no variable created after the first of its kind")


_NO_VARIABLES = (
    "the port shows no variables; those that a plain function closes over cannot be found: return a Keras layer, a "
    "model or a tf.Module that has them"
)


def _variables_match(runner: Runner) -> Found:
    dtype = variable_dtype(runner.migration.dtype_policy)
    train = runner.migration.train
    tf1 = {
        name: replace(
            spec,
            dtype=dtype if spec.dtype == "float32" else spec.dtype,
            # A port may freeze what no step trains, where TF1's optimizer is given a list of what it trains.
            trainable=None if spec.trainable and train is not None and not train.trains(name) else spec.trainable,
        )
        for name, spec in runner.tf1(INFERENCE).variables.items()
    }
    port = runner.port(INFERENCE).variables
    if not tf1 and not port:
        return Found(True, "neither program has variables")
    try:
        difference = compare_variables(tf1, port, name_map=runner.migration.name_map)
    except ArgumentError as error:  # of name_map, which is the migration's
        raise MigrationError(f"the variables of {runner.migration.name} cannot be paired: {error}") from error
    if difference.ok:
        kept = "" if dtype == "float32" else f", but for float32 in TF1, which is {dtype} in the port"
        return Found(True, f"{len(tf1)} variables: names, shapes, dtypes and trainable flags are equal{kept}")
    report = str(difference)
    if not port:
        return Found(False, f"{len(tf1)} variables in TF1, none in the port", f"{report}\n{_NO_VARIABLES}")
    return Found(False, report.splitlines()[0], report)


def _constant_weights(runner: Runner) -> Found:
    tf1 = runner.tf1(CONSTANT_WEIGHTS)
    how = f"all variables {tf1.config.constant:g}" if tf1.variables else "TF1 has no variables"
    found = compare_outcomes(runner, tf1, runner.port(tf1.config), how)
    own = runner.tf1_with_distinct_weights()
    if not tf1.variables or not _variables_match(runner).ok:
        return found
    if own is None:
        return replace(found, summary=f"{found.summary}; the golden file holds no other weights: record it anew")
    if count_overflowing(own.outputs):
        return replace(found, summary=f"{found.summary}; other weights would overflow")
    of_own = compare_outcomes(runner, own, runner.port(own.config))
    if of_own.ok:
        return replace(found, summary=f"{found.summary}; each variable its own values: {of_own.summary}")
    # It tells more than the other: where all weights are equal, much else is.
    return replace(of_own, summary=f"each variable its own values: {of_own.summary}; {found.summary}")


def _random_inference(runner: Runner) -> Found:
    return compare_outcomes(runner, runner.tf1(INFERENCE), runner.port(INFERENCE))


def _random_training(runner: Runner) -> Found:
    return _drawn_by_replicas(runner, TRAINING) or compare_outcomes(runner, runner.tf1(TRAINING), runner.port(TRAINING))


def _constant_mode(runner: Runner) -> Found:
    embedded = runner.embedded_port(CONSTANT_MODE)
    if embedded is not None:
        return compare_outcomes(runner, runner.tf1(CONSTANT_MODE), embedded, "in a Keras functional model")
    how = "called directly" + (": the port is no Keras layer" if runner.migration.strategy is None else "")
    return _drawn_by_replicas(runner, CONSTANT_MODE) or compare_outcomes(
        runner, runner.tf1(CONSTANT_MODE), runner.port(CONSTANT_MODE), how
    )


def _drawn_by_replicas(runner: Runner, config: RunConfig) -> Found | None:
    """Returns the result of a check that cannot be made: replicas draw numbers of their own, and TF1 has no towers."""
    runner.tf1(config)  # tells whether it has
    if not runner.not_towers or all(op.phase == "init" for op in runner.port(config).random_ops):
        return None
    summary = (
        f"each replica draws numbers of its own, and TF1 does not do so in towers: {runner.not_towers}; validate the "
        "port without the strategy, too"
    )
    return Found(True, summary, compared=False)


def _checkpoint(runner: Runner) -> Found:
    try:
        tf1 = runner.tf1(CHECKPOINT)
        port = runner.port_from_checkpoint(tf1)
    except CheckpointError as error:
        report = str(error)
        return Found(False, report.splitlines()[0], report)
    assert tf1.restored is not None
    count, unused = len(tf1.restored.port_names), tf1.restored.unused
    averages = sum(name.endswith(AVERAGE) for name in tf1.restored.port_names)
    how = [f"{count} variables from the checkpoint" + (f", {averages} of them moving averages" if averages else "")]
    if unused:
        how.append(f"it has {len(unused)} that the TF1 program has not: {_shortened(unused)}")
    return compare_outcomes(runner, tf1, port, *how)


_NOT_COMPARED = {
    "gradients": "gradients are not compared: the golden file was recorded without the dtype policy, which moves them",
    "learning_rate": "learning rates are not compared: an optimizer keeps none",
    "regularization_loss": "the port is of a kind that keeps no losses: port_loss must add what regularizes",
}


def _training_steps(runner: Runner) -> Found:
    drawn = _drawn_by_replicas(runner, TRAINING)
    if drawn is not None:
        return drawn
    migration = runner.migration
    # A port with other random ops than TF1 draws the same numbers in constant mode alone.
    tf1_outcome, port_outcome = runner.tf1(TRAINING), runner.port(TRAINING)
    op_seeds = port_outcome.config.op_seeds
    difference = "" if op_seeds else diff_random_ops(tf1_outcome.random_ops, port_outcome.random_ops)
    mode = "constant" if difference else "num_random_ops"
    batches, as_towers = runner.tf1_training(mode)
    trainings, summaries, details = {}, [], []
    likely: tuple[str, ...] = ()
    left_out = frozenset[str]()
    recorders = {}
    noise: dict[str, TrainingNoise | None] = {}
    for way, compiled, run in (("eagerly", False, "port"), ("in a tf.function", True, "port in a tf.function")):
        port = train_port(migration, batches, mode, as_towers, compiled=compiled, op_seeds=op_seeds)
        recorders[run] = port.recorder
        tf1 = read_as(as_towers, port.meant)
        recorders["tf1"] = tf1.recorder
        noise[way] = runner.training_noise(mode)
        comparison, left_out = compare_trainings(migration, port, tf1, noise=noise[way])
        drift = ""
        if not comparison or not updates_agree(migration, port, tf1):
            guided = train_port(migration, batches, mode, tf1, compiled=compiled, guided=True, op_seeds=op_seeds)
            guided_noise = runner.training_noise(mode, guided=True)
            found, _ = compare_trainings(migration, guided, tf1, guided=True, noise=guided_noise)
            if not comparison:
                trainings[f"{way}, left to itself"] = comparison
                drift = f"; left to itself, it drifts away: {comparison.summary}"
            if not (comparison and found):
                port, noise[way], comparison = guided, guided_noise, found
        trainings[way] = comparison
        summaries.append(f"{way}: {comparison.summary}{drift if comparison else ''}")
        if not comparison:
            differing = runner.audit().differing
            likely += causes_of_training(port, tf1, comparison, differing)
            details.append(f"{way} (actual: the port, desired: TF1): {comparison}")
    if difference:
        summaries.append("in constant mode, for the port's random ops are others")
    summaries += [_NOT_COMPARED[name] for name in sorted(left_out)]
    if (
        port.replicas > 1
        and not runner.not_towers
        and not port.meant.issuperset(tf1.recorder[0].get("moving_averages", ()))
    ):
        summaries.append("of moving averages the port keeps the first replica's, which are those of TF1's first tower")
    likely = tuple(dict.fromkeys(likely))
    if likely:
        details.insert(0, describe_causes(likely))
    return Found(
        not details,
        "; ".join(summaries),
        "\n\n".join(details),
        likely,
        trainings=trainings,
        training_noise={way: found for way, found in noise.items() if found is not None},
        computed={run: {step: recorder[step] for step in recorder.steps} for run, recorder in recorders.items()},
    )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


CHECKS: dict[str, Callable[[Runner], Found]] = {
    "variables-created-once": _variables_created_once,
    "variables-match": _variables_match,
    "constant-weights": _constant_weights,
    "random-inference": _random_inference,
    "random-training": _random_training,
    "constant-mode": _constant_mode,
    "checkpoint": _checkpoint,
    "training-steps": _training_steps,
}


# What a check cannot tell from a fault of its own: those that call a port several times need variables that last, and
# where one is missing, or training computes something else already, what follows from it differs, too.
DEPENDS_ON: dict[str, tuple[str, ...]] = {
    "constant-weights": ("variables-created-once", "variables-match"),
    "random-inference": ("variables-match",),
    "random-training": ("variables-match",),
    "constant-mode": ("variables-match",),
    "checkpoint": ("variables-created-once", "variables-match"),
    "training-steps": ("variables-created-once", "variables-match", "random-training"),
}


def checks_of(migration: Migration) -> list[str]:
    """Return the names of the checks that apply to a migration, in order."""
    left_out = {"checkpoint": migration.checkpoint is None, "training-steps": migration.train is None}
    return [name for name in CHECKS if not left_out.get(name)]


def run_check(name: str, runner: Runner, before: Sequence[CheckResult] = ()) -> CheckResult:
    """Run one check of `CHECKS`; an exception that the port raises fails it.

    Args:
      name: name of the check.
      runner: runs the programs.
      before: results of the checks that ran before. The result names those that it depends on and that failed.

    Raises:
      MigrationError: if there is nothing to check: the TF1 program or the factory of the port raises.
    """
    started = time.perf_counter()
    found = _with_dependencies(name, _found(name, runner), [check for check in before if not check.ok])
    return CheckResult(name=name, seconds=time.perf_counter() - started, **vars(found))


def _found(name: str, runner: Runner) -> Found:
    try:
        return CHECKS[name](runner)
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
    roots = [earlier.name for earlier in failed if earlier.name in DEPENDS_ON.get(name, ())]
    if not roots:
        return found
    them, first = " and ".join(roots), "that" if len(roots) == 1 else "those"
    fix_first = f"Depends on {them}, which failed. Fix {first} first."
    details = "" if found.ok else f"{fix_first}\n\n{found.details}"
    return replace(found, summary=f"after {them} failed: {found.summary}", details=details)
