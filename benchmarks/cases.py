"""Groups, workloads and cases: a workload is a program in several cases, and the first case is the baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Case:
    """One way to run a program.

    Attributes:
      name: its name in the table.
      call: runs the program; its time is measured.
      scope: returns a context manager to call it in, which leaves TensorFlow as it was.
      graph: the graph of a ``tf.function`` that `call` executes, if its ops are to be counted.
      memory_calls: number of calls in which the growth of the process is measured; 0 to measure no growth.
    """

    name: str
    call: Callable[[], object]
    scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    graph: tf.Graph | None = None
    memory_calls: int = 0


@dataclass(frozen=True)
class Workload:
    """A program in several cases.

    Attributes:
      name: its name on the command line: the group, a slash, and the program.
      cases: builds the program in every case, in the order of the table; the first case is the baseline.
      calls: number of calls in a block of measurement; None for as many as fit into the time of a block.
    """

    name: str
    cases: Callable[[], list[Case]]
    calls: int | None = None

    @property
    def program(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Group:
    """Workloads with the same cases, which share a table.

    Attributes:
      name: the beginning of the names of its workloads.
      title: the title of the table.
      about: describes a call, in whole sentences.
      workloads: the rows of the table.
    """

    name: str
    title: str
    about: str
    workloads: tuple[Workload, ...]
