"""The objects whose methods run TF1 code: Keras 3 layers, tf_keras layers and modules, and what they track."""

import copy
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
import tf_slim as slim

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    track_tf1_style_variables,
    variables_of,
)
from tests.support.shim_ports import NORMALIZED, Normalized
from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    layer_of,
    module_of,
    run_in_method,
    run_in_session,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
    tf_keras_layer_of,
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


# --- Keras 3 -------------------------------------------------------------------------------------------------


FEATURES, TARGETS = np.random.RandomState(0).rand(8, 2).astype(np.float32), np.ones((8, 1), np.float32)


def test_a_keras_3_layer_tracks_the_variables():
    layer = Normalized()
    assert layer.weights == []
    for _ in range(3):
        layer(X)
        assert list(variables_of(layer)) == NORMALIZED
        assert [weight.path for weight in layer.trainable_weights] == [
            f"{layer.name}/{name}" for name in NORMALIZED[:3]
        ]
        assert [weight.name for weight in layer.non_trainable_weights] == ["moving_mean", "moving_variance"]
        (loss,) = layer.losses
    np.testing.assert_allclose(loss, 0.25 * np.sum(layer.weights[0].numpy() ** 2), rtol=1e-6)
    layer.trainable = False
    assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 5


def test_a_weight_that_scope_and_layer_regularize_has_both_losses():
    def program(x, training):
        with tf.variable_scope("a", regularizer=slim.l2_regularizer(0.5)):
            return tf.layers.dense(x, 2, use_bias=False, kernel_regularizer=slim.l1_regularizer(0.1))

    model = TF1Model(program, (X,))
    expected = run_in_session(model, "constant")
    assert len(expected.losses) == 2
    for make in (layer_of, tf_keras_layer_of):
        _, found = run_in_method(model, "constant", "eager", make)
        np.testing.assert_allclose(sum(found.losses), sum(expected.losses), rtol=1e-6)


@pytest.mark.parametrize("default", [None, False])
def test_keras_passes_training_as_it_does_to_every_layer(default):
    def layer_with(decorator):
        class Layer(keras.layers.Layer):
            @decorator
            def call(self, inputs, training=default):
                seen.append(training)
                return inputs

        return Layer()

    def uses(layer):
        model = keras.Sequential([keras.Input((2,)), layer])
        model(FEATURES)
        model(FEATURES, training=True)
        layer(FEATURES, training=False)
        model.compile(loss="mse")
        model.predict(FEATURES, verbose=0)

    seen = []
    uses(layer_with(lambda method: method))
    expected = seen
    assert True in expected and False in expected
    seen = []
    uses(layer_with(track_tf1_style_variables))
    assert seen == expected


def functional():
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(1)(Normalized()(inputs)))


def sequential():
    return keras.Sequential([Normalized(), keras.layers.Dense(1)])


class Subclassed(keras.Model):
    """A decorated method of a model, around a decorated layer."""

    def __init__(self):
        super().__init__()
        self.inner = Normalized()
        self.dense = keras.layers.Dense(1)

    @track_tf1_style_variables
    def call(self, inputs, training=None):
        with tf.variable_scope("outer"):
            scale = tf.get_variable("scale", [], initializer=tf.ones_initializer())
            return self.dense(self.inner(inputs, training=training)) * scale


