"""The findings of a report: every fault of a port in one run, each at its line, and nothing else."""

import functools
import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand.report import html
from detrand.seeding.streams import RandomOp
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.frameworks.traces import Substitution
from detrand.validation.outcomes.explanation import _with_uncontrolled
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.results import Fault, Finding, Place, merged
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(4, 9, 9, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def conv(inputs, filters, name):
    kernel = v1.get_variable(f"{name}/kernel", (3, 3, inputs.shape[-1], filters))
    return tf.nn.conv2d(inputs, kernel, 1, "SAME")


def dense(inputs, units, name):
    kernel = v1.get_variable(f"{name}/kernel", (inputs.shape[-1], units))
    return tf.matmul(inputs, kernel) + v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())


def branches(images, training):
    hidden = tf.nn.max_pool2d(tf.nn.relu(conv(images, 4, "stem")), 3, 2, "VALID")
    left = conv(hidden, 4, "left")
    right = conv(tf.nn.avg_pool2d(hidden, 3, 1, "SAME"), 4, "right")
    hidden = conv(tf.concat([left, right], -1), 4, "last")
    hidden = tf.reshape(hidden, (images.shape[0], -1))
    if training:
        hidden = tf.nn.dropout(hidden, rate=0.5)
    return dense(hidden, 3, "logits")


def branches_in_keras():
    def same(filters, name, activation=None):
        return keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, activation=activation, name=name)

    images = keras.Input((9, 9, 3))
    hidden = keras.layers.MaxPool2D(3, 2)(same(4, "stem", "relu")(images))
    left = same(4, "left")(hidden)
    right = same(4, "right")(keras.layers.MaxPool2D(3, 1, padding="same")(hidden))  # pooling
    hidden = keras.layers.Concatenate()([right, left])  # order
    hidden = keras.layers.Flatten()(same(4, "last")(hidden))
    hidden = keras.layers.Dropout(0.4)(hidden)  # rate
    return keras.Model(images, keras.layers.Dense(3, name="logits")(hidden))


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def line_with(comment):
    """Return the number of the line of this file that ends in a comment."""
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {comment}"))


@pytest.mark.slow
def test_independent_faults_are_all_found_in_one_run():
    train = TrainStep(
        labels=np.array([0, 1, 2, 0]),
        tf1_loss=cross_entropy,
        port_loss=cross_entropy,
        tf1_optimizer=lambda: v1.train.AdamOptimizer(1e-3),
        port_optimizer=lambda: keras.optimizers.Adam(1e-3),
        steps=3,
    )
    report = validate(Migration(tf1=branches, port=branches_in_keras, inputs=IMAGES, train=train))
    assert report.verdict == "failed"
    titles = [
        "pooling method differs: AvgPool (TF1), MaxPool (port)",
        "order of the inputs differs: Conv2D_1, Conv2D_2 (TF1), Conv2D_2, Conv2D_1 (port)",
        "dropout rate differs: 0.5 (TF1), 0.4 (port)",
        "epsilon differs in the optimizer: 1e-08 (TF1), 1e-07 (port)",
    ]
    assert [finding.title for finding in report.findings] == titles, str(report)
    for finding, comment in zip(report.findings, ["pooling", "order", "rate"], strict=False):
        assert finding.confirmed
        assert finding.port.line.endswith(f"test_findings.py:{line_with(comment)}"), finding
        assert finding.port.source.endswith(f"# {comment}")
    of_optimizer = report.findings[-1]
    assert of_optimizer.confirmed == "with TF1's value in the port's optimizer, the updates agree"
    assert of_optimizer.tf1.source.startswith("tf1_optimizer=") and of_optimizer.tf1.value
    assert of_optimizer.port.source.startswith("port_optimizer=") and of_optimizer.port.value
    assert "random-training" in report.findings[0].checks
    assert str(report).splitlines()[-1].startswith("branches failed: 4 findings")


def gelu(hidden, approximate=True):
    return tf.nn.gelu(hidden, approximate=approximate)


def blocks(inputs, training, *, activation=gelu, epsilon=1e-3, factor=2.0, rate=0.5):
    hidden = inputs
    for number in range(3):
        hidden = dense(hidden, 6, f"block_{number}")
        mean, variance = tf.nn.moments(hidden, [1], keepdims=True)
        hidden = activation((hidden - mean) * tf.math.rsqrt(variance + epsilon))
        if training and rate:
            hidden = tf.nn.dropout(hidden, rate)
    return dense(hidden, 2, "logits") * factor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"epsilon": 1e-5}, "epsilon differs: 0.001 (TF1), 1e-05 (port)"),
        ({"epsilon": 1.001e-3}, "epsilon differs: 0.001 (TF1), 0.001001 (port)"),
        (
            {"activation": lambda hidden: gelu(hidden, approximate=False)},
            "form of GELU differs: the tanh approximation (TF1), erf (port)",
        ),
        ({"rate": 0.0}, "only TF1 has a dropout, or another random op, here"),
        ({"rate": 0.4}, "dropout rate differs: 0.5 (TF1), 0.4 (port)"),
        ({"factor": 3.0}, "factor differs: 2 (TF1), 3 (port)"),
    ],
    ids=["epsilon", "a tiny change", "activation", "no dropout", "rate", "factor"],
)
def test_the_same_fault_in_several_layers_is_one_finding(changes, title):
    report = validate(Migration(tf1=blocks, port=shim_port(blocks, **changes), inputs=ROWS))
    found = [finding.title for finding in report.findings]
    assert [without_zeros(each) for each in found] == [title], str(report)
    assert all(finding.confirmed for finding in report.findings)


def without_zeros(title):
    return re.sub(r"(\d)\.0\b", r"\1", title)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.125, "sqrt"])
def test_a_factor_that_the_port_lacks_is_a_finding(factor):
    def attention(inputs, training, scaled=True):
        query, key, value = (dense(inputs, 6, name) for name in ("query", "key", "value"))
        scores = tf.matmul(query, key, transpose_b=True)
        if scaled:
            scores = scores * factor if factor != "sqrt" else scores / tf.sqrt(6.0)
        return dense(tf.matmul(tf.nn.softmax(scores), value), 3, "output")

    report = validate(Migration(tf1=attention, port=shim_port(attention, scaled=False), inputs=ROWS))
    (finding,) = report.findings
    assert re.match(r"only TF1 (multiplies|divides) by", finding.title), str(report)


def gate(hidden):
    """A gate whose argument has a factor in TF1; its result is moved before it is used."""
    return tuple(tf.reshape(hidden * tf.tanh(each), (-1, 3)) for each in (3.0 * hidden, hidden))


def of_positive_numbers(hidden):
    """The logarithm of a number that is greater by 1, or 1 more than the logarithm."""
    positive = tf.nn.softplus(hidden)
    return tf.math.log(positive + 1.0), tf.math.log(positive) + 1.0


def scaled_by_deviation(hidden):
    """A division by the root of a sum, written in two ways, and by the sum of a root."""
    mean = tf.reduce_mean(tf.square(hidden), -1, keepdims=True)
    return hidden * tf.math.rsqrt(mean + 0.01), hidden / (tf.sqrt(mean) + 0.01)


def squashed_along_axes(hidden):
    """A softmax over the batch, or over the features."""
    return tf.nn.softmax(hidden, 0), tf.nn.softmax(hidden)


def halves(hidden):
    """Two halves of a tensor that are taken for each other."""
    other, halves = tf.tanh(hidden)[:, 1:4], tf.split(hidden, 2, 1)
    pairs = ((hidden[:, :3], hidden[:, 3:]), (halves[1], halves[0]))
    return tuple((other + shift) * tf.exp(other * scale) for shift, scale in pairs)


