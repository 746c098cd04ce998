"""The report as Markdown, for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from detrand.arguments import and_more, plural
from detrand.validation.report import METRICS, Report, summary_of
from detrand.validation.results import Finding, Place

_MOST_FINDINGS = 20  # a comment on GitHub has at most 65,536 characters
_MOST_OWNERS = 4


def render(reports: Sequence[Report], command: str = "") -> str:
    """Return the verdicts and findings of all migrations, at least one, with the checks folded.

    Args:
      reports: the reports.
      command: the command that made them, for the record.
    """
    lines = [f"## {summary_of(reports)}", ""] if len(reports) > 1 else []
    for report in reports:
        lines += _migration(report)
    lines += [_code(command), ""] if command else []
    return "\n".join([*lines, _text(reports[0].footer), ""])


def _migration(report: Report) -> Iterator[str]:
    yield f"### {_text(report.migration)} {_text(report.verdict_line)}"
    findings = report.findings
    for number, finding in enumerate(findings[:_MOST_FINDINGS], 1):
        yield ""
        yield from _finding(number, finding)
    if len(findings) > _MOST_FINDINGS:
        yield from ("", f"and {plural(len(findings) - _MOST_FINDINGS, 'more finding')}")
    for check in report.checks:
        if not check.compared:
            yield from ("", f"Not compared: {_text(check.name)}: {_text(check.summary)}")
    if report.sources:
        title, *sources = report.sources.splitlines()
        yield from ("", _text(title), "", *(f"- {_text(source)}" for source in sources))
    failed = sum(not check.ok for check in report.checks)
    rows = [
        (_text(check.name), check.verdict, f"{check.seconds:.1f} s", _text(check.headline)) for check in report.checks
    ]
    yield from ("", "<details>", f"<summary>{failed} of {plural(len(rows), 'check')} failed</summary>", "")
    yield from _table(("check", "result", "time", "summary"), rows)
    yield from ("", "</details>", "")
    if report.metrics:
        yield from ("<details>", f"<summary>{_text(METRICS)}</summary>", "")
        metrics = [
            (_text(name), _code(each.path), each.name, f"{each.mean:.6g}", f"{each.worst:.6g}")
            for name, each in report.metrics
        ]
        yield from _table(("check", "output", "metric", "mean", "worst"), metrics)
        yield from ("", "</details>", "")
    if report.audit.groups:
        yield from ("<details>", f"<summary>{_text(report.audit.summary)}</summary>", "")
        yield from _table(
            ("of", "hyperparameter", "TF1", "port"),
            [
                (_text(and_more(owners, _MOST_OWNERS)), *map(_text, values))
                for values, owners in report.audit.groups.items()
            ],
        )
        yield from ("", "</details>", "")


def _finding(number: int, finding: Finding) -> Iterator[str]:
    times = f" (at {plural(finding.count, 'place')})" if finding.count > 1 else ""
    yield f"**{number}. {_text(finding.title)}**{times}"
    yield ""
    places = {"TF1": finding.tf1, "port": finding.port}
    rows = [(who, *_cells(place)) for who, place in places.items() if place is not None]
    if rows:
        yield from _table(("", "where", "code", "value"), rows)
        yield ""
    facts = {
        "confirmed": finding.confirmed,
        "possible": "; ".join(finding.others),
        "what to do": finding.remedy,
        "shown by": ", ".join(finding.checks),
        "more": finding.symptom and f"detrand explain {finding.symptom}",
    }
    yield from (f"- {name}: {_text(text)}" for name, text in facts.items() if text)


def _cells(place: Place) -> tuple[str, str, str]:
    return _code(str(place)), _code(place.source), _code(place.value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        # A bar ends a cell, in code, too.
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _text(text: str) -> str:
    """Return a text in one line, without a character that Markdown or HTML gives a meaning."""
    return re.sub(r"([\\`*_<>\[\]#~])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """Return a text as code, between more backticks than it has."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""
