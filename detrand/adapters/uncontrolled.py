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
        patches.replace(target, functools.partial(_recording_op, op_type))
    for owner, name, recording in _recording_functions():
        patches.set(owner, name, recording)


def record(op_type: str, outputs: Any, depth: int = 3) -> None:
    """Record what an op has drawn, if the user's code called it.

    Args:
      op_type: TensorFlow's name of the op.
      outputs: the op's outputs.
      depth: position on the stack of the frame that called the op, as for `callsite.site_through_tensorflow`.
    """
    cursor = cursors.current()
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
    """Return module, name and replacement of each function that draws from a global generator."""
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
        cursor = cursors.current()
        if cursor is not None and (site := callsite.site_through_tensorflow(depth=2)) is not None:
            shape, dtype = getattr(drawn, "shape", None), str(getattr(drawn, "dtype", ""))
            cursor.record_uncontrolled(site, label, shape, dtype)
        return drawn

    return tf.autograph.experimental.do_not_convert(function)
