"""Losses that differ: the finding names the op and the line inside of the loss."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import detrand
from detrand.validation.golden import record_golden
from detrand.validation.results import Fault
from tests.faults.tf1 import dense, integers, numbers
from tests.support.losses import cross_entropy, mean_cross_entropy, relative_error, smoothed_by_tf1

CLASSES, NUMBERS = integers(4, 6), numbers(6, 4)


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


def validated(
    loss, port=lambda: keras.layers.Dense(4), of_tf1=tf1_loss, labels=CLASSES, checks=None, scale=1.0, tolerances=()
):
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
            tolerances=tolerances,
            tf1=lambda x, training: scale * dense(x, 4, "a"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (with_another_factor, "loss: factor differs: 0.3 (TF1), 0.4 (port)"),
        (without_weights, "loss: only TF1 masks the loss by the labels (Greater)"),
        (of_other_labels, "loss: threshold differs: 0 (TF1), 1 (port)"),
    ],
)
def test_a_difference_inside_of_a_loss_is_named_with_its_line(loss, title):
    finding, *others = validated(loss, checks=["training-steps"]).findings
    assert not others
    assert finding.title == title
    assert finding.port.line.endswith(f"test_loss_of_outputs.py:{line_of(loss)}")
    assert finding.confirmed


@pytest.mark.slow
def test_a_factor_of_the_labels_is_named_as_the_code_has_it():
    (finding,) = validated(discounted(0.9), of_tf1=discounted(0.99), labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title == "loss: factor of the labels (such as 1 - label smoothing) differs: 0.99 (TF1), 0.9 (port)"
    assert finding.remedy == "use 0.99 in the port"


def smoothed(labels, outputs):
    labels = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=outputs))


@pytest.mark.slow
@pytest.mark.parametrize("of_tf1", [smoothed, smoothed_by_tf1])
def test_a_label_smoothing_that_differs_is_one_finding(of_tf1):
    def loss(labels, outputs):
        smoothing = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
        return smoothing(tf.one_hot(labels, 4), outputs)

    (finding,) = validated(loss, of_tf1=of_tf1, checks=["training-steps"]).findings
    assert finding.title == "loss: label smoothing differs: 0.1 (TF1), 0.2 (port)"
    assert finding.confirmed == "with TF1's label smoothing, the rest agrees"
    assert finding.remedy == "use 0.1 in the port"


@pytest.mark.slow
def test_a_loss_is_compared_of_the_outputs_of_tf1():
    """A fault of the model is found beside a fault of the loss, and is no difference of the loss."""

    class Shifted(keras.layers.Dense):
        def call(self, x):
            return super().call(x) + 0.5

    titles = [each.title for each in validated(with_another_factor, lambda: Shifted(4, name="dense")).findings]
    assert "loss: factor differs: 0.3 (TF1), 0.4 (port)" in titles
    assert len([title for title in titles if title.startswith("loss:")]) == 1


@pytest.mark.slow
def test_losses_that_differ_by_a_tolerated_difference_of_outputs_are_no_difference_of_the_loss():
    class Shifted(keras.layers.Dense):
        def call(self, x):
            return super().call(x) + 0.01

    tolerances = [detrand.Tolerance(rtol=0.0, atol=0.05, of="output*")]
    report = validated(port_loss, lambda: Shifted(4, name="dense"), checks=["training-steps"], tolerances=tolerances)
    titles = [each.title for each in report.findings]
    assert titles == ["losses differ, because outputs differ within their tolerance"], str(report)


@pytest.mark.slow
def test_equal_losses_pass():
    assert validated(port_loss, checks=["training-steps"]).ok


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


@pytest.mark.slow
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
            "Sum (Sum)",
            "so do the gradients",
            [],
        ),
        (
            CLASSES,
            (tf.losses.sparse_softmax_cross_entropy, sum_of_cross_entropy),
            SUMS.format(6),
            "Sum (Sum)",
            "so do the gradients",
            [],
        ),
        (
            CLASSES,
            (mean_cross_entropy, sum_of_cross_entropy),
            "loss: reduction differs: Mean (TF1), Sum (port)",
            "Sum (Sum)",
            "with TF1's Mean instead, the rest agrees",
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
    assert (finding.title, finding.confirmed) == (title, confirmed)
    assert finding.port.op.endswith(place)
    assert finding.port.line.startswith(__file__) and "no user code" not in finding.port.line
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


@pytest.mark.slow
def test_the_sign_of_an_entropy_is_no_constant_where_policies_are_nearly_uniform():
    """The gradient of an entropy is next to 0 there."""

    def with_entropy(added):
        def loss(labels, outputs):
            entropy = -tf.reduce_sum(tf.nn.softmax(outputs) * tf.nn.log_softmax(outputs), 1)
            return added(tf.reduce_mean(tf.reduce_sum(outputs * labels, 1)), 0.1 * tf.reduce_mean(entropy))

        return loss

    def policy(x, training):
        return tf.matmul(x, tf.get_variable("kernel", (3, 4), initializer=tf.random_normal_initializer(stddev=1e-5)))

    train = detrand.TrainStep(
        labels=NUMBERS,
        tf1_loss=with_entropy(tf.subtract),
        port_loss=with_entropy(tf.add),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(1e-5),
        port_optimizer=lambda: keras.optimizers.SGD(1e-5),
        steps=2,
    )
    given = detrand.Migration(
        tf1=policy,
        port=lambda: keras.layers.Dense(4, use_bias=False, kernel_initializer=keras.initializers.RandomNormal(0, 1e-5)),
        inputs=numbers(6, 3),
        name_map={"kernel": "dense/kernel"},
        train=train,
    )
    finding, *others = detrand.validate(given, checks=["training-steps"]).findings
    assert not others
    assert "constant" not in finding.title and finding.confirmed != "the gradients agree"


@pytest.mark.slow_except("*a size of the outputs-gradients")
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
        (
            NUMBERS,
            (half_the_squares, of_keras.MeanSquaredError()),
            "loss: only TF1 multiplies by 0.5",
            "the rest agrees",
        ),
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


@pytest.mark.slow
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


def variational(labels, outputs):
    mean, log_variance = outputs[:, :2], outputs[:, 2:]
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
    return tf.reduce_mean(tf.reduce_sum(tf.square(labels - outputs), 1) + divergence)


def regrouped(factor=0.5, subtracted=1.0, weight=1.0, reconstruction=mean_of_sums, of_exp=tf.exp):
    """Return the same loss, written as newer code has it, with numbers that may be wrong."""

    def loss(labels, outputs):
        mean, log_variance = tf.split(outputs, 2, axis=1)
        each = of_exp(log_variance) + mean**2 - subtracted - log_variance
        divergence = factor * tf.reduce_mean(tf.reduce_sum(each, axis=1))
        reconstructed = reconstruction(labels, outputs)
        return divergence + (reconstructed if weight == 1.0 else weight * reconstructed)

    return loss


def balanced(labels, outputs):
    weights = tf.where(tf.equal(labels, 1.0), tf.ones_like(outputs) * 0.25, tf.ones_like(outputs) * 0.75)
    return tf.reduce_mean(-weights * tf.log_sigmoid(tf.where(tf.equal(labels, 1.0), outputs, -outputs)))


def balanced_by(alpha):
    def loss(labels, outputs):
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs)
        return tf.reduce_mean((alpha * labels + (1 - alpha) * (1 - labels)) * entropy)

    return loss


def penalized(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs)) + 0.01 * tf.reduce_sum(tf.square(outputs))


def penalized_by(factor):
    return lambda labels, outputs: tf.reduce_mean(tf.square(labels - outputs)) + factor * tf.nn.l2_loss(outputs)


IN_PLACE = "loss: {} differs: with {} in place of {}, the port's loss is TF1's"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "losses", "title", "remedy"),
    [
        (
            NUMBERS,
            (variational, regrouped(factor=0.25)),
            IN_PLACE.format("factor", 0.5, 0.25),
            "use 0.5 in place of 0.25 in the port",
        ),
        (
            NUMBERS,
            (variational, regrouped(subtracted=2.0)),
            IN_PLACE.format("constant subtracted", 1, 2),
            "use 1 in place of 2 in the port",
        ),
        (
            FLAGS,
            (balanced, balanced_by(0.75)),
            IN_PLACE.format("factor", 0.25, 0.75),
            "use 0.25 in place of 0.75 in the port",
        ),
        (
            NUMBERS,
            (penalized, penalized_by(0.01)),
            "loss: sum of squares differs: the whole sum (TF1), half the sum, as tf.nn.l2_loss computes (port)",
            "take the whole sum of squares in the port",
        ),
        (
            NUMBERS,
            (variational, regrouped(reconstruction=mean_of_squares)),
            "loss: TF1 sums a term of the loss where the port takes the mean: it is 4 times as large",
            "sum this term in the port",
        ),
    ],
)
def test_one_wrong_number_in_a_rewritten_loss_is_one_finding(labels, losses, title, remedy):
    (finding,) = validated(losses[1], of_tf1=losses[0], labels=labels, checks=["training-steps"]).findings
    assert (finding.title, finding.remedy, finding.others) == (title, remedy, ())
    assert finding.confirmed
    assert "test_loss_of_outputs.py" in finding.port.line


@pytest.mark.slow
def test_a_rewritten_loss_that_no_number_explains_is_one_possible_finding():
    loss = regrouped(factor=0.25, weight=0.7)
    (finding,) = validated(loss, of_tf1=variational, labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title.startswith("the losses of the same outputs differ: ")
    assert not finding.confirmed and not finding.remedy
    assert finding.others


@pytest.mark.slow
def test_the_term_of_a_rewritten_loss_that_another_op_computes_is_named():
    loss = regrouped(of_exp=tf.identity)
    (finding,) = validated(loss, of_tf1=variational, labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title == "loss: only TF1 takes an exponential"
    assert (finding.confirmed, finding.remedy) == ("with TF1's Exp here, the rest agrees", "add this to the port")


def reversed_divergence(labels, outputs):
    mean, log_variance = tf.split(outputs, 2, axis=1)
    squares = tf.reduce_sum(tf.square(labels - outputs), 1)
    ratio = tf.exp(-log_variance)
    divergence = 0.5 * tf.reduce_sum(ratio + mean**2 * ratio - 1.0 + log_variance, 1)
    return tf.reduce_mean(squares) + tf.reduce_mean(divergence)


@pytest.mark.slow
def test_a_kl_divergence_in_the_other_direction_is_the_term_that_differs():
    """Its constant agrees, and is no term of its own."""
    (finding,) = validated(reversed_divergence, of_tf1=variational, labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title.startswith("loss: a term of the loss differs: ")
    assert finding.confirmed == "all other terms agree"
    assert [place.source.split(" = ")[0] for place in (finding.tf1, finding.port)] == ["divergence"] * 2


SHARES = np.exp(NUMBERS) / np.exp(NUMBERS).sum(axis=1, keepdims=True)


def relative_entropy(labels, outputs):
    outputs = tf.nn.softmax(outputs)
    return tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(labels / outputs), axis=1))


def swapped_relative_entropy(labels, outputs):
    outputs = tf.nn.softmax(outputs)
    return tf.reduce_mean(tf.reduce_sum(outputs * tf.math.log(outputs / labels), axis=1))


def soft_cross_entropy(labels, outputs):
    return tf.reduce_mean(-tf.reduce_sum(labels * tf.math.log(tf.nn.softmax(outputs)), 1))


def reversed_cross_entropy(labels, outputs):
    return tf.reduce_mean(-tf.reduce_sum(tf.nn.softmax(outputs) * tf.math.log(labels), 1))


def pinball(labels, outputs):
    return tf.reduce_mean(tf.maximum(0.9 * (labels - outputs), -0.1 * (labels - outputs)))


def swapped_pinball(labels, outputs):
    return tf.reduce_mean(tf.maximum(0.9 * (outputs - labels), -0.1 * (outputs - labels)))


def error_relative_to_outputs(labels, outputs):
    return tf.reduce_mean(tf.abs(labels - outputs) / tf.abs(outputs))


def limited_relative_error(labels, outputs):
    return tf.reduce_mean(tf.abs(labels - outputs) / (tf.abs(labels) + 0.01))


def sum_by(count):
    return lambda labels, outputs: tf.reduce_sum(tf.square(labels - outputs)) / count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "losses", "title"),
    [
        (
            SHARES,
            (relative_entropy, swapped_relative_entropy),
            "loss: order of the operands of RealDiv differs: labels, outputs (TF1), outputs, labels (port)",
        ),
        (
            SHARES,
            (soft_cross_entropy, reversed_cross_entropy),
            "loss: Log takes different tensors: outputs (TF1), labels (port)",
        ),
        (
            NUMBERS,
            (pinball, swapped_pinball),
            "loss: order of the operands of Sub differs: labels, outputs (TF1), outputs, labels (port)",
        ),
        (
            NUMBERS,
            (relative_error, error_relative_to_outputs),
            "loss: Abs takes different tensors: labels (TF1), outputs (port)",
        ),
        (NUMBERS, (relative_error, limited_relative_error), "loss: only the port adds 0.01"),
        (NUMBERS, (sum_by(32.0), sum_by(8.0)), "loss: divisor differs: 32.0 (TF1), 8.0 (port)"),
    ],
)
def test_a_title_says_what_differs_where_both_programs_have_the_same_op(labels, losses, title):
    findings = validated(losses[1], of_tf1=losses[0], labels=labels, checks=["training-steps"]).findings
    assert findings[0].title == title
    for each in (words for finding in findings for words in (finding.title, *finding.others)):
        before, _, after = each.rpartition("computed by ")[2].removesuffix(" (port)").partition(" (TF1), ")
        assert before != after


def broadcasting(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))  # here


def squeezing(labels, outputs):
    return tf.reduce_mean(tf.square(labels - tf.squeeze(outputs, 1)))


def weighted_by(axis):
    def loss(labels, outputs):
        errors = tf.square(labels[:, tf.newaxis] - outputs)
        return tf.reduce_mean((errors if axis is None else tf.squeeze(errors, axis)) * labels)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "title", "remedy", "confirmed"),
    [
        (
            (squeezing, broadcasting),
            "loss: the port subtracts [6, 1] from [6], which broadcasts to [6, 6]",
            "use tf.squeeze or tf.reshape, so that both have the same shape",
            "with the squeezed form of the outputs, the losses agree",
        ),
        (
            (broadcasting, squeezing),
            "loss: TF1 subtracts [6, 1] from [6], which broadcasts to [6, 6]",
            "",
            "with the expanded form of the outputs, the losses agree",
        ),
        (
            (weighted_by(1), weighted_by(None)),
            "loss: the port has [6, 1] and [6] in Mul, which broadcasts to [6, 6]",
            "use tf.squeeze or tf.reshape, so that both have the same shape",
            "",
        ),
    ],
)
def test_labels_and_outputs_that_broadcast_are_named(losses, title, remedy, confirmed):
    migration = detrand.Migration(
        tf1=lambda x, training: dense(x, 1, "a"),
        port=lambda: keras.layers.Dense(1),
        inputs=numbers(6, 3),
        name_map={"a/w": "dense/kernel", "a/b": "dense/bias"},
        train=detrand.TrainStep(
            labels=NUMBERS[:, 0],
            tf1_loss=losses[0],
            port_loss=losses[1],
            tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=1,
        ),
    )
    (finding,) = detrand.validate(migration, checks=["training-steps"]).findings
    assert (finding.title, finding.remedy, finding.confirmed) == (title, remedy, confirmed)
    assert not finding.others
    place = finding.tf1 if "TF1" in title else finding.port
    if broadcasting in losses:
        assert place.line.endswith(f":{line_of(broadcasting)}")


@pytest.mark.slow
def test_a_sum_that_is_divided_by_a_count_is_a_mean():
    def tf1(labels, outputs):
        return of_tf1.mean_squared_error(labels, outputs) + of_tf1.absolute_difference(labels, outputs)

    def port(labels, outputs):
        errors = tf.abs(labels - outputs) + 0.1 * tf.abs(outputs)
        return of_keras.MeanSquaredError()(labels, outputs) + 2 * tf.reduce_mean(errors)

    findings = validated(port, of_tf1=tf1, labels=NUMBERS, checks=["training-steps"]).findings
    assert not [words for each in findings for words in (each.title, *each.others) if "reduction differs" in words]


@pytest.mark.slow
def test_losses_of_no_constant_ratio_are_given_by_their_values():
    def port(labels, outputs):
        return tf.reduce_mean(tf.math.log(tf.cosh(outputs - labels)) + tf.exp(-tf.square(outputs)))

    report = validated(port, of_tf1=mean_of_squares, labels=NUMBERS, checks=["training-steps"])
    words = [words for each in report.findings for words in (each.title, *each.others)]
    words += report.checks[0].causes
    assert any(each.startswith("the losses of the same outputs differ: ") for each in words)
    assert not [each for each in words if "the port's loss is" in each]


@pytest.mark.slow
def test_a_term_that_the_port_lacks_is_named_with_its_line():
    def with_penalty(labels, outputs):
        penalty = tf.reduce_mean(tf.abs(outputs))
        return mean_of_squares(labels, outputs) + 0.4 * penalty  # here

    for of_tf1, of_port, title in (
        (with_penalty, mean_of_squares, "loss: only TF1 adds this term to the loss"),
        (mean_of_squares, with_penalty, "loss: only the port adds this term to the loss"),
    ):
        (finding,) = validated(of_port, of_tf1=of_tf1, labels=NUMBERS, checks=["training-steps"]).findings
        assert (finding.title, finding.confirmed) == (title, "without this term, the losses agree")
        place = finding.tf1 if of_tf1 is with_penalty else finding.port
        assert place.line.endswith(f":{line_of(with_penalty)}")


@pytest.mark.slow
def test_a_term_that_one_of_several_sums_lacks_is_the_only_finding():
    """Every sum after it differs, too, and the port adds its terms up in a different order."""

    def with_all(labels, outputs):
        first = tf.reduce_sum(tf.square(tf.nn.tanh(outputs) - labels))
        second = tf.reduce_sum(tf.sqrt(tf.abs(outputs)))  # here
        return first + second + tf.reduce_mean(tf.exp(outputs)) + 0.1 * tf.reduce_max(tf.abs(outputs))

    def with_three(labels, outputs):
        others = [tf.reduce_mean(tf.exp(outputs)), 0.1 * tf.reduce_max(tf.abs(outputs))]
        return tf.add_n([*others, tf.reduce_sum(tf.square(tf.nn.tanh(outputs) - labels))])

    (finding,) = validated(with_three, of_tf1=with_all, labels=NUMBERS, checks=["training-steps"]).findings
    assert finding.title == "loss: only TF1 adds this term to the loss"
    assert finding.confirmed == "without this term, the losses agree"
    assert finding.tf1.line.endswith(f":{line_of(with_all)}")


@pytest.mark.slow
@pytest.mark.parametrize("masks", [True, False])
def test_a_mask_that_one_of_several_terms_lacks_is_the_only_finding(masks):
    def masked(everywhere):
        def loss(labels, outputs):
            mask = tf.cast(tf.greater(labels, 0), tf.float32)
            errors = tf.square(tf.nn.tanh(outputs) - labels)
            first = 5.0 * tf.reduce_sum(mask * errors if everywhere else errors) / 6.0
            return (
                first + tf.reduce_sum(mask * tf.square(outputs)) / 6.0 + tf.reduce_sum((1.0 - mask) * tf.abs(outputs))
            )

        return loss

    finding, *others = validated(
        masked(not masks), of_tf1=masked(masks), labels=NUMBERS, checks=["training-steps"]
    ).findings
    assert not others
    assert finding.title == f"loss: only {'TF1' if masks else 'the port'} weights the loss by the labels (Mul)"
    assert finding.confirmed


@pytest.mark.slow
@pytest.mark.parametrize("reads_logits", [True, False])
def test_a_term_that_reads_outputs_as_the_other_of_probabilities_and_logits_is_named(reads_logits):
    def shares_and_given(outputs):
        shares = tf.nn.sigmoid(outputs)
        return shares, outputs if reads_logits else shares / tf.reduce_sum(shares, -1, keepdims=True)

    def tf1(labels, outputs):
        shares, given = shares_and_given(outputs)
        of_classes = keras.losses.CategoricalCrossentropy(from_logits=reads_logits)
        return of_classes(tf.one_hot(labels, 4), given) + tf.reduce_sum(shares**2)

    def port(labels, outputs):
        shares, given = shares_and_given(outputs)
        of_classes = keras.losses.CategoricalCrossentropy(from_logits=not reads_logits)
        return of_classes(tf.one_hot(labels, 4), given) + tf.reduce_sum(shares**2)  # here

    (finding,) = validated(port, of_tf1=tf1, checks=["training-steps"]).findings
    words = ("probabilities", "logits") if reads_logits else ("logits", "probabilities")
    assert finding.title == "loss: the port's loss reads the outputs as {}, TF1's as {}".format(*words)
    assert finding.remedy == f"pass from_logits={reads_logits} to the port's loss"
    assert finding.port.line.endswith(f":{line_of(port)}")


@pytest.mark.slow
def test_shifted_labels_are_a_slice_that_differs():
    def of_next(slices):
        return lambda labels, outputs: mean_cross_entropy(labels[slices], outputs[:-1])

    report = validated(of_next(slice(None, -1)), of_tf1=of_next(slice(1, None)), checks=["training-steps"])
    (finding,) = report.findings
    assert (finding.title, finding.remedy) == (
        "loss: slice of the labels differs: [1:] (TF1), [:-1] (port)",
        "use [1:] of the labels in the port",
    )


def with_exponentials(*weights):
    def loss(labels, outputs):
        weighted = tf.reduce_sum(tf.exp(outputs))
        for weight in weights:
            weighted = weight * weighted
        return tf.reduce_mean(tf.square(labels - outputs)) + weighted

    return loss


@pytest.mark.slow
def test_numbers_any_of_which_explains_the_loss_are_the_factor_of_one_term():
    losses = with_exponentials(0.1), with_exponentials(0.4, 0.5)
    (finding,) = validated(losses[1], of_tf1=losses[0], labels=NUMBERS, checks=["training-steps"]).findings
    assert (finding.title, finding.others) == ("loss: factor of a term differs: 0.1 (TF1), 0.2 (port)", ())
    assert finding.confirmed


class Scaled(keras.layers.Dense):
    def call(self, x):
        return 1e-3 * super().call(x)


@pytest.mark.slow
def test_a_conversion_that_explains_losses_of_small_outputs_roughly_is_no_cause():
    """Of outputs near 0, all probabilities are equal, and so is the loss of their sigmoid but for a ten-thousandth."""

    def of_zeros(labels, outputs):
        return cross_entropy_of_logits(labels, 0.0 * outputs)

    port = functools.partial(Scaled, 4, name="dense")
    report = validated(cross_entropy_of_logits, port, of_zeros, HOT, checks=["training-steps"], scale=1e-3)
    assert Fault.READING not in [each.fault for each in report.findings], str(report)
    assert not report.ok


@pytest.mark.slow
def test_a_mean_in_place_of_a_sum_that_is_divided_by_another_count_is_a_reduction():
    def of_count(labels, outputs):
        return tf.reduce_sum(cross_entropy(labels, outputs)) / 4.0 + tf.reduce_mean(tf.square(outputs))

    def of_all(labels, outputs):
        return tf.reduce_mean(cross_entropy(labels, outputs)) + tf.reduce_mean(tf.square(outputs))

    (finding,) = validated(of_all, of_tf1=of_count, checks=["training-steps"]).findings
    assert finding.title == "loss: reduction differs: Sum, divided by 4.0 (TF1), Mean (port)", str(finding)
    assert finding.confirmed


@pytest.mark.slow
def test_counts_that_a_loss_is_divided_by_are_no_sum_in_place_of_a_mean():
    def of_rows(labels, outputs):
        return tf.reduce_sum(cross_entropy(labels, outputs)) / 6.0

    def of_sum(labels, outputs):
        return tf.reduce_sum(cross_entropy(labels, outputs)) / tf.cast(tf.reduce_sum(labels), tf.float32)

    labels = np.array([0, 1, 2, 3, 3, 3], np.int32)
    (finding,) = validated(of_sum, of_tf1=of_rows, labels=labels, checks=["training-steps"]).findings
    assert finding.title == "loss: divisor differs: 6 (TF1), 12 (port)", str(finding)
    assert (finding.remedy, bool(finding.confirmed)) == ("compute TF1's divisor in the port", True)


class TestOutputsWithDistinctWeights:
    """The outputs of the initial weights are 0, and no term that begins above 0 shows in their loss."""

    @staticmethod
    def checked(of_tf1, of_port):
        train = detrand.TrainStep(
            labels=NUMBERS,
            tf1_loss=of_tf1,
            port_loss=of_port,
            tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(1e-3),
            port_optimizer=lambda: keras.optimizers.SGD(1e-3),
            steps=1,
        )
        migration = detrand.Migration(
            tf1=lambda x, training: tf.matmul(
                x, tf.get_variable("dense/kernel", [3, 4], initializer=tf.zeros_initializer())
            ),
            port=lambda: keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros", name="dense"),
            inputs=numbers(6, 3),
            train=train,
        )
        return detrand.validate(migration, checks=["training-steps"]).checks[0]

    @staticmethod
    def beyond(margin, factor=1.0):
        def loss(labels, outputs):
            hinge = tf.nn.relu(tf.abs(outputs) - margin)
            return tf.reduce_mean(tf.abs(labels - outputs)) + factor * tf.reduce_sum(hinge)

        return loss

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("of_port", "title"),
        [
            (beyond(0.2), "loss: constant subtracted differs: 0.1 (TF1), 0.2 (port)"),
            (beyond(0.1, 2.0), "loss: factor differs: 1.0 (TF1), 2.0 (port)"),
            (lambda labels, outputs: tf.reduce_mean(tf.abs(labels - outputs)), "loss: only TF1 adds this term"),
        ],
        ids=["margin", "factor", "no term"],
    )
    def test_shows_a_term_that_initial_outputs_leave_at_0(self, of_port, title):
        check = self.checked(self.beyond(0.1), of_port)
        assert not check.ok
        (finding,) = check.findings
        assert finding.title.startswith(title)
        assert finding.confirmed.endswith("seen in the losses of outputs with distinct weights")
        assert check.summary.startswith("the losses of outputs with distinct weights differ: ")

    @pytest.mark.slow
    def test_a_term_that_is_written_differently_agrees(self):
        def by_maximum(labels, outputs):
            hinge = tf.maximum(outputs - 0.1, 0.0) + tf.maximum(-outputs - 0.1, 0.0)
            return tf.reduce_mean(tf.abs(outputs - labels)) + tf.reduce_sum(hinge)

        check = self.checked(self.beyond(0.1), by_maximum)
        assert check.ok
        assert check.summary.endswith("; the losses of outputs with distinct weights agree")

    @pytest.mark.slow
    def test_a_loss_that_only_rounds_differently_agrees(self):
        """The difference of two great numbers is far from the exact one in float32, in TF1 itself too."""

        def of_squares(labels, outputs):
            far = outputs + 300.0
            return tf.reduce_mean(far**2) - tf.reduce_mean(far) ** 2

        def of_distances(labels, outputs):
            far = outputs + 300.0
            return tf.reduce_mean((far - tf.reduce_mean(far)) ** 2)

        check = self.checked(of_squares, of_distances)
        assert check.ok
        assert check.summary.endswith("; the losses of outputs with distinct weights agree")

    @pytest.mark.slow
    def test_a_loss_that_overflows_is_not_compared(self):
        def exploding(labels, outputs):
            return tf.reduce_mean(tf.abs(labels - outputs)) + tf.reduce_sum(tf.exp(1e4 * tf.nn.relu(outputs - 0.1)))

        check = self.checked(exploding, exploding)
        assert check.ok
        assert "distinct" not in check.summary


def annealed(weight, made):
    """Return a loss with a penalty whose weight grows with the steps of TF1, or of the optimizer that was made last."""

    def loss(labels, outputs):
        step = made[-1].iterations if made else tf.train.get_or_create_global_step()
        penalty = tf.reduce_mean(tf.square(outputs))
        return tf.reduce_mean(tf.square(labels - outputs)) + weight(tf.cast(step, tf.float32)) * penalty

    return loss


def validated_with_weight(weight, loss=None, golden=None, port=lambda: keras.layers.Dense(4)):
    """Validate a port whose penalty has a weight of its own, beside TF1's: a seventh of the step, but at most 1."""
    made = []

    def optimizer():
        made.append(keras.optimizers.SGD(0.1))
        return made[-1]

    train = detrand.TrainStep(
        labels=NUMBERS,
        tf1_loss=annealed(lambda step: tf.minimum(1.0, step / 7.0), []),
        port_loss=loss or annealed(weight, made),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=optimizer,
        steps=5,
    )
    migration = detrand.Migration(
        tf1=lambda x, training: dense(x, 4, "a"),
        port=port,
        inputs=numbers(6, 3),
        name_map={"a/w": "dense/kernel", "a/b": "dense/bias"},
        train=train,
    )
    if golden is not None:
        record_golden([migration], golden)
    return detrand.validate(migration, checks=["training-steps"], golden=golden)


