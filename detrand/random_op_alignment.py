"""Which random op of one program is which of another: by what they draw, not by the op seeds that they took.

Two ops are the same if type, shape and dtype are. A dimension that is unknown, as the batch is in a graph, may be any
size. The phase is no part of it: ``tf.Variable(tf.random.normal(...))`` draws before a variable is made, and the
port's initializer while it is made.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from detrand.seeding.records import RandomOp

_WINDOW = 8192  # ops that are aligned at once: a table of 8192 * 8192 bits takes 8 MB


class _Kind(NamedTuple):
    op_type: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_certain(self) -> bool:
        return self.shape is not None and None not in self.shape

    def may_be(self, other: _Kind) -> bool:
        if (self.op_type, self.dtype) != (other.op_type, other.dtype):
            return False
        if self.shape is None or other.shape is None:
            return True
        if len(self.shape) != len(other.shape):
            return False
        return all(None in sizes or sizes[0] == sizes[1] for sizes in zip(self.shape, other.shape, strict=True))


def align(a: Sequence[RandomOp], b: Sequence[RandomOp]) -> list[tuple[int, int]]:
    """Pairs the ops of two programs so that as many as possible are paired in order.

    Args:
      a: the ops of one program.
      b: those of the other one.

    Returns:
      The positions of each pair, in order. Programs of more than `_WINDOW` ops are aligned piece by piece.
    """
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    pairs = []
    i = j = 0
    while i < len(a) and j < len(b):
        if kinds_a[i].may_be(kinds_b[j]):
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        found = _longest_common_subsequence(kinds_a[i : i + _WINDOW], kinds_b[j : j + _WINDOW])
        pairs += [(i + x, j + y) for x, y in found]
        i, j = (pairs[-1][0] + 1, pairs[-1][1] + 1) if found else (i + _WINDOW, j + _WINDOW)
    return pairs


def pair_in_any_order(a: Sequence[RandomOp], b: Sequence[RandomOp]) -> list[tuple[int, int]]:
    """Pairs the ops of two programs wherever they are: the i-th of a kind with the i-th.

    Returns:
      The positions of each pair, in the order of ``a``.
    """
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    left = defaultdict(list)
    for j in reversed(range(len(b))):
        left[kinds_b[j]].append(j)
    uncertain = [kind for kind in left if not kind.is_certain]
    pairs = {}
    # What is known to be equal comes first: an unknown shape must not take what only another op can be.
    for i, kind in enumerate(kinds_a):
        if left.get(kind):
            pairs[i] = left[kind].pop()
    for i, kind in enumerate(kinds_a):
        if i not in pairs:
            others = uncertain if kind.is_certain else left
            found = next((other for other in others if left[other] and kind.may_be(other)), None)
            if found is not None:
                pairs[i] = left[found].pop()
    return sorted(pairs.items())


def op_seeds_of_counterparts(
    a: Sequence[RandomOp],
    b: Sequence[RandomOp],
    initialized_by_a: Mapping[int, str] | None = None,
    initialized_by_b: Mapping[int, str] | None = None,
) -> tuple[int, ...]:
    """Returns the op seeds with which the ops of ``b`` draw what those of ``a`` do, if only their order is another one.

    What initializes a variable is paired with what initializes that of the same name, or else some variable, if that
    can be: a Keras functional model draws all its initial weights before anything else. Ops that draw nothing, such as
    a dropout with rate 0, have no counterpart.

    Args:
      a: the ops of one program, each with an op seed of its own.
      b: those of the other one.
      initialized_by_a: name of the variable that an op seed initializes, where it is known.
      initialized_by_b: likewise, by the same names.

    Returns:
      An op seed for each op of ``b``, in order; nothing if the programs have other ops, or have them in the same order.
      ``a`` may have more that initialize nothing, where ``b`` has none: a graph has a dropout also where it keeps all.
    """
    a, b = ([op for op in ops if op.run == 0 and op.op_seed is not None] for ops in (a, b))
    drawing_a, drawing_b = ([op for op in ops if op.op_type] for ops in (a, b))
    named = _pairs_by_name(drawing_a, drawing_b, initialized_by_a or {}, initialized_by_b or {})
    found: dict[int, int] = {}
    for pairs in (
        _pairs_by_phase(drawing_a, drawing_b, named),
        _pairs_by_phase(drawing_a, drawing_b, []),
        pair_in_any_order(drawing_a, drawing_b),
    ):
        if len(pairs) == max(len(drawing_a), len(drawing_b)) or _all_that_initializes(drawing_a, drawing_b, pairs):
            found = {drawing_b[j].index: drawing_a[i].op_seed or 0 for i, j in pairs}
            break
    fresh = itertools.count(1 + max((op.op_seed or 0 for op in a), default=0))
    op_seeds = tuple(found[op.index] if op.index in found else next(fresh) for op in b)
    is_other = any(found[op.index] != op.op_seed for op in drawing_b if op.index in found)
    return op_seeds if is_other else ()


def _pairs_by_name(
    a: Sequence[RandomOp], b: Sequence[RandomOp], of_a: Mapping[int, str], of_b: Mapping[int, str]
) -> list[tuple[int, int]]:
    """Pairs what initializes variables of the same name, if each has as many ops and they are of the same kind."""
    by_name: list[dict[str, list[int]]] = [{}, {}]
    for found, ops, names in zip(by_name, (a, b), (of_a, of_b), strict=True):
        for position, op in enumerate(ops):
            if op.op_seed is not None and op.op_seed in names:
                found.setdefault(names[op.op_seed], []).append(position)
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    pairs = []
    for name, positions in by_name[0].items():
        others = by_name[1].get(name, [])
        if len(others) == len(positions):
            both = list(zip(positions, others, strict=True))
            pairs += both if all(kinds_a[i].may_be(kinds_b[j]) for i, j in both) else []
    return pairs


def _all_that_initializes(a: Sequence[RandomOp], b: Sequence[RandomOp], pairs: Sequence[tuple[int, int]]) -> bool:
    """Returns whether all ops of ``b`` initialize variables and have a counterpart, as all that do so in ``a``."""
    paired = {i for i, _ in pairs}
    left = [op for i, op in enumerate(a) if i not in paired]
    return len(pairs) == len(b) and all(op.phase == "init" for op in b) and all(op.phase != "init" for op in left)


def _pairs_by_phase(
    a: Sequence[RandomOp], b: Sequence[RandomOp], named: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Pairs, beside what is paired already, what initializes variables, and what does not."""
    pairs = list(named)
    done = [{pair[side] for pair in named} for side in (0, 1)]
    for is_init in (True, False):
        chosen = [
            [i for i, op in enumerate(ops) if (op.phase == "init") == is_init and i not in paired]
            for ops, paired in zip((a, b), done, strict=True)
        ]
        ops_a, ops_b = ([ops[i] for i in which] for ops, which in zip((a, b), chosen, strict=True))
        pairs += [(chosen[0][i], chosen[1][j]) for i, j in pair_in_any_order(ops_a, ops_b)]
    return pairs


