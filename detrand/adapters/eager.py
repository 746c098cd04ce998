"""Draws of stateful random ops that are executed eagerly.

All ops with the same seeds share an eager kernel, which counts their runs as long as the process lives. So the
stateless kernel of the same distribution computes the numbers from an explicit counter instead. An op without a
stateless twin runs in a graph and a session of its own, whose kernel counts its runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.patches import parameters_of
from detrand._patching.tensorflow import (
    STATELESS_KERNELS,
    eager_uint64,
    no_recording,
    record_gradient,
    stateless_float_kernel,
)
from detrand.adapters import counter_draws
from detrand.adapters.counter_draws import PHILOX_ALGORITHM
from detrand.errors import StepMismatchError
from detrand.philox.generator import UINT64
from detrand.seeding.regions import OpNode

_kernels = STATELESS_KERNELS


# An eager constant costs as much as a draw, so these are kept, and run 0's counters made 1024 at a time: that makes a
# draw a tenth faster.
@functools.lru_cache(maxsize=8)
def _key_and_algorithm(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.constant([seed & UINT64], tf.uint64), tf.constant(PHILOX_ALGORITHM)


@functools.lru_cache(maxsize=2)
def _first_counters(block: int) -> list[tf.Tensor]:
    """Return the counters of run 0 for a block of 1024 op seeds."""
    # The kernels read two words. A row of 8 is aligned to 64 bytes, so the tensors share the array's memory.
    counters = np.zeros((1024, 8), np.uint64)
    counters[:, 1] = np.uint64(block * 1024 & UINT64) + np.arange(1024, dtype=np.uint64)
    return tf.unstack(tf.constant(counters))


def _key_counter_algorithm(seed: int, op_seed: int, node: OpNode | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the inputs from which a stateless kernel draws what the stateful kernel draws.

    Args:
      seed: the op's seed.
      op_seed: the op's op seed.
      node: the op node whose next run is drawn; None for run 0.
    """
    key, algorithm = _key_and_algorithm(seed or 0)
    op_seed = op_seed or 0
    if node is None or not node.counter:
        return key, _first_counters(op_seed // 1024)[op_seed % 1024], algorithm
    return key, eager_uint64(node.counter & UINT64, op_seed & UINT64), algorithm


def advance(node: OpNode, op_type: str, shape: Any) -> None:
    """Move an op node's counter on by what the stateful kernel reserves when it draws a tensor of a shape."""
    if op_type == "RandomShuffle":
        node.counter += counter_draws.reserved_by_permutation(shape[0]) if math.prod(shape) > 1 else 0
    else:
        node.counter += counter_draws.reserved(shape)


def _float_draw(op_type: str, generated: Callable[..., Any]) -> Callable[..., Any]:
    kernel = stateless_float_kernel(op_type, generated)

    def draw(node: OpNode | None, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> tf.Tensor:
        return kernel(shape, *_key_counter_algorithm(seed, seed2, node), dtype, name)

    return draw


def _int(
    node: OpNode | None, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: str | None = None
) -> tf.Tensor:
    kernel = _kernels.stateless_random_uniform_int_v2
    return kernel(shape, *_key_counter_algorithm(seed, seed2, node), minval, maxval, name)


def _gamma(
    node: OpNode | None, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0, name: str | None = None
) -> tf.Tensor:
    # The stateful op draws `shape` numbers for each alpha; the stateless op takes the whole shape.
    whole_shape = tf.concat([shape, tf.shape(alpha, out_type=tf.convert_to_tensor(shape).dtype)], axis=0)
    kernel = _kernels.stateless_random_gamma_v3
    return kernel(whole_shape, *_key_counter_algorithm(seed, seed2, node), alpha, name)


def _shuffle(node: OpNode | None, value: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> tf.Tensor:
    with no_recording():  # RandomShuffle passes no gradient, and its twin has none to ask for
        return _kernels.stateless_shuffle(value, *_key_counter_algorithm(seed, seed2, node), name)


STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": _float_draw("StatelessRandomUniformV2", _kernels.stateless_random_uniform_v2),
    "RandomStandardNormal": _float_draw("StatelessRandomNormalV2", _kernels.stateless_random_normal_v2),
    "TruncatedNormal": _float_draw("StatelessTruncatedNormalV2", _kernels.stateless_truncated_normal_v2),
    "RandomUniformInt": _int,
    "RandomGamma": _gamma,
    "RandomShuffle": _shuffle,
}


def draw_without_twin(op_type: str, make: Callable[..., Any], node: OpNode | None, *args: Any, **kwargs: Any) -> Any:
    """Draw what an op without a stateless twin draws: by a formula if there is a quick one, else in a session.

    Arguments as for `draw_in_session`.
    """
    if op_type == "Multinomial" and node is None:
        samples = _multinomial(**{**dict(zip(parameters_of(make), args, strict=False)), **kwargs})
        if samples is not None:
            return samples
    return draw_in_session(op_type, make, node, *args, **kwargs)


def _multinomial(
    logits: Any, num_samples: Any, seed: int = 0, seed2: int = 0, output_dtype: Any = tf.int64, name: str | None = None
) -> tf.Tensor | None:
    """Return the op's run 0; None if a session must draw it, or raise what is wrong with the arguments."""
    logits, samples = tf.convert_to_tensor(logits), tf.convert_to_tensor(num_samples, tf.int32)
    if logits.shape.rank != 2 or samples.shape.rank != 0 or not logits.dtype.is_floating or min(seed, seed2) < 0:
        return None
    (rows, classes), count = logits.shape, int(samples)
    if not rows or not classes or count < 0 or counter_draws.is_multinomial_split(rows, count, classes):
        return None
    return tf.constant(counter_draws.multinomial(logits.numpy(), count, seed, seed2, counter=0), output_dtype)


def draw_in_session(op_type: str, make: Callable[..., Any], node: OpNode | None, *args: Any, **kwargs: Any) -> Any:
    """Draw what an op without a stateless twin draws, in a session.

    Args:
      op_type: TensorFlow's name of the op.
      make: makes the op; takes `args` and `kwargs`.
      node: the op node whose next run is drawn, which keeps the session; None for run 0.
      *args: arguments of the op.
      **kwargs: arguments of the op.

    Raises:
      StepMismatchError: if the node's op had different attributes before.
    """
    given = {**dict(zip(parameters_of(make), args, strict=False)), **kwargs}
    arguments = {name: tf.convert_to_tensor(value) if tf.is_tensor(value) else value for name, value in given.items()}
    op = _OpInSession(op_type, make, arguments) if node is None or node.kept is None else node.kept
    if node is not None:
        attributes = op.attributes_in(arguments)
        if attributes != op.attributes:
            raise StepMismatchError(
                f"{op_type} at {node.site} has the attributes {attributes}, but had {op.attributes} in its first run. "
                "An op of a graph keeps its attributes, and so must an op of a step or loop."
            )
        node.kept = op
    return op.run(arguments)


class _OpInSession:
    """An op in a graph and a session of its own, whose kernel counts its runs.

    Attributes:
      attributes: the arguments that are the same in each run, as text.
    """

    def __init__(self, op_type: str, make: Callable[..., Any], arguments: dict[str, Any]):
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # takes time, and one op gains nothing
        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            placeholders = {  # the next batch may have a different size
                name: tf.compat.v1.placeholder(value.dtype, [None] * value.shape.rank)
                for name, value in arguments.items()
                if tf.is_tensor(value)
            }
            self._outputs = make(**{**arguments, **placeholders})
            self._op = tf.nest.flatten(self._outputs)[0].op
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        self._inputs = {
            arg.name: tensor for arg, tensor in zip(self._op.op_def.input_arg, self._op.inputs, strict=True)
        }
        self._op_type = op_type
        self.attributes = self.attributes_in(arguments)

    def attributes_in(self, arguments: dict[str, Any]) -> str:
        """Return the arguments that must be the same in each run, as text."""
        dtypes = {name: value.dtype.name for name, value in arguments.items() if tf.is_tensor(value)}
        others = {name: value for name, value in arguments.items() if name not in {*self._inputs, "name"}}
        return str({**others, **dtypes})

    def run(self, arguments: dict[str, Any]) -> Any:
        """Return what the op's next run draws."""
        inputs = [self._input(name, arguments.get(name)) for name in self._inputs]
        feeds = {tensor: value.numpy() for tensor, value in zip(self._inputs.values(), inputs, strict=True)}
        values = self._session.run(self._outputs, feeds)
        flat = [tf.constant(value) for value in tf.nest.flatten(values)]
        attributes = tuple(item for attr in self._op.op_def.attr for item in (attr.name, self._op.get_attr(attr.name)))
        record_gradient(self._op_type, inputs, attributes, flat)
        return tf.nest.pack_sequence_as(values, flat)

    def _input(self, name: str, value: Any) -> tf.Tensor:
        tensor = self._inputs[name]
        if value is None:  # the op's own default
            return tf.constant(tf.get_static_value(tensor))
        return tf.convert_to_tensor(value, tensor.dtype)
