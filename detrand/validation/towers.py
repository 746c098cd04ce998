"""The TF1 program of a migration, in towers where the port is on replicas.

Before strategies, a TF1 program used several devices by towers: its graph code was called once for each of them, with a
part of the batch, and all shared their variables. A tower draws random numbers of its own, and takes the moments of its
own part. So does a replica, and it has a copy of what is not trained, moving averages above all, that follows its part
alone; so does a tower here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from detrand.errors import MigrationError
from detrand.validation.migration import Migration
from detrand.validation.replicas import Replicas, in_own_containers

v1 = tf.compat.v1


class UnsharedVariablesError(MigrationError):
    """The TF1 program makes variables anew when it is called again, so it cannot be built as towers."""


@dataclass(frozen=True)
class Towers:
    """A TF1 program, as towers or as it is.

    Attributes:
      outputs: what it returned, joined along the batch.
      of_first: what the first tower returned, which tells the lines of the user's code.
      copies: by their names, what is not trained: the variable that the first tower has, and those of the others.
    """

    outputs: Any
    of_first: Any
    copies: dict[str, list[Any]] = field(default_factory=dict)

    def copy_state(self, session: tf.compat.v1.Session) -> None:
        """Gives the copies the values of the first tower's variables."""
        session.run([copy.assign(first).op for first, *others in self.copies.values() for copy in others])


def build_towers(migration: Migration, replicas: Replicas, inputs: Sequence[Any], training: bool) -> Towers:
    """Builds the TF1 program of a migration in the default graph, once for each replica.

    Regularization losses of weights count once, though each tower may add them; those of activations as the mean of the
    towers'.

    Args:
      migration: the migration.
      replicas: those of its strategy.
      inputs: the whole batch, as placeholders.
      training: passed to the program.

    Raises:
      UnsharedVariablesError: if the towers cannot share variables.
      MigrationError: if inputs cannot be split, or outputs cannot be joined.
    """
    if replicas.count == 1:
        whole = migration.tf1(*in_own_containers(inputs), training=training)
        return Towers(whole, whole)
    outputs: list[Any] = []
    copies: dict[str, list[Any]] = {}
    losses = _RegularizationLosses(replicas.count)
    for tower in range(replicas.count):
        part = replicas.part(list(inputs), tower)
        tensors = tf.nest.flatten(part)  # tf1 may change a dict
        before = v1.global_variables()
        try:
            with v1.variable_scope(
                v1.get_variable_scope(), reuse=True if tower else None, custom_getter=_own_state(tower, copies)
            ):
                outputs.append(migration.tf1(*part, training=training))
        except ValueError as error:
            if not tower:
                raise
            raise UnsharedVariablesError(f"it cannot be called again with its variables reused: {error}") from error
        made = v1.global_variables()[len(before) :]
        if tower and made:
            raise UnsharedVariablesError(
                f"it makes the variable {made[0].op.name} when it is called again, which get_variable would reuse"
            )
        losses.added_by(tower, tensors)
    with tf.name_scope("all_towers"):
        return Towers(replicas.joined(outputs), outputs[0], copies)


def _own_state(tower: int, copies: dict[str, list[Any]]) -> Any:
    """Returns a getter of variables that gives each tower a variable of its own for what is not trained."""

    def own(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        variable = getter(name, *args, **kwargs)
        if not isinstance(variable, tf.Variable) or variable.trainable or variable is v1.train.get_global_step():
            return variable
        of_towers = copies.setdefault(variable.op.name, [variable])
        while len(of_towers) <= tower:
            of_towers.append(
                v1.Variable(
                    tf.zeros(variable.shape, variable.dtype.base_dtype),
                    trainable=False,
                    collections=[v1.GraphKeys.LOCAL_VARIABLES],
                    name=f"{variable.op.name}/tower_{len(of_towers)}",
                )
            )
        return of_towers[tower]

    return own


class _RegularizationLosses:
    """Keeps the graph's collection of regularization losses as that of one program."""

    def __init__(self, count: int):
        self._count = count
        self._kept = len(self._collection())

    @staticmethod
    def _collection() -> list[Any]:
        return v1.get_default_graph().get_collection_ref(v1.GraphKeys.REGULARIZATION_LOSSES)

    def added_by(self, tower: int, inputs: Sequence[tf.Tensor]) -> None:
        """Is told that a tower has been built, of its part of the inputs."""
        collection = self._collection()
        added, collection[self._kept :] = collection[self._kept :], []
        for loss in added:
            if _depends_on(loss, inputs):
                collection.append(loss / self._count)
            elif not tower:
                collection.append(loss)
        self._kept = len(collection)


def _depends_on(tensor: tf.Tensor, inputs: Sequence[tf.Tensor]) -> bool:
    sought = {one.op.name for one in inputs}
    seen: set[str] = set()
    waiting = [tensor.op]
    while waiting:
        op = waiting.pop()
        if op.name in sought:
            return True
        if op.name not in seen:
            seen.add(op.name)
            waiting += [operand.op for operand in op.inputs]
    return False
