"""What training a TF1 program and training its port have in common: what is recorded of a step, and how it compares.

A step is one ``Session.run``: it computes outputs, losses and gradients, updates the weights, and runs what is in
``UPDATE_OPS``. What it computed before the update, and the variables after it, are recorded under the same names
for either program, variables under their TF1 names. `tf1_training` and `port_training`, beside this module, run them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching
from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import MISSING
from detrand.comparison.step_comparison import (
    DEFAULT_TOLERANCES,
    StepsComparison,
    Tolerance,
    compare_steps,
    named,
    tolerance_in,
)
from detrand.comparison.step_recorder import StepRecorder
from detrand.comparison.values import Comparison, LeafComparison, compare, compare_by_path
from detrand.errors import MigrationError
from detrand.validation.compare_by_size import compare_by_size
from detrand.validation.migration import Migration
from detrand.validation.noise_floor import TrainingNoise
from detrand.validation.optimizer_state import Slots
from detrand.validation.precision import half_precision
from detrand.validation.train_step import TrainStep
from detrand.validation.updates import compare_updates
from detrand.variables.whole_variables import WholeVariable


@dataclass(frozen=True)
class Training:
    """What a program did when it was trained.

    Attributes:
      recorder: what each step computed: ``learning_rate``, ``outputs``, ``regularization_loss``, ``loss`` (with
        regularization), ``metrics``, ``gradients``, and after the update ``weights``, ``moving_averages`` (whatever
        is not trainable) and ``slots``, what the optimizer keeps of each variable, by TF1's names for it. Of towers of
        TF1, ``moving_averages`` are those of the first, and ``means_of_towers`` those of all.
      cannot_tell: which of these the program has no way to tell.
      variables: the TF1 names of its variables.
      gradient_noise: of TF1 where the port computes in half precision: how far each element of the gradients moves in
        each step when TF1 is rounded likewise.
      replicas: how many of the port it ran on.
      meant: those of the variables of which a port on replicas gives the mean of the replicas' where it is read.
      in_slices: those of which a port's optimizer of Keras 3 has got gradients in slices, as an embedding's are.
    """

    recorder: StepRecorder
    cannot_tell: frozenset[str]
    variables: tuple[str, ...]
    gradient_noise: tuple[Mapping[str, np.ndarray], ...] = ()
    replicas: int = 1
    meant: frozenset[str] = frozenset()
    in_slices: frozenset[str] = frozenset()


MEANS = "means_of_towers"


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
    own = train_step_of(migration).tolerances
    tolerances = migration.output_tolerances
    any_step = replace(tolerances.otherwise, until=None if guided else 10)
    schedule = (*own, *_STRICTER, any_step, *DEFAULT_TOLERANCES)
    check_dtype, policy = migration.dtype_policy is None, migration.policy_tolerance
    comparison = compare_steps(port.recorder, tf1.recorder, schedule, check_dtype=check_dtype)
    left_out = port.cannot_tell | tf1.cannot_tell
    rounded = migration.dtype_policy is not None and half_precision(migration.dtype_policy) is not None
    if rounded and not tf1.gradient_noise and not any(tolerance.covers("gradients", 0) for tolerance in own):
        left_out |= {"gradients"}
    steps = {}
    for step, by_name in comparison.steps.items():
        steps[step] = {name: found for name, found in by_name.items() if name not in left_out}
        if tolerances.by_pattern and tolerance_in(schedule, "outputs", step) is any_step:
            actual, desired = (training.recorder[step]["outputs"] for training in (port, tf1))
            found = compare_by_path(actual, desired, tolerances.closeness_of, check_dtype=check_dtype)
            steps[step]["outputs"] = named(found, "outputs")
        if policy is not None:
            exact = {"learning_rate", "gradients"} | (set() if policy.rounds_variables else {"regularization_loss"})
            for name in steps[step].keys() - exact:
                if tolerance_in(schedule, name, step) not in own:
                    actual, desired = (training.recorder[step].get(name, MISSING) for training in (port, tf1))
                    closeness = policy.tolerances(desired).closeness_of
                    steps[step][name] = named(compare_by_path(actual, desired, closeness, check_dtype=False), name)
        tolerance = tolerance_in(schedule, "gradients", step)
        if tolerance not in own and "gradients" not in left_out:
            actual, desired = (training.recorder[step]["gradients"] for training in (port, tf1))
            rtol = tolerance.rtol if policy is None else policy.rtol
            moved = tf1.gradient_noise[step] if tf1.gradient_noise else {}
            steps[step]["gradients"] = compare_by_size(
                actual, desired, rtol, "gradients", noise=moved, check_dtype=check_dtype
            )
        tolerance = tolerance_in(schedule, "slots", step)
        if steps[step].pop("slots", None) is not None and (tolerance in own or migration.dtype_policy is None):
            actual, desired = (training.recorder[step].get("slots", {}) for training in (port, tf1))
            found = _compare_slots(*_in_both(actual, desired), tolerance, given=tolerance in own)
            steps[step].update({"slots": found} if found.leaves else {})
        # What step 0 begins with is not recorded; in other dtypes weights are rounded by more than updates may differ.
        if (
            guided
            and step > 0
            and noise is None
            and policy is None
            and any_step is tolerance_in(schedule, "weights", step)
        ):
            ours, theirs = (training.recorder[step]["weights"] for training in (port, tf1))
            found = compare_updates(ours, theirs, tf1.recorder[step - 1]["weights"], any_step.rtol)
            steps[step].update({"updates": found} if found.leaves else {})
        if noise is not None:
            for name in steps[step].keys() - {"learning_rate"}:
                if tolerance_in(schedule, name, step) not in own:
                    actual, desired = (training.recorder[step].get(name, MISSING) for training in (port, tf1))
                    found = _compare_to_noise(actual, desired, name, noise.closeness(step, name), check_dtype)
                    steps[step][name] = found
    return StepsComparison(steps), left_out


def _compare_slots(
    actual: Mapping[str, Any], desired: Mapping[str, Any], tolerance: Tolerance, given: bool
) -> Comparison:
    """Compares the slots that both optimizers have.

    Args:
      actual: the port's, by their names and by those of the variables.
      desired: TF1's.
      tolerance: of the step.
      given: whether the user gave it, for slots or for everything: it holds as it is then.
    """
    leaves: list[LeafComparison] = []
    for kind, theirs in desired.items():
        path = f"slots[{kind!r}]"
        if given:
            leaves += named(compare(actual[kind], theirs, tolerance.rtol, tolerance.atol), path).leaves
        else:
            leaves += compare_by_size(actual[kind], theirs, tolerance.rtol, path, multiple=2).leaves
    return Comparison(tuple(leaves))


def _compare_to_noise(
    actual: Any, desired: Any, name: str, closeness: Callable[[str], Closeness], check_dtype: bool
) -> Comparison:
    if name == "slots":
        actual, desired = _in_both(actual, desired)
    elif name == "gradients":  # where the loss depends on a variable on neither side, there is nothing to compare
        none = {of for of in desired if desired[of] is None and actual.get(of, MISSING) is None}
        actual, desired = ({of: value for of, value in each.items() if of not in none} for each in (actual, desired))
    return named(compare_by_path(actual, desired, closeness, check_dtype=check_dtype), name)


def _in_both(actual: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the slots that both optimizers have: those of another kind show in the weights."""
    kinds = [kind for kind in desired if kind in actual]
    names = {kind: [name for name in desired[kind] if name in actual[kind]] for kind in kinds}
    ours, theirs = (
        {kind: {name: of[kind][name] for name in names[kind]} for kind in kinds} for of in (actual, desired)
    )
    return ours, theirs


