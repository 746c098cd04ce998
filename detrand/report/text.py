"""The report on a terminal: a line for each check while it runs, then a table, the audit and details."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detrand.report.progress import showing_progress
from detrand.validation.results import CheckResult, Report, noise_remarks, noise_rows, summary_of
from detrand.validation.validate import Progress

_MOST_OUTPUTS = 8  # rows of a check in the table of noise floors
_MARKS = {
    "passed": "[green]passed[/]",
    "accepted": "[yellow]accepted[/]",
    "FAILED": "[bold red]FAILED[/]",
    "not compared": "[yellow]not compared[/]",
}


def render(report: Report, console: Console) -> None:
    """Print the verdict, the table of checks, the audit, and the details of checks."""
    table = Table(title=f"{escape(report.migration)}: {report.summary}", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("summary")
    for check in report.checks:
        table.add_row(check.name, _MARKS[check.verdict], f"{check.seconds:.1f} s", escape(check.summary))
    console.print(table)
    _print_plain(console, str(report.audit))
    for check in report.checks:
        if check.details:
            console.print(f"\n[bold]{check.name}[/]")
            _print_plain(console, check.details)
    if any(noise_rows(check) for check in report.checks):
        _render_noise(report, console)
    _print_plain(console, report.footer)


def _print_plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _render_noise(report: Report, console: Console) -> None:
    """Print the outputs of each check that use most of their tolerance, and remarks on the noise floor."""
    table = Table(title="\nnoise floor of TF1 (in parentheses: ULPs of the greatest element)", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("output", overflow="fold")
    for name in ("floor", "tolerance", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for check in report.checks:
        rows = noise_rows(check)
        for row in rows[:_MOST_OUTPUTS]:
            name = check.name if row is rows[0] else ""
            table.add_row(name, escape(row.path), *row.cells(), _MARKS["passed" if row.ok else "FAILED"])
        if len(rows) > _MOST_OUTPUTS:
            table.add_row("", f"and {len(rows) - _MOST_OUTPUTS} more, which use less of their tolerance")
        table.add_section()
    console.print(table)
    for remark in noise_remarks(report.checks):
        _print_plain(console, remark)


def render_overview(reports: Sequence[Report], console: Console) -> None:
    """Print one table for several migrations: a row for each, a column for each check that any of them has."""
    table = Table(title=f"\n{summary_of(reports)}", title_justify="left")
    table.add_column("migration", no_wrap=True)
    names = list(dict.fromkeys(check.name for report in reports for check in report.checks))
    for name in names:
        table.add_column(name.replace("-", " "))  # so that the name can be wrapped
    table.add_column("time", justify="right", no_wrap=True)
    for report in reports:
        marks = {check.name: _MARKS[check.verdict] for check in report.checks}
        table.add_row(escape(report.migration), *(marks.get(name, "") for name in names), f"{report.seconds:.0f} s")
    console.print(table)


class LiveLines(Progress):
    """A line on a terminal for each check, with its time; nothing on a console that is no terminal."""

    def __init__(self, console: Console):
        self._console = console

    def showing(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Show that a check is running."""
        return showing_progress(self._console, name)

    def finished(self, check: CheckResult) -> None:
        """Leave a line for a check that has run."""
        if self._console.is_terminal:
            line = f"{_MARKS[check.verdict]} {check.name} [dim]{check.seconds:.1f} s[/] {escape(check.summary)}"
            self._console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
