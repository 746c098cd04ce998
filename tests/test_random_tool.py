"""`DeterministicRandomTestTool`: the numbers of the guide, official behaviour, seeds and records."""

import contextlib
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from detrand import ArgumentError, DeterministicRandomTestTool, SeedReuseError
from detrand._patching.random_ops import RANDOM_OPS
from tests.support.tool_runs import (
    WAYS,
    assert_same,
    draws,
    eagerly,
    global_seed_kept,
    in_function,
    in_session,
    parametrize_modes,
    parametrize_ways,
    three_draws,
)

v1 = tf.compat.v1


def line():
    return inspect.currentframe().f_back.f_lineno


PRINTED_BY_THE_GUIDE = {
    # The whole of a, and the first row of b.
    "constant": (["2.5063772", "2.7488918", "1.4839486"], ["2.5063772", "2.7488918", "1.4839486"]),
    "num_random_ops": (["2.5063772", "2.7488918", "1.4839486"], ["0.45038545", "1.9197761", "2.4536333"]),
}


class TestGuide:
    """The fourth step of TensorFlow's guide "Validating correctness & numerical equivalence"."""

    @parametrize_modes
    @parametrize_ways
    def test_the_numbers_printed_by_the_guide_are_drawn(self, run, mode):
        a, b, _ = draws(DeterministicRandomTestTool(mode=mode), run=run)
        assert ([str(x) for x in a.ravel()], [str(x) for x in b[0]]) == PRINTED_BY_THE_GUIDE[mode]

    @parametrize_ways
    def test_constant_mode_repeats_numbers_and_num_random_ops_does_not(self, run):
        _, b, c = draws(DeterministicRandomTestTool(), run=run)
        np.testing.assert_array_equal(b, c)
        _, b, c = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        assert not np.allclose(b, c)

    @parametrize_ways
    def test_order_matters_in_num_random_ops_mode(self, run):
        a, b, _ = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        other = DeterministicRandomTestTool(mode="num_random_ops")
        b_prime, a_prime = draws(other, lambda: [tf.random.uniform((3, 3)) * 3, tf.random.uniform((3, 1)) * 3], run=run)
        assert not np.allclose(a, a_prime)
        assert not np.allclose(b, b_prime)

    def test_operation_seed_prints_0_1_2(self, capsys):
        random_tool = DeterministicRandomTestTool(mode="num_random_ops")
        with random_tool.scope():
            print(random_tool.operation_seed)
            tf.random.uniform(shape=(3, 1))
            print(random_tool.operation_seed)
            tf.random.uniform(shape=(3, 3))
            print(random_tool.operation_seed)
        assert capsys.readouterr().out.split() == ["0", "1", "2"]

    @parametrize_ways
    def test_setting_operation_seed_matches_another_order(self, run):
        a, b, _ = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        random_tool = DeterministicRandomTestTool(mode="num_random_ops")

        def program():
            random_tool.operation_seed = 1
            b_prime = tf.random.uniform(shape=(3, 3)) * 3
            random_tool.operation_seed = 0
            return [tf.random.uniform(shape=(3, 1)) * 3, b_prime]

        assert_same(draws(random_tool, program, run), [a, b])

    def test_a_reused_op_seed_raises_with_both_lines(self):
        random_tool = DeterministicRandomTestTool(mode="num_random_ops")
        with random_tool.scope():
            random_tool.operation_seed = 1
            first, _ = line(), tf.random.uniform(shape=(3, 3))
            random_tool.operation_seed = 0
            tf.random.uniform(shape=(3, 1))
            with pytest.raises(SeedReuseError) as caught:
                again = line()
                tf.random.uniform(shape=(3, 1))
        assert f"op seed 1 was used first by random op 0 at {__file__}:{first} and" in str(caught.value)
        assert f"is about to be used again at {__file__}:{again + 1}." in str(caught.value)

    def test_a_reused_op_seed_raises_a_value_error_in_a_graph(self):
        random_tool = DeterministicRandomTestTool(mode="num_random_ops")
        with random_tool.scope(), tf.Graph().as_default():
            tf.random.uniform([2])
            random_tool.operation_seed = 0
            with pytest.raises(ValueError, match="op seed 0 was used first by random op 0"):
                tf.random.uniform([2])


