"""The walk from nodes of a graph to everything that they depend on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from detrand.packages import tf

Node = TypeVar("Node")


def upstream(nodes: Iterable[Node], inputs_of: Callable[[Node], Iterable[Node]]) -> Iterator[list[Node]]:
    """Yield nodes, then their inputs, then the inputs of these, and so on; each node once.

    >>> inputs = {"loss": ["logits", "labels"], "logits": ["inputs"], "labels": [], "inputs": []}
    >>> list(upstream(["loss"], inputs.__getitem__))
    [['loss'], ['logits', 'labels'], ['inputs']]
    """
    seen: set[Node] = set()
    level = list(dict.fromkeys(nodes))
    while level:
        yield level
        seen.update(level)
        inputs = dict.fromkeys(node for below in level for node in inputs_of(below))
        level = [node for node in inputs if node not in seen]


def all_upstream(nodes: Iterable[Node], inputs_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return nodes and everything that they depend on."""
    return set(itertools.chain.from_iterable(upstream(nodes, inputs_of)))


def input_ops(op: tf.Operation) -> list[tf.Operation]:
    """Return the ops that an op's inputs come from."""
    return [tensor.op for tensor in op.inputs]


def name_of(tensor: tf.Tensor) -> str:
    """Return the name of a tensor in a walk: that of its op, with the number of the output if it is not the first."""
    return tensor.name.removesuffix(":0")


def op_of(name: str) -> str:
    """Return the name of the op that a tensor is an output of, or that an op waits for (``^op``)."""
    return name.removeprefix("^").partition(":")[0]
