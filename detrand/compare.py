"""Compare two nested structures of numbers: which leaves differ, where, and by how much.

    walk both structures together -> pairs of leaves -> measure each pair -> Comparison, whose str() is the report

Nothing passes by accident. A leaf that only one side has, another shape, another dtype, NaN, and structures that
hold no number at all are differences; no leaf is broadcast or rounded before it is compared. What has no numbers
(a symbolic tensor, an arbitrary object) is an `ArgumentError`.

Only NumPy is imported. Values of TensorFlow, Keras, JAX and PyTorch are known by the protocol they speak.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

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
    closeness = _Closeness(_tolerance("rtol", rtol), _tolerance("atol", atol), bool(equal_nan))
    try:
        leaves = [_compare_leaf(pair, closeness, check_dtype) for pair in _pairs("", actual, desired)]
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
        values = f"(actual {_shorten(repr(self.actual), 24)}, desired {_shorten(repr(self.desired), 24)})"
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
        path: where it is, as in ``['logits'][0].name``; ``(root)`` for a structure that is a leaf.
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


_MISSING = object()


class _Pair(NamedTuple):
    path: str
    actual: Any
    desired: Any
    kinds: tuple[str, str]  # of actual and desired, as _open tells them


def _pairs(path: str, actual: Any, desired: Any) -> Iterator[_Pair]:
    """Yields the pairs of leaves, and, unopened, every pair of nodes that are not of one kind."""
    actual_kind, actual_children = _open(actual)
    desired_kind, desired_children = _open(desired)
    if actual_kind != desired_kind or desired_children is None:
        yield _Pair(path, actual, desired, (actual_kind, desired_kind))
        return
    assert actual_children is not None  # the kinds are equal
    for key in dict.fromkeys([*desired_children, *actual_children]):
        step = f".{key}" if desired_kind == "record" else f"[{key!r}]"
        yield from _pairs(path + step, actual_children.get(key, _MISSING), desired_children.get(key, _MISSING))


# A tensor made of tensors is opened as a record of these. What a Session returns for it (RaggedTensorValue, and the
# namedtuples SparseTensorValue and IndexedSlicesValue) opens into the same fields.
_COMPONENTS = {
    "SparseTensor": ("indices", "values", "dense_shape"),
    "IndexedSlices": ("values", "indices", "dense_shape"),
    "RaggedTensor": ("flat_values", "nested_row_splits"),
    "RaggedTensorValue": ("flat_values", "nested_row_splits"),
}


def _open(value: Any) -> tuple[str, dict[Any, Any] | None]:
    """Returns the kind of the value and what is in it: None if it cannot be opened."""
    if value is None or value is _MISSING:
        return ("None" if value is None else "missing"), None
    if isinstance(value, Mapping):
        return "mapping", dict(value)
    fields = None
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
    elif _framework(value) == "tensorflow":
        fields = _COMPONENTS.get(type(value).__name__)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(field.name for field in dataclasses.fields(value))
    if fields is not None:
        return "record", {name: getattr(value, name) for name in fields}
    if isinstance(value, (list, tuple)):
        return "sequence", dict(enumerate(value))
    return "leaf", None


def _framework(value: Any) -> str | None:
    """Returns the framework that the value's class, or one that it derives from, is defined in."""
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    # A Keras 3 variable derives from TensorFlow's classes on that backend: Keras is asked for first.
    return next((name for name in ("keras", "torch", "tensorflow") if name in packages), None)


class _Closeness(NamedTuple):
    rtol: float
    atol: float
    equal_nan: bool


def _compare_leaf(pair: _Pair, closeness: _Closeness, check_dtype: bool) -> LeafComparison:
    path, kinds = pair.path, pair.kinds
    if kinds == ("None", "None"):
        return _unmeasured(path, None, Side("None"), Side("None"))
    if kinds != ("leaf", "leaf"):
        reason: Reason = "structure"
        if "missing" in kinds:
            reason = "missing in actual" if kinds[0] == "missing" else "missing in desired"
        return _unmeasured(path, reason, _outline(pair.actual), _outline(pair.desired))

    actual, desired = _read(pair.actual, f"actual{path}"), _read(pair.desired, f"desired{path}")
    if actual.array.shape != desired.array.shape:
        return _unmeasured(path, "shape", actual.side(), desired.side())
    kind = _common_kind(actual.kind, desired.kind)
    if kind is None:
        return _unmeasured(path, "dtype", actual.side(), desired.side())
    if kind not in _FLOATING:
        closeness = closeness._replace(rtol=0.0, atol=0.0)
    tally = _measure(actual, desired, kind, closeness)
    same_dtype = actual.dtype == desired.dtype or ((actual.weak or desired.weak) and actual.kind == desired.kind)

    def place(greatest: _Greatest) -> Difference | None:
        if greatest.position is None:
            return None
        index = tuple(int(i) for i in np.unravel_index(greatest.position, actual.array.shape))
        return Difference(greatest.amount, index, actual.value_at(index), desired.value_at(index))

    return LeafComparison(
        path=path or "(root)",
        reason="dtype" if check_dtype and not same_dtype else "values" if tally.mismatched else None,
        actual=actual.side(tally.nans[0], tally.infs[0]),
        desired=desired.side(tally.nans[1], tally.infs[1]),
        rtol=closeness.rtol,
        atol=closeness.atol,
        size=actual.array.size,
        mismatched=tally.mismatched,
        both_nan=tally.both_nan,
        first_mismatch=place(tally.first),
        greatest_absolute=place(tally.absolute),
        greatest_relative=place(tally.relative),
        greatest_ulps=tally.ulps,
    )


