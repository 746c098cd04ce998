"""`detrand.compare`: the differences that it finds, and the messages that it gives."""

import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import traceback

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from detrand import ArgumentError, Comparison, ComparisonError, assert_allclose, assert_not_allclose, compare
from detrand.comparison.closeness import Closeness
from detrand.comparison.values import compare_by_path
from tests.support.comparing import Output, State, f32, only_leaf

Swapped = collections.namedtuple("Swapped", ["h", "c"])


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
        pytest.param(-(2**63), np.int64(-(2**63)), id="python_int_and_int64"),
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
    with pytest.raises(ComparisonError, match="should differ, but every leaf is close"):
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
        pytest.param(State(1.0, 2.0), [1.0, 2.0], "output", "structure", id="namedtuple_and_list"),
        pytest.param([1.0], 1.0, "output", "structure", id="list_and_leaf"),
        pytest.param([1.0, 2.0], np.array([1.0, 2.0]), "output", "structure", id="list_and_array"),
        pytest.param([None, 1], [0, 1], "[0]", "structure", id="none_and_number"),
        pytest.param([[], 1], [{}, 1], "[0]", "structure", id="empty_list_and_empty_dict"),
        pytest.param(np.zeros((2, 1)), np.zeros((2, 3)), "output", "shape", id="broadcastable"),
        pytest.param(0.0, np.zeros(3), "output", "shape", id="scalar_and_vector"),
        pytest.param(np.zeros((1,)), np.zeros(()), "output", "shape", id="extra_dimension"),
        pytest.param([f32(), 1], [np.zeros((0, 3), "f4"), 1], "[0]", "shape", id="empty_arrays"),
        pytest.param(np.float32(1), np.float64(1), "output", "dtype", id="float32_and_float64"),
        pytest.param(np.int32(1), np.int64(1), "output", "dtype", id="int32_and_int64"),
        pytest.param(np.ones(1, ml_dtypes.bfloat16), np.ones(1, "f2"), "output", "dtype", id="bfloat16_and_float16"),
        pytest.param(1, np.float32(1), "output", "dtype", id="python_int_and_float32"),
        pytest.param(True, 1, "output", "dtype", id="bool_and_int"),
        pytest.param("a", b"a", "output", "dtype", id="str_and_bytes"),
        pytest.param("1", 1, "output", "dtype", id="str_and_int"),
        pytest.param([np.array([], "U1"), 1], [np.array([], "S1"), 1], "[0]", "dtype", id="empty_str_and_bytes"),
        pytest.param(f32(1, np.nan), f32(1, np.nan), "output", "values", id="nan_and_nan"),
        pytest.param(f32(np.inf), f32(-np.inf), "output", "values", id="inf_of_two_signs"),
        pytest.param(f32(1), f32(np.inf), "output", "values", id="number_and_inf"),
        pytest.param(f32(np.inf), f32(1), "output", "values", id="inf_and_number"),
        pytest.param(complex(0, np.inf), complex(0, -np.inf), "output", "values", id="complex_inf_of_two_signs"),
        pytest.param(10_000_001, 10_000_000, "output", "values", id="int_within_rtol"),
        pytest.param(True, False, "output", "values", id="bools"),
        pytest.param("a", "b", "output", "values", id="strings"),
        pytest.param(tf.constant("a\0"), b"a", "output", "values", id="trailing_nul"),
        pytest.param(np.array([2**53 + 1]), np.array([2**53]), "output", "values", id="int_beyond_float64"),
        pytest.param(np.array([-1]), np.array([2**64 - 1], "u8"), "output", "dtype", id="int64_and_uint64"),
        pytest.param([], [], "output", "nothing to compare", id="empty_lists"),
        pytest.param([], {}, "output", "structure", id="empty_list_and_dict"),
        pytest.param(None, None, "output", "nothing to compare", id="none"),
        pytest.param({"a": None, "b": f32()}, {"a": None, "b": f32()}, "output", "nothing to compare", id="no_number"),
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
        pytest.param(np.array([-1], ml_dtypes.int4), np.array([255], "u1"), False, id="int4_and_uint8"),
        pytest.param("1", 1, False, id="str_and_int"),
        pytest.param("a", b"a", False, id="str_and_bytes"),
    ],
)
def test_without_check_dtype_numbers_compare_by_value(actual, desired, ok):
    assert compare(actual, desired, check_dtype=False).ok is ok


