"""Cursors: the position of each thread in a stream, which decides the op seed that comes next in steps, loops, traces.

Each thread and each asyncio task has a stack of `Cursor`s: one for each scope and each step that it is in. The
innermost one governs: an adapter asks `current` for it, or is made by `governed`, and takes seeds with
`Cursor.next_seeds`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, NamedTuple

from detrand.changes import Changes
from detrand.errors import ScopeError, StepMismatchError
from detrand.scopes import Entered, Scope
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.seeding.regions import Assigned, Execution, Kind, OpNode, Pass, restore_op_seeds
from detrand.seeding.streams import OwnSeed, Record, Stream

_cursors: Entered[Cursor] = Entered("detrand_cursors")
_entered = _cursors.entered


def current() -> Cursor | None:
    """Return the cursor that governs the calling thread or asyncio task, if any."""
    entered = _entered.get()
    if entered is None:
        return None
    cursor = entered[0]
    if not cursor.scope.open:
        around = _cursors.innermost()
        if around is None:
            return None
        cursor = around
    if cursor._thread == get_ident():
        return cursor
    return cursor._of_calling_thread()  # which runs in a copy of the context of a different thread


def open_streams() -> list[Stream]:
    """Return the streams of the scopes that the calling thread or asyncio task is in."""
    return [cursor.stream for cursor in _cursors.all()]


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


def enter(stream: Stream, changes: Changes) -> Cursor:
    """Make a stream govern the calling thread until the changes are undone."""
    outer = current()
    cursor = Cursor(stream) if outer is None else outer.in_inner_scope(stream)
    changes.set(cursor.scope, "open", True)
    _cursors.enter(cursor, changes)
    return cursor


@contextlib.contextmanager
def governing_thread(cursor: Cursor) -> Iterator[None]:
    """Make a cursor from `Cursor.for_child_thread` govern the calling thread, while the parent's scope is open."""
    with Changes() as changes:
        cursor._move_to_calling_thread(changes)
        _cursors.enter(cursor, changes)
        yield


class _Scope:
    """Whether a scope is open: shared by the cursor that entered it and the cursors of steps and threads inside."""

    open = False


class _Taken(NamedTuple):
    """An op seed that was taken while a function was traced."""

    site: Site
    phase: str
    op_seed: int


Trace = list[_Taken]
RunPart = Callable[..., Any]  # calls a function, with the arguments after it, as a part of control flow


def _at_once() -> bool:
    return True


