"""Streams: the op seeds that the random ops of a program take, in order, and the records of these ops.

A stateful random op of TensorFlow 1 draws a pure function of ``(seed, op_seed, run)`` and its shape. A `Stream` holds
the seed, counts the op seeds and records who took them. How numbers follow from these is up to the adapters.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from detrand.arguments import as_int, wrong_type
from detrand.changes import locked
from detrand.errors import ArgumentError, ScopeError, SeedReuseError
from detrand.seeding.callsite import Site
from detrand.seeding.regions import OpNode, OpSeeds, Region

MODES = ("constant", "num_random_ops")
DEFAULT_STEP = "train"
_numbers = itertools.count(1)
_MAX_INT32 = 2**31 - 1
_SEED_LIMIT = 2**63  # TensorFlow keeps both seeds of an op in int64 attributes


OwnSeed = tuple[int, int | None]


@dataclass(frozen=True)
class RandomOp:
    """One random op that ran in a scope.

    Attributes:
      index: position among the ops of the tool, from 0.
      op_seed: the op seed that it took. None if no scope can control it, such as a stateless op, a function of
        ``np.random`` or a map with ``num_parallel_calls``; the documentation has a table of these.
      run: how often that op had run before. Always 0 for an op of a graph, whose runs the runtime counts.
      op_type: TensorFlow's name of the op, such as ``"RandomUniform"``, or ``"np.random.normal"``. A dataset has the
        name of its op without the version, such as ``"ShuffleDataset"``. Empty where nothing draws from the op seed, as
        in ``tf.nn.dropout`` with rate 0.
      shape: shape of what it drew, ``None`` for each unknown dimension, or ``None`` if nothing is known, as for a
        dataset or queue, which draws later.
      dtype: name of the dtype of what it drew; empty if unknown.
      phase: ``"init"`` if it ran while a variable was being initialized, else ``"compute"``.
      caller: ``file:line`` of the user's code.
      own_seed: the seed that the op would draw from outside of a scope, and how many ops have drawn from it before;
        None in place of that number if each op begins with the seed anew, so that it draws the same numbers again.
        None if the program gives the op no seed. Equal records may have other seeds, which Keras chooses.
    """

    index: int
    op_seed: int | None
    run: int
    op_type: str
    shape: tuple[int | None, ...] | None
    dtype: str
    phase: str
    caller: str
    own_seed: OwnSeed | None = field(default=None, compare=False)


Drawn = tuple[str, tuple[int | None, ...] | None, str]  # the type of an op, its shape and its dtype


@dataclass(slots=True, eq=False)
class Record:
    """A `RandomOp` in the making: an op takes its op seed before it is known what it draws.

    A record takes about 120 bytes, so 100,000 draws take 12 MB.
    """

    op_seed: int | None
    run: int
    site: Site
    phase: str
    drawn: Drawn = ("", None, "")
    own_seed: OwnSeed | None = None

    def describe(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Complete the record with what the op drew."""
        self.drawn = _shared(op_type, shape, dtype)


@functools.lru_cache(maxsize=1024)
def _shared(*drawn: Any) -> Any:
    """Return one tuple for equal ones: records would take twice the memory without it."""
    return drawn


