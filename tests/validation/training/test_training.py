"""The check `training-steps`: sound ports pass it, and a planted fault is found at its step, in its value."""

import dataclasses
import functools
import re
import subprocess
import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    Migration,
    MigrationError,
    Tolerance,
    TrainStep,
    track_tf1_style_variables,
    validate,
)
from detrand.validation.checks import Runner, run_check
from detrand.validation.training.tf1 import train_in_session
from tests.sound_migrations.training import RMSprop
from tests.support.shim_ports import shim_port
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


def test_programs_with_different_random_ops_train_in_constant_mode():
    class DrawsMore(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return model(inputs + 0.0 * tf.random.normal(inputs.shape), training)

    found = check(port=DrawsMore)
    assert found.ok, found.details
    assert found.summary.endswith("; in constant mode, because the port's random ops differ")


def first_divergence(found, way="eagerly"):
    first = found.trainings[way].first_divergence
    return first.step, first.leaf.path


def hand_written_session(loss_of=tf1_loss, batches=None, optimizer=SGD, mode="num_random_ops", trained=""):
    """What a handwritten TF1 loop computes: the values of each run, and the variables after it."""
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


def assert_is_session(recorder, steps):
    assert recorder.steps == tuple(range(len(steps)))
    for step, expected in enumerate(steps):
        found = recorder[step]
        np.testing.assert_array_equal(found["outputs"], expected["outputs"])
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
        np.testing.assert_array_equal(found["metrics"]["accuracy"], expected["accuracy"])
        variables = {**found["weights"], **found["moving_averages"]}
        assert variables.keys() == expected.keys() - {"outputs", "loss", "accuracy", "train"}
        for name, value in variables.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_session_computes_what_a_handwritten_loop_computes():
    """Dropout, update ops, regularization, a rate that decays and a metric that counts."""
    trained = migration()
    steps = hand_written_session()
    recorder = train_in_session(trained, trained.training_batches(), "num_random_ops").recorder
    assert_is_session(recorder, steps)
    assert len({float(step["loss"]) for step in steps}) == STEPS
    assert [round(float(recorder[step]["learning_rate"]), 6) for step in range(STEPS)] == [0.1, 0.1, 0.05, 0.05]
    assert list(recorder[0]) == [
        *("learning_rate", "outputs", "regularization_loss", "loss", "metrics", "gradients"),
        *("weights", "moving_averages"),
    ]


def test_step_k_takes_batch_k():
    batches = [(INPUTS * (k + 1), (LABELS + k) % 3) for k in range(2)]
    trained = migration(inputs=lambda: (x for x, _ in batches), labels=lambda: (y for _, y in batches))
    recorder = train_in_session(trained, trained.training_batches(), "num_random_ops").recorder
    assert_is_session(recorder, hand_written_session(batches=batches * 2))


@pytest.mark.slow_except("layer")
@pytest.mark.parametrize("kind", [keras.layers.Layer, tf.Module], ids=["layer", "module"])
def test_programs_may_change_the_dicts_that_they_are_passed(kind):
    """A model_fn may remove columns of its features and add others."""

    def of_features(features, training):
        features["sum"] = features["first"] + features.pop("second")
        return model(features["sum"], training, scale=0)  # a module keeps no losses

    def on_labels(function):
        return lambda labels, outputs: function(labels.pop("classes"), outputs)

    changing = migration(
        tf1=of_features,
        port=shim_port(of_features, kind),
        inputs={"first": INPUTS, "second": INPUTS[::-1]},
        labels={"classes": LABELS},
        tf1_loss=on_labels(tf1_loss),
        port_loss=on_labels(cross_entropy()),
        metrics={"mean": on_labels(mean_logit), "mean again": on_labels(mean_logit)},
        steps=2,
    )
    report = validate(changing)
    assert report.ok, str(report)
    assert all("identical" in check.summary for check in report.checks[2:-1]), str(report)


def test_one_step_equals_the_formula_in_numpy():
    """A linear model, by the formula."""
    found = check(
        tf1=lambda x, training: tf.matmul(x, v1.get_variable("w", (4, 1), initializer=v1.ones_initializer())),
        port=lambda: keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="d"),
        name_map={"w": "d/kernel"},
        labels=np.zeros((6, 1), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        port_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.SGD(0.01),
        metrics={},
        steps=1,
    )
    assert found.ok, found.details
    comparison = found.trainings["in a tf.function"].steps[0]
    gradient = 2 * INPUTS.T @ (INPUTS @ np.ones((4, 1)))
    (leaf,) = comparison["gradients"].leaves
    assert leaf.path == "gradients['w']"
    largest = leaf.greatest_absolute
    np.testing.assert_allclose(largest.actual, gradient[largest.index], rtol=1e-5)
    (leaf,) = comparison["weights"].leaves
    np.testing.assert_allclose(
        leaf.greatest_absolute.actual, (1 - 0.01 * gradient)[leaf.greatest_absolute.index], rtol=1e-5
    )


def positive(x):
    if tf.reduce_sum(x) > 0:
        return x
    return -x


class ModuleWithCondition(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.ones((4, 1), np.float32), name="w")

    def __call__(self, inputs, training):
        return positive(tf.matmul(inputs, self.kernel))


class LayerWithCondition(tf_keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight("w", (4, 1), initializer="ones")

    def call(self, inputs, training):
        return positive(tf.matmul(inputs, self.kernel))


@pytest.mark.parametrize("port", [ModuleWithCondition, LayerWithCondition])
def test_in_a_function_user_code_may_have_conditions_on_tensors(port):
    """AutoGraph converts them; converting detrand's own code would take longer than everything else."""
    converted = []

    @tf.autograph.experimental.do_not_convert
    def look():
        converted.append([frame.name for frame in traceback.extract_stack() if "autograph_generated" in frame.filename])

    def port_loss(labels, outputs):
        look()
        return tf.reduce_sum((positive(outputs) - labels) ** 2)

    def tf1(inputs, training):
        outputs = tf.matmul(inputs, v1.get_variable("w", (4, 1), initializer=v1.ones_initializer()))
        return tf.where(tf.reduce_sum(outputs) > 0, outputs, -outputs)

    found = check(
        tf1=tf1,
        port=port,
        name_map={"w": "layer_with_condition/w"} if port is LayerWithCondition else None,
        labels=np.zeros((6, 1), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_sum((outputs - labels) ** 2),
        port_loss=port_loss,
        metrics={
            "positive": (
                lambda labels, outputs: tf.abs(tf.reduce_sum(outputs)),
                lambda labels, x: positive(tf.reduce_sum(x)),
            )
        },
    )
    assert found.ok, found.details
    assert converted[0] == []
    assert converted[-1] == ["tf__port_loss"]


class KerasPort(keras.Model):
    """The model in Keras layers, except for the batch normalization: Keras 3's averages a different variance.

    Keras makes all variables before the first dropout draws.
    """

    def __init__(self):
        super().__init__(name="port")
        l2 = keras.regularizers.L2(0.01)
        self.hidden = keras.layers.Dense(5, kernel_regularizer=l2, name="hidden")
        self.mean = self.add_weight(shape=(5,), initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(shape=(5,), initializer="ones", trainable=False, name="variance")
        self.dropout = keras.layers.Dropout(0.4)
        self.logits = keras.layers.Dense(3, kernel_regularizer=l2, name="logits")

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        mean, variance = tf.nn.moments(hidden, [0]) if training else (self.mean, self.variance)
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            self.variance.assign(0.9 * self.variance + 0.1 * variance)
        hidden = tf.nn.relu((hidden - mean) / tf.sqrt(variance + 1e-3))
        return self.logits(self.dropout(hidden, training=training))


def in_keras_port(name):
    return f"port/{name.removeprefix('bn/')}"


PORTS = {
    "shim": {},
    "shim, the same optimizer": {"port_optimizer": SGD},
    "shim in tf_keras": {
        "port": shim(tf_keras.layers.Layer),
        "port_loss": cross_entropy(tf_keras),
        "port_optimizer": keras_optimizer(tf_keras),
        "metrics": {"accuracy": (tf1_accuracy, tf_keras.metrics.SparseCategoricalAccuracy())},
    },
    "shim in tf_keras, older optimizer": {
        "port": shim(tf_keras.layers.Layer),
        "port_optimizer": keras_optimizer(tf_keras, legacy=True),
    },
    "keras": {"port": KerasPort, "name_map": in_keras_port},
    "keras, TF1's optimizer": {"port": KerasPort, "name_map": in_keras_port, "port_optimizer": SGD},
    "keras, tf_keras's optimizer": {
        "port": KerasPort,
        "name_map": in_keras_port,
        "port_optimizer": keras_optimizer(tf_keras),
    },
}


@pytest.mark.slow_except("shim", "keras", "shim in tf_keras")
@pytest.mark.parametrize("changes", PORTS.values(), ids=PORTS)
def test_sound_ports_pass(changes):
    found = check(**changes)
    assert found.ok, found.details
    assert found.summary.startswith("eagerly: all 4 steps ")
    assert "in a tf.function: all 4 steps " in found.summary
    assert "in constant mode" not in found.summary
    for comparison in found.trainings.values():
        assert list(comparison.steps) == [0, 1, 2, 3]
        assert len(comparison.steps[0]) == 8


OPTIMIZERS = {
    "Momentum": (v1.train.MomentumOptimizer, "SGD", {"momentum": 0.9}, {"momentum": 0.9}),
    "Nesterov": (
        v1.train.MomentumOptimizer,
        "SGD",
        {"momentum": 0.9, "use_nesterov": True},
        {"momentum": 0.9, "nesterov": True},
    ),
    "Adam": (v1.train.AdamOptimizer, "Adam", {}, {"epsilon": 1e-8}),
    "Adagrad": (v1.train.AdagradOptimizer, "Adagrad", {}, {"epsilon": 0.0}),
}


@pytest.mark.slow_except("Adam")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_optimizer_trains_the_same(name):
    tf1, keras_name, tf1_arguments, keras_arguments = OPTIMIZERS[name]
    found = check(
        tf1_optimizer=lambda: tf1(0.05, **tf1_arguments),
        port_optimizer=lambda: getattr(keras.optimizers, keras_name)(0.05, **keras_arguments),
    )
    assert found.ok, found.details


def faulty_metric(labels, logits):
    return tf.reduce_mean(logits) + 0.5


def summed(labels, logits):
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


FAULTS = {
    "the schedule is one step ahead": (
        {"port_optimizer": keras_optimizer(keras, first=1)},
        (1, "learning_rate"),
    ),
    "a different dropout rate": ({"port": shim(rate=0.1)}, (0, "outputs")),
    "a regularizer of half the scale": ({"port": shim(scale=0.005)}, (0, "regularization_loss")),
    "a small regularizer of half the scale": (
        {"tf1": functools.partial(model, scale=2e-6), "port": shim(scale=1e-6)},
        (0, "regularization_loss"),
    ),
    "a sum for a mean": ({"port_loss": summed}, (0, "loss")),
    "a different metric": (
        {
            "metrics": {
                "accuracy": (tf1_accuracy, keras.metrics.SparseCategoricalAccuracy()),
                "m": (mean_logit, faulty_metric),
            }
        },
        (0, "metrics['m']"),
    ),
    "no update of moving averages": ({"port": shim(updates=False)}, (0, "moving_averages['bn/mean']")),
    "a different momentum of moving averages": ({"port": shim(momentum=0.99)}, (0, "moving_averages['bn/mean']")),
    "a different epsilon": (
        {
            "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.1),
            "port_optimizer": lambda: keras.optimizers.Adam(0.1, epsilon=1e-3),
        },
        (0, "weights['hidden/kernel']"),
    ),
    # The first update is lr * g in either form. TF1 then scales the whole sum by the rate of the step, Keras each term
    # by that of its own.
    "momentum while the rate decays": (
        {
            "tf1_optimizer": decayed(v1.train.MomentumOptimizer, momentum=0.9),
            "port_optimizer": keras_optimizer(keras, momentum=0.9),
        },
        (2, "weights['hidden/kernel']"),
    ),
    "RMSProp's average starts elsewhere": (
        {
            "tf1_optimizer": lambda: v1.train.RMSPropOptimizer(0.01),
            "port_optimizer": lambda: keras.optimizers.RMSprop(0.01, epsilon=1e-10),
        },
        (0, "weights['hidden/kernel']"),
    ),
}


CAUSES = {
    "the schedule is one step ahead": "the port's learning-rate schedule is one step early",
    "a regularizer of half the scale": "factor of a regularizer differs",
    "a small regularizer of half the scale": "factor of a regularizer differs",
    "a sum for a mean": "the port sums a loss where TF1 takes the mean: it is",
    "no update of moving averages": "the port does not update its moving averages: bn/mean never changes",
    "a different momentum of moving averages": "batch-norm momentum (decay) differs",
    "a different epsilon": "epsilon differs in the optimizer: 1e-08 (TF1), 0.001 (port)",
    "momentum while the rate decays": "the optimizer or one of its hyperparameters differs",
    "RMSProp's average starts elsewhere": "initial rms differs in the optimizer: 1 (TF1), 0 (port)",
}


@pytest.mark.slow_except("*dropout rate", "no update of moving averages", "*epsilon")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_at_its_step(fault):
    changes, expected = FAULTS[fault]
    found = check(**changes)
    assert not found.ok
    assert first_divergence(found) == first_divergence(found, "in a tf.function") == expected, found.details
    step, path = expected
    assert f"eagerly: {found.trainings['eagerly'].summary}; in a tf.function: " in found.summary
    assert f"first: step {step}, {path}" in found.summary
    assert f"\n\nstep {step}, {path}: " in found.details
    assert found.details.count("(actual: port, desired: TF1): ") == 2
    assert bool(found.causes) == (fault in CAUSES)
    assert any(cause.startswith(CAUSES[fault]) for cause in found.causes[:2]) or fault not in CAUSES


@pytest.mark.slow_except("port")
@pytest.mark.parametrize("program", ["tf1", "port"])
def test_a_count_is_not_a_moving_average(program):
    """Only one program counts its calls."""

    def counting(inputs, training, counts):
        count = v1.get_variable("calls", (), tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        if training and counts:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_add(count, 1))
        return model(inputs, training)

    found = check(
        tf1=functools.partial(counting, counts=program == "tf1"), port=shim_port(counting, counts=program == "port")
    )
    assert first_divergence(found) == (0, "moving_averages['calls']")
    assert found.causes == ()


@pytest.mark.slow
def test_rounding_that_an_optimizer_amplifies_is_no_fault():
    """The gradient of a bias before a batch normalization is 0; Adam updates by its sign, however small it is."""
    found = check(
        tf1_optimizer=lambda: v1.train.AdamOptimizer(0.05),
        port_optimizer=lambda: keras.optimizers.Adam(0.05, epsilon=1e-8),
    )
    assert found.ok, found.details
    assert re.search(r"; left to itself, the port drifts: .*; first: step 0, weights\['hidden/bias'\]", found.summary)
    assert not found.trainings["eagerly, left to itself"]


def test_a_training_that_differs_is_repeated_with_the_variables_of_tf1():
    """Different initial weights make only the first step differ."""
    found = check(port=shim(initializer=v1.ones_initializer()), metrics={"mean": mean_logit})
    assert found.trainings["eagerly, left to itself"].summary.startswith("4 of 4 steps differ; first: step 0, outputs")
    assert found.trainings["eagerly"].summary == "1 of 4 steps differs; first: step 0, outputs"


@pytest.mark.slow
def test_an_update_that_is_slightly_off_in_each_step_is_found():
    """No step differs by as much as weights may, but the difference adds up."""
    found = check(port_optimizer=keras_optimizer(keras, weight_decay=1e-4), steps=20)
    assert not found.ok
    assert first_divergence(found)[1].startswith("updates[")
    assert found.causes[0] == "weight decay differs in the optimizer: none (TF1), 0.0001 (port)"
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values())


@pytest.mark.slow_except("AdamW")
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "cause"),
    [
        (
            lambda: v1.train.AdamOptimizer(1e-4),
            lambda: keras.optimizers.AdamW(1e-4, epsilon=1e-8, weight_decay=0.004),
            "weight decay differs in the optimizer: none (TF1), 0.004 (port)",
        ),
        (
            lambda: v1.train.MomentumOptimizer(1e-3, 0.9),
            lambda: keras.optimizers.SGD(1e-3, momentum=0.9, weight_decay=5e-3),
            "weight decay differs in the optimizer: none (TF1), 0.005 (port)",
        ),
        (
            lambda: v1.train.RMSPropOptimizer(2.5e-4, 0.95, epsilon=0.01, centered=True),
            lambda: RMSprop(2.5e-4, 0.95, epsilon=0.01),
            "centered differs in the optimizer: True (TF1), False (port)",
        ),
    ],
    ids=["AdamW", "momentum", "centered"],
)
def test_a_fault_that_a_small_learning_rate_hides_is_found(tf1_optimizer, port_optimizer, cause):
    """On its own, the port stays close to TF1 in so few steps."""

    def tf1(inputs, training):
        return tf.matmul(inputs, v1.get_variable("kernel", (4, 3)))

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return tf1(inputs, training)

    found = check(tf1=tf1, port=Port, tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)
    assert found.causes[0] == cause
    for way in ("eagerly", "in a tf.function"):
        assert first_divergence(found, way)[1] == "updates['kernel']"
    assert "left to itself" not in found.summary


def test_a_repeated_step_updates_as_few_rows():
    """TF1's momentum moves the rows alone that a step looks up; so it does when it is given TF1's gradients."""

    def embedded(ids, training):
        return tf.reduce_sum(tf.nn.embedding_lookup(v1.get_variable("table", (5, 3)), ids), 1)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return embedded(ids, training)

    optimizer = functools.partial(v1.train.MomentumOptimizer, 0.1, 0.9)
    found = check(
        tf1=embedded,
        port=Port,
        inputs=lambda: [np.array([[0, 2], [2, 2], [3, 0]] * 2), np.array([[1, 4], [1, 1], [4, 4]] * 2)],
        tf1_optimizer=optimizer,
        port_optimizer=optimizer,
        metrics={"mean": (mean_logit, faulty_metric)},
    )
    assert first_divergence(found) == (0, "metrics['mean']")
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values()), found.details


