"""``examples/contrib.py``, the stand-in for tf.contrib: its functions, and models that use it."""

import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf

from detrand import (
    DeterministicRandomTestTool,
    enable_v1_layers,
    forward_pass,
    track_tf1_style_variables,
    variables_of,
)

FILE = Path(__file__).parent.parent / "examples" / "contrib.py"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def contrib():
    """The stand-in, installed for the tests of this module only."""
    with enable_v1_layers(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("detrand.enable_v1_layers", lambda: None)
        for module in (tensorflow, tf):
            patch.setattr(module, "contrib", None, raising=False)
        before = dict(sys.modules)
        spec = importlib.util.spec_from_file_location("contrib", FILE)
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "contrib", module)
        spec.loader.exec_module(module)
        yield module
        for name in sys.modules.keys() - before.keys():
            if name.startswith("tensorflow.contrib"):
                del sys.modules[name]


def run(make):
    """Return the arrays that a program computes in a session, and the values of its variables by name."""
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope(), tf.Graph().as_default(), tf.Session() as session:
        outputs = make()
        session.run(tf.global_variables_initializer())
        return session.run([outputs, {variable.op.name: variable for variable in tf.global_variables()}])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)


RNG = np.random.default_rng(0)
SEQUENCE = RNG.normal(size=(3, 5, 4)).astype(np.float32)  # batch, time, features


@pytest.mark.parametrize("layer_norm", [True, False])
def test_the_lstm_cell_with_layer_normalization_computes_its_formula(contrib, layer_norm):
    h, c = RNG.normal(size=(2, 3, 6)).astype(np.float32)
    cell = {}

    def program():
        cell["made"] = contrib.rnn.LayerNormBasicLSTMCell(6, layer_norm=layer_norm, norm_gain=1.5, norm_shift=0.25)
        return cell["made"](tf.constant(SEQUENCE[:, 0]), tf.nn.rnn_cell.LSTMStateTuple(tf.constant(c), tf.constant(h)))

    (output, state), variables = run(program)
    names = {name.removeprefix("layer_norm_basic_lstm_cell/") for name in variables}
    norms = {
        f"{gate}/{part}" for gate in ("input", "transform", "forget", "output", "state") for part in ("gamma", "beta")
    }
    assert names == ({"kernel", *norms} if layer_norm else {"kernel", "bias"})
    norm = (lambda x: normalized(x) * 1.5 + 0.25) if layer_norm else (lambda x: x)
    kernel = variables["layer_norm_basic_lstm_cell/kernel"]
    bias = 0 if layer_norm else variables["layer_norm_basic_lstm_cell/bias"]
    i, j, f, o = map(norm, np.split(np.concatenate([SEQUENCE[:, 0], h], 1).astype(np.float64) @ kernel + bias, 4, 1))
    expected = norm(c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j))
    np.testing.assert_allclose(state.c, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output, np.tanh(expected) * sigmoid(o), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output, state.h)


LOGITS = RNG.normal(size=(3, 5, 7)).astype(np.float32)
TARGETS = RNG.integers(0, 7, (3, 5)).astype(np.int32)
WEIGHTS = (np.arange(5) < [[5], [2], [4]]).astype(np.float32)
CROSS_ENTROPY = np.log(np.exp(LOGITS).sum(-1)) - np.take_along_axis(LOGITS, TARGETS[..., None], -1)[..., 0]


