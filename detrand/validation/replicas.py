"""Ports on the replicas of a ``tf.distribute`` strategy: each is given a part of the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from detrand.errors import MigrationError


class Replicas:
    """The replicas of a strategy; without one, the port is called as it is.

    Args:
      migration: name of the migration, for errors.
      strategy: a ``tf.distribute.Strategy``, a function without arguments that makes one, or None.

    Raises:
      MigrationError: if the function raises, or returns something else.
    """

    def __init__(self, migration: str, strategy: Any):
        self._migration = migration
        if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
            try:
                strategy = strategy()
            except Exception as error:
                raise MigrationError(f"strategy of {migration} cannot be made: {error}") from error
            if not isinstance(strategy, tf.distribute.Strategy):
                raise MigrationError(
                    f"strategy of {migration} returned {strategy!r} of type {type(strategy).__name__}; return a "
                    "tf.distribute.Strategy, such as tf.distribute.MirroredStrategy()"
                )
        self._strategy = strategy

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager in which variables are made for all replicas."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def run(self, function: Callable[..., Any], batch: Sequence[tf.Tensor]) -> Any:
        """Calls a function with a part of the batch on each replica.

        Args:
          function: is called with tensors, whose first axis is the batch.
          batch: the tensors; each replica gets an equal part of each.

        Returns:
          What it returned, the parts joined along the batch.

        Raises:
          MigrationError: if the batch cannot be split, or an output has no such axis.
        """
        if self._strategy is None:
            return function(*batch)
        parts = [self._split(tensor) for tensor in batch]
        outputs = self._strategy.run(function, args=parts)
        return tf.nest.map_structure(self._joined, outputs)

    def _split(self, tensor: tf.Tensor) -> Any:
        strategy, count = self._strategy, self._strategy.num_replicas_in_sync
        if not tensor.shape.rank or tensor.shape[0] % count:
            raise MigrationError(
                f"inputs of {self._migration} have shape {tuple(tensor.shape)}, whose batch cannot be split among "
                f"{count} replicas; give inputs with a batch of a multiple of {count}"
            )
        pieces = tf.split(tensor, count)
        return strategy.experimental_distribute_values_from_function(
            lambda context: pieces[context.replica_id_in_sync_group]
        )

    def _joined(self, output: Any) -> Any:
        values = self._strategy.experimental_local_results(output)
        if not tf.is_tensor(values[0]):
            return values[0]
        if not values[0].shape.rank:
            raise MigrationError(
                f"an output of {self._migration} is a scalar on each replica, which has no batch to be joined along; "
                "return what it is computed from, one for each example"
            )
        return tf.concat(values, 0)
