"""Random ops where XLA compiles: in ``tf.function(jit_compile=True)``, and in functions called inside one.

XLA has kernels of its own for the stateful random ops, which know no seeds and draw different numbers in each process.
So no such op gets into a graph that will be compiled. The same numbers take its place, computed by the formulas of
`detrand.philox` from a counter that is kept in a variable and moved on by each execution. Integers and uniforms are
identical to a session's. Normal numbers take XLA's logarithm, sine and cosine, which are computed in float64 and
rounded where the kernels round.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching import xla as _xla
from detrand._patching.patches import Patches, Replacements
from detrand._patching.random_ops import RANDOM_OPS
from detrand._patching.tensorflow import STATELESS_KERNELS, executing_eagerly, no_recording
from detrand.adapters import counter_draws
from detrand.errors import ScopeError
from detrand.philox.distributions import CUTOFF, LEAST_UNIFORM, TRUNCATED_RESERVED
from detrand.philox.generator import MULTIPLIERS, RESERVED, ROUNDS, UINT64, WEYL, WORD
from detrand.seeding import callsite
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers."""
    patches.replace_all(_dispatchers())
    _xla.replace_add_in_random_ops(patches, _add)


@functools.cache
def _dispatchers() -> Replacements:
    return Replacements(
        {
            _xla.CALL_IN_GRAPH: _call_in_graph,
            _xla.LIFT_TO_GRAPH: _lift_to_graph,
            _xla.VECTORIZE: _vectorize,
            _xla.IS_TRAINABLE: _is_trainable,
        }
    )


def added_to_graph(
    cursor: Cursor, op_type: str, original: Callable[..., Any], seeds: tuple[int, int], arguments: dict[str, Any]
) -> Any:
    """Add a random op that has its seeds to the graph that is built, or its numbers where XLA compiles the graph.

    Raises:
      ScopeError: if its numbers cannot be computed in a compiled program.
    """
    if not _xla.is_compiled() or cursor.phase == "init":  # initial values are computed once, and elsewhere
        return original(**arguments, seed=seeds[0], seed2=seeds[1])
    draw = DRAWS.get(op_type)
    if draw is None:
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} would be compiled by XLA, which cannot draw a session's numbers "
            "with it. Draw outside the compiled function and pass it the numbers, or leave out jit_compile=True. "
            "These random ops can be compiled in a scope: " + ", ".join(DRAWS)
        )
    if part := _xla.part_without_state():
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} would be compiled by XLA in {part}, where no op can count its runs. "
            "Draw outside of it and pass it the numbers, or leave out jit_compile=True."
        )
    if _xla.has_sessions():
        raise ScopeError(
            f"{op_type} at {callsite.user_site()} would be compiled by XLA and run by a tf.compat.v1.Session, where "
            "XLA counts no runs. Leave XLA out of the TF1 program."
        )
    arguments.pop("name", None)
    with no_recording():  # no gradient passes what is drawn
        return draw(Counter(*seeds), **arguments)


