"""Candidates: the pairs of tensors of which the port's may get TF1's value, so that the rest agrees.

`candidates` yields them, those nearest to the divergence first: what ops of one type take or compute, and what the
programs move differently. `hidden_inputs` yields what a tensor that agrees hides, `exchanges` what two ops take in each
other's place, `parts_in_another_order` the orders of what one op splits, and `after_more_iterations` what a loop in
Python comes to that has more iterations in one program.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.program import Program
from detrand.validation.diagnosis.op_kinds import COMMUTATIVE, COPIES, MOVES, PLUMBING, kind
from detrand.validation.frameworks.traces import Edge, TracedOp

_MOST_NEAR, _MOST_STEPS = 20, 8  # ops that are looked at for counterparts, and along a chain
_AGAIN = re.compile(r"_\d+(?=/|$)")  # the number of a name that has been used before
_OF_TWO = COMMUTATIVE | {"Sub", "RealDiv", "Pow", "FloorDiv", "Greater", "GreaterEqual", "Less", "LessEqual"}
_PRODUCTS = {"MatMul", "Einsum"}
_IN_ANY_ORDER = {"AddV2", "Mul"}
_SPLITTING = {"Split", "SplitV", "Unpack", "StridedSlice"}
_MOST_PARTS = 4  # as the gates of an LSTM

# A tensor of TF1, the tensor of the port that may stand for it, and the edge if only this one is substituted.
Pair = tuple[str, str, Edge | None]


def candidates(state: TraceComparison, edges_of: Callable[[str], Sequence[Edge]]) -> Iterator[Pair]:
    """Yield pairs of tensors, of which the port's may get TF1's value, those nearest to the divergence first.

    Sums of the same terms in a different order come last: they differ with each term that does.
    """
    of_sums, later = _added_in_a_different_order(state), list[Pair]()
    for pair in _pairs(state, edges_of):
        if of_sums.isdisjoint(map(op_of, pair[:2])):
            yield pair
        else:
            later.append(pair)
    yield from later


def _pairs(state: TraceComparison, edges_of: Callable[[str], Sequence[Edge]]) -> Iterator[Pair]:
    """Yield the pairs of `candidates` in the order of how near they are."""
    tf1, port = state.tf1, state.port
    tf1_op, port_op = state.first_ops()
    if tf1_op is not None and port_op is not None and users(tf1, tf1_op) == users(port, port_op):
        yield from same_outputs(state, tf1_op, port_op)
    for first, second in _besides_constants(state):
        yield from same_outputs(state, first, second)
    yield from _in_products(state)
    yield from _moved_differently(state)
    takes = defaultdict(list)
    for op in port.diverged:
        for tensor in op.inputs:
            takes[port.origin(tensor)].append(op)
    if tf1_op is not None:  # TF1 computes more before several ops, or before one whose other input says nothing
        for tensor in (each for name in tf1_op.inputs for each in tf1.matched.get(name, ())):
            kinds = sorted(_computes(port, op) for op in takes[tensor])
            is_unanchored = kinds and (len(kinds) > 1 or kind(takes[tensor][0]) in MOVES | _OF_TWO)
            if is_unanchored and len(kinds) == len(edges_of(tensor)):
                last = _last_before(tf1, tf1_op, kinds) or (tf1_op if len(_takers(tf1, tf1_op)) > 1 else None)
                yield from ((name, tensor, None) for name in tf1.trace.values_of(last)[:1])
    anchored = [
        pair
        for op in tf1.diverged
        for position, tensor in enumerate(op.inputs)
        for other in (each for name in tf1.matched.get(tf1.origin(tensor), ()) for each in takes.get(name, ()))
        for pair in (
            *(_other_inputs(state, op, other, position) if _take_alike(op, other) else ()),
            *(same_outputs(state, op, other) if op.type == other.type else ()),
        )
    ]
    depth = [(tf1.depth.get(op_of(pair[0]), -1), port.depth.get(op_of(pair[1]), -1)) for pair in anchored]
    yield from (pair for _, pair in sorted(zip(map(sum, depth), anchored, strict=True), key=lambda each: each[0]))
    yield from _inputs_of_one_type(state)
    for path, tensor in tf1.trace.outputs.items():
        if path in port.trace.outputs and port.trace.outputs[path] not in tf1.matched.get(tensor, ()):
            yield tensor, port.trace.outputs[path], None
    for first, second in itertools.product(tf1.first, port.first):
        yield from same_outputs(state, first, second)
    for first, second in _of_one_type(state):
        if second in port.first:
            yield from same_outputs(state, first, second)
            value = port.value(second)
            for copy in (each for name in tf1.trace.values_of(first)[:1] for each in tf1.copies(name)):
                moved = tf1.value(copy)
                if value is not None and moved is not None and moved.shape == value.shape:
                    yield from same_outputs(state, copy, second)


def of_one_size(state: TraceComparison) -> Iterator[Pair]:
    """Yield diverged tensors of the programs that have equally many elements, those nearest to the divergence first.

    TF1 may compute in several ops what is one op of the port.
    """
    tensors = [
        [
            (program.depth[op.name], name, program.trace.values[name].size)
            for op in program.diverged
            for name in program.trace.values_of(op)
            if name not in program.matched and kind(op) not in MOVES | PLUMBING
        ]
        for program in (state.tf1, state.port)
    ]
    pairs = [(one, other) for one, other in itertools.product(*tensors) if one[2] == other[2]]
    yield from ((one[1], other[1], None) for one, other in sorted(pairs, key=lambda each: each[0][0] + each[1][0]))


def taken_tensors(state: TraceComparison) -> dict[str, list[Edge]]:
    """Return the port's tensors with a counterpart that its diverged ops take, but for variables, with their edges."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for op in state.port.diverged:
        for number, tensor in enumerate(op.inputs):
            if tensor in state.port.matched and op_of(tensor) not in state.port.trace.reads:
                found[tensor].append((op.name, number))
    return found


