"""The autoencoder of dltk 0.2.1, for medical volumes."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from dltk.networks.autoencoder import convolutional_autoencoder


def model(inputs, training):
    mode = "train" if training else "eval"
    return convolutional_autoencoder.convolutional_autoencoder_3d(
        inputs, num_hidden_units=5, filters=(4, 8), strides=((2, 2, 2), (2, 2, 2)), mode=mode
    )


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="autoencoder_3d",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 8, 8, 8, 1)).astype(np.float32),
)