def _longest_common_subsequence(a: Sequence[_Kind], b: Sequence[_Kind]) -> list[tuple[int, int]]:
    """Finds it by dynamic programming, a row of the table at once, as the bits of an integer.

    Bit j of row i is 0 where b[j] makes the longest common subsequence of a[: i + 1] and b[: j + 1] longer. See Hyyrö,
    "Bit-parallel LCS-length computation revisited", 2004.
    """
    every_bit = (1 << len(b)) - 1
    bits_of = _bits_of_equals(a, b)
    rows = [every_bit]
    for kind in a:
        row = rows[-1]
        equal = row & bits_of[kind]
        rows.append((row + equal | row - equal) & every_bit)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i] >> j - 1 & 1:
            j -= 1
        elif not rows[i - 1] >> j - 1 & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _bits_of_equals(a: Sequence[_Kind], b: Sequence[_Kind]) -> dict[_Kind, int]:
    """Returns where in ``b`` each kind of ``a`` is, as the bits of an integer."""
    bits: defaultdict[_Kind, int] = defaultdict(int)
    for j, kind in enumerate(b):
        bits[kind] |= 1 << j
    uncertain = [kind for kind in bits if not kind.is_certain]
    equals = {}
    for kind in set(a):
        equals[kind] = bits.get(kind, 0)
        for other in uncertain if kind.is_certain else list(bits):
            if kind.may_be(other):
                equals[kind] |= bits[other]
    return equals


def _kinds(ops: Sequence[RandomOp]) -> list[_Kind]:
    return [_Kind(op.op_type, op.dtype, op.shape) for op in ops]
