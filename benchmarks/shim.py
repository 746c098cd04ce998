"""The cost of the shim: the same TF1 code under TensorFlow's official shim, for tf_keras layers, and under detrand's.

Eager calls are compared with calls in the official shim, where v1 layers also need `detrand.enable_v1_layers`. A traced
``tf.function`` runs no Python code, so it is compared with the graph of the TF1 code without any shim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
import tf_keras

import detrand
from benchmarks.cases import Case, Group, Workload

v1 = tf.compat.v1
_Program = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class _Network:
    """TF1 code.

    Attributes:
      name: its name on the command line.
      program: the code.
      shape: shape of its inputs.
    """

    name: str
    program: _Program
    shape: tuple[int, ...]


def _get_variable(hidden: tf.Tensor) -> tf.Tensor:
    for index in range(10):
        with v1.variable_scope(f"layer_{index}"):
            weights = v1.get_variable("weights", (hidden.shape[-1], 16))
            bias = v1.get_variable("bias", (16,), initializer=v1.zeros_initializer())
            hidden = tf.nn.relu(tf.matmul(hidden, weights) + bias)
    return hidden


def _v1_layers(images: tf.Tensor) -> tf.Tensor:
    hidden = images
    for index in range(2):
        hidden = v1.layers.conv2d(hidden, 8, 3, padding="same", name=f"conv_{index}")
        hidden = tf.nn.relu(v1.layers.batch_normalization(hidden, training=True, name=f"norm_{index}"))
    hidden = v1.layers.flatten(hidden, name="flat")
    for index in range(4):
        hidden = v1.layers.dense(hidden, 16, name=f"dense_{index}")
    return hidden


def _resnet_v2(images: tf.Tensor) -> tf.Tensor:
    import tf_slim
    from tf_slim.nets import resnet_v2

    blocks = [resnet_v2.resnet_v2_block(f"block{index}", base_depth=8, num_units=1, stride=2) for index in (1, 2)]
    with tf_slim.arg_scope(resnet_v2.resnet_arg_scope()):
        return resnet_v2.resnet_v2(images, blocks, num_classes=10, is_training=True, scope="resnet")[0]


_NETWORKS = (
    _Network("get_variable", _get_variable, (4, 16)),
    _Network("v1_layers", _v1_layers, (4, 8, 8, 3)),
    _Network("resnet_v2", _resnet_v2, (1, 33, 33, 3)),
)


def _first_calls(network: _Network) -> list[Case]:
    inputs = tf.ones(network.shape)

    def first(name: str, port: type) -> Case:
        layers: list[_Program] = []

        @contextlib.contextmanager
        def with_new_layers() -> Iterator[None]:
            with detrand.enable_v1_layers():
                layers[:] = (
                    port(),
                    port(),
                )  # for the warm-up and for the timed call, which constructs no layer
                yield

        return Case(name, lambda: layers.pop()(inputs), with_new_layers)

    return [first(*named) for named in _ports(network.program).items()]


def _later_calls(network: _Network) -> list[Case]:
    inputs = tf.ones(network.shape)

    def later(name: str, layer: _Program) -> Case:
        layer(inputs)
        return Case(name, lambda: layer(inputs), detrand.enable_v1_layers)

    return [later(name, port()) for name, port in _ports(network.program).items()]


def _calls_of_function(network: _Network) -> list[Case]:
    inputs = tf.ones(network.shape)

    def traced(name: str, program: _Program) -> Case:
        @tf.function
        def function(inputs: tf.Tensor) -> tf.Tensor:
            return program(inputs)

        function(inputs)  # creates the variables
        graph = function.get_concrete_function(inputs).graph
        return Case(name, lambda: function(inputs), detrand.enable_v1_layers, graph)

    layers = {name: port() for name, port in _ports(network.program).items()}
    return [traced("no shim", _without_shim(network.program, inputs)), *(traced(*named) for named in layers.items())]


def _ports(program: _Program) -> dict[str, type]:
    """Return a layer class with the TF1 code in its call for each shim, the official shim first."""
    # Without TF_USE_LEGACY_KERAS, it has no public name, but it works.
    from tf_keras.src.legacy_tf_layers.variable_scope_shim import track_tf1_style_variables as official

    def port(shim: Callable[..., Any], base: Any) -> type:
        class Port(base):
            @shim
            def call(self, inputs: tf.Tensor) -> tf.Tensor:
                return program(inputs)

        return Port

    return {
        "official, tf_keras layer": port(official, tf_keras.layers.Layer),
        "detrand, tf_keras layer": port(detrand.track_tf1_style_variables, tf_keras.layers.Layer),
        "detrand, Keras 3 layer": port(detrand.track_tf1_style_variables, keras.layers.Layer),
    }


def _without_shim(program: _Program, inputs: tf.Tensor) -> _Program:
    """Return the TF1 code with existing variables, which a custom getter returns by name."""
    with tf.Graph().as_default() as graph:
        program(v1.placeholder(inputs.dtype, inputs.shape))
    variables = {
        name: tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=spec.trainable)
        for name, spec in detrand.variables_of(graph).items()
    }

    def with_variables(inputs: tf.Tensor) -> tf.Tensor:
        with v1.variable_scope("", custom_getter=lambda getter, name, *args, **kwargs: variables[name]):
            return program(inputs)

    return with_variables


def _workload(
    group: str, network: _Network, cases: Callable[[_Network], list[Case]], calls: int | None = None
) -> Workload:
    def built() -> list[Case]:
        with detrand.enable_v1_layers():
            return cases(network)

    return Workload(f"{group}/{network.name}", built, calls)


GROUPS = (
    Group(
        "shim/first_call",
        "TF1 code in a layer, first call",
        "The programs are ten layers of ``get_variable``, eight ``tf.compat.v1.layers``, and tf_slim's ResNet v2 with "
        "two narrow blocks.",
        tuple(_workload("shim/first_call", network, _first_calls, calls=1) for network in _NETWORKS),
    ),
    Group(
        "shim/later_call",
        "TF1 code in a layer, later call",
        "The same programs are called again.",
        tuple(_workload("shim/later_call", network, _later_calls) for network in _NETWORKS),
    ),
    Group(
        "shim/tf.function",
        "TF1 code in a layer, ``tf.function``",
        "The same programs in a function that was traced before. Without a shim, a custom getter returns the "
        "variables.",
        tuple(_workload("shim/tf.function", network, _calls_of_function) for network in _NETWORKS),
    ),
)
