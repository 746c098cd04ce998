"""What `detrand.compare` must find, and what it must not let pass."""

import collections
import dataclasses
import doctest
import json
import os
import re
import subprocess
import sys
import traceback

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import hypothesis.extra.numpy as hnp
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st

import detrand.compare as compare_module
from detrand.compare import Comparison, assert_allclose, assert_not_allclose, compare
from detrand.errors import ArgumentError, ComparisonError

v1 = tf.compat.v1
State = collections.namedtuple("State", ["c", "h"])
Swapped = collections.namedtuple("Swapped", ["h", "c"])


@dataclasses.dataclass
class Output:
    logits: object
    mask: object = None


def only_leaf(actual, desired, **options):
    (leaf,) = compare(actual, desired, **options).leaves
    return leaf


def f32(*values):
    return np.array(values, np.float32)


# --- what matches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "desired"),
    [
        pytest.param([1.0, 2.0], (1.0, 2.0), id="list_and_tuple"),
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, id="dicts_in_another_order"),
        pytest.param(collections.OrderedDict(a=1), {"a": 1}, id="another_mapping"),
        pytest.param(State(1.0, 2.0), Swapped(2.0, 1.0), id="records_by_field"),
        pytest.param(Output(f32(1)), Output(f32(1)), id="dataclasses"),
        pytest.param({"a": [State(None, 1.0)], "b": {}}, {"a": [State(None, 1.0)], "b": {}}, id="nested_with_none"),
        pytest.param(1.0, np.float32(1), id="python_float_and_float32"),
        pytest.param(1, np.uint8(1), id="python_int_and_uint8"),
        pytest.param(2**64 - 1, np.uint64(2**64 - 1), id="python_int_and_uint64"),
        pytest.param(True, np.bool_(True), id="python_bool_and_bool"),
        pytest.param(1j, np.complex64(1j), id="python_complex_and_complex64"),
        pytest.param(np.array([1, 2], ">f4"), np.array([1, 2], "<f4"), id="byte_orders"),
        pytest.param(np.array(["ab", "c"]), np.array(["ab", "c"], object), id="string_arrays"),
        pytest.param(np.array([b"ab", b"c"]), tf.constant(["ab", "c"]), id="bytes_and_tf_string"),
        pytest.param(f32(np.inf, -np.inf), f32(np.inf, -np.inf), id="inf_of_one_sign"),
        pytest.param(f32(0.0), f32(-0.0), id="zeros_of_two_signs"),
        pytest.param([f32(), 1.0], [f32(), 1.0], id="empty_array_beside_a_number"),
        pytest.param(np.array([1, -3], ml_dtypes.int4), np.array([1, -3], ml_dtypes.int4), id="int4"),
        pytest.param(f32(1, 2, 3, 4)[::2], f32(1, 3), id="strided"),
    ],
)
def test_equal_structures_match_both_ways(actual, desired):
    assert_allclose(actual, desired, rtol=0, atol=0)
    assert_allclose(desired, actual, rtol=0, atol=0)
    with pytest.raises(ComparisonError, match="should differ, but do not"):
        assert_not_allclose(actual, desired)


