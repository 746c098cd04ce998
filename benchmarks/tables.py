"""Tables of results as cells of text, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.cases import Group
from benchmarks.results import Result, Row, Run
from benchmarks.timing import Spread


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
      title: the title.
      headings: the headings of the columns.
      lines: the cells, a tuple for each line.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def of_group(group: Group, results: Sequence[Result], clock: str) -> list[Table]:
    """Return the table of a group's times, and a table for each other measurement of its workloads that ran."""
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


def ratios(groups: Sequence[Group], run: Run) -> Table:
    """Return a table with a line for each group that ran: its last program, and where detrand is slowest."""
    headings = ("measured", "baseline", "detrand", "official", "detrand at most")
    lines = []
    for group in groups:
        results = ran_in(group, run)
        if results:
            baseline, *others = results[-1].rows
            slowest = max(results, key=lambda result: last_ratio(result.rows, "detrand"))
            lines.append(
                (
                    f"{group.title}: {_program(results[-1])}",
                    f"{baseline.case}, {_time(baseline.seconds.median)}",
                    three_digits(last_ratio(others, "detrand")),
                    three_digits(official) if (official := last_ratio(others, "official")) else "",
                    f"{three_digits(last_ratio(slowest.rows, 'detrand'))} ({_program(slowest)})",
                )
            )
    return Table("", headings, tuple(lines))


def growth(groups: Sequence[Group], run: Run) -> Table:
    """Return a table with a line for each case whose growth in memory was measured."""
    lines = [
        (_program(result), row.case, cell)
        for group in groups
        for result in ran_in(group, run)
        for row in result.rows
        if (cell := _growth(row))
    ]
    return Table("", ("program", "case", "growth of the process"), tuple(lines))


def ran_in(group: Group, run: Run) -> list[Result]:
    """Return the results of the group's workloads that ran."""
    return [
        result for result in run.results if result.workload.rpartition("/")[0] == group.name and result.error is None
    ]


def last_ratio(rows: Sequence[Row], name: str) -> float:
    """Return the median ratio of the last case whose name starts so; 0 if there is none."""
    return next((row.ratio.median for row in reversed(rows) if row.case.startswith(name)), 0.0)


def _more(title: str, cases: list[str], results: Sequence[Result], cell: Callable[[Row], str | None]) -> Table:
    lines = [(_program(result), *(cell(row) or "" for row in result.rows)) for result in results]
    return Table(title, ("program", *cases), tuple(line for line in lines if any(line[1:])))


def _program(result: Result) -> str:
    return result.workload.rpartition("/")[2]


def _time(seconds: float) -> str:
    unit, scale = ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    return f"{three_digits(seconds * scale)} {unit}"


def _ratio(ratio: Spread) -> str:
    lower, median, upper = (
        three_digits(number) for number in (ratio.lower_quartile, ratio.median, ratio.upper_quartile)
    )
    return f"{median} ({lower}-{upper})"


def three_digits(number: float) -> str:
    """Return a number with three significant digits, and at most two after the point."""
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


def _growth(row: Row) -> str | None:
    if row.growth_bytes is None:
        return None
    return f"{row.growth_bytes / 1e6:.1f} MB in {row.memory_calls:,} calls"