def permuted(hidden):
    """Columns in two orders; Keras computes the indices from constants."""
    return tf.gather(hidden, [5, 2, 1, 3, 0, 4], axis=1), keras.ops.take(hidden, [4, 2, 1, 3, 5, 0], axis=1)


def masked(hidden):
    """A mask whose number has the shape of the data, and one whose number is broadcast."""
    fill = tf.fill(tf.shape(hidden * tf.ones([tf.shape(hidden)[0], 1])), -9.0)
    return v1.where(hidden > 0, hidden, fill), tf.where(hidden > 0, hidden, 0.0)


def weighted(hidden):
    """Weights from a table, which Keras reshapes."""
    table, ids = np.array([1.0, 2.0], np.float32), tf.cast(hidden[:, 0] > tf.reduce_mean(hidden[:, 0]), tf.int32)
    weights = tf.gather(tf.constant(table), ids), keras.ops.take(tf.constant(table + np.float32([0, 1])), ids)
    return tuple(hidden * each[:, None] for each in weights)


@pytest.mark.parametrize(
    ("tf1_and_port", "title"),
    [
        (halves, r"two tensors are swapped: \S+ and \S+"),
        (permuted, r"indices of GatherV2 differs: \[5 2 1 3 0 4\] \(TF1\), \[4 2 1 3 5 0\] \(port\)"),
        (masked, r"number where the condition is false of Select differs: -9.* \(TF1\), 0.0 \(port\)"),
        (weighted, r"params of GatherV2 differs: 2 \(TF1\), 3 \(port\) in 1 of 2 entries, the first at \[1\]"),
        (gate, r"only TF1 multiplies by 3\.0"),
        (of_positive_numbers, r"order of ops differs: AddV2, then Log \(TF1\), Log, then AddV2 \(port\)"),
        (scaled_by_deviation, r"order of ops differs: AddV2, then Rsqrt, then Mul \(TF1\), .+"),
        (squashed_along_axes, r"axis of Softmax differs: 0 \(TF1\), 1 \(port\)"),
    ],
)
def test_what_two_programs_compute_from_equal_numbers_is_one_finding(tf1_and_port, title):
    def network(inputs, training, is_port=False):
        return dense(tf1_and_port(dense(inputs, 6, "in"))[is_port], 2, "out")

    report = validate(
        Migration(tf1=network, port=shim_port(network, is_port=True), inputs=ROWS), checks=["random-inference"]
    )
    (finding,) = report.findings
    assert re.fullmatch(title, finding.title) and finding.confirmed.endswith("the rest agrees"), str(report)


def test_an_op_along_another_axis_is_a_finding_right_before_the_output():
    def pooled(inputs, training):
        weights = tf.nn.softmax(dense(tf.tanh(inputs), 3, "scores"), axis=1)
        return tf.matmul(weights, inputs, transpose_a=True)

    def along_features(inputs, training):
        weights = tf.nn.softmax(dense(tf.tanh(inputs), 3, "scores"))
        return tf.matmul(tf.transpose(weights, [0, 2, 1]), inputs)

    inputs = np.random.default_rng(2).normal(size=(2, 5, 4)).astype(np.float32)
    report = validate(Migration(tf1=pooled, port=shim_port(along_features), inputs=inputs), checks=["random-inference"])
    (finding,) = report.findings
    assert finding.title == "axis of Softmax differs: 1 (TF1), 2 (port)", str(report)
    assert finding.confirmed.endswith("the rest agrees")


@pytest.mark.slow
def test_a_softmax_along_an_axis_of_one_element_is_no_missing_activation():
    def attention(inputs, training, axis=1):
        hidden = tf.tanh(dense(inputs, 6, "hidden"))
        weights = tf.nn.softmax(dense(hidden, 1, "scores"), axis)
        return dense(tf.reduce_sum(weights * hidden, 1), 2, "last")

    inputs = np.random.default_rng(2).normal(size=(2, 5, 4)).astype(np.float32)
    for axes in ((1, -1), (-1, 1)):
        tf1, port = (functools.partial(attention, axis=axis) for axis in axes)
        report = validate(Migration(tf1=tf1, port=shim_port(port), inputs=inputs), checks=["random-inference"])
        (finding,) = report.findings
        of_tf1, of_port = (axis % 3 for axis in axes)
        assert finding.title == f"axis of Softmax differs: {of_tf1} (TF1), {of_port} (port)", str(report)
        assert all(place.op.endswith("(Softmax)") for place in (finding.tf1, finding.port)), str(report)


def test_a_constant_that_is_added_to_an_input_is_compared_with_what_tf1_computes():
    positions = np.arange(ROWS.shape[1], dtype=np.float32)

    def network(inputs, training):
        summed = inputs + tf.sin(tf.range(ROWS.shape[1], dtype=tf.float32) / 3.0)
        return dense(tf.reshape(summed, (-1, 3)), 2, "out")

    def in_reverse(inputs, training):
        summed = inputs + tf.constant(np.sin(positions / 3)[::-1].copy())
        return dense(tf.reshape(summed, (-1, 3)), 2, "out")

    report = validate(Migration(tf1=network, port=shim_port(in_reverse), inputs=ROWS), checks=["random-inference"])
    (finding,) = report.findings
    assert finding.title == "constant added differs: the port's array is TF1's, reversed along axis 0", str(report)


@pytest.mark.slow
def test_an_optimizer_is_not_blamed_for_variables_that_the_port_lacks():
    """They are a part of the global norm by which TF1 clips gradients."""

    def both(inputs, training):
        return dense(inputs, 2, "one") + dense(inputs, 2, "other")

    def train_op(loss):
        variables = v1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
        return v1.train.AdamOptimizer(0.01, epsilon=1e-3).apply_gradients(zip(gradients, variables, strict=True))

    train = TrainStep(
        labels=np.ones((4, 2), np.float32),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_train_op=train_op,
        port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.1),
    )
    report = validate(
        Migration(tf1=both, port=shim_port(lambda inputs, training: dense(inputs, 2, "one")), inputs=ROWS, train=train)
    )
    kinds = [finding.kind for finding in report.findings]
    assert "variables" in kinds and "training" not in kinds, str(report)


@pytest.mark.slow
def test_one_op_that_the_port_computes_by_several_is_a_finding_before_a_normalization():
    """Both take a tensor twice: these ops of the port, and the normalization after them."""

    def network(inputs, training, is_port=False):
        hidden = tf.nn.relu(dense(inputs, 6, "in"))
        if is_port:
            squares = tf.pad(tf.square(hidden), [[0, 0], [1, 1]])
            near = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
            hidden = hidden / (1.0 + 0.1 * near) ** 0.75
        else:
            hidden = tf.reshape(tf.nn.lrn(hidden[:, None, None], 1, alpha=0.5, beta=0.75), (-1, 6))
        return tf.nn.l2_normalize(dense(hidden, 5, "out"), 1)

    report = validate(
        Migration(tf1=network, port=shim_port(network, is_port=True), inputs=ROWS), checks=["random-inference"]
    )
    (finding,) = report.findings
    title = "what is computed differs: LRN (TF1), AddV2, Mul, Pad, Pow, RealDiv, Square (port)"
    assert finding.title == title, str(report)


def test_a_substitute_does_not_change_the_number_of_outputs():
    def thirds(inputs, training):
        return tf.concat(tf.split(inputs, 3, 1)[::-1], 1)

    migration = Migration(tf1=thirds, port=shim_port(thirds), inputs=ROWS)
    graph = traced_port(migration, RunConfig(training=False), {}, None)
    split = next(name for name, op in graph.ops.items() if op.type == "Split")
    graph.run()
    with pytest.raises(ValueError, match="would have more outputs, or fewer"):
        graph.run(Substitution(attributes={split: {"num_split": "2"}}))


