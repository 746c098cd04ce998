"""Keras 3 on the TensorFlow backend draws what a TF1 session does. The conformance table has most of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand._patching import keras3_random
from tests.test_tensorflow_adapter import assert_same, eager_run, function_runs, places, session_runs

v1 = tf.compat.v1
parametrize_modes = pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


def test_every_function_of_keras_random_is_governed():
    public = {name for name, value in vars(keras.random).items() if callable(value) and not isinstance(value, type)}
    assert set(keras3_random.draws("tensorflow")) == public


# --- What the conformance table leaves out: functions of which TensorFlow 1 has no one op.

WITHOUT_A_TWIN = {
    "beta": lambda seed: keras.random.beta((3, 2), [1.0, 2.0], 3.0, seed=seed),
    "binomial": lambda seed: keras.random.binomial((9,), 10.0, 0.4, seed=seed),
    "binomial_float16": lambda seed: keras.random.binomial((9,), 10.0, 0.4, dtype="float16", seed=seed),
    "gamma_broadcast": lambda seed: keras.random.gamma((3, 2), [[0.5], [1.0], [2.0]], seed=seed),
    "gamma_bfloat16": lambda seed: tf.cast(keras.random.gamma((3,), 2.0, "bfloat16", seed=seed), "float32"),
    "randint_uint8": lambda seed: keras.random.randint((9,), 3, 200, "uint8", seed=seed),
    "shuffle_of_another_axis": lambda seed: keras.random.shuffle(X, axis=-1, seed=seed),
}


@parametrize_modes
@pytest.mark.parametrize("draw", WITHOUT_A_TWIN.values(), ids=WITHOUT_A_TWIN)
def test_without_a_twin(draw, mode):
    # The same in a graph, eagerly and in a function, whatever seed the user gives.
    desired, reference = session_runs(lambda: [draw(None), draw(None), tf.random.uniform([2])], mode)
    for run in (eager_run, function_runs):
        actual, tool = run(lambda: [draw(7), draw(8), tf.random.uniform([2])], mode)
        assert_same(actual, desired)
        assert places(tool) == places(reference)
    first, second, _ = desired[0]
    assert np.array_equal(first, second) == (mode == "constant")


@parametrize_modes
def test_shuffle_of_another_axis_moves_whole_slices(mode):
    with DeterministicRandomTestTool(mode=mode).scope():
        shuffled = keras.random.shuffle(X, axis=1).numpy()
    with DeterministicRandomTestTool(mode=mode).scope():
        order = tf.random.shuffle(tf.range(3)).numpy()
    np.testing.assert_array_equal(shuffled, X[:, order])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_of_nothing_or_all_takes_no_seed(rate):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        np.testing.assert_array_equal(keras.random.dropout(X, rate), X * (1 - rate))
    assert not tool.random_ops


# --- State of Keras's own


@pytest.mark.parametrize("name", sorted(keras3_random.draws("tensorflow")))
def test_a_seed_generator_is_left_as_it_is(name):
    arguments = {
        "beta": ((3,), 1.0, 2.0),
        "binomial": ((3,), 10.0, 0.5),
        "categorical": ([[0.1, 0.9]], 3),
        "dropout": (X, 0.5),
        "gamma": ((3,), 2.0),
        "randint": ((3,), 0, 9),
        "shuffle": (X,),
    }
    generator = keras.random.SeedGenerator(5)
    state = generator.state.numpy()
    draw = getattr(keras.random, name)
    with DeterministicRandomTestTool().scope():
        draw(*arguments.get(name, ((3,),)), seed=generator)
    np.testing.assert_array_equal(generator.state, state)
    draw(*arguments.get(name, ((3,),)), seed=generator)
    assert not np.array_equal(generator.state, state)


def test_a_layers_generator_goes_on_as_if_nothing_had_been():
    layers = [keras.layers.Dropout(0.5, seed=5) for _ in range(2)]
    with DeterministicRandomTestTool().scope():
        layers[0](X, training=True)
    np.testing.assert_array_equal(layers[0](X, training=True), layers[1](X, training=True))


def test_keras_seeds_outside_a_scope_count_again():
    with DeterministicRandomTestTool().scope():
        pass
    np.testing.assert_array_equal(keras.random.uniform((3,), seed=5), keras.random.uniform((3,), seed=5))


# --- Layers and models


def tf1_network():
    glorot = v1.glorot_uniform_initializer()
    hidden = tf.matmul(tf.ones([2, 5]), v1.get_variable("a", [5, 4], initializer=glorot))
    hidden = tf.nn.dropout(hidden, 0.5)
    outputs = tf.matmul(hidden, v1.get_variable("b", [4, 3], initializer=glorot))
    return [outputs, tf.random.uniform([2])]


class Network:
    """`tf1_network` in Keras: its layers are built on the first call."""

    def __init__(self):
        self.first, self.dropout = keras.layers.Dense(4, use_bias=False), keras.layers.Dropout(0.5)
        self.last = keras.layers.Dense(3, use_bias=False)

    def __call__(self):
        hidden = self.dropout(self.first(tf.ones([2, 5])), training=True)
        return [self.last(hidden), tf.random.uniform([2])]


@parametrize_modes
@pytest.mark.parametrize("run", [eager_run, function_runs], ids=["eager", "function"])
def test_layers_that_are_built_on_the_first_call(run, mode):
    desired, reference = session_runs(tf1_network, mode)
    actual, tool = run(Network(), mode)
    assert_same(actual, desired)
    assert places(tool) == places(reference)
    assert [phase for _, _, phase in places(tool)] == ["init", "compute", "init", "compute"]


@parametrize_modes
def test_later_calls_of_a_function_are_later_runs(mode):
    desired = session_runs(tf1_network, mode, runs=3)[0]
    assert_same(function_runs(Network(), mode, runs=3)[0], desired)


def functional_model():
    inputs = keras.Input((5,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4, use_bias=False)(inputs), training=True)
    return keras.Model(inputs, keras.layers.Dense(3, use_bias=False)(hidden))


def test_a_symbolic_call_takes_no_op_seeds():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        model = functional_model()
        assert places(tool) == [("RandomUniform", 0, "init"), ("RandomUniform", 1, "init")]
        model(tf.ones([2, 5]))
        assert places(tool)[2:] == [("RandomUniform", 2, "compute")]


class Noise(keras.layers.Layer):
    """Keras learns its output shape by calling it."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x):
        return tf.nn.dropout(x, 0.5) + self.scale * keras.random.uniform(tf.shape(x))


