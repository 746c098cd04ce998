"""Programs on several replicas, for `tests.adapters.test_replicas`. The process that imports it gets two devices."""

import faulthandler
import functools
import json
import os

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool

v1 = tf.compat.v1
REPLICAS = 2
RUNS = 3
BATCH = np.arange(6, dtype=np.float32).reshape(2, 3)
AS_WRITTEN = v1.ConfigProto(device_count={"CPU": REPLICAS})  # no optimizer reorders the arithmetic after the draws
AS_WRITTEN.graph_options.rewrite_options.disable_meta_optimizer = True

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * REPLICAS
)


def draws():
    return tf.random.uniform([2]), tf.nn.dropout(tf.ones([4]), 0.5), tf.random.categorical(tf.zeros([1, 9]), 3)


def all_reduced_draws():
    before = tf.random.uniform([2])
    total = tf.distribute.get_replica_context().all_reduce("sum", before)
    return before, total, tf.random.normal([2])


def towers():
    """Two towers, one after the other."""
    return [draws() for _ in range(REPLICAS)]


def merging_towers():
    """Two towers up to where they merge, one after the other, and then from there on."""
    before = [tf.random.uniform([2]) for _ in range(REPLICAS)]
    total = tf.add_n(before)
    after = [tf.random.normal([2]) for _ in range(REPLICAS)]
    return [(before[i], total, after[i]) for i in range(REPLICAS)]


def unmerged_towers():
    """Two towers with weights, one after the other, whose first draws are added up at the end."""
    weights = v1.get_variable("weights", [3], initializer=v1.random_normal_initializer())
    drawn = [(tf.random.uniform([2]), tf.random.normal([2])) for _ in range(REPLICAS)]
    total = drawn[0][0] + drawn[1][0]
    return [(weights, before, total, after) for before, after in drawn]


def model_towers():
    """Two towers of a TF1 network that share their weights."""

    def tower(inputs):
        with v1.variable_scope("network", reuse=v1.AUTO_REUSE):
            kernel = v1.get_variable("kernel", [3, 4], initializer=v1.glorot_uniform_initializer())
        return v1.nn.dropout(tf.matmul(inputs, kernel), rate=0.5)

    return [tower(tf.constant(BATCH + i)) for i in range(REPLICAS)]


def in_session(program, mode):
    """Return what the towers of a graph are in each run of a session."""
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default():
        return _run(globals()[program]())


def in_session_with_strategy(program, mode):
    """Return what the replicas of a strategy compute in each run of a session."""
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default():
        strategy = _strategy()
        return _run(_per_replica(strategy, strategy.run(globals()[program])))


def _run(fetches):
    with v1.Session(config=AS_WRITTEN) as session:
        session.run(v1.global_variables_initializer())
        return [session.run(fetches) for _ in range(RUNS)]


def in_steps(program, mode):
    """Return what the replicas compute in each step of eager code."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        strategy = _strategy()
        replica = _replica(program, strategy)
        runs = []
        for _ in range(RUNS):
            with tool.step():
                runs.append(_per_replica(strategy, replica()))
        return runs


def in_function(program, mode):
    """Return what the replicas compute in each call of a function."""
    with DeterministicRandomTestTool(mode=mode).scope():
        strategy = _strategy()
        replica = tf.function(_replica(program, strategy))
        return [_per_replica(strategy, replica()) for _ in range(RUNS)]


def _strategy():
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])


@functools.cache
def _worker_strategy():
    """Return the one strategy of a worker: another one restarts its server, for which the other worker may wait."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def _per_replica(strategy, values):
    """Return a list of what each replica computed."""
    local = [strategy.experimental_local_results(value) for value in tf.nest.flatten(values)]
    return list(zip(*local, strict=True))


def _replica(program, strategy):
    if program not in ("keras", "tf_keras"):
        return lambda: strategy.run(globals()[program])
    layers = {"keras": keras, "tf_keras": tf_keras}[program].layers
    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(BATCH + context.replica_id_in_sync_group)
    )
    with strategy.scope():
        dense = layers.Dense(4, use_bias=False)
        dense.build([None, 3])
        dropout = layers.Dropout(0.5)
    return lambda: strategy.run(lambda batch: dropout(dense(batch), training=True), args=(batches,))


def in_worker(own):
    """Return what one of several workers computes in each step, and then, with a new tool, in each call of a function.

    Args:
      own: what the worker has for itself: a "seed", the "op seeds" of its tower in `unmerged_towers`, or "nothing".
    """
    faulthandler.dump_traceback_later(120, exit=True)  # so that nobody waits forever for a worker that has failed
    strategy = _worker_strategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    ways = []
    for in_function in (False, True):
        tool = DeterministicRandomTestTool(42 + task if own == "seed" else 42, mode="num_random_ops")
        with tool.scope():
            with strategy.scope():
                weights = tf.Variable(lambda: tf.random.normal([3]))

            def replica(weights=weights):
                return weights.read_value(), *all_reduced_draws()

            def run(replica=replica):
                return strategy.run(replica)

            if own == "op seeds":
                tool.operation_seed = 1 + 2 * task
            if in_function:
                run = tf.function(run)
                ways.append([run() for _ in range(RUNS)])
            else:
                ways.append([])
                for _ in range(RUNS):
                    with tool.step():
                        ways[-1].append(run())
    return ways
