"""Initializers are known for all variables that a port creates, not only in Keras's own layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, enable_v1_layers, validate
from detrand.validation.audit.initial_values import describe_initializer
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _v1_layers():
    with enable_v1_layers():
        yield


def network(inputs, training, stddev=0.1):
    with v1.variable_scope("own"):
        w = v1.get_variable("w", (3, 2), initializer=v1.truncated_normal_initializer(stddev=stddev))
        return tf.matmul(inputs, w) + v1.get_variable("b", (2,), initializer=v1.zeros_initializer())


def added_weights(kit, stddev):
    class Own(kit.layers.Layer):
        def build(self, shape):
            initializer = kit.initializers.TruncatedNormal(stddev=stddev)
            self.w = self.add_weight(name="w", shape=(3, 2), initializer=initializer)
            self.b = self.add_weight(name="b", shape=(2,), initializer="zeros")

        def call(self, inputs, training=False):
            return tf.matmul(inputs, tf.convert_to_tensor(self.w)) + self.b

    return lambda: Own(name="own")


def module(stddev):
    class Own(tf.Module):
        def __init__(self):
            super().__init__(name="own")
            with self.name_scope:
                self.w = tf.Variable(lambda: tf.random.truncated_normal((3, 2), stddev=stddev), name="w")
                self.b = tf.Variable(tf.zeros(2), name="b")

        def __call__(self, inputs, training=False):
            return tf.matmul(inputs, self.w) + self.b

    return Own


PORTS = {
    "shim": lambda stddev: shim_port(network, stddev=stddev),
    "add_weight of Keras 3": lambda stddev: added_weights(keras, stddev),
    "add_weight of tf_keras": lambda stddev: added_weights(tf_keras, stddev),
    "tf.Module": module,
}


@pytest.mark.parametrize("port", PORTS)
def test_initial_values_of_a_port_are_read(port):
    sound = validate(Migration(tf1=network, port=PORTS[port](0.1), inputs=INPUTS))
    assert sound.ok, str(sound)
    audited = {each.of: each.port for each in sound.audit.hyperparameters if each.name == "initializer"}
    assert audited == {"own/w": "truncated normal of stddev 0.1", "own/b": "constant 0"}
    assert not sound.audit.differing
    faulty = validate(Migration(tf1=network, port=PORTS[port](0.2), inputs=INPUTS))
    (found,) = faulty.audit.differing
    assert found.port == "truncated normal of stddev 0.2"
    failing = [check for check in faulty.checks if not check.ok]
    assert {check.name for check in failing} == {"initializers-match"}
    cause = "initializer differs in own/w: truncated normal of stddev 0.1 (TF1), truncated normal of stddev 0.2 (port)"
    assert all(any(each.startswith(cause) for each in check.causes[:2]) for check in failing), str(faulty)


def test_the_initializer_of_a_drawn_array_is_not_known():
    assert describe_initializer(np.float32([0.1, 0.2])) is None
    assert describe_initializer(np.float32([0.5, 0.5])) == "constant 0.5"


def test_an_initializer_that_raises_is_not_known():
    assert describe_initializer(lambda: 1 / 0) is None
