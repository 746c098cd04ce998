"""What usually causes a difference between two training runs: as `detrand.validation.causes`, for recorded steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detrand.comparison.step_comparison import StepsComparison
from detrand.comparison.step_recorder import StepRecorder
from detrand.comparison.values import Comparison
from detrand.validation.audit import AuditedSetting
from detrand.validation.causes import Evidence, causes, describe_setting
from detrand.validation.optimizer_settings import OPTIMIZER
from detrand.validation.settings import MOMENTUM

_SAME = 1e-6
_NEAR = 1e-4  # how near a ratio must be to a number that means something
_OF_UPDATE = {"weights", "slots", "updates"}
_OF_OPTIMIZER = (
    "another optimizer, or another of its settings: epsilon (1e-8 in tf.train.AdamOptimizer, 1e-7 in Keras), momentum "
    "and Nesterov momentum, decay, or what its slots start from (1 in tf.train.RMSPropOptimizer)"
)


def causes_of_training(
    port: StepRecorder,
    tf1: StepRecorder,
    comparison: StepsComparison,
    settings: Sequence[AuditedSetting] = (),
    replicas: int = 1,
    in_slices: Collection[str] = (),
) -> tuple[str, ...]:
    """Returns what is known to cause the first difference of two training runs, the likeliest first.

    Args:
      port: what the port has recorded, under the names of `detrand.validation.training.Training`.
      tf1: what the TF1 program has recorded.
      comparison: how they compare.
      settings: those that are not the same in both programs.
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
        found += causes(Evidence(losses=(next(losses), next(losses)), settings=tuple(settings)))
    elif "loss" in differing and "outputs" not in differing:
        ours, theirs = _own_loss(port[first.step]), _own_loss(tf1[first.step])
        found += _of_scaling(ours, theirs, replicas) or _of_loss(ours, theirs, tf1[first.step]["outputs"])
    if differing & _OF_UPDATE and not differing & {"gradients", "learning_rate", "loss"}:
        of_settings = [describe_setting(setting) for setting in settings if setting.of == OPTIMIZER]
        found += of_settings
        found += _of_slices(comparison.steps[first.step], in_slices)
        found += () if of_settings else (_OF_OPTIMIZER,)
    if "moving_averages" in differing:
        found += [
            describe_setting(setting) for setting in settings if setting.of != OPTIMIZER and setting.name == MOMENTUM
        ]
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
