"""The causes of another computation: each is named by what both programs do, and confirmed by a substitute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, track_tf1_style_variables, validate
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(3, 6, 6, 4)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
SCALES = np.array([1.5, 2.5, 0.25, 3.0], np.float32)


def dense(inputs, units, name):
    return tf.matmul(inputs, v1.get_variable(f"{name}/kernel", (inputs.shape[-1], units)))


def normalized(inputs):
    mean, variance = tf.nn.moments(inputs, [0])
    return (inputs - mean) * tf.math.rsqrt(variance + 1e-3)


def rows(inputs, training, *, scales=SCALES, step=lambda hidden: tf.tanh(normalized(hidden))):
    return dense(tf.nn.sigmoid(step(dense(inputs * scales, 4, "first"))), 2, "last")


def images(inputs, training, *, alpha=0.1, padding="SAME", axis=-1, crop=1):
    hidden = tf.nn.conv2d(inputs, v1.get_variable("squeeze/kernel", (1, 1, 4, 4)), 2, padding)
    hidden = tf.nn.local_response_normalization(hidden, 2, alpha=alpha)
    hidden = tf.nn.softmax(hidden + tf.reduce_mean(hidden, axis, keepdims=True))
    hidden = tf.nn.conv2d(hidden, v1.get_variable("next/kernel", (3, 3, 4, 4)), 1, "SAME")
    return tf.tanh(hidden[:, crop : crop + 2])


def clipped(hidden):
    return tf.minimum(tf.maximum(hidden * 0.3 + 0.4, 0.0), 1.0)


def only_finding(model, inputs, **changes):
    return only_finding_of(model, shim_port(model, **changes), inputs)


def only_finding_of(tf1, port, inputs):
    report = validate(Migration(tf1=tf1, port=port, inputs=inputs))
    assert len(report.findings) == 1, str(report)
    return report.findings[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"scales": SCALES[::-1].copy()}, "factor differs: the port's array is TF1's, reversed along axis 0"),
        ({"scales": SCALES * 2}, "factor differs: the port's array is 2 times TF1's"),
        (
            {"scales": SCALES[[2, 0, 1, 3]]},
            "factor differs: the port's array is TF1's, in a different order along axis 0: 2, 0, 1, 3",
        ),
        (
            {"scales": np.array([1.5, 2.5, 0.5, 3.0], np.float32)},
            "factor differs: 0.25 (TF1), 0.5 (port) in 1 of 4 entries, the first at [2]",
        ),
        (
            {"step": lambda hidden: normalized(tf.tanh(hidden))},
            "order of ops differs: normalization, then Tanh (TF1), Tanh, then normalization (port)",
        ),
        (
            {"step": lambda hidden: clipped(normalized(hidden))},
            "activation differs: Tanh (TF1), Mul 0.3, AddV2 0.4, Maximum 0.0, Minimum 1.0 (port)",
        ),
        (
            {"step": lambda hidden: tf.nn.relu6(normalized(hidden) + 3.0) / 6.0},
            "activation differs: Tanh (TF1), AddV2 3.0, Relu6, RealDiv 6.0 (port)",
        ),
    ],
    ids=["reversed", "scaled", "permuted", "one entry", "order", "clipping", "hard sigmoid"],
)
def test_a_computation_of_rows_is_named(changes, title):
    finding = only_finding(rows, ROWS, **changes)
    assert finding.title == title, str(finding)
    assert finding.confirmed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"alpha": 0.3}, "alpha of the local response normalization differs: 0.1 (TF1), 0.3 (port)"),
        (
            {"alpha": 0.3, "padding": "VALID"},
            "alpha of the local response normalization differs: 0.1 (TF1), 0.3 (port)",
        ),
        ({"axis": 1}, "axis of Mean differs: 3 (TF1), 1 (port)"),
        ({"axis": (1, 2)}, "axis of Mean differs: 3 (TF1), [1 2] (port)"),
        ({"crop": 0}, "slice differs: [:, 1:3] (TF1), [:, 0:2] (port)"),
    ],
    ids=["alpha", "padding of a window of 1", "axis", "two axes", "crop"],
)
def test_a_computation_of_images_is_named(changes, title):
    finding = only_finding(images, IMAGES, **changes)
    assert finding.title == title, str(finding)
    assert finding.confirmed


def convolution(inputs, name, size, stride):
    kernel = v1.get_variable(f"{name}/kernel", (size, size, 4, 4), initializer=v1.glorot_uniform_initializer())
    return tf.nn.conv2d(inputs, kernel, stride, "SAME")


def residual(inputs, training, *, strides=(2, 1)):
    hidden = tf.tanh(convolution(inputs, "stem", 3, 2))
    for name, stride in zip(("one", "two"), strides, strict=True):
        shortcut = convolution(hidden, f"{name}/shortcut", 1, stride)
        hidden = convolution(tf.tanh(convolution(hidden, f"{name}/first", 3, stride)), f"{name}/second", 3, 1)
        hidden = tf.tanh(shortcut + hidden)
    return tf.reduce_mean(hidden, [1, 2])


WIDE = np.random.default_rng(2).normal(size=(2, 16, 16, 4)).astype("f4")


@pytest.mark.slow
def test_a_stride_in_another_unit_is_named_in_both_units_and_nowhere_else():
    report = validate(Migration(tf1=residual, port=shim_port(residual, strides=(1, 2)), inputs=WIDE))
    titles = {finding.title: finding.count for finding in report.findings}
    assert titles == {
        "stride differs: [1, 2, 2, 1] (TF1), [1, 1, 1, 1] (port)": 2,
        "stride differs: [1, 1, 1, 1] (TF1), [1, 2, 2, 1] (port)": 2,  # not in the stem, which has this stride, too
    }
    assert all(finding.confirmed for finding in report.findings)


def subsampled(inputs, training, *, at_the_end=True):
    hidden = shortcut = tf.tanh(convolution(inputs, "stem", 3, 1))
    if at_the_end:  # of the unit
        kernel = v1.get_variable("first/kernel", (3, 3, 4, 4))
        first = tf.nn.conv2d(tf.pad(hidden, [[0, 0], [1, 1], [1, 1], [0, 0]]), kernel, 2, "VALID")
        shortcut = tf.nn.max_pool2d(hidden, 1, 2, "VALID")
    else:
        first = convolution(hidden, "first", 3, 1)
    hidden = tf.tanh(shortcut + convolution(tf.tanh(first), "second", 3, 1))
    return tf.tanh(convolution(hidden, "next", 1, 1 if at_the_end else 2))


@pytest.mark.slow
def test_what_a_substitute_of_another_shape_leads_to_is_still_found():
    report = validate(Migration(tf1=subsampled, port=shim_port(subsampled, at_the_end=False), inputs=WIDE))
    assert [finding.title for finding in report.findings] == [
        "stride differs: [1, 2, 2, 1] (TF1), [1, 1, 1, 1] (port)",
        "only TF1 computes MaxPool",
        "stride differs: [1, 1, 1, 1] (TF1), [1, 2, 2, 1] (port)",
    ]
    assert all(finding.confirmed for finding in report.findings)


def pooled(inputs, training, *, pads=False):
    hidden = tf.tanh(convolution(inputs, "stem", 3, 1))
    if pads:
        hidden = tf.nn.max_pool2d(tf.pad(hidden, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
    else:
        hidden = tf.nn.max_pool2d(hidden, 3, 2, "SAME")
    return tf.tanh(convolution(hidden, "last", 3, 1))


def strided(inputs, training, *, pads=False):
    hidden = tf.tanh(convolution(inputs, "stem", 3, 1))
    if pads:
        kernel = v1.get_variable("next/kernel", (3, 3, 4, 4))
        hidden = tf.nn.conv2d(tf.pad(hidden, [[0, 0], [1, 1], [1, 1], [0, 0]]), kernel, 2, "VALID")
    else:
        hidden = convolution(hidden, "next", 3, 2)
    return tf.tanh(convolution(tf.tanh(hidden), "last", 3, 1))


@pytest.mark.slow_except("False-pooled")
@pytest.mark.parametrize("program", [pooled, strided])
@pytest.mark.parametrize("tf1_pads", [False, True])
def test_padding_by_an_op_of_its_own_is_a_padding(program, tf1_pads):
    def tf1(inputs, training):
        return program(inputs, training, pads=tf1_pads)

    finding = only_finding_of(tf1, shim_port(program, pads=not tf1_pads), WIDE)
    words = ["SAME", "VALID after Pad [[0 0] [1 1] [1 1] [0 0]]"]
    expected = "padding differs: {} (TF1), {} (port)".format(*(words[::-1] if tf1_pads else words))
    assert finding.title == expected, str(finding)
    assert finding.confirmed


def test_a_padding_that_no_window_reaches_is_no_difference():
    report = validate(Migration(tf1=images, port=shim_port(images, padding="VALID"), inputs=IMAGES))
    assert report.ok, str(report)


def line_with(comment):
    """Return ``file:line`` of the line of this file that ends in a comment."""
    with open(__file__, encoding="utf-8") as file:
        number = next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {comment}"))
    return f"test_causes_of_computation.py:{number}"


def batch_norm(inputs, training, offsets=SCALES):
    ones, zeros = v1.ones_initializer(), v1.zeros_initializer()
    gamma = v1.get_variable("bn/gamma", (4,), initializer=ones)
    beta = v1.get_variable("bn/beta", (4,), initializer=zeros)
    averages = [
        v1.get_variable("bn/mean", (4,), initializer=zeros, trainable=False),
        v1.get_variable("bn/variance", (4,), initializer=ones, trainable=False),
    ]
    hidden = inputs - offsets
    statistics = tf.nn.moments(hidden, [0]) if training else averages
    return tf.tanh(tf.nn.batch_normalization(hidden, *statistics, beta, gamma, 1e-3))


class InInference(keras.Model):
    def __init__(self):
        super().__init__()
        self.bn = keras.layers.BatchNormalization()  # made

    def call(self, inputs, training=False):
        hidden = inputs - SCALES
        return keras.ops.tanh(self.bn(hidden, training=False))  # call


@pytest.mark.slow
def test_a_layer_that_is_called_wrongly_has_the_line_of_the_call():
    report = validate(Migration(tf1=batch_norm, port=InInference, inputs=ROWS))
    finding = report.findings[0]
    expected = "training mode of a normalization differs: statistics of the batch (TF1), moving averages (port)"
    assert finding.title == expected, str(report)
    made, called = finding.port.line.split(", called at ")
    assert made.endswith(line_with("made"))
    assert called.endswith(line_with("call"))


def scaled(inputs, training):
    return tf.tanh(dense(inputs * SCALES, 4, "dense"))


def scaled_in_keras():
    inputs = keras.Input((4,))
    hidden = inputs * SCALES[::-1]  # symbolic
    hidden = keras.layers.Dense(4, use_bias=False, name="dense")(hidden)
    return keras.Model(inputs, keras.ops.tanh(hidden))


@pytest.mark.slow
def test_an_op_of_a_functional_model_has_its_own_line():
    report = validate(Migration(tf1=scaled, port=scaled_in_keras, inputs=ROWS))
    finding = report.findings[0]
    assert finding.title == "factor differs: the port's array is TF1's, reversed along axis 0", str(report)
    assert finding.port.line.endswith(line_with("symbolic"))


def multiplied(inputs, training, axis=-1):
    factors = v1.get_variable("factors", (4,), initializer=v1.random_normal_initializer())
    return tf.tanh(tf.nn.relu(inputs) * (factors if axis == -1 else tf.reshape(factors, (1, 4, 1))))


def test_an_operand_along_another_axis_is_named():
    report = validate(Migration(tf1=multiplied, port=shim_port(multiplied, axis=1), inputs=IMAGES[:, :4, :4]))
    finding = report.findings[0]
    expected = "axis of an operand of Mul differs: [-1] in shape (4,) (TF1), [-2] in shape (1, 4, 1) (port)"
    assert finding.title == expected, str(report)


def attention(inputs, training, factor=0.5):
    query, key, value = (dense(inputs, 4, name) for name in ("query", "key", "value"))
    weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * factor)
    return dense(tf.matmul(weights, value), 2, "out")


class Attention(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(4, use_bias=False) for _ in range(3)]
        self.last = keras.layers.Dense(2, use_bias=False)

    def call(self, inputs, training=False):
        query, key, value = (part(inputs) for part in self.parts)
        weights = keras.ops.softmax(keras.ops.matmul(query, keras.ops.transpose(key)) * 0.25)
        return self.last(keras.ops.matmul(weights, value))


@pytest.mark.slow
def test_names_of_variables_are_no_finding_where_a_fault_explains_the_outputs():
    report = validate(Migration(tf1=attention, port=Attention, inputs=ROWS))
    assert [finding.title for finding in report.findings] == ["factor differs: 0.5 (TF1), 0.25 (port)"], str(report)


def looped(inputs, training, runs=4, shift=0):
    _, hidden = tf.while_loop(
        lambda number, _: number < runs, lambda number, each: (number + 1, tf.sin(each) + inputs), [0, tf.cos(inputs)]
    )
    table = v1.get_variable("table", (12, 4), initializer=v1.random_normal_initializer())
    rows = tf.cast(tf.abs(inputs[:, 0]) * 3, tf.int32) + shift
    return dense(tf.tanh(hidden) + tf.nn.embedding_lookup(table, rows), 2, "last")


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, 6])
def test_the_number_of_iterations_is_named(runs):
    finding = only_finding(looped, ROWS, runs=runs)
    assert finding.title == f"upper limit of a comparison differs: 4 (TF1), {runs} (port)", str(finding)
    assert finding.confirmed


class Looked(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(12, 4, "glorot_uniform")
        self.last = keras.layers.Dense(2, use_bias=False)

    def call(self, inputs, training=False):
        rows = keras.ops.cast(keras.ops.abs(inputs[:, 0]) * 3, "int32")
        return self.last(keras.ops.tanh(inputs) + self.table(rows + 1))  # shifted


def looked(inputs, training):
    table = v1.get_variable("table", (12, 4))
    rows = tf.cast(tf.abs(inputs[:, 0]) * 3, tf.int32)
    return dense(tf.tanh(inputs) + tf.nn.embedding_lookup(table, rows), 2, "last")


@pytest.mark.slow
def test_indices_that_are_shifted_are_named_without_what_keras_adds():
    report = validate(Migration(tf1=looked, port=Looked, inputs=ROWS))
    assert report.findings[0].title == "only the port adds 1", str(report)
    assert report.findings[0].port.line.endswith(line_with("shifted"))


LEAKY = {
    "of an op": lambda hidden: tf.nn.leaky_relu(hidden, 0.2),
    "by maximum": lambda hidden: tf.maximum(hidden, 0.2 * hidden),
    "by where": lambda hidden: tf.where(hidden > 0, hidden, 0.2 * hidden),
    "by abs": lambda hidden: 0.5 * (1 + 0.2) * hidden + 0.5 * (1 - 0.2) * tf.abs(hidden),
}


@pytest.mark.slow
@pytest.mark.parametrize("leaky", LEAKY.values(), ids=LEAKY.keys())
def test_the_slope_of_a_leaky_relu_is_named_however_it_is_written(leaky):
    finding = only_finding_of(
        lambda inputs, training: rows(inputs, training, step=leaky),
        shim_port(rows, step=lambda hidden: tf.nn.leaky_relu(hidden, 0.3)),
        ROWS,
    )
    assert finding.title == "slope of the leaky ReLU differs: 0.2 (TF1), 0.3 (port)", str(finding)
    assert finding.confirmed


@pytest.mark.slow
def test_a_leaky_relu_in_place_of_another_activation_has_its_slope():
    finding = only_finding_of(
        lambda inputs, training: rows(inputs, training, step=LEAKY["by maximum"]),
        shim_port(rows, step=tf.nn.elu),
        ROWS,
    )
    assert finding.title == "activation differs: leaky ReLU of slope 0.2 (TF1), Elu (port)", str(finding)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        lambda hidden: tf.maximum(0.2 * hidden, 0.1),
        lambda hidden: tf.maximum(2.0 * hidden, hidden),
        lambda hidden: tf.where(hidden > 0, 0.2 * hidden, hidden),
        lambda hidden: tf.where(hidden > 0.5, hidden, 0.2 * hidden),
    ],
    ids=["a limit", "a greater factor", "above 0", "from 0.5 on"],
)
def test_what_only_looks_like_a_leaky_relu_is_none(step):
    finding = only_finding_of(
        lambda inputs, training: rows(inputs, training, step=step),
        shim_port(rows, step=lambda hidden: tf.nn.leaky_relu(hidden, 0.3)),
        ROWS,
    )
    assert "slope of the leaky ReLU differs" not in finding.title, str(finding)
    assert "leaky ReLU" not in finding.title.partition(" (TF1)")[0], str(finding)


def dropping(inputs, training, *, keep=None):
    """Drop elements where ``keep`` of random numbers is false, in training."""
    hidden = tf.tanh(dense(inputs, 4, "first"))
    if training and keep is not None:
        hidden = hidden * (tf.cast(keep(tf.random.uniform(tf.shape(hidden))), tf.float32) / 0.75)
    elif training:
        hidden = tf.nn.dropout(hidden, 0.25)
    return dense(hidden, 2, "last")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "words"),
    [(lambda u: u < 0.75, "u < 0.75"), (lambda u: tf.greater(0.75, u), "0.75 > u"), (lambda u: u <= 0.75, "u <= 0.75")],
    ids=["less", "the constant first", "less or equal"],
)
def test_a_mask_that_compares_random_numbers_in_another_way_is_one_finding(keep, words):
    def model(inputs, training):
        return dropping(inputs, training, keep=keep)

    finding = only_finding_of(model, shim_port(dropping), ROWS)
    assert finding.title == f"mask of random numbers u differs: {words} (TF1), u >= 0.25 (port)", str(finding)
    assert finding.confirmed
    assert "GreaterEqual" in finding.port.op


def activated_around_a_normalization(inputs, training, *, before=False):
    """Write the dropout by hand if the activation comes after."""
    hidden = dense(inputs, 5, "first")
    hidden = tf.nn.softplus(hidden) if before else hidden
    offset, scale = (v1.get_variable(name, (5,)) for name in ("offset", "scale"))
    hidden = tf.nn.batch_normalization(hidden, *tf.nn.moments(hidden, [0]), offset, scale, 1e-3)
    hidden = hidden if before else tf.nn.softplus(hidden)
    if training and before:
        hidden = tf.nn.dropout(hidden, 0.25)
    elif training:
        hidden = hidden * (tf.floor(tf.random.uniform(tf.shape(hidden)) + 0.75) / 0.75)
    return dense(hidden, 2, "last")


@pytest.mark.slow
def test_an_activation_in_another_place_is_one_finding_in_training_too():
    finding = only_finding(activated_around_a_normalization, ROWS, before=True)
    assert finding.title == "order of ops differs: Softplus is in a different place in the port", str(finding)
    assert finding.checks == ("constant-weights", "random-inference", "random-training", "constant-mode")


@pytest.mark.slow
def test_the_form_of_a_normalization_does_not_hide_the_order_of_ops():
    def expanded(inputs):
        mean, variance = tf.nn.moments(inputs, [0])
        factor = tf.math.rsqrt(variance + 1e-3)
        return inputs * factor - mean * factor

    finding = only_finding(rows, ROWS, step=lambda hidden: expanded(tf.tanh(hidden)))
    title = "order of ops differs: normalization, then Tanh (TF1), Tanh, then normalization (port)"
    assert finding.title == title, str(finding)


def scaled_products(inputs, training, *, before=lambda x: x * 0.5, after=tf.identity):
    products = tf.einsum("id,jd->ij", before(dense(inputs, 4, "first")), inputs)
    return tf.nn.softmax(after(products))


def test_different_factors_in_different_places_are_not_one_factor_in_another_place():
    changes = {"before": tf.identity, "after": lambda x: x * 1.5}
    migration = Migration(tf1=scaled_products, port=shim_port(scaled_products, **changes), inputs=ROWS)
    report = validate(migration, checks=["constant-weights"])
    titles = [finding.title for finding in report.findings]
    assert titles == ["only TF1 multiplies by 0.5", "only the port multiplies by 1.5"], str(report)


def dilated(inputs, training, *, rate=2, padding="SAME", added=0, of_second=False):
    sequences = tf.reshape(inputs, (inputs.shape[0], -1, 4))
    first, second = sequences + 1.0, tf.tanh(sequences)
    taken = second if of_second else first
    taken = tf.pad(taken, [[0, 0], [added, 0], [0, 0]]) if added else taken
    hidden = tf.nn.convolution(taken, v1.get_variable("kernel", (3, 4, 5)), padding=padding, dilations=rate)
    others = tf.nn.conv1d(tf.concat([first, second], -1), v1.get_variable("others", (1, 8, 5)), 1, "SAME")
    return tf.tanh(tf.reduce_max(hidden, 1) + tf.reduce_mean(others, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1", "port", "title"),
    [
        ({}, {"rate": 1}, "dilation rate differs: [1, 1, 2, 1] (TF1), [1, 1, 1, 1] (port)"),
        ({"rate": 1}, {}, "dilation rate differs: [1, 1, 1, 1] (TF1), [1, 1, 2, 1] (port)"),
        ({}, {"rate": 3}, "dilation rate differs: [1, 1, 2, 1] (TF1), [1, 1, 3, 1] (port)"),
        ({}, {"padding": "VALID"}, "padding differs: SAME (TF1), VALID (port)"),
        ({}, {"of_second": True}, "Conv2D takes different tensors: add (TF1), Tanh (port)"),
        (
            {"padding": "VALID", "added": 4},
            {},
            "padding differs: VALID after Pad [[0 0] [4 0] [0 0]] (TF1), SAME (port)",
        ),
        (
            {"padding": "VALID", "added": 4},
            {"padding": "VALID", "added": 8, "rate": 4},
            "dilation rate differs: [1, 1, 2, 1] (TF1), [1, 1, 4, 1] (port)",
        ),
    ],
    ids=["none", "only in the port", "another rate", "valid", "input", "causal", "causal with another rate"],
)
def test_a_dilated_convolution_is_one_op(tf1, port, title):
    def model(inputs, training):
        return dilated(inputs, training, **tf1)

    finding = only_finding_of(model, shim_port(dilated, **port), IMAGES)
    assert finding.title == title, str(finding)
    assert finding.confirmed


def twins(inputs, training, *, of_second="second"):
    """Two layers of one shape, such as a network and its target, of which a port may use one in the other's place."""
    flat = tf.reshape(inputs, (inputs.shape[0], -1))
    kernels = {name: v1.get_variable(name, (flat.shape[1], 3)) for name in ("first", "second")}
    return tf.matmul(flat, kernels["first"]), tf.tanh(tf.matmul(2.0 * flat, kernels[of_second]))


