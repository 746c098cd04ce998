"""Likely causes of a difference of two losses: what the general causes do not say of labels and outputs.

`causes_of_loss` takes the ops at which two losses diverge, `of_loss_of_outputs` the values of two losses in all steps.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.comparison.metrics import softmax
from detrand.comparison.structures import map_leaves
from detrand.comparison.values import leaves_by_path
from detrand.steps.comparison import StepsComparison
from detrand.validation.diagnosis.causes.arrays import factor_between
from detrand.validation.diagnosis.causes.cause import (
    CLOSE,
    CONSTANTS,
    Cause,
    in_one_program,
    is_close,
    name_of_argument,
    of_tensors,
    of_values,
    use_order,
)
from detrand.validation.diagnosis.causes.computation import causes
from detrand.validation.diagnosis.causes.ops import ORDERED
from detrand.validation.diagnosis.causes.values import differing_constants
from detrand.validation.diagnosis.divergence import Divergence, confirmation
from detrand.validation.diagnosis.op_kinds import PLUMBING, kind, kind_of, only_in
from detrand.validation.frameworks.traces import TracedOp, Value
from detrand.validation.results import AuditedHyperparameter, Fault, OwnForm
from detrand.validation.training.loss import LossInput
from detrand.validation.training.steps import Step, Training

LABEL_SMOOTHING = "label smoothing"
SAME_LOSS = 1e-5  # relative tolerance for a loss that is computed from other numbers by the same formula
_PROBABILITIES = Cause(
    "the port's loss reads the outputs as probabilities, TF1's as logits",
    fault=Fault.READING,
    remedy="pass from_logits=True to the port's loss",
    own_form=(OwnForm.FROM_LOGITS, ""),
)
_LOGITS = Cause(
    "the port's loss reads the outputs as logits, TF1's as probabilities",
    fault=Fault.READING,
    remedy="pass from_logits=False to the port's loss",
    own_form=(OwnForm.FROM_PROBABILITIES, ""),
)
_BROADCAST = Cause(
    "the port's loss broadcasts the outputs and the labels, which have different ranks",
    fault=Fault.BROADCAST,
    remedy="give outputs and labels the same rank, for example with tf.squeeze(outputs, -1)",
)
_COMPARISONS = {"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "SequenceMask"}


def causes_of_loss(divergence: Divergence, inputs: Sequence[LossInput]) -> tuple[Cause, ...]:
    """Return the likely causes of a divergence of two losses, given what each of their inputs is."""
    if divergence.hyperparameter is not None:
        number = divergence.hyperparameter
        return (of_values(number.name, number.tf1, number.port),)
    if divergence.term_of:
        return (in_one_program(divergence.term_of, "adds this term to the loss", fault=Fault.TERM),)
    found = [*_of_labels(divergence, inputs)]
    weights = [] if found else list(_weights(divergence, inputs))
    found += [] if divergence.confirmed else weights
    if not found:
        general = causes(replace(divergence, uses=(frozenset(), frozenset())))
        # Where only one program computes something, what it takes differs in any case.
        is_more = bool(divergence.confirmed) and bool(divergence.regions[0]) != bool(divergence.regions[1])
        found += [] if divergence.attribute or is_more else _of_other_inputs(divergence, inputs)
        named = [each for each in general if divergence.is_edit or each.fault is not Fault.ACTIVATION]
        found += named or weights
    names = [name for name in divergence.attributes if name.startswith("input ")]
    if not found and names and divergence.confirmed:
        op_type = divergence.types[0]
        words = [
            (name_of_argument(divergence.tf1, int(name.removeprefix("input "))), divergence.attributes[name])
            for name in names
        ]
        found.append(of_values(op_type, *(", ".join(f"{what} {pair[who]}" for what, pair in words) for who in (0, 1))))
    if not found and divergence.types[0] == divergence.types[1] and None not in divergence.factors:
        what = CONSTANTS[kind_of(divergence.types[0])]
        found.append(of_values(what, *divergence.factors, remedy=f"compute TF1's {what} in the port"))
    if not found:
        computing = [[each for each in ops if kind(each) not in PLUMBING] for ops in divergence.regions]
        kinds = computing if any(computing) else divergence.regions
        of_tf1, of_port = (", ".join(dict.fromkeys(each.type for each in of)) or "nothing" for of in kinds)
        computed = f"the loss is computed with {of_tf1} (TF1), {of_port} (port)"
        alike = of_tf1 if any(divergence.regions) else divergence.types[0]
        cause = Cause(f"the operands of {alike} differ" if of_tf1 == of_port else computed, fault=Fault.OPS)
        found.append(_more_in_one(*kinds) or cause)
    return tuple(dict.fromkeys(found))


def _more_in_one(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> Cause | None:
    """Return that one program computes what the other does, and more; None if that is not so."""
    of_tf1, of_port = (Counter(map(kind, ops)) for ops in (tf1, port))
    for who, more, less in (("TF1", of_tf1, of_port), ("the port", of_port, of_tf1)):
        if less and less < more:
            return in_one_program(who, f"computes {', '.join(more - less)} in the loss")
    return None


def broadcast_in_one(divergence: Divergence, *, confirmed: bool) -> tuple[Cause, TracedOp, bool] | None:
    """Return that one program broadcasts two tensors to a larger one than both, its op, and whether TF1 does.

    Losses of a framework may do so deep inside; so if nothing confirms it, only the first op that diverges counts.
    """
    firsts = divergence.tf1, divergence.port
    sides = [
        [op for op in (first, *(region if confirmed else ())) if op]
        for first, region in zip(firsts, divergence.regions, strict=True)
    ]
    of_tf1, of_port = ([op for op in ops if op.broadcast] for ops in sides)
    if bool(of_tf1) == bool(of_port):
        return None
    op = (of_tf1 or of_port)[0]
    first, second = op.broadcast
    whole = list(np.broadcast_shapes(first, second))
    subtracts = f"subtracts {list(second)} from {list(first)}"
    what = subtracts if kind(op) == "Sub" else f"has {list(first)} and {list(second)} in {op.type}"
    title = f"{'TF1' if of_tf1 else 'the port'} {what}, which broadcasts to {whole}"
    remedy = "" if of_tf1 else "use tf.squeeze or tf.reshape, so that both have the same shape"
    return Cause(title, fault=Fault.BROADCAST, remedy=remedy), op, bool(of_tf1)


def _of_labels(divergence: Divergence, inputs: Sequence[LossInput]) -> Iterator[Cause]:
    """Yield the mask by labels that only one program has, and the number by which both change labels, if it differs."""
    labels = _labels(inputs)
    uses_labels_only = [bool(given) and given <= labels for given in divergence.given]
    for who, op, is_only in zip(("TF1", "the port"), (divergence.tf1, divergence.port), uses_labels_only, strict=True):
        if op is not None and is_only and not all(uses_labels_only) and op.type in _COMPARISONS:
            yield in_one_program(who, f"masks the loss by the labels ({op.type})")
    only = [each.keys() - PLUMBING for each in only_in(*divergence.regions)]
    sides = zip(
        ("TF1", "the port"), (divergence.tf1, divergence.port), only, only[::-1], divergence.operands, strict=True
    )
    for who, op, mine, others, operands in sides:
        is_product = op is not None and kind(op) == "Mul" and mine == {"Mul"} and not others
        is_product &= not divergence.attribute and all(operands)  # a number scales the labels
        if is_product and [bool(each) and each <= labels for each in operands].count(True) == 1:
            yield in_one_program(who, "weights the loss by the labels (Mul)")
    constants = differing_constants(divergence)
    if all(uses_labels_only) and constants is not None and divergence.types in (("Mul", "Mul"), ("AddV2", "AddV2")):
        is_factor = divergence.types[0] == "Mul"
        what = "factor of the labels (such as 1 - label smoothing)" if is_factor else "number added to the labels"
        yield of_values(what, *(f"{each:.4g}" for each in constants))


def with_label_smoothing(divergences: Sequence[Divergence], inputs: Sequence[LossInput]) -> tuple[Divergence, ...]:
    """Return divergences of two losses with one for the two numbers of a label smoothing that differs."""
    labels = _labels(inputs)
    for first, second in itertools.pairwise(divergences):
        factors, added = differing_constants(first), _added(second)
        is_of_labels = all(given <= labels for given in (*first.given, *second.given)) and any(first.given)
        if first.types != ("Mul", "Mul") or factors is None or added is None or not is_of_labels:
            continue
        smoothing = 1 - factors[0], 1 - factors[1]
        if all(0 < each < 1 for each in smoothing) and is_close(added[0] / added[1], smoothing[0] / smoothing[1]):
            words = f"{smoothing[0]:.4g}", f"{smoothing[1]:.4g}"
            number = AuditedHyperparameter("the loss", LABEL_SMOOTHING, *words)
            given = f"with TF1's {LABEL_SMOOTHING}" if second.confirmed else ""
            of_both = replace(
                first,
                hyperparameter=number,
                attributes={number.name: words},
                attribute=number.name,
                confirmed=confirmation(given, rest_agrees=second.rest_agrees),
                rest_agrees=second.rest_agrees,
            )
            return tuple(of_both if each is first else each for each in divergences if each is not second)
    return tuple(divergences)


def _added(divergence: Divergence) -> tuple[float, float] | None:
    """Return the numbers that two programs add to labels, or that these are computed from; None if they are not known.

    Where a label is 0, the sum is the number.
    """
    numbers, values = differing_constants(divergence), divergence.values
    if numbers is None and divergence.types == ("AddV2", "AddV2") and values[0] is not None and values[1] is not None:
        numbers = float(values[0].elements.min()), float(values[1].elements.min())
    return numbers if numbers is not None and all(numbers) else None


def _weights(divergence: Divergence, inputs: Sequence[LossInput]) -> Iterator[Cause]:
    """Yield what only one program computes from the labels only: a weight of each example."""
    labels = _labels(inputs)
    uses_labels_only = [bool(given) and given <= labels for given in divergence.given]
    for who, op, is_only, operands in zip(
        ("TF1", "the port"), (divergence.tf1, divergence.port), uses_labels_only, divergence.operands, strict=True
    ):
        if op is not None and is_only and not all(uses_labels_only) and sum(map(bool, operands)) == 1:
            yield in_one_program(who, f"weights the loss by the labels ({op.type})")


def _labels(inputs: Sequence[LossInput]) -> set[int]:
    return {position for position, each in enumerate(inputs) if each.kind == "labels"}


def _of_other_inputs(divergence: Divergence, inputs: Sequence[LossInput]) -> Iterator[Cause]:
    """Yield which outputs or labels only one program uses, or uses in another place."""
    op_type = divergence.types[0]
    if op_type != divergence.types[1]:
        return
    tf1, port = (sorted({inputs[position].words for position in each}) for each in divergence.given)
    if tf1 and port and tf1 != port:
        yield of_tensors(op_type, ", ".join(tf1), ", ".join(port), Fault.OTHER_TENSORS)
    operands = [[_operand(each, inputs) for each in of] for of in divergence.operands]
    if kind_of(op_type) in ORDERED and operands[0] != operands[1] and sorted(operands[0]) == sorted(operands[1]):
        in_words = [", ".join(of) for of in operands]
        what, remedy = f"order of the operands of {op_type}", use_order(in_words[0])
        yield of_values(what, *in_words, fault=Fault.OTHER_TENSORS, remedy=remedy)


def _operand(given: frozenset[int], inputs: Sequence[LossInput]) -> str:
    """Return what an operand is computed from, in words."""
    return " with ".join(sorted({inputs[position].words for position in given})) or "a constant"


def _squeezed(outputs: np.ndarray) -> np.ndarray:
    return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


# What a loss must be given in place of outputs that it reads as something else.
CONVERSIONS: tuple[tuple[Cause, str, Callable[[np.ndarray], np.ndarray]], ...] = (
    (_PROBABILITIES, "softmax", softmax),
    (_PROBABILITIES, "sigmoid", lambda outputs: 1 / (1 + np.exp(-outputs))),
    (_LOGITS, "log", np.log),
    (_LOGITS, "logit", lambda outputs: np.log(outputs) - np.log1p(-outputs)),
    (_BROADCAST, "squeezed form", _squeezed),
    (_BROADCAST, "expanded form", lambda outputs: outputs[..., np.newaxis]),
)


def of_loss_of_outputs(
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    port_loss: Callable[[int, Any], float | None],
    elsewhere: Callable[[], float | None],
    step: int,
) -> Iterator[Cause]:
    """Yield how the two losses of TF1's outputs differ in a step, if they do."""
    outputs, desired = tf1.steps[step]["outputs"], _unregularized_loss(tf1.steps[step])
    loss = port_loss(step, outputs)
    if loss is None or is_close(loss, desired):
        return
    if all(by_name.get("gradients", False) for by_name in comparison.steps.values()):
        losses = np.array([[_unregularized_loss(step) for step in each.steps] for each in (port, tf1)])
        far = elsewhere() if np.allclose(losses[0] - losses[1], loss - desired, rtol=CLOSE, atol=0) else math.nan
        if far is None or is_close(far, loss - desired):
            of_port = f"TF1's {'+' if loss > desired else '-'} {abs(loss - desired):.6g}"
            constant = f"the losses differ by a constant: the port's is {of_port}"
            yield Cause(constant, "the gradients agree", fault=Fault.CONSTANT)
            return
    for cause, name, convert in CONVERSIONS:
        if _agrees_with(convert, tf1.steps, port_loss):
            yield cause._replace(confirmed=f"with the {name} of the outputs, the losses agree")
            return
    pairs = [(port_loss(number, each["outputs"]), _unregularized_loss(each)) for number, each in enumerate(tf1.steps)]
    ratios = [of / each if of and each else math.nan for of, each in pairs]
    confirmed = f"so it is in each of {len(ratios)} steps" if len(ratios) > 1 else ""
    confirmed = confirmed or ("so do the gradients" if _scale_alike(port.steps[step], tf1.steps[step]) else "")
    yield from of_losses({"loss": loss, "outputs": outputs}, tf1.steps[step], port.replicas, ratios, confirmed)


