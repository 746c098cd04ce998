"""The definitions of graphs in files, and what is left out of them before a session imports them.

- `leave_forward_pass`: what only training needs, such as a training op with its slots.
- `decide_conditionals`: one branch of each conditional that depends on whether the program trains. In TensorFlow 1,
  ``tf.cond(is_training, ...)`` adds both branches to the graph: switches pass its inputs on to one of them, and merges
  take what that one computes. A graph without them computes the same, and all of its tensors can be fetched.
- `run_iterations_in_turn`: the parallel iterations of loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.packages import tf

_CONTEXTS, _LOOPS = "cond_context", "while_context"
_OF_VARIABLES = ("variables", "trainable_variables", "local_variables", "model_variables", "moving_average_variables")
_OF_OPS = ("update_ops", "losses", "regularization_losses", "table_initializer")
_SWITCHES, _MERGES = ("Switch", "RefSwitch"), ("Merge", "RefMerge")


def leave_forward_pass(meta_graph: tf.compat.v1.MetaGraphDef, outputs: Iterable[str]) -> None:
    """Leave out what is needed neither for the outputs nor for the losses and updates in a graph's collections."""
    definition, collections = meta_graph.graph_def, meta_graph.collection_def
    roots = [*outputs, *(each for name in _OF_OPS if name in collections for each in collections[name].node_list.value)]
    needed: set[str] = set()
    while len(needed) < len(needed := needed_for(definition, roots)):  # what initializes a variable may need others
        for name in (*_OF_VARIABLES, _CONTEXTS, _LOOPS):
            for member in collections[name].bytes_list.value if name in collections else ():
                names = _tensors_of(name, member)
                roots += names if op_of(names[0]) in needed else ()
    for name in collections.keys() - {*_OF_OPS}:
        if name not in (*_OF_VARIABLES, _CONTEXTS, _LOOPS):
            del collections[name]
            continue
        members = collections[name].bytes_list.value
        members[:] = [each for each in members if op_of(_tensors_of(name, each)[0]) in needed]
    replace_nodes(definition, [node for node in definition.node if node.name in needed])


def _tensors_of(collection: str, member: bytes) -> tuple[str, ...]:
    """Return the tensors that a member of a collection refers to, its own first."""
    from detrand._patching.graphs import tensors_of_context, tensors_of_variable

    if collection in _OF_VARIABLES:
        return tensors_of_variable(member)
    return tensors_of_context(member, collection == _LOOPS)


def needed_for(definition: tf.compat.v1.GraphDef, tensors: Iterable[str], given: Collection[str] = ()) -> set[str]:
    """Return the names of the ops that tensors depend on, but for given tensors."""
    nodes = {node.name: node for node in definition.node}

    def inputs_of(name: str) -> list[str]:
        return [op_of(each) for each in nodes[name].input if tensor_name(each) not in given]

    return all_upstream([op_of(name) for name in tensors if name not in given], inputs_of)


def decide_conditionals(meta_graph: tf.compat.v1.MetaGraphDef, known: Mapping[str, bool]) -> None:
    """Leave one branch of each conditional in a graph whose condition follows from the values of known tensors.

    A graph stays as it is where the gradients of a loop, or of a conditional that is not decided, need another one that
    is.
    """
    from detrand._patching.graphs import condition_of_context, tensors_of_context

    collections, definition = meta_graph.collection_def, meta_graph.graph_def
    contexts, loops = (
        list(collections[name].bytes_list.value) if name in collections else [] for name in (_CONTEXTS, _LOOPS)
    )
    branches = _Branches(definition, known)
    undecided = [condition_of_context(each)[0] not in branches.values for each in contexts]
    needed = [tensor for each in loops for tensor in tensors_of_context(each, True)]
    for context, stays in zip(contexts, undecided, strict=True):
        if stays:
            needed += tensors_of_context(context, False)
        elif condition_of_context(context)[1]:
            return
    if not branches.passed_on or any(op_of(name) in branches.dead | branches.passed_on.keys() for name in needed):
        return
    kept = [node for node in definition.node if node.name not in branches.dead]
    for node in kept:
        inputs = list(node.input)
        if node.name in branches.passed_on:
            node.op = "RefIdentity" if node.op.startswith("Ref") else "Identity"
            inputs = [branches.passed_on[node.name], *(each for each in inputs if each.startswith("^"))]
            node.attr.pop("N", None)
        node.input[:] = [
            f"{op_of(each)}:0" if each.endswith(":1") and op_of(each) in branches.passed_on else each for each in inputs
        ]
    replace_nodes(definition, kept)
    if contexts:
        collections[_CONTEXTS].bytes_list.value[:] = itertools.compress(contexts, undecided)
    for collection in collections.values():
        names = collection.node_list.value
        if any(op_of(name) in branches.dead for name in names):
            names[:] = [name for name in names if op_of(name) not in branches.dead]


