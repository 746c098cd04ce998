"""The noise floor of TF1 programs: faults just above it fail, and ports that only round differently pass."""

import dataclasses
import functools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, RecordingError, Tolerance, TrainStep, enable_v1_layers, validate
from detrand.__main__ import COULD_NOT_RUN, FAILED, PASSED, main
from detrand.comparison.values import compare, compare_by_path
from detrand.report import html as html_report
from detrand.report import json as json_report
from detrand.validation.golden import read_golden, record_golden
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, ulp_of
from detrand.validation.noise.measurement import measure_noise_floor
from detrand.validation.noise.variants import VARIANTS, next_numbers
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.tf1 import tf1_program
from detrand.validation.reference import Reference
from tests.sound_migrations import MIGRATIONS
from tests.support.reports import failed
from tests.support.shim_ports import shim_port
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
IMAGES = (0.1 * RNG.normal(size=(4, 8, 8, 3))).astype(np.float32)
INFERENCE, TRAINING = (RunConfig(training, "num_random_ops") for training in (False, True))
ONE_TENTH = tf.io.serialize_tensor(tf.constant(0.1)).numpy()  # bytes, which say that they are those of a float32
REDUCTIONS = ("reductions reversed", "reductions one term at a time")
OFF_BY_AN_ULP = [name for name in VARIANTS if name.startswith("weights and inputs off by 1 ULP")]


def variables():
    zeros, ones = v1.zeros_initializer(), v1.random_uniform_initializer(0.5, 1.5)
    return (
        v1.get_variable("conv/kernel", (3, 3, 3, 16)),
        v1.get_variable("norm/gamma", 16, initializer=ones),
        v1.get_variable("norm/beta", 16, initializer=zeros),
        v1.get_variable("logits/kernel", (16, 10)),
    )


def classifier(images, training, epsilon=1e-3, scale=0.01, amplified=False):
    """A convolution, a batch normalization and dropout. Outputs are nested and small, and some are integers."""
    kernel, gamma, beta, weights = variables()
    hidden = tf.nn.conv2d(images, kernel, 1, "SAME")
    mean, variance = tf.nn.moments(hidden, [0, 1, 2])
    hidden = tf.nn.relu(tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, epsilon))
    if amplified:
        hidden = tf.sin(300.0 * hidden)
    if training:
        hidden = tf.nn.dropout(hidden, 0.5)
    logits = scale * tf.matmul(tf.reduce_mean(hidden, [1, 2]), weights)
    return {"logits": logits, "classes": [tf.argmax(logits, -1), tf.nn.softmax(logits)]}


def in_other_words(images, training, amplified=False):
    """The same numbers, computed by patches, with a quotient, nested sums and a softmax by hand."""
    kernel, gamma, beta, weights = variables()
    patches = tf.image.extract_patches(images, [1, 3, 3, 1], [1] * 4, [1] * 4, "SAME")
    hidden = tf.tensordot(patches, tf.reshape(kernel, (27, 16)), 1)
    mean = tf.reduce_mean(hidden, [0, 1, 2])
    variance = tf.reduce_mean((hidden - mean) ** 2, [0, 1, 2])
    hidden = tf.nn.relu((hidden - mean) / tf.sqrt(variance + 1e-3) * gamma + beta)
    if amplified:
        hidden = tf.sin(300.0 * hidden)
    if training:
        hidden = tf.nn.dropout(hidden, 0.5)
    means = tf.reduce_sum(tf.reduce_sum(hidden, 2), 1) / 64.0
    logits = tf.einsum("bi,ij->bj", means * 0.01, weights)
    powers = tf.exp(logits)
    return {"logits": logits, "classes": [tf.argmax(logits, -1), powers / tf.reduce_sum(powers, -1, keepdims=True)]}


def noise_floor(migration, config):
    with tf1_program(migration, config) as program:
        return measure_noise_floor(program)


def migration(port, **changes):
    return Migration(**{"tf1": classifier, "port": port, "inputs": IMAGES, "name": "classifier", **changes})