def test_a_dtype_difference_still_measures_the_numbers():
    leaf = only_leaf(f32(1, 2), np.array([1, 4.0]))
    assert (leaf.reason, leaf.mismatched, leaf.greatest_absolute.amount) == ("dtype", 1, 2.0)


def test_with_equal_nan_nan_equals_only_nan():
    assert compare(f32(np.nan, 1), f32(np.nan, 1), equal_nan=True).ok
    assert only_leaf(f32(np.nan, 1), f32(np.nan, np.nan), equal_nan=True).mismatched == 1
    assert not compare(f32(np.nan), f32(np.inf), equal_nan=True).ok
    assert compare(complex(np.nan, 0), complex(np.nan, 0), equal_nan=True).ok


def test_a_wide_float_is_compared_in_its_own_precision():
    one = np.ones(1, np.longdouble)
    next_one = np.nextafter(one, 2 * one)
    leaf = only_leaf(next_one, one, rtol=0, atol=0)
    assert (leaf.reason, leaf.greatest_ulps) == ("values", None)


def test_a_python_float_is_not_rounded_to_the_other_dtype():
    assert compare(1e300, f32(np.inf)[0]).first_divergence.reason == "values"
    assert not compare(0.1, np.float32(0.1), rtol=0, atol=0).ok


def test_leaves_have_the_order_of_desired_and_extra_ones_come_last():
    actual, desired = {"extra": 0, "a": 1, "b": 2}, {"b": 2, "a": 9, "c": 0}
    comparison = compare(actual, desired)
    assert [leaf.path for leaf in comparison.leaves] == ["['b']", "['a']", "['c']", "['extra']"]
    assert comparison.first_divergence.path == "['a']"


def test_a_path_names_every_key_field_and_position():
    structure = {"outputs": [Output(State(1.0, 2.0))], 3: 4}
    paths = [leaf.path for leaf in compare(structure, structure).leaves]
    assert paths == ["['outputs'][0].logits.c", "['outputs'][0].logits.h", "['outputs'][0].mask", "[3]"]


# --- assert_not_allclose --------------------------------------------------------------------------------------------


def test_assert_not_allclose_passes_if_one_leaf_has_different_numbers():
    assert_not_allclose({"a": f32(1), "b": f32(2)}, {"a": f32(1), "b": f32(3)})
    assert_not_allclose(f32(np.nan, 1), f32(np.nan, 2))


@pytest.mark.parametrize(
    ("actual", "desired", "message"),
    [
        pytest.param(f32(1), f32(1), "should differ, but every leaf is close", id="close"),
        pytest.param([f32(1), 1], [f32(2)], "structures do not match", id="extra_leaf_beside_other_numbers"),
        pytest.param(f32(1), f32(1, 2), "structures do not match", id="shape"),
        pytest.param(f32(1), np.array([2.0]), "structures do not match", id="dtype"),
        pytest.param([], [], "structures do not match", id="empty"),
        pytest.param(f32(1, np.nan), f32(1, np.nan), "only where both are NaN", id="nan"),
    ],
)
def test_assert_not_allclose_fails_on_close_structures(actual, desired, message):
    with pytest.raises(ComparisonError, match=message):
        assert_not_allclose(actual, desired)


@pytest.mark.parametrize("assertion", [assert_allclose, assert_not_allclose])
def test_assertions_hide_their_own_frame(assertion):
    with pytest.raises(ComparisonError) as caught:
        assertion([], [])
    frame = list(traceback.walk_tb(caught.value.__traceback__))[-1][0]
    assert frame.f_code.co_name == assertion.__name__
    assert frame.f_locals["__tracebackhide__"] is True