@pytest.mark.slow
def test_a_variable_that_is_used_in_place_of_another_one_is_named():
    finding = only_finding(twins, IMAGES, of_second="first")
    assert finding.title == "MatMul takes different variables: second (TF1), first (port)", str(finding)
    assert finding.remedy == "use the port's counterpart of second here"


def causal(inputs, training, *, padding="VALID"):
    """Two convolutions of one sequence that is padded before its first step; the port pads one of them otherwise."""
    sequences = tf.reshape(inputs, (inputs.shape[0], -1, 4))
    padded = tf.pad(sequences, [[0, 0], [2, 0], [0, 0]])
    gate = tf.nn.conv1d(padded, v1.get_variable("gate", (3, 4, 5)), 1, "VALID")
    kernel = v1.get_variable("kernel", (3, 4, 5))
    hidden = tf.nn.conv1d(sequences if padding == "SAME" else padded, kernel, 1, padding)
    return tf.sigmoid(gate) * tf.tanh(hidden)


@pytest.mark.slow
def test_padding_that_is_shared_with_another_convolution_is_a_padding():
    finding = only_finding(causal, IMAGES, padding="SAME")
    assert finding.title == "padding differs: VALID after Pad [[0 0] [2 0] [0 0]] (TF1), SAME (port)", str(finding)
    assert finding.remedy == 'pad with 2 steps before the first one, as padding="causal" does'


