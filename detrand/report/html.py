"""The report as a page for a browser: one file without scripts, which loads nothing from a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from detrand.arguments import number, plural
from detrand.comparison.values import Comparison, Difference, LeafComparison
from detrand.validation.results import Audit, CheckResult, Finding, Place, Report, noise_remarks, noise_rows, summary_of

_MOST_ROWS = 200  # of a table; what differs comes first

_NOISE_FLOOR = (
    "How far TF1's outputs move when the same numbers are computed in other variants, the tolerance that follows, and "
    "the greatest difference between TF1 and the port. In parentheses: units in the last place (ULPs) of the output's "
    "greatest element."
)


def render(reports: Sequence[Report]) -> str:
    """Return a page on all migrations of a run: the verdict first, then what failed, then every check."""
    style = resources.files("detrand.report").joinpath("html.css").read_text(encoding="utf-8")
    title = reports[0].migration if len(reports) == 1 else f"{len(reports)} migrations"
    mark = "passed" if all(report.ok for report in reports) else "FAILED"
    parts = [_overview(reports)] if len(reports) > 1 else []
    parts += [_migration(report, position) for position, report in enumerate(reports)]
    parts.append(_run(reports[0]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{mark}: {escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _overview(reports: Sequence[Report]) -> str:
    rows = [
        [f'<a href="#migration-{position}">{escape(report.migration)}</a>', _mark(report.ok), escape(report.summary)]
        for position, report in enumerate(reports)
    ]
    banner = _banner("detrand validate", summary_of(reports), all(report.ok for report in reports))
    return banner + _table(["migration", "result", "checks"], rows)


def _banner(above: str, text: str, ok: bool) -> str:
    return f'<div class="verdict {_kind(ok)}"><h1>{escape(above)}</h1><p>{escape(text)}</p></div>'


def _migration(report: Report, position: int) -> str:
    parts = [f'<section id="migration-{position}">', _banner(report.migration, report.verdict_line, report.ok)]
    parts += [_finding(finding, position, number) for number, finding in enumerate(report.findings, 1)]
    rows = [
        [escape(check.name), _verdict(check), f"{check.seconds:.1f} s", escape(check.summary)]
        for check in report.checks
    ]
    parts += ["<h2>Checks</h2>", _table(["check", "result", "-time", "summary"], rows)]
    parts += [_noise(check) for check in report.checks if noise_rows(check)]
    parts += [_numbers(check) for check in report.checks if check.comparisons]
    parts += [_trainings(check) for check in report.checks if check.trainings]
    parts.append(_audit(report.audit))
    parts += [_failure(check) for check in report.checks if not check.ok]
    return "\n".join([*parts, "</section>"])


def _finding(finding: Finding, position: int, number: int) -> str:
    """Return a card with both places side by side."""
    anchor = f"finding-{position}-{number}"
    times = f' <span class="faint">at {plural(finding.count, "place")}</span>' if finding.count > 1 else ""
    head = f'<h3><a href="#{anchor}">{number}</a>. {escape(finding.title)}{times}</h3>'
    places = [_place(who, place) for who, place in (("TF1", finding.tf1), ("port", finding.port)) if place is not None]
    facts = {
        "also at": ", ".join(str(place) for place in finding.more),
        "confirmed": finding.confirmed,
        "possible": "; ".join(finding.others),
        "what to do": finding.remedy,
        "shown by": ", ".join(finding.checks),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    return "\n".join(
        [
            f'<div class="card finding" id="{anchor}">',
            head,
            '<div class="places">',
            *places,
            f"</div><dl>{rows}</dl></div>",
        ]
    )


def _place(who: str, place: Place) -> str:
    parts = [f"<div><strong>{who}</strong> {_code(place.op)}"]
    parts += [f'<p class="faint">{escape(place.line)}</p>'] if place.line else []
    parts += [f"<pre>{escape(place.source)}</pre>"] if place.source else []
    parts += [f"<p>{_code(place.value)}</p>"] if place.value else []
    return "".join([*parts, "</div>"])


def _failure(check: CheckResult) -> str:
    parts = [f"<pre>{escape(check.details or check.summary)}</pre>"]
    for name, comparison in check.comparisons.items():
        leaf = comparison.first_divergence
        if leaf is not None and leaf.by_magnitude and leaf.size > 1:
            equal = leaf.size - sum(leaf.by_magnitude.values())
            parts.append(f"<h3>{escape(f'{name}: errors in {leaf.path}')}</h3>")
            parts.append(histogram(leaf.by_magnitude, max(equal, 0)))
    return _card(check.name, "evidence", parts, is_open=False)


def _noise(check: CheckResult) -> str:
    rows = [[_code(row.path), _mark(row.ok), *map(escape, row.cells())] for row in noise_rows(check)]
    what = (
        plural(len(rows), "kind of number", "kinds of numbers")
        if check.noise is None
        else plural(len(check.noise.outputs), "output")
    )
    table = _table(["output", "result", "-floor", "-tolerance", "-difference"], rows)
    parts = [_note(_NOISE_FLOOR), table, *map(_note, noise_remarks([check]))]
    return _card(check.name, f"noise floor of {what}", parts, is_open=not check.ok)


def _numbers(check: CheckResult) -> str:
    parts = []
    for name, comparison in check.comparisons.items():
        parts.append(f"<h3>{escape(name)}</h3>")
        if len(comparison.leaves) > 1:
            parts.append(depth_chart([_point(leaf) for leaf in comparison.leaves], f"{name}, in order of computation"))
        parts.append(_leaves(comparison))
    count = sum(len(comparison.leaves) for comparison in check.comparisons.values())
    return _card(check.name, f"{plural(count, 'output')} compared", parts, is_open=not check.ok)


def _trainings(check: CheckResult) -> str:
    parts = []
    for execution, comparison in check.trainings.items():
        parts.append(f"<h3>{escape(execution)}</h3>")
        for name in comparison.names:
            points = [_step_point(step, by_name[name]) for step, by_name in comparison.steps.items() if name in by_name]
            parts.append(f"<p>{_code(name)}: {escape(comparison.about(name))}</p>")
            if any(point.amount != 0 for point in points):
                parts.append(depth_chart(points, "step"))
    return _card(f"{check.name} by step", "", parts, is_open=not check.ok)


def _audit(audit: Audit) -> str:
    rows = [
        [*map(escape, (each.of, each.name, each.tf1, each.port)), "" if each.same else "differs"]
        for each in sorted(audit.hyperparameters, key=lambda each: each.same)
    ]
    parts = [_table(["of", "hyperparameter", "TF1", "port", ""], rows)] if rows else []
    parts += [_note(f"not audited: {what}") for what in audit.not_audited]
    return _card("audit", audit.summary.removeprefix("audited "), parts, is_open=bool(audit.differing))


def _run(report: Report) -> str:
    facts = {
        "seed": str(report.seed),
        "tolerance": report.tolerance,
        "started": report.started,
        "time": f"{report.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        **report.machine,
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<h2>Run</h2>\n<div class="card"><dl>{rows}</dl></div>'


def _leaves(comparison: Comparison) -> str:
    is_long = len(comparison.leaves) > _MOST_ROWS
    rows = [
        [
            _code(leaf.path),
            _mark(leaf.ok) if leaf.reason in (None, "values") else f'<span class="bad-text">{leaf.reason}</span>',
            escape(leaf.desired.form),
            _amount(leaf.greatest_absolute),
            _amount(leaf.greatest_relative),
            "" if leaf.greatest_ulps is None else f"{leaf.greatest_ulps:,}",
            f"{leaf.mismatched:,} of {leaf.size:,}" if leaf.size else "",
        ]
        for leaf in sorted(comparison.leaves, key=lambda leaf: is_long and leaf.ok)
    ]
    return _table(["output", "result", "?dtype and shape", "-absolute", "-?relative", "-?ULPs", "-differ"], rows)


def _amount(difference: Difference | None) -> str:
    amount = difference.amount if difference else None
    return "" if amount is None or math.isnan(amount) else f"{amount:.3g}"


def _step_point(step: int, comparison: Comparison) -> Point:
    amounts = [leaf.greatest_absolute.amount for leaf in comparison.leaves if leaf.greatest_absolute]
    known = [amount for amount in amounts if amount is not None]
    return Point(f"step {step}", max(known) if known else None if not comparison.ok else 0.0, comparison.ok, str(step))


def _point(leaf: LeafComparison) -> Point:
    greatest = leaf.greatest_absolute.amount if leaf.greatest_absolute else None
    return Point(leaf.path, greatest if leaf.ok or greatest else None, leaf.ok, atol=leaf.atol)


def _verdict(check: CheckResult) -> str:
    return _mark(check.ok) if check.verdict in ("passed", "FAILED") else f'<span class="faint">{check.verdict}</span>'


def _mark(ok: bool) -> str:
    return '<span class="good-text">passed</span>' if ok else '<span class="bad-text">FAILED</span>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _note(text: str) -> str:
    return f'<p class="faint">{escape(text)}</p>'


def _card(title: str, faint: str, parts: Sequence[str], *, is_open: bool) -> str:
    """Return a card that a reader can open and close."""
    summary = f'{escape(title)} <span class="faint">{escape(faint)}</span>'
    return "\n".join(
        [f'<details class="card"{" open" if is_open else ""}><summary>{summary}</summary>', *parts, "</details>"]
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; a head with ``-`` is a column of numbers, one with ``?`` is left out on a narrow page."""
    names = [head.lstrip("-?") for head in heads]
    kinds = [" ".join(["number"] * ("-" in head[:2]) + ["optional"] * ("?" in head[:2])) for head in heads]

    def cells(tag: str, texts: Iterable[str]) -> str:
        columns = zip(texts, kinds, strict=True)
        return "<tr>" + "".join(f'<{tag} class="{kind}">{text}</{tag}>' for text, kind in columns) + "</tr>"

    body = "".join(cells("td", row) for row in rows[:_MOST_ROWS])
    more = _note(f"and {len(rows) - _MOST_ROWS} more") if len(rows) > _MOST_ROWS else ""
    table = f"<table><thead>{cells('th', names)}</thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>{more}'


_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34  # margins of the plotted area
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_MOST_TICKS, _MOST_LABELS = 7, 14  # of the vertical axis and of the horizontal one


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
        parts.append(f'<circle class="{_kind(point.ok)}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>')
        if point.tick and position % math.ceil(len(points) / _MOST_LABELS) == 0:
            parts.append(_text(x, _HEIGHT - 18, point.tick))
    return _svg(parts, f"greatest absolute difference, by {x_label}", x_label)


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
