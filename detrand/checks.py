"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

A check gets both programs' outcomes through `Runs`, which runs a program once for each setting however many
checks ask, and returns a `CheckResult`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detrand.causes import Evidence, causes, describe_causes
from detrand.comparison import Comparison, compare
from detrand.errors import CheckpointError, MigrationError, VariableCreationError
from detrand.execution import (
    Outcome,
    Port,
    Setting,
    cached,
    count_vanishing,
    run_port,
    run_port_from_checkpoint,
    run_port_in_functional_model,
)
from detrand.migration import Migration, describe_error
from detrand.optimizer_slots import AVERAGE
from detrand.parting import Parting, find_parting
from detrand.port_training import make_port_optimizer, train_port
from detrand.random_op_diff import describe_uncontrolled, diff_random_ops
from detrand.step_comparison import StepsComparison
from detrand.tf1_side import CHECKPOINT, CONSTANT_MODE, CONSTANT_WEIGHTS, INFERENCE, TRAINING, TF1Sessions, TF1Side
from detrand.training import Training, compare_trainings
from detrand.training_causes import causes_of_training
from detrand.variable_creation import catch_and_raise_created_variables
from detrand.variables import compare_variables


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
      name: name of the check.
      ok: whether it passed.
      summary: one line for a table.
      details: what a person needs to find the fault; empty if it passed.
      causes: what usually causes such a difference, the likeliest first.
      comparisons: what was compared numerically, by name.
      trainings: what was compared step by step: how the port was trained -> comparison.
      seconds: how long it took, in seconds.
    """

    name: str
    ok: bool
    summary: str
    details: str = ""
    causes: tuple[str, ...] = ()
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    trainings: dict[str, StepsComparison] = field(default_factory=dict)
    seconds: float = 0.0


class Runs:
    """Both programs' outcomes, each computed when a check first asks for it.

    Args:
      migration: the migration.
      tf1: its TF1 side; run in sessions by default.
    """

    def __init__(self, migration: Migration, tf1: TF1Side | None = None):
        self.migration = migration
        self._tf1 = tf1 or TF1Sessions(migration)
        self._port = cached(run_port)

    def tf1(self, setting: Setting) -> Outcome:
        """Returns what the TF1 program does."""
        return self._tf1.outcome(setting)

    def port(self, setting: Setting) -> Outcome:
        """Returns what the port does, called directly."""
        return self._port(self.migration, setting)

    def embedded_port(self, setting: Setting) -> Outcome | None:
        """Returns what the port does inside a Keras functional model, None if it cannot be part of one."""
        return run_port_in_functional_model(self.migration, setting)

    def parting(self, setting: Setting) -> Parting | None:
        """Returns where the programs part in a setting; None if they do not, or the TF1 program is not to be run."""
        return find_parting(self.migration, setting) if isinstance(self._tf1, TF1Sessions) else None

    def prepare_training(self) -> None:
        """Trains the TF1 program as far as that does not depend on the port, and makes the port's optimizer.

        Raises:
          MigrationError: if that cannot be done.
        """
        make_port_optimizer(self.migration)
        self.tf1_training("num_random_ops")

    def tf1_training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Returns the batches that both programs are trained with, and how training the TF1 program went."""
        return self._tf1.training(mode)

    def port_from_checkpoint(self, tf1: Outcome) -> Outcome:
        """Returns what the port does with the weights that the TF1 program had from the checkpoint."""
        return run_port_from_checkpoint(self.migration, tf1)


def _variables_created_once(runs: Runs) -> CheckResult:
    port = Port(runs.migration)
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
        return CheckResult("", False, "the port creates variables when it is called again", str(error))
    return CheckResult("", True, "5 calls, no variable created after the first of its kind")


def _variables_match(runs: Runs) -> CheckResult:
    tf1, port = runs.tf1(INFERENCE).variables, runs.port(INFERENCE).variables
    difference = compare_variables(tf1, port, name_map=runs.migration.name_map)
    if difference.ok:
        return CheckResult("", True, f"{len(tf1)} variables: names, shapes, dtypes and trainable flags are equal")
    report = str(difference)
    return CheckResult("", False, report.splitlines()[0], report)


def _constant_weights(runs: Runs) -> CheckResult:
    tf1 = runs.tf1(CONSTANT_WEIGHTS)
    return _same_numbers(runs, tf1, runs.port(tf1.setting), f"all variables {tf1.setting.constant:g}")


