"""Moving averages of the variance of a sample, which TF1's fused batch normalization and PyTorch's compute in training.

They divide the sum of squares by n - 1, where n elements of each channel were normalized; a batch normalization of
Keras 3, and one that is written out, divides by n. `excesses` says by how much the averages then differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detrand.packages import tf
from detrand.validation.frameworks.traces import FUSED_NORMALIZATIONS

_PASSES_ON = ("Identity", "Merge")
_OF_ROUNDING = 1e-5  # relative to an average: many times what its update rounds by


class SampleVariances:
    """The variances of samples that the fused batch normalizations of a graph compute, of those ops that are run.

    Attributes:
      fetches: for each of them its tensor, and the number n of normalized elements of a channel.
    """

    def __init__(self, graph: tf.Graph, run: Collection[tf.Operation] | None = None):
        self._counts: dict[str, tf.Tensor | int] = {}
        self.fetches: list[tuple[tf.Tensor, tf.Tensor | int]] = []
        for tensor in [tensor for op in graph.get_operations() for tensor in op.outputs]:
            if (count := self._count_of(tensor)) is not None:
                self._counts[tensor.name] = count
                if graph.is_fetchable(tensor) and (run is None or tensor.op in run):
                    self.fetches.append((tensor, count))

    def _count_of(self, tensor: tf.Tensor) -> tf.Tensor | int | None:
        """Return how many elements of a channel a tensor is the variance of; None if it is no sample's variance."""
        from detrand._patching.graphs import function_graphs

        op = tensor.op
        if op.type in FUSED_NORMALIZATIONS and tensor.value_index == 2 and op.get_attr("is_training"):
            given, (channels,) = op.inputs[0], tensor.shape.as_list()  # ints, also after disable_v2_tensorshape
            if given.shape.is_fully_defined():
                return int(math.prod(given.shape.as_list())) // channels
            return tf.size(given) // channels if op.graph.is_fetchable(given) else None
        if op.type in _PASSES_ON and tensor.value_index == 0:
            return next((self._counts[given.name] for given in op.inputs if given.name in self._counts), None)
        if op.type in ("If", "StatelessIf"):
            returned = [each.outputs[tensor.value_index] for each in function_graphs(op)]
            counts = [SampleVariances(each.graph)._counts.get(each.name) for each in returned]
            return next((count for count in counts if isinstance(count, int)), None)
        return None


class Excess(NamedTuple):
    """How much greater a moving average is after an update with the variance of a sample, not of the batch.

    Attributes:
      rate: 1 - momentum.
      amount: what the update adds too much.
    """

    rate: float
    amount: np.ndarray


def excesses(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], variances: Sequence[tuple[np.ndarray, int]]
) -> dict[str, Excess]:
    """Return the excesses of the moving averages of samples' variances, by name, of one update.

    The update of an average ``a`` with the variance ``v`` of a sample is ``a + rate * (v - a)``; with the variance of
    the batch it is ``a + rate * (v * (n - 1) / n - a)``.
    """
    found = {}
    for name, value in after.items():
        start, end = np.asarray(before[name], np.float64), np.asarray(value, np.float64)
        least = _OF_ROUNDING * np.abs(end).max(initial=0)
        for sample, count in variances:
            distance = sample - start if sample.shape == start.shape else np.zeros(1)
            if not distance.any():
                continue
            rate = float(np.vdot(distance, end - start) / np.vdot(distance, distance))
            residual = np.abs(start + rate * distance - end).max()
            if residual < least and rate > 0:
                found[name], least = Excess(rate, rate * sample / count), residual
    return found


def as_of_batch(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], variances: Sequence[tuple[np.ndarray, int]]
) -> dict[str, np.ndarray]:
    """Return the moving averages of samples' variances after an update, as they would be with the batch's."""
    found = excesses(before, after, variances)
    return {name: after[name] - excess.amount.astype(after[name].dtype) for name, excess in found.items()}


class MovingAverages:
    """The moving averages of samples' variances, followed from step to step, as they would be with the batch's."""

    def __init__(self, before: Mapping[str, np.ndarray]):
        self.begin(before)

    def begin(self, before: Mapping[str, np.ndarray]) -> None:
        """Begin with the values of all variables."""
        self._before = before
        self._excesses: dict[str, np.ndarray] = {}

    def of_batch(
        self, after: Mapping[str, np.ndarray], variances: Sequence[tuple[np.ndarray, int]]
    ) -> dict[str, np.ndarray]:
        """Return these averages after a step, by name, given all averages after it."""
        found = {}
        for name, (rate, amount) in excesses(self._before, after if variances else {}, variances).items():
            self._excesses[name] = (1 - rate) * self._excesses.get(name, 0.0) + amount
            found[name] = after[name] - self._excesses[name].astype(after[name].dtype)
        self._before = after
        return found


def nearer(
    other: Mapping[str, np.ndarray], of_sample: Mapping[str, np.ndarray], of_batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the moving averages as of the batch that another program's are nearer to than to those of a sample."""
    return {
        name: array
        for name, array in of_batch.items()
        if name in other
        and other[name].shape == array.shape
        and np.abs(other[name] - array).max() < np.abs(other[name] - of_sample[name]).max()
    }
