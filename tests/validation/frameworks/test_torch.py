"""Ports that are a torch.nn.Module: sound ones pass, faults are named, and what cannot be run is refused."""

import itertools
import math
import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import (
    ArgumentError,
    Migration,
    MigrationError,
    TrainStep,
    conv_to_torch,
    dense_to_torch,
    enable_v1_layers,
    lstm_cell_to_torch,
    validate,
)
from tests.faults.tf1 import numbers

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
v1 = tf.compat.v1

IMAGES, LABELS = numbers(5, 8, 8, 3), np.array([0, 1, 2, 3, 0])


@pytest.fixture(autouse=True)
def with_v1_layers():
    with enable_v1_layers():
        yield


def images(x, training):
    hidden = v1.layers.conv2d(x, 6, 3, padding="same", name="conv")
    hidden = tf.nn.relu(v1.layers.batch_normalization(hidden, training=training, name="norm"))
    hidden = v1.layers.dropout(v1.layers.max_pooling2d(hidden, 2, 2), 0.2, training=training)
    hidden = v1.layers.dense(v1.layers.flatten(hidden), 16, tf.nn.relu, name="hidden")
    return v1.layers.dense(v1.layers.dropout(hidden, 0.3, training=training), 4, name="logits")


def as_in_tf1(*layers):
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


class Images(nn.Module):
    def __init__(self, eps=1e-3, momentum=0.01, rate=0.3, stride=1, padding="same"):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride, padding)
        self.norm = nn.BatchNorm2d(6, eps, momentum)
        self.hidden, self.logits = nn.Linear(96, 16), nn.Linear(16, 4)
        self.dropout = nn.Dropout(rate)
        as_in_tf1(self.conv, self.hidden, self.logits)

    def forward(self, x):
        hidden = functional.max_pool2d(torch.relu(self.norm(self.conv(x.permute(0, 3, 1, 2)))), 2)
        hidden = self.flatten(functional.dropout(hidden, 0.2, self.training))
        return self.logits(self.dropout(torch.relu(self.hidden(hidden))))

    def flatten(self, hidden):
        return hidden.permute(0, 2, 3, 1).flatten(1)


class FlattenedAsInTorch(Images):
    def flatten(self, hidden):
        return hidden.flatten(1)


def cubes(x, training):
    hidden = v1.layers.dropout(v1.layers.conv2d(x, 6, 3, name="conv"), 0.2, training=training)
    return v1.layers.dense(tf.reduce_max(hidden, [1, 2]), 4, name="logits")


class Cubes(nn.Module):
    """It drops from images of as many channels as rows and columns."""

    def __init__(self):
        super().__init__()
        self.conv, self.logits = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)
        as_in_tf1(self.conv, self.logits)

    def forward(self, x):
        hidden = functional.dropout(self.conv(x.permute(0, 3, 1, 2)), 0.2, self.training)
        return self.logits(hidden.amax((2, 3)))


def pooled(x, training):
    hidden = v1.layers.conv2d(x, 4, 3, padding="same", name="conv")
    return tf.reduce_max(v1.layers.average_pooling2d(hidden, 3, 1, padding="same"), [1, 2])


class Pooled(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(3, 1, padding=1, **arguments)
        as_in_tf1(self.conv)

    def forward(self, x):
        return self.pool(self.conv(x.permute(0, 3, 1, 2))).amax((2, 3))


def test_a_mean_that_counts_its_padding_is_named():
    def found(**arguments):
        migration = Migration(tf1=pooled, port=lambda: Pooled(**arguments), inputs=IMAGES)
        return validate(migration, checks=["random-inference"]).findings

    assert not found(count_include_pad=False)
    (finding,) = found()
    assert finding.title == "padding differs: SAME (TF1), (1, 1) at both ends that count (port)"
    assert "as count_include_pad=False does" in finding.remedy


def scores(x, training):
    heads = tf.reshape(v1.layers.dense(x, 12, name="heads"), [5, 3, 3, 4])
    heads = tf.transpose(heads, [0, 2, 1, 3])
    shares = v1.layers.dropout(tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True)), 0.2, training=training)
    return tf.reduce_sum(tf.matmul(shares, heads), [1, 2])


class Scores(nn.Module):
    """It drops from the scores of as many heads as words."""

    def __init__(self):
        super().__init__()
        self.heads = nn.Linear(7, 12)
        as_in_tf1(self.heads)

    def forward(self, x):
        heads = self.heads(x).unflatten(-1, (3, 4)).transpose(1, 2)
        shares = functional.dropout(torch.softmax(heads @ heads.mT, -1), 0.2, self.training)
        return (shares @ heads).sum((1, 2))


