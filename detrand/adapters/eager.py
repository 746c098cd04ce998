"""What a stateful random op draws where it is executed at once.

An eager kernel is shared by all ops with the same seeds and keeps counting for as long as the process lives. So
the numbers are computed from an explicit counter instead, by the stateless kernel of the same distribution. An op
that has no stateless twin runs in a graph and a session of its own, whose kernel counts its runs by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.patches import parameters_of
from detrand._patching.tensorflow import no_recording, record_gradient, stateless_float_kernel, stateless_kernels
from detrand.adapters import formulas, small_uniforms
from detrand.errors import StepMismatchError
from detrand.seeding import streams
from detrand.seeding.regions import OpNode

_PHILOX = 1  # the algorithm number that the stateless kernels know Philox by
_BITS_OF_BLOCK = 10
_IN_BLOCK = (1 << _BITS_OF_BLOCK) - 1
_COUNTER_BLOCKS_KEPT = 2
_COUNTERS_AHEAD = 32
_KEYS_KEPT = 8
_UINT64 = 2**64 - 1  # the kernels read the seeds, which may be negative, as unsigned
_RESERVED = 256  # counters for each number, however many of them it takes (kReservedSamplesPerOutput in TensorFlow)
_kernels = stateless_kernels()


# Making a constant costs more than a draw, so they are kept; in dicts, whose lookup costs less than any call.
_keys: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}  # seed to key and algorithm
_counters: dict[int, list[tf.Tensor]] = {}  # number of a block of op seeds to the counter of each of them, for run 0


def _make_key(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    if len(_keys) >= _KEYS_KEPT:
        _keys.clear()
    made = _keys[seed] = tf.constant([seed & _UINT64], tf.uint64), tf.constant(_PHILOX)
    return made


def _make_counters_of_block(block: int) -> list[tf.Tensor]:
    """Makes a block of counters at once, which costs little more than one."""
    if len(_counters) >= _COUNTER_BLOCKS_KEPT:
        _counters.clear()
    # The kernels read two words. Rows of 64 bytes are aligned, so that the tensors share the memory of the block.
    counters = np.zeros((_IN_BLOCK + 1, 8), np.uint64)
    counters[:, 1] = np.uint64(block << _BITS_OF_BLOCK & _UINT64) + np.arange(_IN_BLOCK + 1, dtype=np.uint64)
    made = _counters[block] = tf.unstack(tf.constant(counters))
    return made


class _CountersAhead:
    """The counters of a node's next runs, if each reserves as much as the last one.

    Attributes:
      op_seed: the op seed that is in each.
      reserved: how much the last run has reserved.
    """

    def __init__(self, op_seed: int):
        self.op_seed, self.reserved = op_seed, 0
        self._next, self._step = 0, 0
        self._left: list[tf.Tensor] = []

    def has(self, counter: int) -> bool:
        """Returns whether a counter is the next one."""
        return bool(self._left) and counter == self._next

    def put(self, counter: int, tensors: list[tf.Tensor]) -> None:
        """Puts a counter there and those of the runs that follow, the last one first."""
        self._next, self._step, self._left = counter, self.reserved, tensors

    def take(self) -> tf.Tensor:
        """Returns the next counter."""
        self._next += self._step
        return self._left.pop()


def _make_counters(node: OpNode) -> None:
    """Makes the counters of some runs of a node and of those that come after it: some at once cost little more."""
    cursor = streams.current()
    execution = cursor and cursor.execution
    following = execution.upcoming(_COUNTERS_AHEAD - 1) if execution else []
    nodes = [node, *(other for other in following if isinstance(other.kept, _CountersAhead))]
    runs = _COUNTERS_AHEAD // len(nodes)
    counters = [
        (each.counter + run * each.kept.reserved, each.kept.op_seed & _UINT64)
        for each in nodes
        for run in reversed(range(runs))
    ]
    tensors = tf.unstack(tf.constant(np.array(counters, np.uint64)))
    for number, each in enumerate(nodes):
        each.kept.put(each.counter, tensors[number * runs : (number + 1) * runs])


def key_counter_algorithm(seed: int, op_seed: int, node: OpNode | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the inputs from which a stateless kernel draws what the stateful one draws.

    Args:
      seed: the op's seed.
      op_seed: the op's op seed.
      node: the node whose next run it is; None for a run 0.
    """
    try:
        key, algorithm = _keys[seed]
    except KeyError:
        key, algorithm = _make_key(seed)
    if node is not None and node.kept is None:
        node.kept = _CountersAhead(op_seed)
    if node is None or not node.counter:
        try:
            return key, _counters[op_seed >> _BITS_OF_BLOCK][op_seed & _IN_BLOCK], algorithm
        except KeyError:
            return key, _make_counters_of_block(op_seed >> _BITS_OF_BLOCK)[op_seed & _IN_BLOCK], algorithm
    if not node.kept.has(node.counter):
        _make_counters(node)
    return key, node.kept.take(), algorithm


def move_on(node: OpNode, op_type: str, shape: Any) -> None:
    """Moves a node's counter on by what the stateful kernel reserves when it draws a tensor of a shape."""
    reserved = _reserved_by_shuffle(shape) if op_type == "RandomShuffle" else math.prod(shape) * _RESERVED
    node.counter += reserved
    node.kept.reserved = reserved


