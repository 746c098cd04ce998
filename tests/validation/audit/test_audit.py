"""The audit reads hyperparameters of both programs, and shows differences that no check finds."""

import dataclasses
import json
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import tf_slim as slim

from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand._patching.keras import underlying_variable
from detrand.report import html as html_report
from detrand.report import json as json_report
from detrand.validation.audit import audit as audit_module
from detrand.validation.audit.hyperparameters import (
    hyperparameters_of_graph,
    hyperparameters_of_layers,
    hyperparameters_of_optimizer,
)
from detrand.validation.audit.initial_values import describe_initial_value
from detrand.validation.golden import record_golden
from detrand.validation.results import AuditedHyperparameter
from detrand.validation.runner import Runner
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(4, 6, 6, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _v1_layers():
    with enable_v1_layers():
        yield


# --- Hyperparameters of a graph -------------------------------------------------------------------------------------


def by_hand(inputs, epsilon):
    mean, variance = tf.nn.moments(inputs, -1, keepdims=True)
    inputs = (inputs - mean) * tf.math.rsqrt(variance + epsilon)
    return inputs * v1.get_variable("ln/g", inputs.shape[-1]) + v1.get_variable("ln/b", inputs.shape[-1])


def averaged(momentum):
    average = v1.get_variable("average", (3,), trainable=False)
    return v1.assign(average, average * momentum + tf.ones(3) * (1 - momentum))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 4, 3), (2, 3)], ids=["fused", "not fused"])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x, training: v1.layers.batch_normalization(x, training=training, epsilon=1e-4, momentum=0.9, name="bn"),
        lambda x, training: slim.batch_norm(
            x, is_training=training, epsilon=1e-4, decay=0.9, scale=True, scope="bn", fused=x.shape.rank == 4
        ),
    ],
    ids=["tf.layers", "tf_slim"],
)
def test_epsilon_and_momentum_of_batch_normalization_are_read_from_ops(norm, shape, training):
    with tf.Graph().as_default() as graph:
        norm(tf.ones(shape), training)
        found = hyperparameters_of_graph(graph)
    assert {of for (of, name), value in found.items() if name == "epsilon" and value == pytest.approx(1e-4)} >= {
        "bn/gamma" if training else "bn/moving_variance"
    }
    momenta = {of: value for (of, name), value in found.items() if name == "momentum"}
    averages = ["bn/moving_mean", "bn/moving_variance"] if training else []
    assert momenta == {of: pytest.approx(0.9) for of in averages}


@pytest.mark.parametrize(
    ("build", "key", "value"),
    [
        (lambda: slim.layer_norm(tf.ones((2, 3)), scope="ln"), ("ln/gamma", "epsilon"), 1e-12),
        (lambda: by_hand(tf.ones((2, 3)), 1e-5), ("ln/g", "epsilon"), 1e-5),
        (lambda: averaged(0.99), ("average", "momentum"), 0.99),
        (
            lambda: [tf.nn.dropout(tf.ones(3), rate) for rate in (0.4, 0.25, 1 - tf.constant(0.6))],
            ("dropout", "rate"),
            (0.25, 0.4),
        ),
    ],
    ids=["layer norm", "by hand", "moving average", "dropout"],
)
def test_hyperparameters_of_other_layers_are_read_from_ops(build, key, value):
    with tf.Graph().as_default() as graph:
        build()
        assert hyperparameters_of_graph(graph)[key] == pytest.approx(value)


GLOROT = math.sqrt(6 / (20 + 30))
HE = math.sqrt(2 / 20) / 0.87962566103423978  # standard deviation of a normal cut at 2


