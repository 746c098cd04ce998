"""Ports of TF1 programs by the shim, with or without a planted fault."""

import keras
import tensorflow as tf

from detrand import track_tf1_style_variables


def shim_port(program, kind=keras.layers.Layer, **changes):
    """Returns a class whose instances are ports of a TF1 program, which gets ``changes`` as keyword arguments."""

    class Port(kind):
        @track_tf1_style_variables
        def call(self, *inputs, training=False):
            return program(*inputs, training=training, **changes)

        if kind is tf.Module:
            __call__ = call

    return Port
