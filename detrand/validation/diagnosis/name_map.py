"""The name map that the data flow of two programs shows.

`Flow` is how a program uses its variables: which of them lie upstream and downstream of each other, of its inputs and
of its outputs. `pair_by_flow` pairs the variables of two programs that are used alike, whatever their names are.
`search_names` decides what the data flow leaves open, by what both programs compute: it runs the port with one pairing
after another. It changes a pair before the first divergence, and goes on from the pairing with which the programs agree
the furthest.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.comparison.values import leaves_by_path
from detrand.packages import tf
from detrand.validation.frameworks.traces import INPUT, RecordedPort, Trace, TracedOp
from detrand.validation.migration import Migration
from detrand.validation.programs.counterparts import LOOPS
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, port_scope, read
from detrand.variables.pairing import (
    Pairs,
    exact_role_of,
    in_shapes_of,
    pair_in_order,
    role_of,
    size_of,
    split_by_words,
)
from detrand.variables.sources import joined_variables
from detrand.variables.spec import VariableSpec

_VARIABLES = ("VarHandleOp", "VariableV2")
_ITERATIONS = 3  # of a loop: what one hands on is used in the next one
_ROUNDS = 4  # of refinement: each looks one more relation far
# What decides whether two variables are used alike: the ends of the flow, and the rounds. A fault, such as an input
# that the port does not use, changes the flow of all variables after it; so what is left is compared by less and less.
_COMPARED = ((("inputs", "outputs"), _ROUNDS), (("outputs",), _ROUNDS), ((), _ROUNDS), ((), 0))
_MOST_RUNS = 24  # without a pairing that is better than all before: all orders of 4 layers of one shape

Proposal = tuple[Pairs, Mapping[str, Sequence[str]]]  # the pairs, and the port's names that a variable could have


@dataclass(frozen=True)
class Flow:
    """How a program uses its variables.

    A variable is used where it meets something that the inputs decide. So it does not matter into how many ops a layer
    is divided: the scale of a normalization is used where the data are multiplied, fused or not.

    Attributes:
      upstream: name -> the variables whose use lies before or at the use of this one, itself among them.
      inputs: name -> the positions of the inputs before its use.
      outputs: name -> the paths of the outputs after its use.
      order: name -> its position in a walk from the outputs back, which sees the operands of an op in order.
    """

    upstream: Mapping[str, frozenset[str]]
    inputs: Mapping[str, frozenset[int]]
    outputs: Mapping[str, frozenset[str]]
    order: Mapping[str, int]

    @classmethod
    def of(
        cls,
        inputs_of: Mapping[str, Sequence[str]],
        variables: Mapping[str, str],
        fed: Sequence[str],
        outputs: Mapping[str, str],
    ) -> Flow:
        """Return the flow of a program, given the inputs of its ops, in the order in which they were added.

        The names of variables are given by op, the ops of outputs by path, and the ops of the inputs in order.
        """
        position_of = {name: position for position, name in enumerate(op for op in fed if op in inputs_of)}
        names = list(dict.fromkeys(variables.values()))
        bits = {name: 1 << position for position, name in enumerate(names)}
        floating: dict[str, int] = {}  # variables that an op is computed from, without any input
        reached: dict[str, int] = {}  # variables that are used at an op or before it, of ops that depend on an input
        seen: dict[str, int] = {}  # inputs before such an op
        before, inputs = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for op, sources in inputs_of.items():
            if op in variables:
                floating[op] = bits[variables[op]]
            elif op in position_of:
                reached[op], seen[op] = 0, 1 << position_of[op]
            elif any(source in reached for source in sources):
                used = _union(floating.get(source, 0) for source in sources)
                reached[op] = used | _union(reached.get(source, 0) for source in sources)
                seen[op] = _union(seen.get(source, 0) for source in sources)
                for name in _members(used, names):
                    before[name] |= reached[op]
                    inputs[name] |= seen[op]
            else:
                floating[op] = _union(floating.get(source, 0) for source in sources)
        ends = {path: _members(reached.get(op, 0) | floating.get(op, 0), names) for path, op in outputs.items()}
        positions = range(len(fed))
        return cls(
            {name: frozenset(_members(before[name], names)) for name in names},
            {name: frozenset(_members(inputs[name], positions)) for name in names},
            {name: frozenset(path for path, members in ends.items() if name in members) for name in names},
            _order(inputs_of, variables, outputs.values()),
        )


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _members(mask: int, items: Sequence) -> list:
    """Return the items at the positions of the bits that are set."""
    return [items[position] for position, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def _order(
    inputs_of: Mapping[str, Sequence[str]], variables: Mapping[str, str], outputs: Iterable[str]
) -> dict[str, int]:
    found: dict[str, int] = {}
    seen: set[str] = set()
    waiting = list(reversed(list(outputs)))
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if op in variables:
            found.setdefault(variables[op], len(found))
        waiting += reversed(inputs_of.get(op, ()))
    return found


def flow_of_tf1(trace: Trace, names: Collection[str]) -> Flow:
    """Return the flow of a TF1 program, given its trace and the names of its variables."""
    fed = [name for name, op in trace.ops.items() if op.type.startswith("Placeholder")]
    inputs_of = {name: op.sources for name, op in trace.ops.items()}
    outputs = {path: op_of(name) for path, name in trace.outputs.items()}
    return Flow.of(inputs_of, variables_by_op(trace, names), fed, outputs)


def variables_by_op(trace: Trace, names: Collection[str]) -> dict[str, str]:
    """Return the names of a TF1 program's variables by the names of their ops; parts have the name of the whole."""
    return {
        name: name if name in names else re.sub(r"/part_\d+$", "", name)
        for name, op in trace.ops.items()
        if op.type in _VARIABLES
    }


