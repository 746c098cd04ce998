"""Packages that may be missing where detrand is installed without its dependencies."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

from detrand.errors import MissingPackageError

_WITH_TENSORFLOW = ("tensorflow", "tf_keras", "keras", "rich")  # only what needs TensorFlow needs the others
_BY_ITSELF = ("ml_dtypes",)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a folder of that name without an ``__init__.py`` is no package."""
    if package in sys.modules:
        return getattr(sys.modules[package], "__file__", None) is not None  # as a folder has none
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


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
            remedy = "Install detrand with its dependencies: pip install detrand"
        elif package in _BY_ITSELF:
            remedy = f"Install it: pip install {package}"
        else:
            raise
        if is_installed(package):  # and has no such module
            raise
        raise MissingPackageError(f"{what} needs the package {package}, which is not installed. {remedy}") from error
