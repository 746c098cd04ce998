"""The op seeds and records of streams; no framework takes part."""

import dataclasses
import tracemalloc

import pytest

from detrand.errors import ArgumentError, SeedReuseError
from detrand.seeding.callsite import Site
from detrand.seeding.cursors import Cursor
from detrand.seeding.streams import RandomOp, Stream

HERE = Site("model.py", 1)
THERE = Site("model.py", 2)


class TestStream:
    def test_constant_repeats_one_op_seed(self):
        stream = Stream(3, "constant")
        assert [stream.take(HERE, "compute")[0] for _ in range(3)] == [0, 0, 0]
        assert stream.operation_seed == 0

    def test_num_random_ops_mode_counts_op_seeds(self):
        stream = Stream(3, "num_random_ops")
        assert [stream.take(HERE, "compute")[0] for _ in range(3)] == [0, 1, 2]
        assert stream.operation_seed == 3

    @pytest.mark.parametrize(("mode", "next_seed"), [("constant", 7), ("num_random_ops", 8)])
    def test_operation_seed_can_be_set(self, mode, next_seed):
        stream = Stream(3, mode)
        stream.operation_seed = 7
        assert stream.take(HERE, "compute")[0] == 7
        assert stream.operation_seed == next_seed

    def test_an_unknown_mode_is_refused(self):
        with pytest.raises(ArgumentError, match=r"mode must be one of 'constant', 'num_random_ops', but 'random' was"):
            Stream(3, "random")

    @pytest.mark.parametrize("name", ["seed", "operation_seed"])
    @pytest.mark.parametrize(
        ("value", "given"),
        [
            pytest.param(1.0, r"1\.0 of type float", id="float"),
            pytest.param("1", "'1' of type str", id="str"),
            pytest.param(None, "None of type NoneType", id="none"),
            pytest.param(True, "True of type bool", id="bool"),
            pytest.param(-1, "-1 of type int", id="negative"),
            pytest.param(2**63, f"{2**63} of type int", id="too_large"),
        ],
    )
    def test_a_bad_seed_is_refused(self, name, value, given):
        stream = Stream(3, "constant")
        message = (
            rf"^{name} must be an integer from 0 to 2\*\*63 - 1, but {given} was given; pass an int, such as {name}="
        )
        with pytest.raises(ArgumentError, match=message):
            if name == "seed":
                Stream(value, "constant")
            else:
                stream.operation_seed = value
        assert stream.operation_seed == 0

    def test_the_greatest_seed_is_accepted(self):
        assert Stream(2**63 - 1, "constant").seed == 2**63 - 1

    def test_seeds_may_be_numpy_integers(self):
        np = pytest.importorskip("numpy")
        seed = Stream(np.int32(7), "constant").seed
        assert seed == 7
        assert type(seed) is int


class TestGivenOpSeeds:
    def test_the_next_ops_take_them_and_later_ops_those_above(self):
        stream = Stream(3, "num_random_ops")
        stream.give_next([5, 2, 5])
        taken = [stream.take(HERE, "compute") for _ in range(4)]
        assert [op_seed for op_seed, *_ in taken] == [5, 2, 5, 6]
        nodes = [node for *_, node in taken]
        assert nodes == [nodes[0], None, nodes[0], None]
        assert nodes[0].op_seed == 5

    def test_in_constant_mode_they_only_say_which_ops_are_runs_of_one(self):
        stream = Stream(3, "constant")
        stream.give_next([5, 2, 5])
        taken = [stream.take(HERE, "compute") for _ in range(4)]
        assert [op_seed for op_seed, *_ in taken] == [0] * 4
        nodes = [node for *_, node in taken]
        assert nodes == [nodes[0], None, nodes[0], None]
        assert nodes[0].op_seed == 0


def test_own_seeds_count_the_ops_that_draw_from_a_generator():
    class Generator:
        pass

    stream, generator, other = Stream(3, "constant"), Generator(), Generator()
    assert [stream.own_seed(7, each) for each in (generator, other, generator)] == [(7, 0), (7, 0), (7, 1)]
    assert [stream.own_seed(7, None) for _ in range(2)] == [(7, None)] * 2


