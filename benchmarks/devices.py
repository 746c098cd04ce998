"""The device that runs the workloads: the CPU, a GPU or a TPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

KINDS = ("cpu", "gpu", "tpu")
_FASTEST_FIRST = ("tpu", "gpu", "cpu")


@dataclass(frozen=True)
class Device:
    """A device to measure on.

    Attributes:
      kind: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      clock: returns seconds: processor time on the CPU, which leaves out waiting for other programs, and the time
        until the device has finished all work elsewhere.
      clock_name: the name of that time.
      placement: returns a context manager in which ops run on the device.
    """

    kind: str
    clock: Callable[[], float]
    clock_name: str
    placement: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


def choose(kind: str | None = None) -> Device:
    """Make TensorFlow use a device; to be called before TensorFlow has run anything.

    Args:
      kind: ``"cpu"``, ``"gpu"`` or ``"tpu"``; None for a TPU if there is one, else a GPU, else the CPU.

    Raises:
      ValueError: if TensorFlow finds no device of that kind.
    """
    found = [candidate for candidate in _FASTEST_FIRST if tf.config.list_physical_devices(candidate.upper())]
    kind = kind or found[0]
    if kind not in found:
        raise ValueError(
            f"--device {kind}: TensorFlow finds no {kind.upper()} on this machine, only: {', '.join(found)}"
        )
    return {"cpu": _cpu, "gpu": _gpu, "tpu": _tpu}[kind]()


def _cpu() -> Device:
    if tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices([], "GPU")
    return Device("cpu", time.process_time, "processor time")


def _gpu() -> Device:
    return Device("gpu", _when_all_is_done, "time")


def _tpu() -> Device:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return Device("tpu", _when_all_is_done, "time", lambda: tf.device("/device:TPU:0"))


def _when_all_is_done() -> float:
    tf.test.experimental.sync_devices()
    return time.perf_counter()
