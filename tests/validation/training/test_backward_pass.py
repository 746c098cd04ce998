"""Faults of the backward pass only: outputs and losses agree, and the op is found whose gradient differs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, validate
from detrand.validation.golden import record_golden
from tests.support.shim_ports import shim_port
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
INPUTS = 2 * RNG.normal(size=(8, 4)).astype(np.float32)
LABELS = RNG.normal(size=(8, 2)).astype(np.float32)
WORDS = RNG.integers(0, 9, (8, 5)).astype(np.int32)


def scaled(factor):
    """Return a layer that passes its input on, and scales the gradient, as adversarial training does."""

    @tf.custom_gradient
    def identity(x):
        def gradient(upstream):
            return factor * upstream  # of the scaled layer

        return tf.identity(x), gradient

    return identity


@tf.custom_gradient
def straight_through(x):
    return tf.sign(x), lambda upstream: upstream


@tf.custom_gradient
def straight_through_near_0(x):
    def gradient(upstream):
        return upstream * tf.cast(tf.abs(x) <= 1.0, tf.float32)  # of the straight-through estimator

    return tf.sign(x), gradient


@tf.RegisterGradient("DetrandTestIdentity")
def _gradient_of_identity(op, upstream):
    return upstream


def signs(x):
    with v1.get_default_graph().gradient_override_map({"Sign": "DetrandTestIdentity"}):
        return tf.sign(x)


def two_heads(of_domain, of_label=tf.identity):
    def tf1(x, training):
        hidden = tf.tanh(tf.matmul(x, v1.get_variable("hidden/kernel", (4, 6))))
        label = tf.matmul(of_label(hidden), v1.get_variable("label/kernel", (6, 2)))
        return label, tf.matmul(of_domain(hidden), v1.get_variable("domain/kernel", (6, 2)))

    return tf1


class TwoHeads(keras.Model):
    def __init__(self, of_domain, of_label=tf.identity):
        super().__init__()
        self.hidden = keras.layers.Dense(6, "tanh", use_bias=False, name="hidden")
        self.label = keras.layers.Dense(2, use_bias=False, name="label")
        self.domain = keras.layers.Dense(2, use_bias=False, name="domain")
        self.of_domain, self.of_label = of_domain, of_label

    def call(self, x, training=False):
        hidden = self.hidden(x)
        return self.label(self.of_label(hidden)), self.domain(self.of_domain(hidden))


def of_two_heads(labels, outputs):
    return tf.reduce_mean((outputs[0] - labels) ** 2) + tf.reduce_mean((outputs[1] - labels) ** 2)


def of_one(labels, outputs):
    return tf.reduce_mean((outputs - labels) ** 2)


def quantized(activation):
    def tf1(x, training):
        hidden = activation(tf.matmul(x, v1.get_variable("hidden/kernel", (4, 6))))
        return tf.matmul(hidden, v1.get_variable("logits/kernel", (6, 2)))

    return tf1


class Quantized(keras.Model):
    def __init__(self, activation):
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation, use_bias=False, name="hidden")
        self.logits = keras.layers.Dense(2, use_bias=False, name="logits")

    def call(self, x, training=False):
        return self.logits(self.hidden(x))


def trained(tf1, port, loss, inputs=INPUTS):
    return Migration(
        tf1=tf1,
        port=port,
        inputs=inputs,
        name="trained",
        train=TrainStep(
            labels=LABELS,
            tf1_loss=loss,
            port_loss=loss,
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=2,
        ),
    )


@pytest.mark.slow
def test_another_factor_of_a_gradient_is_found_at_its_line():
    migration = trained(two_heads(scaled(-0.1)), lambda: TwoHeads(scaled(-1.0)), of_two_heads)
    (finding,) = validate(migration, checks=["training-steps"]).findings
    assert finding.title == "gradients: factor differs: -0.1 (TF1), -1.0 (port)"
    assert finding.confirmed and finding.checks == ("training-steps",)
    for place in (finding.tf1, finding.port):
        assert "# of the scaled layer" in place.source


@pytest.mark.slow
def test_two_faults_of_one_backward_pass_are_two_findings():
    tf1 = two_heads(scaled(-0.1), scaled(3.0))
    findings = validate(trained(tf1, lambda: TwoHeads(scaled(-0.2), scaled(2.0)), of_two_heads)).findings
    assert {finding.title for finding in findings} == {
        "gradients: factor differs: -0.1 (TF1), -0.2 (port)",
        "gradients: factor differs: 3.0 (TF1), 2.0 (port)",
    }
    assert all(finding.confirmed for finding in findings)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [straight_through, signs], ids=["custom_gradient", "gradient_override_map"])
def test_an_op_that_only_the_ports_gradient_has_is_found(activation):
    migration = trained(quantized(activation), lambda: Quantized(straight_through_near_0), of_one)
    (finding,) = validate(migration, checks=["training-steps"]).findings
    assert finding.title.startswith("gradients: only the port "), str(finding)
    assert finding.confirmed
    assert "# of the straight-through estimator" in finding.port.source


@pytest.mark.slow
def test_an_op_that_only_tf1s_gradient_has_is_found():
    migration = trained(quantized(straight_through_near_0), lambda: Quantized(straight_through), of_one)
    (finding,) = validate(migration, checks=["training-steps"]).findings
    assert finding.title.startswith("gradients: only TF1 "), str(finding)
    assert finding.confirmed
    assert "# of the straight-through estimator" in finding.tf1.source


@pytest.mark.slow
def test_gradients_in_slices_are_compared_too():
    def tf1(words, training):
        rows = tf.nn.embedding_lookup(v1.get_variable("words/embeddings", (9, 6)), words)
        mean = scaled(0.5)(tf.reduce_mean(rows, 1))
        return tf.matmul(mean, v1.get_variable("logits/kernel", (6, 2)))

    class Bag(keras.Model):
        def __init__(self):
            super().__init__()
            self.words = keras.layers.Embedding(9, 6, name="words")
            self.logits = keras.layers.Dense(2, use_bias=False, name="logits")
            self.scaled = scaled(1.0)

        def call(self, words, training=False):
            return self.logits(self.scaled(tf.reduce_mean(self.words(words), 1)))

    findings = validate(trained(tf1, Bag, of_one, WORDS), checks=["training-steps"]).findings
    (of_training,) = (finding for finding in findings if finding.kind == "training")
    assert of_training.title == "gradients: only TF1 multiplies by 0.5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1", "port"),
    [(straight_through, straight_through), (signs, straight_through)],
    ids=["same", "gradient_override_map"],
)
def test_equal_gradients_pass(tf1, port):
    report = validate(trained(quantized(tf1), lambda: Quantized(port), of_one), checks=["training-steps"])
    assert report.ok, str(report)


@pytest.mark.slow
def test_with_a_golden_file_the_variable_is_named(tmp_path):
    migration = trained(two_heads(scaled(-0.1)), lambda: TwoHeads(scaled(-1.0)), of_two_heads)
    record_golden([migration], tmp_path / "golden.npz")
    (finding,) = validate(migration, golden=tmp_path / "golden.npz").findings
    assert "gradient" in finding.title and "hidden/kernel" in finding.title


def gated(inputs, training, *, gate=tf.stop_gradient):
    """A layer whose gate passes no gradient on, beside a variable of which the outputs do not change."""
    hidden = tf.matmul(inputs, v1.get_variable("hidden/kernel", (4, 6))) + 0.0 * v1.get_variable("unused", (6,))
    gates = gate(tf.sigmoid(hidden))  # of the gates
    return tf.matmul(tf.tanh(hidden) * gates, v1.get_variable("logits/kernel", (6, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["TF1", "the port"])
def test_a_gradient_that_is_stopped_on_one_of_two_ways_has_the_line_of_the_stop(who):
    def without(inputs, training):
        return gated(inputs, training, gate=tf.identity)

    of_tf1, of_port = (gated, without) if who == "TF1" else (without, gated)
    (finding,) = validate(trained(of_tf1, shim_port(of_port), of_one), checks=["training-steps"]).findings
    assert finding.title == f"only {who} stops gradients of hidden/kernel (tf.stop_gradient)"
    assert finding.confirmed == "with TF1's gradients, the updates agree"
    assert "# of the gates" in (finding.tf1 if who == "TF1" else finding.port).source
