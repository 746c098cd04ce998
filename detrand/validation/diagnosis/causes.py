"""What usually causes a difference of the kind that was found: known faults of ports, and the marks that they leave.

A mark proves nothing, so the wording is "consistent with". The order is that of how much a mark says: a hyperparameter
that differs in the very op at which the programs part comes before a number that happens to be twice another one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detrand.comparison.values import Comparison, LeafComparison
from detrand.steps.comparison import StepsComparison
from detrand.steps.recorder import StepRecorder
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.hyperparameters import (
    DROPOUT,
    FORGET_BIAS,
    INITIALIZER,
    MOMENTUM,
    OPTIMIZER,
    RATES,
    REGULARIZER,
)
from detrand.validation.diagnosis.trace import Value
from detrand.validation.results import AuditedHyperparameter

_CLOSE = 1e-4  # how near a ratio must be to a number that means something
_MOST_AXES = 5
_ACTIVATIONS = {
    "Relu",
    "Relu6",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Sigmoid",
    "Tanh",
    "Softplus",
    "Softsign",
    "Softmax",
    "Erf",
}
_POOLS = {"MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"}
_RESIZES = ("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "ResizeArea")


@dataclass(frozen=True)
class Evidence:
    """What a check has found.

    Attributes:
      divergence: where the programs part; None if that is not known.
      output: the first output that differs; None if none does.
      losses: the regularization losses of the port and of TF1, each None if it has none; None if they agree.
      shifts_random_ops: whether the random ops of the programs are others, or come in another order.
      hyperparameters: those that are not the same in both programs.
    """

    divergence: Divergence | None = None
    output: LeafComparison | None = None
    losses: tuple[np.ndarray | None, np.ndarray | None] | None = None
    shifts_random_ops: bool = False
    hyperparameters: tuple[AuditedHyperparameter, ...] = ()


def causes(evidence: Evidence) -> tuple[str, ...]:
    """Returns what is known to cause such a difference, the likeliest first; empty if nothing is."""
    found = itertools.chain.from_iterable(mark(evidence) for mark in _MARKS)
    return tuple(dict.fromkeys(found))


def describe_causes(found: tuple[str, ...]) -> str:
    """Returns causes as text."""
    return "\n".join(["consistent with", *(f"  {cause}" for cause in found)])


def _attribute_of_op(evidence: Evidence) -> Iterator[str]:
    divergence = evidence.divergence
    if divergence is None:
        return
    hyperparameters = divergence.attributes
    for name, of in (
        ("attribute epsilon", "another epsilon of a batch normalization"),
        ("attribute padding", "another padding"),
        ("attribute strides", "other strides"),
        ("attribute dilations", "another dilation rate"),
        ("attribute ksize", "another size of a pooling window"),
        ("attribute data_format", "channels first against channels last (NCHW, NHWC)"),
        ("attribute alpha", "another slope of a leaky ReLU"),
        ("attribute is_training", "a batch normalization in training against one in inference"),
        ("attribute transpose_b", "a kernel that is transposed"),
        ("attribute transpose_a", "an input that is transposed"),
    ):
        if name in hyperparameters:
            tf1, port = hyperparameters[name]
            yield f"{of}: {tf1} in TF1, {port} in the port"
    if (
        divergence.types[0] in _RESIZES
        and {"attribute align_corners", "attribute half_pixel_centers"} & hyperparameters.keys()
    ):
        yield "a resize that aligns corners or pixel centres otherwise"


def _hyperparameter_of_layer(evidence: Evidence) -> Iterator[str]:
    """A fused op on one side and its parts on the other have no attributes in common; their layers have."""
    if evidence.divergence is None:
        return
    op, port_op = evidence.divergence.tf1 or "", evidence.divergence.port or ""
    for hyperparameter in evidence.hyperparameters:
        layer, _, variable = hyperparameter.of.rpartition("/")
        owner = layer or variable if hyperparameter.name == INITIALIZER else hyperparameter.of
        if hyperparameter.name == FORGET_BIAS:  # the cell is in a loop, out of which comes what differs
            owner = layer or owner
        # What comes from a layer that changes little may agree with what goes into it: the port's op is in it then.
        if hyperparameter.name != RATES and (op.startswith(f"{owner}/") or _is_in(port_op, owner)):
            yield _differs(hyperparameter)


def _differs(found: AuditedHyperparameter) -> str:
    """Returns a cause: a hyperparameter that is not the same in both programs."""
    return f"another {found.name} of {found.of}: {found.tf1} in TF1, {found.port} in the port"


def _is_in(op: str, layer: str) -> bool:
    """Returns whether an op of a port is in a layer: it has the layer's name, perhaps numbered, among its scopes."""
    scopes, wanted = (re.sub(r"_\d+(?=/|$)", "", name) for name in (op.partition(" ")[0], layer))
    return f"/{wanted}/" in f"/{scopes}"


