"""The asymmetric U-Net of dltk 0.2.1, for medical volumes."""

import contrib
import keras
import numpy as np

import detrand

np.float = float  # the name that NumPy had for it

with contrib.tensorflow_1():
    from dltk.networks.segmentation import unet


def model(inputs, training):
    mode = "train" if training else "eval"
    strides = ((1, 1, 1), (2, 2, 2))
    return unet.asymmetric_residual_unet_3d(inputs, 2, filters=(4, 8), strides=strides, mode=mode)["logits"]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="unet_3d_asymmetric",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 8, 8, 8, 1)).astype(np.float32),
)
