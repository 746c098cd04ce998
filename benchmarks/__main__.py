"""``python -m benchmarks``: what seeding costs, beside plain TensorFlow and the official tool."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: its notices are not ours

from rich.console import Console

from benchmarks import memory, workloads
from benchmarks.cases import all_cases
from benchmarks.report import Result, Row, as_json, print_table
from benchmarks.timing import Spread, time_in_turns

_ROUNDS, _QUICK_ROUNDS = 60, 3
_WIDTH = 120  # where there is no terminal to tell
_QUICK_SHARE = 50  # --quick makes one call in so many


def main() -> None:
    """Runs every workload, and prints a table of each as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it works, not how fast it is")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE as well")
    arguments = parser.parse_args()

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    results = []
    for position in range(len(workloads.ALL)):
        # The spinner shows on a terminal alone.
        with console.status("") as status:
            results.append(_measure(position, arguments.quick, status.update))
        print_table(console, results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(results, arguments.quick), indent=2) + "\n")


def _measure(position: int, quick: bool, show: Callable[[str], None]) -> Result:
    workload = workloads.ALL[position]
    share, rounds = (_QUICK_SHARE, _QUICK_ROUNDS) if quick else (1, _ROUNDS)
    memory_calls = workload.memory_calls // share

    growths: list[int] | list[None] = [None] * len(workload.cases)
    if memory_calls:
        show(f"{workload.name}: memory")
        growths = memory.growths(position, workload.cases, memory_calls)

    every_case = all_cases()
    show(f"{workload.name}: time")
    timings = time_in_turns(
        workload.make(),
        [every_case[name] for name in workload.cases],
        calls=max(workload.calls // share, 2),
        rounds=rounds,
        on_round=lambda done: show(f"{workload.name}: time, round {done} of {rounds}"),
    )
    rows = tuple(
        Row(case, Spread.of(timing.seconds), Spread.of(timing.ratios), growth)
        for case, timing, growth in zip(workload.cases, timings, growths, strict=True)
    )
    return Result(workload.name, rows, memory_calls)


if __name__ == "__main__":
    main()
