"""The command line, and the examples that it runs."""

import contextlib
import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import detrand
from detrand import enable_v1_layers, validate
from detrand.__main__ import COULD_NOT_RUN, FAILED, PASSED, main
from detrand._patching.tensorflow import converted_by_autograph, function_as_is
from detrand.validation.checks.registry import run_check
from detrand.validation.frameworks.tensorflow import functions_as_written
from detrand.validation.migration_files import load_migrations
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, port_scope
from detrand.validation.reference import Reference
from tests.support.classifier_migrations import NAMES, train

REPOSITORY = Path(__file__).parents[2]


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

# A port that looks at its numbers, so that its data flow cannot pair variables of other names.
EAGER_ONLY = (
    MIGRATION_FILE.replace(
        "\nmigration = ",
        """
class Port(keras.layers.Dense):
    def call(self, inputs):
        return super().call(inputs) * float(tf.reduce_sum(inputs).numpy() > 0)

eager_only = """,
    )
    .replace('lambda: keras.layers.Dense(2, name="dense", **arguments)', 'lambda: Port(2, name="port", **arguments)')
    .partition("faulty = ")[0]
)


@pytest.fixture
def migration_file(tmp_path):
    path = tmp_path / "dense.py"
    path.write_text(MIGRATION_FILE)
    return path


@pytest.mark.slow
def test_the_command_line_exits_with_0_if_all_pass(migration_file):
    done = run_command_line("validate", migration_file)
    assert done.returncode == 0, done.stderr
    assert "tf1 passed: all 8 checks passed" in done.stdout
    assert all(name in done.stdout for name in NAMES)
    assert done.stderr == ""


def test_the_command_line_exits_with_1_if_a_check_fails(migration_file, capsys):
    assert main(["validate", f"{migration_file}:faulty"]) == FAILED == 1
    said = capsys.readouterr().out
    assert "checks failed; first: variables-match" in said
    assert "dense/bias" in said


def test_the_command_line_takes_several_migrations(migration_file, capsys):
    assert main(["validate", "--check", "variables-match", str(migration_file), f"{migration_file}:faulty"]) == FAILED
    assert "1 of 2 migrations failed" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_line_reads_a_checkpoint(migration_file, capsys):
    """Beside migrations that have none."""
    (migration_file.parent / "trained").mkdir()
    train(
        migration_file.parent / "trained" / "model.ckpt",
        lambda inputs, training: tf.matmul(inputs[:, :3], tf.compat.v1.get_variable("dense/kernel", (3, 2))),
    )
    assert main(["validate", str(migration_file), f"{migration_file}:trained"]) == PASSED
    said = capsys.readouterr()
    assert "tf1 passed: all 8 checks passed" in said.out
    assert "trained passed: all 9 checks passed" in said.out
    assert "1 variable from the" in said.out
    assert said.out.splitlines()[-1] == "all 2 migrations passed"
    assert said.err == ""


@pytest.mark.parametrize(
    "location",
    ["absent.py", "{file}:nothing", "{file}:absent"],
    ids=["no file", "no migration", "no checkpoint"],
)
def test_command_line_that_cannot_run_says_why_in_one_line(migration_file, location, capsys):
    assert main(["validate", f"{migration_file}:faulty", location.format(file=migration_file)]) == COULD_NOT_RUN == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("detrand: ")
    assert said.err.count("\n") == 1


def test_a_migration_that_cannot_run_is_no_reason_to_lose_the_others(migration_file, tmp_path, capsys):
    unequal = "inputs=np.ones((4, 2), np.float32), name='unequal')"
    migration_file.write_text(f"{MIGRATION_FILE}\nunequal = dataclasses.replace(migration, {unequal}\n")
    report = tmp_path / "report.json"
    locations = [f"{migration_file}:{name}" for name in ("unequal", "faulty")]
    arguments = ["--check", "variables-match", "--json", str(report)]
    assert main(["validate", *locations, *arguments]) == COULD_NOT_RUN
    said = capsys.readouterr()
    why, in_the_end = said.err.splitlines()
    assert why.startswith("detrand: the TF1 program of unequal cannot be run: ")
    assert in_the_end == "detrand: the checks of 1 of 2 migrations could not run: unequal"
    assert "checks failed; first: variables-match" in said.out
    assert [each["name"] for each in json.loads(report.read_text())["migrations"]] == ["tf1"]
    assert main(["validate", "-x", *locations, *arguments]) == COULD_NOT_RUN
    assert "variables-match" not in capsys.readouterr().out