def is_copy(ops: Mapping[str, TracedOp], one: str, other: str) -> bool:
    """Return whether two ops are one op in several iterations of a loop, or one line adds both under one name."""
    like, again = ((ops[each].type, ops[each].line, _AGAIN.sub("", iteration_of(each)[0])) for each in (one, other))
    return like == again


def hidden_inputs(state: TraceComparison) -> Iterator[Pair]:
    """Yield inputs that differ, and lead to a tensor that agrees, too, as behind a mask.

    They are those of the first diverged ops, and of ops of one kind that take the same variable: an embedding of words
    that are shifted by one holds most of what the right one does.
    """
    tf1_op, port_op = state.first_ops()
    if tf1_op is not None and port_op is not None and tf1_op.type == port_op.type:
        for pair in _other_inputs(state, tf1_op, port_op, None):
            if pair[0] not in state.tf1.matched and pair[1] not in state.port.matched:
                yield pair
    hidden = [_hidden_by_variable(program) for program in (state.tf1, state.port)]
    for key, ops in hidden[0].items():
        others = hidden[1].get(key, [])
        for op, other in zip(ops, others, strict=True) if len(ops) == len(others) else ():
            yield from _other_inputs(state, op, other, None)


def _hidden_by_variable(program: Program) -> Mapping[tuple[str, str], list[TracedOp]]:
    """Return the ops without a counterpart from which a tensor with one is computed, by kind and variable."""
    reads, diverged = program.trace.reads, {op.name for op in program.diverged}
    found = defaultdict[tuple[str, str], list[TracedOp]](list)
    for op in program.trace.without_counterpart(program.matched):
        for name in {op.name, *op.sources} & reads.keys() if op.name not in diverged else ():
            found[kind(op), reads[name]].append(op)
    return found


def same_outputs(state: TraceComparison, tf1_op: TracedOp, port_op: TracedOp) -> Iterator[Pair]:
    """Yield the outputs of two ops, in order."""
    for pair in zip(state.tf1.trace.values_of(tf1_op), state.port.trace.values_of(port_op), strict=False):
        yield *pair, None


