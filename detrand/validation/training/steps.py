"""What training a TF1 program and training its port have in common: what is recorded of a step.

A step is one ``Session.run``: it computes outputs, losses and gradients, updates the weights, and runs what is in
``UPDATE_OPS``. What it computed before the update, and the variables after it, are recorded under the same names
for either program, variables under their TF1 names. `tf1_training` and `port_training`, beside this module, run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.keras import underlying_variable
from detrand._patching.optimizers import SCALED_MOMENTUM, slots_of_optimizer
from detrand.errors import MigrationError
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration, TrainStep
from detrand.variables.partitioned import JoinedVariable


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
    variables: Mapping[str, JoinedVariable],
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


def _of_parts(variables: Mapping[str, JoinedVariable], pairs: Iterable[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Returns the gradients of each trainable variable's parts, dense; None where the loss does not depend on any."""
    gradients = {id(underlying_variable(variable)): gradient for gradient, variable in pairs}
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
    variables: Mapping[str, JoinedVariable],
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


# Name of the slot in TF1 -> TF1 name of the variable -> the slot of each of its parts.
Slots = dict[str, dict[str, list[Any]]]


def slots_of(optimizer: Any, variables: Mapping[str, JoinedVariable]) -> Slots:
    """Returns the slots of a program's variables; one that is not trained has none, nor does an unknown optimizer.

    Args:
      optimizer: what has updated the variables.
      variables: by their TF1 names.
    """
    found: Slots = {}
    for name, variable in variables.items():
        of_parts = [slots_of_optimizer(optimizer, part) for part in variable.parts]
        for kind in of_parts[0]:
            if all(kind in slots for slots in of_parts):
                found.setdefault(kind, {})[name] = [slots[kind] for slots in of_parts]
    return found


def as_in_tf1(slots: Slots, rates: Sequence[Any]) -> Slots:
    """Returns the values of a port's slots in the form of TF1's.

    The momentum of Keras's SGD has each gradient multiplied by the learning rate of its own step. While that is always
    the same one, dividing gives TF1's sum of gradients; afterwards nothing does, and it is left out.

    >>> slots = {SCALED_MOMENTUM: {"w": [np.array([-0.5])]}}
    >>> as_in_tf1(slots, rates=[0.1, 0.1])
    {'momentum': {'w': [array([5.])]}}
    >>> as_in_tf1(slots, rates=[0.1, 0.05])
    {}

    Args:
      slots: arrays.
      rates: the learning rate of each step so far; None where it is not known.
    """
    found = {kind: of_variables for kind, of_variables in slots.items() if kind != SCALED_MOMENTUM}
    known = {None if rate is None else float(np.asarray(rate)) for rate in rates}
    (rate,) = known if len(known) == 1 else (None,)
    if rate and SCALED_MOMENTUM in slots:
        scaled = slots[SCALED_MOMENTUM]
        found["momentum"] = {name: [array / -rate for array in of_parts] for name, of_parts in scaled.items()}
    return found
