"""Streams: the op seed that each random op of a program takes, and the run that it draws.

A stateful random op of TensorFlow 1 draws a pure function of ``(seed, op_seed, run)`` and its shape. A `Stream` holds
the seed, counts the op seeds, and records who took them. How numbers follow from these is up to the adapters.

Each thread has a stack of `Cursor`s. The innermost one governs the thread: an adapter asks `current` for it, or is made
by `governed`, and takes seeds with `Cursor.next_seeds`.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from detrand.errors import ArgumentError, ScopeError, SeedReuseError, StepMismatchError
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.seeding.records import RandomOp, Record
from detrand.seeding.regions import Execution, Kind, OpNode, Pass, Region

MODES = ("constant", "num_random_ops")
DEFAULT_STEP = "train"
_SEED_LIMIT = 2**63  # TensorFlow keeps both seeds of an op in int64 attributes
_MAX_INT32 = 2**31 - 1


def checked_seed(name: str, value: Any) -> int:
    """Return a seed that the user gave as an int: a non-negative integer below 2**63, of any integer type.

    Raises:
      ArgumentError: for anything else, booleans included.
    """
    try:
        if isinstance(value, bool) or type(value).__name__ == "bool_":  # NumPy 1's bool_ passes as an index
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{name} must be a non-negative integer, but {value!r} of type {type(value).__name__} was given. "
            f"Pass an int, such as {name}=42."
        ) from None
    if not 0 <= number < _SEED_LIMIT:
        raise ArgumentError(f"{name} must be from 0 to 2**63 - 1, but {number} was given. Pass {name}=42, for example.")
    return number


class Stream:
    """The op seeds of one program, in the order in which its random ops take them.

    Several threads may use a stream at once, each through a `Cursor` of its own.

    Args:
      seed: the seed of every op.
      mode: ``"constant"``: every op takes the same op seed, `operation_seed`; ``"num_random_ops"``: each op takes the
        next one.

    Attributes:
      keras_draws_float32: whether layers of Keras draw in float32 and cast, whatever their dtype: a layer in mixed
        precision then draws what the float32 op of a TF1 program draws.
    """

    def __init__(self, seed: int, mode: str):
        if mode not in MODES:
            raise ArgumentError(
                f"mode must be one of {', '.join(map(repr, MODES))}, but {mode!r} was given. 'constant' gives every "
                "op the same numbers, 'num_random_ops' gives each op its own."
            )
        self.seed = checked_seed("seed", seed)
        self.mode = mode
        self.keras_draws_float32 = False
        self._lock = threading.RLock()  # a finalizer that runs inside may draw
        self._records: list[Record] = []
        self._steps: dict[str, _Steps] = {}
        self._given: deque[int] = deque()
        self._used: list[range] = []
        self._first = self._next = 0
        self._limit: int | None = None
        self.operation_seed = 0

    @property
    def operation_seed(self) -> int:
        """The op seed that the next op takes."""
        return self._next

    @operation_seed.setter
    def operation_seed(self, value: int) -> None:
        op_seed = checked_seed("operation_seed", value)
        with self._lock:
            if self.mode == "num_random_ops":
                self._used = self._used_ranges()
                ahead = [max(used.start, op_seed) for used in self._used if used.stop > op_seed]
                self._limit = min(ahead, default=_SEED_LIMIT)
            self._first = self._next = op_seed

    def _used_ranges(self) -> list[range]:
        """Return the op seeds taken so far: they are counted up, so a few ranges hold them."""
        return [*self._used, range(self._first, self._next)] if self._next > self._first else self._used

    def give_next(self, op_seeds: Iterable[int]) -> None:
        """Give the next ops these different op seeds, and the ops after them those above the greatest."""
        self._given = deque(op_seeds)
        self.operation_seed = max(self._given) + 1

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """The records of all ops so far, in order."""
        return tuple(record.as_random_op(index) for index, record in enumerate(self._records[:]))

    def take(self, site: Site, phase: str) -> tuple[int, Record]:
        """Take the next op seed, and return it with its record.

        Args:
          site: the line of user code that asks.
          phase: ``"init"`` or ``"compute"``.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
        """
        with self._lock:
            if self._given:
                op_seed = self._given.popleft()
            else:
                op_seed = self._next
                if op_seed == self._limit:
                    raise self._reuse_error(op_seed, site)
                if self._limit is not None:
                    self._next += 1
            record = Record(op_seed, 0, site, phase)
            self._records.append(record)
        return op_seed, record

    def record_run(self, op_seed: int, run: int, site: Site, phase: str) -> Record:
        """Record a run of an op after its first, and return the record."""
        record = Record(op_seed, run, site, phase)
        self._records.append(record)
        return record

    def record_uncontrolled(
        self, site: Site, phase: str, op_type: str, shape: tuple[int | None, ...] | None, dtype: str
    ) -> None:
        """Record a draw that no stream decides."""
        self._records.append(Record(None, 0, site, phase, op_type, shape, dtype))

    @contextlib.contextmanager
    def step_region(self, name: str) -> Iterator[Region]:
        """Yield the region that all steps of a name execute, and keep other threads out of it.

        Raises:
          ScopeError: if another thread is executing it.
        """
        steps = self._steps.setdefault(name, _Steps(name))
        if not steps.lock.acquire(blocking=False):
            raise ScopeError(
                f"a step named {name!r} was entered while another thread is in a step of that name. Steps of one name "
                "are the runs of one program, one after the other: give each thread's steps a name of their own, "
                "tool.step(name=...)"
            )
        try:
            yield steps.region
        finally:
            steps.lock.release()

    def _reuse_error(self, op_seed: int, site: Site) -> Exception:
        if op_seed == _SEED_LIMIT:
            return ArgumentError(
                f"the random op at {site} would take op seed 2**63, but TensorFlow's greatest is 2**63 - 1. Set "
                "operation_seed to a smaller number."
            )
        index, first = next((i, record) for i, record in enumerate(self._records) if record.op_seed == op_seed)
        greatest = max(used.stop for used in self._used_ranges()) - 1
        return SeedReuseError(
            f"op seed {op_seed} was used first by random op {index} at {first.site} and is about to be used again at "
            f"{site}. Two ops with one op seed draw the same numbers, but two ops of a TF1 graph draw different ones. "
            f"Set operation_seed above every op seed already used (the greatest is {greatest}), or use a new "
            "DeterministicRandomTestTool for the second program."
        )


class _Steps:
    """The steps of one name."""

    def __init__(self, name: str):
        self.region = Region("step {}" if name == DEFAULT_STEP else f"step {{}} of {name!r}")
        self.lock = threading.Lock()


class _Thread(threading.local):
    """The cursors of the calling thread, the innermost last."""

    def __init__(self) -> None:
        self.cursors: list[Cursor] = []


_thread = _Thread()


def current() -> Cursor | None:
    """Return the cursor that governs the calling thread, if any."""
    cursors = _thread.cursors
    while cursors:
        if cursors[-1].scope.open:
            return cursors[-1]
        cursors.pop()  # its scope was left in another thread
    return None


def governed(dispatch: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what `Patches.replace` takes: a function that makes a dispatcher of the original function.

    The dispatcher calls ``dispatch(cursor, original, *args, **kwargs)`` where a stream governs the thread, and the
    original elsewhere.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatcher(*args: Any, **kwargs: Any) -> Any:
            cursor = current()
            if cursor is None:
                return original(*args, **kwargs)
            return dispatch(cursor, original, *args, **kwargs)

        return dispatcher

    return make


def enter(stream: Stream) -> Cursor:
    """Make a stream govern the calling thread until `leave`."""
    cursor = Cursor(stream)
    outer = current()
    if outer is not None and outer.stream is stream:  # a scope inside a step of the same tool is still in the step
        cursor.go_on_from(outer, outer.execution)
    _thread.cursors.append(cursor)
    return cursor


def leave(cursor: Cursor) -> None:
    """End what `enter` began.

    Raises:
      ScopeError: if another thread has entered it.
    """
    cursor.scope.open = False
    if cursor not in _thread.cursors:  # the other thread drops the closed cursor by itself
        raise ScopeError(
            "a scope was left in another thread than the one that entered it; enter and leave it in one thread, with "
            "a `with` statement"
        )
    _thread.cursors.remove(cursor)


@contextlib.contextmanager
def governing_thread(cursor: Cursor) -> Iterator[None]:
    """Make a cursor from `Cursor.for_child_thread` govern the calling thread, while the parent's scope is open."""
    _thread.cursors.append(cursor)
    try:
        yield
    finally:
        if cursor in _thread.cursors:
            _thread.cursors.remove(cursor)


