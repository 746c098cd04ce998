"""Helpers for tests: `assert_migration`, and `TestMixin` for ``unittest.TestCase`` and ``tf.test.TestCase``.

The pytest plugin `detrand.pytest_plugin` has the same helpers as fixtures.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrand.errors import ArgumentError, ComparisonError
from detrand.files import written_whole

if TYPE_CHECKING:
    from detrand.random_tool import DeterministicRandomTestTool
    from detrand.scopes import Scope
    from detrand.validation.migration import Migration, Tolerances
    from detrand.validation.report import Report
    from detrand.validation.results import CheckResult


def assert_migration(
    migration: Migration,
    report_dir: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    golden: str | os.PathLike[str] | None = None,
    tolerances: Tolerances | None = None,
    checks: Sequence[str] | None = None,
    allow_inconclusive: bool = False,
) -> Report:
    """Run ``detrand.validate``, and fail unless every check passes.

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from detrand import Migration
    >>> from detrand.testing import assert_migration
    >>> migration = Migration(
    ...     tf1=lambda x, training: tf.matmul(x, tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    ...     port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    ...     inputs=np.ones((4, 3), np.float32),
    ... )
    >>> assert_migration(migration).ok
    True

    Args:
      migration: the migration.
      report_dir: folder to which the report is written as a page for a browser if a check fails; it is made if it does
        not exist. None writes nothing.
      name: file name of the page without ``.html``; the migration's name by default. Special characters become ``-``.
      golden: a golden file, as for ``detrand.validate``.
      tolerances: used in place of the migration's ``tolerances``.
      checks: the names of the checks to run; by default, all that apply.
      allow_inconclusive: whether to accept checks that could not compare the programs.

    Returns:
      The report.

    Raises:
      ComparisonError: if a check fails or cannot compare the programs. The message has the findings of the report.
      ArgumentError: for an invalid argument, or if the report cannot be written.
      MigrationError: if there is nothing to check, as for ``detrand.validate``.
    """
    __tracebackhide__ = True
    from detrand import validate

    report = validate(migration, golden=golden, tolerances=tolerances, checks=checks)
    if report.ok or (allow_inconclusive and report.verdict == "inconclusive"):
        return report
    failure = _failure(report)
    if report_dir is None:
        raise ComparisonError(failure)
    page = write_page(report, report_dir, name, failure)
    raise ComparisonError(f"{failure}\nwhole report: {page}")


def write_page(report: Report, report_dir: str | os.PathLike[str], name: str | None, failure: str) -> Path:
    """Write the page of a report to a folder, and return its path.

    Raises:
      ArgumentError: if it cannot be written; the message ends with the failure.
    """
    from detrand.report import html

    page = Path(report_dir, re.sub(r"[^A-Za-z0-9_.-]+", "-", name or report.migration) + ".html")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(page) as file:
            file.write_text(html.render([report], f"pytest {name}" if name else ""), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"the report cannot be written to {page}: {error.strerror}; give a different folder\n\n{failure}"
        ) from error
    return page


def assert_check(check: CheckResult, sources: str, page: Path | None) -> None:
    """Raise a `ComparisonError` with the findings of a check, unless the check passed.

    The sources of random numbers that no scope controls, and the page of the report, are below the findings.
    """
    __tracebackhide__ = True
    from detrand.validation.results import merged

    if check.ok and check.compared:
        return
    findings = merged(check.findings)
    lines = [f"{check.name}: {check.headline if findings else check.details or check.summary}"]
    for number, finding in enumerate(findings, 1):
        lines += ["", f"finding {number} of {len(findings)}: {finding}"]
    lines += ["", sources] if sources else []
    raise ComparisonError("\n".join(lines if page is None else [*lines, f"whole report: {page}"]))


def _failure(report: Report) -> str:
    """Return the verdict, the findings, and the names of the checks by their results."""
    findings = report.findings
    lines = [f"{report.migration} {report.verdict_line}"]
    for number, finding in enumerate(findings, 1):
        lines += ["", f"finding {number} of {len(findings)}: {finding}"]
    not_compared = [f"{check.name}: {check.summary}" for check in report.checks if not check.compared]
    lines += ["", *not_compared] if not_compared else []
    lines += ["", report.sources] if report.sources else []
    names: dict[str, list[str]] = {}
    for check in report.checks:
        names.setdefault(check.verdict, []).append(check.name)
    return "\n".join([*lines, "", *(f"{verdict}: {', '.join(of)}" for verdict, of in names.items())])


class TestMixin:
    """The helpers of detrand as methods of a test case.

    >>> import io
    >>> import unittest
    >>> import tensorflow as tf
    >>> from detrand.testing import TestMixin
    >>> class DrawsTest(TestMixin, unittest.TestCase):
    ...     def test_numbers(self):
    ...         self.detrand_tool(mode="num_random_ops")
    ...         self.assertAlmostEqual(float(tf.random.uniform(())), 0.8354591, places=6)
    >>> unittest.TextTestRunner(stream=io.StringIO()).run(DrawsTest("test_numbers")).wasSuccessful()
    True

    Attributes:
      detrand_report_dir: folder for the reports of migrations that fail, as for `assert_migration`; None for none.
    """

    __test__ = False  # for pytest: subclasses hold tests, this class does not
    detrand_report_dir: str | Path | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in vars(cls):
            cls.__test__ = True

    def detrand_tool(self: Any, mode: str = "constant", seed: int = 42) -> DeterministicRandomTestTool:
        """Enter the scope of a new tool until the test ends, and return the tool.

        Args:
          mode: mode of the `DeterministicRandomTestTool`.
          seed: seed of the `DeterministicRandomTestTool`.
        """
        from detrand.random_tool import DeterministicRandomTestTool

        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(DeterministicRandomTestTool(seed, mode).scope())

    def no_variable_creations(self) -> Scope:
        """Return a context manager that fails if its block creates a variable."""
        from detrand import assert_no_variable_creations

        return assert_no_variable_creations()

    def assert_migration(
        self: Any,
        migration: Migration,
        *,
        golden: str | os.PathLike[str] | None = None,
        tolerances: Tolerances | None = None,
        checks: Sequence[str] | None = None,
        allow_inconclusive: bool = False,
    ) -> Report:
        """Fail unless every check of a migration passes; the page of the report has the name of the test."""
        __tracebackhide__ = True
        return assert_migration(
            migration,
            self.detrand_report_dir,
            name=self.id(),
            golden=golden,
            tolerances=tolerances,
            checks=checks,
            allow_inconclusive=allow_inconclusive,
        )
