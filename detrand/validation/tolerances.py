"""The tolerances of a migration's outputs, by the paths that reports show."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from detrand.comparison.closeness import Closeness
from detrand.comparison.values import leaves_by_path
from detrand.errors import MigrationError
from detrand.steps.comparison import Tolerance


@dataclass(frozen=True)
class OutputTolerances:
    """The tolerance of every output; ``str()`` is one line.

    >>> tolerances = OutputTolerances((Tolerance(rtol=1e-4, atol=0.0, of="['logits']*"), Tolerance()))
    >>> tolerances.closeness({"logits": [0.5]})("['logits'][0]").rtol
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

    def closeness(self, outputs: Any, measured: Callable[[str], Closeness] | None = None) -> Callable[[str], Closeness]:
        """Return how close each output of a structure must be, by its path.

        The path of an output covers only that output, even if it has a ``*`` in the key of a dict. If given,
        ``measured`` returns how close outputs must be that only the last tolerance covers.
        """
        paths = leaves_by_path(outputs).keys()

        def closeness_of(path: str) -> Closeness:
            tolerance = next(
                one for one in self.tolerances if (one.of == path if one.of in paths else one.covers(path))
            )
            if measured is not None and tolerance is self.tolerances[-1]:
                return measured(path)
            return Closeness(tolerance.rtol, tolerance.atol, equal_nan=False)

        return closeness_of

    def check_patterns(self, migration: str, paths: Collection[str]) -> None:
        """Raise a `MigrationError` that names a migration for a tolerance that covers none of its outputs' paths."""
        for tolerance in self.tolerances:
            if not any(map(tolerance.covers, paths)):
                raise MigrationError(
                    f"tolerances of {migration}: {tolerance.of!r} matches no output; the outputs are "
                    f"{', '.join(paths)}; * stands for any characters; tolerances of other values that training "
                    "computes belong in TrainStep(tolerances=...)"
                )

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, general: str = "") -> str:
        """Return the tolerances in one line, with words in place of the general one if given."""
        specific = self.tolerances[: self.tolerances.index(self.general)]
        parts = [f"{tolerance.of}: {_in_words(tolerance)}" for tolerance in specific]
        general = general or _in_words(self.general)
        return "; ".join([*parts, f"others: {general}"]) if parts else general


def _in_words(tolerance: Tolerance) -> str:
    return f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"
