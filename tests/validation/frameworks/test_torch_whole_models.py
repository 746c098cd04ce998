"""Faults that people make in models of PyTorch as a whole: what words a decoder gets, what a loss penalizes."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, enable_v1_layers, validate
from detrand.validation.checks.loss import findings_of_loss
from detrand.validation.diagnosis.causes.cause import Cause
from detrand.validation.results import Fault
from detrand.validation.runner import Runner

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

v1 = tf.compat.v1
SIZE, WORDS, TAGS = 4, 11, 3
NUMBERS = np.random.default_rng(0)
PHRASES = NUMBERS.integers(2, WORDS, (3, 5)).astype(np.int32)
ROWS = NUMBERS.normal(size=(6, 4)).astype(np.float32)


def findings(tf1, port, inputs, checks=("constant-weights", "random-inference"), **train):
    with enable_v1_layers():
        migration = Migration(tf1=tf1, port=port, inputs=inputs, train=TrainStep(**train) if train else None)
        return validate(migration, checks=[*checks]).findings


def rate(parameters):
    return torch.optim.SGD(parameters, 0.1)


def descent():
    return v1.train.GradientDescentOptimizer(0.1)


# A decoder, which gets the word before each one.


def decoder(words, training):
    table = v1.get_variable("embedding", (WORDS, SIZE))
    shifted = tf.concat([tf.ones_like(words[:, :1]), words[:, :-1]], 1)
    embedded, cell = tf.nn.embedding_lookup(table, shifted), v1.nn.rnn_cell.BasicLSTMCell(SIZE, name="cell")
    state, outputs = cell.zero_state(tf.shape(words)[0], tf.float32), []
    for step in range(PHRASES.shape[1]):
        output, state = cell(embedded[:, step], state)
        outputs.append(v1.layers.dense(output, WORDS, name="logits", reuse=v1.AUTO_REUSE))
    return tf.stack(outputs, 1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell, self.logits = nn.Embedding(WORDS, SIZE), nn.LSTMCell(4, 4), nn.Linear(SIZE, WORDS)
        self.cell.bias_hh.requires_grad_(False)

    def forward(self, words):
        embedded = self.embedding(self.shifted(words))
        hidden = cell = embedded.new_zeros(len(words), SIZE)
        outputs = []
        for step in range(words.shape[1]):
            hidden, cell = self.cell(embedded[:, step], (hidden, cell))
            outputs.append(self.logits(hidden))
        return torch.stack(outputs, 1)

    def shifted(self, words):
        return torch.cat([torch.ones_like(words[:, :1]), words[:, :-1]], 1)


class NotShifted(Decoder):
    def shifted(self, words):
        return words


@pytest.mark.slow
def test_words_that_are_not_shifted_are_one_finding_at_the_embedding():
    assert not findings(decoder, Decoder, PHRASES)
    (finding,) = findings(decoder, NotShifted, PHRASES)
    assert finding.title == "only TF1 concatenates"
    assert finding.tf1.source.startswith(("shifted = ", "embedded, cell = "))
    assert finding.port.op == "embedding/embedding (GatherV2)"
    assert finding.confirmed == "with TF1's value here, the rest agrees"


# A conditional random field, whose transitions are an output.


def field(x, training):
    logits, transitions = v1.layers.dense(x, TAGS, name="tags"), v1.get_variable("transitions", (TAGS, TAGS))
    scores = logits[:, :, tf.newaxis] + transitions
    return {"sums": tf.reduce_logsumexp(scores, 1), "logits": logits, "transitions": transitions, "state": None}


class Field(nn.Module):
    axis = 1

    def __init__(self):
        super().__init__()
        self.tags, self.transitions = nn.Linear(4, TAGS), nn.Parameter(torch.zeros(TAGS, TAGS))

    def forward(self, x):
        logits = self.tags(x)
        scores = logits[:, :, None] + self.transitions
        sums = torch.logsumexp(scores, self.axis)
        return {"sums": sums, "logits": logits, "transitions": self.transitions, "state": None}


class AlongTags(Field):
    axis = 2


OF_FIELD = {
    "labels": np.zeros(6, np.int32),
    "tf1_loss": lambda labels, outputs: tf.reduce_mean(outputs["sums"]) + tf.reduce_sum(outputs["transitions"]),
    "port_loss": lambda labels, outputs: outputs["sums"].mean() + outputs["transitions"].sum(),
    "tf1_optimizer": descent,
    "port_optimizer": rate,
}


@pytest.mark.slow
def test_an_output_that_is_a_parameter_is_compared_as_it_is_before_the_update():
    assert not findings(field, Field, ROWS, ["training-steps"], **OF_FIELD)


@pytest.mark.slow
def test_the_shift_of_a_logsumexp_stops_no_gradient():
    (finding,) = findings(field, AlongTags, ROWS, ["random-training", "training-steps"], **OF_FIELD)
    assert finding.port.op == "logsumexp (logsumexp)"


# A loss that penalizes weights by itself.

MADE = []


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.logits = nn.Linear(4, 5), nn.BatchNorm1d(5, 1e-3, 0.01), nn.Linear(5, TAGS)
        MADE[:] = [self]

    def forward(self, x):
        return self.logits(torch.relu(self.norm(self.hidden(x))))


def layers(x, training):
    hidden = v1.layers.batch_normalization(v1.layers.dense(x, 5, name="hidden"), training=training, name="norm")
    return v1.layers.dense(tf.nn.relu(hidden), TAGS, name="logits")


def tf1_loss(labels, outputs):
    kernels = [each for each in v1.trainable_variables() if "kernel" in each.name]
    return tf.reduce_mean(tf.square(outputs - labels)) + 0.1 * tf.add_n(list(map(tf.nn.l2_loss, kernels)))


def penalizing(of, factor):
    def port_loss(labels, outputs):
        weights = [each for name, each in MADE[0].named_parameters() if of(name)]
        return functional.mse_loss(outputs, labels) + factor * sum(each.pow(2).sum() for each in weights)

    return port_loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "factor", "title", "remedy"),
    [
        (
            lambda name: name.endswith("weight"),
            0.05,
            "regularizer differs in norm/gamma: none (TF1), 0.05 sum(w**2) (port)",
            "leave norm.weight out of the penalty in the port",
        ),
        (
            lambda name: name.endswith("weight") and "norm" not in name,
            0.1,
            "regularizer differs in hidden/kernel, logits/kernel: 0.05 sum(w**2) (TF1), 0.1 sum(w**2) (port)",
            "penalize hidden.weight, logits.weight by 0.05 sum(w**2) in the port. tf.nn.l2_loss(w) is sum(w**2) / 2",
        ),
        (
            lambda name: name == "hidden.weight",
            0.05,
            "regularizer differs in logits/kernel: 0.05 sum(w**2) (TF1), none (port)",
            "penalize logits.weight by 0.05 sum(w**2) in the port",
        ),
    ],
    ids=["of more weights", "twice as much", "of fewer weights"],
)
def test_the_variables_that_a_loss_penalizes_differently_are_named(of, factor, title, remedy):
    train = {"labels": np.zeros((6, TAGS), np.float32), "tf1_optimizer": descent, "port_optimizer": rate}
    train |= {"tf1_loss": tf1_loss, "port_loss": penalizing(of, factor)}
    (finding,) = findings(layers, Layers, ROWS, ["training-steps"], **train)
    assert (finding.title, finding.remedy) == (title, remedy)
    assert finding.confirmed == "with TF1's penalties, the losses agree"
    assert (
        finding.port.source
        == "return functional.mse_loss(outputs, labels) + factor * sum(each.pow(2).sum() for each in weights)"
    )


@pytest.mark.slow
def test_a_bias_of_zeros_that_only_the_port_penalizes_is_named_in_a_later_step():
    def of_rows(labels, outputs):
        return tf.reduce_mean(tf.square(outputs - labels)) + 0.1 * tf.reduce_mean(tf.square(outputs))

    def of_biases_too(labels, outputs):
        squares = sum(each.pow(2).sum() for name, each in MADE[0].named_parameters() if name.endswith("bias"))
        return functional.mse_loss(outputs, labels) + 0.1 * (outputs.pow(2).mean() + squares)

    train = {"labels": np.ones((6, TAGS), np.float32), "tf1_optimizer": descent, "port_optimizer": rate}
    (finding,) = findings(layers, Layers, ROWS, ["training-steps"], tf1_loss=of_rows, port_loss=of_biases_too, **train)
    assert finding.title == (
        "regularizer differs in hidden/bias, norm/beta, logits/bias: none (TF1), 0.1 sum(w**2) (port)"
    )


# A head that reshapes channels, and a language model.


def head(x, training):
    hidden = v1.layers.conv2d(x, 6, 3, padding="same", name="conv")
    return tf.reshape(hidden, (-1, 32, 3))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)

    def forward(self, x):
        return self.conv(x.permute(0, 3, 1, 2)).reshape(-1, 32, 3)


def test_an_image_that_is_reshaped_with_channels_first_is_named():
    (finding,) = findings(head, Head, NUMBERS.normal(size=(3, 4, 4, 2)).astype(np.float32))
    assert finding.title == "order of the axes that are flattened differs: (0, 1, 2, 3) (TF1), (0, 3, 1, 2) (port)"
    assert finding.remedy.startswith("permute the image to channels last before it is flattened")
    assert finding.tf1.source == "return tf.reshape(hidden, (-1, 32, 3))"


def next_words(labels, outputs):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, 1:], logits=outputs[:, :-1]))


def all_words(labels, outputs):
    return functional.cross_entropy(outputs.reshape(-1, WORDS), labels.reshape(-1).long())


def sound(labels, outputs):
    return all_words(labels[:, 1:], outputs[:, :-1])


@pytest.mark.slow
def test_slices_that_only_the_loss_of_tf1_takes_are_named():
    train = {"labels": PHRASES, "tf1_loss": next_words, "tf1_optimizer": descent, "port_optimizer": rate}
    assert not findings(decoder, Decoder, PHRASES, ["training-steps"], port_loss=sound, **train)
    (finding,) = findings(decoder, Decoder, PHRASES, ["training-steps"], port_loss=all_words, **train)
    of_labels, of_outputs = finding.title.removeprefix("loss: ").split("; ")
    assert of_labels == "slice of the labels differs: [:, 1:] (TF1), all (port)"
    assert of_outputs == "slice of the outputs differs: [:, :-1] (TF1), all (port)"


@pytest.mark.slow
def test_a_tensor_that_a_loss_takes_has_its_own_key():
    def outputs(x, training):
        hidden = v1.layers.dense(x, TAGS, name="tags")
        return {"q": hidden, "best": tf.tanh(hidden), "next": tf.sin(hidden)}

    class Outputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.tags = nn.Linear(4, TAGS)

        def forward(self, x):
            hidden = self.tags(x)
            return {"q": hidden, "best": torch.tanh(hidden), "next": torch.sin(hidden)}

    train = {"labels": ROWS[:, :TAGS], "tf1_optimizer": descent, "port_optimizer": rate}
    train["tf1_loss"] = lambda labels, outputs: tf.reduce_mean(tf.exp(outputs["next"]) * outputs["q"] * labels)
    train["port_loss"] = lambda labels, outputs: (torch.exp(outputs["best"]) * outputs["q"] * labels).mean()
    (finding,) = findings(outputs, Outputs, ROWS, ["training-steps"], **train)
    assert finding.title == "loss: Exp takes different tensors: outputs['next'] (TF1), outputs['best'] (port)"


@pytest.mark.slow
def test_labels_that_are_exchanged_with_their_opposites_are_called_labels():
    def distances(labels, outputs):
        squares = tf.reduce_sum(tf.square(outputs), 1)
        return tf.reduce_mean(labels * squares + (1.0 - labels) * tf.nn.relu(1.5 - squares))

    def the_other_way(labels, outputs):
        squares = outputs.pow(2).sum(1)
        return ((1.0 - labels) * squares + labels * torch.relu(1.5 - squares)).mean()

    train = {"labels": np.float32([0, 1, 1, 0, 1, 0]), "tf1_optimizer": descent, "port_optimizer": rate}
    (finding,) = findings(
        layers, Layers, ROWS, ["training-steps"], tf1_loss=distances, port_loss=the_other_way, **train
    )
    assert finding.title.startswith("loss: two tensors are swapped: labels and ")


@pytest.mark.slow
def test_a_loss_of_sums_over_the_batch_is_no_multiple_of_one_of_each_row():
    def of_rows(labels, outputs):
        shares = tf.sigmoid(outputs)
        overlap = tf.reduce_sum(shares * labels, 1) / (tf.reduce_sum(shares + labels, 1) + 1.0)
        return 1.0 - tf.reduce_mean(overlap)

    def of_all(labels, outputs):
        shares = torch.sigmoid(outputs)
        return 1.0 - ((shares * labels).sum() / ((shares + labels).sum() + 1.0)).mean()

    labels = (NUMBERS.random((6, TAGS)) > 0.5).astype(np.float32)
    train = TrainStep(labels=labels, tf1_loss=of_rows, port_loss=of_all, tf1_optimizer=descent, port_optimizer=rate)
    by_chance = Cause("the port's loss is 1.003 times TF1's", "so it is in each of 2 steps", fault=Fault.MULTIPLE)
    with enable_v1_layers():
        migration = Migration(tf1=layers, port=Layers, inputs=ROWS, train=train)
        found = findings_of_loss(Runner(migration), [by_chance])
    assert found[0].title == "loss: axis of Sum differs: 1 (TF1), [0 1] (port)"
    assert all(finding.title.startswith("loss: axis of ") for finding in found)


# Branches and layers with dropouts of one shape, which only the layers before them tell apart.


def branches(x, training):
    of_each = []
    for name in ("first", "second"):
        hidden = v1.layers.dense(x, SIZE, tf.tanh, name=name)
        of_each.append(v1.nn.dropout(hidden, rate=0.3) if training else hidden)
    return of_each[0] - of_each[1]


def layers_with_dropouts(x, training):
    for number in range(3):
        x = v1.layers.dense(x, SIZE, tf.tanh, name=f"layer{number}")
        x = v1.nn.dropout(x, rate=0.3) if training else x
    return x


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(4, SIZE), nn.Linear(4, SIZE), nn.Dropout(0.3)

    def forward(self, x):
        second = self.dropout(torch.tanh(self.second(x)))
        return self.dropout(torch.tanh(self.first(x))) - second


class LastDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer0, self.layer1, self.layer2 = nn.Linear(4, SIZE), nn.Linear(4, SIZE), nn.Linear(4, SIZE)

    def forward(self, x):
        for layer in (self.layer0, self.layer1, self.layer2):
            x = torch.tanh(layer(x))
        return functional.dropout(x, 0.3, self.training)


def test_dropouts_of_branches_that_run_in_a_different_order_are_no_fault():
    assert findings(branches, Branches, ROWS, ["random-training"]) == ()


@pytest.mark.slow
def test_dropouts_that_a_port_has_after_its_last_layer_only_are_missing_after_the_others():
    (found,) = findings(layers_with_dropouts, LastDropout, ROWS, ["random-training"])
    assert (found.fault, found.count) == (Fault.RANDOM_OP_OF_TF1, 2)


def normalized(x, training):
    for number in range(2):
        x = v1.layers.dense(x, 4, name=f"dense{number}")
        x = tf.nn.relu(v1.layers.batch_normalization(x, name=f"bn{number}", epsilon=1e-5))
    return x


class InLists(nn.Module):
    """All dense layers come before all normalizations, whose biases have the shape and the name of theirs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(4) for _ in range(2)])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return x


