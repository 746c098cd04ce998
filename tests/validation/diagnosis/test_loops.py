"""Loops of both programs, compared iteration by iteration."""

import linecache

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from keras import ops

from detrand import DeterministicRandomTestTool, Migration, validate
from detrand.validation.diagnosis.loops import unrolled
from detrand.validation.diagnosis.trace import lines_of

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def straight(make, **inputs):
    """Return what `unrolled` makes of a graph, and a function that computes tensors of it."""
    with tf.Graph().as_default() as graph:
        placeholders = {name: tf.placeholder(tf.float32, array.shape, name) for name, array in inputs.items()}
        make(**placeholders)
    feeds = {f"{name}:0": array for name, array in inputs.items()}

    def fetch(definition, names):
        with tf.Graph().as_default() as imported:
            tf.import_graph_def(definition, name="")
            with tf.Session(graph=imported) as session:
                return session.run({name: f"{name}:0" for name in names}, feeds)

    found = unrolled(graph, fetch, lines_of)
    return found, (None if found is None else lambda *names: fetch(found.graph.as_graph_def(), names))


def test_each_iteration_has_its_values():
    def make(x):
        tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.add(y * 2.0, x, name="next")), (0, x), name="loop")

    found, values = straight(make, x=X)
    names = [f"loop/iteration_{number}/next" for number in range(3)]
    np.testing.assert_array_equal(list(values(*names).values()), [3 * X, 7 * X, 15 * X])
    np.testing.assert_array_equal(values("loop/iteration_2/next")["loop/iteration_2/next"], 15 * X)
    assert {linecache.getline(*split(found.lines[name])).strip()[:13] for name in names} == {"tf.while_loop"}


def split(line):
    name, _, number = line.rpartition(":")
    return name, int(number)


def test_loops_in_loops_are_unrolled():
    def make(x):
        def outer(i, y):
            _, y = tf.while_loop(
                lambda j, _: j <= i, lambda j, z: (j + 1, tf.multiply(z, 2.0, "twice")), (0, y), name="in"
            )
            return i + 1, y

        tf.while_loop(lambda i, y: i < 2, outer, (0, x), name="out")

    _, values = straight(make, x=X)
    names = [f"out/iteration_{i}/in/iteration_{j}/twice" for i, j in [(0, 0), (1, 0), (1, 1)]]
    np.testing.assert_array_equal(list(values(*names).values()), [2 * X, 4 * X, 8 * X])


@pytest.mark.parametrize(
    ("step", "most"), [(tf.random.shuffle, 3), (lambda y: y + 1.0, 1000)], ids=["draws", "too long"]
)
def test_other_loops_stay(step, most):
    def make(x):
        tf.while_loop(lambda i, y: i < most, lambda i, y: (i + 1, step(y)), (0, x))

    assert straight(make, x=X)[0] is None


def test_random_ops_draw_in_each_iteration_what_they_draw_in_the_loop():
    def make(x):
        def outer(i, y):
            y = y + tf.random.normal([3, 4], seed=5)
            _, y = tf.while_loop(lambda j, _: j < 2, lambda j, z: (j + 1, z * tf.random.uniform([4], seed=6)), (0, y))
            return i + 1, tf.identity(y, "next")

        with DeterministicRandomTestTool(seed=3).scope():
            total = tf.while_loop(lambda i, y: i < 3, outer, (0, x), name="loop")[1]
        tf.identity(total, "total")
        with tf.Session() as session:
            expected.append(session.run(total, {x: X}))

    expected = []
    found, _ = straight(make, x=X)
    with tf.Session(graph=found.graph) as session:
        feeds = {"x:0": X, **{f"{name}:0": array for name, array in found.drawn.items()}}
        np.testing.assert_array_equal(session.run("loop/iteration_2/next:0", feeds), expected[0])
        np.testing.assert_array_equal(session.run("total:0", feeds), expected[0])
    assert len(found.drawn) == 3 + 6


SEQUENCE = np.random.default_rng(5).standard_normal((2, 5, 3)).astype(np.float32)


def filtered(x, training):
    """A recurrence with a forget gate, and a state that is no output."""
    kernel, gate = (tf.get_variable(name, [5, 2]) for name in ("kernel", "gate"))

    def body(i, h, total):
        both = tf.concat([x[:, i], h], 1)
        g = tf.sigmoid(tf.matmul(both, gate))
        h = g * h + (1.0 - g) * tf.tanh(tf.matmul(both, kernel))
        return i + 1, h, total + tf.square(h)

    return tf.while_loop(lambda i, *_: i < 5, body, (0, tf.fill([2, 2], 0.3), tf.zeros([2, 2])))[2]


class Cell(keras.layers.Layer):
    state_size = (2, 2)
    output_size = 2

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def build(self, shape):
        self.kernel, self.gate = (
            self.add_weight(shape=(5, 2), initializer="glorot_uniform", name=name) for name in ("kernel", "gate")
        )

    def get_initial_state(self, batch_size=None):
        return [ops.full((2, 2), 0.3), ops.zeros((2, 2))]

    def call(self, x, states):
        h, total = states
        both = ops.concatenate([h, x] if self.fault == "order" else [x, h], 1)  # order
        g = ops.sigmoid(ops.matmul(both, self.gate) + (0.5 if self.fault == "bias" else 0.0))  # bias
        new = ops.tanh(ops.matmul(both, self.kernel))
        h = g * h + (1.0 - g) * (ops.relu(new) if self.fault == "activation" else new)  # activation
        total = total + (ops.abs(h) if self.fault == "square" else ops.square(h))  # square
        return total, [h, total]


class Unrolled(keras.Model):
    """The same loop in Python."""

    def __init__(self, fault):
        super().__init__()
        self.cell = Cell(fault)

    def build(self, shape):
        self.cell.build(shape)

    def call(self, x, training=False):
        states = self.cell.get_initial_state()
        for number in range(5):
            output, states = self.cell(x[:, number], states)
        return output


PORTS = {"loop": lambda fault: keras.layers.RNN(Cell(fault)), "python": Unrolled}


@pytest.mark.slow
@pytest.mark.parametrize("form", PORTS)
@pytest.mark.parametrize("fault", ["", "order", "bias", "activation", "square"])
def test_a_fault_of_each_iteration_is_at_its_line_in_the_cell(form, fault):
    report = validate(Migration(tf1=filtered, port=lambda: PORTS[form](fault), inputs=SEQUENCE))
    if not fault:
        assert report.ok, str(report)
        return
    first = report.findings[0]
    assert first.port.source.endswith(f"# {fault}"), str(report)
    assert first.confirmed
    assert len(report.findings) < 5, "not one finding for each iteration"
