"""Prints the table, each cell compared now, in both modes: ``python -m tests.conformance``."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported

import numpy as np

from tests.conformance import table

_SEED = 42


def text_of(rows: tuple[table.Row, ...]) -> str:
    """Returns the table of some rows as text."""
    reasons: dict[str, int] = {}
    lines = [["", *table.WAYS]]
    for row in rows:
        references = {mode: table.drawn_in_session(row, _SEED, mode) for mode in table.MODES}
        lines.append([row.name, *(_cell(row, way, references, reasons) for way in table.WAYS)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.append("")
    text.append(
        "exact: bit for bit what a TF1 session draws, in both modes; of a step or call k, in its run k, k = 0, 1, 2"
    )
    text += [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join(text)


def _cell(row: table.Row, way: str, references: dict[str, table.Drawn], reasons: dict[str, int]) -> str:
    program = row.cell(way)
    if isinstance(program, str):
        return f"-{_footnote(program, reasons)}"
    cells = {_compared(table.drawn(row, way, _SEED, mode), references[mode]) for mode in table.MODES}
    if cells == {"exact"}:
        return "exact"
    reason = table.BY_XLA if way == table.XLA else table.REGROUPED
    return max(cells - {"exact"}) + (_footnote(reason, reasons) if row.bound(way) else "")


def _footnote(reason: str, reasons: dict[str, int]) -> str:
    return f"[{reasons.setdefault(reason, len(reasons) + 1)}]"


def _compared(actual: table.Drawn, desired: table.Drawn) -> str:
    pairs = [pair for runs in zip(actual.runs, desired.runs, strict=False) for pair in zip(*runs, strict=False)]
    lengths = {len(run) for run in actual.runs + desired.runs}
    if len(lengths) > 1 or any(a.dtype != b.dtype or a.shape != b.shape for a, b in pairs):
        return "differs"
    greatest = max(float(np.abs(a.astype(float) - b.astype(float)).max(initial=0)) for a, b in pairs)
    return "exact" if greatest == 0 else f"differs by {greatest:.1g}"


if __name__ == "__main__":
    print(text_of(table.TABLE))
