"""Fixtures, marker and option of the pytest plugin, each in a run of pytest of its own; and the mixin for unittest."""

import unittest
from pathlib import Path

import pytest
import tensorflow as tf

from detrand import ArgumentError, ComparisonError, DeterministicRandomTestTool, VariableCreationError
from detrand.testing import TestMixin, assert_migration
from detrand.validation import validate as validate_module
from detrand.validation.golden import record_golden
from tests.report.test_report import INPUTS, Migration, OtherActivation, Page, Port, forward

SOUND = Migration(tf1=forward, port=Port, inputs=INPUTS, name="sound")
BROKEN = Migration(tf1=forward, port=OtherActivation, inputs=INPUTS, name="broken")


def scaled(inputs, training):
    scale = tf.compat.v1.get_variable("scale", (5,), regularizer=tf.nn.l2_loss)
    return inputs * scale


class Scaled(tf.Module):
    def __init__(self):
        self.scale = tf.Variable(tf.compat.v1.glorot_uniform_initializer()((5,)), name="scale")

    def __call__(self, inputs, training):
        return inputs * self.scale


UNKNOWN_LOSSES = Migration(tf1=scaled, port=Scaled, inputs=INPUTS, name="unknown_losses")


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


@pytest.mark.slow
def test_migration_that_fails_says_first_what_was_found(run):
    result = run(MIGRATIONS)
    result.assert_outcomes(passed=1, failed=1)
    said = [line for line in result.stdout.lines if line.startswith("E  ")]
    assert "broken failed: 1 finding; 4 of 8 checks failed; first: constant-weights" in said[0]
    assert any("finding 1 of 1: activation differs: Relu (TF1), LeakyRelu (port)" in line for line in said[:5])
    assert not any("detrand/testing.py" in line for line in result.stdout.lines)  # the traceback ends in the test


@pytest.mark.slow
def test_a_migration_that_fails_writes_its_report(run, pytester):
    result = run(MIGRATIONS, "--detrand-report", "reports")
    result.assert_outcomes(passed=1, failed=1)
    (page,) = (pytester.path / "reports").iterdir()
    assert "test_broken" in page.name
    assert page.suffix == ".html"
    assert "checks failed" in Page(page.read_text()).text
    result.stdout.fnmatch_lines([f"*whole report: reports/{page.name}*"])


CHECKS = """
    import pytest
    from tests.test_pytest_plugin import BROKEN, SOUND, UNKNOWN_LOSSES

    @pytest.mark.detrand_migration(BROKEN)
    def test_broken(assert_check):
        assert_check()

    @pytest.mark.detrand_migration(UNKNOWN_LOSSES, checks=["regularizers-match", "random-inference"])
    def test_sound(assert_check):
        assert assert_check().name == "random-inference"

    @pytest.mark.detrand_migration(UNKNOWN_LOSSES, checks=["regularizers-match"], allow_inconclusive=True)
    def test_allowed(assert_check):
        assert_check()
    """


@pytest.mark.slow
def test_each_check_is_a_test(run, pytester, monkeypatch):
    validated = []
    validate = validate_module.validate
    monkeypatch.setattr(
        validate_module, "validate", lambda migration, **kw: validated.append(kw["checks"]) or validate(migration, **kw)
    )
    result = run(CHECKS, "--detrand-report", "reports", "--strict-markers", "-rs")
    result.assert_outcomes(passed=5, failed=5, skipped=1)
    assert len(validated) == 3
    assert validated[1:] == [["regularizers-match", "random-inference"], ["regularizers-match"]]
    result.stdout.fnmatch_lines(
        [
            "*ComparisonError: random-inference: activation differs: Relu (TF1), LeakyRelu (port)",
            "*finding 1 of 1: activation differs*",
            "*ComparisonError: regularizers-match: *the port has no losses attribute*",
            "*SKIPPED*the port has no losses attribute*",
        ]
    )
    assert [page.suffix for page in (pytester.path / "reports").iterdir()] == [".html"]
    assert not any("detrand/testing.py" in line for line in result.stdout.lines)


@pytest.mark.slow
def test_only_the_selected_checks_run(run, monkeypatch):
    validated = []
    validate = validate_module.validate
    monkeypatch.setattr(
        validate_module, "validate", lambda migration, **kw: validated.append(kw["checks"]) or validate(migration, **kw)
    )
    run(CHECKS, "-k", "variables-match and broken").assert_outcomes(passed=1, deselected=10)
    assert validated == [["variables-match"]]


@pytest.mark.parametrize(
    "marker", ["", "@pytest.mark.detrand_migration()", "@pytest.mark.detrand_migration(1, steps=2)"]
)
def test_a_test_of_checks_needs_its_marker(run, marker):
    result = run(f"import pytest\n{marker}\ndef test_port(assert_check):\n    assert_check()\n")
    assert "needs @pytest.mark.detrand_migration(MIGRATION)" in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
def test_a_migration_is_asserted_with_arguments_of_its_own(run, tmp_path):
    golden = tmp_path / "golden.npz"
    record_golden([BROKEN], golden)
    result = run(
        f"""
        import detrand
        from tests.test_pytest_plugin import BROKEN

        def test_some_checks(assert_migration):
            report = assert_migration(BROKEN, checks=["variables-match", "initializers-match"])
            assert [check.name for check in report.checks] == ["variables-match", "initializers-match"]

        def test_loose(assert_migration):
            tolerances = [detrand.Tolerance(rtol=0, atol=100.0)]
            assert assert_migration(BROKEN, tolerances=tolerances, golden={str(golden)!r})

        def test_golden(assert_migration):
            assert_migration(BROKEN, golden={str(golden)!r}, checks=["random-inference"])
        """
    )
    result.assert_outcomes(passed=2, failed=1)


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        (["training-steps"], r"checks must be among those of sound, but 'training-steps' was given.*Migration\(train="),
        (["random-infrence"], "'random-infrence' was given. They are: variables-created-once, variables-match"),
        ("random-inference", "checks must be a list of at least one name of a check, but 'random-inference'"),
        ([], "checks must be a list of at least one name of a check"),
    ],
)
def test_checks_that_do_not_exist_are_an_error(checks, message):
    with pytest.raises(ArgumentError, match=message):
        assert_migration(SOUND, checks=checks)


@pytest.mark.slow
def test_the_example_of_the_docs_passes(run):
    text = (Path(__file__).parent.parent / "examples" / "test_classifier.py").read_text()
    run(text, "--strict-markers").assert_outcomes(passed=6, skipped=1)  # TensorFlow skips a test of its own


@pytest.mark.slow
def test_no_framework_before_a_test_needs_one(run, pytester):
    run(
        """
        import sys

        def test_modules():
            assert not {"tensorflow", "keras", "tf_keras", "jax", "torch"} & set(sys.modules)
        """,
        way=pytester.runpytest_subprocess,
    ).assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"cannot be written to .*give a different folder\n\nbroken failed: "):
        assert_migration(BROKEN, tmp_path / "file")


def test_a_base_of_cases_that_is_no_test_stays_none():
    class Base(TestMixin):
        __test__ = False

    class Case(Base, unittest.TestCase):
        pass

    assert [each.__test__ for each in (TestMixin, Base, Case)] == [False, False, True]


@pytest.mark.slow_except("unittest")
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
