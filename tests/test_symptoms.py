"""``detrand explain``: each finding and error that has a section is provoked here, and has the text that it shows."""

import inspect
import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand.__main__ import main
from detrand._patching.patches import Target
from detrand.packages import needed_by
from detrand.report.symptoms import sections
from detrand.validation import report as validation_report
from detrand.validation.migration_files import load_migrations
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
SECTIONS = sections()
IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)


def network(images, training):
    """A convolution, batch normalization, pooling, dropout and logits, as written for TensorFlow 1."""
    kernel = v1.get_variable("conv/kernel", [3, 3, 3, 4], regularizer=lambda w: 0.01 * tf.nn.l2_loss(w))
    x = tf.nn.conv2d(images, kernel, 2, "SAME")
    gamma = v1.get_variable("norm/gamma", [4], initializer=v1.ones_initializer())
    beta = v1.get_variable("norm/beta", [4], initializer=v1.zeros_initializer())
    mean = v1.get_variable("norm/moving_mean", [4], initializer=v1.zeros_initializer(), trainable=False)
    variance = v1.get_variable("norm/moving_variance", [4], initializer=v1.ones_initializer(), trainable=False)
    if training:
        moments = tf.nn.moments(x, [0, 1, 2])
        for average, moment in zip((mean, variance), moments, strict=True):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(average, average * 0.99 + moment * 0.01))
        mean, variance = moments
    x = tf.nn.relu(tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3))
    x = tf.reduce_mean(x, [1, 2])
    x = v1.nn.dropout(x, keep_prob=0.8) if training else x
    return tf.matmul(x, v1.get_variable("logits/kernel", [4, 3]))


class SumPooling(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sum(x, (1, 2))


HALF_OF_SQUARES = keras.regularizers.L2(0.005)


def make_port(
    padding="same",
    use_bias=False,
    regularizer=HALF_OF_SQUARES,
    initializer="glorot_uniform",
    epsilon=1e-3,
    momentum=0.99,
    activation="relu",
    pooling=keras.layers.GlobalAveragePooling2D,
    rate=0.2,
):
    x = images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(
        4,
        3,
        strides=2,
        padding=padding,
        use_bias=use_bias,
        kernel_regularizer=regularizer,
        kernel_initializer=initializer,
        name="conv",
    )(x)
    x = keras.layers.BatchNormalization(epsilon=epsilon, momentum=momentum, name="norm")(x)
    x = pooling()(keras.layers.Activation(activation)(x))
    x = keras.layers.Dropout(rate)(x) if rate else x
    return keras.Model(images, keras.layers.Dense(3, use_bias=False, name="logits")(x))


def findings(tf1=network, port=make_port, inputs=IMAGES, checks=None, **arguments):
    migration = detrand.Migration(tf1=tf1, port=port, inputs=inputs, **arguments)
    report = detrand.validate(migration, checks=checks)
    return report.findings


def with_fault(*checks, **fault):
    return lambda tmp_path: findings(port=lambda: make_port(**fault), checks=checks or None)


def trained(port=make_port, **changed):
    arguments = {
        "labels": np.array([0, 1, 2, 1]),
        "tf1_loss": v1.losses.sparse_softmax_cross_entropy,
        "port_loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.01),
        "port_optimizer": lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
        "steps": 2,
    }
    return findings(port=port, train=detrand.TrainStep(**{**arguments, **changed}), checks=["training-steps"])


def flattened(images, training):
    x = tf.nn.conv2d(images, v1.get_variable("conv/kernel", [3, 3, 3, 4]), 4, "SAME")
    return tf.matmul(tf.reshape(x, [-1, 16]), v1.get_variable("logits/kernel", [16, 3]))


def flattened_with_channels_first():
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, strides=4, padding="same", use_bias=False, name="conv")(images)
    x = keras.layers.Flatten()(keras.layers.Permute((3, 1, 2))(x))
    return keras.Model(images, keras.layers.Dense(3, use_bias=False, name="logits")(x))