@pytest.mark.parametrize("position", [0, 1], ids=["input", "kernel"])
def test_a_dilated_convolution_gets_another_input_as_one_op(position):
    given = [np.random.default_rng(2).normal(size=shape) for shape in ((4, 6, 1), (2, 1, 3))]

    def network(inputs, training):
        kernel = v1.get_variable("kernel", (2, 1, 3))
        return tf.tanh(tf.nn.convolution(tf.cast(inputs[:, :, None], tf.float32), kernel, padding="SAME", dilations=2))

    migration = Migration(tf1=network, port=shim_port(network), inputs=ROWS)
    graph = traced_port(migration, RunConfig(training=False), {}, None)
    before = graph.run()
    name = next(name for name, op in before.ops.items() if op.type == "Conv2D")
    edges = {(name, number): graph.fitted(given[number], before.ops[name].inputs[number]) for number in (0, 1)}
    both = graph.run(Substitution(edges=edges)).values[name].array
    np.testing.assert_allclose(both, tf.nn.convolution(given[0], given[1], padding="SAME", dilations=2), rtol=1e-12)
    one = graph.run(Substitution(edges={(name, position): edges[name, position]})).values[name].array
    assert not np.isclose(one, both).any() and not np.isclose(one, before.values[name].array).any()


@pytest.mark.parametrize(("line", "fault", "count"), [(3, Fault.OPS, 1), (4, Fault.OPS, 2), (3, Fault.VALUE, 2)])
def test_a_line_of_a_block_that_is_used_again_is_one_finding(line, fault, count):
    """The values of a block may be its own."""

    def found(block, line):
        places = (Place(f"{who}/block_{block}_1/add (AddV2)", f"{who}.py:{line}") for who in ("tf1", "port"))
        return Finding("computation", f"block_{block}/add differs", *places, checks=("constant-weights",), fault=fault)

    assert len(merged([found(0, 3), found(1, line)])) == count


def test_a_port_does_not_get_the_inside_of_a_dilated_convolution():
    def network(inputs, training, rate=2):
        padded = tf.pad(inputs[:, :, None], [[0, 0], [rate, 0], [0, 0]])
        kernel = v1.get_variable("kernel", (2, 1, 4))
        hidden = tf.nn.convolution(padded, kernel, padding="VALID", dilations=[rate])
        return tf.nn.relu(hidden + v1.get_variable("bias", (4,), initializer=v1.ones_initializer()))

    report = validate(Migration(tf1=network, port=shim_port(network, rate=1), inputs=ROWS), checks=["random-inference"])
    (finding,) = report.findings  # the padding follows from it
    assert finding.title == "dilation rate differs: [1, 1, 2, 1] (TF1), [1, 1, 1, 1] (port)", str(report)
    assert finding.rest_agrees


