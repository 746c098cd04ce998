"""Keras 3 in a stream, on whatever backend it runs.

Keras 3 draws from stateless ops with seeds of its own. While a stream governs the thread, each of its random functions
draws as the TensorFlow 1 op of the same distribution does, and the `SeedGenerator` that it is given stays as it is. The
few parts of Keras that draw by other means are governed one by one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

from detrand import philox
from detrand._patching import keras3_random
from detrand._patching.patches import Patches, Replacements, stand_in
from detrand.adapters import counter_draws, keras3_arrays
from detrand.adapters.keras3_arrays import ArrayDraws, RefusedDraws, TorchDraws, next_op, uncompiled
from detrand.adapters.keras_draws import governed_draw, trying_its_step_first
from detrand.seeding import regions
from detrand.seeding.cursors import Cursor, governed
from detrand.seeding.streams import Stream


def install(patches: Patches) -> None:
    """Install the dispatchers, each once its part of Keras is imported."""
    for backend in keras3_random.BACKENDS:
        # A layer in a tf.data pipeline uses the TensorFlow backend, whichever is Keras's.
        patches.when_imported(keras3_random.random_module(backend), functools.partial(_install_draws, backend))
    patches.replace_when_imported(_dispatchers())
    patches.when_imported(keras3_random.AUG_MIX, _install_choice)


@functools.cache
def _dispatchers() -> Replacements:
    """Return the dispatcher of each function that is no random function itself."""
    return Replacements(
        {
            **{keras3_random.image_seed(backend): _draw_seed(backend) for backend in keras3_random.BACKENDS},
            keras3_random.TORCH_ELASTIC_TRANSFORM: _elastic_transform_in_torch,
            **{target: _torch_loop(body) for target, body in keras3_random.TORCH_LOOPS.items()},
            keras3_random.SHAPE_INFERENCE: _compute_output_spec,
            keras3_random.RECURRENCE: _rnn,
            keras3_random.CELL_MASKS: _config_dropout_masks,
            keras3_random.NEXT_SEED: _next_seed,
            keras3_random.BATCHES: keras3_arrays.batches,
            keras3_random.TORCH_BATCHES: keras3_arrays.torch_batches,
            **dict.fromkeys(keras3_random.INITIALIZE_VARIABLE, _initialize_variable),
        }
    )


def _install_draws(backend: str, patches: Patches) -> None:
    patches.replace_all(_dispatchers_of_draws(backend))
    if backend == "jax":
        from detrand.adapters import keras3_jax

        keras3_jax.install(patches)


@functools.cache
def _dispatchers_of_draws(backend: str) -> Replacements:
    draws = draws_of(backend)
    makers = {target: governed_draw(getattr(draws, name)) for name, target in keras3_random.draws(backend).items()}
    if backend == "torch":
        makers = {target: uncompiled(make) for target, make in makers.items()}
    return Replacements(makers)


def compiling_for(stream: Stream) -> contextlib.AbstractContextManager[None]:
    """Return a scope in which what a backend compiles draws from a stream, and is compiled anew elsewhere."""
    keras3_jax = sys.modules.get("detrand.adapters.keras3_jax")  # only JAX compiles draws into its programs
    return contextlib.nullcontext() if keras3_jax is None else keras3_jax.compiling_for(stream)


@functools.lru_cache
def draws_of(backend: str) -> Any:
    """Return what draws for a backend: an object with a function for each random function of the backend."""
    if backend == "tensorflow":
        from detrand.adapters import keras3_tensorflow

        return keras3_tensorflow
    if backend == "jax":
        from detrand.adapters.keras3_jax import JaxDraws

        return JaxDraws()
    if backend == "torch":
        return TorchDraws()
    return ArrayDraws() if backend == "numpy" else RefusedDraws(backend)


@governed
def _compute_output_spec(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Take no seeds where a layer is called on symbolic inputs: the ops are built to infer shapes, and never run."""
    with cursor.shape_inference(is_executed=_is_executed):
        return original(*args, **kwargs)


def _rnn(original: Callable[..., Any]) -> Callable[..., Any]:
    tries = keras3_random.backend() in keras3_random.TRYING_BACKENDS
    return trying_its_step_first(original) if tries else original


class _TryingCells:
    """The `is_executed` of a stack whose cells are tried: what they draw is thrown away, unless it initializes."""

    def __init__(self, cursor: Cursor):
        self.outside = cursor.is_executed
        self._cursor = cursor

    def __call__(self) -> bool:
        return self._cursor.phase == "init" and self.outside()


@governed
def _config_dropout_masks(cursor: Cursor, original: Any, layer: Any, cell: Any, *args: Any, **kwargs: Any) -> None:
    """Make the cells of a stack take op seeds for their masks before the loop, but not when they are tried there."""
    is_executed: Callable[[], bool] = cursor.is_executed
    is_stack = hasattr(cell, "cells")  # the method calls itself for each cell, and tries the cell
    if is_stack and not isinstance(is_executed, _TryingCells):
        is_executed = _TryingCells(cursor)
    elif isinstance(is_executed, _TryingCells) and not is_stack:
        is_executed = is_executed.outside
    with cursor.shape_inference(is_executed):
        original(layer, cell, *args, **kwargs)


def _is_executed() -> bool:
    return _executing_eagerly() if keras3_random.backend() == "tensorflow" else not keras3_random.is_symbolic()


def _executing_eagerly() -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is None or tensorflow.executing_eagerly()


def _draws_now() -> bool:
    return _executing_eagerly() and draws_of(keras3_random.backend()).executes()


@governed
def _initialize_variable(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    with cursor.initializing():
        return original(*args, **kwargs)


@governed
def _next_seed(cursor: Cursor, original: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Give a seed of the stream to code that draws with a generator's seeds by other means than Keras's functions."""
    backend = keras3_random.backend_of(generator)
    return draws_of(backend).next_seed(keras3_random.seed_dtype(backend))


def _draw_seed(backend: str) -> Callable[..., Any]:
    @governed
    def draw_seed(cursor: Cursor, original: Any, seed: Any) -> Any:
        return draws_of(backend).next_seed(keras3_random.seed_dtype(backend))

    return draw_seed


@governed
def _elastic_transform_in_torch(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Seed PyTorch's global generator, from which Keras draws there."""
    if keras3_random.is_symbolic():
        return original(*args, **kwargs)
    import torch

    seed = int(draws_of("torch").next_seed("int64")[0])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return original(*args, **kwargs)


def _torch_loop(body: int) -> Callable[..., Any]:
    """Make each iteration of a loop, whose body is at a position among its arguments, a further run of the same ops."""

    @governed
    def loop(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= body:
            return original(*args, **kwargs)
        with cursor.control_flow(regions.LOOP) as run:
            repeated = functools.partial(run, 1, args[body])
            return original(*args[:body], repeated, *args[body + 1 :], **kwargs)

    return uncompiled(loop)


@governed
def _choice(cursor: Cursor, original: Any, options: Any) -> Any:
    """Choose by the stream's numbers rather than by Python's ``random``."""
    op = next_op("RandomUniformInt", (), "int32", _draws_now)
    return options[counter_draws.philox_draw(philox.randint, (), 0, len(options), **op.state)]


def _install_choice(patches: Patches) -> None:
    choosing = stand_in(random, choice=_choice(random.choice))
    patches.set(sys.modules[keras3_random.AUG_MIX], "py_random", choosing)
