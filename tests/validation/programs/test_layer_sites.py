"""The lines that make layers and optimizers."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, TrainStep, validate
from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.comparison.leaves import OUTPUT
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.programs.layer_sites import LayerSites
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.training.port import lines_of_optimizer

v1 = tf.compat.v1


def line_here(offset=0):
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno + offset}"


def subclass_of(base):
    class Own(base):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)

    class Further(Own):
        def __init__(self, *arguments):
            super().__init__(*arguments)

    return Further


@pytest.mark.parametrize(
    ("base", "arguments"),
    [
        (keras.optimizers.SGD, (0.1,)),
        (tf_keras.optimizers.SGD, (0.1,)),
        (v1.train.GradientDescentOptimizer, (0.1,)),
        (v1.train.ExponentialMovingAverage, (0.9,)),
        (keras.layers.Dense, (3,)),
        (tf_keras.layers.Dense, (3,)),
    ],
)
def test_the_line_is_that_of_the_call_and_not_of_a_constructor(base, arguments):
    sites, kind = LayerSites(), subclass_of(base)
    with sites.watched():
        made, line = kind(*arguments), line_here()
    assert sites.line_of(made).endswith(line)
    assert sites.made(base) == [made]


@pytest.mark.slow
def test_a_port_that_the_validation_makes_has_the_line_of_its_class():
    """The line that starts the validation is no line of the port."""

    def tf1(inputs, training):
        return inputs * v1.get_variable("factor", [3])

    train = TrainStep(
        labels=np.ones((2, 3), np.float32),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_train_op=lambda loss: v1.train.GradientDescentOptimizer(0.1).minimize(loss),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
    )

    class OfOnes(keras.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

        def call(self, inputs, training=False):
            return inputs * self.factor

    call = inspect.getsourcelines(OfOnes.call)[1]
    migration = Migration(tf1=tf1, port=OfOnes, inputs=np.ones((2, 3), np.float32), train=train)
    places = [finding.port.line for finding in validate(migration).findings if finding.port]
    assert places and all(place.endswith(f"test_layer_sites.py:{call}") for place in places), places


class Noam(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        return 0.1 * tf.minimum(step**-0.5, step * 4.0**-1.5)

    def get_config(self):
        return {}


def halved(step):
    return 0.1 / (1.0 + tf.cast(step, tf.float32))


OF_NOAM = inspect.getsourcelines(Noam.__call__)[1] + 2
OF_FUNCTION = inspect.getsourcelines(halved)[1] + 1


@pytest.mark.parametrize("optimizers", [keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy])
@pytest.mark.parametrize("in_two_lines", [False, True])
def test_a_schedule_has_the_line_that_makes_it(optimizers, in_two_lines):
    schedules = keras.optimizers.schedules if optimizers is keras.optimizers else tf_keras.optimizers.schedules
    line = line_here(4)  # in this order, the schedule is made before the optimizer

    def make():
        if in_two_lines:
            rate = schedules.ExponentialDecay(0.1, 3, 0.5)
            return optimizers.Adam(learning_rate=rate)
        return optimizers.Adam(schedules.CosineDecay(0.1, 3))

    lines = lines_of_optimizer(make)
    made, of_rate = (int(lines[name].rpartition(":")[2]) for name in ("optimizer", "learning_rate"))
    expected = int(line.rpartition(":")[2])
    assert (made, of_rate) == ((expected + 1, expected) if in_two_lines else (expected + 2, expected + 2))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: keras.optimizers.SGD(Noam()), OF_NOAM),
        (lambda: keras.optimizers.SGD(learning_rate=Noam(), momentum=0.9), OF_NOAM),
        (lambda: tf_keras.optimizers.legacy.SGD(lambda: halved(3)), OF_FUNCTION),
    ],
)
def test_a_rate_that_the_user_computes_has_that_line(make, line):
    assert lines_of_optimizer(make)["learning_rate"].endswith(f"test_layer_sites.py:{line}")


@pytest.mark.parametrize("rate", [0.1, lambda: 0.1])
def test_a_rate_that_nothing_computes_has_the_line_of_the_optimizer(rate):
    lines, line = lines_of_optimizer(lambda: keras.optimizers.Adam(rate)), line_here()
    assert lines["optimizer"].endswith(line)
    assert lines["learning_rate"] == lines["optimizer"]


@pytest.mark.slow
def test_the_rate_of_tf1_has_the_line_that_computes_it():
    """A schedule of TF1 is a tensor: the line of the optimizer does not show it."""
    of_rate = []

    def tf1_optimizer():
        rate = v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 1, 0.5)
        of_rate.append(line_here(-1))
        return v1.train.GradientDescentOptimizer(rate)

    train = TrainStep(
        labels=np.ones((2, 3), np.float32),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=tf1_optimizer,
        port_optimizer=lambda: keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)),
        steps=3,
    )

    def tf1(inputs, training):
        return inputs * v1.get_variable("factor", [3])

    class Port(keras.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), name="factor")

        def call(self, inputs, training=False):
            return inputs * self.factor

    (finding,) = validate(Migration(tf1=tf1, port=Port, inputs=np.ones((2, 3), np.float32), train=train)).findings
    assert finding.tf1.line.endswith(of_rate[0])
    assert "InverseTimeDecay" in finding.port.source


def lines_of_ops(port, *shape):
    """Return the lines of the ops of a port by their types."""
    inputs = np.zeros(shape, np.float32)
    migration = Migration(tf1=lambda inputs, training: inputs * v1.get_variable("w", []), port=port, inputs=inputs)
    graph = traced_port(migration, RunConfig(training=False), {}, None)
    needed = all_upstream(map(op_of, graph.outputs.values()), lambda name: graph.ops[name].sources)
    found = {}
    for op in graph.ops.values():
        if op.name in needed and op.name != op_of(graph.outputs[OUTPUT]) and op.type != "Placeholder":
            found.setdefault(op.type, set()).add(op.line.replace(__file__, "here"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("applications", [keras.applications, tf_keras.applications])
def test_each_op_of_a_model_that_keras_makes_has_the_line_that_asks_for_it(applications):
    def port():
        return applications.MobileNet(weights=None, input_shape=(32, 32, 3), alpha=0.25, classes=3)

    lines = set().union(*lines_of_ops(port, 1, 32, 32, 3).values())
    made = f"here:{inspect.getsourcelines(port)[1] + 1}"
    assert lines == {made}


class Padded(keras.Model):
    def __init__(self):
        super().__init__()
        self.pad = keras.layers.ZeroPadding2D()

    def call(self, inputs, training=False):
        x = self.pad(inputs)
        return keras.ops.pad(keras.ops.relu(x), [(0, 0), (1, 1), (1, 1), (0, 0)])


def test_an_op_that_a_layer_of_keras_makes_in_its_call_has_the_lines_of_the_layer():
    made, call = (inspect.getsourcelines(method)[1] for method in (Padded.__init__, Padded.call))
    lines = lines_of_ops(Padded, 1, 4, 4, 3)
    assert lines["Relu"] == {f"here:{call + 2}"}
    assert f"here:{made + 2}, called at here:{call + 1}" in lines["Pad"]

    def sequential():
        return keras.Sequential([keras.layers.ZeroPadding2D(), keras.layers.ReLU(), keras.layers.ReLU()])

    assert lines_of_ops(sequential, 1, 4, 4, 3)["Pad"] == {f"here:{inspect.getsourcelines(sequential)[1] + 1}"}
