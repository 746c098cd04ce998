"""Losses that draw random numbers, such as the noise of a gradient penalty: in training, they draw what TF1 draws."""

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import dense, numbers


def of_mixtures(labels, outputs, deviation=0.5):
    """Penalize the outputs, mixed with the labels in random shares, and noise."""
    shares = tf.random_uniform([4, 1])
    mixed = shares * labels + (1.0 - shares) * outputs
    noise = tf.random_normal(tf.shape(outputs), stddev=deviation)
    return tf.reduce_mean(tf.square(mixed)) + tf.reduce_mean(tf.square(outputs + noise))


def by_keras(labels, outputs):
    shares = keras.random.uniform((4, 1))
    mixed = shares * labels + (1.0 - shares) * outputs
    noise = keras.random.normal(keras.ops.shape(outputs), stddev=0.5)
    return keras.ops.mean(mixed**2) + keras.ops.mean((outputs + noise) ** 2)


def network(rate):
    def tf1(x, training):
        hidden = dense(x, 5, "a", tf.nn.tanh)
        if rate and training:
            hidden = tf.nn.dropout(hidden, rate=rate)
        return dense(hidden, 2, "b")

    return tf1


class Port(keras.Model):
    def __init__(self, rate):
        super().__init__()
        self.a, self.b = keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)
        self.dropout = keras.layers.Dropout(rate)

    def call(self, x, training=False):
        return self.b(self.dropout(self.a(x), training=training))


def report_of(port_loss, rate=0.25):
    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=of_mixtures,
        port_loss=port_loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )
    migration = detrand.Migration(tf1=network(rate), port=lambda: Port(rate), inputs=numbers(4, 3), train=train)
    return detrand.validate(migration, checks=["training-steps"])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.25, 0.0])
@pytest.mark.parametrize("port_loss", [of_mixtures, by_keras])
def test_a_sound_loss_passes(port_loss, rate):
    report = report_of(port_loss, rate)
    assert report.ok, str(report)
    assert "the losses of outputs with distinct weights agree" in report.checks[0].summary


@pytest.mark.slow
def test_a_fault_beside_the_draws_is_named():
    (finding,) = report_of(lambda labels, outputs: of_mixtures(labels, outputs, 0.25)).findings
    assert finding.title == "loss: factor differs: 0.5 (TF1), 0.25 (port)", str(finding)
    assert finding.confirmed
