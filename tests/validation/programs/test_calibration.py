"""Distinct weights are calibrated: activations get inputs that exercise them, in networks of any depth and form."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, Tolerance, track_tf1_style_variables, validate
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.reference import DISTINCT_TRAINING, DISTINCT_WEIGHTS, Reference
from tests.support.reports import failed

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(8, 10)).astype(np.float32)
IMAGES = RNG.random((2, 8, 8, 3), dtype=np.float32)
TOKENS = RNG.integers(0, 30, (4, 6))
SMALL = v1.truncated_normal_initializer(stddev=0.02)


def dense(x, units, name, initializer=SMALL):
    kernel = v1.get_variable(f"{name}/kernel", (x.shape[-1], units), initializer=initializer)
    bias = v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())
    return tf.tensordot(x, kernel, 1) + bias


def gelu(x):
    return 0.5 * x * (1 + tf.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3)))


def gelu_of_erf(x):
    return 0.5 * x * (1 + tf.math.erf(x / np.float32(np.sqrt(2))))


def migration_of(program, inputs, tf1, port, **arguments):
    """Return a migration of a program that takes an activation, and of a port with a different one."""

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training, port)

    return Migration(tf1=lambda x, training: program(x, training, tf1), port=Port, inputs=inputs, **arguments)


def encoder(tokens, training, activation):
    """A block of BERT, with its standard deviation of 0.02."""
    hidden = tf.gather(v1.get_variable("embeddings", (30, 16), initializer=SMALL), tokens)
    query, key, value = (dense(hidden, 16, name) for name in ("query", "key", "value"))
    hidden += tf.nn.softmax(query @ tf.linalg.matrix_transpose(key) / 4.0) @ value
    return hidden + dense(activation(dense(hidden, 64, "intermediate")), 16, "output")


@pytest.mark.slow
@pytest.mark.parametrize("tolerances", [[], [Tolerance()]])
def test_gelu_by_erf_in_place_of_tanh_is_found(tolerances):
    faulty = validate(migration_of(encoder, TOKENS, gelu, gelu_of_erf, tolerances=tolerances))
    assert {"constant-weights", "random-training"} <= failed(faulty), str(faulty)
    assert not {"random-inference", "constant-mode"} & failed(faulty), "initial weights show this fault, too"
    sound = validate(migration_of(encoder, TOKENS, gelu, gelu, tolerances=tolerances))
    assert sound.ok, str(sound)


def test_a_fault_behind_a_dead_relu_is_found():
    """Initial weights are so small that no input of the relu is positive."""

    def program(x, training, activation):
        hidden = tf.nn.relu(dense(x, 16, "hidden") - 0.5)
        return dense(activation(hidden), 3, "head")

    report = validate(migration_of(program, VECTORS, tf.identity, tf.tanh))
    assert failed(report) == {"constant-weights", "random-training"}, str(report)


@pytest.mark.slow
def test_an_activation_in_training_only_is_found():
    def program(x, training, activation):
        hidden = dense(x, 16, "hidden")
        return dense(activation(hidden) if training else tf.nn.relu(hidden), 3, "head")

    faulty = validate(migration_of(program, VECTORS, gelu, gelu_of_erf))
    assert failed(faulty) == {"random-training"}, str(faulty)
    assert faulty.checks[6].summary.startswith("distinct weights: outputs differ")


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_updates_of_moving_averages_are_compared_in_training(momentum):
    def program(x, training, momentum):
        hidden = dense(x, 16, "hidden")
        mean = v1.get_variable("mean", (16,), initializer=v1.zeros_initializer(), trainable=False)
        if training:
            batch_mean = tf.reduce_mean(hidden, 0)
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, mean.assign(momentum * mean + (1 - momentum) * batch_mean))
        return tf.nn.dropout(hidden - (batch_mean if training else mean), 0.5 if training else 0.0)

    report = validate(migration_of(program, VECTORS, 0.9, momentum))
    assert ("random-training" in failed(report)) == (momentum != 0.9), str(report)
    assert "variables that the call changes" in report.checks[6].summary


def test_an_update_that_only_tf1s_training_code_runs_is_not_missed_in_tf1():
    def program(x, training, updates):
        mean = v1.get_variable("mean", (10,), initializer=v1.zeros_initializer(), trainable=False)
        if training and updates:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0)))
        return tf.tanh(x) if training else tf.tanh(x - mean)

    assert validate(migration_of(program, VECTORS, False, True)).ok
    assert failed(validate(migration_of(program, VECTORS, True, False))) == {"random-training"}


@pytest.mark.parametrize(("momentum", "ok"), [(0.9, True), (0.99, False)])
def test_the_variance_of_a_sample_is_no_fault(momentum, ok):
    """TF1's fused batch normalization averages it, and no batch normalization of Keras 3 can."""

    def program(x, training):
        scale, offset, mean, variance = (
            v1.get_variable(f"bn/{name}", (8,), initializer=initializer, trainable=trainable)
            for name, initializer, trainable in (
                ("gamma", v1.ones_initializer(), True),
                ("beta", v1.zeros_initializer(), True),
                ("moving_mean", v1.zeros_initializer(), False),
                ("moving_variance", v1.ones_initializer(), False),
            )
        )
        x = tf.nn.conv2d(x, v1.get_variable("conv/kernel", (3, 3, 3, 8), initializer=SMALL), 2, "SAME")
        if not training:
            return tf.nn.relu(v1.nn.fused_batch_norm(x, scale, offset, mean, variance, 1e-3, is_training=False)[0])
        outputs, batch_mean, batch_variance = v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-3)
        for average, value in ((mean, batch_mean), (variance, batch_variance)):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign(0.9 * average + 0.1 * value))
        return tf.nn.relu(outputs)

    def port():
        layers = [
            keras.layers.Conv2D(8, 3, 2, "same", use_bias=False, kernel_initializer=small(), name="conv"),
            keras.layers.BatchNormalization(momentum=momentum, name="bn"),
            keras.layers.ReLU(),
        ]
        return keras.Sequential(layers, name="port")

    report = validate(Migration(tf1=program, port=port, inputs=IMAGES, name_map="port/{}".format))
    assert ("random-training" not in failed(report)) == ok, str(report)
    assert "1 moving variance compared as of the batch (n): TF1 averages the variance of a" in report.checks[6].summary


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (0.985, False)])
def test_a_moving_variance_that_is_too_small_is_no_sample_variance(factor, ok):
    def program(x, training, factor=1.0):
        mean = v1.get_variable("bn/mean", (8,), initializer=v1.zeros_initializer(), trainable=False)
        variance = v1.get_variable("bn/variance", (8,), initializer=v1.ones_initializer(), trainable=False)
        x = tf.nn.conv2d(x, v1.get_variable("conv/kernel", (3, 3, 3, 8), initializer=SMALL), 2, "SAME")
        if not training:
            return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)
        of_batch = tf.nn.moments(x, [0, 1, 2])
        for average, value in ((mean, of_batch[0]), (variance, factor * of_batch[1])):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign(0.9 * average + 0.1 * value))
        return tf.nn.batch_normalization(x, *of_batch, None, None, 1e-3)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training, factor)

    report = validate(Migration(tf1=program, port=Port, inputs=IMAGES))
    assert ("random-training" not in failed(report)) == ok, str(report)


