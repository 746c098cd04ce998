"""`Scope`: a context manager that is entered once or decorates functions; `Entered`: those that a thread is in."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from detrand.changes import Changes
from detrand.errors import ArgumentError, ScopeError


class Scope(contextlib.ContextDecorator):
    """A context manager for one ``with`` statement, or for each call of the functions that it decorates.

    Nothing is changed before it is entered.

    Args:
      call: the user's call that returns the scope, for the messages: ``"tool.scope()"``.
      open: returns what ``with`` enters and leaves. Generators with `Changes` also end when nothing refers to them.
    """

    _entered: Any = None  # a context manager
    _used = True  # as long as it is not complete

    def __init__(self, call: str, open: Callable[[], contextlib.AbstractContextManager[Any]]):
        self._call = call
        self._open = open
        self._used = False

    def _recreate_cm(self) -> Scope:
        # Each call of a decorated function is its own scope, recursive calls included.
        return Scope(self._call, self._open)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:  # type: ignore[override]
        """Decorate a function: each of its calls is a scope."""
        if not callable(func):
            raise ArgumentError(
                f"{self._call} was applied to {func!r}, which is not a function. Use `with {self._call}:`, or "
                f"@{self._call} above a function."
            )
        if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
            raise ArgumentError(
                f"@{self._call} cannot decorate {func.__qualname__}, a generator or coroutine function: the scope "
                f"would end before the body runs. Use `with {self._call}:` inside the body."
            )
        self._used = True
        return super().__call__(func)

    def __enter__(self) -> Any:
        if self._used:
            raise self.used_again()
        self._used = True
        entered = self._open()
        value = entered.__enter__()
        self._entered = entered
        return value

    def used_again(self) -> ScopeError:
        """Return the error of a scope that is entered for a second time."""
        return ScopeError(f"This scope has been entered before. Call {self._call} again for a new scope.")

    def never_entered(self) -> ScopeError:
        """Return the error of a scope that is left, but has not been entered."""
        return ScopeError(f"This scope was left but never entered. Use `with {self._call}:`.")

    def __exit__(self, *error: Any) -> bool | None:
        if self._entered is None:
            raise self.never_entered()
        entered, self._entered = self._entered, None
        return entered.__exit__(*error)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"{self._call} was called but never entered, so it changed nothing. Write `with {self._call}:` "
                f"around the code, or @{self._call} above a function.",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._entered is not None:
            warnings.warn(
                f"{self._call} was entered but never left, and ends here, because nothing refers to it. Write `with "
                f"{self._call}:` around the code.",
                RuntimeWarning,
                stacklevel=2,
            )


class _CanBeOpen(Protocol):
    @property
    def open(self) -> bool: ...


OpenT = TypeVar("OpenT", bound=_CanBeOpen)


class Entered(Generic[OpenT]):
    """The blocks of one kind that the calling thread, or asyncio task, has entered.

    A task begins in the blocks of the code that makes it, and may outlive them; a block may be left in a different
    thread. Therefore only those that are still ``open`` count.

    Attributes:
      entered: the innermost block, open or not, and, in the same form, what is around it.
    """

    def __init__(self, kind: str):
        self.entered: ContextVar[tuple[OpenT, Any] | None] = ContextVar(kind, default=None)

    def innermost(self) -> OpenT | None:
        """Return the block that was entered last, if any."""
        entered = self.entered.get()
        while entered is not None:
            block, around = entered
            if block.open:
                return block
            entered = around
        return None

    def all(self) -> tuple[OpenT, ...]:
        """Return the blocks, the innermost last."""
        entered, blocks = self.entered.get(), list[OpenT]()
        while entered is not None:
            block, entered = entered
            if block.open:
                blocks.append(block)
        return tuple(reversed(blocks))

    def enter(self, block: OpenT, changes: Changes) -> None:
        """Enter a block until the changes are undone."""
        changes.on_undo(self.leave, block)
        self.put_inside(block)

    def put_inside(self, block: OpenT) -> None:
        """Enter a block until `leave`, which the caller has seen to."""
        around = self.entered.get()
        while around is not None and not around[0].open:
            around = around[1]
        self.entered.set((block, around))

    def leave(self, block: OpenT) -> None:
        """Leave a block, if it has been entered and not left."""
        entered = self.entered.get()
        if entered is not None and entered[0] is block:
            self.entered.set(entered[1])
        elif block.open:  # left before what is inside it
            left: tuple[OpenT, Any] | None = None
            for each in self.all():
                if each is not block:
                    left = each, left
            self.entered.set(left)
