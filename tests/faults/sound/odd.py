"""Ports that are sound, but look odd to a check."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers, ops

import detrand
from tests.faults.tf1 import batch_norm, conv, dense, integers, numbers, ones


def nan_at_the_same_places() -> detrand.Migration:
    def tf1(x, training):
        return {"logits": dense(x, 4, "a"), "log": tf.log(dense(x, 4, "b"))}

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(4), layers.Dense(4)

        def call(self, x):
            return {"logits": self.a(x), "log": ops.log(self.b(x))}

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def int64_against_int32() -> detrand.Migration:
    def tf1(x, training):
        logits = dense(x, 4, "logits")
        return {"logits": logits, "class": tf.argmax(logits, 1), "shape": tf.shape(x, out_type=tf.int64)}

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.logits = layers.Dense(4)

        def call(self, x):
            logits = self.logits(x)
            return {"logits": logits, "class": ops.argmax(logits, 1), "shape": tf.shape(x)}

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def nothing_over_nothing_at_equal_weights() -> detrand.Migration:
    def tf1(x, training):
        y = dense(x, 4, "a")
        centered = y - tf.reduce_mean(y, 1, keepdims=True)
        return dense(centered / tf.sqrt(tf.reduce_mean(centered**2, 1, keepdims=True)), 2, "b")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(4), layers.Dense(2)

        def call(self, x):
            y = self.a(x)
            return self.b((y - ops.mean(y, 1, keepdims=True)) / ops.std(y, 1, keepdims=True))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def python_number_among_the_outputs() -> detrand.Migration:
    def tf1(x, training):
        return {"y": dense(x, 4, "a"), "keep_prob": 0.5 if training else 1.0, "classes": 4}

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(4)

        def call(self, x, training=False):
            return {"y": self.a(x), "keep_prob": 0.5 if training else 1.0, "classes": 4}

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def python_number_against_a_tensor() -> detrand.Migration:
    def tf1(x, training):
        return dense(x, 4, "a"), tf.constant(0.25), tf.constant(7)

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(4)

        def __call__(self, x, training=False):
            return self.a(x), 0.25, 7

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def random_op_of_tf1_that_is_never_fetched() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 6, "a")
        tf.nn.dropout(x, rate=0.5, name="monitored")
        tf.random_uniform([3, 6], name="noise")
        return dense(tf.nn.dropout(x, rate=0.5) if training else x, 2, "b")

    def port():
        return keras.Sequential([layers.Dense(6), layers.Dropout(0.5), layers.Dense(2)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 5))


def random_op_of_the_port_that_is_never_used() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 6, "a")
        return dense(tf.nn.dropout(x, rate=0.5) if training else x, 2, "b")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.dropout, self.b = layers.Dense(6), layers.Dropout(0.5), layers.Dense(2)

        def call(self, x, training=False):
            x = self.a(x)
            self.monitored = tf.nn.dropout(x, rate=0.5)
            return self.b(self.dropout(x, training=training))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def _descent(tf1_loss, port_loss):
    return detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=tf1_loss,
        port_loss=port_loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )


def weight_decay_in_the_loss() -> detrand.Migration:
    def tf1(x, training):
        return dense(dense(x, 5, "a", tf.nn.relu), 2, "b")

    def tf1_loss(labels, outputs):
        decay = tf.add_n([tf.nn.l2_loss(w) for w in tf.trainable_variables() if w.op.name.endswith("/w")])
        return tf.losses.mean_squared_error(labels, outputs) + 0.01 * decay

    def port():
        decay = keras.regularizers.L2(0.005)
        return keras.Sequential(
            [layers.Dense(5, "relu", kernel_regularizer=decay), layers.Dense(2, kernel_regularizer=decay)]
        )

    train = _descent(tf1_loss, keras.losses.MeanSquaredError())
    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3), train=train)


def loss_that_the_model_adds() -> detrand.Migration:
    def tf1(x, training):
        hidden = dense(x, 5, "a", tf.nn.sigmoid)
        tf.losses.add_loss(0.1 * tf.reduce_mean(hidden))
        return dense(hidden, 2, "b")

    def tf1_loss(labels, outputs):
        tf.losses.mean_squared_error(labels, outputs)
        return tf.add_n(tf.losses.get_losses())

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(5, "sigmoid"), layers.Dense(2)

        def call(self, x):
            hidden = self.a(x)
            self.add_loss(0.1 * ops.mean(hidden))
            return self.b(hidden)

    train = _descent(tf1_loss, keras.losses.MeanSquaredError())
    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3), train=train)


def head_that_is_built_and_unused() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 4, "trunk", tf.nn.relu)
        dense(x, 3, "auxiliary")
        return dense(x, 2, "head")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.trunk, self.auxiliary, self.head = layers.Dense(4, "relu"), layers.Dense(3), layers.Dense(2)

        def call(self, x):
            x = self.trunk(x)
            self.auxiliary(x)
            return self.head(x)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3))


def tiny_outputs() -> detrand.Migration:
    def tf1(x, training):
        return 1e-6 * dense(dense(x, 6, "a", tf.tanh), 3, "b")

    def port():
        return keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(3), layers.Rescaling(1e-6)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3))


def big_outputs() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 16, "a", tf.tanh)
        return tf.reduce_sum(1e6 * dense(x, 8, "b", tf.exp), 1)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(16, "tanh"), layers.Dense(8)

        def call(self, x):
            return ops.sum(ops.exp(self.b(self.a(x))), 1) * 1e6

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 9))


def bfloat16_part() -> detrand.Migration:
    def tf1(x, training):
        x = tf.cast(tf.cast(dense(x, 6, "a"), tf.bfloat16) * 3, tf.float32)
        return dense(x, 2, "b")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(6), layers.Dense(2)

        def call(self, x):
            return self.b(ops.cast(ops.cast(self.a(x), "bfloat16") * 3, "float32"))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3))


def float64_part() -> detrand.Migration:
    def tf1(x, training):
        x = tf.cast(dense(x, 6, "a"), tf.float64)
        return tf.cast(tf.log(tf.reduce_sum(tf.exp(x), 1)), tf.float32), tf.reduce_sum(x, 1)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(6)

        def call(self, x):
            x = ops.cast(self.a(x), "float64")
            return ops.cast(ops.logsumexp(x, 1), "float32"), ops.sum(x, 1)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3))


def axes_of_length_one() -> detrand.Migration:
    def tf1(x, training):
        x = conv(tf.expand_dims(x, 1), 4, 1, "a", tf.nn.relu)
        return dense(tf.reshape(x, [-1, 5 * 4]), 2, "b")

    def port():
        return keras.Sequential(
            [layers.Reshape((5, 1, 3)), layers.Conv2D(4, 1, activation="relu"), layers.Flatten(), layers.Dense(2)]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 5, 3))


def frozen_batch_normalization_with_a_different_momentum() -> detrand.Migration:
    def tf1(x, training):
        return dense(batch_norm(x, False, "bn", decay=0.9), 2, "a")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.bn, self.a = layers.BatchNormalization(momentum=0.99), layers.Dense(2)

        def call(self, x, training=False):
            return self.a(self.bn(x, training=False))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3))


class Plain(keras.optimizers.Optimizer):
    """Gradient descent without a ``get_config`` of its own."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * gradient)