# --- structures ------------------------------------------------------------------------------------------------------


def test_a_structure_that_contains_itself_is_an_error():
    cycle: dict = {}
    cycle["self"] = cycle
    with pytest.raises(ArgumentError, match="contains itself"):
        compare(cycle, cycle)


STRUCTURES = st.recursive(
    st.one_of(st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3),
        st.builds(State, inner, inner),
    ),
    max_leaves=8,
)


@given(STRUCTURES, STRUCTURES)
def test_a_structure_matches_itself_and_never_a_part_of_itself(structure, other):
    assert compare(structure, structure).ok
    assert not compare([structure, other], [structure]).ok
    assert not compare({"a": structure}, {"a": structure, "b": other}).ok


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_report_lists_every_leaf_that_differs():
    actual = {"loss": 0.5, "logits": f32(1, 2, 3), "state": [1], "ids": np.uint8(0), "extra": f32(1, 2)}
    desired = {"loss": 0.5, "logits": f32(1, 2.5, np.nan), "state": {"c": 1}, "ids": np.uint8(255)}
    assert str(compare(actual, desired)) == (
        "4 of 5 leaves differ; first: ['logits']\n"
        "allowed: |actual - desired| <= atol + rtol * |desired|, with rtol=1e-06, atol=1e-05\n"
        "\n"
        "['logits']: 2 of 3 elements differ (66.7 %)\n"
        "  actual   float32 (3,)\n"
        "  desired  float32 (3,); 1 NaN\n"
        "  max |difference| 0.5 (allowed 1.25e-05) at [1]: actual 2, desired 2.5\n"
        "  max relative difference 0.2 (allowed 5e-06) at [1]: actual 2, desired 2.5\n"
        "\n"
        "['state']: the structures differ\n"
        "  actual   [int]\n"
        "  desired  {'c': int}\n"
        "\n"
        "['ids']: 1 of 1 element differs (100 %)\n"
        "  actual   uint8 ()\n"
        "  desired  uint8 ()\n"
        "  max |difference| 255 (allowed 0): actual 0, desired 255\n"
        "  max relative difference 1 (allowed 0): actual 0, desired 255\n"
        "\n"
        "['extra']: missing in desired; actual is float32 (2,)"
    )


@pytest.mark.parametrize(
    ("actual", "desired", "report"),
    [
        pytest.param([1.0, 2.0], [1.0, 2.0], r"^2 leaves compared: all close\nallowed: ", id="close"),
        pytest.param("a", "a", r"^1 leaf compared: all close$", id="no_tolerance_where_none_applies"),
        pytest.param([], (), "nothing to compare: neither actual nor desired holds a number", id="empty"),
        pytest.param(np.zeros((2, 1)), np.zeros((2, 3)), r"shapes differ \(leaves are never broadcast\)\n", id="shape"),
        pytest.param(
            np.float32(1), np.float64(1), r"check_dtype=False allows this\); every element is close", id="dtype"
        ),
        pytest.param("a", b"a", r"the dtypes differ\n  actual   str \(\)\n", id="dtype_of_text"),
        pytest.param(["x" * 99], ["y" * 99], r"first difference: actual 'x{20}\.\.\., desired 'y{20}\.\.\.", id="text"),
        pytest.param(Output(1), [1], r"actual   Output\(logits=int, mask=None\)\n  desired  \[int\]", id="dataclass"),
        pytest.param({"a": None}, {}, r"\['a'\]: missing in desired; actual is None", id="missing"),
        pytest.param(f32(np.nan, 1), f32(np.nan, 2), r"first difference at \[0\]: actual nan, desired nan", id="nan"),
        pytest.param(
            f32(1e-3, 1, 0),
            f32(0, 1, 0),
            r"desired 0\n  no relative difference: desired is 0 wherever the values differ$",
            id="only_zeros_of_desired",
        ),
        pytest.param(
            np.array([5, 1]), np.array([0, 1]), r"no relative difference: desired is 0 wherever .*$", id="integer_zero"
        ),
        pytest.param(
            f32(1e-3, 2), f32(0, 1), r"max relative difference 1 \(allowed 1.1e-05\) at \[1\]: ", id="zero_and_another"
        ),
    ],
)
def test_the_report_says_why(actual, desired, report):
    assert re.search(report, str(compare(actual, desired)))


