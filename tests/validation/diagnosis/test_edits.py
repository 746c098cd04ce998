"""Ports that are written differently from TF1, and have one op too many, too few, or one in place of another."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import Migration, validate

ops, v1 = keras.ops, tf.compat.v1
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(6, 8)).astype(np.float32)
WORDS = RANDOM.normal(size=(4, 5, 8)).astype(np.float32)
LENGTHS = np.array([5, 3, 4, 2], np.int32)
MASKS = [np.arange(8, dtype=np.float32) % 2, 1 - np.arange(8, dtype=np.float32) % 2]


def dense(x, units, name):
    return tf.tensordot(x, v1.get_variable(f"{name}/kernel", (x.shape[-1], units)), 1)


def coupled(x, training):
    total = tf.zeros(tf.shape(x)[:1])
    for number, mask in enumerate(MASKS):
        scales = tf.tanh(dense(x * mask, 8, f"scales{number}"))
        x = mask * x + (1.0 - mask) * (x * tf.exp(scales))
        total += tf.reduce_sum(scales, 1)
    return {"x": x, "total": total}


class Coupled(keras.Model):
    def __init__(self, of_scales=lambda x: x, of_total=lambda total, added: added + total):
        super().__init__()
        self.of_scales, self.of_total = of_scales, of_total
        self.scales = [keras.layers.Dense(8, use_bias=False, name=f"scales{number}") for number in range(2)]

    def call(self, x, training=False):
        total = 0.0
        for layer, mask in zip(self.scales, MASKS, strict=True):
            kept = x * mask
            scales = ops.tanh(layer(kept))
            x = kept + (1.0 - mask) * x * ops.exp(self.of_scales(scales))
            total = self.of_total(total, ops.sum(scales, axis=1))
        return {"x": x, "total": total}


def pooled(words, lengths, training):
    hidden = tf.tanh(dense(words, 6, "hidden"))
    query = v1.get_variable("query", (6,))
    scores = tf.reduce_sum(hidden * query, 2) / np.sqrt(6.0)
    shares = tf.nn.softmax(scores - 1e9 * (1.0 - tf.sequence_mask(lengths, 5, tf.float32)))
    return tf.reduce_sum(shares[:, :, None] * hidden, 1)


class Pooled(keras.Model):
    def __init__(self, divisor=6**0.5, is_valid=ops.less):
        super().__init__()
        self.divisor, self.is_valid = divisor, is_valid
        self.hidden = keras.layers.Dense(6, use_bias=False, activation="tanh", name="hidden")

    def build(self, *shapes):
        self.query = self.add_weight(shape=(6,), name="query")

    def call(self, words, lengths, training=False):
        hidden = self.hidden(words)
        scores = ops.matmul(hidden, self.query)
        scores = scores if self.divisor == 1 else scores / self.divisor
        valid = self.is_valid(ops.arange(5)[None], lengths[:, None])
        return ops.einsum("bt,bth->bh", ops.softmax(ops.where(valid, scores, -1e9)), hidden)


def only_finding(tf1, port, inputs):
    report = validate(Migration(tf1=tf1, port=port, inputs=inputs), checks=["random-inference"])
    (finding,) = report.findings
    return finding


def test_ports_that_are_written_differently_pass():
    for tf1, port, inputs in ((coupled, Coupled, ROWS), (pooled, Pooled, (WORDS, LENGTHS))):
        assert validate(Migration(tf1=tf1, port=port, inputs=inputs), checks=["random-inference"]).ok


@pytest.mark.parametrize(
    "changes, title, confirmed",
    [
        ({"of_scales": ops.negative}, "only the port negates", "without it, at all 2 places"),
        (
            {"of_total": lambda total, added: added - total},
            "sign of a term differs: added (TF1), subtracted (port)",
            "with TF1's AddV2 instead, at all 2 places",
        ),
    ],
    ids=["negated", "sign"],
)
def test_one_op_of_several_layers_is_one_finding(changes, title, confirmed):
    finding = only_finding(coupled, lambda: Coupled(**changes), ROWS)
    assert (finding.title, finding.confirmed) == (title, f"{confirmed}, the rest agrees")
    assert finding.count == 2


def test_a_mask_that_is_written_differently_does_not_hide_a_factor():
    finding = only_finding(pooled, lambda: Pooled(divisor=1), (WORDS, LENGTHS))
    assert finding.title == "only TF1 divides by 2.4494898"
    assert finding.confirmed == "with TF1's RealDiv here, the rest agrees"


def running(words, lengths, training):
    state = tf.zeros((4, 6))
    for step in range(5):
        following = tf.tanh(dense(words[:, step], 6, f"hidden{step}") + state)
        state = tf.where(tf.tile((step >= lengths)[:, None], [1, 6]), state, following)
    return state


class Running(keras.Model):
    def __init__(self, is_valid=ops.less):
        super().__init__()
        self.is_valid = is_valid
        self.hidden = [keras.layers.Dense(6, use_bias=False, name=f"hidden{step}") for step in range(5)]

    def call(self, words, lengths, training=False):
        state = ops.zeros((4, 6))
        for step, layer in enumerate(self.hidden):
            following = ops.tanh(layer(words[:, step]) + state)
            state = ops.where(self.is_valid(step, lengths)[:, None], following, state)
        return state


@pytest.mark.slow
def test_a_bound_of_a_comparison_that_tf1_writes_the_other_way_round_is_named():
    assert validate(Migration(tf1=running, port=Running, inputs=(WORDS, LENGTHS)), checks=["random-inference"]).ok
    finding = only_finding(running, lambda: Running(ops.less_equal), (WORDS, LENGTHS))
    assert (finding.title, finding.confirmed, finding.count) == (
        "comparison differs: < (TF1), <= (port)",
        "with < instead, at all 5 places, the rest agrees",
        5,
    )


def test_no_edit_explains_two_faults():
    report = validate(
        Migration(tf1=pooled, port=lambda: Pooled(1, ops.less_equal), inputs=(WORDS, LENGTHS)),
        checks=["random-inference"],
    )
    assert not report.ok
    assert not any("RealDiv here" in finding.confirmed for finding in report.findings), str(report)


def quantiles(labels, outputs):
    return sum(
        tf.reduce_mean(tf.maximum(q * (labels - outputs[:, n]), (q - 1) * (labels - outputs[:, n])))
        for n, q in enumerate((0.1, 0.5, 0.9))
    )


def quantiles_at_once(labels, outputs, of_error=tf.identity):
    error, q = of_error(labels[:, None] - outputs), tf.constant([0.1, 0.5, 0.9])
    return tf.reduce_sum(tf.reduce_mean(tf.maximum(q * error, (q - 1) * error), 0))


def hinge(labels, outputs):
    return tf.reduce_mean(tf.nn.relu(1.0 - outputs)) + tf.reduce_mean(tf.nn.relu(outputs - 9.0))


def hinge_in_methods(labels, outputs, of_second=tf.nn.relu):
    return tf.reduce_mean(of_second(outputs - 9.0)) + tf.reduce_mean(tf.nn.relu(1.0 - outputs))


def huber(labels, outputs):
    is_small = v1.to_float(tf.abs(outputs) < 0.5)
    return tf.reduce_mean(is_small * 0.5 * tf.square(outputs) + (1.0 - is_small) * (0.5 * tf.abs(outputs) - 0.125))


def huber_by_choice(labels, outputs, are_exchanged=False):
    size = tf.abs(outputs)
    branches = (size * 0.5 - 0.125, size**2 / 2) if are_exchanged else (size**2 / 2, size * 0.5 - 0.125)
    return tf.reduce_mean(tf.where(size < 0.5, *branches))


def of_known(labels, outputs):
    known = v1.to_float(tf.not_equal(labels, 7.0))
    return tf.reduce_mean(tf.reduce_mean(tf.square(outputs), 1) * known) + tf.reduce_mean(tf.abs(outputs))


def of_known_by_choice(labels, outputs, is_known=tf.not_equal):
    squares = tf.reduce_mean(tf.square(outputs), 1)
    return tf.reduce_mean(tf.abs(outputs)) + tf.reduce_mean(tf.where(is_known(labels, 7.0), squares, 0.0))


def ratios(labels, outputs):
    return tf.reduce_mean(labels * tf.exp(tf.reduce_sum(tf.nn.log_softmax(outputs), 1)))


def ratios_as_products(labels, outputs, reduce=tf.reduce_sum):
    logarithms = outputs - tf.reduce_logsumexp(outputs, 1, keepdims=True)
    return tf.reduce_sum(tf.exp(reduce(logarithms, 1)) * labels) / 6.0


def hinges(labels, outputs):
    first, last = outputs[:, 0], outputs[:, 1]
    return tf.reduce_mean(tf.nn.relu(1.0 - first)) + tf.reduce_mean(tf.nn.relu(1.0 + last))


def hinges_on_one_line(labels, outputs, is_sound=True):
    one, other = 1.0 - outputs[:, 0], 1.0 + outputs[:, 1] if is_sound else 1.0 - outputs[:, 1]
    return tf.reduce_mean(tf.maximum(0.0, one)) + tf.reduce_mean(tf.maximum(0.0, other))


@pytest.mark.slow
@pytest.mark.parametrize(
    "tf1, port, changes, title",
    [
        (quantiles, quantiles_at_once, {"of_error": tf.negative}, "only the port negates"),
        (hinge, hinge_in_methods, {"of_second": tf.identity}, "the port has no activation where TF1 has Relu"),
        (
            huber,
            huber_by_choice,
            {"are_exchanged": True},
            "the two branches of a condition are exchanged",
        ),
        (
            of_known,
            of_known_by_choice,
            {"is_known": tf.equal},
            "what is computed differs: NotEqual (TF1), Equal (port)",
        ),
        (ratios, ratios_as_products, {"reduce": tf.reduce_mean}, "reduction differs: Sum (TF1), Mean (port)"),
        (hinges, hinges_on_one_line, {"is_sound": False}, "sign of a term differs: added (TF1), subtracted (port)"),
    ],
    ids=["negated", "activation of zeros", "branches", "comparison of constants", "reduction", "two ops on one line"],
)
def test_one_op_of_a_loss_that_is_written_differently(tf1, port, changes, title):
    def migration(loss):
        labels = (np.arange(6) % 2).astype(np.float32)
        train = detrand.TrainStep(
            labels=labels,
            tf1_loss=tf1,
            port_loss=loss,
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=2,
        )
        return Migration(
            tf1=lambda x, training: dense(x, 3, "out"),
            port=lambda: keras.layers.Dense(3, use_bias=False, name="out"),
            inputs=ROWS,
            train=train,
        )

    checks = ["training-steps"]
    assert validate(migration(port), checks=checks).ok
    report = validate(migration(lambda labels, outputs: port(labels, outputs, **changes)), checks=checks)
    (finding,) = report.findings
    assert finding.title == f"loss: {title}", str(report)
    assert finding.confirmed.endswith("the rest agrees"), str(report)