AGAIN = np.array([[0, 2], [2, 2], [3, 0]] * 2)  # rows of a table, some of them looked up again
ONCE = np.arange(12).reshape(6, 2)


class DenseAdam(keras.optimizers.Adam):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def looked_up(ids, port_optimizer, tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01)):
    def embedded(ids, training):
        return tf.reduce_mean(tf.nn.embedding_lookup(v1.get_variable("table", (12, 3)), ids), 1)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return embedded(ids, training)

    return check(tf1=embedded, port=Port, inputs=ids, tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)


def test_slices_that_keras_squares_one_by_one_are_a_cause():
    found = looked_up(AGAIN, lambda: keras.optimizers.Adam(0.01, epsilon=1e-8))
    assert not found.ok
    assert found.causes[0].startswith("gradients of table come in slices: TF1's optimizers add up the slices of a row")
    for way in ("eagerly", "in a tf.function"):
        step = found.trainings[way].steps[0]
        assert {name for name, compared in step.items() if not compared} == {"weights", "slots"}


@pytest.mark.parametrize(
    ("ids", "optimizer"),
    [
        (ONCE, lambda: keras.optimizers.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: DenseAdam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: tf_keras.optimizers.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: tf_keras.optimizers.legacy.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: v1.train.AdamOptimizer(0.01)),
    ],
    ids=["keras_each_row_once", "keras_dense_gradients", "tf_keras", "tf_keras_legacy", "tf1"],
)
def test_slices_of_a_row_are_added_up(ids, optimizer):
    found = looked_up(ids, optimizer)
    assert found.ok, found.details


