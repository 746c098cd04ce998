"""Faults of a whole loss: labels and outputs that are exchanged, a label smoothing in one program, a CTC loss."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from tests.faults.tf1 import integers, numbers

v1 = tf.compat.v1
SHARES = np.exp(numbers(6, 4)) / np.exp(numbers(6, 4)).sum(axis=1, keepdims=True)
POSITIVE, CLASSES, FLAGS = np.abs(numbers(6, 4)) + 0.1, integers(4, 6), integers(2, 6, 4).astype(np.float32)
HOT = np.eye(4, dtype=np.float32)[CLASSES]


def findings_of(labels, of_tf1, of_port, *, steps=2, shape=(6, 4)):
    def tf1(x, training):
        return x + v1.get_variable("bias", shape[-1:], initializer=v1.zeros_initializer())

    class Port(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.bias = self.add_weight(shape=shape[-1:], initializer="zeros", name="bias")

        def call(self, x):
            return x + self.bias

    train = detrand.TrainStep(
        labels=labels,
        tf1_loss=of_tf1,
        port_loss=of_port,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=steps,
    )
    inputs = numbers(*shape, seed=1)
    name_map = {"bias": "port/bias"}
    migration = detrand.Migration(tf1=tf1, port=Port, inputs=inputs, name_map=name_map, train=train)
    return detrand.validate(migration, checks=["training-steps"]).findings


def line_of(function):
    lines, start = inspect.getsourcelines(function)
    return f"test_loss_faults.py:{start + next(n for n, line in enumerate(lines) if line.rstrip().endswith('# here'))}"


def relative_error(y_true, y_pred):
    return tf.reduce_mean(tf.abs(y_true - y_pred) / tf.abs(y_true))


def asymmetric(y_true, y_pred):
    difference = y_true - y_pred
    return tf.reduce_mean(tf.where(difference > 0, 3.0 * difference**2, difference**2))


def of_logits(labels, outputs):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs))


def with_penalty(loss):
    return lambda labels, outputs: loss(labels, outputs) + 0.1 * tf.reduce_mean(tf.square(outputs))


def exchanged(loss):
    def port_loss(labels, outputs):
        return loss(outputs, labels)  # here

    return port_loss


def exchanged_beside_a_penalty(loss):
    def port_loss(labels, outputs):
        penalty = 0.1 * tf.reduce_mean(tf.square(outputs))
        return penalty + loss(outputs, labels)  # here

    return port_loss


EXCHANGED = (
    "loss: labels and outputs are exchanged",
    "with labels and outputs exchanged, the losses agree",
    "exchange labels and outputs in the port; losses of Keras take (y_true, y_pred)",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port"),
    [
        (POSITIVE, asymmetric, exchanged(asymmetric)),
        (POSITIVE, with_penalty(asymmetric), exchanged_beside_a_penalty(asymmetric)),
        (POSITIVE, relative_error, exchanged(lambda *pair: keras.losses.MeanAbsolutePercentageError()(*pair) / 100)),
        (FLAGS, of_logits, exchanged(of_logits)),
        (FLAGS, of_logits, exchanged(keras.losses.BinaryCrossentropy(from_logits=True))),
        (FLAGS, with_penalty(of_logits), exchanged_beside_a_penalty(keras.losses.BinaryCrossentropy(from_logits=True))),
        (SHARES, v1.losses.softmax_cross_entropy, exchanged(keras.losses.CategoricalCrossentropy(from_logits=True))),
    ],
    ids=["own", "own beside a penalty", "Keras in a lambda", "own of TensorFlow", "Keras", "Keras and penalty", "hot"],
)
def test_labels_and_outputs_that_are_exchanged_in_a_call_are_named_with_its_line(labels, of_tf1, of_port):
    (finding,) = findings_of(labels, of_tf1, of_port, steps=1)
    assert (finding.title, finding.confirmed, finding.remedy) == EXCHANGED
    if "lambda" not in finding.port.source:
        assert finding.port.line.endswith(line_of(of_port))


@pytest.mark.slow
def test_labels_and_outputs_that_are_exchanged_in_the_whole_loss_are_named():
    def port_loss(outputs, labels):
        ratio = tf.math.log(labels + 0.1) - outputs
        return tf.reduce_mean(tf.exp(ratio) - ratio * tf.sigmoid(labels))

    (finding,) = findings_of(POSITIVE, lambda labels, outputs: port_loss(outputs, labels), port_loss, steps=1)
    assert (finding.title, finding.confirmed, finding.remedy) == EXCHANGED


def called(loss):
    return lambda labels, outputs: loss(labels, outputs) * 1.0


def test_an_error_of_exchanged_classes_and_outputs_says_so():
    of_port = exchanged(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    (finding,) = findings_of(CLASSES, v1.losses.sparse_softmax_cross_entropy, of_port)
    assert "losses of Keras take (y_true, y_pred): labels and outputs may be exchanged" in finding.title
    assert finding.port.line.endswith(line_of(of_port))


@pytest.mark.slow
def test_a_call_that_refuses_exchanged_arguments_is_passed_over():
    def inner(labels, outputs):
        def checked():
            return tf.debugging.check_numerics(tf.reduce_mean(tf.math.log(labels) * outputs**2), "of labels below 0")

        return tf.cond(tf.reduce_max(labels) > -1e9, checked, lambda: tf.reduce_mean(labels))

    findings = findings_of(POSITIVE, lambda *pair: 3.0 * inner(*pair) + 1.0, called(inner), steps=1)
    assert findings and not any("exchanged" in each.title for each in findings)


def of_classes(loss):
    return lambda labels, outputs: loss(tf.one_hot(labels, 4), outputs)


def by_hand(labels, outputs):
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels * 0.9 + 0.1 / 4, logits=outputs))


def as_a_mixture(labels, outputs):
    of_labels = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=outputs)
    of_all = tf.nn.softmax_cross_entropy_with_logits(labels=tf.ones_like(outputs) / 4, logits=outputs)
    return tf.reduce_mean(0.9 * of_labels + 0.1 * of_all)


def of_others(labels, outputs):
    return keras.losses.CategoricalCrossentropy(from_logits=True)(tf.one_hot(labels, 4, 0.9, 0.1 / 3), outputs)


def of_probabilities(labels, outputs):
    return keras.losses.CategoricalCrossentropy()(labels, tf.nn.softmax(outputs))


def smoothed(loss, **arguments):
    return lambda labels, outputs: loss(labels, outputs, label_smoothing=0.1, **arguments)


SOFTMAX, SIGMOID = v1.losses.softmax_cross_entropy, v1.losses.sigmoid_cross_entropy
CATEGORICAL = keras.losses.CategoricalCrossentropy(from_logits=True)
IN_TF1, IN_PORT = ("0.1", "none"), ("none", "0.1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port", "values"),
    [
        (HOT, smoothed(SOFTMAX), CATEGORICAL, IN_TF1),
        (HOT, by_hand, of_probabilities, IN_TF1),
        (SHARES, as_a_mixture, CATEGORICAL, IN_TF1),
        (CLASSES, of_classes(by_hand), keras.losses.SparseCategoricalCrossentropy(from_logits=True), IN_TF1),
        (CLASSES, of_classes(SOFTMAX), of_others, ("none", "0.133333")),
        (FLAGS, smoothed(SIGMOID), keras.losses.BinaryCrossentropy(from_logits=True), IN_TF1),
        (HOT, SOFTMAX, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), IN_PORT),
        (HOT, SOFTMAX, as_a_mixture, IN_PORT),
        (CLASSES, v1.losses.sparse_softmax_cross_entropy, of_classes(by_hand), IN_PORT),
        (FLAGS, SIGMOID, keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), IN_PORT),
    ],
    ids=["softmax", "by hand", "mixture", "classes", "of others", "sigmoid", "Keras", "as mixture", "hot", "binary"],
)
def test_a_label_smoothing_in_one_program_is_named_with_its_value(labels, of_tf1, of_port, values):
    (finding,) = findings_of(labels, of_tf1, of_port)
    assert finding.title == "loss: label smoothing differs: {} (TF1), {} (port)".format(*values)
    value = max(values, key=lambda each: each != "none")
    assert (
        finding.confirmed == f"{'without' if values[0] == 'none' else 'with'} a smoothing of {value}, the losses agree"
    )
    assert ("do not smooth the labels" in finding.remedy) == (values[0] == "none")
    if inspect.isfunction(of_port):
        assert "test_loss_faults.py" in finding.port.line


@pytest.mark.slow
def test_a_label_smoothing_of_sequences_is_named():
    def of_tf1(labels, outputs):
        shares = 0.9 * tf.one_hot(labels, 4) + 0.1 / 4
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=shares, logits=outputs))

    def of_port(labels, outputs):
        labels, outputs = tf.reshape(labels, [-1]), tf.reshape(outputs, [-1, 4])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs))

    (finding,) = findings_of(CLASSES.reshape(2, 3), of_tf1, of_port, shape=(2, 3, 4))
    assert finding.title == "loss: label smoothing differs: 0.1 (TF1), none (port)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port"),
    [
        (HOT, SOFTMAX, lambda labels, outputs: CATEGORICAL(labels * tf.constant([1.0, 2.0, 1.0, 1.0]), outputs)),
        (FLAGS, lambda labels, outputs: SIGMOID(labels * 0.87, outputs), keras.losses.BinaryCrossentropy(True)),
    ],
    ids=["weights of classes", "smoothed on one side"],
)
def test_other_weights_of_labels_are_no_label_smoothing(labels, of_tf1, of_port):
    findings = findings_of(labels, of_tf1, of_port)
    assert findings and not any("smoothing differs" in each.title for each in findings)


def of_sigmoids(factor=1.0, added=0.0):
    def loss(labels, outputs):
        taken = factor * labels + added if added else factor * labels if factor != 1 else labels
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=taken, logits=outputs))

    return loss


def of_classes_that_count(factor):
    def loss(labels, outputs):
        classes = tf.one_hot(labels, 4)
        taken = classes if factor == 1 else factor * classes
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=taken, logits=outputs))

    return loss


FACTOR = "factor of the labels (such as 1 - label smoothing) differs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port", "title"),
    [
        (FLAGS, of_sigmoids(0.87), of_sigmoids(), f"{FACTOR}: 0.87 (TF1), 1 (port)"),
        (FLAGS, of_sigmoids(), of_sigmoids(0.87), f"{FACTOR}: 1 (TF1), 0.87 (port)"),
        (
            FLAGS,
            of_sigmoids(0.87),
            keras.losses.BinaryCrossentropy(from_logits=True),
            f"{FACTOR}: 0.87 (TF1), 1 (port)",
        ),
        (CLASSES, of_classes_that_count(0.9), of_classes_that_count(1), f"{FACTOR}: 0.9 (TF1), 1 (port)"),
        (
            FLAGS,
            of_sigmoids(0.7, 0.2),
            of_sigmoids(),
            "scaling of the labels y differs: 0.7 y + 0.2 (TF1), y (port)",
        ),
    ],
    ids=["in TF1", "in the port", "Keras", "classes", "a sum"],
)
def test_labels_that_one_program_changes_are_named_with_both_values(labels, of_tf1, of_port, title):
    (finding,) = findings_of(labels, of_tf1, of_port)
    assert finding.title == f"loss: {title}"
    assert finding.confirmed == "with TF1's labels here, the losses agree"
    if inspect.isfunction(of_port):
        assert "test_loss_faults.py" in finding.port.line


WORDS, SERIES = integers(4, 3, 6), numbers(3, 6, 4)


def next_word(labels, outputs):
    hot = tf.one_hot(labels, 4)[:, 1:]
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(hot, outputs[:, :-1]))


def next_values(labels, outputs):
    return v1.losses.mean_squared_error(labels[:, 2:], outputs[:, :-2])


def sparse(labels, outputs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port", "what", "in_tf1", "in_port"),
    [
        (WORDS, next_word, lambda y, x: sparse(y[:, :-1], x[:, :-1]), "labels", "[:, 1:]", "[:, :-1]"),
        (WORDS, next_word, lambda y, x: sparse(y[:, 1:], x[:, 1:]), "outputs", "[:, :-1]", "[:, 1:]"),
        (
            SERIES,
            next_values,
            lambda y, x: keras.losses.MeanSquaredError()(y[:, 1:-1], x[:, :-2]),
            "labels",
            "[:, 2:]",
            "[:, 1:-1]",
        ),
        (
            SERIES,
            with_penalty(next_values),
            with_penalty(lambda y, x: keras.losses.MeanSquaredError()(y[:, :-2], x[:, :-2])),
            *("labels", "[:, 2:]", "[:, :-2]"),
        ),
        (
            SERIES,
            lambda y, x: tf.reduce_mean(tf.abs(y[..., :1] - x[..., :1])),
            lambda y, x: keras.losses.MeanAbsoluteError()(y[..., :1], x[..., 1:2]),
            *("outputs", "[:, :, :1]", "[:, :, 1:2]"),
        ),
    ],
    ids=["words", "outputs", "series", "beside a penalty", "a column"],
)
def test_a_slice_of_labels_or_outputs_at_other_positions_is_named(labels, of_tf1, of_port, what, in_tf1, in_port):
    (finding,) = findings_of(labels, of_tf1, of_port, steps=1, shape=(3, 6, 4))
    title = f"loss: slice of the {what} differs: {in_tf1} (TF1), {in_port} (port)"
    assert (finding.title, finding.confirmed, finding.remedy) == (
        title,
        f"with {in_tf1} of the {what} here, the losses agree",
        f"use {in_tf1} of the {what} in the port",
    )


@pytest.mark.slow
def test_slices_of_labels_and_of_outputs_at_other_positions_are_one_finding():
    def port_loss(labels, outputs):
        return sparse(labels[:, :-1], outputs[:, 1:])  # here

    (finding,) = findings_of(WORDS, next_word, port_loss, steps=1, shape=(3, 6, 4))
    (of_labels, of_outputs) = finding.title.split("; ")
    assert of_labels == "loss: slice of the labels differs: [:, 1:] (TF1), [:, :-1] (port)"
    assert of_outputs == "slice of the outputs differs: [:, :-1] (TF1), [:, 1:] (port)"
    assert finding.remedy == "use [:, 1:] of the labels and [:, :-1] of the outputs in the port"
    assert finding.port.line.endswith(line_of(port_loss))


@pytest.mark.slow
def test_a_slice_at_other_positions_that_does_not_explain_the_loss_is_not_named():
    findings = findings_of(
        SERIES,
        next_values,
        lambda y, x: 0.7 * keras.losses.MeanSquaredError()(y[:, 2:], x[:, :-2]),
        steps=1,
        shape=(3, 6, 4),
    )
    assert findings and not any("slice of" in each.title for each in findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("real_in_tf1", "real_in_port"),
    [
        (lambda x: tf.fill([6, 4], 0.9), tf.ones_like),
        (tf.ones_like, lambda x: tf.fill([6, 4], 0.9)),
        (lambda x: tf.ones_like(x) * 0.9, tf.ones_like),
    ],
    ids=["in TF1", "in the port", "multiplied"],
)
def test_the_constant_labels_of_a_discriminator_are_named_as_one_number(real_in_tf1, real_in_port):
    def loss(real):
        return lambda labels, outputs: of_sigmoids()(real(outputs), outputs)

    (finding,) = findings_of(FLAGS, loss(real_in_tf1), loss(real_in_port))
    values = ("1", "0.9") if real_in_tf1 is tf.ones_like else ("0.9", "1")
    assert finding.title == "loss: factor differs: {} (TF1), {} (port)".format(*values)


@pytest.mark.slow
def test_a_smoothing_of_one_digit_is_named_after_one_step_too():
    (finding,) = findings_of(HOT, by_hand, CATEGORICAL, steps=1)
    assert finding.title == "loss: label smoothing differs: 0.1 (TF1), none (port)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "of_tf1", "of_port"),
    [
        (HOT, smoothed(SOFTMAX), as_a_mixture),
        (HOT, as_a_mixture, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)),
        (POSITIVE, v1.losses.huber_loss, exchanged(keras.losses.Huber())),
    ],
    ids=["mixture", "Keras", "symmetric"],
)
def test_a_sound_loss_that_looks_odd_has_no_finding(labels, of_tf1, of_port):
    assert not findings_of(labels, of_tf1, of_port)


# Two samples of 7 frames, with labels of 5 classes, the last of which is blank in TF1.
SEQUENCES = {
    "labels": np.array([[1, 2, 2], [0, 2, 0]], np.int32),
    "lengths": np.array([3, 2], np.int32),
    "frames": np.array([7, 6], np.int32),
}


def of_tf1_ctc(**arguments):
    def loss(labels, outputs):
        indices = tf.where(tf.sequence_mask(labels["lengths"], 3))
        sparse = tf.SparseTensor(indices, tf.gather_nd(labels["labels"], indices), [2, 3])
        return tf.reduce_mean(v1.nn.ctc_loss(sparse, outputs, labels["frames"], time_major=False, **arguments))

    return loss


def of_port_ctc(blank=-1, offset=0, change=lambda outputs: outputs, lengths=None, frames=None, scale=1.0):
    def loss(labels, outputs):
        of_samples = tf.nn.ctc_loss(  # here
            labels["labels"] + offset,
            change(outputs),
            labels["lengths"] if lengths is None else tf.constant(lengths),
            labels["frames"] if frames is None else tf.constant(frames),
            logits_time_major=False,
            blank_index=blank,
        )
        return scale * tf.reduce_mean(of_samples)

    return loss


def of_keras_ctc(labels, outputs):
    return tf.reduce_mean(keras.ops.ctc_loss(labels["labels"], outputs, labels["lengths"], labels["frames"], 0))


BLANK = "blank index of the CTC loss differs: 4 (TF1), 0 (port)"
COLLAPSE = {"preprocess_collapse_repeated": True}
REST = ", and with TF1's losses here, the rest agrees"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_tf1", "of_port", "title", "remedy"),
    [
        ({}, of_port_ctc(blank=0), BLANK, "pass blank_index=4"),
        ({}, of_keras_ctc, BLANK, "mask_index in Keras"),
        ({}, of_port_ctc(offset=1), "offset of the labels of the CTC loss differs: 0 (TF1), 1 (port)", "use 0"),
        (
            COLLAPSE,
            of_port_ctc(),
            "preprocess_collapse_repeated of the CTC loss differs: True (TF1), False (port)",
            "remove repeated labels",
        ),
        (
            {"ctc_merge_repeated": False},
            of_port_ctc(),
            "ctc_merge_repeated of the CTC loss differs: False (TF1), True (port)",
            "call tf.compat.v1.nn.ctc_loss",
        ),
        (
            COLLAPSE,
            of_port_ctc(blank=0),
            f"{BLANK}; preprocess_collapse_repeated of the CTC loss differs: True (TF1), False (port)",
            "pass TF1's values to the port's CTC loss",
        ),
        (
            {},
            of_port_ctc(frames=[7, 7]),
            "logit_length of the CTC loss differs: [7 6] (TF1), [7 7] (port)",
            "use [7 6]",
        ),
        (
            {},
            of_port_ctc(lengths=[3, 3]),
            "label_length of the CTC loss differs: [3 2] (TF1), [3 3] (port)",
            "use [3 2]",
        ),
        (
            {},
            of_port_ctc(change=tf.nn.softmax),
            "activation of the logits of the CTC loss differs: none (TF1), softmax (port)",
            "leave this out",
        ),
        ({}, of_port_ctc(change=lambda outputs: outputs * 0.5), "the CTC losses of the same outputs differ", ""),
    ],
    ids=[
        *("blank", "blank in Keras", "offset", "collapse", "merge", "blank and collapse"),
        *("frames", "lengths", "activation", "unknown"),
    ],
)
def test_what_differs_in_a_ctc_loss_is_named_with_the_lines_of_both(of_tf1, of_port, title, remedy):
    (finding,) = findings_of(SEQUENCES, of_tf1_ctc(**of_tf1), of_port, steps=1, shape=(2, 7, 5))
    assert finding.title == f"loss: {title}"
    assert remedy in finding.remedy
    assert finding.confirmed.endswith(REST.removeprefix(", and "))
    assert "v1.nn.ctc_loss(" in finding.tf1.source
    assert "ctc_loss(" in finding.port.source


@pytest.mark.slow
def test_a_ctc_loss_that_differs_beside_another_fault_is_named():
    of_tf1 = of_tf1_ctc()
    finding, *_ = findings_of(SEQUENCES, of_tf1, of_port_ctc(blank=0, scale=0.7), steps=1, shape=(2, 7, 5))
    assert finding.title == f"loss: {BLANK}"
    assert finding.confirmed == "with the port's values, TF1's op computes the port's losses"


@pytest.mark.slow
def test_a_sum_of_ctc_losses_is_no_fault_of_the_losses():
    def summed(labels, outputs):
        return 2.0 * of_port_ctc()(labels, outputs)

    findings = findings_of(SEQUENCES, of_tf1_ctc(), summed, steps=1, shape=(2, 7, 5))
    assert findings and not any("CTC" in each.title for each in findings)


@pytest.mark.slow
def test_a_ctc_loss_of_which_the_labels_are_not_known_has_its_place():
    alike = SEQUENCES | {"labels": np.ones((2, 3), np.int32)}  # nothing tells these from other numbers
    (finding,) = findings_of(alike, of_tf1_ctc(), of_port_ctc(blank=0), steps=1, shape=(2, 7, 5))
    assert finding.title == "loss: the CTC losses of the same outputs differ"
    assert "v1.nn.ctc_loss(" in finding.tf1.source and "ctc_loss(" in finding.port.source


@pytest.mark.slow
def test_an_exchanged_axis_of_time_is_named():
    labels = {"labels": integers(4, 6, 2), "lengths": np.full(6, 2, np.int32), "frames": np.full(6, 6, np.int32)}

    def of_tf1(labels, outputs):
        sparse = tf.SparseTensor(tf.where(labels["labels"] >= 0), tf.reshape(labels["labels"], [-1]), [6, 2])
        return tf.reduce_mean(v1.nn.ctc_loss(sparse, outputs, labels["frames"]))  # time_major is True by default

    (finding,) = findings_of(labels, of_tf1, of_port_ctc(), steps=1, shape=(6, 6, 5))
    assert finding.title == "loss: axis of time of the CTC loss differs: 0 (TF1), 1 (port)"
    assert finding.remedy.startswith("transpose the logits in the port")


@pytest.mark.slow
@pytest.mark.parametrize(
    "of_port",
    [of_port_ctc(), of_port_ctc(blank=0, offset=1, change=lambda x: tf.roll(x, 1, -1))],
    ids=["same", "other blank"],
)
def test_a_sound_ctc_loss_has_no_finding(of_port):
    assert not findings_of(SEQUENCES, of_tf1_ctc(), of_port, shape=(2, 7, 5))
