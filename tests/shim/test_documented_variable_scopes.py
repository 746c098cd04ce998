"""Variable scopes and name scopes in a decorated method, as TensorFlow's own tests of its decorator have them."""

import numpy as np
import pytest
import tensorflow

from tests.support.shim_kits import OURS, by_name, every_kit, halved
from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    TF1_WARNINGS,
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
pytestmark = TF1_WARNINGS


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
