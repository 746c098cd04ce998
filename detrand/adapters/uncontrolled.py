"""Draws in a scope that no stream can decide: they are recorded, and left as they are.

Stateless ops, ``tf.random.Generator`` and ``jax.random`` draw from a seed that the user gives; ``np.random``, Python's
``random`` and PyTorch know no op seeds at all. Nor do the ops that a Python function runs in a thread of a session. A
generator of NumPy or Python cannot be watched, so its creation is recorded. Where several threads draw from one op, a
stream decides the numbers, but chance decides which element gets which: what starts them is recorded.

Only calls of the user's code are recorded, and of what draws for it: Keras calls all of these too, and its draws are
governed, except where it orders a dataset.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand._patching import flax
from detrand._patching.keras import is_instance_of_loaded
from detrand._patching.patches import Patches, Replacements, Target
from detrand._patching.random_ops import (
    EXPLICIT_OPS,
    PARALLEL_DATASETS,
    PYTHON_FUNCTION,
    QUEUE_RUNNER,
    RAW_OP_MODULES,
    counts_runs,
)
from detrand.changes import Changes
from detrand.scopes import Entered
from detrand.seeding import callsite, cursors
from detrand.seeding.cursors import Cursor, governed

_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")
_TORCH = {
    "torch": (
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal"),
        *("bernoulli", "multinomial", "poisson"),
    ),
    "torch.Tensor": (
        *("bernoulli", "bernoulli_", "multinomial", "normal_", "uniform_", "cauchy_", "exponential_", "geometric_"),
        "log_normal_",
    ),
    "torch.nn.functional": (
        *("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"),
    ),
}
_NO_DRAWS_OF_JAX = ("split", "fold_in", "clone", "key_data", "key_impl", "wrap_key_data")

# The cursors of the scopes in which functions were given to TensorFlow, in the threads in which it runs them.
_observing: Entered[Cursor] = Entered("detrand_observing")


def install(patches: Patches) -> None:
    """Install the functions that record the draws of NumPy, Python, PyTorch and JAX."""
    _set_all(_recording_functions, patches)
    watched = {"torch": _functions_of_torch, "jax": _functions_of_jax, "flax.nnx.rnglib": _functions_of_flax}
    for module, functions in watched.items():
        patches.when_imported(module, functools.partial(_set_all, functions))


def install_in_tensorflow(patches: Patches) -> None:
    """Install the functions that record the draws of TensorFlow."""
    patches.replace_all(_recordings())


@functools.cache
def _recordings() -> Replacements:
    raw_ops = {Target(module, op_type, ()): op_type for op_type in EXPLICIT_OPS for module in RAW_OP_MODULES}
    of_types = {**{target: op_type for op_type, target in EXPLICIT_OPS.items()}, **raw_ops}
    return Replacements(
        {
            **{target: _recording(op_type) for target, op_type in of_types.items()},
            **{target: _recording_parallel(op_type) for op_type, target in PARALLEL_DATASETS.items()},
            QUEUE_RUNNER: _queue_runner,
            PYTHON_FUNCTION: _python_function,
        }
    )


def _set_all(functions: Callable[[], list[Recordings]], patches: Patches) -> None:
    for owner, recordings in functions():
        patches.set_all(owner, recordings)


def record(label: str, drawn: Any = None, depth: int = 3, through: tuple[str, ...] = ("tensorflow",)) -> None:
    """Record what was drawn, if the user's code called what drew it, by itself or through a package.

    In a thread that no scope governs, the draws of frameworks count, too. The depth is that of the caller's frame.
    """
    cursor, observer = cursors.current(), _observing.innermost()
    is_observed = cursor is None and observer is not None
    site = callsite.user_site() if is_observed else callsite.site_of_draw(depth, *through)
    cursor = cursor or observer
    if cursor is None or site is None:
        return
    first = next(iter(drawn), None) if isinstance(drawn, tuple) else drawn
    if is_instance_of_loaded(first, "tensorflow", "Tensor"):
        from detrand._patching.tensorflow import static_shape_and_dtype

        shape, dtype = static_shape_and_dtype(drawn)
    else:
        shape, dtype = getattr(drawn, "shape", None), str(getattr(drawn, "dtype", ""))
    is_initial = label.startswith("torch.") and cursor.stream.torch_initializes
    phase = "init" if is_initial or callsite.is_called_by("torch/nn/init.py") else None
    cursor.record_uncontrolled(site, label, None if shape is None else tuple(shape), dtype, phase)


@functools.cache
def _recording(label: str, through: tuple[str, ...] = ("tensorflow",)) -> Callable[..., Any]:
    """Return what makes a function record what it draws."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            drawn = original(*args, **kwargs)
            record(label, drawn, through=through)
            return drawn

        return function

    return make


