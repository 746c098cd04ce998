"""Runs either program once more, and looks at all of its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from detrand.comparison.values import leaves_by_path
from detrand.validation.execution import Setting
from detrand.validation.migration import Migration
from detrand.validation.noise_measurement import measure_noise_floor
from detrand.validation.port_execution import Port, functions_as_written, port_scope
from detrand.validation.tf1_execution import run_tf1
from detrand.validation.traced_program import Program, is_watched


def trace_tf1(migration: Migration, setting: Setting) -> Program:
    """Runs the TF1 program once more, and looks at all of its tensors; at their noise, too, if it decides."""
    operations: list[tf.Operation] = []

    def watch(graph: tf.Graph) -> dict[str, tf.Tensor]:
        operations[:] = graph.get_operations()
        return _watched_in_tf1(graph)

    outcome = run_tf1(migration, setting, watch)
    outputs = {path: origin.name for path, origin in outcome.origins.items()}
    program = Program.traced(operations, outputs, outcome.inner)
    if migration.tolerance != "auto" and migration.dtype_policy is None:
        return program
    noise = measure_noise_floor(migration, setting, _watched_in_tf1).outputs
    return replace(program, noise={name: of_op.tolerance for name, of_op in noise.items()})


def _watched_in_tf1(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns the tensors of a TF1 graph that tell something of the model, by the names of their ops."""
    return {op.name: op.outputs[0] for op in graph.get_operations() if graph.is_fetchable(op) and is_watched(op)}


def trace_port(migration: Migration, setting: Setting) -> Program:
    """Runs a new port as a ``tf.function``, and looks at all of its tensors."""
    operations: list[tf.Operation] = []
    outputs: dict[str, str] = {}

    with port_scope(migration, setting), functions_as_written():
        port = Port(migration)
        if setting.mode is None:
            port(setting.training)  # creates the variables
            port.reset(setting)

        def look(returned: Any) -> dict[str, tf.Tensor]:
            operations[:] = tf.compat.v1.get_default_graph().get_operations()
            outputs.update(
                (path, leaf.op.name) for path, leaf in leaves_by_path(returned).items() if isinstance(leaf, tf.Tensor)
            )
            return {op.name: op.outputs[0] for op in operations if is_watched(op)}

        values = {
            name: (value if migration.dtype_policy is None else _narrowed(value)).numpy()
            for name, value in port.in_function(setting.training, look).items()
        }
    return Program.traced(operations, outputs, values)


def _narrowed(tensor: tf.Tensor) -> tf.Tensor:
    """Returns what a port has computed in the dtype of a policy, in TF1's."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor
