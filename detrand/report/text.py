"""The report on a terminal: a line for each check while it runs, then the findings and the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detrand.arguments import and_more
from detrand.report.progress import showing_progress
from detrand.validation.report import METRICS, Report, noise_remarks, noise_rows, summary_of
from detrand.validation.results import Audit, CheckResult
from detrand.validation.validate import Progress

_MOST_OUTPUTS = 8  # rows of a check in the table of noise floors
_MOST_AUDITED, _MOST_OWNERS = 8, 3
_MARK_WIDTH, _NAME_WIDTH = 12, 22  # of "not compared", and of "variables-created-once"
_STYLES = {"passed": "bold green", "failed": "bold red", "inconclusive": "bold yellow"}
_MARKS = {
    "passed": "[green]passed[/]",
    "accepted": "[yellow]accepted[/]",
    "FAILED": "[bold red]FAILED[/]",
    "not compared": "[yellow]not compared[/]",
}


def render(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print the audit, the findings and the verdict, which come last; if verbose, the details of checks before them."""
    if verbose:
        _print_plain(console, str(report.audit))
        for name, text in report.evidence.items():
            console.print(f"\n[bold]{name}[/]")
            _print_plain(console, text)
        if any(noise_rows(check) for check in report.checks):
            _render_noise(report, console)
    else:
        _print_plain(console, report.audit.summary)
        for line in _in_short(report.audit):
            _print_plain(console, line)
    if report.metrics:
        _print_plain(console, METRICS)
        for name, metric in report.metrics:
            _print_plain(console, f"  {name}: {metric}")
    if report.sources:
        _print_plain(console, report.sources)
    _print_plain(console, report.footer)
    findings = report.findings
    for number, finding in enumerate(findings, 1):
        title, *lines = str(finding).splitlines()
        console.print(
            f"\n[bold red]finding {number} of {len(findings)}[/]: {escape(title)}", highlight=False, soft_wrap=True
        )
        for line in lines:
            _print_plain(console, line)
    if findings and not verbose:
        console.print("\n[dim]-v shows the evidence[/]", highlight=False)
    not_compared: dict[str, list[str]] = {}
    for check in report.checks:
        if not check.compared:
            not_compared.setdefault(check.summary, []).append(check.name)
    for summary, names in not_compared.items():
        _print_plain(console, f"\nnot compared: {', '.join(names)}: {summary}")
    render_verdict(report, console)


def render_verdict(report: Report, console: Console) -> None:
    """Print the verdict on a migration in one line."""
    style = _STYLES[report.verdict]
    console.print(f"[{style}]{escape(f'{report.migration} {report.verdict_line}')}[/]", highlight=False, soft_wrap=True)


def _in_short(audit: Audit) -> list[str]:
    """Return a line for each pair of values that differ, with their owners, but not more than a few."""
    lines = [
        f"  {and_more(owners, _MOST_OWNERS)}: {name} {tf1} (TF1), {port} (port)"
        for (name, tf1, port), owners in audit.groups.items()
    ]
    more = len(lines) - _MOST_AUDITED
    return [*lines[:_MOST_AUDITED], *([f"  and {more} more"] if more > 0 else [])]


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
    """Print the verdict on each of several migrations once more, and the one on all of them."""
    console.print()
    for report in reports:
        render_verdict(report, console)
    console.print(f"[bold]{summary_of(reports)}[/]", highlight=False)


class LiveLines(Progress):
    """A line for each check as it ends, with its time; a terminal also shows which one is running."""

    def __init__(self, console: Console):
        self._console = console

    def showing(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Show that a check is running."""
        return showing_progress(self._console, name)

    def finished(self, check: CheckResult) -> None:
        """Leave a line for a check that has run."""
        mark = _MARKS[check.verdict] + " " * (_MARK_WIDTH - len(check.verdict))
        line = f"{mark}  {check.name:<{_NAME_WIDTH}}  [dim]{check.seconds:5.1f} s[/]  {escape(check.headline)}"
        if self._console.is_terminal:
            self._console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)
