"""Event files for TensorBoard: a run for each program, with the same tags in both."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from detrand.comparison.leaves import OUTPUT, read_leaf
from detrand.comparison.values import leaves_by_path
from detrand.errors import ArgumentError
from detrand.packages import needed_by, tf
from detrand.steps.comparison import greatest_absolute
from detrand.validation.report import Report
from detrand.validation.results import CheckResult

_SUFFIX = ".detrand"  # distinguishes these event files from others in their folders
_TRAINING = "training-steps"
_BINS = 30
_AS_IT_IS = " " * 4  # Markdown keeps the lines of a text that is indented


class EventFiles:
    """Event files in the runs ``tf1`` and ``port`` of a folder; a port in a ``tf.function`` has a run of its own.

    A training step has scalars, and histograms of arrays, under their names in the `Training`. Each array of
    gradients and weights also has its Euclidean norm as a scalar, because TensorBoard overlays the scalars of several
    runs, but not their histograms. Outputs of other checks are histograms at step 0, under the name of the check.

    The run ``report`` has the verdict and the findings as text, the differences of training as scalars by step, and
    those of all tensors as scalars by position in TF1's order of computation.

    The folder is made if it does not exist. Event files of an earlier validation in these runs are replaced.
    """

    def __init__(self, logdir: str | os.PathLike[str]):
        with needed_by("A folder for TensorBoard"):
            import tensorflow  # noqa: F401
        self._logdir = Path(logdir)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        try:
            self._logdir.mkdir(parents=True, exist_ok=True)
            for file in self._logdir.glob(f"*/*{_SUFFIX}"):
                file.unlink()
            tempfile.TemporaryFile(dir=self._logdir).close()
        except OSError as error:
            raise ArgumentError(
                f"event files cannot be written to {self._logdir}: {error.strerror}; give a different folder as logdir"
            ) from error

    def write(self, check: CheckResult) -> None:
        """Write the numbers that the programs computed for a check."""
        for run, steps in check.computed.items():
            with self._writer(run).as_default():
                for step, values in steps.items():
                    for name, value in values.items():
                        _write(name if check.name == _TRAINING else f"{check.name}/{name}", value, step)
            self._writers[run].flush()

    def write_report(self, report: Report) -> None:
        """Write the verdict, the findings, and the differences of all checks."""
        with self._writer("report").as_default():
            _text("verdict", f"{report.migration} {report.verdict_line}", 0)
            for number, finding in enumerate(report.findings):
                _text("findings", textwrap.indent(str(finding), _AS_IT_IS), number)
            if report.sources:
                _text("not controlled", textwrap.indent(report.sources, _AS_IT_IS), 0)
            for name, metric in report.metrics:
                _scalar(f"{metric.name}/{name}{_as_tag(metric.path)}", metric.mean, 0)
            for check in report.checks:
                for position, each in enumerate(check.tensors):
                    if each.amount is not None:
                        _scalar(f"difference of tensors/{check.name}", each.amount, position)
                for how, comparison in check.trainings.items():
                    for step, by_name in comparison.steps.items():
                        for name, found in by_name.items():
                            _scalar(f"difference {how}/{name}", greatest_absolute([found]), step)
        self._writers["report"].flush()

    def _writer(self, run: str) -> tf.summary.SummaryWriter:
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._logdir / run), filename_suffix=_SUFFIX)
        return self._writers[run]


def _write(name: str, value: Any, step: int) -> None:
    for path, leaf in leaves_by_path(value).items():
        if leaf is None:  # a gradient where the loss does not depend on the variable
            continue
        read = read_leaf(leaf, name)
        if read.kind not in ("bool", "int", "float"):
            continue
        array = read.array.astype(np.float64)
        tag = name + _as_tag(path)
        if array.ndim == 0:
            _scalar(tag, array, step)
            continue
        _histogram(tag, array[np.isfinite(array)], step)
        if name in ("gradients", "weights"):
            _scalar(f"norm of {tag}", np.linalg.norm(array), step)


# The same as tf.summary.scalar, histogram and text, which need TensorBoard when files are written.
def _scalar(tag: str, value: Any, step: int) -> None:
    tf.summary.write(tag, tf.constant(value, tf.float32), step, _metadata("scalars", "DATA_CLASS_SCALAR"))


def _histogram(tag: str, values: np.ndarray, step: int) -> None:
    counts, edges = np.histogram(values, _BINS)
    bins = np.stack([edges[:-1], edges[1:], counts], axis=1)
    tf.summary.write(tag, tf.constant(bins, tf.float64), step, _metadata("histograms", "DATA_CLASS_TENSOR"))


def _text(tag: str, text: str, step: int) -> None:
    tf.summary.write(tag, tf.constant(text), step, _metadata("text", "DATA_CLASS_TENSOR"))


def _metadata(plugin: str, data_class: str) -> Any:
    return tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin}, data_class=data_class)


def _as_tag(path: str) -> str:
    """Return a path in the form that TensorBoard groups by: ``['dense/kernel'][0]`` becomes ``/dense/kernel/0``."""
    return "" if path == OUTPUT else "/" + path.replace("']['", "/").replace("][", "/").strip("[]'").replace("'", "")
