"""The probe of a model with other inputs, where those of the migration do not show a fault."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compat import v1

from detrand import Migration, TrainStep, validate
from detrand.validation.probe import probed, weaknesses
from tests.support.shim_ports import shim_port

ROWS = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def dense(x, units, name):
    kernel = v1.get_variable(f"{name}/kernel", (x.shape[-1], units))
    return tf.tensordot(x, kernel, 1) + v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())


def validated(program, inputs, faulty, **arguments):
    def tf1(x, training):
        return program(x, training, False)

    port = shim_port(program, faulty=faulty)
    return validate(Migration(tf1=tf1, port=port, inputs=inputs, **arguments))


def clipping(x, training, faulty):
    hidden = dense(x, 4, "a") / 10
    return dense(tf.nn.relu(hidden) if faulty else tf.nn.relu6(hidden), 3, "b")


def transposing(images, training, faulty):
    images = tf.transpose(images, [0, 2, 1]) if faulty else images
    return tf.reduce_max(tf.tanh(dense(images, 5, "a")), 1)


def tiny(x, training, faulty):
    return dense(x, 3, "a") * (1.5e-7 if faulty else 1e-7)


def summing(x, training, faulty):
    hidden = tf.tanh(dense(x, 4, "a"))
    return tf.reduce_sum(hidden, 0) if faulty else tf.reduce_mean(hidden, 0)


CASES = {
    "a clip": (clipping, 0.001 * np.abs(ROWS), "activation differs: Relu6 (TF1), Relu (port)", "not exercised: Relu6"),
    "axes": (transposing, np.ones((2, 5, 5), np.float32), "", "inputs are constant"),
    "tiny outputs": (tiny, ROWS, "factor differs: 1e-07 (TF1), 1.5e-07 (port)", ""),
    "a sum over a batch of one": (summing, ROWS[:1], "reduction differs: Mean (TF1), Sum (port)", "a batch of one"),
}


@pytest.mark.slow_except("a sum over a batch of one")
@pytest.mark.parametrize("case", CASES)
def test_what_the_inputs_do_not_show_is_found(case):
    program, inputs, title, reason = CASES[case]
    report = validated(program, inputs, faulty=True)
    assert not report.ok, str(report)
    assert report.findings[0].title.startswith(title), str(report)
    assert reason in report.findings[0].confirmed, str(report)


@pytest.mark.parametrize("case", CASES)
def test_sound_ports_pass_with_a_note(case):
    program, inputs, _, reason = CASES[case]
    report = validated(program, inputs, faulty=False)
    assert report.ok, str(report)
    summary = next(check.summary for check in report.checks if check.name == "constant-weights")
    assert ("with other inputs" in summary) == bool(reason), summary


def test_a_model_that_takes_no_other_batch_is_compared_with_the_given_one():
    def fixed(x, training, faulty):
        return dense(tf.reshape(tf.ensure_shape(x, (1, 6)), (1, 6)), 3, "a")

    report = validated(fixed, ROWS[:1], faulty=False)
    assert report.ok, str(report)
    summary = next(check.summary for check in report.checks if check.name == "constant-weights")
    assert "not compared with other inputs: " in summary


@pytest.mark.slow
def test_a_loss_is_compared_with_more_than_one_row():
    def train(reduction):
        return TrainStep(
            labels=np.array([2], np.int32),
            tf1_loss=v1.losses.sparse_softmax_cross_entropy,
            port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction),
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=2,
        )

    def program(x, training, faulty):
        return dense(x, 3, "a")

    assert validated(program, ROWS[:1], False, train=train("sum_over_batch_size")).ok
    (finding,) = validated(program, ROWS[:1], False, train=train("sum")).findings
    assert finding.title.startswith("the port sums a loss where TF1 takes the mean: it is 2 times as large")
    assert finding.confirmed
    assert finding.remedy == "take the mean in the port"


def test_other_inputs_are_of_the_kind_of_the_given_ones():
    given = (
        np.array([[0.0, 1.0, 1.0]], np.float32),
        np.array([[3, 5, 9]], np.int32),
        np.array([[0.5, 0.25, 2.0]], np.float32),
        np.array([[-0.5, 0.25, 2.0]], np.float64),
        np.array([[b"one", b"two", b"three"]]),
    )
    migration = Migration(tf1=lambda *inputs, training: inputs[0], port=lambda: None, inputs=given)
    assert [each.words for each in weaknesses(migration, ())] == ["a batch of one has the same sum and mean"]
    mask, ids, positive, signed, texts = probed(migration, weaknesses(migration, ())).first_batch()
    assert {each.shape for each in (mask, ids, positive, signed, texts)} == {(2, 3)}
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert ids.dtype == np.int32
    assert 3 <= ids.min() <= ids.max() <= 9
    assert 0 <= positive.min() < positive.max() <= 2
    assert signed.dtype == np.float64
    assert signed.min() < 0
    assert set(texts.flat) == {b"one", b"two", b"three"}
