"""Substitutes: the trials after which more of two programs agrees.

`Substitutes` runs the port with one trial after the other until it finds such a trial.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from detrand.checkpoints.upstream import op_of
from detrand.validation.diagnosis.candidates import (
    after_more_iterations,
    candidates,
    exchanges,
    hidden_inputs,
    iterations_at,
    of_one_size,
    parts_again,
    parts_in_another_order,
    same_outputs,
    used_alike,
    users,
)
from detrand.validation.diagnosis.matching.comparison import TraceComparison, differing_attributes
from detrand.validation.diagnosis.op_kinds import COMMUTATIVE, MOVES, kind
from detrand.validation.diagnosis.trials import Suspects, Trial, Trials, together
from detrand.validation.frameworks.traces import Substitution, Trace, TracedOp

_MOST_RUNS = 12  # of the port, to find what to substitute for one divergence
_MOST_ALIKE = 3  # ops that may be each other's counterparts
_MOST_AGAIN = 64  # iterations of a loop in Python
_MOST_ATTRIBUTES = 8  # that are set at once

Tried = tuple[Trial, TraceComparison]  # a trial, and the programs then


class Substitutes:
    """The substitutes for what differs in a port; ``done`` is what the port has been given before."""

    def __init__(self, trials: Trials, differing: Collection[str], rtol: float):
        self._trials, self._tf1, self._port = trials, trials.tf1, trials.port
        self._differing, self._rtol = differing, rtol

    def compared(self, port: Trace) -> TraceComparison:
        """Return the programs, given a trace of the port."""
        return TraceComparison(self._tf1, port.of_outputs(self._differing), self._rtol)

    def run(self, done: Substitution, trial: Trial) -> TraceComparison | None:
        """Return the programs after a trial; None if the port cannot be run with it."""
        try:
            return self.compared(self._port.run(done.and_also(trial.substitution)))
        except (ValueError, TypeError):  # values that do not fit
            return None

    def _tried(self, done: Substitution, trials: Iterable[Trial], most: int | None = None) -> Iterator[Tried]:
        """Yield the first trials with which the port can be run, each with the programs then."""
        for trial in itertools.islice(trials, most):
            if (rest := self.run(done, trial)) is not None:
                yield trial, rest

    def healed(self, state: TraceComparison, done: Substitution) -> Tried | None:
        """Return the first trial after which more agrees than what was substituted, and the programs then.

        One after which everything agrees is better: the others may give the port what it has in a form of its own.
        """
        found = self._first_healed(state, done)
        if found is not None and found[0].words and found[1].agree:
            return found
        for trial, rest in self._tried(done, self._trials.swaps(state), _MOST_RUNS):
            if rest.agree:
                return trial, rest
        # Where nothing was found, or parts in an order that may be a cell's own, one op may stand for several of TF1.
        is_sure = found is not None and bool(found[0].words) and not found[0].exchanged
        pairs = () if is_sure else of_one_size(state)
        trials = itertools.islice(self._trials.of_pairs(state, pairs), _MOST_RUNS)
        for trial, rest in self._tried(done, (each for each in trials if each.words)):
            if rest.agree:
                return self.in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        return found

    def _first_healed(self, state: TraceComparison, done: Substitution) -> Tried | None:
        for trial, rest in self._tried(done, map(self._trials.exchange, exchanges(state)), _MOST_ALIKE):
            if _changed_agree(trial, rest):
                return trial, rest
        if in_order := self._with_parts_in_order(state, done):
            return in_order
        after_more = self._trials.of_pairs(state, after_more_iterations(state))
        for trial, rest in self._tried(done, after_more, _MOST_ALIKE):
            if not rest.diverged and iterations_at(state, *trial.ends):
                return trial, rest
        for trial, rest in self._tried(done, self._trials.of_pairs(state, hidden_inputs(state))):
            if not rest.diverged:
                return self.in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        of_output = None  # makes an output agree, and shows nothing
        of_number = None  # gives an array to a single number, and may be half of what differs
        pairs = candidates(state, self._port.edges_of)
        for trial, rest in self._tried(done, self._trials.of_pairs(state, pairs), _MOST_RUNS):
            if not heals(state, rest, trial):
                continue
            if of_number is not None:
                if trial.words and rest.diverged < of_number[1].diverged:
                    return self._in_all_uses(done, trial, rest)
            elif of_output is None:
                found = self.in_attributes(state, done, trial.ends, rest.diverged)
                is_for_number = found is None and trial.words and self._trials.is_data_for_number(trial)
                if is_for_number and _port_computes_more(rest):
                    of_number = trial, rest
                elif found or trial.words:
                    return found or self._in_all_uses(done, trial, rest)
                else:
                    of_output = trial, rest
            elif trial.words and not rest.diverged and _compute_alike(state, trial.ends):
                return trial, rest
        found = of_number or of_output
        return found or self.in_attributes(state, done, (None, None), state.diverged - 1)

    def _with_parts_in_order(self, state: TraceComparison, done: Substitution) -> Tried | None:
        """Return the trial that gives the port the parts of a tensor in TF1's order, after which most agrees.

        TF1's values of the parts make much agree in any order, in a loop above all. So more has to agree than with
        them in the port's own order.
        """
        best: Tried | None = None
        as_before = dict[str, TraceComparison | None]()
        for pairs in itertools.islice(parts_in_another_order(state), _MOST_RUNS):
            if pairs[0][0] not in as_before:
                own = [(state.port.matched[tensor][0], tensor) for _, tensor in pairs]
                as_before[pairs[0][0]] = self.run(done, self._trials.in_order(state, own))
            trial = self._trials.in_order(state, pairs)
            rest, before = self.run(done, trial), as_before[pairs[0][0]]
            most = state.diverged if best is None else best[1].diverged
            agree = rest is not None and _changed_agree(trial, rest)
            if rest is not None and agree and rest.diverged < min(most, before.diverged if before else most):
                best = trial, rest
            if best is not None and not best[1].diverged:
                break
        return None if best is None else self._in_order_again(done, *best)

    def _in_order_again(self, done: Substitution, trial: Trial, rest: TraceComparison) -> Tried:
        """Return a trial that gives the port more parts in TF1's order, where the same line takes them."""
        for _ in range(_MOST_AGAIN if rest.diverged else 0):  # what an iteration takes agrees once the one before does
            others = [self._trials.in_order(rest, pairs) for pairs in parts_again(rest, trial.exchanged)]
            given = _changed(trial)
            others = [each for each in others if given.isdisjoint(_changed(each))]
            substitution = together(each.substitution for each in (trial, *others))
            everywhere = replace(trial, substitution=substitution)
            then = self.run(done, everywhere) if others else None
            if then is None or not _changed_agree(everywhere, then) or then.diverged >= rest.diverged:
                break
            trial, rest = everywhere, then
        return trial, rest

    def _in_all_uses(self, done: Substitution, trial: Trial, rest: TraceComparison) -> Tried:
        """Return a trial for all ops that take a tensor, if more agrees then than with one of them."""
        return self._better(done, self._trials.everywhere(trial) if rest.diverged else None, (trial, rest))

    def in_all_iterations(self, done: Substitution, found: Tried) -> Tried:
        """Return a trial in all iterations of a loop, if still more agrees then."""
        trial, rest = found
        if trial.suspects or trial.exchanged or not trial.words or not rest.diverged:
            return found
        return self._better(done, self._trials.in_all_iterations(trial), found)

    def _better(self, done: Substitution, other: Trial | None, found: Tried) -> Tried:
        """Return another trial with the programs then, if more agrees than after the one that was found."""
        if other is None:
            return found
        then = self.run(done, other)
        return (other, then) if then is not None and then.diverged < found[1].diverged else found

    def step(self, state: TraceComparison, done: Substitution, *, of_data: bool = False) -> Tried | None:
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
        if tf1_op.type == port_op.type and (step := self.in_attributes(state, done, ends, most)):
            return step
        alike = [(tf1_op, port_op)] if is_alike else used_alike(state) if of_data else []
        pairs = (pair for each in alike for pair in same_outputs(state, *each))
        for trial, rest in self._tried(done, self._trials.of_pairs(state, pairs), _MOST_ALIKE):
            # Ops of one type may take different tensors; those of two types that heal nothing are half a difference.
            is_one_op = tf1_op.type == port_op.type and rest.diverged < state.diverged
            if is_one_op or heals(state, rest, trial):
                return self.in_attributes(state, done, trial.ends, rest.diverged) or (trial, rest)
        return None

    def in_attributes(
        self, state: TraceComparison, done: Substitution, ends: tuple[str | None, str | None], most: int
    ) -> Tried | None:
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
            shows = best is not None and (not best[1].diverged or len(best[1].tf1.diverged) < len(state.tf1.diverged))
            best = best if best is not None and shows and best[1].diverged <= most else None
            limit = most if best is None else best[1].diverged - 1
            before = state if best is None else best[1]
            in_all = self._set_in_all(state, done, ends, suspects)
            keeps = in_all is not None and before.tf1.matched.keys() <= in_all[1].tf1.matched.keys()
            if in_all is not None and keeps and in_all[1].diverged <= limit:
                best = in_all
            if best is not None and (kind(suspects[0]) not in MOVES or _heals_more(state, best[1], suspects)):
                return best
        return self._in_all_attributes(done, ends, most, differing)

    def _set_in_all(
        self,
        state: TraceComparison,
        done: Substitution,
        ends: tuple[str | None, str | None],
        suspects: Suspects,
    ) -> Tried | None:
        """Return a trial that sets an attribute in all ops of the port that may differ as a suspect does.

        The counterpart of an op has TF1's value of the attribute; an op of which it is not known agrees then.
        """
        tf1_op, port_op, name = suspects
        pairs = [
            (op, state.counterparts(op))
            for op in self._trials.all_ops
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
        suspects: Suspects,
        ops: Sequence[TracedOp],
    ) -> Tried | None:
        """Return a trial that sets an attribute or a constant in some ops, and the programs then."""
        trial = self._trials.with_attribute(ends, suspects, ops)
        rest = None if trial is None else self.run(done, trial)
        return None if trial is None or rest is None else (trial, rest)

    def _in_all_attributes(
        self, done: Substitution, ends: tuple[str | None, str | None], most: int, differing: Sequence[Suspects]
    ) -> Tried | None:
        """Return a trial that sets several attributes and constants at once, as the two of a dropout in a loop."""
        found = (self._trials.with_attribute(ends, suspects, [suspects[1]]) for suspects in differing)
        known = [trial for trial in found if trial is not None]
        if not 1 < len(known) <= _MOST_ATTRIBUTES:
            return None
        rest = self.run(done, self._trials.with_attributes(known))
        if rest is None or rest.diverged > most:
            return None
        for each in known:  # which of them are needed
            fewer = [other for other in known if other is not each]
            without = self.run(done, self._trials.with_attributes(fewer)) if fewer else None
            if without is not None and without.diverged <= rest.diverged:
                known, rest = fewer, without
        return self._trials.with_attributes(known), rest


