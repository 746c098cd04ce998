"""Layers of another dtype: what they draw in float16, bfloat16 or float64, TF1's float32 program draws in float32."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_OTHERS = (tf.float16, tf.bfloat16, tf.float64)


def drawn_in_float32(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a random function of Keras that draws in float32 what it is asked for in another dtype, and casts it.

    Args:
      draw: has a parameter ``dtype``, or ``inputs`` that tell it, or draws nothing in another dtype.
    """
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def widened(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        inputs, dtype = given.arguments.get("inputs"), given.arguments.get("dtype")
        asked = tf.as_dtype(dtype) if dtype is not None else getattr(inputs, "dtype", None)
        if asked not in _OTHERS:
            return draw(*args, **kwargs)
        if inputs is None:
            given.arguments["dtype"] = "float32"
        else:
            given.arguments["inputs"] = tf.cast(inputs, tf.float32)
        return tf.cast(draw(*given.args, **given.kwargs), asked)

    return widened
