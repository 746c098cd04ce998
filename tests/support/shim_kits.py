"""The official decorator and detrand's, each with every kind of object whose methods it decorates."""

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
from tf_keras.src.legacy_tf_layers import variable_scope_shim as official

import detrand
from detrand import variables_of
from tests.support.tf1_referee import WAYS

tf = tensorflow.compat.v1

ONES = np.ones((5, 5), np.float32)


class Kit:
    """A decorator, and the kind of objects whose methods it decorates.

    Args:
      base: what the objects are.
      shim: where the decorator is.
    """

    def __init__(self, base, shim):
        self.base, self.shim = base, shim
        self.keras = keras if base is keras.layers.Layer else tf_keras

    def owner(self, call, **attributes):
        """Return an object whose decorated method runs `call(self, x, training)`, and which can be called."""

        class Owner(self.base):
            @self.shim.track_tf1_style_variables
            def call(self, inputs, training=None):
                return call(self, inputs, training)

            if self.base is tensorflow.Module:
                __call__ = call

        owner = Owner()
        for name, attribute in attributes.items():
            setattr(owner, name, attribute)
        return owner


KITS = {
    "official": Kit(tf_keras.layers.Layer, official),
    "official_module": Kit(tensorflow.Module, official),
    "keras_3": Kit(keras.layers.Layer, detrand),
    "tf_keras": Kit(tf_keras.layers.Layer, detrand),
    "module": Kit(tensorflow.Module, detrand),
}
OURS = ["keras_3", "tf_keras", "module"]
LAYERS = ["official", "keras_3", "tf_keras"]
every_kit = pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
every_layer = pytest.mark.parametrize("kit", [KITS[name] for name in LAYERS], ids=LAYERS)
both_ways = pytest.mark.parametrize("way", WAYS)


def by_name(owner):
    """Return an object's variables by their names in TF1."""
    if isinstance(owner, keras.layers.Layer):
        return dict(zip(variables_of(owner), owner.weights, strict=True))
    return {variable.name.removesuffix(":0"): variable for variable in owner.variables}


def total(losses):
    return np.sum([np.array(loss) for loss in losses])


def dense_of_get_variable(x, units, scope):
    with tf.variable_scope(scope):
        kernel = tf.get_variable(
            "kernel", [x.shape[-1], units], initializer=tf.ones_initializer(), regularizer=tf_keras.regularizers.L2()
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def of_get_variable(self, x, training):
    x = dense_of_get_variable(x, 10, "dense_one")
    with tf.variable_scope("nested_scope"):
        return dense_of_get_variable(x, 10, "dense_two")


def of_v1_layers(self, x, training):
    x = tf.layers.dense(x, 10, name="dense_one", kernel_initializer=tf.ones_initializer, kernel_regularizer="l2")
    with tf.variable_scope("nested_scope"):
        return tf.layers.dense(
            x, 10, name="dense_two", kernel_initializer=tf.ones_initializer(), kernel_regularizer="l2"
        )


def halved(value):
    return value / 2


def model_with(kit, **options):
    def create():
        inputs = kit.keras.Input((5, 5))
        dense = kit.keras.layers.Dense(10, name="dense", kernel_initializer="ones", **options)
        return kit.keras.Model(inputs, dense(inputs))

    return create
