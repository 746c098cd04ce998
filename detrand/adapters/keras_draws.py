"""Random functions of Keras 3 and tf_keras in a stream, which may make them draw in float32.

A layer in mixed precision draws in float16 or bfloat16 where TF1's program draws in float32. Where the stream asks for
it, draws of any other float dtype are drawn in float32 and cast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand._patching.keras import own_seed_of
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
        given = signature.bind(*args, **kwargs)
        seed, generator = own_seed_of(given.arguments.get("generator", given.arguments.get("seed")))
        with cursor.drawing_from(None if seed is None else cursor.stream.own_seed(seed, generator)):
            return drawn(cursor, given)

    def drawn(cursor: Cursor, given: inspect.BoundArguments) -> Any:
        if not cursor.stream.keras_draws_float32:
            return draw(*given.args, **given.kwargs)
        inputs, dtype = given.arguments.get("inputs"), given.arguments.get("dtype")
        asked = tf.as_dtype(dtype) if dtype is not None else getattr(inputs, "dtype", None)
        if asked not in _OTHERS:
            return draw(*given.args, **given.kwargs)
        if inputs is None:
            given.arguments["dtype"] = "float32"
        else:
            given.arguments["inputs"] = tf.cast(inputs, tf.float32)
        return tf.cast(draw(*given.args, **given.kwargs), asked)

    return governed(dispatch)
