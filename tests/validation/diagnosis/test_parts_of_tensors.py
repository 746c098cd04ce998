"""Parts of one tensor, such as the gates of a recurrent cell, that a port takes in a different order than TF1."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, lstm_cell_to_torch, validate

v1 = tf.compat.v1
UNITS, STEPS = 4, 3
SEQUENCES = np.random.default_rng(2).normal(size=(5, STEPS, 3)).astype(np.float32)
LENGTHS = np.array([3, 1, 2, 3, 2], np.int32)


def weights(name, *shape):
    return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=0.5))


def lstm(inputs, training):
    kernel, hidden = weights("kernel", 3 + UNITS, 4 * UNITS), tf.zeros((tf.shape(inputs)[0], UNITS))
    cell = hidden
    for step in range(STEPS):
        gates = tf.matmul(tf.concat([inputs[:, step], hidden], 1), kernel)
        i, j, f, o = tf.split(gates, 4, axis=1)
        cell = cell * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        hidden = tf.sigmoid(o) * tf.tanh(cell)
    return hidden


class LSTM(keras.Model):
    """An LSTM that slices its gates, in an order of the keyword."""

    def __init__(self, order="ijfo"):
        super().__init__()
        self.order = order
        start = keras.initializers.RandomNormal(stddev=0.5)
        self.kernel = self.add_weight((3 + UNITS, 4 * UNITS), start, name="kernel")

    def call(self, inputs):
        hidden = cell = keras.ops.zeros((inputs.shape[0], UNITS))
        for step in range(STEPS):
            gates = keras.ops.matmul(keras.ops.concatenate([inputs[:, step], hidden], -1), self.kernel)
            parts = [gates[:, n * UNITS : (n + 1) * UNITS] for n in range(4)]
            i, j, f, o = (parts[self.order.index(gate)] for gate in "ijfo")
            cell = cell * keras.ops.sigmoid(f + 1.0) + keras.ops.sigmoid(i) * keras.ops.tanh(j)
            hidden = keras.ops.sigmoid(o) * keras.ops.tanh(cell)
        return hidden


def gru(inputs, lengths, training):
    """Attend to the states of a GRU that stay at the ends of sequences."""
    of_gates, of_state = weights("gates", 3 + UNITS, 2 * UNITS), weights("state", 3 + UNITS, UNITS)
    mask = tf.sequence_mask(lengths, STEPS, dtype=tf.float32)
    hidden, states = tf.zeros((tf.shape(inputs)[0], UNITS)), []
    for step in range(STEPS):
        given = inputs[:, step]
        r, u = tf.split(tf.sigmoid(tf.matmul(tf.concat([given, hidden], 1), of_gates)), 2, axis=1)
        new = tf.tanh(tf.matmul(tf.concat([given, r * hidden], 1), of_state))
        new = u * hidden + (1.0 - u) * new
        hidden = mask[:, step, None] * new + (1.0 - mask[:, step, None]) * hidden
        states.append(hidden)
    memory = tf.stack(states, 1)
    scores = tf.einsum("btu,uo->bt", memory, weights("query", UNITS, 1)) + (1.0 - mask) * -1e9
    context = tf.einsum("bt,btu->bu", tf.nn.softmax(scores), memory)
    return tf.matmul(context + hidden, weights("last", UNITS, 2))


class GRU(keras.Model):
    """The model, with one change."""

    def __init__(self, change=""):
        super().__init__()
        self.change = change
        shapes = {"gates": (3 + UNITS, 2 * UNITS), "state": (3 + UNITS, UNITS), "query": (UNITS, 1), "last": (UNITS, 2)}
        start = keras.initializers.RandomNormal(stddev=0.5)
        self.of = {name: self.add_weight(shape, start, name=name) for name, shape in shapes.items()}

    def call(self, inputs, lengths):
        ops = keras.ops
        mask = ops.arange(STEPS) < lengths[:, None]
        hidden, states = ops.zeros((inputs.shape[0], UNITS)), []
        for step in range(STEPS):
            given = inputs[:, step]
            gates = ops.sigmoid(ops.matmul(ops.concatenate([given, hidden], -1), self.of["gates"]))
            r, u = ops.split(gates, 2, axis=-1)
            r, u = (u, r) if self.change == "exchanged" else (r, u)
            new = ops.tanh(ops.matmul(ops.concatenate([given, r * hidden], -1), self.of["state"]))
            new = (1.0 - u) * hidden + u * new if self.change == "update" else u * hidden + (1.0 - u) * new
            hidden = new if self.change == "going on" else ops.where(mask[:, step, None], new, hidden)
            states.append(hidden)
        memory = ops.stack(states, 1)
        scores = ops.einsum("btu,uo->bt", memory, self.of["query"])
        scores = ops.where(mask, scores, -1e9)
        context = ops.einsum("bt,btu->bu", ops.softmax(scores), memory)
        return ops.matmul(context + hidden, self.of["last"])


def findings(tf1, port, *inputs):
    return validate(Migration(tf1=tf1, port=port, inputs=inputs)).findings


@pytest.mark.slow
def test_parts_in_the_same_order_pass():
    assert not findings(lstm, LSTM, SEQUENCES)
    assert not findings(gru, GRU, SEQUENCES, LENGTHS)
    assert not findings(towers, Towers, SEQUENCES[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "parts"),
    [
        pytest.param("ifjo", "0, 2, 1, 3", id="two"),
        pytest.param("ojfi", "3, 1, 2, 0", id="two that are activated alike"),
        pytest.param("fijo", "1, 2, 0, 3", id="three"),
        pytest.param("fioj", "1, 3, 0, 2", id="all"),
    ],
)
def test_gates_in_another_order_are_one_finding_at_the_lines_that_split(order, parts):
    (finding,) = findings(lstm, lambda: LSTM(order), SEQUENCES)
    title = f"order of the parts of MatMul differs: 0, 1, 2, 3 (TF1), {parts} (port)"
    assert (finding.title, finding.confirmed) == (title, "with the parts in TF1's order, the rest agrees")
    assert [place.source.split(" = ")[0] for place in (finding.tf1, finding.port)] == ["i, j, f, o", "parts"]


def towers(inputs, training):
    parts = [tf.tanh(tf.matmul(inputs, weights(f"in_{n}", 3, 2))) for n in range(3)]
    return tf.matmul(tf.concat(parts, 1), weights("out", 6, 2))


class Towers(keras.Model):
    """The towers as one layer, whose parts are joined once more, in an order of the keyword."""

    def __init__(self, order=(0, 1, 2)):
        super().__init__()
        self.order = order
        shapes = {**{f"in_{n}": (3, 2) for n in range(3)}, "out": (6, 2)}
        *self.kernels, self.out = (
            self.add_weight(shape, keras.initializers.RandomNormal(stddev=0.5), name=name)
            for name, shape in shapes.items()
        )

    def call(self, inputs):
        ops = keras.ops
        parts = ops.split(ops.tanh(ops.matmul(inputs, ops.concatenate(self.kernels, -1))), 3, axis=-1)
        joined = ops.concatenate([parts[number] for number in self.order], axis=-1)
        return ops.matmul(joined, self.out)


@pytest.mark.slow_except("last two")
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (0, 2, 1)], ids=["first two", "all", "last two"])
def test_parts_that_the_port_joins_in_another_order_are_one_finding(order):
    (finding,) = findings(towers, lambda: Towers(order), SEQUENCES[:, 0])
    names = ["Tanh", "Tanh_1", "Tanh_2"]
    in_words = ", ".join(names), ", ".join(names[number] for number in order)
    assert finding.title == "order of the parts that are concatenated differs: {} (TF1), {} (port)".format(*in_words)
    assert finding.remedy == f"use this order in the port: {in_words[0]}"
    assert finding.port.source.startswith("joined = ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "title", "lines"),
    [
        (
            "exchanged",
            "order of the parts of Sigmoid differs: 0, 1 (TF1), 1, 0 (port)",
            ("r, u = tf.split", "r, u = ops.split"),
        ),
        ("update", "Mul takes different tensors: sub (TF1), split:1 (port)", ("new = u * hidden", "new = (1.0 - u)")),
        ("going on", "only TF1 uses input 1 (lengths) here", ("mask = tf.sequence_mask", "gates = ops.sigmoid")),
    ],
    ids=["exchanged", "update", "going on"],
)
def test_a_fault_before_scores_that_a_mask_hides_has_its_own_lines(change, title, lines):
    (finding,) = findings(gru, lambda: GRU(change), SEQUENCES, LENGTHS)
    assert finding.title == title, str(finding)
    assert finding.tf1.source.startswith(lines[0]) and finding.port.source.startswith(lines[1]), str(finding)


def cells(inputs, training):
    """Return the last state of a GRU in a loop that starts from the last state of another one."""

    def of(scope):
        with v1.variable_scope(scope):
            return weights("gates", 3 + UNITS, 2 * UNITS), weights("state", 3 + UNITS, UNITS)

    def step(of_layer, given, hidden):
        r, u = tf.split(tf.sigmoid(tf.matmul(tf.concat([given, hidden], 1), of_layer[0])), 2, axis=1)
        return u * hidden + (1.0 - u) * tf.tanh(tf.matmul(tf.concat([given, r * hidden], 1), of_layer[1]))

    encoder, decoder = of("encoder"), of("decoder")
    hidden = tf.zeros((tf.shape(inputs)[0], UNITS))
    for number in range(STEPS):
        hidden = step(encoder, inputs[:, number], hidden)
    for number in range(STEPS):
        r, u = tf.split(tf.sigmoid(tf.matmul(tf.concat([inputs[:, number], hidden], 1), decoder[0])), 2, axis=1)
        new = tf.tanh(tf.matmul(tf.concat([inputs[:, number], r * hidden], 1), decoder[1]))
        hidden = u * hidden + (1.0 - u) * new
    return hidden


class Cell(keras.layers.Layer):
    """A GRU cell that computes its new state in a form of its own."""

    def __init__(self, is_exchanged, name):
        super().__init__(name=name)
        self.is_exchanged, start = is_exchanged, keras.initializers.RandomNormal(stddev=0.5)
        self.gates = self.add_weight((3 + UNITS, 2 * UNITS), start, name="gates")
        self.state = self.add_weight((3 + UNITS, UNITS), start, name="state")

    def call(self, given, hidden):
        ops = keras.ops
        gates = ops.sigmoid(ops.matmul(ops.concatenate([given, hidden], -1), self.gates))
        r, u = ops.split(gates, 2, axis=-1)[:: -1 if self.is_exchanged else 1]
        new = ops.tanh(ops.matmul(ops.concatenate([given, r * hidden], -1), self.state))
        return new + u * (hidden - new)


class Cells(keras.Model):
    def __init__(self, is_exchanged):
        super().__init__()
        self.of = [Cell(is_exchanged, name) for name in ("encoder", "decoder")]

    def call(self, inputs):
        hidden = keras.ops.zeros((inputs.shape[0], UNITS))
        for cell in self.of:
            for number in range(STEPS):
                hidden = cell(inputs[:, number], hidden)
        return hidden


@pytest.mark.slow
def test_gates_that_a_class_of_two_layers_exchanges_are_one_finding():
    migration = Migration(tf1=cells, port=lambda: Cells(True), inputs=SEQUENCES)
    (finding,) = validate(migration, checks=["random-inference"]).findings
    title = "order of the parts of Sigmoid differs: 0, 1 (TF1), 1, 0 (port)"
    assert (finding.title, finding.confirmed) == (title, "with the parts in TF1's order, the rest agrees")
    assert finding.port.source.startswith("r, u = ops.split"), str(finding)


@pytest.mark.slow
def test_gates_of_two_layers_in_the_same_order_pass():
    assert not findings(cells, lambda: Cells(False), SEQUENCES)


def started(inputs, training):
    return tf.tanh(tf.matmul(inputs[:, 0], weights("kernel", 3, UNITS)))


class Started(keras.Model):
    """A port that activates differently, with one of two states that are 0."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight((3, UNITS), "normal", name="kernel")

    def call(self, inputs):
        states = keras.ops.zeros((2, inputs.shape[0], UNITS))
        return keras.ops.maximum(keras.ops.matmul(inputs[:, 0], self.kernel), states[0])