class LookedUp(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, ids, training=False):
        return tf.gather(v1.get_variable("table", (12, 3)), ids[:, 0])


def test_slices_that_keras_adds_up_agree():
    """A guided port has as many slices as before, whose sum is TF1's gradient."""
    found = check(
        tf1=lambda ids, training: tf.gather(v1.get_variable("table", (12, 3)), ids[:, 0]),
        port=LookedUp,
        inputs=AGAIN,
        metrics={"mean": (mean_logit, faulty_metric)},
        tf1_optimizer=functools.partial(v1.train.GradientDescentOptimizer, 0.1),
        port_optimizer=functools.partial(keras.optimizers.SGD, 0.1),
    )
    assert first_divergence(found) == (0, "metrics['mean']")
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values()), found.details


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_small_gradients_are_held_to_their_size(size):
    """A gradient of the opposite sign differs by less than the absolute tolerance, and so do the weights."""

    def scaled(loss, sign=1):
        @tf.custom_gradient
        def turned(value):
            return value, lambda upstream: sign * upstream

        return lambda labels, logits: loss(labels, turned(logits)) * size

    def without_regularization(inputs, training):
        return model(inputs, training, scale=0.0)

    changes = {"tf1": without_regularization, "port": shim(scale=0.0), "tf1_loss": scaled(tf1_loss)}
    assert check(**changes, port_loss=scaled(cross_entropy())).ok
    found = check(**changes, port_loss=scaled(cross_entropy(), -1))
    assert first_divergence(found) == (0, "gradients['hidden/kernel']")


