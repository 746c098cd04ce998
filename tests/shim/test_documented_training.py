"""The ``training`` argument of a decorated method, for both decorators."""

import numpy as np
import tensorflow

from tests.support.shim_kits import both_ways, by_name, every_kit, every_layer
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


@every_layer
def test_training_is_passed_as_to_any_layer_of_the_kit(kit):
    def uses(decorator):
        seen = []

        class WithArgument(kit.keras.layers.Layer):
            @decorator
            def call(self, inputs, training=None):
                seen.append(training)
                return inputs

        class WithKeywords(kit.keras.layers.Layer):
            @decorator
            def call(self, inputs, **kwargs):
                seen.append(kwargs)
                return inputs

        for layer in (WithArgument(), WithKeywords()):
            model = kit.keras.Sequential([kit.keras.layers.InputLayer((3,)), layer])
            for training in (True, False):
                model(X, training=training)
            model.compile(loss="mse")
            model.predict(X, verbose=0)
        return seen

    expected = uses(lambda method: method)
    assert True in expected and False in expected
    assert uses(kit.shim.track_tf1_style_variables) == expected


@every_kit
def test_what_is_created_may_depend_on_training(kit):
    def call(self, x, training):
        return tf.layers.dense(x, 3, name="dense_training" if training else "dense_no_training")

    owner = kit.owner(call)
    owner(X, training=True)
    assert sorted(by_name(owner)) == ["dense_training/bias", "dense_training/kernel"]
    owner = kit.owner(call)
    owner(X)
    assert sorted(by_name(owner)) == ["dense_no_training/bias", "dense_no_training/kernel"]


@both_ways
@every_kit
def test_moving_averages_are_updated_at_once(kit, way):
    def call(self, x, training):
        with tf.variable_scope("batch_norm_layer"):
            return tf.layers.batch_normalization(x, training=training)

    owner = kit.owner(call)
    run = WAYS[way](owner)
    run(X, training=False)
    moving_mean = by_name(owner)["batch_norm_layer/batch_normalization/moving_mean"]
    assert not moving_mean.numpy().any()
    for step in (1, 2):
        run(X, training=True)
        np.testing.assert_allclose(moving_mean.numpy(), X.mean(0) * (1 - 0.99**step), rtol=1e-5, atol=1e-8)