def features(x, training):
    hidden = v1.layers.dense(x, 5, name="hidden")
    hidden = v1.layers.batch_normalization(hidden, training=training, name="norm")
    return v1.layers.dense(tf.nn.relu(hidden), 5, name="logits")


class Features(nn.Module):
    """Its dense layers have kernels of one size, and its parameters have names of another kind."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5, 1e-3, 0.01), nn.ReLU())
        self.head = nn.Linear(5, 5)
        as_in_tf1(self.stem[0], self.head)

    def forward(self, x):
        return self.head(self.stem(x))


def words(x, training):
    embedded = tf.nn.embedding_lookup(v1.get_variable("embeddings", (7, 4)), x)
    return v1.layers.conv1d(embedded, 3, 2, name="conv")


class Words(nn.Module):
    """It has a parameter that no layer of PyTorch has, and returns channels last."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.kernel, self.bias = nn.Parameter(torch.zeros(3, 4, 2)), nn.Parameter(torch.zeros(3))
        nn.init.xavier_uniform_(self.kernel)
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, x):
        return functional.conv1d(self.embedding(x).transpose(1, 2), self.kernel, self.bias).transpose(1, 2)


def recurrent(x, training):
    cell = v1.nn.rnn_cell.BasicLSTMCell(4, forget_bias=0.5)
    outputs, _ = v1.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    return v1.layers.dense(outputs[:, -1], 4, name="logits")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.logits = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 4)
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x):
        return self.logits(self.lstm(x)[0][:, -1])


def tagger(ids, training):
    """Two directions, and an LSTM cell that takes both at each position."""
    x = tf.nn.embedding_lookup(v1.get_variable("embeddings", [7, 6]), ids)
    cells = [v1.nn.rnn_cell.LSTMCell(3) for _ in range(2)]
    both, _ = v1.nn.bidirectional_dynamic_rnn(*cells, x, dtype=tf.float32)
    cell = v1.nn.rnn_cell.BasicLSTMCell(5, forget_bias=0.0, name="decoder")
    outputs, _ = v1.nn.static_rnn(cell, tf.unstack(tf.concat(both, -1), axis=1), dtype=tf.float32)
    return v1.layers.dense(outputs[-1], 4, name="logits")


class Tagger(nn.Module):
    def __init__(self, is_frozen=True):
        super().__init__()
        self.embeddings = nn.Embedding(7, 6)
        self.lstm = nn.LSTM(6, 3, batch_first=True, bidirectional=True)
        self.cell, self.logits = nn.LSTMCell(6, 5), nn.Linear(5, 4)
        for bias in (self.lstm.bias_hh_l0, self.lstm.bias_hh_l0_reverse, self.cell.bias_hh) if is_frozen else ():
            bias.requires_grad_(False)

    def forward(self, ids):
        state = None
        for x in self.lstm(self.embeddings(ids))[0].unbind(1):
            state = self.cell(x, state)
        return self.logits(state[0])


def of_tagger(port=Tagger):
    inputs = np.random.default_rng(0).integers(0, 7, (5, 4))
    return replace(trained(momentum), tf1=tagger, port=port, inputs=inputs, expect=["initializers-match"])


def named(report, name):
    return next(check for check in report.checks if check.name == name)


def titles(report):
    return [finding.title for finding in report.findings]


def of_images(port=Images, **arguments):
    return Migration(tf1=images, port=port, inputs=IMAGES, **arguments)


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def trained(port_optimizer, tf1_optimizer=lambda: v1.train.MomentumOptimizer(0.1, 0.9), **arguments):
    train = {"port_loss": lambda labels, outputs: functional.cross_entropy(outputs, labels), "steps": 3, **arguments}
    port = train.pop("port", Images)
    losses = {"labels": LABELS, "tf1_loss": cross_entropy, "tf1_optimizer": tf1_optimizer}
    return of_images(port, train=TrainStep(port_optimizer=port_optimizer, **losses, **train))


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


