"""Each check on a sound migration and on migrations with one planted fault: which checks fail, and what they say."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import Migration, MigrationError, track_tf1_style_variables, validate
from detrand.migration import load_migrations

REPOSITORY = Path(__file__).parent.parent
INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
NAMES = (
    "variables-created-once",
    "variables-match",
    "constant-weights",
    "random-inference",
    "random-training",
    "constant-mode",
)


def forward(inputs, training, *, units=3, rate=0.5, initializer=None, scale=0.01, activation=tf.nn.relu, extra=False):
    """A TF1 model with variables, dropout, a regularizer and moving averages of nothing."""
    regularizer = lambda weights: scale * tf.reduce_sum(weights**2)  # noqa: E731
    with tf.compat.v1.variable_scope("hidden", initializer=initializer, regularizer=regularizer):
        kernel = tf.compat.v1.get_variable("kernel", (inputs.shape[-1], units))
    hidden = activation(tf.matmul(inputs, kernel))
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    with tf.compat.v1.variable_scope("logits"):
        kernel = tf.compat.v1.get_variable("kernel", (units, 2))
        bias = tf.compat.v1.get_variable("bias", (2,), initializer=tf.compat.v1.zeros_initializer())
        if extra:
            tf.compat.v1.get_variable("extra", ())
    return tf.matmul(hidden, kernel) + bias, {"hidden": hidden}


def port(kind=keras.layers.Layer, **changes):
    class Port(kind):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return forward(inputs, training, **changes)

        if kind is tf.Module:
            __call__ = call

    return Port


def failed(report):
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("kind", [keras.layers.Layer, keras.Model, tf.Module], ids=["layer", "model", "module"])
def test_sound_port(kind):
    report = validate(Migration(tf1=forward, tf2=port(kind), inputs=INPUTS))
    assert report.ok, str(report)
    assert tuple(check.name for check in report.checks) == NAMES
    assert all("bit for bit" in check.summary for check in report.checks[2:]), str(report)


class CreatesVariables(port()):
    def call(self, inputs, training=False):
        scale = tf.Variable(1.0, name="scale", trainable=False)
        outputs, end_points = super().call(inputs, training=training)
        return outputs * scale, end_points


@pytest.mark.parametrize(
    ("tf2", "expected", "message"),
    [
        (CreatesVariables, {"variables-created-once"}, r"scale.*test_validation.py:\d+"),
        (port(extra=True), {"variables-match"}, "logits/extra"),
        (port(activation=tf.nn.tanh), set(NAMES[2:]), r"\[0\]: \d+ of 8 elements differ"),
        (port(scale=0.02), set(NAMES[2:]), "regularization loss"),
        (port(rate=0.25), {"random-training", "constant-mode"}, "outputs"),
        (port(initializer=tf.compat.v1.zeros_initializer()), set(NAMES[3:]), "the first random op that differs"),
    ],
    ids=["creates variables", "extra variable", "activation", "regularizer", "dropout rate", "initializer"],
)
def test_planted_fault(tf2, expected, message):
    report = validate(Migration(tf1=forward, tf2=tf2, inputs=INPUTS))
    assert failed(report) == expected, str(report)
    assert re.search(message, str(report)), str(report)


def test_a_port_that_raises_fails_its_checks():
    class Raises(keras.layers.Layer):
        def call(self, inputs, training=False):
            raise OverflowError("too much")

    report = validate(Migration(tf1=forward, tf2=Raises, inputs=INPUTS))
    assert failed(report) == set(NAMES)
    assert "OverflowError" in report.checks[0].summary
    assert "test_validation.py:" in report.checks[0].summary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tf1": lambda inputs, training: 1 / 0}, r"the TF1 program of .* cannot be run: ZeroDivisionError.*test_val"),
        ({"tf2": lambda: 1 / 0}, r"cannot make the port: ZeroDivisionError.*test_validation.py:\d+"),
        ({"tf2": lambda: 3}, r"returned 3 of type int, which cannot be called"),
    ],
    ids=["tf1 raises", "tf2 raises", "no port"],
)
def test_nothing_to_check(changes, message):
    with pytest.raises(MigrationError, match=message):
        validate(Migration(**{"tf1": forward, "tf2": port(), "inputs": INPUTS, **changes}))


def test_validate_takes_a_migration():
    with pytest.raises(detrand.ArgumentError, match=r"takes a detrand.Migration, but 3 of type int was given"):
        validate(3)


def run_command_line(*arguments):
    command = [sys.executable, "-m", "detrand", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


MIGRATION_FILE = """
import keras
import numpy as np
import tensorflow as tf
import detrand

def tf1(inputs, training):
    return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))

def migration_with(**arguments):
    return detrand.Migration(
        tf1=tf1, tf2=lambda: keras.layers.Dense(2, name="dense", **arguments), inputs=np.ones((4, 3), np.float32)
    )

migration = migration_with(use_bias=False)
faulty = migration_with()
"""


@pytest.fixture
def migration_file(tmp_path):
    path = tmp_path / "dense.py"
    path.write_text(MIGRATION_FILE)
    return path


def test_command_line_passes(migration_file):
    done = run_command_line("validate", migration_file)
    assert done.returncode == 0, done.stderr
    assert "tf1: all 6 checks passed" in done.stdout
    assert all(name in done.stdout for name in NAMES)
    assert done.stderr == ""


def test_command_line_fails(migration_file):
    done = run_command_line("validate", f"{migration_file}:faulty")
    assert done.returncode == 1, done.stderr
    assert "checks failed, first variables-match" in done.stdout
    assert "dense/bias" in done.stdout


def test_command_line_takes_several_migrations(migration_file):
    done = run_command_line("validate", migration_file, f"{migration_file}:faulty")
    assert done.returncode == 1, done.stderr
    assert "1 of 2 migrations failed" in done.stdout


@pytest.mark.parametrize("location", ["absent.py", "{file}:absent"], ids=["no file", "no migration"])
def test_command_line_that_cannot_run_says_why_in_one_line(migration_file, location):
    done = run_command_line("validate", location.format(file=migration_file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("detrand: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("example", "size"), [("inception_v3.py", 139), ("tf_slim_networks.py:resnet_v2_50", 65)])
def test_example_on_a_small_image(example, size, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    (migration,) = load_migrations(f"examples/{example}")
    report = validate(dataclasses.replace(migration, inputs=migration.inputs[:, :size, :size]))
    assert report.ok, str(report)
    assert all("outputs bit for bit" in check.summary for check in report.checks[2:]), str(report)


@pytest.mark.parametrize("example", ["gpt_2", "bert_encoder"])
def test_example_of_a_transformer(example, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    report = validate(*load_migrations(f"examples/{example}.py"))
    assert report.ok, str(report)
    assert all("outputs bit for bit" in check.summary for check in report.checks[2:]), str(report)


@pytest.mark.whole_network
@pytest.mark.parametrize("example", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example(example):
    done = run_command_line("validate", example)
    assert done.returncode == 0, done.stdout + done.stderr
