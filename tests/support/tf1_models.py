"""Small TF1 models, in the idioms of 2016 to 2018, as they stood in tutorials and repositories.

Each is a function of its inputs and ``training``, written for a graph and a session: it knows nothing of
detrand. `MODELS` holds them all with inputs to call them on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow
import tf_slim as slim

tf = tensorflow.compat.v1  # how TF1 code is run since TF2 came out


@dataclass(frozen=True)
class TF1Model:
    """A TF1 program and arrays to call it on."""

    program: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


MODELS: dict[str, TF1Model] = {}


def tf1_model(*inputs: np.ndarray) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a program in `MODELS`, under its name."""

    def register(program: Callable[..., Any]) -> Callable[..., Any]:
        MODELS[program.__name__] = TF1Model(program, inputs)
        return program

    return register


def _random(*shape: int) -> np.ndarray:
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


SEQUENCES = _random(3, 5, 4)  # batch, time, features
LENGTHS = np.array([5, 2, 4], np.int32)
IMAGES = _random(2, 8, 8, 3)
VECTORS = _random(4, 6)
TOKENS = np.array([[1, 5, 2], [7, 0, 3]], np.int32)


# --- Recurrent networks -------------------------------------------------------------------------------------


@tf1_model(SEQUENCES)
def static_lstm_with_dropout(sequences, training):
    keep_prob = 0.5 if training else 1.0

    def cell():
        lstm = tf.nn.rnn_cell.BasicLSTMCell(3, forget_bias=1.0)
        return tf.nn.rnn_cell.DropoutWrapper(lstm, input_keep_prob=keep_prob, output_keep_prob=keep_prob)

    cells = tf.nn.rnn_cell.MultiRNNCell([cell() for _ in range(2)])
    state = cells.zero_state(3, tf.float32)
    outputs, state = tf.nn.static_rnn(cells, tf.unstack(sequences, axis=1), initial_state=state)
    with tf.variable_scope("softmax"):
        w = tf.get_variable("w", [3, 2])
        b = tf.get_variable("b", [2], initializer=tf.constant_initializer(0.0))
    return tf.matmul(outputs[-1], w) + b, state[-1].c


@tf1_model(SEQUENCES, LENGTHS)
def dynamic_lstm(sequences, lengths, training):
    cell = tf.nn.rnn_cell.LSTMCell(4, use_peepholes=True, num_proj=3, initializer=tf.random_normal_initializer())
    cells = tf.nn.rnn_cell.MultiRNNCell([cell, tf.nn.rnn_cell.ResidualWrapper(tf.nn.rnn_cell.GRUCell(3))])
    outputs, state = tf.nn.dynamic_rnn(cells, sequences, sequence_length=lengths, dtype=tf.float32)
    return {"outputs": outputs, "state": state}


@tf1_model(SEQUENCES)
def dynamic_gru_in_scope(sequences, training):
    with tf.variable_scope("encoder", initializer=tf.random_uniform_initializer(-0.1, 0.1)):
        _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(3, activation=tf.nn.relu), sequences, dtype=tf.float32)
    with tf.variable_scope("decoder"):
        outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicRNNCell(3), sequences, initial_state=state)
    return tf.layers.dense(outputs, 2, name="projection")


@tf1_model(SEQUENCES, LENGTHS)
def bidirectional_dynamic(sequences, lengths, training):
    forward, backward = (tf.nn.rnn_cell.LSTMCell(3, name="lstm_" + name) for name in ("fw", "bw"))
    outputs, _ = tf.nn.bidirectional_dynamic_rnn(forward, backward, sequences, lengths, dtype=tf.float32, scope="bi")
    return tf.concat(outputs, 2)


@tf1_model(SEQUENCES)
def bidirectional_static_with_dropout(sequences, training):
    keep_prob = 0.7 if training else 1.0
    forward, backward = (
        tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.GRUCell(3), state_keep_prob=keep_prob, variational_recurrent=False)
        for _ in range(2)
    )
    outputs, *_ = tf.nn.static_bidirectional_rnn(forward, backward, tf.unstack(sequences, axis=1), dtype=tf.float32)
    return tf.stack(outputs)


