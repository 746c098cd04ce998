"""The numbers of a loss: `numbers_of_loss` finds those any one of which makes the port's loss TF1's.

A rewritten formula has few tensors in common with TF1's, so the ops at which the two diverge show little. But where
both programs divide the same sum, only the divisors differ. And a loss is an equation for each of its constants, and
for a factor of each of its terms. A solution counts if it is a number of TF1's loss, or has few digits, and if the
losses of other outputs agree with it, too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from detrand.checkpoints.upstream import op_of
from detrand.validation.diagnosis.causes.cause import CONSTANTS, differs, use_value
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.tensors import RTOLS
from detrand.validation.diagnosis.op_kinds import DIVISIONS, kind
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.frameworks.traces import Edge, Substitution, Trace, TracedOp, TracedPort
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.variables.tf1_view import Shapes

_MOST_UNKNOWNS, _MOST_KNOWN, _MOST_STEPS = 16, 6, 8  # each step of the secant method runs the port's loss
_ROUNDED, _EXACT = 0.2, 1e-5  # how near a loss must be, and how exact a number, that is known by its digits only
_TERMS, _COUNTS = {"Mean", "Sum", "L2Loss"}, {"Sum", "Prod", "Size"}


@dataclass(frozen=True)
class Number:
    """A number of a port's loss, and the value with which the loss is TF1's.

    Attributes:
      title: the difference in words.
      port: the op that takes the number, or computes the term.
      needed: the value with which the loss is TF1's.
      value: the port's value.
      remedy: what to change in the port.
      tf1: TF1's op of the same type that takes the needed value; None if there is none.
    """

    title: str
    port: TracedOp
    needed: str
    value: str
    remedy: str
    tf1: TracedOp | None = None


@dataclass(frozen=True)
class _Unknown:
    """A number of the port's loss: a constant, or the factor 1 of a term."""

    op: TracedOp
    value: float
    edges: Callable[[float, Trace], Mapping[Edge, np.ndarray]]  # given another number, and what the port computes
    name: str = ""  # of the input that is the constant; empty for a term


def numbers_of_loss(
    migration: Migration,
    config: RunConfig,
    tf1: Trace,
    tf1_shapes: Shapes,
    initial: Mapping[str, np.ndarray] | None,
    *,
    terms: bool,
    other: tuple[Migration, float] | None,
) -> list[Number]:
    """Return the numbers in the port's loss that explain the difference.

    With another value for any one of them, the loss is TF1's. They are the divisor of a sum that TF1 divides, too; if
    there is none, its constants; if it is none of these, and terms are asked for, the factors of its terms. The loss of
    other outputs, and what it is in TF1, show which of them are right by chance; without them, fewer digits count.
    """
    port = traced_port(migration, config, tf1_shapes, initial)
    state = TraceComparison(tf1, port.run(), RTOLS[0])
    ((path, name),) = port.outputs.items()
    target = float(tf1.values[tf1.outputs[path]].elements[0])
    difference = functools.partial(_difference, port, state.port.trace, target)
    is_right = _no_chance(other, config, tf1_shapes, initial)

    start = float(state.port.trace.values[name].elements[0]) - target
    of_tf1 = [(op, *each) for op in state.tf1.diverged for each in _scalars(op, tf1)]
    known = list(dict.fromkeys(number for *_, number in of_tf1))[:_MOST_KNOWN]

    def solved(unknowns: Iterable[_Unknown]) -> Iterator[Number]:
        for unknown in itertools.islice(unknowns, _MOST_UNKNOWNS):
            equation = _Equation(functools.partial(difference, unknown), RTOLS[0] * abs(target))
            # Any loss has some factor for each term, so that of a term is a rounder number than a constant.
            digits = 1 if other is None else 3 if unknown.name else 2
            needed = equation.solution(unknown.value, start, known if unknown.name else [], digits)
            if needed is not None and (needed or unknown.name) and is_right(unknown, needed):  # a term is not 0 times
                wanted = unknown.op.type, unknown.name, needed
                same = (op for op, at, number in of_tf1 if (op.type, at, number) == wanted)
                yield _described(unknown, needed, next(same, None), state.port.trace)

    for divisor, of_same_sum in _divisors(state):
        unknown, needed = divisor.unknown, of_same_sum.number
        if abs(difference(unknown, needed)) <= RTOLS[0] * abs(target) and is_right(unknown, needed):
            return [_of_divisors(of_same_sum, divisor)]
    return [*solved(_constants(state.port.diverged, state.port.trace))] or [
        *solved(_terms(port, state) if terms else ())
    ]


