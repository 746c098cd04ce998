"""Random functions of Keras 3 and tf_keras in a stream, which may make them draw in float32.

A layer in mixed precision draws in float16 or bfloat16 where TF1's program draws in float32. Where the stream asks for
it, draws of any other float dtype are drawn in float32 and cast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand.seeding.cursors import Cursor, governed

_OTHERS = (tf.float16, tf.bfloat16, tf.float64)


def governed_draw(draw: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return, as `governed` does, what makes the dispatcher of a random function of Keras.

    Args:
      draw: called instead of the function, with its arguments. It has a parameter ``dtype``, or ``inputs`` of that
        dtype, or draws only integers.
    """
    signature = inspect.signature(draw)

    def dispatch(cursor: Cursor, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not cursor.stream.keras_draws_float32:
            return draw(*args, **kwargs)
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

    return governed(dispatch)