@pytest.mark.parametrize(
    ("tf1", "name", "words"),
    [
        (lambda: None, "GlorotUniform", f"uniform from {-GLOROT:.6g} to {GLOROT:.6g}"),
        (v1.initializers.he_normal, "HeNormal", f"truncated normal of stddev {HE:.6g}"),
        (
            lambda: v1.random_normal_initializer(1.0, 0.2),
            lambda kit: kit.RandomNormal(1.0, 0.2),
            "normal of stddev 0.2 and mean 1",
        ),
        (lambda: v1.random_uniform_initializer(-1, 3), lambda kit: kit.RandomUniform(-1, 3), "uniform from -1 to 3"),
        (v1.zeros_initializer, "Zeros", "constant 0"),
        (lambda: v1.constant_initializer(0.1), lambda kit: kit.Constant(0.1), "constant 0.1"),
        (v1.orthogonal_initializer, "Orthogonal", "orthogonal"),
    ],
    ids=["glorot", "he", "normal", "uniform", "zeros", "constant", "orthogonal"],
)
def test_initializers_are_described_alike(tf1, name, words):
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", (20, 30), initializer=tf1())
        assert hyperparameters_of_graph(graph)["w", "initializer"] == words
        for kit in (keras.initializers, tf_keras.initializers):
            initializer = getattr(kit, name)() if isinstance(name, str) else name(kit)
            assert describe_initial_value(initializer((20, 30), dtype="float32")) == words


@pytest.mark.parametrize("shape", [(), (3,), (60, 60)], ids=["one", "few", "many"])
def test_constant_initializers_of_any_size_are_described(shape):
    """TF1 fills large constants by an op of their own."""
    with tf.Graph().as_default() as graph:
        v1.get_variable("zeros", shape, initializer=v1.zeros_initializer())
        v1.get_variable("constant", shape, initializer=v1.constant_initializer(0.5))
        found = hyperparameters_of_graph(graph)
    initializers = {of: value for (of, name), value in found.items() if name == "initializer"}
    assert initializers == {"zeros": "constant 0", "constant": "constant 0.5"}


def test_an_initial_value_of_another_kind_is_not_described():
    with tf.Graph().as_default():
        assert describe_initial_value(tf.constant([1.0, 2.0])) is None
        assert describe_initial_value(tf.random.normal((2,)) * tf.random.normal((2,))) is None


def test_reading_a_graph_leaves_it_as_it_was():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        weight = v1.get_variable("w", (2,), initializer=v1.zeros_initializer())
        graph.finalize()
        hyperparameters_of_graph(graph)
        session.run(weight.initializer, {weight.initializer.inputs[1]: [1.0, 2.0]})
        np.testing.assert_array_equal(session.run(weight), [1.0, 2.0])


# --- Hyperparameters of optimizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tf1", "name", "arguments", "differing"),
    [
        (lambda: v1.train.GradientDescentOptimizer(0.1), "SGD", {}, {}),
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9), "SGD", {"momentum": 0.9}, {}),
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True), "SGD", {}, {"momentum", "nesterov"}),
        (lambda: v1.train.AdamOptimizer(0.1), "Adam", {}, {"epsilon"}),
        (lambda: v1.train.AdamOptimizer(0.1), "Adam", {"epsilon": 1e-8, "clipnorm": 1.0}, {"clipnorm"}),
        (lambda: v1.train.AdamOptimizer(0.1), "SGD", {}, {"kind"}),
        (lambda: v1.train.RMSPropOptimizer(0.1), "RMSprop", {}, {"epsilon", "initial rms"}),
        (
            lambda: v1.train.AdagradOptimizer(0.1),
            "Adagrad",
            {"initial_accumulator_value": 0.2},
            {"epsilon", "initial_accumulator_value"},
        ),
        (lambda: v1.train.AdadeltaOptimizer(0.1), "Adadelta", {"rho": 0.9}, {"epsilon", "rho"}),
    ],
    ids=["SGD", "momentum", "nesterov", "Adam", "clipped", "another", "RMSProp", "Adagrad", "Adadelta"],
)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_hyperparameters_of_optimizers_are_compared(kit, tf1, name, arguments, differing):
    of_tf1 = hyperparameters_of_optimizer(tf1())
    of_keras = hyperparameters_of_optimizer(getattr(kit.optimizers, name)(0.1, **arguments))
    found = {
        name for of, name in of_tf1.keys() & of_keras.keys() if of_tf1[of, name] != pytest.approx(of_keras[of, name])
    }
    assert found == set(differing)


