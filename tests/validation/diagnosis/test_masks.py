"""Masks before a softmax that differ are one finding, with the lines of both programs, on each framework."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from tests.faults.tf1 import numbers
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
LENGTH, SIZE = 5, 4
INPUTS = numbers(2, LENGTH, SIZE)
KEPT = {  # which key each query may see
    "causal": np.tri(LENGTH, dtype=bool),
    "reversed": np.tri(LENGTH, dtype=bool).T,
    "padding": np.broadcast_to(np.arange(LENGTH) < 3, (LENGTH, LENGTH)),
    "queries": np.broadcast_to(np.arange(LENGTH)[:, None] < 3, (LENGTH, LENGTH)),
    "short": np.broadcast_to(np.arange(LENGTH) < 4, (LENGTH, LENGTH)),
    "none": np.ones((LENGTH, LENGTH), bool),
}


def added(scores, kept):
    return scores + (1 - tf.constant(kept, tf.float32)) * -1e4


def multiplied(scores, kept):
    kept = tf.constant(kept, tf.float32)
    return scores * kept - 1e9 * (1 - kept)


def chosen(scores, kept):
    return tf.where(tf.broadcast_to(kept, tf.shape(scores)), scores, tf.ones_like(scores) * -np.inf)


def attention(mask, write):
    """Return a network of TF1 that masks what its softmax takes, as a function writes it."""

    def network(x, training):
        query = tf.einsum("bld,de->ble", x, v1.get_variable("query", [SIZE, SIZE]))
        scores = tf.matmul(query, x, transpose_b=True) / SIZE**0.5
        scores = scores if mask == "none" else write(scores, KEPT[mask])
        return tf.matmul(tf.nn.softmax(scores), x)

    return network


class InKeras(keras.layers.Layer):
    def __init__(self, mask):
        super().__init__()
        self.kept = None if mask == "none" else KEPT[mask]
        self.query = self.add_weight(shape=(SIZE, SIZE), name="query")
        self.softmax = keras.layers.Softmax()

    def call(self, x):
        query = keras.ops.einsum("bld,de->ble", x, self.query)
        scores = keras.ops.einsum("bld,bmd->blm", query, x) / SIZE**0.5
        kept = None if self.kept is None else keras.ops.broadcast_to(self.kept, keras.ops.shape(scores))
        return keras.ops.einsum("blm,bmd->bld", self.softmax(scores, mask=kept), x)


def in_torch(mask):
    torch = pytest.importorskip("torch")

    class InTorch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query = torch.nn.Parameter(torch.zeros(SIZE, SIZE))

        def forward(self, x):
            kept = None if mask == "none" else torch.from_numpy(KEPT[mask].copy())
            return torch.nn.functional.scaled_dot_product_attention(x @ self.query, x, x, kept)

    return InTorch


def in_flax(mask):
    nnx = pytest.importorskip("flax.nnx")

    class InFlax(nnx.Module):
        def __init__(self):
            self.query = nnx.Param(np.zeros((SIZE, SIZE), np.float32))

        def __call__(self, x):
            heads = (each[:, :, None] for each in (x @ self.query[...], x, x))
            return nnx.dot_product_attention(*heads, mask=None if mask == "none" else KEPT[mask])[:, :, 0]

    return InFlax


FRAMEWORKS = {"keras": lambda mask: lambda: InKeras(mask), "torch": in_torch, "flax": in_flax}
WRITTEN = {"added": added, "multiplied": multiplied, "chosen": chosen}
TRANSPOSED = "the port's mask of the inputs of Softmax is TF1's with two axes exchanged"
TITLES = {
    ("causal", "none"): "only TF1 masks the inputs of Softmax (20 of 50 elements)",
    ("none", "causal"): "only the port masks the inputs of Softmax (20 of 50 elements)",
    ("causal", "padding"): "the programs mask different elements of the inputs of Softmax, 20 of 50 each",
    ("causal", "short"): "mask of the inputs of Softmax differs: 20 of 50 elements (TF1), 10 of 50 elements (port)",
    ("causal", "reversed"): f"{TRANSPOSED} (20 of 50 elements)",
    ("padding", "none"): "only TF1 masks the inputs of Softmax (20 of 50 elements)",
}


@pytest.mark.slow_except("added-keras-causal-none", "multiplied-flax-causal-none", "chosen-torch-causal-none")
@pytest.mark.parametrize("masks", TITLES, ids="-".join)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("write", WRITTEN)
def test_a_mask_that_differs_is_named_with_the_lines_of_both(write, framework, masks):
    tf1, port = attention(masks[0], WRITTEN[write]), FRAMEWORKS[framework](masks[1])
    report = validate(Migration(tf1=tf1, port=port, inputs=INPUTS), checks=["constant-weights"])
    (finding,) = report.findings
    assert finding.title == TITLES[masks], str(report)
    assert finding.confirmed
    assert __file__ in finding.tf1.line and __file__ in finding.port.line


OF_QUERIES = {
    ("padding", "queries"): f"{TRANSPOSED} (20 of 50 elements)",
    ("short", "queries"): "mask of the inputs of Softmax differs: 10 of 50 elements (TF1), 20 of 50 elements (port)",
}


@pytest.mark.slow_except("keras-padding-queries")
@pytest.mark.parametrize("masks", OF_QUERIES, ids="-".join)
@pytest.mark.parametrize("framework", ["keras", "flax"])  # fused attention of PyTorch is 0 where all is masked
def test_a_mask_of_whole_rows_is_a_mask(framework, masks):
    tf1, port = attention(masks[0], added), FRAMEWORKS[framework](masks[1])
    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=INPUTS), checks=["constant-weights"]).findings
    assert finding.title == OF_QUERIES[masks]


def of_large_numbers(activation):
    """Return a network whose softmax takes numbers so far apart that the exponentials of some are 0."""

    def network(x, training):
        return tf.nn.softmax(3000 * activation(tf.einsum("bld,de->ble", x, v1.get_variable("query", [SIZE, SIZE]))))

    return network


def of_two_heads(activation, heads_first=False):
    """Return an attention that masks the same padding with its axes in either order."""

    def network(x, training):
        hidden = activation(tf.einsum("bld,de->ble", x, v1.get_variable("query", [SIZE, SIZE])))
        heads = tf.stack(tf.split(hidden, 2, axis=-1), 0 if heads_first else 1)
        scores = tf.matmul(heads, heads, transpose_b=True)
        padding = tf.constant([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])[:, None, :]
        padding = padding[None] if heads_first else padding[:, None]
        weights = tf.nn.softmax(scores - 1e9 * (1 - padding))
        return tf.reduce_sum(tf.matmul(weights, heads), 0 if heads_first else 1)

    return network


@pytest.mark.parametrize(
    ("tf1", "port"),
    [
        (of_large_numbers(tf.tanh), of_large_numbers(tf.cos)),
        (of_two_heads(tf.tanh), of_two_heads(tf.cos, heads_first=True)),
    ],
    ids=["large numbers", "axes in a different order"],
)
def test_what_is_masked_alike_has_another_cause(tf1, port):
    migration = Migration(tf1=tf1, port=shim_port(port), inputs=numbers(3, LENGTH, SIZE))
    report = validate(migration, checks=["constant-weights"])
    (finding,) = report.findings
    assert finding.kind == "computation"
    assert "mask" not in finding.title, str(report)


def by_hand(scores):
    exponentials = tf.exp(scores - tf.reduce_max(scores, -1, keepdims=True))
    return exponentials / tf.reduce_sum(exponentials, -1, keepdims=True)


def weighted_rows(softmax, mask):
    def network(x, training):
        scores = tf.einsum("bld,d->bl", x, v1.get_variable("query", [SIZE]))
        scores = tf.where(KEPT[mask][:1], scores, -1e9) if mask != "none" else scores
        return tf.einsum("bl,bld->bd", softmax(scores), x)

    return network


@pytest.mark.parametrize("masks", [("padding", "none"), ("none", "padding")], ids="-".join)
def test_a_mask_is_named_where_only_one_program_writes_its_softmax_by_hand(masks):
    tf1, port = weighted_rows(tf.nn.softmax, masks[0]), shim_port(weighted_rows(by_hand, masks[1]))
    report = validate(Migration(tf1=tf1, port=port, inputs=INPUTS), checks=["constant-weights"])
    (finding,) = report.findings
    who = "TF1" if masks[1] == "none" else "the port"
    assert finding.title == f"only {who} masks the inputs of Softmax (4 of 10 elements)", str(report)


def zeroed(after):
    """Return a network that makes rows zeros after a number of them, or does not."""

    def network(x, training):
        hidden = tf.tanh(tf.einsum("bld,de->ble", x, v1.get_variable("kernel", [SIZE, SIZE])))
        if after:
            hidden = tf.where(tf.range(LENGTH)[:, None] >= after, tf.zeros_like(hidden), hidden)
        return tf.einsum("ble,ef->blf", hidden, v1.get_variable("last", [SIZE, 2]))

    return network


def test_a_choice_of_elements_in_one_program_is_named_without_its_condition():
    report = validate(Migration(tf1=zeroed(3), port=shim_port(zeroed(0)), inputs=INPUTS), checks=["constant-weights"])
    (finding,) = report.findings
    assert finding.title == "only TF1 chooses elements by a condition, as a mask by tf.where", str(report)
    assert finding.remedy == "add this to the port"
