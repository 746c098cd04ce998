"""A variable that only one program has, or trains, is one finding, which explains the ops and gradients that differ."""

import functools
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand.validation.report import Report
from detrand.validation.results import Audit, CheckResult, Fault, Finding

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(6, 4)).astype(np.float32)
IMAGES = RNG.normal(size=(6, 5, 5, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)


def affine(inputs, units, name, bias):
    with v1.variable_scope(name):
        outputs = tf.matmul(inputs, v1.get_variable("kernel", (inputs.shape[-1], units)))
        return outputs + v1.get_variable("bias", (units,), initializer=v1.zeros_initializer()) if bias else outputs


def normalized(inputs, training, scale, fused):
    """Batch normalization by hand, fused or in ops."""

    def variable(name, value, trainable):
        initializer = v1.constant_initializer(value)
        return v1.get_variable(f"bn/{name}", (inputs.shape[-1],), initializer=initializer, trainable=trainable)

    gamma = variable("gamma", 1.0, True) if scale else tf.ones(inputs.shape[-1])
    beta, mean, variance = variable("beta", 0.0, True), variable("moving_mean", 0.0, False), None
    variance = variable("moving_variance", 1.0, False)
    moments = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
    if training:
        for average, value in zip((mean, variance), moments, strict=True):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(average, 0.9 * average + 0.1 * value))
    if fused:
        given = {} if training else {"mean": mean, "variance": variance}
        return v1.nn.fused_batch_norm(inputs, gamma, beta, epsilon=1e-3, is_training=training, **given)[0]
    return tf.nn.batch_normalization(inputs, *(moments if training else (mean, variance)), beta, gamma, 1e-3)


def network(inputs, training, bias=True, scale=True, normalizes=True, in_training=True):
    fused = inputs.shape.rank == 4
    hidden = normalized(inputs, training and in_training, scale, fused) if normalizes else inputs
    hidden = tf.reduce_mean(tf.nn.relu(hidden), [1, 2]) if fused else tf.nn.relu(hidden)
    return affine(hidden, 3, "logits", bias)


class Port(keras.Model):
    def __init__(self, bias=True, scale=True, normalizes=True, frozen=False, factor=1.0):
        super().__init__()
        self.bn = keras.layers.BatchNormalization(momentum=0.9, scale=scale, name="bn") if normalizes else None
        self.logits = keras.layers.Dense(3, use_bias=bias, name="logits")
        self.factor = factor
        if frozen:
            self.bn.trainable = False

    def call(self, inputs, training=False):
        hidden = tf.nn.relu(self.bn(inputs, training=training) if self.bn else inputs)
        return self.logits(tf.reduce_mean(hidden, [1, 2]) if hidden.shape.rank == 4 else hidden) * self.factor


def loss(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


TRAIN = TrainStep(
    labels=LABELS,
    tf1_loss=loss,
    port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.5),
    port_optimizer=lambda: keras.optimizers.SGD(0.5),
    steps=3,
)


def findings_of(inputs, tf1, port, trains=False):
    def in_port(name):
        return f"port/{name}"

    program = lambda inputs, training: network(inputs, training, **tf1)  # noqa: E731
    return validate(
        Migration(
            tf1=program,
            port=lambda: Port(**port),
            inputs=inputs,
            name_map=in_port,
            train=TRAIN if trains else None,
        )
    ).findings


FROZEN = "A frozen BatchNormalization of Keras normalizes with its moving averages, in training too"