def _unmeasured(path: str, reason: Reason | None, actual: Side, desired: Side) -> LeafComparison:
    return LeafComparison(path or "(root)", reason, actual, desired)


def _outline(value: Any) -> Side:
    return Side(_shorten(_skeleton(value), 85))


def _skeleton(value: Any) -> str:
    """Returns the structure as text, with dtype and shape for each leaf."""
    kind, children = _open(value)
    if children is None:
        if kind != "leaf":
            return kind
        dtype = getattr(value, "dtype", type(value).__name__)
        return f"{getattr(dtype, 'name', dtype)} {getattr(value, 'shape', '')}".rstrip()
    if kind == "mapping":
        return "{" + ", ".join(f"{key!r}: {_skeleton(child)}" for key, child in children.items()) + "}"
    if kind == "record":
        return f"{type(value).__name__}({', '.join(f'{key}={_skeleton(child)}' for key, child in children.items())})"
    items = ", ".join(_skeleton(child) for child in children.values())
    return f"[{items}]" if isinstance(value, list) else f"({items})"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


_Kind = Literal["bool", "int", "float", "complex", "str", "bytes"]
_NUMERIC: tuple[_Kind, ...] = ("bool", "int", "float", "complex")  # each can be compared with those after it
_FLOATING: tuple[_Kind, ...] = ("float", "complex")


def _common_kind(actual: _Kind, desired: _Kind) -> _Kind | None:
    if actual in _NUMERIC and desired in _NUMERIC:
        return max(actual, desired, key=_NUMERIC.index)
    return actual if actual == desired else None


class _Leaf(NamedTuple):
    array: np.ndarray
    kind: _Kind
    dtype: str
    weak: bool  # a Python number, which has no dtype of its own

    def side(self, nans: int = 0, infs: int = 0) -> Side:
        return Side(f"{self.dtype} {self.array.shape}", self.array.shape, self.dtype, nans, infs)

    def value_at(self, index: tuple[int, ...]) -> Any:
        return {"bool": bool, "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes}[self.kind](
            self.array[index]
        )