NUMERICAL = {"constant-weights", "random-inference", "random-training", "constant-mode"}


@pytest.mark.slow
def test_a_fault_below_the_guides_tolerance_fails():
    wrong_epsilon = migration(shim_port(classifier, epsilon=1.001e-3))
    assert validate(wrong_epsilon, tolerances=[Tolerance()]).ok
    report = validate(wrong_epsilon)
    assert failed(report) == NUMERICAL, str(report)
    line = classifier.__code__.co_firstlineno + 5
    for check in report.checks[4:]:
        noise = check.noise.outputs["['logits']"]
        assert f"noise floor of TF1 {noise.floor:.2g}, tolerance {noise.tolerance:.2g}" in check.details
        assert check.comparisons["outputs"].first_divergence.path == "['logits']"
        assert re.search(rf"first divergence at batchnorm/\w+ \(\w+\) at \S*test_floor.py:{line}", check.summary)


@pytest.mark.slow
def test_a_port_that_rounds_differently_passes():
    report = validate(migration(shim_port(in_other_words)))
    assert report.ok, str(report)
    exact = validate(migration(shim_port(in_other_words), tolerances=[Tolerance(rtol=0.0, atol=0.0)]))
    assert failed(exact) == NUMERICAL  # so something was rounded differently


def weights_of(*shape, name="weights", off=1.0):
    return off * v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=0.1))


def layer_norm(inputs, off=1.0):
    hidden = tf.matmul(inputs, weights_of(400, 200))
    mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
    return tf.nn.batch_normalization(hidden, mean, variance, None, off, 1e-2)


def layer_norm_reworded(inputs):
    hidden = tf.matmul(inputs, weights_of(400, 200))
    mean = tf.reduce_mean(hidden, -1, keepdims=True)
    variance = tf.reduce_mean(hidden * hidden, -1, keepdims=True) - mean * mean
    return (hidden - mean) / tf.sqrt(variance + 1e-2)


def attention(inputs, off=1.0):
    inputs = tf.reshape(inputs, (2, 5, 400))
    queries, keys = (tf.tensordot(inputs, weights_of(400, 64, name=name, off=off), 1) for name in "qk")
    weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / 8.0)
    return {"weights": weights, "context": tf.matmul(weights, inputs)}


def attention_reworded(inputs):
    inputs = tf.reshape(inputs, (2, 5, 400))
    queries, keys = (tf.einsum("bti,ij->btj", inputs, weights_of(400, 64, name=name)) for name in "qk")
    powers = tf.exp(tf.einsum("bqi,bki->bqk", queries * 0.125, keys))
    total = tf.reduce_sum(powers, -1, keepdims=True)
    return {"weights": powers / total, "context": tf.einsum("bqk,bkd->bqd", powers, inputs) / total}


def convolution(inputs, off=1.0):
    images = tf.reshape(inputs, (10, 10, 10, 4))
    for i in range(2):
        images = tf.nn.conv2d(images, weights_of(3, 3, images.shape[-1], 16, name=f"{i}"), 1, "SAME")
        scale, mean = (1 + 0.1 * weights_of(16, name=f"{i}/{name}") for name in ("scale", "mean"))
        images = v1.nn.fused_batch_norm(images, off * scale, mean, mean=mean, variance=scale, is_training=False)[0]
    return {"images": images, "means": tf.reduce_mean(images, [1, 2])}


def convolution_folded(inputs):
    images = tf.reshape(inputs, (10, 10, 10, 4))
    for i in range(2):
        kernel = weights_of(3, 3, images.shape[-1], 16, name=f"{i}")
        scale, mean = (1 + 0.1 * weights_of(16, name=f"{i}/{name}") for name in ("scale", "mean"))
        factor = scale / tf.sqrt(scale + 1e-3)
        images = tf.nn.conv2d(images, kernel * factor, 1, "SAME") + (mean - mean * factor)
    return {"images": images, "means": tf.reduce_sum(tf.reduce_sum(images, 1), 1) / 100.0}


