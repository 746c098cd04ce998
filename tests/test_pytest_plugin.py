"""Fixtures, marker and option of the pytest plugin, each in a run of pytest of its own; and the mixin for unittest."""

import unittest
from pathlib import Path

import pytest
import tensorflow as tf

from detrand import ArgumentError, ComparisonError, DeterministicRandomTestTool, VariableCreationError
from detrand.testing import TestMixin, assert_migration
from tests.report.test_report import INPUTS, Migration, OtherActivation, Page, Port, forward

SOUND = Migration(tf1=forward, port=Port, inputs=INPUTS, name="sound")
BROKEN = Migration(tf1=forward, port=OtherActivation, inputs=INPUTS, name="broken")


@pytest.fixture(autouse=True)
def no_seed_of_test_cases():
    """Undo the global seed that ``tf.test.TestCase`` sets."""
    yield
    tf.random.set_seed(None)


@pytest.fixture
def run(pytester):
    """Run a test file, and return the result of pytest."""

    def run_file(text, *options, way=pytester.runpytest_inprocess):
        pytester.makepyfile(text)
        return way("-p", "detrand.pytest_plugin", "-p", "no:cacheprovider", *options)

    return run_file


def numbers(mode, seed):
    with DeterministicRandomTestTool(seed, mode).scope():
        return [float(tf.random.uniform(())) for _ in range(2)]


def test_a_tool_without_a_marker_has_the_default_arguments(run):
    run(
        f"""
        import tensorflow as tf

        def test_numbers(detrand_tool):
            assert [float(tf.random.uniform(())) for _ in range(2)] == {numbers("constant", 42)}
            assert detrand_tool.operation_seed == 0

        def test_again(detrand_tool):
            assert len(detrand_tool.random_ops) == 0
        """
    ).assert_outcomes(passed=2)


def test_a_marker_sets_the_arguments_of_the_tool(run):
    run(
        f"""
        import pytest
        import tensorflow as tf

        @pytest.fixture
        def drawn(detrand_tool):
            return [float(tf.random.uniform(())) for _ in range(2)]

        @pytest.mark.detrand(mode="num_random_ops", seed=7)
        def test_numbers(detrand_tool, drawn):
            assert drawn == {numbers("num_random_ops", 7)}
            assert detrand_tool.operation_seed == 2

        def test_outside():
            assert [float(tf.random.uniform(())) for _ in range(2)] != {numbers("constant", 42)}
        """,
        "--strict-markers",
    ).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'num_random_ops'", "*accepts mode= and seed= by name, but ('num_random_ops') was given"),
        ("mood='constant'", "*accepts mode= and seed= by name, but (mood='constant') was given"),
        ("mode='random'", "*mode must be one of 'constant', 'num_random_ops', but 'random' was given*"),
    ],
)
def test_a_marker_with_wrong_arguments_is_an_error(run, arguments, message):
    result = run(
        f"""
        import pytest

        @pytest.mark.detrand({arguments})
        def test_numbers(detrand_tool):
            pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_a_body_that_creates_a_variable_fails(run):
    result = run(
        """
        import pytest
        import tensorflow as tf

        @pytest.fixture
        def variable():
            return tf.Variable(1.0)

        def test_uses(no_variable_creations, variable):
            assert float(variable) == 1.0

        def test_creates(no_variable_creations):
            tf.Variable(2.0, name="made_here")
        """
    )
    result.assert_outcomes(passed=1, failed=1)  # failed, not an error after the test
    result.stdout.fnmatch_lines(["*made_here*test_a_body_that_creates_a_variable_fails.py:12*"])


MIGRATIONS = """
    from tests.test_pytest_plugin import BROKEN, SOUND

    def test_sound(assert_migration):
        assert assert_migration(SOUND).ok

    def test_broken(assert_migration):
        assert_migration(BROKEN)
    """


def test_migration_that_fails_says_first_what_was_found(run):
    result = run(MIGRATIONS)
    result.assert_outcomes(passed=1, failed=1)
    said = [line for line in result.stdout.lines if line.startswith("E  ")]
    assert "broken failed: 1 finding; 4 of 8 checks failed; first: constant-weights" in said[0]
    assert any("finding 1 of 1: activation differs: Relu (TF1), LeakyRelu (port)" in line for line in said[:5])
    assert not any("detrand/testing.py" in line for line in result.stdout.lines)  # the traceback ends in the test


def test_a_migration_that_fails_writes_its_report(run, pytester):
    result = run(MIGRATIONS, "--detrand-report", "reports")
    result.assert_outcomes(passed=1, failed=1)
    (page,) = (pytester.path / "reports").iterdir()
    assert "test_broken" in page.name
    assert page.suffix == ".html"
    assert "checks failed" in Page(page.read_text()).text
    result.stdout.fnmatch_lines([f"*whole report: reports/{page.name}*"])


def test_the_example_of_the_docs_passes(run):
    text = (Path(__file__).parent.parent / "examples" / "test_classifier.py").read_text()
    run(text, "--strict-markers").assert_outcomes(passed=6, skipped=1)  # TensorFlow skips a test of its own


def test_no_framework_before_a_test_needs_one(run, pytester):
    run(
        """
        import sys

        def test_modules():
            assert not {"tensorflow", "keras", "tf_keras", "jax", "torch"} & set(sys.modules)
        """,
        way=pytester.runpytest_subprocess,
    ).assert_outcomes(passed=1)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"cannot be written to .*give a different folder\n\nbroken failed: "):
        assert_migration(BROKEN, tmp_path / "file")


@pytest.mark.parametrize("kind", [unittest.TestCase, tf.test.TestCase], ids=["unittest", "tensorflow"])
def test_the_mixin_gives_unittest_the_same_helpers(kind, tmp_path):
    class Case(TestMixin, kind):
        detrand_report_dir = tmp_path

        def test_tool(self):
            tool = self.detrand_tool(mode="num_random_ops", seed=7)
            assert [float(tf.random.uniform(())) for _ in range(2)] == numbers("num_random_ops", 7)
            assert tool.operation_seed == 2

        def test_creations(self):
            with pytest.raises(VariableCreationError, match="made_here"), self.no_variable_creations():
                tf.Variable(2.0, name="made_here")

        def test_migrations(self):
            assert self.assert_migration(SOUND).ok
            with pytest.raises(ComparisonError, match="broken failed: 1 finding; 4 of 8 checks failed"):
                self.assert_migration(BROKEN)

    result = unittest.TestResult()
    before = tf.random.get_global_generator()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.wasSuccessful(), [text for _, text in result.failures + result.errors]
    assert result.testsRun >= 3
    assert tf.random.get_global_generator() is before or kind is tf.test.TestCase
    assert len(list(tmp_path.glob("*test_migrations.html"))) == 1
