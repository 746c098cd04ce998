"""Replicas of a ``tf.distribute`` strategy, and the towers that a TF1 program is built as to compare with them.

The port runs on the `Replicas`, each with a part of the batch; `build_towers` calls the TF1 program once for each part,
with shared variables. The outputs of both are joined along the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.comparison.structures import map_structure
from detrand.errors import MigrationError
from detrand.packages import tf
from detrand.seeding.callsite import is_of_package
from detrand.validation.migration import Migration


class Replicas:
    """The replicas of a strategy, or of one that a function makes; without any, one replica with the whole batch.

    Errors name the migration.

    Raises:
      MigrationError: if the function raises or returns no strategy, or if a replica is in a different process.
    """

    def __init__(self, migration: str, strategy: Any):
        self._migration = migration
        if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
            from detrand._patching.tensorflow import collectives_of_its_own

            try:
                with collectives_of_its_own():
                    strategy = strategy()
            except Exception as error:
                raise MigrationError(f"strategy of {migration} cannot be made: {error}") from error
            if not isinstance(strategy, tf.distribute.Strategy):
                raise MigrationError(
                    f"strategy of {migration} returned {strategy!r} of type {type(strategy).__name__}. Return a "
                    "tf.distribute.Strategy, such as tf.distribute.MirroredStrategy()"
                )
        self._strategy = strategy
        self.count: int = 1 if strategy is None else strategy.num_replicas_in_sync
        here = 1 if strategy is None else len(strategy.extended.worker_devices)
        if here != self.count:
            raise MigrationError(
                f"strategy of {migration} has {self.count} replicas, {here} of them in this process. Use a strategy "
                "whose replicas are all in this process, such as tf.distribute.MirroredStrategy()"
            )

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager in which variables are made for all replicas."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def run(self, function: Callable[..., Any], *batch: Any) -> list[Any]:
        """Call a function on each replica with its part of each element of a batch, and return the results."""
        if self._strategy is None:
            return [function(*self.part(batch, 0))]

        def on_replica() -> Any:
            return function(*self.part(batch, tf.distribute.get_replica_context().replica_id_in_sync_group))

        returned = self._strategy.run(on_replica)
        by_leaf = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(returned)]
        # An object that is the same on every replica, such as None, comes back once.
        by_leaf = [values if len(values) == self.count else values * self.count for values in by_leaf]
        return [
            tf.nest.pack_sequence_as(returned, [values[replica] for values in by_leaf]) for replica in range(self.count)
        ]

    def copies(self, variable: Any) -> Sequence[Any]:
        """Return the replicas' copies of a variable."""
        return (variable,) if self._strategy is None else self._strategy.experimental_local_results(variable)

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum of a tensor over all replicas."""
        if self._strategy is None:
            return tensor
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def part(self, batch: Any, index: Any) -> Any:
        """Return the part of a nested batch for the replica of a number, an integer or a tensor.

        Raises:
          MigrationError: if a tensor cannot be split along its first axis.
        """

        def part_of(tensor: tf.Tensor) -> tf.Tensor:
            if not tensor.shape.rank or tensor.shape[0] % self.count:
                raise MigrationError(
                    f"a batch of {self._migration} has shape {tuple(tensor.shape)}, which cannot be split among "
                    f"{self.count} replicas. Give inputs and labels whose batch size is a multiple of {self.count}"
                )
            return tf.reshape(tensor, (self.count, tensor.shape[0] // self.count, *tensor.shape[1:]))[index]

        return tf.nest.map_structure(part_of, batch) if self.count > 1 else in_own_containers(batch)

    def joined(self, outputs: Sequence[Any]) -> Any:
        """Return the outputs of all replicas, joined along the batch.

        Raises:
          MigrationError: if an output is a scalar.
        """

        def joined_one(*values: Any) -> Any:
            if not tf.is_tensor(values[0]):
                return values[0]
            if not values[0].shape.rank:
                raise MigrationError(
                    f"an output of {self._migration} is a scalar on each replica, so it cannot be joined along the "
                    "batch. Return one number for each example instead"
                )
            return tf.concat(values, 0)

        return tf.nest.map_structure(joined_one, *outputs) if self.count > 1 else outputs[0]


def in_own_containers(batch: Any) -> Any:
    """Return a nested batch in new dicts, lists and tuples, because user code may change those that it is passed.

    The ``model_fn`` of an Estimator removes columns from its features, for example, or adds some.
    """
    return map_structure(lambda tensor: tensor, batch)


class UnsharedVariablesError(MigrationError):
    """The TF1 program makes new variables when it is called again, so it cannot be built as towers."""


@dataclass(frozen=True)
class Towers:
    """A TF1 program, built once for each replica.

    Attributes:
      outputs: the outputs of the towers, joined along the batch.
      of_first: the outputs of the first tower, which the user's code made.
      copies: each tower's copy of the variables that are not trained, the first tower's first, by name.
    """

    outputs: Any
    of_first: Any
    copies: dict[str, list[Any]] = field(default_factory=dict)

    def copy_state(self, session: tf.compat.v1.Session) -> None:
        """Give the copies the values of the first tower's variables."""
        session.run([copy.assign(first).op for first, *others in self.copies.values() for copy in others])


