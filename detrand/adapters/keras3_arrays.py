"""Keras 3 in a stream on the backends that draw with no TensorFlow op: PyTorch, NumPy, and the base of JAX's.

Each method of `ArrayDraws` is one of a backend's random functions. It takes the next op seed of the stream and draws,
in NumPy, what the TensorFlow 1 op of the same distribution draws. The result becomes an array of the backend.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from detrand import philox
from detrand._patching import keras3_random
from detrand._patching.keras import keras3_dtype
from detrand.adapters import counter_draws
from detrand.errors import ScopeError
from detrand.seeding import cursors, regions
from detrand.seeding.cursors import Cursor, governed

Numbers = Callable[..., np.ndarray]  # takes a seed, an op seed, a counter and parameters, all by name


class Op(NamedTuple):
    """A random op that is about to draw.

    Attributes:
      type: TensorFlow's type of it.
      state: its ``seed``, its ``op_seed`` and the ``counter`` that it has come to.
      reserved: how far each of its runs moves the counter on.
    """

    type: str
    state: dict[str, int]
    reserved: int


def next_op(op_type: str, shape: Any, dtype: str, executes: Callable[[], bool] = lambda: True) -> Op:
    """Return the op that comes next in the stream that governs the thread.

    Unless it `executes` now, it becomes part of a program, which counts its runs from 0.
    """
    cursor = cursors.current()
    assert cursor is not None, "called only where a stream governs"
    seed, op_seed = cursor.next_seeds(executes)
    node = cursor.node
    cursor.describe_last(op_type, tuple(shape), dtype)
    counter, reserved = 0, counter_draws.reserved(op_type, shape)
    if node is not None:
        counter = node.counter
        node.counter += reserved
    return Op(op_type, {"seed": seed, "op_seed": op_seed, "counter": counter}, reserved)


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
        return _ops().convert_to_tensor(numbers(**op.state, **arrays), dtype)

    def _draw(
        self,
        op_type: str,
        shape: Any,
        dtype: str,
        numbers: Numbers,
        drawn: tuple[Any, str] | None = None,
        **parameters: Any,
    ) -> Any:
        """Draw an array by `numbers` of some parameters. The op itself draws the shape and dtype `drawn`, if given."""
        self.check()
        if keras3_random.is_symbolic():  # Keras asks for the shape
            return _ops().zeros(shape, dtype)
        shape = tuple(int(size) for size in shape)
        known = {name: _as_numpy(value) for name, value in parameters.items() if self.is_known(value)}
        unknown = {name: value for name, value in parameters.items() if name not in known}
        op = next_op(op_type, *(drawn or (shape, dtype)), self.executes)
        return self.execute(functools.partial(numbers, **known), op, shape, dtype, **unknown)

    def _affine(self, op_type: str, draw: Numbers, shape: Any, dtype: str, factor: Any, offset: Any) -> Any:
        """Draw ``x * factor + offset``, rounded as TensorFlow's two ops do."""
        if self.is_known(factor) and self.is_known(offset):
            scaled = functools.partial(counter_draws.affine, draw, shape, dtype)
            return self._draw(op_type, shape, dtype, scaled, factor=factor, offset=offset)
        standard = functools.partial(counter_draws.philox_draw, draw, shape, dtype=dtype)
        drawn = self._draw(op_type, shape, dtype, standard)
        return drawn * self.cast(factor, dtype) + self.cast(offset, dtype)

    def cast(self, value: Any, dtype: str) -> Any:
        """Return an array of the backend in a dtype."""
        return _ops().cast(value, dtype)

    def uniform(self, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomUniform``; `dtype` is a float."""
        dtype = keras3_dtype(dtype)
        if self.is_known(minval) and self.is_known(maxval):
            minval, maxval = (_as_numpy(limit).astype(_numpy_dtype(dtype)) for limit in (minval, maxval))
        else:
            minval, maxval = self.cast(minval, dtype), self.cast(maxval, dtype)
        return self._affine("RandomUniform", philox.uniform, shape, dtype, maxval - minval, minval)

    def normal(self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomStandardNormal``."""
        return self._affine("RandomStandardNormal", philox.normal, shape, keras3_dtype(dtype), stddev, mean)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> Any:
        """Draw as ``TruncatedNormal``."""
        return self._affine("TruncatedNormal", philox.truncated_normal, shape, keras3_dtype(dtype), stddev, mean)

    def randint(self, shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
        """Draw as ``RandomUniformInt``, of 64 bits where TensorFlow has no such op of that dtype."""
        dtype = keras3_dtype(dtype)
        drawn = dtype if dtype in ("int32", "int64") else "int64"
        numbers = functools.partial(counter_draws.integers, shape, dtype=drawn)
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
        keep = self.mask(shape, rate, dtype)
        scale = np.asarray(1 / (1 - rate)).astype(_numpy_dtype(dtype))
        return ops.where(keep, inputs * ops.convert_to_tensor(scale, dtype), ops.zeros_like(inputs))

    def mask(self, shape: Any, rate: float, dtype: str) -> Any:
        """Draw which elements a dropout keeps."""
        mask = functools.partial(counter_draws.philox_draw, philox.dropout_mask, shape, rate, dtype=dtype)
        return self._draw("RandomUniform", shape, "bool", mask, (shape, dtype))

    def categorical(self, logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> Any:
        """Draw as ``Multinomial``."""
        logits = _ops().convert_to_tensor(logits)
        shape = (logits.shape[0], num_samples)
        numbers = functools.partial(counter_draws.multinomial, num_samples=num_samples)
        return self._draw("Multinomial", shape, keras3_dtype(dtype), numbers, (shape, "int64"), logits=logits)

    def shuffle(self, x: Any, axis: int = 0, seed: Any = None) -> Any:
        """Take the elements in the order that ``RandomShuffle`` gives."""
        x = _ops().convert_to_tensor(x)
        if keras3_random.is_symbolic():
            return x
        size = x.shape[axis]
        order = self._draw("RandomShuffle", (size,), "int32", functools.partial(counter_draws.permutation, size))
        return _ops().take(x, order, axis=axis)

    def gamma(self, shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomGamma``."""
        dtype = keras3_dtype(dtype)
        drawn = "float32" if dtype == "bfloat16" else dtype
        numbers = functools.partial(counter_draws.gamma, shape, dtype=drawn)
        return _ops().cast(self._draw("RandomGamma", shape, drawn, numbers, alpha=alpha), dtype)

    def beta(self, shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw by two ``RandomGamma``, since TensorFlow 1 has no such op."""
        of_alpha = self.gamma(shape, alpha, dtype)
        return of_alpha / (of_alpha + self.gamma(shape, beta, dtype))

    def binomial(self, shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as TensorFlow's stateless op from a seed that is drawn, since TensorFlow 1 has no such op."""
        dtype = keras3_dtype(dtype)
        drawn = "float32" if dtype == "bfloat16" else dtype
        numbers = functools.partial(counter_draws.binomial, shape, dtype=drawn)
        parameters = {"counts": counts, "probabilities": probabilities}
        return _ops().cast(self._draw("RandomUniformInt", shape, drawn, numbers, _SEEDS, **parameters), dtype)

    def next_seed(self, dtype: str) -> Any:
        """Draw the two numbers of a seed, for code that draws from a seed by itself."""
        return self._draw("RandomUniformInt", (2,), dtype, counter_draws.seeds, _SEEDS)


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


def uncompiled(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``torch.compile`` leave a dispatcher to be called in each execution of a program, without looking inside."""

    def make_uncompiled(original: Callable[..., Any]) -> Any:
        import torch

        return torch.compiler.disable(make(original))

    return make_uncompiled


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
    return np.asarray(_ops().convert_to_numpy(value) if "keras" in sys.modules else value)


def _numpy_dtype(dtype: str) -> np.dtype:
    return philox.uniform((), 0, 0, dtype=dtype).dtype


_shuffles: weakref.WeakKeyDictionary[Any, Op] = weakref.WeakKeyDictionary()


@governed
def batches(cursor: Cursor, original: Any, adapter: Any, slice_and_convert_fn: Any, inputs: Any) -> Any:
    """Feed ``fit`` with arrays in the order of the stream, if it shuffles them."""
    order = _order(cursor, adapter)
    if order is None:
        return original(adapter, slice_and_convert_fn, inputs)

    def in_order(sliceable: Any, indices: slice) -> Any:
        return slice_and_convert_fn(sliceable, indices=order[indices])

    return original(keras3_random.unshuffled(adapter), in_order, inputs)


@governed
def torch_batches(cursor: Cursor, original: Any, adapter: Any) -> Any:
    """Do the same with PyTorch's loader."""
    order = _order(cursor, adapter)
    if order is None:
        return original(adapter)
    from torch.utils.data import DataLoader

    loader = original(keras3_random.unshuffled(adapter))
    _, samples, batch_size = keras3_random.shuffling(adapter)
    indices = [order[start : start + batch_size].tolist() for start in range(0, samples, batch_size)]
    return DataLoader(loader.dataset, batch_sampler=indices, collate_fn=loader.collate_fn)


def _order(cursor: Cursor, adapter: Any) -> np.ndarray | None:
    """Return the order in which an epoch takes the samples; None if they are not shuffled."""
    shuffle, samples, batch_size = keras3_random.shuffling(adapter)
    if not shuffle:
        return None
    if adapter not in _shuffles:
        _shuffles[adapter] = _next_shuffle(cursor, samples)
    state = _shuffles[adapter].state
    if shuffle != "batch":
        return counter_draws.permutation(samples, **state)
    counter, indices = 0, []
    for start in range(0, samples, batch_size):
        size = min(batch_size, samples - start)
        indices.append(start + counter_draws.permutation(size, **{**state, "counter": counter}))
        counter += counter_draws.reserved_by_permutation(size)
    return np.concatenate(indices)


def _next_shuffle(cursor: Cursor, samples: int) -> Op:
    """Return the op that shuffles a data set: part of a program that counts its runs from 0 whenever it is made."""
    take = functools.partial(next_op, "RandomShuffle", (samples,), "int32", lambda: False)
    if not cursor.in_region:
        return take()
    with cursor.control_flow(regions.DATASET_FUNCTION) as run:
        return run(0, take)
