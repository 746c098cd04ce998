"""Inception-ResNet v1 of facenet 1.0.5."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from facenet.src.models import inception_resnet_v1


def model(inputs, training):
    return inception_resnet_v1.inference(inputs, 0.8, phase_train=training, bottleneck_layer_size=8)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="facenet_inception",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(1, 160, 160, 3)).astype(np.float32),
)
