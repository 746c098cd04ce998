"""The super-resolution network of dltk 0.2.1, for medical volumes."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from dltk.networks.super_resolution import simple_super_resolution


def model(inputs, training):
    mode = "train" if training else "eval"
    return simple_super_resolution.simple_super_resolution_3d(inputs, filters=(4, 8), mode=mode)


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="super_resolution_3d",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 8, 8, 8, 1)).astype(np.float32),
)
