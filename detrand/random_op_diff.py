"""`diff_random_ops`: where the random ops of two programs first differ, and which op shifted the op seeds of the rest.

`align` pairs ops in order, `pair_in_any_order` and `op_seeds_of_counterparts` wherever they are.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detrand.arguments import plural
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
    programs = _Program("tf1", tf1, tf1_name), _Program("port", port, port_name)
    modes = [program.mode for program in programs]
    if None not in modes and modes[0] != modes[1]:
        return (
            f"{tf1_name} ran in mode {modes[0]!r} and {port_name} in mode {modes[1]!r}. Run both in the same mode to "
            "compare them."
        )
    is_ordered = "constant" not in modes
    entries = _in_order(*programs) if is_ordered else _in_any_order(*programs)
    first = next((position for position, entry in enumerate(entries) if entry.shift != 0), None)
    text = []
    if first is not None:
        headline = _headline(entries, first, is_ordered, tf1_name, port_name)
        text = [headline, "", f"--- {programs[0]}", f"+++ {programs[1]}", *_body(entries)]
    elif not _draw_from_other_sources(*programs):
        return ""
    if sources := describe_uncontrolled(
        programs[0].records, programs[1].records, tf1_name=tf1_name, port_name=port_name
    ):
        text += ["", sources] if text else [sources]
    return "\n".join(text)


def describe_uncontrolled(
    tf1: Iterable[RandomOp], port: Iterable[RandomOp], *, tf1_name: str = "TF1", port_name: str = "port"
) -> str:
    """Return the random ops of two programs that no scope could control, as text; ``""`` if there are none."""
    lines = [
        f"  {name}: {_title(op)}, {op.phase}, at {op.caller}"
        for name, ops in ((tf1_name, tf1), (port_name, port))
        for op in ops
        if op.op_seed is None
    ]
    lines = list(dict.fromkeys(lines))  # a line of code that draws repeatedly is one source
    more = [f"  ... and {plural(len(lines) - _SOURCES, 'more line')}"] if len(lines) > _SOURCES else []
    return "\n".join(["random numbers that no scope controls:", *lines[:_SOURCES], *more]) if lines else ""


def _draw_from_other_sources(tf1: _Program, port: _Program) -> bool:
    """Return whether one program draws a kind of uncontrolled numbers that the other does not draw."""
    sources = [[op for op in program.records if op.op_seed is None] for program in (tf1, port)]
    kinds = [{(op.op_type, op.dtype) for op in ops} for ops in sources]
    return kinds[0] != kinds[1]


class _Program:
    """The random ops of one program.

    Attributes:
      records: the records of all that it drew.
      ops: the first run of each op that its scope controlled.
      mode: the mode of its tool; None if the records do not show it.
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
                    f"{record!r} of type {type(record).__name__} was given. Pass the tool, or its random_ops."
                )
        self._name = name
        self._runs = 1 + max((record.run for record in records), default=0)
        self.records = records
        self.ops = [record for record in records if record.run == 0 and record.op_seed is not None]
        self.mode = _mode_of(self.ops)

    def __str__(self) -> str:
        runs = f", run up to {self._runs} times" if self._runs > 1 else ""
        return f"{self._name}: {plural(len(self.ops), 'random op')}{runs}"


def _mode_of(ops: Sequence[RandomOp]) -> str | None:
    if len(ops) < 2:
        return None
    return "num_random_ops" if len({op.op_seed for op in ops}) == len(ops) else "constant"


class _Entry(NamedTuple):
    """An op of both programs, or of one."""

    tf1: RandomOp | None
    port: RandomOp | None

    @property
    def shift(self) -> int | None:
        """How much higher its op seed is in the second program; None for an op of one program."""
        return None if self.tf1 is None or self.port is None else _op_seed(self.port) - _op_seed(self.tf1)

    @property
    def mark(self) -> str:
        return "+" if self.tf1 is None else "-" if self.port is None else " "

    def __str__(self) -> str:
        return (
            f"{self.mark} op seed {self._seeds()}: {_title(self.op)}, {self._both('phase')}, at {self._both('caller')}"
        )

    @property
    def op(self) -> RandomOp:
        """The op whose shape is known, if either is."""
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


def _in_order(tf1: _Program, port: _Program) -> list[_Entry]:
    entries: list[_Entry] = []
    i = j = 0
    for x, y in [*align(tf1.ops, port.ops), (len(tf1.ops), len(port.ops))]:
        entries += [_Entry(op, None) for op in tf1.ops[i:x]]
        entries += [_Entry(None, op) for op in port.ops[j:y]]
        if x < len(tf1.ops):
            entries.append(_Entry(tf1.ops[x], port.ops[y]))
        i, j = x + 1, y + 1
    return entries


def _in_any_order(tf1: _Program, port: _Program) -> list[_Entry]:
    found = dict(pair_in_any_order(tf1.ops, port.ops))
    in_both = set(found.values())
    entries = [_Entry(op, port.ops[found[i]] if i in found else None) for i, op in enumerate(tf1.ops)]
    return entries + [_Entry(None, op) for j, op in enumerate(port.ops) if j not in in_both]