def used_alike(state: TraceComparison) -> list[tuple[TracedOp, TracedOp]]:
    """Return the diverged ops of one kind that ops of the same types take, those nearest to the divergence first."""
    taken_by = [{op.name: users(side, op) for op in side.diverged} for side in (state.tf1, state.port)]
    pairs = [
        (state.tf1.depth[tf1_op.name] + state.port.depth[port_op.name], tf1_op, port_op)
        for tf1_op, port_op in itertools.product(state.tf1.diverged[:_MOST_NEAR], state.port.diverged[:_MOST_NEAR])
        if kind(tf1_op) == kind(port_op) and taken_by[0][tf1_op.name] == taken_by[1][port_op.name]
    ]
    return [(tf1_op, port_op) for _, tf1_op, port_op in sorted(pairs, key=lambda each: each[0])]


def _of_one_type(state: TraceComparison) -> Iterator[tuple[TracedOp, TracedOp]]:
    """Yield the diverged ops of each type, of which both programs have equally many, in pairs."""
    of_type = [defaultdict[str, list[TracedOp]](list) for _ in range(2)]
    for found, program in zip(of_type, (state.tf1, state.port), strict=True):
        for op in program.diverged:
            found[op.type].append(op)
    for op_type, ops in of_type[0].items():
        if len(ops) == len(of_type[1][op_type]):
            yield from zip(ops, of_type[1][op_type], strict=True)


def _inputs_of_one_type(state: TraceComparison) -> Iterator[Pair]:
    """Yield inputs of which one agrees with another tensor, because the other program computes more before the op."""
    for tf1_op, port_op in _of_one_type(state):
        for pair in _other_inputs(state, tf1_op, port_op, None):
            if (pair[0] in state.tf1.matched) != (pair[1] in state.port.matched):
                yield pair


def _other_inputs(state: TraceComparison, op: TracedOp, other: TracedOp, position: int | None) -> Iterator[Pair]:
    """Yield the inputs of an op of each program, besides the one that both have in common, where they differ."""
    if len(op.inputs) != len(other.inputs):
        return

    def have_one_in_common(inputs: Iterable[str]) -> bool:
        return any(map(are_equal, op.inputs, inputs))

    def are_equal(tf1: str, port: str) -> bool:
        return state.port.origin(port) in state.tf1.matched.get(state.tf1.origin(tf1), ())

    inputs = [*enumerate(other.inputs)]
    # Einsums and products of JAX take their operands in any order.
    in_any_order = {op.type, other.type} <= COMMUTATIVE or {kind(op), kind(other)} <= _PRODUCTS
    if in_any_order and not have_one_in_common(other.inputs) and have_one_in_common(other.inputs[::-1]):
        inputs.reverse()
    for tf1_number, (tf1_tensor, (number, port_tensor)) in enumerate(zip(op.inputs, inputs, strict=True)):
        if tf1_number != position and not are_equal(tf1_tensor, port_tensor):
            yield tf1_tensor, port_tensor, (other.name, number)


def _in_products(state: TraceComparison) -> Iterator[Pair]:
    """Yield a tensor that one program concatenates, for one that the other program multiplies there, such as a state.

    A product of tensors side by side is the sum of their products. Both tensors have counterparts, which the first
    diverged ops of the other program do not take.
    """
    programs = state.tf1, state.port
    taken = [
        [
            (op, number, tensor)
            for op in program.first
            for number, tensor in enumerate(op.inputs)
            if tensor in program.matched and tensor in program.trace.values
        ]
        for program in programs
    ]
    of_tf1, of_port = (
        {name for _, _, tensor in of for name in program.matched[tensor]}
        for of, program in zip(taken, programs, strict=True)
    )
    for (op, _, tf1), (other, number, port) in itertools.product(*taken):
        kinds, are_others = {kind(op), kind(other)}, tf1 not in of_port and port not in of_tf1
        sizes = {program.trace.values[name].size for program, name in zip(programs, (tf1, port), strict=True)}
        if "ConcatV2" in kinds and not kinds.isdisjoint(_PRODUCTS) and are_others and len(sizes) == 1:
            yield tf1, port, (other.name, number)


