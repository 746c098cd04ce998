"""The report of a migration: its verdict, its findings, each once, and the noise floors beside the differences.

`Report` is data with its text form. `detrand.report` renders it as tables, pages and JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from detrand.arguments import and_more, plural
from detrand.comparison.metrics import OutputMetric
from detrand.comparison.values import LeafComparison
from detrand.random_op_diff import describe_uncontrolled
from detrand.seeding.streams import RandomOp
from detrand.validation.noise.floor import OutputNoise
from detrand.validation.results import (
    UNNAMED,
    Audit,
    CheckResult,
    Fault,
    Finding,
    Found,
    PairedVariable,
    explain_outputs,
    merged,
)

METRICS = "metrics of outputs (mean and worst of the vectors; they do not affect the verdict)"
_WITH_INITIAL_WEIGHTS = ("random-inference", "random-training")
_IN_INFERENCE = {"constant-weights", "random-inference"}

# The section of `detrand explain` about a fault of the kind "computation". Each other kind has a section.
_SYMPTOMS = {
    Fault.UNEXPLAINED: "unknown",
    Fault.POSSIBLE: "unknown",
    Fault.OPS: "op",
    Fault.ONLY_IN_ONE: "op",
    Fault.ACTIVATION: "op",
    Fault.VALUE: "value",
    Fault.DROPOUT: "dropout",
    Fault.MASK: "dropout",
    Fault.SOFTMAX_MASK: "mask",
    Fault.REDUCTION: "reduction",
    Fault.AXES: "axes",
    Fault.ORDER: "order",
    Fault.RANDOM_OP_OF_TF1: "random-op",
    Fault.RANDOM_OP_OF_PORT: "random-op",
    Fault.RANDOM_OP_ELSEWHERE: "random-op",
    Fault.DRAWN_SHAPE: "random-op",
    Fault.NORMALIZES_IN_TRAINING: "training-mode",
    Fault.NORMALIZES_IN_INFERENCE: "training-mode",
}


@dataclass(frozen=True)
class Report:
    """The results of validating a migration; ``str()`` is the report as text.

    As a bool it is ``.ok``, so that ``assert validate(migration)`` means what it says.

    Attributes:
      migration: name of the migration.
      checks: the result of each check, in order.
      seed: the seed of both programs.
      versions: version by package name.
      machine: the machine that ran the checks: ``system``, ``processor``, ``cores`` and ``python``.
      started: start time in ISO 8601, UTC.
      tolerance: how close outputs had to be, in words.
      audit: the hyperparameters of both programs, side by side; they do not affect the verdict.
      expected: the migration's ``expect``.
      variables: the variables of both programs, in pairs.
      uncontrolled: the draws of both programs, ``tf1`` and ``port``, that no scope controls, each line of code once;
        they do not affect the verdict.
      left_out: the checks that compare what a `GraphFile` does not hold, and why; empty if only some of the other
        checks were to run.
    """

    migration: str
    checks: tuple[CheckResult, ...]
    seed: int
    versions: dict[str, str]
    machine: dict[str, str]
    started: str
    tolerance: str
    audit: Audit
    expected: tuple[str, ...] = ()
    variables: tuple[PairedVariable, ...] = field(default=(), repr=False)
    uncontrolled: Mapping[str, tuple[RandomOp, ...]] = field(default_factory=dict, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The items of ``expect`` that accept a difference."""
        return tuple(each for check in self.checks for each in check.accepted)

    @property
    def not_needed(self) -> tuple[str, ...]:
        """The items of ``expect`` that accept nothing, because nothing of the kind differs."""
        return tuple(each for each in self.expected if each not in self.accepted)

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``"passed"``."""
        return self.verdict == "passed"

    @property
    def verdict(self) -> str:
        """``"passed"``, ``"failed"``, or ``"inconclusive"`` if a check could not compare the programs."""
        if not self.checks or not all(check.ok for check in self.checks):
            return "failed"
        return "passed" if all(check.compared for check in self.checks) else "inconclusive"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The faults of the port, each once, however many checks show it."""
        found = merged(finding for check in self.checks if not check.ok for finding in check.findings)
        found = tuple(replace(each, symptom=each.symptom or _symptom_of(each)) for each in found)
        # The programs run with TF1's initial values.
        outputs_agree = any(each.name == "random-inference" and each.ok and each.compared for each in self.checks)
        if outputs_agree:
            found = tuple(map(_confirmed_by_outputs, found))
        if any(each.fault is Fault.SWAPPED for each in found):
            computed = [
                each for each in found if each.kind == "computation" and not _IN_INFERENCE.isdisjoint(each.checks)
            ]
            # One fault may be what exchanges two variables, as a transposition does. To exchange what is computed from
            # them is the same.
            if not _is_one_known_fault(computed) or computed[0].fault is Fault.ORDER:
                found = tuple(each for each in found if each not in computed)
        # Real faults come first. Where they explain all that differs, the names of variables are no fault.
        if any(each.name in _WITH_INITIAL_WEIGHTS and explain_outputs(each.findings) for each in self.checks):
            return tuple(finding for finding in found if finding.kind != "names" and not _is_consequence(finding))
        if drawn := {_lines(each) for each in found if each.fault is Fault.DRAWN_SHAPE}:
            # Constant mode takes this for another fault, and a check that does not compare shapes for an unknown one.
            found = tuple(each for each in found if {*each.checks} != {"constant-mode"})
            found = tuple(each for each in found if each.fault is not Fault.UNEXPLAINED or _lines(each) not in drawn)
        if any(each.kind == "names" for each in found):
            found = _without_consequences_of_names(found)
        return tuple(sorted(found, key=lambda finding: finding.kind == "names"))

    def __bool__(self) -> bool:
        return self.ok

    @property
    def seconds(self) -> float:
        """How long the checks took, in seconds."""
        return sum(check.seconds for check in self.checks)

    @property
    def summary(self) -> str:
        """The verdict in one line, with the items of ``expect``."""
        accepted = [f"accepted: {', '.join(self.accepted)}"] if self.accepted else []
        not_needed = [f"not needed in expect: {', '.join(self.not_needed)}"] if self.not_needed else []
        reasons = dict.fromkeys(self.left_out.values())
        by_reason = [(reason, [name for name in self.left_out if self.left_out[name] == reason]) for reason in reasons]
        named = [f"{', '.join(names)} ({reason})" for reason, names in by_reason]
        left_out = [f"left out: {', '.join(named)}"] if named else []
        return "; ".join([self._verdict, *accepted, *not_needed, *left_out])

    @property
    def _verdict(self) -> str:
        count = len(self.checks)
        failed = [check.name for check in self.checks if not check.ok]
        if failed:
            with_finding = {name for finding in self.findings for name in finding.checks}  # others are consequences
            first = next((name for name in failed if name in with_finding), failed[0])
            return f"{len(failed)} of {count} checks failed; first: {first}"
        not_compared = [check.name for check in self.checks if not check.compared]
        if not_compared:
            return f"{count - len(not_compared)} of {count} checks passed; not compared: {', '.join(not_compared)}"
        return f"all {count} checks passed" if count > 1 else "the only check passed"

    @property
    def evidence(self) -> dict[str, str]:
        """The details of checks by name; in place of a divergence that an earlier check shows, that check is named."""
        found: dict[str, str] = {}
        shown: dict[str, str] = {}
        for check in self.checks:
            kept, again, as_in = list[str](), list[str](), list[str]()
            for paragraph in check.details.split("\n\n") if check.details else ():
                is_place = paragraph in check.divergences  # by how much the numbers differ there is less important
                first = shown.setdefault("\n".join(paragraph.splitlines()[:3]) if is_place else paragraph, check.name)
                (kept if first == check.name else again).append(paragraph)
                as_in += [first] if is_place and first != check.name else []
            start = [f"Diverges as in {and_more(dict.fromkeys(as_in), 3)}."] if as_in else again
            if start or kept:
                found[check.name] = "\n\n".join([*start, *kept])
        return found

    @property
    def sources(self) -> str:
        """The draws that no scope controls, with their lines of code; empty if there are none."""
        return describe_uncontrolled(self.uncontrolled.get("tf1", ()), self.uncontrolled.get("port", ()))

    @property
    def metrics(self) -> list[tuple[str, OutputMetric]]:
        """The metrics of outputs for which the migration asks, each with the name of the check."""
        return [(check.name, metric) for check in self.checks for metric in check.metrics]

    @property
    def footer(self) -> str:
        """The seed, the tolerance and the versions in one line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"seed {self.seed}; tolerance {self.tolerance}; {versions}"

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{self.migration}: {self.summary}"]
        lines += [
            f"  {check.verdict:<12}  {check.name:<{width}}  {check.seconds:5.1f} s  {check.summary}"
            for check in self.checks
        ]
        lines += ["", str(self.audit)]
        lines += ["", METRICS, *(f"  {name}: {metric}" for name, metric in self.metrics)] if self.metrics else []
        for name, text in self.evidence.items():
            lines += ["", name, text]
        noise = [f"  {check.name}: {row}" for check in self.checks for row in noise_rows(check)]
        if noise:
            lines += ["", "noise floor of TF1 (in parentheses: ULPs of the greatest element)", *noise]
            lines += noise_remarks(self.checks)
        lines += ["", self.sources] if self.sources else []
        lines += ["", self.footer]
        findings = self.findings
        for number, finding in enumerate(findings, 1):
            lines += ["", f"finding {number} of {len(findings)}: {finding}"]
        return "\n".join([*lines, "", f"{self.migration} {self.verdict_line}"])

    @property
    def verdict_line(self) -> str:
        """The verdict, with the number of findings."""
        if self.verdict == "failed":
            return f"failed: {plural(len(self.findings), 'finding')}; {self.summary}"
        return f"{self.verdict}: {self.summary}"


def _lines(finding: Finding) -> tuple[str, ...]:
    """Return the lines of a finding, TF1's and the port's."""
    return tuple("" if place is None else place.line for place in (finding.tf1, finding.port))


def _symptom_of(finding: Finding) -> str:
    return _SYMPTOMS.get(finding.fault, finding.kind) if finding.kind == "computation" else finding.kind


def _confirmed_by_outputs(finding: Finding) -> Finding:
    """Return a finding as confirmed by outputs that agree with TF1's initial values, if it is about initial values."""
    confirms = finding.kind == "initializers" or finding.fault in (Fault.VARIABLE_OF_PORT, Fault.TRAINABLE)
    initial = "with TF1's initial values, the outputs agree"
    return replace(finding, confirmed=initial) if confirms and not finding.confirmed else finding