# --- Convolutional networks ---------------------------------------------------------------------------------


@tf1_model(IMAGES)
def named_convnet(images, training):
    l2 = tensorflow.keras.regularizers.L2(0.01)
    with tf.variable_scope("convnet"):
        net = tf.layers.conv2d(images, 4, 3, padding="same", activation=tf.nn.relu, kernel_regularizer=l2, name="conv1")
        net = tf.layers.max_pooling2d(net, 2, 2, name="pool1")
        net = tf.layers.separable_conv2d(net, 3, 3, padding="same", name="conv2")
        net = tf.layers.conv2d_transpose(net, 2, 2, strides=2, name="up")
        net = tf.layers.dropout(tf.layers.flatten(net), 0.4, training=training, name="drop")
        return tf.layers.dense(net, 3, kernel_regularizer=l2, bias_regularizer=l2, name="logits")


@tf1_model(IMAGES)
def unnamed_convnet(images, training):
    net = images
    for filters in (3, 4):
        net = tf.layers.conv2d(net, filters, 3, use_bias=False)
        net = tf.layers.batch_normalization(net, momentum=0.9, training=training)
        net = tf.nn.relu(net)
    net = tf.reduce_mean(net, [1, 2])
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return tf.layers.dense(net, 2)


@tf1_model(IMAGES)
def slim_convnet(images, training):
    batch_norm = {"is_training": training, "decay": 0.9, "scale": True, "fused": False}
    arguments = {
        "weights_regularizer": slim.l2_regularizer(0.01),
        "weights_initializer": tf.truncated_normal_initializer(stddev=0.1),
        "normalizer_fn": slim.batch_norm,
        "normalizer_params": batch_norm,
    }
    end_points = {}
    with slim.arg_scope([slim.conv2d, slim.fully_connected], **arguments), tf.variable_scope(None, "small", [images]):
        net = slim.repeat(images, 2, slim.conv2d, 3, [3, 3], scope="conv")
        end_points["conv"] = net
        net = slim.max_pool2d(net, [2, 2], scope="pool")
        net = slim.dropout(slim.flatten(net), 0.6, is_training=training)
        end_points["logits"] = slim.fully_connected(net, 2, activation_fn=None, scope="logits")
    return end_points


# --- Generative models --------------------------------------------------------------------------------------


@tf1_model(VECTORS)
def variational_autoencoder(vectors, training):
    def encode(x):
        with tf.variable_scope("encoder"):
            hidden = tf.layers.dense(x, 5, tf.nn.elu, kernel_initializer=tf.variance_scaling_initializer())
            return tf.layers.dense(hidden, 2), tf.layers.dense(hidden, 2)

    def decode(z, reuse=None):
        with tf.variable_scope("decoder", reuse=reuse):
            return tf.layers.dense(tf.layers.dense(z, 5, tf.nn.elu), 6)

    mean, log_variance = encode(vectors)
    z = mean + tf.exp(0.5 * log_variance) * tf.random_normal(tf.shape(mean))
    reconstruction = decode(z)
    samples = decode(tf.random_normal([3, 2]), reuse=True)
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), 1)
    loss = tf.reduce_mean(tf.reduce_sum((vectors - reconstruction) ** 2, 1) + divergence)
    return {"loss": loss, "samples": samples}


@tf1_model(VECTORS)
def generative_adversarial_network(vectors, training):
    def generator(noise):
        with tf.variable_scope("generator"):
            hidden = tf.layers.dense(noise, 5, use_bias=False)
            hidden = tf.nn.relu(tf.layers.batch_normalization(hidden, training=training))
            return tf.layers.dense(hidden, 6, tf.tanh)

    def discriminator(x, reuse=False):
        with tf.variable_scope("discriminator") as scope:
            if reuse:
                scope.reuse_variables()
            hidden = tf.nn.leaky_relu(tf.layers.dense(x, 4, name="hidden"))
            return tf.layers.dense(hidden, 1, name="score")

    fake = generator(tf.random_uniform([4, 3], -1, 1))
    real_score, fake_score = discriminator(vectors), discriminator(fake, reuse=True)
    cross_entropy = tf.losses.sigmoid_cross_entropy
    d_loss = cross_entropy(tf.ones_like(real_score), real_score) + cross_entropy(tf.zeros_like(fake_score), fake_score)
    g_loss = cross_entropy(tf.ones_like(fake_score), fake_score)
    g_weights = [v for v in tf.trainable_variables() if v.name.startswith("generator")]
    d_weights = tf.trainable_variables("discriminator")
    return {"d": d_loss, "g": g_loss, "norms": [tf.norm(v) for v in g_weights + d_weights]}


