"""Eager draws from key and counter, compared with a session's draws."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.adapters import eager

v1 = tf.compat.v1

SHAPES = [(), (1,), (3, 3), (4, 4), (2, 0, 3), (0,), (1, 2, 1, 3), (17,), (5, 5)]
WRONG_SHAPES = {
    "negative": (-1,),
    "two negative dimensions": (-1, -3),
    "negative without numbers": (0, -1),
    "fraction": (2.5,),
    "float64": np.array([2.0, 3.0]),
    "float64 without numbers": np.zeros(0),
    **{dtype: np.array([2, 3], dtype) for dtype in ("uint8", "int8", "int16", "uint16", "uint32", "uint64")},
    "bool": [True],
    "bfloat16": tf.constant([2.0], tf.bfloat16),
    "qint32": tf.bitcast([2, 3], tf.qint32),
    "string": ["2"],
    "resource handle": tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[]),
    "sparse tensor": tf.sparse.from_dense([2, 3]),
    "scalar": tf.constant(2),
    "matrix": tf.constant([[2, 3]]),
    "matrix without numbers": tf.zeros([0, 3], tf.int32),
    "rank 65": tf.ones([1] * 65, tf.int32),
    "too many numbers": tf.constant([2**40, 2**40], tf.int64),
    "too large a dimension, without numbers": tf.constant([2**40, 2**40, 0], tf.int64),
}
WRONG_TENSORS = {name: shape for name, shape in WRONG_SHAPES.items() if tf.is_tensor(shape)}
NEXT_BLOCK = len(eager._first_counters(0))


def in_session(draws):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(draws())


def tool_at(op_seed, seed, mode="num_random_ops"):
    tool = DeterministicRandomTestTool(seed, mode)
    tool.operation_seed = op_seed
    return tool


class TestDraws:
    @pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
    @pytest.mark.parametrize("seed", [0, 42, 2**40 + 5, 2**63 - 1])
    @pytest.mark.parametrize("op_seed", [0, NEXT_BLOCK - 4, 2**32 - 4, 2**62])
    def test_uniforms_equal_the_sessions(self, mode, seed, op_seed):
        def draws():
            bounds = [tf.random.uniform(shape, -2.5, 7.25) for shape in SHAPES]
            return [tf.random.uniform(shape) for shape in SHAPES] + bounds

        with tool_at(op_seed, seed, mode).scope():
            desired = in_session(draws)
        with tool_at(op_seed, seed, mode).scope():
            actual = draws()
        for one, other in zip(actual, desired, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_equal_a_sessions_across_blocks_of_counters(self):
        op_seeds = [block * NEXT_BLOCK + i for block in range(5) for i in (NEXT_BLOCK - 1, NEXT_BLOCK)]
        for op_seed in op_seeds:
            with tool_at(op_seed, 7).scope():
                desired = in_session(lambda: tf.random.uniform((2, 3)))
            with tool_at(op_seed, 7).scope():
                np.testing.assert_array_equal(tf.random.uniform((2, 3)), desired)

    @pytest.mark.parametrize("shape", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
    def test_a_wrong_shape_raises_as_it_does_without_a_scope(self, shape):
        with pytest.raises(Exception) as desired:
            tf.random.uniform(shape)
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            tf.random.uniform(shape)

    @pytest.mark.parametrize("shape", WRONG_TENSORS.values(), ids=WRONG_TENSORS)
    def test_a_wrong_tensor_as_the_shape_of_a_raw_op_raises_as_it_does_without_a_scope(self, shape):
        with pytest.raises(Exception) as desired:
            tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32)
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32)

    @pytest.mark.parametrize("shape", [[1] * 17, [1] * 65, [0] * 65, [0, 2**40], [2**40, 0]], ids=len)
    def test_any_shape_draws_what_the_session_draws(self, shape):
        def draw():
            drawn = tf.random.uniform(tf.constant(shape, tf.int64))
            return tf.shape(drawn, tf.int64), tf.reshape(drawn, [-1])

        with tool_at(0, 42).scope():
            desired = in_session(draw)
        with tool_at(0, 42).scope():
            for one, other in zip(draw(), desired, strict=True):
                np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(("seed", "op_seed"), [(-1, -1), (5, -300), (-(2**63), 1), (0, 7)])
    def test_a_raw_op_with_negative_seeds_draws_what_the_session_draws(self, seed, op_seed):
        def draw():
            return tf.raw_ops.RandomUniform(shape=tf.constant([2, 3]), dtype=tf.float32, seed=seed, seed2=op_seed)

        with tool_at(0, 42).scope():
            np.testing.assert_array_equal(draw(), in_session(draw))

    def test_a_list_as_the_shape_of_a_raw_op(self):
        with tool_at(0, 42).scope():
            desired = in_session(lambda: tf.raw_ops.RandomUniform(shape=[2, 3], dtype=tf.float32))
        with tool_at(0, 42).scope():
            np.testing.assert_array_equal(tf.raw_ops.RandomUniform(shape=[2, 3], dtype=tf.float32), desired)


class TestTensors:
    def test_assigning_to_a_drawn_variable_does_not_change_later_draws(self):
        with tool_at(0, 42, "constant").scope():
            desired = tf.random.uniform((16,)).numpy()
            for _ in range(3):
                variable = tf.Variable(tf.random.uniform((16,)))
                variable.assign_add(tf.ones(16))
                np.testing.assert_array_equal(variable, desired + 1)
            np.testing.assert_array_equal(tf.random.uniform((16,)), desired)

    def test_equal_draws_are_different_tensors_to_a_gradient_tape(self):
        with tool_at(0, 42, "constant").scope(), tf.GradientTape() as tape:
            first, second = tf.random.uniform((2,)), tf.random.uniform((2,))
            tape.watch(first)
            result = 2 * first + 3 * second
        assert first is not second
        np.testing.assert_array_equal(tape.gradient(result, first), [2, 2])

    def test_are_on_the_device_that_is_asked_for(self):
        with tool_at(0, 42, "constant").scope():
            anywhere = tf.random.uniform((2, 2))
            with tf.device("/CPU:0"):
                there = tf.random.uniform((2, 2))
        assert there.device.endswith("CPU:0")
        np.testing.assert_array_equal(anywhere, there)


def test_kept_keys_and_counters_are_bounded():
    for i in range(20):
        with tool_at(i * NEXT_BLOCK, seed=i).scope():
            tf.random.uniform(())
    for cached in (eager._key_and_algorithm, eager._first_counters):
        info = cached.cache_info()
        assert info.maxsize is not None
        assert info.currsize <= info.maxsize <= 8