def _random_inference(runs: Runs) -> CheckResult:
    return _same_numbers(runs, runs.tf1(INFERENCE), runs.port(INFERENCE))


def _random_training(runs: Runs) -> CheckResult:
    return _same_numbers(runs, runs.tf1(TRAINING), runs.port(TRAINING))


def _constant_mode(runs: Runs) -> CheckResult:
    embedded = runs.embedded_port(CONSTANT_MODE)
    if embedded is not None:
        return _same_numbers(runs, runs.tf1(CONSTANT_MODE), embedded, "in a Keras functional model")
    return _same_numbers(
        runs, runs.tf1(CONSTANT_MODE), runs.port(CONSTANT_MODE), "called directly: the port is no Keras layer"
    )


def _checkpoint(runs: Runs) -> CheckResult:
    try:
        tf1 = runs.tf1(CHECKPOINT)
        port = runs.port_from_checkpoint(tf1)
    except CheckpointError as error:
        report = str(error)
        return CheckResult("", False, report.splitlines()[0], report)
    assert tf1.restored is not None
    count, unused = len(tf1.restored.port_names), tf1.restored.unused
    averages = sum(name.endswith(AVERAGE) for name in tf1.restored.port_names)
    how = [f"{count} variables from the checkpoint" + (f", {averages} of them moving averages" if averages else "")]
    if unused:
        how.append(f"it has {len(unused)} that the TF1 program has not: {_shortened(unused)}")
    return _same_numbers(runs, tf1, port, *how)


_NOT_COMPARED = {
    "learning_rate": "learning rates are not compared: an optimizer keeps none",
    "regularization_loss": "the port is of a kind that keeps no losses: tf2_loss must add what regularizes",
}


def _training_steps(runs: Runs) -> CheckResult:
    migration = runs.migration
    # A port that makes its variables in another order than TF1 draws the same numbers in constant mode alone.
    difference = diff_random_ops(runs.tf1(TRAINING).random_ops, runs.port(TRAINING).random_ops)
    mode = "constant" if difference else "num_random_ops"
    batches, tf1 = runs.tf1_training(mode)
    trainings, summaries, details = {}, [], []
    likely: tuple[str, ...] = ()
    left_out = frozenset[str]()
    for way, compiled in (("eagerly", False), ("in a tf.function", True)):
        port = train_port(migration, batches, mode, tf1, compiled=compiled)
        comparison, left_out = compare_trainings(migration, port, tf1)
        drift = ""
        if not comparison:
            trainings[f"{way}, left to itself"] = comparison
            drift = f"; left to itself, it drifts away: {comparison.summary}"
            port = train_port(migration, batches, mode, tf1, compiled=compiled, guided=True)
            comparison, _ = compare_trainings(migration, port, tf1, guided=True)
        trainings[way] = comparison
        summaries.append(f"{way}: {comparison.summary}{drift if comparison else ''}")
        if not comparison:
            likely += causes_of_training(port.recorder, tf1.recorder, comparison)
            details.append(f"{way} (actual: the port, desired: TF1): {comparison}")
    if difference:
        summaries.append("in constant mode, for the port's random ops are others or come in another order")
    summaries += [_NOT_COMPARED[name] for name in sorted(left_out)]
    likely = tuple(dict.fromkeys(likely))
    if likely:
        details.insert(0, describe_causes(likely))
    return CheckResult("", not details, "; ".join(summaries), "\n\n".join(details), likely, trainings=trainings)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


CHECKS: dict[str, Callable[[Runs], CheckResult]] = {
    "variables-created-once": _variables_created_once,
    "variables-match": _variables_match,
    "constant-weights": _constant_weights,
    "random-inference": _random_inference,
    "random-training": _random_training,
    "constant-mode": _constant_mode,
    "checkpoint": _checkpoint,
    "training-steps": _training_steps,
}


def checks_of(migration: Migration) -> list[str]:
    """Returns the names of the checks that apply to a migration, in order."""
    left_out = {"checkpoint": migration.checkpoint is None, "training-steps": migration.train is None}
    return [name for name in CHECKS if not left_out.get(name)]


# A loss summed in another order may differ by some units in the last place for each term. It has no
# absolute tolerance: that of small weights would vanish in it.
_LOSS_RTOL, _LOSS_ATOL = 1e-5, 0.0


