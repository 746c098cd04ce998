"""Eager draws from key and counter, compared with a session's draws."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detrand import DeterministicRandomTestTool
from detrand.adapters import eager
from tests.support.tool_runs import in_session

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
    **{f"tensor of {dtype}": tf.constant([2, 3], dtype) for dtype in ("float64", "uint8", "uint64")},
    "scalar": tf.constant(2),
    "matrix": tf.constant([[2, 3]]),
    "matrix without numbers": tf.zeros([0, 3], tf.int32),
    "rank 65": tf.ones([1] * 65, tf.int32),
    "too many numbers": tf.constant([2**40, 2**40], tf.int64),
    "too large a dimension, without numbers": tf.constant([2**40, 2**40, 0], tf.int64),
}
WRONG_TENSORS = {name: shape for name, shape in WRONG_SHAPES.items() if tf.is_tensor(shape)}
NEXT_BLOCK = len(eager._first_counters(0))


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

    @pytest.mark.parametrize("shape", WRONG_TENSORS.values(), ids=WRONG_TENSORS)
    @pytest.mark.parametrize(
        "draw",
        [
            lambda shape: tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32),
            lambda shape: tf.raw_ops.RandomUniformInt(shape=shape, minval=0, maxval=9),
            lambda shape: tf.raw_ops.RandomStandardNormal(shape=shape, dtype=tf.float32),
            lambda shape: tf.raw_ops.TruncatedNormal(shape=shape, dtype=tf.float32),
        ],
        ids=["uniform", "integers", "normal", "truncated_normal"],
    )
    def test_a_wrong_shape_in_a_later_step_raises_as_it_does_without_a_scope(self, draw, shape):
        with pytest.raises(Exception) as desired:
            draw(shape)
        tool = tool_at(0, 42)
        with tool.scope():
            for _ in range(2):
                with tool.step():
                    draw(tf.constant([2]))
            with pytest.raises(type(desired.value)), tool.step():
                draw(shape)

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

    def test_a_raw_op_accepts_a_list_as_its_shape(self):
        with tool_at(0, 42).scope():
            desired = in_session(lambda: tf.raw_ops.RandomUniform(shape=[2, 3], dtype=tf.float32))
        with tool_at(0, 42).scope():
            np.testing.assert_array_equal(tf.raw_ops.RandomUniform(shape=[2, 3], dtype=tf.float32), desired)


RATES = {"scalar": 2.5, "list": [0.0, 0.3, 9.99, 10.0, 40.0], "matrix": [[1, 2], [3, 400]], "none": np.zeros((0,))}
BOXES = np.array([[[0.1, 0.2, 0.8, 0.9], [0.3, 0.3, 0.5, 0.5]]], np.float32)


def poissons(rate, dtype="float32", **seeds):
    rate = tf.cast(rate, dtype)
    return [tf.raw_ops.RandomPoissonV2(shape=shape, rate=rate, dtype=dtype, **seeds) for shape in ([7], [2, 0, 3])]


def categoricals(rows, classes, samples, dtype="float32", **seeds):
    logits = tf.cast(np.sin(np.arange(rows * classes) * 7.0).reshape(rows, classes) * 3, dtype)
    return [
        tf.raw_ops.Multinomial(logits=logits, num_samples=samples, output_dtype=output, **seeds)
        for output in (tf.int32, tf.int64)
    ]


def boxes(size_dtype="int32", **seeds):
    arguments = {"bounding_boxes": BOXES, "min_object_covered": 0.3, "use_image_if_no_bounding_boxes": True, **seeds}
    return list(tf.raw_ops.SampleDistortedBoundingBoxV2(image_size=tf.cast([50, 60, 3], size_dtype), **arguments))


RUN_0 = {  # ops whose stateless kernels take two seeds
    **{f"poisson {name}": partial(poissons, rate) for name, rate in RATES.items()},
    **{f"poisson {dtype}": partial(poissons, [2, 30], dtype) for dtype in ("float16", "float64", "int32", "int64")},
    "poisson of a float": lambda **seeds: [tf.raw_ops.RandomPoissonV2(shape=[99], rate=2.0**24 + 1, **seeds)],
    "poisson without numbers": lambda **seeds: [tf.raw_ops.RandomPoissonV2(shape=[0], rate=3, **seeds)],
    **{f"categorical {dtype}": partial(categoricals, 5, 11, 30, dtype) for dtype in ("float16", "bfloat16", "float64")},
    # The kernel splits what it estimates to take long among threads: the third of these, and not the second.
    **{f"categorical {size}": partial(categoricals, *size) for size in ((3, 1, 4), (8, 16, 121), (8, 16, 146))},
    **{
        f"categorical {size}": partial(categoricals, *size)
        for size in ((300, 10, 10), (1, 7, 5000), (0, 3, 2), (2, 3, 0))
    },
    **{f"bounding box {dtype}": partial(boxes, dtype) for dtype in ("uint8", "int32", "int64")},
}


class TestKernelsOfTwoSeeds:
    @pytest.mark.parametrize("draw", RUN_0.values(), ids=RUN_0)
    @pytest.mark.parametrize(
        ("seed", "op_seed"),
        [(42, 0), (0, 7), (0, 2**31 - 1), (2**40 + 5, NEXT_BLOCK), (2**63 - 1, 2**62 + 3), (-5, -300), (-(2**63), 1)],
    )
    def test_draw_run_0_of_the_session(self, monkeypatch, draw, seed, op_seed):
        with tool_at(0, 42).scope():
            desired = in_session(lambda: draw(seed=seed, seed2=op_seed))
        monkeypatch.delattr(eager, "_OpInSession")
        with tool_at(0, 42).scope():
            for one, other in zip(draw(seed=seed, seed2=op_seed), desired, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)

    @settings(max_examples=20)
    @given(seed=st.integers(0, 2**63 - 1), op_seed=st.integers(0, 2**63 - 10))
    def test_draw_run_0_of_the_session_from_any_seeds(self, seed, op_seed):
        def draws():
            image = tf.image.sample_distorted_bounding_box([50, 60, 3], BOXES, min_object_covered=0.3)
            return [*poissons([0.3, 4, 50]), *categoricals(3, 4, 5), *image]

        with tool_at(op_seed, seed).scope():
            desired = in_session(draws)
        with tool_at(op_seed, seed).scope():
            for one, other in zip(draws(), desired, strict=True):
                np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("shape", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
    @pytest.mark.parametrize(
        "draw",
        [
            lambda shape: tf.raw_ops.RandomPoissonV2(shape=shape, rate=[2.5]),
            lambda shape: tf.raw_ops.RandomGamma(shape=shape, alpha=[2.5]),
        ],
        ids=["poisson", "gamma"],
    )
    def test_a_wrong_shape_of_a_raw_op_raises_as_it_does_without_a_scope(self, draw, shape):
        with pytest.raises(Exception) as desired:
            draw(shape)
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            draw(shape)

    @pytest.mark.parametrize(
        "draw",
        [
            lambda: tf.random.poisson([2], "a"),
            lambda: tf.random.poisson([2], 1j),
            lambda: tf.random.poisson([2], None),
            lambda: tf.random.poisson([2], tf.constant(1.0, tf.bfloat16)),
            lambda: tf.random.poisson([2], 2.5, "uint8"),
            lambda: tf.random.poisson([2], tf.sparse.from_dense([2.0])),
            lambda: tf.random.categorical([0.0, 1.0], 3),
            lambda: tf.random.categorical([[0, 1]], 3),
            lambda: tf.random.categorical(np.zeros((2, 0)), 3),
            lambda: tf.random.categorical([[1.0]], -1),
            lambda: tf.random.categorical([[1.0]], [3]),
            lambda: tf.raw_ops.Multinomial(logits=[[1.0]], num_samples=3, output_dtype="float32"),
            lambda: tf.image.sample_distorted_bounding_box([1, 2, 3, 4], BOXES),
            lambda: tf.image.sample_distorted_bounding_box([50, 60, 3], BOXES * 9),
        ],
    )
    def test_a_wrong_argument_raises_as_it_does_without_a_scope(self, draw):
        with pytest.raises(Exception) as desired:
            draw()
        with tool_at(0, 42).scope(), pytest.raises(type(desired.value)):
            draw()

    @pytest.mark.parametrize("make", [tf.constant, tf.Variable])
    def test_have_the_gradients_of_the_stateful_ops(self, make):
        x = make(2.5)
        with tool_at(0, 42).scope(), tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            poisson = tf.random.poisson([3], x)
            category = tf.cast(tf.random.categorical([[x, 1.0]], 3), "float32")
            shuffled = tf.random.shuffle([x, 1.0])
        with pytest.raises(LookupError, match="RandomPoissonV2"):
            tape.gradient(poisson, x)
        assert tape.gradient(category, x) is None
        assert tape.gradient(shuffled, x) is None


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
            tf.random.poisson((), 3.0)
    for cached in (eager._key_and_algorithm, eager._first_counters, eager._first_seeds):
        info = cached.cache_info()
        assert info.maxsize is not None
        assert info.currsize <= info.maxsize <= 8
