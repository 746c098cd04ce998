"""A stream's numbers into Keras 3, on whatever backend it runs.

Keras 3 draws from stateless ops with seeds of its own. While a stream governs the thread, each of its random
functions draws as the TensorFlow 1 op of the same distribution would, and the `SeedGenerator` that was passed to
it is left as it is. Few parts of Keras draw by other means than these functions; they are governed one by one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detrand import philox
from detrand._patching import keras3_random
from detrand._patching.patches import Patches, StandIn, Target
from detrand.adapters import control_flow, float32_draws, formulas, keras3_arrays
from detrand.adapters.keras3_arrays import ArrayDraws, RefusedDraws, next_op
from detrand.seeding import regions, streams
from detrand.seeding.streams import Cursor, Stream


def install(patches: Patches) -> None:
    """Puts the dispatchers in place, once each part of Keras is imported; each falls through without a stream."""
    for backend in keras3_random.BACKENDS:
        # A layer in a tf.data pipeline uses the TensorFlow backend, whichever is Keras's.
        draws = keras3_random.draws(backend)
        patches.when_imported(keras3_random.random_module(backend), functools.partial(_install_draws, backend, draws))
        seed = keras3_random.image_seed(backend)
        _replace_once_imported(patches, seed, functools.partial(_image_seed, backend))
    _replace_once_imported(patches, keras3_random.elastic_transform("torch"), _elastic_transform_in_torch)
    for target, body in keras3_random.TORCH_LOOPS.items():
        _replace_once_imported(patches, target, functools.partial(_repeating_its_ops, body))
    _replace_once_imported(patches, keras3_random.SHAPE_INFERENCE, _taking_no_seeds)
    _replace_once_imported(patches, keras3_random.RECURRENCE, _trying_its_step_first)
    _replace_once_imported(patches, keras3_random.CELL_MASKS, _drawing_masks_alone)
    _replace_once_imported(patches, keras3_random.NEXT_SEED, _next_seed)
    for target in keras3_random.INITIALIZE_VARIABLE:
        _replace_once_imported(patches, target, _marking_initialization)
    patches.when_imported(keras3_random.AUG_MIX, _install_choice)
    patches.when_imported(keras3_arrays.MODULE, keras3_arrays.install)


def _replace_once_imported(patches: Patches, target: Target, make: Callable[..., Any]) -> None:
    patches.when_imported(target.module, lambda patches: patches.replace(target, make))


def _install_draws(backend: str, targets: dict[str, Target], patches: Patches) -> None:
    draws = draws_of(backend)
    for name, target in targets.items():
        patches.replace(target, _governed(getattr(draws, name), _decorator(backend)))
    if backend == "jax":
        from detrand.adapters import keras3_jax

        keras3_jax.install(patches)


def compiling_for(stream: Stream) -> contextlib.AbstractContextManager[None]:
    """Lets what a backend compiles inside draw from a stream, and be compiled anew elsewhere."""
    keras3_jax = sys.modules.get("detrand.adapters.keras3_jax")  # only JAX compiles draws into its programs
    return contextlib.nullcontext() if keras3_jax is None else keras3_jax.compiling_for(stream)


def inherit(child: threading.Thread) -> None:
    """Lets a thread that is about to start use what the calling thread has compiled, if a stream governs that."""
    cursor = streams.current()
    if cursor is None or "detrand.adapters.keras3_jax" not in sys.modules:
        return
    run, stream = child.run, cursor.stream

    def run_compiling() -> None:
        with compiling_for(stream):
            run()

    child.run = run_compiling  # type: ignore[method-assign]


@functools.lru_cache
def draws_of(backend: str) -> Any:
    """Returns what draws for a backend: an object with a function for each of the backend's."""
    if backend == "tensorflow":
        from detrand.adapters import keras3_tensorflow

        return keras3_tensorflow
    if backend == "jax":
        from detrand.adapters.keras3_jax import JaxDraws

        return JaxDraws()
    if backend == "torch":
        from detrand.adapters.keras3_torch import TorchDraws

        return TorchDraws()
    return ArrayDraws() if backend == "numpy" else RefusedDraws(backend)


def _decorator(backend: str) -> Callable[[Any], Any]:
    if backend != "torch":
        return lambda function: function
    import torch

    return torch.compiler.disable  # a compiled program calls it in each execution, and does not look inside


