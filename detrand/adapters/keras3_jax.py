"""Keras 3 in a stream on JAX, compiled programs included.

JAX traces a function once, and executes the trace from then on. So an op takes its op seed when it is traced, as the
ops of a TensorFlow 1 graph do, and each execution of the compiled program asks for the numbers of a further run.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from detrand._patching import jax_draws
from detrand._patching.patches import Patches
from detrand.adapters.keras3_arrays import ArrayDraws, Numbers, Op
from detrand.changes import locked
from detrand.seeding import cursors
from detrand.seeding.streams import Stream

_drawing_now: contextvars.ContextVar[bool] = contextvars.ContextVar("drawing now", default=False)


class JaxDraws(ArrayDraws):
    """The random functions of the JAX backend."""

    def is_known(self, value: Any) -> bool:
        """Return whether a value is known now, rather than traced."""
        return not jax_draws.is_traced(getattr(value, "value", value))

    def executes(self) -> bool:
        """Return whether no program is being traced. Computing gradients is not tracing: it executes the ops."""
        return _drawing_now.get() or not jax_draws.is_traced(jax.numpy.zeros(()))

    def execute(self, numbers: Numbers, op: Op, shape: tuple[int, ...], dtype: str, **unknown: Any) -> Any:
        """Return an array of what `numbers` returns in each execution of the program being traced, or now."""
        counters = itertools.count(op.state["counter"], op.reserved)

        def of_execution(*arrays: np.ndarray) -> np.ndarray:
            parameters = dict(zip(unknown, arrays, strict=True))
            return numbers(**{**op.state, "counter": next(counters)}, **parameters)

        return jax_draws.draw(op.type, of_execution, shape, jax.dtypes.canonicalize_dtype(dtype), *unknown.values())

    def cast(self, value: Any, dtype: str) -> Any:
        """Return an array of JAX in a dtype."""
        return jax.numpy.asarray(value, dtype)

    def mask(self, shape: Any, rate: float, dtype: str) -> Any:
        """Draw which elements a dropout keeps, for a trace in the two ops of TensorFlow."""
        if not _drawing_now.get():
            return super().mask(shape, rate, dtype)
        return self.uniform(shape, dtype=dtype) >= jax.numpy.asarray(rate, dtype)

    def gamma(self, shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
        """Draw as ``RandomGamma``, with its gradient."""
        drawn = super().gamma(shape, alpha, dtype, seed)
        if self.is_known(alpha):
            return drawn
        # The numbers depend on alpha smoothly, and TensorFlow's gradient goes through them: adds 0 times the slope.
        alpha = jax.numpy.broadcast_to(alpha, drawn.shape).astype(drawn.dtype)
        slope = jax.lax.random_gamma_grad(*map(jax.lax.stop_gradient, (alpha, drawn)))
        return drawn + (alpha - jax.lax.stop_gradient(alpha)) * slope


@contextlib.contextmanager
def drawing_now() -> Iterator[None]:
    """Make the ops of a program that is traced in the block draw the runs that they would draw if they were executed.

    The program must be executed once, and JAX uses no part of it anywhere else. A dropout draws numbers and compares
    them with its rate.
    """
    token = _drawing_now.set(True)
    try:
        with jax_draws.scope(next(_new_keys)):
            yield
    finally:
        _drawing_now.reset(token)


def install(patches: Patches) -> None:
    """Make functions that are compiled in the scope that is open now be traced anew once the patches are undone."""
    if cursors.current() is not None:  # JAX is imported inside a scope, which began without `compiling_for`
        patches.on_undo(lambda: jax_draws.scope.set_global(None))
        jax_draws.scope.set_global(object())


# JAX uses a program that it has compiled where its context has the same key: in all scopes of a stream, and, as long as
# no draw became a part of a program there, in the scopes of the next stream. Most programs draw nothing.
_new_keys = itertools.count(1)
_keys: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()
_free_keys: list[int] = []
_compiled: weakref.WeakSet[Stream] = weakref.WeakSet()  # those from which, or in whose scopes, a program draws
_scopes: Counter[int] = Counter()  # how many are open, by key
_lock = threading.RLock()  # a finalizer may leave a scope


@contextlib.contextmanager
def compiling_for(stream: Stream) -> Iterator[None]:
    """Open a scope in which functions that were compiled outside of all scopes are traced anew, and vice versa.

    The stream's other scopes use what is compiled inside, which goes on counting its runs there.
    """
    key = locked(_lock, _enter, stream)
    try:
        with jax_draws.scope(key):
            yield
    finally:  # JAX has restored what was there before, which may be a scope that was left before this one
        if jax_draws.scope.value not in map(_keys.get, cursors.open_streams()):
            jax_draws.scope(None).__enter__()
        locked(_lock, _leave, stream, key)


def _enter(stream: Stream) -> int:
    stream.on_record = _note_draw
    if stream not in _keys:
        _keys[stream] = _free_keys.pop() if _free_keys else next(_new_keys)
    _scopes[_keys[stream]] += 1
    return _keys[stream]


def _leave(stream: Stream, key: int) -> None:
    _scopes[key] -= 1
    if not _scopes[key]:
        del _scopes[key]
        if stream in _keys and stream not in _compiled:  # it is gone if its scope was collected with it
            _free_keys.append(_keys.pop(stream))


def _note_draw() -> None:
    if not _drawing_now.get() and jax_draws.is_tracing():
        _compiled.update(cursors.open_streams())
