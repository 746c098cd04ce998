"""Each check on a sound migration and on migrations with one planted fault: which checks fail, and what they say."""

import contextlib
import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import detrand
from detrand import CheckpointError, Migration, MigrationError, enable_v1_layers, validate
from detrand.validation.checks import CHECKS, Runner
from detrand.validation.migration_files import load_migrations
from detrand.validation.programs.outcome import RunConfig, tool_of
from detrand.validation.programs.port import Port, functions_as_written, run_port_from_checkpoint
from detrand.validation.programs.tf1 import run_tf1
from tests.support.shim_ports import shim_port

REPOSITORY = Path(__file__).parents[2]
INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
NAMES = (
    "variables-created-once",
    "variables-match",
    "constant-weights",
    "random-inference",
    "random-training",
    "constant-mode",
)


def forward(inputs, training, *, units=3, rate=0.5, initializer=None, scale=0.01, activation=tf.nn.relu, extra=False):
    """A TF1 model with variables, dropout, a regularizer and moving averages of nothing."""
    regularizer = lambda weights: scale * tf.reduce_sum(weights**2)  # noqa: E731
    with tf.compat.v1.variable_scope("hidden", initializer=initializer, regularizer=regularizer):
        kernel = tf.compat.v1.get_variable("kernel", (inputs.shape[-1], units))
    hidden = activation(tf.matmul(inputs, kernel))
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    with tf.compat.v1.variable_scope("logits"):
        kernel = tf.compat.v1.get_variable("kernel", (units, 2))
        bias = tf.compat.v1.get_variable("bias", (2,), initializer=tf.compat.v1.zeros_initializer())
        if extra:
            tf.compat.v1.get_variable("extra", ())
    return tf.matmul(hidden, kernel) + bias, {"hidden": hidden}


port = functools.partial(shim_port, forward)


def failed(report):
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("kind", [keras.layers.Layer, keras.Model, tf.Module], ids=["layer", "model", "module"])
def test_a_sound_port_passes_every_check(kind):
    report = validate(Migration(tf1=forward, port=port(kind), inputs=INPUTS))
    assert report.ok, str(report)
    assert tuple(check.name for check in report.checks) == NAMES
    assert all("identical" in check.summary for check in report.checks[2:]), str(report)


def functional_port(rate=0.5):
    """Keras initializes all its variables, then draws the dropout."""
    inputs = keras.Input((5,))
    l2 = keras.regularizers.L2(0.01)
    hidden = keras.layers.Dense(3, "relu", use_bias=False, kernel_regularizer=l2, name="hidden")(inputs)
    hidden = keras.layers.Dropout(rate)(hidden)
    return keras.Model(inputs, (keras.layers.Dense(2, name="logits")(hidden), {"hidden": hidden}))


IN_ANOTHER_ORDER = "the port's random ops run in a different order; each drew what its counterpart in TF1 draws"


def test_random_ops_in_another_order_are_no_fault():
    report = validate(Migration(tf1=forward, port=functional_port, inputs=INPUTS))
    assert report.ok, str(report)
    assert [check.name for check in report.checks if IN_ANOTHER_ORDER in check.summary] == ["random-training"]


def test_a_fault_is_found_where_random_ops_come_in_another_order():
    report = validate(Migration(tf1=forward, port=functools.partial(functional_port, 0.3), inputs=INPUTS))
    assert failed(report) == {"random-training", "constant-mode"}
    found = next(check for check in report.checks if check.name == "random-training")
    assert found.details.startswith("First divergence. Identical up to Relu (Relu)")
    assert "random ops:" not in found.details


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_port_has_the_same_names_whenever_it_is_made(kit):
    def port():
        return kit.Sequential([kit.layers.Dense(2), kit.layers.Dense(2)])

    def tf1(inputs, training):
        for name in ("dense", "dense_1"):
            kernel = tf.compat.v1.get_variable(f"{name}/kernel", (inputs.shape[-1], 2))
            inputs = tf.matmul(inputs, kernel) + tf.compat.v1.get_variable(
                f"{name}/bias", (2,), initializer=tf.compat.v1.zeros_initializer()
            )
        return inputs

    kit.layers.Dense(2)  # the process has made others before
    counted = int(kit.layers.Dense(2).name.rpartition("_")[2])
    prefix = "sequential/" if kit is keras else ""
    report = validate(Migration(tf1=tf1, port=port, inputs=INPUTS, name_map=lambda name: prefix + name))
    assert report.ok, str(report)
    assert kit.layers.Dense(2).name == f"dense_{counted + 1}"


