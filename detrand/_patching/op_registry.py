"""What TensorFlow's registries know by name: definitions of ops, the dtypes of their kernels, functions of a graph."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry


def op_def(op_type: str) -> Any:
    """Returns the ``OpDef`` of an op; None if there is none, as for the call of a function by its name."""
    return op_def_registry.get(op_type)


def function_graphs(op: Any) -> list[Any]:
    """Returns the graphs of the functions that an op of a graph calls; of a loop, that of its body alone."""
    kinds = {attr.name: attr.type for attr in op.op_def.attr if attr.type in ("func", "list(func)")}
    names = ["body"] if "body" in kinds else list(kinds)
    called = [each for name in names for each in _as_list(op.get_attr(name))]
    functions = [op.graph._get_function(each.name) for each in called]
    return [function.graph for function in functions if getattr(function, "graph", None) is not None]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@functools.cache
def has_float64_kernel(op_type: str, type_attributes: frozenset[str]) -> bool:
    """Returns whether an op can run on the CPU with float64 for each of some attributes that are dtypes."""
    for attribute in op_def(op_type).attr:
        allowed = attribute.allowed_values.list.type
        if attribute.name in type_attributes and allowed and types_pb2.DT_DOUBLE not in allowed:
            return False
    registered = kernels.get_registered_kernels_for_op(op_type).kernel
    return not registered or any(
        all(
            types_pb2.DT_DOUBLE in constraint.allowed_values.list.type
            for constraint in kernel.constraint
            if constraint.name in type_attributes
        )
        for kernel in registered
        if kernel.device_type in ("CPU", "DEFAULT")
    )
