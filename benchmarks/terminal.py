"""The output on the terminal: a table of each group, and how far the run is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from benchmarks.tables import Table

_WIDTH = 160  # where there is no terminal to tell


def console() -> Console:
    """Returns the console to print on."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_WIDTH)


class Shown:
    """A line that says which of some workloads runs, and what of it; on a terminal alone."""

    def __init__(self, progress: Progress, workloads: int):
        self._progress = progress
        self._task = progress.add_task("", total=workloads)

    def at(self, text: str) -> None:
        """Says what runs."""
        self._progress.update(self._task, description=text, refresh=True)

    def one_done(self) -> None:
        """Moves the bar."""
        self._progress.advance(self._task)


@contextlib.contextmanager
def showing(on: Console, workloads: int) -> Iterator[Shown]:
    """Shows how far the run is while the block runs.

    Args:
      on: the console.
      workloads: how many there are.
    """
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Without a thread that draws it again and again: its processor time would count.
    with Progress(*columns, console=on, transient=True, auto_refresh=False, disable=not on.is_terminal) as progress:
        yield Shown(progress, workloads)


def print_table(on: Console, title: str, table: Table) -> None:
    """Prints a table under a title."""
    rich = RichTable(title=f"{title.replace('``', '')}: {table.title}", title_justify="left", box=box.SIMPLE_HEAD)
    first, *others = table.headings
    rich.add_column(first, no_wrap=True)
    for heading in others:
        rich.add_column(heading, justify="right", overflow="fold")
    for line in table.lines:
        rich.add_row(*line)
    on.print(rich)
