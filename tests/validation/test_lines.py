"""The lines of ports that findings name: of what updates a variable, of a loss, of where an op is missing."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate

v1 = tf.compat.v1


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def marked(function, mark="# HERE"):
    """Return the lines of a function that end in a mark, as reports show them."""
    lines, start = inspect.getsourcelines(function)
    return [f"test_lines.py:{start + n}" for n, line in enumerate(lines) if line.rstrip().endswith(mark)]


def averaging(decay, *, with_updates=True):
    """Return TF1's model that subtracts a moving average of its inputs."""

    def tf1(inputs, training):
        mean = v1.get_variable("mean", [3], initializer=v1.zeros_initializer(), trainable=False)
        outputs = inputs - mean
        if training and with_updates:
            with tf.control_dependencies([outputs]):
                v1.add_to_collection("update_ops", mean.assign_sub((1 - decay) * (mean - tf.reduce_mean(inputs, 0))))
        return outputs

    return tf1


class Averaging(keras.Layer):
    decay = 0.99

    def build(self, shape):
        self.mean = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="mean")

    def move(self, towards):
        self.mean.assign_add((towards - self.mean) * (1 - self.decay))  # HERE

    def call(self, inputs, training=False):
        outputs = inputs - self.mean  # READ
        if training and self.decay:
            self.move(keras.ops.mean(inputs, 0))
        return outputs


class AveragingModule(tf.Module):
    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(tf.zeros([3]), trainable=False, name="mean")

    def __call__(self, inputs, training=False):
        outputs = inputs - self.mean
        if training:
            self.mean.assign(0.99 * self.mean + 0.01 * tf.reduce_mean(inputs, 0))  # HERE
        return outputs


class Frozen(Averaging):
    decay = None


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (Averaging, marked(Averaging)),
        (lambda: keras.Sequential([Averaging()]), marked(Averaging)),
        (AveragingModule, marked(AveragingModule)),
        (Frozen, marked(Averaging, "# READ")),
    ],
)
def test_a_moving_average_has_the_line_that_updates_it_or_else_uses_it(port, expected):
    migration = Migration(tf1=averaging(0.9), port=port, inputs=numbers(4, 3) + 1)
    (finding,) = [each for each in validate(migration).findings if each.kind == "averages"]
    assert finding.port.line.endswith(expected[0])
