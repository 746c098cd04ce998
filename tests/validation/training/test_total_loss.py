"""Losses that a model adds: the total loss counts, however a program splits it into loss and regularization."""

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import dense, numbers


def plain(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


def of_collections(labels, outputs):
    tf.losses.mean_squared_error(labels, outputs)
    return tf.losses.get_total_loss()


def with_decay(factor):
    def loss(labels, outputs):
        decay = [tf.nn.l2_loss(each) for each in tf.trainable_variables() if each.op.name.endswith("/w")]
        return plain(labels, outputs) + factor * tf.add_n(decay)

    return loss


def model(adds=False, regularizer=None):
    def tf1(x, training):
        hidden = dense(x, 5, "a", tf.nn.sigmoid, regularizer=regularizer)
        if adds:
            tf.losses.add_loss(0.1 * tf.reduce_mean(hidden))
        return dense(hidden, 2, "b", regularizer=regularizer)

    return tf1


class Port(keras.Model):
    def __init__(self, adds=False, decay=0.0):
        super().__init__()
        regularizer = keras.regularizers.L2(decay / 2) if decay else None
        self.a = keras.layers.Dense(5, "sigmoid", kernel_regularizer=regularizer)
        self.b = keras.layers.Dense(2, kernel_regularizer=regularizer)
        self.adds = adds

    def call(self, x):
        hidden = self.a(x)
        if self.adds:
            self.add_loss(0.1 * keras.ops.mean(hidden))
        return self.b(hidden)


def validated(tf1, tf1_loss, port):
    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=tf1_loss,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )
    migration = detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3), train=train)
    return detrand.validate(migration, checks=["regularizers-match", "training-steps"])


def l2(weights):
    return 0.01 * tf.nn.l2_loss(weights)


SOUND = {
    "added in both": (model(adds=True), plain, lambda: Port(adds=True)),
    "added, and contained in tf1_loss": (model(adds=True), of_collections, lambda: Port(adds=True)),
    "regularizers in both": (model(regularizer=l2), plain, lambda: Port(decay=0.01)),
    "regularizers contained in tf1_loss": (model(regularizer=l2), of_collections, lambda: Port(decay=0.01)),
    "weight decay in tf1_loss": (model(), with_decay(0.01), lambda: Port(decay=0.01)),
}


@pytest.mark.slow_except("added, and contained in tf1_loss", "weight decay in tf1_loss")
@pytest.mark.parametrize("programs", SOUND.values(), ids=SOUND)
def test_one_total_loss_passes(programs):
    assert validated(*programs).ok


FAULTY = {
    "added by TF1 only": (model(adds=True), plain, Port),
    "added by the port only": (model(), plain, lambda: Port(adds=True)),
    "less weight decay than in tf1_loss": (model(), with_decay(0.01), lambda: Port(decay=0.009)),
    "no weight decay": (model(), with_decay(0.01), Port),
    "regularizers counted twice": (model(regularizer=l2), with_decay(0.01), lambda: Port(decay=0.01)),
}


@pytest.mark.slow_except("added by the port only", "less weight decay than in tf1_loss", "regularizers counted twice")
@pytest.mark.parametrize("programs", FAULTY.values(), ids=FAULTY)
def test_another_total_loss_fails(programs):
    assert not validated(*programs).ok


def test_a_loss_that_the_model_returns_is_not_added():
    def tf1(x, training):
        outputs = model()(x, training)
        return {"outputs": outputs, "size": tf.losses.mean_squared_error(tf.zeros_like(outputs), outputs)}

    class Returning(Port):
        def call(self, x):
            outputs = super().call(x)
            return {"outputs": outputs, "size": keras.ops.mean(keras.ops.square(outputs))}

    def loss(labels, outputs):
        return tf.reduce_mean(tf.square(labels - outputs["outputs"]))

    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=loss,
        port_loss=loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    assert detrand.validate(detrand.Migration(tf1=tf1, port=Returning, inputs=numbers(4, 3), train=train)).ok


def test_the_finding_of_a_regularizer_has_both_lines():
    report = validated(model(regularizer=l2), plain, lambda: Port(decay=0.02))
    finding = next(each for each in report.findings if each.kind == "regularizers")
    assert "0.01 * tf.nn.l2_loss(weights)" in finding.tf1.source
    assert "keras.layers.Dense(5" in finding.port.source
