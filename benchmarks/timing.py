"""How long a call takes in each case, and how much longer than in the baseline.

A machine's speed drifts by more than the differences of interest. So the cases take turns, a short block of calls
each, every block right beside a block of the baseline; the ratio is taken within such a pair, and what is
reported is the median of many pairs.
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

_WARM_UP_SHARE = 0.25  # of a block's calls, made before its clock starts
# Scopes replace functions, after which CPython specializes the bytecode that calls them anew, in some 50 calls (PEP
# 659). A program enters a scope once; here each block does, and must not pay for that in each of its few calls.
_WARM_UP_CALLS = 100  # at least so many, if a block has them


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    lower_quartile: float
    median: float
    upper_quartile: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarizes the values, of which there is at least one."""
        return cls(*(float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))))


@dataclass
class Timing:
    """What was measured in one case.

    Attributes:
      seconds: of a call, one number for each block.
      ratios: the same, divided by the seconds of the block of the baseline beside it.
    """

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
      rounds: number of blocks of each case.
      block_seconds: how long a block takes, about; at least one call is made.
    """

    rounds: int
    block_seconds: float


FULL = Effort(rounds=30, block_seconds=0.015)
QUICK = Effort(rounds=2, block_seconds=0.0)  # to see that it works, not how fast it is


def time_in_turns(
    cases: Sequence[Case],
    effort: Effort,
    calls: int | None = None,
    clock: Callable[[], float] = time.process_time,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Timing]:
    """Times the call of each case.

    Args:
      cases: the cases; the first is the baseline, which a block of its own is measured against too.
      effort: how much to measure.
      calls: number of calls in a block; None for as many in each case as the time of a block allows.
      clock: returns seconds.
      on_round: called after each round with the number of rounds done.

    Returns:
      A timing for each case.
    """
    with _garbage_set_aside():
        blocks = [_Block(case, clock, calls or _calls_in(case, effort.block_seconds, clock)) for case in cases]
        timings = [Timing() for _ in cases]
        for done in range(effort.rounds):
            for block, timing in zip(blocks, timings, strict=True):
                # Each of the two goes first in every other round: going second must be no advantage.
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
    gc.freeze()  # TensorFlow's own objects: going through them at each block would take longer than the block
    try:
        yield
    finally:
        gc.unfreeze()


class _Block(NamedTuple):
    case: Case
    clock: Callable[[], float]
    calls: int

    def time(self) -> float:
        """Returns the seconds of a call."""
        gc.collect()  # no block is to pay for the garbage of another
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
