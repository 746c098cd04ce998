"""A classifier, its ports, migrations that train them, and what a handwritten session computes."""

import keras
import numpy as np
import tensorflow as tf

from detrand import DeterministicRandomTestTool, Migration, TrainStep, track_tf1_style_variables
from detrand.validation.checks.registry import Runner, run_check
from tests.support.step_runs import AS_WRITTEN

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)
STEPS = 4


def dense(inputs, units, name, scale=0.01, initializer=None):
    def l2(weights):
        return scale * tf.reduce_sum(weights**2)

    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", (inputs.shape[-1], units), initializer=initializer, regularizer=l2)
        bias = v1.get_variable("bias", (units,), initializer=v1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def batch_norm(inputs, training, momentum=0.9, updates=True):
    with v1.variable_scope("bn"):
        mean = v1.get_variable("mean", (inputs.shape[-1],), initializer=v1.zeros_initializer(), trainable=False)
        variance = v1.get_variable("variance", (inputs.shape[-1],), initializer=v1.ones_initializer(), trainable=False)
    if not training:
        return (inputs - mean) / tf.sqrt(variance + 1e-3)
    now = tf.nn.moments(inputs, [0])
    if updates:
        for average, value in zip((mean, variance), now, strict=True):
            v1.add_to_collection(
                v1.GraphKeys.UPDATE_OPS, v1.assign(average, momentum * average + (1 - momentum) * value)
            )
    return (inputs - now[0]) / tf.sqrt(now[1] + 1e-3)


def model(inputs, training, *, rate=0.4, scale=0.01, momentum=0.9, updates=True, function_scale=1.0, initializer=None):
    """Two dense layers, regularized, with a batch normalization and dropout between them."""
    hidden = tf.nn.relu(batch_norm(dense(inputs, 5, "hidden", scale, initializer), training, momentum, updates))
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    if tf.inside_function():
        hidden *= function_scale
    return dense(hidden, 3, "logits", scale)


def shim(kind=keras.layers.Layer, **changes):
    class Port(kind):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return model(inputs, training, **changes)

    return Port


def decayed(optimizer, steps=2, **arguments):
    """Return a factory of TF1 optimizers whose rate is halved after every few updates."""

    def make():
        count = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.1, count, steps, 0.5, staircase=True)
        return optimizer(rate, **arguments)

    return make


def keras_optimizer(kit, name="SGD", steps=2, first=0, legacy=False, **arguments):
    def make():
        schedule = kit.optimizers.schedules.ExponentialDecay(0.1, steps, 0.5, staircase=True)
        optimizer = getattr(kit.optimizers.legacy if legacy else kit.optimizers, name)(schedule, **arguments)
        optimizer.iterations.assign(first)
        return optimizer

    return make


def tf1_loss(labels, logits):
    return v1.losses.sparse_softmax_cross_entropy(labels, logits)


def tf1_accuracy(labels, logits):
    return v1.metrics.accuracy(labels, tf.argmax(logits, 1))


def mean_logit(labels, logits):
    return tf.reduce_mean(logits)


def cross_entropy(kit=keras):
    return kit.losses.SparseCategoricalCrossentropy(from_logits=True)


SGD = decayed(v1.train.GradientDescentOptimizer)


def migration(port=None, name_map=None, tf1=model, inputs=INPUTS, **changes):
    train = {
        "labels": LABELS,
        "tf1_loss": tf1_loss,
        "port_loss": cross_entropy(),
        "tf1_optimizer": SGD,
        "port_optimizer": keras_optimizer(keras),
        "metrics": {
            "accuracy": (tf1_accuracy, keras.metrics.SparseCategoricalAccuracy()),
            "mean": mean_logit,
        },
        "steps": STEPS,
    }
    return Migration(
        tf1=tf1, port=port or shim(), inputs=inputs, name_map=name_map, train=TrainStep(**{**train, **changes})
    )


def check(*arguments, **changes):
    return run_check("training-steps", Runner(migration(*arguments, **changes)))


def first_divergence(found, way="eagerly"):
    first = found.trainings[way].first_divergence
    return first.step, first.leaf.path


def hand_written_session(loss_of=tf1_loss, batches=None, optimizer=SGD, mode="num_random_ops", trained=""):
    """Return what a handwritten TF1 loop computes: the values of each run, and the variables after it."""
    with (
        DeterministicRandomTestTool(mode=mode).scope(),
        tf.Graph().as_default(),
        v1.Session(config=AS_WRITTEN) as session,
    ):
        inputs, labels = v1.placeholder(tf.float32, INPUTS.shape), v1.placeholder(tf.int64, LABELS.shape)
        logits = model(inputs, training=True)
        loss_of(labels, logits)
        loss = v1.losses.get_total_loss()
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        _, update_accuracy = tf1_accuracy(labels, logits)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            var_list = v1.trainable_variables(trained)  # those whose names begin so
            train = optimizer().minimize(loss, v1.train.get_or_create_global_step(), var_list)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        steps = []
        for features, classes in batches or [(INPUTS, LABELS)] * STEPS:
            feeds = {inputs: features, labels: classes}
            values = session.run({"loss": loss, "outputs": logits, "accuracy": update_accuracy, "train": train}, feeds)
            steps.append({**values, **session.run(variables)})
        return steps


def assert_is_session(steps, expected_steps):
    for found, expected in zip(steps, expected_steps, strict=True):
        np.testing.assert_array_equal(found["outputs"], expected["outputs"])
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
        np.testing.assert_array_equal(found["metrics"]["accuracy"], expected["accuracy"])
        variables = {**found["weights"], **found["moving_averages"]}
        assert variables.keys() == expected.keys() - {"outputs", "loss", "accuracy", "train"}
        for name, value in variables.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


def in_keras_port(name):
    return f"port/{name.removeprefix('bn/')}"


def faulty_metric(labels, logits):
    return tf.reduce_mean(logits) + 0.5
