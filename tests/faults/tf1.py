"""Layers of TF1 programs, written by hand with ``get_variable``."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import detrand


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Return int32 numbers below ``high``."""
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def zeros(name: str, shape: Sequence[int], **arguments: Any) -> Any:
    return tf.get_variable(name, shape, initializer=tf.zeros_initializer(), **arguments)


def ones(name: str, shape: Sequence[int], **arguments: Any) -> Any:
    return tf.get_variable(name, shape, initializer=tf.ones_initializer(), **arguments)


def dense(x: Any, units: int, name: str, activation: Any = None, bias: bool = True, **arguments: Any) -> Any:
    with tf.variable_scope(name):
        x = tf.tensordot(x, tf.get_variable("w", [x.shape[-1], units], **arguments), 1)
        x = x + zeros("b", [units]) if bias else x
        return activation(x) if activation else x


def conv(
    x: Any,
    channels: int,
    size: int,
    name: str,
    activation: Any = None,
    bias: bool = True,
    strides: int = 1,
    padding: str = "SAME",
    **arguments: Any,
) -> Any:
    with tf.variable_scope(name):
        w = tf.get_variable("filter", [size, size, x.shape[-1], channels], **arguments)
        x = tf.nn.conv2d(x, w, [1, strides, strides, 1], padding)
        x = tf.nn.bias_add(x, zeros("b", [channels])) if bias else x
        return activation(x) if activation else x


def deconv(x: Any, channels: int, size: int, name: str, strides: int, activation: Any = None) -> Any:
    with tf.variable_scope(name):
        w = tf.get_variable("filter", [size, size, channels, x.shape[-1]])
        shape = [tf.shape(x)[0], x.shape[1] * strides, x.shape[2] * strides, channels]
        x = tf.nn.bias_add(tf.nn.conv2d_transpose(x, w, shape, [1, strides, strides, 1]), zeros("b", [channels]))
        return activation(x) if activation else x


def batch_norm(x: Any, training: bool, name: str, epsilon: float = 1e-3, decay: float = 0.99) -> Any:
    with tf.variable_scope(name):
        shape = [x.shape[-1]]
        gamma, beta = ones("scale", shape), zeros("offset", shape)
        averages = zeros("mean", shape, trainable=False), ones("var", shape, trainable=False)
        if not training:
            return tf.nn.batch_normalization(x, *averages, beta, gamma, epsilon)
        moments = tf.nn.moments(x, list(range(len(x.shape) - 1)))
        for average, moment in zip(averages, moments, strict=True):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average.assign_sub((average - moment) * (1 - decay)))
        return tf.nn.batch_normalization(x, *moments, beta, gamma, epsilon)


def dropout(x: Any, rate: float, training: bool) -> Any:
    return tf.nn.dropout(x, rate=rate) if training else x


def old_layers(program: Any) -> Any:
    """Decorate a TF1 program that uses ``tf.layers`` or ``tf.nn.rnn_cell``."""

    @functools.wraps(program)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with detrand.enable_v1_layers():
            return program(*args, **kwargs)

    return wrapped
