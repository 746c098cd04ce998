"""TensorFlow programs in a session, eagerly and in functions: variables, control flow, gradients, devices."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand._patching.tensorflow import GET_SEED

v1 = tf.compat.v1
parametrize_modes = pytest.mark.parametrize("mode", ["constant", "num_random_ops"])


def session_runs(program, mode, runs=1):
    """Return what `program()`'s tensors are in each run of a session, and the tool."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        tensors = tf.nest.flatten(program())
        session.run(v1.global_variables_initializer())
        return [session.run(tensors) for _ in range(runs)], tool


def function_runs(program, mode, runs=1, **kwargs):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        function = tf.function(program, **kwargs)
        return [[tensor.numpy() for tensor in tf.nest.flatten(function())] for _ in range(runs)], tool


def eager_run(program, mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        return [[tensor.numpy() for tensor in tf.nest.flatten(program())]], tool


def assert_same(actual, desired):
    for a_run, b_run in zip(actual, desired, strict=True):
        for a, b in zip(a_run, b_run, strict=True):
            np.testing.assert_array_equal(a, b)


def records_of(tool):
    """Return what a tool's records have in common in every way of executing one program."""
    return [(op.op_type, op.op_seed, op.phase) for op in tool.random_ops]


@pytest.mark.parametrize("target", GET_SEED, ids=str)
def test_by_whatever_name_seeds_are_asked_for(target):
    v1.get_seed  # noqa: B018, the name is loaded before the scope
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        seeds = [target.checked()(op_seed) for op_seed in (None, 5)]
    assert seeds == [(42, 0), (42, 1)]


class Holder:
    """A callable that creates its variables in the first call, as Keras layers and Sonnet modules do."""

    def __init__(self, make):
        self._make = make
        self._made = None

    def __call__(self):
        if self._made is None:
            self._made = self._make()
        return self._made


def variable_on_an_object():
    variable = Holder(lambda: tf.Variable(tf.random.normal([3])))

    def program():
        before = tf.random.uniform([2])
        return [before, variable() + 0.0, tf.random.uniform([2])]

    return program


def variable_with_a_callable():
    variable = Holder(lambda: tf.Variable(lambda: tf.random.truncated_normal([3])))
    return lambda: [tf.random.uniform([2]), variable() + 0.0, tf.random.uniform([2])]


def two_variables_and_dropout():
    first = Holder(lambda: tf.Variable(lambda: v1.glorot_uniform_initializer()([4, 4])))
    second = Holder(lambda: tf.Variable(lambda: v1.glorot_uniform_initializer()([4, 2])))

    def program():
        hidden = tf.nn.dropout(tf.matmul(tf.ones([3, 4]), first()), 0.5)
        return [hidden, tf.nn.dropout(tf.matmul(hidden, second()), 0.5)]

    return program


def draws_in_a_python_loop():
    variable = Holder(lambda: tf.Variable(lambda: tf.random.normal([3])))
    return lambda: [variable() + tf.random.uniform([3]) for _ in range(3)]


def functions_made_anew(with_a_variable=False):
    variable = Holder(lambda: tf.Variable(tf.random.uniform([2])))
    within = Holder(lambda: tf.Variable([1.0, 2.0])) if with_a_variable else lambda: 1.0

    def program():
        made_anew = tf.function(lambda: within() * tf.random.uniform([2]))
        return [variable() + tf.random.normal([2]), made_anew(), tf.random.uniform([2])]

    return program


def functions_made_anew_with_a_variable():
    return functions_made_anew(with_a_variable=True)


PROGRAMS = (
    variable_on_an_object,
    variable_with_a_callable,
    two_variables_and_dropout,
    draws_in_a_python_loop,
    functions_made_anew,
    functions_made_anew_with_a_variable,
)
parametrize_programs = pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)


@parametrize_modes
@parametrize_programs
class TestVariablesCreatedOnTheFirstCall:
    """A `tf.function` that creates variables is traced twice."""

    def test_a_function_draws_what_the_session_draws(self, make, mode):
        desired, reference = session_runs(make(), mode, runs=3)
        actual, tool = function_runs(make(), mode, runs=3)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_eager_code_draws_what_the_session_draws(self, make, mode):
        desired, reference = session_runs(make(), mode)
        actual, tool = eager_run(make(), mode)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_a_concrete_function_draws_what_the_session_draws(self, make, mode):
        desired, reference = session_runs(make(), mode)
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            concrete = tf.function(make()).get_concrete_function()
            actual = [[tensor.numpy() for tensor in concrete()]]
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_later_ops_continue_the_count(self, make, mode):
        program = make()
        desired, reference = session_runs(lambda: [*program(), tf.random.uniform([2])], mode)
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            actual = [[tensor.numpy() for tensor in tf.function(make())()] + [tf.random.uniform([2]).numpy()]]
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)


