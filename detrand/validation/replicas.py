"""Replicas of a ``tf.distribute`` strategy: each is given a part of the batch, and what they compute is joined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from detrand import _patching
from detrand.errors import MigrationError


def in_own_containers(batch: Any) -> Any:
    """Returns a nested batch in new dicts, lists and tuples, for user code that may change what it is passed.

    The ``model_fn`` of an Estimator takes columns out of its features, say, or puts others in.
    """
    return tf.nest.map_structure(lambda tensor: tensor, batch)


class Replicas:
    """The replicas of a strategy; without one there is a single one, which gets the whole batch.

    Args:
      migration: name of the migration, for errors.
      strategy: a ``tf.distribute.Strategy``, a function without arguments that makes one, or None.

    Attributes:
      count: how many there are.

    Raises:
      MigrationError: if the function raises, or returns something else, or not all replicas are in this process.
    """

    def __init__(self, migration: str, strategy: Any):
        self._migration = migration
        if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
            try:
                with _patching.collectives_of_its_own():
                    strategy = strategy()
            except Exception as error:
                raise MigrationError(f"strategy of {migration} cannot be made: {error}") from error
            if not isinstance(strategy, tf.distribute.Strategy):
                raise MigrationError(
                    f"strategy of {migration} returned {strategy!r} of type {type(strategy).__name__}; return a "
                    "tf.distribute.Strategy, such as tf.distribute.MirroredStrategy()"
                )
        self._strategy = strategy
        self.count: int = 1 if strategy is None else strategy.num_replicas_in_sync
        here = 1 if strategy is None else len(strategy.extended.worker_devices)
        if here != self.count:
            raise MigrationError(
                f"strategy of {migration} has {self.count} replicas, {here} of them in this process; give one whose "
                "replicas are all here, such as tf.distribute.MirroredStrategy()"
            )

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager in which variables are made for all replicas."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def run(self, function: Callable[..., Any], *batch: Any) -> list[Any]:
        """Calls a function with a part of the batch on each replica.

        Args:
          function: is called with what `part` returns, in containers of its own.
          *batch: tensors, nested or not.

        Returns:
          What it returned on each replica.

        Raises:
          MigrationError: if the batch cannot be split.
        """
        if self._strategy is None:
            return [function(*in_own_containers(batch))]

        def on_replica() -> Any:
            return function(*self.part(batch, tf.distribute.get_replica_context().replica_id_in_sync_group))

        returned = self._strategy.run(on_replica)
        by_leaf = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(returned)]
        # What is the same object on every replica, None for one, comes back once.
        by_leaf = [values if len(values) == self.count else values * self.count for values in by_leaf]
        return [
            tf.nest.pack_sequence_as(returned, [values[replica] for values in by_leaf]) for replica in range(self.count)
        ]

    def copies(self, variable: Any) -> Sequence[Any]:
        """Returns what the replicas have of a variable."""
        return (variable,) if self._strategy is None else self._strategy.experimental_local_results(variable)

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum over all replicas of what each of them calls this with."""
        if self._strategy is None:
            return tensor
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def part(self, batch: Any, index: Any) -> Any:
        """Returns an equal part of each tensor of a nested batch.

        Args:
          batch: tensors whose first axis is the batch.
          index: which part, from 0; an integer or a tensor.

        Raises:
          MigrationError: if one cannot be split.
        """
        return tf.nest.map_structure(lambda tensor: self._part(tensor, index), batch)

    def _part(self, tensor: tf.Tensor, index: Any) -> tf.Tensor:
        if self.count == 1:
            return tensor
        if not tensor.shape.rank or tensor.shape[0] % self.count:
            raise MigrationError(
                f"a batch of {self._migration} has shape {tuple(tensor.shape)}, which cannot be split among "
                f"{self.count} replicas; give inputs and labels with a batch of a multiple of {self.count}"
            )
        return tf.reshape(tensor, (self.count, tensor.shape[0] // self.count, *tensor.shape[1:]))[index]

    def joined(self, outputs: Sequence[Any]) -> Any:
        """Returns what replicas have returned, the parts of each tensor joined along the batch.

        Raises:
          MigrationError: if one has no such axis.
        """
        return outputs[0] if self.count == 1 else tf.nest.map_structure(self._joined, *outputs)

    def _joined(self, *values: Any) -> Any:
        if not tf.is_tensor(values[0]):
            return values[0]
        if not values[0].shape.rank:
            raise MigrationError(
                f"an output of {self._migration} is a scalar on each replica, which has no batch to be joined along; "
                "return what it is computed from, one for each example"
            )
        return tf.concat(values, 0)
