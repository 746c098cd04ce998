"""`Program`: the ops of either program and what they computed, from a run or from a golden file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.arguments import shorten
from detrand.comparison.values import leaves_by_path
from detrand.validation.migration import Migration
from detrand.validation.noise.measurement import noise_of_tensors
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, functions_as_written, port_scope
from detrand.validation.programs.tf1 import caller_of, run_tf1, tf1_program

# What is given, or says nothing by itself.
_GIVEN = ("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "NoOp")
# Attributes that do not change what an op computes.
_OF_NO_MEANING = {"_output_shapes", "_class", "container", "shared_name", "seed", "seed2"}
_VARIABLES = ("ReadVariableOp",)
# A file has all elements of a tensor up to this size, and of a larger one some.
_WHOLE, _OF_LARGER = 16384, 1024


@dataclass(frozen=True)
class TracedOp:
    """An op of a graph.

    Attributes:
      name: its name.
      type: its type.
      line: ``file:line`` of the user's code that added it.
      inputs: the names of the ops that it takes something from.
      attributes: its attributes and the inputs of it that are constants, as text.
    """

    name: str
    type: str
    line: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, op: tf.Operation) -> TracedOp:
        """Returns what there is to know of an op of a graph."""
        inputs = tuple(dict.fromkeys(tensor.op.name for tensor in op.inputs))
        attributes = _attributes(op) if is_watched(op) else {}
        return cls(op.name, op.type, str(caller_of(op)), inputs, attributes)

    def __str__(self) -> str:
        return f"{self.name} ({self.type}) at {self.line}"


@dataclass(frozen=True)
class Value:
    """What an op computed: all of it, or elements that are spread over it.

    Attributes:
      shape: of the whole array.
      elements: those that are known, in a row.
      weight: the sum of the absolute values of all elements; 0 if one is not finite. Arrays that are close have about
        the same.
    """

    shape: tuple[int, ...]
    elements: np.ndarray
    weight: float

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        """Returns all of an array."""
        wide = array.astype(np.float64)
        return cls(array.shape, array.reshape(-1), float(np.abs(wide).sum()) if np.isfinite(wide).all() else 0.0)

    @property
    def size(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the array."""
        return self.elements.dtype

    @property
    def is_whole(self) -> bool:
        """Whether all elements are known."""
        return self.elements.size == self.size

    @property
    def array(self) -> np.ndarray | None:
        """The array, if all of it is known."""
        return self.elements.reshape(self.shape) if self.is_whole else None

    def thinned(self) -> Value:
        """Returns the same with some elements, if it is large."""
        return self if self.size <= _WHOLE else replace(self, elements=self.elements[_spread(self.size, _OF_LARGER)])

    def paired_with(self, other: Value) -> tuple[np.ndarray, np.ndarray]:
        """Returns the elements that it has, and those at the same places of a whole array of its size."""
        return self.elements, other.elements if self.is_whole else other.elements[
            _spread(self.size, self.elements.size)
        ]


def _spread(size: int, count: int) -> np.ndarray:
    """Returns places in a row, each once, that do not keep in step with the rows and channels of an array."""
    step = int(size * 0.618)
    while math.gcd(step, size) > 1:
        step += 1
    return np.arange(count, dtype=np.int64) * step % size


@dataclass(frozen=True)
class Program:
    """The ops that outputs of a program depend on, and what they computed.

    Attributes:
      ops: by name, in the order in which they were added to the graph.
      outputs: the names of the ops that compute the outputs, by the outputs' paths.
      values: what the ops computed that tell something, by name.
      noise: the absolute difference that an op of the port may have, by the name of TF1's, where the noise floor
        decides; None where the migration does.
    """

    ops: Mapping[str, TracedOp]
    outputs: Mapping[str, str]
    values: Mapping[str, Value]
    noise: Mapping[str, float] | None = None

    @classmethod
    def traced(
        cls, operations: Iterable[tf.Operation], outputs: Mapping[str, str], values: Mapping[str, np.ndarray]
    ) -> Program:
        """Returns the program that the ops of a graph are.

        Args:
          operations: of the graph.
          outputs: the names of the ops that compute the outputs, by the outputs' paths.
          values: what ops computed, by name.
        """
        by_name = {op.name: op for op in operations}
        needed = _needed(outputs.values(), lambda name: [tensor.op.name for tensor in by_name[name].inputs], by_name)
        ops = {name: TracedOp.of(op) for name, op in by_name.items() if name in needed}
        told = {name: Value.of(value) for name, value in values.items() if name in needed and _tells(value)}
        return cls(ops, {path: name for path, name in outputs.items() if name in by_name}, told)

    def of_outputs(self, paths: Collection[str]) -> Program:
        """Returns the part of it that computes some outputs; all of it, if it has none of these."""
        picked = {path: name for path, name in self.outputs.items() if path in paths} or dict(self.outputs)
        needed = _needed(picked.values(), lambda name: self.ops[name].inputs, self.ops)
        ops = {name: op for name, op in self.ops.items() if name in needed}
        return replace(
            self, ops=ops, outputs=picked, values={name: self.values[name] for name in ops if name in self.values}
        )

    def alone(self, matched: Collection[str]) -> list[TracedOp]:
        """Returns the ops without a counterpart from which nothing comes that has one, in order.

        Args:
          matched: the names of the ops that have a counterpart.
        """
        leads_to_matched: set[str] = set()
        for op in reversed(list(self.ops.values())):
            if op.name in matched or op.name in leads_to_matched:
                leads_to_matched.update(op.inputs)
        alone = self.values.keys() - set(matched) - leads_to_matched
        return [op for op in self.ops.values() if op.name in alone]

    def sources(self, op: TracedOp | None) -> list[TracedOp]:
        """Returns the ops that tell something and that an op is computed from, past those that tell nothing."""
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [] if op is None else list(op.inputs)
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.ops:
                continue
            seen.add(name)
            if name in self.values:
                found.add(name)
            else:
                waiting += self.ops[name].inputs
        return [one for name, one in self.ops.items() if name in found]

    def recorded(self, *, joined_variables: bool) -> dict[str, Any]:
        """Returns it as a structure for a file: of large tensors some elements.

        Args:
          joined_variables: whether it has all elements of the variables, however large.
        """
        ops = [[op.name, op.type, op.line, op.inputs, dict(op.attributes)] for op in self.ops.values()]
        values = {
            name: value if joined_variables and self.ops[name].type in _VARIABLES else value.thinned()
            for name, value in self.values.items()
        }
        return {
            "ops": json.dumps(ops),
            "outputs": dict(self.outputs),
            "values": {name: [value.shape, value.elements, value.weight] for name, value in values.items()},
            "noise": None if self.noise is None else dict(self.noise),
        }

    @classmethod
    def from_record(cls, recorded: Mapping[str, Any]) -> Program:
        """Returns what `recorded` has returned."""
        ops = [
            TracedOp(name, kind, line, tuple(of), given) for name, kind, line, of, given in json.loads(recorded["ops"])
        ]
        values = {
            name: Value(tuple(shape), np.asarray(elements), weight)
            for name, (shape, elements, weight) in recorded["values"].items()
        }
        return cls({op.name: op for op in ops}, recorded["outputs"], values, recorded["noise"])


