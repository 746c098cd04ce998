"""The BERT encoder of bert-tensorflow, and ``BertModel`` of transformers, which is written in PyTorch, as its port.

Run with ``python -m detrand validate examples/bert_torch.py``, after ``pip install transformers torch``.
Neither program is changed, and none of them knows the other; dropout is included. The network is small.
"""

import contrib  # beside this file: the stand-in for tf.contrib
import numpy as np
import torch
import transformers

import detrand

contrib.install()

from bert import modeling  # noqa: E402

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
}
BATCH, LENGTH = 2, 12


def bert(tokens, mask, types, training):
    """Return the outputs of the encoder's layers, its sequence output and its pooled output."""
    encoder = modeling.BertModel(modeling.BertConfig(**SIZES), training, tokens, mask, types)
    return {
        "layers": encoder.get_all_encoder_layers(),
        "sequence": encoder.get_sequence_output(),
        "pooled": encoder.get_pooled_output(),
    }


class Bert(torch.nn.Module):
    """The model of transformers, with the arguments and the outputs of the TF1 program."""

    def __init__(self, **options):
        super().__init__()
        # By default, transformers computes GELU with erf. TF1's code has the tanh approximation.
        options = {"hidden_act": "gelu_new", **SIZES, **options}
        self.bert = transformers.BertModel(transformers.BertConfig(**options))

    def forward(self, tokens, mask, types):
        found = self.bert(tokens, mask, types, output_hidden_states=True)
        return {
            "layers": list(found.hidden_states[1:]),
            "sequence": found.last_hidden_state,
            "pooled": found.pooler_output,
        }


MASK = (np.arange(LENGTH) < [[LENGTH], [LENGTH - 3]]).astype(np.int32)
numbers = np.random.default_rng(0)
migration = detrand.Migration(
    tf1=bert,
    port=Bert,
    inputs=(
        numbers.integers(1, SIZES["vocab_size"], (BATCH, LENGTH), dtype=np.int32) * MASK,
        MASK,
        numbers.integers(0, SIZES["type_vocab_size"], (BATCH, LENGTH), dtype=np.int32),
    ),
    # transformers draws normal numbers, TF1's code truncated ones. Weights that are loaded are not drawn.
    expect=["initializers-match"],
)