def batch_norm(inputs, off=1.0):
    images = tf.reshape(inputs, (10, 20, 20, 1)) + 10.0
    return {"images": v1.nn.fused_batch_norm(images, [off], [0.0], is_training=True)[0]}


def batch_norm_of_moments(inputs):
    """Keras's BatchNormalization computes moments; the fused op adds one number after another."""
    images = tf.reshape(inputs, (10, 20, 20, 1)) + 10.0
    mean, variance = tf.nn.moments(images, [0, 1, 2])
    return {"images": tf.nn.batch_normalization(images, mean, variance, None, 1.0, 1e-3)}


def lstm(inputs, off=1.0):
    sequence, weights = tf.reshape(inputs, (10, 10, 40)), weights_of(72, 128, off=off)

    def step(time, state, output):
        gates = tf.matmul(tf.concat([sequence[:, time], output], 1), weights)
        state, output = lstm_cell(gates, state)
        return time + 1, state, output

    return tf.while_loop(lambda time, *_: time < 10, step, [0, tf.zeros((10, 32)), tf.zeros((10, 32))])[1:]


def lstm_cell(gates, state):
    new, candidate, forget, output = tf.split(gates, 4, 1)
    state = tf.sigmoid(forget + 1.0) * state + tf.sigmoid(new) * tf.tanh(candidate)
    return state, tf.sigmoid(output) * tf.tanh(state)


def lstm_unrolled(inputs):
    weights = weights_of(72, 128)
    of_inputs = tf.tensordot(tf.reshape(inputs, (10, 10, 40)), weights[:40], 1)
    state = output = tf.zeros((10, 32))
    for time in range(10):
        state, output = lstm_cell(of_inputs[:, time] + tf.matmul(output, weights[40:]), state)
    return state, output


def statistics(inputs, off=1.0):
    inputs = off * inputs
    return [tf.reduce_sum(inputs**2), tf.math.reduce_std(inputs), tf.reduce_logsumexp(inputs), tf.norm(inputs)]


def statistics_reworded(inputs):
    flat = tf.reshape(inputs, [-1])
    mean = tf.reduce_sum(flat) / 4000.0
    deviation = tf.sqrt(tf.reduce_sum((flat - mean) ** 2) / 4000.0)
    squares = tf.tensordot(flat, flat, 1)
    return [squares, deviation, tf.math.log(tf.reduce_sum(tf.exp(flat))), tf.sqrt(squares)]


REWORDED = {
    "layer norm": (layer_norm, layer_norm_reworded),
    "attention": (attention, attention_reworded),
    "convolution": (convolution, convolution_folded),
    "batch norm": (batch_norm, batch_norm_of_moments),
    "lstm": (lstm, lstm_unrolled),
    "statistics": (statistics, statistics_reworded),
}


@pytest.mark.slow_except("*-1")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("program", "reworded"), REWORDED.values(), ids=REWORDED)
def test_the_tolerance_separates_rewritten_programs_from_faulty_ones(program, reworded, seed):
    """The referees are sessions: one runs the rewritten program, and one the program with a factor of 1.0001."""
    inputs = np.random.default_rng(seed).normal(size=(10, 400)).astype(np.float32)

    def made(tf1, **changes):
        tf1 = functools.partial(tf1, **changes)
        return Migration(tf1=lambda inputs, training: tf1(inputs), port=lambda: None, inputs=inputs, seed=seed)

    tf1, other, off = (
        Reference(one).outcome(INFERENCE).outputs for one in (made(program), made(reworded), made(program, off=1.0001))
    )
    closeness_of = noise_floor(made(program), INFERENCE).closeness_of
    assert compare_by_path(other, tf1, closeness_of).ok
    assert not compare(other, tf1, rtol=0.0, atol=0.0).ok
    assert not any(leaf.ok for leaf in compare_by_path(off, tf1, closeness_of).leaves)


