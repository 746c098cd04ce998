"""Ports that compute the same in another way: the checks must see that it is the same."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers, ops

import detrand
from tests.faults.tf1 import batch_norm, conv, dense, integers, numbers, old_layers, ones, zeros


def deep_batch_normalization_at_batch_two() -> detrand.Migration:
    def tf1(x, training):
        for i in range(5):
            x = tf.nn.tanh(batch_norm(dense(x, 6, f"d{i}", bias=False), training, f"bn{i}"))
        return dense(x, 3, "out")

    def port():
        x = inputs = keras.Input((4,))
        for _ in range(5):
            x = layers.Activation("tanh")(layers.BatchNormalization()(layers.Dense(6, use_bias=False)(x)))
        return keras.Model(inputs, layers.Dense(3)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 4))


def sums_in_another_order() -> detrand.Migration:
    def tf1(x, training):
        return 100.0 * tf.reduce_sum(dense(x, 4, "a"), [1, 2])

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(4)

        def call(self, x):
            y = self.a(x)[:, ::-1]
            total = 0.0
            for i in range(64):
                total = total + ops.sum(y[:, i], -1)
            return total * 100.0

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 64, 5))


def fused_batch_normalization() -> detrand.Migration:
    def tf1(x, training):
        x = conv(x, 4, 3, "c", bias=False)
        gamma, beta = ones("gamma", [4]), zeros("beta", [4])
        averages = zeros("mean", [4], trainable=False), ones("variance", [4], trainable=False)
        if not training:
            return tf.nn.fused_batch_norm(x, gamma, beta, *averages, 1e-3, is_training=False)[0]
        x, mean, variance = tf.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)
        count = 4 * 5 * 5
        for average, moment in zip(averages, (mean, variance * (count - 1) / count), strict=True):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average.assign(0.9 * average + 0.1 * moment))
        return x

    def port():
        return keras.Sequential(
            [layers.Conv2D(4, 3, padding="same", use_bias=False), layers.BatchNormalization(momentum=0.9)]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5, 5, 3))


def loop_in_python_with_dropout() -> detrand.Migration:
    @old_layers
    def tf1(x, training):
        cell = tf.nn.rnn_cell.BasicRNNCell(4, name="cell")
        if training:
            cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.5)
        return tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[0]

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell, self.dropout = layers.Dense(4, "tanh", name="cell"), layers.Dropout(0.5)

        def call(self, x, training=False):
            h, outputs = ops.zeros((2, 4)), []
            for t in range(4):
                h = self.cell(ops.concatenate([x[:, t], h], 1))
                outputs.append(self.dropout(h, training=training))
            return ops.stack(outputs, 1)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 4, 3))


def padding_by_hand() -> detrand.Migration:
    def tf1(x, training):
        return tf.nn.max_pool2d(conv(x, 4, 3, "c", tf.nn.relu, strides=2), 3, 1, "SAME")

    def port():
        return keras.Sequential(
            [
                layers.ZeroPadding2D(1),
                layers.Conv2D(4, 3, 2, activation="relu"),
                layers.ZeroPadding2D(1),
                layers.MaxPooling2D(3, 1),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 7, 7, 2))


def dense_as_convolution() -> detrand.Migration:
    def tf1(x, training):
        x = tf.nn.relu(conv(x[:, None, None, :], 6, 1, "fc1"))
        return tf.squeeze(conv(x, 3, 1, "fc2"), [1, 2])

    def port():
        return keras.Sequential([layers.Dense(6, "relu", name="fc1"), layers.Dense(3, name="fc2")])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 5))


def bias_added_later() -> detrand.Migration:
    def tf1(x, training):
        return conv(conv(x, 4, 3, "a", tf.nn.relu), 2, 3, "b")

    class Bias(layers.Layer):
        def build(self, shape):
            self.bias = self.add_weight(shape=(shape[-1],), initializer="zeros", name="bias")

        def call(self, x):
            return self.bias + x

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, padding="same", use_bias=False),
                Bias(),
                layers.ReLU(),
                layers.Conv2D(2, 3, padding="same", use_bias=False),
                Bias(),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 5, 5, 2))


def dropout_as_a_mask() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 8, "a")
        return dense(tf.nn.dropout(x, rate=0.25) if training else x, 2, "b")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(8), layers.Dense(2)

        def call(self, x, training=False):
            x = self.a(x)
            if training:
                mask = tf.cast(tf.random.uniform(tf.shape(x)) >= 0.25, tf.float32)
                x = x * mask / 0.75
            return self.b(x)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 4))


def cross_entropy_in_steps() -> detrand.Migration:
    def tf1(x, training):
        return dense(x, 4, "logits")

    def port_loss(labels, outputs):
        picked = ops.take_along_axis(ops.log_softmax(outputs), labels[:, None], 1)
        return -ops.mean(picked)

    train = detrand.TrainStep(
        labels=integers(4, 6),
        tf1_loss=lambda labels, outputs: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)
        ),
        port_loss=port_loss,
        tf1_optimizer=lambda: tf.train.AdamOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
        steps=3,
    )
    return detrand.Migration(
        tf1=tf1, port=lambda: keras.Sequential([layers.Dense(4)]), inputs=numbers(6, 3), train=train
    )


def einsum_attention() -> detrand.Migration:
    def tf1(x, training):
        q, k, v = (dense(x, 6, name, bias=False) for name in ("query", "key", "value"))
        q, k, v = (tf.transpose(tf.reshape(y, [-1, 4, 2, 3]), [0, 2, 1, 3]) for y in (q, k, v))
        weights = tf.nn.softmax(tf.matmul(q, tf.transpose(k, [0, 1, 3, 2])) / np.float32(np.sqrt(3)))
        return tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [-1, 4, 6])

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (layers.Dense(6, use_bias=False) for _ in range(3))

        def call(self, x):
            q, k, v = (ops.reshape(y(x), (-1, 4, 2, 3)) for y in (self.query, self.key, self.value))
            weights = ops.softmax(ops.einsum("bqhd,bkhd->bhqk", q, k) * 3**-0.5)
            return ops.reshape(ops.einsum("bhqk,bkhd->bqhd", weights, v), (-1, 4, 6))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 4, 6))


def schedule_by_hand() -> detrand.Migration:
    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            step = ops.cast(step, "float32")
            return ops.where(step < 2, 0.1 * (step + 1) / 2, 0.1 * ops.power(0.5, (step - 2) / 3))

    def tf1_optimizer():
        step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
        rate = tf.cond(step < 2, lambda: 0.05 * (step + 1), lambda: tf.train.exponential_decay(0.1, step - 2, 3, 0.5))
        return tf.train.GradientDescentOptimizer(rate)

    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=tf1_optimizer,
        port_optimizer=lambda: keras.optimizers.SGD(Warmup()),
        steps=6,
    )
    return detrand.Migration(
        tf1=lambda x, training: dense(x, 2, "a"),
        port=lambda: keras.Sequential([layers.Dense(2)]),
        inputs=numbers(4, 3),
        train=train,
    )


def variables_in_another_order() -> detrand.Migration:
    def tf1(x, training):
        with tf.variable_scope("last"):
            w2, b2 = tf.get_variable("w", [6, 2]), zeros("b", [2])
        with tf.variable_scope("first"):
            b1, w1 = zeros("b", [6]), tf.get_variable("w", [3, 6])
        return tf.nn.tanh(x @ w1 + b1) @ w2 + b2

    class Port(keras.Model):
        def __init__(self):
            super().__init__(name="other")
            self.hidden, self.projection = layers.Dense(6, "tanh", name="zeta"), layers.Dense(2, name="alpha")

        def call(self, x):
            return self.projection(self.hidden(x))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3))


def one_layer_used_twice() -> detrand.Migration:
    def tf1(x, training):
        with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
            return tf.tanh(dense(tf.tanh(dense(x, 4, "shared")), 4, "shared"))

    def port():
        x = keras.Input((4,))
        shared = layers.Dense(4, "tanh")
        return keras.Model(x, shared(shared(x)))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 4))


def scale_moved_through_a_product() -> detrand.Migration:
    def tf1(x, training):
        return tf.nn.relu(dense(x * 0.5, 4, "a", bias=False)) / 8.0

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(4, use_bias=False)

        def call(self, x):
            return ops.relu(self.a(x)) * 0.0625

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def dropout_of_a_whole_channel() -> detrand.Migration:
    def tf1(x, training):
        x = conv(x, 6, 3, "a")
        shape = tf.shape(x)
        return tf.nn.dropout(x, rate=0.4, noise_shape=[shape[0], 1, 1, shape[3]]) if training else x

    def port():
        return keras.Sequential([layers.Conv2D(6, 3, padding="same"), layers.SpatialDropout2D(0.4)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 4, 4, 2))
