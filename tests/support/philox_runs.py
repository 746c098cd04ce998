"""Runs of a TF1 session on the CPU, whose numbers `detrand.philox` must equal."""

import numpy as np
import tensorflow as tf

FLOATS = ("float16", "bfloat16", "float32", "float64")
LAWS = {  # the arguments for location and scale
    "uniform": ("minval", "maxval", tf.random.uniform),
    "normal": ("mean", "stddev", tf.random.normal),
    "truncated_normal": ("mean", "stddev", tf.random.truncated_normal),
}


def session_runs(build, runs):
    """Return what `build()`'s tensor is in each of so many runs of one TF1 session on the CPU."""
    with tf.Graph().as_default(), tf.device("/CPU:0"):
        tensor = build()
        with tf.compat.v1.Session() as session:
            return [session.run(tensor) for _ in range(runs)]


def assert_same(actual, desired):
    desired = np.asarray(desired)
    assert isinstance(actual, np.ndarray)
    assert actual.shape == desired.shape
    assert actual.dtype == desired.dtype
    np.testing.assert_array_equal(actual, desired)


def seeded(build):
    """Return `build` made to give its op, the only one that is random, seed 42 and op seed 7."""

    def build_seeded():
        tf.compat.v1.set_random_seed(42)
        return build()

    return build_seeded
