"""The activations of a TF1 program, and whether a run exercises them.

A run in which all inputs of a relu have one sign, or in which those of a tanh are near 0, computes the same with many
other activations in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from detrand.arguments import and_more, plural
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.packages import tf
from detrand.seeding.callsite import site_of_op

# Where the slope of an activation jumps, or may in the port: a relu is a relu6 up to 6. The others are smooth.
KINKS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("Elu", "Selu", "Maximum", "Minimum"), (0.0,)),
    **dict.fromkeys(("Relu", "LeakyRelu", "Relu6"), (0.0, 6.0)),
}
_SATURATING = ("Tanh", "Sigmoid", "Erf")
_NORMALIZING = ("Softmax", "LogSoftmax", "Exp")  # the size of their inputs depends on masks
ACTIVATIONS = frozenset((*KINKS, *_SATURATING, *_NORMALIZING, "Softplus", "Softsign"))
_LINEAR, _SATURATED = 0.1, 5.0  # a smooth activation is almost linear up to here, and saturated from here on
NOT_MEASURED = "not measured"


class Activation(NamedTuple):
    """What a run shows of an activation.

    Attributes:
      name: the name of its op in the TF1 graph.
      op: its op type and line.
      flaw: why the run does not exercise it; empty if it does.
      rms: the root mean square of its inputs; None if it means nothing.
    """

    name: str
    op: str
    flaw: str
    rms: float | None


def find_activations(graph: tf.Graph, outputs: Iterable[tf.Tensor], variables: Iterable[str]) -> list[tf.Operation]:
    """Return the activations, in functions too, of what outputs are computed from variables, given by their ops."""
    needed = all_upstream([tensor.op for tensor in outputs], input_ops)
    reached = set(variables)
    found: list[tf.Operation] = []
    for op in graph.get_operations():
        if op in needed and not reached.isdisjoint(tensor.op.name for tensor in op.inputs):
            reached.add(op.name)
            found += [each for each in (op, *_inside(op)) if each.type in ACTIVATIONS and not _has_bound(each)]
    return found


def _inside(op: tf.Operation) -> Iterator[tf.Operation]:
    """Yield the ops in the functions that an op calls."""
    from detrand._patching.graphs import function_graphs

    for graph in function_graphs(op):
        for inner in graph.get_operations():
            yield from (inner, *_inside(inner))


def _has_bound(op: tf.Operation) -> bool:
    """Return whether an op compares with a constant other than 0, such as an epsilon."""
    bounds = map(tf.get_static_value, op.inputs) if op.type in ("Maximum", "Minimum") else ()
    return any(bound is not None and np.any(bound) for bound in bounds)


def inputs_of(op: tf.Operation) -> tf.Tensor:
    """Return the RMS, the least, the greatest and the least absolute input of an activation, as a tensor."""
    x = tf.cast(op.inputs[0], tf.float32)
    if op.type in ("Maximum", "Minimum"):
        x -= tf.cast(op.inputs[1], tf.float32)
    return tf.stack([tf.norm(x) / tf.sqrt(tf.cast(tf.size(x), tf.float32)), *map(tf.reduce_min, (x, -x, tf.abs(x)))])


def activation_of(op: tf.Operation, inputs: np.ndarray | None) -> Activation:
    """Return what a run shows of an activation, given what `inputs_of` computed; None if it could not be fetched."""
    text = f"{op.type} at {site_of_op(op)}"
    if inputs is None:
        return Activation(op.name, text, NOT_MEASURED, None)
    rms, least, greatest, nearest = (inputs * (1, 1, -1, 1)).tolist()
    kinks = KINKS.get(op.type, ())
    flaws = [f"no input below {kink:g}" for kink in kinks[:1] if not least < kink]
    flaws += [f"no input above {kink:g}" for kink in kinks if not greatest > kink][:1]
    if op.type not in KINKS and max(-least, greatest) < _LINEAR:
        flaws.append(f"no input beyond ±{_LINEAR:g}")
    if op.type in _SATURATING and nearest > _SATURATED:
        flaws.append(f"every input beyond ±{_SATURATED:g}")
    return Activation(op.name, text, " and ".join(flaws), None if op.type in _NORMALIZING else rms)


def describe_activations(run: Sequence[Activation], other: Sequence[Activation] = ()) -> Iterator[str]:
    """Yield what a run shows of the activations of a program; one that another run exercises counts as exercised."""
    sizes = [each.rms for each in run if each.rms is not None]
    if sizes:
        least_and_greatest = dict.fromkeys(f"{size:.2g}" for size in (min(sizes), max(sizes)))
        yield f"pre-activations: RMS {' to '.join(least_and_greatest)} in {plural(len(sizes), 'activation')}"
    in_loops = sum(each.flaw == NOT_MEASURED for each in run)
    if in_loops:
        yield f"{plural(in_loops, 'activation')} in loops or functions not measured"
    exercised = {each.name for each in other if not each.flaw}
    flawed = [each for each in run if each.flaw not in ("", NOT_MEASURED) and each.name not in exercised]
    if flawed:
        yield f"not exercised: {and_more(dict.fromkeys(f'{each.op} ({each.flaw})' for each in flawed), 3)}"
