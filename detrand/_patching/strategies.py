"""What training on replicas needs: sums that do not mix those of two strategies up, slots that are made beforehand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ["collectives_of_its_own", "make_slots"]

_bases = itertools.count(100_000, 100_000)  # as TensorFlow's tests of strategies count them


@contextlib.contextmanager
def collectives_of_its_own() -> Iterator[None]:
    """Lets a ``MirroredStrategy`` that is made in the block sum with keys that no other one has.

    Each of them numbers its sums from the same key on, and two sums of one key must have one shape in a process.
    """
    strategy = tf.distribute.MirroredStrategy
    before = strategy._collective_key_base
    strategy._collective_key_base = next(_bases)
    try:
        yield
    finally:
        strategy._collective_key_base = before


def make_slots(optimizer: Any, variables: list[Any]) -> None:
    """Makes the variables that an optimizer has for others, and that it makes by itself in its first update."""
    # Of Keras 3 and tf_keras; of tf_keras's legacy optimizers; of TF1's.
    for name in ("build", "_create_all_weights", "_create_slots"):
        if hasattr(optimizer, name):
            getattr(optimizer, name)(variables)
            return
