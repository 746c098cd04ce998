"""What is printed on a terminal, and into a file."""

import dataclasses
import io
import os

import numpy as np
import pytest
from rich.console import Console

from detrand import compare
from detrand.report.text import LiveLines, render, render_overview
from detrand.validation.noise.floor import NoiseFloor
from detrand.validation.report import Report
from detrand.validation.results import Audit, AuditedHyperparameter, CheckResult, Fault, Finding, Place

PASSED = CheckResult(name="variables-match", seconds=0.1, ok=True, summary="2 variables: " + "names are equal, " * 20)
EPSILON = Finding("computation", "epsilon differs: 0.001 (TF1), 1e-05 (port)", Place("bn"), Place("bn"))
FAILED = CheckResult(
    name="random-inference",
    seconds=12.0,
    ok=False,
    summary="outputs differ; first: output; first divergence at bn at model.py:3",
    details="the evidence",
    findings=(EPSILON, Finding("computation", "padding differs: VALID (TF1), SAME (port)")),
)
REPORT = Report(
    migration="net",
    checks=(PASSED, FAILED),
    seed=42,
    versions={},
    machine={},
    started="",
    tolerance="measured",
    audit=Audit(tuple(AuditedHyperparameter(f"conv{i}/kernel", "regularizer", "0.01", "none") for i in range(53))),
)


def printed(print_to, **arguments):
    file = io.StringIO()
    print_to(Console(file=file, width=80, **arguments))
    return file.getvalue().splitlines()


def live_lines(console):
    for check in (PASSED, FAILED):
        LiveLines(console).finished(check)


def test_each_check_has_one_line_in_a_file_and_on_a_terminal():
    passed, failed = printed(live_lines)
    assert passed == f"passed        variables-match           0.1 s  {PASSED.summary}"
    assert failed == f"FAILED        random-inference         12.0 s  {EPSILON.title}; and 1 more finding"
    assert len(printed(live_lines, force_terminal=True)) == 2


def test_a_check_that_repeats_a_finding_counts_it_once():
    check = dataclasses.replace(FAILED, findings=(EPSILON, EPSILON))
    assert printed(lambda console: LiveLines(console).finished(check))[0].endswith(EPSILON.title)


@pytest.mark.parametrize("verbose", [False, True])
def test_findings_are_last_and_then_the_verdict(verbose):
    lines = printed(lambda console: render(REPORT, console, verbose=verbose))
    assert lines[-1] == "net failed: 2 findings; 1 of 2 checks failed; first: random-inference"
    assert ("the evidence" in lines) == verbose
    findings = [number for number, line in enumerate(lines) if line.startswith("finding ")]
    assert len(findings) == 2
    assert findings[0] >= len(lines) - 12
    assert not verbose or lines.index("the evidence") < findings[0]


def test_hyperparameters_that_differ_alike_have_one_line():
    lines = printed(lambda console: render(REPORT, console))
    of_regularizers = [line for line in lines if "regularizer" in line]
    assert of_regularizers == [
        "  conv0/kernel, conv1/kernel, conv2/kernel and 50 more: regularizer 0.01 (TF1), none (port)"
    ]


def test_paths_in_the_working_directory_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside, outside = os.path.join(tmp_path, "port.py:3"), os.path.join(os.path.dirname(tmp_path), "port.py:3")
    assert str(Place("relu", f"{inside}, called at {outside}")) == f"relu at port.py:3, called at {outside}"
    assert Place("relu", inside).line == inside


def test_a_table_of_noise_has_the_outputs_that_use_most_of_their_tolerance_and_the_remarks():
    tf1 = [np.float32([1.0]) for _ in range(10)]
    port = [array + np.float32(1e-6) * i for i, array in enumerate(tf1)]
    noise = dataclasses.replace(NoiseFloor.least(tf1, {}), remarks={"float64": "Sqrt has no kernel"})
    checks = [
        dataclasses.replace(
            PASSED, name=name, noise=noise, comparisons={"outputs": compare(port, tf1, rtol=1e-4, atol=0)}
        )
        for name in ("random-inference", "random-training")
    ]
    report = dataclasses.replace(REPORT, checks=tuple(checks))
    lines = printed(lambda console: render(report, console, verbose=True))
    for check in checks:
        start = next(number for number, line in enumerate(lines) if line.lstrip("│ ").startswith(check.name))
        outputs = [line.split("│")[2].strip() for line in lines[start : start + 9]]
        assert outputs == [*(f"[{i}]" for i in range(9, 1, -1)), "and 2"]
    assert "float64: Sqrt has no kernel (random-inference, random-training)" in str(report).splitlines()
    assert "float64: Sqrt has no kernel (random-inference, random-training)" in lines


def test_the_verdict_on_several_migrations_is_last():
    other = dataclasses.replace(REPORT, checks=(PASSED,), migration="other")
    lines = printed(lambda console: render_overview([REPORT, other], console))
    assert lines[1:] == [
        "net failed: 2 findings; 1 of 2 checks failed; first: random-inference",
        "other passed: the only check passed",
        "1 of 2 migrations failed",
    ]


def test_a_check_that_did_not_compare_says_why_before_the_verdict():
    check = dataclasses.replace(PASSED, compared=False, summary="the port has no losses attribute")
    report = dataclasses.replace(REPORT, checks=(PASSED, check))
    lines = printed(lambda console: render(report, console))
    assert lines[-2:] == [
        "not compared: variables-match: the port has no losses attribute",
        "net inconclusive: 1 of 2 checks passed; not compared: variables-match",
    ]


def test_what_only_shows_where_numbers_are_alike_is_no_fault_once_all_is_explained():
    explained = dataclasses.replace(EPSILON, confirmed="in words", rest_agrees=True, checks=("random-inference",))
    unknown = Finding("computation", "in words", checks=("constant-weights",), fault=Fault.UNEXPLAINED)
    hidden = Finding("computation", "axis of Mean differs: 1 (TF1), 2 (port)", checks=("constant-weights",))
    mistaken = Finding("computation", "order of axes differs: (0, 1) (TF1), (1, 0) (port)", checks=("constant-mode",))
    trained = Finding("computation", "outputs differ", checks=("checkpoint",), fault=Fault.UNEXPLAINED)
    for first, expected in ((explained, [explained, hidden]), (EPSILON, [EPSILON, hidden, mistaken, unknown, trained])):
        of_checks = {"random-inference": (first,), "constant-weights": (unknown, hidden), "constant-mode": (mistaken,)}
        of_checks["checkpoint"] = (trained,)
        checks = tuple(dataclasses.replace(FAILED, name=name, findings=found) for name, found in of_checks.items())
        titles = [finding.title for finding in dataclasses.replace(REPORT, checks=checks).findings]
        assert titles == [finding.title for finding in expected]


def test_a_divergence_is_described_once_and_named_in_later_checks():
    place = "First divergence. Identical up to a, then:\n  TF1 computes       b\n  the port computes  c"
    texts = [f"{place}\n  {count} of 9 elements differ\n\noutputs: {count} differ" for count in (4, 5)]
    names = "random-inference", "random-training"
    checks = tuple(
        dataclasses.replace(FAILED, name=name, details=text, divergences=tuple(text.split("\n\n")[:1]))
        for name, text in zip(names, texts, strict=True)
    )
    assert dataclasses.replace(REPORT, checks=checks).evidence == {
        "random-inference": texts[0],
        "random-training": "Diverges as in random-inference.\n\noutputs: 5 differ",
    }
