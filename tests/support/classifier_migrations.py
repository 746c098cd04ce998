"""A classifier in TF1, its ports, and the names of the checks."""

import functools

import numpy as np
import tensorflow as tf

from tests.support.shim_ports import shim_port

INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
NAMES = (
    "variables-created-once",
    "variables-match",
    "initializers-match",
    "regularizers-match",
    "constant-weights",
    "random-inference",
    "random-training",
    "constant-mode",
)


def forward(inputs, training, *, units=3, rate=0.5, initializer=None, scale=0.01, activation=tf.nn.relu, extra=False):
    """Return the outputs of a TF1 model with variables, dropout and a regularizer."""
    regularizer = lambda weights: scale * tf.reduce_sum(weights**2)  # noqa: E731
    with tf.compat.v1.variable_scope("hidden", initializer=initializer, regularizer=regularizer):
        kernel = tf.compat.v1.get_variable("kernel", (inputs.shape[-1], units))
    hidden = activation(tf.matmul(inputs, kernel))
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    with tf.compat.v1.variable_scope("logits"):
        kernel = tf.compat.v1.get_variable("kernel", (units, 2))
        bias = tf.compat.v1.get_variable("bias", (2,), initializer=tf.compat.v1.zeros_initializer())
        if extra:
            tf.compat.v1.get_variable("extra", ())
    return tf.matmul(hidden, kernel) + bias, {"hidden": hidden}


port = functools.partial(shim_port, forward)


def train(path, program=forward, version=2, as_dict=False):
    """Train a TF1 program, save it, and return the values of all its variables, by name."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = program(v1.placeholder_with_default(INPUTS, (None, 5)), training=False)
        loss = tf.add_n([tf.reduce_sum(output**2) for output in tf.nest.flatten(outputs)])
        step = v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_or_create_global_step())
        with tf.control_dependencies([step]):
            step = tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        given = {variable.op.name: variable for variable in v1.global_variables()} if as_dict else None
        v1.train.Saver(given, write_version=version).save(session, str(path))
        return {variable.op.name: session.run(variable) for variable in v1.global_variables()}
