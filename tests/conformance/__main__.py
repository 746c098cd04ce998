"""The conformance table: ``python -m tests.conformance`` compares every cell in both modes, and prints the table.

The text is reStructuredText. ``> docs/conformance_table.txt`` writes the part that ``docs/conformance.rst`` includes.
"""

import functools
import os
import sys
import warnings
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported

import numpy as np
import tensorflow as tf
from rich.console import Console

from detrand.report.progress import showing_progress
from tests.conformance import table, ways
from tests.conformance.ways import Row
from tests.support import keras3_process

_SEED = 42
_DASH = "--"  # Sphinx shows it as a dash; "-" would begin a list

_reference = functools.cache(ways.drawn_in_session)

Cell = tuple[str, str | None]  # its text, and the reason for a note


def main() -> None:
    """Print the table; the exit status is 1 if a cell differs by more than its bound."""
    warnings.filterwarnings("ignore", ".*will be removed in a future version", UserWarning)  # TF1 code is deprecated
    tf.get_logger().setLevel("ERROR")
    with showing_progress(Console(stderr=True), "comparing"):
        cells = {(row, way): measured(row, way) for row in table.TABLE for way in ways.WAYS}
    print(text_of(table.TABLE, lambda row, way: cells[row, way]), end="")
    sys.exit(any(text.startswith("differs") for text, _ in cells.values()))


def text_of(rows: tuple[Row, ...], cell_of: Callable[[Row, str], Cell]) -> str:
    """Return the table of some rows, with a note for each reason; `cell_of` returns a cell of the table."""
    reasons: dict[str, int] = {}
    header = [way.partition(", ") for way in ways.WAYS]
    lines = [["random ops", *(what for what, _, _ in header)], ["", *(which for _, _, which in header)]]
    for row in rows:
        cells = [cell_of(row, way) for way in ways.WAYS]
        lines.append([row.name, *(text + _footnote(reason, reasons) for text, reason in cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text = [rule, *text[:2], rule, *text[2:], rule, ""]
    return "\n".join([*text, *(f"({number}) {reason}" for reason, number in reasons.items()), ""])


def _footnote(reason: str | None, reasons: dict[str, int]) -> str:
    return "" if reason is None else f" ({reasons.setdefault(reason, len(reasons) + 1)})"


def measured(row: Row, way: str) -> Cell:
    """Compare a cell with the session."""
    claim = claimed(row, way)
    if claim[0] == _DASH:
        return claim
    backend = ways.BACKENDS.get(way)
    if backend is not None and not keras3_process.is_installed(backend):
        return _DASH, f"{backend} is not installed where this table was made"
    bound = row.bound(way)
    differences = [_difference(ways.drawn(row, way, _SEED, mode), _reference(row, _SEED, mode)) for mode in ways.MODES]
    difference = np.max(differences)  # unlike `max`, keeps NaN
    return claim if difference <= (bound.limit if bound else 0) else (f"differs by {difference:.1g}", None)


def claimed(row: Row, way: str) -> Cell:
    """Return the cell that the tests assert."""
    program, bound = row.cell(way), row.bound(way)
    if isinstance(program, str):
        return _DASH, program
    return ("exact", None) if bound is None else (f"{bound.limit:.0e}".replace("e-0", "e-"), bound.reason)


def _difference(actual: ways.Drawn, desired: ways.Drawn) -> float:
    pairs = [pair for runs in zip(actual.runs, desired.runs, strict=False) for pair in zip(*runs, strict=False)]
    lengths = {len(run) for run in actual.runs + desired.runs}
    if len(lengths) > 1 or any(a.dtype != b.dtype or a.shape != b.shape for a, b in pairs):
        return np.inf
    return np.max([np.abs(a.astype(float) - b.astype(float)).max(initial=0) for a, b in pairs])


if __name__ == "__main__":
    main()
