"""`Changes`: what a block changes is undone when it ends, also if an interrupt arrives at any line of it.

What undoes a change is noted before the change is made. It is therefore harmless without the change, and when it is
called twice.

Where nothing refers to a block any more, the garbage collector ends it, in the middle of any other code: what that must
not meet half done is `undivided`.
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
        self,
        state: Hashable,
        get: Callable[[], T],
        put: Callable[[T], Any],
        is_changed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Restore a state when the changes are undone.

        An interrupt may delay this. It is left out if a block around has restored the state in the meantime, or if the
        state is no longer the changed one. If a block has been entered in the meantime, that block restores the state.

        Args:
          state: what only calls of this method with an equal ``state`` restore.
          get: returns the state.
          put: restores it, called with what ``get`` has returned.
          is_changed: returns whether the state is as this block has changed it.
        """
        states, block = _own.states, _Block()

        def enter() -> None:
            block.restore = functools.partial(put, get())
            states.setdefault(state, []).append(block)

        def put_back(is_late: bool) -> None:
            inside = states.get(state, [])
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

        self._undo.append(functools.partial(undivided, put_back))
        undivided(enter)

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Give an attribute of an object a different value, which is an object that no other code gives it."""
        if type(value) is str:
            value = _OwnStr(value)
        self.restore(
            (id(owner), attribute),
            functools.partial(getattr, owner, attribute),
            functools.partial(setattr, owner, attribute),
            lambda: getattr(owner, attribute) is value,
        )
        setattr(owner, attribute, value)

    def undo(self, *, is_late: bool = False) -> None:
        """Undo everything, the last change first, also if an interrupt or an error arrives meanwhile.

        Args:
          is_late: whether an interrupt has delayed this, so that code around may have undone it, too.
        """
        if _own.changing.locked():  # the garbage collector ends a block
            rest = Changes()
            rest._undo, self._undo = self._undo, []
            _own.waiting.append(rest)
            return
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
    restore: Callable[[], Any]


class _OfThread(threading.local):
    """What a thread changes.

    Attributes:
      states: the blocks that have changed each state, the innermost last.
      changing: held while the thread is in `undivided`.
      waiting: what is undone after that.
    """

    def __init__(self) -> None:
        self.states: dict[Hashable, list[_Block]] = {}
        self.changing = threading.Lock()
        self.waiting: list[Changes] = []


_own = _OfThread()


def undivided(function: Callable[..., T], *args: Any) -> T:
    """Call a function that undoes no `Changes`; those that the garbage collector ends meanwhile are undone after it."""
    changing = _own.changing
    if changing.locked():
        return function(*args)
    try:
        with changing: return function(*args)  # noqa: E701  # fmt: skip
    finally:
        _own.waiting.clear()  # nothing refers to them any more


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
