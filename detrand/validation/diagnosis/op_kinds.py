"""Kinds of ops: types of ops that compute the same are of one kind, and an op that changes nothing is of none.

`only_in` counts the kinds that only one of two regions has. A fused op counts as its parts where the other region has
these.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from detrand.validation.frameworks.traces import CONVOLUTIONS, DILATED, POOLINGS, TracedOp

# Types of ops that compute the same.
_SAME_KINDS = {
    **{"BiasAdd": "AddV2", "Add": "AddV2", "Erfc": "Erf", "BatchMatMulV2": "MatMul", "BatchMatMulV3": "MatMul"},
    **{"Select": "SelectV2", "MirrorPad": "Pad", "PadV2": "Pad", "AddN": "AddV2", "Slice": "StridedSlice"},
    **{"ResourceGather": "GatherV2", "Gather": "GatherV2", "StatelessWhile": "While", "StatelessIf": "If"},
    **{"FusedBatchNorm": "FusedBatchNormV3", "FusedBatchNormV2": "FusedBatchNormV3", "Div": "RealDiv"},
}
# Ops that name numbers, and compute none.
_NAMES = {
    *("Identity", "ReadVariableOp", "Cast", "Squeeze", "ExpandDims", "BroadcastTo", "IdentityN", "NoOp", "Const"),
    *("Placeholder", "Shape", "ShapeN", "Fill", "StopGradient", "Pack", "VarHandleOp", "Range", "Size", "Prod"),
    *("TensorListStack", "TensorListReserve", "TensorListFromTensor", "TensorListGetItem", "TensorListSetItem"),
    *("Assert", "Unpack", "BroadcastArgs", "Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond"),
}
# Ops that compare numbers, with their operators.
COMPARISONS = {"Less": "<", "LessEqual": "<=", "Greater": ">", "GreaterEqual": ">="}
DIVISIONS = {"RealDiv", "DivNoNan"}  # kinds of ops
# Ops that move numbers.
MOVES = {
    *("Reshape", "StridedSlice", "Transpose", "DepthToSpace", "SpaceToDepth", "ReverseV2", "Roll", "Tile"),
    *("SpaceToBatchND", "BatchToSpaceND"),
}
COMMUTATIVE = {"Mul", "AddV2", "Maximum", "Minimum", "SquaredDifference"}
# Ops that compute from a window that moves over an array.
WINDOWED = CONVOLUTIONS | POOLINGS
ACTIVATIONS = {
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid"),
    *("Tanh", "Softplus", "Softsign", "Softmax", "Erf"),
}
CLIPS = {"Minimum", "Maximum", "ClipByValue"}
OF_LAST_AXIS = {"Softmax", "LogSoftmax"}
PLUMBING = _NAMES | {"Reshape", "StridedSlice", "Transpose"}
# Ops that copy numbers, in another shape or dtype.
COPIES = {"Identity", "Cast", "StopGradient", "Reshape", "Squeeze", "ExpandDims"}
_OF_LOOPS = {"While", "Less", "LogicalAnd"}  # which a loop in Python does not have
_WRITTEN_AS = {"Sub": "AddV2", "RealDiv": "Mul", "Rsqrt": "Sqrt"}  # with another operand
_POWERS = {"2.0": "Square", "2": "Square", "0.5": "Sqrt", "-0.5": "Rsqrt"}  # the kinds that are powers
_NEUTRAL = {"Mul": 1.0, "RealDiv": 1.0, "Pow": 1.0, "AddV2": 0.0, "Sub": 0.0}
# The forms of GELU, by the activation in each, with numbers of which each has one.
_FORMS_OF_GELU = {
    "Tanh": ("the tanh approximation", {0.044715}),
    "Erf": ("erf", {2**0.5, 0.5**0.5, -(0.5**0.5)}),
    "Sigmoid": ("the sigmoid approximation", {1.702}),
}
_PARTS_OF_EINSUM = (("MatMul",), ("Mul", "Sum"))
NORMALIZATION = {
    *("Mean", "SquaredDifference", "Rsqrt", "Sqrt", "Mul", "RealDiv", "AddV2", "Sub", "Neg", "Square", "Maximum"),
    *("FusedBatchNormV3", "StopGradient"),
}


def kind(op: TracedOp) -> str:
    """Return the type of an op, the same for types that compute the same."""
    return kind_of(op.type)


def kind_of(op_type: str) -> str:
    """Return a type of ops, the same for types that compute the same."""
    return _SAME_KINDS.get(op_type, op_type)


def is_unknown(op_type: str) -> bool:
    """Return whether a type is the name of a function of another framework, of which no op of TensorFlow is known."""
    return op_type[:1].islower()


def only_in(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> tuple[Counter[str], Counter[str]]:
    """Return how many ops of each kind only TF1's region has, and how many only the port's region has."""
    regions = [[each for op in region for each in op.with_body] for region in map(computing, (tf1, port))]
    counts = [Counter(map(kind, region)) for region in regions]
    loops = [any(op.body for op in region) for region in (tf1, port)]
    if any(loops):  # the ops of a loop are there once, whatever their number of runs
        counts = [Counter({*each} - (set() if all(loops) else _OF_LOOPS)) for each in counts]
    found = counts[0] - counts[1], counts[1] - counts[0]
    for region, one, other in zip(regions, found, found[::-1], strict=True):
        for power in (_POWERS.get(str(op.attributes.get("input 1"))) for op in region if op.type == "Pow"):
            if power is not None and one["Pow"] and other[power]:
                one["Pow"], other[power] = one["Pow"] - 1, other[power] - 1
        if one["FusedBatchNormV3"] and (other["Rsqrt"] or other["Sqrt"]):
            for part in NORMALIZATION:
                del one[part], other[part]
        for _ in range(one["Einsum"]):
            if parts := next((parts for parts in _PARTS_OF_EINSUM if all(other[each] for each in parts)), ()):
                one["Einsum"] -= 1
                other.subtract(parts)
                del other["Tile"]  # which repeats what a product of matrices takes
    return +found[0], +found[1]


def padded_window(regions: tuple[Sequence[TracedOp], Sequence[TracedOp]]) -> tuple[TracedOp, TracedOp] | None:
    """Return the convolution or pooling of each of two regions, if one of them pads or dilates for it by other ops.

    There is none if the regions differ in what else they compute, because their windows may agree then.
    """
    found = [[op for op in region if op.type in WINDOWED] for region in regions]
    ops = [*regions[0], *regions[1]]
    if [len(each) for each in found] != [1, 1] or not any(kind(op) == "Pad" or DILATED in op.attributes for op in ops):
        return None
    others = [
        Counter(as_written([each for each in kinds.elements() if each not in PLUMBING | MOVES | {"Pad"}]))
        for kinds in only_in(*regions)
    ]
    (tf1,), (port,) = found
    return (tf1, port) if others[0] == others[1] and tf1.type == port.type else None


def computing(region: Sequence[TracedOp]) -> list[TracedOp]:
    """Return the ops of a region that change numbers: not those that count negative indices from the end."""
    by_name = {op.name: op for op in region}
    wrapping: set[str] = set()
    for op in region:
        if kind(op) == "SelectV2" and len(op.inputs) == 3:
            added = by_name.get(op.inputs[1])
            if added is not None and kind(added) == "AddV2" and op.inputs[2] in added.inputs:
                wrapping |= {op.name, added.name}
    return [op for op in region if op.name not in wrapping and not is_neutral(op)]


def is_neutral(op: TracedOp) -> bool:
    """Return whether an op adds 0, multiplies by 1, or the like."""
    neutral = _NEUTRAL.get(kind(op))
    constants = op.constants.values()
    return neutral is not None and any(array.size and (array == neutral).all() for array in constants)


def slopes_of_leaky_relus(regions: tuple[Sequence[TracedOp], Sequence[TracedOp]]) -> list[float | None]:
    """Return the slope of the leaky ReLU that each of two regions computes, but for what both begin and end with."""
    tf1, port = ([op for op in computing(region) if kind(op) not in PLUMBING] for region in regions)
    while tf1 and port and kind(tf1[-1]) == kind(port[-1]):
        tf1, port = tf1[:-1], port[:-1]
    while tf1 and port and kind(tf1[0]) == kind(port[0]):
        tf1, port = tf1[1:], port[1:]
    return [_slope_of_leaky_relu(tf1), _slope_of_leaky_relu(port)]


def _slope_of_leaky_relu(ops: Sequence[TracedOp]) -> float | None:
    """Return the slope of a leaky ReLU that ops compute: one op, or several, as code wrote it before there was one.

    This was ``maximum(a * x, x)``, ``where(x > 0, x, a * x)`` or ``(1 + a) / 2 * x + (1 - a) / 2 * abs(x)``.
    """
    kinds = sorted(map(kind, ops))
    if kinds == ["LeakyRelu"]:
        return float(ops[0].attributes["attribute alpha"])
    products = [op for op in ops if kind(op) == "Mul" and any(array.size == 1 for array in op.constants.values())]
    numbers = [next(float(array.item()) for array in op.constants.values() if array.size == 1) for op in products]
    by_kind = {kind(op): op for op in ops}
    if kinds == ["Maximum", "Mul"] and numbers and numbers[0] < 1:
        of_both = {products[0].name, *products[0].inputs}
        return numbers[0] if of_both.issuperset(by_kind["Maximum"].inputs) else None
    if kinds in (["Greater", "Mul", "SelectV2"], ["GreaterEqual", "Mul", "SelectV2"]) and numbers:
        condition, (_, above, below) = by_kind[kinds[0]], by_kind["SelectV2"].inputs
        is_positive = condition.inputs[0] == above and condition.attributes.get("input 1") in ("0", "0.0")
        return numbers[0] if is_positive and below == products[0].name and above in products[0].inputs else None
    if kinds == ["Abs", "AddV2", "Mul", "Mul"] and len(numbers) == 2:
        absolute = next(op.name for op in ops if op.type == "Abs")
        of_absolute = [number for op, number in zip(products, numbers, strict=True) if absolute in op.sources]
        if len(of_absolute) == 1 and abs(sum(numbers) - 1) < 1e-6:
            return 1 - 2 * of_absolute[0]
    return None


def form_of_gelu(activations: Sequence[str], region: Sequence[TracedOp]) -> str:
    """Return the form of the GELU that a region computes with some activations; empty if it computes none."""
    if len(activations) != 1 or activations[0] not in _FORMS_OF_GELU:
        return ""
    form, known = _FORMS_OF_GELU[activations[0]]
    numbers = [array.flat[0] for op in region for array in op.constants.values() if array.size == 1]
    return form if any(abs(number - each) < 1e-6 for number in numbers for each in known) else ""


def names_of_activations(activations: Sequence[str], region: Sequence[TracedOp]) -> str:
    """Return activations in words, where they are parts of a GELU or a SiLU as this."""
    form = form_of_gelu(activations, region)
    if form:
        return f"GELU with {form}"
    return "SiLU" if [*activations] == ["Sigmoid"] and _is_silu(region) else ", ".join(activations)


def _is_silu(region: Sequence[TracedOp]) -> bool:
    """Return whether a region multiplies a tensor by its sigmoid, or by that of a multiple."""
    by_name = {op.name: op for op in region}
    for sigmoid in (op for op in region if kind(op) == "Sigmoid"):
        operands, before = {*sigmoid.inputs}, by_name.get(sigmoid.sources[0])
        operands |= {*before.inputs} if before is not None and kind(before) == "Mul" and before.constants else set()
        if any(kind(op) == "Mul" and sigmoid.name in op.sources and operands & {*op.inputs} for op in region):
            return True
    return False


def in_order(region: Sequence[TracedOp]) -> list[str]:
    """Return what a region computes, in order, with the ops of a batch normalization as one."""
    return list(_in_order(region))


def _in_order(region: Sequence[TracedOp]) -> Iterator[str]:
    kinds = [kind(op) for op in computing(region) if kind(op) not in PLUMBING]
    is_normalized = not {"Rsqrt", "FusedBatchNormV3"}.isdisjoint(kinds)
    before = ""
    for each in kinds:
        name = "normalization" if is_normalized and each in NORMALIZATION else each
        if name != before:
            yield name
        before = name


def chain(region: Sequence[TracedOp]) -> list[str]:
    """Return what a region computes, in order, if each op takes what the one before it computes; otherwise nothing."""
    found, holding = list[str](), set[str]()
    for op in computing(region):
        follows = not holding or not holding.isdisjoint(op.sources)
        if kind(op) in PLUMBING:
            holding |= {op.name} if follows and holding else set()
        elif follows:
            found.append(kind(op))
            holding = {op.name}
        else:
            return []
    return found


def as_written(kinds: Sequence[str]) -> list[str]:
    """Return kinds of ops, with AddV2 for Sub, Mul for RealDiv and Sqrt for Rsqrt: these differ by an operand only."""
    return [_WRITTEN_AS.get(each, each) for each in kinds]


def is_in(op: TracedOp | None, layers: Collection[str]) -> bool:
    """Return whether an op is in a layer: its scopes have the layer's name, perhaps with numbers."""
    scopes = _unnumbered("" if op is None else op.name)
    return any(f"/{_unnumbered(layer)}/" in f"/{scopes}" for layer in layers)


@functools.cache
def _unnumbered(name: str) -> str:
    return re.sub(r"(_\d+)+(?=/|$)", "", name)
