"""The sections of the page for a browser, of a port with faults in inference and in training."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, validate
from detrand.comparison.values import compare
from detrand.report import charts, html
from detrand.report.symptoms import sections
from detrand.validation.results import CheckResult
from tests.report.test_report import Page, elements

INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def tf1(x, training):
    x = tf.matmul(x, tf.compat.v1.get_variable("first/kernel", (5, 6)))
    x = tf.tanh(x)
    return tf.matmul(x, tf.compat.v1.get_variable("second/kernel", (6, 3)))


class Port(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(6, use_bias=False, activation="sigmoid", name="first")  # FAULT
        self.second = keras.layers.Dense(3, use_bias=False, name="second")

    def call(self, x, training=False):
        return self.second(self.first(x))


@pytest.fixture(scope="module")
def report():
    train = TrainStep(
        labels=np.zeros((4, 3), np.float32),
        tf1_loss=tf.compat.v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.SGD(0.2),
        steps=3,
    )
    return validate(Migration(tf1=tf1, port=Port, inputs=INPUTS, train=train, name="net"))


@pytest.fixture(scope="module")
def text(report):
    return html.render([report], "python -m detrand validate net.py")


def section(text, title):
    found = re.search(rf'<h2 id="{title}-0">.*?(?=<h2|</section>)', text, re.DOTALL)
    assert found, title
    return found[0]


@pytest.mark.slow
def test_sections_begin_with_what_to_act_on(text):
    titles = re.findall(r'<h2 id="\w[\w-]*"><a[^>]*>([^<]*)<', text)
    assert titles == [
        "Findings",
        "Checks",
        "Hyperparameters",
        "Depth",
        "Variables",
        "Training",
        "Evidence",
        "Run",
    ]


@pytest.mark.slow
def test_every_link_has_its_anchor(text):
    page = Page(text)
    assert len(page.anchors) == len(set(page.anchors))
    assert {link.removeprefix("#") for link in page.links} <= set(page.anchors)


@pytest.mark.slow
def test_a_finding_shows_both_lines_with_their_numbers_among_others(report, text):
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    numbers = [next(n for n, line in enumerate(lines, 1) if each in line) for each in ("tf.tanh(x)", "# FAULT")]
    (finding,) = (finding for finding in report.findings if "activation" in finding.title)
    made = [place.line.partition(", called at ")[0] for place in (finding.tf1, finding.port)]
    assert [int(line.rpartition(":")[2]) for line in made] == numbers
    found = section(text, "findings")
    assert all(f'<span class="at">{number:5d}  ' in found for number in numbers)
    assert all(f'<span class="near">{number + 1:5d}  ' in found for number in numbers)
    assert found.count("<button hidden") == len(report.findings)
    heading = sections()[finding.symptom].partition("\n")[0]
    assert finding.symptom == "op" and f"<summary>{heading}: what it means</summary>" in found


def test_the_depth_has_a_dot_for_each_tensor_of_tf1(report, text):
    check = next(check for check in report.checks if check.tensors)
    (svg,) = re.findall("<svg.*?</svg>", section(text, "depth"), re.DOTALL)
    dots = list(elements(svg, "circle"))
    assert len(dots) == len(check.tensors)
    ops = [each.tf1.split(" ")[0] for each in check.tensors]
    assert ops.index("MatMul") < ops.index("Tanh") < ops.index("MatMul_1")
    classes = dict(zip(ops, (dot.get("class") for dot in dots), strict=True))
    assert [classes[op] for op in ("MatMul", "Tanh", "MatMul_1")] == ["good", "bad", "bad"]


def test_differences_of_tensors_are_those_of_numpy(report):
    check = next(check for check in report.checks if check.name == "random-inference")
    found = {each.tf1.split(" ")[0]: each for each in check.tensors}
    assert found["MatMul"].amount < 1e-6
    assert found["MatMul"].same
    outputs = check.comparisons["outputs"].leaves[0].greatest_absolute
    assert found["MatMul_1"].amount >= outputs.amount / 10
    assert not found["Tanh"].same
    assert "Sigmoid" in found["Tanh"].port


def test_variables_have_their_names_and_differences(text):
    found = section(text, "variables")
    assert re.search(r"<code>first/kernel</code>.*<code>(port/)?first/kernel</code>.*float32 \(5, 6\)", found)
    assert "trained difference" in found


def test_the_training_has_both_curves_once(report, text):
    found = section(text, "training")
    assert found.count("<details") == len({html._training(each, report.checks[-1]) for each in training(report)})
    svg = re.search(r"<code>loss</code></figcaption>(<svg.*?</svg>)", found, re.DOTALL)[1]
    assert [line.get("class") for line in elements(svg, "polyline")] == ["tf1", "port"]
    assert len(list(elements(svg, "polygon"))) == 1


def training(report):
    return report.checks[-1].trainings.values()


def test_the_record_has_the_command(text):
    assert "python -m detrand validate net.py" in text[text.index('<h2 id="run">') :]


def test_evidence_of_a_check_that_passes_has_no_failed_mark():
    """A check may pass though outputs differ by rounding."""
    comparison = compare(np.float32([1, 2]), np.float32([1, 2.001]))
    check = CheckResult(
        name="random-inference", seconds=0.0, ok=True, summary="rounding only", comparisons={"outputs": comparison}
    )
    assert "FAILED" not in html._evidence(check, 0)
    assert "FAILED" in html._evidence(dataclasses.replace(check, ok=False), 0)


class TestCurves:
    VALUES = tuple(charts.StepValues(*values) for values in ((0, 1.0, 1.0, 0.1), (1, 2.0, 2.05, 0.1), (2, 3, 4, 0.1)))

    def test_greater_values_are_higher_and_those_in_the_band_are_good(self):
        svg = charts.curves(self.VALUES, "loss")
        dots = list(elements(svg, "circle"))
        assert [dot.get("class") for dot in dots] == ["good", "good", "bad"]
        heights = [float(dot.get("cy")) for dot in dots]
        assert heights == sorted(heights, reverse=True)
        (band,) = elements(svg, "polygon")
        assert len(band.get("points").split()) == 6

    def test_a_number_that_does_not_change_has_different_ticks(self):
        values = [charts.StepValues(step, 0.01, 0.01, 1e-8) for step in range(3)]
        ticks = [text.text for text in elements(charts.curves(values, "rate"), "text") if "." in text.text]
        assert len(set(ticks)) == len(ticks) == 5

    def test_a_long_axis_has_some_of_its_labels(self):
        steps = charts.curves([charts.StepValues(step, step / 7, step / 7, 0.1) for step in range(100)], "loss")
        magnitudes = charts.histogram(dict.fromkeys(range(-40, 0), 1), equal=3)
        expected = [str(step) for step in range(0, 100, 8)], ["equal", *(f"1e{-41 + bar}" for bar in range(3, 41, 3))]
        for svg, labels in zip((steps, magnitudes), expected, strict=True):
            assert [text.text for text in elements(svg, "text") if float(text.get("y")) == 202] == labels

    @pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e300, -1e-300])
    def test_any_number_is_drawn(self, value):
        (dot,) = elements(charts.curves([charts.StepValues(0, value, value, 0.0)], "loss"), "circle")
        assert 0 <= float(dot.get("cy")) <= 220
