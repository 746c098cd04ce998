"""The terms of a loss: `differences_of_terms` finds what differs where two programs add and average differently.

A loss is often a sum of means, and two programs may add before they average, or after. So each loss is multiplied out:
it is the sum of tensors times weights, where the weights say how the tensor is summed, averaged and multiplied. Terms
of equal value are left out, and what is left is the term that differs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.comparison.values import as_texts
from detrand.validation.diagnosis.causes.cause import Cause, is_close, of_values
from detrand.validation.diagnosis.matching.tensors import RTOLS
from detrand.validation.diagnosis.op_kinds import COPIES, kind
from detrand.validation.frameworks.traces import Trace, TracedOp
from detrand.validation.results import Fault

_MOST_TERMS = 64


class _Linear(NamedTuple):
    """A linear op on the way from a loss to a term: by what it multiplies, and over how many elements it averages."""

    op: TracedOp
    factor: float = 1.0
    averaged: float = 1.0


_Way = tuple[_Linear, ...]
# The name of an operand, or its numbers if it is constant; its weights, and the op that takes it.
_Operand = tuple[str | np.ndarray, np.ndarray, _Linear]


@dataclass(frozen=True)
class Term:
    """A tensor that a loss adds up, times weights.

    Attributes:
      tensor: the name of the tensor.
      value: what it adds to the loss.
      way: the ops from the loss to the one that computes the tensor.
      is_of_inputs: whether it is computed from inputs, labels or outputs, rather than from variables only.
    """

    tensor: str
    value: float
    way: _Way
    is_of_inputs: bool = False


class Loss:
    """A loss that is multiplied out.

    Attributes:
      terms: the terms; none if the loss is not known in full.
    """

    def __init__(self, trace: Trace, inputs: Sequence[np.ndarray]):
        self._trace = trace
        self._arrays = {name: np.asarray(array) for name, array in zip(trace.inputs, inputs, strict=False)}
        (output,) = trace.outputs.values()
        total = self._array(output)
        found = [] if total is None or total.size != 1 else [*self._expanded(output, np.ones(total.shape), ())]
        known = [term for term in found if not math.isnan(term.value)]
        unknown = [term for term in found if math.isnan(term.value)]
        rest = 0.0 if total is None or total.size != 1 else float(total.reshape(-1)[0]) - sum(t.value for t in known)
        if unknown:  # what is computed from variables only
            known.append(Term(unknown[0].tensor, rest, _common([], unknown)))
        elif abs(rest) > RTOLS[0] * max((abs(term.value) for term in known), default=0.0):
            known = []
        self.terms = [term for term in known if term.value] if len(found) <= _MOST_TERMS else []

    def _array(self, tensor: str) -> np.ndarray | None:
        value = self._trace.values.get(tensor)
        array = self._arrays.get(op_of(tensor)) if value is None else value.array
        return array if array is None or array.dtype.kind in "fiub" else None

    def _expanded(self, tensor: str, weights: np.ndarray, way: _Way) -> Iterator[Term]:
        """Yield the terms whose sum is a tensor times weights."""
        op = self._trace.ops[op_of(tensor)]
        operands = list(self._operands(op, weights)) if len(way) < _MOST_TERMS else []
        for name, of_operand, step in operands:
            if isinstance(name, np.ndarray):
                yield Term(tensor, float((name * of_operand).sum()), (*way, step))
            else:
                yield from self._expanded(name, of_operand, (*way, step))
        if not operands:
            array, way = self._array(tensor), (*way, _Linear(op))
            is_known = array is not None and array.shape == weights.shape
            value = float((weights * array).sum()) if is_known and array is not None else math.nan
            needed = all_upstream([op.name], lambda name: self._trace.ops[name].sources)
            yield Term(tensor, value, way, is_of_inputs=not needed.isdisjoint(self._trace.inputs))

    def _operands(self, op: TracedOp, weights: np.ndarray) -> Sequence[_Operand]:
        """Return the operands of an op that is linear in them; none if it is not, or if one is not known."""
        constants = [op.constants.get(f"input {position}") for position in range(len(op.inputs))]
        names: list[Any] = [
            name if constant is None else np.asarray(constant, np.float64)
            for name, constant in zip(op.inputs, constants, strict=True)
        ]
        what, arrays = kind(op), [self._array(name) if isinstance(name, str) else name for name in names]
        shapes = [weights.shape if array is None else array.shape for array in arrays]
        is_number = weights.size == 1 and what in ("AddV2", "Sub", "Mul", "Neg", *COPIES)
        if not names or (any(array is None for array in arrays) and not is_number):
            return ()
        if what in ("AddV2", "Sub"):
            signs = [-1.0 if what == "Sub" and position else 1.0 for position in range(len(names))]
            return [
                (name, _summed_to(sign * weights, shape), _Linear(op, sign))
                for name, shape, sign in zip(names, shapes, signs, strict=True)
            ]
        if (what == "Neg" or what in COPIES) and math.prod(shapes[0]) == weights.size:
            sign = -1.0 if what == "Neg" else 1.0
            return [(names[0], sign * weights.reshape(shapes[0]), _Linear(op, sign))]
        if what in ("Mul", "RealDiv") and len(names) == 2 and any(each is not None for each in constants):
            position = 0 if constants[1] is not None else 1
            if what == "RealDiv" and position == 1:
                return ()
            number = np.asarray(names[1 - position], np.float64) ** (1 if what == "Mul" else -1)
            factor = float(number.reshape(-1)[0]) if number.size == 1 else 1.0
            step = _Linear(op, factor)
            if what == "RealDiv" and is_close(1 / factor, self._summed(names[position])):  # as JAX takes a mean
                step = _Linear(op, 1.0, 1 / factor)
            return [(names[position], _summed_to(weights * number, shapes[position]), step)]
        if what in ("Sum", "Mean") and len(names) == 2 and constants[1] is not None:
            reduced = {int(axis) for axis in names[1].reshape(-1)}
            kept = [1 if axis in reduced else size for axis, size in enumerate(shapes[0])]
            if math.prod(kept) == weights.size:
                averaged = math.prod(shapes[0]) / max(weights.size, 1) if what == "Mean" else 1.0
                spread = np.broadcast_to(weights.reshape(kept), shapes[0]) / averaged
                return [(names[0], spread, _Linear(op, 1.0, averaged))]
        return ()

    def _summed(self, tensor: Any) -> float:
        """Return how many elements a tensor is the sum of; 1 if it is no sum."""
        op = self._trace.ops.get(op_of(tensor)) if isinstance(tensor, str) else None
        while op is not None and op.type in COPIES:
            op = self._trace.ops.get(op_of(op.inputs[0]))
        arrays = [None, None] if op is None or op.type != "Sum" else [self._array(op.inputs[0]), self._array(op.name)]
        return 1.0 if arrays[0] is None or arrays[1] is None else arrays[0].size / arrays[1].size


def _summed_to(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the weights of an operand that was broadcast."""
    extra = weights.ndim - len(shape)
    if extra < 0:
        return weights.reshape(shape) if weights.size == math.prod(shape) else np.full(shape, math.nan)
    weights = weights.sum(axis=tuple(range(extra)))
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 < weights.shape[axis])
    return weights.sum(axis=axes, keepdims=True) if axes else weights


