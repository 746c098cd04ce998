"""What a program draws in a scope although no stream can decide it: it is recorded, and otherwise left as it is.

Stateless ops and ``tf.random.Generator`` draw from a seed that the user gives; ``np.random`` and Python's ``random``
know no op seeds at all. Only what the user's code calls counts: Keras draws from all of these by itself, and what it
draws is governed.
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
from detrand.seeding import callsite, streams

_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")


def install(patches: Patches) -> None:
    """Puts what records them in place."""
    for op_type, target in EXPLICIT_OPS.items():
        patches.replace(target, functools.partial(_recording_op, op_type))
    for owner, name, recording in _recording_functions():
        patches.set(owner, name, recording)


def record(op_type: str, outputs: Any, depth: int = 3) -> None:
    """Records what an op has drawn, if the user's code called it; called by what replaces the op."""
    cursor = streams.current()
    if cursor is not None and (site := callsite.site_through_tensorflow(depth)) is not None:
        output = outputs[0] if isinstance(outputs, tuple) else outputs
        cursor.record_uncontrolled(site, op_type, *static_shape_and_dtype(output))


def _recording_op(op_type: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def op(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        record(op_type, outputs)
        return outputs

    return op


@functools.lru_cache
def _recording_functions() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Returns what replaces the functions that draw from a global generator: module, name and replacement."""
    found = []
    for owner, label, generator in ((np.random, "np.random", np.random.RandomState), (random, "random", random.Random)):
        for name, function in list(vars(owner).items()):
            if isinstance(getattr(function, "__self__", None), generator) and name not in _NO_DRAWS:
                found.append((owner, name, _recording_function(f"{label}.{name}", function)))
    return found


def _recording_function(label: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)
        cursor = streams.current()
        if cursor is not None and (site := callsite.site_through_tensorflow(depth=2)) is not None:
            shape, dtype = getattr(drawn, "shape", None), str(getattr(drawn, "dtype", ""))
            cursor.record_uncontrolled(site, label, shape, dtype)
        return drawn

    return tf.autograph.experimental.do_not_convert(function)
