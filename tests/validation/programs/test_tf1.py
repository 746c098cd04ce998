"""A TF1 graph is built once, and computes in each run config what a graph of its own would compute."""

import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand.validation.programs.tf1 import tf1_program
from detrand.validation.reference import Reference, run_configs_of

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def dense(x, training):
    x = tf.matmul(x, v1.get_variable("a/kernel", (3, 5)))
    x = tf.nn.dropout(x, rate=0.5) if training else x
    return tf.matmul(x, v1.get_variable("b/kernel", (5, 2))) + tf.random.normal((2,))


def seeded_by_the_user(x, training):
    return dense(x, training) + tf.raw_ops.RandomStandardNormal(shape=(2,), dtype=tf.float32, seed=42, seed2=1)


def loop(x, training):
    kernel = v1.get_variable("kernel", (3, 3))

    def body(step, x):
        return step + 1, tf.nn.dropout(tf.matmul(x, kernel), rate=0.3)

    return tf.while_loop(lambda step, x: step < 3, body, (0, x))[1]


def drawn_while_it_runs(x, training):
    noise = v1.py_func(lambda: np.random.random(2).astype(np.float32), [], tf.float32)
    return dense(x, training) + noise


def seeds_without_an_op(x, training):
    return dense(tf.nn.dropout(x, rate=0.0), training)


def data_set(x, training):
    rows = tf.data.Dataset.range(4).shuffle(4).batch(4)
    return tf.gather(dense(x, training), v1.data.make_one_shot_iterator(rows).get_next())


def drawn_by_numpy(x, training):
    return drawn_while_it_runs(x, training) * np.random.random()


@pytest.mark.parametrize(
    ("tf1", "seed"),
    [
        (dense, 42),
        (dense, 0),
        (seeded_by_the_user, 42),
        (loop, 42),
        (drawn_while_it_runs, 42),
        (seeds_without_an_op, 42),
        (data_set, 42),
        (drawn_by_numpy, 42),
    ],
)
def test_outcomes_are_those_of_graphs_of_their_own(tf1, seed):
    migration = detrand.Migration(tf1=tf1, port=lambda: tf1, inputs=INPUTS, seed=seed, seed_numpy=True)
    reference = Reference(migration)
    asked = run_configs_of(migration)
    for config in (*asked, asked[0]):  # a graph that took other op seeds takes its own again
        reference._answers.clear()
        outcome = reference.outcome(config)
        with tf1_program(migration, config) as program:
            expected = program.run()
        assert outcome.config == expected.config
        assert outcome.random_ops == expected.random_ops
        assert outcome.positions == expected.positions
        assert outcome.unused == expected.unused
        np.testing.assert_array_equal(outcome.outputs, expected.outputs)
        for found in ("initial", "changed"):
            np.testing.assert_equal(getattr(outcome, found), getattr(expected, found))


def test_a_graph_is_built_once():
    built = []

    def counted(x, training):
        built.append(training)
        return dense(x, training)

    report = detrand.validate(detrand.Migration(tf1=counted, port=Port, inputs=INPUTS))
    assert report.ok
    assert built == [False, True]


class Port(tf.Module):
    @detrand.track_tf1_style_variables
    def __call__(self, x, training=False):
        return dense(x, training)


def test_a_session_knows_where_it_is_eager():
    """The answer is TensorFlow's own in every context that TF1 code may enter."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    inside, found = ops.executing_eagerly_outside_functions, []

    def look():
        quick = ops.executing_eagerly_outside_functions()
        found.append((quick, inside()))
        return quick

    def tf1(x, training):
        assert ops.executing_eagerly_outside_functions is not inside
        look()
        tf.function(look)()
        with tf.init_scope():
            look()
        with context.eager_mode():
            look()
            tf.function(look)()
        with tf.Graph().as_default():
            look()
        return dense(x, training)

    migration = detrand.Migration(tf1=tf1, port=Port, inputs=INPUTS)
    with tf1_program(migration, run_configs_of(migration)[0]):
        pass
    assert ops.executing_eagerly_outside_functions is inside
    assert [quick for quick, _ in found] == [own for _, own in found]
    assert {quick for quick, _ in found} == {False, True}
