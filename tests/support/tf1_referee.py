"""The referee of the shim's tests: it runs a TF1 program in a session, and the same program in a decorated method."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

from detrand import (
    DeterministicRandomTestTool,
    VariableSpec,
    enable_v1_layers,
    track_tf1_style_variables,
    variables_of,
)
from detrand.variables.sources import tf1_style_variables

tf = tensorflow.compat.v1
MODES = ("constant", "num_random_ops")
WAYS = {"eager": lambda function: function, "function": tensorflow.function}
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)

TF1_WARNINGS = [
    # What TF1 code calls is deprecated, and here to be called.
    pytest.mark.filterwarnings(r"ignore:`tf\.(layers|nn\.rnn_cell)\..*` is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:`layer.updates` will be removed:UserWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def tf1_graphs_as_they_are():
    """v1 layers, and graphs that run as they are written: graph rewriting changes the last digit of a result."""
    options = tensorflow.config.optimizer.get_experimental_options()
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with enable_v1_layers():
        yield
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


# --- The referee: a graph and a session ---------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a program and of its update ops."""

    variables: list[tuple[str, tuple[int, ...], str, bool]]  # name, shape, dtype, trainable
    specs: dict[str, VariableSpec]  # as `variables_of` sees them
    values: list[np.ndarray]
    outputs: Any
    losses: list[np.ndarray]


def as_arrays(structure):
    return tensorflow.nest.map_structure(as_array, structure)


def as_array(leaf):
    array = np.array(leaf.numpy() if isinstance(leaf, tensorflow.Variable) else leaf)
    return array.astype(str) if array.dtype.kind in "OS" else array  # a function returns a name as a tensor of bytes


def run_in_session(model, mode, training=True):
    """Build a program in a graph, and runs it and its update ops once in a session."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tensorflow.Graph().as_default(), tf.Session(config=config) as session:
        outputs = model.program(*map(tensorflow.constant, model.inputs), training=training)
        variables = [*tf.global_variables(), *tf.local_variables()]
        session.run([variable.initializer for variable in variables])
        leaves = tensorflow.nest.flatten(outputs)
        tensors = {i: leaf for i, leaf in enumerate(leaves) if tensorflow.is_tensor(leaf)}
        tensors, losses, _ = session.run(
            [tensors, tf.losses.get_regularization_losses(), tf.get_collection(tf.GraphKeys.UPDATE_OPS)]
        )
        leaves = [tensors.get(i, leaf) for i, leaf in enumerate(leaves)]
        outputs = as_arrays(tensorflow.nest.pack_sequence_as(outputs, leaves))
        described = [(v.op.name, tuple(v.shape), v.dtype.base_dtype.name, v.trainable) for v in variables]
        return Outcome(described, variables_of(session.graph), session.run(variables), outputs, losses)


# --- The same program in a method ---------------------------------------------------------------------------


def store_variables(owner):
    """Return the variables that TF1 code has created in an object's methods, by their TF1 names."""
    return dict(tf1_style_variables(owner).variables)


def layer_of(program):
    class ProgramLayer(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, *inputs, training=None):
            return program(*inputs, training=training)

    return ProgramLayer()


def tf_keras_layer_of(program):
    class ProgramLayer(tf_keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=None):
            return program(*inputs, training=training)

    layer = ProgramLayer()
    layer.run = lambda *inputs, training: layer(inputs, training=training)
    return layer


def module_of(program):
    class ProgramModule(tensorflow.Module):
        @track_tf1_style_variables
        def run(self, *inputs, training):
            return program(*inputs, training=training)

    return ProgramModule()


def run_in_method(model, mode, way, make=layer_of, training=True):
    """Run a program twice in a method of an object, and return the object and the outcome of the first run."""
    owner = make(model.program)
    call = getattr(owner, "run", owner)
    run = WAYS[way](lambda *inputs: call(*inputs, training=training))
    inputs = [tensorflow.constant(array) for array in model.inputs]
    with DeterministicRandomTestTool(mode=mode).scope():
        outputs = as_arrays(run(*inputs))
    variables = store_variables(owner)
    described = [(name, tuple(v.shape), v.dtype.name, v.trainable) for name, v in variables.items()]
    values = [variable.numpy() for variable in variables.values()]
    losses = as_arrays([*getattr(owner, "losses", [])])
    outcome = Outcome(described, variables_of(owner), values, outputs, losses)

    again = as_arrays(run(*inputs))
    assert all(now is then for now, then in zip(store_variables(owner).values(), variables.values(), strict=True))
    weights = owner.variables if isinstance(owner, tensorflow.Module) else owner.weights
    assert len(weights) == len(variables)
    assert len(getattr(owner, "losses", [])) == len(losses)
    tensorflow.nest.map_structure(assert_same_text, again, outputs)
    return owner, outcome


def assert_same_text(again, first):
    assert first.dtype.kind != "U" or again == first


def assert_same(found, expected, keeps_losses=True):
    """Hold the outcome of a method against that of a session: names and bits."""
    assert sorted(found.variables) == sorted(expected.variables)
    local = {name for name, *_ in expected.variables} - expected.specs.keys()  # which a Saver leaves out
    assert {name: spec for name, spec in found.specs.items() if name not in local} == expected.specs
    values = dict(zip([name for name, *_ in found.variables], found.values, strict=True))
    for (name, *_), value in zip(expected.variables, expected.values, strict=True):
        if "moving_" in name:  # Keras computes them in a fused op with eager execution, else in an op of their own
            np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-8, err_msg=name)
        else:
            np.testing.assert_array_equal(values[name], value, err_msg=name)
    tensorflow.nest.assert_same_structure(found.outputs, expected.outputs)
    for i, (output, expected_output) in enumerate(
        zip(tensorflow.nest.flatten(found.outputs), tensorflow.nest.flatten(expected.outputs), strict=True)
    ):
        np.testing.assert_array_equal(output, expected_output, err_msg=f"output {i}")
    if keeps_losses:
        np.testing.assert_array_equal(found.losses, expected.losses)
