"""Two traces side by side: which of their tensors hold the same numbers, and where they diverge.

Names do not matter, nor how many ops make up a layer: a tensor has a counterpart if the other program computes the same
numbers anywhere, in any shape. The programs diverge at an op that has no counterpart and from which no op with a
counterpart is computed, while everything that it is computed from has one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.comparison.values import LeafComparison, compare
from detrand.validation.diagnosis.divergence import Divergence, Masking
from detrand.validation.diagnosis.op_kinds import (
    ACTIVATIONS,
    COMMUTATIVE,
    COPIES,
    MOVES,
    OF_LAST_AXIS,
    PLUMBING,
    WINDOWED,
    kind,
    only_in,
    padded_window,
)
from detrand.validation.frameworks.traces import (
    CHECKSUM,
    GATHERS,
    IN_FUNCTION,
    Trace,
    TracedOp,
    Value,
    is_informative,
    sample,
)
from detrand.validation.results import TensorDifference

# In float64. Constants may be rounded to float32, and that may be amplified: the second is for what the first misses.
RTOLS = (1e-6, 1e-9)
_FEW = 256  # elements
_COMPARED = 256  # elements, to find the nearest tensor
_HALVES = {"<dtype: 'float16'>", "<dtype: 'bfloat16'>"}
_DTYPES = {*_HALVES, "<dtype: 'float32'>", "<dtype: 'float64'>"}
_DATA = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "ReadVariableOp"}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}


_Regions = tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]]  # ops of TF1 and ops of the port


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
    """Return which program alone has a ``tf.stop_gradient`` before its outputs, the ops, and the variables before it.

    Where outputs differ, so do all gradients, and what the programs are made of is all that tells.
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