class Stream:
    """The op seeds of one program, in the order in which its random ops take them.

    Several threads may use a stream at once, each through a `Cursor` of its own.

    Args:
      seed: the seed of every op.
      mode: ``"constant"``: every op takes the same op seed, `operation_seed`; ``"num_random_ops"``: each op takes the
        next one.

    Attributes:
      number: a number that no other stream of the process has.
      traces_anew: whether a ``tf.function`` that was traced elsewhere is traced again, to draw from this stream.
      keras_draws_float32: whether layers of Keras draw in float32 and cast, whatever their dtype: a layer in mixed
        precision then draws what the float32 op of a TF1 program draws.
      images: the shapes, with channels first, of which numbers are drawn with channels last, as a TF1 program does.
      torch_initializes: whether PyTorch fills tensors with its own numbers, because a port is made, which gets TF1's
        initial values; its own draws are faster by far.
      on_record: called with each new record, for a backend that keeps programs in which ops draw.
    """

    def __init__(self, seed: int, mode: str):
        if mode not in MODES:
            raise ArgumentError(
                f"mode must be one of {', '.join(map(repr, MODES))}, but {mode!r} was given. 'constant' gives every "
                "op the same numbers, 'num_random_ops' gives each op its own."
            )
        self.seed = checked_seed("seed", seed)
        self.mode = mode
        self.traces_anew = False
        self.keras_draws_float32 = False
        self.torch_initializes = False
        self.images: tuple[tuple[int | None, ...], ...] = ()
        self.on_record: Callable[[], None] | None = None
        self.number = next(_numbers)
        self._lock = threading.RLock()  # a finalizer that runs inside may draw
        self._records: list[Record] = []
        self._steps: dict[str, Region] = {}
        self._in_steps: dict[str, object] = {}  # what is in a step of each name
        self._given: deque[int] = deque()
        self._given_again: dict[int, OpNode | None] = {}  # those given several times, and the op node that they share
        self._drawn_from: weakref.WeakKeyDictionary[object, int] = (
            weakref.WeakKeyDictionary()
        )  # how often, by generator
        self._limit: int | None = None  # the op seed that must not be taken next
        self.operation_seed = 0

    @property
    def operation_seed(self) -> int:
        """The op seed that the next op takes."""
        return self._next

    @operation_seed.setter
    def operation_seed(self, value: int) -> None:
        op_seed = checked_seed("operation_seed", value)
        locked(self._lock, self._take_from, op_seed)

    def _take_from(self, op_seed: int) -> None:
        if self.mode == "num_random_ops":
            self._limit = min((taken for taken in self._op_seeds() if taken >= op_seed), default=_SEED_LIMIT)
        self._next = op_seed

    @property
    def op_seeds(self) -> OpSeeds:
        """The op seeds that the next ops take, to be restored later."""
        return self._next, self._limit

    @op_seeds.setter
    def op_seeds(self, op_seeds: OpSeeds) -> None:
        self._next, self._limit = op_seeds

    def _op_seeds(self) -> list[int]:
        return [record.op_seed for record in self._records if record.op_seed is not None]

    def give_next(self, op_seeds: Iterable[int]) -> None:
        """Give the next ops these op seeds, and the ops after them those above the greatest.

        Ops that are given one op seed draw what the runs of one op draw, one after the other. In ``"constant"`` mode
        that is all that these op seeds decide, and each op takes the op seed of the mode.
        """
        self._given = deque(op_seeds)
        self._given_again = {op_seed: None for op_seed, count in Counter(self._given).items() if count > 1}
        if self.mode == "num_random_ops":
            self.operation_seed = max(self._given) + 1

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """The records of all ops so far, in order."""
        return tuple(
            RandomOp(index, op.op_seed, op.run, *op.drawn, op.phase, str(op.site), op.own_seed)
            for index, op in enumerate(self._records)
        )

    def take(self, site: Site, phase: str) -> tuple[int, Record, OpNode | None]:
        """Take the next op seed, and return it with its record.

        Returned, too, is the op node whose next run the op draws; None if it draws run 0, as nearly all ops do.

        Args:
          site: the line of user code that asks.
          phase: ``"init"`` or ``"compute"``.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
        """
        with self._lock: return self._take(site, phase)  # noqa: E701  # fmt: skip  # as `locked` holds a lock

    def _take(self, site: Site, phase: str) -> tuple[int, Record, OpNode | None]:
        if self._given:
            return self._take_given(self._given.popleft(), site, phase)
        op_seed = self._next
        if op_seed == self._limit:
            raise self._reuse_error(op_seed, site)
        if self._limit is not None:
            self._next += 1
        return op_seed, self.record(op_seed, 0, site, phase), None

    def _take_given(self, given: int, site: Site, phase: str) -> tuple[int, Record, OpNode | None]:
        op_seed = self._next if self.mode == "constant" else given
        if given in self._given_again and self._given_again[given] is None:
            self._given_again[given] = OpNode(op_seed, site)
        return op_seed, self.record(op_seed, 0, site, phase), self._given_again.get(given)

    def own_seed(self, seed: int, generator: object | None) -> OwnSeed:
        """Return the seed that an op would draw from outside of a scope, as `RandomOp.own_seed`.

        It is the first one of a generator, or, if that is None, one from which each op begins anew.
        """
        if generator is None:
            return seed, None
        return seed, locked(self._lock, self._draw_from, generator)

    def _draw_from(self, generator: object) -> int:
        times = self._drawn_from.get(generator, 0)
        self._drawn_from[generator] = times + 1
        return times

    def seeds_of(self, op_seed: int) -> tuple[int, int]:
        """Return the seeds of an op with an op seed, as it takes them."""
        # The kernels take (0, 0) for "nondeterministic"; TensorFlow's own get_seed avoids it in the same way.
        return self.seed, op_seed if self.seed or op_seed else _MAX_INT32

    def record(self, op_seed: int | None, run: int, site: Site, phase: str) -> Record:
        """Return a new record: of a further run of an op, or of a draw that no stream decides."""
        record = Record(op_seed, run, site, phase)
        self._records.append(record)
        if self.on_record is not None:
            self.on_record()
        return record

    def enter_step(self, name: str, who: object) -> Region:
        """Return the region that all steps of a name execute, and keep others out of it until `leave_step`.

        Raises:
          ScopeError: if another thread or task is executing it.
        """
        region = self._steps.get(name)
        if region is None:
            of = "" if name == DEFAULT_STEP else f" of {name!r}"
            region = self._steps.setdefault(name, Region("step", of))
        if self._in_steps.setdefault(name, who) is not who:
            raise ScopeError(
                f"a step named {name!r} was entered while another thread or task is in a step of that name. Steps of "
                "one name are the runs of one program, one after the other: give the steps of each thread or task a "
                "name of their own, tool.step(name=...)"
            )
        return region

    def leave_step(self, name: str, who: object) -> None:
        """Let others into the steps of a name, if it was this one who kept them out."""
        if self._in_steps.get(name) is who:
            del self._in_steps[name]

    def _reuse_error(self, op_seed: int, site: Site) -> Exception:
        if op_seed == _SEED_LIMIT:
            return ArgumentError(
                f"the random op at {site} would take op seed 2**63, but TensorFlow's greatest is 2**63 - 1. Set "
                "operation_seed to a smaller number."
            )
        index, first = next((i, record) for i, record in enumerate(self._records) if record.op_seed == op_seed)
        return SeedReuseError(
            f"op seed {op_seed} was used first by random op {index} at {first.site} and is about to be used again at "
            f"{site}. Two ops with one op seed draw the same numbers, but two ops of a TF1 graph draw different ones. "
            f"Set operation_seed above every op seed already used (the greatest is {max(self._op_seeds())}), or use a "
            "new DeterministicRandomTestTool for the second program."
        )


def checked_seed(name: str, value: Any) -> int:
    """Return a seed that the user gave as an int.

    Raises:
      ArgumentError: unless it is a non-negative integer below 2**63, of any integer type.
    """
    number = as_int(value)
    if number is None or not 0 <= number < _SEED_LIMIT:
        raise wrong_type(name, value, "an integer from 0 to 2**63 - 1", f"pass an int, such as {name}=42")
    return number
