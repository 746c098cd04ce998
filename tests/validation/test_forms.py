"""Ports that have TF1's variables in another form: every check compares them, and finds their faults."""

import dataclasses
import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import (
    ArgumentError,
    Migration,
    Rearranged,
    enable_v1_layers,
    gru_cell_to_keras,
    load_tf1_checkpoint,
    lstm_cell_to_keras,
    suggest_name_map,
    validate,
    variables_of,
)
from detrand.validation.golden import record_golden
from tests.sound_migrations.training import ADAM, MEAN_SQUARE, MOMENTUM, random, train_step
from tests.support.reports import failed
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


def unrolled(make, unroll="dynamic", initializer=None):
    """Return a TF1 program that unrolls a cell over sequences."""

    def program(x, training):
        with v1.variable_scope("net", initializer=initializer or v1.constant_initializer(0.1)):
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

MIGRATIONS |= {
    "bidirectional": migration(
        unrolled(lambda: cells.BasicLSTMCell(UNITS), "bidirectional"),
        stack_of(lambda: layers.Bidirectional(lstm()(), name="bi")),
        {
            **lstms("bidirectional_rnn/fw/basic_lstm_cell", "port/bi/forward_lstm/lstm_cell"),
            **lstms("bidirectional_rnn/bw/basic_lstm_cell", "port/bi/backward_lstm/lstm_cell"),
        },
    ),
    "StackedRNNCells": migration(
        unrolled(lambda: cells.MultiRNNCell([cells.LSTMCell(UNITS), cells.BasicLSTMCell(UNITS)])),
        stack_of(
            lambda: layers.RNN(
                layers.StackedRNNCells(
                    [
                        layers.LSTMCell(UNITS, kernel_initializer=CONSTANT, recurrent_initializer=CONSTANT, name=name)
                        for name in ("one", "two")
                    ]
                ),
                return_sequences=True,
                name="rnn",
            )
        ),
        {
            **lstms(f"{MULTI}_0/lstm_cell", "port/rnn/stacked_rnn_cells/one"),
            **lstms(f"{MULTI}_1/basic_lstm_cell", "port/rnn/stacked_rnn_cells/two"),
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIGRATIONS)
def test_every_check_passes_on_recurrent_cells(name):
    report = validate(MIGRATIONS[name])
    assert report.ok and report.checks[-1].name == "training-steps", str(report)
    assert not report.audit.differing, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIGRATIONS)
def test_forms_of_recurrent_cells_are_found_without_a_name_map(name):
    """Also the forget bias, which TF1's graph shows; the outputs with distinct weights prove them."""
    report = validate(dataclasses.replace(MIGRATIONS[name], name_map=None, train=None))
    assert report.ok, str(report)
    found = report.checks[1]
    assert found.summary.endswith("differ, but the outputs with distinct weights agree")
    given = MIGRATIONS[name].name_map.values()
    assert [line.strip() for line in found.details.splitlines() if "**" in line] == [
        f"**{each.code}," for each in given
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True])
def test_recurrent_layers_whose_names_mislead_are_found_by_their_outputs(fault):
    """Also where a fault keeps the outputs from agreeing."""

    def tf1(x, training):
        for scope in "one", "two":
            with v1.variable_scope(scope):
                x, _ = v1.nn.dynamic_rnn(cells.GRUCell(3), x, dtype=tf.float32)
        return tf.tanh(x)

    def port():
        make = functools.partial(layers.GRU, 3, return_sequences=True, reset_after=False)
        return keras.Sequential(
            [
                keras.Input(SEQUENCES.shape[1:]),
                make(name="two"),
                make(name="one"),
                layers.Activation("relu" if fault else "tanh"),
            ]
        )

    checks = ["variables-match", "constant-weights"]
    report = validate(Migration(tf1=tf1, port=port, inputs=SEQUENCES), checks=checks)
    assert "gru_cell_to_keras('one/rnn/gru_cell', 'sequential/two/gru_cell')" in report.checks[0].details
    assert report.checks[0].ok
    assert [finding.title for finding in report.findings] == ["activation differs: Tanh (TF1), Relu (port)"] * fault


