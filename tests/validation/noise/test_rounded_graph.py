"""A rounded graph computes what NumPy computes from numbers that are rounded after each op."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.validation.noise.rounded_graph import round_to
from tests.support.step_runs import AS_WRITTEN

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
DTYPES = {tf.float16: np.float16, tf.bfloat16: ml_dtypes.bfloat16}


@pytest.fixture(params=DTYPES, ids=lambda dtype: dtype.name)
def dtype(request):
    return request.param


def rounded(build, dtype):
    """Returns what a graph computes of the placeholder ``x``, as it is and rounded."""
    with tf.Graph().as_default() as graph, v1.Session(config=AS_WRITTEN) as session:
        result = build(v1.placeholder(tf.float32, X.shape, name="x"))
        session.run(v1.global_variables_initializer())
        as_it_is = session.run(result, {"x:0": X})
    graph_def = graph.as_graph_def(add_shapes=True)
    renamed = round_to(graph_def, dtype)
    with tf.Graph().as_default() as graph, v1.Session(config=AS_WRITTEN) as session:
        tf.import_graph_def(graph_def, name="")
        session.run([op for op in graph.get_operations() if op.name.endswith("/Assign")])
        name = renamed.get(result.op.name, result.op.name)
        return as_it_is, session.run(name if ":" in name else f"{name}:0", {"x:0": X})


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
    # So many that one would be missed, were they gone through in an order that changes on the way.
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
        as_it_is, found = rounded(lambda x: tf.nn.dropout(tf.ones((40, 40)), rate=0.3), dtype)
    np.testing.assert_array_equal(found == 0, as_it_is == 0)
