"""``python -m benchmarks.philox``: how fast `detrand.philox` draws, beside NumPy's own generators.

The cases take turns, each measurement right beside one of the baseline, and the ratio is taken within such a pair: so a
machine whose speed drifts does not favour one of them. Everything runs in one thread, and its processor time is what
counts: waiting for other programs is nobody's fault.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from detrand import philox

_ROUNDS, _QUICK_ROUNDS = 60, 3
_COUNT = 1_000_000
_WIDTH = 120  # where there is no terminal to tell


def all_cases(count: int) -> dict[str, Callable[[], object]]:
    """Returns what is timed, by name; the first is the baseline."""
    numpy = np.random.Generator(np.random.Philox(42))
    return {
        "NumPy Philox, float32": lambda: numpy.random(count, dtype=np.float32),
        "uniform, float32": lambda: philox.uniform(count, 42, 7),
        "uniform, float32, a range": lambda: philox.uniform(count, 42, 7, minval=-0.1, maxval=0.1),
        "uniform, float64": lambda: philox.uniform(count, 42, 7, dtype="float64"),
        "uniform, bfloat16": lambda: philox.uniform(count, 42, 7, dtype="bfloat16"),
        "uniform, float16": lambda: philox.uniform(count, 42, 7, dtype="float16"),
        "dropout_mask": lambda: philox.dropout_mask(count, 0.1, 42, 7),
        "randint, int32": lambda: philox.randint(count, 0, 10, 42, 7),
        "normal, float32": lambda: philox.normal(count, 42, 7),
        "truncated_normal, float32": lambda: philox.truncated_normal(count, 42, 7),
        "gamma, float32": lambda: philox.gamma(count, 2.5, 42, 7),
    }


def measure(
    cases: dict[str, Callable[[], object]], rounds: int, show: Callable[[str], None] = lambda text: None
) -> dict[str, dict[str, float]]:
    """Times every case beside the baseline, the first of them.

    Args:
      cases: What to time, by name.
      rounds: How many times.
      show: Called with a line on how far it is.

    Returns:
      For each case, medians over the rounds: ``"milliseconds"``, and ``"ratio"``, the baseline's time divided by the
      case's (above 1 is faster than the baseline), with the quartiles ``"ratio_lower"`` and ``"ratio_upper"``.
    """
    baseline = next(iter(cases.values()))
    results = {}
    for name, case in cases.items():
        show(name)
        case()  # warm-up
        seconds, ratios = [], []
        for round_ in range(rounds):
            if round_ % 2:  # going second must be no advantage
                taken = _seconds(case)
                plain = _seconds(baseline)
            else:
                plain = _seconds(baseline)
                taken = _seconds(case)
            seconds.append(taken)
            ratios.append(plain / taken)
        lower, median, upper = (float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75)))
        results[name] = {
            "milliseconds": statistics.median(seconds) * 1e3,
            "ratio": median,
            "ratio_lower": lower,
            "ratio_upper": upper,
        }
    return results


def _seconds(case: Callable[[], object]) -> float:
    start = time.process_time()
    case()
    return time.process_time() - start


def main() -> None:
    """Prints a table, and writes a JSON file if it is asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.philox", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=_COUNT, help=f"numbers in a draw (default {_COUNT:,})")
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it works, not how fast it is")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE as well")
    arguments = parser.parse_args()

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    with console.status("") as status:  # shows on a terminal alone
        results = measure(all_cases(arguments.count), _QUICK_ROUNDS if arguments.quick else _ROUNDS, status.update)
    console.print(_table(results, arguments.count))
    if arguments.json:
        machine = {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count()}
        contents = {"count": arguments.count, "quick": arguments.quick, "machine": machine, "results": results}
        arguments.json.write_text(json.dumps(contents, indent=2) + "\n")


def _table(results: dict[str, dict[str, float]], count: int) -> Table:
    table = Table(title=f"{count:,} numbers", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("case", "milliseconds", "speed relative to the first"):
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for name, result in results.items():
        ratio = "{ratio:.2f} ({ratio_lower:.2f} to {ratio_upper:.2f})".format(**result)
        table.add_row(name, f"{result['milliseconds']:.2f}", ratio)
    return table


if __name__ == "__main__":
    main()