@pytest.mark.slow_except("bias of TF1")
@pytest.mark.parametrize(
    ("inputs", "tf1", "port", "title", "remedy"),
    [
        (ROWS, {}, {"bias": False}, "only in TF1 (1): logits/bias ", "pass use_bias=True to the port's layer"),
        (
            ROWS,
            {"bias": False},
            {},
            "only in the port (1): port/logits/bias",
            "pass use_bias=False to the port's layer",
        ),
        (ROWS, {}, {"scale": False}, "only in TF1 (1): bn/gamma ", "pass scale=True to the port's layer"),
        (ROWS, {"scale": False}, {}, "only in the port (1): port/bn/gamma", "pass scale=False to the port's layer"),
        (IMAGES, {}, {"scale": False}, "only in TF1 (1): bn/gamma ", "pass scale=True to the port's layer"),
        (ROWS, {}, {"normalizes": False}, "only in TF1 (4): bn/", "add these variables to the port, and what TF1 "),
        (ROWS, {"normalizes": False}, {}, "only in the port (4): port/bn/", "remove these variables from the port, "),
        (ROWS, {}, {"frozen": True}, "trainable differs (2): bn/gamma", FROZEN),
        (IMAGES, {}, {"frozen": True}, "trainable differs (2): bn/gamma", FROZEN),
    ],
    ids=[
        *("bias of TF1", "bias of the port", "gamma of TF1", "gamma of the port", "gamma of TF1, fused"),
        *("normalization of TF1", "normalization of the port", "frozen", "frozen, fused"),
    ],
)
def test_a_variable_of_one_program_explains_what_differs(inputs, tf1, port, title, remedy):
    trains = "normalizes" in port or "frozen" in port
    (finding,) = findings_of(inputs, tf1, port, trains)
    assert finding.title.startswith(f"variables: {title}")
    assert remedy in finding.remedy
    assert finding.confirmed
    place = finding.port if title.startswith("only in the port") else finding.tf1
    assert place.line.startswith(__file__)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [ROWS, IMAGES], ids=["ops", "fused"])
def test_a_normalization_in_inference_mode_is_one_finding(inputs):
    (finding,) = findings_of(inputs, {"in_training": False}, {}, trains=inputs is ROWS)
    values = "moving averages (TF1), statistics of the batch (port)"
    assert finding.title == f"training mode of a normalization differs: {values}"
    assert finding.confirmed


def with_dropout(inputs, training):
    """Batch normalization, pooling if there are pixels, dropout and logits."""
    hidden = tf.nn.relu(normalized(inputs, training, scale=True, fused=False))
    hidden = tf.reduce_mean(hidden, [1, 2]) if hidden.shape.rank == 4 else hidden
    return affine(tf.nn.dropout(hidden, rate=0.2) if training else hidden, 3, "logits", bias=True)


class InInference(keras.Model):
    """A port whose layers are called as in inference, or whose dropout is left out."""

    def __init__(self, drops_out):
        super().__init__()
        self.bn = keras.layers.BatchNormalization(momentum=0.9)
        self.logits = keras.layers.Dense(3)
        self.dropout = keras.layers.Dropout(0.2) if drops_out else keras.layers.Identity()

    def call(self, inputs, training=False):
        hidden = tf.nn.relu(self.bn(inputs, training=False))
        hidden = tf.reduce_mean(hidden, [1, 2]) if hidden.shape.rank == 4 else hidden
        return self.logits(self.dropout(hidden, training=False))


@pytest.mark.slow
@pytest.mark.parametrize("drops_out", [True, False], ids=["dropout", "no dropout"])
@pytest.mark.parametrize("inputs", [ROWS, IMAGES], ids=["rows", "images"])
def test_a_port_that_never_trains_is_one_finding(inputs, drops_out):
    port = lambda: InInference(drops_out)  # noqa: E731
    report = validate(Migration(tf1=with_dropout, port=port, inputs=inputs))
    of_mode = [finding for finding in report.findings if finding.title.startswith("training mode of a normalization")]
    assert [finding.title.partition(": ")[2] for finding in of_mode] == [
        "statistics of the batch (TF1), moving averages (port)"
    ], str(report)
    others = [finding.title for finding in report.findings if finding not in of_mode]
    assert len(others) == (0 if drops_out else 1), str(report)
    assert all("random op" in title for title in others)


def two_layers(inputs, training):
    return affine(tf.nn.relu(affine(inputs, 5, "hidden", bias=True)), 3, "logits", bias=True)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(7, 3), (5, 2), (7, 2)], ids=["hidden", "logits", "both"])
def test_variables_of_other_shapes_explain_what_differs(sizes):
    def make_port():
        layers = [keras.layers.Dense(units, name=name) for units, name in zip(sizes, ("hidden", "logits"), strict=True)]
        return keras.Sequential([keras.Input((4,)), layers[0], keras.layers.ReLU(), layers[1]])

    (finding,) = validate(Migration(tf1=two_layers, port=make_port, inputs=ROWS)).findings
    assert finding.title.startswith("variables: shape differs (")
    assert finding.tf1.line.startswith(__file__) and finding.port.line.startswith(__file__)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["alone", "before a mean", "before a square"])