def _read(value: Any, where: str) -> _Leaf:
    """Returns the numbers of a leaf; `where` names it in errors."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _read_array(value, where)
    if isinstance(value, (str, bytes)):
        return _read_array(np.array(value, object), where)
    if isinstance(value, (bool, int, float, complex)):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ArgumentError(f"{where} is {value}, an int of more than 64 bits, which no tensor holds: pass a str")
        kind: Any = next(cls.__name__ for cls in (bool, int, float, complex) if isinstance(value, cls))
        return _Leaf(np.array(value), kind, kind, weak=True)

    framework = _framework(value)
    try:
        if framework == "torch":
            return _read(_torch_to_numpy(value), where)
        if framework == "keras" and hasattr(value, "value"):
            return _read(value.value, where)
        if framework == "tensorflow":
            return _read(value.numpy(), where)
        if hasattr(value, "__array__"):
            return _read_array(np.asarray(value), where)
        cause = None
    except ArgumentError:
        raise
    except Exception as error:  # whatever a framework raises for a value without numbers
        cause = error
    has_numbers = framework == "torch" or type(value).__name__ == "EagerTensor"  # though of a kind NumPy does not have
    if hasattr(value, "shape") and hasattr(value, "dtype") and not has_numbers:
        raise ArgumentError(
            f"{where} is a symbolic tensor, a {type(value).__name__} without numbers: evaluate it with Session.run "
            "first (or call the function or model on numbers), and compare what that returns"
        ) from cause
    why = f" ({_shorten(str(cause), 100)})" if cause else ""
    raise ArgumentError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which has no numbers to compare{why}; "
        "accepted are tensors, variables, arrays, Python numbers, strings and None, in any nesting of dicts, lists, "
        "tuples, namedtuples and dataclasses"
    ) from cause


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("bfloat", "float8")):  # NumPy has no such dtype of its own: PyTorch cannot convert them
        import ml_dtypes  # TensorFlow's and JAX's own dependency

        torch = sys.modules["torch"]
        bits = torch.int16 if name == "bfloat16" else torch.uint8
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))
    return tensor.resolve_conj().resolve_neg().numpy()


def _read_array(value: Any, where: str) -> _Leaf:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{where} is a masked array: say what the masked elements are, with .filled(...)")
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.kind in "biufc":
        kinds: dict[str, _Kind] = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
        return _Leaf(array, kinds[dtype.kind], dtype.name, weak=False)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("bfloat", "float")):
        return _Leaf(array, "float", dtype.name, weak=False)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("int", "uint")):
        return _Leaf(array.astype(np.int64), "int", dtype.name, weak=False)
    if dtype.kind in "OSUT":  # strings of any width; TensorFlow's arrive as objects that are bytes
        array = array.astype(object)
        types = {type(item) for item in array.flat} or {str if dtype.kind in "UT" else bytes}
        text_kinds: tuple[tuple[_Kind, type], ...] = (("str", str), ("bytes", bytes))
        for kind, cls in text_kinds:
            if all(issubclass(item, cls) for item in types):
                return _Leaf(array, kind, kind, weak=False)
        found = ", ".join(sorted(item.__name__ for item in types))
        raise ArgumentError(
            f"{where} is an array of Python objects ({found}): pass a list of them, or an array with a numeric dtype"
        )
    raise ArgumentError(f"{where} has dtype {dtype}; accepted are bool, integer, floating-point, complex and string")


# Leaves are measured in blocks that fit a core's cache: the float64 temporaries of a leaf of any size then take a few
# megabytes, and NumPy's passes over them do not wait for memory.
_BLOCK = 1 << 15


class _Block(NamedTuple):
    """What was found in one block. Arrays are as long as the block, or of length 1 where all of it is equal."""

    mismatch: np.ndarray
    difference: np.ndarray | None = None
    relative: np.ndarray | None = None
    both_nan: int = 0
    nans: tuple[int, int] = (0, 0)  # of actual and desired
    infs: tuple[int, int] = (0, 0)
    ulps: int | None = None


class _Greatest:
    """The greatest of the amounts offered so far, and its position; NaN is no amount."""

    amount: float | None = None
    position: int | None = None

    def offer(self, amounts: np.ndarray, start: int) -> None:
        if amounts.dtype.kind == "f":
            amounts[np.isnan(amounts)] = -1
        best = int(amounts.argmax())
        if amounts[best] >= 0 and (self.amount is None or amounts[best] > self.amount):
            self.amount = float(amounts[best]) if amounts.dtype.kind == "f" else int(amounts[best])
            self.position = start + best


class _Tally:
    """What was found in the blocks of a leaf so far."""

    def __init__(self) -> None:
        self.mismatched = self.both_nan = 0
        self.nans = self.infs = (0, 0)
        self.first, self.absolute, self.relative = _Greatest(), _Greatest(), _Greatest()
        self.ulps: int | None = None

    def add(self, block: _Block, start: int) -> None:
        if block.mismatch.any():
            self.mismatched += int(np.count_nonzero(block.mismatch))
            if self.first.position is None:
                self.first.position = start + int(block.mismatch.argmax())
        if block.difference is not None:
            self.absolute.offer(block.difference, start)
        if block.relative is not None:
            self.relative.offer(block.relative, start)
        self.both_nan += block.both_nan
        self.nans = (self.nans[0] + block.nans[0], self.nans[1] + block.nans[1])
        self.infs = (self.infs[0] + block.infs[0], self.infs[1] + block.infs[1])
        self.ulps = max((ulps for ulps in (self.ulps, block.ulps) if ulps is not None), default=None)


def _measure(actual: _Leaf, desired: _Leaf, kind: _Kind, closeness: _Closeness) -> _Tally:
    """Compares two leaves of one shape as numbers (or strings) of one kind."""
    tally = _Tally()
    a, d = actual.array.reshape(-1), desired.array.reshape(-1)
    coarser = _coarser(a.dtype, d.dtype) if actual.kind == desired.kind and kind in _FLOATING else None
    with np.errstate(all="ignore"):  # Inf and NaN are counted and reported instead
        for start in range(0, a.size, _BLOCK):
            x, y = a[start : start + _BLOCK], d[start : start + _BLOCK]
            if x.dtype == y.dtype and not (x != y).any():  # no NaN is in it, since NaN != NaN
                block = _equal_block(x, kind, coarser)
            elif kind in _FLOATING:
                block = _float_block(x, y, kind, closeness, coarser)
            elif kind == "int":
                block = _int_block(x, y)
            else:
                block = _Block(x != y)
            tally.add(block, start)
    return tally


def _equal_block(x: np.ndarray, kind: _Kind, coarser: np.dtype | None) -> _Block:
    same, zero = np.zeros(1, bool), np.zeros(1)
    if kind in _FLOATING:
        infs = int(np.count_nonzero(np.isinf(x)))
        return _Block(same, zero, zero, infs=(infs, infs), ulps=None if coarser is None else 0)
    return _Block(same, zero, zero) if kind == "int" else _Block(same)


_PRECISIONS: dict[_Kind, Any] = {
    "float": (np.float64, np.longdouble),
    "complex": (np.complex128, np.clongdouble),
}


def _float_block(x: np.ndarray, y: np.ndarray, kind: _Kind, closeness: _Closeness, coarser: np.dtype | None) -> _Block:
    """Measures in float64 or complex128, or in what a wider leaf has."""
    ulps = None if coarser is None else _ulps(x, y, coarser)
    narrow, wide = _PRECISIONS[kind]
    precision = wide if x.dtype.char in "gG" or y.dtype.char in "gG" else narrow
    x, y = x.astype(precision, copy=False), y.astype(precision, copy=False)
    equal = x == y
    difference = np.abs(x - y)
    difference[equal] = 0  # Inf - Inf is NaN
    scale = np.abs(y)
    # Inf is close to itself alone, though |1 - Inf| <= atol + rtol * Inf. So it is in numpy.isclose, except where rtol
    # * desired overflows to Inf: there NumPy takes an actual Inf for close to a finite number.
    close = equal | ((difference <= closeness.atol + closeness.rtol * scale) & np.isfinite(x) & np.isfinite(y))
    nans = np.isnan(x), np.isnan(y)
    both_nan = nans[0] & nans[1]
    if closeness.equal_nan:
        close |= both_nan
    relative = difference / scale
    relative[np.isinf(difference)] = np.inf  # Inf / Inf is NaN
    relative[scale == 0] = np.nan
    relative[equal] = 0
    return _Block(
        ~close,
        difference,
        relative,
        both_nan=int(np.count_nonzero(both_nan)),
        nans=(int(np.count_nonzero(nans[0])), int(np.count_nonzero(nans[1]))),
        infs=(int(np.count_nonzero(np.isinf(x))), int(np.count_nonzero(np.isinf(y)))),
        ulps=ulps,
    )


def _int_block(x: np.ndarray, y: np.ndarray) -> _Block:
    """Measures without overflow: |x - y| of 64-bit integers fits uint64, in whose arithmetic the wrap cancels out."""
    if "u" in x.dtype.kind + y.dtype.kind and np.result_type(x, y).kind == "f":
        x, y = x.astype(object), y.astype(object)  # int64 with uint64: only Python's integers hold the difference
        difference = np.abs(x - y)
    else:
        difference = np.where(
            x > y, x.astype(np.uint64) - y.astype(np.uint64), y.astype(np.uint64) - x.astype(np.uint64)
        )
    relative = difference.astype(np.float64) / np.abs(y.astype(np.float64))
    relative[y == 0] = np.nan
    relative[x == y] = 0
    return _Block(x != y, difference, relative)


def _coarser(a: np.dtype, d: np.dtype) -> np.dtype | None:
    """Returns the floating-point dtype, of the two, with fewer bits of precision; None where ULPs are not counted."""
    parts: dict[str, np.dtype] = {"F": np.dtype(np.float32), "D": np.dtype(np.float64)}
    a, d = parts.get(a.char, a), parts.get(d.char, d)
    if a.char in "gG" or d.char in "gG":  # an 80-bit number has no integer of its size
        return None
    finfo: Any = getattr(sys.modules.get("ml_dtypes"), "finfo", np.finfo)  # it is loaded if such a dtype is here
    return a if finfo(a).nmant < finfo(d).nmant else d


def _ulps(x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> int | None:
    """Returns the greatest distance in steps of the dtype; None if there is NaN in every place.

    The bits of positive floating-point numbers, read as integers, count the numbers from 0 on (IEEE 754).
    """
    if x.dtype.kind == "c":
        x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (x, y))
    x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    bits = np.dtype(f"u{dtype.itemsize}")
    i, j = np.abs(x).view(bits), np.abs(y).view(bits)
    steps = np.where(np.signbit(x) == np.signbit(y), np.maximum(i, j) - np.minimum(i, j), i + j)
    known = ~(np.isnan(x) | np.isnan(y))
    return int(steps[known].max()) if known.any() else None


def _tolerance(name: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= 0):
        raise ArgumentError(f"{name}={value!r}: accepted is a finite number that is not negative; 0 asks for equality")
    return float(value)