def normalized(images, training, by_hand=False):
    """A network with moving averages of a batch normalization, which a port computes in a different order."""
    kernel, gamma, beta, weights = variables()
    averages = [v1.get_variable(f"norm/moving_{name}", 16, trainable=False) for name in ("mean", "variance")]
    hidden = tf.nn.conv2d(images, kernel, 1, "SAME")
    if by_hand:
        mean = tf.reduce_sum(tf.reduce_mean(hidden, 0), [0, 1]) / 64
        moments = mean, tf.reduce_mean(hidden**2, [0, 1, 2]) - mean**2
    else:
        moments = tf.nn.moments(hidden, [0, 1, 2])
    if training:
        for average, moment in zip(averages, moments, strict=True):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign_sub((average - moment) * 0.1))
    mean, variance = moments if training else (averages[0], averages[1] ** 2)
    hidden = tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, 1e-3)
    return tf.matmul(tf.reduce_mean(tf.nn.relu(hidden), [1, 2]), weights)


@pytest.mark.slow
@pytest.mark.parametrize(("off", "ok"), [(0.0, True), (1e-4, False)])
def test_moving_averages_are_held_to_their_own_noise(off, ok):
    def port(images, training):
        return normalized(images + off if training else images, training, by_hand=True)

    (check,) = (
        check
        for check in validate(migration(shim_port(port), tf1=normalized)).checks
        if check.name == "random-training"
    )
    assert check.ok == ok, check.details
    assert "variables that the call changes within" in check.summary or not ok


@pytest.mark.parametrize(("factor", "ok"), [(0.003, True), (0.003001, False)])
def test_a_port_may_round_constants_later(factor, ok):
    def tf1(inputs, training):
        return inputs * (1.0 - tf.constant(0.997))

    report = validate(migration(lambda: lambda inputs, training: inputs * factor, tf1=tf1))
    assert report.ok == ok, str(report)


def fused(images, training, by_hand=False):
    """TF1 averages the variance of a sample; the network amplifies rounding."""
    kernel, gamma, beta, weights = variables()
    averages = [v1.get_variable(f"norm/moving_{name}", 16, trainable=False) for name in ("mean", "variance")]
    if by_hand:
        hidden = tf.add_n([tf.nn.conv2d(images[..., i : i + 1], kernel[:, :, i : i + 1], 1, "SAME") for i in range(3)])
    else:
        hidden = tf.nn.conv2d(images, kernel, 1, "SAME")
    hidden = tf.sin(3000.0 * hidden)
    moments = tf.nn.moments(hidden, [0, 1, 2])
    if not by_hand:
        _, *moments = v1.nn.fused_batch_norm(hidden, gamma, beta)
    if training:
        for average, moment in zip(averages, moments, strict=True):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign_sub((average - moment) * 0.1))
    return tf.matmul(tf.reduce_mean(hidden, [1, 2]), weights)


@pytest.mark.slow
def test_the_variance_of_a_sample_is_recognized_within_the_noise():
    report = validate(migration(shim_port(fused, by_hand=True), tf1=fused))
    (check,) = (check for check in report.checks if check.name == "random-training")
    assert check.ok and "1 moving variance compared as of the batch" in check.summary, check.summary


def test_each_output_is_held_to_its_own_noise():
    floor = NoiseFloor({"['a*']": OutputNoise(1.0, {"a": 0.5}), "['ab']": OutputNoise(1e-7, {"a": 0.0})}, {})
    assert [floor.closeness_of(path).atol for path in ("['a*']", "['ab']", "['integers']")] == [4.0, 4e-7, 0.0]


def test_an_output_that_no_variant_shows_is_held_to_the_guides_tolerance():
    assert NoiseFloor({"output": OutputNoise(1e-7)}, {}).closeness_of("output") == (1e-6, 1e-5, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["siamese", "capsules", "transformer", "translator"])
def test_sound_ports_of_keras_layers_pass(name):
    """The sound migrations whose outputs are not identical to TF1's in every release of TensorFlow."""
    sound = dataclasses.replace(MIGRATIONS[name], train=None)
    with enable_v1_layers():
        report = validate(sound)
    assert report.ok, str(report)


