"""Step k of eager code draws what a TF1 session draws on its run k. The conformance table has the families of ops."""

import concurrent.futures
import functools
import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool, ScopeError, StepMismatchError, track_tf1_style_variables
from detrand.adapters import eager
from tests.adapters.test_tensorflow import PROGRAMS, assert_same, eager_run, records_of
from tests.support.step_runs import (
    AS_WRITTEN,
    CLASSES,
    assert_steps_equal_runs,
    counted,
    normals,
    nothing,
    parametrize_modes,
    run_steps,
    session_runs,
    session_runs_with,
    steps,
    uniform_then,
    uniforms,
    v1,
)
from tests.test_random_tool import executed_eagerly

ALPHA = np.array([0.5, 2.0, 7.0], np.float32)

# Each draws from a batch, whose size may change from run to run.
FAMILIES = {
    **{
        f"uniform_{dtype}": lambda x, dtype=dtype: tf.random.uniform(tf.shape(x), dtype=dtype)
        for dtype in ("float16", "float32", "float64")
    },
    "uniform_bfloat16": lambda x: tf.cast(tf.random.uniform(tf.shape(x), dtype="bfloat16"), "float32"),
    "integers": lambda x: tf.random.uniform(tf.shape(x), -5, 1000, "int32"),
    "integers_of_64_bits": lambda x: tf.random.uniform(tf.shape(x), -5, 10**12, "int64"),
    "normal": lambda x: tf.random.normal(tf.shape(x)),
    "normal_float64": lambda x: tf.random.normal(tf.shape(x), dtype="float64"),
    "truncated_normal": lambda x: tf.random.truncated_normal(tf.shape(x)),
    "gamma": lambda x: tf.random.gamma(tf.shape(x), ALPHA),
    "gamma_for_each_element": lambda x: tf.random.gamma([2], x),
    "shuffle": tf.random.shuffle,
    "shuffle_of_indices": lambda x: tf.random.shuffle(tf.range(tf.size(x))),
    "dropout": lambda x: tf.nn.dropout(x, 0.4),
    "poisson": lambda x: tf.random.poisson([2], x),
    "categorical": lambda x: tf.random.categorical(x, 3),
    "categorical_samples": lambda x: tf.random.categorical([[0.1, 0.2, 0.3]], tf.size(x)),
    "parameterized_truncated_normal": lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=tf.shape(x), means=[0.0], stdevs=[1.0], minvals=[-1.0], maxvals=[2.0]
    ),
    "fractional_max_pool": lambda x: tf.nn.fractional_max_pool(
        tf.tile(x[:, :, None, None], [1, 2, 6, 1]), [1, 1.44, 1.73, 1], seed=1
    ),
    "learned_unigram_candidates": lambda x: tf.random.learned_unigram_candidate_sampler(
        tf.cast(x, "int64") % 10, 3, 4, True, 10
    )[0],
    "log_uniform_candidates": lambda x: tf.random.log_uniform_candidate_sampler(CLASSES, 1, 4, True, 10)[0],
}


@parametrize_modes
@pytest.mark.parametrize("draw", FAMILIES.values(), ids=FAMILIES)
def test_batches_of_several_sizes_draw_what_the_session_draws(draw, mode):
    # A kernel moves its counter on by what it has drawn, so run k does not begin at k times anything.
    sizes = (5, 1, 5, 2, 2, 9, 5)
    batches = [np.linspace(1, 4, 3 * n, dtype=np.float32).reshape(n, 3) for n in sizes]
    tool, reference = assert_steps_equal_runs(lambda x: [draw(x), draw(x), tf.random.uniform([2])], mode, batches)
    count = len(reference.random_ops)
    assert records_of(reference) == records_of(tool)[:count]
    assert [op.run for op in tool.random_ops] == [run for run in range(len(sizes)) for _ in range(count)]


def test_an_op_whose_own_seeds_equal_the_tools_draws_as_in_the_session():
    def program(_):
        return [uniforms(), tf.raw_ops.RandomUniform(shape=[3], dtype="float32", seed=42, seed2=0), uniforms()]

    assert_steps_equal_runs(program, "constant")


