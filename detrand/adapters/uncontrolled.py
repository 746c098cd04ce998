"""Draws in a scope that no stream can decide: they are recorded, and left as they are.

Stateless ops and ``tf.random.Generator`` draw from a seed that the user gives; ``np.random`` and Python's ``random``
know no op seeds at all. Only calls of the user's code are recorded: Keras calls all of these too, and its draws are
governed.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.patches import Patches
from detrand._patching.random_ops import EXPLICIT_OPS
from detrand._patching.tensorflow import static_shape_and_dtype
from detrand.seeding import callsite, cursors

_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")


def install(patches: Patches) -> None:
    """Install the functions that record these draws."""
    for op_type, target in EXPLICIT_OPS.items():
        patches.replace(target, _recording(op_type))
    for owner, recording in _recording_functions():
        patches.set_all(owner, recording)


def record(label: str, drawn: Any, depth: int = 3) -> None:
    """Record what was drawn, if the user's code called what drew it: the frame at a depth of the stack."""
    cursor = cursors.current()
    if cursor is None or (site := callsite.site_through_tensorflow(depth)) is None:
        return
    if tf.is_tensor(drawn) or isinstance(drawn, tuple):
        shape, dtype = static_shape_and_dtype(drawn)
    else:
        shape, dtype = getattr(drawn, "shape", None), str(getattr(drawn, "dtype", ""))
    cursor.record_uncontrolled(site, label, shape, dtype)


@functools.cache
def _recording(label: str) -> Callable[..., Any]:
    """Return what makes a function record what it draws."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            drawn = original(*args, **kwargs)
            record(label, drawn)
            return drawn

        return function

    return make


@functools.cache
def _recording_functions() -> list[tuple[Any, dict[str, Callable[..., Any]]]]:
    """Return each module with the replacements, by name, of its functions that draw from a global generator."""
    found = []
    for owner, label, generator in ((np.random, "np.random", np.random.RandomState), (random, "random", random.Random)):
        recording = {
            name: tf.autograph.experimental.do_not_convert(_recording(f"{label}.{name}")(function))
            for name, function in vars(owner).items()
            if isinstance(getattr(function, "__self__", None), generator) and name not in _NO_DRAWS
        }
        found.append((owner, recording))
    return found
