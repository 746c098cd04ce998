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
from typing import Any, ClassVar, NamedTuple

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
        self._changes: list[_Replacement | _Setting] = []
        self._swaps: _Swaps | None = None  # what `repeat` does, once it has
        self._is_repeatable = True
        self._is_repeated = False

    def replace(self, target: Target, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces a target by ``make(original)``.

        Sets of patches that replace one target may be undone in any order, as scopes of several threads are:
        ``make`` is then called again, with the function that is below it from then on.

        Raises:
          PatchError: if the target is not as expected. Nothing is changed then.
        """
        target.checked()
        self._apply(_Replacement(target.owner(), target.attribute, make))

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Sets an attribute, present or not, until `undo`."""
        self._apply(_Setting(owner, attribute, value))

    def _apply(self, change: _Replacement | _Setting) -> None:
        change.apply()
        self._undo.callback(change.undo)
        self._changes.append(change)

    def when_imported(self, module: str, apply: Callable[[Patches], None]) -> None:
        """Calls ``apply(self)`` now if the module is loaded, else as soon as it is, until `undo`."""
        if module in sys.modules:
            apply(self)
            return
        finder = _AfterImport(module, lambda: apply(self))
        sys.meta_path.insert(0, finder)
        self._undo.callback(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
        self._is_repeatable = False

    def enter(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        """Enters a context manager that `undo` leaves."""
        self._undo.enter_context(manager)
        self._is_repeatable = False

    def on_undo(self, callback: Callable[[], None]) -> None:
        """Has `undo` call a function."""
        self._undo.callback(callback)
        self._is_repeatable = False

    def undo(self) -> None:
        """Puts everything back."""
        self._undo.close()
        if self._is_repeated:
            self._is_repeated = False
            with _Layers.lock:
                assert self._swaps is not None
                if not self._swaps.undo():
                    for change in reversed(self._changes):
                        change.undo()

    def repeat(self) -> bool:
        """Does everything once more, after `undo`, if all that it changes is as it was before the first time.

        Nothing is looked up, checked or made then, for each call of a shim method does it.

        Returns:
          Whether it has; if not, nothing is changed.
        """
        if not self._is_repeatable or not self._changes:
            return False
        with _Layers.lock:
            self._swaps = self._swaps or _Swaps([change.swap() for change in self._changes])
            self._is_repeated = self._swaps.do()
        return self._is_repeated


_MISSING = object()


def _assign(owner: Any, attribute: str, value: Any) -> None:
    """Sets an attribute; `_MISSING` deletes it."""
    if value is _MISSING:
        delattr(owner, attribute)
        return
    wrapped = vars(owner).get("_tfmw_wrapped_module")
    if wrapped is None or attribute not in vars(owner):
        setattr(owner, attribute, value)
        return
    # A module of TensorFlow's API searches a list of all its names when one is set.
    vars(wrapped)[attribute] = vars(owner)[attribute] = value
    if owner._fastdict_key_in(attribute):
        owner._fastdict_insert(attribute, value)


class _Setting:
    """An attribute with another value."""

    def __init__(self, owner: Any, attribute: str, value: Any):
        self._owner, self._attribute, self._value = owner, attribute, value
        self._before = self._current()

    def _current(self) -> Any:
        return vars(self._owner).get(self._attribute, _MISSING)

    def apply(self) -> None:
        _assign(self._owner, self._attribute, self._value)

    def undo(self) -> None:
        # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
        # inside falls through to the original once no scope is open.
        if self._current() is self._value:
            _assign(self._owner, self._attribute, self._before)

    def swap(self) -> _Swap:
        return _Swap(self._owner, self._attribute, self._before, self._value)


class _Replacement:
    """A function that is replaced by what a function makes of it."""

    def __init__(self, owner: Any, attribute: str, make: Callable[..., Any]):
        self._owner, self._attribute, self._make = owner, attribute, make
        self._layers: _Layers | None = None

    def apply(self) -> None:
        self._layers = _Layers.add(self._owner, self._attribute, self._make)

    def undo(self) -> None:
        assert self._layers is not None
        self._layers.remove(self._make)

    def swap(self) -> _Swap:
        assert self._layers is not None
        return self._layers.swap(self._make)


class _Layers:
    """The replacements of one attribute, each around the one below it."""

    all: ClassVar[dict[tuple[Any, str], _Layers]] = {}
    lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, owner: Any, attribute: str):
        self.key = (owner, attribute)
        self._stored = vars(owner).get(attribute, _MISSING)  # not there where it is inherited
        self._original = _as_stored(owner, attribute)
        self.layers: list[tuple[Callable[..., Any], Callable[..., Any]]] = []  # (make, what it made), lowest first
        self._made: dict[Callable[..., Any], Callable[..., Any]] = {}  # by make, those made of the original

    @classmethod
    def add(cls, owner: Any, attribute: str, make: Callable[..., Any]) -> _Layers:
        """Puts ``make``'s function on top, and returns what `remove` takes it away from again, wherever it is then."""
        with cls.lock:
            layers = cls.all.get((owner, attribute))
            if layers is None or not layers._is_installed():
                layers = cls.all[owner, attribute] = cls(owner, attribute)
            _assign(owner, attribute, layers._put_on_top(make))
            return layers

    def remove(self, make: Callable[..., Any]) -> None:
        """Takes ``make``'s function away."""
        with self.lock:
            if len(self.layers) == 1 and self._is_installed():
                self.layers.clear()
                del self.all[self.key]
                _assign(*self.key, self._stored)
                return
            # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
            # inside falls through to the original once no scope is open.
            was_installed = self._is_installed()
            position = [made_by for made_by, _ in self.layers].index(make)
            above = self.layers[position + 1 :]
            del self.layers[position:]
            for other, _ in above:
                self._put_on_top(other)
            if not self.layers and self.all.get(self.key) is self:
                del self.all[self.key]
            if was_installed:
                _assign(*self.key, self._top() if self.layers else self._stored)

    def swap(self, make: Callable[..., Any]) -> _Swap:
        """Returns what `add` does where there is no layer, and `remove` where there is no other."""
        owner, attribute = self.key
        made = self._made_of_original(make)
        return _Swap(owner, attribute, self._stored, made, self, (make, made))

    def _put_on_top(self, make: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any]
        if self.layers:
            below = self._top()
            made = functools.wraps(below)(make(below))
        else:
            made = self._made_of_original(make)
        self.layers.append((make, made))
        return made

    def _made_of_original(self, make: Callable[..., Any]) -> Callable[..., Any]:
        if make not in self._made:
            self._made[make] = functools.wraps(self._original)(make(self._original))
        return self._made[make]

    def _top(self) -> Callable[..., Any]:
        return self.layers[-1][1] if self.layers else self._original

    def _is_installed(self) -> bool:
        owner, attribute = self.key
        return vars(owner).get(attribute) is self._top()


class _Swap(NamedTuple):
    """An attribute that goes from one value to another and back."""

    owner: Any
    attribute: str
    before: Any
    after: Any
    layers: _Layers | None = None  # of which it is the only one
    layer: tuple[Callable[..., Any], Callable[..., Any]] | None = None


class _Swaps:
    """Attributes that go from one value to another and back together, in as little time as may be."""

    def __init__(self, swaps: list[_Swap]):
        self._attributes = [
            (vars(swap.owner).get, _assigner(swap), swap.attribute, swap.before, swap.after) for swap in swaps
        ]
        self._backwards = self._attributes[::-1]
        self._layers = [(swap.layers, swap.layer) for swap in swaps if swap.layers and swap.layer]
        self._layers_by_key = {layers.key: layers for layers, _ in self._layers}

    def do(self) -> bool:
        """Swaps all, or none if one is not as before."""
        if not _Layers.all.keys().isdisjoint(self._layers_by_key):
            return False
        for get, _, attribute, before, _ in self._attributes:
            if get(attribute, _MISSING) is not before:
                return False
        _Layers.all.update(self._layers_by_key)
        for layers, layer in self._layers:
            layers.layers = [layer]
        for _, assign, attribute, _, after in self._attributes:
            assign(attribute, after)
        return True

    def undo(self) -> bool:
        """Swaps all back, or none if one has been changed since then."""
        for get, _, attribute, _, after in self._attributes:
            if get(attribute) is not after:  # by another layer, too
                return False
        for key in self._layers_by_key:
            del _Layers.all[key]
        for _, assign, attribute, before, _ in self._backwards:
            assign(attribute, before)
        return True


def _assigner(swap: _Swap) -> Callable[[str, Any], None]:
    """Returns what does as `_assign` does."""
    if swap.before is not _MISSING:
        if type(swap.owner) is ModuleType:
            return vars(swap.owner).__setitem__
        if isinstance(swap.owner, type):
            return functools.partial(setattr, swap.owner)
    return functools.partial(_assign, swap.owner)


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
    """One set of patches for the whole process, installed while at least one scope needs it: while a ``with`` is open.

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
            if not self._users and not self._patches.repeat():
                patches = Patches()
                try:
                    self._install(patches)
                except BaseException:
                    patches.undo()
                    raise
                self._patches = patches
            self._users += 1

    def release(self, *error: object) -> None:
        """Undoes the patches if nobody else needs them."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._patches.undo()

    __enter__, __exit__ = acquire, release


class StandIn(ModuleType):
    """A stand-in for a module in one other module, with different values for some of its names.

    Args:
      module: the module.
      names: the different values, by name.
    """

    def __init__(self, module: ModuleType, **names: Any):
        super().__init__(module.__name__)
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of an object a different value in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
