"""Which ``(seed, op_seed, run)`` the next random op takes: the one decision that every adapter obeys.

A stateful random op of TensorFlow 1 draws a pure function of ``(seed, op_seed, run)`` and its shape.
A `Stream` holds the first, counts out the second, and keeps a record of each; how the numbers are
computed is no concern of this module, which knows no framework.

Each thread has a stack of streams. The innermost one governs it; a thread that has entered none is
governed by the stream that governed its parent when it was started.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand import callsite
from detrand.callsite import Site
from detrand.errors import ArgumentError, ScopeError, SeedReuseError

MODES = ("constant", "num_random_ops")
_SEED_LIMIT = 2**63  # TensorFlow keeps both seeds of an op in int64 attributes
_MAX_INT32 = 2**31 - 1


class Draw(NamedTuple):
    """What one random op draws from.

    Attributes:
      seed: the Philox key, the same for all ops of a stream.
      op_seed: the op's own seed, the high half of the Philox counter.
      run: how often the op has run before.
    """

    seed: int
    op_seed: int
    run: int = 0


@dataclass(frozen=True)
class RandomOp:
    """One random op that a scope controlled.

    Attributes:
      index: position among the ops of the tool, from 0.
      op_seed: the op seed that it took.
      run: how often that op had run before.
      op_type: TensorFlow's name of the op, such as ``"RandomUniform"``; empty where a seed was taken
        and no op followed (``tf.nn.dropout`` with rate 0 does so).
      shape: shape of what it drew, ``None`` for each unknown dimension, or ``None`` if nothing is known.
      dtype: name of the dtype of what it drew; empty if unknown.
      phase: ``"init"`` if it ran while a variable was being initialized, else ``"compute"``.
      caller: ``file:line`` of the user's code.
    """

    index: int
    op_seed: int
    run: int
    op_type: str
    shape: tuple[int | None, ...] | None
    dtype: str
    phase: str
    caller: str


class _Kind(NamedTuple):
    """What many records have in common, kept once for all of them."""

    site: Site
    phase: str
    op_type: str = ""
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


def checked_seed(name: str, value: Any) -> int:
    """Returns ``value`` as an int if it can be a seed.

    Args:
      name: the argument's name, for the message.
      value: what the user gave: a non-negative integer below 2**63.

    Raises:
      ArgumentError: for anything else, booleans included.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{name} must be a non-negative integer, but {value!r} of type {type(value).__name__} was given; "
            f"pass an int such as {name}=42"
        ) from None
    if not 0 <= number < _SEED_LIMIT:
        raise ArgumentError(f"{name} must be from 0 to 2**63 - 1, but {number} was given; pass {name}=42, say")
    return number