# --- what differs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "desired", "path", "reason"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, "['b']", "missing in actual", id="missing_key"),
        pytest.param({"a": 1, "b": 2}, {"a": 1}, "['b']", "missing in desired", id="extra_key"),
        pytest.param({"a": 1, "b": None}, {"a": 1}, "['b']", "missing in desired", id="extra_none"),
        pytest.param({"a": 1, "b": {}}, {"a": 1}, "['b']", "missing in desired", id="extra_empty_dict"),
        pytest.param([1, 2], [1, 2, 3], "[2]", "missing in actual", id="shorter_list"),
        pytest.param({"a": 1}, {b"a": 1}, "[b'a']", "missing in actual", id="bytes_key"),
        pytest.param({"a": [1]}, {"a": {0: 1}}, "['a']", "structure", id="dict_and_list"),
        pytest.param(State(1.0, 2.0), [1.0, 2.0], "(root)", "structure", id="namedtuple_and_list"),
        pytest.param([1.0], 1.0, "(root)", "structure", id="list_and_leaf"),
        pytest.param([1.0, 2.0], np.array([1.0, 2.0]), "(root)", "structure", id="list_and_array"),
        pytest.param([None, 1], [0, 1], "[0]", "structure", id="none_and_number"),
        pytest.param([[], 1], [{}, 1], "[0]", "structure", id="empty_list_and_empty_dict"),
        pytest.param(np.zeros((2, 1)), np.zeros((2, 3)), "(root)", "shape", id="broadcastable"),
        pytest.param(0.0, np.zeros(3), "(root)", "shape", id="scalar_and_vector"),
        pytest.param(np.zeros((1,)), np.zeros(()), "(root)", "shape", id="extra_dimension"),
        pytest.param([f32(), 1], [np.zeros((0, 3), "f4"), 1], "[0]", "shape", id="empty_arrays"),
        pytest.param(np.float32(1), np.float64(1), "(root)", "dtype", id="float32_and_float64"),
        pytest.param(np.int32(1), np.int64(1), "(root)", "dtype", id="int32_and_int64"),
        pytest.param(np.ones(1, ml_dtypes.bfloat16), np.ones(1, "f2"), "(root)", "dtype", id="bfloat16_and_float16"),
        pytest.param(1, np.float32(1), "(root)", "dtype", id="python_int_and_float32"),
        pytest.param(True, 1, "(root)", "dtype", id="bool_and_int"),
        pytest.param("a", b"a", "(root)", "dtype", id="str_and_bytes"),
        pytest.param("1", 1, "(root)", "dtype", id="str_and_int"),
        pytest.param([np.array([], "U1"), 1], [np.array([], "S1"), 1], "[0]", "dtype", id="empty_str_and_bytes"),
        pytest.param(f32(1, np.nan), f32(1, np.nan), "(root)", "values", id="nan_and_nan"),
        pytest.param(f32(np.inf), f32(-np.inf), "(root)", "values", id="inf_of_two_signs"),
        pytest.param(f32(1), f32(np.inf), "(root)", "values", id="number_and_inf"),
        pytest.param(f32(np.inf), f32(1), "(root)", "values", id="inf_and_number"),
        pytest.param(complex(0, np.inf), complex(0, -np.inf), "(root)", "values", id="complex_inf_of_two_signs"),
        pytest.param(10_000_001, 10_000_000, "(root)", "values", id="int_within_rtol"),
        pytest.param(True, False, "(root)", "values", id="bools"),
        pytest.param("a", "b", "(root)", "values", id="strings"),
        pytest.param(tf.constant("a\0"), b"a", "(root)", "values", id="trailing_nul"),
        pytest.param(np.array([2**53 + 1]), np.array([2**53]), "(root)", "values", id="int_beyond_float64"),
        pytest.param(np.array([-1]), np.array([2**64 - 1], "u8"), "(root)", "dtype", id="int64_and_uint64"),
        pytest.param([], [], "(root)", "nothing to compare", id="empty_lists"),
        pytest.param([], {}, "(root)", "structure", id="empty_list_and_dict"),
        pytest.param(None, None, "(root)", "nothing to compare", id="none"),
        pytest.param({"a": None, "b": f32()}, {"a": None, "b": f32()}, "(root)", "nothing to compare", id="no_number"),
    ],
)
def test_nothing_passes_by_accident(actual, desired, path, reason):
    comparison = compare(actual, desired)
    assert not comparison.ok
    assert not comparison
    leaf = comparison.first_divergence
    assert (leaf.path, leaf.reason) == (path, reason)
    with pytest.raises(ComparisonError, match="first: "):
        assert_allclose(actual, desired)
    assert not compare(desired, actual).ok


@pytest.mark.parametrize(
    ("actual", "desired", "ok"),
    [
        pytest.param(f32(0.5), np.array([0.5]), True, id="float32_and_float64"),
        pytest.param(np.array([3]), f32(3), True, id="int_and_float"),
        pytest.param(np.array([True]), np.array([1], "i4"), True, id="bool_and_int"),
        pytest.param(f32(1), np.array([1 + 0j]), True, id="float_and_complex"),
        pytest.param(np.array([-1]), np.array([2**64 - 1], "u8"), False, id="int64_and_uint64"),
        pytest.param(np.array([-1], "i4"), np.array([2**32 - 1], "u4"), False, id="int32_and_uint32"),
        pytest.param(np.array([-1], ml_dtypes.int4), np.array([15], ml_dtypes.uint4), False, id="int4_and_uint4"),
        pytest.param("1", 1, False, id="str_and_int"),
        pytest.param("a", b"a", False, id="str_and_bytes"),
    ],
)
def test_without_check_dtype_numbers_compare_by_value(actual, desired, ok):
    assert compare(actual, desired, check_dtype=False).ok is ok


def test_a_dtype_difference_still_measures_the_numbers():
    leaf = only_leaf(f32(1, 2), np.array([1, 4.0]))
    assert (leaf.reason, leaf.mismatched, leaf.greatest_absolute.amount) == ("dtype", 1, 2.0)


def test_equal_nan_takes_nan_for_nan_and_for_nothing_else():
    assert compare(f32(np.nan, 1), f32(np.nan, 1), equal_nan=True).ok
    assert only_leaf(f32(np.nan, 1), f32(np.nan, np.nan), equal_nan=True).mismatched == 1
    assert not compare(f32(np.nan), f32(np.inf), equal_nan=True).ok
    assert compare(complex(np.nan, 0), complex(np.nan, 0), equal_nan=True).ok


