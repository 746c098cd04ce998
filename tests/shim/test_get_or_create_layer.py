"""Layers and models that TF1 code in a decorated method makes and keeps."""

import copy

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
import tf_slim as slim

from detrand import (
    ArgumentError,
    VariableScopeLayer,
    get_or_create_layer,
    track_tf1_style_variables,
    variables_of,
)
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    layer_of,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_inner_models_are_kept_and_tracked(kit, way):
    made = []

    def inner():
        made.append(kit.Sequential([kit.layers.Dense(2, kernel_regularizer="l2"), kit.layers.Dense(3)]))
        return made[-1]

    class Outer(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            with tf.variable_scope("scope"):
                model = get_or_create_layer("inner", inner)
            return model(x) * tf.get_variable("w", [3])

    layer = Outer()
    run = WAYS[way](layer)
    first = run(X)
    np.testing.assert_array_equal(run(X), first)
    assert len(made) == 1 and len(layer.weights) == 5 and len(layer.losses) == 1
    duplicate = copy.deepcopy(layer) if kit is tf_keras else layer
    np.testing.assert_array_equal(duplicate(X), first)

    model = kit.Sequential([kit.layers.Input((3,)), Outer()])
    model.compile("sgd", "mse")
    before = [weight.numpy() for weight in model.weights]
    model.fit(X, X, verbose=0)
    assert len(model.weights) == len(before) == 5
    assert all(np.any(weight.numpy() != value) for weight, value in zip(model.weights, before, strict=True))


def test_an_inner_layer_in_a_graph_is_made_there():
    with tensorflow.Graph().as_default():
        assert get_or_create_layer("inner", lambda: tf_keras.layers.Dense(2))(X).shape == (2, 2)


def test_an_inner_layer_that_nothing_keeps_is_refused():
    with pytest.raises(
        ArgumentError, match=r"get_or_create_layer\('inner', ...\) was called outside a method decorated"
    ):
        get_or_create_layer("inner", lambda: keras.layers.Dense(2))
    layer = layer_of(lambda x, training: get_or_create_layer("inner", lambda: tf_keras.layers.Dense(2))(x))
    with pytest.raises(ArgumentError, match=r"of type Dense, which ProgramLayer cannot track. Make a keras Layer"):
        layer(X)


def test_a_variable_scope_layer_runs_its_forward_pass():
    seen = []

    class Scaled(VariableScopeLayer):
        def forward_pass(self, inputs, training=None):
            seen.append(training)
            return inputs * tf.get_variable("factor", [3], regularizer=slim.l2_regularizer(0.5))

    class Shifted(Scaled):
        def forward_pass(self, inputs, training=None):
            return super().forward_pass(inputs, training) + tf.get_variable("shift", [3])

    for layer, names in ((Scaled(), ["factor"]), (Shifted(), ["factor", "shift"])):
        model = keras.Sequential([keras.Input((3,)), layer])
        assert model(X, training=True).shape == (2, 3) and seen[-1] is True
        assert list(variables_of(model)) == names and len(layer.losses) == 1
    with pytest.raises(NotImplementedError, match=r"VariableScopeLayer without a forward_pass\. Define"):
        VariableScopeLayer()(X)


def test_a_layer_class_without_a_constructor_is_made():
    class Double(keras.layers.Layer):
        def call(self, x):
            return 2.0 * x

    layer = layer_of(lambda x, training: get_or_create_layer("double", lambda: Double(name="double"))(x))
    np.testing.assert_array_equal(layer(X), 2.0 * X)
