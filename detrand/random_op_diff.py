"""`diff_random_ops`: where the random ops of two programs first differ, and which op shifted the op seeds of the rest.

`align` pairs ops in order, `pair_in_any_order` wherever they are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detrand._patching.random_ops import LEFT_TO_CHANCE
from detrand.arguments import and_more, plural, wrong_type
from detrand.errors import ArgumentError
from detrand.seeding.streams import RandomOp

if TYPE_CHECKING:
    from detrand.random_tool import DeterministicRandomTestTool

_CONTEXT = 3  # lines around a difference
_IN_A_ROW = 8  # so many ops of one program are all shown
_LINES = 60
_SOURCES = 10


def diff_random_ops(
    tf1: DeterministicRandomTestTool | Sequence[RandomOp],
    port: DeterministicRandomTestTool | Sequence[RandomOp],
    *,
    tf1_name: str = "TF1",
    port_name: str = "port",
) -> str:
    """Return where the random ops of two programs first differ, and a diff of all of them, as text.

    In ``"num_random_ops"`` mode one op too many gives all ops after it different op seeds, and so different numbers.
    The first line of the text names that op. The ops are paired by what they draw (type, shape and dtype; a dimension
    that is unknown in a graph matches any size), not by their op seeds. In ``"constant"`` mode the order is ignored.

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
    >>> print(diff_random_ops(tf1, port))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    TF1 has a random op that port lacks: RandomUniform (4, 3) float32 (compute, op seed 1, run 0) at ...;
    the op seed of the op after it is 1 lower in port
    <BLANKLINE>
    --- TF1: 3 random ops
    +++ port: 2 random ops
      op seed 0: RandomStandardNormal (4, 3) float32, compute, at ...
    - op seed 1: RandomUniform (4, 3) float32, compute, at ...
      op seed 2 -> 1: RandomStandardNormal (2,) float32, compute, at ...

    Random numbers that no scope controls shift nothing. They are listed below the diff, and make the programs differ
    only if one program draws a kind of them that the other does not.

    Only the first run of each op is compared: a later run, in a step or a loop, is the same op again.

    Args:
      tf1: the tool in whose scope one program ran, or the records of its `random_ops`.
      port: the tool or the records of the other program.
      tf1_name: the name of the first program in the text, not empty.
      port_name: the name of the second program in the text, not empty.

    Returns:
      The text, or ``""`` if the ops do not differ.

    Raises:
      ArgumentError: for any other argument.
    """
    for argument, name in (("tf1_name", tf1_name), ("port_name", port_name)):
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"{argument} must be a non-empty str, but {name!r} was given. Pass 'TF1', for example.")
    records = _records_of("tf1", tf1), _records_of("port", port)
    tf1_ops, port_ops = ([op for op in ops if op.run == 0 and op.op_seed is not None] for ops in records)
    modes = _mode_of(tf1_ops), _mode_of(port_ops)
    if None not in modes and modes[0] != modes[1]:
        return (
            f"{tf1_name} ran in mode {modes[0]!r} and {port_name} in mode {modes[1]!r}. Run both in the same mode to "
            "compare them."
        )
    is_ordered = "constant" not in modes
    pairs = align(tf1_ops, port_ops) if is_ordered else pair_in_any_order(tf1_ops, port_ops)
    entries = _entries(tf1_ops, port_ops, pairs)
    sources = describe_uncontrolled(*records, tf1_name=tf1_name, port_name=port_name)
    if all(entry.shift == 0 for entry in entries):
        return sources if _uncontrolled_kinds(records[0]) != _uncontrolled_kinds(records[1]) else ""
    text = [
        _headline(entries, is_ordered, tf1_name, port_name),
        "",
        f"--- {tf1_name}: {_count(tf1_ops, records[0])}",
        f"+++ {port_name}: {_count(port_ops, records[1])}",
        *_body(entries),
    ]
    return "\n".join([*text, "", sources] if sources else text)


def describe_without_counterpart(tf1: Iterable[RandomOp], port: Iterable[RandomOp]) -> list[str]:
    """Return each random op that only one program has, in words with its line."""
    lacking = (("TF1", "the port", tf1), ("the port", "TF1", port))
    return [
        f"{name} has a random op that {other} lacks: {_title(op)} at {op.caller}"
        for name, other, ops in lacking
        for op in ops
    ]


def uncontrolled_in(ops: Iterable[RandomOp]) -> tuple[RandomOp, ...]:
    """Return the random ops that no scope could control: a line of code that draws repeatedly is one source."""
    return tuple(dict.fromkeys(dataclasses.replace(op, index=0, run=0) for op in ops if op.op_seed is None))


def describe_uncontrolled(
    tf1: Iterable[RandomOp], port: Iterable[RandomOp], *, tf1_name: str = "TF1", port_name: str = "port"
) -> str:
    """Return the random ops of two programs that no scope could control, as text; ``""`` if there are none."""
    lines, initial = list[str](), list[str]()
    for name, ops in ((tf1_name, uncontrolled_in(tf1)), (port_name, uncontrolled_in(port))):
        lines += [f"  {name}: {describe_source(op)}, at {op.caller}" for op in ops if op.phase != "init"]
        if of_init := [op for op in ops if op.phase == "init"]:
            types = and_more(dict.fromkeys(op.op_type for op in of_init), 3)
            initial.append(f"  {name}: initial values, by {types}, first at {of_init[0].caller}")
    more = [f"  ... and {plural(len(lines) - _SOURCES, 'more line')}"] if len(lines) > _SOURCES else []
    found = [*lines[:_SOURCES], *more, *initial]
    return "\n".join(["random numbers that no scope controls:", *found]) if found else ""


def describe_source(op: RandomOp) -> str:
    """Return what a random op that no scope could control draws, in words."""
    by_chance = " (the same numbers, but chance decides which element gets which)"
    return _title(op) + (by_chance if op.op_type in LEFT_TO_CHANCE else "")


def _uncontrolled_kinds(records: Sequence[RandomOp]) -> set[tuple[str, str]]:
    return {(op.op_type, op.dtype) for op in records if op.op_seed is None}


def _records_of(argument: str, source: Any) -> tuple[RandomOp, ...]:
    given = getattr(source, "random_ops", source)
    records = tuple(given) if isinstance(given, Iterable) else (given,)
    for record in records:
        if not isinstance(record, RandomOp):
            accepted = "a DeterministicRandomTestTool or a sequence of RandomOp records"
            raise wrong_type(argument, record, accepted, "pass the tool, or its random_ops")
    return records


def _mode_of(ops: Sequence[RandomOp]) -> str | None:
    """Return the mode of a program's tool; None if its ops do not show it."""
    if len(ops) < 2:
        return None
    return "num_random_ops" if len({op.op_seed for op in ops}) == len(ops) else "constant"


