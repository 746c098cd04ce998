"""Parts of a training step as migrations of their own, whose divergences can be found as those of outputs are.

`loss_of_outputs` is the total loss. Both programs get the outputs of TF1, so what differs is in the loss, or in the
losses that the model adds. `gradients_of_loss` is the first step without its update, so where outputs and losses agree,
what differs is in the backward pass.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.keras import takes_inputs_in_a_list
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.comparison.leaves import OUTPUT
from detrand.comparison.structures import flatten, packed_as
from detrand.comparison.values import leaves_by_path
from detrand.packages import tf
from detrand.validation.frameworks.framework import module_of
from detrand.validation.migration import Migration
from detrand.validation.programs.port import framework_of, variables_source
from detrand.validation.programs.replicas import Replicas, build_towers, in_own_containers, losses_added
from detrand.validation.training import steps
from detrand.validation.training.port import make_optimizer_of_step
from detrand.validation.training.steps import train_step_of
from detrand.variables.sources import joined_variables
from detrand.variables.tf1_view import Shapes, TF1View


class LossInput(NamedTuple):
    """An input of a loss: what it is of, ``"inputs"``, ``"labels"`` or ``"outputs"``, and what it is in words."""

    kind: str
    words: str


class LossOfOutputs(NamedTuple):
    """A migration whose outputs are the total losses, and what each of its inputs is."""

    migration: Migration
    inputs: tuple[LossInput, ...]


def loss_of_outputs(migration: Migration, step: int, batch: tuple[Any, Any], outputs: Any) -> LossOfOutputs:
    """Return the total losses that both programs compute in a step, as a migration of their own.

    Given are the inputs and labels, and what the model makes of the inputs. Variables have their initial values.
    """
    train, (inputs_of_step, labels) = train_step_of(migration), batch
    structure = (inputs_of_step, labels, outputs)
    inputs = [
        LossInput(name, name if path == OUTPUT else f"{name}{path}")
        for name, each in zip(("inputs", "labels", "outputs"), structure, strict=True)
        for path in _paths(each)
    ]
    leaves = flatten(structure)
    given = [number for number, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, np.generic))]

    def unpacked(tensors: tuple[Any, ...]) -> Any:
        whole = {**dict(enumerate(leaves)), **dict(zip(given, tensors, strict=True))}
        return in_own_containers(packed_as(structure, list(whole.values())))

    def tf1(*tensors: Any, training: bool) -> Any:
        inputs, labels, outputs = unpacked(tensors)
        towers = build_towers(migration, Replicas(migration.name, None), inputs, training)
        if step and tf.compat.v1.train.get_global_step() is None:
            _make_global_step(step)
        return {"loss": total_loss_of_tf1(train.tf1_loss, labels, outputs, losses_added(towers))[0]}

    def port() -> Any:
        model = migration.port()
        framework = framework_of(model)
        called = framework.function(model, len(inputs_of_step))
        make_optimizer_of_step(migration, step)

        def total(_: Any, *tensors: Any, training: bool = True) -> Any:  # a module is not given whether it trains
            inputs, labels, outputs = unpacked(tensors)
            called(*inputs, training=training)
            return {"loss": steps.total_loss("port_loss", train.port_loss(labels, outputs), framework.losses(model))[0]}

        return types.MethodType(total, module_of(model))

    total_losses = replace(
        migration,
        tf1=tf1,
        port=port,
        inputs=tuple(np.asarray(leaves[number]) for number in given),
        checkpoint=None,
        strategy=None,
        train=None,
        expect=(),
    )
    return LossOfOutputs(total_losses, tuple(inputs[number] for number in given))


def _paths(structure: Any) -> list[str]:
    """Return the paths of a structure's leaves in the order of `flatten`."""
    numbers = leaves_by_path(packed_as(structure, itertools.count()))
    return sorted(numbers, key=lambda path: numbers[path])


def _make_global_step(step: int) -> None:
    """Make the global step of a graph, which the loss may read, as it is before a step."""
    keys = tf.compat.v1.GraphKeys
    tf.compat.v1.get_variable(
        keys.GLOBAL_STEP,
        dtype=tf.int64,
        initializer=np.int64(step),
        trainable=False,
        collections=[keys.GLOBAL_VARIABLES, keys.GLOBAL_STEP],
    )


def gradients_of_loss(migration: Migration, labels: Any, tf1_shapes: Shapes) -> Migration:
    """Return the gradients of the first training step as a migration of their own, by the names of TF1's variables.

    Those of partitioned variables, and of variables that have a different form in the port, are left out.
    """
    train, batch = train_step_of(migration), migration.first_batch()
    structure = (batch, labels)

    def unpacked(tensors: tuple[Any, ...]) -> Any:
        return in_own_containers(packed_as(structure, list(tensors)))

    def tf1(*tensors: Any, training: bool) -> Any:
        inputs, labels = unpacked(tensors)
        towers = build_towers(migration, Replicas(migration.name, None), inputs, training)
        loss, _ = total_loss_of_tf1(train.tf1_loss, labels, towers.outputs, losses_added(towers))
        variables = {variable.op.name: variable for variable in tf.compat.v1.trainable_variables()}
        return _dense(variables, tf.gradients(loss, list(variables.values())))

    def gradients(model: Any, *tensors: Any, training: bool) -> Any:
        inputs, labels = unpacked(tensors)
        with tf.GradientTape() as tape:
            in_a_list = len(inputs) > 1 and takes_inputs_in_a_list(model)
            outputs = model(list(inputs), training=training) if in_a_list else model(*inputs, training=training)
            loss, _ = steps.total_loss("port_loss", train.port_loss(labels, outputs), getattr(model, "losses", ()))
        view = TF1View(joined_variables("port", variables_source(model)), migration.name_map, tf1_shapes)
        variables = {name: view.parts_of(name)[0] for name in view.specs if len(view.parts_of(name)) == 1}
        return _dense(variables, tape.gradient(loss, list(variables.values())))

    return replace(
        migration,
        tf1=tf1,
        port=lambda: types.MethodType(gradients, migration.port()),
        inputs=tuple(np.asarray(leaf) for leaf in flatten(structure)),
        checkpoint=None,
        strategy=None,
        train=None,
        expect=(),
    )


def _dense(variables: Mapping[str, Any], gradients: Iterable[Any]) -> dict[str, tf.Tensor]:
    pairs = zip(variables, gradients, strict=True)
    return {name: tf.convert_to_tensor(gradient) for name, gradient in pairs if gradient is not None}


def total_loss_of_tf1(
    function: Any, labels: Any, outputs: Any, added: list[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return TF1's total loss and the sum of the losses that the model has added, which count once."""
    loss = tf.convert_to_tensor(function(labels, outputs))
    contained = all_upstream([loss.op], input_ops)
    others = [each for each in added if each.op not in contained]
    return steps.total_loss("tf1_loss", loss, others, [each for each in added if each.op in contained])
