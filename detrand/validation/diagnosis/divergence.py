"""Where two programs diverge: the ops after which they no longer compute the same numbers, and their lines.

`find_divergences` compares the traces of both programs. Names do not matter, nor how many ops make up a layer: a tensor
has a counterpart if the other program computes the same numbers anywhere, in any shape. The programs diverge at an op
that has no counterpart and from which no op with a counterpart is computed, while everything that it is computed from
has one.

Then the port gets TF1's value there, and runs again. Where the rest agrees, the divergence is confirmed, and it is the
only one; where it does not, the next divergence is another one.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from detrand.arguments import and_more
from detrand.comparison.values import LeafComparison, compare
from detrand.validation.diagnosis.depth import tensor_differences
from detrand.validation.diagnosis.op_kinds import only_in, padded_window
from detrand.validation.diagnosis.port_graph import NOTHING, Edge, PortGraph, Substitution
from detrand.validation.diagnosis.trace import IN_FUNCTION, Trace, TracedOp, Value, is_informative
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.upstream import op_of
from detrand.validation.results import AuditedHyperparameter, TensorDifference
from detrand.variables.tf1_view import Shapes

# In float64. Constants may be rounded to float32, and that may be amplified: the second is for what the first misses.
_RTOLS = (1e-6, 1e-9)
_MOST_SHOWN = 4
_MOST_DIVERGENCES = 10
_MOST_RUNS = 12  # of the port, to find what to substitute for one divergence
_MOST_KNOWN = 2  # trials of another run config that come before others
_MOST_STEPS = 8  # to split a divergence into several
_FEW = 256  # elements
_NUMBER, _OF_TEXT = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?"), 1e-5  # a number, and how exact it is as text
_HALVES = {str(tf.float16), str(tf.bfloat16)}
_DTYPES = {*_HALVES, str(tf.float32), str(tf.float64)}
_DATA = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "ReadVariableOp"}
_COMMUTATIVE = {"Mul", "AddV2", "Maximum", "Minimum", "SquaredDifference"}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
_REFUSED = (tf.errors.OpError, ValueError, TypeError)  # by a graph, for values that do not fit


@dataclass(frozen=True)
class Divergence:
    """A place where two programs diverge; ``str()`` describes it.

    Attributes:
      tf1: TF1's first op that has no counterpart; None if each of its ops has one.
      port: the port's first op that has no counterpart; None if each of its ops has one.
      after: the ops before it that agree, as TF1 names them, or as the port does if only the port goes on.
      leaf: how the values of the two ops compare; None if their shapes differ.
      attributes: the attributes and constant inputs of the two ops that differ, with TF1's value and the port's.
      values: the values of TF1's op and of the port's op.
      sources: the values that TF1's op is computed from, and those that the port's op is computed from.
      regions: TF1's ops and the port's from there to where the rest agrees, once the port has TF1's value; all that
        have no counterpart, if no substitute makes the rest agree.
      draws: whether an op of TF1's region, and of the port's, takes random numbers.
      taken: what TF1's op takes, and what the port's op takes, by TF1's names; empty where it has none.
      dtypes: the dtypes of the two ops, as the ops have them, if they differ.
      uses: the positions of the migration's inputs from which TF1's region, and the port's, is computed.
      given: the positions of the inputs from which the two ops are computed.
      confirmed: what makes the rest agree, in words; empty if nothing was found that does.
      attribute: the attribute or constant input that makes the difference, if it was substituted.
      count: at how many ops of the port it was.
      hyperparameter: the audited hyperparameter that makes the difference, if that was substituted.
      constants: TF1's array and the port's at the end of the regions, if the port's is a constant or the attribute
        is a constant input.
      is_order: whether the programs compute the same in another order, and differ twice because of it.
    """

    tf1: TracedOp | None
    port: TracedOp | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    attributes: Mapping[str, tuple[str, str]]
    values: tuple[Value | None, Value | None] = field(repr=False)
    sources: tuple[list[Value], list[Value]] = field(repr=False)
    regions: tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]] = field(default=((), ()), repr=False)
    draws: tuple[bool, bool] = (False, False)
    taken: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    dtypes: tuple[str, str] = ("", "")
    uses: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    given: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    confirmed: str = ""
    attribute: str = ""
    count: int = 1
    hyperparameter: AuditedHyperparameter | None = None
    constants: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    is_order: bool = False

    @property
    def op(self) -> str:
        """The op to look at, with its line: TF1's, or the port's if only the port goes on."""
        return str(self.tf1 or self.port)

    @property
    def types(self) -> tuple[str, str]:
        """The types of TF1's op and of the port's; empty where there is none."""
        return "" if self.tf1 is None else self.tf1.type, "" if self.port is None else self.port.type

    def __str__(self) -> str:
        if self.after:
            lines = [f"First divergence. Identical up to {and_more(self.after, _MOST_SHOWN)}, then:"]
        else:
            lines = ["First divergence, at a variable or an op on inputs and variables only:"]
        lines += [f"  TF1 computes       {self.tf1 or 'nothing that the port does not compute'}"]
        lines += [f"  the port computes  {self.port or 'nothing that TF1 does not compute'}"]
        lines += [f"  {name} differs: {tf1} (TF1), {port} (port)" for name, (tf1, port) in self.attributes.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            tf1_value, _ = self.values
            kept = "elements" if tf1_value is None or tf1_value.is_whole else "recorded elements"
            lines.append(f"  {self.leaf.mismatched:,} of {self.leaf.size:,} {kept} differ")
            lines.append("  " + self.leaf.greatest_absolute.in_words("max |difference|"))
        lines += [f"  confirmed: {self.confirmed}"] if self.confirmed else []
        return "\n".join(lines)


class Diagnosis(NamedTuple):
    """Where two programs diverge.

    Attributes:
      divergences: the places, in the order of the computation.
      greatest: the greatest absolute difference of each output if both programs compute in float64, by path; nothing
        for an output of a different shape, or if the port computes in half precision by itself.
      as_written: the outputs of the port's graph in its own dtypes, by path, if nothing diverges in float64.
      tensors: how the tensors differ, in TF1's order of computation.
      trials: the substitutes that make more agree, one for each divergence.
    """

    divergences: tuple[Divergence, ...]
    greatest: Mapping[str, float]
    as_written: Mapping[str, np.ndarray]
    tensors: tuple[TensorDifference, ...] = ()
    trials: tuple[Trial, ...] = ()


def find_divergences(
    migration: Migration,
    config: RunConfig,
    tf1: Trace,
    tf1_shapes: Shapes,
    differing: Collection[str] = (),
    initial: Mapping[str, np.ndarray] | None = None,
    known: Sequence[Trial] = (),
    hyperparameters: Sequence[AuditedHyperparameter] = (),
) -> Diagnosis:
    """Run the port again and again, and return its divergences from TF1; none if the outputs agree.

    Only the ops that compute the outputs at the ``differing`` paths count; by default, those of all outputs. TF1's
    initial values are given if the programs ran with them. The trials that are known from other run configs come
    first, because one fault differs in all of them; then the hyperparameters that differ.
    """
    port = PortGraph(migration, config, tf1_shapes, initial)
    search = _Search(tf1.of_outputs(differing), port, differing, known, hyperparameters)
    divergences = tuple(search.divergences())
    as_written = {} if divergences else port.outputs_as_written()
    return Diagnosis(divergences, search.greatest, as_written, search.tensors, tuple(search.trials))


def ops_without_counterpart(migration: Migration, config: RunConfig, tf1: Trace, tf1_shapes: Shapes) -> list[TracedOp]:
    """Run the port once more, and return TF1's ops from the first divergence on."""
    return tf1.diverged(_match(tf1, PortGraph(migration, config, tf1_shapes, None).run()))