LSTM = lstm_cell_to_torch("rnn/basic_lstm_cell", "lstm", forget_bias=0.5)
SOUND = {
    "recurrent": lambda: replace(
        trained(momentum),
        **{"tf1": recurrent, "port": Recurrent, "inputs": numbers(5, 7, 5), "expect": ["initializers-match"]},
        name_map={**LSTM, "logits/kernel": "logits.weight", "logits/bias": "logits.bias"},
    ),
    "cells without a name map": of_tagger,
    "images": of_images,
    "other names": lambda: Migration(tf1=features, port=Features, inputs=numbers(6, 5)),
    "own parameter": lambda: Migration(
        tf1=words,
        port=Words,
        inputs=np.array([[1, 2, 6, 0], [3, 3, 5, 1]]),
        name_map={"embeddings": "embedding.weight", "conv/kernel": conv_to_torch("kernel"), "conv/bias": "bias"},
    ),
    "flattened as in torch": lambda: of_images(
        FlattenedAsInTorch,
        name_map={
            **{f"{layer}/kernel": f"{layer}.weight" for layer in ("conv", "logits")},
            **{f"{layer}/bias": f"{layer}.bias" for layer in ("conv", "hidden", "logits")},
            **{f"norm/{of_tf1}": f"norm.{name}" for of_tf1, name in (("gamma", "weight"), ("beta", "bias"))},
            **{"norm/moving_mean": "norm.running_mean", "norm/moving_variance": "norm.running_var"},
            "hidden/kernel": dense_to_torch("hidden.weight", flattened=(4, 4, 6)),
        },
    ),
    "as many channels as rows": lambda: replace(trained(momentum), tf1=cubes, port=Cubes),
    "as many heads as words": lambda: Migration(tf1=scores, port=Scores, inputs=numbers(5, 3, 7)),
    "method": lambda: of_images(lambda: Images().forward),
    "trained": lambda: trained(momentum),
}


@pytest.mark.slow_except("own parameter")
@pytest.mark.parametrize("name", SOUND)
def test_every_check_passes_on_a_sound_module(name):
    report = validate(SOUND[name]())
    assert report.ok, str(report)


@pytest.mark.slow
def test_modules_need_no_name_map():
    check = named(validate(of_images(), checks=["variables-match"]), "variables-match")
    assert "rearranged (3)" in check.summary
    assert check.summary.endswith("names of 10 variables differ, but the outputs with distinct weights agree")


def test_moving_variances_of_a_sample_are_compared_as_of_the_batch():
    migration = Migration(tf1=features, port=Features, inputs=numbers(6, 5))
    check = named(validate(migration, checks=["random-training"]), "random-training")
    assert check.ok, str(check)
    assert "the port averages the variance of a sample (n - 1), TF1 that of the batch" in check.summary


@pytest.mark.slow
def test_moving_variances_of_a_sample_are_compared_in_training():
    train = TrainStep(
        labels=np.zeros((6, 5), np.float32),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=lambda labels, outputs: functional.mse_loss(outputs, labels),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1),
    )
    report = validate(Migration(tf1=features, port=Features, inputs=numbers(6, 5), train=train))
    assert report.ok, str(report)


@pytest.mark.slow
def test_pytorch_draws_the_initial_values_of_a_port():
    class Drawn(Images):
        def __init__(self):
            super().__init__()
            self.apply(lambda layer: layer.weight.data.normal_(0, 0.02) if isinstance(layer, nn.Linear) else None)

    report = validate(of_images(Drawn), checks=["random-training"])
    assert report.ok, str(report)
    drawn = {(op.op_type, op.phase) for op in report.uncontrolled["port"]}
    assert ("torch.Tensor.normal_", "init") in drawn and {phase for _, phase in drawn} == {"init"}


@pytest.mark.slow
def test_a_second_bias_that_is_trained_is_one_finding():
    report = validate(of_tagger(lambda: Tagger(is_frozen=False)), checks=["variables-match", "training-steps"])
    (finding,) = report.findings
    names = ["lstm.bias_hh_l0", "lstm.bias_hh_l0_reverse", "cell.bias_hh"]
    assert finding.title == f"the port trains {names[0]}, {names[1]} and 1 more, which come from no TF1 variable"
    assert finding.remedy == f"call requires_grad_(False) in the port on {', '.join(names)}"
    assert finding.port.source == "self.lstm = nn.LSTM(6, 3, batch_first=True, bidirectional=True)"


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.005, 0.01])
def test_penalties_that_the_port_adds_one_by_one_are_one_term(factor):
    modules = []

    def tf1(x, training):
        def penalty(weights):
            return 0.01 * tf.nn.l2_loss(weights)

        hidden = v1.layers.dense(x, 4, tf.nn.elu, kernel_regularizer=penalty, name="hidden")
        return v1.layers.dense(hidden, 4, kernel_regularizer=penalty, name="logits")

    def port():
        modules[:] = [nn.Sequential(nn.Linear(5, 4), nn.ELU(), nn.Linear(4, 4))]
        return modules[0]

    def port_loss(labels, outputs):
        loss = functional.cross_entropy(outputs, labels)
        for name, parameter in modules[0].named_parameters():
            if name.endswith("weight"):
                loss = loss + factor * parameter.pow(2).sum()
        return loss

    migration = replace(trained(momentum, port_loss=port_loss), tf1=tf1, port=port, inputs=numbers(5, 5))
    report = validate(migration, checks=["training-steps"])
    differs = "regularizer differs in hidden/kernel, logits/kernel: 0.005 sum(w**2) (TF1), 0.01 sum(w**2) (port)"
    assert titles(report) == ([] if factor == 0.005 else [differs]), str(report)


