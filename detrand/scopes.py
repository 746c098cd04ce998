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

    def __init__(self, call: str, open: Callable[[], contextlib.AbstractContextManager[Any]]):
        self._call = call
        self._open = open
        self._entered: contextlib.AbstractContextManager[Any] | None = None
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
            raise ScopeError(f"This scope has been entered before. Call {self._call} again for a new scope.")
        self._used = True
        entered = self._open()
        value = entered.__enter__()
        self._entered = entered
        return value

    def __exit__(self, *error: Any) -> bool | None:
        if self._entered is None:
            raise ScopeError(f"This scope was left but never entered. Use `with {self._call}:`.")
        entered, self._entered = self._entered, None
        return entered.__exit__(*error)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"{self._call} was called but never entered, so it changed nothing. Write `with {self._call}:` "
                f"around the code, or @{self._call} above a function.",
                RuntimeWarning,
                stacklevel=2,
            )
        if getattr(self, "_entered", None) is not None:
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
    """

    def __init__(self, kind: str):
        self._entered: ContextVar[tuple[OpenT, ...]] = ContextVar(kind, default=())

    def innermost(self) -> OpenT | None:
        """Return the block that was entered last, if any."""
        for block in reversed(self._entered.get()):
            if block.open:
                return block
        return None

    def all(self) -> tuple[OpenT, ...]:
        """Return the blocks, the innermost last."""
        return tuple(block for block in self._entered.get() if block.open)

    def enter(self, block: OpenT, changes: Changes) -> None:
        """Enter a block until the changes are undone."""
        changes.on_undo(self._leave, block)
        self._entered.set((*self.all(), block))

    def _leave(self, block: OpenT) -> None:
        self._entered.set(tuple(each for each in self._entered.get() if each is not block))
