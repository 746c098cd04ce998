"""A report to be read in a browser: one file, without scripts and without anything from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from importlib import resources

from detrand.comparison.values import Comparison, Difference, LeafComparison
from detrand.report import Report, verdict
from detrand.report.charts import Point, depth_chart, histogram
from detrand.report.noise import WHAT_IS_SHOWN, noise_rows, remarks_of
from detrand.validation.audit import Audit
from detrand.validation.check_result import CheckResult

_MOST_SETTINGS = 200
_MOST_LEAVES = 200  # in a table; a network with more has its differing ones there first


def render(reports: Sequence[Report]) -> str:
    """Returns a page on all migrations of a run: the verdict first, then what failed, then every check.

    Args:
      reports: one for each migration, at least one.
    """
    style = resources.files("detrand.report").joinpath("html.css").read_text(encoding="utf-8")
    title = reports[0].migration if len(reports) == 1 else f"{len(reports)} migrations"
    mark = "passed" if all(report.ok for report in reports) else "FAILED"
    parts = [_overview(reports)] if len(reports) > 1 else []
    parts += [_migration(report, number) for number, report in enumerate(reports)]
    parts.append(_surroundings(reports[0]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{mark}: {html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _overview(reports: Sequence[Report]) -> str:
    failed = sum(not report.ok for report in reports)
    text = f"{failed} of {len(reports)} migrations failed" if failed else f"all {len(reports)} migrations passed"
    rows = [
        [
            f'<a href="#migration-{number}">{html.escape(report.migration)}</a>',
            _mark(report.ok),
            html.escape(verdict(report)),
        ]
        for number, report in enumerate(reports)
    ]
    return _banner("validate", text, not failed) + _table(["migration", "result", "checks"], rows)


def _banner(above: str, text: str, ok: bool) -> str:
    kind = "good" if ok else "bad"
    return f'<div class="verdict {kind}"><h1>{html.escape(above)}</h1><p>{html.escape(text)}</p></div>'


def _migration(report: Report, number: int) -> str:
    parts = [f'<section id="migration-{number}">', _banner(report.migration, verdict(report), report.ok)]
    parts += [_failure(check) for check in report.checks if not check.ok]
    rows = [
        [html.escape(check.name), _mark_of(check), f"{check.seconds:.1f} s", html.escape(check.summary)]
        for check in report.checks
    ]
    parts += ["<h2>Checks</h2>", _table(["check", "result", "-time", "what was found"], rows)]
    parts += [_noise(check) for check in report.checks if noise_rows(check)]
    parts += [_numbers(check) for check in report.checks if check.comparisons]
    parts += [_trainings(check) for check in report.checks if check.trainings]
    parts.append(_audit(report.audit))
    return "\n".join([*parts, "</section>"])


def _audit(audit: Audit) -> str:
    """The settings of both programs, behind a line that opens them; those that differ first."""
    heading, *_ = str(audit).splitlines()
    rows = [
        [*map(html.escape, (setting.of, setting.name, setting.tf1, setting.port)), "" if setting.same else "differs"]
        for setting in sorted(audit.settings, key=lambda setting: setting.same)[:_MOST_SETTINGS]
    ]
    more = len(audit.settings) - len(rows)
    remarks = [f"and {more} more"] * bool(more) + [f"not audited: {what}" for what in audit.not_audited]
    notes = "".join(f'<p class="faint">{html.escape(remark)}</p>' for remark in remarks)
    return (
        f'<details class="card"{" open" if audit.differing else ""}><summary>settings '
        f'<span class="faint">{html.escape(heading.removesuffix(":"))}</span></summary>'
        + (_table(["of", "setting", "TF1", "the port", ""], rows) if rows else "")
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
    """How far TF1's outputs move and how far the port is off, behind a line that opens it."""
    rows = [
        [f"<code>{html.escape(row.path)}</code>", _mark(row.ok), *map(html.escape, row.cells())]
        for row in noise_rows(check)
    ]
    heads = ["output", "result", "-floor", "-tolerance", "-the port is off by"]
    what = f"{len(rows)} kinds of numbers" if check.noise is None else f"{len(check.noise.outputs)} outputs"
    return "\n".join(
        [
            f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} '
            f'<span class="faint">noise floor of {what}</span></summary>',
            f'<p class="faint">{WHAT_IS_SHOWN}</p>',
            _table(heads, rows[:_MOST_LEAVES]),
            *(f'<p class="faint">{html.escape(remark)}</p>' for remark in remarks_of([check])),
            "</details>",
        ]
    )


def _numbers(check: CheckResult) -> str:
    """What a check compared, behind a line that opens it."""
    count = sum(len(comparison.leaves) for comparison in check.comparisons.values())
    parts = [
        f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} '
        f'<span class="faint">{count} tensor{"" if count == 1 else "s"} compared</span></summary>'
    ]
    for name, comparison in check.comparisons.items():
        parts.append(f"<h3>{html.escape(name)}</h3>")
        if len(comparison.leaves) > 1:
            parts.append(depth_chart([_point(leaf) for leaf in comparison.leaves], f"{name}, in order"))
        parts.append(_leaves(comparison))
    return "\n".join([*parts, "</details>"])


def _trainings(check: CheckResult) -> str:
    """The differences of each training over its steps, behind a line that opens them."""
    parts = [f'<details class="card"{"" if check.ok else " open"}><summary>{html.escape(check.name)} by step</summary>']
    for way, comparison in check.trainings.items():
        parts.append(f"<h3>{html.escape(way)}</h3>")
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
    heads = ["tensor", "result", "?in TF1", "-absolute", "-?relative", "-?ULPs", "-not close"]
    more = len(comparison.leaves) - len(rows)
    note = f'<p class="faint">and {more} more, all close</p>' if more else ""
    return _table(heads, rows) + note


def _amount(difference: Difference | None) -> str:
    amount = difference.amount if difference else None
    return "" if amount is None or math.isnan(amount) else f"{amount:.3g}"


def _surroundings(report: Report) -> str:
    facts = {
        "seed": str(report.seed),
        "tolerance": report.tolerance,
        "started": report.started,
        "took": f"{report.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        **report.machine,
    }
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items())
    return f'<h2>How it was run</h2>\n<div class="card"><dl>{rows}</dl></div>'


def _mark_of(check: CheckResult) -> str:
    return _mark(check.ok) if check.compared else '<span class="faint">not compared</span>'


def _mark(ok: bool) -> str:
    return '<span class="good-text">passed</span>' if ok else '<span class="bad-text">FAILED</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; ``-`` before a head makes it a column of numbers, ``?`` one that a narrow page leaves out."""
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
