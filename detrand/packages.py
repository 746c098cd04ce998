"""Packages that may be missing where detrand is installed without its dependencies.

`tf` and `keras` are TensorFlow and Keras 3, each of which is imported when one of its attributes is used first. So a
module that needs them for some programs only can be imported where they are missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detrand.errors import MissingPackageError

_WITH_TENSORFLOW = ("tensorflow", "tf_keras", "keras")  # only what needs TensorFlow needs the others
_BY_ITSELF = ("ml_dtypes", "rich")


def install(extra: str = "") -> str:
    """Return the command that installs detrand with its dependencies, and those of an extra, for a message."""
    return f"pip install '.[{extra}]' in a checkout of detrand" if extra else "pip install . in a checkout of detrand"


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a folder of that name without an ``__init__.py`` is no package."""
    if package in sys.modules:
        return getattr(sys.modules[package], "__file__", None) is not None  # as a folder has none
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def is_loaded(package: str) -> bool:
    """Return whether a package has been imported."""
    return package in sys.modules


@contextlib.contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Raise a `MissingPackageError` if the block imports a package that is not installed.

    Args:
      what: what needs the package, as the subject of a sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _WITH_TENSORFLOW:
            package = package if is_installed("tensorflow") else "tensorflow"
            remedy = f"Install detrand with its dependencies: {install()}"
        elif package in _BY_ITSELF:
            remedy = f"Install it: pip install {package}"
        else:
            raise
        if is_installed(package):  # and has no such module
            raise
        raise MissingPackageError(f"{what} needs the package {package}, which is not installed. {remedy}") from error


class _ImportedLater(ModuleType):
    """A package that is imported when one of its attributes is used first."""

    def __getattr__(self, attribute: str) -> Any:
        package = sys.modules.get(self.__name__)
        if package is None:
            caller = sys._getframe(1)
            with needed_by(f"{caller.f_globals.get('__name__')}.{caller.f_code.co_name}"):
                package = importlib.import_module(self.__name__)
        return getattr(package, attribute)


if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    tf, keras = _ImportedLater("tensorflow"), _ImportedLater("keras")
