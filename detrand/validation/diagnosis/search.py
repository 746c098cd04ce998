"""The search for all divergences of a port, which gets more and more of TF1's values.

Where the programs diverge, the port gets TF1's value, and runs again. Where the rest agrees, the divergence is
confirmed, and it is the only one; where it does not, the next divergence is another one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.checkpoints.upstream import op_of
from detrand.comparison.structures import flatten, packed_as
from detrand.comparison.values import OUTPUT, leaves_by_path
from detrand.validation.audit.hyperparameters import BATCH_AXIS, RATE
from detrand.validation.diagnosis.candidates import (
    Crossing,
    Pair,
    after_more_iterations,
    candidates,
    exchanges,
    hidden_inputs,
    is_copy,
    iterations,
    iterations_at,
    of_one_size,
    parts_again,
    parts_in_another_order,
    same_outputs,
    taken_tensors,
    used_alike,
    users,
)
from detrand.validation.diagnosis.divergence import Divergence, confirmation, one_for_each_fault
from detrand.validation.diagnosis.layer_order import differing_order
from detrand.validation.diagnosis.matching import (
    RTOLS,
    TraceComparison,
    differing_attributes,
    match,
    tensor_differences,
)
from detrand.validation.diagnosis.op_kinds import COMMUTATIVE, MOVES, is_in, kind
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.diagnosis.trace import with_dilations
from detrand.validation.frameworks.traces import IN_FUNCTION, NOTHING, Edge, Substitution, Trace, TracedOp, TracedPort
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.results import AuditedHyperparameter, TensorDifference
from detrand.variables.tf1_view import Shapes

_MOST_SHOWN = 4
_NEARLY = 1e-5  # relative: how far rounding to float32 moves what a few ops compute
_MOST_DIVERGENCES = 10
_MOST_RUNS = 12  # of the port, to find what to substitute for one divergence
_MOST_ALIKE, _MOST_NEAR = 3, 20  # ops that may be each other's counterparts, and those that are looked at for them
_MOST_KNOWN = 2  # trials of another run config that come before others
_MOST_AGAIN = 64  # iterations of a loop in Python
_MOST_STEPS = 8  # to split a divergence into several
_NUMBER, _OF_TEXT = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?"), 1e-5  # a number, and how exact it is as text


class Diagnosis(NamedTuple):
    """Where two programs diverge.

    Attributes:
      divergences: the places, in the order of the computation.
      greatest: the greatest absolute difference of each output if both programs compute in float64, by path; nothing
        for an output of a different shape, or if the port computes in half precision by itself.
      as_written: the outputs of the port's graph in its own dtypes, by path, if next to nothing diverges in float64.
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
    port = traced_port(migration, config, tf1_shapes, initial)
    tf1 = replace(tf1, ops=with_dilations(tf1.ops)).of_outputs(differing)
    inputs = dict(zip(tf1.inputs, map(np.asarray, flatten(list(migration.first_batch()))), strict=False))
    search = _Search(tf1, port, inputs, differing, known, hyperparameters)
    names = _names_of_inputs(migration.tf1, migration.first_batch())
    named = {op: f"input {number} ({name})" for number, (op, name) in enumerate(zip(tf1.inputs, names, strict=False))}

    def with_names(found: Divergence) -> Divergence:
        of_tf1, of_port = (tuple(named.get(name, name) for name in each) for each in found.taken)
        return replace(found, inputs=names, taken=(of_tf1, of_port))

    divergences = tuple(map(with_names, search.divergences()))
    as_written = port.outputs_as_written() if search.is_fine or not divergences else {}
    return Diagnosis(divergences, search.greatest, as_written, search.tensors, tuple(search.trials))


