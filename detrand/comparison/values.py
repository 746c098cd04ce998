"""Compare two nested structures of numbers: which leaves differ, where, and by how much.

    walk both structures together -> pairs of leaves -> measure each pair -> Comparison, whose str() is the report

Nothing passes by accident. A leaf that only one side has, another shape, another dtype, NaN, and structures that
hold no number at all are differences; no leaf is broadcast or rounded before it is compared. What has no numbers
(a symbolic tensor, an arbitrary object) is an `ArgumentError`.

What is in a value of a framework, `leaves` beside this module knows, and how far two arrays are apart, `closeness`.
Only NumPy is imported.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from detrand.arguments import shorten
from detrand.comparison.closeness import Closeness, Greatest, common_kind, measure
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
    """Compares two structures, leaf by leaf, and tells all that differs.

    >>> print(compare({"loss": 0.5, "logits": [1.0, 2.0]}, {"loss": 0.5, "logits": [1.0, 2.5]}))
    1 of 3 leaves differs; first: ['logits'][1]
    close means |actual - desired| <= atol + rtol * |desired|, with rtol=1e-06, atol=1e-05
    <BLANKLINE>
    ['logits'][1]: 1 of 1 elements differ (100%)
      actual   float ()
      desired  float ()
      greatest absolute difference: 0.5 (actual 2.0, desired 2.5)
      greatest relative difference: 0.2 (actual 2.0, desired 2.5)
      greatest distance: 1,125,899,906,842,624 ULPs

    Dicts pair by key, namedtuples and dataclasses by field, lists and tuples by position. A list equals a tuple,
    since ``Session.run`` returns lists where eager code returns tuples; a namedtuple equals neither, because its
    fields may stand in another order than a list's items (``LSTMStateTuple(c, h)``, but Keras's ``[h, c]``). A list
    of numbers is a structure, not an array: wrap it in ``np.array`` to compare it with one.
    Ragged, sparse and indexed-slices tensors are compared by their components.

    Floating-point leaves may differ by the tolerance, computed in float64 (or wider, where a leaf is). Integers,
    bools, strings and bytes must be equal, whatever the tolerance. A Python number has no dtype of its own: it
    matches every dtype of its kind (bool, int, float, complex), at its own full precision.

    Args:
      actual: what the port computed: tensors, variables, arrays, scalars, strings or None, in any nesting of
        dicts, lists, tuples, namedtuples and dataclasses.
      desired: what it should have computed; its order is the order of the leaves.
      rtol: tolerance relative to ``|desired|``, finite and not negative.
      atol: absolute tolerance, finite and not negative.
      equal_nan: whether NaN equals NaN.
      check_dtype: whether another dtype is a difference. Without it, numbers of all dtypes are compared by
        value: as float64 where either side is floating-point, exactly where both are integers.

    Returns:
      A `Comparison`; it is true (``.ok``) if nothing differs.

    Raises:
      ArgumentError: for a tolerance that is none, and for a leaf that holds no numbers, such as a symbolic tensor.
    """
    closeness = Closeness.checked(rtol, atol, equal_nan)
    return compare_by_path(actual, desired, lambda path: closeness, check_dtype=check_dtype)


def compare_by_path(
    actual: Any, desired: Any, closeness_of: Callable[[str], Closeness], *, check_dtype: bool = True
) -> Comparison:
    """Compares as `compare` does, each leaf with the closeness that is asked of its path.

    >>> structure = {"loss": 0.5, "logits": 2.0}
    >>> loss_alone = lambda path: Closeness(0.0, 0.1 if path == "['loss']" else 0.0, equal_nan=False)
    >>> compare_by_path({"loss": 0.55, "logits": 2.0}, structure, loss_alone).ok
    True

    Args:
      actual: as for `compare`.
      desired: likewise.
      closeness_of: is called with each leaf's path.
      check_dtype: as for `compare`.
    """
    try:
        leaves = [
            _compare_leaf(pair, closeness_of(pair.path or OUTPUT), check_dtype) for pair in _pairs("", actual, desired)
        ]
        if all(leaf.ok and not leaf.size for leaf in leaves):
            leaves = [_unmeasured("", "nothing to compare", _outline(actual), _outline(desired))]
    except RecursionError as error:
        raise ArgumentError("actual or desired is nested too deeply, or contains itself: pass a finite tree") from error
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
    """Fails, with the whole report, unless every leaf is close. The arguments are those of `compare`.

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
    """Fails unless both structures match and some leaf holds other numbers. The arguments are those of `compare`.

    >>> assert_not_allclose([1.0, 2.0], [1.0, 2.5])

    Another structure, shape or dtype does not count as "other numbers", nor does NaN in both places: that would
    let a test of, say, two dropout masks pass for a reason that has nothing to do with the masks.

    Raises:
      ComparisonError: if every leaf is close, or if the structures do not match.
      ArgumentError: as for `compare`.
    """
    __tracebackhide__ = True
    comparison = compare(actual, desired, rtol, atol, equal_nan, check_dtype=check_dtype)
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    if any(leaf.reason != "values" for leaf in differing):
        raise ComparisonError(f"whether the numbers differ cannot be told: the structures do not match\n{comparison}")
    if not differing:
        raise ComparisonError(f"the numbers should differ, but do not\n{comparison}")
    if all(leaf.mismatched == leaf.both_nan for leaf in differing):
        raise ComparisonError(f"the numbers should differ, but do so only where both are NaN\n{comparison}")


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place in a leaf and the two values there; ``amount`` is None where they have no difference (NaN, text)."""

    amount: float | None
    index: tuple[int, ...]
    actual: Any
    desired: Any

    def __str__(self) -> str:
        amount = (
            "" if self.amount is None else f"{self.amount:.9g}" if type(self.amount) is float else f"{self.amount:,}"
        )
        place = f"at {list(self.index)}" if self.index else ""
        values = f"(actual {shorten(repr(self.actual), 24)}, desired {shorten(repr(self.desired), 24)})"
        return " ".join(text for text in (amount, place, values) if text)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a leaf: ``form`` is its text in the report; a leaf without numbers has no shape and no dtype."""

    form: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    nans: int = 0
    infs: int = 0