SEEDED = {
    "uniform": lambda **seeds: tf.raw_ops.RandomUniform(shape=[3], dtype="float32", **seeds),
    "uniform_of_a_tensor": lambda **seeds: tf.raw_ops.RandomUniform(shape=tf.constant([3]), dtype="float32", **seeds),
    "normal": lambda **seeds: tf.raw_ops.RandomStandardNormal(shape=[3], dtype="float32", **seeds),
    "integers": lambda **seeds: tf.raw_ops.RandomUniformInt(shape=[9], minval=0, maxval=99, **seeds),
    "gamma": lambda **seeds: tf.raw_ops.RandomGamma(shape=[3], alpha=ALPHA, **seeds),
    "shuffle": lambda **seeds: tf.raw_ops.RandomShuffle(value=np.arange(9), **seeds),
    "poisson": lambda **seeds: tf.raw_ops.RandomPoissonV2(shape=[9], rate=3.0, **seeds),
    "categorical": lambda **seeds: tf.raw_ops.Multinomial(logits=[[0.1, 0.2, 0.3]], num_samples=9, **seeds),
}


@pytest.mark.parametrize("seeds", [{"seed": 3}, {"seed2": 3}], ids=str)
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_an_op_with_one_seed_of_its_own_draws_as_in_the_session(draw, seeds):
    def program(*_):
        return [uniforms(), draw(**seeds), uniforms()]

    assert_steps_equal_runs(program, "num_random_ops")
    assert_same(eager_run(program, "num_random_ops")[0], session_runs(program, "num_random_ops", [None])[0])


