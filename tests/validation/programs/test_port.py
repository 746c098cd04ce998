"""A port is made once for inference and once for training, and computes in each run config what a new one would."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import detrand
from detrand._patching.keras import takes_inputs_in_a_list
from detrand.validation.programs.port import framework_of, run_port
from detrand.validation.reference import (
    CONSTANT_MODE,
    CONSTANT_WEIGHTS,
    DISTINCT_TRAINING,
    DISTINCT_WEIGHTS,
    INFERENCE,
    TRAINING,
)
from detrand.validation.runner import Runner

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def tf1_model(x, training):
    x = tf.matmul(x, v1.get_variable("port/kernel", (3, 3)))
    v1.get_variable("port/average", (3,), initializer=v1.zeros_initializer(), trainable=False)
    v1.get_variable("port/other_shape", (2,))
    return tf.nn.dropout(x, rate=0.5) if training else x


class Stateful(keras.layers.Layer):
    """A layer whose outputs depend on what its calls have changed."""

    def __init__(self):
        super().__init__(name="port")
        self.kernel = self.add_weight(shape=(3, 3), name="kernel")
        self.average = self.add_weight(shape=(3,), name="average", initializer="zeros", trainable=False)
        self.calls = self.add_weight(shape=(), name="calls", initializer="zeros", dtype="int32", trainable=False)
        self.surplus = self.add_weight(shape=(3,), name="surplus", initializer="ones")
        self.other_shape = self.add_weight(shape=(3,), name="other_shape", initializer="ones")
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=False):
        for variable in (self.average, self.surplus, self.other_shape):
            variable.assign(0.5 * variable + tf.reduce_mean(x, 0))
        self.calls.assign_add(1)
        x = tf.matmul(x, self.kernel) + self.average + self.surplus + self.other_shape
        return self.dropout(x, training=training) * tf.cast(self.calls, tf.float32)


@pytest.mark.parametrize(
    "configs", [(INFERENCE, DISTINCT_WEIGHTS, CONSTANT_WEIGHTS), (TRAINING, DISTINCT_TRAINING, CONSTANT_MODE)]
)
def test_outcomes_are_those_of_new_ports(configs):
    runner = Runner(detrand.Migration(tf1=tf1_model, port=Stateful, inputs=INPUTS))
    for asked in configs:
        tf1 = runner.tf1.outcome(asked)
        given = tf1 if asked.weights == "initial" else None
        expected = run_port(runner.migration, tf1.config, runner.tf1.shapes(), given)
        outcome = runner.port(tf1.config)
        np.testing.assert_array_equal(outcome.outputs, expected.outputs)
        np.testing.assert_equal(outcome.changed, expected.changed)
        assert outcome.config == expected.config
        assert outcome.random_ops == expected.random_ops
        assert outcome.variables == expected.variables


def test_few_ports_are_made():
    made = []

    def port():
        made.append(1)
        return keras.layers.Dense(2, name="dense")

    migration = detrand.Migration(tf1=lambda x, training: v1.layers.dense(x, 2, name="dense"), port=port, inputs=INPUTS)
    with detrand.enable_v1_layers():
        assert detrand.validate(migration).ok
    assert len(made) == 4  # for initial values, inference, training, and a functional model


def sum_of_products(x, y, training):
    return tf.matmul(x, v1.get_variable("a/kernel", (3, 2))) + tf.matmul(y, v1.get_variable("b/kernel", (5, 2)))


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_call_with_one_argument_named_inputs_gets_them_as_a_list(kit):
    class Port(kit.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = (kit.layers.Dense(2, use_bias=False, name=name) for name in "ab")

        def call(self, inputs, training=None):
            x, y = inputs
            return self.a(x) + self.b(y)

    given = (np.ones((4, 3), np.float32), np.ones((4, 5), np.float32))
    train = detrand.TrainStep(
        labels=np.zeros((4, 2), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_mean((labels - outputs) ** 2),
        port_loss=lambda labels, outputs: tf.reduce_mean((outputs - labels) ** 2),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: kit.optimizers.SGD(0.1),
    )
    report = detrand.validate(detrand.Migration(tf1=sum_of_products, port=Port, inputs=given, train=train))
    assert report.ok, str(report)


@pytest.mark.parametrize("has_mask_first", [True, False])
def test_a_mask_may_be_the_second_input(has_mask_first):
    class MaskFirst(keras.layers.Layer):
        def call(self, inputs, mask=None, training=None):
            return inputs

    class MaskLast(keras.layers.Layer):
        def call(self, inputs, training=None, mask=None):
            return inputs

    assert takes_inputs_in_a_list((MaskFirst if has_mask_first else MaskLast)()) == (not has_mask_first)


def test_a_call_with_one_argument_of_another_name_gets_no_list():
    class Port(keras.Model):
        def call(self, x):
            return x

    why_not = framework_of(Port()).why_not_called(Port(), 2)
    assert why_not.endswith("If its only argument is to be a list of them, name it inputs")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Keras, which builds the port before it is called
def test_a_layer_that_gets_inputs_that_it_does_not_take_has_a_remedy():
    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = keras.layers.Dense(2, use_bias=False, name="a")

        def call(self, inputs):
            return self.a(inputs)

    tf1 = lambda x, labels, training: tf.matmul(x, v1.get_variable("a/kernel", (3, 2)))  # noqa: E731
    migration = detrand.Migration(tf1=tf1, port=Port, inputs=(np.ones((4, 3), np.float32), np.zeros(4)))
    (finding,) = detrand.validate(migration, checks=["random-inference"]).findings
    assert "; a call whose only argument is named inputs gets all inputs of the migration as a list" in finding.title


def test_inputs_fit_a_list_of_them_and_a_builtin_without_a_signature():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    for model in (keras.Model(inputs, keras.layers.Add()(inputs)), min):
        assert framework_of(model).why_not_called(model, 2) == ""