def chain(inputs, training, activation=tf.nn.relu):
    """Outputs in another order than that in which they are computed."""
    first = tf.tanh(inputs * tf.compat.v1.get_variable("scale", (5,)))
    second = activation(first - 0.1)
    return {"last": second * 2.0, "second": second, "first": first}


def test_first_output_that_differs_is_the_first_that_is_computed():
    report = validate(Migration(tf1=chain, port=shim_port(chain, activation=tf.nn.leaky_relu), inputs=INPUTS))
    check = next(check for check in report.checks if check.name == "random-inference")
    outputs = check.comparisons["outputs"]
    assert [leaf.path for leaf in outputs.leaves] == ["['first']", "['second']", "['last']"]
    assert outputs.first_divergence.path == "['second']"
    line = chain.__code__.co_firstlineno + 3
    assert re.search(rf"computed in TF1 by Relu, at \S*test_validate.py:{line}", check.details)


def test_the_op_that_computed_an_output_is_named_for_outputs_only():
    def logits(inputs, training, scale=0.01):
        return forward(inputs, training, scale=scale)[0]

    report = validate(Migration(tf1=logits, port=shim_port(logits, scale=0.02), inputs=INPUTS))
    assert "regularization loss: 1 of 1 differs" in report.checks[3].details
    assert "computed in TF1 by" not in report.checks[3].details


class CreatesVariables(port()):
    def call(self, inputs, training=False):
        scale = tf.Variable(1.0, name="scale", trainable=False)
        outputs, end_points = super().call(inputs, training=training)
        return outputs * scale, end_points


@pytest.mark.parametrize(
    ("port", "expected", "message"),
    [
        (CreatesVariables, {"variables-created-once"}, r"scale.*test_validate.py:\d+"),
        (port(extra=True), {"variables-match"}, "logits/extra"),
        (port(activation=tf.nn.tanh), set(NAMES[2:]), r"\[1\]\['hidden'\]: \d+ of 12 elements differs?"),
        (port(scale=0.02), set(NAMES[2:]), "regularization loss"),
        (port(rate=0.25), {"random-training", "constant-mode"}, "outputs"),
        (
            port(initializer=tf.compat.v1.zeros_initializer()),
            set(NAMES[3:]),
            r"random ops: TF1 has a random op that the port lacks: RandomUniform \(5, 3\) float32 \(init",
        ),
    ],
    ids=["creates variables", "extra variable", "activation", "regularizer", "dropout rate", "initializer"],
)
def test_a_planted_fault_fails_the_checks_that_can_see_it(port, expected, message):
    report = validate(Migration(tf1=forward, port=port, inputs=INPUTS))
    assert failed(report) == expected, str(report)
    assert re.search(message, str(report)), str(report)


def test_failing_random_checks_name_the_op_that_shifted_the_rest():
    def with_noise(inputs, training):
        return forward(inputs + 0 * tf.random.normal(inputs.shape), training)

    report = validate(Migration(tf1=with_noise, port=port(), inputs=INPUTS))
    assert failed(report) == {"random-training"}  # in inference the port draws no more than initial weights
    for name in failed(report):
        check = next(check for check in report.checks if check.name == name)
        headline = check.summary[check.summary.index("TF1 has") :]
        assert re.match(
            r"TF1 has a random op that the port lacks: RandomStandardNormal \(4, 5\) float32 \(compute, "
            r"op seed 0, run 0\) at .*test_validate\.py:\d+; the op seeds of the \d ops after it are 1 "
            r"lower in the port; first divergence at ",
            headline,
        )
        assert f"random ops: {headline.partition('; first divergence')[0]}\n\n--- TF1: " in check.details


