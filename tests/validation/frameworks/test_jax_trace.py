"""Ports of Keras 3 on JAX with a fault: the finding names the op, its line, and the cause.

Each network is sound without a fault, and has no finding then, in inference and in training. A process has one
backend, so all of them are validated in a process of their own.
"""

import functools
import inspect
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from detrand import Migration, enable_v1_layers, validate
from tests.faults.tf1 import numbers
from tests.support.keras3_process import Program, is_installed, run_on

v1 = tf.compat.v1
INFERENCE, TRAINING = "random-inference", "random-training"
pytestmark = pytest.mark.skipif(not is_installed("jax"), reason="JAX is not installed")


class Faulty(keras.Model):
    """A model with at most one fault, whose lines end in a comment with the fault's name."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault


# A convolutional network.


def images(x, training):
    hidden = v1.layers.conv2d(x, 6, 3, 2, "same", name="stem")
    hidden = tf.nn.relu6(v1.layers.batch_normalization(hidden, training=training, name="norm"))
    kernel = v1.get_variable("depthwise/kernel", (3, 3, 6, 1))
    hidden = tf.nn.leaky_relu(tf.nn.depthwise_conv2d(hidden, kernel, [1, 1, 1, 1], "SAME"), 0.2)
    hidden = v1.layers.max_pooling2d(hidden, 3, 2, "same")
    hidden = v1.layers.dropout(hidden, 0.3, training=training)
    return v1.layers.dense(v1.layers.flatten(hidden), 4, name="logits") * 0.5


class Images(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        padding = "valid" if fault == "padding" else "same"
        self.stem = layers.Conv2D(6, 3, 2, padding, name="stem")  # padding
        self.norm = layers.BatchNormalization(epsilon=1e-2 if fault == "epsilon" else 1e-3, name="norm")
        self.depthwise = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")
        self.dropout = layers.Dropout(0.5 if fault == "rate" else 0.3)  # rate
        self.logits = layers.Dense(4, name="logits")

    def call(self, x, training=False):
        if self.fault == "padding":
            x = ops.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
        hidden = self.norm(self.stem(x), training=training)  # epsilon
        activation = ops.relu if self.fault == "activation" else ops.relu6
        hidden = self.depthwise(activation(hidden))  # activation
        slope = 0.3 if self.fault == "slope" else 0.2
        hidden = ops.leaky_relu(hidden, slope)  # slope
        pool = ops.average_pool if self.fault == "pooling method" else ops.max_pool
        hidden = pool(hidden, 3, 2, "same")  # pooling method
        hidden = self.dropout(hidden, training=training)
        if self.fault == "order of a flatten":
            hidden = ops.transpose(hidden, (0, 3, 1, 2))  # order of a flatten
        hidden = self.logits(ops.reshape(hidden, (-1, 54)))  # missing scale
        return hidden if self.fault == "missing scale" else hidden * 0.5


# A network without a flatten, so that windows may move in other strides.


def pooled(x, training):
    hidden = tf.nn.elu(v1.layers.conv2d(x, 5, 3, padding="valid", strides=2, name="first"))
    hidden = v1.layers.average_pooling2d(hidden, 2, 1, "same")
    hidden = v1.layers.separable_conv2d(hidden, 4, 3, padding="same", name="second")
    return v1.layers.dense(tf.reduce_mean(hidden, [1, 2]), 3, tf.nn.softmax, name="logits")


class Pooled(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.first = layers.Conv2D(5, 3, 1 if fault == "strides" else 2, name="first")  # strides
        self.second = layers.SeparableConv2D(4, 3, padding="same", name="second")
        self.logits = layers.Dense(3, name="logits")

    def call(self, x, training=False):
        hidden = ops.elu(self.first(x))
        padding = "valid" if self.fault == "pooling padding" else "same"
        hidden = self.second(ops.average_pool(hidden, 2, 1, padding))  # pooling padding
        reduction = ops.max if self.fault == "reduction" else ops.mean
        hidden = reduction(hidden, (1, 2))  # reduction
        return ops.softmax(self.logits(hidden))


# Recurrent networks.


def words(x, training):
    hidden = tf.nn.embedding_lookup(v1.get_variable("embedding/embeddings", (9, 4)), x)
    cell = v1.nn.rnn_cell.BasicLSTMCell(4, forget_bias=1.0)
    outputs, (_, last) = v1.nn.dynamic_rnn(cell, hidden, dtype=tf.float32)
    return v1.layers.dense(tf.concat([tf.reduce_mean(outputs, 1), last], 1), 3, tf.nn.tanh, name="logits")


class Words(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.embedding = layers.Embedding(9, 4, name="embedding")
        self.lstm = layers.LSTM(4, return_sequences=True, return_state=True, name="lstm")
        self.logits = layers.Dense(3, name="logits")

    def call(self, x, training=False):
        hidden = self.embedding(x)
        outputs, last, _ = self.lstm(hidden)
        mean = ops.sum(outputs, 1) if self.fault == "sum" else ops.mean(outputs, 1)  # sum
        parts = [last, mean] if self.fault == "order of a concat" else [mean, last]
        hidden = self.logits(ops.concatenate(parts, 1))  # order of a concat, missing activation
        return hidden if self.fault == "missing activation" else ops.tanh(hidden)


def phrases(x, training):
    hidden = tf.nn.embedding_lookup(v1.get_variable("embedding/embeddings", (9, 4)), x)
    _, last = v1.nn.dynamic_rnn(v1.nn.rnn_cell.GRUCell(4), hidden, dtype=tf.float32)
    return v1.layers.dense(last, 3, tf.nn.relu, name="logits") + 1.0


class Phrases(Faulty):
    """Its cell is written as people write it."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.embedding = layers.Embedding(9, 4, name="embedding")
        self.gates = layers.Dense(8, name="gates")
        self.candidate = layers.Dense(4, name="candidate")
        self.logits = layers.Dense(3, name="logits")

    def call(self, x, training=False):
        hidden = self.embedding(x)
        state = ops.zeros((x.shape[0], 4))
        for time in range(x.shape[1]):
            step = hidden[:, time]
            gates = ops.sigmoid(self.gates(ops.concatenate([step, state], 1)))
            reset, update = ops.split(gates, 2, 1)
            if self.fault == "gate order":
                update, reset = ops.split(gates, 2, 1)  # gate order
            new = ops.tanh(self.candidate(ops.concatenate([step, reset * state], 1)))
            if self.fault == "share":
                state = (1 - update) * state + update * new  # share
            else:
                state = update * state + (1 - update) * new
        activation = ops.elu if self.fault == "activation" else ops.relu
        return activation(self.logits(state)) + (0.9 if self.fault == "constant" else 1.0)  # activation, constant


