"""Draws of stateful random ops that are executed eagerly.

All ops with the same seeds share an eager kernel, which counts their runs as long as the process lives. So the
stateless kernel of the same distribution computes the numbers from an explicit counter instead. In later runs of an op
node, the kernel of `tf.random.Generator` does, if there is one: it moves on the counter in a variable of the node. An
op that has no such kernel for its run is executed in a graph and a session of its own, whose kernel counts its runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.patches import parameters_of
from detrand._patching.tensorflow import (
    STATEFUL_KERNELS,
    STATELESS_KERNELS,
    eager_tensor,
    is_recording,
    no_recording,
    record_gradient,
    state_variable,
)
from detrand.adapters.counter_draws import PHILOX_ALGORITHM
from detrand.errors import StepMismatchError
from detrand.philox.generator import UINT64, WORD, counter_words
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


_SCRAMBLING_KEY = 0x02461E29_3EC8F720


# One op seed at a time, the inverse of Philox would take as long as a draw.
@functools.lru_cache(maxsize=8)
def _first_seeds(seed: int, block: int) -> np.ndarray:
    """Return the seeds with which the stateless kernels of two seeds draw run 0, for a block of 1024 op seeds.

    These kernels take key and counter from the words that Philox makes of their two seeds: two words are the key, and
    two the high half of the counter. Source: ``GenerateKey`` in TensorFlow's ``stateless_random_ops.cc``.
    """
    op_seeds = np.uint64(block * 1024 & UINT64) + np.arange(1024, dtype=np.uint64)
    words = counter_words((seed & WORD, seed >> 32 & WORD, op_seeds & WORD, op_seeds >> 32), _SCRAMBLING_KEY)
    return np.stack([words[0] | words[1] << 32, words[2] | words[3] << 32], axis=1).view(np.int64)


def draw(
    op_type: str,
    original: Callable[..., Any],
    node: OpNode | None,
    seeds: tuple[int, int],
    args: tuple[Any, ...],
    arguments: dict[str, Any],
) -> Any:
    """Draw what an op draws in the run that its op node has come to; in run 0 if it has none.

    Args:
      op_type: the op's type.
      original: the op.
      node: its op node, if any.
      seeds: its seeds.
      args: its first arguments, at least one, without the seeds.
      arguments: its other arguments, by name.

    Raises:
      StepMismatchError: if an op that is drawn in a session had different attributes in the node's first run.
    """
    if node is not None and node.counter and op_type in STATEFUL:
        state = node.kept
        if type(state) is not _State:
            node.kept = state = _State(seeds, node.counter)
        return STATEFUL[op_type](state.handle, state.algorithm, *args, **arguments)
    seed, op_seed = seeds
    kernel = STATELESS.get(op_type)
    if kernel is not None:
        key, algorithm = _key_and_algorithm(seed)
        if node is None or not node.counter:
            counter = _first_counters(op_seed // 1024)[op_seed % 1024]
        else:
            node.kept = None  # a variable that this draw does not move on
            counter = eager_tensor(np.array((node.counter & UINT64, op_seed & UINT64), np.uint64))
        return kernel(args[0], key, counter, algorithm, *args[1:], **arguments)
    if node is None and op_type in STATELESS_IN_RUN_0:
        arguments["seed"] = eager_tensor(_first_seeds(seed, op_seed // 1024)[op_seed % 1024])
        return _recorded_as(op_type, STATELESS_IN_RUN_0[op_type], *args, **arguments)
    arguments.update(zip(_parameters_of(original), args, strict=False), seed=seed, seed2=op_seed)
    return _draw_in_session(op_type, original, node, arguments)


_parameters_of = functools.lru_cache(parameters_of)


class _State:
    """A variable with the seeds of an op node and the counter that it has come to.

    Attributes:
      handle: the variable, which the kernels in `STATEFUL` take and move on.
      algorithm: Philox, as they take it.
    """

    def __init__(self, seeds: tuple[int, int], counter: int):
        seed, op_seed = seeds
        self.algorithm = _stateful_algorithm()
        words = np.array([counter & UINT64, op_seed & UINT64, seed & UINT64], np.uint64)
        self.handle = state_variable(words.view(np.int64))


@functools.cache
def _stateful_algorithm() -> tf.Tensor:
    return tf.constant(PHILOX_ALGORITHM, tf.int64)


def _recorded_as(op_type: str, kernel: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Draw with a stateless kernel what gradient tapes take for the output of an op that has no gradient."""
    if not is_recording():
        return kernel(*args, **arguments)
    args, arguments = tuple(map(_as_tensor, args)), _as_tensors(arguments)
    with no_recording():
        outputs = kernel(*args, **arguments)
    inputs = list(filter(tf.is_tensor, (*args, *arguments.values())))
    record_gradient(op_type, inputs, (), tf.nest.flatten(outputs))
    return outputs


def _as_tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: _as_tensor(value) for name, value in arguments.items()}


def _as_tensor(value: Any) -> Any:
    """Return the value of a variable, or anything else as it is."""
    return tf.convert_to_tensor(value) if tf.is_tensor(value) else value


def _of_each(shape: Any, parameter: Any) -> Any:
    """Return the shape of ``shape`` numbers for each element of a parameter, as the stateless ops take it."""
    if not isinstance(shape, tf.Tensor):
        shape = tf.convert_to_tensor(shape)
    more = np.shape(parameter)
    if not more:  # a draw is a tenth faster
        return shape
    dimensions = shape.numpy() if shape.dtype in (tf.int32, tf.int64) else None
    if dimensions is None or dimensions.ndim != 1:
        return shape  # which the kernel refuses
    return eager_tensor(np.array((*dimensions, *more), dimensions.dtype))