def test_a_wide_float_is_compared_in_its_own_precision():
    one = np.ones(1, np.longdouble)
    next_one = np.nextafter(one, 2 * one)
    leaf = only_leaf(next_one, one, rtol=0, atol=0)
    assert (leaf.reason, leaf.greatest_ulps) == ("values", None)


def test_a_python_float_is_not_rounded_to_the_other_side():
    assert compare(1e300, f32(np.inf)[0]).first_divergence.reason == "values"
    assert not compare(0.1, np.float32(0.1), rtol=0, atol=0).ok


def test_leaves_come_in_desired_order_then_the_extra_ones():
    actual, desired = {"extra": 0, "a": 1, "b": 2}, {"b": 2, "a": 9, "c": 0}
    comparison = compare(actual, desired)
    assert [leaf.path for leaf in comparison.leaves] == ["['b']", "['a']", "['c']", "['extra']"]
    assert comparison.first_divergence.path == "['a']"


def test_paths_name_every_step():
    structure = {"outputs": [Output(State(1.0, 2.0))], 3: 4}
    paths = [leaf.path for leaf in compare(structure, structure).leaves]
    assert paths == ["['outputs'][0].logits.c", "['outputs'][0].logits.h", "['outputs'][0].mask", "[3]"]


# --- assert_not_allclose --------------------------------------------------------------------------------------------


def test_assert_not_allclose_passes_if_one_leaf_has_other_numbers():
    assert_not_allclose({"a": f32(1), "b": f32(2)}, {"a": f32(1), "b": f32(3)})
    assert_not_allclose(f32(np.nan, 1), f32(np.nan, 2))


@pytest.mark.parametrize(
    ("actual", "desired", "message"),
    [
        pytest.param(f32(1), f32(1), "should differ, but do not", id="close"),
        pytest.param([f32(1), 1], [f32(2)], "structures do not match", id="extra_leaf_beside_other_numbers"),
        pytest.param(f32(1), f32(1, 2), "structures do not match", id="shape"),
        pytest.param(f32(1), np.array([2.0]), "structures do not match", id="dtype"),
        pytest.param([], [], "structures do not match", id="empty"),
        pytest.param(f32(1, np.nan), f32(1, np.nan), "only where both are NaN", id="nan"),
    ],
)
def test_assert_not_allclose_fails(actual, desired, message):
    with pytest.raises(ComparisonError, match=message):
        assert_not_allclose(actual, desired)


@pytest.mark.parametrize("assertion", [assert_allclose, assert_not_allclose])
def test_assertions_hide_their_own_frame(assertion):
    with pytest.raises(ComparisonError) as caught:
        assertion([], [])
    frame = list(traceback.walk_tb(caught.value.__traceback__))[-1][0]
    assert frame.f_code.co_name == assertion.__name__
    assert frame.f_locals["__tracebackhide__"] is True


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-6, np.nan, np.inf, "0.1", None, True, 1j])
def test_a_tolerance_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ArgumentError, match=rf"{name}=.*accepted is a finite number that is not negative"):
        compare(1.0, 1.0, **{name: value})


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_any_real_number_is_a_tolerance(value):
    assert compare(1.0, 1.0, rtol=value, atol=value).ok


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(object(), "builtins.object, which has no numbers", id="object"),
        pytest.param({1, 2}, "builtins.set, which has no numbers", id="set"),
        pytest.param((i for i in [1]), "builtins.generator, which has no numbers", id="generator"),
        pytest.param(Output, "builtins.type, which has no numbers", id="dataclass_itself"),
        pytest.param(keras.layers.Dense(2), "Dense, which has no numbers", id="keras_layer"),
        pytest.param(tf.Module(), "Module, which has no numbers", id="tf_module"),
        pytest.param(tf.TensorShape([1]), "TensorShape, which has no numbers", id="tensor_shape"),
        pytest.param(tf.Variable(1.0).handle, "EagerTensor, which has no numbers.*resource", id="resource_handle"),
        pytest.param(np.array([1, "a"], object), r"array of Python objects \(int, str\)", id="object_array"),
        pytest.param(np.array(["2020"], "M8[s]"), "dtype datetime64", id="datetime"),
        pytest.param(np.ma.array([1.0], mask=[True]), "masked array.*filled", id="masked"),
        pytest.param(2**64, "more than 64 bits", id="huge_int"),
    ],
)
def test_a_leaf_without_numbers_is_an_error_that_names_it(value, message):
    with pytest.raises(ArgumentError, match=rf"actual\['k'\]\[0\] .*{message}"):
        compare({"k": [value]}, {"k": [1.0]})
    with pytest.raises(ArgumentError, match=rf"^desired (?=(is|has) ).*{message}"):
        compare(1.0, value)


