"""Layers, templates and assignments in a decorated method, for both decorators."""

import numpy as np
import pytest
import tensorflow
import tf_keras
from tf_keras.src.legacy_tf_layers import variable_scope_shim as official

import detrand
from detrand import (
    VariableScopeLayer,
    variables_of,
)
from tests.support.shim_kits import (
    KITS,
    ONES,
    both_ways,
    by_name,
    every_kit,
    every_layer,
    model_with,
    of_get_variable,
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
    """Keras 3 allows no new inner layer in a layer that is built, so `get_or_create_layer` keeps it."""

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
    """The scope applies to the code of the layer, as in TF1."""

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
    else:  # a unique name, as in a graph
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