FAULTS = {
    "epsilon": (lambda: Images(eps=1e-5), ["epsilon differs in norm: 0.001 (TF1), 1e-05 (port)"]),
    "momentum": (lambda: Images(momentum=0.1), ["momentum differs: 0.99 (TF1), 0.9 (port)"]),
    "keras's momentum": (lambda: Images(momentum=0.99), ["momentum differs: 0.99 (TF1), 0.01 (port)"]),
    "rate": (lambda: Images(rate=0.5), ["dropout rate differs: 0.3 (TF1), 0.5 (port)"]),
    "flattened": (
        FlattenedAsInTorch,
        ["order of the axes that are flattened differs: (0, 1, 2, 3) (TF1), (0, 3, 1, 2) (port)"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding(name):
    port, expected = FAULTS[name]
    report = validate(of_images(port))
    assert titles(report) == expected, str(report)


@pytest.mark.slow
def test_the_remedy_for_a_momentum_is_that_of_the_new_value():
    (finding,) = validate(of_images(lambda: Images(momentum=0.1))).findings
    assert finding.remedy == "pass momentum=0.01: in PyTorch, it is the share of the new value"
    assert not finding.others


CLIPS = {
    "global norm": lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0],
    "norm of each": lambda gradients: [tf.clip_by_norm(each, 0.1) for each in gradients],
    "each element": lambda gradients: [tf.clip_by_value(each, -0.01, 0.01) for each in gradients],
}


@pytest.mark.slow
@pytest.mark.parametrize("limited", CLIPS)
def test_the_remedy_for_clipped_gradients_makes_the_port_clip(limited):
    def train_op(loss):
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            variables = v1.trainable_variables()
            gradients = CLIPS[limited](v1.gradients(loss, variables))
            descent = v1.train.GradientDescentOptimizer(0.1)
            return descent.apply_gradients(zip(gradients, variables, strict=True))

    def migration(statement="pass"):
        def make(parameters):
            optimizer = torch.optim.SGD(parameters, 0.1)
            names = {"torch": torch, "parameters": parameters}
            exec(f"def clip(*_):\n    {statement}", names)
            optimizer.register_step_pre_hook(names["clip"])
            return optimizer

        return trained(make, None, tf1_train_op=train_op)

    (finding,) = validate(migration(), checks=["training-steps"]).findings
    assert f"clipping of gradients differs: {limited}" in finding.title
    report = validate(migration(finding.remedy.partition(": ")[2]), checks=["training-steps"])
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_hook_that_is_not_read_may_clip_gradients():
    def clip_each(parameters):
        for each in parameters:
            torch.nn.utils.clip_grad_norm_(each, 0.1)

    def clipping_each(parameters):
        optimizer = adam_as_in_tf1(parameters)
        optimizer.register_step_pre_hook(lambda *_: clip_each(parameters))
        return optimizer

    def train_op(loss):
        variables = v1.trainable_variables()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            gradients = CLIPS["global norm"](v1.gradients(loss, variables))
            return v1.train.AdamOptimizer(0.01).apply_gradients(zip(gradients, variables, strict=True))

    (finding,) = validate(trained(clipping_each, None, tf1_train_op=train_op), checks=["training-steps"]).findings
    assert finding.title == "clipping of gradients differs: global norm 0.1 (TF1), none, unless in a hook (port)"


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "centered"), [(0.0, False), (0.9, False), (0.9, True)])
def test_where_an_rmsprop_adds_its_epsilon_is_named(momentum, centered):
    def rmsprop(parameters):
        optimizer = torch.optim.RMSprop(parameters, 0.01, 0.9, 1.0, momentum=momentum, centered=centered)
        for each in parameters:
            optimizer.state[each] = {"step": torch.zeros(()), "square_avg": torch.ones_like(each)}
            optimizer.state[each] |= {name: torch.zeros_like(each) for name in ("momentum_buffer", "grad_avg")}
        return optimizer

    def tf1_optimizer():
        return v1.train.RMSPropOptimizer(0.01, 0.9, momentum, 1.0, centered=centered)

    (finding,) = validate(trained(rmsprop, tf1_optimizer), checks=["training-steps"]).findings
    assert finding.title == "PyTorch's RMSprop adds epsilon to the root of the average, TF1's to the average"
    assert finding.confirmed == "with TF1's value in the port's optimizer, the updates agree"