def _agrees_with(
    convert: Callable[[np.ndarray], np.ndarray],
    steps: Sequence[Step],
    port_loss: Callable[[int, Any], float | None],
) -> bool:
    """Return whether the port's loss of converted outputs is TF1's in each step: in one, that may be by chance."""
    for number, step in enumerate(steps):
        with warnings.catch_warnings():  # of PyTorch, if the outputs get a different shape
            warnings.simplefilter("ignore")
            loss = port_loss(number, map_leaves(step["outputs"], functools.partial(_converted, convert), "outputs"))
        if loss is None or not math.isclose(loss, _unregularized_loss(step), rel_tol=SAME_LOSS):
            return False
    return True


def _converted(convert: Callable[[np.ndarray], np.ndarray], leaf: Any, where: str) -> Any:
    array = np.asarray(leaf)
    if array.dtype.kind != "f" or not array.ndim:
        return leaf
    with np.errstate(all="ignore"):  # they may be no probabilities
        return convert(array.astype(np.float64)).astype(array.dtype)


def _unregularized_loss(step: Step) -> float:
    regularization = step.get("regularization_loss")
    return float(step["loss"]) - (0.0 if regularization is None else float(regularization))


def _scale_alike(port: Step, tf1: Step) -> bool:
    """Return whether the port's gradients are as many times TF1's as its loss is."""
    arrays = [[array for array in step["gradients"].values() if array is not None] for step in (port, tf1)]
    values = [[Value.of(np.asarray(array)) for array in of] for of in arrays]
    if len(values[0]) != len(values[1]) or not tf1["loss"]:
        return False
    factors = [factor_between(of_tf1, of_port) for of_port, of_tf1 in zip(*values, strict=True)]
    ratio = float(port["loss"]) / float(tf1["loss"])
    return bool(factors) and all(factor is not None and is_close(factor, ratio) for factor in factors)


