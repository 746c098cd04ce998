"""A golden file stands for the TF1 program: the checks find the same with it, and no TF1 code runs."""

import dataclasses
import functools
import re
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, MigrationError, RecordingError, Tolerance, TrainStep, validate
from detrand.comparison.structures import load_structure, save_structure
from detrand.validation.golden import read_golden, record_golden
from detrand.validation.reference import CONSTANT_MODE, INFERENCE, MODES, TRAINING, Reference, run_configs_of
from tests.support.causes import without_lines
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
LABELS = np.array([0, 1, 1, 0])


def model(inputs, training, rate=0.5):
    def l2(weights):
        return 0.01 * tf.reduce_sum(weights**2)

    hidden = tf.matmul(inputs, v1.get_variable("hidden", (3, 4), regularizer=l2))
    if training:
        hidden = tf.nn.dropout(hidden, rate)
    mean = v1.get_variable("mean", (2,), trainable=False, initializer=v1.zeros_initializer())
    logits = tf.matmul(hidden, v1.get_variable("logits", (4, 2)))
    centred = logits - (0.0 if training else mean)
    outputs = {"logits": logits, "end_points": [hidden, (centred,)]}
    if training:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(mean, 0.9 * mean + 0.1 * tf.reduce_mean(logits, 0)))
    return outputs


port = functools.partial(shim_port, model)


def tf1_loss(labels, outputs):
    return v1.losses.sparse_softmax_cross_entropy(labels, outputs["logits"])


def port_loss(labels, outputs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, outputs["logits"])


TRAIN = TrainStep(
    labels=LABELS,
    tf1_loss=tf1_loss,
    port_loss=port_loss,
    tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01),
    port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
    steps=3,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("trained") / "model.ckpt")
    with tf.Graph().as_default(), v1.Session() as session:
        model(tf.constant(INPUTS), training=True)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, path)
    return path


