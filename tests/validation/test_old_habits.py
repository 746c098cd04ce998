"""Habits of TF1 code that a migration must get right: auxiliary heads, global steps, and draws from NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import Migration, TrainStep, validate

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
LABELS = np.ones((4, 3), np.float32)


def checks_of(report):
    return {check.name: check for check in report.checks}


def in_shim(program):
    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training)

    return Port


def squared(labels, outputs):
    return tf.add_n([tf.reduce_mean((each - labels) ** 2) for each in tf.nest.flatten(outputs)])


def training_with(optimizer):
    return TrainStep(
        labels=LABELS, tf1_loss=squared, port_loss=squared, tf1_optimizer=optimizer, port_optimizer=optimizer, steps=4
    )


def weight(name, *shape):
    return v1.get_variable(name, shape, regularizer=lambda w: 0.01 * tf.reduce_sum(w**2))


def with_an_auxiliary_head(x, training):
    hidden = tf.nn.relu(tf.matmul(x, weight("trunk", 6, 5)))
    outputs = tf.matmul(hidden, weight("head", 5, 3))
    return (outputs, tf.matmul(hidden, weight("auxiliary", 5, 3))) if training else outputs


@pytest.mark.slow
def test_an_output_that_exists_in_training_only_is_compared_in_every_check():
    train = training_with(lambda: v1.train.GradientDescentOptimizer(0.1))
    report = validate(
        Migration(tf1=with_an_auxiliary_head, port=in_shim(with_an_auxiliary_head), inputs=INPUTS, train=train)
    )
    assert report.ok, str(report)
    assert checks_of(report)["variables-match"].summary.startswith("3 variables")


def test_a_regularizer_of_inference_and_training_counts_once_in_the_audit():
    report = validate(Migration(tf1=with_an_auxiliary_head, port=in_shim(with_an_auxiliary_head), inputs=INPUTS))
    audited = {each.of: each for each in report.audit.hyperparameters if each.name == "regularizer"}
    assert (audited["trunk"].tf1, audited["trunk"].port) == ("0.01 sum(w**2)", "0.01 sum(w**2)")


def linear(x, training):
    return tf.matmul(x, v1.get_variable("w", [6, 3]))


def decayed_when_made():
    """Return an optimizer whose rate in eager code is a number, which the global step decides when it is made."""
    step = v1.train.get_or_create_global_step()
    return v1.train.GradientDescentOptimizer(0.1 * 0.5 ** tf.cast(step, tf.float32))


def decayed():
    step = v1.train.get_or_create_global_step()
    return v1.train.MomentumOptimizer(v1.train.exponential_decay(0.1, step, 2, 0.5), 0.9)


def first_rate(optimizer):
    report = validate(Migration(tf1=linear, port=in_shim(linear), inputs=INPUTS, train=training_with(optimizer)))
    return report, checks_of(report)["training-steps"].summary


@pytest.fixture
def global_step():
    steps = v1.get_default_graph().get_collection_ref(v1.GraphKeys.GLOBAL_STEP)
    before = steps[:]
    steps.clear()
    step = v1.train.get_or_create_global_step()
    step.assign(7)
    yield step
    steps[:] = before


@pytest.mark.slow
def test_a_global_step_of_another_run_decides_no_rate(global_step):
    report, _ = first_rate(decayed)
    assert report.ok, str(report)
    _, summary = first_rate(decayed_when_made)  # the rate is constant in eager code: a true difference, from step 1 on
    assert "first: step 1, learning_rate" in summary


@pytest.mark.slow
def test_a_global_step_of_another_run_keeps_its_value(global_step):
    first_rate(decayed)
    assert v1.train.get_global_step() is global_step
    assert global_step.numpy() == 7


def orthogonal(shape, dtype=tf.float32, partition_info=None):
    """Return initial values as RL code of 2017 drew them."""
    u, _, v = np.linalg.svd(np.random.normal(0.0, 1.0, shape), full_matrices=False)
    return (u if u.shape == tuple(shape) else v).astype(np.float32)


def policy(x, training):
    hidden = tf.tanh(tf.matmul(x, v1.get_variable("w", [6, 5], initializer=orthogonal)))
    return tf.matmul(hidden, v1.get_variable("v", [5, 3], initializer=orthogonal))


@pytest.mark.slow
def test_draws_from_numpy_are_named_first_as_a_cause():
    found = checks_of(validate(Migration(tf1=policy, port=in_shim(policy), inputs=INPUTS)))["initializers-match"]
    assert not found.ok
    assert found.causes[0].endswith("which draws different numbers in each run")
    remedies = {finding.remedy for finding in found.findings}
    assert remedies == {"pass Migration(seed_numpy=True) if np.random draws these values"}


@pytest.mark.slow
def test_seeded_draws_from_numpy_are_equal_and_leave_numpy_as_it_was():
    state = np.random.get_state()[1].copy()
    train = training_with(lambda: v1.train.GradientDescentOptimizer(0.1))
    report = validate(Migration(tf1=policy, port=in_shim(policy), inputs=INPUTS, train=train, seed_numpy=True))
    assert report.ok, str(report)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.fixture
def dimensions_as_in_tf1():
    """Make each dimension of a shape an object with a ``value``."""
    v1.disable_v2_tensorshape()
    yield
    v1.enable_v2_tensorshape()


def of_dimensions(images, training):
    """Convolution, fused normalization and dense layer, whose sizes are read from shapes."""
    kernel = v1.get_variable("kernel", (3, 3, images.shape[-1].value, 4))
    hidden = tf.nn.conv2d(images, kernel, strides=1, padding="SAME")
    size = hidden.shape[-1].value
    scale, offset = (v1.get_variable(name, (size,), initializer=v1.ones_initializer()) for name in ("gamma", "beta"))
    mean = v1.get_variable("mean", (size,), initializer=v1.zeros_initializer(), trainable=False)
    variance = v1.get_variable("variance", (size,), initializer=v1.ones_initializer(), trainable=False)
    given = {} if training else {"mean": mean, "variance": variance}
    hidden, *moments = v1.nn.fused_batch_norm(hidden, scale, offset, is_training=training, **given)
    if training:
        for average, value in zip((mean, variance), moments, strict=True):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(average, 0.9 * average + 0.1 * value))
    return tf.matmul(tf.reduce_mean(hidden, [1, 2]), v1.get_variable("logits", (size, 3)))


@pytest.mark.slow
@pytest.mark.usefixtures("dimensions_as_in_tf1")
def test_a_program_may_read_dimensions_as_in_tf1():
    images = np.random.default_rng(0).normal(size=(4, 5, 5, 2)).astype(np.float32)
    train = training_with(lambda: v1.train.GradientDescentOptimizer(0.1))
    report = validate(Migration(tf1=of_dimensions, port=in_shim(of_dimensions), inputs=images, train=train))
    assert report.ok, str(report)