@pytest.mark.parametrize("activation", ["relu", "relu6", "leaky_relu"])
def test_an_activation_that_changes_no_number_is_not_called_missing(activation, then):
    """Without the bias, what the port's activation takes is positive, and so is what it computes."""
    after = {"alone": lambda x: x, "before a mean": lambda x: x - tf.reduce_mean(x, 1, keepdims=True)}
    after["before a square"] = tf.square
    activate = getattr(tf.nn, activation)
    positive = np.abs(ROWS) / 4

    def tf1(inputs, training):
        inputs = tf.abs(affine(inputs, 4, "first", bias=True))
        kernel = tf.abs(v1.get_variable("kernel", (4, 4)))
        return affine(after[then](activate(inputs @ kernel + v1.get_variable("bias", 4))), 3, "logits", bias=True)

    class WithoutBias(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.logits = (keras.layers.Dense(units, name=name) for units, name in SIZES)
            self.kernel = self.add_weight(shape=(4, 4), name="kernel")

        def call(self, inputs, training=False):
            hidden = tf.abs(self.first(inputs)) @ tf.abs(tf.convert_to_tensor(self.kernel))
            return self.logits(after[then](activate(hidden)))

    (finding,) = validate(Migration(tf1=tf1, port=WithoutBias, inputs=positive)).findings
    assert finding.title.startswith("variables: only in TF1 (1): bias")


SIZES = [(4, "first"), (3, "logits")]


def test_a_bias_of_zeros_does_not_stand_for_a_residual():
    def tf1(inputs, training):
        return affine(affine(inputs, 4, "first", bias=True) + inputs, 3, "logits", bias=True)

    def make_port():
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(units, name=name) for units, name in SIZES)])

    migration = Migration(tf1=tf1, port=make_port, inputs=ROWS)
    (finding,) = validate(migration, checks=["random-inference"]).findings
    assert finding.title == "only TF1 adds input 0 (inputs)"


@pytest.mark.slow
def test_an_activation_that_changes_no_number_is_not_called_a_difference():
    def tf1(inputs, training):
        return affine(tf.abs(affine(inputs, 4, "first", bias=True)) + inputs, 3, "logits", bias=True)

    class WithoutResidual(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.logits = (keras.layers.Dense(units, name=name) for units, name in SIZES)

        def call(self, inputs, training=False):
            return self.logits(tf.nn.relu(tf.abs(self.first(inputs))))

    (finding,) = validate(Migration(tf1=tf1, port=WithoutResidual, inputs=ROWS)).findings
    assert finding.title == "only TF1 adds input 0 (inputs)"


@pytest.mark.slow
def test_a_gru_that_resets_after_the_product_is_one_finding_with_its_remedy_and_lines():
    def tf1(inputs, training):
        cells = v1.nn.rnn_cell.MultiRNNCell([v1.nn.rnn_cell.GRUCell(8) for _ in range(2)])
        embedded = tf.nn.embedding_lookup(v1.get_variable("embedding/embeddings", (20, 6)), inputs)
        return affine(v1.nn.dynamic_rnn(cells, embedded, dtype=tf.float32)[1][-1], 3, "logits", bias=True)

    class Recurrent(keras.Model):
        def __init__(self, **arguments):
            super().__init__()
            self.embedding = keras.layers.Embedding(20, 6, name="embedding")
            self.first = keras.layers.GRU(8, return_sequences=True, **arguments)
            self.second = keras.layers.GRU(8, **arguments)
            self.logits = keras.layers.Dense(3, name="logits")

        def call(self, inputs, training=False):
            return self.logits(self.second(self.first(self.embedding(inputs))))

    sequences = np.random.default_rng(0).integers(0, 20, (4, 7))
    with enable_v1_layers():
        migration = Migration(tf1=tf1, port=Recurrent, inputs=sequences, expect=["initializers-match"])
        (finding,) = validate(migration).findings
        assert validate(replace(migration, port=lambda: Recurrent(reset_after=False))).ok
    assert finding.title.startswith("variables: shape differs (2): rnn/multi_rnn_cell/cell_0/gru_cell/gates/bias + ")
    assert finding.remedy.endswith("Make it with reset_after=False")
    assert finding.tf1.line.startswith(__file__) and finding.port.line.startswith(__file__)


@pytest.mark.slow
def test_another_fault_beside_a_variable_of_one_program_is_a_finding_of_its_own():
    findings = findings_of(ROWS, {}, {"bias": False, "factor": 2.0})
    assert [finding.kind for finding in findings] == ["variables", "computation"]
    assert findings[1].title == "only the port multiplies by 2.0"


class MadeInEachCall(keras.layers.Layer):
    """A port of `network` without normalization that makes its layer, or a part of it, in each call."""

    def __init__(self, keeps_hidden):
        super().__init__()
        self.hidden = keras.layers.Activation("relu") if keeps_hidden else None
        self.kept = keras.layers.Dense(4, use_bias=False, name="kept") if keeps_hidden else None

    def call(self, inputs, training=False):
        hidden = keras.ops.relu(self.kept(inputs) if self.kept else inputs)
        return keras.layers.Dense(3, name="logits")(hidden)  # here


def network_with_kept_layer(inputs, training):
    hidden = affine(inputs, 4, "kept", bias=False)
    return affine(tf.nn.relu(hidden), 3, "logits", bias=True)


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, True], ids=["outputs", "training"])
@pytest.mark.parametrize("keeps", [False, True], ids=["no layer kept", "a layer kept"])
def test_what_a_port_computes_that_makes_layers_in_each_call_is_no_finding(keeps, trains):
    tf1 = network_with_kept_layer if keeps else functools.partial(network, normalizes=False)
    migration = Migration(tf1=tf1, port=lambda: MadeInEachCall(keeps), inputs=ROWS, train=TRAIN if trains else None)
    made, lacking = validate(migration).findings
    assert made.title == "the port creates variables when it is called again"
    assert made.port.source.endswith("# here")
    assert lacking.checks == ("variables-match",)


