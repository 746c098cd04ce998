"""The order in which a TF1 graph updates and reads its variables.

A session runs ops in any order that the graph allows. If an op updates a variable, and another op reads it in the same
run without a path between the two, the session may read the old or the new value. Eager code runs both in the order of
the program's text. `order_updates` gives the graph this order, and says where it had none.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from detrand.arguments import and_more
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, Site, site_of_op

_REFERENCES = ("VariableV2", "Variable")
_VARIABLES = ("VarHandleOp", *_REFERENCES)
_UPDATES = ("Assign", "ResourceScatter", "Scatter", "ResourceApply", "Apply", "ResourceSparseApply", "SparseApply")
_CALLS = ("If", "Case", "While", "PartitionedCall", "StatefulPartitionedCall")
_PASS_ON = ("Identity", "Switch", "RefSwitch", "Enter", "RefEnter")
_NO_READS = ("VarIsInitializedOp", "IsVariableInitialized", "DestroyResourceOp", "VariableShape")


def order_updates(graph: tf.Graph, run: Iterable[Any]) -> tuple[str, ...]:
    """Order updates of a variable with its other uses in one run of ops or tensors, as they were added to the graph.

    No session may have run the graph yet.

    Returns:
      A sentence for each pair of lines that update and read variables in no defined order.
    """
    from detrand._patching.graphs import add_control_input

    ops = all_run(run)
    updating = _updating(graph, ops)
    in_order = [op for op in graph.get_operations() if op in ops]
    uses: dict[str, list[tf.Operation]] = defaultdict(list)
    for op in in_order:
        for name in _used_by(op):
            uses[name].append(op)
    uses = {name: of for name, of in uses.items() if len(of) > 1 and not updating.isdisjoint(of)}
    bits = {op: 1 << position for position, op in enumerate(dict.fromkeys(op for of in uses.values() for op in of))}
    reached: dict[tf.Operation, int] = {}
    places: dict[str, tuple[Site, Site]] = {}
    for op in in_order if uses else ():
        for name, earlier in _earlier_uses(op, uses):
            is_ordered = _reached(op, bits, reached) & bits[earlier]
            if not is_ordered and not updating.isdisjoint((op, earlier)):
                add_control_input(op, earlier)
                update, other = (op, earlier) if op in updating else (earlier, op)
                if (use := site_of_op(other)) != UNKNOWN:  # what detrand reads is no race of the program
                    places.setdefault(name, (site_of_op(update), use))
        reached[op] = _reached(op, bits, reached) | bits.get(op, 0)
    names: dict[tuple[Site, Site], list[str]] = defaultdict(list)
    for name, pair in places.items():
        names[pair].append(name)
    return tuple(
        f"TF1 updates {and_more(of_pair, 2)} {'in its training op' if update == UNKNOWN else f'at {update}'} and uses "
        f"{'it' if len(of_pair) == 1 else 'them'} at {use} in no defined order, so a session may take either value; "
        "compared in the order of the program's text"
        for (update, use), of_pair in names.items()
    )


def updated_by(graph: tf.Graph, run: Iterable[Any]) -> set[str]:
    """Return the names of the variables that a run of ops or tensors may update, also in a branch or a function."""
    found = set()
    for op in _updating(graph, all_run(run)):
        for tensor in op.inputs[:1] if op.type.startswith(_UPDATES) else op.inputs:
            source = source_of(tensor)
            if source.type in _VARIABLES:
                found.add(source.name)
    return found


def source_of(tensor: tf.Tensor) -> tf.Operation:
    """Return the op that a tensor comes from, such as a variable, through all ops that only pass it on."""
    op = tensor.op
    while op.type in _PASS_ON:
        op = op.inputs[0].op
    return op


def all_run(run: Iterable[Any]) -> set[tf.Operation]:
    """Return all ops that a session executes when it runs ops or tensors."""
    return all_upstream([getattr(each, "op", each) for each in run], _before)


def _before(op: tf.Operation) -> list[tf.Operation]:
    return [*input_ops(op), *op.control_inputs]


def _updating(graph: tf.Graph, ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Return those of the ops that update a variable, or run a function or a branch that updates one."""
    found = {op for op in ops if op.type.startswith(_UPDATES)}
    calls = [op for op in ops if op.type in _CALLS]
    library = graph.as_graph_def().library.function if calls else ()
    functions = {function.signature.name: function.node_def for function in library}

    @functools.cache
    def updates(name: str) -> bool:
        nodes = functions.get(name, ())
        return any(node.op.startswith(_UPDATES) or any(map(updates, _called_by(node))) for node in nodes)

    return found | {op for op in calls if any(map(updates, _called_by(op.node_def)))}


def _called_by(node: Any) -> list[str]:
    """Return the names of the functions that a node runs."""
    return [function.name for value in node.attr.values() for function in (value.func, *value.list.func)]


def _used_by(op: tf.Operation) -> list[str]:
    """Return the names of the variables that an op reads or updates.

    A reference variable is read through identities, which share its memory: what takes an identity reads it. No op can
    wait for the entry of a variable into an older loop.
    """
    if op.type.startswith(_NO_READS) or op.type in ("Identity", "Enter", "RefEnter"):
        return []
    found: dict[str, None] = {}
    for tensor in op.inputs:
        source = tensor.op
        while source.type == "Identity":
            source = source.inputs[0].op
        if source.type in _REFERENCES or tensor.op.type in _VARIABLES:
            found[source.name] = None
    return list(found)


def _earlier_uses(op: tf.Operation, uses: dict[str, list[tf.Operation]]) -> list[tuple[str, tf.Operation]]:
    """Return the uses of the variables that an op uses which were added before it, with the variables' names."""
    of_op = {name: uses[name] for name in _used_by(op) if name in uses}
    return [(name, earlier) for name, ops in of_op.items() for earlier in ops[: ops.index(op)]]


def _reached(op: tf.Operation, bits: dict[tf.Operation, int], reached: dict[tf.Operation, int]) -> int:
    """Return the uses of variables that run before an op."""
    found = 0
    for earlier in _before(op):  # an op of a loop that was added later has not been reached
        found |= reached.get(earlier, 0)
    return found
