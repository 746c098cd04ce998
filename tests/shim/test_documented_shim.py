"""What TensorFlow documents of its `track_tf1_style_variables`, held for both decorators, and where they differ."""

import inspect
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
from tf_keras.src.legacy_tf_layers import variable_scope_shim as official

import detrand
from detrand import (
    DeterministicRandomTestTool,
    VariableScopeLayer,
    assert_variables_match,
    variables_of,
)
from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    assert_same,
    layer_of,
    module_of,
    run_in_method,
    run_in_session,
    tf1_graphs_as_they_are,  # noqa: F401
    tf_keras_layer_of,
)

tf = tensorflow.compat.v1
ONES = np.ones((5, 5), np.float32)
pytestmark = TF1_WARNINGS


class Kit:
    """A decorator, and the kind of objects whose methods it decorates.

    Args:
      base: what the objects are.
      shim: where the decorator is.
    """

    def __init__(self, base, shim):
        self.base, self.shim = base, shim
        self.keras = keras if base is keras.layers.Layer else tf_keras

    def owner(self, call, **attributes):
        """Returns an object whose decorated method runs `call(self, x, training)`, and which can be called."""

        class Owner(self.base):
            @self.shim.track_tf1_style_variables
            def call(self, inputs, training=None):
                return call(self, inputs, training)

            if self.base is tensorflow.Module:
                __call__ = call

        owner = Owner()
        for name, attribute in attributes.items():
            setattr(owner, name, attribute)
        return owner


KITS = {
    "official": Kit(tf_keras.layers.Layer, official),
    "official_module": Kit(tensorflow.Module, official),
    "keras_3": Kit(keras.layers.Layer, detrand),
    "tf_keras": Kit(tf_keras.layers.Layer, detrand),
    "module": Kit(tensorflow.Module, detrand),
}
OURS = ["keras_3", "tf_keras", "module"]
LAYERS = ["official", "keras_3", "tf_keras"]
every_kit = pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
every_layer = pytest.mark.parametrize("kit", [KITS[name] for name in LAYERS], ids=LAYERS)
both_ways = pytest.mark.parametrize("way", WAYS)


def by_name(owner):
    """Returns an object's variables by their names in TF1."""
    if isinstance(owner, keras.layers.Layer):
        return dict(zip(variables_of(owner), owner.weights, strict=True))
    return {variable.name.removesuffix(":0"): variable for variable in owner.variables}


def total(losses):
    return np.sum([np.array(loss) for loss in losses])


# --- Variables are created once, tracked, and regularized ---------------------------------------------------


