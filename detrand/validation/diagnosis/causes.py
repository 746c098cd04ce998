"""Likely causes of a difference: the known faults of ports that leave such evidence.

`causes` takes the evidence of a check that ran both programs once. Evidence is no proof, so causes are ordered by how
specific it is: a hyperparameter that differs at the first divergence comes before a ratio of two that could be chance.
A new cause is one more function that yields a `Cause`, called there.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detrand.arguments import and_more, plural
from detrand.comparison.values import LeafComparison
from detrand.validation.audit.hyperparameters import (
    ACTIVATION,
    BATCH_AXIS,
    DROPOUT,
    FORGET_BIAS,
    INITIAL_RMS,
    INITIALIZER,
    MOMENTUM,
    OPTIMIZER,
    RATE,
    REGULARIZER,
    layer_of,
)
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.layer_order import LayerOrder
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.op_kinds import (
    ACTIVATIONS,
    MOVES,
    NORMALIZATION,
    OF_LAST_AXIS,
    PLUMBING,
    as_written,
    chain,
    computing,
    form_of_gelu,
    in_order,
    is_in,
    is_unknown,
    kind,
    kind_of,
    names_of_activations,
    only_in,
    padded_window,
    slopes_of_leaky_relus,
)
from detrand.validation.frameworks.traces import CONVOLUTIONS, DIVISOR, ORDER_OF_CHANNELS, POOLINGS, TracedOp, Value
from detrand.validation.results import AuditedHyperparameter, Fault, OwnForm

CLOSE = 1e-4  # relative tolerance for a ratio that is a number with a meaning
_SAME = 1e-6  # relative tolerance for elements that two constants have in common
_MOST_AXES, _MOST_OPS, _MOST_LAYERS, _MOST_VERBS = 5, 6, 3, 3
_PADDING = "attribute padding"
_ATTRIBUTES = {
    "attribute epsilon": "batch-norm epsilon",
    _PADDING: "padding",
    "attribute strides": "stride",
    "attribute dilations": "dilation rate",
    "attribute ksize": "size of the pooling window",
    "attribute data_format": "data format (channels first or last)",
    "attribute is_training": "training mode of the batch norm",
    "attribute transpose_b": "transposition of the kernel",
    "attribute transpose_a": "transposition of the input",
    "attribute align_corners": "alignment of corners in a resize",
    "attribute half_pixel_centers": "pixel centers in a resize",
    f"attribute {ORDER_OF_CHANNELS}": "order of the channels of a block",
    "attribute block_size": "size of the blocks",
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
_OWN_FORMS: Mapping[str | tuple[str, str], OwnForm] = {
    "attribute half_pixel_centers": OwnForm.PIXEL_CENTERS,
    f"attribute {ORDER_OF_CHANNELS}": OwnForm.CHANNELS_OF_BLOCK,
    f"attribute {DIVISOR}": OwnForm.VARIANCE_OF_ALL,
    ("LRN", "attribute depth_radius"): OwnForm.RADIUS_OF_RESPONSES,
    ("LRN", "attribute alpha"): OwnForm.ALPHA_OF_RESPONSES,
}
_CLIPS = {"Minimum", "Maximum", "ClipByValue"}
_ARITHMETIC = {"Mul": "multiplies by", "RealDiv": "divides by", "AddV2": "adds", "Sub": "subtracts", "Pow": "takes to"}
_TO_NUMBERS = {"Sub": "subtracts from {}", "RealDiv": "divides {} by it", "Pow": "takes {} to its power"}
_WITH_ARITHMETIC = {"FloorDiv", "Log1p", "Expm1", "SquaredDifference", "L2Loss"}  # which do some of it themselves
CONSTANTS = {
    **{"Mul": "factor", "RealDiv": "divisor", "AddV2": "number added", "Sub": "number subtracted", "Pow": "exponent"},
    **{"Maximum": "lower limit", "Minimum": "upper limit", "GreaterEqual": "threshold", "Greater": "threshold"},
    **{"Less": "upper limit of a comparison", "FloorDiv": "integer divisor"},
}
# Names of arguments that TensorFlow's own functions call differently.
_ARGUMENTS = {
    **dict.fromkeys(("reduction_indices", "dimension", "concat_dim", "split_dim", "axis"), "axis"),
    **{"perm": "order of the axes", "paddings": "padding", "multiples": "number of repetitions"},
    **{"t": "number where the condition is true", "e": "number where the condition is false"},
}
_COMPARISONS = {"Less": "<", "LessEqual": "<=", "Greater": ">", "GreaterEqual": ">="}
_ELEMENTWISE = {*ACTIVATIONS, *_ARITHMETIC, *_CLIPS, "Abs", "Exp", "Log", "Neg", "Sqrt", "Rsqrt", "Square"} - {
    "Softmax"
}
_LIMITS = {"Minimum", "Maximum", *_COMPARISONS}
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
    "Sqrt": "takes a square root",
    "Log": "takes a logarithm",
    "Exp": "takes an exponential",
    "SelectV2": "chooses elements by a condition, as a mask by tf.where",
}
_CONDITIONS = {*("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")}
_CONDITIONS |= {*("LogicalAnd", "LogicalOr", "LogicalNot")}
_JOINING = {"ConcatV2", "Pack"}
_LAYERS = {"MatMul", "Einsum", *CONVOLUTIONS}
_LINEAR = {"MatMul", *CONVOLUTIONS, *MOVES, "Sum", "Mean"}
_DIVISIONS = {"RealDiv", "DivNoNan", "Div"}
_COUNTING = {"Mul", "SelectV2", *_CONDITIONS}
# Other types of ops that are used in place of each other.
_ALTERNATIVES = {
    "reduction": {"Mean", "Sum"},
    "division": {"RealDiv", "FloorDiv"},
    "resize method": {"ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "ResizeArea", "ScaleAndTranslate"},
    "pooling method": {"MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"},
}


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


def causes(
    divergence: Divergence | None = None,
    output: LeafComparison | None = None,
    losses: tuple[np.ndarray | None, np.ndarray | None] | None = None,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    *,
    draws_numpy: bool = False,
    random_ops: Sequence[Cause] = (),
) -> tuple[Cause, ...]:
    """Return the likely causes, the likeliest first; empty if none is known.

    Args:
      divergence: the first divergence; None if it is not known.
      output: the first output that differs; None if none does.
      losses: the regularization losses of the port and of TF1, each None if it has none; None if they agree.
      hyperparameters: those that differ.
      draws_numpy: whether a program may draw from NumPy's global generator, which is not seeded.
      random_ops: the random ops that only one program has.
    """
    found: list[Cause] = []
    if draws_numpy:
        title = (
            "a program draws from NumPy's global generator (np.random), which gives each run other numbers. Pass "
            "Migration(seed_numpy=True)"
        )
        found.append(Cause(title))
    found += random_ops
    if divergence is not None and divergence.hyperparameter is not None:
        return (of_hyperparameter(divergence.hyperparameter, divergence.count),)
    if divergence is not None and divergence.iterations is not None:
        tf1, port = divergence.iterations
        remedy = f"run the loop {plural(tf1, 'time')} in the port"
        return (of_values("number of iterations of a loop in Python", tf1, port, remedy=remedy),)
    if divergence is not None and divergence.layer_order is not None:
        return (_of_layer_order(divergence.layer_order),)
    if divergence is not None and divergence.is_swap and (exchanged := tuple(_exchanged(divergence))):
        return exchanged
    if divergence is not None and (shapes := tuple(_shapes(divergence))):
        return shapes
    if divergence is not None and (softmaxes := tuple(_softmaxes_along_other_axes(divergence))):
        return softmaxes
    possible = [] if divergence is None else unconfirmed(divergence)
    if divergence is not None:
        windows = list(_windows(divergence))
        found += windows if windows else [] if possible else _attributes(divergence)
        found += _of_layer(divergence, hyperparameters)
    if output is not None and output.reason == "dtype":
        found.append(of_values("dtype", output.desired.dtype, output.actual.dtype))
    elif divergence is not None and divergence.dtypes[0]:
        dtypes = [re.sub(r"<dtype: '(\w+)'>", r"\1", each) for each in divergence.dtypes]
        if not all(each.startswith(("int", "uint")) for each in dtypes):  # integers hold the same numbers
            found.append(of_values("dtype", *dtypes))
    if divergence is not None:
        found += _dropout(divergence, hyperparameters)
        found += _draws(divergence)
        found += _masked(divergence)
        found += _epsilon(divergence)
        found += list(_axes(divergence)) or _arrangement(divergence)
        found += _constant(divergence)
        found += _mode_of_padding(divergence)
        found += _training_mode(divergence) or _uses(divergence)
        found += _limits(divergence) if set(divergence.types) <= _LIMITS else ()
        found += [] if windows else _ops(divergence)
        found += _inputs(divergence)
        found += _scale(divergence)
        found += [] if found else _moves(divergence)
        found += [] if found else _broadcasts(divergence)
        found += [] if found else _other_axes(divergence)
        found += possible
    if losses is not None:
        found += _regularization(*losses)
    found += (of_hyperparameter(each) for each in hyperparameters if each.name in (INITIALIZER, REGULARIZER))
    return tuple(dict.fromkeys(found))


def describe_causes(found: Sequence[str]) -> str:
    """Return causes as text."""
    if len(found) == 1:
        return f"Likely cause: {found[0]}"
    return "\n".join(["Likely causes, the likeliest first:", *(f"  {cause}" for cause in found)])


def unconfirmed(divergence: Divergence) -> list[Cause]:
    """Return the attributes that differ where TF1's value, and no attribute of TF1, makes the rest agree."""
    is_unconfirmed = divergence.confirmed and not divergence.attribute and not any(_windows(divergence))
    return list(_attributes(divergence)) if is_unconfirmed else []


