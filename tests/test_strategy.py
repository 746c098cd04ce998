"""Ports on the replicas of a strategy: each gets a part of the batch, and together they compute what TF1 does."""

import json

import numpy as np
import pytest

from detrand import ArgumentError, Migration, TrainStep
from tests.keras3_process import Program, run_on

KITS = ("keras", "tf_keras")
CASES = [
    *(("checks", kit) for kit in KITS),
    *(("checks_on_a_strategy", kit) for kit in KITS),
    *(("checks_without_dropout", kit) for kit in KITS),
    *((name,) for name in ("checks_of_another_activation", "checks_of_an_odd_batch", "checks_on_no_strategy")),
]
INFERENCE = ("variables-created-once", "variables-match", "constant-weights", "random-inference")
NOT_COMPARED = "not compared: each replica draws numbers of its own; validate the port without the strategy, too"


@pytest.fixture(scope="module")
def found():
    """Runs all of it in one process, which has two devices."""
    programs = [Program("tests.replicated_migrations", name, tuple(rest), mode=None) for name, *rest in CASES]
    outcomes = dict(zip(CASES, run_on("tensorflow", programs), strict=True))
    return lambda *case: dict(outcomes[case].checked().values)


@pytest.mark.parametrize("kit", KITS)
@pytest.mark.parametrize("name", ["checks", "checks_on_a_strategy"])
def test_inference_is_compared_and_what_replicas_draw_is_not(found, name, kit):
    checks = found(name, kit)
    assert all(checks[check].startswith("passed: ") for check in INFERENCE)
    assert "; the port on replicas, each with a part of the batch" in checks["random-inference"]
    assert checks["random-training"] == checks["constant-mode"] == NOT_COMPARED
    # Nobody is to take for proved what was not looked at.
    assert checks["verdict"].endswith(": 4 of 6 checks passed, not compared: random-training, constant-mode")
    assert [check["compared"] for check in json.loads(checks["json"])["checks"]] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("kit", KITS)
def test_training_is_compared_where_nothing_is_drawn(found, kit):
    checks = found("checks_without_dropout", kit)
    assert sum(result.startswith("passed: ") for result in checks.values()) == 6
    assert checks["verdict"].endswith(": all 6 checks passed")


def test_a_fault_is_found(found):
    checks = found("checks_of_another_activation")
    failed = [name for name, result in checks.items() if result.startswith("FAILED: outputs differ, first ['hidden']")]
    assert failed == ["constant-weights", "random-inference", "random-training", "constant-mode"]


def test_a_batch_that_cannot_be_split(found):
    error = found("checks_of_an_odd_batch")["error"]
    assert "have shape (5, 5), whose batch cannot be split among 2 replicas; give inputs with a batch of" in error


def test_a_function_that_makes_no_strategy(found):
    assert "returned 3 of type int; return a tf.distribute.Strategy" in found("checks_on_no_strategy")["error"]


def arguments(**changes):
    return {"tf1": lambda x, training: x, "tf2": lambda: None, "inputs": np.ones((4, 2), np.float32), **changes}


def test_what_is_no_strategy():
    with pytest.raises(ArgumentError, match=r"must be a tf.distribute.Strategy, .* but 'mirrored' of type str was"):
        Migration(**arguments(strategy="mirrored"))


def test_training_steps_are_not_compared():
    train = TrainStep(
        labels=np.ones(4, np.float32),
        tf1_loss=lambda labels, outputs: 0.0,
        tf2_loss=lambda labels, outputs: 0.0,
        tf1_optimizer=lambda: None,
        tf2_optimizer=lambda: None,
    )
    with pytest.raises(ArgumentError, match="strategy cannot be combined with train"):
        Migration(**arguments(strategy=lambda: None, train=train))