def _names_of_inputs(function: Any, batch: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the inputs of a TF1 program, or of parts of them, as far as its function has them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a graph
        return ()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    found = list[str]()
    for name, given in zip(names, batch, strict=False):
        numbers = leaves_by_path(packed_as(given, itertools.count()))
        paths = {number: "" if path == OUTPUT else path for path, number in numbers.items()}
        found += (f"{name}{paths[number]}" for number in sorted(paths))
    return tuple(found)


def ops_without_counterpart(migration: Migration, config: RunConfig, tf1: Trace, tf1_shapes: Shapes) -> list[TracedOp]:
    """Run the port once more, and return TF1's ops from the first divergence on."""
    return tf1.diverged(match(tf1, traced_port(migration, config, tf1_shapes, None).run()))


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
      exchanged: tensors of TF1, and those of the port that are taken in place of their counterparts.
    """

    substitution: Substitution
    ends: tuple[str | None, str | None]
    words: str
    count: int = 1
    suspects: tuple[TracedOp, TracedOp, str] | None = None
    edge: Edge | None = None
    hyperparameter: AuditedHyperparameter | None = None
    depth: int = 0
    exchanged: tuple[tuple[str, str], ...] = ()


# A divergence, and the trial that ends it, if one is known.
_Found = tuple[Trial | None, Divergence]
# Trials, each with the divergence that it ends; and the programs then.
_Steps = tuple[list[tuple[Trial, Divergence]], TraceComparison]


class _Search:
    """The search for all divergences of a port, which gets more and more of TF1's values."""

    def __init__(
        self,
        tf1: Trace,
        port: TracedPort,
        inputs: Mapping[str, np.ndarray],
        differing: Collection[str],
        known: Sequence[Trial],
        hyperparameters: Sequence[AuditedHyperparameter],
    ):
        self._tf1, self._inputs, self._differing, self._hyperparameters = tf1, inputs, differing, hyperparameters
        self._known = [trial for trial in known if trial.hyperparameter is None]
        self._search_in(port)
        self.trials: list[Trial] = []
        self._rtol, self.is_fine = RTOLS[0], False
        self.greatest: dict[str, float] = {}
        self.tensors: tuple[TensorDifference, ...] = ()

    def _search_in(self, port: TracedPort) -> None:
        self._port = port
        self._all_ops = [inner for op in port.ops.values() for inner in op.with_body]
        self._audited = list(self._of_hyperparameters(self._hyperparameters))

    def divergences(self) -> list[Divergence]:
        """Return the divergences in the order of the computation."""
        first = self._port.run()
        state = self._compared(first)
        if not state.differs or not state.diverged or state.differs_slightly:
            self._rtol, self.is_fine = RTOLS[1], True
            state = self._compared(first)
        if not self._port.computes_narrowly:
            self.greatest = state.differences()
        self.tensors = tensor_differences(state.tf1.trace, state.port.trace, state.tf1.matched)
        if self._port.computes_narrowly and not state.differs:
            return [*state.narrower()]
        of_batch = None
        if state.differs:
            of_batch, state = self._with_batch_first(state)
        known, audited = list(self._known), list(self._audited)
        found = self._all(state, NOTHING)
        masking = self._masking(found)
        if masking:
            self._known, self._audited = known, [trial for trial in audited if id(trial) not in map(id, masking)]
            found = self._around(masking, found)
        found = self._without_rounding(found)
        for trial, _ in found:
            if trial is not None and trial.words and not trial.exchanged:  # which is found again
                self.trials.append(replace(trial, substitution=trial.substitution if trial.suspects else NOTHING))
        if of_batch is not None:
            words = confirmation("with batch_first=True", rest_agrees=not found)
            found.insert(0, (None, replace(of_batch, confirmed=words, rest_agrees=not found)))
        order = differing_order(state.tf1.trace, state.port.trace, state.tf1.matched) if found else None
        return one_for_each_fault([divergence for _, divergence in found], order)

    def _with_batch_first(self, state: TraceComparison) -> tuple[Divergence | None, TraceComparison]:
        """Search on in the port with those layers that take the batch from the first axis, if more agrees then.

        Returned are the divergence that this is, and the programs then.
        """
        best, found = state, None
        for layers, port in itertools.islice(self._port.with_batch_first(), _MOST_RUNS):
            then = self._compared(port.run())
            if len(then.tf1.diverged) < len(best.tf1.diverged):
                best, found = then, (layers, port)
            if not best.differs:
                break
        if found is None:
            return None, state
        layers, port = found
        differing = AuditedHyperparameter(and_more(layers, _MOST_SHOWN), BATCH_AXIS, "0", "1")
        first = next((op for op in state.port.diverged if is_in(op, layers)), None)
        self._search_in(port)
        return _of_hyperparameter(state, differing, first, len(layers), *state.tf1.first[:1]), best

    def _all(self, state: TraceComparison, done: Substitution) -> list[_Found]:
        """Return the divergences in the order of the computation, each with the trial that ends it."""
        found: list[_Found] = []
        while state.differs and state.diverged and len(found) < _MOST_DIVERGENCES:
            if term := state.term:
                return [*found, (None, _of_term(state, *term))]
            easy = self._audited_step(state, done) or self._known_step(state, done)
            steps, state_then = easy or self._steps(state, done)
            if not steps:
                return [*found, (None, state.divergence())]
            for trial, _ in steps:
                done = done.and_also(trial.substitution)
            found += steps
            state = state_then
        return found

    def _masking(self, found: Sequence[_Found]) -> list[Trial]:
        """Return the trials of hyperparameters that differ in layers of regions before them, too."""
        before, masking = set[str](), list[Trial]()
        for trial, divergence in found:
            if trial is not None and trial.hyperparameter is not None:
                layers = {trial.hyperparameter.of, *self._port.layers_of(trial.hyperparameter.of)}
                masking += [trial] if any(is_in(self._port.ops.get(name), layers) for name in before) else []
            before.update(op.name for op in divergence.regions[1])
        return masking

    def _around(self, masking: Sequence[Trial], found: list[_Found]) -> list[_Found]:
        """Return the divergences of a port that has TF1's values of some hyperparameters, and then these.

        Their regions are smaller: a fault before such a layer ends where the layer begins.
        """
        done = functools.reduce(Substitution.and_also, (trial.substitution for trial in masking))
        narrower = self._all(self._compared(self._port.run(done)), done)
        if not narrower or not all(trial is not None and trial.words for trial, _ in narrower):
            return found
        last: list[_Found] = [
            (trial, _confirmed(divergence, trial, rest_agrees=True))
            for trial, divergence in found
            if trial is not None and any(trial is each for each in masking)
        ]
        before: list[_Found] = [
            (trial, _confirmed(divergence, trial, rest_agrees=False))
            for trial, divergence in narrower
            if trial is not None
        ]
        return [*before, *last]

    def _without_rounding(self, found: list[_Found]) -> list[_Found]:
        """Return divergences without those of a constant that is rounded differently, if there are others.

        It may be a table that the port computes in float32, such as the positions of a transformer.
        """
        kept = [(trial, each) for trial, each in found if trial is None or not self._is_rounding(trial)]
        if not kept or len(kept) == len(found):
            return found
        trial, last = kept[-1]
        if trial is not None:
            last = _confirmed(last, trial, rest_agrees=found[-1][1].rest_agrees)
        return [*kept[:-1], (trial, last)]

    def _is_rounding(self, trial: Trial) -> bool:
        """Return whether TF1's numbers, which a trial gives to the port, are nearly the constant that the port has."""
        if trial.suspects is not None:
            tf1_op, port_op, name = trial.suspects
            array, constant = tf1_op.constants.get(name), port_op.constants.get(name)
        elif trial.ends[0] is None or trial.ends[1] is None:  # a hyperparameter
            return False
        else:
            value, constant = self._tf1.values.get(trial.ends[0]), self._port.constant(trial.ends[1])
            array = None if value is None else value.array
        if array is None or constant is None or constant.shape != array.shape[max(array.ndim - constant.ndim, 0) :]:
            return False
        if {array.dtype.kind, constant.dtype.kind} != {"f"} or not np.isfinite(array).all():
            return False
        near_zero = _NEARLY * min(np.abs(array).max(initial=0), 1.0)  # a mask may have -1e9
        return np.allclose(array, constant, rtol=_NEARLY, atol=near_zero)

    def _constants(self, trial: Trial) -> tuple[np.ndarray, np.ndarray] | None:
        """Return TF1's array and the port's, if the port's is a constant, or its op takes a constant there."""
        if trial.suspects is not None:
            tf1_op, port_op, name = trial.suspects
            pairs = [(tf1_op.constants.get(name), port_op.constants.get(name))]
        else:
            names = [trial.ends]
            ends = self._tf1.ops.get(op_of(trial.ends[0] or "")), self._port.ops.get(op_of(trial.ends[1] or ""))
            if ends[0] is not None and ends[1] is not None and kind(ends[0]) == kind(ends[1]):
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
            values = [(port_value, tf1_value), *_factors(name, port_value, tf1_value)]
            for each in group:
                layers = {each.of, *self._port.layers_of(each.of)}
                numbers = [
                    (op, what, value)
                    for op in self._all_ops
                    for number, value in values
                    for what in _numbers(op, number)
                    if is_in(op, layers)
                ]
                sets = [(op, self._set([op], what, value)) for op, what, value in numbers]
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

    def _audited_step(self, state: TraceComparison, done: Substitution) -> _Steps | None:
        """Return a step that sets a hyperparameter that differs, if more agrees then."""
        for trial in self._audited:
            rest = self._run(done, trial)
            if rest is not None and rest.diverged < state.diverged:
                self._audited.remove(trial)
                return [self._described(state, trial, rest)], rest
        return None

    def _known_step(self, state: TraceComparison, done: Substitution) -> _Steps | None:
        """Return one of the first known trials after which more agrees, with the programs then."""
        possible = ((known, trial) for known in self._known for trial in self._again(state, known))
        for known, trial in itertools.islice(possible, _MOST_KNOWN):
            rest = self._run(done, trial)
            if rest is None:
                continue
            if rest.diverged < state.diverged if trial.suspects else self._heals(state, rest, trial):
                self._known.remove(known)
                of_attribute = None if trial.suspects else self._in_attributes(state, done, trial.ends, rest.diverged)
                found = of_attribute or self._in_all_iterations(done, (trial, rest))
                return [self._described(state, *found)], found[1]
        return None

    def _again(self, state: TraceComparison, known: Trial) -> Iterator[Trial]:
        """Yield a known trial for the ops that the programs have now."""
        if known.suspects is None:
            tf1_tensor, port_tensor = (each or "" for each in known.ends)
            is_there = op_of(tf1_tensor) in state.tf1.trace.ops and op_of(port_tensor) in self._port.ops
            # One that is farther away would hide what comes before it.
            if is_there and state.tf1.depth.get(op_of(tf1_tensor), 0) <= known.depth:
                is_taken = known.edge in self._port.edges_of(port_tensor)  # a dropout may come in between
                yield from self._trials_of(state, [(tf1_tensor, port_tensor, known.edge if is_taken else None)])
            return
        *names, name = known.suspects[0].name, known.suspects[1].name, known.suspects[2]
        of_tf1 = [inner for op in state.tf1.trace.ops.values() for inner in op.with_body if inner.name == names[0]]
        of_port = [op for op in self._all_ops if op.name == names[1]]
        if of_tf1 and of_port and name in differing_attributes(of_tf1[0], of_port[0]):
            yield replace(known, suspects=(of_tf1[0], of_port[0], name))

    def _described(self, state: TraceComparison, trial: Trial, rest: TraceComparison) -> tuple[Trial, Divergence]:
        """Return a trial with the divergence that it ends."""
        if trial.hyperparameter is not None:
            names = [*(op for op, _ in trial.substitution.edges), *trial.substitution.attributes]
            port_op = trial.suspects[1] if trial.suspects else state.port.trace.ops.get(names[0])
            tf1_op = trial.suspects[0] if trial.suspects else None
            found = _of_hyperparameter(state, trial.hyperparameter, port_op, trial.count, tf1_op)
            return trial, _confirmed(found, trial, rest_agrees=rest.agree)
        divergence = state.divergence(trial.ends, trial.suspects, trial.edge[0] if trial.edge else "")
        attribute = trial.suspects[2] if trial.suspects else ""
        constants = self._constants(trial)
        trial = replace(trial, depth=state.tf1.depth.get(op_of(trial.ends[0] or ""), 0))
        divergence = replace(divergence, attribute=attribute, count=trial.count, constants=constants)
        if trial.exchanged:
            tf1 = tuple(tensor for tensor, _ in trial.exchanged)
            port = tuple(state.port.matched[tensor][0] for _, tensor in trial.exchanged)
            divergence = replace(divergence, is_swap=True, taken=(tf1, port))
            if len(tf1) > 1 and trial.edge is not None:  # parts of a tensor: between where it is split and used
                tf1_op, producer = self._tf1.ops[op_of(tf1[0])], self._port.ops[op_of(trial.exchanged[0][1])]
                user = self._port.ops[trial.edge[0]]
                divergence = replace(divergence, tf1=tf1_op, port=user, producer=producer, leaf=None)
        if not trial.suspects and not rest.diverged and (numbers := iterations_at(state, *trial.ends)):
            ops = self._tf1.ops[op_of(trial.ends[0] or "")], self._port.ops[op_of(trial.ends[1] or "")]
            divergence = replace(divergence, tf1=ops[0], port=ops[1], iterations=numbers, attributes={})
        return trial, _confirmed(divergence, trial, rest_agrees=rest.agree)

    def _steps(self, state: TraceComparison, done: Substitution) -> _Steps:
        """Return what to substitute, one after the other, until more agrees; and the programs then."""
        healed = self._healed(state, done)
        if healed is None:
            return [], state
        trial, rest = self._in_all_iterations(done, healed)
        end = op_of(trial.ends[0] or "")
        steps: list[tuple[Trial, Divergence]] = []
        now, given = state, done
        while now.tf1.depth.get(end, 0) > 0 and len(steps) < _MOST_STEPS:  # several differences on the way to the end
            step = self._step(now, given, of_data=self._is_data_for_constant(trial))
            step = step and self._in_all_iterations(given, step)
            if step is None or step[1].diverged >= now.diverged:
                if steps and all(trial.suspects for trial, _ in steps):
                    return steps, now
                break
            steps.append(self._described(now, *step))
            now, given = step[1], given.and_also(step[0].substitution)
            if now.diverged <= rest.diverged:
                return steps, now
        last = self._run(given, trial) if steps and all(step.suspects for step, _ in steps) else None
        if last is not None and last.diverged <= rest.diverged:  # these end before it
            left = self._in_attributes(now, given, trial.ends, last.diverged) if trial.suspects else None
            return [*steps, self._described(now, *(left or (trial, last)))], last
        return [self._described(state, trial, rest)], rest

    def _is_data_for_constant(self, trial: Trial) -> bool:
        """Return whether a number of the port gets what TF1 computes from data, which hides what differs there."""
        ends = [end or "" for end in trial.ends]
        given = self._tf1.ops.get(op_of(ends[0])) if trial.suspects is None else None
        is_number = given is not None and self._port.constant(ends[1]) is not None
        return is_number and given is not None and bool(self._tf1.inputs_of([given]))

    def _is_data_for_number(self, trial: Trial) -> bool:
        """Return whether a single number of the port gets an array that TF1 computes from data."""
        constant = self._port.constant(trial.ends[1] or "") if self._is_data_for_constant(trial) else None
        value = self._tf1.values.get(trial.ends[0] or "")
        return constant is not None and value is not None and constant.size == 1 < value.size

    def _step(
        self, state: TraceComparison, done: Substitution, *, of_data: bool = False
    ) -> tuple[Trial, TraceComparison] | None:
        """Return a substitute for the first op: its attribute, or its value if both programs go on from there alike.

        If the port computes nothing from data there, it is one for the first ops from which both go on alike.
        """
        tf1_op, port_op = state.first_ops()
        if tf1_op is None or port_op is None:
            return None
        ends = (
            next(iter(state.tf1.trace.values_of(tf1_op)), None),
            next(iter(state.port.trace.values_of(port_op)), None),
        )
        is_alike = users(state.tf1, tf1_op) == users(state.port, port_op)
        most = state.diverged - (2 if is_alike else 3)  # ops that go on differently must heal more than themselves
        if tf1_op.type == port_op.type and (step := self._in_attributes(state, done, ends, most)):
            return step
        alike = [(tf1_op, port_op)] if is_alike else used_alike(state) if of_data else []
        pairs = (pair for each in alike for pair in same_outputs(state, *each))
        for trial in itertools.islice(self._trials_of(state, pairs), _MOST_ALIKE):
            rest = self._run(done, trial)
            # Ops of one type may take different tensors; those of two types that heal nothing are half a difference.
            is_one_op = tf1_op.type == port_op.type and rest is not None and rest.diverged < state.diverged
            if rest is not None and (is_one_op or self._heals(state, rest, trial)):
                return self._in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        return None

    def _compared(self, port: Trace) -> TraceComparison:
        return TraceComparison(self._tf1, port.of_outputs(self._differing), self._rtol)

    def _run(self, done: Substitution, trial: Trial) -> TraceComparison | None:
        try:
            return self._compared(self._port.run(done.and_also(trial.substitution)))
        except (ValueError, TypeError):  # values that do not fit
            return None

    def _healed(self, state: TraceComparison, done: Substitution) -> tuple[Trial, TraceComparison] | None:
        """Return the first trial after which more agrees than what was substituted, and the programs then.

        One after which everything agrees is better: the others may give the port what it has in a form of its own.
        """
        found = self._first_healed(state, done)
        if found is not None and found[0].words and found[1].agree:
            return found
        for trial in itertools.islice(self._swaps(state), _MOST_RUNS):
            rest = self._run(done, trial)
            if rest is not None and rest.agree:
                return trial, rest
        # Where nothing was found, or parts in an order that may be a cell's own, one op may stand for several of TF1.
        is_sure = found is not None and bool(found[0].words) and not found[0].exchanged
        pairs = () if is_sure else of_one_size(state)
        for trial in itertools.islice(self._trials_of(state, pairs), _MOST_RUNS):
            rest = self._run(done, trial) if trial.words else None
            if rest is not None and rest.agree:
                return self._in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        return found

    def _first_healed(self, state: TraceComparison, done: Substitution) -> tuple[Trial, TraceComparison] | None:
        for crossings in itertools.islice(exchanges(state), _MOST_ALIKE):
            trial = self._exchange(crossings)
            rest = self._run(done, trial)
            changed = {name for name, _ in trial.substitution.edges}
            if rest is not None and changed.isdisjoint(op.name for op in rest.port.diverged):
                return trial, rest
        if in_order := self._with_parts_in_order(state, done):
            return in_order
        for trial in itertools.islice(self._trials_of(state, after_more_iterations(state)), _MOST_ALIKE):
            rest = self._run(done, trial)
            if rest is not None and not rest.diverged and iterations_at(state, *trial.ends):
                return trial, rest
        for trial in self._trials_of(state, hidden_inputs(state)):
            rest = self._run(done, trial)
            if rest is not None and not rest.diverged:
                return self._in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        of_output = None  # makes an output agree, and shows nothing
        of_number = None  # gives an array to a single number, and may be half of what differs
        for trial in itertools.islice(self._trials_of(state, candidates(state, self._port.edges_of)), _MOST_RUNS):
            rest = self._run(done, trial)
            if rest is None or not self._heals(state, rest, trial):
                continue
            if of_number is not None:
                if trial.words and rest.diverged < of_number[1].diverged:
                    return self._in_all_uses(done, trial, rest)
            elif of_output is None:
                found = self._in_attributes(state, done, trial.ends, rest.diverged)
                if found is None and trial.words and self._is_data_for_number(trial) and _port_computes_more(rest):
                    of_number = trial, rest
                elif found or trial.words:
                    return found or self._in_all_uses(done, trial, rest)
                else:
                    of_output = trial, rest
            elif trial.words and not rest.diverged and _compute_alike(state, trial.ends):
                return trial, rest
        found = of_number or of_output
        return found or self._in_attributes(state, done, (None, None), state.diverged - 1)

    def _exchange(self, crossings: tuple[Crossing, Crossing]) -> Trial:
        """Return the trial that exchanges what two ops of the port take, in all iterations of a loop in Python."""
        edges, right = dict[Edge, np.ndarray](), set[str]()
        for each in crossings:
            position = each.tf1.inputs.index(each.tensor)
            again = iterations(self._tf1.ops, self._port.ops, each.tf1.name, each.port.name)
            for tf1_op, port_op in [(each.tf1.name, each.port.name), *again]:
                given, tensor = self._tf1.ops[tf1_op].inputs[position], self._port.ops[port_op].inputs[each.number]
                if (array := self._array(given)) is not None:
                    edges[port_op, each.number] = self._port.fitted(array, tensor)
                    right.add(tensor)
        first = crossings[0]
        return Trial(
            Substitution(edges, right=frozenset(right)),
            (first.tensor, first.other),
            "with the two exchanged",
            edge=(first.port.name, first.number),
            exchanged=((first.tensor, first.other),),
        )

    def _swaps(self, state: TraceComparison) -> Iterator[Trial]:
        """Yield trials that exchange two tensors of one shape wherever the port takes them, as the states of a cell."""
        taken = taken_tensors(state)
        arrays = {name: (state.port.matched[name][0], self._array(state.port.matched[name][0])) for name in taken}
        pairs = itertools.combinations(arrays, 2)
        for one, other in sorted(pairs, key=lambda pair: is_copy(self._port.ops, *map(op_of, pair))):
            (_, of_one), (tf1_tensor, of_other) = arrays[one], arrays[other]
            if of_one is None or of_other is None or of_one.shape != of_other.shape or np.array_equal(of_one, of_other):
                continue
            edges = dict.fromkeys(taken[one], self._port.fitted(of_other, one))
            edges |= dict.fromkeys(taken[other], self._port.fitted(of_one, other))
            yield Trial(
                Substitution(edges, right=frozenset([one, other])),
                (tf1_tensor, one),
                "with the two exchanged",
                edge=taken[one][0],
                exchanged=((tf1_tensor, one),),
            )

    def _array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor or an input of TF1 holds; None if a golden file keeps a part of it."""
        value = self._tf1.values.get(tensor)
        return self._inputs.get(tensor) if value is None else value.array

    def _with_parts_in_order(self, state: TraceComparison, done: Substitution) -> tuple[Trial, TraceComparison] | None:
        """Return the trial that gives the port the parts of a tensor in TF1's order, after which most agrees.

        TF1's values of the parts make much agree in any order, in a loop above all. So more has to agree than with
        them in the port's own order.
        """
        best: tuple[Trial, TraceComparison] | None = None
        as_before = dict[str, TraceComparison | None]()
        for pairs in itertools.islice(parts_in_another_order(state), _MOST_RUNS):
            if pairs[0][0] not in as_before:
                own = [(state.port.matched[tensor][0], tensor) for _, tensor in pairs]
                as_before[pairs[0][0]] = self._run(done, self._in_order(state, own))
            trial = self._in_order(state, pairs)
            rest, before = self._run(done, trial), as_before[pairs[0][0]]
            changed = {name for name, _ in trial.substitution.edges}
            most = state.diverged if best is None else best[1].diverged
            agree = rest is not None and changed.isdisjoint(op.name for op in rest.port.diverged)
            if rest is not None and agree and rest.diverged < min(most, before.diverged if before else most):
                best = trial, rest
            if best is not None and not best[1].diverged:
                break
        return None if best is None else self._in_order_again(done, *best)

    def _in_order_again(self, done: Substitution, trial: Trial, rest: TraceComparison) -> tuple[Trial, TraceComparison]:
        """Return a trial that gives the port more parts in TF1's order, where the same line takes them."""
        given = {name for name, _ in trial.substitution.edges}
        for _ in range(_MOST_AGAIN if rest.diverged else 0):  # what an iteration takes agrees once the one before does
            others = [self._in_order(rest, pairs) for pairs in parts_again(rest, trial.exchanged)]
            others = [each for each in others if given.isdisjoint(name for name, _ in each.substitution.edges)]
            together = functools.reduce(
                Substitution.and_also, (each.substitution for each in others), trial.substitution
            )
            everywhere = replace(trial, substitution=together)
            then = self._run(done, everywhere) if others else None
            changed = {name for name, _ in together.edges}
            if then is None or not changed.isdisjoint(op.name for op in then.port.diverged):
                break
            if then.diverged >= rest.diverged:
                break
            trial, rest, given = everywhere, then, changed
        return trial, rest

    def _in_order(self, state: TraceComparison, pairs: Sequence[tuple[str, str]]) -> Trial:
        """Return the trial that gives the port the parts of a tensor in TF1's order, in all iterations of a loop."""
        edges, right = dict[Edge, np.ndarray](), set[str]()
        moved = [pair for pair in pairs if pair[0] not in state.port.matched[pair[1]]]
        for tf1_tensor, port_tensor in moved or pairs:
            names = op_of(tf1_tensor), op_of(port_tensor)
            suffixes = [each.removeprefix(name) for each, name in zip((tf1_tensor, port_tensor), names, strict=True)]
            for tf1_op, port_op in [names, *iterations(self._tf1.ops, self._port.ops, *names)]:
                value, tensor = self._tf1.values.get(tf1_op + suffixes[0]), port_op + suffixes[1]
                if value is not None and value.array is not None:
                    edges |= dict.fromkeys(self._port.edges_of(tensor), self._port.fitted(value.array, tensor))
                    right.add(tensor)
        words = "with the parts in TF1's order"
        substitution, first = Substitution(edges, right=frozenset(right)), next(iter(edges), None)
        return Trial(substitution, pairs[0], words, edge=first, exchanged=tuple(pairs))

    def _in_all_uses(self, done: Substitution, trial: Trial, rest: TraceComparison) -> tuple[Trial, TraceComparison]:
        """Return a trial for all ops that take a tensor, if more agrees then than with one of them."""
        tensor = trial.ends[1]
        if trial.edge is None or trial.edge not in trial.substitution.edges or tensor is None or not rest.diverged:
            return trial, rest  # or all ops take it already
        array = trial.substitution.edges[trial.edge]
        everywhere = replace(
            trial, substitution=Substitution(dict.fromkeys(self._port.edges_of(tensor), array)), edge=None
        )
        then = self._run(done, everywhere)
        return (everywhere, then) if then is not None and then.diverged < rest.diverged else (trial, rest)

    def _heals(self, state: TraceComparison, rest: TraceComparison, trial: Trial) -> bool:
        """Return whether tensors after the substitute agree that did not agree before, besides copies of it."""
        if not rest.diverged:
            return True
        for before, after, end in zip((state.tf1, state.port), (rest.tf1, rest.port), trial.ends, strict=True):
            given = {op.name for op in (*before.region(end), *before.copies(end))}
            if len(before.diverged) - len(after.diverged) > sum(op.name in given for op in before.diverged):
                return True
        return False

    def _in_attributes(
        self, state: TraceComparison, done: Substitution, ends: tuple[str | None, str | None], most: int
    ) -> tuple[Trial, TraceComparison] | None:
        """Return a trial that sets an attribute or a constant of the port, after which at most so many ops diverge."""
        found = [
            (a, b)
            for a, b in state.suspects(ends)
            if a.type != "Transpose" or state.takes_alike(a, b)  # orders of axes of different tensors say nothing
        ]
        pairs = {(a.name, b.name): (_aligned(a, b), b) for a, b in found}.values()
        differing = [(*pair, name) for pair in pairs for name in differing_attributes(*pair)]
        for suspects in differing[:_MOST_RUNS]:
            best = self._set_in(done, ends, suspects, [suspects[1]])
            # A port that makes zeros of what differs seems to agree: then no more of TF1 does.
            heals = best is not None and (not best[1].diverged or len(best[1].tf1.diverged) < len(state.tf1.diverged))
            best = best if best is not None and heals and best[1].diverged <= most else None
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
        state: TraceComparison,
        done: Substitution,
        ends: tuple[str | None, str | None],
        suspects: tuple[TracedOp, TracedOp, str],
    ) -> tuple[Trial, TraceComparison] | None:
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
    ) -> tuple[Trial, TraceComparison] | None:
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
        state: TraceComparison,
        done: Substitution,
        ends: tuple[str | None, str | None],
        most: int,
        differing: Sequence[tuple[TracedOp, TracedOp, str]],
    ) -> tuple[Trial, TraceComparison] | None:
        """Return a trial that sets several attributes and constants at once, as the two of a dropout in a loop."""
        found = [
            (each, self._set([each[1]], each[2], each[0].attributes[each[2]], each[0].constants.get(each[2])))
            for each in differing
        ]
        known = [(each, substitution) for each, substitution in found if substitution is not None]
        if not 1 < len(known) <= _MOST_STEPS:
            return None

        def tried(chosen: Sequence[tuple[tuple[TracedOp, TracedOp, str], Substitution]]) -> TraceComparison | None:
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

    def _trials_of(self, state: TraceComparison, pairs: Iterable[Pair]) -> Iterator[Trial]:
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
            is_right = edge is not None and port_tensor in state.port.matched
            edges = [edge] if edge is not None and is_right else self._port.edges_of(port_tensor)
            paths = [] if is_right else self._port.paths_of(port_tensor)
            right = frozenset([port_tensor] if is_right else [])
            # A substitute for an output makes it agree in any case. That shows something only right at the divergence.
            is_first = not state.tf1.depth.get(op_of(tf1_tensor), 0) and not state.port.depth.get(op_of(port_tensor), 0)
            yield Trial(
                Substitution(dict.fromkeys(edges, array), outputs=dict.fromkeys(paths, array), right=right),
                (tf1_tensor, port_tensor),
                "with TF1's value here" if is_first or not paths else "",
                edge=edge,
            )

    def _in_all_iterations(
        self, done: Substitution, found: tuple[Trial, TraceComparison]
    ) -> tuple[Trial, TraceComparison]:
        """Return a trial in all iterations of a loop, if still more agrees then."""
        trial, rest = found
        if trial.suspects or trial.exchanged or not trial.words or not rest.diverged:
            return found
        edges, right = dict(trial.substitution.edges), set(trial.substitution.right)
        tf1_tensor, port_tensor = (each or "" for each in trial.ends)
        to = op_of(port_tensor) if trial.edge is None else trial.edge[0]
        for tf1_op, port_op in iterations(self._tf1.ops, self._port.ops, op_of(tf1_tensor), to):
            value = self._tf1.values.get(tf1_op + tf1_tensor.removeprefix(op_of(tf1_tensor)))
            tensor = port_op + port_tensor.removeprefix(op_of(port_tensor))
            if trial.edge is not None:
                tensor = self._port.ops[port_op].inputs[trial.edge[1]]
            if value is not None and value.array is not None:
                array = self._port.fitted(value.array, tensor)
                to_edges = self._port.edges_of(tensor) if trial.edge is None else [(port_op, trial.edge[1])]
                edges |= dict.fromkeys(to_edges, array)
                right |= {tensor} if right else set()
        if len(edges) == len(trial.substitution.edges):
            return found
        words = trial.words.replace("here", "in all iterations")
        substitution = replace(trial.substitution, edges=edges, right=frozenset(right))
        everywhere = replace(trial, substitution=substitution, words=words)
        then = self._run(done, everywhere)
        return (everywhere, then) if then is not None and then.diverged < rest.diverged else found