def test_grappler_is_on_again_afterwards():
    before = tf.config.optimizer.get_experimental_options()
    check(steps=1)
    assert tf.config.optimizer.get_experimental_options() == before


def test_a_fault_only_in_functions_is_found():
    found = check(port=shim(function_scale=1.5))
    assert not found.ok
    assert found.trainings["eagerly"].ok
    assert first_divergence(found, "in a tf.function") == (0, "outputs")
    assert found.details.startswith("in a tf.function (actual: port, desired: TF1): 4 of 4 steps differ; first: ")


def test_tolerances_of_a_step_are_shown():
    changes, _ = FAULTS["a regularizer of half the scale"]
    regularization = Tolerance(rtol=0.6, atol=1e-5, of="regularization_loss")
    found = check(**changes, tolerances=[regularization, Tolerance(rtol=1e-6, atol=1.0)])
    assert found.ok, found.details


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


@pytest.mark.slow_except("keras3")
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
    recorder = train_in_session(migration_of_two, migration_of_two.training_batches(), "num_random_ops").recorder
    assert_is_session(recorder, hand_written_session(trained="logits"))
    assert recorder[0]["weights"].keys() == recorder[0]["gradients"].keys() == {"logits/kernel", "logits/bias"}


@pytest.mark.slow_except("keras3-logits frozen", "tf_keras-all")
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
        )
    )
    failed = {check.name for check in report.checks if not check.ok} - {"variables-match"}  # tf_keras keeps the flags
    assert failed == ({"training-steps"} if "logits" in frozen else set()), str(report)
    assert report.checks[1].ok or "logits" in frozen
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


