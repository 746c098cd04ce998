"""A TF1 program whose ports to PyTorch and Flax are validated where TensorFlow is not installed: see `golden_torch`."""

import numpy as np

from detrand import Migration, TrainStep

INPUTS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 4)
NAMES = ("hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias")


def tf1(inputs, training):
    """Return the logits of a network with dropout."""
    import tensorflow as tf

    def dense(given, name, units):
        with tf.compat.v1.variable_scope(name):
            kernel = tf.compat.v1.get_variable("kernel", (given.shape[-1], units))
            bias = tf.compat.v1.get_variable("bias", (units,), initializer=tf.compat.v1.zeros_initializer())
        return given @ kernel + bias

    hidden = tf.nn.relu(dense(inputs, "hidden", 5))
    return dense(tf.nn.dropout(hidden, rate=0.5) if training else hidden, "logits", 3)


def tf1_loss(labels, logits):
    """Return the mean loss of a batch."""
    import tensorflow as tf

    return tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)


def tf1_optimizer():
    """Return an optimizer."""
    import tensorflow as tf

    return tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)


def migration(name, port, names, **of_port):
    """Return a migration, given the port's names of the variables, its loss and its optimizer."""
    train = TrainStep(labels=LABELS, tf1_loss=tf1_loss, tf1_optimizer=tf1_optimizer, steps=3, **of_port)
    return Migration(
        name=name, tf1=tf1, port=port, inputs=INPUTS, name_map=dict(zip(NAMES, names, strict=True)), train=train
    )