def _other_op(evidence: Evidence) -> Iterator[str]:
    if evidence.divergence is None:
        return
    tf1, port = evidence.divergence.types
    tf1_alone, port_alone = evidence.divergence.alone
    # An activation that the other program has later, too, is not what makes the difference.
    is_missing = tf1 in _ACTIVATIONS and port_alone[tf1] < tf1_alone[tf1]
    is_added = port in _ACTIVATIONS and tf1_alone[port] < port_alone[port]
    if {tf1, port} == {"Mean", "Sum"}:
        yield f"a sum against a mean: {tf1} in TF1, {port} in the port"
    elif is_missing and is_added:
        yield f"another activation: {tf1} in TF1, {port} in the port"
    elif is_missing:
        yield f"an activation that is missing in the port: {tf1}"
    elif is_added:
        yield f"an activation that TF1 does not have there: {port}"
    elif tf1 in _RESIZES and port in (*_RESIZES, "ScaleAndTranslate") and tf1 != port:
        yield f"another way to resize: {tf1} in TF1, {port} in the port"
    elif tf1 in _POOLS and port in _POOLS and tf1 != port:
        yield f"another way to pool: {tf1} in TF1, {port} in the port"


def _dtype(evidence: Evidence) -> Iterator[str]:
    leaf, divergence = evidence.output, evidence.divergence
    if leaf is not None and leaf.reason == "dtype":
        yield f"another dtype: {leaf.desired.dtype} in TF1, {leaf.actual.dtype} in the port"
    elif divergence is None or divergence.tf1_value is None or divergence.port_value is None:
        return
    elif divergence.tf1_value.dtype.kind != "b":
        tf1, port = (
            [value.dtype for value in (divergence.tf1_value, *divergence.tf1_sources)],
            divergence.port_value.dtype,
        )
        if port.kind != "b" and port not in tf1:
            yield f"another dtype: {tf1[0].name} in TF1, {port.name} in the port"


def _dropout(evidence: Evidence) -> Iterator[str]:
    if evidence.divergence is None:
        return
    scales, is_dropout = _constants(evidence.divergence), DROPOUT in evidence.divergence.op.lower()
    if scales is None or evidence.divergence.types != ("Mul", "Mul") or min(scales) <= 1:
        for hyperparameter in evidence.hyperparameters:
            if hyperparameter.name == RATES and is_dropout:
                yield f"other dropout rates: {hyperparameter.tf1} in TF1, {hyperparameter.port} in the port"
        return
    kept = 1 / scales[0], 1 / scales[1]  # dropout divides what it keeps by the share that it keeps
    if _near(kept[0] + kept[1], 1) and not _near(kept[0], kept[1]):
        yield f"a rate taken for a keep_prob: {1 - kept[0]:.3g} is dropped in TF1, {1 - kept[1]:.3g} in the port"
    elif is_dropout:
        yield f"another dropout rate: {1 - kept[0]:.3g} in TF1, {1 - kept[1]:.3g} in the port"


def _constant(evidence: Evidence) -> Iterator[str]:
    constants = _constants(evidence.divergence)
    if constants is not None and evidence.divergence is not None:
        tf1, port = constants
        if evidence.divergence.types == ("AddV2", "AddV2") and 0 < max(tf1, port) <= 0.1:
            yield f"another epsilon: {tf1:g} in TF1, {port:g} in the port"


def _order_of_random_ops(evidence: Evidence) -> Iterator[str]:
    if evidence.shifts_random_ops:
        yield "random ops that are others or come in another order, which gives those after them other numbers"