def _headline(entries: Sequence[_Entry], first: int, is_ordered: bool, tf1_name: str, port_name: str) -> str:
    """Return the first difference in one line."""
    entry = entries[first]
    if entry.tf1 is not None and entry.port is not None:
        in_tf1 = f"op seed {entry.tf1.op_seed} in {tf1_name} (at {entry.tf1.caller})"
        in_port = f"op seed {entry.port.op_seed} in {port_name} (at {entry.port.caller})"
        return f"the op seeds diverge at an op of both programs: {_title(entry.op)} has {in_tf1} and {in_port}"
    if is_ordered and (different_order := _different_order(entries, first, tf1_name, port_name)):
        return different_order
    unpaired = list(itertools.takewhile(lambda entry: entry.shift is None, entries[first:]))
    only_tf1, only_port = (
        [entry.tf1 for entry in unpaired if entry.tf1],
        [entry.port for entry in unpaired if entry.port],
    )
    if only_tf1 and only_port and is_ordered:
        what = f"{tf1_name} has {_described(only_tf1[0])} where {port_name} has {_described(only_port[0])}"
    elif only_tf1:
        what = _has_more(tf1_name, port_name, only_tf1)
    else:
        what = _has_more(port_name, tf1_name, only_port)
    if not is_ordered:
        return f"{what}; in constant mode this changes no other op"
    return f"{what}; {_consequence(entries[first + len(unpaired) :], port_name)}"


def _has_more(name: str, other: str, ops: Sequence[RandomOp]) -> str:
    if len(ops) == 1:
        return f"{name} has a random op that {other} lacks: {_described(ops[0])}"
    return f"{name} has {plural(len(ops), 'random op')} that {other} lacks, the first of them {_described(ops[0])}"


def _consequence(after: Sequence[_Entry], port_name: str) -> str:
    """Return the consequence of the first difference for the ops after it."""
    in_both = [entry.shift for entry in after if entry.shift is not None]
    if not in_both:
        return "the programs have no ops in common after it"
    shift = in_both[0]
    if not shift:
        return "the op seeds after it are equal"
    count = sum(1 for _ in itertools.takewhile(lambda other: other == shift, in_both))
    whose = "op seed of the op after it is" if count == 1 else f"op seeds of the {count:,} ops after it are"
    return f"the {whose} {_amount(shift)} in {port_name}"


def _amount(shift: int) -> str:
    return f"{abs(shift)} {'higher' if shift > 0 else 'lower'}"


def _different_order(entries: Sequence[_Entry], first: int, tf1_name: str, port_name: str) -> str:
    """Return the headline if both programs have the same ops, ``""`` if not."""
    tf1_ops, port_ops = ([op for op in ops if op] for ops in zip(*entries, strict=True))
    if len(tf1_ops) != len(port_ops) or len(pair_in_any_order(tf1_ops, port_ops)) < len(tf1_ops):
        return ""
    tf1, port = (next(op for op in ops if op) for ops in zip(*entries[first:], strict=True))
    text = (
        f"the same random ops in a different order: {tf1_name} has {_described(tf1)} first, {port_name} has "
        f"{_described(port)} first"
    )
    phases_differ = _initializes_first(tf1_ops) != _initializes_first(port_ops)
    if not phases_differ or not _are_same(_by_phase(tf1_ops), _by_phase(port_ops)):
        return text
    name, other = (tf1_name, port_name) if _initializes_first(tf1_ops) else (port_name, tf1_name)
    return (
        f"{text}; {name} initializes all variables before it computes, as a Keras functional model does; {other} does "
        "not"
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


def op_seeds_of_counterparts(
    a: Sequence[RandomOp],
    b: Sequence[RandomOp],
    initialized_by_a: Mapping[int, str] | None = None,
    initialized_by_b: Mapping[int, str] | None = None,
) -> tuple[int, ...]:
    """Return the op seeds with which the ops of ``b`` draw what those of ``a`` do, if only their order differs.

    The ops that initialize a variable are paired with those of the variable of the same name, or else of some variable
    that fits: a Keras functional model draws all its initial weights before anything else. Ops that draw nothing, such
    as a dropout with rate 0, have no counterpart.

    Args:
      a: the ops of one program, each with an op seed of its own.
      b: the ops of the other program.
      initialized_by_a: name of the variable that an op seed initializes, where it is known.
      initialized_by_b: the same for the other program, by the same names.

    Returns:
      An op seed for each op of ``b``, in order; nothing if the programs have different ops, or the same order. ``a``
      may have more ops that initialize nothing if ``b`` has none: a graph has a dropout even where it keeps everything.
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
    """Pair the ops that initialize variables of the same name, if they are as many and of the same kind."""
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
    """Return whether all ops of ``b`` initialize variables, and all ops that do so in both have a counterpart."""
    paired = {i for i, _ in pairs}
    left = [op for i, op in enumerate(a) if i not in paired]
    return len(pairs) == len(b) and all(op.phase == "init" for op in b) and all(op.phase != "init" for op in left)


def _pairs_by_phase(
    a: Sequence[RandomOp], b: Sequence[RandomOp], named: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Add to pairs: ops that initialize variables with such ops, the others with the others."""
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
