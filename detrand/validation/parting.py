"""Where two programs part: the op after which they no longer compute the same numbers, and its line.

Both programs are graphs: the TF1 one anyway, the port when a ``tf.function`` traces it. Names, and how many ops make
up a layer, do not matter: a tensor of one program has a counterpart if the other one computes the same numbers
somewhere, in any shape. Where an op has none, but all that it is computed from has, and nothing that is computed from
it has one again, the programs part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.arguments import shorten
from detrand.comparison.step_comparison import Tolerance
from detrand.comparison.values import LeafComparison, compare, leaves_by_path
from detrand.validation.execution import Port, Setting, caller_of, functions_as_written, port_scope, run_tf1
from detrand.validation.migration import Migration
from detrand.validation.noise_measurement import measure_noise_floor

_SHOWN = 4
# What is given, or says nothing by itself.
_GIVEN = ("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "NoOp")
# Attributes that do not change what an op computes.
_OF_NO_MEANING = {"_output_shapes", "_class", "container", "shared_name", "seed", "seed2"}


@dataclass(frozen=True)
class Parting:
    """Where two programs part; ``str()`` tells of it.

    Attributes:
      tf1: the first op of TF1 that the port has no counterpart of, with its line; None if every one of its ops has one.
      port: the first op of the port that TF1 has no counterpart of, likewise; None if every one of its ops has one.
      after: the ops that they agree in right before, as TF1 names them, or the port if it alone goes on.
      leaf: how the two differ; None where they have other shapes.
      settings: what of the two is set otherwise, attributes and constant inputs, with its value in either program.
      types: the types of the two ops; empty where there is none.
      tf1_value: what TF1's op computes; None if it has none.
      port_value: what the port's computes; None if it has none.
      tf1_sources: what TF1's op is computed from.
      port_sources: what the port's op is computed from.
    """

    tf1: str | None
    port: str | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    settings: Mapping[str, tuple[str, str]]
    types: tuple[str, str]
    tf1_value: np.ndarray | None = field(repr=False)
    port_value: np.ndarray | None = field(repr=False)
    tf1_sources: tuple[np.ndarray, ...] = field(repr=False)
    port_sources: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def op(self) -> str:
        """The op to look at, with its line: TF1's, or the port's where that alone goes on."""
        return self.tf1 or self.port or ""

    def __str__(self) -> str:
        if self.after:
            more = f" and {len(self.after) - _SHOWN} more" if len(self.after) > _SHOWN else ""
            agree = f"both compute the same up to {', '.join(self.after[:_SHOWN])}{more}; then"
        else:
            agree = "at a variable, or at what is computed from inputs and variables alone;"
        lines = [f"where the programs part: {agree}"]
        lines += [f"  TF1 computes       {self.tf1 or 'nothing that the port does not'}"]
        lines += [f"  the port computes  {self.port or 'nothing that TF1 does not'}"]
        lines += [f"  {name}: {tf1} in TF1, {port} in the port" for name, (tf1, port) in self.settings.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            lines.append(
                f"  {self.leaf.mismatched:,} of {self.leaf.size:,} elements differ; greatest absolute difference: "
                f"{self.leaf.greatest_absolute}"
            )
        return "\n".join(lines)


def find_parting(migration: Migration, setting: Setting, differing: Collection[str] = ()) -> Parting | None:
    """Runs both programs once more, and finds where they part.

    Args:
      migration: the migration.
      setting: how to run them; with mode None, with its ``constant``.
      differing: the paths of the outputs that differ, for which it is looked; all by default. What agrees again in
        other outputs, in a softmax of small numbers, say, does not count then.

    Returns:
      The place; None if every tensor that the outputs are computed from has a counterpart, in either program.
    """
    port = _run_port(migration, setting, differing)
    tf1 = _run_tf1(migration, setting, differing)
    tolerance_of = _tolerances(migration, setting)
    tf1_matched, port_matched = _match(tf1.values, port.values, tolerance_of)
    ours, theirs = tf1.first_alone(tf1_matched), port.first_alone(port_matched)
    if ours is None and theirs is None:
        return None
    if ours is not None and theirs is not None and ours.type != theirs.type:
        # An op whose setting makes next to no difference, an epsilon of 1e-6 say, has a counterpart in its own input.
        pairs = [(one, theirs) for one in tf1.sources(ours)] + [(ours, other) for other in port.sources(theirs)]
        alike = [pair for pair in pairs if pair[0].type == pair[1].type and _other_settings(*pair)]
        ours, theirs = alike[0] if alike else (ours, theirs)
    leaf = None
    if ours is not None and theirs is not None and tf1.values[ours.name].shape == port.values[theirs.name].shape:
        tolerance = tolerance_of(ours.name)
        leaf = compare(port.values[theirs.name], tf1.values[ours.name], tolerance.rtol, tolerance.atol).leaves[0]
    return Parting(
        tf1=None if ours is None else _described(ours),
        port=None if theirs is None else _described(theirs),
        after=tf1.agreed_before(ours, tf1_matched) if ours is not None else port.agreed_before(theirs, port_matched),
        leaf=leaf,
        settings={} if ours is None or theirs is None else _other_settings(ours, theirs),
        types=("" if ours is None else ours.type, "" if theirs is None else theirs.type),
        tf1_value=None if ours is None else tf1.values[ours.name],
        port_value=None if theirs is None else port.values[theirs.name],
        tf1_sources=tf1.values_before(ours),
        port_sources=port.values_before(theirs),
    )


class _Program:
    """The ops of a program that its outputs depend on, and what they computed.

    Attributes:
      operations: in the order in which they were added to the graph.
      values: what the ops computed that tell something, by name.
    """

    def __init__(self, operations: Iterable[tf.Operation], outputs: Iterable[str], values: Mapping[str, np.ndarray]):
        by_name = {op.name: op for op in operations}
        needed: set[str] = set()
        waiting = [name for name in outputs if name in by_name]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += [tensor.op.name for tensor in by_name[name].inputs if tensor.op.name in by_name]
        self.operations = [op for name, op in by_name.items() if name in needed]
        self.values = {name: value for name, value in values.items() if name in needed and _tells(value)}

    def first_alone(self, matched: set[str]) -> tf.Operation | None:
        """Returns the first op without a counterpart from which nothing comes that has one, if there is one."""
        leads_to_matched: set[str] = set()
        for op in reversed(self.operations):
            if op.name in matched or op.name in leads_to_matched:
                leads_to_matched.update(tensor.op.name for tensor in op.inputs)
        alone = self.values.keys() - matched - leads_to_matched
        return next((op for op in self.operations if op.name in alone), None)

    def agreed_before(self, op: tf.Operation | None, matched: set[str]) -> tuple[str, ...]:
        """Returns the ops that an op is computed from and that have a counterpart, with their lines."""
        return tuple(_described(source) for source in self.sources(op) if source.name in matched)

    def values_before(self, op: tf.Operation | None) -> tuple[np.ndarray, ...]:
        """Returns what an op is computed from."""
        return tuple(self.values[source.name] for source in self.sources(op))

    def sources(self, op: tf.Operation | None) -> list[tf.Operation]:
        """Returns the ops that tell something and that an op is computed from, past those that tell nothing."""
        found: dict[str, tf.Operation] = {}
        seen: set[str] = set()
        waiting = [] if op is None else [tensor.op for tensor in op.inputs]
        while waiting:
            current = waiting.pop()
            if current.name in seen:
                continue
            seen.add(current.name)
            if current.name in self.values:
                found[current.name] = current
            else:
                waiting += [tensor.op for tensor in current.inputs]
        return [one for one in self.operations if one.name in found]


def _run_tf1(migration: Migration, setting: Setting, differing: Collection[str]) -> _Program:
    operations: list[tf.Operation] = []

    def watch(graph: tf.Graph) -> dict[str, tf.Tensor]:
        operations[:] = graph.get_operations()
        return _watched_in_tf1(graph)

    outcome = run_tf1(migration, setting, watch)
    outputs = {path: origin.name for path, origin in outcome.origins.items()}
    return _Program(operations, _picked(outputs, differing), outcome.inner)


def _watched_in_tf1(graph: tf.Graph) -> dict[str, tf.Tensor]:
    return {op.name: op.outputs[0] for op in graph.get_operations() if graph.is_fetchable(op) and _is_watched(op)}


def _tolerances(migration: Migration, setting: Setting) -> Callable[[str], Tolerance]:
    """Returns how close to TF1's an op of the port must be, by the name of TF1's."""
    if migration.tolerance != "auto":
        return lambda name: migration.output_tolerances.otherwise
    noise = measure_noise_floor(migration, setting, _watched_in_tf1).outputs
    exact = Tolerance(rtol=0.0, atol=0.0)
    return lambda name: Tolerance(rtol=0.0, atol=noise[name].tolerance) if name in noise else exact


def _picked(outputs: Mapping[str, str], differing: Collection[str]) -> list[str]:
    """Returns the names of the ops that compute outputs which differ; of all, where that is not known."""
    return [name for path, name in outputs.items() if path in differing] or list(outputs.values())


def _run_port(migration: Migration, setting: Setting, differing: Collection[str]) -> _Program:
    """Runs a new port as a ``tf.function``."""
    operations: list[tf.Operation] = []
    outputs: dict[str, str] = {}

    with port_scope(migration, setting), functions_as_written():
        port = Port(migration)
        if setting.constant is not None:
            port(setting.training)  # creates the variables
            port.reset(setting.constant)

        def look(returned: Any) -> dict[str, tf.Tensor]:
            operations[:] = tf.compat.v1.get_default_graph().get_operations()
            outputs.update(
                (path, leaf.op.name) for path, leaf in leaves_by_path(returned).items() if isinstance(leaf, tf.Tensor)
            )
            return {op.name: op.outputs[0] for op in operations if _is_watched(op)}

        values = {name: value.numpy() for name, value in port.in_function(setting.training, look).items()}
    return _Program(operations, _picked(outputs, differing), values)


def _is_watched(op: tf.Operation) -> bool:
    """Returns whether an op computes numbers of the model, and not shapes and the like."""
    if op.type in _GIVEN or not op.outputs:
        return False
    dtype = op.outputs[0].dtype
    return dtype.is_floating or dtype.is_bool


def _tells(value: np.ndarray) -> bool:
    """Returns whether an array is of a kind that two programs do not compute by chance: all zeros are everywhere."""
    return value.size > 1 and bool((value != value.reshape(-1)[0]).any())


def _match(
    tf1: Mapping[str, np.ndarray], port: Mapping[str, np.ndarray], tolerance_of: Callable[[str], Tolerance]
) -> tuple[set[str], set[str]]:
    """Returns the names of the arrays, in either program, that the other one has, too."""
    candidates: dict[tuple[int, str], list[tuple[str, np.ndarray, float]]] = {}
    for name, value in port.items():
        candidates.setdefault((value.size, value.dtype.kind), []).append((name, value.reshape(-1), _weight(value)))
    ours, theirs = set(), set()
    for name, value in tf1.items():
        weight, flat, tolerance = _weight(value), value.reshape(-1), tolerance_of(name)
        rtol, atol = tolerance.rtol, tolerance.atol
        for other, array, other_weight in candidates.get((value.size, value.dtype.kind), ()):
            near = abs(weight - other_weight) <= 2 * (atol * value.size + rtol * abs(weight))
            if near and compare(array, flat, rtol, atol, equal_nan=True, check_dtype=False):
                ours.add(name)
                theirs.add(other)
    return ours, theirs


def _weight(value: np.ndarray) -> float:
    """Returns a number that arrays which are close have about the same of, to look at few pairs closely."""
    return float(np.abs(value.astype(np.float64)).sum()) if np.isfinite(value).all() else 0.0


def _described(op: tf.Operation) -> str:
    return f"{op.name} ({op.type}) at {caller_of(op)}"


def _other_settings(op: tf.Operation, counterpart: tf.Operation) -> dict[str, tuple[str, str]]:
    if op.type != counterpart.type:
        return {}
    names = [attr.name for attr in op.op_def.attr if attr.name not in _OF_NO_MEANING]
    found = {f"attribute {name}": (_attribute(op, name), _attribute(counterpart, name)) for name in names}
    for number, (one, other) in enumerate(zip(op.inputs, counterpart.inputs, strict=False)):
        constants = tf.get_static_value(one), tf.get_static_value(other)
        if all(constant is not None for constant in constants):
            found[f"input {number}"] = shorten(str(constants[0]), 60), shorten(str(constants[1]), 60)
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _attribute(op: tf.Operation, name: str) -> str:
    value: Any = op.get_attr(name)
    if isinstance(value, bytes):
        return value.decode()
    return f"{value:.7g}" if isinstance(value, float) else shorten(str(value), 60)
