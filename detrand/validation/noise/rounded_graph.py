"""A graph that rounds what it computes in float32 to float16 or bfloat16, as a port under a Keras dtype policy does.

Each op still computes in float32, as kernels of half precision do where they sum, and what it has computed is rounded;
so are inputs, and variables where they are read. What follows from random numbers alone is not, for layers draw in
float32: a dropout compares what it has drawn with its rate, and another mask is no rounding.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from detrand._patching.random_ops import EXPLICIT_OPS, RANDOM_OPS
from detrand.validation.noise.graph_bodies import Body, Node, arguments_of, bodies_of

_FLOAT32 = tf.float32.as_datatype_enum
_NO_NUMBER = "flow"  # the argument by which ops on a TensorArray wait for each other
# Variables themselves, and what the frames of a loop consist of.
_LEFT = frozenset(("VariableV2", "Variable", "TemporaryVariable", "Enter", "Exit", "Merge", "Switch", "NextIteration"))


def round_to(graph_def: Any, dtype: tf.DType) -> dict[str, str]:
    """Lets a graph, and its functions, round what they compute in float32, in place.

    Args:
      graph_def: a ``GraphDef``.
      dtype: what it rounds to.

    Returns:
      What now is called otherwise, of the tensors of the graph: old name to new.

    Raises:
      ValueError: if it has an op that nobody knows.
    """
    bodies = bodies_of(graph_def)
    for body in bodies:
        drawn: set[str] = set()
        for node in body.original_nodes():
            if _is_drawn(node, drawn):
                drawn.add(node.name)
            elif node.op not in _LEFT:
                _round(body, node, dtype)
        body.finish()
    return bodies[0].rerouted


def _is_drawn(node: Node, drawn: set[str]) -> bool:
    """Returns whether a node draws, is a constant, or computes something of such nodes alone."""
    if node.op == "Const" or node.op in RANDOM_OPS or node.op in EXPLICIT_OPS or "Random" in node.op:
        return True
    sources = [reference.partition(":")[0] for reference in node.input if not reference.startswith("^")]
    return bool(sources) and drawn.issuperset(sources)


def _round(body: Body, node: Node, dtype: tf.DType) -> None:
    for number, output in enumerate(arguments_of(node, body.definition(node).output_arg)):
        if output.dtype == _FLOAT32 and not output.name.startswith(_NO_NUMBER):
            rounded = body.add("Cast", node, [body.output(node, number)], SrcT=tf.float32, DstT=dtype)
            widened = body.add("Cast", node, [body.output(rounded)], SrcT=dtype, DstT=tf.float32)
            body.replace_output(node, number, widened, by_way_of=rounded)