def recording_ungoverned(op_type: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a random op that records what it draws in a thread of TensorFlow, for a dispatcher to call."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)
        if cursors.current() is None:
            record(op_type, drawn, depth=4)
        return drawn

    return function


@governed
def _python_function(cursor: Cursor, original: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Make what is drawn in a function that TensorFlow runs in a thread of its own known to the scope."""
    from detrand._patching.tensorflow import KnowingAutographLines, autograph_lines, executing_eagerly

    if not callable(func) or executing_eagerly():
        return original(func, *args, **kwargs)
    observer, lines = cursor.for_observing(), autograph_lines()

    @functools.wraps(func)
    def observed(*inputs: Any) -> Any:
        with KnowingAutographLines(lines), Changes() as changes:
            _observing.enter(observer, changes)
            return func(*inputs)

    return original(observed, *args, **kwargs)


@functools.cache
def _recording_parallel(op_type: str) -> Callable[..., Any]:
    """Return what makes a dataset record that chance decides which element gets which numbers, or comes first."""

    def parallel(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        from detrand._patching.tensorflow import ops_are_deterministic

        dataset = original(*args, **kwargs)
        calls, in_any_order = kwargs.get("num_parallel_calls"), kwargs.get("deterministic") == "false"
        is_parallel = calls is None or tf.get_static_value(calls) != 1
        if is_parallel and not ops_are_deterministic() and (in_any_order or counts_runs(kwargs["f"])):
            record(op_type, depth=4)
        return dataset

    return governed(parallel)


@governed
def _queue_runner(cursor: Cursor, original: Any, runner: Any, queue: Any = None, *args: Any, **kwargs: Any) -> None:
    """Record a queue that is shuffled while threads fill it: chance decides what is in it."""
    original(runner, queue, *args, **kwargs)
    if is_instance_of_loaded(queue, "tensorflow", "queue.RandomShuffleQueue"):
        record("RandomShuffleQueueV2", depth=4)


Recordings = tuple[Any, dict[str, Any]]  # a module or class, and replacements by their names in it


@functools.cache
def _recording_functions() -> list[Recordings]:
    """Return the functions that draw from a global generator, and those that make generators."""
    of_numpy, of_random = (
        {
            name: _outside_of_autograph(_recording(f"{label}.{name}")(function))
            for name, function in vars(owner).items()
            if isinstance(getattr(function, "__self__", None), generator) and name not in _NO_DRAWS
        }
        for owner, label, generator in (
            (np.random, "np.random", np.random.RandomState),
            (random, "random", random.Random),
        )
    )
    for name in ("ranf", "sample", "default_rng"):
        of_numpy[name] = _outside_of_autograph(_recording(f"np.random.{name}")(getattr(np.random, name)))
    for each in (np.random.RandomState, np.random.Generator):
        of_numpy[each.__name__] = _creation_of(each)
    making_one = _recording("random.Random", through=())(random.Random.__init__)  # TensorFlow makes some for itself
    return [
        (np.random, of_numpy),
        (random, of_random),
        (random.Random, {"__init__": _outside_of_autograph(making_one)}),
    ]


def _outside_of_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that AutoGraph, if TensorFlow is loaded, calls as it is."""
    tensorflow = sys.modules.get("tensorflow")
    return function if tensorflow is None else tensorflow.autograph.experimental.do_not_convert(function)


class _RecordsCreation(type):
    """The type of a class that stands for its base, a class of generators, and makes objects of it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._stands_for_its_base:
            return super().__call__(*args, **kwargs)
        created = cls.__mro__[1](*args, **kwargs)
        record(f"np.random.{cls.__name__}", through=())
        return created

    @property
    def _stands_for_its_base(cls) -> bool:
        return type(cls.__mro__[1]) is not _RecordsCreation

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1]) if cls._stands_for_its_base else super().__instancecheck__(instance)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1]) if cls._stands_for_its_base else super().__subclasscheck__(other)


def _creation_of(generator: type) -> type:
    names = {name: getattr(generator, name) for name in ("__module__", "__qualname__", "__doc__")}
    return _RecordsCreation(generator.__name__, (generator,), names)


@functools.cache
def _functions_of_torch() -> list[Recordings]:
    torch = sys.modules["torch"]
    owners = {"torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": torch.nn.functional}
    found = []
    for label, names in _TORCH.items():
        owner = owners[label]
        make = _recording_dropout if owner is torch.nn.functional else _recording
        found.append((owner, {name: make(f"{label}.{name}")(getattr(owner, name)) for name in names}))
    return found


def _recording_dropout(label: str) -> Callable[..., Any]:
    """Return what makes a function of PyTorch that has a parameter ``training`` record what it draws in training."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            dropped = original(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if given.arguments["training"] and given.arguments.get("p", 1):
                record(label, dropped)
            return dropped

        return function

    return make


@functools.cache
def _functions_of_jax() -> list[Recordings]:
    """Return the functions of ``jax.random`` that draw: those that take a key, and return none."""
    owner = sys.modules["jax"].random
    by_name = {name: each for name, each in vars(owner).items() if callable(each) and not name.startswith("_")}
    recordings = {
        name: _recording(f"jax.random.{name}")(function)
        for name, function in by_name.items()
        if name not in _NO_DRAWS_OF_JAX and next(iter(inspect.signature(function).parameters), "") == "key"
    }
    return [(owner, recordings)]


@functools.cache
def _functions_of_flax() -> list[Recordings]:
    """Return the draws of ``nnx.Rngs`` and of their streams that are not controlled, which have functions of JAX."""
    rnglib, controlled = sys.modules["flax.nnx.rnglib"], {method for _, method in flax.DRAWS}
    return [
        (
            owner,
            {
                name: _recording(f"nnx.Rngs.{name}")(function)
                for name, function in vars(owner).items()
                if getattr(function, "__module__", "").startswith("jax") and name not in controlled
            },
        )
        for owner in (rnglib.Rngs, rnglib.RngStream)
    ]
