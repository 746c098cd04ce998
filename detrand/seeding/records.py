"""What a scope keeps of every random op: in columns, so that any number of ops takes little memory."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand.callsite import Site

_MOST = 2**62  # more ops than anybody can run
_UNWRITTEN = -1
_ROOM_AT_ONCE = 1024


@dataclass(frozen=True)
class RandomOp:
    """One random op that ran in a scope.

    Attributes:
      index: position among the ops of the tool, from 0.
      op_seed: the op seed that it took. None if no scope can control it: a stateless op or a ``tf.random.Generator``
        with a seed of the user's, an op of ``tf.raw_ops`` with seeds, a function of ``np.random`` or of Python's
        ``random``.
      run: how often that op had run before. Always 0 for an op of a graph, whose runs the runtime counts.
      op_type: TensorFlow's name of the op, such as ``"RandomUniform"``, or ``"np.random.normal"``; empty where a seed
        was taken and no op followed (``tf.nn.dropout`` with rate 0 does so).
      shape: shape of what it drew, ``None`` for each unknown dimension, or ``None`` if nothing is known.
      dtype: name of the dtype of what it drew; empty if unknown.
      phase: ``"init"`` if it ran while a variable was being initialized, else ``"compute"``.
      caller: ``file:line`` of the user's code.
    """

    index: int
    op_seed: int | None
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
    op_type: str
    shape: tuple[int | None, ...] | None
    dtype: str


class Records:
    """The records of a stream in columns: 16 bytes for each op, however many run.

    A record goes to its columns as soon as the op says what it is, or when somebody wants to see it. The thread that
    took its position writes it, so that threads need no lock to write.

    Attributes:
      positions: positions of the records to come, each handed out once.
      taken: position to ``(op_seed, run, site, phase)`` of what has been taken, and not been described yet. Who takes
        a position puts this there.
    """

    def __init__(self) -> None:
        self.positions = iter(range(_MOST))
        self.taken: dict[int, tuple[int, int, Site, str]] = {}
        self._op_seed = array("q")  # _UNWRITTEN beyond the records
        self._run = array("i")  # 0 beyond the records
        self._kind = array("i")  # position in _kinds; _UNWRITTEN beyond the records
        self._kinds: list[_Kind] = []
        self._position_of: dict[tuple[Any, ...], int] = {}
        self._lock = threading.RLock()

    def __getitem__(self, index: int) -> RandomOp:
        op_seed, run, kind = self._op_seed[index], self._run[index], self._kinds[self._kind[index]]
        return RandomOp(
            index=index,
            op_seed=None if op_seed == _UNWRITTEN else op_seed,
            run=run,
            op_type=kind.op_type,
            shape=kind.shape,
            dtype=kind.dtype,
            phase=kind.phase,
            caller=str(kind.site),
        )

    def __iter__(self) -> Iterator[RandomOp]:
        self._write_taken()
        return (self[index] for index, kind in enumerate(self._kind) if kind != _UNWRITTEN)

    def first_with(self, op_seed: int) -> RandomOp:
        """Returns the first op that took an op seed."""
        self._write_taken()
        return self[self._op_seed.index(op_seed)]

    def write_uncontrolled(
        self, site: Site, phase: str, op_type: str, shape: tuple[int | None, ...] | None, dtype: str
    ) -> None:
        """Writes the record of an op that takes no op seed."""
        self.describe(next(self.positions), op_type, shape, dtype, (_UNWRITTEN, 0, site, phase))

    def describe(
        self,
        index: int,
        op_type: str = "",
        shape: tuple[int | None, ...] | None = None,
        dtype: str = "",
        taken: tuple[int, int, Site, str] | None = None,
    ) -> None:
        """Writes a record of which it is known now what op it is; `taken` has what it took, unless that is given."""
        op_seed, run, site, phase = taken or self.taken.pop(index, None) or self._taken_before(index)
        key = (site, phase, op_type, shape, dtype)
        position = self._position_of.get(key)
        if position is None:
            position = self._add(key)
        if index >= len(self._kind):
            self._make_room(index)
        self._op_seed[index] = op_seed
        self._run[index] = run
        self._kind[index] = position

    def _taken_before(self, index: int) -> tuple[int, int, Site, str]:
        with self._lock:  # somebody has wanted to see it, or sees it just now
            kind = self._kinds[self._kind[index]]
            return self._op_seed[index], self._run[index], kind.site, kind.phase

    def _write_taken(self) -> None:
        """Writes the records of what has not been described, and may never be."""
        with self._lock:
            for index in list(self.taken):
                taken = self.taken.pop(index, None)
                if taken is not None:
                    self.describe(index, taken=taken)

    def _add(self, key: tuple[Any, ...]) -> int:
        with self._lock:
            position = self._position_of.get(key)
            if position is None:
                position = len(self._kinds)
                self._kinds.append(_Kind(*key))
                self._position_of[key] = position  # last: whoever finds it needs no lock to use it
            return position

    def _make_room(self, index: int) -> None:
        with self._lock:
            while index >= len(self._kind):
                room = _ROOM_AT_ONCE + len(self._kind) // 8
                self._op_seed.extend([_UNWRITTEN] * room)
                self._run.extend([0] * room)
                self._kind.extend([_UNWRITTEN] * room)  # last: its length tells that there is room
        if len(self.taken) > _ROOM_AT_ONCE:  # a place for each takes more memory than columns do
            self._write_taken()
