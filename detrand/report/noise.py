"""What a report shows of a noise floor: for each output, the floor, the tolerance and how far the port is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detrand.comparison.values import LeafComparison
from detrand.validation.check_result import CheckResult
from detrand.validation.noise_floor import OutputNoise

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
