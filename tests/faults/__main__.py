"""Validates the ports with one fault each, and prints what the reports say about the faults.

    python -m tests.faults [--only NAME ...] [--sample N] [--sound] [--json FILE]

``--sound`` validates the same ports without their faults, which must pass; it exits with 1 if one fails. The columns:

- caught: the report is not ok
- placed: a finding names the layer, op or variable at fault, or the faulty line
- cause: one of the first two findings says the cause
- line: a finding names the faulty line of the port
- confirmed: the first finding that says the cause is confirmed
"""

import argparse
import gc
import json
import random
import re
import sys
import time
import traceback
from typing import Any

import keras

import detrand
from tests.faults.case import Case, Fault, cases_of

# Titles that name no cause, or everything that may be one.
GENERIC = "not known|unknown|or one of its hyperparameters|the loss or the weight of a loss"
COLUMNS = ("caught", "placed", "cause", "line", "confirmed")


def without_places(text: str) -> str:
    """Return a text without file names and quoted source lines, which may hold any word."""
    return re.sub(r"\S+\.py(:\d+)?", "", re.sub(r"\n *> .*", "", text))


def cause_of(finding: detrand.Finding) -> str:
    """Return what a finding says about the cause: all of its text but the two places, and one other possible cause."""
    if re.search(GENERIC, finding.title):
        return ""
    return without_places("\n".join([finding.title, *finding.others[:1], finding.remedy]))


def judge(case: Case, fault: Fault, report: detrand.Report) -> dict[str, bool]:
    """Return what a report says about one fault."""
    texts = [str(finding) for finding in report.findings]
    line = any(re.search(rf"\b{re.escape(place)}\b", text) for place in case.lines(fault) for text in texts)
    first = report.findings[: 1 + len(case.truth)]
    causes = [finding for finding in first if re.search(fault.cause, cause_of(finding), re.IGNORECASE)]
    return {
        "caught": not report.ok,
        "placed": line or any(re.search(fault.words, without_places(text), re.IGNORECASE) for text in texts),
        "cause": bool(causes),
        "line": line,
        "confirmed": any(finding.confirmed for finding in causes[:1]),
    }


def run(case: Case, fault: bool) -> dict[str, Any]:
    """Validate a case, and return its row: a value for each column, the findings and the seconds."""
    start, row = time.perf_counter(), {"name": case.name, "kind": case.kind}
    try:
        report = detrand.validate(case.migration(fault=fault))
    except Exception:
        return {**row, "error": traceback.format_exc(), "ok": None, **dict.fromkeys(COLUMNS, False)}
    finally:
        keras.backend.clear_session()
        gc.collect()
    judged = [judge(case, each, report) for each in case.truth] if fault else []
    return {
        **row,
        "ok": report.ok,
        "verdict": getattr(report, "verdict", None),
        **{column: all(each[column] for each in judged) for column in COLUMNS if judged},
        "findings": [str(finding) for finding in report.findings],
        "failed checks": [check.name for check in report.checks if not check.ok],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases or kinds")
    parser.add_argument("--sample", type=int, metavar="N", help="N cases, the same each time")
    parser.add_argument("--sound", action="store_true", help="the same ports without their faults")
    parser.add_argument("--json", metavar="FILE", help="write the rows with all findings")
    arguments = parser.parse_args()
    cases = list(cases_of("tests.faults.single"))
    if arguments.only:
        cases = [case for case in cases if {case.name, case.kind} & set(arguments.only)]
    if arguments.sample:
        cases = random.Random(0).sample(cases, min(arguments.sample, len(cases)))
    rows: list[dict[str, Any]] = []
    width = max((len(case.name) for case in cases), default=4)
    columns = ("passed",) if arguments.sound else COLUMNS
    print(f"{'case':{width}} ", *(f"{column:9}" for column in columns), "seconds  kind")
    for case in cases:
        row = run(case, fault=not arguments.sound)
        row["passed"] = row["ok"] is True
        rows.append(row)
        marks = (f"{'yes' if row[column] else '-':9}" for column in columns)
        print(f"{case.name:{width}} ", *marks, f"{row.get('seconds', 'error'):>7}  {case.kind}", flush=True)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(rows, file, indent=1)
    counts = [sum(bool(row[column]) for row in rows) for column in columns]
    print(f"{f'of {len(rows)}':{width}} ", *(f"{count:<9}" for count in counts))
    print(f"{'%':{width}} ", *(f"{100 * count / max(1, len(rows)):<9.0f}" for count in counts))
    return int(any(not row["passed"] for row in rows)) if arguments.sound else 0


if __name__ == "__main__":
    sys.exit(main())
