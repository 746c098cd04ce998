"""What a report shows of a noise floor: for each output, the floor, the tolerance and how far the port is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        for way, remark in check.noise.remarks.items() if check.noise else ():
            found.setdefault(f"{way}: {remark}", []).append(check.name)
    return [f"{remark} ({', '.join(names)})" for remark, names in found.items()]


def noise_rows(check: CheckResult) -> list[NoiseRow]:
    """Returns the outputs of a check whose noise floor was measured; first those that use most of their tolerance."""
    if check.noise is None or "outputs" not in check.comparisons:
        return []
    rows = []
    for leaf in check.comparisons["outputs"].leaves:
        distance = leaf.greatest_absolute.amount if leaf.greatest_absolute else None
        rows.append(NoiseRow(leaf.path, leaf.ok, check.noise.outputs.get(leaf.path), distance))
    return sorted(rows, key=lambda row: -row.used)
