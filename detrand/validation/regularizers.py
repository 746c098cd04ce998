"""Which regularizers the variables of a program have, read from its regularization losses.

Libraries count the same loss in other ways: ``tf.nn.l2_loss`` is half of the sum of squares. So a regularizer is told
by what the sums of squares and of absolute values are multiplied by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from detrand.validation.dataflow import Dataflow

_SQUARES, _ABSOLUTES = "sum(w**2)", "sum(abs(w))"
_ADDS = ("AddV2", "Add", "AddN")

_Terms = list[tuple[str, str, float]]  # variable, what is summed, factor


def regularizers_of(losses: Iterable[tf.Tensor], variables: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the regularizer of each variable as text, such as ``"0.005 sum(w**2)"``; None for one that has none.

    >>> with tf.Graph().as_default():
    ...     w = tf.compat.v1.get_variable("w", (3,))
    ...     regularizers_of([0.01 * tf.nn.l2_loss(w)], {w.op.name: "w"})
    {'w': '0.005 sum(w**2)'}

    Args:
      losses: the regularization losses, tensors of a graph.
      variables: the names of the variables, by the names of the ops that they are read from. Those that are in a loss
        of another kind are left out: what that does with them is not known.
    """
    flow = Dataflow(variables)
    found: dict[str, dict[str, float]] = {name: {} for name in variables.values()}
    for loss in losses:
        terms = _terms(loss, flow)
        if terms is None:
            for name in flow.all_variables(loss):
                found.pop(name, None)
            continue
        for name, kind, factor in terms:
            if name in found:
                found[name][kind] = found[name].get(kind, 0.0) + factor
    return {name: _in_words(factors) for name, factors in found.items()}


def _in_words(factors: Mapping[str, float]) -> str | None:
    return " + ".join(f"{factor:.6g} {kind}" for kind, factor in sorted(factors.items()) if factor) or None


def _terms(loss: tf.Tensor, flow: Dataflow) -> _Terms | None:
    """Returns what a loss is the sum of; None if it is anything else."""
    op = loss.op
    if flow.number(loss) == 0:
        return []
    if op.type in ("Identity", "Cast"):
        return _terms(op.inputs[0], flow)
    if op.type in _ADDS:
        parts = [_terms(operand, flow) for operand in op.inputs]
        return None if None in parts else [term for part in parts for term in part or ()]
    if op.type == "Mul":
        for factor, rest in (op.inputs, list(op.inputs)[::-1]):
            number = flow.number(factor)
            if number is not None:
                terms = _terms(rest, flow)
                return None if terms is None else [(name, kind, number * value) for name, kind, value in terms]
        return None
    if op.type == "L2Loss":
        name = flow.variable(op.inputs[0])
        return None if name is None else [(name, _SQUARES, 0.5)]
    if op.type == "Sum" and loss.shape.rank == 0:
        return _terms_of_sum(op.inputs[0].op, flow)
    return None


def _terms_of_sum(summed: tf.Operation, flow: Dataflow) -> _Terms | None:
    names = {flow.variable(operand) for operand in summed.inputs}
    if summed.type == "Pow" and flow.number(summed.inputs[1]) == 2:
        names, kind = {flow.variable(summed.inputs[0])}, _SQUARES
    elif summed.type in ("Square", "Mul"):
        kind = _SQUARES
    elif summed.type == "Abs":
        kind = _ABSOLUTES
    else:
        return None
    (name,) = names if len(names) == 1 else (None,)
    return None if name is None else [(name, kind, 1.0)]
