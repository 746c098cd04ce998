"""Steps of one name are the runs of one program, in scopes, in threads and around initializers."""

import concurrent.futures
import queue
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, ScopeError, StepMismatchError, track_tf1_style_variables
from tests.adapters.test_tensorflow import assert_same
from tests.support.step_runs import (
    normals,
    nothing,
    parametrize_modes,
    session_runs,
    session_runs_with,
    steps,
    uniform_then,
    uniforms,
    v1,
)

# --- Variables


@parametrize_modes
def test_variables_that_are_created_late_draw_run_0(mode):
    # In the graph of the reference, too, the variables are created after the draws.
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        draws = [tf.random.uniform([2]), tf.random.normal([2])]
        late = v1.get_variable("late", [3, 2])
        later = v1.get_variable("later", [2, 3])
        session.run(v1.global_variables_initializer())
        desired = [session.run(draws) for _ in range(5)]
        initial = session.run([late, later])
    tool = DeterministicRandomTestTool(mode=mode)
    actual, created = [], []
    with tool.scope():
        for k in range(5):
            with tool.step():
                first = tf.random.uniform([2])
                if k == 3:
                    created.append(tf.Variable(lambda: v1.glorot_uniform_initializer()([3, 2])))
                actual.append([first, tf.random.normal([2])])
                if k == 4:
                    layer = keras.layers.Dense(3, use_bias=False)
                    layer.build((None, 2))
                    created.append(layer.kernel.value)
    assert_same(actual, desired)
    assert_same([created], [initial])
    assert [(op.op_seed, op.run) for op in tool.random_ops if op.phase == "init"] == (
        [(2, 0), (3, 0)] if mode == "num_random_ops" else [(0, 0)] * 2
    )


class Shim(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, x):
        kernel = v1.get_variable("kernel", [2, 3])
        return tf.nn.dropout(tf.matmul(tf.nn.dropout(x, 0.5), kernel), 0.5)


@parametrize_modes
@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["eager", "function"])
def test_tf1_code_in_a_layer_draws_what_the_session_draws(wrap, mode):
    batches = [np.ones([4, 2], np.float32)] * 3
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [4, 2])
        kernel = v1.get_variable("kernel", [2, 3])
        outputs = tf.nn.dropout(tf.matmul(tf.nn.dropout(x, 0.5), kernel), 0.5)
        session.run(v1.global_variables_initializer())
        desired = [[session.run(outputs, {x: batch})] for batch in batches]
    actual, _ = steps(wrap(Shim()), mode, batches)
    assert_same(actual, desired)


# --- Programs: steps of one name are runs of one program


