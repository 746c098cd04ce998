"""Layers in the TF1 code of a method: the scopes and names of layers that it calls, and layers that it makes."""

import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    VariableScopeLayer,
    get_or_create_layer,
    track_tf1_style_variables,
    variables_of,
)
from detrand.errors import ScopeError
from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    layer_of,
    module_of,
    run_in_session,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
KITS = {"keras_3": keras, "tf_keras": tf_keras}


# --- Layers that are called ---------------------------------------------------------------------------------


def nested(kit, outer_program, *inner_programs):
    """Return a layer whose program gets one layer for each inner program."""

    def layer_class(program):
        class Nested(kit.layers.Layer):
            def __init__(self, *inner):
                super().__init__()
                self.inner = list(inner)

            @track_tf1_style_variables
            def call(self, x):
                return program(x, *self.inner)

        return Nested

    return layer_class(outer_program)(*(layer_class(program)() for program in inner_programs))


def hidden(x):
    with tf.variable_scope(None, "block"):
        x = tf.layers.dense(x, 3)
    return tf.layers.dense(x, 4) * tf.Variable(tf.ones([4]))


def head(x):
    return tf.layers.dense(x, 3) + tf.get_variable("bias", [3]) + tf.Variable(tf.zeros([3]))


def network(x, hidden, head):
    with tf.variable_scope("net", initializer=tf.ones_initializer(), regularizer=tf.nn.l2_loss):
        x = tf.layers.dense(hidden(x), 4)
        with tf.variable_scope(None, "block"):
            x = head(x)
    return tf.layers.dense(x, 2) * tf.Variable(tf.ones([2]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_layers_in_a_layer_have_the_names_and_scopes_of_one_graph(kit, way):
    expected = run_in_session(TF1Model(lambda x, training: network(x, hidden, head), (X,)), "num_random_ops")
    layer = nested(kit, network, hidden, head)
    call = WAYS[way](layer)
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        outputs = call(tensorflow.constant(X))
    assert variables_of(layer) == expected.specs
    np.testing.assert_array_equal(outputs, expected.outputs)
    # A layer adds up the losses of the layers in it after its own.
    np.testing.assert_array_equal(sorted(map(float, layer.losses)), sorted(map(float, expected.losses)))
    np.testing.assert_array_equal(call(tensorflow.constant(X)), expected.outputs)
    assert len(layer.weights) == len(expected.variables) and variables_of(layer) == expected.specs


def test_a_layer_that_is_called_twice_has_one_set_of_weights():
    def twice(x, inner):
        with tf.variable_scope("net"):
            x = inner(inner(x))
        return tf.layers.dense(x, 3)

    layer = nested(keras, twice, lambda x: tf.layers.dense(x, 3))
    np.testing.assert_array_equal(layer(X), layer(X))
    assert list(variables_of(layer)) == [
        f"{name}/{part}" for name in ("dense", "net/dense") for part in ("kernel", "bias")
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_scope_around_the_call_is_that_of_the_variables(way):
    layer = layer_of(lambda x, training: x * tf.get_variable("w", [3]))
    with tf.variable_scope("around", initializer=tf.ones_initializer()):
        first = WAYS[way](layer)(X)
    np.testing.assert_array_equal(first, X)
    assert list(variables_of(layer)) == ["around/w"]
    np.testing.assert_array_equal(layer(X), X)
    assert list(variables_of(layer)) == ["around/w"]


def test_a_call_that_failed_leaves_no_scope_behind():
    class Fails(keras.layers.Layer):
        fails = True

        @track_tf1_style_variables
        def call(self, x):
            assert not self.fails
            return x * tf.get_variable("w", [3])

    layer = Fails()
    with tf.variable_scope("around"), pytest.raises(AssertionError):
        layer(X)
    layer.fails = False
    layer(X)
    assert list(variables_of(layer)) == ["w"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_inner_layers_are_kept_by_scope_and_name(kit, way):
    class Outer(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            for scope in "aab":
                with tf.variable_scope(scope):
                    x = get_or_create_layer("dense", lambda: kit.layers.Dense(3))(x)
            return x

    layer = Outer()
    WAYS[way](layer)(X)
    assert len(layer.weights) == 4


def test_a_forward_pass_may_come_from_another_class():
    class Mixin:
        def forward_pass(self, x):
            return x * tf.get_variable("w", [3])

    class Mixed(Mixin, VariableScopeLayer):
        pass

    layer = Mixed()
    np.testing.assert_array_equal(layer(X), layer(X))
    assert list(variables_of(layer)) == ["w"]


def test_a_call_without_a_forward_pass_is_kept():
    class Doubling(VariableScopeLayer):
        def call(self, x):
            return 2 * x

    np.testing.assert_array_equal(Doubling()(X), 2 * X)


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_build_and_the_constructor_can_hold_tf1_code(kit):
    class Port(kit.layers.Layer):
        @track_tf1_style_variables
        def __init__(self):
            super().__init__()
            self.step = tf.get_variable("step", [], trainable=False)

        @track_tf1_style_variables
        def build(self, input_shape):
            self.w = tf.get_variable("w", [input_shape[-1]], regularizer=tf.nn.l2_loss)
            self.built = True

        def call(self, x):
            return x * self.w * self.step

    layer = Port()
    np.testing.assert_array_equal(layer(X), layer(X))
    assert sorted(variables_of(layer)) == ["step", "w"] and len(layer.weights) == 2 and len(layer.losses) == 1


# --- Layers that are made -----------------------------------------------------------------------------------


def owners(kit_or_module, method):
    base = tensorflow.Module if kit_or_module is None else kit_or_module.layers.Layer
    return type("Port", (base,), {"call": track_tf1_style_variables(method)})()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inner", KITS.values(), ids=KITS)
@pytest.mark.parametrize("outer", [*KITS.values(), None], ids=[*KITS, "module"])
def test_a_layer_that_nothing_keeps_is_refused(outer, inner, way):
    def call(self, x):
        return inner.layers.Dense(3, name="lost")(x)

    owner = owners(outer, call)
    with pytest.raises(
        ArgumentError,
        match=rf"call made the {inner.__name__} Dense 'lost' at .*test_layers\.py:\d+ and does not keep it"
        r".*get_or_create_layer\('lost', lambda: Dense\(\.\.\.\)\)",
    ):
        WAYS[way](owner.call)(tensorflow.constant(X))


def test_of_a_lost_model_the_model_is_named():
    def call(self, x):
        return keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)], name="lost")(x)

    with pytest.raises(ArgumentError, match="made the keras Sequential 'lost'"):
        owners(keras, call)(X)


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_a_layer_that_a_later_call_makes_is_refused_when_it_is_made_again(kit):
    class Port(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return kit.layers.Dense(3, name="lost")(x) if training else x

    port = Port()
    port(X), port(X), port(X, training=True)
    with pytest.raises(ArgumentError, match="Dense 'lost'"):
        port(X, training=True)


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_layers_that_are_kept_or_have_no_weights_pass(kit):
    elsewhere = kit.layers.Dense(3)

    def call(self, x):
        dense = get_or_create_layer("dense", lambda: kit.Sequential([kit.layers.Dense(3)]))
        x = kit.layers.Flatten()(kit.layers.ReLU()(dense(x)))
        return elsewhere(tf.layers.dense(x, 3)) * tf.get_variable("w", [3])

    layer = owners(kit, call)
    np.testing.assert_array_equal(layer(X), layer(X))
    assert len(layer.weights) == 5


def test_a_module_keeps_keras_layers_in_its_attributes():
    def call(self, x):
        if not hasattr(self, "layers"):
            self.layers = {"first": keras.layers.Dense(3), "second": tf_keras.layers.Dense(3)}
        return self.layers["second"](self.layers["first"](x))

    module = owners(None, call)
    module.call(tensorflow.constant(X))
    assert [type(layer) for layer in module.layers.values()] == [keras.layers.Dense, tf_keras.layers.Dense]


# --- Where methods run --------------------------------------------------------------------------------------


def test_a_thread_of_the_method_is_told_to_ask_elsewhere():
    errors = []

    def program(x, training):
        graph = tf.get_default_graph()

        def ask():
            try:
                with graph.as_default():
                    tf.get_variable("w", [3])
            except ScopeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return x

    module_of(program).run(X, training=True)
    assert "variable 'w' was asked for in a thread" in errors[0]


REPLICAS = """
import sys
import keras, numpy, tensorflow, tf_keras
from detrand import track_tf1_style_variables
cpu = tensorflow.config.list_physical_devices("CPU")[0]
tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
tf = tensorflow.compat.v1
for base in tensorflow.Module, tf_keras.layers.Layer, keras.layers.Layer:
    class Port(base):
        @track_tf1_style_variables
        def call(self, x):
            return x * tf.get_variable("w", [3], initializer=tf.ones_initializer())
    strategy = tensorflow.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        port = Port()
    def run(x):
        return strategy.run(port.call, args=(x,))
    for way in run, tensorflow.function(run):
        results = strategy.experimental_local_results(way(tensorflow.ones([2, 3])))
        numpy.testing.assert_array_equal(results, numpy.ones([2, 2, 3]))
    assert len(port.variables) == 1, port.variables
print("replicas agree")
"""


@pytest.mark.slow
def test_a_method_runs_on_each_replica_of_a_strategy():
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True, check=False)
    assert done.stdout == "replicas agree\n", done.stderr[-3000:]