WEIGHTS = {
    "too early": (lambda step: tf.minimum(1.0, (step + 1.0) / 7.0), "factor differs: 0.142857 (TF1), 0.285714 (port)"),
    "too late": (
        lambda step: tf.minimum(1.0, tf.maximum(0.0, step - 1.0) / 7.0),
        "factor differs: 0.285714 (TF1), 0.142857 (port)",
    ),
    "too fast": (lambda step: tf.minimum(1.0, step / 3.0), "divisor differs: 7.0 (TF1), 3.0 (port)"),
    "limited": (lambda step: tf.minimum(0.5, step / 7.0), "upper limit differs: 1.0 (TF1), 0.5 (port)"),
    "constant": (lambda step: 1.0, "only TF1 multiplies by 0.142857"),
    "nothing": (lambda step: 0.0, "only TF1 adds this term to the loss"),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_golden", [False, True])
@pytest.mark.parametrize("fault", WEIGHTS)
def test_a_loss_that_depends_on_the_step_is_compared_in_a_step_that_shows_the_fault(fault, is_golden, tmp_path):
    weight, title = WEIGHTS[fault]
    (finding,) = validated_with_weight(weight, golden=tmp_path / "golden.npz" if is_golden else None).findings
    assert finding.title == f"loss: {title}"
    assert "; seen in step " in finding.confirmed


@pytest.mark.slow
def test_a_loss_that_depends_on_the_step_is_compared_with_other_outputs_too():
    report = validated_with_weight(lambda step: tf.minimum(1.0, step / 7.0))
    assert "the losses of outputs with distinct weights agree" in report.checks[0].summary


class Counting(keras.layers.Dense):
    """A layer that counts its calls in training, of which the first one is no step."""

    def build(self, shape):
        super().build(shape)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, inputs, training=False):
        if training:
            self.count.assign_add(1.0)
        return super().call(inputs)


