"""A likely cause of a difference, the forms in which causes are written, and the words for ops in them.

`of_values` makes a cause of two values, `in_one_program` one of what only one program does. Both make the remedy, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from detrand.validation.audit.hyperparameters import ACTIVATION, BATCH_AXIS, INITIAL_RMS, MOMENTUM, OPTIMIZER, RATE
from detrand.validation.diagnosis.op_kinds import kind
from detrand.validation.frameworks.traces import (
    AXIS_OF_SOFTMAX,
    COMPARISON,
    DIVISOR,
    EXCHANGED_BRANCHES,
    ORDER_OF_CHANNELS,
    ORDER_OF_OPERANDS,
    TracedOp,
)
from detrand.validation.results import AuditedHyperparameter, Fault, OwnForm

CLOSE = 1e-4  # relative tolerance for a ratio that is a number with a meaning


class Cause(NamedTuple):
    """A likely cause.

    Attributes:
      title: the cause in one line, with both values.
      confirmed: how it was confirmed; empty if it is only possible.
      line: which of a training's lines is its place; empty for that of the optimizer.
      fault: what it says of the fault.
      remedy: what to change in the port; empty if that is not known.
      own_form: what a framework with a form of its own of the remedy looks it up by, with TF1's value; None if no
        framework has one.
    """

    title: str
    confirmed: str = ""
    line: str = ""
    fault: Fault = Fault.OTHER
    remedy: str = ""
    own_form: tuple[OwnForm, str] | None = None


def describe_causes(found: Sequence[str]) -> str:
    """Return causes as text."""
    if len(found) == 1:
        return f"Likely cause: {found[0]}"
    return "\n".join(["Likely causes, the likeliest first:", *(f"  {cause}" for cause in found)])


def of_values(
    what: str, tf1: object, port: object, confirmed: str = "", *, fault: Fault = Fault.VALUE, remedy: str | None = None
) -> Cause:
    """Return the cause that something has different values; the remedy is TF1's, unless another one is given."""
    remedy = use_value(tf1, what) if remedy is None else remedy
    return Cause(differs(what, tf1, port), confirmed, fault=fault, remedy=remedy)


def differs(what: str, tf1: object, port: object) -> str:
    """Return in words that something has different values."""
    return f"{what} differs: {tf1} (TF1), {port} (port)"


def use_value(tf1: object, what: str = "") -> str:
    """Return the remedy for a port that has another value than TF1, or one where TF1 has none."""
    if what and f"{tf1}" in ("True", "False"):
        return f"set {what} to {tf1} in the port"
    return "leave this out in the port" if f"{tf1}" == "none" else f"use {tf1} in the port" if f"{tf1}" else ""


def use_order(tf1: object) -> str:
    """Return the remedy for a port that has TF1's values in a different order."""
    return f"use this order in the port: {tf1}"


def in_one_program(who: str, does: str, confirmed: str = "", *, fault: Fault = Fault.ONLY_IN_ONE) -> Cause:
    """Return the cause that only TF1 or only the port does something."""
    return Cause(f"only {who} {does}", confirmed, fault=fault, remedy=add_or_remove(who))


def add_or_remove(who: str) -> str:
    """Return the remedy for what only TF1 or only the port does."""
    return "add this to the port" if who == "TF1" else "remove this from the port"


def of_tensors(op_type: str, tf1: str, port: str, fault: Fault) -> Cause:
    """Return the cause that an op takes a tensor in the port that is not the counterpart of TF1's."""
    title = f"{op_type} takes different tensors: {tf1} (TF1), {port} (port)"
    return Cause(title, fault=fault, remedy=f"pass the port's counterpart of {tf1} here")


