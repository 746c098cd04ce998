"""Checked, reversible patches.

A `Target` names a function and the parameters that it must have. `Patches` replaces targets and puts everything back.
`Shared` keeps one set of patches for all scopes of a process, from the first scope that is entered to the last that is
left: a replacement asks which scope governs the calling thread, and calls the original where there is none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from detrand.changes import Changes, locked, undivided
from detrand.errors import PatchError

_ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_REMEDY = "Install a release that this detrand supports, or a newer detrand."


class Target(NamedTuple):
    """A function that a patch replaces."""

    module: str
    name: str  # in the module; "Class.method" for a method
    parameters: tuple[str, ...]  # the names that its parameters must begin with

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def owner(self) -> Any:
        """Return the module or the class that has the function as an attribute."""
        return functools.reduce(getattr, self.name.split(".")[:-1], importlib.import_module(self.module))

    @property
    def attribute(self) -> str:
        """The name of the attribute of `owner`."""
        return self.name.rsplit(".", 1)[-1]

    def checked(self) -> Callable[..., Any]:
        """Return the function as it is now; raise a `PatchError` if it is missing or takes other parameters."""
        try:
            function = inspect.getattr_static(self.owner(), self.attribute)
            parameters = parameters_of(function)
        except (ImportError, AttributeError, TypeError) as error:  # a TypeError is of what is no function
            message = f"detrand replaces {self}, but {_versions()} has no such function ({error}). {_REMEDY}"
            raise PatchError(message) from error
        if {parameter.kind for parameter in parameters.values()} == _ANYTHING:
            return function  # another tool's patch, such as TensorFlow's own tool's, which passes on what it gets
        if tuple(parameters)[: len(self.parameters)] != self.parameters:
            raise PatchError(
                f"detrand replaces {self} and expects its parameters to begin with ({', '.join(self.parameters)}), but "
                f"in {_versions()} they are ({', '.join(parameters)}). {_REMEDY}"
            )
        return function


@functools.lru_cache(maxsize=1024)
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; none for a function in C that does not show them."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _versions() -> str:
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    return ", ".join(f"{name} {getattr(module, '__version__', '?')}" for name, module in modules if module)


Make = Callable[[Callable[..., Any]], Callable[..., Any]]  # makes a replacement of the original function

THREAD_START = Target("threading", "Thread.start", ("self",))
SUBMIT_TO_THREADS = Target("concurrent.futures.thread", "ThreadPoolExecutor.submit", ("self", "fn"))


class Patches(Changes):
    """Replaced functions; `undo` puts them back in reverse order."""

    def replace(self, target: Target, make: Make) -> None:
        """Replace a target by ``make(original)``, or raise a `PatchError` if it is not as expected.

        Sets of patches that replace one target may be undone in any order, as the scopes of several threads are:
        ``make`` is then called again, with the function that is below it from then on.
        """
        self.replace_all(_replacement(target, make))

    def replace_all(self, replacements: Replacements) -> None:
        """Replace several targets as `replace` does; `undo` puts back those that were replaced before an error."""
        found = replacements.found()
        self._undo.append(functools.partial(_remove_all, found))
        undivided(locked, _Replaced.lock, _add_all, found)

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Set an attribute, present or not, until `undo`; code that has replaced it since then keeps its own value."""
        self.set_all(owner, {attribute: value})

    def set_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Set attributes as `set` does."""
        before = {attribute: vars(owner).get(attribute, _MISSING) for attribute in values}
        self._undo.append(functools.partial(_put_back, owner, values, before))
        set_attribute = _setter(owner)
        for attribute, value in values.items():
            set_attribute(attribute, value)

    def when_imported(self, module: str, apply: Callable[[Patches], None]) -> None:
        """Call ``apply(self)`` now if the module is loaded, else as soon as it is, until `undo`."""
        if module in sys.modules:
            apply(self)
            return
        finder = _AfterImport(module, lambda: apply(self))
        self.on_undo(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
        sys.meta_path.insert(0, finder)

    def replace_when_imported(self, replacements: Replacements) -> None:
        """Replace the targets of each module now if it is loaded, else as soon as it is."""
        for module, of_module in replacements.by_module.items():
            self.when_imported(module, of_module.install)

    def run_threads_in(self, child_scope: Callable[[], contextlib.AbstractContextManager[Any] | None]) -> None:
        """Until `undo`, run each thread that starts, and each call submitted to a pool, in ``child_scope()``."""
        starting_in_scope, submitting_in_scope = _in_scope(child_scope)
        self.replace(THREAD_START, starting_in_scope)
        self.replace(SUBMIT_TO_THREADS, submitting_in_scope)


@functools.lru_cache(maxsize=1024)
def _in_scope(
    child_scope: Callable[[], contextlib.AbstractContextManager[Any] | None],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what makes the functions that start a thread, and submit a call to a pool, in ``child_scope()``."""

    def starting_in_scope(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: threading.Thread) -> None:
            scope, run = child_scope(), self.run
            if scope is not None:

                def run_in_scope() -> None:
                    with scope:
                        run()

                self.run = run_in_scope  # type: ignore[method-assign]
            original(self)

        return start

    def submitting_in_scope(original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            scope = child_scope()  # the threads of the pool may have been started elsewhere
            if scope is None:
                return original(self, fn, *args, **kwargs)

            def run_in_scope() -> Any:
                with scope:
                    return fn(*args, **kwargs)

            return original(self, run_in_scope)

        return submit

    return starting_in_scope, submitting_in_scope


_MISSING = object()


def _put_back(owner: Any, values: Mapping[str, Any], before: Mapping[str, Any], is_late: bool) -> None:
    set_attribute = _setter(owner)
    for attribute, value in values.items():
        if vars(owner).get(attribute) is value:
            if before[attribute] is _MISSING:
                delattr(owner, attribute)
            else:
                set_attribute(attribute, before[attribute])


@functools.lru_cache(maxsize=1024)
def _setter(owner: Any) -> Callable[[str, Any], None]:
    """Return what sets an attribute of a module or a class, by its name."""
    return functools.partial(_set_in_wrapper if "_tfmw_wrapped_module" in vars(owner) else setattr, owner)


def _set_in_wrapper(owner: Any, attribute: str, value: Any) -> None:
    """Set an attribute of a module of TensorFlow's API.

    The module's wrapper searches a list of all its names when one is set: entering the shim's and the tool's scopes
    would take 1.5 times as long.
    """
    values = vars(owner)
    if attribute not in values:
        setattr(owner, attribute, value)
        return
    vars(values["_tfmw_wrapped_module"])[attribute] = values[attribute] = value
    if owner._fastdict_key_in(attribute):
        owner._fastdict_insert(attribute, value)


class _Replaced:
    """An attribute with replacements, each around the one below it.

    A scope adds and removes 150 replacements, so each takes few Python calls: entering it would take 1.5 times as long.
    """

    lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, owner: Any, attribute: str):
        self._owner, self._attribute = owner, attribute
        self._values, self._set = vars(owner), _setter(owner)
        self._makes: list[Make] = []  # of the replacements, the lowest first
        self._accepted: set[tuple[str, ...]] = set()  # parameters that the original begins with
        self._original = self._stored = object()
        self._top = self._before = self._stored  # what is installed: while the top one is being set, the one before

    def add(self, target: Target, make: Make) -> None:
        """Put ``make``'s function on top, while the lock is held."""
        current = self._values.get(self._attribute, _MISSING)
        if (current is not self._top and current is not self._before) or current is _MISSING:
            self._makes, self._accepted = [], set()  # other code may have changed the original
            self._stored = self._top = self._before = current
        if target.parameters not in self._accepted:
            function = target.checked()
            self._original = self._original if self._makes else function
            self._accepted.add(target.parameters)
        self._makes.append(make)
        self._install(current)

    def remove(self, make: Make) -> None:
        """Remove ``make``'s function, whatever has been put on top of it, while the lock is held."""
        if make in self._makes:
            self._makes.remove(make)
        # Code that has replaced the attribute since then keeps its own function: the replacement inside calls the
        # original once no scope is open.
        current = self._values.get(self._attribute, _MISSING)
        if current is self._top or current is self._before:
            self._install(current)

    def _install(self, current: object) -> None:
        top = functools.reduce(_made, self._makes, self._original) if self._makes else self._stored
        self._before = current
        self._top = top
        if top is _MISSING:
            delattr(self._owner, self._attribute)
        else:
            self._set(self._attribute, top)
        self._before = top