def _attributes(divergence: Divergence) -> Iterator[Cause]:
    for name, values in divergence.attributes.items():
        words = _name_of_attribute(divergence.types[0], name)
        if words and divergence.attribute in ("", name):  # where one makes the difference, the others make none
            tf1, port = values
            is_mode = name == "attribute is_training"
            fault = _mode_of(port_trains=port == "True") if is_mode else Fault.VALUE
            cause = (
                _of_padding(tf1, port, divergence.types[0])
                if name == _PADDING
                else of_values(words, tf1, port, fault=fault)
            )
            form = _OWN_FORMS.get((divergence.types[0], name)) or _OWN_FORMS.get(name)
            yield cause._replace(own_form=(form, tf1)) if form else cause


def _mode_of(*, port_trains: bool) -> Fault:
    """Return what two modes of a normalization are that differ."""
    return Fault.NORMALIZES_IN_TRAINING if port_trains else Fault.NORMALIZES_IN_INFERENCE


def _name_of_attribute(op_type: str, name: str) -> str:
    """Return what people call an attribute of an op; an empty text if there is no other word for it."""
    return _ATTRIBUTES_OF.get((op_type, name), _ATTRIBUTES.get(name, ""))


def differs(what: str, tf1: object, port: object) -> str:
    """Return in words that something has different values."""
    return f"{what} differs: {tf1} (TF1), {port} (port)"


def of_values(
    what: str, tf1: object, port: object, confirmed: str = "", *, fault: Fault = Fault.VALUE, remedy: str | None = None
) -> Cause:
    """Return the cause that something has different values; the remedy is TF1's, unless another one is given."""
    remedy = use_value(tf1) if remedy is None else remedy
    return Cause(differs(what, tf1, port), confirmed, fault=fault, remedy=remedy)


def use_value(tf1: object) -> str:
    """Return the remedy for a port that has another value than TF1, or one where TF1 has none."""
    return "leave this out in the port" if f"{tf1}" == "none" else f"use {tf1} in the port" if f"{tf1}" else ""


def use_order(tf1: object) -> str:
    """Return the remedy for a port that has TF1's values in another order."""
    return f"use this order in the port: {tf1}"


def in_one_program(who: str, does: str, confirmed: str = "", *, fault: Fault = Fault.ONLY_IN_ONE) -> Cause:
    """Return the cause that only TF1 or only the port does something."""
    return Cause(f"only {who} {does}", confirmed, fault=fault, remedy=add_or_remove(who))


def add_or_remove(who: str) -> str:
    """Return the remedy for what only TF1 or only the port does."""
    return "add this to the port" if who == "TF1" else "remove this from the port"


def _of_padding(tf1: str, port: str, op_type: str) -> Cause:
    form = OwnForm.CROP_SAME if "Backprop" in op_type else OwnForm.PAD_SAME
    if port.endswith("that count"):  # as elements of a mean
        remedy = f"use {tf1} in the port, and leave the padding out of the mean, as count_include_pad=False does"
        return of_values(_ATTRIBUTES[_PADDING], tf1, port, remedy=remedy)
    own_form = (form, tf1) if tf1 == "SAME" else None
    return of_values(_ATTRIBUTES[_PADDING], tf1, port)._replace(own_form=own_form)


