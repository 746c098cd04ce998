"""TF1 models in a decorated method: they compute what their graph computes in a session."""

import functools

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

from detrand import (
    DeterministicRandomTestTool,
    track_tf1_style_variables,
)
from tests.support.tf1_models import MODELS
from tests.support.tf1_referee import (
    MODES,
    TF1_WARNINGS,
    WAYS,
    assert_same,
    module_of,
    run_in_method,
    run_in_session,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
    tf_keras_layer_of,
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


@functools.cache
def model_in_session(name, mode):
    return run_in_session(MODELS[name], mode)


@pytest.mark.slow_except(
    "*-num_random_ops-function", "static_lstm_with_dropout-constant-eager", "named_convnet-constant-eager"
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_a_tf1_model_in_a_keras_3_layer_computes_what_its_session_does(name, mode, way):
    _, found = run_in_method(MODELS[name], mode, way)
    assert_same(found, model_in_session(name, mode))


@pytest.mark.slow_except("*-function", "named_convnet-eager")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["named_convnet", "unnamed_convnet", "highway_network", "shared_templates"])
def test_a_tf1_model_in_a_tf_keras_layer_computes_what_its_session_does(name, way):
    _, found = run_in_method(MODELS[name], "num_random_ops", way, tf_keras_layer_of)
    assert_same(found, model_in_session(name, "num_random_ops"))


@pytest.mark.slow_except("*-function", "word2vec-eager")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["static_lstm_with_dropout", "word2vec", "averaged_weights", "partitioned_embedding"])
def test_a_tf1_model_in_a_module_computes_what_its_session_does(name, way):
    _, found = run_in_method(MODELS[name], "num_random_ops", way, module_of)
    assert_same(found, model_in_session(name, "num_random_ops"), keeps_losses=False)


@pytest.mark.slow_except("*-keras_3", "named_convnet-tf_keras")
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
@pytest.mark.parametrize("name", MODELS)
def test_a_tf1_model_called_on_symbolic_inputs_first_has_its_sessions_variables(name, kit):
    program = MODELS[name].program

    class ProgramLayer(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=True):
            return [leaf for leaf in tensorflow.nest.flatten(program(*inputs, training=training)) if leaf is not None]

    layer = ProgramLayer()
    arrays = MODELS[name].inputs
    with DeterministicRandomTestTool().scope():
        inputs = [kit.Input(batch_shape=array.shape, dtype=array.dtype.name) for array in arrays]
        model = kit.Model(inputs, layer(inputs))
    expected = model_in_session(name, "constant")
    values = store_variables(layer)
    assert list(values) == [name for name, *_ in expected.variables]
    assert len(model.weights) == len(values) and len(model.losses) == len(expected.losses)
    for (tf1_name, _, _, trainable), value in zip(expected.variables, expected.values, strict=True):
        if trainable:  # the session's update ops change the other variables
            np.testing.assert_array_equal(values[tf1_name], value, err_msg=tf1_name)
    with DeterministicRandomTestTool().scope():
        outputs = model([tensorflow.constant(array) for array in arrays], training=True)
    outputs, expected_outputs = tensorflow.nest.flatten(outputs), tensorflow.nest.flatten(expected.outputs)
    for output, expected_output in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_array_equal(output, expected_output)
