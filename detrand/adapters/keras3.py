"""A stream's numbers into Keras 3 on the TensorFlow backend.

Keras 3 draws from stateless ops with seeds of its own. While a stream governs the thread, each of its
random functions draws as the TensorFlow 1 op of the same distribution would, and the `SeedGenerator` that
was passed to it is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand import _patching, streams
from detrand._patching import Patches


def install(patches: Patches) -> None:
    """Puts the dispatchers in place; each falls through where no stream governs the thread."""
    if not all(target.loaded for target in _patching.KERAS3_DRAWS.values()):
        return  # another backend: its random functions are no TensorFlow ops
    for name, target in _patching.KERAS3_DRAWS.items():
        patches.replace(target, _governed(_DRAWS[name]))
    patches.replace(_patching.KERAS3_SHAPE_INFERENCE, _taking_no_seeds)


def _governed(draw: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return (original if streams.current() is None else draw)(*args, **kwargs)

        return dispatch

    return make


def _taking_no_seeds(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer called on symbolic inputs builds its ops to learn their shapes; they never run."""

    def compute_output_spec(*args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(*args, **kwargs)
        with cursor.shape_inference(is_executed=tf.executing_eagerly):
            return original(*args, **kwargs)

    return compute_output_spec


def _dtype(dtype: Any) -> str:
    return _patching.keras3_dtype(dtype)


def _uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    dtype = _dtype(dtype)
    return tf.random.uniform(shape, tf.cast(minval, dtype), tf.cast(maxval, dtype), dtype)


def _normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    dtype = _dtype(dtype)
    return tf.random.normal(shape, tf.cast(mean, dtype), tf.cast(stddev, dtype), dtype)


def _truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    dtype = _dtype(dtype)
    return tf.random.truncated_normal(shape, tf.cast(mean, dtype), tf.cast(stddev, dtype), dtype)


def _categorical(logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> Any:
    return tf.cast(tf.random.categorical(logits, num_samples), dtype)


def _randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
    drawn = dtype if _dtype(dtype) in ("int32", "int64") else "int64"
    return tf.cast(tf.random.uniform(shape, minval, maxval, drawn), dtype)


def _dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
    if rate == 1.0:
        return tf.zeros_like(inputs)
    if rate == 0.0:
        return inputs
    return tf.nn.dropout(inputs, rate, noise_shape)


def _shuffle(x: Any, axis: int = 0, seed: Any = None) -> Any:
    # RandomShuffle has no gradient; a gather of the shuffled positions moves the same elements and has one.
    return tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[axis])), axis=axis)


def _gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
    dtype = _dtype(dtype)
    drawn = "float32" if dtype == "bfloat16" else dtype
    alpha = tf.cast(alpha, drawn)
    # Keras's shape is the whole shape, TensorFlow 1's is that of the draws for each alpha.
    for_each = tuple(shape)[: len(shape) - alpha.shape.rank]
    if (*for_each, *alpha.shape) != tuple(shape):
        for_each, alpha = (), tf.broadcast_to(alpha, shape)
    return tf.cast(tf.random.gamma(for_each, alpha, dtype=drawn), dtype)


def _beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Any:
    of_alpha = _gamma(shape, alpha, dtype)
    return of_alpha / (of_alpha + _gamma(shape, beta, dtype))


def _binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> Any:
    # TensorFlow 1 has no such op: the stateless one, seeded from the stream, is the same on every run.
    dtype = _dtype(dtype)
    seeds = _patching.get_seed(None)
    drawn = "float32" if dtype == "bfloat16" else dtype
    numbers = tf.random.stateless_binomial(shape, seed=seeds, counts=counts, probs=probabilities, output_dtype=drawn)
    return tf.cast(numbers, dtype)


_DRAWS: dict[str, Callable[..., Any]] = {
    "beta": _beta,
    "binomial": _binomial,
    "categorical": _categorical,
    "dropout": _dropout,
    "gamma": _gamma,
    "normal": _normal,
    "randint": _randint,
    "shuffle": _shuffle,
    "truncated_normal": _truncated_normal,
    "uniform": _uniform,
}
