"""`Scope`: a context manager that is entered once, by ``with``, or decorates functions."""

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
      call: the user's call that returns the scope, for the messages: ``"tool.scope()"``.
      open: enters the scope. It pushes what ends the scope on the stack that it is given, and returns the value of
        ``with ... as``.
    """

    def __init__(self, call: str, open: Callable[[contextlib.ExitStack], Any]):
        self._call = call
        self._open = open
        self._entered: contextlib.ExitStack | None = None
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
        with contextlib.ExitStack() as stack:
            value = self._open(stack)
            self._entered = stack.pop_all()
        return value

    def __exit__(self, *error: Any) -> None:
        if self._entered is None:
            raise ScopeError(f"This scope was left but never entered. Use `with {self._call}:`.")
        entered, self._entered = self._entered, None
        entered.__exit__(*error)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"{self._call} was called but never entered, so it changed nothing. Write `with {self._call}:` "
                f"around the code, or @{self._call} above a function.",
                RuntimeWarning,
                stacklevel=2,
            )
