"""The counterparts of a port's random ops in TF1: the ops whose numbers they draw."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from detrand.checkpoints.upstream import all_upstream, input_ops, op_of
from detrand.packages import tf
from detrand.random_op_diff import pair_in_any_order
from detrand.seeding.streams import RandomOp
from detrand.validation.frameworks.traces import INPUT, TracedPort

LOOPS = ("While", "StatelessWhile")

Position = tuple[str, ...]  # the TF1 names of the variables before the place where random numbers are used


def op_seeds_of_counterparts(
    tf1: Sequence[RandomOp],
    port: Sequence[RandomOp],
    *,
    initializes: bool = False,
    positions: tuple[Mapping[int, Position], Sequence[Position | None]] = ({}, ()),
    unused: tuple[Collection[int], Collection[int]] = ((), ()),
    in_loops: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the op seeds with which each of the port's ops draws what its counterpart in TF1 draws.

    Ops of one kind are paired where their positions are equal, then in order. An op without a counterpart gets an op
    seed that no op of TF1 has; so does one that draws nothing, such as a dropout with rate 0. TF1's ops that initialize
    variables have no counterpart, unless the port ``initializes`` weights that are no variables of its own.

    The positions of TF1's ops are given by op seed, and those of the port's ops in order, as far as they are known.
    The ``unused`` ops have no counterparts: TF1's by op seed, and the port's by their place in the order.

    An op of TF1 that is in a loop draws in each iteration. Several ops of a port, which has written out the iterations,
    are its counterparts, and get its op seed: the first one draws what it draws in the first iteration, and so on.
    """
    ops = controlled(port)
    idle = {ops[place] for place in unused[1] if place < len(ops)}
    position_of = dict(zip(ops, positions[1], strict=False))
    op_seeds: dict[RandomOp, int] = {}

    def pair(of_tf1: Iterable[RandomOp], of_port: Iterable[RandomOp], any_dtype: bool = False) -> None:
        taken = {*op_seeds.values(), *unused[0]}
        left = [op for op in of_tf1 if op.op_type and op.op_seed not in taken]
        others = [
            op
            for op in of_port
            if op.op_type and op not in op_seeds and op not in idle and (initializes or op.phase != "init")
        ]
        kinds = ([replace(op, dtype="") if any_dtype else op for op in each] for each in (left, others))
        op_seeds.update((others[j], left[i].op_seed or 0) for i, j in pair_in_any_order(*kinds))

    for phase in ("compute", "init") if initializes else ("compute",):
        of_phase = [op for op in controlled(tf1) if op.phase == phase]
        for position in dict.fromkeys(positions[0].values()):
            at_position = [op for op in of_phase if positions[0].get(op.op_seed or 0) == position]
            pair(at_position, [op for op in ops if position_of.get(op) == position])
        pair(of_phase, ops)
        pair(of_phase, ops, any_dtype=True)  # a category may be an int32 or an int64
    if in_loops:
        used = [op for op in ops if op not in idle and op.op_type and op.phase != "init"]
        op_seeds |= _of_iterations(
            controlled(tf1), used, (positions[0], position_of), frozenset(in_loops) - set(unused[0])
        )
    fresh = itertools.count(1 + max((op.op_seed or 0 for op in controlled(tf1)), default=-1))
    return tuple(op_seeds[op] if op in op_seeds else next(fresh) for op in ops)


