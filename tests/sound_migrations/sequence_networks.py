"""Networks for sequences: recurrent cells, attention, causal convolutions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow
import tf_keras

from detrand import Migration
from tests.sound_migrations.training import (
    ADAGRAD,
    ADAM,
    CLIPPED_ADAM,
    MEAN_SQUARE,
    MOMENTUM,
    SGD,
    SPARSE_CROSS_ENTROPY,
    classes,
    random,
    train_step,
)

tf = tensorflow.compat.v1
layers = keras.layers
UNITS = 4


# --- A language model, as the PTB tutorial has it -----------------------------------------------------------


def language_model(words, training, vocabulary=11):
    keep_prob = 0.6 if training else 1.0
    with tf.variable_scope("model", initializer=tf.random_uniform_initializer(-0.5, 0.5)):
        embedding = tf.get_variable("embedding", [vocabulary, UNITS])
        inputs = tf.nn.embedding_lookup(embedding, words)
        if training:
            inputs = tf.nn.dropout(inputs, keep_prob)
        cells = [tf.nn.rnn_cell.BasicLSTMCell(UNITS, forget_bias=0.0) for _ in range(2)]
        if training:
            cells = [tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=keep_prob) for cell in cells]
        cell = tf.nn.rnn_cell.MultiRNNCell(cells)
        state = cell.zero_state(words.shape[0], tf.float32)
        outputs = []
        with tf.variable_scope("RNN"):
            for step in range(words.shape[1]):
                if step > 0:
                    tf.get_variable_scope().reuse_variables()
                output, state = cell(inputs[:, step, :], state)
                outputs.append(output)
        output = tf.reshape(tf.concat(outputs, 1), [-1, UNITS])
        logits = tf.matmul(output, tf.get_variable("softmax_w", [UNITS, vocabulary])) + tf.get_variable(
            "softmax_b", [vocabulary]
        )
    return tf.reshape(logits, [words.shape[0], words.shape[1], vocabulary])


class BasicLSTMCell(layers.Layer):
    """The cell of TF1: one kernel for input and state, whose gates come in the order i, j, f, o."""

    def __init__(self, units, initializer="glorot_uniform", forget_bias=1.0, name=None):
        super().__init__(name=name)
        self.units, self.initializer, self.forget_bias = units, initializer, forget_bias
        self.state_size = [units, units]

    def build(self, shape):
        size = shape[-1] + self.units
        self.kernel = self.add_weight(shape=(size, 4 * self.units), initializer=self.initializer, name="kernel")
        self.bias = self.add_weight(shape=(4 * self.units,), initializer="zeros", name="bias")
        self.built = True

    def call(self, inputs, states):
        c, h = states
        gates = keras.ops.matmul(keras.ops.concatenate([inputs, h], axis=1), self.kernel) + self.bias
        i, j, f, o = keras.ops.split(gates, 4, axis=1)
        c = c * keras.ops.sigmoid(f + self.forget_bias) + keras.ops.sigmoid(i) * keras.ops.tanh(j)
        h = keras.ops.tanh(c) * keras.ops.sigmoid(o)
        return h, [c, h]


class LanguageModel(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        uniform = keras.initializers.RandomUniform(-0.5, 0.5)
        self.embedding = layers.Embedding(11, UNITS, embeddings_initializer=uniform, name="embedding")
        # each cell has an initializer of its own: one that is shared draws the same kernel for both
        self.cells = [
            BasicLSTMCell(UNITS, keras.initializers.RandomUniform(-0.5, 0.5), 0.0, name=f"cell_{i}") for i in range(2)
        ]
        self.dropout = layers.Dropout(0.4)
        self.softmax = layers.Dense(11, kernel_initializer=uniform, bias_initializer=uniform, name="softmax")

    def call(self, words, training=False):
        inputs = self.dropout(self.embedding(words), training=training)
        states = [[keras.ops.zeros((inputs.shape[0], UNITS))] * 2 for _ in self.cells]
        outputs = []
        for step in range(inputs.shape[1]):
            x = inputs[:, step]
            for number, cell in enumerate(self.cells):
                x, states[number] = cell(x, states[number])
                x = self.dropout(x, training=training)
            outputs.append(x)
        return self.softmax(keras.ops.stack(outputs, axis=1))


LANGUAGE_NAMES = {
    "model/embedding": "port/embedding/embeddings",
    "model/softmax_w": "port/softmax/kernel",
    "model/softmax_b": "port/softmax/bias",
    **{
        f"model/RNN/multi_rnn_cell/cell_{i}/basic_lstm_cell/{name}": f"port/cell_{i}/{name}"
        for i in range(2)
        for name in ("kernel", "bias")
    },
}


# --- The same under dynamic_rnn, the port with a stack of cells ----------------------------------------------


def character_model(characters, training):
    embedding = tf.get_variable("embedding", [7, UNITS])
    cells = [tf.nn.rnn_cell.BasicLSTMCell(UNITS) for _ in range(2)]
    if training:
        cells = [tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.6) for cell in cells]
    inputs = tf.nn.embedding_lookup(embedding, characters)
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.MultiRNNCell(cells), inputs, dtype=tf.float32)
    return tf.layers.dense(outputs, 7, name="softmax")


class DroppingLSTMCell(BasicLSTMCell):
    def __init__(self, units, name):
        super().__init__(units, name=name)
        self.dropout = layers.Dropout(0.4)

    def call(self, inputs, states, training=False):
        outputs, states = super().call(inputs, states)
        return self.dropout(outputs, training=training), states


class CharacterModel(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.embedding = layers.Embedding(7, UNITS, embeddings_initializer="glorot_uniform", name="embedding")
        cells = [DroppingLSTMCell(UNITS, f"cell_{i}") for i in range(2)]
        self.rnn = layers.RNN(cells, return_sequences=True, name="rnn")
        self.softmax = layers.Dense(7, name="softmax")

    def call(self, characters, training=False):
        return self.softmax(self.rnn(self.embedding(characters), training=training))


def character_name(name):
    name = name.replace("multi_rnn_cell", "stacked_rnn_cells").replace("basic_lstm_cell/", "")
    return "port/embedding/embeddings" if name == "embedding" else f"port/{name}"


# --- A sequence classifier under dynamic_rnn ----------------------------------------------------------------


def sequence_classifier(sequences, training):
    cell = tf.nn.rnn_cell.GRUCell(UNITS, name="gru")
    if training:
        cell = tf.nn.rnn_cell.DropoutWrapper(cell, input_keep_prob=0.7)
    outputs, state = tf.nn.dynamic_rnn(cell, sequences, dtype=tf.float32, scope="encoder")
    return tf.layers.dense(state, 3, name="logits"), outputs


class GRUCell(layers.Layer):
    """The cell of TF1, with dropout before it."""

    def __init__(self, units, rate, name):
        super().__init__(name=name)
        self.units = self.state_size = units
        self.gates = layers.Dense(2 * units, "sigmoid", bias_initializer="ones", name="gates")
        self.candidate = layers.Dense(units, "tanh", name="candidate")
        self.dropout = layers.Dropout(rate)

    def build(self, shape):
        size = (shape[0], shape[-1] + self.units)
        self.gates.build(size)
        self.candidate.build(size)
        self.built = True

    def call(self, inputs, states, training=False):
        (h,) = states
        inputs = self.dropout(inputs, training=training)
        r, u = keras.ops.split(self.gates(keras.ops.concatenate([inputs, h], axis=1)), 2, axis=1)
        c = self.candidate(keras.ops.concatenate([inputs, r * h], axis=1))
        h = u * h + (1 - u) * c
        return h, [h]


class SequenceClassifier(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.encoder = layers.RNN(GRUCell(UNITS, 0.3, "gru"), return_sequences=True, return_state=True, name="encoder")
        self.logits = layers.Dense(3, name="logits")

    def call(self, sequences, training=False):
        outputs, state = self.encoder(sequences, training=training)
        return self.logits(state), outputs


# --- A bidirectional tagger ---------------------------------------------------------------------------------


def tagger(sequences, training):
    forward, backward = (tf.nn.rnn_cell.LSTMCell(UNITS, name="lstm") for _ in range(2))
    outputs, _ = tf.nn.bidirectional_dynamic_rnn(forward, backward, sequences, dtype=tf.float32, scope="bi")
    x = tf.layers.dropout(tf.concat(outputs, 2), 0.5, training=training)
    return tf.layers.dense(x, 5, name="tags")


class Tagger(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.fw = layers.RNN(BasicLSTMCell(UNITS, name="lstm"), return_sequences=True, name="fw")
        self.bw = layers.RNN(BasicLSTMCell(UNITS, name="lstm"), return_sequences=True, go_backwards=True, name="bw")
        self.dropout, self.tags = layers.Dropout(0.5), layers.Dense(5, name="tags")

    def call(self, sequences, training=False):
        x = keras.ops.concatenate([self.fw(sequences), keras.ops.flip(self.bw(sequences), axis=1)], axis=2)
        return self.tags(self.dropout(x, training=training))


# --- A transformer's encoder --------------------------------------------------------------------------------


def transformer(words, training, heads=2, size=4):
    def norm(x, name):
        with tf.variable_scope(name):
            gamma = tf.get_variable("gamma", [size], initializer=tf.ones_initializer())
            beta = tf.get_variable("beta", [size], initializer=tf.zeros_initializer())
            mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
            return gamma * (x - mean) * tf.rsqrt(variance + 1e-6) + beta

    def split(x):
        return tf.concat(tf.split(x, heads, axis=2), axis=0)

    length = int(words.shape[1])
    table = tf.get_variable("lookup", [9, size], initializer=tf.random_normal_initializer(0.0, size**-0.5))
    positions = np.sin(np.arange(length)[:, None] / 10.0 ** np.arange(size)).astype(np.float32)
    x = tf.nn.embedding_lookup(table, words) * size**0.5 + positions
    x = tf.layers.dropout(x, 0.1, training=training)
    for i in range(2):
        with tf.variable_scope(f"block_{i}"):
            q, k, v = (split(tf.layers.dense(x, size, use_bias=False, name=name)) for name in "qkv")
            weights = tf.matmul(q, k, transpose_b=True) / (size // heads) ** 0.5
            visible = tf.matrix_band_part(tf.ones([length, length]), -1, 0)
            weights = tf.nn.softmax(weights - 1e9 * (1.0 - visible))
            weights = tf.layers.dropout(weights, 0.2, training=training)
            attended = tf.concat(tf.split(tf.matmul(weights, v), heads, axis=0), axis=2)
            x = norm(x + attended, "ln1")
            hidden = tf.layers.conv1d(x, 6, 1, activation=tf.nn.relu, name="ff1")
            x = norm(x + tf.layers.conv1d(hidden, size, 1, name="ff2"), "ln2")
    return tf.einsum("btd,vd->btv", x, table)


class TransformerBlock(layers.Layer):
    def __init__(self, size, heads, name):
        super().__init__(name=name)
        self.heads, self.size = heads, size
        self.q, self.k, self.v = (layers.Dense(size, use_bias=False, name=name) for name in "qkv")
        self.dropout = layers.Dropout(0.2)
        self.ln1, self.ln2 = (layers.LayerNormalization(epsilon=1e-6, name=f"ln{i}") for i in (1, 2))
        self.ff1, self.ff2 = layers.Conv1D(6, 1, activation="relu", name="ff1"), layers.Conv1D(size, 1, name="ff2")

    def call(self, x, training=False):
        def split(x):
            return keras.ops.concatenate(keras.ops.split(x, self.heads, axis=2), axis=0)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        weights = keras.ops.matmul(q, keras.ops.transpose(k, (0, 2, 1))) / (self.size // self.heads) ** 0.5
        weights = weights - 1e9 * (1.0 - np.tri(x.shape[1], dtype="float32"))
        weights = self.dropout(keras.ops.softmax(weights), training=training)
        attended = keras.ops.split(keras.ops.matmul(weights, v), self.heads, axis=0)
        x = self.ln1(x + keras.ops.concatenate(attended, axis=2))
        return self.ln2(x + self.ff2(self.ff1(x)))


class Transformer(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        normal = keras.initializers.RandomNormal(stddev=0.5)
        self.lookup = layers.Embedding(9, 4, embeddings_initializer=normal, name="lookup")
        self.dropout = layers.Dropout(0.1)
        self.blocks = [TransformerBlock(4, 2, f"block_{i}") for i in range(2)]

    def call(self, words, training=False):
        positions = np.sin(np.arange(words.shape[1])[:, None] / 10.0 ** np.arange(4)).astype("float32")
        x = self.dropout(self.lookup(words) * 2.0 + positions, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return keras.ops.matmul(x, keras.ops.transpose(self.lookup.embeddings))


# --- Sequence to sequence with additive attention, by a loop ------------------------------------------------


def translator(source, target, training):
    embedding = tf.get_variable("embedding", [7, 3])
    encoded, state = tf.nn.dynamic_rnn(
        tf.nn.rnn_cell.BasicRNNCell(UNITS), tf.nn.embedding_lookup(embedding, source), dtype=tf.float32, scope="encoder"
    )
    keys = tf.layers.dense(encoded, UNITS, use_bias=False, name="memory")
    v = tf.get_variable("attention_v", [UNITS])
    cell = tf.nn.rnn_cell.BasicRNNCell(UNITS, name="decoder")
    logits, alignments = [], []
    for word in tf.unstack(target, axis=1):
        query = tf.layers.dense(state, UNITS, use_bias=False, name="query", reuse=bool(logits))
        scores = tf.reduce_sum(v * tf.tanh(keys + tf.expand_dims(query, 1)), 2)
        alignment = tf.nn.softmax(scores)
        context = tf.reduce_sum(tf.expand_dims(alignment, 2) * encoded, 1)
        _, state = cell(tf.concat([tf.nn.embedding_lookup(embedding, word), context], 1), state)
        logits.append(tf.layers.dense(state, 7, name="out", reuse=bool(logits)))
        alignments.append(alignment)
    return {"logits": tf.stack(logits, 1), "alignments": tf.stack(alignments, 1)}


class RNNCell(layers.Layer):
    def __init__(self, units, name):
        super().__init__(name=name)
        self.state_size, self.dense = units, layers.Dense(units, "tanh", name="dense")

    def build(self, shape):
        self.dense.build((shape[0], shape[-1] + self.state_size))
        self.built = True

    def call(self, inputs, states):
        h = self.dense(keras.ops.concatenate([inputs, states[0]], axis=1))
        return h, [h]


class Translator(keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.embedding = layers.Embedding(7, 3, embeddings_initializer="glorot_uniform", name="embedding")
        self.encoder = layers.RNN(RNNCell(UNITS, "cell"), return_sequences=True, return_state=True, name="encoder")
        self.memory = layers.Dense(UNITS, use_bias=False, name="memory")
        self.query = layers.Dense(UNITS, use_bias=False, name="query")
        self.decoder, self.out = RNNCell(UNITS, "decoder"), layers.Dense(7, name="out")
        self.attention_v = self.add_weight(shape=(UNITS,), initializer="glorot_uniform", name="attention_v")

    def call(self, source, target, training=False):
        encoded, state = self.encoder(self.embedding(source))
        keys = self.memory(encoded)
        logits, alignments = [], []
        for word in keras.ops.unstack(target, axis=1):
            scores = keras.ops.sum(self.attention_v * keras.ops.tanh(keys + self.query(state)[:, None]), axis=2)
            alignment = keras.ops.softmax(scores)
            context = keras.ops.einsum("bt,btd->bd", alignment, encoded)
            _, (state,) = self.decoder(keras.ops.concatenate([self.embedding(word), context], axis=1), [state])
            logits.append(self.out(state))
            alignments.append(alignment)
        return {"logits": keras.ops.stack(logits, axis=1), "alignments": keras.ops.stack(alignments, axis=1)}


def translator_name(name):
    name = name.replace("encoder/basic_rnn_cell", "encoder/cell/dense").replace("decoder/", "decoder/dense/")
    return f"port/{name}/embeddings" if name == "embedding" else f"port/{name}"


# --- Causal convolutions with gates -------------------------------------------------------------------------


def wave_network(audio, training):
    x = tf.layers.conv1d(audio, UNITS, 1, name="start")
    skips = 0.0
    for i in range(3):
        rate = 2**i
        with tf.variable_scope(f"layer{i}"):
            padded = tf.pad(x, [[0, 0], [rate, 0], [0, 0]])
            gates = tf.layers.conv1d(padded, 2 * UNITS, 2, dilation_rate=rate, name="gates")
            content, gate = tf.split(gates, 2, axis=2)
            h = tf.tanh(content) * tf.sigmoid(gate)
            skips += tf.layers.conv1d(h, UNITS, 1, name="skip")
            x += tf.layers.conv1d(h, UNITS, 1, name="residual")
    return tf.layers.conv1d(tf.nn.relu(skips), 2, 1, name="out")


class WaveLayer(tf_keras.layers.Layer):
    def __init__(self, rate, name):
        super().__init__(name=name)
        kit = tf_keras.layers
        self.gates = kit.Conv1D(2 * UNITS, 2, padding="causal", dilation_rate=rate, name="gates")
        self.skip, self.residual = (kit.Conv1D(UNITS, 1, name=name) for name in ("skip", "residual"))

    def call(self, x):
        content, gate = tensorflow.split(self.gates(x), 2, axis=2)
        h = tensorflow.tanh(content) * tensorflow.sigmoid(gate)
        return self.skip(h), x + self.residual(h)


class WaveNetwork(tf_keras.Model):
    def __init__(self):
        super().__init__(name="port")
        self.start = tf_keras.layers.Conv1D(UNITS, 1, name="start")
        self.dilated = [WaveLayer(2**i, f"layer{i}") for i in range(3)]
        self.out = tf_keras.layers.Conv1D(2, 1, name="out")

    def call(self, audio, training=False):
        x, skips = self.start(audio), []
        for layer in self.dilated:
            skip, x = layer(x)
            skips.append(skip)
        return self.out(tensorflow.nn.relu(tensorflow.add_n(skips)))


SEQUENCES = random(4, 5, 3)
SOURCE, TARGET = classes(4 * 5, 7).reshape(4, 5), classes(4 * 4, 7).reshape(4, 4)

MIGRATIONS: tuple[Any, ...] = (
    Migration(
        tf1=language_model,
        port=LanguageModel,
        inputs=classes(3 * 4, 11).reshape(3, 4),
        name_map=LANGUAGE_NAMES,
        train=train_step(classes(3 * 4, 11).reshape(3, 4)[::-1].copy(), SPARSE_CROSS_ENTROPY, CLIPPED_ADAM),
    ),
    Migration(
        tf1=character_model,
        port=CharacterModel,
        inputs=classes(3 * 4, 7).reshape(3, 4),
        name_map=character_name,
        train=train_step(classes(3 * 4, 7).reshape(3, 4)[::-1].copy(), SPARSE_CROSS_ENTROPY, CLIPPED_ADAM),
    ),
    Migration(
        tf1=sequence_classifier,
        port=SequenceClassifier,
        inputs=SEQUENCES,
        name_map="port/{}".format,
        train=train_step(
            classes(4, 3),
            tuple(lambda labels, outputs, loss=loss: loss(labels, outputs[0]) for loss in SPARSE_CROSS_ENTROPY),
            ADAM,
        ),
    ),
    Migration(
        tf1=tagger,
        port=Tagger,
        inputs=SEQUENCES,
        name_map=lambda name: "port/" + name.removeprefix("bi/"),
        train=train_step(classes(4 * 5, 5).reshape(4, 5), SPARSE_CROSS_ENTROPY, ADAGRAD),
    ),
    Migration(
        tf1=transformer,
        port=Transformer,
        inputs=classes(3 * 5, 9).reshape(3, 5),
        name_map=lambda name: "port/lookup/embeddings" if name == "lookup" else f"port/{name}",
        train=train_step(classes(3 * 5, 9).reshape(3, 5), SPARSE_CROSS_ENTROPY, SGD),
    ),
    Migration(
        tf1=translator,
        port=Translator,
        inputs=(SOURCE, TARGET),
        name_map=translator_name,
        train=train_step(
            TARGET,
            tuple(lambda labels, outputs, loss=loss: loss(labels, outputs["logits"]) for loss in SPARSE_CROSS_ENTROPY),
            MOMENTUM,
        ),
    ),
    Migration(
        tf1=wave_network,
        port=WaveNetwork,
        inputs=random(2, 12, 1),
        name_map="port/{}".format,
        train=train_step(
            random(2, 12, 2),
            (MEAN_SQUARE[0], tf_keras.losses.MeanSquaredError()),
            (lambda: tf.train.AdamOptimizer(0.01), lambda: tf_keras.optimizers.Adam(0.01, epsilon=1e-8)),
        ),
    ),
)