def _besides_constants(state: TraceComparison) -> Iterator[tuple[TracedOp, TracedOp]]:
    """Yield diverged ops of one type that take the same tensors besides constants: one number or attribute differs."""
    tf1, port = (
        [
            (op, taken)
            for op in program.diverged
            if (taken := [name for n, name in enumerate(op.inputs) if f"input {n}" not in op.constants])
            and all(name in program.matched for name in taken)
        ]
        for program in (state.tf1, state.port)
    )
    for (op, of_tf1), (other, of_port) in itertools.product(tf1, port):
        if op.type == other.type and len(of_tf1) == len(of_port) and _are_pairs(state, of_tf1, of_port):
            yield op, other


def _are_pairs(state: TraceComparison, tf1: Sequence[str], port: Sequence[str]) -> bool:
    return all(other in state.tf1.matched[name] for name, other in zip(tf1, port, strict=True))


def _added_in_a_different_order(state: TraceComparison) -> set[str]:
    """Return the ops of sums and products whose terms or factors the programs have in common, but for a difference."""
    found = set[str]()
    for tf1, port in itertools.product(_operations(state.tf1), _operations(state.port)):
        if kind(tf1.op) != kind(port.op) or len(tf1.terms) != len(port.terms):
            continue
        positions = {name: number for number, name in enumerate(tf1.terms)}
        shared = [
            next((positions[each] for each in state.port.matched.get(name, ()) if each in positions), None)
            for name in port.terms
        ]
        if {*shared} != {None}:
            differing = iter(number for number in range(len(tf1.terms)) if number not in shared)
            order = [next(differing) if each is None else each for each in shared]
            of_port = {frozenset(order[number] for number in each) for each in port.partial.values()}
            if of_port != {*map(frozenset, tf1.partial.values())}:
                found.update(tf1.partial, port.partial)
    return found


class _Operation(NamedTuple):
    """A sum or product that several diverged ops compute.

    Attributes:
      op: the last of them.
      terms: its terms or factors.
      partial: name of each op -> the positions of the terms that it adds up.
    """

    op: TracedOp
    terms: list[str]
    partial: dict[str, list[int]]


def _operations(program: Program) -> list[_Operation]:
    """Return the sums and products of more terms or factors than one op takes."""
    inner, taken = set[str](), Counter(name for op in program.trace.ops.values() for name in {*op.sources})

    def before_copies(tensor: str) -> TracedOp | None:
        op = program.trace.ops.get(op_of(tensor))
        while op is not None and taken[op.name] == 1 and kind(op) in COPIES:
            op = program.trace.ops.get(op_of(op.inputs[0]))
        return op if op is not None and taken[op.name] == 1 else None

    def add(operation: _Operation, op: TracedOp) -> None:
        start = len(operation.terms)
        for tensor in op.inputs:
            before = before_copies(tensor)
            if before is not None and kind(before) == kind(op) and before.name not in inner:
                inner.add(before.name)
                add(operation, before)
            else:
                operation.terms.append(tensor)
        operation.partial[op.name] = [*range(start, len(operation.terms))]

    found = []
    for op in reversed(program.diverged):
        if kind(op) in _IN_ANY_ORDER and op.name not in inner:
            add(operation := _Operation(op, [], {}), op)
            found += [operation] if len(operation.partial) > 1 else []
    return found


def _take_alike(op: TracedOp, other: TracedOp) -> bool:
    """Return whether the inputs of two ops mean the same: a sum takes axes where a product takes a factor."""
    kinds = {kind(op), kind(other)}
    return len(kinds) == 1 or kinds <= _OF_TWO or kinds <= _PRODUCTS


def _moved_differently(state: TraceComparison) -> Iterator[Pair]:
    """Yield what the programs make of one tensor by moving its elements: in one shape, and in different orders."""
    for op in state.port.first:
        if kind(op) not in MOVES:
            continue
        sources = {name for tensor in op.inputs[:1] for name in state.port.matched.get(tensor, ())}
        of_tf1 = [each for name in sources for each in _moved(state.tf1, name)]
        for other in _moved(state.port, op.inputs[0]):
            port = state.port.trace.values[other]
            for tensor in of_tf1:
                tf1 = state.tf1.trace.values[tensor]
                if tf1.shape == port.shape and other not in state.tf1.matched.get(tensor, ()):
                    yield tensor, other, None


