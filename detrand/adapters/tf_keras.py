"""A stream's numbers into tf_keras, whose random generator is stateless or keeps a state of its own.

Its initializers and layers draw through ``RandomGenerator``. While a stream governs the thread, the
generator draws from TensorFlow's stateful ops, as all of Keras did in TensorFlow 1, and its own state is
left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand._patching.keras import (
    TF_KERAS_BACKEND,
    TF_KERAS_DRAWS,
    TF_KERAS_RECURRENCE,
    TF_KERAS_SHAPE_INFERENCE,
    tf_keras_floatx,
)
from detrand._patching.patches import Patches
from detrand.adapters import control_flow, float32_draws
from detrand.seeding import streams


def install(patches: Patches) -> None:
    """Puts the dispatchers in place, once tf_keras is imported."""
    patches.when_imported(TF_KERAS_BACKEND, _install)
    shape_inference = TF_KERAS_SHAPE_INFERENCE
    patches.when_imported(shape_inference.module, lambda patches: patches.replace(shape_inference, _taking_no_seeds))


def _install(patches: Patches) -> None:
    for name, target in TF_KERAS_DRAWS.items():
        patches.replace(target, _governed(_DRAWS[name]))
    patches.replace(TF_KERAS_RECURRENCE, control_flow.trying_its_step_first)


def _governed(draw: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    in_float32 = float32_draws.drawn_in_float32(draw)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
            cursor = streams.current()
            if cursor is None:
                return original(self, *args, **kwargs)
            return (in_float32 if cursor.stream.keras_draws_float32 else draw)(*args, **kwargs)

        return dispatch

    return make


def _taking_no_seeds(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer called on symbolic inputs builds its ops to learn their shapes; they never run."""

    def infer_output_signature(self: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(self, *args, **kwargs)
        with cursor.shape_inference(is_executed=tf.executing_eagerly):
            return original(self, *args, **kwargs)

    return infer_output_signature


def _normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None) -> tf.Tensor:
    return tf.random.normal(shape, mean, stddev, dtype or tf_keras_floatx())


def _uniform(shape: Any, minval: Any = 0.0, maxval: Any = None, dtype: Any = None, nonce: Any = None) -> tf.Tensor:
    return tf.random.uniform(shape, minval, maxval, dtype or tf_keras_floatx())


def _truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None
) -> tf.Tensor:
    return tf.random.truncated_normal(shape, mean, stddev, dtype or tf_keras_floatx())


def _dropout(inputs: Any, rate: Any, noise_shape: Any = None) -> tf.Tensor:
    return tf.nn.dropout(inputs, rate, noise_shape)


def _seed_for_stateless_op() -> tf.Tensor:
    # For the layers that draw from stateless ops by themselves: no TensorFlow 1 op to equal. The seed is drawn, so
    # that it is another one in each run.
    return tf.random.uniform([2], 0, 2**31 - 1, tf.int32)


_DRAWS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "make_seed_for_stateless_op": _seed_for_stateless_op,
    "random_normal": _normal,
    "random_uniform": _uniform,
    "truncated_normal": _truncated_normal,
}