@pytest.mark.parametrize(
    "seeds",
    [
        {"seed": np.int64(77), "seed2": np.int64(4)},
        {"seed": np.int32(-3), "seed2": 4},
        {"seed": 0, "seed2": np.array(5)},
        {"seed": 1.5, "seed2": np.float32(-2.5)},
        {"seed": None, "seed2": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_seeds_of_its_own_that_are_no_ints(draw, seeds):
    def program(*_):
        return [uniforms(), draw(**seeds), uniforms()]

    # Another program may have kept what it made of the seeds as ints.
    for cached in (eager._key_and_algorithm, eager._first_counters):
        cached.cache_clear()
    desired = session_runs(program, "num_random_ops", [None])[0]
    assert_same(eager_run(program, "num_random_ops")[0], desired)
    assert_steps_equal_runs(program, "num_random_ops")


def test_a_seed_that_comes_to_0_is_none():
    def program(*_):
        return SEEDED["uniform"](seed=0.5)

    assert_steps_equal_runs(program, "num_random_ops")


@pytest.mark.parametrize("seed", ["3", "x", [3], np.array([3, 4]), np.nan, np.inf, 3j, 2**63, np.uint64(2**63), 1e30])
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_a_bad_seed_fails_as_without_a_scope(draw, seed):
    with pytest.raises(Exception) as desired:
        draw(seed=seed, seed2=4)
    with DeterministicRandomTestTool().scope() as tool, pytest.raises(type(desired.value)):
        draw(seed=seed, seed2=4)
    with tool.scope(), tool.step(), pytest.raises(type(desired.value)):
        draw(seed=seed, seed2=4)
    with tool.scope(), tf.Graph().as_default(), pytest.raises((type(desired.value), ValueError)):
        draw(seed=seed, seed2=4)
    assert tool.random_ops == ()


@parametrize_modes
def test_many_runs_of_several_hundred_numbers_equal_the_sessions(mode):
    def program(_):
        return [
            tf.random.uniform([311]),
            tf.random.gamma([101], 0.3),
            tf.random.shuffle(tf.range(350)),
            tf.random.poisson([120], 4.0),
        ]

    assert_steps_equal_runs(program, mode, [None] * 70)


@parametrize_modes
def test_empty_batches_draw_what_the_session_draws(mode):
    batches = [np.ones((n, 3), np.float32) for n in (0, 4, 0, 1, 4)]

    def program(x):
        return [
            tf.random.uniform(tf.shape(x)),
            tf.random.shuffle(x),
            tf.random.shuffle(x[:, :0]),
            tf.nn.dropout(x, 0.5),
        ]

    assert_steps_equal_runs(program, mode, batches)


# --- Training

RANDOM = np.random.RandomState(0)
BATCHES = [RANDOM.rand(n, 5).astype(np.float32) for n in (8, 8, 3, 8, 3)]  # the last of each epoch is smaller
RATE, LEARNING_RATE = 0.4, 0.1


def loss_of(outputs, x):
    return tf.reduce_mean(tf.square(outputs - tf.reduce_sum(x, 1, keepdims=True)))


def train_in_session(mode, batches, variables_first=False):
    """Losses and weights of each step of a TF1 program with dropout, and the tool."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session(config=AS_WRITTEN) as session:
        make = [lambda: v1.get_variable("first", [5, 4]), lambda: v1.get_variable("second", [4, 1])]
        if variables_first:
            made = [make_variable() for make_variable in make]
            make = [lambda: made[0], lambda: made[1]]
        x = v1.placeholder(tf.float32, [None, 5])
        hidden = tf.nn.relu(tf.matmul(tf.nn.dropout(x, RATE), make[0]()))
        outputs = tf.matmul(tf.nn.dropout(hidden, RATE), make[1]())
        loss = loss_of(outputs, x)
        train = v1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss)
        session.run(v1.global_variables_initializer())
        runs = []
        for batch in batches:
            value, _ = session.run([loss, train], {x: batch})
            runs.append([value, *session.run(v1.trainable_variables())])
        return runs, tool


class Port:
    """The program of `train_in_session` in Keras: its layers are built in the first step."""

    def __init__(self, kit):
        self.dropouts = [kit.layers.Dropout(RATE) for _ in range(2)]
        self.dense = [kit.layers.Dense(units, use_bias=False) for units in (4, 1)]
        self.optimizer = kit.optimizers.SGD(LEARNING_RATE)

    def __call__(self, x):
        first, second = self.dropouts
        hidden = tf.nn.relu(self.dense[0](first(x, training=True)))
        return self.dense[1](second(hidden, training=True))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = loss_of(self(x), x)
        weights = [layer.weights[0] for layer in self.dense]
        variables = [weight if isinstance(weight, tf.Variable) else weight.value for weight in weights]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), weights, strict=True))
        return [loss, *variables]


class PortOfModule(tf.Module):
    """The same without Keras."""

    def __init__(self):
        super().__init__()
        self.weights = None

    def train_step(self, x):
        glorot = v1.glorot_uniform_initializer()
        dropped = tf.nn.dropout(x, RATE)
        if self.weights is None:
            self.weights = [tf.Variable(lambda: glorot([5, 4]))]
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(dropped, self.weights[0])), RATE)
            if len(self.weights) == 1:
                self.weights.append(tf.Variable(lambda: glorot([4, 1])))
            loss = loss_of(tf.matmul(hidden, self.weights[1]), x)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        return [loss, *self.weights]


PORTS = {"keras3": lambda: Port(keras), "tf_keras": lambda: Port(tf_keras), "module": PortOfModule}
parametrize_ports = pytest.mark.parametrize("make", PORTS.values(), ids=PORTS)


@parametrize_modes
@parametrize_ports
class TestTraining:
    def test_eager_training_draws_what_the_session_draws(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES)
        actual, tool = steps(make().train_step, mode, BATCHES)
        assert_same(actual, desired)
        assert records_of(tool)[:4] == records_of(reference)
        assert [op.phase for op in tool.random_ops[4:]] == ["compute"] * 2 * (len(BATCHES) - 1)

    def test_training_in_a_function_draws_what_the_session_draws(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES[:2])
        actual, tool = steps(tf.function(make().train_step), mode, BATCHES[:2])
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_in_a_function_for_batches_of_any_size(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES)
        function = tf.function(make().train_step, input_signature=[tf.TensorSpec([None, 5], tf.float32)])
        actual, tool = steps(function, mode, BATCHES)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)


@pytest.mark.slow_except("*-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("run_eagerly", [True, False], ids=["eagerly", "compiled"])
@pytest.mark.parametrize("method", ["train_on_batch", "fit"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_keras_model_trains_as_the_session(kit, method, run_eagerly, mode):
    batches = BATCHES[:2] * 2 if not run_eagerly else BATCHES
    model = kit.Sequential(
        [
            kit.layers.Dropout(RATE),
            kit.layers.Dense(4, "relu", use_bias=False),
            kit.layers.Dropout(RATE),
            kit.layers.Dense(1, use_bias=False),
        ]
    )
    model.compile(kit.optimizers.SGD(LEARNING_RATE), "mse", run_eagerly=run_eagerly)

    def train_step(x):
        x, y = x.numpy(), x.numpy().sum(1, keepdims=True)
        if method == "fit":
            loss = model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0).history["loss"][0]
        else:
            model.reset_metrics()
            loss = model.train_on_batch(x, y)
        return [tf.constant(loss, tf.float32), *(tf.constant(weight) for weight in model.get_weights())]

    desired, _ = train_in_session(mode, batches, variables_first=True)  # a model is built before it is called
    actual, _ = steps(train_step, mode, batches)
    assert_same(actual, desired)


IMAGES = np.random.RandomState(1).rand(2, 8, 8, 3).astype(np.float32)


@parametrize_modes
@pytest.mark.parametrize("name", ["RandomFlip", "RandomContrast", "RandomZoom", "RandomCrop", "GaussianNoise"])
def test_layers_of_tf_keras_that_draw_by_themselves(name, mode):
    arguments = {"RandomContrast": (0.3,), "RandomZoom": (0.3,), "RandomCrop": (4, 4), "GaussianNoise": (0.5,)}
    make = functools.partial(getattr(tf_keras.layers, name), *arguments.get(name, ()))
    layer = make()
    desired, _ = session_runs(lambda x: [layer(x, training=True), uniforms()], mode, [IMAGES] * 3)
    layer = make()
    assert_same(steps(lambda x: [layer(x, training=True), uniforms()], mode, [IMAGES] * 3)[0], desired)
    assert not np.array_equal(desired[0][0], desired[1][0])


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
def test_an_op_that_is_lifted_out_of_a_function(mode):
    # It is executed at once, but once, when the function is traced.
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


TRACED_LATER = {
    "other_shape": (lambda function: function(tf.ones([2])), lambda function: function(tf.ones([3]))),
    "first_call": (lambda function: None, lambda function: function(tf.ones([2]))),
    "by_another": (lambda function: function(tf.ones([2])), lambda function: tf.function(function)(tf.ones([2]))),
    "made_anew": (lambda function: function(tf.ones([2])), lambda function: tf.function(uniforms)()),
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


# --- Datasets: their ops count by themselves, and begin anew where a dataset is made anew


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
    # A session that initializes an iterator again makes its dataset again.
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


# --- Variables


@parametrize_modes
def test_variables_that_are_created_late_draw_run_0(mode):
    # In the graph of the reference, too, they come after what is built before.
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
def test_a_scope_inside_a_step_of_the_same_tool(mode):
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
    # What is initialized, or built to learn its shape, is not the op that the seed was for.
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
        # Each thread has op nodes of its own, in whatever order they run.
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
        with concurrent.futures.ThreadPoolExecutor(1) as pool, tool.scope():
            with tool.step():
                pool.submit(uniforms).result()
            with (
                pytest.raises(
                    StepMismatchError,
                    match=r"a thread that was started in step 0 draws at .*, after that step has ended",
                ),
                tool.step(),
            ):
                pool.submit(uniforms).result()

    def test_a_thread_that_was_started_before_is_not_in_the_step(self):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope(), concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(nothing).result()
            for _ in range(2):
                with tool.step():
                    uniforms()
                    pool.submit(normals).result()
        assert [(op.op_seed, op.run) for op in tool.random_ops] == [(0, 0), (1, 0), (0, 1), (2, 0)]

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
            assert "a step named 'train' was entered while another thread is in a step of that name" in str(error)
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


# --- What steps leave behind


def test_records_have_the_run():
    tool = run_steps(*[uniform_then(normals)] * 3)
    assert [(op.index, op.op_seed, op.run) for op in tool.random_ops] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
        (4, 0, 2),
        (5, 1, 2),
    ]
    assert tool.operation_seed == 2


def test_no_kernel_holds_a_seed():
    executed = executed_eagerly(lambda: run_steps(*[uniform_then(normals)] * 5).random_ops[:0])
    drawing = {(op_type, attributes) for op_type, attributes in executed if op_type.startswith("Stateless")}
    assert len(drawing) == 2


def test_sessions_end_with_the_tool():
    tool = run_steps(*[lambda: tf.random.poisson([2], 5.0)] * 3)
    with tool._stream.step_region("train") as region:
        (node,) = region.entries
    session = weakref.ref(node.kept)
    assert session() is not None
    del tool, region, node
    gc.collect()
    assert session() is None


def test_each_op_node_has_one_session(monkeypatch):
    made = []
    original = eager._OpInSession.__init__
    monkeypatch.setattr(
        eager._OpInSession, "__init__", lambda self, *args: made.append(args[0]) or original(self, *args)
    )
    run_steps(*[lambda: (tf.random.poisson([2], 5.0), tf.random.categorical([[0.1, 0.9]], 3))] * 4)
    assert made == ["RandomPoissonV2", "Multinomial"]