@pytest.mark.slow
def test_a_factor_before_several_dilated_convolutions_is_a_finding():
    """What a layer of a WaveNet takes, goes into a filter, a gate and the sum after them."""

    def of_tf1(inputs, training):
        def causal(x, name, dilation):
            padded = tf.pad(x, [[0, 0], [dilation, 0], [0, 0]])
            return tf.nn.convolution(padded, v1.get_variable(name, (2, 3, 3)), padding="VALID", dilations=[dilation])

        hidden, skips = inputs, 0.0
        for number in range(3):
            both = (causal(hidden, f"{name}_{number}", 2**number) for name in ("filter", "gate"))
            out = tf.tanh(next(both)) * tf.sigmoid(next(both))
            hidden += dense(out, 3, f"dense_{number}")
            skips += dense(out, 3, f"skip_{number}")
        return dense(tf.nn.relu(skips), 2, "out")

    class Port(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            for number in range(3):
                for name in ("filter", "gate"):
                    layer = keras.layers.Conv1D(
                        3, 2, dilation_rate=2**number, padding="causal", use_bias=False, name=f"{name}_{number}"
                    )
                    setattr(self, f"{name}_{number}", layer)
                for name, size in (("dense", 3), ("skip", 3)):
                    setattr(self, f"{name}_{number}", keras.layers.Dense(size, name=f"{name}_{number}"))
            self.out = keras.layers.Dense(2, name="out")

        def call(self, hidden):
            skips = 0.0
            for number in range(3):
                of = [getattr(self, f"{name}_{number}") for name in ("filter", "gate", "dense", "skip")]
                out = keras.ops.tanh(of[0](hidden)) * keras.ops.sigmoid(of[1](hidden))
                hidden = (hidden + of[2](out)) * 0.7
                skips = skips + of[3](out)
            return self.out(keras.ops.relu(skips))

    names = {f"{name}_{number}": f"port/{name}_{number}/kernel" for name in ("filter", "gate") for number in range(3)}
    given = Migration(tf1=of_tf1, port=Port, inputs=IMAGES[..., 0, :], name_map=names)
    report = validate(given, checks=["constant-weights"])
    assert [finding.title for finding in report.findings] == ["only the port multiplies by 0.7"], str(report)


@pytest.mark.slow
def test_a_shortcut_from_a_different_tensor_is_a_finding():
    def residual(inputs, training, late=False):
        hidden = dense(inputs, 6, "in")
        activated = tf.nn.relu(hidden)
        return dense(dense(activated, 6, "block") + (activated if late else hidden), 2, "out")

    report = validate(Migration(tf1=residual, port=shim_port(residual, late=True), inputs=ROWS))
    (finding,) = report.findings
    assert re.match(r"AddV2 takes different tensors: \S+ \(TF1\), Relu \(port\)", finding.title), str(report)


def deep(images, training, half=False, off=0.0):
    """Normalization over four images amplifies rounding layer by layer."""
    hidden = images
    for number in range(16):
        hidden = conv(tf.cast(hidden, tf.float16), 8, f"layer_{number}") if half else conv(hidden, 8, f"layer_{number}")
        hidden = tf.cast(hidden, tf.float32)
        mean, variance = tf.nn.moments(hidden, [0])
        hidden = tf.nn.relu(tf.nn.batch_normalization(hidden, mean, variance, None, None, 1e-6 + off))
    return 1e3 * (hidden[0] - hidden[1])


def deep_in_other_words(images, training):
    hidden = images
    for number in range(16):
        kernel = v1.get_variable(f"layer_{number}/kernel", (3, 3, hidden.shape[-1], 8))
        kernel = kernel[:, :, ::-1]  # so that sums have another order
        hidden = tf.nn.conv2d(hidden[..., ::-1], kernel, 1, "SAME")
        mean = tf.reduce_mean(hidden, [0])
        variance = tf.reduce_mean((hidden - mean) ** 2, [0])
        hidden = tf.nn.relu((hidden - mean) / tf.sqrt(variance + 1e-6))
    return 1e3 * (hidden[0] - hidden[1])


@pytest.mark.slow
def test_rounding_that_a_deep_network_amplifies_passes():
    migration = Migration(tf1=deep, port=shim_port(deep_in_other_words), inputs=IMAGES)
    report = validate(migration, checks=["random-inference"])
    assert report.ok, str(report)
    assert any("differ by rounding only" in check.summary for check in report.checks)
    assert "FAILED" not in html.render([report]) + str(report)


@pytest.mark.parametrize("factor", [0.5**0.5, 0.5**0.5 * 1.000001])
def test_a_factor_may_be_the_float32_of_the_inverse_divisor(factor):
    """As in GELU, where TF1 divides by sqrt(2) and a port multiplies by 1 / sqrt(2)."""

    def tf1(inputs, training):
        return dense(inputs, 3, "in") / 2.0**0.5

    def rounding_more(inputs, training):
        return (dense(inputs, 3, "in") * factor + 100.0) - 100.0

    report = validate(Migration(tf1=tf1, port=shim_port(rounding_more), inputs=ROWS), checks=["random-inference"])
    assert report.ok == (factor == 0.5**0.5), str(report)
    assert ("differ by rounding only" in report.checks[0].summary) == report.ok


@pytest.mark.slow
def test_a_small_change_in_a_deep_network_is_no_rounding():
    report = validate(Migration(tf1=deep, port=shim_port(deep, off=1e-8), inputs=IMAGES))
    assert not report.ok, str(report)


@pytest.mark.slow
def test_half_precision_is_no_rounding():
    def halved(images, training):
        hidden = tf.cast(tf.cast(conv(images, 4, "conv"), tf.float16), tf.float32)
        return tf.reduce_mean(hidden, [1, 2])

    def tf1(images, training):
        return tf.reduce_mean(conv(images, 4, "conv"), [1, 2])

    report = validate(Migration(tf1=tf1, port=shim_port(halved), inputs=IMAGES))
    assert report.verdict == "failed", str(report)


def test_outputs_in_a_different_order_are_no_rounding():
    def two(inputs, training, swapped=False):
        outputs = dense(inputs, 3, "a"), dense(inputs, 3, "b")
        return outputs[::-1] if swapped else outputs

    report = validate(Migration(tf1=two, port=shim_port(two, swapped=True), inputs=ROWS))
    assert report.verdict == "failed", str(report)


def test_an_output_of_one_number_is_no_rounding():
    def total(inputs, training, factor=1.0):
        return tf.reduce_sum(dense(inputs, 3, "a") ** 2) * factor

    report = validate(Migration(tf1=total, port=shim_port(total, factor=1.1), inputs=ROWS))
    assert report.verdict == "failed", str(report)


def test_a_finding_of_a_variable_has_its_name_in_the_port():
    def port():
        return keras.Sequential([keras.layers.Dense(3, kernel_initializer="he_normal", name="head")], name="sequential")

    migration = Migration(tf1=lambda rows, training: dense(rows, 3, "logits"), port=port, inputs=ROWS)
    (finding,) = (each for check in validate(migration).checks for each in check.findings)
    assert (finding.tf1.op, finding.port.op) == ("logits/kernel", "sequential/head/kernel")


@pytest.mark.slow
def test_eager_code_that_computes_something_else_is_no_rounding():
    """In a ``tf.function`` the port is right, so that float64 shows no difference."""

    def program(inputs, training, off=0.0):
        return dense(inputs, 3, "a") * (1.0 + (off if tf.executing_eagerly() else 0.0))

    report = validate(Migration(tf1=program, port=shim_port(program, off=1e-3), inputs=ROWS))
    assert report.verdict == "failed", str(report)


@pytest.mark.slow
def test_a_value_that_differs_in_ops_of_other_types_is_one_finding_for_all_layers():
    """TF1's op has an attribute for the epsilon, and Keras 3 adds it."""

    def tf1(images, training):
        hidden = images
        for number in range(2):
            hidden = conv(hidden, 4, f"conv{number}")
            hidden = v1.layers.batch_normalization(hidden, momentum=0.9, training=training, name=f"norm{number}")
        return tf.reduce_mean(tf.nn.relu(hidden), [1, 2])

    def port():
        images = hidden = keras.Input((9, 9, 3))
        for number in range(2):
            hidden = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv{number}")(hidden)
            hidden = keras.layers.BatchNormalization(momentum=0.9, epsilon=2e-3, name=f"norm{number}")(hidden)
        return keras.Model(images, keras.ops.mean(keras.ops.relu(hidden), (1, 2)))

    with enable_v1_layers():
        (finding,) = validate(Migration(tf1=tf1, port=port, inputs=IMAGES)).findings
    assert finding.title == "epsilon differs: 0.001 (TF1), 0.002 (port)"
    assert finding.count == 2
    assert finding.confirmed == "with TF1's epsilon in all 2 layers, the rest agrees"
    assert finding.remedy == "use 0.001 in the port"


@pytest.mark.slow
def test_another_kind_of_initializer_in_several_layers_is_one_finding():
    def tf1(rows, training):
        hidden = rows
        for units in (7, 5, 3):
            hidden = tf.nn.relu(dense(hidden, units, f"dense{units}"))
        return hidden

    def port():
        layers = [keras.layers.Dense(n, "relu", kernel_initializer="he_normal", name=f"dense{n}") for n in (7, 5, 3)]
        return keras.Sequential(layers)

    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=ROWS)).findings
    assert finding.title == "initializer differs: uniform (TF1), truncated normal (port)"
    assert finding.count == 3


def surplus_bias(inputs, training):
    hidden = tf.matmul(inputs, tf.compat.v1.get_variable("first/kernel", (4, 4)))
    return tf.tanh(tf.matmul(hidden, tf.compat.v1.get_variable("last/kernel", (4, 2))))


def test_a_variable_that_only_the_port_has_fails_variables_match_alone():
    def port():
        first = keras.layers.Dense(4, name="first")  # with a bias
        return keras.Sequential([first, keras.layers.Dense(2, "tanh", use_bias=False, name="last")])

    inputs = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    report = validate(Migration(tf1=surplus_bias, port=port, inputs=inputs))
    assert [check.name for check in report.checks if not check.ok] == ["variables-match"]
    (finding,) = report.findings
    assert finding.title.startswith("variables: only in the port (1): sequential/first/bias: ")
    assert finding.tf1 is None
    assert finding.port.op == "sequential/first/bias"
    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if text.endswith("# with a bias\n"))
    assert finding.port.line.endswith(f"test_findings.py:{line}")


def normalized_in_keras(momentum, rate):
    images = hidden = keras.Input((9, 9, 3))
    for number in range(3):
        hidden = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv{number}")(hidden)
        hidden = keras.layers.BatchNormalization(momentum=momentum, name=f"norm{number}")(hidden)  # momentum
    hidden = keras.layers.Dropout(rate)(keras.layers.Flatten()(hidden))  # rate
    return keras.Model(images, keras.layers.Dense(3, name="logits")(hidden))


def normalized(images, training):
    hidden = images
    for number in range(3):
        hidden = conv(hidden, 4, f"conv{number}")
        hidden = v1.layers.batch_normalization(hidden, momentum=0.9, training=training, name=f"norm{number}")
    hidden = tf.reshape(hidden, (images.shape[0], -1))
    return dense(tf.nn.dropout(hidden, rate=0.5) if training else hidden, 3, "logits")


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_a_momentum_is_one_finding_for_all_layers_also_where_outputs_differ(rate):
    with enable_v1_layers():
        report = validate(Migration(tf1=normalized, port=lambda: normalized_in_keras(0.99, rate), inputs=IMAGES))
    *others, finding = report.findings
    assert [each.title for each in others] == ["dropout rate differs: 0.5 (TF1), 0.3 (port)"] * (rate == 0.3)
    assert finding.title == "momentum differs: 0.9 (TF1), 0.99 (port)"
    assert finding.count == 3
    assert finding.port.line.endswith(f"test_findings.py:{line_with('momentum')}")
    assert finding.confirmed == "the port's updates of the moving averages are 0.1 times TF1's, as these momenta say"


