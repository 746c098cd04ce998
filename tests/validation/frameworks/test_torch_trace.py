"""Ports to PyTorch with a fault: the finding names the function of PyTorch, its line, and the cause.

Each network is sound without a fault, and has no finding then.
"""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, enable_v1_layers, lstm_cell_to_torch, validate
from tests.faults.tf1 import numbers

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
v1 = tf.compat.v1
CHECKS = ["constant-weights", "random-inference"]


@pytest.fixture(autouse=True)
def with_v1_layers():
    with enable_v1_layers():
        yield


class Faulty(nn.Module):
    """A module with at most one fault, whose lines end in a comment with the fault's name."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault


# A convolutional network.


def images(x, training):
    hidden = v1.layers.conv2d(x, 6, 3, 2, "same", name="stem")
    hidden = tf.nn.relu6(v1.layers.batch_normalization(hidden, training=training, name="norm"))
    kernel = v1.get_variable("depthwise/kernel", (3, 3, 6, 1))
    hidden = tf.nn.leaky_relu(tf.nn.depthwise_conv2d(hidden, kernel, [1, 1, 1, 1], "SAME"), 0.2)
    hidden = v1.layers.max_pooling2d(hidden, 3, 2, "same")
    return v1.layers.dense(v1.layers.flatten(hidden), 4, name="logits")


class Images(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.stem = nn.Conv2d(3, 6, 3, 2, 1 if fault == "padding" else 0)
        self.norm = nn.BatchNorm2d(6, 1e-5 if fault == "epsilon" else 1e-3, 0.01)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, bias=False)
        self.logits = nn.Linear(54, 4)

    def forward(self, x):
        hidden = x.permute(0, 3, 1, 2)
        if self.fault != "padding":
            hidden = functional.pad(hidden, (0, 1, 0, 1))
        hidden = self.norm(self.stem(hidden))  # epsilon, padding
        activation = functional.relu6 if self.fault != "activation" else torch.relu
        hidden = functional.pad(activation(hidden), (1, 1, 1, 1))  # activation
        slope = 0.3 if self.fault == "slope" else 0.2
        hidden = functional.leaky_relu(self.depthwise(hidden), slope)  # slope
        if self.fault == "pooling padding":
            hidden = functional.max_pool2d(hidden, 3, 2, 1)  # pooling padding
        elif self.fault == "pooling method":
            hidden = functional.avg_pool2d(functional.pad(hidden, (0, 1, 0, 1)), 3, 2)  # pooling method
        else:
            hidden = functional.max_pool2d(functional.pad(hidden, (0, 1, 0, 1), value=-torch.inf), 3, 2)
        if self.fault != "order of a flatten":
            hidden = hidden.permute(0, 2, 3, 1)
        return self.logits(hidden.flatten(1))  # order of a flatten


# A recurrent network.


def words(x, training):
    hidden = tf.nn.embedding_lookup(v1.get_variable("embeddings", (9, 4)), x)
    cell = v1.nn.rnn_cell.BasicLSTMCell(4, forget_bias=1.0)
    outputs, (_, last) = v1.nn.dynamic_rnn(cell, hidden, dtype=tf.float32)
    return v1.layers.dense(tf.concat([tf.reduce_mean(outputs, 1), last], 1), 3, tf.nn.tanh, name="logits")


class Words(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.embedding = nn.Embedding(9, 4)
        self.lstm, self.logits = nn.LSTM(4, 4, batch_first=True), nn.Linear(8, 3)
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x):
        hidden = self.embedding(x)
        if self.fault == "reversed":
            hidden = hidden.flip(1)  # reversed
        if self.fault == "scaled embeddings":
            hidden = hidden * 2.0  # scaled embeddings
        outputs, (last, _) = self.lstm(hidden)
        mean = outputs.sum(1) if self.fault == "sum" else outputs.mean(1)  # sum
        parts = (last[0], mean) if self.fault == "order of a concat" else (mean, last[0])
        hidden = self.logits(torch.cat(parts, 1))  # order of a concat, missing activation
        if self.fault == "unknown function":
            return functional.mish(hidden)  # unknown function
        return hidden if self.fault == "missing activation" else torch.tanh(hidden)


class OwnCell(Words):
    """Its cell is written as people write it."""

    def __init__(self, fault=""):
        super().__init__(fault)
        del self.lstm
        self.kernel, self.bias = nn.Parameter(torch.zeros(8, 16)), nn.Parameter(torch.zeros(16))

    def forward(self, x):
        hidden, outputs = self.embedding(x), []
        state = memory = torch.zeros(len(x), 4)
        for step in hidden.unbind(1):
            gates = torch.cat([step, state], 1) @ self.kernel + self.bias
            i, j, f, o = gates.chunk(4, 1)
            if self.fault == "gate order":
                i, f, j, o = gates.chunk(4, 1)  # gate order
            forget = torch.sigmoid(f if self.fault == "forget bias" else f + 1.0)  # forget bias
            memory = memory * forget + torch.sigmoid(i) * torch.tanh(j)
            state = torch.tanh(memory) * torch.sigmoid(o)
            outputs.append(state)
        return torch.tanh(self.logits(torch.cat([torch.stack(outputs, 1).mean(1), state], 1)))


# An encoder block.


def encoder(x, training):
    def norm(x, name):
        with v1.variable_scope(name):
            gamma, beta = (v1.get_variable(each, (8,)) for each in ("gamma", "beta"))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)  # out of the scope
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)

    def heads(name):
        return tf.transpose(tf.reshape(v1.layers.dense(x, 8, name=name), (-1, 5, 2, 4)), (0, 2, 1, 3))

    query, key, value = map(heads, ("query", "key", "value"))
    mask = tf.constant(np.triu(np.full((5, 5), -1e9, np.float32), 1))
    scores = tf.matmul(query, key, transpose_b=True) / 2.0 + mask
    context = tf.reshape(tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3)), (-1, 5, 8))
    x = norm(x + v1.layers.dense(context, 8, name="output"), "norm1")
    hidden = v1.layers.dense(x, 12, name="hidden")
    hidden = 0.5 * hidden * (1 + tf.math.erf(hidden / np.float32(np.sqrt(2))))
    return norm(x + v1.layers.dense(hidden, 8, name="last"), "norm2")


class Encoder(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.query, self.key, self.value, self.output = (nn.Linear(8, 8) for _ in range(4))
        self.hidden, self.last = nn.Linear(8, 12), nn.Linear(12, 8)
        epsilon = 1e-3 if fault == "epsilon" else 1e-6
        self.norm1, self.norm2 = nn.LayerNorm(8, 1e-6), nn.LayerNorm(8, epsilon)

    def forward(self, x):
        def heads(layer):
            return layer(x).view(-1, 5, 2, 4).transpose(1, 2)

        query, key, value = map(heads, (self.query, self.key, self.value))
        mask = torch.full((5, 5), -1e9).triu(1)
        if self.fault == "no mask":
            mask = torch.zeros(5, 5)
        if self.fault == "scale":
            scores = query @ key.transpose(-1, -2) / 8**0.5 + mask  # scale
            context = torch.softmax(scores, -1) @ value
        elif self.fault == "axis of a softmax":
            scores = query @ key.transpose(-1, -2) / 2 + mask
            context = torch.softmax(scores, -2) @ value  # axis of a softmax
        else:
            context = functional.scaled_dot_product_attention(query, key, value, mask)  # no mask
        context = context.transpose(1, 2).reshape(-1, 5, 8)
        hidden = self.output(context)
        x = self.norm1(hidden if self.fault == "no residual" else x + hidden)  # no residual
        form = "tanh" if self.fault == "form of GELU" else "none"
        hidden = self.last(functional.gelu(self.hidden(x), approximate=form))  # form of GELU
        if self.fault == "norm before the sum":
            return x + self.norm2(hidden)  # norm before the sum
        return self.norm2(x + hidden)  # epsilon


# A decoder.


def decoder(x, training):
    hidden = tf.nn.relu(v1.layers.dense(x, 32, name="first"))
    hidden = tf.reshape(hidden, (-1, 2, 2, 8))
    hidden = v1.layers.conv2d_transpose(hidden, 6, 3, 2, "same", name="up")
    hidden = v1.layers.batch_normalization(hidden, training=training, name="norm")
    hidden = v1.image.resize_bilinear(tf.nn.elu(hidden), (7, 7), align_corners=True)
    return tf.nn.sigmoid(v1.layers.conv2d(hidden, 3, 3, padding="valid", name="image"))


class Decoder(Faulty):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.first, self.up = nn.Linear(5, 32), nn.ConvTranspose2d(8, 6, 3, 2, *(1, 1) if fault == "cropping" else ())
        self.norm, self.image = nn.BatchNorm2d(6, 1e-3, 0.01), nn.Conv2d(6, 3, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if self.fault == "order of a reshape":
            hidden = hidden.view(-1, 8, 2, 2)  # order of a reshape
        else:
            hidden = hidden.view(-1, 2, 2, 8).permute(0, 3, 1, 2)
        hidden = self.norm(self.up(hidden)[:, :, :4, :4])  # cropping
        form = {"mode": "bilinear", "align_corners": self.fault != "corners"}
        hidden = functional.interpolate(functional.elu(hidden), (7, 7), **form)  # corners
        hidden = self.image(hidden).permute(0, 2, 3, 1)
        return torch.tanh(hidden) if self.fault == "last activation" else torch.sigmoid(hidden)  # last activation


LSTM = lstm_cell_to_torch("rnn/basic_lstm_cell", "lstm", forget_bias=1.0)
LOGITS = {"embeddings": "embedding.weight", "logits/kernel": "logits.weight", "logits/bias": "logits.bias"}
OF_CELL = {f"rnn/basic_lstm_cell/{name}": name for name in ("kernel", "bias")}
PHRASES = np.array([[1, 2, 6, 0, 8], [3, 3, 5, 1, 7]])
NETWORKS = {
    "images": Migration(tf1=images, port=Images, inputs=numbers(3, 12, 12, 3)),
    "words": Migration(tf1=words, port=Words, inputs=PHRASES, name_map={**LSTM, **LOGITS}),
    "own cell": Migration(tf1=words, port=OwnCell, inputs=PHRASES, name_map={**OF_CELL, **LOGITS}),
    "encoder": Migration(tf1=encoder, port=Encoder, inputs=numbers(3, 5, 8)),
    "decoder": Migration(tf1=decoder, port=Decoder, inputs=numbers(4, 5)),
}


def line_of(port, fault):
    """Return the file and line of a port whose comment has a fault's name."""
    for kind in port.__mro__:
        lines, start = inspect.getsourcelines(kind)
        for number, line in enumerate(lines):
            if "  # " in line and fault in line.rpartition("  # ")[2].strip().split(", "):
                return f"test_torch_trace.py:{start + number}"
    raise AssertionError(f"no line of {port.__name__} has the fault {fault!r}")