def activated(inputs, training, *, step=tf.nn.silu):
    return dense(step(dense(step(dense(inputs, 5, "first")), 5, "second")), 2, "last")


@pytest.mark.slow
def test_a_number_in_a_gelu_does_not_stand_for_the_sigmoid_of_a_silu():
    """If the port's 0.5 gets TF1's sigmoid of the input, what is left of the GELU differs once more."""

    def gelu(hidden):
        return 0.5 * hidden * (1 + tf.math.erf(hidden / 2**0.5))

    finding = only_finding(activated, ROWS, step=gelu)
    assert finding.title == "activation differs: SiLU (TF1), GELU with erf (port)", str(finding)


def moved(inputs, training, *, step=tf.identity):
    hidden = tf.nn.conv2d(inputs, v1.get_variable("first/kernel", (3, 3, 4, 4)), 1, "SAME")
    hidden = tf.tanh(step(hidden))
    return tf.nn.elu(tf.nn.conv2d(hidden, v1.get_variable("last/kernel", (3, 3, 4, 5)), 1, "SAME")[:, 1:])


def transposed(hidden):
    return tf.transpose(hidden, (0, 2, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1", "port", "title", "remedy"),
    [
        (
            tf.identity,
            transposed,
            "order of axes differs: TF1's array transposed to (0, 2, 1, 3) is the port's array",
            "leave out the transposition in the port",
        ),
        (
            transposed,
            tf.identity,
            "order of axes differs: TF1's array transposed to (0, 2, 1, 3) is the port's array",
            "transpose the port's array to (0, 2, 1, 3)",
        ),
        (
            lambda hidden: hidden[:, ::-1],
            tf.identity,
            "only TF1 flips an array along axis 1",
            "add this to the port",
        ),
        (
            lambda hidden: tf.nn.softmax(hidden, 1),
            tf.nn.softmax,
            "axis of Softmax differs: 1 (TF1), 3 (port)",
            "compute Softmax along TF1's axis",
        ),
        (
            lambda hidden: tf.pad(hidden, [[0, 0], [1, 1], [0, 0], [0, 0]], "REFLECT"),
            lambda hidden: tf.pad(hidden, [[0, 0], [1, 1], [0, 0], [0, 0]]),
            "mode of the padding differs: REFLECT (TF1), CONSTANT (port)",
            "use REFLECT in the port",
        ),
    ],
    ids=["transposed in the port", "transposed in TF1", "flipped", "softmax", "padded"],
)
def test_what_moves_or_adds_elements_is_named_and_not_the_activation_after_it(tf1, port, title, remedy):
    def model(inputs, training):
        return moved(inputs, training, step=tf1)

    finding = only_finding_of(model, shim_port(moved, step=port), IMAGES)
    assert (finding.title, finding.remedy) == (title, remedy), str(finding)


def dropped(inputs, training, *, after=False):
    """Two layers, each with a dropout before or after its product."""

    def drop(hidden):
        return tf.nn.dropout(hidden, 0.25) if training else hidden

    hidden = inputs
    for units, name in ((7, "first"), (5, "last")):
        hidden = drop(dense(hidden, units, name)) if after else dense(drop(hidden), units, name)
        hidden = tf.tanh(hidden)
    return hidden


@pytest.mark.slow
def test_a_dropout_in_another_place_is_one_finding():
    finding = only_finding(dropped, ROWS, after=True)
    title = "order of ops differs: a dropout, or another random op, is in a different place in the port"
    assert (finding.title, finding.remedy) == (title, "move the dropout to the place that it has in TF1"), str(finding)


def read(inputs, training):
    """A read of a memory by a query, in products and sums."""
    memory = inputs[:, :, 0]
    query = dense(memory[:, 0], 4, "query")
    weights = tf.nn.softmax(tf.reduce_sum(memory * query[:, tf.newaxis], 2))
    return dense(tf.reduce_sum(memory * weights[..., tf.newaxis], 1), 2, "last")


def read_by_einsum(inputs, training, *, step=tf.nn.softmax, order=(0, 1, 2)):
    memory = tf.transpose(inputs[:, :, 0], order)
    query = dense(memory[:, 0], 4, "query")
    weights = step(tf.einsum("bme,be->bm", memory, query))
    return dense(tf.einsum("bm,bme->be", weights, memory), 2, "last")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "title"),
    [
        (lambda scores: tf.nn.softmax(scores / 3.0), "only the port divides by 3.0"),
        (lambda scores: tf.nn.softmax(scores, 0), "axis of Softmax differs: 1 (TF1), 0 (port)"),
        (tf.identity, "the port has no activation where TF1 has Softmax"),
    ],
    ids=["scaled", "along another axis", "no activation"],
)
def test_an_einsum_counts_as_the_products_and_sums_of_tf1(step, title):
    finding = only_finding_of(read, shim_port(read_by_einsum, step=step), IMAGES)
    assert finding.title == title, str(finding)


