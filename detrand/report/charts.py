"""Charts of differences as SVG text, which takes its colours from the style sheet of the page that it is in."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34  # margins of the plotted area
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_MOST_TICKS, _MOST_LABELS = 7, 14  # of the vertical axis and of the horizontal one


class Point(NamedTuple):
    """A difference to be drawn.

    Attributes:
      label: what differs, for the tooltip and the screen reader.
      amount: how much, from 0; None or NaN if it cannot be said.
      ok: whether that is close.
      tick: what stands below it on the axis.
      atol: the absolute tolerance; 0 for none.
    """

    label: str
    amount: float | None
    ok: bool
    tick: str = ""
    atol: float = 0.0


class _Decades:
    """A logarithmic axis, with room for 0 below it."""

    def __init__(self, amounts: Sequence[float]):
        exponents = [math.log10(amount) for amount in amounts if 0 < amount < math.inf] or [-7.0]
        self.low, self.high = math.floor(min(exponents)), math.ceil(max(exponents))
        self.high = max(self.high, self.low + 1)

    def y(self, amount: float) -> float:
        if amount <= 0:
            return _TOP + _PLOT_HEIGHT
        share = (min(math.log10(amount), self.high) - self.low) / (self.high - self.low)
        return _TOP + _PLOT_HEIGHT * (0.88 - 0.8 * share)

    def grid(self) -> list[str]:
        step = math.ceil((self.high - self.low) / (_MOST_TICKS - 1))
        ticks = [(f"1e{exponent}", self.y(10.0**exponent)) for exponent in range(self.low, self.high + 1, step)]
        return [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
            for label, y in [("0", self.y(0)), *ticks]
        ]


def depth_chart(points: Sequence[Point], x_label: str) -> str:
    """Returns a chart of differences in their order, each a dot, on a logarithmic axis that has 0 at its bottom.

    Args:
      points: the differences; the tolerance of each is a line at its place.
      x_label: what the order is.
    """
    amounts = [point.amount for point in points if point.amount is not None and not math.isnan(point.amount)]
    tolerances = [point.atol for point in points if point.atol]
    axis = _Decades([*amounts, *tolerances])
    parts = axis.grid()
    room = _PLOT_WIDTH / len(points)
    first = 0
    for atol, run in itertools.groupby(point.atol for point in points):
        last = first + len(list(run))
        if atol:
            x1, x2, height = _LEFT + room * first, _LEFT + room * last, axis.y(atol)
            across = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{height:.1f}" y2="{height:.1f}"'
            parts.append(f'<line class="tolerance" {across}/>')
        first = last
    if tolerances:
        text = f"atol {tolerances[0]:g}" if len(set(tolerances)) == 1 else "tolerance"
        height = axis.y(tolerances[-1]) - 5
        parts.append(f'<text class="tick" x="{_WIDTH - _RIGHT}" y="{height:.1f}" text-anchor="end">{text}</text>')
    for number, point in enumerate(points):
        known = point.amount is not None and not math.isnan(point.amount)
        x = _LEFT + room * (number + 0.5)
        y = axis.y(point.amount) if known and point.amount is not None else _TOP
        said = f"{point.label}: {point.amount:.3g}" if known else f"{point.label}: differs, not by a number"
        kind = "good" if point.ok else "bad"
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{html.escape(said)}</title></circle>'
        )
        if point.tick and number % math.ceil(len(points) / _MOST_LABELS) == 0:
            parts.append(_label(x, point.tick))
    return _svg(parts, f"greatest absolute difference, by {x_label}", x_label)


def histogram(by_magnitude: Mapping[int, int], equal: int) -> str:
    """Returns a chart of how many elements differ by how much, a bar for each power of ten.

    Args:
      by_magnitude: number of elements by the power of ten that their difference is at least.
      equal: how many do not differ.
    """
    exponents = range(min(by_magnitude), max(by_magnitude) + 1)
    bars = [("equal", "good", equal)] if equal else []
    bars += [(f"1e{exponent}", "bad", by_magnitude.get(exponent, 0)) for exponent in exponents]
    highest = max(count for _, _, count in bars)
    room = _PLOT_WIDTH / len(bars)
    every = math.ceil(len(bars) / _MOST_LABELS)
    bottom = _TOP + _PLOT_HEIGHT
    parts = [f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for number, (label, kind, count) in enumerate(bars):
        height = (_PLOT_HEIGHT - 16) * count / highest
        x, y = _LEFT + room * number, bottom - height
        width = min(room * 0.8, 56)
        middle = x + room / 2
        parts.append(
            f'<rect class="{kind}" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
            f"<title>{count:,} elements, {label}</title></rect>"
        )
        if count:
            parts.append(
                f'<text class="tick" x="{middle:.1f}" y="{y - 4:.1f}" text-anchor="middle">{_short(count)}</text>'
            )
        if number % every == 0:
            parts.append(_label(middle, label))
    return _svg(parts, "how many elements differ by how much", "absolute difference of an element, at least")


def _label(x: float, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{html.escape(text)}</text>'


def _short(count: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _svg(parts: Sequence[str], title: str, x_label: str) -> str:
    middle = _LEFT + _PLOT_WIDTH / 2
    label = f'<text class="axis" x="{middle:.0f}" y="{_HEIGHT - 3}" text-anchor="middle">{html.escape(x_label)}</text>'
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}"'
    return f"<svg {view}>{''.join(parts)}{label}</svg>"
