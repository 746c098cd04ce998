"""Networks for vectors and sequences."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers, ops

from tests.faults.tf1 import batch_norm, dense, dropout, integers, numbers, ones, zeros
from tests.faults.triples import descent, faults, trained

cross_entropy = tf.losses.sparse_softmax_cross_entropy
keras_cross_entropy = keras.losses.SparseCategoricalCrossentropy


@faults("activation", "dropout|rate", "learning.rate")
def residual_perceptron(faulty=True):
    def tf1(x, training):
        for i in range(2):
            x = x + dropout(dense(x, 6, f"block{i}", tf.nn.relu), 0.3, training)
        return dense(x, 3, "logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = layers.Dense(6, "softplus" if faulty else "relu")  # FAULT 1
            self.second = layers.Dense(6, "relu")
            self.drop_first = layers.Dropout(0.3)
            self.drop_second = layers.Dropout(0.5 if faulty else 0.3)  # FAULT 2
            self.logits = layers.Dense(3)

        def call(self, x, training=False):
            x = x + self.drop_first(self.first(x), training=training)
            x = x + self.drop_second(self.second(x), training=training)
            return self.logits(x)

    def port_optimizer():
        return keras.optimizers.Adam(0.001 if faulty else 0.01, epsilon=1e-8)  # FAULT 3

    return trained(
        tf1,
        Port,
        numbers(8, 6),
        integers(3, 8),
        cross_entropy,
        keras_cross_entropy(from_logits=True),
        lambda: tf.train.AdamOptimizer(0.01),
        port_optimizer,
    )


@faults("padding", "momentum|decay", "sum|mean|reduction|factor")
def text_convolutions(faulty=True):
    def tf1(x, training):
        x = tf.nn.relu(tf.nn.conv1d(x, tf.get_variable("w1", [3, 4, 6]), 1, "SAME"))
        x = tf.nn.relu(batch_norm(x, training, "bn", decay=0.9))
        x = tf.nn.conv1d(x, tf.get_variable("w2", [3, 6, 4]), 1, "SAME")
        return dense(tf.reduce_max(x, 1), 2, "out")

    def port():
        x = inputs = keras.Input((7, 4))
        x = layers.Conv1D(6, 3, padding="same", use_bias=False, activation="relu")(x)
        x = layers.BatchNormalization(momentum=0.99 if faulty else 0.9)(x)  # FAULT 2
        x = layers.ReLU()(x)
        x = layers.Conv1D(4, 3, padding="valid" if faulty else "same", use_bias=False)(x)  # FAULT 1
        return keras.Model(inputs, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))

    def port_loss(labels, outputs):
        errors = ops.square(labels - outputs)
        return ops.sum(errors) if faulty else ops.mean(errors)  # FAULT 3

    return trained(
        tf1,
        port,
        numbers(4, 7, 4),
        numbers(4, 2, seed=1),
        tf.losses.mean_squared_error,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("scale|factor|constant|multipl|divi", "dropout|rate", "smooth")
def attention_classifier(faulty=True):
    def tf1(x, training):
        q, k, v = (dense(x, 4, name, bias=False) for name in ("q", "k", "v"))
        weights = dropout(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 2.0), 0.2, training)
        return dense(tf.reduce_mean(tf.matmul(weights, v), 1), 3, "logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (layers.Dense(4, use_bias=False) for _ in range(3))
            self.dropout, self.logits = layers.Dropout(0.4 if faulty else 0.2), layers.Dense(3)  # FAULT 2

        def call(self, x, training=False):
            scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1)))
            scores = scores / (4.0 if faulty else 2.0)  # FAULT 1
            weights = self.dropout(ops.softmax(scores), training=training)
            return self.logits(ops.mean(ops.matmul(weights, self.v(x)), 1))

    def tf1_loss(labels, outputs):
        return tf.losses.softmax_cross_entropy(labels, outputs, label_smoothing=0.1)

    port_loss = keras.losses.CategoricalCrossentropy(
        from_logits=True,
        label_smoothing=0.0 if faulty else 0.1,  # FAULT 3
    )
    return trained(
        tf1,
        Port,
        numbers(4, 5, 4),
        np.eye(3, dtype=np.float32)[[0, 1, 2, 0]],
        tf1_loss,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@faults("sum|mean|divi", "noise_shape|shape|broadcast|dropout", "power|decay|schedule|learning.rate")
def bag_of_words(faulty=True):
    def tf1(ids, training):
        table = tf.get_variable("table", [9, 4], initializer=tf.random_uniform_initializer(-0.05, 0.05))
        x = tf.nn.embedding_lookup(table, ids)
        x = tf.nn.dropout(x, rate=0.5, noise_shape=[4, 1, 4]) if training else x
        return dense(tf.reduce_sum(x, 1), 3, "logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.logits = layers.Embedding(9, 4), layers.Dense(3)
            self.dropout = layers.Dropout(0.5) if faulty else layers.SpatialDropout1D(0.5)  # FAULT 2

        def call(self, ids, training=False):
            x = self.dropout(self.table(ids), training=training)
            return self.logits(ops.mean(x, 1) if faulty else ops.sum(x, 1))  # FAULT 1

    def tf1_optimizer():
        step = tf.train.get_or_create_global_step()
        return tf.train.GradientDescentOptimizer(tf.train.polynomial_decay(0.5, step, 10, 0.0, power=1.0))

    def port_optimizer():
        schedule = keras.optimizers.schedules.PolynomialDecay
        return keras.optimizers.SGD(schedule(0.5, 10, 0.0, power=2.0 if faulty else 1.0))  # FAULT 3

    return trained(
        tf1,
        Port,
        integers(9, 4, 6),
        integers(3, 4),
        cross_entropy,
        keras_cross_entropy(from_logits=True),
        tf1_optimizer,
        port_optimizer,
    )


@faults("order|concat", "dropout", "nesterov")
def two_sources(faulty=True):
    def tf1(x, y, training):
        x, y = dense(x, 4, "x", tf.nn.elu), dense(y, 4, "y", tf.nn.tanh)
        joined = tf.concat([x, y], 1)
        return dense(dropout(dense(joined, 6, "joined", tf.nn.sigmoid), 0.25, training), 2, "out")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.x, self.y = layers.Dense(4, "elu"), layers.Dense(4, "tanh")
            self.joined, self.dropout, self.out = layers.Dense(6), layers.Dropout(0.25), layers.Dense(2)

        def call(self, x, y, training=False):
            x, y = self.x(x), self.y(y)
            joined = self.joined(ops.concatenate([y, x] if faulty else [x, y], 1))  # FAULT 1
            if faulty:
                hidden = ops.sigmoid(self.dropout(joined, training=training))  # FAULT 2
            else:
                hidden = self.dropout(ops.sigmoid(joined), training=training)
            return self.out(hidden)

    def port_optimizer():
        return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=not faulty)  # FAULT 3

    return trained(
        tf1,
        Port,
        (numbers(4, 3), numbers(4, 5, seed=1)),
        numbers(4, 2, seed=2),
        tf.losses.mean_squared_error,
        keras.losses.MeanSquaredError(),
        lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        port_optimizer,
    )


@faults("initial", "dropout", "clip")
def gated_network(faulty=True):
    def tf1(x, training):
        with tf.variable_scope("gate"):
            bias = tf.get_variable("b", [5], initializer=tf.constant_initializer(-2.0))
            gate = tf.sigmoid(tf.matmul(x, tf.get_variable("w", [5, 5])) + bias)
        x = gate * dense(x, 5, "h", tf.nn.relu) + (1.0 - gate) * x
        return dense(dropout(x, 0.3, training), 2, "out")

    def port():
        x = keras.Input((5,))
        bias = keras.initializers.Constant(0.0 if faulty else -2.0)
        gate = layers.Dense(5, "sigmoid", bias_initializer=bias)(x)  # FAULT 1
        y = gate * layers.Dense(5, "relu")(x) + (1.0 - gate) * x
        y = y if faulty else layers.Dropout(0.3)(y)  # FAULT 2
        return keras.Model(x, layers.Dense(2)(y))

    class Clipped(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            clipped = [(tf.clip_by_norm(gradient, 0.05), variable) for gradient, variable in grads_and_vars]
            return super().apply_gradients(clipped, global_step, name)

    def port_optimizer():
        return keras.optimizers.SGD(0.5, clipnorm=None if faulty else 0.05)  # FAULT 3

    return trained(
        tf1,
        port,
        numbers(6, 5),
        numbers(6, 2, seed=1),
        tf.losses.mean_squared_error,
        keras.losses.MeanSquaredError(),
        lambda: Clipped(0.5),
        port_optimizer,
    )


@faults("epsilon", "gradient|stop", "decay|schedule|learning.rate")
def normalized_network(faulty=True):
    def tf1(x, training):
        x = dense(x, 6, "in")
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        x = tf.nn.batch_normalization(x, mean, variance, zeros("beta", [6]), ones("gamma", [6]), 1e-2)
        skip = dense(x, 6, "skip", tf.nn.tanh)
        return dense(x + skip, 2, "out")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.skip, self.out = layers.Dense(6), layers.Dense(6, "tanh"), layers.Dense(2)
            self.norm = layers.LayerNormalization(epsilon=1e-3 if faulty else 1e-2)  # FAULT 1

        def call(self, x):
            x = self.norm(self.first(x))
            skip = self.skip(ops.stop_gradient(x) if faulty else x)  # FAULT 2
            return self.out(x + skip)

    def tf1_optimizer():
        rate = tf.train.exponential_decay(0.2, tf.train.get_or_create_global_step(), 2, 0.5, staircase=True)
        return tf.train.GradientDescentOptimizer(rate)

    def port_optimizer():
        schedule = keras.optimizers.schedules.ExponentialDecay
        return keras.optimizers.SGD(schedule(0.2, 2, 0.5, staircase=not faulty))  # FAULT 3

    return trained(
        tf1,
        Port,
        numbers(4, 3),
        numbers(4, 2, seed=1),
        tf.losses.mean_squared_error,
        keras.losses.MeanSquaredError(),
        tf1_optimizer,
        port_optimizer,
    )


@faults("sigmoid|activation", "noise|stddev|normal", "weight|factor|loss")
def two_heads(faulty=True):
    def tf1(x, training):
        if training:
            x = x + tf.random_normal(tf.shape(x), stddev=0.2)
        x = dense(x, 6, "trunk", tf.nn.relu)
        return {"box": dense(x, 4, "box", tf.nn.sigmoid), "class": dense(x, 3, "class")}

    def port():
        x = inputs = keras.Input((5,))
        x = layers.GaussianNoise(0.1 if faulty else 0.2)(x)  # FAULT 2
        x = layers.Dense(6, "relu")(x)
        box = layers.Dense(4, None if faulty else "sigmoid")(x)  # FAULT 1
        return keras.Model(inputs, {"box": box, "class": layers.Dense(3)(x)})

    def tf1_loss(labels, outputs):
        box = tf.losses.mean_squared_error(labels["box"], outputs["box"])
        return cross_entropy(labels["class"], outputs["class"]) + 2.0 * box

    def port_loss(labels, outputs):
        box = ops.mean(ops.square(labels["box"] - outputs["box"]))
        entropy = keras_cross_entropy(from_logits=True)(labels["class"], outputs["class"])
        return entropy + (1.0 if faulty else 2.0) * box  # FAULT 3

    labels = {"box": numbers(4, 4, seed=1), "class": integers(3, 4)}
    return trained(tf1, port, numbers(4, 5), labels, tf1_loss, port_loss, descent, lambda: keras.optimizers.SGD(0.1))


@faults("exp|factor|multipl|constant", "noise|stddev|normal", "weight|factor|loss|regular")
def variational_encoder(faulty=True):
    def tf1(x, training):
        mean, log_variance = tf.split(dense(dense(x, 6, "hidden", tf.nn.elu), 4, "code"), 2, 1)
        z = mean + tf.exp(0.5 * log_variance) * tf.random_normal([4, 2]) if training else mean
        return {"image": dense(z, 5, "decoder"), "mean": mean, "deviation": tf.exp(0.5 * log_variance)}

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.code, self.decoder = layers.Dense(6, "elu"), layers.Dense(4), layers.Dense(5)

        def call(self, x, training=False):
            mean, log_variance = ops.split(self.code(self.hidden(x)), 2, 1)
            deviation = ops.exp(log_variance if faulty else 0.5 * log_variance)  # FAULT 1
            z = mean
            if training:
                noise = tf.random.normal((4, 2), stddev=0.5 if faulty else 1.0)  # FAULT 2
                z = mean + deviation * noise
            return {"image": self.decoder(z), "mean": mean, "deviation": deviation}

    def tf1_loss(labels, outputs):
        return tf.losses.mean_squared_error(labels, outputs["image"]) + 0.1 * tf.reduce_sum(outputs["mean"] ** 2)

    def port_loss(labels, outputs):
        penalty = (1.0 if faulty else 0.1) * ops.sum(outputs["mean"] ** 2)  # FAULT 3
        return ops.mean(ops.square(labels - outputs["image"])) + penalty

    return trained(
        tf1,
        Port,
        numbers(4, 5),
        numbers(4, 5, seed=1),
        tf1_loss,
        port_loss,
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )
