"""The report as a page for a browser: one file without scripts, which loads nothing from a network."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from detrand.arguments import plural
from detrand.comparison.values import Comparison, Difference, LeafComparison
from detrand.validation.results import Audit, CheckResult, Report, noise_remarks, noise_rows, summary_of

_MOST_HYPERPARAMETERS = 200
_MOST_LEAVES = 200  # rows of a table; the outputs that differ come first if there are more

_NOISE_FLOOR = (
    "How far TF1's outputs move when the same numbers are computed in other variants, the tolerance that follows, and "
    "the greatest difference between TF1 and the port. In parentheses: units in the last place (ULPs) of the output's "
    "greatest element."
)


def render(reports: Sequence[Report]) -> str:
    """Return a page on all migrations of a run: the verdict first, then what failed, then every check.

    Args:
      reports: one for each migration, at least one.
    """
    style = resources.files("detrand.report").joinpath("html.css").read_text(encoding="utf-8")
    title = reports[0].migration if len(reports) == 1 else f"{len(reports)} migrations"
    mark = "passed" if all(report.ok for report in reports) else "FAILED"
    parts = [_overview(reports)] if len(reports) > 1 else []
    parts += [_migration(report, number) for number, report in enumerate(reports)]
    parts.append(_run(reports[0]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{mark}: {html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _overview(reports: Sequence[Report]) -> str:
    rows = [
        [
            f'<a href="#migration-{number}">{html.escape(report.migration)}</a>',
            _mark(report.ok),
            html.escape(report.summary),
        ]
        for number, report in enumerate(reports)
    ]
    banner = _banner("detrand validate", summary_of(reports), all(report.ok for report in reports))
    return banner + _table(["migration", "result", "checks"], rows)


def _banner(above: str, text: str, ok: bool) -> str:
    kind = "good" if ok else "bad"
    return f'<div class="verdict {kind}"><h1>{html.escape(above)}</h1><p>{html.escape(text)}</p></div>'


def _migration(report: Report, number: int) -> str:
    parts = [f'<section id="migration-{number}">', _banner(report.migration, report.summary, report.ok)]
    parts += [_failure(check) for check in report.checks if not check.ok]
    rows = [
        [html.escape(check.name), _verdict(check), f"{check.seconds:.1f} s", html.escape(check.summary)]
        for check in report.checks
    ]
    parts += ["<h2>Checks</h2>", _table(["check", "result", "-time", "summary"], rows)]
    parts += [_noise(check) for check in report.checks if noise_rows(check)]
    parts += [_numbers(check) for check in report.checks if check.comparisons]
    parts += [_trainings(check) for check in report.checks if check.trainings]
    parts.append(_audit(report.audit))
    return "\n".join([*parts, "</section>"])


def _audit(audit: Audit) -> str:
    """Return the hyperparameters of both programs as a card that opens; those that differ come first."""
    summary = audit.summary.removeprefix("audited ")
    rows = [
        [*map(html.escape, (each.of, each.name, each.tf1, each.port)), "" if each.same else "differs"]
        for each in sorted(audit.hyperparameters, key=lambda each: each.same)[:_MOST_HYPERPARAMETERS]
    ]
    more = len(audit.hyperparameters) - len(rows)
    remarks = [f"and {more} more"] * bool(more) + [f"not audited: {what}" for what in audit.not_audited]
    notes = "".join(f'<p class="faint">{html.escape(remark)}</p>' for remark in remarks)
    return (
        f'<details class="card"{" open" if audit.differing else ""}><summary>audit '
        f'<span class="faint">{html.escape(summary)}</span></summary>'
        + (_table(["of", "hyperparameter", "TF1", "port", ""], rows) if rows else "")
        + f"{notes}</details>"
    )


def _failure(check: CheckResult) -> str:
    parts = [f'<div class="card"><h3 class="bad-text">{html.escape(check.name)}</h3>']
    parts.append(f"<pre>{html.escape(check.details or check.summary)}</pre>")
    for name, comparison in check.comparisons.items():
        leaf = comparison.first_divergence
        if leaf is not None and leaf.by_magnitude and leaf.size > 1:
            equal = leaf.size - sum(leaf.by_magnitude.values())
            parts.append(f"<h3>{html.escape(f'{name}: errors in {leaf.path}')}</h3>")
            parts.append(histogram(leaf.by_magnitude, max(equal, 0)))
    return "\n".join([*parts, "</div>"])


def _noise(check: CheckResult) -> str:
    """Return the noise floors of a check as a card that opens."""
    rows = [
        [f"<code>{html.escape(row.path)}</code>", _mark(row.ok), *map(html.escape, row.cells())]
        for row in noise_rows(check)
    ]
    heads = ["output", "result", "-floor", "-tolerance", "-difference"]
    what = (
        plural(len(rows), "kind of number", "kinds of numbers")
        if check.noise is None
        else plural(len(check.noise.outputs), "output")
    )
    return "\n".join(
        [
            f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} '
            f'<span class="faint">noise floor of {what}</span></summary>',
            f'<p class="faint">{_NOISE_FLOOR}</p>',
            _table(heads, rows[:_MOST_LEAVES]),
            *(f'<p class="faint">{html.escape(remark)}</p>' for remark in noise_remarks([check])),
            "</details>",
        ]
    )


def _numbers(check: CheckResult) -> str:
    """Return the comparisons of a check as a card that opens."""
    count = sum(len(comparison.leaves) for comparison in check.comparisons.values())
    parts = [
        f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} '
        f'<span class="faint">{plural(count, "output")} compared</span></summary>'
    ]
    for name, comparison in check.comparisons.items():
        parts.append(f"<h3>{html.escape(name)}</h3>")
        if len(comparison.leaves) > 1:
            parts.append(depth_chart([_point(leaf) for leaf in comparison.leaves], f"{name}, in order of computation"))
        parts.append(_leaves(comparison))
    return "\n".join([*parts, "</details>"])


def _trainings(check: CheckResult) -> str:
    """Return the differences of each training by step as a card that opens."""
    parts = [f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} by step</summary>']
    for execution, comparison in check.trainings.items():
        parts.append(f"<h3>{html.escape(execution)}</h3>")
        for name in comparison.names:
            points = [_step_point(step, by_name[name]) for step, by_name in comparison.steps.items() if name in by_name]
            parts.append(f"<p><code>{html.escape(name)}</code>: {html.escape(comparison.about(name))}</p>")
            if any(point.amount != 0 for point in points):
                parts.append(depth_chart(points, "step"))
    return "\n".join([*parts, "</details>"])


def _step_point(step: int, comparison: Comparison) -> Point:
    amounts = [leaf.greatest_absolute.amount for leaf in comparison.leaves if leaf.greatest_absolute]
    known = [amount for amount in amounts if amount is not None]
    return Point(f"step {step}", max(known) if known else None if not comparison.ok else 0.0, comparison.ok, str(step))


def _point(leaf: LeafComparison) -> Point:
    greatest = leaf.greatest_absolute.amount if leaf.greatest_absolute else None
    return Point(leaf.path, greatest if leaf.ok or greatest else None, leaf.ok, atol=leaf.atol)


def _leaves(comparison: Comparison) -> str:
    leaves = (
        sorted(comparison.leaves, key=lambda leaf: leaf.ok)
        if len(comparison.leaves) > _MOST_LEAVES
        else comparison.leaves
    )
    rows = [
        [
            f"<code>{html.escape(leaf.path)}</code>",
            _mark(leaf.ok) if leaf.reason in (None, "values") else f'<span class="bad-text">{leaf.reason}</span>',
            html.escape(leaf.desired.form),
            _amount(leaf.greatest_absolute),
            _amount(leaf.greatest_relative),
            "" if leaf.greatest_ulps is None else f"{leaf.greatest_ulps:,}",
            f"{leaf.mismatched:,} of {leaf.size:,}" if leaf.size else "",
        ]
        for leaf in leaves[:_MOST_LEAVES]
    ]
    heads = ["output", "result", "?dtype and shape", "-absolute", "-?relative", "-?ULPs", "-differ"]
    more = len(comparison.leaves) - len(rows)
    note = f'<p class="faint">and {more} more, all close</p>' if more else ""
    return _table(heads, rows) + note


def _amount(difference: Difference | None) -> str:
    amount = difference.amount if difference else None
    return "" if amount is None or math.isnan(amount) else f"{amount:.3g}"


def _run(report: Report) -> str:
    facts = {
        "seed": str(report.seed),
        "tolerance": report.tolerance,
        "started": report.started,
        "time": f"{report.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        **report.machine,
    }
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items())
    return f'<h2>Run</h2>\n<div class="card"><dl>{rows}</dl></div>'


def _verdict(check: CheckResult) -> str:
    return _mark(check.ok) if check.compared else f'<span class="faint">{check.verdict}</span>'


def _mark(ok: bool) -> str:
    return '<span class="good-text">passed</span>' if ok else '<span class="bad-text">FAILED</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a head with ``-`` is a column of numbers, one with ``?`` is left out on a narrow page."""
    names = [head.lstrip("-?") for head in heads]
    kinds = [
        " ".join([*(["number"] if "-" in head[:2] else []), *(["optional"] if "?" in head[:2] else [])])
        for head in heads
    ]
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34  # margins of the plotted area
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_MOST_TICKS, _MOST_LABELS = 7, 14  # of the vertical axis and of the horizontal one


