"""Checks with distinct weights say which activations they do not exercise."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from detrand.validation.programs.activations import Activation, describe_activations
from detrand.validation.reference import DISTINCT_WEIGHTS, Reference
from detrand.validation.results import Fault
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(8, 10)).astype(np.float32)


def activations_of(activation):
    """Return what a run shows of an activation of a dense layer."""

    def program(x, training):
        return activation(tf.matmul(x, v1.get_variable("kernel", (10, 16))))

    outcome = Reference(Migration(tf1=program, port=lambda: program, inputs=INPUTS)).outcome(DISTINCT_WEIGHTS)
    assert all(each.op.partition(" at ")[2].startswith(__file__) for each in outcome.activations)
    return [(each.op.partition(" at ")[0], each.flaw) for each in outcome.activations]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (tf.nn.relu, [("Relu", "")]),
        (lambda x: tf.nn.relu(x + 50), [("Relu", "no input below 0")]),
        (lambda x: tf.nn.leaky_relu(x - 50), [("LeakyRelu", "no input above 0")]),
        (lambda x: tf.nn.relu6(x / 10), [("Relu6", "no input above 6")]),
        (lambda x: tf.maximum(x, 0.2 * x), [("Maximum", "")]),
        (lambda x: tf.maximum(x, x + 1), [("Maximum", "no input above 0")]),
        (lambda x: x / tf.maximum(tf.abs(x), 1e-12), []),
        (tf.tanh, [("Tanh", "")]),
        (lambda x: tf.tanh(x / 1000), [("Tanh", "no input beyond ±0.1")]),
        (lambda x: tf.sigmoid(x + 50), [("Sigmoid", "every input beyond ±5")]),
        (lambda x: tf.math.softplus(x / 1000), [("Softplus", "no input beyond ±0.1")]),
        (tf.nn.softmax, [("Softmax", "")]),
        (lambda x: tf.map_fn(tf.nn.elu, x), [("Elu", "not measured")]),
    ],
)
def test_what_a_run_shows_of_an_activation(activation, expected):
    assert activations_of(activation) == expected


@pytest.mark.slow_except("a limit in the port")
@pytest.mark.parametrize(
    ("tf1", "port"),
    [
        (tf.nn.relu, tf.nn.relu6),
        (tf.nn.relu6, tf.nn.relu),
        (tf.nn.leaky_relu, lambda x: tf.nn.leaky_relu(tf.minimum(x, 6))),
    ],
    ids=["relu6 in the port", "relu6 in TF1", "a limit in the port"],
)
def test_a_small_network_has_inputs_beyond_the_kink_of_a_relu6(tf1, port):
    def network(x, training, activation=tf1):
        hidden = activation(tf.matmul(x, v1.get_variable("first", (10, 4))))
        return tf.matmul(
            activation(tf.matmul(hidden, v1.get_variable("second", (4, 4)))), v1.get_variable("last", (4, 2))
        )

    report = validate(Migration(tf1=network, port=shim_port(network, activation=port), inputs=INPUTS[:3]))
    (finding,) = report.findings
    assert finding.fault in (Fault.ACTIVATION, Fault.ONLY_IN_ONE), str(report)


def test_activations_that_no_output_needs_or_no_variable_reaches_are_left_out():
    def program(x):
        tf.tanh(x)
        return x + tf.tanh(tf.constant(INPUTS @ np.ones((10, 16), np.float32)))

    assert activations_of(program) == []


def test_the_check_says_which_activation_is_not_exercised():
    def program(x, training):
        return tf.nn.relu(tf.matmul(x, v1.get_variable("kernel", (10, 16))) - 50)

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = None

        def __call__(self, x, training=False):
            if self.kernel is None:
                self.kernel = v1.get_variable("kernel", (10, 16), use_resource=True)
            return tf.nn.relu(tf.matmul(x, self.kernel) - 50)

    report = validate(Migration(tf1=program, port=Port, inputs=INPUTS))
    for check in (report.checks[4], report.checks[6]):
        assert f"not exercised: Relu at {__file__}:" in check.summary
        assert "(no input above 0)" in check.summary


def test_the_check_of_training_does_not_name_an_activation_that_inference_exercises():
    def program(x, training):
        return tf.nn.relu(tf.matmul(x, v1.get_variable("kernel", (10, 16))) - (50 if training else 0))

    migration = Migration(tf1=program, port=shim_port(program), inputs=INPUTS)
    (check,) = validate(migration, checks=["random-training"]).checks
    assert "pre-activations: RMS" in check.summary
    assert "not exercised" not in check.summary


def test_an_activation_that_another_run_exercises_is_exercised():
    relu = Activation("net/Relu", "Relu at net.py:3", "", 2.0)
    tanh = Activation("net/Tanh", "Tanh at net.py:4", "", 0.5)
    in_training = [each._replace(flaw="no input above 0") for each in (relu, tanh)]
    assert list(describe_activations([relu, tanh])) == ["pre-activations: RMS 0.5 to 2 in 2 activations"]
    assert list(describe_activations([relu, relu])) == ["pre-activations: RMS 2 in 2 activations"]
    assert list(describe_activations(in_training, [relu])) == [
        "pre-activations: RMS 0.5 to 2 in 2 activations",
        "not exercised: Tanh at net.py:4 (no input above 0)",
    ]
