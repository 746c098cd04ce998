"""``torch.nn.MultiheadAttention`` in place of attention in TF1: it computes with time first, and drops shares."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, Rearranged, enable_v1_layers, validate
from tests.faults.tf1 import numbers

torch = pytest.importorskip("torch")
nn = torch.nn
v1 = tf.compat.v1

WORDS, LENGTH, WIDTH, HEADS = 9, 5, 8, 2
IDS = np.array([[1, 5, 3, 8, 2], [4, 4, 7, 0, 0], [6, 2, 0, 0, 0]])
POSITIONS = numbers(LENGTH, WIDTH)


@pytest.fixture(autouse=True)
def layers_of_tf1():
    with enable_v1_layers():
        yield


def tf1(ids, training):
    def heads(name):
        x = v1.layers.dense(hidden, WIDTH, name=name)
        return tf.transpose(tf.reshape(x, [-1, LENGTH, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

    embedded = tf.nn.embedding_lookup(v1.get_variable("embeddings", [WORDS, WIDTH]), ids) * WIDTH**0.5
    hidden = embedded + tf.tile(tf.constant(POSITIONS)[None], [tf.shape(ids)[0], 1, 1])
    hidden = v1.layers.dropout(hidden, 0.1, training=training)
    queries, keys, values = map(heads, ("queries", "keys", "values"))
    scores = tf.matmul(queries, keys, transpose_b=True) * (WIDTH // HEADS) ** -0.5
    scores += tf.cast(tf.equal(ids, 0), tf.float32)[:, None, None] * -1e9
    earlier = tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)
    scores = tf.where(tf.broadcast_to(tf.equal(earlier, 0), tf.shape(scores)), -1e9 * tf.ones_like(scores), scores)
    shares = v1.layers.dropout(tf.nn.softmax(scores), 0.2, training=training)
    together = tf.reshape(tf.transpose(tf.matmul(shares, values), [0, 2, 1, 3]), [-1, LENGTH, WIDTH])
    return v1.layers.dense(hidden + v1.layers.dense(together, WIDTH, name="joined"), 3, name="logits")


class Port(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embeddings = nn.Embedding(WORDS, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.2, batch_first=True)
        self.logits = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        embedded = self.embeddings(ids)
        if self.fault != "scale":
            embedded = embedded * WIDTH**0.5
        hidden = self.dropout(embedded + torch.tensor(POSITIONS))
        later = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
        attended, _ = self.attention(
            hidden,
            hidden,
            hidden,
            attn_mask=None if self.fault == "causal mask" else later,
            key_padding_mask=None if self.fault == "mask of padding" else ids == 0,
            need_weights=False,
        )
        return self.logits(hidden + attended)


def together(*arrays):
    return np.concatenate([array.T for array in arrays])


PARTS = ("queries", "keys", "values")
OF_ATTENTION = {
    tuple(f"{name}/kernel" for name in PARTS): Rearranged(["attention.in_proj_weight"], together),
    tuple(f"{name}/bias" for name in PARTS): Rearranged(["attention.in_proj_bias"], together),
    "joined/kernel": "attention.out_proj.weight",
    "joined/bias": "attention.out_proj.bias",
}
NAME_MAP = {
    **OF_ATTENTION,
    "embeddings": "embeddings.weight",
    "logits/kernel": "logits.weight",
    "logits/bias": "logits.bias",
}


def report_of(fault=""):
    migration = Migration(tf1=tf1, port=lambda: Port(fault), inputs=IDS, name_map=NAME_MAP)
    return validate(migration, checks=["constant-weights", "random-training"])


@pytest.mark.slow
def test_a_sound_port_passes():
    report = report_of()
    assert report.ok, str(report)


FAULTS = {
    "scale": "only TF1 multiplies by 2.828",
    "causal mask": "mask of the inputs of Softmax differs: ",
    "mask of padding": "mask of the inputs of Softmax differs: ",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_finding_of_both_checks(fault):
    report = report_of(fault)
    titles = [finding.title for finding in report.findings]
    assert len(titles) == 1 and titles[0].startswith(FAULTS[fault]), str(report)
    assert report.findings[0].checks == ("constant-weights", "random-training")
    assert report.findings[0].confirmed
