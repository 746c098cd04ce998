"""A TF1 graph with variables of every kind."""

import pytest
import tensorflow as tf

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        with v1.variable_scope("net"):
            v1.get_variable("w", [3, 2])
            v1.get_variable("ref", [2], tf.float64, use_resource=False)
        v1.get_variable("step", [], tf.int64, trainable=False, initializer=v1.zeros_initializer())
        v1.get_variable("local", [2], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        v1.get_variable("parts", [4, 3], partitioner=v1.fixed_size_partitioner(2))
        v1.Variable(v1.placeholder_with_default(tf.ones([3]), [None]), validate_shape=False, name="loose")
    return graph
