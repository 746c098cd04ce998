"""Known faults of ports, each planted: `validate` names its cause among the first two."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, track_tf1_style_variables, validate

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def half_of_squares(weights):
    return 0.01 * tf.nn.l2_loss(weights)


def squares(weights):
    return 0.01 * tf.reduce_sum(weights**2)


def network(
    images,
    training,
    *,
    size=6,
    resize=v1.image.resize_bilinear,
    align_corners=False,
    initializer=None,
    transposed=False,
    flipped=False,
    padding="SAME",
    epsilon=1e-3,
    own_epsilon=1e-6,
    activation=tf.nn.relu,
    reduce=tf.reduce_mean,
    rate=0.1,
    regularizer=half_of_squares,
    noise=False,
):
    images = resize(images, (size, size), align_corners=align_corners)
    if noise:
        images = images + 0 * tf.random.normal(images.shape)
    kernel = v1.get_variable("conv/kernel", (3, 3, 3, 4), initializer=initializer, regularizer=regularizer)
    if flipped:
        kernel = kernel[::-1]
    hidden = tf.nn.conv2d(images, kernel, strides=1, padding=padding)
    hidden = v1.nn.fused_batch_norm(hidden, tf.fill([4], 1.5), tf.fill([4], 0.1), epsilon=epsilon)[0]
    hidden = reduce(activation(hidden), (1, 2)) + 0.3
    hidden = hidden * tf.math.rsqrt(tf.reduce_mean(hidden**2, 1, keepdims=True) + own_epsilon)
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    square = v1.get_variable("logits/kernel", (4, 4))
    return tf.tanh(tf.matmul(hidden, square, transpose_b=transposed))


def port(**changes):
    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, images, training=False):
            return network(images, training, **changes)

    return Port


INFERENCE, TRAINING = "random-inference", "random-training"


@pytest.mark.parametrize(
    ("changes", "check", "cause"),
    [
        ({"align_corners": True}, INFERENCE, "a resize that aligns corners or pixel centres otherwise"),
        ({"resize": v1.image.resize_nearest_neighbor}, INFERENCE, "another way to resize: ResizeBilinear in TF1, Res"),
        ({"initializer": v1.zeros_initializer()}, INFERENCE, "random ops that are others or come in another order"),
        ({"initializer": v1.glorot_normal_initializer()}, INFERENCE, "another initializer|random ops that are others"),
        (
            {"initializer": v1.variance_scaling_initializer(4.0, "fan_avg", "uniform")},
            INFERENCE,
            "an initializer of another scale: the port's values are 2 times TF1's",
        ),
        ({"transposed": True}, INFERENCE, "a kernel that is transposed: False in TF1, True in the port"),
        ({"flipped": True}, INFERENCE, "an array that is flipped along axis 0"),
        ({"padding": "VALID"}, INFERENCE, "another padding: SAME in TF1, VALID in the port"),
        ({"epsilon": 1e-5}, INFERENCE, "epsilon of a batch normalization: 0.001 in TF1, 1e-05 in the port"),
        ({"own_epsilon": 1e-2}, INFERENCE, "another epsilon: 1e-06 in TF1, 0.01 in the port"),
        ({"activation": tf.nn.elu}, INFERENCE, "another activation: Relu in TF1, Elu in the port"),
        ({"activation": tf.identity}, INFERENCE, "an activation that is missing in the port: Relu"),
        ({"reduce": tf.reduce_sum}, INFERENCE, "a sum against a mean: Mean in TF1, Sum in the port"),
        ({"rate": 0.4}, TRAINING, "another dropout rate: 0.1 in TF1, 0.4 in the port"),
        ({"rate": 0.9}, TRAINING, "a rate taken for a keep_prob: 0.1 is dropped in TF1, 0.9 in the port"),
        ({"regularizer": squares}, INFERENCE, "a regularizer with twice the factor: tf.nn.l2_loss"),
        ({"regularizer": None}, INFERENCE, "a regularizer that the port does not have"),
        ({"noise": True}, INFERENCE, "random ops that are others or come in another order"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_planted_fault(changes, check, cause):
    report = validate(Migration(tf1=network, tf2=port(**changes), inputs=IMAGES))
    (found,) = (one for one in report.checks if one.name == check)
    assert not found.ok
    assert any(re.match(cause, one) or cause in one for one in found.causes[:2]), str(report)
    assert found.causes[0] in found.details


def test_sound_port_has_none():
    report = validate(Migration(tf1=network, tf2=port(), inputs=IMAGES))
    assert report.ok
    assert not any(check.causes for check in report.checks)
