"""Ports of Keras 3 on JAX and PyTorch: sound ones pass, faults are found, and what needs TensorFlow is refused.

A process has one backend, so the migrations of each backend are validated in a process of their own.
"""

import functools

import keras
import pytest
import tensorflow as tf

from detrand import Migration, MigrationError, TrainStep, enable_v1_layers, track_tf1_style_variables, validate
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.tensors import RTOLS
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.reference import INFERENCE, TRAINING
from detrand.validation.runner import Runner
from tests.faults.tf1 import numbers
from tests.sound_migrations import MIGRATIONS
from tests.support.keras3_process import Program, is_installed, run_on

v1 = tf.compat.v1

# Those whose ports call nothing of TensorFlow.
SOUND = (
    *("softmax_regression", "highway", "variational_autoencoder", "deep_factorization_machine", "wide_and_deep"),
    *("lenet", "residual_network", "mobile_network", "deconvolution", "text_network", "slim_network", "volumes"),
    *("language_model", "sequence_classifier", "tagger", "translator"),
    *("cross_network", "fused_batch_norm"),  # of tf_keras, which has TensorFlow on every backend
)
SOUND_ON_JAX = ("softmax_regression", "text_network", "fused_batch_norm")
QUICK = {"softmax_regression", "none", "activation", "factor", "calls TensorFlow", "has TF1 code"}
LABELS = numbers(6, 4)


def network(x, training):
    hidden = v1.layers.dense(x, 5, name="hidden", kernel_regularizer=lambda kernel: 0.01 * tf.nn.l2_loss(kernel))
    hidden = v1.layers.batch_normalization(hidden, training=training, name="norm")
    hidden = v1.layers.dropout(tf.nn.relu(hidden), 0.3, training=training)
    return v1.layers.dense(hidden, 4, name="logits")


class Network(keras.Model):
    def __init__(self, epsilon=1e-3, momentum=0.99, activation="relu", rate=0.3, decay=0.005):
        super().__init__()
        l2 = keras.regularizers.L2(decay)
        self.hidden = keras.layers.Dense(5, kernel_regularizer=l2, name="hidden")
        self.norm = keras.layers.BatchNormalization(epsilon=epsilon, momentum=momentum, name="norm")
        self.activation = keras.layers.Activation(activation)
        self.dropout = keras.layers.Dropout(rate)
        self.logits = keras.layers.Dense(4, name="logits")

    def call(self, x, training=False):
        hidden = self.activation(self.norm(self.hidden(x), training=training))
        return self.logits(self.dropout(hidden, training=training))


def migration(port=Network, trained=False, **of_training):
    training = {
        "labels": LABELS,
        "tf1_loss": v1.losses.mean_squared_error,
        "port_loss": keras.losses.MeanSquaredError(),
        "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.01),
        "port_optimizer": lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
        **of_training,
    }
    train = TrainStep(steps=3, **training) if trained or of_training else None
    return Migration(tf1=network, port=port, inputs=numbers(6, 3), train=train)


class CallsTensorFlow(Network):
    def call(self, x, training=False):
        return tf.cast(super().call(x, training), tf.float32)


class LooksAtNumbers(Network):
    def call(self, x, training=False):
        if float(keras.ops.sum(x)) > 1e9:  # no compiled program can decide this
            return x
        return super().call(x, training)


class HasTF1Code(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, x, training=False):
        return network(x, training)


def with_penalty(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs)) + 0.3 * tf.reduce_mean(tf.abs(outputs))


def with_another_factor(labels, outputs):
    penalty = 0.4 * keras.ops.mean(keras.ops.abs(outputs))
    return keras.losses.MeanSquaredError()(labels, outputs) + penalty


FAULTS = {
    "none": lambda: migration(trained=True),
    "epsilon": lambda: migration(lambda: Network(epsilon=1e-2)),
    "rate": lambda: migration(lambda: Network(rate=0.5)),
    "activation": lambda: migration(lambda: Network(activation="tanh")),
    "momentum": lambda: migration(lambda: Network(momentum=0.9), trained=True),
    "regularizer": lambda: migration(lambda: Network(decay=0.01)),
    "sum": lambda: migration(port_loss=keras.losses.MeanSquaredError(reduction="sum")),
    "factor": lambda: migration(tf1_loss=with_penalty, port_loss=with_another_factor),
    "optimizer": lambda: migration(port_optimizer=lambda: keras.optimizers.Adam(0.01)),
    "calls TensorFlow": lambda: migration(CallsTensorFlow),
    "looks at numbers": lambda: migration(lambda: LooksAtNumbers(activation="tanh")),
    "has TF1 code": lambda: migration(HasTF1Code),
}
OF_TRAINING = ("sum", "factor", "optimizer")
FAULTS_ON_JAX = (
    "none",
    "momentum",
    "factor",
    "activation",
    "rate",
    "looks at numbers",
    "has TF1 code",
    "calls TensorFlow",
)
RATES = (0.01, 0.02)


