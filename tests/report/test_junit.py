"""The checks as JUnit XML."""

import dataclasses
from xml.etree import ElementTree

from detrand.report import junit
from tests.report.test_text import FAILED, REPORT


def suites(*reports):
    return ElementTree.fromstring(junit.render(reports)).findall("testsuite")


def test_each_check_is_a_case_and_a_failed_one_has_its_findings():
    [suite] = suites(REPORT)
    assert suite.attrib == {"name": "net", "time": "12.100", "tests": "2", "failures": "1", "skipped": "0"}
    passed, failed = suite
    assert (passed.attrib, len(passed)) == ({"classname": "net", "name": "variables-match", "time": "0.100"}, 0)
    [failure] = failed
    assert failure.get("message") == "epsilon differs: 0.001 (TF1), 1e-05 (port); and 1 more finding"
    assert "padding differs: VALID (TF1), SAME (port)" in failure.text
    assert failure.text.endswith("the evidence")


def test_a_check_that_compared_nothing_is_skipped():
    nothing = dataclasses.replace(REPORT.checks[0], summary="no outputs", compared=False)
    [suite] = suites(dataclasses.replace(REPORT, checks=(nothing,)))
    assert suite.get("skipped") == "1"
    assert suite[0].find("skipped").get("message") == "no outputs"


def test_text_of_a_model_is_no_markup_and_may_hold_any_character():
    failed = dataclasses.replace(FAILED, details="<a & 'b'>\x00\x1b[31m", findings=())
    [suite] = suites(dataclasses.replace(REPORT, migration='"<net>\x00"', checks=(failed,)))
    assert suite.get("name") == '"<net>?"'
    assert suite[0].find("failure").text.endswith("<a & 'b'>??[31m")


def test_each_migration_is_a_suite():
    assert [suite.get("name") for suite in suites(REPORT, dataclasses.replace(REPORT, migration="b"))] == ["net", "b"]
