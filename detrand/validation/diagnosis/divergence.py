"""A place where two programs diverge: the ops after which they no longer compute the same numbers, and their lines.

`one_for_each_fault` joins divergences that are one fault, such as an op that the port computes in another place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.checkpoints.upstream import op_of
from detrand.comparison.values import LeafComparison
from detrand.validation.diagnosis.layer_order import LayerOrder
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.op_kinds import ACTIVATIONS, MOVES, NORMALIZATION, PLUMBING, kind, kind_of, only_in
from detrand.validation.frameworks.traces import TracedOp, Value
from detrand.validation.results import AuditedHyperparameter

_MOST_SHOWN = 4
_OF_FACTOR = 1e-5  # relative: how far a multiple of a tensor may be from one
_NORMALIZED = "normalization"  # stands for the parts of one
_NAMED = {*ACTIVATIONS, _NORMALIZED}  # kinds of ops, or what they compute together, that people name


def confirmation(given: str, *, rest_agrees: bool, outputs_agree: bool = False) -> str:
    """Return in words what a port shows that is given something; empty if nothing is."""
    agrees = "the outputs agree" if outputs_agree else "what follows agrees up to the next difference"
    agrees = "the rest agrees" if rest_agrees else agrees
    return f"{given}, {agrees}" if given else ""


class Masking(NamedTuple):
    """How a program masks the inputs of Softmax: the op that makes the mask, and which elements it masks.

    Without a mask, the op is the one that computes the inputs of Softmax. ``softmax`` is the name of the Softmax.
    """

    op: TracedOp
    elements: np.ndarray
    softmax: str


@dataclass(frozen=True)
class Divergence:
    """A place where two programs diverge; ``str()`` describes it.

    Attributes:
      tf1: TF1's first op that has no counterpart; None if each of its ops has one.
      port: the port's first op that has no counterpart; None if each of its ops has one.
      after: the ops before it that agree, as TF1 names them, or as the port does if only the port goes on.
      leaf: how the values of the two ops compare; None if their shapes differ.
      attributes: the attributes and constant inputs of the two ops that differ, with TF1's value and the port's.
      values: the values of TF1's op and of the port's op.
      sources: the values that TF1's op is computed from, and those that the port's op is computed from.
      regions: TF1's ops and the port's from there to where the rest agrees, once the port has TF1's value; all that
        have no counterpart, if no substitute makes the rest agree.
      variables: the TF1 names of the variables that TF1's region, and the port's, takes.
      drawing: the first op of TF1's region, and of the port's, that takes random numbers; if only one region has such
        an op, the op of the other program that takes the same numbers; None if there is none.
      masking: how TF1 and the port mask the inputs of Softmax, if they mask different elements.
      taken: what TF1's op takes, and what the port's op takes, by TF1's names; empty where it has none.
      dtypes: the dtypes of the two ops, as the ops have them, if they differ.
      uses: the positions of the migration's inputs from which TF1's region, and the port's, is computed.
      inputs: the names of the inputs, by position, as far as TF1's function has them.
      given: the positions of the inputs from which the two ops are computed.
      operands: the positions of the inputs from which each operand of the two ops is computed.
      confirmed: what makes more agree, in words; empty if nothing was found that does.
      rest_agrees: whether no other difference is left then.
      attribute: the attribute or constant input that makes the difference, if it was substituted.
      count: at how many ops of the port it was.
      hyperparameter: the audited hyperparameter that makes the difference, if that was substituted.
      constants: TF1's array and the port's at the end of the regions, if the port's is a constant or the attribute
        is a constant input.
      producer: where the port lacks the ops of TF1's region, its op after which they belong; or its op whose parts it
        takes in a different order.
      term_of: the program whose only output is the other's plus a term, ``"TF1"`` or ``"the port"``; empty if neither.
      is_order: whether the programs compute the same in a different order, and differ twice because of it.
      iterations: how often a loop in Python runs in TF1 and in the port, if that is what differs.
      is_swap: whether tensors are taken in each other's places.
      takes_other: whether the port's op takes a tensor in place of the one that TF1's op, of a different type, takes.
      layer_order: the layers that the programs compute in different orders, if that is what differs.
      is_edit: whether an edit of the port's ops makes the outputs agree.
    """

    tf1: TracedOp | None
    port: TracedOp | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    attributes: Mapping[str, tuple[str, str]]
    values: tuple[Value | None, Value | None] = field(repr=False)
    sources: tuple[list[Value], list[Value]] = field(repr=False)
    regions: tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]] = field(default=((), ()), repr=False)
    variables: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    drawing: tuple[TracedOp | None, TracedOp | None] = (None, None)
    masking: tuple[Masking, Masking] | None = field(default=None, repr=False)
    taken: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    dtypes: tuple[str, str] = ("", "")
    uses: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    inputs: tuple[str, ...] = ()
    given: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    operands: tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]] = ((), ())
    confirmed: str = ""
    rest_agrees: bool = False
    attribute: str = ""
    count: int = 1
    hyperparameter: AuditedHyperparameter | None = None
    constants: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    producer: TracedOp | None = None
    term_of: str = ""
    is_order: bool = False
    iterations: tuple[int, int] | None = None
    is_swap: bool = False
    takes_other: bool = False
    layer_order: LayerOrder | None = None
    is_edit: bool = False

    @property
    def op(self) -> str:
        """The op to look at, with its line: TF1's, or the port's if only the port goes on."""
        return str(self.tf1 or self.port)

    @property
    def is_exact(self) -> bool:
        """Whether it is confirmed by a number, or by the one tensor that the programs make of one tensor.

        A value that is made of several tensors hides which of them is which.
        """
        if not self.confirmed or self.term_of or self.is_order:
            return False
        if self.attribute and not self.is_edit:
            return True
        regions = self.regions if any(self.regions) or self.port is None else ((self.port,),)
        return all(len(_taken_from_outside(region)) <= 1 for region in regions)

    @property
    def types(self) -> tuple[str, str]:
        """The types of TF1's op and of the port's; empty where there is none."""
        return "" if self.tf1 is None else self.tf1.type, "" if self.port is None else self.port.type

    @property
    def factors(self) -> tuple[str | None, str | None]:
        """The numbers by which TF1's op and the port's multiply or divide the one tensor that they take, as text.

        None where an op does something else. Programs may compute such a number from no data, as a weight of a loss
        that depends on the step, or a count of words.
        """
        tf1, port = map(_factor, self.types, self.values, self.sources, self.operands)
        return tf1, port

    def __str__(self) -> str:
        if self.after:
            lines = [f"First divergence. Identical up to {and_more(self.after, _MOST_SHOWN)}, then:"]
        else:
            lines = ["First divergence, at a variable or an op on inputs and variables only:"]
        lines += [f"  TF1 computes       {self.tf1 or 'nothing beyond what the port computes'}"]
        lines += [f"  the port computes  {self.port or 'nothing that TF1 does not compute'}"]
        lines += [f"  {name} differs: {tf1} (TF1), {port} (port)" for name, (tf1, port) in self.attributes.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            tf1_value, _ = self.values
            kept = "elements" if tf1_value is None or tf1_value.is_whole else "recorded elements"
            lines.append(f"  {self.leaf.mismatched:,} of {self.leaf.size:,} {kept} differ")
            lines.append("  " + self.leaf.greatest_absolute.in_words("max |difference|"))
        lines += [f"  confirmed: {self.confirmed}"] if self.confirmed else []
        return "\n".join(lines)


def _factor(
    op_type: str, value: Value | None, sources: Sequence[Value], operands: Sequence[frozenset[int]]
) -> str | None:
    """Return the number by which an op multiplies or divides the one tensor that it takes; None if it does not."""
    divides = kind_of(op_type) == "RealDiv" and len(operands) == 2 and operands[0] > operands[1]
    if not (op_type == "Mul" or divides) or value is None or len(sources) != 1:
        return None
    product, given = value.array, sources[0].array
    if product is None or given is None or product.size != given.size or not given.any():
        return None
    product, given = (array.reshape(-1).astype(np.float64) for array in (product, given))
    greatest = np.abs(given).argmax()
    factor = float(product[greatest] / given[greatest])
    if not np.allclose(product, factor * given, rtol=_OF_FACTOR, atol=0):
        return None
    return f"{factor:.6g}" if not divides else f"{1 / factor:.6g}" if factor else None


def _taken_from_outside(region: Sequence[TracedOp]) -> set[str]:
    """Return the tensors that a region of ops takes, besides constants."""
    inside = {op.name for op in region}
    taken = ((op, number, tensor) for op in region for number, tensor in enumerate(op.inputs))
    return {
        tensor for op, number, tensor in taken if f"input {number}" not in op.constants and op_of(tensor) not in inside
    }


def one_for_each_fault(divergences: Sequence[Divergence], order: LayerOrder | None) -> list[Divergence]:
    """Return divergences, those of one fault joined.

    Two divergences are one fault if the port computes something in a different place or order than TF1, if two tensors
    are swapped, if the same ops of one program make both, if both are parts of one mask, if one is the padding for the
    dilation that the other one is, or if the same lines, which run several times, differ in the same way.
    """
    found: list[Divergence] = []
    for each in _in_layer_order(divergences, order):
        for number, other in enumerate(found):
            joined = _in_another_place(other, each)
            if joined is None and number == len(found) - 1:
                joined = _in_another_order(other, each)
            if joined is None and _is_swap(other, each):
                joined = replace(other, is_swap=True)
            if joined is None and (_has_order_of(other, each) or _is_of_same_lines(other, each)):
                joined = replace(other, count=other.count + each.count)
            if joined is None and (_is_again(other, each) or _is_of_mask(other, each)):
                joined = other
            if joined is None and _is_padding_for(other, each):
                joined = each
            if joined is not None:
                found[number] = replace(joined, confirmed=each.confirmed, rest_agrees=each.rest_agrees)
                break
        else:
            found.append(each)
    return _without_order_beside_draws(found)


def _in_layer_order(divergences: Sequence[Divergence], order: LayerOrder | None) -> list[Divergence]:
    """Return divergences, with those that come from a different order of layers joined into one."""
    if order is None:
        return [*divergences]
    of_order = [each for each in divergences if each.confirmed and not each.attribute and _is_among(each, order)]
    if not of_order:
        return [*divergences]
    tf1, port = (tuple({op.name: op for each in of_order for op in each.regions[side]}.values()) for side in range(2))
    first, last = of_order[0], of_order[-1]
    joined = replace(
        first,
        tf1=order.places[0],
        port=order.places[1],
        leaf=None,
        values=(None, None),
        regions=(tf1, port),
        confirmed=last.confirmed,
        rest_agrees=last.rest_agrees,
        count=order.moved,
        layer_order=order,
    )
    others = {id(each) for each in of_order[1:]}
    return [joined if each is first else each for each in divergences if id(each) not in others]


def _is_among(divergence: Divergence, order: LayerOrder) -> bool:
    """Return whether an op of a divergence is on the way between layers in different orders."""
    ops = (*divergence.regions[0], divergence.tf1), (*divergence.regions[1], divergence.port)
    pairs = zip(ops, order.ops, strict=True)
    return any(op is not None and op.name in names for of_program, names in pairs for op in of_program)


def _without_order_beside_draws(divergences: Sequence[Divergence]) -> list[Divergence]:
    """Return divergences; if a dropout is in a different place, without the ops that are so because of it."""
    kept = [each for each in divergences if not each.is_order or all(each.drawing)]
    if len(kept) == len(divergences) or not any(each.is_order for each in kept):
        return [*divergences]
    last = divergences[-1]
    return [*kept[:-1], replace(kept[-1], confirmed=last.confirmed, rest_agrees=last.rest_agrees)]


def _in_another_place(first: Divergence, second: Divergence) -> Divergence | None:
    """Return two divergences as one, if TF1 and the port have a draw, an activation or a normalization in one each.

    Besides an activation or a normalization, one of the two regions may have ops by which the programs compute the same
    differently, such as those of a dropout; the other one may not.
    """
    if not first.confirmed or first.attribute or second.attribute:
        return None
    drawing = (first.drawing[0] or second.drawing[0], first.drawing[1] or second.drawing[1])
    if all(drawing) and not all(first.drawing) and not all(second.drawing):
        return replace(first, drawing=drawing, is_order=True)
    own = _own_kinds(first), _own_kinds(second)
    named = [[{*kinds} & _NAMED for kinds in each] for each in own]
    is_in_turn = any(named[0]) and named[0] == named[1][::-1] and not all(named[0])
    if not is_in_turn or not any(all({*kinds} <= _NAMED for kinds in each) for each in own):
        return None
    kinds = named[0][0] or named[0][1]
    places = (first, second) if named[0][0] else (second, first)
    tf1, port = (
        tuple(op for op in each.regions[side] if _named(kind(op)) in kinds) for side, each in enumerate(places)
    )
    if not tf1 or not port:  # in the body of a loop
        return None
    return replace(first, tf1=tf1[0], port=port[0], leaf=None, values=(None, None), regions=(tf1, port), is_order=True)


def _named(op_kind: str) -> str:
    return _NORMALIZED if op_kind in NORMALIZATION else op_kind


def _own_kinds(divergence: Divergence) -> list[Counter[str]]:
    """Return how many ops of each kind only TF1's region has, and the port's, with those of a normalization as one."""
    found = []
    for only in only_in(*divergence.regions):
        is_normalized = not {"Rsqrt", "FusedBatchNormV3"}.isdisjoint(only)
        kinds = Counter({each: count for each, count in only.items() if each not in PLUMBING})
        found.append(Counter({_named(each): kinds[each] for each in kinds}) if is_normalized else kinds)
    return found


def _numbers(region: Sequence[TracedOp]) -> tuple[str, ...]:
    """Return the numbers that the ops of a region take."""
    constants = (array for op in region for array in op.constants.values())
    return tuple(sorted(f"{array.flat[0]:.6g}" for array in constants if array.size == 1 and array.dtype.kind == "f"))


def _in_another_order(first: Divergence, second: Divergence) -> Divergence | None:
    """Join two divergences if TF1 computes in the first what the port computes in the second, and the reverse.

    They are joined as well if this holds for most of the ops; the remaining ops are the difference then.
    """
    if not first.confirmed or first.attribute or second.attribute:
        return None
    only = only_in(*first.regions), only_in(*second.regions)
    regions = (first.regions[0] + second.regions[0], first.regions[1] + second.regions[1])
    if any(only[0]) and only[0] == only[1][::-1]:
        if len({_numbers(region) for region in regions}) > 1:
            return None
        return replace(first, regions=regions, is_order=True)
    own = _own_kinds(first), _own_kinds(second)
    tf1, port = (one + other for one, other in zip(*own, strict=True))
    if (tf1 & port).total() <= (tf1 - port).total() + (port - tf1).total():
        return None
    places = (first, second) if own[0][0].total() > own[0][1].total() else (second, first)
    tf1_op, port_op = (each.regions[side][0] for side, each in enumerate(places))
    return replace(first, tf1=tf1_op, port=port_op, leaf=None, values=(None, None), regions=regions)


def _is_again(first: Divergence, second: Divergence) -> bool:
    """Return whether the ops that only one program has in a divergence are among those of an earlier one.

    Two tensors may also be swapped in each iteration of a loop in Python.
    """
    if second.is_swap and (first.is_swap or first.types == second.types):
        return _lines(first) == _lines(second)
    if not first.confirmed or not second.confirmed or first.attribute or second.attribute:
        return False
    (tf1, port), (tf1_before, port_before) = _own_ops(second), _own_ops(first)
    return bool(tf1 | port) and tf1 <= tf1_before and port <= port_before


def _is_padding_for(first: Divergence, second: Divergence) -> bool:
    """Return whether one divergence is the padding, by an op of its own, for the dilation that differs in another one.

    The same layer pads more if its dilation is greater, as a causal convolution does.
    """
    pads = [op.constants.get("input 1") for op in (first.tf1, first.port) if op is not None and kind(op) == "Pad"]
    rates = [
        max(map(int, re.findall(r"\d+", op.attributes.get("attribute dilations", "0"))))
        for op in (second.tf1, second.port)
        if op is not None
    ]
    if len(pads) < 2 or len(rates) < 2 or rates[0] == rates[1]:
        return False
    return pads[0] is not None and pads[1] is not None and np.array_equal(pads[0] * rates[1], pads[1] * rates[0])


def _is_of_mask(first: Divergence, second: Divergence) -> bool:
    """Return whether a divergence is at the Softmax whose mask an earlier one compares as a whole."""
    softmaxes = {each.softmax for each in first.masking or ()}
    return any(op is not None and op.name in softmaxes for op in (second.tf1, second.port))


def _has_order_of(first: Divergence, second: Divergence) -> bool:
    """Return whether the same line of each program takes its inputs in a different order, as in a loop in Python."""
    are_orders = all(
        each.confirmed
        and each.types[0] == each.types[1]
        and each.taken[0] != each.taken[1]
        and sorted(each.taken[0]) == sorted(each.taken[1])
        for each in (first, second)
    )
    return are_orders and _lines(first) == _lines(second)


def _is_of_same_lines(first: Divergence, second: Divergence) -> bool:
    """Return whether the same line of each program differs in the same way, as in a function that is called twice."""
    for each in (first, second):
        is_special = each.hyperparameter or each.layer_order or each.iterations or each.masking or each.is_order
        if not each.confirmed or is_special or any(each.drawing):
            return False
    if first.types != second.types or not all(first.types) or first.attribute != second.attribute:
        return False
    if first.attributes.get(first.attribute) != second.attributes.get(second.attribute):
        return False
    alike = (first.is_swap, first.takes_other, first.is_edit) == (second.is_swap, second.takes_other, second.is_edit)
    lines = _lines(first)
    return alike and all(lines) and lines == _lines(second) and _own_kinds(first) == _own_kinds(second)


def _lines(divergence: Divergence) -> list[str]:
    """Return the lines of TF1's op and of the port's, or of the port's op after which the difference is."""
    return ["" if op is None else op.line for op in (divergence.tf1, divergence.producer or divergence.port)]


def _own_ops(divergence: Divergence) -> tuple[set[str], ...]:
    """Return the names of the ops of a divergence that only TF1 has, and those that only the port has.

    Where both compute the same, these are the ops that move numbers.
    """
    if divergence.is_order:
        return tuple({op.name for op in region} for region in divergence.regions)
    only = [each.keys() - PLUMBING for each in only_in(*divergence.regions)]
    kinds = only if any(only) else [MOVES, MOVES]
    pairs = zip(divergence.regions, kinds, strict=True)
    return tuple({op.name for op in region if kind(op) in each} for region, each in pairs)


def _is_swap(first: Divergence, second: Divergence) -> bool:
    """Return whether two ops each take one tensor that the other one takes in TF1, and both are confirmed."""
    pairs = [
        [tuple(iteration_of(name)[0] for name in pair) for pair in zip(*each.taken, strict=False) if len(set(pair)) > 1]
        for each in (first, second)
        if each.confirmed and (each.takes_other or each.types[0] == each.types[1])
    ]
    return [len(each) for each in pairs] == [1, 1] and all(pairs[0][0]) and pairs[0][0] == pairs[1][0][::-1]
