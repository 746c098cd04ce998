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
      seconds: time of a call.
      ratio: to the baseline's.
      growth_bytes: how much the process grew; None if that was not measured.
      memory_calls: over how many calls it grew.
      ops: how many ops the graph has that a call executes; None if they were not counted.
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
      error: why it did not run; None if it did.
    """

    workload: str
    rows: tuple[Row, ...] = ()
    error: str | None = None


@dataclass
class Run:
    """A run of the benchmarks.

    Attributes:
      quick: whether it was only to see that everything works.
      clock: what kind of time was measured.
      machine: what it ran on, and with which versions, by what these are called.
      started: when, in UTC.
      results: what was measured, so far.
    """

    quick: bool
    clock: str
    machine: dict[str, str]
    started: str
    results: list[Result] = field(default_factory=list)

    @classmethod
    def on(cls, device: Device, quick: bool) -> Run:
        """Returns a run that starts now."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return cls(quick, device.clock_name, _machine(device), now.strftime("%Y-%m-%d %H:%M UTC"))

    @property
    def failed(self) -> bool:
        """Whether a workload did not run."""
        return any(result.error is not None for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Returns the run as nested dicts and lists."""
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
    except OSError:  # no Linux
        return f"{platform.system()} {platform.release()}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # Linux; platform.processor() is empty there
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
