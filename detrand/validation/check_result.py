"""`CheckResult`: what one check found, for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detrand.comparison.step_comparison import StepsComparison
from detrand.comparison.values import Comparison
from detrand.validation.noise_floor import NoiseFloor, TrainingNoise


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
