"""The comparison of both programs' trainings, name by name and step by step, each value within its tolerance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import MISSING
from detrand.comparison.values import Comparison, compare_by_path, leaves_by_path
from detrand.steps.comparison import DEFAULT_TOLERANCES, StepsComparison, Tolerance, named, tolerance_in
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise, greatest_of, ulp_of
from detrand.validation.precision import half_precision
from detrand.validation.programs.sample_variances import nearer
from detrand.validation.training.steps import (
    AVERAGES_OF_BATCH,
    MEANS_OF_TOWERS,
    UPDATES_OF_AVERAGES,
    UPDATES_OF_WEIGHT_AVERAGES,
    WEIGHT_AVERAGES,
    Training,
    train_step_of,
)
from detrand.variables.spec import VariableSpec

# Learning rates and sums of small weights would vanish in an absolute tolerance. A sum in a different order may differ
# by some units in the last place for each term.
_STRICTER = (
    Tolerance(rtol=1e-6, atol=0.0, of="learning_rate"),
    Tolerance(rtol=1e-5, atol=0.0, of="regularization_loss", until=10),
)
# Absolute tolerances of an array, relative to its own greatest element and to that of all arrays.
_OF_OWN_GREATEST, _OF_ALL_GREATEST = 1e-4, 1e-5
_OF_NOISE = 2.0  # a port rounds at other places than the variant whose noise is measured
_OF_SPLIT = 0.01  # of the difference between two regularization losses, if the total losses agree
SPLIT = "split"  # left out if the programs split one loss differently into loss and regularization
# What a step adds to variables -> the kind of these variables.
_CHANGES = {
    "updates": "weights",
    UPDATES_OF_AVERAGES: "moving_averages",
    UPDATES_OF_WEIGHT_AVERAGES: WEIGHT_AVERAGES,
}
AVERAGES_BEGIN = "begin of weight averages"  # left out if only the port's are the weights after the first step
_ULPS = 2  # of the greatest weight: each program rounds the sum of a weight and its update


def compare_trainings(
    migration: Migration, port: Training, tf1: Training, *, guided: bool = False, noise: TrainingNoise | None = None
) -> tuple[StepsComparison, frozenset[str]]:
    """Return how two trainings compare, and the names that are left out because one program does not expose them.

    Where the noise of TF1's training is given, the port may differ by as much.
    """
    rules = _Rules(migration, port, tf1, guided, noise)
    return StepsComparison({step: rules.compare(step) for step in range(len(tf1.steps))}), rules.left_out


def updates_agree(migration: Migration, port: Training, tf1: Training) -> bool:
    """Return whether two trainings that ran on their own update their weights alike.

    If they do not, that may be rounding of the gradients: only a port that is guided by TF1 shows a fault.
    """
    rules = _Rules(migration, port, tf1, guided=False, noise=None)
    if AVERAGES_BEGIN in rules.left_out:  # the moving averages of weights are compared in a guided training only
        return False
    return all(map(rules.updates_agree, range(len(tf1.steps))))


def with_equal_averages(port: Training, tf1: Training) -> tuple[Training, Training]:
    """Return both trainings with moving averages of one kind.

    In towers, TF1's are read as a port on replicas reads them: Keras 3 reads the first replica's; tf_keras reads the
    mean over the replicas, which makes the variable averaged. Averages of the variance of a sample are as of the batch
    if those of the other program are nearer to these.
    """
    pairs = zip(tf1.steps, port.steps, strict=True)
    steps = [dict(step) for step in port.steps], [_without_own(*pair, tf1.of_loss) for pair in pairs]
    # By the first step of each: later, trainings may differ for other reasons.
    decided: tuple[dict[str, bool], dict[str, bool]] = ({}, {})
    for of_port, of_tf1 in zip(*steps, strict=True):
        of_batch = of_port.pop(AVERAGES_OF_BATCH, {}), of_tf1.pop(AVERAGES_OF_BATCH, {})
        averages = of_port.get("moving_averages", {}), of_tf1.get("moving_averages", {})
        near = nearer(averages[1], averages[0], of_batch[0]), nearer(*averages, of_batch[1])
        means = {name: mean for name, mean in of_tf1.pop(MEANS_OF_TOWERS, {}).items() if name in port.averaged}
        for step, before, arrays, names, taken, others in zip(
            (of_port, of_tf1), averages, of_batch, near, decided, ({}, means), strict=True
        ):
            for name in arrays:
                taken.setdefault(name, name in names)
            changes = others | {name: array for name, array in arrays.items() if taken[name]}
            if changes:
                step["moving_averages"] = before | changes
    return replace(port, steps=tuple(steps[0])), replace(tf1, steps=tuple(steps[1]))


def _without_own(tf1: Mapping[str, Any], port: Mapping[str, Any], of_loss: Collection[str]) -> dict[str, Any]:
    """Return a step of TF1 without what only TF1 has: counters, such as a global step, and variables of its loss.

    The port's loss may keep these as it likes, such as a baseline of rewards; what they do shows in the losses.
    """
    averages = tf1.get("moving_averages", {})
    specs = {name: VariableSpec(array.shape, array.dtype.name, False) for name, array in averages.items()}
    own = {name for name in optimizer_slots(specs) if not averages[name].ndim and AVERAGE not in name} | {*of_loss}
    kept = {name: array for name, array in averages.items() if name not in own - port.get("moving_averages", {}).keys()}
    step = {**tf1, "moving_averages": kept}
    if not kept:
        del step["moving_averages"]
    return step


def splits_differently(port: Mapping[str, Any], tf1: Mapping[str, Any]) -> bool:
    """Return whether two steps have the same total loss, of which different parts are regularization losses."""
    parts = [float(step.get("regularization_loss", 0.0)) for step in (port, tf1)]
    return abs(float(port["loss"]) - float(tf1["loss"])) <= _OF_SPLIT * abs(parts[0] - parts[1])


class _Rules:
    """The rules that the values of a step are compared by.

    A tolerance that the user gave for training always counts. Otherwise, outputs are held to the patterns of the
    migration, values that a dtype policy rounds to its tolerance, gradients, slots and, unless the migration has
    tolerances, outputs, losses and metrics to their own size, and the updates of a guided training to theirs. With a
    noise floor, every value but the learning rate may also differ by as much as TF1's rounding allows.

    Attributes:
      left_out: the names that cannot be compared.
    """

    def __init__(self, migration: Migration, port: Training, tf1: Training, guided: bool, noise: TrainingNoise | None):
        self._port, self._tf1, self._guided, self._noise = port.steps, tf1.steps, guided, noise
        self._gradient_noise, self._constants = tf1.gradient_noise, port.constants
        self._given = train_step_of(migration).tolerances
        self._outputs, self._policy = migration.output_tolerances, migration.policy_tolerance
        self._general = replace(self._outputs.general, until=None if guided else 10)
        self._by_size = migration.measures_rounding
        self._schedule = (*self._given, *_STRICTER, self._general, *DEFAULT_TOLERANCES)
        self._check_dtype = migration.dtype_policy is None
        self._is_rounded = rounded = half_precision(migration.dtype_policy) is not None
        measured = bool(tf1.gradient_noise) or any(tolerance.covers("gradients") for tolerance in self._given)
        not_compared = ("gradients",) if rounded and not measured else ()
        self.left_out = frozenset({*port.not_exposed, *tf1.not_exposed, *not_compared})
        if WEIGHT_AVERAGES not in self._tf1[0]:
            self.left_out -= {WEIGHT_AVERAGES}
        elif _begin_with_weights(self._port[0]) and not _begin_with_weights(self._tf1[0]):
            self.left_out |= {AVERAGES_BEGIN}

    def compare(self, step: int) -> dict[str, Comparison]:
        """Return the comparisons of a step, by name; updates come last."""
        port, tf1 = _trained_by_both(self._port[step], self._tf1[step])
        values = {name: (port.get(name, MISSING), tf1.get(name, MISSING)) for name in dict.fromkeys([*tf1, *port])}
        if_any = {"gradients": _without_none(*values["gradients"]), "slots": self._slots(step)}
        if self._guided:
            if_any |= {name: self._changes(kind, step) for name, kind in _CHANGES.items()}
        compared = {
            name: self._compare(name, step, *pair)
            for name, pair in (values | if_any).items()
            if name not in self.left_out and (name not in if_any or any(pair))
            if name != WEIGHT_AVERAGES or self._compares_averages(step)
        }
        if not compared.get("regularization_loss", True) and compared["loss"] and splits_differently(port, tf1):
            del compared["regularization_loss"]
            self.left_out |= {SPLIT}
        return compared

    def _compares_averages(self, step: int) -> bool:
        """Return whether the moving averages of weights are compared; the port's are no part of its training."""
        begin_alike = AVERAGES_BEGIN not in self.left_out or (self._guided and step > 0)
        return WEIGHT_AVERAGES in self._tf1[step] and begin_alike

    def updates_agree(self, step: int) -> bool:
        """Return whether the changes of variables in a step are equal, or cannot be compared."""
        changes = {name: self._changes(kind, step) for name, kind in _CHANGES.items()}
        return all(self._compare(name, step, *pair).ok for name, pair in changes.items() if pair[1])

    def _compare(self, name: str, step: int, port: Any, tf1: Any) -> Comparison:
        closeness_of = self._closeness(name, step, tf1)
        if name == "gradients" and self._gradient_noise and not self._is_given(name, step):
            port, closeness_of = _allowing_noise(port, tf1, self._gradient_noise[step], closeness_of)
        return named(compare_by_path(port, tf1, closeness_of, check_dtype=self._check_dtype, check_width=False), name)

    def _closeness(self, name: str, step: int, tf1: Any) -> Callable[[str], Closeness]:
        """Return how close the values under a name must be, by their paths below that name."""
        of_rules = self._closeness_of_rules(name, step, tf1)
        if self._noise is None or name == "learning_rate" or self._is_given(name, step):
            return of_rules
        of_noise = self._noise.closeness(step, name)

        def wider(path: str) -> Closeness:
            close, measured = of_rules(path), of_noise(path)
            return close._replace(rtol=max(close.rtol, measured.rtol), atol=max(close.atol, measured.atol))

        return wider

    def _closeness_of_rules(self, name: str, step: int, tf1: Any) -> Callable[[str], Closeness]:
        tolerance, policy = tolerance_in(self._schedule, name, step), self._policy
        if name != "learning_rate" and not self._is_given(name, step):
            if name == "gradients":
                rtol = tolerance.rtol if policy is None else policy.rtol
                return _by_size(tf1, rtol, of_own=rtol if self._gradient_noise else 0.0)
            if name == "slots":
                return _by_size(tf1, tolerance.rtol, multiple=2)
            if name in _CHANGES:
                # Programs round 1 minus a momentum differently, by up to 5e-5 of it if the momentum is 0.999.
                multiple = 1.0 if name == "updates" else 10.0
                before = dict(self._tf1[step - 1][_CHANGES[name]])
                for path in before.keys() & self._constants.keys():  # the port rounds a variable with its constant
                    before[path] = (before[path] + self._constants[path]).astype(before[path].dtype)
                return _by_size(tf1, tolerance.rtol, multiple=multiple, rounded=before)
            if policy is not None and (policy.rounds_variables or name != "regularization_loss"):
                return policy.closeness(tf1)
            by_size = _relative_to_greatest(tf1, tolerance) if self._by_size and tolerance is self._general else None
            if name == "outputs" and tolerance is self._general:
                return self._outputs.closeness(tf1, by_size)
            if name in ("loss", "metrics") and by_size is not None:
                return by_size
        return lambda path: Closeness(tolerance.rtol, tolerance.atol, equal_nan=False)

    def _is_given(self, name: str, step: int) -> bool:
        return tolerance_in(self._schedule, name, step) in self._given

    def _slots(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the slots that both optimizers keep; slots of different kinds show in the weights."""
        if self._is_rounded and not self._is_given("slots", step):
            return {}, {}
        port, tf1 = self._port[step].get("slots", {}), self._tf1[step].get("slots", {})
        return _found_in(tf1, port), _found_in(port, tf1)

    def _changes(self, kind: str, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a step adds to variables, as far as it is known; guided, both began with the same variables."""
        # The variables before step 0 are not recorded. Half precision rounds them by more than changes may differ.
        if step == 0 or not self._check_dtype or tolerance_in(self._schedule, kind, step) is not self._general:
            return {}, {}
        tf1_before = self._tf1[step - 1].get(kind, {})
        port_before = tf1_before if self._guided else self._port[step - 1].get(kind, {})
        port, tf1 = self._port[step].get(kind, {}), self._tf1[step].get(kind, {})
        names = [name for name in tf1 if _are_alike(*(each.get(name) for each in (port, tf1, tf1_before, port_before)))]
        names = [name for name in names if tf1[name].dtype.kind == "f"]
        return (
            {name: port[name] - port_before[name] for name in names},
            {name: tf1[name] - tf1_before[name] for name in names},
        )


def _trained_by_both(*steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps without the variables that only some of them train; the gradients show those."""
    trained = [step["gradients"].keys() for step in steps]
    by_one = frozenset[str]().union(*trained) - frozenset.intersection(*map(frozenset, trained))
    if not by_one:
        return [dict(step) for step in steps]
    found = [dict(step) for step in steps]
    for step in found:
        for kind in {"weights", "moving_averages", WEIGHT_AVERAGES} & step.keys():
            step[kind] = {name: array for name, array in step[kind].items() if name not in by_one}
            if not step[kind]:
                del step[kind]
    return found


def _begin_with_weights(step: Mapping[str, Any]) -> bool:
    """Return whether all moving averages of weights are the weights themselves, as those of Keras in the first step."""
    averages = step.get(WEIGHT_AVERAGES, {})
    return bool(averages) and all(np.array_equal(array, step["weights"].get(name)) for name, array in averages.items())


def _without_none(port: Mapping[str, Any], tf1: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return gradients without those that are None in one program, and None, 0 or missing in the other one.

    The loss does not depend on the variable, or the other program does not train it. What the optimizer does with it
    shows in the weights.
    """
    names = dict.fromkeys([*tf1, *port])
    pairs = {name: (tf1.get(name, MISSING), port.get(name, MISSING)) for name in names}
    none = {name for name, pair in pairs.items() if any(each is None for each in pair) and not any(map(_acts, pair))}
    return (
        {name: gradient for name, gradient in port.items() if name not in none},
        {name: gradient for name, gradient in tf1.items() if name not in none},
    )


def _acts(gradient: Any) -> bool:
    """Return whether a gradient is there and not 0 everywhere."""
    return gradient is not None and gradient is not MISSING and bool(np.any(gradient))


def _found_in(other: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the slots of the kinds and variables of which the other optimizer has slots."""
    found = {
        kind: {name: slot for name, slot in of_kind.items() if name in other.get(kind, ())}
        for kind, of_kind in slots.items()
    }
    return {kind: of_kind for kind, of_kind in found.items() if of_kind}


def _are_alike(*arrays: np.ndarray | None) -> bool:
    kinds = {(array.shape, array.dtype) if isinstance(array, np.ndarray) else None for array in arrays}
    return len(kinds) == 1 and None not in kinds


def _by_size(
    arrays: Mapping[str, Any],
    rtol: float,
    *,
    multiple: float = 1.0,
    of_own: float = 0.0,
    rounded: Mapping[str, np.ndarray] | None = None,
) -> Callable[[str], Closeness]:
    """Return how close arrays must be, by path: relative to their own greatest element, and to that of their kind.

    ``multiple`` is for squares of gradients, which are off by twice as much as gradients. ``of_own`` is the absolute
    tolerance relative to the greatest element, if it is greater than usual. ``rounded`` is what the arrays were added
    to, and so were rounded with.
    """
    greatest = {path: greatest_of(array) for path, array in leaves_by_path(arrays).items() if array is not None}
    sums = {path: array for path, array in leaves_by_path(rounded or {}).items() if array.dtype.kind not in "biu"}
    ulps = {path: _ULPS * ulp_of(array) for path, array in sums.items()}
    of_kinds: dict[str, float] = {}
    for path, of_array in greatest.items():
        kind = path.rpartition("[")[0]
        of_kinds[kind] = max(of_kinds.get(kind, 0.0), of_array)

    def closeness_of(path: str) -> Closeness:
        of_kind = _OF_ALL_GREATEST * of_kinds.get(path.rpartition("[")[0], 0.0)
        atol = max(max(_OF_OWN_GREATEST, of_own) * greatest.get(path, 0.0), of_kind)
        return Closeness(multiple * rtol, multiple * atol + ulps.get(path, 0.0), equal_nan=False)

    return closeness_of


def _relative_to_greatest(arrays: Any, tolerance: Tolerance) -> Callable[[str], Closeness]:
    """Return how close arrays must be, by path: an absolute tolerance is smaller for smaller numbers than 1."""
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_by_path(arrays).items()}
    greatest = {path: greatest_of(array) for path, array in leaves.items() if array.dtype.kind == "f"}
    return lambda path: Closeness(tolerance.rtol, tolerance.atol * min(greatest.get(path, 0.0), 1.0), equal_nan=False)


def _allowing_noise(
    port: Mapping[str, Any],
    tf1: Mapping[str, Any],
    noise: Mapping[str, np.ndarray],
    closeness_of: Callable[[str], Closeness],
) -> tuple[dict[str, Any], Callable[[str], Closeness]]:
    """Return gradients of the port and how close they must be where rounding moves TF1's.

    Only elements that jump in TF1 are allowed the greatest jump; those that are near enough become TF1's.
    """
    port, closeness = dict(port), {}
    for name, array in tf1.items():
        if array is None or not isinstance(port.get(name), np.ndarray) or port[name].shape != array.shape:
            continue
        path = f"[{name!r}]"
        rtol, atol, _ = closeness_of(path)
        jumps = noise[name] > atol
        allowed = max(atol, _OF_NOISE * noise[name].max(initial=0)) + rtol * np.abs(array)
        port[name] = np.where(jumps & (np.abs(port[name] - array) <= allowed), array, port[name])
        atol = max(atol, _OF_NOISE * noise[name][~jumps].max(initial=0))
        closeness[path] = Closeness(rtol, atol, equal_nan=False)
    return port, lambda path: closeness[path] if path in closeness else closeness_of(path)
