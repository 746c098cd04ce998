"""The ways to run a program, and a program of three draws."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from detrand._patching.tensorflow import keep_global_seed
from detrand.changes import Changes

v1 = tf.compat.v1
MODES = ("constant", "num_random_ops")


def eagerly(program):
    return [tensor.numpy() for tensor in program()]


def in_function(program):
    return [tensor.numpy() for tensor in tf.function(program)()]


def in_session(program):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(program())


WAYS = {"session": in_session, "eager": eagerly, "function": in_function}
parametrize_ways = pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
parametrize_modes = pytest.mark.parametrize("mode", MODES)


def three_draws():
    a = tf.random.uniform(shape=(3, 1))
    a = a * 3
    b = tf.random.uniform(shape=(3, 3))
    b = b * 3
    c = tf.random.uniform(shape=(3, 3))
    c = c * 3
    return [a, b, c]


def draws(tool, program=three_draws, run=eagerly):
    with tool.scope():
        return run(program)


def assert_same(actual, desired):
    for a, b in zip(actual, desired, strict=True):
        np.testing.assert_array_equal(a, b)


@contextlib.contextmanager
def global_seed_kept():
    """Restore TensorFlow's global seed after the block."""
    with Changes() as changes:
        keep_global_seed(changes)
        yield
