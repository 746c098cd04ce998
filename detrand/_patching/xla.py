"""Private names of TensorFlow for programs that XLA compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import (
    cond_v2,
    control_flow_util,
    control_flow_v2_func_graphs,
    handle_data_util,
    random_ops,
    while_v2,
)

from detrand._patching.patches import Patches, Target, stand_in
from detrand.changes import Changes

CALL_IN_GRAPH = Target(
    "tensorflow.python.eager.polymorphic_function.atomic_function",
    "make_call_op_in_graph",
    ("atomic", "tensor_inputs", "context_call_attrs"),
)
LIFT_TO_GRAPH = Target("tensorflow.python.eager.lift_to_graph", "lift_to_graph", ("tensors", "graph", "sources"))
VECTORIZE = Target(
    "tensorflow.python.ops.parallel_for.control_flow_ops", "_pfor_impl", ("loop_fn", "iters", "fallback_to_while_loop")
)
IS_TRAINABLE = Target("tensorflow.python.eager.backprop_util", "IsTrainable", ("tensor_or_dtype",))
_IS_VECTORIZED = "_detrand_is_vectorized"
_COUNTER = "_detrand_counter"
_UNCHANGED = "DetrandUnchanged"


@ops.RegisterGradient(_UNCHANGED)
def _gradient_of_unchanged(op: Any, of_value: Any, of_original: Any) -> list[Any]:
    return [None, of_value]


def with_gradient_of(original: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return a value, in a graph, whose gradient is passed on to the tensor that it was computed from.

    ``tf.custom_gradient`` would register a function for each call, which keeps the graph as long as the process lives.
    """
    with record.stop_recording(), ops.get_default_graph().gradient_override_map({"IdentityN": _UNCHANGED}):
        value, _ = tf.identity_n([value, original])
    record.record_operation(_UNCHANGED, [value], [original], lambda gradient: [gradient])
    return value


def is_compiled() -> bool:
    """Return whether XLA will compile what is added to the default graph, here or in a function around it."""
    graph = ops.get_default_graph()
    # A session's graph has neither; ops are added to it by the thousand, so this is checked first.
    return (graph._control_flow_context is not None or hasattr(graph, "outer_graph")) and (
        control_flow_util.GraphOrParentsInXlaContext(graph)
    )


def replace_add_in_random_ops(patches: Patches, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function that adds the mean or the lower bound to the product of a draw and a factor."""
    math_ops = random_ops.math_ops
    patches.set(random_ops, "math_ops", stand_in(math_ops, add=make(math_ops.add)))


def has_sessions() -> bool:
    """Return whether a session runs the default graph, or the graph that calls it as a function."""
    return not ops.executing_eagerly_outside_functions()


@contextlib.contextmanager
def vectorizing() -> Iterator[None]:
    """Mark what is added to the default graph in the block as the body of a ``tf.vectorized_map``."""
    graph = ops.get_default_graph()
    with Changes() as changes:
        changes.on_undo(setattr, graph, _IS_VECTORIZED, getattr(graph, _IS_VECTORIZED, False))
        setattr(graph, _IS_VECTORIZED, True)
        yield


def part_without_state() -> str | None:
    """Return the part of a program to which ops are added, if no op can count its runs there in XLA or TensorFlow."""
    graph = ops.get_default_graph()
    while graph is not None:
        if isinstance(graph, while_v2._WhileBodyGradFuncGraph):
            return "the gradient of a loop"
        if isinstance(graph, cond_v2._CondGradFuncGraph):
            return "the gradient of a conditional"
        if isinstance(graph, control_flow_v2_func_graphs.WhileCondFuncGraph):
            return "the condition of a loop"
        if getattr(graph, _IS_VECTORIZED, False):
            return "a tf.vectorized_map"
        graph = getattr(graph, "outer_graph", None)
    return None


def new_counter() -> tf.Tensor:
    """Return a resource that holds an int64, initially 0: a variable to kernels, but no ``tf.Variable``."""
    with tf.init_scope():
        counter = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=context.anonymous_name())
        tf.raw_ops.AssignVariableOp(resource=counter, value=tf.constant(0, tf.int64))
    # The gradients of loops look for it.
    handle_data_util.set_handle_data(counter, handle_data_util.create_handle_data(tf.TensorShape([]), tf.int64))
    setattr(counter, _COUNTER, True)
    return counter


def holds_int64(tensor: Any) -> bool:
    """Return whether a tensor is a resource that holds an int64, as counters do."""
    if getattr(tensor, "dtype", None) != tf.resource:
        return False
    held = handle_data_util.get_handle_data(tensor)
    return held is not None and [each.dtype for each in held.shape_and_type] == [tf.int64.as_datatype_enum]


def counters_captured_by(tensors: list[Any]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Return the counters that the graph of some tensors captures, each with its placeholder in the graph."""
    graph = tensors[0].graph
    captures = graph.captures if isinstance(graph, func_graph.FuncGraph) else ()
    return [(outside, inside) for outside, inside in captures if getattr(outside, _COUNTER, False)]


def ops_of_function(atomic: Any) -> Iterator[Any]:
    """Yield the ops of a function and of the functions that it calls."""
    seen: set[str] = set()
    waiting = [atomic]
    while waiting:
        function = waiting.pop()
        if function.cached_definition.signature.name in seen:
            continue
        seen.add(function.cached_definition.signature.name)
        yield from function.graph.get_operations()
        waiting.extend(function.children)
