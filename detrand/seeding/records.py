"""Records of the random ops that ran in a scope: `RandomOp` for users, `Record` while the scope may still add to it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from detrand.seeding.callsite import Site


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


@functools.lru_cache(maxsize=1024)
def _shared(shape: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    """Return one tuple for equal shapes: records would take half as much memory again without it."""
    return shape


class Record:
    """The record of a random op, which takes its op seed before it is known what it draws; attributes as `RandomOp`'s.

    A record takes about 140 bytes, so 100,000 draws take 14 MB.
    """

    __slots__ = ("dtype", "op_seed", "op_type", "phase", "run", "shape", "site")

    def __init__(
        self,
        op_seed: int | None,
        run: int,
        site: Site,
        phase: str,
        op_type: str = "",
        shape: tuple[int | None, ...] | None = None,
        dtype: str = "",
    ):
        self.op_seed = op_seed
        self.run = run
        self.site = site
        self.phase = phase
        self.op_type = op_type
        self.shape = shape
        self.dtype = dtype

    def describe(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Complete the record with what the op drew."""
        self.op_type, self.shape, self.dtype = op_type, _shared(shape), dtype

    def as_random_op(self, index: int) -> RandomOp:
        """Return the record as users see it."""
        return RandomOp(index, self.op_seed, self.run, self.op_type, self.shape, self.dtype, self.phase, str(self.site))
