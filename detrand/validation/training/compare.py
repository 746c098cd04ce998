"""The comparison of both programs' trainings, name by name and step by step, each value within its tolerance.

`compare_trainings` compares all that both have recorded. `updates_agree` says whether two trainings that ran on their
own update their weights alike; if they do not, the port is trained again, guided by TF1, and compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import MISSING
from detrand.comparison.values import Comparison, LeafComparison, compare, compare_by_path
from detrand.steps.comparison import DEFAULT_TOLERANCES, StepsComparison, Tolerance, named, tolerance_in
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.precision import half_precision
from detrand.validation.training.steps import MEANS_OF_TOWERS, Training, train_step_of

# Learning rates and sums of small weights would vanish in an absolute tolerance. A sum in a different order may differ
# by some units in the last place for each term.
_STRICTER = (
    Tolerance(rtol=1e-6, atol=0.0, of="learning_rate"),
    Tolerance(rtol=1e-5, atol=0.0, of="regularization_loss", until=10),
)
# Absolute tolerances of an array, relative to its own greatest element and to that of all arrays.
_OF_OWN_GREATEST, _OF_ALL_GREATEST = 1e-4, 1e-5
_OF_NOISE = 2.0  # a port rounds at other places than the variant whose noise is measured
_ULPS = 2  # of the greatest weight: each program rounds the sum of a weight and its update


def compare_trainings(
    migration: Migration, port: Training, tf1: Training, *, guided: bool = False, noise: TrainingNoise | None = None
) -> tuple[StepsComparison, frozenset[str]]:
    """Return how two trainings compare, and the names that are left out because one program does not expose them.

    Args:
      migration: the migration.
      port: the training of the port.
      tf1: the training of the TF1 program.
      guided: whether the port began each step with TF1's variables, so that no rounding has added up.
      noise: the noise of TF1's training, if that decides how close the port must be.
    """
    rules = _Rules(migration, port, tf1, guided, noise)
    return StepsComparison({step: rules.compare(step) for step in tf1.recorder.steps}), rules.left_out


def updates_agree(migration: Migration, port: Training, tf1: Training) -> bool:
    """Return whether two trainings that ran on their own update their weights alike.

    If they do not, that may be rounding of the gradients: only guided trainings show a fault.
    """
    rules = _Rules(migration, port, tf1, guided=False, noise=None)
    return migration.tolerances == "auto" or all(map(rules.updates_agree, tf1.recorder.steps))


def with_moving_averages_of(tf1: Training, averaged: Collection[str]) -> Training:
    """Return TF1's training in towers with its moving averages read as a port on replicas reads them.

    Keras 3 reads the first replica's; tf_keras reads the mean over the replicas.

    Args:
      tf1: the training.
      averaged: the variables that the port averages over the replicas when they are read.
    """
    recorder = StepRecorder()
    for step in tf1.recorder.steps:
        values = dict(tf1.recorder[step])
        means = values.pop(MEANS_OF_TOWERS, {})
        if means:
            read = {name: mean for name, mean in means.items() if name in averaged}
            values["moving_averages"] = {**values["moving_averages"], **read}
        recorder.record(step, **values)
    return replace(tf1, recorder=recorder)


class _Rules:
    """The rules that the values of a step are compared by.

    A tolerance that the user gave for training always counts. Otherwise, with a noise floor, every value but the
    learning rate is held to TF1's noise. Without one, outputs are held to the patterns of the migration, values that a
    dtype policy rounds to its tolerance, gradients and slots to their own size, and the updates of a guided training
    to theirs.

    Attributes:
      left_out: the names that cannot be compared.
    """

    def __init__(self, migration: Migration, port: Training, tf1: Training, guided: bool, noise: TrainingNoise | None):
        self._port, self._tf1, self._guided, self._noise = port.recorder, tf1.recorder, guided, noise
        self._gradient_noise = tf1.gradient_noise
        self._given = train_step_of(migration).tolerances
        self._outputs, self._policy = migration.output_tolerances, migration.policy_tolerance
        self._general = replace(self._outputs.general, until=None if guided else 10)
        self._schedule = (*self._given, *_STRICTER, self._general, *DEFAULT_TOLERANCES)
        self._check_dtype = migration.dtype_policy is None
        rounded = half_precision(migration.dtype_policy) is not None
        measured = bool(tf1.gradient_noise) or any(tolerance.covers("gradients") for tolerance in self._given)
        self.left_out = port.not_exposed | tf1.not_exposed | ({"gradients"} if rounded and not measured else set())

    def compare(self, step: int) -> dict[str, Comparison]:
        """Return the comparisons of a step, by name; slots and updates come last."""
        names = dict.fromkeys([*self._tf1[step], *self._port[step]])
        found = {name: self._compare(name, step) for name in names if name not in self.left_out and name != "slots"}
        if "slots" in names and (slots := self._slots(step)).leaves:
            found["slots"] = slots
        if self._guided and self._noise is None and (updates := self._updates(step)).leaves:
            found["updates"] = updates
        return found

    def updates_agree(self, step: int) -> bool:
        """Return whether the updates of a step are equal, or cannot be compared."""
        return all(leaf.ok for leaf in self._updates(step).leaves)

    def _compare(self, name: str, step: int) -> Comparison:
        port, tf1 = self._port[step].get(name, MISSING), self._tf1[step].get(name, MISSING)
        tolerance = tolerance_in(self._schedule, name, step)
        if tolerance not in self._given:
            if self._noise is not None and name != "learning_rate":
                if name == "gradients":  # of which some are None in both programs
                    port, tf1 = _without_none(port, tf1)
                return self._by_path(name, port, tf1, self._noise.closeness(step, name))
            if name == "gradients":
                return self._gradients(step, port, tf1, tolerance)
            if self._policy is not None and self._is_rounded(name):
                return self._by_path(name, port, tf1, self._policy.closeness(tf1))
            if name == "outputs" and self._outputs.specific and tolerance is self._general:
                return self._by_path(name, port, tf1, self._outputs.closeness(tf1))
        return named(compare(port, tf1, tolerance.rtol, tolerance.atol, check_dtype=self._check_dtype), name)

    def _is_rounded(self, name: str) -> bool:
        assert self._policy is not None
        return name != "learning_rate" and (name != "regularization_loss" or self._policy.rounds_variables)

    def _by_path(self, name: str, port: Any, tf1: Any, closeness: Callable[[str], Closeness]) -> Comparison:
        return named(compare_by_path(port, tf1, closeness, check_dtype=self._check_dtype), name)

    def _gradients(self, step: int, port: Any, tf1: Any, tolerance: Tolerance) -> Comparison:
        rtol = tolerance.rtol if self._policy is None else self._policy.rtol
        noise = self._gradient_noise[step] if self._gradient_noise else {}
        return _compare_by_size(port, tf1, rtol, "gradients", noise=noise, check_dtype=self._check_dtype)

    def _slots(self, step: int) -> Comparison:
        """Compare the slots that both optimizers keep; slots of different kinds show in the weights."""
        tolerance = tolerance_in(self._schedule, "slots", step)
        given = tolerance in self._given
        if not given and not self._check_dtype:
            return Comparison(())
        port, tf1 = _in_both(self._port[step].get("slots", {}), self._tf1[step].get("slots", {}))
        if not given and self._noise is not None:
            return self._by_path("slots", port, tf1, self._noise.closeness(step, "slots"))
        leaves: list[LeafComparison] = []
        for kind in tf1:
            path = f"slots[{kind!r}]"
            if given:
                leaves += named(compare(port[kind], tf1[kind], tolerance.rtol, tolerance.atol), path).leaves
            else:
                leaves += _compare_by_size(port[kind], tf1[kind], tolerance.rtol, path, multiple=2).leaves
        return Comparison(tuple(leaves))

    def _updates(self, step: int) -> Comparison:
        """Compare what a step adds to the weights, as far as it is known; guided, both began with the same weights."""
        # The weights before step 0 are not recorded. Half precision rounds weights by more than updates may differ.
        if step == 0 or not self._check_dtype or tolerance_in(self._schedule, "weights", step) is not self._general:
            return Comparison(())
        tf1_before = self._tf1[step - 1]["weights"]
        port_before = tf1_before if self._guided else self._port[step - 1]["weights"]
        port, tf1 = self._port[step].get("weights", {}), self._tf1[step].get("weights", {})
        names = [name for name in tf1 if _are_alike(*(each.get(name) for each in (port, tf1, tf1_before, port_before)))]
        return _compare_by_size(
            {name: port[name] - port_before[name] for name in names},
            {name: tf1[name] - tf1_before[name] for name in names},
            self._general.rtol,
            "updates",
            rounding={name: float(_ULPS * np.spacing(np.abs(tf1_before[name]).max(initial=0))) for name in names},
        )


def _without_none(port: Any, tf1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return gradients without those that are None in both programs, whose losses do not depend on the variable."""
    none = {name for name in tf1 if tf1[name] is None and port.get(name, MISSING) is None}
    return (
        {name: gradient for name, gradient in port.items() if name not in none},
        {name: gradient for name, gradient in tf1.items() if name not in none},
    )


