"""The suite of ports with one fault is complete; a few of its ports are run."""

import pytest

import detrand
from tests.faults.case import cases_of

KINDS = "activation axis constant dilation dtype extra flag gates gradient hidden initializer integer loop loss mask"
KINDS += " missing operation optimizer order padding pooling rate reduction regularizer resize seed sharing stride"
CASES = {case.name: case for case in cases_of("tests.faults.single")}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_fault_has_a_line(case) -> None:
    assert all(case.lines(fault) for fault in case.truth)


def test_a_hundred_faults_of_all_kinds() -> None:
    assert len(CASES) >= 100
    assert set(KINDS.split()) <= {case.kind for case in CASES.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_default_epsilon",
        "heads_split_by_a_reshape",
        "order_of_the_gates",
        "sum_over_the_batch",
        "selu_for_elu",
    ],
)
def test_a_port_fails_only_with_its_fault(name) -> None:
    assert not detrand.validate(CASES[name].migration(fault=True)).ok
    assert detrand.validate(CASES[name].migration(fault=False)).ok


@pytest.mark.slow
def test_a_fault_that_looks_like_swapped_variables_is_told_too() -> None:
    case = CASES["scores_transposed"]
    findings = detrand.validate(case.migration(fault=True)).findings
    assert {each.kind for each in findings} == {"variables", "computation"}
    (computation,) = (each for each in findings if each.kind == "computation")
    assert any(place in computation.port.line for fault in case.truth for place in case.lines(fault))
