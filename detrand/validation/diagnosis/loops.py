"""Loops as straight code: each iteration of a ``tf.while_loop`` has ops of its own, with values.

`unrolled` copies the body of a loop once for each of its iterations. An op ``add`` of the loop ``while`` becomes
``while/iteration_0/add``, ``while/iteration_1/add`` and so on, with the line of the op in the body. The loop stays
after them, and has nothing more to do, unless its condition is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from detrand.checkpoints.upstream import input_ops, name_of
from detrand.packages import tf
from detrand.validation.programs.counterparts import LOOPS, has_op_seed
from detrand.validation.programs.tf1 import config_as_written

_MOST_ITERATIONS, _MOST_NODES = 64, 20_000
# Ops that count as stateful, and that may be run in any order as long as no op of the loop writes.
_READING = {*LOOPS, "If", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "Assert", "PartitionedCall"}
_ITERATION = re.compile(r"/iteration_(\d+)/")

# Returns what tensors of a graph hold, by name.
Fetch = Callable[[Any, Sequence[str]], Mapping[str, np.ndarray]]


class Unrolled(NamedTuple):
    """A graph with the iterations of its loops.

    Attributes:
      graph: the graph.
      operations: its ops, in the order of the computation.
      lines: the lines of the user's code that added the ops, by name.
      functions: the graphs of the functions that an op calls, by name; of a loop that was unrolled, its condition.
      starts: what a loop that was unrolled takes before its first iteration, by name.
      drawn: what the random ops of iterations draw, to be fed in their place: the graph would draw the same in each.
    """

    graph: tf.Graph
    operations: list[tf.Operation]
    lines: Mapping[str, str]
    functions: Mapping[str, Sequence[Any]]
    starts: Mapping[str, Sequence[str]]
    drawn: Mapping[str, np.ndarray]


def unrolled(
    graph: tf.Graph, fetch: Fetch, lines_of: Callable[[list[tf.Operation]], dict[str, str]]
) -> Unrolled | None:
    """Return a graph with its loops unrolled; None if it has no loop that can be.

    A loop stays as it is if it writes variables, draws numbers that depend on others, or has too many iterations.
    """
    functions = _functions(graph.get_operations())
    if not any(op.type in LOOPS for op in graph.get_operations()):
        return None
    definition, lines, done = graph.as_graph_def(), lines_of(graph.get_operations()), dict[str, bool]()
    lines_of_bodies: dict[str, dict[str, str]] = {}
    starts: dict[str, list[str]] = {}
    while loops := [node for node in definition.node if node.op in LOOPS and node.name not in done]:
        bodies = {node.name: functions.get(node.attr["body"].func.name) for node in loops}
        can_be = [
            name for name, body in bodies.items() if body is not None and _counts(body) and not _has_effects(body)
        ]
        counts = fetch(definition, can_be) if can_be else {}
        nodes: list[Any] = []
        for node in definition.node:
            body, count = bodies.get(node.name), int(counts.get(node.name, 0))
            nodes.append(node)
            if node.name not in bodies:
                continue
            size = len(definition.node) + (0 if body is None else count * len(body.get_operations()))
            done[node.name] = body is not None and 0 < count <= _MOST_ITERATIONS and size < _MOST_NODES
            if body is None or not done[node.name]:
                continue
            known = lines_of_bodies.setdefault(body.name, lines_of(body.get_operations()))
            starts[node.name] = given = [each for each in node.input if not each.startswith("^")]
            for number in range(count):
                scope = f"{node.name}/iteration_{number}"
                copies, given = _iteration(body, scope, given)
                nodes[-1:] = [*copies, node]
                lines |= {f"{scope}/{name}": line for name, line in known.items()}
            node.input[: len(given)] = given
        changed = tf.compat.v1.GraphDef(versions=definition.versions, library=definition.library)
        changed.node.extend(nodes)
        definition = changed
    if not any(done.values()):
        return None
    with tf.Graph().as_default() as found:
        tf.import_graph_def(definition, name="")
    operations = [found.get_operation_by_name(node.name) for node in definition.node]
    names = {op.name: _names_of_functions(op, without_body=done.get(op.name, False)) for op in operations}
    called = {op: [functions[name] for name in of_op if name in functions] for op, of_op in names.items()}
    drawn = _drawn_in_iterations(operations, lambda names: fetch(definition, names))
    return Unrolled(found, operations, lines, called, starts, drawn)


def _drawn_in_iterations(
    operations: Iterable[tf.Operation], fetch: Callable[[Sequence[str]], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return what random ops draw in iterations, by their names."""
    copies: dict[str, list[tf.Operation]] = {}
    for op in operations:
        if _ITERATION.search(op.name) and op.inputs and has_op_seed(op):
            copies.setdefault(iteration_of(op.name)[0], []).append(op)
    shapes = fetch(sorted({source.name for ops in copies.values() for op in ops for source in input_ops(op)}))
    found: dict[str, np.ndarray] = {}
    for ops in copies.values():
        runs = drawn_in_turn(ops[0], [[shapes[source.name] for source in input_ops(op)] for op in ops])
        found.update(zip((op.name for op in ops), runs, strict=True))
    return found