RunPart = Callable[..., Any]  # calls a function, with the arguments after it, as a part of control flow


def _at_once() -> bool:
    return True


class _Scope:
    """Whether a scope is open: shared by the cursor that entered it and the cursors of threads started inside."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class Cursor:
    """One thread's position in a stream, which decides the op seed that comes next.

    Attributes:
      stream: the stream.
      scope: whether the cursor still governs.
      last_seeds: what `next_seeds` returned last, until the op that asked is described.
      node: the op node whose next run is drawn by the op that asked last; None where the op draws run 0.
      execution: the innermost step, loop or other part of the program that may be executed again as a further run.
      is_plain: whether each op takes an op seed of its own, whatever is executed or built around it.
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
        "scope",
        "stream",
    )

    def __init__(self, stream: Stream):
        self.stream = stream
        self.scope = _Scope()
        self.last_seeds: tuple[int, int] | None = None
        self.node: OpNode | None = None
        self.execution: Execution | None = None
        self._phase = "compute"
        self._last_record: Record | None = None
        self._undescribed: OpNode | None = None  # the op node of an op that has not described itself yet
        self._site = callsite.UNKNOWN
        self._own_seeds = ""
        self._is_executed: Callable[[], bool] | None = None
        self._trace: Trace | None = None
        self._replay: _Replay | None = None
        self._step: Execution | None = None
        self.is_plain = True

    def next_seeds(self, executes: Callable[[], bool] = _at_once) -> tuple[int, int]:
        """Take the next op seed, and record who took it.

        Args:
          executes: returns whether the op is executed now, rather than put into a graph.

        Returns:
          ``(seed, op_seed)``. If `node` is None, the op draws its run 0 from them: an eager op runs once, and the
          runtime counts the runs of a graph's op. Otherwise the op draws from the node's counter, and moves it on.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
          StepMismatchError: if a different op belongs here.
        """
        stream = self.stream
        self.node = None
        if self.is_plain:
            op_seed, self._last_record = stream.take(callsite.user_site(skip=2), self._phase)
        else:
            self._last_record = None
            op_seed = self._next_op_seed(executes)
        # The kernels take (0, 0) for "nondeterministic"; TensorFlow's own get_seed avoids it in the same way.
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
                f"a thread that was started in {self._step} draws at {site}, after that step has ended. Start threads "
                "that draw anew in each step, and join them before the step ends."
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
        """Return the op node whose next run is drawn by an op that is about to be executed; None for run 0.

        Args:
          seeds: the seeds that the op has. If `next_seeds` has not returned them, they are the op's own, and it keeps
            them.
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

    def record_uncontrolled(self, site: Site, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Record a draw that no stream decides; arguments as for `describe_last`."""
        if self._is_executed is None or self._is_executed():
            self.stream.record_uncontrolled(site, self._phase, op_type, shape, dtype)

    def describe_last(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Complete this thread's last record with the op that followed.

        Args:
          op_type: TensorFlow's name of the op.
          shape: static shape of what it drew, if known.
          dtype: name of the dtype of what it drew.

        Raises:
          StepMismatchError: if a different op belongs here.
        """
        self.last_seeds = None
        record = self._last_record
        if record is not None:
            self._last_record = None
            record.describe(op_type, shape, dtype)
        if self._undescribed is not None:
            self._settle(op_type, dtype)

    def _settle(self, op_type: str = "", dtype: str = "") -> None:
        """Note which op was executed at the op node that was asked for last: none, if none described itself."""
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
        """Return a scope whose ops initialize a variable: they run once, whatever runs around them."""
        self._settle()
        return self._having(_phase="init", execution=None)

    @property
    def is_initializing(self) -> bool:
        """Whether a variable is being initialized."""
        return self._phase == "init"

    @property
    def is_executed(self) -> Callable[[], bool]:
        """A function that returns whether an op is executed, rather than built or tried to infer its shape."""
        return self._is_executed or _at_once

    def shape_inference(self, is_executed: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """Return a scope whose ops are built or tried to infer their shapes, and take no op seed unless executed.

        Args:
          is_executed: called for each op; returns whether the op is executed all the same.
        """
        self._settle()
        return self._having(_is_executed=is_executed)

    @contextlib.contextmanager
    def first_trace(self, comes_again: bool = False) -> Iterator[Trace]:
        """Open a scope whose ops are a function's first trace.

        Args:
          comes_again: whether the function is traced again when the function around it is. A function that keeps its
            trace is left out of the trace around it.

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
        """Return a scope whose ops are a function's second trace: the program of the first, with its op seeds."""
        return self._having(_replay=_Replay(list(first)))

    @property
    def in_region(self) -> bool:
        """Whether what is executed now may be executed again as a further run: a step, a loop's body or the like."""
        return self.execution is not None and self.execution.open

    @property
    def in_step(self) -> bool:
        """Whether a step governs the thread."""
        return self._step is not None and self._step.open

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[int]:
        """Open a scope whose ops are one more run of a program.

        Args:
          name: which of the stream's programs.

        Yields:
          The number of the run, from 0.

        Raises:
          ScopeError: inside a step, or inside another region.
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
                "conditionals: put the step around them"
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
        """Open a scope that executes a loop or other control flow, in a region or by itself.

        Args:
          kind: the kind of control flow.

        Yields:
          A function ``run(part, function, *args, **kwargs)`` that calls `function` as a part of the control flow.
        """
        self._settle()
        within = Pass(kind, callsite.user_site(), self.execution if self.in_region else None)

        def run(part: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with self._executing(within.execution(part)):
                return function(*args, **kwargs)

        yield run
        within.end(self.stream.operation_seed)

    def go_on_from(self, outer: Cursor, execution: Execution | None) -> None:
        """Continue in an execution at the position of another cursor of the same stream."""
        self._set({"_step": outer._step, "execution": execution})

    def for_child_thread(self) -> Cursor:
        """Return the cursor that governs a thread which is about to be started."""
        child = Cursor(self.stream)
        child.scope = self.scope
        execution = None
        if self.execution is not None and self.execution.open:
            execution = self.execution.thread(callsite.user_site())
        child.go_on_from(self, execution)
        return child


class _Taken(NamedTuple):
    site: Site
    phase: str
    op_seed: int


class Trace(list[_Taken]):
    """The op seeds that were taken while a function was traced, in order."""


class _Replay:
    """The op seeds of a trace, handed out again to the same lines of the program.

    Not every op of the first trace comes again (initializers do not), so a request gets the next op seed of its line.

    Args:
      left: what is left of the trace. It is used up.
      notes: the trace of a function inside, which gets what is handed out.
    """

    def __init__(self, left: list[_Taken], notes: Trace | None = None):
        self._left = left
        self._notes = notes

    def noted_in(self, trace: Trace) -> _Replay:
        """Return the same replay, for a function inside that is traced for the first time."""
        return _Replay(self._left, trace)

    def next_for(self, site: Site, phase: str) -> int | None:
        """Return the next op seed of a line; None if the trace has no more of it."""
        for position, taken in enumerate(self._left):
            if taken.site == site and taken.phase == phase:
                del self._left[: position + 1]
                if self._notes is not None:
                    self._notes.append(taken)
                return taken.op_seed
        return None