def weighted(inputs, training, *, axis=1, more=(..., tf.newaxis)):
    hidden = tf.abs(dense(inputs[:, 0, :, 0], 6, "first"))
    weights = tf.nn.softmax(tf.zeros_like(hidden), axis)
    return tf.tanh(tf.reshape(hidden[more] * weights[more], (-1, 6)))


@pytest.mark.slow
def test_operands_that_both_have_one_more_axis_are_along_the_same_axes():
    finding = only_finding(weighted, IMAGES, axis=0, more=(...,))
    assert not [title for title in (finding.title, *finding.others) if "axis of an operand" in title], str(finding)


def squashed(inputs, training, *, order=(0, 1, 2, 3)):
    """Rows of all pixels, each used twice."""
    hidden = tf.nn.conv2d(inputs, v1.get_variable("first/kernel", (1, 1, 4, 4)), 1, "SAME")
    rows = tf.reshape(tf.transpose(hidden, order) if order[1] == 3 else hidden, (-1, 12, 12))
    return dense(rows / tf.sqrt(tf.reduce_sum(rows**2, 2, keepdims=True)), 2, "last")


@pytest.mark.slow
def test_axes_that_are_flattened_in_another_order_are_named_where_several_ops_take_them():
    finding = only_finding(squashed, IMAGES, order=(0, 3, 1, 2))
    title = (
        "the port flattens an array with its axes in a different order: the arrays agree if the port's is transposed "
        "to (0, 2, 3, 1)"
    )
    assert finding.title == title, str(finding)
    assert finding.remedy == "transpose the array to (0, 2, 3, 1) in the port before the flatten"
    assert finding.confirmed == "with TF1's value here, the rest agrees"


