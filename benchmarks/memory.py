"""The growth of the process while a workload runs, for each case in a separate process.

``python -m benchmarks.memory WORKLOAD CASE CALLS`` prints the bytes. It always uses the CPU, because a second process
cannot always use the device.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from benchmarks import devices, workloads
from benchmarks.cases import Case

_WARM_UP_CALLS = 2_000  # to fill the memory pools of TensorFlow and Python


def growths(workload: str, cases: Sequence[Case]) -> list[int | None]:
    """Return by how many bytes a new process grows in each case of a workload; None for a case without such calls."""

    def growth(case: Case) -> int | None:
        return _growth_elsewhere(workload, case) if case.memory_calls else None

    # In parallel: unlike time, memory is not disturbed by other processes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(growth, cases))


def _growth_elsewhere(workload: str, case: Case) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", workload, case.name, str(case.memory_calls)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout)


def _growth_here(workload_name: str, case_name: str, calls: str) -> int:
    devices.choose("cpu")
    (group,) = workloads.chosen([workload_name])
    (workload,) = group.workloads
    (case,) = (case for case in workload.cases() if case.name == case_name)
    with case.scope():
        for _ in range(_WARM_UP_CALLS):
            case.call()
        before = _resident_bytes()
        for _ in range(int(calls)):
            case.call()
        return _resident_bytes() - before


def _resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


if __name__ == "__main__":
    print(_growth_here(*sys.argv[1:]))