def _arrangement(evidence: Evidence) -> Iterator[str]:
    """The same numbers in other places: in the op itself, or because a program moves what the op is computed from."""
    divergence = evidence.divergence
    if divergence is None or divergence.tf1_value is None or divergence.port_value is None:
        return
    pairs = [(value, divergence.port_value) for value in (divergence.tf1_value, *divergence.tf1_sources)]
    for tf1_value, port_value in [*pairs, *((divergence.tf1_value, value) for value in divergence.port_sources)]:
        tf1, port = tf1_value.array, port_value.array
        if tf1 is None or port is None:  # some of its elements do not tell how they are arranged
            continue
        if tf1.size == port.size and max(tf1.ndim, port.ndim) <= _MOST_AXES:
            yield from itertools.islice(_moved(tf1, port), 1)


def _moved(tf1: np.ndarray, port: np.ndarray) -> Iterator[str]:
    if _same(tf1.reshape(-1), port.reshape(-1)):
        return
    if tf1.ndim != port.ndim:
        more, fewer = (tf1, port) if tf1.ndim > port.ndim else (port, tf1)
        for axes in itertools.permutations(range(more.ndim)):
            if _same(more.transpose(axes).reshape(-1), fewer.reshape(-1)):
                who = "TF1" if more is tf1 else "the port"
                yield f"an array that {who} flattens with its axes in another order: transposed to {axes}, it agrees"
        return
    for axis in range(tf1.ndim):
        if _same(np.flip(tf1, axis), port):
            yield f"an array that is flipped along axis {axis}"
    for axes in itertools.permutations(range(tf1.ndim)):
        if _same(tf1.transpose(axes), port):
            yield f"an array whose axes come in another order: TF1's, transposed to {axes}, is the port's"


def _initial_value(evidence: Evidence) -> Iterator[str]:
    divergence = evidence.divergence
    if divergence is None or divergence.types != ("ReadVariableOp", "ReadVariableOp"):
        return
    assert divergence.tf1_value is not None
    assert divergence.port_value is not None
    factor = _factor(divergence.tf1_value, divergence.port_value)
    if factor is not None:
        yield f"an initializer of another scale: the port's values are {factor:.4g} times TF1's"
    elif divergence.tf1_value.shape == divergence.port_value.shape:
        yield "another initializer, or a draw that comes at another place in the program"


def _factor_of_values(evidence: Evidence) -> Iterator[str]:
    divergence = evidence.divergence
    if divergence is None or divergence.tf1_value is None or divergence.port_value is None:
        return
    if divergence.types[0] == "ReadVariableOp":
        return
    factor = _factor(divergence.tf1_value, divergence.port_value)
    if factor is not None and f"{factor:.4g}" != "1":
        yield f"a factor: the port computes {factor:.4g} times what TF1 does"


def _regularization(evidence: Evidence) -> Iterator[str]:
    if evidence.losses is None:
        return
    port, tf1 = evidence.losses
    if port is None or tf1 is None:
        where = "the port" if port is None else "TF1"
        yield f"a regularizer that {where} does not have"
    elif tf1 and _near(port / tf1, 2):
        yield "a regularizer with twice the factor: tf.nn.l2_loss(w) is half of sum(w**2), which Keras's L2 takes"
    elif tf1 and _near(port / tf1, 0.5):
        yield "a regularizer with half the factor: tf.nn.l2_loss(w) is half of sum(w**2), which Keras's L2 takes"
    elif tf1:
        yield f"another factor of a regularizer, or one more or less: the port's loss is {port / tf1:.4g} times TF1's"
    yield from (_differs(each) for each in evidence.hyperparameters if each.name == REGULARIZER)


_MARKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    _order_of_random_ops,
    _attribute_of_op,
    _hyperparameter_of_layer,
    _dtype,
    _dropout,
    _constant,
    _arrangement,
    _other_op,
    _initial_value,
    _factor_of_values,
    _regularization,
)


def _constants(divergence: Divergence | None) -> tuple[float, float] | None:
    """Returns the values of the one constant input in which the ops differ, TF1's first."""
    if divergence is None:
        return None
    found = [pair for name, pair in divergence.attributes.items() if name.startswith("input ")]
    if len(found) != 1:
        return None
    try:
        tf1, port = (float(value) for value in found[0])
    except ValueError:  # no scalars
        return None
    return tf1, port


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.allclose(a, b, rtol=_CLOSE, atol=0))