def test_additions_of_a_users_subclass_are_not_read():
    class Clipped(v1.train.RMSPropOptimizer):
        pass

    class RMSprop(keras.optimizers.RMSprop):
        pass

    for optimizer in (Clipped(0.1, decay=0.8), RMSprop(0.1, rho=0.8)):
        found = hyperparameters_of_optimizer(optimizer)
        assert found["optimizer", "rho"] == 0.8
        assert not {("optimizer", "kind"), ("optimizer", "initial rms")} & found.keys()
    assert ("optimizer", "clipnorm") not in hyperparameters_of_optimizer(Clipped(0.1))


def test_a_learning_rate_that_follows_a_schedule_is_left_out():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    assert ("optimizer", "learning_rate") not in hyperparameters_of_optimizer(keras.optimizers.SGD(schedule))
    with tf.Graph().as_default():
        rate = v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 2, 0.5)
        assert ("optimizer", "learning_rate") not in hyperparameters_of_optimizer(
            v1.train.GradientDescentOptimizer(rate)
        )


# --- Hyperparameters of layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_rates_and_initializers_of_recurrent_layers_are_read(kit):
    layer = kit.layers.LSTM(2, dropout=0.1, recurrent_dropout=0.2, name="lstm")
    layer.build((None, 4, 3))
    names = {
        id(underlying_variable(weight)): weight.name.rpartition("/")[2].removesuffix(":0") for weight in layer.weights
    }
    found = hyperparameters_of_layers(layer, names)
    assert found["dropout", "rate"] == (0.1, 0.2)
    assert found["bias", "initializer"] == "constant 0, 1 for the forget gate"
    limit = math.sqrt(6 / (3 + 8))
    assert found["kernel", "initializer"] == f"uniform from {-limit:.6g} to {limit:.6g}"
    assert found["recurrent_kernel", "initializer"] == "orthogonal"


# --- Both programs ------------------------------------------------------------------------------------------


def network(images, training, momentum=0.99):
    hidden = v1.layers.conv2d(images, 4, 3, name="conv")
    hidden = v1.layers.batch_normalization(hidden, training=training, momentum=momentum, name="bn")
    hidden = tf.reduce_mean(tf.nn.relu(hidden), (1, 2))
    logits = v1.layers.dense(hidden, 3, kernel_initializer=v1.truncated_normal_initializer(stddev=0.1), name="out")
    return v1.layers.dropout(logits, 0.4, training=training)


class Port(keras.Model):
    def __init__(self, rate=0.4, initializer="glorot_uniform", **norm):
        super().__init__(name="port")
        self.conv = keras.layers.Conv2D(4, 3, kernel_initializer=initializer, name="conv")
        self.norm = keras.layers.BatchNormalization(name="bn", **norm)
        self.dropout = keras.layers.Dropout(rate)
        truncated = keras.initializers.TruncatedNormal(stddev=0.1)
        self.out = keras.layers.Dense(3, kernel_initializer=truncated, name="out")

    def call(self, images, training=False):
        hidden = keras.ops.relu(self.norm(self.conv(images), training=training))
        return self.dropout(self.out(keras.ops.mean(hidden, (1, 2))), training=training)


def migration(port, **changes):
    return Migration(tf1=network, port=port, inputs=IMAGES, name_map=lambda name: f"port/{name}", **changes)


TRAIN = TrainStep(
    labels=np.array([0, 1, 2, 0]),
    tf1_loss=v1.losses.sparse_softmax_cross_entropy,
    port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01),
    port_optimizer=lambda: keras.optimizers.Adam(0.01),
    steps=1,
)


