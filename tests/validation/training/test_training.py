"""The check `training-steps`: it computes what a TF1 training loop computes, and sound ports pass it."""

import re
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import track_tf1_style_variables, validate
from detrand.__main__ import main
from detrand.validation.training.tf1 import train_in_session
from tests.support.shim_ports import shim_port
from tests.support.trained_classifier import (
    INPUTS,
    LABELS,
    SGD,
    STEPS,
    assert_is_session,
    check,
    cross_entropy,
    hand_written_session,
    in_keras_port,
    keras_optimizer,
    mean_logit,
    migration,
    model,
    shim,
    tf1_accuracy,
    tf1_loss,
)

v1 = tf.compat.v1


@pytest.mark.slow
def test_an_additional_random_op_does_not_shift_the_others():
    class DrawsMore(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return model(inputs + 0.0 * tf.random.normal(inputs.shape), training)

    found = check(port=DrawsMore)
    assert found.ok, found.details


def test_the_session_computes_what_a_handwritten_loop_computes():
    """Dropout, update ops, regularization, a rate that decays and a metric that counts."""
    trained = migration()
    expected = hand_written_session()
    steps = train_in_session(trained, trained.training_batches(), "num_random_ops").steps
    assert_is_session(steps, expected)
    assert len({float(step["loss"]) for step in expected}) == STEPS
    assert [round(float(step["learning_rate"]), 6) for step in steps] == [0.1, 0.1, 0.05, 0.05]
    assert list(steps[0]) == [
        *("learning_rate", "outputs", "regularization_loss", "loss", "metrics", "gradients"),
        *("weights", "moving_averages"),
    ]


@pytest.mark.slow
def test_step_k_takes_batch_k():
    batches = [(INPUTS * (k + 1), (LABELS + k) % 3) for k in range(2)]
    trained = migration(inputs=lambda: (x for x, _ in batches), labels=lambda: (y for _, y in batches))
    steps = train_in_session(trained, trained.training_batches(), "num_random_ops").steps
    assert_is_session(steps, hand_written_session(batches=batches * 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [keras.layers.Layer, tf.Module], ids=["layer", "module"])
def test_programs_may_change_the_dicts_that_they_are_passed(kind):
    """A model_fn may remove columns of its features and add others."""

    def of_features(features, training):
        features["sum"] = features["first"] + features.pop("second")
        return model(features["sum"], training, scale=0)  # a module keeps no losses

    def on_labels(function):
        return lambda labels, outputs: function(labels.pop("classes"), outputs)

    changing = migration(
        tf1=of_features,
        port=shim_port(of_features, kind),
        inputs={"first": INPUTS, "second": INPUTS[::-1]},
        labels={"classes": LABELS},
        tf1_loss=on_labels(tf1_loss),
        port_loss=on_labels(cross_entropy()),
        metrics={"mean": on_labels(mean_logit), "mean again": on_labels(mean_logit)},
        steps=2,
    )
    report = validate(changing, checks=["training-steps"])
    assert report.ok, str(report)
    assert all("identical" in check.summary for check in report.checks[4:-1]), str(report)


def test_one_step_equals_the_formula_in_numpy():
    """A linear model, by the formula."""
    found = check(
        tf1=lambda x, training: tf.matmul(x, v1.get_variable("w", (4, 1), initializer=v1.ones_initializer())),
        port=lambda: keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="d"),
        name_map={"w": "d/kernel"},
        labels=np.zeros((6, 1), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        port_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.SGD(0.01),
        metrics={},
        steps=1,
    )
    assert found.ok, found.details
    comparison = found.trainings["in a tf.function"].steps[0]
    gradient = 2 * INPUTS.T @ (INPUTS @ np.ones((4, 1)))
    (leaf,) = comparison["gradients"].leaves
    assert leaf.path == "gradients['w']"
    largest = leaf.greatest_absolute
    np.testing.assert_allclose(largest.actual, gradient[largest.index], rtol=1e-5)
    (leaf,) = comparison["weights"].leaves
    np.testing.assert_allclose(
        leaf.greatest_absolute.actual, (1 - 0.01 * gradient)[leaf.greatest_absolute.index], rtol=1e-5
    )


def positive(x):
    if tf.reduce_sum(x) > 0:
        return x
    return -x


class ModuleWithCondition(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.ones((4, 1), np.float32), name="w")

    def __call__(self, inputs, training):
        return positive(tf.matmul(inputs, self.kernel))


class LayerWithCondition(tf_keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight("w", (4, 1), initializer="ones")

    def call(self, inputs, training):
        return positive(tf.matmul(inputs, self.kernel))


@pytest.mark.slow
@pytest.mark.parametrize("port", [ModuleWithCondition, LayerWithCondition])
def test_in_a_function_user_code_may_have_conditions_on_tensors(port):
    """AutoGraph converts them; converting detrand's own code would take longer than everything else."""
    converted = []

    @tf.autograph.experimental.do_not_convert
    def look():
        converted.append([frame.name for frame in traceback.extract_stack() if "autograph_generated" in frame.filename])

    def port_loss(labels, outputs):
        look()
        return tf.reduce_sum((positive(outputs) - labels) ** 2)

    def tf1(inputs, training):
        outputs = tf.matmul(inputs, v1.get_variable("w", (4, 1), initializer=v1.ones_initializer()))
        return tf.where(tf.reduce_sum(outputs) > 0, outputs, -outputs)

    found = check(
        tf1=tf1,
        port=port,
        name_map={"w": "layer_with_condition/w"} if port is LayerWithCondition else None,
        labels=np.zeros((6, 1), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        port_loss=port_loss,
        metrics={
            "positive": (
                lambda labels, outputs: tf.abs(tf.reduce_sum(outputs)),
                lambda labels, x: positive(tf.reduce_sum(x)),
            )
        },
    )
    assert found.ok, found.details
    assert converted[0] == []
    assert ["tf__port_loss"] in converted


class KerasPort(keras.Model):
    """The model in Keras layers, except for the batch normalization: Keras 3's averages a different variance.

    Keras makes all variables before the first dropout draws.
    """

    def __init__(self):
        super().__init__(name="port")
        l2 = keras.regularizers.L2(0.01)
        self.hidden = keras.layers.Dense(5, kernel_regularizer=l2, name="hidden")
        self.mean = self.add_weight(shape=(5,), initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(shape=(5,), initializer="ones", trainable=False, name="variance")
        self.dropout = keras.layers.Dropout(0.4)
        self.logits = keras.layers.Dense(3, kernel_regularizer=l2, name="logits")

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        mean, variance = tf.nn.moments(hidden, [0]) if training else (self.mean, self.variance)
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            self.variance.assign(0.9 * self.variance + 0.1 * variance)
        hidden = tf.nn.relu((hidden - mean) / tf.sqrt(variance + 1e-3))
        return self.logits(self.dropout(hidden, training=training))


PORTS = {
    "shim": {},
    "shim, the same optimizer": {"port_optimizer": SGD},
    "shim in tf_keras": {
        "port": shim(tf_keras.layers.Layer),
        "port_loss": cross_entropy(tf_keras),
        "port_optimizer": keras_optimizer(tf_keras),
        "metrics": {"accuracy": (tf1_accuracy, tf_keras.metrics.SparseCategoricalAccuracy())},
    },
    "shim in tf_keras, older optimizer": {
        "port": shim(tf_keras.layers.Layer),
        "port_optimizer": keras_optimizer(tf_keras, legacy=True),
    },
    "keras": {"port": KerasPort, "name_map": in_keras_port},
    "keras, TF1's optimizer": {"port": KerasPort, "name_map": in_keras_port, "port_optimizer": SGD},
    "keras, tf_keras's optimizer": {
        "port": KerasPort,
        "name_map": in_keras_port,
        "port_optimizer": keras_optimizer(tf_keras),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", PORTS.values(), ids=PORTS)
def test_sound_ports_pass(changes):
    found = check(**changes)
    assert found.ok, found.details
    assert found.summary.startswith(("eagerly: all 4 steps ", "eagerly and in a tf.function: all 4 steps "))
    assert "in a tf.function: all 4 steps " in found.summary
    assert "in constant mode" not in found.summary
    for comparison in found.trainings.values():
        assert list(comparison.steps) == [0, 1, 2, 3]
        assert len(comparison.steps[0]) == 8


@pytest.mark.slow
def test_grappler_is_on_again_afterwards():
    before = tf.config.optimizer.get_experimental_options()
    check(steps=1)
    assert tf.config.optimizer.get_experimental_options() == before


@pytest.mark.slow
def test_labels_and_outputs_may_have_any_structure():
    def two_headed(inputs, training):
        return {"main": model(inputs, training), "aux": tf.reduce_sum(inputs, 1)}

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return two_headed(inputs, training)

    def loss_of(entropy):
        return lambda labels, outputs: entropy(labels["class"], outputs["main"]) + tf.reduce_mean(labels["aux"][0])

    found = check(
        tf1=two_headed,
        port=Port,
        labels={"class": LABELS, "aux": [np.ones((6, 2), np.float32)]},
        tf1_loss=loss_of(tf1_loss),
        port_loss=loss_of(cross_entropy()),
        metrics={},
    )
    assert found.ok, found.details
    leaves = found.trainings["eagerly"].steps[0]["outputs"].leaves
    assert [leaf.path for leaf in leaves] == ["outputs['main']", "outputs['aux']"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 0.5], ids=["none", "left out"])
def test_a_module_has_no_losses_of_its_own(scale):
    class Port(tf.Module):
        @track_tf1_style_variables
        def __call__(self, inputs, training=False):
            return model(inputs, training, scale=0.0)

    found = check(tf1=lambda inputs, training: model(inputs, training, scale=scale), port=Port)
    assert found.ok == (not scale), found.details
    note = "the port has no losses attribute: port_loss must add the regularization losses"
    assert (note in found.summary) == bool(scale)
    assert "regularization_loss" not in found.trainings["eagerly"].steps[0]


@pytest.mark.slow
def test_an_optimizer_without_a_rate_is_compared():
    class Fixed(v1.train.Optimizer):
        def __init__(self):
            super().__init__(use_locking=False, name="Fixed")

        def apply_gradients(self, pairs, global_step=None, name=None):
            return tf.group(*(v1.assign_sub(variable, 0.05 * gradient) for gradient, variable in pairs))

    found = check(tf1_optimizer=Fixed, port_optimizer=lambda: keras.optimizers.SGD(0.05))
    assert found.ok, found.details
    assert "learning rates not compared: an optimizer keeps none, or TF1 has several optimizers" in found.summary


def test_a_port_that_raises_fails_the_check():
    class Raises(keras.layers.Layer):
        def call(self, inputs, training=False):
            raise OverflowError("too much")

    found = check(port=Raises)
    assert not found.ok
    assert re.match(r"raised OverflowError: .*too much.*test_training.py:\d+", found.summary)


FILE = """
import keras, numpy as np, tensorflow as tf, detrand

migration = detrand.Migration(
    tf1=lambda x, training: tf.matmul(x, tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    inputs=np.ones((4, 3), np.float32),
    train=detrand.TrainStep(
        labels=np.zeros((4, 2), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_mean((labels - outputs) ** 2) * FACTOR,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(RATE),
    ),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "rate", "code", "stdout", "stderr"),
    [
        (1, 0.1, 0, "all 9 checks passed", r"^$"),
        (1, 0.2, 1, "1 of 9 checks failed; first: training-steps", r"^$"),
        ("np.nan", 0.1, 2, "", r"^detrand: the loss of the TF1 program of .* is nan in the first step, .*\n$"),
    ],
    ids=["passes", "fails", "cannot run"],
)
def test_the_command_line_reports_a_training(factor, rate, code, stdout, stderr, tmp_path, capsys):
    file = tmp_path / "dense.py"
    file.write_text(FILE.replace("FACTOR", str(factor)).replace("RATE", str(rate)))
    assert main(["validate", str(file)]) == code
    said = capsys.readouterr()
    assert stdout in said.out
    assert re.match(stderr, said.err), said.err
