"""The findings as annotations, which GitHub shows at their lines of code: a workflow command for each of them.

Source: "Workflow commands for GitHub Actions" in GitHub's documentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from detrand.validation.report import Report
from detrand.validation.results import Finding


def render(reports: Sequence[Report]) -> str:
    """Return a line for each finding; empty if there are none."""
    return "".join(f"{_annotation(report, finding)}\n" for report in reports for finding in report.findings)


def _annotation(report: Report, finding: Finding) -> str:
    properties = {"title": f"{report.migration}: {finding.title}"}
    lines = [place.file_and_number for place in (finding.port, finding.tf1) if place is not None]
    for file, number in [(file, number) for file, number in lines if number][:1]:
        properties |= {"file": os.path.relpath(file), "line": str(number)}
    of = ",".join(f"{name}={_escaped(text, ':,')}" for name, text in properties.items())
    return f"::error {of}::{_escaped(str(finding))}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
