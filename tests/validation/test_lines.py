"""The lines of ports that findings name: of what updates a variable, of a loss, of where an op is missing."""

import dataclasses
import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, TrainStep, validate

v1 = tf.compat.v1


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def marked(function, mark="# HERE"):
    """Return the lines of a function that end in a mark, as reports show them."""
    lines, start = inspect.getsourcelines(function)
    return [f"test_lines.py:{start + n}" for n, line in enumerate(lines) if line.rstrip().endswith(mark)]


def averaging(decay, *, with_updates=True):
    """Return TF1's model that subtracts a moving average of its inputs."""

    def tf1(inputs, training):
        mean = v1.get_variable("mean", [3], initializer=v1.zeros_initializer(), trainable=False)
        outputs = inputs - mean
        if training and with_updates:
            with tf.control_dependencies([outputs]):
                v1.add_to_collection("update_ops", mean.assign_sub((1 - decay) * (mean - tf.reduce_mean(inputs, 0))))
        return outputs

    return tf1


class Averaging(keras.Layer):
    decay = 0.99

    def build(self, shape):
        self.mean = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="mean")

    def move(self, towards):
        self.mean.assign_add((towards - self.mean) * (1 - self.decay))  # HERE

    def call(self, inputs, training=False):
        outputs = inputs - self.mean  # READ
        if training and self.decay:
            self.move(keras.ops.mean(inputs, 0))
        return outputs


class AveragingModule(tf.Module):
    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(tf.zeros([3]), trainable=False, name="mean")

    def __call__(self, inputs, training=False):
        outputs = inputs - self.mean
        if training:
            self.mean.assign(0.99 * self.mean + 0.01 * tf.reduce_mean(inputs, 0))  # HERE
        return outputs


class Frozen(Averaging):
    decay = None


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (Averaging, marked(Averaging)),
        (lambda: keras.Sequential([Averaging()]), marked(Averaging)),
        (AveragingModule, marked(AveragingModule)),
        (Frozen, marked(Averaging, "# READ")),
    ],
)
def test_a_moving_average_has_the_line_that_updates_it_or_else_uses_it(port, expected):
    migration = Migration(tf1=averaging(0.9), port=port, inputs=numbers(4, 3) + 1)
    (finding,) = [each for each in validate(migration).findings if each.kind == "averages"]
    assert finding.port.line.endswith(expected[0])


def relu_twice(inputs, training):
    x = tf.nn.relu(tf.matmul(inputs, kernel("first", 3, 5)))
    return tf.matmul(tf.nn.relu(tf.matmul(x, kernel("second", 5, 4))), kernel("third", 4, 2))


def kernel(name, *shape):
    return v1.get_variable(name, shape)


def functional():
    x = inputs = keras.Input((3,))
    x = keras.layers.Dense(5, "relu", use_bias=False)(x)
    x = keras.layers.Dense(4, use_bias=False)(x)  # HERE
    return keras.Model(inputs, keras.layers.Dense(2, use_bias=False)(x))  # USED


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.layers_in_order = [keras.layers.Dense(n, use_bias=False) for n in (5, 4, 2)]

    def call(self, inputs, training=False):
        first, second, third = self.layers_in_order
        x = keras.ops.relu(first(inputs))
        x = second(x)  # HERE
        return third(x)  # USED


class InFunction(tf.Module):
    def __init__(self):
        super().__init__()
        sizes = (3, 5), (5, 4), (4, 2)
        self.kernels = [tf.Variable(numbers(*size), name=f"kernel_{n}") for n, size in enumerate(sizes)]

    @tf.function
    def second(self, x):
        return tf.matmul(x, self.kernels[1])  # HERE

    def __call__(self, inputs, training=False):
        x = self.second(tf.nn.relu(inputs @ self.kernels[0]))
        return x @ self.kernels[2]  # USED


@pytest.mark.slow
@pytest.mark.parametrize("port", [functional, Subclassed, InFunction])
def test_what_is_missing_is_between_the_op_before_it_and_the_op_after_it(port):
    migration = Migration(tf1=relu_twice, port=port, inputs=numbers(4, 3), expect=["initializers-match"])
    (finding,) = [each for each in validate(migration).findings if each.kind == "computation"]
    assert "no activation where TF1 has Relu" in finding.title
    before, after = finding.port.line.split(", used at ")
    assert marked(port)[0] in before
    assert after.endswith(marked(port, "# USED")[0])


OF_MODULE = tf_keras.losses.Huber(0.25)


