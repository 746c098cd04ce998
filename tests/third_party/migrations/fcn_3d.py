"""The fully convolutional network of dltk 0.2.1, for medical volumes."""

import contrib
import keras
import numpy as np

import detrand

np.float = float  # the name that NumPy had for it

with contrib.tensorflow_1():
    from dltk.networks.segmentation import fcn


def model(inputs, training):
    mode = "train" if training else "eval"
    return fcn.residual_fcn_3d(inputs, 2, filters=(4, 8), strides=((1, 1, 1), (2, 2, 2)), mode=mode)["logits"]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="fcn_3d",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 8, 8, 8, 1)).astype(np.float32),
)