@governed
def _call_in_graph(cursor: Cursor, original: Any, atomic: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse a compiled call of a function that was traced before, by ``get_concrete_function`` for example."""
    if _xla.is_compiled():
        for op in _xla.ops_of_function(atomic):
            if op.type in RANDOM_OPS:
                raise ScopeError(
                    f"the function that is called at {callsite.user_site()}, and compiled by XLA there, was traced "
                    f"elsewhere with a {op.type} in it ({op.name}). XLA would draw different numbers with that op in "
                    "each process. Call the tf.function itself, inside the tool's scope, instead of a "
                    "ConcreteFunction of it."
                )
    return original(atomic, *args, **kwargs)


@governed
def _lift_to_graph(cursor: Cursor, original: Any, tensors: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Allow TensorFlow to lift a variable's initial value out of a compiled function although it is drawn there."""
    counters = _xla.counters_captured_by(list(tensors)) if tensors else []
    if not counters or args or kwargs.get("sources") is not None:
        return original(tensors, graph, *args, **kwargs)
    kwargs.update(sources=[inside for _, inside in counters], handle_captures=True)
    return original(tensors, graph, **kwargs)


@governed
def _vectorize(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    with _xla.vectorizing():
        return original(*args, **kwargs)


@governed
def _is_trainable(cursor: Cursor, original: Any, tensor_or_dtype: Any) -> bool:
    """Say that a counter has no gradient.

    TensorFlow says so of integers, but not of the resources that hold them. It would make zeros for their gradients,
    which it cannot do for a loop in a conditional.
    """
    return not _xla.holds_int64(tensor_or_dtype) and original(tensor_or_dtype)


@governed
def _add(cursor: Cursor, original: Any, x: Any, y: Any, name: Any = None) -> Any:
    """Keep XLA from fusing the product and the sum that scale a draw: a fused operation rounds only once."""
    if not executing_eagerly() and _xla.is_compiled():
        x = as_rounded(x)
    return original(x, y, name=name)


# Float dtype to the unsigned dtype of its width, the number of its mantissa's bits, and the bits of 1.0.
_FLOATS = {
    tf.float16: (tf.uint16, 10, 0x3C00),
    tf.bfloat16: (tf.uint16, 7, 0x3F80),
    tf.float32: (tf.uint32, 23, 0x3F800000),
    tf.float64: (tf.uint64, 52, 0x3FF0000000000000),
}


class Counter:
    """The key of an op and the counter at which its next run starts, from which all its words are computed."""

    def __init__(self, seed: int, op_seed: int):
        self._seed, self._op_seed = seed & UINT64, op_seed & UINT64
        self._resource = resource = _xla.new_counter()  # the low 64 bits of Philox's counter, from run to run
        self._start = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64)

    def reserve(self, counters: Any) -> None:
        """Move on to where the next run starts."""
        tf.raw_ops.AssignAddVariableOp(resource=self._resource, value=tf.cast(counters, tf.int64))

    def words(self, count: Any) -> tf.Tensor:
        """Return the first words, uint32."""
        counter = tf.stack([tf.cast(self._start, tf.uint64), tf.constant(self._op_seed, tf.uint64)])
        key = tf.constant([self._seed], tf.uint64)
        return STATELESS_KERNELS.stateless_random_uniform_full_int_v2(
            [count], key, counter, counter_draws.PHILOX_ALGORITHM, tf.uint32
        )

    def words_at(self, offsets: tf.Tensor) -> tf.Tensor:
        """Return the four words, uint32 of shape [n, 4], of the counters at some offsets, int64 of shape [n]."""
        low = tf.cast(self._start + offsets, tf.uint64)
        high = tf.fill(tf.shape(low), tf.constant(self._op_seed, tf.uint64))
        words = [*_halves(low), *_halves(high)]
        keys = [self._seed & WORD, self._seed >> 32]
        for _ in range(ROUNDS):
            (low0, high0), (low1, high1) = (
                _halves(word * tf.constant(multiplier, tf.uint64))
                for word, multiplier in zip(words[::2], MULTIPLIERS, strict=True)
            )
            xor = tf.bitwise.bitwise_xor
            words = [
                xor(xor(high1, words[1]), tf.constant(keys[0], tf.uint64)),
                low1,
                xor(xor(high0, words[3]), tf.constant(keys[1], tf.uint64)),
                low0,
            ]
            keys = [(key + step) & WORD for key, step in zip(keys, WEYL, strict=True)]
        return tf.cast(tf.stack(words, axis=1), tf.uint32)


def _halves(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the low and the high 32 bits of 64-bit words, both as 64-bit words."""
    return (
        tf.bitwise.bitwise_and(words, tf.constant(WORD, tf.uint64)),
        tf.bitwise.right_shift(words, tf.constant(32, tf.uint64)),
    )


def _of_whole_shape(draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Make a function that draws at least so many floats in a row draw a tensor of a shape."""

    def drawn(counter: Counter, shape: Any, dtype: Any) -> tf.Tensor:
        dtype, count = tf.as_dtype(dtype), _size(shape)
        counter.reserve(count * RESERVED)
        return tf.reshape(tf.cast(draw(counter, count, dtype)[:count], dtype), shape)

    return drawn


@_of_whole_shape
def _uniform(counter: Counter, count: Any, dtype: tf.DType) -> tf.Tensor:
    return _fractions(counter.words(count * _words_of(dtype)), dtype)


@_of_whole_shape
def _normal(counter: Counter, count: Any, dtype: tf.DType) -> tf.Tensor:
    even = (count + 1) // 2 * 2
    return _box_muller(counter.words(even * _words_of(dtype)), dtype)


@_of_whole_shape
def _truncated_normal(counter: Counter, count: Any, dtype: tf.DType) -> tf.Tensor:
    """Fill each group of numbers that a counter makes with the first of its normals that are near 0."""
    size = 4 // _words_of(dtype)
    groups = (count + size - 1) // size
    starts = tf.range(tf.cast(groups, tf.int64), dtype=tf.int64) * (size * TRUNCATED_RESERVED)
    columns = tf.range(size)

    def body(tries: tf.Tensor, filled: tf.Tensor, numbers: tf.Tensor) -> Any:
        drawn = tf.reshape(_box_muller(tf.reshape(counter.words_at(starts + tries), [-1]), dtype), [groups, size])
        for column in range(size):
            candidate = drawn[:, column : column + 1]
            takes = (tf.abs(candidate) < CUTOFF) & (columns == filled[:, None])
            numbers = tf.where(takes, candidate, numbers)
            filled += tf.cast(tf.reduce_any(takes, axis=1), tf.int32)
        return tries + 1, filled, numbers

    state = (tf.constant(0, tf.int64), tf.zeros([groups], tf.int32), tf.zeros([groups, size], _drawn_as(dtype)))
    _, _, numbers = tf.while_loop(lambda tries, filled, numbers: tf.reduce_any(filled < size), body, state)
    return tf.reshape(numbers, [-1])


def _integers(counter: Counter, shape: Any, minval: Any, maxval: Any) -> tf.Tensor:
    minval, maxval = tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
    count = _size(shape)
    counter.reserve(count * RESERVED)
    if minval.dtype == tf.int32:
        words = counter.words(count)
    else:
        low, high = tf.unstack(tf.cast(tf.reshape(counter.words(count * 2), [-1, 2]), tf.uint64), axis=1)
        words = tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)))
    minval, maxval = tf.bitcast(minval, words.dtype), tf.bitcast(maxval, words.dtype)
    numbers = tf.math.floormod(words, maxval - minval) + minval  # wraps round to the negative numbers
    return tf.reshape(tf.bitcast(numbers, tf.int32 if words.dtype == tf.uint32 else tf.int64), shape)


