"""The suite of ports with one fault is complete; a few of its ports are run."""

import pytest

import detrand
from tests.faults.case import cases_of

CASES = {case.name: case for case in cases_of("tests.faults.single")}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_fault_has_a_line(case) -> None:
    assert all(case.lines(fault) for fault in case.truth)


@pytest.mark.parametrize("name", ["layer_norm_default_epsilon"])
def test_a_port_fails_only_with_its_fault(name) -> None:
    assert not detrand.validate(CASES[name].migration(fault=True)).ok
    assert detrand.validate(CASES[name].migration(fault=False)).ok
