"""Where two programs part: the op after which they no longer compute the same numbers, and its line.

Both programs are graphs: the TF1 one anyway, the port when a ``tf.function`` traces it. Names, and how many ops make
up a layer, do not matter: a tensor of one program has a counterpart if the other one computes the same numbers
somewhere, in any shape. Where an op has none, but all that it is computed from has, and nothing that is computed from
it has one again, the programs part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from detrand.comparison.values import LeafComparison, compare
from detrand.steps.comparison import Tolerance
from detrand.validation.diagnosis.trace import Program, TracedOp, Value, trace_port
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import RunConfig

_SHOWN = 4


@dataclass(frozen=True)
class Divergence:
    """Where two programs part; ``str()`` tells of it.

    Attributes:
      tf1: the first op of TF1 that the port has no counterpart of, with its line; None if every one of its ops has one.
      port: the first op of the port that TF1 has no counterpart of, likewise; None if every one of its ops has one.
      after: the ops that they agree in right before, as TF1 names them, or the port if it alone goes on.
      leaf: how the two differ; None where they have other shapes.
      attributes: what of the two is set otherwise, attributes and constant inputs, with its value in either program.
      types: the types of the two ops; empty where there is none.
      alone: how many ops of which type have no counterpart from there on, TF1's first.
      tf1_value: what TF1's op computes; None if it has none.
      port_value: what the port's computes; None if it has none.
      tf1_sources: what TF1's op is computed from.
      port_sources: what the port's op is computed from.
    """

    tf1: str | None
    port: str | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    attributes: Mapping[str, tuple[str, str]]
    types: tuple[str, str]
    alone: tuple[Counter[str], Counter[str]] = field(repr=False)
    tf1_value: Value | None = field(repr=False)
    port_value: Value | None = field(repr=False)
    tf1_sources: tuple[Value, ...] = field(repr=False)
    port_sources: tuple[Value, ...] = field(repr=False)

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
        lines += [f"  {name}: {tf1} in TF1, {port} in the port" for name, (tf1, port) in self.attributes.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            kept = "elements" if self.tf1_value is None or self.tf1_value.is_whole else "elements that were recorded"
            lines.append(
                f"  {self.leaf.mismatched:,} of {self.leaf.size:,} {kept} differ; greatest absolute difference: "
                f"{self.leaf.greatest_absolute}"
            )
        return "\n".join(lines)


def find_divergence(
    migration: Migration, config: RunConfig, tf1: Program, differing: Collection[str] = ()
) -> Divergence | None:
    """Runs the port once more, and finds where it parts from the TF1 program.

    Args:
      migration: the migration.
      config: how to run the port; with mode None, with its ``constant``.
      tf1: the TF1 program in the same config.
      differing: the paths of the outputs that differ, for which it is looked; all by default. What agrees again in
        other outputs, in a softmax of small numbers, say, does not count then.

    Returns:
      The place; None if every tensor that the outputs are computed from has a counterpart, in either program.
    """
    port, tf1 = trace_port(migration, config).of_outputs(differing), tf1.of_outputs(differing)
    tolerance_of = _tolerances(migration, tf1)
    tf1_matched, port_matched = _match(tf1.values, port.values, tolerance_of)
    tf1_alone, port_alone = tf1.alone(tf1_matched), port.alone(port_matched)
    ours, theirs = (next(iter(alone), None) for alone in (tf1_alone, port_alone))
    if ours is None and theirs is None:
        return None
    if ours is not None and theirs is not None and ours.type != theirs.type:
        # An op whose config makes next to no difference, an epsilon of 1e-6 say, has a counterpart in its own input.
        pairs = [(one, theirs) for one in tf1.sources(ours)] + [(ours, other) for other in port.sources(theirs)]
        alike = [pair for pair in pairs if pair[0].type == pair[1].type and _differing_attributes(*pair)]
        ours, theirs = alike[0] if alike else (ours, theirs)
    tf1_value, port_value = (_value(program, op) for program, op in ((tf1, ours), (port, theirs)))
    leaf = None
    if ours is not None and tf1_value is not None and port_value is not None and tf1_value.shape == port_value.shape:
        tolerance = tolerance_of(ours.name)
        pair = (port_value.array, tf1_value.array) if tf1_value.is_whole else tf1_value.paired_with(port_value)[::-1]
        leaf = compare(*pair, tolerance.rtol, tolerance.atol).leaves[0]
    return Divergence(
        tf1=None if ours is None else str(ours),
        port=None if theirs is None else str(theirs),
        after=tuple(
            str(source)
            for source in (tf1.sources(ours) if ours is not None else port.sources(theirs))
            if source.name in (tf1_matched if ours is not None else port_matched)
        ),
        leaf=leaf,
        attributes={} if ours is None or theirs is None else _attributes_of(migration, ours, theirs),
        alone=(Counter(op.type for op in tf1_alone), Counter(op.type for op in port_alone)),
        types=("" if ours is None else ours.type, "" if theirs is None else theirs.type),
        tf1_value=tf1_value,
        port_value=port_value,
        tf1_sources=tuple(tf1.values[source.name] for source in tf1.sources(ours)),
        port_sources=tuple(port.values[source.name] for source in port.sources(theirs)),
    )


def _attributes_of(migration: Migration, ours: TracedOp, theirs: TracedOp) -> dict[str, tuple[str, str]]:
    """Returns what is set otherwise, but for dtypes where the migration's policy says that."""
    found = _differing_attributes(ours, theirs)
    given = migration.dtype_policy is not None
    return {name: values for name, values in found.items() if not (given and values[0].startswith("<dtype:"))}


def _value(program: Program, op: TracedOp | None) -> Value | None:
    return None if op is None else program.values[op.name]


def _tolerances(migration: Migration, tf1: Program) -> Callable[[str], Tolerance]:
    """Returns how close to TF1's an op of the port must be, by the name of TF1's."""
    noise = tf1.noise
    by_noise = migration.tolerances == "auto" or migration.dtype_policy is not None
    if not by_noise or noise is None:
        return lambda name: migration.output_tolerances.general
    return lambda name: Tolerance(rtol=0.0, atol=noise.get(name, 0.0))


def _match(
    tf1: Mapping[str, Value], port: Mapping[str, Value], tolerance_of: Callable[[str], Tolerance]
) -> tuple[set[str], set[str]]:
    """Returns the names of the values, in either program, that the other one has, too."""
    candidates: dict[tuple[int, str], list[tuple[str, Value]]] = {}
    for name, value in port.items():
        candidates.setdefault((value.size, value.dtype.kind), []).append((name, value))
    ours, theirs = set(), set()
    for name, value in tf1.items():
        rtol, atol = tolerance_of(name).rtol, tolerance_of(name).atol
        for other, candidate in candidates.get((value.size, value.dtype.kind), ()):
            near = abs(value.weight - candidate.weight) <= 2 * (atol * value.size + rtol * abs(value.weight))
            if near and compare(*value.paired_with(candidate)[::-1], rtol, atol, equal_nan=True, check_dtype=False):
                ours.add(name)
                theirs.add(other)
    return ours, theirs


def _differing_attributes(op: TracedOp, counterpart: TracedOp) -> dict[str, tuple[str, str]]:
    if op.type != counterpart.type:
        return {}
    both = [name for name in op.attributes if name in counterpart.attributes]
    pairs = {name: (op.attributes[name], counterpart.attributes[name]) for name in both}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
