"""Functional models, shapes, SavedModels and checkpoints of objects with TF1 code, for both decorators."""

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

import detrand
from tests.support.shim_kits import KITS, ONES, OURS, by_name, every_layer, of_v1_layers, total
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


@every_layer
def test_a_functional_model_has_the_weights_and_losses_before_it_is_called(kit):
    inputs = kit.keras.Input((5,))
    layer = kit.owner(of_v1_layers)
    model = kit.keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, 10)
    assert len(model.weights) == 4 and len(layer.losses) == 2
    np.testing.assert_array_equal(model(ONES), np.full((5, 10), 50))
    assert len(model.weights) == 4
    np.testing.assert_allclose(total(model.losses), 1.5, rtol=1e-6)


def test_shapes_are_inferred_without_values():
    layer = KITS["keras_3"].owner(of_v1_layers)
    assert layer.compute_output_spec(keras.KerasTensor((None, 5))).shape == (None, 10)
    layer = KITS["tf_keras"].owner(of_v1_layers)
    assert layer.compute_output_shape((None, 5)).as_list() == [None, 10]


def restored(path):
    loaded = tensorflow.saved_model.load(path)
    return loaded.signatures["serving_default"](tensorflow.constant(ONES))


@pytest.mark.parametrize("name", KITS)
def test_a_saved_model_of_a_layer_or_module_serves(name, tmp_path):
    owner = KITS[name].owner(of_v1_layers)
    owner(ONES)
    signature = tensorflow.function(owner).get_concrete_function(tensorflow.TensorSpec((None, 5)))
    tensorflow.saved_model.save(owner, str(tmp_path), signatures=signature)
    (output,) = restored(str(tmp_path)).values()
    np.testing.assert_array_equal(output, np.full((5, 10), 50))


@pytest.mark.parametrize("name", ["official", "tf_keras"])
def test_a_saved_model_of_a_functional_model_serves(name, tmp_path):
    inputs = tf_keras.Input((5,))
    model = tf_keras.Model(inputs, KITS[name].owner(of_v1_layers)(inputs))
    tensorflow.saved_model.save(model, str(tmp_path))
    loaded = tensorflow.saved_model.load(str(tmp_path))
    for training in (False, True):
        np.testing.assert_array_equal(loaded(ONES, training=training), np.full((5, 10), 50))
    assert len(loaded.variables) == 4 and len(loaded.regularization_losses) == 2


@pytest.mark.parametrize("name", KITS)
@pytest.mark.parametrize("before", [False, True], ids=["after_the_first_call", "before_the_first_call"])
def test_a_checkpoint_restores_the_variables(name, before, tmp_path):
    def drawn(self, x, training):
        with tf.variable_scope("scope"):
            return tf.matmul(x, tf.get_variable("a", [3, 3])) + tf.get_variable("b", [3])

    saved, loaded = KITS[name].owner(drawn), KITS[name].owner(drawn)
    expected = saved(X)
    path = tensorflow.train.Checkpoint(owner=saved).save(str(tmp_path / "checkpoint"))
    if not before:
        assert np.any(loaded(X) != expected)
    status = tensorflow.train.Checkpoint(owner=loaded).restore(path)
    np.testing.assert_array_equal(loaded(X), expected)
    status.assert_existing_objects_matched()


@pytest.mark.parametrize("name", OURS)
def test_a_checkpoint_goes_by_names_whatever_was_created_first(name, tmp_path):
    def call(self, x, training):
        return [tf.get_variable(name, [3]) for name in self.order]

    saved, loaded = (KITS[name].owner(call, order=order) for order in ("ab", "ba"))
    saved(X)
    for value, variable in zip((1.0, 2.0), saved.variables, strict=True):
        variable.assign([value] * 3)
    loaded(X)
    path = tensorflow.train.Checkpoint(owner=saved).save(str(tmp_path / "checkpoint"))
    tensorflow.train.Checkpoint(owner=loaded).restore(path).assert_existing_objects_matched()
    assert {name: variable.numpy()[0] for name, variable in by_name(loaded).items()} == {"a": 1.0, "b": 2.0}


@pytest.mark.slow
def test_a_loaded_saved_model_uses_the_weights_that_it_was_loaded_with(tmp_path):
    class Loaded(tf_keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, x):
            return tf.matmul(x, tf.get_variable("w", [3, 4], regularizer=tf.nn.l2_loss))

    inputs = tf_keras.Input((3,))
    model = tf_keras.Model(inputs, Loaded()(inputs))
    expected = model(X)
    model.save(tmp_path, save_format="tf")
    for custom_objects in (None, {"Loaded": Loaded}):
        loaded = tf_keras.models.load_model(tmp_path, custom_objects)
        np.testing.assert_array_equal(loaded(X), expected)
        assert len(loaded.weights) == 1 and len(loaded.losses) == 1


@pytest.mark.parametrize("name", OURS)
def test_a_variable_is_no_attribute_of_its_name(name, tmp_path):
    def make():
        attribute = (keras if name == "keras_3" else tensorflow).Variable([7.0, 7.0, 7.0])
        owner = KITS[name].owner(lambda self, x, training: x * tf.get_variable("w", [3]), w=attribute)
        owner(X)
        return owner

    saved, loaded = make(), make()
    saved.w.assign([8.0, 8.0, 8.0])
    assert len(saved.variables) == 2
    path = tensorflow.train.Checkpoint(owner=saved).save(str(tmp_path / "checkpoint"))
    tensorflow.train.Checkpoint(owner=loaded).restore(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(loaded(X), saved(X))
    np.testing.assert_array_equal(loaded.w.numpy(), [8.0, 8.0, 8.0])
    assert np.any(loaded(X) != 8.0 * X)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, of any layer
@pytest.mark.parametrize("file", ["model.weights.h5", "model.keras"])
def test_keras_3_saves_by_names_whatever_was_created_first(file, tmp_path):
    class Ordered(keras.layers.Layer):
        def __init__(self, order="ab", **kwargs):
            super().__init__(**kwargs)
            self.order = order

        def build(self, input_shape):
            self.kept = [self.add_weight(shape=(), initializer="ones") for _ in range(2)]

        @detrand.track_tf1_style_variables
        def call(self, x):
            for name in self.order:
                with tf.variable_scope("scope"):
                    x = x * tf.get_variable(f"{name}.x", [3])
            return x * self.kept[0]

    def model(order):
        return keras.Sequential([keras.Input((3,)), Ordered(order)])

    saved, loaded, longer = model("ab"), model("ba"), model("abc")
    saved.layers[0].kept[1].assign(5.0)
    (saved.save if file == "model.keras" else saved.save_weights)(tmp_path / file)
    loaded.load_weights(tmp_path / file)
    for name in ("scope/a.x", "scope/b.x"):
        found, expected = (by_name(model.layers[0])[name] for model in (loaded, saved))
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=name)
    assert loaded.layers[0].kept[1].numpy() == 5
    with pytest.raises(ValueError, match=r"missing \['scope:c.x'\], left over \[\]"):
        longer.load_weights(tmp_path / file)
    if file == "model.keras":
        again = keras.models.load_model(tmp_path / file, custom_objects={"Ordered": Ordered})
        np.testing.assert_array_equal(again(X), saved(X))