def _match(tf1: Trace, port: Trace, rtol: float = _RTOLS[0]) -> dict[str, list[str]]:
    """Return the names of the port's values that are equal to a value of TF1, by the name of that.

    A value that is not informative has a counterpart only in the same output or variable.
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
        atol = value.atol(rtol)
        for port_name, port_value in candidates.get((value.size, value.dtype.kind), ()):
            near = abs(value.weight - port_value.weight) <= 2 * (atol * value.size + rtol * abs(value.weight))
            if near and _are_equal(value, port_value, rtol):
                found[name].append(port_name)
    for name, variable in tf1.reads.items():
        found[name] += [other for other, same in port.reads.items() if same == variable and other not in found[name]]
    return {name: others for name, others in found.items() if others}


def _are_equal(tf1: Value, port: Value, rtol: float) -> bool:
    """Return whether the elements are equal, in any shape."""
    if tf1.size != port.size:
        return False
    desired, actual = tf1.paired_with(port)
    if desired.dtype.kind != "f" or actual.dtype.kind != "f":
        return compare(actual, desired, rtol, tf1.atol(rtol), equal_nan=True, check_dtype=False).ok
    few = slice(None, None, max(1, desired.size // _FEW))  # which show most differences
    return all(
        np.isclose(actual[part], desired[part], rtol, tf1.atol(rtol), equal_nan=True).all()
        for part in (few, slice(None))
    )


class _Program:
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
        self.diverged = trace.diverged(matched)
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

    @property
    def first(self) -> list[TracedOp]:
        """The diverged ops that are computed from tensors with a counterpart only."""
        return [op for op in self.diverged if not self.depth[op.name]]

    def region(self, end: str | None) -> tuple[TracedOp, ...]:
        """Return the diverged ops that a tensor is computed from, or all."""
        if end is None:
            return self._with_calls(self.diverged)
        needed, waiting = set(), [op_of(end)]
        while waiting:
            op = waiting.pop()
            if op not in needed:
                needed.add(op)
                waiting += self.trace.ops[op].sources if op in self.trace.ops else ()
        return self._with_calls([op for op in self.diverged if op.name in needed])

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

    def inputs_of(self, end: str | None) -> frozenset[int]:
        """Return the positions of the inputs that a tensor is computed from; none for no tensor."""
        return frozenset() if end is None else self.trace.inputs_of([self.trace.ops[op_of(end)]])

    def agrees(self, op: TracedOp) -> bool:
        """Return whether a value of an op has a counterpart; true for an op without values, such as one in a loop."""
        names = self.trace.values_of(op)
        return not names or any(name in self.matched for name in names)

    def draws(self, region: Sequence[TracedOp]) -> bool:
        """Return whether an op of a region takes random numbers, such as the mask of a dropout."""
        drawn: set[str] = set()  # random ops, and what is computed from them without any data
        given: set[str] = set()
        for name, op in self.trace.ops.items():
            if op.type in _DATA or (op.type not in _SHAPES and not given.isdisjoint(op.sources)):
                given.add(name)
            elif "Random" in op.type or not drawn.isdisjoint(op.sources):
                drawn.add(name)
        return any(op.name in drawn or not drawn.isdisjoint(op.sources) for op in region)

    def value(self, op: TracedOp | None) -> Value | None:
        """Return the value of an op's first output that has no counterpart; if each has one, of the first output."""
        names = sorted(self.trace.values_of(op), key=lambda name: name in self.matched)
        return self.trace.values[names[0]] if names else None