def subclassed_optimizer() -> detrand.Migration:
    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: Plain(learning_rate=0.1),
        steps=3,
    )
    return detrand.Migration(
        tf1=lambda x, training: dense(x, 2, "a"),
        port=lambda: keras.Sequential([layers.Dense(2)]),
        inputs=numbers(4, 3),
        train=train,
    )


def gradient_of_zeros_against_none() -> detrand.Migration:
    def tf1(x, training):
        return dense(x, 2, "a") + 0.0 * ones("unused", [2]) if training else dense(x, 2, "a") + zeros_of("unused")

    def zeros_of(name):
        ones(name, [2])
        return 0.0

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = layers.Dense(2)

        def build(self, shape):
            self.unused = self.add_weight(shape=(2,), initializer="ones", name="unused")
            self.a.build(shape)

        def call(self, x):
            return self.a(x)

    train = _descent(tf.losses.mean_squared_error, keras.losses.MeanSquaredError())
    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3), train=train)


def sparse_against_dense_gradients() -> detrand.Migration:
    def tf1(ids, training):
        return tf.reduce_sum(tf.nn.embedding_lookup(tf.get_variable("table", [7, 2]), ids), 1)

    class Port(keras.Model):
        def build(self, shape):
            self.table = self.add_weight(shape=(7, 2), initializer="glorot_uniform", name="table")

        def call(self, ids):
            return ops.sum(ops.matmul(ops.one_hot(ids, 7), self.table), 1)

    train = _descent(tf.losses.mean_squared_error, keras.losses.MeanSquaredError())
    return detrand.Migration(tf1=tf1, port=Port, inputs=integers(7, 4, 3), train=train)


def activations_in_other_words() -> detrand.Migration:
    def tf1(x, training):
        x = dense(x, 4, "a")
        x = x * tf.sigmoid(x)
        x = dense(x, 4, "b")
        x = dense(tf.log(1.0 + tf.exp(x)), 4, "c")
        return tf.maximum(x, 0.2 * x)

    def port():
        return keras.Sequential(
            [
                layers.Dense(4, "silu"),
                layers.Dense(4, "softplus"),
                layers.Dense(4),
                layers.LeakyReLU(negative_slope=0.2),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3))


def noise_in_training() -> detrand.Migration:
    def tf1(x, training):
        if training:
            x = x + tf.random_normal(tf.shape(x), stddev=0.1)
        return dense(x, 3, "a", tf.nn.softmax)

    def port():
        return keras.Sequential([layers.GaussianNoise(0.1), layers.Dense(3), layers.Softmax()])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3))


def text_and_integers_that_pass_through() -> detrand.Migration:
    def tf1(features, training):
        ids = tf.strings.to_hash_bucket_fast(features["word"], 5)
        table = tf.get_variable("table", [5, 3], initializer=tf.random_uniform_initializer(-0.05, 0.05))
        return {
            "vector": tf.nn.embedding_lookup(table, ids),
            "word": tf.strings.upper(features["word"]),
            "even": tf.equal(features["count"] % 2, 0),
            "count": features["count"] + 1,
        }

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(5, 3)

        def __call__(self, features, training=False):
            return {
                "vector": self.table(tf.strings.to_hash_bucket_fast(features["word"], 5)),
                "word": tf.strings.upper(features["word"]),
                "even": features["count"] % 2 == 0,
                "count": features["count"] + 1,
            }

    inputs = {"word": np.array([b"tea", b"oat", b"fig"]), "count": np.array([1, 2, 2**40], np.int64)}
    return detrand.Migration(tf1=tf1, port=Port, inputs=inputs)
