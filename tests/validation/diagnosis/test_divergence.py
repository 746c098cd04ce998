"""The first divergence: faults are found at their ops and lines; sound ports do not diverge."""

import functools
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, track_tf1_style_variables, validate
from detrand.validation.diagnosis.divergence import confirmation
from detrand.validation.diagnosis.matching.tensors import RTOLS, _are_equal, match
from detrand.validation.frameworks.traces import Trace, TracedOp, Value
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.runner import Runner
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(2, 7, 7, 3)).astype(np.float32)
INFERENCE = RunConfig(training=False, mode="num_random_ops")
TRAINING = RunConfig(training=True, mode="num_random_ops")


def network(
    images,
    training,
    *,
    activation=tf.nn.relu,
    padding="SAME",
    epsilon=1e-3,
    initializer=None,
    rate=0.5,
    axes=(1, 2),
    factor=2.0,
    bias=True,
):
    kernel = v1.get_variable("conv/kernel", (3, 3, 3, 4), initializer=initializer)
    hidden = tf.nn.conv2d(images, kernel, strides=2, padding=padding)
    scale = v1.get_variable("norm/scale", (4,), initializer=v1.random_uniform_initializer(0.5, 1.5))
    offset = v1.get_variable("norm/offset", (4,), initializer=v1.random_uniform_initializer(-0.1, 0.1))
    hidden = v1.nn.fused_batch_norm(hidden, scale, offset, epsilon=epsilon)[0]
    hidden = activation(hidden)
    hidden = tf.reduce_mean(hidden, axes)
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    logits = tf.matmul(hidden, v1.get_variable("logits/kernel", (hidden.shape[-1], 5)))
    if bias:
        logits = logits + v1.get_variable("logits/bias", (5,), initializer=v1.random_uniform_initializer())
    return tf.nn.softmax(logits * factor)


port = functools.partial(shim_port, network)


@pytest.mark.parametrize(
    ("rest_agrees", "outputs_agree", "words"),
    [
        (True, True, "with this, the rest agrees"),
        (False, True, "with this, the outputs agree"),
        (False, False, "with this, what follows agrees up to the next difference"),
    ],
)
def test_a_confirmation_says_how_much_agrees(rest_agrees, outputs_agree, words):
    assert confirmation("with this", rest_agrees=rest_agrees, outputs_agree=outputs_agree) == words
    assert confirmation("", rest_agrees=rest_agrees, outputs_agree=outputs_agree) == ""


def line_of(text):
    lines, start = inspect.getsourcelines(network)
    return start + next(number for number, line in enumerate(lines) if text in line)


def find(port, config, tf1=network, inputs=IMAGES):
    runner = Runner(Migration(tf1=tf1, port=port, inputs=inputs))
    config = runner.port(config).config if config.weights == "initial" else config
    return next(iter(runner.diagnosis(config, ()).divergences), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "config", "tf1_op", "port_op", "attributes"),
    [
        ({"activation": tf.nn.leaky_relu}, INFERENCE, "Relu", "LeakyRelu", {}),
        ({"activation": tf.identity}, INFERENCE, "Relu", "Mean", {}),
        ({"padding": "VALID"}, INFERENCE, "Conv2D", "Conv2D", {"attribute padding": ("SAME", "VALID")}),
        (
            {"epsilon": 1e-5},
            INFERENCE,
            "FusedBatchNormV3",
            "FusedBatchNormV3",
            {"attribute epsilon": ("0.001", "1e-05")},
        ),
        ({"rate": 0.4}, TRAINING, "Mul", "Mul", {"input 1": ("2.0", "1.6666666")}),
        ({"axes": (1,)}, INFERENCE, "Mean", "Mean", {"input 1": ("[1 2]", "1")}),
        ({"factor": 3.0}, INFERENCE, "Mul", "Mul", {"input 1": ("2.0", "3.0")}),
        ({"bias": False}, INFERENCE, "AddV2", "Mul", {}),
    ],
    ids=["activation", "no activation", "padding", "epsilon", "rate", "axes", "factor", "no bias"],
)
def test_the_op_of_a_planted_fault_is_found(changes, config, tf1_op, port_op, attributes):
    divergence = find(port(**changes), config)
    assert re.search(rf"\({tf1_op}\)", str(divergence.tf1)), str(divergence)
    assert re.search(rf"\({port_op}\)", str(divergence.port)), str(divergence)
    found = {name: pair for name, pair in divergence.attributes.items() if name in attributes}
    assert found == attributes, str(divergence)


def test_the_lines_of_the_diverging_ops_are_named():
    divergence = find(port(activation=tf.nn.leaky_relu), INFERENCE)
    assert str(divergence.tf1).endswith(f"test_divergence.py:{line_of('activation(hidden)')}")
    assert str(divergence.port).endswith(f"test_divergence.py:{line_of('activation(hidden)')}")
    (agreed,) = divergence.after
    assert agreed.endswith(f"test_divergence.py:{line_of('fused_batch_norm')}")