def small():
    return keras.initializers.TruncatedNormal(stddev=0.02)


def test_a_tf_function_in_the_port_draws_what_tf1_draws():
    def program(x, training):
        hidden = dense(x, 16, "hidden")
        return tf.nn.dropout(hidden, 0.5) if training else hidden

    class Port(keras.layers.Layer):
        @tf.function
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training)

    report = validate(Migration(tf1=program, port=Port, inputs=VECTORS))
    assert report.ok, str(report)


@pytest.mark.slow
def test_variables_that_exist_in_training_only_get_distinct_weights():
    def program(x, training, activation):
        hidden = tf.nn.relu(dense(x, 16, "hidden"))
        return dense(activation(dense(hidden, 8, "auxiliary")) if training else hidden, 3, f"head_{training}")

    sound = validate(migration_of(program, VECTORS, gelu, gelu))
    assert "distinct weights: outputs identical" in sound.checks[4].summary
    assert "random-training" in failed(validate(migration_of(program, VECTORS, gelu, gelu_of_erf)))


def outcome_of(program, inputs, config=DISTINCT_WEIGHTS):
    return Reference(Migration(tf1=program, port=lambda: program, inputs=inputs)).outcome(config)


def rms(array):
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


@pytest.mark.slow
@pytest.mark.parametrize("activation", [tf.nn.relu, tf.tanh, tf.nn.swish, tf.sigmoid, gelu], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("stddev", "training"), [(1e-3, False), (10.0, True)])
def test_fifty_layers_neither_explode_nor_vanish(activation, stddev, training):
    def program(x, training):
        layers = [x]
        for layer in range(50):
            hidden = dense(layers[-1], 24, f"layer_{layer}", v1.random_normal_initializer(0, stddev))
            layers.append(activation(hidden))
        return layers[1:]

    outcome = outcome_of(program, VECTORS, DISTINCT_TRAINING if training else DISTINCT_WEIGHTS)
    sizes = [rms(output) for output in outcome.outputs]
    assert min(sizes) > 0.15 and max(sizes) < 9, sizes
    assert len(outcome.activations) >= 50
    assert not any(each.flaw for each in outcome.activations)


