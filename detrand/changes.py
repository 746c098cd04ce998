"""`Changes`: what a block changes is undone when it ends, also if an interrupt arrives at any line of it.

What undoes a change is noted before the change is made. It is therefore harmless without the change, and when it is
called twice.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
ChangesT = TypeVar("ChangesT", bound="Changes")


class Changes:
    """Changes that last until their block is left; if an interrupt prevents that, until nothing refers to them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[bool], Any]] = []  # called with whether an interrupt has delayed it

    def on_undo(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call a function when the changes are undone."""
        self._undo.append(lambda is_late: callback(*args))

    def restore(
        self, state: Hashable, callback: Callable[[], Any], is_changed: Callable[[], bool] = lambda: True
    ) -> None:
        """Call a function that restores a state when the changes are undone.

        An interrupt may delay the call. It is left out if a block around has restored the state in the meantime, or if
        the state is no longer the changed one. If a block has been entered in the meantime, that block makes the call.
        """
        states, block = _restoring.states, _Block(callback)
        inside = states.setdefault(state, [])

        def put_back(is_late: bool) -> None:
            if block in inside:
                position = inside.index(block)
                if is_late and block is not inside[-1]:
                    inside[position + 1].restore = block.restore
                    del inside[position]
                else:
                    if is_changed() or not is_late:
                        block.restore()
                    del inside[position:]
            if not inside:
                states.pop(state, None)

        self._undo.append(put_back)
        inside.append(block)

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Give an attribute of an object a different value, which is an object that no other code gives it."""
        if type(value) is str:
            value = _OwnStr(value)
        put_back = functools.partial(setattr, owner, attribute, getattr(owner, attribute))
        self.restore((id(owner), attribute), put_back, lambda: getattr(owner, attribute) is value)
        setattr(owner, attribute, value)

    def undo(self, *, is_late: bool = False) -> None:
        """Undo everything, the last change first, also if an interrupt or an error arrives meanwhile.

        Args:
          is_late: whether an interrupt has delayed this, so that code around may have undone it, too.
        """
        try:
            while self._undo:
                self._undo[-1](is_late)
                self._undo.pop()
        except BaseException:
            while self._undo:
                with contextlib.suppress(Exception):  # the first error is the one that is raised
                    self._undo.pop()(is_late)
            raise

    def __enter__(self: ChangesT) -> ChangesT:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __del__(self) -> None:
        if getattr(self, "_undo", None) and not sys.is_finalizing():
            self.undo(is_late=True)


class _OwnStr(str):
    """A str that is no other object: equal strings of several programs are often one object."""

    __slots__ = ()


class _Block:
    """A block that changes a state, and what restores the state."""

    __slots__ = ("restore",)

    def __init__(self, restore: Callable[[], Any]):
        self.restore = restore


class _Restoring(threading.local):
    """The blocks of a thread that have changed each state, the innermost last."""

    def __init__(self) -> None:
        self.states: dict[Hashable, list[_Block]] = {}


_restoring = _Restoring()


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of an object a different value in the block."""
    with Changes() as changes:
        changes.set(owner, name, value)
        yield


# On two lines, an interrupt between the end of the call and that of the block would leave the lock held.
def locked(lock: Any, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function while a lock is held."""
    with lock: return function(*args, **kwargs)  # noqa: E701  # fmt: skip
