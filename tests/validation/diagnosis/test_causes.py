"""Known faults of ports, planted one by one: checks fail, and report the cause and the diverging op."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate
from tests.support.causes import without_lines
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def half_of_squares(weights):
    return 0.01 * tf.nn.l2_loss(weights)


def thrice(weights):
    return 3 * half_of_squares(weights)


def squares(weights):
    return 0.01 * tf.reduce_sum(weights**2)


def network(
    images,
    training,
    *,
    size=6,
    resize=v1.image.resize_bilinear,
    align_corners=False,
    initializer=None,
    transposed=False,
    flipped=False,
    padding="SAME",
    epsilon=1e-3,
    own_epsilon=1e-6,
    activation=tf.nn.relu,
    reduce=tf.reduce_mean,
    rate=0.1,
    regularizer=half_of_squares,
    noise=False,
):
    images = resize(images, (size, size), align_corners=align_corners)
    if noise:
        images = images + 0 * tf.random.normal(images.shape)
    kernel = v1.get_variable("conv/kernel", (3, 3, 3, 4), initializer=initializer, regularizer=regularizer)
    if flipped:
        kernel = kernel[::-1]
    hidden = tf.nn.conv2d(images, kernel, strides=1, padding=padding)
    hidden = v1.nn.fused_batch_norm(hidden, tf.fill([4], 1.5), tf.fill([4], 0.1), epsilon=epsilon)[0]
    hidden = reduce(activation(hidden), (1, 2)) + 0.3
    hidden = hidden * tf.math.rsqrt(tf.reduce_mean(hidden**2, 1, keepdims=True) + own_epsilon)
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    square = v1.get_variable("logits/kernel", (4, 4))
    return tf.tanh(tf.matmul(hidden, square, transpose_b=transposed))


def layers(
    images,
    training,
    *,
    strides=1,
    dilations=1,
    axes=(0, 1, 2, 3),
    data_format="NHWC",
    is_training=None,
    alpha=0.2,
    pool=tf.nn.max_pool2d,
    ksize=2,
    order=None,
    factor=1.0,
    dtype=tf.float32,
    output_dtype=tf.float32,
):
    kernel = v1.get_variable("conv/kernel", (3, 3, 3, 4))
    hidden = tf.nn.conv2d(images, kernel, strides=strides, padding="SAME", dilations=dilations)
    hidden = tf.transpose(hidden[:, :4, :4], axes)
    bias = v1.get_variable("conv/bias", (4,), initializer=v1.random_uniform_initializer())
    hidden = tf.nn.bias_add(hidden, bias, data_format=data_format)
    hidden = v1.layers.batch_normalization(hidden, training=training if is_training is None else is_training, name="bn")
    hidden = pool(tf.nn.leaky_relu(hidden, alpha), ksize, 1, "SAME")
    hidden = tf.cast(tf.cast(hidden, dtype), tf.float32)
    hidden = tf.reshape(hidden if order is None else tf.transpose(hidden, order), (2, 64))
    logits = tf.matmul(hidden, v1.get_variable("logits/kernel", (64, 5))) * factor
    return tf.cast(tf.tanh(logits), output_dtype)


@pytest.fixture(autouse=True)
def _v1_layers():
    with enable_v1_layers():
        yield


RANDOM = {"random-inference", "random-training", "constant-mode"}
ALL = {"constant-weights", *RANDOM}
IN_TRAINING = {"random-training", "constant-mode"}


def checks_that_name(report, failing):
    """Return the first check that fails, and the first that draws in order and fails."""
    failed = {check.name: check for check in report.checks if not check.ok}
    assert failed.keys() == failing, str(report)
    in_order = "random-inference" if "random-inference" in failing else "random-training"
    first = next(iter(failed.values()))
    return [first, failed.get(in_order, first)]


FACTOR = "factor of a regularizer differs: the port's regularization loss is"
FAULTS = [
    # program, what is changed in the port, failing checks, where they part, cause
    (
        network,
        {"align_corners": True},
        ALL,
        "ResizeBilinear",
        "alignment of corners in a resize differs: False (TF1), True (port)",
    ),
    (
        network,
        {"resize": v1.image.resize_nearest_neighbor},
        ALL,
        "ResizeBilinear",
        "resize method differs: ResizeBilinear (TF1), ResizeNearestNeighbor (port)",
    ),
    (
        network,
        {"initializer": v1.zeros_initializer()},
        {"initializers-match"},
        None,
        "initializer differs in conv/kernel: uniform from -0.308607 to 0.308607 (TF1), constant 0 (port)",
    ),
    (
        network,
        {"initializer": v1.glorot_normal_initializer()},
        {"initializers-match"},
        None,
        "initializer differs in conv/kernel: uniform from -0.308607 to 0.308607 (TF1), truncated normal of stddev",
    ),
    (
        network,
        {"initializer": v1.variance_scaling_initializer(4.0, "fan_avg", "uniform")},
        {"initializers-match"},
        None,
        "initializer differs in conv/kernel: uniform from -0.308607 to 0.308607 (TF1), uniform from -0.617213 to",
    ),
    (network, {"transposed": True}, ALL, "MatMul", "transposition of the kernel differs: False (TF1), True (port)"),
    (network, {"flipped": True}, ALL, "Conv2D", "only the port flips an array along axis 0"),
    (network, {"padding": "VALID"}, ALL, "Conv2D", "padding differs: SAME (TF1), VALID (port)"),
    (
        network,
        {"epsilon": 1e-5},
        ALL,
        "FusedBatchNormV3",
        "epsilon differs: 0.001 (TF1), 1e-05 (port)",
    ),
    (network, {"own_epsilon": 1e-2}, ALL, "AddV2", "epsilon differs: 1e-06 (TF1), 0.01 (port)"),
    (network, {"activation": tf.nn.elu}, ALL, "Relu", "activation differs: Relu (TF1), Elu (port)"),
    (network, {"activation": tf.identity}, ALL, "Relu", "the port has no activation where TF1 has Relu"),
    (network, {"reduce": tf.reduce_sum}, ALL, "Mean", "reduction differs: Mean (TF1), Sum (port)"),
    (network, {"rate": 0.4}, IN_TRAINING, "Mul", "dropout rate differs: 0.1 (TF1), 0.4 (port)"),
    (
        network,
        {"rate": 0.9},
        IN_TRAINING,
        "Mul",
        "a keep_prob is used as a rate (or a rate as a keep_prob): dropout rate differs: 0.1 (TF1), 0.9 (port)",
    ),
    (
        network,
        {"regularizer": squares},
        {"regularizers-match"},
        None,
        f"{FACTOR} 2 times TF1's",
    ),
    (
        network,
        {"regularizer": thrice},
        {"regularizers-match"},
        None,
        f"{FACTOR} 3 times TF1's; or a variable is penalized in one program only",
    ),
    (network, {"regularizer": None}, {"regularizers-match"}, None, "only TF1 has a regularizer"),
    (layers, {"strides": 2}, ALL, "Conv2D", "stride differs: [1, 1, 1, 1] (TF1), [1, 2, 2, 1] (port)"),
    (layers, {"dilations": 2}, ALL, "Conv2D", "dilation rate differs: [1, 1, 1, 1] (TF1), [1, 2, 2, 1] (port)"),
    (
        layers,
        {"axes": (0, 2, 1, 3)},
        ALL,
        "Transpose",
        "order of axes differs: TF1's array transposed to (0, 2, 1, 3) is the port's array",
    ),
    (
        layers,
        {"data_format": "NCHW"},
        ALL,
        "BiasAdd",
        "data format (channels first or last) differs: NHWC (TF1), NCHW (port)",
    ),
    (
        layers,
        {"is_training": False},
        IN_TRAINING,
        "FusedBatchNormV3",
        "training mode of a normalization differs: statistics of the batch (TF1), moving averages (port)",
    ),
    (layers, {"alpha": 0.1}, ALL, "LeakyRelu", "slope of the leaky ReLU differs: 0.2 (TF1), 0.1 (port)"),
    (layers, {"pool": tf.nn.avg_pool2d}, ALL, "MaxPool", "pooling method differs: MaxPool (TF1), AvgPool (port)"),
    (
        layers,
        {"ksize": 3},
        ALL,
        "MaxPool",
        "size of the pooling window differs: [1, 2, 2, 1] (TF1), [1, 3, 3, 1] (port)",
    ),
    (layers, {"dtype": tf.float16}, ALL, "Cast", "dtype differs: float32 (TF1), float16 (port)"),
    (layers, {"output_dtype": tf.float64}, ALL, None, "dtype differs: float32 (TF1), float64 (port)"),
    (
        layers,
        {"order": (0, 3, 1, 2)},
        ALL,
        "MatMul",
        "the port flattens an array with its axes in a different order: the arrays agree if the port's is transposed "
        "to (0, 2, 3, 1)",
    ),
    (layers, {"factor": 1.5}, ALL, "Mul", "factor differs: 1.0 (TF1), 1.5 (port)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "changes", "failing", "op", "cause"),
    FAULTS,
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_planted_fault_is_among_the_first_causes(program, changes, failing, op, cause):
    report = validate(Migration(tf1=program, port=shim_port(program, **changes), inputs=IMAGES))
    for found in checks_that_name(report, failing):
        assert any(without_lines(one).startswith(cause) for one in found.causes[:2]), str(report)
        assert found.causes[0] in found.details
        if op is None:
            assert "TF1 and the port part" not in found.summary
        else:
            assert f"({op}) at" in found.summary.partition("first divergence at ")[2], found.summary


@pytest.mark.slow
def test_a_different_order_of_flattening_in_tf1_is_a_cause():
    def transposing(images, training):
        return layers(images, training, order=(0, 3, 1, 2))

    report = validate(Migration(tf1=transposing, port=shim_port(layers), inputs=IMAGES))
    for found in checks_that_name(report, ALL):
        assert "TF1 flattens an array with its axes in a different order" in found.causes[0]


@pytest.mark.parametrize("program", [network, layers])
def test_a_sound_port_has_no_causes(program):
    report = validate(Migration(tf1=program, port=shim_port(program), inputs=IMAGES))
    assert report.ok
    assert not any(check.causes for check in report.checks)


def normalized(images, training):
    hidden = v1.layers.conv2d(images, 4, 3, name="conv")
    hidden = v1.layers.batch_normalization(hidden, training=training, epsilon=1e-5, momentum=0.9, name="bn")
    hidden = v1.layers.dropout(hidden, 0.2, training=training)
    return v1.layers.dense(v1.layers.flatten(hidden), 5, name="logits")


def port_by_layers(epsilon=1e-5, momentum=0.9, initializer="glorot_uniform", bias="zeros", rate=0.2, activation=None):
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, kernel_initializer=initializer, name="conv"),
            keras.layers.BatchNormalization(epsilon=epsilon, momentum=momentum, name="bn"),
            keras.layers.Dropout(rate),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation, bias_initializer=bias, name="logits"),
        ],
        name="port",
    )


def in_port(name):
    return f"port/{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "failing", "op", "cause"),
    [
        # One op of TF1 is a dozen of Keras's, which have no attribute that says it.
        (
            {"epsilon": 1e-3},
            ALL,
            "FusedBatchNormV3",
            "epsilon differs in bn: 1e-05 (TF1), 0.001 (port)",
        ),
        (
            {"initializer": keras.initializers.RandomUniform(-0.3, 0.3)},
            {"initializers-match"},
            None,
            "initializer differs in conv/kernel: uniform from -0.308607 to 0.308607 (TF1), uniform from -0.3 to 0.3",
        ),
        (
            {"bias": "ones"},
            {"initializers-match"},
            None,
            "initializer differs in logits/bias: constant 0 (TF1), constant 1 (port)",
        ),
        ({"rate": 0.5}, IN_TRAINING, "Mul", "dropout rate differs: 0.2 (TF1), 0.5 (port)"),
        # Here it is the port that goes on.
        ({"activation": "softmax"}, ALL, "Softmax", "TF1 has no activation where the port has Softmax"),
        ({"activation": "tanh"}, ALL, "Tanh", "TF1 has no activation where the port has Tanh"),
    ],
    ids=["epsilon", "initializer", "initializer of a bias", "rate", "softmax", "tanh"],
)
def test_a_fault_planted_in_a_keras_layer_is_a_cause(changes, failing, op, cause):
    port = functools.partial(port_by_layers, **changes)
    report = validate(Migration(tf1=normalized, port=port, inputs=IMAGES, name_map=in_port))
    for found in checks_that_name(report, failing):
        assert any(without_lines(one).startswith(cause) for one in found.causes[:2]), str(report)
        assert op is None or f"({op}) at" in found.summary.partition("first divergence at ")[2], found.summary


@pytest.mark.slow
def test_a_momentum_planted_in_a_keras_layer_is_a_cause():
    train = TrainStep(
        labels=np.array([1, 3]),
        tf1_loss=v1.losses.sparse_softmax_cross_entropy,
        port_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    port = functools.partial(port_by_layers, momentum=0.99)
    report = validate(Migration(tf1=normalized, port=port, inputs=IMAGES, name_map=in_port, train=train))
    found = [check for check in report.checks if not check.ok]
    assert [check.name for check in found] == ["random-training", "training-steps"]
    assert {check.causes[0] for check in found} == {"momentum differs: 0.9 (TF1), 0.99 (port)"}


@pytest.mark.slow
def test_a_momentum_is_no_cause_where_outputs_differ():
    port = functools.partial(port_by_layers, epsilon=1e-3, momentum=0.99)
    report = validate(Migration(tf1=normalized, port=port, inputs=IMAGES, name_map=in_port))
    assert all(
        check.causes and not any("momentum" in cause for cause in check.causes)
        for check in (each for each in report.checks if not each.ok)
    )


def amplified(images, training, halves=False, slope=0.2):
    """A network that amplifies rounding to more than the tolerance of outputs."""
    flat, kernel = tf.reshape(images, (2, -1)), v1.get_variable("kernel", (192, 5))
    if halves:
        hidden = tf.matmul(flat[:, :50], kernel[:50]) + tf.matmul(flat[:, 50:], kernel[50:])
    else:
        hidden = tf.matmul(flat, kernel)
    hidden = tf.sin(100.0 * hidden)
    return tf.nn.leaky_relu(hidden, slope)


@pytest.mark.slow
def test_rounding_is_no_fault_and_hides_none():
    rounded, faulty = (shim_port(amplified, halves=True, slope=slope) for slope in (0.2, 0.3))
    assert validate(Migration(tf1=amplified, port=rounded, inputs=IMAGES)).ok
    report = validate(Migration(tf1=amplified, port=faulty, inputs=IMAGES))
    assert not report.ok
    for check in (each for each in report.checks if not each.ok):
        assert len(check.causes) == 1, str(report)
        assert without_lines(check.causes[0]).startswith("slope of the leaky ReLU differs: 0.2 (TF1), 0.3 (port)")
        assert "(LeakyRelu) at" in check.summary


def scaled(inputs, training, factor=1.0, shift=0.0, twice=False, activation=tf.nn.relu):
    hidden = inputs
    for name in ("first", "second"):
        hidden = tf.matmul(hidden, v1.get_variable(name, (3, 3)))
        if factor != 1.0:
            hidden = hidden * factor
        if shift:
            hidden = tf.concat([hidden[:, :2], hidden[:, 2:] + shift], 1)
        if twice:
            hidden = tf.tanh(hidden)
        hidden = activation(hidden)
    return hidden


@pytest.mark.slow_except("a different one before it", "a different one")
@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({"factor": 2.0}, set()),
        ({"shift": 0.5}, set()),
        ({"twice": True}, {"TF1 has no activation where the port has Tanh"}),
        ({"factor": 2.0, "activation": tf.identity}, {"the port has no activation where TF1 has Relu"}),
        ({"activation": tf.tanh}, {"activation differs: Relu (TF1), Tanh (port)"}),
    ],
    ids=["factor", "shift", "a different one before it", "factor, and none", "a different one"],
)
def test_an_activation_after_a_different_fault_is_not_missing(changes, causes):
    inputs = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    report = validate(Migration(tf1=scaled, port=shim_port(scaled, **changes), inputs=inputs))
    assert {check.name for check in report.checks if not check.ok} >= RANDOM
    failed = [check for check in report.checks if not check.ok]
    found = {without_lines(cause) for check in failed for cause in check.causes if "activation" in cause}
    assert found == causes, str(report)
