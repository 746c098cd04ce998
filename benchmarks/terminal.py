"""The output on the terminal: a table of each group, and how far the run is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from benchmarks.tables import Table

_WIDTH = 160  # if the output is not a terminal


def console() -> Console:
    """Return the console to print on."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_WIDTH)


class Shown:
    """The progress line with the workload that runs; only on a terminal."""

    def __init__(self, progress: Progress, workloads: int):
        self._progress = progress
        self._task = progress.add_task("", total=workloads)

    def at(self, text: str) -> None:
        """Show what runs."""
        self._progress.update(self._task, description=text, refresh=True)

    def one_done(self) -> None:
        """Move the bar."""
        self._progress.advance(self._task)


@contextlib.contextmanager
def showing(on: Console, workloads: int) -> Iterator[Shown]:
    """Show the progress of the run while the block runs."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Without the refreshing thread, whose processor time would be measured.
    with Progress(*columns, console=on, transient=True, auto_refresh=False, disable=not on.is_terminal) as progress:
        yield Shown(progress, workloads)


def print_table(on: Console, title: str, table: Table) -> None:
    """Print a table under a title."""
    rich = RichTable(title=f"{title.replace('``', '')}: {table.title}", title_justify="left", box=box.SIMPLE_HEAD)
    first, *others = table.headings
    rich.add_column(first, no_wrap=True)
    for heading in others:
        rich.add_column(heading, justify="right", overflow="fold")
    for line in table.lines:
        rich.add_row(*line)
    on.print(rich)
