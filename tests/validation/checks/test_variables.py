"""The checks of the variables, each run by itself."""

import functools

import keras
import numpy as np
import tensorflow as tf

from detrand import Migration
from detrand.validation.checks.registry import run_check
from detrand.validation.checks.variables import paired_variables
from detrand.validation.results import PairedVariable
from detrand.validation.runner import Runner

v1 = tf.compat.v1


def tf1(inputs, training):
    kernel = v1.get_variable("dense/kernel", (2, 3))
    scale = v1.get_variable("dense/scale", (3,))  # HERE
    return tf.matmul(inputs, kernel) * scale


class Creating(keras.layers.Layer):
    """A port that creates a variable in each call, or in calls for training or inference only."""

    def __init__(self, created_in):
        super().__init__()
        self.created_in, self.created = created_in, []

    def call(self, inputs, training=False):
        if training in self.created_in:
            self.created.append(tf.Variable(1.0))
        return inputs * 1.0


def runner_of(port):
    return Runner(Migration(tf1=tf1, port=port, inputs=np.ones((1, 2), np.float32)))


def test_a_variable_of_each_call_is_found_in_training_and_in_inference():
    for created_in, ok in [([], True), ([True], False), ([False], False)]:
        result = run_check("variables-created-once", runner_of(functools.partial(Creating, created_in)))
        assert result.ok == ok, created_in
        assert ("creates variables when it is called again" in result.summary) == (not ok)


def test_a_variable_that_only_tf1_has_is_found_at_its_line():
    runner = runner_of(lambda: keras.layers.Dense(3, name="dense"))
    assert paired_variables(runner) == (
        PairedVariable("dense/kernel", "dense/kernel", "float32 (2, 3)", "float32 (2, 3)"),
        PairedVariable("dense/scale", "", "float32 (3,)", ""),
        PairedVariable("", "dense/bias", "", "float32 (3,)"),
    )
    in_tf1, in_port = run_check("variables-match", runner).findings
    line = f"{__file__}:{tf1.__code__.co_firstlineno + 2}"
    assert (in_tf1.kind, in_tf1.tf1.op, in_tf1.tf1.line, in_tf1.port) == ("variables", "dense/scale", line, None)
    assert (in_port.kind, in_port.tf1, in_port.port.op) == ("variables", None, "dense/bias")
