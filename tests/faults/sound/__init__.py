"""Sound ports, which must pass: each function of a module that returns a ``Migration`` makes one.

``python -m tests.faults.sound [NAME ...]`` validates them, and names the checks of those that fail.
"""

import importlib
import pkgutil
from collections.abc import Callable

import detrand


def sound_ports() -> dict[str, Callable[[], detrand.Migration]]:
    """Return the functions that make the migrations, by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, make in vars(module).items():
            annotations = getattr(make, "__annotations__", {})
            if not name.startswith("_") and annotations.get("return") is detrand.Migration:
                found[name] = make
    return found
