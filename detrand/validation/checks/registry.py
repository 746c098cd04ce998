"""`CHECKS`: the checks by name, in the order of TensorFlow's guide, and `run_check`, which runs one of them.

A check runs both programs through a `Runner` and returns what it `Found`. `run_check` makes a `CheckResult` of that.
"""

from __future__ import annotations

import fnmatch
import itertools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from detrand.checkpoints.graph_files import GraphFile
from detrand.errors import MigrationError, MissingPackageError
from detrand.seeding.callsite import describe_error, line_of_user
from detrand.validation.checks.computation import (
    as_recorded,
    checkpoint,
    compare_in,
    constant_mode,
    constant_weights,
    random_training,
)
from detrand.validation.checks.of_variables import initializers_match, regularizers_match
from detrand.validation.checks.training import training_steps
from detrand.validation.checks.variables import variables_created_once, variables_match
from detrand.validation.migration import Migration, split_expected
from detrand.validation.reference import (
    INFERENCE,
)
from detrand.validation.results import CheckResult, Fault, Finding, Found, Place
from detrand.validation.runner import Runner


class Check(NamedTuple):
    """A check: what it runs, and the checks whose faults also make it fail."""

    run: Callable[[Runner], Found]
    depends_on: tuple[str, ...] = ()


# A check that calls a port several times needs variables that last, and wrong variables or wrong outputs have
# consequences in every later check.
CHECKS = {
    "tf1-as-recorded": Check(as_recorded),
    "variables-created-once": Check(variables_created_once),
    "variables-match": Check(variables_match),
    "initializers-match": Check(initializers_match, ("variables-match",)),
    "regularizers-match": Check(regularizers_match, ("variables-match",)),
    "constant-weights": Check(constant_weights, ("variables-created-once", "variables-match")),
    "random-inference": Check(partial(compare_in, config=INFERENCE), ("variables-match",)),
    "random-training": Check(random_training, ("variables-match",)),
    "constant-mode": Check(constant_mode, ("variables-match",)),
    "checkpoint": Check(checkpoint, ("variables-created-once", "variables-match")),
    "training-steps": Check(
        training_steps, ("variables-created-once", "variables-match", "regularizers-match", "random-training")
    ),
}


def checks_of(migration: Migration) -> list[str]:
    """Return the names of the checks that apply to a migration, in order."""
    left_out = {"checkpoint": migration.checkpoint is None, "training-steps": migration.train is None}
    file = migration.tf1
    left_out["tf1-as-recorded"] = not isinstance(file, GraphFile) or file.original is None
    left_out |= dict.fromkeys(left_out_of_graph_file(migration), True)
    return [name for name in CHECKS if not left_out.get(name)]


def left_out_of_graph_file(migration: Migration) -> dict[str, str]:
    """Return the checks for which a graph that is a file does not have what they compare, and why."""
    file = migration.tf1
    if not isinstance(file, GraphFile):
        return {}
    left_out: dict[str, str] = {}
    if not file.takes_training and migration.train is None:
        left_out |= dict.fromkeys(("random-training", "constant-mode"), "the graph has no placeholder for training")
    if file.is_frozen:
        left_out |= dict.fromkeys(("initializers-match", "regularizers-match"), "a frozen graph has none")
    if not file.has_variables:
        left_out |= dict.fromkeys(("variables-match", "constant-weights"), "the graph has no variables")
    return left_out


def run_check(name: str, runner: Runner, before: Sequence[CheckResult] = ()) -> CheckResult:
    """Run one check of `CHECKS`; its result names the failed checks before it that it depends on."""
    started = time.perf_counter()
    found = _with_dependencies(name, _found(name, runner), [check for check in before if not check.ok])
    found = _with_expected(name, found, runner.migration.expect)
    findings = tuple(replace(finding, checks=(name,)) for finding in _findings(name, found, before))
    found = replace(found, findings=findings)
    return CheckResult(name=name, seconds=time.perf_counter() - started, **vars(found))


def not_run(name: str, why: str) -> CheckResult:
    """Return the result of a check that has not been run: it has compared nothing."""
    return CheckResult(name=name, seconds=0.0, ok=True, summary=why, compared=False)


# What is different in a port that cannot be given all of TF1's weights.
_OTHER_WEIGHTS = {Fault.SHAPE, Fault.VARIABLE_OF_TF1}
# What the findings of a check are about.
_KINDS = {
    **{"variables-created-once": "variables", "variables-match": "variables", "initializers-match": "initializers"},
    **{"regularizers-match": "regularizers", "checkpoint": "checkpoint", "training-steps": "training"},
}