def refined(inputs, training, *, runs=4):
    """A state that the same layer refines again and again, and that two layers read."""
    kernel, hidden = v1.get_variable("kernel", (4, 4)), inputs
    for _ in range(runs):
        hidden = tf.sin(tf.matmul(hidden, kernel)) + inputs
    return dense(hidden, 2, "last") * dense(hidden, 2, "gate")


@pytest.mark.slow
@pytest.mark.parametrize("runs", [2, 3, 5, 6])
def test_the_number_of_iterations_in_python_is_named(runs):
    finding = only_finding(refined, ROWS, runs=runs)
    assert finding.title == f"number of iterations of a loop in Python differs: 4 (TF1), {runs} (port)", str(finding)
    assert finding.remedy == "run the loop 4 times in the port"
    assert finding.confirmed == "with TF1's value here, the rest agrees"


def masked(inputs, mask, training, *, by=tf.multiply):
    return dense(by(tf.tanh(dense(inputs, 4, "first")), mask), 2, "last")


@pytest.mark.slow
def test_an_input_that_one_program_does_not_use_has_its_name():
    def ignoring(hidden, mask):
        return hidden * tf.cast(hidden > 0.1, tf.float32)

    report = validate(Migration(tf1=masked, port=shim_port(masked, by=ignoring), inputs=(ROWS, np.abs(ROWS))))
    assert "only TF1 uses input 1 (mask) here" in [report.findings[0].title, *report.findings[0].others], str(report)


