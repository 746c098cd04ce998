"""The ReLU representation of tensorrec 0.26."""

import os
import sys
import types

import contrib
import keras
import numpy as np

import detrand

for package in ("tensorrec",):  # without running __init__.py, which imports what trains the models
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [os.path.join(path, *package.split(".")) for path in sys.path]
with contrib.tensorflow_1():
    import tensorflow as tf
    from tensorrec import representation_graphs


def model(features, training):
    sparse = tf.sparse.from_dense(features)
    return representation_graphs.ReLURepresentationGraph().connect_representation_graph(sparse, 4, 6, "user")[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, features, training=False):
        return model(features, training)


migration = detrand.Migration(
    name="tensorrec",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32),
)
