"""A port with one fault, or several, and what a report must say about them."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import detrand


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a report must say about one fault.

    ``words`` is a regex of the layer, op or variable at fault. ``marker`` is the comment of the port's faulty lines; a
    missing call has the lines around it. ``cause`` is a regex of the cause.
    """

    words: str
    marker: str
    cause: str


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its port with the faults of ``truth`` (``migration(fault=True)``), and its sound twin."""

    name: str
    kind: str
    migration: Callable[..., detrand.Migration]
    truth: tuple[Fault, ...]

    def lines(self, fault: Fault) -> list[str]:
        """Return the port's faulty lines as reports show them: ``file.py:12``."""
        lines, start = inspect.getsourcelines(self.migration)
        file = re.split(r"[/\\]", inspect.getfile(self.migration))[-1]
        found = [
            f"{file}:{start + number}" for number, line in enumerate(lines) if line.rstrip().endswith(fault.marker)
        ]
        assert found, f"{self.name} has no line that ends in {fault.marker!r}"
        return found


def case(kind: str, words: str, cause: str) -> Callable[[Any], Any]:
    """Decorate a function ``make(fault)`` that returns a migration, with one fault on the line ``# FAULT``."""

    def decorate(make: Any) -> Any:
        make.case = Case(make.__name__, kind, make, (Fault(words, "# FAULT", cause),))
        return make

    return decorate


def cases_of(package: str) -> Iterator[Case]:
    """Yield the cases of a package's modules in the order in which they are written."""
    path = importlib.import_module(package).__path__
    for info in pkgutil.iter_modules(path):
        module = importlib.import_module(f"{package}.{info.name}")
        for make in list(vars(module).values()):
            if isinstance(found := getattr(make, "case", None), Case) and make.__module__ == module.__name__:
                yield found
