"""A stream's numbers into TensorFlow: in a graph, in a ``tf.function`` and eagerly.

Every stateful random op gets its seeds from ``get_seed``, so that is where a stream plants
``(seed, op_seed)``. In a graph or a ``tf.function`` nothing else is changed: the kernel counts its own runs.
An eager kernel is shared by all ops with the same seeds and keeps counting for as long as the process lives,
so eagerly the numbers of run 0 are computed from an explicit counter instead: by the stateless kernel of
the same distribution where there is one, else by a session that runs the op in a graph of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching, streams
from detrand._patching import Patches, Target
from detrand.streams import Cursor

_PHILOX = 1  # the algorithm number that the stateless kernels know Philox by
_COUNTERS_AT_ONCE = 1024
_COUNTER_BLOCKS_KEPT = 2
_KEYS_KEPT = 8
_UINT64 = 2**64 - 1  # the kernels read the seeds, which may be negative, as unsigned
_kernels = _patching.stateless_kernels()


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    patches.replace(_patching.GET_SEED, _governed_get_seed)
    for op_type, target in _patching.RANDOM_OPS.items():
        _install_op(patches, op_type, target)
    patches.replace(_patching.ACCIDENTAL_HITS, _without_kernel_for_each_seed)
    for target in _patching.V2_INITIALIZER_DRAWS:
        patches.replace(target, _without_own_seed)
    for target in _patching.FUNCTION_FIRST_CALL:
        patches.replace(target, _replaying_first_trace)
    patches.replace(_patching.FUNCTION_INITIALIZE, _collecting_first_trace)
    patches.replace(_patching.CREATE_VARIABLE, _marking_initialization)


def _governed_get_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_seed(op_seed: Any) -> Any:
        cursor = streams.current()
        return original(op_seed) if cursor is None else cursor.next_seeds()

    return get_seed


def _install_op(patches: Patches, op_type: str, target: Target) -> None:
    if op_type in _STATELESS_FLOAT:
        op = _governed_float_op(op_type, target.checked(), _STATELESS_FLOAT[op_type])
    else:
        op = _governed_op(op_type, target.checked())
    patches.replace(target, lambda original: op)
    for raw_ops in _patching.RAW_OP_MODULES:
        # Functions of tf.raw_ops are copies, and take their arguments by name alone.
        patches.replace(Target(raw_ops, op_type, ()), lambda original: lambda **kwargs: op(**kwargs))  # noqa: PLW0108


def _governed_float_op(op_type: str, original: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """As `_governed_op`, for the ops that a program runs most, without the cost of being general."""

    def op(shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(shape, dtype, seed, seed2, name)
        if not seed and not seed2:
            seed, seed2 = cursor.next_seeds()
        if _patching.executing_eagerly():
            key, counter, algorithm = _key_counter_algorithm(seed or 0, seed2 or 0)
            output = kernel(shape, key, counter, algorithm, dtype, name)
        else:
            output = original(shape, dtype, seed, seed2, name)
        drawn_shape, drawn_dtype = _patching.static_shape_and_dtype(output)
        cursor.describe_last(op_type, drawn_shape, drawn_dtype)
        return output

    return op


def _governed_op(op_type: str, original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(_patching.parameters_of(original))
    bypasses_get_seed = op_type in _BYPASSING_GET_SEED
    draw_eagerly = _STATELESS.get(op_type) or functools.partial(_draw_in_session, op_type, original)

    def op(*args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(*args, **kwargs)
        if bypasses_get_seed or (not kwargs.get("seed") and not kwargs.get("seed2")):
            kwargs.update(zip(parameters, args, strict=False))
            kwargs.update(_seeds(cursor, kwargs.get("seed"), kwargs.get("seed2"), bypasses_get_seed))
            args = ()
            if "deterministic" in parameters:
                kwargs["deterministic"] = True  # the fractional poolings refuse seeds without it
        outputs = (draw_eagerly if _patching.executing_eagerly() else original)(*args, **kwargs)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        cursor.describe_last(op_type, *_patching.static_shape_and_dtype(first))
        return outputs

    return op


# tf.compat.v1's functions of these ops hand the user's seeds to the kernel, where those of TensorFlow 2 ask get_seed.
_BYPASSING_GET_SEED = (
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "FractionalMaxPool",
    "FractionalAvgPool",
)


def _seeds(cursor: Cursor, seed: int | None, op_seed: int | None, may_be_the_users: bool) -> dict[str, int]:
    unseeded = not seed and not op_seed  # "nondeterministic" to the kernel: what an op gets that asked for no seed
    if unseeded or (may_be_the_users and (seed, op_seed) != cursor.last_seeds):
        seed, op_seed = cursor.next_seeds()
    return {"seed": seed or 0, "seed2": op_seed or 0}


class _Keys(dict[int, tuple[tf.Tensor, tf.Tensor]]):
    """Seed to key and algorithm.

    Making a constant costs more than a draw, so they are kept; in a dict, whose lookup costs less than the
    call of a cached function.
    """

    def __missing__(self, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        if len(self) == _KEYS_KEPT:
            self.clear()
        made = self[seed] = tf.constant([seed & _UINT64], tf.uint64), tf.constant(_PHILOX)
        return made


class _Counters(dict[int, list[tf.Tensor]]):
    """Number of a block of op seeds to the counter of each of them, for run 0: a block at once costs little more."""

    def __missing__(self, block: int) -> list[tf.Tensor]:
        if len(self) == _COUNTER_BLOCKS_KEPT:
            self.clear()
        counters = np.zeros((_COUNTERS_AT_ONCE, 2), np.uint64)
        counters[:, 1] = np.uint64(block * _COUNTERS_AT_ONCE & _UINT64) + np.arange(_COUNTERS_AT_ONCE, dtype=np.uint64)
        made = self[block] = tf.unstack(tf.constant(counters))
        return made


_keys, _counters = _Keys(), _Counters()


def _key_counter_algorithm(seed: int, op_seed: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the inputs from which a stateless kernel draws what the stateful one draws on its run 0."""
    key, algorithm = _keys[seed]
    return key, _counters[op_seed // _COUNTERS_AT_ONCE][op_seed % _COUNTERS_AT_ONCE], algorithm


def _stateless_int(shape: Any, minval: Any, maxval: Any, seed: int, seed2: int, name: str | None = None) -> tf.Tensor:
    kernel = _kernels.stateless_random_uniform_int_v2
    return kernel(shape, *_key_counter_algorithm(seed, seed2), minval, maxval, name)


def _stateless_gamma(shape: Any, alpha: Any, seed: int, seed2: int, name: str | None = None) -> tf.Tensor:
    # The stateful op draws `shape` numbers for each alpha, the stateless one is told the whole shape.
    whole_shape = tf.concat([shape, tf.shape(alpha, out_type=tf.convert_to_tensor(shape).dtype)], axis=0)
    kernel = _kernels.stateless_random_gamma_v3
    return kernel(whole_shape, *_key_counter_algorithm(seed, seed2), alpha, name)


def _stateless_shuffle(value: Any, seed: int, seed2: int, name: str | None = None) -> tf.Tensor:
    with _patching.no_recording():  # no gradient passes a RandomShuffle; its twin has none that could be asked for
        return _kernels.stateless_shuffle(value, *_key_counter_algorithm(seed, seed2), name)


_STATELESS_FLOAT: dict[str, Callable[..., Any]] = {
    "RandomUniform": _kernels.stateless_random_uniform_v2,
    "RandomStandardNormal": _kernels.stateless_random_normal_v2,
    "TruncatedNormal": _kernels.stateless_truncated_normal_v2,
}
_STATELESS: dict[str, Callable[..., Any]] = {
    "RandomUniformInt": _stateless_int,
    "RandomGamma": _stateless_gamma,
    "RandomShuffle": _stateless_shuffle,
}


def _draw_in_session(op_type: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Draws run 0 of an op that has no stateless twin, as a session does: in a graph of its own."""
    kwargs.update(zip(_patching.parameters_of(original), args, strict=False))
    tensors = {name: tf.convert_to_tensor(value) for name, value in kwargs.items() if tf.is_tensor(value)}
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        placeholders = {name: tf.compat.v1.placeholder(t.dtype, t.shape) for name, t in tensors.items()}
        outputs = original(**{**kwargs, **placeholders})
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            values = session.run(outputs, {placeholders[name]: tensor.numpy() for name, tensor in tensors.items()})
        op = (outputs if tf.is_tensor(outputs) else outputs[0]).op
    flat = [tf.constant(value) for value in tf.nest.flatten(values)]
    inputs = [_eager_input(tensor, placeholders, tensors) for tensor in op.inputs]
    attributes = tuple(item for name in op.op_def.attr for item in (name.name, op.get_attr(name.name)))
    _patching.record_gradient(op_type, inputs, attributes, flat)
    return tf.nest.pack_sequence_as(values, flat)


def _eager_input(tensor: Any, placeholders: dict[str, Any], tensors: dict[str, Any]) -> Any:
    for name, placeholder in placeholders.items():
        if tensor is placeholder:
            return tensors[name]
    value = tf.get_static_value(tensor)
    return tensor if value is None else tf.constant(value)


def _without_kernel_for_each_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the seeds from an op that has them but draws nothing: each would leave a kernel behind."""

    def op(*args: Any, **kwargs: Any) -> Any:
        if streams.current() is not None and _patching.executing_eagerly():
            kwargs.update(seed=0, seed2=0)
        return original(*args, **kwargs)

    return op


def _without_own_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a TensorFlow 2 initializer draw as its TensorFlow 1 twin: by a stateful op, whatever its seed."""

    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.current() is None:
            return original(self, *args, **kwargs)
        unseeded = type(self)()
        return original(unseeded, *args, **kwargs)

    return draw


def _replaying_first_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the second trace of a ``tf.function`` that has created variables take the seeds of the first."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None or self._variable_creation_config is not None:
            return original(self, *args, **kwargs)
        with cursor.first_call():
            return original(self, *args, **kwargs)

    return call


def _collecting_first_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(self: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(self, *args, **kwargs)
        with cursor.first_trace():
            return original(self, *args, **kwargs)

    return initialize


def _marking_initialization(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(cls, *args, **kwargs)
        with cursor.initializing():
            return original(cls, *args, **kwargs)

    return create
