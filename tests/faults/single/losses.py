"""Losses of ports that are trained."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

from tests.faults.case import case
from tests.faults.tf1 import conv, dense, integers, numbers, old_layers
from tests.faults.triples import descent, trained

sparse_cross_entropy = tf.losses.sparse_softmax_cross_entropy


def sgd():
    return keras.optimizers.SGD(0.1)


def one_hot(classes, *shape, seed=0):
    return np.eye(classes, dtype=np.float32)[integers(classes, *shape, seed=seed)]


@case("loss", "loss", r"\bsum\b|\bmean\b|batch|times|divi|reduction")
def sum_over_the_batch(fault):
    def tf1(x, training):
        return dense(dense(x, 8, "hidden", tf.nn.relu), 3, "logits")

    def tf1_loss(labels, logits):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def port():
        return keras.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])

    reduction = "sum" if fault else "sum_over_batch_size"
    port_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)  # FAULT
    return trained(tf1, port, numbers(6, 5), integers(3, 6), tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", r"\bsum\b|\bmean\b|times|divi|reduction|factor")
def squares_summed_over_the_features(fault):
    def tf1(x, training):
        return dense(dense(x, 3, "encode", tf.nn.sigmoid), 6, "decode")

    def tf1_loss(labels, outputs):
        return tf.reduce_mean(tf.reduce_sum(tf.square(outputs - labels), 1))

    class Autoencoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = layers.Dense(3, "sigmoid"), layers.Dense(6)

        def call(self, x, training=False):
            return self.decode(self.encode(x))

    def port_loss(labels, outputs):
        squares = ops.square(outputs - labels)
        return ops.mean(squares) if fault else ops.mean(ops.sum(squares, 1))  # FAULT

    x = numbers(4, 6)
    return trained(tf1, Autoencoder, x, x, tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", "weight")
def weights_of_the_labels_ignored(fault):
    def tf1(x, training):
        return dense(x, 4, "logits")

    def tf1_loss(labels, logits):
        weights = tf.gather([1.0, 2.0, 0.5, 4.0], labels)
        return sparse_cross_entropy(labels, logits, weights=weights, reduction=tf.losses.Reduction.MEAN)

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def port_loss(labels, logits):
        losses = cross_entropy(labels, logits)
        weights = ops.take(ops.convert_to_tensor([1.0, 2.0, 0.5, 4.0]), labels)
        return ops.mean(losses) if fault else ops.sum(losses * weights) / ops.sum(weights)  # FAULT

    return trained(tf1, lambda: layers.Dense(4), numbers(8, 6), integers(4, 8), tf1_loss, port_loss, descent, sgd)


@case("loss", "loss|log", "logits|softmax|sigmoid|log")
def probabilities_expected_but_logits_given(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.dense(x, 6, activation=tf.nn.relu, name="hidden")
        return tf.layers.dense(x, 4, name="logits")

    def port():
        return tf_keras.Sequential([tf_keras.layers.Dense(6, activation="relu"), tf_keras.layers.Dense(4)])

    port_loss = tf_keras.losses.CategoricalCrossentropy(from_logits=not fault)  # FAULT
    return trained(
        tf1,
        port,
        numbers(5, 3),
        one_hot(4, 5),
        tf.losses.softmax_cross_entropy,
        port_loss,
        descent,
        lambda: tf_keras.optimizers.SGD(0.1),
    )


@case("loss", "softmax|loss", "softmax|logits|twice")
def softmax_in_the_model_and_in_the_loss(fault):
    def tf1(x, training):
        logits = dense(dense(x, 8, "hidden", tf.nn.elu), 3, "logits")
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def tf1_loss(labels, outputs):
        return sparse_cross_entropy(labels, outputs["logits"])

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.logits = layers.Dense(8, "elu"), layers.Dense(3)

        def call(self, x, training=False):
            logits = self.logits(self.hidden(x))
            return {"logits": logits, "probabilities": ops.softmax(logits)}

    def port_loss(labels, outputs):
        logits = outputs["probabilities" if fault else "logits"]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))  # FAULT

    return trained(tf1, Port, numbers(6, 4), integers(3, 6), tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", "smooth")
def label_smoothing_of_sigmoids(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 4, 3, stride=2, scope="conv")
        return slim.fully_connected(slim.flatten(x), 5, activation_fn=None, scope="logits")

    def tf1_loss(labels, logits):
        return tf.losses.sigmoid_cross_entropy(labels, logits, label_smoothing=0.1)

    def port():
        x = inputs = keras.Input((6, 6, 2))
        x = layers.Conv2D(4, 3, 2, padding="same", activation="relu")(x)
        return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(x)))

    smoothing = 0.05 if fault else 0.1
    port_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing)  # FAULT
    labels = (numbers(4, 5, seed=3) > 0).astype(np.float32)
    return trained(tf1, port, numbers(4, 6, 6, 2), labels, tf1_loss, port_loss, descent, sgd)


@case("loss", "loss|mask", "mask|padding|weight|ignor|mean")
def padding_counts_in_the_loss(fault):
    def tf1(ids, training):
        x = tf.nn.embedding_lookup(tf.get_variable("table", [7, 6]), ids)
        return dense(x, 7, "logits")

    def tf1_loss(labels, logits):
        mask = tf.cast(tf.not_equal(labels, 0), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    class Tagger(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(7, 6, embeddings_initializer="glorot_uniform")
            self.logits = layers.Dense(7)

        def call(self, ids, training=False):
            return self.logits(self.table(ids))

    ignored = None if fault else 0
    port_loss = keras.losses.SparseCategoricalCrossentropy(True, ignored)  # FAULT
    labels = np.array([[3, 2, 5, 0, 0], [1, 6, 0, 0, 0], [2, 4, 4, 1, 0]], np.int32)
    return trained(tf1, Tagger, integers(7, 3, 5), labels, tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", "weight|factor|multipl|pos_weight|times")
def weight_of_positives_ignored(fault):
    def tf1(x, training):
        return conv(conv(x, 4, 3, "features", tf.nn.relu), 1, 1, "mask")

    def tf1_loss(labels, logits):
        return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(labels, logits, pos_weight=3.0))

    def port():
        return keras.Sequential([layers.Conv2D(4, 3, padding="same", activation="relu"), layers.Conv2D(1, 1)])

    def port_loss(labels, logits):
        if fault:
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))  # FAULT
        return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(labels, logits, pos_weight=3.0))

    labels = (numbers(2, 5, 5, 1, seed=1) > 1).astype(np.float32)
    return trained(tf1, port, numbers(2, 5, 5, 2), labels, tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", r"delta|\b0\.5\b|factor|constant|threshold|multipl|minimum")
def delta_of_the_huber_loss(fault):
    def tf1(x, training):
        return dense(tf.nn.relu(dense(x, 8, "hidden")), 2, "q")

    def tf1_loss(labels, outputs):
        return tf.losses.huber_loss(labels, outputs, delta=1.0)

    class Q(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.q = tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(2)

        def call(self, x, training=False):
            return self.q(self.hidden(x))

    port_loss = tf_keras.losses.Huber(delta=0.5 if fault else 1.0)  # FAULT
    optimizer = tf_keras.optimizers.legacy.SGD
    labels = 2 * numbers(6, 2, seed=2)
    return trained(tf1, Q, numbers(6, 4), labels, tf1_loss, port_loss, descent, lambda: optimizer(0.1))


@case("loss", "loss|aux", r"\b0\.[34]\b|factor|weight|multipl|constant|aux")
def weight_of_the_auxiliary_loss(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 4, 3, scope="stem")
        aux = slim.fully_connected(tf.reduce_mean(x, [1, 2]), 3, activation_fn=None, scope="aux")
        x = slim.conv2d(x, 4, 3, scope="body")
        return slim.fully_connected(tf.reduce_mean(x, [1, 2]), 3, activation_fn=None, scope="logits"), aux

    def tf1_loss(labels, outputs):
        logits, aux = outputs
        return sparse_cross_entropy(labels, logits) + sparse_cross_entropy(labels, aux, weights=0.4)

    def port():
        x = inputs = keras.Input((5, 5, 3))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        aux = layers.Dense(3)(layers.GlobalAveragePooling2D()(x))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        return keras.Model(inputs, [layers.Dense(3)(layers.GlobalAveragePooling2D()(x)), aux])

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def tuple_port():
        class Tuple(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = port()

            def call(self, x, training=False):
                return tuple(self.inner(x, training=training))

        return Tuple()

    def port_loss(labels, outputs):
        logits, aux = outputs
        weight = 0.3 if fault else 0.4
        return cross_entropy(labels, logits) + weight * cross_entropy(labels, aux)  # FAULT

    return trained(tf1, tuple_port, numbers(4, 5, 5, 3), integers(3, 4), tf1_loss, port_loss, descent, sgd)


@case("loss", "loss", r"add_loss|none \(port\)|only TF1|lacks")
def divergence_not_added(fault):
    def encode(x):
        return dense(x, 3, "mean"), dense(x, 3, "log_variance")

    def tf1(x, training):
        mean, log_variance = encode(dense(x, 8, "hidden", tf.tanh))
        divergence = -0.5 * tf.reduce_sum(1.0 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
        tf.losses.add_loss(tf.reduce_mean(divergence))
        z = mean + tf.exp(0.5 * log_variance) * tf.random_normal(tf.shape(mean)) if training else mean
        return dense(z, 6, "decode")

    class Vae(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.decode = layers.Dense(8, "tanh"), layers.Dense(6)
            self.mean, self.log_variance = layers.Dense(3), layers.Dense(3)

        def call(self, x, training=False):
            x = self.hidden(x)
            mean, log_variance = self.mean(x), self.log_variance(x)  # FAULT
            divergence = -0.5 * ops.sum(1.0 + log_variance - ops.square(mean) - ops.exp(log_variance), 1)
            if not fault:
                self.add_loss(ops.mean(divergence))
            z = mean + ops.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean)) if training else mean
            return self.decode(z)

    def tf1_loss(labels, outputs):
        tf.losses.mean_squared_error(labels, outputs)
        return tf.losses.get_total_loss(add_regularization_losses=False)

    x = numbers(4, 6)
    return trained(tf1, Vae, x, x, tf1_loss, keras.losses.MeanSquaredError(), descent, sgd)


@case("loss", "loss|label|slice", "shift|slice|offset|label|target|begin|roll")
def targets_off_by_one(fault):
    def tf1(ids, training):
        x = tf.nn.embedding_lookup(tf.get_variable("wte", [8, 6]), ids)
        x = x + tf.get_variable("wpe", [6, 6])
        return dense(x, 8, "logits", bias=False)

    def tf1_loss(labels, logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, 1:], logits=logits[:, :-1])
        return tf.reduce_mean(losses)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.wte = layers.Embedding(8, 6, embeddings_initializer="glorot_uniform")
            self.wpe = layers.Embedding(6, 6, embeddings_initializer="glorot_uniform")
            self.logits = layers.Dense(8, use_bias=False)

        def call(self, ids, training=False):
            return self.logits(self.wte(ids) + self.wpe(ops.arange(6)))

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def port_loss(labels, logits):
        labels = labels[:, :-1] if fault else labels[:, 1:]  # FAULT
        return cross_entropy(labels, logits[:, :-1])

    ids = integers(8, 3, 6)
    return trained(tf1, Port, ids, ids, tf1_loss, port_loss, descent, sgd)