def test_initializers_are_confirmed_by_outputs_that_agree_with_tf1s_values():
    def port():
        return keras.Sequential([keras.layers.Dense(4, kernel_initializer="he_normal", name="a")])

    (finding,) = validate(Migration(tf1=lambda rows, training: dense(rows, 4, "a"), port=port, inputs=ROWS)).findings
    assert finding.kind == "initializers"
    assert finding.confirmed == "with TF1's initial values, the outputs agree"


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_regularizers_are_confirmed_if_they_are_all_that_the_losses_differ_by(scale):
    """An L2 term of the activations, which is no regularizer of a variable, stands beside it."""

    def tf1(rows, training):
        hidden = dense(rows, 4, "a")
        kernel = v1.get_variable("b", (4, 2), regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))
        v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, 0.2 * tf.reduce_mean(tf.square(hidden)))
        return tf.matmul(hidden, kernel)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = keras.layers.Dense(4)
            self.b = keras.layers.Dense(2, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.1))

        def call(self, rows, training=False):
            hidden = self.a(rows)
            self.add_loss(scale * 0.2 * keras.ops.mean(keras.ops.square(hidden)))
            return self.b(hidden)

    names = {"a/kernel": "port/dense/kernel", "a/bias": "port/dense/bias", "b": "port/dense_1/kernel"}
    report = validate(Migration(tf1=tf1, port=Port, inputs=ROWS, name_map=names))
    finding = next(each for each in report.findings if each.kind == "regularizers")
    assert finding.title == "regularizer differs in b: 0.05 sum(w**2) (TF1), 0.1 sum(w**2) (port)"
    assert bool(finding.confirmed) == (scale == 1.0)


@pytest.mark.slow
def test_a_clip_that_only_one_program_has_is_confirmed_before_an_op_that_both_have():
    def model(rows, training, limit=None):
        hidden = dense(rows, 4, "a")
        return tf.exp(hidden if limit is None else tf.clip_by_value(hidden, -limit, limit))

    port = shim_port(model)
    (finding,) = validate(
        Migration(tf1=lambda rows, training: model(rows, training, 0.5), port=port, inputs=ROWS)
    ).findings
    assert finding.title == "only TF1 clips"
    assert finding.confirmed


@pytest.mark.slow
def test_strings_that_only_one_program_lowers_are_found():
    words = np.array([["The", "cat"], ["SAT", "on"], ["the", "Mat"], ["a", "Dog"]])

    def model(texts, training, lowers=True):
        lowered = tf.strings.lower(texts) if lowers else texts
        buckets = tf.strings.to_hash_bucket_fast(lowered, 50)
        return tf.nn.embedding_lookup(v1.get_variable("table", (50, 4)), buckets)

    report = validate(Migration(tf1=model, port=shim_port(model, lowers=False), inputs=words))
    (finding,) = report.findings
    assert finding.title == "only TF1 computes StringLower"
    assert finding.confirmed
    assert finding.tf1.value == ""


@pytest.mark.parametrize("factor", [0.0, np.nan])
def test_outputs_that_are_all_zero_or_nan_prove_nothing(factor):
    def model(rows, training):
        return dense(rows, 4, "a") * factor

    report = validate(Migration(tf1=model, port=shim_port(model), inputs=ROWS))
    assert report.verdict == "inconclusive", str(report)
    not_compared = {check.name for check in report.checks if not check.compared}
    assert not_compared >= {"constant-weights", "random-inference", "random-training", "constant-mode"}


def test_a_last_layer_of_zeros_is_compared_with_distinct_weights():
    def model(rows, training):
        kernel = v1.get_variable("a/kernel", (6, 4), initializer=v1.zeros_initializer())
        return tf.matmul(rows, kernel)

    report = validate(Migration(tf1=model, port=shim_port(model), inputs=ROWS))
    assert report.verdict == "passed", str(report)


@pytest.mark.slow
def test_evidence_is_told_once():
    report = validate(
        Migration(
            tf1=lambda x, training: tf.nn.elu(x @ v1.get_variable("port/kernel", (3, 3))),
            port=lambda: keras.layers.Dense(3, "selu", use_bias=False, name="port"),
            inputs=np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
        )
    )
    failed = [check.name for check in report.checks if not check.ok]
    first, *others = (report.evidence[name] for name in failed)
    assert "TF1 computes       Elu" in first
    assert "activation differs" in first
    for text in others:
        assert text.startswith(f"Diverges as in {failed[0]}")
    assert str(report).count("Identical up to") == 1


def titles_of_one_step(tf1, port):
    train = TrainStep(
        labels=ROWS[:, :4],
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=1,
    )
    report = validate(Migration(tf1=tf1, port=port, inputs=ROWS, train=train))
    return [finding.title for finding in report.findings]


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(False, True), (True, False), (True, True)], ids=["port", "TF1", "both"])
def test_a_stop_of_gradients_is_found_where_outputs_differ_as_well(stops):
    def stopped(hidden, number):
        return tf.stop_gradient(hidden) if stops[number] else hidden

    def tf1(rows, training):
        hidden = dense(rows, 4, "port/first")
        mean, variance = tf.nn.moments(hidden, [0])  # stops a gradient that is 0
        hidden = tf.tanh((hidden - mean) * tf.math.rsqrt(variance + 1.0))
        return hidden + dense(stopped(hidden, 0), 4, "port/second")

    class Port(keras.Model):
        def __init__(self):
            super().__init__(name="port")
            self.first, self.second = (keras.layers.Dense(4, name=name) for name in ("first", "second"))

        def call(self, rows):
            hidden = self.first(rows)
            hidden = hidden - keras.ops.mean(hidden, 0)
            hidden = keras.ops.tanh(hidden / keras.ops.sqrt(keras.ops.var(hidden, 0) + 1.0))
            return 2.0 * (hidden + self.second(stopped(hidden, 1)))

    titles = titles_of_one_step(tf1, Port)
    of = "port/first/bias, port/first/kernel"
    who = {(False, True): "the port", (True, False): "TF1"}.get(stops)
    expected = [] if who is None else [f"only {who} stops gradients of {of} (tf.stop_gradient)"]
    assert [title for title in titles if "gradient" in title] == expected
    assert titles[0] == "only the port multiplies by 2.0"


@pytest.mark.slow
def test_a_network_that_is_used_in_place_of_its_target_stops_no_gradient_that_tf1_does_not_stop():
    def tf1(rows, training):
        kernel = v1.get_variable("kernel", (rows.shape[1], 4))
        target = v1.get_variable("target", (rows.shape[1], 4), trainable=False)
        return tf.tanh(tf.matmul(rows, kernel)) - tf.stop_gradient(tf.tanh(tf.matmul(2.0 * rows, target)))

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(tf.zeros((ROWS.shape[1], 4)), name="kernel")
            self.target = tf.Variable(tf.zeros((ROWS.shape[1], 4)), name="target", trainable=False)

        def __call__(self, rows, training):
            return tf.tanh(rows @ self.kernel) - tf.stop_gradient(tf.tanh(2.0 * rows @ self.kernel))

    titles = titles_of_one_step(tf1, Port)
    assert "MatMul takes different variables: target (TF1), kernel (port)" in titles
    assert not [title for title in titles if "gradients" in title]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.8, 0.3], ids=["keep_prob", "another rate"])
def test_a_dropout_rate_that_differs_is_one_finding(rate):
    def tf1(rows, training):
        hidden = dense(rows, 4, "a")
        return v1.nn.dropout(hidden, keep_prob=0.8) if training else hidden

    def make_port():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="a"), keras.layers.Dropout(rate)])

    (finding,) = validate(Migration(tf1=tf1, port=make_port, inputs=ROWS)).findings
    assert finding.title.endswith(f"dropout rate differs: 0.2 (TF1), {rate} (port)")
    keep_prob = "use the rate 0.2 in the port: keep_prob 0.8 is a rate of 0.2"
    assert finding.remedy == (keep_prob if rate == 0.8 else "use 0.2 in the port")