def test_a_structure_that_contains_itself_is_an_error():
    cycle: dict = {}
    cycle["self"] = cycle
    with pytest.raises(ArgumentError, match="contains itself"):
        compare(cycle, cycle)


# --- measures -------------------------------------------------------------------------------------------------------


def test_a_leaf_tells_how_much_and_where():
    desired = f32(1, 2, 4, np.inf, np.nan, 0.5).reshape(2, 3)
    actual = f32(1, 2.5, 4, np.inf, 1, 0.75).reshape(2, 3)
    leaf = only_leaf(actual, desired, rtol=1e-3, atol=1e-4)
    assert (leaf.size, leaf.mismatched, leaf.percent, leaf.both_nan) == (6, 3, 50.0, 0)
    assert (leaf.rtol, leaf.atol) == (1e-3, 1e-4)
    assert (leaf.actual.shape, leaf.actual.dtype, leaf.actual.nans, leaf.actual.infs) == ((2, 3), "float32", 0, 1)
    assert (leaf.desired.nans, leaf.desired.infs) == (1, 1)
    assert dataclasses.astuple(leaf.first_mismatch) == (None, (0, 1), 2.5, 2.0)
    assert dataclasses.astuple(leaf.greatest_absolute) == (0.5, (0, 1), 2.5, 2.0)
    assert dataclasses.astuple(leaf.greatest_relative) == (0.5, (1, 2), 0.75, 0.5)
    assert leaf.greatest_ulps == 2**22  # 0.75 lies half a binade above 0.5: half of 2**23 numbers


def test_close_leaves_are_measured_too():
    leaf = only_leaf(np.nextafter(f32(1), f32(2)), f32(1))
    assert leaf.ok
    assert leaf.greatest_absolute.amount == 2.0**-23
    assert leaf.greatest_ulps == 1


def test_differences_from_inf_are_inf_and_from_nan_are_none():
    assert only_leaf(f32(np.inf, np.nan), f32(np.inf, 1)).greatest_absolute.amount == 0
    assert only_leaf(f32(np.inf), np.array([1e308]), check_dtype=False, rtol=10).reason == "values"
    assert only_leaf(f32(np.inf, 1), f32(1, 1)).greatest_absolute.amount == np.inf
    assert only_leaf(f32(1), f32(np.inf)).greatest_relative.amount == np.inf
    leaf = only_leaf(f32(np.nan), f32(1))
    assert (leaf.greatest_absolute, leaf.greatest_relative, leaf.greatest_ulps) == (None, None, None)
    assert (leaf.first_mismatch.index, leaf.actual.nans, leaf.desired.nans) == ((0,), 1, 0)


def test_the_relative_difference_leaves_out_zeros():
    leaf = only_leaf(f32(1e-3, 1.1, 0), f32(0, 1, 0))
    assert leaf.greatest_relative.index == (1,)
    assert only_leaf(f32(1e-3), f32(0)).greatest_relative is None
    assert only_leaf(np.array([5, 1]), np.array([0, 2])).greatest_relative.index == (1,)
    assert only_leaf(np.array([0, 1]), np.array([0, 1])).greatest_relative.amount == 0


@pytest.mark.parametrize(
    ("actual", "desired", "amount"),
    [
        pytest.param(np.uint8(0), np.uint8(255), 255, id="uint8"),
        pytest.param(np.int8(-128), np.int8(127), 255, id="int8"),
        pytest.param(ml_dtypes.int4(-8), ml_dtypes.int4(7), 15, id="int4"),
        pytest.param(np.int64(-(2**63)), np.int64(2**63 - 1), 2**64 - 1, id="int64_extremes"),
        pytest.param(np.uint64(0), np.uint64(2**64 - 1), 2**64 - 1, id="uint64_extremes"),
        pytest.param(-(2**63), np.uint64(2**64 - 1), 2**64 - 1 + 2**63, id="int64_and_uint64"),
        pytest.param(300, np.uint8(44), 256, id="python_int_beyond_uint8"),
    ],
)
def test_integer_differences_are_exact(actual, desired, amount):
    for leaf in (only_leaf(actual, desired), only_leaf(desired, actual)):
        assert leaf.reason == "values"
        assert leaf.greatest_absolute.amount == amount
        assert type(leaf.greatest_absolute.amount) is int
        assert (leaf.rtol, leaf.atol, leaf.greatest_ulps) == (0, 0, None)


