"""Tests of a port, to run with ``pytest examples/test_classifier.py``."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, track_tf1_style_variables
from detrand.testing import TestMixin


def classifier(inputs, training):
    """Return the logits of a model that was written for TensorFlow 1."""
    kernel = tf.compat.v1.get_variable("hidden/kernel", (inputs.shape[-1], 8))
    hidden = tf.nn.relu(tf.matmul(inputs, kernel))
    hidden = tf.compat.v1.nn.dropout(hidden, rate=0.5) if training else hidden
    return tf.matmul(hidden, tf.compat.v1.get_variable("logits/kernel", (8, 3)))


class Classifier(keras.layers.Layer):
    """The port of the model."""

    @track_tf1_style_variables
    def call(self, inputs, training=False):
        return classifier(inputs, training)


INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
MIGRATION = Migration(tf1=classifier, port=Classifier, inputs=INPUTS)


def test_port(assert_migration):
    assert_migration(MIGRATION)


@pytest.mark.detrand(mode="num_random_ops", seed=7)
def test_draws_once_in_training(detrand_tool):
    layer = Classifier()
    layer(INPUTS)
    layer(INPUTS, training=True)
    assert [op.phase for op in detrand_tool.random_ops] == ["init", "init", "compute"]


@pytest.fixture
def trained():
    layer = Classifier()
    layer(INPUTS)
    return layer


def test_keeps_its_weights(no_variable_creations, trained):
    trained(INPUTS)


class ClassifierTest(TestMixin, tf.test.TestCase):
    """The same tests for unittest."""

    detrand_report_dir = "reports"

    def test_port(self):
        self.assert_migration(MIGRATION)

    def test_draws_once_in_training(self):
        tool = self.detrand_tool(mode="num_random_ops", seed=7)
        layer = Classifier()
        layer(INPUTS)
        layer(INPUTS, training=True)
        self.assertEqual([op.phase for op in tool.random_ops], ["init", "init", "compute"])

    def test_keeps_its_weights(self):
        layer = Classifier()
        layer(INPUTS)
        with self.no_variable_creations():
            layer(INPUTS)