def _of_layer_order(order: LayerOrder) -> Cause:
    """Return the cause that the programs compute layers in different orders."""
    first, then = (and_more(names, _MOST_LAYERS) for names in (order.first, order.then))
    comes, it = "comes" if len(order.first) == 1 else "come", "it" if len(order.then) == 1 else "them"
    title = f"order of layers differs: {first} {comes} before {then} in TF1, and after {it} in the port"
    return Cause(title, fault=Fault.ORDER, remedy=f"compute {first} before {then} in the port")


def _of_layer(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Cause]:
    """Yield the hyperparameters of the layer that diverges: a fused op and its parts have no attributes in common."""
    for each in hyperparameters:
        # A recurrent cell is in a loop, and what differs comes out of the loop.
        owner = layer_of(each.of) if each.name in (INITIALIZER, FORGET_BIAS) else each.of
        # A layer that changes little may have an output that agrees with its input; then only the port's op is in it.
        if each.name not in (RATE, MOMENTUM, ACTIVATION) and (  # a momentum decides no output
            divergence.op.startswith(f"{owner}/") or is_in(divergence.port, {owner})
        ):
            yield of_hyperparameter(each)


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


def _dropout(divergence: Divergence, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Cause]:
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


def _draws(divergence: Divergence) -> Iterator[Cause]:
    of_tf1, of_port = divergence.drawing
    if of_tf1 is not None and of_port is not None:
        masks = _mask(of_tf1), _mask(of_port)
        if divergence.is_order:
            words = "order of ops differs: the port has a dropout, or another random op, in another place"
            yield Cause(words, fault=Fault.RANDOM_OP_ELSEWHERE, remedy="move it to where TF1 has it")
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
    sign, numbers = _COMPARISONS.get(op.type, ""), [op.attributes.get(f"input {number}", "u") for number in (0, 1)]
    return f" {sign} ".join(numbers) if sign and numbers.count("u") == 1 else ""


def _epsilon(divergence: Divergence) -> Iterator[Cause]:
    constants = differing_constants(divergence)
    if constants is not None and divergence.types == ("AddV2", "AddV2") and 0 < max(constants) <= 0.1:
        yield of_values("epsilon", f"{constants[0]:g}", f"{constants[1]:g}")


def differing_constants(divergence: Divergence) -> tuple[float, float] | None:
    """Return the one constant input in which the two ops differ: TF1's value and the port's."""
    found = [pair for name, pair in divergence.attributes.items() if name.startswith("input ")]
    if len(found) != 1:
        return None
    try:
        return float(found[0][0]), float(found[0][1])
    except ValueError:  # not scalars
        return None


_REARRANGE = MOVES - {"Reshape", "Tile"}


def _shapes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the shapes of an array that both programs hold in one order, if they are different."""
    if not divergence.confirmed:
        return
    constant, then = divergence.tf1.constants.get("input 1") if divergence.tf1 else None, ""
    if constant is not None and divergence.types[0] == "Transpose":
        then = f", and then transpose it to {tuple(map(int, constant))}"
    elif divergence.types[1] == "Transpose":
        then = ", and leave out the transposition there"
    elif divergence.attribute == "input 1":
        argument = name_of_argument(divergence.tf1, 1)
        then = f", and then use TF1's {_ARGUMENTS.get(argument, argument)}: {divergence.attributes['input 1'][0]}"
    sources, port_value = divergence.sources, divergence.values[1]
    in_port = [*sources[1], *([] if port_value is None else [port_value])]
    for tf1, port in itertools.product(sources[0], in_port):
        sizes = [[size for size in each.shape if size > 1] for each in (tf1, port)]
        if tf1.size == port.size and len(tf1.shape) == len(port.shape) and sizes[0] != sizes[1]:
            pair = tf1.paired_with(port)
            if _are_close(*pair) and (pair[0] != pair[0][:1]).any():
                yield _of_shapes(tf1.shape, port.shape, then)
                return


def _of_shapes(tf1: tuple[int, ...], port: tuple[int, ...], then: str = "") -> Cause:
    remedy = f"give the array TF1's shape in the port{then}"
    return of_values("shape of an array", tf1, port, fault=Fault.AXES, remedy=remedy)


def _arrangement(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the elements of an array are rearranged: by the op itself, or by an op before it."""
    (tf1_value, port_value), (tf1_sources, port_sources) = divergence.values, divergence.sources
    if tf1_value is None or port_value is None:
        return
    moves = [Counter(kind(op) for op in region if kind(op) in _REARRANGE) for region in divergence.regions]
    loops = [any(op.body for op in region) for region in divergence.regions]  # which move numbers by other ops
    # Then an op before it is not at fault.
    is_moved_alike = bool(divergence.confirmed) and (moves[0] == moves[1] or loops[0] != loops[1])
    # Such an op takes axes in the order that it needs, so an order before it shows nothing.
    is_moved_alike |= any(kind(op) == "Einsum" or is_unknown(op.type) for region in divergence.regions for op in region)
    pairs = [(value, port_value) for value in (tf1_value, *tf1_sources)]
    pairs += [(tf1_value, value) for value in port_sources]
    for number, (tf1, port) in enumerate((of_tf1.array, of_port.array) for of_tf1, of_port in pairs):
        if tf1 is None or port is None or tf1.size != port.size or max(tf1.ndim, port.ndim) > _MOST_AXES:
            continue
        if not _are_close(tf1.reshape(-1), port.reshape(-1)):
            orders = _flattened(tf1, port, [value.array for value in port_sources])
            rearranged = _rearranged(tf1, port, divergence.regions) if not number or not is_moved_alike else ()
            yield from itertools.islice(itertools.chain(orders, rearranged), 1)


def _flattened(tf1: np.ndarray, port: np.ndarray, sources: Sequence[np.ndarray | None]) -> Iterator[Cause]:
    """Yield in which order the port flattens axes, or makes them of flat ones, where TF1 keeps the elements' order."""
    for source in sources:
        if source is None or source.size != port.size or not _are_close(source.reshape(-1), tf1.reshape(-1)):
            continue
        is_flattened = port.ndim < source.ndim
        whole, other = (source, port) if is_flattened else (port, source)
        for axes in itertools.permutations(range(whole.ndim)) if other.ndim < whole.ndim <= _MOST_AXES else ():
            arranged = whole.transpose(axes)
            if _are_close(arranged.reshape(-1), other.reshape(-1)):
                if not is_flattened and tf1.ndim == whole.ndim and tf1.shape not in (whole.shape, arranged.shape):
                    yield _of_shapes(tf1.shape, arranged.shape)
                    return
                what = "that are flattened" if is_flattened else "that a flat one becomes"
                form, order = OwnForm.FLATTEN_AXES if is_flattened else OwnForm.UNFLATTEN_AXES, tuple(range(whole.ndim))
                cause = of_values(f"order of the axes {what}", order, axes, fault=Fault.AXES, remedy=use_order(order))
                yield cause._replace(own_form=(form, str(order)))


