"""Ports that are a flax.nnx.Module: sound ones pass, faults are named, and what cannot be run is refused."""

import re
from dataclasses import replace
from functools import partial
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import (
    ArgumentError,
    Migration,
    MigrationError,
    TrainStep,
    enable_v1_layers,
    validate,
)
from tests.faults.tf1 import numbers

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")
jax = pytest.importorskip("jax")
jnp = jax.numpy
v1 = tf.compat.v1

IMAGES, LABELS = numbers(5, 8, 8, 3), np.array([0, 1, 2, 3, 0])
GLOROT = nnx.initializers.glorot_uniform()


@pytest.fixture(autouse=True, scope="module")
def programs_are_dropped():
    """Drop what JAX has compiled, which takes gigabytes."""
    yield
    jax.clear_caches()


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


class Images(nnx.Module):
    activation = staticmethod(nnx.relu)
    pool = staticmethod(nnx.max_pool)

    def __init__(self, epsilon=1e-3, momentum=0.99, rate=0.3, strides=1, padding="SAME", kernel_init=GLOROT):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 6, (3, 3), strides=strides, padding=padding, kernel_init=kernel_init, rngs=rngs)
        self.norm = nnx.BatchNorm(6, epsilon=epsilon, momentum=momentum, rngs=rngs)
        self.early = nnx.Dropout(0.2, rngs=rngs)
        self.hidden = nnx.Linear(96, 16, kernel_init=kernel_init, rngs=rngs)
        self.late = nnx.Dropout(rate, rngs=rngs)
        self.logits = nnx.Linear(16, 4, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x):
        hidden = self.pool(self.activation(self.norm(self.conv(x))), (2, 2), (2, 2))
        hidden = self.activation(self.hidden(self.flatten(self.early(hidden))))
        return self.logits(self.late(hidden))

    def flatten(self, hidden):
        return hidden.reshape(len(hidden), -1)


class FlattenedChannelsFirst(Images):
    def flatten(self, hidden):
        return hidden.transpose(0, 3, 1, 2).reshape(len(hidden), -1)


class AveragePool(Images):
    pool = staticmethod(nnx.avg_pool)


class Tanh(Images):
    activation = staticmethod(nnx.tanh)


def recurrent(x, training):
    cell = v1.nn.rnn_cell.BasicLSTMCell(4, forget_bias=0.5)
    outputs, _ = v1.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    last = v1.layers.dropout(outputs[:, -1], 0.4, training=training)
    return v1.layers.dense(last, 4, name="logits")


class Recurrent(nnx.Module):
    cell = nnx.OptimizedLSTMCell

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.rnn = nnx.RNN(self.cell(5, 4, rngs=rngs), rngs=rngs)
        self.dropout = nnx.Dropout(0.4, rngs=rngs)
        self.logits = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return self.logits(self.dropout(self.rnn(x)[:, -1]))


class RecurrentByGates(Recurrent):
    cell = nnx.LSTMCell


