"""Ordinary ports of networks for sequences and for text."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
from keras import layers, ops

import detrand
from tests.faults.tf1 import dense, dropout, integers, numbers, old_layers, ones, zeros


def uniform(name, shape):
    return tf.get_variable(name, shape, initializer=tf.random_uniform_initializer(-0.05, 0.05))


def recurrent_cell() -> detrand.Migration:
    @old_layers
    def tf1(x, training):
        cell = tf.nn.rnn_cell.BasicRNNCell(4, name="cell")
        return tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[0]

    class Cell(keras.layers.Layer):
        state_size = 4

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1] + 4, 4), initializer="glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape=(4,), initializer="zeros", name="bias")

        def call(self, x, states):
            h = ops.tanh(ops.concatenate([x, states[0]], 1) @ self.kernel + self.bias)
            return h, [h]

    return detrand.Migration(tf1=tf1, port=lambda: layers.RNN(Cell(), return_sequences=True), inputs=numbers(2, 4, 3))


def long_short_term_memory() -> detrand.Migration:
    @old_layers
    def tf1(x, training):
        cell = tf.nn.rnn_cell.BasicLSTMCell(4, name="cell")
        _, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
        return dense(state.h, 2, "out")

    def port():
        return keras.Sequential([keras.Input((5, 3)), layers.LSTM(4, name="lstm"), layers.Dense(2, name="out")])

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 5, 3), expect=["initializers-match: rnn/*"])


def gated_recurrent_unit() -> detrand.Migration:
    @old_layers
    def tf1(x, training):
        ids = tf.nn.embedding_lookup(uniform("table", [7, 3]), x)
        return tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4, name="cell"), ids, dtype=tf.float32)[1]

    def port():
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(7, 3, name="table"),
                layers.GRU(4, reset_after=False, name="gru"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=integers(7, 2, 5), expect=["initializers-match: rnn/*"])


def additive_attention() -> detrand.Migration:
    def tf1(x, training):
        scores = dense(dense(x, 4, "hidden", tf.tanh), 1, "score", bias=False)
        return tf.reduce_sum(tf.nn.softmax(scores, axis=1) * x, 1)

    def port():
        x = keras.Input((6, 3))
        scores = layers.Dense(1, use_bias=False)(layers.Dense(4, "tanh")(x))
        weights = layers.Softmax(axis=1)(scores)
        return keras.Model(x, ops.sum(weights * x, axis=1))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 3))


def self_attention() -> detrand.Migration:
    def tf1(x, training):
        def split(y):
            return tf.transpose(tf.reshape(y, [-1, 5, 2, 4]), [0, 2, 1, 3])

        q, k, v = (split(dense(x, 8, name)) for name in "qkv")
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.5)
        weights = dropout(weights, 0.1, training)
        y = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [-1, 5, 8])
        return x + dense(y, 6, "project")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = layers.Dense(8), layers.Dense(8), layers.Dense(8)
            self.dropout, self.project = layers.Dropout(0.1), layers.Dense(6)

        def split(self, y):
            return ops.transpose(ops.reshape(y, (-1, 5, 2, 4)), (0, 2, 1, 3))

        def call(self, x, training=False):
            q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
            weights = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / 2.0)
            y = ops.matmul(self.dropout(weights, training=training), v)
            return x + self.project(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, 5, 8)))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 5, 6))


def feed_forward_block() -> detrand.Migration:
    def tf1(x, training):
        y = dense(x, 8, "wide", lambda v: v * 0.5 * (1.0 + tf.erf(v / np.sqrt(2.0))))
        y = x + dropout(dense(y, 4, "narrow"), 0.2, training)
        mean, variance = tf.nn.moments(y, [-1], keepdims=True)
        return tf.nn.batch_normalization(y, mean, variance, zeros("beta", [4]), ones("gamma", [4]), 1e-5)

    def port():
        x = keras.Input((3, 4))
        y = layers.Dropout(0.2)(layers.Dense(4)(layers.Dense(8, "gelu")(x)))
        return keras.Model(x, layers.LayerNormalization(epsilon=1e-5)(layers.Add()([x, y])))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 3, 4))


def bag_of_ragged_words() -> detrand.Migration:
    def tf1(features, training):
        words = tf.nn.embedding_lookup(uniform("words", [9, 4]), features["ids"])
        mask = tf.sequence_mask(features["length"], 6, tf.float32)[:, :, None]
        mean = tf.reduce_sum(words * mask, 1) / tf.cast(features["length"], tf.float32)[:, None]
        return dense(mean, 3, "classes", tf.nn.softmax)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.classes = layers.Embedding(9, 4), layers.Dense(3, "softmax")

        def call(self, features):
            length = ops.cast(features["length"], "float32")[:, None]
            mask = ops.cast(ops.arange(6, dtype="float32")[None] < length, "float32")
            return self.classes(ops.sum(self.words(features["ids"]) * mask[:, :, None], 1) / length)

    inputs = {"ids": integers(9, 3, 6), "length": np.array([2, 6, 1], np.int32)}
    return detrand.Migration(tf1=tf1, port=Port, inputs=inputs)


def language_model_with_tied_words() -> detrand.Migration:
    def tf1(x, training):
        table = uniform("words", [8, 4])
        hidden = dense(tf.nn.embedding_lookup(table, x), 4, "hidden", tf.tanh)
        return tf.einsum("btd,vd->btv", hidden, table)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.hidden = layers.Embedding(8, 4), layers.Dense(4, "tanh")

        def call(self, x):
            return ops.matmul(self.hidden(self.words(x)), ops.transpose(self.words.embeddings))

    return detrand.Migration(tf1=tf1, port=Port, inputs=integers(8, 2, 5))


def tf_keras_text_classifier() -> detrand.Migration:
    def tf1(x, training):
        x = dropout(tf.nn.embedding_lookup(uniform("words", [9, 4]), x), 0.25, training)
        return dense(tf.reduce_mean(x, 1), 2, "out")

    def port():
        ids = tf_keras.Input((6,), dtype="int32")
        x = tf_keras.layers.Dropout(0.25)(tf_keras.layers.Embedding(9, 4)(ids))
        return tf_keras.Model(ids, tf_keras.layers.Dense(2)(tf_keras.layers.GlobalAveragePooling1D()(x)))

    return detrand.Migration(tf1=tf1, port=port, inputs=integers(9, 3, 6))


def ragged_lengths_in_the_shim() -> detrand.Migration:
    @old_layers
    def tf1(x, length, training):
        cell = tf.nn.rnn_cell.LSTMCell(3, name="cell")
        outputs, _ = tf.nn.dynamic_rnn(cell, x, sequence_length=length, dtype=tf.float32)
        return {"outputs": outputs, "mask": tf.sequence_mask(length, 5)}

    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, x, length, training=False):
            return tf1(x, length, training)

    return detrand.Migration(tf1=tf1, port=Port, inputs=(numbers(3, 5, 2), np.array([5, 1, 3], np.int32)))
