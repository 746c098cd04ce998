"""The causes of another computation: each is named by what both programs do, and confirmed by a substitute."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(3, 6, 6, 4)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
SCALES = np.array([1.5, 2.5, 0.25, 3.0], np.float32)


def dense(inputs, units, name):
    return tf.matmul(inputs, v1.get_variable(f"{name}/kernel", (inputs.shape[-1], units)))


def normalized(inputs):
    mean, variance = tf.nn.moments(inputs, [0])
    return (inputs - mean) * tf.math.rsqrt(variance + 1e-3)


def rows(inputs, training, *, scales=SCALES, step=lambda hidden: tf.tanh(normalized(hidden))):
    return dense(tf.nn.sigmoid(step(dense(inputs * scales, 4, "first"))), 2, "last")


def images(inputs, training, *, alpha=0.1, padding="SAME", axis=-1, crop=1):
    hidden = tf.nn.conv2d(inputs, v1.get_variable("squeeze/kernel", (1, 1, 4, 4)), 2, padding)
    hidden = tf.nn.local_response_normalization(hidden, 2, alpha=alpha)
    hidden = tf.nn.softmax(hidden + tf.reduce_mean(hidden, axis, keepdims=True))
    hidden = tf.nn.conv2d(hidden, v1.get_variable("next/kernel", (3, 3, 4, 4)), 1, "SAME")
    return tf.tanh(hidden[:, crop : crop + 2])


def clipped(hidden):
    return tf.minimum(tf.maximum(hidden * 0.3 + 0.4, 0.0), 1.0)


def only_finding(model, inputs, **changes):
    report = validate(Migration(tf1=model, port=shim_port(model, **changes), inputs=inputs))
    assert len(report.findings) == 1, str(report)
    return report.findings[0]


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"scales": SCALES[::-1].copy()}, "factor differs: the port's array is TF1's, reversed along axis 0"),
        ({"scales": SCALES * 2}, "factor differs: the port's array is 2 times TF1's"),
        (
            {"scales": SCALES[[2, 0, 1, 3]]},
            "factor differs: the port's array is TF1's in another order along axis 0: 2, 0, 1, 3",
        ),
        (
            {"scales": np.array([1.5, 2.5, 0.5, 3.0], np.float32)},
            "factor differs: 0.25 (TF1), 0.5 (port) in 1 of 4 entries, the first at [2]",
        ),
        (
            {"step": lambda hidden: normalized(tf.tanh(hidden))},
            "order of ops differs: normalization, then Tanh (TF1), Tanh, then normalization (port)",
        ),
        (
            {"step": lambda hidden: clipped(normalized(hidden))},
            "activation differs: Tanh (TF1), Mul 0.3, AddV2 0.4, Maximum 0.0, Minimum 1.0 (port)",
        ),
    ],
    ids=["reversed", "scaled", "permuted", "one entry", "order", "clipping"],
)
def test_a_computation_of_rows_is_named(changes, title):
    finding = only_finding(rows, ROWS, **changes)
    assert finding.title == title, str(finding)
    assert finding.confirmed


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"alpha": 0.3}, "alpha of the local response normalization differs: 0.1 (TF1), 0.3 (port)"),
        (
            {"alpha": 0.3, "padding": "VALID"},
            "alpha of the local response normalization differs: 0.1 (TF1), 0.3 (port)",
        ),
        ({"axis": 1}, "axis of Mean differs: 3 (TF1), 1 (port)"),
        ({"axis": (1, 2)}, "axis of Mean differs: 3 (TF1), [1 2] (port)"),
        ({"crop": 0}, "begin of StridedSlice differs: [0 1] (TF1), [0 0] (port)"),
    ],
    ids=["alpha", "padding of a window of 1", "axis", "two axes", "crop"],
)
def test_a_computation_of_images_is_named(changes, title):
    finding = only_finding(images, IMAGES, **changes)
    assert finding.title == title, str(finding)
    assert finding.confirmed


def test_a_padding_that_no_window_reaches_is_no_difference():
    report = validate(Migration(tf1=images, port=shim_port(images, padding="VALID"), inputs=IMAGES))
    assert report.ok, str(report)
