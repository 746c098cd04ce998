"""A few uniform numbers that are drawn eagerly, against a session's."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.adapters import small_uniforms
from detrand.philox.generator import fractions_of_op_seeds

v1 = tf.compat.v1

SHAPES = [(), (1,), (3, 3), (4, 4), (2, 0, 3), (0,), (1, 2, 1, 3), (17,), (5, 5)]
WRONG_SHAPES = {
    "negative": (-1,),
    "two negative ones": (-1, -3),
    "negative without numbers": (0, -1),
    "a part of a number": (2.5,),
    "float64": np.array([2.0, 3.0]),
    "float64 without numbers": np.zeros(0),
    **{dtype: np.array([2, 3], dtype) for dtype in ("uint8", "int8", "int16", "uint16", "uint32", "uint64")},
    "bool": [True],
    "bfloat16": tf.constant([2.0], tf.bfloat16),
    "qint32": tf.bitcast([2, 3], tf.qint32),
    "string": ["2"],
    "a handle": tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[]),
    "a sparse tensor": tf.sparse.from_dense([2, 3]),
    "a number": tf.constant(2),
    "a matrix": tf.constant([[2, 3]]),
    "a matrix without numbers": tf.zeros([0, 3], tf.int32),
    "rank 65": tf.ones([1] * 65, tf.int32),
    "more than fits": tf.constant([2**40, 2**40], tf.int64),
    "more than fits, without numbers": tf.constant([2**40, 2**40, 0], tf.int64),
}
WRONG_TENSORS = {name: shape for name, shape in WRONG_SHAPES.items() if tf.is_tensor(shape)}
NEXT_BLOCK = 1 << small_uniforms._BITS_OF_BLOCK


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
    def test_as_in_a_session(self, mode, seed, op_seed):
        def draws():
            bounds = [tf.random.uniform(shape, -2.5, 7.25) for shape in SHAPES]
            return [tf.random.uniform(shape) for shape in SHAPES] + bounds

        with tool_at(op_seed, seed, mode).scope():
            desired = in_session(draws)
        with tool_at(op_seed, seed, mode).scope():
            actual = draws()
        for one, other in zip(actual, desired, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_many_op_seeds(self):
        with tool_at(0, 7).scope():
            desired = in_session(lambda: [tf.random.uniform((2, 3)) for _ in range(3 * NEXT_BLOCK)])
        with tool_at(0, 7).scope():
            np.testing.assert_array_equal([tf.random.uniform((2, 3)) for _ in range(3 * NEXT_BLOCK)], desired)

    def test_more_blocks_than_are_kept(self):
        for _ in range(2):
            for block in range(small_uniforms._BLOCKS_KEPT + 3):
                with tool_at(block * NEXT_BLOCK, 7).scope():
                    desired = in_session(lambda: tf.random.uniform(()))
                with tool_at(block * NEXT_BLOCK, 7).scope():
                    np.testing.assert_array_equal(tf.random.uniform(()), desired)
        assert len(small_uniforms._blocks) <= small_uniforms._BLOCKS_KEPT

    def test_recorded_as_any_op(self):
        tool = tool_at(3, 42)
        with tool.scope():
            tf.random.uniform((3, 3))
            tf.random.uniform((5, 5))
        small, large = tool.random_ops
        assert (small.op_seed, small.shape, large.op_seed, large.shape) == (3, (3, 3), 4, (5, 5))
        assert (small.op_type, small.dtype, small.phase) == (large.op_type, large.dtype, large.phase)

    @pytest.mark.parametrize("shape", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
    def test_a_wrong_shape_fails_as_without_a_scope(self, shape):
        with pytest.raises(Exception) as desired:
            tf.random.uniform(shape)
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            tf.random.uniform(shape)

    @pytest.mark.parametrize("shape", WRONG_TENSORS.values(), ids=WRONG_TENSORS)
    def test_a_wrong_tensor_as_the_shape_of_a_raw_op(self, shape):
        with pytest.raises(Exception) as desired:
            tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32)
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32)

    @pytest.mark.parametrize("shape", [[1] * 17, [1] * 65, [0] * 65, [0, 2**40], [2**40, 0]], ids=len)
    def test_a_shape_that_numpy_may_not_have(self, shape):
        def draw():
            drawn = tf.random.uniform(tf.constant(shape, tf.int64))
            return tf.shape(drawn, tf.int64), tf.reshape(drawn, [-1])

        with tool_at(0, 42).scope():
            desired = in_session(draw)
        with tool_at(0, 42).scope():
            for one, other in zip(draw(), desired, strict=True):
                np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(("seed", "op_seed"), [(-1, -1), (5, -300), (-(2**63), 1), (0, 7)])
    def test_seeds_of_its_own(self, seed, op_seed):
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
    def test_a_variable_of_one_leaves_what_is_drawn_next(self):
        with tool_at(0, 42, "constant").scope():
            desired = tf.random.uniform((16,)).numpy()
            for _ in range(3):
                variable = tf.Variable(tf.random.uniform((16,)))
                variable.assign_add(tf.ones(16))
                np.testing.assert_array_equal(variable, desired + 1)
            np.testing.assert_array_equal(tf.random.uniform((16,)), desired)

    def test_each_is_its_own(self):
        with tool_at(0, 42, "constant").scope(), tf.GradientTape() as tape:
            first, second = tf.random.uniform((2,)), tf.random.uniform((2,))
            tape.watch(first)
            result = 2 * first + 3 * second
        assert first is not second
        np.testing.assert_array_equal(tape.gradient(result, first), [2, 2])

    def test_on_the_device_that_is_asked_for(self):
        with tool_at(0, 42, "constant").scope():
            anywhere = tf.random.uniform((2, 2))
            with tf.device("/CPU:0"):
                there = tf.random.uniform((2, 2))
        assert there.device.endswith("CPU:0")
        np.testing.assert_array_equal(anywhere, there)


class TestWhoseTurnItIs:
    @pytest.fixture
    def asked(self, monkeypatch):
        asked = []
        numbers_of = small_uniforms._numbers_of
        monkeypatch.setattr(small_uniforms, "_numbers_of", lambda *seeds: asked.append(seeds) or numbers_of(*seeds))
        return asked

    def test_a_few_by_the_formula(self, asked):
        with tool_at(5, 42).scope():
            tf.random.uniform(())
            tf.nn.dropout(tf.ones((4, 4)), 0.5)
        assert asked == [(42, 5), (42, 6)]

    def test_others_by_a_kernel(self, asked):
        tool = tool_at(5, 42)
        with tool.scope():
            tf.random.uniform((17,))
            tf.random.uniform((3, 3), dtype=tf.float64)
            tf.random.normal((3, 3))
            with tf.device("/CPU:0"):
                tf.random.uniform((3, 3))
            tf.function(lambda: tf.random.uniform((3, 3)))()
            for _ in range(2):
                with tool.step():
                    tf.random.uniform((3, 3))
        assert asked == []


def test_op_seeds_at_once():
    with tool_at(2**32 - 2, 42).scope():
        desired = in_session(lambda: [tf.random.uniform((6,)) for _ in range(4)])
    np.testing.assert_array_equal(fractions_of_op_seeds(42, 2**32 - 2, op_seeds=4, numbers=6), desired)