def highway(inputs, training, *, carries=False, layers=1):
    """Layers that share their weights, each with a gate between what it computes and what it takes."""
    hidden = inputs
    for _ in range(layers):
        with v1.variable_scope("layer", reuse=v1.AUTO_REUSE):
            gate, new = tf.sigmoid(dense(hidden, 4, "gate")), tf.tanh(dense(hidden, 4, "new"))
        first, second = (hidden, new) if carries else (new, hidden)
        hidden = gate * first + (1.0 - gate) * second
    return dense(hidden, 2, "last")


@pytest.mark.slow
def test_another_number_in_a_logarithm_is_not_said_to_be_added_in_one_program():
    def logarithm(inputs, training, added=None):
        inputs = tf.abs(inputs)
        return dense(tf.math.log1p(inputs) if added is None else tf.math.log(inputs + added), 2, "last")

    finding = only_finding_of(logarithm, shim_port(logarithm, added=0.001), ROWS)
    assert finding.title == "what is computed differs: Log1p (TF1), AddV2, Log (port)", finding.title


def test_inputs_in_a_dict_have_the_names_of_their_keys():
    def crossed(features, training, exchanged=False):
        first, second = features["user"], features["item"]
        first, second = (second, first) if exchanged else (first, second)
        return dense(3.0 * first + second, 2, "last")

    finding = only_finding_of(crossed, shim_port(crossed, exchanged=True), {"user": ROWS, "item": ROWS[::-1] + 1.0})
    assert "input 0 (features['item'])" in finding.title and "input 1 (features['user'])" in finding.title


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 3])
def test_a_gate_the_other_way_round_is_one_finding(layers):
    def tf1(inputs, training):
        return highway(inputs, training, layers=layers)

    finding = only_finding_of(tf1, shim_port(highway, carries=True, layers=layers), ROWS)
    assert finding.title == "two tensors are swapped: layer/Tanh and input 0 (inputs)", str(finding)
    assert (finding.remedy, finding.confirmed) == (
        "exchange the two in the port",
        "with the two exchanged, the rest agrees",
    )