class NeverTrains(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.model = make_port()

    def call(self, images, training=False):
        return self.model(images, training=False)


def two_layers(x, training):
    p, q = (v1.get_variable(f"{name}/kernel", [3, 3]) for name in "pq")
    return tf.matmul(tf.tanh(tf.matmul(x, p)), q)


def swapped_layers():
    x = keras.Input([3])
    p, q = (keras.layers.Dense(3, use_bias=False, name=name) for name in "pq")
    return keras.Model(x, p(keras.ops.tanh(q(x))))


def ordered(x, training, *, before=False):
    def scaled(x):
        return x / (1 + tf.reduce_sum(x * x, -1, keepdims=True)) * v1.get_variable("norm/scale", [4])

    kernel = v1.get_variable("p/kernel", [4, 4])
    x = tf.matmul(scaled(x), kernel) if before else scaled(tf.matmul(x, kernel))
    return tf.matmul(tf.tanh(x), v1.get_variable("q/kernel", [4, 2]))


def gated(x, training, *, exchanged=False):
    r, u = tf.split(tf.matmul(x, v1.get_variable("p/kernel", [4, 8])), 2, 1)
    r, u = (u, r) if exchanged else (r, u)
    return tf.matmul(tf.tanh(r) * tf.sigmoid(u), v1.get_variable("q/kernel", [4, 2]))


def causal(x, training):
    scores = tf.matmul(x, x, transpose_b=True)
    weights = tf.nn.softmax(scores - 1e9 * (1 - tf.linalg.band_part(tf.ones([4, 4]), -1, 0)))
    return tf.matmul(weights, tf.einsum("btd,de->bte", x, v1.get_variable("p/kernel", [3, 3])))


def not_causal():
    x = keras.Input([4, 3])
    weights = keras.layers.Softmax()(keras.layers.Dot(2)([x, x]))
    return keras.Model(x, keras.layers.Dot((2, 1))([weights, keras.layers.Dense(3, use_bias=False, name="p")(x)]))


def masked(x, training):
    x = tf.matmul(x, v1.get_variable("p/kernel", [3, 5]))
    return x * tf.cast(tf.random.uniform(tf.shape(x)) < 0.8, tf.float32) / 0.8 if training else x


def masked_in_keras():
    x = keras.Input([3])
    return keras.Model(x, keras.layers.Dropout(0.2)(keras.layers.Dense(5, use_bias=False, name="p")(x)))


def two_products(x, training):
    p, q = (v1.get_variable(name, [3, 2]) for name in "pq")
    return tf.matmul(x, p) + tf.matmul(x, q)


class DifferenceOfProducts(keras.layers.Layer):
    """A port that cannot be traced as a `tf.function`, so that no op of it is known."""

    def __init__(self):
        super().__init__()
        self.both = [keras.layers.Dense(2, use_bias=False) for _ in "pq"]
        for layer in self.both:
            layer.build((None, 3))

    def call(self, x, training=False):
        first, second = (layer(x).numpy() for layer in self.both)
        return tf.constant(first - second)


class CreatesInEachCall(keras.layers.Layer):
    def call(self, x, training=False):
        return x * tf.Variable(2.0)


class Raises(keras.layers.Layer):
    def call(self, x, training=False):
        return x.no_such_method()


def from_checkpoint_of_a_part(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("conv/kernel", [3, 3, 3, 4])
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    return findings(checkpoint=path)


def of_other_outputs(tmp_path):
    """Save a graph, and outputs that it does not compute."""
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, IMAGES.shape)
        logits = network(images, training=False)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "saved"), {"images": images}, {"logits": logits})
    (tmp_path / "saved" / "assets.extra").mkdir()
    recorded = {
        "seed": 42,
        "tensorflow": "1.15.5",
        "inputs/0": IMAGES,
        f"inference/{logits.name}": np.ones((4, 3), "f"),
    }
    np.savez(tmp_path / "saved" / "assets.extra" / "detrand.npz", **recorded)
    return findings(tmp_path / "saved")