@pytest.mark.slow
def test_the_audit_names_the_initializers_of_all_variables_of_a_form():
    port = stack_of(lambda: layers.LSTM(UNITS, return_sequences=True, name="lstm"))
    report = validate(dataclasses.replace(BASIC, port=port, train=None))
    (found,) = report.audit.differing
    assert (found.of, found.tf1) == ("net/rnn/basic_lstm_cell/kernel", "constant 0.1")
    assert found.port == "uniform from -0.561951 to 0.561951 and orthogonal"


@pytest.mark.slow
def test_a_gru_that_resets_after_fails_with_its_remedy():
    port = stack_of(lambda: layers.GRU(UNITS, return_sequences=True, name="gru"))
    report = validate(dataclasses.replace(MIGRATIONS["GRUCell"], name_map=None, port=port, train=None))
    assert "variables-match" in failed(report)
    assert "has reset_after=True, so it computes different numbers" in report.checks[1].details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name_map", "port", "checks"),
    [
        (lstms("rnn/basic_lstm_cell", forget_bias=0.0), stack_of(lstm()), {"constant-weights", "training-steps"}),
        (BASIC.name_map, stack_of(lstm(recurrent_activation="hard_sigmoid")), {"constant-weights", "training-steps"}),
        (
            {
                key: Rearranged(entry.port_names, lambda w, b: (w[:3], w[3:], b))
                for key, entry in BASIC.name_map.items()
            },
            stack_of(lstm(unit_forget_bias=False)),
            {"constant-weights", "training-steps"},
        ),
    ],
    ids=["another forget bias", "another activation", "gates in TF1's order"],
)
def test_a_faulty_port_or_form_fails(name_map, port, checks):
    faulty = dataclasses.replace(BASIC, name_map=name_map, port=port)
    report = validate(faulty, checks=["variables-match", "constant-weights", "training-steps"])
    assert checks <= failed(report), str(report)
    assert "variables-match" not in failed(report)


@pytest.mark.slow
@pytest.mark.parametrize("adds_bias", [True, False])
def test_a_forget_bias_that_the_port_does_not_add_is_another_initial_value(adds_bias):
    drawn = keras.initializers.RandomUniform(-0.1, 0.1)
    layer = functools.partial(
        keras.layers.LSTM, 3, unit_forget_bias=adds_bias, kernel_initializer=drawn, recurrent_initializer=drawn
    )

    def tf1(x, training):
        cell = v1.nn.rnn_cell.BasicLSTMCell(3)
        with v1.variable_scope("rnn", initializer=v1.random_uniform_initializer(-0.1, 0.1)):
            return v1.nn.dynamic_rnn(cell, x, dtype=tf.float32, scope="lstm")[1].h

    migration = Migration(tf1=tf1, port=layer, inputs=np.ones((2, 4, 5), np.float32))
    with enable_v1_layers():
        findings = validate(migration, checks=["initializers-match"]).findings
    assert [finding.title for finding in findings] == (
        [] if adds_bias else ["initializer differs: constant 0 (TF1), -1 and 0 (port)"]
    )


def network(x, training):
    """The head of a VGG: a convolution that covers the whole image, then dense layers as convolutions of size 1."""
    w = v1.get_variable("fc6/weights", (2, 2, 3, 4), initializer=v1.constant_initializer(0.1))
    hidden = tf.nn.tanh(
        tf.nn.conv2d(x, w, 1, "VALID") + v1.get_variable("fc6/biases", (4,), initializer=v1.zeros_initializer())
    )
    w = v1.get_variable("fc7/weights", (1, 1, 4, 2), initializer=v1.constant_initializer(0.1))
    outputs = tf.squeeze(tf.nn.conv2d(hidden, w, 1, "VALID"), [1, 2])
    return tf.matmul(outputs, v1.get_variable("out", (2, 5), initializer=v1.ones_initializer()))


