"""Initial weights and dropout masks equal those of a TF1 session."""

import importlib.util
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detrand import philox
from tests.support.philox_runs import FLOATS, assert_same, seeded, session_runs


# 0.50001 rounds to 0.5 in 16 bits, which is drawn there
@pytest.mark.parametrize("rate", [0, 0.1, 0.5, 0.9999, np.float64(0.50001)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout_keeps_what_the_sessions_dropout_keeps(dtype, rate):
    def build():
        tf.compat.v1.set_random_seed(42)
        return tf.nn.dropout(tf.ones((50, 41), dtype), rate=rate, seed=7)

    for run, output in enumerate(session_runs(build, runs=3)):
        assert_same(philox.dropout_mask((50, 41), rate, 42, 7, run, dtype), np.asarray(output != 0))


RATES = {
    "v1_keep_prob": (lambda x, p: tf.compat.v1.nn.dropout(x, keep_prob=p, seed=7), lambda p: 1 - p),
    "v1_rate": (lambda x, p: tf.compat.v1.nn.dropout(x, rate=1 - p, seed=7), lambda p: 1 - p),
    "keep_prob_fed": (
        lambda x, p: tf.compat.v1.nn.dropout(x, tf.compat.v1.placeholder_with_default(np.float32(p), ()), seed=7),
        lambda p: 1 - np.float32(p),
    ),
    "rate_fed": (
        lambda x, p: tf.nn.dropout(x, tf.compat.v1.placeholder_with_default(np.float32(p), ()), seed=7),
        np.float32,
    ),
}


# Near 1, where 1 - keep_prob is coarser than a rate, many uniforms are just at the rate.
@pytest.mark.parametrize("keep_prob", [1, 0.9, 0.5, 0.3, 0.9999996, 2e-7, 0.1234567], ids=str)
@pytest.mark.parametrize(("op", "rate"), RATES.values(), ids=RATES)
def test_a_rate_may_be_given_in_several_ways(op, rate, keep_prob):
    if rate(keep_prob) == 1:
        keep_prob = 0.25  # a rate of 1 would drop everything
    x = np.ones((400, 500), np.float32)
    for run, outputs in enumerate(session_runs(seeded(lambda: op(tf.constant(x), keep_prob)), runs=3)):
        mask = philox.dropout_mask(x.shape, rate(keep_prob), 42, 7, run)
        assert_same(mask, outputs != 0)


@pytest.mark.parametrize("rate", [0, 0.1, 1 / 3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_formula_for_the_outputs_of_dropout(dtype, rate):
    kind = philox.arguments.checked_dtype(dtype)
    x = philox.normal((50, 41), 3, 4, dtype=dtype)
    expected = session_runs(seeded(lambda: tf.nn.dropout(tf.constant(x), rate, noise_shape=(50, 1), seed=7)), runs=2)
    for run, desired in enumerate(expected):
        mask = philox.dropout_mask((50, 1), rate, 42, 7, run, dtype)
        assert_same(np.where(mask, x * kind.type(1 / (1 - rate)), kind.type(0)), desired)


def test_dropout_mask_of_one_element_is_an_array():
    assert_same(philox.dropout_mask((), 0.5, 42, 7), np.asarray(philox.uniform((), 42, 7) >= 0.5))


WEIGHTS = {
    "scalar": (),
    "bias": (40,),
    "dense": (30, 50),
    "conv": (3, 3, 8, 16),
    "conv3d": (2, 3, 2, 5, 7),
    "none": (0, 3),
}
INITIALIZERS = {
    "glorot_uniform": (tf.compat.v1.glorot_uniform_initializer, (1.0, "fan_avg", "uniform")),
    "glorot_normal": (tf.compat.v1.glorot_normal_initializer, (1.0, "fan_avg", "truncated_normal")),
    "he_uniform": (tf.compat.v1.initializers.he_uniform, (2.0, "fan_in", "uniform")),
    "he_normal": (tf.compat.v1.initializers.he_normal, (2.0, "fan_in", "truncated_normal")),
    "lecun_uniform": (tf.compat.v1.initializers.lecun_uniform, (1.0, "fan_in", "uniform")),
    "lecun_normal": (tf.compat.v1.initializers.lecun_normal, (1.0, "fan_in", "truncated_normal")),
}


def initial_values(*args):
    return session_runs(seeded(lambda: tf.compat.v1.get_variable("weights", *args).initial_value), runs=2)


@pytest.mark.parametrize("shape", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("initializer", "arguments"), INITIALIZERS.values(), ids=INITIALIZERS)
def test_initial_weights_equal_the_sessions(initializer, arguments, dtype, shape):
    named = dict(zip(("scale", "mode", "distribution"), arguments, strict=True))
    for run, desired in enumerate(initial_values(shape, dtype, initializer(seed=7))):
        assert_same(philox.variance_scaling(shape, 42, 7, run, dtype, **named), desired)


@pytest.mark.parametrize("distribution", ["truncated_normal", "untruncated_normal", "uniform"])
@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
def test_variance_scaling_equals_the_sessions(mode, distribution):
    arguments = {"scale": 1.7, "mode": mode, "distribution": distribution}
    initializer = tf.compat.v1.variance_scaling_initializer(**arguments, seed=7)
    for run, desired in enumerate(initial_values((3, 3, 8, 16), "float32", initializer)):
        assert_same(philox.variance_scaling((3, 3, 8, 16), 42, 7, run, **arguments), desired)


def test_variance_scaling_has_the_defaults_of_tensorflows():
    (desired, _) = initial_values((30, 50), "float32", tf.compat.v1.variance_scaling_initializer(seed=7))
    assert_same(philox.variance_scaling((30, 50), 42, 7), desired)


@pytest.mark.parametrize("shape", WEIGHTS.values(), ids=WEIGHTS)
def test_glorot_uniform_is_what_variables_start_from_by_default(shape):
    def build():
        tf.compat.v1.set_random_seed(42)
        value = tf.compat.v1.get_variable("weights", shape).initial_value
        (op,) = (op for op in value.graph.get_operations() if op.type == "RandomUniform")
        op_seeds.append(op.get_attr("seed2"))
        return value

    op_seeds = []
    expected = session_runs(build, runs=2)
    for run, desired in enumerate(expected):
        assert_same(philox.glorot_uniform(shape, 42, *op_seeds, run), desired)


SLIM_FANS = {"FAN_IN": 3 * 3 * 8, "FAN_OUT": 3 * 3 * 16, "FAN_AVG": 3 * 3 * (8 + 16) / 2}


@pytest.mark.parametrize("mode", SLIM_FANS)
def test_the_formulas_in_the_docs_equal_tf_slims_initializers(mode):
    from tf_slim.layers import initializers as slim_initializers

    shape, factor = (3, 3, 8, 16), 2.0
    variance = factor / SLIM_FANS[mode]
    initializer = partial(slim_initializers.variance_scaling_initializer, factor, mode, seed=7)
    (desired, _) = initial_values(shape, "float32", initializer(uniform=True))
    limit = math.sqrt(3 * variance)
    assert_same(philox.uniform(shape, 42, 7, minval=-limit, maxval=limit), desired)
    (desired, _) = initial_values(shape, "float32", initializer(uniform=False))
    assert_same(philox.truncated_normal(shape, 42, 7, stddev=math.sqrt(1.3 * variance)), desired)
    (desired, _) = initial_values(shape, "float32", slim_initializers.xavier_initializer(seed=7))
    assert_same(philox.glorot_uniform(shape, 42, 7), desired)


@pytest.mark.slow
@pytest.mark.parametrize(("port", "framework"), [("pytorch_port", "torch"), ("jax_port", "jax")])
def test_a_port_with_the_sessions_weights_and_masks_follows_its_training(port, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    path = Path(__file__).parents[2] / "examples" / "ports" / f"{port}.py"
    # in a process of its own: it exits with an error if a loss is not close
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert re.findall(r"^step (\d): session 2\.\d+, port 2\.\d+$", done.stdout, re.MULTILINE) == list("0123")
