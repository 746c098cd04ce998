"""Numbers of a port that repeat outside of a scope: a scope gives each op its own, so that the outputs agree."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras import layers, ops
from tensorflow.compat import v1

from detrand import DeterministicRandomTestTool, Migration, validate

ROWS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def dense(x, units, name, **arguments):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], units], **arguments)
        return tf.matmul(x, kernel) + v1.get_variable("bias", [units], initializer=v1.zeros_initializer())


def dropout(x, training, seed=None):
    return tf.nn.dropout(x, 0.4, seed=seed) if training else x


def tf1(x, training, seeds=(None, None), initial_seed=None):
    """Two dense layers of one shape, and a dropout after each."""
    for number, seed in enumerate(seeds):
        initializer = v1.random_normal_initializer(stddev=0.1, seed=initial_seed)
        x = dropout(dense(x, 6, f"d{number}", initializer=initializer), training, seed)
    return x


def initializer(package=keras, **arguments):
    return package.initializers.RandomNormal(stddev=0.1, **arguments)


class Port(keras.Model):
    """The same with a mask for each layer from `masks`, given the number of the layer and its input."""

    def __init__(self, initializers=None, masks=None):
        super().__init__()
        both = initializers or [initializer(), initializer()]
        self.dense = [layers.Dense(6, kernel_initializer=each) for each in both]
        self.dropouts = masks or [layers.Dropout(0.4), layers.Dropout(0.4)]

    def call(self, x, training=False):
        for layer, drop in zip(self.dense, self.dropouts, strict=True):
            x = drop(layer(x), training=training)
        return x


def drawing(seed):
    """Return a function that drops with what is given to `keras.random.dropout`."""
    return lambda x, training: keras.random.dropout(x, 0.4, seed=seed) if training else x


def titles(port, tf1=tf1):
    report = validate(Migration(tf1=tf1, port=port, inputs=ROWS))
    assert report.ok == (not report.findings), str(report)
    assert all(each.remedy for each in report.findings), str(report)
    return [each.title for each in report.findings]


def shared():
    return Port([initializer()] * 2)


WEIGHTS = "port/dense/kernel and port/dense_1/kernel start with the same numbers: their initializers draw from one seed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "port", [shared, lambda: Port([initializer(seed=3), initializer(seed=3)])], ids=["one initializer", "one seed"]
)
def test_weights_that_start_with_the_same_numbers_are_found(port):
    first, second = (array.numpy() for array in port_built(port).weights if array.ndim == 2)
    np.testing.assert_array_equal(first, second)  # Keras does that
    assert titles(port) == [WEIGHTS]


def port_built(make):
    port = make()
    port(ROWS)
    return port


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The initializer RandomNormal is unseeded")
def test_an_initializer_of_tf_keras_that_two_layers_share_is_found():
    def port():
        both = initializer(tf_keras)
        return tf_keras.Sequential(
            [
                layer
                for _ in range(2)
                for layer in (tf_keras.layers.Dense(6, kernel_initializer=both), tf_keras.layers.Dropout(0.4))
            ]
        )

    (title,) = titles(port)
    assert title.endswith("start with the same numbers: their initializers draw from one seed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "port",
    [
        Port,
        lambda: Port([initializer(seed=3), initializer(seed=4)]),
        lambda: Port(masks=[layers.Dropout(0.4, seed=3), layers.Dropout(0.4, seed=4)]),
        lambda: Port(masks=[drawing(keras.random.SeedGenerator(1)), drawing(keras.random.SeedGenerator(2))]),
        lambda: Port(masks=[drawing(None)] * 2),
    ],
    ids=["own initializers", "own seeds", "layers of own seeds", "generators", "no seed"],
)
def test_sound_ports_pass(port):
    assert titles(port) == []


@pytest.mark.slow
def test_one_layer_of_dropout_with_a_seed_that_is_called_twice_passes():
    """Its generator goes on from call to call."""
    assert titles(lambda: Port(masks=[layers.Dropout(0.4, seed=3)] * 2)) == []


def test_weights_of_other_shapes_and_constants_may_share_an_initializer():
    def tf1(x, training):
        return dense(dense(x, 5, "a", initializer=v1.random_normal_initializer(stddev=0.1)), 5, "b")

    def port():
        both = initializer()
        return keras.Sequential([layers.Dense(5, kernel_initializer=both), layers.Dense(5, bias_initializer="zeros")])

    assert titles(port, tf1) == []


def test_a_mask_for_every_step_is_found():
    found = "the port draws the same numbers in every step: from the integer seed 7"
    assert titles(lambda: Port(masks=[drawing(7), layers.Dropout(0.4)])) == [found]


def test_two_dropouts_of_one_seed_are_found_at_their_lines():
    def port():
        return Port(masks=[layers.Dropout(0.4, seed=5), layers.Dropout(0.4, seed=5)])

    report = validate(Migration(tf1=tf1, port=port, inputs=ROWS))
    (finding,) = report.findings
    assert finding.title == "two random ops of the port draw the same numbers: both from the seed 5"
    assert finding.port.source.endswith("layers.Dropout(0.4, seed=5)])")
    assert finding.confirmed
    assert finding.remedy


@pytest.mark.slow
def test_what_tf1_does_too_is_no_finding():
    def same_seeds(x, training):
        return tf1(x, training, seeds=(5, 5), initial_seed=3)

    def port():
        return Port([initializer(seed=3)] * 2, [layers.Dropout(0.4, seed=5), layers.Dropout(0.4, seed=5)])

    assert titles(port, same_seeds) == []


def test_a_draw_in_a_function_of_the_ports_is_found():
    class Noisy(keras.Model):
        def call(self, x, training=False):
            return x + ops.cast(keras.random.normal((4, 6), seed=11), "float32") if training else x

    found = titles(Noisy, lambda x, training: x + tf.random.normal((4, 6)) if training else x)
    assert found == ["the port draws the same numbers in every step: from the integer seed 11"]


def test_a_new_initializer_is_not_taken_for_one_that_is_gone():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for _ in range(50):
            tf_keras.initializers.GlorotUniform()((3, 2))  # gone at once, so that its address is free
    assert len({op.own_seed for op in tool.random_ops}) == 50
