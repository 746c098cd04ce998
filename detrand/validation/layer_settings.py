"""What the layers of a port are set to, as Keras 3 and tf_keras tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from detrand import _patching
from detrand.validation.initial_values import describe_initializer
from detrand.validation.settings import DROPOUT, EPSILON, INITIALIZER, MOMENTUM, RATES, Settings
from detrand.variables.sources import parts_of


def settings_of_layers(model: Any, names: Mapping[int, str]) -> Settings:
    """Returns what the layers in a layer, model or module are set to: their attributes, which they compute with.

    Args:
      model: a port that has its variables.
      names: the TF1 names of its variables, by the ids of the variables that TensorFlow knows.
    """
    found: Settings = {}
    rates: set[float] = set()
    for layer in parts_of(model):
        rates.update(filter(None, _rates(layer)))
        for weight in getattr(layer, "weights", ()):
            name = names.get(id(_patching.underlying_variable(weight)))
            if name is None:
                continue
            found.update(
                ((name, key), value) for key in (EPSILON, MOMENTUM) if (value := _number(layer, key)) is not None
            )
            with contextlib.suppress(Exception):  # an initializer of the user's may need what is not here
                found.update(((name, INITIALIZER), value) for value in _initializer(layer, weight))
    if rates:
        found[DROPOUT, RATES] = tuple(sorted(rates))
    return found


def _number(layer: Any, attribute: str) -> float | None:
    value = getattr(layer, attribute, None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _rates(layer: Any) -> Iterator[float | None]:
    if "Dropout" in type(layer).__name__:
        yield _number(layer, "rate")
    elif hasattr(layer, "recurrent_dropout"):
        yield _number(layer, "dropout")
        yield _number(layer, "recurrent_dropout")


def _initializer(layer: Any, weight: Any) -> Iterator[str]:
    """Yields what a layer's own weight starts from: what its initializer would add to a graph."""
    name = weight.name.rpartition("/")[2].removesuffix(":0")
    names = (f"{name}_initializer", f"{name.removesuffix('_kernel')}_initializer")
    initializer = next((found for found in (getattr(layer, each, None) for each in names) if callable(found)), None)
    if initializer is None:
        return
    shape, dtype = tuple(weight.shape), tf.as_dtype(weight.dtype).name
    value = describe_initializer(lambda: initializer(shape, dtype=dtype))
    if value is not None:
        yield (
            f"{value}, 1 for the forget gate" if name == "bias" and getattr(layer, "unit_forget_bias", False) else value
        )
