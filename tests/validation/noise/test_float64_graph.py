"""A graph in float64 computes what NumPy computes in float64 from the same float32 numbers."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.validation.noise.float64_graph import widen_to_float64

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4, 4)).astype(np.float32)


def in_float64(build):
    """Returns what a graph computes in float64 from the placeholder ``x``, and what stays as it is."""
    with tf.Graph().as_default() as graph:
        result = build(v1.placeholder(tf.float32, X.shape, name="x"))
    graph_def = graph.as_graph_def(add_shapes=True)
    renamed, kept = widen_to_float64(graph_def)
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        name = renamed.get(result.op.name, result.op.name)
        return session.run(f"{name}:0", {"x:0": X.astype(np.float64)}), kept


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def loop(x):
    return tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, tf.sigmoid(tf.matmul(s, W))), [0, x])[1]


def numpy_loop(x):
    for _ in range(3):
        x = sigmoid(x @ W.astype(np.float64))
    return x


def lists(x):
    return tf.map_fn(lambda row: tf.exp(row) / 3.0, x)


def in_halves(x):
    return tf.cast(tf.cast(x, tf.float16) * tf.constant(0.1, tf.float16), tf.float32)


PROGRAMS = {
    "matmul": (lambda x: tf.matmul(x, W) + 0.1, lambda x: x @ W.astype(np.float64) + np.float64(np.float32(0.1))),
    "loop": (loop, numpy_loop),
    "conditional": (lambda x: tf.cond(x[0, 0] < 99, lambda: tf.exp(x), lambda: x), np.exp),
    "lists of tensors": (lists, lambda x: np.exp(x) / 3),
    "float16": (in_halves, lambda x: x * np.float64(np.float16(0.1))),
    "whole numbers between": (lambda x: x / tf.cast(tf.shape(x)[0], tf.float32), lambda x: x / 3),
    "moments": (lambda x: tf.nn.moments(x, [0])[1], lambda x: x.var(axis=0)),
    "function": (tf.function(lambda x: tf.sigmoid(x) * 2.0), lambda x: 2 * sigmoid(x)),
}


@pytest.mark.parametrize(("build", "formula"), PROGRAMS.values(), ids=PROGRAMS)
def test_it_is_the_formula_in_float64(build, formula):
    found, kept = in_float64(build)
    assert found.dtype == np.float64
    assert not kept
    np.testing.assert_allclose(found, formula(X.astype(np.float64)), rtol=1e-14)


def test_random_numbers_are_those_of_float32():
    def noisy(x):
        return tf.nn.dropout(x, 0.5) + tf.random.normal(x.shape) + tf.random.uniform(x.shape)

    with DeterministicRandomTestTool().scope():
        found, kept = in_float64(noisy)
    with DeterministicRandomTestTool().scope(), tf.Graph().as_default(), v1.Session() as session:
        mask = session.run(tf.nn.dropout(tf.ones(X.shape), 0.5))
    with DeterministicRandomTestTool().scope(), tf.Graph().as_default(), v1.Session() as session:
        normal, uniform = session.run((tf.random.normal(X.shape), tf.random.uniform(X.shape)))
    assert not kept
    np.testing.assert_allclose(found, X * mask.astype(np.float64) + normal + uniform, rtol=1e-13)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_fused_batch_normalization(training):
    scale, offset, mean, variance = (RNG.random(2).astype(np.float32) for _ in range(4))

    def normalized(x):
        moments = {} if training else {"mean": mean, "variance": variance}
        images = tf.reshape(tf.exp(x), (3, 2, 1, 2))
        found = v1.nn.fused_batch_norm(images, scale, offset, **moments, epsilon=0.01, is_training=training)
        return tf.concat([tf.reshape(found[0], [-1]), *found[1:]], 0)

    found, kept = in_float64(normalized)
    images = np.exp(X.astype(np.float64)).reshape(3, 2, 1, 2)
    used = (images.mean((0, 1, 2)), images.var((0, 1, 2))) if training else (mean, variance.astype(np.float64))
    expected = (images - used[0]) / np.sqrt(used[1] + np.float64(np.float32(0.01))) * scale + offset
    returned = used[1] * 6 / 5 if training else used[1]
    assert not kept
    np.testing.assert_allclose(found, np.concatenate([expected.ravel(), used[0], returned]), rtol=1e-13)


def test_what_has_no_kernel_for_float64_stays_and_is_told():
    found, kept = in_float64(lambda x: 3.0 * tf.nn.lrn(tf.reshape(tf.exp(x), (3, 1, 1, 4)), 1, bias=0.5, alpha=0.3))
    assert kept == {"LRN": 1}
    assert found.dtype == np.float64
    squares = np.exp(X.astype(np.float64)) ** 2
    sums = np.stack([squares[:, max(i - 1, 0) : i + 2].sum(1) for i in range(4)], 1)
    in_float32 = 3 * np.sqrt(squares) / np.sqrt(0.5 + 0.3 * sums)
    np.testing.assert_allclose(found.reshape(3, 4), in_float32, rtol=1e-6)


def test_what_has_float32_by_definition_stays_so():
    found, kept = in_float64(lambda x: v1.image.resize_bilinear(tf.exp(tf.reshape(x, (1, 3, 4, 1))), (6, 8)) * 1.5)
    assert found.dtype == np.float64
    assert kept == {"ResizeBilinear": 1}
    top_left = np.exp(X.astype(np.float64))[0, 0] * 1.5
    np.testing.assert_allclose(found[0, 0, 0, 0], top_left, rtol=1e-6)


def test_bits_and_functions_in_python_keep_their_dtype():
    def strange(x):
        doubled = v1.py_func(lambda array: array * np.float32(2), [x], tf.float32)
        return tf.cast(tf.bitcast(tf.exp(doubled), tf.int32), tf.float32)

    found, kept = in_float64(strange)
    assert kept == {"PyFunc": 1, "Bitcast": 1}
    exact = np.exp(2 * X.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found, exact.view(np.int32))
