"""Reports as JSON and as a page for a browser, of migrations that pass and that fail."""

import dataclasses
import html
import html.parser
import json
import os
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import ComparisonError, Migration, TrainStep, compare, track_tf1_style_variables, validate
from detrand.__main__ import COULD_NOT_RUN, FAILED, PASSED, _tensorflow_kept_quiet, main
from detrand.report import charts
from detrand.report import html as html_report
from detrand.report import json as json_report
from detrand.testing import assert_migration
from detrand.validation.migration_files import load_migrations

INPUTS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def forward(inputs, training, activation=tf.nn.relu):
    kernel = tf.compat.v1.get_variable("kernel", (5, 8))
    hidden = activation(tf.matmul(inputs, kernel))
    return {"hidden": hidden, "dropped": tf.nn.dropout(hidden, 0.5) if training else hidden}


class Port(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, inputs, training=False):
        return forward(inputs, training)


class OtherActivation(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, inputs, training=False):
        return forward(inputs, training, activation=tf.nn.leaky_relu)


@pytest.fixture(scope="module")
def passed():
    return validate(Migration(tf1=forward, port=Port, inputs=INPUTS, name="sound"))


@pytest.fixture(scope="module")
def failed():
    return validate(Migration(tf1=forward, port=OtherActivation, inputs=INPUTS, name="<script>alert('&')</script>"))


