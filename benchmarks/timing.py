"""How long a call takes in each case, and how much longer than in the baseline.

A machine's speed drifts by more than the differences of interest. So the cases take turns, a short block of calls
each, every block right beside a block of the baseline; the ratio is taken within such a pair, and what is
reported is the median of many pairs. What counts is the processor's time: waiting for other programs is no cost.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cases import Case

_WARM_UP_SHARE = 0.25  # of a block's calls, made before its clock starts


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
      seconds: processor time of a call, one number for each block.
      ratios: the same, divided by the seconds of the block of the baseline beside it.
    """

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def time_in_turns(
    cases: Sequence[Case],
    calls: int,
    rounds: int,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Timing]:
    """Times the call of each case.

    Args:
      cases: the cases; the first is the baseline, which a block of its own is measured against too.
      calls: number of calls in a block.
      rounds: number of blocks of each case.
      on_round: called after each round with the number of rounds done.

    Returns:
      A timing for each case.
    """
    baseline = cases[0]
    timings = [Timing() for _ in cases]
    gc.collect()
    gc.freeze()  # TensorFlow's own objects: going through them at each block would take longer than the block
    for done in range(rounds):
        for case, timing in zip(cases, timings, strict=True):
            # Each of the two goes first in every other round: going second must be no advantage.
            if done % 2:
                seconds, plain = _time_block(case, calls), _time_block(baseline, calls)
            else:
                plain, seconds = _time_block(baseline, calls), _time_block(case, calls)
            timing.seconds.append(seconds)
            timing.ratios.append(seconds / plain)
        on_round(done + 1)
    gc.unfreeze()
    return timings


def _time_block(case: Case, calls: int) -> float:
    gc.collect()  # no block is to pay for the garbage of another
    with case.scope():
        for _ in range(int(calls * _WARM_UP_SHARE) + 1):
            case.call()
        start = time.process_time()
        for _ in range(calls):
            case.call()
        return (time.process_time() - start) / calls
