"""Initial values and regularizers, compared by themselves."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, Rearranged, TrainStep
from detrand.validation.checks.registry import run_check
from detrand.validation.runner import Runner
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.ones((1, 2), np.float32)


def tf1(inputs, training):
    kernel = v1.get_variable("dense/kernel", (2, 3), initializer=v1.constant_initializer(4.0))
    return tf.matmul(inputs, kernel)


def port(value):
    return keras.layers.Dense(3, use_bias=False, kernel_initializer=keras.initializers.Constant(value), name="dense")


@pytest.mark.parametrize(("value", "ok"), [(4.0, True), (4 * (1 + 3e-6), True), (4 * (1 + 3e-5), False)])
def test_initial_values_may_differ_by_rounding_only(value, ok):
    migration = Migration(tf1=tf1, port=functools.partial(port, value), inputs=INPUTS)
    result = run_check("initializers-match", Runner(migration))
    assert result.ok == ok, result.details
    assert result.comparisons["initial values"].leaves[0].size == 6


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("initializer", "of_port", "ok"),
    [
        (v1.random_normal_initializer(stddev=1.0), keras.initializers.RandomNormal(stddev=1.0), True),
        (v1.random_normal_initializer(stddev=1.0), keras.initializers.RandomNormal(stddev=2.0), False),
        (v1.constant_initializer(VALUES), lambda shape, dtype: VALUES.T, True),
        (v1.constant_initializer(VALUES), lambda shape, dtype: VALUES.T + 1.0, False),
    ],
    ids=["same distribution", "another distribution", "same array", "another array"],
)
def test_a_variable_in_another_form_has_the_same_initializer_or_the_same_numbers(initializer, of_port, ok):
    class Transposed(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(3, 2), initializer=of_port, name="w")

        def call(self, inputs):
            return tf.matmul(inputs, self.w, transpose_b=True)

    migration = Migration(
        tf1=lambda x, training: tf.matmul(x, v1.get_variable("w", (2, 3), initializer=initializer)),
        port=lambda: Transposed(name="transposed"),
        inputs=INPUTS,
        name_map={"w": Rearranged("transposed/w", np.transpose)},
    )
    result = run_check("initializers-match", Runner(migration))
    assert result.ok == ok, result.details
    assert "raised" not in result.summary


def adding(inputs, training):
    """Add a loss that depends on nothing but the kind of the call."""
    v1.losses.add_loss(tf.constant(3.0 if training else 2.0), v1.GraphKeys.REGULARIZATION_LOSSES)
    return inputs * v1.get_variable("w", ())


class Adding(keras.layers.Layer):
    def __init__(self, *losses):
        super().__init__(name="adding")
        self.w, self.by_training = self.add_weight(name="w"), losses

    def call(self, inputs, training=False):
        if self.by_training:
            self.add_loss(tf.constant(self.by_training[training]))
        return inputs * self.w


@pytest.mark.parametrize(
    ("losses", "of_port", "cause"),
    [((4.0, 5.0), "5", "factor of a regularizer differs"), ((), "none", "only TF1 has a regularizer")],
)
def test_a_loss_that_differs_is_named_as_in_training(losses, of_port, cause):
    migration = Migration(tf1=adding, port=lambda: Adding(*losses), inputs=INPUTS, name_map={"w": "adding/w"})
    result = run_check("regularizers-match", Runner(migration))
    assert result.summary.endswith(f"first: the loss: 3 (TF1), {of_port} (port) in training with TF1's initial values")
    assert result.causes[0].startswith(cause)


TRAIN = TrainStep(
    labels=np.ones((1, 2), np.float32),
    tf1_loss=v1.losses.mean_squared_error,
    port_loss=keras.losses.MeanSquaredError(),
    tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
    port_optimizer=lambda: keras.optimizers.SGD(0.1),
)


@pytest.mark.parametrize("train", [None, TRAIN], ids=["without training", "with training"])
def test_a_module_keeps_no_losses_so_its_training_must_prove_them(train):
    def regularized(inputs, training):
        return inputs * v1.get_variable("w", (), regularizer=tf.nn.l2_loss)

    migration = Migration(tf1=regularized, port=shim_port(regularized, tf.Module), inputs=INPUTS, train=train)
    result = run_check("regularizers-match", Runner(migration))
    assert (result.ok, result.compared) == (True, train is not None)
    assert result.summary.endswith("training-steps compares the total loss") == (train is not None)


def test_a_loss_that_raises_proves_no_regularizer():
    def regularized(inputs, training, factor=1.0):
        return inputs * v1.get_variable("w", (), regularizer=lambda w: factor * tf.nn.l2_loss(w))

    def raises(labels, outputs):
        raise OverflowError("too much")

    migration = Migration(
        tf1=regularized,
        port=shim_port(regularized, factor=2.0),
        inputs=INPUTS,
        train=dataclasses.replace(TRAIN, port_loss=raises),
    )
    result = run_check("regularizers-match", Runner(migration))
    assert "regularizer differs in w: 0.5 sum(w**2) (TF1), 1 sum(w**2) (port)" in result.causes


def test_a_regularizer_of_a_variable_that_only_training_creates_is_not_confirmed():
    """Distinct weights are compared in inference."""

    def program(inputs, training, factor=1.0):
        with v1.variable_scope("", regularizer=lambda w: factor * tf.nn.l2_loss(w)):
            outputs = inputs * v1.get_variable("w", ())
            return outputs * v1.get_variable("v", ()) if training else outputs

    migration = Migration(tf1=program, port=shim_port(program, factor=2.0), inputs=INPUTS)
    (finding,) = run_check("regularizers-match", Runner(migration)).findings
    assert finding.title.startswith("regularizer differs in w, v: ")
    assert finding.confirmed == ""
