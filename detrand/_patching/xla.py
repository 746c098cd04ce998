"""What detrand uses of TensorFlow without a public name where XLA compiles a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import control_flow_util, random_ops

from detrand._patching.patches import Patches, StandIn, Target

CALL_IN_GRAPH = Target(
    "tensorflow.python.eager.polymorphic_function.atomic_function",
    "make_call_op_in_graph",
    ("atomic", "tensor_inputs", "context_call_attrs"),
)
LIFT_TO_GRAPH = Target("tensorflow.python.eager.lift_to_graph", "lift_to_graph", ("tensors", "graph", "sources"))
_COUNTER = "_detrand_counter"


def is_compiled() -> bool:
    """Returns whether what is added to the default graph will be compiled by XLA: here, or around the function."""
    graph = ops.get_default_graph()
    # A session's graph, to which ops are added by the thousand, has neither, and that is soon known.
    return (graph._control_flow_context is not None or hasattr(graph, "outer_graph")) and (
        control_flow_util.GraphOrParentsInXlaContext(graph)
    )


def replace_add_in_random_ops(patches: Patches, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces what adds the mean, or the lower bound, to the product of what is drawn and a factor."""
    math_ops = random_ops.math_ops
    patches.set(random_ops, "math_ops", StandIn(math_ops, add=make(math_ops.add)))


def has_sessions() -> bool:
    """Returns whether the default graph is run by a session, by itself or as a function of a graph that is."""
    return not ops.executing_eagerly_outside_functions()


def new_counter() -> tf.Tensor:
    """Returns a resource that holds an int64, 0 at first: a variable as far as kernels see, and to nobody else."""
    with tf.init_scope():
        counter = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=context.anonymous_name())
        tf.raw_ops.AssignVariableOp(resource=counter, value=tf.constant(0, tf.int64))
    setattr(counter, _COUNTER, True)
    return counter


def counters_captured_by(tensors: list[Any]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the counters that the graph of some tensors uses, each with what stands for it there."""
    graph = tensors[0].graph
    captures = graph.captures if isinstance(graph, func_graph.FuncGraph) else ()
    return [(outside, inside) for outside, inside in captures if getattr(outside, _COUNTER, False)]


def ops_of_function(atomic: Any) -> Iterator[Any]:
    """Yields the ops of a function, and those of the functions that it calls."""
    seen: set[str] = set()
    waiting = [atomic]
    while waiting:
        function = waiting.pop()
        if function.cached_definition.signature.name in seen:
            continue
        seen.add(function.cached_definition.signature.name)
        yield from function.graph.get_operations()
        waiting.extend(function.children)
