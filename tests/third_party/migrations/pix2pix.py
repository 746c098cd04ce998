"""The generator of pix2pix in tf_object_detection 0.0.3: skip connections, dropout."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets import pix2pix


def model(inputs, training):
    blocks = [pix2pix.Block(8, 0.5), pix2pix.Block(16, 0.5), pix2pix.Block(16, 0)]
    with contrib.slim.arg_scope(pix2pix.pix2pix_arg_scope()):
        return pix2pix.pix2pix_generator(inputs, 3, blocks=blocks, is_training=training)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="pix2pix",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype(np.float32),
)