@pytest.mark.slow
def test_a_hook_that_needs_gradients_does_not_end_the_probe():
    def clipping_values(parameters):
        optimizer = torch.optim.SGD(parameters, 0.1)
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(parameters, 50.0))
        return optimizer

    def train_op(loss):
        variables = v1.trainable_variables()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            gradients = map(tf.convert_to_tensor, v1.gradients(loss, variables))
            gradients, _ = tf.clip_by_global_norm([*gradients], 50.0)  # which the few steps do not reach
            return v1.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables, strict=True))

    (finding,) = validate(trained(clipping_values, None, tf1_train_op=train_op), checks=["training-steps"]).findings
    assert finding.title == "clipping of gradients differs: global norm 50 (TF1), none, unless in a hook (port)"


@pytest.mark.slow
def test_a_hyperparameter_has_the_lines_of_its_layer():
    (finding,) = validate(of_images(lambda: Images(eps=1e-5))).findings
    assert "batch_normalization" in finding.tf1.source
    assert finding.port.source == "self.norm = nn.BatchNorm2d(6, eps, momentum)"


@pytest.mark.slow
def test_the_remedy_of_an_unknown_cause_is_to_return_more():
    class Untraced(FlattenedAsInTorch):
        def flatten(self, hidden):
            if hidden.dtype != torch.float32:
                raise TypeError("only float32")
            return super().flatten(hidden)

    report = validate(of_images(Untraced), checks=["constant-weights"])
    assert [finding.remedy for finding in report.findings] == [
        "return more tensors from both programs: the first one that differs shows the layer"
    ]
    assert "The first divergence could not be found: TypeError: only float32" in str(report)


@pytest.mark.slow
def test_the_remedy_for_a_flattened_image_names_the_entry_of_a_name_map():
    (finding,) = validate(of_images(FlattenedAsInTorch), checks=["constant-weights"]).findings
    assert finding.remedy.endswith("or rearrange the kernel after it: dense_to_torch(name, flattened=shape)")


@pytest.mark.slow
def test_pytorchs_own_initial_values_are_findings_with_their_lines():
    class Default(Images):
        def __init__(self):
            super().__init__()
            self.hidden.reset_parameters()

    report = validate(of_images(Default), checks=["initializers-match"])
    deviation, bias = sorted(report.findings, key=lambda finding: finding.tf1.op)[::-1]
    assert bias.title == "initializer differs: constant 0 (TF1), random numbers (port)"
    assert re.fullmatch(r"initializer differs: standard deviation 0\.1\d+ \(TF1\), 0\.0\d+ \(port\)", deviation.title)
    assert bias.port.op == "hidden.bias"
    assert "test_torch.py" in bias.port.line


def test_initial_values_of_one_distribution_are_no_findings():
    check = named(validate(of_images(), checks=["initializers-match"]), "initializers-match")
    assert check.ok
    assert check.summary == (
        "7 of 10 variables have TF1's initial values; the port draws 3 with other numbers, of TF1's mean and standard "
        "deviation"
    )


def truncated(x, training):
    for name in ("first", "second", "third"):
        x = v1.layers.dense(x, 50, kernel_initializer=v1.truncated_normal_initializer(stddev=0.02), name=name)
    return x


def of_truncated(draw):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(50, 50) for _ in range(3))
            for name, parameter in self.named_parameters():
                draw(parameter, name) if name.endswith("weight") else nn.init.zeros_(parameter)

        def forward(self, x):
            return self.third(self.second(self.first(x)))

    migration = Migration(tf1=truncated, port=Layers, inputs=np.ones((2, 50), np.float32))
    return validate(migration, checks=["initializers-match"])