class Page(html.parser.HTMLParser):
    """The elements and the text of a page; fails where elements are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.anchors, self.links = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self.anchors += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name == "href"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


def test_json_shows_a_migration_that_passes(passed):
    content = json.loads(json_report.render([passed]))
    assert content["schema"] == 1
    assert content["ok"] is True
    assert [check["name"] for check in content["checks"]] == [check.name for check in passed.checks]
    assert all(check["ok"] and check["summary"] and not check["details"] for check in content["checks"])
    outputs = content["checks"][4]["comparisons"][0]
    assert [leaf["path"] for leaf in outputs["leaves"]] == ["['hidden']", "['dropped']"]
    assert outputs["leaves"][0]["greatest_absolute"]["amount"] == 0
    assert content["migrations"][0]["name"] == "sound"
    assert content["versions"]["tensorflow"] == tf.__version__


@pytest.mark.slow
def test_json_shows_a_migration_that_fails(passed, failed):
    content = json.loads(json_report.render([passed, failed]))
    assert content["ok"] is False
    assert [migration["ok"] for migration in content["migrations"]] == [True, False]
    by_name = {check["name"]: check for check in content["checks"] if check["migration"] == failed.migration}
    assert {name for name, check in by_name.items() if not check["ok"]} >= {"random-inference", "random-training"}
    tensors = by_name["random-inference"]["tensors"]
    assert {tensor["same"] for tensor in tensors} == {True, False}
    assert all(set(tensor) == {"tf1", "port", "amount", "same"} for tensor in tensors)
    (variable,) = content["migrations"][1]["variables"]
    assert variable["tf1_shape"] == variable["port_shape"] == "float32 (5, 8)"
    (finding,) = content["migrations"][1]["findings"]
    of_finding = {"kind", "title", "tf1", "port", "checks", "confirmed", "others", "remedy", "more", "count"}
    assert finding.keys() == {*of_finding, "symptom"}  # as docs/json.rst lists them
    leaf = by_name["random-inference"]["comparisons"][0]["leaves"][0]
    assert leaf["reason"] == "values"
    assert 0 < leaf["mismatched"] == sum(leaf["by_magnitude"].values()) < leaf["size"]


def test_json_has_no_numbers_that_json_has_not():
    found = compare(np.array([np.nan, np.inf, 2.0]), np.array([1.0, 2.0, 1.0]))
    leaf = json_report.plain(found.leaves[0])
    assert leaf["greatest_absolute"]["amount"] == "inf"
    assert leaf["first_mismatch"]["actual"] == "nan"
    json.dumps(leaf, allow_nan=False)


def test_page_says_what_passed(passed):
    page = Page(html_report.render([passed]))
    assert "all 8 checks passed" in page.text
    assert "FAILED" not in page.text
    for check in passed.checks:
        assert check.name in page.text
        assert check.summary in page.text


HOSTILE = '<img src=x onerror="alert(1)">&\''


def with_hostile_texts(value):
    """A part of a report, with each of its texts ended by what a browser must not see as an element."""
    if isinstance(value, str):
        return value + HOSTILE
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: with_hostile_texts(getattr(value, name)) for name in names})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(with_hostile_texts, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(with_hostile_texts, value))
    return {key: with_hostile_texts(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_no_text_of_a_report_becomes_an_element_of_the_page(failed):
    page = html_report.render([with_hostile_texts(failed)], f"python -m detrand validate {HOSTILE}")
    assert page.count(html.escape(HOSTILE)) > 20
    parsed = Page(page)
    assert "img" not in parsed.tags
    assert "onerror" not in parsed.attributes


def test_a_report_is_true_if_it_is_ok(passed, failed):
    assert passed and passed.ok
    assert not failed and not failed.ok


def test_page_begins_with_what_failed(passed, failed):
    page = Page(html_report.render([passed, failed]))
    assert page.text.index("1 of 2 migrations failed") < page.text.index("all 8 checks passed")
    first = next(check for check in failed.checks if not check.ok)
    assert first.details in page.text
    assert failed.migration in page.text  # as text, not as an element


@pytest.mark.slow
def test_training_steps_are_in_both():
    def loss(labels, outputs):
        return tf.reduce_mean((outputs["hidden"] - labels) ** 2)

    migration = Migration(
        tf1=forward,
        port=OtherActivation,
        inputs=INPUTS,
        train=TrainStep(
            labels=np.ones((4, 8), np.float32),
            tf1_loss=loss,
            port_loss=loss,
            tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=3,
        ),
    )
    report = validate(migration)
    check = report.checks[-1]
    (content,) = (one for one in json.loads(json_report.render([report]))["checks"] if one["name"] == "training-steps")
    assert [training["execution"] for training in content["trainings"]] == list(check.trainings)
    training = content["trainings"][-1]
    assert not training["ok"]
    assert training["first_divergence"]["step"] == 0
    assert [step["step"] for step in training["steps"]] == [0, 1, 2]
    text = html_report.render([report])
    assert "learning_rate" in Page(text).text
    assert all(f"step {step}: " in text for step in range(3))  # dots of a chart


def test_page_needs_nothing_from_elsewhere(failed):
    page = Page(html_report.render([failed]))
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "onload", "onclick"} & set(page.attributes)
    assert page.tags.count("script") == 1
    assert "url(" not in html_report.render([failed])


def elements(svg, tag):
    return ElementTree.fromstring(svg).iter(tag)


class TestDepthChart:
    POINTS = (
        charts.Point("first", 0.0, True, atol=1e-5),
        charts.Point("second <b>", 1e-7, True, atol=1e-5),
        charts.Point("third", 1e-2, False, "3rd", 1e-5),
        charts.Point("fourth", None, False, atol=1e-5),
    )

    def test_each_check_has_a_dot_in_order(self):
        dots = list(elements(charts.depth_chart(self.POINTS, "layers"), "circle"))
        assert [dot.find("title").text.split(":")[0] for dot in dots] == [point.label for point in self.POINTS]
        assert [dot.get("class") for dot in dots] == ["good", "good", "bad", "bad"]
        across = [float(dot.get("cx")) for dot in dots]
        assert across == sorted(across)

    def test_greater_differences_are_higher(self):
        zero, small, great, unknown = (
            float(dot.get("cy")) for dot in elements(charts.depth_chart(self.POINTS, "layers"), "circle")
        )
        assert zero > small > great > unknown
        (line,) = (
            line for line in elements(charts.depth_chart(self.POINTS, "x"), "line") if "tol" in line.get("class")
        )
        assert small > float(line.get("y1")) > great

    def test_a_tick_is_below_its_dot(self):
        svg = charts.depth_chart(self.POINTS, "layers")
        (tick,) = (text for text in elements(svg, "text") if text.text == "3rd")
        assert tick.get("x") == list(elements(svg, "circle"))[2].get("cx")

    @pytest.mark.parametrize("count", [14, 15, 100])
    def test_some_of_many_ticks_are_left_out(self, count):
        points = [charts.Point(f"step {step}", 1.0, True, str(step)) for step in range(count)]
        ticks = [text.text for text in elements(charts.depth_chart(points, "step"), "text")]
        shown = [int(tick) for tick in ticks if tick.isdecimal() and tick != "0"]
        assert len(shown) <= 14
        assert shown == [step for step in range(1, count) if step % (count // 14 + (count % 14 > 0)) == 0]

    def test_each_point_has_its_tolerance(self):
        points = [
            charts.Point(str(number), 1e-6, True, atol=atol) for number, atol in enumerate([1e-5, 1e-5, 0.0, 1e-3])
        ]
        svg = charts.depth_chart(points, "x")
        low, high = (line for line in elements(svg, "line") if "tol" in line.get("class"))
        dots = [float(dot.get("cx")) for dot in elements(svg, "circle")]
        assert float(low.get("x1")) < dots[0] < dots[1] < float(low.get("x2")) < dots[2]
        assert dots[2] < float(high.get("x1")) < dots[3] < float(high.get("x2"))
        assert float(low.get("y1")) > float(high.get("y1"))
        assert "atol" not in svg

    @pytest.mark.parametrize("amount", [0.0, np.nan, np.inf, 1e-300, 1e300])
    def test_one_point_of_any_size_is_drawn(self, amount):
        (dot,) = elements(charts.depth_chart([charts.Point("x", amount, False)], "x"), "circle")
        assert 0 <= float(dot.get("cy")) <= 220


def test_histogram_has_a_bar_for_each_magnitude():
    svg = charts.histogram({-7: 10, -5: 1_500}, equal=20)
    titles = [bar.find("title").text for bar in elements(svg, "rect")]
    assert titles == ["20 elements, equal", "10 elements, 1e-7", "0 elements, 1e-6", "1,500 elements, 1e-5"]
    heights = [float(bar.get("height")) for bar in elements(svg, "rect")]
    assert heights[3] == max(heights)
    assert heights[2] == 0


def test_magnitudes_count_every_element_that_differs():
    desired = np.zeros(7)
    actual = np.array([0.0, 1e-7, 2e-7, 0.5, np.inf, np.nan, 9.99])
    (leaf,) = compare(actual, desired).leaves
    assert leaf.by_magnitude == {-7: 2, -1: 1, 0: 1}


MIGRATIONS = """
import numpy as np
import tensorflow as tf
from detrand import Migration