def flow_of_port(migration: Migration, training: bool) -> Flow:
    """Return the flow of a new port, as its framework traces it, or else in a ``tf.function``, which is not run."""
    config = RunConfig(training, "constant")
    with port_scope(migration, config):
        port = Port(migration)
        port(training)
    variables = joined_variables("port", port.variables)
    parts = [(part, name) for name, variable in variables.items() for part in variable.parts]
    traced = port.traced(config, {})
    if isinstance(traced, RecordedPort):
        return _flow_in_trace(traced, {id(part): name for part, name in parts})
    return _flow_in_graph(port, config, {id(part.handle): name for part, name in parts})


def _flow_in_trace(port: RecordedPort, names: Mapping[int, str]) -> Flow:
    """Return the flow of a port in its trace, given the names of its variables by their ids."""
    outputs = {path: op_of(name) for path, name in port.outputs.items()}
    needed = all_upstream(outputs.values(), lambda name: port.ops[name].sources)
    return Flow.of(
        {name: op.sources for name, op in port.ops.items() if name in needed},
        {op: names[id(part)] for op, part in port.parts.items() if id(part) in names},
        [name for name, op in port.ops.items() if op.type == INPUT],
        outputs,
    )


def _flow_in_graph(port: Port, config: RunConfig, names: Mapping[int, str]) -> Flow:
    """Return the flow of a port in a ``tf.function``, given the names of its variables by the ids of their handles."""
    outputs: dict[str, str] = {}

    def look(returned: Any) -> Any:
        leaves = leaves_by_path(returned)
        tensors = {path: read(leaf) for path, leaf in leaves.items()}
        outputs.update((path, leaf.name) for path, leaf in tensors.items() if isinstance(leaf, tf.Tensor))
        return returned

    with port_scope(port.migration, config):
        graph = port.graph(config.training, look)
    captured = {inner.op.name: names.get(id(outer)) for outer, inner in graph.captures}
    fed = [tensor.op.name for tensor in graph.inputs if tensor.op.name not in captured]
    made_by: dict[str, str] = {}
    inputs_of = dict(_with_iterations(graph.get_operations(), made_by))
    outputs = {path: made_by[name] for path, name in outputs.items()}
    needed = all_upstream(outputs.values(), inputs_of.__getitem__)
    return Flow.of(
        {op: sources for op, sources in inputs_of.items() if op in needed},
        {op: name for op, name in captured.items() if name is not None},
        fed,
        outputs,
    )