def _port_computes_more(rest: TraceComparison) -> bool:
    """Return whether the port's first op that diverges is of a kind that TF1 does not come to any more."""
    _, first = rest.first_ops()
    return first is not None and kind(first) not in map(kind, rest.tf1.diverged)


def _compute_alike(state: TraceComparison, tensors: tuple[str | None, str | None]) -> bool:
    """Return whether ops of one type compute a tensor of TF1 and a tensor of the port, but for moves after them."""
    types = []
    for program, tensor in zip((state.tf1, state.port), tensors, strict=True):
        diverged = {op.name: op for op in program.diverged}
        op = program.trace.ops[op_of(tensor or "")]
        while kind(op) in MOVES and any(source in diverged for source in op.sources):
            op = next(diverged[source] for source in op.sources if source in diverged)
        types.append(op.type)
    return types[0] == types[1]


def _may_have(ops: Sequence[TracedOp], name: str, like: TracedOp) -> bool:
    """Return whether one of some ops has an attribute like another op; if there are none, it may be."""
    return not ops or any(op.attributes.get(name) == like.attributes[name] for op in ops)


def _of_hyperparameter(
    state: TraceComparison,
    each: AuditedHyperparameter,
    port_op: TracedOp | None,
    count: int,
    tf1_op: TracedOp | None = None,
) -> Divergence:
    """Return the divergence that is a hyperparameter of different values, at the first layer that has it."""
    if tf1_op is None:  # TF1 may compute the layer outside of its scope
        tf1_op = next((op for op in state.tf1.diverged if [*_numbers(op, each.tf1)]), None)
    return Divergence(
        tf1=tf1_op,
        port=port_op,
        after=state.divergence().after,
        leaf=None,
        attributes={each.name: (each.tf1, each.port)},
        values=(None, None),
        sources=([], []),
        attribute=each.name,
        count=count,
        hyperparameter=each,
    )


