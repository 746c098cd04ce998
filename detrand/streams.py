"""Which ``(seed, op_seed, run)`` the next random op takes: the one decision that every adapter obeys.

A stateful random op of TensorFlow 1 draws a pure function of ``(seed, op_seed, run)`` and its shape.
A `Stream` holds the first, counts out the second, and keeps a record of each; how the numbers are
computed is no concern of this module, which knows no framework.

A `Cursor` is one thread's place in a stream. Each thread has a stack of them, of which the innermost
one governs it; a thread that has entered no stream is governed by the one that governed its parent when it
was started.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand import callsite
from detrand.callsite import Site
from detrand.errors import ArgumentError, ScopeError, SeedReuseError

MODES = ("constant", "num_random_ops")
_SEED_LIMIT = 2**63  # TensorFlow keeps both seeds of an op in int64 attributes
_MAX_INT32 = 2**31 - 1
_MOST = 2**62  # more ops than anybody can run
_UNWRITTEN = -1
_ROOM_AT_ONCE = 1024


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


def checked_seed(name: str, value: Any) -> int:
    """Returns ``value`` as an int if it can be a seed.

    Args:
      name: the argument's name, for the message.
      value: what the user gave: a non-negative integer below 2**63.

    Raises:
      ArgumentError: for anything else, booleans included.
    """
    try:
        if isinstance(value, bool) or type(value).__name__ == "bool_":  # NumPy 1's, which passes for an index
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

    Safe to be used from several threads at once, each through a `Cursor` of its own.

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
        self._lock = threading.Lock()
        self._records = _Records()
        self.describe = self._records.describe  # as it is, without a call in between: every op is described
        self._used = _SeedRanges()
        self.operation_seed = 0

    @property
    def operation_seed(self) -> int:
        """The op seed that the next op takes."""
        return self._used.upcoming if self.mode == "num_random_ops" else self._operation_seed

    @operation_seed.setter
    def operation_seed(self, value: int) -> None:
        op_seed = checked_seed("operation_seed", value)
        with self._lock:
            self._operation_seed = op_seed
            op_seeds = self._used.count_from(op_seed) if self.mode == "num_random_ops" else itertools.repeat(op_seed)
            # An op advances this once to take both its op seed and its place among the records. To the interpreter
            # that is one step, which no other thread can interrupt; a lock would be the dearest part of a draw.
            self._next = zip(op_seeds, self._records.places, strict=False)

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """Every op so far, in order."""
        return tuple(self._records)

    def take(self, site: Site, phase: str) -> tuple[int, int]:
        """Takes the next op seed.

        Args:
          site: the line of user code that asks.
          phase: ``"init"`` or ``"compute"``.

        Returns:
          The op seed, and the position of its record.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
        """
        taken = next(self._next, None)
        if taken is None:
            raise self._reuse_error(site)
        op_seed, record = taken
        self._records.write(record, op_seed, site, phase)
        return taken

    def _reuse_error(self, site: Site) -> SeedReuseError:
        op_seed = self.operation_seed
        first = self._records.first_with(op_seed)
        return SeedReuseError(
            f"op seed {op_seed} was used first by random op {first} at {self._records[first].caller} and is about to "
            f"be used again at {site}. Two ops with one op seed draw the same numbers, where two ops of a TF1 graph "
            "draw different ones. Set operation_seed above every op seed already used (the greatest is "
            f"{self._used.greatest}), or use a new DeterministicRandomTestTool for the second program."
        )


class Cursor:
    """One thread's place in a stream: what the thread is doing there decides which op seed comes next.

    Attributes:
      stream: the stream.
      open: whether it still governs.
    """

    __slots__ = ("_is_executed", "_last_record", "_phase", "_replay", "_trace", "last_seeds", "open", "stream")

    def __init__(self, stream: Stream):
        self.stream = stream
        self.open = True
        self.last_seeds: tuple[int, int] | None = None
        self._phase = "compute"
        self._last_record: int | None = None
        self._is_executed: Callable[[], bool] | None = None
        self._trace: list[_Taken] | None = None
        self._replay: _Replay | None = None

    def next_seeds(self) -> tuple[int, int]:
        """Takes the next op seed and records who took it.

        Returns:
          ``(seed, op_seed)``, from which the op is to draw its run 0: an eager op runs once, and where an
          op stays in a graph, the runtime counts its runs from there.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
        """
        stream = self.stream
        self._last_record = None
        if self._is_executed is not None and not self._is_executed():
            op_seed = stream.operation_seed
        else:
            site = callsite.user_site()
            again = self._replay.next_for(site, self._phase) if self._replay is not None else None
            if again is not None:
                op_seed = again
            else:
                op_seed, self._last_record = stream.take(site, self._phase)
                if self._trace is not None:
                    self._trace.append(_Taken(site, self._phase, op_seed))
        # To the kernels (0, 0) means "nondeterministic"; TensorFlow's own get_seed avoids it likewise.
        self.last_seeds = seeds = stream.seed, op_seed if stream.seed or op_seed else _MAX_INT32
        return seeds

    def describe_last(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Adds to this thread's last record what the op turned out to be.

        Args:
          op_type: TensorFlow's name of the op.
          shape: static shape of what it drew, if known.
          dtype: name of the dtype of what it drew.
        """
        record = self._last_record
        if record is not None:
            self._last_record = None
            self.stream.describe(record, op_type, shape, dtype)

    @contextlib.contextmanager
    def initializing(self) -> Iterator[None]:
        """Ops inside initialize a variable."""
        before, self._phase = self._phase, "init"
        try:
            yield
        finally:
            self._phase = before

    @contextlib.contextmanager
    def shape_inference(self, is_executed: Callable[[], bool]) -> Iterator[None]:
        """Ops inside are built to learn their shapes, and take no op seed unless they are executed.

        Args:
          is_executed: called for each op; tells whether it is executed all the same.
        """
        before, self._is_executed = self._is_executed, is_executed
        try:
            yield
        finally:
            self._is_executed = before

    @contextlib.contextmanager
    def first_call(self) -> Iterator[None]:
        """A function is called for the first time: what it traces again inside is the same program."""
        before, self._replay = self._replay, None
        try:
            yield
        finally:
            self._replay = before

    @contextlib.contextmanager
    def first_trace(self) -> Iterator[None]:
        """Ops inside are a function's first trace; until its `first_call` ends, they may come again.

        What a function inside traces is left out: it keeps its own trace, and is not traced again.
        """
        outer, self._trace = self._trace, []
        try:
            yield
            self._replay = _Replay(self._trace)
        finally:
            self._trace = outer


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
            if taken.site is site and taken.phase == phase:
                del self._left[: position + 1]
                return taken.op_seed
        return None


