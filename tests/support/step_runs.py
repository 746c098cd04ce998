"""Runs of programs in the steps of a tool and in a session, for the tests that compare them."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from tests.adapters.test_tensorflow import assert_same

v1 = tf.compat.v1
MODES = ("constant", "num_random_ops")
parametrize_modes = pytest.mark.parametrize("mode", MODES)
AS_WRITTEN = v1.ConfigProto()  # no optimizer reorders the arithmetic after the draws
AS_WRITTEN.graph_options.rewrite_options.disable_meta_optimizer = True


def session_runs(program, mode, batches=(None, None, None, None)):
    """Return what the tensors of a graph are in each run of a session, and the tool.

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
    shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*map(np.shape, batches), strict=True)]
    return v1.placeholder(np.asarray(batches[0]).dtype, shape)


def steps(program, mode, batches=(None, None, None, None)):
    """Return what `program` returns in each step, and the tool."""
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


def session_runs_with(tool):
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = uniforms()
        return [[session.run(drawn)] for _ in range(3)]


def run_steps(*programs, mode="num_random_ops"):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        for program in programs:
            with tool.step():
                program()
    return tool


CLASSES = np.array([[1], [2]], np.int64)


def uniforms():
    return tf.random.uniform([2])


def normals():
    return tf.random.normal([2])


def nothing():
    return tf.zeros([2])


def uniform_then(other):
    def program():
        uniforms()
        other()

    return program


def loop(cond, body, *variables, **kwargs):
    # Iterations that run in parallel, the default, draw in a random order, in a session too.
    return tf.while_loop(cond, body, variables, parallel_iterations=1, **kwargs)


def counted(times, draw, state=None, **kwargs):
    """A loop of so many iterations."""
    state = tf.zeros([2]) if state is None else state
    return loop(lambda i, _: i < times, lambda i, x: (i + 1, draw(x)), 0, state, **kwargs)[1]