def drawn_in_turn(op: tf.Operation, inputs: Iterable[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return what one run of a random op after the other draws, given what it takes in each."""
    v1, definition = tf.compat.v1, tf.compat.v1.GraphDef()
    with tf.Graph().as_default():
        placeholders = [v1.placeholder(tensor.dtype, None) for tensor in op.inputs]
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        node.input[:] = [f"input_{number}" for number in range(len(placeholders))]
        given = dict(zip(node.input, placeholders, strict=True))
        (again,) = tf.import_graph_def(definition, given, [f"{op.name}:0"], name="")
        with v1.Session(config=config_as_written()) as session:
            return [session.run(again, dict(zip(placeholders, each, strict=True))) for each in inputs]


def takes_shapes_only(op: tf.Operation) -> bool:
    """Return whether an op is a random op that takes a shape and perhaps a range, and no data."""
    return bool(op.inputs) and has_op_seed(op) and all(tensor.dtype.is_integer for tensor in op.inputs)


def iteration_of(name: str) -> tuple[str, str]:
    """Return the name of an op or a tensor without the numbers of iterations, and these.

    >>> iteration_of("rnn/while/iteration_2/add:1")
    ('rnn/while/iteration/add:1', '2')
    """
    return _ITERATION.sub("/iteration/", name), ".".join(_ITERATION.findall(name))


def _names_of_functions(op: tf.Operation, without_body: bool) -> list[str]:
    """Return the names of the functions that an op calls, with or without the body of a loop."""
    attributes = [attr.name for attr in op.op_def.attr if attr.type in ("func", "list(func)")]
    attributes = [name for name in attributes if not (without_body and name == "body")]
    return [each.name for name in attributes for each in tf.nest.flatten([op.get_attr(name)])]


def _functions(operations: Iterable[tf.Operation]) -> dict[str, Any]:
    """Return the graphs of the functions that ops call, however deep, by name."""
    from detrand._patching.graphs import function_graphs

    found: dict[str, Any] = {}
    for op in operations:
        for graph in function_graphs(op, conditions=True):
            found |= {graph.name: graph, **_functions(graph.get_operations())}
    return found


def _counts(body: Any) -> bool:
    """Return whether the first tensor that a loop hands on counts its iterations, as in all loops of TensorFlow 2."""
    counter = body.outputs[0].op if body is not None and body.outputs else None
    while counter is not None and counter.type == "Identity":
        counter = counter.inputs[0].op
    return (
        counter is not None
        and counter.type == "AddV2"
        and counter.inputs[0] is body.inputs[0]
        and tf.get_static_value(counter.inputs[1]) == 1
    )


def _has_effects(graph: Any, may_draw: bool = True) -> bool:
    """Return whether an op of a graph writes something, or draws numbers that `drawn_in_turn` does not."""
    from detrand._patching.graphs import function_graphs

    def has_effects(op: tf.Operation) -> bool:
        if op.op_def.is_stateful and op.type not in _READING and op.type != "Placeholder":
            return not (may_draw and takes_shapes_only(op))
        in_bodies = may_draw and op.type in LOOPS  # which are unrolled, too
        return any(_has_effects(inner, in_bodies) for inner in function_graphs(op, conditions=True))

    return any(map(has_effects, graph.get_operations()))


def _iteration(body: Any, scope: str, given: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return the nodes of one iteration, and the tensors that it hands on, given those that it takes."""
    sources = {name_of(tensor): source for tensor, source in zip(body.inputs, given, strict=True)}

    def renamed(name: str) -> str:
        if name.startswith("^"):
            return "" if name[1:] in sources else f"^{scope}/{name[1:]}"
        return sources.get(name.removesuffix(":0"), f"{scope}/{name}")

    nodes = []
    for node in body.as_graph_def().node:
        if node.name in sources:
            continue
        copy = tf.compat.v1.GraphDef().node.add()
        copy.CopyFrom(node)
        copy.name = f"{scope}/{node.name}"
        del copy.input[:]
        copy.input.extend(filter(None, map(renamed, node.input)))
        for hint in [name for name in copy.attr if name.startswith("_")]:  # such as colocation with a node of the body
            del copy.attr[hint]
        nodes.append(copy)
    return nodes, [renamed(name_of(tensor)) for tensor in body.outputs]
