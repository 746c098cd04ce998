"""Updates that differ although the gradients agree: the finding says what the optimizer does to gradients."""

import functools

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.sound import sound_ports
from tests.faults.tf1 import dense, integers, numbers


class Clipped(tf.train.GradientDescentOptimizer):
    """Gradient descent that changes its gradients by a function of gradients and variables."""

    def __init__(self, change):
        super().__init__(0.2)
        self.change = change

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars, strict=True)
        changed = self.change(gradients, variables)
        return super().apply_gradients(list(zip(changed, variables, strict=True)), global_step, name)


class ClippedAsComputed(tf.train.GradientDescentOptimizer):
    """Gradient descent whose `compute_gradients` changes the gradients."""

    def __init__(self, change):
        super().__init__(0.2)
        self.change = change

    def compute_gradients(self, *args, **kwargs):
        gradients, variables = zip(*super().compute_gradients(*args, **kwargs), strict=True)
        return list(zip(self.change(gradients, variables), variables, strict=True))


def by_value(gradients, variables):
    return [tf.clip_by_value(gradient, -0.05, 0.05) for gradient in gradients]


def by_global_norm(gradients, variables):
    return tf.clip_by_global_norm(gradients, 0.2)[0]


def decayed(gradients, variables):
    pairs = zip(gradients, variables, strict=True)
    return [each + 0.1 * variable if "/w" in variable.op.name else each for each, variable in pairs]


def times(number, names=""):
    def change(gradients, variables):
        pairs = zip(gradients, variables, strict=True)
        return [number * each if names in variable.op.name else each for each, variable in pairs]

    return change


def by_own_code(gradients, variables):
    share = tf.minimum(1.0, 0.2 / tf.linalg.global_norm(gradients))
    return [share * each for each in gradients]


def normalized(gradients, variables):
    """Make the global norm 0.1 in every step, also where that is more than it was."""
    return [0.1 * each / tf.linalg.global_norm(gradients) for each in gradients]


class Times(keras.optimizers.SGD):
    """Multiplies gradients by a function of them, which no argument shows."""

    def __init__(self, factor):
        super().__init__(0.2)
        self.factor = factor

    def apply(self, grads, trainable_variables=None):
        super().apply([each * self.factor(grads) for each in grads], trainable_variables)


def training_step(change, optimizer=Clipped, port_optimizer=None, steps=3, **of_port):
    train = detrand.TrainStep(
        labels=integers(3, 6),
        tf1_loss=tf.losses.sparse_softmax_cross_entropy,
        port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer=lambda: optimizer(change),
        port_optimizer=port_optimizer or (lambda: keras.optimizers.SGD(0.2, **of_port)),
        steps=steps,
    )
    migration = detrand.Migration(
        tf1=lambda x, training: dense(dense(x, 5, "a", tf.nn.tanh), 3, "b"),
        port=lambda: keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)]),
        inputs=numbers(6, 4),
        train=train,
    )
    return detrand.validate(migration, checks=["training-steps"]).checks[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "of_port", "title"),
    [
        (by_value, {}, "clipping of gradients differs: each element 0.05 (TF1), none (port)"),
        (by_global_norm, {}, "clipping of gradients differs: global norm 0.2 (TF1), none (port)"),
        (by_global_norm, {"global_clipnorm": 0.1}, "global norm 0.2 (TF1), global norm 0.1 (port)"),
        (by_value, {"clipnorm": 0.05}, "each element 0.05 (TF1), norm of each 0.05 (port)"),
        (by_own_code, {}, "clipping of gradients differs: global norm 0.2 (TF1), none (port)"),
        (times(0.5), {}, "factor of the gradients differs: 0.5 (TF1), 1 (port)"),
        (times(32), {}, "factor of the gradients differs: 32 (TF1), 1 (port)"),
        (times(2, "/b"), {}, "factor of the gradients of a/b, b/b differs: 2 (TF1), 1 (port)"),
        (times(4), {"clipnorm": 100.0}, "factor of the gradients differs: 4 (TF1), 1 (port)"),
        (decayed, {}, "regularizer differs in a/w, b/w: 0.05 sum(w**2) (TF1), none (port)"),
    ],
)
def test_what_an_optimizer_does_to_gradients_is_named(change, of_port, title):
    finding, *_ = training_step(change, **of_port).findings
    assert title in finding.title
    assert finding.confirmed


