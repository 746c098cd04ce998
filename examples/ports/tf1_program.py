"""A small image classifier in TensorFlow 1, and its training, which the ports in this folder repeat."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

SEED = 42
RATE = 0.4
LEARNING_RATE = 0.1
BATCH_SIZES = (16, 16, 16, 5)  # the last one smaller, as in most epochs


def batches():
    """Yield images of shape (n, 8, 8, 3) and their labels."""
    generator = np.random.default_rng(0)
    for size in BATCH_SIZES:
        yield generator.random((size, 8, 8, 3), np.float32), generator.integers(0, 10, size, np.int32)


def losses_of_training():
    """Train in a session, and return the loss of each batch and the op seed of each random op by the op's name."""
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(SEED)
        images = v1.placeholder(tf.float32, (None, 8, 8, 3))
        labels = v1.placeholder(tf.int32, (None,))

        with v1.variable_scope("conv"):
            kernel = v1.get_variable("kernel", (3, 3, 3, 8))
            bias = v1.get_variable("bias", (8,), initializer=v1.zeros_initializer())
        hidden = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=1, padding="SAME") + bias)
        hidden = tf.nn.dropout(tf.reshape(hidden, (-1, 8 * 8 * 8)), rate=RATE)
        with v1.variable_scope("dense"):
            kernel = v1.get_variable("kernel", (8 * 8 * 8, 10), initializer=v1.initializers.he_normal())
            bias = v1.get_variable("bias", (10,), initializer=v1.zeros_initializer())
        loss = v1.losses.sparse_softmax_cross_entropy(labels, tf.matmul(hidden, kernel) + bias)
        step = v1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss)

        op_seeds = {op.name: op.get_attr("seed2") for op in graph.get_operations() if "seed2" in op.node_def.attr}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = [session.run([loss, step], {images: x, labels: y})[0] for x, y in batches()]
    return losses, op_seeds
