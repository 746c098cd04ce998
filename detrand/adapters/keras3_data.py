"""The order in which Keras 3's ``fit`` feeds arrays on JAX, PyTorch and NumPy.

On the TensorFlow backend ``fit`` shuffles by TensorFlow's op, in a data set that starts anew in each epoch: one place
in the stream, run 0 in each. The other backends shuffle by NumPy's or PyTorch's global generator; in a scope they feed
the arrays in the order that TensorFlow's op gives.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand import streams
from detrand._patching import Patches, keras3_random
from detrand.adapters.keras3_arrays import Place, next_place
from detrand.adapters.keras3_numbers import counters_of_shuffle, permutation

MODULE = keras3_random.ARRAY_DATA


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()

    def order(adapter: Any) -> np.ndarray:
        if adapter not in places:
            places[adapter] = next_place("RandomShuffle", (keras3_random.shuffling(adapter)[1],), "int32")
        return _order(adapter, places[adapter])

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


def _order(adapter: Any, place: Place) -> np.ndarray:
    shuffle, samples, batch_size = keras3_random.shuffling(adapter)
    if shuffle != "batch":
        return permutation(samples, *place)
    starts = range(0, samples, batch_size)
    sizes = [min(batch_size, samples - start) for start in starts]
    counters = itertools.accumulate(map(counters_of_shuffle, sizes), initial=0)
    seed, op_seed, _ = place
    batches = [
        start + permutation(size, seed, op_seed, first_counter=counter)
        for start, size, counter in zip(starts, sizes, counters, strict=False)
    ]
    return np.concatenate(batches)
