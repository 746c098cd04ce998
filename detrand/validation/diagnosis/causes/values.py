"""Causes that are values: attributes of ops, hyperparameters of a layer, and the numbers that the programs take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detrand.validation.audit.hyperparameters import (
    ACTIVATION,
    DROPOUT,
    FORGET_BIAS,
    INITIALIZER,
    MOMENTUM,
    RATE,
    layer_of,
)
from detrand.validation.diagnosis.causes.arrays import how_arrays_differ
from detrand.validation.diagnosis.causes.cause import (
    ARITHMETIC,
    CONSTANTS,
    Cause,
    argument_in_words,
    computes_with_number,
    in_one_number,
    in_one_program,
    is_close,
    is_uniform,
    name_of_attribute,
    of_hyperparameter,
    of_values,
    op_with_constants,
    slice_in_words,
    use_order,
)
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.op_kinds import COMPARISONS, MOVES, PLUMBING, computing, is_in, kind, padded_window
from detrand.validation.frameworks.traces import (
    AXIS_OF_SOFTMAX,
    CONVOLUTIONS,
    DIVISOR,
    EXCHANGED_BRANCHES,
    ORDER_OF_CHANNELS,
    ORDER_OF_OPERANDS,
    TracedOp,
)
from detrand.validation.results import AuditedHyperparameter, Fault, OwnForm

_OWN_FORMS: Mapping[str | tuple[str, str], OwnForm] = {
    "attribute half_pixel_centers": OwnForm.PIXEL_CENTERS,
    f"attribute {ORDER_OF_CHANNELS}": OwnForm.CHANNELS_OF_BLOCK,
    f"attribute {DIVISOR}": OwnForm.VARIANCE_OF_ALL,
    ("LRN", "attribute depth_radius"): OwnForm.RADIUS_OF_RESPONSES,
    ("LRN", "attribute alpha"): OwnForm.ALPHA_OF_RESPONSES,
}
_LIMITS = {"Minimum", "Maximum", *COMPARISONS}
_LINEAR = {"MatMul", *CONVOLUTIONS, *MOVES, "Sum", "Mean"}
_WITH_ARITHMETIC = {"FloorDiv", "Log1p", "Expm1", "SquaredDifference", "L2Loss"}  # which do some of it themselves


def of_attributes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the attributes that differ; only the one that makes the difference, if that is known."""
    for name, values in divergence.attributes.items():
        words = name_of_attribute(divergence.types[0], name)
        if words and divergence.attribute in ("", name):  # where one makes the difference, the others make none
            tf1, port = values
            if name == "attribute is_training":
                cause = _of_mode(tf1_trains=tf1 == "True", port_trains=port == "True")
            elif name == "attribute padding":
                cause = _of_padding(tf1, port, divergence.types[0])
            elif name == AXIS_OF_SOFTMAX:
                cause = of_values(
                    words, tf1, port, fault=Fault.AXES, remedy=f"compute {divergence.types[1]} along TF1's axis"
                )
            elif name == EXCHANGED_BRANCHES:
                title, remedy = "the two branches of a condition are exchanged", "exchange the two branches in the port"
                cause = Cause(title, fault=Fault.ORDER, remedy=remedy)
            else:
                cause = of_values(words, tf1, port, remedy=use_order(tf1) if name == ORDER_OF_OPERANDS else None)
            form = _OWN_FORMS.get((divergence.types[0], name)) or _OWN_FORMS.get(name)
            yield cause._replace(own_form=(form, tf1)) if form else cause


def _of_padding(tf1: str, port: str, op_type: str) -> Cause:
    form = OwnForm.CROP_SAME if "Backprop" in op_type else OwnForm.PAD_SAME
    if port.endswith("that count"):  # as elements of a mean
        remedy = f"use {tf1} in the port, and leave the padding out of the mean, as count_include_pad=False does"
        return of_values("padding", tf1, port, remedy=remedy)
    own_form = (form, tf1) if tf1 == "SAME" else None
    return of_values("padding", tf1, port)._replace(own_form=own_form)