class TestOfficialBehaviour:
    def test_seed_and_mode_may_be_positional(self):
        tool = DeterministicRandomTestTool(3, "num_random_ops")
        assert repr(tool) == "DeterministicRandomTestTool(seed=3, mode='num_random_ops')"

    def test_the_default_seed_is_42_in_constant_mode(self):
        assert repr(DeterministicRandomTestTool()) == "DeterministicRandomTestTool(seed=42, mode='constant')"

    @parametrize_modes
    @parametrize_ways
    def test_explicit_op_seeds_are_overridden(self, run, mode):
        def seeded():
            return [
                tf.random.uniform([3], seed=7),
                tf.random.normal([3], seed=8),
                tf.nn.dropout(tf.ones([9]), 0.5, seed=9),
            ]

        def unseeded():
            return [tf.random.uniform([3]), tf.random.normal([3]), tf.nn.dropout(tf.ones([9]), 0.5)]

        first = draws(DeterministicRandomTestTool(5, mode), seeded, run)
        assert_same(first, draws(DeterministicRandomTestTool(5, mode), unseeded, run))

    @parametrize_ways
    def test_global_seeds_set_inside_are_overridden(self, run):
        def program():
            tf.random.set_seed(7)
            v1.set_random_seed(8)
            return three_draws()

        desired = draws(DeterministicRandomTestTool(), run=run)
        assert_same(draws(DeterministicRandomTestTool(), program, run), desired)

    @parametrize_ways
    def test_counting_goes_on_in_the_next_scope(self, run):
        whole = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        parts = draws(tool, lambda: [tf.random.uniform((3, 1)) * 3], run)
        parts += draws(tool, lambda: [tf.random.uniform((3, 3)) * 3, tf.random.uniform((3, 3)) * 3], run)
        assert_same(parts, whole)
        assert tool.operation_seed == 3

    @parametrize_ways
    def test_operation_seed_can_be_set_in_constant_mode(self, run):
        tool = DeterministicRandomTestTool()
        tool.operation_seed = 1
        constant = draws(tool, lambda: [tf.random.uniform((3, 3)) * 3, tf.random.uniform((3, 3)) * 3], run)
        _, b, _ = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        assert_same(constant, [b, b])

    def test_different_seeds_draw_different_numbers(self):
        assert not np.allclose(draws(DeterministicRandomTestTool(1))[1], draws(DeterministicRandomTestTool(2))[1])


class TestSeeds:
    @parametrize_modes
    @pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
    @pytest.mark.parametrize("operation_seed", [0, 2**31 - 1, 2**62])
    def test_seeds_of_every_size_draw_the_same_in_every_way(self, seed, operation_seed, mode):
        def program():
            return [
                tf.random.uniform([4]),
                tf.random.categorical([[0.1, 0.2, 0.9]], 9),
                tf.random.shuffle(tf.range(10)),
                tf.random.gamma([2], 1.0),
                tf.data.Dataset.range(10).shuffle(10).batch(10).get_single_element(),
            ]

        results = []
        for run in (in_session, in_session, eagerly, in_function):
            tool = DeterministicRandomTestTool(seed, mode)
            tool.operation_seed = operation_seed
            results.append(draws(tool, program, run))
        for result in results[1:]:
            assert_same(result, results[0])

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            pytest.param(1.5, "but 1.5 of type float was given; pass an int, such as seed=42", id="float"),
            pytest.param(
                -1, "from 0 to 2**63 - 1, but -1 of type int was given; pass an int, such as seed=42", id="negative"
            ),
        ],
    )
    def test_a_bad_seed_is_refused(self, value, message):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            DeterministicRandomTestTool(value)

    def test_a_bad_mode_is_refused(self):
        with pytest.raises(
            ArgumentError, match=r"one of 'constant', 'num_random_ops', but 3 was given\. 'constant' gives"
        ):
            DeterministicRandomTestTool(mode=3)

    def test_a_bad_operation_seed_is_refused(self):
        tool = DeterministicRandomTestTool()
        with pytest.raises(ArgumentError, match=r"operation_seed must be an integer from 0 to .*, but 'a' of type str"):
            tool.operation_seed = "a"


