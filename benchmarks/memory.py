"""How much the process grows while a workload runs, each case in a process of its own.

``python -m benchmarks.memory WORKLOAD CASE CALLS`` prints the bytes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from benchmarks import workloads
from benchmarks.cases import Case, Workload

_WARM_UP_CALLS = 2_000  # TensorFlow's and Python's own pools fill up first


def growths(workload: Workload, cases: Sequence[Case], calls: int) -> list[int]:
    """Returns by how many bytes a fresh process grows in some calls of a workload, for each case.

    Args:
      workload: the workload.
      cases: its cases.
      calls: number of calls.
    """
    # Side by side: unlike time, memory is not disturbed by the neighbours.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda case: _growth_elsewhere(workload.name, case.name, calls), cases))


def _growth_elsewhere(workload: str, case: str, calls: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", workload, case, str(calls)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout)


def _growth_here(workload: str, case_name: str, calls: int) -> int:
    (case,) = (case for case in workloads.chosen([workload])[0].cases() if case.name == case_name)
    with case.scope():
        for _ in range(min(_WARM_UP_CALLS, calls)):
            case.call()
        before = _resident_bytes()
        for _ in range(calls):
            case.call()
        return _resident_bytes() - before


def _resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


if __name__ == "__main__":
    print(_growth_here(sys.argv[1], sys.argv[2], int(sys.argv[3])))