def _count(ops: Sequence[RandomOp], records: Sequence[RandomOp]) -> str:
    runs = 1 + max((record.run for record in records), default=0)
    return plural(len(ops), "random op") + (f", run up to {runs} times" if runs > 1 else "")


class _Entry(NamedTuple):
    """An op of both programs, or of one."""

    tf1: RandomOp | None
    port: RandomOp | None

    @property
    def shift(self) -> int | None:
        """How much higher its op seed is in the port; None for an op of one program."""
        if self.tf1 is None or self.port is None:
            return None
        return (self.port.op_seed or 0) - (self.tf1.op_seed or 0)

    @property
    def mark(self) -> str:
        return "+" if self.tf1 is None else "-" if self.port is None else " "

    @property
    def title(self) -> str:
        """The op's type, shape and dtype; the shape that is known, if either is."""
        ops = [op for op in self if op is not None]
        return _title(min(ops, key=lambda op: (op.shape is None, (op.shape or ()).count(None))))

    def __str__(self) -> str:
        seeds = self._both("op_seed", " -> ")
        return f"{self.mark} op seed {seeds}: {self.title}, {self._both('phase')}, at {self._both('caller')}"

    def _both(self, attribute: str, separator: str = " | ") -> str:
        values = [str(getattr(op, attribute)) for op in self if op is not None]
        return separator.join(dict.fromkeys(values))


def _entries(tf1: Sequence[RandomOp], port: Sequence[RandomOp], pairs: Sequence[tuple[int, int]]) -> list[_Entry]:
    """Return the ops of both programs in TF1's order, with the port's other ops before the pair that they precede."""
    port_of = dict(pairs)
    only_port = deque(sorted(set(range(len(port))) - set(port_of.values())))
    entries = []
    for i, op in enumerate(tf1):
        while i in port_of and only_port and only_port[0] < port_of[i]:
            entries.append(_Entry(None, port[only_port.popleft()]))
        entries.append(_Entry(op, port[port_of[i]] if i in port_of else None))
    return entries + [_Entry(None, port[j]) for j in only_port]


def _headline(entries: Sequence[_Entry], is_ordered: bool, tf1_name: str, port_name: str) -> str:
    """Return the first difference in one line."""
    rest = list(itertools.dropwhile(lambda entry: entry.shift == 0, entries))
    unpaired = list(itertools.takewhile(lambda entry: entry.shift is None, rest))
    if not unpaired:
        (tf1,), (port,) = _ops_of_each(rest[:1])
        in_tf1 = f"op seed {tf1.op_seed} in {tf1_name} (at {tf1.caller})"
        in_port = f"op seed {port.op_seed} in {port_name} (at {port.caller})"
        return f"the op seeds diverge at an op of both programs: {rest[0].title} has {in_tf1} and {in_port}"
    if is_ordered and (different_order := _different_order(entries, rest, tf1_name, port_name)):
        return different_order
    only_tf1, only_port = _ops_of_each(unpaired)
    if only_tf1 and only_port and is_ordered:
        what = f"{tf1_name} has {_described(only_tf1[0])} where {port_name} has {_described(only_port[0])}"
    elif only_tf1:
        what = _has_more(tf1_name, port_name, only_tf1)
    else:
        what = _has_more(port_name, tf1_name, only_port)
    if not is_ordered:
        return f"{what}; in constant mode this changes no other op"
    return f"{what}; {_consequence(rest[len(unpaired) :], port_name)}"