def of_hyperparameter(each: AuditedHyperparameter, count: int = 1) -> Cause:
    """Return the cause that is a hyperparameter of different values, of one owner or of several."""
    is_of_optimizer, fault = each.of == OPTIMIZER, Fault.VALUE
    if each.name in (ACTIVATION, RATE):
        fault = Fault.ACTIVATION if each.name == ACTIVATION else Fault.DROPOUT
    of_all = of_values(each.name, each.tf1, each.port, fault=fault)
    if each.name == MOMENTUM and not is_of_optimizer:
        of_all = of_momentum(each)
    if each.name == BATCH_AXIS:
        of_all = of_all._replace(fault=Fault.AXES, own_form=(OwnForm.BATCH_FIRST, each.tf1))
    if count > 1:
        return of_all
    owner, remedy = "the optimizer" if is_of_optimizer else each.of, of_all.remedy
    if is_of_optimizer and each.name == INITIAL_RMS and each.tf1 == "1":
        of_all = of_all._replace(own_form=(OwnForm.INITIAL_RMS, each.tf1))
        remedy = (
            "return tf.compat.v1.train.RMSPropOptimizer in the port, or a subclass of keras.optimizers.RMSprop whose "
            "add_optimizer_variables makes the velocities of ones: Keras has no argument for them"
        )
    elif is_of_optimizer and each.tf1 == "none":
        remedy = f"leave out {each.name} in the port's optimizer"
    title = f"{each.name} differs in {owner}: {each.tf1} (TF1), {each.port} (port)"
    return of_all._replace(title=title, remedy=remedy)


def of_momentum(each: AuditedHyperparameter, confirmed: str = "") -> Cause:
    """Return the cause that is the momentum of moving averages, of whatever layer."""
    return of_values(MOMENTUM, each.tf1, each.port, confirmed)._replace(own_form=(OwnForm.MOMENTUM, each.tf1))


def is_close(value: float, expected: float) -> bool:
    """Return whether a ratio is a number with a meaning, but for rounding."""
    return math.isclose(value, expected, rel_tol=CLOSE)


# What people call attributes of ops.
_ATTRIBUTES = {
    "attribute epsilon": "epsilon",
    "attribute padding": "padding",
    "attribute strides": "stride",
    "attribute dilations": "dilation rate",
    "attribute ksize": "size of the pooling window",
    "attribute data_format": "data format (channels first or last)",
    "attribute is_training": "training mode of a normalization",
    "attribute transpose_b": "transposition of the kernel",
    "attribute transpose_a": "transposition of the input",
    "attribute align_corners": "alignment of corners in a resize",
    "attribute half_pixel_centers": "half pixel centers in a resize",
    f"attribute {ORDER_OF_CHANNELS}": "order of the channels of a block",
    "attribute block_size": "size of the blocks",
    ORDER_OF_OPERANDS: "order of the operands",
    EXCHANGED_BRANCHES: "branches of a condition",
    AXIS_OF_SOFTMAX: "axis of Softmax",
    COMPARISON: "comparison",
    f"attribute {DIVISOR}": "divisor of the variance of n elements",
}
# Names of attributes that mean something else in other ops.
_ATTRIBUTES_OF = {
    ("LeakyRelu", "attribute alpha"): "slope of the leaky ReLU",
    ("LRN", "attribute alpha"): "alpha of the local response normalization",
    ("LRN", "attribute beta"): "beta of the local response normalization",
    ("LRN", "attribute bias"): "bias of the local response normalization",
    ("LRN", "attribute depth_radius"): "depth radius of the local response normalization",
}
# Names of arguments that TensorFlow's own functions call differently.
_ARGUMENTS = {
    **dict.fromkeys(("reduction_indices", "dimension", "concat_dim", "split_dim", "axis"), "axis"),
    **{"perm": "order of the axes", "paddings": "padding", "multiples": "number of repetitions"},
    **{"t": "number where the condition is true", "e": "number where the condition is false"},
}
# What people call the constant that an op takes.
CONSTANTS = {
    **{
        "Mul": "factor",
        "RealDiv": "divisor",
        "AddV2": "constant added",
        "Sub": "constant subtracted",
        "Pow": "exponent",
    },
    **{"Maximum": "lower limit", "Minimum": "upper limit", "GreaterEqual": "threshold", "Greater": "threshold"},
    **{"Less": "upper limit of a comparison", "FloorDiv": "integer divisor"},
}
ARITHMETIC = {
    **{"Mul": "multiplies by", "RealDiv": "divides by", "AddV2": "adds", "Sub": "subtracts"},
    "Pow": "raises to the power",
}
_TO_NUMBERS = {
    **{"Sub": "subtracts from {}", "RealDiv": "divides {} by the tensor"},
    "Pow": "raises {} to the power of the tensor",
}
_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")  # of a slice: axes of which a bound does not count