_attribute = functools.cache(_Replaced)  # one for each attribute, whichever targets name it
_Found = tuple[tuple[_Replaced, Target, Make], ...]


class Replacements:
    """Targets that are replaced together, each with what makes its replacement.

    Each scope uses the same object, which keeps what it finds: new ones would set off a garbage collection.
    """

    def __init__(self, makes: Mapping[Target, Make]):
        self._makes = makes
        self._modules: dict[str, ModuleType] = {}
        self._found: _Found = ()

    @functools.cached_property
    def by_module(self) -> Mapping[str, Replacements]:
        """The replacements of each module's targets."""
        modules = dict.fromkeys(target.module for target in self._makes)
        return {
            module: Replacements({target: make for target, make in self._makes.items() if target.module == module})
            for module in modules
        }

    def install(self, patches: Patches) -> None:
        """Replace the targets, as `Patches.replace_all` does."""
        patches.replace_all(self)

    def found(self) -> _Found:
        """Return the attributes to replace, in the modules that are loaded now; raise a `PatchError` as `Target`."""
        loaded = sys.modules
        if not self._modules or any(loaded.get(name) is not module for name, module in self._modules.items()):
            for target in self._makes:
                target.checked()  # imports the module
            self._found = tuple(
                (_attribute(target.owner(), target.attribute), target, make) for target, make in self._makes.items()
            )
            self._modules = {target.module: loaded[target.module] for target in self._makes}
        return self._found