def test_failing_checks_name_what_no_scope_controls():
    def noisy(inputs, training):
        return forward(inputs + np.random.normal(size=INPUTS.shape).astype(np.float32), training)

    report = validate(Migration(tf1=noisy, port=shim_port(noisy), inputs=INPUTS))
    check = next(check for check in report.checks if check.name == "random-inference")
    assert re.search(
        r"\n\nrandom numbers that no scope controls:\n"
        r"  TF1: np.random.normal \(4, 5\) float64, compute, at .*test_validate.py:\d+\n"
        r"  the port: np.random.normal \(4, 5\) float64, compute, at .*test_validate.py:\d+$",
        check.details,
    )


def test_a_port_that_raises_fails_its_checks():
    class Raises(keras.layers.Layer):
        def call(self, inputs, training=False):
            raise OverflowError("too much")

    report = validate(Migration(tf1=forward, port=Raises, inputs=INPUTS))
    assert failed(report) == set(NAMES)
    assert "OverflowError" in report.checks[0].summary
    assert "test_validate.py:" in report.checks[0].summary
    assert {check.summary for check in report.checks[1:]} == {"raised the same error as variables-created-once"}
    assert str(report).count("too much") == 2  # in the table and below


def test_a_port_that_raises_elsewhere_says_both():
    class Raises(keras.layers.Layer):
        calls = 0

        def call(self, inputs, training=False):
            Raises.calls += 1
            if Raises.calls == 1:
                raise OverflowError("too much")
            raise ValueError("too often")

    report = validate(Migration(tf1=forward, port=Raises, inputs=INPUTS))
    assert re.match(r"raised OverflowError: Exception encountered when calling \S+ too much ", report.checks[0].summary)
    assert re.match(r"raised ValueError: Exception encountered when calling \S+ too often ", report.checks[1].summary)
    assert report.checks[2].summary == "raised the same error as variables-match"


def without_variables(inputs, training):
    outputs = tf.nn.softmax(inputs)
    return tf.nn.dropout(outputs, 0.5) if training else outputs


@pytest.mark.parametrize(
    "port",
    [lambda: without_variables, lambda: tf.function(without_variables), shim_port(without_variables)],
    ids=["function", "tf.function", "layer"],
)
def test_programs_without_variables_pass(port):
    report = validate(Migration(tf1=without_variables, port=port, inputs=INPUTS))
    assert report.ok, str(report)
    assert report.checks[1].summary == "neither program has variables"
    assert all("outputs identical" in check.summary for check in report.checks[2:])


def test_a_function_without_variables_that_differs_fails():
    report = validate(
        Migration(tf1=without_variables, port=lambda: lambda inputs, training: tf.nn.softmax(inputs), inputs=INPUTS)
    )
    assert failed(report) == {"random-training", "constant-mode"}


def dense(inputs, training):
    return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (5, 2)))


def test_a_function_that_closes_over_variables_fails():
    kernel = tf.Variable(tf.ones((5, 2)), name="dense/kernel")
    migration = Migration(tf1=dense, port=lambda: lambda inputs, training: tf.matmul(inputs, kernel), inputs=INPUTS)
    report = validate(migration)
    assert failed(report) == set(NAMES[1:])
    assert report.checks[1].summary == "1 variable in TF1, none in the port"
    assert (
        "Variables in the closure of a plain function cannot be found: return a Keras layer" in report.checks[1].details
    )


class Module(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(keras.initializers.GlorotUniform()((5, 2)), name="dense/kernel")

    def run(self, inputs, training):
        return tf.matmul(inputs, self.kernel)


def test_the_port_may_be_a_method_of_a_module():
    report = validate(Migration(tf1=dense, port=lambda: Module().run, inputs=INPUTS))
    assert report.ok, str(report)


SHARED = keras.layers.Dense(2, use_bias=False, name="dense")
SHARED_MODULE = Module()


@pytest.mark.parametrize(
    ("port", "what"),
    [
        (lambda: SHARED, "the same Dense twice"),
        (lambda: keras.Sequential([SHARED]), "ports with the same Dense 'dense' twice"),
        (lambda: SHARED_MODULE.run, "ports with the same Module twice"),
    ],
    ids=["layer", "model", "module"],
)
def test_a_factory_that_makes_no_new_port_is_refused(port, what):
    with pytest.raises(MigrationError, match=f"port of dense returned {what}, .*. Make it inside port"):
        validate(Migration(tf1=dense, port=port, inputs=INPUTS))


def test_checks_say_which_failed_one_they_depend_on():
    report = validate(Migration(tf1=forward, port=port(extra=True, activation=tf.nn.tanh), inputs=INPUTS))
    after = "after variables-match failed"
    differ = f"{after}: (all variables [0-9.]+: )?outputs differ; "
    assert all(re.match(differ, check.summary) for check in report.checks[2:])
    first = "Depends on variables-match, which failed. Fix that first.\n\n"
    assert [check.details.startswith(first) for check in report.checks[2:]] == [True] * 4
    assert re.search(r"5 of 6 checks failed; first: variables-match", str(report))


def test_a_passing_check_names_the_failed_one_that_it_depends_on():
    report = validate(Migration(tf1=forward, port=port(extra=True), inputs=INPUTS))
    assert failed(report) == {"variables-match"}
    assert report.checks[2].summary.startswith("after variables-match failed: all variables 0.1: outputs identical")
    assert not report.checks[2].details


def test_checks_come_after_those_that_they_depend_on():
    order = list(CHECKS)
    for name, check in CHECKS.items():
        assert all(order.index(root) < order.index(name) for root in check.depends_on)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tf1": lambda inputs, training: 1 / 0}, r"the TF1 program of .* cannot be run: ZeroDivisionError.*test_val"),
        ({"port": lambda: 1 / 0}, r"cannot make the port: ZeroDivisionError.*test_validate.py:\d+"),
        ({"port": lambda: 3}, r"returned 3 of type int, which cannot be called"),
    ],
    ids=["tf1 raises", "port raises", "no port"],
)
def test_a_migration_with_nothing_to_check_is_refused(changes, message):
    with pytest.raises(MigrationError, match=message):
        validate(Migration(**{"tf1": forward, "port": port(), "inputs": INPUTS, **changes}))


def test_validate_refuses_anything_but_a_migration():
    with pytest.raises(detrand.ArgumentError, match=r"takes a detrand.Migration, but 3 of type int was given"):
        validate(3)


