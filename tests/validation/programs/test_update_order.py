"""Variables that a TF1 graph updates and reads in one run: the order must be that of the program's text."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand.validation.programs.update_order import order_updates, updated_by

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def average(use_resource=True):
    return v1.get_variable(
        "average", [3], initializer=v1.zeros_initializer(), trainable=False, use_resource=use_resource
    )


def update_then_read(x, training):
    """Center on a moving average, which UPDATE_OPS updates."""
    moving = average()
    if training:
        update = v1.assign_sub(moving, (moving - tf.reduce_mean(x, 0)) * 0.5)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return tf.matmul(x - moving, v1.get_variable("w", [3, 2]))


def read_then_update(x, training):
    moving = average()
    outputs = tf.matmul(x - moving, v1.get_variable("w", [3, 2]))
    if training:
        update = v1.assign_sub(moving, (moving - tf.reduce_mean(x, 0)) * 0.5)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return outputs


def port_of(program):
    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training)

    return Port


def loss(labels, outputs):
    return tf.reduce_mean((outputs - labels) ** 2)


def migration(tf1, port):
    train = TrainStep(
        labels=np.ones((8, 2), np.float32),
        tf1_loss=loss,
        port_loss=loss,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    return Migration(tf1=tf1, port=port, inputs=INPUTS, train=train)


@pytest.mark.slow
@pytest.mark.parametrize("program", [update_then_read, read_then_update], ids=lambda program: program.__name__)
def test_a_port_with_the_same_text_passes_and_the_report_names_the_race(program):
    report = validate(migration(program, port_of(program)))
    assert report.ok, str(report)
    summary = next(check.summary for check in report.checks if check.name == "training-steps")
    assert "TF1 updates average at " in summary
    assert "in no defined order" in summary


def scaled(x, training):
    return tf.matmul(x, v1.get_variable("w", [3, 2])), v1.get_variable("scale", [2], initializer=v1.ones_initializer())


def loss_of_scaled(labels, outputs):
    return loss(labels, outputs[0] * outputs[1]) + tf.reduce_sum(outputs[1] + 1.0)


def by_apply_gradients(total):
    variables = v1.trainable_variables()
    pairs = zip(tf.gradients(total, variables), variables, strict=True)
    return v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)  # here


@pytest.mark.parametrize("has_train_op", [False, True], ids=["optimizer", "training op"])
def test_a_race_with_an_optimizer_names_the_line_of_a_training_op(has_train_op):
    base = migration(scaled, port_of(scaled))
    of_tf1 = {"tf1_optimizer": None, "tf1_train_op": by_apply_gradients} if has_train_op else {}
    train = dataclasses.replace(base.train, tf1_loss=loss_of_scaled, port_loss=loss_of_scaled, **of_tf1)
    (found,) = validate(dataclasses.replace(base, train=train), checks=["training-steps"]).checks
    lines, start = inspect.getsourcelines(by_apply_gradients)
    line = start + next(number for number, text in enumerate(lines) if text.endswith("# here\n"))
    place = f"at {__file__}:{line}" if has_train_op else "in its training op"
    assert f"TF1 updates scale {place} and uses it at {__file__}:" in found.summary


def test_a_variable_that_is_an_output_has_no_race_of_the_program():
    def program(x, training):
        return v1.get_variable("scale", [2], initializer=v1.ones_initializer())

    port = port_of(program)
    (found,) = validate(migration(program, port), checks=["training-steps"]).checks
    assert found.ok and "in no defined order" not in found.summary


@pytest.mark.slow
def test_a_port_that_updates_at_another_place_differs():
    report = validate(migration(update_then_read, port_of(read_then_update)))
    assert not next(check for check in report.checks if check.name == "training-steps").ok


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize(("reads_first", "expected"), [(True, 0.0), (False, 1.0)])
def test_a_session_takes_the_value_that_the_order_gives(reads_first, expected, use_resource):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variable = average(use_resource)
        read = [tf.identity(variable) * 1.0] if reads_first else []
        slow = tf.reduce_sum(tf.linalg.inv(tf.eye(50) * 2.0)) / 25.0
        update = v1.assign_add(variable, tf.ones(3) * slow)
        if not reads_first:
            read = [variable.read_value() * 1.0]
        assert order_updates(graph, [update, *read])
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run([update, *read])[1], np.full(3, expected), rtol=1e-6)


def test_what_the_graph_orders_is_left_as_it_is():
    with tf.Graph().as_default() as graph:
        variable = average()
        with tf.control_dependencies([v1.assign_add(variable, tf.ones(3))]):
            after = variable.read_value()
        before = graph.as_graph_def()
        assert order_updates(graph, [after]) == ()
        assert graph.as_graph_def() == before


@pytest.mark.parametrize("collection", [v1.GraphKeys.UPDATE_OPS, None], ids=["UPDATE_OPS", "in place"])
def test_batch_normalization_has_an_order(collection):
    with enable_v1_layers(), tf.Graph().as_default() as graph:
        layer = v1.layers.BatchNormalization()
        outputs = layer(tf.constant(INPUTS), training=True)
        run = [outputs, *layer.updates] if collection else [outputs]
        assert order_updates(graph, run) == ()


@pytest.mark.parametrize("is_v2", [True, False])
def test_a_branch_that_updates_runs_after_what_is_read_before_it(is_v2):
    """Control flow of TensorFlow 2 is an op that calls a function; that of TensorFlow 1 has its ops in the graph."""
    enable, disable = v1.enable_control_flow_v2, v1.disable_control_flow_v2
    was_v2 = v1.control_flow_v2_enabled()
    (enable if is_v2 else disable)()
    try:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), use_resource=True)
            other = v1.get_variable("other", [], initializer=v1.zeros_initializer(), use_resource=True)
            is_due = v1.placeholder(tf.bool, [])
            read = 1.0 * count.read_value()
            update = v1.cond(is_due, lambda: v1.assign_add(count, other + 1.0).read_value(), lambda: 1.0 * other)
            assert "count" in updated_by(graph, [update])
            assert updated_by(graph, [read]) == set()
            if is_v2:  # the function of a branch is one op for its variables
                assert order_updates(graph, [read, update])[0].startswith("TF1 updates count")
            session.run(v1.global_variables_initializer())
            values = [session.run([read, update], {is_due: due})[0] for due in (True, False, True)]
            assert not is_v2 or values == [0.0, 1.0, 1.0]
    finally:
        (enable if was_v2 else disable)()


def test_variables_of_the_same_lines_have_one_sentence():
    with tf.Graph().as_default() as graph:
        variables = [v1.get_variable(name, initializer=1.0) for name in "abc"]
        updates = [each.assign(2.0) for each in variables]
        reads = [each.read_value() for each in variables]
        (sentence,) = order_updates(graph, [*updates, *reads])
    assert sentence.startswith("TF1 updates a, b and 1 more at ")
    assert " and uses them at " in sentence
