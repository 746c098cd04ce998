"""What `run_check` makes of what a check found."""

import operator
import types

import pytest

from detrand.errors import MigrationError, MissingPackageError
from detrand.validation.checks import registry
from detrand.validation.results import Finding, Found, Place

FAILED = Found(False, "outputs differ", "the evidence")
PASSED = Found(True, "outputs agree", "what to write down")


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs a check that finds something, or calls a function, after other checks."""

    def run(name, found, *before, expect=()):
        check = registry.CHECKS[name]._replace(run=found if callable(found) else lambda runner: found)
        monkeypatch.setitem(registry.CHECKS, name, check)
        runner = types.SimpleNamespace(migration=types.SimpleNamespace(expect=expect, train=None))
        return registry.run_check(name, runner, before)

    return run


def with_findings(*findings):
    return Found(False, "outputs differ", findings=findings)


def titles(result):
    return [finding.title for finding in result.findings]


@pytest.mark.parametrize(
    ("checkpoint", "train", "last"),
    [(None, None, ["constant-mode"]), ("a", None, ["checkpoint"]), ("a", "b", ["checkpoint", "training-steps"])],
)
def test_a_check_applies_if_the_migration_has_what_it_needs(checkpoint, train, last):
    names = registry.checks_of(types.SimpleNamespace(tf1=None, checkpoint=checkpoint, train=train))
    assert names[-len(last) :] == last
    assert names[:1] == ["variables-created-once"]


def test_a_result_has_the_name_and_the_time_of_its_check(run):
    passed = run("random-training", PASSED)
    assert (passed.name, passed.ok, passed.summary) == ("random-training", True, "outputs agree")
    assert 0 <= passed.seconds < 60
    assert passed.findings == ()


def test_a_check_depends_on_earlier_checks_only():
    names = list(registry.CHECKS)
    for number, check in enumerate(registry.CHECKS.values()):
        assert set(check.depends_on) <= set(names[:number])


class TestFindings:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("variables-created-once", "variables"),
            ("variables-match", "variables"),
            ("initializers-match", "initializers"),
            ("regularizers-match", "regularizers"),
            ("constant-weights", "computation"),
            ("checkpoint", "checkpoint"),
            ("training-steps", "training"),
        ],
    )
    def test_a_check_that_fails_without_a_finding_has_one_of_its_kind(self, run, name, kind):
        assert run(name, FAILED).findings == (Finding(kind, "outputs differ", checks=(name,)),)

    def test_its_title_is_the_likeliest_cause(self, run):
        (finding,) = run("random-training", Found(False, "outputs differ", causes=("epsilon", "momentum"))).findings
        assert (finding.title, finding.others) == ("epsilon", ("momentum",))

    def test_findings_name_their_check(self, run):
        result = run("random-training", with_findings(Finding("averages", "a"), Finding("averages", "b")))
        assert [(each.title, each.checks) for each in result.findings] == [
            (each, ("random-training",)) for each in "ab"
        ]

    def test_training_does_not_repeat_kinds_of_findings_of_checks_that_it_depends_on(self, run):
        found = with_findings(Finding("averages", "its averages"), Finding("training", "its steps"))
        before = run("variables-match", with_findings(Finding("averages", "averages differ")))
        assert titles(run("training-steps", found, before)) == ["its steps"]
        assert titles(run("random-training", found, before)) == ["its averages", "its steps"]
        other = run("constant-mode", with_findings(Finding("averages", "averages differ")))
        assert titles(run("training-steps", found, other)) == ["its averages", "its steps"]

    def test_a_weight_without_a_counterpart_is_found_once(self, run):
        weight = Finding("computation", "a weight", is_of_weights=True)
        found = with_findings(weight, Finding("computation", "an op"))
        before = run("variables-match", with_findings(Finding("variables", "missing")))
        assert titles(run("random-training", found, before)) == ["an op"]
        assert titles(run("random-training", found)) == ["a weight", "an op"]

    def test_a_checkpoint_that_does_not_fit_follows_from_variables_that_differ(self, run):
        found = with_findings(Finding("checkpoint", "it does not fit"))
        assert titles(run("checkpoint", found)) == ["it does not fit"]
        assert titles(run("checkpoint", found, run("variables-match", FAILED))) == []


class TestDependencies:
    def test_a_check_names_the_failed_checks_that_it_depends_on(self, run):
        variables = run("variables-match", FAILED)
        result = run("random-training", FAILED, variables)
        assert result.summary == "after variables-match failed: outputs differ"
        assert result.details == "Depends on variables-match, which failed. Fix that first.\n\nthe evidence"
        assert result.findings == ()
        once = run("variables-created-once", FAILED)
        result = run("constant-weights", FAILED, once, variables, run("random-inference", FAILED))
        assert result.summary.startswith("after variables-created-once and variables-match failed: ")
        assert "variables-created-once and variables-match, which failed. Fix those first.\n\n" in result.details

    def test_a_check_that_passes_after_one_that_failed_has_no_details(self, run):
        result = run("random-training", PASSED, run("variables-match", FAILED))
        assert (result.ok, result.details) == (True, "")
        assert result.summary == "after variables-match failed: outputs agree"

    @pytest.mark.parametrize(("name", "found"), [("variables-match", PASSED), ("constant-weights", FAILED)])
    def test_other_checks_change_nothing(self, run, name, found):
        result = run("random-training", FAILED, run(name, found))
        assert (result.summary, result.details) == (FAILED.summary, FAILED.details)
        assert titles(result) == ["outputs differ"]


class TestErrors:
    def fails(self, runner):
        raise ValueError("wrong")

    def test_an_error_of_the_port_fails_the_check(self, run):
        result = run("random-training", self.fails)
        where = f"{__file__}:{self.fails.__code__.co_firstlineno + 1}"
        assert result.summary == result.details == f"raised ValueError: wrong ({where})"
        expected = Finding("error", "ValueError: wrong", port=Place("ValueError", where), checks=("random-training",))
        assert (result.ok, result.findings) == (False, (expected,))

    def test_an_error_without_a_line_of_the_user_has_no_place(self, run):
        (finding,) = run("random-training", operator.attrgetter("missing")).findings
        assert finding.title == "AttributeError: 'types.SimpleNamespace' object has no attribute 'missing'"
        assert finding.port is None

    def test_the_same_error_again_is_the_same_finding(self, run):
        first = run("constant-weights", self.fails)
        second = run("random-training", self.fails, run("variables-match", PASSED), first)
        assert second.summary == second.details == "raised the same error as constant-weights"
        assert [each.title for each in second.findings] == ["ValueError: wrong"]
        third = run("constant-mode", operator.attrgetter("missing"), first)
        assert third.summary.startswith("raised AttributeError")
        assert titles(third) == [third.summary.removeprefix("raised ")]

    def test_an_error_after_a_check_that_failed_has_its_own_title_and_place(self, run):
        (alone,) = run("random-training", operator.attrgetter("missing")).findings
        (after,) = run("random-training", operator.attrgetter("missing"), run("variables-match", FAILED)).findings
        assert (after.title, after.port) == (alone.title, None)

    def test_an_error_of_the_migration_is_raised(self, run):
        def fails(runner):
            raise MigrationError("no outputs")

        with pytest.raises(MigrationError, match="no outputs"):
            run("random-training", fails)


class TestExpected:
    DIFFER = Found(False, "2 initializers differ", differing=("dense/kernel", "dense/bias"))

    @pytest.mark.parametrize(
        ("expect", "accepted"),
        [
            (["initializers-match"], ["initializers-match"]),
            (["initializers-match: dense/*"], ["initializers-match: dense/*"]),
            (
                ["initializers-match:dense/kernel", "initializers-match:*/bias", "initializers-match:conv/*"],
                ["initializers-match:dense/kernel", "initializers-match:*/bias"],
            ),
        ],
    )
    def test_a_check_passes_if_all_that_differs_is_expected(self, run, expect, accepted):
        result = run("initializers-match", self.DIFFER, expect=expect)
        assert (result.ok, result.accepted, result.findings) == (True, tuple(accepted), ())
        assert result.verdict == "accepted"

    def test_a_part_is_not_enough(self, run):
        result = run("initializers-match", self.DIFFER, expect=["initializers-match:*/bias"])
        assert (result.ok, result.accepted) == (False, ("initializers-match:*/bias",))

    def test_a_check_that_names_no_variables_is_expected_as_a_whole(self, run):
        assert run("random-training", FAILED, expect=["random-training"]).ok
        assert not run("random-training", FAILED, expect=["random-training:dense"]).ok
        assert not run("random-training", FAILED, expect=["constant-mode"]).ok

    def test_an_error_is_never_expected(self, run):
        result = run("random-training", TestErrors().fails, expect=["random-training"])
        assert (result.ok, result.accepted) == (False, ())

    def test_a_check_that_passes_accepts_nothing(self, run):
        assert run("random-training", PASSED, expect=["random-training"]).accepted == ()


def test_a_check_that_needs_a_missing_package_has_compared_nothing(run):
    def needs_a_package(runner):
        raise MissingPackageError("It needs the package tensorflow")

    result = run("checkpoint", needs_a_package)
    assert (result.ok, result.compared, result.summary) == (True, False, "It needs the package tensorflow")