class TestReuse:
    def test_the_message_names_the_seed_and_both_lines(self):
        stream = Stream(3, "num_random_ops")
        stream.take(Site("first.py", 10), "compute")
        stream.operation_seed = 0
        message = (
            r"op seed 0 was used first by random op 0 at first\.py:10 and is about to be used again at second\.py:20"
        )
        with pytest.raises(SeedReuseError, match=message) as caught:
            stream.take(Site("second.py", 20), "compute")
        assert "Set operation_seed above every op seed already used (the greatest is 0)" in str(caught.value)
        assert "use a new DeterministicRandomTestTool" in str(caught.value)
        assert isinstance(caught.value, ValueError)

    def test_a_refused_op_takes_no_seed(self):
        stream = Stream(3, "num_random_ops")
        stream.take(HERE, "compute")
        stream.operation_seed = 0
        with pytest.raises(SeedReuseError):
            stream.take(THERE, "compute")
        assert stream.operation_seed == 0
        assert len(stream.random_ops) == 1

    def test_counting_runs_into_a_seed_that_was_set(self):
        # The guide's example: op seed 1, then 0, then counting reaches 1 again.
        stream = Stream(3, "num_random_ops")
        stream.operation_seed = 1
        stream.take(HERE, "compute")
        stream.operation_seed = 0
        stream.take(HERE, "compute")
        with pytest.raises(SeedReuseError, match="op seed 1 was used first by random op 0"):
            stream.take(HERE, "compute")

    @pytest.mark.parametrize("again", [0, 1, 2, 10, 11, 5])
    def test_finds_the_first_user_in_any_range(self, again):
        stream = Stream(3, "num_random_ops")
        order = [0, 1, 2, 10, 11, 5]
        for position, op_seed in enumerate(order):
            stream.operation_seed = op_seed
            stream.take(Site("model.py", position), "compute")
        stream.operation_seed = again
        with pytest.raises(SeedReuseError, match=f"by random op {order.index(again)} at model.py.*greatest is 11"):
            stream.take(HERE, "compute")

    def test_constant_mode_allows_reused_op_seeds(self):
        stream = Stream(3, "constant")
        first = stream.take(HERE, "compute")[0]
        stream.operation_seed = 0
        assert stream.take(HERE, "compute")[0] == first == 0


class TestLastOpSeed:
    def test_the_greatest_op_seed_is_the_last(self):
        stream = Stream(3, "num_random_ops")
        stream.operation_seed = 2**63 - 1
        assert stream.take(HERE, "compute")[0] == 2**63 - 1
        message = (
            r"^the random op at model\.py:2 would take op seed 2\*\*63, but .* greatest is .* Set operation_seed to"
        )
        with pytest.raises(ArgumentError, match=message):
            stream.take(THERE, "compute")
        stream.operation_seed = 5
        assert stream.take(THERE, "compute")[0] == 5

    def test_the_greatest_op_seed_can_be_taken_again_in_constant_mode(self):
        stream = Stream(3, "constant")
        stream.operation_seed = 2**63 - 1
        assert [stream.take(HERE, "compute")[0] for _ in range(2)] == [2**63 - 1] * 2


class TestRecords:
    def test_records_that_differ_in_their_own_seed_only_are_equal(self):
        def op(own_seed=None):
            return RandomOp(0, 0, 0, "", None, "", "init", "model.py:1", own_seed)

        assert op((7, None)) == op() != dataclasses.replace(op(), run=1)

    def test_records_are_in_the_order_of_draws(self):
        stream = Stream(3, "num_random_ops")
        stream.take(HERE, "init")
        _, record, _ = stream.take(THERE, "compute")
        record.describe("RandomUniform", (2, None), "float32")
        first, second = stream.random_ops
        assert first == RandomOp(0, 0, 0, "", None, "", "init", "model.py:1")
        assert second == RandomOp(1, 1, 0, "RandomUniform", (2, None), "float32", "compute", "model.py:2")

    def test_change_when_an_op_is_described_after_they_were_read(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        cursor.next_seeds()
        assert [op.op_type for op in cursor.stream.random_ops] == [""]
        cursor.describe_last("RandomUniform", (2,), "float32")
        assert [op.op_type for op in cursor.stream.random_ops] == ["RandomUniform"]

    def test_a_record_takes_150_bytes(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        shape = [3, 3]
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(10_000):
                cursor.next_seeds()
                cursor.describe_last("RandomUniform", tuple(shape), "float32")
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after - before) / 10_000 < 150
