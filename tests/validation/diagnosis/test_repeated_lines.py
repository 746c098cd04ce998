"""Lines that run several times, in a loop or in a function that is called for each layer."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from tests.faults.tf1 import numbers

ops, v1 = keras.ops, tf.compat.v1
WORDS = np.random.default_rng(0).normal(size=(4, 5, 8)).astype(np.float32)


def summed_ends(words, training):
    total = 0.0
    for number in range(2):
        hidden = tf.tanh(tf.tensordot(words, v1.get_variable(f"layer{number}/kernel", (8, 6)), 1))
        start = tf.shape(hidden)[1] - 3
        total += tf.square(tf.reduce_sum(tf.slice(hidden, [0, start, 0], [-1, -1, -1]), 1))
    return total


class SummedEnds(keras.Model):
    def __init__(self, part):
        super().__init__()
        self.part = part
        self.layers_ = [keras.layers.Dense(6, "tanh", use_bias=False, name=f"layer{number}") for number in range(2)]

    def call(self, words, training=False):
        total = 0.0
        for layer in self.layers_:
            total += ops.square(ops.sum(layer(words)[:, self.part], axis=1))
        return total


def report_of(part):
    migration = Migration(tf1=summed_ends, port=lambda: SummedEnds(part), inputs=WORDS)
    return validate(migration, checks=["random-inference"])


def test_the_elements_of_two_slices_are_named_once_for_all_layers():
    (finding,) = report_of(slice(None, 3)).findings
    assert finding.title == "slice differs: elements 2 to 4 of axis 1 (TF1), elements 0 to 2 of axis 1 (port)"
    assert finding.remedy == "take elements 2 to 4 of axis 1 in the port"
    assert finding.count == 2
    assert finding.confirmed == "with TF1's value here, the rest agrees"


def test_equal_slices_of_all_layers_pass():
    assert report_of(slice(-3, None)).ok


def pairwise(embeddings, values, training):
    """Multiply each field with each other one, as of a field-aware factorization machine."""
    vectors = tf.tensordot(embeddings, v1.get_variable("kernel", [2, 2]), 1)
    total = tf.zeros([tf.shape(values)[0]])
    for i, j in itertools.combinations(range(3), 2):
        total += tf.reduce_sum(vectors[:, i, j] * vectors[:, j, i], 1) * values[:, i] * values[:, j]
    return total


class AtOnce(keras.Model):
    def __init__(self, equation):
        super().__init__()
        self.equation = equation
        self.kernel = self.add_weight((2, 2), "glorot_uniform", name="kernel")

    def call(self, embeddings, values):
        scaled = tf.tensordot(embeddings, self.kernel, 1) * values[:, :, None, None]
        products = tf.einsum(self.equation, scaled, scaled)
        return 0.5 * (tf.reduce_sum(products, [1, 2]) - tf.linalg.trace(products))


@pytest.mark.slow
def test_slices_of_other_arrays_say_nothing_about_a_port_that_computes_all_iterations_at_once():
    inputs = numbers(5, 3, 3, 2), numbers(5, 3, seed=1)
    migrations = {
        equation: Migration(tf1=pairwise, port=lambda equation=equation: AtOnce(equation), inputs=inputs)
        for equation in ("bijk,bjik->bij", "bijk,bjjk->bij")
    }
    sound, faulty = (validate(each, checks=["random-inference"]) for each in migrations.values())
    assert sound.ok, str(sound)
    assert not any(finding.title.startswith("slice differs") for finding in faulty.findings), str(faulty)
