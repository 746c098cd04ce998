"""A TF1 model in a graph with placeholders, and the files that TensorFlow 1 writes of it."""

import keras
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(4, 6, 6, 2)).astype(np.float32)
CONVERTED = "ignore:.*graph_util.*"  # what freezes a graph is deprecated


def build(images=None, is_training=None, keep_prob=None, use_resource=True):
    """Build a convolution with batch normalization, dropout and logits, with placeholders for what is not given."""
    if images is None:
        images = v1.placeholder(tf.float32, [None, 6, 6, 2], name="images")
    if is_training is None:
        is_training = v1.placeholder(tf.bool, [], name="is_training")
    if keep_prob is None:
        keep_prob = v1.placeholder_with_default(1.0, [], name="keep_prob")
    with v1.variable_scope("", use_resource=use_resource):
        x = tf.nn.conv2d(images, v1.get_variable("conv/kernel", [3, 3, 2, 4]), 2, "SAME")
        x = _normalized(x, is_training)
        x = tf.reshape(tf.nn.relu(x), [-1, 36])
        x = v1.nn.dropout(x, keep_prob=keep_prob)
        kernel = v1.get_variable("logits/kernel", [36, 3], regularizer=lambda w: 0.01 * tf.nn.l2_loss(w))
        logits = tf.matmul(x, kernel) + v1.get_variable("logits/bias", [3], initializer=v1.zeros_initializer())
    return tf.identity(logits, "outputs")


def _normalized(x, is_training):
    with v1.variable_scope("bn"):
        gamma = v1.get_variable("gamma", [4], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", [4], initializer=v1.zeros_initializer())
        moving_mean = v1.get_variable("moving_mean", [4], initializer=v1.zeros_initializer(), trainable=False)
        moving_variance = v1.get_variable("moving_variance", [4], initializer=v1.ones_initializer(), trainable=False)
        batch_mean, batch_variance = tf.nn.moments(x, [0, 1, 2])
        for moving, batch in (moving_mean, batch_mean), (moving_variance, batch_variance):
            decay = tf.where(is_training, 0.1, 0.0)
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_sub(moving, (moving - batch) * decay))
        mean = v1.cond(is_training, lambda: batch_mean, lambda: tf.identity(moving_mean))
        variance = v1.cond(is_training, lambda: batch_variance, lambda: tf.identity(moving_variance))
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


def make_port(rate=0.5, regularizer=0.005, epsilon=1e-3):
    """Make the port of `build`."""
    images = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(4, 3, 2, "same", use_bias=False, name="conv")(images)
    x = keras.layers.BatchNormalization(momentum=0.9, epsilon=epsilon, name="bn")(x)
    x = keras.layers.Flatten()(keras.layers.ReLU()(x))
    x = keras.layers.Dropout(rate)(x)
    penalty = keras.regularizers.L2(regularizer) if regularizer else None
    return keras.Model(images, keras.layers.Dense(3, kernel_regularizer=penalty, name="logits")(x))


def trained(session):
    """Give the variables of a session weights that no initializer draws."""
    session.run(v1.global_variables_initializer())
    rng = np.random.default_rng(1)
    for variable in v1.global_variables():
        low = 0.5 if "variance" in variable.name else -0.5
        variable.load(rng.uniform(low, 1.0, variable.shape).astype(np.float32), session)


def freeze(session, outputs=("outputs",)):
    """Return the graph of a session as ``convert_variables_to_constants`` freezes it."""
    definition = session.graph.as_graph_def()
    return v1.graph_util.convert_variables_to_constants(session, definition, list(outputs))
