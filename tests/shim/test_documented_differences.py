"""The documented differences between TensorFlow's decorator and detrand's."""

import numpy as np
import pytest
import tensorflow
import tf_keras
from tf_keras.src.legacy_tf_layers import variable_scope_shim as official

import detrand
from detrand import (
    variables_of,
)
from tests.support.shim_kits import KITS, ONES, Kit, by_name, model_with, of_get_variable, total
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


def both_decorators(call, base=tf_keras.layers.Layer):
    return Kit(base, official).owner(call), Kit(base, detrand).owner(call)


def test_unnamed_layers_and_scopes_find_their_weights_again():
    def call(self, x, training):
        with tf.variable_scope(None, "block"):
            x = x * tf.get_variable("w", [3])
        return tf.layers.dense(x, 3)

    official, shimmed = both_decorators(call)
    for layer in (official, shimmed):
        for _ in range(2):
            layer(X)
    assert len(official.weights) == 6
    assert list(variables_of(shimmed)) == ["block/w", "dense/kernel", "dense/bias"]


def test_a_layer_keeps_the_name_of_the_scope_of_its_first_call():
    official, shimmed = both_decorators(lambda self, x, training: x * tf.get_variable("w", [3]))
    for layer in (official, shimmed):
        for scope in ("first", "second"):
            with tf.variable_scope(scope):
                layer(X)
    assert [weight.name for weight in official.weights] == ["first/w:0", "second/w:0"]
    assert list(variables_of(shimmed)) == ["first/w"]


def test_a_template_may_be_made_in_each_call():
    def call(self, x, training):
        return tf.make_template("template", lambda x: x * tf.get_variable("w", [3]))(x)

    official, shimmed = both_decorators(call)
    for layer in (official, shimmed):
        for _ in range(2):
            layer(X)
    assert len(official.weights) == 2
    assert list(variables_of(shimmed)) == ["template/w"]


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
        (
            None,
            r"already exists, disallowed.* created at .*test_documented_differences.py:\d+. "
            r"It was asked for at .*.py:\d+",
        ),
        (True, r"does not exist, or was not created.* It was asked for at .*test_documented_differences.py:\d+"),
    ],
    ids=["made_twice", "missing_and_reused"],
)
def test_reuse_is_checked_within_a_call(reuse, message):
    def call(self, x, training):
        with tf.variable_scope("a", reuse=reuse):
            return [tf.get_variable("w", [3]) for _ in range(2)]

    official, shimmed = both_decorators(call, tensorflow.Module)
    first, second = official(X)
    assert first is second
    with pytest.raises(ValueError, match=message):
        shimmed(X)


def test_variables_of_other_constructors_are_found_again():
    def call(self, x, training):
        with tf.variable_scope("a"):
            return x * tensorflow.Variable(tf.random_normal([3]), name="w")

    official, shimmed = both_decorators(call)
    outputs = [layer(X) for layer in (official, shimmed) for _ in range(2)]
    assert official.weights == [] and np.any(outputs[0] != outputs[1])
    np.testing.assert_array_equal(outputs[2], outputs[3])
    assert list(variables_of(shimmed)) == ["a/w"]


def test_a_layer_that_nothing_keeps_is_refused():
    official, shimmed = both_decorators(lambda self, x, training: tf_keras.layers.Dense(2, name="lost")(x))
    official(X)
    assert official.weights == []
    with pytest.raises(ValueError, match=r"made the tf_keras Dense 'lost' at .* and does not keep it.*get_or_create_l"):
        shimmed(X)


def test_collections_are_those_of_the_call():
    def call(self, x, training):
        tf.get_variable("w", [3], regularizer=tf.nn.l2_loss)
        return [
            len(found)
            for found in (tf.global_variables(), tf.trainable_variables(), tf.losses.get_regularization_losses())
        ]

    official, shimmed = both_decorators(call, tensorflow.Module)
    for _ in range(2):
        assert (official(X), shimmed(X)) == ([0, 0, 0], [1, 1, 1])


def test_variables_can_be_partitioned():
    def call(self, x, training):
        return tf.convert_to_tensor(tf.get_variable("w", [4, 2], partitioner=tf.fixed_size_partitioner(2)))

    official, shimmed = both_decorators(call, tensorflow.Module)
    with pytest.raises(ValueError, match="`partitioner` arg for `get_variable` is unsupported"):
        official(X)
    assert shimmed(X).shape == (4, 2) and len(shimmed.variables) == 2


def test_a_weight_that_layer_and_scope_regularize_has_both_losses():
    def call(self, x, training):
        with tf.variable_scope("a", regularizer=tf.nn.l2_loss):
            return tf.layers.dense(x, 2, use_bias=False, kernel_regularizer="l2")

    official, shimmed = both_decorators(call)
    for layer in (official, shimmed):
        layer(X)
    square = np.sum(shimmed.weights[0].numpy() ** 2)
    np.testing.assert_allclose(total(shimmed.losses), (0.5 + 0.01) * square, rtol=1e-5)
    assert len(official.losses) == 1


def test_a_kept_layer_without_regularizers_has_no_loss():
    official, shimmed = (
        kit.owner(lambda self, x, training, kit=kit: kit.shim.get_or_create_layer("m", model_with(kit))(x))
        for kit in (KITS["official"], KITS["tf_keras"])
    )
    for layer in (official, shimmed):
        layer(ONES[None])
    assert (np.array(official.losses).tolist(), shimmed.losses) == ([0.0], [])


def test_weights_move_from_the_official_decorator_by_name(tmp_path):
    """An object-based checkpoint cannot be moved, because other objects hold the variables."""
    official, shimmed = both_decorators(of_get_variable)
    for layer in (official, shimmed):
        layer(ONES)
    for number, variable in enumerate(official.variables):
        variable.assign(tf.fill(variable.shape, float(number)))
    path = tensorflow.train.Checkpoint(official).save(str(tmp_path / "objects"))
    with pytest.raises(AssertionError, match="4 Python objects that were not bound"):
        tensorflow.train.Checkpoint(shimmed).restore(path).assert_consumed()
    detrand.load_tf1_checkpoint(shimmed, detrand.save_tf1_checkpoint(official, tmp_path / "names"))
    np.testing.assert_array_equal(shimmed(ONES), official(ONES))


def test_a_cached_variable_is_read_anew_in_each_call():
    def call(self, x, training):
        return x * tf.get_variable("w", [3], caching_device="/cpu:0")

    owner = KITS["module"].owner(call)
    owner(X)
    owner.variables[0].assign(np.zeros(3))
    assert not np.any(owner(X))


def test_a_function_in_the_method_makes_variables_once_only_with_auto_reuse():
    """TensorFlow traces a function that creates variables twice; the official documentation calls that "not safe"."""

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

    official, shimmed = both_decorators(call)
    for layer in (official, shimmed):
        layer._set_dtype_policy("mixed_float16")
    with pytest.raises((ValueError, tensorflow.errors.InvalidArgumentError), match="float"):
        official(X)
    assert shimmed(X).dtype == tf.float16 and shimmed.weights[0].dtype == tf.float32


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
