"""Networks of convolutions in one, two and three dimensions."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow
import tf_keras
import tf_slim as slim

from detrand import Migration
from tests.sound_migrations.training import (
    ACCURACY,
    ADAGRAD,
    ADAM,
    ADAM_OF_SLICES,
    MEAN_SQUARE,
    MOMENTUM,
    PIECEWISE,
    RMSPROP,
    SIGMOID_CROSS_ENTROPY,
    SPARSE_CROSS_ENTROPY,
    STAIRCASE,
    classes,
    random,
    train_step,
)

tf = tensorflow.compat.v1
layers = keras.layers


# --- LeNet, as in the layers tutorial -----------------------------------------------------------------------


def lenet(images, training):
    conv1 = tf.layers.conv2d(images, 4, [5, 5], padding="same", activation=tf.nn.relu, name="conv1")
    pool1 = tf.layers.max_pooling2d(conv1, [2, 2], strides=2)
    conv2 = tf.layers.conv2d(pool1, 6, [3, 3], padding="valid", activation=tf.nn.relu, name="conv2")
    pool2 = tf.layers.average_pooling2d(conv2, 2, 1, padding="same")
    flat = tf.reshape(pool2, [-1, int(np.prod(pool2.shape[1:]))])
    dense = tf.layers.dense(flat, 8, activation=tf.nn.relu, name="dense")
    dropout = tf.layers.dropout(dense, rate=0.4, training=training)
    return tf.layers.dense(dropout, 5, name="logits")


def lenet_port():
    """A functional model, which initializes all variables before it computes."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 5, padding="same", activation="relu", name="conv1")(inputs)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(6, 3, activation="relu", name="conv2")(x)
    x = layers.AveragePooling2D(2, 1, padding="same")(x)
    x = layers.Dense(8, activation="relu", name="dense")(layers.Flatten()(x))
    x = layers.Dropout(0.4)(x)
    return keras.Model(inputs, layers.Dense(5, name="logits")(x))


# --- A residual network with batch normalization ------------------------------------------------------------


def residual_network(images, training):
    l2 = tf_keras.regularizers.L2(0.01)
    conv = functools.partial(
        tf.layers.conv2d,
        padding="same",
        use_bias=False,
        kernel_regularizer=l2,
        kernel_initializer=tf.variance_scaling_initializer(2.0, "fan_out", "untruncated_normal"),
    )
    norm = functools.partial(tf.layers.batch_normalization, training=training, momentum=0.9, epsilon=1e-5, fused=False)
    x = conv(images, 4, 3, name="conv0")
    for i, filters in enumerate((4, 6)):
        strides = 1 + i
        with tf.variable_scope(f"block{i}"):
            shortcut = conv(x, filters, 1, strides, name="shortcut") if strides > 1 else x
            h = tf.nn.relu(norm(conv(x, filters, 3, strides, name="conv1"), name="bn1"))
            x = tf.nn.relu(norm(conv(h, filters, 3, name="conv2"), name="bn2") + shortcut)
    return tf.layers.dense(tf.reduce_mean(x, [1, 2]), 5, name="fc")


def conv(filters, size, strides=1, name=None):
    return layers.Conv2D(
        filters,
        size,
        strides,
        padding="same",
        use_bias=False,
        kernel_regularizer=keras.regularizers.L2(0.01),
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        name=name,
    )


class ResidualBlock(layers.Layer):
    def __init__(self, filters, strides, name):
        super().__init__(name=name)
        self.shortcut = conv(filters, 1, strides, "shortcut") if strides > 1 else None
        self.conv1, self.conv2 = conv(filters, 3, strides, "conv1"), conv(filters, 3, name="conv2")
        self.bn1, self.bn2 = (layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"bn{i}") for i in (1, 2))

    def call(self, x, training=False):
        shortcut = x if self.shortcut is None else self.shortcut(x)
        h = keras.ops.relu(self.bn1(self.conv1(x), training=training))
        return keras.ops.relu(self.bn2(self.conv2(h), training=training) + shortcut)