def labelled(pixels, labels, keep_prob):
    labels = tf.identity(labels, "labels")
    hidden = tf.nn.relu(conv(pixels, 4, "conv"))
    hidden = dense(tf.reshape(hidden, (pixels.shape[0], -1)), 5, "hidden")
    hidden = tf.nn.dropout(hidden, rate=1.0 - keep_prob)
    return cross_entropy(labels, dense(hidden, 3, "logits"))


class Labelled(keras.Model):
    def __init__(self, rate=0.5, axes=(0, 1, 2, 3), reduce=keras.ops.mean):
        super().__init__()
        self.conv = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, activation="relu", name="conv")
        self.hidden = keras.layers.Dense(5, name="hidden")
        self.logits = keras.layers.Dense(3, name="logits")
        self.dropout = keras.layers.Dropout(rate)
        self.axes, self.reduce = axes, reduce

    def call(self, pixels, labels, training=False):
        hidden = keras.ops.transpose(self.conv(pixels), self.axes)  # axes
        hidden = self.hidden(keras.ops.reshape(hidden, (pixels.shape[0], -1)))
        if self.dropout.rate:
            hidden = self.dropout(hidden, training=training)
        losses = keras.losses.sparse_categorical_crossentropy(labels, self.logits(hidden), from_logits=True)
        return self.reduce(losses)


def report_on_labelled(**faults):
    """Return the report on a port of a model that draws in inference, too, and copies an input."""
    return validate(
        Migration(
            tf1=lambda pixels, labels, training: labelled(
                pixels, labels, tf.constant(0.5) if training else tf.ones(())
            ),
            port=lambda: Labelled(**faults),
            inputs=(IMAGES, np.array([0, 1, 2, 0])),
        )
    )


def noise_of_numpy():
    return np.random.default_rng().normal(size=(4, 6)).astype(np.float32)


def test_states_that_are_exchanged_are_one_finding_if_the_port_multiplies_in_a_different_order():
    def cell(x, state, output, *, by_port=False):
        gates = tf.sigmoid(dense(tf.concat([x, output], 1), 3, "gates"))
        kept = state * gates if by_port else gates * state
        return dense(tf.tanh(kept), 2, "out")

    def network(inputs, training, by_port=False):
        states = [tf.tanh(dense(inputs, 3, name)) for name in ("state", "output")]
        return cell(inputs, *(states[::-1] if by_port else states), by_port=by_port)

    port = shim_port(lambda inputs, training: network(inputs, training, by_port=True))
    (finding,) = validate(Migration(tf1=network, port=port, inputs=ROWS), checks=["random-inference"]).findings
    assert finding.title.startswith("two tensors are swapped: ") and finding.confirmed.endswith("the rest agrees")


def test_an_order_of_inputs_in_a_loop_in_python_is_one_finding():
    def network(inputs, training, turned=False):
        hidden = inputs
        for layer in range(3):
            new = tf.tanh(dense(hidden, 2, f"layer{layer}"))
            hidden = tf.concat([new, hidden] if turned else [hidden, new], 1)
        return dense(hidden, 2, "out")

    port = shim_port(lambda inputs, training: network(inputs, training, turned=True))
    (finding,) = validate(Migration(tf1=network, port=port, inputs=ROWS), checks=["random-inference"]).findings
    assert finding.title.startswith("order of the inputs differs: ")
    assert finding.count == 3 and finding.confirmed.endswith("the rest agrees")


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_draws_that_no_scope_controls_are_possible_causes_of_what_has_no_other(weight):
    def network(inputs, training):
        noise = tf.ensure_shape(tf.numpy_function(noise_of_numpy, [], np.float32), (4, 6))
        return dense(inputs, 2, "out") + weight * tf.reduce_sum(noise, 1, keepdims=True)

    report = validate(Migration(tf1=network, port=shim_port(network), inputs=ROWS), checks=["random-inference"])
    assert report.ok is not bool(weight), str(report)
    for finding in report.findings:
        assert finding.title.startswith("another result at PyFunc") and "not known" not in finding.title
        assert [each.partition(":")[0] for each in finding.others] == [
            f"no scope controls np.random.default_rng at {__file__}"
        ]


@pytest.mark.parametrize(
    ("phase", "others"), [("init", ()), ("compute", ("no scope controls np.random.rand at here:1",))]
)
def test_initial_values_that_no_scope_controls_are_no_cause_as_the_port_has_those_of_tf1(phase, others):
    draw = RandomOp(0, None, 0, "np.random.rand", None, "", phase, "here:1")
    finding = Finding("computation", "another result at Mul", fault=Fault.UNEXPLAINED)
    assert _with_uncontrolled(finding, [draw]).others == others


@pytest.mark.parametrize("shape", [(4, 1), (1, 6)])
def test_random_numbers_of_another_shape_are_one_finding(shape):
    def network(inputs, training, noise_shape=None):
        hidden = dense(inputs, 6, "in")
        hidden = tf.nn.dropout(hidden, 0.5, noise_shape=noise_shape) if training else hidden
        return dense(hidden, 2, "out")

    port = shim_port(network, noise_shape=shape)
    report = validate(Migration(tf1=network, port=port, inputs=ROWS), checks=["random-training"])
    (finding,) = report.findings
    assert finding.title == f"shape of random numbers differs: (4, 6) (TF1), {shape} (port)", str(report)
    assert finding.symptom == "random-op"
    assert finding.tf1.line == finding.port.line and finding.port.line.startswith(__file__)


@pytest.mark.slow
@pytest.mark.parametrize("is_sound", [True, False], ids=["alone", "beside a fault"])
def test_a_dropout_with_heads_in_the_batch_axis_is_the_only_finding_of_its_shape(is_sound):
    def network(inputs, training, by_port=False):
        tensors = [dense(inputs, 4, name) for name in ("query", "key", "value")]
        if by_port:  # (batch, heads, length, width)
            tensors = [tf.transpose(tf.reshape(each, (-1, 5, 2, 2)), (0, 2, 1, 3)) for each in tensors]
        else:
            tensors = [tf.concat(tf.split(each, 2, axis=2), 0) for each in tensors]
        query, key, value = tensors
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * 0.5)
        weights = tf.nn.dropout(weights, 0.4) if training else weights
        heads = tf.matmul(weights, value)
        if by_port:
            heads = tf.reshape(tf.transpose(heads, (0, 2, 1, 3)), (-1, 5, 4))
        else:
            heads = tf.concat(tf.split(heads, 2, axis=0), 2)
        hidden = dense(heads, 3, "out") + inputs
        return hidden * 2.0 if by_port and training and not is_sound else hidden

    port = shim_port(lambda inputs, training: network(inputs, training, by_port=True))
    inputs = np.random.RandomState(4).randn(3, 5, 3).astype("float32")
    checks = ["random-training", "constant-mode"]
    first, *others = validate(Migration(tf1=network, port=port, inputs=inputs), checks=checks).findings
    assert first.title == "shape of random numbers differs: (6, 5, 5) (TF1), (3, 2, 5, 5) (port)"
    assert [each.title for each in others] == ([] if is_sound else ["only the port multiplies by 2.0"])


@pytest.mark.slow
def test_a_dropout_that_keeps_everything_is_no_fault_beside_another_one():
    report = report_on_labelled(reduce=keras.ops.sum)
    assert [finding.title for finding in report.findings] == ["reduction differs: Mean (TF1), Sum (port)"], str(report)
    assert report_on_labelled().ok


