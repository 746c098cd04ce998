"""`detrand.comparison.closeness`: which numbers are close, and how far apart numbers are."""

import dataclasses
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrand import ArgumentError, compare
from tests.support.comparing import f32, only_leaf


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-6, np.nan, np.inf, "0.1", None, True, 1j])
def test_a_tolerance_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ArgumentError, match=rf"{name}=.*must be a finite number that is not negative"):
        compare(1.0, 1.0, **{name: value})


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_any_real_number_is_a_tolerance(value):
    assert compare(1.0, 1.0, rtol=value, atol=value).ok


# --- measures -------------------------------------------------------------------------------------------------------


def test_a_leaf_reports_how_much_differs_and_where():
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


def test_close_leaves_are_also_measured():
    leaf = only_leaf(np.nextafter(f32(1), f32(2)), f32(1))
    assert leaf.ok
    assert leaf.greatest_absolute.amount == 2.0**-23
    assert leaf.greatest_ulps == 1


def test_a_difference_from_inf_is_inf_and_from_nan_is_none():
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
    assert only_leaf(f32(1e-3, 1), f32(0, 1)).greatest_relative is None
    assert only_leaf(f32(0, 1), f32(0, 1)).greatest_relative.amount == 0
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
    actual = desired.copy()
    actual[[5, 6, -1]] = 1.5, 3, 1.25
    leaf = only_leaf(actual, desired)
    assert (leaf.mismatched, leaf.first_mismatch.index) == (3, (5,))
    assert leaf.greatest_absolute.index == leaf.greatest_relative.index == (6,)
    assert leaf.by_magnitude == {-1: 2, 0: 1}
    actual, desired = actual * np.float32(1.5), np.full(size, np.inf, np.float32)
    assert only_leaf(actual, desired).desired.infs == size
    assert only_leaf(desired, desired).actual.infs == size
    nothing = np.full(size, np.nan, np.float32)
    leaf = only_leaf(nothing, nothing)
    assert (leaf.mismatched, leaf.both_nan, leaf.actual.nans, leaf.desired.nans) == (size,) * 4


def test_a_large_comparison_needs_little_memory():
    script = (
        "import tracemalloc, numpy as np; from detrand import compare\n"
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


def test_ulps_do_not_depend_on_the_byte_order():
    one, next_one = np.array([1], ">f4"), np.array([1 + 2.0**-23], ">f4")
    assert only_leaf(one, next_one).greatest_ulps == 1


def test_ulps_are_counted_in_the_dtype_of_lower_precision():
    one, two = np.ones(1, ml_dtypes.bfloat16), np.full(1, 2, ml_dtypes.bfloat16)
    leaf = only_leaf(one, f32(1 + 2 * 2.0**-7))
    assert leaf.greatest_ulps == 2
    assert only_leaf(np.ones(1, np.float16), one).greatest_ulps == 0
    assert only_leaf(two, np.ones(1, np.float16)).greatest_ulps == 128
    assert only_leaf(np.ones(1, np.float16), two).greatest_ulps == 128  # bfloat16 has 7 bits of mantissa
    assert only_leaf(1.0, f32(1 + 2.0**-23)[0]).greatest_ulps == 1
    assert only_leaf(np.array([1j], "F"), np.array([1j + 2.0**-22 * 1j], "F")).greatest_ulps == 2


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


@settings(max_examples=300)
@given(float_pairs(), TOLERANCE, TOLERANCE, st.booleans())
def test_closeness_agrees_with_numpy(pair, rtol, atol, equal_nan):
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


@given(float_pairs())
def test_swapping_actual_and_desired_swaps_what_is_reported(pair):
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


@given(hnp.arrays(st.sampled_from(["i1", "u1", "i8", "u8", "i4"]), st.integers(1, 20)), st.data())
def test_integers_agree_with_python(actual, data):
    desired = data.draw(hnp.arrays(actual.dtype, actual.shape))
    leaf = only_leaf(actual, desired)
    differences = [abs(a - d) for a, d in zip(actual.tolist(), desired.tolist(), strict=True)]
    assert leaf.mismatched == sum(difference > 0 for difference in differences)
    assert leaf.greatest_absolute.amount == max(differences)