def scale(x, training):
    return x * tf.compat.v1.get_variable("scale", (3,))

class Port(tf.Module):
    def __init__(self, more=0.0):
        self.scale, self.more = None, more
    def __call__(self, x, training):
        if self.scale is None:
            self.scale = tf.Variable(tf.compat.v1.glorot_uniform_initializer()((3,)), name="scale")
        return x * self.scale + self.more

sound = Migration(tf1=scale, port=Port, inputs=np.ones(3, np.float32), name="sound")
broken = Migration(tf1=scale, port=lambda: Port(0.5), inputs=np.ones(3, np.float32), name="broken")
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "migrations.py").write_text(MIGRATIONS)
    return tmp_path / "migrations.py"


@pytest.mark.slow
def test_the_command_line_writes_both_files(file, tmp_path):
    pages = tmp_path / "report.json", tmp_path / "report.html"
    assert main(["validate", f"{file}:sound", "--json", str(pages[0]), "--html", str(pages[1])]) == PASSED
    assert json.loads(pages[0].read_text())["ok"] is True
    assert "checks passed" in Page(pages[1].read_text()).text
    assert main(["validate", f"{file}:broken", "--json", str(pages[0])]) == FAILED
    assert json.loads(pages[0].read_text())["ok"] is False


@pytest.mark.slow
def test_the_command_goes_on_after_a_broken_pipe(file, tmp_path):
    pages = tmp_path / "report.json", tmp_path / "report.html"
    options = ["--json", str(pages[0]), "--html", str(pages[1])]
    command = [sys.executable, "-m", "detrand", "validate", f"{file}:sound", f"{file}:broken", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # as `head` does after it has read enough
        assert process.stderr.read() == ""
    assert process.returncode == FAILED
    assert [each["ok"] for each in json.loads(pages[0].read_text())["migrations"]] == [True, False]
    assert "1 of 2 migrations failed" in Page(pages[1].read_text()).text


@pytest.mark.slow
def test_an_interrupted_command_says_so_and_writes_what_it_knows(file, tmp_path):
    command = [sys.executable, "-m", "detrand", "validate", str(file), "--html", str(tmp_path / "report.html")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "variables-created-once" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, message = process.communicate()
    assert message == "detrand: interrupted\n"
    assert process.returncode == COULD_NOT_RUN
    assert "not run, because of an interrupt" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("code", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_a_command_that_is_interrupted_while_it_loads_says_so_in_one_line(code, tmp_path):
    (tmp_path / "migrations.py").write_text(code)
    command = [sys.executable, "-m", "detrand", "validate", str(tmp_path / "migrations.py")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (COULD_NOT_RUN, "", "detrand: interrupted\n")


def test_an_interrupt_hides_what_tensorflow_says_while_it_is_loaded(capfd):
    with pytest.raises(KeyboardInterrupt), _tensorflow_kept_quiet():
        os.write(2, b"no GPU\n")
        raise KeyboardInterrupt
    with pytest.raises(ImportError), _tensorflow_kept_quiet():
        os.write(2, b"no library\n")
        raise ImportError
    assert capfd.readouterr().err == "no library\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full on this system")
def test_a_report_that_cannot_be_written_does_not_keep_the_others_from_it(file, tmp_path, capsys):
    pages = tmp_path / "report.json", tmp_path / "report.md"
    options = ["--json", str(pages[0]), "--html", "/dev/full", "--markdown", str(pages[1])]
    assert main(["validate", f"{file}:sound", *options]) == COULD_NOT_RUN
    assert capsys.readouterr().err.startswith("detrand: the report cannot be written to /dev/full: No space left")
    assert all(page.read_text() for page in pages)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full on this system")
@pytest.mark.parametrize("where", ["standard output", "report"])
def test_a_full_disk_is_an_error_in_one_line(where, file):
    options = ["--json", "/dev/full"] if where == "report" else []
    with open("/dev/full" if where == "standard output" else os.devnull, "w") as output:
        command = [sys.executable, "-m", "detrand", "validate", f"{file}:sound", *options]
        finished = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert finished.returncode == COULD_NOT_RUN
    assert re.fullmatch(
        rf"detrand: the report cannot be written to .*({where}|/dev/full): No space left.*\n", finished.stderr
    )


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_command_says_at_once_that_it_cannot_write(option, file, tmp_path, capsys):
    for where, why in ((tmp_path, "it is a folder"), (tmp_path / "no" / "report", "does not exist")):
        assert main(["validate", str(file), option, str(where)]) == COULD_NOT_RUN
        captured = capsys.readouterr()
        assert why in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out


def test_command_says_at_once_that_it_may_not_write(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # an administrator may write everywhere
    assert main(["validate", str(file), "--json", str(tmp_path / "report")]) == COULD_NOT_RUN
    captured = capsys.readouterr()
    assert re.fullmatch(r"detrand: .*report.*permission denied.*\n", captured.err)
    assert not captured.out


INCONCLUSIVE = """
import numpy as np
import tensorflow as tf
from detrand import Migration

v1 = tf.compat.v1


def tf1(x, training):
    kernel = v1.get_variable("kernel", (3, 2), regularizer=lambda kernel: 0.1 * tf.reduce_sum(kernel**2))
    return tf.matmul(x, kernel)


class Port(tf.Module):
    \"\"\"It has no losses.\"\"\"

    def __init__(self):
        self.kernel = tf.Variable(tf.zeros((3, 2)), name="kernel")

    def __call__(self, x, training):
        return tf.matmul(x, self.kernel)


migration = Migration(
    tf1=tf1, port=Port, inputs=np.ones((4, 3), np.float32), expect=["initializers-match"], name="module"
)
"""


def test_a_check_that_cannot_compare_makes_the_verdict_inconclusive(tmp_path, capsys):
    file, page, data = tmp_path / "module.py", tmp_path / "report.html", tmp_path / "report.json"
    file.write_text(INCONCLUSIVE)
    assert main(["validate", str(file), "--html", str(page), "--json", str(data)]) == FAILED
    assert "module inconclusive: 7 of 8 checks passed; not compared: regularizers-match" in capsys.readouterr().out
    assert json.loads(data.read_text())["ok"] is False
    assert json.loads(data.read_text())["migrations"][0]["verdict"] == "inconclusive"
    assert "<title>inconclusive: module</title>" in page.read_text()
    assert main(["validate", str(file), "--allow-inconclusive"]) == PASSED


def test_an_inconclusive_migration_fails_its_test_unless_that_is_allowed(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(INCONCLUSIVE)
    (migration,) = load_migrations(str(file))
    with pytest.raises(ComparisonError, match="regularizers-match: regularization loss not compared: the port has no"):
        assert_migration(migration)
    assert assert_migration(migration, allow_inconclusive=True).verdict == "inconclusive"