def heals(state: TraceComparison, rest: TraceComparison, trial: Trial) -> bool:
    """Return whether tensors after the substitute agree that did not agree before, besides copies and equals of it."""
    if not rest.diverged:
        return True
    for before, after, end in zip((state.tf1, state.port), (rest.tf1, rest.port), trial.ends, strict=True):
        given = {op.name for op in (*before.region(end), *before.copies(end), *before.equal_ops(end))}
        if len(before.diverged) - len(after.diverged) > sum(op.name in given for op in before.diverged):
            return True
    return False


def _heals_more(state: TraceComparison, rest: TraceComparison, suspects: Suspects) -> bool:
    """Return whether TF1's op agrees now, and others besides those that hold the same numbers as the two ops.

    Two slices of one array agree in any case where they have the same bounds.
    """
    if not rest.diverged:
        return True
    if any(op.name == suspects[0].name for op in rest.tf1.diverged):
        return False
    for before, after, op in zip((state.tf1, state.port), (rest.tf1, rest.port), suspects[:2], strict=True):
        end = next(iter(before.trace.values_of(op)), None)
        own = {each.name for each in (op, *before.copies(end), *before.equal_ops(end))}
        if {each.name for each in before.diverged} - {each.name for each in after.diverged} - own:
            return True
    return False


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


def _aligned(tf1: TracedOp, port: TracedOp) -> TracedOp:
    """Return TF1's op with its constant as the input that is the port's constant, if the order does not matter."""
    of_tf1, of_port = ([name for name in op.attributes if name.startswith("input ")] for op in (tf1, port))
    if tf1.type not in COMMUTATIVE or len(of_tf1) != 1 or len(of_port) != 1:
        return tf1
    return replace(tf1, attributes={{of_tf1[0]: of_port[0]}.get(name, name): v for name, v in tf1.attributes.items()})


def _changed(trial: Trial) -> set[str]:
    """Return the names of the port's ops that a trial gives something to."""
    return {name for name, _ in trial.substitution.edges}


def _changed_agree(trial: Trial, rest: TraceComparison) -> bool:
    """Return whether the ops that a trial gives something to have a counterpart."""
    return _changed(trial).isdisjoint(op.name for op in rest.port.diverged)