@parametrize_modes
def test_evaluation_between_training_steps_has_runs_of_its_own(mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        train = [tf.random.uniform([2]), tf.random.poisson([2], 5.0)]
        evaluate = [tf.random.uniform([3]), tf.random.shuffle(tf.range(9))]
        order = [train, train, evaluate, train, evaluate, train]
        desired = [session.run(fetches) for fetches in order]
    tool = DeterministicRandomTestTool(mode=mode)
    actual = []
    with tool.scope():
        for fetches in order:
            with tool.step(name="train" if fetches is train else "eval") as number:
                if fetches is train:
                    actual.append([tf.random.uniform([2]), tf.random.poisson([2], 5.0)])
                else:
                    actual.append([tf.random.uniform([3]), tf.random.shuffle(tf.range(9))])
            assert number == [fetches is other for other in order[: len(actual)]].count(True) - 1
    assert_same(actual, desired)


def test_the_name_of_a_step_is_train_by_default():
    tool = DeterministicRandomTestTool()
    numbers = []
    with tool.scope():
        for step in (tool.step(), tool.step(name="train"), tool.step("train")):
            with step as number:
                numbers.append(number)
    assert numbers == [0, 1, 2]


@parametrize_modes
def test_ops_outside_steps_continue_the_count(mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        for _ in range(3):
            tf.random.uniform([2])
            with tool.step():
                tf.random.normal([2])
    outside = [(op.op_seed, op.run) for op in tool.random_ops if op.op_type == "RandomUniform"]
    inside = [(op.op_seed, op.run) for op in tool.random_ops if op.op_type == "RandomStandardNormal"]
    assert outside == [(op_seed if mode == "num_random_ops" else 0, 0) for op_seed in (0, 2, 3)]
    assert inside == [(int(mode == "num_random_ops"), run) for run in range(3)]


@parametrize_modes
def test_steps_go_on_in_the_tools_next_scope(mode):
    desired, _ = session_runs(lambda _: [tf.random.uniform([2]), tf.random.poisson([2], 5.0)], mode)
    tool = DeterministicRandomTestTool(mode=mode)
    actual = []
    for number in range(4):
        with tool.scope(), tool.step() as k:
            actual.append([tf.random.uniform([2]), tf.random.poisson([2], 5.0)])
        assert k == number
    assert_same(actual, desired)


@parametrize_modes
def test_a_scope_inside_a_step_of_the_same_tool_draws_what_the_session_draws(mode):
    desired, _ = session_runs(lambda _: [tf.random.uniform([2]), tf.random.normal([2])], mode)
    tool = DeterministicRandomTestTool(mode=mode)
    draw = tool.scope()(normals)
    actual, _ = [], None
    with tool.scope():
        for _ in desired:
            with tool.step():
                actual.append([tf.random.uniform([2]), draw()])
    assert_same(actual, desired)


@parametrize_modes
def test_a_seed_without_an_op_before_other_phases(mode):
    # An initializer, or an op that is built only for its shape, does not use the seed that was asked for.
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        for _ in range(2):
            with tool.step():
                tf.nn.dropout(tf.ones([2]), 0)
                tf.Variable(normals)
                tf.nn.dropout(tf.ones([2]), 0)
                keras.layers.Dropout(0.5)(keras.Input((3,)), training=True)
                uniforms()
    assert [op.op_type for op in tool.random_ops] == ["", "RandomStandardNormal", "", "RandomUniform"] * 2
    assert [op.run for op in tool.random_ops] == [0, 0, 0, 0, 1, 0, 1, 1]


@parametrize_modes
def test_a_scope_inside_a_step_that_ends_with_a_seed_without_an_op(mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        for _ in range(3):
            with tool.step():
                with tool.scope():
                    tf.nn.dropout(tf.ones([2]), 0)
                uniforms()
    assert [op.run for op in tool.random_ops if op.op_type] == [0, 1, 2]


def test_a_step_of_another_tool_draws_that_tools_numbers():
    outer, inner = (DeterministicRandomTestTool(seed, "num_random_ops") for seed in (1, 2))
    desired = [[*a, *b] for a, b in zip(*(session_runs_with(tool) for tool in (outer, inner)), strict=True)]
    actual = []
    outer, inner = (DeterministicRandomTestTool(seed, "num_random_ops") for seed in (1, 2))
    with outer.scope():
        for _ in desired:
            with outer.step():
                with inner.scope(), inner.step():
                    nested_draw = uniforms()
                actual.append([uniforms(), nested_draw])
    assert_same(actual, desired)


def test_each_call_of_a_decorated_function_is_a_step():
    tool = DeterministicRandomTestTool(mode="num_random_ops")

    @tool.step()
    def train_step():
        return uniforms()

    desired = session_runs_with(DeterministicRandomTestTool(mode="num_random_ops"))
    with tool.scope():
        assert_same([[train_step()] for _ in desired], desired)


# --- Threads


def in_threads(*functions):
    results = [None] * len(functions)

    def run(i):
        try:
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class TestThreads:
    def test_threads_that_a_step_starts_draw_its_run(self):
        # Each thread has op nodes of its own, so the order of threads does not matter.
        tool = DeterministicRandomTestTool()
        desired = [
            [runs[0], runs[0], runs[1]] for runs in session_runs(lambda _: [uniforms(), normals()], "constant")[0]
        ]
        actual = []
        with tool.scope():
            for _ in desired:
                with tool.step():
                    drawn = in_threads(uniforms, uniforms)
                    actual.append([*drawn, normals()])
        assert_same(actual, desired)

    def test_a_thread_that_draws_a_different_op_in_the_next_step_raises(self):
        tool = DeterministicRandomTestTool()
        with tool.scope():
            with tool.step():
                in_threads(uniforms)
            with tool.step():
                (error,) = in_threads(normals)

                assert isinstance(error, StepMismatchError)
                assert "execution 1 of the work of the thread at" in str(error)

    def test_a_thread_that_draws_less_is_refused(self):
        tool = DeterministicRandomTestTool()
        with tool.scope():
            with tool.step():
                in_threads(uniform_then(normals))
            message = (
                r"^execution 1 of the work of the thread at .* ended before .* execution 0 .* drew RandomStandardNormal"
            )
            with pytest.raises(StepMismatchError, match=message), tool.step():
                in_threads(uniforms)

    def test_a_missing_thread_is_refused(self):
        tool = DeterministicRandomTestTool()
        with tool.scope():
            with tool.step():
                in_threads(uniforms)
            message = r"^step 1 ended without the thread at .*, in which step 0 drew"
            with pytest.raises(StepMismatchError, match=message), tool.step():
                pass

    def test_a_thread_that_outlives_the_step_is_refused(self):
        tool = DeterministicRandomTestTool()
        work, raised = queue.SimpleQueue(), queue.SimpleQueue()

        def run():
            for function in iter(work.get, None):
                try:
                    function()
                except StepMismatchError as error:
                    raised.put(str(error))
                else:
                    raised.put("")

        with tool.scope():
            with tool.step():
                thread = threading.Thread(target=run)
                thread.start()
                work.put(uniforms)
                assert not raised.get()
            work.put(uniforms)
            assert re.match(
                "a thread or task that was started in step 0 draws at .*, after that step has ended", raised.get()
            )
            work.put(None)
            thread.join()

    @pytest.mark.parametrize("starts", ["before the scope", "before the steps", "in the first step"])
    def test_a_call_in_a_pool_is_in_the_step_that_submits_it(self, starts):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            if starts == "before the scope":
                pool.submit(nothing).result()
            with tool.scope():
                if starts == "before the steps":
                    pool.submit(nothing).result()
                for _ in range(2):
                    with tool.step():
                        uniforms()
                        pool.submit(normals).result()
            pool.submit(uniforms).result()
        assert [(op.op_seed, op.run) for op in tool.random_ops] == [(0, 0), (1, 0), (0, 1), (1, 1)]

    def test_threads_may_each_have_steps_of_their_own(self):
        tool = DeterministicRandomTestTool()
        desired = session_runs_with(DeterministicRandomTestTool())

        def train(name):
            def run():
                drawn = []
                for _ in desired:
                    with tool.step(name=name):
                        drawn.append([uniforms()])
                return drawn

            return run

        with tool.scope():
            for drawn in in_threads(*(train(str(i)) for i in range(4))):
                assert_same(drawn, desired)

    def test_two_threads_may_not_be_in_steps_of_one_name(self):
        tool = DeterministicRandomTestTool()
        entered, left = threading.Event(), threading.Event()

        def hold():
            with tool.step():
                entered.set()
                left.wait(60)

        def enter():
            entered.wait(60)
            try:
                with tool.step():
                    pass
            finally:
                left.set()

        with tool.scope():
            _, error = in_threads(hold, enter)
            assert isinstance(error, ScopeError)
            assert "a step named 'train' was entered while another thread or task is in a step of that name" in str(
                error
            )
            with tool.step() as k:
                assert k == 1

    def test_a_thread_in_a_step_may_enter_no_other_step(self):
        tool = DeterministicRandomTestTool()

        def enter():
            with tool.step(name="other"):
                pass

        with tool.scope(), tool.step():
            (error,) = in_threads(enter)
        assert isinstance(error, ScopeError)
