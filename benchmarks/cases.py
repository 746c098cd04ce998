"""A workload is a program in several cases, the first of which is what the others are compared with."""

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
      name: what the table calls it.
      call: runs the program; this is what is timed.
      scope: returns a context manager in which to call it. It leaves TensorFlow as it was.
      graph: what `call` executes, if that is a ``tf.function`` whose ops are to be counted.
      memory_calls: over how many calls the growth of the process is measured; 0 for not at all.
    """

    name: str
    call: Callable[[], object]
    scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    graph: tf.Graph | None = None
    memory_calls: int = 0


@dataclass(frozen=True)
class Workload:
    """A program, and how much of it to run.

    Attributes:
      name: what the command line calls it: its group, a slash, and the program.
      cases: builds the program in every case, in the order of the table; the first is the baseline.
      calls: how often a block of measurement calls it; None for as often as fits into the time of a block.
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
    """Workloads with the same cases: a table.

    Attributes:
      name: what the names of its workloads begin with.
      title: what the table is called.
      about: what a call is, in whole sentences.
      workloads: the rows of the table.
    """

    name: str
    title: str
    about: str
    workloads: tuple[Workload, ...]
