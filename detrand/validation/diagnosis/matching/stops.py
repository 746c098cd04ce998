"""Stops of gradients, such as ``tf.stop_gradient``, that only one of two programs has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.validation.diagnosis.matching.tensors import match
from detrand.validation.frameworks.traces import Trace, TracedOp

# Ops through which no gradient passes, and the op of a ``tf.custom_gradient``.
_STOPS = {"StopGradient", "Round", "Rint", "Floor", "Ceil", "FloorDiv", "Sign", "IdentityN"}
_CHOICES = {"ArgMax", "ArgMin", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "InTopKV2"}


def stop_of_gradients(
    tf1: Trace, port: Trace, gradients: Mapping[str, bool], inputs: Collection[int] = ()
) -> tuple[str, TracedOp | None, TracedOp | None] | None:
    """Return what stops gradients in one program only, ``"TF1"`` or ``"the port"``, and the ops there.

    The op of the other program computes the same; if that is the port, it should stop gradients after it. None if no
    stop explains which gradients of variables agree, or if some inputs are given and no gradients of these are stopped.
    """
    stops = [list(_stops(trace, gradients, inputs)) for trace in (tf1, port)]
    reached = [sum(trace.reads.get(name) in gradients for name in _passed(trace)) for trace in (tf1, port)]
    matched = match(tf1, port)
    equal = [(op_of(name), op_of(other)) for name, others in matched.items() for other in others]
    in_both = {name for pair in equal if pair[0] in stops[0] and pair[1] in stops[1] for name in pair}
    of_tf1, of_port = ([name for name in names if name not in in_both] for names in stops)
    if of_port and (reached[1] <= reached[0] or not of_tf1):
        name = of_port[0]
        return "the port", next((tf1.ops[one] for one, other in equal if other == name), None), port.ops[name]
    if of_tf1:
        op = tf1.ops[of_tf1[0]]
        return "TF1", op, next((port.ops[other] for one, other in equal if one in op.sources), None)
    return None


def stop_in_one_program(
    tf1: Trace, port: Trace, variables: Collection[str]
) -> tuple[str, TracedOp | None, TracedOp | None, list[str]] | None:
    """Return the one program that has a ``tf.stop_gradient``, the op in either program, and the variables before it.

    Where outputs differ, all gradients differ too, so only the ops can show it.
    """
    stops = [dict(_variables_before_stops(trace, variables)) for trace in (tf1, port)]
    of_tf1, of_port = ([(name, stopped) for name, stopped in of.items() if stopped] for of in stops)
    if bool(of_tf1) == bool(of_port) or len(stops[0]) == len(stops[1]):  # one may stop those of other variables
        return None
    name, stopped = (of_tf1 or of_port)[0]
    return ("TF1", tf1.ops[name], None, stopped) if of_tf1 else ("the port", None, port.ops[name], stopped)


def _variables_before_stops(trace: Trace, variables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each op that stops gradients with an effect, and those of some variables that are before it."""
    for name in sorted(_passed(trace) - _without_effect(trace)):
        if trace.ops[name].type == "StopGradient":
            needed = _with_gradients(trace, name)
            yield name, sorted({trace.reads[str(each)] for each in needed if each in trace.reads} & {*variables})


def _with_gradients(trace: Trace, name: str) -> set[str]:
    """Return the ops upstream of an op, without those of which only a choice depends, such as that of ``tf.argmax``."""
    return all_upstream(
        [name], lambda each: () if trace.ops[str(each)].type in _CHOICES else trace.ops[str(each)].sources
    )


def _without_effect(trace: Trace) -> set[str]:
    """Return the ops that stop a gradient which is 0.

    Moments stop that of the mean in the variance, and the logarithm of a sum of exponentials that of the greatest
    number, which is subtracted from all and added again.
    """
    found = {source for op in trace.ops.values() if op.type == "SquaredDifference" for source in op.sources}
    for op in trace.ops.values():
        shift = trace.ops.get(op_of(op.inputs[-1])) if op.type == "Sub" else None
        if shift is not None and shift.type == "StopGradient":
            before = all_upstream(shift.sources, lambda name: trace.ops[str(name)].sources)
            greatest = (trace.ops[str(name)] for name in before if trace.ops[str(name)].type == "Max")
            found |= {shift.name for each in greatest if each.inputs[0] == op.inputs[0]}
    return found


def _passed(trace: Trace) -> set[str]:
    """Return the ops that gradients of the outputs reach, and those that stop them."""
    return all_upstream(
        map(op_of, trace.outputs.values()),
        lambda name: () if trace.ops[name].type in _STOPS else trace.ops[name].sources,
    )


def _stops(trace: Trace, gradients: Mapping[str, bool], inputs: Collection[int]) -> Iterator[str]:
    """Yield the ops, nearest to the outputs, that stop the gradients of all variables whose gradients differ, only."""
    differing = {name for name, agrees in gradients.items() if not agrees}
    given = {trace.inputs[position] for position in inputs}
    passed = _passed(trace) - _without_effect(trace)
    for name, op in trace.ops.items():
        if name in passed and op.type in _STOPS:
            needed = _with_gradients(trace, name)
            stopped = {trace.reads[str(each)] for each in needed if each in trace.reads} & gradients.keys()
            if stopped == differing and (stopped or not given.isdisjoint(needed)):
                yield name