class Point(NamedTuple):
    """A difference in a chart.

    Attributes:
      label: what differs, for the tooltip and the screen reader.
      amount: by how much, from 0; None or NaN if that is not a number.
      ok: whether the difference is within the tolerance.
      tick: label on the horizontal axis.
      atol: the absolute tolerance; 0 for none.
    """

    label: str
    amount: float | None
    ok: bool
    tick: str = ""
    atol: float = 0.0


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
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
            for label, y in [("0", self.y(0)), *ticks]
        ]


def depth_chart(points: Sequence[Point], x_label: str) -> str:
    """Return a chart with a dot for each difference, in order, on a logarithmic axis that has 0 at its bottom.

    Args:
      points: the differences; the tolerance of each is a line behind its dot.
      x_label: label of the horizontal axis.
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
        said = f"{point.label}: {point.amount:.3g}" if known else f"{point.label}: differs, but not by a number"
        kind = "good" if point.ok else "bad"
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{html.escape(said)}</title></circle>'
        )
        if point.tick and number % math.ceil(len(points) / _MOST_LABELS) == 0:
            parts.append(_label(x, point.tick))
    return _svg(parts, f"greatest absolute difference, by {x_label}", x_label)


def histogram(by_magnitude: Mapping[int, int], equal: int) -> str:
    """Return a chart of how many elements differ by how much, with a bar for each power of ten.

    Args:
      by_magnitude: number of elements by the greatest power of ten that their difference reaches.
      equal: number of elements that do not differ.
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