def _gamma(shape: Any, key: Any, counter: Any, algorithm: Any, alpha: Any, **arguments: Any) -> tf.Tensor:
    shape = _of_each(shape, alpha)
    return STATELESS_KERNELS.stateless_random_gamma_v3(shape, key, counter, algorithm, alpha, **arguments)


def _shuffle(*args: Any, **arguments: Any) -> tf.Tensor:
    return _recorded_as("RandomShuffle", STATELESS_KERNELS.stateless_shuffle, *args, **arguments)


STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": STATELESS_KERNELS.stateless_random_uniform_v2,
    "RandomStandardNormal": STATELESS_KERNELS.stateless_random_normal_v2,
    "TruncatedNormal": STATELESS_KERNELS.stateless_truncated_normal_v2,
    "RandomUniformInt": STATELESS_KERNELS.stateless_random_uniform_int_v2,
    "RandomGamma": _gamma,
    "RandomShuffle": _shuffle,
}


def _integers(handle: Any, algorithm: tf.Tensor, shape: Any, minval: Any, maxval: Any, **arguments: Any) -> tf.Tensor:
    if not (isinstance(minval, tf.Tensor) and isinstance(maxval, tf.Tensor)):  # the kernel takes ints for int64
        dtype = next((each.dtype for each in (minval, maxval) if tf.is_tensor(each)), None)
        minval, maxval = (tf.convert_to_tensor(each, dtype) for each in (minval, maxval))
    return STATEFUL_KERNELS.stateful_uniform_int(handle, algorithm, shape, minval, maxval, **arguments)


# Each moves the counter in a variable on by what the stateful op of TensorFlow 1 reserves.
STATEFUL: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": STATEFUL_KERNELS.stateful_uniform,
    "RandomStandardNormal": STATEFUL_KERNELS.stateful_standard_normal_v2,
    "TruncatedNormal": STATEFUL_KERNELS.stateful_truncated_normal,
    "RandomUniformInt": _integers,
}


def _poisson(shape: Any, rate: Any, dtype: Any = None, **arguments: Any) -> tf.Tensor:
    dtype = tf.int64 if dtype is None else dtype
    return STATELESS_KERNELS.stateless_random_poisson(shape=_of_each(shape, rate), lam=rate, dtype=dtype, **arguments)


# Their twins take two seeds, and start at a counter whose low half is 0. So they can draw run 0, and no later run.
STATELESS_IN_RUN_0: dict[str, Callable[..., Any]] = {
    "RandomPoissonV2": _poisson,
    "Multinomial": STATELESS_KERNELS.stateless_multinomial,
    "SampleDistortedBoundingBoxV2": STATELESS_KERNELS.stateless_sample_distorted_bounding_box,
}


def _draw_in_session(op_type: str, original: Callable[..., Any], node: OpNode | None, arguments: dict[str, Any]) -> Any:
    if node is None or node.kept is None:
        arguments = _as_tensors(arguments)
    if node is None:
        return _OpInSession(original, arguments).run(arguments)
    if node.kept is None:
        node.kept = _OpInSession(original, arguments)
    attributes = node.kept.attributes_in(arguments)
    if attributes != node.kept.attributes:
        raise StepMismatchError(
            f"{op_type} at {node.site} has the attributes {attributes}, but had {node.kept.attributes} in its first "
            "run. An op of a graph keeps its attributes, and so must an op of a step or loop."
        )
    return node.kept.run(arguments)


class _OpInSession:
    """An op in a graph and a session of its own, whose kernel counts its runs.

    Attributes:
      attributes: the arguments that are the same in each run, as text.
    """

    def __init__(self, make: Callable[..., Any], arguments: dict[str, Any]):
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, inter_op_parallelism_threads=-1)  # in this thread
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # takes time, and one op gains nothing
        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            placeholders = {  # the next batch may have a different size
                name: tf.compat.v1.placeholder(value.dtype, [None] * value.shape.rank)
                for name, value in arguments.items()
                if tf.is_tensor(value)
            }
            self._outputs = make(**{**arguments, **placeholders})
        self._op = tf.nest.flatten(self._outputs)[0].op
        self._inputs = dict(zip((arg.name for arg in self._op.op_def.input_arg), self._op.inputs, strict=True))
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        self.attributes = self.attributes_in(arguments)

    def attributes_in(self, arguments: dict[str, Any]) -> str:
        """Return the arguments that must be the same in each run, as text."""
        dtypes = {name: arguments[name].dtype.name for name in self._inputs if tf.is_tensor(arguments[name])}
        others = {name: value for name, value in arguments.items() if name not in {*self._inputs, "name"}}
        return str({**others, **dtypes})

    def run(self, arguments: dict[str, Any]) -> Any:
        """Return what the op's next run draws."""
        inputs = [tf.convert_to_tensor(arguments[name], tensor.dtype) for name, tensor in self._inputs.items()]
        feeds = {tensor: value.numpy() for tensor, value in zip(self._inputs.values(), inputs, strict=True)}
        outputs = tf.nest.map_structure(tf.constant, self._session.run(self._outputs, feeds))
        if is_recording():
            names = [attr.name for attr in self._op.op_def.attr]
            attributes = tuple(item for name in names for item in (name, self._op.get_attr(name)))
            record_gradient(self._op.type, inputs, attributes, tf.nest.flatten(outputs))
        return outputs
