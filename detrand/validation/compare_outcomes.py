"""Do two outcomes hold the same numbers, and if not, where do the programs part, and what usually causes that?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detrand.arguments import shorten
from detrand.comparison.values import Comparison, compare, compare_by_path
from detrand.random_op_diff import describe_uncontrolled, diff_random_ops
from detrand.seeding.callsite import describe_error
from detrand.validation.diagnosis.causes import Evidence, causes, describe_causes
from detrand.validation.diagnosis.hyperparameters import INITIALIZER
from detrand.validation.noise.floor import NoiseFloor
from detrand.validation.programs.outcome import Outcome
from detrand.validation.programs.tf1 import count_vanishing, float_arrays
from detrand.validation.results import Found
from detrand.validation.runner import Runner
from detrand.validation.tolerances import OutputTolerances

# A loss summed in another order may differ by some units in the last place for each term. It has no
# absolute tolerance: that of small weights would vanish in it.
_LOSS_RTOL, _LOSS_ATOL = 1e-5, 0.0


def compare_outcomes(runner: Runner, tf1: Outcome, port: Outcome, *how: str) -> Found:
    """Compares what the two programs returned, and explains a difference.

    Args:
      runner: where the programs' graphs come from, to see where they part.
      tf1: what the TF1 program did.
      port: what the port did in the same config.
      *how: what the summary says about the config.

    Returns:
      What a check found.
    """
    floor = runner.noise_floor(tf1)
    migration = runner.migration
    tolerances = migration.output_tolerances if floor is None else floor.tolerances
    loss_rtol = _LOSS_RTOL
    if (policy := migration.policy_tolerance) is not None:
        tolerances = policy.tolerances(tf1.outputs)
        loss_rtol = policy.rtol if policy.rounds_variables else loss_rtol
    comparisons = _compare(tolerances, tf1, port, loss_rtol, check_dtype=migration.dtype_policy is None)
    notes = [*how, *([] if migration.dtype_policy is None else [f"the port in {migration.dtype_policy}"])]
    if migration.strategy is not None:
        towers = "" if runner.not_towers else ", and TF1 in as many towers"
        notes.append(f"the port on replicas, each with a part of the batch{towers}")
    if not port.keeps_losses and tf1.regularization_loss is not None:
        notes.insert(0, "the port is of a kind that keeps no losses")
    if port.config.op_seeds:
        notes.append("the port's random ops come in another order, so each drew what its counterpart in TF1 draws")
    if floor is None and (vanishing := count_vanishing(tf1.outputs)):
        notes.append(f"{vanishing} of {len(comparisons['outputs'].leaves)} outputs are too near 0 to show much")
    zeros = sum(not array.any() for array in float_arrays(tf1.outputs))
    if zeros and tf1.config.constant is None:  # where all weights are equal, a normalization leaves nothing
        notes.append(f"{zeros} of {len(comparisons['outputs'].leaves)} outputs are 0 everywhere, which shows nothing")
    summary = "; ".join([*(_in_one_line(name, found) for name, found in comparisons.items()), *notes])
    computed = {"tf1": {0: _computed(tf1)}, "port": {0: _computed(port)}}
    if all(comparisons.values()):
        return Found(True, summary, comparisons=comparisons, noise=floor, computed=computed)

    floors = {"outputs": floor}
    details = [
        f"{name}: {_first_difference(found, tf1, floors.get(name))}" for name, found in comparisons.items() if not found
    ]
    shifted = ""
    # With weights of a checkpoint the port runs twice, see CHECKPOINT; with constant ones most ops go unused.
    if tf1.config.mode is not None and not tf1.config.from_checkpoint and not port.config.op_seeds:
        shifted = diff_random_ops(tf1.random_ops, port.random_ops, a_name="TF1", b_name="the port")
        if shifted:
            details.append(f"random ops: {shifted}")
            summary = f"{summary}; {shifted.splitlines()[0]}"
        elif sources := describe_uncontrolled(tf1.random_ops, port.random_ops, a_name="TF1", b_name="the port"):
            details.append(sources)
    divergence = None
    if not comparisons["outputs"] and not tf1.config.from_checkpoint:
        try:
            differing = [leaf.path for leaf in comparisons["outputs"].leaves if not leaf.ok]
            divergence = runner.divergence(port.config, differing)
        except Exception as error:  # what the check has found is worth more
            details.insert(0, f"where the programs part cannot be told: {describe_error(error)}")
    losses_differ = not comparisons.get("regularization loss", True)
    both_losses = (port.regularization_loss, tf1.regularization_loss) if losses_differ else None
    initialized = tf1.config.mode is not None and not tf1.config.from_checkpoint
    hyperparameters = tuple(each for each in runner.audit().differing if initialized or each.name != INITIALIZER)
    output = comparisons["outputs"].first_divergence
    likely = causes(Evidence(divergence, output, both_losses, bool(shifted), hyperparameters))
    if likely:
        details.insert(0, describe_causes(likely))
    if divergence is not None:
        details.insert(0, str(divergence))
        summary = f"{summary}; TF1 and the port part at {divergence.op}"
    return Found(False, summary, "\n\n".join(details), likely, comparisons, noise=floor, computed=computed)


def _computed(outcome: Outcome) -> Mapping[str, Any]:
    loss = outcome.regularization_loss
    return {"outputs": outcome.outputs, **({} if loss is None else {"regularization_loss": loss})}


def _compare(
    tolerances: OutputTolerances, tf1: Outcome, port: Outcome, loss_rtol: float, *, check_dtype: bool
) -> dict[str, Comparison]:
    found = compare_by_path(port.outputs, tf1.outputs, tolerances.closeness_of, check_dtype=check_dtype)
    comparisons = {"outputs": _in_order_of_computation(found, tf1)}
    if port.keeps_losses and not (port.regularization_loss is None and tf1.regularization_loss is None):
        comparisons["regularization loss"] = compare(
            port.regularization_loss, tf1.regularization_loss, loss_rtol, _LOSS_ATOL, check_dtype=check_dtype
        )
    if tf1.changed or port.changed:
        found = compare_by_path(port.changed, tf1.changed, lambda path: tolerances.closeness_of(""), check_dtype=False)
        comparisons["variables that the call changes"] = found
    return comparisons


def _in_order_of_computation(comparison: Comparison, tf1: Outcome) -> Comparison:
    """Returns a comparison of outputs in TF1's order of computation: what is wrong is passed on from there."""
    last = max((origin.position for origin in tf1.origins.values()), default=0) + 1
    place = {path: origin.position for path, origin in tf1.origins.items()}
    return Comparison(tuple(sorted(comparison.leaves, key=lambda leaf: place.get(leaf.path, last))))