def _shuffle(counter: Counter, value: Any) -> tf.Tensor:
    """Swap each row with a row that is not before it."""
    value = tf.stop_gradient(tf.convert_to_tensor(value))
    if value.shape.rank == 0:
        return value
    rows = value.shape[0] if value.shape[0] is not None else tf.shape(value)[0]
    count = _size(value.shape) if value.shape.is_fully_defined() else tf.size(value)
    counter.reserve(tf.cast(count > 1, tf.int64) * tf.cast(counter_draws.reserved_by_permutation(rows), tf.int64))
    end = rows + 1  # at least one row to compile the loop for
    left = tf.cast(tf.maximum(rows - tf.range(end), 1), tf.uint32)
    partners = tf.range(end) + tf.cast(tf.math.floormod(counter.words(end), left), tf.int32)

    def swap(row: tf.Tensor, order: tf.Tensor) -> Any:
        # Not order[partner]: XLA needs to know where a slice begins, and would compile anew for each run.
        partner = tf.gather(partners, row)
        swapped = tf.gather(order, tf.stack([partner, row]))
        return row + 1, tf.tensor_scatter_nd_update(order, tf.stack([row, partner])[:, None], swapped)

    _, order = tf.while_loop(lambda row, order: row < rows - 1, swap, (tf.constant(0), tf.range(end)))
    shuffled = tf.gather(value, order[:rows])
    shuffled.set_shape(value.shape)
    return shuffled


