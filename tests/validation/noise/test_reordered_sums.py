"""Sums in another order are the same sums: of whole numbers, which are added without rounding, nothing changes."""

import numpy as np
import pytest
import tensorflow as tf

from detrand.validation.noise.reordered_sums import ORDERS, reorder_sums

v1 = tf.compat.v1
RNG = np.random.default_rng(0)


def whole(*shape):
    """Whole numbers, all of which are other ones than their neighbours."""
    return tf.constant(RNG.permutation(np.arange(np.prod(shape)) - np.prod(shape) // 3).reshape(shape), tf.float32)


def run(graph_def, name):
    with tf.Graph().as_default(), v1.Session(config=as_written()) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(name)


def as_written():
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def loop():
    weights = whole(4, 4)
    return tf.while_loop(lambda i, state: i < 2, lambda i, state: (i + 1, tf.matmul(state, weights)), [0, whole(3, 4)])[
        1
    ]


def conditional():
    values = whole(3, 4)
    return tf.cond(values[0, 0] < 1e9, lambda: tf.reduce_sum(values, 1), lambda: values[:, 0])


def moments_of_batch():
    return v1.nn.fused_batch_norm(whole(8, 2, 2, 3), tf.ones(3), tf.zeros(3), epsilon=0.001)[1]


ONE_BY_ONE = "one term after another"
REDUCTIONS = ("Sum", "Sum of all", "Mean", "Mean of all", "Mean, dimensions kept", "in a conditional")
WHOLE = {
    "MatMul": lambda: tf.matmul(whole(3, 5), whole(5, 2)),
    "MatMul, transposed": lambda: tf.matmul(whole(5, 3), whole(2, 5), transpose_a=True, transpose_b=True),
    "BatchMatMul": lambda: tf.matmul(whole(2, 3, 5), whole(2, 5, 2)),
    "BatchMatMul, adjoint": lambda: tf.matmul(whole(2, 5, 3), whole(2, 2, 5), adjoint_a=True, adjoint_b=True),
    "Einsum": lambda: tf.einsum("abc,cde->abde", whole(2, 3, 5), whole(5, 2, 2)),
    "Einsum over two": lambda: tf.einsum("abc,bcd->ad", whole(2, 3, 5), whole(3, 5, 2)),
    "Einsum with an ellipsis": lambda: tf.einsum("...bc,...cd->...bd", whole(2, 3, 5), whole(2, 5, 4)),
    "Conv2D": lambda: tf.nn.conv2d(whole(2, 5, 5, 4), whole(3, 3, 4, 2), 2, "SAME"),
    "Conv3D": lambda: tf.nn.conv3d(whole(1, 3, 3, 3, 4), whole(2, 2, 2, 4, 2), [1] * 5, "VALID"),
    "Conv2DBackpropInput": lambda: tf.nn.conv2d_transpose(whole(2, 3, 3, 4), whole(2, 2, 5, 4), (2, 6, 6, 5), 2),
    "Sum": lambda: tf.reduce_sum(whole(3, 4, 5), [0, -1]),
    "Sum of all": lambda: tf.reduce_sum(whole(3, 4)),
    "Mean": lambda: tf.reduce_mean(whole(3, 4, 2), 1),
    "Mean of all": lambda: tf.reduce_mean(whole(2, 4, 2)),
    "Mean, dimensions kept": lambda: tf.reduce_mean(whole(4, 5, 2), [0, 2], keepdims=True),
    "AddN": lambda: tf.add_n([whole(7), whole(7), whole(7)]),
    "UnsortedSegmentSum": lambda: tf.math.unsorted_segment_sum(whole(5, 2), tf.constant([0, 2, 0, 1, 2]), 3),
    "FusedBatchNormV3": moments_of_batch,
    "in a loop": loop,
    "in a conditional": conditional,
}


def inputs_of_sums(graph_def):
    """Returns what every op that sums takes, in the graph and in its functions."""
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    types = [name.partition(",")[0].split()[0] for name in WHOLE] + ["BatchMatMulV2"]
    return {node.name: list(node.input) for nodes in bodies for node in nodes if node.op in types}


REORDERED = [(name, order) for name in WHOLE for order in ORDERS if order != ONE_BY_ONE or name in REDUCTIONS]


@pytest.mark.parametrize(("name", "order"), REORDERED)
def test_sums_of_whole_numbers_stay_as_they_are(name, order):
    with tf.Graph().as_default() as graph:
        result = WHOLE[name]()
    graph_def = graph.as_graph_def(add_shapes=True)
    expected, before = run(graph_def, result.name), inputs_of_sums(graph_def)
    renamed, count = reorder_sums(graph_def, order)
    assert count >= 1
    assert all(inputs != before[name] for name, inputs in inputs_of_sums(graph_def).items())
    assert not renamed or name == "FusedBatchNormV3"
    np.testing.assert_array_equal(run(graph_def, result.name), expected)
    assert len(np.unique(expected)) > 1 or not expected.shape


RESTORED = {
    "Softmax": lambda: tf.nn.softmax(whole(3, 5)),
    "LogSoftmax": lambda: tf.nn.log_softmax(whole(3, 5)),
    "FusedBatchNormV3": lambda: v1.nn.fused_batch_norm(whole(8, 2, 2, 3), tf.ones(3), tf.zeros(3), epsilon=0.001)[0],
}


@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize("build", RESTORED.values(), ids=RESTORED)
def test_what_is_not_summed_over_is_put_back_into_order(build, order):
    with tf.Graph().as_default() as graph:
        result = build()
        behind = tf.identity(result)
    graph_def = graph.as_graph_def(add_shapes=True)
    expected = run(graph_def, behind.name)
    renamed, count = reorder_sums(graph_def, order)
    assert count == 1
    for name in (behind.name, f"{renamed[result.op.name]}:0"):
        np.testing.assert_allclose(run(graph_def, name), expected, rtol=1e-6, atol=1e-7)
    assert not np.allclose(run(graph_def, result.name), expected)  # so it is in another order


GROUPED = {
    "Conv2D": lambda: tf.nn.conv2d(whole(2, 5, 5, 4), whole(3, 3, 2, 6), 1, "SAME"),
    "Conv2DBackpropInput": lambda: tf.raw_ops.Conv2DBackpropInput(
        input_sizes=(2, 5, 5, 4),
        filter=whole(3, 3, 2, 6),
        out_backprop=whole(2, 5, 5, 6),
        strides=[1] * 4,
        padding="SAME",
    ),
}


@pytest.mark.parametrize("build", GROUPED.values(), ids=GROUPED)
def test_groups_of_a_convolution_are_summed_over_by_themselves(build):
    with tf.Graph().as_default() as graph:
        result = build()
    graph_def = graph.as_graph_def(add_shapes=True)
    before = run(graph_def, result.name)
    assert reorder_sums(graph_def, "from the last term on") == ({}, 0)
    np.testing.assert_array_equal(run(graph_def, result.name), before)


@pytest.mark.parametrize("order", ORDERS[:2])
def test_sums_of_other_numbers_are_rounded_otherwise(order):
    numbers = RNG.normal(size=(20, 300)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        result = tf.matmul(tf.constant(numbers), tf.constant(numbers.T))
    graph_def = graph.as_graph_def(add_shapes=True)
    before = run(graph_def, result.name)
    reorder_sums(graph_def, order)
    after = run(graph_def, result.name)
    assert (after != before).any()
    np.testing.assert_allclose(after, numbers.astype(np.float64) @ numbers.T.astype(np.float64), atol=1e-3)


def test_reductions_one_term_after_another_are_less_precise():
    numbers = RNG.random(3000).astype(np.float32)
    with tf.Graph().as_default() as graph:
        result = tf.reduce_sum(tf.constant(numbers))
    graph_def = graph.as_graph_def(add_shapes=True)
    in_pairs, exact = run(graph_def, result.name), numbers.sum(dtype=np.float64)
    assert reorder_sums(graph_def, ONE_BY_ONE) == ({}, 1)
    one_by_one = run(graph_def, result.name)
    assert abs(one_by_one - exact) > 2 * abs(in_pairs - exact)
    np.testing.assert_allclose(one_by_one, exact, rtol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_a_sum_of_one_number_is_left_alone(order):
    with tf.Graph().as_default() as graph:
        total = tf.reduce_sum(tf.reduce_mean(whole(2, 3)), axis=[], name="total")
        graph_def = graph.as_graph_def(add_shapes=True)
        renamed, _ = reorder_sums(graph_def, order)
        expected = v1.Session(config=as_written()).run(total)
    assert run(graph_def, "total:0") == expected == 0.5
    assert "total" not in renamed


def test_integers_are_left_alone():
    with tf.Graph().as_default() as graph:
        tf.reduce_sum(tf.constant([1, 2, 3]))
        tf.matmul(tf.constant([[1, 2]]), tf.constant([[1], [2]]))
    assert reorder_sums(graph.as_graph_def(add_shapes=True), "from the last term on") == ({}, 0)
