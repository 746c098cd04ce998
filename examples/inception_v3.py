"""Inception v3 of tf_slim, unchanged, and the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/inception_v3.py``.
"""

import keras
import numpy as np

import detrand

detrand.enable_v1_layers()  # tf_slim uses layers that Keras 3 does not have

import tf_slim as slim  # noqa: E402
from tf_slim.nets import inception  # noqa: E402

NUM_CLASSES = 1000


def inception_v3(inputs, training):
    """Return the logits and end points."""
    with slim.arg_scope(inception.inception_v3_arg_scope()):
        return inception.inception_v3(inputs, NUM_CLASSES, is_training=training)


class InceptionV3(keras.layers.Layer):
    """The same code in a Keras 3 layer."""

    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return inception_v3(inputs, training)


migration = detrand.Migration(
    tf1=inception_v3,
    port=InceptionV3,
    inputs=np.random.default_rng(0).random((1, 299, 299, 3), dtype=np.float32),
)
