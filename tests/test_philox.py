"""`detrand.philox` against real TF1 sessions on the CPU, TensorFlow's stateless kernels and the published numbers."""

import math
import os
import subprocess
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # read when TensorFlow is imported

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detrand import philox
from detrand.errors import ArgumentError

FLOATS = ("float16", "bfloat16", "float32", "float64")
SHAPES = {"scalar": (), "empty": (0,), "2x0x3": (2, 0, 3), "1": (1,), "3": (3,), "7x3": (7, 3), "large": (300_001,)}
SEEDS = {"guide": (42, 0), "key_0": (0, 5), "wide": (2**63 - 1, 2**62 + 12345), "words": (3 << 32 | 7, 5 << 32 | 9)}
OPS = {
    "uniform": tf.raw_ops.RandomUniform,
    "normal": tf.raw_ops.RandomStandardNormal,
    "truncated_normal": tf.raw_ops.TruncatedNormal,
}
STATELESS = {
    "uniform": tf.raw_ops.StatelessRandomUniformV2,
    "normal": tf.raw_ops.StatelessRandomNormalV2,
    "truncated_normal": tf.raw_ops.StatelessTruncatedNormalV2,
}
INT_RANGES = {
    "die": ("int32", 1, 7),
    "whole_int32": ("int32", -(2**31), 2**31 - 1),
    "one_value": ("int32", -3, -2),
    "int64": ("int64", -5, 10**12),
    "whole_int64": ("int64", -(2**63), 2**63 - 1),
}


def session_runs(build, runs):
    """Returns what `build()`'s tensor is in each of so many runs of one TF1 session on the CPU."""
    with tf.Graph().as_default(), tf.device("/CPU:0"):
        tensor = build()
        with tf.compat.v1.Session() as session:
            return [session.run(tensor) for _ in range(runs)]


def assert_same(actual, desired):
    assert isinstance(actual, np.ndarray)
    assert actual.shape == desired.shape
    assert actual.dtype == desired.dtype
    np.testing.assert_array_equal(actual, desired)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("draw", OPS)
def test_floats_equal_the_sessions(draw, dtype, shape):
    op = OPS[draw]
    expected = session_runs(lambda: op(shape=np.int32(shape), dtype=dtype, seed=42, seed2=7), runs=3)
    for run, desired in enumerate(expected):
        assert_same(getattr(philox, draw)(shape, seed=42, op_seed=7, run=run, dtype=dtype), desired)


@pytest.mark.parametrize(("dtype", "seed", "count"), [("float32", 28, 58494), ("float64", 226, 78202)])
def test_uniforms_too_near_zero_for_a_logarithm(dtype, seed, count):
    # seeds found by search: of the last two numbers, the first comes from a uniform below 1e-7
    assert philox.uniform(count, seed, 7, dtype=dtype)[-2] < 1e-7
    (desired,) = session_runs(lambda: OPS["normal"](shape=[count], dtype=dtype, seed=seed, seed2=7), runs=1)
    assert_same(philox.normal(count, seed, 7, dtype=dtype), desired)


@pytest.mark.parametrize(("seed", "op_seed"), SEEDS.values(), ids=SEEDS)
def test_every_bit_of_the_seeds_counts(seed, op_seed):
    for run, desired in enumerate(
        session_runs(lambda: tf.raw_ops.RandomUniform(shape=(9,), dtype="float32", seed=seed, seed2=op_seed), runs=6)
    ):
        assert_same(philox.uniform((9,), seed, op_seed, run), desired)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("dtype", "low", "high"), INT_RANGES.values(), ids=INT_RANGES)
def test_integers_equal_the_sessions(dtype, low, high, shape):
    bounds = {"minval": np.dtype(dtype).type(low), "maxval": np.dtype(dtype).type(high)}
    expected = session_runs(
        lambda: tf.raw_ops.RandomUniformInt(shape=np.int32(shape), seed=42, seed2=7, **bounds), runs=3
    )
    for run, desired in enumerate(expected):
        assert_same(philox.randint(shape, low, high, 42, 7, run, dtype), desired)