@pytest.mark.slow
def test_the_data_flow_pairs_layers_of_a_module_that_keeps_them_by_their_kinds():
    with enable_v1_layers():
        report = validate(Migration(tf1=normalized, port=InLists, inputs=ROWS), checks=["variables-match"])
    assert report.ok, str(report)


# Tensors that are put together along an axis.


def joined(x, training):
    left, right = (v1.layers.dense(x, SIZE, name=name) for name in ("left", "right"))
    return tf.reduce_sum(tf.tanh(tf.concat([left, right], 2)), 2)


class Joined(nn.Module):
    axis = 2

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, SIZE), nn.Linear(4, SIZE)

    def forward(self, x):
        return torch.tanh(torch.cat([self.left(x), self.right(x)], dim=self.axis)).sum(2)


class JoinedAlongTime(Joined):
    axis = 1

    def forward(self, x):
        return super().forward(x)[:, : x.shape[1]]


@pytest.mark.slow
def test_the_axis_along_which_a_port_concatenates_is_named():
    rows = NUMBERS.normal(size=(3, 4, 4)).astype(np.float32)
    assert findings(joined, Joined, rows) == ()
    (found,) = findings(joined, JoinedAlongTime, rows)
    assert found.title == "axis of ConcatV2 differs: 2 (TF1), 1 (port)"


