"""The noise floor of training: a port that differs by more than the rules allow may differ by as much as TF1 itself."""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, Tolerance, TrainStep, enable_v1_layers, validate
from detrand.report import html as html_report
from detrand.report import json as json_report
from detrand.validation.checks.registry import run_check
from detrand.validation.golden import record_golden
from detrand.validation.noise.variants import VARIANTS
from detrand.validation.reference import Reference
from detrand.validation.report import noise_rows
from detrand.validation.runner import Runner
from tests.sound_migrations import MIGRATIONS
from tests.support.shim_ports import shim_port
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(8, 4)).astype(np.float32)
LABELS = RNG.normal(size=(8, 2)).astype(np.float32)


def network(inputs, training, bias=False):
    """Before a normalization, the gradient of a bias is 0 except for rounding."""
    hidden = tf.matmul(inputs, v1.get_variable("hidden/kernel", (4, 6)))
    if bias:
        hidden = hidden + v1.get_variable("hidden/bias", (6,), initializer=v1.zeros_initializer())
        mean, variance = tf.nn.moments(hidden, [0])
        hidden = (hidden - mean) / tf.sqrt(variance + 1e-3)
    hidden = tf.nn.tanh(hidden)
    if training:
        hidden = tf.nn.dropout(hidden, 0.2)
    return tf.matmul(hidden, v1.get_variable("logits/kernel", (6, 2)))


class KerasPort(keras.Model):
    """Keras makes all variables before the first dropout draws."""

    def __init__(self):
        super().__init__(name="port")
        self.hidden = keras.layers.Dense(6, "tanh", use_bias=False, name="hidden")
        self.dropout = keras.layers.Dropout(0.2)
        self.logits = keras.layers.Dense(2, use_bias=False, name="logits")

    def call(self, inputs, training=False):
        return self.logits(self.dropout(self.hidden(inputs), training=training))


def scaled_loss(factor=1.0):
    return lambda labels, outputs: factor * keras.losses.MeanSquaredError()(labels, outputs)


ADAM = {
    "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.01),
    "port_optimizer": lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
}


def migration(port=KerasPort, tf1=network, name_map=lambda name: f"port/{name}", tolerances=(), **changes):
    train = {
        "labels": LABELS,
        "tf1_loss": v1.losses.mean_squared_error,
        "port_loss": scaled_loss(),
        "tf1_optimizer": lambda: v1.train.GradientDescentOptimizer(0.1),
        "port_optimizer": lambda: keras.optimizers.SGD(0.1),
        "metrics": {"greatest": lambda labels, outputs: tf.reduce_max(outputs)},
        "steps": 3,
    }
    return Migration(
        tf1=tf1,
        port=port,
        inputs=INPUTS,
        name_map=name_map,
        tolerances=tolerances,
        train=TrainStep(**{**train, **changes}),
    )


def check(of):
    return run_check("training-steps", Runner(of))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, ADAM], ids=["SGD", "Adam"])
def test_the_rules_suffice_for_a_sound_port(changes):
    found = check(migration(**changes))
    assert found.ok, found.details
    assert not found.training_noise


TERMS = 1e3 * RNG.normal(size=(32, 64)).astype(np.float32)
TERMS[:, 32:] = -RNG.permuted(TERMS[:, :32], axis=1)  # so that each sum is what rounding leaves of it


def at_the_kink(inputs, training, off=0.0, in_two_sums=False):
    """Which units a ReLU lets pass, and so the gradient of the bias, depends on rounding."""
    bias = v1.get_variable("bias", (1,), initializer=v1.zeros_initializer())
    if in_two_sums:
        hidden = tf.reduce_sum(tf.reduce_sum(tf.reshape(inputs, (-1, 8, 8)), 1), 1, keepdims=True)
    else:
        hidden = tf.reduce_sum(inputs, 1, keepdims=True)
    return (1.0 + off) * tf.nn.relu(hidden + bias)


def kinked(**changes):
    made = migration(shim_port(at_the_kink, **changes), at_the_kink, None, metrics={})
    train = dataclasses.replace(made.train, labels=np.ones((32, 1), np.float32))
    return dataclasses.replace(made, inputs=TERMS, train=train)


@functools.cache
def report_of_jump():
    return validate(kinked(in_two_sums=True), checks=["training-steps"])


