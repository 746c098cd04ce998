"""The checks that run both programs once."""

import numpy as np
import tensorflow as tf

from detrand import Migration
from detrand.validation.checks.registry import run_check
from detrand.validation.runner import Runner
from tests.support.shim_ports import shim_port


def test_a_difference_with_equal_and_with_distinct_weights_is_explained_once():
    def program(inputs, training, factor=1.0):
        return factor * tf.matmul(inputs, tf.compat.v1.get_variable("kernel", (2, 3)))

    migration = Migration(tf1=program, port=shim_port(program, factor=2.0), inputs=np.ones((2, 2), np.float32))
    result = run_check("constant-weights", Runner(migration))
    assert not result.ok
    assert "distinct weights: " in result.summary and "; all variables " in result.summary
    assert result.summary.count("first divergence at ") == 1