# --- Embeddings and attention -------------------------------------------------------------------------------


@tf1_model(TOKENS[:, 0], TOKENS[:, 1:2].astype(np.int64))
def word2vec(centers, contexts, training):
    embeddings = tf.get_variable("embeddings", initializer=tf.random_uniform([10, 4], -1.0, 1.0))
    weights = tf.get_variable("nce/weights", initializer=tf.truncated_normal([10, 4], stddev=0.5))
    biases = tf.get_variable("nce/biases", initializer=tf.zeros([10]))
    embedded = tf.nn.embedding_lookup(embeddings, centers)
    nce = tf.nn.nce_loss(weights, biases, inputs=embedded, labels=contexts, num_sampled=3, num_classes=10)
    normalized = embeddings / tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keepdims=True))
    return tf.reduce_mean(nce), tf.matmul(normalized, normalized, transpose_b=True)


@tf1_model(TOKENS)
def transformer_block(tokens, training):
    width, heads = 8, 2

    def layer_norm(x, scope):
        with tf.variable_scope(scope):
            gain = tf.get_variable("g", [width], initializer=tf.constant_initializer(1))
            bias = tf.get_variable("b", [width], initializer=tf.constant_initializer(0))
            mean = tf.reduce_mean(x, axis=-1, keepdims=True)
            variance = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
            return (x - mean) * tf.rsqrt(variance + 1e-5) * gain + bias

    def linear(x, scope, outputs):
        with tf.variable_scope(scope):
            *start, inputs = x.shape.as_list()
            w = tf.get_variable("w", [1, inputs, outputs], initializer=tf.random_normal_initializer(stddev=0.02))
            b = tf.get_variable("b", [outputs], initializer=tf.constant_initializer(0))
            product = tf.matmul(tf.reshape(x, [-1, inputs]), tf.reshape(w, [-1, outputs]))
            return tf.reshape(product + b, [*start, outputs])

    def attention(x):
        with tf.variable_scope("attn"):
            query, key, value = tf.split(linear(x, "c_attn", 3 * width), 3, axis=2)
            split = [tf.transpose(tf.reshape(a, [2, 3, heads, -1]), [0, 2, 1, 3]) for a in (query, key, value)]
            weights = tf.nn.softmax(tf.matmul(split[0], split[1], transpose_b=True) * tf.rsqrt(width / heads))
            weights = tf.nn.dropout(weights, rate=0.3 if training else 0.0)
            merged = tf.reshape(tf.transpose(tf.matmul(weights, split[2]), [0, 2, 1, 3]), [2, 3, width])
            return linear(merged, "c_proj", width)

    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        wpe = tf.get_variable("wpe", [3, width], initializer=tf.random_normal_initializer(stddev=0.01))
        wte = tf.get_variable("wte", [10, width], initializer=tf.random_normal_initializer(stddev=0.02))
        h = tf.gather(wte, tokens) + wpe
        for layer in range(2):
            with tf.variable_scope(f"h{layer}"):
                h = h + attention(layer_norm(h, "ln_1"))
                with tf.variable_scope("mlp"):
                    h = h + linear(tf.nn.relu(linear(layer_norm(h, "ln_2"), "c_fc", 2 * width)), "c_proj", width)
        return {"logits": tf.matmul(tf.reshape(layer_norm(h, "ln_f"), [-1, width]), wte, transpose_b=True)}