class Program:
    """One program in a comparison.

    Attributes:
      trace: its trace.
      matched: the names of its tensors with a counterpart -> the names of these.
      diverged: its ops without a counterpart, in order.
      near: name of an op -> the nearest tensors with informative values that it is computed from.
      depth: name of a diverged op -> how many diverged ops lie on the longest way to it.
    """

    def __init__(self, trace: Trace, matched: Mapping[str, Sequence[str]]):
        self.trace, self.matched = trace, matched
        self.diverged, self._without_counterpart = trace.diverged(matched), trace.without_counterpart(matched)
        self.near: dict[str, list[str]] = {}
        for name, op in trace.ops.items():
            found: dict[str, None] = {}
            for tensor in op.inputs:
                found.update(dict.fromkeys([tensor] if tensor in trace.values else self.near.get(op_of(tensor), ())))
            self.near[name] = list(found)
        names = {op.name for op in self.diverged}
        self.depth: dict[str, int] = {}
        for op in self.diverged:
            before = [self.depth.get(op_of(each), 0) for each in self.near[op.name] if op_of(each) in names]
            self.depth[op.name] = max(before, default=-1) + 1

    def taken(self, op: TracedOp | None) -> list[str]:
        """Return the nearest tensors that an op is computed from: inputs, and those with informative values."""
        found: dict[str, None] = {}
        for tensor in () if op is None else op.inputs:
            is_known = tensor in self.trace.values or op_of(tensor) in self.trace.inputs
            found.update(dict.fromkeys([tensor] if is_known else self.near.get(op_of(tensor), ())))
        return list(found)

    @property
    def first(self) -> list[TracedOp]:
        """The diverged ops that are computed from tensors with a counterpart only."""
        return [op for op in self.diverged if not self.depth[op.name]]

    def first_after(self, end: str | None) -> list[TracedOp]:
        """Return those of the first diverged ops that are computed from a tensor; if none is, the next op that is.

        All are returned if no diverged op is computed from the tensor.
        """

        def is_after(op: TracedOp) -> bool:
            return end is not None and op_of(end) in self._upstream(op.name)

        of_end = [op for op in self.first if is_after(op)]
        return of_end or [*itertools.islice(filter(is_after, self.diverged), 1)] or self.first

    def _upstream(self, *names: str) -> set[str]:
        return all_upstream(names, lambda name: self.trace.ops[name].sources if name in self.trace.ops else ())

    def origin(self, tensor: str) -> str:
        """Return the tensor with a value, or the input, of which a tensor is a copy in another shape."""
        op = self.trace.ops.get(op_of(tensor))
        while op is not None and tensor not in self.trace.values and kind(op) in COPIES and op.inputs:
            tensor = op.inputs[0]
            op = self.trace.ops.get(op_of(tensor))
        return tensor

    def before_functions(self, tensor: str) -> str:
        """Return the tensor of which a tensor is a function of one argument, such as an activation of a part of it."""
        op = self.trace.ops.get(op_of(tensor))
        while op is not None and kind(op) in ACTIVATIONS | COMMUTATIVE | COPIES:
            arguments = [each for number, each in enumerate(op.inputs) if f"input {number}" not in op.constants]
            if len(arguments) != 1:
                break
            tensor = arguments[0]
            op = self.trace.ops.get(op_of(tensor))
        return tensor

    def leads_to(self, region: Sequence[TracedOp], op: TracedOp) -> bool:
        """Return whether an op is in a region or is computed from it."""
        return not self._upstream(op.name).isdisjoint(each.name for each in region)

    def masking(self, region: Sequence[TracedOp]) -> Masking | None:
        """Return how the first softmax in a region, or after it, is masked, without axes of 1; None if that is unknown.

        Masked elements are far below the others. Those that are only so small that their exponential is 0 are not.
        Where the input of Softmax has a counterpart, the other program masks the same.
        """
        found = ((op, self._operand_of_softmax(op)) for op in self.diverged)
        softmax, operand = next(
            ((op, name) for op, name in found if name and (not region or self.leads_to(region, op))), (None, "")
        )
        after, before = self.value(softmax), self.trace.values.get(operand)
        if softmax is None or after is None or before is None or after.array is None or before.array is None:
            return None
        zeros, taken = np.squeeze(after.array) == 0, np.squeeze(before.array)
        if zeros.any() and operand in self.matched:
            return None
        masked, others = taken[zeros], taken[~zeros]
        is_below = masked.size and others.size and masked.max() < others.min() - np.ptp(others)
        if masked.size and not is_below:
            return None
        needed = self._upstream(*softmax.sources)
        differing = (op for op in region if op.name in needed)  # the first of them makes the mask
        return Masking(next(differing, None) or _computing_operand(self.trace, softmax), zeros, softmax.name)

    def _operand_of_softmax(self, op: TracedOp) -> str:
        """Return the tensor of which an op computes the softmax; empty if it computes none.

        A softmax by hand divides exponentials by their sum.
        """
        if kind(op) != "RealDiv" or len(op.inputs) != 2:
            return op.inputs[0] if op.type == "Softmax" else ""
        exponentials, total = (self.trace.ops.get(op_of(name)) for name in op.inputs)
        while total is not None and kind(total) in COPIES:
            total = self.trace.ops.get(op_of(total.inputs[0]))
        if exponentials is None or exponentials.type != "Exp" or total is None or total.type != "Sum":
            return ""
        return exponentials.inputs[0] if exponentials.name in total.sources else ""

    def region(self, end: str | None) -> tuple[TracedOp, ...]:
        """Return the ops that compute a tensor from tensors with a counterpart, or all diverged ops.

        Some may also lead to a tensor with a counterpart that the port was given.
        """
        if end is None:
            return self._with_calls(self.diverged)
        needed, waiting = set[str](), [end]
        while waiting:
            tensor = waiting.pop()
            op = op_of(tensor)
            if tensor not in self.matched and op not in needed:
                needed.add(op)
                waiting += self.trace.ops[op].inputs if op in self.trace.ops else ()
        return self._with_calls([op for op in self._without_counterpart if op.name in needed])

    def idle_before(self, region: Sequence[TracedOp], end: str | None) -> list[TracedOp]:
        """Return the ops right before a region, or before its end if it is empty, that show nothing of what they do.

        Some change no number, such as a ReLU of positive numbers: what it computes and what it takes have the same
        counterpart. Others make one number of all, such as a softmax over an axis of one element.
        """
        found: list[TracedOp] = []
        waiting = [tensor for op in region for tensor in op.inputs] or [end or ""]
        while waiting:
            tensor = waiting.pop()
            op, others = self.trace.ops.get(op_of(tensor)), set(self.matched.get(tensor, ()))
            taken = [] if op is None else op.inputs
            is_one_number = bool(taken) and tensor not in self.trace.values and op_of(tensor) not in self.trace.reads
            same = [
                each
                for each in taken
                if each in self.matched and (is_one_number or not others.isdisjoint(self.matched[each]))
            ]
            if op is not None and same and op not in found:
                found.append(op)
                waiting += taken
        return found[::-1]

    def padding_for(self, region: Sequence[TracedOp]) -> list[TracedOp]:
        """Return the ops outside a region that pad for a convolution or a pooling in it."""
        found: list[TracedOp] = []
        for op in region:
            before = self.trace.ops.get(next(iter(op.sources), "")) if op.type in WINDOWED else None
            while before is not None and before.type in ("ExpandDims", "Squeeze"):
                before = self.trace.ops.get(next(iter(before.sources), ""))
            if before is not None and kind(before) == "Pad" and before not in (*region, *found):
                found.append(before)
        return found

    def copies(self, end: str | None) -> list[TracedOp]:
        """Return the diverged ops after a tensor that only move its numbers; those that are outputs are left out."""
        outputs, holding = {op_of(name) for name in self.trace.outputs.values()}, {op_of(end or "")}
        found = []
        for op in self.diverged:
            if kind(op) in PLUMBING | MOVES and op.name not in outputs and not holding.isdisjoint(op.sources):
                holding.add(op.name)
                found.append(op)
        return found

    def _with_calls(self, ops: Sequence[TracedOp]) -> tuple[TracedOp, ...]:
        """Return ops with the calls of functions, such as loops, that they take something from that has no value."""
        found, waiting = {op.name: op for op in ops}, [name for op in ops for name in op.inputs]
        while waiting:
            tensor = waiting.pop()
            op = self.trace.ops.get(op_of(tensor))
            if op is not None and op.name not in found and tensor not in self.trace.values:
                found[op.name] = op
                waiting += op.inputs
        return (*(op for name, op in found.items() if op.body and op not in ops), *ops)

    def variables_of(self, region: Sequence[TracedOp], first: TracedOp | None) -> frozenset[str]:
        """Return the TF1 names of the variables that a region takes, after the tensors with a counterpart."""
        ops, known = self.trace.ops, {op_of(name) for name in self.matched}
        region_ops = {op.name for op in (*region, first) if op is not None} & ops.keys()
        needed = all_upstream(
            region_ops, lambda name: ops[name].sources if name in region_ops or name not in known else ()
        )
        return frozenset(self.trace.reads[name] for name in needed if name in self.trace.reads)

    def inputs_of(self, end: str | None) -> frozenset[int]:
        """Return the positions of the inputs that a tensor is computed from; none for no tensor."""
        return frozenset() if end is None else self.trace.inputs_of([self.trace.ops[op_of(end)]])

    def agrees(self, op: TracedOp) -> bool:
        """Return whether a value of an op has a counterpart; true for an op without values, such as one in a loop."""
        names = self.trace.values_of(op)
        return not names or any(name in self.matched for name in names)

    def drawing(self, region: Sequence[TracedOp]) -> TracedOp | None:
        """Return the first op of a region that takes random numbers, such as the mask of a dropout; None if none does.

        A call of a function that draws comes before other ops.
        """
        in_bodies = (op for op in region if any("Random" in inner.type for inner in op.with_body))
        takes = (op for op in region if op.name in self._drawn or not self._drawn.isdisjoint(op.sources))
        return next(itertools.chain(in_bodies, takes), None)

    def takes_numbers(self, tensors: Collection[str]) -> TracedOp | None:
        """Return the first op without a counterpart that takes random numbers, given as tensors; None if none does."""
        drawn = {tensor for tensor in tensors if op_of(tensor) in self._drawn}
        return next((op for op in self._without_counterpart if not drawn.isdisjoint(op.inputs)), None)

    @functools.cached_property
    def _drawn(self) -> set[str]:
        """The random ops, and what is computed from them without any data."""
        drawn, given = set[str](), set[str]()
        for name, op in self.trace.ops.items():
            if op.type in _DATA or (op.type not in _SHAPES and not given.isdisjoint(op.sources)):
                given.add(name)
            elif "Random" in op.type or not drawn.isdisjoint(op.sources):
                drawn.add(name)
        return drawn

    def value(self, op: TracedOp | None) -> Value | None:
        """Return the value of an op's first output that has no counterpart; if each has one, of the first output."""
        names = sorted(self.trace.values_of(op), key=lambda name: name in self.matched)
        return self.trace.values[names[0]] if names else None


