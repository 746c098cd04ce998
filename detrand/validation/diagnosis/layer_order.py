"""Layers that two programs compute in different orders, such as a normalization before an attention or after it.

`differing_order` finds them by which layer each program computes from which. It compares no numbers, because every
number after such a layer differs.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from detrand.checkpoints.upstream import op_of
from detrand.validation.audit.hyperparameters import layer_of
from detrand.validation.diagnosis.op_kinds import PLUMBING, kind
from detrand.validation.frameworks.traces import Trace, TracedOp

_ADDED = {"AddV2", "GatherV2"}  # kinds of ops by which rows of tables are added up


class LayerOrder(NamedTuple):
    """Layers of which one program computes some before others, and the other program after them.

    Attributes:
      first: the layers that TF1 computes first, named as those of their variables, or as a dropout.
      then: the layers that TF1 computes from these.
      moved: how many layers are not in TF1's place.
      places: where TF1 and the port compute the first of these.
      ops: the names of the ops of TF1, and of the port, from one of the layers to the other.
    """

    first: tuple[str, ...]
    then: tuple[str, ...]
    moved: int
    places: tuple[TracedOp, TracedOp]
    ops: tuple[frozenset[str], frozenset[str]]


def differing_order(tf1: Trace, port: Trace, matched: Mapping[str, Sequence[str]]) -> LayerOrder | None:
    """Return the layers that two programs compute in different orders; None if there are none.

    A layer is where a variable, or a random tensor, meets data. A layer comes before another layer if the second one is
    computed from the first one but not vice versa, as in a loop. ``matched`` holds the counterparts of TF1's tensors.
    """
    meetings = [_where_layers_meet_data(trace, name_of) for trace, name_of in _names_of_layers(tf1, port, matched)]
    ways = [_Ways(trace, meets) for trace, meets in zip((tf1, port), meetings, strict=True)]
    names = [name for name in meetings[0] if name in meetings[1]]
    turned = [(a, b) for a, b in itertools.permutations(names, 2) if ways[0].leads(a, b) and ways[1].leads(b, a)]
    if not turned:
        return None
    layer = _layers({*itertools.chain.from_iterable(turned)}, meetings[0], {*tf1.reads.values()})
    pairs = list(dict.fromkeys((layer[a], layer[b]) for a, b in turned))
    moved, left = list[str](), pairs
    while left:
        ((most, _),) = Counter(itertools.chain.from_iterable(left)).most_common(1)
        moved.append(most)
        left = [pair for pair in left if most not in pair]
    one = min(moved, key=[*layer.values()].index)
    then = [b for a, b in pairs if a == one]
    first = [one] if then else [a for a, b in pairs if b == one]
    ops = ways[0].between(turned), ways[1].between(turned)
    if {kind(tf1.ops[name]) for name in ops[0]} - PLUMBING <= _ADDED:  # a sum may have any order
        return None
    name = next(name for name, its in layer.items() if its == one)
    places = tf1.ops[meetings[0][name][0]], port.ops[meetings[1][name][0]]
    return LayerOrder((*first,), (*(then or [one]),), len(moved), places, ops)


def _names_of_layers(
    tf1: Trace, port: Trace, matched: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Trace, dict[str, str]]]:
    """Yield each program with TF1's names of the variables and random tensors, by the names of the program's ops."""
    drawn = {op.name for op in tf1.ops.values() if "Random" in op.type}
    pairs = ((op_of(name), op_of(other)) for name, others in matched.items() for other in others)
    of_port = {other: name for name, other in pairs if name in drawn}
    yield tf1, {**tf1.reads, **{name: name for name in of_port.values()}}
    yield port, {**port.reads, **of_port}


def _where_layers_meet_data(trace: Trace, name_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the ops, in order, at which what layers are known by meets what is computed from inputs, by name."""
    from_data, holding = {*trace.inputs}, {name: {each} for name, each in name_of.items()}
    found = defaultdict[str, list[str]](list)
    for name, op in trace.ops.items():
        held = set[str]().union(holding.get(name, ()), *(holding.get(each, ()) for each in op.sources))
        if not from_data.isdisjoint(op.sources) or name in from_data:
            from_data.add(name)
            for each in held:
                found[each].append(name)
        elif held:
            holding[name] = held
    return found


class _Ways:
    """The ways through a program from one layer to another. A set of layers is a number that has a bit for each.

    Args:
      trace: the program.
      meets: the ops at which layers meet data, by the names of the layers.
    """

    def __init__(self, trace: Trace, meets: Mapping[str, Sequence[str]]):
        self._bits = {name: 1 << number for number, name in enumerate(meets)}
        own = defaultdict[str, int](int)
        for layer, names in meets.items():
            for name in names:
                own[name] |= self._bits[layer]
        self._after, self._before = dict[str, int](), dict.fromkeys(trace.ops, 0)
        for name, op in trace.ops.items():  # the layers that an op is computed from
            sources = (self._after.get(source, 0) for source in op.sources)
            self._after[name] = functools.reduce(operator.or_, sources, own[name])
        for name, op in reversed(trace.ops.items()):  # the layers that are computed from an op
            self._before[name] |= own[name]
            for source in op.sources:
                self._before[source] = self._before.get(source, 0) | self._before[name]
        self._needed = {
            layer: functools.reduce(operator.or_, (self._after[name] for name in names))
            for layer, names in meets.items()
        }

    def leads(self, start: str, end: str) -> bool:
        """Return whether the end is computed from the start, but not the start from the end."""
        return bool(self._needed[end] & self._bits[start]) and not self._needed[start] & self._bits[end]

    def between(self, pairs: Sequence[tuple[str, str]]) -> frozenset[str]:
        """Return the ops on the way between two layers of a pair, in either order, with those where they meet data."""
        others = defaultdict[int, int](int)
        for first, second in pairs:
            others[self._bits[first]] |= self._bits[second]
            others[self._bits[second]] |= self._bits[first]
        return frozenset(
            name
            for name, after in self._after.items()
            if any(after & one and self._before[name] & of_one for one, of_one in others.items())
        )


def _layers(names: Collection[str], meets: Mapping[str, Sequence[str]], variables: Collection[str]) -> dict[str, str]:
    """Return what to call the layers of variables and draws, in the order of the computation.

    A variable has its own name if others of its layer are not among the names.
    """
    found = {}
    for name in meets:
        if name in names:
            layer = layer_of(name)
            is_whole = all(other in names for other in meets if layer_of(other) == layer)
            found[name] = (layer if is_whole else name) if name in variables else layer_of(meets[name][0])
    return found
