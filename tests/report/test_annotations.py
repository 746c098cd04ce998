"""The findings as annotations on GitHub."""

import dataclasses
import re
from urllib.parse import unquote

from detrand.report import annotations
from detrand.validation.results import Finding, Place
from tests.report.test_text import REPORT


def rendered(*findings):
    check = dataclasses.replace(REPORT.checks[1], findings=findings)
    return annotations.render([dataclasses.replace(REPORT, checks=(check,))])


def parsed(line):
    properties, message = re.fullmatch("::error ([^:]*)::(.*)", line).groups()
    return dict(each.split("=", 1) for each in properties.split(",")), message


def test_a_finding_is_shown_at_the_ports_line_or_else_at_that_of_tf1():
    tf1, port = Place("bn", "model.py:3"), Place("bn", "net, b.py:51, called at net, b.py:9")
    first, second, third = rendered(
        Finding("computation", "one", tf1, port), Finding("computation", "two", tf1), Finding("variables", "three")
    ).splitlines()
    assert parsed(first)[0] == {"title": "net%3A one", "file": "net%2C b.py", "line": "51"}
    assert parsed(second)[0] == {"title": "net%3A two", "file": "model.py", "line": "3"}
    assert parsed(third)[0] == {"title": "net%3A three"}


def test_a_text_cannot_end_its_annotation():
    finding = Finding("error", "100% wrong: a, b\n::error ::no", remedy="first\r\nsecond", symptom="error")
    [line] = rendered(finding).splitlines()
    properties, message = parsed(line)
    assert unquote(properties["title"]) == "net: 100% wrong: a, b\n::error ::no"
    assert unquote(message) == str(finding)


def test_without_findings_nothing_is_printed():
    assert rendered() == annotations.render([]) == ""
