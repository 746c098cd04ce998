"""Likely causes of a difference: the known faults of ports that leave such evidence.

`causes` takes the evidence of a check that ran both programs once, `causes_of_training` two trainings. Evidence is no
proof, so causes are ordered by how specific it is: a hyperparameter that differs at the first divergence comes before a
ratio of two that could be chance. A new cause is one more function that yields a sentence, called in either.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.graphs import op_def
from detrand.arguments import and_more
from detrand.comparison.values import Comparison, LeafComparison, leaves_by_path
from detrand.steps.comparison import StepsComparison
from detrand.validation.audit.hyperparameters import (
    DROPOUT,
    FORGET_BIAS,
    INITIALIZER,
    MOMENTUM,
    OPTIMIZER,
    RATE,
    REGULARIZER,
    layer_of,
)
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.op_kinds import (
    MOVES,
    PLUMBING,
    computing,
    in_order,
    is_in,
    kind,
    kind_of,
    only_in,
    padded_window,
)
from detrand.validation.diagnosis.trace import TracedOp, Value
from detrand.validation.results import AuditedHyperparameter
from detrand.validation.training.steps import UPDATES_OF_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES, WEIGHT_AVERAGES, Training

_CLOSE = 1e-4  # relative tolerance for a ratio that is a number with a meaning
_OF_ROUNDING = 0.1  # of the change of a moving average in a step, which may be a few units in the last place
_SAME = 1e-6  # relative tolerance for equal learning rates
_MOST_AXES = 5
_ATTRIBUTES = {
    "attribute epsilon": "batch-norm epsilon",
    "attribute padding": "padding",
    "attribute strides": "stride",
    "attribute dilations": "dilation rate",
    "attribute ksize": "size of the pooling window",
    "attribute data_format": "data format (channels first or last)",
    "attribute is_training": "training mode of the batch norm",
    "attribute transpose_b": "transposition of the kernel",
    "attribute transpose_a": "transposition of the input",
    "attribute align_corners": "alignment of corners in a resize",
    "attribute half_pixel_centers": "pixel centers in a resize",
}
# Names of attributes that mean something else in other ops.
_ATTRIBUTES_OF = {
    ("LeakyRelu", "attribute alpha"): "slope of the leaky ReLU",
    ("LRN", "attribute alpha"): "alpha of the local response normalization",
    ("LRN", "attribute beta"): "beta of the local response normalization",
    ("LRN", "attribute bias"): "bias of the local response normalization",
}
_ACTIVATIONS = {
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid"),
    *("Tanh", "Softplus", "Softsign", "Softmax", "Erf"),
}
_CLIPS = {"Minimum", "Maximum", "ClipByValue"}
_ARITHMETIC = {"Mul": "multiplies by", "RealDiv": "divides by", "AddV2": "adds", "Sub": "subtracts", "Pow": "takes to"}
_CONSTANTS = {
    **{"Mul": "factor", "RealDiv": "divisor", "AddV2": "number added", "Sub": "number subtracted", "Pow": "exponent"},
    **{"Maximum": "lower limit", "Minimum": "upper limit", "GreaterEqual": "threshold", "Greater": "threshold"},
    **{"Less": "upper limit (as of a loop's iterations)", "FloorDiv": "integer divisor"},
}
# Names of arguments that TensorFlow's own functions call differently.
_ARGUMENTS = {
    **dict.fromkeys(("reduction_indices", "dimension", "concat_dim", "split_dim", "axis"), "axis"),
    **{"perm": "order of the axes", "paddings": "padding", "multiples": "number of repetitions"},
}
_LIMITS = {"Minimum", "Maximum", "Less", "LessEqual", "Greater", "GreaterEqual"}
_ORDERED = {"ConcatV2", "Pack", "Sub", "RealDiv", "MatMul", "BatchMatMulV2", "Einsum", "Pow", "FloorDiv"}
# What only one of the programs may do, if the other one does nothing of the kind.
_ONLY_IN_ONE = {
    "Pad": "pads",
    "SpaceToBatchND": "dilates",
    "Floor": "rounds down",
    "FloorDiv": "rounds down",
    "Round": "rounds",
    "ReverseV2": "reverses",
    "Cumsum": "sums up",
    "LRN": "normalizes",
    "FusedBatchNormV3": "normalizes",
    "Minimum": "clips",
    "Maximum": "clips",
    "ClipByValue": "clips",
    "Mean": "takes a mean",
    "Sum": "sums",
    "Square": "squares",
    "Sqrt": "takes a square root",
    "Log": "takes a logarithm",
    "Exp": "takes an exponential",
}
_COMPARISONS = {"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "SequenceMask"}
# Other types of ops that are used in place of each other.
_ALTERNATIVES = {
    "reduction": {"Mean", "Sum"},
    "division": {"RealDiv", "FloorDiv"},
    "resize method": {"ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "ResizeArea", "ScaleAndTranslate"},
    "pooling method": {"MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"},
}


def causes(
    divergence: Divergence | None = None,
    output: LeafComparison | None = None,
    losses: tuple[np.ndarray | None, np.ndarray | None] | None = None,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    *,
    draws_numpy: bool = False,
    random_ops: Sequence[str] = (),
    updates_differ: bool = False,
) -> tuple[str, ...]:
    """Return the likely causes, the likeliest first; empty if none is known.

    Args:
      divergence: the first divergence; None if it is not known.
      output: the first output that differs; None if none does.
      losses: the regularization losses of the port and of TF1, each None if it has none; None if they agree.
      hyperparameters: those that differ.
      draws_numpy: whether a program may draw from NumPy's global generator, which is not seeded.
      random_ops: the random ops that only one program has, in words.
      updates_differ: whether the programs give different values to a variable that both of them change.
    """
    found: list[str] = []
    if draws_numpy:
        found.append(
            "a program draws from NumPy's global generator (np.random), which gives each run other numbers. Pass "
            "Migration(seed_numpy=True)"
        )
    found += random_ops
    if divergence is not None and divergence.hyperparameter is not None:
        return (_hyperparameter(divergence.hyperparameter, divergence.count),)
    possible = [] if divergence is None else unconfirmed(divergence)
    if divergence is not None:
        windows = list(_windows(divergence))
        found += windows if windows else [] if possible else _attributes(divergence)
        found += _of_layer(divergence, hyperparameters)
    if output is not None and output.reason == "dtype":
        found.append(f"dtype differs: {output.desired.dtype} (TF1), {output.actual.dtype} (port)")
    elif divergence is not None and divergence.dtypes[0]:
        found.append(_differs("dtype", *(re.sub(r"<dtype: '(\w+)'>", r"\1", each) for each in divergence.dtypes)))
    if divergence is not None:
        found += _dropout(divergence, hyperparameters)
        found += _epsilon(divergence)
        found += list(_axes(divergence)) or _arrangement(divergence)
        found += _constant(divergence)
        found += _training_mode(divergence) or _uses(divergence)
        found += _limits(divergence) if set(divergence.types) <= _LIMITS else ()
        found += [] if windows else _ops(divergence)
        found += _inputs(divergence)
        found += _scale(divergence)
        found += [] if found else _moves(divergence)
        found += [] if found else _broadcasts(divergence)
        found += [] if found else _other_axes(divergence)
        found += possible
    if updates_differ:
        found += (_hyperparameter(each) for each in hyperparameters if each.name == MOMENTUM)
    if losses is not None:
        found += _regularization(*losses)
    found += (_hyperparameter(each) for each in hyperparameters if each.name in (INITIALIZER, REGULARIZER))
    return tuple(dict.fromkeys(found))


def describe_causes(found: tuple[str, ...]) -> str:
    """Return causes as text."""
    if len(found) == 1:
        return f"Likely cause: {found[0]}"
    return "\n".join(["Likely causes, the likeliest first:", *(f"  {cause}" for cause in found)])


def unconfirmed(divergence: Divergence) -> list[str]:
    """Return the attributes that differ where TF1's value, and no attribute of TF1, makes the rest agree."""
    is_unconfirmed = divergence.confirmed and not divergence.attribute and not any(_windows(divergence))
    return list(_attributes(divergence)) if is_unconfirmed else []


