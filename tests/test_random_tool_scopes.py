"""Scopes of the tool: entered, left, nested, as decorators and in threads; they leave nothing behind."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import stateful_random_ops

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    ScopeError,
    SeedReuseError,
    StepMismatchError,
    assert_no_variable_creations,
    forward_pass,
)
from detrand.seeding import cursors
from tests.support.interrupts import process_state
from tests.support.step_runs import session_runs
from tests.support.tool_runs import (
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
        with global_seed_kept():
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
        assert "left in a different thread from the one that entered it" in errors[0]

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

    def test_eight_threads_open_a_thousand_scopes_each(self):
        def run(number, results):
            tool = DeterministicRandomTestTool(number)
            for _ in range(1000):
                with tool.scope():
                    pass
            results[number] = draws(DeterministicRandomTestTool(number))

        before, results = process_state(), {}
        threads = [threading.Thread(target=run, args=(number, results)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process_state() == before
        for number in range(8):
            assert_same(results[number], draws(DeterministicRandomTestTool(number)))

    def test_a_call_in_a_pool_is_governed_by_the_scope_that_submits_it(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            outside = pool.submit(three_draws)
            with tool.scope():
                actual = pool.submit(three_draws).result()
            pool.submit(three_draws).result()
        outside.result()
        assert_same(actual, draws(DeterministicRandomTestTool(mode="num_random_ops")))
        assert tool.operation_seed == 3


@pytest.mark.usefixtures("unchanged")
class TestTasks:
    def test_each_asyncio_task_has_its_own_scope(self):
        async def draw(seed):
            numbers = []
            with DeterministicRandomTestTool(seed, "num_random_ops").scope():
                for _ in range(3):
                    numbers.append(tf.random.uniform([2]).numpy())
                    await asyncio.sleep(0)  # the other tasks run
            return numbers

        async def draw_in_tasks():
            return await asyncio.gather(*map(draw, range(4)))

        for seed, actual in enumerate(asyncio.run(draw_in_tasks())):
            assert_same(actual, asyncio.run(draw(seed)))

    def test_a_task_is_governed_by_the_scope_that_makes_it_until_that_ends(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")

        async def draw(ended):
            tf.random.uniform([2])
            await ended.wait()
            tf.random.uniform([2])

        async def outlive():
            ended = asyncio.Event()
            with tool.scope():
                task = asyncio.create_task(draw(ended))
                await asyncio.sleep(0)
            ended.set()
            await task

        asyncio.run(outlive())
        assert len(tool.random_ops) == 1

    def test_feeds_and_observers_of_one_task_are_not_those_of_another(self):
        async def call(number):
            with forward_pass({"x": number}), assert_no_variable_creations():
                await asyncio.sleep(0)
                return int(v1.placeholder(tf.int32, [], name="x"))

        async def create():
            await asyncio.sleep(0)
            return int(tf.Variable(7))

        async def call_in_tasks():
            return await asyncio.gather(call(1), create(), call(2))

        assert asyncio.run(call_in_tasks()) == [1, 7, 2]

    @staticmethod
    async def draw_in_steps(tool, name):
        numbers = []
        for _ in range(4):
            with tool.step(name):
                first = tf.random.uniform([2])
                await asyncio.sleep(0)  # the other tasks draw
                numbers.append((first.numpy(), tf.random.normal([2]).numpy()))
        return numbers

    def test_each_task_has_its_own_steps(self):
        desired, _ = session_runs(lambda _: (tf.random.uniform([2]), tf.random.normal([2])), "constant")
        tool = DeterministicRandomTestTool()

        async def draw_in_tasks():
            return await asyncio.gather(*(self.draw_in_steps(tool, name) for name in "ab"))

        with tool.scope():
            first, second = asyncio.run(draw_in_tasks())
        assert_same(first, desired)
        assert_same(second, desired)

    def test_two_tasks_in_steps_of_one_name_are_an_error(self):
        tool = DeterministicRandomTestTool()

        async def draw_in_tasks():
            await asyncio.gather(*(self.draw_in_steps(tool, "a") for _ in range(2)))

        with tool.scope(), pytest.raises(ScopeError, match=r"another thread or task is in .* give the steps of each"):
            asyncio.run(draw_in_tasks())

    def test_a_task_that_is_started_in_a_step_draws_in_it(self):
        desired, _ = session_runs(lambda _: (tf.random.uniform([2]), tf.random.normal([2])), "num_random_ops")
        tool, numbers = DeterministicRandomTestTool(mode="num_random_ops"), []

        async def draw(function):
            return function([2]).numpy()

        async def draw_in_steps():
            for _ in range(4):
                with tool.step():
                    numbers.append(await asyncio.gather(draw(tf.random.uniform), draw(tf.random.normal)))

        with tool.scope():
            asyncio.run(draw_in_steps())
        assert_same(numbers, desired)

    def test_a_task_that_outlives_its_step_is_an_error(self):
        tool = DeterministicRandomTestTool()

        async def draw(ended):
            await ended.wait()
            tf.random.uniform([2])

        async def outlive():
            ended = asyncio.Event()
            with tool.step():
                task = asyncio.create_task(draw(ended))
            ended.set()
            await task

        with tool.scope(), pytest.raises(StepMismatchError, match=r"task that was started in step 0 draws .* wait for"):
            asyncio.run(outlive())

    def test_calls_in_threads_of_a_task_have_op_nodes_of_their_own(self):
        tool, barrier = DeterministicRandomTestTool(), threading.Barrier(4)
        desired, _ = session_runs(lambda _: (tf.random.uniform([2]), tf.random.normal([3])), "constant")

        def draw(number):
            barrier.wait(60)
            draws = [tf.random.uniform([2]), tf.random.normal([3])] if number % 2 else [tf.random.normal([3])]
            return [draw.numpy() for draw in draws]

        async def draw_in_threads():
            return await asyncio.gather(*(asyncio.to_thread(draw, number) for number in range(4)))

        with tool.scope():
            for run in range(4):
                with tool.step():
                    actual = asyncio.run(draw_in_threads())
                for number, numbers in enumerate(actual):
                    assert_same(numbers, desired[run] if number % 2 else desired[run][1:])
        assert {op.op_type for op in tool.random_ops} == {"RandomUniform", "RandomStandardNormal"}

    @pytest.mark.parametrize("enter", [lambda tool: tool.scope(), lambda tool: tool.step()], ids=["scope", "step"])
    def test_leaving_in_another_task_is_an_error(self, enter):
        tool = DeterministicRandomTestTool()

        async def in_task(function, *args):
            return function(*args)

        async def enter_and_leave():
            entered = enter(tool)
            await asyncio.create_task(in_task(entered.__enter__))
            await asyncio.create_task(in_task(entered.__exit__, None, None, None))

        message = "^a (scope|step) was left in a different asyncio task from the one that entered it.*must not be async"
        with tool.scope(), pytest.raises(ScopeError, match=message):
            asyncio.run(enter_and_leave())

    def test_a_scope_may_be_left_in_a_task_that_it_governs(self):
        tool = DeterministicRandomTestTool()

        async def leave(scope):
            tf.random.uniform([2])
            scope.__exit__(None, None, None)

        async def enter():
            scope = tool.scope()
            scope.__enter__()
            await asyncio.create_task(leave(scope))
            tf.random.uniform([2])

        asyncio.run(enter())
        assert len(tool.random_ops) == 1


@pytest.mark.usefixtures("unchanged")
class TestGenerators:
    @staticmethod
    def numbers(seed):
        with DeterministicRandomTestTool(seed, "num_random_ops").scope():
            while True:
                yield tf.random.uniform([2]).numpy()

    @pytest.mark.parametrize("first", [0, 1])
    def test_suspended_generators_are_closed_in_any_order(self, first):
        generators = [self.numbers(seed) for seed in (0, 1)]
        for generator in generators:
            next(generator)
        generators[first].close()
        next(generators[1 - first])
        generators[1 - first].close()

    def test_a_generator_that_is_dropped_leaves_its_scope(self):
        next(self.numbers(0))
        assert cursors.current() is None

    def test_a_scope_that_is_dropped_ends_with_a_warning(self):
        with pytest.warns(RuntimeWarning, match=r"tool.scope\(\) was entered but never left, and ends here"):
            DeterministicRandomTestTool().scope().__enter__()
        assert cursors.current() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns if a test before has imported it
def test_a_forked_process_goes_on_in_the_scope():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        tool_seeds = cursors.current().next_seeds()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, repr(cursors.current().next_seeds()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        desired = cursors.current().next_seeds()
    assert tool_seeds != desired
    assert os.read(reading, 100).decode() == repr(desired)
    os.close(reading)
    os.close(writing)


def _draw_in_process(sender):
    outside = cursors.current() is None
    drawn = [tf.random.uniform([3, 1]).numpy() for _ in range(2)]
    sender.send((outside, drawn, draws(DeterministicRandomTestTool())))


@pytest.mark.slow
def test_a_spawned_process_begins_outside_of_every_scope():
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    tool = DeterministicRandomTestTool()
    with tool.scope():
        process = spawn.Process(target=_draw_in_process, args=(sender,))
        process.start()
        sender.close()  # an end of the process without an answer raises an EOFError
        outside, drawn, drawn_in_scope = receiver.recv()
        process.join(60)
    assert process.exitcode == 0
    assert outside
    assert not np.array_equal(*drawn)  # they are equal in a scope in "constant" mode
    assert not tool.random_ops
    assert_same(drawn_in_scope, draws(DeterministicRandomTestTool()))
