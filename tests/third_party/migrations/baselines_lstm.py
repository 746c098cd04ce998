"""The LSTM with layer normalization of baselines 0.1.5, for policies."""

import sys
import types

import contrib
import keras
import numpy as np
import tensorflow

import detrand

tensorflow.compat.v1.disable_v2_tensorshape()  # x.shape[1].value
for unused in ("gym", "gym.spaces", "joblib", "mpi4py", "zmq"):  # of the environments, which no model needs
    sys.modules.setdefault(unused, types.ModuleType(unused))

with contrib.tensorflow_1():
    from baselines.a2c import utils


def model(inputs, masks, state, training):
    inputs, masks = utils.batch_to_seq(inputs, 2, 5), utils.batch_to_seq(masks, 2, 5)
    hidden, state = utils.lnlstm(inputs, masks, state, "lstm1", nh=6)
    return utils.seq_to_batch(hidden), state


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, masks, state, training=False):
        return model(inputs, masks, state, training)


migration = detrand.Migration(
    name="baselines_lstm",
    tf1=model,
    port=Port,
    seed_numpy=True,
    inputs=[
        np.random.default_rng(n).normal(size=(rows, n)).astype(np.float32) for rows, n in ((10, 7), (10, 1), (2, 12))
    ],
)