class TestVariablesInGraphs:
    @parametrize_modes
    def test_get_variable_draws_as_an_eager_variable(self, mode):
        def program():
            weights = v1.get_variable("weights", [3, 4])  # glorot uniform by default
            return [tf.nn.dropout(weights + 0.0, 0.5), tf.random.uniform([2])]

        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            desired, reference = session_runs(program, mode)
        assert records_of(reference)[0][2] == "init"
        kernel = Holder(lambda: tf.Variable(lambda: v1.glorot_uniform_initializer()([3, 4])))
        actual, tool = eager_run(lambda: [tf.nn.dropout(kernel() + 0.0, 0.5), tf.random.uniform([2])], mode)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_an_initializer_that_raises_leaves_the_phase(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            with pytest.raises(ZeroDivisionError):
                tf.Variable(lambda: 1 / 0)
            tf.random.uniform([2])
        assert records_of(tool) == [("RandomUniform", 0, "compute")]


def one_after_another():
    @tf.function
    def inner(x):
        return x + tf.random.uniform([2])

    return [tf.random.normal([2]), inner(tf.zeros([2])), tf.random.uniform([2])]


def plain_one_after_another():
    return [tf.random.normal([2]), tf.random.uniform([2]), tf.random.uniform([2])]


@parametrize_modes
class TestFunctions:
    def test_a_function_called_eagerly_draws_what_the_session_draws(self, mode):
        assert_same(eager_run(one_after_another, mode)[0], session_runs(plain_one_after_another, mode)[0])

    def test_a_function_in_a_function_draws_what_the_session_draws(self, mode):
        desired, reference = session_runs(plain_one_after_another, mode, runs=2)
        actual, tool = function_runs(one_after_another, mode, runs=2)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_variables_of_a_function_in_a_function(self, mode):
        def make(wrap):
            variable = Holder(lambda: tf.Variable(lambda: tf.random.normal([2])))
            inner = wrap(lambda: variable() + tf.random.uniform([2]))
            return lambda: [tf.random.uniform([2]), inner(), tf.random.uniform([2])]

        desired, reference = session_runs(make(lambda function: function), mode, runs=2)
        actual, tool = function_runs(make(tf.function), mode, runs=2)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_retracing_takes_new_seeds(self, mode):
        def retraced():
            function = tf.function(lambda x: x + tf.random.uniform([2], dtype=x.dtype))
            return [function(tf.zeros([2])), function(tf.zeros([2], "float64")), tf.random.uniform([2])]

        def plain():
            return [tf.random.uniform([2]), tf.random.uniform([2], dtype="float64"), tf.random.uniform([2])]

        assert_same(eager_run(retraced, mode)[0], session_runs(plain, mode)[0])

    def test_a_trace_that_raised_is_not_the_first(self, mode):
        calls = []

        @tf.function
        def function():
            drawn = tf.random.uniform([2])
            calls.append(1)
            if len(calls) == 1:
                raise KeyError("once")
            return drawn

        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            with pytest.raises(KeyError):
                function()
            function()
        assert [op.op_seed for op in tool.random_ops] == ([0, 1] if mode == "num_random_ops" else [0, 0])

    def test_a_function_traced_outside_is_not_governed(self, mode):
        function = tf.function(lambda: tf.random.uniform([2]))
        function()
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            function()
        assert not tool.random_ops


def uniforms():
    return tf.random.uniform([2])


def in_a_loop(draw):
    def body(i, drawn):
        return i + 1, tf.concat([drawn[1:], draw()[None]], 0)

    return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([3, 2])), parallel_iterations=1)[1]


def twice(wrap):
    inner = wrap(uniforms)
    return lambda: [inner(), uniforms(), inner()]


def in_two_loops(wrap):
    inner = wrap(uniforms)
    return lambda: [in_a_loop(inner), in_a_loop(inner)]