def _ops_of_each(entries: Iterable[_Entry]) -> tuple[list[RandomOp], list[RandomOp]]:
    return [entry.tf1 for entry in entries if entry.tf1], [entry.port for entry in entries if entry.port]


def _has_more(name: str, other: str, ops: Sequence[RandomOp]) -> str:
    if len(ops) == 1:
        return f"{name} has a random op that {other} lacks: {_described(ops[0])}"
    return f"{name} has {plural(len(ops), 'random op')} that {other} lacks, the first of them {_described(ops[0])}"


def _consequence(after: Sequence[_Entry], port_name: str) -> str:
    """Return the consequence of the first difference for the ops after it."""
    shifts = [entry.shift for entry in after if entry.shift is not None]
    if not shifts:
        return "the programs have no ops in common after it"
    if not shifts[0]:
        return "the op seeds after it are equal"
    count = sum(1 for _ in itertools.takewhile(lambda shift: shift == shifts[0], shifts))
    whose = "op seed of the op after it is" if count == 1 else f"op seeds of the {count:,} ops after it are"
    return f"the {whose} {_amount(shifts[0])} in {port_name}"


def _amount(shift: int) -> str:
    return f"{abs(shift)} {'higher' if shift > 0 else 'lower'}"


def _different_order(entries: Sequence[_Entry], rest: Sequence[_Entry], tf1_name: str, port_name: str) -> str:
    """Return the headline if both programs have the same ops, ``""`` if not."""
    tf1, port = _ops_of_each(entries)
    if not len(tf1) == len(port) == len(pair_in_any_order(tf1, port)):
        return ""
    (first_tf1, *_), (first_port, *_) = _ops_of_each(rest)
    text = (
        f"the same random ops in a different order: {tf1_name} has {_described(first_tf1)} first, {port_name} has "
        f"{_described(first_port)} first"
    )
    by_phase = [sorted(ops, key=lambda op: op.phase != "init") for ops in (tf1, port)]
    initialize_first = by_phase[0] == tf1, by_phase[1] == port
    if initialize_first[0] == initialize_first[1] or len(align(*by_phase)) < len(tf1):
        return text
    name, other = (tf1_name, port_name) if initialize_first[0] else (port_name, tf1_name)
    return (
        f"{text}; {name} initializes all variables before it computes, as a Keras functional model does; {other} does "
        "not"
    )


def _described(op: RandomOp) -> str:
    return f"{_title(op)} ({op.phase}, op seed {op.op_seed}, run {op.run}) at {op.caller}"


def _title(op: RandomOp) -> str:
    if not op.op_type:
        return "an op seed that nothing is drawn from"
    if op.shape is None and not op.dtype:  # Python's random draws no tensors, and a dataset draws later
        return op.op_type
    return f"{op.op_type} {'of unknown shape' if op.shape is None else op.shape} {op.dtype}".rstrip()


def _body(entries: Sequence[_Entry]) -> list[str]:
    """Return a line for each op at or near a difference, and a line for each row of other ops."""
    lines = list(_lines(entries))
    if len(lines) <= _LINES:
        return lines
    unpaired = sum(entry.shift is None for entry in entries)
    return [*lines[:_LINES], f"... and so on: {plural(unpaired, 'op')} in only one program"]


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
            yield f"{mark} ... {plural(len(ops) - shown, 'more op')}" + (
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
    """Pair the ops of two programs in order, as many as possible.

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
    """Pair the ops of two programs in any order: the i-th of a kind with the i-th.

    Returns:
      The positions of each pair, in the order of ``a``.
    """
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    left = defaultdict(list)
    for j in reversed(range(len(b))):
        left[kinds_b[j]].append(j)
    uncertain = [kind for kind in left if not kind.is_certain]
    pairs = {}
    # Known shapes come first: an op of unknown shape must not take the only counterpart of another op.
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


def _longest_common_subsequence(a: Sequence[_Kind], b: Sequence[_Kind]) -> list[tuple[int, int]]:
    """Return the pairs of a longest common subsequence, by dynamic programming on the bits of integers.

    ``difflib.SequenceMatcher`` finds shorter ones, takes 100 times as long for thousands of ops, and has no unknown
    shapes.

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
    """Return the positions in ``b`` of each kind of ``a``, as the bits of an integer."""
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
