"""MobileNet v2 in tf_object_detection 0.0.3, which reads the names of its tensors."""

import contrib
import keras
import numpy as np
import tensorflow

import detrand

with contrib.tensorflow_1():
    from nets.mobilenet import mobilenet_v2


def model(inputs, training):
    with contrib.slim.arg_scope(mobilenet_v2.training_scope(is_training=training)):
        return mobilenet_v2.mobilenet(inputs, 5, depth_multiplier=0.35)[0]


class Port(keras.layers.Layer):
    @tensorflow.function
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="mobilenet_v2",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype(np.float32),
)
