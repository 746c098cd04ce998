"""The search for all divergences of a port, which gets more and more of TF1's values.

Where the programs diverge, the port gets TF1's value, and runs again. Where the rest agrees, the divergence is
confirmed, and it is the only one; where it does not, the next divergence is another one.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.checkpoints.upstream import op_of
from detrand.comparison.structures import flatten, packed_as
from detrand.comparison.values import OUTPUT, leaves_by_path
from detrand.validation.audit.hyperparameters import BATCH_AXIS
from detrand.validation.diagnosis.candidates import iterations_at
from detrand.validation.diagnosis.divergence import Divergence, confirmation, one_for_each_fault
from detrand.validation.diagnosis.edits import Edits
from detrand.validation.diagnosis.layer_order import differing_order
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.tensors import RTOLS, match, tensor_differences
from detrand.validation.diagnosis.op_kinds import MOVES, PLUMBING, is_in, only_in
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.diagnosis.substitutes import Substitutes, heals
from detrand.validation.diagnosis.trace import with_dilations
from detrand.validation.diagnosis.trials import Trial, Trials, numbers_of, together
from detrand.validation.frameworks.traces import NOTHING, Substitution, Trace, TracedOp, TracedPort
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.results import AuditedHyperparameter, TensorDifference
from detrand.variables.tf1_view import Shapes

_MOST_SHOWN = 4
_MOST_DIVERGENCES = 10
_MOST_RUNS = 12  # of ports with some layers that take the batch from the first axis
_MOST_KNOWN = 2  # trials of another run config that come before others
_MOST_STEPS = 8  # to split a divergence into several


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
        self.is_fine = False
        self._search_in(port)
        self.trials: list[Trial] = []
        self.greatest: dict[str, float] = {}
        self.tensors: tuple[TensorDifference, ...] = ()

    def _search_in(self, port: TracedPort) -> None:
        self._port, self._trials = port, Trials(self._tf1, port, self._inputs)
        self._substitutes = self._substitutes_of(self._trials)
        self._audited = list(self._trials.of_hyperparameters(self._hyperparameters))

    @property
    def _edits(self) -> Edits:
        return Edits(self._port, self._substitutes)

    def _substitutes_of(self, trials: Trials) -> Substitutes:
        return Substitutes(trials, self._differing, RTOLS[1] if self.is_fine else RTOLS[0])

    def divergences(self) -> list[Divergence]:
        """Return the divergences in the order of the computation."""
        first = self._port.run()
        state = self._substitutes.compared(first)
        if not state.differs or not state.diverged or state.differs_slightly:
            self.is_fine = True
            self._substitutes = self._substitutes_of(self._trials)
            state = self._substitutes.compared(first)
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
            then = self._substitutes.compared(port.run())
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
                edit = self._edits.divergence(state, done) if state.has_zero_terms else None
                return [*found, (None, edit or _of_term(state, *term))]
            easy = self._audited_step(state, done) or self._known_step(state, done)
            steps, state_then = easy or self._steps(state, done)
            # What follows a divergence that is not exact may be one more place of the same fault.
            is_clear = not easy and not _is_plain(steps, state_then) and all(each.is_exact for _, each in found)
            edit = self._edits.divergence(state, done) if is_clear else None
            if edit is not None or not steps:
                return [*found, (None, edit or state.divergence())]
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
        done = together(trial.substitution for trial in masking)
        narrower = self._all(self._substitutes.compared(self._port.run(done)), done)
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
        kept = [(trial, each) for trial, each in found if trial is None or not self._trials.is_rounding(trial)]
        if not kept or len(kept) == len(found):
            return found
        trial, last = kept[-1]
        if trial is not None:
            last = _confirmed(last, trial, rest_agrees=found[-1][1].rest_agrees)
        return [*kept[:-1], (trial, last)]

    def _audited_step(self, state: TraceComparison, done: Substitution) -> _Steps | None:
        """Return a step that sets a hyperparameter that differs, if more agrees then."""
        for trial in self._audited:
            rest = self._substitutes.run(done, trial)
            if rest is not None and rest.diverged < state.diverged:
                self._audited.remove(trial)
                return [self._described(state, trial, rest)], rest
        return None

    def _known_step(self, state: TraceComparison, done: Substitution) -> _Steps | None:
        """Return one of the first known trials after which more agrees, with the programs then."""
        possible = ((known, trial) for known in self._known for trial in self._trials.again(state, known))
        for known, trial in itertools.islice(possible, _MOST_KNOWN):
            rest = self._substitutes.run(done, trial)
            if rest is None:
                continue
            if rest.diverged < state.diverged if trial.suspects else heals(state, rest, trial):
                self._known.remove(known)
                of_attribute = None
                if not trial.suspects:
                    of_attribute = self._substitutes.in_attributes(state, done, trial.ends, rest.diverged)
                found = of_attribute or self._substitutes.in_all_iterations(done, (trial, rest))
                return [self._described(state, *found)], found[1]
        return None

    def _described(self, state: TraceComparison, trial: Trial, rest: TraceComparison) -> tuple[Trial, Divergence]:
        """Return a trial with the divergence that it ends."""
        if trial.hyperparameter is not None:
            names = [*(op for op, _ in trial.substitution.edges), *trial.substitution.attributes]
            port_op = trial.suspects[1] if trial.suspects else state.port.trace.ops.get(names[0])
            tf1_op = trial.suspects[0] if trial.suspects else None
            found = _of_hyperparameter(state, trial.hyperparameter, port_op, trial.count, tf1_op)
            return trial, _confirmed(found, trial, rest_agrees=rest.agree, outputs_agree=not rest.differs)
        divergence = state.divergence(trial.ends, trial.suspects, trial.edge[0] if trial.edge else "")
        attribute = trial.suspects[2] if trial.suspects else ""
        constants = self._trials.constants(trial)
        trial = replace(trial, depth=state.tf1.depth.get(op_of(trial.ends[0] or ""), 0))
        divergence = replace(divergence, attribute=attribute, count=trial.count, constants=constants)
        if not trial.suspects and (takers := self._takers_of_others(state, trial)):
            tf1_op, port_op, mine, other = takers
            taken = (mine,), (other,)
            divergence = replace(divergence, tf1=tf1_op, port=port_op, taken=taken, takes_other=True, attributes={})
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
        # What TF1 computes the other tensor from is not in the port.
        is_all = divergence.takes_other and not rest.port.diverged and not rest.differs
        agrees = rest.agree or is_all
        return trial, _confirmed(divergence, trial, rest_agrees=agrees, outputs_agree=not rest.differs)

    def _takers_of_others(self, state: TraceComparison, trial: Trial) -> tuple[TracedOp, TracedOp, str, str] | None:
        """Return ops of TF1 and the port, of which the port's takes a tensor in place of TF1's, both by TF1's names.

        Ops of one type also take TF1's tensor where it is computed from the other one.
        """
        mine, other = (each or "" for each in trial.ends)
        edge = trial.edge or next(iter(trial.substitution.edges), None)
        if edge is not None and other in state.port.matched:
            tf1_op = next((op for op in state.tf1.diverged if mine in op.inputs), None)
            found = None if tf1_op is None else (tf1_op, self._port.ops[edge[0]], mine, state.port.matched[other][0])
        else:
            found = state.takers_of_others(mine, other)
        if found is None:
            return None
        tf1_op, port_op, mine, other = found
        if mine in state.tf1.matched:
            return found if trial.substitution.right and tf1_op.type != port_op.type else None
        before, end = self._tf1.ops.get(op_of(other)), self._tf1.ops.get(op_of(mine))
        if before is None or end is None or end.name not in state.tf1.depth or state.tf1.leads_to([before], end):
            return None
        return found if tf1_op.type == port_op.type else None

    def _steps(self, state: TraceComparison, done: Substitution) -> _Steps:
        """Return what to substitute, one after the other, until more agrees; and the programs then."""
        healed = self._substitutes.healed(state, done)
        if healed is None:
            return [], state
        trial, rest = self._substitutes.in_all_iterations(done, healed)
        end = op_of(trial.ends[0] or "")
        steps: list[tuple[Trial, Divergence]] = []
        now, given = state, done
        while now.tf1.depth.get(end, 0) > 0 and len(steps) < _MOST_STEPS:  # several differences on the way to the end
            step = self._substitutes.step(now, given, of_data=self._trials.is_data_for_constant(trial))
            step = step and self._substitutes.in_all_iterations(given, step)
            if step is None or step[1].diverged >= now.diverged:
                if steps and all(trial.suspects for trial, _ in steps):
                    return steps, now
                break
            steps.append(self._described(now, *step))
            now, given = step[1], given.and_also(step[0].substitution)
            if now.diverged <= rest.diverged:
                return steps, now
        last = self._substitutes.run(given, trial) if steps and all(step.suspects for step, _ in steps) else None
        if last is not None and last.diverged <= rest.diverged:  # these end before it
            left = self._substitutes.in_attributes(now, given, trial.ends, last.diverged) if trial.suspects else None
            return [*steps, self._described(now, *(left or (trial, last)))], last
        return [self._described(state, trial, rest)], rest


def _is_plain(steps: Sequence[tuple[Trial, Divergence]], then: TraceComparison) -> bool:
    """Return whether steps after which the programs agree show what differs: a number, or one op of one program."""
    if len(steps) != 1 or not steps[0][0].words:
        return False
    ((trial, divergence),) = steps
    only = [{*kinds} - PLUMBING - MOVES for kinds in only_in(*divergence.regions)]
    is_named = trial.suspects or trial.exchanged or divergence.iterations or divergence.masking
    is_one_op = sum(map(len, only)) == 1 and not divergence.takes_other
    return not then.differs and bool(is_named or any(divergence.drawing) or is_one_op)


def _of_hyperparameter(
    state: TraceComparison,
    each: AuditedHyperparameter,
    port_op: TracedOp | None,
    count: int,
    tf1_op: TracedOp | None = None,
) -> Divergence:
    """Return the divergence that is a hyperparameter of different values, at the first layer that has it."""
    if tf1_op is None:  # TF1 may compute the layer outside of its scope
        tf1_op = next((op for op in state.tf1.diverged if [*numbers_of(op, each.tf1)]), None)
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


def _confirmed(divergence: Divergence, trial: Trial, *, rest_agrees: bool, outputs_agree: bool = False) -> Divergence:
    """Return a divergence as a trial confirms it, which does so if it has words."""
    words = confirmation(trial.words, rest_agrees=rest_agrees, outputs_agree=outputs_agree)
    return replace(divergence, confirmed=words, rest_agrees=rest_agrees and bool(words))


def _of_term(state: TraceComparison, who: str, op: TracedOp) -> Divergence:
    """Return the divergence that is a term of one program."""
    words = "without this term, the losses agree"
    found = replace(state.divergence(), confirmed=words, term_of=who, leaf=None, attributes={})
    if who == "TF1":
        return replace(found, tf1=op, values=(state.tf1.value(op), None))
    return replace(found, port=op, values=(None, state.port.value(op)))
