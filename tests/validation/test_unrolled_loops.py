"""A port that writes out the iterations of a loop of TF1 draws in each what TF1 draws in it."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from keras import layers, ops

import detrand
from detrand.validation.diagnosis.candidates import iterations
from detrand.validation.frameworks.traces import TracedOp

STEPS, UNITS = 3, 4
INPUTS = np.random.default_rng(3).normal(size=(2, STEPS, 5)).astype(np.float32)
LABELS = np.random.default_rng(4).normal(size=(2, STEPS, UNITS)).astype(np.float32)


def stacked_cells(x, training):
    """Two cells in one loop, with dropout before and after each."""
    cells = [tf.nn.rnn_cell.BasicRNNCell(UNITS, name=f"cell_{i}") for i in range(2)]
    if training:
        cells = [tf.nn.rnn_cell.DropoutWrapper(cell, 0.6, 0.7) for cell in cells]
    return tf.nn.dynamic_rnn(tf.nn.rnn_cell.MultiRNNCell(cells), x, dtype=tf.float32)[0]


class StackedCells(keras.Model):
    """The same, one layer after the other, each with a loop in Python."""

    def __init__(self, kept=0.7, steps=STEPS):
        super().__init__()
        self.cells = [layers.Dense(UNITS, "tanh", name=f"cell_{i}") for i in range(2)]
        self.before, self.after, self.steps = layers.Dropout(0.4), layers.Dropout(1 - kept), steps

    def call(self, x, training=False):
        sequence = [x[:, step] for step in range(STEPS)]
        for cell in self.cells:
            h = ops.zeros((2, UNITS))
            for step, each in enumerate(sequence):
                dropped = self.before(each, training=training)
                h = cell(ops.concatenate([dropped, h], 1))
                sequence[step] = self.after(h, training=training and step < self.steps)
        return ops.stack(sequence, 1)


def sums_with_noise(x, training):
    """A loop around a random op, and random ops around the loop."""
    kernel = tf.get_variable("kernel", [5, UNITS])

    def body(i, total):
        noise = tf.random_normal([2, UNITS], stddev=0.1) if training else 0.0
        return i + 1, total + tf.tanh(tf.matmul(x[:, i], kernel)) + noise

    total = tf.while_loop(lambda i, _: i < STEPS, body, [0, tf.zeros([2, UNITS])])[1]
    return tf.nn.dropout(total, rate=0.5) + tf.random_normal([2, UNITS]) if training else total


class SumsWithNoise(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.dropout = layers.Dense(UNITS, "tanh", use_bias=False), layers.Dropout(0.5)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        total = ops.zeros((2, UNITS))
        for step in range(STEPS):
            total = total + self.dense(x[:, step])
            if training:
                total = total + keras.random.normal((2, UNITS), stddev=0.1, seed=self.seeds)
        if training:
            total = self.dropout(total, training=True) + keras.random.normal((2, UNITS), seed=self.seeds)
        return total


def loss(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


TRAIN = detrand.TrainStep(
    labels=LABELS,
    tf1_loss=loss,
    port_loss=loss,
    tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
    port_optimizer=lambda: keras.optimizers.SGD(0.1),
    steps=3,
)


def validate(tf1, port, train=None, checks=None):
    migration = detrand.Migration(tf1=tf1, port=port, inputs=INPUTS, train=train)
    with detrand.enable_v1_layers():
        return detrand.validate(migration, checks=checks)


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True], ids=["loop in a function", "loop in the graph"])
def test_noise_in_a_loop_and_around_it_is_that_of_the_session(is_older):
    if is_older:
        tf.disable_control_flow_v2()
    try:
        report = validate(sums_with_noise, SumsWithNoise)
    finally:
        tf.enable_control_flow_v2()
    assert report.ok, str(report)
    assert "3 random ops of the port draw in turn what TF1 draws in a loop" in str(report)


@pytest.mark.slow
def test_training_through_a_loop_passes():
    report = validate(stacked_cells, StackedCells, TRAIN, ["training-steps"])
    assert report.ok, str(report)
    assert "not trained in a tf.function" in report.checks[-1].summary


@pytest.mark.slow
def test_another_rate_is_named():
    report = validate(stacked_cells, lambda: StackedCells(kept=0.5), checks=["random-training"])
    (finding,) = report.findings
    assert finding.title.startswith("dropout rate differs: 0.3 (TF1), 0.5 (port)")
    assert finding.confirmed
    assert "dynamic_rnn" in finding.tf1.source


@pytest.mark.slow
def test_an_iteration_without_dropout_is_seen():
    report = validate(stacked_cells, lambda: StackedCells(steps=STEPS - 1), checks=["random-training"])
    assert report.verdict == "failed"


def dropped_outputs(x, training):
    """A recurrent cell with dropout of its output, which leaves its state as it is."""
    cell = tf.nn.rnn_cell.BasicLSTMCell(UNITS, forget_bias=0.0)
    if training:
        cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.6)
    return tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[0]


class DroppedStates(layers.LSTMCell):
    """The same, but that the dropout changes the state, too."""

    def __init__(self):
        super().__init__(UNITS, unit_forget_bias=False)
        self.of_outputs = layers.Dropout(0.4)

    def call(self, inputs, states, training=False):
        h, (_, c) = super().call(inputs, states, training=training)
        h = self.of_outputs(h, training=training)
        return h, [h, c]


@pytest.mark.slow
def test_an_output_in_place_of_the_state_is_one_finding():
    def port():
        return layers.RNN(DroppedStates(), return_sequences=True)

    (finding,) = validate(dropped_outputs, port, checks=["random-training"]).findings
    assert "MatMul takes different tensors" in finding.title
    assert finding.title.endswith("dropout/SelectV2 (port)")
    assert finding.confirmed == "with TF1's value in all iterations, the rest agrees"


def given_states(x, training):
    """A loop in Python of a cell, whose first states are computed."""
    c, h = (tf.layers.dense(x[:, 0], UNITS, tf.tanh, name=name) for name in ("c", "h"))
    cell = tf.nn.rnn_cell.BasicLSTMCell(UNITS, forget_bias=0.0)
    for step in range(STEPS):
        _, (c, h) = cell(x[:, step], (c, h))
    return h


class GivenStates(keras.Model):
    """The same, but that the cell gets the two states in the order of TF1."""

    def __init__(self):
        super().__init__()
        self.of_c, self.of_h = (layers.Dense(UNITS, "tanh", name=name) for name in ("c", "h"))
        self.cell = layers.LSTMCell(UNITS, unit_forget_bias=False)

    def call(self, x, training=False):
        states = [self.of_h(x[:, 0]), self.of_c(x[:, 0])]
        for step in range(STEPS):
            _, states = self.cell(x[:, step], states[::-1])
        return states[0]


@pytest.mark.slow
def test_states_that_are_exchanged_in_each_iteration_are_one_finding():
    report = validate(given_states, GivenStates, checks=["constant-weights"])
    (finding,) = report.findings
    assert finding.title == "two tensors are swapped: h/Tanh and c/Tanh"
    assert finding.confirmed == "with the two exchanged, the rest agrees"


def test_the_copies_of_an_op_in_a_python_loop_have_its_name_but_for_a_number():
    """A cell that two loops share has one line."""

    def ops(*names):
        return {name: TracedOp(name, "Tanh", "cell.py:1", (), {}) for name in names}

    tf1 = ops(*(f"{loop}/iteration_{number}/Tanh" for loop, count in (("a", 2), ("b", 3)) for number in range(count)))
    port = ops("encoder/Tanh", "encoder_1/Tanh", "decoder/Tanh", "decoder_1/Tanh", "decoder_2/Tanh")
    assert iterations(tf1, port, "a/iteration_0/Tanh", "encoder/Tanh") == [("a/iteration_1/Tanh", "encoder_1/Tanh")]