def validated(network, fault=""):
    migration = NETWORKS[network]
    return validate(replace(migration, port=lambda: migration.port(fault)), checks=CHECKS)


@pytest.mark.slow_except("own cell")
@pytest.mark.parametrize("network", NETWORKS)
def test_a_sound_port_has_no_findings(network):
    report = validated(network)
    assert report.ok, str(report)
    assert not report.findings


FAULTS = [
    ("images", "padding", "padding differs: SAME (TF1), (1, 1) at both ends (port)"),
    ("images", "epsilon", "epsilon differs in norm: 0.001 (TF1), 1e-05 (port)"),
    ("images", "activation", "activation differs: Relu6 (TF1), Relu (port)"),
    ("images", "slope", "slope of the leaky ReLU differs: 0.2 (TF1), 0.3 (port)"),
    ("images", "pooling padding", "padding differs: SAME (TF1), (1, 1) at both ends (port)"),
    ("images", "pooling method", "pooling method differs: MaxPool (TF1), AvgPool (port)"),
    (
        "images",
        "order of a flatten",
        "order of the axes that are flattened differs: (0, 1, 2, 3) (TF1), (0, 3, 1, 2) (port)",
    ),
    ("words", "sum", "reduction differs: Mean (TF1), Sum (port)"),
    ("words", "order of a concat", "order of the inputs differs: "),
    ("words", "missing activation", "the port has no activation where TF1 has Tanh"),
    ("words", "unknown function", "what is computed differs: Tanh (TF1), mish (port)"),
    ("own cell", "forget bias", "only TF1 adds 1.0"),
    ("encoder", "epsilon", "epsilon differs in norm2: 1e-06 (TF1), 0.001 (port)"),
    ("encoder", "no mask", "only TF1 masks the inputs of Softmax (60 of 150 elements)"),
    ("encoder", "scale", "divisor differs: 2.0 (TF1), 2.828427 (port)"),
    ("encoder", "axis of a softmax", "axis of Softmax differs: 3 (TF1), 2 (port)"),
    ("encoder", "no residual", "only TF1 adds input 0 (x)"),
    ("encoder", "form of GELU", "form of GELU differs: erf (TF1), the tanh approximation (port)"),
    ("decoder", "cropping", "padding differs: SAME (TF1), (1, 1) at both ends (port)"),
    (
        "decoder",
        "order of a reshape",
        "order of the axes into which a flat axis is split differs: (0, 1, 2, 3) (TF1), (0, 3, 1, 2) (port)",
    ),
    ("decoder", "corners", "alignment of corners in a resize differs: True (TF1), False (port)"),
    ("decoder", "last activation", "activation differs: Sigmoid (TF1), Tanh (port)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "fault", "title"), FAULTS, ids=[f"{network}-{fault}" for network, fault, _ in FAULTS]
)
def test_a_fault_is_one_confirmed_finding_with_its_line(network, fault, title):
    report = validated(network, fault)
    (finding,) = report.findings
    assert finding.title.startswith(title), str(report)
    assert finding.confirmed.endswith("the rest agrees")
    assert line_of(NETWORKS[network].port, fault) in finding.port.line
    assert "test_torch_trace.py" in finding.tf1.line if finding.tf1 else title.startswith("only the port")


def tanh_gelu(x):
    """GELU as in code before there was a function for it."""
    return 0.5 * x * (1 + tf.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * tf.pow(x, 3))))


