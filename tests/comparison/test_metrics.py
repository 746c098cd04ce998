"""Cosine similarity, top-k agreement and KL divergence, against their formulas."""

import numpy as np
import pytest

from detrand.comparison.metrics import is_metric, metric_of

RNG = np.random.default_rng(0)
TF1 = RNG.normal(size=(3, 4, 7)).astype(np.float32)
PORT = (TF1 + 0.3 * RNG.normal(size=TF1.shape)).astype(np.float32)


def rows(array):
    return np.float64(array).reshape(-1, array.shape[-1])


def softmax(row):
    return np.exp(row) / np.exp(row).sum()


def expected(name, tf1, port):
    if name == "cosine":
        return tf1 @ port / np.sqrt((tf1 @ tf1) * (port @ port))
    if name == "kl":
        p, q = softmax(tf1), softmax(port)
        return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))
    count = int(name.removeprefix("top-"))
    best = [sorted(range(len(row)), key=lambda i: -row[i])[:count] for row in (tf1, port)]
    return len(set(best[0]) & set(best[1])) / len(best[0])


@pytest.mark.parametrize("name", ["cosine", "kl", "top-1", "top-3", "top-99"])
def test_a_metric_is_the_mean_and_the_worst_of_its_formula_over_the_vectors(name):
    found = metric_of("output", name, TF1, PORT)
    values = [expected(name, *pair) for pair in zip(rows(TF1), rows(PORT), strict=True)]
    np.testing.assert_allclose(found.mean, np.mean(values), rtol=1e-12)
    np.testing.assert_allclose(found.worst, max(values) if name == "kl" else min(values), rtol=1e-12)


@pytest.mark.parametrize(("name", "perfect"), [("cosine", 1), ("kl", 0), ("top-2", 1)])
def test_equal_outputs_have_the_perfect_value(name, perfect):
    found = metric_of("output", name, TF1, TF1)
    np.testing.assert_allclose([found.mean, found.worst], perfect, atol=1e-15)


def test_probabilities_are_taken_as_they_are():
    tf1, port = (np.apply_along_axis(softmax, -1, each) for each in (TF1, PORT))
    of_logits, of_probabilities = metric_of("output", "kl", TF1, PORT), metric_of("output", "kl", tf1, port)
    np.testing.assert_allclose(of_probabilities.mean, of_logits.mean, rtol=1e-4)


def test_a_probability_of_zero_adds_nothing_in_tf1_and_is_infinite_in_the_port():
    some, certain = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    np.testing.assert_allclose(metric_of("output", "kl", certain, some).mean, np.log(2))
    assert metric_of("output", "kl", some, certain).mean == np.inf


def test_vectors_of_zeros_point_where_vectors_of_zeros_point():
    zeros = np.zeros((1, 3))
    assert metric_of("output", "cosine", zeros, zeros).mean == 1
    assert metric_of("output", "cosine", zeros, np.ones((1, 3))).mean == 0


@pytest.mark.parametrize(
    ("tf1", "port"),
    [
        (np.ones((2, 3)), np.ones((2, 4))),
        (np.array(1.0), np.array(1.0)),
        (np.ones((0, 3)), np.ones((0, 3))),
        (np.array([["a"]]), np.array([["a"]])),
    ],
    ids=["shapes differ", "scalars", "empty", "text"],
)
def test_there_is_no_metric_without_vectors_of_one_shape(tf1, port):
    assert metric_of("output", "cosine", tf1, port) is None


def test_only_names_of_metrics_are_accepted():
    assert [is_metric(name) for name in ("cosine", "kl", "top-1", "top-50", "top-0", "top", "mse")] == [
        *([True] * 4),
        *([False] * 3),
    ]
