"""MobileNet v1 in tf_object_detection 0.0.3: depthwise convolutions."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets import mobilenet_v1


def model(inputs, training):
    with contrib.slim.arg_scope(mobilenet_v1.mobilenet_v1_arg_scope(is_training=training)):
        return mobilenet_v1.mobilenet_v1(inputs, 5, depth_multiplier=0.25, is_training=training)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="mobilenet_v1",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype(np.float32),
)