def erf_gelu(x):
    return x * (0.5 * (1.0 + tf.math.erf(x / np.float32(np.sqrt(2)))))


OF_TF1 = {
    "tanh": tanh_gelu,
    "erf": erf_gelu,
    "SiLU": lambda x: x * tf.nn.sigmoid(x),
    "ReLU": tf.nn.relu,
    "": lambda x: x,
}
OF_PORT = {
    **{"tanh": lambda x: functional.gelu(x, approximate="tanh"), "erf": functional.gelu, "SiLU": functional.silu},
    **{"sigmoid": lambda x: x * torch.sigmoid(1.702 * x), "ReLU": torch.relu, "": lambda x: x},
}
ACTIVATIONS = [
    ("tanh", "erf", "form of GELU differs: the tanh approximation (TF1), erf (port)"),
    ("tanh", "sigmoid", "form of GELU differs: the tanh approximation (TF1), the sigmoid approximation (port)"),
    ("erf", "tanh", "form of GELU differs: erf (TF1), the tanh approximation (port)"),
    ("tanh", "SiLU", "activation differs: GELU with the tanh approximation (TF1), SiLU (port)"),
    ("tanh", "ReLU", "activation differs: GELU with the tanh approximation (TF1), Relu (port)"),
    ("SiLU", "ReLU", "activation differs: SiLU (TF1), Relu (port)"),
    ("ReLU", "erf", "activation differs: Relu (TF1), GELU with erf (port)"),
    ("tanh", "", "the port has no activation where TF1 has GELU with the tanh approximation"),
    ("", "SiLU", "TF1 has no activation where the port has SiLU"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1", "port", "title"), ACTIVATIONS, ids=[f"{tf1 or 'none'}-{port or 'none'}" for tf1, port, _ in ACTIVATIONS]
)
def test_an_activation_of_several_ops_is_one_finding_with_its_name(tf1, port, title):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, x):
            return self.last(OF_PORT[port](self.hidden(x)))

    def network(x, training):
        hidden = OF_TF1[tf1](v1.layers.dense(x, 12, name="hidden"))
        return v1.layers.dense(hidden, 4, name="last")

    report = validate(Migration(tf1=network, port=Network, inputs=numbers(3, 8)), checks=CHECKS)
    assert [finding.title for finding in report.findings] == [title], str(report)
    assert report.findings[0].confirmed.endswith("the rest agrees")