def _is_one_known_fault(findings: Sequence[Finding]) -> bool:
    """Return whether there is one finding, with a known cause that explains all that differs."""
    return len(findings) == 1 and findings[0].rest_agrees and findings[0].fault not in UNNAMED


def _without_consequences_of_names(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings without the vague ones that constant weights do not show.

    With constant weights, it does not matter which variable is which. If that check shows a confirmed fault, the names
    may be unknown because of it. Then vague findings of other checks may come from wrongly paired variables.
    """
    computations = [each for each in findings if each.kind == "computation"]
    if not any("constant-weights" in each.checks and each.confirmed for each in computations):
        return tuple(findings)
    return tuple(
        each
        for each in findings
        if each.kind != "computation" or "constant-weights" in each.checks or each.fault not in _OF_NO_VALUE
    )


# Faults that name no value: they say only that ops or tensors differ.
_OF_NO_VALUE = {Fault.OTHER, Fault.MULTIPLE, Fault.UNEXPLAINED, Fault.POSSIBLE, Fault.OPS, Fault.ONLY_IN_ONE}


def _is_consequence(finding: Finding) -> bool:
    """Return whether a computation differs only where kernels or random numbers are alike, and tensors are mistaken.

    That is so in constant mode, in which kernels of one shape are equal. With constant weights, what is hidden by
    initial values shows, so only what nothing explains is left out; so it is with the weights of a checkpoint.
    """
    where = {*finding.checks}
    is_unknown = finding.fault is Fault.UNEXPLAINED and where <= {"constant-weights", "constant-mode", "checkpoint"}
    return finding.kind == "computation" and (is_unknown or where == {"constant-mode"})


def verdict_of(reports: Sequence[Report]) -> str:
    """Return the verdict on several migrations, which is the worst of theirs."""
    verdicts = {report.verdict for report in reports}
    return next((verdict for verdict in ("failed", "inconclusive") if verdict in verdicts), "passed")


def summary_of(reports: Sequence[Report]) -> str:
    """Return the verdict on several migrations in one line."""
    verdict = verdict_of(reports)
    if verdict == "passed":
        return f"all {len(reports)} migrations passed"
    count = sum(report.verdict == verdict for report in reports)
    of_all = f"{count} of {len(reports)} migrations"
    return f"{of_all} failed" if verdict == "failed" else f"{of_all} {'is' if count == 1 else 'are'} inconclusive"


@dataclass(frozen=True)
class NoiseRow:
    """An output of a check beside its noise floor.

    Attributes:
      path: path of the output.
      ok: whether the port is close enough.
      noise: how far TF1's output moves; None where numbers must be equal, as integers must.
      distance: greatest absolute difference between TF1 and the port; None where there is none to take.
    """

    path: str
    ok: bool
    noise: OutputNoise | None
    distance: float | None

    @property
    def used(self) -> float:
        """The share of the tolerance that the port uses; above 1, the port fails."""
        if self.noise is None or self.distance is None or not self.noise.tolerance:
            return 0.0 if self.ok else float("inf")
        return self.distance / self.noise.tolerance

    def cells(self) -> tuple[str, str, str]:
        """Return floor, tolerance and distance as text."""
        if self.noise is None:
            return "", "equal", "" if self.distance is None else f"{self.distance:.2g}"
        return (
            _with_ulps(self.noise.floor, self.noise.ulp) if self.noise.differences else "not known",
            _with_ulps(self.noise.tolerance, self.noise.ulp),
            "" if self.distance is None else _with_ulps(self.distance, self.noise.ulp),
        )

    def __str__(self) -> str:
        cells = zip(("floor", "tolerance", "difference"), self.cells(), strict=True)
        verdict = "passed" if self.ok else "FAILED"
        return f"{self.path} {verdict}: {', '.join(f'{name} {text}' for name, text in cells if text)}"


def _with_ulps(amount: float, ulp: float) -> str:
    return f"{amount:.2g} ({amount / ulp:.3g})" if ulp else f"{amount:.2g}"


def noise_rows(check: Found) -> list[NoiseRow]:
    """Return the outputs whose noise floor was measured, starting with the one that uses most of its tolerance.

    Training has one row for each kind of number: the value in the step that uses most.
    """
    rows = []
    if check.noise is not None and "outputs" in check.comparisons:
        rows = [_row("", leaf, check.noise.outputs) for leaf in check.comparisons["outputs"].leaves]
    for way, noise in check.training_noise.items():
        training = check.trainings[way]
        for name in training.names:
            of_name = [
                _row(f"{way}, step {step}: ", leaf, noise.steps[step])
                for step, by_name in training.steps.items()
                for leaf in (by_name[name].leaves if name in by_name and name != "learning_rate" else ())
            ]
            rows += sorted(of_name, key=lambda row: -row.used)[:1]
    passed = check.verdict == "passed"  # also where an output differs by rounding, or a training drifts
    return [replace(row, ok=row.ok or passed) for row in sorted(rows, key=lambda row: -row.used)]


def _row(before: str, leaf: LeafComparison, noise: Mapping[str, OutputNoise]) -> NoiseRow:
    distance = leaf.greatest_absolute.amount if leaf.greatest_absolute else None
    return NoiseRow(f"{before}{leaf.path}", leaf.ok, noise.get(leaf.path), distance)


def noise_remarks(checks: Sequence[CheckResult]) -> list[str]:
    """Return the remarks on how noise floors were measured, each with the checks that it belongs to."""
    found: dict[str, list[str]] = {}
    for check in checks:
        for variant, remark in check.noise_remarks.items():
            found.setdefault(f"{variant}: {remark}", []).append(check.name)
    return [f"{remark} ({', '.join(names)})" for remark, names in found.items()]
