"""Scopes of the tool: entered, left, nested, as decorators and in threads; they leave nothing behind."""

import inspect
import random
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import stateful_random_ops

from detrand import ArgumentError, DeterministicRandomTestTool, ScopeError, SeedReuseError
from detrand._patching.tensorflow import global_seed_restored
from detrand.seeding import cursors
from tests._patching.test_patches import all_targets
from tests.support.tool_runs import (
    assert_same,
    draws,
    eagerly,
    in_function,
    in_session,
    parametrize_modes,
    parametrize_ways,
    three_draws,
)

v1 = tf.compat.v1


def process_state():
    """Everything of the process that a scope could leave changed."""
    eager = context.context()
    generator = stateful_random_ops.global_generator
    rng = getattr(eager, "_rng", None)
    return {
        "seed": eager._seed,
        "rng": rng and (rng, rng.getstate()),
        "generator": generator and (generator, generator.state.numpy().tolist()),
        "graph": (v1.get_default_graph(), v1.get_default_graph().seed),
        "patched": [
            (str(target), inspect.getattr_static(target.owner(), target.attribute)) for target in all_targets()
        ],
        "get_seed": random_seed.get_seed,
        "meta_path": list(sys.meta_path),
        "cursor": cursors.current(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
    }


@pytest.fixture
def unchanged():
    """Fail the test if the process is not afterwards as it was before."""
    state = process_state()
    yield
    after = process_state()
    for name, before in state.items():
        assert after[name] == before, name


@pytest.mark.usefixtures("unchanged")
class TestRestoration:
    @pytest.fixture(autouse=True, params=["unseeded", "seeded"])
    def seeded(self, request, unchanged):
        # A program that has set its own seed and one that has not; `unchanged` looks again after this is undone.
        if request.param == "unseeded":
            yield
            return
        with global_seed_restored():
            tf.random.set_seed(1234)
            before = process_state()
            yield
            assert process_state() == before

    @parametrize_modes
    def test_nothing_is_changed_after_a_scope(self, mode):
        with DeterministicRandomTestTool(mode=mode).scope():
            three_draws()
            in_session(three_draws)
            in_function(three_draws)

    def test_nothing_is_changed_after_an_exception(self):
        with pytest.raises(KeyError), DeterministicRandomTestTool().scope():
            three_draws()
            raise KeyError

    def test_nothing_is_changed_after_an_exception_in_a_session(self):
        with pytest.raises(KeyError), DeterministicRandomTestTool().scope(), tf.Graph().as_default(), v1.Session():
            raise KeyError

    def test_nothing_is_changed_after_an_exception_in_a_trace(self):
        @tf.function
        def function():
            tf.random.uniform([2])
            raise KeyError("traced")

        with pytest.raises(KeyError), DeterministicRandomTestTool().scope():
            function()

    def test_a_reused_op_seed_leaves_nothing_behind(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with pytest.raises(SeedReuseError), tool.scope():
            tf.random.uniform([2])
            tool.operation_seed = 0
            tf.random.uniform([2])

    def test_nothing_is_changed_after_nested_scopes(self):
        with DeterministicRandomTestTool().scope(), DeterministicRandomTestTool(1).scope():
            three_draws()

    def test_nothing_is_changed_after_seeds_set_inside(self):
        with DeterministicRandomTestTool().scope():
            tf.random.set_seed(99)
            tf.random.get_global_generator().normal([2])

    def test_nothing_is_changed_after_draws_from_the_global_seed(self):
        with DeterministicRandomTestTool().scope():
            if getattr(context.context(), "_rng", None) is not None:
                context.context()._internal_operation_seed()

    def test_the_global_generator_continues_unchanged(self, monkeypatch):
        monkeypatch.setattr(stateful_random_ops, "global_generator", tf.random.Generator.from_seed(3))
        with DeterministicRandomTestTool().scope():
            tf.random.get_global_generator().normal([2])
        actual = tf.random.get_global_generator().normal([3])
        desired = tf.random.Generator.from_seed(3).normal([3])
        np.testing.assert_array_equal(actual, desired)

    def test_nothing_is_set_before_the_scope_is_entered(self):
        before = process_state()
        scope = DeterministicRandomTestTool(7).scope()
        assert process_state() == before
        with scope:
            assert process_state()["patched"] != before["patched"]

    def test_a_default_graph_that_is_seeded_inside_is_seeded_afterwards(self):
        with DeterministicRandomTestTool().scope(), tf.Graph().as_default() as graph:
            v1.set_random_seed(5)
        assert graph.seed == 5

    def test_a_generator_of_the_users_own_is_untouched(self):
        desired = tf.random.Generator.from_seed(3).normal([3])
        tool = DeterministicRandomTestTool()
        with tool.scope():
            actual = tf.random.Generator.from_seed(3).normal([3])
            stateless = tf.random.stateless_uniform([3], [1, 2])
        np.testing.assert_array_equal(actual, desired)
        np.testing.assert_array_equal(stateless, tf.random.stateless_uniform([3], [1, 2]))
        assert [op.op_seed for op in tool.random_ops] == [None, None]


class TestScope:
    def test_a_scope_yields_the_tool(self):
        tool = DeterministicRandomTestTool()
        with tool.scope() as yielded:
            assert yielded is tool

    @parametrize_ways
    def test_nothing_is_governed_outside_a_scope(self, run):
        tool = DeterministicRandomTestTool()
        draws(tool)
        before = len(tool.random_ops)
        assert not np.array_equal(run(three_draws)[1], run(three_draws)[1])
        assert len(tool.random_ops) == before

    @parametrize_ways
    def test_the_innermost_scope_governs(self, run):
        outer, inner = (
            DeterministicRandomTestTool(1, "num_random_ops"),
            DeterministicRandomTestTool(2, "num_random_ops"),
        )
        desired = draws(DeterministicRandomTestTool(1, "num_random_ops"), run=run)
        with outer.scope():
            first = run(lambda: [tf.random.uniform((3, 1)) * 3])
            nested = draws(inner, run=run)
            rest = run(lambda: [tf.random.uniform((3, 3)) * 3, tf.random.uniform((3, 3)) * 3])
        assert_same(first + rest, desired)
        assert_same(nested, draws(DeterministicRandomTestTool(2, "num_random_ops"), run=run))

    def test_a_tool_inside_its_own_scope_goes_on_counting(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope(), tool.scope():
            tf.random.uniform([2])
        with tool.scope():
            tf.random.uniform([2])
        assert [op.op_seed for op in tool.random_ops] == [0, 1]

    def test_a_scope_that_is_entered_twice_raises(self):
        scope = DeterministicRandomTestTool().scope()
        with scope:
            pass
        with pytest.raises(ScopeError, match=r"has been entered before\. Call .*scope\(\) again"), scope:
            pass

    def test_leaving_without_entering_is_an_error(self):
        scope = DeterministicRandomTestTool().scope()
        with pytest.raises(ScopeError, match=r"left but never entered\. Use `with"):
            scope.__exit__(None, None, None)
        with scope:
            pass

    @pytest.mark.filterwarnings("default")
    def test_a_scope_that_is_never_entered_warns(self):
        with pytest.warns(RuntimeWarning, match=r"scope\(\) was called but never entered.*Write `with .*scope\(\):`"):
            DeterministicRandomTestTool().scope()

    @pytest.mark.usefixtures("unchanged")
    def test_leaving_in_another_thread_is_an_error(self):
        scope = DeterministicRandomTestTool().scope()
        scope.__enter__()
        errors = []

        def leave():
            try:
                scope.__exit__(None, None, None)
            except ScopeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert "left in another thread than the one that entered it" in errors[0]

    def test_a_patch_that_the_user_makes_inside_stays(self, monkeypatch):
        original = random_seed.get_seed
        with DeterministicRandomTestTool().scope():
            monkeypatch.setattr(random_seed, "get_seed", lambda op_seed: (1, 2))
            users = random_seed.get_seed
        assert random_seed.get_seed is users
        monkeypatch.undo()
        random_seed.get_seed = original


class TestDecorator:
    @parametrize_ways
    def test_each_call_is_a_scope(self, run):
        tool = DeterministicRandomTestTool(mode="num_random_ops")

        @tool.scope()
        def program():
            """Draws."""
            return run(three_draws)

        desired = draws(DeterministicRandomTestTool(mode="num_random_ops"), run=run)
        assert_same(program(), desired)
        assert program.__doc__ == "Draws."
        program()
        assert tool.operation_seed == 6
        assert cursors.current() is None

    def test_a_decorated_function_may_call_itself(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")

        @tool.scope()
        def program(depth):
            tf.random.uniform([2])
            return depth and program(depth - 1)

        program(2)
        assert [op.op_seed for op in tool.random_ops] == [0, 1, 2]
        assert cursors.current() is None

    def test_a_decorated_function_that_raises_leaves_the_scope(self):
        @DeterministicRandomTestTool().scope()
        def program():
            raise KeyError

        with pytest.raises(KeyError):
            program()
        assert cursors.current() is None

    def test_a_decorated_tf_function_draws_in_the_scope(self):
        tool = DeterministicRandomTestTool()
        program = tool.scope()(tf.function(three_draws))
        assert_same([tensor.numpy() for tensor in program()], draws(DeterministicRandomTestTool()))

    def test_generators_and_coroutines_are_refused(self):
        def generator():
            yield

        async def coroutine():
            pass

        for function in (generator, coroutine):
            scope = DeterministicRandomTestTool().scope()
            with pytest.raises(ArgumentError, match=f"cannot decorate .*{function.__name__}.* inside the body"):
                scope(function)
            with scope:
                pass

    def test_an_argument_that_is_no_function_is_refused(self):
        scope = DeterministicRandomTestTool().scope()
        with pytest.raises(ArgumentError, match=r"was applied to 3, which is not a function. Use `with"):
            scope(3)
        with scope:
            pass


def start_and_join(*functions):
    errors = []

    def guarded(function):
        def run():
            try:
                function()
            except BaseException as error:
                errors.append(error)

        return run

    threads = [threading.Thread(target=guarded(function)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("unchanged")
class TestThreads:
    def test_each_thread_has_its_own_scope(self):
        desired = {seed: draws(DeterministicRandomTestTool(seed, "num_random_ops")) for seed in range(4)}
        barrier, results = threading.Barrier(4), {}

        def program(seed):
            def run():
                tool = DeterministicRandomTestTool(seed, "num_random_ops")
                with tool.scope():
                    barrier.wait(60)
                    results[seed] = [eagerly(three_draws), in_session(three_draws)]
                    barrier.wait(60)

            return run

        start_and_join(*(program(seed) for seed in range(4)))
        for seed, (eager, _) in results.items():
            assert_same(eager, desired[seed])

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
    def test_nothing_is_changed_after_overlapping_scopes_are_left_in_any_order(self, order):
        entered = threading.Barrier(3)
        turns = [threading.Event() for _ in range(4)]
        turns[0].set()

        def program(position):
            def run():
                with DeterministicRandomTestTool(position).scope():
                    entered.wait(60)
                    turns[order.index(position)].wait(60)
                turns[order.index(position) + 1].set()

            return run

        start_and_join(*(program(position) for position in range(3)))

    def test_a_child_is_governed_by_its_parents_scope(self):
        results = []
        with DeterministicRandomTestTool().scope():
            start_and_join(lambda: results.append(eagerly(three_draws)))
        assert_same(results[0], draws(DeterministicRandomTestTool()))

    def test_a_grandchild_is_governed_by_its_grandparents_scope(self):
        results = []
        with DeterministicRandomTestTool().scope():
            start_and_join(lambda: start_and_join(lambda: results.append(eagerly(three_draws))))
        assert_same(results[0], draws(DeterministicRandomTestTool()))

    def test_a_childs_own_scope_counts(self):
        results = []
        with DeterministicRandomTestTool().scope():
            start_and_join(lambda: results.append(draws(DeterministicRandomTestTool(7))))
        assert_same(results[0], draws(DeterministicRandomTestTool(7)))

    def test_a_thread_that_was_started_before_is_not_governed(self):
        go, results = threading.Event(), []

        def run():
            go.wait(60)
            results.append([eagerly(three_draws), eagerly(three_draws)])

        thread = threading.Thread(target=run)
        thread.start()
        tool = DeterministicRandomTestTool()
        with tool.scope():
            go.set()
            thread.join()
        first, second = results[0]
        assert not np.array_equal(first[1], second[1])
        assert not tool.random_ops

    def test_a_child_that_outlives_the_scope_is_governed_no_longer(self):
        go, results = threading.Event(), []

        def run():
            go.wait(60)
            results.append([eagerly(three_draws), eagerly(three_draws)])

        thread = threading.Thread(target=run)
        with DeterministicRandomTestTool().scope():
            thread.start()
        go.set()
        thread.join()
        first, second = results[0]
        assert not np.array_equal(first[1], second[1])
