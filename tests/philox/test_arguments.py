"""Arguments of `detrand.philox`: every form is accepted, and a bad one is named."""

import inspect
import math
import re
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detrand import philox
from detrand.errors import ArgumentError
from tests.support.philox_runs import LAWS, assert_same


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
    "wide_op_seed": ({"op_seed": 2**63}, r"op_seed=9223372036854775808: must be an int"),
    "wide_run": ({"run": 2**128}, r"run=340282366920938463463374607431768211456: must be an int"),
    "float_run": ({"run": 0.5}, r"run=0\.5: must be an int"),
    "negative_dim": ({"shape": (2, -1)}, r"shape\[1\]=-1: must be an int, 0 <= shape\[1\]"),
    "wide_dim": ({"shape": (0, 2**63)}, r"shape\[1\]=9223372036854775808: must be an int"),
    "wide_int_shape": ({"shape": 2**63}, r"shape=9223372036854775808: must be an int"),
    "float_dim": ({"shape": (2.0,)}, r"shape\[0\]=2\.0: must be an int"),
    "unknown_dim": ({"shape": (None, 3)}, r"shape\[0\]=None: must be an int"),
    "string_shape": ({"shape": "23"}, r"shape\[0\]='2': must be an int"),
    "unknown_rank": ({"shape": tf.TensorShape(None)}, r"shape=TensorShape\(None\): must be an int or a sequence"),
    "no_shape": ({"shape": None}, r"shape=None: must be an int or a sequence of ints"),
    "dtype": ({"dtype": "complex64"}, r"dtype='complex64': must be one of float16, bfloat16, float32, float64\. Pass"),
    "int_dtype": ({"dtype": np.int32}, r"dtype=<class 'numpy\.int32'>: must be one of float16"),
    "no_dtype": ({"dtype": None}, r"dtype=None: must be one of"),
    "negative_drawn": ({"drawn": -1}, r"drawn=-1: must be an int, 0 <= drawn"),
    "wide_drawn": ({"drawn": 2**128}, r"drawn=340282366920938463463374607431768211456: must be an int"),
    "run_and_drawn": ({"run": 1, "drawn": 9}, r"run=1, drawn=9: both count earlier numbers\. Pass only one"),
}
BAD_REALS = {
    "string": ("1", "'1'"),
    "none": (None, "None"),
    "bool": (True, "True"),
    "complex": (1j, "1j"),
    "nan": (float("nan"), "nan"),
    "infinite": (-float("inf"), "-inf"),
    "too_wide": (1e39, r"1e\+39"),
    "too_wide_an_int": (10**400, "1000"),
    "array": (np.ones(2), "array"),
}


@pytest.mark.parametrize("draw", [philox.uniform, philox.normal, philox.truncated_normal], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("given", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_a_bad_argument_is_named(draw, given, message):
    with pytest.raises(ArgumentError, match=message):
        draw(**{"shape": (2,), "seed": 42, "op_seed": 0, **given})


@pytest.mark.parametrize("draw", LAWS)
@pytest.mark.parametrize(("given", "shown"), BAD_REALS.values(), ids=BAD_REALS)
def test_a_bad_range_or_scale_is_named(draw, given, shown):
    for name in LAWS[draw][:2]:
        with pytest.raises(
            ArgumentError, match=rf"{name}={shown}.*: must be a real number, finite in float32\. Pass an"
        ):
            getattr(philox, draw)((2,), 42, 0, **{name: given})


@pytest.mark.parametrize(
    "alpha",
    [0, -1.5, float("nan"), float("inf"), 1e39, 1e-60, None, "1", True, 1j, [1, 0], [[1], [2, 3]]],
    ids=str,
)
def test_a_bad_alpha_is_named(alpha):
    with pytest.raises(ArgumentError, match=r"alpha=.*: must be greater than 0 and finite in float32\. Pass a number"):
        philox.gamma((2,), alpha, 42, 0)


def test_gamma_has_no_bfloat16():
    with pytest.raises(ArgumentError, match=r"dtype='bfloat16': must be one of float16, float32, float64\. Pass"):
        philox.gamma((2,), 1.5, 42, 0, dtype="bfloat16")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "fan"}, r"mode='fan': must be one of fan_in, fan_out, fan_avg\. Pass one"),
        (
            {"distribution": "normal"},
            r"distribution='normal': must be one of truncated_normal, untruncated_normal, unif",
        ),
        ({"mode": np.ones(2)}, r"mode=array\(\[1., 1.\]\): must be one of fan_in"),
        ({"scale": 0}, r"scale=0: must be greater than 0, as in"),
        ({"scale": "1"}, r"scale='1': must be a real number"),
        ({"scale": float("inf")}, r"scale=inf: must be a real number, finite"),
        ({"scale": 1e77}, r"scale=1e\+77: must be a real number, finite in float32"),
        ({"shape": (2, -1)}, r"shape\[1\]=-1: must be an int"),
    ],
    ids=["mode", "distribution", "array", "zero_scale", "string_scale", "infinite_scale", "wide_scale", "shape"],
)
def test_a_bad_initializer_is_named(given, message):
    with pytest.raises(ArgumentError, match=message):
        philox.variance_scaling(**{"shape": (2, 3), "seed": 42, "op_seed": 0, **given})


