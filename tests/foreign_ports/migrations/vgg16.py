"""VGG16 of keras.applications, and tf_slim's vgg_16."""

import dataclasses

import keras
import numpy as np
import tf_slim
from tf_slim.nets import vgg

import detrand

detrand.enable_v1_layers()


def tf1(images, training, keep_prob=0.5, weight_decay=0.0005):
    with tf_slim.arg_scope(vgg.vgg_arg_scope(weight_decay)):
        return vgg.vgg_16(images, 5, is_training=training, dropout_keep_prob=keep_prob)[0]


def port():
    return keras.applications.VGG16(weights=None, classes=5, classifier_activation=None)


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(1, 224, 224, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match: vgg_16/fc6/weights"],
    tf1=lambda images, training: tf1(images, training, keep_prob=1.0, weight_decay=0.0),
)
