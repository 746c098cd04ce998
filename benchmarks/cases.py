"""The ways to seed a program: not at all, detrand, TensorFlow's global seed, TensorFlow's official tool."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detrand import DeterministicRandomTestTool, _patching

SEED = 42


@dataclass(frozen=True)
class Case:
    """One way to seed a program.

    Attributes:
      name: what the table calls it.
      scope: returns a context manager, in which a program is seeded that way. It leaves TensorFlow as it was.
    """

    name: str
    scope: Callable[[], contextlib.AbstractContextManager[Any]]


def all_cases() -> dict[str, Case]:
    """Returns every case by name, with tools of its own, in the order of the table; the first is the baseline."""
    cases = [
        Case("plain TensorFlow", contextlib.nullcontext),
        Case("detrand constant", DeterministicRandomTestTool(SEED, "constant").scope),
        Case("detrand num_random_ops", DeterministicRandomTestTool(SEED, "num_random_ops").scope),
        Case("tf.random.set_seed", _global_seed),
        Case("official constant", _official("constant")),
        Case("official num_random_ops", _official("num_random_ops")),
    ]
    return {case.name: case for case in cases}


@contextlib.contextmanager
def _global_seed() -> Iterator[None]:
    with _tensorflow_restored():
        tf.random.set_seed(SEED)
        yield


def _official(mode: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @functools.cache
    def tool() -> Any:
        # Without TF_USE_LEGACY_KERAS the class has no public name; it works all the same.
        from tf_keras.src.legacy_tf_layers.migration_utils import DeterministicRandomTestTool as OfficialTool

        return OfficialTool(seed=SEED, mode=mode)

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with _tensorflow_restored(), tool().scope():
            yield

    return scope


@contextlib.contextmanager
def _tensorflow_restored() -> Iterator[None]:
    """Undoes a global seed, and drops the kernels that it made, which would slow the next case down."""
    with _patching.global_seed_restored():
        try:
            yield
        finally:
            tf.random.set_seed(SEED)  # setting any seed clears the kernel cache