class Cursor:
    """The position of one thread or asyncio task in a stream, which decides the op seed that comes next.

    Args:
      stream: the stream.
      step: the step in which the thread starts, if any.
      execution: the innermost part of a program, such as a step or a loop's body, in which it starts.

    Attributes:
      scope: whether the cursor still governs; shared with the cursors of steps inside, and of threads started inside.
      own_seed: what the ops that are about to ask would draw from outside of a scope; see `RandomOp`.
      last_seeds: what `next_seeds` returned last, until the op that asked is described.
      node: the op node whose next run is drawn by the op that asked last; None where the op draws run 0.
      phase: ``"init"`` while a variable is being initialized, else ``"compute"``.
      started_at: the line that starts the thread; `UNKNOWN` for the thread that enters the scope.
      is_executed: returns whether an op is executed, rather than built or tried to infer its shape.
    """

    # The first values are those of the class, so that a step, which makes a cursor, takes less time.
    own_seed: OwnSeed | None = None
    last_seeds: tuple[int, int] | None = None
    node: OpNode | None = None
    phase = "compute"
    started_at = callsite.UNKNOWN
    _parent: Cursor | None = None  # if this is the cursor of a thread
    _last_record: Record | None = None
    _undescribed: tuple[OpNode, Site, str] | None = None  # of an op that has not described itself yet
    _trace: Trace | None = None  # of the function that is traced for the first time
    # What is left of the first trace of a function that is traced again, and the first trace of a function inside.
    _replay: tuple[Trace, Trace | None] | None = None
    # What each stream's op seeds were before the program assigned its `operation_seed`, for each block around that
    # repeats what has taken op seeds before.
    _assigned: tuple[Assigned, ...] = ()
    _entered_in: Execution | None = None  # a part of another tool's program, where this tool's scope begins
    is_executed: Callable[[], bool] = staticmethod(_at_once)

    def __init__(
        self,
        stream: Stream,
        step: Execution | None = None,
        execution: Execution | None = None,
        scope: _Scope | None = None,
    ):
        self.stream = stream
        self.scope = scope or _Scope()
        self.step_execution = step
        self.execution = execution
        self._thread = get_ident()
        self._of_threads: dict[int, Cursor] = {}  # of threads that may run in a copy of this thread's context

    def in_inner_scope(self, stream: Stream) -> Cursor:
        """Return the cursor of a scope that is entered inside this one, of the same tool or of another tool.

        The scope is a part of the step, loop or function around it: a graph has its ops once, too.
        """
        self._settle()
        outer = next((cursor for cursor in reversed(_cursors.all()) if cursor.stream is stream), None)
        inner = Cursor(stream, outer.step_execution if outer else None, self.execution)
        inner._entered_in = outer._entered_in if outer else self.execution
        inner.phase, inner._trace, inner._replay = self.phase, self._trace, self._replay
        inner.started_at = self.started_at
        inner.is_executed, inner._assigned = self.is_executed, self._assigned
        return inner

    @property
    def open(self) -> bool:
        """Whether the cursor still governs."""
        return self.scope.open

    def leave(self, what: str) -> None:
        """End the cursor, which is that of a scope or step, after its last op.

        Raises:
          ScopeError: if another thread or asyncio task entered it, and this one was not governed.
        """
        if self._undescribed is not None:
            self._settle()
        if self._thread != get_ident():
            raise ScopeError(
                f"{what} was left in a different thread from the one that entered it; enter and leave it in one "
                "thread, with a `with` statement"
            )
        entered = _entered.get()
        if (entered is None or entered[0] is not self) and self not in _cursors.all():
            raise ScopeError(
                f"{what} was left in a different asyncio task from the one that entered it, and did not govern this "
                "task. Enter and leave it in one task, with a `with` statement. A fixture that enters it for a test "
                "must not be async."
            )

    def next_seeds(
        self, executes: Callable[[], bool | None] = _at_once, own_seed: OwnSeed | None = None
    ) -> tuple[int, int]:
        """Take the next op seed, and record who took it: the program's line that is running, not the caller's.

        Args:
          executes: returns whether the op is executed now, rather than put into a graph; None for the graph of a
            session, which is a program of its own.
          own_seed: what the op would draw from outside of a scope, if not from the cursor's `own_seed`.

        Returns:
          ``(seed, op_seed)``. If `node` is None, the op draws its run 0 from them: an eager op runs once, and the
          runtime counts the runs of a graph's op. Otherwise the op draws from the node's counter, and moves it on.

        Raises:
          SeedReuseError: in ``"num_random_ops"`` mode, if the op seed was taken before.
          StepMismatchError: if a different op belongs here.
        """
        stream, trace, replay = self.stream, self._trace, self._replay
        is_executed = self.is_executed
        self.node = self._last_record = None
        if is_executed is not _at_once and not is_executed():
            op_seed = stream.operation_seed
        elif self.execution is None and trace is None and replay is None and is_executed is _at_once:
            op_seed, self._last_record, node = stream.take(callsite.user_site(skip=2), self.phase)
            if node is not None and executes():
                self.node = node
        else:
            site = callsite.user_site(skip=2)
            replayed = None if replay is None else self._op_seed_of_first_trace(*replay, site)
            op_seed = self._op_seed_of_execution(site, executes) if replayed is None else replayed
            if trace is not None and replayed is None:
                trace.append(_Taken(site, self.phase, op_seed))
        own_seed = own_seed or self.own_seed
        if own_seed is not None and self._last_record is not None:
            self._last_record.own_seed = own_seed
        self.last_seeds = seeds = stream.seeds_of(op_seed)
        return seeds

    @contextlib.contextmanager
    def drawing_from(self, own_seed: OwnSeed | None) -> Iterator[None]:
        """Record for the ops that ask in the block what they would draw from outside of a scope."""
        with Changes() as changes:
            changes.set(self, "own_seed", own_seed)
            yield

    def _op_seed_of_first_trace(self, left: Trace, notes: Trace | None, site: Site) -> int | None:
        """Return the next op seed of a line in the first trace, some of whose ops (initializers) do not come again."""
        for position, taken in enumerate(left):
            if (taken.site, taken.phase) == (site, self.phase):
                del left[: position + 1]
                if notes is not None:
                    notes.append(taken)
                return taken.op_seed
        return None

    def _op_seed_of_execution(self, site: Site, executes: Callable[[], bool | None]) -> int:
        execution = self.execution
        if execution is not None and execution.open:
            if self._undescribed is not None:
                self._settle()
            is_executed = self._trace is None and executes()
            if is_executed is (not execution.is_trace):
                return self._op_seed_of_node(execution, site)
            if is_executed is False:
                execution.traced(site)
        elif self.step_execution is not None and not self.step_execution.open:
            raise StepMismatchError(
                f"a thread or task that was started in {self.step_execution} draws at {site}, after that step has "
                "ended. Start threads and tasks that draw anew in each step, and wait for them before the step ends."
            )
        op_seed, self._last_record, self.node = self.stream.take(site, self.phase)
        return op_seed

    def _op_seed_of_node(self, execution: Execution, site: Site) -> int:
        stream = self.stream
        node = execution.find(site)
        if node is not None:
            self._last_record = stream.record(node.op_seed, node.run, site, self.phase)
        elif execution.notes_nodes:
            if stream.mode == "num_random_ops":
                execution.check_start(stream, site)
            op_seed, self._last_record, given = stream.take(site, self.phase)
            node = execution.note(given or OpNode(op_seed, site))
        else:
            node = execution.note(OpNode(stream.operation_seed, site))
        if not execution.is_trace:
            self.node = node
        self._undescribed = node, site, "" if self._entered_in is None else f" with seed {stream.seed}"
        return node.op_seed

    def node_of(self, seeds: tuple[int, int], executes: Callable[[], bool | None]) -> OpNode | None:
        """Return the op node whose next run is drawn by an op that is about to be executed; None for run 0.

        Seeds that `next_seeds` has not returned are the op's own, and it keeps them.
        """
        if seeds == self.last_seeds:
            return self.node
        self._last_record = None
        self._settle()
        execution = self.execution
        if execution is None or not execution.open or self._trace is not None or execution.is_trace or not executes():
            return None
        site = callsite.user_site()
        node = execution.find(site) or execution.note(OpNode(seeds[1], site))
        self._undescribed = node, site, f" with seeds {seeds} of its own"
        return node

    def record_uncontrolled(
        self, site: Site, op_type: str, shape: tuple[int | None, ...] | None, dtype: str, phase: str | None = None
    ) -> None:
        """Record a draw that no stream decides, in the cursor's phase or another one; see `describe_last`."""
        if self.is_executed():
            site = self.started_at if site == callsite.UNKNOWN else site
            self.stream.record(None, 0, site, phase or self.phase).describe(op_type, shape, dtype)

    def describe_last(self, op_type: str, shape: tuple[int | None, ...] | None, dtype: str) -> None:
        """Complete this thread's last record with the op that followed.

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
        undescribed, execution = self._undescribed, self.execution
        self._undescribed = self.node = None
        if undescribed is not None and execution is not None:
            node, site, own_seeds = undescribed
            execution.executed(node, op_type + own_seeds, dtype, site)

    def assign(self, stream: Stream, op_seed: int) -> None:
        """Set the op seed that the next op of a stream takes; a graph is built once, so a repetition sets none."""
        for assigned in self._assigned:
            assigned.setdefault(stream, stream.op_seeds)
        stream.operation_seed = op_seed

    @contextlib.contextmanager
    def _having(self, **state: Any) -> Iterator[None]:
        with Changes() as changes:
            for name, value in state.items():
                changes.set(self, name, value)
            yield

    @contextlib.contextmanager
    def _repeating(self, **state: Any) -> Iterator[None]:
        """Open a scope whose ops take no op seeds: what it assigns to `operation_seed` is undone."""
        assigned: Assigned = {}
        with Changes() as changes:
            changes.on_undo(restore_op_seeds, assigned)
            with self._having(_assigned=(*self._assigned, assigned), **state):
                yield

    def initializing(self) -> contextlib.AbstractContextManager[None]:
        """Return a scope whose ops initialize a variable: they run once, whatever runs around them."""
        self._settle()
        return self._having(phase="init", execution=None)

    def shape_inference(self, is_executed: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """Return a scope whose ops only have their shapes inferred, and take no op seed unless `is_executed()`."""
        self._settle()
        return self._repeating(is_executed=is_executed)

    def executing(self) -> contextlib.AbstractContextManager[None]:
        """Return a scope inside `shape_inference` whose ops are executed all the same."""
        return self._having(is_executed=_at_once)

    @contextlib.contextmanager
    def first_trace(self, comes_again: bool = False) -> Iterator[Trace]:
        """Open a scope whose ops are a function's first trace.

        Args:
          comes_again: whether the function is traced again when the function around it is. A function that keeps its
            trace is left out of the trace around it.

        Yields:
          What `second_trace` takes.
        """
        trace: Trace = []
        outer = self._trace
        replay = (self._replay[0], trace) if comes_again and self._replay is not None else None
        with self._having(_trace=trace, _replay=replay):
            yield trace
        if comes_again and outer is not None:
            outer.extend(trace)

    def second_trace(self, first: Trace) -> contextlib.AbstractContextManager[None]:
        """Return a scope whose ops are a function's second trace: the program of the first, with its op seeds."""
        return self._repeating(_replay=(list(first), None))

    @property
    def in_region(self) -> bool:
        """Whether what is executed now may be executed again as a further run: a step, a loop's body or the like."""
        return self.execution is not None and self.execution.open

    @property
    def in_step(self) -> bool:
        """Whether a step governs the thread."""
        return self.step_execution is not None and self.step_execution.open

    def _check_outside_regions(self) -> None:
        if self.in_step:
            raise ScopeError(
                f"a step was entered inside {self.step_execution}. A step is one Session.run, and none runs inside "
                "another: leave one step before the next"
            )
        if self.in_region and self.execution is not self._entered_in:
            raise ScopeError(
                f"a step was entered inside {self.execution}. A step is a whole Session.run, with its loops and "
                "conditionals: put the step around them"
            )

    def _in(self, step: Execution | None, execution: Execution | None) -> Cursor:
        cursor = Cursor(self.stream, step, execution, self.scope)
        cursor.started_at = self.started_at
        return cursor

    def _close(self, execution: Execution) -> None:
        if execution.open:
            execution.close()
        self._undescribed = self.node = None

    @contextlib.contextmanager
    def control_flow(self, kind: Kind) -> Iterator[RunPart]:
        """Open a scope that executes a loop or other control flow, in a region or by itself.

        Yields:
          A function ``run(part, function, *args, **kwargs)`` that calls `function` as a part of the control flow.
        """
        self._settle()
        # In a trace, eager control flow is in a tf.init_scope, and is executed once.
        is_traced = self._trace is not None or self._replay is not None
        outer = self.execution if self.in_region and not is_traced else None
        within = Pass(kind, callsite.user_site(), outer)

        def run(part: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            execution = within.execution(part)
            with Changes() as changes:
                changes.set(self, "execution", execution)
                changes.set(self, "_assigned", (*self._assigned, execution.assigned))
                if is_traced:
                    changes.set(self, "_trace", None)
                    changes.set(self, "_replay", None)
                changes.on_undo(self._close, execution)
                returned = function(*args, **kwargs)
                self._settle()
                execution.end()
                return returned

        yield run
        within.end({cursor.stream: cursor.stream.operation_seed for cursor in (self, *_cursors.all())})

    def for_child_thread(self) -> Cursor:
        """Return the cursor that governs a thread which is about to be started."""
        site = callsite.user_site()
        execution = self.execution.thread(site) if self.execution and self.execution.open else None
        child = self._in(self.step_execution, execution)
        child._parent, child._assigned = self, self._assigned
        child.started_at = self.started_at if site == callsite.UNKNOWN else site
        return child

    def for_observing(self) -> Cursor:
        """Return the cursor that records what is drawn in a thread which it does not govern."""
        observer, site = self._in(None, None), callsite.user_site()
        observer.started_at = self.started_at if site == callsite.UNKNOWN else site
        return observer

    def _move_to_calling_thread(self, changes: Changes) -> None:
        """Make this cursor that of the calling thread wherever it runs in a copy of the parent's context."""
        self._thread = get_ident()
        if self._parent is not None:
            changes.on_undo(self._parent._of_threads.pop, self._thread, None)
            self._parent._of_threads[self._thread] = self

    def _of_calling_thread(self) -> Cursor:
        own = self._of_threads.get(get_ident())
        if own is None:
            own = self._of_threads[get_ident()] = self.for_child_thread()
            own._thread = get_ident()
        return own


class Step(Scope):
    """A scope whose ops are one more run of a program; it yields the number of the run, from 0.

    A generator or `Changes` would take longer. As with these, a step is left whatever line an interrupt hits; so what
    leaves it may run twice, or before it is entered.

    Args:
      stream: the stream, which must govern where the step is entered.
      name: the name of the program.
      executes: returns whether ops are executed at once, rather than put into a graph.

    Raises:
      ScopeError: on entering: outside the stream's scope, in a step or another region, while a graph is built, or while
        another thread or task is in a step of that name; on leaving: in another thread or asyncio task.
      StepMismatchError: on leaving, if there were fewer ops than in the first run.
    """

    _call = "tool.step()"
    _entered: Cursor | None = None

    def __init__(self, stream: Stream, name: str, executes: Callable[[], bool] = _at_once):
        self._stream, self._name, self._executes = stream, name, executes
        self._used = False  # which is last, as in a `Scope`

    def _recreate_cm(self) -> Step:
        return Step(self._stream, self._name, self._executes)

    def __enter__(self) -> int:
        if self._used:
            raise self.used_again()
        self._used = True
        outer, stream = current(), self._stream
        if outer is None or outer.stream is not stream:
            where = "outside every scope" if outer is None else "in the scope of another tool"
            raise ScopeError(f"tool.step() was entered {where}. Put `with tool.scope():` around all steps.")
        if not self._executes():
            raise ScopeError(
                "tool.step() was entered while a graph or a tf.function is built. A step is for code that is executed "
                "at once: put it around the call of the function. Runs of a Session need no step."
            )
        if outer.execution is not None or outer.step_execution is not None:
            outer._check_outside_regions()
        try:
            self._entered = cursor = Cursor(stream, scope=outer.scope)
            cursor.started_at = outer.started_at
            execution = Execution(stream.enter_step(self._name, cursor))
            cursor.step_execution = cursor.execution = execution
            cursor._assigned = (*outer._assigned, execution.assigned)
            _cursors.put_inside(cursor)
            return execution.number
        except BaseException:
            self._leave()
            raise

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        cursor = self._entered
        if cursor is None:
            raise self.never_entered()
        try:
            if error_type is None:
                cursor.leave("a step")
                if cursor.execution is not None:
                    cursor.execution.end()
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        cursor = self._entered
        if cursor is not None:
            execution = cursor.execution
            if execution is not None and execution.open:
                execution.close()
            _cursors.leave(cursor)
            self._stream.leave_step(self._name, cursor)
            self._entered = None

    def __del__(self) -> None:
        if self._entered is not None or not self._used:  # most steps have been left
            super().__del__()
            if not sys.is_finalizing():
                self._leave()
