"""The first divergence: the op after which two programs no longer compute the same numbers, and its line.

`find_divergence` compares the traces of both programs. Names do not matter, nor how many ops make up a layer: a tensor
has a counterpart if the other program computes the same numbers anywhere, in any shape. The programs diverge at an op
that has no counterpart and from which no op with a counterpart is computed, while everything that it is computed from
has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.values import LeafComparison, compare
from detrand.steps.comparison import Tolerance
from detrand.validation.diagnosis.trace import Trace, TracedOp, Value, trace_port
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig
from detrand.variables.tf1_view import Shapes

_MOST_SHOWN = 4


@dataclass(frozen=True)
class Divergence:
    """The first divergence of two programs; ``str()`` describes it.

    Attributes:
      tf1: TF1's first op that has no counterpart; None if each of its ops has one.
      port: the port's first op that has no counterpart; None if each of its ops has one.
      after: the ops before it that agree, as TF1 names them, or as the port does if only the port goes on.
      leaf: how the values of the two ops compare; None if their shapes differ.
      attributes: the attributes and constant inputs of the two ops that differ, with TF1's value and the port's.
      unmatched: how many ops of each type have no counterpart from there on, TF1's and the port's.
      values: the values of TF1's op and of the port's op.
      sources: the values that TF1's op is computed from, and those that the port's op is computed from.
    """

    tf1: TracedOp | None
    port: TracedOp | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    attributes: Mapping[str, tuple[str, str]]
    unmatched: tuple[Counter[str], Counter[str]] = field(repr=False)
    values: tuple[Value | None, Value | None] = field(repr=False)
    sources: tuple[list[Value], list[Value]] = field(repr=False)

    @property
    def op(self) -> str:
        """The op to look at, with its line: TF1's, or the port's if only the port goes on."""
        return str(self.tf1 or self.port)

    @property
    def types(self) -> tuple[str, str]:
        """The types of TF1's op and of the port's; empty where there is none."""
        return "" if self.tf1 is None else self.tf1.type, "" if self.port is None else self.port.type

    def __str__(self) -> str:
        if self.after:
            lines = [f"First divergence. Identical up to {and_more(self.after, _MOST_SHOWN)}, then:"]
        else:
            lines = ["First divergence, at a variable or an op on inputs and variables only:"]
        lines += [f"  TF1 computes       {self.tf1 or 'nothing that the port does not compute'}"]
        lines += [f"  the port computes  {self.port or 'nothing that TF1 does not compute'}"]
        lines += [f"  {name} differs: {tf1} (TF1), {port} (port)" for name, (tf1, port) in self.attributes.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            tf1_value, _ = self.values
            kept = "elements" if tf1_value is None or tf1_value.is_whole else "recorded elements"
            lines.append(f"  {self.leaf.mismatched:,} of {self.leaf.size:,} {kept} differ")
            lines.append("  " + self.leaf.greatest_absolute.in_words("max |difference|"))
        return "\n".join(lines)


def find_divergence(
    migration: Migration,
    config: RunConfig,
    tf1: Trace,
    tf1_shapes: Shapes,
    differing: Collection[str] = (),
    initial: Mapping[str, np.ndarray] | None = None,
) -> Divergence | None:
    """Run the port once more, and return its first divergence from TF1, or None if every tensor has a counterpart.

    Only the ops that compute the outputs at the ``differing`` paths count; by default, those of all outputs. TF1's
    initial values are given if the programs ran with them.
    """
    port, tf1 = trace_port(migration, config, tf1_shapes, initial).of_outputs(differing), tf1.of_outputs(differing)
    tolerance_of = _tolerances(migration, tf1)
    counterparts = _match(tf1.values, port.values, tolerance_of)
    port_matched = {name for names in counterparts.values() for name in names}
    tf1_diverged, port_diverged = tf1.diverged(counterparts), port.diverged(port_matched)
    tf1_op, port_op = _first_ops(tf1, tf1_diverged, port, port_diverged, counterparts)
    if tf1_op is None and port_op is None:
        return None
    tf1_sources, port_sources = tf1.sources(tf1_op), port.sources(port_op)
    after, matched = (port_sources, port_matched) if tf1_op is None else (tf1_sources, counterparts)
    tf1_value = None if tf1_op is None else tf1.values[tf1_op.name]
    port_value = None if port_op is None else port.values[port_op.name]
    attributes = {} if tf1_op is None or port_op is None else _differing_attributes(tf1_op, port_op)
    if migration.dtype_policy is not None:
        attributes = {name: pair for name, pair in attributes.items() if not pair[0].startswith("<dtype:")}
    return Divergence(
        tf1=tf1_op,
        port=port_op,
        after=tuple(str(source) for source in after if source.name in matched),
        leaf=None if tf1_op is None else _compare_values(tf1_value, port_value, tolerance_of(tf1_op.name)),
        attributes=attributes,
        unmatched=(Counter(op.type for op in tf1_diverged), Counter(op.type for op in port_diverged)),
        values=(tf1_value, port_value),
        sources=([tf1.values[op.name] for op in tf1_sources], [port.values[op.name] for op in port_sources]),
    )


def ops_without_counterpart(migration: Migration, config: RunConfig, tf1: Trace, tf1_shapes: Shapes) -> list[TracedOp]:
    """Run the port once more, and return TF1's ops from the first divergence on."""
    port = trace_port(migration, config, tf1_shapes)
    return tf1.diverged(_match(tf1.values, port.values, _tolerances(migration, tf1)))