def _factors(name: str, port: str, tf1: str) -> list[tuple[str, str]]:
    """Return the factors by which dropouts with two rates multiply what they keep, as texts; none for other names."""
    try:
        rates = [float(each) for each in (port, tf1)] if name == RATE else []
    except ValueError:
        rates = []
    factors = [f"{1 / (1 - rate):.9g}" for rate in rates if 0 < rate < 1]
    return [(factors[0], factors[1])] if len(factors) == 2 else []


def _numbers(op: TracedOp, text: str) -> Iterator[str]:
    """Yield the attributes and constant inputs of an op that are a number."""
    try:
        number = float(text)
        found = {name: float(value) for name, value in op.attributes.items() if _NUMBER.fullmatch(value)}
    except ValueError:
        return
    yield from (name for name, value in found.items() if math.isclose(value, number, rel_tol=_OF_TEXT))


def _confirmed(divergence: Divergence, trial: Trial, *, rest_agrees: bool) -> Divergence:
    """Return a divergence as a trial confirms it, which does so if it has words."""
    words = confirmation(trial.words, rest_agrees=rest_agrees)
    return replace(divergence, confirmed=words, rest_agrees=rest_agrees and bool(words))


def _of_term(state: TraceComparison, who: str, op: TracedOp) -> Divergence:
    """Return the divergence that is a term of one program."""
    words = "without this term, the losses agree"
    found = replace(state.divergence(), confirmed=words, term_of=who, leaf=None, attributes={})
    if who == "TF1":
        return replace(found, tf1=op, values=(state.tf1.value(op), None))
    return replace(found, port=op, values=(None, state.port.value(op)))


def _aligned(tf1: TracedOp, port: TracedOp) -> TracedOp:
    """Return TF1's op with its constant as the input that is the port's constant, if the order does not matter."""
    of_tf1, of_port = ([name for name in op.attributes if name.startswith("input ")] for op in (tf1, port))
    if tf1.type not in COMMUTATIVE or len(of_tf1) != 1 or len(of_port) != 1:
        return tf1
    return replace(tf1, attributes={{of_tf1[0]: of_port[0]}.get(name, name): v for name, v in tf1.attributes.items()})
