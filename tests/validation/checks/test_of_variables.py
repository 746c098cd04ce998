"""Initial values and regularizers, compared by themselves."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration
from detrand.validation.checks.registry import run_check
from detrand.validation.runner import Runner

v1 = tf.compat.v1


def tf1(inputs, training):
    kernel = v1.get_variable("dense/kernel", (2, 3), initializer=v1.constant_initializer(4.0))
    return tf.matmul(inputs, kernel)


def port(value):
    return keras.layers.Dense(3, use_bias=False, kernel_initializer=keras.initializers.Constant(value), name="dense")


@pytest.mark.parametrize(("value", "ok"), [(4.0, True), (4 * (1 + 3e-6), True), (4 * (1 + 3e-5), False)])
def test_initial_values_may_differ_by_rounding_only(value, ok):
    migration = Migration(tf1=tf1, port=functools.partial(port, value), inputs=np.ones((1, 2), np.float32))
    result = run_check("initializers-match", Runner(migration))
    assert result.ok == ok, result.details
    assert result.comparisons["initial values"].leaves[0].size == 6