def normalized(x, name):
    with v1.variable_scope(name):
        size = [int(x.shape[-1])]
        gamma = v1.get_variable("gamma", size, initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", size, initializer=v1.zeros_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def encoder(x, training):
    """A block of a transformer, with 2 heads of 3 features."""
    length, size = int(x.shape[1]), int(x.shape[2])

    def heads(name):
        projected = v1.layers.dense(x, size, name=name)
        return tf.transpose(tf.reshape(projected, (-1, length, 2, size // 2)), (0, 2, 1, 3))

    with v1.variable_scope("attention"):
        query, key, value = (heads(name) for name in ("query", "key", "value"))
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / np.sqrt(size // 2).astype(np.float32))
        attended = tf.reshape(tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3)), (-1, length, size))
        attended = v1.layers.dense(attended, size, name="out")
    hidden = normalized(x + v1.layers.dropout(attended, 0.1, training=training), "first")
    inner = v1.layers.dense(hidden, 8, tf.nn.gelu, name="inner")
    outer = v1.layers.dropout(v1.layers.dense(inner, size, name="outer"), 0.1, training=training)
    return normalized(hidden + outer, "second")


class Encoder(nnx.Module):
    gelu = staticmethod(partial(nnx.gelu, approximate=False))
    epsilon = 1e-6

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(2, 6, decode=False, kernel_init=GLOROT, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.first = nnx.LayerNorm(6, epsilon=self.epsilon, rngs=rngs)
        self.inner = nnx.Linear(6, 8, kernel_init=GLOROT, rngs=rngs)
        self.outer = nnx.Linear(8, 6, kernel_init=GLOROT, rngs=rngs)
        self.second = nnx.LayerNorm(6, epsilon=self.epsilon, rngs=rngs)

    def __call__(self, x):
        hidden = self.first(x + self.dropout(self.attention(x)))
        return self.second(hidden + self.dropout(self.outer(self.gelu(self.inner(hidden)))))


def autoencoder(x, training):
    hidden = v1.layers.dense(x, 12, tf.nn.relu, name="encoder")
    mean, log_variance = v1.layers.dense(hidden, 3, name="mean"), v1.layers.dense(hidden, 3, name="log_variance")
    code = mean + tf.exp(0.5 * log_variance) * v1.random_normal(tf.shape(mean))
    image = tf.reshape(v1.layers.dense(code, 2 * 2 * 4, tf.nn.relu, name="decoder"), (-1, 2, 2, 4))
    image = v1.layers.conv2d_transpose(image, 2, 3, strides=2, padding="same", name="image")
    return image, mean, log_variance


class Autoencoder(nnx.Module):
    def __init__(self, transpose_kernel=False):
        self.rngs = rngs = nnx.Rngs(0)
        linear = partial(nnx.Linear, kernel_init=GLOROT, rngs=rngs)
        self.encoder, self.mean, self.log_variance = linear(6, 12), linear(12, 3), linear(12, 3)
        self.decoder = linear(3, 16)
        self.image = nnx.ConvTranspose(4, 2, (3, 3), strides=2, transpose_kernel=transpose_kernel, rngs=rngs)

    def __call__(self, x):
        hidden = nnx.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + jnp.exp(0.5 * log_variance) * self.noise(mean.shape)
        image = nnx.relu(self.decoder(code)).reshape(-1, 2, 2, 4)
        return self.image(image), mean, log_variance

    def noise(self, shape):
        return self.rngs.normal(shape)


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def optax_cross_entropy(labels, logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def evidence(targets, outputs):
    """The loss of the autoencoder in TensorFlow."""
    image, mean, log_variance = outputs
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), 1)
    return tf.reduce_mean(tf.reduce_sum((image - targets) ** 2, [1, 2, 3]) + divergence)


def evidence_in_jax(targets, outputs):
    image, mean, log_variance = outputs
    divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), 1)
    return jnp.mean(jnp.sum((image - targets) ** 2, (1, 2, 3)) + divergence)


def momentum():
    return optax.sgd(0.1, momentum=0.9)


def mean_square(labels, outputs):
    return ((outputs - labels) ** 2).mean()


def trained(migration, **arguments):
    losses = {"tf1_loss": cross_entropy, "port_loss": optax_cross_entropy, "labels": LABELS}
    optimizers = {"tf1_optimizer": lambda: v1.train.MomentumOptimizer(0.1, 0.9), "port_optimizer": momentum}
    return replace(migration, train=TrainStep(**{**losses, **optimizers, **arguments}))


def of_images(port=Images, **arguments):
    return Migration(tf1=images, port=port, inputs=IMAGES, **arguments)


def of_recurrent(port=Recurrent):
    return Migration(tf1=recurrent, port=port, inputs=numbers(5, 7, 5), expect=["initializers-match"])


def of_encoder(port=Encoder):
    return Migration(tf1=encoder, port=port, inputs=numbers(3, 5, 6))


def of_autoencoder(port=Autoencoder):
    return Migration(tf1=autoencoder, port=port, inputs=numbers(5, 6), expect=["initializers-match"])


@pytest.mark.slow
def test_a_port_that_clips_in_code_of_its_own_is_not_said_not_to():
    def train_op(loss):
        variables = v1.trainable_variables()
        gradients = [tf.clip_by_norm(each, 0.05) for each in v1.gradients(loss, variables)]
        return v1.train.RMSPropOptimizer(0.01, 0.9, epsilon=1e-5).apply_gradients(
            zip(gradients, variables, strict=True)
        )

    def clip(gradients, state, parameters=None):
        norm = lambda each: jax.numpy.linalg.norm(each.ravel())  # noqa: E731
        limited = jax.tree.map(lambda each: each / jax.numpy.maximum(norm(each) / 0.05, 1.0), gradients)
        return limited, state

    def port_optimizer():
        own = optax.GradientTransformation(lambda parameters: optax.EmptyState(), clip)
        return optax.chain(own, optax.rmsprop(0.01, 0.8, 1e-5, initial_scale=1.0))

    given = trained(
        of_encoder(), **OF_ENCODER, tf1_optimizer=None, tf1_train_op=train_op, port_optimizer=port_optimizer
    )
    (finding,) = validate(given, checks=["training-steps"]).findings
    assert "no argument of the port's optimizer" not in finding.title
    assert "decay" in finding.title


OF_ENCODER = {"labels": numbers(3, 5, 6), "tf1_loss": v1.losses.mean_squared_error, "port_loss": mean_square}
OF_AUTOENCODER = {"labels": numbers(5, 4, 4, 2), "tf1_loss": evidence, "port_loss": evidence_in_jax}
SOUND = {
    "images": of_images,
    "images, trained": lambda: trained(of_images(), steps=10),
    "method": lambda: of_images(lambda: Images().__call__),
    "recurrent": lambda: trained(of_recurrent(), steps=10),
    "recurrent by gates": lambda: trained(of_recurrent(RecurrentByGates), steps=2),
    "encoder": lambda: trained(of_encoder(), steps=10, **OF_ENCODER),
    "autoencoder": lambda: trained(of_autoencoder(), steps=10, **OF_AUTOENCODER),
    "autoencoder with TF1's kernel": lambda: of_autoencoder(lambda: Autoencoder(transpose_kernel=True)),
}


def named(report, name):
    return next(check for check in report.checks if check.name == name)


def titles(report):
    return [finding.title for finding in report.findings]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_every_check_passes_on_a_sound_module(name):
    report = validate(SOUND[name]())
    assert report.ok, str(report)


class OtherEpsilon(Encoder):
    epsilon = 1e-3


class ApproximateGelu(Encoder):
    gelu = staticmethod(nnx.gelu)


FAULTS = {  # the checks that run, the port, and how the title of each finding begins
    "epsilon": (
        "random-inference",
        lambda: of_images(lambda: Images(epsilon=1e-5)),
        "epsilon differs in norm: 0.001 (TF1), 1e-05 (port)",
    ),
    "momentum": (
        "random-training",
        lambda: of_images(lambda: Images(momentum=0.9)),
        "momentum differs: 0.99 (TF1), 0.9 (port)",
    ),
    "rate": (
        "random-training",
        lambda: of_images(lambda: Images(rate=0.5)),
        "dropout rate differs: 0.3 (TF1), 0.5 (port)",
    ),
    "initializer": (
        "initializers-match",
        lambda: of_images(lambda: Images(kernel_init=nnx.initializers.normal(1.0))),
        "initializer differs: standard deviation",
    ),
    "flattened": (
        "random-inference",
        lambda: of_images(FlattenedChannelsFirst),
        "the port flattens an array with its axes in a different order: the arrays agree if the port's is transposed "
        "to (0, 2, 3, 1)",
    ),
    "pooling": (
        "random-inference",
        lambda: of_images(AveragePool),
        "pooling method differs: MaxPool (TF1), AvgPool (port)",
    ),
    "activation": ("random-inference", lambda: of_images(Tanh), "activation differs: Relu (TF1), Tanh (port)"),
    "epsilon of a layer norm": (
        "random-inference",
        lambda: of_encoder(OtherEpsilon),
        "epsilon differs",
    ),
    "form of gelu": ("random-inference", lambda: of_encoder(ApproximateGelu), "form of GELU differs"),
    "optimizer's rate": (
        "training-steps",
        lambda: trained(of_images(), port_optimizer=lambda: optax.sgd(0.2, momentum=0.9)),
        "learning rate differs in step 0: 0.1 (TF1), 0.2 (port)",
    ),
    "optimizer's momentum": (
        "training-steps",
        lambda: trained(of_images(), port_optimizer=lambda: optax.sgd(0.1, momentum=0.8)),
        "momentum differs in the optimizer: 0.9 (TF1), 0.8 (port)",
    ),
    "adam": (
        "training-steps",
        lambda: trained(
            of_images(), tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01), port_optimizer=lambda: optax.adam(0.01)
        ),
        "optax's Adam adds epsilon after it has corrected the bias of the moments, TF1's adds it before",
    ),
    "sum": (
        "training-steps",
        lambda: trained(of_images(), port_loss=lambda labels, logits: 5 * optax_cross_entropy(labels, logits)),
        "the port sums a loss where TF1 takes the mean",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding(name):
    check, migration, expected = FAULTS[name]
    report = validate(migration(), checks=[check])
    (finding, *others) = report.findings
    assert finding.title.startswith(expected), str(report)
    assert all(finding.title.startswith(expected) for finding in others), str(report)
    assert check == "initializers-match" or finding.confirmed, str(report)
    assert "test_flax.py" in finding.port.line


@pytest.mark.slow
def test_an_adam_that_adds_epsilon_as_tf1_does_agrees():
    def adam():
        return optax.inject_hyperparams(optax.adam)(0.01, eps=lambda step: 1e-8 / jnp.sqrt(1 - 0.999 ** (step + 1)))

    migration = trained(of_images(), tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01), port_optimizer=adam)
    check = named(validate(migration, checks=["training-steps"]), "training-steps")
    assert check.ok, str(check)
    assert "the optimizers agree for gradients from 1e-10 to 1000" in check.summary


@pytest.mark.slow
def test_a_schedule_is_compared_far_beyond_the_training():
    def tf1_optimizer():
        rate = v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 10, 0.5, staircase=True)
        return v1.train.GradientDescentOptimizer(rate)

    def port_optimizer():
        return optax.sgd(optax.exponential_decay(0.1, 10, 0.5, staircase=True))

    migration = trained(of_images(), tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)
    check = named(validate(migration, checks=["training-steps"]), "training-steps")
    assert check.ok, str(check)
    assert "their learning rates until step 10,000,000" in check.summary