@pytest.mark.parametrize(("timesteps", "batch"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_sequence_loss_computes_its_formula(contrib, timesteps, batch):
    loss, _ = run(
        lambda: contrib.seq2seq.sequence_loss(
            *map(tf.constant, (LOGITS, TARGETS, WEIGHTS)),
            average_across_timesteps=timesteps,
            average_across_batch=batch,
        )
    )
    axis = tuple(axis for axis, averaged in ((0, batch), (1, timesteps)) if averaged)
    weighted = CROSS_ENTROPY * WEIGHTS
    expected = weighted.sum(axis) / WEIGHTS.sum(axis) if axis else weighted
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("timesteps", [True, False])
def test_the_legacy_sequence_losses_compute_their_formula(contrib, timesteps):
    def losses():
        steps = [tf.unstack(tf.constant(array), axis=1) for array in (LOGITS, TARGETS, WEIGHTS)]
        legacy = contrib.legacy_seq2seq
        return (
            legacy.sequence_loss_by_example(*steps, average_across_timesteps=timesteps),
            legacy.sequence_loss(*steps, average_across_timesteps=timesteps),
            legacy.sequence_loss(*steps, average_across_timesteps=timesteps, average_across_batch=False),
        )

    (by_example, mean, total), _ = run(losses)
    expected = (CROSS_ENTROPY * WEIGHTS).sum(1) / (WEIGHTS.sum(1) if timesteps else 1)
    np.testing.assert_allclose(by_example, expected, rtol=1e-6)
    np.testing.assert_allclose([mean, total], [expected.sum() / 3, expected.sum()], rtol=1e-6)


def test_the_decoder_computes_what_a_static_rnn_computes(contrib):
    def program(decode):
        cell = contrib.rnn.GRUCell(4)
        inputs = tf.unstack(tf.constant(SEQUENCE), axis=1)
        return decode(inputs, cell.zero_state(3, tf.float32), cell)

    decoded, variables = run(lambda: program(lambda *given: contrib.legacy_seq2seq.rnn_decoder(*given, scope="rnn")))
    expected, expected_variables = run(lambda: program(lambda x, state, cell: tf.nn.static_rnn(cell, x, state)))
    assert list(variables) == list(expected_variables)
    np.testing.assert_array_equal(decoded[0], expected[0])
    looped, _ = run(
        lambda: program(
            lambda *given: contrib.legacy_seq2seq.rnn_decoder(
                *given, loop_function=lambda last, i: last * i, scope="rnn"
            )
        )
    )
    np.testing.assert_array_equal(looped[0][0], expected[0][0])
    assert not np.allclose(looped[0][1], expected[0][1])


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_stack_of_bidirectional_networks_is_one_on_top_of_the_other(contrib, dynamic):
    def cells():
        return [contrib.rnn.BasicLSTMCell(units) for units in (3, 2)]

    def stacked():
        if dynamic:
            return contrib.rnn.stack_bidirectional_dynamic_rnn(
                cells(), cells(), tf.constant(SEQUENCE), dtype=tf.float32
            )
        inputs = tf.unstack(tf.constant(SEQUENCE), axis=1)
        return contrib.rnn.stack_bidirectional_rnn(cells(), cells(), inputs, dtype=tf.float32)

    def by_hand():
        states, inputs = [], tf.constant(SEQUENCE)
        for layer, (fw, bw) in enumerate(zip(cells(), cells(), strict=True)):
            with tf.variable_scope(f"stack_bidirectional_rnn/cell_{layer}"):
                outputs, last = tf.nn.bidirectional_dynamic_rnn(fw, bw, inputs, dtype=tf.float32)
                inputs = tf.concat(outputs, 2)
                states.append(last)
        return inputs, *map(tuple, zip(*states, strict=True))

    (outputs, *states), variables = run(stacked)
    (expected, *expected_states), expected_variables = run(by_hand)
    assert list(variables) == list(expected_variables)
    for name, value in variables.items():
        np.testing.assert_array_equal(value.shape, expected_variables[name].shape)
    outputs = outputs if dynamic else np.stack(outputs, 1)
    for found, wanted in zip(
        tf.nest.flatten([outputs, states]), tf.nest.flatten([expected, expected_states]), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if dynamic else 1e-5)


def test_an_embedded_sequence_holds_rows_of_the_embeddings(contrib):
    embedded, variables = run(lambda: contrib.layers.embed_sequence(tf.constant(TARGETS), 7, 4))
    np.testing.assert_array_equal(embedded, variables["EmbedSequence/embeddings"][TARGETS])


def test_hyperparameters_keep_their_types(contrib):
    hparams = contrib.training.HParams(rate=0.1, units=3, sizes=(1, 2), bias=True, name="relu", unset=None)
    hparams.parse("rate=1, units=4,sizes=[5, 6,7],bias=false,name=tanh")
    assert hparams.values() == {
        "rate": 1.0,
        "units": 4,
        "sizes": [5, 6, 7],
        "bias": False,
        "name": "tanh",
        "unset": None,
    }
    assert type(hparams.rate) is float and type(hparams.units) is int
    assert hparams.override_from_dict({"units": 9}).units == 9 and "units" in hparams
    assert hparams.get("absent", 5) == 5 and hparams.get("units") == 9
    assert contrib.training.HParams(a=1, b="x").to_json() == '{"a": 1, "b": "x"}'
    hparams.del_hparam("units")
    assert "units" not in hparams
    for faulty in ("units=1", "rate=many", "sizes=[1.5]", "rate"):
        with pytest.raises((KeyError, ValueError)):
            hparams.parse(faulty)
    with pytest.raises(ValueError, match="reserved"):
        hparams.add_hparam("rate", 1)


def test_every_name_of_the_stand_in_that_models_use_is_there(contrib):
    used = {
        "layers": "conv2d fully_connected batch_norm layer_norm flatten max_pool2d avg_pool2d dropout "
        "xavier_initializer variance_scaling_initializer l2_regularizer apply_regularization embed_sequence "
        "optimize_loss convolution2d separable_conv2d conv2d_transpose xavier_initializer_conv2d "
        "l1_regularizer instance_norm one_hot_encoding",
        "rnn": "BasicLSTMCell LSTMCell GRUCell BasicRNNCell MultiRNNCell DropoutWrapper ResidualWrapper RNNCell "
        "LSTMStateTuple static_rnn static_bidirectional_rnn stack_bidirectional_dynamic_rnn LayerNormBasicLSTMCell",
        "framework": "arg_scope add_arg_scope get_or_create_global_step get_global_step nest get_variables "
        "model_variable assign_from_checkpoint_fn list_variables load_variable",
        "slim": "conv2d fully_connected arg_scope batch_norm softmax losses max_pool2d",
        "training": "HParams",
        "seq2seq": "sequence_loss",
    }
    for module, names in used.items():
        for name in names.split():
            assert callable(getattr(getattr(contrib, module), name)) or name in ("nest", "losses"), name
    assert contrib.framework.nest.is_sequence([1]) and contrib.framework.nest.flatten([[1], 2]) == [1, 2]


def test_a_name_that_the_stand_in_lacks_is_an_error_that_names_it(contrib):
    with pytest.raises(AttributeError, match=r"the stand-in for tf.contrib.layers has no 'bow_encoder'"):
        _ = contrib.layers.bow_encoder
    with pytest.raises(AttributeError, match=r"the stand-in for tf.contrib has no 'lite'"):
        _ = contrib.lite


MODEL = """
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib import rnn
from tensorflow.contrib.layers import fully_connected, l2_regularizer
from tensorflow.contrib.framework import arg_scope

layers = tf.contrib.layers

class Model:
    def __init__(self, training):
        self.images = tf.placeholder(tf.float32, [None, 8, 8, 2], name="images")
        with arg_scope([layers.conv2d, fully_connected], weights_regularizer=l2_regularizer(0.01)):
            with slim.arg_scope([layers.batch_norm], is_training=training, updates_collections=None):
                net = layers.conv2d(self.images, 4, 3, weights_initializer=layers.xavier_initializer())
                net = layers.max_pool2d(layers.batch_norm(net, scale=True), 2)
                net = tf.reshape(net, [-1, 4, 16])
                cell = rnn.DropoutWrapper(rnn.BasicLSTMCell(5), output_keep_prob=0.5 if training else 1.0)
                stacked = rnn.MultiRNNCell([cell, rnn.LayerNormBasicLSTMCell(3)])
                net, self.state = tf.nn.dynamic_rnn(stacked, net, dtype=tf.float32)
                net = layers.dropout(layers.layer_norm(net), 0.7, is_training=training)
                self.logits = fully_connected(layers.flatten(net), 2, activation_fn=None)
        self.loss = tf.reduce_sum(self.logits)
        step = tf.contrib.framework.get_or_create_global_step()
        self.train = layers.optimize_loss(self.loss, step, 0.1, "Adam", summaries=[])
"""


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("training", [True, False])
def test_a_model_of_2017_computes_in_a_layer_what_it_computes_in_a_session(training, contrib, tmp_path, monkeypatch):
    (tmp_path / "model_of_2017.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    with contrib.tensorflow_1():
        import model_of_2017
    assert sys.modules["tensorflow"] is tensorflow

    def tf1(images, training):
        with forward_pass({"images": images}):
            model = model_of_2017.Model(training)
        return model.logits, model.state

    class Port(keras.layers.Layer):
        @tensorflow.function
        @track_tf1_style_variables
        def call(self, images, training=False):
            return tf1(images, training)

    images = RNG.random((2, 8, 8, 2), np.float32)
    expected, variables = run(lambda: tf1(tf.constant(images), training))
    layer = Port()
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        found = layer(images, training=training)
    for one, other in zip(tensorflow.nest.flatten(found), tensorflow.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert variables_of(layer).keys() == variables.keys()
