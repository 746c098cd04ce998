"""Networks of matrix products: regression, autoencoders, embeddings, mixtures."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow
import tf_keras

from detrand import Migration, track_tf1_style_variables
from tests.sound_migrations.training import (
    ACCURACY,
    ADADELTA_OF_SLICES,
    ADAGRAD,
    ADAM,
    CLIPPED_ADAM,
    FTRL,
    MEAN_SQUARE,
    NESTEROV,
    POLYNOMIAL,
    SGD,
    SIGMOID_CROSS_ENTROPY,
    SPARSE_CROSS_ENTROPY,
    classes,
    random,
    train_step,
)

tf = tensorflow.compat.v1
layers = keras.layers


# --- Softmax regression, from the first tutorial ------------------------------------------------------------


def softmax_regression(x, training):
    w = tf.Variable(tf.truncated_normal([6, 3], stddev=0.1))
    b = tf.Variable(tf.constant(0.1, shape=[3]))
    return tf.matmul(x, w) + b


def softmax_regression_port():
    normal, tenth = keras.initializers.TruncatedNormal(stddev=0.1), keras.initializers.Constant(0.1)
    return layers.Dense(3, kernel_initializer=normal, bias_initializer=tenth, name="dense")


# --- A highway network --------------------------------------------------------------------------------------


def highway(x, training, depth=4, size=5):
    def weights(name, shape):
        return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.3))

    with tf.variable_scope("input"):
        x = tf.tanh(tf.matmul(x, weights("kernel", [6, size])) + tf.get_variable("bias", [size]))
    for i in range(depth):
        with tf.variable_scope(f"highway_{i}"):
            h = tf.nn.relu(
                tf.matmul(x, weights("w_h", [size, size]))
                + tf.get_variable("b_h", [size], initializer=tf.zeros_initializer())
            )
            t = tf.sigmoid(
                tf.matmul(x, weights("w_t", [size, size]))
                + tf.get_variable("b_t", [size], initializer=tf.constant_initializer(-1.0))
            )
            x = h * t + x * (1.0 - t)
    with tf.variable_scope("softmax"):
        return tf.matmul(x, weights("kernel", [size, 3])) + tf.get_variable(
            "bias", [3], initializer=tf.zeros_initializer()
        )


class Highway(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        # each kernel has an initializer of its own: one that is shared draws the same numbers for both
        normals = [keras.initializers.RandomNormal(stddev=0.3) for _ in range(2)]
        self.h = layers.Dense(5, "relu", kernel_initializer=normals[0], name="h")
        self.t = layers.Dense(
            5, "sigmoid", kernel_initializer=normals[1], bias_initializer=keras.initializers.Constant(-1.0), name="t"
        )

    def call(self, x):
        h, t = self.h(x), self.t(x)
        return h * t + x * (1.0 - t)


class HighwayNetwork(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        normal = keras.initializers.RandomNormal(stddev=0.3)
        # get_variable without an initializer draws even a bias
        self.first = layers.Dense(5, "tanh", kernel_initializer=normal, bias_initializer="glorot_uniform", name="input")
        self.blocks = [Highway(f"highway_{i}") for i in range(4)]
        self.softmax = layers.Dense(3, kernel_initializer=normal, name="softmax")

    def call(self, x, training=False):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.softmax(x)


def highway_name(name):
    for old, new in {"w_h": "h/kernel", "b_h": "h/bias", "w_t": "t/kernel", "b_t": "t/bias"}.items():
        name = name.replace(old, new)
    return f"port/{name}"


# --- A denoising autoencoder with tied weights --------------------------------------------------------------


def denoising_autoencoder(x, training):
    noisy = x + tf.random_normal(tf.shape(x), stddev=0.2) if training else x
    w = tf.get_variable("w", [6, 4], initializer=tf.orthogonal_initializer())
    hidden = tf.sigmoid(tf.matmul(noisy, w) + tf.get_variable("b_encoder", [4], initializer=tf.zeros_initializer()))
    decoded = tf.matmul(hidden, w, transpose_b=True)
    return decoded + tf.get_variable("b_decoder", [6], initializer=tf.zeros_initializer())


class DenoisingAutoencoder(tensorflow.Module):
    def __init__(self):
        super().__init__()
        self.w = tensorflow.Variable(keras.initializers.Orthogonal()((6, 4)), name="w")
        self.b_encoder = tensorflow.Variable(tensorflow.zeros(4), name="b_encoder")
        self.b_decoder = tensorflow.Variable(tensorflow.zeros(6), name="b_decoder")

    def __call__(self, x, training=False):
        if training:
            x = x + tensorflow.random.normal(tensorflow.shape(x), stddev=0.2)
        hidden = tensorflow.sigmoid(x @ self.w + self.b_encoder)
        return tensorflow.matmul(hidden, self.w, transpose_b=True) + self.b_decoder


# --- A variational autoencoder with several outputs ---------------------------------------------------------


def variational_autoencoder(x, training):
    with tf.variable_scope("encoder", initializer=tf.variance_scaling_initializer(2.0)):
        hidden = tf.layers.dense(x, 5, tf.nn.elu, name="hidden")
        mean = tf.layers.dense(hidden, 2, name="mean")
        log_variance = tf.layers.dense(hidden, 2, name="log_variance")
    z = mean + tf.exp(0.5 * log_variance) * tf.random_normal(tf.shape(mean))
    with tf.variable_scope("decoder"):
        hidden = tf.layers.dense(z, 5, tf.nn.elu, name="hidden")
        logits = tf.layers.dense(hidden, 6, name="logits")
    return {"logits": logits, "mean": mean, "log_variance": log_variance, "x": tf.nn.sigmoid(logits)}


class VariationalAutoencoder(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        he = keras.initializers.VarianceScaling(2.0)
        self.encoder_hidden = layers.Dense(5, "elu", kernel_initializer=he, name="encoder_hidden")
        self.mean = layers.Dense(2, kernel_initializer=he, name="encoder_mean")
        # an initializer of its own: a shared one would draw the same numbers as for the mean
        other = keras.initializers.VarianceScaling(2.0)
        self.log_variance = layers.Dense(2, kernel_initializer=other, name="encoder_log_variance")
        self.decoder_hidden = layers.Dense(5, "elu", name="decoder_hidden")
        self.logits = layers.Dense(6, name="decoder_logits")
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        hidden = self.encoder_hidden(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        logits = self.logits(self.decoder_hidden(mean + keras.ops.exp(0.5 * log_variance) * noise))
        return {"logits": logits, "mean": mean, "log_variance": log_variance, "x": keras.ops.sigmoid(logits)}


def evidence_bound(x, outputs):
    """Return the negative evidence lower bound, as people wrote it down from the paper."""
    likelihood = -tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=outputs["logits"]), 1)
    mean, log_variance = outputs["mean"], outputs["log_variance"]
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
    return -tf.reduce_mean(likelihood - divergence)


def evidence_bound_of_port(x, outputs):
    cross_entropy = keras.ops.binary_crossentropy(x, outputs["logits"], from_logits=True)
    mean, log_variance = outputs["mean"], outputs["log_variance"]
    divergence = 0.5 * keras.ops.sum(keras.ops.exp(log_variance) + mean**2 - 1 - log_variance, axis=1)
    return keras.ops.mean(keras.ops.sum(cross_entropy, axis=1) + divergence)


# --- word2vec -----------------------------------------------------------------------------------------------


def skip_gram(centers, contexts, training, vocabulary=11, size=4):
    embeddings = tf.get_variable("embeddings", [vocabulary, size], initializer=tf.random_uniform_initializer(-1, 1))
    weights = tf.get_variable(
        "nce_weights", [vocabulary, size], initializer=tf.truncated_normal_initializer(stddev=0.5)
    )
    biases = tf.get_variable("nce_biases", [vocabulary], initializer=tf.zeros_initializer())
    vectors = tf.nn.embedding_lookup(embeddings, centers)
    loss = tf.nn.nce_loss(weights, biases, contexts, vectors, num_sampled=3, num_classes=vocabulary)
    return {"vectors": vectors, "loss": tf.reduce_mean(loss)}


class SkipGram(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        uniform = keras.initializers.RandomUniform(-1, 1)
        self.embeddings = layers.Embedding(11, 4, embeddings_initializer=uniform, name="embeddings")

    def build(self, centers_shape, contexts_shape=None):
        self.embeddings.build(centers_shape)
        normal = keras.initializers.TruncatedNormal(stddev=0.5)
        self.weights_of_words = self.add_weight(shape=(11, 4), initializer=normal, name="nce_weights")
        self.biases_of_words = self.add_weight(shape=(11,), initializer="zeros", name="nce_biases")
        self.built = True

    def call(self, centers, contexts, training=False):
        vectors = self.embeddings(centers)
        loss = tensorflow.nn.nce_loss(
            tensorflow.convert_to_tensor(self.weights_of_words),
            tensorflow.convert_to_tensor(self.biases_of_words),
            contexts,
            vectors,
            num_sampled=3,
            num_classes=11,
        )
        return {"vectors": vectors, "loss": tensorflow.reduce_mean(loss)}


# --- A siamese network, its weights shared by reuse ---------------------------------------------------------


def siamese(left, right, training):
    def tower(x, reuse):
        with tf.variable_scope("tower", reuse=reuse):
            x = tf.layers.dense(x, 5, tf.nn.relu, name="fc1")
            x = tf.layers.dropout(x, 0.3, training=training)
            return tf.layers.dense(x, 3, name="fc2")

    left, right = tower(left, reuse=False), tower(right, reuse=True)
    return tf.sqrt(tf.reduce_sum(tf.square(left - right), 1) + 1e-6)


class Siamese(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.fc1, self.drop = layers.Dense(5, "relu", name="fc1"), layers.Dropout(0.3)
        self.fc2 = layers.Dense(3, name="fc2")

    def call(self, left, right, training=False):
        def tower(x):
            return self.fc2(self.drop(self.fc1(x), training=training))

        return keras.ops.sqrt(keras.ops.sum((tower(left) - tower(right)) ** 2, axis=1) + 1e-6)


def contrastive(same, distance):
    return tensorflow.reduce_mean(
        same * tensorflow.square(distance) + (1 - same) * tensorflow.square(tensorflow.maximum(1.0 - distance, 0.0))
    )


# --- A mixture density network ------------------------------------------------------------------------------


def mixture_density(x, training, components=3):
    hidden = tf.layers.dense(x, 8, tf.tanh, kernel_initializer=tf.random_normal_initializer(stddev=0.5), name="hidden")
    outputs = tf.layers.dense(hidden, components * 3, name="mixture")
    logits, means, log_scales = tf.split(outputs, 3, axis=1)
    return tf.nn.softmax(logits), means, tf.exp(log_scales)


class MixtureDensity(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        normal = keras.initializers.RandomNormal(stddev=0.5)
        self.hidden = layers.Dense(8, "tanh", kernel_initializer=normal, name="hidden")
        self.mixture = layers.Dense(9, name="mixture")

    def call(self, x, training=False):
        logits, means, log_scales = keras.ops.split(self.mixture(self.hidden(x)), 3, axis=1)
        return keras.ops.softmax(logits), means, keras.ops.exp(log_scales)


def mixture_likelihood(y, outputs):
    weights, means, scales = outputs
    normal = tensorflow.exp(-0.5 * tensorflow.square((y - means) / scales)) / (scales * np.float32(np.sqrt(2 * np.pi)))
    return -tensorflow.reduce_mean(tensorflow.math.log(tensorflow.reduce_sum(weights * normal, 1)))


# --- A factorization machine with a deep part ---------------------------------------------------------------


def deep_factorization_machine(ids, values, training, features=13, size=3):
    first = tf.get_variable("first_order", [features, 1], initializer=tf.random_normal_initializer(0.0, 0.1))
    factors = tf.get_variable("factors", [features, size], initializer=tf.random_normal_initializer(0.0, 0.1))
    bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    values = tf.expand_dims(values, -1)
    linear = tf.reduce_sum(tf.nn.embedding_lookup(first, ids) * values, [1, 2])
    embedded = tf.nn.embedding_lookup(factors, ids) * values
    pairs = tf.square(tf.reduce_sum(embedded, 1)) - tf.reduce_sum(tf.square(embedded), 1)
    deep = tf.reshape(embedded, [-1, ids.shape[1] * size])
    for i in range(2):
        deep = tf.layers.dense(deep, 4, tf.nn.relu, name=f"deep_{i}")
        deep = tf.nn.dropout(deep, keep_prob=0.8 if training else 1.0)
    deep = tf.layers.dense(deep, 1, name="out")
    return bias + linear + 0.5 * tf.reduce_sum(pairs, 1) + tf.squeeze(deep, 1)


class DeepFactorizationMachine(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        normal = keras.initializers.RandomNormal(stddev=0.1)
        self.first = layers.Embedding(13, 1, embeddings_initializer=normal, name="first_order")
        self.factors = layers.Embedding(13, 3, embeddings_initializer=normal, name="factors")
        self.deep = [layers.Dense(4, "relu", name=f"deep_{i}") for i in range(2)]
        self.dropout = layers.Dropout(0.2)
        self.out = layers.Dense(1, name="out")
        self.bias = self.add_weight(shape=(), initializer="zeros", name="bias")

    def call(self, ids, values, training=False):
        values = values[..., None]
        linear = keras.ops.sum(self.first(ids) * values, axis=(1, 2))
        embedded = self.factors(ids) * values
        pairs = keras.ops.sum(embedded, axis=1) ** 2 - keras.ops.sum(embedded**2, axis=1)
        deep = keras.ops.reshape(embedded, (embedded.shape[0], -1))
        for dense in self.deep:
            deep = self.dropout(dense(deep), training=training)
        return self.bias + linear + 0.5 * keras.ops.sum(pairs, axis=1) + keras.ops.squeeze(self.out(deep), 1)


def factorization_name(name):
    return f"port/{name}/embeddings" if name in ("first_order", "factors") else f"port/{name}"


# --- A deep and cross network, inside a shim for now --------------------------------------------------------


def cross_network(x, training):
    x0 = x
    for i in range(3):
        with tf.variable_scope(f"cross_{i}", regularizer=lambda w: 0.02 * tf.nn.l2_loss(w)):
            w = tf.get_variable("w", [6, 1])
            b = tf.get_variable("b", [6], initializer=tf.zeros_initializer(), regularizer=tf.no_regularizer)
        x = x0 * tf.matmul(x, w) + b + x
    return tf.layers.dense(x, 3, name="logits")


class CrossLayer(tf_keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight("w", (shape[-1], 1), regularizer=tf_keras.regularizers.L2(0.01))
        self.b = self.add_weight("b", (shape[-1],), initializer="zeros")

    def call(self, x0, x):
        return x0 * tensorflow.matmul(x, self.w) + self.b + x


class CrossNetwork(tf_keras.Model):
    """A model with only the name that Keras gives it."""

    def __init__(self):
        super().__init__()
        self.crosses = [CrossLayer(name=f"cross_{i}") for i in range(3)]
        self.logits = tf_keras.layers.Dense(3, name="logits")

    def call(self, inputs, training=False):
        x = inputs
        for cross in self.crosses:
            x = cross(inputs, x)
        return self.logits(x)


# --- Actor and critic, a hand port half done ----------------------------------------------------------------


def actor_critic(observations, training):
    with tf.variable_scope("shared"):
        w = tf.get_variable("w", [6, 4], initializer=tf.orthogonal_initializer(np.sqrt(2)))
        h = tf.nn.leaky_relu(tf.matmul(observations, w) + tf.get_variable("b", [4], initializer=tf.zeros_initializer()))
    policy = tf.layers.dense(h, 3, name="policy")
    value = tf.layers.dense(h, 1, name="value")[:, 0]
    action = tf.squeeze(tf.multinomial(policy, 1, output_dtype=tf.int32), 1)
    return policy, value, action


class ActorCritic(keras.Model):
    """A model whose first layer is still TF1 code."""

    def __init__(self):
        super().__init__(name="port")
        self.policy, self.value = layers.Dense(3, name="policy"), layers.Dense(1, name="value")

    @track_tf1_style_variables
    def call(self, observations, training=False):
        with tf.variable_scope("shared"):
            w = tf.get_variable("w", [6, 4], initializer=tf.orthogonal_initializer(np.sqrt(2)))
            b = tf.get_variable("b", [4], initializer=tf.zeros_initializer())
        h = tensorflow.nn.leaky_relu(observations @ w + b)
        policy, value = self.policy(h), self.value(h)[:, 0]
        action = keras.random.categorical(policy, 1, dtype="int32")
        return policy, value, keras.ops.squeeze(action, 1)


def actor_critic_loss(returns, outputs):
    policy, value, action = outputs
    advantage = returns - value
    chosen = tensorflow.nn.sparse_softmax_cross_entropy_with_logits(labels=action, logits=policy)
    return tensorflow.reduce_mean(tensorflow.stop_gradient(advantage) * chosen + 0.5 * tensorflow.square(advantage))


# --- A wide and deep network of features in a dict, as an Estimator's model_fn gets them ---------------------


def wide_and_deep(features, training):
    jobs = tf.one_hot(features["person"]["occupation"], 7)
    wide = tf.layers.dense(tf.concat([jobs, features["hours"]], 1), 1, name="linear")
    table = tf.get_variable("embedding", [7, 4], initializer=tf.random_normal_initializer(stddev=0.5))
    embedded = tf.nn.embedding_lookup(table, features["person"]["occupation"])
    deep = tf.concat([embedded, features["person"]["age"]], 1)
    deep = tf.layers.dense(deep, 5, tf.nn.relu, name="hidden")
    deep = tf.layers.dropout(deep, 0.4, training=training)
    logits = wide + tf.layers.dense(deep, 1, use_bias=False, name="logits")
    return {"logits": logits, "probabilities": tf.sigmoid(logits)}


def wide_and_deep_port():
    occupation = keras.Input((), dtype="int32", name="occupation")
    age, hours = keras.Input((1,), name="age"), keras.Input((2,), name="hours")
    jobs = keras.ops.one_hot(occupation, 7)
    wide = layers.Dense(1, name="linear")(keras.ops.concatenate([jobs, hours], 1))
    normal = keras.initializers.RandomNormal(stddev=0.5)
    embedded = layers.Embedding(7, 4, embeddings_initializer=normal, name="embedding")(occupation)
    deep = layers.Dense(5, "relu", name="hidden")(keras.ops.concatenate([embedded, age], 1))
    deep = layers.Dropout(0.4)(deep)
    logits = wide + layers.Dense(1, use_bias=False, name="logits")(deep)
    outputs = {"logits": logits, "probabilities": keras.ops.sigmoid(logits)}
    return keras.Model({"person": {"occupation": occupation, "age": age}, "hours": hours}, outputs)


X = random(8, 6)
IDS = classes(8 * 4, 13).reshape(8, 4)
WORDS = classes(6, 11).astype(np.int64)

MIGRATIONS: tuple[Any, ...] = (
    Migration(
        tf1=softmax_regression,
        port=softmax_regression_port,
        inputs=X,
        name_map={"Variable": "dense/kernel", "Variable_1": "dense/bias"},
        train=train_step(classes(8, 3), SPARSE_CROSS_ENTROPY, POLYNOMIAL, metrics=ACCURACY),
    ),
    Migration(
        tf1=highway,
        port=HighwayNetwork,
        inputs=X,
        name_map=highway_name,
        train=train_step(classes(8, 3), SPARSE_CROSS_ENTROPY, FTRL),
    ),
    Migration(
        tf1=denoising_autoencoder,
        port=DenoisingAutoencoder,
        inputs=X,
        train=train_step(X, MEAN_SQUARE, ADAGRAD),
    ),
    Migration(
        tf1=variational_autoencoder,
        port=VariationalAutoencoder,
        inputs=np.abs(X),
        name_map=lambda name: "port/" + name.replace("coder/", "coder_"),
        train=train_step(np.abs(X), (evidence_bound, evidence_bound_of_port), ADAM),
    ),
    Migration(
        tf1=skip_gram,
        port=SkipGram,
        inputs=(WORDS, WORDS[::-1, None].copy()),
        name_map=lambda name: f"port/{name}/embeddings" if name == "embeddings" else f"port/{name}",
        train=train_step(WORDS, lambda labels, outputs: outputs["loss"], SGD),
    ),
    Migration(
        tf1=siamese,
        port=Siamese,
        inputs=(X, X[::-1].copy()),
        name_map=lambda name: name.replace("tower/", "port/"),
        train=train_step(classes(8, 2).astype(np.float32), contrastive, NESTEROV),
    ),
    Migration(
        tf1=mixture_density,
        port=MixtureDensity,
        inputs=X[:, :1],
        name_map="port/{}".format,
        train=train_step(np.sin(3 * X[:, :1]), mixture_likelihood, CLIPPED_ADAM),
    ),
    Migration(
        tf1=deep_factorization_machine,
        port=DeepFactorizationMachine,
        inputs=(IDS, random(8, 4)),
        name_map=factorization_name,
        train=train_step(classes(8, 2).astype(np.float32), SIGMOID_CROSS_ENTROPY, ADADELTA_OF_SLICES),
    ),
    Migration(
        tf1=cross_network,
        port=CrossNetwork,
        inputs=X,
        name_map="cross_network/{}".format,
        train=train_step(
            classes(8, 3),
            (SPARSE_CROSS_ENTROPY[0], tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
            (lambda: tf.train.AdamOptimizer(0.01), lambda: tf_keras.optimizers.Adam(0.01, epsilon=1e-8)),
        ),
    ),
    Migration(
        tf1=actor_critic,
        port=ActorCritic,
        inputs=X,
        name_map=lambda name: name if name.startswith("shared") else f"port/{name}",
        train=train_step(random(8), actor_critic_loss, SGD),
    ),
    Migration(
        tf1=wide_and_deep,
        port=wide_and_deep_port,
        inputs={"person": {"occupation": classes(8, 7), "age": random(8, 1)}, "hours": random(8, 2)},
        name_map={"embedding": "embedding/embeddings"},
        train=train_step(
            classes(8, 2).astype(np.float32)[:, None],
            tuple(lambda labels, outputs, loss=loss: loss(labels, outputs["logits"]) for loss in SIGMOID_CROSS_ENTROPY),
            SGD,
        ),
    ),
)