def unconfirmed(divergence: Divergence) -> list[Cause]:
    """Return the attributes that differ where TF1's value, and no attribute of TF1, makes the rest agree."""
    is_unconfirmed = divergence.confirmed and not divergence.attribute and not any(of_windows(divergence))
    return list(of_attributes(divergence)) if is_unconfirmed else []


def of_windows(divergence: Divergence) -> Iterator[Cause]:
    """Yield how a convolution or a pooling differs, if a program pads for it by an op of its own."""
    pair = padded_window(divergence.regions)
    if pair is None or not divergence.confirmed:
        return
    tf1, port = pair
    for name in ("attribute strides", "attribute ksize", "attribute dilations"):
        if tf1.attributes.get(name) != port.attributes.get(name):
            yield of_values(name_of_attribute(tf1.type, name), tf1.attributes[name], port.attributes[name])
    pads = [[op_with_constants(op) for op in region if kind(op) == "Pad"] for region in divergence.regions]
    words = [
        " after ".join([op.attributes.get("attribute padding", "none"), *of_program])
        for op, of_program in zip(pair, pads, strict=True)
    ]
    if words[0] != words[1]:
        steps = [_steps_before(op) for op in divergence.regions[0] if kind(op) == "Pad"]
        cause = _of_padding(words[0], words[1], divergence.types[0])
        causal = f'pad with {steps[0]} steps before the first one, as padding="causal" does' if any(steps) else ""
        yield cause._replace(remedy=causal or cause.remedy)


def _steps_before(pad: TracedOp) -> int:
    """Return how many steps an op adds before a sequence, if it adds nothing else; otherwise 0."""
    widths = pad.constants.get("input 1", np.zeros((0, 2), int))
    steps = int(widths[1, 0]) if len(widths) == 3 else 0
    return steps if widths.sum() == steps else 0


def of_padding_mode(divergence: Divergence) -> Iterator[Cause]:
    """Yield that only one program pads with elements of the array, and the other one with a constant."""
    ops = [op for op in (divergence.tf1, divergence.port) if op is not None and kind(op) == "Pad"]
    modes = [op.attributes.get("attribute mode", "CONSTANT") for op in ops]
    if divergence.confirmed and len(set(modes)) == 2 and "CONSTANT" in modes:
        yield of_values("mode of the padding", *modes)


def of_training_mode(divergence: Divergence) -> list[Cause]:
    """Return the statistics with which the programs normalize, if they differ."""
    sides = zip((divergence.tf1, divergence.port), divergence.regions, strict=True)
    tf1, port = (_normalizes_in_training([*([] if op is None else [op]), *region]) for op, region in sides)
    if tf1 is None or port is None or tf1 == port:
        return []
    return [_of_mode(tf1_trains=tf1, port_trains=port)]


def _of_mode(*, tf1_trains: bool, port_trains: bool) -> Cause:
    """Return the cause that the programs normalize in different modes."""
    words = ("statistics of the batch" if trains else "moving averages" for trains in (tf1_trains, port_trains))
    fault = Fault.NORMALIZES_IN_TRAINING if port_trains else Fault.NORMALIZES_IN_INFERENCE
    return of_values(name_of_attribute("", "attribute is_training"), *words, fault=fault)


def _normalizes_in_training(region: Sequence[TracedOp]) -> bool | None:
    """Return whether a region normalizes with statistics of the batch; None if it does not normalize."""
    for op in region:
        is_fused = kind(op) == "FusedBatchNormV3"
        # Pooling and layer normalization take means over other axes.
        is_over_batch = kind(op) == "Mean" and 0 in op.constants.get("input 1", np.zeros(1))
        if is_over_batch or (is_fused and op.attributes["attribute is_training"] == "True"):
            return True
        if is_fused or "batchnorm/" in op.name:
            return False
    return None


def of_layer(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Cause]:
    """Yield the hyperparameters of the layer that diverges: a fused op and its parts have no attributes in common."""
    for each in hyperparameters:
        # A recurrent cell is in a loop, and what differs comes out of the loop.
        owner = layer_of(each.of) if each.name in (INITIALIZER, FORGET_BIAS) else each.of
        # A layer that changes little may have an output that agrees with its input; then only the port's op is in it.
        if each.name not in (RATE, MOMENTUM, ACTIVATION) and (  # a momentum decides no output
            divergence.op.startswith(f"{owner}/") or is_in(divergence.port, {owner})
        ):
            yield of_hyperparameter(each)