@pytest.fixture(scope="module")
def migration(checkpoint):
    return Migration(tf1=model, port=port(), inputs=INPUTS, train=TRAIN, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def golden(migration, tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "golden.npz"
    record_golden([migration, dataclasses.replace(migration, name="other", train=None, checkpoint=None)], path)
    return path


def never(*arguments, **keywords):
    raise AssertionError("TF1 code was called")


def never_model(inputs, training):  # whose input has its name in findings
    never()


def without_tf1(migration, **changes):
    train = dataclasses.replace(migration.train, tf1_loss=never, tf1_optimizer=never)
    return dataclasses.replace(migration, **{"tf1": never_model, "train": train, **changes})


def found_by(report):
    return [(check.name, check.ok, check.summary, check.details) for check in report.checks]


@pytest.mark.slow
def test_a_sound_port_passes_and_no_tf1_code_runs(migration, golden):
    report = validate(without_tf1(migration), golden=golden)
    assert report.ok, str(report)
    assert [check.name for check in report.checks][-2:] == ["checkpoint", "training-steps"]
    assert found_by(report) == found_by(validate(migration))
    assert report.versions["tensorflow (golden file)"] == tf.__version__


@pytest.mark.slow
def test_a_fault_is_found_as_without_the_file(migration, golden):
    """The random ops of the file, too, name the op that is another."""

    def shifted(inputs, training):
        return model(inputs + 0.1 * tf.random.normal((4, 3)), training)

    failing = {"random-training", "constant-mode", "training-steps"}
    for other_port, fails in ((port(rate=0.25), failing), (shim_port(shifted), None)):
        faulty = dataclasses.replace(migration, port=other_port)
        report = validate(without_tf1(faulty), golden=golden)
        assert fails is None or {check.name for check in report.checks if not check.ok} == fails
        there = validate(faulty)
        assert found_by(report) == found_by(there)
        assert report.audit == there.audit
    assert "RandomStandardNormal (4, 3)" in str(report)


@pytest.mark.slow
def test_place_line_and_cause_are_named_as_without_the_file(tmp_path):
    """Of large tensors, too, of which the file has some elements."""

    def wide(inputs, training, factor=1.0, activation=tf.nn.relu):
        hidden = tf.matmul(inputs, v1.get_variable("hidden", (3, 9000)))
        hidden = activation(hidden * factor)
        return tf.matmul(hidden, v1.get_variable("logits", (9000, 2)))

    sound = Migration(tf1=wide, port=shim_port(wide), inputs=INPUTS)
    record_golden([sound], tmp_path / "golden.npz")
    assert validate(dataclasses.replace(sound, tf1=never, name="wide"), golden=tmp_path / "golden.npz").ok
    for changes in ({"factor": 2.0}, {"activation": tf.nn.elu}):
        faulty = dataclasses.replace(sound, port=shim_port(wide, **changes))
        report = validate(dataclasses.replace(faulty, tf1=never, name="wide"), golden=tmp_path / "golden.npz")
        expected = validate(faulty)
        failing = [check for check in report.checks if not check.ok]
        assert [check.name for check in failing] == [check.name for check in expected.checks if not check.ok]
        for check, other in zip(report.checks, expected.checks, strict=True):
            assert (check.summary, check.causes) == (other.summary, other.causes)
        # Where one op in place of another explains all, no values are shown.
        assert ("recorded elements differ" in failing[-1].details) == ("factor" in changes)
        assert failing[-1].causes
    assert without_lines(report.checks[5].causes[0]) == "activation differs: Relu (TF1), Elu (port)"


def test_initial_values_are_kept_whole(tmp_path):
    def wide(inputs, training):
        return tf.matmul(inputs, v1.get_variable("hidden", (3, 9000)))

    golden = Migration(tf1=wide, port=shim_port(wide), inputs=INPUTS)
    record_golden([golden], tmp_path / "golden.npz")
    for config in (INFERENCE, TRAINING, CONSTANT_MODE):
        kept = read_golden(tmp_path / "golden.npz", golden).tf1
        expected = Reference(golden).outcome(config).initial
        np.testing.assert_array_equal(kept.outcome(config).initial["hidden"], expected["hidden"])
        values = kept.trace(config).values
        assert values["MatMul"].array is None
        assert values["MatMul"].elements.size == 1024


@pytest.mark.slow_except("11")
@pytest.mark.parametrize("version", [None, 11])
def test_a_file_of_an_older_form_must_be_recorded_again(version, migration, golden, tmp_path):
    kind = "golden outcomes of TF1 programs"
    content = load_structure(golden, kind)
    save_structure(tmp_path / "older.npz", kind, {**content, "version": version})
    with pytest.raises(RecordingError, match=r"older.npz was recorded by a different version of detrand; record it"):
        validate(migration, golden=tmp_path / "older.npz")


def test_the_file_holds_what_the_sessions_compute(migration, golden):
    kept, sessions = read_golden(golden, migration).tf1, Reference(migration)
    for config in run_configs_of(migration):
        found, expected = kept.outcome(config), sessions.outcome(config)
        for field in ("config", "variables", "random_ops", "restored"):
            assert getattr(found, field) == getattr(expected, field), field
        np.testing.assert_equal(found.outputs, expected.outputs)
        np.testing.assert_array_equal(found.regularization_loss, expected.regularization_loss)
    np.testing.assert_equal(kept.batches, sessions.batches)
    for mode in MODES:
        found, expected = kept.training(mode), sessions.training(mode)
        assert found.not_exposed == expected.not_exposed
        np.testing.assert_equal(found.steps, expected.steps)


@pytest.mark.slow
def test_functions_that_give_batches_are_not_called(tmp_path):
    batches = [(INPUTS * (k + 1), np.roll(LABELS, k)) for k in range(2)]
    with_functions = Migration(
        tf1=model,
        port=port(),
        inputs=lambda: [x for x, _ in batches],
        train=dataclasses.replace(TRAIN, labels=lambda: [y for _, y in batches]),
    )
    record_golden([with_functions], tmp_path / "golden.npz")
    content = load_structure(tmp_path / "golden.npz", "golden outcomes of TF1 programs")
    recorded = content["migrations"]["model"]
    assert len(recorded["inputs"]) == len(recorded["labels"]) == 2
    train = dataclasses.replace(with_functions.train, labels=never)
    report = validate(
        without_tf1(with_functions, name="model", inputs=never, train=train), golden=tmp_path / "golden.npz"
    )
    assert report.ok, str(report)


@pytest.mark.slow
def test_inputs_in_a_dict_are_recorded(tmp_path):
    def of_features(features, training):
        return model(features["x"]["y"], training)

    migration = Migration(tf1=of_features, port=shim_port(of_features), inputs={"x": {"y": INPUTS}}, train=TRAIN)
    record_golden([migration], tmp_path / "golden.npz")
    without = without_tf1(migration, name="of_features")
    assert validate(without, golden=tmp_path / "golden.npz").ok
    with pytest.raises(RecordingError, match="with different inputs"):
        validate(dataclasses.replace(without, inputs={"x": {"z": INPUTS}}), golden=tmp_path / "golden.npz")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [np.array(["a", "bc", "", "d"]), np.array([b"a", b"\xff", b"", b"d"]), ["a", "a\0", "", "d"]],
    ids=["str", "bytes", "NULs at the end"],
)
def test_text_inputs_and_labels_are_recorded(words, tmp_path):
    def of_words(features, training):
        lengths = tf.cast(tf.strings.length(features["words"]), tf.float32)
        weights = v1.get_variable("weights", (1, 2))
        return {"logits": tf.matmul(lengths[:, tf.newaxis], weights), "words": features["words"]}

    def labels_of(words):
        return tf.where(tf.equal(words, "a"), 1, 0)

    train = dataclasses.replace(
        TRAIN,
        labels=np.array(words, object),
        tf1_loss=lambda labels, outputs: tf1_loss(labels_of(labels), outputs),
        port_loss=lambda labels, outputs: port_loss(labels_of(labels), outputs),
    )
    migration = Migration(tf1=of_words, port=shim_port(of_words), inputs={"words": words}, train=train)
    record_golden([migration], tmp_path / "golden.npz")
    report = validate(without_tf1(migration, name="of_words"), golden=tmp_path / "golden.npz")
    assert report.ok, str(report)
    with pytest.raises(RecordingError, match="with different inputs"):
        validate(dataclasses.replace(migration, inputs={"words": list("abcd")}), golden=tmp_path / "golden.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "mine"}, r"golden.npz does not hold the migration 'mine'; it holds 'model', 'other'; record it"),
        (
            {"seed": 1},
            r"golden.npz was recorded of the migration 'model' with different seed; record it again, or",
        ),
        ({"seed_numpy": True}, "of the migration 'model' with different seed_numpy; record it again"),
        ({"inputs": INPUTS[:, ::-1]}, "with different inputs; record it again"),
        ({"inputs": (INPUTS, INPUTS), "tf1": lambda *inputs, training: None}, "with different inputs; record it again"),
        ({"train": dataclasses.replace(TRAIN, steps=4)}, "with different train.steps; record it again"),
        (
            {"train": dataclasses.replace(TRAIN, var_list=["hidden"])},
            "with a different train.var_list; record it",
        ),
        ({"train": dataclasses.replace(TRAIN, labels=1 - LABELS)}, "with different train.labels; record it again"),
        ({"name": "other", "checkpoint": None}, "migration 'other' without training; record it again"),
        ({"name": "other", "train": None}, "migration 'other' without the checkpoint; record it again"),
    ],
    ids=[
        "name",
        "seed",
        "seed_numpy",
        "inputs",
        "more inputs",
        "steps",
        "var_list",
        "labels",
        "no training",
        "no checkpoint",
    ],
)
def test_a_file_of_a_different_migration_is_refused(changes, message, migration, golden):
    with pytest.raises(RecordingError, match=message):
        validate(dataclasses.replace(migration, **changes), golden=golden)