class _Branches:
    """Which branches of a graph's conditionals are executed.

    Attributes:
      values: the values of the tensors that are known.
      passed_on: the tensor that a switch or merge passes on, by its name.
      dead: the names of the ops that are not executed.
    """

    def __init__(self, definition: tf.compat.v1.GraphDef, known: Mapping[str, bool]):
        self.values = dict(known)
        self.passed_on: dict[str, str] = {}
        self.dead: set[str] = set()
        self._dead_tensors: set[str] = set()
        for node in in_order(definition):
            self._add(node)

    def _add(self, node: tf.compat.v1.NodeDef) -> None:
        tensors = [tensor_name(each) for each in node.input if not each.startswith("^")]
        if node.op in _MERGES:
            live = [each for each in tensors if not self._is_dead(each)]
            if not live:
                self.dead.add(node.name)
            elif len(live) == 1 and len(tensors) > 1:
                self.passed_on[node.name] = live[0]
            return
        if any(map(self._is_dead, tensors)) or any(op_of(each) in self.dead for each in node.input):
            self.dead.add(node.name)
        elif node.op in _SWITCHES and tensors[1] in self.values:
            taken = int(self.values[tensors[1]])
            self.passed_on[node.name] = tensors[0]
            self._dead_tensors.add(f"{node.name}:{1 - taken}")
            if tensors[0] in self.values:
                self.values[f"{node.name}:{taken}"] = self.values[tensors[0]]
        elif node.op in ("Identity", "LogicalNot") and tensors[0] in self.values:
            self.values[f"{node.name}:0"] = self.values[tensors[0]] is not (node.op == "LogicalNot")

    def _is_dead(self, tensor: str) -> bool:
        return tensor in self._dead_tensors or op_of(tensor) in self.dead


def run_iterations_in_turn(definition: tf.compat.v1.GraphDef) -> None:
    """Make all loops of a graph run one iteration at a time, so that random ops draw in the order of the iterations."""
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            if "parallel_iterations" in node.attr:
                node.attr["parallel_iterations"].i = 1


def not_run_once(definition: tf.compat.v1.GraphDef) -> set[str]:
    """Return the names of the ops in loops and conditionals of a graph, which a session may run any number of times."""
    nodes = {node.name: node for node in definition.node}
    depths: dict[str, int] = {}
    for node in in_order(definition):
        depth = max((depths.get(op_of(each), 0) for each in node.input), default=0)
        sources = [nodes[op_of(each)].op for each in node.input if op_of(each) in nodes]
        is_of_loop = any(each.endswith(("Enter", "NextIteration", "LoopCond")) for each in sources)
        begins = node.op.endswith("Enter") or (node.op in _SWITCHES and not is_of_loop)
        ends = node.op.endswith("Exit") or (node.op in _MERGES and not is_of_loop)
        depths[node.name] = depth + begins - ends
    return {name for name, depth in depths.items() if depth}


def known_constants(definition: tf.compat.v1.GraphDef) -> dict[str, bool]:
    """Return the boolean constants of a graph that are scalars, by their tensors."""
    constants = [
        node for node in definition.node if node.op == "Const" and node.attr["dtype"].type == tf.bool.as_datatype_enum
    ]
    arrays = {f"{node.name}:0": np.asarray(tf.make_ndarray(node.attr["value"].tensor)) for node in constants}
    return {name: bool(array) for name, array in arrays.items() if not array.ndim}


def in_order(definition: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.NodeDef]:
    """Yield the ops of a graph, each after those that it takes something from, but for the ends of loops."""
    nodes, seen = {node.name: node for node in definition.node}, set[str]()
    for start in definition.node:
        waiting = [(start, False)]
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                yield node
            elif node.name not in seen:
                seen.add(node.name)
                sources = [nodes[op_of(each)] for each in node.input if op_of(each) in nodes]
                waiting.append((node, True))
                waiting += [(each, False) for each in sources if each.op not in ("NextIteration", "RefNextIteration")]


def replace_nodes(definition: tf.compat.v1.GraphDef, nodes: list[tf.compat.v1.NodeDef]) -> None:
    """Make ops those of a graph, some of which may be its own."""
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del definition.node[:]
    definition.node.extend(copies)


def tensor_name(name: str) -> str:
    """Return the full name of an input of an op."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
