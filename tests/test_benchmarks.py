"""The benchmarks run and say what they should; how fast anything is, is not asserted."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINING_CASES = ["plain TensorFlow", "detrand constant", "detrand num_random_ops", "official constant"]
OP_CASES = [*TRAINING_CASES[:3], "tf.random.set_seed", "official constant", "official num_random_ops"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmarks") / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", file]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(file.read_text()), done.stdout


def test_cases_in_order(run):
    op, step = run[0]["results"]
    assert [row["case"] for row in op["rows"]] == OP_CASES
    assert [row["case"] for row in step["rows"]] == TRAINING_CASES


def test_numbers(run):
    for result in run[0]["results"]:
        for row in result["rows"]:
            for spread in (row["seconds"], row["ratio"]):
                assert 0 < spread["lower_quartile"] <= spread["median"] <= spread["upper_quartile"] < math.inf


def test_memory_is_measured_for_the_op(run):
    op, step = run[0]["results"]
    assert op["memory_calls"] > 0
    assert all(isinstance(row["growth_bytes"], int) for row in op["rows"])
    assert all(row["growth_bytes"] is None for row in step["rows"])


def test_says_what_was_measured(run):
    assert run[0]["quick"] is True
    assert set(run[0]["versions"]) == {"python", "tensorflow", "detrand"}


def test_table(run):
    table = run[1]
    for case in OP_CASES:
        assert case in table
    assert "ratio to plain" in table
    assert "\x1b" not in table  # neither colours nor a progress line where nobody watches
