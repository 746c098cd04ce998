"""Programs that draw random numbers: an op of each family, layers of Keras 3, and a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf

Draw = Callable[[], object]


class Program(NamedTuple):
    """A program that draws.

    Attributes:
      name: its name on the command line and in the tables.
      make: prepares it, eagerly or in the graph that is being built, and returns a function that draws.
      draws_in_graph: number of draws in a graph that is built.
      compiles: whether XLA compiles it in detrand's scope.
    """

    name: str
    make: Callable[[], Draw]
    draws_in_graph: int = 10
    compiles: bool = True


_SHAPE = (3, 3)
_MANY = (1000, 1000)


def _of_constant(draw: Callable[[tf.Tensor], object], shape: tuple[int, ...]) -> Callable[[], Draw]:
    def make() -> Draw:
        constant = tf.ones(shape)
        return lambda: draw(constant)

    return make


def _parameterized_truncated_normal() -> Draw:
    means, deviations, least, most = (tf.constant(number) for number in (0.0, 1.0, -2.0, 2.0))
    return lambda: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=_SHAPE, means=means, stdevs=deviations, minvals=least, maxvals=most
    )


OPS = (
    Program("uniform", lambda: lambda: tf.random.uniform(_SHAPE)),
    Program("uniform_million", lambda: lambda: tf.random.uniform(_MANY)),
    Program("normal", lambda: lambda: tf.random.normal(_SHAPE)),
    Program("truncated_normal", lambda: lambda: tf.random.truncated_normal(_SHAPE)),
    Program("parameterized_truncated_normal", _parameterized_truncated_normal, compiles=False),
    Program("integers", lambda: lambda: tf.random.uniform(_SHAPE, 0, 10, tf.int32)),
    Program("gamma", lambda: lambda: tf.random.gamma(_SHAPE, 2.5), compiles=False),
    Program("poisson", lambda: lambda: tf.random.poisson(_SHAPE, 2.5), compiles=False),
    Program("categorical", _of_constant(lambda logits: tf.random.categorical(logits, 3), _SHAPE)),
    Program("shuffle", _of_constant(tf.random.shuffle, _SHAPE)),
    Program("dropout", _of_constant(lambda inputs: tf.nn.dropout(inputs, 0.1), _SHAPE)),
)


def _training_step() -> Draw:
    width, layers, rate, learning_rate = 16, 6, 0.1, 0.01
    inputs = tf.ones((8, width))
    weights = [tf.Variable(tf.eye(width)) for _ in range(layers)]

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = inputs
            for weight in weights:
                hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(hidden, weight)), rate)
            loss = tf.reduce_mean(hidden**2)
        gradients = tape.gradient(loss, weights)
        updates = [weight.assign_sub(learning_rate * g) for weight, g in zip(weights, gradients, strict=True)]
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    return step


TRAINING_STEP = Program("training_step", _training_step, draws_in_graph=1)


def _of_layer(make_layer: Callable[[], keras.layers.Layer]) -> Callable[[], Draw]:
    def make() -> Draw:
        layer, inputs = make_layer(), tf.ones((8, 16))
        return lambda: layer(inputs, training=True)

    return make


def _new_dense_layer() -> Draw:
    inputs = tf.ones((8, 16))
    return lambda: keras.layers.Dense(16)(inputs)


KERAS3 = (
    Program("dropout_layer", _of_layer(lambda: keras.layers.Dropout(0.1))),
    Program("gaussian_noise_layer", _of_layer(lambda: keras.layers.GaussianNoise(0.1))),
    Program("new_dense_layer", _new_dense_layer),
)