def _categorical(counter: Counter, logits: Any, num_samples: Any, output_dtype: Any = tf.int64) -> tf.Tensor:
    """Draw from sums of exponentials that are not normalized, as the kernel does in one thread."""
    logits = tf.stop_gradient(tf.convert_to_tensor(logits))
    (rows, classes), samples = logits.shape, tf.get_static_value(num_samples)
    if None in (rows, classes, samples) or counter_draws.is_multinomial_split(rows, int(samples), classes):
        raise ScopeError(
            f"Multinomial at {callsite.user_site()} would be compiled by XLA and draws {samples} samples from logits "
            f"of shape {logits.shape}. A session draws so many in several threads, and so the numbers depend on the "
            "machine; or the shape is unknown before the function runs. Draw fewer samples, of a shape that is known "
            "when the function is traced, or draw outside the compiled function and pass it the numbers."
        )
    samples = int(samples)
    counter.reserve(counter_draws.reserved("Multinomial", (rows, samples)))
    logits = tf.cast(logits, tf.float64)
    is_finite = tf.math.is_finite(logits)
    greatest = tf.reduce_max(tf.where(is_finite, logits, logits.dtype.min), axis=1, keepdims=True)
    sums = tf.cumsum(tf.where(is_finite, tf.exp(logits - greatest), 0), axis=1)
    drawn = tf.reshape(_fractions(counter.words(rows * samples * 2), tf.float64), [rows, samples]) * sums[:, -1:]
    return tf.reduce_sum(tf.cast(sums[:, None, :] <= drawn[:, :, None], tf.as_dtype(output_dtype)), axis=2)


DRAWS: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": _uniform,
    "RandomStandardNormal": _normal,
    "TruncatedNormal": _truncated_normal,
    "RandomUniformInt": _integers,
    "RandomShuffle": _shuffle,
    "Multinomial": _categorical,
}


def as_rounded(x: tf.Tensor) -> tf.Tensor:
    """Return floats unchanged, so that a compiler cannot compute with their values before they were rounded."""
    unsigned, _, one = _FLOATS[x.dtype]
    with no_recording():
        bits = tf.bitcast(x, unsigned)
        # Sets a bit of a number that has the bit already. Compilers do not see that this changes nothing.
        bits = tf.bitwise.bitwise_or(bits, tf.cast(tf.equal(bits, tf.constant(one | 1, unsigned)), unsigned))
        rounded = tf.bitcast(bits, x.dtype)
    return _xla.with_gradient_of(x, rounded)


def _size(shape: Any) -> Any:
    """Return how many numbers a shape holds, as an int if that is known."""
    known = tf.get_static_value(shape) if tf.is_tensor(shape) else np.asarray(tf.TensorShape(shape).as_list())
    if known is None:
        return tf.reduce_prod(shape)
    return math.prod(int(dimension) for dimension in known)


def _words_of(dtype: tf.DType) -> int:
    return 2 if dtype == tf.float64 else 1


def _drawn_as(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32  # 16-bit normals are rounded float32 ones


def _fractions(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Make words into numbers in [0, 1): mantissas of numbers in [1, 2), minus 1."""
    unsigned, bits, one = _FLOATS[dtype]
    if unsigned == tf.uint64:
        high, low = tf.unstack(tf.cast(tf.reshape(words, [-1, 2]), tf.uint64), axis=1)
        words = tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)))
    mantissas = tf.bitwise.bitwise_and(words, tf.constant(2**bits - 1, words.dtype))
    ones = tf.bitwise.bitwise_or(tf.cast(mantissas, unsigned), tf.constant(one, unsigned))
    return tf.bitcast(ones, dtype) - tf.constant(1, dtype)


def _box_muller(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Make words, an even number per draw, into standard normals: sine first, then cosine."""
    drawn = _drawn_as(dtype)
    uniforms = tf.reshape(_fractions(words, drawn), [-1, 2])
    first = tf.maximum(uniforms[:, 0], tf.constant(LEAST_UNIFORM, drawn))
    logs = _rounded(tf.math.log(tf.cast(first, tf.float64)), drawn)
    radii = _rounded(tf.sqrt(-2 * logs), drawn)
    angles = _rounded(tf.cast(uniforms[:, 1], tf.float64) * (2 * math.pi), drawn)
    parts = [_rounded(function(angles), drawn) * radii for function in (tf.sin, tf.cos)]
    return tf.reshape(tf.cast(tf.stack(parts, axis=1), drawn), [-1])


def _rounded(numbers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Round float64 numbers to a dtype, and keep them in float64."""
    return tf.cast(tf.cast(numbers, dtype), tf.float64)
