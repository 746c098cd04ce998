"""A few of the pairs of ops in place of each other, of which ``python -m tests.faults.pairs`` validates all."""

import pytest

from tests.faults.pairs import ACTIVATIONS, IMAGES, ROWS, STEPS, findings_of, images, is_one_cause, rows


@pytest.mark.parametrize(("tf1", "port"), [("relu", "relu6"), ("tanh", "softsign"), ("mish", "identity")])
def test_an_activation_in_place_of_another_one_is_one_finding(tf1, port):
    assert is_one_cause(findings_of(rows, ROWS, ACTIVATIONS[tf1], ACTIVATIONS[port]))


@pytest.mark.parametrize(("tf1", "port"), [("roll_rows", "identity"), ("max_pool", "avg_pool")])
def test_a_step_in_place_of_another_one_is_one_finding(tf1, port):
    assert is_one_cause(findings_of(images, IMAGES, STEPS[tf1], STEPS[port]))


@pytest.mark.parametrize("titles", [[], ["one", "two"], ["another result at Mean (Mean)"]])
def test_what_is_no_single_cause_is_told(titles):
    assert not is_one_cause(titles)