# 0.50001 rounds to 0.5 in 16 bits, which is drawn there
@pytest.mark.parametrize("rate", [0, 0.1, 0.5, 0.9999, np.float64(0.50001)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout_keeps_what_the_sessions_dropout_keeps(dtype, rate):
    def build():
        tf.compat.v1.set_random_seed(42)
        return tf.nn.dropout(tf.ones((50, 41), dtype), rate=rate, seed=7)

    for run, output in enumerate(session_runs(build, runs=3)):
        assert_same(philox.dropout_mask((50, 41), rate, 42, 7, run, dtype), np.asarray(output != 0))


def test_dropout_mask_of_one_element_is_an_array():
    assert_same(philox.dropout_mask((), 0.5, 42, 7), np.asarray(philox.uniform((), 42, 7) >= 0.5))


def test_seeds_zero_and_zero_are_what_get_seed_makes_of_them():
    def build():
        tf.compat.v1.set_random_seed(0)
        return tf.random.uniform((5,), seed=0)

    for run, desired in enumerate(session_runs(build, runs=2)):
        assert_same(philox.uniform((5,), 0, 0, run), desired)


def test_published_guide_numbers():
    first = philox.uniform((3, 1), seed=42, op_seed=0) * 3
    np.testing.assert_array_equal(first[:, 0], np.float32([2.5063772, 2.7488918, 1.4839486]))
    second = philox.uniform((3, 3), seed=42, op_seed=1) * 3
    np.testing.assert_array_equal(second[0], np.float32([0.45038545, 1.9197761, 2.4536333]))


def stateless(draw, dtype, count, seeds_and_run):
    seed, op_seed, run = seeds_and_run
    start = ((op_seed << 64) + run * count * 256) % 2**128
    key, counter = tf.constant([seed], tf.uint64), tf.constant([start % 2**64, start >> 64], tf.uint64)
    with tf.device("/CPU:0"):
        return STATELESS[draw](shape=[count], key=key, counter=counter, alg=1, dtype=dtype).numpy()


@pytest.mark.parametrize("bits", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("draw", OPS)
def test_the_counter_carries_and_wraps(draw, dtype, bits):
    # The run that starts 256 counters short of a multiple of 2**bits: the draw passes it on the way.
    count, op_seed = 2001, 2**63 - 1
    run = (-1 - ((op_seed << 64) >> 8)) * pow(count, -1, 2 ** (bits - 8)) % 2 ** (bits - 8)
    assert ((op_seed << 64) + run * count * 256 + 256) % 2**bits == 0
    desired = stateless(draw, dtype, count, (42, op_seed, run))
    assert_same(getattr(philox, draw)((count,), 42, op_seed, run, dtype), desired)


@settings(max_examples=150, deadline=None)
@given(
    draw=st.sampled_from(sorted(OPS)),
    dtype=st.sampled_from(FLOATS),
    count=st.integers(0, 40),
    seeds_and_run=st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1), st.integers(0, 2**70)),
)
def test_any_seeds_and_run_equal_the_stateless_kernels(draw, dtype, count, seeds_and_run):
    actual = getattr(philox, draw)((count,), *seeds_and_run, dtype)
    assert_same(actual, stateless(draw, dtype, count, seeds_and_run))


@settings(max_examples=40, deadline=None)
@given(
    draw=st.sampled_from(sorted(OPS)),
    dtype=st.sampled_from(FLOATS),
    dims=st.lists(st.integers(0, 7), max_size=3),
    more=st.integers(0, 100),
)
def test_first_run_depends_on_neither_shape_nor_count(draw, dtype, dims, more):
    draw = getattr(philox, draw)
    count = math.prod(dims)
    longer = draw(count + more, 42, 7, dtype=dtype)
    assert_same(draw(dims, 42, 7, dtype=dtype), longer[:count].reshape(dims))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 9), run=st.integers(1, 4))
def test_a_later_run_is_the_first_one_continued(count, run):
    words_before = run * count * 256 * 4
    continued = philox.uniform(words_before + count, 42, 7)[words_before:]
    assert_same(philox.uniform(count, 42, 7, run), continued)


def ulps_apart(actual, desired):
    """Returns how many floats of their dtype lie from one array's elements to the other's."""
    integer = np.dtype(f"int{8 * actual.itemsize}")
    ranks = [
        bits ^ (bits >> (8 * integer.itemsize - 1) & np.iinfo(integer).max)
        for bits in (actual.view(integer), desired.view(integer))
    ]
    return np.abs(ranks[0].astype(np.int64) - ranks[1].astype(np.int64))


def test_normals_without_the_c_librarys_logf(monkeypatch):
    expected = session_runs(
        lambda: tf.raw_ops.RandomStandardNormal(shape=(300_001,), dtype="float32", seed=42, seed2=7), runs=1
    )[0]
    monkeypatch.setattr(philox.normals, "_LOGF", math.log)
    apart = ulps_apart(philox.normal((300_001,), 42, 7), expected)
    assert apart.max() <= 2
    assert 0 < (apart > 0).mean() <= 0.004


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_the_stand_in_where_ctypes_finds_no_logf(monkeypatch, error):
    def missing(name):
        raise error(name)

    assert philox.normals._c_logf() is not math.log
    monkeypatch.setattr("ctypes.PyDLL", missing)
    assert philox.normals._c_logf() is math.log


def test_two_itself_comes_out_of_a_truncated_normal_rounded_to_16_bits():
    assert (np.abs(philox.truncated_normal(300_001, 42, 7)) < 2).all()
    assert (np.abs(philox.truncated_normal(300_001, 42, 7, dtype="float16")) == 2).any()