def is_watched(op: tf.Operation) -> bool:
    """Returns whether an op computes numbers of the model, and not shapes and the like."""
    if op.type in _GIVEN or not op.outputs:
        return False
    dtype = op.outputs[0].dtype
    return dtype.is_floating or dtype.is_bool


def _tells(value: np.ndarray) -> bool:
    """Returns whether an array is of a kind that two programs do not compute by chance: all zeros are everywhere."""
    return value.size > 1 and bool((value != value.reshape(-1)[0]).any())


def _needed(outputs: Iterable[str], inputs_of: Callable[[str], Iterable[str]], known: Collection[str]) -> set[str]:
    """Returns the names of the ops that outputs are computed from."""
    needed: set[str] = set()
    waiting = [name for name in outputs if name in known]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [each for each in inputs_of(name) if each in known]
    return needed


def _attributes(op: tf.Operation) -> dict[str, str]:
    names = [attr.name for attr in op.op_def.attr if attr.name not in _OF_NO_MEANING]
    found = {f"attribute {name}": _attribute(op, name) for name in names}
    for number, tensor in enumerate(op.inputs):
        constant = tf.get_static_value(tensor)
        if constant is not None:
            found[f"input {number}"] = shorten(str(constant), 60)
    return found


def _attribute(op: tf.Operation, name: str) -> str:
    value: Any = op.get_attr(name)
    if isinstance(value, bytes):
        return value.decode()
    return f"{value:.7g}" if isinstance(value, float) else shorten(str(value), 60)


def trace_tf1(migration: Migration, config: RunConfig) -> Program:
    """Runs the TF1 program once more, and looks at all of its tensors; at their noise, too, if it decides."""
    operations: list[tf.Operation] = []

    def watch(graph: tf.Graph) -> dict[str, tf.Tensor]:
        operations[:] = graph.get_operations()
        return _watched_in_tf1(graph)

    outcome = run_tf1(migration, config, watch)
    outputs = {path: origin.name for path, origin in outcome.origins.items()}
    program = Program.traced(operations, outputs, outcome.inner)
    if migration.tolerances != "auto" and migration.dtype_policy is None:
        return program
    with tf1_program(migration, config) as tf1:
        tf1.set_variables(migration, config)
        noise = noise_of_tensors(migration, tf1, _watched_in_tf1(tf1.session.graph))
    return replace(program, noise={name: of_op.tolerance for name, of_op in noise.outputs.items()})


def _watched_in_tf1(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns the tensors of a TF1 graph that tell something of the model, by the names of their ops."""
    return {op.name: op.outputs[0] for op in graph.get_operations() if graph.is_fetchable(op) and is_watched(op)}


def trace_port(migration: Migration, config: RunConfig) -> Program:
    """Runs a new port as a ``tf.function``, and looks at all of its tensors."""
    operations: list[tf.Operation] = []
    outputs: dict[str, str] = {}

    with port_scope(migration, config), functions_as_written():
        port = Port(migration)
        if config.mode is None:
            port(config.training)  # creates the variables
            port.reset(config)

        def look(returned: Any) -> dict[str, tf.Tensor]:
            operations[:] = tf.compat.v1.get_default_graph().get_operations()
            outputs.update(
                (path, leaf.op.name) for path, leaf in leaves_by_path(returned).items() if isinstance(leaf, tf.Tensor)
            )
            return {op.name: op.outputs[0] for op in operations if is_watched(op)}

        values = {
            name: (value if migration.dtype_policy is None else _narrowed(value)).numpy()
            for name, value in port.in_function(config.training, look).items()
        }
    return Program.traced(operations, outputs, values)


def _narrowed(tensor: tf.Tensor) -> tf.Tensor:
    """Returns what a port has computed in the dtype of a policy, in TF1's."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor
