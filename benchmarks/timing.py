"""The time of a call in each case, and its ratio to the baseline.

A machine's speed drifts by more than the differences of interest. So the cases take turns, a short block of calls
each, and every block runs next to a block of the baseline. The ratio is taken within such a pair, and the median of
many pairs is reported.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.cases import Case

_WARM_UP_SHARE = 0.25  # of a block's calls, which run before the clock starts
# A scope replaces functions, so CPython specializes the bytecode that calls them again, in about 50 calls (PEP 659). A
# program enters a scope once, but here each block does, and its few calls must not include that time.
_WARM_UP_CALLS = 100  # the least number, if a block has so many calls


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    lower_quartile: float
    median: float
    upper_quartile: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(*(float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))))


@dataclass
class Timing:
    """The measurements of one case.

    Attributes:
      seconds: the time of a call, for each block.
      ratios: that time divided by the time in the adjacent block of the baseline.
    """

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Effort:
    """The number and length of the blocks.

    Attributes:
      rounds: number of blocks of each case.
      block_seconds: approximate time of a block, which has at least one call.
    """

    rounds: int
    block_seconds: float


FULL = Effort(rounds=30, block_seconds=0.015)
QUICK = Effort(rounds=2, block_seconds=0.0)  # shows only that everything works


def time_in_turns(
    cases: Sequence[Case],
    effort: Effort,
    calls: int | None = None,
    clock: Callable[[], float] = time.process_time,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Timing]:
    """Return the timing of each case.

    Args:
      cases: the cases; the first is the baseline, which is also measured against itself.
      effort: the number and length of the blocks.
      calls: number of calls in a block; None for as many as fit into the time of a block.
      clock: returns seconds.
      on_round: called after each round with the number of completed rounds.
    """
    with _garbage_set_aside():
        blocks = [_Block(case, clock, calls or _calls_in(case, effort.block_seconds, clock)) for case in cases]
        timings = [Timing() for _ in cases]
        for done in range(effort.rounds):
            for block, timing in zip(blocks, timings, strict=True):
                # The two alternate in going first, because going second could be an advantage.
                if done % 2:
                    seconds, plain = block.time(), blocks[0].time()
                else:
                    plain, seconds = blocks[0].time(), block.time()
                timing.seconds.append(seconds)
                timing.ratios.append(seconds / plain)
            on_round(done + 1)
    return timings


@contextlib.contextmanager
def _garbage_set_aside() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # to traverse TensorFlow's objects before each block would take longer than the block
    try:
        yield
    finally:
        gc.unfreeze()


class _Block(NamedTuple):
    case: Case
    clock: Callable[[], float]
    calls: int

    def time(self) -> float:
        """Return the seconds of a call."""
        gc.collect()  # so that no block collects the garbage of another block
        with self.case.scope():
            for _ in range(self._warm_up_calls):
                self.case.call()
            start = self.clock()
            for _ in range(self.calls):
                self.case.call()
            return (self.clock() - start) / self.calls

    @property
    def _warm_up_calls(self) -> int:
        return max(int(self.calls * _WARM_UP_SHARE) + 1, min(self.calls, _WARM_UP_CALLS))


def _calls_in(case: Case, seconds: float, clock: Callable[[], float]) -> int:
    return max(1, int(seconds / _Block(case, clock, calls=3).time())) if seconds else 1
