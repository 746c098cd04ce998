"""The order in which Keras 3's ``fit`` feeds arrays on JAX, PyTorch and NumPy.

On the TensorFlow backend ``fit`` shuffles by TensorFlow's op, in a data set that starts anew in each epoch: one op
seed, and run 0 in each. The other backends shuffle by NumPy's or PyTorch's global generator; in a scope they feed the
arrays in the order that TensorFlow's op gives.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand._patching import Patches, keras3_random
from detrand.adapters.formulas import permutation, reserved_by_permutation
from detrand.adapters.keras3_arrays import Op, next_op
from detrand.seeding import places, streams

MODULE = keras3_random.ARRAY_DATA


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    ops: weakref.WeakKeyDictionary[Any, Op] = weakref.WeakKeyDictionary()

    def order(adapter: Any) -> np.ndarray:
        if adapter not in ops:
            ops[adapter] = _next_shuffle(keras3_random.shuffling(adapter)[1])
        return _order(adapter, ops[adapter])

    for target, feed in ((keras3_random.BATCHES, _feed), (keras3_random.TORCH_BATCHES, _feed_torch)):
        patches.replace(target, _governed(feed, order))


def _governed(feed: Callable[..., Any], order: Callable[[Any], np.ndarray]) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def batches(self: Any, *args: Any, **kwargs: Any) -> Any:
            if streams.current() is None or not keras3_random.shuffling(self)[0]:
                return original(self, *args, **kwargs)
            return feed(original, self, order(self), *args, **kwargs)

        return batches

    return make


def _feed(original: Any, adapter: Any, order: np.ndarray, slice_and_convert_fn: Any, inputs: Any) -> Any:
    def in_order(sliceable: Any, indices: slice) -> Any:
        return slice_and_convert_fn(sliceable, indices=order[indices])

    return original(keras3_random.unshuffled(adapter), in_order, inputs)


def _feed_torch(original: Any, adapter: Any, order: np.ndarray) -> Any:
    from torch.utils.data import DataLoader

    loader = original(keras3_random.unshuffled(adapter))
    _, samples, batch_size = keras3_random.shuffling(adapter)
    batches = [order[start : start + batch_size].tolist() for start in range(0, samples, batch_size)]
    return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn)


def _next_shuffle(samples: int) -> Op:
    """Returns the op that shuffles a data set: one of a program that counts its runs from 0 whenever it is made."""
    cursor = streams.current()
    take = functools.partial(next_op, "RandomShuffle", (samples,), "int32", 0, lambda: False)
    if cursor is None or not cursor.in_block:
        return take()
    with cursor.control_flow(places.DATASET_FUNCTION) as run:
        return run(0, take)


def _order(adapter: Any, op: Op) -> np.ndarray:
    shuffle, samples, batch_size = keras3_random.shuffling(adapter)
    if shuffle != "batch":
        return permutation(samples, op.seed, op.op_seed, 0)
    starts = range(0, samples, batch_size)
    sizes = [min(batch_size, samples - start) for start in starts]
    counters = itertools.accumulate(map(reserved_by_permutation, sizes), initial=0)
    batches = zip(starts, sizes, counters, strict=False)
    return np.concatenate([start + permutation(size, op.seed, op.op_seed, at) for start, size, at in batches])
