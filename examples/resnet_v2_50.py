"""tf_slim's ResNet v2 50, as it is, against the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/resnet_v2_50.py``.
"""

import keras
import numpy as np

import detrand

detrand.enable_v1_layers()  # tf_slim builds on layers that Keras 3 no longer brings

import tf_slim as slim  # noqa: E402
from tf_slim.nets import resnet_v2  # noqa: E402

NUM_CLASSES = 1000


def resnet_v2_50(inputs, training):
    """The TF1 forward pass: logits and end points."""
    with slim.arg_scope(resnet_v2.resnet_arg_scope()):
        return resnet_v2.resnet_v2_50(inputs, NUM_CLASSES, is_training=training)


class ResNetV250(keras.layers.Layer):
    """The same code in a Keras 3 layer."""

    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return resnet_v2_50(inputs, training)


migration = detrand.Migration(
    tf1=resnet_v2_50,
    tf2=ResNetV250,
    inputs=np.random.default_rng(0).random((1, 224, 224, 3), dtype=np.float32),
)
