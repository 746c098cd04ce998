"""Data, losses and optimizers of the migrations' training, equal in both programs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow

from detrand import TrainStep

tf = tensorflow.compat.v1
STEPS = 3


def random(*shape: int, low: float = -1.0) -> np.ndarray:
    """Return numbers from ``low`` to 1."""
    return np.random.default_rng(sum(shape)).uniform(low, 1, shape).astype(np.float32)


def classes(size: int, number: int) -> np.ndarray:
    """Return class numbers."""
    return (np.arange(size, dtype=np.int32) * 5 + 1) % number


def train_step(labels: Any, loss: Any, optimizers: tuple[Any, Any], **arguments: Any) -> TrainStep:
    """Return a training; ``loss`` is a function for both programs, or a pair of functions, TF1's first."""
    tf1_loss, port_loss = loss if isinstance(loss, tuple) else (loss, loss)
    tf1_optimizer, port_optimizer = optimizers
    return TrainStep(
        labels=labels,
        tf1_loss=tf1_loss,
        port_loss=port_loss,
        tf1_optimizer=tf1_optimizer,
        port_optimizer=port_optimizer,
        steps=STEPS,
        **arguments,
    )


SPARSE_CROSS_ENTROPY = (
    tf.losses.sparse_softmax_cross_entropy,
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
SIGMOID_CROSS_ENTROPY = (
    lambda labels, logits: tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)),
    keras.losses.BinaryCrossentropy(from_logits=True),
)
MEAN_SQUARE = (tf.losses.mean_squared_error, keras.losses.MeanSquaredError())
ACCURACY = {
    "accuracy": (
        lambda labels, logits: tf.metrics.accuracy(labels, tf.argmax(logits, -1)),
        keras.metrics.SparseCategoricalAccuracy(),
    )
}


class RMSprop(keras.optimizers.RMSprop):
    """Keras's RMSprop, with a mean square that starts at 1, as in TF1."""

    def add_optimizer_variables(self, variables: Any, name: str, initializer: Any = "zeros") -> Any:
        return super().add_optimizer_variables(variables, name, "ones" if name == "velocity" else initializer)


def added_up(optimizer: type[keras.optimizers.Optimizer]) -> type[keras.optimizers.Optimizer]:
    """Return a Keras optimizer that gets dense gradients, because it would square each slice of a row separately."""

    class AddedUp(optimizer):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)

    return AddedUp


def clipped(optimizer: type[tf.train.Optimizer], norm: float) -> type[tf.train.Optimizer]:
    """Return a TF1 optimizer that clips gradients by their global norm between its two methods, as programs did."""

    class Clipped(optimizer):
        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            gradients, _ = tf.clip_by_global_norm(gradients, norm)
            return super().apply_gradients(zip(gradients, variables, strict=True), global_step, name)

    return Clipped


def _decayed(decay: Any) -> Any:
    def make() -> tf.train.Optimizer:
        return tf.train.GradientDescentOptimizer(decay(tf.train.get_or_create_global_step()))

    return make


SGD = (lambda: tf.train.GradientDescentOptimizer(0.1), lambda: keras.optimizers.SGD(0.1))
MOMENTUM = (lambda: tf.train.MomentumOptimizer(0.05, 0.9), lambda: keras.optimizers.SGD(0.05, momentum=0.9))
NESTEROV = (
    lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
)
ADAM = (lambda: tf.train.AdamOptimizer(0.01), lambda: keras.optimizers.Adam(0.01, epsilon=1e-8))
ADAM_OF_SLICES = (ADAM[0], lambda: added_up(keras.optimizers.Adam)(0.01, epsilon=1e-8))
CLIPPED_ADAM = (
    lambda: clipped(tf.train.AdamOptimizer, 0.1)(0.01),
    lambda: keras.optimizers.Adam(0.01, epsilon=1e-8, global_clipnorm=0.1),
)
RMSPROP = (
    lambda: tf.train.RMSPropOptimizer(0.01, decay=0.9, momentum=0.5, epsilon=1e-3),
    lambda: RMSprop(0.01, rho=0.9, momentum=0.5, epsilon=1e-3),
)
ADAGRAD = (
    lambda: tf.train.AdagradOptimizer(0.05, initial_accumulator_value=0.1),
    lambda: keras.optimizers.Adagrad(0.05, initial_accumulator_value=0.1, epsilon=0.0),
)
ADADELTA_OF_SLICES = (
    lambda: tf.train.AdadeltaOptimizer(1.0, rho=0.95, epsilon=1e-6),
    lambda: added_up(keras.optimizers.Adadelta)(1.0, rho=0.95, epsilon=1e-6),
)
FTRL = (
    lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01),
    lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01),
)
STAIRCASE = (
    _decayed(lambda step: tf.train.exponential_decay(0.1, step, 2, 0.5, staircase=True)),
    lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True)),
)
POLYNOMIAL = (
    _decayed(lambda step: tf.train.polynomial_decay(0.1, step, 5, 0.01, power=2.0)),
    lambda: keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.1, 5, 0.01, power=2.0)),
)
PIECEWISE = (
    _decayed(lambda step: tf.train.piecewise_constant(step, [0, 1], [0.1, 0.05, 0.01])),
    lambda: keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.1, 0.05, 0.01])),
)
