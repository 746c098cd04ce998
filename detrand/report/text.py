"""A report on the terminal: one line for each check while it runs, then a table and what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detrand.report.progress import showing_progress
from detrand.validation.results import CheckResult, Report, noise_rows, remarks_of, verdict

_MOST_OUTPUTS = 8  # of a check, in the table of noise floors
_MARK = {True: "[green]passed[/]", False: "[bold red]FAILED[/]"}


def _mark_of(check: CheckResult) -> str:
    return _MARK[check.ok] if check.compared else "[yellow]not compared[/]"


def render(report: Report, console: Console) -> None:
    """Prints the verdict, the table, settings that differ, and the details of every check that failed."""
    table = Table(title=f"{escape(report.migration)}: {verdict(report)}", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("what was found")
    for check in report.checks:
        table.add_row(check.name, _mark_of(check), f"{check.seconds:.1f} s", escape(check.summary))
    console.print(table)
    console.print(str(report.audit), markup=False, highlight=False, soft_wrap=True)
    for check in report.checks:
        if not check.ok:
            console.print(f"\n[bold]{check.name}[/]")
            console.print(check.details, markup=False, highlight=False, soft_wrap=True)
    if any(noise_rows(check) for check in report.checks):
        _render_noise(report, console)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(f"seed {report.seed}; tolerance {report.tolerance}; {versions}", highlight=False, soft_wrap=True)


def _render_noise(report: Report, console: Console) -> None:
    """Prints, of each check, the outputs that use most of their tolerance, and remarks on the noise floor."""
    table = Table(
        title="\nthe noise floor of TF1, and the port (in ULPs of the greatest element)", title_justify="left"
    )
    table.add_column("check", no_wrap=True)
    table.add_column("output", overflow="fold")
    for name in ("floor", "tolerance", "the port is off by"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for check in report.checks:
        rows = noise_rows(check)
        for row in rows[:_MOST_OUTPUTS]:
            table.add_row(check.name if row is rows[0] else "", escape(row.path), *row.cells(), _MARK[row.ok])
        if len(rows) > _MOST_OUTPUTS:
            table.add_row("", f"{len(rows) - _MOST_OUTPUTS} more, which use less of their tolerance")
        table.add_section()
    console.print(table)
    for remark in remarks_of(report.checks):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def failure(report: Report, page: Path | None = None) -> str:
    """Returns what a failed test says: what the first failed check found, then the others in a line each.

    Args:
      report: a report with a check that failed.
      page: where the whole report is to be read.
    """
    first, *others = [check for check in report.checks if not check.ok]
    lines = [f"{report.migration}: {verdict(report)}", "", f"{first.name}: {first.details or first.summary}", ""]
    lines += [f"{check.name}: {check.summary}" for check in others]
    passed = [check.name for check in report.checks if check.passed]
    lines += [f"passed: {', '.join(passed) or 'none'}", *([f"the whole report: {page}"] if page else [])]
    return "\n".join(lines)


def render_overview(reports: Sequence[Report], console: Console) -> None:
    """Prints one table for several migrations: a row for each, a column for each check that any of them has."""
    failed = sum(not report.ok for report in reports)
    verdict = f"{failed} of {len(reports)} migrations failed" if failed else f"all {len(reports)} migrations passed"
    table = Table(title=f"\n{verdict}", title_justify="left")
    table.add_column("migration", no_wrap=True)
    names = list(dict.fromkeys(check.name for report in reports for check in report.checks))
    for name in names:
        table.add_column(name.replace("-", " "))  # so that it can be wrapped
    table.add_column("time", justify="right", no_wrap=True)
    for report in reports:
        marks = {check.name: _mark_of(check) for check in report.checks}
        table.add_row(escape(report.migration), *(marks.get(name, "") for name in names), f"{report.seconds:.0f} s")
    console.print(table)


class LiveLines:
    """Shows each check while it runs, with its time; on a console that is no terminal, nothing."""

    def __init__(self, console: Console):
        self._console = console

    def showing(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Shows that a check is running."""
        return showing_progress(self._console, name)

    def finished(self, check: CheckResult) -> None:
        """Leaves a line for a check that has run."""
        if self._console.is_terminal:
            line = f"{_mark_of(check)} {check.name} [dim]{check.seconds:.1f} s[/] {escape(check.summary)}"
            self._console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
