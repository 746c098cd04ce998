"""The comparison of two outcomes: how far outputs and changed variables differ, in numbers and in words.

A difference may be rounding, which `is_rounding` and `may_be_rounding` decide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from detrand.arguments import percent, plural, shorten
from detrand.comparison.closeness import Closeness
from detrand.comparison.values import Comparison, compare_by_path, leaves_by_path
from detrand.steps.comparison import greatest_absolute
from detrand.validation.diagnosis.search import Diagnosis
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import MULTIPLE, NoiseFloor, OutputNoise, greatest_of, is_floating, most_rounding
from detrand.validation.noise.variants import IN_FLOAT64
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import Origin, Outcome
from detrand.validation.programs.sample_variances import nearer
from detrand.validation.programs.tf1 import count_vanishing, float_arrays
from detrand.validation.results import Found
from detrand.validation.runner import Runner

UPDATES = "variables that the call changes"
OF_STRUCTURE = ("structure", "missing in actual", "missing in desired")  # reasons for which outputs are no pairs


def comparisons_of(runner: Runner, tf1: Outcome, port: Outcome) -> tuple[dict[str, Comparison], NoiseFloor | None]:
    """Return comparisons by name, and how far TF1's numbers move if that was measured.

    It is measured only if numbers differ by more than they move by being rounded to their dtype.
    """
    comparisons = comparisons_within(runner.migration, tf1, port, runner.tf1.noise_floor(tf1, {}))
    if all(comparisons.values()):
        return comparisons, None
    floor = runner.tf1.noise_floor(tf1, IN_FLOAT64)
    return (comparisons if floor is None else comparisons_within(runner.migration, tf1, port, floor)), floor


def comparisons_within(
    migration: Migration, tf1: Outcome, port: Outcome, floor: NoiseFloor | None
) -> dict[str, Comparison]:
    """Return comparisons by name, given how far TF1's numbers move by rounding if that was measured."""
    policy, check_dtype = migration.policy_tolerance, migration.dtype_policy is None
    of_outputs: Callable[[str], Closeness]
    if policy is not None:
        of_outputs = policy.closeness(tf1.outputs)
    else:
        measured = None if floor is None else floor.closeness_of
        of_outputs = migration.output_tolerances.closeness(tf1.outputs, measured)
    of_updates = (lambda path: of_outputs("")) if floor is None else _of_updates(tf1, floor)
    found = compare_by_path(
        port.outputs,
        tf1.outputs,
        lambda path: of_outputs(path)._replace(equal_nan=True),
        check_dtype=check_dtype,
        check_width=False,
    )
    comparisons = {"outputs": _in_order_of_computation(found, tf1)}
    if any(updates := comparable_updates(tf1, port)):
        comparisons[UPDATES] = compare_by_path(*updates, of_updates, check_dtype=False)
    return comparisons


def _of_updates(tf1: Outcome, floor: NoiseFloor) -> Callable[[str], Closeness]:
    """Return how close the new values of variables must be, by path."""
    before = distinct_weights(tf1.config.scales)
    changes = {name: array - before[name] for name, array in tf1.changed.items() if name in before}
    by_rate = {f"[{name!r}]": _OF_RATE * greatest_of(change) for name, change in changes.items()}

    def closeness_of(path: str) -> Closeness:
        close = floor.closeness_of_update(path)
        return close._replace(atol=close.atol + by_rate.get(path, 0.0))

    return closeness_of


_OF_RATE = 1e-3  # of a change: programs round 1 minus a momentum differently, by 1e-4 of it if the momentum is 0.9997


def comparable_updates(tf1: Outcome, port: Outcome) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the variables that a call of the port, and of TF1, changed, without those that say nothing of the port."""
    if not tf1.config.training:
        return port.changed, tf1.changed
    expected = tf1.changed | nearer(port.changed, tf1.changed, tf1.of_batch)
    found = port.changed | nearer(tf1.changed, port.changed, port.of_batch)
    # A session that trains may update more variables than the program says in UPDATE_OPS.
    return {name: array for name, array in found.items() if name in expected}, expected


def _in_order_of_computation(comparison: Comparison, tf1: Outcome) -> Comparison:
    """Return a comparison of outputs in TF1's order of computation, in which a fault is passed on."""
    positions = {path: origin.position for path, origin in tf1.origins.items()}
    return Comparison(tuple(sorted(comparison.leaves, key=lambda leaf: positions.get(leaf.path, math.inf))))


def first_difference(comparison: Comparison, origins: Mapping[str, Origin], floor: NoiseFloor | None) -> str:
    """Return the first leaf that differs in full, and the others by path."""
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    verb = "differs" if len(differing) == 1 else "differ"
    lines = [
        f"{len(differing)} of {len(comparison.leaves)} {verb} (actual: port, desired: TF1); first:",
        str(differing[0]),
    ]
    if origin := origins.get(differing[0].path):
        lines.append(f"  computed in TF1 by {origin.name}, at {origin.caller}")
    if floor is not None and (noise := floor.outputs.get(differing[0].path)):
        lines.append(f"  noise floor of TF1 {noise.floor:.2g}, tolerance {noise.tolerance:.2g}")
    if len(differing) > 1:
        others = [
            f"{leaf.path} ({percent(leaf.mismatched, leaf.size)})" if leaf.size else leaf.path for leaf in differing[1:]
        ]
        lines.append(f"others: {', '.join(others)}")
    return "\n".join(lines)


