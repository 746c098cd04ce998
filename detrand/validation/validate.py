"""`validate`: all checks of a migration in order, and the report on them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from detrand.arguments import quote, wrong_type
from detrand.comparison.metrics import has_vectors
from detrand.comparison.values import leaves_by_path
from detrand.errors import ArgumentError, MigrationError, passing_over
from detrand.packages import is_installed, is_loaded, needed_by, tf
from detrand.random_tool import dispatchers_installed
from detrand.validation.checks.registry import checks_of, left_out_of_graph_file, not_run, run_check
from detrand.validation.checks.variables import paired_variables
from detrand.validation.event_files import EventFiles
from detrand.validation.frameworks.tensorflow import own_global_step
from detrand.validation.golden import read_golden
from detrand.validation.migration import Migration, Tolerances, is_metric_of, split_expected
from detrand.validation.reference import INFERENCE, TRAINING, Reference
from detrand.validation.report import Report
from detrand.validation.results import Audit, CheckResult, PairedVariable
from detrand.validation.runner import Runner
from detrand.validation.training.port import check_trainable, make_port_optimizer

_PACKAGES = ("detrand", "tensorflow", "keras", "tf-keras", "numpy")


class Progress:
    """What is called before and after each check; this one shows nothing."""

    def showing(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which the check runs."""
        return contextlib.nullcontext()

    def finished(self, check: CheckResult) -> None:
        """Take the result of a check that has run."""


class ValidationInterrupted(KeyboardInterrupt):
    """An interrupt, such as Ctrl-C, while the checks of a migration ran.

    Attributes:
      report: what the checks found that had finished; the others have compared nothing.
    """

    def __init__(self, report: Report):
        super().__init__(report.summary)
        self.report = report


def validate(
    migration: Migration,
    *,
    progress: Progress | None = None,
    golden: str | os.PathLike[str] | None = None,
    tolerances: Tolerances | None = None,
    logdir: str | os.PathLike[str] | None = None,
    checks: Sequence[str] | None = None,
    exit_first: bool = False,
) -> Report:
    """Run every check on a migration, and report whether the port computes what the TF1 program computes.

    The checks run in this order:

    - ``tf1-as-recorded``, for a graph file with original outputs: the graph computes here what TensorFlow 1 computed.
    - ``variables-created-once``: the port creates its variables in its first call only.
    - ``variables-match``: both programs have the same variables.
    - ``initializers-match``: the port's own initial values are TF1's.
    - ``regularizers-match``: both programs have the same regularizers and regularization losses.
    - ``constant-weights``: inference with all variables 0.001, then with distinct weights.
    - ``random-inference`` and ``random-training``: both programs begin with TF1's initial values. Their random ops
      draw in ``"num_random_ops"`` mode, each op of the port what its counterpart in TF1 draws.
    - ``constant-mode``: the outputs in training in ``"constant"`` mode; a Keras layer is called in a functional model.
    - ``checkpoint``, for a migration with a checkpoint: inference with its weights.
    - ``training-steps``, for a migration with a `TrainStep`: learning rate, outputs, losses, metrics, gradients,
      variables and slots in each step, with the port trained eagerly and in a ``tf.function``.

    All checks run even if one fails. A check that depends on a failed one says so. A check that finds only what
    ``Migration(expect=...)`` names is accepted.

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import detrand
    >>> migration = detrand.Migration(
    ...     tf1=lambda x, training: tf.matmul(x, tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    ...     port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    ...     inputs=np.ones((4, 3), np.float32),
    ... )
    >>> report = detrand.validate(migration)
    >>> report.ok
    True
    >>> [check.name for check in report.checks][:3]
    ['variables-created-once', 'variables-match', 'initializers-match']

    Args:
      migration: the TF1 program, the port and their inputs.
      progress: called before and after each check.
      golden: a golden file of the migration, made by ``python -m detrand record``; the TF1 program is not run.
      tolerances: used in place of the migration's ``tolerances``; ``[Tolerance()]`` is the fixed one of TensorFlow's
        guide.
      logdir: a folder for TensorBoard, to which the numbers of both programs are written as runs ``tf1`` and ``port``,
        and the findings as run ``report``.
      checks: the names of the checks to run; by default, all that apply to the migration.
      exit_first: whether the first check that fails is the last one that runs.

    Returns:
      The report; ``report.ok`` is the verdict.

    Raises:
      ArgumentError: for an invalid argument, or if ``logdir`` cannot be written.
      CheckpointError: (an `ArgumentError`) if the migration's checkpoint cannot be read.
      MigrationError: if there is nothing to check, because the TF1 program or the factory of the port raises, or the
        port does not take the inputs; or if a tolerance or a metric is for outputs that do not exist.
      RecordingError: (an `ArgumentError`) if the golden file cannot be read, or is of a different migration.
      KeyboardInterrupt: if one arrives while the checks run; its ``report`` has what the finished checks found.
    """
    if not isinstance(migration, Migration):
        remedy = "write detrand.validate(detrand.Migration(tf1=..., port=..., inputs=...))"
        raise wrong_type("migration", migration, "a detrand.Migration", remedy)
    if golden is None or is_installed("tensorflow"):
        with needed_by("detrand.validate without golden"):
            import tensorflow  # noqa: F401
    if tolerances is not None:
        migration = dataclasses.replace(migration, tolerances=tolerances)
    names = selected_checks(migration, checks)
    runs_all = names == selected_checks(migration, None)
    if migration.checkpoint is not None and is_installed("tensorflow"):
        from detrand.checkpoints.loading import check_checkpoint

        check_checkpoint("checkpoint", os.fsdecode(migration.checkpoint))  # before minutes of other checks
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    progress = progress or Progress()
    versions = _versions()
    tf1: Reference | None = None
    if golden is not None:
        migration, tf1, versions["tensorflow (golden file)"] = read_golden(golden, migration)
    events = None if logdir is None else EventFiles(logdir)
    with dispatchers_installed():  # each scope would install them, and remove them again
        runner = Runner(migration, tf1)
        _check_before(runner, progress, names)
        with progress.showing("pairing variables"):
            runner.complete_name_map()
        results: list[CheckResult] = []
        audit, variables = Audit(), tuple[PairedVariable, ...]()
        why_not = ""  # why no further check runs
        interrupt: KeyboardInterrupt | None = None
        try:
            for name in names:
                with progress.showing(name):
                    check = run_check(name, runner, results)
                progress.finished(check)
                if events is not None:
                    events.write(check)
                results.append(dataclasses.replace(check, computed={}))
                if exit_first and not check.ok:
                    why_not = f"not run, because {name} failed"
                    break
            with progress.showing("audit"):
                audit = runner.audit
                with passing_over():  # the checks report what a program raises
                    variables = paired_variables(runner)
        except KeyboardInterrupt as error:
            interrupt, why_not = error, "not run, because of an interrupt"
    results += [not_run(name, why_not) for name in names[len(results) :]]
    report = Report(
        migration=migration.name,
        checks=tuple(results),
        seed=migration.seed,
        versions=versions,
        machine=_machine(),
        started=started,
        tolerance=migration.tolerance_in_words,
        audit=audit,
        expected=tuple(each for each in migration.expect if runs_all or split_expected(each)[0] in names),
        variables=variables,
        uncontrolled=runner.uncontrolled(results),
        left_out=left_out_of_graph_file(migration) if runs_all else {},
    )
    if events is not None:
        events.write_report(report)
    if interrupt is not None:
        raise ValidationInterrupted(report) from interrupt
    return report


