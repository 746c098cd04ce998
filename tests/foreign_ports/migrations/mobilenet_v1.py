"""MobileNet of keras.applications, and mobilenet_v1 of slim's model library."""

import dataclasses

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets import mobilenet_v1


def tf1(images, training, decay=0.9997):
    with contrib.slim.arg_scope(mobilenet_v1.mobilenet_v1_arg_scope(training, batch_norm_decay=decay)):
        return mobilenet_v1.mobilenet_v1(images, 5, is_training=training)[0]


def port():
    return keras.applications.MobileNet(weights=None, input_shape=(64, 64, 3), classes=5, classifier_activation=None)


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(8, 64, 64, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match", "regularizers-match"],
    tf1=lambda images, training: tf1(images, training, decay=0.99),
)
