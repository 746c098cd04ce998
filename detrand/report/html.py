"""The report as a page for a browser: one file, which loads nothing from a network.

The page begins with what to act on, and ends with the evidence. Its script copies texts, and does nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources

from detrand.arguments import and_more, plural
from detrand.comparison.values import MOST_ULPS, Comparison, Difference, LeafComparison
from detrand.random_op_diff import describe_source
from detrand.report.charts import Point, StepValues, curves, depth_chart, histogram
from detrand.report.symptoms import explanation, sections
from detrand.steps.comparison import StepsComparison
from detrand.validation.report import METRICS, Report, noise_remarks, noise_rows, summary_of, verdict_of
from detrand.validation.results import CheckResult, Finding, Place, TensorDifference

_MOST_ROWS = 200  # of a table; what differs comes first
_MOST_CURVES = 8  # of a training
_FEW = 12  # variables, which are not folded
_MOST_OWNERS = 8  # of a hyperparameter that differs
_AROUND = 2  # lines before and after the line of a finding

_NOISE_FLOOR = (
    "How far TF1's outputs move when the same numbers are computed in other variants, the tolerance that follows, and "
    "the greatest difference between TF1 and the port. In parentheses: units in the last place (ULPs) of the output's "
    "greatest element."
)
_DEPTH = (
    "Each dot is a tensor of TF1: its greatest difference from the port's tensor, relative to TF1's greatest element, "
    "computed in float64. A tensor without a counterpart is compared with the nearest tensor of the port of its size."
)
_NOT_CONTROLLED = "Random numbers that no scope controls. They do not affect the verdict by themselves."
_BAND = "Solid: TF1, in its band of tolerance. Dashed: the port."


def render(reports: Sequence[Report], command: str = "") -> str:
    """Return a page on all migrations of a run: the verdict and the findings first, the evidence last.

    Args:
      reports: the reports, at least one.
      command: the command that made them, for the record.
    """
    folder = resources.files("detrand.report")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("html.css", "html.js"))
    title = reports[0].migration if len(reports) == 1 else f"{len(reports)} migrations"
    verdict = verdict_of(reports)
    parts = [_overview(reports)] if len(reports) > 1 else []
    parts += [_migration(report, position) for position, report in enumerate(reports)]
    parts.append(_run(reports[0], command))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{verdict}: {escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _overview(reports: Sequence[Report]) -> str:
    rows = [
        [f'<a href="#migration-{position}">{escape(report.migration)}</a>', _of_report(report), escape(report.summary)]
        for position, report in enumerate(reports)
    ]
    banner = _banner("detrand validate", summary_of(reports), verdict_of(reports))
    return banner + _table(["migration", "result", "checks"], rows)


def _banner(above: str, text: str, verdict: str) -> str:
    return f'<div class="verdict {verdict}"><h1>{escape(above)}</h1><p>{escape(text)}</p></div>'


def _migration(report: Report, position: int) -> str:
    """Return the sections on a migration, each after a heading to link to."""
    findings = [_finding(finding, position, number) for number, finding in enumerate(report.findings, 1)]
    not_compared = [_note(f"{check.name}: {check.summary}") for check in report.checks if not check.compared]
    trainings = [_trainings(check) for check in report.checks if check.trainings]
    by_title = {
        "Findings": findings,
        "Not compared": not_compared,
        "Not controlled": _sources(report),
        "Checks": [_checks(report, position)],
        "Metrics": _metrics(report),
        "Hyperparameters": _hyperparameters(report),
        "Depth": _depth(report),
        "Variables": _variables(report),
        "Training": trainings,
        "Evidence": [_evidence(check, position) for check in report.checks],
    }
    by_title = {title: parts for title, parts in by_title.items() if parts}
    anchors = {title: f"{title.lower().replace(' ', '-')}-{position}" for title in by_title}
    links = " ".join(f'<a href="#{anchors[title]}">{title}</a>' for title in by_title)
    parts = [
        f'<section id="migration-{position}">',
        _banner(report.migration, report.verdict_line, report.verdict),
        f"<nav>{links}</nav>",
    ]
    for title, of_section in by_title.items():
        parts += [f'<h2 id="{anchors[title]}"><a href="#{anchors[title]}">{title}</a></h2>', *of_section]
    return "\n".join([*parts, "</section>"])


def _finding(finding: Finding, position: int, number: int) -> str:
    """Return a card with both places side by side."""
    anchor = f"finding-{position}-{number}"
    times = f' <span class="faint">at {plural(finding.count, "place")}</span>' if finding.count > 1 else ""
    head = f'<h3><a href="#{anchor}">{number}. {escape(finding.title)}</a>{times}</h3>'
    places = [_place(who, place) for who, place in (("TF1", finding.tf1), ("port", finding.port)) if place is not None]
    facts = {
        "also at": ", ".join(str(place) for place in finding.more),
        "confirmed": finding.confirmed,
        "possible": "; ".join(finding.others),
        "what to do": finding.remedy,
    }
    rows = [f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text]
    if finding.checks:
        links = (f'<a href="#{_anchor(name, position)}">{escape(name)}</a>' for name in finding.checks)
        rows.append(f"<dt>shown by</dt><dd>{', '.join(links)}</dd>")
    card = [f'<div class="card finding" id="{anchor}">', _copied(str(finding)), head]
    facts_and_more = [f"<dl>{''.join(rows)}</dl>", *_explanation(finding.symptom), "</div>"]
    return "\n".join([*card, '<div class="places">', *places, "</div>", *facts_and_more])


def _explanation(symptom: str) -> list[str]:
    """Return the explanation of a symptom, folded."""
    if symptom not in sections():
        return []
    title, *paragraphs = explanation(symptom).split("\n\n")
    texts = (f"<pre>{escape(text)}</pre>" if text.startswith(" ") else f"<p>{escape(text)}</p>" for text in paragraphs)
    return [f"<details><summary>{escape(title)}: what it means</summary>", *texts, "</details>"]


def _place(who: str, place: Place) -> str:
    parts = [f"<div><strong>{who}</strong> {_code(place.op)}"]
    parts += [f'<p class="faint">{escape(place.shown_line)}</p>'] if place.line else []
    if place.excerpt(0):
        ((at, _),) = place.excerpt(0)
        lines = (
            f'<span class="{"at" if each == at else "near"}">{each:5d}  {escape(text)}\n</span>'
            for each, text in place.excerpt(_AROUND)
        )
        parts.append(f'<pre class="source">{"".join(lines)}</pre>')
    parts += [f"<p>value {_code(place.value)}</p>"] if place.value else []
    return "".join([*parts, "</div>"])


def _copied(text: str) -> str:
    """Return a button that copies a text; it is hidden where scripts do not run."""
    return f'<button hidden type="button" data-text="{escape(text)}">copy</button>'


def _anchor(check: str, position: int) -> str:
    return escape(f"{check}-{position}")


def _checks(report: Report, position: int) -> str:
    rows = [
        [
            f'<a href="#{_anchor(check.name, position)}">{escape(check.name)}</a>',
            _verdict(check),
            f"{check.seconds:.1f} s",
            escape(check.headline),
        ]
        for check in report.checks
    ]
    return _table(["check", "result", "-time", "summary"], rows)


def _metrics(report: Report) -> list[str]:
    """Return a table of the metrics of outputs for which the migration asks."""
    rows = [
        [escape(name), _code(each.path), escape(each.name), f"{each.mean:.6g}", f"{each.worst:.6g}"]
        for name, each in report.metrics
    ]
    heads = ["check", "output", "metric", "-mean", "-worst"]
    return [_note(METRICS), _table(heads, rows)] if rows else []


def _sources(report: Report) -> list[str]:
    """Return a table of the draws that no scope controls."""
    rows = [
        [program, _code(describe_source(op)), op.phase, escape(op.caller)]
        for program, name in (("TF1", "tf1"), ("port", "port"))
        for op in report.uncontrolled.get(name, ())
    ]
    return [_note(_NOT_CONTROLLED), _table(["program", "draw", "phase", "line"], rows)] if rows else []


def _hyperparameters(report: Report) -> list[str]:
    """Return the hyperparameters that differ, and folded, all of them."""
    rows = [
        [*map(escape, (each.of, each.name, each.tf1, each.port)), "" if each.same else "differs"]
        for each in sorted(report.audit.hyperparameters, key=lambda each: each.same)
    ]
    heads = ["of", "hyperparameter", "TF1", "port"]
    differing = [
        [escape(and_more(owners, _MOST_OWNERS)), *map(escape, values)] for values, owners in report.audit.groups.items()
    ]
    parts = [_table(heads, differing)] if differing else []
    every = [_table([*heads, ""], rows)] if rows else []
    every += [_note(f"not audited: {what}") for what in report.audit.not_audited]
    folded = _card(report.audit.summary, "", every, is_open=False) if every else ""
    return [*parts, folded] if differing or every else []


def _depth(report: Report) -> list[str]:
    """Return a chart of all tensors of the first check whose programs diverge, or else of all outputs of a check."""
    for check in sorted(report.checks, key=lambda check: check.ok):
        if check.tensors:
            chart = depth_chart([_tensor_point(each) for each in check.tensors], "tensors, in TF1's order")
            differing = sum(not each.same for each in check.tensors)
            said = f"{differing:,} of {plural(len(check.tensors), 'tensor')} have no counterpart in the port"
            return [_note(f"{check.name}: {said}. {_DEPTH}"), chart]
    of_outputs = [check.comparisons["outputs"] for check in report.checks if "outputs" in check.comparisons]
    leaves = max((each.leaves for each in of_outputs), key=len, default=())
    if len(leaves) < 2:
        return []
    return [depth_chart([_point(leaf) for leaf in leaves], "outputs, in order of computation")]


def _tensor_point(each: TensorDifference) -> Point:
    other = f", in the port {each.port}" if each.port else ", of whose size the port has no tensor"
    return Point(f"{each.tf1}{other}", each.amount, each.same)


def _variables(report: Report) -> list[str]:
    """Return a table of the variables of both programs with the greatest differences of their values."""
    words = {each.of: (each.tf1, each.port) for each in report.audit.hyperparameters if each.name == "initializer"}
    initial, trained = _differences(report, "initial values"), _differences_in_training(report)
    rows = []
    for each in report.variables:
        tf1, port = words.get(each.tf1, ("", ""))
        shape = each.tf1_shape if each.tf1_shape == each.port_shape else f"{each.tf1_shape} / {each.port_shape}"
        amounts = [None if found is None else found[0] for found in (initial.get(each.tf1), trained.get(each.tf1))]
        ok = all(found is None or found[1] for found in (initial.get(each.tf1), trained.get(each.tf1)))
        cells = [_code(each.tf1) if each.tf1 else "none", _code(each.port) if each.port else "none", escape(shape)]
        cells += [escape(tf1 if tf1 == port else f"{tf1} / {port}")]
        cells += ["" if amount is None else f"{amount:.3g}" for amount in amounts]
        rows.append((ok and bool(each.tf1 and each.port), cells))
    if not rows:
        return []
    rows.sort(key=lambda row: row[0])
    heads = ["TF1", "port", "shape", "?initializer", "-initial difference", "-trained difference"]
    note = _note(
        "Cells with two values: TF1 / port. The differences are the greatest of all elements: of the initial values, "
        "and of the values after each training step."
    )
    shown = [column for column, head in enumerate(heads) if "-" not in head or any(cells[column] for _, cells in rows)]
    table = _table([heads[column] for column in shown], [[cells[column] for column in shown] for _, cells in rows])
    return [_card(plural(len(rows), "variable"), "", [note, table], is_open=len(rows) <= _FEW)]


def _differences(report: Report, comparison: str) -> dict[str, tuple[float | None, bool]]:
    leaves = (leaf for check in report.checks for leaf in check.comparisons.get(comparison, Comparison(())).leaves)
    return {_name_in(leaf.path): (_amount_of(leaf), leaf.ok) for leaf in leaves}


def _differences_in_training(report: Report) -> dict[str, tuple[float | None, bool]]:
    """Return the greatest difference of each trained variable in all steps."""
    found: dict[str, tuple[float | None, bool]] = {}
    for check in report.checks:
        for comparison in check.trainings.values():
            for by_name in comparison.steps.values():
                for leaf in by_name["weights"].leaves if "weights" in by_name else ():
                    name, amount = _name_in(leaf.path.removeprefix("weights")), _amount_of(leaf) or 0.0
                    before, ok = found.get(name, (0.0, True))
                    found[name] = max(before or 0.0, amount), (ok and leaf.ok) or check.ok
    return found


def _name_in(path: str) -> str:
    return path.removeprefix("['").removesuffix("']")


def _trainings(check: CheckResult) -> str:
    """Return curves and differences of each training, once for those that look the same; the first is open."""
    parts: dict[str, list[str]] = {}
    for execution, comparison in check.trainings.items():
        parts.setdefault(_training(comparison, check), []).append(execution)
    return "\n".join(
        _card(" and ".join(executions), "", [text], is_open=number == 0)
        for number, (text, executions) in enumerate(parts.items())
    )


def _training(comparison: StepsComparison, check: CheckResult) -> str:
    rows = []
    for name in comparison.names:
        ok = all(by_name[name].ok for by_name in comparison.steps.values() if name in by_name)
        rows.append([_code(name), _mark_in(check, ok), escape(comparison.about(name))])
    charts = []
    for path, values in list(_scalars(comparison).items())[:_MOST_CURVES]:
        charts.append(f"<figure><figcaption>{_code(path)}</figcaption>{curves(values, path)}</figure>")
    figures = [_note(_BAND), f'<div class="figures">{"".join(charts)}</div>'] if charts else []
    return "\n".join([*figures, _table(["number", "result", "difference"], rows)])


def _scalars(comparison: StepsComparison) -> dict[str, list[StepValues]]:
    """Return the numbers of both programs that are no arrays, such as losses, by path."""
    found: dict[str, list[StepValues]] = {}
    for step, by_name in comparison.steps.items():
        for one in by_name.values():
            for leaf in one.leaves:
                at = leaf.greatest_absolute
                if leaf.size == 1 and at is not None and at.index == () and isinstance(at.desired, (int, float)):
                    tolerance = leaf.atol + leaf.rtol * abs(at.desired)
                    found.setdefault(leaf.path, []).append(StepValues(step, at.desired, at.actual, tolerance))
    return found


def _evidence(check: CheckResult, position: int) -> str:
    """Return all that a check found, folded; a link to it opens it."""
    parts = [f'<div id="{_anchor(check.name, position)}">']
    text = check.details or check.summary
    parts += [_copied(text), f"<pre>{escape(text)}</pre>", *_noise(check)]
    for name, comparison in check.comparisons.items():
        parts += [f"<h3>{escape(name)}</h3>", *_histogram(comparison)]
        if len(comparison.leaves) > 1 and name != "initial values":
            parts.append(depth_chart([_point(leaf) for leaf in comparison.leaves], f"{name}, in order of computation"))
        parts.append(_leaves(comparison, check))
    return _card(check.name, _shown_verdict(check), [*parts, "</div>"], is_open=False)


def _histogram(comparison: Comparison) -> Iterator[str]:
    leaf = comparison.first_divergence
    if leaf is not None and leaf.by_magnitude and leaf.size > 1:
        equal = leaf.size - sum(leaf.by_magnitude.values())
        yield f"<p>errors in {_code(leaf.path)}</p>" + histogram(leaf.by_magnitude, max(equal, 0))


def _noise(check: CheckResult) -> Iterator[str]:
    rows = [[_code(row.path), _mark_in(check, row.ok), *map(escape, row.cells())] for row in noise_rows(check)]
    if rows:
        yield "<h3>noise floor</h3>" + _note(_NOISE_FLOOR)
        yield _table(["output", "result", "-floor", "-tolerance", "-difference"], rows)
        yield from map(_note, noise_remarks([check]))


def _run(report: Report, command: str) -> str:
    facts = {
        "command": command,
        "seed": str(report.seed),
        "tolerance": report.tolerance,
        "started": report.started,
        "time": f"{report.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        **report.machine,
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    text = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
    return f'<h2 id="run"><a href="#run">Run</a></h2>\n<div class="card">{_copied(text)}<dl>{rows}</dl></div>'


def _leaves(comparison: Comparison, check: CheckResult) -> str:
    is_long = len(comparison.leaves) > _MOST_ROWS
    rows = [
        [
            _code(leaf.path),
            _mark_in(check, leaf.ok, leaf.reason if leaf.reason != "values" else None),
            escape(leaf.desired.form),
            _amount(leaf.greatest_absolute),
            _amount(leaf.greatest_relative),
            "" if leaf.greatest_ulps is None or leaf.greatest_ulps >= MOST_ULPS else f"{leaf.greatest_ulps:,}",
            f"{leaf.mismatched:,} of {leaf.size:,}" if leaf.size else "",
        ]
        for leaf in sorted(comparison.leaves, key=lambda leaf: is_long and leaf.ok)
    ]
    return _table(["output", "result", "?dtype and shape", "-absolute", "-?relative", "-?ULPs", "-differ"], rows)


def _amount(difference: Difference | None) -> str:
    amount = difference.amount if difference else None
    return "" if amount is None or math.isnan(amount) else f"{amount:.3g}"


def _amount_of(leaf: LeafComparison) -> float | None:
    return leaf.greatest_absolute.amount if leaf.greatest_absolute else None


def _point(leaf: LeafComparison) -> Point:
    greatest = _amount_of(leaf)
    return Point(leaf.path, greatest if leaf.ok or greatest else None, leaf.ok, atol=leaf.atol)


def _verdict(check: CheckResult) -> str:
    return _mark(check.ok) if check.verdict in ("passed", "FAILED") else f'<span class="faint">{check.verdict}</span>'


def _shown_verdict(check: CheckResult) -> str:
    return f"{check.verdict}, {check.seconds:.1f} s"


def _mark(ok: bool) -> str:
    return '<span class="good-text">passed</span>' if ok else '<span class="bad-text">FAILED</span>'


def _of_report(report: Report) -> str:
    return _mark(report.ok) if report.verdict != "inconclusive" else '<span class="faint">inconclusive</span>'


def _mark_in(check: CheckResult, ok: bool, reason: str | None = None) -> str:
    """Return the mark of a part of a check; nothing is marked as failed in a check that is not."""
    if ok or not check.ok:
        return f'<span class="bad-text">{escape(reason)}</span>' if reason and not ok else _mark(ok)
    return f'<span class="faint">{"accepted" if check.accepted else "differs, but the check passed"}</span>'


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
