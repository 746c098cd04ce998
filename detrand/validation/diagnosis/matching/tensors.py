"""Tensors of two traces: `match` finds those with the same numbers, and `tensor_differences` compares the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from detrand.checkpoints.upstream import op_of
from detrand.comparison.values import compare
from detrand.validation.frameworks.traces import GATHERS, Trace, Value, is_informative, sample
from detrand.validation.results import TensorDifference

# In float64. Constants may be rounded to float32, and that may be amplified: the second is for what the first misses.
RTOLS = (1e-6, 1e-9)
_FEW = 256  # elements
_COMPARED = 256  # elements, to find the nearest tensor


def match(tf1: Trace, port: Trace, rtol: float = RTOLS[0]) -> dict[str, list[str]]:
    """Return the names of the port's values that are equal to a value of TF1, by the name of that.

    An input is equal to the same input, and a value that is not informative only to the same output or variable.
    """
    candidates: dict[tuple[int, str], list[tuple[str, Value]]] = defaultdict(list)
    for port_name, port_value in port.values.items():
        if is_informative(port_value.elements):
            candidates[port_value.size, port_value.dtype.kind].append((port_name, port_value))
    found: dict[str, list[str]] = defaultdict(list)
    for path, name in tf1.outputs.items():
        other = port.outputs.get(path, "")
        is_constant = name in tf1.values and not is_informative(tf1.values[name].elements)
        if is_constant and other in port.values and _are_equal(tf1.values[name], port.values[other], rtol):
            found[name].append(other)
    for name, value in tf1.values.items():
        for port_name, port_value in candidates.get((value.size, value.dtype.kind), ()):
            atol = value.atol(port_value, rtol) * value.size
            near = abs(value.weight - port_value.weight) <= 2 * (atol + rtol * abs(value.weight))
            if near and _are_equal(value, port_value, rtol):
                found[name].append(port_name)
    for name, other in zip(tf1.inputs, port.inputs, strict=False):
        are_used = name in tf1.ops and other in port.ops
        found[name] += [other] if are_used and other not in found[name] else []
    whole = [{op: name for op, name in each.reads.items() if each.ops[op].type not in GATHERS} for each in (tf1, port)]
    for name, variable in whole[0].items():
        found[name] += [other for other, same in whole[1].items() if same == variable and other not in found[name]]
    return {name: others for name, others in found.items() if others}


def _are_equal(tf1: Value, port: Value, rtol: float) -> bool:
    """Return whether the elements are equal, in any shape."""
    if tf1.size != port.size:
        return False
    desired, actual = tf1.paired_with(port)
    atol = tf1.atol(port, rtol)
    if desired.dtype.kind != "f" or actual.dtype.kind != "f":
        return compare(actual, desired, rtol, atol, equal_nan=True, check_dtype=False).ok
    few = slice(None, None, max(1, desired.size // _FEW))  # which show most differences
    return all(np.isclose(actual[part], desired[part], rtol, atol, equal_nan=True).all() for part in (few, slice(None)))


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
        if op.type == "ReadVariableOp":
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
