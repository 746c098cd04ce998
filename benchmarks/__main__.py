"""``python -m benchmarks``: what seeding and the shim cost, beside plain TensorFlow and its official tools."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: its notices are not ours

import tensorflow as tf
from rich.console import Console

from benchmarks import memory, workloads
from benchmarks.cases import Workload
from benchmarks.report import Result, Row, as_json, print_table
from benchmarks.timing import Spread, time_in_turns

_WIDTH = 120  # where there is no terminal to tell
_QUICK_ROUNDS = 3
_QUICK_SHARE = 50  # --quick makes one call in so many


def main() -> None:
    """Runs the workloads, and prints a table of each as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", metavar="WORKLOAD", nargs="*", help=f"which to run, by name ({workloads.NAMES}); default: all"
    )
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it works, not how fast it is")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE as well")
    arguments = parser.parse_args()
    try:
        chosen = workloads.chosen(arguments.names)
    except ValueError as error:
        parser.error(str(error))

    # TF1 code is deprecated, and says so.
    warnings.filterwarnings("ignore", ".*will be removed in a future version", UserWarning)
    tf.get_logger().setLevel("ERROR")

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    results = []
    for workload in chosen:
        # The spinner shows on a terminal alone.
        with console.status("") as status:
            results.append(_measure(workload, arguments.quick, status.update))
        print_table(console, results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(results, arguments.quick), indent=2) + "\n")


def _measure(workload: Workload, quick: bool, show: Callable[[str], None]) -> Result:
    share = _QUICK_SHARE if quick else 1
    rounds = _QUICK_ROUNDS if quick else workload.rounds
    memory_calls = workload.memory_calls // share

    show(f"{workload.title}: preparation")
    cases = workload.cases()
    growths: list[int] | list[None] = [None] * len(cases)
    if memory_calls:
        show(f"{workload.title}: memory")
        growths = memory.growths(workload, cases, memory_calls)

    show(f"{workload.title}: time")
    timings = time_in_turns(
        cases,
        calls=max(workload.calls // share, 1),
        rounds=rounds,
        on_round=lambda done: show(f"{workload.title}: time, round {done} of {rounds}"),
    )
    rows = tuple(
        Row(
            case.name,
            Spread.of(timing.seconds),
            Spread.of(timing.ratios),
            growth,
            None if case.graph is None else len(case.graph.get_operations()),
        )
        for case, timing, growth in zip(cases, timings, growths, strict=True)
    )
    return Result(workload.name, workload.title, rows, memory_calls)


if __name__ == "__main__":
    main()
