"""Compares how both programs of a migration trained, name by name and step by step, each within its tolerance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import MISSING
from detrand.comparison.values import Comparison, LeafComparison, compare, compare_by_path
from detrand.steps.comparison import (
    DEFAULT_TOLERANCES,
    StepsComparison,
    Tolerance,
    compare_steps,
    named,
    tolerance_in,
)
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.precision import half_precision
from detrand.validation.training.steps import MEANS, Training, train_step_of


def read_as(tf1: Training, meant: Collection[str]) -> Training:
    """Returns how training the TF1 program went, its moving averages read as the port's are.

    Keras 3 saves what the first replica has of a moving average; tf_keras, the mean of what the replicas have.

    Args:
      tf1: how it went.
      meant: the variables of which the mean counts.
    """
    recorder = StepRecorder()
    for step in tf1.recorder.steps:
        values = dict(tf1.recorder[step])
        means = values.pop(MEANS, {})
        if means:
            read = {name: means[name] for name in means.keys() & set(meant)}
            values["moving_averages"] = {**values["moving_averages"], **read}
        recorder.record(step, **values)
    return replace(tf1, recorder=recorder)


# A rate and a sum of small weights have no absolute tolerance: they would vanish in it. A sum in another order may
# differ by some units in the last place for each term.
_STRICTER = (
    Tolerance(rtol=1e-6, atol=0.0, of="learning_rate"),
    Tolerance(rtol=1e-5, atol=0.0, of="regularization_loss", until=10),
)


def compare_trainings(
    migration: Migration, port: Training, tf1: Training, *, guided: bool = False, noise: TrainingNoise | None = None
) -> tuple[StepsComparison, frozenset[str]]:
    """Compares what both programs have recorded.

    Args:
      migration: the migration.
      port: how training the port went.
      tf1: how training the TF1 program went.
      guided: whether the port had the TF1 program's variables in each step, so that no rounding has added up.
      noise: how far TF1's numbers move, if that decides how close the port must be.

    Returns:
      The comparison; and the names of what was left out of it because one program cannot tell it.
    """
    rules = _Rules(migration, port, tf1, guided, noise)
    found = compare_steps(port.recorder, tf1.recorder, rules.schedule, check_dtype=rules.check_dtype)
    left_out = port.cannot_tell | tf1.cannot_tell | rules.unknown
    kept = {
        step: {name: comparison for name, comparison in by_name.items() if name not in left_out}
        for step, by_name in found.steps.items()
    }
    return StepsComparison({step: rules.applied(step, by_name) for step, by_name in kept.items()}), left_out


def updates_agree(migration: Migration, port: Training, tf1: Training) -> bool:
    """Returns whether two trainings that have not been compared step by step from the same weights change them alike.

    What differs need not be a fault, for gradients differ by rounding: `compare_trainings` of guided ones tells.
    """
    rules = _Rules(migration, port, tf1, guided=False, noise=None)
    return migration.tolerances == "auto" or all(
        all(rules.updates(step).values()) for step in set(port.recorder.steps) & set(tf1.recorder.steps)
    )


class _Rules:
    """By what the names of a step are compared where one tolerance for all numbers does not serve.

    A tolerance that the user gave for training always counts. Otherwise outputs are held to patterns, what a dtype
    policy rounds to its tolerance, gradients and slots to their size, the updates of a repeated step to theirs, and
    all but the rate to TF1's own noise where that was measured.

    Attributes:
      schedule: what any number is held to.
      check_dtype: whether another dtype is a difference.
      unknown: names that have no tolerance, since what they depend on was not measured.
    """

    def __init__(self, migration: Migration, port: Training, tf1: Training, guided: bool, noise: TrainingNoise | None):
        self._trainings, self._gradient_noise = (port, tf1), tf1.gradient_noise
        self._own = train_step_of(migration).tolerances
        self._outputs, self._policy, self._noise = migration.output_tolerances, migration.policy_tolerance, noise
        self._any = replace(self._outputs.general, until=None if guided else 10)
        self._guided = guided
        self.schedule = (*self._own, *_STRICTER, self._any, *DEFAULT_TOLERANCES)
        self.check_dtype = migration.dtype_policy is None
        rounded = migration.dtype_policy is not None and half_precision(migration.dtype_policy) is not None
        measured = bool(tf1.gradient_noise) or any(tolerance.covers("gradients", 0) for tolerance in self._own)
        self.unknown = frozenset({"gradients"} if rounded and not measured else ())

    def applied(self, step: int, by_name: Mapping[str, Comparison]) -> dict[str, Comparison]:
        """Returns the comparisons of a step, by name, each as its rule has it."""
        found = {name: comparison for name, comparison in by_name.items() if name != "slots"}
        if self._outputs.specific and self._tolerance("outputs", step) is self._any:
            found["outputs"] = self._by_path("outputs", step, self._outputs.closeness_of)
        if self._policy is not None:
            exact = {"learning_rate", "gradients"}
            if not self._policy.rounds_variables:
                exact.add("regularization_loss")
            for name in self._not_given(found.keys() - exact, step):
                closeness = self._policy.tolerances(self._values(name, step)[1]).closeness_of
                found[name] = self._by_path(name, step, closeness)
        if "gradients" in found and self._not_given(["gradients"], step):
            found["gradients"] = self._gradients(step)
        if "slots" in by_name:
            found.update(self._slots(step))
        if self._guided and self._noise is None:
            found.update(self.updates(step))
        if self._noise is not None:
            for name in self._not_given(found.keys() - {"learning_rate"}, step):
                found[name] = self._to_noise(name, step, self._noise.closeness(step, name))
        return found

    def _tolerance(self, name: str, step: int) -> Tolerance:
        return tolerance_in(self.schedule, name, step)

    def _not_given(self, names: Iterable[str], step: int) -> list[str]:
        """Returns those of some names for which the user gave no tolerance."""
        return [name for name in names if self._tolerance(name, step) not in self._own]

    def _values(self, name: str, step: int, absent: Any = MISSING) -> tuple[Any, Any]:
        """Returns what the port has recorded under a name, and what TF1 has."""
        port, tf1 = (training.recorder[step].get(name, absent) for training in self._trainings)
        return port, tf1

    def _by_path(self, name: str, step: int, closeness: Callable[[str], Closeness]) -> Comparison:
        return named(compare_by_path(*self._values(name, step), closeness, check_dtype=self.check_dtype), name)

    def _gradients(self, step: int) -> Comparison:
        rtol = self._tolerance("gradients", step).rtol if self._policy is None else self._policy.rtol
        noise = self._gradient_noise[step] if self._gradient_noise else {}
        actual, desired = self._values("gradients", step)
        return compare_by_size(actual, desired, rtol, "gradients", noise=noise, check_dtype=self.check_dtype)

    def _slots(self, step: int) -> dict[str, Comparison]:
        """Returns how what both optimizers keep compares, if they keep anything alike."""
        tolerance = self._tolerance("slots", step)
        given = tolerance in self._own
        if not given and not self.check_dtype:
            return {}
        actual, desired = _in_both(*self._values("slots", step, absent={}))
        leaves: list[LeafComparison] = []
        for kind, theirs in desired.items():
            path = f"slots[{kind!r}]"
            if given:
                leaves += named(compare(actual[kind], theirs, tolerance.rtol, tolerance.atol), path).leaves
            else:
                leaves += compare_by_size(actual[kind], theirs, tolerance.rtol, path, multiple=2).leaves
        return {"slots": Comparison(tuple(leaves))} if leaves else {}

    def updates(self, step: int) -> dict[str, Comparison]:
        """Returns how what a step changes weights by compares; guided, both programs began with the same ones."""
        # What step 0 begins with is not recorded; in other dtypes weights are rounded by more than updates may differ.
        if step == 0 or not self.check_dtype or self._tolerance("weights", step) is not self._any:
            return {}
        ours, theirs = (training.recorder[step - 1]["weights"] for training in self._trainings)
        found = compare_updates(*self._values("weights", step), theirs, self._any.rtol, None if self._guided else ours)
        return {"updates": found} if found.leaves else {}

    def _to_noise(self, name: str, step: int, closeness: Callable[[str], Closeness]) -> Comparison:
        actual, desired = self._values(name, step)
        if name == "slots":
            actual, desired = _in_both(actual, desired)
        elif name == "gradients":  # where the loss depends on a variable on neither side, there is nothing to compare
            none = {of for of in desired if desired[of] is None and actual.get(of, MISSING) is None}
            actual, desired = ({of: each[of] for of in each if of not in none} for each in (actual, desired))
        return named(compare_by_path(actual, desired, closeness, check_dtype=self.check_dtype), name)


def _in_both(actual: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the slots that both optimizers have: those of another kind show in the weights."""
    kinds = [kind for kind in desired if kind in actual]
    names = {kind: [name for name in desired[kind] if name in actual[kind]] for kind in kinds}
    ours, theirs = (
        {kind: {name: of[kind][name] for name in names[kind]} for kind in kinds} for of in (actual, desired)
    )
    return ours, theirs


