"""Faults of a port's training are found, and rounding is no fault."""

import functools
import re

import keras
import pytest
import tensorflow as tf

from detrand import Tolerance, track_tf1_style_variables
from tests.sound_migrations.training import RMSprop
from tests.support.shim_ports import shim_port
from tests.support.trained_classifier import (
    check,
    cross_entropy,
    decayed,
    faulty_metric,
    first_divergence,
    keras_optimizer,
    mean_logit,
    model,
    shim,
    tf1_accuracy,
    tf1_loss,
)

v1 = tf.compat.v1


def summed(labels, logits):
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


FAULTS = {
    "the schedule is one step ahead": (
        {"port_optimizer": keras_optimizer(keras, first=1)},
        (1, "learning_rate"),
    ),
    "a different dropout rate": ({"port": shim(rate=0.1)}, (0, "outputs")),
    "a regularizer of half the scale": ({"port": shim(scale=0.005)}, (0, "regularization_loss")),
    "a small regularizer of half the scale": (
        {"tf1": functools.partial(model, scale=2e-6), "port": shim(scale=1e-6)},
        (0, "regularization_loss"),
    ),
    "a sum for a mean": ({"port_loss": summed}, (0, "loss")),
    "a different metric": (
        {
            "metrics": {
                "accuracy": (tf1_accuracy, keras.metrics.SparseCategoricalAccuracy()),
                "m": (mean_logit, faulty_metric),
            }
        },
        (0, "metrics['m']"),
    ),
    "no update of moving averages": ({"port": shim(updates=False)}, (0, "moving_averages['bn/mean']")),
    "a different momentum of moving averages": ({"port": shim(momentum=0.99)}, (0, "moving_averages['bn/mean']")),
    "a different epsilon": (
        {
            "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.1),
            "port_optimizer": lambda: keras.optimizers.Adam(0.1, epsilon=1e-3),
        },
        (0, "weights['hidden/kernel']"),
    ),
    # The first update is lr * g in either form. TF1 then scales the whole sum by the rate of the step, Keras each term
    # by that of its own.
    "momentum while the rate decays": (
        {
            "tf1_optimizer": decayed(v1.train.MomentumOptimizer, momentum=0.9),
            "port_optimizer": keras_optimizer(keras, momentum=0.9),
        },
        (2, "weights['hidden/kernel']"),
    ),
    "RMSProp's average starts elsewhere": (
        {
            "tf1_optimizer": lambda: v1.train.RMSPropOptimizer(0.01),
            "port_optimizer": lambda: keras.optimizers.RMSprop(0.01, epsilon=1e-10),
        },
        (0, "weights['hidden/kernel']"),
    ),
}


