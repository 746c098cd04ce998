"""Ports of TF1 programs that use the shim, with or without a planted fault."""

import keras
import tensorflow as tf
import tf_slim as slim

from detrand import track_tf1_style_variables

v1 = tf.compat.v1


def shim_port(program, kind=keras.layers.Layer, **changes):
    """Return a class whose instances are ports of a TF1 program, which gets ``changes`` as keyword arguments."""

    class Port(kind):
        @track_tf1_style_variables
        def call(self, *inputs, training=False):
            return program(*inputs, training=training, **changes)

        if kind is tf.Module:
            __call__ = call

    return Port


class Normalized(keras.layers.Layer):
    """A weight, unnamed batch normalization and dropout, in TF1 style."""

    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.seen = []

    @track_tf1_style_variables
    def call(self, inputs, training=None):
        self.seen.append(training)
        with v1.variable_scope("weights", regularizer=slim.l2_regularizer(0.5)):
            w = v1.get_variable("w", [inputs.shape[-1], self.units])
        outputs = v1.layers.batch_normalization(v1.matmul(inputs, w), training=training, momentum=0.5)
        return v1.layers.dropout(outputs, 0.5, training=training)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


NORMALIZED = ["weights/w"] + [f"batch_normalization/{v}" for v in ("gamma", "beta", "moving_mean", "moving_variance")]