def dense_of_get_variable(x, units, scope):
    with tf.variable_scope(scope):
        kernel = tf.get_variable(
            "kernel", [x.shape[-1], units], initializer=tf.ones_initializer(), regularizer=tf_keras.regularizers.L2()
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def of_get_variable(self, x, training):
    x = dense_of_get_variable(x, 10, "dense_one")
    with tf.variable_scope("nested_scope"):
        return dense_of_get_variable(x, 10, "dense_two")


def of_v1_layers(self, x, training):
    x = tf.layers.dense(x, 10, name="dense_one", kernel_initializer=tf.ones_initializer, kernel_regularizer="l2")
    with tf.variable_scope("nested_scope"):
        return tf.layers.dense(
            x, 10, name="dense_two", kernel_initializer=tf.ones_initializer(), kernel_regularizer="l2"
        )


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
        """Says what it does."""

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


# --- `training` ---------------------------------------------------------------------------------------------


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


# --- Functional models, shapes, export and checkpoints ------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"\['scope:c.x'\] are missing, \[\] are left over"):
        longer.load_weights(tmp_path / file)
    if file == "model.keras":
        again = keras.models.load_model(tmp_path / file, custom_objects={"Ordered": Ordered})
        np.testing.assert_array_equal(again(X), saved(X))


# --- What else is in the method -----------------------------------------------------------------------------


@every_kit
def test_layers_kept_as_attributes_are_tracked_with_their_losses(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            return tf.layers.dense(self.dense(x), 2, kernel_regularizer="l2")

    dense = kit.keras.layers.Dense(4, kernel_regularizer="l2")
    owner = kit.owner(call, dense=dense)
    first = owner(X)
    np.testing.assert_array_equal(owner(X), first)
    assert len(owner.variables) == 4
    if kit.base is not tensorflow.Module:
        assert len(owner.losses) == 2


@pytest.mark.parametrize("name", ["official", "official_module", "tf_keras", "module"])
def test_a_model_can_be_made_in_the_first_call(name):
    """Keras 3 lets no layer take another one in that is built: there it is get_or_create_layer's."""

    def call(self, x, training):
        if self.model is None:
            inputs = tf_keras.Input((5,))
            dense = tf_keras.layers.Dense(10, name="dense", kernel_initializer="ones", kernel_regularizer="l2")
            self.model = tf_keras.Model(inputs, dense(inputs))
        return self.model(x)

    owner = KITS[name].owner(call, model=None)
    np.testing.assert_array_equal(owner(ONES), np.full((5, 10), 5))
    assert sorted(by_name(owner)) == ["dense/bias", "dense/kernel"]
    by_name(owner)["dense/kernel"].assign(np.full((5, 10), 2.0))
    np.testing.assert_array_equal(owner(ONES), np.full((5, 10), 10))
    if isinstance(owner, tf_keras.layers.Layer):
        np.testing.assert_allclose(total(owner.losses), 2.0, rtol=1e-6)


@every_kit
def test_decorated_layers_in_one_another_count_once(kit):
    def dense(units, scope):
        def call(self, x, training):
            with tf.variable_scope(scope):
                kernel = tf.get_variable(
                    "kernel", [x.shape[-1], units], initializer=tf.ones_initializer(), regularizer=tf.nn.l2_loss
                )
                return tf.matmul(x, kernel) + tf.get_variable("bias", [units], initializer=tf.zeros_initializer())

        return kit.owner(call)

    owner = kit.owner(lambda self, x, training: self.b(self.a(x)), a=dense(10, "dense_one"), b=dense(5, "dense_two"))
    x = np.ones((1, 3), np.float32)
    for factor in (1, 2):
        np.testing.assert_array_equal(owner(x), np.full((1, 5), 30 * factor**2))
        assert sorted(by_name(owner.a)) == ["dense_one/bias", "dense_one/kernel"]
        assert sorted(by_name(owner.b)) == ["dense_two/bias", "dense_two/kernel"]
        assert len(owner.variables) == 4
        if kit.base is not tensorflow.Module:
            losses = [total(layer.losses) for layer in (owner.a, owner.b, owner)]
            np.testing.assert_allclose(losses, np.array([15, 25, 40]) * factor**2)
        for layer in (owner.a, owner.b):
            for name, weight in by_name(layer).items():
                if name.endswith("kernel"):
                    weight.assign(np.full(weight.shape, 2.0))


@every_kit
def test_a_nested_layer_is_in_the_scope_that_it_is_called_in(kit):
    """With all that the scope has, as what the layer does would be in TF1."""

    def doubled(getter, *args, **kwargs):
        return 2.0 * getter(*args, **kwargs)

    def call(self, x, training):
        options = {"initializer": tf.ones_initializer(), "regularizer": tf.nn.l2_loss, "custom_getter": doubled}
        with tf.variable_scope("outer", dtype=tf.float64, **options):
            return self.inner(x)

    inner = kit.owner(lambda self, x, training: tf.get_variable("w", [3]))
    owner = kit.owner(call, inner=inner)
    for _ in range(2):
        np.testing.assert_array_equal(owner(X), [2.0, 2.0, 2.0])
    assert list(by_name(owner)) == ["outer/w"] and by_name(owner)["outer/w"].dtype in ("float64", tf.float64)
    if kit.base is not tensorflow.Module:
        np.testing.assert_array_equal(owner.losses, [1.5])


@every_kit
def test_equal_names_in_nested_layers_are_not_shared(kit):
    def call(self, x, training):
        with tf.variable_scope("outer"):
            return self.inner(x * tf.get_variable("w", [3]))

    inner = kit.owner(lambda self, x, training: x * tf.get_variable("w", [3]))
    owner = kit.owner(call, inner=inner)
    first = owner(X)
    np.testing.assert_array_equal(owner(X), first)
    assert len(owner.variables) == 2 and len(inner.variables) == 1
    if kit.shim is official:
        assert [variable.name for variable in owner.variables] == ["outer/w:0", "outer/w:0"]
    else:  # a name of its own, as a graph makes them
        assert list(variables_of(inner)) == ["outer/w_1"]


@every_kit
def test_each_object_has_variables_of_its_own(kit):
    first, second = (kit.owner(lambda self, x, training: x * tf.get_variable("w", [3])) for _ in range(2))
    assert np.any(np.array(first(X)) != np.array(second(X)))
    assert len(first.variables) == len(second.variables) == 1


@every_kit
def test_methods_of_one_object_share_scopes(kit):
    class Owner(kit.base):
        @kit.shim.track_tf1_style_variables
        def make(self):
            with tf.variable_scope("scope"):
                return tf.get_variable("w", [3])

        @kit.shim.track_tf1_style_variables
        def use(self):
            with tf.variable_scope("scope", reuse=True):
                return tf.get_variable("w", [3])

    owner = Owner()
    assert owner.make() is owner.use()
    assert len(owner.variables) == 1


@every_kit
def test_a_variable_made_in_the_first_call_and_kept_is_tracked_once(kit):
    def call(self, x, training):
        if self.factor is None:
            self.factor = tensorflow.Variable(tf.ones([3]), name="factor")
        return x * self.factor * tf.get_variable("w", [3])

    owner = kit.owner(call, factor=None)
    first = owner(X)
    np.testing.assert_array_equal(owner(X), first)
    assert len(owner.variables) == 2


@every_layer
def test_weights_of_the_kit_may_be_beside(kit):
    class Layer(kit.base):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=[3], initializer="ones", name="scale")

        @kit.shim.track_tf1_style_variables
        def call(self, x):
            return x * self.scale * tf.get_variable("w", [3], initializer=tf.ones_initializer())

    layer = Layer()
    for _ in range(2):
        np.testing.assert_array_equal(layer(X), X)
    assert len(layer.weights) == 2


@every_kit
def test_assignments_in_the_method_are_made_in_each_call(kit):
    def call(self, x, training):
        count = tf.get_variable("count", [], trainable=False, initializer=tf.zeros_initializer())
        return tf.assign_add(count, 1.0).read_value()

    owner = kit.owner(call)
    for expected in (1, 2, 3):
        assert owner(X).numpy() == expected
        assert by_name(owner)["count"].numpy() == expected


def regularized_by_template(kit):
    def scale(x, name):
        factor = tf.get_variable(
            name, [], initializer=tf.constant_initializer(1.5), regularizer=tf_keras.regularizers.L2()
        )
        return x * factor

    def call(self, x, training):
        with tf.variable_scope("foo"):
            return self.template(x)

    return kit.owner(call, template=tf.make_template("scale_by_y", scale, name="y"))


@both_ways
@every_kit
def test_a_template_is_made_once_and_called_often(kit, way):
    owner = regularized_by_template(kit)
    run = WAYS[way](owner)
    for _ in range(3):
        np.testing.assert_array_equal(run(X), 1.5 * X)
    assert list(by_name(owner)) == ["foo/scale_by_y/y"]
    if kit.base is not tensorflow.Module:
        np.testing.assert_allclose(owner.losses, [0.01 * 1.5**2], rtol=1e-6)


@every_layer
def test_a_template_and_its_layer_can_be_made_in_a_trace(kit):
    layers = []

    @tensorflow.function
    def run(x):
        if not layers:
            layers.append(regularized_by_template(kit))
        return layers[0](x), tensorflow.add_n(layers[0].losses)

    for _ in range(3):
        outputs, loss = run(X)
        np.testing.assert_array_equal(outputs, 1.5 * X)
        np.testing.assert_allclose(loss, 0.01 * 1.5**2, rtol=1e-6)
    assert list(by_name(layers[0])) == ["foo/scale_by_y/y"]


def model_with(kit, **options):
    def create():
        inputs = kit.keras.Input((5, 5))
        dense = kit.keras.layers.Dense(10, name="dense", kernel_initializer="ones", **options)
        return kit.keras.Model(inputs, dense(inputs))

    return create


@both_ways
@every_layer
def test_get_or_create_layer_keeps_a_model_with_its_losses(kit, way):
    made = []

    def create():
        made.append(model_with(kit, kernel_regularizer="l2")())
        return made[-1]

    def call(self, x, training):
        with tf.variable_scope("test_scope"):
            return kit.shim.get_or_create_layer("dense_model", create)(x)

    layer = kit.owner(call)
    run = WAYS[way](layer)
    for _ in range(2):
        np.testing.assert_array_equal(run(ONES[None]), np.full((1, 5, 10), 5))
    assert len(made) == 1 and len(layer.weights) == 2
    np.testing.assert_allclose(layer.losses, [0.5], rtol=1e-6)


@every_kit
def test_get_or_create_layer_keeps_one_layer_for_each_scope(kit):
    def call(self, x, training):
        for scope in ("a", "b"):
            with tf.variable_scope(scope):
                x = kit.shim.get_or_create_layer("dense", lambda: kit.keras.layers.Dense(3))(x)
        return x

    owner = kit.owner(call)
    first = owner(X)
    np.testing.assert_array_equal(owner(X), first)
    assert len(owner.variables) == 4


@pytest.mark.parametrize("shim", [official, detrand], ids=["official", "detrand"])
def test_get_or_create_layer_in_a_graph_creates(shim):
    with tensorflow.Graph().as_default(), tf.Session() as session:
        output = shim.get_or_create_layer("dense_model", model_with(KITS["tf_keras"]))(tensorflow.constant(ONES[None]))
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(output), np.full((1, 5, 10), 5))
        assert len(tf.trainable_variables()) == 2


