"""The benchmarks run and say what they should; how fast anything is, is not asserted."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import detrand
from benchmarks import workloads

ROOT = Path(__file__).parents[1]
TRAINING_CASES = ["plain TensorFlow", "detrand constant", "detrand num_random_ops", "official constant"]
OP_CASES = [*TRAINING_CASES[:3], "tf.random.set_seed", "official constant", "official num_random_ops"]
SHIM_CASES = ["official, tf_keras layer", "detrand, tf_keras layer", "detrand, Keras 3 layer"]
NETWORKS = ["get_variable", "v1_layers", "resnet_v2"]
CASES = {"seeding/op": OP_CASES, "seeding/training_step": TRAINING_CASES}
for network in NETWORKS:
    CASES[f"shim/{network}/first_call"] = CASES[f"shim/{network}/later_call"] = SHIM_CASES
    CASES[f"shim/{network}/tf.function"] = ["no shim", *SHIM_CASES]


def benchmarks(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmarks") / "results.json"
    done = benchmarks("--quick", "--json", file)
    assert not done.returncode, done.stderr
    return json.loads(file.read_text()), done.stdout


def test_cases_in_order(run):
    assert {result["workload"]: [row["case"] for row in result["rows"]] for result in run[0]["results"]} == CASES


def test_numbers(run):
    for result in run[0]["results"]:
        for row in result["rows"]:
            for spread in (row["seconds"], row["ratio"]):
                assert 0 < spread["lower_quartile"] <= spread["median"] <= spread["upper_quartile"] < math.inf


def test_memory_is_measured_for_the_op(run):
    op, *others = run[0]["results"]
    assert op["memory_calls"] > 0
    assert all(isinstance(row["growth_bytes"], int) for row in op["rows"])
    assert all(row["growth_bytes"] is None for result in others for row in result["rows"])


def test_ops_are_counted_in_functions(run):
    for result in run[0]["results"]:
        is_function = result["workload"].endswith("/tf.function")
        for row in result["rows"]:
            assert isinstance(row["ops"], int) if is_function else row["ops"] is None


def test_says_what_was_measured(run):
    assert run[0]["quick"] is True
    assert set(run[0]["versions"]) == {"python", "tensorflow", "detrand"}


def test_table(run):
    table = run[1]
    for result in run[0]["results"]:
        assert result["title"] in table
    for case in {case for cases in CASES.values() for case in cases}:
        assert case in table
    assert "ratio to the first case" in table
    assert "growth over" in table
    assert "ops in the graph" in table
    assert "\x1b" not in table  # neither colours nor a progress line where nobody watches


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], list(CASES)),
        (["seeding"], list(CASES)[:2]),
        (["shim/v1_layers"], [name for name in CASES if name.startswith("shim/v1_layers/")]),
        (["shim/resnet_v2/later_call", "seeding/op"], ["seeding/op", "shim/resnet_v2/later_call"]),
    ],
    ids=["all", "group", "network", "several"],
)
def test_chosen_by_name(names, expected):
    assert [workload.name for workload in workloads.chosen(names)] == expected


@pytest.mark.parametrize("name", ["seed", "seeding/", "shim/v1_layers/first_call/x", ""])
def test_no_workload_of_that_name(name):
    with pytest.raises(ValueError, match=rf"no workload {name!r}.*, shim/resnet_v2/later_call, "):
        workloads.chosen(["seeding", name])


def test_wrong_name_on_the_command_line():
    done = benchmarks("seeding", "shin")
    assert done.returncode == 2
    assert "error: there is no workload 'shin', only seeding/op, " in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("network", NETWORKS)
def test_functions_execute_the_ops_that_they_have_without_a_shim(network):
    (workload,) = workloads.chosen([f"shim/{network}/tf.function"])
    without, *others = (described(case.graph) for case in workload.cases())
    assert len(without) > 50
    for ops in others:
        assert ops == without


def described(graph):
    """Every op by its type, the outputs that it takes, and the types and shapes of its own."""
    ops = graph.get_operations()
    positions = {op.name: position for position, op in enumerate(ops)}
    return [
        (
            op.type,
            [(positions[tensor.op.name], tensor.value_index) for tensor in op.inputs],
            [(tensor.dtype, str(tensor.shape)) for tensor in op.outputs],
        )
        for op in ops
    ]


@pytest.mark.parametrize("network", NETWORKS)
def test_variables_are_created_in_the_first_call_alone(network):
    """The official shim gives an unnamed scope a new name, and so new variables, in each call."""
    first, later = (workloads.chosen([f"shim/{network}/{which}_call"])[0].cases() for which in ("first", "later"))
    for case in first:
        with case.scope(), pytest.raises(detrand.errors.VariableCreationError), detrand.assert_no_variable_creations():
            case.call()
    for case in later:
        with case.scope(), detrand.assert_no_variable_creations():
            case.call()