@tf1_model(TOKENS)
def partitioned_embedding(tokens, training):
    partitioner = tf.fixed_size_partitioner(3)
    with tf.variable_scope("input", partitioner=partitioner):
        table = tf.get_variable("table", [10, 4], initializer=tf.glorot_normal_initializer())
    with tf.variable_scope("input", reuse=True):
        again = tf.get_variable("table", [10, 4], partitioner=partitioner)
    looked_up = tf.nn.embedding_lookup(table, tokens, partition_strategy="div")
    kernel = tf.get_variable("kernel", initializer=tf.eye(4), partitioner=partitioner)
    return looked_up, tf.tensordot(looked_up, kernel, 1), tf.reduce_sum(tf.convert_to_tensor(again), 0)


# --- Sharing and reparametrizing weights --------------------------------------------------------------------


@tf1_model(VECTORS)
def weight_normalization(vectors, training):
    def normalized(getter, name, *args, **kwargs):
        weight = getter(name, *args, **kwargs)
        if not name.endswith("kernel"):
            return weight
        gain = getter(name + "_g", shape=weight.shape[-1:], initializer=tf.ones_initializer())
        return gain * tf.nn.l2_normalize(weight, 0)

    with tf.variable_scope("weight_norm", custom_getter=normalized):
        kernel = tf.get_variable("kernel", [6, 5])
        with tf.variable_scope("deeper"):
            deeper = tf.get_variable("kernel", [5, 2], initializer=tf.random_normal_initializer())
    return tf.matmul(tf.nn.relu(tf.matmul(vectors, kernel)), deeper)


@tf1_model(VECTORS)
def averaged_weights(vectors, training):
    average = tf.train.ExponentialMovingAverage(0.9)

    def averaged(getter, name, *args, **kwargs):
        weight = getter(name, *args, **kwargs)
        averaged_weight = average.average(weight)
        return weight if averaged_weight is None else averaged_weight

    def network(x, reuse=None, getter=None):
        with tf.variable_scope("network", reuse=reuse, custom_getter=getter):
            w = tf.get_variable("w", [6, 2])
            return tf.matmul(x, w) + tf.get_variable("b", [2], initializer=tf.ones_initializer())

    trained = network(vectors)
    update = average.apply(tf.trainable_variables("network"))
    with tf.control_dependencies([update]):
        return trained, network(tf.identity(vectors), reuse=True, getter=averaged)


@tf1_model(VECTORS)
def shared_templates(vectors, training):
    def autoregress(x, units):
        hidden = tf.layers.dense(x, units, tf.tanh, name="hidden")
        scale = tf.get_variable("scale", [units], initializer=tf.random_uniform_initializer())
        return tf.layers.dense(hidden * scale, 6)

    step = tf.make_template("step", autoregress, units=4)
    other = tf.make_template("step", autoregress, units=3, create_scope_now_=True)
    for _ in range(3):
        vectors = vectors + step(vectors)
    return step(other(vectors)), other(vectors), tf.reduce_sum(step.trainable_variables[0])


@tf1_model(VECTORS)
def highway_network(vectors, training):
    with tf.variable_scope(
        "highway", regularizer=slim.l2_regularizer(0.1), initializer=tf.random_normal_initializer(stddev=0.3)
    ):
        for layer in range(2):
            with tf.variable_scope(f"layer_{layer}"):
                w = tf.get_variable("w", [6, 6])
                b = tf.get_variable("b", [6], regularizer=slim.l1_regularizer(0.2))
                with tf.variable_scope("gate", regularizer=tf.no_regularizer):
                    w_gate = tf.get_variable("w", [6, 6])
                    b_gate = tf.get_variable("b", [6], initializer=tf.constant_initializer(-1.0))
                gate = tf.sigmoid(tf.matmul(vectors, w_gate) + b_gate)
                hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(vectors, w) + b), rate=0.5 if training else 0.0)
                vectors = gate * hidden + (1 - gate) * vectors
    counter = tf.get_variable("calls", [], tf.int64, trainable=False, initializer=tf.zeros_initializer())
    tf.add_to_collection("activations", vectors)
    (activation,) = tf.get_collection("activations")
    return activation, tf.assign_add(counter, 1)