@pytest.mark.parametrize("shim", [official, detrand], ids=["official", "detrand"])
def test_get_or_create_layer_outside_of_a_method_is_refused(shim):
    with pytest.raises(ValueError, match="decorated with"):
        shim.get_or_create_layer("dense_model", model_with(KITS["tf_keras"]))


@pytest.mark.parametrize("base", [official.VariableScopeLayer, VariableScopeLayer], ids=["official", "detrand"])
def test_a_variable_scope_layer_runs_its_forward_pass(base):
    seen = []

    class Layer(base):
        def forward_pass(self, inputs, training=None):
            seen.append(training)
            return of_get_variable(self, inputs, training)

    layer = Layer()
    np.testing.assert_array_equal(layer(ONES, training=True), np.full((5, 10), 50))
    layer(ONES, training=False)
    assert seen == [True, False]
    assert len(layer.weights) == 4
    np.testing.assert_allclose(total(layer.losses), 1.5, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        base()(ONES)


def test_a_forward_pass_may_come_from_another_class():
    class Mixin:
        def forward_pass(self, x):
            return x * tf.get_variable("w", [3])

    class Layer(Mixin, VariableScopeLayer):
        pass

    layer = Layer()
    np.testing.assert_array_equal(layer(X), layer(X))
    assert len(layer.weights) == 1


# --- Arguments of get_variable ------------------------------------------------------------------------------


def one_variable(kit, **options):
    made = []
    owner = kit.owner(lambda self, x, training: made.append(tf.get_variable("w", **options)))
    with tf.device("/cpu:0"):
        owner(X) if kit.base is tensorflow.Module else owner.call(X)
    return owner, made[0]


def halved(value):
    return value / 2


@pytest.mark.parametrize(
    ("options", "attribute", "expected"),
    [
        ({"trainable": False}, "trainable", False),
        ({"dtype": tf.float16}, "dtype", tf.float16),
        ({"constraint": halved}, "constraint", halved),
        ({"synchronization": tensorflow.VariableSynchronization.ON_READ}, "trainable", False),
        (
            {"synchronization": tensorflow.VariableSynchronization.ON_WRITE},
            "synchronization",
            tensorflow.VariableSynchronization.ON_WRITE,
        ),
        ({"aggregation": tf.VariableAggregation.MEAN}, "aggregation", tf.VariableAggregation.MEAN),
        ({"use_resource": False}, "trainable", True),
        ({"caching_device": "/cpu:0"}, "device", "/job:localhost/replica:0/task:0/device:CPU:0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@every_kit
def test_a_variable_has_the_properties_that_are_asked_for(kit, options, attribute, expected):
    owner, variable = one_variable(kit, shape=[3], **options)
    assert getattr(variable, attribute) == expected
    assert len(owner.trainable_variables) == variable.trainable
    assert isinstance(variable, tensorflow.Variable)


@every_layer
def test_constraints_hold_after_each_update(kit):
    layer = kit.owner(lambda self, x, training: x * tf.get_variable("w", [3], constraint=clipped))
    model = kit.keras.Sequential([layer])
    model.compile(kit.keras.optimizers.SGD(1e-4), "mse")
    model(X)
    layer.weights[0].assign([1.0, 2.0, 0.25])
    model.fit(X, X, verbose=0)
    np.testing.assert_allclose(layer.weights[0].numpy(), [0.5, 0.5, 0.25], atol=1e-3)


def clipped(value):
    return tf.clip_by_value(value, 0.0, 0.5)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"initializer": 4, "dtype": tf.int32}, 4),
        ({"initializer": np.array([1, 2, 3]), "dtype": tf.int64}, [1, 2, 3]),
        ({"initializer": lambda: [2]}, [2]),
        ({"initializer": lambda x=True: [2]}, [2]),
        ({"shape": [2], "initializer": tf.zeros_initializer}, [0, 0]),
        ({"shape": [2], "dtype": tf.int16}, [0, 0]),
        ({"shape": [2], "dtype": tf.bool}, [False, False]),
        ({"shape": [2], "dtype": tf.string}, [b"", b""]),
        ({"initializer": lambda: tf.ones([2]), "validate_shape": False}, [1, 1]),
    ],
    ids=["number", "array", "no_arguments", "optional_arguments", "class", "int", "bool", "string", "any_shape"],
)
@every_kit
def test_a_variable_starts_from_what_is_given_or_from_the_default_of_its_type(kit, options, value):
    _, variable = one_variable(kit, **options)
    np.testing.assert_array_equal(variable.numpy(), value)


