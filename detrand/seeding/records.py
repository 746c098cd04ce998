"""What a scope keeps of every random op: in columns, so that any number of ops takes little memory."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand.seeding.callsite import Site

_MOST = 2**62  # more ops than anybody can run
_UNWRITTEN = -1
_ROOM_AT_ONCE = 1024
_DESCRIBED_AT_MOST = 256


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

    Records go to the columns a few hundred at a time, or when somebody wants to see them: between two kernels of
    TensorFlow a processor has forgotten this code, and takes several times as long for it as in a loop.

    Attributes:
      positions: positions of the records to come, each handed out once.
      taken: position to ``(op_seed, run, site, phase)`` of what has been taken, and is not in the columns yet. Who
        takes a position puts this there.
    """

    def __init__(self) -> None:
        self.positions = iter(range(_MOST))
        self.taken: dict[int, tuple[int, int, Site, str]] = {}
        self._described: list[tuple[int, str, tuple[int | None, ...] | None, str]] = []  # and not in the columns yet
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
        self._write_all()
        return (self[index] for index, kind in enumerate(self._kind) if kind != _UNWRITTEN)

    def first_with(self, op_seed: int) -> RandomOp:
        """Returns the first op that took an op seed."""
        self._write_all()
        return self[self._op_seed.index(op_seed)]

    def write_uncontrolled(
        self, site: Site, phase: str, op_type: str, shape: tuple[int | None, ...] | None, dtype: str
    ) -> None:
        """Writes the record of an op that takes no op seed."""
        index = next(self.positions)
        self.taken[index] = _UNWRITTEN, 0, site, phase
        self.describe(index, op_type, shape, dtype)

    def describe(self, index: int, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Says of a record what op it is."""
        self._described.append((index, op_type, shape, dtype))
        if len(self._described) >= _DESCRIBED_AT_MOST:
            self._write_described()

    def _write_described(self) -> None:
        with self._lock:
            self._write(self._described)
            if len(self.taken) > _ROOM_AT_ONCE:  # of ops that do not say what they are: it takes more than columns do
                self._write_taken()

    def _write_taken(self) -> None:
        self._write([(index, "", None, "") for index in self.taken.copy()])

    def _write_all(self) -> None:
        with self._lock:
            self._write_described()
            self._write_taken()

    def _write(self, described: list[tuple[int, str, tuple[int | None, ...] | None, str]]) -> None:
        taken, kinds = self.taken, self._position_of
        while described:
            index, op_type, shape, dtype = described.pop()
            known = taken.pop(index, None)
            op_seed, run, site, phase = known or self._taken_before(index)
            kind = (site, phase, op_type, shape, dtype)
            if kind not in kinds:
                kinds[kind] = len(self._kinds)
                self._kinds.append(_Kind(*kind))
            if index >= len(self._kind):
                self._make_room(index)
            self._op_seed[index] = op_seed
            self._run[index] = run
            self._kind[index] = kinds[kind]

    def _taken_before(self, index: int) -> tuple[int, int, Site, str]:
        kind = self._kinds[self._kind[index]]  # somebody has wanted to see it
        return self._op_seed[index], self._run[index], kind.site, kind.phase

    def _make_room(self, index: int) -> None:
        room = index + 1 - len(self._kind) + _ROOM_AT_ONCE + len(self._kind) // 8
        self._op_seed.extend([_UNWRITTEN] * room)
        self._run.extend([0] * room)
        self._kind.extend([_UNWRITTEN] * room)
