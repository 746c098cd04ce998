"""Event files: both programs' numbers under the same tags and steps, as they were computed, for TensorBoard to read."""

import dataclasses

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, Migration, TrainStep, validate
from detrand.__main__ import COULD_NOT_RUN, PASSED, main
from detrand.validation.event_files import EventFiles
from detrand.validation.results import CheckResult

INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def tf1(inputs, training):
    return {"y": tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))}


class Port(keras.layers.Layer):
    def __init__(self, factor=1.0):
        super().__init__(name="port")
        self.factor = factor
        self.dense = keras.layers.Dense(2, use_bias=False, name="dense")

    def call(self, inputs, training=False):
        return {"y": self.dense(inputs) if self.factor == 1 else self.dense(inputs) * self.factor}


MIGRATION = Migration(
    tf1=tf1,
    port=Port,
    inputs=INPUTS,
    name_map="port/{}".format,
    train=TrainStep(
        labels=np.zeros((4, 2), np.float32),
        tf1_loss=lambda labels, outputs: tf.reduce_sum((outputs["y"] - labels) ** 2),
        port_loss=lambda labels, outputs: tf.reduce_sum((outputs["y"] - labels) ** 2),
        tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.SGD(0.01),
        steps=2,
    ),
)


def events(folder):
    """Return what is in the event files of a run: (tag, step) -> plugin, array."""
    found = {}
    for file in sorted(folder.iterdir()):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                key = value.tag, event.step
                assert key not in found
                found[key] = value.metadata.plugin_data.plugin_name, tf.make_ndarray(value.tensor)
    return found


def written(logdir, **computed):
    EventFiles(logdir).write(CheckResult(True, "", name="training-steps", seconds=0.0, computed=computed))
    return {run: events(logdir / run) for run in computed}


@pytest.mark.slow
def test_both_programs_under_the_same_tags_and_steps(tmp_path):
    report = validate(MIGRATION, logdir=tmp_path / "made" / "for it")
    assert report.ok, str(report)
    runs = {folder.name: events(folder) for folder in (tmp_path / "made" / "for it").iterdir()}
    assert runs.keys() == {"tf1", "port", "port in a tf.function", "report"}
    assert runs["tf1"].keys() == runs["port"].keys()
    trained = {key for key in runs["tf1"] if "-" not in key[0].partition("/")[0]}
    assert trained == runs["port in a tf.function"].keys()
    scalars = ["learning_rate", "loss", "norm of gradients/dense/kernel", "norm of weights/dense/kernel"]
    histograms = ["gradients/dense/kernel", "outputs/y", "weights/dense/kernel"]
    assert trained == {(tag, step) for tag in scalars + histograms for step in (0, 1)}
    checks = ("constant-weights", "random-inference", "random-training", "constant-mode")
    assert runs["tf1"].keys() - trained == {(f"{check}/outputs/y", 0) for check in checks}
    plugins = {tag: plugin for (tag, _), (plugin, _) in runs["tf1"].items()}
    assert {tag for tag, plugin in plugins.items() if plugin == "scalars"} == set(scalars)
    assert all(check.computed == {} for check in report.checks)


def test_the_numbers_are_those_of_the_steps(tmp_path):
    gradient = np.array([[3.0, np.nan], [4.0, -1.0]], np.float32)
    values = {"loss": np.float32(0.5), "gradients": {"a/b": gradient, "c": None}, "outputs": [np.arange(60)]}
    run = written(tmp_path, tf1={3: values})["tf1"]
    assert run["loss", 3][1] == np.float32(0.5)
    assert np.isnan(run["norm of gradients/a/b", 3][1])
    bins = run["gradients/a/b", 3][1]
    assert bins[:, 2].sum() == 3  # TensorBoard has no place for NaN
    assert (bins[0, 0], bins[-1, 1]) == (-1.0, 4.0)
    np.testing.assert_array_equal(run["outputs/0", 3][1][:, 2], np.full(30, 2.0))
    np.testing.assert_allclose(run["outputs/0", 3][1][:, 1], np.arange(1, 31) * 59 / 30)
    assert len(run) == 4


@pytest.mark.parametrize(
    "value",
    [np.array([True, False]), np.array([1.0, 2.0], ml_dtypes.bfloat16), np.zeros((0,)), np.full(3, np.inf)],
    ids=["bool", "bfloat16", "empty", "infinite"],
)
def test_every_number_has_a_histogram(value, tmp_path):
    ((plugin, bins),) = written(tmp_path, port={0: {"outputs": value}})["port"].values()
    assert plugin == "histograms"
    assert bins.shape == (30, 3)
    assert bins[:, 2].sum() == np.isfinite(value.astype(np.float64)).sum()


def test_text_outputs_have_no_histogram(tmp_path):
    assert written(tmp_path, port={0: {"outputs": np.array([b"text"])}})["port"] == {}


def test_an_earlier_validation_is_replaced_and_other_files_are_not(tmp_path):
    for loss in (1.0, 2.0):
        run = written(tmp_path, tf1={0: {"loss": np.float64(loss)}})["tf1"]
        other = tmp_path / "tf1" / "events.out.tfevents.of_others"
        other.touch()
    assert run["loss", 0][1] == 2.0
    assert other.exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ArgumentError, match=r"cannot be written to .*file: .*; give a different folder as logdir"):
        validate(MIGRATION, logdir=file)
    source = tmp_path / "migrations.py"
    source.write_text("from tests.validation.test_event_files import MIGRATION as migration\n")
    assert main(["validate", str(source), "--logdir", str(file)]) == COULD_NOT_RUN
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_several_migrations_have_a_folder_each(tmp_path):
    source = tmp_path / "migrations.py"
    source.write_text(
        "import dataclasses\nfrom tests.validation import test_event_files as test_tensorboard\n"
        "a, b = (dataclasses.replace(test_tensorboard.MIGRATION, name=name, train=None) for name in 'ab')\n"
    )
    assert main(["validate", str(source), "--logdir", str(tmp_path / "logs")]) == PASSED
    assert sorted(str(path.relative_to(tmp_path / "logs")) for path in (tmp_path / "logs").glob("*/*")) == [
        *("a/port", "a/report", "a/tf1", "b/port", "b/report", "b/tf1")
    ]


@pytest.mark.slow
def test_the_report_has_its_findings_as_text_and_differences_as_series(tmp_path):
    train = dataclasses.replace(MIGRATION.train, port_optimizer=lambda: keras.optimizers.SGD(0.02))
    broken = dataclasses.replace(MIGRATION, port=lambda: Port(factor=2.0), train=train, name="broken")
    report = validate(broken, logdir=tmp_path)
    found = events(tmp_path / "report")
    assert found["verdict", 0] == ("text", f"broken {report.verdict_line}".encode())
    said = [found["findings", number][1].item().decode() for number in range(len(report.findings))]
    assert [" ".join(text.split()) for text in said] == [" ".join(str(each).split()) for each in report.findings]
    check = next(check for check in report.checks if check.name == "random-inference")
    amounts = [each.amount for each in check.tensors]
    written = [found["difference of tensors/random-inference", number][1] for number in range(len(amounts))]
    np.testing.assert_array_equal(written, np.float32(amounts))
    rates = [found["difference eagerly/learning_rate", step][1] for step in (0, 1)]
    np.testing.assert_allclose(rates, [0.01, 0.01], rtol=1e-6)