@pytest.mark.slow
def test_integers_must_be_equal():
    def shifted(images, training):
        outputs = classifier(images, training)
        return {**outputs, "classes": [outputs["classes"][0] + 1, outputs["classes"][1]]}

    check = validate(migration(shim_port(shifted))).checks[5]
    assert check.comparisons["outputs"].first_divergence.path == "['classes'][0]"
    assert "['classes'][0]" not in check.noise.outputs


@pytest.mark.parametrize("setting", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_the_floor_is_the_distance_to_float64(setting):
    """The referee is the formula in NumPy, in float64, with the session's weights and dropout mask."""

    def program(inputs, training):
        kernel = v1.get_variable("kernel", (300, 4))
        inputs = tf.nn.dropout(inputs, 0.5) if training else inputs
        return tf.matmul(inputs, kernel), inputs, tf.identity(kernel)

    inputs = RNG.normal(size=(5, 300)).astype(np.float32)
    made = migration(lambda: None, tf1=program, inputs=inputs)
    product, dropped, kernel = Reference(made).outcome(setting).outputs
    noise = noise_floor(made, setting).outputs["[0]"]
    exact = dropped.astype(np.float64) @ kernel.astype(np.float64)
    assert list(noise.differences) == [name for name in VARIANTS if name not in REDUCTIONS]  # it has no reduction
    np.testing.assert_allclose(noise.differences["in float64"], np.abs(product - exact).max(), rtol=1e-6)
    assert noise.differences["weights and inputs off by 1 ULP, seed 0"] > 0
    assert noise.ulp == np.spacing(np.abs(product).max())


@pytest.mark.slow
def test_each_check_has_the_noise_floor_of_its_own_weights(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        classifier(tf.constant(IMAGES), training=False)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    report = validate(amplified(checkpoint=path))
    assert report.ok, str(report)
    ulps = {check.name: check.noise.outputs["['logits']"].ulp for check in report.checks if check.noise}
    leaves = {check.name: check.comparisons["outputs"].leaves for check in report.checks if check.noise}
    assert ulps.keys() == NUMERICAL | {"checkpoint"}
    assert len(set(ulps.values())) >= 2
    assert {leaf.atol for leaf in leaves["checkpoint"] if leaf.path == "['logits']"} == {
        report.checks[-1].noise.outputs["['logits']"].tolerance
    }


def recurrent(inputs, training, parallel_iterations=1):
    """A loop with dropout in it, and a scan."""
    weights = v1.get_variable("weights", (6, 6))

    def step(i, state):
        state = tf.tanh(tf.matmul(state, weights) + inputs[:, i])
        return i + 1, tf.nn.dropout(state, 0.5) if training else state

    state = tf.zeros((inputs.shape[0], 6))
    _, state = v1.while_loop(lambda i, _: i < 4, step, [0, state], parallel_iterations=parallel_iterations)
    return {"state": state, "sums": tf.scan(lambda a, x: a + tf.reduce_sum(x), tf.transpose(state), 0.0)}


SEQUENCES = RNG.normal(size=(3, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("setting", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_loops_have_a_noise_floor(setting):
    floor = noise_floor(migration(lambda: None, tf1=recurrent, inputs=SEQUENCES), setting)
    assert not floor.remarks
    for noise in floor.outputs.values():
        assert list(noise.differences) == list(VARIANTS)
        assert 0 < noise.floor < 100 * noise.ulp


def test_loops_of_tensorflow_1_have_a_noise_floor():
    """Loops of TensorFlow 1 consist of Enter, Merge and Exit ops instead of functions."""
    v1.disable_control_flow_v2()
    try:
        floor = noise_floor(migration(lambda: None, tf1=recurrent, inputs=SEQUENCES), TRAINING)
    finally:
        v1.enable_control_flow_v2()
    assert not floor.remarks
    assert all(0 < noise.floor < 100 * noise.ulp for noise in floor.outputs.values())


def test_reference_variables_of_tensorflow_1_have_a_noise_floor():
    def program(inputs, training):
        kernel = v1.get_variable("kernel", (6, 6), use_resource=False)
        return tf.tensordot(inputs, kernel, 1)

    floor = noise_floor(migration(lambda: None, tf1=program, inputs=SEQUENCES), INFERENCE)
    assert not floor.remarks
    assert 0 < floor.outputs["output"].floor < 10 * floor.outputs["output"].ulp


def test_programs_may_take_and_return_any_structure():
    """Text, a table, sparse tensors, a variable, a part of a partitioned variable, and values that are no tensors."""

    def program(words, numbers, training):
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [0.1, 0.2]), 0.3)
        parts = v1.get_variable("parts", (4, 3), partitioner=v1.fixed_size_partitioner(2))
        return {
            "found": table.lookup(words),
            "sparse": tf.sparse.from_dense(tf.matmul(numbers, parts)),
            "variable": v1.get_variable("variable", (3,)),
            "words": tf.strings.upper(words),
            "number": 0.5,
            "none": None,
        }

    inputs = (np.array(["a", "c"]), RNG.normal(size=(5, 4)).astype(np.float32))
    made = migration(shim_port(program, tf.Module), tf1=program, inputs=inputs)
    floor = noise_floor(made, INFERENCE)
    assert not floor.remarks
    assert list(floor.outputs) == ["['found']", "['sparse'].values", "['variable']"]
    report = validate(made)
    assert report.ok, str(report)


def test_a_variant_that_draws_different_numbers_does_not_count():
    """This program computes different numbers in every run; a floor of that size would accept everything."""

    def program(inputs, training):
        return {"noisy": inputs + v1.py_func(RNG.normal, [], tf.double, stateful=True), "plain": inputs * 0.1}

    inputs = np.ones((2, 3))
    floor = noise_floor(migration(lambda: None, tf1=program, inputs=inputs), INFERENCE)
    assert floor.outputs["['noisy']"].differences == {}
    assert re.match(
        r"does not count for 1 of 2 outputs: \['noisy'\] differs by \S+, which is more than rounding",
        floor.remarks["rewritten by Grappler"],
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, tf.bfloat16.as_numpy_dtype])
def test_next_numbers_are_one_ulp_away(dtype):
    rng = np.random.default_rng(1)  # its own, because a normal number may be whole in bfloat16
    fractions = rng.uniform(0.1, 0.9, 100) * rng.choice([-1, 1], 100)
    numbers = np.array([*fractions, 0, -0.0, 7, np.inf, np.nan]).astype(dtype)
    moved = next_numbers(np.random.default_rng(0), numbers)
    whole = slice(100, None)
    np.testing.assert_array_equal(moved[whole].astype(float), numbers[whole].astype(float))
    bits = f"i{np.dtype(dtype).itemsize}"
    np.testing.assert_array_equal(np.abs(moved[:100].view(bits) - numbers[:100].view(bits)), 1)
    ups = np.count_nonzero(moved[:100] > numbers[:100])
    assert 30 < ups < 70


def test_values_that_are_not_floating_point_stay():
    for array in (np.arange(3), np.array([b"text"], object), np.array([True])):
        np.testing.assert_array_equal(next_numbers(np.random.default_rng(0), array), array)


def test_numbers_that_cancel_show_a_move_of_the_inputs():
    """The subtraction is exact, but a port that rounds the input once more computes a different number."""

    def program(inputs, training):
        return inputs - 100.0

    inputs = np.full(9, 100.1, np.float32)
    noise = noise_floor(migration(lambda: None, tf1=program, inputs=inputs), INFERENCE).outputs["output"]
    assert {noise.differences.pop(name) for name in OFF_BY_AN_ULP} == {np.spacing(inputs[0])}
    assert noise.floor == 0


def test_a_variant_that_cannot_run_is_reported():
    def program(inputs, training):
        return inputs * tf.io.parse_tensor(ONE_TENTH, tf.float32)

    floor = noise_floor(migration(lambda: None, tf1=program, inputs=np.ones(3, np.float32)), INFERENCE)
    assert list(floor.remarks) == ["in float64"]
    assert floor.remarks["in float64"].startswith("cannot be run: ")
    assert list(floor.outputs["output"].differences) == ["rewritten by Grappler", *OFF_BY_AN_ULP]


def test_tolerance_is_a_multiple_of_the_floor_and_a_few_ulps_at_least():
    assert OutputNoise(1e-7, {"a": 3e-7, "b": 1e-6}).tolerance == 4 * 1e-6
    assert OutputNoise(1e-7, {"a": 1e-8}).tolerance == OutputNoise(1e-7).tolerance == 4 * 1e-7


def masked(x, function=tf.tanh, mask=-1e9):
    scores = tf.reduce_sum(function(x), -1)
    return tf.where(tf.constant([[True, True, False, True]]), scores, mask * tf.ones_like(scores))


@pytest.mark.parametrize("mask", [-1e9, np.finfo(np.float32).min])
def test_masks_hide_no_fault_of_the_numbers_beside_them(mask):
    def found(port, **arguments):
        inputs = RNG.normal(size=(3, 4, 5)).astype(np.float32)
        given = Migration(tf1=lambda x, training: masked(x, mask=mask), port=lambda: port, inputs=inputs)
        return validate(given, checks=["random-inference"]).findings

    assert not found(lambda x, training=False: masked(x, mask=mask))
    assert not found(lambda x, training=False: masked(x, lambda each: 1 - 2 / (tf.exp(2 * each) + 1), mask))
    (finding,) = found(lambda x, training=False: masked(x, tf.sigmoid, mask))
    assert finding.title == "activation differs: Tanh (TF1), Sigmoid (port)"
    assert found(lambda x, training=False: masked(x, mask=mask * 0.99))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, tf.bfloat16.as_numpy_dtype])
