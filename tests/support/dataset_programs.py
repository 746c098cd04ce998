"""Datasets whose elements are drawn by random ops, for `tests.adapters.test_replicas`."""

import numpy as np
import tensorflow as tf

from detrand import DeterministicRandomTestTool

v1 = tf.compat.v1
COUNT = 64


def parallel_map_with_op_determinism(calls):
    """What a session and eager code get from a parallel map, three times each, if ops are to be deterministic."""
    tf.config.experimental.enable_op_determinism()
    with (tool := DeterministicRandomTestTool()).scope():
        random_elements(calls)
    assert None not in [op.op_seed for op in tool.random_ops]  # nothing is left to chance
    return [iterate(calls) for iterate in (elements_in_session, elements) for _ in range(3)]


def random_elements(calls):
    """A dataset of `COUNT` elements, made by a map that calls its function in sequence (None), or in parallel."""

    def draw(_):
        return tf.random.uniform([2]), tf.random.normal([2])

    return tf.data.Dataset.range(COUNT).map(
        draw, num_parallel_calls=calls, deterministic=None if calls is None else True
    )


def elements(calls):
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        return _columns(random_elements(calls).as_numpy_iterator())


def elements_in_session(calls):
    with DeterministicRandomTestTool(mode="num_random_ops").scope(), tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_initializable_iterator(random_elements(calls))
        session.run(iterator.initializer)
        drawn = iterator.get_next()
        return _columns(session.run(drawn) for _ in range(COUNT))


def _columns(rows):
    return [np.stack(column) for column in zip(*rows, strict=True)]