@pytest.mark.slow
@pytest.mark.parametrize("is_centered", [False, True], ids=["plain", "centered"])
def test_an_rmsprop_with_a_momentum_agrees(is_centered):
    migration = trained(
        of_images(),
        tf1_optimizer=lambda: v1.train.RMSPropOptimizer(0.01, 0.9, momentum=0.9, centered=is_centered),
        port_optimizer=lambda: optax.rmsprop(
            0.01, 0.9, 1e-10, initial_scale=1.0, eps_in_sqrt=True, momentum=0.9, centered=is_centered
        ),
    )
    report = validate(migration, checks=["training-steps"])
    assert report.ok, str(report)


def rates_of_warm_up():
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
    return tf.where(step < 3, 0.1 * step / 3, v1.train.cosine_decay(0.1, step - 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_rate", "make_schedule", "expected"),
    [
        (
            lambda: v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 2, 0.5, staircase=True),
            lambda: optax.exponential_decay(0.1, 3, 0.5, staircase=True),
            "argument transition_steps of the learning-rate schedule differs: 2 (TF1), 3 (port)",
        ),
        (
            rates_of_warm_up,
            lambda: optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 10),
            "argument decay_steps of cosine_decay_schedule in the learning-rate schedule differs: "
            "5.0 (TF1), 7.0 (port)",
        ),
        (
            lambda: v1.train.piecewise_constant(v1.train.get_or_create_global_step(), [1, 2], [0.1, 0.2, 0.05]),
            lambda: optax.piecewise_constant_schedule(0.1, {1: 2.0, 2: 0.25}),
            "learning rate differs in step 1: 0.1 (TF1), 0.2 (port); each rate of the port is TF1's of the next step",
        ),
    ],
    ids=["exponential", "joined", "boundaries"],
)
def test_the_argument_of_a_schedule_is_named(make_rate, make_schedule, expected):
    migration = trained(
        of_images(),
        steps=5,
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(make_rate()),
        port_optimizer=lambda: optax.sgd(make_schedule()),
    )
    (finding,) = validate(migration, checks=["training-steps"]).findings
    assert finding.title == expected
    assert finding.confirmed and finding.remedy


