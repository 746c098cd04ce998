"""`Finding`: one fault of a port, however many checks show it, with both places and what to do.

Each check says what it found; `merged` makes one finding of what several checks say of the same fault.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from detrand.arguments import and_more, plural

_MOST_PLACES = 4


@dataclass(frozen=True)
class Place:
    """Where a program differs from the other one.

    Attributes:
      op: the op or the variable.
      line: ``file:line`` of the code; empty if it is not known.
      value: the value there, as text; empty if there is none to show.
    """

    op: str
    line: str = ""
    value: str = ""

    @property
    def source(self) -> str:
        """The line of source code; empty if the file cannot be read."""
        filename, _, number = self.line.partition(", called at ")[0].rpartition(":")
        return linecache.getline(filename, int(number)).strip() if number.isdigit() else ""

    def __str__(self) -> str:
        return f"{self.op} at {self.line}" if self.line else self.op


@dataclass(frozen=True)
class Finding:
    """A fault of a port; ``str()`` describes it.

    Attributes:
      kind: what differs: ``"computation"``, ``"variables"``, ``"initializers"``, ``"regularizers"``, ``"training"``,
        ``"checkpoint"`` or ``"error"``.
      title: the fault in one line, with both values.
      tf1: its place in TF1; None where TF1 has nothing of the kind.
      port: its place in the port; None where the port has nothing of the kind.
      checks: the names of the checks that show it.
      confirmed: how it was confirmed; empty if it is only possible.
      others: what else may be the cause, the likeliest first.
      remedy: what to do; empty if that is not known.
      more: further places in the port of the same fault.
      count: at how many places it is.
    """

    kind: str
    title: str
    tf1: Place | None = None
    port: Place | None = None
    checks: tuple[str, ...] = ()
    confirmed: str = ""
    others: tuple[str, ...] = ()
    remedy: str = ""
    more: tuple[Place, ...] = ()
    count: int = 1

    def __str__(self) -> str:
        lines = [f"{self.title} (at {plural(self.count, 'place')})" if self.count > 1 else self.title]
        for who, place in (("TF1", self.tf1), ("port", self.port)):
            if place is None:
                continue
            value = f": {place.value}" if place.value else ""
            lines.append(f"  {who:<4}  {place}{value}")
            if place.source:
                lines.append(f"        > {place.source}")
        if self.more:
            where = [os.path.basename(place.line) if place.line else place.op for place in self.more]
            lines.append(f"  also at {and_more(dict.fromkeys(where), _MOST_PLACES)}")
        if self.confirmed:
            lines.append(f"  confirmed: {self.confirmed}")
        lines += [f"  possible: {other}" for other in self.others]
        if self.remedy:
            lines.append(f"  what to do: {self.remedy}")
        if self.checks:
            lines.append(f"  shown by {', '.join(self.checks)}")
        return "\n".join(lines)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with one for each fault.

    Checks that show the same fault at the same lines tell it once. So does one that shows it at several lines.
    """
    by_fault: dict[tuple[str, str], Finding] = {}
    for each in findings:
        key = each.kind, each.title
        if key not in by_fault:
            by_fault[key] = each
            continue
        first = by_fault[key]
        known = {_lines(place) for place in (first.port, first.tf1, *first.more) if place is not None}
        place = each.port or each.tf1
        is_new = place is not None and _lines(place) not in known and each.checks[:1] == first.checks[:1]
        by_fault[key] = replace(
            first,
            checks=tuple(dict.fromkeys([*first.checks, *each.checks])),
            confirmed=first.confirmed or each.confirmed,
            others=tuple(dict.fromkeys([*first.others, *each.others])),
            more=(*first.more, place) if is_new and place is not None else first.more,
            count=first.count + each.count if is_new else max(first.count, each.count),
        )
    return tuple(by_fault.values())


def _lines(place: Place) -> str:
    return f"{place.op} {place.line}"