class _Comparison:
    """Two traces, tensor by tensor.

    Attributes:
      tf1: TF1's side.
      port: the port's side.
      pairs: the first ops that diverge, TF1's and the port's; an op that the other program does not have stands alone.
    """

    def __init__(self, tf1: Trace, port: Trace, rtol: float):
        matched = _match(tf1, port, rtol)
        back: dict[str, list[str]] = defaultdict(list)
        for name, others in matched.items():
            for other in others:
                back[other].append(name)
        self.tf1, self.port = _Program(tf1, matched), _Program(port, dict(back))

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
                found[path] = float(np.nan_to_num(difference, nan=np.inf).max(initial=0))
        return found

    def first_ops(self, ends: tuple[str | None, str | None] = (None, None)) -> tuple[TracedOp | None, TracedOp | None]:
        """Return the first op of TF1 without a counterpart, and that of the port that takes most of what it takes.

        Those on the way to the ends come before others; a convolution comes before the padding for it.
        """
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        windows = None if ends == (None, None) else padded_window(regions)
        if windows is not None:
            return windows
        of_tf1, of_port = (
            [op for op in program.first if op in region] or program.first
            for program, region in zip((self.tf1, self.port), regions, strict=True)
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

    def suspects(self, ends: tuple[str | None, str | None]) -> Iterator[tuple[TracedOp, TracedOp]]:
        """Yield ops of one type, one of each program, whose attributes may make the difference.

        They are those in the regions up to the ends, and those right before them: an op whose attribute makes next to
        no difference, such as an epsilon of 1e-6, has a counterpart in its own input.
        """
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        yield from _alike(*regions)
        for pair in itertools.product(*regions):
            yield from _alike(*([inner for each in op.body for inner in each.with_body] for op in pair))
        before = [
            [source for op in self._or_users(program, region) for source in program.trace.sources_and_between(op)]
            for program, region in zip((self.tf1, self.port), regions, strict=True)
        ]
        for tf1_op, port_op in itertools.product(
            *([*region, *ops] for region, ops in zip(regions, before, strict=True))
        ):
            if tf1_op.type == port_op.type:
                yield tf1_op, port_op

    def _or_users(self, program: _Program, region: Sequence[TracedOp]) -> Sequence[TracedOp]:
        """Return the first ops of a region; if it is empty, the first ops that diverge after it."""
        return [op for op in region if not program.depth.get(op.name, 0)] or program.first

    def divergence(
        self,
        ends: tuple[str | None, str | None] = (None, None),
        suspects: tuple[TracedOp, TracedOp, str] | None = None,
    ) -> Divergence:
        """Return the first divergence, which ends at a tensor of TF1 and one of the port.

        The suspects are the ops that make the difference, and the attribute that does.
        """
        in_functions = suspects is not None and IN_FUNCTION in suspects[1].name
        tf1_op, port_op = self.first_ops(ends) if suspects is None or in_functions else suspects[:2]
        tf1, port = self.tf1.trace, self.port.trace
        tf1_sources, port_sources = tf1.sources(tf1_op), port.sources(port_op)
        after, program = (port_sources, self.port) if tf1_op is None else (tf1_sources, self.tf1)
        matched = {op_of(name) for name in program.matched}
        values = self.tf1.value(tf1_op), self.port.value(port_op)
        taken = self._taken(tf1_op, port_op)
        if in_functions and suspects is not None:  # what it computes in each iteration is not known
            (tf1_op, port_op, _), values, taken = suspects, (None, None), ((), ())
        attributes = {} if tf1_op is None or port_op is None else _differing_attributes(tf1_op, port_op)
        of_dtypes = {name: pair for name, pair in attributes.items() if pair[0].startswith("<dtype:")}
        attributes = {name: pair for name, pair in attributes.items() if name not in of_dtypes}
        regions = self.tf1.region(ends[0]), self.port.region(ends[1])
        return Divergence(
            tf1=tf1_op,
            port=port_op,
            after=tuple(str(source) for source in after if source.name in matched),
            leaf=_compare_values(*values),
            attributes=attributes,
            values=values,
            sources=(_values(tf1, tf1_sources), _values(port, port_sources)),
            regions=regions,
            draws=(self.tf1.draws(regions[0]), self.port.draws(regions[1])),
            taken=taken,
            dtypes=next(iter(of_dtypes.values()), ("", "")),
            uses=(self.tf1.inputs_of(ends[0]), self.port.inputs_of(ends[1])),
            given=(_given(tf1, tf1_op), _given(port, port_op)),
        )

    def _taken(self, tf1_op: TracedOp | None, port_op: TracedOp | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what two ops take, by TF1's names; of several tensors that are equal, one that both take."""
        tf1 = () if tf1_op is None else tuple(self.tf1.near[tf1_op.name])
        port = [] if port_op is None else [self.port.matched.get(name, ("",)) for name in self.port.near[port_op.name]]
        return tf1, tuple(next((name for name in names if name in tf1), names[0]) for names in port)


def _given(trace: Trace, op: TracedOp | None) -> frozenset[int]:
    """Return the positions of the inputs that an op is computed from; none for an op in a function."""
    return frozenset() if op is None or op.name not in trace.ops else trace.inputs_of([op])


def _values(trace: Trace, ops: Sequence[TracedOp]) -> list[Value]:
    return [trace.values[name] for op in ops for name in trace.values_of(op)]


# A tensor of TF1, the tensor of the port that may stand for it, and the edge if only this one is substituted.
_Pair = tuple[str, str, Edge | None]


@dataclass(frozen=True)
class Trial:
    """A substitute that may make the rest agree.

    Attributes:
      substitution: what the port gets.
      ends: the last tensors of the region, TF1's and the port's.
      words: what is substituted.
      count: at how many ops.
      suspects: the op of TF1 and the op of the port whose attribute is substituted, and its name; None for a value.
      edge: the edge if only this one gets the value.
      hyperparameter: the hyperparameter that is substituted.
      depth: how many diverged ops lie on the longest way to the end in TF1.
    """

    substitution: Substitution
    ends: tuple[str | None, str | None]
    words: str
    count: int = 1
    suspects: tuple[TracedOp, TracedOp, str] | None = None
    edge: Edge | None = None
    hyperparameter: AuditedHyperparameter | None = None
    depth: int = 0


# Trials, each with the divergence that it ends; and the programs then.
_Steps = tuple[list[tuple[Trial, Divergence]], _Comparison]


class _Search:
    """The search for all divergences of a port, which gets more and more of TF1's values."""

    def __init__(
        self,
        tf1: Trace,
        port: PortGraph,
        differing: Collection[str],
        known: Sequence[Trial],
        hyperparameters: Sequence[AuditedHyperparameter],
    ):
        self._tf1, self._port, self._differing = tf1, port, differing
        self._all_ops = [inner for op in port.ops.values() for inner in op.with_body]
        self._known = [trial for trial in known if trial.hyperparameter is None]
        self._audited = list(self._of_hyperparameters(hyperparameters))
        self.trials: list[Trial] = []
        self._rtol = _RTOLS[0]
        self.greatest: dict[str, float] = {}
        self.tensors: tuple[TensorDifference, ...] = ()

    def divergences(self) -> list[Divergence]:
        """Return the divergences in the order of the computation."""
        found: list[Divergence] = []
        done, first = NOTHING, self._port.run()
        state = self._compared(first)
        if not state.differs or not state.diverged:
            self._rtol = _RTOLS[1]
            state = self._compared(first)
        if not self._port.computes_narrowly:
            self.greatest = state.differences()
        self.tensors = tensor_differences(state.tf1.trace, state.port.trace, state.tf1.matched)
        if self._port.computes_narrowly and not state.differs:
            return [*state.narrower()]
        while state.differs and state.diverged and len(found) < _MOST_DIVERGENCES:
            easy = self._audited_step(state, done) or self._known_step(state, done)
            steps, state_then = easy or self._steps(state, done)
            if not steps:
                return [*found, state.divergence()]
            for trial, divergence in steps:
                found.append(divergence)
                if trial.words:
                    self.trials.append(replace(trial, substitution=trial.substitution if trial.suspects else NOTHING))
                done = done.and_also(trial.substitution)
            state = state_then
        return _in_one_order(found)

    def _constants(self, trial: Trial) -> tuple[np.ndarray, np.ndarray] | None:
        """Return TF1's array and the port's, if the port's is a constant, or its op takes a constant there."""
        if trial.suspects is not None:
            tf1_op, port_op, name = trial.suspects
            pairs = [(tf1_op.constants.get(name), port_op.constants.get(name))]
        else:
            names = [trial.ends]
            ends = self._tf1.ops.get(op_of(trial.ends[0] or "")), self._port.ops.get(op_of(trial.ends[1] or ""))
            if ends[0] is not None and ends[1] is not None and ends[0].type == ends[1].type:
                names += zip(ends[0].inputs, ends[1].inputs, strict=False)
            values = [(None if tf1 is None else self._tf1.values.get(tf1), port) for tf1, port in names]
            pairs = [
                (None if value is None else value.array, self._port.constant(port))
                for value, port in values
                if port is not None
            ]
        known = [(tf1, port) for tf1, port in pairs if tf1 is not None and port is not None]
        return next((pair for pair in known if pair[0].size == pair[1].size), None)

    def _of_hyperparameters(self, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Trial]:
        """Yield trials that set a hyperparameter, wherever a number of its layers is the port's value, to TF1's."""
        alike = defaultdict(list)
        for each in hyperparameters:
            alike[each.name, each.tf1, each.port].append(each)
        for (name, tf1_value, port_value), group in alike.items():
            found: dict[str, list[tuple[TracedOp, Substitution]]] = {}
            for each in group:
                layers = {each.of, *self._port.layers_of(each.of)}
                numbers = [(op, what) for op in self._all_ops for what in _numbers(op, port_value) if is_in(op, layers)]
                sets = [(op, self._set([op], what, tf1_value)) for op, what in numbers]
                found[each.of] = [(op, substitution) for op, substitution in sets if substitution is not None]
            set_in = {of: pairs for of, pairs in found.items() if pairs}
            if not set_in:
                continue
            of, pairs = next(iter(set_in.items()))
            places = [op for op in self._tf1.ops.values() if [*_numbers(op, tf1_value)] and is_in(op, {of})]
            suspects = (places[0], pairs[0][0], "") if places else None
            every = [substitution for of_layer in set_in.values() for _, substitution in of_layer]
            together = functools.reduce(Substitution.and_also, every)
            here = "here" if len(set_in) == 1 else f"in all {len(set_in)} layers"
            words = f"with TF1's {name} {here}"
            audited = replace(group[0], of=of)
            yield Trial(together, (None, None), words, len(set_in), suspects, hyperparameter=audited)

    def _audited_step(self, state: _Comparison, done: Substitution) -> _Steps | None:
        """Return a step that sets a hyperparameter that differs, if more agrees then."""
        for trial in self._audited:
            rest = self._run(done, trial)
            if rest is not None and rest.diverged < state.diverged:
                self._audited.remove(trial)
                return [self._described(state, trial, rest)], rest
        return None

    def _known_step(self, state: _Comparison, done: Substitution) -> _Steps | None:
        """Return one of the first known trials after which more agrees, with the programs then."""
        possible = ((known, trial) for known in self._known for trial in self._again(state, known))
        for known, trial in itertools.islice(possible, _MOST_KNOWN):
            rest = self._run(done, trial)
            if rest is None:
                continue
            if rest.diverged < state.diverged if trial.suspects else self._heals(state, rest, trial):
                self._known.remove(known)
                of_attribute = None if trial.suspects else self._in_attributes(state, done, trial.ends, rest.diverged)
                found = of_attribute or (trial, rest)
                return [self._described(state, *found)], found[1]
        return None

    def _again(self, state: _Comparison, known: Trial) -> Iterator[Trial]:
        """Yield a known trial for the ops that the programs have now."""
        if known.suspects is None:
            tf1_tensor, port_tensor = known.ends[0] or "", known.ends[1] or ""
            depth = state.tf1.depth.get(op_of(tf1_tensor))
            is_as_near = depth is not None and depth <= known.depth  # or it would hide what differs before it
            if is_as_near and tf1_tensor in state.tf1.trace.values and port_tensor in state.port.trace.values:
                yield from self._trials_of(state, [(tf1_tensor, port_tensor, known.edge)])
            return
        *names, name = known.suspects[0].name, known.suspects[1].name, known.suspects[2]
        of_tf1 = [inner for op in state.tf1.trace.ops.values() for inner in op.with_body if inner.name == names[0]]
        of_port = [op for op in self._all_ops if op.name == names[1]]
        if of_tf1 and of_port and name in _differing_attributes(of_tf1[0], of_port[0]):
            yield replace(known, suspects=(of_tf1[0], of_port[0], name))

    def _described(self, state: _Comparison, trial: Trial, rest: _Comparison) -> tuple[Trial, Divergence]:
        """Return a trial with the divergence that it ends."""
        if trial.hyperparameter is not None:
            return trial, _of_hyperparameter(state, trial, _in_words(trial, rest))
        divergence = state.divergence(trial.ends, trial.suspects)
        attribute = trial.suspects[2] if trial.suspects else ""
        words, constants = _in_words(trial, rest), self._constants(trial)
        trial = replace(trial, depth=state.tf1.depth.get(op_of(trial.ends[0] or ""), 0))
        return trial, replace(divergence, confirmed=words, attribute=attribute, count=trial.count, constants=constants)

    def _steps(self, state: _Comparison, done: Substitution) -> _Steps:
        """Return what to substitute, one after the other, until more agrees; and the programs then."""
        healed = self._healed(state, done)
        if healed is None:
            return [], state
        trial, rest = healed
        end = op_of(trial.ends[0] or "")
        steps: list[tuple[Trial, Divergence]] = []
        now, given = state, done
        while now.tf1.depth.get(end, 0) > 0 and len(steps) < _MOST_STEPS:  # several differences on the way to the end
            step = self._step(now, given)
            if step is None or step[1].diverged >= now.diverged:
                if steps and all(trial.suspects for trial, _ in steps):
                    return steps, now
                break
            steps.append(self._described(now, *step))
            now, given = step[1], given.and_also(step[0].substitution)
            if now.diverged <= rest.diverged:
                return steps, now
        return [self._described(state, trial, rest)], rest

    def _step(self, state: _Comparison, done: Substitution) -> tuple[Trial, _Comparison] | None:
        """Return a substitute for the first op: its attribute, or its value if both programs go on from there alike."""
        tf1_op, port_op = state.first_ops()
        if tf1_op is None or port_op is None:
            return None
        ends = (
            next(iter(state.tf1.trace.values_of(tf1_op)), None),
            next(iter(state.port.trace.values_of(port_op)), None),
        )
        if tf1_op.type == port_op.type and (step := self._in_attributes(state, done, ends, state.diverged - 2)):
            return step
        if _users(state.tf1, tf1_op) != _users(state.port, port_op):
            return None
        trial = next(self._trials_of(state, self._same_outputs(state, tf1_op, port_op)), None)
        rest = None if trial is None else self._run(done, trial)
        if trial is None or rest is None:
            return None
        return self._in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)

    def _compared(self, port: Trace) -> _Comparison:
        return _Comparison(self._tf1, port.of_outputs(self._differing), self._rtol)

    def _run(self, done: Substitution, trial: Trial) -> _Comparison | None:
        try:
            return self._compared(self._port.run(done.and_also(trial.substitution)))
        except _REFUSED:
            return None

    def _healed(self, state: _Comparison, done: Substitution) -> tuple[Trial, _Comparison] | None:
        """Return the first trial after which more agrees than what was substituted, and the programs then."""
        of_output = None  # makes an output agree, and shows nothing
        for trial in itertools.islice(self._trials_of(state, self._pairs(state)), _MOST_RUNS):
            rest = self._run(done, trial)
            if rest is None or not self._heals(state, rest, trial):
                continue
            if of_output is None:
                found = self._in_attributes(state, done, trial.ends, rest.diverged)
                if found or trial.words:
                    return found or (trial, rest)
                of_output = trial, rest
            elif trial.words and not rest.diverged and self._are_of_one_type(trial.ends):
                return trial, rest
        if of_output is not None:
            return of_output
        return self._in_attributes(state, done, (None, None), state.diverged - 1)

    def _heals(self, state: _Comparison, rest: _Comparison, trial: Trial) -> bool:
        """Return whether tensors after the substitute agree that did not agree before."""
        sides = zip((state.tf1, state.port), (rest.tf1, rest.port), trial.ends, strict=True)
        return not rest.diverged or any(
            len(before.diverged) - len(after.diverged) > sum(op in before.diverged for op in before.region(end))
            for before, after, end in sides
        )

    def _are_of_one_type(self, tensors: tuple[str | None, str | None]) -> bool:
        """Return whether ops of one type compute a tensor of TF1 and a tensor of the port."""
        tf1, port = (op_of(name or "") for name in tensors)
        return self._tf1.ops[tf1].type == self._port.ops[port].type

    def _in_attributes(
        self, state: _Comparison, done: Substitution, ends: tuple[str | None, str | None], most: int
    ) -> tuple[Trial, _Comparison] | None:
        """Return a trial that sets an attribute or a constant of the port, after which at most so many ops diverge."""
        pairs = {(a.name, b.name): (_aligned(a, b), b) for a, b in state.suspects(ends)}.values()
        differing = [(*pair, name) for pair in pairs for name in _differing_attributes(*pair)]
        for suspects in differing[:_MOST_RUNS]:
            best = self._set_in(done, ends, suspects, [suspects[1]])
            best = best if best is not None and best[1].diverged <= most else None
            limit = most if best is None else best[1].diverged - 1
            before = state if best is None else best[1]
            together = self._set_in_all(state, done, ends, suspects)
            keeps = together is not None and before.tf1.matched.keys() <= together[1].tf1.matched.keys()
            if together is not None and keeps and together[1].diverged <= limit:
                best = together
            if best is not None:
                return best
        return self._in_all_attributes(state, done, ends, most, differing)

    def _set_in_all(
        self,
        state: _Comparison,
        done: Substitution,
        ends: tuple[str | None, str | None],
        suspects: tuple[TracedOp, TracedOp, str],
    ) -> tuple[Trial, _Comparison] | None:
        """Return a trial that sets an attribute in all ops of the port that may differ as a suspect does.

        The counterpart of an op has TF1's value of the attribute; an op of which it is not known agrees then.
        """
        tf1_op, port_op, name = suspects
        pairs = [
            (op, state.counterparts(op))
            for op in self._all_ops
            if op.type == port_op.type and op.attributes.get(name) == port_op.attributes[name]
        ]
        pairs = [(op, found) for op, found in pairs if op.name != port_op.name and _may_have(found, name, tf1_op)]
        trial = self._set_in(done, ends, suspects, [port_op, *(op for op, _ in pairs)]) if pairs else None
        if trial is None:
            return None
        program = trial[1].port
        agree = [op for op, found in pairs if found or program.agrees(op)]
        if len(agree) < len(pairs):
            return self._set_in(done, ends, suspects, [port_op, *agree]) if agree else None
        return trial

    def _set_in(
        self,
        done: Substitution,
        ends: tuple[str | None, str | None],
        suspects: tuple[TracedOp, TracedOp, str],
        ops: Sequence[TracedOp],
    ) -> tuple[Trial, _Comparison] | None:
        """Return a trial that sets an attribute or a constant in some ops, and the programs then."""
        tf1_op, _, name = suspects
        substitution = self._set(ops, name, tf1_op.attributes[name], tf1_op.constants.get(name))
        if substitution is None:
            return None
        here = "here" if len(ops) == 1 else f"in all {len(ops)} of them"
        words = f"with TF1's {name.removeprefix('attribute ')} {here}"
        trial = Trial(substitution, ends, words, len(ops), suspects)
        rest = self._run(done, trial)
        return None if rest is None else (trial, rest)

    def _in_all_attributes(
        self,
        state: _Comparison,
        done: Substitution,
        ends: tuple[str | None, str | None],
        most: int,
        differing: Sequence[tuple[TracedOp, TracedOp, str]],
    ) -> tuple[Trial, _Comparison] | None:
        """Return a trial that sets several attributes and constants at once, as the two of a dropout in a loop."""
        found = [
            (each, self._set([each[1]], each[2], each[0].attributes[each[2]], each[0].constants.get(each[2])))
            for each in differing
        ]
        known = [(each, substitution) for each, substitution in found if substitution is not None]
        if not 1 < len(known) <= _MOST_STEPS:
            return None

        def tried(chosen: Sequence[tuple[tuple[TracedOp, TracedOp, str], Substitution]]) -> _Comparison | None:
            together = functools.reduce(Substitution.and_also, (substitution for _, substitution in chosen))
            return self._run(done, Trial(together, ends, ""))

        rest = tried(known)
        if rest is None or rest.diverged > most:
            return None
        for each in known:  # which of them are needed
            fewer = [other for other in known if other is not each]
            without = tried(fewer) if fewer else None
            if without is not None and without.diverged <= rest.diverged:
                known, rest = fewer, without
        together = functools.reduce(Substitution.and_also, (substitution for _, substitution in known))
        names = dict.fromkeys(each[2].removeprefix("attribute ") for each, _ in known)
        words = f"with TF1's {and_more(list(names), _MOST_SHOWN)} here"
        return Trial(together, ends, words, 1, known[0][0]), rest

    def _set(
        self, ops: Sequence[TracedOp], name: str, text: str, array: np.ndarray | None = None
    ) -> Substitution | None:
        """Return the substitution of an attribute, or of a constant input, in ops of the port.

        The array of a constant may be left out if it is one number.
        """
        kind, _, what = name.partition(" ")
        if kind == "input" and any(IN_FUNCTION in op.name for op in ops):
            return Substitution(attributes={f"{op.name}:{what}": {"value": text} for op in ops})
        if kind == "attribute":
            return Substitution(attributes={op.name: {what: text} for op in ops})
        if array is None:
            try:
                array = np.asarray(float(text))
            except ValueError:
                return None
        edges = {}
        for op in ops:
            like = op.constants.get(name)
            shape = like.shape if like is not None and like.size == array.size else array.shape
            edges[op.name, int(what)] = array.reshape(shape).astype(self._port.dtype(op.inputs[int(what)]))
        return Substitution(edges=edges)

    def _trials_of(self, state: _Comparison, pairs: Iterable[_Pair]) -> Iterator[Trial]:
        """Yield the substitutes that pairs of tensors stand for, each once."""
        seen = set()
        for tf1_tensor, port_tensor, edge in pairs:
            if (tf1_tensor, port_tensor, edge) in seen:
                continue
            seen.add((tf1_tensor, port_tensor, edge))
            value = self._tf1.values.get(tf1_tensor)
            if value is None or value.array is None:  # a golden file keeps a part of it
                continue
            if (value.dtype.kind == "b") != (self._port.dtype(port_tensor).kind == "b"):
                continue
            array = self._port.fitted(value.array, port_tensor)
            matched = port_tensor in state.port.matched
            edges = [edge] if edge is not None and matched else self._port.edges_of(port_tensor)
            paths = [] if edge is not None and matched else self._port.paths_of(port_tensor)
            # A substitute for an output makes it agree in any case. That shows something only right at the divergence.
            is_first = not state.tf1.depth.get(op_of(tf1_tensor), 0) and not state.port.depth.get(op_of(port_tensor), 0)
            yield Trial(
                Substitution(dict.fromkeys(edges, array), outputs=dict.fromkeys(paths, array)),
                (tf1_tensor, port_tensor),
                "with TF1's value here" if is_first or not paths else "",
                edge=edge,
            )

    def _same_outputs(self, state: _Comparison, tf1_op: TracedOp, port_op: TracedOp) -> Iterator[_Pair]:
        for pair in zip(state.tf1.trace.values_of(tf1_op), state.port.trace.values_of(port_op), strict=False):
            yield *pair, None

    def _pairs(self, state: _Comparison) -> Iterator[_Pair]:
        """Yield pairs of tensors, of which the port's may get TF1's value, those nearest to the divergence first."""
        tf1, port = state.tf1, state.port
        tf1_op, port_op = state.first_ops()
        if tf1_op is not None and port_op is not None and _users(tf1, tf1_op) == _users(port, port_op):
            yield from self._same_outputs(state, tf1_op, port_op)
        takes = defaultdict(list)
        for op in port.diverged:
            for tensor in op.inputs:
                takes[tensor].append(op)
        anchored = [
            pair
            for op in tf1.diverged
            for position, tensor in enumerate(op.inputs)
            for other in (each for name in tf1.matched.get(tensor, ()) for each in takes.get(name, ()))
            for pair in _other_inputs(state, op, other, position)
        ]
        depth = [(tf1.depth.get(op_of(pair[0]), -1), port.depth.get(op_of(pair[1]), -1)) for pair in anchored]
        yield from (pair for _, pair in sorted(zip(map(sum, depth), anchored, strict=True), key=lambda each: each[0]))
        for path, tensor in tf1.trace.outputs.items():
            if path in port.trace.outputs and port.trace.outputs[path] not in tf1.matched.get(tensor, ()):
                yield tensor, port.trace.outputs[path], None
        for first, second in itertools.product(tf1.first, port.first):
            yield from self._same_outputs(state, first, second)


def _may_have(ops: Sequence[TracedOp], name: str, like: TracedOp) -> bool:
    """Return whether one of some ops has an attribute like another op; if there are none, it may be."""
    return not ops or any(op.attributes.get(name) == like.attributes[name] for op in ops)


def _of_hyperparameter(state: _Comparison, trial: Trial, confirmed: str) -> Divergence:
    """Return the divergence that is a hyperparameter of different values, at the first layer that has it."""
    assert trial.hyperparameter is not None
    each = trial.hyperparameter
    tf1_op, port_op, _ = trial.suspects or (None, None, "")
    return Divergence(
        tf1=tf1_op,
        port=port_op,
        after=state.divergence().after,
        leaf=None,
        attributes={each.name: (each.tf1, each.port)},
        values=(None, None),
        sources=([], []),
        confirmed=confirmed,
        attribute=each.name,
        count=trial.count,
        hyperparameter=each,
    )


def _numbers(op: TracedOp, text: str) -> Iterator[str]:
    """Yield the attributes and constant inputs of an op that are a number."""
    try:
        number = float(text)
        found = {name: float(value) for name, value in op.attributes.items() if _NUMBER.fullmatch(value)}
    except ValueError:
        return
    yield from (name for name, value in found.items() if math.isclose(value, number, rel_tol=_OF_TEXT))


def is_in(op: TracedOp | None, layers: Collection[str]) -> bool:
    """Return whether an op is in a layer: its scopes have the layer's name, perhaps with a number."""
    scopes = _unnumbered("" if op is None else op.name)
    return any(f"/{_unnumbered(layer)}/" in f"/{scopes}" for layer in layers)


@functools.cache
def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", name)


def _in_one_order(divergences: Sequence[Divergence]) -> list[Divergence]:
    """Return divergences, with one for two of which each program computes in the first what the other does after."""
    found: list[Divergence] = []
    for each in divergences:
        before = found[-1] if found else None
        if before is not None and before.confirmed and not before.attribute and not each.attribute:
            first, second = only_in(*before.regions), only_in(*each.regions)
            if any(first) and first == second[::-1]:
                regions = (before.regions[0] + each.regions[0], before.regions[1] + each.regions[1])
                found[-1] = replace(before, regions=regions, confirmed=each.confirmed, is_order=True)
                continue
        found.append(each)
    return found


def _in_words(trial: Trial, rest: _Comparison) -> str:
    """Return how a trial confirms a divergence; an empty text if it does not."""
    agrees = "the rest agrees" if not rest.diverged else "what follows agrees up to the next difference"
    return f"{trial.words}, {agrees}" if trial.words else ""


def _users(program: _Program, op: TracedOp) -> list[str]:
    """Return the types of the ops that take an op's tensors."""
    return sorted(other.type for other in program.trace.ops.values() if op.name in other.sources)


def _other_inputs(state: _Comparison, op: TracedOp, other: TracedOp, position: int) -> Iterator[_Pair]:
    """Yield the inputs of an op of each program, besides the one that both have in common, where they differ."""
    if len(op.inputs) != len(other.inputs):
        return
    for number, (tf1_tensor, port_tensor) in enumerate(zip(op.inputs, other.inputs, strict=True)):
        if number != position and port_tensor not in state.tf1.matched.get(tf1_tensor, ()):
            yield tf1_tensor, port_tensor, (other.name, number)


def _alike(tf1: Sequence[TracedOp], port: Sequence[TracedOp]) -> Iterator[tuple[TracedOp, TracedOp]]:
    """Yield the ops of a type of which both programs have equally many, in order."""
    for kind in dict.fromkeys(op.type for op in tf1):
        pair = [[op for op in ops if op.type == kind] for ops in (tf1, port)]
        if len(pair[0]) == len(pair[1]):
            yield from zip(*pair, strict=True)


def _aligned(tf1: TracedOp, port: TracedOp) -> TracedOp:
    """Return TF1's op with its constant as the input that is the port's constant, if the order does not matter."""
    of_tf1, of_port = ([name for name in op.attributes if name.startswith("input ")] for op in (tf1, port))
    if tf1.type not in _COMMUTATIVE or len(of_tf1) != 1 or len(of_port) != 1:
        return tf1
    return replace(tf1, attributes={{of_tf1[0]: of_port[0]}.get(name, name): v for name, v in tf1.attributes.items()})


def _differing_attributes(tf1: TracedOp, port: TracedOp) -> dict[str, tuple[str, str]]:
    """Return the attributes of two ops of one type that differ; none of ops of different types."""
    if tf1.type != port.type:
        return {}
    pairs = {name: (tf1.attributes[name], port.attributes[name]) for name in tf1.attributes if name in port.attributes}
    return {name: pair for name, pair in pairs.items() if _differ(name, tf1, port)}


def _differ(name: str, tf1: TracedOp, port: TracedOp) -> bool:
    """Return whether two ops differ in an attribute or a constant input."""
    arrays = tf1.constants.get(name), port.constants.get(name)
    if arrays[0] is None or arrays[1] is None or arrays[0].size != arrays[1].size or arrays[0].dtype.kind not in "fiu":
        return tf1.attributes[name] != port.attributes[name]
    if arrays[0].size == 1:
        return tf1.attributes[name] != port.attributes[name]
    return not np.allclose(arrays[0].reshape(-1), arrays[1].reshape(-1), rtol=_RTOLS[0], atol=0)


def _compare_values(tf1: Value | None, port: Value | None) -> LeafComparison | None:
    if tf1 is None or port is None or tf1.shape != port.shape:
        return None
    pair = (port.array, tf1.array) if tf1.is_whole else tf1.paired_with(port)[::-1]
    return compare(*pair, _RTOLS[-1], tf1.atol(_RTOLS[-1]), check_dtype=False).leaves[0]
