"""A network with partitioned variables: its TF1 code, and the same code in a tf_keras layer."""

import numpy as np
import tensorflow
import tf_keras
import tf_slim as slim

from detrand import track_tf1_style_variables

tf = tensorflow.compat.v1
in_parts = tf.fixed_size_partitioner
TOKENS = np.array([[1, 5, 3], [9, 0, 7]], np.int32)


def network(x, training=True):
    """Use a table that is looked up and a kernel that is a tensor, and add the losses of their parts."""
    with tf.variable_scope("net", partitioner=in_parts(3), regularizer=slim.l2_regularizer(0.1)):
        table = tf.get_variable("table", [10, 4], initializer=tf.random_normal_initializer())
        kernel = tf.get_variable("kernel", [4, 5], partitioner=in_parts(2, axis=1))
    with tf.variable_scope("net", partitioner=in_parts(3)):
        bias = tf.get_variable("bias", [5], initializer=tf.zeros_initializer())
    tokens = tf.cast(x, tf.int32)
    embedded = tf.reduce_mean(tf.nn.embedding_lookup(table, tokens, partition_strategy="div"), 1)
    return tf.nn.bias_add(tf.matmul(embedded, kernel), bias)


BATCH, TARGETS = TOKENS.astype(np.float32), np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5)


def tf_keras_network():
    class Network(tf_keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs):
            return network(inputs)

    return Network()