def selected_checks(migration: Migration, checks: Sequence[str] | None) -> list[str]:
    """Return the names of the checks to run, in order; by default, of all that apply.

    Raises:
      ArgumentError: for a name of no check that applies to the migration, and for no name.
    """
    applicable = checks_of(migration)
    if checks is None:
        return applicable
    if isinstance(checks, str) or not isinstance(checks, Sequence) or not checks:
        remedy = "write checks=['random-inference']"
        raise wrong_type("checks", checks, "a list of at least one name of a check", remedy)
    unknown = [name for name in checks if name not in applicable]
    if unknown:
        raise ArgumentError(
            f"checks must be among those of {migration.name}, but {quote(unknown[0])} was given. They are: "
            f"{', '.join(applicable)}. training-steps needs Migration(train=...), and checkpoint "
            "Migration(checkpoint=...)"
        )
    return [name for name in applicable if name in checks]


def _check_before(runner: Runner, progress: Progress, checks: Sequence[str]) -> None:
    """Raise a `MigrationError`, before minutes of checks, if the port, training or a tolerance cannot be used."""
    migration = runner.migration
    if is_loaded("tensorflow") and not tf.compat.v1.executing_eagerly_outside_functions():
        raise MigrationError(
            f"eager execution is off, so the port of {migration.name} cannot be run. A module that was imported called "
            "tf.compat.v1.disable_v2_behavior() or disable_eager_execution(). Call "
            "tf.compat.v1.enable_eager_execution() after the import"
        )
    if migration.train is not None and "training-steps" in checks:
        with progress.showing("training in TF1"):
            with own_global_step():
                make_port_optimizer(migration)
            check_trainable(migration, runner.tf1.training("num_random_ops"))
    with progress.showing("running TF1"):
        outputs = [runner.tf1.outcome(config).outputs for config in (INFERENCE, TRAINING)]
    paths = dict.fromkeys(path for each in outputs for path in leaves_by_path(each))
    migration.output_tolerances.check_patterns(migration.name, paths)
    vectors = [path for path, leaf in leaves_by_path(outputs[0]).items() if has_vectors(np.asarray(leaf))]
    for of in migration.metrics:
        if not any(is_metric_of(of, path) for path in vectors):
            raise MigrationError(
                f"metrics of {migration.name}: {of!r} is no output with vectors along its last axis; these are "
                f"{', '.join(vectors) or 'none'}; * stands for any characters"
            )


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _machine() -> dict[str, str]:
    return {
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the name of the processor; on Linux, Python knows only its architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