_SLIGHT = 10  # times the tolerance


class TraceComparison:
    """Two traces, tensor by tensor.

    Attributes:
      tf1: TF1's side.
      port: the port's side.
      pairs: the first ops that diverge, TF1's and the port's; an op that the other program does not have stands alone.
    """

    def __init__(self, tf1: Trace, port: Trace, rtol: float):
        self._rtol, matched = rtol, match(tf1, port, rtol)
        back: dict[str, list[str]] = defaultdict(list)
        for name, others in matched.items():
            for other in others:
                back[other].append(name)
        self.tf1, self.port = Program(tf1, matched), Program(port, dict(back))

    @property
    def diverged(self) -> int:
        """How many ops have no counterpart."""
        return len(self.tf1.diverged) + len(self.port.diverged)

    @property
    def differs(self) -> bool:
        """Whether an output has no counterpart in the same output of the other program."""
        tf1, port = self.tf1.trace, self.port.trace.outputs
        known = {path: name for path, name in tf1.outputs.items() if name in tf1.values}
        return any(port.get(path) not in self.tf1.matched.get(name, ()) for path, name in known.items())

    @property
    def agree(self) -> bool:
        """Whether nothing of TF1 is left without a counterpart; the port may compute more beside it."""
        return not self.tf1.diverged and (not self.port.diverged or not self.differs)

    def narrower(self) -> Iterator[Divergence]:
        """Yield the first op of the port in half precision, if TF1 has none, as a divergence.

        In float64, both programs compute the same.
        """
        of_tf1, of_port = (
            [(op, text) for op in program.trace.ops.values() for text in op.attributes.values() if text in _DTYPES]
            for program in (self.tf1, self.port)
        )
        halves = [(op, text) for op, text in of_port if text in _HALVES]
        if halves and of_tf1 and not any(text in _HALVES for _, text in of_tf1):
            (op, text), (_, usual) = halves[0], of_tf1[0]
            words = "where both programs compute in float64, the outputs agree"
            yield replace(self.divergence(), tf1=None, port=op, dtypes=(usual, text), confirmed=words)

    def differences(self) -> dict[str, float]:
        """Return the greatest absolute differences of outputs of the same path and shape."""
        tf1, port = self.tf1.trace, self.port.trace
        found = {}
        for path, name in tf1.outputs.items():
            pair = tf1.values.get(name), port.values.get(port.outputs.get(path, ""))
            if pair[0] is not None and pair[1] is not None and pair[0].shape == pair[1].shape:
                arrays = [np.asarray(each, np.float64) for each in pair[0].paired_with(pair[1])]
                difference = np.abs(arrays[0] - arrays[1])
                difference[np.isnan(arrays[0]) & np.isnan(arrays[1]) | (arrays[0] == arrays[1])] = 0
                found[path] = float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(initial=0))
        return found

    @property
    def differs_slightly(self) -> bool:
        """Whether outputs differ by so little that tensors before them may differ by less than the tolerance."""
        tf1, differences = self.tf1.trace, self.differences()
        for path, name in tf1.outputs.items():
            most = _SLIGHT * self._rtol * np.abs(tf1.values[name].elements).max(initial=0) if name in tf1.values else 0
            if differences.get(path, math.inf) > most:
                return False
        return True

    @property
    def term(self) -> tuple[str, TracedOp] | None:
        """The term that only one program adds to its only output, a number: ``"TF1"`` or ``"the port"``, and its op.

        None if there is no such term. The terms may be added up in any order.
        """
        traces = self.tf1.trace, self.port.trace
        outputs = [trace.values.get(name) for trace in traces for name in trace.outputs.values()]
        if any(value is not None and value.size != 1 for value in outputs):
            return None
        for who, mine, other in (("TF1", self.tf1, self.port), ("the port", self.port, self.tf1)):
            if len(mine.trace.outputs) != 1 or len(other.trace.outputs) != 1:
                return None
            left, others = _terms(mine.trace), _terms(other.trace)
            total, other_total = sum(left.values()), sum(others.values())
            for value in others.values():
                same = (name for name, each in left.items() if math.isclose(each, value, rel_tol=self._rtol))
                left.pop(next(same, ""), None)
            if len(left) == 1 and math.isclose(total - sum(left.values()), other_total, rel_tol=self._rtol):
                return who, mine.trace.ops[op_of(*left)]
        return None

    def first_ops(self, ends: tuple[str | None, str | None] = (None, None)) -> tuple[TracedOp | None, TracedOp | None]:
        """Return the first op of TF1 without a counterpart, and that of the port that takes most of what it takes.

        Those on the way to the ends come before those after them, and these before others; a convolution comes before
        the padding for it.
        """
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        windows = None if ends == (None, None) else padded_window(regions)
        if windows is not None:
            return windows
        of_tf1, of_port = (
            [op for op in _first_of(region) if op in program.first] or _first_of(region) or program.first_after(end)
            for program, region, end in zip((self.tf1, self.port), regions, ends, strict=True)
        )
        tf1_op = next(iter(of_tf1), None)
        if tf1_op is None or not of_port:
            return tf1_op, next(iter(of_port), None)
        counterparts = {name for each in self.tf1.near[tf1_op.name] for name in self.tf1.matched.get(each, ())}
        shared = {op.name: len(counterparts.intersection(self.port.near[op.name])) for op in of_port}
        return tf1_op, max(of_port, key=lambda op: (shared[op.name], op.type == tf1_op.type))

    def counterparts(self, op: TracedOp) -> list[TracedOp]:
        """Return TF1's ops of the type of an op of the port that take one of its tensors, such as its kernel."""
        taken = {(name, n) for n, tensor in enumerate(op.inputs) for name in self.port.matched.get(tensor, ())}
        same_type = (each for each in self.tf1.trace.ops.values() if each.type == op.type)
        return [each for each in same_type if not taken.isdisjoint((name, n) for n, name in enumerate(each.inputs))]

    def takes_alike(self, tf1_op: TracedOp, port_op: TracedOp) -> bool:
        """Return whether two ops take the same tensor first; True in functions, of whose tensors that is not known."""
        if IN_FUNCTION in port_op.name:
            return True
        return all(
            one in self.port.matched.get(other, ()) or IN_FUNCTION in one
            for one, other in zip(tf1_op.inputs[:1], port_op.inputs[:1], strict=False)
        )

    def suspects(self, ends: tuple[str | None, str | None]) -> Iterator[tuple[TracedOp, TracedOp]]:
        """Yield ops of one kind, one of each program, whose attributes may make the difference.

        They are those in the regions up to the ends, and those right before them: an op whose attribute makes next to
        no difference, such as an epsilon of 1e-6, has a counterpart in its own input.
        """
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        yield from alike(*regions)
        for pair in itertools.product(*regions):
            yield from _alike_within(*pair)
        loops = ([op for op in program.trace.ops.values() if op.body] for program in (self.tf1, self.port))
        for pair in alike(*loops):
            yield from _alike_within(*pair)
        before = [
            [source for op in self._or_users(program, region) for source in program.trace.sources_and_between(op)]
            for program, region in zip((self.tf1, self.port), regions, strict=True)
        ]
        near = [[*region, *ops] for region, ops in zip(regions, before, strict=True)]
        yield from alike(*near)
        for tf1_op, port_op in itertools.product(*near):
            if kind(tf1_op) == kind(port_op):
                yield tf1_op, port_op

    def _or_users(self, program: Program, region: Sequence[TracedOp]) -> Sequence[TracedOp]:
        """Return the first ops of a region; if it is empty, the first ops that diverge after it."""
        return [op for op in region if not program.depth.get(op.name, 0)] or program.first

    def divergence(
        self,
        ends: tuple[str | None, str | None] = (None, None),
        suspects: tuple[TracedOp, TracedOp, str] | None = None,
        taker: str = "",
    ) -> Divergence:
        """Return the first divergence, which ends at a tensor of TF1 and one of the port.

        The suspects are the ops that make the difference, and the attribute that does. The taker is the port's op that
        takes a wrong tensor.
        """
        in_functions = suspects is not None and IN_FUNCTION in suspects[1].name
        tf1_op, port_op = self.first_ops(ends) if suspects is None or in_functions else suspects[:2]
        if suspects is None and ends[0] in self.tf1.matched and ends[1] in self.port.matched:
            takers = [op for op in self.tf1.diverged if ends[0] in op.inputs]
            of_type = [op for op in takers if taker and op.type == self.port.trace.ops[taker].type]
            tf1_op, port_op = (of_type[0], self.port.trace.ops[taker]) if of_type else (tf1_op, port_op)
        elif suspects is None and taker and not self.port.region(ends[1]):
            port_op = self.port.trace.ops[taker]
        if tf1_op is not None and suspects is None:
            port_op = self._in_place_of_transposition(tf1_op) or port_op
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        producer = self._producer(regions, ends[1])
        regions = self._with_padding(self._with_idle_counterparts(regions, ends))
        if tf1_op is not None and port_op is not None and suspects is None:
            tf1_op, port_op = self._of_one_type(tf1_op, port_op, regions)
        elif port_op is not None and ends[0] is not None and {kind(op) for op in regions[1]} <= MOVES | PLUMBING:
            tf1_op = tf1_op or self.tf1.trace.ops.get(op_of(ends[0]))  # it keeps the order that the port changes
        if suspects is None and (softmaxes := self._along_other_axes(regions)):
            tf1_op, port_op = softmaxes
        tf1, port = self.tf1.trace, self.port.trace
        tf1_sources, port_sources = tf1.sources(tf1_op), port.sources(port_op)
        after, program = (port_sources, self.port) if tf1_op is None else (tf1_sources, self.tf1)
        matched = {op_of(name) for name in program.matched}
        values = self.tf1.value(tf1_op), self.port.value(port_op)
        taken = self._taken(tf1_op, port_op)
        if in_functions and suspects is not None:  # what it computes in each iteration is not known
            (tf1_op, port_op, _), values, taken = suspects, (None, None), ((), ())
        attributes = {} if tf1_op is None or port_op is None else differing_attributes(tf1_op, port_op)
        of_dtypes = {name: pair for name, pair in attributes.items() if pair[0].startswith("<dtype:")}
        attributes = {name: pair for name, pair in attributes.items() if name not in of_dtypes}
        return Divergence(
            tf1=tf1_op,
            port=port_op,
            after=tuple(str(source) for source in after if source.name in matched),
            leaf=_compare_values(*values),
            attributes=attributes,
            values=values,
            sources=(_values(tf1, tf1_sources), _values(port, port_sources)),
            regions=regions,
            variables=(self.tf1.variables_of(regions[0], tf1_op), self.port.variables_of(regions[1], port_op)),
            drawing=self._drawing(regions),
            masking=self._masking(regions),
            taken=taken,
            dtypes=next(iter(of_dtypes.values()), ("", "")),
            uses=(self.tf1.inputs_of(ends[0]), self.port.inputs_of(ends[1])),
            given=(_given(tf1, tf1_op), _given(port, port_op)),
            operands=(_operands(tf1, tf1_op), _operands(port, port_op)),
            producer=producer,
        )

    def _of_one_type(self, tf1_op: TracedOp, port_op: TracedOp, regions: _Regions) -> tuple[TracedOp, TracedOp]:
        """Return two ops; in place of one, an op of the other's type in its region that makes one number of all."""
        if tf1_op.type == port_op.type:
            return tf1_op, port_op
        of_tf1, of_port = (
            next((op for op in region if op.type == other.type and not program.trace.values_of(op)), None)
            for program, region, other in zip((self.tf1, self.port), regions, (port_op, tf1_op), strict=True)
        )
        return (tf1_op, of_port) if of_port is not None else (of_tf1 or tf1_op, port_op)

    def _along_other_axes(self, regions: _Regions) -> tuple[TracedOp, TracedOp] | None:
        """Return the first softmaxes of two regions that make equally many elements, along axes of different sizes."""
        ops = [[op for op in region if op.type in OF_LAST_AXIS] for region in regions]
        shapes = [
            [(1, *value.shape) if value is not None else () for value in map(program.value, of_program)]
            for program, of_program in zip((self.tf1, self.port), ops, strict=True)
        ]
        sizes = [[(math.prod(shape), shape[-1]) if shape else () for shape in of_program] for of_program in shapes]
        if len(ops[0]) != len(ops[1]) or () in itertools.chain(*sizes) or Counter(sizes[0]) == Counter(sizes[1]):
            return None
        pairs = zip(zip(*ops, strict=True), *sizes, strict=True)
        return next((pair for pair, tf1, port in pairs if tf1 != port and tf1[0] == port[0]), None)

    def _in_place_of_transposition(self, tf1_op: TracedOp) -> TracedOp | None:
        """Return the port's op that gives an array at once the shape to which an op of TF1 transposes it."""
        value = self.tf1.value(tf1_op) if tf1_op.type == "Transpose" else None
        for name in self.tf1.matched.get(tf1_op.inputs[0], ()) if value is not None else ():
            op = self.port.trace.ops.get(op_of(name))
            reshaped = self.port.value(op) if op is not None and op.type == "Reshape" else None
            if reshaped is not None and value is not None and reshaped.shape == value.shape:
                return op
        return None

    def _drawing(self, regions: _Regions) -> tuple[TracedOp | None, TracedOp | None]:
        """Return the first ops of two regions that take random numbers; see `Divergence.drawing`."""
        tf1, port = self.tf1.drawing(regions[0]), self.port.drawing(regions[1])
        if tf1 is not None and port is None:
            port = self.port.takes_numbers([name for each in tf1.inputs for name in self.tf1.matched.get(each, ())])
        elif port is not None and tf1 is None:
            tf1 = self.tf1.takes_numbers([name for each in port.inputs for name in self.port.matched.get(each, ())])
        return tf1, port

    def _masking(self, regions: _Regions) -> tuple[Masking, Masking] | None:
        """Return how two programs mask the inputs of Softmax, on the way of two regions; see `Divergence.masking`."""
        tf1, port = (program.masking(region) for program, region in zip((self.tf1, self.port), regions, strict=True))
        if tf1 is None or port is None or tf1.elements.size != port.elements.size:
            return None
        counts = tf1.elements.sum(), port.elements.sum()
        is_alike = tf1.elements.shape != port.elements.shape or np.array_equal(tf1.elements, port.elements)
        return None if counts[0] == counts[1] and is_alike else (tf1, port)

    def _with_idle_counterparts(self, regions: _Regions, ends: tuple[str | None, str | None]) -> _Regions:
        """Return two regions, each with those ops right before it that change no number and that it seems to lack.

        The other region has more ops of their kind, and as many do not stand before it.
        """
        idle = self.tf1.idle_before(regions[0], ends[0]), self.port.idle_before(regions[1], ends[1])
        only, counts = only_in(*regions), [Counter(map(kind, ops)) for ops in idle]
        of_tf1, of_port = (
            [op for op in ops if missing[kind(op)] and own[kind(op)] > others[kind(op)]]
            for ops, missing, own, others in zip(idle, only[::-1], counts, counts[::-1], strict=True)
        )
        return (*of_tf1, *regions[0]), (*of_port, *regions[1])

    def _with_padding(self, regions: _Regions) -> _Regions:
        """Return two regions, one of them with the ops before it that pad for its windows, if only that one has any."""
        tf1, port = (side.padding_for(region) for side, region in zip((self.tf1, self.port), regions, strict=True))
        return regions if tf1 and port else ((*tf1, *regions[0]), (*port, *regions[1]))

    def _producer(self, regions: _Regions, end: str | None) -> TracedOp | None:
        """Return the port's op of which TF1's region takes a tensor, where the region of the port is empty."""
        taken = {
            other for op in regions[0] for name in self.tf1.near[op.name] for other in self.tf1.matched.get(name, ())
        }
        return self.port.trace.ops[op_of(end)] if end in taken and end is not None and not regions[1] else None

    def _taken(self, tf1_op: TracedOp | None, port_op: TracedOp | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what two ops take, by TF1's names; of several tensors that are equal, one that both take.

        What both take is in the same place if the order does not matter.
        """
        of_tf1, of_port = self.tf1.taken(tf1_op), self.port.taken(port_op)
        tf1 = tuple(min(self._equal_in_tf1(name), key=len) for name in of_tf1)
        port = tuple(min(self.port.matched.get(name, ("",)), key=len) for name in of_port)
        if tf1_op is None or port_op is None or kind(tf1_op) not in COMMUTATIVE or len(tf1) != len(port):
            return tf1, port
        others = [name for name in port if name not in tf1]
        return tf1, tuple(name if name in port else others.pop(0) if others else "" for name in tf1)

    def _equal_in_tf1(self, tensor: str) -> Sequence[str]:
        """Return the tensors of TF1 that are equal to one of it, as far as the port has them, too."""
        return [tensor, *(name for other in self.tf1.matched.get(tensor, ()) for name in self.port.matched[other])]


def _computing_operand(trace: Trace, op: TracedOp) -> TracedOp:
    """Return the op that computes what an op takes; the op itself if it takes an input."""
    source = op
    while (source is op or kind(source) in PLUMBING) and source.inputs and op_of(source.inputs[0]) in trace.ops:
        source = trace.ops[op_of(source.inputs[0])]
    return source


def _first_of(region: Sequence[TracedOp]) -> list[TracedOp]:
    """Return the ops of a region that take nothing from it."""
    names = {op.name for op in region}
    return [op for op in region if names.isdisjoint(op.sources)]


def _given(trace: Trace, op: TracedOp | None) -> frozenset[int]:
    """Return the positions of the inputs that an op is computed from; none for an op in a function."""
    return frozenset() if op is None or op.name not in trace.ops else trace.inputs_of([op])


def _operands(trace: Trace, op: TracedOp | None) -> tuple[frozenset[int], ...]:
    """Return the positions of the inputs from which each operand of an op is computed."""
    if op is None or op.name not in trace.ops:
        return ()
    return tuple(_given(trace, trace.ops.get(op_of(name))) for name in op.inputs)


def _values(trace: Trace, ops: Sequence[TracedOp]) -> list[Value]:
    return [trace.values[name] for op in ops for name in trace.values_of(op)]


def alike(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> Iterator[tuple[TracedOp, TracedOp]]:
    """Yield the ops of a kind of which both programs have equally many, in order."""
    for each in dict.fromkeys(map(kind, tf1)):
        pair = [[op for op in ops if kind(op) == each] for ops in (tf1, port)]
        if len(pair[0]) == len(pair[1]):
            yield from zip(*pair, strict=True)


def _alike_within(tf1: TracedOp, port: TracedOp) -> Iterator[tuple[TracedOp, TracedOp]]:
    """Yield the ops of a kind of which the functions of two ops have equally many, in order."""
    yield from alike(*([inner for each in op.body for inner in each.with_body] for op in (tf1, port)))


def differing_attributes(tf1: TracedOp, port: TracedOp) -> dict[str, tuple[str, str]]:
    """Return the attributes of two ops of one kind that differ, of two types only the constant inputs."""
    if kind(tf1) != kind(port):
        return {}
    in_both = [name for name in tf1.attributes if name in port.attributes]
    names = [name for name in in_both if tf1.type == port.type or name.startswith("input ")]
    return {name: (tf1.attributes[name], port.attributes[name]) for name in names if _differ(name, tf1, port)}


def _differ(name: str, tf1: TracedOp, port: TracedOp) -> bool:
    """Return whether two ops differ in an attribute or a constant input."""
    arrays = tf1.constants.get(name), port.constants.get(name)
    if arrays[0] is None or arrays[1] is None or arrays[0].size != arrays[1].size or arrays[0].dtype.kind not in "fiu":
        return tf1.attributes[name] != port.attributes[name]
    if arrays[0].size == 1:
        return tf1.attributes[name] != port.attributes[name]
    return not np.allclose(arrays[0].reshape(-1), arrays[1].reshape(-1), rtol=RTOLS[0], atol=0)


def _terms(trace: Trace) -> dict[str, float]:
    """Return the tensors whose sum an only output is, with what they are, but for zeros; none if it is no number.

    What does not depend on the inputs is not known, and counts as one.
    """
    (output,) = trace.outputs.values()
    total = trace.values.get(output)
    if total is None or total.size != 1:
        return {}
    terms, unknown = dict[str, float](), list[str]()

    def add(name: str) -> None:
        op, value = trace.ops[op_of(name)], trace.values.get(name)
        if value is None or value.size != 1:
            unknown.append(name)
        elif kind(op) == "AddV2" or op.type == "Identity":
            for operand in op.inputs:
                add(operand)
        else:
            terms[name] = float(value.elements[0])

    add(output)
    rest = float(total.elements[0]) - sum(terms.values())
    if unknown and abs(rest) > RTOLS[1] * abs(float(total.elements[0])):
        terms[unknown[0]] = rest
    return {name: value for name, value in terms.items() if value}


def _compare_values(tf1: Value | None, port: Value | None) -> LeafComparison | None:
    if tf1 is None or port is None or tf1.shape != port.shape or tf1.dtype == CHECKSUM:
        return None
    pair = (port.array, tf1.array) if tf1.is_whole else tf1.paired_with(port)[::-1]
    return compare(*pair, RTOLS[-1], tf1.atol(port, RTOLS[-1]), check_dtype=False).leaves[0]
