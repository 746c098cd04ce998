"""Integers, strings and dtypes."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import conv, dense, integers, numbers


@case("integer", "gather|embed|ids|add", r"shift|\b1\b|adds|offset")
def ids_shifted_by_one(fault):
    def tf1(ids, training):
        table = tf.get_variable("table", [12, 6])
        x = tf.nn.embedding_lookup(table, ids)
        return dense(tf.reduce_max(x, 1), 3, "logits")

    class Text(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(12, 6, embeddings_initializer="glorot_uniform")
            self.logits = layers.Dense(3)

        def call(self, ids, training=False):
            x = self.table(ids + 1 if fault else ids)  # FAULT
            return self.logits(ops.max(x, 1))

    return detrand.Migration(tf1=tf1, port=Text, inputs=integers(11, 4, 6))


@case("integer", "one.?hot|sub|minus", r"\b1\b|subtract|sub\b|shift|offset|one.?hot|OneHot")
def labels_that_begin_at_one(fault):
    def tf1(x, classes, training):
        condition = tf.one_hot(classes - 1, 5)
        x = tf.concat([x, condition], 1)
        return dense(dense(x, 8, "g1", tf.nn.relu), 6, "g2", tf.tanh)

    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.g1, self.g2 = layers.Dense(8, "relu"), layers.Dense(6, "tanh")

        def call(self, x, classes, training=False):
            condition = ops.one_hot(classes if fault else classes - 1, 5)  # FAULT
            return self.g2(self.g1(ops.concatenate([x, condition], 1)))

    classes = np.array([1, 3, 5, 2], np.int32)
    return detrand.Migration(tf1=tf1, port=Generator, inputs=(numbers(4, 3), classes))


@case("integer", "search|bucket|boundar", "side|right|left|bound|search|upper|lower|bucket")
def side_of_a_bucket(fault):
    def tf1(ages, training):
        boundaries = tf.constant([18.0, 30.0, 45.0, 65.0])
        buckets = tf.searchsorted(boundaries, tf.reshape(ages, [-1]), side="right")
        x = tf.nn.embedding_lookup(tf.get_variable("ages", [5, 4]), buckets)
        return dense(x, 2, "out")

    class Buckets(tf.Module):
        def __init__(self):
            super().__init__()
            glorot = tf_keras.initializers.GlorotUniform()
            self.ages = tf.Variable(glorot([5, 4]), name="ages")
            self.w, self.b = tf.Variable(glorot([4, 2]), name="w"), tf.Variable(tf.zeros([2]), name="b")

        def __call__(self, ages, training=False):
            side = "left" if fault else "right"
            buckets = tf.searchsorted([18.0, 30.0, 45.0, 65.0], tf.reshape(ages, [-1]), side=side)  # FAULT
            return tf.gather(self.ages, buckets) @ self.w + self.b

    ages = np.array([[17], [18], [22], [30], [50], [65]], np.float32)
    return detrand.Migration(tf1=tf1, port=Buckets, inputs=ages)


@case("integer", "cast|round|floor", "round|truncat|floor|cast")
def positions_rounded(fault):
    def tf1(x, training):
        positions = tf.cast(tf.sigmoid(x[:, 0]) * 7.0, tf.int32)
        x = x + tf.nn.embedding_lookup(tf.get_variable("positions", [8, 5]), positions)
        return dense(x, 3, "out")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.positions = layers.Embedding(8, 5, embeddings_initializer="glorot_uniform")
            self.out = layers.Dense(3)

        def call(self, x, training=False):
            positions = ops.sigmoid(x[:, 0]) * 7.0
            positions = ops.round(positions) if fault else positions  # FAULT
            return self.out(x + self.positions(ops.cast(positions, "int32")))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(6, 5))


@case("integer", "div|distance|relative", r"\b2\b|\b4\b|divi|divisor|FloorDiv|floor")
def distances_divided_by_another_number(fault):
    def tf1(x, training):
        distance = tf.range(6)[None] - tf.range(6)[:, None]
        bucket = tf.minimum(tf.abs(distance) // 2, 3)
        bias = tf.nn.embedding_lookup(tf.get_variable("bias", [4, 1]), bucket)[..., 0]
        return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True) + bias), dense(x, 4, "v"))

    class Relative(keras.Model):
        def __init__(self):
            super().__init__()
            self.bias = layers.Embedding(4, 1, embeddings_initializer="glorot_uniform")
            self.v = layers.Dense(4)

        def call(self, x, training=False):
            distance = ops.arange(6)[None] - ops.arange(6)[:, None]
            bucket = ops.floor_divide(ops.abs(distance), 4 if fault else 2)  # FAULT
            bias = self.bias(ops.minimum(bucket, 3))[..., 0]
            scores = ops.matmul(x, ops.transpose(x, (0, 2, 1))) + bias
            return ops.matmul(ops.softmax(scores), self.v(x))

    return detrand.Migration(tf1=tf1, port=Relative, inputs=numbers(2, 6, 4))


@case("integer", "argmax|argmin|max", "axis|dimension|argmax")
def argmax_over_the_rows(fault):
    def tf1(x, training):
        x = conv(x, 5, 3, "scores")
        return {"scores": x, "classes": tf.argmax(x, 3, output_type=tf.int32)}

    class Segmentation(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(5, 3, padding="same")

        def call(self, x, training=False):
            x = self.conv(x)
            return {"scores": x, "classes": ops.argmax(x, 1 if fault else 3)}  # FAULT

    return detrand.Migration(tf1=tf1, port=Segmentation, inputs=numbers(2, 5, 5, 2))


@case("integer", "string|lower|hash|bucket", "lower|string")
def words_not_lowered(fault):
    def tf1(words, training):
        buckets = tf.strings.to_hash_bucket_fast(tf.strings.lower(words), 20)
        x = tf.nn.embedding_lookup(tf.get_variable("words", [20, 4]), buckets)
        return dense(tf.reduce_mean(x, 1), 2, "out")

    class Words(tf.Module):
        def __init__(self):
            super().__init__()
            glorot = tf_keras.initializers.GlorotUniform()
            self.words = tf.Variable(glorot([20, 4]), name="words")
            self.w, self.b = tf.Variable(glorot([4, 2]), name="w"), tf.Variable(tf.zeros([2]), name="b")

        def __call__(self, words, training=False):
            words = words if fault else tf.strings.lower(words)
            buckets = tf.strings.to_hash_bucket_fast(words, 20)  # FAULT
            return tf.reduce_mean(tf.gather(self.words, buckets), 1) @ self.w + self.b

    words = np.array([["The", "cat", "sat"], ["A", "dog", "Ran"]])
    return detrand.Migration(tf1=tf1, port=Words, inputs=words)


@case("dtype", "cast|softmax|matmul", "float16|half|dtype|cast|precision")
def softmax_in_half_precision(fault):
    def tf1(x, training):
        scores = tf.matmul(dense(x, 4, "q"), dense(x, 4, "k"), transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores), dense(x, 4, "v"))

    class Attention(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = layers.Dense(4), layers.Dense(4), layers.Dense(4)

        def call(self, x, training=False):
            scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1)))
            scores = ops.cast(scores, "float16") if fault else scores  # FAULT
            return ops.matmul(ops.cast(ops.softmax(scores), "float32"), self.v(x))

    return detrand.Migration(tf1=tf1, port=Attention, inputs=numbers(2, 5, 6))


@case("dtype", "cast|floor|div|image", "integer|truncat|floor|dtype")
def images_divided_as_integers(fault):
    def tf1(images, training):
        x = tf.cast(images, tf.float32) / 32.0
        return dense(tf.reshape(x, [-1, 48]), 4, "out", tf.nn.relu)

    class Flat(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.out = tf_keras.layers.Dense(4, "relu")

        def call(self, images, training=False):
            x = tf.cast(images // 32, tf.float32) if fault else tf.cast(images, tf.float32) / 32.0  # FAULT
            return self.out(tf.reshape(x, [-1, 48]))

    return detrand.Migration(tf1=tf1, port=Flat, inputs=integers(256, 3, 4, 4, 3))