def _attributes(divergence: Divergence) -> Iterator[str]:
    for name, values in divergence.attributes.items():
        words = _name_of_attribute(divergence.types[0], name)
        if words and divergence.attribute in ("", name):  # where one makes the difference, the others make none
            yield _differs(words, *values)


def _name_of_attribute(op_type: str, name: str) -> str:
    """Return what people call an attribute of an op; an empty text if there is no other word for it."""
    return _ATTRIBUTES_OF.get((op_type, name), _ATTRIBUTES.get(name, ""))


def _differs(what: str, tf1: object, port: object) -> str:
    """Return a cause with both values."""
    return f"{what} differs: {tf1} (TF1), {port} (port)"


def _of_layer(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[str]:
    """Yield the hyperparameters of the layer that diverges: a fused op and its parts have no attributes in common."""
    for each in hyperparameters:
        # A recurrent cell is in a loop, and what differs comes out of the loop.
        owner = layer_of(each.of) if each.name in (INITIALIZER, FORGET_BIAS) else each.of
        # A layer that changes little may have an output that agrees with its input; then only the port's op is in it.
        if each.name not in (RATE, MOMENTUM) and (  # a momentum decides no output
            divergence.op.startswith(f"{owner}/") or is_in(divergence.port, {owner})
        ):
            yield _hyperparameter(each)


def _hyperparameter(each: AuditedHyperparameter, count: int = 1) -> str:
    """Return the cause that is a hyperparameter of different values, of one owner or of several."""
    owner = "the optimizer" if each.of == OPTIMIZER else each.of
    if count > 1:
        return _differs(each.name, each.tf1, each.port)
    return f"{each.name} differs in {owner}: {each.tf1} (TF1), {each.port} (port)"


def _dropout(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[str]:
    scales, is_dropout = _differing_constants(divergence), DROPOUT in divergence.op.lower()
    if scales is not None and is_dropout and divergence.types == ("GreaterEqual", "GreaterEqual"):
        yield _differs("dropout rate", f"{scales[0]:.3g}", f"{scales[1]:.3g}")
        return
    if scales is None or divergence.types != ("Mul", "Mul") or min(scales) <= 1:
        yield from (_hyperparameter(each) for each in hyperparameters if each.name == RATE and is_dropout)
        return
    rates = 1 - 1 / scales[0], 1 - 1 / scales[1]  # dropout divides the elements that it keeps by 1 - rate
    in_words = f"{rates[0]:.3g}", f"{rates[1]:.3g}"
    if _is_close(rates[0] + rates[1], 1) and not _is_close(*rates):
        yield _differs("a keep_prob is used as a rate (or a rate as a keep_prob): dropout rate", *in_words)
    elif is_dropout:
        yield _differs("dropout rate", *in_words)


def _epsilon(divergence: Divergence) -> Iterator[str]:
    constants = _differing_constants(divergence)
    if constants is not None and divergence.types == ("AddV2", "AddV2") and 0 < max(constants) <= 0.1:
        yield _differs("epsilon", f"{constants[0]:g}", f"{constants[1]:g}")


def _differing_constants(divergence: Divergence) -> tuple[float, float] | None:
    """Return the one constant input in which the two ops differ: TF1's value and the port's."""
    found = [pair for name, pair in divergence.attributes.items() if name.startswith("input ")]
    if len(found) != 1:
        return None
    try:
        return float(found[0][0]), float(found[0][1])
    except ValueError:  # not scalars
        return None


def _arrangement(divergence: Divergence) -> Iterator[str]:
    """Yield how the elements of an array are rearranged: by the op itself, or by an op before it."""
    (tf1_value, port_value), (tf1_sources, port_sources) = divergence.values, divergence.sources
    if tf1_value is None or port_value is None:
        return
    pairs = [(value, port_value) for value in (tf1_value, *tf1_sources)]
    pairs += [(tf1_value, value) for value in port_sources]
    for tf1, port in ((tf1_value.array, port_value.array) for tf1_value, port_value in pairs):
        if tf1 is None or port is None or tf1.size != port.size or max(tf1.ndim, port.ndim) > _MOST_AXES:
            continue
        if not _are_close(tf1.reshape(-1), port.reshape(-1)):
            yield from itertools.islice(_rearranged(tf1, port), 1)


def _rearranged(tf1: np.ndarray, port: np.ndarray) -> Iterator[str]:
    if tf1.ndim != port.ndim:
        who, more, fewer = ("TF1", tf1, port) if tf1.ndim > port.ndim else ("the port", port, tf1)
        for axes in itertools.permutations(range(more.ndim)):
            if _are_close(more.transpose(axes).reshape(-1), fewer.reshape(-1)):
                yield f"{who} flattens an array with its axes in a different order: transposed to {axes}, it agrees"
        return
    for axis in range(tf1.ndim):
        if _are_close(np.flip(tf1, axis), port):
            yield f"one program flips an array along axis {axis}"
    for axes in itertools.permutations(range(tf1.ndim)):
        if _are_close(tf1.transpose(axes), port):
            yield f"order of axes differs: TF1's array transposed to {axes} is the port's array"


def _are_close(tf1: np.ndarray, port: np.ndarray) -> bool:
    return (
        tf1.shape == port.shape
        and tf1.dtype.kind == port.dtype.kind
        and bool(np.allclose(tf1, port, rtol=_CLOSE, atol=0))
    )


def _constant(divergence: Divergence) -> Iterator[str]:
    """Yield the attribute or constant that makes the difference, as the other rules have no name for it."""
    kind_of_attribute, _, which = divergence.attribute.partition(" ")
    op_type = divergence.types[0]
    words = ""
    if divergence.attribute and not _name_of_attribute(op_type, divergence.attribute):
        words = _CONSTANTS.get(op_type, "") if kind_of_attribute == "input" else ""
        name = which if kind_of_attribute == "attribute" else _argument(op_type, int(which))
        words = words or f"{_ARGUMENTS.get(name, name)} of {op_type}"
    elif divergence.constants is not None and not divergence.attribute:
        words = "constant"
    arrays = divergence.constants
    if words and arrays is not None and min(arrays[0].size, arrays[1].size) > 1 and arrays[1].dtype.kind == "f":
        yield f"{words} differs: {_how_arrays_differ(*arrays)}"
    elif words and divergence.attribute:
        yield _differs(words, *divergence.attributes[divergence.attribute])


def _argument(op_type: str, number: int) -> str:
    """Return the name of an input of an op."""
    arguments = op_def(op_type).input_arg
    return arguments[number].name if number < len(arguments) else arguments[-1].name


def _how_arrays_differ(tf1: np.ndarray, port: np.ndarray) -> str:
    """Return how one array becomes the other, or else their first entries that differ."""
    if tf1.size != port.size:
        return f"shapes {tf1.shape} (TF1), {port.shape} (port)"
    pair = [np.squeeze(np.asarray(each, np.float64)) for each in (tf1, port)]
    if pair[0].shape == pair[1].shape:
        for axis in range(pair[0].ndim):
            if np.allclose(np.flip(pair[0], axis), pair[1], rtol=_CLOSE):
                return f"the port's array is TF1's, reversed along axis {axis}"
        factor = _factor(*map(Value.of, pair))
        if factor is not None:
            return f"the port's array is {factor:.4g} times TF1's"
        for axis in range(pair[0].ndim):
            if (order := _order_of(*(np.moveaxis(each, axis, 0) for each in pair))) is not None:
                return f"the port's array is TF1's in another order along axis {axis}: {and_more(map(str, order), 8)}"
    for axes in itertools.permutations(range(min(pair[0].ndim, _MOST_AXES))):
        if pair[0].ndim <= _MOST_AXES and _are_close(pair[0].transpose(axes).reshape(-1), pair[1].reshape(-1)):
            return f"the port's array is TF1's, transposed to {axes}"
    flat = [each.reshape(-1) for each in pair]
    differing = np.flatnonzero(~np.isclose(flat[0], flat[1], rtol=_SAME, atol=0))
    first = int(differing[0]) if differing.size else 0
    where = ", ".join(map(str, np.unravel_index(first, tf1.shape)))
    count = f"{differing.size:,} of {flat[0].size:,} entries, the first at [{where}]"
    return f"{flat[0][first]:.6g} (TF1), {flat[1][first]:.6g} (port) in {count}"


def _order_of(tf1: np.ndarray, port: np.ndarray) -> list[int] | None:
    """Return the rows of TF1's array that the port's rows are, if these are the same rows in another order."""
    if len(tf1) < 2:
        return None
    rows = [each.reshape(len(each), -1) for each in (tf1, port)]
    order = [int(np.abs(rows[0] - row).max(axis=1).argmin()) for row in rows[1]]
    is_order = len(set(order)) == len(order) and order != sorted(order)
    return order if is_order and np.allclose(rows[0][order], rows[1], rtol=_CLOSE) else None


def _ops(divergence: Divergence) -> Iterator[str]:
    """Yield what only one program computes on the way to where both agree again; if it has no name, the ops."""
    computed = tuple(in_order(region) for region in divergence.regions)
    only = [set(each) - PLUMBING for each in only_in(*divergence.regions)]
    is_order = divergence.confirmed and (divergence.is_order or not any(only)) and computed[0] != computed[1]
    if is_order and sorted(computed[0]) == sorted(computed[1]):
        yield _differs("order of ops", *(and_more(each, 6, ", then ") for each in _without_common_ends(*computed)))
        return
    found = list(_named_ops(divergence))
    yield from found
    if divergence.confirmed and not found and divergence.constants is None and only[0] != only[1]:
        sides = [", ".join(sorted(kinds)) for kinds in only]
        if all(sides):
            yield _differs("what is computed", *sides)
        else:
            yield f"only {'TF1' if sides[0] else 'the port'} computes {''.join(sides)}"


def _windows(divergence: Divergence) -> Iterator[str]:
    """Yield how a convolution or a pooling differs, if a program pads for it by an op of its own."""
    pair = padded_window(divergence.regions)
    if pair is None or not divergence.confirmed:
        return
    tf1, port = pair
    for name in ("attribute strides", "attribute ksize", "attribute dilations"):
        if tf1.attributes.get(name) != port.attributes.get(name):
            yield _differs(_ATTRIBUTES[name], tf1.attributes[name], port.attributes[name])
    pads = [[_move(op) for op in region if kind(op) == "Pad"] for region in divergence.regions]
    words = [
        " after ".join([op.attributes.get("attribute padding", "none"), *of_program])
        for op, of_program in zip(pair, pads, strict=True)
    ]
    if words[0] != words[1]:
        yield _differs("padding", *words)


def _axes(divergence: Divergence) -> Iterator[str]:
    """Yield the op that one program computes along other axes, which it transposes before and after."""
    computed = [set(in_order(region)) - MOVES for region in divergence.regions]
    transposes = [[op for op in region if op.type == "Transpose"] for region in divergence.regions]
    if computed[0] and computed[0] == computed[1] and len(transposes[0]) != len(transposes[1]):
        words = [and_more(dict.fromkeys(map(_move, each)), 4) or "not transposed" for each in transposes]
        yield _differs(f"axes of {and_more(sorted(computed[0]), 3)}", *words)


def _moves(divergence: Divergence) -> Iterator[str]:
    """Yield how the programs move numbers, where they compute nothing else on the way to where both agree again."""
    moves = [[op for op in region if kind(op) in MOVES] for region in divergence.regions]
    if [kind(op) for op in moves[0]] == [kind(op) for op in moves[1]]:
        return
    words = [and_more(dict.fromkeys(map(_move, each)), 4) or "nothing" for each in moves]
    if not all(moves):
        who, one = ("TF1", words[0]) if moves[0] else ("the port", words[1])
        yield f"only {who} moves or crops elements: {one}"
    else:
        yield _differs("arrangement of the elements", *words)


def _broadcasts(divergence: Divergence) -> Iterator[str]:
    """Yield an operand that is equal in both programs, and has its elements along another axis."""
    if kind_of(divergence.types[0]) not in _ARITHMETIC or kind_of(divergence.types[0]) != kind_of(divergence.types[1]):
        return
    for tf1, port in itertools.product(*divergence.sources):
        shapes = [tuple(each.shape) for each in (tf1, port)]
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        same = tf1.size == port.size and _are_close(*(each.reshape(-1) for each in tf1.paired_with(port)))
        if same and padded[0] != padded[1]:
            axes = [[axis - rank for axis, size in enumerate(shape) if size > 1] for shape in padded]
            words = [f"{axis} in shape {shape}" for axis, shape in zip(axes, shapes, strict=True)]
            yield _differs(f"axis of an operand of {divergence.types[0]}", *words)
            return


def _other_axes(divergence: Divergence) -> Iterator[str]:
    """Yield the axes that differ, where no substitute for them can be made."""
    op_type = divergence.types[0]
    for name, values in divergence.attributes.items():
        kind_of_attribute, _, which = name.partition(" ")
        argument = _argument(op_type, int(which)) if kind_of_attribute == "input" else which
        if _ARGUMENTS.get(argument, argument) == "axis":
            yield _differs(f"axis of {op_type}", *values)


def _move(op: TracedOp) -> str:
    """Return an op with its constants."""
    constants = [text for name, text in op.attributes.items() if name.startswith("input ")]
    return f"{op.type} {' to '.join(constants[:2])}".strip()


def _in_words(divergence: Divergence) -> list[str]:
    """Return what each program computes that the other one does not, with the constants."""
    moves = ([_move(op) for op in region if kind(op) not in PLUMBING] for region in divergence.regions)
    return [and_more(each, 6) for each in _without_common_ends(*moves)]


def _without_common_ends(tf1: list[str], port: list[str]) -> tuple[list[str], list[str]]:
    """Return two lists without what they have in common at the start and at the end."""
    most = min(len(tf1), len(port))
    start = next((n for n in range(most) if tf1[n] != port[n]), most)
    tf1, port, most = tf1[start:], port[start:], most - start
    end = next((n for n in range(most) if tf1[-1 - n] != port[-1 - n]), most)
    return tf1[: len(tf1) - end], port[: len(port) - end]


def _named_ops(divergence: Divergence) -> Iterator[str]:
    """Yield what only one program computes, for kinds of ops that have a name of their own."""
    only_tf1, only_port = only_in(*divergence.regions)
    draws = divergence.draws
    if draws[0] != draws[1]:
        yield f"only {'TF1' if draws[0] else 'the port'} has a dropout, or another random op, here"
    missing, added = sorted(_ACTIVATIONS & only_tf1.keys()), sorted(_ACTIVATIONS & only_port.keys())
    if (missing == ["Tanh"] and added == ["Erf"]) or (missing == ["Erf"] and added == ["Tanh"]):
        forms = {"Tanh": "the tanh approximation", "Erf": "erf"}
        yield _differs("form of GELU", forms[missing[0]], forms[added[0]])
    elif missing and added:
        yield _differs("activation", ", ".join(missing), ", ".join(added))
    elif (missing and _CLIPS & only_port.keys()) or (added and _CLIPS & only_tf1.keys()):
        yield _differs("activation", *_in_words(divergence))
    elif missing:
        yield f"the port has no activation where TF1 has {', '.join(missing)}"
    elif added:
        yield f"TF1 has no activation where the port has {', '.join(added)}"
    for words, alternatives in _ALTERNATIVES.items():
        pair = sorted(alternatives & only_tf1.keys()), sorted(alternatives & only_port.keys())
        if all(pair):
            yield _differs(words, *map(", ".join, pair))
    computed = {"TF1": only_tf1.keys() - PLUMBING, "the port": only_port.keys() - PLUMBING}
    for who, kinds in computed.items():
        if len(set().union(*computed.values())) == 1 and kinds <= _ONLY_IN_ONE.keys():
            yield from (f"only {who} {_ONLY_IN_ONE[kind]}" for kind in kinds)
    yield from _constants(divergence, only_tf1, only_port)


def _training_mode(divergence: Divergence) -> list[str]:
    """Return the statistics with which the programs normalize, if they differ."""
    sides = zip((divergence.tf1, divergence.port), divergence.regions, strict=True)
    statistics = [_statistics([*region, *([] if op is None else [op])]) for op, region in sides]
    differ = all(statistics) and statistics[0] != statistics[1]
    return [_differs("training mode of a normalization", *statistics)] if differ else []


def _statistics(region: Sequence[TracedOp]) -> str:
    """Return which statistics a region normalizes with; an empty text if it does not normalize."""
    fused = [op.attributes.get("attribute is_training") for op in region if kind(op) == "FusedBatchNormV3"]
    kinds = {kind(op) for op in region}
    if "True" in fused or not kinds.isdisjoint(("Mean", "SquaredDifference")):
        return "statistics of the batch"
    return "moving averages" if fused or any("batchnorm/" in op.name for op in region) else ""


def _uses(divergence: Divergence) -> Iterator[str]:
    """Yield the inputs that only one program uses on the way."""
    for who, mine, other in (("TF1", *divergence.uses), ("the port", *divergence.uses[::-1])):
        for position in sorted(mine - other):
            yield f"only {who} uses input {position} here"


def _constants(divergence: Divergence, *only: Counter[str]) -> Iterator[str]:
    """Yield the numbers that only one program multiplies by, divides by, or adds; or both, by different ops."""
    regions = [computing(region) for region in divergence.regions]
    both = [[op for op in region if kind(op) in _ARITHMETIC] for region in regions]
    if all(len(each) == 1 and each[0].constants for each in both) and any(only[0]) and any(only[1]):
        yield _differs("arithmetic", *(f"{_ARITHMETIC[kind(op)]} {_number(op)}" for (op,) in both))
        return
    for who, region, kinds, others in zip(("TF1", "the port"), regions, only, only[::-1], strict=True):
        arithmetic = [op for op in region if kind(op) in _ARITHMETIC.keys() & kinds.keys()]
        computes = divergence.constants is not None and others <= kinds  # TF1 computes what is a constant in the port
        if len(arithmetic) == 1 and not {*_ARITHMETIC, "FloorDiv"} & others.keys() and not computes:
            yield f"only {who} {_ARITHMETIC[kind(arithmetic[0])]} {_number(arithmetic[0])}"


def _number(op: TracedOp) -> str:
    """Return the constant that an op takes, as text."""
    return next((text for name, text in op.attributes.items() if name.startswith("input ")), "another tensor")


def _limits(divergence: Divergence) -> Iterator[str]:
    """Yield the constants that two ops of different types compare one tensor with."""
    tf1, port = (
        [text for name, text in op.attributes.items() if name.startswith("input ")]
        for op in (divergence.tf1, divergence.port)
        if op is not None
    )
    if divergence.types[0] != divergence.types[1] and len(tf1) == len(port) == 1 and tf1 != port:
        yield _differs("limit or threshold", *map("{} of {}".format, (tf1[0], port[0]), divergence.types))


def _inputs(divergence: Divergence) -> Iterator[str]:
    """Yield what one op takes in TF1 and not in the port, if the op is the same in both."""
    tf1, port = divergence.taken
    if divergence.attributes or divergence.types[0] != divergence.types[1] or not tf1 or len(tf1) != len(port):
        return
    if sorted(tf1) == sorted(port):
        if tf1 != port and divergence.types[0] in _ORDERED:
            yield f"order of the inputs differs: {', '.join(tf1)} (TF1), {', '.join(port)} (port)"
        return
    differing = [pair for pair in zip(tf1, port, strict=True) if pair[0] != pair[1] and pair[1]]
    for mine, other in differing[:1]:
        yield f"{divergence.types[0]} takes different tensors: {mine} (TF1), {other} (port)"


def _scale(divergence: Divergence) -> Iterator[str]:
    """Yield the factor between two values, if it is one number."""
    tf1, port = divergence.values
    if tf1 is None or port is None or "ReadVariableOp" in divergence.types:
        return
    factor = _factor(tf1, port)
    if factor is not None and f"{factor:.4g}" != "1":
        yield f"a factor differs: the port's values are {factor:.4g} times TF1's"


def _factor(tf1_value: Value, port_value: Value) -> float | None:
    """Return the number that each element of TF1's array is multiplied by in the port's, if it is one number."""
    if tf1_value.shape != port_value.shape:
        return None
    tf1, port = tf1_value.paired_with(port_value)
    if tf1.dtype.kind != "f" or not np.array_equal(tf1 == 0, port == 0):
        return None
    ratios = (port[tf1 != 0] / tf1[tf1 != 0]).astype(np.float64)
    return float(np.median(ratios)) if ratios.size > 1 and np.ptp(ratios) <= _CLOSE * abs(np.median(ratios)) else None


def _regularization(port: np.ndarray | None, tf1: np.ndarray | None) -> Iterator[str]:
    if port is None or tf1 is None:
        yield f"only {'TF1' if port is None else 'the port'} has a regularizer"
    elif tf1:
        differs = f"factor of a regularizer differs: the port's regularization loss is {port / tf1:.4g} times TF1's"
        if _is_close(port / tf1, 2) or _is_close(port / tf1, 0.5):
            yield f"{differs}. tf.nn.l2_loss(w) is sum(w**2) / 2; Keras's L2 takes sum(w**2)"
        else:
            yield f"{differs}, or one program has more regularizers"


def _is_close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=_CLOSE)


def causes_of_loss(divergence: Divergence, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the likely causes of a divergence of two losses, given what each of their inputs is, in words."""
    found = [*_of_labels(divergence, inputs), *_of_other_inputs(divergence, inputs)]
    general = causes(replace(divergence, uses=(frozenset(), frozenset())))
    found += (each for each in general if "activation" not in each)
    names = [name for name in divergence.attributes if name.startswith("input ")]
    if not found and names and divergence.confirmed:
        op_type = divergence.types[0]
        words = [(_argument(op_type, int(name.removeprefix("input "))), divergence.attributes[name]) for name in names]
        found.append(_differs(op_type, *(", ".join(f"{what} {pair[who]}" for what, pair in words) for who in (0, 1))))
    if not found:
        kinds = (dict.fromkeys(each.type for each in ops if kind(each) not in PLUMBING) for ops in divergence.regions)
        found.append(
            "the loss is computed by {} (TF1), {} (port)".format(*(", ".join(of) or "nothing" for of in kinds))
        )
    return tuple(dict.fromkeys(found))


def _of_labels(divergence: Divergence, inputs: Sequence[str]) -> Iterator[str]:
    """Yield what one program computes from the labels only, and the other one does not, or differently."""
    labels = {position for position, name in enumerate(inputs) if name.startswith("labels")}
    uses_labels_only = [bool(given) and given <= labels for given in divergence.given]
    for who, op, is_only in zip(("TF1", "the port"), (divergence.tf1, divergence.port), uses_labels_only, strict=True):
        if op is not None and is_only and not all(uses_labels_only):
            what = "masks" if op.type in _COMPARISONS else "weights"
            yield f"only {who} {what} the loss by the labels ({op.type})"
    constants = _differing_constants(divergence)
    if all(uses_labels_only) and constants is not None and divergence.types in (("Mul", "Mul"), ("AddV2", "AddV2")):
        is_factor = divergence.types[0] == "Mul"
        values = (f"{1 - each if is_factor else each:.4g}" for each in constants)
        yield _differs("label smoothing" if is_factor else "label smoothing (the number added to labels)", *values)


def _of_other_inputs(divergence: Divergence, inputs: Sequence[str]) -> Iterator[str]:
    """Yield which outputs or labels only one program uses."""
    tf1, port = (sorted({inputs[position] for position in each}) for each in divergence.given)
    if tf1 and port and tf1 != port and divergence.types[0] == divergence.types[1]:
        yield f"the loss takes different tensors: {', '.join(tf1)} (TF1), {', '.join(port)} (port)"


_Step = Mapping[str, Any]  # what was recorded of a training step, by name

UPDATED = {"weights", "slots", "updates"}
# How titles begin that `_updates` computes: they make the updates of both programs agree.
COMPUTED = ("clipping of gradients differs: ", "weight decay differs: only ")
AVERAGED = {WEIGHT_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES}
_AVERAGES = {"moving_averages", UPDATES_OF_AVERAGES}
_OPTIMIZER_DIFFERS = (
    "the optimizer or one of its hyperparameters differs: epsilon (1e-8 in tf.train.AdamOptimizer, 1e-7 in Keras), "
    "momentum, Nesterov momentum, decay, the initial values of its slots (1 in tf.train.RMSPropOptimizer), or what it "
    "does to gradients, such as clipping"
)


def causes_of_training(
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    port_loss: Callable[[int], float | None] = lambda step: None,
) -> dict[str, tuple[str, ...]]:
    """Return the likely causes of each part of a step that differs by itself, the likeliest first, by the part's name.

    A part that differs only because an earlier one does is left out: gradients differ where outputs do. Given a step,
    ``port_loss`` returns the port's loss of TF1's outputs, without regularization.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in comparison.names:
        if all(by_name.get(name, True) for by_name in comparison.steps.values()):
            continue
        if name in _AVERAGES and not _AVERAGES.isdisjoint(found):
            continue
        if name in _AVERAGES and not all(by_name.get(name, True) for by_name in comparison.steps.values()):
            momenta = [each for each in hyperparameters if each.of != OPTIMIZER and each.name == MOMENTUM]
            if momenta:
                found[name] = tuple(map(_hyperparameter, momenta))
                continue
        if name == "loss" and (of_loss := tuple(_loss_of_outputs(port, tf1, port_loss(0)))):
            found[name] = of_loss
            continue
        differing = (step for step, by_name in comparison.steps.items() if not by_name.get(name, True))
        step = next((each for each in differing if not _follows(name, comparison.steps[each])), None)
        if step is None or any(name in kinds and not kinds.isdisjoint(found) for kinds in (UPDATED, AVERAGED)):
            continue
        port_step, tf1_step = port.steps[step], tf1.steps[step]
        causes_of_part: Iterable[str] = ()
        in_both = name in port_step and name in tf1_step
        if name == "learning_rate":
            causes_of_part = itertools.islice(_learning_rate(port.steps, tf1.steps), 1)
        elif name == "regularization_loss":
            losses = port_step.get(name), tf1_step.get(name)
            regularizers = [each for each in hyperparameters if each.name == REGULARIZER]
            causes_of_part = causes(losses=losses, hyperparameters=regularizers)
        elif name == "loss" and in_both:
            causes_of_part = _loss(port_step, tf1_step, port.replicas)
        elif name == "gradients" and in_both:
            causes_of_part = _gradients(port_step[name], tf1_step[name], comparison.steps[step][name])
        elif name in UPDATED:
            of_optimizer = [_hyperparameter(each) for each in hyperparameters if each.of == OPTIMIZER]
            causes_of_part = [*of_optimizer, *_updates(port.steps, tf1.steps)]
            causes_of_part += _slices(comparison.steps[step], port.in_slices)
            causes_of_part += [] if causes_of_part else [_OPTIMIZER_DIFFERS]
        elif name in AVERAGED:
            causes_of_part = _averages_of_weights(port.steps, tf1.steps)
        elif name in _AVERAGES and "moving_averages" in port_step and "moving_averages" in tf1_step:
            causes_of_part = itertools.islice(_moving_averages(port.steps, tf1.steps), 1)
        found[name] = tuple(dict.fromkeys(causes_of_part))
    return found


# The parts of a step on which a part depends. Updates are made of TF1's gradients where a port is guided.
_DEPENDS_ON = {
    "metrics": {"outputs"},
    "regularization_loss": set[str](),
    "loss": {"outputs", "regularization_loss"},
    "gradients": {"outputs", "regularization_loss", "loss"},
    **{name: {"outputs"} for name in _AVERAGES},
    **{name: {"learning_rate"} for name in UPDATED},
    **{name: {"learning_rate", *UPDATED} for name in AVERAGED},
}


def _follows(name: str, comparisons: Mapping[str, Comparison]) -> bool:
    """Return whether a part of a step differs because an earlier part of it does."""
    return not all(comparisons.get(each, True) for each in _DEPENDS_ON.get(name, ()))


def _gradients(port: Mapping[str, Any], tf1: Mapping[str, Any], comparison: Comparison) -> Iterator[str]:
    """Yield how gradients differ, of the last variable first: backpropagation reaches that one first."""
    differing = [leaf.path for leaf in comparison.leaves if not leaf.ok]
    names: list[str] = [name for name in reversed(list(tf1)) if any(f"[{name!r}]" in path for path in differing)]
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        if only := [name for name in mine if name not in other]:
            yield f"only {who} trains {and_more(only, 4)}"
    if port.keys() != tf1.keys():
        return
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        stopped = [name for name in names if mine.get(name) is None and other.get(name) is not None]
        if stopped:
            yield f"in {who}, the gradient of {stopped[0]} is None: tf.stop_gradient, or the loss does not depend on it"
    for name in names:
        arrays = tf1.get(name), port.get(name)
        if any(array is None for array in arrays):
            continue
        ratio = _factor(*(Value.of(np.asarray(array)) for array in arrays))
        if ratio is not None:
            yield f"the gradient of {name} in the port is {ratio:.4g} times TF1's: it is scaled or clipped differently"
            return
    if names:
        yield f"the outputs and the loss agree, but the gradient of {names[0]} does not: look for tf.stop_gradient"


def _updates(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[str]:
    """Yield what explains the updates of a port that is guided by TF1, in the first step in which they differ."""
    for step in range(1, len(tf1)):
        before = tf1[step - 1]["weights"].items()
        stays = [
            who
            for who, steps in (("TF1", tf1), ("the port", port))
            if all(np.array_equal(steps[step]["weights"].get(name), array) for name, array in before)
        ]
        if len(stays) == 1:
            yield f"only {stays[0]} changes no weight in step {step}: it accumulates gradients over several steps"
            return
    for step in range(1, len(tf1)):
        before = tf1[step - 1]["weights"]
        given = {name: array for name, array in tf1[step]["gradients"].items() if array is not None and name in before}
        weights = {name: np.asarray(before[name], np.float64) for name in given if name in port[step]["weights"]}
        after = [{name: each[step]["weights"][name] for name in weights} for each in (tf1, port)]
        if not weights or any(of[name].shape != weights[name].shape for of in after for name in weights):
            return
        updates = [_Update({name: of[name] - weights[name] for name in weights}, weights) for of in after]
        differing = [name for name in weights if not updates[0].is_close(name, updates[1].by_name[name])]
        if not differing:
            continue
        found = [updates[1].decay_beside(updates[0], name) for name in differing]
        decays = [decay for decay in found if decay is not None]
        if len(decays) == len(differing) and np.ptp(decays) <= 0.01 * max(map(abs, decays)):
            who, names = "the port" if decays[0] > 0 else "TF1", and_more(differing, 4)
            yield f"weight decay differs: only {who} takes {abs(decays[0]):.4g} of {names} away in each step"
        rate = tf1[step].get("learning_rate")
        gradients = {name: np.asarray(given[name], np.float64) for name in weights}
        words = [] if rate is None else [each.in_words(gradients, float(rate)) for each in updates]
        if words and all(words) and words[0] != words[1]:
            yield _differs("clipping of gradients", *words)
        if words and all(words):
            return
        ratios = [_projection(updates[1].by_name[name], updates[0].by_name[name]) for name in differing]
        of_tf1 = {name: ratio * updates[0].by_name[name] for name, ratio in zip(differing, ratios, strict=True)}
        ratio = float(np.median(ratios))
        if abs(ratio - 1) > 0.01 > np.ptp(ratios) / abs(ratio or 1) and all(
            map(updates[1].is_close, of_tf1, of_tf1.values())
        ):
            yield f"the port's updates of {and_more(differing, 4)} are {ratio:.4g} times TF1's"
        return


def cause_of_updates(port: Training, tf1: Training, differing: Sequence[int]) -> str:
    """Return why updates by gradients that grow from step to step differ, given the steps that differ."""
    for cause in _updates(port.steps, tf1.steps):
        return cause
    norms = [float(np.sqrt(sum(np.square(g).sum() for g in step["gradients"].values()))) for step in tf1.steps]
    agreeing = [step for step in range(1, len(norms)) if step not in differing]
    if agreeing and agreeing[-1] < differing[0]:
        at = f"{norms[agreeing[-1]]:.3g} and below"
        return f"clipping of gradients differs: the updates agree for gradients of norm {at}, and differ above"
    if agreeing and agreeing[0] > differing[-1]:
        at = f"{norms[agreeing[0]]:.3g} and above"
        return f"epsilon of the optimizer differs: the updates agree for gradients of norm {at}, and differ below"
    return f"updates differ for gradients of norm {norms[differing[0]]:.3g} to {norms[differing[-1]]:.3g}"


class _Update(NamedTuple):
    """What a step adds to weights, by name, and the weights before it, whose rounding it has."""

    by_name: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]

    def is_close(self, name: str, expected: np.ndarray) -> bool:
        """Return whether the update of a variable is an expected one, but for rounding."""
        rounding = 2 * np.spacing(np.float32(np.abs(self.weights[name]).max(initial=0)))
        atol = float(rounding) + _CLOSE * np.abs(expected).max(initial=0)
        return bool((np.abs(self.by_name[name] - expected) <= atol).all())

    def decay_beside(self, other: _Update, name: str) -> float | None:
        """Return the share of a weight that this takes away and the other update does not, if that is all."""
        weights = self.weights[name]
        if not weights.any():
            return None
        difference = self.by_name[name] - other.by_name[name]
        decay = -float((difference * weights).sum() / np.square(weights).sum())
        return decay if self.is_close(name, other.by_name[name] - decay * weights) else None

    def in_words(self, gradients: Mapping[str, np.ndarray], rate: float) -> str:
        """Return how gradient descent clips gradients to make these updates, in words; empty if that is not known."""
        plain = {name: -rate * gradient for name, gradient in gradients.items()}
        if self._agrees(plain):
            return "none"
        own = {name: _projection(self.by_name[name], array) for name, array in plain.items()}
        total = np.sqrt(sum(float(np.square(array).sum()) for array in gradients.values()))
        largest = max(gradients, key=lambda name: float(np.abs(gradients[name]).max(initial=0)))
        if self._agrees({name: own[largest] * array for name, array in plain.items()}):
            return f"global norm {own[largest] * total:.4g}"
        if self._agrees({name: own[name] * array for name, array in plain.items()}):
            norms = [own[name] * float(np.linalg.norm(gradients[name])) for name in own if own[name] < 1 - _CLOSE]
            if norms and np.ptp(norms) <= 0.01 * max(norms):
                return f"norm of each {np.median(norms):.4g}"
        limit = max(float(np.abs(array).max(initial=0)) for array in self.by_name.values())
        if self._agrees({name: np.clip(array, -limit, limit) for name, array in plain.items()}):
            return f"each element {limit / rate:.4g}"
        return ""

    def _agrees(self, expected: Mapping[str, np.ndarray]) -> bool:
        return all(self.is_close(name, array) for name, array in expected.items())


def _projection(update: np.ndarray, plain: np.ndarray) -> float:
    """Return the factor of an array that is nearest to another one."""
    square = float(np.square(plain).sum())
    return float((update * plain).sum()) / square if square else 1.0


def _averages_of_weights(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[str]:
    """Yield how moving averages of weights differ; each step of the port begins with TF1's."""
    of_tf1 = _decays(tf1, tf1)
    in_words = {f"{decay:.4g}" for decay in of_tf1.values()}
    in_tf1 = in_words.pop() if len(in_words) == 1 else ""
    if WEIGHT_AVERAGES not in port[0]:
        its_decay = f", decay {in_tf1}" if in_tf1 else ""
        yield f"only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage{its_decay})"
        return
    of_port = _decays(port, tf1)
    if not of_tf1 or not of_port:
        who = " and ".join(name for name, found in (("TF1", of_tf1), ("the port", of_port)) if not found)
        yield f"moving averages of weights are computed differently: in {who}, not as decay * average + (1 - decay) * w"
        return
    for step, decay in of_port.items():
        if step in of_tf1 and f"{decay:.4g}" != f"{of_tf1[step]:.4g}":
            where = "" if in_tf1 else f" in step {step}"
            yield _differs(f"decay of the moving averages of weights{where}", f"{of_tf1[step]:.4g}", f"{decay:.4g}")
            if not in_tf1:
                yield "TF1's decay changes from step to step: num_updates of tf.train.ExponentialMovingAverage"
            return


def _decays(steps: Sequence[_Step], before: Sequence[_Step]) -> dict[int, float]:
    """Return the decay of moving averages of weights in each step that shows one, given the steps they begin after."""
    found = {}
    for step in range(1, len(steps)):
        averages = steps[step].get(WEIGHT_AVERAGES, {})
        weights, earlier = steps[step]["weights"], before[step - 1].get(WEIGHT_AVERAGES, {})
        names = [name for name in averages if name in weights and name in earlier]
        if names:
            after, towards, start = (
                np.concatenate([np.ravel(of[name]).astype(np.float64) for name in names])
                for of in (averages, weights, earlier)
            )
            share = _projection(after - start, towards - start)
            rest = np.linalg.norm(after - start - share * (towards - start))
            if rest <= _OF_ROUNDING * np.linalg.norm(after - start):
                found[step] = 1 - share
    return found


def _learning_rate(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[str]:
    port_rates, tf1_rates = ([float(step["learning_rate"]) for step in steps] for steps in (port, tf1))
    for how, of_step, port_part, tf1_part in (
        ("late", "the step before", port_rates[1:], tf1_rates[:-1]),
        ("early", "the next step", port_rates[:-1], tf1_rates[1:]),
    ):
        if len(set(tf1_rates)) > 1 and np.allclose(port_part, tf1_part, rtol=_SAME, atol=0):
            yield f"the port's learning-rate schedule is one step {how}: its rate is TF1's rate of {of_step}"
    step = next(step for step, rate in enumerate(tf1_rates) if rate != port_rates[step])
    yield f"learning rate differs in step {step}: {tf1_rates[step]:g} (TF1), {port_rates[step]:g} (port)"


def _loss_of_outputs(port: Training, tf1: Training, loss: float | None) -> Iterator[str]:
    """Yield how the two losses of TF1's outputs differ in the first step, if they do."""
    if loss is not None and not math.isclose(loss, _unregularized_loss(tf1.steps[0]), rel_tol=_CLOSE):
        yield from _loss({"loss": loss, "outputs": tf1.steps[0]["outputs"]}, tf1.steps[0], port.replicas)


def _unregularized_loss(step: _Step) -> float:
    regularization = step.get("regularization_loss")
    return float(step["loss"]) - (0.0 if regularization is None else float(regularization))


def _loss(port_step: _Step, tf1_step: _Step, replicas: int) -> Iterator[str]:
    port, tf1 = _unregularized_loss(port_step), _unregularized_loss(tf1_step)
    if not port or not tf1:
        return
    shapes = [np.shape(leaf) for leaf in leaves_by_path(tf1_step["outputs"]).values() if leaf is not None]
    sizes = sorted({size for shape in shapes for size in (*shape, math.prod(shape))})  # a loss may be a mean over these
    size = next((size for size in sizes if size > 1 and _is_close(max(port / tf1, tf1 / port), size)), None)
    if replicas > 1 and _is_close(port, tf1 * replicas):
        yield (
            f"the port's loss is not scaled for replicas: it is {replicas} times TF1's. Each replica divides by the "
            "size of its own part of the batch, and their losses are summed; tf.nn.compute_average_loss divides by the "
            "size of the whole batch"
        )
    elif replicas > 1 and _is_close(port * replicas, tf1):
        yield (
            f"the port's loss is scaled for replicas twice: TF1's is {replicas} times as large. The losses of Keras 3 "
            "already divide by the number of replicas"
        )
    elif size is None:
        yield f"the loss or the weight of a loss differs: the port's loss is {port / tf1:.6g} times TF1's"
    else:
        larger, smaller = ("the port", "TF1") if port > tf1 else ("TF1", "the port")
        yield f"{larger} sums a loss where {smaller} takes the mean: it is {size} times as large, a size of the outputs"


def _slices(comparisons: Mapping[str, Comparison], in_slices: Collection[str]) -> Iterator[str]:
    leaves = (leaf for name in UPDATED if name in comparisons for leaf in comparisons[name].leaves)
    differing = [leaf.path for leaf in leaves if not leaf.ok]
    names = [name for name in sorted(in_slices) if any(path.endswith(f"[{name!r}]") for path in differing)]
    if all(any(path.endswith(f"[{name!r}]") for name in names) for path in differing):
        yield (
            f"gradients of {', '.join(names)} come in slices: TF1's optimizers add up the slices of a row, Keras 3's "
            "square each of them, and TF1's momentum and RMSProp leave rows without slices as they are. Pass "
            "tf.convert_to_tensor(gradient) to Keras's Adam; in place of other optimizers, return the optimizer of "
            "tf.compat.v1.train"
        )


def _moving_averages(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[str]:
    """Yield the cause for each moving average that differs."""
    for name in sorted(port[0]["moving_averages"].keys() & tf1[0]["moving_averages"].keys()):
        port_values, tf1_values = (
            [np.asarray(step["moving_averages"][name]) for step in steps] for steps in (port, tf1)
        )
        if port_values[0].dtype.kind in "biu":  # a count, such as the global step
            continue
        port_stays, tf1_stays = _stays(port_values, tf1_values), _stays(tf1_values, port_values)
        if port_stays and not tf1_stays:
            yield f"the port does not update its moving averages: {name} never changes. Call it with training=True"
        elif tf1_stays and not port_stays:
            yield f"TF1 does not update its moving averages: {name} never changes. Run tf.GraphKeys.UPDATE_OPS"
        elif not np.array_equal(port_values[0], tf1_values[0]):
            yield "batch-norm momentum (decay) differs, or only one program averages the unbiased variance"


def _stays(values: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Return whether no step changes a variable, which may begin each step with the other program's value."""
    return len(values) > 1 and all(
        np.array_equal(value, before) or np.array_equal(value, other)
        for value, before, other in zip(values[1:], values, others, strict=False)
    )
