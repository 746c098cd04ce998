"""Checked, reversible patches.

`Target` names a function and the parameters that it must have; `Patches` replaces targets and puts
everything back; `Shared` keeps one set of patches for all scopes of a process, from the first scope that is
entered to the last that is left. A replacement asks which scope governs the calling thread and falls
through to the original where none does, so that one set of patches serves any number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from detrand.errors import PatchError

_ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True)
class Target:
    """A function that a patch replaces.

    Attributes:
      module: dotted name of the module that it is in.
      name: its name there; ``"Class.method"`` for a method.
      parameters: the parameter names that it must begin with.
    """

    module: str
    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def loaded(self) -> bool:
        """Whether the module is imported."""
        return self.module in sys.modules

    def owner(self) -> Any:
        """Returns the module or the class whose attribute it is."""
        owner: Any = importlib.import_module(self.module)
        for part in self.name.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def attribute(self) -> str:
        """The name of the attribute of `owner`."""
        return self.name.rsplit(".", 1)[-1]

    def checked(self) -> Callable[..., Any]:
        """Returns the function as it is now.

        Raises:
          PatchError: if it is not there or takes other parameters.
        """
        try:
            function = _as_stored(self.owner(), self.attribute)
        except (ImportError, AttributeError) as error:
            raise PatchError(f"detrand replaces {self}, but {_versions()} has no such function ({error})") from error
        parameters = parameters_of(function)
        if {parameter.kind for parameter in parameters.values()} == _ANYTHING:
            return function  # somebody's patch, TensorFlow's own tool's for one, which passes on what it gets
        found = tuple(parameters)
        if found[: len(self.parameters)] != self.parameters:
            raise PatchError(
                f"detrand replaces {self}, and expects its parameters to be ({', '.join(self.parameters)}), but in "
                f"{_versions()} they are ({', '.join(found)}). Install a release that this detrand supports, or a "
                "newer detrand."
            )
        return function


def _as_stored(owner: Any, attribute: str) -> Any:
    # inspect.getattr_static, which calls no descriptor, is slow, and most targets are their owner's own.
    stored = vars(owner)
    return stored[attribute] if attribute in stored else inspect.getattr_static(owner, attribute)


@functools.lru_cache(maxsize=1024)
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Returns a function's parameters by name; a scope that is entered again asks for the same ones."""
    return inspect.signature(function).parameters


def _versions() -> str:
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    return ", ".join(f"{name} {getattr(module, '__version__', '?')}" for name, module in modules if module)


class Patches:
    """Replaced functions, each of which `undo` puts back, in reverse order."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def replace(self, target: Target, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces a target by ``make(original)``.

        Sets of patches that replace one target may be undone in any order, as scopes of several threads are:
        ``make`` is then called again, with the function that is below it from then on.

        Raises:
          PatchError: if the target is not as expected. Nothing is changed then.
        """
        target.checked()
        self._undo.callback(_Layers.add(target.owner(), target.attribute, make))

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Sets an attribute, present or not, until `undo`."""
        missing = object()
        before = vars(owner).get(attribute, missing)

        def undo() -> None:
            # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
            # inside falls through to the original once no scope is open.
            if vars(owner).get(attribute, missing) is not value:
                return
            if before is missing:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

        setattr(owner, attribute, value)
        self._undo.callback(undo)

    def when_imported(self, module: str, apply: Callable[[Patches], None]) -> None:
        """Calls ``apply(self)`` now if the module is loaded, else as soon as it is, until `undo`."""
        if module in sys.modules:
            apply(self)
            return
        finder = _AfterImport(module, lambda: apply(self))
        sys.meta_path.insert(0, finder)
        self._undo.callback(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)

    def enter(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        """Enters a context manager that `undo` leaves."""
        self._undo.enter_context(manager)

    def on_undo(self, callback: Callable[[], None]) -> None:
        """Has `undo` call a function."""
        self._undo.callback(callback)

    def undo(self) -> None:
        """Puts everything back."""
        self._undo.close()


class _Layers:
    """The replacements of one attribute, each around the one below it."""

    _all: ClassVar[dict[tuple[Any, str], _Layers]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, owner: Any, attribute: str):
        self._key = (owner, attribute)
        self._is_inherited = attribute not in vars(owner)
        self._original = _as_stored(owner, attribute)
        self._layers: list[tuple[Callable[..., Any], Callable[..., Any]]] = []  # (make, what it made), lowest first

    @classmethod
    def add(cls, owner: Any, attribute: str, make: Callable[..., Any]) -> Callable[[], None]:
        """Puts ``make``'s function on top, and returns what takes it away again, wherever it is by then."""
        with cls._lock:
            layers = cls._all.get((owner, attribute))
            if layers is None or not layers._is_installed():
                layers = cls._all[owner, attribute] = cls(owner, attribute)
            layer = layers._put_on_top(make)
            setattr(owner, attribute, layer[1])
            return functools.partial(layers._remove, make)

    def _remove(self, make: Callable[..., Any]) -> None:
        owner, attribute = self._key
        with self._lock:
            # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
            # inside falls through to the original once no scope is open.
            was_installed = self._is_installed()
            position = [made_by for made_by, _ in self._layers].index(make)
            above = self._layers[position + 1 :]
            del self._layers[position:]
            for other, _ in above:
                self._put_on_top(other)
            if not self._layers and self._all.get(self._key) is self:
                del self._all[self._key]
            if was_installed and not self._layers and self._is_inherited:
                delattr(owner, attribute)
            elif was_installed:
                setattr(owner, attribute, self._top())

    def _put_on_top(self, make: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        below = self._top()
        self._layers.append((make, functools.wraps(below)(make(below))))
        return self._layers[-1]

    def _top(self) -> Callable[..., Any]:
        return self._layers[-1][1] if self._layers else self._original

    def _is_installed(self) -> bool:
        owner, attribute = self._key
        return vars(owner).get(attribute) is self._top()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the regular finders find one module, and calls back when it has been executed."""

    def __init__(self, module: str, callback: Callable[[], None]):
        self._module = module
        self._callback = callback

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call_back(module: ModuleType) -> None:
            execute(module)
            self._callback()

        spec.loader.exec_module = execute_and_call_back  # type: ignore[method-assign]
        return spec


class Shared:
    """One set of patches for the whole process, installed while at least one scope needs it.

    Args:
      install: applies the patches; called when the first scope is entered.
    """

    def __init__(self, install: Callable[[Patches], None]):
        self._install = install
        self._lock = threading.RLock()
        self._users = 0
        self._patches = Patches()

    def acquire(self) -> None:
        """Installs the patches if nobody has yet.

        Raises:
          PatchError: if one cannot be installed. All others are undone then.
        """
        with self._lock:
            if not self._users:
                patches = Patches()
                try:
                    self._install(patches)
                except BaseException:
                    patches.undo()
                    raise
                self._patches = patches
            self._users += 1

    def release(self) -> None:
        """Undoes the patches if nobody else needs them."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._patches.undo()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the patches while the block runs."""
        self.acquire()
        try:
            yield
        finally:
            self.release()