INPUT = "detrand_input"  # the name of each placeholder that is fed with an input


def build_towers(migration: Migration, replicas: Replicas, inputs: Sequence[Any], training: bool) -> Towers:
    """Build the TF1 program of a migration in the default graph, once for each replica.

    Losses of weights that it adds to collections count once, although each tower may add them. Those of activations
    count as the mean of the towers' losses.

    Raises:
      UnsharedVariablesError: if the towers cannot share variables.
    """
    v1 = tf.compat.v1
    if replicas.count == 1:
        whole = migration.program(*replicas.part(inputs, 0), training=training)
        return Towers(whole, whole)
    outputs: list[Any] = []
    copies: dict[str, list[Any]] = {}
    keys = v1.GraphKeys.REGULARIZATION_LOSSES, v1.GraphKeys.LOSSES
    collections = [v1.get_default_graph().get_collection_ref(key) for key in keys]
    for tower in range(replicas.count):
        part = replicas.part(inputs, tower)
        tensors = tf.nest.flatten(part)  # tf1 may change a dict
        before, earlier = v1.global_variables(), [len(losses) for losses in collections]
        try:
            with v1.variable_scope(
                v1.get_variable_scope(),
                reuse=True if tower else None,
                custom_getter=_own_state(tower, copies),
            ):
                outputs.append(migration.program(*part, training=training))
        except ValueError as error:
            if not tower:
                raise
            raise UnsharedVariablesError(f"it cannot be called again with its variables reused: {error}") from error
        made = v1.global_variables()[len(before) :]
        if tower and made:
            raise UnsharedVariablesError(
                f"it makes the variable {made[0].op.name} when it is called again, which get_variable would reuse"
            )
        for losses, start in zip(collections, earlier, strict=True):
            losses[start:] = _counted(losses[start:], tower, tensors, replicas.count)
    with tf.name_scope("all_towers"):
        return Towers(replicas.joined(outputs), outputs[0], copies)


def losses_added(towers: Towers, *, of_functions: bool = False) -> list[tf.Tensor]:
    """Return the losses that a TF1 program adds to collections: regularization losses, and losses of its own.

    A loss of its own that an output is computed from is compared as an output. Losses of labels that the program is not
    given are left out. Functions such as ``tf.losses.softmax_cross_entropy`` compute losses of training, which a port
    has in its training, too: they are left out unless `of_functions`.
    """
    v1 = tf.compat.v1
    of_collections = []
    for key in (v1.GraphKeys.REGULARIZATION_LOSSES, v1.GraphKeys.LOSSES):
        losses = v1.get_default_graph().get_collection_ref(key)
        losses[:] = map(tf.convert_to_tensor, losses)  # those of variables are made anew by each conversion
        of_collections.append(losses)
    regularization, own = of_collections
    outputs = [leaf.op for leaf in tf.nest.flatten(towers.outputs, expand_composites=True) if tf.is_tensor(leaf)]
    returned = all_upstream(outputs, input_ops)
    own = [loss for loss in own if loss.op not in returned and _has_inputs(loss.op)]
    in_towers = towers.outputs is not towers.of_first  # what adds the loss is divided by the number of towers
    if not of_functions:
        own = [loss for loss in own if not _is_of_loss_function(loss.op.inputs[0].op if in_towers else loss.op)]
    return [*regularization, *own]


def _has_inputs(op: tf.Operation) -> bool:
    """Return whether all placeholders that an op depends on are the program's inputs."""
    placeholders = (each for each in all_upstream([op], input_ops) if each.type == "Placeholder")
    return all(each.name.startswith(INPUT) for each in placeholders)


def _is_of_loss_function(op: tf.Operation) -> bool:
    from detrand._patching.graphs import LOSS_FUNCTIONS

    return any(is_of_package(frame.filename, *LOSS_FUNCTIONS) for frame in op.traceback or ())


def _own_state(tower: int, copies: dict[str, list[Any]]) -> Any:
    """Return a custom getter that gives each tower its own copy of a variable that is not trained."""
    v1 = tf.compat.v1

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


def _counted(losses: Sequence[tf.Tensor], tower: int, inputs: Sequence[tf.Tensor], count: int) -> list[tf.Tensor]:
    """Return the regularization losses that count of those that a tower added: of weights, the first tower's."""
    given = {tensor.op for tensor in inputs}
    of_activations = [not given.isdisjoint(all_upstream([loss.op], input_ops)) for loss in losses]
    pairs = zip(losses, of_activations, strict=True)
    return [loss / count if depends else loss for loss, depends in pairs if depends or not tower]