class Penalized(Images):
    made: ClassVar = []

    def __init__(self):
        super().__init__()
        self.made.append(self)


@pytest.mark.slow
def test_a_loss_reads_the_module():
    def tf1_loss(labels, logits):
        kernel = next(each for each in v1.trainable_variables() if each.name == "logits/kernel:0")
        return cross_entropy(labels, logits) + 0.1 * tf.nn.l2_loss(kernel)

    def port_loss(labels, logits):
        penalty = 0.05 * (Penalized.made[-1].logits.kernel[...] ** 2).sum()
        return optax_cross_entropy(labels, logits) + penalty

    migration = trained(of_images(Penalized), tf1_loss=tf1_loss, port_loss=port_loss)
    report = validate(migration, checks=["training-steps"])
    assert report.ok, str(report)


class MakesParameters(Images):
    def __call__(self, x):
        self.scale = nnx.Param(jnp.ones(()))
        return super().__call__(x) * self.scale[...]


@pytest.mark.slow
def test_a_module_that_makes_parameters_when_it_is_called_fails():
    check = named(validate(of_images(MakesParameters), checks=["variables-created-once"]), "variables-created-once")
    assert check.details == "parameters that a call makes: scale. Make each of them in __init__"


KEPT = Images()
REFUSED = {
    "without values": (
        lambda: nnx.eval_shape(Images),
        "port of images returned a module whose conv.bias has a shape and no value, as nnx.eval_shape makes it. Return "
        "a module that is made without nnx.eval_shape",
    ),
    "linen": (
        lambda: pytest.importorskip("flax.linen").Dense(4),
        "port of images returned Dense, a flax.linen.Module, which has no variables of its own. Write it as a "
        "flax.nnx.Module",
    ),
    "the same": (
        lambda: KEPT,
        "port of images returned the same Images twice, which still has the variables of the first call. Make it "
        "inside port, so that each call returns a new port",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_run_is_refused(name):
    port, message = REFUSED[name]
    with pytest.raises(MigrationError, match=f"^{re.escape(message)}$"):
        validate(of_images(port))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": tf.distribute.MirroredStrategy}, "is a flax.nnx.Module, and a strategy has replicas on"),
        ({"dtype_policy": "mixed_float16"}, "is a flax.nnx.Module, which no dtype policy of Keras governs"),
    ],
)
def test_what_is_of_tensorflow_is_refused(arguments, message):
    with pytest.raises(MigrationError, match=message):
        validate(of_images(**arguments))