def train(path, program=forward, version=2, as_dict=False):
    """Train a TF1 program and saves it; returns the values of all its variables, by name."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = program(v1.placeholder_with_default(INPUTS, (None, 5)), training=False)
        loss = tf.add_n([tf.reduce_sum(output**2) for output in tf.nest.flatten(outputs)])
        step = v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_or_create_global_step())
        with tf.control_dependencies([step]):
            step = tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        given = {variable.op.name: variable for variable in v1.global_variables()} if as_dict else None
        v1.train.Saver(given, write_version=version).save(session, str(path))
        return {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def check_of(report):
    assert [check.name for check in report.checks] == [*NAMES, "checkpoint"]
    return report.checks[-1]


def checkpoint_check(**migration):
    """Run the one check, without those before it."""
    return CHECKS["checkpoint"].run(
        Runner(Migration(**{"tf1": forward, "port": port(), "inputs": INPUTS, **migration}))
    )


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "model.ckpt"


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_adds_a_check_with_its_weights(version, checkpoint):
    train(checkpoint, version=version)
    report = validate(Migration(tf1=forward, port=port(), inputs=INPUTS, checkpoint=checkpoint))
    assert report.ok, str(report)
    found = check_of(report)
    assert found.summary == "outputs identical; regularization loss identical; 3 variables from the checkpoint"


def numpy_forward(values, suffix=""):
    hidden = np.maximum(INPUTS @ values[f"hidden/kernel{suffix}"], 0)
    return hidden @ values[f"logits/kernel{suffix}"] + values[f"logits/bias{suffix}"]


class KerasPort(keras.Model):
    """A port whose names differ."""

    def __init__(self):
        super().__init__(name="port")
        self.hidden = keras.layers.Dense(
            3, "relu", use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01), name="embed"
        )
        self.logits = keras.layers.Dense(2, name="head")

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        return self.logits(hidden), {"hidden": hidden}


KERAS_NAMES = {
    "hidden/kernel": "port/embed/kernel",
    "logits/kernel": "port/head/kernel",
    "logits/bias": "port/head/bias",
}
AVERAGE = "/ExponentialMovingAverage"


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("port", [port(), KerasPort], ids=["shim", "keras"])
def test_checkpoint_of_the_variables_or_of_their_averages(port, averages, checkpoint):
    """Both programs have the numbers that NumPy computes from what the training session held."""
    held = train(checkpoint)
    names = KERAS_NAMES if port is KerasPort else {}
    migration = Migration(
        tf1=forward,
        port=port,
        inputs=INPUTS,
        checkpoint=checkpoint,
        name_map=(lambda name: names.get(name.removesuffix(AVERAGE), name.removesuffix(AVERAGE)))
        if averages
        else names,
    )
    runs = Runner(migration)
    found = CHECKS["checkpoint"].run(runs)
    assert found.ok, found.details
    assert "outputs identical" in found.summary
    assert ("3 of them moving averages" in found.summary) == averages
    tf1 = runs.tf1.outcome(RunConfig(training=False, mode="constant", weights="checkpoint"))
    expected = numpy_forward(held, AVERAGE if averages else "")
    np.testing.assert_allclose(tf1.outputs[0], expected, rtol=1e-5, atol=1e-6)
    of_port = run_port_from_checkpoint(runs.migration, tf1)
    np.testing.assert_allclose(of_port.outputs[0], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - numpy_forward(held, "" if averages else AVERAGE)).max() > 1e-3


def partitioned(inputs, training, parts=2):
    partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts else None
    table = tf.compat.v1.get_variable("table", (5, 2), partitioner=partitioner)
    return tf.matmul(inputs, tf.convert_to_tensor(table))


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("as_dict", [False, True], ids=["slices", "variables of their own"])
@pytest.mark.parametrize("parts", [None, 2, 3])
def test_a_checkpoint_of_partitioned_variables_passes(parts, as_dict, averages, checkpoint):
    held = train(checkpoint, partitioned, as_dict=as_dict)

    migration = Migration(
        tf1=partitioned,
        port=shim_port(partitioned, parts=parts),
        inputs=INPUTS,
        checkpoint=checkpoint,
        name_map=(lambda name: name.removesuffix(AVERAGE)) if averages else None,
    )
    runs = Runner(migration)
    found = CHECKS["checkpoint"].run(runs)
    assert found.ok, found.details
    assert "outputs identical" in found.summary
    assert ("1 of them moving averages" in found.summary) == averages
    names = [f"table/part_{i}{AVERAGE if averages else ''}" for i in range(2)]
    expected = INPUTS @ np.concatenate([held[name] for name in names])
    outputs = runs.tf1.outcome(RunConfig(training=False, mode="constant", weights="checkpoint")).outputs
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_checkpoint_with_parts_that_no_saver_restores(checkpoint):
    train(checkpoint, partitioned, as_dict=True)
    found = checkpoint_check(
        tf1=lambda inputs, training: partitioned(inputs, training, 3), port=port(), checkpoint=checkpoint
    )
    assert not found.ok
    assert "holds table/part_0, table/part_1 as separate variables of the shapes [(3, 2), (2, 2)]" in found.details
    assert "but the TF1 program has parts of the shapes [(2, 2), (2, 2), (1, 2)]" in found.details


def test_inferences_from_a_checkpoint_draw_the_same(checkpoint):
    """The port has drawn once before, when its variables were created."""

    def noisy(inputs, training):
        kernel = tf.compat.v1.get_variable("kernel", (5, 2))
        return tf.matmul(inputs, kernel) + tf.random.normal((4, 2))

    train(checkpoint, noisy)
    found = checkpoint_check(tf1=noisy, port=shim_port(noisy), checkpoint=checkpoint)
    assert found.ok, found.details


def test_a_checkpoint_may_hold_more_than_the_program(checkpoint):
    train(checkpoint, lambda inputs, training: forward(inputs, training, extra=True))
    found = checkpoint_check(checkpoint=checkpoint)
    assert found.ok, found.details
    assert "not in the TF1 program: logits/extra" in found.summary


def test_checkpoint_with_a_variable_that_has_the_name_of_one_in_the_port(checkpoint):
    def with_another(inputs, training):
        tf.compat.v1.get_variable(KERAS_NAMES["hidden/kernel"], (5, 3))
        return forward(inputs, training)

    train(checkpoint, with_another)
    found = checkpoint_check(port=KerasPort, name_map=KERAS_NAMES, checkpoint=checkpoint)
    assert found.ok, found.details
    assert "not in the TF1 program: port/embed/kernel" in found.summary


def test_a_checkpoint_that_lacks_a_variable_fails(checkpoint):
    train(checkpoint)

    def wider(inputs, training):
        outputs = forward(inputs, training, extra=True)
        tf.compat.v1.get_variable("hidden/scale", (3,))
        return outputs

    found = checkpoint_check(tf1=wider, checkpoint=checkpoint)
    assert not found.ok
    assert re.search(r"does not fit the TF1 program: 2 only in the TF1 program", found.summary)
    assert re.search(
        r"only in the TF1 program \(2\):\n  logits/extra: float32 \(\), trainable\n  hidden/scale: float32 \(3,\)",
        found.details,
    )


def test_checkpoint_of_which_the_port_lacks_a_variable(checkpoint):
    train(checkpoint, lambda inputs, training: forward(inputs, training, extra=True))
    found = checkpoint_check(tf1=lambda inputs, training: forward(inputs, training, extra=True), checkpoint=checkpoint)
    assert not found.ok
    assert re.search(
        r"does not fit the target: 1 only in the checkpoint(.|\n)*logits/extra: float32 \(\)", found.details
    )


def test_checkpoint_finds_what_no_other_check_does(checkpoint):
    """A bias that the port clips at 0, where it is at first, and above which the other checks set it."""

    def tf1(inputs, training, clip=False):
        kernel = tf.compat.v1.get_variable("kernel", (5, 2))
        bias = tf.compat.v1.get_variable("bias", (2,), initializer=tf.compat.v1.zeros_initializer())
        return tf.matmul(inputs, kernel), tf.nn.relu(bias) if clip else tf.identity(bias)

    def objective(inputs, training):
        outputs, bias = tf1(inputs, training)
        return outputs, bias + 1

    train(checkpoint, objective)
    report = validate(Migration(tf1=tf1, port=shim_port(tf1, clip=True), inputs=INPUTS, checkpoint=checkpoint))
    assert failed(report) == {"checkpoint"}
    assert re.search(r"outputs differ; first: \[1\]", check_of(report).summary)


def test_an_unreadable_checkpoint_is_refused_before_any_check(checkpoint):
    train(checkpoint)
    with open(f"{checkpoint}.data-00000-of-00001", "rb+") as file:
        file.truncate(40)
    calls = []
    migration = Migration(
        tf1=lambda *inputs, training: calls.append(1), port=port(), inputs=INPUTS, checkpoint=checkpoint
    )
    with pytest.raises(CheckpointError, match=r"model.ckpt' is damaged: .*; first damaged variable: 'hidden/kernel'"):
        validate(migration)
    with pytest.raises(CheckpointError, match=r"checkpoint='.*model.ckpd' cannot be read .*Pass '.*model.ckpt'"):
        validate(dataclasses.replace(migration, checkpoint=f"{checkpoint.parent}/model.ckpd"))
    assert not calls


def run_command_line(*arguments, cwd=REPOSITORY):
    command = [sys.executable, "-m", "detrand", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


MIGRATION_FILE = """
import dataclasses
import keras
import numpy as np
import tensorflow as tf
import detrand

