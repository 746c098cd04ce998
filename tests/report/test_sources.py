"""Every report names the random numbers that no scope controls, with their lines, whether the checks pass or not."""

import dataclasses
import inspect
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from detrand import ComparisonError, Migration, TrainStep, testing, validate
from detrand.report import html, markdown, text
from detrand.report import json as json_report
from tests.report.test_report import Page

INPUTS = np.ones((3, 2), np.float32)


def tf1(inputs, training):
    noise = tf.numpy_function(lambda: np.float32(0 * np.random.rand()), [], tf.float32)  # in TF1
    noise.set_shape(())
    return tf.matmul(inputs + noise, tf.compat.v1.get_variable("kernel", (2, 2)))


class Port(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.offset = 0 * np.random.default_rng(3).normal()  # when made

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(2, 2))

    def call(self, inputs):
        noise = 0 * tf.random.stateless_normal((), (1, 2))  # in a call
        return tf.matmul(inputs, self.kernel) + noise + self.offset


def loss_of_port(labels, outputs):
    return tf.reduce_mean((outputs - labels) ** 2) + 0 * np.random.rand()  # in training


TRAIN = TrainStep(
    labels=np.zeros((3, 2), np.float32),
    tf1_loss=lambda labels, outputs: tf.reduce_mean((outputs - labels) ** 2),
    tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    port_loss=loss_of_port,
    port_optimizer=lambda: keras.optimizers.SGD(0.1),
)
MIGRATION = Migration(tf1=tf1, port=Port, inputs=INPUTS, train=TRAIN, name="net")


def line_of(function, comment):
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(n for n, line in enumerate(lines) if line.endswith(f'# {comment}{chr(10)}'))}"


SOURCES = {
    "np.random.rand": ("TF1", line_of(tf1, "in TF1")),
    "np.random.default_rng": ("port", line_of(Port, "when made")),
    "StatelessRandomNormalV2": ("port", line_of(Port, "in a call")),
    "np.random.rand ": ("port", line_of(loss_of_port, "in training")),
}


@pytest.fixture(scope="module")
def report():
    report = validate(MIGRATION)
    assert report.ok, str(report)
    return report


def on_terminal(report):
    render = Console(file=io.StringIO(), width=80)
    text.render(report, render)
    return render.file.getvalue()


def in_pytest(report):
    failed = dataclasses.replace(MIGRATION, tf1=lambda inputs, training: 1 + tf1(inputs, training))
    with pytest.raises(ComparisonError) as error:
        testing.assert_migration(failed)
    return str(error.value)


def in_json(report):
    (migration,) = json.loads(json_report.render([report]))["migrations"]
    names = {"tf1": "TF1", "port": "port"}
    return "\n".join(
        f"{names[name]}: {each['op_type']} at {each['caller']}"
        for name, sources in migration["uncontrolled"].items()
        for each in sources
    )


@pytest.mark.slow_except("text")
@pytest.mark.parametrize(
    "render",
    [
        pytest.param(str, id="text"),
        pytest.param(on_terminal, id="terminal"),
        pytest.param(lambda report: Page(html.render([report])).text, id="HTML"),
        pytest.param(in_json, id="JSON"),
        pytest.param(lambda report: markdown.render([report]).replace("\\", ""), id="Markdown"),
        pytest.param(in_pytest, id="pytest"),
    ],
)
def test_a_report_names_each_source_with_its_line(report, render):
    lines = render(report).splitlines()
    for op_type, (program, line) in SOURCES.items():
        assert any(all(part in each for part in (program, op_type.strip(), line)) for each in lines), op_type


def test_sources_are_named_whatever_checks_run():
    report = validate(MIGRATION, checks=["variables-match"])
    assert [op.op_type for op in report.uncontrolled["tf1"]] == ["np.random.rand"]
    assert [op.op_type for op in report.uncontrolled["port"]] == ["np.random.default_rng", "StatelessRandomNormalV2"]


def test_a_report_says_what_is_left_to_chance():
    def parallel(inputs, training):
        numbers = tf.data.Dataset.range(2).map(lambda _: 0 * tf.random.uniform(()), num_parallel_calls=2)
        return inputs + next(iter(numbers))

    report = validate(Migration(tf1=tf1, port=lambda: parallel, inputs=INPUTS), checks=["variables-match"])
    (source,) = report.uncontrolled["port"]
    assert source.op_type == "ParallelMapDatasetV2"
    assert (
        "port: ParallelMapDatasetV2 (the same numbers, but chance decides which element gets which)" in report.sources
    )


def test_a_check_in_pytest_names_the_sources(report):
    with pytest.raises(ComparisonError, match=r"random numbers that no scope controls:\n  TF1: np\.random\.rand"):
        testing.assert_check(
            report.checks[0].__class__(ok=False, summary="", name="", seconds=0.0), report.sources, None
        )


def test_a_program_without_sources_has_none():
    def plain(inputs, training):
        return tf.nn.dropout(inputs, 0.5)

    report = validate(Migration(tf1=plain, port=lambda: plain, inputs=INPUTS), checks=["random-inference"])
    assert (report.uncontrolled, report.sources) == ({"tf1": (), "port": ()}, "")
    assert "no scope" not in html.render([report]) + markdown.render([report]) + on_terminal(report)
