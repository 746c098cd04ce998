"""The BERT encoder of bert-tensorflow, and the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/bert_encoder.py``.
The code is unchanged, dropout included; the network has fewer and smaller layers.
"""

import contrib  # beside this file: the stand-in for tf.contrib
import keras
import numpy as np

import detrand

contrib.install()

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
