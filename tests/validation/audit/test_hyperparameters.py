"""Hyperparameters are read from ops, also in loops, conditionals and functions."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, validate
from detrand.validation.audit.hyperparameters import hyperparameters_of_graph
from tests.support.shim_ports import shim_port
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS

v1 = tf.compat.v1
SEQUENCES = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _v1_layers():
    with enable_v1_layers():
        yield


@contextlib.contextmanager
def older_control_flow():
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


def hyperparameters_of(build):
    with tf.Graph().as_default() as graph:
        build()
        return hyperparameters_of_graph(graph)


CELLS = {
    "BasicLSTMCell": lambda bias: v1.nn.rnn_cell.BasicLSTMCell(5, forget_bias=bias, name="cell"),
    "LSTMCell": lambda bias: v1.nn.rnn_cell.LSTMCell(5, forget_bias=bias, name="cell"),
}


@pytest.mark.parametrize(
    "control_flow", [contextlib.nullcontext, older_control_flow], ids=["functions", "in the graph"]
)
@pytest.mark.parametrize("bias", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("cell", CELLS)
def test_the_forget_bias_of_a_cell_in_a_loop_is_read(cell, bias, control_flow):
    with control_flow():
        cells = CELLS[cell](bias)
        found = hyperparameters_of(lambda: v1.nn.dynamic_rnn(cells, tf.constant(SEQUENCES), dtype=tf.float32))
    assert found["rnn/cell/bias", "forget bias"] == bias


def test_cells_without_forget_gate_have_no_forget_bias():
    cell = v1.nn.rnn_cell.GRUCell(5)
    found = hyperparameters_of(lambda: v1.nn.dynamic_rnn(cell, tf.constant(SEQUENCES), dtype=tf.float32))
    assert not {name for _, name in found} & {"forget bias"}


def normalized(inputs, scale):
    mean, variance = tf.nn.moments(inputs, -1, keepdims=True)
    return (inputs - mean) * tf.math.rsqrt(variance + 1e-5) * scale


CALLS = {
    "cond": lambda norm: tf.cond(v1.placeholder(tf.bool, ()), lambda: norm(tf.ones((2, 3))), lambda: tf.zeros((2, 3))),
    "function": lambda norm: tf.function(norm, autograph=False)(tf.ones((2, 3))),
    "function in a function": lambda norm: tf.function(tf.function(norm, autograph=False), autograph=False)(
        tf.ones((2, 3))
    ),
    "map_fn": lambda norm: tf.map_fn(norm, tf.constant(SEQUENCES)),
}


@pytest.mark.parametrize("call", CALLS)
def test_ops_in_functions_are_read(call):
    def build():
        scale = v1.get_variable("scale", (3,))
        CALLS[call](lambda inputs: normalized(inputs, scale))

    assert hyperparameters_of(build)["scale", "epsilon"] == pytest.approx(1e-5)


def test_a_value_that_a_loop_changes_is_no_constant():
    """The rate of the first iteration is not that of the others."""

    def body(rate, total):
        return rate / 2, total + tf.nn.dropout(tf.ones(3), rate=rate)

    found = hyperparameters_of(lambda: tf.while_loop(lambda rate, _: rate > 0.1, body, (tf.constant(0.5), tf.zeros(3))))
    assert found == {}


# --- Dropout, layer by layer --------------------------------------------------------------------------------


def network(inputs, training, first=0.1, second=0.5):
    hidden = v1.layers.dense(inputs, 4, tf.nn.relu, name="first")
    hidden = v1.layers.dropout(hidden, first, training=training)
    hidden = v1.layers.dense(hidden, 4, name="second")
    return v1.layers.dropout(hidden, second, training=training)


class KerasPort(keras.Model):
    """A port that creates its layers in a different order than it calls them."""

    def __init__(self, first=0.1, second=0.5):
        super().__init__(name="port")
        self.drop_second, self.second = keras.layers.Dropout(second), keras.layers.Dense(4, name="second")
        self.drop_first, self.first = keras.layers.Dropout(first), keras.layers.Dense(4, "relu", name="first")

    def call(self, inputs, training=False):
        hidden = self.second(self.drop_first(self.first(inputs), training=training))
        return self.drop_second(hidden, training=training)


def audit_of(port, tf1=network, name_map=None):
    return validate(Migration(tf1=tf1, port=port, inputs=SEQUENCES[0], name_map=name_map)).audit


PORTS = {
    "Keras": (lambda **rates: lambda: KerasPort(**rates), lambda name: f"port/{name}"),
    "shim": (lambda **rates: shim_port(network, **rates), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("port", PORTS)
def test_dropout_rates_belong_to_the_layer_before_the_dropout(port):
    make, name_map = PORTS[port]
    sound = audit_of(make(), name_map=name_map)
    rates = {each.of: each.tf1 for each in sound.hyperparameters if each.name == "rate"}
    assert rates == {"dropout after first": "0.1", "dropout after second": "0.5"}
    assert not sound.differing
    swapped = audit_of(make(first=0.5, second=0.1), name_map=name_map)
    assert [str(each) for each in swapped.differing] == [
        "dropout after first: rate 0.1 (TF1), 0.5 (port)",
        "dropout after second: rate 0.5 (TF1), 0.1 (port)",
    ]


@pytest.mark.slow
def test_dropout_rates_without_a_layer_are_compared_together():
    def on_inputs(inputs, training, rate=0.2):
        return network(tf.nn.dropout(inputs, rate) if training else inputs, training)

    sound = audit_of(shim_port(on_inputs), tf1=on_inputs)
    assert {each.of for each in sound.hyperparameters if each.name == "rate"} == {
        *("dropout", "dropout after first", "dropout after second")
    }
    other = audit_of(shim_port(on_inputs, rate=0.3), tf1=on_inputs)
    assert [str(each) for each in other.differing] == ["dropout: rate 0.2 (TF1), 0.3 (port)"]


def test_dropout_by_hand_belongs_to_the_layer_before_it():
    def build():
        hidden = v1.layers.dense(tf.constant(SEQUENCES), 4, name="first")
        return hidden * tf.cast(tf.random.uniform(hidden.shape) >= 0.25, tf.float32)

    assert hyperparameters_of(build)["dropout after first", "rate"] == (0.25,)


# --- A fault in a loop --------------------------------------------------------------------------------------


def recurrent(inputs, training, forget_bias=1.0):
    cell = v1.nn.rnn_cell.BasicLSTMCell(5, forget_bias=forget_bias, name="cell")
    return v1.nn.dynamic_rnn(cell, inputs, dtype=tf.float32)[0]


@pytest.mark.slow
def test_a_different_forget_bias_is_a_cause():
    report = validate(Migration(tf1=recurrent, port=shim_port(recurrent, forget_bias=0.0), inputs=SEQUENCES))
    assert {check.name for check in report.checks if not check.ok} == {
        *("constant-weights", "random-inference", "random-training", "constant-mode")
    }
    cause = "forget bias differs in rnn/cell: 1 (TF1), 0 (port)"
    assert all(cause in check.causes[:2] for check in report.checks if not check.ok), str(report)
    sound = validate(Migration(tf1=recurrent, port=shim_port(recurrent), inputs=SEQUENCES))
    assert sound.ok, str(sound)
    assert not sound.audit.differing