def _tolerances(migration: Migration, tf1: Trace) -> Callable[[str], Tolerance]:
    """Return the tolerance of a value of the port, by the name of TF1's op."""
    noise = tf1.noise
    by_noise = migration.tolerances == "auto" or migration.dtype_policy is not None
    if not by_noise or noise is None:
        return lambda name: migration.output_tolerances.general
    return lambda name: Tolerance(rtol=0.0, atol=noise.get(name, 0.0))


def _match(
    tf1: Mapping[str, Value], port: Mapping[str, Value], tolerance_of: Callable[[str], Tolerance]
) -> dict[str, set[str]]:
    """Return the names of the port's values that are counterparts, by the name of TF1's value."""
    candidates: dict[tuple[int, str], list[tuple[str, Value]]] = {}
    for port_name, port_value in port.items():
        candidates.setdefault((port_value.size, port_value.dtype.kind), []).append((port_name, port_value))
    found: dict[str, set[str]] = {}
    for name, value in tf1.items():
        rtol, atol = tolerance_of(name).rtol, tolerance_of(name).atol
        for port_name, port_value in candidates.get((value.size, value.dtype.kind), ()):
            near = abs(value.weight - port_value.weight) <= 2 * (atol * value.size + rtol * abs(value.weight))
            if near and compare(*value.paired_with(port_value)[::-1], rtol, atol, equal_nan=True, check_dtype=False):
                found.setdefault(name, set()).add(port_name)
    return found


def _first_ops(
    tf1: Trace,
    tf1_diverged: list[TracedOp],
    port: Trace,
    port_diverged: list[TracedOp],
    counterparts: Mapping[str, Collection[str]],
) -> tuple[TracedOp | None, TracedOp | None]:
    """Return the ops to compare: TF1's first diverged one and the port's on the same path; or one and a source of it.

    An op whose attribute makes next to no difference, such as an epsilon of 1e-6, has a counterpart in its own input.
    """
    tf1_op = next(iter(tf1_diverged), None)
    port_op = _on_same_path(tf1.sources(tf1_op), port, port_diverged, counterparts)
    if tf1_op is None or port_op is None or tf1_op.type == port_op.type:
        return tf1_op, port_op
    pairs = [(source, port_op) for source in tf1.sources(tf1_op)]
    pairs += [(tf1_op, source) for source in port.sources(port_op)]
    return next((pair for pair in pairs if _differing_attributes(*pair)), (tf1_op, port_op))


def _on_same_path(
    sources: list[TracedOp], port: Trace, port_diverged: list[TracedOp], counterparts: Mapping[str, Collection[str]]
) -> TracedOp | None:
    """Return the first of the port's diverged ops of those that are computed from the most counterparts of sources."""
    of_sources = [counterparts.get(source.name, ()) for source in sources]
    diverged = {op.name for op in port_diverged}

    def shared(op: TracedOp) -> float:
        names = {source.name for source in port.sources(op)}
        if names & diverged:
            return -1  # a consequence of an earlier one
        found = sum(not names.isdisjoint(each) for each in of_sources)
        return found / (len(names) + len(of_sources) - found) if found else 0

    return max(port_diverged, key=shared, default=None)


def _differing_attributes(tf1: TracedOp, port: TracedOp) -> dict[str, tuple[str, str]]:
    """Return the attributes of two ops of one type that differ; none of ops of different types."""
    if tf1.type != port.type:
        return {}
    pairs = {name: (tf1.attributes[name], port.attributes[name]) for name in tf1.attributes if name in port.attributes}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _compare_values(tf1: Value | None, port: Value | None, tolerance: Tolerance) -> LeafComparison | None:
    if tf1 is None or port is None or tf1.shape != port.shape:
        return None
    pair = (port.array, tf1.array) if tf1.is_whole else tf1.paired_with(port)[::-1]
    return compare(*pair, tolerance.rtol, tolerance.atol).leaves[0]
