"""The search for the pairs of variables that the data flow leaves open, by what both programs compute.

`search_names` runs the port with one pairing after another. It changes a pair before the first divergence, and goes on
from the pairing with which the programs agree the furthest.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from detrand.validation.diagnosis.trace import Trace, TracedOp
from detrand.validation.programs.upstream import all_upstream
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
) -> Pairs:
    """Return the pairs with which the fewest of TF1's ops have no counterpart, of those that were tried.

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
    fewest, best, runs = len(ops), first, 0
    numbers = itertools.count()
    waiting = [(fewest, next(numbers), dict(known), first, rivals, ops)]
    while waiting and fewest:
        count, _, known, pairs, rivals, ops = heapq.heappop(waiting)
        undecided = _before(trace, variables, ops[0], rivals.keys() - known.keys())
        name = next((name for name in undecided if name in matrices), next(iter(undecided), None))
        if name is None:
            continue
        kept = pairs.names[name]
        heapq.heappush(waiting, (count, next(numbers), {**known, name: kept}, pairs, rivals, ops))
        for other in rivals[name]:
            if other == kept or other in known.values():
                continue
            if runs == _MOST_RUNS:
                return best
            changed = {**known, name: other}
            pairs, rivals_now = pair(changed)
            ops_now = diverged(pairs)
            runs += 1
            if len(ops_now) < fewest:
                fewest, best, runs = len(ops_now), pairs, 0
            if ops_now:
                heapq.heappush(waiting, (len(ops_now), next(numbers), changed, pairs, rivals_now, ops_now))
    return best


def _before(trace: Trace, variables: Mapping[str, str], op: TracedOp, names: Collection[str]) -> list[str]:
    """Return those of the variables that an op depends on, the last one created first."""
    needed = all_upstream([op.name], lambda each: trace.ops[each].inputs)
    found = [variables[each] for each in trace.ops if each in needed and variables.get(each) in names]
    return found[::-1]