def test_a_file_of_as_many_replicas_is_needed(migration, golden, monkeypatch):
    monkeypatch.setattr("detrand.validation.golden.Replicas", lambda *arguments: SimpleNamespace(count=2))
    with pytest.raises(RecordingError, match="of the migration 'model' with different strategy; record it again"):
        validate(migration, golden=golden)


@pytest.mark.slow
def test_a_file_without_tf1s_rounding_is_refused_where_it_is_needed(migration, tmp_path):
    fixed = dataclasses.replace(migration, train=None, checkpoint=None, tolerances=[Tolerance()])
    record_golden([fixed], tmp_path / "golden.npz")
    assert validate(dataclasses.replace(fixed, tf1=never, name="model"), golden=tmp_path / "golden.npz").ok
    with pytest.raises(RecordingError, match="of the migration 'model' with tolerances, so without TF1's rounding"):
        validate(dataclasses.replace(migration, train=None, checkpoint=None), golden=tmp_path / "golden.npz")


class Careful(v1.train.GradientDescentOptimizer):
    """An optimizer that refuses some of the gradients of a probe."""

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        checks = [v1.assert_less(tf.abs(gradient), 100.0) for gradient, _ in grads_and_vars]
        with tf.control_dependencies(checks):
            return super().apply_gradients(grads_and_vars, *arguments, **keywords)