@pytest.mark.slow
def test_a_gradient_may_jump_where_rounding_makes_tf1s_jump():
    (found,) = report_of_jump().checks
    assert found.ok, found.details
    assert "as far as rounding moves TF1's own training" in found.summary
    for way in ("eagerly", "in a tf.function"):
        noise, compared = found.training_noise[way].steps[0], found.trainings[way].steps[0]
        jump = noise["gradients['bias']"]
        assert jump.floor > 0.01 and set(jump.differences) >= {"in float64", "reductions reversed"}
        (leaf,) = compared["gradients"].leaves
        assert 0.01 < leaf.greatest_absolute.amount <= leaf.atol == jump.tolerance
    assert all(row.ok and row.used <= 1 for row in noise_rows(found))


@pytest.mark.slow
def test_a_fault_beside_such_a_gradient_is_found():
    inputs = np.concatenate([TERMS, 1e-3 * np.abs(TERMS)])
    faulty = kinked(off=1e-3)
    train = dataclasses.replace(faulty.train, labels=np.ones((64, 1), np.float32))
    assert not check(dataclasses.replace(faulty, inputs=inputs, train=train)).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", ["variational_autoencoder", "language_model", "residual_network"])
def test_sound_migrations_pass(name):
    """They train with Adam, with clipped gradients in slices, and with moving averages."""
    with enable_v1_layers():
        found = check(MIGRATIONS[name])
    assert found.ok, found.details


@pytest.mark.slow
def test_a_port_that_drifts_away_is_held_to_the_floor_of_each_step():
    found = check(migration(shim_port(network, bias=True), functools.partial(network, bias=True), None, **ADAM))
    assert found.ok, found.details


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, ADAM], ids=["SGD", "Adam"])
def test_every_number_of_a_step_has_noise(changes):
    noise = Reference(migration(**changes)).training_noise("num_random_ops")
    assert not noise.remarks
    for of_step in noise.steps:
        assert {"outputs", "loss", "metrics['greatest']", "gradients['hidden/kernel']"} <= of_step.keys()
        for name, of_number in of_step.items():
            assert all(each.startswith(tuple(VARIANTS)) for each in of_number.differences)
            assert len(of_number.differences) >= 5
            assert of_number.floor < 1000 * of_number.ulp or name == "learning_rate", name


@pytest.mark.slow
def test_a_small_loss_is_compared_by_its_size():
    def small(factor):
        return {
            "tf1_loss": lambda labels, outputs: 1e-6 * v1.losses.mean_squared_error(labels, outputs),
            "port_loss": scaled_loss(factor * 1e-6),
        }

    assert check(migration(**small(1.0))).ok
    found = check(migration(**small(1 + 1e-3)))
    assert found.causes[0] == "the loss or the weight of a loss differs: the port's loss is 1.001 times TF1's"
    assert found.trainings["eagerly"].first_divergence.leaf.path == "loss"
    assert check(migration(tolerances=[Tolerance()], **small(1 + 1e-3))).trainings["eagerly"].steps[0]["loss"].ok


@pytest.mark.slow
def test_reports_show_the_noise():
    report = report_of_jump()
    (content,) = json.loads(json_report.render([report]))["checks"]
    rows = content["noise_floor"]["outputs"]
    (row,) = (row for row in rows if row["path"].startswith("eagerly, step ") and "gradients" in row["path"])
    assert row["ok"] and 1e-5 < row["distance"] <= row["tolerance"] == 4 * row["floor"]
    assert row["path"] in str(report)
    assert row["path"].replace("'", "&#x27;") in html_report.render([report])


@pytest.mark.slow
def test_a_tolerance_of_the_users_counts_first():
    faulty = migration(port_loss=scaled_loss(1 + 1e-4), tolerances=[Tolerance(rtol=1e-2, atol=1e-3)])
    assert check(faulty).ok
    assert not check(dataclasses.replace(faulty, tolerances=())).ok


@pytest.mark.slow
def test_golden_files_keep_the_noise_of_training(tmp_path):
    path, made = tmp_path / "golden.npz", kinked(in_two_sums=True)
    record_golden([made], path)
    report, expected = validate(made, golden=path), validate(made)
    assert report.ok and expected.ok
    assert report.checks[-1].training_noise == expected.checks[-1].training_noise != {}
    assert report.checks[-1].details == expected.checks[-1].details