# How far an array may be off: for its own greatest element, and for that of all arrays.
_OF_OWN_GREATEST, _OF_ALL_GREATEST = 1e-4, 1e-5
_OF_NOISE = 2.0  # a port rounds elsewhere than what the noise is measured of


def compare_by_size(
    actual: Mapping[str, Any],
    desired: Mapping[str, Any],
    rtol: float,
    name: str,
    *,
    multiple: float = 1.0,
    noise: Mapping[str, np.ndarray] | None = None,
    rounding: Mapping[str, float] | None = None,
    check_dtype: bool = True,
) -> Comparison:
    """Compares arrays of one kind.

    Args:
      actual: the port's, by the TF1 names of the variables that they belong to; None on both sides is equal.
      desired: TF1's.
      rtol: the relative tolerance.
      name: what the paths begin with.
      multiple: how many times as far they may be off as gradients: squares of these are off by twice as much.
      noise: how far each element moves when TF1 is rounded as the port is, where that was measured.
      rounding: how far an array may be off besides, for what it was computed from.
      check_dtype: whether dtypes must be equal, too.
    """
    greatest = {variable: _greatest(array) for variable, array in desired.items()}
    floor = _OF_ALL_GREATEST * max(greatest.values(), default=0.0)
    leaves: list[LeafComparison] = []
    for variable in dict.fromkeys([*desired, *actual]):
        ours, theirs = actual.get(variable, MISSING), desired.get(variable, MISSING)
        if ours is theirs is None:  # the loss depends on it on neither side
            continue
        atol = multiple * max(_OF_OWN_GREATEST * greatest.get(variable, 0.0), floor)
        atol += (rounding or {}).get(variable, 0.0)
        path = f"{name}[{variable!r}]"
        if noise and variable in noise and isinstance(ours, np.ndarray) and ours.shape == theirs.shape:
            found = _compare_rounded(ours, theirs, rtol, max(atol, rtol * greatest[variable]), noise[variable])
        else:
            found = compare(ours, theirs, multiple * rtol, atol, check_dtype=check_dtype)
        leaves += (replace(leaf, path=path) for leaf in found.leaves)
    return Comparison(tuple(leaves))


