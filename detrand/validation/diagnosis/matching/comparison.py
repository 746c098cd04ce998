"""`TraceComparison`: two programs side by side, the ops that may make the difference, and the first divergence."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from detrand.checkpoints.upstream import op_of
from detrand.comparison.values import LeafComparison, compare
from detrand.validation.diagnosis.divergence import Divergence, Masking
from detrand.validation.diagnosis.matching.program import Program
from detrand.validation.diagnosis.matching.tensors import RTOLS, match
from detrand.validation.diagnosis.op_kinds import (
    COMMUTATIVE,
    MOVES,
    OF_LAST_AXIS,
    PLUMBING,
    kind,
    only_in,
    padded_window,
)
from detrand.validation.frameworks.traces import CHECKSUM, IN_FUNCTION, Trace, TracedOp, Value

_SLIGHT = 10  # times the tolerance
_HALVES = {"<dtype: 'float16'>", "<dtype: 'bfloat16'>"}
_DTYPES = {*_HALVES, "<dtype: 'float32'>", "<dtype: 'float64'>"}

_Regions = tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]]  # ops of TF1 and ops of the port


class TraceComparison:
    """Two traces, tensor by tensor.

    Attributes:
      tf1: TF1's side.
      port: the port's side.
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
            (left, _), (others, _) = _terms(mine.trace), _terms(other.trace)
            total, other_total = sum(left.values()), sum(others.values())
            for value in others.values():
                same = (name for name, each in left.items() if math.isclose(each, value, rel_tol=self._rtol))
                left.pop(next(same, ""), None)
            if len(left) == 1 and math.isclose(total - sum(left.values()), other_total, rel_tol=self._rtol):
                return who, mine.trace.ops[op_of(*left)]
        return None

    @property
    def has_zero_terms(self) -> bool:
        """Whether terms of a program's only output are 0: one may be the counterpart of a term that is not."""
        return any(len(each.trace.outputs) == 1 and _terms(each.trace)[1] > 0 for each in (self.tf1, self.port))

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

    def takers_of_others(self, tf1_tensor: str, port_tensor: str) -> tuple[TracedOp, TracedOp, str, str] | None:
        """Return the first ops of one type that take different tensors, on one way of such ops to two tensors.

        Returned, too, are what TF1's op takes, and what the port's takes, by TF1's names.
        """
        tf1_op, port_op = self.tf1.trace.ops.get(op_of(tf1_tensor)), self.port.trace.ops.get(op_of(port_tensor))
        while tf1_op is not None and port_op is not None and tf1_op.type == port_op.type:
            pairs = [
                (mine, other)
                for number, (mine, other) in enumerate(zip(tf1_op.inputs, port_op.inputs, strict=False))
                if f"input {number}" not in port_op.constants and mine not in self.port.matched.get(other, ())
            ]
            if len(pairs) != 1:
                return None
            ((mine, other),) = pairs
            if other in self.port.matched:
                return tf1_op, port_op, mine, self.port.matched[other][0]
            tf1_op, port_op = self.tf1.trace.ops.get(op_of(mine)), self.port.trace.ops.get(op_of(other))
        return None

    def _equal_in_tf1(self, tensor: str) -> Sequence[str]:
        """Return the tensors of TF1 that are equal to one of it, as far as the port has them, too."""
        return [tensor, *(name for other in self.tf1.matched.get(tensor, ()) for name in self.port.matched[other])]


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


def _terms(trace: Trace) -> tuple[dict[str, float], int]:
    """Return the tensors whose sum an only output is, with what they are, but for zeros, and how many zeros there are.

    There are none if it is no number. What does not depend on the inputs is not known, and counts as one.
    """
    (output,) = trace.outputs.values()
    total = trace.values.get(output)
    if total is None or total.size != 1:
        return {}, 0
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
        terms[unknown.pop(0)] = rest
    found = {name: value for name, value in terms.items() if value}
    return found, len(unknown) + len(terms) - len(found)


def _compare_values(tf1: Value | None, port: Value | None) -> LeafComparison | None:
    if tf1 is None or port is None or tf1.shape != port.shape or tf1.dtype == CHECKSUM:
        return None
    pair = (port.array, tf1.array) if tf1.is_whole else tf1.paired_with(port)[::-1]
    return compare(*pair, RTOLS[-1], tf1.atol(port, RTOLS[-1]), check_dtype=False).leaves[0]