def test_named_checks_are_all_that_run(migration_file, capsys):
    faulty = f"{migration_file}:faulty"
    assert main(["validate", faulty, "--check", "random-inference", "--check", "variables-match"]) == FAILED
    checked = [line.split()[1] for line in capsys.readouterr().out.splitlines() if " s  " in line]
    assert checked == ["variables-match", "random-inference"]
    assert main(["validate", faulty, "--check", "random"]) == COULD_NOT_RUN
    assert "checks must be among those of tf1, but 'random' was given" in capsys.readouterr().err


def test_only_the_checks_that_failed_are_run_again(migration_file, tmp_path, capsys):
    report = tmp_path / "report.json"
    again = ["validate", f"{migration_file}:faulty", "--json", str(report), "--last-failed"]
    assert main([*again, "--list"]) == PASSED
    assert capsys.readouterr().out.splitlines() == [f"tf1: {', '.join(NAMES)}"]  # without a report, all
    report.write_text(json.dumps({"checks": [{"migration": "tf1", "name": name, "ok": True} for name in NAMES]}))
    assert main([*again, "--list"]) == PASSED
    assert capsys.readouterr().out.splitlines() == [f"tf1: {', '.join(NAMES)}"]  # none has failed
    failing = ["variables-match", "initializers-match"]
    checks = [{"migration": "tf1", "name": name, "ok": name not in failing} for name in NAMES]
    report.write_text(json.dumps({"checks": [*checks, {"migration": "other", "name": NAMES[0], "ok": False}]}))
    assert main(again) == FAILED
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if " s  " in line] == failing
    assert [check["name"] for check in json.loads(report.read_text())["checks"]] == failing


@pytest.mark.parametrize("text", ["", "[]", '{"checks": [{}]}', "\x00"])
def test_a_file_that_is_no_report_says_so(text, migration_file, tmp_path, capsys):
    (tmp_path / "report.json").write_text(text)
    again = ["validate", str(migration_file), "--last-failed"]
    assert main([*again, "--json", str(tmp_path / "report.json")]) == COULD_NOT_RUN
    assert "report.json is no report that --json has written" in capsys.readouterr().err
    assert (tmp_path / "report.json").read_text() == text
    assert main(again) == COULD_NOT_RUN
    assert "write --last-failed --json report.json" in capsys.readouterr().err


def test_migrations_are_listed_with_their_checks_and_not_run(migration_file, capsys):
    migration_file.write_text(f"{MIGRATION_FILE}\nfaulty = detrand.Migration(tf1=tf1, port=lambda: 1 / 0, inputs=1.0)")
    assert main(["validate", "--list", f"{migration_file}:migration", f"{migration_file}:faulty"]) == PASSED
    assert capsys.readouterr().out.splitlines() == [f"tf1: {', '.join(NAMES)}"] * 2


def test_exitfirst_stops_after_the_first_check_that_fails(migration_file, capsys):
    done = main(["validate", "-x", f"{migration_file}:faulty", f"{migration_file}:migration"])
    said = capsys.readouterr().out
    assert done == FAILED
    assert [line.split()[0] for line in said.splitlines() if " s  " in line] == ["passed", "FAILED"]
    assert "not compared: initializers-match, regularizers-match," in said
    assert "constant-mode: not run, because variables-match failed\n" in said
    assert "passed: all" not in said


def test_quiet_prints_the_verdicts_only(migration_file, capsys):
    assert main(["validate", "-q", f"{migration_file}:migration", f"{migration_file}:faulty"]) == FAILED
    first, second = capsys.readouterr().out.splitlines()
    assert first == "tf1 passed: all 8 checks passed"
    assert second.startswith("tf1 failed: ")


def test_json_on_the_standard_output_is_alone_there(migration_file, tmp_path, capsys):
    file = tmp_path / "report.xml"
    assert main(["validate", str(migration_file), "--json", "-", "--junit", str(file)]) == PASSED
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"]
    assert "tf1 passed: all 8 checks passed" in said.err
    assert said.err.endswith(f"{file}: written\n")
    assert file.read_text().startswith("<?xml")


def test_findings_are_annotations_in_a_job_of_github(migration_file, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["validate", "-q", f"{migration_file}:faulty"]) == FAILED
    assert "\n::error title=tf1%3A variables%3A only in the port" in capsys.readouterr().out


