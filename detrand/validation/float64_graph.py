"""A graph that computes in float64 what another one computes in float32, float16 or bfloat16.

Every edge that carried such a number carries a float64. Ops that draw random numbers stay as they are, or they would
draw others; what they draw is converted, exactly. So do ops that have no kernel for float64 or whose definition says
float32: what they take is rounded, and what they compute is converted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching import EXPLICIT_OPS, RANDOM_OPS
from detrand._patching.op_registry import has_float64_kernel
from detrand.validation.graph_bodies import Body, Node, argument_dtypes, argument_names, bodies_of

_DOUBLE = tf.float64.as_datatype_enum
_NARROW = frozenset(dtype.as_datatype_enum for dtype in (tf.float16, tf.bfloat16, tf.float32))
_NO_NUMBER = "flow"  # the argument by which ops on a TensorArray wait for each other
# What these make of a number depends on its dtype.
_OF_DTYPE = frozenset(("Bitcast", "DecodeRaw", "PyFunc", "PyFuncStateless", "EagerPyFunc"))


def widen_to_float64(graph_def: Any) -> tuple[dict[str, str], Counter[str]]:
    """Lets a graph, and its functions, compute in float64, in place.

    Args:
      graph_def: a ``GraphDef``.

    Returns:
      What now is called otherwise, of the tensors of the graph: old name to new; and how many ops of which type still
      round, random ones left out.

    Raises:
      ValueError: if it has an op that nobody knows.
    """
    kept: Counter[str] = Counter()
    bodies = bodies_of(graph_def)  # before the signatures of functions change
    for body in bodies:
        for node in body.original_nodes():
            if not _widen(body, node):
                kept[node.op] += 1
        body.finish()
    for function in graph_def.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = _wide(argument.type)
            for handle in argument.handle_data:
                handle.dtype = _wide(handle.dtype)
    return bodies[0].rerouted, kept


def _wide(dtype: int) -> int:
    return _DOUBLE if dtype in _NARROW else dtype


def _widen(body: Body, node: Node) -> bool:
    """Lets a node compute in float64; returns False for one that, other than by drawing, still rounds to less."""
    definition = body.definition(node)
    for attribute in definition.attr:
        if attribute.type == "type" and attribute.name not in node.attr and attribute.default_value.type:
            node.attr[attribute.name].type = attribute.default_value.type
    before = [argument_dtypes(arguments, node) for arguments in (definition.input_arg, definition.output_arg)]
    draws = node.op in RANDOM_OPS or node.op in EXPLICIT_OPS or "Random" in node.op
    narrow = frozenset(
        attribute.name
        for attribute in definition.attr
        if attribute.type == "type" and node.attr[attribute.name].type in _NARROW
    )
    lacks_kernel = bool(narrow) and not has_float64_kernel(node.op, narrow)
    stays = draws or lacks_kernel or node.op in _OF_DTYPE
    if not stays:
        _widen_attributes(node)
    after = [argument_dtypes(arguments, node) for arguments in (definition.input_arg, definition.output_arg)]
    rounds = False
    inputs, outputs = (argument_names(arguments, node) for arguments in (definition.input_arg, definition.output_arg))
    for number, (old, new) in enumerate(zip(before[0], after[0], strict=True)):
        if old in _NARROW and new != _DOUBLE:
            cast = body.add("Cast", node, [node.input[number]], SrcT=tf.float64, DstT=tf.as_dtype(new))
            node.input[number] = body.output(cast)
            rounds |= not inputs[number][0].startswith(_NO_NUMBER)
    for number, (old, new) in enumerate(zip(before[1], after[1], strict=True)):
        if old in _NARROW and new != _DOUBLE:
            cast = body.add("Cast", node, [body.output(node, number)], SrcT=tf.as_dtype(new), DstT=tf.float64)
            body.replace_output(node, number, cast)
            rounds |= not outputs[number][0].startswith(_NO_NUMBER)
    return draws or not rounds


def _widen_attributes(node: Node) -> None:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "type":
            value.type = _wide(value.type)
        elif kind == "list":
            value.list.type[:] = [_wide(dtype) for dtype in value.list.type]
        elif kind == "tensor" and value.tensor.dtype in _NARROW:
            value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(np.float64)))