@pytest.mark.slow
def test_a_dropout_that_the_port_lacks_is_a_fault_beside_another_one():
    report = report_on_labelled(rate=0.0, reduce=keras.ops.sum)
    titles = " ".join(finding.title for finding in report.findings)
    assert "reduction differs: Mean (TF1), Sum (port)" in titles, str(report)
    assert re.search("random op|dropout", titles), str(report)


@pytest.mark.slow
def test_what_only_the_port_does_is_where_tf1_goes_on_and_not_at_another_input():
    first, second = report_on_labelled(axes=(0, 3, 1, 2), reduce=keras.ops.sum).findings
    assert "axes in a different order" in first.title
    assert first.tf1.op.startswith("MatMul") and first.port.line.endswith(f":{line_with('axes')}")
    assert second.title == "reduction differs: Mean (TF1), Sum (port)"


def strided(images, training):
    images = images / 127.5 - 1.0
    for name, size in (("stem", 5), ("body", 3)):
        images = v1.layers.conv2d(images, 4, size, 2, padding="same", use_bias=False, name=name)
        images = v1.layers.batch_normalization(images, epsilon=1e-5, training=training, fused=True, name=f"{name}_bn")
        images = tf.nn.max_pool2d(tf.nn.relu(images), 2, 1, "SAME")
    return tf.reduce_mean(images, (1, 2))


def strided_in_keras(padding):
    inputs = images = keras.layers.Input((9, 9, 3))
    images = keras.layers.ZeroPadding2D(padding)(keras.layers.Rescaling(1 / 127.5, -1)(images))
    for name, size, how in (("stem", 5, "valid"), ("body", 3, "same")):
        convolution = keras.layers.Conv2D(4, size, 2, padding=how, use_bias=False, name=name)
        images = keras.layers.BatchNormalization(name=f"{name}_bn")(convolution(images))  # convolution
        images = keras.layers.MaxPool2D(2, 1, padding="same")(keras.layers.ReLU()(images))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(images))


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, ((1, 3), (3, 1))], ids=["less", "elsewhere"])
def test_a_fault_before_a_normalization_with_a_different_epsilon_ends_there(shift):
    with enable_v1_layers():
        report = validate(Migration(tf1=strided, port=lambda: strided_in_keras(shift), inputs=np.abs(IMAGES) * 90))
    padding, epsilon = report.findings
    assert padding.title.startswith("padding differs: SAME (TF1), VALID after Pad"), str(report)
    assert padding.port.line.endswith(f":{line_with('convolution')}") and padding.confirmed
    assert epsilon.title == "epsilon differs: 1e-05 (TF1), 0.001 (port)" and epsilon.count == 2
    assert epsilon.confirmed.endswith("the rest agrees")


POSITIONS = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)


def embedded(tokens, training):
    table = v1.get_variable("table", (9, 8), initializer=v1.random_normal_initializer(0.0, 0.3))
    hidden = tf.gather(table, tokens) * (1.0 - tf.cast(tf.equal(tokens, 0), tf.float32))[..., None] * 8**0.5
    hidden = hidden + POSITIONS
    hidden = hidden - tf.reduce_mean(hidden, -1, keepdims=True)
    left, right = (dense(tf.reshape(hidden, (-1, 8)), 8, name) for name in ("left", "right"))
    return tf.nn.softmax(left) * tf.tanh(right)


class Embedded(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(9, 8, keras.initializers.RandomNormal(0.0, 0.3), name="table")
        self.left, self.right = keras.layers.Dense(8, name="left"), keras.layers.Dense(8, name="right")

    def call(self, tokens, training=False):
        hidden = self.table(tokens) * 8**0.5  # no mask
        hidden = hidden + np.roll(POSITIONS, 1, axis=1)  # positions
        hidden = hidden - keras.ops.mean(hidden, -1, keepdims=True)
        left, right = (layer(keras.ops.reshape(hidden, (-1, 8))) for layer in (self.left, self.right))
        return keras.ops.softmax(left) * keras.ops.tanh(right)


@pytest.mark.slow
def test_two_faults_one_right_after_the_other_are_two_findings():
    report = validate(Migration(tf1=embedded, port=Embedded, inputs=np.array([[1, 2, 0, 3, 0], [4, 0, 8, 7, 6]])))
    mask, positions = report.findings
    assert mask.title.startswith("only TF1 ") and mask.port.line.endswith(f":{line_with('no mask')}"), str(report)
    assert "constant added differs: the port's array is TF1's, in a different order along axis 1" in positions.title
    assert positions.port.line.endswith(f":{line_with('positions')}") and positions.confirmed.endswith(
        "the rest agrees"
    )


def segmented(images, training):
    small = tf.nn.avg_pool2d(images, 3, 3, "VALID")
    large = v1.image.resize_bilinear(small, (9, 9), align_corners=True)
    hidden = tf.nn.relu6(conv(tf.concat([tf.tanh(images), large], -1), 4, "hidden") * 9.0)
    logits = conv(hidden, 3, "logits")
    return tf.argmax(logits, -1), tf.nn.softmax(logits)


def segmented_in_keras(activation, position_of_images=0):
    images = keras.Input((9, 9, 3))
    small = keras.layers.AveragePooling2D(3)(images)
    large = keras.layers.UpSampling2D(3, interpolation="bilinear")(small)  # corners
    both = [large, large]
    both[position_of_images] = keras.layers.Activation("tanh")(images)
    hidden = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name="hidden")(keras.layers.Concatenate()(both))
    hidden = keras.layers.Activation(activation)(hidden * 9.0)
    logits = keras.layers.Conv2D(3, 3, padding="same", use_bias=False, name="logits")(hidden)
    return keras.Model(
        images, (keras.layers.Lambda(lambda x: keras.ops.argmax(x, -1))(logits), keras.ops.softmax(logits))
    )


@pytest.mark.slow
def test_an_attribute_and_an_order_right_after_it_are_two_findings():
    report = validate(Migration(tf1=segmented, port=lambda: segmented_in_keras("relu6", 1), inputs=IMAGES))
    corners, order = report.findings
    assert corners.title == "alignment of corners in a resize differs: True (TF1), False (port)", str(report)
    assert corners.confirmed and corners.port.line.endswith(f":{line_with('corners')}")
    assert order.title.startswith("order of the inputs differs: ") and order.confirmed.endswith("the rest agrees")


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False], ids=["idle", "absent"])
def test_a_dropout_that_does_not_draw_needs_to_be_told_that_the_port_trains(is_there):
    def dropped_out(inputs, training):
        hidden = dense(inputs, 5, "hidden")
        return tf.nn.sigmoid(dense(tf.nn.dropout(hidden, rate=0.4) if training else hidden, 3, "logits"))

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.logits = (
                keras.layers.Dense(5, name="hidden"),
                keras.layers.Dense(3, "sigmoid", name="logits"),
            )
            self.dropout = keras.layers.Dropout(0.4) if is_there else keras.layers.Identity()

        def call(self, inputs):
            return self.logits(self.dropout(self.hidden(inputs), training=False))

    (finding,) = validate(Migration(tf1=dropped_out, port=Port, inputs=ROWS)).findings
    assert finding.title.startswith("only TF1 has a dropout, or another random op"), str(finding)
    expected = "call the port's dropout in training mode: it has TF1's rate, but draws nothing"
    assert finding.remedy == (expected if is_there else "add this to the port")


