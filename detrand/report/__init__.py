"""What `detrand.validate` returns, and the forms in which people and programs read it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detrand.validation.audit import Audit
    from detrand.validation.check_result import CheckResult


@dataclass(frozen=True)
class Report:
    """The verdict on a migration; ``str()`` is the report as text.

    As a bool it is ``.ok``, so that ``assert validate(migration)`` means what it says.

    Attributes:
      migration: name of the migration.
      checks: what each check found, in order.
      seed: the seed of both programs.
      versions: version by package name.
      machine: what it ran on: ``system``, ``processor``, ``cores`` and ``python``.
      started: when, in ISO 8601, UTC.
      tolerance: how close outputs had to be, in words.
      audit: what is set in both programs, side by side; it is no part of the verdict.
    """

    migration: str
    checks: tuple[CheckResult, ...]
    seed: int
    versions: dict[str, str]
    machine: dict[str, str]
    started: str
    tolerance: str
    audit: Audit

    @property
    def ok(self) -> bool:
        """Whether there were checks and none failed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def seconds(self) -> float:
        """How long the checks took, in seconds."""
        return sum(check.seconds for check in self.checks)

    def __str__(self) -> str:
        from rich.console import Console

        from detrand.report.text import render

        text = io.StringIO()
        render(self, Console(file=text, width=120, no_color=True, force_terminal=False))
        return text.getvalue()


def verdict(report: Report) -> str:
    """Returns the verdict in a line."""
    failed = [check.name for check in report.checks if not check.ok]
    if failed:
        return f"{len(failed)} of {len(report.checks)} checks failed, first {failed[0]}"
    left_out = [check.name for check in report.checks if not check.compared]
    if left_out:
        passed = len(report.checks) - len(left_out)
        return f"{passed} of {len(report.checks)} checks passed, not compared: {', '.join(left_out)}"
    return f"all {len(report.checks)} checks passed"