class SharedHeads(nn.Module):
    """Attention that is one op in a trace, with another scale."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        heads = (layer(x).view(-1, 5, 2, 4).transpose(1, 2) for layer in (self.query, self.key, self.value))
        context = functional.scaled_dot_product_attention(*heads, scale=0.3, enable_gqa=True)
        return self.last(context.transpose(1, 2).reshape(-1, 5, 8))


@pytest.mark.slow
def test_the_axes_of_what_an_unknown_function_takes_are_no_fault():
    def attention(x, training):
        query, key, value = (
            tf.reshape(v1.layers.dense(x, 8, name=name), (-1, 5, 2, 4)) for name in ("query", "key", "value")
        )
        shares = tf.nn.softmax(tf.einsum("BTNH,BFNH->BNFT", key, query) / 2.0)
        context = tf.einsum("BNFT,BTNH->BFNH", shares, value)
        return v1.layers.dense(tf.reshape(context, (-1, 5, 8)), 8, name="last")

    (finding,) = validate(Migration(tf1=attention, port=SharedHeads, inputs=numbers(3, 5, 8)), checks=CHECKS).findings
    assert finding.title.startswith("what is computed differs: Einsum, ")


class Blocks(nn.Module):
    """Blocks of which each normalizes the sum of its input and of what it computes, as those of BERT do."""

    def __init__(self, rate):
        super().__init__()
        self.start, self.dropout = nn.LayerNorm(8, 1e-6), nn.Dropout(rate)
        self.gates, self.values = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(8, 1e-6) for _ in range(2))

    def forward(self, x):
        x = self.dropout(self.start(x))
        for gate, value, norm in zip(self.gates, self.values, self.norms, strict=True):
            x = norm(x + self.dropout(torch.sigmoid(gate(x)) * value(x)))
        return x


def blocks(x, training):
    def norm(x, name):
        with v1.variable_scope(name):
            gamma, beta = (v1.get_variable(each, (8,)) for each in ("gamma", "beta"))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)

    def dropout(x):
        return tf.nn.dropout(x, 0.3) if training else x

    x = dropout(norm(x, "start"))
    for number in range(2):
        gate = tf.nn.sigmoid(v1.layers.dense(x, 8, name=f"gates_{number}"))
        x = norm(x + dropout(gate * v1.layers.dense(x, 8, name=f"values_{number}")), f"norms_{number}")
    return x


@pytest.mark.slow
def test_dropouts_that_the_port_lacks_are_one_finding():
    migration = Migration(tf1=blocks, port=lambda: Blocks(0.0), inputs=numbers(3, 5, 8))
    report = validate(migration, checks=["random-training", "constant-mode"])
    assert [finding.title for finding in report.findings] == ["only TF1 has a dropout, or another random op, here"]
    assert report.findings[0].count == 3


@pytest.mark.slow
def test_dropouts_of_the_same_rate_are_no_finding():
    report = validate(Migration(tf1=blocks, port=lambda: Blocks(0.3), inputs=numbers(3, 5, 8)))
    assert not [finding for finding in report.findings if finding.kind == "computation"], str(report)


class SmallWeights(nn.Module):
    """Blocks with a GELU whose small weights make next to no difference to the deviation that the next block takes."""

    def __init__(self):
        super().__init__()
        self.start = nn.LayerNorm(8, 1e-12)
        self.mixed, self.hidden, self.last = (
            nn.ModuleList(nn.Linear(*sizes) for _ in range(2)) for sizes in ((8, 8), (8, 12), (12, 8))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(8, 1e-12) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.start(x)
        for number in range(2):
            x = self.norms[2 * number](x + self.dropout(self.mixed[number](x)))
            hidden = OF_PORT["sigmoid"](self.hidden[number](x))
            x = self.norms[2 * number + 1](x + self.dropout(self.last[number](hidden)))
        return x


def small_weights(x, training):
    def norm(x, name):
        with v1.variable_scope(name):
            beta = v1.get_variable("beta", (8,), initializer=tf.zeros_initializer())
            gamma = v1.get_variable("gamma", (8,), initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)

    def dense(x, units, name):
        return v1.layers.dense(x, units, kernel_initializer=v1.truncated_normal_initializer(stddev=0.02), name=name)

    x = norm(x, "start")
    for number in range(2):
        mixed = v1.layers.dropout(dense(x, 8, f"mixed_{number}"), 0.1, training=training)
        x = norm(x + mixed, f"norms_{2 * number}")
        hidden = dense(tanh_gelu(dense(x, 12, f"hidden_{number}")), 8, f"last_{number}")
        x = norm(x + v1.layers.dropout(hidden, 0.1, training=training), f"norms_{2 * number + 1}")
    return x


@pytest.mark.slow
@pytest.mark.parametrize("check", ["random-inference", "random-training"])
def test_a_place_is_before_a_tensor_that_agrees_by_chance(check):
    migration = Migration(tf1=small_weights, port=SmallWeights, inputs=numbers(3, 5, 8))
    (finding,) = validate(migration, checks=[check]).findings
    assert finding.title.startswith("form of GELU differs: the tanh approximation (TF1), ")
    assert "torch.sigmoid(1.702" in finding.port.source


# Faults whose first finding has no cause, or whose line is that of another finding.
IN_SEVERAL_FINDINGS = [
    ("words", "scaled embeddings", "another result at rnn/transpose "),
    ("encoder", "norm before the sum", "order of ops differs: AddV2 is in a different place in the port"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "fault", "title"), IN_SEVERAL_FINDINGS)
def test_a_fault_has_its_line_in_one_of_its_findings(network, fault, title):
    report = validated(network, fault)
    assert report.findings[0].title.startswith(title), str(report)
    assert any(line_of(NETWORKS[network].port, fault) in finding.port.line for finding in report.findings), str(report)


def test_inputs_in_a_dict_are_those_of_the_same_keys():
    def clicks(features, training):
        return v1.layers.dense(tf.stack([tf.math.log1p(features["clicks"]), features["age"]], 1), 3)

    class Clicks(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(2, 3)

        def forward(self, features):
            return self.dense(torch.stack([torch.log(features["clicks"]), features["age"]], 1))

    inputs = {"clicks": numbers(5) ** 2, "age": numbers(5)}  # not in the order of the keys
    (finding,) = validate(Migration(tf1=clicks, port=Clicks, inputs=inputs), checks=CHECKS).findings
    assert finding.title == "what is computed differs: Log1p (TF1), Log (port)"


@pytest.mark.slow_except("after the table")
@pytest.mark.parametrize("fault", ["before the table", "after the table"])
def test_a_table_that_is_rounded_differently_is_no_finding_beside_a_fault(fault):
    positions, is_before = numbers(5, 4), fault.startswith("before")

    def program(x, training):
        x = x * 4.0 if is_before else x
        return v1.layers.dense(x + tf.tile(positions[None], [3, 1, 1]), 2)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(4, 2)

        def forward(self, x):
            logits = self.dense(x + torch.tensor(positions * (1 + 2e-6)))
            return logits if is_before else torch.tanh(logits)

    report = validate(Migration(tf1=program, port=Network, inputs=numbers(3, 5, 4)), checks=CHECKS)
    expected = "only TF1 multiplies by 4.0" if is_before else "TF1 has no activation where the port has Tanh"
    assert [finding.title for finding in report.findings] == [expected]


def test_a_table_that_differs_beside_a_mask_is_a_finding_beside_a_fault():
    def program(x, training):
        return v1.layers.dense(tf.nn.softmax(x + tf.constant([[-1e9, 0.0, 0.5]])), 2)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(3, 2)

        def forward(self, x):
            return torch.tanh(self.dense(torch.softmax(x + torch.tensor([[-1e9, 0.0, 0.7]]), -1)))

    report = validate(Migration(tf1=program, port=Network, inputs=numbers(4, 3)), checks=CHECKS)
    assert len(report.findings) == 2
    assert "TF1 has no activation where the port has Tanh" in [finding.title for finding in report.findings]


SAMPLES = {
    "randn_like": lambda mean, deviation: mean + deviation * torch.randn_like(mean),
    "randn": lambda mean, deviation: mean + deviation * torch.randn(mean.shape),
    "normal": lambda mean, deviation: torch.normal(mean=mean, std=deviation),
    "normal_": lambda mean, deviation: mean + deviation * torch.empty_like(mean).normal_(),
    "rsample": lambda mean, deviation: torch.distributions.Normal(mean, deviation).rsample(),
}


ACTIVATION = "TF1 has no activation where the port has Elu"


class TestVariationalAutoencoder:
    """A latent sample by each function of PyTorch that draws normal numbers, of a tensor and of an image."""

    @staticmethod
    def tf1(x, training):
        hidden = v1.layers.conv2d(x, 6, 3, 2, "same", activation=tf.nn.tanh, name="encoder")
        mean = v1.layers.conv2d(hidden, 2, 1, name="mean")
        deviation = tf.exp(v1.layers.conv2d(hidden, 2, 1, name="deviation"))
        z = mean + deviation * tf.random.normal(tf.shape(mean)) if training else mean
        return mean, v1.layers.conv2d_transpose(z, 3, 4, 2, "same", name="decoder")

    class Module(Faulty):
        def __init__(self, sample, fault=""):
            super().__init__(fault)
            self.encoder, self.sample = nn.Conv2d(3, 6, 3, 2), sample
            self.mean, self.deviation = nn.Conv2d(6, 2, 1), nn.Conv2d(6, 2, 1)
            self.decoder = nn.ConvTranspose2d(2, 3, 4, 2, 1)

        def forward(self, x):
            hidden = torch.tanh(self.encoder(functional.pad(x.permute(0, 3, 1, 2), (0, 1, 0, 1))))
            mean, log_deviation = self.mean(hidden), self.deviation(hidden)
            deviation = torch.exp(0.5 * log_deviation if self.fault == "variance" else log_deviation)
            z = self.sample(mean, deviation) if self.training else mean
            decoded = self.decoder(functional.elu(z) if self.fault == "activation" else z)
            return mean.permute(0, 2, 3, 1), decoded.permute(0, 2, 3, 1)

    def report(self, sample, fault=""):
        inputs = numbers(2, 6, 6, 3).astype(np.float32)
        migration = Migration(tf1=self.tf1, port=lambda: self.Module(sample, fault), inputs=inputs)
        return validate(migration, checks=["random-training", "random-inference"])

    @pytest.mark.slow_except("rsample")
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_a_sound_port_passes(self, sample):
        report = self.report(sample)
        assert report.ok and not any(check.uncontrolled for check in report.checks), str(report)

    @pytest.mark.slow_except("rsample")
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_a_fault_before_the_sample_is_one_finding(self, sample):
        findings = self.report(sample, "variance").findings
        assert [each.title for each in findings] == ["only the port multiplies by 0.5"]
        assert findings[0].confirmed

    @pytest.mark.slow
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_a_fault_after_the_sample_is_one_finding(self, sample):
        assert [each.title for each in self.report(sample, "activation").findings] == [ACTIVATION]

    def test_another_distribution_is_named(self):
        report = self.report(lambda mean, deviation: mean + deviation * torch.rand_like(mean))
        titles = [each.title for each in report.findings]
        assert "what is computed differs: RandomStandardNormal (TF1), RandomUniform (port)" in titles
