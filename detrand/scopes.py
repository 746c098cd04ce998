"""What every scope of detrand has in common: it is entered once, by ``with``, or decorates functions."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from detrand.errors import ArgumentError, ScopeError


class Scope(contextlib.ContextDecorator):
    """A context manager for one ``with`` statement, or for each call of the functions that it decorates.

    Nothing is changed before it is entered.

    Args:
      call: how the user's code gets a scope, for the messages: ``"tool.scope()"``.
      open: enters the scope. It puts what ends the scope on the stack that it is given, and returns what
        ``with ... as`` yields.
    """

    def __init__(self, call: str, open: Callable[[contextlib.ExitStack], Any]):
        self._call = call
        self._open = open
        self._entered: contextlib.ExitStack | None = None
        self._used = False

    def _recreate_cm(self) -> Scope:
        # Each call of a decorated function is a scope of its own, recursive calls included.
        self._used = True
        return Scope(self._call, self._open)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:  # type: ignore[override]
        """Decorates a function: each of its calls is a scope."""
        if not callable(func):
            raise ArgumentError(
                f"{self._call} was applied to {func!r}, which is no function; use `with {self._call}:`, or "
                f"@{self._call} in front of a function"
            )
        if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
            raise ArgumentError(
                f"@{self._call} cannot decorate {func.__qualname__}, a generator or coroutine function: it would be "
                f"left before the body runs; use `with {self._call}:` inside the body"
            )
        self._used = True
        return super().__call__(func)

    def __enter__(self) -> Any:
        if self._used:
            raise ScopeError(f"this scope has been entered before; call {self._call} again for another one")
        self._used = True
        with contextlib.ExitStack() as stack:
            value = self._open(stack)
            self._entered = stack.pop_all()
        return value

    def __exit__(self, *error: Any) -> None:
        if self._entered is None:
            raise ScopeError(f"this scope was left without having been entered; use `with {self._call}:`")
        entered, self._entered = self._entered, None
        entered.__exit__(*error)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"{self._call} was called but never entered, so it changed nothing; write `with {self._call}:` "
                f"around the code, or @{self._call} in front of a function",
                RuntimeWarning,
                stacklevel=2,
            )
