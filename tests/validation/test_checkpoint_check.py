"""The check `checkpoint`: both programs compute the same with the weights of a checkpoint."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import CheckpointError, Migration, validate
from detrand.validation.checks.registry import CHECKS, Runner
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import run_port_from_checkpoint
from tests.support.classifier_migrations import INPUTS, NAMES, forward, port, train
from tests.support.reports import failed
from tests.support.shim_ports import shim_port


def check_of(report):
    assert [check.name for check in report.checks] == [*NAMES, "checkpoint"]
    return report.checks[-1]


def checkpoint_check(**migration):
    """Run the one check, without those before it."""
    return CHECKS["checkpoint"].run(
        Runner(Migration(**{"tf1": forward, "port": port(), "inputs": INPUTS, **migration}))
    )


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "model.ckpt"


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_adds_a_check_with_its_weights(version, checkpoint):
    train(checkpoint, version=version)
    report = validate(Migration(tf1=forward, port=port(), inputs=INPUTS, checkpoint=checkpoint))
    assert report.ok, str(report)
    found = check_of(report)
    assert found.summary == "outputs identical; 3 variables from the checkpoint"


def numpy_forward(values, suffix=""):
    hidden = np.maximum(INPUTS @ values[f"hidden/kernel{suffix}"], 0)
    return hidden @ values[f"logits/kernel{suffix}"] + values[f"logits/bias{suffix}"]


class KerasPort(keras.Model):
    """A port whose names differ."""

    def __init__(self):
        super().__init__(name="port")
        self.hidden = keras.layers.Dense(
            3, "relu", use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01), name="embed"
        )
        self.logits = keras.layers.Dense(2, name="head")

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        return self.logits(hidden), {"hidden": hidden}


KERAS_NAMES = {
    "hidden/kernel": "port/embed/kernel",
    "logits/kernel": "port/head/kernel",
    "logits/bias": "port/head/bias",
}
AVERAGE = "/ExponentialMovingAverage"


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("port", [port(), KerasPort], ids=["shim", "keras"])
def test_checkpoint_of_the_variables_or_of_their_averages(port, averages, checkpoint):
    """Both programs have the numbers that NumPy computes from what the training session held."""
    held = train(checkpoint)
    names = KERAS_NAMES if port is KerasPort else {}
    migration = Migration(
        tf1=forward,
        port=port,
        inputs=INPUTS,
        checkpoint=checkpoint,
        name_map=(lambda name: names.get(name.removesuffix(AVERAGE), name.removesuffix(AVERAGE)))
        if averages
        else names,
    )
    runs = Runner(migration)
    found = CHECKS["checkpoint"].run(runs)
    assert found.ok, found.details
    assert "outputs identical" in found.summary
    assert ("3 of them moving averages" in found.summary) == averages
    tf1 = runs.tf1.outcome(RunConfig(training=False, mode="constant", weights="checkpoint"))
    expected = numpy_forward(held, AVERAGE if averages else "")
    np.testing.assert_allclose(tf1.outputs[0], expected, rtol=1e-5, atol=1e-6)
    of_port = run_port_from_checkpoint(runs.migration, tf1)
    np.testing.assert_allclose(of_port.outputs[0], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - numpy_forward(held, "" if averages else AVERAGE)).max() > 1e-3


def partitioned(inputs, training, parts=2):
    partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts else None
    table = tf.compat.v1.get_variable("table", (5, 2), partitioner=partitioner)
    return tf.matmul(inputs, tf.convert_to_tensor(table))


@pytest.mark.slow_except("2-slices-True", "3-variables of their own-False", "None-slices-False")
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("as_dict", [False, True], ids=["slices", "variables of their own"])
@pytest.mark.parametrize("parts", [None, 2, 3])
def test_a_checkpoint_of_partitioned_variables_passes(parts, as_dict, averages, checkpoint):
    held = train(checkpoint, partitioned, as_dict=as_dict)

    migration = Migration(
        tf1=partitioned,
        port=shim_port(partitioned, parts=parts),
        inputs=INPUTS,
        checkpoint=checkpoint,
        name_map=(lambda name: name.removesuffix(AVERAGE)) if averages else None,
    )
    runs = Runner(migration)
    found = CHECKS["checkpoint"].run(runs)
    assert found.ok, found.details
    assert "outputs identical" in found.summary
    assert ("1 of them moving averages" in found.summary) == averages
    names = [f"table/part_{i}{AVERAGE if averages else ''}" for i in range(2)]
    expected = INPUTS @ np.concatenate([held[name] for name in names])
    outputs = runs.tf1.outcome(RunConfig(training=False, mode="constant", weights="checkpoint")).outputs
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_checkpoint_with_parts_that_no_saver_restores(checkpoint):
    train(checkpoint, partitioned, as_dict=True)
    found = checkpoint_check(
        tf1=lambda inputs, training: partitioned(inputs, training, 3), port=port(), checkpoint=checkpoint
    )
    assert not found.ok
    assert "holds table/part_0, table/part_1 as separate variables of the shapes [(3, 2), (2, 2)]" in found.details
    assert "but the TF1 program has parts of the shapes [(2, 2), (2, 2), (1, 2)]" in found.details


def test_inferences_from_a_checkpoint_draw_the_same(checkpoint):
    """The port has drawn once before, when its variables were created."""

    def noisy(inputs, training):
        kernel = tf.compat.v1.get_variable("kernel", (5, 2))
        return tf.matmul(inputs, kernel) + tf.random.normal((4, 2))

    train(checkpoint, noisy)
    found = checkpoint_check(tf1=noisy, port=shim_port(noisy), checkpoint=checkpoint)
    assert found.ok, found.details


def test_a_checkpoint_may_hold_more_than_the_program(checkpoint):
    train(checkpoint, lambda inputs, training: forward(inputs, training, extra=True))
    found = checkpoint_check(checkpoint=checkpoint)
    assert found.ok, found.details
    assert "not in the TF1 program: logits/extra" in found.summary


def test_checkpoint_with_a_variable_that_has_the_name_of_one_in_the_port(checkpoint):
    def with_another(inputs, training):
        tf.compat.v1.get_variable(KERAS_NAMES["hidden/kernel"], (5, 3))
        return forward(inputs, training)

    train(checkpoint, with_another)
    found = checkpoint_check(port=KerasPort, name_map=KERAS_NAMES, checkpoint=checkpoint)
    assert found.ok, found.details
    assert "not in the TF1 program: port/embed/kernel" in found.summary


def test_a_checkpoint_that_lacks_a_variable_fails(checkpoint):
    train(checkpoint)

    def wider(inputs, training):
        outputs = forward(inputs, training, extra=True)
        tf.compat.v1.get_variable("hidden/scale", (3,))
        return outputs

    found = checkpoint_check(tf1=wider, checkpoint=checkpoint)
    assert not found.ok
    (finding,) = found.findings
    assert finding.title == found.summary and finding.remedy.startswith("pass a checkpoint of the whole program")
    assert re.search(r"does not fit the TF1 program: 2 only in the TF1 program", found.summary)
    assert re.search(
        r"only in the TF1 program \(2\):\n  logits/extra: float32 \(\), trainable\n  hidden/scale: float32 \(3,\)",
        found.details,
    )


def test_checkpoint_of_which_the_port_lacks_a_variable(checkpoint):
    train(checkpoint, lambda inputs, training: forward(inputs, training, extra=True))
    found = checkpoint_check(tf1=lambda inputs, training: forward(inputs, training, extra=True), checkpoint=checkpoint)
    assert not found.ok
    assert re.search(
        r"does not fit the target: 1 only in the checkpoint(.|\n)*logits/extra: float32 \(\)", found.details
    )


def test_checkpoint_finds_what_no_other_check_does(checkpoint):
    """A bias that the port clips at 0, where it is at first, and above which the other checks set it."""

    def tf1(inputs, training, clip=False):
        kernel = tf.compat.v1.get_variable("kernel", (5, 2))
        bias = tf.compat.v1.get_variable("bias", (2,), initializer=tf.compat.v1.zeros_initializer())
        return tf.matmul(inputs, kernel), tf.nn.relu(bias) if clip else tf.identity(bias)

    def objective(inputs, training):
        outputs, bias = tf1(inputs, training)
        return outputs, bias + 1

    train(checkpoint, objective)
    report = validate(Migration(tf1=tf1, port=shim_port(tf1, clip=True), inputs=INPUTS, checkpoint=checkpoint))
    assert failed(report) == {"checkpoint"}
    assert re.search(r"outputs differ; first: \[1\]", check_of(report).summary)


def test_an_unreadable_checkpoint_is_refused_before_any_check(checkpoint):
    train(checkpoint)
    with open(f"{checkpoint}.data-00000-of-00001", "rb+") as file:
        file.truncate(40)
    calls = []
    migration = Migration(
        tf1=lambda *inputs, training: calls.append(1), port=port(), inputs=INPUTS, checkpoint=checkpoint
    )
    with pytest.raises(CheckpointError, match=r"model.ckpt' is damaged: .*; first damaged variable: 'hidden/kernel'"):
        validate(migration)
    with pytest.raises(CheckpointError, match=r"checkpoint='.*model.ckpd' cannot be read .*Pass '.*model.ckpt'"):
        validate(dataclasses.replace(migration, checkpoint=f"{checkpoint.parent}/model.ckpd"))
    assert not calls