def _difference(port: TracedPort, trace: Trace, target: float, unknown: _Unknown, number: float) -> float:
    """Return how much a port's loss with another number exceeds a target; NaN if it cannot be computed so."""
    (name,) = port.outputs.values()
    try:
        then = port.run(Substitution(unknown.edges(number, trace))).values.get(name)
    except (ValueError, TypeError):  # values that do not fit
        return math.nan
    return math.nan if then is None else float(then.elements[0]) - target


def _no_chance(
    other: tuple[Migration, float] | None,
    config: RunConfig,
    tf1_shapes: Shapes,
    initial: Mapping[str, np.ndarray] | None,
) -> Callable[[_Unknown, float], bool]:
    """Return a function that returns whether another number gives TF1's loss of other outputs, too."""
    if other is None:
        return lambda unknown, number: True
    migration, target = other
    port = traced_port(migration, config, tf1_shapes, initial)
    trace, most = port.run(), RTOLS[0] * abs(target)
    return lambda unknown, number: abs(_difference(port, trace, target, unknown, number)) <= most


class _Divisor(NamedTuple):
    """The number by which an op divides a sum: it may take both, or the mean of the elements."""

    op: TracedOp
    number: float
    total: float

    @property
    def unknown(self) -> _Unknown:
        """The divisor as a number of the port's loss."""
        takes_mean = self.op.type == "Mean"

        def edges(number: float, trace: Trace) -> dict[Edge, np.ndarray]:
            if not takes_mean:
                return {(self.op.name, 1): np.asarray(number)}
            taken = trace.values[self.op.inputs[0]].array
            return {} if taken is None else {(self.op.name, 0): taken * (taken.size / number)}

        return _Unknown(self.op, self.number, edges)


def _divisors(state: TraceComparison) -> Iterator[tuple[_Divisor, _Divisor]]:
    """Yield the divisors of the port, each with a different one by which TF1 divides the same sum."""
    of_tf1, of_port = ([*_divisors_of(each.diverged, each.trace)] for each in (state.tf1, state.port))
    for divisor, other in itertools.product(of_port, of_tf1):
        is_same_sum = math.isclose(divisor.total, other.total, rel_tol=RTOLS[0])
        if is_same_sum and not math.isclose(divisor.number, other.number, rel_tol=RTOLS[0]):
            yield divisor, other


def _divisors_of(ops: Iterable[TracedOp], trace: Trace) -> Iterator[_Divisor]:
    for op in ops:
        result, taken = (trace.values.get(name) for name in (op.name, next(iter(op.inputs), "")))
        is_mean = op.type == "Mean"
        if not is_mean and (kind(op) not in DIVISIONS or taken is None or taken.size != 1):
            continue
        if result is None or result.size != 1 or not result.elements.all() or taken is None or taken.array is None:
            continue
        total = float(taken.array.sum())
        yield _Divisor(op, float(taken.size) if is_mean else total / float(result.elements[0]), total)


def _of_divisors(tf1: _Divisor, port: _Divisor) -> Number:
    needed, value = (f"{each.number:.6g}" for each in (tf1, port))
    is_mean = tf1.op.type == "Mean"
    remedy = f"take the mean of {needed} elements" if is_mean else f"divide by the counterpart of {tf1.op.inputs[1]}"
    title = differs("divisor of the same sum", needed, value)
    return Number(title, port.op, needed, value, f"{remedy} in the port", tf1.op)


def _scalars(op: TracedOp, trace: Trace) -> Iterator[tuple[str, float]]:
    """Yield the inputs of an op that are a constant of one number, with their values.

    A number that ops compute from constants, such as how many elements a mean is over, is none that somebody wrote.
    """
    for name, array in op.constants.items():
        if array.size == 1 and array.dtype.kind == "f" and name.startswith("input "):
            given = trace.ops.get(op_of(op.inputs[int(name.split()[1])]))
            before = [] if given is None else [given, *trace.sources_and_between(given)]
            if _COUNTS.isdisjoint(map(kind, before)):
                yield name, float(f"{array.reshape(-1)[0]:.7g}")


def _constants(ops: Iterable[TracedOp], trace: Trace) -> Iterator[_Unknown]:
    """Yield the constants of ops: one for all ops that take it, and those that take 1 minus it; then each by itself."""
    places: dict[float, list[tuple[TracedOp, str]]] = defaultdict(list)
    for op in ops:
        for name, value in _scalars(op, trace):
            places[value].append((op, name))
    seen = set[float]()
    for value, alike in places.items():
        other = float(f"{1 - value:.7g}")
        flipped = places.get(other, []) if other != value else []
        if other not in seen:
            yield _constant(value, alike, flipped)
        seen.add(value)
    for value, alike in places.items():
        for place in alike if len(alike) > 1 or float(f"{1 - value:.7g}") in places else ():
            yield _constant(value, [place], [])


