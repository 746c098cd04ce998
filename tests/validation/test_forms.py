"""Ports that have TF1's variables in another form: every check compares them, and finds their faults."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, gru_cell_to_keras, lstm_cell_to_keras, validate
from tests.sound_migrations.training import ADAM, MEAN_SQUARE, MOMENTUM, random, train_step
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS
v1, cells, layers = tf.compat.v1, tf.compat.v1.nn.rnn_cell, keras.layers

UNITS, SEQUENCES = 4, random(2, 5, 3)
CONSTANT = keras.initializers.Constant(0.1)
SAME = {"kernel_initializer": CONSTANT, "recurrent_initializer": CONSTANT, "return_sequences": True}
GRU_BIAS = np.repeat(np.array([1.0, 0.0], np.float32), [2 * UNITS, UNITS])
GRU = SAME | {"reset_after": False, "bias_initializer": lambda shape, dtype=None: GRU_BIAS}


@pytest.fixture(autouse=True)
def v1_layers():
    with enable_v1_layers():
        yield


def unrolled(make, unroll="dynamic"):
    """Return a TF1 program that unrolls a cell over sequences."""

    def program(x, training):
        with v1.variable_scope("net", initializer=v1.constant_initializer(0.1)):
            if unroll == "dynamic":
                return v1.nn.dynamic_rnn(make(), x, dtype=tf.float32)[0]
            if unroll == "static":
                return tf.stack(v1.nn.static_rnn(make(), tf.unstack(x, axis=1), dtype=tf.float32)[0], 1)
            outputs, _ = v1.nn.bidirectional_dynamic_rnn(make(), make(), x, dtype=tf.float32)
            return tf.concat(outputs, 2)

    return program


def stack_of(*make):
    return lambda: keras.Sequential([keras.Input(SEQUENCES.shape[1:]), *(each() for each in make)], name="port")


def migration(tf1, port, name_map, optimizers=ADAM):
    width = UNITS * (2 if "bidirectional" in str(name_map) else 1)
    train = train_step(random(2, 5, width), MEAN_SQUARE, optimizers)
    return Migration(tf1=tf1, port=port, inputs=SEQUENCES, name_map=name_map, train=train)


def lstm(name="lstm", **arguments):
    return lambda: layers.LSTM(UNITS, name=name, **SAME | arguments)


def lstms(scope, one="port/lstm/lstm_cell", **arguments):
    return lstm_cell_to_keras(f"net/{scope}", one, **arguments)


MULTI = "rnn/multi_rnn_cell/cell"
BASIC = migration(
    unrolled(lambda: cells.BasicLSTMCell(UNITS)), stack_of(lstm()), lstms("rnn/basic_lstm_cell", "port/lstm/lstm_cell")
)
MIGRATIONS = {
    "BasicLSTMCell": BASIC,
    "LSTMCell": migration(
        unrolled(lambda: cells.LSTMCell(UNITS, forget_bias=0.0), "static"),
        stack_of(lstm(unit_forget_bias=False)),
        lstms("rnn/lstm_cell", "port/lstm/lstm_cell", forget_bias=0.0),
        MOMENTUM,
    ),
    "GRUCell": migration(
        unrolled(lambda: cells.GRUCell(UNITS)),
        stack_of(lambda: layers.GRU(UNITS, name="gru", **GRU)),
        gru_cell_to_keras("net/rnn/gru_cell", "port/gru/gru_cell"),
    ),
    "MultiRNNCell": migration(
        unrolled(lambda: cells.MultiRNNCell([cells.BasicLSTMCell(UNITS), cells.GRUCell(UNITS)])),
        stack_of(lstm("one"), lambda: layers.GRU(UNITS, name="two", **GRU)),
        {
            **lstms(f"{MULTI}_0/basic_lstm_cell", "port/one/lstm_cell"),
            **gru_cell_to_keras(f"net/{MULTI}_1/gru_cell", "port/two/gru_cell"),
        },
    ),
}


@pytest.mark.slow_except("BasicLSTMCell", "GRUCell")
@pytest.mark.parametrize("name", MIGRATIONS)
def test_every_check_passes_on_recurrent_cells(name):
    report = validate(MIGRATIONS[name])
    assert report.ok and len(report.checks) == 7, str(report)
    assert not report.audit.differing, str(report)