def in_functions_of_functions(wrap):
    inner = wrap(uniforms)
    middle = wrap(lambda: [inner(), inner()])
    return lambda: [middle(), inner(), middle()]


def with_a_variable(wrap):
    variable = Holder(lambda: tf.Variable(lambda: tf.random.normal([2])))
    inner = wrap(lambda: variable() + uniforms())
    return lambda: [inner(), uniforms(), inner()]


def beside_a_variable(wrap):
    variable = Holder(lambda: tf.Variable(lambda: tf.random.normal([2])))
    inner = wrap(uniforms)
    return lambda: [inner(), variable() + 0.0, inner()]


def not_inlined(wrap):
    return twice(lambda function: wrap(function, experimental_attributes={"_noinline": True}))


def plain(function, **_):
    return function


CALLING_FUNCTIONS = (twice, in_two_loops, in_functions_of_functions, with_a_variable, beside_a_variable, not_inlined)
parametrize_callers = pytest.mark.parametrize("make", CALLING_FUNCTIONS, ids=lambda make: make.__name__)


@parametrize_modes
class TestFunctionsCalledAgain:
    """A `tf.function` that a graph calls several times is traced for each call."""

    @parametrize_callers
    def test_each_call_in_a_function_takes_op_seeds(self, make, mode):
        desired, reference = session_runs(make(plain), mode, runs=3)
        actual, tool = function_runs(make(tf.function), mode, runs=3)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    @parametrize_callers
    def test_each_call_in_a_session_takes_op_seeds(self, make, mode):
        actual, tool = session_runs(make(tf.function), mode, runs=3)
        desired, reference = session_runs(make(plain), mode, runs=3)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_a_function_that_was_traced_before_is_traced_again(self, mode):
        function = tf.function(uniforms)
        function()
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            eagerly = [tf.function(uniforms)().numpy()]
            outer = tf.function(lambda: [function(), function()])
            actual = [eagerly, *([tensor.numpy() for tensor in outer()] for _ in range(2))]
        desired = session_runs(lambda: [uniforms(), uniforms(), uniforms()], mode, runs=2)[0]
        assert_same(actual, [desired[0][:1], desired[0][1:], desired[1][1:]])

    def test_a_concrete_function_stays_as_it_is(self, mode):
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            concrete = tf.function(uniforms).get_concrete_function()
            first, second = tf.function(lambda: [concrete(), concrete()])()
        np.testing.assert_array_equal(first, second)


def while_loop():
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, x + tf.random.uniform([2])), [0, tf.zeros([2])], parallel_iterations=1
    )[1]


def map_fn():
    # Iterations that run in parallel, the default, draw in a random order, in a session too.
    return tf.map_fn(lambda x: tf.nn.dropout(x, 0.5) + tf.random.normal([2]), tf.ones([3, 2]), parallel_iterations=1)


def cond():
    predicate = v1.placeholder_with_default(True, [])
    return tf.cond(predicate, lambda: tf.random.uniform([2]), lambda: tf.random.normal([2]))


def autograph_loop(n=3):
    total = tf.zeros([2])
    for _ in tf.range(n):
        total += tf.random.uniform([2])
    return total


@parametrize_modes
@pytest.mark.parametrize("draw", [while_loop, map_fn, cond], ids=lambda draw: draw.__name__)
def test_control_flow_in_a_function_draws_what_the_session_draws(draw, mode):
    def program():
        return [draw(), tf.random.uniform([2])]

    assert_same(function_runs(program, mode, runs=2)[0], session_runs(program, mode, runs=2)[0])


@parametrize_modes
def test_a_loop_that_autograph_makes_draws_what_the_session_draws(mode):
    actual = function_runs(lambda: [autograph_loop(), tf.random.uniform([2])], mode)[0]
    assert_same(actual, session_runs(lambda: [while_loop(), tf.random.uniform([2])], mode)[0])


def fed(*value):
    return v1.placeholder_with_default(np.array(value, np.float32), [len(value)])


GRADIENTS = {
    "dropout": lambda x: tf.nn.dropout(x * x, 0.4),
    "normal": lambda x: tf.random.normal([2, 3], x, x),
    "uniform": lambda x: tf.random.uniform([2, 3], -x, x),
    "gamma": lambda x: tf.random.gamma([2], x),
    "gamma_with_a_rate": lambda x: tf.random.gamma([2], x, x),
    "shuffle": lambda x: x * tf.random.shuffle(x),
    "categorical": lambda x: x * tf.cast(tf.random.categorical(x[None], 3), "float32"),
    "truncated_normal": lambda x: tf.random.truncated_normal([3], x, x),
    "parameterized_truncated_normal": lambda x: (
        x + tf.raw_ops.ParameterizedTruncatedNormal(shape=[3], means=x, stdevs=[1.0], minvals=[-1.0], maxvals=[9.0])
    ),
}


