"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

A check runs both programs through a `Runner` and returns what it `Found`. `run_check` makes a `CheckResult` of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from detrand.arguments import and_more, plural
from detrand.checkpoints.training_state import AVERAGE
from detrand.errors import ArgumentError, CheckpointError, MigrationError, VariableCreationError
from detrand.random_op_diff import diff_random_ops
from detrand.seeding.callsite import describe_error, line_of_user
from detrand.steps.comparison import StepsComparison
from detrand.validation.compare_outcomes import compare_outcomes
from detrand.validation.diagnosis.causes import causes_of_training, describe_causes
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.precision import dtype_policy, variable_dtype
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, run_port_from_checkpoint, run_port_in_functional_model
from detrand.validation.programs.tf1 import count_overflowing
from detrand.validation.reference import (
    CHECKPOINT,
    CONSTANT_MODE,
    CONSTANT_WEIGHTS,
    DISTINCT_WEIGHTS,
    INFERENCE,
    TRAINING,
)
from detrand.validation.results import CheckResult, Found
from detrand.validation.runner import Runner
from detrand.validation.training.compare import compare_trainings, updates_agree, with_moving_averages_of
from detrand.validation.training.port import train_port
from detrand.validation.training.steps import Training
from detrand.variables.comparison import compare_variables
from detrand.variables.creation import catch_and_raise_created_variables


def _variables_created_once(runner: Runner) -> Found:
    with dtype_policy(runner.migration.dtype_policy):
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


def _variables_match(runner: Runner) -> Found:
    dtype = variable_dtype(runner.migration.dtype_policy)
    train = runner.migration.train
    tf1 = {
        name: replace(
            spec,
            dtype=dtype if spec.dtype == "float32" else spec.dtype,
            # A port may freeze a variable that no step trains because of TrainStep's var_list.
            trainable=None if spec.trainable and train is not None and not train.trains(name) else spec.trainable,
        )
        for name, spec in runner.tf1(INFERENCE).variables.items()
    }
    port = runner.port(INFERENCE).variables
    if not tf1 and not port:
        return Found(True, "neither program has variables")
    try:
        difference = compare_variables(tf1, port, name_map=runner.migration.name_map)
    except ArgumentError as error:  # name_map belongs to the migration
        raise MigrationError(f"the variables of {runner.migration.name} cannot be paired: {error}") from error
    count = plural(len(tf1), "variable")
    if difference.ok:
        policy = "" if dtype == "float32" else f" (float32 in TF1 is {dtype} in the port)"
        return Found(True, f"{count}: names, shapes, dtypes and trainable flags are equal{policy}")
    report = str(difference)
    if not port:
        return Found(False, f"{count} in TF1, none in the port", f"{report}\n{_NO_VARIABLES}")
    return Found(False, report.splitlines()[0], report)


def _constant_weights(runner: Runner) -> Found:
    tf1 = runner.tf1(CONSTANT_WEIGHTS)
    found = compare_outcomes(runner, tf1, runner.port(tf1.config))
    distinct = runner.tf1(DISTINCT_WEIGHTS)
    if not tf1.variables:
        return replace(found, summary=f"TF1 has no variables: {found.summary}")
    found = replace(found, summary=f"all variables {tf1.config.constant:g}: {found.summary}")
    if not _variables_match(runner).ok:
        return found
    if count_overflowing(distinct.outputs):
        return replace(found, summary=f"{found.summary}; not compared with distinct weights, which overflow")
    of_distinct = compare_outcomes(runner, distinct, runner.port(distinct.config))
    if of_distinct.ok:
        return replace(found, summary=f"{found.summary}; distinct weights: {of_distinct.summary}")
    # Distinct weights show more: where all weights are equal, many other numbers are equal, too.
    return replace(of_distinct, summary=f"distinct weights: {of_distinct.summary}; {found.summary}")


def _random_inference(runner: Runner) -> Found:
    return compare_outcomes(runner, runner.tf1(INFERENCE), runner.port(INFERENCE))


def _random_training(runner: Runner) -> Found:
    return _drawn_by_replicas(runner, TRAINING) or compare_outcomes(runner, runner.tf1(TRAINING), runner.port(TRAINING))


def _constant_mode(runner: Runner) -> Found:
    # With a strategy the functional model would be made outside of its replicas.
    in_model = (
        run_port_in_functional_model(runner.migration, CONSTANT_MODE) if runner.migration.strategy is None else None
    )
    if in_model is not None:
        return compare_outcomes(runner, runner.tf1(CONSTANT_MODE), in_model, "in a Keras functional model")
    how = "called directly" + (": the port is not a Keras layer" if runner.migration.strategy is None else "")
    return _drawn_by_replicas(runner, CONSTANT_MODE) or compare_outcomes(
        runner, runner.tf1(CONSTANT_MODE), runner.port(CONSTANT_MODE), how
    )


def _drawn_by_replicas(runner: Runner, config: RunConfig) -> Found | None:
    """Return the result of a check that cannot compare: replicas draw their own numbers, and TF1 has no towers."""
    whole_batch = runner.tf1(config).whole_batch
    if not whole_batch or all(op.phase == "init" for op in runner.port(config).random_ops):
        return None
    summary = (
        f"each replica draws its own numbers, but TF1 runs on the whole batch: {whole_batch}; validate the port "
        "without the strategy as well"
    )
    return Found(True, summary, compared=False)


