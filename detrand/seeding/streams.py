"""Which ``(seed, op_seed, run)`` the next random op takes: the one decision that every adapter obeys.

A stateful random op of TensorFlow 1 draws a pure function of ``(seed, op_seed, run)`` and its shape.
A `Stream` holds the first, counts out the second, and keeps a record of each; how the numbers are
computed is no concern of this module, which knows no framework.

Each thread has a stack of `Cursor`s, of which the innermost one governs it; a thread that has entered no stream is
governed by the one that governed its parent when it was started.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from detrand.callsite import Site
from detrand.errors import ArgumentError, ScopeError, SeedReuseError
from detrand.seeding.cursors import Cursor
from detrand.seeding.places import Block, Execution
from detrand.seeding.records import RandomOp, Records

MODES = ("constant", "num_random_ops")
DEFAULT_STEP = "train"
_SEED_LIMIT = 2**63  # TensorFlow keeps both seeds of an op in int64 attributes
_MOST = 2**62  # more ops than anybody can run


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

    Attributes:
      draws_in_float32: whether Keras draws float32 numbers where it asks for narrower ones, and casts them: a layer in
        mixed precision then draws what the float32 op of a TF1 program does.
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
        self._records = Records()
        self._taken = self._records.taken
        self.describe = self._records.describe  # as it is, without a call in between: every op is described
        self.record_uncontrolled = self._records.write_uncontrolled
        self._used = _SeedRanges()
        self._steps: dict[str, _Steps] = {}
        self.operation_seed = 0
        self.draws_in_float32 = False

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
            self._next = zip(op_seeds, self._records.positions, strict=False)

    def give_next(self, op_seeds: Sequence[int]) -> None:
        """Gives the next ops these op seeds, each another one, and the ops after them those above the greatest."""
        with self._lock:
            above = self._used.count_from(max(op_seeds) + 1)
            self._next = zip(itertools.chain(op_seeds, above), self._records.positions, strict=False)

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
        self._taken[record] = op_seed, 0, site, phase
        return taken

    def record_run(self, op_seed: int, run: int, site: Site, phase: str) -> int:
        """Records a run of an op after its first, and returns the position of the record."""
        record = next(self._records.positions)
        self._taken[record] = op_seed, run, site, phase
        return record

    @contextlib.contextmanager
    def step_block(self, name: str) -> Iterator[Block]:
        """Yields what the steps of a name execute, which no other thread executes in the meantime.

        Raises:
          ScopeError: if another thread does so now.
        """
        steps = self._steps.setdefault(name, _Steps(name))
        if not steps.lock.acquire(blocking=False):
            raise ScopeError(
                f"a step of the name {name!r} was entered while another thread is in one. Steps of one name are the "
                "runs of one program, one after the other: give each thread's steps a name, tool.step(name=...)"
            )
        try:
            yield steps.block
        finally:
            steps.lock.release()

    def _reuse_error(self, site: Site) -> Exception:
        op_seed = self.operation_seed
        if op_seed >= _SEED_LIMIT:
            return ArgumentError(
                f"the random op at {site} comes to op seed 2**63, but the greatest that TensorFlow has is 2**63 - 1; "
                "set operation_seed to a smaller number"
            )
        first = self._records.first_with(op_seed)
        return SeedReuseError(
            f"op seed {op_seed} was used first by random op {first.index} at {first.caller} and is about to "
            f"be used again at {site}. Two ops with one op seed draw the same numbers, where two ops of a TF1 graph "
            "draw different ones. Set operation_seed above every op seed already used (the greatest is "
            f"{self._used.greatest}), or use a new DeterministicRandomTestTool for the second program."
        )


class _Steps:
    """The steps of one name."""

    def __init__(self, name: str):
        self.block = Block("step {}" if name == DEFAULT_STEP else f"step {{}} of {name!r}")
        self.lock = threading.Lock()


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
        self.inherited: tuple[Cursor, Cursor] | None = None
        inherited = _parents.get(threading.current_thread())
        if inherited is not None:
            parent, execution = inherited
            self.inherited = parent, Cursor(parent.stream)
            self.inherited[1].adopt(parent, execution)


_parents: weakref.WeakKeyDictionary[threading.Thread, tuple[Cursor, Execution | None]] = weakref.WeakKeyDictionary()
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
    outer = current()
    if outer is not None and outer.stream is stream:  # a scope inside the same tool's step is still in the step
        cursor.adopt(outer, outer.execution)
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
        _parents[child] = cursor, cursor.thread_execution()
