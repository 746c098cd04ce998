"""The convolutions of the Atari policy of stable-baselines 2.10."""

import os
import sys
import types

import contrib
import keras
import numpy as np
import tensorflow

import detrand

tensorflow.compat.v1.disable_v2_tensorshape()  # x.shape[1].value

for package in (
    "stable_baselines",
    "stable_baselines.common",
):  # without running __init__.py, which imports what trains the models
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [os.path.join(path, *package.split(".")) for path in sys.path]
with contrib.tensorflow_1():
    import tensorflow as tf
    from stable_baselines.common import tf_layers


def model(images, training):
    net = tf.nn.relu(tf_layers.conv(images, "c1", n_filters=32, filter_size=8, stride=4, init_scale=2**0.5))
    net = tf.nn.relu(tf_layers.conv(net, "c2", n_filters=64, filter_size=4, stride=2, init_scale=2**0.5))
    return tf_layers.linear(tf_layers.conv_to_fc(net), "fc1", n_hidden=32, init_scale=2**0.5)


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, images, training=False):
        return model(images, training)


migration = detrand.Migration(
    name="a2c_cnn",
    tf1=model,
    port=Port,
    seed_numpy=True,
    inputs=np.random.default_rng(0).normal(size=(2, 44, 44, 4)).astype(np.float32),
)
