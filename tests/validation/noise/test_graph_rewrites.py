"""Rewritten graphs compute the same numbers, rounded differently: reductions reordered, float64, half precision."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.validation.noise.graph_rewrites import ORDERS, reorder_reductions, round_to, widen_to_float64
from tests.support.step_runs import AS_WRITTEN

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4, 4)).astype(np.float32)


def whole(*shape):
    """Return whole numbers, each different from its neighbours: they are added without rounding in any order."""
    return tf.constant(RNG.permutation(np.arange(np.prod(shape)) - np.prod(shape) // 3).reshape(shape), tf.float32)


def run(graph_def, name):
    with tf.Graph().as_default(), v1.Session(config=AS_WRITTEN) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(name)


def loop_of_sums():
    return tf.while_loop(lambda i, total: i < 2, lambda i, total: (i + 1, total + tf.reduce_sum(whole(3))), [0, 0.0])[1]


def conditional():
    values = whole(3, 4)
    return tf.cond(values[0, 0] < 1e9, lambda: tf.reduce_sum(values, 1), lambda: values[:, 0])


REDUCTIONS = {
    "Sum": lambda: tf.reduce_sum(whole(3, 4, 5), [0, -1]),
    "Sum of all": lambda: tf.reduce_sum(whole(3, 4)),
    "Mean": lambda: tf.reduce_mean(whole(3, 4, 2), 1),
    "Mean of all": lambda: tf.reduce_mean(whole(2, 4, 2)),
    "Mean, dimensions kept": lambda: tf.reduce_mean(whole(4, 5, 2), [0, 2], keepdims=True),
    "in a loop": loop_of_sums,
    "in a conditional": conditional,
}


def inputs_of_reductions(graph_def):
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return {node.name: list(node.input) for nodes in bodies for node in nodes if node.op in ("Sum", "Mean")}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reordered_reductions_of_whole_numbers_are_equal(build, order):
    with tf.Graph().as_default() as graph:
        result = build()
    graph_def = graph.as_graph_def()
    expected, before = run(graph_def, result.name), inputs_of_reductions(graph_def)
    assert reorder_reductions(graph_def, order) == len(before) >= 1
    assert all(inputs != before[name] for name, inputs in inputs_of_reductions(graph_def).items())
    np.testing.assert_array_equal(run(graph_def, result.name), expected)
    assert len(np.unique(expected)) > 1 or not expected.shape


def test_reversed_reductions_round_differently():
    numbers = RNG.normal(size=(20, 300)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        result = tf.reduce_sum(tf.constant(numbers), 1)
    graph_def = graph.as_graph_def()
    before = run(graph_def, result.name)
    reorder_reductions(graph_def, "reversed")
    after = run(graph_def, result.name)
    assert (after != before).any()
    np.testing.assert_allclose(after, numbers.sum(1, dtype=np.float64), atol=1e-4)


def test_reductions_one_term_at_a_time_are_less_precise():
    numbers = RNG.random(3000).astype(np.float32)
    with tf.Graph().as_default() as graph:
        result = tf.reduce_sum(tf.constant(numbers))
    graph_def = graph.as_graph_def()
    in_pairs, exact = run(graph_def, result.name), numbers.sum(dtype=np.float64)
    assert reorder_reductions(graph_def, "one term at a time") == 1
    one_by_one = run(graph_def, result.name)
    assert abs(one_by_one - exact) > 2 * abs(in_pairs - exact)
    np.testing.assert_allclose(one_by_one, exact, rtol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_a_reduction_over_no_axes_is_left_as_it_is(order):
    with tf.Graph().as_default() as graph:
        tf.reduce_sum(whole(2, 3)[0, 0], axis=[], name="total")
    graph_def = graph.as_graph_def()
    before = run(graph_def, "total:0")
    assert reorder_reductions(graph_def, order) == 0
    assert run(graph_def, "total:0") == before


@pytest.mark.parametrize("order", ORDERS)
def test_reductions_of_integers_are_left_as_they_are(order):
    with tf.Graph().as_default() as graph:
        tf.reduce_sum(tf.constant([1, 2, 3]))
    assert reorder_reductions(graph.as_graph_def(), order) == 0


def in_float64(build):
    """Return what a graph computes in float64 from the placeholder ``x``, and the ops that stay in float32."""
    with tf.Graph().as_default() as graph:
        result = build(v1.placeholder(tf.float32, X.shape, name="x"))
    graph_def = graph.as_graph_def()
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


def ctc_loss(x):  # calls functions by name
    labels = tf.constant([[1, 2]])
    unique = tf.nn.ctc_unique_labels(labels)
    return tf.nn.ctc_loss(labels, x[:, None], label_length=[2], logit_length=[3], unique=unique, blank_index=0)


def numpy_ctc_loss(x):
    probabilities = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    alignments = [(0, 1, 2), (1, 0, 2), (1, 2, 0), (1, 1, 2), (1, 2, 2)]
    return -np.log([sum(probabilities[range(3), alignment].prod() for alignment in alignments)])


PROGRAMS = {
    "matmul": (lambda x: tf.matmul(x, W) + 0.1, lambda x: x @ W.astype(np.float64) + np.float64(np.float32(0.1))),
    "loop": (loop, numpy_loop),
    "conditional": (lambda x: tf.cond(x[0, 0] < 99, lambda: tf.exp(x), lambda: x), np.exp),
    "lists of tensors": (lists, lambda x: np.exp(x) / 3),
    "float16": (in_halves, lambda x: x * np.float64(np.float16(0.1))),
    "whole numbers between": (lambda x: x / tf.cast(tf.shape(x)[0], tf.float32), lambda x: x / 3),
    "moments": (lambda x: tf.nn.moments(x, [0])[1], lambda x: x.var(axis=0)),
    "function": (tf.function(lambda x: tf.sigmoid(x) * 2.0), lambda x: 2 * sigmoid(x)),
    "functions called by name": (ctc_loss, numpy_ctc_loss),
}


@pytest.mark.parametrize(("build", "formula"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_widened_graph_computes_the_formula_in_float64(build, formula):
    found, kept = in_float64(build)
    assert found.dtype == np.float64
    assert not kept
    np.testing.assert_allclose(found, formula(X.astype(np.float64)), rtol=1e-14)


def test_a_widened_graph_draws_the_random_numbers_of_float32():
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
def test_a_fused_batch_normalization_is_computed_in_float64(training):
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


def test_a_fused_batch_normalization_that_updates_moving_averages_is_computed_in_float64():
    def updating(x):
        given = dict.fromkeys(("scale", "offset", "mean", "variance"), tf.ones(2))
        images = tf.reshape(tf.exp(x), (3, 2, 1, 2))
        found = tf.raw_ops.FusedBatchNormV3(x=images, **given, exponential_avg_factor=0.25, is_training=True)
        return tf.concat([found.batch_mean, found.batch_variance], 0)

    found, kept = in_float64(updating)
    assert not kept
    images = np.exp(X.astype(np.float64)).reshape(6, 2)
    of_batch = np.concatenate([images.mean(0), images.var(0, ddof=1)])
    np.testing.assert_allclose(found, 0.75 + 0.25 * of_batch, rtol=1e-13)


def test_a_local_response_normalization_is_computed_in_float64():
    found, kept = in_float64(lambda x: 3.0 * tf.nn.lrn(tf.reshape(tf.exp(x), (3, 1, 1, 4)), 1, bias=0.5, alpha=0.3))
    assert not kept
    squares = np.exp(X.astype(np.float64)) ** 2
    sums = np.stack([squares[:, max(i - 1, 0) : i + 2].sum(1) for i in range(4)], 1)
    expected = 3 * np.sqrt(squares) / np.sqrt(0.5 + np.float64(np.float32(0.3)) * sums)
    np.testing.assert_allclose(found.reshape(3, 4), expected, rtol=1e-13)


def test_an_op_without_a_float64_kernel_stays_in_float32():
    found, kept = in_float64(lambda x: 3.0 * tf.quantization.fake_quant_with_min_max_args(tf.exp(x), 0, 3))
    assert kept == {"FakeQuantWithMinMaxArgs": 1}
    assert found.dtype == np.float64
    in_float32 = np.round(np.clip(np.exp(X.astype(np.float64)), 0, 3) * 255 / 3) / 255 * 9
    np.testing.assert_allclose(found, in_float32, rtol=1e-6)


def test_an_op_whose_output_is_float32_by_definition_stays_in_float32():
    found, kept = in_float64(lambda x: v1.image.resize_bilinear(tf.exp(tf.reshape(x, (1, 3, 4, 1))), (6, 8)) * 1.5)
    assert found.dtype == np.float64
    assert kept == {"ResizeBilinear": 1}
    top_left = np.exp(X.astype(np.float64))[0, 0] * 1.5
    np.testing.assert_allclose(found[0, 0, 0, 0], top_left, rtol=1e-6)


def test_bits_and_python_functions_keep_their_dtype():
    def strange(x):
        doubled = v1.py_func(lambda array: array * np.float32(2), [x], tf.float32)
        return tf.cast(tf.bitcast(tf.exp(doubled), tf.int32), tf.float32)

    found, kept = in_float64(strange)
    assert kept == {"PyFunc": 1, "Bitcast": 1}
    exact = np.exp(2 * X.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found, exact.view(np.int32))


DTYPES = {tf.float16: np.float16, tf.bfloat16: ml_dtypes.bfloat16}


@pytest.fixture(params=DTYPES, ids=lambda dtype: dtype.name)
def dtype(request):
    return request.param


def rounded(build, dtype):
    """Return what a graph computes from the placeholder ``x``: as it was written, and rounded."""
    with tf.Graph().as_default() as graph, v1.Session(config=AS_WRITTEN) as session:
        result = build(v1.placeholder(tf.float32, X.shape, name="x"))
        session.run(v1.global_variables_initializer())
        as_written = session.run(result, {"x:0": X})
    graph_def = graph.as_graph_def()
    renamed = round_to(graph_def, dtype)
    with tf.Graph().as_default() as graph, v1.Session(config=AS_WRITTEN) as session:
        tf.import_graph_def(graph_def, name="")
        session.run([op for op in graph.get_operations() if op.name.endswith("/Assign")])
        name = renamed.get(result.op.name, result.op.name)
        return as_written, session.run(name if ":" in name else f"{name}:0", {"x:0": X})


def to(array, dtype):
    return array.astype(DTYPES[dtype]).astype(np.float32)


def test_each_op_rounds(dtype):
    _, found = rounded(lambda x: tf.sqrt(x * x + 0.3), dtype)
    x = to(X, dtype)
    np.testing.assert_array_equal(found, to(np.sqrt(to(to(x * x, dtype) + np.float32(0.3), dtype)), dtype))


def test_bodies_of_loops_round(dtype):
    def build(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y), (0, x), maximum_iterations=3)[1]

    _, found = rounded(build, dtype)
    desired = to(X, dtype)
    for _ in range(3):
        desired = to(desired * desired, dtype)
    np.testing.assert_array_equal(found, desired)


def test_every_output_of_a_body_rounds(dtype):
    # With so many outputs, one would be skipped if their order changed during the iteration.
    def build(x):
        started = [x + 0.1 * i for i in range(30)]
        loop = tf.while_loop(lambda i, *_: i < 2, lambda i, *ys: (i + 1, *(y * y for y in ys)), (0, *started))
        return tf.stack(loop[1:])

    _, found = rounded(build, dtype)
    desired = np.stack([to(to(X, dtype) + np.float32(0.1 * i), dtype) for i in range(30)])
    for _ in range(2):
        desired = to(desired * desired, dtype)
    np.testing.assert_array_equal(found, desired)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_variables_are_rounded_where_they_are_read(dtype, use_resource):
    def build(x):
        initializer = v1.constant_initializer(0.1)
        return x * v1.get_variable("w", (), initializer=initializer, use_resource=use_resource)

    _, found = rounded(build, dtype)
    np.testing.assert_array_equal(found, to(to(X, dtype) * to(np.float32(0.1), dtype), dtype))


def test_masks_stay_as_they_are(dtype):
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        as_written, found = rounded(lambda x: tf.nn.dropout(tf.ones((40, 40)), rate=0.3), dtype)
    np.testing.assert_array_equal(found == 0, as_written == 0)