def _reserved_by_shuffle(shape: Any) -> int:
    # A row takes one word, of which a counter has four; the last row is where it is left.
    return (shape[0] + 2) // 4 if math.prod(shape) > 1 and shape[0] > 1 else 0


def _int(
    node: OpNode | None, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: str | None = None
) -> tf.Tensor:
    kernel = _kernels.stateless_random_uniform_int_v2
    return kernel(shape, *key_counter_algorithm(seed, seed2, node), minval, maxval, name)


def _gamma(
    node: OpNode | None, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0, name: str | None = None
) -> tf.Tensor:
    # The stateful op draws `shape` numbers for each alpha, the stateless one is told the whole shape.
    whole_shape = tf.concat([shape, tf.shape(alpha, out_type=tf.convert_to_tensor(shape).dtype)], axis=0)
    kernel = _kernels.stateless_random_gamma_v3
    return kernel(whole_shape, *key_counter_algorithm(seed, seed2, node), alpha, name)


def _shuffle(node: OpNode | None, value: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> tf.Tensor:
    with no_recording():  # no gradient passes a RandomShuffle; its twin has none that could be asked for
        return _kernels.stateless_shuffle(value, *key_counter_algorithm(seed, seed2, node), name)


STATELESS_FLOAT: dict[str, Callable[..., Any]] = {
    "RandomUniform": stateless_float_kernel(
        "StatelessRandomUniformV2", _kernels.stateless_random_uniform_v2, key_counter_algorithm, small_uniforms.draw
    ),
    "RandomStandardNormal": stateless_float_kernel(
        "StatelessRandomNormalV2", _kernels.stateless_random_normal_v2, key_counter_algorithm
    ),
    "TruncatedNormal": stateless_float_kernel(
        "StatelessTruncatedNormalV2", _kernels.stateless_truncated_normal_v2, key_counter_algorithm
    ),
}
STATELESS: dict[str, Callable[..., Any]] = {
    "RandomUniformInt": _int,
    "RandomGamma": _gamma,
    "RandomShuffle": _shuffle,
}


def draw_without_twin(op_type: str, make: Callable[..., Any], node: OpNode | None, *args: Any, **kwargs: Any) -> Any:
    """Draws what an op that has no stateless twin draws: by a formula if there is one that is quick, or in a session.

    The arguments are those of `draw_in_session`.
    """
    if op_type == "Multinomial" and node is None:
        samples = _multinomial(**{**dict(zip(parameters_of(make), args, strict=False)), **kwargs})
        if samples is not None:
            return samples
    return draw_in_session(op_type, make, node, *args, **kwargs)


def _multinomial(
    logits: Any, num_samples: Any, seed: int = 0, seed2: int = 0, output_dtype: Any = tf.int64, name: str | None = None
) -> tf.Tensor | None:
    """Returns the op's run 0; None where that is up to a session, or it says what is wrong."""
    logits, samples = tf.convert_to_tensor(logits), tf.convert_to_tensor(num_samples, tf.int32)
    if logits.shape.rank != 2 or samples.shape.rank != 0 or not logits.dtype.is_floating or min(seed, seed2) < 0:
        return None
    (rows, classes), count = logits.shape, int(samples)
    if not rows or not classes or count < 0 or formulas.is_multinomial_split(rows, count, classes):
        return None
    return tf.constant(formulas.multinomial(logits.numpy(), count, seed, seed2, counter=0), output_dtype)


def draw_in_session(op_type: str, make: Callable[..., Any], node: OpNode | None, *args: Any, **kwargs: Any) -> Any:
    """Draws what an op that has no stateless twin draws, in a session.

    Args:
      op_type: TensorFlow's name of the op.
      make: makes it.
      node: the node whose next run it is, which keeps the session; None for a run 0.
      *args: what ``make`` takes.
      **kwargs: likewise.

    Raises:
      StepMismatchError: if the node's op had other attributes before.
    """
    given = {**dict(zip(parameters_of(make), args, strict=False)), **kwargs}
    arguments = {name: tf.convert_to_tensor(value) if tf.is_tensor(value) else value for name, value in given.items()}
    op = _OpInSession(op_type, make, arguments) if node is None or node.kept is None else node.kept
    if node is not None:
        attributes = op.attributes_in(arguments)
        if attributes != op.attributes:
            raise StepMismatchError(
                f"{op_type} at {node.site} has the attributes {attributes}, where it had {op.attributes} in its first "
                "run; the op of a graph keeps its attributes, and so must that of a step or loop"
            )
        node.kept = op
    return op.run(arguments)


class _OpInSession:
    """An op in a graph and a session of its own, whose kernel counts its runs.

    Attributes:
      attributes: what is the same in each run.
    """

    def __init__(self, op_type: str, make: Callable[..., Any], arguments: dict[str, Any]):
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # for one op it only takes time
        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            placeholders = {  # the next batch may have another size
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
        """Returns those of the arguments that must be the same in each run."""
        dtypes = {name: value.dtype.name for name, value in arguments.items() if tf.is_tensor(value)}
        others = {name: value for name, value in arguments.items() if name not in {*self._inputs, "name"}}
        return str({**others, **dtypes})

    def run(self, arguments: dict[str, Any]) -> Any:
        """Returns what the op's next run draws."""
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
