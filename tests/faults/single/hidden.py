"""Faults that ordinary inputs, weights or numbers of steps do not excite."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.single.optimizers import fit, schedules, step
from tests.faults.tf1 import conv, dense, numbers, old_layers
from tests.faults.triples import descent, trained


@case("hidden", "rate|schedule|boundar|optimizer", "learning.?rate|schedule|boundar")
def late_boundary(fault):
    def tf1_optimizer():
        rate = tf.train.piecewise_constant(tf.cast(step(), tf.int32), [1000, 20000], [0.1, 0.01, 0.001])
        return tf.train.GradientDescentOptimizer(rate)

    def port_optimizer():
        boundaries = [1000, 40000 if fault else 20000]
        rate = schedules.PiecewiseConstantDecay(boundaries, [0.1, 0.01, 0.001])  # FAULT
        return keras.optimizers.SGD(rate)

    return fit(tf1_optimizer, port_optimizer)


@case("hidden", "rate|schedule|decay|optimizer", "learning.?rate|schedule|minimum|end|bound|lower")
def floor_of_the_learning_rate(fault):
    def tf1_optimizer():
        rate = tf.train.exponential_decay(0.01, step(), 10000, 0.1)
        return tf.train.AdamOptimizer(tf.maximum(rate, 1e-5))

    class Floored(schedules.ExponentialDecay):
        def __call__(self, count):
            return ops.maximum(super().__call__(count), 1e-5)

    def port_optimizer():
        schedule = schedules.ExponentialDecay if fault else Floored
        return keras.optimizers.Adam(schedule(0.01, 10000, 0.1), epsilon=1e-8)  # FAULT

    return fit(tf1_optimizer, port_optimizer)


@case("hidden", "clip|optimizer", "clip")
def clipping_that_is_not_needed_yet(fault):
    class Clipped(tf.train.AdamOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, variables = zip(*grads_and_vars, strict=True)
            gradients, _ = tf.clip_by_global_norm(gradients, 40.0)
            return super().apply_gradients(list(zip(gradients, variables, strict=True)), global_step, name)

    def port_optimizer():
        norm = None if fault else 40.0
        return keras.optimizers.Adam(0.01, epsilon=1e-8, global_clipnorm=norm)  # FAULT

    return fit(lambda: Clipped(0.01), port_optimizer)


@case("hidden", "mul|scale|rescal", "factor|multipl|times|scale|1e-06|2e-06")
def tiny_outputs_of_twice_the_size(fault):
    def tf1(x, training):
        return 1e-6 * dense(dense(x, 8, "hidden", tf.tanh), 3, "forces")

    def port():
        return keras.Sequential(
            [
                layers.Dense(8, "tanh"),
                layers.Dense(3),
                layers.Rescaling(2e-6 if fault else 1e-6),  # FAULT
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5))


@case("hidden", "relu", r"relu6|\b6\b|clip|activation|max")
def relu_that_never_reaches_six(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 4, 3, activation_fn=tf.nn.relu6, scope="expand")
        return slim.conv2d(x, 2, 1, activation_fn=None, scope="project")

    def port():
        activation = layers.ReLU() if fault else layers.ReLU(6.0)  # FAULT
        return keras.Sequential([layers.Conv2D(4, 3, padding="same"), activation, layers.Conv2D(2, 1)])

    return detrand.Migration(tf1=tf1, port=port, inputs=0.01 * np.abs(numbers(2, 6, 6, 3)))


@case("hidden", "clip|minimum|maximum|log_std|log_variance", "clip|minimum|maximum|only TF1|bound")
def clipped_deviations(fault):
    def tf1(x, training):
        hidden = dense(x, 8, "hidden", tf.tanh)
        log_std = tf.clip_by_value(dense(hidden, 2, "log_std"), -20.0, 2.0)
        return dense(hidden, 2, "mean"), tf.exp(log_std)

    class Policy(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(8, "tanh")
            self.mean, self.log_std = layers.Dense(2), layers.Dense(2)

        def call(self, x, training=False):
            hidden = self.hidden(x)
            log_std = self.log_std(hidden)  # FAULT
            if not fault:
                log_std = ops.clip(log_std, -20.0, 2.0)
            return self.mean(hidden), ops.exp(log_std)  # FAULT

    return detrand.Migration(tf1=tf1, port=Policy, inputs=0.1 * numbers(4, 5))


@case("hidden", "loss", r"\bsum\b|\bmean\b|batch|times|divi|reduction")
def loss_of_a_batch_of_one(fault):
    def tf1(x, training):
        return dense(conv(x, 4, 3, "conv", tf.nn.relu, strides=4)[:, 0, 0], 3, "logits")

    def port():
        x = inputs = keras.Input((4, 4, 2))
        x = layers.Conv2D(4, 3, 4, padding="same", activation="relu")(x)
        return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))

    reduction = "sum" if fault else "sum_over_batch_size"
    port_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)  # FAULT
    return trained(
        tf1,
        port,
        numbers(1, 4, 4, 2),
        np.array([2], np.int32),
        tf.losses.sparse_softmax_cross_entropy,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@case("hidden", "transpose|permute|swap|axes", "transpos|permut|ax[ei]s|only the port")
def constant_image_with_swapped_axes(fault):
    def tf1(x, training):
        x = tf.reduce_mean(tf.nn.relu(conv(x, 4, 1, "conv")), 3)
        return tf.reduce_max(x, 1)

    def port():
        x = inputs = keras.Input((5, 5, 3))
        x = layers.Permute((2, 1, 3))(x) if fault else x  # FAULT
        x = layers.Conv2D(4, 1, activation="relu")(x)
        return keras.Model(inputs, ops.max(ops.mean(x, 3), 1))

    return detrand.Migration(tf1=tf1, port=port, inputs=np.ones((2, 5, 5, 3), np.float32))


@case("hidden", "tanh|residual|dense|activation", "tanh|activation")
def last_layer_of_zeros(fault):
    def tf1(x, training):
        y = dense(x, 8, "up", tf.tanh)
        return x + dense(y, 5, "down", initializer=tf.zeros_initializer())

    class Fixup(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.up = tf_keras.layers.Dense(8, "sigmoid" if fault else "tanh")  # FAULT
            self.down = tf_keras.layers.Dense(5, kernel_initializer="zeros")

        def call(self, x, training=False):
            return x + self.down(self.up(x))

    return detrand.Migration(tf1=tf1, port=Fixup, inputs=numbers(4, 5))


@case("hidden", "epsilon|add|log|maximum", r"epsilon|1e-0?[58]|constant|adds|maximum|clip")
def epsilon_inside_of_a_logarithm(fault):
    def tf1(x, training):
        probabilities = tf.nn.softmax(dense(x, 4, "logits"))
        return tf.log(probabilities + 1e-8)

    class LogProbability(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf_keras.initializers.GlorotUniform()([5, 4]), name="w")
            self.b = tf.Variable(tf.zeros([4]), name="b")

        def __call__(self, x, training=False):
            probabilities = tf.nn.softmax(x @ self.w + self.b)
            return tf.math.log(probabilities + (1e-5 if fault else 1e-8))  # FAULT

    return detrand.Migration(tf1=tf1, port=LogProbability, inputs=0.1 * numbers(4, 5))


@case("hidden", "relu|activation|gate", "activation|relu|gelu")
def relu_that_is_dead(fault):
    def tf1(x, training):
        with tf.variable_scope("gate"):
            w = tf.get_variable("w", [4, 6])
            b = tf.get_variable("b", [6], initializer=tf.constant_initializer(-30.0))
        return dense(tf.nn.relu(tf.matmul(x, w) + b), 3, "out")

    def port():
        bias = keras.initializers.Constant(-30.0)
        activation = "gelu" if fault else "relu"
        gate = layers.Dense(6, activation, bias_initializer=bias)  # FAULT
        return keras.Sequential([gate, layers.Dense(3)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 4))
