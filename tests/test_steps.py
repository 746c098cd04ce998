"""Step k of eager code draws what a TF1 session draws on its run k. The conformance table has the families of ops."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from tests.test_tensorflow_adapter import assert_same, places

v1 = tf.compat.v1
MODES = ("constant", "num_random_ops")
parametrize_modes = pytest.mark.parametrize("mode", MODES)
AS_WRITTEN = v1.ConfigProto()  # no optimizer regroups what follows the draws
AS_WRITTEN.graph_options.rewrite_options.disable_meta_optimizer = True


def session_runs(program, mode, batches=(None, None, None, None)):
    """What the tensors of a graph are in each run of a session, and the tool.

    Args:
      program: called with a placeholder; with None if `batches` are.
      mode: of the tool.
      batches: what is fed in each run.
    """
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session(config=AS_WRITTEN) as session:
        fed = None if batches[0] is None else placeholder_for(batches)
        tensors = tf.nest.flatten(program(fed))
        session.run(v1.global_variables_initializer())
        feeds = [{} if fed is None else {fed: batch} for batch in batches]
        return [session.run(tensors, feed) for feed in feeds], tool


def placeholder_for(batches):
    first, *rest = map(np.shape, batches)
    return v1.placeholder(np.asarray(batches[0]).dtype, [None if any(rest) and rest != [first] else d for d in first])


def steps(program, mode, batches=(None, None, None, None)):
    """What `program` returns in each step, and the tool."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        runs = []
        for batch in batches:
            with tool.step():
                drawn = program(batch if batch is None else tf.constant(batch))
            runs.append([tensor.numpy() for tensor in tf.nest.flatten(drawn)])
    return runs, tool


def assert_steps_equal_runs(program, mode, batches=(None, None, None, None), port=None):
    desired, reference = session_runs(program, mode, batches)
    actual, tool = steps(port or program, mode, batches)
    assert_same(actual, desired)
    return tool, reference


ALPHA = np.array([0.5, 2.0, 7.0], np.float32)
CLASSES = np.array([[1], [2]], np.int64)

# Each draws from a batch, whose size may change from run to run.
FAMILIES = {
    **{
        f"uniform_{dtype}": lambda x, dtype=dtype: tf.random.uniform(tf.shape(x), dtype=dtype)
        for dtype in ("float16", "float32", "float64")
    },
    "uniform_bfloat16": lambda x: tf.cast(tf.random.uniform(tf.shape(x), dtype="bfloat16"), "float32"),
    "integers": lambda x: tf.random.uniform(tf.shape(x), -5, 1000, "int32"),
    "integers_of_64_bits": lambda x: tf.random.uniform(tf.shape(x), -5, 10**12, "int64"),
    "normal": lambda x: tf.random.normal(tf.shape(x)),
    "normal_float64": lambda x: tf.random.normal(tf.shape(x), dtype="float64"),
    "truncated_normal": lambda x: tf.random.truncated_normal(tf.shape(x)),
    "gamma": lambda x: tf.random.gamma(tf.shape(x), ALPHA),
    "gamma_for_each_element": lambda x: tf.random.gamma([2], x),
    "shuffle": tf.random.shuffle,
    "shuffle_of_indices": lambda x: tf.random.shuffle(tf.range(tf.size(x))),
    "dropout": lambda x: tf.nn.dropout(x, 0.4),
    "poisson": lambda x: tf.random.poisson([2], x),
    "categorical": lambda x: tf.random.categorical(x, 3),
    "categorical_samples": lambda x: tf.random.categorical([[0.1, 0.2, 0.3]], tf.size(x)),
    "parameterized_truncated_normal": lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=tf.shape(x), means=[0.0], stdevs=[1.0], minvals=[-1.0], maxvals=[2.0]
    ),
    "fractional_max_pool": lambda x: tf.nn.fractional_max_pool(
        tf.tile(x[:, :, None, None], [1, 2, 6, 1]), [1, 1.44, 1.73, 1], seed=1
    ),
    "learned_unigram_candidates": lambda x: tf.random.learned_unigram_candidate_sampler(
        tf.cast(x, "int64") % 10, 3, 4, True, 10
    )[0],
    "log_uniform_candidates": lambda x: tf.random.log_uniform_candidate_sampler(CLASSES, 1, 4, True, 10)[0],
}


@parametrize_modes
@pytest.mark.parametrize("draw", FAMILIES.values(), ids=FAMILIES)
def test_batches_of_several_sizes(draw, mode):
    # A kernel moves its counter on by what it has drawn, so run k does not begin at k times anything.
    sizes = (5, 1, 5, 2, 2, 9, 5)
    batches = [np.linspace(1, 4, 3 * n, dtype=np.float32).reshape(n, 3) for n in sizes]
    program = lambda x: [draw(x), draw(x), tf.random.uniform([2])]  # noqa: E731
    tool, reference = assert_steps_equal_runs(program, mode, batches)
    count = len(reference.random_ops)
    assert places(reference) == places(tool)[:count]
    assert [op.run for op in tool.random_ops] == [run for run in range(len(sizes)) for _ in range(count)]


@parametrize_modes
def test_many_runs_of_several_hundred_numbers(mode):
    def program(_):
        return [
            tf.random.uniform([311]),
            tf.random.gamma([101], 0.3),
            tf.random.shuffle(tf.range(350)),
            tf.random.poisson([120], 4.0),
        ]

    assert_steps_equal_runs(program, mode, [None] * 70)


@parametrize_modes
def test_empty_batches(mode):
    batches = [np.ones((n, 3), np.float32) for n in (0, 4, 0, 1, 4)]

    def program(x):
        return [
            tf.random.uniform(tf.shape(x)),
            tf.random.shuffle(x),
            tf.random.shuffle(x[:, :0]),
            tf.nn.dropout(x, 0.5),
        ]

    assert_steps_equal_runs(program, mode, batches)