@pytest.mark.slow_except("eager-functional")
@pytest.mark.parametrize("make", [functional, sequential, Subclassed])
@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
def test_built_in_training_moves_every_weight(make, eagerly):
    model = make()
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=eagerly)
    model.predict(FEATURES, verbose=0)
    before = [weight.numpy() for weight in model.weights]
    assert len(before) == (8 if make is Subclassed else 7)
    history = model.fit(FEATURES, TARGETS, epochs=2, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert len(model.weights) == len(before) and len(model.losses) == 1
    for weight, value in zip(model.weights, before, strict=True):
        assert np.any(weight.numpy() != value), weight.path


@pytest.mark.slow
def test_training_in_keras_is_training_in_a_session():
    """Two steps of gradient descent with moving averages and a regularization loss."""

    def program(x, training):
        with tf.variable_scope("net", regularizer=slim.l2_regularizer(0.1)):
            hidden = tf.layers.batch_normalization(tf.layers.dense(x, 3, use_bias=False), training=training)
            return tf.layers.dense(tf.layers.dropout(hidden, 0.5, training=training), 1)

    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with DeterministicRandomTestTool().scope(), tensorflow.Graph().as_default(), tf.Session(config=config) as session:
        prediction = program(tensorflow.constant(FEATURES), training=True)
        loss = tf.reduce_mean((prediction - TARGETS) ** 2) + tf.losses.get_regularization_loss()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        session.run(train)
        expected = dict(
            zip((v.op.name for v in tf.global_variables()), session.run(tf.global_variables()), strict=True)
        )

    model = keras.Sequential([layer_of(program)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with DeterministicRandomTestTool().scope():
        model.fit(FEATURES, TARGETS, batch_size=8, shuffle=False, verbose=0)
    found = store_variables(model.layers[0])
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, of any layer
def test_a_model_is_saved_loaded_and_exported(tmp_path):
    model = functional()
    model.compile("sgd", "mse")
    model.fit(FEATURES, TARGETS, verbose=0)
    expected = model(FEATURES).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Normalized": Normalized})
    np.testing.assert_array_equal(loaded(FEATURES), expected)
    assert list(variables_of(loaded))[:5] == NORMALIZED
    model.save_weights(tmp_path / "model.weights.h5")
    other = functional()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(FEATURES), expected)
    model.export(tmp_path / "exported", verbose=False)
    exported = tensorflow.saved_model.load(tmp_path / "exported")
    served = exported.serve(FEATURES)
    np.testing.assert_allclose(served.numpy(), expected, rtol=1e-6)


def test_a_clone_has_variables_of_its_own():
    model = functional()
    clone = keras.models.clone_model(model)
    assert list(variables_of(clone))[:5] == NORMALIZED
    for weight, cloned in zip(model.weights, clone.weights, strict=True):
        assert weight.value is not cloned.value


@pytest.mark.parametrize("kit", [tf_keras.layers.Layer, tensorflow.Module], ids=["tf_keras", "module"])
def test_a_deep_copy_has_variables_of_its_own(kit):
    class Owner(kit):
        more = False

        @track_tf1_style_variables
        def __call__(self, x):
            if self.more:
                tf.get_variable("more", [3])
            return tf.layers.dense(x, 2, kernel_regularizer=slim.l2_regularizer(0.5))

    owner = Owner()
    expected = owner(X).numpy()
    duplicate = copy.deepcopy(owner)
    np.testing.assert_array_equal(duplicate(X), expected)
    for variable in duplicate.variables:
        variable.assign(tensorflow.zeros_like(variable))
    assert not duplicate(X).numpy().any()
    np.testing.assert_array_equal(owner(X), expected)
    assert len(owner.variables) == len(duplicate.variables) == 2
    assert list(variables_of(duplicate)) == list(variables_of(owner)) == ["dense/kernel", "dense/bias"]
    if kit is tf_keras.layers.Layer:
        assert not np.any(duplicate.losses) and np.any(owner.losses)
        assert len(duplicate.losses) == len(owner.losses) == 1
    duplicate.more = True
    duplicate(X)
    assert len(duplicate.variables) == 3 and len(owner.variables) == 2


def test_a_layer_is_freed_with_its_variables():
    layer = Normalized()
    layer(X)
    freed = weakref.ref(layer), weakref.ref(store_variables(layer)["weights/w"])
    del layer
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


# --- tf_keras and tf.Module ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tf_keras_model_trains():
    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.kept = tf.layers.Dense(3, kernel_regularizer=slim.l2_regularizer(0.5), name="kept")

        @track_tf1_style_variables
        def call(self, inputs):  # no `training`: tf_keras sees the signature
            return tf.layers.dense(self.kept(inputs), 1, kernel_regularizer=slim.l2_regularizer(0.5))

    model = Model()
    model.compile("sgd", "mse")
    model.predict(FEATURES, verbose=0)
    before = [weight.numpy() for weight in model.weights]
    model.fit(FEATURES, TARGETS, epochs=2, verbose=0)
    assert list(variables_of(model)) == ["kept/kernel", "kept/bias", "dense/kernel", "dense/bias"]
    assert len(model.trainable_weights) == 4 and len(model.losses) == 2
    for weight, value in zip(model.weights, before, strict=True):
        assert np.any(weight.numpy() != value), weight.name


def test_a_module_tracks_the_variables():
    module = module_of(lambda x, training: tf.layers.batch_normalization(x, training=training))
    module.run(X, training=True)
    assert list(variables_of(module)) == NORMALIZED[1:]
    assert [variable.trainable for variable in module.variables] == [True, True, False, False]
    assert len(module.trainable_variables) == 2
    checkpoint = tensorflow.train.Checkpoint(module=module)
    assert len(checkpoint.module.variables) == 4


@pytest.mark.parametrize("given", [object(), 3], ids=["object", "number"])
def test_a_method_of_something_that_tracks_nothing_is_refused(given):
    @track_tf1_style_variables
    def method(self):
        raise AssertionError("it must not run")

    kind = type(given).__name__
    with pytest.raises(
        ArgumentError,
        match=rf"method is decorated with track_tf1_style_variables and was called on .* of type {kind}, which cannot "
        rf"track variables\. Make {kind} a keras.layers.Layer, a tf_keras.layers.Layer or a tf.Module",
    ):
        method(given)


def test_what_is_no_method_is_refused():
    with pytest.raises(ArgumentError, match=r"decorates a method, but 'scope' of type str was given. Write @track_tf1"):
        track_tf1_style_variables("scope")