def _in_both(port: Mapping[str, Any], tf1: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the slots of the kinds and variables that both optimizers have."""
    names = {kind: [name for name in tf1[kind] if name in port[kind]] for kind in tf1 if kind in port}
    port_slots = {kind: {name: port[kind][name] for name in of_kind} for kind, of_kind in names.items()}
    return port_slots, {kind: {name: tf1[kind][name] for name in of_kind} for kind, of_kind in names.items()}


def _are_alike(*arrays: np.ndarray | None) -> bool:
    kinds = {(array.shape, array.dtype) if isinstance(array, np.ndarray) else None for array in arrays}
    return len(kinds) == 1 and None not in kinds


def _compare_by_size(
    port: Mapping[str, Any],
    tf1: Mapping[str, Any],
    rtol: float,
    name: str,
    *,
    multiple: float = 1.0,
    noise: Mapping[str, np.ndarray] | None = None,
    rounding: Mapping[str, float] | None = None,
    check_dtype: bool = True,
) -> Comparison:
    """Compare arrays of one kind, within tolerances relative to their greatest elements.

    Args:
      port: the port's arrays, by the TF1 names of their variables; None in both programs is equal.
      tf1: TF1's arrays.
      rtol: the relative tolerance.
      name: the first part of the paths.
      multiple: multiplies the tolerances: squares of gradients are off by twice as much as gradients.
      noise: how far each element moves when TF1 is rounded as the port is, if that was measured.
      rounding: added to the absolute tolerance of an array.
      check_dtype: whether different dtypes are a difference.
    """
    greatest = {variable: _greatest(array) for variable, array in tf1.items()}
    floor = _OF_ALL_GREATEST * max(greatest.values(), default=0.0)
    leaves: list[LeafComparison] = []
    for variable in dict.fromkeys([*tf1, *port]):
        port_array, tf1_array = port.get(variable, MISSING), tf1.get(variable, MISSING)
        if port_array is tf1_array is None:  # neither loss depends on it
            continue
        atol = multiple * max(_OF_OWN_GREATEST * greatest.get(variable, 0.0), floor) + (rounding or {}).get(
            variable, 0.0
        )
        if noise and variable in noise and isinstance(port_array, np.ndarray) and port_array.shape == tf1_array.shape:
            atol = max(atol, rtol * greatest[variable])
            found = _compare_rounded(port_array, tf1_array, rtol, atol, noise[variable])
        else:
            found = compare(port_array, tf1_array, multiple * rtol, atol, check_dtype=check_dtype)
        leaves += named(found, f"{name}[{variable!r}]").leaves
    return Comparison(tuple(leaves))


def _greatest(array: np.ndarray | None) -> float:
    return 0.0 if array is None else float(np.nan_to_num(np.abs(array).max(initial=0)))


def _compare_rounded(port: np.ndarray, tf1: np.ndarray, rtol: float, atol: float, noise: np.ndarray) -> Comparison:
    """Compare a gradient that rounding moves; only elements that jump are allowed the greatest jump."""
    jumps = noise > atol
    found = compare(port, tf1, rtol, max(atol, _OF_NOISE * noise.max(initial=0)), check_dtype=False)
    if not found or not jumps.any():
        return found
    without_jumps = np.where(jumps, tf1, port)
    return compare(without_jumps, tf1, rtol, max(atol, _OF_NOISE * noise[~jumps].max(initial=0)), check_dtype=False)
