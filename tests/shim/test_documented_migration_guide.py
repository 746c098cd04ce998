"""The steps of TensorFlow's migration guide, and distribution strategies, for both decorators."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow
from tf_keras.src.legacy_tf_layers import variable_scope_shim as official

from detrand import (
    DeterministicRandomTestTool,
)
from tests.support.shim_kits import KITS, by_name, every_kit, total
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


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
        # The official decorator counts the losses of layers in attributes twice.
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
    """Run in a process of its own, which has two devices."""
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


@pytest.mark.slow
def test_a_strategy_runs_a_method_eagerly():
    command = [sys.executable, "-c", textwrap.dedent(EAGER_STRATEGY)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