# An encoder block.


def encoder(x, training):
    def norm(x, name):
        with v1.variable_scope(name):
            gamma, beta = (v1.get_variable(each, (8,)) for each in ("gamma", "beta"))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)  # out of the scope
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)

    def heads(name):
        return tf.transpose(tf.reshape(v1.layers.dense(x, 8, name=name), (-1, 5, 2, 4)), (0, 2, 1, 3))

    query, key, value = map(heads, ("query", "key", "value"))
    mask = tf.constant(np.triu(np.full((5, 5), -1e9, np.float32), 1))
    scores = tf.matmul(query, key, transpose_b=True) / 2.0 + mask
    shares = v1.layers.dropout(tf.nn.softmax(scores), 0.1, training=training)
    context = tf.reshape(tf.transpose(tf.matmul(shares, value), (0, 2, 1, 3)), (-1, 5, 8))
    x = norm(x + v1.layers.dense(context, 8, name="output"), "norm1")
    hidden = v1.layers.dense(x, 12, name="hidden")
    hidden = 0.5 * hidden * (1 + tf.math.erf(hidden / np.float32(np.sqrt(2))))
    return norm(x + v1.layers.dense(hidden, 8, name="last"), "norm2")


class Encoder(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.query, self.key, self.value = (layers.Dense(8, name=name) for name in ("query", "key", "value"))
        self.dense = layers.Dense(8, name="output")
        self.hidden, self.last = layers.Dense(12, name="hidden"), layers.Dense(8, name="last")
        self.dropout = layers.Dropout(0.1)
        epsilon = 1e-3 if fault == "epsilon" else 1e-6
        self.norm1 = layers.LayerNormalization(epsilon=1e-6, name="norm1")
        self.norm2 = layers.LayerNormalization(epsilon=epsilon, name="norm2")

    def call(self, x, training=False):
        def heads(layer):
            return ops.transpose(ops.reshape(layer(x), (-1, 5, 2, 4)), (0, 2, 1, 3))

        query, key, value = map(heads, (self.query, self.key, self.value))
        mask = np.triu(np.full((5, 5), -1e9, np.float32), 1)
        if self.fault == "no mask":
            mask = np.zeros((5, 5), np.float32)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scores = scores / (8**0.5 if self.fault == "scale" else 2) + mask  # scale, no mask
        shares = ops.softmax(scores, -2 if self.fault == "axis of a softmax" else -1)  # axis of a softmax
        context = ops.matmul(self.dropout(shares, training=training), value)
        context = ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, 5, 8))
        hidden = self.dense(context)
        x = self.norm1(hidden if self.fault == "no residual" else x + hidden)  # no residual
        approximate = self.fault == "form of GELU"
        hidden = self.last(ops.gelu(self.hidden(x), approximate=approximate))  # form of GELU
        return self.norm2(x + hidden)  # epsilon