def _findings(name: str, found: Found, before: Sequence[CheckResult]) -> tuple[Finding, ...]:
    """Return the findings of a check; one of its own for a check that fails and does not say what it found."""
    if found.ok:
        return ()
    roots = [check for check in before if not check.ok and check.name in CHECKS[name].depends_on]
    of_creation = [each for check in before for each in check.findings if each.fault is Fault.CREATION]
    if found.raised is not None:
        made_at = {place.line for each in of_creation for place in (each.port, *each.more) if place is not None}
        if found.raised[1] in made_at:
            return ()  # a tf.function refuses to make variables in each call
        same = [check for check in before if check.raised == found.raised]
        return same[0].findings if same else found.findings
    if found.findings:
        known = {finding.kind for check in roots for finding in check.findings}
        if any(check.name == "random-training" for check in roots):
            known.add("computation")  # whatever explains its outputs explains those of a training step
        titles = {finding.title for check in roots for finding in check.findings}
        of_weights = "variables" in known  # without a counterpart, a weight differs, and what is computed from it
        findings = [
            each
            for each in found.findings
            if name != "training-steps" or each.kind not in known or each.title in titles
        ]
        findings = [each for each in findings if not (of_weights and each.is_of_weights)]
        findings = [each for each in findings if not (roots and each.kind == "checkpoint")]
        # A port that makes variables in each call computes with other numbers than those that it is given.
        of_other_weights = any(each.fault in _OTHER_WEIGHTS for check in roots for each in check.findings)
        consequences = {Fault.UNEXPLAINED: of_creation or of_other_weights, Fault.POSSIBLE: of_other_weights}
        return tuple(each for each in findings if not consequences.get(each.fault))
    if roots:
        return ()  # a consequence of what those checks found
    title, *others = found.causes or (found.summary,)
    return (Finding(_KINDS.get(name, "computation"), title, others=tuple(others)),)


def _found(name: str, runner: Runner) -> Found:
    """Return what a check found; any exception fails it but a `MigrationError`: then there is nothing to check."""
    try:
        return CHECKS[name].run(runner)
    except MigrationError:
        raise
    except MissingPackageError as error:
        return Found(True, str(error), compared=False)
    except Exception as error:
        described, where = describe_error(error), line_of_user(error)
        if not where and name == "training-steps":
            where = _line_of_loss(error, runner.migration)
        place = Place(type(error).__name__, where) if where else None
        finding = Finding("error", described.replace(f" ({where})", ""), port=place)
        summary = f"raised {described}"
        return Found(False, summary, summary, findings=(finding,), raised=(type(error), where or summary))


def _line_of_loss(error: BaseException, migration: Migration) -> str:
    """Return the line that makes a framework's loss which an exception has passed; empty if it has passed none."""
    if migration.train is None:
        return ""
    loss = migration.train.port_loss
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    code = getattr(loss, "__code__", None)
    is_passed = any(frame.f_locals.get("self") is loss or frame.f_code is code for frame in frames)
    return migration.train.line_of_loss("port") if is_passed else ""


def _with_dependencies(name: str, found: Found, failed: Sequence[CheckResult]) -> Found:
    """Return what a check found with a note on the failed checks that it depends on."""
    for earlier in failed:
        if found.raised is not None and found.raised == earlier.raised:
            summary = f"raised the same error as {earlier.name}"
            return replace(found, summary=summary, details=summary)
    roots = [earlier.name for earlier in failed if earlier.name in CHECKS[name].depends_on]
    if not roots:
        return found
    them, first = " and ".join(roots), "that" if len(roots) == 1 else "those"
    details = "" if found.ok else f"Depends on {them}, which failed. Fix {first} first.\n\n{found.details}"
    return replace(found, summary=f"after {them} failed: {found.summary}", details=details)


def _with_expected(name: str, found: Found, expected: Sequence[str]) -> Found:
    """Return what a check found, accepted if all that fails is expected; an exception never is."""
    patterns = {each: pattern for each in expected for check, pattern in [split_expected(each)] if check == name}
    if found.ok or found.raised is not None:
        return found
    differing = found.differing or ("",)
    accepted = {each: fnmatch.filter(differing, pattern or "*") for each, pattern in patterns.items()}
    accepted = {each: names for each, names in accepted.items() if names}
    ok = set(itertools.chain(*accepted.values())) == set(differing)
    return replace(found, ok=ok, accepted=tuple(accepted))
