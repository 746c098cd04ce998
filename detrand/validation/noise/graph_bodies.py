"""Edits a ``GraphDef``: its own nodes, and those of each function in its library, in one way.

In a graph the second output of a node ``x`` is called ``x:1``; in a function it goes by the name that the op's
definition gives it, ``x:batch_mean:0``, say. A `Body` knows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.graphs import op_def

Node = Any  # a NodeDef
Reference = str  # an output, as it stands among the inputs of a node


def bodies_of(graph_def: Any) -> list[Body]:
    """Returns the nodes of a ``GraphDef``, first, and of each of its functions, to be changed in place."""
    signatures = {function.signature.name: function.signature for function in graph_def.library.function}
    functions = [Body(function.node_def, signatures, function.ret) for function in graph_def.library.function]
    return [Body(graph_def.node, signatures), *functions]


class Body:
    """The nodes of a graph, or of a function.

    Args:
      nodes: the repeated field of the proto.
      signatures: those of the functions in the library, by name.
      returned: what a function returns, by name; None for a graph.

    Attributes:
      rerouted: what stands, after `finish`, where an output stood before.
    """

    def __init__(self, nodes: Any, signatures: dict[str, Any], returned: Any = None):
        self._nodes, self._signatures, self._returned = nodes, signatures, returned
        self._names = {node.name for node in nodes}
        self._replacements: set[str] = set()
        self.rerouted: dict[Reference, Reference] = {}

    def original_nodes(self) -> list[Node]:
        """Returns the nodes that there are now; the list does not grow with what is added."""
        return list(self._nodes)

    def definition(self, node: Node) -> Any:
        """Returns the ``OpDef`` of a node.

        Raises:
          ValueError: if there is none.
        """
        found = op_def(node.op) or self._signatures.get(node.op)
        if found is None:
            raise ValueError(f"{node.name} is an op of the unknown type {node.op}")
        return found

    def output(self, node: Node, number: int = 0) -> Reference:
        """Returns what the output of a node with a number is called."""
        if self._returned is None:
            return f"{node.name}:{number}" if number else node.name
        argument = arguments_of(node, self.definition(node).output_arg)[number]
        return f"{node.name}:{argument.name}:{argument.place}"

    def add(self, op_type: str, beside: Node, inputs: Sequence[str], **attributes: Any) -> Node:
        """Adds a node.

        Args:
          op_type: type of the op.
          beside: the node that it is named after.
          inputs: what it takes.
          **attributes: their values: dtypes, bools, or arrays for those that are tensors.
        """
        node = self._nodes.add()
        node.name, node.op, node.device = f"{beside.name}/detrand_{len(self._names)}", op_type, beside.device
        self._names.add(node.name)
        node.input.extend(inputs)
        for name, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[name].type = value.as_datatype_enum
            elif isinstance(value, bool):
                node.attr[name].b = value
            else:
                node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))
        return node

    def constant(self, beside: Node, value: np.ndarray) -> Reference:
        """Adds a constant for a node to take."""
        # In a TF1 while loop, a constant belongs to an iteration if it waits for something of it.
        waits_for = [f"^{beside.input[0].partition(':')[0]}"] if self._returned is None and beside.input else []
        return self.output(self.add("Const", beside, waits_for, value=value, dtype=tf.as_dtype(value.dtype)))

    def replace_output(self, node: Node, number: int, replacement: Node, by_way_of: Node | None = None) -> None:
        """Lets whatever takes an output of a node take that of another one, which is computed from it.

        Args:
          node: the node.
          number: of its output.
          replacement: the other one.
          by_way_of: what takes the output itself, for the other one, if that does not.
        """
        self._replacements.add((by_way_of or replacement).name)
        self.rerouted[self.output(node, number)] = self.output(replacement)

    def finish(self) -> None:
        """Reroutes what has been replaced. Call it once, at the end."""
        for node in self._nodes:
            if node.name not in self._replacements:
                for position, reference in enumerate(node.input):
                    node.input[position] = self.rerouted.get(reference, reference)
        if self._returned is not None:
            # Of a copy: a map of protobuf that is written to while it is read may pass an entry over.
            for name, reference in dict(self._returned).items():
                self._returned[name] = self.rerouted.get(reference, reference)


class Argument(NamedTuple):
    """An input or output of a node.

    Attributes:
      name: of the argument that it belongs to, in the op's definition.
      place: its place in that.
      dtype: an enum.
    """

    name: str
    place: int
    dtype: int


def arguments_of(node: Node, definitions: Any) -> list[Argument]:
    """Returns the inputs or outputs of a node, as the ``input_arg`` or ``output_arg`` of its definition has them."""
    found = []
    for definition in definitions:
        if definition.type_list_attr:
            dtypes = list(node.attr[definition.type_list_attr].list.type)
        else:
            dtype = node.attr[definition.type_attr].type if definition.type_attr else definition.type
            dtypes = [dtype] * (node.attr[definition.number_attr].i if definition.number_attr else 1)
        found += [Argument(definition.name, place, dtype) for place, dtype in enumerate(dtypes)]
    return found
