"""Partitioned variables in a layer are trained as in a session."""

import functools

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

from detrand import DeterministicRandomTestTool
from tests.support.partitioned_networks import BATCH, TARGETS, network, tf_keras_network
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    layer_of,
    module_of,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
TOKENS = np.array([[1, 5, 3], [9, 0, 7]], np.int32)
in_parts, in_parts_of_bytes = tf.fixed_size_partitioner, tf.variable_axis_size_partitioner
RATE = 0.1


@functools.cache
def trained_in_session():
    """One step of gradient descent: each part's gradient, and its value afterwards."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope(), tensorflow.Graph().as_default(), tf.Session(config=config) as session:
        outputs = network(tensorflow.constant(BATCH))
        loss = tf.reduce_mean((outputs - TARGETS) ** 2) + tf.losses.get_regularization_loss()
        variables = tf.trainable_variables()
        gradients = [tensorflow.convert_to_tensor(gradient) for gradient in tf.gradients(loss, variables)]
        train = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
        session.run(tf.global_variables_initializer())
        gradients = session.run(gradients)
        session.run(train)
        names = [v.op.name for v in variables]
        return dict(zip(names, gradients, strict=True)), dict(zip(names, session.run(variables), strict=True))


def assert_trained(owner):
    _, expected = trained_in_session()
    found = store_variables(owner)
    assert list(found) == list(expected) and len(expected) == 8
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_a_part_has_the_gradient_of_a_session(way):
    def regularized(x, training):
        return network(x), tf.losses.get_regularization_loss()

    module = module_of(regularized)

    def step():
        with tensorflow.GradientTape() as tape:
            outputs, regularization = module.run(tensorflow.constant(BATCH), training=True)
            loss = tf.reduce_mean((outputs - TARGETS) ** 2) + regularization
        variables = list(store_variables(module).values())
        gradients = [tensorflow.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        return gradients

    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        gradients = WAYS[way](step)()
    expected, _ = trained_in_session()
    for name, found, wanted in zip(expected, gradients, expected.values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7, err_msg=name)
    assert_trained(module)


@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_built_in_training_is_a_sessions(kit, eagerly):
    layer = layer_of(network) if kit is keras else tf_keras_network()
    model = kit.Sequential([layer])
    model.compile(kit.optimizers.SGD(RATE), "mse", run_eagerly=eagerly)
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        model.fit(BATCH, TARGETS, batch_size=2, shuffle=False, verbose=0)
    assert len(model.trainable_weights) == 8 and len(model.losses) == 5
    assert_trained(layer)


@pytest.mark.slow
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_optimizers_with_slots_train_every_part(kit):
    layer = layer_of(network) if kit is keras else tf_keras_network()
    model = kit.Sequential([layer])
    model.compile(kit.optimizers.Adam(0.1), "mse")
    model.predict(BATCH, verbose=0)
    before = [weight.numpy() for weight in model.weights]
    model.fit(BATCH, TARGETS, epochs=2, verbose=0)
    for (name, weight), value in zip(store_variables(layer).items(), before, strict=True):
        assert np.any(weight.numpy() != value), name