def _checkpoint(runner: Runner) -> Found:
    try:
        tf1 = runner.tf1(CHECKPOINT)
        port = run_port_from_checkpoint(runner.migration, tf1)
    except CheckpointError as error:
        report = str(error)
        return Found(False, report.splitlines()[0], report)
    assert tf1.restored is not None
    names, unused = tf1.restored.port_names, tf1.restored.unused
    averages = sum(name.endswith(AVERAGE) for name in names)
    of_them = f", {averages} of them moving averages" if averages else ""
    how = [f"{plural(len(names), 'variable')} from the checkpoint{of_them}"]
    if unused:
        how.append(f"not in the TF1 program: {and_more(unused, 3)}")
    return compare_outcomes(runner, tf1, port, *how)


# Summaries of what one of the programs cannot compute, by the name under which it would be recorded.
_NOT_COMPARED = {
    "gradients": "gradients not compared: the golden file was recorded without the dtype policy, which rounds them",
    "learning_rate": "learning rates not compared: the optimizer does not keep one",
    "regularization_loss": "the port has no losses attribute: port_loss must add the regularization losses",
}


def _training_steps(runner: Runner) -> Found:
    not_compared = _drawn_by_replicas(runner, TRAINING)
    if not_compared is not None:
        return not_compared
    # A port whose random ops differ from TF1's draws the same numbers only in constant mode.
    tf1_outcome, port_outcome = runner.tf1(TRAINING), runner.port(TRAINING)
    op_seeds = port_outcome.config.op_seeds
    constant = not op_seeds and bool(diff_random_ops(tf1_outcome.random_ops, port_outcome.random_ops))
    mode = "constant" if constant else "num_random_ops"
    eager = _train(runner, mode, op_seeds, compiled=False)
    compiled = _train(runner, mode, op_seeds, compiled=True)
    executions = {"eagerly": eager, "in a tf.function": compiled}

    summaries = [f"{how}: {execution.summary}" for how, execution in executions.items()]
    if constant:
        summaries.append("in constant mode, because the port's random ops differ")
    summaries += [_NOT_COMPARED[name] for name in sorted(eager.left_out | compiled.left_out)]
    averages = compiled.tf1.recorder[0].get("moving_averages", ())
    if compiled.port.replicas > 1 and not tf1_outcome.whole_batch and not compiled.port.averaged.issuperset(averages):
        summaries.append("the port keeps the moving averages of the first replica; TF1's are those of the first tower")
    details = [
        f"{how} (actual: port, desired: TF1): {execution.comparison}"
        for how, execution in executions.items()
        if not execution.comparison
    ]
    likely = tuple(dict.fromkeys(cause for execution in executions.values() for cause in execution.causes(runner)))
    trainings = {}
    for how, execution in executions.items():
        if not execution.unguided:
            trainings[f"{how}, left to itself"] = execution.unguided
        trainings[how] = execution.comparison
    recorders = {
        "tf1": compiled.tf1.recorder,
        "port": eager.unguided_port.recorder,
        "port in a tf.function": compiled.unguided_port.recorder,
    }
    return Found(
        not details,
        "; ".join(summaries),
        "\n\n".join([describe_causes(likely), *details] if likely else details),
        likely,
        trainings=trainings,
        training_noise={how: execution.noise for how, execution in executions.items() if execution.noise is not None},
        computed={run: {step: recorder[step] for step in recorder.steps} for run, recorder in recorders.items()},
    )


@dataclass(frozen=True)
class _Execution:
    """The port, trained in one way of executing, beside TF1.

    Attributes:
      port: the training of the port that counts: left to itself or, if that differs, guided.
      tf1: the training of TF1, with moving averages read as the port's are.
      comparison: the comparison of the two.
      noise: the noise floor of that comparison; None if it was not measured.
      unguided_port: the training of the port that is left to itself.
      unguided: the comparison of that training.
      left_out: names that are not compared, because one of the programs does not know them.
    """

    port: Training
    tf1: Training
    comparison: StepsComparison
    noise: TrainingNoise | None
    unguided_port: Training
    unguided: StepsComparison
    left_out: frozenset[str]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        if self.comparison and not self.unguided:
            return f"{self.comparison.summary}; left to itself, the port drifts: {self.unguided.summary}"
        return self.comparison.summary

    def causes(self, runner: Runner) -> tuple[str, ...]:
        """Return the likely causes of the first difference; none if nothing differs."""
        if self.comparison:
            return ()
        return causes_of_training(self.port, self.tf1, self.comparison, runner.audit().differing)


def _train(runner: Runner, mode: str, op_seeds: tuple[int, ...], *, compiled: bool) -> _Execution:
    """Train the port left to itself, and guided by TF1's variables in each step if that differs."""
    migration = runner.migration
    batches, as_towers = runner.reference.training(mode)
    port = train_port(migration, batches, mode, as_towers, compiled=compiled, op_seeds=op_seeds)
    tf1 = with_moving_averages_of(as_towers, port.averaged)
    noise = runner.training_noise(mode)
    comparison, left_out = compare_trainings(migration, port, tf1, noise=noise)
    unguided = _Execution(port, tf1, comparison, noise, port, comparison, left_out)
    if comparison and updates_agree(migration, port, tf1):
        return unguided
    guided = train_port(migration, batches, mode, tf1, compiled=compiled, guided=True, op_seeds=op_seeds)
    guided_noise = runner.training_noise(mode, guided=True)
    of_guided, _ = compare_trainings(migration, guided, tf1, guided=True, noise=guided_noise)
    if comparison and of_guided:
        return unguided
    return replace(unguided, port=guided, comparison=of_guided, noise=guided_noise)


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


# A fault that one of these checks finds also makes the check that depends on it fail: a check that calls a port several
# times needs variables that last, and wrong variables or wrong outputs have consequences in every later check.
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
