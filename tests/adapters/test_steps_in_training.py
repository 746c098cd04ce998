"""Steps of a training loop draw what a TF1 session draws while it trains."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool
from tests.adapters.test_tensorflow import assert_same, records_of
from tests.support.step_runs import AS_WRITTEN, parametrize_modes, session_runs, steps, uniforms, v1

RANDOM = np.random.RandomState(0)
BATCHES = [RANDOM.rand(n, 5).astype(np.float32) for n in (8, 8, 3, 8, 3)]  # the last of each epoch is smaller
RATE, LEARNING_RATE = 0.4, 0.1


def loss_of(outputs, x):
    return tf.reduce_mean(tf.square(outputs - tf.reduce_sum(x, 1, keepdims=True)))


def train_in_session(mode, batches, variables_first=False):
    """Return losses and weights of each step of a TF1 program with dropout, and the tool."""
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session(config=AS_WRITTEN) as session:
        make = [lambda: v1.get_variable("first", [5, 4]), lambda: v1.get_variable("second", [4, 1])]
        if variables_first:
            made = [make_variable() for make_variable in make]
            make = [lambda: made[0], lambda: made[1]]
        x = v1.placeholder(tf.float32, [None, 5])
        hidden = tf.nn.relu(tf.matmul(tf.nn.dropout(x, RATE), make[0]()))
        outputs = tf.matmul(tf.nn.dropout(hidden, RATE), make[1]())
        loss = loss_of(outputs, x)
        train = v1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss)
        session.run(v1.global_variables_initializer())
        runs = []
        for batch in batches:
            value, _ = session.run([loss, train], {x: batch})
            runs.append([value, *session.run(v1.trainable_variables())])
        return runs, tool


class Port:
    """The program of `train_in_session` in Keras: its layers are built in the first step."""

    def __init__(self, kit):
        self.dropouts = [kit.layers.Dropout(RATE) for _ in range(2)]
        self.dense = [kit.layers.Dense(units, use_bias=False) for units in (4, 1)]
        self.optimizer = kit.optimizers.SGD(LEARNING_RATE)

    def __call__(self, x):
        first, second = self.dropouts
        hidden = tf.nn.relu(self.dense[0](first(x, training=True)))
        return self.dense[1](second(hidden, training=True))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = loss_of(self(x), x)
        weights = [layer.weights[0] for layer in self.dense]
        variables = [weight if isinstance(weight, tf.Variable) else weight.value for weight in weights]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), weights, strict=True))
        return [loss, *variables]


class PortOfModule(tf.Module):
    """The same without Keras."""

    def __init__(self):
        super().__init__()
        self.weights = None

    def train_step(self, x):
        glorot = v1.glorot_uniform_initializer()
        dropped = tf.nn.dropout(x, RATE)
        if self.weights is None:
            self.weights = [tf.Variable(lambda: glorot([5, 4]))]
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(dropped, self.weights[0])), RATE)
            if len(self.weights) == 1:
                self.weights.append(tf.Variable(lambda: glorot([4, 1])))
            loss = loss_of(tf.matmul(hidden, self.weights[1]), x)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        return [loss, *self.weights]


PORTS = {"keras3": lambda: Port(keras), "tf_keras": lambda: Port(tf_keras), "module": PortOfModule}
parametrize_ports = pytest.mark.parametrize("make", PORTS.values(), ids=PORTS)


@parametrize_modes
@parametrize_ports
class TestTraining:
    def test_eager_training_draws_what_the_session_draws(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES)
        actual, tool = steps(make().train_step, mode, BATCHES)
        assert_same(actual, desired)
        assert records_of(tool)[:4] == records_of(reference)
        assert [op.phase for op in tool.random_ops[4:]] == ["compute"] * 2 * (len(BATCHES) - 1)

    def test_training_in_a_function_draws_what_the_session_draws(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES[:2])
        actual, tool = steps(tf.function(make().train_step), mode, BATCHES[:2])
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)

    def test_in_a_function_for_batches_of_any_size(self, make, mode):
        desired, reference = train_in_session(mode, BATCHES)
        function = tf.function(make().train_step, input_signature=[tf.TensorSpec([None, 5], tf.float32)])
        actual, tool = steps(function, mode, BATCHES)
        assert_same(actual, desired)
        assert records_of(tool) == records_of(reference)


@pytest.mark.slow_except("keras3-train_on_batch-eagerly-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("run_eagerly", [True, False], ids=["eagerly", "compiled"])
@pytest.mark.parametrize("method", ["train_on_batch", "fit"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_keras_model_trains_as_the_session(kit, method, run_eagerly, mode):
    batches = BATCHES[:2] * 2 if not run_eagerly else BATCHES
    model = kit.Sequential(
        [
            kit.layers.Dropout(RATE),
            kit.layers.Dense(4, "relu", use_bias=False),
            kit.layers.Dropout(RATE),
            kit.layers.Dense(1, use_bias=False),
        ]
    )
    model.compile(kit.optimizers.SGD(LEARNING_RATE), "mse", run_eagerly=run_eagerly)

    def train_step(x):
        x, y = x.numpy(), x.numpy().sum(1, keepdims=True)
        if method == "fit":
            loss = model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0).history["loss"][0]
        else:
            model.reset_metrics()
            loss = model.train_on_batch(x, y)
        return [tf.constant(loss, tf.float32), *(tf.constant(weight) for weight in model.get_weights())]

    desired, _ = train_in_session(mode, batches, variables_first=True)  # a model is built before it is called
    actual, _ = steps(train_step, mode, batches)
    assert_same(actual, desired)


IMAGES = np.random.RandomState(1).rand(2, 8, 8, 3).astype(np.float32)


@parametrize_modes
@pytest.mark.parametrize("name", ["RandomFlip", "RandomContrast", "RandomZoom", "RandomCrop", "GaussianNoise"])
def test_layers_of_tf_keras_that_draw_by_themselves(name, mode):
    arguments = {"RandomContrast": (0.3,), "RandomZoom": (0.3,), "RandomCrop": (4, 4), "GaussianNoise": (0.5,)}
    make = functools.partial(getattr(tf_keras.layers, name), *arguments.get(name, ()))
    layer = make()
    desired, _ = session_runs(lambda x: [layer(x, training=True), uniforms()], mode, [IMAGES] * 3)
    layer = make()
    assert_same(steps(lambda x: [layer(x, training=True), uniforms()], mode, [IMAGES] * 3)[0], desired)
    assert not np.array_equal(desired[0][0], desired[1][0])
