"""The variables of a port: where they are to be found, and that they and its optimizer's are its own."""

from __future__ import annotations

import weakref
from typing import Any

from detrand.errors import MigrationError
from detrand.variables.sources import is_layer_or_module, named_variables, parts_of

# Layers, modules and optimizers of the ports that have been made, by their ids: equality may be the user's.
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def variables_source(model: Any) -> Any:
    """Returns what `variables_of` and its like take for a port: a plain function shows none of its variables."""
    owner = getattr(model, "__self__", model)  # of a method
    return owner if is_layer_or_module(owner) else []


def check_new(name: str, model: Any) -> None:
    """Checks that a port is a new one, with no layer or module of a former one that has variables.

    Raises:
      MigrationError: if it is not.
    """
    owner = variables_source(model)
    parts = parts_of(owner) if is_layer_or_module(owner) else []
    for part in parts:
        if _made.get(id(part)) is part and getattr(part, "built", True) and named_variables(part):
            what = f"the same {type(part).__name__}" if part is model else f"ports with the same {_described(part)}"
            raise MigrationError(
                f"tf2 of {name} returned {what} twice, which still has the variables of the first; make it anew inside "
                "tf2, so that each call returns a new port"
            )
    for part in parts:
        _made[id(part)] = part


def check_new_optimizer(name: str, optimizer: Any) -> None:
    """Checks that the optimizer of a port is a new one.

    Raises:
      MigrationError: if it is not.
    """
    if _made.get(id(optimizer)) is optimizer:
        raise MigrationError(
            f"tf2_optimizer of {name} returned the same {type(optimizer).__name__} twice, which still has the slots of "
            "the first training; make it anew inside tf2_optimizer, so that each call returns a new one"
        )
    _made[id(optimizer)] = optimizer


def _described(part: Any) -> str:
    return f"{type(part).__name__} {part.name!r}" if getattr(part, "name", None) else type(part).__name__