def _constant(value: float, alike: Sequence[tuple[TracedOp, str]], flipped: Sequence[tuple[TracedOp, str]]) -> _Unknown:
    def edges(number: float, trace: Trace) -> dict[Edge, np.ndarray]:
        of_value = [(*place, number) for place in alike]
        of_rest = [(*place, 1 - number) for place in flipped]
        return {(op.name, int(name.split()[1])): np.asarray(given) for op, name, given in of_value + of_rest}

    op, name = alike[0]
    return _Unknown(op, value, edges, name)


def _terms(port: TracedPort, state: TraceComparison) -> Iterator[_Unknown]:
    """Yield the terms of the loss, which have the factor 1."""
    trace = state.port.trace
    diverged = {op.name for op in state.port.diverged}
    near = {source for op in state.port.diverged for source in op.sources}
    for name in trace.ops:
        op, value = trace.ops[name], trace.values.get(name)
        taken = port.edges_of(name)
        if op.type in _TERMS and name in diverged | near and value is not None and value.array is not None and taken:

            def edges(
                factor: float, trace: Trace, name: str = name, taken: Sequence[Edge] = taken
            ) -> dict[Edge, np.ndarray]:
                return dict.fromkeys(taken, np.asarray(trace.values[name].array) * factor)

            yield _Unknown(op, 1.0, edges)


def _described(unknown: _Unknown, needed: float, tf1: TracedOp | None, trace: Trace) -> Number:
    """Return a number with its title."""
    op, given, found = unknown.op, f"{unknown.value:.6g}", f"{needed:.6g}"
    if unknown.name and tf1 is not None:
        return Number(differs(CONSTANTS.get(kind(op), op.type), found, given), op, found, given, use_value(found), tf1)
    what = CONSTANTS.get(kind(op), f"number in {op.type}")
    if unknown.name:
        return _in_place(what, f"{found} in place of {given}", op, found, given)
    shape = next((value.shape for name in op.inputs if (value := trace.values.get(name)) is not None), ())
    for size in sorted({each for each in (*shape, math.prod(shape)) if each > 1}):
        over = "" if size == math.prod(shape) else f" over an axis of size {size}"
        for of_port, of_tf1, times in (("mean", "sum", size), ("sum", "mean", 1 / size)):
            if op.type.lower() == of_port and math.isclose(needed, times, rel_tol=_EXACT):
                words = f"a {of_tf1}{over} in place of a {of_port}"
                return _in_place("reduction of a term", words, op, f"a {of_tf1}", f"a {of_port}")
    return _in_place("factor of a term", f"{found} in place of 1", op, found, given)


def _in_place(what: str, words: str, op: TracedOp, needed: str, value: str) -> Number:
    return Number(f"{what} differs: with {words}, the port's loss is TF1's", op, needed, value, use_value(words))


@dataclass
class _Equation:
    """An equation for one number, whose two sides agree where their difference is smaller than ``atol``."""

    difference: Callable[[float], float]
    atol: float

    def solution(self, value: float, start: float, known: Sequence[float], digits: int = 3) -> float | None:
        """Return the solution that is known from elsewhere, or has at most so many digits; None if there is none.

        The secant method begins with a value and the difference there, and needs one step if that is linear.
        """
        for number in known:
            if number != value and abs(self.difference(number)) <= self.atol:
                return number
        (before, of_before), now, of_now = (value, start), value + 0.1 * (abs(value) or 1.0), math.nan
        for _ in range(_MOST_STEPS):
            of_now = self.difference(now)
            if not math.isfinite(of_now) or of_now == of_before:
                return None
            if abs(of_now) <= self.atol:
                break
            before, of_before, now = now, of_now, now - of_now * (now - before) / (of_now - of_before)
        else:
            return None
        width = abs(self.atol * (now - before) / (of_now - of_before))  # of the solutions that rounding allows
        near = [each for each in _candidates(known) if abs(each - now) <= width]
        rounded = _of_few_digits(now, value, _ROUNDED * width, digits)
        near += [each for each in rounded if abs(each - now) <= _ROUNDED * width]
        return next((each for each in near if abs(self.difference(each)) <= self.atol), None)


def _candidates(known: Sequence[float]) -> Iterator[float]:
    """Yield numbers with their negatives and reciprocals, which a rewritten formula may have in their place."""
    for number in known:
        yield from (number, -number)
        if number:
            yield from (1 / number, -1 / number)


def _of_few_digits(now: float, value: float, width: float, digits: int) -> Iterator[float]:
    """Yield the numbers of few digits that a solution may be, if it is exact enough to distinguish them from others."""
    if width <= _EXACT * abs(now):
        yield float(f"{now:.{digits}g}")
        if 0 < abs(now) < 1 and (digits > 1 or abs(round(1 / now)) < 10):
            yield 1 / round(1 / now)
    elif width <= _EXACT * abs(value):
        yield 0.0
