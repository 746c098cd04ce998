"""Trials: the substitutes that may make the rest of two programs agree.

`Trials` makes them of what differs: pairs of tensors, parts in a different order, attributes, constants and
hyperparameters. `substitutes` runs the port with them.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detrand.arguments import and_more
from detrand.checkpoints.upstream import op_of
from detrand.validation.audit.hyperparameters import RATE
from detrand.validation.diagnosis.candidates import Crossing, Pair, is_copy, iterations, taken_tensors
from detrand.validation.diagnosis.matching.comparison import TraceComparison, differing_attributes
from detrand.validation.diagnosis.op_kinds import is_in, kind
from detrand.validation.frameworks.traces import IN_FUNCTION, NOTHING, Edge, Substitution, Trace, TracedOp, TracedPort
from detrand.validation.results import AuditedHyperparameter

_MOST_SHOWN = 4
_NEARLY = 1e-5  # relative: how far rounding to float32 moves what a few ops compute
_NUMBER, _OF_TEXT = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?"), 1e-5  # a number, and how exact it is as text


# An op of TF1 and an op of the port, and the attribute or constant in which they differ.
Suspects = tuple[TracedOp, TracedOp, str]


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
    suspects: Suspects | None = None
    edge: Edge | None = None
    hyperparameter: AuditedHyperparameter | None = None
    depth: int = 0
    exchanged: tuple[tuple[str, str], ...] = ()


def together(substitutions: Iterable[Substitution]) -> Substitution:
    """Return several substitutions in one."""
    return functools.reduce(Substitution.and_also, substitutions, NOTHING)


class Trials:
    """The trials of a port.

    Attributes:
      tf1: the trace of TF1.
      port: the port.
      all_ops: the port's ops, and those of the functions that they call.
    """

    def __init__(self, tf1: Trace, port: TracedPort, inputs: Mapping[str, np.ndarray]):
        self.tf1, self.port, self._inputs = tf1, port, inputs
        self.all_ops = [inner for op in port.ops.values() for inner in op.with_body]

    def of_hyperparameters(self, hyperparameters: Sequence[AuditedHyperparameter]) -> Iterator[Trial]:
        """Yield trials that set a hyperparameter, wherever a number of its layers is the port's value, to TF1's."""
        alike = defaultdict(list)
        for each in hyperparameters:
            alike[each.name, each.tf1, each.port].append(each)
        for (name, tf1_value, port_value), group in alike.items():
            found: dict[str, list[tuple[TracedOp, Substitution]]] = {}
            values = [(port_value, tf1_value), *_factors(name, port_value, tf1_value)]
            for each in group:
                layers = {each.of, *self.port.layers_of(each.of)}
                numbers = [
                    (op, what, value)
                    for op in self.all_ops
                    for number, value in values
                    for what in numbers_of(op, number)
                    if is_in(op, layers)
                ]
                sets = [(op, self.set_in([op], what, value)) for op, what, value in numbers]
                found[each.of] = [(op, substitution) for op, substitution in sets if substitution is not None]
            set_in = {of: pairs for of, pairs in found.items() if pairs}
            if not set_in:
                continue
            of, pairs = next(iter(set_in.items()))
            places = [op for op in self.tf1.ops.values() if [*numbers_of(op, tf1_value)] and is_in(op, {of})]
            suspects = (places[0], pairs[0][0], "") if places else None
            every = [substitution for of_layer in set_in.values() for _, substitution in of_layer]
            here = "here" if len(set_in) == 1 else f"in all {len(set_in)} layers"
            words = f"with TF1's {name} {here}"
            audited = replace(group[0], of=of)
            yield Trial(together(every), (None, None), words, len(set_in), suspects, hyperparameter=audited)

    def again(self, state: TraceComparison, known: Trial) -> Iterator[Trial]:
        """Yield a known trial for the ops that the programs have now."""
        if known.suspects is None:
            tf1_tensor, port_tensor = (each or "" for each in known.ends)
            is_there = op_of(tf1_tensor) in state.tf1.trace.ops and op_of(port_tensor) in self.port.ops
            # One that is farther away would hide what comes before it.
            if is_there and state.tf1.depth.get(op_of(tf1_tensor), 0) <= known.depth:
                is_taken = known.edge in self.port.edges_of(port_tensor)  # a dropout may come in between
                yield from self.of_pairs(state, [(tf1_tensor, port_tensor, known.edge if is_taken else None)])
            return
        *names, name = known.suspects[0].name, known.suspects[1].name, known.suspects[2]
        of_tf1 = [inner for op in state.tf1.trace.ops.values() for inner in op.with_body if inner.name == names[0]]
        of_port = [op for op in self.all_ops if op.name == names[1]]
        if of_tf1 and of_port and name in differing_attributes(of_tf1[0], of_port[0]):
            yield replace(known, suspects=(of_tf1[0], of_port[0], name))

    def exchange(self, crossings: tuple[Crossing, Crossing]) -> Trial:
        """Return the trial that exchanges what two ops of the port take, in all iterations of a loop in Python."""
        edges, right = dict[Edge, np.ndarray](), set[str]()
        for each in crossings:
            position = each.tf1.inputs.index(each.tensor)
            again = iterations(self.tf1.ops, self.port.ops, each.tf1.name, each.port.name)
            for tf1_op, port_op in [(each.tf1.name, each.port.name), *again]:
                given, tensor = self.tf1.ops[tf1_op].inputs[position], self.port.ops[port_op].inputs[each.number]
                if (array := self._array(given)) is not None:
                    edges[port_op, each.number] = self.port.fitted(array, tensor)
                    right.add(tensor)
        first = crossings[0]
        return Trial(
            Substitution(edges, right=frozenset(right)),
            (first.tensor, first.other),
            "with the two exchanged",
            edge=(first.port.name, first.number),
            exchanged=((first.tensor, first.other),),
        )

    def swaps(self, state: TraceComparison) -> Iterator[Trial]:
        """Yield trials that exchange two tensors of one shape wherever the port takes them, as the states of a cell."""
        taken = taken_tensors(state)
        arrays = {name: (state.port.matched[name][0], self._array(state.port.matched[name][0])) for name in taken}
        pairs = itertools.combinations(arrays, 2)
        for one, other in sorted(pairs, key=lambda pair: is_copy(self.port.ops, *map(op_of, pair))):
            (_, of_one), (tf1_tensor, of_other) = arrays[one], arrays[other]
            if of_one is None or of_other is None or of_one.shape != of_other.shape or np.array_equal(of_one, of_other):
                continue
            edges = dict.fromkeys(taken[one], self.port.fitted(of_other, one))
            edges |= dict.fromkeys(taken[other], self.port.fitted(of_one, other))
            yield Trial(
                Substitution(edges, right=frozenset([one, other])),
                (tf1_tensor, one),
                "with the two exchanged",
                edge=taken[one][0],
                exchanged=((tf1_tensor, one),),
            )

    def in_order(self, state: TraceComparison, pairs: Sequence[tuple[str, str]]) -> Trial:
        """Return the trial that gives the port the parts of a tensor in TF1's order, in all iterations of a loop."""
        edges, right = dict[Edge, np.ndarray](), set[str]()
        moved = [pair for pair in pairs if pair[0] not in state.port.matched[pair[1]]]
        for tf1_tensor, port_tensor in moved or pairs:
            names = op_of(tf1_tensor), op_of(port_tensor)
            suffixes = [each.removeprefix(name) for each, name in zip((tf1_tensor, port_tensor), names, strict=True)]
            for tf1_op, port_op in [names, *iterations(self.tf1.ops, self.port.ops, *names)]:
                value, tensor = self.tf1.values.get(tf1_op + suffixes[0]), port_op + suffixes[1]
                if value is not None and value.array is not None:
                    edges |= dict.fromkeys(self.port.edges_of(tensor), self.port.fitted(value.array, tensor))
                    right.add(tensor)
        words = "with the parts in TF1's order"
        substitution, first = Substitution(edges, right=frozenset(right)), next(iter(edges), None)
        return Trial(substitution, pairs[0], words, edge=first, exchanged=tuple(pairs))

    def of_pairs(self, state: TraceComparison, pairs: Iterable[Pair]) -> Iterator[Trial]:
        """Yield the substitutes that pairs of tensors stand for, each once."""
        seen = set()
        for tf1_tensor, port_tensor, edge in pairs:
            if (tf1_tensor, port_tensor, edge) in seen:
                continue
            seen.add((tf1_tensor, port_tensor, edge))
            value = self.tf1.values.get(tf1_tensor)
            if value is None or value.array is None:  # a golden file keeps a part of it
                continue
            if (value.dtype.kind == "b") != (self.port.dtype(port_tensor).kind == "b"):
                continue
            array = self.port.fitted(value.array, port_tensor)
            is_right = edge is not None and port_tensor in state.port.matched
            edges = [edge] if edge is not None and is_right else self.port.edges_of(port_tensor)
            paths = [] if is_right else self.port.paths_of(port_tensor)
            right = frozenset([port_tensor] if is_right else [])
            # A substitute for an output makes it agree in any case. That shows something only right at the divergence.
            is_first = not state.tf1.depth.get(op_of(tf1_tensor), 0) and not state.port.depth.get(op_of(port_tensor), 0)
            yield Trial(
                Substitution(dict.fromkeys(edges, array), outputs=dict.fromkeys(paths, array), right=right),
                (tf1_tensor, port_tensor),
                "with TF1's value here" if is_first or not paths else "",
                edge=edge,
            )

    def set_in(
        self, ops: Sequence[TracedOp], name: str, text: str, array: np.ndarray | None = None
    ) -> Substitution | None:
        """Return the substitution of an attribute, or of a constant input, in ops of the port.

        The array of a constant may be left out if it is one number.
        """
        of, _, what = name.partition(" ")
        if of == "input" and any(IN_FUNCTION in op.name for op in ops):
            return Substitution(attributes={f"{op.name}:{what}": {"value": text} for op in ops})
        if of == "attribute":
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
            edges[op.name, int(what)] = array.reshape(shape).astype(self.port.dtype(op.inputs[int(what)]))
        return Substitution(edges=edges)

    def with_attribute(
        self, ends: tuple[str | None, str | None], suspects: Suspects, ops: Sequence[TracedOp]
    ) -> Trial | None:
        """Return the trial that sets an attribute or a constant in some ops; None if it cannot be set."""
        tf1_op, _, name = suspects
        substitution = self.set_in(ops, name, tf1_op.attributes[name], tf1_op.constants.get(name))
        if substitution is None:
            return None
        here = "here" if len(ops) == 1 else f"in all {len(ops)} of them"
        words = f"with TF1's {name.removeprefix('attribute ')} {here}"
        return Trial(substitution, ends, words, len(ops), suspects)

    def with_attributes(self, trials: Sequence[Trial]) -> Trial:
        """Return several trials, each of an attribute or a constant in one op, as one."""
        names = dict.fromkeys(each.suspects[2].removeprefix("attribute ") for each in trials if each.suspects)
        words = f"with TF1's {and_more(list(names), _MOST_SHOWN)} here"
        return replace(trials[0], substitution=together(each.substitution for each in trials), words=words)

    def everywhere(self, trial: Trial) -> Trial | None:
        """Return a trial of one op that takes a tensor for all ops that do; None if it is for all of them."""
        tensor = trial.ends[1]
        if trial.edge is None or trial.edge not in trial.substitution.edges or tensor is None:
            return None
        array = trial.substitution.edges[trial.edge]
        return replace(trial, substitution=Substitution(dict.fromkeys(self.port.edges_of(tensor), array)), edge=None)

    def in_all_iterations(self, trial: Trial) -> Trial | None:
        """Return a trial for all iterations of a loop; None if it is in no loop."""
        edges, right = dict(trial.substitution.edges), set(trial.substitution.right)
        port_tensor = trial.ends[1] or ""
        for tf1_tensor, port_op in self._in_iterations(trial):
            value = self.tf1.values.get(tf1_tensor)
            tensor = port_op + port_tensor.removeprefix(op_of(port_tensor))
            if trial.edge is not None:
                tensor = self.port.ops[port_op].inputs[trial.edge[1]]
            if value is not None and value.array is not None:
                array = self.port.fitted(value.array, tensor)
                to_edges = self.port.edges_of(tensor) if trial.edge is None else [(port_op, trial.edge[1])]
                edges |= dict.fromkeys(to_edges, array)
                right |= {tensor} if right else set()
        if len(edges) == len(trial.substitution.edges):
            return None
        words = trial.words.replace("here", "in all iterations")
        substitution = replace(trial.substitution, edges=edges, right=frozenset(right))
        return replace(trial, substitution=substitution, words=words)

    def _in_iterations(self, trial: Trial) -> list[tuple[str, str]]:
        """Return TF1's tensors in all iterations of a loop, and the ops that compute or take the port's there."""
        tf1_tensor, port_tensor = (each or "" for each in trial.ends)
        to = op_of(port_tensor) if trial.edge is None else trial.edge[0]
        name = op_of(tf1_tensor)
        pairs = iterations(self.tf1.ops, self.port.ops, name, to)
        if pairs or trial.edge is None:
            return [(tf1_op + tf1_tensor.removeprefix(name), port_op) for tf1_op, port_op in pairs]
        takers = [op for op in self.tf1.ops.values() if tf1_tensor in op.inputs]  # in the next iteration, as a state
        return [
            (self.tf1.ops[tf1_op].inputs[taker.inputs.index(tf1_tensor)], port_op)
            for taker in takers
            for tf1_op, port_op in iterations(self.tf1.ops, self.port.ops, taker.name, to)
        ]

    def _array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor or an input of TF1 holds; None if a golden file keeps a part of it."""
        value = self.tf1.values.get(tensor)
        return self._inputs.get(tensor) if value is None else value.array

    def constants(self, trial: Trial) -> tuple[np.ndarray, np.ndarray] | None:
        """Return TF1's array and the port's, if the port's is a constant, or its op takes a constant there."""
        if trial.suspects is not None:
            tf1_op, port_op, name = trial.suspects
            pairs = [(tf1_op.constants.get(name), port_op.constants.get(name))]
        else:
            names = [trial.ends]
            ends = self.tf1.ops.get(op_of(trial.ends[0] or "")), self.port.ops.get(op_of(trial.ends[1] or ""))
            if ends[0] is not None and ends[1] is not None and kind(ends[0]) == kind(ends[1]):
                names += zip(ends[0].inputs, ends[1].inputs, strict=False)
            values = [(None if tf1 is None else self.tf1.values.get(tf1), port) for tf1, port in names]
            pairs = [
                (None if value is None else value.array, self.port.constant(port))
                for value, port in values
                if port is not None
            ]
        known = [(tf1, port) for tf1, port in pairs if tf1 is not None and port is not None]
        return next((pair for pair in known if pair[0].size == pair[1].size), None)

    def is_rounding(self, trial: Trial) -> bool:
        """Return whether TF1's numbers, which a trial gives to the port, are nearly the constant that the port has."""
        if trial.suspects is not None:
            tf1_op, port_op, name = trial.suspects
            array, constant = tf1_op.constants.get(name), port_op.constants.get(name)
        elif trial.ends[0] is None or trial.ends[1] is None:  # a hyperparameter
            return False
        else:
            value, constant = self.tf1.values.get(trial.ends[0]), self.port.constant(trial.ends[1])
            array = None if value is None else value.array
        if array is None or constant is None or constant.shape != array.shape[max(array.ndim - constant.ndim, 0) :]:
            return False
        if {array.dtype.kind, constant.dtype.kind} != {"f"} or not np.isfinite(array).all():
            return False
        near_zero = _NEARLY * min(np.abs(array).max(initial=0), 1.0)  # a mask may have -1e9
        return np.allclose(array, constant, rtol=_NEARLY, atol=near_zero)

    def is_data_for_constant(self, trial: Trial) -> bool:
        """Return whether a number of the port gets what TF1 computes from data, which hides what differs there."""
        ends = [end or "" for end in trial.ends]
        given = self.tf1.ops.get(op_of(ends[0])) if trial.suspects is None else None
        is_number = given is not None and self.port.constant(ends[1]) is not None
        return is_number and given is not None and bool(self.tf1.inputs_of([given]))

    def is_data_for_number(self, trial: Trial) -> bool:
        """Return whether a single number of the port gets an array that TF1 computes from data."""
        constant = self.port.constant(trial.ends[1] or "") if self.is_data_for_constant(trial) else None
        value = self.tf1.values.get(trial.ends[0] or "")
        return constant is not None and value is not None and constant.size == 1 < value.size


def _factors(name: str, port: str, tf1: str) -> list[tuple[str, str]]:
    """Return the factors by which dropouts with two rates multiply what they keep, as texts; none for other names."""
    try:
        rates = [float(each) for each in (port, tf1)] if name == RATE else []
    except ValueError:
        rates = []
    factors = [f"{1 / (1 - rate):.9g}" for rate in rates if 0 < rate < 1]
    return [(factors[0], factors[1])] if len(factors) == 2 else []


def numbers_of(op: TracedOp, text: str) -> Iterator[str]:
    """Yield the attributes and constant inputs of an op that are a number."""
    try:
        number = float(text)
        found = {name: float(value) for name, value in op.attributes.items() if _NUMBER.fullmatch(value)}
    except ValueError:
        return
    yield from (name for name, value in found.items() if math.isclose(value, number, rel_tol=_OF_TEXT))