def _governed(draw: Callable[..., Any], decorator: Callable[[Any], Any] = lambda function: function) -> Any:
    in_float32 = float32_draws.drawn_in_float32(draw)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            cursor = streams.current()
            if cursor is None:
                return original(*args, **kwargs)
            return (in_float32 if cursor.stream.keras_draws_float32 else draw)(*args, **kwargs)

        return decorator(dispatch)

    return make


def _taking_no_seeds(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer called on symbolic inputs builds its ops to learn their shapes; they never run."""

    def compute_output_spec(*args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(*args, **kwargs)
        with cursor.shape_inference(is_executed=_is_executed):
            return original(*args, **kwargs)

    return compute_output_spec


def _trying_its_step_first(original: Callable[..., Any]) -> Callable[..., Any]:
    tries = keras3_random.backend() in keras3_random.TRYING_BACKENDS
    return control_flow.trying_its_step_first(original) if tries else original


class _TryingCells:
    """Says that what is drawn is thrown away, unless it initializes a variable."""

    def __init__(self, cursor: Cursor):
        self.outside = cursor.is_executed
        self._cursor = cursor

    def __call__(self) -> bool:
        return self._cursor.is_initializing and self.outside()


def _drawing_masks_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the cells of a stack draw their masks before the loop, but not what they draw when they are tried there."""

    def config_dropout_masks(self: Any, cell: Any, *args: Any, **kwargs: Any) -> None:
        cursor = streams.current()
        if cursor is None:
            original(self, cell, *args, **kwargs)
            return
        is_executed: Callable[[], bool] = cursor.is_executed
        is_stack = hasattr(cell, "cells")  # it comes back for each of them, and tries it
        if is_stack and not isinstance(is_executed, _TryingCells):
            is_executed = _TryingCells(cursor)
        elif isinstance(is_executed, _TryingCells) and not is_stack:
            is_executed = is_executed.outside
        with cursor.shape_inference(is_executed):
            original(self, cell, *args, **kwargs)

    return config_dropout_masks


def _is_executed() -> bool:
    return tf.executing_eagerly() if keras3_random.backend() == "tensorflow" else not keras3_random.is_symbolic()


def _draws_now() -> bool:
    return tf.executing_eagerly() and draws_of(keras3_random.backend()).executes()


def _marking_initialization(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None:
            return original(*args, **kwargs)
        with cursor.initializing():
            return original(*args, **kwargs)

    return initialize


def _next_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a seed of the stream to whoever draws with a generator's seeds by other means than Keras's functions."""

    def next_seed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.current() is None:
            return original(self, *args, **kwargs)
        backend = keras3_random.backend_of(self)
        return draws_of(backend).next_seed(keras3_random.seed_dtype(backend))

    return next_seed


def _image_seed(backend: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def draw_seed(seed: Any) -> Any:
        if streams.current() is None:
            return original(seed)
        return draws_of(backend).next_seed(keras3_random.seed_dtype(backend))

    return draw_seed


def _elastic_transform_in_torch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras's draws from PyTorch's global generator there."""

    def elastic_transform(*args: Any, **kwargs: Any) -> Any:
        if streams.current() is None or keras3_random.is_symbolic():
            return original(*args, **kwargs)
        import torch

        seed = int(draws_of("torch").next_seed("int64")[0])
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return original(*args, **kwargs)

    return elastic_transform


def _repeating_its_ops(body: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets each iteration of a loop after the first run the ops of the first once more, as in a TensorFlow 1 graph."""

    def loop(*args: Any, **kwargs: Any) -> Any:
        cursor = streams.current()
        if cursor is None or len(args) <= body:
            return original(*args, **kwargs)
        with cursor.control_flow(regions.LOOP) as run:
            repeated = functools.partial(run, 1, args[body])
            return original(*args[:body], repeated, *args[body + 1 :], **kwargs)

    return _decorator("torch")(loop)


def _install_choice(patches: Patches) -> None:
    """`AugMix` chooses its layers by Python's random numbers."""

    def choice(options: Any) -> Any:
        if streams.current() is None:
            return random.choice(options)
        op = next_op("RandomUniformInt", (), "int32", formulas.reserved(()), _draws_now)
        before = formulas.drawn(op.counter)
        return options[philox.randint((), 0, len(options), op.seed, op.op_seed, drawn=before)]

    patches.set(sys.modules[keras3_random.AUG_MIX], "py_random", StandIn(random, choice=choice))
