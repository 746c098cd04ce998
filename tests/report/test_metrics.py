"""Metrics of outputs, for which a migration asks, in all reports."""

import dataclasses
import io
import json
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    Migration,
    MigrationError,
    track_tf1_style_variables,
    validate,
)
from detrand.report import html, junit, markdown, text
from detrand.report import json as json_report
from detrand.validation.report import METRICS

INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
ASKED = {"logits": ["cosine", "top-2"], "['logits']": ["kl"]}


def forward(inputs, training, factor=1.0):
    kernel = tf.compat.v1.get_variable("kernel", (5, 8))
    logits = factor * tf.matmul(inputs, kernel)
    return {"logits": logits, "mean": tf.reduce_mean(logits)}


class Port(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, inputs, training=False):
        return forward(inputs, training, factor=1.5)


MIGRATION = Migration(tf1=forward, port=Port, inputs=INPUTS, metrics=ASKED)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def report(logdir):
    return validate(MIGRATION, checks=["random-inference"], logdir=logdir)


def test_metrics_are_of_the_outputs_of_both_programs_and_decide_nothing(report):
    """The port's logits are 1.5 times those of TF1."""
    kernel_rows = [metric for _, metric in report.metrics]
    assert [(each.path, each.name) for each in kernel_rows] == [
        ("['logits']", "cosine"),
        ("['logits']", "top-2"),
        ("['logits']", "kl"),
    ]
    cosine, top, kl = kernel_rows
    np.testing.assert_allclose([cosine.mean, cosine.worst, top.mean, top.worst], 1, rtol=1e-6)
    divergences = divergences_of_sessions()
    np.testing.assert_allclose([kl.mean, kl.worst], [np.mean(divergences), np.max(divergences)], rtol=1e-5)
    assert kl.worst > 0 and not report.ok


def divergences_of_sessions():
    """Return the divergence of the logits that a session computes, and of 1.5 times these, of each row."""
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = forward(tf.constant(INPUTS), training=False)
        session.run(tf.compat.v1.global_variables_initializer())
        logits = np.float64(session.run(outputs["logits"]))
    tf1, port = (np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in (logits, 1.5 * logits))
    return (tf1 * np.log(tf1 / port)).sum(1)


def test_all_reports_have_the_metrics(report, logdir):
    line = f"random-inference: {report.metrics[2][1]}"
    mean = f"{report.metrics[2][1].mean:.6g}"
    assert line in str(report)
    file = io.StringIO()
    text.render(report, Console(file=file, width=200))
    assert line in file.getvalue()
    (check,) = json.loads(json_report.render([report]))["checks"]
    assert check["metrics"][2] == {**vars(report.metrics[2][1])}
    page = html.render([report])
    assert "Metrics</a></h2>" in page and mean in page
    assert f"| random-inference | `['logits']` | kl | {mean} |" in markdown.render([report])
    properties = {
        each.get("name"): each.get("value") for each in ElementTree.fromstring(junit.render([report])).iter("property")
    }
    assert properties["['logits'] kl"] == mean
    (events,) = (logdir / "report").glob("*.detrand")
    tags = [value.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for value in event.summary.value]
    assert "kl/random-inference/logits" in tags


def test_a_report_without_metrics_says_nothing_of_them():
    report = validate(dataclasses.replace(MIGRATION, metrics={}), checks=["random-inference"])
    assert METRICS not in str(report) and "Metrics</a></h2>" not in html.render([report])


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["cosine"], "metrics must be a dict from outputs to lists of metrics"),
        ({"logits": "cosine"}, r"metrics\['logits'\] must be a list of metrics, but 'cosine' of type str was given"),
        (
            {"logits": ["mse"]},
            r"metrics\['logits'\] has 'mse', which is no metric; the metrics are 'cosine', 'kl', and",
        ),
    ],
    ids=["no dict", "no list", "no metric"],
)
def test_wrong_metrics_are_named(metrics, message):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(MIGRATION, metrics=metrics)


@pytest.mark.parametrize("of", ["logit", "mean"], ids=["no output", "a scalar"])
def test_a_metric_of_no_output_with_vectors_is_named(of):
    with pytest.raises(MigrationError, match=rf"metrics of forward: '{of}' is no output with vectors .* \['logits'\]"):
        validate(dataclasses.replace(MIGRATION, metrics={of: ["kl"]}), checks=["random-inference"])
