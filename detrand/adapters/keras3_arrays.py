"""Keras 3 in a stream on the backends that draw with no TensorFlow op: PyTorch, NumPy, and the base of JAX's.

Each method of `ArrayDraws` is one of a backend's random functions. It takes the next op seed of the stream and draws,
in NumPy, what the TensorFlow 1 op of the same distribution draws. The result becomes an array of the backend.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from detrand import philox
from detrand._patching import keras3_random
from detrand._patching.keras import keras3_dtype
from detrand._patching.patches import Patches
from detrand.adapters import counter_draws
from detrand.adapters.counter_draws import permutation, reserved_by_permutation
from detrand.errors import ScopeError
from detrand.seeding import cursors, regions
from detrand.seeding.cursors import Cursor, governed

Numbers = Callable[..., np.ndarray]  # takes a seed, an op seed, a counter, and parameters by name


class Op(NamedTuple):
    """A random op that is about to draw.

    Attributes:
      seed: its seed.
      op_seed: its op seed.
      counter: where its counter is.
      reserved: how far each of its runs moves the counter on.
    """

    seed: int
    op_seed: int
    counter: int
    reserved: int


def next_op(op_type: str, shape: Any, dtype: str, reserved: int, executes: Callable[[], bool] = lambda: True) -> Op:
    """Return the op that comes next in the stream that governs the thread.

    Args:
      op_type: TensorFlow's name of the op.
      shape: shape of what it draws.
      dtype: dtype of what it draws.
      reserved: how far it moves its counter on.
      executes: returns whether it draws now; else it becomes part of a program, which counts its runs from 0.
    """
    cursor = cursors.current()
    assert cursor is not None, "called only where a stream governs"
    seed, op_seed = cursor.next_seeds(executes)
    node = cursor.node
    cursor.describe_last(op_type, tuple(shape), dtype)
    if node is None:
        return Op(seed, op_seed, 0, reserved)
    node.counter += reserved
    return Op(seed, op_seed, node.counter - reserved, reserved)


_SEEDS = ((2,), "int32")  # shape and dtype of what is drawn for a stateless op's seed


class ArrayDraws:
    """The random functions of a backend that executes each op when it is called."""

    def check(self) -> None:
        """Raise an error where the numbers of one execution would be used in many."""

    def is_known(self, value: Any) -> bool:
        """Return whether the value of a number or an array is known now, and no gradient is asked of it."""
        return True

    def executes(self) -> bool:
        """Return whether an op draws when it is called, rather than in each execution of a program."""
        return True

    def execute(self, numbers: Numbers, op: Op, shape: tuple[int, ...], dtype: str, **unknown: Any) -> Any:
        """Return an array of what `numbers` returns, which is called in each execution of the op."""
        arrays = {name: _as_numpy(value) for name, value in unknown.items()}
        return _ops().convert_to_tensor(numbers(op.seed, op.op_seed, op.counter, **arrays), dtype)

    def _draw(
        self,
        op_type: str,
        shape: Any,
        dtype: str,
        numbers: Numbers,
        drawn: tuple[Any, str] | None = None,
        reserved: int | None = None,
        **parameters: Any,
    ) -> Any:
        """Draw an array of `shape` and `dtype`.

        Args:
          op_type: TensorFlow's name of the op.
          shape: dimensions.
          dtype: dtype of the array.
          numbers: draws the numbers.
          drawn: shape and dtype of what the op draws, if different.
          reserved: how far the op moves its counter on, if not by `counter_draws.reserved`.
          **parameters: parameters of `numbers`.
        """
        self.check()
        if keras3_random.is_symbolic():  # Keras asks for the shape
            return _ops().zeros(shape, dtype)
        shape = tuple(int(size) for size in shape)
        known = {name: _as_numpy(value) for name, value in parameters.items() if self.is_known(value)}
        unknown = {name: value for name, value in parameters.items() if name not in known}
        drawn = drawn or (shape, dtype)
        reserved = counter_draws.reserved(drawn[0]) if reserved is None else reserved
        op = next_op(op_type, *drawn, reserved, self.executes)
        return self.execute(functools.partial(numbers, **known), op, shape, dtype, **unknown)

    def _affine(self, op_type: str, sample: Any, shape: Any, dtype: str, factor: Any, offset: Any) -> Any:
        """Draw ``sample * factor + offset``, rounded as TensorFlow's two ops do."""

        def numbers(seed: int, op_seed: int, counter: int) -> np.ndarray:
            return sample(shape, seed, op_seed, dtype=dtype, drawn=counter_draws.drawn(counter))

        if self.is_known(factor) and self.is_known(offset):

            def scaled(seed: int, op_seed: int, counter: int) -> np.ndarray:
                standard = numbers(seed, op_seed, counter)
                return standard * _as_numpy(factor).astype(standard.dtype) + _as_numpy(offset).astype(standard.dtype)

            return self._draw(op_type, shape, dtype, scaled)
        standard = self._draw(op_type, shape, dtype, numbers)
        return standard * _ops().cast(factor, dtype) + _ops().cast(offset, dtype)

    def uniform(self, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomUniform``; `dtype` is a float."""
        dtype = keras3_dtype(dtype)
        if self.is_known(minval) and self.is_known(maxval):
            minval, maxval = (_as_numpy(limit).astype(_numpy_dtype(dtype)) for limit in (minval, maxval))
        else:
            minval, maxval = _ops().cast(minval, dtype), _ops().cast(maxval, dtype)
        return self._affine("RandomUniform", philox.uniform, shape, dtype, maxval - minval, minval)

    def normal(self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomStandardNormal``."""
        dtype = keras3_dtype(dtype)
        return self._affine("RandomStandardNormal", philox.normal, shape, dtype, stddev, mean)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> Any:
        """Draw as ``TruncatedNormal``."""
        dtype = keras3_dtype(dtype)
        return self._affine("TruncatedNormal", philox.truncated_normal, shape, dtype, stddev, mean)

    def randint(self, shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
        """Draw as ``RandomUniformInt``, of 64 bits where TensorFlow has no such op of that dtype."""
        dtype = keras3_dtype(dtype)
        drawn = dtype if dtype in ("int32", "int64") else "int64"

        def numbers(seed: int, op_seed: int, counter: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
            before = counter_draws.drawn(counter)
            return philox.randint(shape, int(low), int(high), seed, op_seed, dtype=drawn, drawn=before).astype(dtype)

        return self._draw("RandomUniformInt", shape, dtype, numbers, (shape, drawn), low=minval, high=maxval)

    def dropout(self, inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        """Drop as ``tf.nn.dropout`` does, by ``RandomUniform`` of the inputs' dtype."""
        ops = _ops()
        inputs = ops.convert_to_tensor(inputs)
        if rate == 1.0:
            return ops.zeros_like(inputs)
        if rate == 0.0:
            return inputs
        dtype = keras3_dtype(inputs.dtype)
        sizes = inputs.shape if noise_shape is None else noise_shape
        shape = [inputs.shape[i] if size is None else size for i, size in enumerate(sizes)]

        def numbers(seed: int, op_seed: int, counter: int) -> np.ndarray:
            before = counter_draws.drawn(counter)
            return philox.dropout_mask(shape, rate, seed, op_seed, dtype=dtype, drawn=before)

        keep = self._draw("RandomUniform", shape, "bool", numbers, (shape, dtype))
        scale = np.asarray(1 / (1 - rate)).astype(_numpy_dtype(dtype))
        return ops.where(keep, inputs * ops.convert_to_tensor(scale, dtype), ops.zeros_like(inputs))

    def categorical(self, logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> Any:
        """Draw as ``Multinomial``."""
        logits = _ops().convert_to_tensor(logits)
        shape = (logits.shape[0], num_samples)
        dtype = keras3_dtype(dtype)

        def numbers(seed: int, op_seed: int, counter: int, logits: np.ndarray) -> np.ndarray:
            return counter_draws.multinomial(logits, num_samples, seed, op_seed, counter).astype(dtype)

        if keras3_random.is_symbolic():
            return _ops().zeros(shape, dtype)
        reserved = counter_draws.reserved_by_multinomial(*shape)
        return self._draw("Multinomial", shape, dtype, numbers, (shape, "int64"), reserved, logits=logits)

    def shuffle(self, x: Any, axis: int = 0, seed: Any = None) -> Any:
        """Take the elements in the order that ``RandomShuffle`` gives."""
        x = _ops().convert_to_tensor(x)
        size = x.shape[axis]
        if keras3_random.is_symbolic():
            return x
        numbers = functools.partial(counter_draws.permutation, size)
        reserved = counter_draws.reserved_by_permutation(size)
        return _ops().take(x, self._draw("RandomShuffle", (size,), "int32", numbers, reserved=reserved), axis=axis)

    def gamma(self, shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomGamma``."""
        dtype = keras3_dtype(dtype)
        drawn = "float32" if dtype == "bfloat16" else dtype

        def numbers(seed: int, op_seed: int, counter: int, alpha: np.ndarray) -> np.ndarray:
            return counter_draws.gamma(shape, alpha, drawn, seed, op_seed, counter)

        return _ops().cast(self._draw("RandomGamma", shape, drawn, numbers, alpha=alpha), dtype)

    def beta(self, shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw by two ``RandomGamma``, since TensorFlow 1 has no such op."""
        of_alpha = self.gamma(shape, alpha, dtype)
        return of_alpha / (of_alpha + self.gamma(shape, beta, dtype))

    def binomial(self, shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as TensorFlow's stateless op from a seed that is drawn, since TensorFlow 1 has no such op."""
        dtype = keras3_dtype(dtype)
        drawn = "float32" if dtype == "bfloat16" else dtype

        def numbers(seed: int, op_seed: int, counter: int, n: np.ndarray, p: np.ndarray) -> np.ndarray:
            return counter_draws.binomial(shape, n, p, drawn, seed, op_seed, counter)

        return _ops().cast(
            self._draw("RandomUniformInt", shape, drawn, numbers, _SEEDS, n=counts, p=probabilities), dtype
        )

    def next_seed(self, dtype: str) -> Any:
        """Draw the two numbers of a seed, for code that draws from a seed by itself."""

        def numbers(seed: int, op_seed: int, counter: int) -> np.ndarray:
            return counter_draws.seeds(seed, op_seed, counter).astype(dtype)

        return self._draw("RandomUniformInt", (2,), dtype, numbers, _SEEDS)


class TorchDraws(ArrayDraws):
    """The random functions of the PyTorch backend, which executes each op when it is called.

    ``torch.compile`` leaves a compiled program to call them, as it does for Keras's own seeds. What would record one
    draw as a constant is refused.
    """

    def is_known(self, value: Any) -> bool:
        """Return whether no gradient is asked of a value."""
        import torch

        return not (isinstance(value, torch.Tensor) and value.requires_grad)

    def check(self) -> None:
        """Raise `ScopeError` where PyTorch would use one draw for many lanes or executions."""
        import torch

        if keras3_random.in_torch_vmap():
            what, instead = "torch.vmap", "Draw outside it and pass the numbers in, or use a Python loop."
        elif torch.jit.is_tracing():
            what, instead = "torch.jit.trace", "Trace it outside the scope."
        elif torch.compiler.is_exporting() or keras3_random.in_torch_proxies():
            what, instead = "torch.export", "Export it outside the scope."
        else:
            return
        raise ScopeError(
            f"{what} of a random op in the scope of a DeterministicRandomTestTool: the op would draw once, and every "
            f"lane or execution would use the same numbers. {instead}"
        )


class RefusedDraws:
    """The random functions of a backend into which no numbers can be put."""

    def __init__(self, backend: str):
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise ScopeError(
                f"keras.random.{name} was called in the scope of a DeterministicRandomTestTool, which cannot draw for "
                f"Keras's {self._backend} backend. Use the tensorflow, jax, torch or numpy backend."
            )

        return refuse


def _ops() -> Any:
    from keras import ops

    return ops


def _as_numpy(value: Any) -> np.ndarray:
    return np.asarray(_ops().convert_to_numpy(value))


def _numpy_dtype(dtype: str) -> np.dtype:
    return philox.uniform((), 0, 0, dtype=dtype).dtype


MODULE = keras3_random.ARRAY_DATA


def install(patches: Patches) -> None:
    """Install the dispatchers of ``fit``'s data sets, which shuffle arrays."""
    ops: weakref.WeakKeyDictionary[Any, Op] = weakref.WeakKeyDictionary()

    def order(adapter: Any) -> np.ndarray:
        if adapter not in ops:
            ops[adapter] = _next_shuffle(keras3_random.shuffling(adapter)[1])
        return _order(adapter, ops[adapter])

    for target, feed in ((keras3_random.BATCHES, _feed), (keras3_random.TORCH_BATCHES, _feed_torch)):
        patches.replace(target, _shuffled_batches(feed, order))


def _shuffled_batches(feed: Callable[..., Any], order: Callable[[Any], np.ndarray]) -> Callable[..., Any]:
    @governed
    def batches(cursor: Cursor, original: Any, adapter: Any, *args: Any, **kwargs: Any) -> Any:
        if not keras3_random.shuffling(adapter)[0]:
            return original(adapter, *args, **kwargs)
        return feed(original, adapter, order(adapter), *args, **kwargs)

    return batches


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
    """Return the op that shuffles a data set: part of a program that counts its runs from 0 whenever it is made."""
    cursor = cursors.current()
    take = functools.partial(next_op, "RandomShuffle", (samples,), "int32", 0, lambda: False)
    if cursor is None or not cursor.in_region:
        return take()
    with cursor.control_flow(regions.DATASET_FUNCTION) as run:
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