def tower(x):
    with v1.variable_scope("tower", reuse=v1.AUTO_REUSE):
        hidden = tf.nn.relu(v1.layers.conv2d(x, SIZE, 3, padding="same", name="first"))
        return v1.layers.flatten(tf.nn.relu(v1.layers.conv2d(hidden, 3, 3, 2, "same", name="second")))


def siamese(left, right, training):
    return {"left": tower(left), "right": tower(right)}


class Siamese(nn.Module):
    """Both inputs go through one tower at once, which pads the second convolution at the wrong ends."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, SIZE, 3, padding=1), nn.Conv2d(SIZE, 3, 3, 2)

    def forward(self, left, right):
        hidden = torch.relu(self.first(torch.cat([left, right]).permute(0, 3, 1, 2)))
        outputs = torch.relu(self.second(functional.pad(hidden, (1, 0, 1, 0))))
        left, right = outputs.permute(0, 2, 3, 1).flatten(1).chunk(2)
        return {"left": left, "right": right}


@pytest.mark.slow
def test_inputs_that_go_through_a_tower_at_once_are_not_said_to_be_used_by_the_port_only():
    images = [NUMBERS.normal(size=(3, 4, 4, 2)).astype(np.float32) for _ in range(2)]
    found = findings(siamese, Siamese, tuple(images))
    assert found[0].title == "padding differs: SAME (TF1), VALID after PadV2 (port)"
    assert not [each.title for each in found if "only the port" in each.title]


# Gradients that both programs stop.


def quantized(x, training):
    codes = v1.get_variable("codes", (3, SIZE))
    hidden = v1.layers.dense(x, SIZE, name="hidden")
    chosen = tf.gather(codes, tf.argmin(tf.reduce_sum(tf.square(hidden[:, None] - codes), 2), 1))
    losses = tf.square(tf.stop_gradient(hidden) - chosen), tf.square(hidden - tf.stop_gradient(chosen))
    return tf.reduce_mean(losses[0]) + 0.25 * tf.reduce_mean(losses[1])


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes, self.hidden = nn.Parameter(torch.rand(3, SIZE)), nn.Linear(4, SIZE)

    def forward(self, x):
        hidden = self.hidden(x)
        chosen = self.codes[(hidden[:, None] - self.codes).square().sum(2).argmin(1)].view_as(hidden)
        losses = (hidden.detach() - chosen).square().mean(), (hidden - chosen.detach()).square().mean()
        return 0.25 * losses[0] + losses[1]


def test_gradients_that_both_programs_stop_are_not_said_to_be_stopped_by_one():
    train = {"tf1_loss": lambda labels, loss: loss, "port_loss": lambda labels, loss: loss}
    train |= {"labels": np.zeros(6, np.float32), "tf1_optimizer": descent, "port_optimizer": rate, "steps": 2}
    (found,) = findings(quantized, Quantized, ROWS, ["training-steps"], **train)
    assert found.title.startswith("the gradient of hidden/bias in the port is 4 times TF1's"), found.title