def test_labels_and_outputs_may_have_any_structure():
    def two_headed(inputs, training):
        return {"main": model(inputs, training), "aux": tf.reduce_sum(inputs, 1)}

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=False):
            return two_headed(inputs, training)

    def loss_of(entropy):
        return lambda labels, outputs: entropy(labels["class"], outputs["main"]) + tf.reduce_mean(labels["aux"][0])

    found = check(
        tf1=two_headed,
        port=Port,
        labels={"class": LABELS, "aux": [np.ones((6, 2), np.float32)]},
        tf1_loss=loss_of(tf1_loss),
        port_loss=loss_of(cross_entropy()),
        metrics={},
    )
    assert found.ok, found.details
    leaves = found.trainings["eagerly"].steps[0]["outputs"].leaves
    assert [leaf.path for leaf in leaves] == ["outputs['main']", "outputs['aux']"]


def test_a_module_has_no_losses_of_its_own():
    class Port(tf.Module):
        @track_tf1_style_variables
        def __call__(self, inputs, training=False):
            return model(inputs, training, scale=0.0)

    found = check(tf1=lambda inputs, training: model(inputs, training, scale=0.0), port=Port)
    assert found.ok, found.details
    assert found.summary.endswith("the port has no losses attribute: port_loss must add the regularization losses")
    assert "regularization_loss" not in found.trainings["eagerly"].steps[0]