class Difference(NamedTuple):
    """How terms of two losses differ.

    Attributes:
      cause: the cause.
      tf1: the op of TF1.
      port: the op of the port.
      is_multiple: whether one is always the same multiple of the other.
      is_penalty: whether both are computed from variables only.
    """

    cause: Cause
    tf1: TracedOp
    port: TracedOp
    is_multiple: bool
    is_penalty: bool


def differences_of_terms(tf1: Loss, port: Loss, others: tuple[Loss, Loss] | None) -> list[Difference]:
    """Return how terms of two losses differ; nothing if one lacks a term, or if all terms differ.

    The losses of other outputs show whether a term is always the same multiple of TF1's.
    """
    differing = _without_equal_sums(*_without_equal(tf1.terms, port.terms))
    in_one = [_with_penalties_in_one(*each) for each in zip(differing, (tf1.terms, port.terms), strict=True)]
    left, right = _without_equal(*in_one)
    if not left or not right or (len(left) == len(tf1.terms) and len(right) == len(port.terms)):
        return []
    wholes = [
        [*(term for term in loss.terms if term not in of), *in_one_term]
        for loss, of, in_one_term in zip((tf1, port), differing, in_one, strict=True)
    ]
    together = _difference(wholes, (left, right), others)
    if together is not None and (together.is_multiple or others is None):
        return [together]
    found = [_difference(wholes, each, others) for each in _multiples(left, right, others)] if others else []
    several = [each for each in found if each is not None]
    return several if several and len(several) == len(found) else [] if together is None else [together]