@pytest.mark.parametrize(
    "dtype", ["float32", np.float32, np.dtype("float32"), tf.float32], ids=["name", "scalar_type", "numpy", "tf"]
)
def test_a_dtype_may_be_given_in_any_form(dtype):
    assert_same(philox.uniform(3, 42, 0, dtype=dtype), philox.uniform((3,), 42, 0))


@pytest.mark.parametrize(
    "shape",
    [[2, 3], np.array([2, 3]), (np.int64(2), 3), tf.TensorShape([2, 3])],
    ids=["list", "array", "numpy_ints", "tensor_shape"],
)
def test_a_shape_may_be_given_in_any_form(shape):
    assert_same(philox.uniform(shape, np.int64(42), np.uint8(0)), philox.uniform((2, 3), 42, 0))


BAD_ARGUMENTS = {
    "negative_seed": ({"seed": -1}, r"seed=-1: must be an int, 0 <= seed < 9223372036854775808\. Pass an int"),
    "wide_seed": ({"seed": 2**63}, r"seed=9223372036854775808: must be an int"),
    "float_seed": ({"seed": 1.0}, r"seed=1\.0: must be an int"),
    "no_seed": ({"seed": None}, r"seed=None: must be an int"),
    "bool_seed": ({"seed": True}, r"seed=True: must be an int"),
    "numpy_bool_seed": ({"seed": np.True_}, r"seed=(np\.)?True_?: must be an int"),
    "negative_op_seed": ({"op_seed": -2}, r"op_seed=-2: must be an int, 0 <= op_seed"),
    "bool_op_seed": ({"op_seed": False}, r"op_seed=False: must be an int"),
    "negative_run": ({"run": -1}, r"run=-1: must be an int, 0 <= run"),
    "float_run": ({"run": 0.5}, r"run=0\.5: must be an int"),
    "negative_dim": ({"shape": (2, -1)}, r"shape\[1\]=-1: must be an int, 0 <= shape\[1\]"),
    "float_dim": ({"shape": (2.0,)}, r"shape\[0\]=2\.0: must be an int"),
    "unknown_dim": ({"shape": (None, 3)}, r"shape\[0\]=None: must be an int"),
    "string_shape": ({"shape": "23"}, r"shape\[0\]='2': must be an int"),
    "unknown_rank": ({"shape": tf.TensorShape(None)}, r"shape=TensorShape\(None\): must be an int or a sequence"),
    "no_shape": ({"shape": None}, r"shape=None: must be an int or a sequence of ints"),
    "dtype": ({"dtype": "complex64"}, r"dtype='complex64': must be one of float16, bfloat16, float32, float64\. Pass"),
    "int_dtype": ({"dtype": np.int32}, r"dtype=<class 'numpy\.int32'>: must be one of float16"),
    "no_dtype": ({"dtype": None}, r"dtype=None: must be one of"),
}


@pytest.mark.parametrize("draw", [philox.uniform, philox.normal, philox.truncated_normal], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("given", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_a_bad_argument_is_named(draw, given, message):
    with pytest.raises(ArgumentError, match=message):
        draw(**{"shape": (2,), "seed": 42, "op_seed": 0, **given})


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, float("nan"), False, True, "0.5", None], ids=repr)
def test_a_bad_rate_is_named(rate):
    with pytest.raises(ArgumentError, match=r"rate=.*: must be a number with 0 <= rate < 1.*keep_prob"):
        philox.dropout_mask((2,), rate, 42, 0)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "message"),
    [
        (3, 3, "int32", r"low=3, high=3: low must be less than high\. Swap"),
        (4, 3, "int64", r"low=4, high=3: low must be less than high"),
        (0, 2**31, "int32", r"high=2147483648: must be an int, -2147483648 <= high < 2147483648"),
        (-(2**31) - 1, 0, "int32", r"low=-2147483649: must be an int"),
        (0.0, 3, "int32", r"low=0\.0: must be an int"),
        (0, 3, "float32", r"dtype='float32': must be one of int32, int64"),
    ],
    ids=["equal", "swapped", "high_too_wide", "low_too_wide", "float", "dtype"],
)
def test_a_bad_range_is_named(low, high, dtype, message):
    with pytest.raises(ArgumentError, match=message):
        philox.randint((2,), low, high, 42, 0, dtype=dtype)


def test_bfloat16_without_ml_dtypes(monkeypatch):
    assert philox.uniform(2, 42, 0, dtype="bfloat16").dtype == ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match=r"dtype='bfloat16'.*Install the package ml_dtypes"):
        philox.uniform(2, 42, 0, dtype="bfloat16")


def test_import_loads_no_framework():
    code = (
        "import sys, detrand.philox as p; p.normal(3, 42, 0); p.truncated_normal(3, 42, 0); "
        "print(sorted({'tensorflow', 'keras', 'tf_keras', 'jax', 'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