CAUSES = {
    "the schedule is one step ahead": "learning rate differs in step 1: 0.1 (TF1), 0.05 (port); each",
    "a regularizer of half the scale": "regularizer differs in hidden/kernel, logits/kernel: 0.01 sum(w**2)",
    "a small regularizer of half the scale": "factor of a regularizer differs",
    "a sum for a mean": "the port sums a loss where TF1 takes the mean: it is",
    "no update of moving averages": "the port does not update its moving averages: bn/mean never changes",
    "a different momentum of moving averages": "momentum differs: 0.9 (TF1), 0.99 (port)",
    "a different epsilon": "epsilon differs in the optimizer: 1e-08 (TF1), 0.001 (port)",
    "momentum while the rate decays": "TF1 multiplies its momentum by the learning rate of each step, but the port's",
    "RMSProp's average starts elsewhere": "initial rms differs in the optimizer: 1 (TF1), 0 (port)",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_at_its_step(fault):
    changes, expected = FAULTS[fault]
    found = check(**changes)
    assert not found.ok
    assert first_divergence(found) == first_divergence(found, "in a tf.function") == expected, found.details
    step, path = expected
    assert found.summary.startswith(("eagerly: ", "eagerly and in a tf.function: "))
    assert f"first: step {step}, {path}" in found.summary
    assert f"\n\nstep {step}, {path}: " in found.details
    reports = {str(found.trainings[how]) for how in ("eagerly", "in a tf.function")}
    assert found.details.count("(actual: port, desired: TF1): ") == len(reports)
    assert bool(found.causes) == (fault in CAUSES)
    assert ("Likely cause" in found.details) == bool(found.causes)
    assert any(cause.startswith(CAUSES[fault]) for cause in found.causes[:2]) or fault not in CAUSES


@pytest.mark.slow
@pytest.mark.parametrize("program", ["tf1", "port"])
def test_a_count_is_not_a_moving_average(program):
    """Only one program counts its calls."""

    def counting(inputs, training, counts):
        count = v1.get_variable("calls", (), tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        if training and counts:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_add(count, 1))
        return model(inputs, training)

    found = check(
        tf1=functools.partial(counting, counts=program == "tf1"), port=shim_port(counting, counts=program == "port")
    )
    assert first_divergence(found) == (0, "moving_averages['calls']")
    assert found.causes == ()


@pytest.mark.slow
def test_rounding_that_an_optimizer_amplifies_is_no_fault():
    """The gradient of a bias before a batch normalization is 0; Adam updates by its sign, however small it is."""
    found = check(
        tf1_optimizer=lambda: v1.train.AdamOptimizer(0.05),
        port_optimizer=lambda: keras.optimizers.Adam(0.05, epsilon=1e-8),
    )
    assert found.ok, found.details
    assert re.search(r"; without .*, rounding adds up: .*; first: step 0, weights\['hidden/bias'\]", found.summary)
    assert not found.trainings["eagerly, left to itself"]


@pytest.mark.slow
def test_a_training_begins_with_the_initial_values_of_tf1():
    found = check(port=shim(initializer=v1.ones_initializer()), metrics={"mean": mean_logit})
    assert found.ok, found.details
    assert not any(each in found.summary for each in ("weight decay", "replica", "rounding adds up"))


@pytest.mark.slow
def test_an_update_that_is_slightly_off_in_each_step_is_found():
    """No step differs by as much as weights may, but the difference adds up."""
    found = check(port_optimizer=keras_optimizer(keras, weight_decay=1e-4), steps=20)
    assert not found.ok
    assert first_divergence(found)[1].startswith("updates[")
    assert found.causes[0] == "weight decay differs in the optimizer: none (TF1), 0.0001 (port)"
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "cause"),
    [
        (
            lambda: v1.train.AdamOptimizer(1e-4),
            lambda: keras.optimizers.AdamW(1e-4, epsilon=1e-8, weight_decay=0.004),
            "weight decay differs in the optimizer: none (TF1), 0.004 (port)",
        ),
        (
            lambda: v1.train.MomentumOptimizer(1e-3, 0.9),
            lambda: keras.optimizers.SGD(1e-3, momentum=0.9, weight_decay=5e-3),
            "weight decay differs in the optimizer: none (TF1), 0.005 (port)",
        ),
        (
            lambda: v1.train.RMSPropOptimizer(2.5e-4, 0.95, epsilon=0.01, centered=True),
            lambda: RMSprop(2.5e-4, 0.95, epsilon=0.01),
            "centered differs in the optimizer: True (TF1), False (port)",
        ),
    ],
    ids=["AdamW", "momentum", "centered"],
)
def test_a_fault_that_a_small_learning_rate_hides_is_found(tf1_optimizer, port_optimizer, cause):
    """On its own, the port stays close to TF1 in so few steps."""

    def tf1(inputs, training):
        return tf.matmul(inputs, v1.get_variable("kernel", (4, 3)))

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return tf1(inputs, training)

    found = check(tf1=tf1, port=Port, tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)
    assert found.causes[0] == cause
    for way in ("eagerly", "in a tf.function"):
        assert first_divergence(found, way)[1] == "updates['kernel']"
    assert "rounding adds up" not in found.summary


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_small_gradients_are_held_to_their_size(size):
    """A gradient of the opposite sign differs by less than the absolute tolerance, and so do the weights."""

    def scaled(loss, sign=1):
        @tf.custom_gradient
        def turned(value):
            return value, lambda upstream: sign * upstream

        return lambda labels, logits: loss(labels, turned(logits)) * size

    def without_regularization(inputs, training):
        return model(inputs, training, scale=0.0)

    changes = {"tf1": without_regularization, "port": shim(scale=0.0), "tf1_loss": scaled(tf1_loss)}
    assert check(**changes, port_loss=scaled(cross_entropy())).ok
    found = check(**changes, port_loss=scaled(cross_entropy(), -1))
    assert first_divergence(found) == (0, "gradients['hidden/kernel']")


@pytest.mark.slow
def test_a_fault_only_in_functions_is_found():
    found = check(port=shim(function_scale=1.5))
    assert not found.ok
    assert found.trainings["eagerly"].ok
    assert first_divergence(found, "in a tf.function") == (0, "outputs")
    assert found.details.startswith("in a tf.function (actual: port, desired: TF1): 4 of 4 steps differ; first: ")
    (finding,) = found.findings
    assert finding.tf1.op == finding.port.op == "step 0, outputs"
    assert finding.tf1.line == finding.port.line == ""


@pytest.mark.slow
def test_an_output_has_no_line_of_a_variable_of_its_name():
    def tf1(inputs, training, factor=1.0):
        return {"kernel": factor * tf.matmul(inputs, v1.get_variable("kernel", (4, 3)))}

    found = check(
        tf1=tf1,
        port=shim_port(tf1, factor=1.5),
        tf1_loss=lambda labels, outputs: tf1_loss(labels, outputs["kernel"]),
        port_loss=lambda labels, outputs: cross_entropy()(labels, outputs["kernel"]),
        metrics={},
    )
    finding = found.findings[0]
    assert finding.tf1.op == finding.port.op == "step 0, outputs['kernel']"
    assert finding.tf1.line == finding.port.line == ""


@pytest.mark.slow
def test_a_regularization_loss_has_the_lines_that_add_it():
    def tf1(inputs, training, factor=0.01):
        kernel = v1.get_variable("kernel", (4, 3), regularizer=lambda w: factor * tf.reduce_max(tf.abs(w)))
        return tf.matmul(inputs, kernel)

    found = check(tf1=tf1, port=shim_port(tf1, factor=0.02), metrics={})
    (finding,) = (each for each in found.findings if each.kind == "regularizers")
    assert "tf.reduce_max(tf.abs(w))" in finding.tf1.source
    assert finding.port.line


@pytest.mark.slow
def test_tolerances_of_a_step_are_shown():
    changes, _ = FAULTS["a regularizer of half the scale"]
    regularization = Tolerance(rtol=0.6, atol=1e-5, of="regularization_loss")
    found = check(**changes, tolerances=[regularization, Tolerance(rtol=1e-6, atol=1.0)])
    assert found.ok, found.details