@dataclasses.dataclass(frozen=True)
class LeafComparison:
    """One pair of leaves, in plain Python values.

    Attributes:
      path: where it is, as in ``['logits'][0].name``; ``output`` where the structure is itself a leaf.
      reason: why it differs; None if it does not.
      actual: what the actual side is.
      desired: what the desired side is.
      rtol: the relative tolerance it was held to: 0 where equality is asked for.
      atol: the absolute tolerance it was held to: 0 where equality is asked for.
      size: elements compared; 0 where nothing could be.
      mismatched: how many of them are not close.
      both_nan: how many of them are NaN on both sides.
      first_mismatch: the first that is not close.
      greatest_absolute: the greatest ``|actual - desired|``, NaN left out. None where there is no difference to
        take: strings, bools, all NaN.
      greatest_relative: the greatest ``|actual - desired| / |desired|`` where desired is not 0, NaN left out.
      greatest_ulps: the greatest distance in units in the last place, counted in steps from one number of the
        coarser of both dtypes to the next; a complex number counts as its two parts.
      by_magnitude: how many elements have a finite ``|actual - desired|`` from ``10**k`` to below ``10**(k + 1)``, by
        k in ascending order; elements that are equal are in none.
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
        """Whether the leaf does not differ."""
        return self.reason is None

    @property
    def percent(self) -> float:
        """How many per cent of the elements are not close."""
        return 100.0 * self.mismatched / self.size if self.size else 0.0

    def __str__(self) -> str:
        if self.reason == "missing in actual":
            return f"{self.path}: missing in actual; desired is {self.desired.form}"
        if self.reason == "missing in desired":
            return f"{self.path}: missing in desired; actual is {self.actual.form}"
        differ = f"{self.mismatched:,} of {self.size:,} elements differ ({self.percent:.3g}%)"
        headline = {
            None: "close",
            "structure": "the structures differ",
            "shape": "the shapes differ, and nothing is broadcast",
            "dtype": "the dtypes differ" + (f" (check_dtype=False allows that); {differ}" if self.size else ""),
            "values": differ,
            "nothing to compare": "nothing to compare: neither side holds a number",
        }[self.reason]
        lines = [f"{self.path}: {headline}"]
        for name, side in (("actual", self.actual), ("desired", self.desired)):
            strange = [f"; {count:,} {what}" for what, count in (("NaN", side.nans), ("Inf", side.infs)) if count]
            lines.append(f"  {name:<7}  {side.form}{''.join(strange)}")
        first, greatest = self.first_mismatch, self.greatest_absolute
        if first is not None and (greatest is None or first.index != greatest.index):
            lines.append(f"  first that differs: {first}")
        if greatest is not None:
            lines.append(f"  greatest absolute difference: {greatest}")
        if self.greatest_relative is not None:
            lines.append(f"  greatest relative difference: {self.greatest_relative}")
        if self.greatest_ulps is not None:
            lines.append(f"  greatest distance: {self.greatest_ulps:,} ULPs")
        wrap = textwrap.TextWrapper(100, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
        return "\n".join([lines[0], *map(wrap.fill, lines[1:])])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found: one `LeafComparison` for each leaf, in desired's order; ``str()`` is the report.

    As a bool it is ``.ok``, so that ``assert compare(a, b)`` means what it says.

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
        differing = [leaf for leaf in self.leaves if not leaf.ok]
        if differing:
            verb = "differs" if len(differing) == 1 else "differ"
            verdict = f"{len(differing)} of {len(self.leaves)} leaves {verb}; first: {differing[0].path}"
        else:
            verdict = f"all leaves are close: {len(self.leaves)} compared"
        tolerances = sorted({(leaf.rtol, leaf.atol) for leaf in self.leaves if leaf.rtol or leaf.atol})
        held = [
            f"close means |actual - desired| <= atol + rtol * |desired|, with rtol={rtol:g}, atol={atol:g}"
            for rtol, atol in tolerances
        ]
        return "\n".join([verdict, *held, *(f"\n{leaf}" for leaf in differing)])


def leaves_by_path(structure: Any) -> dict[str, Any]:
    """Returns the leaves of a structure by the paths that `compare` calls them by.

    >>> leaves_by_path({"loss": 0.5, "logits": [1.0, 2.0]})
    {"['loss']": 0.5, "['logits'][0]": 1.0, "['logits'][1]": 2.0}
    """
    return {pair.path or OUTPUT: pair.desired for pair in _pairs("", structure, structure)}


class _Pair(NamedTuple):
    path: str
    actual: Any
    desired: Any
    kinds: tuple[str, str]  # of actual and desired, as open_value tells them


def _pairs(path: str, actual: Any, desired: Any) -> Iterator[_Pair]:
    """Yields the pairs of leaves, and, unopened, every pair of nodes that are not of one kind."""
    actual_kind, actual_children = open_value(actual)
    desired_kind, desired_children = open_value(desired)
    if actual_kind != desired_kind or desired_children is None:
        yield _Pair(path, actual, desired, (actual_kind, desired_kind))
        return
    assert actual_children is not None  # the kinds are equal
    for key in dict.fromkeys([*desired_children, *actual_children]):
        step = f".{key}" if desired_kind == "record" else f"[{key!r}]"
        yield from _pairs(path + step, actual_children.get(key, MISSING), desired_children.get(key, MISSING))


def _compare_leaf(pair: _Pair, closeness: Closeness, check_dtype: bool) -> LeafComparison:
    path, kinds = pair.path, pair.kinds
    if kinds == ("None", "None"):
        return _unmeasured(path, None, Side("None"), Side("None"))
    if kinds != ("leaf", "leaf"):
        reason: Reason = "structure"
        if "missing" in kinds:
            reason = "missing in actual" if kinds[0] == "missing" else "missing in desired"
        return _unmeasured(path, reason, _outline(pair.actual), _outline(pair.desired))

    actual, desired = read_leaf(pair.actual, f"actual{path}"), read_leaf(pair.desired, f"desired{path}")
    if actual.array.shape != desired.array.shape:
        return _unmeasured(path, "shape", _side(actual), _side(desired))
    kind = common_kind(actual.kind, desired.kind)
    if kind is None:
        return _unmeasured(path, "dtype", _side(actual), _side(desired))
    closeness = closeness.for_kind(kind)
    tally = measure(actual, desired, kind, closeness)
    same_dtype = actual.dtype == desired.dtype or ((actual.weak or desired.weak) and actual.kind == desired.kind)

    def place(greatest: Greatest) -> Difference | None:
        if greatest.position is None:
            return None
        index = tuple(int(i) for i in np.unravel_index(greatest.position, actual.array.shape))
        return Difference(greatest.amount, index, actual.value_at(index), desired.value_at(index))

    return LeafComparison(
        path=path or OUTPUT,
        reason="dtype" if check_dtype and not same_dtype else "values" if tally.mismatched else None,
        actual=_side(actual, tally.nans[0], tally.infs[0]),
        desired=_side(desired, tally.nans[1], tally.infs[1]),
        rtol=closeness.rtol,
        atol=closeness.atol,
        size=actual.array.size,
        mismatched=tally.mismatched,
        both_nan=tally.both_nan,
        first_mismatch=place(tally.first),
        greatest_absolute=place(tally.absolute),
        greatest_relative=place(tally.relative),
        greatest_ulps=tally.ulps,
        by_magnitude=dict(sorted(tally.by_magnitude.items())),
    )


def _unmeasured(path: str, reason: Reason | None, actual: Side, desired: Side) -> LeafComparison:
    return LeafComparison(path or OUTPUT, reason, actual, desired)


def _outline(value: Any) -> Side:
    return Side(shorten(skeleton(value), 85))


def _side(leaf: Leaf, nans: int = 0, infs: int = 0) -> Side:
    return Side(f"{leaf.dtype} {leaf.array.shape}", leaf.array.shape, leaf.dtype, nans, infs)
