"""Layers of PyTorch take the batch from the second axis, unless they are told that it is first."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, validate
from tests.faults.tf1 import numbers
from tests.validation.frameworks.test_torch_attention import OF_ATTENTION

torch = pytest.importorskip("torch")
nn = torch.nn
v1 = tf.compat.v1

IDS = np.array([[1, 5, 3, 8], [4, 4, 7, 2], [6, 2, 2, 7], [3, 3, 1, 6], [5, 7, 8, 1]])


@pytest.fixture(autouse=True)
def layers_of_tf1():
    with enable_v1_layers():
        yield


def stacked(ids, training):
    hidden = tf.nn.embedding_lookup(v1.get_variable("embeddings", [9, 6]), ids)
    for name in ("first", "second"):
        cell = v1.nn.rnn_cell.LSTMCell(6, forget_bias=0.0)
        hidden, state = v1.nn.dynamic_rnn(cell, hidden, dtype=tf.float32, scope=name)
    return v1.layers.dense(tf.concat([hidden[:, 0], v1.layers.dense(tf.tanh(state.h), 3, name="h")], 1), 2, name="out")


class Stacked(nn.Module):
    def __init__(self, batch_first=(True, True), activation=torch.tanh, permutes=False, permutes_between=False):
        super().__init__()
        self.activation, self.permutes, self.permutes_between = activation, permutes, permutes_between
        self.embeddings = nn.Embedding(9, 6)
        self.first = nn.LSTM(6, 6, batch_first=batch_first[0])
        self.second = nn.LSTM(6, 6, batch_first=batch_first[1])
        for lstm in (self.first, self.second):
            lstm.bias_hh_l0.requires_grad_(False)
        self.h, self.out = nn.Linear(6, 3), nn.Linear(9, 2)

    def forward(self, ids):
        hidden = self.embeddings(ids)
        if self.permutes:
            hidden = hidden.transpose(0, 1)
        hidden, _ = self.first(hidden)
        if self.permutes_between:
            hidden = hidden.transpose(0, 1)
        hidden, (state, _) = self.second(hidden)
        if self.permutes or self.permutes_between:
            hidden = hidden.transpose(0, 1)
        return self.out(torch.cat([hidden[:, 0], self.h(self.activation(self.of_batch(state, len(ids))))], 1))

    def of_batch(self, state, size):
        """Return as many states as there are examples, whichever axis is the batch."""
        return state[0].repeat(2, 1)[:size]


def findings(**arguments):
    given = Migration(tf1=stacked, port=lambda: Stacked(**arguments), inputs=IDS, expect=["initializers-match"])
    return validate(given, checks=["constant-weights"]).findings


TITLE = "axis of the batch differs in {}: 0 (TF1), 1 (port)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_first", "layer"),
    [((False, True), "first"), ((True, False), "second"), ((True, True), "")],
    ids=["first", "second", "of_no_layer"],
)
def test_a_layer_that_is_not_told_that_the_batch_is_first_is_named(batch_first, layer):
    found = findings(batch_first=batch_first)
    assert [finding.title for finding in found] == ([TITLE.format(layer)] if layer else [])
    for finding in found:
        assert finding.confirmed == "with batch_first=True, the rest agrees"
        assert finding.remedy == "pass batch_first=True to the layer"
        assert f"self.{layer} = nn.LSTM" in finding.port.source


@pytest.mark.slow
def test_several_layers_are_one_finding():
    (finding,) = findings(batch_first=(False, False))
    assert finding.title == "axis of the batch differs: 0 (TF1), 1 (port)"


@pytest.mark.slow
def test_another_fault_after_it_is_named_too():
    first, second = findings(batch_first=(True, False), activation=torch.relu)
    assert first.title == TITLE.format("second")
    assert first.confirmed == "with batch_first=True, what follows agrees up to the next difference"
    assert "Tanh" in second.title and "Relu" in second.title


@pytest.mark.slow
def test_of_two_layers_the_one_that_gets_the_batch_second_is_not_named():
    (finding,) = findings(batch_first=(False, False), permutes_between=True)
    assert finding.title == TITLE.format("first")


@pytest.mark.slow
def test_a_port_that_moves_the_batch_to_the_second_axis_is_not_accused_of_it():
    assert not findings(batch_first=(False, False), permutes=True)
    (finding,) = findings(batch_first=(False, False), permutes=True, activation=torch.relu)
    assert "Tanh" in finding.title and "Relu" in finding.title


def attended(x, training):
    queries, keys, values = (v1.layers.dense(x, 6, name=name) for name in ("queries", "keys", "values"))
    shares = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / 6**0.5)
    return v1.layers.dense(tf.matmul(shares, values), 6, name="joined")


@pytest.mark.slow
def test_attention_over_the_batch_is_named():
    class Attended(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 1)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    given = Migration(tf1=attended, port=Attended, inputs=numbers(4, 5, 6), name_map=OF_ATTENTION)
    (finding,) = validate(given, checks=["constant-weights"]).findings
    assert finding.title == TITLE.format("attention")
