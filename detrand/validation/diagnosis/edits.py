"""Edits: one op of the port left out, replaced or added, after which the port computes what TF1 does.

Where programs are written differently, a substitute shows where they diverge, but the ops around it differ in any case.
An edit computes with the port's own numbers; of TF1 it takes the kind of an op only. So if the outputs agree then, the
edit is what differs.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detrand.checkpoints.upstream import op_of
from detrand.comparison.metrics import log_softmax, softmax
from detrand.validation.diagnosis.divergence import Divergence, confirmation
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.program import Program
from detrand.validation.diagnosis.matching.tensors import RTOLS
from detrand.validation.diagnosis.op_kinds import ACTIVATIONS, COMPARISONS, OF_LAST_AXIS, is_neutral, kind, only_in
from detrand.validation.diagnosis.substitutes import Substitutes
from detrand.validation.diagnosis.trials import Trial
from detrand.validation.frameworks.traces import (
    AXIS_OF_SOFTMAX,
    COMPARISON,
    EXCHANGED_BRANCHES,
    ORDER_OF_OPERANDS,
    Edge,
    Substitution,
    TracedOp,
    TracedPort,
)

_MOST_RUNS = 32  # of the port, for all edits
_MOST_PLACES = 8  # that one line adds ops at


def _chosen(condition: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(condition.astype(bool), one, other)


# What kinds of ops compute of each element.
_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    **{"Neg": np.negative, "Abs": np.abs, "Square": np.square, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log},
    **{"Log1p": np.log1p, "Expm1": np.expm1, "Reciprocal": np.reciprocal, "Sign": np.sign, "Floor": np.floor},
    **{"AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.divide, "Pow": np.power},
    **{"Maximum": np.maximum, "Minimum": np.minimum, "Tanh": np.tanh, "LogicalNot": np.logical_not},
    **{"Equal": np.equal, "NotEqual": np.not_equal, "Less": np.less, "LessEqual": np.less_equal},
    **{"Greater": np.greater, "GreaterEqual": np.greater_equal},
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "SquaredDifference": lambda x, y: np.square(x - y),
    "SelectV2": _chosen,
}
# Comparisons that differ only where the two operands are equal.
_WITH_OTHER_BOUND = {"Less": "LessEqual", "LessEqual": "Less", "Greater": "GreaterEqual", "GreaterEqual": "Greater"}
_CONDITIONS = {"Equal", "NotEqual", *COMPARISONS, "LogicalNot"}
_OFTEN_ALIKE = {*_CONDITIONS, "Relu", "Sign"}  # all elements may be equal; no shape is computed with these
# Ops whose last two operands have an order, in words if there are any, and the opposite order.
_ORDERS = {
    **{"Sub": ("a - b", "b - a"), "RealDiv": ("a / b", "b / a"), "Pow": ("a ** b", "b ** a")},
    **{"Less": ("a < b", "b < a"), "LessEqual": ("a <= b", "b <= a")},
    **{"Greater": ("a > b", "b > a"), "GreaterEqual": ("a >= b", "b >= a")},
    "SelectV2": ("", ""),
}


_Array = Callable[[str], np.ndarray | None]  # returns what a tensor of the port holds; None if that is not known


class _Edit(NamedTuple):
    """An edit of the port.

    Attributes:
      places: the tensors of the port that get other numbers; several if one line computes them.
      numbers: returns the numbers of a tensor, given the numbers of tensors by name; None if they are not known.
      is_added: whether the numbers are those of an op after the tensor.
      words: what is edited.
      tf1: TF1's op, if any.
      port: the port's op.
      regions: the ops that only one program has.
      attributes: what differs in the two ops.
    """

    places: Sequence[str]
    numbers: Callable[[str, _Array], np.ndarray | None]
    is_added: bool
    words: str
    tf1: TracedOp | None
    port: TracedOp
    regions: tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]]
    attributes: Mapping[str, tuple[str, str]] = {}


class Edits:
    """The edits of a port."""

    def __init__(self, port: TracedPort, substitutes: Substitutes):
        self._port, self._substitutes = port, substitutes

    def divergence(self, state: TraceComparison, done: Substitution) -> Divergence | None:
        """Return the divergence that is an edit after which the outputs agree; None if there is no such edit.

        Args:
          state: the programs.
          done: what the port has been given before.
        """
        runs = 0
        for edit in _edits(state):
            numbers = self._numbers(edit, edit.places[0], state)
            if numbers is None or (edit.is_added and _is_computed(state, numbers)):
                continue
            runs += len(edit.places)
            if runs > _MOST_RUNS:
                return None
            if self._agree_with(edit, state, done):
                return Divergence(
                    tf1=edit.tf1 or _alike(state, edit.port),
                    port=edit.port,
                    after=state.divergence().after,
                    leaf=None,
                    attributes=edit.attributes,
                    attribute=next(iter(edit.attributes), ""),
                    values=(None, None),
                    sources=([], []),
                    regions=edit.regions,
                    confirmed=confirmation(edit.words, rest_agrees=True),
                    rest_agrees=True,
                    count=len(edit.places),
                    is_edit=True,
                )
        return None

    def _agree_with(self, edit: _Edit, state: TraceComparison, done: Substitution) -> bool:
        """Return whether the outputs agree once the port is edited, in one place after the other."""
        now = state
        for tensor in edit.places:
            numbers = self._numbers(edit, tensor, now)
            if numbers is None:
                return False
            edges = self._edges(tensor, state) if edit.is_added else self._port.edges_of(tensor)
            paths = [] if edit.is_added else self._port.paths_of(tensor)
            fitted = self._port.fitted(numbers, tensor)
            substitution = Substitution(
                dict.fromkeys(edges, fitted),
                outputs=dict.fromkeys(paths, fitted),
                right=frozenset([tensor] if edit.is_added else []),
            )
            rest = self._substitutes.run(done, Trial(substitution, (None, None), ""))
            if rest is None:
                return False
            now, done = rest, done.and_also(substitution)
        return not now.differs

    def _numbers(self, edit: _Edit, tensor: str, state: TraceComparison) -> np.ndarray | None:
        """Return what a tensor of the port gets by an edit; None if not known, not finite or of a different dtype."""

        def array(name: str) -> np.ndarray | None:
            value = state.port.trace.values.get(name)
            return self._port.array(name) if value is None else value.array

        try:
            with np.errstate(all="ignore"):
                numbers = edit.numbers(tensor, array)
        except (ValueError, TypeError):  # shapes that do not fit
            return None
        if numbers is None or numbers.dtype.kind != self._port.dtype(tensor).kind or not np.isfinite(numbers).all():
            return None
        return numbers

    def _edges(self, tensor: str, state: TraceComparison) -> list[Edge]:
        diverged = {op.name for op in state.port.diverged}
        return [edge for edge in self._port.edges_of(tensor) if edge[0] in diverged]


def _is_computed(state: TraceComparison, numbers: np.ndarray) -> bool:
    """Return whether a tensor of the port holds some numbers already: then no op is missing that computes them."""
    arrays = (value.array for value in state.port.trace.values.values() if value.size == numbers.size)
    flat = [each.ravel() for each in arrays if each is not None]
    with np.errstate(all="ignore"):  # a mask may hold infinities
        return any(np.allclose(each, numbers.ravel(), rtol=RTOLS[0], atol=0) for each in flat)


def _edits(state: TraceComparison) -> Iterator[_Edit]:
    """Yield edits that make the programs more alike: those that leave out an op first."""
    ops = _without_counterpart(state.tf1), _without_counterpart(state.port)
    # Ops that differ but lead to what agrees, as those of a mask may, can hide that one program has more of a kind.
    of_both = only_in(*ops), only_in(state.tf1.diverged, state.port.diverged)
    only = [of_ops | of_diverged for of_ops, of_diverged in zip(*of_both, strict=True)]
    of_tf1, of_port = (
        [op for op in of_program if mine[kind(op)] and kind(op) in _FUNCTIONS]
        for of_program, mine in zip(ops, only, strict=True)
    )
    for places in _by_line(state, of_port):
        if all(len(_operands(op)) == 1 for op in places):
            yield _left_out(places)
    for places in _by_line(state, [op for op in ops[1] if kind(op) in OF_LAST_AXIS]):
        yield from _along_other_axes(state, places)
    kinds = {kind(op): op for op in reversed(of_tf1)}
    activations = [op for op in ops[1] if only[1][kind(op)] and kind(op) in ACTIVATIONS - _FUNCTIONS.keys()]
    for tf1_op, places in itertools.product(kinds.values(), _by_line(state, [*of_port, *activations])):
        are_alike = len({kind(each) in _CONDITIONS for each in (tf1_op, places[0])}) == 1
        if are_alike and all(len(tf1_op.inputs) == len(op.inputs) for op in places):
            for is_reversed in (False, True) if kind(tf1_op) in _ORDERS else (False,):
                yield _replaced(places, tf1_op, is_reversed=is_reversed)
    for places in _by_line(state, [op for op in ops[1] if kind(op) in _WITH_OTHER_BOUND]):
        yield _with_other_bound(places)
    # What a choice makes of the other branch, such as 1 - p of p, may have a counterpart.
    choices = [op for op in state.port.trace.ops.values() if kind(op) == "SelectV2"]
    ordered = [op for op in ops[1] if kind(op) in _ORDERS.keys() - {"SelectV2"} and not op.constants]
    for places in itertools.chain(_by_line(state, choices, everywhere=True), _by_line(state, ordered)):
        like = [op for op in ops[0] if kind(op) == kind(places[0]) != "SelectV2"]
        yield _exchanged(places, next(iter(like), None))
    for tf1_op, places in itertools.product(
        _reductions(ops[0], only[0]), _by_line(state, _reductions(ops[1], only[1]))
    ):
        yield _reduced(places, tf1_op)
    yield from _added(state, [op for op in of_tf1 if len(_operands(op)) == 1 and kind(op) not in _CONDITIONS])


def _without_counterpart(program: Program) -> list[TracedOp]:
    """Return the ops of a program that differ, and those that may differ unseen, as all that they compute is equal."""
    differ = {op.name for op in program.trace.without_counterpart(program.matched)}
    return [
        op
        for op in program.trace.ops.values()
        if op.name in differ or (kind(op) in _OFTEN_ALIKE and not program.trace.values_of(op))
    ]


def _operands(op: TracedOp) -> list[str]:
    """Return the tensors that an op takes, but for constants of one number."""
    sizes = {name: array.size for name, array in op.constants.items()}
    return [tensor for number, tensor in enumerate(op.inputs) if sizes.get(f"input {number}") != 1]


def _by_line(state: TraceComparison, ops: Sequence[TracedOp], *, everywhere: bool = False) -> list[list[TracedOp]]:
    """Return ops of the port in lists of those of one kind on one line, which are one op in the program.

    Unless they may be anywhere, some of them are where the programs diverge, or compute what says nothing. A line may
    have several such ops, so these come once more without those that agree with TF1.
    """
    diverged = {op.name for op in state.port.diverged}
    lines = {(kind(op), op.line) for op in ops}
    found = defaultdict[tuple[str, str], list[TracedOp]](list)
    for op in state.port.trace.ops.values():
        if (kind(op), op.line) in lines:
            found[kind(op), op.line].append(op)
    lists = []
    for places in found.values():
        diverging = [op for op in places if op.name in diverged or not state.port.trace.values_of(op)]
        if len(places) <= _MOST_PLACES and (everywhere or diverging):
            lists += [places, diverging] if 0 < len(diverging) < len(places) else [places]
    return lists


def _in_places(words: str, count: int) -> str:
    return words if count == 1 else f"{words}, at all {count} places"


def _left_out(ops: Sequence[TracedOp]) -> _Edit:
    operands = {op.name: _operands(op)[0] for op in ops}

    def numbers(tensor: str, array: _Array) -> np.ndarray | None:
        return array(operands[tensor])

    shown = _computing(ops)
    return _Edit([*operands], numbers, False, _in_places("without it", len(ops)), None, shown, ((), (shown,)))


def _replaced(ops: Sequence[TracedOp], tf1_op: TracedOp, *, is_reversed: bool) -> _Edit:
    numbers = _computed_by(kind(tf1_op), ops, is_reversed=is_reversed)
    words, shown = _in_places(f"with TF1's {kind(tf1_op)} instead", len(ops)), _computing(ops)
    return _Edit([op.name for op in ops], numbers, False, words, tf1_op, shown, ((tf1_op,), (shown,)))


def _with_other_bound(ops: Sequence[TracedOp]) -> _Edit:
    mine, other = kind(ops[0]), _WITH_OTHER_BOUND[kind(ops[0])]
    words = _in_places(f"with {COMPARISONS[other]} instead", len(ops))
    attributes = {COMPARISON: (COMPARISONS[other], COMPARISONS[mine])}
    return _Edit([op.name for op in ops], _computed_by(other, ops), False, words, None, ops[0], ((), ()), attributes)


def _computed_by(
    kind_of_op: str, ops: Sequence[TracedOp], *, is_reversed: bool = False
) -> Callable[[str, _Array], np.ndarray | None]:
    """Return the function that returns what an op of a kind makes of what one of some ops takes."""
    by_name = {op.name: op for op in ops}

    def numbers(tensor: str, array: _Array) -> np.ndarray | None:
        op = by_name[tensor]
        taken = [op.constants.get(f"input {number}", array(name)) for number, name in enumerate(op.inputs)]
        known = [each for each in taken if each is not None]
        if len(known) < len(taken):
            return None
        return np.asarray(_FUNCTIONS[kind_of_op](*(known[::-1] if is_reversed else known)))

    return numbers


def _computing(ops: Sequence[TracedOp]) -> TracedOp:
    """Return the first of some ops that changes numbers, as adding 0 does not."""
    return next(itertools.chain((op for op in ops if not is_neutral(op)), ops))


def _reductions(ops: Sequence[TracedOp], only: Counter[str]) -> list[TracedOp]:
    """Return the sums and means among some ops, if only this program has ops of their kind."""
    return [op for op in ops if only[kind(op)] and kind(op) in ("Sum", "Mean")]


def _reduced(ops: Sequence[TracedOp], tf1_op: TracedOp) -> _Edit:
    by_name = {op.name: op for op in ops}

    def numbers(tensor: str, array: _Array) -> np.ndarray | None:
        taken, reduced = array(by_name[tensor].inputs[0]), array(tensor)
        if taken is None or reduced is None or not reduced.size:
            return None
        count = taken.size / reduced.size
        return np.asarray(reduced * count if kind(tf1_op) == "Sum" else reduced / count)

    words = _in_places(f"with TF1's {kind(tf1_op)} instead", len(ops))
    return _Edit([*by_name], numbers, False, words, tf1_op, ops[0], ((tf1_op,), (ops[0],)))


def _along_other_axes(state: TraceComparison, ops: Sequence[TracedOp]) -> Iterator[_Edit]:
    """Yield edits that compute a softmax along other axes than the last one, to which an op may have moved its axis."""
    taken = {op.name: op.inputs[0] for op in ops}
    before = state.port.trace.ops.get(op_of(ops[0].inputs[0]))
    rank = next((len(value.shape) for value in map(state.port.value, ops) if value is not None), 0)
    perm = before.constants.get("input 1") if before is not None and before.type == "Transpose" else None
    order = list(range(rank)) if perm is None or len(perm) != rank else [int(axis) for axis in perm]
    tf1_op = next((op for op in state.tf1.trace.ops.values() if kind(op) == kind(ops[0])), None)

    def numbers(axis: int, tensor: str, array: _Array) -> np.ndarray | None:
        given = array(taken[tensor])
        if given is None or given.ndim != rank:
            return None
        return log_softmax(given, axis) if kind(ops[0]) == "LogSoftmax" else softmax(given, axis)

    for axis in range(rank - 1):
        words = _in_places("along TF1's axis", len(ops))
        axes = {AXIS_OF_SOFTMAX: (str(order[axis]), str(order[-1]))}
        yield _Edit([*taken], functools.partial(numbers, axis), False, words, tf1_op, ops[0], ((), ()), axes)


def _exchanged(ops: Sequence[TracedOp], tf1_op: TracedOp | None) -> _Edit:
    by_name = {op.name: op for op in ops}

    def numbers(tensor: str, array: _Array) -> np.ndarray | None:
        op = by_name[tensor]
        *condition, one, other = map(array, op.inputs)
        if one is None or other is None or any(each is None for each in condition):
            return None
        return np.asarray(_FUNCTIONS[kind(op)](*condition, other, one))

    words, orders = _in_places("with the two exchanged", len(ops)), _ORDERS[kind(ops[0])]
    attributes = {ORDER_OF_OPERANDS: orders} if orders[0] else {EXCHANGED_BRANCHES: orders}
    return _Edit([*by_name], numbers, False, words, tf1_op, ops[0], ((), ()), attributes)


def _added(state: TraceComparison, tf1_ops: Sequence[TracedOp]) -> list[_Edit]:
    """Return edits that add an op of TF1 to the port, between ops as those between which TF1 has it first.

    Other places are where the programs begin to diverge.
    """
    found = dict[tuple[object, ...], tuple[int, _Edit]]()
    for tf1_op in tf1_ops:
        numbers_of = tuple((name, text) for name, text in tf1_op.attributes.items() if name in tf1_op.constants)
        for likeness, tensors, taker in _places(state, tf1_op):
            words = _in_places(f"with TF1's {kind(tf1_op)} here", len(tensors))
            numbers = functools.partial(_after, tf1_op)
            edit = _Edit(tensors, numbers, True, words, tf1_op, taker, ((tf1_op,), ()))
            key = kind(tf1_op), numbers_of, *tensors
            if key not in found or likeness > found[key][0]:
                found[key] = likeness, edit
    return [edit for _, edit in sorted(found.values(), key=lambda each: -each[0])]


def _after(tf1_op: TracedOp, tensor: str, array: _Array) -> np.ndarray | None:
    """Return what an op of TF1 makes of a tensor; None if that is not known."""
    taken = array(tensor)
    if taken is None:
        return None
    constants = [tf1_op.constants.get(f"input {number}") for number in range(len(tf1_op.inputs))]
    operands = [taken if each is None or each.size != 1 else each.reshape(()) for each in constants]
    return np.asarray(_FUNCTIONS[kind(tf1_op)](*operands))


def _places(state: TraceComparison, tf1_op: TracedOp) -> Iterator[tuple[int, list[str], TracedOp]]:
    """Yield the places where the port may lack an op of TF1.

    Each is how many kinds of the ops around are the same, the tensors of one line, and an op that takes one of them.
    """
    port_ops, tf1_ops = state.port.trace.ops, state.tf1.trace.ops
    before = {kind(tf1_ops[name]) for name in tf1_op.sources if name in tf1_ops}
    after = {kind(op) for op in tf1_ops.values() if tf1_op.name in op.sources}
    places: dict[tuple[int, str, str, str], dict[str, TracedOp]] = defaultdict(dict)
    for op in state.port.diverged:
        for tensor in _operands(op):
            producer = port_ops.get(op_of(tensor))
            if producer is not None:
                likeness = (kind(producer) in before) + (kind(op) in after)
                places[likeness, kind(producer), producer.line, op.line].setdefault(tensor, op)
    for (likeness, *_), takers in places.items():
        is_first = any(tensor in state.port.matched for tensor in takers)
        if (likeness or is_first) and len(takers) <= _MOST_PLACES:
            yield likeness, [*takers], next(iter(takers.values()))


def _alike(state: TraceComparison, port_op: TracedOp) -> TracedOp | None:
    """Return TF1's op next to where the port has an op too many: one of the kind of an op that takes it."""
    after = {kind(op) for op in state.port.diverged if port_op.name in op.sources}
    return next((op for op in state.tf1.diverged if kind(op) in after), state.first_ops()[0])