@pytest.mark.parametrize(
    "config",
    [INFERENCE, TRAINING, RunConfig(False, weights="constant", constant=0.01)],
    ids=["inference", "training", "constant_weights"],
)
def test_a_sound_port_has_no_divergence(config):
    assert find(port(), config) is None


def branches(images, training, order="abc", slope=0.2):
    """Branches of one shape, which a port may make in a different order."""
    found = {}
    for name in order:
        with v1.variable_scope(name):
            hidden = tf.matmul(tf.reshape(images, (2, -1)), v1.get_variable("kernel", (147, 5)))
            found[name] = tf.nn.leaky_relu(hidden, slope)
    return tf.concat([found[name] for name in "abc"], -1)


@pytest.mark.parametrize("order", ["cab", "bca", "cba"])
def test_the_diverging_op_of_the_port_is_computed_from_the_same_numbers(order):
    divergence = find(shim_port(branches, order=order, slope=0.3), INFERENCE, tf1=branches)
    names = [re.findall(r"\b[abc]/", op.name) for op in (divergence.tf1, divergence.port)]
    assert names == [["a/"], ["a/"]], str(divergence)
    assert divergence.attributes == {"attribute alpha": ("0.2", "0.3")}


def relu_by_hand(hidden):
    return (hidden + tf.abs(hidden)) * 0.5


class TestOpsWithoutACounterpart:
    """Different ops that compute the same numbers do not count."""

    TF1 = staticmethod(functools.partial(network, activation=relu_by_hand))

    def test_different_ops_that_compute_the_same_are_no_divergence(self):
        assert find(port(), INFERENCE, tf1=self.TF1) is None

    def test_a_fault_after_different_ops_is_found(self):
        divergence = find(port(factor=3.0), INFERENCE, tf1=self.TF1)
        assert divergence.types == ("Mul", "Mul")
        assert divergence.attributes == {"input 1": ("2.0", "3.0")}


class Native(keras.Model):
    """A port of Keras's own layers, which compute the same numbers by different ops under different names."""

    def __init__(self, activation="relu", epsilon=1e-3):
        super().__init__()
        self.conv = keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)
        self.norm = keras.layers.BatchNormalization(epsilon=epsilon)
        self.activation = keras.layers.Activation(activation)
        self.logits = keras.layers.Dense(5)

    def call(self, images, training=False):
        hidden = self.activation(self.norm(self.conv(images), training=training))
        return keras.ops.softmax(self.logits(keras.ops.mean(hidden, (1, 2))))


def tf1_layers(images, training):
    hidden = v1.layers.conv2d(images, 4, 3, strides=2, padding="same", use_bias=False)
    hidden = v1.layers.batch_normalization(hidden, training=training)
    hidden = tf.reduce_mean(tf.nn.relu(hidden), (1, 2))
    return tf.nn.softmax(v1.layers.dense(hidden, 5))


class TestKerasLayers:
    @pytest.fixture(autouse=True)
    def _v1_layers(self):
        with enable_v1_layers():
            yield

    @pytest.mark.parametrize("config", [INFERENCE, TRAINING], ids=["inference", "training"])
    def test_a_sound_port_has_no_divergence(self, config):
        assert find(Native, config, tf1=tf1_layers) is None

    def test_a_different_activation_is_found(self):
        divergence = find(lambda: Native(activation="elu"), INFERENCE, tf1=tf1_layers)
        assert "(Relu)" in str(divergence.tf1)
        assert "(Elu)" in str(divergence.port)

    def test_a_different_epsilon_is_found(self):
        divergence = find(lambda: Native(epsilon=1e-1), INFERENCE, tf1=tf1_layers)
        assert "batch_norm" in str(divergence.tf1)


@pytest.mark.slow
def test_a_failed_check_reports_the_first_divergence():
    report = validate(Migration(tf1=network, port=port(activation=tf.nn.leaky_relu), inputs=IMAGES))
    check = next(check for check in report.checks if check.name == "random-inference")
    assert check.details.startswith("First divergence. Identical up to FusedBatchNormV3")
    assert re.search(r"first divergence at Relu \(Relu\) at \S*test_divergence.py:\d+", check.summary)


class OnlyEagerly(port(activation=tf.nn.leaky_relu)):
    """A layer that cannot be traced."""

    def call(self, images, training=False):
        outputs = super().call(images, training=training)
        return outputs if float(tf.reduce_sum(outputs)) > 0 else outputs * 0


@pytest.mark.slow
def test_a_port_that_cannot_be_traced_fails_without_a_divergence():
    report = validate(Migration(tf1=network, port=OnlyEagerly, inputs=IMAGES))
    check = next(check for check in report.checks if check.name == "random-inference")
    assert not check.ok
    assert "The first divergence could not be found" in check.details
    assert "elements differ" in check.details


