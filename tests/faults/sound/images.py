"""Ordinary ports of networks for images."""

import keras
import tensorflow.compat.v1 as tf
import tf_keras
from keras import layers

import detrand
from tests.faults.tf1 import batch_norm, conv, deconv, dense, dropout, numbers, ones, zeros


def plain_cnn() -> detrand.Migration:
    def tf1(x, training):
        x = conv(x, 4, 3, "c1", tf.nn.relu)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = conv(x, 6, 3, "c2", tf.nn.relu, strides=2)
        x = dropout(tf.reshape(x, [-1, 4 * 6]), 0.3, training)
        return dense(x, 5, "out")

    def port():
        x = image = keras.Input((8, 8, 2))
        x = layers.MaxPooling2D()(layers.Conv2D(4, 3, padding="same", activation="relu")(x))
        x = layers.Conv2D(6, 3, 2, padding="same", activation="relu")(x)
        x = layers.Dropout(0.3)(layers.Flatten()(x))
        return keras.Model(image, layers.Dense(5)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 2))


def residual_network() -> detrand.Migration:
    def tf1(x, training):
        x = conv(x, 4, 3, "stem", bias=False)
        for block in range(2):
            y = tf.nn.relu(batch_norm(x, training, f"bn{block}a"))
            y = conv(y, 4, 3, f"conv{block}a", bias=False)
            y = tf.nn.relu(batch_norm(y, training, f"bn{block}b"))
            x = x + conv(y, 4, 3, f"conv{block}b", bias=False)
        return dense(tf.reduce_mean(x, [1, 2]), 3, "logits")

    def port():
        def convolution(x):
            return layers.Conv2D(4, 3, padding="same", use_bias=False)(x)

        image = keras.Input((6, 6, 3))
        x = convolution(image)
        for _ in range(2):
            y = convolution(layers.ReLU()(layers.BatchNormalization()(x)))
            y = convolution(layers.ReLU()(layers.BatchNormalization()(y)))
            x = layers.Add()([x, y])
        return keras.Model(image, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6, 6, 3))


def separable_convolutions() -> detrand.Migration:
    def tf1(x, training):
        for i, channels in enumerate((4, 8)):
            with tf.variable_scope(f"s{i}"):
                w = tf.get_variable("dw", [3, 3, x.shape[-1], 1])
                x = tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "VALID")
            x = conv(x, channels, 1, f"p{i}", tf.nn.relu6)
        return x

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.all = [
                layer
                for channels in (4, 8)
                for layer in (layers.DepthwiseConv2D(3, use_bias=False), layers.Conv2D(channels, 1), layers.ReLU(6.0))
            ]

        def call(self, x):
            for layer in self.all:
                x = layer(x)
            return x

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 8, 8, 3))


def autoencoder() -> detrand.Migration:
    def tf1(x, training):
        code = conv(x, 4, 3, "down", tf.nn.elu, strides=2)
        code = conv(code, 2, 1, "code", tf.nn.elu)
        return deconv(deconv(code, 4, 3, "up", 2, tf.nn.elu), 3, 1, "image", 1, tf.nn.sigmoid)

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, 2, "same", activation="elu"),
                layers.Conv2D(2, 1, activation="elu"),
                layers.Conv2DTranspose(4, 3, 2, "same", activation="elu"),
                layers.Conv2DTranspose(3, 1, activation="sigmoid"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


def branches_with_two_pools() -> detrand.Migration:
    def tf1(x, training):
        x = tf.nn.max_pool2d(x, 3, 2, "VALID")
        left = conv(tf.nn.avg_pool2d(x, 3, 1, "SAME"), 3, 1, "left")
        right = conv(x, 3, 3, "right", tf.nn.relu)
        return tf.concat([left, right], -1)

    def port():
        image = keras.Input((9, 9, 2))
        x = layers.MaxPooling2D(3, 2)(image)
        left = layers.Conv2D(3, 1)(layers.AveragePooling2D(3, 1, "same")(x))
        right = layers.Conv2D(3, 3, padding="same", activation="relu")(x)
        return keras.Model(image, layers.Concatenate()([left, right]))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 9, 9, 2))


