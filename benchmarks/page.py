"""The page of the documentation that shows a run."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.cases import Group
from benchmarks.results import Run
from benchmarks.tables import Table

_TITLE = "Benchmarks"
_INTRODUCTION = """\
What seeding, the shim and the recorder cost. ``python -m benchmarks`` measures it, and ``--rst`` writes this page.

- *plain TensorFlow* is not seeded, and runs outside of every scope;
- *tf.random.set_seed* is TensorFlow's global seed;
- *official* is TensorFlow's ``DeterministicRandomTestTool``, in either mode, or its ``track_tf1_style_variables``, as
  the package tf-keras still has them;
- *detrand* is this library's tool, in either mode, or its shim.

These take turns in one process, a short block of calls each, and every block is right beside a block of the first of
them, the baseline. The ratio is taken within such a pair: 1.10 is a tenth slower. The tables have the median of all
pairs, and the quartiles in brackets. How far such numbers can be trusted shows in the baseline's ratio to itself."""
_QUICK = """\
.. warning::

    This run was made with ``--quick``. It shows that everything works, and says nothing about how fast it is."""


def write(file: Path, run: Run, groups: Sequence[Group], plot: Path | None) -> None:
    """Writes the page.

    Args:
      file: where to.
      run: what was measured.
      groups: what was to be measured.
      plot: a picture of it, which the page shows; None for none.
    """
    parts = [_heading(_TITLE, "="), _INTRODUCTION]
    if run.quick:
        parts.append(_QUICK)
    parts += [_heading("The machine", "-"), _list_table(_machine(run))]
    for group in groups:
        parts += [_heading(group.title, "-"), textwrap.fill(group.about, 120), *_results(group, run)]
    if plot:
        parts += [_heading("All ratios", "-"), _image(os.path.relpath(plot, file.parent))]
    file.write_text("\n\n".join(parts) + "\n")


def _machine(run: Run) -> Table:
    return Table("", (), (("measured", run.started), *run.machine.items()))


def _image(path: str) -> str:
    return f".. image:: {Path(path).as_posix()}\n    :alt: the ratios of all workloads, with their quartiles"


def _results(group: Group, run: Run) -> list[str]:
    of_group = [result for result in run.results if result.workload.rpartition("/")[0] == group.name]
    ran = [result for result in of_group if result.error is None]
    shown = [_list_table(table) for table in tables.of_group(group, ran, run.clock)] if ran else []
    return shown + [f"``{result.workload}`` did not run::\n\n    {result.error}" for result in of_group if result.error]


def _heading(text: str, underline: str) -> str:
    return f"{text}\n{underline * len(text)}"


def _list_table(table: Table) -> str:
    title = f".. list-table:: {table.title[:1].upper()}{table.title[1:]}".rstrip()
    options = ["    :header-rows: 1"] if table.headings else []
    lines = [table.headings, *table.lines] if table.headings else table.lines
    return "\n".join([title, *options, "", *(_line(cells) for cells in lines)])


def _line(cells: Sequence[str]) -> str:
    return "\n".join(f"    {'  ' if index else '* '}- {cell}".rstrip() for index, cell in enumerate(cells))