def _factor(tf1_value: Value, port_value: Value) -> float | None:
    """Returns what all elements of an array are multiplied by in the other one, if it is one number."""
    if tf1_value.shape != port_value.shape:
        return None
    tf1, port = tf1_value.paired_with(port_value)
    if tf1.dtype.kind != "f" or not np.array_equal(tf1 == 0, port == 0):
        return None
    ratios = (port[tf1 != 0] / tf1[tf1 != 0]).astype(np.float64)
    return float(np.median(ratios)) if ratios.size > 1 and np.ptp(ratios) <= _CLOSE * abs(np.median(ratios)) else None


def _near(value: float, meant: float) -> bool:
    return math.isclose(value, meant, rel_tol=_CLOSE)


_SAME = 1e-6
_NEAR = 1e-4  # how near a ratio must be to a number that means something
_OF_UPDATE = {"weights", "slots", "updates"}
_OF_OPTIMIZER = (
    "another optimizer, or another of its hyperparameters: epsilon (1e-8 in tf.train.AdamOptimizer, 1e-7 in Keras), "
    "momentum and Nesterov momentum, decay, or what its slots start from (1 in tf.train.RMSPropOptimizer)"
)


def causes_of_training(
    port: StepRecorder,
    tf1: StepRecorder,
    comparison: StepsComparison,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    replicas: int = 1,
    in_slices: Collection[str] = (),
) -> tuple[str, ...]:
    """Returns what is known to cause the first difference of two training runs, the likeliest first.

    Args:
      port: what the port has recorded, under the names of `detrand.validation.training.steps.Training`.
      tf1: what the TF1 program has recorded.
      comparison: how they compare.
      hyperparameters: those that are not the same in both programs.
      replicas: how many the port ran on.
      in_slices: the variables of which the port's optimizer, of Keras 3, has got gradients in slices.
    """
    first = comparison.first_divergence
    if first is None or first.step not in port.steps or first.step not in tf1.steps:
        return ()
    on_both_sides = port[first.step].keys() & tf1[first.step].keys() | {"updates"}
    differing = {name for name, found in comparison.steps[first.step].items() if not found} & on_both_sides
    found: list[str] = []
    if "learning_rate" in differing:
        found += _of_learning_rate(port, tf1)
    if "regularization_loss" in differing:
        losses = (side[first.step].get("regularization_loss") for side in (port, tf1))
        found += causes(Evidence(losses=(next(losses), next(losses)), hyperparameters=tuple(hyperparameters)))
    elif "loss" in differing and "outputs" not in differing:
        ours, theirs = _own_loss(port[first.step]), _own_loss(tf1[first.step])
        found += _of_scaling(ours, theirs, replicas) or _of_loss(ours, theirs, tf1[first.step]["outputs"])
    if differing & _OF_UPDATE and not differing & {"gradients", "learning_rate", "loss"}:
        of_hyperparameters = [_differs(each) for each in hyperparameters if each.of == OPTIMIZER]
        found += of_hyperparameters
        found += _of_slices(comparison.steps[first.step], in_slices)
        found += () if of_hyperparameters else (_OF_OPTIMIZER,)
    if "moving_averages" in differing:
        found += [_differs(each) for each in hyperparameters if each.of != OPTIMIZER and each.name == MOMENTUM]
        found += _of_moving_averages(port, tf1)
    return tuple(found)


def _of_slices(step: Mapping[str, Comparison], in_slices: Collection[str]) -> Iterator[str]:
    leaves = (leaf for name in _OF_UPDATE if name in step for leaf in step[name].leaves)
    differing = [leaf.path for leaf in leaves if not leaf.ok]
    names = [name for name in sorted(in_slices) if any(path.endswith(f"[{name!r}]") for path in differing)]
    if all(any(path.endswith(f"[{name!r}]") for name in names) for path in differing):
        yield (
            f"gradients in slices, of {', '.join(names)}: TF1's optimizers add up the slices of a row, Keras 3's "
            "square each, and TF1's momentum and RMSProp leave rows alone that have none. Give Keras's Adam "
            "tf.convert_to_tensor(gradient); in place of others, return the optimizer of tf.compat.v1.train"
        )


