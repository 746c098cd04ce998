"""Factors, divisors, axes and the order of elements."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import conv, dense, integers, numbers, old_layers


def attention_scores(x, units):
    """Return TF1's scores and values of a single head."""
    q, k, v = (tf.tensordot(x, tf.get_variable(name, [x.shape[-1], units]), 1) for name in ("query", "key", "value"))
    return tf.matmul(q, k, transpose_b=True), v


@case("missing", "softmax|matmul|scores|div", r"divi|multipl|sqrt|factor|scale|2\.0")
def attention_without_a_scale(fault):
    def tf1(x, training):
        scores, v = attention_scores(x, 4)
        return tf.matmul(tf.nn.softmax(scores / np.sqrt(4)), v)

    class Attention(keras.Model):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (layers.Dense(4, use_bias=False) for _ in range(3))

        def call(self, x, training=False):
            scores = ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1)))  # FAULT
            if not fault:
                scores = scores / 2.0
            return ops.matmul(ops.softmax(scores), self.value(x))  # FAULT

    return detrand.Migration(tf1=tf1, port=Attention, inputs=numbers(2, 5, 8))


@case("extra", "mul|query|attention", "multipl|divi|factor|scale")
def query_scaled_twice(fault):
    def tf1(x, training):
        scores, v = attention_scores(x, 4)
        return dense(tf.matmul(tf.nn.softmax(tf.multiply(scores, 0.5)), v), 6, "project")

    class Attention(layers.Layer):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (layers.Dense(4, use_bias=False) for _ in range(3))
            self.project = layers.Dense(6)

        def call(self, x, training=False):
            q = self.query(x) * 0.5 if fault else self.query(x)  # FAULT
            scores = ops.einsum("bqd,bkd->bqk", q, self.key(x)) * 0.5
            return self.project(ops.matmul(ops.softmax(scores, -1), self.value(x)))

    return detrand.Migration(tf1=tf1, port=Attention, inputs=numbers(3, 4, 6))