def test_initial_values_that_differ_alike_are_one_finding():
    report = of_truncated(lambda parameter, name: nn.init.normal_(parameter, std=0.02))
    (finding,) = report.findings
    assert finding.count == 3
    assert re.fullmatch(
        r"initializer differs: standard deviation 0\.017\d* \(TF1\), 0\.0(2|19)\d* \(port\)", finding.title
    )
    assert finding.remedy == "draw the initial values as TF1 does: truncated normal of stddev 0.02"


def test_initial_values_that_the_port_draws_differently_are_findings_of_their_own():
    report = of_truncated(lambda parameter, name: nn.init.normal_(parameter, std=0.3 if "second" in name else 0.1))
    deviations = [re.search(r"(\S+) \(port\)", finding.title)[1] for finding in report.findings]
    np.testing.assert_allclose([float(each) for each in deviations], [0.1, 0.3, 0.1], rtol=0.1)


def test_a_truncated_normal_of_pytorch_is_tf1s():
    report = of_truncated(lambda parameter, name: nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04))
    assert report.ok, str(report)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x):
        return self.logits(torch.tanh(self.embedding(x).mean(1)))


def test_a_row_that_pytorch_does_not_train_is_a_finding():
    def padded(x, training):
        embedded = tf.nn.embedding_lookup(v1.get_variable("embeddings", (7, 4)), x)
        return v1.layers.dense(tf.tanh(tf.reduce_mean(embedded, 1)), 3, name="logits")

    step = TrainStep(
        labels=np.array([0, 2]),
        tf1_loss=v1.losses.sparse_softmax_cross_entropy,
        port_loss=lambda labels, outputs: functional.cross_entropy(outputs, labels),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1),
        steps=2,
    )
    migration = Migration(tf1=padded, port=Padded, inputs=np.array([[1, 2, 0], [3, 0, 0]]), train=step)
    (finding,) = validate(migration, checks=["training-steps"]).findings
    assert finding.title == "only TF1 trains row 0 of embeddings"
    assert finding.remedy == "leave out padding_idx of torch.nn.Embedding, which keeps a row from being trained"
    assert finding.confirmed


class MakesParameters(Images):
    def forward(self, x):
        self.scale = nn.Parameter(torch.ones(()))
        return super().forward(x) * self.scale


@pytest.mark.slow
def test_a_module_that_makes_parameters_when_it_is_called_fails():
    check = named(validate(of_images(MakesParameters), checks=["variables-created-once"]), "variables-created-once")
    assert check.summary == "the port creates variables when it is called again"
    assert check.details == "parameters that a call makes: scale. Make each of them in __init__"


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(4)


class OfTwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


KEPT = Images()
LINE = OfTwoInputs.forward.__code__.co_firstlineno
REFUSED = {
    "two inputs": (
        OfTwoInputs,
        f"port of images cannot be called with the inputs float32 (5, 8, 8, 3): it takes (x, y) ({__file__}:{LINE}). "
        "Both programs take the same inputs: leave out those that only one of them takes, such as labels, which "
        "TrainStep(labels=...) takes, or return a layer from port that takes them all",
    ),
    "lazy": (
        Lazy,
        "port of images returned a module whose parameter fc.weight is made by its first call. Call the module once "
        "inside port, for example with zeros",
    ),
    "device": (
        lambda: Images().to("meta"),
        "port of images returned a module whose conv.weight is on the device meta. TF1 and the port are compared on "
        "the CPU: return module.cpu()",
    ),
    "scripted": (
        lambda: torch.jit.script(nn.Linear(3, 2)),
        "port of images returned a module that torch.jit has compiled, whose random numbers cannot be controlled. "
        "Return the module itself",
    ),
    "compiled": (
        lambda: torch.compile(Images()),
        "port of images returned a module that torch.compile has compiled, whose random numbers cannot be controlled. "
        "Return the module itself",
    ),
    "scripted part": (
        lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(3, 2))),
        "port of images returned a module whose part 1 torch.jit has compiled, whose random numbers cannot be "
        "controlled. Return the module itself",
    ),
    "compiled part": (
        lambda: nn.Sequential(torch.compile(Images())),
        "port of images returned a module whose part 0 torch.compile has compiled, whose random numbers cannot be "
        "controlled. Return the module itself",
    ),
    "the same": (
        lambda: KEPT,
        "port of images returned the same Images twice, which still has the variables of the first call. Make it "
        "inside port, so that each call returns a new port",
    ),
}


