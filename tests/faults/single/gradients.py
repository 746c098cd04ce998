"""Gradients that are stopped, clipped or missing."""

import keras
import tensorflow.compat.v1 as tf
from keras import layers, ops

from tests.faults.case import case
from tests.faults.tf1 import batch_norm, dense, integers, numbers
from tests.faults.triples import descent, trained

sparse_cross_entropy = tf.losses.sparse_softmax_cross_entropy
keras_cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sgd():
    return keras.optimizers.SGD(0.1)


def clipped(clip):
    """Return a function that makes TF1's gradient descent with gradients that ``clip(gradients)`` returns."""

    class Clipped(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, variables = zip(*grads_and_vars, strict=True)
            return super().apply_gradients(list(zip(clip(gradients), variables, strict=True)), global_step, name)

    return lambda: Clipped(0.1)


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.logits = layers.Dense(8, "relu"), layers.Dense(3)

    def call(self, x, training=False):
        return self.logits(self.hidden(x))


def classifier(x, training):
    return dense(dense(x, 8, "hidden", tf.nn.relu), 3, "logits")


@case("gradient", "target|gradient|q/", "stop.?gradient")
def target_without_stop_gradient(fault):
    def tf1(x, after, training):
        with tf.variable_scope("q", reuse=tf.AUTO_REUSE):
            q = dense(dense(x, 6, "hidden", tf.tanh), 1, "value")
            target = dense(dense(after, 6, "hidden", tf.tanh), 1, "value")
        return q, tf.stop_gradient(target)

    class Q(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.value = layers.Dense(6, "tanh"), layers.Dense(1)

        def call(self, x, after, training=False):
            target = self.value(self.hidden(after))
            target = target if fault else ops.stop_gradient(target)  # FAULT
            return self.value(self.hidden(x)), target

    def loss(rewards, outputs):
        return tf.reduce_mean(tf.square(rewards + 0.9 * outputs[1] - outputs[0]))

    inputs = numbers(6, 4), numbers(6, 4, seed=1)
    return trained(tf1, Q, inputs, numbers(6, 1, seed=2), loss, loss, descent, sgd)


@case("gradient", "gradient|features|dense", "stop.?gradient")
def features_that_get_no_gradient(fault):
    def tf1(x, training):
        features = dense(x, 6, "features", tf.nn.relu)
        return dense(features, 3, "logits"), dense(features, 2, "domain")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.features = layers.Dense(6, "relu")
            self.logits, self.domain = layers.Dense(3), layers.Dense(2)

        def call(self, x, training=False):
            x = self.features(x)
            domain = self.domain(ops.stop_gradient(x) if fault else x)  # FAULT
            return self.logits(x), domain

    def tf1_loss(labels, outputs):
        return sparse_cross_entropy(labels, outputs[0]) + sparse_cross_entropy(labels // 2, outputs[1])

    def port_loss(labels, outputs):
        return keras_cross_entropy(labels, outputs[0]) + keras_cross_entropy(labels // 2, outputs[1])

    return trained(tf1, Port, numbers(6, 5), integers(3, 6), tf1_loss, port_loss, descent, sgd)


@case("gradient", "round|gradient|code", "stop.?gradient|round")
def quantizer_without_a_gradient(fault):
    def tf1(x, training):
        code = dense(x, 4, "code", tf.sigmoid)
        code = code + tf.stop_gradient(tf.round(code) - code)
        return dense(code, 5, "decode")

    class Quantizer(keras.Model):
        def __init__(self):
            super().__init__()
            self.code, self.decode = layers.Dense(4, "sigmoid"), layers.Dense(5)

        def call(self, x, training=False):
            code = self.code(x)
            code = ops.round(code) if fault else code + ops.stop_gradient(ops.round(code) - code)  # FAULT
            return self.decode(code)

    x = numbers(6, 5)
    return trained(tf1, Quantizer, x, x, tf.losses.mean_squared_error, keras.losses.MeanSquaredError(), descent, sgd)


@case("gradient", "clip|optimizer", "clip")
def each_gradient_clipped_for_itself(fault):
    optimizer = clipped(lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0])

    def port_optimizer():
        clip = "clipnorm" if fault else "global_clipnorm"
        return keras.optimizers.SGD(0.1, **{clip: 0.1})  # FAULT

    return trained(
        classifier,
        Classifier,
        numbers(6, 4),
        integers(3, 6),
        sparse_cross_entropy,
        keras_cross_entropy,
        optimizer,
        port_optimizer,
    )


@case("gradient", "clip|optimizer", "clip")
def gradients_clipped_by_norm(fault):
    optimizer = clipped(lambda gradients: [tf.clip_by_value(gradient, -0.02, 0.02) for gradient in gradients])

    def port_optimizer():
        clip = "clipnorm" if fault else "clipvalue"
        return keras.optimizers.SGD(0.1, **{clip: 0.02})  # FAULT

    return trained(
        classifier,
        Classifier,
        numbers(6, 4),
        integers(3, 6),
        sparse_cross_entropy,
        keras_cross_entropy,
        optimizer,
        port_optimizer,
    )


@case("gradient", "bias|logits", "unused|not used|None|never|adds|bias")
def bias_that_is_never_added(fault):
    def tf1(x, training):
        x = batch_norm(dense(x, 6, "hidden"), training, "bn", decay=0.9)
        return dense(tf.nn.relu(x), 3, "logits")

    class Logits(layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 3), initializer="glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape=(3,), initializer="zeros", name="bias")

        def call(self, x):
            x = ops.matmul(x, self.kernel)  # FAULT
            return x if fault else x + self.bias

    def port():
        x = inputs = keras.Input((5,))
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(layers.Dense(6)(x)))
        return keras.Model(inputs, Logits()(x))  # FAULT

    return trained(tf1, port, numbers(8, 5), integers(3, 8), sparse_cross_entropy, keras_cross_entropy, descent, sgd)


@case("gradient", "embed|table|trainable", "trainable|frozen|freez")
def pretrained_embedding_is_trained(fault):
    def tf1(ids, training):
        table = tf.get_variable("table", [9, 4], initializer=tf.glorot_uniform_initializer(), trainable=False)
        return dense(tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1), 3, "logits")

    class Bag(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(9, 4, embeddings_initializer="glorot_uniform", trainable=fault)  # FAULT
            self.logits = layers.Dense(3)

        def call(self, ids, training=False):
            return self.logits(ops.mean(self.table(ids), 1))

    return trained(tf1, Bag, integers(9, 5, 4), integers(3, 5), sparse_cross_entropy, keras_cross_entropy, descent, sgd)