CALLS = {
    philox.uniform: {"shape": 3, "seed": 42, "op_seed": 0, "run": 0, "dtype": "float32", "minval": 0, "maxval": 1},
    philox.normal: {"shape": 3, "seed": 42, "op_seed": 0, "dtype": "float32", "mean": 0, "stddev": 1, "drawn": 0},
    philox.truncated_normal: {"shape": 3, "seed": 42, "op_seed": 0, "dtype": "float16", "mean": 0, "stddev": 1},
    philox.randint: {"shape": 3, "low": 0, "high": 9, "seed": 42, "op_seed": 0, "dtype": "int64"},
    philox.gamma: {"shape": 3, "alpha": 2.5, "seed": 42, "op_seed": 0, "run": 0, "dtype": "float64"},
    philox.dropout_mask: {"shape": 3, "rate": 0.5, "seed": 42, "op_seed": 0, "run": 0},
    philox.variance_scaling: {
        "shape": 3,
        "seed": 1,
        "op_seed": 0,
        "scale": 1,
        "mode": "fan_in",
        "distribution": "uniform",
    },
    philox.glorot_uniform: {"shape": 3, "seed": 42, "op_seed": 0, "run": 0, "dtype": "float32"},
}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 9) | st.integers(-9, 9),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.floats() | st.integers(-2, 3) | st.none(), max_size=3),
    st.sampled_from([np.float16(2), np.int8(-3), np.ones(2), np.datetime64("2017-01-01"), object(), {}, math.sin]),
)


@settings(max_examples=300)
@given(draw=st.sampled_from(sorted(CALLS, key=lambda f: f.__name__)), anything=ANYTHING, data=st.data())
def test_anything_at_all_is_drawn_from_or_named(draw, anything, data):
    name = data.draw(st.sampled_from(sorted(CALLS[draw])))
    try:
        numbers = draw(**{**CALLS[draw], name: anything})
    except ArgumentError as error:
        assert re.match(rf"{name}(\[\d\])?=|low=", str(error))
    else:
        assert isinstance(numbers, np.ndarray)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, float("nan"), False, True, "0.5", None], ids=repr)
def test_a_bad_rate_is_named(rate):
    with pytest.raises(ArgumentError, match=r"rate=.*: must be the fraction dropped, 0 <= rate < 1.*keep_prob"):
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


def test_bfloat16_without_ml_dtypes_names_the_package(monkeypatch):
    assert philox.uniform(2, 42, 0, dtype="bfloat16").dtype == ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match=r"dtype='bfloat16'.*Install the package ml_dtypes"):
        philox.uniform(2, 42, 0, dtype="bfloat16")


@pytest.mark.parametrize("name", philox.__all__)
def test_the_help_of_each_function_describes_each_argument_once(name):
    function = getattr(philox, name)
    described = re.findall(r"^  (\w+): ", inspect.getdoc(function), re.MULTILINE)
    assert sorted(described) == sorted([*inspect.signature(function).parameters, "ArgumentError"])
