"""InceptionV3 of keras.applications, and tf_slim's inception_v3."""

import dataclasses

import keras
import numpy as np
import tf_slim
from tf_slim.nets import inception

import detrand

detrand.enable_v1_layers()


def tf1(images, training, decay=0.9997, keep=0.8):
    with tf_slim.arg_scope(inception.inception_v3_arg_scope(batch_norm_decay=decay)):
        return inception.inception_v3(images, 5, training, keep, create_aux_logits=False)[0]


def port():
    return keras.applications.InceptionV3(weights=None, input_shape=(75, 75, 3), classes=5, classifier_activation=None)


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(8, 75, 75, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match", "regularizers-match"],
    tf1=lambda images, training: tf1(images, training, decay=0.99, keep=1.0),
)
