"""A classifier for TensorFlow 1, and its port to Keras 3, which has one fault."""

import keras
import numpy as np
import tensorflow as tf

import detrand


def classifier(images, training):
    """Return the logits of the model, which was written for TensorFlow 1."""
    v1 = tf.compat.v1
    with v1.variable_scope("hidden"):
        kernel = v1.get_variable("kernel", [64, 32])
        bias = v1.get_variable("bias", [32], initializer=v1.zeros_initializer())
        hidden = tf.nn.relu(tf.matmul(images, kernel) + bias)
    if training:
        hidden = v1.nn.dropout(hidden, keep_prob=0.8)
    with v1.variable_scope("logits"):
        kernel = v1.get_variable("kernel", [32, 10])
        bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
        return tf.matmul(hidden, kernel) + bias


def make_port():
    """Return a new port, with new weights."""
    images = keras.Input([64])
    hidden = keras.layers.Dense(32, activation="relu", name="hidden")(images)
    hidden = keras.layers.Dropout(0.8, name="dropout")(hidden)
    logits = keras.layers.Dense(10, name="logits")(hidden)
    return keras.Model(images, logits, name="port")


migration = detrand.Migration(
    tf1=classifier,
    port=make_port,
    inputs=np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32),
)
