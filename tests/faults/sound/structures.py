"""Ordinary ports with several inputs or outputs, in all kinds of layers, modules and functions."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from keras import layers, ops

import detrand
from tests.faults.tf1 import dense, dropout, integers, numbers, ones, zeros


def module() -> detrand.Migration:
    def tf1(x, training):
        return dense(dense(x, 5, "a", tf.nn.selu), 2, "b")

    class Dense(tf.Module):
        def __init__(self, width, units):
            super().__init__()
            self.w = tf.Variable(keras.initializers.GlorotUniform()((width, units)), name="w")
            self.b = tf.Variable(np.zeros(units, np.float32), name="b")

        def __call__(self, x):
            return tf.matmul(x, self.w) + self.b

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Dense(3, 5), Dense(5, 2)

        def __call__(self, x, training=False):
            return self.second(tf.nn.selu(self.first(x)))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 3))


def function_without_variables() -> detrand.Migration:
    def tf1(x, y, training):
        distance = tf.reduce_sum(tf.squared_difference(x[:, None], y[None]), -1)
        return {"nearest": tf.argmin(distance, 1), "kernel": tf.exp(-distance)}

    def port(x, y, training=False):
        distance = ops.sum(ops.square(x[:, None] - y[None]), -1)
        return {"nearest": ops.cast(ops.argmin(distance, 1), "int64"), "kernel": ops.exp(-distance)}

    return detrand.Migration(tf1=tf1, port=lambda: port, inputs=(numbers(3, 4), numbers(5, 4, seed=1)))


def two_towers() -> detrand.Migration:
    def tf1(user, item, training):
        user = tf.nn.l2_normalize(dense(user, 4, "user", tf.nn.relu), -1)
        item = tf.nn.l2_normalize(dense(item, 4, "item", tf.nn.relu), -1)
        return tf.reduce_sum(user * item, -1)

    def port():
        user, item = keras.Input((3,)), keras.Input((5,))
        towers = [layers.UnitNormalization()(layers.Dense(4, "relu")(x)) for x in (user, item)]
        return keras.Model([user, item], ops.sum(towers[0] * towers[1], -1))

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.model = port()

        def call(self, user, item):
            return self.model([user, item])

    return detrand.Migration(tf1=tf1, port=Pair, inputs=(numbers(4, 3), numbers(4, 5, seed=1)))


def heads_in_a_dict() -> detrand.Migration:
    def tf1(x, training):
        x = dropout(dense(x, 6, "trunk", tf.nn.relu), 0.4, training)
        return {"class": dense(x, 3, "class"), "box": dense(x, 4, "box", tf.nn.sigmoid), "trunk": x}

    def port():
        x = keras.Input((5,))
        trunk = layers.Dropout(0.4)(layers.Dense(6, "relu")(x))
        return keras.Model(
            x, {"class": layers.Dense(3)(trunk), "box": layers.Dense(4, "sigmoid")(trunk), "trunk": trunk}
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 5))


def nested_outputs() -> detrand.Migration:
    def tf1(x, training):
        a = dense(x, 2, "a")
        return [a, {"b": (dense(a, 3, "b"), tf.shape(a))}]

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(2), layers.Dense(3)

        def call(self, x):
            a = self.a(x)
            return [a, {"b": (self.b(a), ops.convert_to_tensor(ops.shape(a), "int32"))}]

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def wide_and_deep() -> detrand.Migration:
    def tf1(features, training):
        wide = tf.one_hot(features["country"], 4)
        table = tf.get_variable("city", [6, 3], initializer=tf.random_uniform_initializer(-0.05, 0.05))
        deep = tf.concat([tf.nn.embedding_lookup(table, features["city"]), features["age"]], 1)
        deep = dense(deep, 4, "deep", tf.nn.relu)
        return dense(wide, 1, "wide", bias=False) + dense(deep, 1, "logit")

    def port():
        inputs = {
            "country": keras.Input((), dtype="int32", name="country"),
            "city": keras.Input((), dtype="int32", name="city"),
            "age": keras.Input((1,), name="age"),
        }
        wide = layers.CategoryEncoding(4, "one_hot")(inputs["country"])
        deep = layers.Concatenate()([layers.Embedding(6, 3)(inputs["city"]), inputs["age"]])
        logit = layers.Dense(1)(layers.Dense(4, "relu")(deep))
        return keras.Model(inputs, layers.Add()([layers.Dense(1, use_bias=False)(wide), logit]))

    inputs = {"country": integers(4, 5), "city": integers(6, 5), "age": numbers(5, 1)}
    return detrand.Migration(tf1=tf1, port=port, inputs=inputs)


def variational_autoencoder() -> detrand.Migration:
    def tf1(x, training):
        mean, log_variance = tf.split(dense(dense(x, 6, "encode", tf.tanh), 4, "code"), 2, 1)
        z = mean + tf.exp(0.5 * log_variance) * tf.random_normal(tf.shape(mean))
        return dense(z, 5, "decode"), mean, log_variance

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.encode, self.code, self.decode = layers.Dense(6, "tanh"), layers.Dense(4), layers.Dense(5)
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x):
            mean, log_variance = ops.split(self.code(self.encode(x)), 2, 1)
            noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
            return self.decode(mean + ops.exp(log_variance / 2) * noise), mean, log_variance

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def factorization_machine() -> detrand.Migration:
    def tf1(x, training):
        v = tf.get_variable("v", [6, 3])
        pairs = 0.5 * tf.reduce_sum(tf.square(tf.matmul(x, v)) - tf.matmul(x * x, v * v), 1, keepdims=True)
        return dense(x, 1, "linear") + pairs

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.linear = layers.Dense(1)

        def build(self, shape):
            self.v = self.add_weight(shape=(6, 3), initializer="glorot_uniform", name="v")
            self.linear.build(shape)

        def call(self, x):
            square_of_sum = ops.square(ops.matmul(x, self.v))
            sum_of_squares = ops.matmul(ops.square(x), ops.square(self.v))
            return self.linear(x) + ops.sum(square_of_sum - sum_of_squares, 1, keepdims=True) / 2

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 6))


def highway_network() -> detrand.Migration:
    def tf1(x, training):
        for i in range(2):
            with tf.variable_scope(f"layer{i}"):
                w = tf.get_variable("gate/w", [4, 4])
                gate = tf.sigmoid(
                    tf.matmul(x, w) + tf.get_variable("gate/b", [4], initializer=tf.constant_initializer(-1))
                )
                x = gate * dense(x, 4, "h", tf.nn.relu) + (1 - gate) * x
        return x

    def port():
        x = inputs = keras.Input((4,))
        for _ in range(2):
            gate = layers.Dense(4, "sigmoid", bias_initializer=keras.initializers.Constant(-1.0))(x)
            x = gate * layers.Dense(4, "relu")(x) + (1 - gate) * x
        return keras.Model(inputs, x)

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(3, 4))


def siamese_network() -> detrand.Migration:
    def embed(x, reuse):
        with tf.variable_scope("net", reuse=reuse):
            return dense(dense(x, 4, "a", tf.nn.relu), 2, "b")

    def tf1(x, y, training):
        return tf.norm(embed(x, False) - embed(y, True), axis=1)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(2)])

        def call(self, x, y):
            return ops.norm(self.net(x) - self.net(y), axis=1)

    return detrand.Migration(tf1=tf1, port=Port, inputs=(numbers(3, 5), numbers(3, 5, seed=1)))


def tf1_code_in_a_layer() -> detrand.Migration:
    def tf1(x, training):
        with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
            x = dense(x, 4, "a", tf.nn.elu, regularizer=lambda w: 0.01 * tf.nn.l2_loss(w))
            x = dropout(x, 0.5, training)
            return x * ones("scale", []) + zeros("shift", [4])

    class Port(detrand.VariableScopeLayer):
        def forward_pass(self, x, training=False):
            return tf1(x, training)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(3, 5))


def text_among_the_inputs() -> detrand.Migration:
    def tf1(name, x, training):
        return {"name": name, "id": tf.range(3), "score": dense(x, 1, "score")}

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.score = layers.Dense(1)

        def __call__(self, name, x, training=False):
            return {"name": name, "id": tf.range(3), "score": self.score(x)}

    return detrand.Migration(tf1=tf1, port=Port, inputs=(np.array([b"a", b"b", b"c"]), numbers(3, 2)))
