"""Draws of stateful random ops that are executed eagerly.

All ops with the same seeds share an eager kernel, which counts their runs as long as the process lives. So the
stateless kernel of the same distribution computes the numbers from an explicit counter instead. An op without a
stateless twin runs in a graph and a session of its own, whose kernel counts its runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.tensorflow import STATELESS_KERNELS, eager_uint64, no_recording, record_gradient
from detrand.adapters import counter_draws
from detrand.adapters.counter_draws import PHILOX_ALGORITHM
from detrand.errors import StepMismatchError
from detrand.philox.generator import UINT64
from detrand.seeding.regions import OpNode


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


def draw(
    op_type: str, original: Callable[..., Any], node: OpNode | None, seeds: tuple[int, int], arguments: dict[str, Any]
) -> Any:
    """Draw what an op draws in the next run of its op node; in run 0 if it has none.

    Raises:
      StepMismatchError: if an op that is drawn in a session had different attributes in the node's first run.
    """
    kernel = STATELESS.get(op_type)
    if kernel is None:
        return _draw_without_twin(op_type, original, node, {**arguments, "seed": seeds[0], "seed2": seeds[1]})
    seed, op_seed = seeds
    key, algorithm = _key_and_algorithm(seed)
    if node is None or not node.counter:
        counter = _first_counters(op_seed // 1024)[op_seed % 1024]
    else:
        counter = eager_uint64(node.counter & UINT64, op_seed & UINT64)
    return kernel(**arguments, key=key, counter=counter, alg=algorithm)


def _gamma(shape: Any, alpha: Any, **arguments: Any) -> tf.Tensor:
    # The stateful op draws `shape` numbers for each alpha; the stateless op takes the whole shape.
    whole_shape = tf.concat([shape, tf.shape(alpha, out_type=tf.convert_to_tensor(shape).dtype)], axis=0)
    return STATELESS_KERNELS.stateless_random_gamma_v3(shape=whole_shape, alpha=alpha, **arguments)


def _shuffle(**arguments: Any) -> tf.Tensor:
    with no_recording():  # RandomShuffle passes no gradient, and its twin has none to ask for
        return STATELESS_KERNELS.stateless_shuffle(**arguments)


STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": STATELESS_KERNELS.stateless_random_uniform_v2,
    "RandomStandardNormal": STATELESS_KERNELS.stateless_random_normal_v2,
    "TruncatedNormal": STATELESS_KERNELS.stateless_truncated_normal_v2,
    "RandomUniformInt": STATELESS_KERNELS.stateless_random_uniform_int_v2,
    "RandomGamma": _gamma,
    "RandomShuffle": _shuffle,
}


def _draw_without_twin(
    op_type: str, original: Callable[..., Any], node: OpNode | None, arguments: dict[str, Any]
) -> Any:
    """Draw what an op without a stateless twin draws: by a formula if there is a quick one, else in a session."""
    for name, value in arguments.items():
        if tf.is_tensor(value):
            arguments[name] = tf.convert_to_tensor(value)
    if node is None:
        samples = _multinomial(**arguments) if op_type == "Multinomial" else None
        return _OpInSession(original, arguments).run(arguments) if samples is None else samples
    if node.kept is None:
        node.kept = _OpInSession(original, arguments)
    attributes = node.kept.attributes_in(arguments)
    if attributes != node.kept.attributes:
        raise StepMismatchError(
            f"{op_type} at {node.site} has the attributes {attributes}, but had {node.kept.attributes} in its first "
            "run. An op of a graph keeps its attributes, and so must an op of a step or loop."
        )
    return node.kept.run(arguments)


def _multinomial(
    logits: Any, num_samples: Any, seed: int, seed2: int, output_dtype: Any = tf.int64, name: str | None = None
) -> tf.Tensor | None:
    """Return the op's run 0; None if a session must draw it, or raise what is wrong with the arguments."""
    logits, samples = tf.convert_to_tensor(logits), tf.convert_to_tensor(num_samples, tf.int32)
    if logits.shape.rank != 2 or samples.shape.rank != 0 or not logits.dtype.is_floating or min(seed, seed2) < 0:
        return None
    (rows, classes), count = logits.shape, int(samples)
    if not rows or not classes or count < 0 or counter_draws.is_multinomial_split(rows, count, classes):
        return None
    drawn = counter_draws.multinomial(logits.numpy(), count, seed=seed, op_seed=seed2, counter=0)
    return tf.constant(drawn, output_dtype)


class _OpInSession:
    """An op in a graph and a session of its own, whose kernel counts its runs.

    Attributes:
      attributes: the arguments that are the same in each run, as text.
    """

    def __init__(self, make: Callable[..., Any], arguments: dict[str, Any]):
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
        self._inputs = dict(zip((arg.name for arg in self._op.op_def.input_arg), self._op.inputs, strict=True))
        self.attributes = self.attributes_in(arguments)

    def attributes_in(self, arguments: dict[str, Any]) -> str:
        """Return the arguments that must be the same in each run, as text."""
        dtypes = {name: value.dtype.name for name, value in arguments.items() if tf.is_tensor(value)}
        others = {name: value for name, value in arguments.items() if name not in {*self._inputs, "name"}}
        return str({**others, **dtypes})

    def run(self, arguments: dict[str, Any]) -> Any:
        """Return what the op's next run draws."""
        inputs = [tf.convert_to_tensor(arguments[name], tensor.dtype) for name, tensor in self._inputs.items()]
        feeds = {tensor: value.numpy() for tensor, value in zip(self._inputs.values(), inputs, strict=True)}
        outputs = tf.nest.map_structure(tf.constant, self._session.run(self._outputs, feeds))
        attributes = tuple(item for attr in self._op.op_def.attr for item in (attr.name, self._op.get_attr(attr.name)))
        record_gradient(self._op.type, inputs, attributes, tf.nest.flatten(outputs))
        return outputs