def convolutions(x, training):
    w = v1.get_variable("w", (3, 3, 3, 8), initializer=SMALL)
    depthwise = v1.get_variable("depthwise", (3, 3, 8, 1), initializer=SMALL)
    transposed = v1.get_variable("transposed", (3, 3, 4, 8), initializer=SMALL)
    first = tf.nn.conv2d(x, w, 1, "SAME")
    second = tf.nn.depthwise_conv2d(tf.tanh(first), depthwise, (1, 1, 1, 1), "SAME")
    return first, second, tf.nn.conv2d_transpose(tf.tanh(second), transposed, (2, 8, 8, 4), 1)


def embeddings(tokens, training):
    table = v1.get_variable("table", (30, 16), initializer=SMALL)
    positions = v1.get_variable("positions", (10, 16), initializer=SMALL)
    hidden = tf.nn.embedding_lookup(table, tokens)
    return hidden, hidden + positions[:6] - hidden


def attention(x, training):
    """A vector that is multiplied with and summed, and a kernel of zeros."""
    vector = v1.get_variable("vector", (16,), initializer=SMALL)
    kernel = v1.get_variable("kernel", (10, 16), initializer=v1.zeros_initializer())
    hidden = tf.matmul(x, kernel)
    return hidden, tf.reduce_sum(vector * tf.tanh(hidden), -1)


def partitioned(x, training):
    kernel = v1.get_variable(
        "kernel", (10, 16), initializer=SMALL, partitioner=v1.fixed_size_partitioner(2, axis=1), use_resource=False
    )
    return [tf.matmul(x, kernel) * 1.0]


@pytest.mark.parametrize(
    ("program", "inputs"),
    [(convolutions, IMAGES), (embeddings, TOKENS), (attention, VECTORS), (partitioned, VECTORS)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_each_kind_of_weight_is_calibrated(program, inputs):
    np.testing.assert_allclose([rms(output) for output in outcome_of(program, inputs).outputs], 0.7, rtol=0.02)


def test_a_weight_with_two_uses_suits_both():
    """As the embeddings of GPT-2, which are also the last kernel."""

    def program(tokens, training):
        table = v1.get_variable("table", (30, 64), initializer=SMALL)
        hidden = tf.gather(table, tokens)
        return hidden, tf.matmul(tf.tanh(hidden[:, 0]), table, transpose_b=True)

    first, last = (rms(output) for output in outcome_of(program, TOKENS).outputs)
    assert 0.1 < first < 0.7 < last < 5


def test_a_recurrent_kernel_in_a_loop_suits_its_fan_in():
    def program(x, training):
        kernel = v1.get_variable("kernel", (20, 10), initializer=SMALL)
        return tf.while_loop(
            lambda i, h: i < 7, lambda i, h: (i + 1, tf.tanh(tf.matmul(tf.concat([x, h], 1), kernel))), (0, x)
        )[1]

    outcome = outcome_of(program, VECTORS)
    assert 0.3 < rms(outcome.outputs) < 0.9
    assert [each.flaw for each in outcome.activations] == ["not measured"]


def test_normalizations_and_computed_weights_keep_their_scale():
    """Vectors near 1 or 0, and a kernel that is normalized: no factor before a normalization changes anything."""

    def program(x, training):
        direction = v1.get_variable("direction", (10, 16), initializer=SMALL)
        gain = v1.get_variable("gain", (16,), initializer=v1.ones_initializer())
        variance = v1.get_variable("variance", (16,), initializer=v1.ones_initializer())
        outputs = tf.matmul(x, gain * tf.math.l2_normalize(direction, 0))
        return outputs / tf.sqrt(variance + 1e-3)

    outcome = outcome_of(program, VECTORS)
    weights = distinct_weights(outcome.config.scales)
    for name in ("gain", "variance"):
        assert weights[name].min() >= 1 and weights[name].max() <= 1.2
    assert 0.5 < rms(outcome.outputs) < 2


def test_channels_have_different_sizes():
    """So some inputs of an activation are small and some are great."""
    outcome = outcome_of(lambda x, training: [dense(x, 32, "hidden")], VECTORS)
    sizes = np.sqrt(np.mean(outcome.outputs[0] ** 2, 0))
    assert sizes.max() > 3 * sizes.min()