class Transposed(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(5, shape[-1]), initializer="ones", name="w")

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.w))


def head():
    dense = [layers.Dense(4, "tanh", kernel_initializer=CONSTANT, name="fc6")]
    dense.append(layers.Dense(2, use_bias=False, kernel_initializer=CONSTANT, name="fc7"))
    return keras.Sequential([keras.Input((2, 2, 3)), layers.Flatten(), *dense, Transposed(name="out")], name="port")


RESHAPED = Migration(
    tf1=network,
    port=head,
    inputs=random(3, 2, 2, 3),
    name_map={
        "fc6/weights": "port/fc6/kernel",
        "fc6/biases": "port/fc6/bias",
        "fc7/weights": "port/fc7/kernel",
        "out": Rearranged("port/out/w", np.transpose),
    },
    train=train_step(random(3, 5), MEAN_SQUARE, ADAM),
)


@pytest.mark.slow
def test_reshaped_and_transposed_variables_pass_every_check():
    report = validate(RESHAPED)
    assert report.ok, str(report)
    found = report.checks[1]
    assert found.summary.endswith("flags are equal; reshaped (2); rearranged (1)")
    assert found.details.splitlines() == [
        "reshaped (2):",
        "  fc6/weights (name_map: port/fc6/kernel): (2, 2, 3, 4) in TF1, (12, 4) in the port",
        "  fc7/weights (name_map: port/fc7/kernel): (1, 1, 4, 2) in TF1, (4, 2) in the port",
        "rearranged (1):",
        "  out, rearranged (name_map: port/out/w): (5, 2) in the port",
    ]


def test_a_name_for_a_transposed_variable_fails_with_its_remedy():
    report = validate(dataclasses.replace(RESHAPED, name_map=RESHAPED.name_map | {"out": "port/out/w"}, train=None))
    assert "variables-match" in failed(report)
    assert "pass name_map={'out': Rearranged(['port/out/w'], np.transpose)}" in report.checks[1].details


@pytest.mark.slow
def test_slices_of_ones_own():
    """A cell without a ready-made map."""
    form = Rearranged(
        [f"port/rnn/simple_rnn_cell/{name}" for name in ("kernel", "recurrent_kernel", "bias")],
        lambda kernel, bias: (kernel[:3], kernel[3:], bias),
    )
    tf1 = unrolled(lambda: cells.BasicRNNCell(UNITS))
    name_map = {("net/rnn/basic_rnn_cell/kernel", "net/rnn/basic_rnn_cell/bias"): form}
    sound = migration(tf1, stack_of(lambda: layers.SimpleRNN(UNITS, name="rnn", **SAME)), name_map)
    assert validate(sound).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BasicLSTMCell", "GRUCell"])
def test_a_guided_training_begins_each_step_as_tf1(name):
    """With TF1's gradients and variables, even the port of a wrong loss has TF1's updates and slots."""
    sound, loss = MIGRATIONS[name], keras.losses.MeanSquaredError()
    train = train_step(sound.train.labels, (MEAN_SQUARE[0], lambda *pair: 2.0 * loss(*pair)), MOMENTUM)
    (found,) = validate(dataclasses.replace(sound, train=train), checks=["training-steps"]).checks
    assert "differs in 3 of 3 steps" in re.findall("  gradients .*", found.details)[0]
    for kind in ("weights", "slots", "updates"):  # once for eager code and a function
        assert len(re.findall(rf"  {kind} +within", found.details)) == 1, found.details


