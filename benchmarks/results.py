"""The results of a run, with its time and machine; also as JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

import detrand
from benchmarks.devices import Device
from benchmarks.timing import Spread

_PACKAGES = ("tensorflow", "keras", "tf-keras", "numpy")


@dataclass(frozen=True)
class Row:
    """One case of a workload.

    Attributes:
      case: its name.
      seconds: the time of a call.
      ratio: the ratio of that time to the baseline's.
      growth_bytes: the growth of the process; None if it was not measured.
      memory_calls: the number of calls in which the process grew.
      ops: the number of ops in the graph of a call; None if they were not counted.
    """

    case: str
    seconds: Spread
    ratio: Spread
    growth_bytes: int | None
    memory_calls: int
    ops: int | None


@dataclass(frozen=True)
class Result:
    """All cases of a workload, the baseline first.

    Attributes:
      workload: its name.
      rows: the cases.
      error: why the workload did not run; None if it did.
    """

    workload: str
    rows: tuple[Row, ...] = ()
    error: str | None = None


@dataclass
class Run:
    """A run of the benchmarks.

    Attributes:
      quick: whether the run only shows that everything works.
      clock: the name of the time that was measured.
      machine: the machine and the versions, by their names.
      started: the start of the run in UTC.
      results: the results so far.
    """

    quick: bool
    clock: str
    machine: dict[str, str]
    started: str
    results: list[Result] = field(default_factory=list)

    @classmethod
    def on(cls, device: Device, quick: bool) -> Run:
        """Return a run that starts now."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return cls(quick, device.clock_name, _machine(device), now.strftime("%Y-%m-%d %H:%M UTC"))

    @property
    def failed(self) -> bool:
        """Whether a workload did not run."""
        return any(result.error is not None for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return the run as nested dicts and lists."""
        return asdict(self)


def _machine(device: Device) -> dict[str, str]:
    machine = {
        "device": device.kind.upper(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": _system(),
        "Python": platform.python_version(),
        "detrand": detrand.__version__,
    }
    if device.kind == "gpu":
        gpu = tf.config.list_physical_devices("GPU")[0]
        machine["device"] = tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    return machine | {package: importlib.metadata.version(package) for package in _PACKAGES}


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:  # not Linux
        return f"{platform.system()} {platform.release()}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty on Linux
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