@pytest.mark.parametrize("size", [2**15, 2**15 + 1, 3 * 2**15 + 5])
def test_every_block_of_a_large_leaf_counts(size):
    desired = np.ones(size, np.float32)
    for position in {0, 2**15 - 1, size - 1}:
        actual = desired.copy()
        actual[position] = 3
        leaf = only_leaf(actual, desired)
        assert (leaf.mismatched, leaf.first_mismatch.index) == (1, (position,))
        assert leaf.greatest_absolute.index == leaf.greatest_relative.index == (position,)
    actual, desired = actual * np.float32(1.5), np.full(size, np.inf, np.float32)
    assert only_leaf(actual, desired).desired.infs == size
    assert only_leaf(desired, desired).actual.infs == size
    nothing = np.full(size, np.nan, np.float32)
    leaf = only_leaf(nothing, nothing)
    assert (leaf.mismatched, leaf.both_nan, leaf.actual.nans, leaf.desired.nans) == (size,) * 4


def test_a_large_comparison_needs_little_memory():
    script = (
        "import tracemalloc, numpy as np; from detrand.compare import compare\n"
        "a = np.ones(4_000_000, np.float32); b = a * np.float32(1.5)\n"
        "tracemalloc.start(); compare(a, b); print(tracemalloc.get_traced_memory()[1])"
    )
    peak = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)
    assert peak < 4_000_000 * 4 / 2  # bytes: half of what one side takes


FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_ulps_count_the_steps_between_two_numbers(dtype):
    numbers = np.arange(-20, 21)  # as steps from 0, subnormal numbers first
    bits = np.abs(numbers).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    values = np.where(numbers < 0, -bits, bits)
    for i, j in [(0, 40), (19, 21), (20, 20), (3, 4), (35, 22)]:
        assert only_leaf(values[i : i + 1], values[j : j + 1]).greatest_ulps == abs(i - j)


def test_ulps_of_the_other_byte_order():
    one, next_one = np.array([1], ">f4"), np.array([1 + 2.0**-23], ">f4")
    assert only_leaf(one, next_one).greatest_ulps == 1


def test_ulps_are_those_of_the_coarser_dtype():
    one = np.ones(1, ml_dtypes.bfloat16)
    leaf = only_leaf(one, f32(1 + 2 * 2.0**-7))
    assert leaf.greatest_ulps == 2
    assert only_leaf(np.ones(1, np.float16), one).greatest_ulps == 0
    assert only_leaf(one * 2, np.ones(1, np.float16)).greatest_ulps == 128
    assert only_leaf(np.ones(1, np.float16), one * 2).greatest_ulps == 128  # bfloat16 has 7 bits of mantissa
    assert only_leaf(1.0, f32(1 + 2.0**-23)[0]).greatest_ulps == 1
    assert only_leaf(np.array([1j], "F"), np.array([1j + 2.0**-22 * 1j], "F")).greatest_ulps == 2


@settings(deadline=None)
@given(st.floats(-(2.0**126), 2.0**126, width=32), st.integers(1, 5), st.booleans())
def test_ulps_agree_with_nextafter(start, steps, upward):
    start = np.float32(start)
    end = start
    for _ in range(steps):
        end = np.nextafter(end, np.float32(np.inf if upward else -np.inf))
    assert only_leaf(start, end).greatest_ulps == only_leaf(end, start).greatest_ulps == steps


# --- properties -----------------------------------------------------------------------------------------------------

ANY_FLOAT = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-6, np.nan, np.inf, -np.inf, 1e308, -1e308]), st.floats()
)
TOLERANCE = st.one_of(st.just(0.0), st.floats(0, 2))


@st.composite
def float_pairs(draw):
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = draw(hnp.array_shapes(max_dims=3, max_side=4))
    arrays = hnp.arrays(np.float64, shape, elements=ANY_FLOAT)
    with np.errstate(over="ignore"):
        return draw(arrays).astype(dtype), draw(arrays).astype(dtype)


@settings(deadline=None, max_examples=300)
@given(float_pairs(), TOLERANCE, TOLERANCE, st.booleans())
def test_closeness_is_numpys(pair, rtol, atol, equal_nan):
    actual, desired = pair
    with np.errstate(all="ignore"):
        close = np.isclose(actual.astype(float), desired.astype(float), rtol, atol, equal_nan)
    # Where rtol * desired overflows, NumPy takes an actual Inf for close to a finite number.
    close &= ~(np.isinf(actual) & np.isfinite(desired))
    leaf = only_leaf(actual, desired, rtol=rtol, atol=atol, equal_nan=equal_nan)
    assert leaf.mismatched == np.count_nonzero(~close)
    assert leaf.ok == close.all()
    if not leaf.ok:
        assert leaf.first_mismatch.index == np.unravel_index(int((~close).argmax()), close.shape)


@settings(deadline=None)
@given(float_pairs())
def test_swapping_the_sides_swaps_what_is_told_of_them(pair):
    forth, back = only_leaf(*pair, rtol=0), only_leaf(*pair[::-1], rtol=0)
    assert (forth.actual, forth.desired) == (back.desired, back.actual)
    assert (forth.mismatched, forth.both_nan, forth.greatest_ulps) == (
        back.mismatched,
        back.both_nan,
        back.greatest_ulps,
    )
    for mine, other in ((forth.greatest_absolute, back.greatest_absolute), (forth.first_mismatch, back.first_mismatch)):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert (mine.amount, mine.index) == (other.amount, other.index)