def _multiples(
    left: Sequence[Term], right: Sequence[Term], others: tuple[Loss, Loss]
) -> Sequence[tuple[Sequence[Term], Sequence[Term]]]:
    """Return pairs of terms that are always the same multiple of each other, those of one multiple together.

    There are none unless all terms have a counterpart.
    """
    found: list[tuple[float, list[Term], list[Term]]] = []
    rest = list(right)
    for term in left:
        for other in rest:
            ratio = other.value / term.value
            if math.isclose(ratio, _ratio(others, ([term], [other])), rel_tol=_OF_RATIO):
                same = next((each for each in found if is_close(each[0], ratio)), None)
                if same is None:
                    found.append((ratio, [term], [other]))
                else:
                    same[1].append(term)
                    same[2].append(other)
                rest.remove(other)
                break
        else:
            return []
    return [] if rest else [(of_tf1, of_port) for _, of_tf1, of_port in found]


def _difference(
    wholes: Sequence[Sequence[Term]], terms: tuple[Sequence[Term], Sequence[Term]], others: tuple[Loss, Loss] | None
) -> Difference | None:
    """Return how some of all terms of TF1 and of the port differ; None if other terms are on their whole way, too."""
    terms = _with_equal_beside(wholes, terms)
    ways = _common(wholes[0], terms[0]), _common(wholes[1], terms[1])
    if not ways[0] or not ways[1]:
        return None
    ends, is_penalty = (ways[0][-1].op, ways[1][-1].op), not any(term.is_of_inputs for of in terms for term in of)
    values = _total(terms[0]), _total(terms[1])
    ratio = values[1] / values[0] if values[0] else math.nan
    if others is None or not math.isclose(ratio, _ratio(others, terms), rel_tol=_OF_RATIO):
        of_tf1, of_port = as_texts(*values)
        confirmed = "all other terms agree"
        cause = of_values("a term of the loss", of_tf1, of_port, confirmed, fault=Fault.TERM, remedy="")
        return Difference(cause, *ends, False, is_penalty)
    confirmed = "for other outputs, too, this term is the same multiple of TF1's"
    factors = [math.prod(each.factor for each in way) for way in ways]
    averaged = [math.prod(each.averaged for each in way) for way in ways]
    if is_close(factors[1] / factors[0], ratio) and is_close(*averaged):
        of_tf1, of_port = (f"{factor:.6g}" for factor in factors)
        cause = of_values("factor of a term", of_tf1, of_port, confirmed)
        places = [_last(way, _multiplies).op for way in ways]
        return Difference(cause, places[0], places[1], True, is_penalty)
    if is_close(abs(factors[1] / factors[0]), 1) and is_close(averaged[0] / averaged[1], ratio):
        larger, smaller = ("the port", "TF1") if ratio > 1 else ("TF1", "the port")
        times = max(ratio, 1 / ratio)
        title = f"{larger} sums a term of the loss where {smaller} takes the mean: it is {times:.6g} times as large"
        remedy = "sum this term in the port" if larger == "TF1" else "take the mean of this term in the port"
        cause = Cause(title, confirmed, fault=Fault.SUM_OR_MEAN, remedy=remedy)
        places = [_last(way, _reduces).op for way in ways]
        return Difference(cause, places[0], places[1], True, is_penalty)
    title = f"the weight of a term differs: the port's term is {ratio:.6g} times TF1's"
    is_round = is_close(ratio, float(f"{ratio:.2g}"))
    remedy = f"multiply this term by {1 / ratio:.6g} in the port" if is_round else ""
    return Difference(Cause(title, confirmed, fault=Fault.TERM, remedy=remedy), *ends, True, is_penalty)


_OF_RATIO = 1e-4  # relative: how far a multiple may be from that for other outputs


