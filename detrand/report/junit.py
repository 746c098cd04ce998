"""The checks as JUnit XML, which CI servers show: a suite for each migration, a case for each check."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from detrand.validation.report import Report
from detrand.validation.results import CheckResult

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(reports: Sequence[Report]) -> str:
    """Return the checks of all migrations as XML text."""
    root = ET.Element("testsuites")
    for report in reports:
        counts = {
            "tests": len(report.checks),
            "failures": sum(not check.ok for check in report.checks),
            "skipped": sum(not check.compared for check in report.checks),
        }
        suite = ET.SubElement(root, "testsuite", name=_text(report.migration), time=f"{report.seconds:.3f}")
        suite.attrib |= {name: str(count) for name, count in counts.items()}
        for check in report.checks:
            _add_case(suite, report, check)
    ET.indent(root)
    return f"{ET.tostring(root, encoding='unicode', xml_declaration=True)}\n"


def _add_case(suite: ET.Element, report: Report, check: CheckResult) -> None:
    of = {"classname": _text(report.migration), "name": check.name, "time": f"{check.seconds:.3f}"}
    case = ET.SubElement(suite, "testcase", of)
    if check.metrics:
        properties = ET.SubElement(case, "properties")
        for each in check.metrics:
            ET.SubElement(properties, "property", name=_text(f"{each.path} {each.name}"), value=f"{each.mean:.6g}")
    if not check.ok:
        failure = ET.SubElement(case, "failure", message=_text(check.headline))
        failure.text = _text("\n\n".join([*map(str, check.findings), check.details]))
    elif not check.compared:
        ET.SubElement(case, "skipped", message=_text(check.summary))


def _text(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _NOT_IN_XML.sub("?", text)