REFUSED = {
    "no_initializer": ({"shape": [2], "dtype": tf.complex64}, "An initializer for variable w of .*complex64"),
    "shape_and_value": ({"shape": [1], "initializer": tf.constant(0.1)}, "If initializer is a constant, do not spec"),
    "two_types": ({"initializer": tf.constant(1), "dtype": tf.float64}, "don't match|conversion requested dtype"),
    "no_getter": ({"shape": [2], "custom_getter": 3}, "custom_getter which is not callable: 3"),
    "no_synchronization": ({"shape": [2], "synchronization": "x"}, "Invalid variable synchronization mode: x"),
    "no_aggregation": ({"shape": [2], "aggregation": "x"}, "Invalid variable aggregation mode: x"),
    "dict": ({"initializer": {}}, "unsupported type"),
}


@pytest.mark.parametrize("name", REFUSED)
@every_kit
def test_what_is_no_variable_is_refused(kit, name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        one_variable(kit, **options)


@every_kit
def test_getters_and_creators_get_what_was_asked_for(kit):
    asked = {
        "synchronization": tensorflow.VariableSynchronization.ON_WRITE,
        "aggregation": tf.VariableAggregation.MEAN,
        "trainable": True,
    }
    seen = []

    def getter(getter, name, *args, **kwargs):
        seen.append({key: kwargs[key] for key in asked})
        return getter(name, *args, **kwargs)

    def creator(next_creator, **kwargs):
        seen.append({key: kwargs[key] for key in asked})
        return next_creator(**kwargs)

    with tensorflow.variable_creator_scope(creator):
        one_variable(kit, shape=[2], custom_getter=getter, **asked)
    assert seen == [asked, asked]


# --- Variable scopes, as the official tests have them -------------------------------------------------------

SCOPES = {}


def scopes(program):
    SCOPES[program.__name__] = lambda x, training: program(x)
    return program


def new(name="w", **options):
    return tf.get_variable(name, [], **options).name


@scopes
def default_names_that_begin_alike(x):
    names = []
    for default in ("defaultScope1", "defaultScope1", "defaultScope", "defaultScope1"):
        with tf.variable_scope(None, default), tf.variable_scope(None, "layer"):
            names.append(new())
    return x, names


@scopes
def default_names_after_a_jump(x):
    names = []
    with tf.variable_scope("default") as default:
        for _ in range(2):
            with tf.variable_scope(None, "layer"):
                names.append(new())
        with tf.variable_scope(default):
            pass
        with tf.variable_scope(None, "layer"):
            names.append(new())
    return x, names


@scopes
def default_names_reused(x):
    names = []
    with tf.variable_scope("outer") as outer:
        for scope in ("tower", None):
            with tf.variable_scope(scope, "default", []):
                names.append(new())
    with tf.variable_scope(outer, reuse=True) as outer:
        for scope in ("tower", None):
            with tf.variable_scope(scope, "default", []):
                names.append(new())
    with tf.variable_scope(outer, "ignored", reuse=tf.AUTO_REUSE), tf.variable_scope(None, "default"):
        names.append(new())
    return x, names


@scopes
def in_name_scopes(x):
    with tf.name_scope("scope1"), tf.variable_scope("tower", "default", []):
        names = [new()]
    with tf.name_scope("scope2"):
        for _ in range(2):
            with tf.variable_scope(None, "default", []):
                names.append(new())
    return x, names


@scopes
def jumps_to_other_scopes(x):
    with tf.variable_scope("root"):
        with tf.variable_scope("towerA") as tower:
            first = tf.get_variable("v", [1])
        with tf.variable_scope("foo"), tf.variable_scope("bar"):
            names = [new("v")]
            with tf.variable_scope(tower, reuse=True):
                assert tf.get_variable("v", [1]) is first
        with tf.variable_scope("towerA", reuse=True):
            assert tf.get_variable("v", [1]) is first
    with tf.variable_scope(tower):
        names += [new("u"), tf.get_variable_scope().name]
    return x, names


@scopes
def without_name_scopes(x):
    names = []
    root = tf.get_variable_scope()
    with tf.variable_scope("scope", auxiliary_name_scope=False) as scope:
        names.append(new())
    with tf.variable_scope(scope, auxiliary_name_scope=False):
        names.append(new("w1"))
    with tf.variable_scope("outer"):
        with tf.variable_scope("inner", auxiliary_name_scope=False) as inner:
            names += [inner.original_name_scope, new()]
        with tf.variable_scope(inner, auxiliary_name_scope=False) as again:
            names += [again.original_name_scope, new("w1")]
        with tf.variable_scope(None, "default", auxiliary_name_scope=False) as default:
            names += [default.original_name_scope, new()]
        with tf.variable_scope(root, auxiliary_name_scope=False) as entered:
            names += [entered.original_name_scope, new("w2")]
    with (
        tf.variable_scope("another"),
        tf.variable_scope(inner, auxiliary_name_scope=False) as again,
        tf.name_scope(again.original_name_scope),
    ):
        names.append(new("w3"))
    return x, names


@scopes
def properties_given_when_entering_again(x):
    with tf.variable_scope("tower") as tower:
        with tf.variable_scope("foo", initializer=tf.constant_initializer(0.3), dtype=tf.float16):
            first = tf.get_variable("v", [])
        with tf.variable_scope(tower, initializer=tf.constant(0.1), constraint=halved) as again:
            second = tf.get_variable("w")
            again.set_initializer(tf.ones_initializer())
            again.set_dtype(tf.float64)
            third = tf.get_variable("u", [])
    return [first, second, third], second.constraint is halved


@scopes
def types_taken_from_variables(x):
    return tf.get_variable("w", [2], tf.get_variable("v", [3], tf.float64).dtype)


@pytest.mark.parametrize("make", [layer_of, tf_keras_layer_of, module_of], ids=OURS)
@pytest.mark.parametrize("name", SCOPES)
def test_scopes_are_those_of_a_graph(name, make):
    model = TF1Model(SCOPES[name], (X,))
    _, found = run_in_method(model, "num_random_ops", "eager", make)
    assert_same(found, run_in_session(model, "num_random_ops"), keeps_losses=False)


@pytest.mark.parametrize("scope", ["name", None], ids=["name", "default_name"])
@every_kit
def test_an_auxiliary_name_scope_is_a_bool(kit, scope):
    def call(self, x, training):
        with tf.variable_scope(scope, "default", auxiliary_name_scope="invalid"):
            pass

    with pytest.raises(TypeError, match="auxiliary_name_scope"):
        kit.owner(call).call(X)


@every_kit
def test_a_scope_around_the_call_is_entered(kit):
    owner = kit.owner(lambda self, x, training: x * tf.get_variable("w", [3]))
    with tf.variable_scope("outer", initializer=tf.ones_initializer()):
        for _ in range(2):
            np.testing.assert_array_equal(owner(X), X)
    assert list(by_name(owner)) == ["outer/w"]


@every_kit
def test_a_scope_that_was_made_outside_can_be_entered(kit):
    with tf.variable_scope("made_outside", initializer=tf.ones_initializer()) as scope:
        pass

    def call(self, x, training):
        with tf.variable_scope(scope):
            return x * tf.get_variable("w", [3])

    owner = kit.owner(call)
    for _ in range(2):
        np.testing.assert_array_equal(owner(X), X)
    assert list(by_name(owner)) == ["made_outside/w"]


# --- The migration guide's steps ----------------------------------------------------------------------------


def images():
    return tensorflow.random.normal((10, 5, 5, 5))


def with_v1_layers(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            x = tf.layers.flatten(tf.layers.conv2d(x, 3, 3, kernel_regularizer="l2"))
            x = tf.layers.dropout(x, training=training)
            return tf.layers.dense(x, 10, kernel_regularizer="l2")

    return kit.owner(call)


def with_one_keras_layer(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            x = tf.layers.dropout(tf.layers.flatten(self.convolution(x)), training=training)
            return tf.layers.dense(x, 10, kernel_regularizer="l2")

    return kit.owner(call, convolution=kit.keras.layers.Conv2D(3, 3, kernel_regularizer="l2"))


def with_keras_layers(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            return self.dense(self.flatten(self.convolution(x)))

    layers = kit.keras.layers
    return kit.owner(
        call,
        convolution=layers.Conv2D(3, 3, kernel_regularizer="l2"),
        flatten=layers.Flatten(),
        dense=layers.Dense(10, kernel_regularizer="l2"),
    )


@pytest.mark.parametrize("name", ["keras_3", "tf_keras"])
def test_a_model_is_moved_to_keras_layer_by_layer(name):
    """The guide's own check, with detrand's tool: the numbers stay the same after each step."""
    found = []
    for step in (with_v1_layers, with_one_keras_layer, with_keras_layers):
        with DeterministicRandomTestTool(mode="num_random_ops").scope():
            layer = step(KITS[name])
            outputs = layer(images()).numpy()
        found.append((outputs, total(layer.losses)))
    for outputs, loss in found[1:]:
        np.testing.assert_allclose(outputs, found[0][0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(loss, found[0][1], rtol=1e-6)


@every_kit
def test_v1_layers_kept_as_attributes_are_named_as_those_called_in_the_method(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            return tf.layers.conv2d(self.second(self.first(x)), 5, 5, kernel_regularizer="l2")

    first, second = (tf.layers.Conv2D(units, units, kernel_regularizer="l2") for units in (3, 4))
    owner = kit.owner(call, first=first, second=second)
    for _ in range(2):
        owner(np.ones((2, 10, 10, 3), np.float32))
    weights = by_name(owner)
    assert sorted(weights) == [f"model/conv2d{i}/{name}" for i in ("", "_1", "_2") for name in ("bias", "kernel")]
    for name, variable in (("model/conv2d/kernel", first.kernel), ("model/conv2d_1/bias", second.bias)):
        assert (weights[name].value if kit.keras is keras else weights[name]) is variable
    if kit.base is not tensorflow.Module:
        # The official decorator counts those of layers in attributes twice.
        assert len(owner.losses) == (5 if kit.shim is official else 3)


@every_kit
def test_an_entered_scope_keeps_the_names_of_the_layers_that_follow(kit):
    def call(self, x, training):
        with tf.variable_scope("model"):
            with tf.variable_scope("conv2d"):
                pass
            return tf.layers.conv2d(x, 5, 5)

    owner = kit.owner(call)
    owner(np.ones((2, 10, 10, 3), np.float32))
    assert sorted(by_name(owner)) == ["model/conv2d_1/bias", "model/conv2d_1/kernel"]


STRATEGIES = """
    import numpy as np, keras, tensorflow, tf_keras
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
    import contextlib
    from detrand import DeterministicRandomTestTool, track_tf1_style_variables
    from detrand.variables.sources import tf1_style_variables
    tf = tensorflow.compat.v1
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)

    def program(x):
        with tf.variable_scope("model", regularizer=tf.nn.l2_loss):
            return tf.matmul(x, tf.get_variable("w", [3, 2]))

    def trained(kit, strategy):
        class Layer(kit.layers.Layer):
            @track_tf1_style_variables
            def call(self, x):
                return program(x)

        with DeterministicRandomTestTool().scope(), strategy.scope() if strategy else contextlib.nullcontext():
            model = kit.Sequential([Layer()])
            model.compile(kit.optimizers.SGD(0.1), "mse")
            model(x)
            model.fit(x, x[:, :2], batch_size=8, epochs=2, shuffle=False, verbose=0)
        kinds = {type(variable).__name__ for variable in tf1_style_variables(model.layers[0]).variables.values()}
        assert len(model.weights) == 1 and kinds == {"MirroredVariable" if strategy else "ResourceVariable"}, kinds
        return model.weights[0].numpy()

    strategy = tensorflow.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for kit in (keras, tf_keras):
        np.testing.assert_allclose(trained(kit, strategy), trained(kit, None), rtol=1e-5)

    class Module(tensorflow.Module):
        @track_tf1_style_variables
        def run(self, x):
            return program(x)

    with strategy.scope():
        module = Module()
    run = tensorflow.function(lambda x: strategy.run(module.run, args=(x,)))
    for _ in range(2):
        for output in strategy.experimental_local_results(run(tensorflow.constant(x))):
            np.testing.assert_allclose(output, x @ module.variables[0].numpy(), rtol=1e-5)
    assert len(module.variables) == 1
"""


@pytest.mark.slow
def test_variables_are_mirrored_by_a_distribution_strategy():
    """In a process of its own, which has two devices."""
    command = [sys.executable, "-c", textwrap.dedent(STRATEGIES)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


EAGER_STRATEGY = """
    import numpy as np, keras, tensorflow, tf_keras
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
    from detrand import track_tf1_style_variables
    from detrand.variables.sources import tf1_style_variables
    tf = tensorflow.compat.v1
    strategy = tensorflow.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for kind in (keras.layers.Layer, tf_keras.layers.Layer, tensorflow.Module):
        class Owner(kind):
            @track_tf1_style_variables
            def call(self, x):
                assert tensorflow.distribute.get_strategy() is strategy
                return x * tf.get_variable("w", [3])

        with strategy.scope():
            owner = Owner()
        for _ in range(2):
            strategy.run(owner.call, args=(tensorflow.ones((2, 3)),))
        (variable,) = tf1_style_variables(owner).variables.values()
        assert type(variable).__name__ == "MirroredVariable" and len(owner.variables) == 1
"""


def test_a_strategy_runs_a_method_eagerly():
    command = [sys.executable, "-c", textwrap.dedent(EAGER_STRATEGY)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


# --- Where detrand differs on purpose, as the documentation says --------------------------------------------


def both_decorators(call, base=tf_keras.layers.Layer):
    return Kit(base, official).owner(call), Kit(base, detrand).owner(call)


def test_unnamed_layers_and_scopes_find_their_weights_again():
    def call(self, x, training):
        with tf.variable_scope(None, "block"):
            x = x * tf.get_variable("w", [3])
        return tf.layers.dense(x, 3)

    theirs, ours = both_decorators(call)
    for layer in (theirs, ours):
        for _ in range(2):
            layer(X)
    assert len(theirs.weights) == 6
    assert list(variables_of(ours)) == ["block/w", "dense/kernel", "dense/bias"]


def test_a_layer_keeps_the_name_of_the_scope_of_its_first_call():
    theirs, ours = both_decorators(lambda self, x, training: x * tf.get_variable("w", [3]))
    for layer in (theirs, ours):
        for scope in ("first", "second"):
            with tf.variable_scope(scope):
                layer(X)
    assert [weight.name for weight in theirs.weights] == ["first/w:0", "second/w:0"]
    assert list(variables_of(ours)) == ["first/w"]


def test_a_template_may_be_made_in_each_call():
    def call(self, x, training):
        return tf.make_template("template", lambda x: x * tf.get_variable("w", [3]))(x)

    theirs, ours = both_decorators(call)
    for layer in (theirs, ours):
        for _ in range(2):
            layer(X)
    assert len(theirs.weights) == 2
    assert list(variables_of(ours)) == ["template/w"]


def test_a_template_may_be_shared_by_several_objects():
    for kit, tracked in ((KITS["official"], [1, 0]), (KITS["tf_keras"], [1, 1])):
        template = tf.make_template("template", lambda x: x * tf.get_variable("w", [3]))
        layers = [kit.owner(lambda self, x, training, template=template: template(x)) for _ in range(2)]
        for layer in layers:
            np.testing.assert_array_equal(layer(X), layer(X))
        assert [len(layer.weights) for layer in layers] == tracked


@pytest.mark.parametrize(
    ("reuse", "message"),
    [
        (None, r"already exists, disallowed.* created at .*test_documented_shim.py:\d+. It was asked for at .*.py:\d+"),
        (True, r"does not exist, or was not created.* It was asked for at .*test_documented_shim.py:\d+"),
    ],
    ids=["made_twice", "missing_and_reused"],
)
def test_reuse_is_checked_within_a_call(reuse, message):
    def call(self, x, training):
        with tf.variable_scope("a", reuse=reuse):
            return [tf.get_variable("w", [3]) for _ in range(2)]

    theirs, ours = both_decorators(call, tensorflow.Module)
    first, second = theirs(X)
    assert first is second
    with pytest.raises(ValueError, match=message):
        ours(X)


def test_variables_of_other_constructors_are_found_again():
    def call(self, x, training):
        with tf.variable_scope("a"):
            return x * tensorflow.Variable(tf.random_normal([3]), name="w")

    theirs, ours = both_decorators(call)
    outputs = [layer(X) for layer in (theirs, ours) for _ in range(2)]
    assert theirs.weights == [] and np.any(outputs[0] != outputs[1])
    np.testing.assert_array_equal(outputs[2], outputs[3])
    assert list(variables_of(ours)) == ["a/w"]


def test_a_layer_that_nothing_keeps_is_refused():
    theirs, ours = both_decorators(lambda self, x, training: tf_keras.layers.Dense(2, name="lost")(x))
    theirs(X)
    assert theirs.weights == []
    with pytest.raises(
        ValueError, match=r"made the tf_keras Dense 'lost' at .*, and nothing keeps it.*get_or_create_l"
    ):
        ours(X)


def test_collections_are_those_of_the_call():
    def call(self, x, training):
        tf.get_variable("w", [3], regularizer=tf.nn.l2_loss)
        return [
            len(found)
            for found in (tf.global_variables(), tf.trainable_variables(), tf.losses.get_regularization_losses())
        ]

    theirs, ours = both_decorators(call, tensorflow.Module)
    for _ in range(2):
        assert (theirs(X), ours(X)) == ([0, 0, 0], [1, 1, 1])


def test_variables_can_be_partitioned():
    def call(self, x, training):
        return tf.convert_to_tensor(tf.get_variable("w", [4, 2], partitioner=tf.fixed_size_partitioner(2)))

    theirs, ours = both_decorators(call, tensorflow.Module)
    with pytest.raises(ValueError, match="`partitioner` arg for `get_variable` is unsupported"):
        theirs(X)
    assert ours(X).shape == (4, 2) and len(ours.variables) == 2


def test_a_weight_that_layer_and_scope_regularize_has_both_losses():
    def call(self, x, training):
        with tf.variable_scope("a", regularizer=tf.nn.l2_loss):
            return tf.layers.dense(x, 2, use_bias=False, kernel_regularizer="l2")

    theirs, ours = both_decorators(call)
    for layer in (theirs, ours):
        layer(X)
    square = np.sum(ours.weights[0].numpy() ** 2)
    np.testing.assert_allclose(total(ours.losses), (0.5 + 0.01) * square, rtol=1e-5)
    assert len(theirs.losses) == 1


def test_a_kept_layer_without_regularizers_has_no_loss():
    theirs, ours = (
        kit.owner(lambda self, x, training, kit=kit: kit.shim.get_or_create_layer("m", model_with(kit))(x))
        for kit in (KITS["official"], KITS["tf_keras"])
    )
    for layer in (theirs, ours):
        layer(ONES[None])
    assert (np.array(theirs.losses).tolist(), ours.losses) == ([0.0], [])


def test_weights_move_from_the_official_decorator_by_name(tmp_path):
    """Not in an object-based checkpoint: the objects that hold the variables are others."""
    theirs, ours = both_decorators(of_get_variable)
    for layer in (theirs, ours):
        layer(ONES)
    for number, variable in enumerate(theirs.variables):
        variable.assign(tf.fill(variable.shape, float(number)))
    path = tensorflow.train.Checkpoint(theirs).save(str(tmp_path / "objects"))
    with pytest.raises(AssertionError, match="4 Python objects that were not bound"):
        tensorflow.train.Checkpoint(ours).restore(path).assert_consumed()
    detrand.load_tf1_checkpoint(ours, detrand.save_tf1_checkpoint(theirs, tmp_path / "names"))
    np.testing.assert_array_equal(ours(ONES), theirs(ONES))


def test_a_cached_variable_is_read_anew_in_each_call():
    def call(self, x, training):
        return x * tf.get_variable("w", [3], caching_device="/cpu:0")

    owner = KITS["module"].owner(call)
    owner(X)
    owner.variables[0].assign(np.zeros(3))
    assert not np.any(owner(X))


def test_a_function_in_the_method_makes_variables_once_only_with_auto_reuse():
    """TensorFlow traces twice what makes variables; officially that is 'not safe'."""

    def call(self, x, training):
        with tf.variable_scope("a", reuse=self.reuse):
            return tensorflow.function(lambda x: x * tf.get_variable("w", [3]), autograph=False)(x)

    owner = KITS["module"].owner(call, reuse=tf.AUTO_REUSE)
    np.testing.assert_array_equal(owner(X), owner(X))
    assert list(by_name(owner)) == ["a/w"]
    with pytest.raises(ValueError, match="already exists, disallowed"):
        KITS["module"].owner(call, reuse=None)(X)


def test_mixed_precision_reads_weights_in_the_dtype_of_the_inputs():
    def call(self, x, training):
        assert x.dtype == tf.float16
        return x * tf.get_variable("w", [3])

    theirs, ours = both_decorators(call)
    for layer in (theirs, ours):
        layer._set_dtype_policy("mixed_float16")
    with pytest.raises((ValueError, tensorflow.errors.InvalidArgumentError), match="float"):
        theirs(X)
    assert ours(X).dtype == tf.float16 and ours.weights[0].dtype == tf.float32


def test_a_method_of_a_subclass_is_a_program_together_with_the_one_it_calls():
    class Base(tensorflow.Module):
        @detrand.track_tf1_style_variables
        def run(self, x):
            return tf.layers.dense(x, 3)

    class Derived(Base):
        @detrand.track_tf1_style_variables
        def run(self, x):
            return tf.layers.dense(super().run(x), 3)

    module = Derived()
    np.testing.assert_array_equal(module.run(X), module.run(X))
    assert list(variables_of(module)) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
