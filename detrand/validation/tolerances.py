"""The tolerances of a migration's outputs, by the paths that reports show."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from detrand.comparison.closeness import Closeness
from detrand.errors import ArgumentError, MigrationError
from detrand.steps.comparison import Tolerance, checked_tolerances


@dataclass(frozen=True)
class OutputTolerances:
    """The tolerance of every output; ``str()`` is one line.

    >>> tolerances = OutputTolerances((Tolerance(rtol=1e-4, atol=0.0, of="['logits']*"), Tolerance()))
    >>> tolerances.of("['logits'][0]").rtol
    0.0001
    >>> print(tolerances)
    ['logits']*: rtol=0.0001, atol=0; others: rtol=1e-06, atol=1e-05

    Attributes:
      tolerances: the first that covers an output counts; one of them covers everything.
    """

    tolerances: tuple[Tolerance, ...]

    @property
    def general(self) -> Tolerance:
        """The first tolerance that covers everything."""
        return next(tolerance for tolerance in self.tolerances if tolerance.of == "*")

    @property
    def specific(self) -> tuple[Tolerance, ...]:
        """The tolerances before the general one."""
        return self.tolerances[: self.tolerances.index(self.general)]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns that do not stand for everything."""
        return tuple(tolerance.of for tolerance in self.tolerances if tolerance.of != "*")

    def of(self, path: str) -> Tolerance:
        """Return the tolerance of the output at a path."""
        return next(tolerance for tolerance in self.tolerances if tolerance.covers(path))

    def closeness_of(self, path: str) -> Closeness:
        """Return the tolerance of the output at a path in the form that `compare_by_path` takes."""
        tolerance = self.of(path)
        return Closeness(tolerance.rtol, tolerance.atol, equal_nan=False)

    def check_patterns(self, migration: str, paths: Collection[str]) -> None:
        """Raise a `MigrationError` for a tolerance that covers no output.

        Args:
          migration: name of the migration.
          paths: paths of all outputs.
        """
        for pattern in self.patterns:
            if not any(map(Tolerance(of=pattern).covers, paths)):
                raise MigrationError(
                    f"tolerances of {migration}: {pattern!r} matches no output; the outputs are "
                    f"{', '.join(paths)}; * stands for any letters; tolerances of other values that training computes "
                    "belong in TrainStep(tolerances=...)"
                )

    def __str__(self) -> str:
        parts = [f"{tolerance.of}: {_in_words(tolerance)}" for tolerance in self.specific]
        general = _in_words(self.general)
        return "; ".join([*parts, f"others: {general}"]) if parts else general


def _in_words(tolerance: Tolerance) -> str:
    return f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"


def check_output_tolerances(given: Any) -> None:
    """Raise an `ArgumentError` unless the user gave ``"auto"`` or tolerances without ``until``."""
    if isinstance(given, str) and given == "auto":
        return
    for tolerance in checked_tolerances(given, "or 'auto'"):
        if tolerance.until is not None:
            raise ArgumentError(
                f"tolerances of a migration hold in every step, but {tolerance!r} was given; give it in "
                "TrainStep(tolerances=...)"
            )
