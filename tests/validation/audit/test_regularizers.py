"""Regularizers are read from any losses, and compared by their terms and factors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import tf_slim as slim

from detrand import Migration, enable_v1_layers, validate
from detrand.validation.audit.hyperparameters import hyperparameters_of_graph
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _v1_layers():
    with enable_v1_layers():
        yield


@pytest.mark.parametrize(
    ("regularizer", "words"),
    [
        (lambda w: 0.01 * tf.nn.l2_loss(w), "0.005 sum(w**2)"),
        (lambda w: tf.reduce_sum(w**2) * 0.01, "0.01 sum(w**2)"),
        (lambda w: 0.01 * tf.reduce_sum(w * w), "0.01 sum(w**2)"),
        (lambda w: tf.reduce_mean(w**2) / 2, "0.0833333 sum(w**2)"),
        (lambda w: 0.01 * tf.reduce_sum([tf.nn.l2_loss(w), tf.nn.l2_loss(w)]), "0.01 sum(w**2)"),
        (lambda w: 0.5 - (1 - tf.reduce_mean([[0.5], [0.5]] + 0.01 * tf.nn.l2_loss(w))), "0.005 sum(w**2)"),
        (lambda w: v1.placeholder_with_default(0.01, ()) * tf.nn.l2_loss(w), "0.005 sum(w**2)"),
        (slim.l2_regularizer(0.01), "0.005 sum(w**2)"),
        (slim.l1_regularizer(0.1), "0.1 sum(abs(w))"),
        (slim.l1_l2_regularizer(0.1, 0.2), "0.1 sum(abs(w)) + 0.1 sum(w**2)"),
        (keras.regularizers.L2(0.01), "0.01 sum(w**2)"),
        (keras.regularizers.L1L2(0.1, 0.2), "0.1 sum(abs(w)) + 0.2 sum(w**2)"),
        (tf_keras.regularizers.L2(0.01), "0.01 sum(w**2)"),
        (None, None),
    ],
    ids=[
        "l2_loss",
        "squares",
        "product",
        "mean",
        "losses in a list",
        "mean of a sum",
        "factor with a default",
        "slim l2",
        "slim l1",
        "slim both",
        "keras l2",
        "keras both",
        "tf_keras",
        "none",
    ],
)
def test_regularizers_are_read_in_a_graph(regularizer, words):
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", (3, 2), regularizer=regularizer)
        assert hyperparameters_of_graph(graph)["w", "regularizer"] == words


def test_a_loss_of_an_unknown_kind_leaves_its_variables_out():
    with tf.Graph().as_default() as graph:
        v1.get_variable("odd", (3,), regularizer=tf.reduce_max)
        v1.get_variable("cubes", (3,), regularizer=lambda w: tf.reduce_sum(w**3))
        v1.get_variable("w", (3,), regularizer=tf.nn.l2_loss)
        v1.get_variable("frozen", (3,), trainable=False)
        found = hyperparameters_of_graph(graph)
    regularizers = {of: value for (of, name), value in found.items() if name == "regularizer"}
    assert regularizers == {"w": "0.5 sum(w**2)", "frozen": None}


def test_a_term_of_an_unknown_kind_leaves_only_its_own_variables_out():
    with tf.Graph().as_default() as graph:
        w, odd, scalar = (v1.get_variable(name, shape) for name, shape in (("w", (3,)), ("odd", (3,)), ("scalar", ())))
        loss = tf.nn.l2_loss(w) + tf.reduce_max(odd) + 0.1 * scalar**2
        v1.losses.add_loss(loss, v1.GraphKeys.REGULARIZATION_LOSSES)
        found = hyperparameters_of_graph(graph)
    regularizers = {of: value for (of, name), value in found.items() if name == "regularizer"}
    assert regularizers == {"w": "0.5 sum(w**2)", "scalar": "0.1 sum(w**2)"}


def test_several_losses_of_a_variable_add_up():
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", (3,), regularizer=lambda w: 0.25 * tf.nn.l2_loss(w))
        v1.losses.add_loss(0.5 * tf.nn.l2_loss(w), v1.GraphKeys.REGULARIZATION_LOSSES)
        assert hyperparameters_of_graph(graph)["w", "regularizer"] == "0.375 sum(w**2)"


def network(inputs, training, scale=0.01):
    regularizer = None if scale is None else lambda w: scale * tf.nn.l2_loss(w)
    return v1.layers.dense(inputs, 2, kernel_regularizer=regularizer, name="dense")


def keras_port(kit, factor, **arguments):
    regularizer = None if factor is None else kit.regularizers.L2(factor)
    return lambda: kit.layers.Dense(2, kernel_regularizer=regularizer, name="dense", **arguments)


PORTS = {
    "Keras 3": lambda scale: keras_port(keras, scale and scale / 2),
    "tf_keras": lambda scale: keras_port(tf_keras, scale and scale / 2),
    "shim": lambda scale: shim_port(network, scale=scale),
}


@pytest.mark.slow_except("sound-Keras 3", "twice-tf_keras", "twice-shim", "none-shim")
@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("scale", [0.01, 0.02, None], ids=["sound", "twice", "none"])
def test_regularizers_are_read_in_both_programs(port, scale):
    report = validate(Migration(tf1=network, port=PORTS[port](scale), inputs=INPUTS))
    failing = [check for check in report.checks if not check.ok]
    differing = [str(each) for each in report.audit.differing]
    if scale == 0.01:
        assert (differing, failing) == ([], [])
        assert ("dense/kernel", "regularizer") in {(each.of, each.name) for each in report.audit.hyperparameters}
        return
    of_port = "none" if scale is None else "0.01 sum(w**2)"
    assert differing == [f"dense/kernel: regularizer 0.005 sum(w**2) (TF1), {of_port} (port)"]
    assert [check.name for check in failing] == ["regularizers-match"]
    cause = f"regularizer differs in dense/kernel: 0.005 sum(w**2) (TF1), {of_port} (port)"
    assert all(cause in check.causes[:2] for check in failing)


def test_a_regularizer_only_in_the_port_is_audited():
    report = validate(
        Migration(tf1=lambda *x, **y: network(*x, **y, scale=None), port=keras_port(keras, 0.5), inputs=INPUTS)
    )
    assert [str(each) for each in report.audit.differing] == [
        "dense/kernel: regularizer none (TF1), 0.5 sum(w**2) (port)"
    ]


def test_a_module_exposes_no_regularizer():
    class Module(tf.Module):
        def __init__(self):
            super().__init__(name="dense")
            self.kernel = tf.Variable(tf.zeros((3, 2)), name="kernel")
            self.bias = tf.Variable(tf.zeros(2), name="bias")

        def __call__(self, inputs, training=False):
            return tf.matmul(inputs, self.kernel) + self.bias

    report = validate(Migration(tf1=network, port=Module, inputs=INPUTS))
    assert "regularizer of 1 variable, which the port does not expose" in report.audit.not_audited


class Penalty(keras.Model):
    """A layer whose outputs are a loss; with ``only``, in one of both ways of calling it."""

    def __init__(self, only=None, activation="tanh", factor=0.01):
        super().__init__(name="penalty")
        self.dense = keras.layers.Dense(2, activation, use_bias=False, name="d")
        self.only, self.factor = only, factor

    def call(self, x, training=False):
        y = self.dense(x)
        if self.only in (None, "training" if training else "inference"):
            self.add_loss(self.factor * tf.reduce_sum(y**2))
        return y


def penalty(only):
    def tf1(x, training):
        y = tf.tanh(tf.matmul(x, v1.get_variable("d/kernel", (3, 2))))
        if only in (None, "training" if training else "inference"):
            v1.losses.add_loss(0.01 * tf.reduce_sum(y**2), v1.GraphKeys.REGULARIZATION_LOSSES)
        return y

    return tf1


@pytest.mark.slow_except("training-port1*", "None-port4*", "inference-port5*", "None-port7*")
@pytest.mark.parametrize(
    ("only", "port", "ok", "says"),
    [
        (None, {}, True, "are equal in inference and in training"),
        ("training", {"only": "training"}, True, "are equal in inference and in training"),
        (None, {"only": "training"}, True, "equal in training; in inference only TF1 has one, which is not trained"),
        ("training", {}, True, "equal in training; in inference only the port has one, which is not trained"),
        (None, {"only": "inference"}, False, "the port adds its regularization loss in inference only"),
        ("inference", {}, False, "TF1 adds its regularization loss in inference only"),
        (
            None,
            {"factor": 0.02},
            False,
            "(activity_regularizer, add_loss) depends on its outputs, which agree",
        ),
        (None, {"activation": "relu"}, False, "depends on its outputs, which differ: fix these first"),
    ],
)
def test_a_loss_of_outputs_is_compared_where_it_is_trained(only, port, ok, says):
    name_map = {"d/kernel": "penalty/d/kernel"}
    report = validate(Migration(tf1=penalty(only), port=lambda: Penalty(**port), inputs=INPUTS, name_map=name_map))
    found = next(check for check in report.checks if check.name == "regularizers-match")
    assert found.ok == ok
    assert says in f"{found.summary}\n{found.details}"
