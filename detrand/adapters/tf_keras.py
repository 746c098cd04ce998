"""tf_keras in a stream: its initializers and layers draw from TensorFlow's stateful ops, as Keras did in TensorFlow 1.

They draw through ``RandomGenerator``, which is stateless or keeps a state of its own. While a stream governs the
thread, that state stays as it is.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import tensorflow as tf

from detrand._patching.graphs import loops_are_functions
from detrand._patching.keras import TF_KERAS_DRAWS, TF_KERAS_MASKS, TF_KERAS_RECURRENCE, TF_KERAS_SHAPE_INFERENCE
from detrand._patching.patches import Patches, Replacements
from detrand.adapters.keras_draws import governed_draw, trying_its_step_first
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers once tf_keras is imported."""
    patches.replace_when_imported(_dispatchers())


@functools.cache
def _dispatchers() -> Replacements:
    return Replacements(
        {
            **{TF_KERAS_DRAWS[name]: make for name, make in _DRAWS.items()},
            TF_KERAS_RECURRENCE: trying_its_step_first,
            TF_KERAS_SHAPE_INFERENCE: _infer_output_signature,
            TF_KERAS_MASKS: _generate_masks,
        }
    )


@governed
def _generate_masks(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Take op seeds for the masks that the first call of a recurrence's step makes, where its loop uses them."""
    if loops_are_functions():
        return original(*args, **kwargs)
    with cursor.executing():
        return original(*args, **kwargs)


@governed
def _infer_output_signature(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Take no seeds where a layer is called on symbolic inputs: the ops are built to infer shapes, and never run."""
    with cursor.shape_inference(is_executed=tf.executing_eagerly):
        return original(*args, **kwargs)


def _normal(
    generator: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None
) -> tf.Tensor:
    return tf.random.normal(shape, mean, stddev, dtype or sys.modules["tf_keras"].backend.floatx())


def _uniform(
    generator: Any, shape: Any, minval: Any = 0.0, maxval: Any = None, dtype: Any = None, nonce: Any = None
) -> tf.Tensor:
    return tf.random.uniform(shape, minval, maxval, dtype or sys.modules["tf_keras"].backend.floatx())


def _truncated_normal(
    generator: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None
) -> tf.Tensor:
    return tf.random.truncated_normal(shape, mean, stddev, dtype or sys.modules["tf_keras"].backend.floatx())


def _dropout(generator: Any, inputs: Any, rate: Any, noise_shape: Any = None) -> tf.Tensor:
    return tf.nn.dropout(inputs, rate, noise_shape)


def _seed_for_stateless_op(generator: Any) -> tf.Tensor:
    # Some layers draw from stateless ops, which no TensorFlow 1 op equals. Their seed is drawn: each run has its own.
    return tf.random.uniform([2], 0, 2**31 - 1, tf.int32)


_DRAWS = {
    "dropout": governed_draw(_dropout),
    "make_seed_for_stateless_op": governed_draw(_seed_for_stateless_op),
    "random_normal": governed_draw(_normal),
    "random_uniform": governed_draw(_uniform),
    "truncated_normal": governed_draw(_truncated_normal),
}
