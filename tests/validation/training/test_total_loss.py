"""Losses that a model adds: the total loss counts, however a program splits it into loss and regularization."""

import keras
import pytest
import tensorflow.compat.v1 as tf
import tf_slim

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


def validated(tf1, tf1_loss, port, port_loss=None):
    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=tf1_loss,
        port_loss=port_loss or keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )
    migration = detrand.Migration(tf1=tf1, port=port, inputs=numbers(4, 3), train=train)
    return detrand.validate(migration, checks=["regularizers-match", "training-steps"])


def l2(weights):
    return 0.01 * tf.nn.l2_loss(weights)


def with_its_loss(function):
    """Return a model that computes a loss of its training, as the model_fn of an Estimator does."""

    def tf1(x, training):
        outputs = model()(x, training)
        function(outputs, x[:, :2])
        return outputs

    return tf1


def of_tf_losses(outputs, targets):
    return tf.losses.huber_loss(targets, outputs)


def of_tf_slim(outputs, targets):
    return tf_slim.losses.mean_squared_error(outputs, targets)


def of_labels_that_nobody_feeds(outputs, targets):
    return tf.losses.huber_loss(tf.placeholder(tf.float32, [None, 2]), outputs)


class Autoencoder(Port):
    """It adds the loss of its training by itself."""

    def call(self, x):
        outputs = super().call(x)
        self.add_loss(keras.ops.mean(keras.ops.square(outputs - x[:, :2])))
        return outputs


SOUND = {
    "added in both": (model(adds=True), plain, lambda: Port(adds=True)),
    "added, and contained in tf1_loss": (model(adds=True), of_collections, lambda: Port(adds=True)),
    "regularizers in both": (model(regularizer=l2), plain, lambda: Port(decay=0.01)),
    "regularizers contained in tf1_loss": (model(regularizer=l2), of_collections, lambda: Port(decay=0.01)),
    "weight decay in tf1_loss": (model(), with_decay(0.01), lambda: Port(decay=0.01)),
    "computed by tf.losses in the model": (with_its_loss(of_tf_losses), plain, Port),
    "computed by tf_slim in the model": (with_its_loss(of_tf_slim), plain, Port),
    "of labels that nobody feeds": (with_its_loss(of_labels_that_nobody_feeds), plain, Port),
    "computed in both models": (with_its_loss(of_tf_slim), of_collections, Autoencoder),
}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("programs", FAULTY.values(), ids=FAULTY)
def test_another_total_loss_fails(programs):
    assert not validated(*programs).ok


@pytest.mark.slow
def test_a_loss_of_training_may_be_added_by_the_port_too():
    tf1 = with_its_loss(of_tf_slim)
    checked = {"inputs": numbers(4, 3), "tf1": tf1}
    for port, is_sound in ((Port, True), (Autoencoder, True), (lambda: Port(adds=True), False)):
        migration = detrand.Migration(port=port, **checked)
        assert detrand.validate(migration, checks=["regularizers-match"]).ok == is_sound


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_finding_of_a_regularizer_has_both_lines():
    report = validated(model(regularizer=l2), plain, lambda: Port(decay=0.02))
    finding = next(each for each in report.findings if each.kind == "regularizers")
    assert "0.01 * tf.nn.l2_loss(weights)" in finding.tf1.source
    assert "keras.layers.Dense(5" in finding.port.source


class Activated(Port):
    """A port with another activation."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.a.activation = keras.activations.tanh


def summed(labels, outputs):
    return keras.ops.sum(keras.ops.square(labels - outputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "loss", "title"),
    [
        (Activated, keras.losses.MeanSquaredError(), "activation differs: Sigmoid (TF1), Tanh (port)"),
        (Port, summed, "loss: reduction differs: Mean (TF1), Sum (port)"),
    ],
    ids=["activation", "loss"],
)
def test_a_penalty_that_only_tf1_has_in_its_loss_is_no_finding_beside_another_fault(port, loss, title):
    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=with_decay(0.01),
        port_loss=loss,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )
    migration = detrand.Migration(tf1=model(), port=lambda: port(decay=0.01), inputs=numbers(4, 3), train=train)
    report = detrand.validate(migration)
    assert [each.title for each in report.findings] == [title], str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_model", "step_of"),
    [(False, tf.train.get_or_create_global_step), (True, tf.train.get_global_step), (False, tf.train.get_global_step)],
    ids=["made by the loss", "made by the model", "expected by the loss"],
)
def test_a_loss_that_depends_on_the_global_step_passes(in_model, step_of):
    """The port has the iterations of its optimizer, and no variable for TF1's step."""
    made = []

    def optimizer():
        made.append(keras.optimizers.SGD(0.1))
        return made[-1]

    def tf1(x, training):
        if in_model:
            tf.train.get_or_create_global_step()
        return model()(x, training)

    def annealed(labels, outputs):
        step = tf.cast(step_of(), tf.float32)
        return plain(labels, outputs) + tf.minimum(1.0, 0.2 * step) * tf.reduce_mean(tf.abs(outputs))

    def annealed_in_keras(labels, outputs):
        step = keras.ops.cast(made[-1].iterations, "float32")
        weight = keras.ops.minimum(1.0, 0.2 * step)
        return keras.losses.MeanSquaredError()(labels, outputs) + weight * keras.ops.mean(keras.ops.abs(outputs))

    train = detrand.TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=annealed,
        port_loss=annealed_in_keras,
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.1),
        port_optimizer=optimizer,
        steps=3,
    )
    report = detrand.validate(detrand.Migration(tf1=tf1, port=Port, inputs=numbers(4, 3), train=train))
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_a_variable_of_the_loss_is_compared_by_what_it_does(momentum):
    """TF1's loss has a baseline in the graph, the port's loss one of its own, with this momentum."""
    baseline = keras.Variable(0.0)

    def with_baseline(labels, outputs):
        average = tf.get_variable("baseline", [], initializer=tf.zeros_initializer(), trainable=False)
        loss = plain(labels, outputs - average)
        with tf.control_dependencies([loss]):
            update = average.assign(0.9 * average + 0.1 * tf.reduce_mean(outputs))
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return loss

    def with_own_baseline(labels, outputs):
        before = baseline.value + 0.0
        baseline.assign(momentum * before + (1 - momentum) * tf.stop_gradient(tf.reduce_mean(outputs)))
        return plain(labels, outputs - before)

    def port():
        baseline.assign(0.0)
        return Port()

    check = validated(model(), with_baseline, port, with_own_baseline).checks[-1]
    assert check.ok is (momentum == 0.9), check
    assert "not compared: baseline, which only TF1's loss has" in check.summary