@pytest.mark.slow
def test_what_is_not_seen_when_the_losses_are_computed_again_has_no_cause():
    made = []

    def port():
        made.append(Counting(4, name="dense"))
        return made[-1]

    def loss(labels, outputs):
        penalty = tf.reduce_mean(tf.square(outputs))
        return tf.reduce_mean(tf.square(labels - outputs)) + tf.minimum(1.0, (made[-1].count - 2.0) / 3.0) * penalty

    titles = [finding.title for finding in validated_with_weight(None, loss, port=port).findings]
    assert any(title.startswith("the losses of the same outputs differ") for title in titles)
    assert not any("term" in title for title in titles)


class Cycle(keras.Model):
    """Two translations, and what each makes of the other one."""

    def __init__(self):
        super().__init__()
        self.there, self.back = keras.layers.Dense(4, name="there"), keras.layers.Dense(4, name="back")

    def call(self, x):
        return {"there": self.there(x), "cycle": self.back(self.there(x)), "back": self.back(x)}


def tf1_cycle(x, training):
    def translated(inputs, name):
        with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
            return inputs @ tf.get_variable("kernel", [4, 4]) + tf.get_variable(
                "bias", [4], initializer=tf.zeros_initializer()
            )

    there = translated(x, "there")
    return {"there": there, "cycle": translated(there, "back"), "back": translated(x, "back")}


