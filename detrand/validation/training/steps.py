"""A recorded training: what each step of either program computes, under the same names.

A step is one ``Session.run``: it computes outputs, losses and gradients, updates the weights, and runs
``UPDATE_OPS``. What it computed before the update, and the variables after it, are recorded for either program,
variables under their TF1 names. `detrand.validation.training.tf1` and `detrand.validation.training.port` run the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.keras import underlying_variable
from detrand._patching.optimizers import AVERAGE_OF_WEIGHT, SCALED_MOMENTUM, slots_of_optimizer
from detrand.comparison.structures import in_numpy
from detrand.errors import ArgumentError, MigrationError
from detrand.packages import is_loaded, tf
from detrand.seeding.streams import RandomOp
from detrand.validation.frameworks.flax import is_jax_array
from detrand.validation.frameworks.framework import Framework
from detrand.validation.frameworks.torch import is_torch_tensor
from detrand.validation.migration import Migration, TrainStep
from detrand.variables.spec import shape_tuple
from detrand.variables.tf1_view import TF1View

Step = Mapping[str, Any]  # what was recorded of a training step, by name
LEARNING_RATE = "learning_rate"  # its name in a step, and as a hyperparameter of an optimizer


class Schedule(NamedTuple):
    """How TF1's learning rate is computed.

    Attributes:
      function: the function of ``tf.train`` that does it; empty if there is none.
      numbers: the constants from which it is computed.
    """

    function: str = ""
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Training:
    """The training of one program.

    Attributes:
      steps: what each step computed: ``learning_rate``, ``outputs``, ``regularization_loss``, ``loss`` (with
        regularization), ``metrics``, ``gradients``, and after the update ``weights``, ``moving_averages`` (all that is
        not trainable), ``slots`` (what the optimizer keeps of each variable, by TF1's names) and ``weight_averages``
        (the moving averages of weights that ``tf.train.ExponentialMovingAverage`` keeps). Of TF1 in towers,
        ``moving_averages`` are those of the first tower, and ``means_of_towers`` those of all. ``averages_of_batch``
        are those of a sample's variance as they would be with the batch's.
      not_exposed: those of these names whose values the program does not expose.
      gradient_noise: how far each element of TF1's gradients moves in each step when TF1 is rounded as the port is;
        only for ports in half precision.
      replicas: the number of replicas that the port ran on.
      unordered: sentences about the variables that the TF1 graph updates and reads in no defined order.
      averaged: the variables that are averaged over the replicas when they are read.
      in_slices: the variables of which a port's optimizer of Keras 3 got gradients in slices, as of an embedding.
      sliced: the variables whose gradients come in slices; of TF1, if its inputs choose the rows.
      norms_of_slices: if TF1 clips gradients, some of which come in slices, two numbers for each step: the global norm
        of all, before slices are added up, and the factor by which TF1 scales those that come in no slices.
      lines: the lines of TF1's update, by what they do; see `train_op.Update`.
      schedule: how TF1's learning rate is computed.
      clipping: the argument with which a port's optimizer clips gradients, empty without one; None if it has no such
        arguments, and may clip in code.
      regularizers: what TF1's total loss adds for a variable, by name, ``"none"`` if it adds nothing.
      decays: the weight decay that TF1's update adds to gradients, by variable, as a regularizer of the same effect.
      without_penalties: whether the losses and gradients of TF1 are those without its penalties of weights, because a
        port's optimizer may decay the weights.
      lines_of_penalties: the lines that penalize variables in TF1's total loss, or else decay them in its update, by
        name.
      uncontrolled: the random ops that no scope could control.
      of_loss: the variables that TF1's loss makes, and not its model.
      constants: what a port adds to the elements of TF1's variables, by name, such as TF1's forget bias to a bias.
    """

    steps: tuple[dict[str, Any], ...]
    not_exposed: tuple[str, ...]
    gradient_noise: tuple[Mapping[str, np.ndarray], ...] = ()
    replicas: int = 1
    averaged: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    in_slices: tuple[str, ...] = ()
    sliced: tuple[str, ...] = ()
    norms_of_slices: tuple[tuple[float, float], ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    clipping: str | None = ""
    regularizers: Mapping[str, str] = field(default_factory=dict)
    decays: Mapping[str, str] = field(default_factory=dict)
    without_penalties: bool = False
    lines_of_penalties: Mapping[str, str] = field(default_factory=dict)
    uncontrolled: tuple[RandomOp, ...] = ()
    of_loss: tuple[str, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    def variables_after(self, step: int) -> dict[str, np.ndarray]:
        """Return all variables after a step, by name."""
        return {**self.steps[step]["weights"], **self.steps[step].get("moving_averages", {})}


UPDATES_OF_AVERAGES = "moving_average_updates"  # what a guided step adds to moving averages
WEIGHT_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES = "weight_averages", "weight_average_updates"
FACTOR, CLIPPING = "factor of the gradients", "clipping of gradients"  # before they are applied
MEANS_OF_TOWERS, AVERAGES_OF_BATCH = "means_of_towers", "averages_of_batch"


def train_step_of(migration: Migration) -> TrainStep:
    """Return the `TrainStep` of a migration that has one."""
    assert migration.train is not None
    return migration.train


def checked_optimizer(argument: str, optimizer: Any, method: str) -> Any:
    """Return the optimizer that a factory returned.

    Raises:
      MigrationError: if it lacks a method that every optimizer has.
    """
    if not hasattr(optimizer, method):
        raise MigrationError(
            f"{argument} must return an optimizer, but returned {optimizer!r} of type {type(optimizer).__name__}, "
            f"which has no {method}"
        )
    return optimizer


def total_loss(
    argument: str, loss: Any, losses: Sequence[Any], contained: Sequence[Any] = ()
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return the value of a loss function plus the losses of the model, and the sum of these, or None if it has none.

    Losses that the value contains already are not added to it again.

    Raises:
      MigrationError: if TF1's function returns no scalar.
      ArgumentError: if the port's function returns none, which fails no other check.
    """
    is_elsewhere = is_torch_tensor(loss) or is_jax_array(loss) or not is_loaded("tensorflow")
    tensor = loss if is_elsewhere else tf.convert_to_tensor(loss)
    shape = shape_tuple(np.shape(loss) if is_elsewhere else tensor.shape)
    if shape:
        returned = f"{argument} returned a tensor of shape {list(shape)}"
        error = MigrationError if argument == "tf1_loss" else ArgumentError
        raise error(f"{returned}: return a scalar, such as tf.reduce_mean(...)")
    if is_elsewhere:
        return (tensor + sum(losses), sum(losses)) if losses else (tensor, None)
    if losses:
        # Under a dtype policy, a loss may have a different dtype than the weights.
        tensor += tf.cast(tf.add_n(losses), tensor.dtype)
    return tensor, tf.add_n([*losses, *contained]) if losses or contained else None


def values_of_step(
    *,
    rate: Any,
    outputs: Any,
    regularization: Any,
    loss: Any,
    metrics: Mapping[str, Any],
    framework: Framework,
    view: TF1View,
    gradients: Iterable[tuple[Any, Any]],
) -> dict[str, Any]:
    """Return the values of a step before its update, by name, without those that are None.

    They are in the order of their computation, so that a difference shows first in its cause. Gradients come in pairs
    of a gradient, or None, and a trainable variable or a part of one; they are returned by the parts of the view.
    """
    values = {
        "learning_rate": None if rate is None else framework.dense(rate),
        "outputs": outputs,
        "regularization_loss": regularization,
        "loss": loss,
        "metrics": metrics or None,
        "gradients": _of_parts(framework, view, gradients),
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_parts(framework: Framework, view: TF1View, pairs: Iterable[tuple[Any, Any]]) -> dict[int, Any]:
    """Return the dense gradients of the trainable parts; None for a variable that the loss does not depend on."""
    gradients = {id(underlying_variable(variable)): gradient for gradient, variable in pairs}
    found = {}
    for position, part in enumerate(view.parts):
        if id(part) not in gradients:
            continue
        gradient = gradients[id(part)]
        if gradient is not None:
            found[position] = framework.dense(gradient)
        else:
            whole = [other for name in view.names_of(position) for other in view.parts_of(name)]
            has_any = any(gradients.get(id(other)) is not None for other in whole)
            found[position] = framework.zeros(part) if has_any else None
    return found


# TF1's name of the slot -> a part's position in a view -> the slot of the part.
Slots = dict[str, dict[int, Any]]


def recorded(before: Mapping[str, Any], view: TF1View, values: Mapping[int, Any], slots: Slots) -> dict[str, Any]:
    """Return the values of a step before its update, and the variables and slots after it, as TF1 has them."""
    gradients, after = view.from_parts(before["gradients"]), view.from_parts(values, values=True)
    weights = {name: array for name, array in after.items() if name in gradients}
    moving_averages = {name: array for name, array in after.items() if name not in gradients}
    found = {**before, "gradients": gradients, "weights": weights}
    if moving_averages:
        found["moving_averages"] = moving_averages
    of_kinds = {kind: view.from_parts(of_kind) for kind, of_kind in slots.items()}
    averages = of_kinds.pop(AVERAGE_OF_WEIGHT, {})
    averages = {name: array for name, array in averages.items() if gradients.get(name) is not None}
    if of_kinds:
        found["slots"] = of_kinds
    if averages:
        found[WEIGHT_AVERAGES] = averages
    return {name: in_numpy(value, name) for name, value in found.items()}


def slots_of(optimizers: Sequence[Any], view: TF1View) -> Slots:
    """Return the slots of the variables that optimizers have updated; none of an unknown optimizer."""
    found: Slots = {}
    for position, part in enumerate(view.parts):
        for optimizer in optimizers:
            for kind, slot in slots_of_optimizer(optimizer, part).items():
                found.setdefault(kind, {}).setdefault(position, slot)
    return found


def as_in_tf1(slots: Slots, rates: Sequence[Any]) -> Slots:
    """Return a port's slots in the form of TF1's.

    The momentum of Keras's SGD is a sum of gradients, each times the learning rate of its step. While the rate is
    constant, dividing by it gives TF1's sum of gradients; otherwise the momentum is left out.

    >>> slots = {SCALED_MOMENTUM: {0: np.array([-0.5])}}
    >>> as_in_tf1(slots, rates=[0.1, 0.1])
    {'momentum': {0: array([5.])}}
    >>> as_in_tf1(slots, rates=[0.1, 0.05])
    {}
    """
    found = {kind: of_variables for kind, of_variables in slots.items() if kind != SCALED_MOMENTUM}
    known = {None if rate is None else float(rate) for rate in rates}
    rate = known.pop() if len(known) == 1 else None
    if rate and SCALED_MOMENTUM in slots:
        found["momentum"] = {position: array / -rate for position, array in slots[SCALED_MOMENTUM].items()}
    return found