def of_dropout(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Cause]:
    """Yield the rates of a dropout, if they differ."""
    constants, is_dropout = differing_constants(divergence), DROPOUT in divergence.op.lower()
    if constants is not None and is_dropout and divergence.types == ("GreaterEqual", "GreaterEqual"):
        rates = constants
    elif constants is not None and divergence.types == ("Mul", "Mul") and min(constants) > 1:
        rates = 1 - 1 / constants[0], 1 - 1 / constants[1]  # dropout divides the elements that it keeps by 1 - rate
    else:
        yield from (of_hyperparameter(each) for each in hyperparameters if each.name == RATE and is_dropout)
        return
    in_words = f"{rates[0]:.3g}", f"{rates[1]:.3g}"
    if is_close(rates[0] + rates[1], 1) and not is_close(*rates):
        words = "a keep_prob is used as a rate (or a rate as a keep_prob): dropout rate"
        remedy = f"use the rate {in_words[0]} in the port: keep_prob {in_words[1]} is a rate of {in_words[0]}"
        yield of_values(words, *in_words, fault=Fault.DROPOUT, remedy=remedy)
    elif is_dropout:
        yield of_values("dropout rate", *in_words, fault=Fault.DROPOUT)


def of_constant(divergence: Divergence) -> Iterator[Cause]:
    """Yield the attribute or constant that makes the difference, as the other rules have no name for it."""
    op_type = divergence.types[0]
    words = ""
    if divergence.attribute and not name_of_attribute(op_type, divergence.attribute):
        words = CONSTANTS.get(op_type, "") if divergence.attribute.startswith("input ") else ""
        words = words or f"{argument_in_words(divergence.tf1, divergence.attribute)} of {op_type}"
    elif divergence.constants is not None and not divergence.attribute:
        words = "constant"
    arrays = divergence.constants
    slices = [slice_in_words(op) for op in (divergence.tf1, divergence.port)] if op_type == "StridedSlice" else ["", ""]
    if words and all(slices) and slices[0] != slices[1]:
        yield of_values("slice", *slices)
    elif words and arrays is not None and all(map(is_uniform, arrays)):
        yield of_values(words, *(f"{array.flat[0]:.6g}" for array in arrays))
    elif words and arrays is not None and min(arrays[0].size, arrays[1].size) > 1 and arrays[1].dtype.kind == "f":
        yield Cause(f"{words} differs: {how_arrays_differ(*arrays)}", remedy="compute the array as TF1 does")
    elif words and divergence.attribute:
        texts = zip((divergence.tf1, divergence.port), divergence.attributes[divergence.attribute], strict=True)
        of_tf1, of_port = (in_one_number(op, text) for op, text in texts)
        remedy = f"use axis {of_tf1} in the port" if words == f"axis of {op_type}" else None
        yield of_values(words, of_tf1, of_port, remedy=remedy)


def of_epsilon(divergence: Divergence) -> Iterator[Cause]:
    """Yield the small numbers that the programs add, if they differ."""
    constants = differing_constants(divergence)
    if constants is not None and divergence.types == ("AddV2", "AddV2") and 0 < max(constants) <= 0.1:
        yield of_values("epsilon", f"{constants[0]:g}", f"{constants[1]:g}")


def of_limits(divergence: Divergence) -> Iterator[Cause]:
    """Yield the constants that two ops of different types compare one tensor with."""
    if not set(divergence.types) <= _LIMITS:
        return
    tf1, port = (
        [text for name, text in op.attributes.items() if name.startswith("input ")]
        for op in (divergence.tf1, divergence.port)
        if op is not None
    )
    if divergence.types[0] == divergence.types[1] or not len(tf1) == len(port) == 1:
        return
    if _have_same_constant(divergence):
        if set(divergence.types) <= COMPARISONS.keys():
            yield of_values("comparison", *(COMPARISONS[each] for each in divergence.types))
    elif tf1 != port:
        yield of_values("limit or threshold", *map("{} of {}".format, (tf1[0], port[0]), divergence.types))