def read_twice(inputs, training, *, axis=2, by_einsum=False):
    """Slots that read a memory by weights which the slots of a first, uniform reading refine."""
    memory = inputs[:, :, 0]  # of shape (batch, 5, 3)
    slots = tf.stack([dense(memory, 4, f"slot_{number}") for number in range(2)], 2)
    scores = tf.zeros_like(slots[..., 0])
    for _ in range(2):
        weights = tf.nn.softmax(scores, axis)
        if by_einsum:
            read = tf.einsum("bms,bmse->bse", weights, slots)
            scores = scores + tf.einsum("bse,bmse->bms", read, slots)
        else:
            read = tf.reduce_sum(weights[..., tf.newaxis] * slots, 1, keepdims=True)
            scores = scores + tf.reduce_sum(read * slots, -1)
    return dense(read if by_einsum else read[:, 0], 2, "last")


@pytest.mark.slow
def test_the_axis_of_a_softmax_in_a_loop_is_named_though_the_first_one_is_uniform():
    finding = only_finding_of(read_twice, shim_port(read_twice, axis=1, by_einsum=True), IMAGES)
    assert finding.title == "axis of Softmax differs: 2 (TF1), 1 (port)", str(finding)
    assert finding.remedy == "compute Softmax along TF1's axis"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_tf1", "of_port", "title"),
    [
        (
            lambda rows: rows / 12.0,
            keras.layers.Normalization(mean=0.0, variance=12.0),
            "divisor differs: 12.0 (TF1), ",
        ),
        (
            lambda rows: tf.tanh(2 * rows),
            lambda rows: 2 * tf.tanh(rows),
            "order of ops differs: Mul, then Tanh (TF1), ",
        ),
    ],
    ids=["number", "order"],
)
def test_a_fault_is_one_finding_where_the_port_adds_up_what_follows_in_a_different_order(of_tf1, of_port, title):
    def parts(inputs):
        return [dense(each, 1, name) for each, name in zip(inputs, ("deep", "wide", "last"), strict=True)]

    def tf1(first, second, third, training):
        deep, wide, last = parts([of_tf1(first), second, third])
        return deep + (tf.add_n([wide, last]) + v1.get_variable("bias", (1,)))

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, first, second, third, training=False):
            deep, wide, last = parts([of_port(first), second, third])
            return (deep + wide) + (last + v1.get_variable("bias", (1,)))

    finding = only_finding_of(tf1, Port, [ROWS[:, :1], ROWS[::-1].copy(), ROWS * 2])
    assert finding.title.startswith(title), str(finding)
    assert finding.confirmed.endswith("the rest agrees")


