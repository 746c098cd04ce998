"""Losses that differ: the finding names the op and the line inside of the loss."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import dense, integers, numbers

CLASSES, NUMBERS = integers(4, 6), numbers(6, 4)


def cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def tf1_loss(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def discounted(factor):
    return lambda labels, outputs: tf.reduce_mean(tf.square(labels * factor + 0.5 - outputs))


def port_loss(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def with_another_factor(labels, outputs):
    weights = tf.cast(tf.greater(labels, 0), tf.float32) + 0.5
    penalty = tf.reduce_mean(tf.square(outputs)) * 0.4  # here
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + penalty


def without_weights(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs)) + 0.3 * tf.reduce_mean(tf.square(outputs))  # here


def of_other_labels(labels, outputs):
    weights = tf.cast(tf.greater(labels, 1), tf.float32) + 0.5  # here
    return tf.reduce_mean(cross_entropy(labels, outputs) * weights) + 0.3 * tf.reduce_mean(tf.square(outputs))


def validated(loss, port=lambda: keras.layers.Dense(4), of_tf1=tf1_loss, labels=CLASSES, checks=None):
    train = detrand.TrainStep(
        labels=labels,
        tf1_loss=of_tf1,
        port_loss=loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=1,
    )
    return detrand.validate(
        detrand.Migration(
            tf1=lambda x, training: dense(x, 4, "a"),
            port=port,
            inputs=numbers(6, 3),
            name_map=lambda name: name.replace("a/w", "dense/kernel").replace("a/b", "dense/bias"),
            train=train,
        ),
        checks=checks,
    )


def line_of(loss):
    lines, start = inspect.getsourcelines(loss)
    return start + next(number for number, line in enumerate(lines) if line.rstrip().endswith("# here"))


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (with_another_factor, "loss: factor differs: 0.3 (TF1), 0.4 (port)"),
        (without_weights, "loss: only TF1 masks the loss by the labels (Greater)"),
        (of_other_labels, "loss: threshold differs: 0 (TF1), 1 (port)"),
    ],
)
def test_a_difference_inside_of_a_loss_is_named_with_its_line(loss, title):
    finding, *others = validated(loss).findings
    assert not others
    assert finding.title == title
    assert finding.port.line.endswith(f"test_loss_of_outputs.py:{line_of(loss)}")
    assert finding.confirmed


def test_a_factor_of_the_labels_is_named_as_the_code_has_it():
    (finding,) = validated(discounted(0.9), of_tf1=discounted(0.99), labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title == "loss: factor of the labels, such as 1 - label smoothing, differs: 0.99 (TF1), 0.9 (port)"
    assert finding.remedy == "use 0.99 in the port"


def smoothed(labels, outputs):
    labels = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=outputs))


def smoothed_by_tf1(labels, outputs):
    return tf.losses.softmax_cross_entropy(tf.one_hot(labels, 4), outputs, label_smoothing=0.1)


@pytest.mark.parametrize("of_tf1", [smoothed, smoothed_by_tf1])
def test_a_label_smoothing_that_differs_is_one_finding(of_tf1):
    def loss(labels, outputs):
        smoothing = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
        return smoothing(tf.one_hot(labels, 4), outputs)

    (finding,) = validated(loss, of_tf1=of_tf1, checks=["training-steps"]).findings
    assert finding.title == "loss: label smoothing differs: 0.1 (TF1), 0.2 (port)"
    assert finding.confirmed == "with TF1's label smoothing, the rest agrees"
    assert finding.remedy == "use 0.1 in the port"


def test_a_loss_is_compared_of_the_outputs_of_tf1():
    """A fault of the model is found beside a fault of the loss, and is no difference of the loss."""

    class Shifted(keras.layers.Dense):
        def call(self, x):
            return super().call(x) + 0.5

    titles = [each.title for each in validated(with_another_factor, lambda: Shifted(4, name="dense")).findings]
    assert "loss: factor differs: 0.3 (TF1), 0.4 (port)" in titles
    assert len([title for title in titles if title.startswith("loss:")]) == 1


def test_equal_losses_pass():
    assert np.all([check.ok for check in validated(port_loss).checks])


def mean_cross_entropy(labels, outputs):
    return tf.reduce_mean(cross_entropy(labels, outputs))


def sum_of_cross_entropy(labels, outputs):
    return tf.reduce_sum(cross_entropy(labels, outputs))


def mean_of_squares(labels, outputs):
    return tf.reduce_mean((labels - outputs) ** 2)


def sum_of_squares(labels, outputs):
    return 2.0 * tf.nn.l2_loss(labels - outputs)


def sum_of_squares_with_twice_the_gradient(labels, outputs):
    twice = tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: 2.0 * upstream))
    return sum_of_squares(labels, twice(outputs))


SUMS = "the port sums a loss where TF1 takes the mean: it is {} times as large, a size of the outputs"
WITH_VALUE = "with TF1's value here, the rest agrees"


@pytest.mark.parametrize(
    ("labels", "losses", "title", "place", "confirmed", "others"),
    [
        (
            CLASSES,
            (
                tf.losses.sparse_softmax_cross_entropy,
                keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
            ),
            SUMS.format(6),
            "the loss",
            WITH_VALUE,
            [],
        ),
        (
            CLASSES,
            (tf.losses.sparse_softmax_cross_entropy, sum_of_cross_entropy),
            SUMS.format(6),
            "Sum (Sum)",
            WITH_VALUE,
            [],
        ),
        (
            CLASSES,
            (mean_cross_entropy, sum_of_cross_entropy),
            "loss: reduction differs: Mean (TF1), Sum (port)",
            "Sum (Sum)",
            WITH_VALUE,
            [],
        ),
        (
            NUMBERS,
            (mean_of_squares, sum_of_squares),
            SUMS.format(24),
            "L2Loss (L2Loss)",
            "so do the gradients",
            [],
        ),
        (
            NUMBERS,
            (mean_of_squares, sum_of_squares_with_twice_the_gradient),
            SUMS.format(24),
            "L2Loss (L2Loss)",
            "",
            ["loss: another result at pow (Pow)"],
        ),
    ],
    ids=["in Keras", "of TF1's own loss", "as one op", "in another op", "beside other gradients"],
)
def test_a_sum_in_place_of_a_mean_is_confirmed_by_the_loss_or_the_gradients(
    labels, losses, title, place, confirmed, others
):
    of_tf1, of_port = losses
    (finding,) = validated(of_port, of_tf1=of_tf1, labels=labels, checks=["training-steps"]).findings
    assert (finding.title, finding.port.op, finding.confirmed) == (title, place, confirmed)
    assert [other.partition(" at test")[0].partition(" at /")[0] for other in finding.others] == others


HOT, FLAGS = np.eye(4, dtype=np.float32)[CLASSES], np.float32(NUMBERS > 0)
PROBABILITIES = "the port's loss reads the outputs as probabilities, TF1's as logits"
LOGITS = "the port's loss reads the outputs as logits, TF1's as probabilities"
SCALED = "the loss or the weight of a loss differs: the port's loss is {} times TF1's"
of_tf1, of_keras = tf.losses, keras.losses


def mean_of_sums(labels, outputs):
    return tf.reduce_mean(tf.reduce_sum(tf.square(outputs - labels), axis=1))


def sum_of_means(labels, outputs):
    return tf.reduce_sum(tf.reduce_mean(tf.square(outputs - labels), axis=1))


def half_the_squares(labels, outputs):
    return tf.losses.mean_squared_error(labels, outputs, weights=0.5)


def half_the_sum_of_squares(labels, outputs):
    return tf.nn.l2_loss(labels - outputs)


def cosine_distance(labels, outputs):
    unit_vectors = (tf.math.l2_normalize(each, axis=1) for each in (labels, outputs))
    return tf.losses.cosine_distance(*unit_vectors, axis=1)


def cross_entropy_of_logits(labels, outputs):
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=outputs))


@pytest.mark.parametrize(
    ("labels", "losses", "title", "confirmed"),
    [
        (NUMBERS, (of_tf1.mean_squared_error, of_keras.MeanSquaredError(reduction="sum")), SUMS.format(6), "gradients"),
        (NUMBERS, (of_tf1.absolute_difference, of_keras.MeanAbsoluteError("sum")), SUMS.format(6), "gradients"),
        (NUMBERS, (of_tf1.huber_loss, of_keras.Huber(reduction="sum")), SUMS.format(6), "gradients"),
        (NUMBERS, (of_tf1.mean_squared_error, sum_of_means), SUMS.format(6), "gradients"),
        (FLAGS, (of_tf1.hinge_loss, of_keras.Hinge(reduction="sum")), SUMS.format(6), "gradients"),
        (
            NUMBERS,
            (mean_of_sums, of_keras.MeanSquaredError()),
            "TF1 sums a loss where the port takes the mean: it is 4 times as large, a size of the outputs",
            "gradients",
        ),
        (NUMBERS, (half_the_squares, of_keras.MeanSquaredError()), SCALED.format(2), "gradients"),
        (NUMBERS, (half_the_sum_of_squares, of_keras.MeanSquaredError("sum")), SCALED.format(0.5), "gradients"),
        (
            NUMBERS,
            (cosine_distance, of_keras.CosineSimilarity()),
            "the losses differ by a constant: the port's is TF1's - 1",
            "the gradients agree",
        ),
        (CLASSES, (mean_cross_entropy, of_keras.SparseCategoricalCrossentropy()), PROBABILITIES, "softmax"),
        (HOT, (cross_entropy_of_logits, of_keras.CategoricalCrossentropy()), PROBABILITIES, "softmax"),
        (FLAGS, (of_tf1.sigmoid_cross_entropy, of_keras.BinaryCrossentropy()), PROBABILITIES, "sigmoid"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_two_losses_that_differ_as_a_whole_are_one_finding(labels, losses, title, confirmed):
    finding, *others = validated(losses[1], of_tf1=losses[0], labels=labels, checks=["training-steps"]).findings
    assert not others
    assert finding.title == title
    assert confirmed in finding.confirmed


def test_a_sum_beside_regularization_is_one_finding():
    def tf1(x, training):
        kernel = tf.get_variable("dense/kernel", [3, 4], regularizer=lambda kernel: 0.01 * tf.nn.l2_loss(kernel))
        return tf.matmul(x, kernel)

    decay = keras.regularizers.L2(0.005)
    migration = detrand.Migration(
        tf1=tf1,
        port=lambda: keras.layers.Dense(4, use_bias=False, kernel_regularizer=decay, name="dense"),
        inputs=numbers(6, 3),
        train=detrand.TrainStep(
            labels=NUMBERS,
            tf1_loss=of_tf1.absolute_difference,
            port_loss=of_keras.MeanAbsoluteError(reduction="sum"),
            tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=3,
        ),
    )
    (finding,) = detrand.validate(migration, checks=["training-steps"]).findings
    assert (finding.title, finding.confirmed) == (SUMS.format(6), "so it is in each of 3 steps")


def test_a_loss_of_logits_in_place_of_probabilities_is_one_finding():
    model = detrand.Migration(
        tf1=lambda x, training: tf.nn.sigmoid(dense(x, 4, "a")),
        port=lambda: keras.layers.Dense(4, "sigmoid"),
        inputs=numbers(6, 3),
        name_map={"a/w": "dense/kernel", "a/b": "dense/bias"},
        train=detrand.TrainStep(
            labels=FLAGS,
            tf1_loss=of_tf1.log_loss,
            port_loss=of_keras.BinaryFocalCrossentropy(gamma=0.0, from_logits=True),
            tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=1,
        ),
    )
    (finding,) = detrand.validate(model, checks=["training-steps"]).findings
    assert (finding.title, finding.confirmed) == (LOGITS, "with the logit of the outputs, the losses agree")
    assert finding.remedy == "pass from_logits=False to the port's loss"
