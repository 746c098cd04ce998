"""``examples/save_tf1.py``, which saves a TF1 program with what it computes; this file runs it in TensorFlow 2."""

import dataclasses
import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import GraphFile, Migration, MigrationError, validate
from detrand.validation.golden import record_golden
from tests.support.graph_files import IMAGES, build, make_port, trained

v1 = tf.compat.v1
FILE = Path(__file__).parent.parent / "examples" / "save_tf1.py"


@pytest.fixture(scope="module")
def save_tf1():
    spec = importlib.util.spec_from_file_location("save_tf1", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model(images, training):
    return build(images, tf.constant(training), 0.5 if training else 1.0, use_resource=False)


@pytest.fixture(scope="module")
def saved(save_tf1, tmp_path_factory):
    folder = tmp_path_factory.mktemp("of_tf1")
    with tf.Graph().as_default(), v1.Session() as session:
        model(tf.constant(IMAGES), training=True)
        trained(session)
        checkpoint = v1.train.Saver().save(session, str(folder / "model.ckpt"))
    v1.disable_control_flow_v2()
    try:
        save_tf1.save(str(folder / "saved"), model, [IMAGES], checkpoint=checkpoint)
    finally:
        v1.enable_control_flow_v2()
    return folder / "saved"


@pytest.mark.slow
def test_all_checks_run_on_a_saved_program(saved):
    report = validate(Migration(tf1=saved, port=make_port, inputs=IMAGES))
    assert report.ok, str(report)
    assert len(report.checks) == 10
    first = report.checks[0]
    assert (first.name, first.ok) == ("tf1-as-recorded", True)
    assert first.summary.endswith(f"computed in TensorFlow {tf.__version__}: inference, training, checkpoint")


@pytest.mark.parametrize("run", ["inference", "training", "checkpoint"])
def test_other_numbers_than_the_recorded_ones_fail(saved, run):
    file = GraphFile(saved)
    outputs = {**file.original.outputs, run: file.original.outputs[run] + 1e-3}
    vars(file)["original"] = file.original._replace(outputs=outputs, tensorflow="1.15.5")
    report = validate(Migration(tf1=file, port=make_port, inputs=IMAGES), checks=["tf1-as-recorded"])
    assert not report.ok
    (finding,) = report.findings
    assert finding.title == f"TF1's graph computes other numbers here than in TensorFlow 1.15.5 ({run})"
    assert "max |difference| 0.001" in report.checks[0].details


@pytest.mark.parametrize(
    ("changes", "summary"),
    [
        ({"inputs": IMAGES + 1}, "the inputs are not the recorded ones: pass those in assets.extra/detrand.npz"),
        ({"seed": 1}, "the seed is 1, but TF1 was recorded with 42: pass Migration(seed=42)"),
    ],
    ids=["inputs", "seed"],
)
def test_original_outputs_of_other_inputs_or_another_seed_compares_nothing(saved, changes, summary):
    migration = dataclasses.replace(Migration(tf1=saved, port=make_port, inputs=IMAGES), **changes)
    report = validate(migration, checks=["tf1-as-recorded"])
    assert report.verdict == "inconclusive"
    assert report.checks[0].summary == summary


@pytest.mark.slow
def test_outputs_keep_their_names_and_integers_and_loops_their_numbers(save_tf1, tmp_path):
    """The iterations of a loop draw in turn."""

    def with_loop(ids, training):
        x = tf.gather(v1.get_variable("embedding", [5, 40]), ids)
        drop = (lambda y: tf.nn.dropout(y, 0.5)) if training else tf.identity
        _, x = tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, drop(tf.tanh(y))), (0, x))
        return {"x": x, "ids": ids + 1}

    class Port(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = keras.layers.Embedding(5, 40, "glorot_uniform", name="embedding")
            self.drop = keras.layers.Dropout(0.5)

        def call(self, ids, training=False):
            x = self.embedding(ids)
            for _ in range(4):
                x = self.drop(keras.ops.tanh(x), training=training)
            return {"x": x, "ids": ids + 1}

    ids = np.int32([0, 3, 4])
    v1.disable_control_flow_v2()
    try:
        save_tf1.save(str(tmp_path / "saved"), with_loop, [ids])
    finally:
        v1.enable_control_flow_v2()
    checks = ["tf1-as-recorded", "random-inference", "random-training"]
    report = validate(Migration(tf1=tmp_path / "saved", port=Port, inputs=ids), checks=checks)
    assert report.ok, str(report)


def test_a_folder_is_not_overwritten_and_a_damaged_file_is_named(save_tf1, tmp_path):
    (tmp_path / "assets.extra").mkdir()
    with pytest.raises(ValueError, match="exists already; give a different name"):
        save_tf1.save(str(tmp_path), model, [IMAGES])
    (tmp_path / "assets.extra" / "detrand.npz").write_text("damaged")
    with pytest.raises(MigrationError, match=r"detrand.npz cannot be read: .*Save the program again"):
        validate(Migration(tf1=tmp_path, port=make_port, inputs=IMAGES))


@pytest.mark.slow
def test_a_golden_file_of_a_saved_program_stands_for_it(saved, tmp_path):
    migration = Migration(tf1=saved, port=make_port, inputs=IMAGES)
    record_golden([migration], tmp_path / "golden.npz")
    report = validate(migration, golden=tmp_path / "golden.npz")
    assert report.ok, str(report)
    faulty = dataclasses.replace(migration, port=lambda: make_port(rate=0.25))
    report = validate(faulty, golden=tmp_path / "golden.npz", checks=["random-training"])
    assert "rate" in report.findings[0].title