@settings(deadline=None)
@given(hnp.arrays(st.sampled_from(["i1", "u1", "i8", "u8", "i4"]), st.integers(1, 20)), st.data())
def test_integers_agree_with_python(actual, data):
    desired = data.draw(hnp.arrays(actual.dtype, actual.shape))
    leaf = only_leaf(actual, desired)
    differences = [abs(a - d) for a, d in zip(actual.tolist(), desired.tolist(), strict=True)]
    assert leaf.mismatched == sum(difference > 0 for difference in differences)
    assert leaf.greatest_absolute.amount == max(differences)


STRUCTURES = st.recursive(
    st.one_of(st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3),
        st.builds(State, inner, inner),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(STRUCTURES, STRUCTURES)
def test_a_structure_matches_itself_and_never_a_part_of_itself(structure, other):
    assert compare(structure, structure).ok
    assert not compare([structure, other], [structure]).ok
    assert not compare({"a": structure}, {"a": structure, "b": other}).ok


# --- values of the frameworks ---------------------------------------------------------------------------------------


def ragged(values, dtype=tf.float32):
    return tf.ragged.constant(values, dtype)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(tf.constant, id="eager_tensor"),
        pytest.param(tf.Variable, id="tf_variable"),
        pytest.param(lambda x: v1.Variable(x, use_resource=True), id="v1_variable"),
        pytest.param(keras.Variable, id="keras3_variable"),
        pytest.param(
            lambda x: tf_keras.layers.Layer().add_weight(
                name="w", shape=x.shape, initializer=tf_keras.initializers.Constant(x)
            ),
            id="tf_keras_variable",
        ),
    ],
)
def test_framework_values_compare_as_their_numbers(value):
    numbers = f32(1, 2, 3)
    desired = list(numbers) if isinstance(value(numbers), list) else numbers
    assert compare(value(numbers), desired).ok
    assert compare(desired, value(numbers)).ok
    assert compare(value(numbers + 1), desired).first_divergence.reason == "values"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "int8", "bool", "complex64"])
def test_tensors_keep_their_dtype(dtype):
    tensor = tf.cast(tf.constant([0.0, 1.0]), dtype)
    assert only_leaf(tensor, tensor.numpy()).actual.dtype == dtype
    assert compare(tensor, tf.cast(tensor, tf.float64)).first_divergence.reason == "dtype"


def test_structures_that_tensorflow_wraps_are_what_they_wrap():
    module = tf.Module()
    module.state = [1, {"b": 2}, (3,)]
    assert type(module.state).__name__ == "ListWrapper"
    assert compare(module.state, [1, {"b": 2}, (3,)]).ok


@pytest.mark.parametrize(
    ("make", "other", "path"),
    [
        pytest.param(lambda: ragged([[1], [2, 3]]), ragged([[1], [2, 4]]), ".flat_values", id="ragged_values"),
        pytest.param(
            lambda: ragged([[1], [2, 3]]), ragged([[1, 2], [3]]), ".nested_row_splits[0]", id="ragged_row_splits"
        ),
        pytest.param(
            lambda: ragged([[[1]], [[2], [3]]]),
            ragged([[[1], [2]], [[3]]]),
            ".nested_row_splits[0]",
            id="ragged_in_two_dimensions",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 1]], [1.0], [2, 2]),
            ".indices",
            id="sparse_indices",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 0]], [2.0], [2, 2]),
            ".values",
            id="sparse_values",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 0]], [1.0], [2, 3]),
            ".dense_shape",
            id="sparse_dense_shape",
        ),
        pytest.param(
            lambda: tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])),
            tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1])),
            ".indices",
            id="indexed_slices",
        ),
    ],
)
def test_tensors_made_of_tensors_compare_by_component(make, other, path):
    with tf.Graph().as_default():
        from_session = v1.Session().run(make())
    assert compare(make(), from_session).ok
    assert compare(from_session, make()).ok
    assert compare(make(), other).first_divergence.path == path


def test_a_sparse_tensor_is_not_its_dense_one():
    dense = f32(1, 0)
    assert compare(tf.sparse.from_dense(dense), dense).first_divergence.reason == "structure"