def in_one_line(name: str, comparison: Comparison) -> str:
    """Return in one line how close the numbers of a comparison are, or which of them differ first."""
    differing = comparison.first_divergence
    if differing is not None and differing.reason == "structure":
        tf1, port = (shorten(side.form, 60) for side in (differing.desired, differing.actual))
        return f"{name} differ in structure: {differing.path} is {tf1} (TF1), {port} (port)"
    if differing is not None:
        reason = "" if differing.reason == "values" else f" ({differing.reason})"
        return f"{name} differ; first: {differing.path}{reason}"
    greatest = greatest_absolute([comparison])
    return f"{name} identical" if greatest == 0 else f"{name} within {greatest:.2g}"


def may_be_rounding(found: Found, tf1: Outcome) -> bool:
    """Return whether no difference is greater than what a variant may show."""
    arrays = {"outputs": leaves_by_path(tf1.outputs), UPDATES: leaves_by_path(tf1.changed)}
    for name, comparison in found.comparisons.items():
        for leaf in comparison.leaves:
            if leaf.ok:
                continue
            array = np.asarray(arrays[name].get(leaf.path, ()))
            if leaf.reason != "values" or leaf.greatest_absolute is None or not is_floating(array):
                return False
            if not (leaf.greatest_absolute.amount or 0.0) <= MULTIPLE * most_rounding(array):
                return False
    return True


_OF_DIFFERENCE = 0.1  # a graph adds as eager code does, so it differs far less from the port than the port from TF1
_OF_ROUNDING = 1e-3  # of the tolerance: in float64, a difference by rounding all but vanishes


def is_rounding(migration: Migration, port: Outcome, outputs: Comparison, diagnosis: Diagnosis) -> bool:
    """Return whether outputs differ by rounding only; not where the user says how close they must be.

    The graph that computes in float64 must be what the port computes: in float32, it has the port's outputs. The
    constants of both are in float32, so dividing by sqrt(2) differs from multiplying by 1 / sqrt(2) in the last place.
    """
    leaves = leaves_by_path(port.outputs)
    differing = [leaf for leaf in outputs.leaves if not leaf.ok]
    if not differing or not migration.measures_rounding:
        return False
    for leaf in differing:
        if any(tolerance.covers(leaf.path) for tolerance in migration.tolerances):
            return False
        greatest = leaf.greatest_absolute
        if leaf.reason != "values" or greatest is None:
            return False
        found, again = np.asarray(leaves[leaf.path]), diagnosis.as_written.get(leaf.path)
        if again is None or found.shape != again.shape:
            return False
        if not np.abs(found.astype(np.float64) - again).max() <= _OF_DIFFERENCE * (greatest.amount or 0.0):
            return False
        allowed = leaf.atol + leaf.rtol * abs(greatest.desired)
        of_constants = 0.5 * OutputNoise.of(found).ulp
        if not diagnosis.greatest.get(leaf.path, np.inf) <= max(_OF_ROUNDING * allowed, of_constants):
            return False
    return True


def remarks_on_run(migration: Migration, tf1: Outcome, port: Outcome, how: tuple[str, ...]) -> Iterator[str]:
    """Yield what a reader of the summary must know of how the programs ran."""
    yield from how
    yield from tf1.unordered
    if migration.dtype_policy is not None:
        yield f"port in {migration.dtype_policy}"
    if migration.strategy is not None:
        yield f"port on replicas, TF1 {'on the whole batch' if tf1.whole_batch else 'in as many towers'}"
    order = [op.op_seed for op in tf1.random_ops if op.run == 0]
    times = Counter(port.config.op_seeds)
    positions = [order.index(op_seed) for op_seed in times if op_seed in order]
    if positions != sorted(positions):
        yield "the port's random ops run in a different order; each drew what its counterpart in TF1 draws"
    if in_turn := sum(count for count in times.values() if count > 1):
        yield f"{in_turn} random ops of the port draw in turn what TF1 draws in a loop"
    if samples := nearer(port.changed, tf1.changed, tf1.of_batch):
        yield (
            f"{plural(len(samples), 'moving variance')} compared as of the batch (n): TF1 averages the variance of a "
            "sample (n - 1), the port that of the batch"
        )
    if samples := nearer(tf1.changed, port.changed, port.of_batch):
        yield (
            f"{plural(len(samples), 'moving variance')} compared as of the batch (n): the port averages the variance "
            "of a sample (n - 1), TF1 that of the batch"
        )


def remarks_on_outputs(tf1: Outcome, count: int, *, is_measured: bool) -> Iterator[str]:
    """Yield how many outputs prove little."""
    vanishing = 0 if is_measured else count_vanishing(tf1.outputs)
    if vanishing:
        yield f"{vanishing} of {plural(count, 'output')} too near 0 to prove much"
    zeros = sum(not array.any() for array in float_arrays(tf1.outputs))
    if zeros and tf1.config.constant is None:  # where all weights are equal, a normalization gives zeros
        proves_nothing = f"{zeros} of {count} outputs are 0, so this check proves nothing about them"
        yield "every output is 0, so this check proves nothing" if zeros == count else proves_nothing
    if sum(bool(np.isnan(array).all()) for array in float_arrays(tf1.outputs)) == count:
        yield "every output is NaN, so this check proves nothing"


def remarks_on_leaves(outputs: Comparison) -> Iterator[str]:
    """Yield in what outputs differ though they are equal."""
    for leaf in outputs.leaves:
        if leaf.ok and leaf.both_nan:
            yield f"{leaf.path}: {leaf.both_nan} of {plural(leaf.size, 'element')} NaN in both programs"
        if leaf.ok and leaf.actual.dtype != leaf.desired.dtype and "int" in f"{leaf.actual.dtype}":
            yield f"{leaf.path}: {leaf.desired.dtype} in TF1 and {leaf.actual.dtype} in the port, with equal values"
