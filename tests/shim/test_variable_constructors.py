"""``tf.Variable`` in a decorated method: later calls find the variable, and nothing is created again."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import Migration, VariableCreationError, validate

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).integers(0, 7, (3, 5))


def in_scopes(x):
    with v1.name_scope("embedding"):
        table = tf.Variable(v1.random_uniform([7, 4], -1.0, 1.0), name="W")
    with v1.variable_scope("dense"):
        return tf.gather(table, x) * tf.Variable(tf.constant(0.1, shape=[4]), name="b")


def unnamed(x):
    return tf.gather(v1.Variable(tf.ones([7, 4])), x) + tf.Variable(np.zeros(4, np.float32))


def in_a_loop(x):
    outputs = tf.cast(x, tf.float32)
    for _ in range(3):
        outputs *= tf.Variable(lambda: tf.random.normal([5]), name="scale")
    return outputs


def not_trained(x):
    step = tf.Variable(0, trainable=False, name="step")
    local = v1.Variable(1.0, collections=[v1.GraphKeys.LOCAL_VARIABLES])
    return tf.cast(x, tf.float32) * local + tf.cast(step, tf.float32)


class Model:
    def __init__(self, x):
        self.weights = [tf.Variable(v1.truncated_normal([5, 5], stddev=0.1)) for _ in range(2)]
        self.outputs = tf.matmul(tf.matmul(tf.cast(x, tf.float32), self.weights[0]), self.weights[1])


def of_a_class(x):
    return Model(x).outputs


CODE = [in_scopes, unnamed, in_a_loop, not_trained, of_a_class]


def port_of(code):
    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, x, training=False):
            return code(x)

    return Port


@pytest.mark.parametrize("scope", [detrand.assert_no_variable_creations, detrand.catch_and_raise_created_variables])
@pytest.mark.parametrize("code", CODE, ids=lambda code: code.__name__)
@pytest.mark.parametrize("how", ["eagerly", "in a tf.function"])
def test_a_later_call_creates_nothing(code, scope, how):
    port = port_of(code)()
    call = port if how == "eagerly" else tf.function(port)
    before = call(tf.constant(INPUTS))
    with scope():
        np.testing.assert_array_equal(call(tf.constant(INPUTS)), before)
        port(tf.constant(INPUTS[:2]))


def test_a_new_variable_of_a_later_call_is_reported():
    made = []

    def code(x):
        made.append(tf.Variable(1.0))
        return tf.cast(x, tf.float32) * sum(made[-1:]) * sum(tf.Variable(1.0) for _ in made[1:])

    port = port_of(code)()
    port(tf.constant(INPUTS))
    with (
        pytest.raises(VariableCreationError, match=r"variable 'Variable' .*test_variable_constructors\.py:\d+"),
        detrand.assert_no_variable_creations(),
    ):
        port(tf.constant(INPUTS))
    made.clear()
    fresh = port_of(code)()
    fresh(tf.constant(INPUTS))
    with (
        pytest.raises(VariableCreationError, match="1 variable was created"),
        detrand.catch_and_raise_created_variables(),
    ):
        fresh(tf.constant(INPUTS))


@pytest.mark.parametrize("code", CODE, ids=lambda code: code.__name__)
def test_every_check_passes(code):
    report = validate(Migration(tf1=lambda x, training: code(x), port=port_of(code), inputs=INPUTS))
    assert report.ok, str(report)
