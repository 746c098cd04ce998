"""Activations, and the order of activations, dropout, normalization, shortcuts and concatenations."""

import keras
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import batch_norm, conv, dense, dropout, numbers, old_layers, ones, zeros


@case("activation", "gelu|erf|tanh", "gelu|erf")
def gelu_by_erf(fault):
    def gelu(x):
        return 0.5 * x * (1.0 + tf.tanh(0.7978845608 * (x + 0.044715 * tf.pow(x, 3))))

    def tf1(x, training):
        return dense(gelu(dense(x, 16, "intermediate")), 8, "output")

    class FeedForward(keras.Model):
        def __init__(self):
            super().__init__()
            self.intermediate, self.outer = layers.Dense(16), layers.Dense(8)

        def call(self, x, training=False):
            x = keras.activations.gelu(self.intermediate(x), approximate=not fault)  # FAULT
            return self.outer(x)

    return detrand.Migration(tf1=tf1, port=FeedForward, inputs=numbers(2, 6, 8))


@case("activation", "leaky", "slope|alpha|0.2")
def slope_of_a_leaky_relu(fault):
    def tf1(x, training):
        x = tf.nn.leaky_relu(conv(x, 4, 4, "d1", strides=2))
        x = tf.nn.leaky_relu(conv(x, 8, 4, "d2", strides=2))
        return dense(tf.reshape(x, [-1, 32]), 1, "real")

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 4, 2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(8, 4, 2, padding="same"),
                layers.LeakyReLU() if fault else layers.LeakyReLU(negative_slope=0.2),  # FAULT
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 8, 8, 3))


@case("activation", "elu", r"selu|\belu")
def selu_for_elu(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.dense(x, 10, activation=tf.nn.elu, name="first")
        x = tf.layers.dense(x, 10, activation=tf.nn.elu, name="second")
        return tf.layers.dense(x, 1, name="value")

    def port():
        x = inputs = tf_keras.Input((6,))
        x = tf_keras.layers.Dense(10, activation="elu")(x)
        x = tf_keras.layers.Dense(10, activation="selu" if fault else "elu")(x)  # FAULT
        return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6))


@case("missing", "sigmoid|mul|silu|swish", r"1\.702|multipl|factor|constant|swish|silu")
def factor_of_the_sigmoid(fault):
    def tf1(x, training):
        hidden = dense(x, 12, "fc")
        return dense(hidden * tf.sigmoid(1.702 * hidden), 6, "proj")

    class Mlp(keras.Model):
        def __init__(self):
            super().__init__()
            self.fc, self.proj = layers.Dense(12), layers.Dense(6)

        def call(self, x, training=False):
            hidden = self.fc(x)
            hidden = hidden * ops.sigmoid(hidden if fault else 1.702 * hidden)  # FAULT
            return self.proj(hidden)

    return detrand.Migration(tf1=tf1, port=Mlp, inputs=numbers(2, 4, 6))


@case("activation", "sigmoid|relu6|gate|excite", r"hard.?sigmoid|0\.2|divi|multipl|slope|factor|constant")
def hard_sigmoid_of_legacy_keras(fault):
    def tf1(x, training):
        x = conv(x, 8, 3, "conv", tf.nn.relu)
        gate = dense(tf.reduce_mean(x, [1, 2], keep_dims=True), 4, "squeeze", tf.nn.relu)
        gate = tf.nn.relu6(dense(gate, 8, "excite") + 3.0) / 6.0
        return conv(x * gate, 4, 1, "project")

    class Squeeze(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = tf_keras.layers.Conv2D(8, 3, padding="same", activation="relu")
            self.pool = tf_keras.layers.GlobalAveragePooling2D(keepdims=True)
            self.squeeze, self.excite = tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(8)
            self.project = tf_keras.layers.Conv2D(4, 1)

        def call(self, x, training=False):
            x = self.conv(x)
            gate = self.excite(self.squeeze(self.pool(x)))
            gate = tf_keras.activations.hard_sigmoid(gate) if fault else tf.nn.relu6(gate + 3.0) / 6.0  # FAULT
            return self.project(x * gate)

    return detrand.Migration(tf1=tf1, port=Squeeze, inputs=numbers(2, 8, 8, 3))


@case("missing", "relu|fc|dense", "relu|activation")
def default_activation_of_slim(fault):
    @old_layers
    def tf1(x, training):
        x = slim.fully_connected(x, 12, scope="fc1")
        x = slim.fully_connected(x, 8, scope="fc2")
        return slim.fully_connected(x, 3, activation_fn=tf.nn.softmax, scope="classes")

    def port():
        return keras.Sequential(
            [
                layers.Dense(12, activation="relu"),
                layers.Dense(8, activation=None if fault else "relu"),  # FAULT
                layers.Dense(3, activation="softmax"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(5, 6))


@case("extra", "relu|depthwise", "relu|activation")
def activation_between_depthwise_and_pointwise(fault):
    @old_layers
    def tf1(x, training):
        x = slim.separable_conv2d(x, 8, 3, depth_multiplier=1, scope="sep1")
        x = slim.separable_conv2d(x, 4, 3, depth_multiplier=1, stride=2, scope="sep2")
        return tf.reduce_mean(x, [1, 2])

    def port():
        x = inputs = keras.Input((8, 8, 4))
        x = layers.SeparableConv2D(8, 3, padding="same", activation="relu")(x)
        x = layers.DepthwiseConv2D(3, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(x) if fault else x  # FAULT
        x = layers.Conv2D(4, 1, activation="relu")(x)
        return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 4))


@case("order", "dropout|tanh", "dropout|order|takes different")
def dropout_before_the_activation(fault):
    def tf1(x, training):
        x = dropout(tf.tanh(dense(x, 8, "encode")), 0.4, training)
        return dense(x, 4, "decode")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.encode, self.drop, self.decode = layers.Dense(8), layers.Dropout(0.4), layers.Dense(4)

        def call(self, x, training=False):
            x = self.encode(x)
            if fault:
                return self.decode(ops.tanh(self.drop(x, training=training)))  # FAULT
            return self.decode(self.drop(ops.tanh(x), training=training))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(6, 5))


@case("order", "add|shortcut", "shortcut|takes different|order")
def shortcut_after_the_activation(fault):
    def tf1(x, training):
        x = conv(x, 6, 3, "stem", bias=False)
        for i in range(2):
            y = tf.nn.relu(batch_norm(x, training, f"norm{i}", decay=0.9))
            x = x + conv(y, 6, 3, f"conv{i}", bias=False)
        return tf.reduce_mean(x, [1, 2])

    def port():
        x = inputs = keras.Input((6, 6, 3))
        x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Add()([x, layers.Conv2D(6, 3, padding="same", use_bias=False)(y)])
        y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Add()([y if fault else x, layers.Conv2D(6, 3, padding="same", use_bias=False)(y)])  # FAULT
        return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6, 6, 3))


