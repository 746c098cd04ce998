"""Losses that differ: the finding names the op and the line inside of the loss."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import dense, integers, numbers

CLASSES, NUMBERS = integers(4, 6), numbers(6, 4)


def cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def tf1_loss(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def port_loss(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def with_another_factor(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    penalty = tf.reduce_mean(tf.square(outputs)) * 0.4  # here
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + penalty


def without_weights(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs)) + 0.3 * tf.reduce_mean(tf.square(outputs))  # here


def of_other_labels(labels, outputs):
    weights = tf.cast(tf.greater(labels, 1), tf.float32) + 0.5  # here
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def validated(loss, port=lambda: keras.layers.Dense(4), of_tf1=tf1_loss, labels=CLASSES, checks=None):
    train = detrand.TrainStep(
        labels=labels,
        tf1_loss=of_tf1,
        port_loss=loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=1,
    )
    return detrand.validate(
        detrand.Migration(
            tf1=lambda x, training: dense(x, 4, "a"),
            port=port,
            inputs=numbers(6, 3),
            name_map=lambda name: name.replace("a/w", "dense/kernel").replace("a/b", "dense/bias"),
            train=train,
        ),
        checks=checks,
    )


def line_of(loss):
    lines, start = inspect.getsourcelines(loss)
    return start + next(number for number, line in enumerate(lines) if line.rstrip().endswith("# here"))


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (with_another_factor, "loss: factor differs: 0.3 (TF1), 0.4 (port)"),
        (without_weights, "loss: only TF1 masks the loss by the labels (Greater)"),
        (of_other_labels, "loss: threshold differs: 0 (TF1), 1 (port)"),
    ],
)
def test_a_difference_inside_of_a_loss_is_named_with_its_line(loss, title):
    finding, *others = validated(loss).findings
    assert not others
    assert finding.title == title
    assert finding.port.line.endswith(f"test_loss_of_outputs.py:{line_of(loss)}")
    assert finding.confirmed


def test_a_loss_is_compared_of_the_outputs_of_tf1():
    """A fault of the model is found beside a fault of the loss, and is no difference of the loss."""

    class Shifted(keras.layers.Dense):
        def call(self, x):
            return super().call(x) + 0.5

    titles = [each.title for each in validated(with_another_factor, lambda: Shifted(4, name="dense")).findings]
    assert "loss: factor differs: 0.3 (TF1), 0.4 (port)" in titles
    assert len([title for title in titles if title.startswith("loss:")]) == 1


def test_equal_losses_pass():
    assert np.all([check.ok for check in validated(port_loss).checks])


def mean_cross_entropy(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs))


def sum_of_cross_entropy(labels, outputs):
    return tf.reduce_sum(cross_entropy(labels, outputs))


def mean_of_squares(labels, outputs):
    return tf.reduce_mean((labels - outputs) ** 2)


def sum_of_squares(labels, outputs):
    return 2.0 * tf.nn.l2_loss(labels - outputs)


def sum_of_squares_with_twice_the_gradient(labels, outputs):
    twice = tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: 2.0 * upstream))
    return sum_of_squares(labels, twice(outputs))


SUMS = "the port sums a loss where TF1 takes the mean: it is {} times as large, a size of the outputs"
WITH_VALUE = "with TF1's value here, the rest agrees"


@pytest.mark.parametrize(
    ("labels", "losses", "title", "place", "confirmed", "others"),
    [
        (
            CLASSES,
            (
                tf.losses.sparse_softmax_cross_entropy,
                keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
            ),
            SUMS.format(6),
            "the loss",
            WITH_VALUE,
            [],
        ),
        (
            CLASSES,
            (tf.losses.sparse_softmax_cross_entropy, sum_of_cross_entropy),
            SUMS.format(6),
            "Sum (Sum)",
            WITH_VALUE,
            [],
        ),
        (
            CLASSES,
            (mean_cross_entropy, sum_of_cross_entropy),
            "loss: reduction differs: Mean (TF1), Sum (port)",
            "Sum (Sum)",
            WITH_VALUE,
            [],
        ),
        (
            NUMBERS,
            (mean_of_squares, sum_of_squares),
            SUMS.format(24),
            "L2Loss (L2Loss)",
            "so do the gradients",
            [],
        ),
        (
            NUMBERS,
            (mean_of_squares, sum_of_squares_with_twice_the_gradient),
            SUMS.format(24),
            "L2Loss (L2Loss)",
            "",
            ["loss: another result at pow (Pow)"],
        ),
    ],
    ids=["in Keras", "of TF1's own loss", "as one op", "in another op", "beside other gradients"],
)
def test_a_sum_in_place_of_a_mean_is_confirmed_by_the_loss_or_the_gradients(
    labels, losses, title, place, confirmed, others
):
    of_tf1, of_port = losses
    (finding,) = validated(of_port, of_tf1=of_tf1, labels=labels, checks=["training-steps"]).findings
    assert (finding.title, finding.port.op, finding.confirmed) == (title, place, confirmed)
    assert [other.partition(" at test")[0].partition(" at /")[0] for other in finding.others] == others