def given(port_loss, **arguments):
    """Return a TrainStep, as a helper function of a test would make it."""
    return TrainStep(
        labels=numbers(4, 2, seed=1) * 2,
        tf1_loss=v1.losses.huber_loss,
        port_loss=port_loss,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
        **arguments,
    )


def assigned():
    delta = 0.5
    port_loss = keras.losses.Huber(delta)  # HERE
    other = keras.losses.Huber(1.0)
    return given(port_loss), other


def in_the_call():
    return given(
        keras.losses.Huber(0.5),  # HERE
    )


def in_a_dict():
    arguments = {
        "port_loss": keras.losses.Huber(0.5),  # HERE
    }
    return given(**arguments)


def of_module():
    return given(OF_MODULE)  # HERE


def a_function_of_keras():
    return given(
        port_loss=tf_keras.losses.mean_squared_error,  # HERE
    )


def an_own_function():
    return TrainStep(
        labels=numbers(4, 2, seed=1),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=lambda labels, outputs: keras.ops.mean(keras.losses.huber(labels, outputs, 0.5)),  # HERE
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
    )


def a_partial():
    huber = functools.partial(tf_keras.losses.huber, delta=0.5)  # HERE
    mean = functools.partial(scaled, huber)
    return given(huber), mean


def scaled(loss, labels, outputs):
    return 2 * loss(labels, outputs)


class OwnHuber(keras.losses.Loss):
    def call(self, labels, outputs):
        return keras.losses.huber(labels, outputs, delta=0.5)  # HERE


def of_own_class():
    return given(OwnHuber(name="own"))


@pytest.mark.parametrize(
    "make",
    [assigned, in_the_call, in_a_dict, of_module, a_function_of_keras, an_own_function, a_partial],
)
def test_a_loss_that_keras_computes_has_the_line_that_makes_it(make):
    train = make()
    train = train[0] if isinstance(train, tuple) else train
    assert train.line_of_loss("port").endswith(marked(make)[0])


def test_a_copy_of_the_training_has_the_same_line():
    train = in_the_call()
    assert dataclasses.replace(train, steps=3).line_of_loss("port") == train.line_of_loss("port")


def a_pair():
    made = keras.metrics.MeanSquaredError()  # HERE
    return given(keras.losses.MeanSquaredError(), metrics={"error": (v1.metrics.mean_absolute_error, made)})


def a_metric_in_a_dict():
    return given(
        keras.losses.MeanSquaredError(),
        metrics={
            "error": (
                v1.metrics.mean_absolute_error,
                keras.metrics.MeanSquaredError(),  # HERE
            ),
        },
    )


def a_function_as_metric():
    def squared(labels, outputs):  # HERE
        return tf.reduce_mean(tf.square(labels - outputs))

    return given(keras.losses.MeanSquaredError(), metrics={"error": (v1.metrics.mean_absolute_error, squared)})


@pytest.mark.slow
@pytest.mark.parametrize("make", [a_pair, a_metric_in_a_dict, a_function_as_metric])
def test_a_metric_that_differs_has_the_lines_that_make_it(make):
    def tf1(inputs, training):
        return tf.matmul(inputs, kernel("only/kernel", 3, 2))

    port = functools.partial(keras.layers.Dense, 2, use_bias=False, name="only")
    migration = Migration(tf1=tf1, port=port, inputs=numbers(4, 3), train=make())
    findings = validate(migration, checks=["training-steps"]).findings
    (finding,) = [each for each in findings if each.title == "metrics['error'] differs in step 0"]
    assert finding.port.line.endswith(marked(make)[0])
    assert "v1.metrics.mean_absolute_error" in finding.tf1.source


def test_a_copy_of_the_training_has_the_lines_of_new_metrics():
    train = dataclasses.replace(a_pair(), metrics={"error": keras.metrics.MeanSquaredError()})  # HERE
    (here,) = marked(test_a_copy_of_the_training_has_the_lines_of_new_metrics)
    assert train.line_of_metric("port", "error").endswith(here)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "line"), [(in_a_dict, in_a_dict), (of_own_class, OwnHuber)])
def test_a_finding_about_a_loss_has_that_line_or_that_of_the_users_own_code(make, line):
    def tf1(inputs, training):
        return tf.matmul(inputs, kernel("only/kernel", 3, 2))

    port = functools.partial(keras.layers.Dense, 2, use_bias=False, name="only")
    migration = Migration(tf1=tf1, port=port, inputs=numbers(4, 3), train=make())
    findings = validate(migration, checks=["training-steps"]).findings
    assert findings
    assert all(finding.port.line.endswith(marked(line)[0]) for finding in findings)