class TestRandomOps:
    def test_a_record_describes_each_op(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            here = line()
            tf.Variable(lambda: tf.random.normal([2]))
            tf.random.uniform([3, 4], dtype="float64")
            tf.random.categorical([[0.1, 0.9]], 5)
        init, uniform, categorical = tool.random_ops
        assert (init.index, init.op_seed, init.run, init.op_type, init.phase) == (
            0,
            0,
            0,
            "RandomStandardNormal",
            "init",
        )
        assert (uniform.shape, uniform.dtype, uniform.phase) == ((3, 4), "float64", "compute")
        assert uniform.caller == f"{__file__}:{here + 2}"
        assert (categorical.op_type, categorical.shape, categorical.dtype) == ("Multinomial", (1, 5), "int64")

    @pytest.mark.parametrize("rank", ["unknown_dimension", "unknown_rank"])
    def test_unknown_dimensions_are_recorded_as_none(self, rank):
        tool = DeterministicRandomTestTool()
        with tool.scope(), tf.Graph().as_default():
            shape = [None] if rank == "unknown_rank" else [2]
            tf.random.uniform(v1.placeholder("int32", shape))
        assert tool.random_ops[0].shape == (None if rank == "unknown_rank" else (None, None))

    def test_the_same_program_leaves_the_same_records(self):
        tools = [DeterministicRandomTestTool(mode="num_random_ops") for _ in WAYS]
        for tool, run in zip(tools, WAYS.values(), strict=True):
            draws(tool, run=run)
        assert tools[0].random_ops == tools[1].random_ops == tools[2].random_ops


@contextlib.contextmanager
def kernel_caches_watched(monkeypatch):
    """Count how often TensorFlow's kernel cache is cleared."""
    cleared = []
    monkeypatch.setattr(context.Context, "_clear_caches", cleared.append, raising=False)
    monkeypatch.setattr(context.Context, "clear_kernel_cache", cleared.append)
    monkeypatch.setattr(context.pywrap_tfe, "TFE_ContextClearCaches", cleared.append)
    yield cleared


PROGRAMS = {
    "uniform": lambda: tf.random.uniform([3]),
    "normal": lambda: tf.random.normal([3]),
    "integers": lambda: tf.random.uniform([3], 0, 9, "int32"),
    "gamma": lambda: tf.random.gamma([3], 2.0),
    "shuffle": lambda: tf.random.shuffle(tf.range(9)),
    "categorical": lambda: tf.random.categorical([[0.1, 0.2, 0.7]], 9),
    "poisson": lambda: tf.random.poisson([9], 3.0),
    "dropout": lambda: tf.nn.dropout(tf.ones([9]), 0.5),
    "candidates": lambda: tf.random.uniform_candidate_sampler([[1]], 1, 4, True, 9)[0],
}


class TestResetFree:
    def test_the_watch_sees_tensorflows_reset(self, monkeypatch):
        with global_seed_kept(), kernel_caches_watched(monkeypatch) as cleared:
            tf.random.set_seed(1)
        assert cleared

    @parametrize_modes
    def test_no_kernel_cache_is_cleared(self, mode, monkeypatch):
        with kernel_caches_watched(monkeypatch) as cleared:
            for program in PROGRAMS.values():
                draws(DeterministicRandomTestTool(mode=mode), lambda program=program: [program(), program()])
        assert not cleared

    @pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
    @parametrize_modes
    def test_the_same_program_draws_the_same_again_and_again(self, program, mode):
        results = [draws(DeterministicRandomTestTool(mode=mode), lambda: [program(), program()]) for _ in range(4)]
        for result in results[1:]:
            assert_same(result, results[0])

    @pytest.mark.parametrize("name", ["uniform", "normal", "integers", "gamma", "shuffle", "dropout"])
    def test_no_kernel_holds_a_seed(self, name):
        # A kernel is kept for each op with its attributes. Those of the stateless ops are the same for any op seed.
        executed = executed_eagerly(lambda: [PROGRAMS[name]() for _ in range(5)])
        drawing = {(op_type, attributes) for op_type, attributes in executed if op_type.startswith("Stateless")}
        assert len(drawing) == 1
        assert not {op_type for op_type, _ in executed} & set(RANDOM_OPS)

    def test_no_kernel_holds_a_seed_of_an_op_that_draws_nothing(self):
        candidates = tf.constant([3, 5], tf.int64)
        executed = executed_eagerly(
            lambda: [tf.nn.compute_accidental_hits(candidates[:, None], candidates, 1)[0] for _ in range(5)]
        )
        assert len({attributes for op_type, attributes in executed if op_type == "ComputeAccidentalHits"}) == 1


def executed_eagerly(program):
    """Return the type and the attributes of every op that a program runs in a scope."""
    executed = []

    def seen(op_type, inputs, attributes, outputs, op_name=None, graph=None):
        executed.append((tf.compat.as_str(op_type), str(attributes)))

    op_callbacks.add_op_callback(seen)
    try:
        draws(DeterministicRandomTestTool(mode="num_random_ops"), program)
    finally:
        op_callbacks.remove_op_callback(seen)
    return executed
