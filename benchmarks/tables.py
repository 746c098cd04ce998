"""The results as cells of text, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.cases import Group
from benchmarks.results import Result, Row
from benchmarks.timing import Spread


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
      title: what it shows.
      headings: of the columns.
      lines: cells, a tuple for each line.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def of_group(group: Group, results: Sequence[Result], clock: str) -> list[Table]:
    """Returns a table of the group's times, and of what else was measured in it.

    Args:
      group: the group.
      results: those of its workloads that ran.
      clock: what kind of time was measured.
    """
    cases = [row.case for row in results[0].rows]
    baseline, *others = cases
    lines = tuple(
        (_program(result), _time(result.rows[0].seconds.median), *(_ratio(row.ratio) for row in result.rows))
        for result in results
    )
    times = Table(
        f"{clock} of a call, and ratios to it: medians, with the quartiles in brackets",
        ("program", baseline, "ratio to itself", *others),
        lines,
    )
    more = [
        _more("growth of the process, on the CPU", cases, results, _growth),
        _more("ops in the graph", cases, results, lambda row: None if row.ops is None else f"{row.ops:,}"),
    ]
    return [times, *(table for table in more if table.lines)]


def _more(title: str, cases: list[str], results: Sequence[Result], cell: Callable[[Row], str | None]) -> Table:
    lines = [(_program(result), *(cell(row) or "" for row in result.rows)) for result in results]
    return Table(title, ("program", *cases), tuple(line for line in lines if any(line[1:])))


def _program(result: Result) -> str:
    return result.workload.rpartition("/")[2]


def _time(seconds: float) -> str:
    unit, scale = ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    return f"{_three_digits(seconds * scale)} {unit}"


def _ratio(ratio: Spread) -> str:
    lower, median, upper = (
        _three_digits(number) for number in (ratio.lower_quartile, ratio.median, ratio.upper_quartile)
    )
    return f"{median} ({lower}-{upper})"


def _three_digits(number: float) -> str:
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


def _growth(row: Row) -> str | None:
    if row.growth_bytes is None:
        return None
    return f"{row.growth_bytes / 1e6:.1f} MB in {row.memory_calls:,} calls"
