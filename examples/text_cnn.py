"""A convolutional network for text, as such models were written in 2017. `text_cnn_migration.py` checks it unchanged.

It makes its own placeholders and its training op, and uses tf.contrib and names of TensorFlow 1 only.
"""

import tensorflow as tf

layers = tf.contrib.layers


class TextCNN:
    """An embedding, a convolution for each window size with max-pooling over time, dropout, and logits."""

    def __init__(self, length, classes, words, size, windows, filters, l2=0.01):
        self.words = tf.placeholder(tf.int32, [None, length], name="words")
        self.labels = tf.placeholder(tf.float32, [None, classes], name="labels")
        self.keep_prob = tf.placeholder(tf.float32, name="keep_prob")

        with tf.device("/cpu:0"), tf.variable_scope("embedding"):
            embeddings = tf.get_variable("table", [words, size], initializer=tf.random_uniform_initializer(-1.0, 1.0))
            embedded = tf.expand_dims(tf.nn.embedding_lookup(embeddings, self.words), -1)

        pooled = []
        for window in windows:
            with tf.variable_scope(f"window_{window}"):
                features = layers.conv2d(embedded, filters, [window, size], padding="VALID", scope="conv")
                pooled.append(tf.reduce_max(features, axis=[1, 2]))
        hidden = tf.nn.dropout(tf.concat(pooled, 1), self.keep_prob)

        self.logits = layers.fully_connected(
            hidden,
            classes,
            activation_fn=None,
            weights_initializer=layers.xavier_initializer(),
            weights_regularizer=layers.l2_regularizer(l2),
            scope="logits",
        )
        losses = tf.nn.softmax_cross_entropy_with_logits(labels=self.labels, logits=self.logits)
        self.loss = tf.reduce_mean(losses) + tf.losses.get_regularization_loss()
        tf.summary.scalar("loss", self.loss)
        self.train = tf.train.AdamOptimizer(0.001).minimize(self.loss)