class Towers(keras.Model):
    """Three towers of a hidden layer and an output: one of each for all towers, or for each tower."""

    def __init__(self, shared):
        super().__init__()
        made = [[keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)] for _ in range(1 if shared else 3)]
        self.towers = made * 3 if shared else made

    def call(self, first, second, third, training=False):
        outputs = (out(hidden(each)) for each, (hidden, out) in zip((first, second, third), self.towers, strict=True))
        return sum(output * (number + 1) for number, output in enumerate(outputs))


def tf1_towers(first, second, third, training):
    def tower(inputs):
        with v1.variable_scope("tower", reuse=v1.AUTO_REUSE):
            return affine(tf.tanh(affine(inputs, 5, "hidden", True)), 3, "out", True)

    return sum(tower(each) * (number + 1) for number, each in enumerate((first, second, third)))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_copies_of_variables_that_tf1_shares_are_one_finding(shared):
    inputs = (ROWS, ROWS[::-1].copy(), 2 * ROWS)
    migration = Migration(tf1=tf1_towers, port=lambda: Towers(shared), inputs=inputs)
    findings = validate(migration, checks=["variables-match"]).findings
    assert bool(findings) is not shared
    for finding in findings:
        assert finding.title.startswith("variables: the port has copies of variables that TF1 shares (8): ")
        assert finding.remedy == "make the layer once in the port, and call it at each place"
        assert finding.tf1.op.startswith("tower/") and finding.tf1.line


def test_a_layer_that_only_the_port_has_is_no_copy():
    def tf1(inputs, training):
        return affine(tf.tanh(affine(inputs, 4, "first", True)), 4, "second", True)

    def port():
        layers = [keras.layers.Dense(4, name=name) for name in ("first", "second", "third")]
        return keras.Sequential([layers[0], keras.layers.Activation("tanh"), *layers[1:]])

    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=ROWS), checks=["variables-match"]).findings
    assert finding.title.startswith("variables: only in the port (2): ")


def test_what_may_follow_from_wrong_pairs_of_variables_is_no_finding():
    def result(name, *findings):
        found = tuple(replace(each, kind="computation", checks=(name,)) for each in findings)
        return CheckResult(False, "", name=name, seconds=0.0, findings=found)

    activation = Finding("", "an activation", confirmed="the rest agrees", fault=Fault.ACTIVATION)
    rate, ops = Finding("", "a rate", fault=Fault.DROPOUT), Finding("", "ops", fault=Fault.OPS)
    names = CheckResult(False, "", name="variables-match", seconds=0.0, findings=(Finding("names", "names"),))

    def titles(*checks):
        report = Report("network", (names, *checks), 42, {}, {}, "", "", Audit())
        return [each.title for each in report.findings]

    with_pairs = result("random-training", activation, rate, ops)
    assert titles(with_pairs) == ["an activation", "a rate", "ops", "names"]
    assert titles(result("constant-weights", activation), with_pairs) == ["an activation", "a rate", "names"]
    assert titles(result("constant-weights", ops), with_pairs) == ["ops", "an activation", "a rate", "names"]
