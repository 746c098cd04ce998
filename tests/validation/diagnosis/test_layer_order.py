"""Layers that a port computes in a different order than TF1: one finding that names them."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
WIDTH = 6
SEQUENCES = np.random.default_rng(4).normal(size=(3, 5, WIDTH)).astype(np.float32)


def dense(inputs, name, units=WIDTH):
    kernel = v1.get_variable(f"{name}/kernel", (inputs.shape[-1], units))
    return tf.tensordot(inputs, kernel, 1) + v1.get_variable(f"{name}/bias", (units,))


def normalized(inputs, name):
    mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
    offset, scale = (v1.get_variable(f"{name}/{each}", (WIDTH,)) for each in ("beta", "gamma"))
    return (inputs - mean) * tf.math.rsqrt(variance + 1e-6) * (1.0 + scale) + offset


def attended(inputs, name):
    queries, keys, values = (dense(inputs, f"{name}/{each}") for each in ("query", "key", "value"))
    weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / WIDTH**0.5)
    return dense(tf.matmul(weights, values), f"{name}/output")


def forward(inputs, name):
    return dense(tf.nn.relu(dense(inputs, f"{name}/first")), f"{name}/second")


def transformer(inputs, training, *, blocks=2, before=False):
    for number in range(blocks):
        for step in (attended, forward):
            name = f"block_{number}/{step.__name__}"
            if before:
                inputs = inputs + step(normalized(inputs, f"{name}/norm"), name)
            else:
                inputs = normalized(inputs + step(inputs, name), f"{name}/norm")
    return dense(inputs, "last", 2)


def dropped(inputs, training, *, after=False):
    def dropout(hidden):
        return v1.nn.dropout(hidden, rate=0.4) if training else hidden

    hidden = tf.nn.relu(dense(inputs, "first"))
    hidden = dropout(dense(hidden, "second")) if after else dense(dropout(hidden), "second")
    return dense(tf.tanh(hidden), "last", 2)


def crossed(inputs, training, *, names="abc"):
    for name in names:
        inputs = {"a": tf.tanh, "b": tf.sigmoid, "c": tf.nn.softplus}[name](dense(inputs, name))
    return dense(inputs, "last", 2)


def summed(inputs, training, *, names="abc", step=tf.tanh):
    return dense(step(tf.add_n([tf.sin(dense(inputs, name)) for name in names])), "last", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "change", "title", "places"),
    [
        pytest.param(
            transformer,
            {"before": True},
            "block_0/attended/query, block_0/attended/key, block_0/attended/value and 1 more come before "
            "block_0/attended/norm in TF1, and after it in the port",
            4,
            id="normalization",
        ),
        pytest.param(
            dropped,
            {"after": True},
            "dropout comes before second in TF1, and after it in the port",
            1,
            id="dropout",
        ),
        pytest.param(crossed, {"names": "cab"}, "a, b come before c in TF1, and after it in the port", 1, id="dense"),
    ],
)
def test_layers_in_another_order_are_one_finding(program, change, title, places):
    report = validate(Migration(tf1=program, port=shim_port(program, **change), inputs=SEQUENCES))
    assert len(report.findings) == 1, str(report)
    (finding,) = report.findings
    assert (finding.title, finding.count) == (f"order of layers differs: {title}", places)
    assert (
        finding.remedy
        == "compute " + title.split(" in TF1")[0].replace(" comes", "").replace(" come", "") + " in the port"
    )


@pytest.mark.slow
def test_terms_of_a_sum_have_no_order():
    port = shim_port(summed, names="cba", step=tf.nn.relu)
    (finding,) = validate(Migration(tf1=summed, port=port, inputs=SEQUENCES)).findings
    assert finding.title == "activation differs: Tanh (TF1), Relu (port)"
