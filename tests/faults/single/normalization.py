"""Batch, layer, instance and local response normalization."""

import keras
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import batch_norm, conv, dense, numbers, old_layers, ones, zeros


@case("constant", "batch.?norm", "epsilon")
def slim_batch_norm_epsilon(fault):
    @old_layers
    def tf1(x, training):
        with slim.arg_scope([slim.batch_norm], is_training=training, decay=0.99, scale=True):
            x = slim.conv2d(x, 6, 3, normalizer_fn=slim.batch_norm, scope="conv1")
            x = slim.conv2d(x, 8, 3, stride=2, normalizer_fn=slim.batch_norm, scope="conv2")
        return slim.fully_connected(tf.reduce_mean(x, [1, 2]), 5, activation_fn=None, scope="logits")

    def port():
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.99, epsilon=1e-3)(x))
        x = layers.Conv2D(8, 3, 2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.99, epsilon=1e-5 if fault else 1e-3)(x)  # FAULT
        x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
        return keras.Model(inputs, layers.Dense(5)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 8, 8, 3))


@case("constant", r"batch.?norm|moving|\bbn\b", "momentum|decay")
def batch_norm_momentum(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.dense(x, 6, name="hidden")
        x = tf.layers.batch_normalization(x, training=training, name="bn")
        return tf.layers.dense(tf.nn.relu(x), 2, name="out")

    def port():
        momentum = 0.9 if fault else 0.99
        return tf_keras.Sequential(
            [
                tf_keras.layers.Dense(6, name="hidden"),
                tf_keras.layers.BatchNormalization(momentum=momentum, name="bn"),  # FAULT
                tf_keras.layers.ReLU(),
                tf_keras.layers.Dense(2, name="out"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(8, 5))


def layer_norm(x, name, epsilon):
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        scaled = (x - mean) * tf.rsqrt(variance + epsilon)
        return scaled * ones("gamma", [x.shape[-1]]) + zeros("beta", [x.shape[-1]])


@case("constant", "norm", "epsilon|1e-12|0.001")
def layer_norm_default_epsilon(fault):
    def tf1(x, training):
        x = x + dense(tf.nn.relu(dense(x, 12, "up")), 6, "down")
        return layer_norm(x, "norm", 1e-12)

    class Block(keras.Model):
        def __init__(self):
            super().__init__()
            self.up, self.down = layers.Dense(12, "relu"), layers.Dense(6)
            self.norm = layers.LayerNormalization(epsilon=1e-3 if fault else 1e-12)  # FAULT

        def call(self, x, training=False):
            return self.norm(x + self.down(self.up(x)))

    return detrand.Migration(tf1=tf1, port=Block, inputs=numbers(2, 5, 6))


@case("axis", "norm|moments|mean", r"(?<!order of )\bax[ei]s\b|dimension")
def instance_norm_over_channels(fault):
    def tf1(x, training):
        x = conv(x, 4, 3, "conv")
        mean, variance = tf.nn.moments(x, [1, 2], keep_dims=True)
        x = ones("scale", [4]) * (x - mean) / tf.sqrt(variance + 1e-5) + zeros("offset", [4])
        return conv(tf.nn.relu(x), 3, 1, "rgb", tf.tanh)

    class InstanceNorm(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")
            self.offset = self.add_weight(shape=shape[-1:], initializer="zeros", name="offset")

        def call(self, x):
            mean, variance = ops.moments(x, [1, 2, 3] if fault else [1, 2], keepdims=True)  # FAULT
            return self.scale * (x - mean) / ops.sqrt(variance + 1e-5) + self.offset

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, padding="same"),
                InstanceNorm(),
                layers.ReLU(),
                layers.Conv2D(3, 1, activation="tanh"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("constant", "norm|sqrt|epsilon|add", "epsilon|order|takes different")
def epsilon_outside_the_root(fault):
    def tf1(x, training):
        return dense(layer_norm(dense(x, 8, "embed"), "norm", 1e-3), 4, "out")

    class Norm(layers.Layer):
        def build(self, shape):
            self.gamma = self.add_weight(shape=shape[-1:], initializer="ones", name="gamma")
            self.beta = self.add_weight(shape=shape[-1:], initializer="zeros", name="beta")

        def call(self, x):
            variance = ops.var(x, -1, keepdims=True)
            std = ops.sqrt(variance) + 1e-3 if fault else ops.sqrt(variance + 1e-3)  # FAULT
            return (x - ops.mean(x, -1, keepdims=True)) / std * self.gamma + self.beta

    def port():
        return keras.Sequential([layers.Dense(8), Norm(), layers.Dense(4)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(6, 5))


@case("flag", "norm", "training|moving|batch statistics|batch's|moments")
def batch_norm_never_trains(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 6, 3, activation_fn=None, biases_initializer=None, scope="conv")
        x = slim.batch_norm(x, is_training=training, decay=0.9, activation_fn=tf.nn.relu, scope="bn")
        return slim.conv2d(x, 2, 1, activation_fn=None, scope="mask")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(6, 3, padding="same", use_bias=False)
            self.norm = layers.BatchNormalization(momentum=0.9, scale=False)
            self.mask = layers.Conv2D(2, 1)

        def call(self, x, training=False):
            x = self.conv(x)
            x = self.norm(x, training=False if fault else training)  # FAULT
            return self.mask(ops.relu(x))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 8, 8, 2))


@case("flag", "norm", "training|moving|batch statistics|batch's|moments")
def batch_norm_always_trains(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.conv2d(x, 4, 3, padding="same", use_bias=False, name="conv")
        x = tf.nn.relu(tf.layers.batch_normalization(x, momentum=0.9, training=training, name="bn"))
        return tf.layers.dense(tf.layers.flatten(x), 3, name="logits")

    class Port(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = tf_keras.layers.Conv2D(4, 3, padding="same", use_bias=False)
            self.norm = tf_keras.layers.BatchNormalization(momentum=0.9)
            self.logits = tf_keras.layers.Dense(3)

        def call(self, x, training=False):
            x = tf.nn.relu(self.norm(self.conv(x), training=True if fault else training))  # FAULT
            return self.logits(tf.reshape(x, [-1, 144]))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 6, 6, 1))


@case("variables", "gamma|norm", "gamma|scale")
def batch_norm_with_a_gamma(fault):
    @old_layers
    def tf1(x, training):
        with slim.arg_scope([slim.batch_norm], is_training=training, decay=0.95):
            x = slim.fully_connected(x, 8, normalizer_fn=slim.batch_norm, scope="fc1")
        return slim.fully_connected(x, 4, activation_fn=None, scope="fc2")

    def port():
        return keras.Sequential(
            [
                layers.Dense(8, use_bias=False),
                layers.BatchNormalization(momentum=0.95, scale=fault),  # FAULT
                layers.ReLU(),
                layers.Dense(4),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(8, 6))


@case("axis", "norm", r"(?<!order of )\bax[ei]s\b|channel|data.format")
def batch_norm_of_rows(fault):
    def tf1(x, training):
        x = tf.nn.relu(batch_norm(conv(x, 6, 3, "conv", bias=False), training, "bn", decay=0.9))
        return dense(tf.reduce_mean(x, [1, 2]), 3, "logits")

    def port():
        x = inputs = keras.Input((6, 6, 2))
        x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(axis=1 if fault else -1, momentum=0.9)(x)  # FAULT
        x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
        return keras.Model(inputs, layers.Dense(3)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6, 6, 2))


@case("constant", "LRN|response", "alpha")
def local_response_alpha(fault):
    def tf1(x, training):
        x = conv(x, 8, 3, "conv1", tf.nn.relu)
        x = tf.nn.lrn(x, depth_radius=2, bias=1.0, alpha=2e-2, beta=0.75)
        return conv(tf.nn.max_pool2d(x, 2, 2, "VALID"), 4, 3, "conv2")

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            glorot = tf_keras.initializers.GlorotUniform()
            self.w1 = tf.Variable(glorot([3, 3, 1, 8]), name="w1")
            self.b1 = tf.Variable(tf.zeros([8]), name="b1")
            self.w2 = tf.Variable(glorot([3, 3, 8, 4]), name="w2")
            self.b2 = tf.Variable(tf.zeros([4]), name="b2")

        def __call__(self, x, training=False):
            x = tf.nn.relu(tf.nn.conv2d(x, self.w1, 1, "SAME") + self.b1)
            alpha = 2e-2 / 5 if fault else 2e-2
            x = tf.nn.local_response_normalization(x, 2, bias=1.0, alpha=alpha, beta=0.75)  # FAULT
            return tf.nn.conv2d(tf.nn.max_pool2d(x, 2, 2, "VALID"), self.w2, 1, "SAME") + self.b2

    return detrand.Migration(tf1=tf1, port=Net, inputs=10 * numbers(2, 8, 8, 1))
