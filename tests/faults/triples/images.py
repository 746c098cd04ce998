"""Networks for images."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers, ops

from tests.faults.tf1 import batch_norm, conv, deconv, dense, dropout, integers, numbers, zeros
from tests.faults.triples import descent, faults, trained

cross_entropy = tf.losses.sparse_softmax_cross_entropy
keras_cross_entropy = keras.losses.SparseCategoricalCrossentropy


@faults("slope|alpha|leaky", "dropout", "beta.?1")
def discriminator(faulty=True):
    def tf1(x, training):
        x = tf.nn.leaky_relu(conv(x, 4, 3, "c1", strides=2), 0.1)
        x = tf.nn.leaky_relu(conv(dropout(x, 0.3, training), 6, 3, "c2", strides=2), 0.1)
        return dense(tf.reshape(x, [-1, 24]), 2, "real")

    def port():
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(4, 3, 2, padding="same")(x)
        x = layers.LeakyReLU(negative_slope=0.3 if faulty else 0.1)(x)  # FAULT 1
        x = x if faulty else layers.Dropout(0.3)(x)  # FAULT 2
        x = layers.Conv2D(6, 3, 2, padding="same")(x)
        x = layers.LeakyReLU(negative_slope=0.1)(x)
        return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))

    def port_optimizer():
        return keras.optimizers.Adam(0.01, beta_1=0.9 if faulty else 0.5, epsilon=1e-8)  # FAULT 3

    return trained(
        tf1,
        port,
        numbers(4, 8, 8, 3),
        integers(2, 4),
        cross_entropy,
        keras_cross_entropy(from_logits=True),
        lambda: tf.train.AdamOptimizer(0.01, beta1=0.5),
        port_optimizer,
    )


@faults("window|pool", "noise|stddev|normal", "square|abs|loss")
def denoising_autoencoder(faulty=True):
    def tf1(x, training):
        y = x + tf.random_normal([4, 8, 8, 1], stddev=0.3) if training else x
        y = tf.nn.max_pool2d(conv(y, 4, 3, "down", tf.nn.relu), 3, 2, "SAME")
        return deconv(y, 1, 3, "up", 2, tf.nn.sigmoid)

    def port():
        x = inputs = keras.Input((8, 8, 1))
        x = layers.GaussianNoise(0.1 if faulty else 0.3)(x)  # FAULT 2
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2 if faulty else 3, 2, "same")(x)  # FAULT 1
        return keras.Model(inputs, layers.Conv2DTranspose(1, 3, 2, "same", activation="sigmoid")(x))

    def port_loss(labels, outputs):
        error = labels - outputs
        return ops.mean(ops.abs(error) if faulty else ops.square(error))  # FAULT 3

    images = np.abs(numbers(4, 8, 8, 1))
    return trained(
        tf1,
        port,
        images,
        images,
        tf.losses.mean_squared_error,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("bilinear|nearest|resize", "training|moving|batch stat", "regulari")
def segmentation(faulty=True):
    def tf1(x, training):
        fine = tf.nn.relu(batch_norm(conv(x, 4, 3, "fine", bias=False), training, "bn", decay=0.9))
        coarse = conv(tf.nn.avg_pool2d(fine, 2, 2, "SAME"), 4, 3, "coarse", tf.nn.relu, regularizer=decay)
        up = tf.image.resize_nearest_neighbor(coarse, [6, 6])
        return conv(tf.concat([fine, up], 3), 2, 1, "mask")

    def decay(w):
        return 0.02 * tf.nn.l2_loss(w)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.fine = layers.Conv2D(4, 3, padding="same", use_bias=False)
            self.norm = layers.BatchNormalization(momentum=0.9)
            l2 = keras.regularizers.L2(0.02 if faulty else 0.01)
            self.coarse = layers.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer=l2)  # FAULT 3
            kind = "bilinear" if faulty else "nearest"
            self.up = layers.UpSampling2D(2, interpolation=kind)  # FAULT 1
            self.pool, self.mask = layers.AveragePooling2D(2), layers.Conv2D(2, 1)

        def call(self, x, training=False):
            fine = ops.relu(self.norm(self.fine(x), training=training and not faulty))  # FAULT 2
            up = self.up(self.coarse(self.pool(fine)))
            return self.mask(ops.concatenate([fine, up], 3))

    return trained(
        tf1,
        Port,
        numbers(4, 6, 6, 2),
        numbers(4, 6, 6, 2, seed=1),
        tf.losses.mean_squared_error,
        keras.losses.MeanSquaredError(),
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("axis|axes|dim", "momentum|decay", "margin|constant|loss")
def siamese_images(faulty=True):
    def embed(x, training, reuse):
        with tf.variable_scope("net", reuse=reuse):
            x = tf.nn.relu(conv(x, 4, 3, "c"))
            return tf.nn.l2_normalize(dense(tf.reduce_mean(x, [1, 2]), 3, "embed"), 1, 1e-6)

    def tf1(x, y, training):
        both = batch_norm(tf.concat([x, y], 0), training, "bn", decay=0.9)
        x, y = both[:4], both[4:]
        return tf.reduce_sum(tf.square(embed(x, training, False) - embed(y, training, True)), 1)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = layers.BatchNormalization(momentum=0.99 if faulty else 0.9)  # FAULT 2
            self.conv, self.dense = layers.Conv2D(4, 3, padding="same", activation="relu"), layers.Dense(3)

        def embed(self, x):
            x = self.dense(ops.mean(self.conv(x), (1, 2)))
            return tf.nn.l2_normalize(x, 0 if faulty else 1, 1e-6)  # FAULT 1

        def call(self, x, y, training=False):
            both = self.norm(ops.concatenate([x, y], 0), training=training)
            return ops.sum(ops.square(self.embed(both[:4]) - self.embed(both[4:])), 1)

    def tf1_loss(labels, outputs):
        return tf.reduce_mean(labels * outputs + (1 - labels) * tf.nn.relu(2.0 - outputs))

    def port_loss(labels, outputs):
        margin = 1.0 if faulty else 2.0  # FAULT 3
        return ops.mean(labels * outputs + (1 - labels) * ops.relu(margin - outputs))

    return trained(
        tf1,
        Port,
        (numbers(4, 5, 5, 2), numbers(4, 5, 5, 2, seed=1)),
        np.array([1, 0, 0, 1], np.float32),
        tf1_loss,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("dilat", "dropout|rate", "regulari")
def volumes(faulty=True):
    def tf1(x, training):
        w = tf.get_variable("w", [3, 3, 3, 1, 4], regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))
        x = tf.nn.relu(tf.nn.conv3d(x, w, [1] * 5, "SAME") + zeros("b", [4]))
        x = tf.nn.convolution(x, tf.get_variable("v", [3, 3, 3, 4, 4]), padding="SAME", dilations=[2, 2, 2])
        return dense(dropout(tf.reduce_mean(tf.nn.elu(x), [1, 2, 3]), 0.25, training), 3, "out")

    def port():
        x = inputs = keras.Input((5, 5, 5, 1))
        l2 = None if faulty else keras.regularizers.L2(0.05)
        x = layers.Conv3D(4, 3, padding="same", activation="relu", kernel_regularizer=l2)(x)  # FAULT 3
        x = layers.Conv3D(4, 3, padding="same", dilation_rate=1 if faulty else 2, use_bias=False)(x)  # FAULT 1
        x = layers.GlobalAveragePooling3D()(layers.ELU()(x))
        x = layers.Dropout(0.75 if faulty else 0.25)(x)  # FAULT 2
        return keras.Model(inputs, layers.Dense(3)(x))

    return trained(
        tf1,
        port,
        numbers(3, 5, 5, 5, 1),
        integers(3, 3),
        cross_entropy,
        keras_cross_entropy(from_logits=True),
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("relu6|minimum|clip|max|activation", "momentum|decay", "accumulator|slot|initial")
def mobile_network(faulty=True):
    def tf1(x, training):
        w = tf.get_variable("depthwise", [3, 3, 3, 1])
        x = tf.nn.relu6(5.0 * tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"))
        x = tf.nn.relu(batch_norm(conv(x, 6, 1, "pointwise", bias=False), training, "bn", decay=0.9))
        return dense(tf.reduce_mean(x, [1, 2]), 3, "logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.depthwise = layers.DepthwiseConv2D(3, padding="same", use_bias=False)
            self.pointwise = layers.Conv2D(6, 1, use_bias=False)
            self.norm = layers.BatchNormalization(momentum=0.95 if faulty else 0.9)  # FAULT 2
            self.logits = layers.Dense(3)

        def call(self, x, training=False):
            x = 5.0 * self.depthwise(x)
            x = ops.relu(x) if faulty else ops.relu6(x)  # FAULT 1
            x = ops.relu(self.norm(self.pointwise(x), training=training))
            return self.logits(ops.mean(x, (1, 2)))

    def port_optimizer():
        accumulator = 0.1 if faulty else 0.5
        return keras.optimizers.Adagrad(0.1, initial_accumulator_value=accumulator, epsilon=0.0)  # FAULT 3

    return trained(
        tf1,
        Port,
        numbers(4, 5, 5, 3),
        integers(3, 4),
        cross_entropy,
        keras_cross_entropy(from_logits=True),
        lambda: tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.5),
        port_optimizer,
    )
