"""The encoder of albert-tensorflow 1.1, with fewer and smaller layers."""

import contrib
import keras
import numpy as np
import tensorflow

import detrand

with contrib.tensorflow_1():
    from albert import modeling


def model(ids, training):
    config = modeling.AlbertConfig(
        50, 16, 32, 2, 1, 4, 64, 1, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    albert = modeling.AlbertModel(config, training, ids)
    return albert.get_sequence_output(), albert.get_pooled_output()


class Port(keras.layers.Layer):
    @tensorflow.function
    @detrand.track_tf1_style_variables
    def call(self, ids, training=False):
        return model(ids, training)


migration = detrand.Migration(
    name="albert",
    tf1=model,
    port=Port,
    inputs=np.arange(20, dtype=np.int32).reshape(2, 10),
)