def test_an_optimizer_without_a_rate_is_compared():
    class Fixed(v1.train.Optimizer):
        def __init__(self):
            super().__init__(use_locking=False, name="Fixed")

        def apply_gradients(self, pairs, global_step=None, name=None):
            return tf.group(*(v1.assign_sub(variable, 0.05 * gradient) for gradient, variable in pairs))

    found = check(tf1_optimizer=Fixed, port_optimizer=lambda: keras.optimizers.SGD(0.05))
    assert found.ok, found.details
    assert found.summary.endswith("learning rates not compared: the optimizer does not keep one")


def test_a_port_that_raises_fails_the_check():
    class Raises(keras.layers.Layer):
        def call(self, inputs, training=False):
            raise OverflowError("too much")

    found = check(port=Raises)
    assert not found.ok
    assert re.match(r"raised OverflowError: .*too much.*test_training.py:\d+", found.summary)


def test_training_steps_is_the_last_check():
    report = validate(migration())
    assert report.ok, str(report)
    assert [check.name for check in report.checks][-2:] == ["constant-mode", "training-steps"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be an integer from 1, but 0 was given"),
        ({"steps": True}, "steps must be an integer from 1, but True was given"),
        ({"tf1_loss": 0.5}, r"tf1_loss must be a function tf1_loss\(labels, outputs\) .* but 0.5 of type float"),
        ({"port_loss": None}, r"port_loss must be a function port_loss\(labels, outputs\) .* NoneType"),
        (
            {"port_optimizer": keras.optimizers.SGD()},
            r"port_optimizer must be a function without arguments that makes an optimizer, such as lambda: Adam\(\)",
        ),
        (
            {"tf1_optimizer": v1.train.AdagradDAOptimizer},
            r"tf1_optimizer must be a function without arguments that makes .*missing .*Pass a factory, such as lambda",
        ),
        ({"var_list": "logits/*"}, r"var_list must be a list of names of TF1 variables, .* but 'logits/\*' was given"),
        ({"var_list": []}, r"var_list must be .*; write var_list="),
        ({"var_list": ["logits/*", ""]}, r"var_list must be a list of names"),
        ({"metrics": [mean_logit]}, r"metrics must be a dict of name -> function, but \["),
        ({"metrics": {"m": 3}}, r"metrics\['m'\] must be a function .*, or a pair of them, .* but 3 was given"),
        ({"metrics": {"m": (mean_logit, 3)}}, r"metrics\['m'\] must be a function"),
        ({"tolerances": Tolerance()}, "tolerances must be a list of detrand.Tolerance"),
        ({"labels": None}, "labels must be arrays, but None was given; if the loss needs no labels, pass the inputs"),
        ({"labels": [0, 1, 2]}, r"labels\[0\] must be an array with the batch as its first axis, but 0 of type int"),
        ({"labels": {"a": None, "b": "x"}}, r"labels\['b'\] must be an array"),
        (
            {"labels": LABELS[:5]},
            r"labels of batch 0 has the shape \(5,\), but the inputs have \[\(6, 4\)\]; the first axis of both",
        ),
        ({"labels": [LABELS, LABELS[:5]]}, r"labels\[1\] of batch 0 has the shape \(5,\)"),
    ],
    ids=lambda value: (
        "-".join(f"{key} {entry!r}"[:30] for key, entry in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ArgumentError, match=message):
        migration(**changes)


def test_train_must_be_a_train_step():
    with pytest.raises(ArgumentError, match=r"train must be a detrand.TrainStep, but 3 of type int was given; write"):
        dataclasses.replace(migration(), train=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tf1_loss": lambda labels, logits: logits},
            r"tf1_loss returned a tensor of shape \(6, 3\), but must return a scalar",
        ),
        (
            {"tf1_loss": lambda labels, logits: tf1_loss(labels, logits) * np.nan},
            "the loss of the TF1 program of model is nan in the first step, so there is nothing to compare; check",
        ),
        ({"tf1_loss": lambda labels, logits: 1 / 0}, r"cannot be trained: ZeroDivisionError.*test_training.py:\d+"),
        (
            {"tf1_optimizer": lambda: 3},
            "tf1_optimizer must return an optimizer, but returned 3 of type int",
        ),
        (
            {"port_optimizer": lambda: 3},
            "port_optimizer must return an optimizer, but returned 3 of type int",
        ),
        (
            {"port_optimizer": lambda: 1 / 0},
            r"port_optimizer of model raised ZeroDivisionError.*test_training",
        ),
        (
            {"var_list": ["logits/*", "bn/*"]},
            r"var_list has 'bn/\*', which matches no trainable variable of the TF1 program; it has hidden/kernel, ",
        ),
        ({"labels": lambda: []}, r"labels\(\) returned no batch: the iterable was empty"),
        (
            {"labels": lambda: 3},
            r"labels\(\) returned no batch: TypeError: it returned int, not an iterable",
        ),
        (
            {"labels": lambda: [LABELS] * 3, "inputs": lambda: [INPUTS] * 2},
            r"inputs\(\) returned 2 batches and labels\(\) returned 3, for 4 steps; both must return equally many",
        ),
        (
            {"labels": lambda: [LABELS, LABELS[:5]], "inputs": lambda: [INPUTS, INPUTS[:5]]},
            r"batch 1 has the shapes \(5, 4\), \(5,\), but batch 0 has \(6, 4\), \(6,\); all batches",
        ),
        ({"labels": lambda: [LABELS[:5]]}, r"labels of batch 0 has the shape \(5,\), but the inputs have"),
    ],
    ids=[
        *("tensor loss", "NaN", "loss raises", "no tf1 optimizer", "no port optimizer", "optimizer raises"),
        *("no variable", "no labels", "labels no iterable", "other numbers of batches", "other shapes", "other size"),
    ],
)
def test_a_migration_that_cannot_be_trained_is_refused_before_any_check(changes, message):
    made = []

    def port():
        made.append(1)
        return shim()()

    with pytest.raises((MigrationError, ArgumentError), match=message):
        validate(migration(port=port, **changes))
    assert not made