@pytest.mark.slow
def test_a_port_of_keras_layers_is_audited():
    report = validate(migration(Port, train=TRAIN))
    assert report.audit.differing == (AuditedHyperparameter("optimizer", "epsilon", "1e-08", "1e-07"),)
    assert not report.audit.not_audited
    audited = {(each.of, each.name): each.tf1 for each in report.audit.hyperparameters}
    assert audited["bn", "epsilon"] == "0.001"
    assert audited["bn", "momentum"] == "0.99"
    assert audited["dropout after out", "rate"] == "0.4"
    assert audited["out/kernel", "initializer"] == "truncated normal of stddev 0.1"
    assert {of for of, name in audited if name == "initializer"} == {
        *("conv/kernel", "conv/bias", "bn/gamma", "bn/beta", "bn/moving_mean", "bn/moving_variance"),
        *("out/kernel", "out/bias"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"momentum": 0.9}, "bn: momentum 0.99 (TF1), 0.9 (port)"),
        ({"epsilon": 1e-5}, "bn: epsilon 0.001 (TF1), 1e-05 (port)"),
        ({"rate": 0.5}, "dropout after out: rate 0.4 (TF1), 0.5 (port)"),
        (
            {"initializer": "zeros"},
            f"conv/kernel: initializer uniform from {-math.sqrt(6 / 63):.6g} to .* (TF1), constant 0 (",
        ),
    ],
    ids=["momentum", "epsilon", "rate", "initializer"],
)
def test_differing_hyperparameters_are_listed(changes, differing):
    report = validate(migration(lambda: Port(**changes)))
    (found,) = report.audit.differing
    assert differing.partition(".*")[0] in str(found)
    count = len(report.audit.hyperparameters)
    assert f"audited {count} hyperparameters: 1 differs\n  {found}" in str(report)
    if changes == {"momentum": 0.9}:
        (failed,) = [check for check in report.checks if not check.ok]
        assert failed.name == "random-training"  # one call shows it in the updates only


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "changes", "cause"),
    [
        ("random-inference", {"epsilon": 1e-2}, r"epsilon differs in bn: 0.001 \(TF1\), 0.01 \(port\)"),
        ("initializers-match", {"initializer": "zeros"}, "initializer differs in conv/kernel: uniform from .*"),
        ("random-training", {"rate": 0.5}, r"(dropout )?rate differs.*: 0.4 \(TF1.*\), 0.5 \(port.*\)"),
        ("training-steps", {"momentum": 0.9}, r"momentum differs: 0.99 \(TF1\), 0.9 \(port\)"),
        ("training-steps", {}, r"epsilon differs in the optimizer: 1e-08 \(TF1\), 1e-07 \(port\)"),
    ],
    ids=["epsilon", "initializer", "rate", "momentum", "optimizer"],
)
def test_a_failed_check_names_the_hyperparameter_among_the_first_two_causes(check, changes, cause):
    """The port's layer may consist of different ops than TF1's."""
    report = validate(migration(lambda: Port(**changes), train=TRAIN))
    (found,) = (one for one in report.checks if one.name == check)
    assert any(re.match(cause, one) for one in found.causes[:2]), str(report)


@pytest.mark.slow
def test_the_audit_is_the_same_before_any_check():
    """A check that fails asks for it before the graph of training is built."""
    faulty = migration(lambda: Port(momentum=0.9))
    assert Runner(faulty).audit == validate(faulty).audit


def test_a_random_number_of_one_element_is_no_constant():
    def tf1(x, training):
        return x * v1.get_variable("u", (1,), initializer=v1.truncated_normal_initializer())

    class Scaled(tf.Module):
        def __init__(self):
            super().__init__()
            self.u = tf.Variable(tf.random.truncated_normal([1]), name="u")

        def __call__(self, x, training=False):
            return x * self.u

    report = validate(Migration(tf1=tf1, port=Scaled, inputs=np.ones((2, 3), np.float32)))
    assert report.ok
    assert report.audit.differing == ()


@pytest.mark.slow
def test_json_and_html_reports_show_the_audit():
    report = validate(migration(lambda: Port(momentum=0.9)))
    (content,) = json.loads(json_report.render([report]))["migrations"]
    hyperparameter = {"of": "bn", "name": "momentum", "tf1": "0.99", "port": "0.9", "same": False}
    assert hyperparameter in content["audit"]["hyperparameters"]
    assert content["audit"]["not_audited"] == []
    page = html_report.render([report])
    assert '<td class="">momentum</td><td class="">0.99</td><td class="">0.9</td><td class="">differs</td>' in page
    assert page.index("0.99") < page.index("truncated normal of stddev")


@pytest.mark.slow
def test_a_port_by_the_shim_is_read_from_its_ops():
    report = validate(Migration(tf1=network, port=shim_port(network, momentum=0.9), inputs=IMAGES))
    assert [check.name for check in report.checks if not check.ok] == ["random-training"]
    assert [str(each) for each in report.audit.differing] == ["bn: momentum 0.99 (TF1), 0.9 (port)"]
    audited = {(each.of, each.name): each.port for each in report.audit.hyperparameters}
    assert {name for _, name in audited} == {"activation", "epsilon", "momentum", "rate", "initializer"}
    assert audited["out/kernel", "initializer"] == "truncated normal of stddev 0.1"
    assert not report.audit.not_audited