def of_weighted_rows(rows, training):
    """The weights are transposed before they are dropped, and the port does not transpose them."""
    values = dense(rows, 5, "values")
    weights = tf.transpose(tf.nn.softmax(dense(rows, 4, "weights")))
    if training:
        weights = tf.nn.dropout(weights, rate=0.25)  # dropped weights
    return tf.tanh(tf.matmul(weights, values, transpose_a=True))


class OfWeightedRows(keras.Model):
    def __init__(self):
        super().__init__()
        self.weigh, self.value = keras.layers.Dense(4, name="weights"), keras.layers.Dense(5, name="values")

    def call(self, rows, training=False):
        return keras.ops.tanh(keras.ops.matmul(keras.ops.softmax(self.weigh(rows)), self.value(rows)))


@pytest.mark.slow
def test_a_dropout_that_the_port_lacks_is_at_its_line_in_tf1():
    report = validate(Migration(tf1=of_weighted_rows, port=OfWeightedRows, inputs=ROWS), checks=["random-training"])
    (finding,) = report.findings
    assert finding.title == "only TF1 has a dropout, or another random op, here", str(report)
    assert finding.tf1.line.endswith(f":{line_with('dropped weights')}")


@pytest.mark.slow
def test_layers_of_one_class_in_blocks_of_one_class_are_one_fault():
    """Their scopes have two numbers each, since the second block has layers with the names of the first."""

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.first = keras.layers.LayerNormalization(epsilon=0.01)
            self.second = keras.layers.LayerNormalization(epsilon=0.01)

        def call(self, rows):
            return self.second(keras.ops.tanh(self.first(rows)))

    class Blocks(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), Block()

        def call(self, rows, training=False):
            return self.second(self.first(rows))

    def tf1(rows, training):
        for block in range(2):
            for norm in range(2):
                mean, variance = tf.nn.moments(rows, [-1], keepdims=True)
                with v1.variable_scope(f"block{block}/norm{norm}"):
                    gamma = v1.get_variable("gamma", (6,), initializer=v1.ones_initializer())
                    beta = v1.get_variable("beta", (6,), initializer=v1.zeros_initializer())
                rows = (rows - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta
                rows = rows if norm else tf.tanh(rows)
        return rows

    report = validate(Migration(tf1=tf1, port=Blocks, inputs=ROWS), checks=["random-inference"])
    (finding,) = report.findings
    assert finding.title == "epsilon differs: 0.001 (TF1), 0.01 (port)" and finding.count == 4, str(report)
    assert finding.confirmed.endswith("the rest agrees")


@pytest.mark.parametrize("centered", [False, True])
def test_a_sum_that_several_ops_take_is_one_fault_where_the_port_leaves_it_out(centered):
    """Keras normalizes in other steps, and three of them take what TF1 adds up.

    Where the rows are centered, the mean of the sum agrees in both programs.
    """

    def tf1(rows, training):
        rows = rows - tf.reduce_mean(rows, -1, keepdims=True) if centered else rows
        rows = rows + dense(rows, 6, "hidden")
        mean = tf.reduce_mean(rows, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(rows - mean), -1, keepdims=True)
        gamma = v1.get_variable("norm/gamma", (6,), initializer=v1.ones_initializer())
        beta = v1.get_variable("norm/beta", (6,), initializer=v1.zeros_initializer())
        return dense(tf.tanh((rows - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta), 2, "logits")

    def port():
        rows = inputs = keras.Input((6,))
        rows = rows - keras.ops.mean(rows, -1, keepdims=True) if centered else rows
        rows = keras.layers.LayerNormalization(name="norm")(keras.layers.Dense(6, name="hidden")(rows))
        return keras.Model(inputs, keras.layers.Dense(2, name="logits")(keras.ops.tanh(rows)))

    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=ROWS), checks=["random-inference"]).findings
    assert finding.title == f"only TF1 adds {'sub' if centered else 'input 0 (rows)'}"
    assert finding.confirmed == "with TF1's value here, the rest agrees"


def test_an_epsilon_and_a_root_that_only_tf1_has_are_one_finding():
    def distance(inputs, training):
        hidden = dense(inputs, 6, "in")
        return dense(tf.square(3.0 - tf.sqrt(tf.square(hidden) + 0.1)), 2, "out")

    def of_squares(inputs, training):
        hidden = dense(inputs, 6, "in")
        return dense((3.0 - hidden**2.0) ** 2.0, 2, "out")

    report = validate(Migration(tf1=distance, port=shim_port(of_squares), inputs=ROWS), checks=["random-inference"])
    (finding,) = report.findings
    assert finding.title == "only TF1 adds 0.1, then takes a square root", str(report)


def test_a_number_from_which_only_tf1_subtracts_is_named_so():
    def modulated(inputs, training, of=lambda shares: 1.0 - shares):
        return dense(of(tf.sigmoid(dense(inputs, 6, "in"))) ** 2.0, 2, "out")

    port = shim_port(modulated, of=tf.identity)
    (finding,) = validate(Migration(tf1=modulated, port=port, inputs=ROWS), checks=["random-inference"]).findings
    assert finding.title == "only TF1 subtracts from 1.0"


def test_a_sum_of_squares_and_its_half_are_named():
    def halved(inputs, training, of=tf.nn.l2_loss):
        hidden = dense(inputs, 6, "in")
        return dense(hidden, 2, "out") + of(hidden)

    port = shim_port(halved, of=lambda hidden: tf.reduce_sum(tf.square(hidden)))
    (finding,) = validate(Migration(tf1=halved, port=port, inputs=ROWS), checks=["random-inference"]).findings
    sums = "half the sum, as tf.nn.l2_loss computes (TF1), the whole sum (port)"
    assert finding.title == f"sum of squares differs: {sums}"
    assert finding.remedy == "divide the sum of squares by 2 in the port"


@pytest.mark.parametrize(
    ("sign", "title"), [(1, "subtracted (TF1), added (port)"), (-1, "added (TF1), subtracted (port)")]
)
def test_a_term_of_the_other_sign_is_named(sign, title):
    def summed(inputs, training, sign=sign):
        hidden, other = dense(inputs, 6, "in"), tf.tanh(dense(inputs, 6, "other"))
        return dense(hidden + other if sign < 0 else hidden - other, 2, "out")

    (finding,) = validate(
        Migration(tf1=summed, port=shim_port(summed, sign=-sign), inputs=ROWS), checks=["random-inference"]
    ).findings
    assert finding.title == f"sign of a term differs: {title}"


def test_rows_that_are_added_in_another_order_are_no_layers_in_another_order():
    names = ("users", "items", "tags")

    def rated(inputs, training, reduced=False):
        rows = [tf.gather(v1.get_variable(name, (7,)), inputs[:, i]) for i, name in enumerate(names)]
        return rows[0] + (rows[1] + tf.reduce_mean(rows[2])) if reduced else (rows[0] + rows[2]) + rows[1]

    inputs = np.random.default_rng(0).integers(0, 7, (5, 3))
    report = validate(
        Migration(tf1=rated, port=shim_port(rated, reduced=True), inputs=inputs), checks=["random-inference"]
    )
    assert report.findings and not any("order" in finding.title for finding in report.findings), str(report)


def test_a_vague_finding_that_may_be_a_named_one_is_a_place_of_it():
    named = Finding("computation", "only TF1 uses input 1 here", Place("Less"), confirmed="the rest agrees")
    vague = Finding(
        "computation", "another result at Mul", Place("Mul"), others=(named.title,), fault=Fault.UNEXPLAINED
    )
    other = replace(vague, title="another result at Sub", tf1=Place("Sub"), others=("only TF1 adds 1.0",))
    assert merged([named, vague, other]) == (named, other)