def _of_learning_rate(port: StepRecorder, tf1: StepRecorder) -> Iterator[str]:
    steps = sorted(set(port.steps) & set(tf1.steps))
    ours, theirs = ([float(np.asarray(side[step]["learning_rate"])) for step in steps] for side in (port, tf1))
    if len(set(theirs)) > 1:
        if np.allclose(ours[1:], theirs[:-1], rtol=_SAME, atol=0):
            yield "a learning-rate schedule that is one step late: the port's rate is that of TF1's step before"
            return
        if np.allclose(ours[:-1], theirs[1:], rtol=_SAME, atol=0):
            yield "a learning-rate schedule that is one step early: the port's rate is that of TF1's next step"
            return
    step = next(number for number, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    yield f"another learning rate: {theirs[step]:g} in step {steps[step]} of TF1, {ours[step]:g} in the port's"


def _own_loss(step: Mapping[str, Any]) -> float:
    """Returns the loss without regularization."""
    regularization = step.get("regularization_loss")
    return float(np.asarray(step["loss"])) - (0.0 if regularization is None else float(np.asarray(regularization)))


def _of_scaling(ours: float, theirs: float, replicas: int) -> list[str]:
    if replicas > 1 and np.isclose(ours, theirs * replicas, rtol=_NEAR, atol=0):
        return [
            f"a loss that is not scaled for replicas: the port's is {replicas} times TF1's, for each replica divides "
            "by the size of its own part of the batch, and their losses are summed; tf.nn.compute_average_loss divides "
            "by that of the whole batch"
        ]
    if replicas > 1 and np.isclose(ours * replicas, theirs, rtol=_NEAR, atol=0):
        return [
            f"a loss that is scaled for replicas twice: TF1's is {replicas} times the port's; the losses of Keras 3 "
            "divide by the number of replicas themselves"
        ]
    return []


def _of_loss(ours: float, theirs: float, outputs: Any) -> Iterator[str]:
    if not ours or not theirs:
        return
    for size in sorted({size for size in _sizes(outputs) if size > 1}):
        if np.isclose(max(ours / theirs, theirs / ours), size, rtol=_NEAR):
            who, other = ("the port", "TF1") if ours > theirs else ("TF1", "the port")
            yield f"a sum against a mean: the loss of {who} is {size} times that of {other}, a size of the outputs"
            return
    yield f"another loss, or another weight of one: the port's is {ours / theirs:.6g} times TF1's"


def _sizes(outputs: Any) -> Iterator[int]:
    """Yields what a loss may be a mean over: sizes of axes of the outputs, and how many elements they have."""
    if isinstance(outputs, (dict, list, tuple)):
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from _sizes(each)
    elif outputs is not None:
        shape = np.shape(outputs)
        yield from (*shape, int(np.prod(shape)))


def _of_moving_averages(port: StepRecorder, tf1: StepRecorder) -> Iterator[str]:
    steps = sorted(set(port.steps) & set(tf1.steps))
    for name in sorted(port[steps[0]]["moving_averages"].keys() & tf1[steps[0]]["moving_averages"].keys()):
        ours, theirs = ([np.asarray(side[step]["moving_averages"][name]) for step in steps] for side in (port, tf1))
        if ours[0].dtype.kind in "biu":  # the global step, say, or another count
            continue
        port_stays, tf1_stays = _stays(ours, theirs), _stays(theirs, ours)
        if port_stays and not tf1_stays:
            yield f"moving averages that the port does not update: {name} stays as it is; call it with training=True"
        elif tf1_stays and not port_stays:
            yield f"moving averages that TF1 does not update: {name} stays as it is; see tf.GraphKeys.UPDATE_OPS"
        elif not np.array_equal(ours[0], theirs[0]):
            yield "another momentum (decay) of a batch normalization, or a variance that is biased in one program alone"
        else:
            continue
        return


def _stays(values: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Returns whether no step changes a variable, which may begin each step with the other program's value."""
    return len(values) > 1 and all(
        np.array_equal(value, before) or np.array_equal(value, other)
        for value, before, other in zip(values[1:], values, others, strict=False)
    )
