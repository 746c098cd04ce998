"""Migrations that cannot be checked: the command line says why in one line, and exits with 2."""

import re

import pytest

from detrand.__main__ import COULD_NOT_RUN, FAILED, main

BEFORE = """
import keras
import numpy as np
import tensorflow as tf
import detrand

v1 = tf.compat.v1
INPUTS = np.ones((4, 3), np.float32)
LAYER = keras.layers.Dense(2, use_bias=False, name="dense")
OPTIMIZER = keras.optimizers.SGD(0.1)

def tf1(inputs, training):
    return tf.matmul(inputs, v1.get_variable("dense/kernel", (3, 2)))

def port():
    return keras.layers.Dense(2, use_bias=False, name="dense")

def tf1_of_both(inputs, labels, training):
    return tf1(inputs, training)

BOTH = {"tf1": tf1_of_both, "inputs": (INPUTS, np.zeros(4, np.int32))}

class OneInput(keras.layers.Layer):
    def call(self, x, training=False):
        return x

class WithoutTraining(tf.Module):
    def __call__(self, x):
        return x

def not_finite(labels, outputs):
    return tf.reduce_mean(outputs) / 0.0 * 0.0

def migration_with(**arguments):
    return detrand.Migration(**{"tf1": tf1, "port": port, "inputs": INPUTS, **arguments})

def trained_with(**arguments):
    train = {
        "labels": np.zeros((4, 2), np.float32),
        "tf1_loss": v1.losses.mean_squared_error,
        "port_loss": keras.losses.MeanSquaredError(),
        "tf1_optimizer": lambda: v1.train.GradientDescentOptimizer(0.1),
        "port_optimizer": lambda: keras.optimizers.SGD(0.1),
        "steps": 2,
    }
    return migration_with(train=detrand.TrainStep(**{**train, **arguments}))

"""


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command line on a file of Python code, and return the exit status and what it said."""

    def run_on(code, *options):
        file = tmp_path / "my_migration.py"
        file.write_text(BEFORE + code)
        status = main(["validate", str(file), *options])
        return status, *capsys.readouterr()

    return run_on


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "does not define migration; write migration = detrand.Migration"),
        ("migration = port", "migration in .* is of type function, not a Migration"),
        ("def (", r"cannot be imported: SyntaxError: invalid syntax \(.*:\d+\)"),
        ("import not_there", r"cannot be imported: ModuleNotFoundError: No module named 'not_there' \(.*:\d+\)"),
        ("migration = migration_with(inputs=None)", "inputs must be an array.* but None of type NoneType was given"),
        ("migration = migration_with(inputs=[[[1.0], [2.0, 3.0]]])", "input 0 is not an array: .*inhomogeneous"),
        ("migration = migration_with(inputs=np.array([None]))", "input 0 is not an array of numbers .* dtype object"),
        ("migration = migration_with(inputs=[1.0, 2.0])", r"inputs float64 \(\), float64 \(\): multiple values"),
        (
            "migration = migration_with(inputs=np.array(['a']))",
            r"cannot be run: .* string .*; its inputs are text \(1,\)",
        ),
        ("migration = migration_with(inputs=np.ones((4, 3)))", r"cannot be run: .*; its inputs are float64 \(4, 3\)"),
        (
            "migration = migration_with(tf1=lambda x, training: tf.compat.v1.layers.flatten(x))",
            r"cannot be run: .* not available with Keras 3.*; call detrand.enable_v1_layers\(\) first",
        ),
        ("migration = migration_with(inputs=lambda: 3)", r"inputs\(\) returned no batch: .*int, not an iterable"),
        ("migration = migration_with(tf1=lambda x, training: 'a')", "returned 'a', which holds no tensor"),
        ("migration = migration_with(tf1=lambda x, training: None)", "returned None, which holds no tensor"),
        ("migration = migration_with(port=lambda: None)", "returned None of type NoneType, which cannot be called"),
        (
            "migration = migration_with(**BOTH, port=OneInput)",
            r"port of tf1_of_both cannot be called with the inputs float32 \(4, 3\), int32 \(4,\) and training=...: it "
            r"takes \(x, training=False\) \(.*my_migration.py:\d+\). Both programs take the same inputs: leave out .*"
            r"such as labels, which TrainStep\(labels=...\) takes, or return a layer from port that takes them all",
        ),
        ("migration = migration_with(**BOTH, port=port)", r"cannot be called .*: it takes \(inputs, training=None\)"),
        (
            "migration = migration_with(**BOTH, port=lambda: keras.Sequential([port()]))",
            r"cannot be called with .*: it takes \(inputs, training=None, mask=None.*\). Both programs",
        ),
        ("migration = migration_with(**BOTH, port=WithoutTraining)", r": it takes \(x\) .*Both programs take the same"),
        (
            "migration = migration_with(port=WithoutTraining)",
            r"inputs float32 \(4, 3\) and training=...: it takes \(x\) .*Add a parameter training=False to it",
        ),
        (
            "migration = migration_with(port=lambda: tf.function(lambda x: x))",
            r"it takes .x. \(.*my_migration.py:\d+\). Add a parameter training=False",
        ),
        ("migration = migration_with(port=lambda: lambda x: x)", "it takes .x. .*Add a parameter training=False to it"),
        ("migration = migration_with(port=lambda: LAYER)", "returned the same Dense twice"),
        ("migration = migration_with(name_map={'dense/kernal': 'w'})", "Did you mean 'dense/kernel'"),
        ("migration = migration_with(name_map=lambda name: {}[name])", r"name_map raised KeyError\('dense/kernel'\)"),
        ("migration = trained_with(steps=0)", "steps must be an integer from 1, but 0 of type int was given"),
        ("migration = trained_with(labels=np.zeros((3, 2)))", r"labels of batch 0 has the shape \(3, 2\)"),
        ("migration = trained_with(tf1_loss=not_finite)", "the loss of the TF1 program .* is nan in the first step"),
        ("migration = trained_with(port_optimizer=lambda: OPTIMIZER)", "port_optimizer .* returned the same SGD twice"),
    ],
    ids=lambda value: value[:60] if "migration" in value or not value else "",
)
def test_the_command_line_says_why_in_one_line(run, code, message):
    status, out, err = run(code)
    assert status == COULD_NOT_RUN, out + err
    assert re.fullmatch(f"detrand: .*{message}.*\n", err), err
    assert "Traceback" not in out


@pytest.mark.parametrize("parameters", ["x", "x, training=False"])
def test_a_type_error_of_a_port_that_takes_its_inputs_is_a_finding(run, parameters):
    status, out, err = run(
        f"class Raises(keras.layers.Layer):\n    def call(self, {parameters}):\n        return x + len(3)\n"
        "migration = migration_with(port=Raises)",
        "--check",
        "variables-match",
    )
    assert (status, err) == (FAILED, "")
    assert "TypeError: object of type 'int' has no len()" in out


def test_outputs_of_another_structure_are_named(run):
    """The port is not what the TF1 program is, and that is a verdict."""
    status, out, err = run(
        "tf1, port = lambda x, training: (tf.tanh(x), x), lambda: lambda x, training: {'a': x}\n"
        "migration = migration_with(tf1=tf1, port=port)",
        "--verbose",
    )
    assert (status, err) == (FAILED, "")
    said = " ".join(out.replace("│", " ").split())
    assert "outputs differ in structure: output is (float32 (4, 3), float32 (4, 3)) (TF1), {'a': float32" in said
    assert "outputs: 1 of 1 differs" in said
    assert "actual {'a': float32 (4, 3)} desired (float32 (4, 3), float32 (4, 3))" in said
    assert "finding 1 of 1" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"golden.npz cannot be read: No such file"),
        (b"no archive", "golden.npz is not a recording of detrand, or is damaged"),
    ],
    ids=["absent", "text"],
)
def test_a_file_that_is_no_golden_file_is_refused(run, tmp_path, content, message):
    golden = tmp_path / "golden.npz"
    if content is not None:
        golden.write_bytes(content)
    status, _, err = run("migration = migration_with()", "--golden", str(golden))
    assert status == COULD_NOT_RUN
    assert re.fullmatch(f"detrand: .*{message}.*\n", err), err


def test_a_golden_file_of_another_migration_is_refused(run, tmp_path):
    golden = tmp_path / "golden.npz"
    file = tmp_path / "other.py"
    file.write_text(BEFORE + "migration = migration_with(name='other')")
    assert main(["record", str(file), "-o", str(golden)]) == 0
    for code, message in (
        ("migration = migration_with()", "does not hold the migration 'tf1'; it holds 'other'"),
        ("migration = migration_with(name='other', inputs=INPUTS + 1)", "was recorded of .* with different inputs"),
        ("migration = migration_with(name='other', seed=7)", "was recorded of .* with different seed"),
    ):
        status, _, err = run(code, "--golden", str(golden))
        assert status == COULD_NOT_RUN
        assert re.fullmatch(f"(.*\n)?detrand: .*{message}.*\n", err), err