class _Kind(NamedTuple):
    """What many records have in common, kept once for all of them."""

    site: Site
    phase: str
    op_type: str = ""
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


class _Records:
    """The records of a stream in columns: 12 bytes for each op, however many run.

    Each record is written by the thread that took its place, so threads need no lock to write.

    Attributes:
      places: positions of the records to come, each handed out once.
    """

    def __init__(self) -> None:
        self.places = iter(range(_MOST))
        self._op_seed = array("q")  # _UNWRITTEN beyond the records
        self._kind = array("i")  # position in _kinds; likewise
        self._kinds: list[_Kind] = []
        self._position_of: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()

    def __getitem__(self, index: int) -> RandomOp:
        kind = self._kinds[self._kind[index]]
        return RandomOp(
            index=index,
            op_seed=self._op_seed[index],
            run=0,
            op_type=kind.op_type,
            shape=kind.shape,
            dtype=kind.dtype,
            phase=kind.phase,
            caller=str(kind.site),
        )

    def __iter__(self) -> Iterator[RandomOp]:
        return (self[index] for index, kind in enumerate(self._kind) if kind != _UNWRITTEN)

    def first_with(self, op_seed: int) -> int:
        return self._op_seed.index(op_seed)

    def write(self, index: int, op_seed: int, site: Site, phase: str) -> None:
        position = self._position_of.get((site, phase))
        if position is None:
            position = self._add((site, phase), _Kind(site, phase))
        if index >= len(self._kind):
            self._make_room(index)
        self._op_seed[index] = op_seed
        self._kind[index] = position

    def describe(self, index: int, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Adds to a record what the op turned out to be."""
        described = (self._kind[index], op_type, shape, dtype)
        position = self._position_of.get(described)
        if position is None:
            kind = self._kinds[described[0]]
            position = self._add(described, kind._replace(op_type=op_type, shape=shape, dtype=dtype))
        self._kind[index] = position

    def _add(self, key: tuple[Any, ...], kind: _Kind) -> int:
        with self._lock:
            position = self._position_of.get(key)
            if position is None:
                position = len(self._kinds)
                self._kinds.append(kind)
                self._position_of[key] = position  # last: whoever finds it needs no lock to use it
            return position

    def _make_room(self, index: int) -> None:
        with self._lock:
            while index >= len(self._kind):
                room = [_UNWRITTEN] * (_ROOM_AT_ONCE + len(self._kind) // 8)
                self._op_seed.extend(room)
                self._kind.extend(room)  # last: its length tells that there is room


class _SeedRanges:
    """The op seeds taken so far: op seeds are counted up, so a few ranges hold any number of them."""

    def __init__(self) -> None:
        self._ranges: list[_SeedRange] = []

    @property
    def upcoming(self) -> int:
        """The op seed that comes next."""
        return self._ranges[-1].stop

    @property
    def greatest(self) -> int:
        """The greatest op seed taken."""
        return max(used.stop for used in self._ranges if used) - 1

    def count_from(self, op_seed: int) -> Iterator[int]:
        """Returns the op seeds from one on, up to where they would meet one that was taken before."""
        self._ranges = [used for used in self._ranges if used]
        limit = min(
            (max(used.start, op_seed) for used in self._ranges if used.stop > op_seed),
            default=min(op_seed + _MOST, _SEED_LIMIT),
        )
        self._ranges.append(_SeedRange(op_seed, limit))
        return self._ranges[-1].left


class _SeedRange:
    """The op seeds from `start` on that an iterator has handed out."""

    def __init__(self, start: int, limit: int):
        self.start = start
        self.left = iter(range(start, limit))
        self._limit = limit

    def __bool__(self) -> bool:
        return self.stop > self.start

    @property
    def stop(self) -> int:
        """One past the last."""
        return self._limit - operator.length_hint(self.left)


class _Thread(threading.local):
    """The cursors of the calling thread: those that it entered, and the one that it was started under."""

    def __init__(self) -> None:
        self.entered: list[Cursor] = []
        parent = _parents.get(threading.current_thread())
        self.inherited = parent and (parent, Cursor(parent.stream))


_parents: weakref.WeakKeyDictionary[threading.Thread, Cursor] = weakref.WeakKeyDictionary()
_thread = _Thread()


def current() -> Cursor | None:
    """Returns the cursor that governs the calling thread, if any."""
    entered = _thread.entered
    while entered:
        if entered[-1].open:
            return entered[-1]
        entered.pop()  # left in another thread, see leave()
    inherited = _thread.inherited
    return inherited[1] if inherited and inherited[0].open else None


def enter(stream: Stream) -> Cursor:
    """Makes a stream govern the calling thread, until `leave`."""
    cursor = Cursor(stream)
    _thread.entered.append(cursor)
    return cursor


def leave(cursor: Cursor) -> None:
    """Ends what `enter` began.

    Raises:
      ScopeError: if another thread has entered it.
    """
    cursor.open = False
    if cursor not in _thread.entered:
        # It cannot be taken off another thread's stack from here; being closed it governs no longer.
        raise ScopeError(
            "a scope was left in another thread than the one that entered it; enter and leave it in one thread, "
            "with a `with` statement"
        )
    _thread.entered.remove(cursor)


def inherit(child: threading.Thread) -> None:
    """Lets a thread that is about to start be governed as the calling thread is."""
    cursor = current()
    if cursor is not None:
        _parents[child] = cursor