def test_ulp_is_that_of_the_greatest_element(dtype):
    digits = {2: 10, 4: 23, 8: 52}[np.dtype(dtype).itemsize] if dtype != tf.bfloat16.as_numpy_dtype else 7
    assert ulp_of(np.array([0.001, -5.0, 3.0]).astype(dtype)) == 2.0 ** (2 - digits)
    assert ulp_of(np.array([np.inf, np.nan, 1.0]).astype(dtype)) == 2.0**-digits
    assert ulp_of(np.zeros(3, dtype)) == ulp_of(np.zeros(0, dtype)) == 0.0


def amplified(**changes):
    tf1 = functools.partial(classifier, amplified=True)
    return migration(shim_port(in_other_words, amplified=True), tf1=tf1, **changes)


@pytest.fixture(scope="module")
def report():
    return validate(amplified())


@pytest.mark.slow
def test_rounding_is_measured_where_outputs_differ_by_more_than_some_ulps(report):
    assert report.ok, str(report)
    assert {check.name for check in report.checks if check.noise} == NUMERICAL
    assert not any(check.noise for check in validate(migration(shim_port(in_other_words))).checks)


@pytest.mark.slow
def test_the_text_shows_floor_tolerance_and_distance(report):
    noise = report.checks[5].noise.outputs["['logits']"]
    text = str(report)
    assert "tolerance measured" in text
    row = next(line for line in text.splitlines() if line.startswith("  random-inference: "))
    amount = r"[\d.e-]+ \([\d.e+]+\)"
    assert re.search(rf": \['\S+ passed: floor {amount}, tolerance {amount}, difference {amount}$", row), row
    assert f"{noise.tolerance:.2g} ({noise.tolerance / noise.ulp:.3g})" in text
    assert "['classes'][0] passed: tolerance equal, difference 0" in text


