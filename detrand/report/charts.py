"""Charts for the page: SVG elements, which ``html.css`` colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from detrand.arguments import number

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34  # margins of the plotted area
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_MOST_TICKS, _MOST_LABELS = 7, 14  # of the vertical axis and of the horizontal one
_MANY = 100  # dots are smaller
_LEAST_SPAN = 0.05  # of a curve's axis, relative to its greatest number


class Point(NamedTuple):
    """A difference in a chart."""

    label: str  # for the tooltip and the screen reader
    amount: float | None  # from 0; None or NaN if the difference is not a number
    ok: bool
    tick: str = ""  # on the horizontal axis
    atol: float = 0.0  # 0 for none


class _Decades:
    """A logarithmic axis with room for 0 below it."""

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
            _line("grid", _LEFT, _WIDTH - _RIGHT, y) + _text(_LEFT - 8, y + 4, label, "end")
            for label, y in [("0", self.y(0)), *ticks]
        ]


def depth_chart(points: Sequence[Point], x_label: str) -> str:
    """Return a chart on a logarithmic axis with a dot for each difference, and a line behind it for its tolerance."""
    amounts = [point.amount for point in points if point.amount is not None and not math.isnan(point.amount)]
    tolerances = [point.atol for point in points if point.atol]
    axis = _Decades([*amounts, *tolerances])
    parts = axis.grid()
    room = _PLOT_WIDTH / len(points)
    radius = 4 if len(points) <= _MANY else 2
    for atol, run in itertools.groupby(range(len(points)), lambda position: points[position].atol):
        positions = list(run)
        if atol:
            parts.append(
                _line("tolerance", _LEFT + room * positions[0], _LEFT + room * (positions[-1] + 1), axis.y(atol))
            )
    if tolerances:
        text = f"atol {tolerances[0]:g}" if len(set(tolerances)) == 1 else "tolerance"
        parts.append(_text(_WIDTH - _RIGHT, axis.y(tolerances[-1]) - 5, text, "end"))
    for position, point in enumerate(points):
        x, y, said = _LEFT + room * (position + 0.5), float(_TOP), "differs, but not by a number"
        if point.amount is not None and not math.isnan(point.amount):
            y, said = axis.y(point.amount), f"{point.amount:.3g}"
        title = f"<title>{escape(f'{point.label}: {said}')}</title>"
        parts.append(f'<circle class="{_kind(point.ok)}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{title}</circle>')
        if point.tick and position % math.ceil(len(points) / _MOST_LABELS) == 0:
            parts.append(_text(x, _HEIGHT - 18, point.tick))
    return _svg(parts, f"greatest difference, by {x_label}", x_label)


class StepValues(NamedTuple):
    """A number in a training step of both programs."""

    step: int
    tf1: float
    port: float
    tolerance: float  # how far the port may be from TF1


def curves(values: Sequence[StepValues], name: str) -> str:
    """Return a chart of a number by step: a line for TF1 in its band of tolerance, and a line for the port."""
    ends = [end for each in values for end in (each.tf1 - each.tolerance, each.tf1 + each.tolerance, each.port)]
    finite = [end for end in ends if math.isfinite(end)] or [0.0]
    low, high = min(finite), max(finite)
    margin = (_LEAST_SPAN * max(abs(low), abs(high)) or 1.0) - (high - low)  # a constant is a line amid the chart
    low, high = (low - margin / 2, high + margin / 2) if margin > 0 else (low, high)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low) if not math.isnan(value) else 1.0
        return _TOP + _PLOT_HEIGHT * (0.95 - 0.9 * share)

    room = _PLOT_WIDTH / len(values)
    xs = [_LEFT + room * (position + 0.5) for position in range(len(values))]
    grid = [low + (high - low) * share / 4 for share in range(5)]
    parts = [
        _line("grid", _LEFT, _WIDTH - _RIGHT, y(value)) + _text(_LEFT - 8, y(value) + 4, f"{value:.3g}", "end")
        for value in grid
    ]
    upper = [f"{x:.1f},{y(each.tf1 + each.tolerance):.1f}" for x, each in zip(xs, values, strict=True)]
    lower = [f"{x:.1f},{y(each.tf1 - each.tolerance):.1f}" for x, each in zip(xs, values, strict=True)]
    parts.append(f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>')
    for kind, of_program in (("tf1", [each.tf1 for each in values]), ("port", [each.port for each in values])):
        points = " ".join(f"{x:.1f},{y(value):.1f}" for x, value in zip(xs, of_program, strict=True))
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    for position, (x, each) in enumerate(zip(xs, values, strict=True)):
        is_close = each.tf1 == each.port or abs(each.port - each.tf1) <= each.tolerance
        said = f"step {each.step}: {each.tf1:.6g} (TF1), {each.port:.6g} (port), tolerance {each.tolerance:.2g}"
        title = f"<title>{escape(said)}</title>"
        parts.append(f'<circle class="{_kind(is_close)}" cx="{x:.1f}" cy="{y(each.port):.1f}" r="3">{title}</circle>')
        if position % math.ceil(len(values) / _MOST_LABELS) == 0:
            parts.append(_text(x, _HEIGHT - 18, str(each.step)))
    return _svg(parts, f"{name} of both programs, by step", "step")


def histogram(by_magnitude: Mapping[int, int], equal: int) -> str:
    """Return a chart of how many elements differ by how much, with a bar for each power of ten, and one for 0."""
    exponents = range(min(by_magnitude), max(by_magnitude) + 1)
    bars = [("equal", equal)] if equal else []
    bars += [(f"1e{exponent}", by_magnitude.get(exponent, 0)) for exponent in exponents]
    highest = max(count for _, count in bars)
    room = _PLOT_WIDTH / len(bars)
    width = min(room * 0.8, 56)
    bottom = _TOP + _PLOT_HEIGHT
    parts = [_line("grid", _LEFT, _WIDTH - _RIGHT, bottom)]
    for position, (label, count) in enumerate(bars):
        height = (_PLOT_HEIGHT - 16) * count / highest
        x, y = _LEFT + room * (position + 0.5), bottom - height
        parts.append(
            f'<rect class="{_kind(label == "equal")}" x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"><title>{count:,} elements, {label}</title></rect>'
        )
        if count:
            parts.append(_text(x, y - 4, number(count)))
        if position % math.ceil(len(bars) / _MOST_LABELS) == 0:
            parts.append(_text(x, _HEIGHT - 18, label))
    return _svg(parts, "how many elements differ by how much", "absolute difference of an element, at least")


def _kind(ok: bool) -> str:
    """Return the class of what passed or failed in ``html.css``."""
    return "good" if ok else "bad"


def _line(kind: str, x1: float, x2: float, y: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str, x_label: str) -> str:
    middle = _LEFT + _PLOT_WIDTH / 2
    label = f'<text class="axis" x="{middle:.0f}" y="{_HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>'
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f"<svg {view}>{''.join(parts)}{label}</svg>"
