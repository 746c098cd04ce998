"""The report as JSON: one object for all migrations of a run.

New keys may be added; the meaning of a key changes only with ``schema``. Numbers that are not finite are strings:
``"nan"``, ``"inf"`` or ``"-inf"``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from detrand.comparison.values import Comparison, LeafComparison
from detrand.random_op_diff import describe_source
from detrand.seeding.streams import RandomOp
from detrand.steps.comparison import StepsComparison
from detrand.validation.report import Report, noise_rows
from detrand.validation.results import Audit, CheckResult, Finding, Place

SCHEMA = 1


def render(reports: Sequence[Report]) -> str:
    """Return the reports of all migrations, at least one, as JSON text."""
    content = {
        "schema": SCHEMA,
        "ok": all(report.ok for report in reports),
        "checks": [_check(report, check) for report in reports for check in report.checks],
        "migrations": [
            {
                "name": report.migration,
                "ok": report.ok,
                "verdict": report.verdict,
                "findings": [_finding(finding) for finding in report.findings],
                "accepted": report.accepted,
                "not_needed": report.not_needed,
                "left_out": report.left_out,
                "seed": report.seed,
                "tolerance": report.tolerance,
                "seconds": round(report.seconds, 3),
                "started": report.started,
                "audit": _audit(report.audit),
                "variables": report.variables,
                "uncontrolled": {name: [_source(op) for op in ops] for name, ops in report.uncontrolled.items()},
            }
            for report in reports
        ],
        "versions": reports[0].versions,
        "machine": reports[0].machine,
    }
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a structure that JSON can hold: dataclasses as dicts, and text for what JSON has no value for."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


_NOT_WRITTEN = ("fault", "rest_agrees", "is_exact", "is_of_weights")  # what only decisions of detrand itself need


def _finding(finding: Finding) -> dict[str, Any]:
    kept = {name: value for name, value in vars(finding).items() if name not in _NOT_WRITTEN}
    return {**kept, "tf1": _place(finding.tf1), "port": _place(finding.port)}


def _source(op: RandomOp) -> dict[str, Any]:
    kept = {name: getattr(op, name) for name in ("op_type", "shape", "dtype", "phase", "caller")}
    return {**kept, "what": describe_source(op)}


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else {**vars(place), "source": place.source}


def _audit(audit: Audit) -> dict[str, Any]:
    return {
        "hyperparameters": [{**vars(each), "same": each.same} for each in audit.hyperparameters],
        "not_audited": audit.not_audited,
    }


def _check(report: Report, check: CheckResult) -> dict[str, Any]:
    return {
        "migration": report.migration,
        "name": check.name,
        "ok": check.ok,
        "compared": check.compared,
        "accepted": check.accepted,
        "summary": check.summary,
        "details": check.details,
        "causes": check.causes,
        "seconds": round(check.seconds, 3),
        "comparisons": [_comparison(name, comparison) for name, comparison in check.comparisons.items()],
        "tensors": check.tensors,
        "metrics": check.metrics,
        "noise_floor": _noise_floor(check) if check.noise or check.training_noise else None,
        "trainings": [_training(execution, comparison) for execution, comparison in check.trainings.items()],
    }


def _noise_floor(check: CheckResult) -> dict[str, Any]:
    outputs = [
        {
            "path": row.path,
            "ok": row.ok,
            "ulp": row.noise and row.noise.ulp,
            "floor": row.noise and row.noise.floor,
            "tolerance": row.noise.tolerance if row.noise else 0.0,
            "distance": row.distance,
            "differences": row.noise.differences if row.noise else {},
        }
        for row in noise_rows(check)
    ]
    return {"outputs": outputs, "remarks": check.noise_remarks}


def _training(execution: str, comparison: StepsComparison) -> dict[str, Any]:
    first = comparison.first_divergence
    return {
        "execution": execution,
        "ok": comparison.ok,
        "first_divergence": first and {"step": first.step, "name": first.name, "leaf": _leaf(first.leaf)},
        "steps": [
            {"step": step, "values": [{"name": name, "ok": found.ok} for name, found in by_name.items()]}
            for step, by_name in comparison.steps.items()
        ],
    }


def _comparison(name: str, comparison: Comparison) -> dict[str, Any]:
    return {"name": name, "ok": comparison.ok, "leaves": [_leaf(leaf) for leaf in comparison.leaves]}


def _leaf(leaf: LeafComparison) -> dict[str, Any]:
    return {"path": leaf.path, "ok": leaf.ok, **vars(leaf)}