def _compare_rounded(ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float, noise: np.ndarray) -> Comparison:
    """Compares a gradient that rounding moves: what jumps is held to the greatest jump, the rest to its own noise."""
    jumps = noise > atol
    found = compare(ours, theirs, rtol, max(atol, _OF_NOISE * noise.max(initial=0)), check_dtype=False)
    if not found or not jumps.any():
        return found
    without_jumps = np.where(jumps, theirs, ours)
    return compare(without_jumps, theirs, rtol, max(atol, _OF_NOISE * noise[~jumps].max(initial=0)), check_dtype=False)


def _greatest(array: np.ndarray | None) -> float:
    return 0.0 if array is None else float(np.nan_to_num(np.abs(array).max(initial=0)))


_UNITS = 2  # in the last place of the greatest weight: each program rounds what it adds up


def compare_updates(
    actual: Mapping[str, np.ndarray],
    desired: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
    rtol: float,
    actual_before: Mapping[str, np.ndarray] | None = None,
) -> Comparison:
    """Compares a step's updates.

    Args:
      actual: the port's weights after the step, by their TF1 names.
      desired: TF1's.
      before: what TF1 began with.
      rtol: the relative tolerance.
      actual_before: what the port began with; the same by default.
    """
    port_before = before if actual_before is None else actual_before
    names = [
        name for name in desired if _are_alike(actual.get(name), desired[name], before.get(name), port_before.get(name))
    ]
    ours = {name: actual[name] - port_before[name] for name in names}
    theirs = {name: desired[name] - before[name] for name in names}
    rounding = {name: float(_UNITS * np.spacing(np.abs(before[name]).max(initial=0))) for name in names}
    return compare_by_size(ours, theirs, rtol, "updates", rounding=rounding)


def _are_alike(*arrays: np.ndarray | None) -> bool:
    kinds = {(array.shape, array.dtype) if isinstance(array, np.ndarray) else None for array in arrays}
    return len(kinds) == 1 and None not in kinds