def _moved(program: Program, tensor: str) -> list[str]:
    """Return the tensors that ops make of one by moving its elements, of which several ops take each."""
    found, waiting = list[str](), [tensor]
    while waiting:
        name = waiting.pop()
        takers = [op for op in program.trace.ops.values() if name in op.inputs[:1]]
        found += [name] if len(takers) > 1 and name != tensor and name in program.trace.values else []
        waiting += [each for op in takers if kind(op) in PLUMBING | MOVES for each in program.trace.values_of(op)]
    return found


class Crossing(NamedTuple):
    """An op of TF1 and an op of the port that take the same tensors, except for one that both programs compute.

    Attributes:
      tf1: TF1's op.
      tensor: what it takes.
      port: the port's op.
      number: the position of the input there.
      other: what that is.
    """

    tf1: TracedOp
    tensor: str
    port: TracedOp
    number: int
    other: str


def exchanges(state: TraceComparison) -> Iterator[tuple[Crossing, Crossing]]:
    """Yield pairs of ops of the port, each of which takes the tensor that the other one takes in TF1."""
    found = []
    for tf1, port in itertools.product(state.tf1.diverged[:_MOST_NEAR], state.port.diverged[:_MOST_NEAR]):
        if tf1.type == port.type and len(tf1.inputs) == 2:
            differing = list(_other_inputs(state, tf1, port, None))
            if len(differing) == 1:
                ((tensor, other, edge),) = differing
                if tensor in state.tf1.matched and other in state.port.matched and edge is not None:
                    found.append(Crossing(tf1, tensor, port, edge[1], other))
    for first, second in itertools.combinations(found, 2):
        crossed = (
            first.other in state.tf1.matched[second.tensor],
            second.other in state.tf1.matched[first.tensor],
        )
        if all(crossed) and first.tf1 is not second.tf1 and first.port is not second.port:
            yield first, second


def parts_in_another_order(state: TraceComparison) -> Iterator[list[tuple[str, str]]]:
    """Yield orders in which the port may take the parts of a tensor: for each part of TF1, the port's in its place.

    Parts are what one op splits a tensor into, such as the gates of a recurrent cell, or slices of one tensor. Orders
    in which ops of the same types take the parts in both programs come first.
    """
    seen = set[str]()
    for op in state.port.diverged:
        for tensor in map(state.port.before_functions, op.inputs):
            of_tf1, own = _parts_of_both(state, tensor)
            if tensor in seen or not of_tf1:
                continue
            seen.update(own)
            types = [_types_after(state.tf1, each) for each in of_tf1], [_types_after(state.port, each) for each in own]
            for order in sorted(itertools.permutations(range(len(own))), key=functools.partial(_how_unlikely, types)):
                if [*order] != sorted(order):
                    yield [(each, own[n]) for each, n in zip(of_tf1, order, strict=True)]