def _first_difference(comparison: Comparison, tf1: Outcome, floor: NoiseFloor | None) -> str:
    """Returns the first leaf that differs in full, and the others by name."""
    differing = [leaf for leaf in comparison.leaves if not leaf.ok]
    lines = [
        f"{len(differing)} of {len(comparison.leaves)} leaves differ (actual: the port, desired: TF1); the first is",
        str(differing[0]),
    ]
    if origin := tf1.origins.get(differing[0].path):
        lines.append(f"  TF1 computes it in {origin.name}, at {origin.caller}")
    if floor is not None and (noise := floor.outputs.get(differing[0].path)):
        lines.append(f"  TF1's noise floor is {noise.floor:.2g}, and the tolerance {noise.tolerance:.2g}")
    if len(differing) > 1:
        others = [f"{leaf.path} ({leaf.percent:.2g}%)" if leaf.size else leaf.path for leaf in differing[1:]]
        lines.append(f"the others: {', '.join(others)}")
    return "\n".join(lines)


def _in_one_line(name: str, comparison: Comparison) -> str:
    differing = comparison.first_divergence
    if differing is not None and differing.reason == "structure":
        forms = (shorten(side.form, 60) for side in (differing.desired, differing.actual))
        return f"{name} differ in structure: {differing.path} is {' in TF1, '.join(forms)} in the port"
    if differing is not None:
        return f"{name} differ, first {differing.path}: {differing.reason}"
    differences = [leaf.greatest_absolute for leaf in comparison.leaves if leaf.greatest_absolute is not None]
    greatest = max((difference.amount or 0 for difference in differences), default=0)
    return f"{name} bit for bit" if greatest == 0 else f"{name} within {greatest:.2g}"
