"""Checkpoints that a TF1 session writes, and what they are loaded into."""

import keras
import numpy as np
import tensorflow as tf

from detrand import track_tf1_style_variables

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
VALUES = {
    "net/w": RNG.normal(size=(3, 2)).astype(np.float32),
    "net/table": RNG.normal(size=(7, 3)).astype(np.float64),
    "count": np.array(5, np.int64),
    "flags": np.array([True, False]),
}


def write(path, values, parts=None, version=2, optimizer=None, as_dict=False):
    """Save values as a TF1 program does, some of them in parts, and return all that the session held, by name."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        for name, value in values.items():
            partitioner = v1.fixed_size_partitioner(parts[name]) if parts and name in parts else None
            v1.get_variable(name, value.shape, value.dtype, initializer_to(value), partitioner=partitioner)
        if optimizer is not None:
            loss = tf.add_n([tf.cast(tf.reduce_sum(v), tf.float32) for v in v1.trainable_variables()])
            optimizer(loss)
        session.run(v1.global_variables_initializer())
        given = {v.op.name: v for v in v1.global_variables()} if as_dict else None
        v1.train.Saver(given, write_version=version).save(session, str(path))
        return {v.op.name: session.run(v) for v in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)}


def initializer_to(value):
    def initializer(shape, dtype, partition_info=None):
        start = partition_info.var_offset if partition_info else [0] * len(shape)
        return tf.constant(value[tuple(slice(i, i + n) for i, n in zip(start, shape, strict=True))], dtype)

    return initializer


def variables(values=None, **replaced):
    values = {**(VALUES if values is None else values), **replaced}
    return [tf.Variable(np.zeros_like(value), name=name) for name, value in values.items()]


class Net(keras.layers.Layer):
    """TF1 code in a Keras 3 layer, with its table whole or in parts."""

    def __init__(self, parts=None):
        super().__init__()
        self.parts = parts

    @track_tf1_style_variables
    def call(self, inputs):
        partitioner = v1.fixed_size_partitioner(self.parts) if self.parts else None
        with v1.variable_scope("net"):
            w = v1.get_variable("w", (3, 2))
            table = v1.get_variable("table", (7, 3), tf.float64, partitioner=partitioner)
        return tf.matmul(inputs, w) + tf.cast(tf.reduce_sum(tf.convert_to_tensor(table)), tf.float32)


NET = {name: VALUES[name] for name in ("net/w", "net/table")}


OPTIMIZERS = {
    "adam": lambda loss: v1.train.AdamOptimizer().minimize(loss, v1.train.get_or_create_global_step()),
    "named": lambda loss: v1.train.AdamOptimizer(name="discriminator_opt").minimize(loss),
    "averages": lambda loss: tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables()),
}