def _of_iterations(
    tf1: Iterable[RandomOp],
    port: Iterable[RandomOp],
    positions: tuple[Mapping[int, Position], Mapping[RandomOp, Position | None]],
    in_loops: frozenset[int],
) -> dict[RandomOp, int]:
    """Return the op seeds of the ops of a port that has written out the iterations of TF1's loops.

    Ops of one kind are distinguished by their positions, where those of TF1's loops are known, and by their order.
    """
    found: dict[RandomOp, int] = {}
    kind_of = operator.attrgetter("op_type", "shape")
    for kind in {kind_of(op): None for op in tf1 if op.op_seed in in_loops}:
        of_tf1 = [op.op_seed or 0 for op in tf1 if kind_of(op) == kind and op.phase != "init"]
        of_port = [op for op in port if kind_of(op) == kind]
        are_known = any(positions[1].values()) and in_loops.intersection(of_tf1) <= positions[0].keys()
        at = positions[0] if are_known else {}
        for position in {at.get(op_seed): None for op_seed in of_tf1}:
            here = [op_seed for op_seed in of_tf1 if at.get(op_seed) == position]
            ops = [op for op in of_port if not at or positions[1].get(op) == position]
            looped = len(in_loops.intersection(here))
            iterations, rest = divmod(len(ops) - len(here) + looped, looped) if looped else (0, 0)
            lines = {op.caller: [each for each in ops if each.caller == op.caller] for op in ops}
            if iterations > 1 and looped == len(here) == len(lines):  # in a loop for each, perhaps
                found.update((op, op_seed) for op_seed, of in zip(here, lines.values(), strict=True) for op in of)
            elif iterations > 1 and not rest:
                blocks = (list(block) for _, block in itertools.groupby(here, in_loops.__contains__))
                in_turn = (block * (iterations if block[0] in in_loops else 1) for block in blocks)
                found.update(zip(ops, itertools.chain.from_iterable(in_turn), strict=True))
    return found


def are_ambiguous(*programs: Sequence[RandomOp]) -> bool:
    """Return whether a program computes with several random ops of one kind, which differ by their positions only."""
    counts = [
        Counter((op.op_type, op.shape) for op in controlled(ops) if op.op_type and op.phase != "init")
        for ops in programs
    ]
    return any(count > 1 for each in counts for count in each.values())


class _Node(NamedTuple):
    """An op of a program, as the search for positions sees it.

    Attributes:
      name: its name.
      sources: the names of the ops that it takes.
      variables: the TF1 names of the variables that it is; None if it is none.
      is_input: whether it is an input of the program.
      draw: which random op it is; None if it draws nothing.
      inside: returns the positions of the random ops in its functions, given the variables upstream of its sources.
    """

    name: str
    sources: Sequence[str]
    variables: Sequence[str] | None
    is_input: bool
    draw: int | None
    inside: Callable[[Sequence[Sequence[str]]], Mapping[int, Position]] | None = None


def positions_in(graph: tf.Graph, variables: Mapping[str, Sequence[str]]) -> dict[int, Position]:
    """Return the positions of the random ops of a graph by op seed, given the names of variables by their ops.

    Random numbers are used where they meet numbers that come from a variable or an input. The position is the variables
    upstream of that op; in a loop, those before the first iteration.
    """

    def node_of(op: tf.Operation) -> _Node:
        sources = [source.name for source in input_ops(op)]
        draw = op.get_attr("seed2") if sources and has_op_seed(op) else None
        inside = functools.partial(_positions_in_loop, op) if op.type in LOOPS else None
        return _Node(op.name, sources, variables.get(op.name), op.type == "Placeholder", draw, inside)

    return _positions(map(node_of, graph.get_operations()))


def _positions_in_loop(op: tf.Operation, upstream: Sequence[Sequence[str]]) -> dict[int, Position]:
    from detrand._patching.graphs import function_graphs

    found: dict[int, Position] = {}
    for body in function_graphs(op):
        names = {tensor.op.name: each for tensor, each in zip(body.inputs, upstream, strict=False)}
        found = {**positions_in(body, names), **found}
    return found


def positions_in_trace(
    port: TracedPort, variables: Mapping[str, Sequence[str]]
) -> tuple[list[Position | None], list[int]]:
    """Return the positions of the random ops that a port traces, in order, and the places of those that nothing uses.

    Given are the TF1 names of variables by the ops that read them; see `positions_in`.
    """
    draws = {name: number for number, name in enumerate(each for each, op in port.ops.items() if "Random" in op.type)}
    found = _positions(
        _Node(name, op.sources, variables.get(name), op.type == INPUT, draws.get(name)) for name, op in port.ops.items()
    )
    used = all_upstream(map(op_of, port.outputs.values()), lambda name: port.ops[name].sources)
    return [found.get(number) for number in draws.values()], [draws[name] for name in draws if name not in used]