def test_a_step_that_trains_what_is_constant_in_tf1_fails():
    def tf1(x, training):
        return tf.matmul(x, v1.get_variable("w", (3, 2), initializer=v1.ones_initializer()))

    def port():
        return keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_initializer="ones", name="d")], name="port")

    name_map = {"w": Rearranged(["port/d/kernel", "port/d/bias"], lambda w: (w, np.zeros(2)))}
    train = train_step(random(4, 2), MEAN_SQUARE, ADAM)
    report = validate(Migration(tf1=tf1, port=port, inputs=random(4, 3), name_map=name_map, train=train))
    assert failed(report) == {"training-steps"}
    (finding,) = report.findings
    assert finding.title == "the port trains port/d/bias, which comes from no TF1 variable"
    assert finding.remedy == "do not train port/d/bias in the port: the name_map makes it constant"
    assert "test_forms.py:" in finding.port.line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BasicLSTMCell", "GRUCell"])
def test_a_checkpoint_is_loaded_through_a_form(name, tmp_path):
    path = str(tmp_path / "model.ckpt")
    rng = np.random.default_rng(1)
    with tf.Graph().as_default(), v1.Session() as session:
        MIGRATIONS[name].tf1(tf.constant(SEQUENCES), False)
        for variable in v1.global_variables():
            variable.load(rng.normal(size=variable.shape).astype(np.float32), session)
        v1.train.Saver().save(session, path)
    report = validate(dataclasses.replace(MIGRATIONS[name], checkpoint=path, train=None))
    assert report.ok and report.checks[-1].name == "checkpoint", str(report)

    port = MIGRATIONS[name].port()
    loaded = load_tf1_checkpoint(port, path, MIGRATIONS[name].name_map)
    assert set(loaded.loaded) == set(variables_of(path))
    proposal = suggest_name_map(path, port)
    assert proposal.name_map.keys() == MIGRATIONS[name].name_map.keys() and not proposal.unsure
    again = MIGRATIONS[name].port()
    load_tf1_checkpoint(again, path, eval(str(proposal).partition("=")[2]))
    np.testing.assert_array_equal(again(SEQUENCES), port(SEQUENCES))
    with pytest.raises(ArgumentError, match="cannot be saved as JSON"):
        proposal.save(tmp_path / "map.json")


@pytest.mark.slow
def test_a_golden_file_holds_what_a_form_needs(tmp_path):
    record_golden([BASIC], tmp_path / "golden.npz")
    report = validate(BASIC, golden=tmp_path / "golden.npz")
    assert report.ok and report.checks[-1].name == "training-steps", str(report)


@pytest.mark.slow
def test_peepholes_are_named_with_their_remedy():
    tf1 = unrolled(lambda: cells.LSTMCell(UNITS, use_peepholes=True, num_proj=UNITS))
    report = validate(dataclasses.replace(BASIC, tf1=tf1, name_map=None, train=None), checks=["variables-match"])
    assert "variables-match" in failed(report)
    assert "net/rnn/lstm_cell/w_f_diag: float32 (4,), trainable" in report.checks[0].details
    assert "Keras's LSTM has neither peepholes nor a projection. Write a cell" in report.checks[0].details


@pytest.mark.slow
@pytest.mark.parametrize("unroll", ["dynamic", "static"])
def test_peepholes_are_one_finding(unroll):
    uniform = v1.random_uniform_initializer(-1, 1)
    in_sequence = unrolled(lambda: cells.LSTMCell(UNITS, use_peepholes=True), unroll, uniform)

    def tf1(x, training):
        return in_sequence(x, training)[:, -1]

    port = stack_of(lambda: layers.LSTM(UNITS))
    report = validate(Migration(tf1=tf1, port=port, inputs=random(2, 5, 3)))
    first, *others = report.findings
    assert first.title.startswith("variables: only in TF1 (3): net/rnn/lstm_cell/w_f_diag")
    assert first.confirmed and "constant-mode" in first.checks
    assert {finding.kind for finding in others} <= {"initializers"}, str(report)
