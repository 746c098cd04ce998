"""Random numbers that no scope controls are listed with the line that draws them, and do not change."""

import copy
import pickle
import random
import tempfile
import threading
import uuid

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool

SEED = (1, 2)


def seeded_generator():
    return tf.random.Generator.from_seed(3)


def both_seeds():
    np.random.seed(7)
    random.seed(7)


SOURCES = {
    "generator uniform": lambda: (seeded_generator().uniform((3,)), "StatelessRandomUniformV2", (3,), "float32"),
    "generator normal": lambda: (seeded_generator().normal((3,)), "StatelessRandomNormalV2", (3,), "float32"),
    "generator truncated": lambda: (
        seeded_generator().truncated_normal((3,)),
        "StatelessTruncatedNormalV2",
        (3,),
        "float32",
    ),
    "generator binomial": lambda: (
        seeded_generator().binomial((3,), 4.0, 0.5),
        "StatefulRandomBinomial",
        (3,),
        "int32",
    ),
    "generator full int": lambda: (
        seeded_generator().uniform_full_int((3,)),
        "StatelessRandomUniformFullIntV2",
        (3,),
        "uint64",
    ),
    "uniform": lambda: (tf.random.stateless_uniform((3,), SEED), "StatelessRandomUniformV2", (3,), "float32"),
    "integers": lambda: (
        tf.random.stateless_uniform((3,), SEED, 0, 9, tf.int32),
        "StatelessRandomUniformIntV2",
        (3,),
        "int32",
    ),
    "gamma": lambda: (tf.random.stateless_gamma((3,), SEED, 2.0), "StatelessRandomGammaV3", (3,), "float32"),
    "poisson": lambda: (tf.random.stateless_poisson((3,), SEED, 2.0), "StatelessRandomPoisson", (3,), "int32"),
    "binomial": lambda: (
        tf.random.stateless_binomial((3,), SEED, 4.0, 0.5),
        "StatelessRandomBinomial",
        (3,),
        "int32",
    ),
    "categorical": lambda: (
        tf.random.stateless_categorical([[0.5, 0.5]], 3, SEED),
        "StatelessMultinomial",
        (1, 3),
        "int64",
    ),
    "shuffle": lambda: (
        tf.random.experimental.stateless_shuffle(tf.range(3), SEED),
        "StatelessShuffle",
        (3,),
        "int32",
    ),
    "image": lambda: (
        tf.image.stateless_random_brightness(tf.ones((2, 2, 3)), 0.5, SEED),
        "StatelessRandomUniformV2",
        (),
        "float32",
    ),
    "raw op with seeds": lambda: (
        tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32, seed=1, seed2=2),
        "RandomUniform",
        (3,),
        "float32",
    ),
    "np.random": lambda: (np.random.normal(size=(2, 3)), "np.random.normal", (2, 3), "float64"),
    "np.random, a number": lambda: (np.random.rand(), "np.random.rand", None, ""),
    "random": lambda: (random.gauss(0, 1), "random.gauss", None, ""),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_listed_and_left_as_it_is(source):
    both_seeds()
    expected = SOURCES[source]()[0]
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        both_seeds()
        drawn, *what = SOURCES[source]()
    if source != "raw op with seeds":  # outside of a scope, a kernel of the process counts its runs
        np.testing.assert_array_equal(drawn, expected)
    (op,) = tool.random_ops
    assert [op.op_type, op.shape, op.dtype] == what
    assert (op.index, op.op_seed, op.run, op.phase) == (0, None, 0, "compute")
    line = SOURCES[source].__code__.co_firstlineno
    assert op.caller in [f"{__file__}:{line + offset}" for offset in range(2)]
    assert tool.operation_seed == 0


def test_sources_stand_between_the_ops_that_a_scope_controls():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        first = tf.random.uniform((3,))
        np.random.rand()
        second = tf.random.uniform((3,))
    assert [(op.index, op.op_seed) for op in tool.random_ops] == [(0, 0), (1, None), (2, 1)]
    plain = DeterministicRandomTestTool(mode="num_random_ops")
    with plain.scope():
        np.testing.assert_array_equal([tf.random.uniform((3,)), tf.random.uniform((3,))], [first, second])


def test_in_a_function_each_source_is_listed_when_it_is_traced():
    @tf.function
    def function():
        return tf.random.stateless_normal((2,), SEED) + np.random.rand() + random.random()

    tool = DeterministicRandomTestTool()
    with tool.scope():
        function()
        function()
    line = function.python_function.__code__.co_firstlineno + 2
    assert [(op.op_type, op.caller) for op in tool.random_ops] == [
        (name, f"{__file__}:{line}") for name in ("StatelessRandomNormalV2", "np.random.rand", "random.random")
    ]


