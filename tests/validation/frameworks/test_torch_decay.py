"""Weights that TF1 penalizes in its loss, and that the port's optimizer of PyTorch decays."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate

torch = pytest.importorskip("torch")
nn = torch.nn
v1 = tf.compat.v1
INPUTS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def with_v1_layers():
    with enable_v1_layers():
        yield


def tf1_model(x, training):
    hidden = v1.layers.dense(x, 7, tf.nn.tanh, name="hidden", bias_initializer=v1.constant_initializer(0.3))
    return v1.layers.dense(hidden, 3, name="scores")


def tf1_loss(labels, outputs):
    weights = [each for each in v1.trainable_variables() if "kernel" in each.name]
    return tf.reduce_mean(tf.square(outputs - labels)) + 0.04 * tf.add_n([tf.nn.l2_loss(each) for each in weights])


class Port(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.scores = nn.Linear(5, 7), nn.Linear(7, 3)
        for layer, bias in ((self.hidden, 0.3), (self.scores, 0.0)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def forward(self, x):
        return self.scores(torch.tanh(self.hidden(x)))


def momentum(groups, **arguments):
    return torch.optim.SGD(groups, 0.1, momentum=0.9, **arguments)


def decaying(of_kernels, of_biases=0.0, make=momentum):
    def make_optimizer(parameters):
        kernels, biases = [each for each in parameters if each.ndim > 1], [each for each in parameters if each.ndim < 2]
        return make([{"params": kernels, "weight_decay": of_kernels}, {"params": biases, "weight_decay": of_biases}])

    return make_optimizer


def migration(port_optimizer, tf1_optimizer=lambda: v1.train.MomentumOptimizer(0.1, 0.9), steps=4):
    train = TrainStep(
        labels=np.zeros((6, 3), np.float32),
        tf1_loss=tf1_loss,
        port_loss=lambda labels, outputs: ((outputs - labels) ** 2).mean(),
        tf1_optimizer=tf1_optimizer,
        port_optimizer=port_optimizer,
        steps=steps,
    )
    return Migration(tf1=tf1_model, port=Port, inputs=INPUTS, train=train)


def finding(*arguments, **options):
    (found,) = validate(migration(*arguments, **options)).findings
    return found


@pytest.mark.slow
def test_a_decay_in_the_optimizer_is_a_penalty_in_the_loss():
    report = validate(migration(decaying(0.04)))
    assert report.ok, report
    assert "the optimizers agree for gradients" in report.checks[-1].summary
    assert not report.audit.differing


@pytest.mark.slow
def test_a_decay_in_both_the_loss_and_the_optimizer_differs():
    made = []

    def penalized(labels, outputs):
        kernels = (made[-1].hidden.weight, made[-1].scores.weight)
        return ((outputs - labels) ** 2).mean() + 0.02 * sum((each**2).sum() for each in kernels)

    base = migration(decaying(0.04))
    port = replace(base, port=lambda: made.append(Port()) or made[-1], train=replace(base.train, port_loss=penalized))
    assert not validate(port).ok


@pytest.mark.slow
def test_a_decay_of_variables_that_tf1_does_not_penalize_is_named():
    found = finding(lambda parameters: momentum(parameters, weight_decay=0.04))
    assert found.title == "weight decay differs: only the port decays hidden/bias, scores/bias"
    assert found.confirmed == "without the decay in the port's optimizer, the updates of these agree"
    assert found.remedy == "leave hidden/bias, scores/bias out of the weight decay of the port's optimizer"


@pytest.mark.slow
def test_a_decay_of_different_size_is_named_with_both_values():
    found = finding(decaying(0.02))
    assert found.title == "weight decay differs in the optimizer: 0.04 (TF1), 0.02 (port)"
    assert found.remedy == "use 0.04 in the port"


@pytest.mark.slow
def test_a_decay_that_a_small_learning_rate_hides_is_named():
    def slowly(groups):
        return torch.optim.SGD(groups, 1e-7)

    found = finding(decaying(0.02, make=slowly), lambda: v1.train.GradientDescentOptimizer(1e-7))
    assert found.title == "weight decay differs in the optimizer: 0.04 (TF1), 0.02 (port)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "title"),
    [
        (torch.optim.AdamW, "kind differs in the optimizer: Adam (TF1), AdamW (port)"),
        (
            torch.optim.Adam,
            "PyTorch's Adam adds epsilon after it has corrected the bias of the moments, TF1's adds it before",
        ),
    ],
)
def test_an_adam_that_decays_is_named(make, title):
    optimizer = decaying(0.04, make=lambda groups: make(groups, 0.01, eps=1e-3))
    assert finding(optimizer, lambda: v1.train.AdamOptimizer(0.01, epsilon=1e-3)).title == title


@pytest.mark.slow
def test_a_penalty_that_the_port_lacks_is_still_a_finding():
    assert finding(momentum).title == "loss: only TF1 adds this term to the loss"


@pytest.mark.slow
def test_what_an_optimizer_that_decays_does_to_larger_gradients_is_found():
    def clipping(groups):
        optimizer = momentum(groups)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]

        def clip(*_):
            nn.utils.clip_grad_norm_(parameters, 50.0)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    assert finding(decaying(0.04, make=clipping)).title.startswith("clipping of gradients differs")