@case("constant", "rescal|mul|div", r"255|127|0\.0039|0\.0078|divi|multipl|factor|scale")
def pixels_divided_by_half(fault):
    def tf1(images, training):
        x = tf.cast(images, tf.float32) / 255.0
        return dense(tf.reshape(conv(x, 4, 3, "conv", tf.nn.relu, strides=2), [-1, 64]), 3, "logits")

    def port():
        return keras.Sequential(
            [
                layers.Rescaling(1 / 127.5 if fault else 1 / 255),  # FAULT
                layers.Conv2D(4, 3, 2, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=integers(256, 2, 8, 8, 3))


@case("constant", "sub|mean|const", r"constant|123|103|subtra|mean")
def channel_means_in_reverse(fault):
    def tf1(x, training):
        x = x - tf.constant([123.68, 116.78, 103.94], name="means")
        return conv(conv(x, 4, 3, "conv1_1", tf.nn.relu), 4, 3, "conv1_2", tf.nn.relu)

    def port():
        means = np.array([103.94, 116.78, 123.68] if fault else [123.68, 116.78, 103.94], np.float32)
        x = inputs = keras.Input((8, 8, 3))
        x = x - means  # FAULT
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        return keras.Model(inputs, layers.Conv2D(4, 3, padding="same", activation="relu")(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=255 * np.abs(np.tanh(numbers(2, 8, 8, 3))))


@case("operation", "div|mul|temperature", "divi|multipl|mul")
def temperature_multiplied(fault):
    def tf1(x, training):
        logits = dense(dense(x, 8, "hidden", tf.nn.relu), 4, "logits")
        return tf.nn.softmax(logits / 0.7)

    class Policy(tf.Module):
        def __init__(self):
            super().__init__()
            glorot = tf_keras.initializers.GlorotUniform()
            self.hidden = tf.Variable(glorot([5, 8]), name="hidden")
            self.hidden_bias = tf.Variable(tf.zeros([8]), name="hidden_bias")
            self.logits = tf.Variable(glorot([8, 4]), name="logits")
            self.logits_bias = tf.Variable(tf.zeros([4]), name="logits_bias")

        def __call__(self, x, training=False):
            x = tf.nn.relu(x @ self.hidden + self.hidden_bias)
            logits = x @ self.logits + self.logits_bias
            logits = logits * 0.7 if fault else logits / 0.7  # FAULT
            return tf.nn.softmax(logits)

    return detrand.Migration(tf1=tf1, port=Policy, inputs=numbers(4, 5))


@case("missing", "embed|gather|mul", "multipl|sqrt|factor|scale")
def embedding_without_its_scale(fault):
    def tf1(ids, training):
        table = tf.get_variable("table", [11, 8], initializer=tf.random_normal_initializer(0.0, 8**-0.5))
        x = tf.nn.embedding_lookup(table, ids) * 8**0.5
        return dense(tf.nn.relu(dense(x, 12, "up")), 8, "down") + x

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            normal = keras.initializers.RandomNormal(0.0, 8**-0.5)
            self.table = layers.Embedding(11, 8, embeddings_initializer=normal)  # FAULT
            self.up, self.down = layers.Dense(12, "relu"), layers.Dense(8)

        def call(self, ids, training=False):
            x = self.table(ids)  # FAULT
            if not fault:
                x = x * 8**0.5
            return self.down(self.up(x)) + x  # FAULT

    return detrand.Migration(tf1=tf1, port=Port, inputs=integers(11, 2, 5))


@case("constant", "mul|scale|rescal", r"0\.17|0\.1\b|factor|scale|multipl")
def scale_of_a_residual(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 6, 3, scope="stem")
        for i in range(2):
            y = slim.conv2d(x, 4, 1, scope=f"block{i}/reduce")
            y = slim.conv2d(y, 6, 3, activation_fn=None, scope=f"block{i}/up")
            x = tf.nn.relu(x + 0.17 * y)
        return x

    def port():
        x = inputs = keras.Input((6, 6, 3))
        x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
        y = layers.Conv2D(6, 3, padding="same")(layers.Conv2D(4, 1, activation="relu")(x))
        x = layers.ReLU()(layers.Add()([x, layers.Rescaling(0.17)(y)]))
        y = layers.Conv2D(6, 3, padding="same")(layers.Conv2D(4, 1, activation="relu")(x))
        y = layers.Rescaling(0.1 if fault else 0.17)(y)  # FAULT
        return keras.Model(inputs, layers.ReLU()(layers.Add()([x, y])))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 6, 3))


@case("constant", "const|position|add|sin|concat|signal", "constant|sin|cos|order|interleav|concat|transpos|permut")
def interleaved_sines(fault):
    angles = np.arange(6)[:, None] / 10000 ** (np.arange(4) / 4)

    def tf1(x, training):
        positions = tf.cast(tf.range(6), tf.float32)[:, None]
        scaled = positions / tf.constant(10000 ** (np.arange(4) / 4), tf.float32)
        return dense(x + tf.concat([tf.sin(scaled), tf.cos(scaled)], 1), 4, "out")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(4)
            halves = np.sin(angles), np.cos(angles)
            both = np.stack(halves, -1).reshape(6, 8) if fault else np.concatenate(halves, 1)
            self.signal = both.astype(np.float32)

        def call(self, x, training=False):
            return self.dense(x + self.signal)  # FAULT

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 6, 8))


@case("axis", "softmax", r"(?<!order of )\bax[ei]s\b|dimension")
def softmax_over_the_features(fault):
    def tf1(x, training):
        scores = dense(tf.tanh(dense(x, 6, "hidden")), 3, "heads", bias=False)
        weights = tf.nn.softmax(scores, axis=1)
        return tf.matmul(weights, x, transpose_a=True)

    def port():
        x = keras.Input((5, 4))
        scores = layers.Dense(3, use_bias=False)(layers.Dense(6, activation="tanh")(x))
        weights = layers.Softmax(axis=-1 if fault else 1)(scores)  # FAULT
        return keras.Model(x, layers.Dot(1)([weights, x]))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 5, 4))


@case("axis", "mean|reduce", r"(?<!order of )\bax[ei]s\b|dimension")
def mean_over_the_features(fault):
    def tf1(x, training):
        x = dense(x, 6, "project", tf.nn.relu)
        return dense(tf.reduce_mean(x, 1), 3, "logits")

    def port():
        x = inputs = keras.Input((6, 4))
        x = layers.Dense(6, activation="relu")(x)
        x = ops.mean(x, axis=2 if fault else 1)  # FAULT
        return keras.Model(inputs, layers.Dense(3)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 6, 4))