def two_layers(change):
    """Return TF1's model of two layers, whose hidden units a function changes for the second layer."""

    def tf1(inputs, training):
        hidden = tf.tanh(tf.matmul(inputs, kernel("first/kernel", 3, 4)))
        return tf.matmul(change(hidden), kernel("second/kernel", 4, 2))

    return tf1


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, "tanh", use_bias=False, name="first")
        self.second = keras.layers.Dense(2, use_bias=False, name="second")

    def call(self, inputs, training=False):
        hidden = self.first(inputs)  # BEFORE
        return self.second(self.changed(hidden))

    def changed(self, hidden):
        return hidden


class Stopped(TwoLayers):
    def changed(self, hidden):
        return keras.ops.stop_gradient(hidden)  # HERE


class RoundedStraight(TwoLayers):
    def changed(self, hidden):
        return hidden + tf.stop_gradient(tf.floor(4 * hidden) / 4 - hidden)


class Rounded(TwoLayers):
    def changed(self, hidden):
        return tf.floor(4 * hidden) / 4  # HERE


class Reversed(TwoLayers):
    def changed(self, hidden):
        return reversed_gradient(hidden)


@tf.custom_gradient
def reversed_gradient(inputs):
    return tf.identity(inputs), lambda gradient: -gradient


def straight(hidden):
    return hidden + tf.stop_gradient(tf.floor(4 * hidden) / 4 - hidden)


def floor(hidden):
    return tf.floor(4 * hidden) / 4


class StopsLabels:
    """A loss that stops the gradients of the outputs in one of its terms."""

    def __call__(self, labels, outputs):
        error = labels - outputs
        target = tf.stop_gradient(outputs)  # HERE
        return tf.reduce_mean(error**2) + tf.reduce_mean(tf.square(target))


def squares(labels, outputs):
    return tf.reduce_mean((labels - outputs) ** 2) + tf.reduce_mean(tf.square(outputs))


def of_gradients(tf1, port, port_loss=squares, tf1_loss=squares):
    """Return the finding about the gradients of a training."""
    train = TrainStep(
        labels=numbers(6, 2, seed=1),
        tf1_loss=tf1_loss,
        port_loss=port_loss,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
    )
    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=numbers(6, 3), train=train)).findings
    return finding


@pytest.mark.slow_except("identity-Stopped-*", "reversed_gradient-*")
@pytest.mark.parametrize(
    ("change", "port", "title", "expected"),
    [
        (tf.identity, Stopped, "only the port stops gradients of first/kernel (tf.stop_gradient)", marked(Stopped)),
        (tf.stop_gradient, TwoLayers, "only TF1 stops", marked(TwoLayers, "# BEFORE")),
        (straight, Rounded, "only the port stops gradients of first/kernel (Floor)", marked(Rounded)),
        (floor, RoundedStraight, "only TF1 stops gradients of first/kernel (Floor)", ["test_lines.py"]),
        (tf.identity, Reversed, "only the port replaces gradients of first/kernel", ["test_lines.py"]),
        (reversed_gradient, TwoLayers, "only TF1 replaces", marked(TwoLayers, "# BEFORE")),
    ],
)
def test_gradients_that_only_one_program_stops_have_the_op_at_which_they_stop(change, port, title, expected):
    finding = of_gradients(two_layers(change), port)
    assert finding.title.startswith(title)
    assert expected[0] in finding.port.line


def test_gradients_stop_in_a_loss():
    finding = of_gradients(two_layers(tf.identity), TwoLayers, port_loss=StopsLabels())
    assert "only the port stops gradients" in finding.title
    assert finding.port.line.endswith(marked(StopsLabels)[0])


def test_a_stop_is_named_only_where_it_explains_which_gradients_differ():
    """Both kernels have other gradients; what both programs stop explains neither."""

    def tf1_loss(labels, outputs):
        return squares(labels, reversed_gradient(outputs))

    finding = of_gradients(two_layers(tf.stop_gradient), Stopped, tf1_loss=tf1_loss)
    assert "first/kernel" not in finding.title


def of_positions(index):
    """Return TF1's model that adds rows of a table, for which a function computes indices from positions."""

    def tf1(inputs, training):
        return inputs + tf.gather(v1.get_variable("table", [6, 3]), index(tf.range(6)))

    return tf1


class OfPositions(keras.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(6, 3), name="table")

    def call(self, inputs, training=False):
        return inputs + keras.ops.take(self.table, self.index(keras.ops.arange(6)), axis=0)


class OfRemainders(OfPositions):
    def index(self, positions):
        x = positions[::-1][1:]
        x = keras.ops.concatenate([positions[:1], x[::-1][:3], x[1:3]], 0)
        return x % 4  # HERE


