"""Functions of PyTorch that by default differ from those of TF1 that they replace, and their remedies."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate

torch = pytest.importorskip("torch")
functional = torch.nn.functional
v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def convolution(x, count, name):
    kernel = v1.get_variable(f"{name}/kernel", (3, 3, x.shape[-1], count))
    return tf.nn.conv2d(x, kernel, 1, "SAME")


class Network(torch.nn.Module):
    """A convolution, and one after a function of images with channels first."""

    def __init__(self, function, widths):
        super().__init__()
        (first, second), self.function = widths, function
        self.first = torch.nn.Conv2d(3, first, 3, padding="same", bias=False)
        self.second = torch.nn.Conv2d(second, 4, 3, padding="same", bias=False)

    def forward(self, x):
        hidden = torch.relu(self.first(x.permute(0, 3, 1, 2)))
        return self.second(self.function(hidden)).permute(0, 2, 3, 1)


def findings(of_tf1, of_port, widths):
    def tf1(x, training):
        return convolution(of_tf1(tf.nn.relu(convolution(x, widths[0], "first"))), 4, "second")

    migration = Migration(tf1=tf1, port=lambda: Network(of_port, widths), inputs=IMAGES)
    return validate(migration, checks=["constant-weights", "random-inference"]).findings


def responses(x):
    return tf.nn.local_response_normalization(x, depth_radius=2, bias=2.0, alpha=0.1, beta=0.75)


def of_tf1(x, size):
    """Return the remedy for channels before `pixel_shuffle`."""
    return x.unflatten(1, (size * size, -1)).transpose(1, 2).flatten(1, 2)


def standardized(x):
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 0.001)


def standardized_by(**arguments):
    def function(x):
        variance = x.var((2, 3), keepdim=True, **arguments)
        return (x - x.mean((2, 3), keepdim=True)) / torch.sqrt(variance + 0.001)

    return function


CASES = {
    "variance": (
        standardized,
        standardized_by(),
        standardized_by(correction=0),
        (6, 6),
        "divisor of the variance of n elements differs: n (TF1), n - 1 (port)",
        "pass correction=0 to var or std in the port, whose default is 1",
    ),
    "shuffle": (
        lambda x: tf.nn.depth_to_space(x, 2),
        lambda x: functional.pixel_shuffle(x, 2),
        lambda x: functional.pixel_shuffle(of_tf1(x, 2), 2),
        (12, 3),
        "order of the channels of a block differs: row, column, channel (TF1), channel, row, column (port)",
        "x.unflatten(1, (r * r, -1)).transpose(1, 2).flatten(1, 2) before pixel_shuffle",
    ),
    "unshuffle": (
        lambda x: tf.nn.space_to_depth(x, 2),
        lambda x: functional.pixel_unshuffle(x, 2),
        lambda x: functional.pixel_unshuffle(x, 2).unflatten(1, (-1, 2 * 2)).transpose(1, 2).flatten(1, 2),
        (6, 24),
        "order of the channels of a block differs: row, column, channel (TF1), channel, row, column (port)",
        "x.unflatten(1, (-1, r * r)).transpose(1, 2).flatten(1, 2) after pixel_unshuffle",
    ),
    "alpha": (
        responses,
        lambda x: functional.local_response_norm(x, 5, alpha=0.1, beta=0.75, k=2.0),
        lambda x: functional.local_response_norm(x, 5, alpha=0.1 * 5, beta=0.75, k=2.0),
        (6, 6),
        "alpha of the local response normalization differs: 0.1 (TF1), 0.02 (port)",
        "use alpha = 0.1 * size in the port: PyTorch divides it by the size of the window",
    ),
    "radius": (
        responses,
        lambda x: functional.local_response_norm(x, 3, alpha=0.3, beta=0.75, k=2.0),
        lambda x: functional.local_response_norm(x, 2 * 2 + 1, alpha=0.5, beta=0.75, k=2.0),
        (6, 6),
        "depth radius of the local response normalization differs: 2 (TF1), 1 (port)",
        "use size = 2 * 2 + 1 in the port",
    ),
}


@pytest.mark.slow_except("unshuffle")
@pytest.mark.parametrize("name", CASES)
def test_what_a_function_does_by_default_is_named(name):
    of_tf1, of_port, _, widths, title, remedy = CASES[name]
    (finding,) = findings(of_tf1, of_port, widths)
    assert finding.title == title
    assert remedy in finding.remedy
    assert finding.rest_agrees


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_its_remedy_makes_the_port_sound(name):
    of_tf1, _, mended, widths, *_ = CASES[name]
    assert not findings(of_tf1, mended, widths)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle", "unshuffle"])
def test_a_port_in_tf1s_order_has_no_finding_but_that_of_its_fault(name):
    of_tf1, _, mended, widths, *_ = CASES[name]
    (finding,) = findings(of_tf1, lambda x: mended(x + 0.5), widths)
    assert finding.title == "only the port adds 0.5"