class Stream:
    """The op seeds of one program, counted in the order in which it asks for them.

    Safe to be used from several threads at once.

    Args:
      seed: the seed of every op.
      mode: ``"constant"``: every op takes the same op seed, `operation_seed`; ``"num_random_ops"``: each
        op takes the next one.
    """

    def __init__(self, seed: int, mode: str):
        if mode not in MODES:
            raise ArgumentError(
                f"mode must be one of {', '.join(map(repr, MODES))}, but {mode!r} was given; 'constant' gives every "
                "op the same numbers, 'num_random_ops' gives each op its own"
            )
        self.seed = checked_seed("seed", seed)
        self.mode = mode
        self._operation_seed = 0
        self._lock = threading.RLock()
        self._records = _Records()
        self._used = _SeedRanges()
        self._thread = _ThreadState()

    @property
    def operation_seed(self) -> int:
        """The op seed that the next op takes."""
        return self._operation_seed

    @operation_seed.setter
    def operation_seed(self, value: int) -> None:
        self._operation_seed = checked_seed("operation_seed", value)

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """Every op so far, in order."""
        with self._lock:
            return tuple(self._records)

    def next_draw(self, executed: bool = True) -> Draw:
        """Takes the next op seed and records who took it.

        Args:
          executed: False for an op that is built only to learn its shape; it takes no op seed.

        Returns:
          What the op is to draw from. Its run is 0: an eager op runs once, and where an op stays in a
          graph, the runtime counts its runs from there.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
        """
        if not executed:
            return self._draw(self._operation_seed)
        site = callsite.user_site()
        thread = self._thread
        phase = "init" if thread.initializing else "compute"
        if thread.replay:
            op_seed = thread.replay.next_for(site, phase)
            if op_seed is not None:
                return self._draw(op_seed)
        with self._lock:
            op_seed = self._operation_seed
            if self.mode == "num_random_ops":
                self._take_once(op_seed, site)
                self._operation_seed = op_seed + 1
            thread.last_record = self._records.append(op_seed, 0, _Kind(site, phase))
        if thread.trace is not None:
            thread.trace.append(_Taken(site, phase, op_seed))
        return self._draw(op_seed)

    def describe_last(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Adds to the calling thread's last record what the op turned out to be."""
        thread = self._thread
        index, thread.last_record = thread.last_record, None
        if index is not None:
            self._records.describe(index, op_type, shape, dtype)

    def _draw(self, op_seed: int) -> Draw:
        # To the kernels (0, 0) means "nondeterministic"; TensorFlow's own get_seed avoids it likewise.
        return Draw(self.seed, op_seed if self.seed or op_seed else _MAX_INT32)

    def _take_once(self, op_seed: int, site: Site) -> None:
        first = self._used.add(op_seed, len(self._records))
        if first is None:
            return
        raise SeedReuseError(
            f"op seed {op_seed} was used first by random op {first} at {self._records[first].caller} and is about to "
            f"be used again at {site}. Two ops with one op seed draw the same numbers, where two ops of a TF1 graph "
            "draw different ones. Set operation_seed above every op seed already used (the greatest is "
            f"{self._used.greatest}), or use a new DeterministicRandomTestTool for the second program."
        )

    @contextlib.contextmanager
    def initializing(self) -> Iterator[None]:
        """Ops inside initialize a variable."""
        thread = self._thread
        before, thread.initializing = thread.initializing, True
        try:
            yield
        finally:
            thread.initializing = before

    @property
    def inferring_shapes(self) -> bool:
        """Whether the calling thread is inside `shape_inference`."""
        return self._thread.inferring_shapes

    @contextlib.contextmanager
    def shape_inference(self) -> Iterator[None]:
        """Ops built inside are never executed."""
        thread = self._thread
        before, thread.inferring_shapes = thread.inferring_shapes, True
        try:
            yield
        finally:
            thread.inferring_shapes = before

    @contextlib.contextmanager
    def first_call(self) -> Iterator[None]:
        """A function is called for the first time: what it traces again inside is the same program."""
        thread = self._thread
        before, thread.replay = thread.replay, None
        try:
            yield
        finally:
            thread.replay = before

    @contextlib.contextmanager
    def first_trace(self) -> Iterator[None]:
        """Ops inside are a function's first trace; until its `first_call` ends, they may come again.

        What a function inside traces is left out: it keeps its own trace, and is not traced again.
        """
        thread = self._thread
        outer, thread.trace = thread.trace, []
        try:
            yield
            thread.replay = _Replay(thread.trace)
        finally:
            thread.trace = outer


class _Taken(NamedTuple):
    site: Site
    phase: str
    op_seed: int


class _Replay:
    """The op seeds of a trace, handed out once more to the same places of the program.

    Not every op of the first trace comes again (initializers do not), so each request goes to the next
    op of the same place.
    """

    def __init__(self, taken: list[_Taken]):
        self._left = list(taken)

    def next_for(self, site: Site, phase: str) -> int | None:
        for position, taken in enumerate(self._left):
            if taken.site == site and taken.phase == phase:
                del self._left[: position + 1]
                return taken.op_seed
        return None


class _ThreadState(threading.local):
    """What a stream knows about the thread that asks."""

    initializing = False
    inferring_shapes = False
    last_record: int | None = None
    trace: list[_Taken] | None = None
    replay: _Replay | None = None


class _Records:
    """The records of a stream in columns: 16 bytes for each op, however many run."""

    def __init__(self) -> None:
        self._op_seed = array("q")
        self._run = array("l" if array("l").itemsize == 4 else "i")
        self._kind = array("i")
        self._kinds: list[_Kind] = []
        self._kind_index: dict[_Kind, int] = {}

    def __len__(self) -> int:
        return len(self._op_seed)

    def __getitem__(self, index: int) -> RandomOp:
        kind = self._kinds[self._kind[index]]
        return RandomOp(
            index=index,
            op_seed=self._op_seed[index],
            run=self._run[index],
            op_type=kind.op_type,
            shape=kind.shape,
            dtype=kind.dtype,
            phase=kind.phase,
            caller=str(kind.site),
        )

    def __iter__(self) -> Iterator[RandomOp]:
        return (self[index] for index in range(len(self)))

    def append(self, op_seed: int, run: int, kind: _Kind) -> int:
        index = len(self._op_seed)
        self._op_seed.append(op_seed)
        self._run.append(run)
        self._kind.append(self._index_of(kind))
        return index

    def describe(self, index: int, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        kind = self._kinds[self._kind[index]]
        self._kind[index] = self._index_of(_Kind(kind.site, kind.phase, op_type, shape, dtype))

    def _index_of(self, kind: _Kind) -> int:
        index = self._kind_index.get(kind)
        if index is None:
            index = self._kind_index[kind] = len(self._kinds)
            self._kinds.append(kind)
        return index


class _SeedRanges:
    """The op seeds taken so far: op seeds are counted up, so a few ranges hold any number of them."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []  # [first op seed, one past the last, record of the first]

    @property
    def greatest(self) -> int:
        return max(stop for _, stop, _ in self._ranges) - 1

    def add(self, op_seed: int, record: int) -> int | None:
        """Adds an op seed, unless it is there: then returns the record that took it."""
        for start, stop, first in self._ranges:
            if start <= op_seed < stop:
                return first + op_seed - start
        last = self._ranges[-1] if self._ranges else None
        if last and op_seed == last[1] and record == last[2] + last[1] - last[0]:
            last[1] += 1
        else:
            self._ranges.append([op_seed, op_seed + 1, record])
        return None


class Entry:
    """A stream on some thread's stack; `open` tells whether it is still there."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self.open = True


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[Entry] = []


_stack = _Stack()
_inherited: weakref.WeakKeyDictionary[threading.Thread, Entry] = weakref.WeakKeyDictionary()


def current() -> Stream | None:
    """Returns the stream that governs the calling thread, if any."""
    entry = _governing_entry()
    return entry.stream if entry else None


def _governing_entry() -> Entry | None:
    entries = _stack.entries
    while entries:
        if entries[-1].open:
            return entries[-1]
        entries.pop()  # left in another thread, see pop()
    if not _inherited:
        return None
    entry = _inherited.get(threading.current_thread())
    return entry if entry is not None and entry.open else None


def push(stream: Stream) -> Entry:
    """Makes a stream govern the calling thread."""
    entry = Entry(stream)
    _stack.entries.append(entry)
    return entry


def pop(entry: Entry) -> None:
    """Ends what `push` began.

    Raises:
      ScopeError: if the entry is not on the calling thread's stack.
    """
    entry.open = False
    if entry not in _stack.entries:
        # It cannot be taken off another thread's stack from here; being closed it governs no longer.
        raise ScopeError(
            "a scope was left in another thread than the one that entered it; enter and leave it in one thread, "
            "with a `with` statement"
        )
    _stack.entries.remove(entry)


def inherit(child: threading.Thread) -> None:
    """Lets a thread that is about to start be governed as the calling thread is."""
    entry = _governing_entry()
    if entry is not None:
        _inherited[child] = entry
