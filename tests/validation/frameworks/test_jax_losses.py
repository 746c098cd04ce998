"""Losses of ports to JAX: sound ones pass, and faults in them are named with their line."""

import numpy as np
import pytest

from tests.faults.tf1 import numbers
from tests.support import losses
from tests.support.losses import CLASSES, FLAGS, NUMBERS, POSITIVE, SHARES, SIGNS, WEIGHTS, line_of

jax = pytest.importorskip("jax")
optax, nnx = pytest.importorskip("optax"), pytest.importorskip("flax.nnx")
jnp, nn = jax.numpy, jax.nn

from tests.validation.frameworks.test_jax_functions import output_of, traced, types_of  # noqa: E402 - it imports JAX

ROWS, SPARSE = numbers(6, 4), "SparseSoftmaxCrossEntropyWithLogits"
of_classes = optax.softmax_cross_entropy_with_integer_labels


def taken(x, y):
    return -jnp.take_along_axis(nn.log_softmax(x), y[:, None], 1)[:, 0]


def of_sum(x, y):
    return nn.logsumexp(x, -1) - (x * nn.one_hot(y, 4)).sum(-1)


CROSS_ENTROPIES = {
    "optax": (of_classes, [SPARSE]),
    "taken": (taken, [SPARSE]),
    "index": (lambda x, y: -nn.log_softmax(x)[jnp.arange(6), y], [SPARSE]),
    "probabilities": (lambda x, y: -jnp.log(taken(nn.log_softmax(x), y) * 0 + nn.softmax(x)[jnp.arange(6), y]), None),
    "sum": (of_sum, [SPARSE]),
    "divided": (lambda x, y: taken(x / 3, y), ["RealDiv", SPARSE]),
    "mean": (lambda x, y: of_classes(x, y).mean(), [SPARSE, "Mean"]),
}


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropies_of_classes_are_one_op(name):
    function, types = CROSS_ENTROPIES[name]
    port = traced(function, ROWS, CLASSES)
    assert types is None or types_of(port) == types
    np.testing.assert_allclose(output_of(port), function(jnp.asarray(ROWS), jnp.asarray(CLASSES)), 1e-5)


def of_used_logs(x, y):
    logs = nn.log_softmax(x)
    return logs.sum(1) - jnp.take_along_axis(logs, y[:, None], 1)[:, 0]


NO_CROSS_ENTROPIES = {
    "epsilon": lambda x, y: -jnp.log(nn.softmax(x)[jnp.arange(6), y] + 1e-7),
    "used": of_used_logs,
    "other classes": lambda x, y: taken(x, y + 10),
    "scores": lambda x, y: -x[jnp.arange(6), y],
}


@pytest.mark.parametrize("name", NO_CROSS_ENTROPIES)
def test_what_is_next_to_a_cross_entropy_keeps_its_ops(name):
    port = traced(NO_CROSS_ENTROPIES[name], ROWS, CLASSES)
    assert SPARSE not in types_of(port)


class Port(nnx.Module):
    def __init__(self):
        self.bias = nnx.Param(jnp.zeros(4))

    def __call__(self, x):
        return x + self.bias[...]


def report_of(labels, of_tf1, of_port):
    return losses.report_of(Port, labels, of_tf1, of_port, lambda: optax.sgd(0.1))


def by_hand(labels, shares):
    return -(labels * jnp.log(shares + 0.01) + (1 - labels) * jnp.log(1 - shares + 0.01)).mean()


def positive(y, x):
    return -(2.5 * y * nn.log_sigmoid(x) + (1 - y) * nn.log_sigmoid(-x)).mean()


def smoothed(labels, outputs):
    return optax.softmax_cross_entropy(outputs, optax.smooth_labels(nn.one_hot(labels, 4), 0.1)).mean()


