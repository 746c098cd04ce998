"""Causes that the ops of two regions show: which ops only one program has, in which order, and what they take."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from detrand.arguments import and_more
from detrand.validation.diagnosis.causes.cause import (
    ARITHMETIC,
    Cause,
    computes_with_number,
    in_one_program,
    name_of_argument,
    name_of_attribute,
    number_of,
    of_tensors,
    of_values,
    op_with_constants,
    use_order,
    use_value,
)
from detrand.validation.diagnosis.causes.values import differing_factors, of_arithmetic
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.op_kinds import (
    ACTIVATIONS,
    CLIPS,
    COMPARISONS,
    DIVISIONS,
    NORMALIZATION,
    PLUMBING,
    as_written,
    chain,
    computing,
    form_of_gelu,
    in_order,
    is_unknown,
    kind,
    names_of_activations,
    only_in,
    slopes_of_leaky_relus,
)
from detrand.validation.frameworks.traces import CONVOLUTIONS, POOLINGS, TracedOp
from detrand.validation.results import Fault

_MOST_OPS, _MOST_VERBS = 6, 3
_TAKES = {"StridedSlice", "GatherV2", "GatherNd"}  # which take elements of an array
ORDERED = {"ConcatV2", "Pack", "Sub", "RealDiv", "MatMul", "BatchMatMulV2", "Einsum", "Pow", "FloorDiv"}
# What only one of the programs may do, if the other one does nothing of the kind.
_ONLY_IN_ONE = {
    "Pad": "pads",
    "Floor": "rounds down",
    "FloorDiv": "rounds down",
    "Round": "rounds",
    "ReverseV2": "reverses",
    "ConcatV2": "concatenates",
    "Cumsum": "sums up",
    "LRN": "normalizes",
    "FusedBatchNormV3": "normalizes",
    "Minimum": "clips",
    "Maximum": "clips",
    "ClipByValue": "clips",
    "Mean": "takes a mean",
    "Sum": "sums",
    "Square": "squares",
    "Neg": "negates",
    "Abs": "takes absolute values",
    "Sqrt": "takes a square root",
    "Log": "takes a logarithm",
    "Exp": "takes an exponential",
    "SelectV2": "chooses elements by a condition, as a mask by tf.where",
}
_CONDITIONS = {*("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")}
_CONDITIONS |= {*("LogicalAnd", "LogicalOr", "LogicalNot")}
_LAYERS = {"MatMul", "Einsum", *CONVOLUTIONS}
_COUNTING = {"Mul", "SelectV2", *_CONDITIONS}
# Other types of ops that are used in place of each other.
_ALTERNATIVES = {
    "reduction": {"Mean", "Sum"},
    "division": {"RealDiv", "FloorDiv"},
    "resize method": {"ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "ResizeArea", "ScaleAndTranslate"},
    "pooling method": POOLINGS,
}


def of_ops(divergence: Divergence) -> Iterator[Cause]:
    """Yield what only one program computes on the way to where both agree again; if it has no name, the ops."""
    if divergence.confirmed and (factors := differing_factors(*divergence.regions)):
        # Products and sums of what is multiplied by a number are multiplied by it, so that the order does not matter.
        remedy = f"multiply by {factors[0]} in the port, in one factor or in several"
        yield of_values("constant factor", *factors, remedy=remedy)
        return
    computed = tuple(in_order(region) for region in divergence.regions)
    only = [set(each) - PLUMBING for each in only_in(*divergence.regions)]
    if not only[0] and only[1] == {"ConcatV2"} and any(map(_joins_rows, divergence.regions[1])):
        return  # the port computes with several batches at once
    parts = NORMALIZATION if all("normalization" in each for each in computed) else set()  # its form does not matter
    is_alike = divergence.is_order or not any(kinds - parts for kinds in only)
    is_order = divergence.confirmed and is_alike and computed[0] != computed[1]
    if is_order and sorted(computed[0]) == sorted(computed[1]):
        yield _of_order(*computed)
        return
    if divergence.is_order and computed[0] and computed[0] == computed[1]:  # what is in between agrees by chance
        ops, verb = and_more(computed[0], _MOST_OPS), "is" if len(computed[0]) == 1 else "are"
        title = f"order of ops differs: {ops} {verb} in a different place in the port"
        yield Cause(title, fault=Fault.ORDER, remedy=f"compute {ops} where TF1 does")
        return
    chains = tuple(chain(region) for region in divergence.regions)
    written = [as_written(each) for each in chains]
    if divergence.confirmed and written[0] != written[1] and sorted(written[0]) == sorted(written[1]):
        yield _of_order(*chains)
        return
    if divergence.confirmed and (end := _at_other_end(*computed)):
        places = ("first", "last") if computed[0][0] == end else ("last", "first")
        title = f"order of ops differs: {end} comes {places[0]} in TF1 and {places[1]} in the port"
        yield Cause(title, fault=Fault.ORDER, remedy=f"compute {end} {places[0]} in the port")
        return
    # What a function of another framework computes is not known, so it may be what only TF1 seems to compute.
    has_unknown = any(is_unknown(name) for kinds in only for name in kinds)
    found = [] if has_unknown else list(_named_ops(divergence))
    yield from found
    if divergence.confirmed and not found and divergence.constants is None and only[0] != only[1]:
        sides = [", ".join([*own, *sorted(kinds)]) for own, kinds in zip(_with_numbers(divergence), only, strict=True)]
        takers = [next((kind(op) for op in region if kind(op) in _TAKES), "") for region in divergence.regions]
        if all(sides):
            use = use_value(sides[0]) if divergence.is_edit else ""  # of names of ops, many may not matter
            yield of_values("what is computed", *sides, fault=Fault.OPS, remedy=use)
        elif all(takers) and set().union(*only) <= _TAKES:
            remedy = "take those elements in the port that TF1 takes"
            yield of_values("what is taken from an array", *takers, fault=Fault.OPS, remedy=remedy)
        else:
            yield in_one_program("TF1" if sides[0] else "the port", f"computes {''.join(sides)}", fault=Fault.OPS)


def _of_order(tf1: list[str], port: list[str]) -> Cause:
    words = [and_more(each, _MOST_OPS, ", then ") for each in _without_common_ends(tf1, port)]
    return of_values("order of ops", *words, fault=Fault.ORDER, remedy=use_order(words[0]))


def _at_other_end(tf1: Sequence[str], port: Sequence[str]) -> str:
    """Return the pooling or activation with which one program begins and the other one ends; empty if there is none."""
    counts = Counter(tf1), Counter(port)
    if min(len(tf1), len(port)) < 2 or (counts[0] & counts[1]).total() < (counts[0] - counts[1]).total():
        return ""  # TF1 computes more that the port does not than what both compute
    ends = {each[0] for each, other in ((tf1, port), (port, tf1)) if each[0] == other[-1]} & (POOLINGS | ACTIVATIONS)
    return next((end for end in sorted(ends) if tf1.count(end) == port.count(end) == 1), "")


def _with_numbers(divergence: Divergence) -> tuple[list[str], list[str]]:
    """Return the two ops with the constants in which they differ; nothing if they differ in none, or in their types."""
    names = [name for name in divergence.attributes if name.startswith("input ")]
    if not names or divergence.types[0] != divergence.types[1]:
        return [], []
    arguments = [name_of_argument(divergence.tf1, int(name.removeprefix("input "))) for name in names]
    texts = zip(*(divergence.attributes[name] for name in names), strict=True)
    words = (
        and_more(map(" ".join, zip(arguments, of_program, strict=True)), _MOST_OPS, " and ") for of_program in texts
    )
    of_tf1, of_port = (f"{divergence.types[0]} with {each}" for each in words)
    return [of_tf1], [of_port]


def _named_ops(divergence: Divergence) -> Iterator[Cause]:
    """Yield what only one program computes, for kinds of ops that have a name of their own."""
    only_tf1, only_port = only_in(*divergence.regions)
    yield from _of_activations(divergence, only_tf1, only_port)
    for cause_of in (_of_sum_of_squares, _of_sign):
        if (cause := cause_of(divergence, only_tf1, only_port)) is not None:
            yield cause
            return
    for words, alternatives in _ALTERNATIVES.items():
        pair = sorted(alternatives & only_tf1.keys()), sorted(alternatives & only_port.keys())
        if all(pair):
            is_mean = words == "reduction" and any(  # a sum that is divided by a count is a mean
                "Sum" in of and not kinds.keys().isdisjoint(DIVISIONS)
                for of, kinds in zip(pair, (only_tf1, only_port), strict=True)
            )
            differing = {*only_tf1, *only_port} - PLUMBING
            counting = set() if differing.isdisjoint(_CONDITIONS) else _COUNTING  # as of weights that are not 0
            if is_mean and differing <= {"Sum", "Mean", *DIVISIONS, *counting}:  # of another count
                yield of_values(words, *map(_reduction, divergence.regions), fault=Fault.REDUCTION)
                return
            if not is_mean:
                fault = Fault.REDUCTION if words == "reduction" else Fault.VALUE
                yield of_values(words, *map(", ".join, pair), fault=fault)
    idle = PLUMBING | ({"ConcatV2"} if any(map(_joins_rows, itertools.chain(*divergence.regions))) else set())
    computed = {"TF1": only_tf1.keys() - idle, "the port": only_port.keys() - idle}
    computed = {who: kinds - _CONDITIONS if "SelectV2" in kinds else kinds for who, kinds in computed.items()}
    verbs = {_ONLY_IN_ONE.get(name) for name in set().union(*computed.values())}
    if len(verbs) == 1 and None not in verbs and not all(computed.values()):
        who = next(who for who, kinds in computed.items() if kinds)
        yield in_one_program(who, f"{verbs.pop()}")
    elif not all(computed.values()):
        sides = zip(computed, divergence.regions, (only_tf1, only_port), strict=True)
        who, does = next(((who, _in_order_of(region, only)) for who, region, only in sides if computed[who]), ("", ""))
        if does:
            yield in_one_program(who, does, fault=Fault.OPS)
            return
    yield from of_arithmetic(divergence, only_tf1, only_port)


def _of_activations(divergence: Divergence, only_tf1: Counter[str], only_port: Counter[str]) -> Iterator[Cause]:
    """Yield the activation that only one program has, or the activations of both."""
    missing, added = sorted(ACTIVATIONS & only_tf1.keys()), sorted(ACTIVATIONS & only_port.keys())
    is_all = _LAYERS.isdisjoint({*only_tf1, *only_port})  # an activation is not all that makes up another layer
    slopes = slopes_of_leaky_relus(divergence.regions)
    pairs = [*zip((missing, added), divergence.regions, strict=True)]
    forms, names = ([function(*each) for each in pairs] for function in (form_of_gelu, names_of_activations))
    if slopes[0] is not None and slopes[1] is not None:
        yield of_values(name_of_attribute("LeakyRelu", "attribute alpha"), *(f"{slope:.4g}" for slope in slopes))
    elif all(forms):
        yield of_values("form of GELU", *forms)
    elif missing and added:
        by_hand = map(_is_by_hand, divergence.regions, (only_tf1, only_port))
        of_sides = zip(names, (missing, added), by_hand, strict=True)
        known = ["" if is_by_hand and name == ", ".join(kinds) else name for name, kinds, is_by_hand in of_sides]
        yield of_values("activation", *_named_or_in_words(divergence, known), fault=Fault.ACTIVATION)
    elif (missing and CLIPS & only_port.keys()) or (added and CLIPS & only_tf1.keys()):
        of_slopes = ["" if slope is None else f"leaky ReLU of slope {slope:.4g}" for slope in slopes]
        yield of_values("activation", *_named_or_in_words(divergence, of_slopes), fault=Fault.ACTIVATION)
    elif missing and is_all:
        title, remedy = "the port has no activation where TF1 has {}", "add the activation {} to the port"
        yield Cause(title.format(names[0]), fault=Fault.ACTIVATION, remedy=remedy.format(names[0]))
    elif added and is_all:
        title, remedy = "TF1 has no activation where the port has {}", "remove the activation {} from the port"
        yield Cause(title.format(names[1]), fault=Fault.ACTIVATION, remedy=remedy.format(names[1]))


def _of_sum_of_squares(divergence: Divergence, only_tf1: Counter[str], only_port: Counter[str]) -> Cause | None:
    """Return the cause that one program halves a sum of squares, as ``tf.nn.l2_loss`` does."""
    halves = [{*kinds} - PLUMBING for kinds in (only_tf1, only_port)]
    for region, each in zip(divergence.regions, halves, strict=True):
        if each == {"Pow", "Sum"} and any(kind(op) == "Pow" and number_of(op) == "2.0" for op in region):
            each.symmetric_difference_update({"Pow", "Square"})
    factors = [
        sorted(number_of(op) for op in region if kind(op) in ("Mul", "RealDiv")) for region in divergence.regions
    ]
    if factors[0] != factors[1] or halves not in ([{"L2Loss"}, {"Square", "Sum"}], [{"Square", "Sum"}, {"L2Loss"}]):
        return None
    is_half = halves[0] == {"L2Loss"}
    sums = ["half the sum, as tf.nn.l2_loss computes", "the whole sum"]
    remedy = "divide the sum of squares by 2 in the port" if is_half else "take the whole sum of squares in the port"
    return of_values("sum of squares", *(sums if is_half else sums[::-1]), remedy=remedy)


def _of_sign(divergence: Divergence, only_tf1: Counter[str], only_port: Counter[str]) -> Cause | None:
    """Return the cause that one program adds a term that the other one subtracts."""
    signs = {"Sub": "subtracted", "AddV2": "added"}
    halves = [{*kinds} - PLUMBING for kinds in (only_tf1, only_port)]
    if not divergence.confirmed or not all(len(each) == 1 and each <= signs.keys() for each in halves):
        return None
    of_tf1, of_port = (signs[kinds.pop()] for kinds in halves)
    remedy = f"{'subtract' if of_tf1 == 'subtracted' else 'add'} the term in the port, too"
    return of_values("sign of a term", of_tf1, of_port, remedy=remedy)


def _is_by_hand(region: Sequence[TracedOp], only: Counter[str]) -> bool:
    """Return whether an activation has arithmetic around it that only one program has, as a hard sigmoid has."""
    ops = [op for op in region if kind(op) not in PLUMBING]
    arithmetic = {kind(op) for op in ops if op.constants and kind(op) in ARITHMETIC}
    return bool(arithmetic & only.keys()) and all(kind(op) in arithmetic | ACTIVATIONS for op in ops)


def _named_or_in_words(divergence: Divergence, names: Sequence[str]) -> Iterator[str]:
    """Yield what each program computes, by its name if it has one."""
    yield from (name or words for name, words in zip(names, _in_words(divergence), strict=True))


def _in_words(divergence: Divergence) -> list[str]:
    """Return what each program computes that the other one does not, with the constants."""
    moves = ([op_with_constants(op) for op in region if kind(op) not in PLUMBING] for region in divergence.regions)
    return [and_more(each, _MOST_OPS) for each in _without_common_ends(*moves)]


def _without_common_ends(tf1: list[str], port: list[str]) -> tuple[list[str], list[str]]:
    """Return two lists without what they have in common at the start and at the end."""
    most = min(len(tf1), len(port))
    start = next((n for n in range(most) if tf1[n] != port[n]), most)
    tf1, port, most = tf1[start:], port[start:], most - start
    end = next((n for n in range(most) if tf1[-1 - n] != port[-1 - n]), most)
    return tf1[: len(tf1) - end], port[: len(port) - end]


def _reduction(region: Sequence[TracedOp]) -> str:
    """Return the sum or mean that a region computes, with what it is divided by."""
    found = next((kind(op) for op in region if kind(op) in ("Sum", "Mean")), "nothing")
    divisors = [op for op in region if kind(op) in DIVISIONS and (found == "Sum" or op.constants)]
    return found + "".join(f", divided by {number_of(op, op.inputs[1].rpartition('/')[2])}" for op in divisors[:1])


def _in_order_of(region: Sequence[TracedOp], only: Counter[str]) -> str:
    """Return what only one region computes, in words; an empty text if a part is only arithmetic, or has no words."""
    kinds = only.keys() - PLUMBING - {"Pad"}  # which may be a part of a convolution
    ops = [op for op in computing(region) if kind(op) in kinds]
    if len(ops) != sum(only[each] for each in kinds) or kinds <= ARITHMETIC.keys():
        return ""
    words = [computes_with_number(op) if kind(op) in ARITHMETIC else _ONLY_IN_ONE.get(kind(op), "") for op in ops]
    return ", then ".join(dict.fromkeys(words)) if all(words) and len(words) <= _MOST_VERBS else ""


def of_draws(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the programs use random numbers differently: in other places, by other masks, or only one does."""
    of_tf1, of_port = divergence.drawing
    if of_tf1 is not None and of_port is not None:
        masks = _mask(of_tf1), _mask(of_port)
        if divergence.is_order:
            words = "order of ops differs: a dropout, or another random op, is in a different place in the port"
            remedy = "move the dropout to the place that it has in TF1"
            yield Cause(words, fault=Fault.RANDOM_OP_ELSEWHERE, remedy=remedy)
        elif divergence.confirmed and all(masks) and of_tf1.type != of_port.type:
            remedy = f"use {masks[0]} in the port, or write TF1's mask as {masks[1]}"
            yield of_values("mask of random numbers u", *masks, fault=Fault.MASK, remedy=remedy)
        return
    # What a function of another framework computes is not known, so it may draw.
    may_draw = any(is_unknown(op.type) for op in divergence.regions[of_tf1 is not None])
    if (of_tf1 or of_port) is not None and not may_draw:
        who, fault = ("the port", Fault.RANDOM_OP_OF_PORT) if of_tf1 is None else ("TF1", Fault.RANDOM_OP_OF_TF1)
        yield in_one_program(who, "has a dropout, or another random op, here", fault=fault)