class ResidualNetwork(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.conv0 = conv(4, 3, name="conv0")
        self.blocks = [ResidualBlock(filters, 1 + i, f"block{i}") for i, filters in enumerate((4, 6))]
        self.pool, self.fc = layers.GlobalAveragePooling2D(), layers.Dense(5, name="fc")

    def call(self, images, training=False):
        x = self.conv0(images)
        for block in self.blocks:
            x = block(x, training=training)
        return self.fc(self.pool(x))


# --- MobileNet's blocks, of TensorFlow ops ------------------------------------------------------------------


def mobile_network(images, training):
    x = images
    for i, (strides, filters) in enumerate([(1, 4), (2, 6)]):
        with tf.variable_scope(f"separable{i}", initializer=tf.truncated_normal_initializer(stddev=0.3)):
            channels = x.shape[-1]
            depthwise = tf.get_variable("depthwise", [3, 3, channels, 1])
            x = tf.nn.depthwise_conv2d(x, depthwise, [1, strides, strides, 1], "SAME")
            x = tf.nn.relu6(x + tf.get_variable("b1", [channels], initializer=tf.zeros_initializer()))
            pointwise = tf.get_variable("pointwise", [1, 1, channels, filters])
            x = tf.nn.conv2d(x, pointwise, [1, 1, 1, 1], "VALID")
            x = tf.nn.relu6(x + tf.get_variable("b2", [filters], initializer=tf.zeros_initializer()))
    x = tf.layers.separable_conv2d(x, 5, 3, depth_multiplier=2, use_bias=False, name="last")
    return tf.reduce_max(x, axis=[1, 2])


class MobileBlock(layers.Layer):
    def __init__(self, strides, filters, name):
        super().__init__(name=name)
        normal = keras.initializers.TruncatedNormal(stddev=0.3)
        self.depthwise = layers.DepthwiseConv2D(
            3, strides, "same", activation="relu6", depthwise_initializer=normal, name="depthwise"
        )
        self.pointwise = layers.Conv2D(filters, 1, activation="relu6", kernel_initializer=normal, name="pointwise")

    def call(self, x):
        return self.pointwise(self.depthwise(x))


class MobileNetwork(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.blocks = [MobileBlock(1, 4, "separable0"), MobileBlock(2, 6, "separable1")]
        self.last = layers.SeparableConv2D(5, 3, depth_multiplier=2, use_bias=False, name="last")

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return keras.ops.max(self.last(x), axis=(1, 2))


def mobile_name(name):
    if name.startswith("separable"):
        block, _, weight = name.partition("/")
        weights = {
            "depthwise": "depthwise/kernel",
            "b1": "depthwise/bias",
            "pointwise": "pointwise/kernel",
            "b2": "pointwise/bias",
        }
        name = f"{block}/{weights[weight]}"
    return f"port/{name}"


# --- A convolutional autoencoder ----------------------------------------------------------------------------


def deconvolution(images, training):
    x = tf.layers.conv2d(images, 4, 3, strides=2, padding="same", activation=tf.nn.elu, name="down")
    x = tf.layers.conv2d_transpose(x, 3, 3, strides=2, padding="same", activation=tf.nn.selu, name="up")
    kernel = tf.get_variable("deconv", [4, 4, 3, 3])  # height, width, output, input
    x = tf.nn.conv2d_transpose(x, kernel, [images.shape[0], 16, 16, 3], [1, 2, 2, 1])
    return tf.image.resize_nearest_neighbor(tf.nn.sigmoid(x), [32, 32])


class Deconvolution(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.down = layers.Conv2D(4, 3, 2, padding="same", activation="elu", name="down")
        self.up = layers.Conv2DTranspose(3, 3, 2, padding="same", activation="selu", name="up")
        self.out = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="sigmoid", use_bias=False, name="deconv")
        self.twice = layers.UpSampling2D(2)

    def call(self, images, training=False):
        return self.twice(self.out(self.up(self.down(images))))


# --- A text classifier of convolutions ----------------------------------------------------------------------


def text_network(words, training):
    with tf.variable_scope("embedding"):
        table = tf.get_variable("table", [17, 4], initializer=tf.random_uniform_initializer(-1.0, 1.0))
        embedded = tf.nn.embedding_lookup(table, words)
    pooled = []
    for width in (2, 3):
        with tf.variable_scope(f"conv_{width}"):
            w = tf.get_variable("w", [width, 4, 3], initializer=tf.truncated_normal_initializer(stddev=0.3))
            b = tf.get_variable("b", [3], initializer=tf.constant_initializer(0.1))
            h = tf.nn.relu(tf.nn.conv1d(embedded, w, stride=1, padding="VALID") + b)
            pooled.append(tf.reduce_max(h, axis=1))
    h = tf.nn.dropout(tf.concat(pooled, 1), keep_prob=0.5 if training else 1.0)
    with tf.variable_scope("output"):
        w = tf.get_variable("w", [6, 2], regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))
        return tf.nn.xw_plus_b(h, w, tf.get_variable("b", [2], initializer=tf.constant_initializer(0.1)))


class TextNetwork(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        tenth = keras.initializers.Constant(0.1)
        self.embedding = layers.Embedding(
            17, 4, embeddings_initializer=keras.initializers.RandomUniform(-1, 1), name="embedding"
        )
        self.convolutions = [
            layers.Conv1D(
                3,
                width,
                activation="relu",
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.3),
                bias_initializer=tenth,
                name=f"conv_{width}",
            )
            for width in (2, 3)
        ]
        self.pool, self.dropout = layers.GlobalMaxPooling1D(), layers.Dropout(0.5)
        self.out = layers.Dense(
            2, kernel_regularizer=keras.regularizers.L2(0.05), bias_initializer=tenth, name="output"
        )

    def call(self, words, training=False):
        embedded = self.embedding(words)
        h = keras.ops.concatenate([self.pool(conv(embedded)) for conv in self.convolutions], axis=1)
        return self.out(self.dropout(h, training=training))


def text_name(name):
    name = name.replace("/table", "/embeddings").replace("/w", "/kernel").replace("/b", "/bias")
    return f"port/{name}"


# --- A network of slim's, with arg_scope --------------------------------------------------------------------


def slim_network(images, training):
    with (
        slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(0.02)),
        slim.arg_scope([slim.batch_norm, slim.dropout], is_training=training),
    ):
        net = slim.repeat(images, 2, slim.conv2d, 4, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.conv2d(net, 5, [3, 3], padding="VALID", normalizer_fn=None, scope="conv2")
        net = slim.flatten(net)
        net = slim.dropout(net, 0.7, scope="dropout")
        return slim.fully_connected(net, 5, activation_fn=None, scope="logits")


class SlimPort(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        l2 = keras.regularizers.L2(0.01)  # slim's halves the sum
        self.convolutions = [
            layers.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer=l2, name=f"conv1_{i}")
            for i in (1, 2)
        ]
        self.pool, self.flat, self.dropout = layers.MaxPooling2D(2), layers.Flatten(), layers.Dropout(0.3)
        self.conv2 = layers.Conv2D(5, 3, activation="relu", kernel_regularizer=l2, name="conv2")
        self.logits = layers.Dense(5, kernel_regularizer=l2, name="logits")

    def call(self, net, training=False):
        for conv in self.convolutions:
            net = conv(net)
        net = self.flat(self.conv2(self.pool(net)))
        return self.logits(self.dropout(net, training=training))


def slim_name(name):
    name = name.replace("conv1/conv1_", "conv1_").replace("weights", "kernel").replace("biases", "bias")
    return f"port/{name}"


# --- Fused batch normalization, whose moving variance is that of a sample -----------------------------------


def fused_batch_norm(images, training):
    x = tf.layers.conv2d(images, 4, 3, use_bias=False, name="conv")
    x = tf.layers.batch_normalization(x, training=training, momentum=0.8, name="bn")
    x = tf.layers.dropout(tf.nn.relu(x), 0.25, noise_shape=[6, 1, 1, 4], training=training)
    return tf.layers.dense(tf.layers.flatten(x), 5, name="logits")


def fused_batch_norm_port():
    kit = tf_keras.layers
    inputs = tf_keras.Input((8, 8, 3))
    x = kit.Conv2D(4, 3, use_bias=False, name="conv")(inputs)
    x = kit.ReLU()(kit.BatchNormalization(momentum=0.8, name="bn")(x))
    x = kit.SpatialDropout2D(0.25)(x)
    return tf_keras.Model(inputs, kit.Dense(5, name="logits")(kit.Flatten()(x)))


# --- Volumes, and a pyramid ---------------------------------------------------------------------------------


def volumes(volume, training):
    x = tf.layers.conv3d(volume, 3, 3, padding="same", activation=tf.nn.relu, name="conv1")
    x = tf.layers.max_pooling3d(x, 2, 2)
    x = tf.layers.conv3d(x, 4, [1, 2, 2], kernel_initializer=tf.glorot_normal_initializer(), name="conv2")
    x = tf.nn.avg_pool3d(x, [1, 2, 1, 1, 1], [1, 2, 1, 1, 1], "SAME")
    return tf.layers.dense(tf.layers.flatten(x), 2, name="logits")


def volumes_port():
    return keras.Sequential(
        [
            layers.Conv3D(3, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling3D(2),
            layers.Conv3D(4, (1, 2, 2), kernel_initializer="glorot_normal", name="conv2"),
            layers.AveragePooling3D((2, 1, 1), padding="same"),
            layers.Flatten(),
            layers.Dense(2, name="logits"),
        ]
    )


def atrous_pyramid(images, training):
    end_points = {}
    for rate in (1, 2, 3):
        name = f"rate{rate}"
        with tf.variable_scope("pyramid"):
            x = tf.layers.conv2d(images, 3, 3, dilation_rate=rate, padding="same", name=name)
        end_points[name] = tf.nn.lrn(x, depth_radius=1, bias=2.0, alpha=0.1, beta=0.75)
    x = tf.concat([end_points[name] for name in sorted(end_points)], 3)
    pooled = tf.reduce_mean(images, [1, 2], keep_dims=True)
    pooled = tf.image.resize_bilinear(tf.layers.conv2d(pooled, 2, 1, name="pooled"), [8, 8], align_corners=True)
    x = tf.layers.conv2d(tf.concat([x, pooled], 3), 1, 1, name="heat")
    return x, end_points


class AtrousPyramid(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.rates = [
            layers.Conv2D(3, 3, dilation_rate=rate, padding="same", name=f"pyramid_rate{rate}") for rate in (1, 2, 3)
        ]
        self.pooled, self.heat = layers.Conv2D(2, 1, name="pooled"), layers.Conv2D(1, 1, name="heat")

    def call(self, images, training=False):
        responses = [tensorflow.nn.lrn(conv(images), 1, bias=2.0, alpha=0.1, beta=0.75) for conv in self.rates]
        pooled = self.pooled(keras.ops.mean(images, axis=(1, 2), keepdims=True))
        pooled = keras.ops.tile(pooled, (1, 8, 8, 1))  # the resize leaves this size
        heat = self.heat(keras.ops.concatenate([*responses, pooled], axis=3))
        return heat, {f"rate{i + 1}": response for i, response in enumerate(responses)}


# --- Capsules, routed by agreement --------------------------------------------------------------------------


def capsules(images, training):
    def squash(s):
        norm = tf.reduce_sum(tf.square(s), -1, keep_dims=True)
        return norm / (1.0 + norm) * s / tf.sqrt(norm + 1e-9)

    x = tf.layers.conv2d(images, 8, 4, 2, activation=tf.nn.relu, name="primary")
    u = squash(tf.reshape(x, [-1, 18, 4]))
    w = tf.get_variable("w", [18, 5, 4, 3], initializer=tf.random_normal_initializer(stddev=0.5))
    votes = tf.einsum("nic,iocd->niod", u, w)
    b = tf.zeros([images.shape[0], 18, 5])
    for _ in range(3):
        v = squash(tf.reduce_sum(tf.expand_dims(tf.nn.softmax(b, dim=2), -1) * votes, 1))
        b += tf.reduce_sum(votes * tf.expand_dims(v, 1), -1)
    return tf.norm(v, axis=-1), v


class Capsules(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.primary = layers.Conv2D(8, 4, 2, activation="relu", name="primary")
        self.w = self.add_weight(shape=(18, 5, 4, 3), initializer=keras.initializers.RandomNormal(stddev=0.5), name="w")

    def squash(self, s):
        norm = keras.ops.sum(s**2, axis=-1, keepdims=True)
        return norm / (1.0 + norm) * s / keras.ops.sqrt(norm + 1e-9)

    def call(self, images, training=False):
        u = self.squash(keras.ops.reshape(self.primary(images), (-1, 18, 4)))
        votes = keras.ops.einsum("nic,iocd->niod", u, self.w)
        b = keras.ops.zeros(votes.shape[:3])
        for _ in range(3):
            v = self.squash(keras.ops.sum(keras.ops.softmax(b, axis=2)[..., None] * votes, axis=1))
            b += keras.ops.sum(votes * v[:, None], axis=-1)
        return keras.ops.norm(v, axis=-1), v


def margin_loss(labels, outputs):
    lengths, _ = outputs
    present = tensorflow.one_hot(labels, 5)
    missed = present * tensorflow.square(tensorflow.maximum(0.0, 0.9 - lengths))
    false = 0.5 * (1 - present) * tensorflow.square(tensorflow.maximum(0.0, lengths - 0.1))
    return tensorflow.reduce_mean(tensorflow.reduce_sum(missed + false, 1))


IMAGES = random(6, 8, 8, 3)
KINDS = classes(6, 5)
WORDS = classes(4 * 7, 17).reshape(4, 7)

MIGRATIONS: tuple[Any, ...] = (
    Migration(
        tf1=lenet,
        port=lenet_port,
        inputs=IMAGES,
        train=train_step(KINDS, SPARSE_CROSS_ENTROPY, ADAM, metrics=ACCURACY),
    ),
    Migration(
        tf1=residual_network,
        port=ResidualNetwork,
        inputs=IMAGES,
        name_map="port/{}".format,
        train=train_step(KINDS, SPARSE_CROSS_ENTROPY, MOMENTUM),
    ),
    Migration(
        tf1=mobile_network,
        port=MobileNetwork,
        inputs=IMAGES,
        name_map=mobile_name,
        train=train_step(KINDS, SPARSE_CROSS_ENTROPY, RMSPROP),
    ),
    Migration(
        tf1=deconvolution,
        port=Deconvolution,
        inputs=IMAGES[..., :2],
        name_map=lambda name: "port/" + ("deconv/kernel" if name == "deconv" else name),
        train=train_step(random(6, 32, 32, 3, low=0.0), MEAN_SQUARE, ADAGRAD),
    ),
    Migration(
        tf1=text_network,
        port=TextNetwork,
        inputs=WORDS,
        name_map=text_name,
        train=train_step(classes(4, 2), SPARSE_CROSS_ENTROPY, ADAM_OF_SLICES),
    ),
    Migration(
        tf1=slim_network,
        port=SlimPort,
        inputs=IMAGES,
        name_map=slim_name,
        train=train_step(KINDS, SPARSE_CROSS_ENTROPY, STAIRCASE),
    ),
    Migration(
        tf1=fused_batch_norm,
        port=fused_batch_norm_port,
        inputs=IMAGES,
        train=train_step(
            KINDS,
            (SPARSE_CROSS_ENTROPY[0], tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
            (
                lambda: tf.train.MomentumOptimizer(0.02, 0.9, use_nesterov=True),
                lambda: tf_keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
            ),
        ),
    ),
    Migration(tf1=volumes, port=volumes_port, inputs=random(2, 4, 4, 4, 2), name_map="sequential/{}".format),
    Migration(
        tf1=atrous_pyramid,
        port=AtrousPyramid,
        inputs=IMAGES,
        name_map=lambda name: "port/" + name.replace("pyramid/", "pyramid_"),
        train=train_step(
            random(6, 8, 8, 1, low=0.0).round(),
            tuple(lambda y, outputs, loss=loss: loss(y, outputs[0]) for loss in SIGMOID_CROSS_ENTROPY),
            PIECEWISE,
        ),
    ),
    Migration(
        tf1=capsules,
        port=Capsules,
        inputs=IMAGES,
        name_map="port/{}".format,
        train=train_step(KINDS, margin_loss, ADAM),
    ),
)