@pytest.mark.slow_except("lazy", "two inputs")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_run_is_refused(name):
    port, message = REFUSED[name]
    with pytest.raises(MigrationError, match=f"^{re.escape(message)}$"):
        validate(of_images(port))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": tf.distribute.MirroredStrategy}, "is a torch.nn.Module, and a strategy has replicas on"),
        ({"dtype_policy": "mixed_float16"}, "is a torch.nn.Module, which no dtype policy of Keras governs"),
    ],
)
def test_what_is_of_tensorflow_is_refused(arguments, message):
    with pytest.raises(MigrationError, match=message):
        validate(of_images(**arguments))


def test_a_module_is_no_factory():
    with pytest.raises(ArgumentError, match=r"not the layer itself, but Images\(.+ of type Images was given"):
        of_images(Images())


def test_a_function_that_calls_a_module_is_told_to_return_it():
    module = Images()
    report = validate(of_images(lambda: lambda x, training: module(x)))
    assert "return the torch.nn.Module itself from port" in "".join(titles(report))


def test_a_module_that_is_not_installed_is_named(monkeypatch):
    def port():
        raise ModuleNotFoundError("No module named 'torch'")

    with pytest.raises(MigrationError, match=r"install PyTorch: pip install '\.\[torch\]' in a checkout"):
        validate(of_images(port))


def test_an_optimizer_gets_the_parameters():
    with pytest.raises(MigrationError, match=r"Write port_optimizer=lambda parameters: torch\.optim\.Adam\("):
        validate(trained(lambda: momentum(Images().parameters())))


@pytest.mark.slow
def test_an_optimizer_of_keras_is_refused():
    report = validate(trained(lambda: keras.optimizers.SGD(0.1)), checks=["training-steps"])
    assert "port_optimizer returned SGD, which cannot update a torch.nn.Module" in titles(report)[0]


@pytest.mark.slow
def test_an_optimizer_of_pytorch_is_refused_for_another_port():
    layer = Migration(
        tf1=features,
        port=lambda: keras.layers.Dense(5),
        inputs=numbers(6, 5),
        train=TrainStep(
            labels=np.zeros((6, 5), np.float32),
            tf1_loss=v1.losses.mean_squared_error,
            port_loss=keras.losses.MeanSquaredError(),
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=momentum,
        ),
    )
    assert "of PyTorch, but the port is no torch.nn.Module" in titles(validate(layer, checks=["training-steps"]))[0]


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


def adam_as_in_tf1(parameters):
    optimizer, steps = adam(parameters), itertools.count(1)

    def set_epsilon(*_):
        for group in optimizer.param_groups:
            group["eps"] = 1e-8 / math.sqrt(1 - group["betas"][1] ** next(steps))

    optimizer.register_step_pre_hook(set_epsilon)
    return optimizer


def rmsprop_from_ones(parameters):
    optimizer = torch.optim.RMSprop(parameters, 0.01, 0.9, 1e-10, momentum=0.9)
    for each in optimizer.param_groups[0]["params"]:
        zeros, ones = torch.zeros_like(each), torch.ones_like(each)
        optimizer.state[each] = {"step": torch.zeros(()), "square_avg": ones, "momentum_buffer": zeros}
    return optimizer


def with_schedule(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


def scheduled():
    rate = v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 1, 0.5)
    return v1.train.GradientDescentOptimizer(rate)


OPTIMIZERS = {
    "adagrad": (
        lambda: v1.train.AdagradOptimizer(0.01),
        lambda parameters: torch.optim.Adagrad(parameters, 0.01, initial_accumulator_value=0.1),
    ),
    "adam with TF1's epsilon": (lambda: v1.train.AdamOptimizer(0.01), adam_as_in_tf1),
    "rmsprop": (lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.9), rmsprop_from_ones),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_agree_where_they_compute_the_same(name):
    tf1_optimizer, port_optimizer = OPTIMIZERS[name]
    report = validate(trained(port_optimizer, tf1_optimizer), checks=["training-steps"])
    check = named(report, "training-steps")
    assert check.ok, str(check)
    assert "the optimizers agree for gradients from 1e-10 to 1000" in check.summary
    assert not [each for each in report.audit.differing if each.name == "initial rms"]