def test_a_loss_of_the_port_must_be_a_scalar():
    with pytest.raises(MigrationError, match=r"port_loss returned a tensor of shape \(6,\), but must return a scalar"):
        check(port_loss=lambda labels, logits: tf.reduce_sum(logits, 1))


FILE = """
import keras, numpy as np, tensorflow as tf, detrand

migration = detrand.Migration(
    tf1=lambda x, training: tf.matmul(x, tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    inputs=np.ones((4, 3), np.float32),
    train=detrand.TrainStep(
        labels=np.zeros((4, 2), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_mean((labels - outputs) ** 2) * FACTOR,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(RATE),
    ),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "rate", "code", "stdout", "stderr"),
    [
        (1, 0.1, 0, "all 7 checks passed", r"^$"),
        (1, 0.2, 1, "1 of 7 checks failed; first: training-steps", r"^$"),
        ("np.nan", 0.1, 2, "", r"^detrand: the loss of the TF1 program of .* is nan in the first step, .*\n$"),
    ],
    ids=["passes", "fails", "cannot run"],
)
def test_the_command_line_reports_a_training(factor, rate, code, stdout, stderr, tmp_path):
    file = tmp_path / "dense.py"
    file.write_text(FILE.replace("FACTOR", str(factor)).replace("RATE", str(rate)))
    command = [sys.executable, "-m", "detrand", "validate", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert stdout in done.stdout
    assert re.match(stderr, done.stderr), done.stderr
