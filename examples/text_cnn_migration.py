"""The text classifier of ``text_cnn.py``, unchanged, and the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/text_cnn_migration.py``.
"""

import contrib  # beside this file: the stand-in for tf.contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():  # in this block, `import tensorflow as tf` imports tf.compat.v1
    import text_cnn


def logits(words, training):
    """Return the model's logits."""
    feeds = {"words": words, "labels": np.zeros((2, 3)), "keep_prob": 0.5 if training else 1.0}
    with detrand.forward_pass(feeds):
        return text_cnn.TextCNN(length=12, classes=3, words=50, size=8, windows=[3, 4, 5], filters=6).logits


class Port(keras.layers.Layer):
    """The same code in a Keras 3 layer."""

    @detrand.track_tf1_style_variables
    def call(self, words, training=False):
        return logits(words, training)


migration = detrand.Migration(
    name="text_cnn",
    tf1=logits,
    port=Port,
    inputs=np.random.default_rng(0).integers(0, 50, (2, 12), dtype=np.int32),
)
