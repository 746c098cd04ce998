"""Both programs begin with the initial values of TF1; initializers and regularizers have checks of their own."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, validate
from detrand.errors import ArgumentError
from detrand.report import html as html_report
from detrand.report import json as json_report
from detrand.validation.checks.registry import CHECKS
from detrand.validation.migration import CHECK_NAMES
from tests.support.reports import failed
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def tf1(inputs, training):
    def dense(x, units, name):
        with v1.variable_scope(name, regularizer=lambda weights: 0.01 * tf.nn.l2_loss(weights)):
            x = tf.matmul(x, v1.get_variable("kernel", (x.shape[-1], units)))
        with v1.variable_scope(name):
            return x + v1.get_variable("bias", (units,), initializer=v1.zeros_initializer())

    hidden = tf.nn.relu(dense(inputs, 8, "a"))
    hidden = tf.nn.dropout(hidden, rate=0.5) if training else hidden
    hidden = tf.nn.relu(dense(hidden, 8, "b"))
    hidden = tf.nn.dropout(hidden, rate=0.5) if training else hidden
    return dense(hidden, 2, "c"), hidden


class Port(keras.Model):
    """A port by somebody else, with other initializers, fewer regularizers, or one dropout more."""

    def __init__(self, initializer="glorot_uniform", regularized="abc", added=None):
        super().__init__()
        for name, units, activation in (("a", 8, "relu"), ("b", 8, "relu"), ("c", 2, None)):
            regularizer = keras.regularizers.L2(0.005) if name in regularized else None
            layer = keras.layers.Dense(
                units, activation, kernel_initializer=initializer, kernel_regularizer=regularizer, name=name
            )
            setattr(self, name, layer)
        self.first, self.second = keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)
        self.added, self.more = added, keras.layers.Dropout(0.5)

    def call(self, inputs, training=False):
        if self.added == "first":
            inputs = self.more(inputs, training=training)
        hidden = self.first(self.a(inputs), training=training)
        hidden = self.second(self.b(hidden), training=training)
        logits = self.c(self.more(hidden, training=training) if self.added == "last" else hidden)
        if self.added == "unused":
            self.more(hidden, training=training)
        return logits, hidden


TRAIN = TrainStep(
    labels=np.ones((4, 2), np.float32),
    tf1_loss=lambda labels, outputs: v1.losses.mean_squared_error(labels, outputs[0]),
    port_loss=lambda labels, outputs: keras.losses.MeanSquaredError()(labels, outputs[0]),
    tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01),
    port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
    steps=3,
)


def migration(expect=(), train=None, **port):
    return Migration(tf1=tf1, port=functools.partial(Port, **port), inputs=INPUTS, train=train, expect=expect)


@functools.cache
def report_of(expect=(), trains=False, **port):
    return validate(migration(expect, TRAIN if trains else None, **port))


def check(report, name):
    return next(check for check in report.checks if check.name == name)


def test_checks_have_one_order():
    assert tuple(CHECKS) == CHECK_NAMES


@pytest.mark.slow
def test_other_initializers_fail_one_check_and_all_others_compare():
    report = report_of(trains=True, initializer="he_normal")
    assert failed(report) == {"initializers-match"}, str(report)
    assert all(each.compared for each in report.checks)
    found = check(report, "initializers-match")
    assert found.differing == ("a/kernel", "b/kernel", "c/kernel")
    assert "  c/kernel: uniform from -0.774597 to 0.774597 (TF1), truncated normal of stddev 0.568424" in found.details
    for name in ("random-inference", "random-training", "constant-mode"):
        assert check(report, name).summary.startswith("outputs identical")
        assert any(leaf.desired for leaf in check(report, name).comparisons["outputs"].leaves)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expect", "accepted"),
    [
        (("initializers-match",), True),
        (("initializers-match: */kernel",), True),
        (("initializers-match: a/*", "initializers-match:b/kernel", "initializers-match: c/kernel"), True),
        (("initializers-match: a/*", "initializers-match: b/kernel"), False),
        (("regularizers-match", "training-steps"), False),
    ],
)
def test_an_expected_difference_is_accepted(expect, accepted):
    report = report_of(expect, initializer="he_normal")
    assert report.ok == accepted
    found = check(report, "initializers-match")
    assert found.verdict == ("accepted" if accepted else "FAILED")
    if accepted:
        assert report.summary == f"all 8 checks passed; accepted: {', '.join(expect)}"
        assert report.summary in str(report) and found.details in str(report)
        assert "accepted" in html_report.render([report])
        assert '"not_needed": []' in json_report.render([report])
    if expect[0].startswith("regularizers"):
        assert report.not_needed == expect
        assert report.summary.endswith("; not needed in expect: regularizers-match, training-steps")


@pytest.mark.slow
def test_an_expected_difference_is_needed_or_not_only_where_its_check_runs():
    report = validate(migration(("initializers-match", "regularizers-match")), checks=["regularizers-match"])
    assert report.not_needed == ("regularizers-match",)


@pytest.mark.slow
def test_an_expected_difference_that_is_none_is_reported():
    report = report_of(("initializers-match: a/*", "checkpoint"))
    assert report.ok
    assert report.summary == "all 8 checks passed; not needed in expect: initializers-match: a/*, checkpoint"


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        (
            ["initialisers-match"],
            r"'initialisers-match', which names no check. The checks are tf1-as-recorded, ",
        ),
        (["random-training: a/*"], "only initializers-match and regularizers-match can be accepted for some variables"),
        ("initializers-match", "expect must be a list of names of checks"),
    ],
)
def test_a_wrong_expect_is_an_error(expect, message):
    with pytest.raises(ArgumentError, match=message):
        migration(expect)


def test_an_exception_is_never_expected():
    def port():
        return lambda inputs, training: tf.matmul(inputs, inputs)

    report = validate(Migration(tf1=tf1, port=port, inputs=INPUTS, expect=["random-inference"]))
    assert "random-inference" in failed(report)


@pytest.mark.slow
def test_a_missing_regularizer_fails_its_check_and_the_training_that_depends_on_it():
    report = report_of(trains=True, regularized="c")
    assert failed(report) == {"regularizers-match", "training-steps"}, str(report)
    found = check(report, "regularizers-match")
    assert found.differing == ("a/kernel", "b/kernel")
    assert "  b/kernel: 0.005 sum(w**2) (TF1), none (port)" in found.details
    assert check(report, "training-steps").summary.startswith("after regularizers-match failed: ")
    accepted = report_of(("regularizers-match: a/kernel", "regularizers-match: b/*"), True, regularized="c")
    assert failed(accepted) == {"training-steps"}


@pytest.mark.slow
def test_a_sound_port_passes():
    assert report_of().ok, str(report_of())


@pytest.mark.slow
def test_training_begins_with_the_values_of_tf1_in_moving_averages_too():
    """The call that creates the variables changes the moving averages, which are set back."""

    def normalized(inputs, training):
        mean = v1.get_variable("bn/moving_mean", (8,), trainable=False, initializer=v1.zeros_initializer())
        moments = tf.reduce_mean(inputs, 0)
        if training:
            update = mean.assign(0.5 * mean + 0.5 * moments)
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return (inputs - (moments if training else mean)) * v1.get_variable("bn/gamma", (8,)), inputs

    class Normalized(keras.layers.Layer):
        def build(self, shape):
            self.mean = self.add_weight(name="moving_mean", shape=(8,), trainable=False, initializer="zeros")
            self.gamma = self.add_weight(name="gamma", shape=(8,), initializer="ones")

        def call(self, inputs, training=False):
            moments = tf.reduce_mean(inputs, 0)
            normalized = (inputs - (moments if training else self.mean)) * self.gamma
            if training:
                self.mean.assign(0.5 * self.mean + 0.5 * moments)
            return normalized, inputs

    train = TrainStep(
        labels=np.ones((4, 8), np.float32),
        tf1_loss=TRAIN.tf1_loss,
        port_loss=TRAIN.port_loss,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    report = validate(Migration(tf1=normalized, port=lambda: Normalized(name="bn"), inputs=INPUTS, train=train))
    assert failed(report) == {"initializers-match"}, str(report)
    assert check(report, "initializers-match").differing == ("bn/gamma",)


@pytest.mark.slow
@pytest.mark.parametrize(("added", "line"), [("first", 0), ("last", 3)])
def test_an_additional_dropout_is_named_by_its_line_and_takes_no_numbers(added, line):
    """All dropouts draw the same shape, so only the data flow tells which one is additional."""
    report = validate(Migration(tf1=tf1, port=functools.partial(Port, added=added), inputs=INPUTS))
    assert failed(report) == {"random-training", "constant-mode"}, str(report)
    found = check(report, "random-training")
    line += Port.call.__code__.co_firstlineno + 2
    named = (
        rf"the port has a random op that TF1 lacks: RandomUniform \(4, 8\) float32 at \S*test_start_values.py:{line}"
    )
    assert re.search(named, found.summary), found.summary
    assert re.match(named, found.causes[0])
    hidden = next(leaf for leaf in found.comparisons["outputs"].leaves if leaf.path == "[1]")
    assert hidden.ok == (added == "last")


@pytest.mark.slow
def test_an_additional_dropout_that_changes_nothing_passes():
    report = report_of(trains=True, added="unused")
    assert report.ok, str(report)


def test_random_ops_of_equal_shape_in_another_order_are_paired_by_the_data_flow():
    def branches(inputs, training, flip=False):
        def branch(name):
            kernel = v1.get_variable(f"{name}/kernel", (8, 8))
            return tf.nn.dropout(tf.matmul(inputs, kernel), rate=0.5) if training else tf.matmul(inputs, kernel)

        second = branch("b") if flip else None
        first = branch("a")
        return first - (branch("b") if second is None else second)

    report = validate(Migration(tf1=branches, port=shim_port(branches, flip=True), inputs=INPUTS))
    assert report.ok, str(report)
    assert "the port's random ops run in a different order" in check(report, "random-training").summary


@pytest.mark.slow
def test_a_model_that_is_thrown_away_takes_no_numbers():
    def thrown_away():
        model = keras.Sequential([keras.layers.Dense(8, name="a"), keras.layers.Dropout(0.5)])
        model(INPUTS, training=True)

    def in_a_second_graph(inputs, training):
        with tf.Graph().as_default():
            tf1(v1.placeholder(tf.float32, (4, 8)), training=True)
        return tf1(inputs, training)

    class ThrowsAway(Port):
        def call(self, inputs, training=False):
            tf.random.uniform((4, 8))
            return super().call(inputs, training=training)

    def port():
        thrown_away()
        return ThrowsAway()

    report = validate(Migration(tf1=in_a_second_graph, port=port, inputs=INPUTS))
    assert report.ok, str(report)
