"""BERT: BertBackbone of keras-hub, and modeling.BertModel of bert-tensorflow."""

import contrib
import keras
import keras_hub
import numpy as np

import detrand

with contrib.tensorflow_1():
    from bert import modeling

CONFIG = modeling.BertConfig(100, 64, 2, 4, 128, max_position_embeddings=32, type_vocab_size=2)
INPUTS = {"token_ids": 100, "padding_mask": 2, "segment_ids": 2}


def tf1(ids, mask, segments, training):
    model = modeling.BertModel(CONFIG, training, ids, mask, segments)
    return {"sequence_output": model.get_sequence_output(), "pooled_output": model.get_pooled_output()}


def port():
    bert = keras_hub.models.BertBackbone(100, 2, 4, 64, 128, dropout=0.1, max_sequence_length=32, num_segments=2)
    inputs = [keras.Input((16,), dtype="int32") for _ in INPUTS]
    return keras.Model(inputs, bert(dict(zip(INPUTS, inputs, strict=True))))


draw = np.random.default_rng(0).integers
as_found = configured = detrand.Migration(
    tf1=tf1, port=port, inputs=[draw(0, most, (2, 16), dtype="i4") for most in INPUTS.values()]
)