class OfLimits(OfPositions):
    def index(self, positions):
        distances = positions[None] - positions[:, None]
        x = keras.ops.abs(distances)[0]
        return keras.ops.minimum(x, 2)  # HERE


def remainders(positions):
    x = positions[::-1][1:]
    return tf.concat([positions[:1], x[::-1][:3], x[1:3]], 0) % 3


def limits(positions):
    return tf.minimum(tf.abs(positions[None] - positions[:, None])[0], 3)


@pytest.mark.slow
@pytest.mark.parametrize(("index", "port"), [(remainders, OfRemainders), (limits, OfLimits)])
def test_a_number_among_positions_has_its_line(index, port):
    """All that is computed from positions is constant, and has no values of its own in a trace."""
    (finding,) = validate(Migration(tf1=of_positions(index), port=port, inputs=numbers(6, 3))).findings
    assert finding.confirmed
    assert finding.port.line.endswith(marked(port)[0])


@pytest.mark.parametrize(
    "source",
    [
        "made = given(keras.losses.Huber(0.5))",
        "huber = keras.losses.Huber(0.5)\nmade = given(huber)",
        "made = (lambda loss: given(loss))(keras.losses.Huber(0.5))",
    ],
)
def test_a_loss_of_code_without_a_file_has_a_line_or_none(source):
    names = {"keras": keras, "given": given}
    exec(compile(source, "<cell 3>", "exec"), names)
    assert names["made"].line_of_loss("port") in {"", *(f"<cell 3>:{n}" for n in (1, 2))}


class Adding(keras.layers.Layer):
    def __init__(self, factor=0.3):
        super().__init__()
        self.factor = factor

    def call(self, inputs, training=False):
        if self.factor:
            loss = self.factor * keras.ops.mean(inputs**2)  # HERE
            self.add_loss(loss)
        return inputs * 2.0


def adding_nothing():
    return Adding(0.0)  # HERE


class AddingInside(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = Adding()

    def call(self, inputs, training=False):
        return self.inner(inputs)


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (Adding, marked(Adding)),
        (AddingInside, marked(Adding)),
        (adding_nothing, marked(adding_nothing)),
    ],
)
def test_a_loss_that_a_model_adds_has_its_line_and_else_that_of_the_model(port, expected):
    lines = []

    def tf1(inputs, training):
        v1.losses.add_loss(tf.reduce_mean(inputs**2))
        lines.append(inspect.currentframe().f_lineno - 1)
        return inputs * 2.0

    (finding,) = validate(Migration(tf1=tf1, port=port, inputs=numbers(4, 3))).findings
    assert finding.kind == "regularizers"
    assert finding.tf1.line.endswith(f"test_lines.py:{lines[0]}")
    assert expected[0] in finding.port.line


def test_a_moving_average_that_differs_in_training_has_the_line_that_updates_it():
    class WithFactor(Averaging):
        decay = 0.5

        def build(self, shape):
            super().build(shape)
            self.factor = self.add_weight(shape=(3,), name="factor")

        def call(self, inputs, training=False):
            return super().call(inputs, training) * self.factor

    def tf1(inputs, training):
        return averaging(0.9)(inputs, training) * v1.get_variable("factor", [3])

    train = TrainStep(
        labels=numbers(4, 3, seed=1),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=3,
    )
    migration = Migration(tf1=tf1, port=WithFactor, inputs=numbers(4, 3) + 1, train=train)
    (check,) = validate(migration, checks=["training-steps"]).checks
    (finding,) = check.findings
    assert finding.kind == "averages"
    assert finding.port.line.endswith(marked(Averaging)[0])


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_weight_that_a_model_adds_by_itself_has_the_line_that_adds_it(kit):
    class Scaled(kit.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(3,), initializer="zeros", name="scale")  # HERE
            self.last = kit.layers.Dense(2, kernel_initializer="zeros", name="last")

        def call(self, inputs):
            return self.last(inputs * self.scale)

    def scaled(inputs, training):
        scale = v1.get_variable("scale", [3], initializer=v1.ones_initializer())
        kernel = v1.get_variable("last/kernel", [3, 2], initializer=v1.zeros_initializer())
        return tf.matmul(inputs * scale, kernel) + v1.get_variable("last/bias", [2], initializer=v1.zeros_initializer())

    (finding,) = validate(Migration(tf1=scaled, port=Scaled, inputs=numbers(4, 3))).findings
    assert finding.port.line.endswith(marked(Scaled)[0]), str(finding)
