"""The variables that TF1 code creates: once, tracked, regularized, and named as in TF1; for both decorators."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow

from detrand import (
    assert_variables_match,
    variables_of,
)
from tests.support.shim_kits import (
    KITS,
    ONES,
    OURS,
    both_ways,
    by_name,
    every_kit,
    every_layer,
    of_get_variable,
    of_v1_layers,
    total,
)
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


@both_ways
@pytest.mark.parametrize("call", [of_get_variable, of_v1_layers])
@every_kit
def test_weights_are_tracked_and_found_again(kit, call, way):
    owner = kit.owner(call)
    run = WAYS[way](owner)
    np.testing.assert_array_equal(run(ONES), np.full((5, 10), 50))
    weights = by_name(owner)
    assert sorted(weights) == [
        "dense_one/bias",
        "dense_one/kernel",
        "nested_scope/dense_two/bias",
        "nested_scope/dense_two/kernel",
    ]
    assert len(owner.trainable_variables) == 4
    weights["dense_one/kernel"].assign(np.full((5, 10), 2.0))
    weights["nested_scope/dense_two/kernel"].assign(np.full((10, 10), 2.0))
    np.testing.assert_array_equal(run(ONES), np.full((5, 10), 200))
    assert len(owner.variables) == 4


@pytest.mark.parametrize("call", [of_get_variable, of_v1_layers])
@every_layer
def test_regularization_losses_are_those_of_the_layer_and_of_models_around_it(kit, call):
    layer = kit.owner(call)
    model = kit.keras.Sequential([layer])
    model(ONES)
    np.testing.assert_allclose(total(layer.losses), 0.01 * (5 * 10 + 10 * 10), rtol=1e-6)
    assert len(layer.losses) == len(model.losses) == 2
    for weight in by_name(layer).values():
        weight.assign(2 * np.ones(weight.shape))
    np.testing.assert_allclose(total(layer.losses), 0.01 * 4 * (5 * 10 + 10 * 10), rtol=1e-6)
    model(ONES)
    np.testing.assert_allclose(total(model.losses), 6.0, rtol=1e-6)


@pytest.mark.parametrize("kit", [KITS[name] for name in OURS], ids=OURS)
def test_a_method_can_return_its_regularization_loss(kit):
    """A module has no losses; the method has them in its collection, as in TF1."""

    def call(self, x, training):
        return of_get_variable(self, x, training), tf.losses.get_regularization_loss()

    owner = kit.owner(call)
    for _ in range(2):
        np.testing.assert_allclose(owner(ONES)[1], 1.5, rtol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_regularizers_that_give_nothing_are_in_no_collection(name):
    def call(self, x, training):
        tf.get_variable("a", [3], regularizer=tf.nn.l2_loss)
        tf.get_variable("b", [3], regularizer=tf.no_regularizer)
        tf.get_variable("c", [3], regularizer=lambda variable: None)
        return len(tf.losses.get_regularization_losses()), tf.losses.get_regularization_loss()

    owner = KITS[name].owner(call)
    for _ in range(2):
        count, loss = owner(X)
        assert count == 1
        np.testing.assert_allclose(loss, 0.5 * np.sum(by_name(owner)["a"].numpy() ** 2), rtol=1e-6)
    assert len(getattr(owner, "losses", [None])) == 1


@every_kit
def test_gradients_reach_the_weights(kit):
    owner = kit.owner(lambda self, x, training: tf.matmul(x, tf.get_variable("w", [3, 1])))
    with tensorflow.GradientTape() as tape:
        loss = tf.reduce_sum(owner(X))
    (variable,) = owner.trainable_variables
    gradient = tape.gradient(loss, getattr(variable, "value", variable) if kit.keras is keras else variable)
    np.testing.assert_allclose(gradient, X.sum(0, keepdims=True).T, rtol=1e-6)


@pytest.mark.parametrize("kit", [KITS[name] for name in OURS], ids=OURS)
def test_names_are_those_of_tf1(kit):
    def program(x):
        with tf.variable_scope("model"):
            x = tf.layers.conv2d(x, 3, 3, kernel_regularizer="l2")
            return tf.layers.dense(tf.layers.flatten(x), 4)

    owner = kit.owner(lambda self, x, training: program(x))
    owner(np.ones((1, 5, 5, 2), np.float32))
    with tensorflow.Graph().as_default() as graph:
        program(tensorflow.ones((1, 5, 5, 2)))
    assert_variables_match(graph, owner)
    assert list(variables_of(owner)) == [
        "model/conv2d/kernel",
        "model/conv2d/bias",
        "model/dense/kernel",
        "model/dense/bias",
    ]


@every_kit
def test_the_method_keeps_its_name_and_signature(kit):
    def plain(self, inputs, training=None):
        """Say what it does."""

    decorated = kit.shim.track_tf1_style_variables(plain)
    assert (decorated.__name__, decorated.__doc__) == (plain.__name__, plain.__doc__)
    assert inspect.signature(decorated) == inspect.signature(plain)


@every_kit
def test_a_function_that_is_no_method_is_refused(kit):
    function = kit.shim.track_tf1_style_variables(lambda x: x * 2)
    with pytest.raises(ValueError, match=r"does not extend|cannot track variables"):
        function(tensorflow.ones((4, 4)))


@every_layer
def test_a_decorated_build_creates(kit):
    class Layer(kit.base):
        @kit.shim.track_tf1_style_variables
        def build(self, input_shape):
            self.w = tf.get_variable("w", [input_shape[-1]], regularizer=tf.nn.l2_loss)
            self.built = True

        def call(self, x):
            return x * self.w

    layer = Layer()
    np.testing.assert_array_equal(layer(X), layer(X))
    assert len(layer.weights) == 1 and len(layer.losses) == 1


@every_kit
def test_a_decorated_init_creates(kit):
    class Owner(kit.base):
        @kit.shim.track_tf1_style_variables
        def __init__(self):
            super().__init__()
            self.w = tf.get_variable("w", [3])

        @kit.shim.track_tf1_style_variables
        def run(self, x):
            with tf.variable_scope("", reuse=True):
                return x * tf.get_variable("w", [3])

    owner = Owner()
    np.testing.assert_array_equal(owner.run(X), X * owner.w.numpy())
    assert len(owner.variables) == 1
