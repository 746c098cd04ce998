"""Each check on a sound migration and on migrations with one planted fault: which checks fail, and what they say."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import detrand
from detrand import Migration, MigrationError, validate
from detrand.validation.checks.registry import CHECKS
from tests.support.classifier_migrations import INPUTS, NAMES, forward, port
from tests.support.reports import failed
from tests.support.shim_ports import shim_port


@pytest.mark.parametrize("kind", [keras.layers.Layer, keras.Model, tf.Module], ids=["layer", "model", "module"])
def test_a_sound_port_passes_every_check(kind):
    report = validate(Migration(tf1=forward, port=port(kind), inputs=INPUTS))
    # A module has no losses, and TF1 has a regularization loss.
    assert report.verdict == ("inconclusive" if kind is tf.Module else "passed"), str(report)
    assert tuple(check.name for check in report.checks) == NAMES
    assert all("identical" in check.summary for check in report.checks[4:]), str(report)


def functional_port(rate=0.5):
    """Keras initializes all its variables, then draws the dropout."""
    inputs = keras.Input((5,))
    l2 = keras.regularizers.L2(0.01)
    hidden = keras.layers.Dense(3, "relu", use_bias=False, kernel_regularizer=l2, name="hidden")(inputs)
    hidden = keras.layers.Dropout(rate)(hidden)
    return keras.Model(inputs, (keras.layers.Dense(2, name="logits")(hidden), {"hidden": hidden}))


def test_variables_that_are_made_in_another_order_are_no_fault():
    report = validate(Migration(tf1=forward, port=functional_port, inputs=INPUTS))
    assert report.ok, str(report)


def test_random_ops_in_another_order_are_no_fault():
    def two_draws(inputs, training, flip=False):
        draws = [lambda: tf.random.normal((4, 5)), lambda: tf.random.uniform((5,))]
        first, second = [draw() for draw in draws[::-1]][::-1] if flip else [draw() for draw in draws]
        return inputs * first + second

    report = validate(Migration(tf1=two_draws, port=lambda: functools.partial(two_draws, flip=True), inputs=INPUTS))
    assert report.ok, str(report)
    remark = "the port's random ops run in a different order; each drew what its counterpart in TF1 draws"
    assert [check.name for check in report.checks if remark in check.summary] == ["random-inference", "random-training"]


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
    """Outputs in a different order than that in which they are computed."""
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
    def moved(inputs, training, momentum=0.9):
        mean = tf.compat.v1.get_variable("mean", (5,), trainable=False)
        mean.assign(mean * momentum)
        return inputs

    report = validate(Migration(tf1=moved, port=shim_port(moved, momentum=0.8), inputs=INPUTS))
    assert "variables that the call changes: 1 of 1 differs" in report.checks[4].details
    assert "computed in TF1 by" not in report.checks[4].details


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
        (port(activation=tf.nn.tanh), set(NAMES[4:]), r"\[1\]\['hidden'\]: \d+ of 12 elements differs?"),
        (port(scale=0.02), {"regularizers-match"}, r"hidden/kernel: 0.01 sum\(w\*\*2\) \(TF1\), 0.02 sum"),
        (port(rate=0.25), {"random-training", "constant-mode"}, "outputs"),
        (
            port(initializer=tf.compat.v1.zeros_initializer()),
            {"initializers-match"},
            r"hidden/kernel: uniform from -0.866025 to 0.866025 \(TF1\), constant 0 \(port\)",
        ),
    ],
    ids=["creates variables", "extra variable", "activation", "regularizer", "dropout rate", "initializer"],
)
def test_a_planted_fault_fails_the_checks_that_can_see_it(port, expected, message):
    report = validate(Migration(tf1=forward, port=port, inputs=INPUTS))
    assert failed(report) == expected, str(report)
    assert re.search(message, str(report)), str(report)


@pytest.mark.parametrize("factor", [0, 1])
def test_an_additional_random_op_is_named_and_does_not_shift_the_others(factor):
    def with_noise(inputs, training):
        return forward(inputs + factor * tf.random.normal(inputs.shape), training)

    report = validate(Migration(tf1=with_noise, port=port(), inputs=INPUTS))
    for name in ("random-inference", "random-training"):
        check = next(check for check in report.checks if check.name == name)
        assert check.ok == (factor == 0)
        line = with_noise.__code__.co_firstlineno + 1
        named = rf"TF1 has a random op that the port lacks: RandomStandardNormal \(4, 5\) float32 at .*:{line}"
        assert bool(re.search(named, check.summary)) == bool(factor)


def test_failing_checks_name_what_no_scope_controls():
    def noisy(inputs, training):
        return forward(inputs + np.random.normal(size=INPUTS.shape).astype(np.float32), training)

    report = validate(Migration(tf1=noisy, port=shim_port(noisy), inputs=INPUTS))
    check = next(check for check in report.checks if check.name == "random-inference")
    assert re.search(
        r"\n\nrandom numbers that no scope controls:\n"
        r"  TF1: np.random.normal \(4, 5\) float64, at .*test_validate.py:\d+\n"
        r"  the port: np.random.normal \(4, 5\) float64, at .*test_validate.py:\d+$",
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
    assert not any("Diverges" in text for text in report.evidence.values())  # nothing was compared
    assert str(report).count("too much") == 4  # in the table, below, and in the finding with its line of code


def test_a_port_that_raises_elsewhere_says_both():
    class Raises(keras.layers.Layer):
        calls = 0

        def call(self, inputs, training=False):
            Raises.calls += 1
            if Raises.calls <= 2:  # the first check runs after the pairing of variables
                raise OverflowError("too much")
            raise ValueError("too often")

    report = validate(Migration(tf1=forward, port=Raises, inputs=INPUTS))
    assert report.checks[0].summary.startswith("raised OverflowError: too much (")
    assert report.checks[1].summary.startswith("raised ValueError: too often (")
    assert report.checks[4].summary == "raised the same error as variables-match"


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
    assert all("outputs identical" in check.summary for check in report.checks[4:])


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
    assert failed(report) == {"variables-match", *NAMES[4:]}
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
    differ = f"{after}: (all variables [0-9.]+: |distinct weights: )?outputs differ; "
    assert all(re.match(differ, check.summary) for check in report.checks[4:])
    first = "Depends on variables-match, which failed. Fix that first.\n\n"
    assert [check.details.startswith(first) for check in report.checks[4:]] == [True] * 4
    assert re.search(r"[0-9] of 8 checks failed; first: variables-match", str(report))


def test_a_passing_check_names_the_failed_one_that_it_depends_on():
    report = validate(Migration(tf1=forward, port=port(extra=True), inputs=INPUTS))
    assert failed(report) == {"variables-match"}
    assert report.checks[4].summary.startswith("after variables-match failed: all variables 0.1: outputs identical")
    assert not report.checks[4].details


def test_checks_come_after_those_that_they_depend_on():
    order = list(CHECKS)
    for name, check in CHECKS.items():
        assert all(order.index(root) < order.index(name) for root in check.depends_on)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tf1": lambda inputs, training: 1 / 0}, r"the TF1 program of .* cannot be run: ZeroDivisionError.*test_val"),
        ({"port": lambda: 1 / 0}, r"^port of .* raised ZeroDivisionError.*test_validate.py:\d+"),
        ({"port": lambda: 3}, r"returned 3 of type int, which cannot be called"),
    ],
    ids=["tf1 raises", "port raises", "no port"],
)
def test_a_migration_with_nothing_to_check_is_refused(changes, message):
    with pytest.raises(MigrationError, match=message):
        validate(Migration(**{"tf1": forward, "port": port(), "inputs": INPUTS, **changes}))


def test_validate_refuses_anything_but_a_migration():
    with pytest.raises(
        detrand.ArgumentError, match=r"migration must be a detrand.Migration, but 3 of type int was given"
    ):
        validate(3)


@pytest.mark.parametrize("words", [np.array(["a", "bc"]), np.array([b"a", b"bc"])], ids=["text", "bytes"])
def test_inputs_may_be_text(words):
    def program(words, training):
        return tf.cast(tf.strings.length(words), tf.float32) * tf.compat.v1.get_variable("scale", ())

    report = validate(Migration(tf1=program, port=shim_port(program), inputs=words))
    assert report.ok, str(report)


def make_training_op(outputs, average, counter):
    """Make what the constructor of a TF1 model makes for its training, in a variable scope or not."""
    v1 = tf.compat.v1
    train = v1.train.AdamOptimizer().minimize(tf.reduce_sum(outputs), v1.train.get_or_create_global_step())
    if average:
        v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
    if counter:
        v1.get_variable(counter, (), trainable=False)
    return train


@pytest.mark.parametrize(
    ("average", "counter", "ok"),
    [(False, None, True), (True, None, True), (False, "temperature", False)],
    ids=["slots", "averages", "variable"],
)
def test_the_state_of_an_optimizer_in_the_tf1_program_is_no_difference(average, counter, ok):
    def tf1(inputs, training):
        outputs = tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))
        make_training_op(outputs, average, counter)
        return outputs

    def make_port():
        return keras.layers.Dense(2, use_bias=False, name="dense")

    report = validate(Migration(tf1=tf1, port=make_port, inputs=np.ones((2, 3), np.float32)))
    match = report.checks[1]
    assert (report.ok, match.ok) == (ok, ok), str(report)
    assert f"left out {6 if average else 5} variables of TF1's optimizer" in match.summary
    assert "global_step, beta1_power, beta2_power" in match.details
    assert ok or "temperature" in match.details


def test_an_average_that_the_tf1_program_reads_must_be_in_the_port():
    def tf1(inputs, training):
        mean = tf.reduce_mean(inputs, 0, name="mean")
        average = tf.compat.v1.train.ExponentialMovingAverage(0.9)
        average.apply([mean])
        return inputs - average.average(mean)

    report = validate(Migration(tf1=tf1, port=lambda: lambda x, training: x - 0.0, inputs=np.ones((2, 3), np.float32)))
    assert not report.checks[1].ok and "mean/ExponentialMovingAverage" in report.checks[1].details


def test_empty_outputs_are_inconclusive_and_no_fault():
    def program(inputs, training):
        return tf.tanh(inputs[:0])

    report = validate(Migration(tf1=program, port=lambda: program, inputs=INPUTS))
    assert report.verdict == "inconclusive", str(report)
    assert "every output is empty" in report.checks[5].summary
    assert not report.findings