def _have_same_constant(divergence: Divergence) -> bool:
    """Return whether two ops take the same numbers as the same operand, in whatever shape."""
    tf1, port = ({} if op is None else op.constants for op in (divergence.tf1, divergence.port))
    return any(name in port and np.array_equal(np.ravel(tf1[name]), np.ravel(port[name])) for name in tf1)


def differing_constants(divergence: Divergence) -> tuple[float, float] | None:
    """Return the one constant input in which the two ops differ: TF1's value and the port's."""
    found = [pair for name, pair in divergence.attributes.items() if name.startswith("input ")]
    if len(found) != 1:
        return None
    try:
        return float(found[0][0]), float(found[0][1])
    except ValueError:  # not scalars
        return None


def differing_factors(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> tuple[str, str] | None:
    """Return the numbers by which two regions multiply, if they differ in nothing else, and compute more than that."""
    factors, others = [], []
    for region in (tf1, port):
        ops = [op for op in computing(region) if kind(op) not in PLUMBING]
        scaling = [op for op in ops if kind(op) in ("Mul", "RealDiv")]
        others.append(sorted("MatMul" if kind(op) == "Einsum" else kind(op) for op in ops if op not in scaling))
        numbers = [_multiplier(op) for op in scaling]
        if not numbers or None in numbers:
            return None
        factors.append(math.prod(number for number in numbers if number is not None))
    if others[0] != others[1] or not others[0] or not {*others[0]} <= _LINEAR or is_close(*factors):
        return None
    of_tf1, of_port = (f"{factor:.6g}" for factor in factors)
    return of_tf1, of_port


def _multiplier(op: TracedOp) -> float | None:
    """Return the number by which an op multiplies, or by one over which it divides; None if it takes no number."""
    names = ("input 1",) if kind(op) == "RealDiv" else ("input 0", "input 1")
    array = next((op.constants[name] for name in names if name in op.constants), None)
    if array is None or not array.any() or (array != array.flat[0]).any():
        return None
    number = float(array.flat[0])
    return 1 / number if kind(op) == "RealDiv" else number


def of_arithmetic(divergence: Divergence, *only: Counter[str]) -> Iterator[Cause]:
    """Yield the numbers that only one program multiplies by, divides by, or adds; or both, by different ops."""
    regions = [computing(region) for region in divergence.regions]
    both = [[op for op in region if kind(op) in ARITHMETIC] for region in regions]
    is_arithmetic = all(
        ops and all(op.constants for op in ops) and all(kind(op) in ARITHMETIC.keys() | PLUMBING for op in region)
        for ops, region in zip(both, regions, strict=True)
    )
    is_factor = {kind(op) for ops in both for op in ops} <= {"Mul", "RealDiv"} and max(map(len, both)) > 1
    in_words = [", then ".join(map(computes_with_number, ops)) for ops in both]
    if is_arithmetic and not is_factor and in_words[0] != in_words[1]:
        of_tf1, of_port = in_words
        yield of_values("arithmetic", of_tf1, of_port, remedy=f"compute the same in the port: TF1 {of_tf1}")
        return
    for side, (who, region, kinds, others) in enumerate(
        zip(("TF1", "the port"), regions, only, only[::-1], strict=True)
    ):
        arithmetic = [op for op in region if kind(op) in ARITHMETIC.keys() & kinds.keys()]
        computes = divergence.constants is not None and others <= kinds  # TF1 computes what is a constant in the port
        if len(arithmetic) == 1 and not (ARITHMETIC.keys() | _WITH_ARITHMETIC) & others.keys() and not computes:
            is_first = arithmetic[0] in (divergence.tf1, divergence.port)
            operand = (divergence.factors[side] or _other_operand(divergence, side)) if is_first else None
            yield in_one_program(who, computes_with_number(arithmetic[0], operand))


def _other_operand(divergence: Divergence, side: int) -> str | None:
    """Return the tensor that only the op of one program takes, the same for all iterations; None if it has no name."""
    mine, other = divergence.taken[side], divergence.taken[not side]
    found = [name for name in mine if name not in other]
    return iteration_of(found[0])[0] if other and len(found) == 1 < len(mine) and found[0] else None