def _mask(op: TracedOp) -> str:
    """Return the comparison of random numbers u with a constant, as in Python; empty if an op is none."""
    sign, numbers = COMPARISONS.get(op.type, ""), [op.attributes.get(f"input {number}", "u") for number in (0, 1)]
    return f" {sign} ".join(numbers) if sign and numbers.count("u") == 1 else ""


def of_uses(divergence: Divergence) -> Iterator[Cause]:
    """Yield the inputs that only one program uses on the way, but for rows beside those that both compute with."""
    if any(map(_joins_rows, itertools.chain(*divergence.regions, filter(None, (divergence.tf1, divergence.port))))):
        return
    for who, mine, other in (("TF1", *divergence.uses), ("the port", *divergence.uses[::-1])):
        for position in sorted(mine - other):
            name = f" ({divergence.inputs[position]})" if position < len(divergence.inputs) else ""
            given = f"input {position}{name}"
            at = "at this place in the port"
            remedy = f"use {given} {at}, too" if who == "TF1" else f"leave out {given} {at}"
            yield Cause(f"only {who} uses {given} here", fault=Fault.ONLY_IN_ONE, remedy=remedy)


def _joins_rows(op: TracedOp) -> bool:
    """Return whether an op puts batches together, as of two inputs that one tower takes at once."""
    return op.type == "ConcatV2" and not op.constants.get(f"input {len(op.inputs) - 1}", np.ones(1)).any()


