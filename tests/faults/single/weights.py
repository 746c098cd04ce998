"""Shared weights, initializers, seeds and regularizers."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import conv, dense, dropout, integers, numbers, old_layers, zeros


@case("sharing", "table|embedding|dense|kernel", "tied|tying|shar(es|ed|ing)|transpos|reuse")
def output_projection_not_tied(fault):
    def tf1(ids, training):
        table = tf.get_variable("table", [9, 6], initializer=tf.random_normal_initializer(stddev=0.3))
        x = dense(tf.nn.embedding_lookup(table, ids), 6, "mix", tf.tanh)
        return tf.tensordot(x, table, [[2], [1]])

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            normal = keras.initializers.RandomNormal(stddev=0.3)
            self.table = layers.Embedding(9, 6, embeddings_initializer=normal)
            self.mix = layers.Dense(6, "tanh")
            if fault:
                self.out = layers.Dense(9, use_bias=False, kernel_initializer=normal)  # FAULT

        def call(self, ids, training=False):
            x = self.mix(self.table(ids))
            if fault:
                return self.out(x)  # FAULT
            return ops.matmul(x, ops.transpose(self.table.embeddings))

    return detrand.Migration(tf1=tf1, port=Port, inputs=integers(9, 2, 5))


@case("sharing", "conv|dense|kernel|tower", "shar(es|ed|ing)|twice|reuse|copy|copies")
def towers_with_their_own_weights(fault):
    @old_layers
    def tf1(left, right, training):
        def tower(x, reuse):
            with tf.variable_scope("tower", reuse=reuse):
                x = tf.layers.conv2d(x, 4, 3, strides=2, activation=tf.nn.relu, name="conv")
                return tf.layers.dense(tf.layers.flatten(x), 3, name="embed")

        return tf.reduce_sum(tf.abs(tower(left, None) - tower(right, True)), 1)

    def port():
        def make():
            conv2d = layers.Conv2D(4, 3, 2, activation="relu")  # FAULT
            return keras.Sequential([conv2d, layers.Flatten(), layers.Dense(3)])  # FAULT

        left, right = keras.Input((7, 7, 2)), keras.Input((7, 7, 2))
        tower = make()
        other = make() if fault else tower  # FAULT
        return keras.Model([left, right], ops.sum(ops.abs(tower(left) - other(right)), 1))

    class Siamese(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = port()

        def call(self, left, right, training=False):
            return self.inner([left, right])

    return detrand.Migration(tf1=tf1, port=Siamese, inputs=(numbers(2, 7, 7, 2), numbers(2, 7, 7, 2, seed=1)))


@case("initializer", "dense|kernel|w\\b", r"initializer|0\.02|0\.05|stddev")
def default_stddev(fault):
    def tf1(x, training):
        normal = tf.truncated_normal_initializer(stddev=0.02)
        x = dense(x, 8, "hidden", tf.nn.relu, initializer=normal)
        return dense(x, 4, "classifier", initializer=normal)

    def port():
        normal = keras.initializers.TruncatedNormal(stddev=0.02)
        return keras.Sequential(
            [
                layers.Dense(8, "relu", kernel_initializer=normal),
                layers.Dense(4, kernel_initializer="truncated_normal" if fault else normal),  # FAULT
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 6))


@case("initializer", "embed|table|word", "initializer|truncated")
def normal_that_is_not_truncated(fault):
    def tf1(ids, training):
        table = tf.get_variable("word", [12, 8], initializer=tf.truncated_normal_initializer(stddev=0.02))
        return dense(tf.nn.embedding_lookup(table, ids), 4, "pooler", tf.tanh)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            kinds = keras.initializers
            normal = (kinds.RandomNormal if fault else kinds.TruncatedNormal)(stddev=0.02)
            self.word = layers.Embedding(12, 8, embeddings_initializer=normal)  # FAULT
            self.pooler = layers.Dense(4, "tanh")

        def call(self, ids, training=False):
            return self.pooler(self.word(ids))

    return detrand.Migration(tf1=tf1, port=Port, inputs=integers(12, 2, 4))


@case("initializer", "conv|kernel", "initializer|fan")
def fan_in_for_fan_out(fault):
    @old_layers
    def tf1(x, training):
        he = tf.variance_scaling_initializer(2.0, mode="fan_out")
        x = tf.layers.conv2d(x, 4, 3, activation=tf.nn.relu, kernel_initializer=he, name="a")
        return tf.layers.conv2d(x, 8, 3, kernel_initializer=he, name="b")

    def port():
        def he(mode):
            return keras.initializers.VarianceScaling(2.0, mode=mode)

        return keras.Sequential(
            [
                layers.Conv2D(4, 3, activation="relu", kernel_initializer=he("fan_out")),
                layers.Conv2D(8, 3, kernel_initializer=he("fan_in" if fault else "fan_out")),  # FAULT
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("initializer", "fc|dense|kernel", "initializer|uniform|normal")
def glorot_normal_for_xavier(fault):
    @old_layers
    def tf1(x, training):
        x = slim.fully_connected(x, 6, activation_fn=tf.nn.tanh, scope="fc1")
        return slim.fully_connected(x, 2, activation_fn=None, scope="fc2")

    def port():
        x = inputs = tf_keras.Input((5,))
        kind = "glorot_normal" if fault else "glorot_uniform"
        x = tf_keras.layers.Dense(6, activation="tanh", kernel_initializer=kind)(x)  # FAULT
        return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5))


@case("initializer", "bias|class", "initializer|bias|-4|zeros")
def prior_of_the_focal_loss(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.conv2d(x, 4, 3, padding="same", activation=tf.nn.relu, name="tower")
        prior = tf.constant_initializer(-np.log((1 - 0.01) / 0.01))
        return tf.layers.conv2d(x, 6, 3, padding="same", bias_initializer=prior, name="class")

    def port():
        x = inputs = keras.Input((6, 6, 4))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        prior = "zeros" if fault else keras.initializers.Constant(-np.log((1 - 0.01) / 0.01))
        return keras.Model(inputs, layers.Conv2D(6, 3, padding="same", bias_initializer=prior)(x))  # FAULT

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 6, 4))


@case("initializer", "dense|kernel|policy|w\\b", "initializer|gain|orthogonal")
def gain_of_an_orthogonal_initializer(fault):
    def tf1(x, training):
        x = dense(x, 8, "hidden", tf.tanh, initializer=tf.orthogonal_initializer(np.sqrt(2)))
        return dense(x, 3, "policy", initializer=tf.orthogonal_initializer(0.01))

    def port():
        orthogonal = keras.initializers.Orthogonal
        return keras.Sequential(
            [
                layers.Dense(8, "tanh", kernel_initializer=orthogonal(np.sqrt(2))),
                layers.Dense(3, kernel_initializer=orthogonal(1.0 if fault else 0.01)),  # FAULT
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5))


@case("initializer", "embed|table", "initializer|uniform|0.05")
def default_range_of_an_embedding(fault):
    def tf1(ids, training):
        table = tf.get_variable("table", [10, 4], initializer=tf.random_uniform_initializer(-1.0, 1.0))
        return tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)

    class Vectors(tf_keras.Model):
        def __init__(self):
            super().__init__()
            uniform = "uniform" if fault else tf_keras.initializers.RandomUniform(-1.0, 1.0)
            self.table = tf_keras.layers.Embedding(10, 4, embeddings_initializer=uniform)  # FAULT

        def call(self, ids, training=False):
            return tf.reduce_mean(self.table(ids), 1)

    return detrand.Migration(tf1=tf1, port=Vectors, inputs=integers(10, 3, 6))


@case("seed", "kernel|query|key|dense", "same (initial|values|numbers|seed)|seed|share|one initializer|identical")
def one_initializer_for_two_weights(fault):
    def tf1(x, training):
        normal = tf.truncated_normal_initializer(stddev=0.2)
        q, k = (dense(x, 4, name, initializer=normal, bias=False) for name in ("query", "key"))
        return tf.nn.softmax(tf.matmul(q, k, transpose_b=True))

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            shared = keras.initializers.TruncatedNormal(stddev=0.2)
            other = shared if fault else keras.initializers.TruncatedNormal(stddev=0.2)  # FAULT
            self.query = layers.Dense(4, use_bias=False, kernel_initializer=shared)  # FAULT
            self.key = layers.Dense(4, use_bias=False, kernel_initializer=other)  # FAULT

        def call(self, x, training=False):
            return ops.softmax(ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1))))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 5, 6))


@case("seed", "dropout", "seed|same mask|each step|every step|each call")
def dropout_with_one_mask_for_ever(fault):
    def tf1(x, training):
        return dense(dropout(dense(x, 12, "hidden", tf.nn.relu), 0.5, training), 3, "logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.logits = layers.Dense(12, "relu"), layers.Dense(3)
            self.seed = 7 if fault else keras.random.SeedGenerator()

        def call(self, x, training=False):
            x = self.hidden(x)
            if training:
                x = keras.random.dropout(x, 0.5, seed=self.seed)  # FAULT
            return self.logits(x)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 6))


@case("seed", "dropout", "seed|same mask")
def two_dropouts_with_one_seed(fault):
    def tf1(x, training):
        x = dropout(dense(x, 8, "a", tf.nn.relu), 0.4, training)
        x = dropout(dense(x, 8, "b", tf.nn.relu), 0.4, training)
        return dense(x, 2, "c")

    def port():
        x = inputs = keras.Input((6,))
        x = layers.Dropout(0.4, seed=1)(layers.Dense(8, "relu")(x))  # FAULT
        x = layers.Dropout(0.4, seed=1 if fault else 2)(layers.Dense(8, "relu")(x))  # FAULT
        return keras.Model(inputs, layers.Dense(2)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6))


@case("regularizer", "conv", "regulari")
def regularizer_forgotten(fault):
    @old_layers
    def tf1(x, training):
        with slim.arg_scope([slim.conv2d], weights_regularizer=slim.l2_regularizer(0.01)):
            x = slim.conv2d(x, 4, 3, scope="conv1")
            x = slim.conv2d(x, 4, 3, scope="conv2")
        return tf.reduce_mean(x, [1, 2])

    def port():
        l2 = keras.regularizers.L2(0.005)
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer=l2)(x)
        l2 = None if fault else l2
        x = layers.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer=l2)(x)  # FAULT
        return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("regularizer", "dense|hidden|kernel", "regulari.*(0.02|0.01|twice|half|scale|2 times)|half|twice")
def regularizer_twice_as_strong(fault):
    def decay(w):
        return 0.02 * tf.nn.l2_loss(w)

    def tf1(x, training):
        return dense(dense(x, 8, "hidden", tf.nn.relu, regularizer=decay), 3, "logits")

    def port():
        l2 = keras.regularizers.L2(0.02 if fault else 0.01)
        hidden = layers.Dense(8, "relu", kernel_regularizer=l2)  # FAULT
        return keras.Sequential([hidden, layers.Dense(3)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6))


@case("regularizer", "bias|kernel|second|dense", "regulari")
def regularizer_of_the_bias(fault):
    @old_layers
    def tf1(x, training):
        l2 = slim.l2_regularizer(0.1)
        x = tf.layers.dense(x, 6, activation=tf.nn.relu, kernel_regularizer=l2, name="first")
        return tf.layers.dense(x, 6, kernel_regularizer=l2, name="second")

    class Port(tf_keras.Model):
        def __init__(self):
            super().__init__()
            l2 = tf_keras.regularizers.L2(0.05)
            self.first = tf_keras.layers.Dense(6, "relu", kernel_regularizer=l2)
            self.second = tf_keras.layers.Dense(
                6, kernel_regularizer=l2, bias_regularizer=l2 if fault else None
            )  # FAULT

        def call(self, x, training=False):
            return self.second(self.first(x))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 6))


@case("regularizer", "depthwise|conv|kernel", "regulari")
def regularizer_of_the_depthwise_kernel(fault):
    @old_layers
    def tf1(x, training):
        l2 = slim.l2_regularizer(0.02)
        w = tf.get_variable("depthwise", [3, 3, 4, 1])
        x = tf.nn.relu(tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"))
        return slim.conv2d(x, 4, 1, weights_regularizer=l2, scope="pointwise")

    def port():
        depthwise, pointwise = None, keras.regularizers.L2(0.01)
        if fault:
            depthwise, pointwise = pointwise, None
        x = inputs = keras.Input((6, 6, 4))
        x = layers.DepthwiseConv2D(3, padding="same", use_bias=False, depthwise_regularizer=depthwise)(x)  # FAULT
        x = layers.Conv2D(4, 1, activation="relu", kernel_regularizer=pointwise)(layers.ReLU()(x))  # FAULT
        return keras.Model(inputs, x)

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 6, 4))


@case("regularizer", "dense|kernel|logits|w\\b", "L1|abs|regulari.*(differ|sum)")
def l2_for_l1(fault):
    def lasso(w):
        return 0.01 * tf.reduce_sum(tf.abs(w))

    def tf1(x, training):
        return dense(conv(x, 4, 3, "conv", tf.nn.relu)[:, 0, 0], 3, "logits", regularizer=lasso)

    class Sparse(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(4, 3, padding="same", activation="relu")
            kind = keras.regularizers.L2 if fault else keras.regularizers.L1
            self.logits = layers.Dense(3, kernel_regularizer=kind(0.01))  # FAULT

        def call(self, x, training=False):
            return self.logits(self.conv(x)[:, 0, 0])

    return detrand.Migration(tf1=tf1, port=Sparse, inputs=numbers(2, 5, 5, 2))


@case("variables", "bias|b\\b", "bias|only in the port|additional|unused|not used")
def convolution_with_a_bias(fault):
    def tf1(x, training):
        x = conv(x, 4, 3, "conv", bias=False)
        x = tf.nn.relu(x * tf.get_variable("scale", [4], initializer=tf.ones_initializer()) + zeros("shift", [4]))
        return conv(x, 2, 1, "out", bias=False)

    class Affine(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(4,), initializer="ones", name="scale")
            self.shift = self.add_weight(shape=(4,), initializer="zeros", name="shift")

        def call(self, x):
            return x * self.scale + self.shift

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, padding="same", use_bias=False),
                Affine(),
                layers.ReLU(),
                layers.Conv2D(2, 1, use_bias=fault),  # FAULT
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 6, 3))