def tf1(inputs, training):
    return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))

def migration_with(**arguments):
    return detrand.Migration(
        tf1=tf1, port=lambda: keras.layers.Dense(2, name="dense", **arguments), inputs=np.ones((4, 3), np.float32)
    )

migration = migration_with(use_bias=False)
faulty = migration_with()
trained = dataclasses.replace(migration, checkpoint="trained/model.ckpt", name="trained")
absent = dataclasses.replace(migration, checkpoint="trained/model.ckpd")
"""


@pytest.fixture
def migration_file(tmp_path):
    path = tmp_path / "dense.py"
    path.write_text(MIGRATION_FILE)
    return path


@pytest.mark.slow
def test_the_command_line_exits_with_0_if_all_pass(migration_file):
    done = run_command_line("validate", migration_file)
    assert done.returncode == 0, done.stderr
    assert "tf1: all 6 checks passed" in done.stdout
    assert all(name in done.stdout for name in NAMES)
    assert done.stderr == ""


def test_the_command_line_exits_with_1_if_a_check_fails(migration_file):
    done = run_command_line("validate", f"{migration_file}:faulty")
    assert done.returncode == 1, done.stderr
    assert "checks failed; first: variables-match" in done.stdout
    assert "dense/bias" in done.stdout


@pytest.mark.slow
def test_the_command_line_takes_several_migrations(migration_file):
    done = run_command_line("validate", migration_file, f"{migration_file}:faulty")
    assert done.returncode == 1, done.stderr
    assert "1 of 2 migrations failed" in done.stdout


@pytest.mark.slow
def test_the_command_line_reads_a_checkpoint(migration_file):
    """Beside migrations that have none."""
    (migration_file.parent / "trained").mkdir()
    train(
        migration_file.parent / "trained" / "model.ckpt",
        lambda inputs, training: tf.matmul(inputs[:, :3], tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    )
    done = run_command_line("validate", migration_file, f"{migration_file}:trained")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tf1: all 6 checks passed" in done.stdout
    assert "trained: all 7 checks passed" in done.stdout
    assert "1 variable from the" in done.stdout
    overview = done.stdout[done.stdout.index("all 2 migrations passed") :]
    assert re.search(r"tf1 +(│ passed +){6}│ +│", overview)
    assert re.search(r"trained +(│ passed +){7}│", overview)
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "location",
    ["absent.py", "{file}:nothing", "{file}:absent"],
    ids=["no file", "no migration", "no checkpoint"],
)
def test_command_line_that_cannot_run_says_why_in_one_line(migration_file, location):
    done = run_command_line("validate", f"{migration_file}:faulty", location.format(file=migration_file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("detrand: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def load_example(monkeypatch):
    """Load migrations of an example; the v1 layers that it enables for good are disabled after the test."""
    monkeypatch.chdir(REPOSITORY)
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(detrand, "enable_v1_layers", lambda: stack.enter_context(enable_v1_layers()))
        yield lambda example: load_migrations(f"examples/{example}")


@pytest.mark.slow
@pytest.mark.parametrize(("example", "size"), [("inception_v3.py", 139), ("tf_slim_networks.py:resnet_v2_50", 65)])
def test_the_example_passes_on_a_small_image(example, size, load_example):
    (migration,) = load_example(example)
    report = validate(dataclasses.replace(migration, inputs=migration.inputs[:, :size, :size]))
    assert report.ok, str(report)
    assert all("outputs identical" in check.summary for check in report.checks[2:]), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["gpt_2.py", "bert_encoder.py"])
def test_the_examples_of_transformers_pass(example, load_example):
    report = validate(*load_example(example))
    assert report.ok, str(report)
    assert all("outputs identical" in check.summary for check in report.checks[2:]), str(report)


def assert_computes_the_same_in_a_function(migration, training):
    setting = RunConfig(training, "num_random_ops")
    with tool_of(migration, setting).scope(), functions_as_written():
        outputs = Port(migration).in_function(training)
    detrand.assert_allclose(outputs, run_tf1(migration, setting).outputs, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_a_network_computes_the_same_in_a_function(training, load_example):
    (migration,) = load_example("tf_slim_networks.py:resnet_v2_50")
    small = dataclasses.replace(migration, inputs=migration.inputs[:, :65, :65])
    assert_computes_the_same_in_a_function(small, training)


@pytest.mark.whole_network
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("example", ["tf_slim_networks.py", "gpt_2.py", "bert_encoder.py"])
def test_every_network_computes_the_same_in_a_function(example, training, load_example):
    for migration in load_example(example):
        assert_computes_the_same_in_a_function(migration, training)


@pytest.mark.whole_network
@pytest.mark.parametrize("example", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_passes_at_its_full_size(example):
    done = run_command_line("validate", example)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", [np.array(["a", "bc"]), np.array([b"a", b"bc"])], ids=["text", "bytes"])
def test_inputs_may_be_text(words):
    def program(words, training):
        return tf.cast(tf.strings.length(words), tf.float32) * tf.compat.v1.get_variable("scale", ())

    report = validate(Migration(tf1=program, port=shim_port(program), inputs=words))
    assert report.ok, str(report)
