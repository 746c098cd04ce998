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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from detrand.errors import ArgumentError, ScopeError, SeedReuseError, StepMismatchError
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.seeding.records import RandomOp, Records
from detrand.seeding.regions import Execution, Kind, OpNode, Pass, Region

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
      keras_draws_float32: whether layers of Keras draw in float32 and cast, whatever their dtype: a layer in mixed
        precision then draws what the float32 op of a TF1 program draws.
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
        self.keras_draws_float32 = False

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
            # An op advances this once to take both its op seed and its node among the records. To the interpreter
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
    def step_region(self, name: str) -> Iterator[Region]:
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
            yield steps.region
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
        self.region = Region("step {}" if name == DEFAULT_STEP else f"step {{}} of {name!r}")
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


_MAX_INT32 = 2**31 - 1
RunPart = Callable[..., Any]  # calls a function, with the arguments that follow it, as a part of control flow


def _at_once() -> bool:
    return True


class Cursor:
    """One thread's node in a stream: what the thread is doing there decides which op seed comes next.

    Attributes:
      stream: the stream.
      open: whether it still governs.
      last_seeds: what `next_seeds` returned last, to an op that has not said yet what it is.
      node: the node whose next run the op that asked last is to draw; None where it draws a run 0.
      execution: what is executed that may be executed again, as a further run: the innermost step, loop or the like.
      is_plain: whether each op takes an op seed of its own, no matter what is executed or built around it.
    """

    __slots__ = (
        "_is_executed",
        "_last_record",
        "_own_seeds",
        "_phase",
        "_replay",
        "_site",
        "_step",
        "_trace",
        "_undescribed",
        "execution",
        "is_plain",
        "last_seeds",
        "node",
        "open",
        "stream",
    )

    def __init__(self, stream: Stream):
        self.stream = stream
        self.open = True
        self.last_seeds: tuple[int, int] | None = None
        self.node: OpNode | None = None
        self.execution: Execution | None = None
        self._phase = "compute"
        self._last_record: int | None = None
        self._undescribed: OpNode | None = None  # an op has asked for it, and not said yet what it is
        self._site = callsite.UNKNOWN
        self._own_seeds = ""
        self._is_executed: Callable[[], bool] | None = None
        self._trace: Trace | None = None
        self._replay: _Replay | None = None
        self._step: Execution | None = None
        self.is_plain = True

    def next_seeds(self, executes: Callable[[], bool] = _at_once) -> tuple[int, int]:
        """Takes the next op seed and records who took it.

        Args:
          executes: tells whether the op is executed now, and not put into a graph.

        Returns:
          ``(seed, op_seed)``. If `node` is None, the op is to draw its run 0 from them: an eager op runs once, and
          where an op stays in a graph, the runtime counts its runs from there. Otherwise it is to draw from where the
          node's counter is, and to move that on.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
          StepMismatchError: if it is not the op that belongs here.
        """
        stream = self.stream
        self.node = None
        if self.is_plain:
            op_seed, self._last_record = stream.take(callsite.user_site(skip=2), self._phase)
        else:
            self._last_record = None
            op_seed = self._next_op_seed(executes)
        # To the kernels (0, 0) means "nondeterministic"; TensorFlow's own get_seed avoids it likewise.
        self.last_seeds = seeds = stream.seed, op_seed if stream.seed or op_seed else _MAX_INT32
        return seeds

    def _next_op_seed(self, executes: Callable[[], bool]) -> int:
        if self._is_executed is not None and not self._is_executed():
            return self.stream.operation_seed
        site = callsite.user_site()
        again = self._replay.next_for(site, self._phase) if self._replay is not None else None
        if again is not None:
            return again
        execution = self.execution
        if execution is not None and execution.open:
            if self._undescribed is not None:
                self._settle()
            is_traced = self._trace is not None or not executes()
            if is_traced == execution.is_trace:
                return self._op_seed_of_node(execution, site)
            if is_traced:
                execution.traced(site)
        elif self._step is not None and not self._step.open:
            raise StepMismatchError(
                f"a thread that was started in {self._step} draws, at {site}, when that is over. Start threads that "
                "draw anew in each step, and wait for them there"
            )
        op_seed, self._last_record = self.stream.take(site, self._phase)
        if self._trace is not None:
            self._trace.append(_Taken(site, self._phase, op_seed))
        return op_seed

    def _op_seed_of_node(self, execution: Execution, site: Site) -> int:
        stream = self.stream
        node = execution.find(site)
        if node is not None:
            self._last_record = stream.record_run(node.op_seed, node.run, site, self._phase)
        elif execution.notes_nodes:
            if stream.mode == "num_random_ops":
                execution.check_start(stream.operation_seed, site)
            op_seed, self._last_record = stream.take(site, self._phase)
            node = execution.note(OpNode(op_seed, site))
        else:
            node = execution.note_stray(OpNode(stream.operation_seed, site))
        if self._trace is not None:
            self._trace.append(_Taken(site, self._phase, node.op_seed))
        if not execution.is_trace:
            self.node = node
        self._undescribed, self._site = node, site
        return node.op_seed

    def node_of(self, seeds: tuple[int, int], executes: Callable[[], bool]) -> OpNode | None:
        """Returns the node whose next run an op is to draw that is about to be executed; None where it draws a run 0.

        Args:
          seeds: the seeds that the op has; if `next_seeds` has not returned them, they are its own, and it keeps them.
          executes: as for `next_seeds`.
        """
        if seeds == self.last_seeds:
            return self.node
        self._last_record = None
        self._settle()
        execution = self.execution
        if execution is None or not execution.open or self._trace is not None or execution.is_trace or not executes():
            return None
        site = callsite.user_site()
        node = execution.find(site)
        if node is None:
            note = execution.note if execution.notes_nodes else execution.note_stray
            node = note(OpNode(seeds[1], site))
        self._undescribed, self._site, self._own_seeds = node, site, f" with seeds {seeds} of its own"
        return node

    def record_uncontrolled(self, site: Site, *what: Any) -> None:
        """Records that numbers were drawn which no stream decides.

        Args:
          site: the line of user code that drew them.
          *what: name, shape and dtype, as for `describe_last`.
        """
        if self._is_executed is None or self._is_executed():
            self.stream.record_uncontrolled(site, self._phase, *what)

    def describe_last(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Adds to this thread's last record what the op turned out to be.

        Args:
          op_type: TensorFlow's name of the op.
          shape: static shape of what it drew, if known.
          dtype: name of the dtype of what it drew.

        Raises:
          StepMismatchError: if another op belongs here.
        """
        self.last_seeds = None
        record = self._last_record
        if record is not None:
            self._last_record = None
            self.stream.describe(record, op_type, shape, dtype)
        if self._undescribed is not None:
            self._settle(op_type, dtype)

    def _settle(self, op_type: str = "", dtype: str = "") -> None:
        node, self._undescribed, self.node = self._undescribed, None, None
        own_seeds, self._own_seeds = self._own_seeds, ""
        if node is not None and self.execution is not None:
            self.execution.executed(node, op_type + own_seeds, dtype, self._site)

    @contextlib.contextmanager
    def _having(self, **state: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in state}
        self._set(state)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        unusual = (self.execution, self._is_executed, self._replay, self._trace)
        self.is_plain = all(state is None for state in unusual)

    def initializing(self) -> contextlib.AbstractContextManager[None]:
        """Ops inside initialize a variable: they run once, whatever runs around them."""
        self._settle()
        return self._having(_phase="init", execution=None)

    @property
    def is_initializing(self) -> bool:
        """Whether a variable is being initialized."""
        return self._phase == "init"

    @property
    def is_executed(self) -> Callable[[], bool]:
        """Tells for each op whether it is executed, and not built or tried to learn its shape."""
        return self._is_executed or _at_once

    def shape_inference(self, is_executed: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """Ops inside are built or tried to learn their shapes, and take no op seed unless they are executed.

        Args:
          is_executed: called for each op; tells whether it is executed all the same.
        """
        self._settle()
        return self._having(_is_executed=is_executed)

    @contextlib.contextmanager
    def first_trace(self, comes_again: bool = False) -> Iterator[Trace]:
        """Ops inside are a function's first trace.

        Args:
          comes_again: whether the function is traced again when the one around it is. Otherwise it keeps its trace,
            and is left out of that one's.

        Yields:
          What `second_trace` takes.
        """
        trace = Trace()
        outer = self._trace
        replay = self._replay.noted_in(trace) if comes_again and self._replay is not None else None
        with self._having(_trace=trace, _replay=replay):
            yield trace
        if comes_again and outer is not None:
            outer.extend(trace)

    def second_trace(self, first: Trace) -> contextlib.AbstractContextManager[None]:
        """Ops inside are a function's second trace: the same program as its first, with the same op seeds."""
        return self._having(_replay=_Replay(list(first)))

    @property
    def in_region(self) -> bool:
        """Whether what is executed now may be executed again, as a further run: a step, a loop's body, or the like."""
        return self.execution is not None and self.execution.open

    @property
    def in_step(self) -> bool:
        """Whether a step governs the thread."""
        return self._step is not None and self._step.open

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[int]:
        """Ops inside are those of one more run of a program.

        Args:
          name: which of the stream's programs.

        Yields:
          The number of the run, from 0.

        Raises:
          ScopeError: in a step, or in a part of a program that is not a whole.
          StepMismatchError: on leaving, if there were fewer ops than in the first run.
        """
        if self.in_step:
            raise ScopeError(
                f"a step was entered inside {self._step}. A step is one Session.run, and none runs inside another: "
                "leave one step before the next"
            )
        if self.in_region:
            raise ScopeError(
                f"a step was entered inside {self.execution}. A step is a whole Session.run, with its loops and "
                "conditionals in it"
            )
        with self.stream.step_region(name) as region:
            execution = region.execution()
            with self._having(_step=execution), self._executing(execution):
                yield execution.number

    @contextlib.contextmanager
    def _executing(self, execution: Execution) -> Iterator[None]:
        with self._having(execution=execution):
            try:
                yield
                self._settle()
                execution.end()
            finally:
                execution.close()
                self._undescribed = self.node = None

    @contextlib.contextmanager
    def control_flow(self, kind: Kind) -> Iterator[RunPart]:
        """A loop or the like is executed, in a region or as one.

        Args:
          kind: which.

        Yields:
          A function ``run(part, function, *args, **kwargs)`` that calls another one, as a part of it.
        """
        self._settle()
        within = Pass(kind, callsite.user_site(), self.execution if self.in_region else None)

        def run(part: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with self._executing(within.execution(part)):
                return function(*args, **kwargs)

        yield run
        within.end(self.stream.operation_seed)

    def adopt(self, parent: Cursor, execution: Execution | None) -> None:
        """Lets it go on where a cursor of the same stream is.

        Args:
          parent: that cursor.
          execution: what is executed there.
        """
        self._set({"_step": parent._step, "execution": execution})

    def thread_execution(self) -> Execution | None:
        """Returns the execution that a thread which is about to start is to be in."""
        if self.execution is None or not self.execution.open:
            return None
        return self.execution.thread(callsite.user_site())


class _Taken(NamedTuple):
    site: Site
    phase: str
    op_seed: int


class Trace(list[_Taken]):
    """Which nodes of a program have taken which op seeds while a function was traced, in order."""


class _Replay:
    """The op seeds of a trace, handed out once more to the same places of the program.

    Not every op of the first trace comes again (initializers do not), so each request goes to the next
    op of the same node.

    Args:
      left: what is left of the trace. It is used up.
      notes: a trace of a function inside, to which what is handed out is added.
    """

    def __init__(self, left: list[_Taken], notes: Trace | None = None):
        self._left = left
        self._notes = notes

    def noted_in(self, trace: Trace) -> _Replay:
        """Returns the same replay, for a function inside that is traced for the first time."""
        return _Replay(self._left, trace)

    def next_for(self, site: Site, phase: str) -> int | None:
        for position, taken in enumerate(self._left):
            if taken.site is site and taken.phase == phase:
                del self._left[: position + 1]
                if self._notes is not None:
                    self._notes.append(taken)
                return taken.op_seed
        return None