@pytest.mark.slow
def test_the_line_that_changes_gradients_is_named():
    (finding,) = training_step(times(0.5)).findings
    assert finding.title == "factor of the gradients differs: 0.5 (TF1), 1 (port)"
    assert finding.confirmed
    assert "number * each" in finding.tf1.source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "optimizer", "title"),
    [
        (times(1), Times(lambda _: 0.5), "factor of the gradients differs: 1 (TF1), 0.5 (port)"),
        (normalized, None, "clipping or normalization of gradients differs: global norm 0.1 (TF1), none (port)"),
        (
            times(1),
            Times(lambda grads: 0.1 / tf.linalg.global_norm(grads)),
            "clipping or normalization of gradients differs: none (TF1), global norm 0.1 (port)",
        ),
    ],
)
def test_no_clipping_is_confirmed_where_no_program_clips(change, optimizer, title):
    (finding,) = training_step(change, port_optimizer=optimizer and (lambda: Times(optimizer.factor))).findings
    assert finding.title == title
    assert bool(finding.confirmed) == title.startswith("factor")


@pytest.mark.slow
def test_the_probe_tells_clipping_from_a_factor_where_one_step_does_not():
    (scaled,), (clipped,) = (training_step(change, steps=2).findings for change in (times(0.5), by_global_norm))
    assert scaled.title == "factor of the gradients differs: 0.5 (TF1), 1 (port)"
    assert clipped.title == "clipping of gradients differs: global norm 0.2 (TF1), none (port)"
    assert scaled.confirmed and clipped.confirmed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "title", "source"),
    [
        (times(8), "factor of the gradients differs: 8 (TF1), 1 (port)", "number * each"),
        (
            by_global_norm,
            "clipping of gradients differs: global norm 0.2 (TF1), none (port)",
            "tf.clip_by_global_norm(",
        ),
    ],
)
def test_gradients_that_an_adaptive_optimizer_gets_changed_have_a_line(change, title, source):
    class Changed(tf.train.AdamOptimizer):
        def __init__(self, change):
            super().__init__(0.01)
            self.change = change

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, variables = zip(*grads_and_vars, strict=True)
            changed = self.change(gradients, variables)
            return super().apply_gradients(list(zip(changed, variables, strict=True)), global_step)

    port_optimizer = functools.partial(keras.optimizers.Adam, 0.01, epsilon=1e-8)
    (finding,) = training_step(change, Changed, port_optimizer).findings
    assert finding.title == title
    assert source in finding.tf1.source
    assert finding.confirmed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "of_port"), [(by_value, {"clipvalue": 0.05}), (by_global_norm, {"global_clipnorm": 0.2})]
)
@pytest.mark.parametrize("optimizer", [Clipped, ClippedAsComputed])
def test_the_same_clipping_passes(change, of_port, optimizer):
    assert training_step(change, optimizer, **of_port).ok


@pytest.mark.slow
def test_clipping_as_gradients_are_computed_is_named():
    (finding,) = training_step(by_global_norm, ClippedAsComputed).findings
    assert finding.title == "clipping of gradients differs: global norm 0.2 (TF1), none (port)"


@pytest.mark.slow
def test_a_gradient_of_zeros_is_none_in_the_port():
    assert detrand.validate(sound_ports()["gradient_of_zeros_against_none"]()).ok


def recurrent(x, training):
    cell = tf.nn.rnn_cell.BasicLSTMCell(4)  # which adds 1 to what its forget gates get
    return tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[1].h


@pytest.mark.slow
def test_small_updates_of_a_bias_that_holds_the_forget_bias_are_rounded_with_it():
    train = detrand.TrainStep(
        labels=numbers(5, 4),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(1e-3),
        port_optimizer=lambda: keras.optimizers.SGD(1e-3),
    )
    with detrand.enable_v1_layers():
        migration = detrand.Migration(
            tf1=recurrent, port=lambda: keras.layers.LSTM(4), inputs=numbers(5, 6, 3), train=train
        )
        assert detrand.validate(migration, checks=["training-steps"]).ok