def _with_iterations(
    operations: Iterable[tf.Operation], made_by: dict[str, str], scope: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield ops with the ops of their inputs, and in place of a loop the ops of a few iterations of its body.

    The names of the ops that make tensors are added to ``made_by``, by the names of the tensors.
    """
    from detrand._patching.graphs import function_graphs

    for op in operations:
        sources = [made_by[scope + tensor.name] for tensor in op.inputs]
        body = next(iter(function_graphs(op)), None) if op.type in LOOPS else None
        if body is None:
            made_by |= {scope + tensor.name: scope + op.name for tensor in op.outputs}
            yield scope + op.name, sources
            continue
        for number in range(_ITERATIONS):
            inner = f"{scope}{op.name}/iteration_{number}/"
            made_by |= {inner + tensor.name: source for tensor, source in zip(body.inputs, sources, strict=True)}
            arguments = {tensor.op for tensor in body.inputs}
            yield from _with_iterations(
                (each for each in body.get_operations() if each not in arguments), made_by, inner
            )
            sources = [made_by[inner + tensor.name] for tensor in body.outputs]
        made_by |= {scope + tensor.name: source for tensor, source in zip(op.outputs, sources, strict=True)}


def pair_by_flow(
    tf1: Mapping[str, VariableSpec],
    port: Mapping[str, VariableSpec],
    flows: tuple[Flow, Flow],
    known: Mapping[str, str],
) -> tuple[Pairs, dict[str, list[str]]]:
    """Pair the variables that both programs use alike, besides the known pairs.

    Then come those that they use nearly alike, and then the rest in order. Of several that are used alike, those with
    the most similar names are pairs if the names are clear; else the first in a walk back from the outputs is the first
    in the other program, too.

    Returns:
      the pairs, and TF1 name -> the names in the port that the variable could have as well, itself among them.
    """
    reshaped = in_shapes_of(tf1, port)
    pairs, rivals = dict(known), dict[str, list[str]]()
    in_order: set[str] = set()
    for ends, rounds in _COMPARED:
        programs = (
            _Program(tf1, flows[0], {name: f"known as {name}" for name in pairs}),
            _Program(reshaped, flows[1], {other: f"known as {name}" for name, other in pairs.items()}),
        )
        of_programs = zip(programs, _roles(*programs), strict=True)
        classes = [_classes(_colors(program, roles, ends, rounds), program) for program, roles in of_programs]
        for color, names in classes[0].items():
            others = classes[1].get(color, [])
            if len(names) == len(others):
                for of_tf1, of_port in split_by_words(names, others):
                    pairs.update(zip(of_tf1, of_port, strict=True))
                    in_order.update(of_tf1 if len(of_tf1) > 1 else ())
                if len(names) > 1:
                    rivals.update(dict.fromkeys(names, others))
    paired = set(pairs.values())
    rest = pair_in_order(
        {name: spec for name, spec in tf1.items() if name not in pairs},
        {name: spec for name, spec in port.items() if name not in paired},
    )
    pairs.update(rest.names)
    by_size: dict[Hashable, list[str]] = defaultdict(list)
    for other in rest.names.values():
        by_size[size_of(reshaped[other].shape), port[other].dtype].append(other)
    rivals.update({name: by_size[size_of(tf1[name].shape), tf1[name].dtype] for name in rest.names})
    in_order |= rest.names.keys()
    return Pairs({name: pairs[name] for name in tf1 if name in pairs}, frozenset(in_order), rest.doubts), rivals


class _Program(NamedTuple):
    """A program's variables, how it uses them, and the marks of those whose counterparts are known."""

    specs: Mapping[str, VariableSpec]
    flow: Flow
    known: Mapping[str, str]

    def is_vector(self, name: str) -> bool:
        shape = self.specs[name].shape
        return shape is not None and len(shape) < 2

    @property
    def unknown(self) -> list[str]:
        return [name for name in self.specs if name not in self.known and name in self.flow.upstream]


def _roles(*programs: _Program) -> list[dict[str, str]]:
    """Return the roles of each program's vectors, as exactly as the names of both programs say them alike.

    The names of vectors of one size are trusted for a role that equally many of them have in both programs. If a name
    shows no role, those of the remaining vectors of its size are not trusted.
    """
    sizes = [
        {name: size_of(program.specs[name].shape) for name in program.unknown if program.is_vector(name)}
        for program in programs
    ]
    unnamed = {size for of_program in sizes for name, size in of_program.items() if not role_of(name)}
    shared = []
    for key in (exact_role_of, role_of):
        mine, others = (Counter((size, key(name)) for name, size in of_program.items()) for of_program in sizes)
        shared.append({each for each in mine if mine[each] == others[each]})

    def role(name: str, size: Hashable) -> str:
        if (size, exact_role_of(name)) in shared[0]:
            return exact_role_of(name)
        return role_of(name) if size not in unnamed or (size, role_of(name)) in shared[1] else ""

    return [{name: role(name, size) for name, size in of_program.items()} for of_program in sizes]


def _colors(program: _Program, roles: Mapping[str, str], ends: Collection[str], rounds: int) -> dict[str, Hashable]:
    """Return a color of each variable: those of two programs are equal if the variables are used alike.

    Colors are refined as in the Weisfeiler-Lehman test of graph isomorphism, by the matrices up- and downstream: into
    how many vectors a layer's bias and normalization are divided may differ.
    """
    flow, known = program.flow, program.known
    colors: dict[str, Hashable] = {}
    for name in flow.upstream:
        spec = program.specs.get(name)
        if name in known or spec is None:
            colors[name] = known.get(name, name)
            continue
        colors[name] = (
            size_of(spec.shape),
            roles.get(name),
            tuple(sorted(flow.inputs[name])) if "inputs" in ends else (),
            tuple(sorted(flow.outputs[name])) if "outputs" in ends else (),
        )
    matrices = [name for name in flow.upstream if name in program.specs and not program.is_vector(name)]
    downstream = defaultdict(list)
    for name in matrices:
        for other in flow.upstream[name]:
            downstream[other].append(name)
    upstream = {name: [other for other in matrices if other in flow.upstream[name]] for name in flow.upstream}
    for _ in range(rounds):
        short = {name: hash(color) for name, color in colors.items()}
        colors = {
            name: (
                short[name],
                tuple(sorted(short[other] for other in upstream[name])),
                tuple(sorted(short[other] for other in downstream[name])),
            )
            for name in colors
        }
    return colors


def _classes(colors: Mapping[str, Hashable], program: _Program) -> dict[Hashable, list[str]]:
    """Return the variables of each color without a known counterpart, in the order of the flow."""
    found: dict[Hashable, list[str]] = defaultdict(list)
    for name in sorted(program.unknown, key=lambda name: program.flow.order.get(name, 0)):
        found[colors[name]].append(name)
    return found


def search_names(
    pair: Callable[[Mapping[str, str]], Proposal],
    diverged: Callable[[Pairs], Sequence[TracedOp]],
    trace: Trace,
    variables: Mapping[str, str],
    matrices: Collection[str],
    known: Mapping[str, str],
) -> tuple[Pairs, int]:
    """Return the pairs with which the fewest of TF1's ops have no counterpart, of those that were tried.

    The second value is the number of runs without progress after which the search was given up; 0 if nothing was left
    to try.

    Args:
      pair: proposes pairs, given the known ones.
      diverged: runs the port with these pairs, and returns TF1's ops without a counterpart, from the first one on.
      trace: the trace of TF1.
      variables: the names of TF1's variables, by the names of their ops.
      matrices: the variables to decide first: the vectors of a layer follow its matrix.
      known: pairs that are not changed.
    """
    first, rivals = pair(known)
    ops = diverged(first)
    fewest, runs = len(ops), 0
    best = first._replace(in_order=first.in_order - _proven(trace, variables, ops, rivals))
    numbers = itertools.count()
    kept: frozenset[str] = frozenset()  # the variables whose first counterpart is tried with others
    waiting = [(fewest, next(numbers), dict(known), kept, first, rivals, ops)]
    while waiting and fewest:
        count, _, known, kept, pairs, rivals, ops = heapq.heappop(waiting)
        names = rivals.keys() - known.keys() - _proven(trace, variables, ops, rivals)
        # An op that no variable decides has no counterpart where the port computes the same in a different way.
        undecided = next(filter(None, (_before(trace, variables, op, names) for op in ops)), [])
        name = next((name for name in undecided if name in matrices), next(iter(undecided), None))
        if name is None:
            continue
        used = pairs.names[name]
        heapq.heappush(waiting, (count, next(numbers), {**known, name: used}, kept | {name}, pairs, rivals, ops))
        for other in rivals[name]:
            if other == used or other in known.values():
                continue
            if runs == _MOST_RUNS:
                return best, runs
            changed = {**known, name: other}
            found, rivals_now = pair(changed)
            ops_now = diverged(found)
            runs += 1
            if len(ops_now) < fewest:
                proven = _proven(trace, variables, ops_now, rivals_now)
                best = found._replace(in_order=(found.in_order | (kept & first.in_order)) - proven)
                fewest, runs = len(ops_now), 0
            if ops_now:
                heapq.heappush(waiting, (len(ops_now), next(numbers), changed, kept, found, rivals_now, ops_now))
    return best, 0


def _before(trace: Trace, variables: Mapping[str, str], op: TracedOp, names: Collection[str]) -> list[str]:
    """Return those of the variables that an op depends on, the last one created first."""
    needed = all_upstream([op.name], lambda each: trace.ops[each].sources)
    found = dict.fromkeys(variables[each] for each in trace.ops if each in needed and each in variables)
    return [name for name in reversed(found) if name in names]


def _proven(
    trace: Trace, variables: Mapping[str, str], ops: Sequence[TracedOp], rivals: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the variables whose pairs a value before the first divergence proves: it depends on all their rivals."""
    proven: set[str] = set()
    for source in trace.sources(ops[0]) if ops else ():
        names = _before(trace, variables, source, rivals)
        counts = Counter(tuple(rivals[name]) for name in names)
        proven.update(name for name in names if counts[tuple(rivals[name])] == len(rivals[name]))
    return proven
