"""The noise floor of training, which decides how close each step must be when tolerances are measured."""

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
from detrand.validation.results import noise_rows
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


def migration(port=KerasPort, tf1=network, name_map=lambda name: f"port/{name}", tolerances="auto", **changes):
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


@pytest.mark.parametrize("changes", [{}, ADAM], ids=["SGD", "Adam"])
def test_a_sound_port_is_near_the_floor(changes):
    found = check(migration(**changes))
    assert found.ok, found.details
    for way in ("eagerly", "in a tf.function"):
        for step, by_name in found.trainings[way].steps.items():
            noise = found.training_noise[way].steps[step]
            leaves = [leaf for name in by_name.keys() - {"learning_rate"} for leaf in by_name[name].leaves]
            assert {leaf.path for leaf in leaves} == noise.keys() - {"learning_rate"}
            for leaf in leaves:
                assert (leaf.rtol, leaf.atol) == (0.0, noise[leaf.path].tolerance)
                assert all(name.startswith(tuple(VARIANTS)) for name in noise[leaf.path].differences)
                assert len(noise[leaf.path].differences) >= 5
    rows = noise_rows(found)
    assert all(row.ok and row.used <= 1 for row in rows)
    assert len(rows) == 2 * (len(found.trainings["eagerly"].names) - 1)  # the learning rate has none


@pytest.mark.slow
@pytest.mark.parametrize("name", ["variational_autoencoder", "language_model", "residual_network"])
def test_sound_migrations_pass(name):
    """They train with Adam, with clipped gradients in slices, and with moving averages."""
    with enable_v1_layers():
        found = check(dataclasses.replace(MIGRATIONS[name], tolerances="auto"))
    assert found.ok, found.details


@pytest.mark.slow
def test_a_port_that_drifts_away_is_held_to_the_floor_of_each_step():
    found = check(migration(shim_port(network, bias=True), functools.partial(network, bias=True), None, **ADAM))
    assert found.ok, found.details


def test_noise_adds_up_in_steps_that_are_left_to_themselves():
    sessions = Reference(migration(**{**ADAM, "steps": 8}))
    left_to_itself, guided = (sessions.training_noise("num_random_ops", guided=guided) for guided in (False, True))
    assert left_to_itself.steps[7]["outputs"].floor > 2 * guided.steps[7]["outputs"].floor > 0


def test_a_fault_within_the_guides_tolerance_is_found():
    faulty = migration(port_loss=scaled_loss(1 + 1e-5))
    assert validate(dataclasses.replace(faulty, tolerances=())).ok
    report = validate(faulty)
    assert {one.name for one in report.checks if not one.ok} == {"training-steps"}, str(report)
    found = report.checks[-1]
    assert found.trainings["eagerly"].first_divergence.leaf.path == "loss"
    assert found.causes[0] == "the loss or the weight of a loss differs: the port's loss is 1.00001 times TF1's"
    (content,) = (one for one in json.loads(json_report.render([report]))["checks"] if one["name"] == "training-steps")
    rows = content["noise_floor"]["outputs"]
    (row,) = (row for row in rows if row["path"].startswith("eagerly, step ") and row["path"].endswith(": loss"))
    assert not row["ok"]
    assert row["floor"] < row["tolerance"] < row["distance"] < 1e-4
    assert row["path"] in str(report)
    assert f"<code>{row['path']}</code>" in html_report.render([report])


def test_a_tolerance_of_the_users_counts_first():
    faulty = migration(port_loss=scaled_loss(1 + 1e-5), tolerances=[Tolerance(rtol=1e-3, atol=1e-4)])
    assert check(faulty).ok


@pytest.mark.slow
def test_golden_files_keep_the_noise_floor_of_training(tmp_path):
    path = tmp_path / "golden.npz"
    faulty = migration(port_loss=scaled_loss(1 + 1e-5))
    record_golden([faulty], path)
    report, expected = validate(faulty, golden=path), validate(faulty)
    assert report.checks[-1].training_noise == expected.checks[-1].training_noise
    assert report.checks[-1].details == expected.checks[-1].details
