"""The conv encoder of OpenNMT-tf 1.25."""

import os
import sys
import types

import contrib
import keras
import numpy as np
import tensorflow

import detrand

for package in ("opennmt",):  # without running __init__.py, which imports what trains the models
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [os.path.join(path, *package.split(".")) for path in sys.path]
tensorflow.compat.v1.estimator = types.SimpleNamespace(
    ModeKeys=types.SimpleNamespace(TRAIN="train", EVAL="eval", PREDICT="infer")
)
with contrib.tensorflow_1():
    from opennmt import encoders


def model(embeddings, training):
    mode = "train" if training else "eval"
    return encoders.ConvEncoder(2, 8, position_encoder=None).encode(embeddings, sequence_length=[7, 5], mode=mode)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, embeddings, training=False):
        return model(embeddings, training)


migration = detrand.Migration(
    name="opennmt_conv",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 7, 8)).astype(np.float32),
)
