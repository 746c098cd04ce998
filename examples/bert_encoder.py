"""The BERT encoder of bert-tensorflow, and the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/bert_encoder.py``.
The code is unchanged, dropout included; the network has fewer and smaller layers.
"""

import sys
import types

import keras
import numpy as np

import detrand

detrand.enable_v1_layers()  # the encoder uses tf.compat.v1.layers, which Keras 3 does not have

import tf_slim  # noqa: E402

# The code uses one function of tf.contrib. TensorFlow 2 has no tf.contrib, but tf_slim has its layers.
contrib = types.ModuleType("tensorflow.contrib")
contrib.layers = types.ModuleType("tensorflow.contrib.layers")
contrib.layers.layer_norm = tf_slim.layers.layer_norm
sys.modules.setdefault("tensorflow.contrib", contrib)
sys.modules.setdefault("tensorflow.contrib.layers", contrib.layers)

from bert import modeling  # noqa: E402

CONFIG = modeling.BertConfig(
    vocab_size=101,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)
BATCH, LENGTH = 2, 12


def bert(tokens, mask, training):
    """Return the outputs of the encoder's layers, its sequence output and its pooled output."""
    encoder = modeling.BertModel(CONFIG, is_training=training, input_ids=tokens, input_mask=mask)
    return {
        "layers": encoder.get_all_encoder_layers(),
        "sequence": encoder.get_sequence_output(),
        "pooled": encoder.get_pooled_output(),
    }


class Bert(keras.layers.Layer):
    """The same code in a Keras 3 layer."""

    @detrand.track_tf1_style_variables
    def call(self, tokens, mask, training=False):
        return bert(tokens, mask, training)


migration = detrand.Migration(
    tf1=bert,
    port=Bert,
    inputs=(
        np.random.default_rng(0).integers(0, CONFIG.vocab_size, (BATCH, LENGTH), dtype=np.int32),
        (np.arange(LENGTH) < [[LENGTH], [LENGTH - 3]]).astype(np.int32),
    ),
)