def graph_values():
    with tf.Graph().as_default():
        yield pytest.param(v1.placeholder(tf.float32, [2]), "actual", id="placeholder")
        yield pytest.param(v1.placeholder(tf.float32), "actual", id="placeholder_of_unknown_rank")
        yield pytest.param(v1.get_variable("a", [2]), "actual", id="graph_variable")
        yield pytest.param(v1.get_variable("b", [2], use_resource=False), "actual", id="reference_variable")
        yield pytest.param(v1.sparse_placeholder(tf.float32), "actual.indices", id="sparse_placeholder")
        yield pytest.param(v1.ragged.placeholder(tf.float32, 1), "actual.flat_values", id="ragged_placeholder")
    yield pytest.param(keras.Input((2,)), "actual", id="keras3_input")
    yield pytest.param(tf_keras.Input((2,)), "actual", id="tf_keras_input")


@pytest.mark.parametrize(("value", "where"), list(graph_values()))
def test_symbolic_tensors_are_sent_back_to_the_session(value, where):
    with pytest.raises(ArgumentError, match=rf"^{where} is a symbolic tensor, .*evaluate it with Session.run first"):
        compare(value, value)


def test_a_tensor_inside_a_tf_function_is_symbolic():
    @tf.function
    def function(x):
        with pytest.raises(ArgumentError, match="actual is a symbolic tensor"):
            compare(x, 1.0)
        return x

    function(tf.ones(2))


def test_an_operation_has_no_numbers():
    with tf.Graph().as_default(), pytest.raises(ArgumentError, match=r"Operation, which has no numbers"):
        compare(v1.no_op(), 1.0)


class TorchStandIn:
    """Speaks as much of `torch.Tensor` as is needed, and refuses what PyTorch refuses, in PyTorch's order of calls."""

    int16, uint8 = np.int16, np.uint8  # what the stand-in for the module `torch` offers

    def __init__(self, array, requires_grad=True, device="cuda", conj=True):
        self.array, self.requires_grad, self.device, self.conj = np.asarray(array), requires_grad, device, conj
        self.dtype = f"torch.{self.array.dtype.name}"
        self.shape = self.array.shape

    def _with(self, **changes):
        state = {"requires_grad": self.requires_grad, "device": self.device, "conj": self.conj}
        return type(self)(changes.pop("array", self.array), **(state | changes))

    def detach(self):
        return self._with(requires_grad=False)

    def cpu(self):
        return self._with(device="cpu")

    def resolve_conj(self):
        return self._with(conj=False)

    def resolve_neg(self):
        return self

    def view(self, dtype):
        return self._with(array=self.array.view(dtype), conj=False)

    def numpy(self):
        if self.requires_grad or self.device != "cpu" or self.conj or "float8" in self.dtype or "bf" in self.dtype:
            raise TypeError("can't convert it to numpy")
        return self.array


TorchStandIn.__module__ = "torch"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "complex64"])
def test_torch_stand_in_is_detached_moved_and_read(monkeypatch, dtype):
    monkeypatch.setitem(sys.modules, "torch", TorchStandIn)
    array = np.array([1, 2]).astype(dtype)
    leaf = only_leaf(TorchStandIn(array), array)
    assert (leaf.ok, leaf.actual.dtype) == (True, dtype)
    assert compare(TorchStandIn(array), array[::-1]).first_divergence.reason == "values"


def test_torch_stand_in_that_cannot_be_read_is_an_error_with_the_cause(monkeypatch):
    monkeypatch.setattr(TorchStandIn, "resolve_neg", lambda self: self._with(conj=True))
    with pytest.raises(ArgumentError, match=r"actual is a torch.TorchStandIn, .* \(can't convert it to numpy\)"):
        compare(TorchStandIn(f32(1)), f32(1))


