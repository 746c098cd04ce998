"""A few of the pairs of ops in place of each other, of which ``python -m tests.faults.pairs`` validates all."""

from dataclasses import replace

import pytest

import detrand
from detrand.validation.results import Fault
from tests.faults.pairs import ACTIVATIONS, IMAGES, ROWS, STEPS, findings_of, images, is_one_cause, rows


@pytest.mark.slow_except("tanh-softsign")
@pytest.mark.parametrize(("tf1", "port"), [("relu", "relu6"), ("tanh", "softsign"), ("mish", "identity")])
def test_an_activation_in_place_of_another_one_is_one_finding(tf1, port):
    assert is_one_cause(findings_of(rows, ROWS, ACTIVATIONS[tf1], ACTIVATIONS[port]))


@pytest.mark.parametrize(("tf1", "port"), [("roll_rows", "identity"), ("max_pool", "avg_pool")])
def test_a_step_in_place_of_another_one_is_one_finding(tf1, port):
    assert is_one_cause(findings_of(images, IMAGES, STEPS[tf1], STEPS[port]))


FINDING = detrand.Finding("computation", "factor differs", fault=Fault.VALUE)


@pytest.mark.parametrize(
    "findings", [[], [FINDING, FINDING], [replace(FINDING, fault=Fault.POSSIBLE)]], ids=["none", "two", "possible"]
)
def test_other_findings_are_not_one_cause(findings):
    assert is_one_cause([FINDING])
    assert not is_one_cause(findings)