@pytest.mark.slow
def test_json_shows_floor_tolerance_and_distance(report):
    check = json.loads(json_report.render([report]))["checks"][5]
    by_path = {output["path"]: output for output in check["noise_floor"]["outputs"]}
    noise, leaf = report.checks[5].noise.outputs["['logits']"], report.checks[5].comparisons["outputs"].leaves[0]
    assert leaf.path == "['logits']"
    assert by_path["['logits']"] == {
        "path": "['logits']",
        "ok": True,
        "ulp": noise.ulp,
        "floor": noise.floor,
        "tolerance": noise.tolerance,
        "distance": leaf.greatest_absolute.amount,
        "differences": noise.differences,
    }
    assert by_path["['classes'][0]"]["tolerance"] == 0
    assert check["noise_floor"]["remarks"] == {}
    assert json.loads(json_report.render([report]))["checks"][0]["noise_floor"] is None


def test_the_page_shows_floor_tolerance_and_distance(report):
    noise = report.checks[5].noise.outputs["['logits']"]
    page = html_report.render([report])
    assert "<h3>noise floor</h3>" in page
    assert f"{noise.floor:.2g} ({noise.floor / noise.ulp:.3g})" in page


FILE = """
import numpy as np, tensorflow as tf, detrand, keras
def tf1(x, training, off=0.0):
    return tf.matmul(x, tf.compat.v1.get_variable("kernel", (5, 3))) * 1e-3 + off
class Off(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, x, training=False):
        return tf1(x, training, off=1e-7)
migration = detrand.Migration(tf1=tf1, port=Off, inputs=np.ones((2, 5), "f"))
"""


