"""The documentation page of a run: a headline, tables of ratios and of growth in memory, and the plot."""

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
This page shows what seeding, the shim and the recorder cost. ``python -m benchmarks --rst FILE --plot FILE`` measures
that and writes this page.

- *plain TensorFlow* is not seeded, and runs outside of every scope;
- *detrand* is this library's tool in ``"num_random_ops"`` mode, its shim in a Keras 3 layer, its recorder or its
  ``philox``;
- *official* is TensorFlow's ``DeterministicRandomTestTool`` in ``"num_random_ops"`` mode, or its
  ``track_tf1_style_variables``, from the package tf-keras.

All cases of a program take turns in one process. A case runs a short block of calls, next to a block of the baseline,
and the ratio is taken within such a pair of blocks: 1.10 is 10 % slower than the baseline. The headline and the table
have medians of all pairs. The table has one program of each group; its last column has the program of the group with
detrand's largest ratio. The plot shows all programs and cases, with quartiles; ``--json FILE`` writes all numbers."""
# Where a training step runs, by group, for the headline.
_WAYS = {
    "seeding/eager": "eagerly",
    "seeding/session": "in a ``Session``",
    "seeding/tf.function": "in a ``tf.function``",
    "seeding/xla": "compiled by XLA",
}
_QUICK = """\
.. warning::

    This run was made with ``--quick``. It shows that everything works, but not how fast it is."""


def write(file: Path, run: Run, groups: Sequence[Group], plot: Path | None) -> None:
    """Write the page of a run to a file, with the plot if there is one."""
    ratios, growth = tables.ratios(groups, run), tables.growth(groups, run)
    parts = [_heading(_TITLE, "=")]
    if run.quick:
        parts.append(_QUICK)
    if headline := _headline(run):
        parts.append(headline)
    if ratios.lines:
        parts += [_heading(f"{run.clock.capitalize()} of a call", "-"), _simple_table(ratios)]
    parts += [f"``{result.workload}`` did not run::\n\n    {result.error}" for result in run.results if result.error]
    if growth.lines:
        parts += [_heading("Growth in memory", "-"), _simple_table(growth)]
    parts += [_heading("How it is measured", "-"), _INTRODUCTION]
    parts += [_heading("What a call does", "-"), "\n".join(_about(group) for group in groups)]
    machine = Table("", ("", ""), (("measured", run.started), *run.machine.items()))
    parts += [_heading("The machine", "-"), _simple_table(machine)]
    if plot:
        parts += [_heading("All ratios", "-"), _image(os.path.relpath(plot, file.parent))]
    file.write_text("\n\n".join(parts) + "\n")


def _headline(run: Run) -> str:
    """Return how long a training step takes with detrand in each way that was measured; empty if none was."""
    ratios = {
        way: tables.three_digits(tables.last_ratio(result.rows, "detrand"))
        for group, way in _WAYS.items()
        for result in run.results
        if result.workload == f"{group}/training_step" and result.error is None
    }
    if not ratios:
        return ""
    first, *others = ratios
    listed = [f"{ratios[first]} times as long {first}", *(f"{ratios[way]} {way}" for way in others)]
    *most, last = listed
    return textwrap.fill(
        "Compared with plain TensorFlow, a training step that draws the session's numbers takes "
        f"{', '.join(most)}{' and ' if most else ''}{last}.",
        120,
        break_on_hyphens=False,
    )


def _about(group: Group) -> str:
    return f"{group.title}\n{textwrap.indent(textwrap.fill(group.about, 112), '    ')}"


def _image(path: str) -> str:
    return f".. image:: {Path(path).as_posix()}\n    :alt: the ratios of all workloads, with their quartiles"


def _heading(text: str, underline: str) -> str:
    return f"{text}\n{underline * len(text)}"


def _simple_table(table: Table) -> str:
    headings = [table.headings] if any(table.headings) else []
    widths = [max(map(len, column)) for column in zip(*headings, *table.lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    # An empty cell at the start of a line would continue the line above it; no first cell here is empty.
    head, *lines = [_line(cells, widths) for cells in [*headings, *table.lines]]
    body = [head, rule, *lines] if headings else [head, *lines]
    return "\n".join([rule, *body, rule])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