def _same_numbers(runs: Runs, tf1: Outcome, port: Outcome, *how: str) -> CheckResult:
    migration = runs.migration
    found = compare(port.outputs, tf1.outputs, rtol=migration.rtol, atol=migration.atol)
    comparisons = {"outputs": _in_order_of_computation(found, tf1)}
    if not port.keeps_losses and tf1.regularization_loss is not None:
        how = ("the port is of a kind that keeps no losses", *how)
    elif tf1.regularization_loss is not None or port.regularization_loss is not None:
        losses = compare(port.regularization_loss, tf1.regularization_loss, rtol=_LOSS_RTOL, atol=_LOSS_ATOL)
        comparisons["regularization loss"] = losses
    if vanishing := count_vanishing(tf1.outputs):
        how = (*how, f"{vanishing} of {len(comparisons['outputs'].leaves)} outputs are too near 0 to show much")
    summary = "; ".join([*(_in_one_line(name, found) for name, found in comparisons.items()), *how])
    details = [f"{name}: {_first_difference(found, tf1)}" for name, found in comparisons.items() if not found]
    difference = ""
    # With weights of a checkpoint the port runs twice, see CHECKPOINT; with constant ones most ops go unused.
    if details and tf1.setting.mode is not None and not tf1.setting.from_checkpoint:
        difference = diff_random_ops(tf1.random_ops, port.random_ops, a_name="TF1", b_name="the port")
        if difference:
            details.append(f"random ops: {difference}")
            summary = f"{summary}; {difference.splitlines()[0]}"
        elif sources := describe_uncontrolled(tf1.random_ops, port.random_ops, a_name="TF1", b_name="the port"):
            details.append(sources)
    if not details:
        return CheckResult("", True, summary, comparisons=comparisons)
    parting = None
    if not comparisons["outputs"] and not tf1.setting.from_checkpoint:
        try:
            parting = runs.parting(tf1.setting)
        except Exception as error:  # what the check has found is worth more
            details.insert(0, f"where the programs part cannot be told: {describe_error(error)}")
    losses_differ = not comparisons.get("regularization loss", True)
    both_losses = (port.regularization_loss, tf1.regularization_loss) if losses_differ else None
    likely = causes(Evidence(parting, both_losses, bool(difference)))
    if likely:
        details.insert(0, describe_causes(likely))
    if parting is not None:
        details.insert(0, str(parting))
        summary = f"{summary}; TF1 and the port part at {parting.tf1}"
    return CheckResult("", False, summary, "\n\n".join(details), likely, comparisons)


def _in_order_of_computation(comparison: Comparison, tf1: Outcome) -> Comparison:
    """Returns a comparison of outputs in TF1's order of computation: what is wrong is passed on from there."""
    last = max((origin.position for origin in tf1.origins.values()), default=0) + 1
    place = {path: origin.position for path, origin in tf1.origins.items()}
    return Comparison(tuple(sorted(comparison.leaves, key=lambda leaf: place.get(leaf.path, last))))


def _first_difference(comparison: Comparison, tf1: Outcome) -> str:
    """Returns the first leaf that differs in full, and the others by name."""
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    lines = [
        f"{len(differing)} of {len(comparison.leaves)} leaves differ (actual: the port, desired: TF1); the first is",
        str(differing[0]),
    ]
    if origin := tf1.origins.get(differing[0].path):
        lines.append(f"  TF1 computes it in {origin.name}, at {origin.caller}")
    if len(differing) > 1:
        others = [f"{leaf.path} ({leaf.percent:.2g}%)" if leaf.size else leaf.path for leaf in differing[1:]]
        lines.append(f"the others: {', '.join(others)}")
    return "\n".join(lines)


def _in_one_line(name: str, comparison: Comparison) -> str:
    differing = comparison.first_divergence
    if differing is not None:
        return f"{name} differ, first {differing.path}: {differing.reason}"
    differences = [leaf.greatest_absolute for leaf in comparison.leaves if leaf.greatest_absolute is not None]
    greatest = max((difference.amount or 0 for difference in differences), default=0)
    return f"{name} bit for bit" if greatest == 0 else f"{name} within {greatest:.2g}"


def run_check(name: str, runs: Runs) -> CheckResult:
    """Runs one check of `CHECKS`; an exception that the port raises fails it.

    Raises:
      MigrationError: if there is nothing to check: the TF1 program or the factory of the port raises.
    """
    started = time.perf_counter()
    try:
        result = CHECKS[name](runs)
    except MigrationError:
        raise
    except Exception as error:
        summary = f"raised {describe_error(error)}"
        result = CheckResult(name, False, summary, summary)
    return replace(result, name=name, seconds=time.perf_counter() - started)
