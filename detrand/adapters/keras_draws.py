"""What Keras 3 and tf_keras have in common in a stream: random functions, which may draw in float32, and recurrence.

A layer in mixed precision draws in float16 or bfloat16 where TF1's program draws in float32. Where the stream asks for
it, draws of any other float dtype are drawn in float32 and cast.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from detrand._patching.keras import own_seed_of
from detrand.seeding.cursors import Cursor, governed


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
        import tensorflow as tf

        inputs, dtype = given.arguments.get("inputs"), given.arguments.get("dtype")
        asked = tf.as_dtype(dtype) if dtype is not None else getattr(inputs, "dtype", None)
        if asked not in (tf.float16, tf.bfloat16, tf.float64):
            return draw(*given.args, **given.kwargs)
        if inputs is None:
            given.arguments["dtype"] = "float32"
        else:
            given.arguments["inputs"] = tf.cast(inputs, tf.float32)
        return tf.cast(draw(*given.args, **given.kwargs), asked)

    return governed(dispatch)


@governed
def trying_its_step_first(cursor: Cursor, original: Any, step_function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make Keras's ``rnn`` take no op seeds in the first call of its step, whose outputs it throws away."""
    if inspect.signature(original).bind(step_function, *args, **kwargs).arguments.get("unroll"):
        return original(step_function, *args, **kwargs)
    calls = itertools.count()

    def step(*step_args: Any) -> Any:
        if next(calls):
            return step_function(*step_args)
        with cursor.shape_inference(is_executed=lambda: cursor.phase == "init"):
            return step_function(*step_args)

    return original(step, *args, **kwargs)
