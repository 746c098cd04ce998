"""How close each of the port's outputs must be to TF1's: what a `Migration` says, by the paths that reports show."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from detrand.comparison.closeness import Closeness
from detrand.errors import ArgumentError, MigrationError
from detrand.steps.comparison import Tolerance


@dataclass(frozen=True)
class OutputTolerances:
    """The tolerance of every output; ``str()`` tells it in a line.

    >>> tolerances = OutputTolerances(Tolerance(), {"['logits']*": Tolerance(rtol=1e-4, atol=0.0)})
    >>> tolerances.of("['logits'][0]").rtol
    0.0001
    >>> print(tolerances)
    ['logits']*: rtol=0.0001, atol=0; others: rtol=1e-06, atol=1e-05

    Attributes:
      otherwise: holds for what no pattern matches, and for everything that is no output.
      by_pattern: tolerance by a pattern of paths, in which ``*`` stands for any letters; the first that matches
        counts.
    """

    otherwise: Tolerance
    by_pattern: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, path: str) -> Tolerance:
        """Returns the tolerance of the output at a path."""
        return next((one for pattern, one in self.by_pattern.items() if _matches(path, pattern)), self.otherwise)

    def closeness_of(self, path: str) -> Closeness:
        """Returns it in the form that `compare_by_path` asks for."""
        tolerance = self.of(path)
        return Closeness(tolerance.rtol, tolerance.atol, equal_nan=False)

    def check_patterns(self, migration: str, paths: Collection[str]) -> None:
        """Raises a `MigrationError` for a pattern that matches no output.

        Args:
          migration: name of the migration.
          paths: those of all outputs.
        """
        for pattern in self.by_pattern:
            if not any(_matches(path, pattern) for path in paths):
                raise MigrationError(
                    f"tolerance of {migration} has a pattern that matches no output: {pattern!r}; the outputs are "
                    f"{', '.join(paths)}; * stands for any letters"
                )

    def __str__(self) -> str:
        parts = [f"{pattern}: {_in_words(tolerance)}" for pattern, tolerance in self.by_pattern.items()]
        return "; ".join([*parts, f"others: {_in_words(self.otherwise)}"] if parts else [_in_words(self.otherwise)])


def _matches(path: str, pattern: str) -> bool:
    # To fnmatch, brackets hold a set of letters; in a path they hold a key.
    return fnmatch.fnmatchcase(path, pattern.replace("[", "[[]"))


def _in_words(tolerance: Tolerance) -> str:
    return f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"


def checked_tolerance(given: Any) -> None:
    """Checks what the user gave as the tolerance of a migration.

    Raises:
      ArgumentError: if it is no `Tolerance`, no mapping of patterns to some, and not ``"auto"``.
    """
    if isinstance(given, str) and given == "auto":
        return
    by_pattern = given if isinstance(given, Mapping) else {"*": given}
    for pattern, tolerance in by_pattern.items():
        if not isinstance(tolerance, Tolerance) or not isinstance(pattern, str) or not pattern:
            raise ArgumentError(
                "tolerance must be a detrand.Tolerance, a dict of one for each pattern of outputs, or 'auto', but "
                f"{given!r} was given; write " + "tolerance={\"['logits']*\": detrand.Tolerance(rtol=1e-4)}, say"
            )
        if (tolerance.of, tolerance.until) != ("*", None):
            raise ArgumentError(
                f"tolerance holds {tolerance!r}, but of and until are for training steps; name outputs by a pattern, "
                "as in tolerance={\"['logits']*\": detrand.Tolerance(rtol=1e-4)}"
            )