@pytest.mark.slow
def test_layers_without_a_config_are_audited():
    class NoConfig(keras.layers.Layer):
        def __init__(self, units):
            super().__init__(name="port")
            self.inner = Port()

        def get_config(self):
            raise ZeroDivisionError

        def call(self, images, training=False):
            return self.inner(images, training=training)

    report = validate(dataclasses.replace(migration(lambda: NoConfig(3)), name_map=lambda name: f"port/port/{name}"))
    assert {each.name for each in report.audit.hyperparameters} == {
        "activation",
        "epsilon",
        "momentum",
        "rate",
        "initializer",
    }


@pytest.mark.slow
def test_the_audit_never_raises(monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("no such luck")

    for name in ("PortHyperparameters", "hyperparameters_of_optimizer"):
        monkeypatch.setattr(audit_module, name, broken)
    for name in ("hyperparameters_of_graph", "hyperparameters_of_optimizer"):
        monkeypatch.setattr(f"detrand.validation.reference.{name}", broken)
    report = validate(migration(Port, train=TRAIN))
    assert len(report.checks) == 9
    assert not report.audit.hyperparameters
    assert [note.partition(", which raised ZeroDivisionError (")[0] for note in report.audit.not_audited] == [
        "the TF1 program",
        "the port",
        "the optimizer of TF1",
        "the optimizer of the port",
    ]
    assert "  not audited: the port, which raised ZeroDivisionError (" in str(report)


def test_a_port_that_raises_is_not_audited():
    class Raises(keras.layers.Layer):
        def call(self, images, training=False):
            raise OverflowError("too much")

    report = validate(migration(Raises))
    assert report.audit.not_audited[0].startswith("the port, which raised OverflowError (")


@pytest.mark.slow
def test_golden_files_hold_hyperparameters(tmp_path):
    faulty = migration(lambda: Port(momentum=0.9), train=TRAIN)
    record_golden([faulty], tmp_path / "golden.npz")
    assert validate(faulty, golden=tmp_path / "golden.npz").audit == validate(faulty).audit


def test_an_optimizer_whose_schedule_has_no_config_is_read():
    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

    class Decayed(keras.optimizers.SGD):
        """An optimizer of a user's."""

    found = hyperparameters_of_optimizer(Decayed(Halved(), momentum=0.8, nesterov=True))
    assert (found["optimizer", "momentum"], found["optimizer", "nesterov"]) == (0.8, True)
    assert ("optimizer", "learning_rate") not in found


@pytest.mark.slow
def test_activations_are_audited():
    def tf1(x, training):
        for number, activation in enumerate((tf.nn.elu, tf.nn.leaky_relu, tf.nn.tanh)):
            with v1.variable_scope(f"layer_{number}"):
                x = x @ v1.get_variable("kernel", (x.shape[-1], 3))
                x = activation(x + v1.get_variable("bias", (3,)) if number else x)
        return x

    class Layers(keras.Model):
        def __init__(self):
            super().__init__(name="port")
            self.dense = [
                keras.layers.Dense(3, name="layer_0", activation="elu", use_bias=False),
                keras.layers.Dense(3, name="layer_1", bias_initializer="glorot_uniform"),
                keras.layers.Dense(3, name="layer_2", activation="sigmoid", bias_initializer="glorot_uniform"),
            ]
            self.leaky = keras.layers.LeakyReLU(0.3)

        def call(self, x):
            return self.dense[2](self.leaky(self.dense[1](self.dense[0](x))))

    report = validate(
        Migration(tf1=tf1, port=Layers, inputs=np.ones((2, 3), np.float32), name_map=lambda name: f"port/{name}")
    )
    activations = {each.of: (each.tf1, each.port) for each in report.audit.hyperparameters if each.name == "activation"}
    assert activations == {
        "layer_0": ("Elu", "Elu"),
        "layer_1": ("LeakyRelu of slope 0.2", "LeakyRelu of slope 0.3"),
        "layer_2": ("Tanh", "Sigmoid"),
    }