def _rearranged(tf1: np.ndarray, port: np.ndarray, regions: Sequence[Sequence[TracedOp]]) -> Iterator[Cause]:
    """Yield how the elements of two arrays are rearranged, which regions of ops compute."""
    if tf1.ndim != port.ndim:
        who, more, fewer = ("TF1", tf1, port) if tf1.ndim > port.ndim else ("the port", port, tf1)
        for axes in itertools.permutations(range(more.ndim)):
            if _are_close(more.transpose(axes).reshape(-1), fewer.reshape(-1)):
                words = f"{who} flattens an array with its axes in a different order"
                is_port = who == "the port"
                own_form = (OwnForm.FLATTEN, "") if is_port else None
                order = axes if is_port else tuple(map(int, np.argsort(axes)))
                remedy = f"transpose it to {order} in the port before it is flattened"
                title = f"{words}: transposed to {axes}, it agrees"
                yield Cause(title, fault=Fault.AXES, remedy=remedy, own_form=own_form)
        return
    for axis in range(tf1.ndim):
        if _are_close(np.flip(tf1, axis), port):
            who = _only_one([any(map(_reverses, region)) for region in regions])
            does = f"flips an array along axis {axis}"
            yield (
                in_one_program(who, does, fault=Fault.AXES)
                if who
                else Cause(f"one program {does}", fault=Fault.AXES, remedy="let the port flip it as TF1 does")
            )
    for axes in itertools.permutations(range(tf1.ndim)):
        if _are_close(tf1.transpose(axes), port):
            who = _only_one([any(op.type == "Transpose" for op in region) for region in regions])
            words = f"order of axes differs: TF1's array transposed to {axes} is the port's array"
            back = tuple(map(int, np.argsort(axes)))
            leave_out = "leave out the transposition in the port"
            remedy = leave_out if who == "the port" else f"transpose the port's array to {back}"
            yield Cause(words, fault=Fault.AXES, remedy=remedy)


def _only_one(does: Sequence[bool]) -> str:
    """Return which program alone does something, given whether TF1 and the port do; empty if both do, or neither."""
    return "" if does[0] == does[1] else "TF1" if does[0] else "the port"


def _reverses(op: TracedOp) -> bool:
    """Return whether an op takes elements from the last to the first."""
    steps = op.constants.get("input 3", np.ones(1)) if kind(op) == "StridedSlice" else np.ones(1)
    return op.type == "ReverseV2" or bool((steps < 0).any())


def _are_close(tf1: np.ndarray, port: np.ndarray) -> bool:
    return (
        tf1.shape == port.shape
        and tf1.dtype.kind == port.dtype.kind
        and bool(np.allclose(tf1, port, rtol=CLOSE, atol=0))
    )


def _constant(divergence: Divergence) -> Iterator[Cause]:
    """Yield the attribute or constant that makes the difference, as the other rules have no name for it."""
    kind_of_attribute, _, which = divergence.attribute.partition(" ")
    op_type = divergence.types[0]
    words = ""
    if divergence.attribute and not _name_of_attribute(op_type, divergence.attribute):
        words = CONSTANTS.get(op_type, "") if kind_of_attribute == "input" else ""
        name = which if kind_of_attribute == "attribute" else name_of_argument(divergence.tf1, int(which))
        words = words or f"{_ARGUMENTS.get(name, name)} of {op_type}"
    elif divergence.constants is not None and not divergence.attribute:
        words = "constant"
    arrays = divergence.constants
    slices = [_slice(op) for op in (divergence.tf1, divergence.port)] if op_type == "StridedSlice" else ["", ""]
    if words and all(slices) and slices[0] != slices[1]:
        yield of_values("slice", *slices)
    elif words and arrays is not None and all(map(_is_uniform, arrays)):
        yield of_values(words, *(f"{array.flat[0]:.6g}" for array in arrays))
    elif words and arrays is not None and min(arrays[0].size, arrays[1].size) > 1 and arrays[1].dtype.kind == "f":
        yield Cause(f"{words} differs: {_how_arrays_differ(*arrays)}", remedy="compute the array as TF1 does")
    elif words and divergence.attribute:
        texts = zip((divergence.tf1, divergence.port), divergence.attributes[divergence.attribute], strict=True)
        of_tf1, of_port = (_in_one_number(op, text) for op, text in texts)
        remedy = f"use axis {of_tf1} in the port" if words == f"axis of {op_type}" else None
        yield of_values(words, of_tf1, of_port, remedy=remedy)


def _mode_of_padding(divergence: Divergence) -> Iterator[Cause]:
    """Yield that only one program pads with elements of the array, and the other one with a constant."""
    ops = [op for op in (divergence.tf1, divergence.port) if op is not None and kind(op) == "Pad"]
    modes = [op.attributes.get("attribute mode", "CONSTANT") for op in ops]
    if divergence.confirmed and len(set(modes)) == 2 and "CONSTANT" in modes:
        yield of_values("mode of the padding", *modes)


def _is_uniform(array: np.ndarray) -> bool:
    """Return whether an array is the same number everywhere, and not only one number."""
    return array.size > 1 and array.dtype.kind == "f" and not np.ptp(array)


def _in_one_number(op: TracedOp | None, text: str) -> str:
    """Return the text of a constant input of an op as one number, if it is an array of one number."""
    names = [] if op is None else [name for name, each in op.attributes.items() if each == text]
    arrays = [op.constants[name] for name in names if op is not None and name in op.constants]
    return f"{arrays[0].flat[0]:.6g}" if arrays and _is_uniform(arrays[0]) else text


def _slice(op: TracedOp | None) -> str:
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


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def name_of_argument(op: TracedOp | None, number: int) -> str:
    """Return the name of a constant input of an op of TF1."""
    arguments = op.arguments if op is not None else ()
    return next(iter(arguments[number:] or arguments[-1:]), f"input {number}")


def _how_arrays_differ(tf1: np.ndarray, port: np.ndarray) -> str:
    """Return how one array becomes the other, which is of the same size, or else their first entries that differ."""
    pair = [np.squeeze(np.asarray(each, np.float64)) for each in (tf1, port)]
    if pair[0].shape == pair[1].shape:
        for axis in range(pair[0].ndim):
            if np.allclose(np.flip(pair[0], axis), pair[1], rtol=CLOSE):
                return f"the port's array is TF1's, reversed along axis {axis}"
        factor = factor_between(*map(Value.of, pair))
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


