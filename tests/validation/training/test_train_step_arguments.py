"""Arguments of `TrainStep` that cannot be used."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, MigrationError, Tolerance, validate
from tests.support.trained_classifier import (
    INPUTS,
    LABELS,
    check,
    faulty_metric,
    mean_logit,
    migration,
    shim,
    tf1_loss,
)

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be an integer from 1, but 0 of type int was given"),
        ({"steps": True}, "steps must be an integer from 1, but True of type bool was given"),
        ({"tf1_loss": 0.5}, r"tf1_loss must be a function tf1_loss\(labels, outputs\) .* but 0.5 of type float"),
        ({"port_loss": None}, r"port_loss must be a function port_loss\(labels, outputs\) .* NoneType"),
        (
            {"port_optimizer": keras.optimizers.SGD()},
            r"port_optimizer must be a function without arguments that .* an optimizer, such as lambda: Adam\(0.001\)",
        ),
        (
            {"tf1_optimizer": v1.train.AdagradDAOptimizer},
            r"tf1_optimizer must be a function without arguments that makes .*missing .*Pass a factory, such as lambda",
        ),
        (
            {"var_list": "logits/*"},
            r"var_list must be a list of names of TF1 variables, .* but 'logits/\*' of type str was given",
        ),
        ({"var_list": []}, r"var_list must be .*; write var_list="),
        ({"var_list": ["logits/*", ""]}, r"var_list must be a list of names"),
        ({"metrics": [mean_logit]}, r"metrics must be a dict of name -> function, but \["),
        (
            {"metrics": {"m": 3}},
            r"metrics\['m'\] must be a function .*, or a pair of them, .* but 3 of type int was given",
        ),
        ({"metrics": {"m": (mean_logit, 3)}}, r"metrics\['m'\] must be a function"),
        ({"tolerances": Tolerance()}, "tolerances must be a list of detrand.Tolerance"),
        ({"labels": None}, "labels must be arrays, but None was given; if the loss needs no labels, pass the inputs"),
        ({"labels": [0, 1, 2]}, r"labels\[0\] must be an array with the batch as its first axis, but 0 of type int"),
        ({"labels": {"a": None, "b": "x"}}, r"labels\['b'\] must be an array"),
        (
            {"labels": LABELS[:5]},
            r"labels of batch 0 has the shape \(5,\), but the inputs have \[\(6, 4\)\]; the first axis of both",
        ),
        ({"labels": [LABELS, LABELS[:5]]}, r"labels\[1\] of batch 0 has the shape \(5,\)"),
    ],
    ids=lambda value: (
        "-".join(f"{key} {entry!r}"[:30] for key, entry in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ArgumentError, match=message):
        migration(**changes)


def test_train_must_be_a_train_step():
    with pytest.raises(ArgumentError, match=r"train must be a detrand.TrainStep, but 3 of type int was given; write"):
        dataclasses.replace(migration(), train=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tf1_loss": lambda labels, logits: logits},
            r"tf1_loss returned a tensor of shape \[6, 3\]: return a scalar, such as tf.reduce_mean",
        ),
        (
            {"tf1_loss": lambda labels, logits: tf1_loss(labels, logits) * np.nan},
            "the loss of the TF1 program of model is nan in the first step, so there is nothing to compare; check",
        ),
        (
            {"tf1_loss": lambda labels, logits: 1 / 0},
            r"cannot be trained: ZeroDivisionError.*test_train_step_arguments.py:\d+",
        ),
        (
            {"tf1_optimizer": lambda: 3},
            "tf1_optimizer must return an optimizer, but returned 3 of type int",
        ),
        (
            {"port_optimizer": lambda: 3},
            "port_optimizer must return an optimizer, but returned 3 of type int",
        ),
        (
            {"port_optimizer": lambda: 1 / 0},
            r"port_optimizer of model raised ZeroDivisionError.*test_train_step_arguments",
        ),
        (
            {"var_list": ["logits/*", "bn/*"]},
            r"var_list has 'bn/\*', which matches no trainable variable of the TF1 program; it has hidden/kernel, ",
        ),
        ({"labels": lambda: []}, r"labels\(\) returned no batch: the iterable was empty"),
        (
            {"labels": lambda: 3},
            r"labels\(\) returned no batch: TypeError: it returned int, not an iterable",
        ),
        (
            {"labels": lambda: [LABELS] * 3, "inputs": lambda: [INPUTS] * 2},
            r"inputs\(\) returned 2 batches and labels\(\) returned 3, for 4 steps; both must return equally many",
        ),
        (
            {"labels": lambda: [LABELS, LABELS[:5]], "inputs": lambda: [INPUTS, INPUTS[:5]]},
            r"batch 1 has the shapes \(5, 4\), \(5,\), but batch 0 has \(6, 4\), \(6,\); all batches",
        ),
        ({"labels": lambda: [LABELS[:5]]}, r"labels of batch 0 has the shape \(5,\), but the inputs have"),
    ],
    ids=[
        *("tensor loss", "NaN", "loss raises", "no tf1 optimizer", "no port optimizer", "optimizer raises"),
        *("no variable", "no labels", "labels no iterable", "other numbers of batches", "other shapes", "other size"),
    ],
)
def test_a_migration_that_cannot_be_trained_is_refused_before_any_check(changes, message):
    made = []

    def port():
        made.append(1)
        return shim()()

    with pytest.raises((MigrationError, ArgumentError), match=message):
        validate(migration(port=port, **changes))
    assert not made


def loss_of_each(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@pytest.mark.slow
def test_a_loss_of_the_port_that_is_no_scalar_fails_one_check():
    report = validate(migration(port_loss=loss_of_each, steps=1))
    assert [check.name for check in report.checks if not check.ok] == ["training-steps"]
    (finding,) = report.findings
    line = inspect.getsourcelines(loss_of_each)[1]
    assert f"test_train_step_arguments.py:{line}) returned a tensor of shape [6]: return a scalar" in finding.title


def test_an_error_in_a_framework_loss_has_the_line_that_makes_the_loss():
    loss = keras.losses.CategoricalCrossentropy()  # which takes no class ids
    (finding,) = check(port_loss=loss).findings
    assert "CategoricalCrossentropy()" in finding.port.source


@pytest.mark.slow
def test_a_metric_that_differs_has_the_lines_of_both_functions():
    (finding,) = check(metrics={"mean": (mean_logit, faulty_metric)}, steps=1).findings
    assert finding.title == "metrics['mean'] differs in step 0"
    assert (finding.tf1.source, finding.port.source) == (
        "def mean_logit(labels, logits):",
        "def faulty_metric(labels, logits):",
    )
