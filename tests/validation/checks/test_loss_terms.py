"""Losses of several terms, which the programs add and average differently: the finding is the term that differs."""

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from detrand.validation.results import Fault
from tests.faults.tf1 import dense, integers, numbers

CLASSES, ROWS, PIXELS = 5, 6, 4
LABELS = integers(CLASSES, ROWS, PIXELS)


def of_tf1(labels, outputs):
    """Average the sum of the terms of each row."""
    likelihood = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)
    shares = tf.nn.softmax(outputs)
    entropy = -tf.reduce_sum(shares * tf.log(shares), axis=-1)
    overlap = tf.reduce_sum(shares * tf.one_hot(labels, CLASSES), axis=[0, 1])
    dice = (2.0 * overlap + 1.0) / (tf.reduce_sum(shares, axis=[0, 1]) + 3.0)
    rows = tf.reduce_sum(likelihood - 0.3 * entropy, axis=1) + 0.5 * tf.reduce_sum(tf.square(outputs), axis=[1, 2])
    return tf.reduce_mean(rows) + 1.0 - tf.reduce_mean(dice)


def of_port(labels, outputs, fault=()):
    """Sum the terms, each of which is averaged by itself."""
    logarithms = tf.nn.log_softmax(outputs)
    target = tf.one_hot(labels, CLASSES)
    rows = tf.cast(tf.shape(outputs)[0], tf.float32)
    likelihood = -tf.reduce_sum(target * logarithms) / ROWS
    negative = tf.reduce_sum(tf.exp(logarithms) * logarithms, axis=-1)
    entropy = tf.reduce_mean(negative) if "mean of entropy" in fault else tf.reduce_sum(negative) / rows
    squares = outputs**2
    penalty = tf.reduce_mean(squares) if "mean of squares" in fault else tf.reduce_mean(tf.reduce_sum(squares, [1, 2]))
    axes = [1] if "axes of dice" in fault else [0, 1]
    shares = tf.exp(logarithms)
    dice = (2.0 * tf.reduce_sum(shares * target, axes) + 1.0) / (tf.reduce_sum(shares, axes) + 3.0)
    sign = -1.0 if "sign of entropy" in fault else 1.0
    factor = 0.25 if "factor of squares" in fault else 0.5
    return likelihood + sign * 0.3 * entropy + (1.0 - tf.reduce_mean(dice)) + factor * penalty


class Port(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(PIXELS * CLASSES, name="dense")

    def call(self, inputs):
        return tf.reshape(self.dense(inputs), (-1, PIXELS, CLASSES))


def validated(*fault):
    migration = detrand.Migration(
        tf1=lambda x, training: tf.reshape(dense(x, PIXELS * CLASSES, "a"), (-1, PIXELS, CLASSES)),
        port=Port,
        inputs=numbers(ROWS, 3),
        name_map={"a/w": "dense/kernel", "a/b": "dense/bias"},
        train=detrand.TrainStep(
            labels=LABELS,
            tf1_loss=of_tf1,
            port_loss=lambda labels, outputs: of_port(labels, outputs, fault),
            tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.01),
            port_optimizer=lambda: keras.optimizers.SGD(0.01),
            steps=2,
        ),
    )
    return detrand.validate(migration, checks=["training-steps"])


@pytest.mark.slow
def test_terms_that_are_added_in_a_different_order_agree():
    report = validated()
    assert report.ok, str(report)


SUMMED = "loss: TF1 sums a term of the loss where the port takes the mean: it is {} times as large"
FAULTS = {
    "mean of squares": SUMMED.format(PIXELS * CLASSES),
    "mean of entropy": SUMMED.format(PIXELS),
    "sign of entropy": "loss: factor differs: 0.3 (TF1), -0.3 (port)",
    "factor of squares": "loss: factor differs: 0.5 (TF1), 0.25 (port)",
    "axes of dice": "loss: a term of the loss differs: ",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_term_that_differs_is_the_finding(fault):
    (finding,) = validated(fault).findings
    assert finding.title.startswith(FAULTS[fault]) and finding.confirmed
    assert finding.tf1.line and finding.port.line


@pytest.mark.slow
def test_each_of_two_terms_that_differ_is_a_finding():
    findings = validated("sign of entropy", "factor of squares").findings
    assert {finding.title for finding in findings} == {
        "loss: the weight of a term differs: the port's term is -1 times TF1's",
        "loss: factor of a term differs: 0.5 (TF1), 0.25 (port)",
    }
    assert {finding.fault for finding in findings} == {Fault.TERM, Fault.VALUE}