@functools.lru_cache(maxsize=1024)
def _replacement(target: Target, make: Make) -> Replacements:
    return Replacements({target: make})


def _add_all(found: _Found) -> None:
    for replaced, target, make in found:
        replaced.add(target, make)


def _remove_all(found: _Found, is_late: bool) -> None:
    undivided(locked, _Replaced.lock, _remove_each, found)


def _remove_each(found: _Found) -> None:
    for replaced, _, make in reversed(found):
        replaced.remove(make)


# A replacement that is installed again is the same function as before: with a new one in each call of a shim method,
# Python specializes none of TensorFlow's calls of it, and an eager call takes 1.25 times as long.
@functools.lru_cache(maxsize=1024)
def _made(below: Callable[..., Any], make: Make) -> Callable[..., Any]:
    return functools.wraps(below)(make(below))


def with_signature_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement with the signature of the original where ``inspect.getfullargspec`` looks for it."""
    vars(replacement)["__signature__"] = inspect.signature(original)
    return replacement


class _AfterImport(importlib.abc.MetaPathFinder):
    """A finder that leaves one module to the regular finders, and calls back when it has been executed."""

    def __init__(self, module: str, callback: Callable[[], None]):
        self._module = module
        self._callback = callback

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)  # by way of the other finders of this kind, too
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call_back(module: ModuleType) -> None:
            execute(module)
            self._callback()

        spec.loader.exec_module = execute_and_call_back  # type: ignore[method-assign]
        return spec


class Shared:
    """One set of patches for the whole process, which ``install(patches)`` installs while it has users."""

    def __init__(self, install: Callable[[Patches], None]):
        self._install = install
        self._lock = threading.RLock()
        self._users: set[object] = set()
        self._patches = Patches()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Keep the patches installed, all or none of them, while the block runs."""
        with Changes() as changes:
            self.install(changes)
            yield

    def install(self, changes: Changes) -> None:
        """Install the patches, all or none of them, if no other user has, until the changes of this user are undone."""
        user = object()
        changes.on_undo(locked, self._lock, self._remove, user)
        locked(self._lock, self._add, user)

    def _add(self, user: object) -> None:
        try:
            self._users.add(user)
            if len(self._users) == 1:
                self._patches.undo()  # what several interrupts left
                self._install(self._patches)
        except BaseException:
            self._remove(user)
            raise

    def _remove(self, user: object) -> None:
        self._users.discard(user)
        if not self._users:
            self._patches.undo()


def stand_in(module: ModuleType, **names: Any) -> SimpleNamespace:
    """Return what stands for a module in one other module, with different values for some of its names."""
    return SimpleNamespace(**{**vars(module), **names})