SOUND = {
    "classes": (CLASSES, losses.mean_cross_entropy, lambda y, x: of_classes(x, y).mean()),
    "taken": (CLASSES, losses.mean_cross_entropy, lambda y, x: taken(x, y).mean()),
    "weights": (
        CLASSES,
        losses.divided_by_weights,
        lambda y, x: jnp.average(of_classes(x, y), weights=jnp.array(WEIGHTS)[y]),
    ),
    "smoothed": (CLASSES, losses.smoothed_by_tf1, smoothed),
    "ignored": (
        losses.SOME_IGNORED,
        losses.of_known,
        lambda y, x: jnp.where(y >= 0, of_classes(x, jnp.maximum(y, 0)), 0).sum() / (y >= 0).sum(),
    ),
    "positive": (FLAGS, losses.of_positive, positive),
    "huber": (NUMBERS, losses.huber, lambda y, x: optax.huber_loss(x, y, delta=0.5).mean()),
    "divergence": (
        SHARES,
        losses.divergence,
        lambda y, x: optax.kl_divergence(nn.log_softmax(x), y).mean(),
    ),
    "squares": (NUMBERS, losses.sum_of_squares, lambda y, x: 2 * optax.l2_loss(x, y).sum()),
    "masked": (NUMBERS, losses.masked, lambda y, x: jnp.mean((y - x) ** 2, where=y > 0)),
    "cosine": (NUMBERS, losses.cosine_distance, lambda y, x: optax.cosine_distance(x, y, epsilon=1e-12).mean()),
    "hinge": (SIGNS, losses.hinge, lambda y, x: optax.hinge_loss(x, y).mean()),
    "focal": (FLAGS, losses.focal, lambda y, x: optax.sigmoid_focal_loss(x, y).mean()),
    "log loss": (FLAGS, losses.log_loss, lambda y, x: by_hand(y, nn.sigmoid(x))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_loss_has_no_findings(name):
    report = report_of(*SOUND[name])
    assert report.ok, str(report)
    assert not report.findings


def summed(labels, outputs):
    return of_classes(outputs, labels).sum()


def not_smoothed(labels, outputs):
    return of_classes(outputs, labels).mean()


def smoothed_more(labels, outputs):
    return optax.softmax_cross_entropy(outputs, optax.smooth_labels(nn.one_hot(labels, 4), 0.2)).mean()


def without_weights(labels, outputs):
    return of_classes(outputs, labels).mean()


def with_other_weights(labels, outputs):
    return (of_classes(outputs, labels) * jnp.array([1.0, 2.0, 0.5, 2.0])[labels]).mean()


def without_penalty(labels, outputs):
    return jnp.mean((labels - outputs) ** 2)


def with_another_factor(labels, outputs):
    return jnp.mean((labels - outputs) ** 2) + 0.4 * jnp.mean(outputs**2)


def of_other_labels(labels, outputs):
    return ((labels - outputs) ** 2 * (labels > 0.5)).sum() / (labels > 0).sum()


def along_another_axis(labels, outputs):
    return jnp.sqrt(((labels - outputs) ** 2).sum(0)).mean()


def with_another_epsilon(labels, outputs):
    shares = nn.sigmoid(outputs)
    return -(labels * jnp.log(shares + 0.1) + (1 - labels) * jnp.log(1 - shares + 0.1)).mean()


def not_clipped(labels, outputs):
    return jnp.mean((labels - outputs) ** 2)


def exchanged(labels, outputs):
    def relative_error(y_true, y_pred):
        return (jnp.abs(y_true - y_pred) / jnp.abs(y_true)).mean()

    return relative_error(outputs, labels)


def of_softmax(labels, outputs):
    return of_classes(nn.softmax(outputs), labels).mean()


def halved(labels, outputs):
    return optax.l2_loss(outputs, labels).mean()


def with_another_margin(labels, outputs):
    return nn.relu(0.5 - labels * outputs).mean()


FAULTS = {
    "sum": (CLASSES, losses.mean_cross_entropy, summed, "reduction differs: Mean (TF1), Sum (port)"),
    "smoothing": (CLASSES, losses.smoothed_by_tf1, not_smoothed, "label smoothing differs: 0.1 (TF1), none (port)"),
    "more smoothing": (
        CLASSES,
        losses.smoothed_by_tf1,
        smoothed_more,
        "label smoothing differs: 0.1 (TF1), 0.2 (port)",
    ),
    "weights": (CLASSES, losses.weighted, without_weights, "only TF1 multiplies by another tensor"),
    "one weight": (CLASSES, losses.weighted, with_other_weights, "params of GatherV2 differs: 3 (TF1), 2 (port)"),
    "penalty": (NUMBERS, losses.with_penalty, without_penalty, "only TF1 adds this term to the loss"),
    "factor": (NUMBERS, losses.with_penalty, with_another_factor, "factor differs: 0.3 (TF1), 0.4 (port)"),
    "threshold": (NUMBERS, losses.masked, of_other_labels, "threshold differs: 0.0 (TF1), 0.5 (port)"),
    "axis": (NUMBERS, losses.mean_distance, along_another_axis, "axis of Sum differs: 1 (TF1), 0 (port)"),
    "epsilon": (FLAGS, losses.log_loss, with_another_epsilon, "epsilon differs: 0.01 (TF1), 0.1 (port)"),
    "clipping": (NUMBERS, losses.clipped, not_clipped, "only TF1 clips"),
    "exchanged": (POSITIVE, losses.relative_error, exchanged, "labels and outputs are exchanged"),
    "softmax": (CLASSES, losses.mean_cross_entropy, of_softmax, "only the port computes Softmax in the loss"),
    "half": (NUMBERS, losses.mean_of_squares, halved, "only the port multiplies by 0.5"),
    "margin": (SIGNS, losses.hinge, with_another_margin, "constant subtracted differs: 1.0 (TF1), 0.5 (port)"),
}
IN_AN_EARLIER_LINE = {"penalty": 1}  # lines before the last one


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_loss_is_one_finding_with_its_line(name):
    labels, of_tf1, of_port, title = FAULTS[name]
    (finding,) = report_of(labels, of_tf1, of_port).findings
    assert finding.title.startswith(f"loss: {title}")
    assert finding.confirmed
    assert "keras" not in finding.remedy.lower()
    file, _, last = line_of(of_port).partition(":")
    assert finding.port.line.endswith(f"{file}:{int(last) - IN_AN_EARLIER_LINE.get(name, 0)}")
    assert "losses.py:" in finding.tf1.line