def of_schedule():
    """Return a migration whose learning rates change in step 1."""
    return migration(
        tf1_optimizer=lambda: v1.train.AdamOptimizer(
            v1.train.piecewise_constant(v1.train.get_or_create_global_step(), [0], list(RATES))
        ),
        port_optimizer=lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.PiecewiseConstantDecay([0], list(RATES)), epsilon=1e-8
        ),
    )


def report_of_sound_migration(name):
    if keras.backend.backend() == "torch":
        import torch

        # oneDNN computes a wrong gradient of a convolution of size 1 with strides in some runs.
        torch.backends.mkldnn.enabled = False
    with enable_v1_layers():
        if name == "schedule":
            return described(validate(of_schedule(), checks=["training-steps"]))
        return described(validate(MIGRATIONS[name]))


def trace_of_sound_migration(name):
    """Return the greatest differences of outputs in float64, where the port's ops are watched."""
    if keras.backend.backend() == "torch":
        import torch

        torch.backends.mkldnn.enabled = False
    found = {}
    with enable_v1_layers():
        runner = Runner(MIGRATIONS[name])
        runner.complete_name_map()
        for config in (INFERENCE, TRAINING):
            outcome = runner.port(config)
            initial = runner.tf1.outcome(config).initial
            port = traced_port(runner.migration, outcome.config, runner.tf1.shapes(), initial)
            compared = TraceComparison(runner.tf1.trace(config), port.run(), RTOLS[0])
            way = "training" if config.training else "inference"
            found[way] = "" if not compared.differs else f"{compared.differences()}"
    return found


def report_of_fault(name):
    with enable_v1_layers():
        return described(validate(FAULTS[name](), checks=["training-steps"] if name in OF_TRAINING else None))


def described(report):
    """Return the parts of a report that tests look at: texts, as another process returns them."""
    failed = [check for check in report.checks if not check.ok]
    return {
        "failed": ", ".join(check.name for check in failed),
        "training": next((check.summary for check in report.checks if check.name == "training-steps"), ""),
        "titles": "\n".join(finding.title for finding in report.findings),
        "remedies": "\n".join(finding.remedy for finding in report.findings),
        "report": str(report),
    }


def refusal_of_strategy():
    with enable_v1_layers():
        replicas = Migration(tf1=network, port=Network, inputs=numbers(6, 3), strategy=tf.distribute.MirroredStrategy)
        try:
            validate(replicas)
        except MigrationError as error:
            return {"message": str(error)}
    return {"message": ""}


def is_slow(backend, program):
    """Return whether a program is left to the slow tests, as on JAX, which compiles each op of each shape."""
    return bool(program.arguments) and (backend == "jax" or QUICK.isdisjoint(program.arguments))


def traced_on(backend):
    """Return the sound migrations whose traces are compared on a backend; on JAX, which takes long, some of them."""
    return SOUND if backend == "torch" else SOUND_ON_JAX


def programs_on(backend):
    """Return the programs of a backend; on JAX, which takes long, some of them."""
    sound = SOUND if backend == "torch" else SOUND_ON_JAX
    faults = FAULTS if backend == "torch" else FAULTS_ON_JAX
    return [
        *(Program(__name__, "report_of_sound_migration", (name,), mode=None) for name in (*sound, "schedule")),
        *(Program(__name__, "trace_of_sound_migration", (name,), mode=None) for name in traced_on(backend)),
        *(Program(__name__, "report_of_fault", (name,), mode=None) for name in faults),
        Program(__name__, "refusal_of_strategy", mode=None),
    ]


@functools.cache
def results(backend, slow):
    programs = [program for program in programs_on(backend) if is_slow(backend, program) == slow]
    return dict(zip(programs, run_on(backend, programs), strict=True))


def result(backend, function, *name):
    program = Program(__name__, function, name, mode=None)
    return dict(results(backend, is_slow(backend, program))[program].checked().values)


on_backends = pytest.mark.parametrize("backend", ["jax", "torch"])


@pytest.fixture(autouse=True)
def backend_is_installed(backend):
    if not is_installed(backend):
        pytest.skip(f"{backend} is not installed")