def test_a_term_that_only_tf1_adds_twice_does_not_end_the_search():
    def tf1(first, second, training):
        term = dense(first, 1, "term")
        return (term + term) + dense(second, 1, "other")

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, first, second, training=False):
            term = dense(first, 1, "term")
            return (term + dense(second, 1, "other")) + tf.sin(term)

    report = validate(Migration(tf1=tf1, port=Port, inputs=[ROWS, ROWS[::-1].copy()]), checks=["constant-weights"])
    assert report.findings and all(finding.confirmed for finding in report.findings), str(report)


def chosen_by(inputs, training, *, chooser):
    def values(name):
        return dense(tf.nn.relu(dense(inputs, 4, f"{name}/hidden")), 3, f"{name}/out")

    online, target = values("online"), values("target")
    best = tf.one_hot(tf.argmax({"online": online, "target": target}[chooser], 1), 3)
    return tf.reduce_sum(best * target, 1)


@pytest.mark.slow
def test_a_tensor_that_the_port_alone_takes_in_place_of_one_that_it_does_not_compute():
    def model(inputs, training):
        return chosen_by(inputs, training, chooser="online")

    finding = only_finding_of(model, shim_port(chosen_by, chooser="target"), ROWS)
    title = "ArgMax takes different tensors: MatMul_1 (TF1), MatMul_3 (port)"
    assert finding.title == title, str(finding)
    assert finding.confirmed == "with TF1's value here, the rest agrees"
