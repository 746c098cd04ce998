"""Decorated methods that run TF1 code: several of one object, of several objects, and in several threads."""

import threading

import keras
import numpy as np
import pytest
import tensorflow
import tf_slim as slim

from detrand import (
    track_tf1_style_variables,
    variables_of,
)
from tests.support.shim_ports import NORMALIZED, Normalized
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    module_of,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


def test_methods_of_one_object_share_its_variables():
    class Autoencoder(tensorflow.Module):
        @track_tf1_style_variables
        def encode(self, x):
            return tf.layers.dense(x, 2, name="encoder"), len(tf.global_variables())

        @track_tf1_style_variables
        def decode(self, code):
            with tf.variable_scope("decoder"):
                return tf.layers.dense(code, 3)

        @track_tf1_style_variables
        def run(self, x):
            code, _ = self.encode(x)
            assert len(tf.global_variables()) == 2  # one program, as one graph
            return self.decode(code), self.encode.__name__

    module = Autoencoder()
    code, count = module.encode(X)
    first = module.decode(code)
    assert count == 2 and len(module.variables) == 4
    np.testing.assert_array_equal(module.run(X)[0], first)
    assert list(variables_of(module)) == [
        "encoder/kernel",
        "encoder/bias",
        "decoder/dense/kernel",
        "decoder/dense/bias",
    ]
    assert module.run(X)[1] == "encode"


def test_methods_that_call_each_other_are_one_program():
    class Network(tensorflow.Module):
        @track_tf1_style_variables
        def block(self, x):
            return tf.layers.dense(x, 3)

        @track_tf1_style_variables
        def run(self, x):
            return self.block(self.block(x))

    network = Network()
    np.testing.assert_array_equal(network.run(X), network.run(X))
    assert list(variables_of(network)) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def test_a_layer_that_is_called_in_a_scope_takes_its_name_for_good():
    class Inner(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            tf.add_to_collection("calls", self)
            return x * tf.get_variable("w", [3], regularizer=slim.l2_regularizer(0.5))

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        @track_tf1_style_variables
        def call(self, x):
            with tf.variable_scope("first"):
                x = self.inner(x)
            with tf.variable_scope("second"):
                x = self.inner(x) + tf.get_variable("w", [3])
            assert tf.get_collection("calls") == [self.inner]  # each call starts with empty collections
            assert len(tf.global_variables()) == 2 and len(tf.losses.get_regularization_losses()) == 1
            return x

    for way in WAYS.values():
        layer = Outer()
        run = way(layer)
        for _ in range(2):
            run(X)
            assert list(variables_of(layer)) == ["second/w", "first/w"]
            assert list(variables_of(layer.inner)) == ["first/w"]
            assert len(layer.weights) == 2 and len(layer.losses) == 1


def test_collections_of_a_function_inside_stay_in_it():
    class Inner(tensorflow.Module):
        @track_tf1_style_variables
        def __call__(self, x):
            tf.add_to_collection("tensors", x)
            return x * tf.get_variable("w", [3])

    class Outer(tensorflow.Module):
        def __init__(self):
            self.inner = Inner()

        @track_tf1_style_variables
        def __call__(self, x):
            tf.add_to_collection("tensors", x)
            y = tensorflow.function(self.inner)(x)
            assert [each is x for each in tf.get_collection("tensors")] == [True]
            return y

    network = Outer()
    for _ in range(2):
        np.testing.assert_array_equal(network(X), X * network.variables[0].numpy())


def test_a_method_may_create_variables_in_the_thread_of_a_replica():
    class Port(tensorflow.Module):
        def __init__(self):
            self.strategy = tensorflow.distribute.MirroredStrategy(["CPU:0"])

        def scale(self):
            if not hasattr(self, "factor"):
                self.factor = tensorflow.Variable(3.0)
            return self.factor.read_value()

        @track_tf1_style_variables
        def __call__(self, x):
            return x * self.strategy.run(self.scale)

    port = Port()
    for _ in range(2):
        np.testing.assert_array_equal(port(X), 3 * X)
    assert len(port.variables) == 1


def test_templates_cells_and_layers_can_be_kept():
    class Owner(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.template = tf.make_template("template", self.scale)
            self.cell = tf.nn.rnn_cell.GRUCell(3)
            self.dense = tf.layers.Dense(3)
            self.later = None

        def scale(self, x):
            return x * tf.get_variable("w", [3])

        @track_tf1_style_variables
        def call(self, x):
            if self.later is None:
                self.later = tf.make_template("later", self.scale)
            x = self.template(self.later(self.template(x)))
            (x, _), _ = tf.nn.static_rnn(self.cell, [x, x], dtype=tf.float32)
            return self.dense(self.dense(x))

    for way in WAYS.values():
        layer = Owner()
        run = way(layer)
        first = run(X)
        np.testing.assert_array_equal(run(X), first)
        assert list(variables_of(layer))[:2] == ["template/w", "later/w"]
        assert len(layer.weights) == len(variables_of(layer)) == 8


def test_calls_in_one_function_number_their_layers_each_from_the_start():
    module = module_of(lambda x, training: (tf.layers.dense(x, 2), tf.layers.Dense(2).name))
    names = []

    @tensorflow.function
    def run(x):
        names.append(tf.layers.Dense(2).name)
        for _ in range(2):
            names.append(module.run(x, training=True)[1])
        names.append(tf.layers.Dense(2).name)
        return x

    run(X)
    assert names[:4] == ["dense_1", "dense_2", "dense_2", "dense_2"]
    assert list(variables_of(module)) == ["dense/kernel", "dense/bias"]


@pytest.mark.parametrize("way", WAYS)
def test_a_creator_scope_around_the_call_sees_the_variables(way):
    created = []

    def creator(next_creator, **kwargs):
        created.append(kwargs["name"])
        made = kwargs["initial_value"]
        return next_creator(**{**kwargs, "initial_value": lambda: 0.0 * made(), "trainable": False})

    layer = Normalized()
    run = WAYS[way](layer)
    for _ in range(2):
        with tensorflow.variable_creator_scope(creator):
            run(X)
    assert list(dict.fromkeys(created)) == NORMALIZED
    assert not any(weight.numpy().any() for weight in layer.weights)
    assert layer.trainable_weights == []


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_with_a_caching_device_is_read_anew_in_each_call(way):
    def program(x, training):
        with tf.variable_scope("a", caching_device="/cpu:0"):
            w = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        with tf.variable_scope("b", caching_device=lambda op: op.device):
            return w + tf.get_variable("w", [3], initializer=tf.zeros_initializer())

    module = module_of(program)
    run = WAYS[way](lambda: module.run(X, training=True))
    assert not run().numpy().any()
    for variable in module.variables:
        variable.assign([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(run(), [2.0, 4.0, 6.0])


def test_layers_can_be_called_in_several_threads():
    layers, shared = [Normalized(name=f"layer_{i}") for i in range(6)], Normalized()
    barrier, failures = threading.Barrier(6), []

    def run(layer):
        try:
            barrier.wait()
            for _ in range(5):
                layer(X, training=True)
                shared(X, training=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(layer,)) for layer in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for layer in [*layers, shared]:
        assert list(variables_of(layer)) == NORMALIZED
        assert len(layer.weights) == 5 and len(layer.losses) == 1
