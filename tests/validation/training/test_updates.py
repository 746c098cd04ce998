"""Updates that differ although the gradients agree: the finding says what the optimizer does to gradients."""

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


def training_step(change, optimizer=Clipped, **of_port):
    train = detrand.TrainStep(
        labels=integers(3, 6),
        tf1_loss=tf.losses.sparse_softmax_cross_entropy,
        port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer=lambda: optimizer(change),
        port_optimizer=lambda: keras.optimizers.SGD(0.2, **of_port),
        steps=3,
    )
    migration = detrand.Migration(
        tf1=lambda x, training: dense(dense(x, 5, "a", tf.nn.tanh), 3, "b"),
        port=lambda: keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)]),
        inputs=numbers(6, 4),
        train=train,
    )
    return next(check for check in detrand.validate(migration).checks if check.name == "training-steps")


@pytest.mark.parametrize(
    ("change", "of_port", "title"),
    [
        (by_value, {}, "clipping of gradients differs: each element 0.05 (TF1), none (port)"),
        (by_global_norm, {}, "clipping of gradients differs: global norm 0.2 (TF1), none (port)"),
        (by_global_norm, {"global_clipnorm": 0.1}, "global norm 0.2 (TF1), global norm 0.1 (port)"),
        (by_value, {"clipnorm": 0.05}, "each element 0.05 (TF1), norm of each 0.05 (port)"),
        (decayed, {}, "weight decay differs: only TF1 takes 0.02 of a/w, b/w away in each step"),
    ],
)
def test_what_an_optimizer_does_to_gradients_is_named(change, of_port, title):
    finding, *_ = training_step(change, **of_port).findings
    assert title in finding.title
    assert finding.confirmed


@pytest.mark.parametrize(
    ("change", "of_port"), [(by_value, {"clipvalue": 0.05}), (by_global_norm, {"global_clipnorm": 0.2})]
)
@pytest.mark.parametrize("optimizer", [Clipped, ClippedAsComputed])
def test_the_same_clipping_passes(change, of_port, optimizer):
    assert training_step(change, optimizer, **of_port).ok


def test_clipping_as_gradients_are_computed_is_named():
    (finding,) = training_step(by_global_norm, ClippedAsComputed).findings
    assert finding.title == "clipping of gradients differs: global norm 0.2 (TF1), none (port)"


def test_a_gradient_of_zeros_is_none_in_the_port():
    assert detrand.validate(sound_ports()["gradient_of_zeros_against_none"]()).ok
