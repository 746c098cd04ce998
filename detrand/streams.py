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
        self._counting = mode == "num_random_ops"
        self._operation_seed = 0
        self._lock = threading.Lock()
        self._records = _Records()
        self.describe = self._records.describe  # as it is, without a call in between: every op is described
        self._used = _SeedRanges()

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
        with self._lock:
            op_seed = self._operation_seed
            if self._counting:
                first = self._used.add(op_seed, self._records.count)
                if first is not None:
                    raise self._reuse_error(op_seed, first, site)
                self._operation_seed = op_seed + 1
            return op_seed, self._records.append(op_seed, site, phase)

    def _reuse_error(self, op_seed: int, first: int, site: Site) -> SeedReuseError:
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

    One thread at a time may append. To describe a record of its own, a thread needs no lock, which costs as much
    as all the rest of it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._op_seed = array("q")
        self._kind = array("i")  # position in _kinds
        self._kinds: list[_Kind] = []
        self._position_of: dict[tuple[Any, ...], int] = {}
        self._adding = threading.Lock()

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
        return (self[index] for index in range(self.count))

    def append(self, op_seed: int, site: Site, phase: str) -> int:
        position = self._position_of.get((site, phase))
        if position is None:
            position = self._add((site, phase), _Kind(site, phase))
        self._op_seed.append(op_seed)
        self._kind.append(position)
        self.count = count = self.count + 1
        return count - 1

    def describe(self, index: int, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Adds to a record what the op turned out to be."""
        described = (self._kind[index], op_type, shape, dtype)
        position = self._position_of.get(described)
        if position is None:
            kind = self._kinds[described[0]]
            position = self._add(described, kind._replace(op_type=op_type, shape=shape, dtype=dtype))
        self._kind[index] = position

    def _add(self, key: tuple[Any, ...], kind: _Kind) -> int:
        with self._adding:
            position = self._position_of.get(key)
            if position is None:
                position = len(self._kinds)
                self._kinds.append(kind)
                self._position_of[key] = position  # last: whoever finds it needs no lock to use it
            return position


class _SeedRanges:
    """The op seeds taken so far: op seeds are counted up, so a few ranges hold any number of them."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []  # [first op seed, one past the last, record of the first]
        # Nearly every op seed lengthens the newest range by one. Below the next range above it, it may.
        self._newest = [0, 0, 0]
        self._limit = 0

    @property
    def greatest(self) -> int:
        return max(stop for _, stop, _ in self._ranges) - 1

    def add(self, op_seed: int, record: int) -> int | None:
        """Adds an op seed, unless it is there: then returns the record that took it."""
        newest = self._newest
        start, stop, first = newest
        if op_seed == stop < self._limit and record - first == stop - start:
            newest[1] = stop + 1
            return None
        for start, stop, first in self._ranges:
            if start <= op_seed < stop:
                return first + op_seed - start
        self._limit = min((start for start, _, _ in self._ranges if start > op_seed), default=_SEED_LIMIT)
        self._newest = [op_seed, op_seed + 1, record]
        self._ranges.append(self._newest)
        return None


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