@pytest.mark.slow_except("torch-softmax_regression")
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *(("torch", name) for name in (*SOUND, "schedule")),
        *(("jax", name) for name in (*SOUND_ON_JAX, "schedule")),
    ],
)
def test_every_check_passes_on_a_sound_migration(backend, name):
    found = result(backend, "report_of_sound_migration", name)
    assert not found["failed"], found["report"]


@pytest.mark.slow_except("torch-softmax_regression")
@pytest.mark.parametrize(
    ("backend", "name"), [(backend, name) for backend in ("jax", "torch") for name in traced_on(backend)]
)
def test_the_ops_of_a_sound_port_compute_what_tf1_computes_in_float64(backend, name):
    found = result(backend, "trace_of_sound_migration", name)
    assert not found["inference"]
    assert not found["training"]


@pytest.mark.slow_except("torch")
@on_backends
def test_a_port_is_trained_eagerly_and_its_optimizer_is_probed(backend):
    found = result(backend, "report_of_fault", "none")
    assert not found["failed"], found["report"]
    assert found["training"].startswith("eagerly: all 3 steps ")
    assert "the optimizers agree for gradients from" in found["training"]


TITLES_OF_FAULTS = {
    "epsilon": "epsilon differs in norm: 0.001 (TF1), 0.01 (port)",
    "rate": "dropout rate differs: 0.3 (TF1), 0.5 (port)",
    "momentum": "momentum differs: 0.99 (TF1), 0.9 (port)",
    "activation": "activation differs: Relu (TF1), Tanh (port)",
    "sum": "the port sums a loss where TF1 takes the mean: it is 6 times as large, a size of the outputs",
    "factor": "loss: factor differs: 0.3 (TF1), 0.4 (port)",
    "optimizer": "epsilon differs in the optimizer: 1e-08 (TF1), 1e-07 (port)",
}
TITLES = [
    *(("torch", name, title) for name, title in TITLES_OF_FAULTS.items()),
    *(("jax", name, TITLES_OF_FAULTS[name]) for name in ("activation", "momentum", "factor")),
    ("jax", "rate", "rate differs in dropout: 0.3 (TF1), 0.5 (port)"),
]


@pytest.mark.slow_except("torch-activation", "torch-factor")
@pytest.mark.parametrize(("backend", "name", "title"), TITLES, ids=[f"{each[0]}-{each[1]}" for each in TITLES])
def test_a_fault_is_one_finding(backend, name, title):
    assert result(backend, "report_of_fault", name)["titles"] == title


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch"])
def test_a_regularizer_of_another_scale_is_found(backend):
    assert result(backend, "report_of_fault", "regularizer")["titles"].startswith("regularizer differs: ")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax"])
def test_a_port_that_cannot_be_traced_has_a_remedy(backend):
    found = result(backend, "report_of_fault", "looks at numbers")
    remedy = "run the migration with KERAS_BACKEND=tensorflow: its report names the op and the line"
    assert remedy in found["remedies"].split("\n")
    message = "JAX cannot trace the port: it raises ConcretizationTypeError at "
    assert f"The first divergence could not be found: TypeError: {message}" in found["report"]
    assert "test_other_backends.py" in found["report"].partition(message)[2].split("\n")[0]


@pytest.mark.slow_except("torch")
@on_backends
def test_a_fault_of_the_loss_has_its_line(backend):
    report = result(backend, "report_of_fault", "factor")["report"]
    assert "penalty = 0.4 * keras.ops.mean(keras.ops.abs(outputs))" in report
    assert "the rest agrees" in report


@pytest.mark.slow_except("torch")
@on_backends
def test_a_fault_has_the_lines_of_its_layer(backend):
    report = result(backend, "report_of_fault", "activation")["report"]
    assert "self.activation = keras.layers.Activation(activation)" in report
    assert "the rest agrees" in report


@pytest.mark.slow_except("torch")
@on_backends
def test_a_port_that_calls_tensorflow_is_told_so(backend):
    titles = result(backend, "report_of_fault", "calls TensorFlow")["titles"]
    assert "if the port calls TensorFlow's ops, set KERAS_BACKEND=tensorflow" in titles


@pytest.mark.slow_except("torch")
@on_backends
def test_tf1_code_in_a_layer_of_keras_3_is_refused(backend):
    titles = result(backend, "report_of_fault", "has TF1 code")["titles"]
    assert titles.startswith(
        "TF1CodeError: HasTF1Code.call has TF1 code, which computes with TensorFlow, but Keras runs on"
    )


@on_backends
def test_a_strategy_is_refused(backend):
    message = result(backend, "refusal_of_strategy")["message"]
    assert f"runs on the {backend} backend of Keras, and a strategy has replicas on TensorFlow only" in message