@parametrize_modes
@pytest.mark.parametrize("draw", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_through_draws_equal_the_sessions(draw, mode):
    def program():
        x = fed(0.5, 1.5, 2.5)
        if not tf.executing_eagerly():
            y = draw(x)
            return [y, *tf.gradients(y, x), tf.random.uniform([2])]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = draw(x)
        return [y, tape.gradient(y, x), tf.random.uniform([2])]

    desired = session_runs(program, mode)[0]
    assert_same(eager_run(program, mode)[0], desired)
    assert_same(function_runs(program, mode)[0], desired)


def test_no_gradient_where_a_session_has_none():
    x = tf.constant([1.0, 2.0])
    with DeterministicRandomTestTool().scope(), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.random.shuffle(x)
    assert tape.gradient(y, x) is None


_LOGITS = {
    "one class": np.zeros((3, 1)),
    "many classes": np.linspace(-20, 9, 1000).reshape(2, 500),
    "not finite": np.array([[-np.inf] * 3, [np.nan, 0, 1], [np.inf, 0, 1], [0, 0, -1000]]),
    "split among threads": np.linspace(-3, 3, 64_000).reshape(64, 1000),
}


@parametrize_modes
@pytest.mark.parametrize("logits", _LOGITS.values(), ids=_LOGITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_categorical_draws_what_the_session_draws(logits, dtype, mode):
    def program():
        x = tf.cast(logits, dtype)
        seeded = tf.raw_ops.Multinomial(logits=x, num_samples=3, seed=-5, seed2=6)
        return [*(tf.random.categorical(x, n, output) for n in (0, 1, 5) for output in ("int32", "int64")), seeded]

    assert_same(eager_run(program, mode)[0], session_runs(program, mode)[0])


@pytest.mark.parametrize(
    ("logits", "num_samples"),
    [([0.0, 1.0], 3), (np.zeros((2, 0)), 3), ([[1.0]], -3), ([[1]], 3), ([[1.0]], [3]), ([[1.0]], 3.5)],
    ids=["rank 1", "no class", "fewer than none", "integers", "a list of samples", "a part of a sample"],
)
def test_categorical_refuses_bad_arguments(logits, num_samples):
    refusals = (ValueError, TypeError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
    with DeterministicRandomTestTool().scope(), pytest.raises(refusals):
        tf.random.categorical(logits, num_samples)
    with tf.Graph().as_default(), v1.Session() as session, pytest.raises(refusals):
        session.run(tf.random.categorical(logits, num_samples))


@parametrize_modes
def test_device_and_name_scopes_change_no_numbers(mode):
    def program():
        with tf.device("/CPU:0"), tf.name_scope("scope"):
            return [tf.random.uniform([2], name="a"), tf.random.categorical([[0.1, 0.9]], 5, name="b")]

    desired = session_runs(program, mode)[0]
    assert_same(eager_run(program, mode)[0], desired)
    assert_same(function_runs(program, mode)[0], desired)


@parametrize_modes
def test_draws_in_init_scope_equal_the_sessions(mode):
    def program():
        with tf.init_scope():
            lifted = tf.random.uniform([2])
        return [lifted + 0.0, tf.random.uniform([2])]

    desired = session_runs(lambda: [tf.random.uniform([2]), tf.random.uniform([2])], mode)[0]
    assert_same(function_runs(program, mode)[0], desired)


def test_a_dataset_draws_the_same_each_time_it_is_made():
    results = []
    for _ in range(2):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            dataset = tf.data.Dataset.range(8).shuffle(8).map(lambda _: tf.random.uniform([2]))
            results.append([[x.numpy().tolist() for x in dataset] for _ in range(2)])
    assert results[0] == results[1]


def parity(x):
    return tf.cast(x % 2, tf.int32)


NUMBERS = tf.data.Dataset.range
DRAW_LATER = {
    "shuffle": (lambda: NUMBERS(8).shuffle(8), ["ShuffleDataset"]),
    "shuffle of TF1": (lambda: v1.data.Dataset.range(8).shuffle(8, seed=3), ["ShuffleDataset"]),
    "random": (tf.data.Dataset.random, ["RandomDataset"]),
    "random again in each epoch": (
        lambda: tf.data.Dataset.random(rerandomize_each_iteration=True),
        ["RandomDataset"],
    ),
    "RandomDataset": (tf.data.experimental.RandomDataset, ["RandomDataset"]),
    "RandomDataset of TF1": (v1.data.experimental.RandomDataset, ["RandomDataset"]),
    "shuffle_and_repeat": (
        lambda: NUMBERS(8).apply(tf.data.experimental.shuffle_and_repeat(8)),
        ["ShuffleAndRepeatDataset"],
    ),
    "sample_from_datasets": (
        lambda: tf.data.Dataset.sample_from_datasets([NUMBERS(2), NUMBERS(3)], [0.5, 0.5]),
        ["RandomDataset"],
    ),
    "rejection_resample": (
        lambda: NUMBERS(8).map(parity).rejection_resample(lambda x: x, [0.9, 0.1], [0.5, 0.5]),
        ["RandomUniform", "RandomDataset"],
    ),
    "list_files": (lambda: tf.data.Dataset.list_files(__file__), ["ShuffleDataset"]),
    "queue": (lambda: tf.queue.RandomShuffleQueue(8, 0, [tf.int32], [()]), ["RandomShuffleQueueV2"]),
}


@pytest.mark.filterwarnings("ignore:In TF 1, the `rerandomize_each_iteration")
@pytest.mark.parametrize("name", DRAW_LATER)
def test_an_op_that_draws_later_than_it_takes_its_op_seed_has_a_record(name):
    def program():
        tf.nn.dropout(tf.ones(3), 0.0)  # whose op seed leads to nothing
        make()
        NUMBERS(3).map(lambda x: x).batch(2)  # which takes no op seed
        return tf.random.uniform([2])

    make, op_types = DRAW_LATER[name]
    assert set(op_types) <= set(dir(tf.raw_ops))
    for run in (eager_run, session_runs, function_runs):
        _, tool = run(program, "num_random_ops")
        described = enumerate(["", *op_types, "RandomUniform"])
        assert records_of(tool) == [(op_type, op_seed, "compute") for op_seed, op_type in described], run
        assert (tool.random_ops[-2].shape, tool.random_ops[-2].dtype) == (None, "")


@parametrize_modes
def test_initializers_of_tensorflow_2_leave_their_own_state(mode):
    initializer = tf.random_normal_initializer(seed=5)
    desired = initializer([3]).numpy()
    with DeterministicRandomTestTool(mode=mode).scope():
        governed = initializer([3]).numpy()
    np.testing.assert_array_equal(initializer([3]), desired)
    assert not np.array_equal(governed, desired)


def run_script(code):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_replicas_of_a_mirrored_strategy_are_governed():
    printed = run_script("""
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from detrand import DeterministicRandomTestTool
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with DeterministicRandomTestTool().scope():
    eager = strategy.experimental_local_results(strategy.run(lambda: tf.random.uniform([])))
    traced = strategy.experimental_local_results(tf.function(lambda: strategy.run(lambda: tf.random.uniform([])))())
    with strategy.scope():
        variable = tf.Variable(lambda: tf.random.uniform([]))
    print(*[(x * 3).numpy() for x in (*eager, *traced, *strategy.experimental_local_results(variable))])
""")
    assert printed == ["2.5063772"] * 6


@pytest.mark.slow
def test_a_program_without_eager_execution_draws_the_same():
    printed = run_script("""
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
tf.set_random_seed(11)
from detrand import DeterministicRandomTestTool
tool = DeterministicRandomTestTool(mode="num_random_ops")
with tool.scope():
    tf.set_random_seed(12)
    a = tf.random_uniform((3, 1)) * 3
    b = tf.random_uniform((3, 3)) * 3
    weights = tf.get_variable("w", [2], initializer=tf.random_normal_initializer())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        print(*session.run(a).ravel(), *session.run(b)[0])
print(tf.get_default_graph().seed, [op.phase for op in tool.random_ops][-1])
""")
    assert printed == ["2.5063772", "2.7488918", "1.4839486", "0.45038545", "1.9197761", "2.4536333", "11", "init"]