def test_an_output_that_agrees_hides_no_divergence_of_another_output():
    def program(images, training, sign=1.0):
        flipped = tf.tanh(sign * images)
        return {"flipped": flipped, "square": flipped**2}

    check = validate(Migration(tf1=program, port=shim_port(program, sign=-1.0), inputs=IMAGES)).checks[5]
    assert check.comparisons["outputs"].first_divergence.path == "['flipped']"
    assert re.search("first divergence at \\w+ \\((Mul|Tanh)\\)", check.summary), check.summary


def test_the_op_of_a_fault_in_a_function_is_found():
    def scaled(inputs, factor, training):
        outputs = tf.matmul(inputs, v1.get_variable("kernel", (3, 8)))
        return tf.nn.dropout(tf.nn.relu(outputs), 0.5) * factor if training else tf.nn.relu(outputs) * factor

    class Port(keras.layers.Layer):
        @tf.function
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return scaled(inputs, 1.5, training)

    def tf1(inputs, training):
        return scaled(inputs, 1.25, training)

    for config in (INFERENCE, TRAINING):
        divergence = find(Port, config, tf1=tf1, inputs=np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3))
        assert re.search(r"mul(_1)? \(Mul\) at .*test_divergence.py:\d+", str(divergence.port)), str(divergence)
        assert divergence.attributes["input 1"] == ("1.25", "1.5")


def test_a_function_that_autograph_must_convert_is_traced():
    @tf.function
    def function(inputs, training):
        if tf.reduce_sum(inputs) > 0:
            return inputs * 1.5
        return inputs

    def tf1(inputs, training):
        return inputs * 1.25

    divergence = find(lambda: function, INFERENCE, tf1=tf1, inputs=np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3))
    assert re.search(r"cond \(StatelessIf.*test_divergence.py:\d+", str(divergence.port)), str(divergence)


@pytest.mark.parametrize(("op_type", "expected"), [("ArgMax", ["logits"]), ("Tanh", [])])
def test_a_class_that_agrees_hides_no_difference_before_it(op_type, expected):
    ops = [TracedOp("logits", "MatMul", "", (), {}), TracedOp("result", op_type, "", ("logits",), {})]
    arrays = {"logits": np.array([[1.0, 2.0], [4.0, 3.0]]), "result": np.array([1.0, 0.0])}
    trace = Trace.of({op.name: op for op in ops}, {"output": "result"}, arrays)
    assert [op.name for op in trace.diverged({"result": ["other"]})] == expected


@pytest.mark.parametrize("masked", [0, 3], ids=["no mask", "mask"])
def test_what_a_mask_adds_hides_no_difference(masked):
    logits = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    logits[:, :masked] = np.where(np.arange(4)[:, None] < 2, logits[:, :masked], -1e9)
    ops = {"sum": TracedOp("sum", "AddV2", "", (), {})}
    tf1, same, port = (
        Trace.of(ops, {"output": "sum"}, {"sum": array}) for array in (logits, logits * (1 + 1e-7), logits + 0.01)
    )
    assert match(tf1, same) == {"sum": ["sum"]}
    assert match(tf1, port) == {}


@pytest.mark.parametrize("masked", [-1e9, float(np.finfo(np.float32).min)])
def test_a_mask_is_not_equal_to_masked_scores(masked):
    generator, kept = np.random.default_rng(0), np.arange(6) < np.array([[6], [4], [3], [2]])
    scores = generator.normal(size=kept.shape)
    mask, in_full = (Value.of(np.where(kept, each, masked)) for each in (0.0, scores))
    assert not _are_equal(mask, in_full, RTOLS[0]) and not _are_equal(in_full, mask, RTOLS[0])
    assert _are_equal(in_full, Value.of(np.where(kept, 0.0, masked) + scores), RTOLS[0])


def test_what_rounding_leaves_of_zeros_is_0():
    generator = np.random.default_rng(0)
    numbers = np.where(np.arange(1000) < 300, 100.0 * generator.normal(size=1000), 0.0)
    left = Value.of(numbers + 1e-14 * generator.normal(size=1000) * 100)
    assert _are_equal(Value.of(numbers), left, RTOLS[0]) and _are_equal(left, Value.of(numbers), RTOLS[0])


def test_sums_of_what_is_rounded_to_float32_are_equal_near_0_too():
    """A resize of TensorFlow computes in float32, whatever its dtype."""
    generator = np.random.default_rng(0)
    resized, kernel = generator.normal(size=(500, 75)), generator.normal(size=(75, 8))
    exact, rounded = (Value.of(array @ kernel) for array in (resized, resized.astype(np.float32).astype(np.float64)))
    assert _are_equal(exact, rounded, RTOLS[0])