_LOSSES_DIFFER = "the losses of the same outputs differ: {:.6g} (TF1), {:.6g} (port)"


def of_losses(
    port_step: Step, tf1_step: Step, replicas: int, ratios: Sequence[float], confirmed: str
) -> Iterator[Cause]:
    """Yield how two losses differ, given the ratios of the port's loss to TF1's in all steps, and what confirms one."""
    port, tf1 = _unregularized_loss(port_step), _unregularized_loss(tf1_step)
    if not port or not tf1 or not all(is_close(ratio, port / tf1) for ratio in ratios):
        yield Cause(_LOSSES_DIFFER.format(tf1, port))
        return
    fault, remedy = Fault.OTHER, ""
    shapes = [np.shape(leaf) for leaf in leaves_by_path(tf1_step["outputs"]).values() if leaf is not None]
    sizes = sorted({size for shape in shapes for size in (*shape, math.prod(shape))})  # a loss may be a mean over these
    size = next((size for size in sizes if size > 1 and is_close(max(port / tf1, tf1 / port), size)), None)
    if replicas > 1 and is_close(port, tf1 * replicas):
        title = f"the port's loss is not scaled for replicas: it is {replicas} times TF1's"
        remedy = (
            "use tf.nn.compute_average_loss in the port, which divides by the size of the whole batch: the losses of "
            "the replicas are summed"
        )
    elif replicas > 1 and is_close(port * replicas, tf1):
        title = f"the port's loss is scaled for replicas twice: TF1's is {replicas} times as large"
        remedy = (
            "do not divide by the number of replicas in the port's loss: the losses of Keras 3 already divide by it"
        )
    elif size is None and not confirmed:
        title = _LOSSES_DIFFER.format(tf1, port)
    elif size is None:
        fault = Fault.MULTIPLE
        title = f"the loss or the weight of a loss differs: the port's loss is {port / tf1:.6g} times TF1's"
    else:
        fault, (larger, smaller) = Fault.SUM_OR_MEAN, ("the port", "TF1") if port > tf1 else ("TF1", "the port")
        title = (
            f"{larger} sums a loss where {smaller} takes the mean: it is {size} times as large, a size of the outputs"
        )
        remedy = "sum the loss in the port" if larger == "TF1" else "take the mean in the port"
    yield Cause(title, confirmed, fault=fault, remedy=remedy)