def _ratio(losses: tuple[Loss, Loss], terms: tuple[Sequence[Term], Sequence[Term]]) -> float:
    """Return the ratio of the same terms of other losses."""
    names = [{term.tensor for term in each if term.is_of_inputs} for each in terms]
    tf1, port = (
        sum(term.value for term in loss.terms if term.tensor in of)
        + sum(term.value for term in of_loss if not term.is_of_inputs)  # which other outputs do not change
        for loss, of, of_loss in zip(losses, names, terms, strict=True)
    )
    return port / tf1 if tf1 else math.nan


def _without_equal(tf1: Sequence[Term], port: Sequence[Term]) -> tuple[list[Term], list[Term]]:
    """Return the terms of both programs that have no counterpart of the same value."""
    left, right = list(tf1), list(port)
    for term in tf1:
        same = (each for each in right if math.isclose(each.value, term.value, rel_tol=RTOLS[0]))
        if (other := next(same, None)) is not None:
            left.remove(term)
            right.remove(other)
    return left, right


def _without_equal_sums(tf1: list[Term], port: list[Term]) -> tuple[list[Term], list[Term]]:
    """Return terms without those that depend on inputs, if these add up to the same in both programs.

    A cross entropy, for example, is the sum of different terms where it is written in a different way.
    """
    sums = (_total([term for term in terms if term.is_of_inputs]) for terms in (tf1, port))
    if not math.isclose(*sums, rel_tol=RTOLS[0]):
        return tf1, port
    left, right = ([term for term in terms if not term.is_of_inputs] for terms in (tf1, port))
    return left, right


def _total(terms: Sequence[Term]) -> float:
    return sum(term.value for term in terms)


def _with_equal_beside(
    wholes: Sequence[Sequence[Term]], terms: tuple[Sequence[Term], Sequence[Term]]
) -> tuple[Sequence[Term], Sequence[Term]]:
    """Return the terms of both programs, extended by the other terms that the same op adds, if those are equal.

    An example is the constant in a KL divergence.
    """
    of_ops = []
    for whole, of in zip(wholes, terms, strict=True):
        length = len(_shared(of))
        of_ops.append([term for term in whole if len(_shared([term, *of])) == length])
    beside = [[term for term in each if term not in of] for each, of in zip(of_ops, terms, strict=True)]
    is_part = all(len(each) < len(whole) for each, whole in zip(of_ops, wholes, strict=True))
    return (of_ops[0], of_ops[1]) if is_part and _without_equal(*beside) == ([], []) else terms


def _with_penalties_in_one(terms: Sequence[Term], all_terms: Sequence[Term]) -> list[Term]:
    """Return terms with all penalties as one term: one program may add them up in advance.

    A penalty depends on variables only.
    """
    penalties = [term for term in terms if not term.is_of_inputs]
    if len(penalties) < 2:
        return list(terms)
    others = [term for term in all_terms if term not in penalties]
    way = _common(others, penalties) or penalties[0].way  # if they are added to the others one by one
    whole = Term(penalties[0].tensor, sum(term.value for term in penalties), way)
    return [*(term for term in terms if term.is_of_inputs), whole]


def _common(terms: Sequence[Term], rest: Sequence[Term]) -> _Way:
    """Return the way from a loss to all of the rest of its terms; nothing if others are on all of it, too."""
    shared = [*_shared(rest)]
    if len(rest) > 1 and shared:  # which takes them with different signs
        shared[-1] = _Linear(shared[-1].op)
    others = {step.op.name for term in terms if term not in rest for step in term.way}
    return tuple(shared) if any(step.op.name not in others for step in shared) else ()


def _shared(terms: Sequence[Term]) -> _Way:
    """Return the way from a loss to where the ways to terms part."""
    pairs = zip(*(term.way for term in terms), strict=False)
    return tuple(steps[0] for steps in itertools.takewhile(_are_one_op, pairs))


def _are_one_op(steps: Sequence[_Linear]) -> bool:
    return all(step.op == steps[0].op for step in steps)


def _last(way: _Way, is_wanted: Callable[[_Linear], bool]) -> _Linear:
    return next((step for step in reversed(way) if is_wanted(step)), way[-1])


def _multiplies(step: _Linear) -> bool:
    return step.factor != 1


def _reduces(step: _Linear) -> bool:
    return kind(step.op) in ("Sum", "Mean")
