"""The comparison of two recorded trainings: `compare_steps` finds the first step and value that differ.

Rounding adds up from step to step, so a `Tolerance` may cover some steps only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from detrand.arguments import plural, wrong_type
from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import MISSING, OUTPUT
from detrand.comparison.values import Comparison, LeafComparison, compare
from detrand.errors import ArgumentError
from detrand.steps.recorder import StepRecorder

_NOT_GIVEN: Any = None
_RTOL, _ATOL = 1e-6, 1e-5


@dataclass(frozen=True)
class Tolerance:
    """How close values must be: all of them, or those of some outputs, names or steps.

    >>> tolerance = Tolerance(rtol=1e-4, atol=0.0, of="['logits']*")
    >>> tolerance.covers("['logits'][0]"), tolerance.covers("['hidden']")
    (True, False)
    >>> Tolerance(of="*_loss", until=10).covers("aux_loss", step=10)
    False

    A list of tolerances is given where values are compared; the first that covers a value counts.

    Args:
      rtol: tolerance relative to TF1's value, finite and not negative; given together with ``atol``. By default 1e-6.
      atol: absolute tolerance, finite and not negative; given together with ``rtol``. By default 1e-5.
      of: what it covers; ``*`` stands for any characters. In a migration, the path of an output as reports show it,
        which covers only that output; for training steps, the name under which values are recorded, such as ``"loss"``.
      until: the first step that it no longer covers; None if it covers every step.

    Raises:
      ArgumentError: for an invalid argument.
    """

    rtol: float = _NOT_GIVEN
    atol: float = _NOT_GIVEN
    of: str = "*"
    until: int | None = None

    def __post_init__(self) -> None:
        if self.rtol is self.atol is _NOT_GIVEN:
            object.__setattr__(self, "rtol", _RTOL)
            object.__setattr__(self, "atol", _ATOL)
        elif _NOT_GIVEN in (self.rtol, self.atol):
            given = "atol" if self.rtol is _NOT_GIVEN else "rtol"
            raise ArgumentError(
                f"Tolerance got {given}={getattr(self, given)!r} only; give rtol and atol together, as in "
                "Tolerance(rtol=1e-4, atol=0.0)"
            )
        Closeness.checked(self.rtol, self.atol, False)
        if not isinstance(self.of, str) or not self.of:
            accepted = "the path of an output, such as \"['logits']\", or the name of recorded values, such as 'loss'"
            raise wrong_type("of", self.of, accepted)
        if self.until is not None and (type(self.until) is not int or self.until < 1):
            raise ArgumentError(f"until must be a step from 1, or None, but {self.until!r} was given")

    def covers(self, name: str, step: int = 0) -> bool:
        """Return whether this covers the values of a name, or the output at a path, in a step."""
        pattern = ".*".join(map(re.escape, self.of.split("*")))
        return bool(re.fullmatch(pattern, name, re.DOTALL)) and (self.until is None or step < self.until)


# The schedule of TensorFlow's guide "Debug a TensorFlow 2 migrated training pipeline": an absolute difference below
# 1e-5 in the first ten steps, 5% later. It is for losses there; gradients have elements so near 0 that they need an
# absolute tolerance in later steps, too. A learning rate has none: it may well be smaller than that.
DEFAULT_TOLERANCES = (
    Tolerance(rtol=1e-6, atol=0.0, of="learning_rate"),
    Tolerance(_RTOL, _ATOL, until=10),
    Tolerance(rtol=0.05, atol=1e-5),
)


class StepDivergence(NamedTuple):
    """A value of a step that differs.

    Attributes:
      step: number of the step.
      name: the name under which the value is recorded.
      leaf: the leaf that differs; its path begins with the name.
    """

    step: int
    name: str
    leaf: LeafComparison

    def __str__(self) -> str:
        return f"step {self.step}, {self.leaf}"


@dataclass(frozen=True)
class StepsComparison:
    """The result of `compare_steps`; ``str()`` is the report, and as a bool it is ``.ok``.

    Attributes:
      steps: step -> name -> `Comparison`, steps in ascending order, names in the order in which TF1 recorded them.
    """

    steps: Mapping[int, Mapping[str, Comparison]]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs."""
        return bool(self.steps) and self.first_divergence is None

    @property
    def first_divergence(self) -> StepDivergence | None:
        """The first value of the first step that differs, or None."""
        for step, by_name in self.steps.items():
            for name, comparison in by_name.items():
                if comparison.first_divergence is not None:
                    return StepDivergence(step, name, comparison.first_divergence)
        return None

    def __bool__(self) -> bool:
        return self.ok

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        first = self.first_divergence
        if not self.steps:
            return "nothing to compare: neither program has recorded a step"
        if first is None:
            greatest = max(greatest_absolute(by_name.values()) for by_name in self.steps.values())
            return f"all {plural(len(self.steps), 'step')} {'identical' if greatest == 0 else f'within {greatest:.2g}'}"
        differing = sum(not all(by_name.values()) for by_name in self.steps.values())
        verb = "differs" if differing == 1 else "differ"
        return f"{differing} of {plural(len(self.steps), 'step')} {verb}; first: step {first.step}, {first.leaf.path}"

    def __str__(self) -> str:
        first = self.first_divergence
        width = max(map(len, self.names), default=0)
        lines = [f"  {name:<{width}}  {self.about(name)}" for name in self.names]
        return "\n".join([self.summary, *lines, *([] if first is None else ["", str(first)])])

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which values are recorded, in the order in which they are first compared."""
        return tuple(dict.fromkeys(name for by_name in self.steps.values() for name in by_name))

    def about(self, name: str) -> str:
        """Return in one line how the values of a name compare."""
        found = {step: by_name[name] for step, by_name in self.steps.items() if name in by_name}
        differing = [step for step, comparison in found.items() if not comparison]
        amounts = {step: greatest_absolute([comparison]) for step, comparison in found.items()}
        step = max(amounts, key=amounts.__getitem__)  # the first that has the greatest difference
        greatest = amounts[step]
        if not differing:
            return "identical" if greatest == 0 else f"within {greatest:.2g} (step {step})"
        where = f"differs in {len(differing)} of {plural(len(found), 'step')}, first in step {differing[0]}"
        return where if greatest == 0 else f"{where}; max |difference| {greatest:.2g} (step {step})"


def greatest_absolute(comparisons: Iterable[Comparison]) -> float:
    """Return the greatest absolute difference in comparisons; 0 if they have none."""
    differences = [leaf.greatest_absolute for comparison in comparisons for leaf in comparison.leaves]
    return max((difference.amount or 0.0 for difference in differences if difference is not None), default=0.0)


def compare_steps(
    actual: StepRecorder, desired: StepRecorder, tolerances: Sequence[Tolerance] = (), *, check_dtype: bool = True
) -> StepsComparison:
    """Compare two recorded trainings, step by step.

    >>> from detrand import StepRecorder, compare_steps
    >>> session, port = StepRecorder(), StepRecorder()
    >>> for step in range(3):
    ...     session.record(step, learning_rate=0.1 * 0.5**step, loss=0.5**step)
    ...     port.record(step, learning_rate=0.1 * 0.5 ** max(step - 1, 0), loss=0.5**step)
    >>> print(compare_steps(port, session))
    2 of 3 steps differ; first: step 1, learning_rate
      learning_rate  differs in 2 of 3 steps, first in step 1; max |difference| 0.05 (step 1)
      loss           identical
    <BLANKLINE>
    step 1, learning_rate: 1 of 1 element differs (100 %)
      actual   float ()
      desired  float ()
      max |difference| 0.05 (allowed 5e-08): actual 0.1, desired 0.05
      max relative difference 1 (allowed 1e-06): actual 0.1, desired 0.05

    A step or a name that only one program has recorded is a difference.

    Args:
      actual: what the port recorded.
      desired: what the TF1 program recorded; names are compared in this order.
      tolerances: how close values must be; the first that covers a value counts. A value that none covers is held to
        the schedule of TensorFlow's guide: rtol 1e-6 and atol 1e-5 in steps 0 to 9, rtol 5 % and atol 1e-5 from step 10
        on, and ``learning_rate`` to rtol 1e-6 in every step.
      check_dtype: whether different dtypes are a difference.

    Returns:
      A `StepsComparison`; it is true (``.ok``) if nothing differs.

    Raises:
      ArgumentError: unless it is given two recorders and a list of tolerances.
    """
    for argument, given in (("actual", actual), ("desired", desired)):
        if not isinstance(given, StepRecorder):
            remedy = "record the steps, or load them with StepRecorder.load(path)"
            raise wrong_type(argument, given, "a StepRecorder", remedy)
    schedule = (*checked_tolerances(tolerances), *DEFAULT_TOLERANCES)
    steps: dict[int, dict[str, Comparison]] = {}
    for step in sorted({*actual.steps, *desired.steps}):
        port, tf1 = (recorder[step] if step in recorder.steps else {} for recorder in (actual, desired))
        steps[step] = {}
        for name in dict.fromkeys([*tf1, *port]):
            values, tolerance = (port.get(name, MISSING), tf1.get(name, MISSING)), tolerance_in(schedule, name, step)
            found = compare(*values, tolerance.rtol, tolerance.atol, check_dtype=check_dtype)
            steps[step][name] = named(found, name)
    return StepsComparison(steps)


def tolerance_in(schedule: Iterable[Tolerance], name: str, step: int) -> Tolerance:
    """Return the first tolerance of a schedule that covers the values of a name in a step; there must be one."""
    return next(tolerance for tolerance in schedule if tolerance.covers(name, step))


def checked_tolerances(tolerances: Any) -> Sequence[Tolerance]:
    """Return what the user gave, if it is a list or tuple of `Tolerance`."""
    if not isinstance(tolerances, (list, tuple)) or not all(isinstance(one, Tolerance) for one in tolerances):
        raise ArgumentError(
            f"tolerances must be a list of detrand.Tolerance, but {tolerances!r} was given; write "
            "tolerances=[detrand.Tolerance(rtol=1e-4, atol=1e-5)], for example"
        )
    return tolerances


def named(comparison: Comparison, name: str) -> Comparison:
    """Return a comparison whose paths begin with the name that its values are recorded under."""
    return Comparison(
        tuple(replace(leaf, path=name if leaf.path == OUTPUT else f"{name}{leaf.path}") for leaf in comparison.leaves)
    )