def of_inputs(divergence: Divergence) -> Iterator[Cause]:
    """Yield what one op takes in TF1 and not in the port, if the op is the same in both."""
    tf1, port = divergence.taken
    if divergence.takes_other:
        yield of_tensors(divergence.types[1], tf1[0], port[0], Fault.OTHER)
        return
    if divergence.attributes or divergence.types[0] != divergence.types[1] or not tf1 or len(tf1) != len(port):
        return
    if sorted(tf1) == sorted(port):
        if tf1 != port and divergence.types[0] in ORDERED:
            orders = ", ".join(tf1), ", ".join(port)
            yield of_values("order of the inputs", *orders, fault=Fault.ORDER, remedy=use_order(orders[0]))
        return
    differing = [pair for pair in zip(tf1, port, strict=True) if pair[0] != pair[1] and pair[1]]
    of_tf1, of_port = divergence.variables
    if len(differing) < 2 and tf1 != port and len(of_tf1) == len(of_port) == 1 and of_tf1 != of_port:
        mine, other = (next(iter(names)) for names in divergence.variables)
        title = f"{divergence.types[0]} takes different variables: {mine} (TF1), {other} (port)"
        yield Cause(title, remedy=f"use the port's counterpart of {mine} here")
        return
    for mine, other in differing[:1]:
        yield of_tensors(divergence.types[0], mine, other, Fault.OTHER)


def of_exchanged_tensors(divergence: Divergence) -> Iterator[Cause]:
    """Yield the tensors that are taken in each other's places."""
    tf1, port = divergence.taken
    differing = [pair for pair in zip(tf1, port, strict=False) if pair[0] != pair[1] and pair[1]]
    if len(differing) > 1 and divergence.tf1 is not None:  # parts of one
        op = divergence.tf1
        whole = next(each for number, each in enumerate(op.inputs) if f"input {number}" not in op.constants)
        orders = (", ".join(str(tf1.index(each)) for each in names) for names in (tf1, port))
        what = f"order of the parts of {iteration_of(whole)[0]}"
        yield of_values(what, *orders, fault=Fault.ORDER, remedy="take the parts in TF1's order in the port")
    elif differing:
        title = "two tensors are swapped: {} and {}".format(*differing[0])
        yield Cause(title, fault=Fault.ORDER, remedy="exchange the two in the port")