def test_a_module_on_another_device_is_refused(monkeypatch):
    class Gpu:
        platform = "gpu"

        def __str__(self):
            return "cuda:0"

    array = type(jnp.ones(1))
    monkeypatch.setattr(array, "devices", lambda self: {Gpu()})
    with pytest.raises(MigrationError, match=r"is on the device cuda:0\. TF1 and the port are compared on the CPU"):
        validate(of_images())


def test_a_module_is_no_factory():
    with pytest.raises(ArgumentError, match=r"not the layer itself, but Images\("):
        of_images(Images())


@pytest.mark.slow
def test_a_function_that_calls_a_module_is_told_to_return_it():
    module = Images()
    report = validate(of_images(lambda: lambda x, training: module(x)), checks=["variables-match"])
    assert "a flax.nnx.Module" in str(report)


@pytest.mark.parametrize(
    ("port_optimizer", "message"),
    [
        (lambda parameters: momentum(), r"takes an argument, but an optimizer of optax needs none"),
        (lambda: nnx.Optimizer(Images(), momentum(), wrt=nnx.Param), r"returned an nnx\.Optimizer"),
    ],
)
def test_an_optimizer_of_another_form_is_refused(port_optimizer, message):
    with pytest.raises(MigrationError, match=message):
        validate(trained(of_images(), port_optimizer=port_optimizer))


@pytest.mark.slow
def test_an_optimizer_of_keras_is_refused():
    migration = trained(of_images(), port_optimizer=lambda: keras.optimizers.SGD(0.1))
    report = validate(migration, checks=["training-steps"])
    assert "port_optimizer returned SGD, which cannot update a flax.nnx.Module" in titles(report)[0]


@pytest.mark.slow
def test_the_variables_of_a_cell_have_one_entry_in_the_name_map():
    check = named(validate(of_recurrent(), checks=["variables-match"]), "variables-match")
    assert "lstm_cell_to_flax('rnn/basic_lstm_cell', 'rnn.cell', forget_bias=0.5, optimized=True)" in check.details
    assert "'rnn/basic_lstm_cell/kernel': " not in check.details
    assert "names or forms of 4 variables differ" in check.summary


def unit(x, training):
    hidden = v1.layers.dense(x, 6, name="hidden")
    return v1.layers.dense(tf.nn.l2_normalize(hidden, 1) + tf.random.normal(tf.shape(hidden)), 4, name="logits")