def train_step_of(migration: Migration) -> TrainStep:
    """Returns how the programs of a migration that has a `TrainStep` are trained."""
    assert migration.train is not None
    return migration.train


def checked_loss(argument: str, loss: Any) -> tf.Tensor:
    """Returns what a loss function returned, as a tensor.

    Raises:
      MigrationError: if it is no scalar.
    """
    tensor = tf.convert_to_tensor(loss)
    if tensor.shape.rank not in (0, None):
        raise MigrationError(
            f"{argument} returned a tensor of shape {tensor.shape}, where a scalar is expected; reduce it, with "
            "tf.reduce_mean, say"
        )
    return tensor


def checked_optimizer(argument: str, optimizer: Any, method: str) -> Any:
    """Returns what the factory of an optimizer returned.

    Raises:
      MigrationError: if it has not got the method that makes it one.
    """
    if not hasattr(optimizer, method):
        raise MigrationError(
            f"{argument} returned {optimizer!r} of type {type(optimizer).__name__}, which has no {method}; return an "
            "optimizer"
        )
    return optimizer


def with_regularization(loss: tf.Tensor, losses: Iterable[Any]) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns a loss with regularization losses added, and their sum, if there are any."""
    losses = list(losses)
    if not losses:
        return loss, None
    regularization = tf.add_n(losses)
    # Under a dtype policy of pure half precision, or of float64, a loss may have another dtype than the weights.
    return loss + tf.cast(regularization, loss.dtype), regularization


def values_of_step(
    *,
    rate: Any,
    outputs: Any,
    regularization: Any,
    loss: tf.Tensor,
    metrics: Mapping[str, Any],
    variables: Mapping[str, WholeVariable],
    gradients: Iterable[tuple[Any, Any]],
) -> dict[str, Any]:
    """Returns what is recorded of a step before its update, by name: first what the others follow from.

    Args:
      rate: the learning rate; None if it is not known.
      outputs: of the model.
      regularization: the sum of the regularization losses; None if there are none.
      loss: what the gradients are of.
      metrics: by name.
      variables: those of the model, by their TF1 names.
      gradients: pairs of a gradient and a trainable variable, or part of one.
    """
    values = {
        "learning_rate": None if rate is None else tf.convert_to_tensor(rate),
        "outputs": outputs,
        "regularization_loss": regularization,
        "loss": loss,
        "metrics": metrics or None,
        "gradients": _of_parts(variables, gradients),
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_parts(variables: Mapping[str, WholeVariable], pairs: Iterable[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Returns the gradients of each trainable variable's parts, dense; None where the loss does not depend on any."""
    gradients = {id(_patching.underlying_variable(variable)): gradient for gradient, variable in pairs}
    found = {}
    for name, variable in variables.items():
        if not all(id(part) in gradients for part in variable.parts):
            continue
        of_parts = [gradients[id(part)] for part in variable.parts]
        if any(gradient is not None for gradient in of_parts):
            of_parts = [
                tf.zeros(part.shape, part.dtype) if gradient is None else tf.convert_to_tensor(gradient)
                for part, gradient in zip(variable.parts, of_parts, strict=True)
            ]
        found[name] = of_parts
    return found


def record_step(
    recorder: StepRecorder,
    step: int,
    values: dict[str, Any],
    variables: Mapping[str, WholeVariable],
    arrays: Mapping[str, list[np.ndarray]],
    slots: Slots,
) -> None:
    """Records what a step computed, and the variables and the optimizer's slots after it, the parts of one joined."""
    gradients = {
        name: None if of_parts[0] is None else variables[name].joined([np.asarray(part) for part in of_parts])
        for name, of_parts in values["gradients"].items()
    }
    joined = {name: variables[name].joined(of_parts) for name, of_parts in arrays.items()}
    recorder.record(step, **{**values, "gradients": gradients})
    recorder.record(step, weights={name: array for name, array in joined.items() if name in gradients})
    averages = {name: array for name, array in joined.items() if name not in gradients}
    if averages:
        recorder.record(step, moving_averages=averages)
    joined_slots = {
        kind: {name: variables[name].joined(of_parts) for name, of_parts in of_variables.items()}
        for kind, of_variables in slots.items()
    }
    if joined_slots:
        recorder.record(step, slots=joined_slots)
