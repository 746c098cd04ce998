"""`validate`: all checks of a migration, in order, and the report on them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import platform
from importlib import metadata
from typing import Any, Protocol

from detrand.checkpoints.reading import check_checkpoint
from detrand.errors import ArgumentError
from detrand.validation.checks import checks_of, run_check
from detrand.validation.event_files import EventFiles
from detrand.validation.golden import GoldenReference
from detrand.validation.migration import Migration, Tolerances
from detrand.validation.results import CheckResult, Report
from detrand.validation.runner import Runner

_PACKAGES = ("detrand", "tensorflow", "keras", "tf-keras", "numpy")


class Progress(Protocol):
    """Is told of each check as it runs; `detrand.report.text.LiveLines` is one."""

    def showing(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager in which the check runs."""

    def finished(self, check: CheckResult) -> None:
        """Is called with what the check found."""


def validate(
    migration: Migration,
    *,
    progress: Progress | None = None,
    golden: str | os.PathLike[str] | None = None,
    tolerances: Tolerances | None = None,
    logdir: str | os.PathLike[str] | None = None,
) -> Report:
    """Runs every check on a migration: does the port compute what the TF1 program computes?

    The checks, in order: ``variables-created-once``, ``variables-match``, ``constant-weights`` (inference with all
    variables 0.001, then with weights of its own in each, by its name), ``random-inference`` and ``random-training``
    (variables initialized and dropout drawn by both programs in order), ``constant-mode`` (training inside a Keras
    functional model); and, for a migration with a checkpoint, ``checkpoint`` (inference with the weights in it), for
    one with a `TrainStep`, ``training-steps`` (learning rate, outputs, losses, metrics, gradients, variables and slots
    in each step; the port is trained eagerly and in a ``tf.function``). All of them run, also when one fails; one that
    depends on a failed one says so.

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
    ['variables-created-once', 'variables-match', 'constant-weights']

    Args:
      migration: the TF1 program, the port and their inputs.
      progress: is told of each check as it runs.
      golden: a file that ``python -m detrand record`` has made of the migration: the TF1 program is not run.
      tolerances: used in place of the migration's ``tolerances``. With ``"auto"``, the noise floor of the TF1 program
        is measured, and decides how close each output must be.
      logdir: a folder for TensorBoard: what both programs compute is written there, in the runs ``tf1`` and ``port``.

    Returns:
      The report; ``report.ok`` is the verdict.

    Raises:
      ArgumentError: if it is given anything else, or ``logdir`` cannot be written.
      CheckpointError: (an `ArgumentError`) if the migration's checkpoint cannot be read.
      MigrationError: if there is nothing to check: the TF1 program or the factory of the port raises; or if a
        tolerance is for outputs that do not exist.
      RecordingError: (an `ArgumentError`) if the golden file cannot be read, or is of another migration.
    """
    if not isinstance(migration, Migration):
        raise ArgumentError(
            f"validate takes a detrand.Migration, but {migration!r} of type {type(migration).__name__} was given; "
            "write detrand.validate(detrand.Migration(tf1=..., port=..., inputs=...))"
        )
    if tolerances is not None:
        migration = dataclasses.replace(migration, tolerances=tolerances)
    if migration.checkpoint is not None:
        check_checkpoint("checkpoint", os.fsdecode(migration.checkpoint))  # all of it, before minutes of other checks
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    versions, tf1 = _versions(), None
    if golden is not None:
        tf1 = GoldenReference(golden, migration)
        migration, versions["tensorflow (golden file)"] = tf1.migration, tf1.tensorflow
    events = None if logdir is None else EventFiles(logdir)
    runner = Runner(migration, tf1)

    def showing(what: str) -> contextlib.AbstractContextManager[Any]:
        return progress.showing(what) if progress else contextlib.nullcontext()

    if migration.train is not None:
        with showing("training in TF1"):
            runner.prepare_training()  # what cannot be trained is told before minutes of other checks, too
    with showing("running TF1"):
        runner.check_tolerances()
    found: list[CheckResult] = []
    for name in checks_of(migration):
        with showing(name):
            check = run_check(name, runner, found)
        if progress:
            progress.finished(check)
        if events is not None:
            events.write(check)
        found.append(dataclasses.replace(check, computed={}))
    with showing("hyperparameters"):
        audit = runner.audit()
    in_words, machine = migration.tolerance_in_words, _machine()
    return Report(migration.name, tuple(found), migration.seed, versions, machine, started, in_words, audit)


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
    """Returns the processor's name; Python knows no more than its architecture on Linux."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
