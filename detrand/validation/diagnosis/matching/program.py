"""`Program`: one of two programs that are compared, with its ops that have no counterpart in the other one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.validation.diagnosis.divergence import Masking
from detrand.validation.diagnosis.op_kinds import ACTIVATIONS, COMMUTATIVE, COPIES, MOVES, PLUMBING, WINDOWED, kind
from detrand.validation.frameworks.traces import OF_SHAPES, Trace, TracedOp, Value

_MASKED = -9000.0  # what a softmax takes where a program masks it is less: -10000 is the greatest number in use
_DATA = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "ReadVariableOp"}


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
        Where all elements of a row are masked, none is 0 after the softmax. Where the input of Softmax has a
        counterpart, the other program masks the same.
        """
        found = ((op, self._operand_of_softmax(op)) for op in self.diverged)
        softmax, operand = next(
            ((op, name) for op, name in found if name and (not region or self.leads_to(region, op))), (None, "")
        )
        after, before = self.value(softmax), self.trace.values.get(operand)
        if softmax is None or after is None or before is None or after.array is None or before.array is None:
            return None
        taken = np.squeeze(before.array)
        is_masked = (np.squeeze(after.array) == 0) | (taken < _MASKED)
        if is_masked.any() and operand in self.matched:
            return None
        masked, others = taken[is_masked], taken[~is_masked]
        is_below = masked.size and others.size and masked.max() < others.min() - np.ptp(others)
        if masked.size and not is_below:
            return None
        needed = self._upstream(*softmax.sources)
        differing = (op for op in region if op.name in needed)  # the first of them makes the mask
        return Masking(next(differing, None) or _computing_operand(self.trace, softmax), is_masked, softmax.name)

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

    def equal_ops(self, end: str | None) -> list[TracedOp]:
        """Return the diverged ops that move the same numbers as the one that computes a tensor, if that moves any."""
        op = self.trace.ops.get(op_of(end or ""))
        value = self.value(op)
        if op is None or value is None or kind(op) not in MOVES:
            return []
        others = ((each, self.value(each)) for each in self.diverged if each.type == op.type)
        return [each for each, other in others if other is not None and np.array_equal(other.elements, value.elements)]

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
            if op.type in _DATA or (op.type not in OF_SHAPES and not given.isdisjoint(op.sources)):
                given.add(name)
            elif "Random" in op.type or not drawn.isdisjoint(op.sources):
                drawn.add(name)
        return drawn

    def value(self, op: TracedOp | None) -> Value | None:
        """Return the value of an op's first output that has no counterpart; if each has one, of the first output."""
        names = sorted(self.trace.values_of(op), key=lambda name: name in self.matched)
        return self.trace.values[names[0]] if names else None


def _computing_operand(trace: Trace, op: TracedOp) -> TracedOp:
    """Return the op that computes what an op takes; the op itself if it takes an input."""
    source = op
    while (source is op or kind(source) in PLUMBING) and source.inputs and op_of(source.inputs[0]) in trace.ops:
        source = trace.ops[op_of(source.inputs[0])]
    return source
