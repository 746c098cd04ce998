"""Distinct weights find faults that constant weights and initial values hide."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, track_tf1_style_variables, validate
from detrand.validation.programs.distinct_weights import distinct_weights, scale_of
from detrand.validation.reference import DISTINCT_WEIGHTS, Reference
from detrand.validation.results import Fault
from tests.support.reports import failed

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def gated(x, training):
    value, gate = (tf.matmul(x, v1.get_variable(f"{name}/kernel", (5, 4))) for name in ("value", "gate"))
    return value * tf.sigmoid(gate)


class Gated(keras.layers.Layer):
    """The port, which makes the gate's weights first; with ``swapped``, it uses each variable for the other."""

    def __init__(self, swapped=False):
        super().__init__(name="port")
        self.swapped = swapped
        self.value, self.gate = (keras.layers.Dense(4, use_bias=False, name=name) for name in ("value", "gate"))

    def call(self, x, training=False):
        value, gate = (self.gate, self.value) if self.swapped else (self.value, self.gate)
        if self.swapped:
            of_value = value(x)
            return of_value * keras.ops.sigmoid(gate(x))
        of_gate = keras.ops.sigmoid(gate(x))
        return value(x) * of_gate


def test_a_port_that_makes_variables_in_a_different_order_passes():
    report = validate(Migration(tf1=gated, port=Gated, inputs=INPUTS, name_map="port/{}".format))
    assert report.ok, str(report)
    assert "distinct weights: outputs identical" in report.checks[4].summary


@pytest.mark.slow
def test_swapped_variables_are_found():
    report = validate(Migration(tf1=gated, port=lambda: Gated(swapped=True), inputs=INPUTS, name_map="port/{}".format))
    assert failed(report) == {"variables-match", "constant-weights", "random-inference", "random-training"}
    assert report.checks[1].summary.startswith("swapped: ")
    assert "(Sigmoid) at" in report.checks[4].summary
    assert [each.fault for each in report.findings] == [Fault.SWAPPED], str(report)


def shim(program):
    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training)

    return Port


def test_a_fault_before_a_last_layer_of_zeros_is_found():
    def program(x, training, flipped=False):
        parts = [tf.tanh(x), tf.sigmoid(x)]
        hidden = tf.concat(parts[::-1] if flipped else parts, 1)
        return tf.matmul(hidden, v1.get_variable("head", (10, 3), initializer=v1.zeros_initializer()))

    sound = validate(Migration(tf1=program, port=shim(program), inputs=INPUTS))
    assert sound.ok, str(sound)
    told = [check.name for check in sound.checks if "every output is 0, so this check proves nothing" in check.summary]
    assert told == ["random-inference", "random-training", "constant-mode"]
    faulty = Migration(tf1=program, port=shim(lambda x, training: program(x, training, flipped=True)), inputs=INPUTS)
    assert failed(validate(faulty)) == {"constant-weights", "random-training"}


@pytest.mark.parametrize("in_tf1", [True, False])
@pytest.mark.parametrize("in_port", [True, False])
def test_variables_that_a_call_changes_are_compared(in_tf1, in_port):
    """A moving average that is updated in inference, too."""

    def program(x, training, updates):
        mean = v1.get_variable("mean", (5,), trainable=False, initializer=v1.zeros_initializer())
        outputs = x - mean
        with tf.control_dependencies([outputs]):
            done = [mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))] if updates else []
        with tf.control_dependencies(done):
            return tf.identity(outputs)

    report = validate(
        Migration(
            tf1=lambda x, training: program(x, training, in_tf1),
            port=shim(lambda x, training: program(x, training, in_port)),
            inputs=INPUTS,
        )
    )
    assert ("constant-weights" in failed(report)) == (in_tf1 != in_port), str(report)
    if in_tf1 != in_port:
        assert "variables that the call changes differ; first: ['mean']" in report.checks[4].summary


def test_a_dropout_that_is_off_in_inference_passes():
    """TF1's graph has its random op in inference too, and the port does not; the initial values after it are equal."""

    def program(x, training):
        keep_prob = v1.placeholder_with_default(0.5 if training else 1.0, ())
        hidden = v1.nn.dropout(tf.matmul(x, v1.get_variable("a/kernel", (5, 8))), keep_prob=keep_prob)
        return tf.matmul(hidden, v1.get_variable("b/kernel", (8, 3)))

    def port():
        first, last = (keras.layers.Dense(size, use_bias=False, name=name) for name, size in (("a", 8), ("b", 3)))
        return keras.Sequential([first, keras.layers.Dropout(0.5), last], name="port")

    report = validate(Migration(tf1=program, port=port, inputs=INPUTS, name_map="port/{}".format))
    assert report.ok, str(report)


def test_distinct_weights_have_the_scale_of_initial_values():
    """Their mean and deviation, and what is constant differs, too."""
    rng = np.random.default_rng(0)
    initial = {
        "drawn": rng.normal(2.0, 0.5, (50, 40)).astype(np.float32),
        "zeros": np.zeros((30, 20), np.float32),
        "variance": np.ones(100, np.float32),
    }
    found = distinct_weights(tuple(scale_of(name, array) for name, array in initial.items()))
    np.testing.assert_allclose([found["drawn"].mean(), found["drawn"].std()], [2.0, 0.5], rtol=0.03)
    assert 0 < np.abs(found["zeros"]).max() <= np.sqrt(6 / 50)
    assert 1 <= found["variance"].min() < found["variance"].max() <= 1.2


def test_variables_that_share_an_initial_tensor_get_their_own_weights():
    """Their initializers assign the same tensor, which can be fed one value at a time."""

    def program(x, training):
        initial = tf.zeros((5,))
        return x * v1.Variable(initial, name="a") + v1.Variable(initial, name="b")

    outcome = Reference(Migration(tf1=program, port=lambda: program, inputs=INPUTS)).outcome(DISTINCT_WEIGHTS)
    assert outcome.config.scales == (("a", (5,), 0.0, 0.0), ("b", (5,), 0.0, 0.0))
    weights = distinct_weights(outcome.config.scales)
    np.testing.assert_array_equal(outcome.outputs, INPUTS * weights["a"] + weights["b"])
    assert not np.array_equal(weights["a"], weights["b"])
