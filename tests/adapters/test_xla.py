"""Functions that XLA compiles draw, in call k, what a session draws in run k."""

import functools
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, assert_no_variable_creations, philox, variables_of
from detrand.errors import ScopeError
from tests.support.step_runs import parametrize_modes, session_runs

v1 = tf.compat.v1
FLOATS = ("float16", "bfloat16", "float32", "float64")
NORMAL_BOUND = 2e-6
CUBE = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

LOGITS = np.array([[0.1, 0.2, 0.7], [5, -2, 5], [0, 0, -30], [-np.inf, 0, -np.inf]], np.float32)


def compiled(program):
    return tf.function(program, autograph=False, jit_compile=True)


def uniforms():
    return tf.random.uniform([4])


def calls(make, mode, count=4):
    """Return what a function that `make` creates in the scope returns in each call, and the tool."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        function = make()
        return [[tensor.numpy() for tensor in tf.nest.flatten(function())] for _ in range(count)], tool


def assert_calls_equal_runs(make, program, mode, atol=0.0):
    desired, reference = session_runs(lambda _: program(), mode)
    actual, tool = calls(make, mode)
    for numbers, from_session in zip(actual, desired, strict=True):
        for array, expected in zip(numbers, from_session, strict=True):
            assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
            if atol:
                np.testing.assert_allclose(array.astype("float64"), expected.astype("float64"), rtol=0, atol=atol)
            else:
                np.testing.assert_array_equal(array, expected)
    return tool, reference


EXACT = {
    "uniform": lambda: [tf.random.uniform(shape, dtype=dtype) for dtype in FLOATS for shape in ([3, 5], [7], [])],
    "uniform between bounds": lambda: [
        tf.random.uniform([300], low, high, dtype) for dtype in FLOATS for low, high in ((0, 3), (-2, 3), (0.1, 0.7))
    ],
    "integers": lambda: [
        tf.random.uniform([3, 5], -3, 100, "int32", seed=5),
        tf.random.uniform([7], -(2**31), 2**31 - 1, "int32"),
        tf.random.uniform([7], -(2**40), 2**62, "int64"),
        tf.random.uniform([3], -(2**63), 2**63 - 1, "int64"),
    ],
    "dropout": lambda: [
        tf.nn.dropout(tf.ones([5, 3]), 0.3),
        tf.nn.dropout(tf.ones([5, 3], "float16"), 0.3, noise_shape=[5, 1]),
        v1.nn.dropout(tf.ones([5, 3], "float64"), keep_prob=0.7),
    ],
    "nothing": lambda: [tf.random.uniform([0, 3]), tf.random.normal([0]), tf.random.truncated_normal([2, 0])],
    "categorical": lambda: [
        tf.random.categorical(LOGITS, 9, "int32"),
        tf.random.categorical(tf.cast(LOGITS[:3], "float16"), 3, seed=5),
        tf.random.categorical(tf.zeros([64, 10], "float64"), 5),
    ],
    "shuffle": lambda: [tf.random.shuffle(tf.range(20)), tf.random.shuffle(CUBE)],
    "shuffle of little": lambda: [tf.random.shuffle(np.zeros(shape)) for shape in ([0, 3], [1, 2], [3, 0])],
    "raw ops": lambda: [
        tf.raw_ops.RandomUniform(shape=[3], dtype="float32"),
        tf.raw_ops.RandomUniform(shape=[3], dtype="float64", seed=-5, seed2=-6),
        tf.raw_ops.RandomUniformInt(shape=[9], minval=0, maxval=9, seed=-5, seed2=2**40),
    ],
    "much": lambda: [tf.random.uniform([300_001]), tf.random.shuffle(tf.range(3001))],
}


@pytest.mark.slow_except("raw ops-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("draw", EXACT.values(), ids=EXACT)
def test_exact_ops_draw_what_the_session_draws(draw, mode):
    def program():
        return tf.nest.flatten([draw(), uniforms()])

    tool, reference = assert_calls_equal_runs(lambda: compiled(program), program, mode)
    # A session has the records of one graph, and so has a function that is traced once.
    assert [described(op) for op in tool.random_ops] == [described(op) for op in reference.random_ops]


def described(op):
    return op.op_seed, op.run, op.op_type, op.shape, op.dtype, op.phase


@pytest.mark.slow_except("*-float32-num_random_ops", "*-float16-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("draw", [tf.random.normal, tf.random.truncated_normal], ids=["normal", "truncated normal"])
def test_normals_are_close_to_the_sessions(draw, dtype, mode):
    # XLA's logarithm, sine and cosine are not the C library's. Rounded to 16 bits, so few numbers differ (5 of
    # 900,009 float16 ones) that none is among these.
    atol = {"float32": NORMAL_BOUND, "float64": 1e-14}.get(dtype, 0)
    program = functools.partial(draw, [7, 9], dtype=dtype)
    assert_calls_equal_runs(lambda: compiled(program), program, mode, atol)


@pytest.mark.slow_except("normal")
@pytest.mark.parametrize("draw", [tf.random.normal, tf.random.truncated_normal], ids=["normal", "truncated normal"])
def test_many_normals_are_close_to_the_sessions(draw):
    program = functools.partial(draw, [300_001])
    assert_calls_equal_runs(lambda: compiled(program), program, "constant", NORMAL_BOUND)


def three_uniforms():
    return [uniforms(), uniforms(), uniforms()]


def a_function_called_twice():
    inner = tf.function(uniforms)
    return compiled(lambda: [inner(), uniforms(), inner()])


def a_compiled_function_called_twice():
    inner = compiled(uniforms)
    return tf.function(lambda: [inner(), uniforms(), inner()])


def a_compiled_function_in_another():
    inner = compiled(uniforms)
    return compiled(lambda: [inner(), uniforms(), inner()])


def a_concrete_function():
    return compiled(three_uniforms).get_concrete_function()


def functions_in_functions():
    inner = tf.function(lambda: [uniforms(), uniforms()])
    middle = tf.function(lambda: [uniforms(), inner()])
    return compiled(middle)


NESTED = [
    a_function_called_twice,
    a_compiled_function_called_twice,
    a_compiled_function_in_another,
    a_concrete_function,
    functions_in_functions,
]


@pytest.mark.slow_except("a_concrete_function-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("make", NESTED)
def test_functions_in_functions_draw_what_the_session_draws(make, mode):
    assert_calls_equal_runs(make, three_uniforms, mode)


@parametrize_modes
def test_a_function_that_was_traced_and_called_elsewhere_before(mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        inner = tf.function(uniforms)
        plain = [inner().numpy() for _ in range(2)]
        outer = compiled(inner)
        in_outer = [outer().numpy() for _ in range(2)]
        plain.append(inner().numpy())
    counted = mode == "num_random_ops"
    for op_seed, drawn in ((0, plain), (int(counted), in_outer)):
        for run, numbers in enumerate(drawn):
            np.testing.assert_array_equal(numbers, philox.uniform((4,), 42, op_seed, run))


def test_a_function_that_was_traced_outside_of_the_scope():
    inner = tf.function(uniforms)
    inner()
    actual, _ = calls(lambda: compiled(inner), "constant")
    np.testing.assert_array_equal(np.squeeze(actual), [philox.uniform((4,), 42, 0, run) for run in range(4)])


@parametrize_modes
def test_a_function_that_is_retraced_begins_anew(mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        draw = compiled(lambda x: tf.random.uniform(x.shape))
        drawn = [draw(tf.zeros([size])).numpy() for size in (2, 2, 3, 2)]
    other = int(mode == "num_random_ops")
    desired = [(2, 0, 0), (2, 0, 1), (3, other, 0), (2, 0, 2)]
    for numbers, (size, op_seed, run) in zip(drawn, desired, strict=True):
        np.testing.assert_array_equal(numbers, philox.uniform((size,), 42, op_seed, run))


def test_each_tool_and_trace_has_runs_of_its_own_and_goes_on_outside():
    def two_calls(seed):
        with DeterministicRandomTestTool(seed).scope():
            function = compiled(uniforms)
            return function, [function().numpy() for _ in range(2)]

    for seed in (1, 2):
        function, drawn = two_calls(seed)
        with DeterministicRandomTestTool(3).scope():
            drawn.append(function().numpy())
        drawn.append(function().numpy())
        np.testing.assert_array_equal(drawn, [philox.uniform((4,), seed, 0, run) for run in range(4)])


@pytest.mark.slow
def test_shapes_known_only_when_compiled_draw_the_same():
    draw = compiled(
        lambda x: (
            [f(tf.shape(x)) for f in (tf.random.uniform, tf.random.normal, tf.random.truncated_normal)]
            + [tf.random.uniform(tf.shape(x), 0, 9, "int32"), tf.random.shuffle(x)]
        )
    )

    def program(x):
        return draw.python_function(x)

    batches = [np.arange(size, dtype=np.float32) for size in (5, 5, 7, 2)]
    desired, _ = session_runs(program, "constant", batches)
    with DeterministicRandomTestTool().scope():
        draw = tf.function(draw.python_function, [tf.TensorSpec([None])], autograph=False, jit_compile=True)
        for batch, expected in zip(batches, desired, strict=True):
            for array, other in zip(draw(batch), expected, strict=True):
                np.testing.assert_allclose(array, other, rtol=0, atol=NORMAL_BOUND)


@pytest.mark.slow_except("num_random_ops")
@parametrize_modes
def test_loops_and_branches_draw_what_the_session_draws(mode):
    def program(inner=uniforms):
        rows = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, tf.concat([x[1:], inner()[None]], 0)),
            (0, tf.zeros([3, 4])),
            parallel_iterations=1,
        )[1]
        branch = tf.cond(tf.random.uniform([]) < 0.5, uniforms, lambda: -uniforms())
        return [rows, branch, uniforms()]

    for inner in (uniforms, tf.function(uniforms)):
        assert_calls_equal_runs(lambda inner=inner: compiled(functools.partial(program, inner)), program, mode)


@pytest.mark.slow_except("*-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("draw", [tf.random.uniform, tf.random.truncated_normal], ids=["uniform", "truncated normal"])
@pytest.mark.parametrize("is_callable", [True, False], ids=["initializer", "initial value"])
def test_variables_created_in_the_first_call_equal_the_sessions(draw, is_callable, mode):
    def make():
        inner = tf.function(uniforms)
        variables = []

        def program():
            first = inner()
            if not variables:
                variables.append(tf.Variable((lambda: draw([3])) if is_callable else draw([3])))
            return [first, variables[0] + 0, inner(), uniforms()]

        return compiled(program)

    def reference():
        first = uniforms()
        variable = v1.Variable(draw([3]))
        return [first, variable, uniforms(), uniforms()]

    assert_calls_equal_runs(make, reference, mode)


def test_initializers_are_not_compiled():
    def make():
        variables = []

        def program():
            if not variables:
                variables.append(tf.Variable(lambda: tf.random.gamma([3], 2.0)))
            return [variables[0] + 0, uniforms()]

        return compiled(program)

    def reference():
        return [v1.Variable(tf.random.gamma([3], 2.0)), uniforms()]

    assert_calls_equal_runs(make, reference, "num_random_ops")


def test_counters_are_nobodys_variables():
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(tf.ones([4]))

        @tf.function(jit_compile=True)
        def __call__(self, x):
            return tf.nn.dropout(x * self.weights, 0.5)

    with DeterministicRandomTestTool().scope():
        model = Model()
        with assert_no_variable_creations(), tf.GradientTape() as tape:
            model(tf.ones([4]))
        assert len(model.variables) == len(variables_of(model)) == len(tape.watched_variables()) == 1
        assert model.__call__.get_concrete_function(tf.ones([4])).variables == (model.weights,)


def test_gradients_pass_bounds_and_means():
    def gradients(tape_of):
        scales = [tf.constant(2.0), tf.constant(3.0)]
        return tape_of(scales, lambda: tf.random.uniform([5], *scales) * tf.random.normal([5], *scales))

    def by_tape(scales, draw):
        with tf.GradientTape() as tape:
            tape.watch(scales)
            drawn = draw()
        return tape.gradient(drawn, scales)

    program = functools.partial(gradients, lambda scales, draw: tf.gradients(draw(), scales))
    assert_calls_equal_runs(lambda: compiled(functools.partial(gradients, by_tape)), program, "num_random_ops", 1e-4)
    assert_calls_equal_runs(lambda: compiled(program), program, "num_random_ops", 1e-4)


def test_the_gradient_of_a_compiled_draw_is_found_outside_and_has_a_gradient():
    def powers(mean):
        return tf.reduce_sum(tf.random.normal([5], mean) ** 3)

    def derivatives(function):
        mean = tf.constant(2.0)
        with tf.GradientTape() as outer:
            outer.watch(mean)
            with tf.GradientTape() as inner:
                inner.watch(mean)
                drawn = function(mean)
            first = inner.gradient(drawn, mean)
        return [drawn, first, outer.gradient(first, mean)]

    found = []
    for way in (lambda function: function, compiled):
        with DeterministicRandomTestTool().scope():
            found.append(derivatives(way(powers)))
    np.testing.assert_allclose(*found, rtol=1e-5)


def loop(times, body, x):
    return tf.while_loop(lambda i, _: i < times, lambda i, x: (i + 1, body(x)), (0, x), maximum_iterations=times)[1]


def product(x):
    return x * tf.random.uniform([], dtype="float64")


LOOPS = {
    "in a loop": lambda x: loop(3, lambda x: loop(2, product, x), x),
    "in a conditional": lambda x: tf.switch_case(tf.cast(x * 2, tf.int32), [lambda: x, lambda: loop(3, product, x)]),
}


@pytest.mark.slow_except("in a loop-False")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("where", LOOPS)
def test_the_gradient_of_a_compiled_loop_that_draws(where, persistent):
    def program():
        x = tf.constant(0.5, tf.float64)
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            y = LOOPS[where](x)
        return [y, tape.gradient(y, x)]

    found = []
    for way in (tf.function, compiled):
        with DeterministicRandomTestTool(mode="num_random_ops").scope():
            found.append(way(program)())
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_a_compiled_function_that_nothing_refers_to_keeps_no_graph():
    def graphs():
        gc.collect()
        return sum(issubclass(type(thing), tf.Graph) for thing in gc.get_objects())  # no lazy module is asked

    def call():
        with DeterministicRandomTestTool().scope():
            compiled(lambda: [tf.random.normal([3], 2.0), tf.random.uniform([3], 2.0, 3.0)])()

    call()
    before = graphs()
    for _ in range(3):
        call()
    assert graphs() <= before


STEPS = 3
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
Y = np.cos(X.sum(axis=1, keepdims=True))


class Network:
    """Two layers with dropout between, and a step of gradient descent."""

    def __init__(self, variable):
        self.weights = [variable(lambda: tf.random.normal([4, 5])), variable(lambda: tf.random.normal([5, 1]))]

    def loss_and_mask(self):
        hidden = tf.tanh(tf.matmul(X, self.weights[0]))
        dropped = tf.nn.dropout(hidden, 0.4)
        return tf.reduce_mean((tf.matmul(dropped, self.weights[1]) - Y) ** 2), tf.not_equal(dropped, 0)


@parametrize_modes
@pytest.mark.parametrize("is_inside", [True, False], ids=["gradient inside", "gradient outside"])
def test_compiled_training_draws_the_sessions_masks(is_inside, mode):
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        network = Network(v1.Variable)
        loss, mask = network.loss_and_mask()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        masks = [session.run([mask, train])[0] for _ in range(STEPS)]
        desired = session.run(network.weights)
    with DeterministicRandomTestTool(mode=mode).scope():
        network = Network(tf.Variable)
        loss_and_mask = network.loss_and_mask if is_inside else compiled(network.loss_and_mask)

        def step():
            with tf.GradientTape() as tape:
                loss, mask = loss_and_mask()
            for weights, gradient in zip(network.weights, tape.gradient(loss, network.weights), strict=True):
                weights.assign_sub(0.1 * gradient)
            return mask

        function = compiled(step) if is_inside else step
        for expected in masks:
            np.testing.assert_array_equal(function(), expected)
    # The sums of matrix products and gradients, of at most 6 numbers each, are rounded in a different order: 2 units in
    # the last place for each of a step's two matrix products, forward and backward, and numbers below 4.
    bound = STEPS * 2 * 2 * 2 * np.spacing(np.float32(4)) / 2
    for weights, expected in zip(network.weights, desired, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=bound)


@pytest.mark.slow_except("num_random_ops")
@parametrize_modes
def test_a_compiled_keras_model_trains_as_the_session(mode):
    def reference():
        uniforms()  # as the initializer of the model's weights
        dropped = tf.nn.dropout(tf.constant(X), 0.5)
        return [dropped, tf.nn.dropout(dropped, 0.25)]

    desired, _ = session_runs(lambda _: reference(), mode, (None,) * STEPS)

    class Recorded(keras.layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(shape=(STEPS, 6, 4), initializer="zeros", trainable=False)

        def call(self, x):
            self.seen.assign(tf.concat([self.seen[1:], x[None]], 0))
            return x

    with DeterministicRandomTestTool(mode=mode).scope():
        recorded = [Recorded(), Recorded()]
        model = keras.Sequential(
            [
                keras.Input((4,), 6),
                keras.layers.Dropout(0.5),
                recorded[0],
                keras.layers.Dropout(0.25),
                recorded[1],
                keras.layers.Dense(4),
            ]
        )
        model.compile("sgd", "mse", jit_compile=True)
        model.fit(X, X, batch_size=6, epochs=STEPS, shuffle=False, verbose=0)
    for layer, expected in zip(recorded, zip(*desired, strict=True), strict=True):
        np.testing.assert_array_equal(layer.seen, expected)


REFUSED = {
    "RandomGamma": lambda: tf.random.gamma([3], 2.0),
    "RandomPoissonV2": lambda: tf.random.poisson([3], 2.0),
    "ParameterizedTruncatedNormal": lambda: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=[3], means=[0.0], stdevs=[1.0], minvals=[-1.0], maxvals=[2.0]
    ),
    "LogUniformCandidateSampler": lambda: tf.random.log_uniform_candidate_sampler([[1]], 1, 4, True, 10)[0],
}


@pytest.mark.parametrize("op_type", REFUSED)
def test_ops_that_cannot_be_compiled_are_named(op_type):
    with (
        DeterministicRandomTestTool().scope(),
        pytest.raises(ScopeError, match=rf"^{op_type} at .*test_xla.py:\d+ would be compiled .* outside the"),
    ):
        compiled(REFUSED[op_type])()


@tf.custom_gradient
def drawing_its_gradient(x):
    return x + 1.0, lambda gradient: gradient * tf.random.uniform([])


def its_gradient(function):
    x = tf.constant(1.0)
    return tf.gradients(function(x), x)


PARTS_WITHOUT_STATE = {
    "the gradient of a loop": lambda: its_gradient(
        lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, drawing_its_gradient(y)), (0, x))[1]
    ),
    "the gradient of a conditional": lambda: its_gradient(
        lambda x: tf.cond(x < 2, lambda: drawing_its_gradient(x), lambda: x)
    ),
    "the condition of a loop": lambda: tf.while_loop(lambda x: tf.random.uniform([]) < 0.5, lambda x: x + 1, [0]),
    "a tf.vectorized_map": lambda: tf.vectorized_map(lambda x: x + tf.random.uniform([]), tf.ones([3])),
}


@pytest.mark.parametrize("part", PARTS_WITHOUT_STATE)
def test_draws_where_no_op_can_count_its_runs_are_refused(part):
    message = f"RandomUniform at .*test_xla.py:[0-9]+ would be compiled by XLA in {part}, where"
    with DeterministicRandomTestTool().scope():
        with pytest.raises(ScopeError, match=message):
            compiled(PARTS_WITHOUT_STATE[part])()
        tf.function(PARTS_WITHOUT_STATE[part], autograph=False)()


@pytest.mark.parametrize("dimensions", [[3000, 10], [None, 10]], ids=["many", "unknown"])
def test_categorical_numbers_that_depend_on_the_machine(dimensions):
    draw = compiled(lambda x: tf.random.categorical(x, 5))
    with (
        DeterministicRandomTestTool().scope(),
        pytest.raises(ScopeError, match=r"^Multinomial at .*test_xla.py:\d+ .* 5 samples from logits of shape"),
    ):
        draw.get_concrete_function(tf.TensorSpec(dimensions))


def test_a_trace_that_was_made_elsewhere_is_refused():
    with DeterministicRandomTestTool().scope():
        for inner in (uniforms, tf.function(uniforms)):
            concrete = tf.function(inner).get_concrete_function()
            outer = compiled(lambda concrete=concrete: concrete())
            with pytest.raises(ScopeError, match=r"called at .*test_xla.py:\d+, .* with a RandomUniform in it"):
                outer()


def test_a_compiled_function_in_a_graph_raises_scope_error():
    with (
        DeterministicRandomTestTool().scope(),
        tf.Graph().as_default(),
        pytest.raises(ScopeError, match=r"^RandomUniform at .*test_xla.py:\d+ .* by a tf.compat.v1.Session"),
    ):
        compiled(uniforms)()


def test_outside_of_a_scope_nothing_is_changed():
    with DeterministicRandomTestTool().scope():
        pass
    types = [op.type for op in compiled(uniforms).get_concrete_function().graph.get_operations()]
    assert "RandomUniform" in types
    assert "ReadVariableOp" not in types


COMPILED_ONCE = """
import tensorflow as tf
from detrand import DeterministicRandomTestTool

x = tf.zeros([4, 3])
with DeterministicRandomTestTool(mode="num_random_ops").scope():
    for draw in (
        lambda: tf.random.uniform([4]),
        lambda: tf.random.uniform([4], 0, 9, "int32"),
        lambda: tf.random.normal([4]),
        lambda: tf.random.truncated_normal([4]),
        lambda: tf.random.shuffle(x),
        lambda: tf.random.categorical(x, 2),
        lambda: tf.nn.dropout(x, 0.3),
    ):
        function = tf.function(draw, jit_compile=True)
        for _ in range(3):
            function()
"""


@pytest.mark.slow
def test_xla_compiles_each_function_once():
    # XLA compiles again if a constant of the compiled code changes, such as a counter of runs.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_ONCE],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "device_compilation_profiler=1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert re.findall(r"Compiled __inference_\S+ (\d+) times", done.stderr) == ["1"] * 7
