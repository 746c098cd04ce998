"""Moving averages of a sample's variance, and a port's of the batch's; the referee is NumPy's formula."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand.validation.programs.sample_variances import SampleVariances, excesses
from detrand.validation.programs.tf1 import fetch

v1 = tf.compat.v1
IMAGES = np.random.default_rng(3).normal(1, 2, size=(4, 5, 5, 3)).astype(np.float32)
LABELS = np.array([0.5, -1, 2, 1], np.float32)


def variance_of_sample(x):
    return v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3))[2]


def of_unknown_shape(x):
    return variance_of_sample(tf.reshape(x, tf.stack([-1, tf.shape(x)[1], 5, 3])))


def in_a_branch(x):
    training = v1.placeholder_with_default(True, [])
    return tf.cond(training, lambda: tf.identity(variance_of_sample(x)), lambda: tf.ones(3))


def in_a_branch_of_tf1(x):
    v1.disable_control_flow_v2()
    try:
        return in_a_branch(x)
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("variance_of", [variance_of_sample, of_unknown_shape, in_a_branch, in_a_branch_of_tf1])
def test_an_average_as_of_the_batch_is_numpys(variance_of):
    before = np.float32([1, 2, 3])
    with tf.Graph().as_default() as graph, v1.Session() as session:
        average = 0.9 * before + 0.1 * variance_of(tf.identity(IMAGES))
        after, variances = fetch(session, (average, SampleVariances(graph).fetches), {})
    flat = IMAGES.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(after, 0.9 * before + 0.1 * flat.var(0, ddof=1), rtol=1e-6)

    excess = excesses({"variance": before}, {"variance": after}, variances)["variance"]
    np.testing.assert_allclose(excess.rate, 0.1, rtol=1e-5)
    np.testing.assert_allclose(after - excess.amount, 0.9 * before + 0.1 * flat.var(0), rtol=1e-6)


def test_an_average_of_something_else_has_no_excess():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variance_of_sample(IMAGES)
        variances = fetch(session, SampleVariances(graph).fetches, {})
    before, means = np.float32([1, 2, 3]), IMAGES.mean((0, 1, 2))
    assert excesses({"mean": before}, {"mean": 0.9 * before + 0.1 * means}, variances) == {}


def test_normalization_in_inference_has_no_sample():
    with tf.Graph().as_default() as graph:
        v1.nn.fused_batch_norm(IMAGES, tf.ones(3), tf.zeros(3), tf.zeros(3), tf.ones(3), is_training=False)
        assert SampleVariances(graph).fetches == []


def migration(momentum=0.9):
    def tf1(x, training):
        x = v1.layers.batch_normalization(x, momentum=0.9, training=training, name="norm")
        return v1.layers.dense(tf.reduce_mean(x**2, [1, 2]), 1, name="head")[:, 0]

    def port():
        inputs = keras.Input(IMAGES.shape[1:])
        x = keras.layers.BatchNormalization(momentum=momentum, name="norm")(inputs)
        x = keras.layers.Dense(1, name="head")(keras.ops.mean(x**2, (1, 2)))
        return keras.Model(inputs, x[:, 0])

    return Migration(
        tf1=tf1,
        port=port,
        inputs=IMAGES,
        train=TrainStep(
            labels=LABELS,
            tf1_loss=v1.losses.mean_squared_error,
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.01),
            port_loss=lambda labels, outputs: tf.reduce_mean((labels - outputs) ** 2),
            port_optimizer=lambda: keras.optimizers.SGD(0.01),
            steps=3,
        ),
    )


@pytest.fixture(autouse=True)
def v1_layers():
    with enable_v1_layers():
        yield


@pytest.mark.slow
def test_a_keras_port_of_a_fused_normalization_trains_as_tf1():
    report = validate(migration())
    assert report.verdict == "passed", str(report)
    (check,) = (each for each in report.checks if each.name == "training-steps")
    averages = {name for trained in check.trainings.values() for name in trained.names}
    assert "moving_averages" in averages


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.92, 0.9003])
def test_another_momentum_is_found_beside_another_variance(momentum):
    names = [check.name for check in validate(migration(momentum)).checks if not check.ok]
    assert names == ["random-training", "training-steps"]