class Unit(nnx.Module):
    def __init__(self, axis=1, shape=(5, 6)):
        self.rngs = rngs = nnx.Rngs(0)
        self.hidden, self.logits = (nnx.Linear(*sizes, kernel_init=GLOROT, rngs=rngs) for sizes in ((4, 6), (6, 4)))
        self.axis, self.shape = axis, shape

    def __call__(self, x):
        hidden = self.hidden(x)
        squares = jnp.sum(hidden**2, axis=self.axis, keepdims=True)
        return self.logits(hidden * jax.lax.rsqrt(squares) + self.rngs.normal(self.shape))


@pytest.mark.slow_except("shape", "axis")
@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ({}, None),
        ({"axis": 0}, "axis of Sum differs: 1 (TF1), 0 (port)"),
        ({"shape": (6,)}, "shape of random numbers differs: (5, 6) (TF1), (6,) (port)"),
    ],
    ids=["sound", "axis", "shape"],
)
def test_a_sum_that_keeps_its_axes_and_a_draw_are_ops_of_their_own(arguments, title):
    migration = Migration(tf1=unit, port=partial(Unit, **arguments), inputs=numbers(5, 4))
    found = validate(migration, checks=["constant-weights", "random-inference"]).findings
    assert [finding.title for finding in found] == ([] if title is None else [title])


def branches(x, training):
    of_each = []
    for name in ("first", "second"):
        hidden = v1.layers.dense(x, 4, tf.tanh, name=name)
        of_each.append(v1.nn.dropout(hidden, rate=0.3) if training else hidden)
    return of_each[0] - of_each[1]


class Branches(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x):
        second = self.dropout(nnx.tanh(self.second(x)))
        return self.dropout(nnx.tanh(self.first(x))) - second


@pytest.mark.slow
def test_dropouts_of_branches_that_run_in_a_different_order_are_no_fault():
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    migration = Migration(tf1=branches, port=lambda: Branches(nnx.Rngs(0)), inputs=rows)
    assert validate(migration, checks=["random-training"]).ok


def normalized_images(x, training):
    for number in range(2):
        x = v1.layers.conv2d(x, 3, 3, padding="same", name=f"conv{number}")
        x = tf.nn.relu(v1.layers.batch_normalization(x, name=f"bn{number}", fused=False, epsilon=1e-5))
    return v1.layers.flatten(x)


class InLists(nnx.Module):
    """All convolutions come before all normalizations, whose biases have the shape and the name of theirs."""

    def __init__(self, rngs):
        self.convs = nnx.List([nnx.Conv(3, 3, (3, 3), rngs=rngs) for _ in range(2)])
        self.norms = nnx.List([nnx.BatchNorm(3, use_running_average=True, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.relu(norm(conv(x)))
        return x.reshape(x.shape[0], -1)


@pytest.mark.slow
def test_the_data_flow_pairs_layers_of_a_module_that_keeps_them_by_their_kinds():
    migration = Migration(tf1=normalized_images, port=lambda: InLists(nnx.Rngs(0)), inputs=IMAGES)
    report = validate(migration, checks=["variables-match", "initializers-match"])
    assert named(report, "variables-match").ok
    assert named(report, "initializers-match").compared


def scores(x, training):
    return v1.layers.dense(x, 3, name="scores", bias_initializer=v1.constant_initializer(0.2))


class Scores(nnx.Module):
    def __init__(self, rngs):
        self.scores = nnx.Linear(5, 3, kernel_init=GLOROT, bias_init=nnx.initializers.constant(0.2), rngs=rngs)

    def __call__(self, x):
        return self.scores(x)


def penalized(labels, outputs):
    (kernel,) = (each for each in v1.trainable_variables() if "kernel" in each.name)
    return cross_entropy(labels, outputs) + 0.04 * tf.nn.l2_loss(kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decays", "titles"),
    [
        (lambda parameters: jax.tree.map(lambda each: each.ndim > 1, parameters), []),
        (None, ["weight decay differs: only the port decays scores/bias"]),
    ],
    ids=["kernel", "all"],
)
def test_weights_that_tf1_penalizes_may_decay_in_the_optimizer(decays, titles):
    base = Migration(tf1=scores, port=lambda: Scores(nnx.Rngs(0)), inputs=numbers(5, 5), expect=["initializers-match"])
    migration = trained(
        base,
        labels=LABELS % 3,
        tf1_loss=penalized,
        port_optimizer=lambda: optax.chain(optax.add_decayed_weights(0.04, decays), momentum()),
    )
    assert [finding.title for finding in validate(migration).findings] == titles