def test_parts_that_are_0_do_not_end_the_search():
    migration = Migration(tf1=started, port=Started, inputs=SEQUENCES)
    (finding,) = validate(migration, checks=["random-inference"]).findings
    assert finding.title.startswith("activation differs: Tanh (TF1), Maximum")
    assert finding.port.source.startswith("return keras.ops.maximum"), str(finding)


def before_lstm(inputs, training):
    left, right = (tf.matmul(inputs[:, 0], weights(name, 3, 3)) for name in ("left", "right"))
    distances = tf.sqrt(tf.square(left) + tf.square(right))
    with enable_v1_layers():
        cell = v1.nn.rnn_cell.BasicLSTMCell(UNITS, forget_bias=0.0, name="cell")
        outputs, _ = v1.nn.static_rnn(cell, [distances * inputs[:, step] for step in range(STEPS)], dtype=tf.float32)
    return tf.stack(outputs, 1)


@pytest.mark.slow
def test_gates_that_a_framework_has_in_an_order_of_its_own_are_no_finding_after_a_fault():
    torch = pytest.importorskip("torch")

    class BeforeLSTM(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = (torch.nn.Linear(3, 3, bias=False) for _ in range(2))
            self.lstm = torch.nn.LSTM(3, UNITS, batch_first=True)
            torch.nn.init.zeros_(self.lstm.bias_hh_l0).requires_grad_(False)

        def forward(self, inputs):
            left, right = self.left(inputs[:, 0]), self.right(inputs[:, 0])
            return self.lstm(torch.hypot(left, left + right)[:, None] * inputs)[0]

    name_map = {"left": "left.weight", "right": "right.weight", **lstm_cell_to_torch("rnn/cell", "lstm", 0.0)}
    migration = Migration(tf1=before_lstm, port=BeforeLSTM, inputs=SEQUENCES, name_map=name_map)
    report = validate(migration, checks=["constant-weights", "random-inference"])
    (finding,) = report.findings
    assert finding.confirmed == "with TF1's value here, the rest agrees", str(report)
    assert finding.port.source.startswith("return self.lstm(torch.hypot"), str(finding)


def conditioned(inputs, training):
    scale, shift = (tf.tanh(tf.matmul(inputs[:, 0], weights(name, 3, UNITS))) for name in ("scale", "shift"))
    hidden = tf.matmul(tf.concat([inputs[:, 1], scale], 1), weights("kernel", 3 + UNITS, UNITS))
    return tf.tanh(hidden + scale) * tf.sigmoid(shift)


class Conditioned(keras.Model):
    """A port that passes two tensors in each other's places, to what takes the first one as a matrix product."""

    def __init__(self, is_exchanged=True):
        super().__init__()
        self.is_exchanged, start = is_exchanged, keras.initializers.RandomNormal(stddev=0.5)
        shapes = {"scale": (3, UNITS), "shift": (3, UNITS), "kernel": (3 + UNITS, UNITS)}
        self.of = {name: self.add_weight(shape, start, name=name) for name, shape in shapes.items()}

    def layer(self, given, scale, shift):
        ops, kernel = keras.ops, self.of["kernel"]
        hidden = ops.matmul(given, kernel[:3]) + ops.matmul(scale, kernel[3:])
        return ops.tanh(hidden + scale) * ops.sigmoid(shift)

    def call(self, inputs):
        scale, shift = (keras.ops.tanh(keras.ops.matmul(inputs[:, 0], self.of[name])) for name in ("scale", "shift"))
        return self.layer(inputs[:, 1], *((shift, scale) if self.is_exchanged else (scale, shift)))


def test_tensors_that_a_layer_takes_in_each_others_places_are_one_finding():
    migration = Migration(tf1=conditioned, port=Conditioned, inputs=SEQUENCES)
    (finding,) = validate(migration, checks=["random-inference"]).findings
    assert finding.title == "two tensors are swapped: Tanh and Tanh_1", str(finding)
    assert finding.confirmed == "with the two exchanged, the rest agrees"
    assert finding.port.source.startswith("hidden = ops.matmul"), str(finding)


@pytest.mark.slow
def test_tensors_in_their_own_places_pass():
    migration = Migration(tf1=conditioned, port=lambda: Conditioned(False), inputs=SEQUENCES)
    assert validate(migration, checks=["constant-weights", "random-inference"]).ok
