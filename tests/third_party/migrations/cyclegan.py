"""The generator of CycleGAN in tf_object_detection 0.0.3: instance normalization, transposed convolutions."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets import cyclegan


def model(inputs, training):
    return cyclegan.cyclegan_generator_resnet(inputs, num_resnet_blocks=2, num_filters=8)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="cyclegan",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype(np.float32),
)