def test_an_interrupt_keeps_what_the_finished_checks_found(migration_file, tmp_path, monkeypatch, capsys):
    def interrupted(name, *arguments):
        if name == "initializers-match":
            raise KeyboardInterrupt
        return run_check(name, *arguments)

    monkeypatch.setattr("detrand.validation.validate.run_check", interrupted)
    file = tmp_path / "report.json"
    assert main(["validate", f"{migration_file}:faulty", "--json", str(file)]) == COULD_NOT_RUN
    said = capsys.readouterr()
    assert said.err == "detrand: interrupted\n"
    assert "finding 1 of 1: variables: only in the port (1): dense/bias" in said.out
    assert "constant-mode: not run, because of an interrupt" in said.out
    checks = json.loads(file.read_text())["checks"]
    assert [check["name"] for check in checks] == list(NAMES)
    assert [(check["ok"], check["compared"]) for check in checks] == [(True, True), (False, True), *[(True, False)] * 6]


def test_two_recordings_are_compared(tmp_path, capsys):
    files = []
    for loss in (0.5, 0.25):
        recorder = detrand.StepRecorder()
        recorder.record(0, loss=loss)
        files.append(str(tmp_path / f"{loss}.npz"))
        recorder.save(files[-1])
    assert main(["diff", files[0], files[0]]) == PASSED
    capsys.readouterr()
    assert main(["diff", *files]) == FAILED
    assert "first: step 0, loss" in capsys.readouterr().out
    assert main(["diff", *files, "--rtol", "1", "--atol", "0"]) == PASSED
    assert main(["diff", *files, "--rtol", "1"]) == COULD_NOT_RUN
    assert "give rtol and atol together" in capsys.readouterr().err
    assert main(["diff", files[0], "absent.npz"]) == COULD_NOT_RUN


def test_the_place_of_an_error_is_printed_on_request(tmp_path, capsys):
    assert main(["validate", str(tmp_path / "absent.py"), "--traceback"]) == COULD_NOT_RUN
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert said.splitlines()[-1].startswith("detrand: the file ")


def test_an_error_that_a_report_passes_over_is_printed_on_request(tmp_path, capsys):
    file = tmp_path / "eager_only.py"
    file.write_text(EAGER_ONLY)
    for arguments, is_printed in ([], False), (["--traceback"], True), ([], False):
        assert main(["validate", str(file), "--check", "variables-match", *arguments]) == PASSED
        assert ("an error is passed over" in capsys.readouterr().err) is is_printed


def test_the_commands_are_listed_if_none_is_given(capsys):
    with pytest.raises(SystemExit, match="0"):
        main([])
    printed = capsys.readouterr().out
    assert all(f"    {command} " in printed for command in ("validate", "record", "diff", "init"))


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"detrand {detrand.__version__}\n"


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
    assert all("outputs identical" in check.summary for check in report.checks[4:]), str(report)


@pytest.mark.slow_except("gpt_2.py")
@pytest.mark.parametrize("example", ["gpt_2.py", "bert_encoder.py"])
def test_the_examples_of_transformers_pass(example, load_example):
    report = validate(*load_example(example))
    assert report.ok, str(report)
    assert all("outputs identical" in check.summary for check in report.checks[4:]), str(report)


def assert_computes_the_same_in_a_function(migration, training):
    setting = RunConfig(training, "num_random_ops")
    with port_scope(migration, setting), functions_as_written():
        port = Port(migration)
        model = converted_by_autograph(port.function)
        outputs = function_as_is(lambda *batch: port.call_model(model, batch, training)[0])(*port.batch)
    detrand.assert_allclose(outputs, Reference(migration).outcome(setting).outputs, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_a_network_computes_the_same_in_a_function(training, load_example):
    (migration,) = load_example("tf_slim_networks.py:resnet_v2_50")
    small = dataclasses.replace(migration, inputs=migration.inputs[:, :65, :65])
    assert_computes_the_same_in_a_function(small, training)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("example", ["tf_slim_networks.py", "gpt_2.py", "bert_encoder.py"])
def test_every_network_computes_the_same_in_a_function(example, training, load_example):
    for migration in load_example(example):
        assert_computes_the_same_in_a_function(migration, training)


TEXTS = {path: path.read_text() for path in sorted((REPOSITORY / "examples").glob("*.py"))}
# The file that is copied to TensorFlow 1 mentions a migration, and imports nothing of detrand.
EXAMPLES = [
    path for path, text in TEXTS.items() if "Migration(" in text and re.search("^(import|from) detrand", text, re.M)
]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes_at_its_full_size(example):
    if "import transformers" in TEXTS[example] and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    done = run_command_line("validate", example)
    assert done.returncode == 0, done.stdout + done.stderr
