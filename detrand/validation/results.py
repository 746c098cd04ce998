"""What `detrand.validate` returns, and the forms in which people and programs read it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detrand.comparison.values import Comparison, LeafComparison
from detrand.steps.comparison import StepsComparison
from detrand.validation.diagnosis.audit import Audit
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, TrainingNoise


@dataclass(frozen=True)
class Report:
    """The verdict on a migration; ``str()`` is the report as text.

    As a bool it is ``.ok``, so that ``assert validate(migration)`` means what it says.

    Attributes:
      migration: name of the migration.
      checks: what each check found, in order.
      seed: the seed of both programs.
      versions: version by package name.
      machine: what it ran on: ``system``, ``processor``, ``cores`` and ``python``.
      started: when, in ISO 8601, UTC.
      tolerance: how close outputs had to be, in words.
      audit: what is set in both programs, side by side; it is no part of the verdict.
    """

    migration: str
    checks: tuple[CheckResult, ...]
    seed: int
    versions: dict[str, str]
    machine: dict[str, str]
    started: str
    tolerance: str
    audit: Audit

    @property
    def ok(self) -> bool:
        """Whether there were checks and none failed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def seconds(self) -> float:
        """How long the checks took, in seconds."""
        return sum(check.seconds for check in self.checks)

    def __str__(self) -> str:
        from rich.console import Console

        from detrand.report.text import render

        text = io.StringIO()
        render(self, Console(file=text, width=120, no_color=True, force_terminal=False))
        return text.getvalue()


def verdict(report: Report) -> str:
    """Returns the verdict in a line."""
    failed = [check.name for check in report.checks if not check.ok]
    if failed:
        return f"{len(failed)} of {len(report.checks)} checks failed, first {failed[0]}"
    left_out = [check.name for check in report.checks if not check.compared]
    if left_out:
        passed = len(report.checks) - len(left_out)
        return f"{passed} of {len(report.checks)} checks passed, not compared: {', '.join(left_out)}"
    return f"all {len(report.checks)} checks passed"


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
      name: name of the check.
      ok: whether it did not fail.
      summary: one line for a table.
      details: what a person needs to find the fault; empty if it passed.
      causes: what usually causes such a difference, the likeliest first.
      comparisons: what was compared numerically, by name.
      trainings: what was compared step by step: how the port was trained -> comparison.
      raised: type of the exception that ended it, and line of user code or else message; None if none did.
      noise: how far TF1's outputs move when they are computed in other ways; None if that was not measured.
      training_noise: how far the numbers of TF1's training do, by how the port was trained; empty likewise.
      computed: what each program computed, by the run, ``tf1`` or ``port``, that event files have of it: step -> name
        -> values. A report keeps none of it.
      seconds: how long it took, in seconds.
      compared: whether it could compare the programs; one that could not has not failed, and shows nothing.
    """

    name: str
    ok: bool
    summary: str
    details: str = ""
    causes: tuple[str, ...] = ()
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    trainings: dict[str, StepsComparison] = field(default_factory=dict)
    raised: tuple[type[Exception], str] | None = None
    noise: NoiseFloor | None = None
    training_noise: Mapping[str, TrainingNoise] = field(default_factory=dict)
    computed: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict, repr=False)
    seconds: float = 0.0
    compared: bool = True

    @property
    def noise_remarks(self) -> dict[str, str]:
        """What there is to say of the ways of computing; empty where no noise was measured."""
        remarks = [{} if self.noise is None else self.noise.remarks]
        remarks += [noise.remarks for noise in self.training_noise.values()]
        return {way: remark for of_noise in remarks for way, remark in of_noise.items()}

    @property
    def passed(self) -> bool:
        """Whether it has compared the programs, and found no fault."""
        return self.ok and self.compared


WHAT_IS_SHOWN = (
    "How far TF1's outputs move when the same numbers are computed in other ways; the tolerance that follows; and how "
    "far the port is off. In brackets, in units in the last place (ULPs) of the output's greatest element."
)


@dataclass(frozen=True)
class NoiseRow:
    """An output of a check.

    Attributes:
      path: of the output.
      ok: whether the port is close enough.
      noise: how far TF1's output moves; None where numbers must be equal, as integers must.
      distance: the greatest absolute difference of the port; None where there is none to take.
    """

    path: str
    ok: bool
    noise: OutputNoise | None
    distance: float | None

    @property
    def used(self) -> float:
        """How much of the tolerance the port uses; above 1, it fails."""
        if self.noise is None or self.distance is None or not self.noise.tolerance:
            return 0.0 if self.ok else float("inf")
        return self.distance / self.noise.tolerance

    def cells(self) -> tuple[str, str, str]:
        """Returns floor, tolerance and distance as text."""
        if self.noise is None:
            return "", "equal", "" if self.distance is None else f"{self.distance:.2g}"
        return (
            _with_ulps(self.noise.floor, self.noise.ulp) if self.noise.differences else "not known",
            _with_ulps(self.noise.tolerance, self.noise.ulp),
            "" if self.distance is None else _with_ulps(self.distance, self.noise.ulp),
        )


def _with_ulps(amount: float, ulp: float) -> str:
    return f"{amount:.2g} ({amount / ulp:.3g})" if ulp else f"{amount:.2g}"


def remarks_of(checks: Sequence[CheckResult]) -> list[str]:
    """Returns what there is to say of the ways in which noise floors were measured, and in which checks."""
    found: dict[str, list[str]] = {}
    for check in checks:
        for way, remark in check.noise_remarks.items():
            found.setdefault(f"{way}: {remark}", []).append(check.name)
    return [f"{remark} ({', '.join(names)})" for remark, names in found.items()]


def noise_rows(check: CheckResult) -> list[NoiseRow]:
    """Returns the outputs of a check whose noise floor was measured; first those that use most of their tolerance.

    Of training there is, for each kind of number, the value in the step that uses most.
    """
    rows = []
    if check.noise is not None and "outputs" in check.comparisons:
        rows = [_row("", leaf, check.noise.outputs) for leaf in check.comparisons["outputs"].leaves]
    for way, noise in check.training_noise.items():
        steps = check.trainings[way].steps
        for name in check.trainings[way].names:
            of_name = [
                _row(f"{way}, step {step}: ", leaf, noise.steps[step])
                for step, by_name in steps.items()
                for leaf in (by_name[name].leaves if name in by_name and name != "learning_rate" else ())
            ]
            rows += sorted(of_name, key=lambda row: -row.used)[:1]
    return sorted(rows, key=lambda row: -row.used)


def _row(before: str, leaf: LeafComparison, noise: Mapping[str, OutputNoise]) -> NoiseRow:
    distance = leaf.greatest_absolute.amount if leaf.greatest_absolute else None
    return NoiseRow(f"{before}{leaf.path}", leaf.ok, noise.get(leaf.path), distance)