def name_of_attribute(op_type: str, name: str) -> str:
    """Return what people call an attribute of an op; an empty text if there is no other word for it."""
    return _ATTRIBUTES_OF.get((op_type, name), _ATTRIBUTES.get(name, ""))


def argument_in_words(op: TracedOp | None, name: str) -> str:
    """Return what people call an attribute or a constant input of an op of TF1, given its name in a divergence."""
    kind_of_attribute, _, which = name.partition(" ")
    argument = name_of_argument(op, int(which)) if kind_of_attribute == "input" else which
    return _ARGUMENTS.get(argument, argument)


def name_of_argument(op: TracedOp | None, number: int) -> str:
    """Return the name of a constant input of an op of TF1."""
    arguments = op.arguments if op is not None else ()
    return next(iter(arguments[number:] or arguments[-1:]), f"input {number}")


def op_with_constants(op: TracedOp) -> str:
    """Return an op with its constants."""
    constants = [text for name, text in op.attributes.items() if name.startswith("input ")]
    return f"{op.type} {' to '.join(constants[:2])}".strip()


def slice_in_words(op: TracedOp | None) -> str:
    """Return the indices that a slice takes, as in Python; empty if they are not constants."""
    bounds = [] if op is None else [op.constants.get(f"input {number}") for number in (1, 2, 3)]
    if op is None or any(each is None for each in bounds):
        return ""
    masks = {name: int(op.attributes.get(f"attribute {name}_mask", "0")) for name in _MASKS}
    found = []
    for axis, (begin, end, step) in enumerate(
        zip(*(np.ravel(each) for each in bounds if each is not None), strict=True)
    ):
        is_set = {name: bool(mask >> axis & 1) for name, mask in masks.items()}
        first, last = ("" if is_set[name] else str(bound) for name, bound in (("begin", begin), ("end", end)))
        names = {"ellipsis": "...", "new_axis": "None", "shrink_axis": str(begin)}
        special = next((text for name, text in names.items() if is_set[name]), "")
        found.append(special or f"{first}:{last}" + ("" if step == 1 else f":{step}"))
    return f"[{', '.join(found)}]"


def computes_with_number(op: TracedOp, computed: str | None = None) -> str:
    """Return what an arithmetic op does in words, with the constant that it takes, or a number that is computed."""
    number = number_of(op, computed)
    if kind(op) == "Mul" and len({*op.inputs}) == 1:
        return "squares"
    if "input 0" in op.attributes and kind(op) in _TO_NUMBERS:
        return _TO_NUMBERS[kind(op)].format(number)
    return f"{ARITHMETIC[kind(op)]} {number}"


def number_of(op: TracedOp, computed: str | None = None) -> str:
    """Return the constant that an op takes, or a number that the program computes, as text."""
    constants = (in_one_number(op, text) for name, text in op.attributes.items() if name.startswith("input "))
    return next(constants, computed or "another tensor")


def in_one_number(op: TracedOp | None, text: str) -> str:
    """Return the text of a constant input of an op as one number, if it is an array of one number."""
    names = [] if op is None else [name for name, each in op.attributes.items() if each == text]
    arrays = [op.constants[name] for name in names if op is not None and name in op.constants]
    return f"{arrays[0].flat[0]:.6g}" if arrays and is_uniform(arrays[0]) else text


def is_uniform(array: np.ndarray) -> bool:
    """Return whether an array is the same number everywhere, and not only one number."""
    return array.size > 1 and array.dtype.kind == "f" and not np.ptp(array)