def parts_again(state: TraceComparison, pairs: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yield the parts of other tensors in the order of some pairs, where the same line of the port takes them.

    They are those of other iterations of a loop in Python, and of other layers of a class.
    """
    ops = state.port.trace.ops
    _, own = _parts_of_both(state, pairs[0][1])
    order = [own.index(tensor) for _, tensor in pairs if tensor in own]
    like, seen = ops[op_of(pairs[0][1])], {*own}
    if len(order) < len(pairs):  # parts that are equal to others
        return
    for op in ops.values():
        if (op.type, op.line) == (like.type, like.line):
            for tensor in state.port.trace.values_of(op)[:1]:
                of_tf1, own = _parts_of_both(state, tensor)
                if tensor not in seen and len(own) == len(order):
                    seen.update(own)
                    yield [(each, own[n]) for each, n in zip(of_tf1, order, strict=True)]


def _parts_of_both(state: TraceComparison, tensor: str) -> tuple[list[str], list[str]]:
    """Return the parts in TF1 that the port has, and those of the port, of which a tensor is one; none if few agree."""
    part_of = {state.port.matched.get(each, [""])[0]: each for each in _parts(state.port, tensor)}
    of_tf1 = [each for name in list(part_of)[:1] for each in _parts(state.tf1, name) if each in part_of]
    if not 1 < len(of_tf1) == len(part_of) <= _MOST_PARTS:
        return [], []
    return of_tf1, [part_of[each] for each in of_tf1]


def _how_unlikely(types: tuple[list[list[str]], list[list[str]]], order: Sequence[int]) -> tuple[int, int]:
    """Return how many parts ops of other types take than in TF1, and how many parts are moved.

    Given are the types of the ops that take each part, in TF1 and in the port.
    """
    tf1, port = types
    others = sum(of_part != port[number] for of_part, number in zip(tf1, order, strict=True))
    return others, sum(number != place for place, number in enumerate(order))


def _parts(program: Program, tensor: str) -> list[str]:
    """Return the parts that a tensor is one of, in the order of the computation."""
    op = program.trace.ops.get(op_of(tensor))
    if op is None or kind(op) not in _SPLITTING:
        return [tensor]
    if kind(op) != "StridedSlice":
        return program.trace.values_of(op)
    slices = (each for each in program.trace.ops.values() if each.type == op.type and each.inputs[0] == op.inputs[0])
    return [name for each in slices for name in program.trace.values_of(each)]


def _types_after(program: Program, tensor: str) -> list[str]:
    """Return the types of the ops that take a tensor."""
    return sorted(op.type for op in program.trace.ops.values() if tensor in op.inputs)


def after_more_iterations(state: TraceComparison) -> Iterator[Pair]:
    """Yield pairs of what a loop in Python computes in the end, if one program has more iterations of it."""
    for op in state.port.diverged:
        for number, tensor in enumerate(op.inputs):
            for name in state.port.matched.get(tensor, ()):
                for each in _later_copies(state.tf1, op_of(name)):
                    if kind(op) in _kinds_after(state.tf1, each):
                        yield each, tensor, (op.name, number)
                        yield each, tensor, None  # for all ops that take it
    for op in state.tf1.diverged:
        for tensor in op.inputs:
            for name in state.tf1.matched.get(tensor, ()):
                for each in _later_copies(state.port, op_of(name)):
                    if kind(op) in _kinds_after(state.port, each):
                        yield tensor, each, None


def _later_copies(program: Program, name: str) -> list[str]:
    """Return what the copies of an op compute in later iterations of a loop in Python; the last one first.

    These have no counterpart, and ops of the same types lead from one to the next as lead to the op from the iteration
    before.
    """
    ops, diverged = program.trace.ops, {op.name for op in program.diverged}
    if name not in ops or not ops[name].line:
        return []
    copies = sorted(_copies(ops, name)[0], key=lambda each: len(_upstream_in(ops, each)))
    before = [each for each in copies if each != name and each in _upstream_in(ops, name)]
    if not before:
        return []
    body, found, last = _between(ops, before[-1], name), list[str](), name
    for each in copies[copies.index(name) + 1 :]:
        if each in diverged and _between(ops, last, each) == body:
            found += program.trace.values_of(ops[each])[:1]
            last = each
    return found[::-1]


def _between(ops: Mapping[str, TracedOp], start: str, end: str) -> Counter[str]:
    """Return the types of the ops by which an op depends on another one."""
    found = {start}
    for name in ops:  # in the order of the computation
        if not found.isdisjoint(ops[name].sources):
            found.add(name)
    return Counter(ops[name].type for name in _upstream_in(ops, end) & found - {start})


def _kinds_after(program: Program, tensor: str) -> set[str]:
    """Return the kinds of the ops that take a tensor, perhaps after its elements are moved."""
    kinds, waiting = set[str](), [tensor]
    while waiting:
        name = waiting.pop()
        takers = [op for op in program.trace.ops.values() if name in op.inputs]
        kinds |= set(map(kind, takers))
        waiting += [each for op in takers if kind(op) in PLUMBING | MOVES for each in program.trace.values_of(op)]
    return kinds


def iterations_at(state: TraceComparison, tf1: str | None, port: str | None) -> tuple[int, int] | None:
    """Return after how many iterations of a loop in Python TF1 and the port compute two tensors, if that differs."""
    in_tf1 = (op_of(name) for name in state.port.matched.get(port or "", ()))
    in_port = (op_of(name) for name in state.tf1.matched.get(tf1 or "", ()))
    if any(tf1 in _later_copies(state.tf1, name) for name in in_tf1) or any(
        port in _later_copies(state.port, name) for name in in_port
    ):
        ends = (state.tf1.trace.ops, op_of(tf1 or "")), (state.port.trace.ops, op_of(port or ""))
        of_tf1, of_port = (_iteration(ops, _copies(ops, name)[0], name) for ops, name in ends)
        return None if of_tf1 == of_port else (of_tf1, of_port)
    return None


def iterations(
    tf1: Mapping[str, TracedOp], port: Mapping[str, TracedOp], tf1_op: str, port_op: str
) -> list[tuple[str, str]]:
    """Return what two ops of an iteration are in the other iterations; nothing if neither is in a loop.

    A loop in Python has copies of an op on one line, equally many for each iteration, whose names are numbered.
    """
    groups = [_copies(ops, name) for ops, name in ((tf1, tf1_op), (port, port_op))]
    counts = [len(group) for group, is_loop in groups if is_loop]
    if not counts or len(set(counts)) > 1 or any(len(group) % counts[0] for group, _ in groups):
        return []
    chosen = []
    for (group, is_loop), name in zip(groups, (tf1_op, port_op), strict=True):
        step = len(group) // counts[0]
        chosen.append(group if is_loop else group[group.index(name) % step :: step])
    pairs = list(zip(*chosen, strict=True))
    return [pair for pair in pairs if pair != (tf1_op, port_op)] if (tf1_op, port_op) in pairs else []


def _copies(ops: Mapping[str, TracedOp], name: str) -> tuple[list[str], bool]:
    """Return an op in all iterations of its loop, and whether that is known from its name."""
    key, number = iteration_of(name)
    if number:
        return [each for each in ops if iteration_of(each)[0] == key], True
    like = ops[name].type, ops[name].line, _AGAIN.sub("", name)
    found = [each for each, op in ops.items() if (op.type, op.line, _AGAIN.sub("", each)) == like]
    return [each for each in found if not iteration_of(each)[1]], False


def _iteration(ops: Mapping[str, TracedOp], copies: Sequence[str], name: str) -> int:
    """Return the number of an op's iteration, from 1: how many of its copies are computed one from the other."""
    needed = _upstream_in(ops, name)
    before = [each for each in copies if each != name and each in needed]
    return 1 + max((_iteration(ops, before, each) for each in before), default=0)


def _upstream_in(ops: Mapping[str, TracedOp], name: str) -> set[str]:
    return all_upstream([name], lambda each: ops[each].sources if each in ops else ())


def users(program: Program, op: TracedOp) -> list[str]:
    """Return the types of the ops that take an op's tensors."""
    return sorted(other.type for other in _takers(program, op))


def _takers(program: Program, op: TracedOp) -> list[TracedOp]:
    return [other for other in program.trace.ops.values() if op.name in other.sources]


def _computes(program: Program, op: TracedOp) -> str:
    """Return the kind of an op, or of the op that takes what it moves: a product of matrices may be of flat ones."""
    while kind(op) in PLUMBING | MOVES and len(takers := _takers(program, op)) == 1:
        op = takers[0]
    return kind(op)


def _last_before(program: Program, op: TracedOp, kinds: Sequence[str]) -> TracedOp | None:
    """Return the op, from one op on and along a chain, that ops of these kinds take something from; None for none."""
    for _ in range(_MOST_STEPS):
        takers = _takers(program, op)
        if {_computes(program, taker) for taker in takers} == set(kinds):  # one product may be of several kernels
            return op
        if len(takers) != 1:
            return None
        op = takers[0]
    return None
