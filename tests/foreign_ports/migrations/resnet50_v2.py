"""ResNet50V2 of keras.applications, and tf_slim's resnet_v2_50."""

import dataclasses

import keras
import numpy as np
import tf_slim
from tf_slim.nets import resnet_v2

import detrand

detrand.enable_v1_layers()
SETTINGS = {"pool1_pad": {"padding": 0}, "pool1_pool": {"padding": "same"}}


def tf1(images, training):
    with tf_slim.arg_scope(resnet_v2.resnet_arg_scope()):
        return resnet_v2.resnet_v2_50(images, 5, is_training=training)[0][:, 0, 0]


def port():
    return keras.applications.ResNet50V2(weights=None, input_shape=(65, 65, 3), classes=5, classifier_activation=None)


def as_in_tf1(layer):
    of_norm = {"epsilon": 1e-5, "momentum": 0.997} if isinstance(layer, keras.layers.BatchNormalization) else {}
    return layer.from_config({**layer.get_config(), **of_norm, **SETTINGS.get(layer.name, {})})


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(8, 65, 65, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match", "regularizers-match"],
    port=lambda: keras.models.clone_model(port(), clone_function=as_in_tf1),
)
