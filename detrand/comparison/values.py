"""The comparison of two nested structures of numbers: which leaves differ, where, and by how much.

Nothing passes by accident. These are differences: a leaf that is missing in one structure, a different shape or dtype,
NaN, and structures that hold no number at all. No leaf is broadcast or rounded before it is compared.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from detrand.arguments import number, percent, plural, shorten
from detrand.comparison.closeness import FLOATING, Closeness, common_kind, measure
from detrand.comparison.leaves import MISSING, OUTPUT, Leaf, open_value, read_leaf, skeleton
from detrand.errors import ArgumentError, ComparisonError

Reason = Literal[
    "missing in actual", "missing in desired", "structure", "shape", "dtype", "values", "nothing to compare"
]


def compare(
    actual: Any,
    desired: Any,
    rtol: float = 1e-6,
    atol: float = 1e-5,
    equal_nan: bool = False,
    *,
    check_dtype: bool = True,
) -> Comparison:
    """Compare two structures, leaf by leaf, and report every difference.

    >>> print(compare({"loss": 0.5, "logits": [1.0, 2.0]}, {"loss": 0.5, "logits": [1.0, 2.5]}))
    1 of 3 leaves differs; first: ['logits'][1]
    allowed: |actual - desired| <= atol + rtol * |desired|, with rtol=1e-06, atol=1e-05
    <BLANKLINE>
    ['logits'][1]: 1 of 1 element differs (100 %)
      actual   float ()
      desired  float ()
      max |difference| 0.5 (allowed 1.25e-05): actual 2, desired 2.5
      max relative difference 0.2 (allowed 5e-06): actual 2, desired 2.5

    Dicts are paired by key, namedtuples and dataclasses by field, lists and tuples by position. A list equals a tuple,
    because ``Session.run`` returns lists where eager code returns tuples. A namedtuple equals neither, because its
    fields may have a different order (``LSTMStateTuple(c, h)``, but Keras's ``[h, c]``). A list of numbers is a
    structure, not an array: wrap it in ``np.array`` to compare it with an array. Ragged, sparse and indexed-slices
    tensors are compared by their components.

    Floating-point leaves may differ by the tolerance, computed in float64, or in a wider dtype if a leaf has one.
    Integers, bools, strings and bytes must be equal, whatever the tolerance is. A Python number has no dtype: it
    matches every dtype of its kind (bool, int, float, complex) and is compared at full precision.

    Args:
      actual: what the port computed: tensors, variables, arrays, scalars, strings or None, in any nesting of
        dicts, lists, tuples, namedtuples and dataclasses.
      desired: what the port should have computed; its order is the order of the leaves.
      rtol: tolerance relative to ``|desired|``, finite and not negative.
      atol: absolute tolerance, finite and not negative.
      equal_nan: whether NaN equals NaN.
      check_dtype: whether a different dtype is a difference. If False, numbers of all dtypes are compared by value: in
        float64 if one of the leaves is floating-point, exactly if both are integers.

    Returns:
      A `Comparison`, which is true (``.ok``) if nothing differs.

    Raises:
      ArgumentError: for an invalid tolerance, and for a leaf without numbers, such as a symbolic tensor.
    """
    closeness = Closeness.checked(rtol, atol, equal_nan)
    return compare_by_path(actual, desired, lambda path: closeness, check_dtype=check_dtype)


def compare_by_path(
    actual: Any,
    desired: Any,
    closeness_of: Callable[[str], Closeness],
    *,
    check_dtype: bool = True,
    check_width: bool = True,
) -> Comparison:
    """Compare as `compare` does, with the closeness that a function returns for the path of each leaf.

    If ``check_width`` is False, integers of different dtypes are equal if their values are.
    """
    try:
        leaves = [_compare_leaf(*pair, closeness_of, check_dtype, check_width) for pair in _pairs("", actual, desired)]
        if all(leaf.ok and not leaf.size for leaf in leaves):
            leaves = [LeafComparison(OUTPUT, "nothing to compare", _outline(actual), _outline(desired))]
    except RecursionError as error:
        raise ArgumentError("actual or desired is nested too deeply, or contains itself. Pass a finite tree") from error
    return Comparison(tuple(leaves))


def assert_allclose(
    actual: Any,
    desired: Any,
    rtol: float = 1e-6,
    atol: float = 1e-5,
    equal_nan: bool = False,
    *,
    check_dtype: bool = True,
) -> None:
    """Raise a `ComparisonError` with the whole report unless every leaf is close; takes the arguments of `compare`.

    >>> assert_allclose({"loss": np.float32(0.5)}, {"loss": np.float32(0.500001)})

    Raises:
      ComparisonError: if a leaf differs.
      ArgumentError: as for `compare`.
    """
    __tracebackhide__ = True
    comparison = compare(actual, desired, rtol, atol, equal_nan, check_dtype=check_dtype)
    if not comparison.ok:
        raise ComparisonError(str(comparison))


def assert_not_allclose(
    actual: Any,
    desired: Any,
    rtol: float = 1e-6,
    atol: float = 1e-5,
    equal_nan: bool = False,
    *,
    check_dtype: bool = True,
) -> None:
    """Raise a `ComparisonError` unless the structures match and some numbers differ; takes the arguments of `compare`.

    >>> assert_not_allclose([1.0, 2.0], [1.0, 2.5])

    A different structure, shape or dtype does not count as different numbers, and neither does NaN in both. Otherwise a
    test that two dropout masks differ could pass for a reason that has nothing to do with the masks.

    Raises:
      ComparisonError: if every leaf is close, or if the structures do not match.
      ArgumentError: as for `compare`.
    """
    __tracebackhide__ = True
    comparison = compare(actual, desired, rtol, atol, equal_nan, check_dtype=check_dtype)
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    if any(leaf.reason != "values" for leaf in differing):
        raise ComparisonError(f"the structures do not match, so their numbers cannot be compared\n{comparison}")
    if not differing:
        raise ComparisonError(f"the numbers should differ, but every leaf is close\n{comparison}")
    if all(leaf.mismatched == leaf.both_nan for leaf in differing):
        raise ComparisonError(f"the numbers should differ, but they differ only where both are NaN\n{comparison}")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One element of a leaf, with both values and their difference; NaN and text have no difference."""

    amount: float | None
    index: tuple[int, ...]
    actual: Any
    desired: Any

    def in_words(self, title: str, allowed: float | None = None) -> str:
        """Return a title, the difference, the limit that it is held to, the index and both values."""
        words = [title]
        words += [] if self.amount is None else [number(self.amount)]
        words += [] if allowed is None else [f"(allowed {number(allowed)})"]
        words += [f"at {list(self.index)}"] if self.index else []
        desired, actual = self.texts()
        return f"{' '.join(words)}: actual {actual}, desired {desired}"

    def texts(self) -> tuple[str, str]:
        """Return the desired value and the actual one as text."""
        actual, desired = as_texts(self.actual, self.desired)
        return desired, actual


def as_texts(actual: Any, desired: Any) -> tuple[str, str]:
    """Return two values as text, numbers with the fewest digits that show by how much they differ, but at least 4.

    >>> as_texts(2.77321, 2.77343)
    ('2.7732', '2.7734')
    """
    if not isinstance(actual, (float, complex)) and not isinstance(desired, (float, complex)):
        return shorten(repr(actual), 24), shorten(repr(desired), 24)
    difference = actual - desired
    for digits in range(4, 18):
        texts = f"{actual:.{digits}g}", f"{desired:.{digits}g}"
        shown = complex(texts[0]) - complex(texts[1])
        if not _magnitude(shown - difference) > _magnitude(difference) / 2:  # also if one of them is NaN
            break
    return texts


@dataclasses.dataclass(frozen=True)
class Side:
    """The actual or the desired value of a leaf.

    Attributes:
      form: its text in the report.
      shape: its shape; None for a value without numbers.
      dtype: name of its dtype; None for a value without numbers.
      nans: how many elements are NaN.
      infs: how many elements are infinite.
    """

    form: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    nans: int = 0
    infs: int = 0


MOST_ULPS = 1_000_000  # more of them say no more than the relative difference does


@dataclasses.dataclass(frozen=True)
class LeafComparison:
    """The comparison of one pair of leaves, in plain Python values.

    Attributes:
      path: the path of the leaf, such as ``['logits'][0].name``; ``output`` if the structure is itself a leaf.
      reason: why the leaf differs; None if it does not differ.
      actual: describes the actual value.
      desired: describes the desired value.
      rtol: the relative tolerance; 0 if the leaf must be equal.
      atol: the absolute tolerance; 0 if the leaf must be equal.
      size: how many elements were compared; 0 if the leaf could not be compared.
      mismatched: how many elements are not close.
      both_nan: how many elements are NaN in both.
      first_mismatch: the first element that is not close.
      greatest_absolute: the element with the greatest ``|actual - desired|``, without NaN; None for strings, bools,
        and where every element is NaN.
      greatest_relative: the element with the greatest ``|actual - desired| / |desired|``, without NaN and without
        elements whose desired value is 0; None if only such elements differ.
      greatest_ulps: the greatest distance in units in the last place of the dtype with fewer bits of precision; the
        real and the imaginary part of a complex number count separately.
      by_magnitude: k -> the number of elements with a finite ``|actual - desired|`` from ``10**k`` to below
        ``10**(k + 1)``, in ascending order; equal elements are not counted.
    """

    path: str
    reason: Reason | None
    actual: Side
    desired: Side
    rtol: float = 0.0
    atol: float = 0.0
    size: int = 0
    mismatched: int = 0
    both_nan: int = 0
    first_mismatch: Difference | None = None
    greatest_absolute: Difference | None = None
    greatest_relative: Difference | None = None
    greatest_ulps: int | None = None
    by_magnitude: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return self.reason is None

    @property
    def percent(self) -> float:
        """The percentage of the elements that are not close."""
        return 100.0 * self.mismatched / self.size if self.size else 0.0

    def __str__(self) -> str:
        if self.reason == "missing in actual":
            return f"{self.path}: missing in actual; desired is {self.desired.form}"
        if self.reason == "missing in desired":
            return f"{self.path}: missing in desired; actual is {self.actual.form}"
        verb = "differs" if self.mismatched == 1 else "differ"
        differ = f"{self.mismatched:,} of {plural(self.size, 'element')} {verb} ({percent(self.mismatched, self.size)})"
        if not self.mismatched:
            differ = "every element is close"
        headline = {
            None: "close",
            "structure": "the structures differ",
            "shape": "the shapes differ (leaves are never broadcast)",
            "dtype": "the dtypes differ" + (f" (check_dtype=False allows this); {differ}" if self.size else ""),
            "values": differ,
            "nothing to compare": "nothing to compare: neither actual nor desired holds a number",
        }[self.reason]
        lines = [f"{self.path}: {headline}"]
        for name, side in (("actual", self.actual), ("desired", self.desired)):
            not_finite = [f"; {count:,} {what}" for what, count in (("NaN", side.nans), ("Inf", side.infs)) if count]
            lines.append(f"  {name:<7}  {side.form}{''.join(not_finite)}")
        first, greatest, relative = self.first_mismatch, self.greatest_absolute, self.greatest_relative
        if first is not None and (greatest is None or first.index != greatest.index):
            lines.append("  " + first.in_words("first difference"))
        if greatest is not None:
            lines.append("  " + greatest.in_words("max |difference|", self._allowed(greatest)))
        if relative is not None:
            scale = _magnitude(relative.desired)
            allowed = self._allowed(relative) / scale if scale else None
            lines.append("  " + relative.in_words("max relative difference", allowed))
        elif greatest is not None and not greatest.desired:
            lines.append("  no relative difference: desired is 0 wherever the values differ")
        if self.greatest_ulps is not None and self.greatest_ulps < MOST_ULPS:
            lines.append(f"  max distance {number(self.greatest_ulps)} ULPs")
        wrap = textwrap.TextWrapper(100, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
        return "\n".join([lines[0], *map(wrap.fill, lines[1:])])

    def _allowed(self, difference: Difference) -> float:
        """Return the limit for ``|actual - desired|`` at an element; an infinite element is close only to itself."""
        scale = _magnitude(difference.desired)
        return self.atol + self.rtol * scale if math.isfinite(scale) else 0.0


def _magnitude(number: complex) -> float:
    return math.hypot(number.real, number.imag)  # abs() raises where a complex number overflows


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`: a `LeafComparison` for each leaf, in the order of desired; ``str()`` is the report.

    It is true if it is ``.ok``, so ``assert compare(actual, desired)`` works as expected.

    >>> compare([1.0, 2.0], [1.0, 2.5]).first_divergence.path
    '[1]'
    """

    leaves: tuple[LeafComparison, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.first_divergence is None

    @property
    def first_divergence(self) -> LeafComparison | None:
        """The first leaf that differs, or None."""
        return next((leaf for leaf in self.leaves if not leaf.ok), None)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        differing, leaves = [leaf for leaf in self.leaves if not leaf.ok], plural(len(self.leaves), "leaf", "leaves")
        verdict = f"{leaves} compared: all close"
        if differing:
            verb = "differs" if len(differing) == 1 else "differ"
            verdict = f"{len(differing)} of {leaves} {verb}; first: {differing[0].path}"
        tolerances = sorted({(leaf.rtol, leaf.atol) for leaf in self.leaves if leaf.rtol or leaf.atol})
        limits = [
            f"allowed: |actual - desired| <= atol + rtol * |desired|, with rtol={rtol:g}, atol={atol:g}"
            for rtol, atol in tolerances
        ]
        return "\n".join([verdict, *limits, *(f"\n{leaf}" for leaf in differing)])


def leaves_by_path(structure: Any) -> dict[str, Any]:
    """Return the leaves of a structure by the paths that `compare` uses.

    >>> leaves_by_path({"loss": 0.5, "logits": [1.0, 2.0]})
    {"['loss']": 0.5, "['logits'][0]": 1.0, "['logits'][1]": 2.0}
    """
    return {path or OUTPUT: leaf for path, _, leaf in _pairs("", structure, structure)}


def _pairs(path: str, actual: Any, desired: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each pair of leaves, and of each pair of nodes of different kinds, with the pair."""
    actual_kind, actual_children = open_value(actual)
    desired_kind, desired_children = open_value(desired)
    if actual_kind != desired_kind or actual_children is None or desired_children is None:
        yield path, actual, desired
        return
    for key in dict.fromkeys([*desired_children, *actual_children]):
        step = f".{key}" if desired_kind == "record" else f"[{key!r}]"
        yield from _pairs(path + step, actual_children.get(key, MISSING), desired_children.get(key, MISSING))


def _compare_leaf(
    path: str,
    actual: Any,
    desired: Any,
    closeness_of: Callable[[str], Closeness],
    check_dtype: bool,
    check_width: bool,
) -> LeafComparison:
    where = path or OUTPUT
    kinds = open_value(actual)[0], open_value(desired)[0]
    if kinds != ("leaf", "leaf"):
        reason: Reason | None = None if kinds == ("None", "None") else "structure"
        if "missing" in kinds:
            reason = "missing in actual" if actual is MISSING else "missing in desired"
        return LeafComparison(where, reason, _outline(actual), _outline(desired))

    port, tf1 = read_leaf(actual, f"actual{path}"), read_leaf(desired, f"desired{path}")
    shape, kind = tf1.array.shape, common_kind(port.kind, tf1.kind)
    if port.array.shape != shape or kind is None:
        return LeafComparison(where, "dtype" if port.array.shape == shape else "shape", _side(port), _side(tf1))
    closeness = closeness_of(where)
    tally = measure(port, tf1, kind, closeness)
    same_dtype = port.dtype == tf1.dtype or ((port.weak or tf1.weak) and port.kind == tf1.kind)
    same_dtype |= not check_width and port.kind == tf1.kind == "int"

    def difference_at(position: int, amount: float | None = None) -> Difference:
        index = tuple(int(i) for i in np.unravel_index(position, shape))
        return Difference(amount, index, port.value_at(index), tf1.value_at(index))

    return LeafComparison(
        path=where,
        reason="dtype" if check_dtype and not same_dtype else "values" if tally.mismatched else None,
        actual=_side(port),
        desired=_side(tf1),
        rtol=closeness.rtol if kind in FLOATING else 0.0,
        atol=closeness.atol if kind in FLOATING else 0.0,
        size=tf1.array.size,
        mismatched=tally.mismatched,
        both_nan=tally.both_nan,
        first_mismatch=None if tally.first is None else difference_at(tally.first),
        greatest_absolute=tally.absolute and difference_at(tally.absolute.position, tally.absolute.amount),
        greatest_relative=tally.relative and difference_at(tally.relative.position, tally.relative.amount),
        greatest_ulps=tally.ulps,
        by_magnitude=dict(sorted(tally.by_magnitude.items())),
    )


def _outline(value: Any) -> Side:
    return Side(shorten(skeleton(value), 85))


def _side(leaf: Leaf) -> Side:
    nans, infs = (
        int(np.count_nonzero(is_special(leaf.array))) if leaf.kind in FLOATING else 0
        for is_special in (np.isnan, np.isinf)
    )
    return Side(f"{leaf.dtype} {leaf.array.shape}", leaf.array.shape, leaf.dtype, nans, infs)
