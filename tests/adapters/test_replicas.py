"""Replicas, workers and datasets draw what the same program draws in a session."""

import concurrent.futures
import contextlib
import json
import socket

import numpy as np
import pytest

from tests.support.dataset_programs import elements, elements_in_session
from tests.support.keras3_process import Program, run_on
from tests.support.step_runs import MODES, parametrize_modes

REPLICAS = 2
RUNS = 3
# The programs of replicas, each with the towers of a graph that compute the same.
PROGRAMS = {
    "draws": "towers",
    "all_reduced_draws": "merging_towers",
    "keras": "model_towers",
    "tf_keras": "model_towers",
}
WITH_STRATEGY = ("draws", "all_reduced_draws")  # run in a session, too
parametrize_programs = pytest.mark.parametrize("program", PROGRAMS)


def per_run_and_replica(values):
    """Return a list of runs, each a list of replicas, each a list of arrays."""
    count = len(values) // RUNS // REPLICAS
    values = iter(values)
    return [[[next(values) for _ in range(count)] for _ in range(REPLICAS)] for _ in range(RUNS)]


def assert_same(actual, desired):
    assert len(actual) == len(desired) > 0
    for one, other in zip(actual, desired, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.fixture(scope="module")
def outcome_of():
    """Run everything but the workers in one process with two devices."""
    cases = [("in_session", towers, mode) for towers in sorted(set(PROGRAMS.values())) for mode in MODES]
    cases += [("in_session", "unmerged_towers", "num_random_ops")]
    cases += [(way, program, mode) for way in ("in_steps", "in_function") for program in PROGRAMS for mode in MODES]
    cases += [("in_session_with_strategy", program, mode) for program in WITH_STRATEGY for mode in MODES]
    programs = [
        Program("tests.support.replica_programs", way, tuple(arguments), mode=None) for way, *arguments in cases
    ]
    # This runs last, because ops are deterministic from then on.
    programs += [Program("tests.support.dataset_programs", "parallel_map_with_op_determinism", (2,), mode=None)]
    outcomes = run_on("tensorflow", programs)
    by_case = dict(zip([*cases, "op determinism"], outcomes, strict=True))
    return lambda *case: by_case[case if len(case) > 1 else case[0]].checked().values


class TestMirroredStrategy:
    @pytest.mark.slow_except("all_reduced_draws-constant")
    @parametrize_modes
    @parametrize_programs
    def test_steps_equal_runs_of_two_towers(self, outcome_of, program, mode):
        assert_same(outcome_of("in_steps", program, mode), outcome_of("in_session", PROGRAMS[program], mode))

    @parametrize_modes
    @parametrize_programs
    def test_function_equals_runs_of_two_towers(self, outcome_of, program, mode):
        assert_same(outcome_of("in_function", program, mode), outcome_of("in_session", PROGRAMS[program], mode))

    @parametrize_modes
    @pytest.mark.parametrize("program", WITH_STRATEGY)
    def test_session_with_strategy_equals_two_towers(self, outcome_of, program, mode):
        desired = outcome_of("in_session", PROGRAMS[program], mode)
        assert_same(outcome_of("in_session_with_strategy", program, mode), desired)

    def test_replicas_and_runs_differ(self, outcome_of):
        values = outcome_of("in_steps", "draws", "num_random_ops")
        uniforms = {tuple(replica[0]) for run in per_run_and_replica(values) for replica in run}
        assert len(uniforms) == RUNS * REPLICAS

    def test_constant_replicas_draw_the_same(self, outcome_of):
        values = outcome_of("in_function", "draws", "constant")
        for first, second in per_run_and_replica(values):
            assert_same(first, second)


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return ["{}:{}".format(*each.getsockname()) for each in sockets]


@pytest.fixture(scope="module")
def workers():
    """Return the draws of each worker, by its own setting."""
    owned = "nothing", "seed", "op seeds"
    programs = [Program("tests.support.replica_programs", "in_worker", (own,), mode=None) for own in owned]
    cluster = {"worker": free_addresses(REPLICAS)}

    def run_worker(index):
        task = {"type": "worker", "index": index}
        return run_on("tensorflow", programs, TF_CONFIG=json.dumps({"cluster": cluster, "task": task}))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        by_worker = list(pool.map(run_worker, range(REPLICAS)))
    return {
        own: [outcome.checked().values for outcome in outcomes]
        for own, outcomes in zip(owned, zip(*by_worker, strict=True), strict=True)
    }


@pytest.fixture
def in_session(outcome_of):
    """Return what two towers with weights are in each run of a session."""
    return per_run_and_replica(outcome_of("in_session", "unmerged_towers", "num_random_ops"))


@pytest.mark.slow
class TestMultiWorkerMirroredStrategy:
    def test_workers_with_op_seeds_of_their_own_equal_two_towers(self, workers, in_session):
        for index, values in enumerate(workers["op seeds"]):
            desired = [array for run in in_session for array in run[index]]
            assert_same(values, desired * 2)  # in steps, and in a function

    def test_workers_with_one_seed_draw_the_same(self, workers, in_session):
        first, second = workers["nothing"]
        assert_same(first, second)
        desired = []
        for (weights, before, _, after), _ in in_session:
            desired += [weights, before, 2 * before, after]
        assert_same(first, desired * 2)

    def test_workers_with_their_own_seeds_share_only_the_weights(self, workers, in_session):
        weights = in_session[0][0][0]
        for values in workers["seed"]:
            assert_same(values[::4], [weights] * (2 * RUNS))
        first, second = ({tuple(before) for before in values[1::4]} for values in workers["seed"])
        assert len(first) == len(second) == RUNS
        assert not first & second


class TestDataset:
    def test_sequential_map_equals_session(self):
        assert_same(elements(None), elements_in_session(None))
        assert_same(elements(None), elements(None))

    @pytest.mark.parametrize("iterate", [elements, elements_in_session])
    def test_parallel_map_draws_the_same_numbers_for_other_elements(self, iterate):
        # Chance decides which call of the function reaches an op first, in a session too.
        assert_same([sorted(map(tuple, c)) for c in iterate(2)], [sorted(map(tuple, c)) for c in elements(None)])

    def test_parallel_map_equals_sequential_map_with_op_determinism(self, outcome_of):
        assert_same(outcome_of("op determinism"), elements_in_session(None) * 6)
