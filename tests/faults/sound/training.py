"""Ordinary training: each optimizer of ``tf.train``, schedules, clipping, averages and update ops."""

from typing import Any

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers

import detrand
from tests.faults.tf1 import batch_norm, dense, dropout, integers, numbers


def _trained(tf1_optimizer: Any, port_optimizer: Any, steps: int = 4, **arguments: Any) -> detrand.Migration:
    """Return a perceptron with dropout that two optimizers train."""

    def tf1(x, training):
        return dense(dropout(dense(x, 6, "a", tf.nn.tanh), 0.2, training), 3, "b")

    def port():
        return keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.2), layers.Dense(3)])

    train = detrand.TrainStep(
        labels=integers(3, 8),
        tf1_loss=tf.losses.sparse_softmax_cross_entropy,
        port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer=tf1_optimizer,
        port_optimizer=port_optimizer,
        steps=steps,
        **arguments,
    )
    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(8, 5), train=train)


def gradient_descent_with_exponential_decay() -> detrand.Migration:
    def tf1_optimizer():
        rate = tf.train.exponential_decay(0.5, tf.train.get_or_create_global_step(), 2, 0.7)
        return tf.train.GradientDescentOptimizer(rate)

    schedule = keras.optimizers.schedules.ExponentialDecay
    return _trained(tf1_optimizer, lambda: keras.optimizers.SGD(schedule(0.5, 2, 0.7)))


def momentum() -> detrand.Migration:
    return _trained(lambda: tf.train.MomentumOptimizer(0.1, 0.9), lambda: keras.optimizers.SGD(0.1, momentum=0.9))


def nesterov_momentum() -> detrand.Migration:
    return _trained(
        lambda: tf.train.MomentumOptimizer(0.1, 0.8, use_nesterov=True),
        lambda: keras.optimizers.SGD(0.1, momentum=0.8, nesterov=True),
    )


def adagrad() -> detrand.Migration:
    return _trained(
        lambda: tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.2),
        lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.2, epsilon=0.0),
    )


def adadelta() -> detrand.Migration:
    return _trained(
        lambda: tf.train.AdadeltaOptimizer(1.0, rho=0.9, epsilon=1e-6),
        lambda: keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-6),
    )


def adam() -> detrand.Migration:
    return _trained(
        lambda: tf.train.AdamOptimizer(0.01, beta1=0.5), lambda: keras.optimizers.Adam(0.01, beta_1=0.5, epsilon=1e-8)
    )


def follow_the_regularized_leader() -> detrand.Migration:
    return _trained(
        lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01),
        lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01),
    )


class OldRMSprop(keras.optimizers.RMSprop):
    """RMSprop as in TF1, whose mean squares begin with 1."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        with tf.init_scope():
            for velocity in self._velocities:
                velocity.assign(np.ones(velocity.shape, np.float32))


def rmsprop_that_begins_with_one() -> detrand.Migration:
    return _trained(
        lambda: tf.train.RMSPropOptimizer(0.01, decay=0.9, epsilon=1e-5),
        lambda: OldRMSprop(0.01, rho=0.9, epsilon=1e-5),
    )


def piecewise_rate() -> detrand.Migration:
    def tf1_optimizer():
        step = tf.train.get_or_create_global_step()
        return tf.train.AdamOptimizer(tf.train.piecewise_constant(step, [1, 3], [0.1, 0.01, 0.001]))

    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.001])
    return _trained(tf1_optimizer, lambda: keras.optimizers.Adam(schedule, epsilon=1e-8), steps=6)


class ClippedDescent(tf.train.GradientDescentOptimizer):
    """Gradient descent that clips the global norm."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.3)
        return super().apply_gradients(zip(gradients, variables, strict=True), global_step, name)


def clipped_gradients() -> detrand.Migration:
    return _trained(lambda: ClippedDescent(0.5), lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.3))


class AveragedDescent(tf.train.GradientDescentOptimizer):
    """Gradient descent that keeps exponential moving averages of the weights."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        with tf.control_dependencies([super().apply_gradients(grads_and_vars, global_step, name)]):
            return tf.train.ExponentialMovingAverage(0.9).apply([variable for _, variable in grads_and_vars])


def averages_of_the_weights() -> detrand.Migration:
    return _trained(lambda: AveragedDescent(0.1), lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))


def only_the_head() -> detrand.Migration:
    return _trained(
        lambda: tf.train.AdamOptimizer(0.1), lambda: keras.optimizers.Adam(0.1, epsilon=1e-8), var_list=["b/*"]
    )


def batch_normalization_with_update_ops() -> detrand.Migration:
    def tf1(x, training):
        x = tf.nn.relu(batch_norm(dense(x, 6, "a", bias=False), training, "bn", decay=0.9))
        return dense(x, 2, "b")

    def port():
        return keras.Sequential(
            [layers.Dense(6, use_bias=False), layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Dense(2)]
        )

    train = detrand.TrainStep(
        labels=numbers(8, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        metrics={"mean": lambda labels, outputs: tf.reduce_mean(outputs)},
        steps=4,
    )
    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(8, 5), train=train)


def weight_decay_and_batches() -> detrand.Migration:
    def tf1(x, training):
        return dense(x, 2, "a", regularizer=lambda w: 0.05 * tf.nn.l2_loss(w))

    batches = [numbers(4, 3, seed=seed) for seed in range(3)]
    train = detrand.TrainStep(
        labels=lambda: [np.abs(batch[:, :2]) for batch in batches],
        tf1_loss=tf.losses.huber_loss,
        port_loss=keras.losses.Huber(),
        tf1_optimizer=lambda: tf.train.MomentumOptimizer(0.1, 0.5),
        port_optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.5),
        steps=5,
    )
    return detrand.Migration(
        tf1=tf1,
        port=lambda: keras.Sequential([layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.025))]),
        inputs=lambda: batches,
        train=train,
    )
