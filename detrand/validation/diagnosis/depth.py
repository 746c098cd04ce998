"""How far apart the tensors of two programs are, in the order of the computation: the data of a chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from detrand.checkpoints.upstream import op_of
from detrand.validation.frameworks.traces import Trace, Value, sample
from detrand.validation.results import TensorDifference

_COMPARED = 256  # elements, to find the nearest tensor
_READS = {"ReadVariableOp"}


def tensor_differences(tf1: Trace, port: Trace, matched: Mapping[str, Sequence[str]]) -> tuple[TensorDifference, ...]:
    """Return how each tensor of TF1 differs from its counterpart in the port, or else from the nearest tensor there.

    ``matched`` holds the names of the port's counterparts. They are nearest to no other tensor.
    """
    taken = {name for names in matched.values() for name in names}
    free: dict[tuple[int, str], dict[str, np.ndarray]] = defaultdict(dict)
    for name, value in port.values.items():
        if name not in taken:
            free[value.size, value.dtype.kind][name] = _some_of(value)
    found = []
    for name, value in tf1.values.items():
        op = tf1.ops[op_of(name)]
        if op.type in _READS:
            continue
        near = free.get((value.size, value.dtype.kind), {})
        others = [other for other in matched.get(name, ()) if other in port.values]
        others = others or ([_nearest(value, near)] if near else [])
        amount = min((_difference(value, port.values[other]) for other in others), default=None)
        where = port.ops[op_of(others[0])] if others else None
        found.append(TensorDifference(str(op), "" if where is None else str(where), amount, name in matched))
    return tuple(found)


def _some_of(value: Value) -> np.ndarray:
    if not value.is_whole:
        return value.elements[:_COMPARED].astype(np.float64)
    return value.elements[sample(value.size, min(value.size, _COMPARED))].astype(np.float64)


def _nearest(value: Value, near: Mapping[str, np.ndarray]) -> str:
    elements = _some_of(value)
    with np.errstate(invalid="ignore"):
        return min(
            near,
            key=lambda name: np.nan_to_num(np.abs(near[name] - elements), nan=np.inf, posinf=np.inf).max(initial=0),
        )


def _difference(tf1: Value, port: Value) -> float:
    """Return the greatest absolute difference, relative to TF1's greatest element."""
    desired, actual = (each.astype(np.float64) for each in tf1.paired_with(port))
    with np.errstate(invalid="ignore"):
        differences = np.where(
            (desired == actual) | (np.isnan(desired) & np.isnan(actual)), 0, np.abs(actual - desired)
        )
    greatest = np.abs(desired[np.isfinite(desired)]).max(initial=0)
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0) / (greatest or 1))