FINDINGS = {
    "value": lambda tmp_path: [
        *with_fault("constant-weights", epsilon=1e-5)(tmp_path),
        *with_fault("constant-weights", padding="valid")(tmp_path),
    ],
    "op": with_fault("constant-weights", activation="elu"),
    "mask": lambda tmp_path: findings(causal, not_causal, IMAGES[:1, 0, :4]),
    "axes": lambda tmp_path: findings(flattened, flattened_with_channels_first),
    "order": lambda tmp_path: [
        *findings(ordered, shim_port(ordered, before=True), IMAGES[0, 0, :, :1] + np.eye(8, 4, dtype=np.float32)),
        *findings(gated, shim_port(gated, exchanged=True), IMAGES[0, 0, :, :1] + np.eye(8, 4, dtype=np.float32)),
    ],
    "dropout": lambda tmp_path: [
        *with_fault("random-training", rate=0.8)(tmp_path),
        *findings(masked, masked_in_keras, IMAGES[0, 0]),
    ],
    "reduction": with_fault("constant-weights", pooling=SumPooling),
    "training-mode": lambda tmp_path: findings(port=NeverTrains),
    "random-op": with_fault("random-training", rate=0),
    "unknown": lambda tmp_path: findings(two_products, DifferenceOfProducts, IMAGES[0, 0]),
    "variables": with_fault(use_bias=True),
    "swapped": lambda tmp_path: findings(two_layers, swapped_layers, IMAGES[0, 0]),
    "created": lambda tmp_path: findings(port=CreatesInEachCall),
    "names": lambda tmp_path: findings(two_products, DifferenceOfProducts, IMAGES[0, 0]),
    "initializers": with_fault(initializer="he_normal"),
    "regularizers": with_fault(regularizer=keras.regularizers.L2(0.01)),
    "averages": with_fault(momentum=0.9),
    "training": lambda tmp_path: trained(port_optimizer=lambda: keras.optimizers.Adam(0.02, epsilon=1e-8)),
    "optimizer": lambda tmp_path: trained(port_optimizer=lambda: keras.optimizers.Adam(0.01)),
    "loss": lambda tmp_path: trained(port_loss=keras.losses.SparseCategoricalCrossentropy()),
    "checkpoint": from_checkpoint_of_a_part,
    "original": of_other_outputs,
    "error": lambda tmp_path: findings(port=Raises),
}


def two_scopes_in_one():
    scope = detrand.DeterministicRandomTestTool().scope()
    for _ in range(2):
        with scope:
            pass


def an_op_seed_twice():
    tool = detrand.DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        tf.random.uniform([2])
        tool.operation_seed = 0
        tf.random.uniform([2])


def one_more_draw_in_the_second_step():
    tool = detrand.DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for draws in (1, 2):
            with tool.step():
                for _ in range(draws):
                    tf.random.uniform([2])


class CallsPlaceholder(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, x):
        return tf.placeholder(tf.float32)


def a_variable_too_late():
    with detrand.assert_no_variable_creations():
        tf.Variable(2.0, name="scale")


def a_variable_that_the_port_lacks():
    with tf.Graph().as_default() as graph:
        v1.get_variable("logits/bias", [3])
    detrand.assert_variables_match(graph, keras.layers.Dense(3))


def of_labels(images, labels, training):
    return v1.losses.sparse_softmax_cross_entropy(labels, network(images, training))


def without_tensorflow():
    with mock.patch("detrand.packages.is_installed", lambda package: False), needed_by("detrand.validate"):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")


ERRORS = {
    "ArgumentError": lambda: detrand.DeterministicRandomTestTool(mode="random"),
    "ScopeError": two_scopes_in_one,
    "SeedReuseError": an_op_seed_twice,
    "StepMismatchError": one_more_draw_in_the_second_step,
    "TF1CodeError": lambda: CallsPlaceholder()(tf.ones(2)),
    "VariableCreationError": a_variable_too_late,
    "VariableMismatchError": a_variable_that_the_port_lacks,
    "CheckpointError": lambda: detrand.load_tf1_checkpoint(make_port(), "missing/model.ckpt"),
    "RecordingError": lambda: detrand.StepRecorder.load("steps.npz"),
    "ComparisonError": lambda: detrand.assert_allclose({"logits": np.ones(2)}, {"logits": np.array([1.0, 1.5])}),
    "MissingPackageError": without_tensorflow,
    "MigrationError": (
        lambda: load_migrations("migration.py"),
        lambda: findings("model.pb"),
        lambda: findings(lambda images, training: tf.placeholder(tf.float32)),
        lambda: findings(of_labels, inputs=(IMAGES, np.array([0, 1, 2, 1]))),
    ),
    "PatchError": Target("keras", "Input", ("images",)).checked,
}


def zeros(x, training):
    return tf.matmul(x, v1.get_variable("kernel", [3, 2])) * 0.0


class Zeros(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, x, training=False):
        return zeros(x, training)


def lines_of_page(label):
    """Return the lines that a section shows, as patterns."""
    shown = re.findall(r"^\.\. code-block:: text\n\n((?:(?:    .*)?\n)+)", SECTIONS[label], re.MULTILINE)
    return [re.escape(line.strip()).replace(r"\.\.\.", ".*") for text in shown for line in text.splitlines() if line]