@pytest.mark.slow
def test_an_optimizer_that_cannot_be_probed_or_read_is_recorded_nevertheless(migration, tmp_path, monkeypatch):
    def fails(optimizer):
        raise AttributeError

    train = dataclasses.replace(
        TRAIN,
        tf1_optimizer=lambda: Careful(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
    )
    migration = dataclasses.replace(migration, train=train, checkpoint=None, tolerances=[Tolerance()])
    monkeypatch.setattr("detrand.validation.reference.hyperparameters_of_optimizer", fails)
    record_golden([migration], tmp_path / "golden.npz")
    report = validate(without_tf1(migration), checks=["training-steps"], golden=tmp_path / "golden.npz")
    assert report.ok, str(report)


def test_a_file_of_a_different_version_is_refused(migration, tmp_path, monkeypatch):
    monkeypatch.setattr("detrand.comparison.structures.VERSION", 0)
    save_structure(tmp_path / "old.npz", "golden outcomes of TF1 programs", {})
    monkeypatch.undo()
    with pytest.raises(RecordingError, match=r"old.npz has version 0 of the format, but this detrand reads version 1"):
        validate(migration, golden=tmp_path / "old.npz")
    save_structure(tmp_path / "steps.npz", "recorded steps", {})
    with pytest.raises(RecordingError, match=r"steps.npz holds recorded steps, not golden outcomes of TF1 programs"):
        validate(migration, golden=tmp_path / "steps.npz")


def test_migrations_of_one_name_are_refused(migration, tmp_path):
    with pytest.raises(
        MigrationError, match="two migrations are named 'model', but a golden file holds one migration for each name"
    ):
        record_golden([migration, migration], tmp_path / "golden.npz")


FILE = """
import keras, numpy as np, tensorflow as tf, detrand

def dense(inputs, training):
    return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))

migration = detrand.Migration(
    tf1=dense,
    port=lambda: keras.layers.Dense(2, use_bias=BIAS, name="dense"),
    inputs=np.ones((4, 3), np.float32),
)
"""


def run_command_line(*arguments, cwd):
    command = [sys.executable, "-m", "detrand", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_line_records_and_validates(tmp_path):
    file = tmp_path / "dense.py"
    file.write_text(FILE.replace("BIAS", "False"))
    done = run_command_line("record", "dense.py", "-o", "golden.npz", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "golden.npz: recorded dense\n", "")
    file.write_text(FILE.replace("BIAS", "False").replace("tf.matmul", "no_such_name"))
    done = run_command_line("validate", "dense.py", "--golden", "golden.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 8 checks passed" in done.stdout
    assert "tensorflow (golden file) 2." in done.stdout
    file.write_text(FILE.replace("BIAS", "True"))
    done = run_command_line("validate", "dense.py", "--golden", "golden.npz", cwd=tmp_path)
    assert done.returncode == 1
    assert "first: variables-match" in done.stdout


@pytest.mark.slow_except("no folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("validate", "dense.py", "--golden", "dense.py"), "dense.py is not a recording of detrand, or is damaged"),
        (("validate", "dense.py", "--golden", "absent.npz"), "absent.npz cannot be read: No such file or directory"),
        (("record", "dense.py", "-o", "absent/golden.npz"), "the golden file cannot be written to absent/golden.npz"),
    ],
    ids=["no golden file", "absent", "no folder"],
)
def test_command_line_that_cannot_run_says_why_in_one_line(arguments, message, tmp_path):
    (tmp_path / "dense.py").write_text(FILE.replace("BIAS", "False"))
    done = run_command_line(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(rf"detrand: {re.escape(message)}.*\n", done.stderr), done.stderr
