"""MobileNetV2 of keras.applications, and mobilenet_v2 of slim's model library."""

import dataclasses

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets.mobilenet import mobilenet_v2


def tf1(images, training, decay=0.997, keep=0.8):
    scope = mobilenet_v2.training_scope(is_training=training, dropout_keep_prob=keep, bn_decay=decay)
    with contrib.slim.arg_scope(scope):
        return mobilenet_v2.mobilenet(images, 5)[0]


def port():
    return keras.applications.MobileNetV2(weights=None, input_shape=(64, 64, 3), classes=5, classifier_activation=None)


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(8, 64, 64, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match", "regularizers-match"],
    tf1=lambda images, training: tf1(images, training, decay=0.999, keep=1.0),
)
