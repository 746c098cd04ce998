"""``python -m benchmarks``: the cost of seeding, the shim and the recorder, compared with plain TensorFlow."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: errors only

import tensorflow as tf

from benchmarks import devices, memory, page, plot, tables, terminal, timing, workloads
from benchmarks.cases import Group, Workload
from benchmarks.devices import Device
from benchmarks.results import Result, Row, Run
from benchmarks.timing import Spread


def main() -> int:
    """Run the workloads, and print the table of each group as soon as it is complete.

    Returns:
      The exit status: 1 if a workload did not run. For wrong arguments, the parser exits with 2 before anything runs.
    """
    arguments, groups, device = _parsed()
    # TF1 code warns that it is deprecated.
    warnings.filterwarnings("ignore", ".*will be removed in a future version", UserWarning)
    tf.get_logger().setLevel("ERROR")

    run = Run.on(device, arguments.quick)
    console = terminal.console()
    with terminal.showing(console, sum(len(group.workloads) for group in groups)) as shown, device.placement():
        for group in groups:
            results = []
            for workload in group.workloads:
                results.append(_measured(workload, device, arguments.quick, shown.at))
                shown.one_done()
            run.results += results
            ran = [result for result in results if result.error is None]
            for table in tables.of_group(group, ran, run.clock) if ran else ():
                terminal.print_table(console, group.title, table)
            for result in results:
                if result.error is not None:
                    console.print(f"{result.workload} did not run: {result.error}", markup=False)

    if arguments.json:
        arguments.json.write_text(json.dumps(run.as_json(), indent=2) + "\n")
    if arguments.plot:
        plot.draw(arguments.plot, run, groups)
    if arguments.rst:
        page.write(arguments.rst, run, groups, arguments.plot)
    return int(run.failed)


def _parsed() -> tuple[argparse.Namespace, list[Group], Device]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"workloads:\n{workloads.listed()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="WORKLOAD", nargs="*", help="a workload, or a group of them, to run; default: all"
    )
    parser.add_argument(
        "--device", choices=devices.KINDS, help="the device to run on; default: a TPU or a GPU if there is one"
    )
    parser.add_argument("--quick", action="store_true", help="run few repeats, to see that everything works")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the ratios (.svg or .png; needs matplotlib)")
    parser.add_argument(
        "--rst",
        metavar="FILE",
        type=Path,
        help="write the page of the documentation, docs/benchmarks.rst, with the plot",
    )
    arguments = parser.parse_args()
    try:
        groups = workloads.chosen(arguments.names)
        for file in (arguments.json, arguments.plot, arguments.rst):
            if file and not file.parent.is_dir():
                raise ValueError(f"{file}: the folder {file.parent} does not exist")
        if arguments.plot:
            plot.check(arguments.plot)
        return arguments, groups, devices.choose(arguments.device)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _measured(workload: Workload, device: Device, quick: bool, show: Callable[[str], None]) -> Result:
    """Return the result of a workload; an error is part of the result, so that the other workloads still run."""
    try:
        return Result(workload.name, _rows(workload, device, quick, show))
    except Exception as error:
        return Result(workload.name, error=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _rows(workload: Workload, device: Device, quick: bool, show: Callable[[str], None]) -> tuple[Row, ...]:
    show(f"{workload.name}: preparation")
    cases = workload.cases()
    growths: list[int | None] = [None] * len(cases)
    if any(case.memory_calls for case in cases) and not quick:  # separate processes take long to start
        show(f"{workload.name}: memory")
        growths = memory.growths(workload.name, cases)

    show(f"{workload.name}: time")
    effort = timing.QUICK if quick else timing.FULL
    timings = timing.time_in_turns(
        cases,
        effort,
        workload.calls,
        device.clock,
        on_round=lambda done: show(f"{workload.name}: time, round {done} of {effort.rounds}"),
    )
    return tuple(
        Row(
            case.name,
            Spread.of(measured.seconds),
            Spread.of(measured.ratios),
            growth,
            case.memory_calls,
            None if case.graph is None else len(case.graph.get_operations()),
        )
        for case, measured, growth in zip(cases, timings, growths, strict=True)
    )


if __name__ == "__main__":
    raise SystemExit(main())