@pytest.mark.slow
def test_slots_and_updates_are_compared():
    report = validate(trained(momentum), checks=["training-steps"])
    assert "slots" in next(iter(report.checks[0].trainings["eagerly"].steps.values()))
    assert "the optimizers agree for gradients from 1e-10 to 1000" in report.checks[0].summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port_optimizer", "tf1_optimizer", "title"),
    [
        (
            lambda parameters: torch.optim.SGD(parameters, 0.2, momentum=0.9),
            lambda: v1.train.MomentumOptimizer(0.1, 0.9),
            "learning rate differs in step 0: 0.1 (TF1), 0.2 (port)",
        ),
        (
            lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.8),
            lambda: v1.train.MomentumOptimizer(0.1, 0.9),
            "momentum differs in the optimizer: 0.9 (TF1), 0.8 (port)",
        ),
        (
            adam,
            lambda: v1.train.AdamOptimizer(0.01),
            "PyTorch's Adam adds epsilon after it has corrected the bias of the moments, TF1's adds it before",
        ),
    ],
    ids=["rate", "momentum", "adam"],
)
def test_a_fault_of_the_optimizer_is_confirmed(port_optimizer, tf1_optimizer, title):
    report = validate(trained(port_optimizer, tf1_optimizer), checks=["training-steps"])
    assert titles(report) == [title], str(report)
    (finding,) = report.findings
    assert finding.confirmed == "with TF1's value in the port's optimizer, the updates agree"
    assert finding.remedy


@pytest.mark.slow
def test_a_loss_that_is_summed_is_one_finding():
    def summed(labels, outputs):
        return functional.cross_entropy(outputs, labels, reduction="sum")

    report = validate(trained(momentum, port_loss=summed), checks=["training-steps"])
    assert titles(report) == ["loss: reduction differs: Mean (TF1), Sum (port)"]


@pytest.mark.slow
def test_a_schedule_steps_after_each_update():
    check = named(validate(trained(with_schedule, scheduled), checks=["training-steps"]), "training-steps")
    assert check.ok, check
    assert "their learning rates until step 1,000" in check.summary


@pytest.mark.slow
def test_a_schedule_that_differs_after_the_training_is_found():
    def port_optimizer(parameters):
        optimizer = torch.optim.SGD(parameters, 0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [350])
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    def tf1_optimizer():
        rate = v1.train.piecewise_constant(v1.train.get_or_create_global_step(), [299], [0.1, 0.01])
        return v1.train.GradientDescentOptimizer(rate)

    report = validate(trained(port_optimizer, tf1_optimizer), checks=["training-steps"])
    assert titles(report) == ["argument milestones of the learning-rate schedule differs: [300] (TF1), [350] (port)"]


class FrozenHead(Images):
    def __init__(self):
        super().__init__()
        self.logits.requires_grad_(False)


@pytest.mark.slow
def test_a_frozen_parameter_is_not_trained():
    migration = trained(momentum, port=FrozenHead, var_list=["conv/*", "norm/*", "hidden/*"])
    report = validate(migration, checks=["variables-match", "training-steps"])
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_module_is_made_with_equal_numbers_and_leaves_the_generator_as_it_was():
    drawn = []

    class Drawn(Images):
        def __init__(self):
            super().__init__()
            drawn.append(self.hidden.weight.detach().clone())

    state = torch.get_rng_state()
    validate(of_images(Drawn), checks=["variables-match"])
    assert len(drawn) > 1
    assert all(torch.equal(each, drawn[0]) for each in drawn)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_penalties_in_the_loss_of_a_module_that_has_a_fault_are_no_finding():
    made = []

    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(3, 6), nn.Linear(6, 4)
            made.append(self)

        def forward(self, x):
            return self.out(torch.nn.functional.leaky_relu(self.hidden(x), 0.2))

    def tf1(x, training):
        hidden = v1.layers.dense(x, 6, tf.nn.relu, name="hidden", kernel_regularizer=lambda w: 0.01 * tf.nn.l2_loss(w))
        return v1.layers.dense(hidden, 4, name="out")

    def loss(labels, outputs):
        squares = made[-1].hidden.weight.square().sum()
        return torch.nn.functional.cross_entropy(outputs, labels) + 0.005 * squares

    train = TrainStep(
        labels=np.array([0, 1, 2, 3, 0]),
        tf1_loss=v1.losses.sparse_softmax_cross_entropy,
        port_loss=loss,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1),
        steps=2,
    )
    migration = Migration(tf1=tf1, port=Leaky, inputs=numbers(5, 3).astype(np.float32), train=train)
    findings = validate(migration, checks=["random-training", "training-steps"]).findings
    assert [each.title for each in findings] == ["activation differs: Relu (TF1), LeakyRelu (port)"]
