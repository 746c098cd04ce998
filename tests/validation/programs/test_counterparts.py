"""The op seeds that make a port draw what its counterparts in TF1 draw."""

import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import RandomOp
from detrand.validation.programs.counterparts import op_seeds_of_counterparts

KERNEL = ("RandomUniform", (3, 4), "float32", "init")
MASK, NORMALS = ("RandomUniform", (3, 4), "float32", "compute"), ("RandomStandardNormal", (4,), "float32", "compute")
UNKNOWN = ("RandomUniform", (None, 4), "float32", "compute")
NOTHING = ("", None, "", "compute")  # a dropout of TF1 with rate 0


def ops(*kinds, run=0):
    return [
        RandomOp(index, index, run, op_type, shape, dtype, phase, "file.py:1")
        for index, (op_type, shape, dtype, phase) in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([KERNEL, MASK, NORMALS], [MASK, NORMALS], (1, 2)),
        ([KERNEL, MASK, NORMALS], [NORMALS, MASK], (2, 1)),
        ([KERNEL, NOTHING, NORMALS], [NORMALS], (2,)),
        ([KERNEL, NORMALS], [NOTHING, NORMALS], (2, 1)),
        ([NORMALS, UNKNOWN], [MASK, NORMALS], (1, 0)),
        ([KERNEL], [MASK], (1,)),
        ([KERNEL, NORMALS], [MASK, NORMALS, MASK], (2, 1, 3)),
        ([], [MASK], (0,)),
        ([MASK], [], ()),
    ],
    ids=[
        "variables exist",
        "another order",
        "nothing drawn in TF1",
        "nothing drawn in the port",
        "unknown shape",
        "an initializer is no counterpart",
        "more in the port",
        "none in TF1",
        "none in the port",
    ],
)
def test_counterparts_are_paired_with_their_op_seeds(a, b, expected):
    assert op_seeds_of_counterparts(ops(*a), ops(*b)) == expected


def test_weights_of_a_port_without_variables_are_paired_with_initializers():
    assert op_seeds_of_counterparts(ops(KERNEL, MASK, NORMALS), ops(MASK, MASK), initializes=True) == (1, 0)


def test_later_runs_and_what_no_scope_controls_take_no_op_seed():
    uncontrolled = RandomOp(0, None, 0, "np.random.normal", (4,), "float64", "compute", "file.py:1")
    a, b = ops(MASK, NORMALS), ops(NORMALS, MASK)
    assert op_seeds_of_counterparts([uncontrolled, *a], [*b, uncontrolled, *ops(NORMALS, run=1)]) == (1, 0)


def shuffled():
    return tf.data.Dataset.range(6).shuffle(6).batch(6)


def tf1_model(x, training):
    weights = tf.compat.v1.get_variable("weights", (6, 6), initializer=tf.compat.v1.glorot_uniform_initializer())
    order = tf.compat.v1.data.make_one_shot_iterator(shuffled()).get_next()
    return tf.nn.dropout(x, 0.5 if training else 0.0) @ tf.gather(weights, order)


class Port(tf.Module):
    def __init__(self):
        self.weights = tf.Variable(tf.compat.v1.glorot_uniform_initializer()((6, 6)), name="weights")

    def __call__(self, x, training=False):
        return tf.nn.dropout(x, 0.5 if training else 0.0) @ tf.gather(self.weights, next(iter(shuffled())))


@pytest.mark.slow
def test_a_dataset_of_a_port_shuffles_as_that_of_tf1():
    inputs = np.random.default_rng(0).uniform(size=(4, 6)).astype(np.float32)
    report = detrand.validate(detrand.Migration(tf1=tf1_model, port=Port, inputs=inputs))
    assert report.ok, str(report)
