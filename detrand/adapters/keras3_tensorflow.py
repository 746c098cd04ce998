"""Keras 3 in a stream on the TensorFlow backend: its random functions, each drawing by a stateful op.

Keras's own draw by stateless ops with seeds of Keras's. The stateful ops are those of TensorFlow 1, which
`detrand.adapters.tensorflow` governs in a graph, in a function and eagerly.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from detrand._patching.keras import keras3_dtype

_MAX_INT32 = 2**31 - 1


def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Draw as ``tf.random.uniform``."""
    dtype = keras3_dtype(dtype)
    return tf.random.uniform(shape, tf.cast(minval, dtype), tf.cast(maxval, dtype), dtype)


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Draw as ``tf.random.normal``."""
    dtype = keras3_dtype(dtype)
    return tf.random.normal(shape, tf.cast(mean, dtype), tf.cast(stddev, dtype), dtype)


def truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Draw as ``tf.random.truncated_normal``."""
    dtype = keras3_dtype(dtype)
    return tf.random.truncated_normal(shape, tf.cast(mean, dtype), tf.cast(stddev, dtype), dtype)


def categorical(logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> Any:
    """Draw as ``tf.random.categorical``."""
    return tf.cast(tf.random.categorical(logits, num_samples), dtype)


def randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
    """Draw as ``tf.random.uniform`` draws integers, in int64 if it lacks the dtype."""
    drawn = dtype if keras3_dtype(dtype) in ("int32", "int64") else "int64"
    return tf.cast(tf.random.uniform(shape, minval, maxval, drawn), dtype)


def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
    """Drop as ``tf.nn.dropout``."""
    if rate == 1.0:
        return tf.zeros_like(inputs)
    if rate == 0.0:
        return inputs
    return tf.nn.dropout(inputs, rate, noise_shape)


def shuffle(x: Any, axis: int = 0, seed: Any = None) -> Any:
    """Shuffle as ``tf.random.shuffle``, along any axis."""
    # RandomShuffle has no gradient; a gather of the shuffled positions moves the same elements and has one.
    return tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[axis])), axis=axis)


def gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Draw as ``tf.random.gamma``, for a whole shape."""
    dtype = keras3_dtype(dtype)
    drawn = "float32" if dtype == "bfloat16" else dtype
    alpha = tf.cast(alpha, drawn)
    # Keras's shape is the whole shape; TensorFlow 1's is the shape of the draws for each alpha.
    for_each = tuple(shape)[: len(shape) - alpha.shape.rank]
    if (*for_each, *alpha.shape) != tuple(shape):
        for_each, alpha = (), tf.broadcast_to(alpha, shape)
    return tf.cast(tf.random.gamma(for_each, alpha, dtype=drawn), dtype)


def beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Draw by two ``tf.random.gamma``, since TensorFlow 1 has no such op."""
    of_alpha = gamma(shape, alpha, dtype)
    return of_alpha / (of_alpha + gamma(shape, beta, dtype))


def binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Draw by the stateless op from a drawn seed, since TensorFlow 1 has no such op."""
    dtype = keras3_dtype(dtype)
    drawn = "float32" if dtype == "bfloat16" else dtype
    seeds = next_seed("int32")
    numbers = tf.random.stateless_binomial(shape, seed=seeds, counts=counts, probs=probabilities, output_dtype=drawn)
    return tf.cast(numbers, dtype)


def next_seed(dtype: str) -> tf.Tensor:
    """Draw the two numbers of a seed, different in each run, for code that draws from a seed by itself."""
    return tf.cast(tf.random.uniform([2], 0, _MAX_INT32, tf.int32), dtype)


def executes() -> bool:
    """Return whether an op draws when it is called, rather than in each execution of a graph."""
    return tf.executing_eagerly()
