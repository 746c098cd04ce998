"""The search for the pairs of variables that the data flow leaves open, by what both programs compute.

`search_names` runs the port with one pairing after another. It changes a pair before the first divergence, and goes on
from the pairing with which the programs agree the furthest.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from detrand.checkpoints.upstream import all_upstream
from detrand.validation.frameworks.traces import Trace, TracedOp
from detrand.variables.pairing import Pairs

_MOST_RUNS = 24  # without a pairing that is better than all before: all orders of 4 layers of one shape

Proposal = tuple[Pairs, Mapping[str, Sequence[str]]]  # the pairs, and the port's names that a variable could have


def search_names(
    pair: Callable[[Mapping[str, str]], Proposal],
    diverged: Callable[[Pairs], Sequence[TracedOp]],
    trace: Trace,
    variables: Mapping[str, str],
    matrices: Collection[str],
    known: Mapping[str, str],
) -> tuple[Pairs, int]:
    """Return the pairs with which the fewest of TF1's ops have no counterpart, of those that were tried.

    The second value is the number of runs without progress after which the search was given up; 0 if nothing was left
    to try.

    Args:
      pair: proposes pairs, given the known ones.
      diverged: runs the port with these pairs, and returns TF1's ops without a counterpart, from the first one on.
      trace: the trace of TF1.
      variables: the names of TF1's variables, by the names of their ops.
      matrices: the variables to decide first: the vectors of a layer follow its matrix.
      known: pairs that are not changed.
    """
    first, rivals = pair(known)
    ops = diverged(first)
    fewest, runs = len(ops), 0
    best = first._replace(in_order=first.in_order - _proven(trace, variables, ops, rivals))
    numbers = itertools.count()
    kept: frozenset[str] = frozenset()  # the variables whose first counterpart is tried with others
    waiting = [(fewest, next(numbers), dict(known), kept, first, rivals, ops)]
    while waiting and fewest:
        count, _, known, kept, pairs, rivals, ops = heapq.heappop(waiting)
        names = rivals.keys() - known.keys() - _proven(trace, variables, ops, rivals)
        # An op that no variable decides has no counterpart where the port computes the same in a different way.
        undecided = next(filter(None, (_before(trace, variables, op, names) for op in ops)), [])
        name = next((name for name in undecided if name in matrices), next(iter(undecided), None))
        if name is None:
            continue
        used = pairs.names[name]
        heapq.heappush(waiting, (count, next(numbers), {**known, name: used}, kept | {name}, pairs, rivals, ops))
        for other in rivals[name]:
            if other == used or other in known.values():
                continue
            if runs == _MOST_RUNS:
                return best, runs
            changed = {**known, name: other}
            found, rivals_now = pair(changed)
            ops_now = diverged(found)
            runs += 1
            if len(ops_now) < fewest:
                proven = _proven(trace, variables, ops_now, rivals_now)
                best = found._replace(in_order=(found.in_order | (kept & first.in_order)) - proven)
                fewest, runs = len(ops_now), 0
            if ops_now:
                heapq.heappush(waiting, (len(ops_now), next(numbers), changed, kept, found, rivals_now, ops_now))
    return best, 0


def _before(trace: Trace, variables: Mapping[str, str], op: TracedOp, names: Collection[str]) -> list[str]:
    """Return those of the variables that an op depends on, the last one created first."""
    needed = all_upstream([op.name], lambda each: trace.ops[each].sources)
    found = dict.fromkeys(variables[each] for each in trace.ops if each in needed and each in variables)
    return [name for name in reversed(found) if name in names]


def _proven(
    trace: Trace, variables: Mapping[str, str], ops: Sequence[TracedOp], rivals: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the variables whose pairs a value before the first divergence proves: it depends on all their rivals."""
    proven: set[str] = set()
    for source in trace.sources(ops[0]) if ops else ():
        names = _before(trace, variables, source, rivals)
        counts = Counter(tuple(rivals[name]) for name in names)
        proven.update(name for name in names if counts[tuple(rivals[name])] == len(rivals[name]))
    return proven
