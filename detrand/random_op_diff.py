"""`diff_random_ops`: where the random ops of two programs part, and which op shifted the op seeds of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detrand.errors import ArgumentError
from detrand.seeding.records import RandomOp

if TYPE_CHECKING:
    from detrand.random_tool import DeterministicRandomTestTool
from collections import defaultdict
from collections.abc import Mapping

_CONTEXT = 3  # lines around a difference
_IN_A_ROW = 8  # ops of one program that are all shown
_LINES = 60
_SOURCES = 10


def diff_random_ops(
    a: DeterministicRandomTestTool | Sequence[RandomOp],
    b: DeterministicRandomTestTool | Sequence[RandomOp],
    *,
    a_name: str = "a",
    b_name: str = "b",
) -> str:
    """Returns where the random ops of two programs first differ, and a diff of all of them, as text.

    In ``"num_random_ops"`` mode one op too many gives all ops after it other op seeds, and so other numbers. The first
    line of the text names that op. The ops are paired by what they draw (type, shape and dtype; a dimension that is
    unknown in a graph may be any size), not by their op seeds. In ``"constant"`` mode the order of ops means nothing.

    >>> import tensorflow as tf
    >>> from detrand import DeterministicRandomTestTool, diff_random_ops
    >>> tf1 = DeterministicRandomTestTool(mode="num_random_ops")
    >>> with tf1.scope(), tf.Graph().as_default():
    ...     hidden = tf.nn.dropout(tf.random.normal((4, 3)), rate=0.5)
    ...     noise = tf.random.normal((2,))
    >>> port = DeterministicRandomTestTool(mode="num_random_ops")
    >>> with port.scope():
    ...     hidden = tf.random.normal((4, 3))
    ...     noise = tf.random.normal((2,))
    >>> print(diff_random_ops(tf1, port, a_name="TF1", b_name="port"))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    TF1 has a random op that port has not: RandomUniform (4, 3) float32 (compute, op seed 1, run 0) at ...;
    the op seed of the op after it is 1 lower in port
    <BLANKLINE>
    --- TF1: 3 random ops
    +++ port: 2 random ops
      op seed 0: RandomStandardNormal (4, 3) float32, compute, at ...
    - op seed 1: RandomUniform (4, 3) float32, compute, at ...
      op seed 2 -> 1: RandomStandardNormal (2,) float32, compute, at ...

    Random numbers that no scope controls shift nothing. They are listed below the diff, and make the programs differ
    only if one of them draws of a kind that the other one does not.

    Only the first run of each op is looked at: a later one, in a step or a loop, is the same op again.

    Args:
      a: the tool in whose scope one program ran, or the records of its `random_ops`.
      b: the same of the other program.
      a_name: what the text calls the one, not empty.
      b_name: what the text calls the other one, not empty.

    Returns:
      The text, or ``""`` if the ops do not differ.

    Raises:
      ArgumentError: for anything else.
    """
    for argument, name in (("a_name", a_name), ("b_name", b_name)):
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"{argument} must be a str that is not empty, such as 'TF1', but {name!r} was given")
    programs = _Program("a", a, a_name), _Program("b", b, b_name)
    modes = [program.mode for program in programs]
    if None not in modes and modes[0] != modes[1]:
        return f"{a_name} ran in mode {modes[0]!r}, {b_name} in mode {modes[1]!r}: run both in one mode to compare them"
    is_ordered = "constant" not in modes
    entries = _in_order(*programs) if is_ordered else _in_any_order(*programs)
    first = next((position for position, entry in enumerate(entries) if entry.shift != 0), None)
    text = []
    if first is not None:
        headline = _headline(entries, first, is_ordered, a_name, b_name)
        text = [headline, "", f"--- {programs[0]}", f"+++ {programs[1]}", *_body(entries)]
    elif not _draw_from_other_sources(*programs):
        return ""
    if sources := describe_uncontrolled(programs[0].records, programs[1].records, a_name=a_name, b_name=b_name):
        text += ["", sources] if text else [sources]
    return "\n".join(text)


def describe_uncontrolled(a: Iterable[RandomOp], b: Iterable[RandomOp], *, a_name: str, b_name: str) -> str:
    """Returns the random ops of two programs that no scope could control, as text; ``""`` if there are none."""
    lines = [
        f"  {name}: {_title(op)}, {op.phase}, at {op.caller}"
        for name, ops in ((a_name, a), (b_name, b))
        for op in ops
        if op.op_seed is None
    ]
    lines = list(dict.fromkeys(lines))  # a line of code that draws again and again is one source
    more = [f"  ... and {_count(len(lines) - _SOURCES, 'more line')}"] if len(lines) > _SOURCES else []
    return "\n".join(["random numbers that no scope controls:", *lines[:_SOURCES], *more]) if lines else ""


def _draw_from_other_sources(a: _Program, b: _Program) -> bool:
    """Returns whether one program draws uncontrolled numbers as the other one never does."""
    sources = [[op for op in program.records if op.op_seed is None] for program in (a, b)]
    kinds = [{(op.op_type, op.dtype) for op in ops} for ops in sources]
    return kinds[0] != kinds[1]


class _Program:
    """The random ops of one program.

    Attributes:
      records: the records of all that it drew.
      ops: the first run of each op that its scope controlled.
      mode: the mode of its tool; None where the records do not tell.
    """

    def __init__(self, argument: str, source: Any, name: str):
        records = getattr(source, "random_ops", source)
        try:
            records = tuple(records)
        except TypeError:
            records = (source,)
        for record in records:
            if not isinstance(record, RandomOp):
                raise ArgumentError(
                    f"{argument} must be a DeterministicRandomTestTool or a sequence of RandomOp records, but "
                    f"{record!r} of type {type(record).__name__} was given; pass the tool, or its random_ops"
                )
        self._name = name
        self._runs = 1 + max((record.run for record in records), default=0)
        self.records = records
        self.ops = [record for record in records if record.run == 0 and record.op_seed is not None]
        self.mode = _mode_of(self.ops)

    def __str__(self) -> str:
        runs = f", run up to {self._runs} times" if self._runs > 1 else ""
        return f"{self._name}: {_count(len(self.ops), 'random op')}{runs}"


def _mode_of(ops: Sequence[RandomOp]) -> str | None:
    if len(ops) < 2:
        return None
    return "num_random_ops" if len({op.op_seed for op in ops}) == len(ops) else "constant"


class _Entry(NamedTuple):
    """An op of both programs, or of one."""

    a: RandomOp | None
    b: RandomOp | None

    @property
    def shift(self) -> int | None:
        """How much higher its op seed is in the second program; None for an op of one."""
        return None if self.a is None or self.b is None else _op_seed(self.b) - _op_seed(self.a)

    @property
    def mark(self) -> str:
        return "+" if self.a is None else "-" if self.b is None else " "

    def __str__(self) -> str:
        return (
            f"{self.mark} op seed {self._seeds()}: {_title(self.op)}, {self._both('phase')}, at {self._both('caller')}"
        )

    @property
    def op(self) -> RandomOp:
        """The one whose shape is known, if either is."""
        ops = [op for op in self if op is not None]
        return min(ops, key=lambda op: (op.shape is None, (op.shape or ()).count(None)))

    def _seeds(self) -> str:
        return self._both("op_seed", " -> ")

    def _both(self, attribute: str, separator: str = " | ") -> str:
        values = [str(getattr(op, attribute)) for op in self if op is not None]
        return separator.join(dict.fromkeys(values))


def _op_seed(op: RandomOp) -> int:
    assert op.op_seed is not None
    return op.op_seed


def _in_order(a: _Program, b: _Program) -> list[_Entry]:
    entries: list[_Entry] = []
    i = j = 0
    for x, y in [*align(a.ops, b.ops), (len(a.ops), len(b.ops))]:
        entries += [_Entry(op, None) for op in a.ops[i:x]]
        entries += [_Entry(None, op) for op in b.ops[j:y]]
        if x < len(a.ops):
            entries.append(_Entry(a.ops[x], b.ops[y]))
        i, j = x + 1, y + 1
    return entries


def _in_any_order(a: _Program, b: _Program) -> list[_Entry]:
    found = dict(pair_in_any_order(a.ops, b.ops))
    in_both = set(found.values())
    entries = [_Entry(op, b.ops[found[i]] if i in found else None) for i, op in enumerate(a.ops)]
    return entries + [_Entry(None, op) for j, op in enumerate(b.ops) if j not in in_both]


def _headline(entries: Sequence[_Entry], first: int, is_ordered: bool, a_name: str, b_name: str) -> str:
    """Returns the first difference in one line."""
    entry = entries[first]
    if entry.a is not None and entry.b is not None:
        of_a = f"op seed {entry.a.op_seed} in {a_name} (at {entry.a.caller})"
        of_b = f"{entry.b.op_seed} in {b_name} (at {entry.b.caller})"
        return f"the op seeds part at an op that both programs have: {_title(entry.op)} has {of_a} and {of_b}"
    if is_ordered and (in_other_order := _other_order(entries, first, a_name, b_name)):
        return in_other_order
    own = list(itertools.takewhile(lambda entry: entry.shift is None, entries[first:]))
    only_a, only_b = [entry.a for entry in own if entry.a], [entry.b for entry in own if entry.b]
    if only_a and only_b and is_ordered:
        what = f"{a_name} has {_described(only_a[0])} where {b_name} has {_described(only_b[0])}"
    elif only_a:
        what = _has_more(a_name, b_name, only_a)
    else:
        what = _has_more(b_name, a_name, only_b)
    if not is_ordered:
        return f"{what}; in constant mode it changes no other op"
    return f"{what}; {_consequence(entries[first + len(own) :], b_name)}"


def _has_more(name: str, other: str, ops: Sequence[RandomOp]) -> str:
    if len(ops) == 1:
        return f"{name} has a random op that {other} has not: {_described(ops[0])}"
    return f"{name} has {len(ops):,} random ops that {other} has not, first {_described(ops[0])}"


def _consequence(after: Sequence[_Entry], b_name: str) -> str:
    """Returns what it means for the ops after the first difference."""
    in_both = [entry.shift for entry in after if entry.shift is not None]
    if not in_both:
        return "both programs have no op after it"
    shift = in_both[0]
    if not shift:
        return "the op seeds after it are equal"
    count = sum(1 for _ in itertools.takewhile(lambda other: other == shift, in_both))
    whose = "op seed of the op after it is" if count == 1 else f"op seeds of the {count:,} ops after it are"
    return f"the {whose} {_amount(shift)} in {b_name}"


def _amount(shift: int) -> str:
    return f"{abs(shift)} {'higher' if shift > 0 else 'lower'}"


def _other_order(entries: Sequence[_Entry], first: int, a_name: str, b_name: str) -> str:
    """Returns the headline if both programs have the same ops, ``""`` if not."""
    ops_a, ops_b = ([op for op in side if op] for side in zip(*entries, strict=True))
    if len(ops_a) != len(ops_b) or len(pair_in_any_order(ops_a, ops_b)) < len(ops_a):
        return ""
    a, b = (next(op for op in side if op) for side in zip(*entries[first:], strict=True))
    text = f"the same random ops in another order: {a_name} has {_described(a)} first, {b_name} {_described(b)}"
    if _initializes_first(ops_a) == _initializes_first(ops_b) or not _are_same(_by_phase(ops_a), _by_phase(ops_b)):
        return text
    name, other = (a_name, b_name) if _initializes_first(ops_a) else (b_name, a_name)
    return (
        f"{text}; {name} initializes all variables before it computes (as a Keras functional model does), {other} not"
    )


def _by_phase(ops: Sequence[RandomOp]) -> list[RandomOp]:
    return sorted(ops, key=lambda op: op.phase != "init")


def _initializes_first(ops: Sequence[RandomOp]) -> bool:
    return _by_phase(ops) == list(ops)


def _are_same(a: Sequence[RandomOp], b: Sequence[RandomOp]) -> bool:
    return align(a, b) == [(i, i) for i in range(len(a))]


def _described(op: RandomOp) -> str:
    return f"{_title(op)} ({op.phase}, op seed {op.op_seed}, run {op.run}) at {op.caller}"


def _title(op: RandomOp) -> str:
    if not op.op_type:
        return "an op seed that nothing is drawn from"
    if op.op_seed is None and op.shape is None:  # Python's random draws no tensors
        return op.op_type
    return f"{op.op_type} {'of unknown shape' if op.shape is None else op.shape} {op.dtype}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _body(entries: Sequence[_Entry]) -> list[str]:
    """Returns a line for each op at or near a difference, and one for each row of others."""
    lines = list(_lines(entries))
    if len(lines) <= _LINES:
        return lines
    alone = sum(entry.shift is None for entry in entries)
    return [*lines[:_LINES], f"... and so on: {_count(alone, 'op')} of one program alone"]


def _lines(entries: Sequence[_Entry]) -> Iterator[str]:
    near = set(_near_changes(entries))

    def row(numbered: tuple[int, _Entry]) -> tuple[str, bool, int | None]:
        position, entry = numbered
        return entry.mark, position in near, None if position in near else entry.shift

    for (mark, is_near, shift), numbered in itertools.groupby(enumerate(entries), row):
        ops = [entry for _, entry in numbered]
        shown = len(ops) if (is_near and mark == " ") or len(ops) == 1 else _IN_A_ROW if is_near else 0
        yield from map(str, ops[:shown])
        if len(ops) > shown:
            yield f"{mark} ... {_count(len(ops) - shown, 'more op')}" + (
                f", op seeds {_amount(shift)}" if shift else ""
            )


def _near_changes(entries: Sequence[_Entry]) -> Iterator[int]:
    before: int | None = 0
    for position, entry in enumerate(entries):
        if entry.shift is None or entry.shift != before:
            yield from range(position - _CONTEXT, position + _CONTEXT + 1)
        before = before if entry.shift is None else entry.shift


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