# The decoder of a variational autoencoder.


def decoder(x, training):
    hidden = tf.nn.relu(v1.layers.dense(x, 32, name="first"))
    hidden = tf.reshape(hidden, (-1, 2, 2, 8))
    hidden = v1.layers.conv2d_transpose(hidden, 6, 3, 2, "same", name="up")
    hidden = v1.layers.batch_normalization(tf.nn.elu(hidden), training=training, name="norm")
    hidden = v1.image.resize_nearest_neighbor(hidden, (8, 8))
    return tf.nn.sigmoid(v1.layers.conv2d(hidden, 3, 3, padding="same", name="image"))


class Decoder(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.first = layers.Dense(32, activation="relu", name="first")
        self.up = layers.Conv2DTranspose(6, 3, 2, "valid" if fault == "cropping" else "same", name="up")
        self.norm = layers.BatchNormalization(name="norm")
        self.image = layers.Conv2D(3, 3, padding="same", name="image")

    def call(self, x, training=False):
        hidden = self.first(x)
        if self.fault == "order of a reshape":
            hidden = ops.transpose(ops.reshape(hidden, (-1, 8, 2, 2)), (0, 2, 3, 1))  # order of a reshape
        else:
            hidden = ops.reshape(hidden, (-1, 2, 2, 8))
        hidden = self.up(hidden)[:, -4:, -4:]  # cropping
        hidden = self.norm(ops.elu(hidden), training=training)
        if self.fault == "resize method":
            hidden = ops.image.resize(hidden, (8, 8), "bilinear")  # resize method
        else:
            hidden = ops.image.resize(hidden, (8, 8), "nearest")
        hidden = self.image(hidden)
        return ops.tanh(hidden) if self.fault == "last activation" else ops.sigmoid(hidden)  # last activation


PHRASES = np.array([[1, 2, 6, 0, 8], [3, 3, 5, 1, 7]])
NETWORKS = {
    "images": Migration(tf1=images, port=Images, inputs=numbers(3, 12, 12, 3)),
    "pooled": Migration(tf1=pooled, port=Pooled, inputs=numbers(4, 9, 9, 2)),
    "words": Migration(tf1=words, port=Words, inputs=PHRASES),
    "phrases": Migration(
        tf1=phrases,
        port=Phrases,
        inputs=PHRASES,
        name_map={
            f"rnn/gru_cell/{name}/{each}": f"phrases/{name}/{each}"
            for name in ("gates", "candidate")
            for each in ("kernel", "bias")
        },
    ),
    "encoder": Migration(tf1=encoder, port=Encoder, inputs=numbers(3, 5, 8)),
    "decoder": Migration(tf1=decoder, port=Decoder, inputs=numbers(4, 5)),
}


def line_of(port, fault):
    """Return the file and line of a port whose comment has a fault's name."""
    lines, start = inspect.getsourcelines(port)
    for number, line in enumerate(lines):
        if "  # " in line and fault in line.rpartition("  # ")[2].strip().split(", "):
            return f"test_jax_trace.py:{start + number}"
    raise AssertionError(f"no line of {port.__name__} has the fault {fault!r}")


def report_of(network, fault):
    """Return what the findings of a network say, as texts."""
    migration = NETWORKS[network]
    # With TF1's initial weights, no number reaches the limit of a ReLU6.
    of_images = {"rate": TRAINING, "activation": "constant-weights"} if network == "images" else {}
    checks = [of_images.get(fault, INFERENCE)] if fault else [INFERENCE, TRAINING]
    with enable_v1_layers():
        report = validate(replace(migration, port=lambda: migration.port(fault)), checks=checks)
    lines = [("" if each is None else each.line) for finding in report.findings for each in (finding.tf1, finding.port)]
    return {
        "ok": str(report.ok),
        "titles": "\n".join(finding.title for finding in report.findings),
        "confirmed": "\n".join(finding.confirmed for finding in report.findings),
        "lines": "\n".join(lines),
        "report": str(report),
    }


FAULTS = [
    ("images", "padding", "padding differs: SAME (TF1), VALID after Pad [[0 0] [1 1] [1 1] [0 0]] (port)"),
    ("images", "epsilon", "epsilon differs in norm: 0.001 (TF1), 0.01 (port)"),
    ("images", "activation", "activation differs: Relu6 (TF1), Relu (port)"),
    ("images", "slope", "slope of the leaky ReLU differs: 0.2 (TF1), 0.3 (port)"),
    ("images", "pooling method", "pooling method differs: MaxPool (TF1), AvgPool (port)"),
    ("images", "rate", "rate differs in dropout: 0.3 (TF1), 0.5 (port)"),
    (
        "images",
        "order of a flatten",
        "the port flattens an array with its axes in a different order: the arrays agree if the port's is transposed "
        "to (0, 2, 3, 1)",
    ),
    ("images", "missing scale", "only TF1 multiplies by 0.5"),
    ("pooled", "strides", "stride differs: [1, 2, 2, 1] (TF1), [1, 1, 1, 1] (port)"),
    ("pooled", "pooling padding", "padding differs: SAME (TF1), VALID (port)"),
    ("pooled", "reduction", "what is computed differs: Mean (TF1), Max (port)"),
    ("words", "sum", "reduction differs: Mean (TF1), Sum (port)"),
    ("words", "order of a concat", "order of the inputs differs: "),
    ("words", "missing activation", "the port has no activation where TF1 has Tanh"),
    ("phrases", "activation", "activation differs: Relu (TF1), Elu (port)"),
    ("phrases", "constant", "constant added differs: 1.0 (TF1), 0.9 (port)"),
    ("encoder", "epsilon", "epsilon differs in norm2: 1e-06 (TF1), 0.001 (port)"),
    ("encoder", "no mask", "only TF1 masks the inputs of Softmax (60 of 150 elements)"),
    ("encoder", "scale", "divisor differs: 2.0 (TF1), 2.828427 (port)"),
    ("encoder", "axis of a softmax", "axis of Softmax differs: 3 (TF1), 2 (port)"),
    ("encoder", "no residual", "only TF1 adds input 0 (x)"),
    ("encoder", "form of GELU", "form of GELU differs: erf (TF1), the tanh approximation (port)"),
    ("decoder", "cropping", "padding differs: SAME (TF1), VALID (port)"),
    (
        "decoder",
        "order of a reshape",
        "shape of an array differs: (4, 2, 2, 8) (TF1), (4, 8, 2, 2) (port)",
    ),
    ("decoder", "resize method", "resize method differs: ResizeNearestNeighbor (TF1), ResizeBilinear (port)"),
    ("decoder", "last activation", "activation differs: Sigmoid (TF1), Tanh (port)"),
]
QUICK = [("pooled", "strides")]


@functools.cache
def results(slow):
    pairs = [*((network, "") for network in NETWORKS), *((network, fault) for network, fault, _ in FAULTS)]
    programs = [Program(__name__, "report_of", pair, mode=None) for pair in pairs if (pair not in QUICK) == slow]
    return dict(zip(programs, run_on("jax", programs), strict=True))


def result(network, fault=""):
    pair = network, fault
    return dict(results(pair not in QUICK)[Program(__name__, "report_of", pair, mode=None)].checked().values)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_a_sound_port_has_no_findings(network):
    found = result(network)
    assert found["ok"] == "True", found["report"]
    assert not found["titles"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "fault", "title"), FAULTS, ids=[f"{network}-{fault}" for network, fault, _ in FAULTS]
)
def test_a_fault_is_one_confirmed_finding_with_its_line(network, fault, title):
    found = result(network, fault)
    assert found["titles"].startswith(title), found["report"]
    assert "\n" not in found["titles"], found["report"]
    assert found["confirmed"].endswith("the rest agrees")
    of_tf1, of_port = found["lines"].split("\n")
    assert line_of(NETWORKS[network].port, fault) in of_port
    assert "test_jax_trace.py" in of_tf1 if of_tf1 else title.startswith("only the port")