def squeeze_and_excitation() -> detrand.Migration:
    def tf1(x, training):
        x = conv(x, 6, 3, "conv")
        s = dense(tf.reduce_mean(x, [1, 2]), 2, "squeeze", tf.nn.relu)
        s = dense(s, 6, "excite", tf.nn.sigmoid)
        return x * s[:, None, None, :]

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(6, 3, padding="same")
            self.squeeze, self.excite = layers.Dense(2, "relu"), layers.Dense(6, "sigmoid")

        def call(self, x):
            x = self.conv(x)
            gate = self.excite(self.squeeze(keras.ops.mean(x, axis=(1, 2))))
            return x * keras.ops.reshape(gate, (-1, 1, 1, 6))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 6, 6, 3))


def generator() -> detrand.Migration:
    def tf1(z, training):
        x = tf.reshape(dense(z, 2 * 2 * 4, "project", bias=False), [-1, 2, 2, 4])
        x = tf.nn.leaky_relu(batch_norm(x, training, "bn", decay=0.9))
        return deconv(x, 3, 4, "image", 2, tf.tanh)

    def port():
        return keras.Sequential(
            [
                layers.Dense(16, use_bias=False),
                layers.Reshape((2, 2, 4)),
                layers.BatchNormalization(momentum=0.9),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2DTranspose(3, 4, 2, "same", activation="tanh"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5))


def tf_keras_cnn() -> detrand.Migration:
    def tf1(x, training):
        x = tf.nn.relu(batch_norm(conv(x, 4, 3, "c", bias=False, padding="VALID"), training, "bn"))
        return dense(dropout(tf.reduce_max(x, [1, 2]), 0.5, training), 3, "logits")

    def port():
        return tf_keras.Sequential(
            [
                tf_keras.layers.Conv2D(4, 3, use_bias=False),
                tf_keras.layers.BatchNormalization(fused=False),
                tf_keras.layers.ReLU(),
                tf_keras.layers.GlobalMaxPooling2D(),
                tf_keras.layers.Dropout(0.5),
                tf_keras.layers.Dense(3),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6, 6, 2))


def volumes() -> detrand.Migration:
    def tf1(x, training):
        w = tf.get_variable("w", [2, 2, 2, 2, 4])
        x = tf.nn.bias_add(tf.nn.conv3d(x, w, [1, 2, 2, 2, 1], "VALID"), zeros("b", [4]))
        return tf.reduce_mean(tf.nn.softplus(x), [1, 2, 3])

    def port():
        return keras.Sequential([layers.Conv3D(4, 2, 2, activation="softplus"), layers.GlobalAveragePooling3D()])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 4, 4, 4, 2))


def u_net() -> detrand.Migration:
    def tf1(x, training):
        fine = conv(x, 4, 3, "fine", tf.nn.relu)
        coarse = conv(tf.nn.max_pool2d(fine, 2, 2, "SAME"), 6, 3, "coarse", tf.nn.relu)
        up = tf.image.resize_nearest_neighbor(coarse, [8, 8])
        return conv(tf.concat([fine, up], 3), 2, 1, "mask")

    def port():
        image = keras.Input((8, 8, 1))
        fine = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
        coarse = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(fine))
        x = layers.Concatenate()([fine, layers.UpSampling2D()(coarse)])
        return keras.Model(image, layers.Conv2D(2, 1)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 1))


def layer_normalization() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 6, "in")
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        x = tf.nn.batch_normalization(x, mean, variance, zeros("beta", [6]), ones("gamma", [6]), 1e-6)
        return dense(tf.nn.tanh(x), 3, "out")

    def port():
        return keras.Sequential(
            [layers.Dense(6), layers.LayerNormalization(epsilon=1e-6), layers.Activation("tanh"), layers.Dense(3)]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 5))


def dilated_text_convolutions() -> detrand.Migration:
    def tf1(x, training):
        for dilation in (1, 2):
            w = tf.get_variable(f"w{dilation}", [3, x.shape[-1], 4])
            x = tf.nn.convolution(x, w, padding="SAME", dilations=[dilation])
            x = tf.nn.relu(x + zeros(f"b{dilation}", [4]))
        return tf.reduce_max(x, 1)

    def port():
        return keras.Sequential(
            [layers.Conv1D(4, 3, padding="same", dilation_rate=d, activation="relu") for d in (1, 2)]
            + [layers.GlobalMaxPooling1D()]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 9, 3))