@pytest.mark.parametrize(
    ("actual", "desired", "values"),
    [
        pytest.param(np.float32(0.1), np.float32(0.3), "actual 0.1, desired 0.3", id="four_digits"),
        pytest.param(np.float32(1 / 3), np.float32(0.5), "actual 0.3333, desired 0.5", id="a_long_fraction"),
        pytest.param(np.float32(0.50000006), np.float32(0.5), "actual 0.50000006, desired 0.5", id="next_float32"),
        pytest.param(1.0004, 1.0006, "actual 1.0004, desired 1.0006", id="by_how_much"),
        pytest.param(1.0, 1.0 + 2**-52, "actual 1, desired 1.0000000000000002", id="next_float64"),
        pytest.param(1 / 3 + 1j, 1 / 3 + 1.00001j, "actual 0.333333+1j, desired 0.333333+1.00001j", id="complex"),
        pytest.param(np.float32(1 / 3), np.float32(np.nan), "actual 0.3333, desired nan", id="nan"),
        pytest.param(np.float32(1 / 3), np.float32(np.inf), "actual 0.3333, desired inf", id="inf"),
        pytest.param(1 / 3, 1, "actual 0.3333, desired 1", id="a_fraction_and_an_integer"),
        pytest.param(1, 2 / 3, "actual 1, desired 0.6667", id="an_integer_and_a_fraction"),
        pytest.param(2**62, 2**62 + 1, f"actual {2**62}, desired {2**62 + 1}", id="integers"),
    ],
)
def test_values_have_the_digits_that_show_the_difference(actual, desired, values):
    assert f": {values}" in " ".join(str(compare(actual, desired, rtol=0, atol=0)).split())


def test_check_width_is_about_integers_only():
    def compared(actual, desired):
        return compare_by_path(actual, desired, lambda path: Closeness(0, 0, False), check_width=False)

    assert compared(np.int32(1), np.uint64(1)).ok
    assert compared(np.int32(1), np.uint64(2)).first_divergence.reason == "values"
    for actual, desired in [(np.float32(1), np.float64(1)), (np.int32(1), np.bool_(True)), (np.int64(1), 1.0)]:
        assert compared(actual, desired).first_divergence.reason == "dtype"


def test_reports_fit_a_hundred_columns():
    wide = {f"layer_{i}": np.zeros((2, 3, 4)) for i in range(50)}
    far = np.array([-(2**63)]), np.array([2**63 - 1])
    report = str(compare([wide, far[0], f32(1e-30), "x" * 200], [[wide], far[1], f32(-3e38), "y" * 200]))
    assert max(map(len, report.splitlines())) <= 100
    assert len(report.splitlines()) < 30  # a long skeleton is cut short


def test_a_comparison_holds_plain_python_values():
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


def test_the_function_is_not_hidden_by_its_module():
    script = "import detrand.comparison.values; from detrand import compare; assert compare([1.0], [1.0])"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_import_and_a_comparison_load_no_framework():
    script = (
        "import sys; from detrand import compare; assert compare([1.0], [1.0])\n"
        "print(sorted({'tensorflow', 'keras', 'tf_keras', 'jax', 'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_ulps_are_shown_only_where_they_say_more_than_other_numbers():
    assert "max distance 1 ULPs" in str(
        compare(f32(np.nextafter(np.float32(1), np.float32(2))), f32(1), rtol=0, atol=0)
    )
    assert "ULPs" not in str(compare(f32(2), f32(1)))