def test_a_layer_of_the_users_own_takes_no_op_seeds_either():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        inputs = keras.Input((5,))
        model = keras.Model(inputs, Noise()(inputs))
        assert places(tool) == [("RandomStandardNormal", 0, "init")]
        model(tf.ones([2, 5]))
        assert places(tool)[1:] == [("RandomUniform", 1, "compute"), ("RandomUniform", 2, "compute")]


def test_a_functional_model_equals_the_session_in_constant_mode():
    desired = session_runs(tf1_network, "constant")[0]
    tool = DeterministicRandomTestTool()
    with tool.scope():
        outputs = functional_model()(tf.ones([2, 5]))
    np.testing.assert_array_equal(outputs, desired[0][0])


def test_a_functional_model_equals_a_session_that_initializes_first():
    def program():
        glorot = v1.glorot_uniform_initializer()
        a, b = (v1.get_variable(n, s, initializer=glorot) for n, s in (("a", [5, 4]), ("b", [4, 3])))
        return [tf.matmul(tf.nn.dropout(tf.matmul(tf.ones([2, 5]), a), 0.5), b)]

    desired = session_runs(program, "num_random_ops")[0]
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        outputs = functional_model()(tf.ones([2, 5]))
    np.testing.assert_array_equal(outputs, desired[0][0])


@pytest.mark.parametrize("run_eagerly", [True, False], ids=["eager", "function"])
def test_fit_draws_the_same_on_every_run(run_eagerly):
    x = np.random.RandomState(0).rand(16, 5).astype(np.float32)

    def losses():
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=run_eagerly)
            history = model.fit(x, x.sum(1), epochs=2, batch_size=8, verbose=0)
        return history.history["loss"], tool.random_ops

    first, second = losses(), losses()
    assert first == second
    assert {op.op_type for op in first[1]} == {"RandomUniform", "RandomShuffle"}


IMAGES = (np.random.RandomState(1).rand(2, 8, 8, 3) * 255).astype(np.float32)


@parametrize_modes
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomFlip", ()),
        ("RandomRotation", (0.3,)),
        ("RandomZoom", (0.3,)),
        ("RandomTranslation", (0.2, 0.2)),
        ("RandomBrightness", (0.3,)),
        ("RandomContrast", (0.3,)),
        ("RandomCrop", (4, 4)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_preprocessing_layers(name, arguments, mode):
    results = []
    for seed in (1, 2):  # the user's own, which makes no difference
        layer = getattr(keras.layers, name)(*arguments, seed=seed)
        with DeterministicRandomTestTool(0, mode).scope():
            results.append(layer(IMAGES, training=True).numpy())
    np.testing.assert_array_equal(*results)
