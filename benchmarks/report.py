"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf
from rich import box
from rich.console import Console
from rich.table import Table

import detrand
from benchmarks.timing import Spread


@dataclass(frozen=True)
class Row:
    """One case of a workload.

    Attributes:
      case: its name.
      seconds: processor time of a call.
      ratio: to the baseline's.
      growth_bytes: how much the process grew over the workload's calls; None if that was not measured.
      ops: how many ops the graph has that a call executes; None if they were not counted.
    """

    case: str
    seconds: Spread
    ratio: Spread
    growth_bytes: int | None
    ops: int | None


@dataclass(frozen=True)
class Result:
    """All cases of a workload, the baseline first.

    Attributes:
      workload: its name.
      title: what the table calls it.
      rows: the cases.
      memory_calls: over how many calls the growth was measured.
    """

    workload: str
    title: str
    rows: tuple[Row, ...]
    memory_calls: int


def as_json(results: list[Result], quick: bool) -> dict[str, Any]:
    """Returns the results, and what they were measured with, as nested dicts and lists."""
    return {
        "quick": quick,
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "detrand": detrand.__version__,
        },
        "results": [asdict(result) for result in results],
    }


def print_table(console: Console, result: Result) -> None:
    """Prints one workload's table: medians, with the quartiles in brackets."""
    table = Table(title=result.title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    table.add_column("CPU microseconds a call", justify="right", no_wrap=True)
    table.add_column("ratio to the first case", justify="right", no_wrap=True)
    if result.memory_calls:
        table.add_column(f"growth over {result.memory_calls:,} calls", justify="right", no_wrap=True)
    if any(row.ops is not None for row in result.rows):
        table.add_column("ops in the graph", justify="right", no_wrap=True)
    for row in result.rows:
        cells = [row.case, _cell(row.seconds, 1e6, 1), _cell(row.ratio, 1, 2)]
        if row.growth_bytes is not None:
            cells.append(f"{row.growth_bytes / 1e6:.1f} MB")
        if row.ops is not None:
            cells.append(f"{row.ops:,}")
        table.add_row(*cells)
    console.print(table)


def _cell(spread: Spread, scale: float, digits: int) -> str:
    lower, median, upper = (
        f"{value * scale:,.{digits}f}" for value in (spread.lower_quartile, spread.median, spread.upper_quartile)
    )
    return f"{median} ({lower} to {upper})"