def _masked(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the programs mask what Softmax takes, where they mask different elements."""
    if divergence.masking is None:
        return
    tf1, port = (each.elements for each in divergence.masking)
    shares = [f"{each.sum():,} of {each.size:,} elements" for each in (tf1, port)]
    remedy = "mask the elements in the port that TF1 masks"
    if not port.any() or not tf1.any():
        who, share = ("TF1", shares[0]) if tf1.any() else ("the port", shares[1])
        yield in_one_program(who, f"masks what Softmax takes ({share})", fault=Fault.SOFTMAX_MASK)
    elif shares[0] != shares[1]:
        yield of_values("mask of what Softmax takes", *shares, fault=Fault.SOFTMAX_MASK, remedy=remedy)
    else:
        title = f"the programs mask different elements of what Softmax takes, {tf1.sum():,} of {tf1.size:,} each"
        yield Cause(title, fault=Fault.SOFTMAX_MASK, remedy=remedy)


def _order_of(tf1: np.ndarray, port: np.ndarray) -> list[int] | None:
    """Return the rows of TF1's array that the port's rows are, if these are the same rows in another order."""
    rows = [each.reshape(len(each), -1) for each in (tf1, port)]
    order = [int(np.abs(rows[0] - row).max(axis=1).argmin()) for row in rows[1]]
    is_order = len(set(order)) == len(order) and order != sorted(order)
    return order if is_order and np.allclose(rows[0][order], rows[1], rtol=CLOSE) else None


def _ops(divergence: Divergence) -> Iterator[Cause]:
    """Yield what only one program computes on the way to where both agree again; if it has no name, the ops."""
    if divergence.confirmed and (factors := _factors(*divergence.regions)):
        # Products and sums of what is multiplied by a number are multiplied by it, so that the order does not matter.
        yield of_values("constant factor", *factors, remedy=f"use factors in the port whose product is {factors[0]}")
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
        ops = and_more(computed[0], _MOST_OPS)
        title = f"order of ops differs: the port has {ops} in another place"
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
        if all(sides):
            yield of_values("what is computed", *sides, fault=Fault.OPS, remedy="")  # these are names of ops
        else:
            yield in_one_program("TF1" if sides[0] else "the port", f"computes {''.join(sides)}", fault=Fault.OPS)


def _at_other_end(tf1: Sequence[str], port: Sequence[str]) -> str:
    """Return the pooling or activation with which one program begins and the other one ends; empty if there is none."""
    counts = Counter(tf1), Counter(port)
    if min(len(tf1), len(port)) < 2 or (counts[0] & counts[1]).total() < (counts[0] - counts[1]).total():
        return ""  # TF1 computes more that the port does not than what both compute
    ends = {each[0] for each, other in ((tf1, port), (port, tf1)) if each[0] == other[-1]} & (POOLINGS | ACTIVATIONS)
    return next((end for end in sorted(ends) if tf1.count(end) == port.count(end) == 1), "")


def _factors(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> tuple[str, str] | None:
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


def _of_order(tf1: list[str], port: list[str]) -> Cause:
    words = [and_more(each, 6, ", then ") for each in _without_common_ends(tf1, port)]
    return of_values("order of ops", *words, fault=Fault.ORDER, remedy=use_order(words[0]))


def _windows(divergence: Divergence) -> Iterator[Cause]:
    """Yield how a convolution or a pooling differs, if a program pads for it by an op of its own."""
    pair = padded_window(divergence.regions)
    if pair is None or not divergence.confirmed:
        return
    tf1, port = pair
    for name in ("attribute strides", "attribute ksize", "attribute dilations"):
        if tf1.attributes.get(name) != port.attributes.get(name):
            yield of_values(_ATTRIBUTES[name], tf1.attributes[name], port.attributes[name])
    pads = [[_move(op) for op in region if kind(op) == "Pad"] for region in divergence.regions]
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


def _axes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the op that one program computes along other axes, which it transposes before and after."""
    if all(divergence.regions):
        (tf1, of_tf1), (port, of_port) = map(_first_between_transposes, divergence.regions)
        if tf1 == port and tf1 not in {*_ELEMENTWISE, *PLUMBING} and of_tf1 != of_port:
            remedy = f"compute {tf1} along TF1's axis"
            words = _axes_of_softmax(divergence, tf1) or [of_tf1, of_port]
            yield of_values(f"axis of {tf1}", *words, fault=Fault.AXES, remedy=remedy)
            return
    computed = [set(in_order(region)) - MOVES for region in divergence.regions]
    transposes = [[op for op in region if op.type == "Transpose"] for region in divergence.regions]
    with_axes = computed[0] - _ELEMENTWISE - _JOINING
    is_alike = computed[0] == computed[1] and with_axes.isdisjoint(("MatMul", "Einsum"))  # their axes are moved anyway
    if with_axes and is_alike and len(transposes[0]) != len(transposes[1]):
        beside = {kind(op) for region in divergence.regions for op in _beside_transposes(region)}
        names = and_more(sorted(with_axes & beside or with_axes), 3)
        words = _axes_of_softmax(divergence, names) or [
            and_more(dict.fromkeys(map(_move, each)), 4) or "not transposed" for each in transposes
        ]
        remedy = f"compute {names} along TF1's axis"
        yield of_values(f"axis of {names}", *words, fault=Fault.AXES, remedy=remedy)


def _softmaxes_along_other_axes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the axes of two softmaxes that make equally many elements, along axes of different sizes."""
    tf1, port = divergence.values
    op_type = divergence.types[0]
    if op_type != divergence.types[1] or op_type not in OF_LAST_AXIS or tf1 is None or port is None:
        return
    if tf1.size == port.size and tf1.shape[-1:] != port.shape[-1:]:
        sizes = [f"one of {shape[-1]} elements" for shape in (tf1.shape, port.shape)]
        words = _axes_of_softmax(divergence, op_type) or sizes
        remedy = f"compute {op_type} along TF1's axis"
        yield of_values(f"axis of {op_type}", *words, fault=Fault.AXES, remedy=remedy)


def _beside_transposes(region: Sequence[TracedOp]) -> Iterator[TracedOp]:
    """Yield the ops of a region that take what it transposes, or are transposed by it."""
    transposed = {op.name for op in region if op.type == "Transpose"}
    taken = {name for op in region if op.type == "Transpose" for name in op.sources}
    yield from (op for op in region if op.name in taken or not transposed.isdisjoint(op.sources))


def _axes_of_softmax(divergence: Divergence, op_type: str) -> list[str]:
    """Return along which axes two regions compute a softmax; nothing if that is not known, or for other ops.

    It is computed along the last axis, to which any other axis is transposed before it, and from there after it.
    """
    found, rank = list[int | None](), 0
    for region in divergence.regions if op_type in OF_LAST_AXIS else ():
        of_type = {op.name: op for op in region if op.type == op_type}
        perms = [(op, op.constants["input 1"]) for op in region if op.type == "Transpose" and "input 1" in op.constants]
        before = (int(perm[-1]) for op, perm in perms if any(op.name in each.sources for each in of_type.values()))
        after = (int(np.argsort(perm)[-1]) for op, perm in perms if not of_type.keys().isdisjoint(op.sources))
        found.append(next(itertools.chain(before, after), None))
        rank = max([rank, *(len(perm) for _, perm in perms)])
    words = [str(rank - 1 if axis is None else axis) for axis in found]
    return words if rank and words[0] != words[1] else []


def _first_between_transposes(region: Sequence[TracedOp]) -> tuple[str, str]:
    """Return the kind of a region's first op, and how its axes are transposed before it, and back after it."""
    first, order = region[0], region[0].constants.get("input 1")
    if kind(first) == "Transpose" and order is not None:
        perms = {op.name: op.constants.get("input 1") for op in region if kind(op) == "Transpose"}
        back = {name for name, perm in perms.items() if perm is not None and np.array_equal(perm, np.argsort(order))}
        for op in region:
            if first.name in op.sources and any(op.name in each.sources for each in region if each.name in back):
                return kind(op), _move(first)
    return kind(first), "not transposed"


def _moves(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the programs move numbers, where they compute nothing else on the way to where both agree again."""
    moves = [[op for op in region if kind(op) in MOVES] for region in divergence.regions]
    loops = [any(op.body for op in region) for region in divergence.regions]  # which move numbers by other ops
    if loops[0] != loops[1] or [kind(op) for op in moves[0]] == [kind(op) for op in moves[1]]:
        return
    if any(kind(op) == "Einsum" for region in divergence.regions for op in region):  # which repeats by itself
        moves = [[op for op in each if op.type != "Tile"] for each in moves]
    texts = [Counter(map(_move, each)) for each in moves]
    only = [[*(texts[0] - texts[1])], [*(texts[1] - texts[0])]]
    only = only if any(only) else [[*each] for each in texts]  # the same in another order
    words = [and_more(each, 4) or "nothing" for each in only]
    if not all(only):
        who, one = ("TF1", words[0]) if only[0] else ("the port", words[1])
        yield in_one_program(who, f"moves or crops elements: {one}", fault=Fault.AXES)
    else:
        yield of_values("arrangement of the elements", *words, fault=Fault.AXES)


def is_rearranged(divergence: Divergence) -> bool:
    """Return whether the programs only move numbers from there on, and hold the same ones in another order."""
    tf1, port = (
        None if value is None or not value.is_whole else np.sort(value.elements) for value in divergence.values
    )
    if tf1 is None or port is None or tf1.size < 2 or tf1[0] == tf1[-1]:
        return False
    return all(kind(op) in MOVES | _JOINING for region in divergence.regions for op in region) and _are_close(tf1, port)


def _broadcasts(divergence: Divergence) -> Iterator[Cause]:
    """Yield an operand that is equal in both programs, and has its elements along another axis."""
    if kind_of(divergence.types[0]) not in _ARITHMETIC or kind_of(divergence.types[0]) != kind_of(divergence.types[1]):
        return
    of_each = [list(zip(values, _in_one_rank(values), strict=True)) for values in divergence.sources]
    for (tf1, of_tf1), (port, of_port) in itertools.product(*of_each):
        same = tf1.size == port.size and _are_close(*(each.reshape(-1) for each in tf1.paired_with(port)))
        if same and of_tf1 != of_port:
            axes = [[axis - len(shape) for axis, size in enumerate(shape) if size > 1] for shape in (of_tf1, of_port)]
            words = [f"{axis} in shape {tuple(each.shape)}" for axis, each in zip(axes, (tf1, port), strict=True)]
            yield of_values(f"axis of an operand of {divergence.types[0]}", *words)
            return


def _in_one_rank(operands: Sequence[Value]) -> list[tuple[int, ...]]:
    """Return the shapes of operands as they are broadcast, without the axes along which no operand has two elements."""
    rank = max((len(each.shape) for each in operands), default=0)
    padded = [(1,) * (rank - len(each.shape)) + tuple(each.shape) for each in operands]
    kept = [axis for axis in range(rank) if any(shape[axis] != 1 for shape in padded)]
    return [tuple(shape[axis] for axis in kept) for shape in padded]


def _other_axes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the axes that differ, where no substitute for them can be made."""
    op_type = divergence.types[0]
    for name, values in divergence.attributes.items():
        kind_of_attribute, _, which = name.partition(" ")
        argument = name_of_argument(divergence.tf1, int(which)) if kind_of_attribute == "input" else which
        if _ARGUMENTS.get(argument, argument) == "axis":
            yield of_values(f"axis of {op_type}", *values)


def _move(op: TracedOp) -> str:
    """Return an op with its constants."""
    constants = [text for name, text in op.attributes.items() if name.startswith("input ")]
    return f"{op.type} {' to '.join(constants[:2])}".strip()


def _in_words(divergence: Divergence) -> list[str]:
    """Return what each program computes that the other one does not, with the constants."""
    moves = ([_move(op) for op in region if kind(op) not in PLUMBING] for region in divergence.regions)
    return [and_more(each, _MOST_OPS) for each in _without_common_ends(*moves)]


def _without_common_ends(tf1: list[str], port: list[str]) -> tuple[list[str], list[str]]:
    """Return two lists without what they have in common at the start and at the end."""
    most = min(len(tf1), len(port))
    start = next((n for n in range(most) if tf1[n] != port[n]), most)
    tf1, port, most = tf1[start:], port[start:], most - start
    end = next((n for n in range(most) if tf1[-1 - n] != port[-1 - n]), most)
    return tf1[: len(tf1) - end], port[: len(port) - end]


def _named_ops(divergence: Divergence) -> Iterator[Cause]:
    """Yield what only one program computes, for kinds of ops that have a name of their own."""
    only_tf1, only_port = only_in(*divergence.regions)
    missing, added = sorted(ACTIVATIONS & only_tf1.keys()), sorted(ACTIVATIONS & only_port.keys())
    is_all = _LAYERS.isdisjoint({*only_tf1, *only_port})  # an activation is not all that makes up another layer
    slopes = slopes_of_leaky_relus(divergence.regions)
    pairs = [*zip((missing, added), divergence.regions, strict=True)]
    forms, names = ([function(*each) for each in pairs] for function in (form_of_gelu, names_of_activations))
    if slopes[0] is not None and slopes[1] is not None:
        yield of_values(_ATTRIBUTES_OF["LeakyRelu", "attribute alpha"], *(f"{slope:.4g}" for slope in slopes))
    elif all(forms):
        yield of_values("form of GELU", *forms)
    elif missing and added:
        yield of_values("activation", *names, fault=Fault.ACTIVATION)
    elif (missing and _CLIPS & only_port.keys()) or (added and _CLIPS & only_tf1.keys()):
        of_slopes = ["" if slope is None else f"leaky ReLU of slope {slope:.4g}" for slope in slopes]
        in_words = zip(of_slopes, _in_words(divergence), strict=True)
        tf1, port = (of_slope or words for of_slope, words in in_words)
        yield of_values("activation", tf1, port, fault=Fault.ACTIVATION)
    elif missing and is_all:
        title, remedy = "the port has no activation where TF1 has {}", "add the activation {} to the port"
        yield Cause(title.format(names[0]), fault=Fault.ACTIVATION, remedy=remedy.format(names[0]))
    elif added and is_all:
        title, remedy = "TF1 has no activation where the port has {}", "remove the activation {} from the port"
        yield Cause(title.format(names[1]), fault=Fault.ACTIVATION, remedy=remedy.format(names[1]))
    halves = [{*kinds} - PLUMBING for kinds in (only_tf1, only_port)]
    for region, each in zip(divergence.regions, halves, strict=True):
        if each == {"Pow", "Sum"} and any(kind(op) == "Pow" and _number(op) == "2.0" for op in region):
            each.symmetric_difference_update({"Pow", "Square"})
    factors = [sorted(_number(op) for op in region if kind(op) in ("Mul", "RealDiv")) for region in divergence.regions]
    if factors[0] == factors[1] and halves in ([{"L2Loss"}, {"Square", "Sum"}], [{"Square", "Sum"}, {"L2Loss"}]):
        is_half = halves[0] == {"L2Loss"}
        sums = ["half of it, as tf.nn.l2_loss computes", "all of it"]
        remedy = (
            "divide the sum of squares by 2 in the port" if is_half else "take the whole sum of squares in the port"
        )
        yield of_values("sum of squares", *(sums if is_half else sums[::-1]), remedy=remedy)
        return
    signs = {"Sub": "subtracted", "AddV2": "added"}
    if divergence.confirmed and all(len(each) == 1 and each <= signs.keys() for each in halves):
        of_tf1, of_port = (signs[kinds.pop()] for kinds in halves)
        remedy = f"{'subtract' if of_tf1 == 'subtracted' else 'add'} it in the port, too"
        yield of_values("sign of a term", of_tf1, of_port, remedy=remedy)
        return
    for words, alternatives in _ALTERNATIVES.items():
        pair = sorted(alternatives & only_tf1.keys()), sorted(alternatives & only_port.keys())
        if all(pair):
            is_mean = words == "reduction" and any(  # a sum that is divided by a count is a mean
                "Sum" in of and not kinds.keys().isdisjoint(_DIVISIONS)
                for of, kinds in zip(pair, (only_tf1, only_port), strict=True)
            )
            differing = {*only_tf1, *only_port} - PLUMBING
            counting = set() if differing.isdisjoint(_CONDITIONS) else _COUNTING  # as of weights that are not 0
            if is_mean and differing <= {"Sum", "Mean", *_DIVISIONS, *counting}:  # of another count
                yield of_values(words, *map(_reduction, divergence.regions), fault=Fault.REDUCTION)
                return
            if not is_mean:
                fault = Fault.REDUCTION if words == "reduction" else Fault.VALUE
                yield of_values(words, *map(", ".join, pair), fault=fault)
    idle = PLUMBING | ({"ConcatV2"} if any(map(_joins_rows, itertools.chain(*divergence.regions))) else set())
    computed = {"TF1": only_tf1.keys() - idle, "the port": only_port.keys() - idle}
    computed = {who: kinds - _CONDITIONS if "SelectV2" in kinds else kinds for who, kinds in computed.items()}
    verbs = {_ONLY_IN_ONE.get(kind) for kind in set().union(*computed.values())}
    if len(verbs) == 1 and None not in verbs and not all(computed.values()):
        who = next(who for who, kinds in computed.items() if kinds)
        yield in_one_program(who, f"{verbs.pop()}")
    elif not all(computed.values()):
        sides = zip(computed, divergence.regions, (only_tf1, only_port), strict=True)
        who, does = next(((who, _in_order_of(region, only)) for who, region, only in sides if computed[who]), ("", ""))
        if does:
            yield in_one_program(who, does, fault=Fault.OPS)
            return
    yield from _constants(divergence, only_tf1, only_port)


def _in_order_of(region: Sequence[TracedOp], only: Counter[str]) -> str:
    """Return what only one region computes, in words; an empty text if a part is only arithmetic, or has no words."""
    kinds = only.keys() - PLUMBING - {"Pad"}  # which may be a part of a convolution
    ops = [op for op in computing(region) if kind(op) in kinds]
    if len(ops) != sum(only[each] for each in kinds) or kinds <= _ARITHMETIC.keys():
        return ""
    words = [_computes_with_number(op) if kind(op) in _ARITHMETIC else _ONLY_IN_ONE.get(kind(op), "") for op in ops]
    return ", then ".join(dict.fromkeys(words)) if all(words) and len(words) <= _MOST_VERBS else ""


def _reduction(region: Sequence[TracedOp]) -> str:
    """Return the sum or mean that a region computes, with what it is divided by."""
    found = next((kind(op) for op in region if kind(op) in ("Sum", "Mean")), "nothing")
    divisors = [op for op in region if kind(op) in _DIVISIONS and (found == "Sum" or op.constants)]
    return found + "".join(f", divided by {_number(op, op.inputs[1].rpartition('/')[2])}" for op in divisors[:1])


def _training_mode(divergence: Divergence) -> list[Cause]:
    """Return the statistics with which the programs normalize, if they differ."""
    sides = zip((divergence.tf1, divergence.port), divergence.regions, strict=True)
    tf1, port = (_normalizes_in_training([*([] if op is None else [op]), *region]) for op, region in sides)
    if tf1 is None or port is None or tf1 == port:
        return []
    words = ("statistics of the batch" if trains else "moving averages" for trains in (tf1, port))
    return [of_values("training mode of a normalization", *words, fault=_mode_of(port_trains=port))]


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


def _uses(divergence: Divergence) -> Iterator[Cause]:
    """Yield the inputs that only one program uses on the way, but for rows beside those that both compute with."""
    if any(map(_joins_rows, itertools.chain(*divergence.regions, filter(None, (divergence.tf1, divergence.port))))):
        return
    for who, mine, other in (("TF1", *divergence.uses), ("the port", *divergence.uses[::-1])):
        for position in sorted(mine - other):
            name = f" ({divergence.inputs[position]})" if position < len(divergence.inputs) else ""
            given = f"input {position}{name}"
            remedy = f"use {given} here in the port, too" if who == "TF1" else f"leave out {given} here in the port"
            yield Cause(f"only {who} uses {given} here", fault=Fault.ONLY_IN_ONE, remedy=remedy)


def _joins_rows(op: TracedOp) -> bool:
    """Return whether an op puts batches together, as of two inputs that one tower takes at once."""
    return op.type == "ConcatV2" and not op.constants.get(f"input {len(op.inputs) - 1}", np.ones(1)).any()


def _constants(divergence: Divergence, *only: Counter[str]) -> Iterator[Cause]:
    """Yield the numbers that only one program multiplies by, divides by, or adds; or both, by different ops."""
    regions = [computing(region) for region in divergence.regions]
    both = [[op for op in region if kind(op) in _ARITHMETIC] for region in regions]
    is_arithmetic = all(
        ops and all(op.constants for op in ops) and all(kind(op) in _ARITHMETIC.keys() | PLUMBING for op in region)
        for ops, region in zip(both, regions, strict=True)
    )
    is_factor = {kind(op) for ops in both for op in ops} <= {"Mul", "RealDiv"} and max(map(len, both)) > 1
    if is_arithmetic and not is_factor:
        of_tf1, of_port = (", then ".join(map(_computes_with_number, ops)) for ops in both)
        yield of_values("arithmetic", of_tf1, of_port, remedy=f"compute in the port what TF1 does here, which {of_tf1}")
        return
    for side, (who, region, kinds, others) in enumerate(
        zip(("TF1", "the port"), regions, only, only[::-1], strict=True)
    ):
        arithmetic = [op for op in region if kind(op) in _ARITHMETIC.keys() & kinds.keys()]
        computes = divergence.constants is not None and others <= kinds  # TF1 computes what is a constant in the port
        if len(arithmetic) == 1 and not (_ARITHMETIC.keys() | _WITH_ARITHMETIC) & others.keys() and not computes:
            is_first = arithmetic[0] in (divergence.tf1, divergence.port)
            operand = (divergence.factors[side] or _other_operand(divergence, side)) if is_first else None
            yield in_one_program(who, _computes_with_number(arithmetic[0], operand))


def _other_operand(divergence: Divergence, side: int) -> str | None:
    """Return the tensor that only the op of one program takes, the same for all iterations; None if it has no name."""
    mine, other = divergence.taken[side], divergence.taken[not side]
    found = [name for name in mine if name not in other]
    return iteration_of(found[0])[0] if other and len(found) == 1 < len(mine) and found[0] else None


def _computes_with_number(op: TracedOp, computed: str | None = None) -> str:
    """Return what an arithmetic op does in words, with the constant that it takes, or a number that is computed."""
    number = _number(op, computed)
    if "input 0" in op.attributes and kind(op) in _TO_NUMBERS:
        return _TO_NUMBERS[kind(op)].format(number)
    return f"{_ARITHMETIC[kind(op)]} {number}"


def _number(op: TracedOp, computed: str | None = None) -> str:
    """Return the constant that an op takes, or a number that the program computes, as text."""
    constants = (_in_one_number(op, text) for name, text in op.attributes.items() if name.startswith("input "))
    return next(constants, computed or "another tensor")


def _limits(divergence: Divergence) -> Iterator[Cause]:
    """Yield the constants that two ops of different types compare one tensor with."""
    tf1, port = (
        [text for name, text in op.attributes.items() if name.startswith("input ")]
        for op in (divergence.tf1, divergence.port)
        if op is not None
    )
    if divergence.types[0] != divergence.types[1] and len(tf1) == len(port) == 1 and tf1 != port:
        yield of_values("limit or threshold", *map("{} of {}".format, (tf1[0], port[0]), divergence.types))


def _inputs(divergence: Divergence) -> Iterator[Cause]:
    """Yield what one op takes in TF1 and not in the port, if the op is the same in both."""
    tf1, port = divergence.taken
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


def _exchanged(divergence: Divergence) -> Iterator[Cause]:
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


def of_tensors(op_type: str, tf1: str, port: str, fault: Fault) -> Cause:
    """Return the cause that an op takes a tensor in the port that is not the counterpart of TF1's."""
    title = f"{op_type} takes different tensors: {tf1} (TF1), {port} (port)"
    return Cause(title, fault=fault, remedy=f"pass the port's counterpart of {tf1} here")


def _scale(divergence: Divergence) -> Iterator[Cause]:
    """Yield the factor between two values, if it is one number."""
    tf1, port = divergence.values
    if tf1 is None or port is None or "ReadVariableOp" in divergence.types:
        return
    factor = factor_between(tf1, port)
    if factor is not None and f"{factor:.4g}" != "1":
        yield Cause(f"a factor differs: the port's values are {factor:.4g} times TF1's")


def factor_between(tf1_value: Value, port_value: Value) -> float | None:
    """Return the number that each element of TF1's array is multiplied by in the port's, if it is one number."""
    if tf1_value.shape != port_value.shape:
        return None
    tf1, port = tf1_value.paired_with(port_value)
    if tf1.dtype.kind != "f" or not np.array_equal(tf1 == 0, port == 0):
        return None
    if not (np.isfinite(tf1).all() and np.isfinite(port).all()):  # a mask may be -inf
        return None
    ratios = (port[tf1 != 0] / tf1[tf1 != 0]).astype(np.float64)
    return float(np.median(ratios)) if ratios.size > 1 and np.ptp(ratios) <= CLOSE * abs(np.median(ratios)) else None


def _regularization(port: np.ndarray | None, tf1: np.ndarray | None) -> Iterator[Cause]:
    if port is None or tf1 is None:
        yield in_one_program("TF1" if port is None else "the port", "has a regularizer")
    elif tf1:
        title = f"factor of a regularizer differs: the port's regularization loss is {port / tf1:.4g} times TF1's"
        if is_close(port / tf1, 2) or is_close(port / tf1, 0.5):
            yield Cause(f"{title}. tf.nn.l2_loss(w) is sum(w**2) / 2; Keras's L2 takes sum(w**2)")
        else:
            yield Cause(f"{title}, or one program has more regularizers")


def is_close(value: float, expected: float) -> bool:
    """Return whether a ratio is a number with a meaning, but for rounding."""
    return math.isclose(value, expected, rel_tol=CLOSE)