def _positions(nodes: Iterable[_Node]) -> dict[int, Position]:
    upstream: dict[str, frozenset[str]] = {}
    is_data: set[str] = set()
    unused: dict[str, frozenset[int]] = {}  # the random numbers that an op is computed from, and that are not used yet
    found: dict[int, Position] = {}
    for node in nodes:
        of_sources = [upstream.get(each, frozenset[str]()) for each in node.sources]
        upstream[node.name] = frozenset(node.variables or ()).union(*of_sources)
        if node.draw is not None:
            unused[node.name] = frozenset([node.draw])
            continue
        drawn = frozenset[int]().union(*(unused.get(source, ()) for source in node.sources))
        if node.variables is not None or node.is_input or not is_data.isdisjoint(node.sources):
            is_data.add(node.name)
            position = tuple(sorted(upstream[node.name]))
            found.update((draw, position) for draw in drawn if draw not in found)
        elif drawn:
            unused[node.name] = drawn
        if node.inside is not None:
            found = {**node.inside([sorted(each) for each in of_sources]), **found}
    return found


def unused_in(graph: tf.Graph, run: Iterable[tf.Operation]) -> set[int]:
    """Return the op seeds of a graph's random ops that no op that is run depends on."""
    used = all_upstream(run, lambda op: [*input_ops(op), *op.control_inputs])
    every, of_run = (
        _op_seeds([*ops, *(op for called in ops for op in _ops_in_functions(called))])
        for ops in (graph.get_operations(), used)
    )
    return every - of_run


def in_loops(graph: tf.Graph) -> set[int]:
    """Return the op seeds of a graph's random ops that are in loops."""
    bodies = set[tf.Operation]()
    for op in graph.get_operations():
        if op.type in LOOPS:
            bodies.update(_ops_in_functions(op))
        enters, leaves = op.type in ("Enter", "RefEnter"), op.type in ("Exit", "RefExit")  # an older loop
        if enters or (not leaves and not bodies.isdisjoint([*input_ops(op), *op.control_inputs])):
            bodies.add(op)
    return _op_seeds(bodies)


def _ops_in_functions(op: tf.Operation) -> Iterator[tf.Operation]:
    """Yield the ops of the functions that an op calls, and of those that these call."""
    from detrand._patching.graphs import function_graphs

    for graph in function_graphs(op):
        for inner in graph.get_operations():
            yield inner
            yield from _ops_in_functions(inner)


def _op_seeds(ops: Iterable[tf.Operation]) -> set[int]:
    return {op.get_attr("seed2") for op in ops if op.inputs and has_op_seed(op)}


def has_op_seed(op: tf.Operation) -> bool:
    """Return whether an op of a graph has an op seed, as random ops do."""
    return _has_op_seed(op.type)


@functools.cache
def _has_op_seed(op_type: str) -> bool:
    from detrand._patching.graphs import op_def

    definition = op_def(op_type)
    return definition is not None and any(attribute.name == "seed2" for attribute in definition.attr)


def without_counterpart(ops: Sequence[RandomOp], others: Sequence[RandomOp]) -> list[RandomOp]:
    """Return the ops that compute with numbers that no op of the other program draws, given the ops of both runs."""
    op_seeds = {op.op_seed for op in controlled(others)}
    return [op for op in controlled(ops) if op.op_type and op.phase != "init" and op.op_seed not in op_seeds]


def controlled(ops: Sequence[RandomOp]) -> list[RandomOp]:
    """Return the ops that a scope controls, each once."""
    return [op for op in ops if op.run == 0 and op.op_seed is not None]
