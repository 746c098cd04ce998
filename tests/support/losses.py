"""Losses of TF1 and what a port is to be compared with them: labels, a model without layers, and lines of faults."""

import inspect
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import integers, numbers

CLASSES, NUMBERS, FLAGS = integers(4, 6).astype(np.int64), numbers(6, 4, seed=1), integers(2, 6, 4).astype(np.float32)
POSITIVE, SIGNS, HOT = np.abs(NUMBERS) + 0.1, 2 * FLAGS - 1, np.eye(4, dtype=np.float32)[CLASSES]
SHARES = np.exp(NUMBERS) / np.exp(NUMBERS).sum(axis=1, keepdims=True)
SOME_IGNORED = np.where(np.arange(6) == 2, -100, CLASSES)
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0], np.float32)


def cross_entropy(labels, outputs):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)


def binary_cross_entropy(labels, outputs):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs)


def mean_cross_entropy(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs))


def weighted(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs) * tf.gather(WEIGHTS, labels))


def divided_by_weights(labels, outputs):
    weights = tf.gather(WEIGHTS, labels)
    return tf.reduce_sum(cross_entropy(labels, outputs) * weights) / tf.reduce_sum(weights)


def smoothed_by_tf1(labels, outputs):
    return tf.losses.softmax_cross_entropy(tf.one_hot(labels, 4), outputs, label_smoothing=0.1)


def smoothed_and_divided_by_weights(labels, outputs):
    shares = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    losses = -tf.reduce_sum(shares * WEIGHTS * tf.nn.log_softmax(outputs), axis=1)
    return tf.reduce_sum(losses) / tf.reduce_sum(tf.gather(WEIGHTS, labels))


def of_known(labels, outputs):
    known = tf.cast(labels >= 0, tf.float32)
    return tf.reduce_sum(cross_entropy(tf.maximum(labels, 0), outputs) * known) / tf.reduce_sum(known)


def of_positive(labels, outputs):
    return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(labels, outputs, 2.5))


def sum_of_squares(labels, outputs):
    return tf.reduce_sum(tf.math.squared_difference(outputs, labels))


def mean_of_squares(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


def with_penalty(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs)) + 0.3 * tf.reduce_mean(tf.square(outputs))


def masked(labels, outputs):
    mask = tf.cast(labels > 0, tf.float32)
    return tf.reduce_sum(tf.square(labels - outputs) * mask) / tf.reduce_sum(mask)


def divergence(labels, outputs):
    return tf.reduce_sum(labels * (tf.math.log(labels) - tf.nn.log_softmax(outputs))) / 6


def cosine_distance(labels, outputs):
    product = tf.nn.l2_normalize(labels, axis=1) * tf.nn.l2_normalize(outputs, axis=1)
    return tf.reduce_mean(1.0 - tf.reduce_sum(product, axis=1))


def hinge(labels, outputs):
    return tf.reduce_mean(tf.maximum(0.0, 1.0 - labels * outputs))


def focal(labels, outputs):
    losses = binary_cross_entropy(labels, outputs)
    return tf.reduce_mean((1.0 - tf.exp(-losses)) ** 2 * losses)


def mean_distance(labels, outputs):
    return tf.reduce_mean(tf.sqrt(tf.reduce_sum(tf.square(labels - outputs), axis=1)))


def log_loss(labels, outputs):
    return tf.losses.log_loss(labels, tf.sigmoid(outputs), epsilon=0.01)


def clipped(labels, outputs):
    return tf.reduce_mean(tf.clip_by_value(tf.square(labels - outputs), 0.01, 1.0))


def huber(labels, outputs):
    return tf.losses.huber_loss(labels, outputs, delta=0.5)


def relative_error(labels, outputs):
    return tf.reduce_mean(tf.abs(labels - outputs) / tf.abs(labels))


def report_of(port, labels, of_tf1, of_port, port_optimizer, name_map=None):
    """Return the report of the training steps of a port that adds a bias to its inputs."""

    def tf1(x, training):
        return x + tf.get_variable("bias", (4,), initializer=tf.zeros_initializer())

    train = detrand.TrainStep(
        labels=labels,
        tf1_loss=of_tf1,
        port_loss=of_port,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=port_optimizer,
        steps=2,
    )
    migration = detrand.Migration(tf1=tf1, port=port, inputs=numbers(6, 4), name_map=name_map, train=train)
    return detrand.validate(migration, checks=["training-steps"])


def line_of(function):
    """Return the last line of a function, at which its fault is."""
    lines, start = inspect.getsourcelines(function)
    return f"{Path(inspect.getsourcefile(function)).name}:{start + len(lines) - 1}"