def test_sources_in_a_graph_are_listed():
    tool = DeterministicRandomTestTool()
    with tool.scope(), tf.Graph().as_default():
        tf.random.stateless_uniform(tf.compat.v1.placeholder(tf.int32, (2,)), SEED)
    assert [(op.op_seed, op.op_type, op.shape) for op in tool.random_ops] == [
        (None, "StatelessRandomUniformV2", (None, None))
    ]


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda: keras.layers.Dense(3)(tf.ones((2, 3))), id="keras layer, whose seed is Python's random"),
        pytest.param(lambda: keras.random.binomial((3,), 4, 0.5), id="keras binomial, a stateless op"),
        pytest.param(
            lambda: keras.layers.RandomContrast(0.5)(tf.ones((2, 4, 4, 3)), training=True), id="keras augmentation"
        ),
        pytest.param(
            lambda: tf_keras.layers.RandomContrast(0.5)(tf.ones((2, 4, 4, 3)), training=True),
            id="tf_keras augmentation",
        ),
        pytest.param(lambda: tf_keras.layers.Dense(3)(tf.ones((2, 3))), id="tf_keras layer"),
        pytest.param(lambda: tf.random.gamma((3,), 2.0), id="op drawn by a stateless kernel"),
        pytest.param(lambda: tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32), id="raw op without seeds"),
        pytest.param(
            lambda: tf.raw_ops.RandomUniform(
                shape=[3], dtype=tf.float32, **dict(zip(("seed", "seed2"), tf.compat.v1.get_seed(None), strict=True))
            ),
            id="raw op with the scope's seeds",
        ),
        pytest.param(
            lambda: tf.raw_ops.FractionalMaxPool(
                value=tf.ones((1, 4, 4, 1)), pooling_ratio=[1.0, 1.5, 1.5, 1.0], seed=1, seed2=2, deterministic=True
            ),
            id="raw op whose seeds are overridden",
        ),
        pytest.param(lambda: list(tf.data.Dataset.range(4).shuffle(4)), id="tf.data"),
        pytest.param(
            lambda: tf.data.Dataset.range(4).map(lambda _: tf.random.uniform(()), num_parallel_calls=1),
            id="map with one call at a time",
        ),
        pytest.param(lambda: fit(keras), id="Keras 3 that shuffles arrays"),
        pytest.param(lambda: fit(tf_keras), id="tf_keras that shuffles arrays"),
    ],
)
def test_controlled_ops_are_not_listed_as_sources(draw):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        draw()
    assert [op for op in tool.random_ops if op.op_seed is None] == []
    assert tool.random_ops


def fit(package):
    model = package.Sequential([package.layers.Dropout(0.5), package.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)


def queue_without_shuffle():
    with tf.Graph().as_default():
        tf.compat.v1.train.range_input_producer(9, shuffle=False)


def seeds_of_tf_keras():
    """Set the seeds of tf_keras in a thread: a thread keeps a generator from then on, which draws all later seeds."""
    thread = threading.Thread(target=tf_keras.utils.set_random_seed, args=[3])
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: tf.data.Dataset.range(4).map(lambda x: x + 1, num_parallel_calls=2), id="parallel map"),
        pytest.param(queue_without_shuffle, id="queue that threads fill"),
        pytest.param(lambda: tf.random.set_seed(3), id="TensorFlow's own generator"),
        pytest.param(lambda: keras.utils.set_random_seed(3), id="seeds of Keras 3"),
        pytest.param(seeds_of_tf_keras, id="seeds of tf_keras"),
        pytest.param(lambda: tf.print("text", output_stream="file:///dev/null"), id="name of a placeholder"),
        pytest.param(lambda: tempfile.TemporaryDirectory().cleanup(), id="name of a folder"),
        pytest.param(uuid.uuid4, id="uuid"),
        pytest.param(tf.function(lambda: tf.numpy_function(np.sin, [1.0], tf.float32)), id="Python function"),
    ],
)
def test_what_draws_nothing_for_the_program_is_not_recorded(call):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        call()
    assert [op for op in tool.random_ops if op.op_type] == []


def test_dropout_of_pytorch_is_recorded_only_where_it_draws():
    torch = pytest.importorskip("torch")
    functional, ones = torch.nn.functional, torch.ones(3)
    tool = DeterministicRandomTestTool()
    with tool.scope():
        functional.dropout(ones, training=False)
        functional.dropout(ones, p=0.0)
        functional.alpha_dropout(ones)
        functional.rrelu(ones)
        assert tool.random_ops == ()
        functional.rrelu(ones, training=True)
    assert [op.op_type for op in tool.random_ops] == ["torch.nn.functional.rrelu"]


def test_classes_of_generators_are_classes_in_a_scope():
    before = np.random.RandomState(3)
    with DeterministicRandomTestTool().scope():

        class Own(np.random.RandomState):
            pass

        inside = np.random.RandomState(3)
        assert type(inside) is type(before)
        assert isinstance(before, np.random.RandomState)
        assert not isinstance(before, (np.random.Generator, Own))
        assert isinstance(Own(3), Own)
        assert issubclass(Own, np.random.RandomState)
        assert not issubclass(type(before), Own)
        np.testing.assert_array_equal(Own(3).rand(3), before.rand(3))
        copies = copy.deepcopy(inside), pickle.loads(pickle.dumps(inside))
        np.testing.assert_array_equal(copies[0].rand(3), copies[1].rand(3))
    assert np.random.RandomState is type(before)
    assert "__init__" in vars(random.Random)


def test_functions_are_as_they_were_after_the_scope():
    functions = np.random.normal, random.random, tf.raw_ops.RandomUniform
    with DeterministicRandomTestTool().scope():
        assert np.random.normal is not functions[0]
    assert (np.random.normal, random.random, tf.raw_ops.RandomUniform) == functions


def test_a_function_that_was_imported_in_a_scope_goes_on_working():
    tool = DeterministicRandomTestTool()
    with tool.scope():
        from numpy.random import standard_normal
    assert standard_normal(3).shape == (3,)
    assert tool.random_ops == ()


def test_graphs_that_keras_builds_to_infer_shapes_draw_nothing():
    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs + tf.random.stateless_normal((3,), SEED)

    tool = DeterministicRandomTestTool()
    with tool.scope():
        layer = Noise()
        model = keras.Model(inputs := keras.Input((3,)), layer(inputs))
        assert tool.random_ops == ()
        model(tf.ones((2, 3)))
    assert len(tool.random_ops) == 1