def assert_shown(label, text):
    patterns = lines_of_page(label)
    assert patterns
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern}\nis not in\n{text}"


@pytest.mark.slow_except("error")
@pytest.mark.parametrize("label", FINDINGS)
def test_a_finding_has_the_text_of_its_section(label, tmp_path):
    found = FINDINGS[label](tmp_path)
    assert_shown(label, "\n".join(map(str, found)))
    assert label in {finding.symptom for finding in found}
    kind = re.search(r"^Kind ``(\w+)``", SECTIONS[label], re.MULTILINE)
    assert (kind[1] if kind else "computation") in {finding.kind for finding in found}


def test_an_error_that_passes_through_no_code_of_the_user_has_no_line():
    (finding,) = findings(inputs=IMAGES[:, 0], tf1=lambda x, training: x, port=lambda: keras.layers.Conv2D(3, 3))
    assert finding.symptom == "error" and finding.port is None
    assert "If your code raised it, the finding has the line" in SECTIONS["error"]


@pytest.mark.slow
def test_a_port_that_does_not_pass_on_that_it_trains_is_one_finding(tmp_path):
    (finding,) = FINDINGS["training-mode"](tmp_path)
    assert finding.title.endswith(": statistics of the batch (TF1), moving averages (port)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "regularizer", [HALF_OF_SQUARES, lambda w: 0.005 * keras.ops.sum(keras.ops.square(w))], ids=["of Keras", "function"]
)
@pytest.mark.parametrize("is_layer", [True, False], ids=["loss of Keras", "function"])
def test_the_op_of_a_summed_loss_is_the_sum_and_not_a_regularizer(is_layer, regularizer):
    def summed(labels, logits):
        return keras.ops.sum(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))

    in_keras = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    (finding,) = trained(lambda: make_port(regularizer=regularizer), port_loss=in_keras if is_layer else summed)
    assert finding.title.startswith("the port sums a loss where TF1 takes the mean")
    assert finding.port.op.endswith("Sum (Sum)")
    assert finding.port.line.startswith(__file__) and ", used at" not in finding.port.line


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_the_text_of_its_section(name):
    messages = []
    for provoke in ERRORS[name] if isinstance(ERRORS[name], tuple) else (ERRORS[name],):
        with pytest.raises(getattr(detrand.errors, name)) as raised:
            provoke()
        messages.append(str(raised.value))
    assert_shown(name, "\n".join(messages))
    assert all(any(re.search(pattern, message) for pattern in lines_of_page(name)) for message in messages)


def test_what_is_not_compared_has_the_text_of_its_section():
    report = detrand.validate(detrand.Migration(tf1=zeros, port=Zeros, inputs=IMAGES[0, 0]))
    assert report.verdict == "inconclusive"
    assert_shown("inconclusive", "\n".join(check.summary for check in report.checks))


def test_every_kind_of_finding_and_every_error_has_a_section():
    described = re.search(r"kind: (.*?)\n  title", inspect.getdoc(detrand.Finding), re.DOTALL)
    kinds = re.findall(r'``"(\w+)"``', described[1])
    of_module = vars(detrand.errors).items()
    errors = [name for name, value in of_module if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) == 10 and len(errors) == 14
    assert {*kinds, *errors} <= SECTIONS.keys()
    assert {*validation_report._SYMPTOMS.values()} <= SECTIONS.keys()
    assert SECTIONS.keys() == {*FINDINGS, *ERRORS, "computation", "inconclusive", "DetrandError"}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("symptom", SECTIONS)
def test_explain_prints_the_section_without_markup(symptom, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["explain", symptom.upper()]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(SECTIONS[symptom].partition("\n")[0])
    assert not re.search(r"``|:\w+:`|^\.\.|~~", printed, re.MULTILINE)
    assert printed.count("\n- ") == SECTIONS[symptom].count("\n- ")


def test_explain_lists_all_symptoms(capsys):
    assert main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SECTIONS)


def test_a_symptom_that_is_misspelled(capsys):
    assert main(["explain", "valu"]) == 2
    expected = "detrand: there is no symptom 'valu'. Did you mean value? `detrand explain` lists all symptoms"
    assert capsys.readouterr().err.strip() == expected


def test_an_error_of_the_command_names_its_explanation(tmp_path, capsys):
    assert main(["diff", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]) == 2
    assert capsys.readouterr().err.strip().endswith("(detrand explain RecordingError)")