def test_keras_variable_on_a_torch_stand_in_is_read_through_its_value(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", TorchStandIn)
    array = np.array([1, 2]).astype("bfloat16")
    variable = type("Variable", (), {"__module__": "keras.src.backend.torch.core", "value": TorchStandIn(array)})()
    assert only_leaf(variable, array).ok


class JaxStandIn:
    """Speaks as much of `jax.Array` as is needed; one that is traced refuses, as JAX's tracers do."""

    def __init__(self, array, traced=False):
        self.array, self.traced = array, traced
        self.shape, self.dtype = array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        if self.traced:
            raise TypeError("The numpy.ndarray conversion method __array__() was called on traced array")
        return self.array


JaxStandIn.__module__ = "jaxlib._jax"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_jax_stand_in_is_read(dtype):
    array = np.array([1, 2]).astype(dtype)
    leaf = only_leaf(JaxStandIn(array), array)
    assert (leaf.ok, leaf.actual.dtype) == (True, dtype)
    assert compare(JaxStandIn(array), array[::-1]).first_divergence.reason == "values"


def test_jax_stand_in_that_is_traced_is_symbolic():
    with pytest.raises(ArgumentError, match="desired is a symbolic tensor"):
        compare(f32(1), JaxStandIn(f32(1), traced=True))


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_report():
    actual = {"loss": 0.5, "logits": f32(1, 2, 3), "state": [1], "ids": np.uint8(0), "extra": f32(1, 2)}
    desired = {"loss": 0.5, "logits": f32(1, 2.5, np.nan), "state": {"c": 1}, "ids": np.uint8(255)}
    assert str(compare(actual, desired)) == (
        "4 of 5 leaves differ; first: ['logits']\n"
        "close means |actual - desired| <= atol + rtol * |desired|, with rtol=1e-06, atol=1e-05\n"
        "\n"
        "['logits']: 2 of 3 elements differ (66.7%)\n"
        "  actual   float32 (3,)\n"
        "  desired  float32 (3,); 1 NaN\n"
        "  greatest absolute difference: 0.5 at [1] (actual 2.0, desired 2.5)\n"
        "  greatest relative difference: 0.2 at [1] (actual 2.0, desired 2.5)\n"
        "  greatest distance: 2,097,152 ULPs\n"
        "\n"
        "['state']: the structures differ\n"
        "  actual   [int]\n"
        "  desired  {'c': int}\n"
        "\n"
        "['ids']: 1 of 1 elements differ (100%)\n"
        "  actual   uint8 ()\n"
        "  desired  uint8 ()\n"
        "  greatest absolute difference: 255 (actual 0, desired 255)\n"
        "  greatest relative difference: 1 (actual 0, desired 255)\n"
        "\n"
        "['extra']: missing in desired; actual is float32 (2,)"
    )


@pytest.mark.parametrize(
    ("actual", "desired", "report"),
    [
        pytest.param([1.0, 2.0], [1.0, 2.0], r"^all leaves are close: 2 compared\nclose means", id="close"),
        pytest.param("a", "a", r"^all leaves are close: 1 compared$", id="no_tolerance_where_none_applies"),
        pytest.param([], (), "nothing to compare: neither side holds a number", id="empty"),
        pytest.param(np.zeros((2, 1)), np.zeros((2, 3)), r"shapes differ, and nothing is broadcast\n", id="shape"),
        pytest.param(np.float32(1), np.float64(1), r"check_dtype=False allows that\); 0 of 1", id="dtype"),
        pytest.param("a", b"a", r"the dtypes differ\n  actual   str \(\)\n", id="dtype_of_text"),
        pytest.param(
            ["x" * 99], ["y" * 99], r"first that differs: \(actual 'x{20}\.\.\., desired 'y{20}\.\.\.\)", id="text"
        ),
        pytest.param(Output(1), [1], r"actual   Output\(logits=int, mask=None\)\n  desired  \[int\]", id="dataclass"),
        pytest.param({"a": None}, {}, r"\['a'\]: missing in desired; actual is None", id="missing"),
        pytest.param(
            f32(np.nan, 1), f32(np.nan, 2), r"first that differs: at \[0\] \(actual nan, desired nan\)", id="nan"
        ),
    ],
)
def test_the_report_says_why(actual, desired, report):
    assert re.search(report, str(compare(actual, desired)))


def test_reports_fit_a_hundred_columns():
    wide = {f"layer_{i}": np.zeros((2, 3, 4)) for i in range(50)}
    far = np.array([-(2**63)]), np.array([2**63 - 1])
    report = str(compare([wide, far[0], f32(1e-30), "x" * 200], [[wide], far[1], f32(-3e38), "y" * 200]))
    assert max(map(len, report.splitlines())) <= 100
    assert len(report.splitlines()) < 30  # a long skeleton is cut short


def test_a_comparison_is_plain_values():
    comparison = compare({"a": f32(1, np.inf), "b": tf.constant("x"), "c": 1}, {"a": f32(2, 1), "b": b"y", "c": None})

    def check(value):
        if isinstance(value, (dict, list, tuple)):
            for item in value.values() if isinstance(value, dict) else value:
                check(item)
        else:
            assert type(value) in (str, bytes, int, float, complex, bool, type(None))

    check(dataclasses.asdict(comparison))
    assert json.loads(json.dumps(dataclasses.asdict(comparison), default=str))["leaves"][0]["path"] == "['a']"
    with pytest.raises(dataclasses.FrozenInstanceError):
        comparison.leaves = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        comparison.leaves[0].reason = None


def test_a_comparison_is_true_if_ok():
    assert bool(compare(1.0, 1.0)) is True
    assert bool(compare(1.0, 2.0)) is False
    assert isinstance(compare(1.0, 2.0), Comparison)


# --- the module -----------------------------------------------------------------------------------------------------


def test_the_import_and_a_comparison_load_no_framework():
    script = (
        "import sys; from detrand.compare import compare; assert compare([1.0], [1.0])\n"
        "print(sorted({'tensorflow', 'keras', 'tf_keras', 'jax', 'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_examples_run():
    failed, tried = doctest.testmod(compare_module)
    assert (failed, tried > 0) == (0, True)