@pytest.mark.slow
def test_the_command_line_compares_as_the_guide_does_if_asked(tmp_path, capsys):
    file, golden = tmp_path / "off_by_little.py", tmp_path / "golden.npz"
    file.write_text(FILE)
    assert main(["validate", str(file)]) == FAILED
    assert "tolerance measured" in capsys.readouterr().out
    assert main(["validate", str(file), "--tolerance", "guide"]) == PASSED
    assert "tolerance rtol=1e-06, atol=1e-05" in capsys.readouterr().out

    assert main(["record", str(file), "--tolerance", "guide", "-o", str(golden)]) == PASSED
    assert main(["validate", str(file), "--golden", str(golden)]) == COULD_NOT_RUN
    assert re.search(r"detrand: .*recorded .*with tolerances.*\n$", capsys.readouterr().err)


@pytest.mark.slow
def test_a_golden_file_keeps_the_floor(tmp_path, report):
    path = tmp_path / "golden.npz"
    made = amplified()
    record_golden([made], path)
    from_golden = validate(made, golden=path)
    assert from_golden.ok, str(from_golden)
    floors = [check.noise.outputs["['logits']"] for check in from_golden.checks if check.noise]
    assert len(floors) == 4 and all(list(floor.differences) == ["in float64"] for floor in floors)
    tf1 = read_golden(path, made).tf1
    assert tf1.noise_floor(tf1.outcome(INFERENCE)).outputs["['logits']"].differences.keys() == VARIANTS.keys()
    faulty = shim_port(classifier, amplified=True, epsilon=1.001e-3)
    assert failed(validate(dataclasses.replace(made, port=faulty), golden=path)) == NUMERICAL


@pytest.mark.slow
def test_a_golden_file_without_a_noise_floor_is_refused(tmp_path):
    record_golden([migration(shim_port(in_other_words), tolerances=[Tolerance()])], tmp_path / "golden.npz")
    with pytest.raises(RecordingError, match="with tolerances"):
        validate(migration(shim_port(in_other_words)), golden=tmp_path / "golden.npz")


@pytest.mark.slow
def test_training_steps_are_held_to_the_guides_tolerance():
    def mean(labels, outputs):
        return tf.reduce_mean((outputs["logits"] - labels) ** 2)

    train = TrainStep(
        labels=np.ones((4, 10), np.float32),
        tf1_loss=mean,
        port_loss=mean,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
    )
    report = validate(migration(shim_port(classifier), train=train))
    assert report.ok, str(report)
    assert report.checks[-1].noise is None