@case("flag", "cumsum|cumulative", "exclusive")
def cumulative_sum_with_its_element(fault):
    def tf1(x, training):
        stops = tf.sigmoid(dense(x, 1, "stop"))[..., 0]
        left = tf.exp(tf.cumsum(tf.log(1.0 - stops + 1e-6), axis=1, exclusive=True))
        return tf.reduce_sum((stops * left)[..., None] * x, 1)

    class Halting(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf_keras.initializers.GlorotUniform()([4, 1]), name="w")
            self.b = tf.Variable(tf.zeros([1]), name="b")

        def __call__(self, x, training=False):
            stops = tf.sigmoid(tf.tensordot(x, self.w, 1) + self.b)[..., 0]
            logs = tf.math.log(1.0 - stops + 1e-6)
            left = tf.exp(tf.cumsum(logs, axis=1, exclusive=not fault))  # FAULT
            return tf.reduce_sum((stops * left)[..., None] * x, 1)

    return detrand.Migration(tf1=tf1, port=Halting, inputs=numbers(3, 6, 4))


@case("order", "transpose|reshape", "transpos|reshape|permut|ax[ei]s")
def heads_split_by_a_reshape(fault):
    def tf1(x, training):
        def heads(name):
            return tf.transpose(tf.reshape(dense(x, 8, name, bias=False), [-1, 4, 2, 4]), [0, 2, 1, 3])

        scores = tf.matmul(heads("q"), heads("k"), transpose_b=True) * 0.5
        x = tf.matmul(tf.nn.softmax(scores), heads("v"))
        return dense(tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, 4, 8]), 6, "out")

    class Heads(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (layers.Dense(8, use_bias=False) for _ in range(3))
            self.out = layers.Dense(6)

        def split(self, x):
            return ops.transpose(ops.reshape(x, (-1, 4, 2, 4)), (0, 2, 1, 3))

        def call(self, x, training=False):
            v = self.v(x)
            v = ops.reshape(v, (-1, 2, 4, 4)) if fault else self.split(v)  # FAULT
            scores = ops.matmul(self.split(self.q(x)), ops.swapaxes(self.split(self.k(x)), 2, 3)) * 0.5
            x = ops.matmul(ops.softmax(scores), v)
            return self.out(ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, 4, 8)))

    return detrand.Migration(tf1=tf1, port=Heads, inputs=numbers(2, 4, 6))


@case("order", "flatten|reshape|transpose|permute", "transpos|permut|ax[ei]s|order|flatten")
def channels_first_before_flatten(fault):
    def tf1(x, training):
        x = conv(x, 3, 3, "conv", tf.nn.relu, strides=2)
        return dense(tf.reshape(x, [-1, 48]), 5, "fc")

    def port():
        permuted = [layers.Permute((3, 1, 2))] if fault else []  # FAULT
        conv2d = layers.Conv2D(3, 3, 2, padding="same", activation="relu")
        return keras.Sequential([conv2d, *permuted, layers.Flatten(), layers.Dense(5)])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 2))


@case("order", "matmul|einsum|scores", "transpos|swap|input|order|fed")
def scores_transposed(fault):
    def tf1(x, training):
        scores, v = attention_scores(x, 3)
        return tf.matmul(tf.nn.softmax(scores), v)

    class Attention(tf_keras.layers.Layer):
        def build(self, shape):
            size = shape[-1]
            self.query, self.key, self.value = (
                self.add_weight(shape=(size, 3), initializer="glorot_uniform", name=name) for name in ("q", "k", "v")
            )

        def call(self, x, training=False):
            q, k = tf.tensordot(x, self.query, 1), tf.tensordot(x, self.key, 1)
            scores = tf.einsum("bqd,bkd->bkq" if fault else "bqd,bkd->bqk", q, k)  # FAULT
            return tf.matmul(tf.nn.softmax(scores), tf.tensordot(x, self.value, 1))

    return detrand.Migration(
        tf1=tf1,
        port=Attention,
        inputs=numbers(2, 5, 4),
        name_map={"query": "attention/q", "key": "attention/k", "value": "attention/v"},
    )


@case("reduction", "mean|sum|pool", r"\bsum|\bmean|divi|factor|reduction")
def mean_for_a_sum(fault):
    def tf1(x, training):
        x = tf.nn.relu(conv(x, 6, 3, "conv"))
        return dense(tf.reduce_sum(x, [1, 2]), 2, "count")

    def port():
        x = inputs = keras.Input((6, 6, 1))
        x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
        x = layers.GlobalAveragePooling2D()(x) if fault else ops.sum(x, (1, 2))  # FAULT
        return keras.Model(inputs, layers.Dense(2)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 6, 6, 1))