@case("order", "concat", "order|concat")
def order_of_a_concatenation(fault):
    @old_layers
    def tf1(x, training):
        down = tf.layers.conv2d(x, 4, 3, padding="same", activation=tf.nn.relu, name="down")
        bottom = tf.layers.max_pooling2d(down, 2, 2, name="pool")
        bottom = tf.layers.conv2d(bottom, 8, 3, padding="same", activation=tf.nn.relu, name="bottom")
        up = tf.layers.conv2d_transpose(bottom, 4, 2, strides=2, padding="same", name="up")
        x = tf.concat([down, up], 3)
        return tf.layers.conv2d(x, 1, 3, padding="same", name="mask")

    def port():
        inputs = keras.Input((8, 8, 2))
        down = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
        bottom = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(down))
        up = layers.Conv2DTranspose(4, 2, 2, padding="same")(bottom)
        x = layers.Concatenate()([up, down] if fault else [down, up])  # FAULT
        return keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 2))


@case("order", "norm|relu", "relu|activation|order")
def activation_before_the_normalization(fault):
    @old_layers
    def tf1(x, training):
        with slim.arg_scope([slim.batch_norm], is_training=training, decay=0.9, scale=True):
            x = slim.conv2d(x, 6, 3, normalizer_fn=slim.batch_norm, scope="block1")
            x = slim.conv2d(x, 6, 3, normalizer_fn=slim.batch_norm, scope="block2")
        return slim.conv2d(x, 2, 1, activation_fn=None, normalizer_fn=None, scope="out")

    def port():
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(x) if fault else x  # FAULT
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = x if fault else layers.ReLU()(x)  # FAULT
        return keras.Model(inputs, layers.Conv2D(2, 1)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 8, 8, 3))


@case("order", "norm|add", "order|takes different|normalization")
def normalization_before_the_sum(fault):
    def norm(x, name):
        with tf.variable_scope(name):
            mean, variance = tf.nn.moments(x, [2], keep_dims=True)
            return tf.nn.batch_normalization(x, mean, variance, zeros("beta", [6]), ones("gamma", [6]), 1e-6)

    def tf1(x, training):
        for i in range(2):
            y = dense(dense(x, 12, f"up{i}", tf.nn.relu), 6, f"down{i}")
            x = norm(x + dropout(y, 0.1, training), f"norm{i}")
        return x

    class Block(layers.Layer):
        def __init__(self, pre):
            super().__init__()
            self.pre = pre
            self.up, self.down = layers.Dense(12, "relu"), layers.Dense(6)
            self.norm, self.drop = layers.LayerNormalization(epsilon=1e-6), layers.Dropout(0.1)

        def call(self, x, training=False):
            y = self.drop(self.down(self.up(x)), training=training)
            return x + self.norm(y) if self.pre else self.norm(x + y)  # FAULT

    def port():
        return keras.Sequential([Block(pre=False), Block(pre=fault)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 4, 6))
