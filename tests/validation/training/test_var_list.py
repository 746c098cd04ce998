"""What a step trains: `var_list`, and layers that only the port freezes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import track_tf1_style_variables, validate
from detrand.validation.checks.registry import Runner, run_check
from detrand.validation.training.tf1 import train_in_session
from tests.support.trained_classifier import (
    assert_is_session,
    check,
    dense,
    hand_written_session,
    in_keras_port,
    keras_optimizer,
    migration,
    model,
)

v1 = tf.compat.v1


@pytest.mark.slow
@pytest.mark.parametrize("var_list", [None, ["table"]])
def test_partitioned_and_looked_up_variables_train_the_same(var_list):
    """Gradients in slices and of parts of a variable are joined."""

    def embedded(ids, training, parts=2):
        partitioner = v1.fixed_size_partitioner(parts) if parts else None
        table = v1.get_variable("table", (5, 3), initializer=v1.zeros_initializer(), partitioner=partitioner)
        return tf.reduce_sum(v1.nn.embedding_lookup(table, ids, partition_strategy="div"), 1)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return embedded(ids, training, parts=None)

    found = check(tf1=embedded, port=Port, inputs=np.array([[0, 2], [2, 2], [3, 0]] * 2), var_list=var_list)
    assert found.ok, found.details
    (leaf,) = found.trainings["eagerly"].steps[0]["gradients"].leaves
    assert (leaf.path, leaf.desired.shape) == ("gradients['table']", (5, 3))


@pytest.mark.slow
def test_a_variable_that_the_loss_does_not_depend_on_agrees():
    def unused(inputs, training):
        v1.get_variable("unused", (2,))
        return model(inputs, training)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return unused(inputs, training)

    found = check(tf1=unused, port=Port)
    assert found.ok, found.details


@pytest.mark.slow
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_layer_frozen_only_in_the_port_is_found(kit):
    """A layer that is frozen only in the port is not trained there."""

    def make_port():
        layers = [kit.layers.Dense(5, name="hidden"), kit.layers.Dense(3, name="logits")]
        layers[0].trainable = False
        return kit.Sequential(layers, name="port")

    found = check(
        tf1=lambda inputs, training: dense(dense(inputs, 5, "hidden"), 3, "logits"),
        port=make_port,
        name_map=in_keras_port if kit is keras else None,
        port_optimizer=keras_optimizer(kit),
    )
    leaves = found.trainings["eagerly"].steps[0]["gradients"].leaves
    assert {leaf.path for leaf in leaves if leaf.reason == "missing in actual"} == {
        "gradients['hidden/kernel']",
        "gradients['hidden/bias']",
    }
    assert {leaf.path for leaf in leaves if leaf.reason != "missing in actual"} == {
        "gradients['logits/kernel']",
        "gradients['logits/bias']",
    }


def test_var_list_trains_what_minimize_trains():
    migration_of_two = migration(var_list=["logits/kernel", "logits/b*"])
    steps = train_in_session(migration_of_two, migration_of_two.training_batches(), "num_random_ops").steps
    assert_is_session(steps, hand_written_session(trained="logits"))
    assert steps[0]["weights"].keys() == steps[0]["gradients"].keys() == {"logits/kernel", "logits/bias"}


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [(), ("hidden",), ("logits",)], ids=["all", "hidden frozen", "logits frozen"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_port_may_freeze_only_what_is_not_in_the_var_list(kit, frozen):
    """A port may freeze what is not in the list, and must not freeze what is."""

    sizes = {"hidden": 5, "logits": 3}

    def tf1(x, training):
        for name, units in sizes.items():
            x = tf.matmul(x, v1.get_variable(f"{name}/kernel", (x.shape[-1], units)))
        return x

    def make_port():
        layers = {name: kit.layers.Dense(units, use_bias=False, name=name) for name, units in sizes.items()}
        for name in frozen:
            layers[name].trainable = False
        return kit.Sequential(list(layers.values()), name="port")

    report = validate(
        migration(
            tf1=tf1,
            port=make_port,
            name_map=in_keras_port if kit is keras else None,
            port_optimizer=keras_optimizer(kit),
            var_list=["logits/*"],
        ),
        checks=["variables-match", "training-steps"],
    )
    failed = {check.name for check in report.checks if not check.ok} - {"variables-match"}  # tf_keras keeps the flags
    assert failed == ({"training-steps"} if "logits" in frozen else set()), str(report)
    assert report.checks[0].ok or "logits" in frozen
    (leaf, *_) = report.checks[-1].trainings["eagerly"].steps[0]["gradients"].leaves
    assert leaf.path.startswith("gradients['logits/")


@pytest.mark.parametrize("var_list", [["w"], ["fixed"], None], ids=["without it", "with it", "all"])
def test_a_variable_that_is_not_trainable_in_the_port_is_found(var_list):
    def tf1(x, training):
        return tf.matmul(x, v1.get_variable("fixed", (4, 3))) + v1.get_variable("w", (3,))

    class Port(keras.layers.Layer):
        def build(self, shape):
            self.fixed = self.add_weight(shape=(4, 3), trainable=False, name="fixed")
            self.w = self.add_weight(shape=(3,), name="w")

        def call(self, x, training=False):
            return tf.matmul(x, self.fixed) + self.w

    renamed = {"fixed": "port/fixed", "w": "port/w"}
    found = run_check(
        "variables-match",
        Runner(migration(tf1=tf1, port=lambda: Port(name="port"), name_map=renamed, var_list=var_list)),
    )
    assert found.ok == (var_list == ["w"]), found.details


def two_layers(inputs, training, stops=False):
    kernels = [v1.get_variable(name, shape) for name, shape in (("hidden/kernel", (4, 5)), ("logits/kernel", (5, 3)))]
    hidden = tf.tanh(tf.matmul(inputs, kernels[0]))
    return tf.matmul(tf.stop_gradient(hidden) if stops else hidden, kernels[1])


def minimize_head(loss):
    head = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope="logits")
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=head)


def apply_head(loss):
    head = [variable for variable in v1.trainable_variables() if variable.op.name.startswith("logits")]
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, head), 1e6)
    return v1.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, head, strict=True))


def minimize_all(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def report_of_two_layers(train_op, stops=False, frozen=True):
    def make_port():
        hidden = keras.layers.Dense(5, "tanh", use_bias=False, name="hidden", trainable=not frozen)
        return keras.Sequential([hidden, keras.layers.Dense(3, use_bias=False, name="logits")], name="port")

    return validate(
        migration(
            tf1=lambda inputs, training: two_layers(inputs, training, stops),
            port=make_port,
            name_map=in_keras_port,
            tf1_optimizer=None,
            tf1_train_op=train_op,
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
        ),
        checks=["variables-match", "training-steps"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_op", "stops"),
    [(minimize_head, False), (apply_head, False), (minimize_all, True)],
    ids=["minimize", "apply_gradients", "stop_gradient"],
)
def test_a_port_may_freeze_what_the_training_op_does_not_train(train_op, stops):
    report = report_of_two_layers(train_op, stops)
    assert report.ok, str(report)


def test_a_layer_frozen_only_in_the_port_is_one_finding():
    (finding,) = report_of_two_layers(minimize_all).findings
    assert finding.title.startswith("variables: trainable differs (1): hidden/kernel")
    assert finding.title.endswith(": True in TF1, False in the port")
    assert finding.remedy.startswith("make these variables trainable in the port. If TF1 does not train them either")
    assert "TrainStep(var_list=[...])" in finding.remedy


@pytest.mark.slow
def test_a_layer_that_only_the_port_trains_is_one_finding():
    (finding,) = report_of_two_layers(minimize_head, frozen=False).findings
    assert finding.title == "only the port trains hidden/kernel"
    assert finding.remedy == "freeze hidden/kernel in the port, or pass TrainStep(var_list=...)"
