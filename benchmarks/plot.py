"""The plot of the ratios: a panel for each group, a row for each program, a point with quartiles for each case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import Group
from benchmarks.results import Result, Run

SUFFIXES = (".svg", ".png")
_INCHES_A_CASE, _INCHES_A_PANEL, _WIDTH = 0.06, 0.8, 10.0
_NARROW = 3.0  # a range of ratios with ticks at equal distances, not at 1, 2, 5, 10
_BASELINE = "0.6"
_COLOURS = {"detrand": ("tab:blue", "tab:cyan"), "official": ("tab:red", "tab:pink"), "": ("tab:orange",)}


def check(file: Path) -> None:
    """Check that a plot can be drawn, before anything is measured.

    Raises:
      ValueError: if matplotlib is not installed, or the file's name does not end in ``.svg`` or ``.png``.
    """
    if file.suffix not in SUFFIXES:
        raise ValueError(f"--plot {file}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--plot needs matplotlib, which is not installed. Run: pip install '.[bench]'") from None


def draw(file: Path, run: Run, groups: Sequence[Group]) -> None:
    """Draw the ratios of all workloads of some groups that ran."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ran = {result.workload: result for result in run.results if result.error is None}
    panels = [(group, [ran[w.name] for w in group.workloads if w.name in ran]) for group in groups]
    panels = [(group, results) for group, results in panels if results]
    heights = [_INCHES_A_PANEL + _INCHES_A_CASE * len(results) * (len(results[0].rows) + 1) for _, results in panels]
    # The text of an SVG stays text, and equal runs give equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "detrand", "font.size": 9}):
        figure = Figure((_WIDTH, sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (group, results) in zip(axes, panels, strict=True):
            _draw_panel(axis, group.title.replace("``", ""), results)
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)


def _draw_panel(axis: Any, title: str, results: Sequence[Result]) -> None:
    from matplotlib import ticker

    cases = [row.case for row in results[0].rows]
    styles = _styles(cases)
    for number, case in enumerate(cases):
        # The cases of a program are below each other, within the height of its row.
        heights = [line + (number + 0.5) / len(cases) * 0.8 - 0.4 for line in range(len(results))]
        spreads = [result.rows[number].ratio for result in results]
        axis.errorbar(
            [spread.median for spread in spreads],
            heights,
            xerr=[
                [spread.median - spread.lower_quartile for spread in spreads],
                [spread.upper_quartile - spread.median for spread in spreads],
            ],
            fmt="o",
            markersize=3,
            linewidth=1,
            color=styles[case],
            label=case,
        )
    for line in range(1, len(results)):
        axis.axhline(line - 0.5, color="0.9", linewidth=0.8)
    axis.axvline(1, color="0.3", linewidth=0.8, zorder=0)
    axis.set_xscale("log")
    lowest, highest = axis.get_xlim()
    axis.xaxis.set_major_locator(
        ticker.MaxNLocator(steps=[1, 2, 5, 10]) if highest < _NARROW * lowest else ticker.LogLocator(subs=(1, 2, 5))
    )
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.grid(axis="x", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_yticks(range(len(results)), [result.workload.rpartition("/")[2] for result in results])
    axis.set_ylim(len(results) - 0.5, -0.5)
    axis.set_title(f"{title}: time, relative to {cases[0]}", loc="left", fontsize=10)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _styles(cases: Sequence[str]) -> dict[str, str]:
    left = {beginning: iter(colours) for beginning, colours in _COLOURS.items()}
    styles = {cases[0]: _BASELINE}
    for case in cases[1:]:
        beginning = next(beginning for beginning in left if case.startswith(beginning))
        styles[case] = next(left[beginning])
    return styles