def cycle_loss(labels, outputs):
    cycle = tf.reduce_mean(tf.abs(outputs["cycle"] - labels)) + 0.5 * tf.reduce_mean(tf.abs(outputs["back"]))
    return cycle + 0.1 * tf.reduce_mean(tf.square(outputs["there"] - outputs["back"]))


def swapped_cycle_loss(labels, outputs):
    cycle = tf.reduce_mean(tf.abs(outputs["back"] - labels)) + 0.5 * tf.reduce_mean(tf.abs(outputs["cycle"]))  # here
    return cycle + 0.1 * tf.reduce_mean(tf.square(outputs["there"] - outputs["back"]))


@pytest.mark.slow
def test_two_outputs_that_are_exchanged_in_a_line_of_a_loss_are_named():
    train = detrand.TrainStep(
        labels=numbers(6, 4, seed=1),
        tf1_loss=cycle_loss,
        port_loss=swapped_cycle_loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=1,
    )
    migration = detrand.Migration(tf1=tf1_cycle, port=Cycle, inputs=NUMBERS, train=train)
    report = detrand.validate(migration, checks=["training-steps"])
    (finding,) = report.findings
    assert finding.title == "loss: outputs['back'] and outputs['cycle'] are exchanged", str(report)
    assert finding.remedy == "exchange the two in the port"
    assert finding.port.line.endswith(f"test_loss_of_outputs.py:{line_of(swapped_cycle_loss)}")
