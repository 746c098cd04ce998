"""ResNet50 of keras.applications, and tf_slim's resnet_v1_50."""

import dataclasses

import keras
import numpy as np
import tf_slim
from tf_slim.nets import resnet_utils, resnet_v1

import detrand

detrand.enable_v1_layers()


def tf1(images, training):
    with tf_slim.arg_scope(resnet_v1.resnet_arg_scope()):
        return resnet_v1.resnet_v1_50(images, 5, is_training=training)[0][:, 0, 0]


def port():
    return keras.applications.ResNet50(weights=None, input_shape=(65, 65, 3), classes=5, classifier_activation=None)


def block(number, depth, units):
    unit = {"depth": 4 * depth, "depth_bottleneck": depth, "stride": 1}
    first = {**unit, "stride": 1 if number == 1 else 2}
    return resnet_utils.Block(f"block{number}", resnet_v1.bottleneck, [first] + [unit] * (units - 1))


def stride_in_first_unit(images, training):
    blocks = [block(1, 64, 3), block(2, 128, 4), block(3, 256, 6), block(4, 512, 3)]
    with tf_slim.arg_scope(resnet_v1.resnet_arg_scope()):
        return resnet_v1.resnet_v1(images, blocks, 5, is_training=training)[0][:, 0, 0]


def as_in_tf1(layer):
    settings = {}
    if isinstance(layer, keras.layers.BatchNormalization):
        settings = {"epsilon": 1e-5, "momentum": 0.997}
    elif isinstance(layer, keras.layers.Conv2D):
        strides = {"_block1_1_conv": 1, "_block1_2_conv": 1 if layer.name.startswith("conv2") else 2}
        settings = {"use_bias": False, "strides": strides.get(layer.name[5:], layer.strides)}
    return layer.from_config({**layer.get_config(), **settings})


as_found = detrand.Migration(
    tf1=tf1, port=port, inputs=np.random.default_rng(0).normal(size=(8, 65, 65, 3)).astype("f4")
)
configured = dataclasses.replace(
    as_found,
    name="configured",
    expect=["initializers-match", "regularizers-match"],
    tf1=stride_in_first_unit,
    port=lambda: keras.models.clone_model(port(), clone_function=as_in_tf1),
)
