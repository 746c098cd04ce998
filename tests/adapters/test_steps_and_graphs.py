"""Graphs that eager steps call count their own runs: functions and datasets."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, StepMismatchError
from tests.adapters.test_tensorflow import PROGRAMS, assert_same, eager_run, records_of
from tests.support.step_runs import counted, normals, parametrize_modes, session_runs, steps, uniforms, v1

# --- Functions: their graphs count their runs


def test_a_function_between_eager_ops_keeps_its_op_seeds(mode="num_random_ops"):
    def make(wrap):
        inner = wrap(lambda x: tf.nn.dropout(x, 0.5) + tf.random.poisson([2], 5.0))
        return lambda _: [tf.random.normal([2]), inner(tf.ones([2])), tf.random.uniform([2])]

    desired, _ = session_runs(make(lambda function: function), mode)
    assert_same(steps(make(tf.function), mode)[0], desired)


@parametrize_modes
def test_a_function_in_a_loop_draws_what_the_session_draws(mode):
    def make(wrap):
        inner = wrap(lambda x: x * 0.5 + tf.random.uniform([2]))
        return lambda _: [counted(3, lambda x: inner(x) + tf.random.normal([2])), tf.random.uniform([2])]

    desired, _ = session_runs(make(lambda function: function), mode)
    assert_same(steps(make(tf.function), mode)[0], desired)
    assert_same(eager_run(lambda: make(tf.function)(None), mode)[0], desired[:1])


@parametrize_modes
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_function_that_creates_variables_draws_what_the_session_draws(make, mode):
    program = make()
    desired, reference = session_runs(lambda _: [*program(), tf.random.uniform([2])], mode)
    function = tf.function(make())
    actual, tool = steps(lambda _: [*function(), tf.random.uniform([2])], mode)
    assert_same(actual, desired)
    assert records_of(tool)[: len(records_of(reference))] == records_of(reference)


@parametrize_modes
def test_a_function_traced_before_the_steps_draws_what_the_session_draws(mode):
    desired, _ = session_runs(lambda _: [tf.random.uniform([2]), tf.random.normal([2])], mode)
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        function = tf.function(uniforms).get_concrete_function()
        actual = []
        for _ in desired:
            with tool.step():
                actual.append([function(), tf.random.normal([2])])
    assert_same(actual, desired)


@parametrize_modes
@pytest.mark.parametrize("seed", [5, None, np.int64(5), np.array(5), "five"], ids=repr)
def test_a_global_seed_that_each_step_sets_keeps_the_runs_of_a_function(seed, mode):
    def make(wrap):
        function = wrap(uniforms)

        def program(_):
            tf.random.set_seed(seed)
            return function()

        return program

    desired, _ = session_runs(lambda _: uniforms(), mode)
    assert_same(steps(make(tf.function), mode)[0], desired)


@parametrize_modes
def test_an_op_that_is_lifted_out_of_a_function(mode):
    # The op is executed once, when the function is traced.
    def program():
        with tf.init_scope():
            lifted = tf.random.uniform([2])
        return [lifted + 0.0, tf.random.uniform([2])]

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        function = tf.function(program)
        first, second = [], []
        for _ in range(3):
            with tool.step():
                lifted, drawn = function()
            first.append(lifted)
            second.append([drawn])
    desired = [[runs[-1]] for runs in session_runs(lambda _: [uniforms(), uniforms()], mode, [None] * 3)[0]]
    assert_same(second, desired)
    assert_same([first[1:]], [first[:1] * 2])


def noisy(x):
    return x + tf.random.uniform(())


TRACED_LATER = {
    "other_shape": (lambda function: function(tf.ones([2])), lambda function: function(tf.ones([3]))),
    "first_call": (lambda function: None, lambda function: function(tf.ones([2]))),
    "by_another": (lambda function: function(tf.ones([2])), lambda function: tf.function(function)(tf.ones([2]))),
    "made_anew": (lambda function: function(tf.ones([2])), lambda function: tf.function(uniforms)()),
    "vectorized_map": (lambda function: tf.vectorized_map(noisy, tf.ones([2])),) * 2,
}


@parametrize_modes
@pytest.mark.parametrize(("first", "second"), TRACED_LATER.values(), ids=TRACED_LATER)
def test_a_function_traced_in_a_later_step(first, second, mode):
    # Its kernels would begin at run 0, and draw the first step's numbers again.
    tool = DeterministicRandomTestTool(mode=mode)
    function = tf.function(lambda x: tf.nn.dropout(x, 0.5))
    with tool.scope():
        with tool.step():
            first(function)
        message = r"step 1 traces a random op at \S+\.py:\d+\. The new graph counts its runs from 0.*input_signature"
        with pytest.raises(StepMismatchError, match=message), tool.step():
            second(function)


@parametrize_modes
def test_a_vectorized_map_in_a_function_draws_in_each_step_what_the_session_draws(mode):
    def program():
        return tf.vectorized_map(noisy, tf.zeros([3]))

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        fetches = program()
        desired = [session.run(fetches) for _ in range(2)]
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        function = tf.function(program)
        for of_session in desired:
            with tool.step():
                np.testing.assert_array_equal(function(), of_session)


# --- Datasets: their ops count their runs, and a dataset that is created again starts again


@parametrize_modes
@pytest.mark.parametrize("reshuffle", [True, False], ids=["reshuffled", "not_reshuffled"])
def test_a_dataset_that_is_iterated_in_steps(reshuffle, mode):
    def dataset():
        numbers = tf.data.Dataset.range(10).shuffle(10, reshuffle_each_iteration=reshuffle).repeat()  # of many epochs
        return numbers.map(lambda x: tf.cast(x, "float32") + tf.random.uniform([])).batch(4)

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_initializable_iterator(dataset())
        batch = iterator.get_next()
        fetches = [batch, tf.nn.dropout(batch, 0.5)]
        session.run(iterator.initializer)
        desired = [session.run(fetches) for _ in range(8)]
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        actual = []
        for batch in dataset().take(8):
            with tool.step():
                actual.append([batch, tf.nn.dropout(batch, 0.5)])
    assert_same(actual, desired)


@parametrize_modes
def test_a_dataset_that_is_made_in_each_step(mode):
    # A session that initializes an iterator again creates its dataset again.
    def dataset():
        numbers = tf.data.Dataset.range(10).shuffle(10).repeat(2)
        return numbers.map(lambda x: tf.cast(x, "float32") + tf.random.uniform([])).batch(20)

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        before = tf.random.normal([2])
        iterator = v1.data.make_initializable_iterator(dataset())
        fetches = [before, iterator.get_next(), tf.random.uniform([2])]
        desired = []
        for _ in range(3):
            session.run(iterator.initializer)
            desired.append(session.run(fetches))
    actual, _ = steps(
        lambda _: [tf.random.normal([2]), next(iter(dataset())), tf.random.uniform([2])], mode, [None] * 3
    )
    assert_same(actual, desired)


@parametrize_modes
def test_a_function_that_is_called_by_a_dataset_made_in_each_step(mode):
    # The dataset's own function is traced in each step, and so is what it calls.
    inner = tf.function(lambda x: x + tf.random.normal([]))

    def dataset(function):
        numbers = tf.data.Dataset.range(4).map(lambda x: function(tf.cast(x, "float32")) * tf.random.uniform([]))
        return numbers.batch(4)

    def draw(function):
        return lambda _: [next(iter(dataset(function))), tf.random.uniform([2])]

    plain = steps(draw(lambda x: x + tf.random.normal([])), mode, [None] * 3)[0]
    assert_same(steps(draw(inner), mode, [None] * 3)[0], plain)
    np.testing.assert_array_equal(plain[0][0], plain[2][0])


@parametrize_modes
def test_a_function_that_creates_variables_when_a_dataset_calls_it(mode):
    def run(make_before):
        variables = []

        def make():
            variables.append(tf.Variable(lambda: tf.random.normal([])))

        @tf.function
        def function(x):
            if not variables:
                make()
            return x + variables[0] + tf.random.uniform([])

        tool = DeterministicRandomTestTool(mode=mode)
        drawn = []
        with tool.scope():
            if make_before:
                make()
            for _ in range(3):
                with tool.step():
                    numbers = tf.data.Dataset.range(3).map(lambda x: function(tf.cast(x, "float32")) * normals()[0])
                    drawn.append([next(iter(numbers.batch(3))), uniforms()])
        return drawn

    assert_same(run(make_before=False), run(make_before=True))
