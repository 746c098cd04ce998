"""What seeding costs: plain TensorFlow, detrand, TensorFlow's global seed, TensorFlow's official tool."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from benchmarks.cases import Case, Workload
from detrand import DeterministicRandomTestTool, _patching

SEED = 42


def _one_random_op() -> Callable[[], object]:
    return lambda: tf.random.uniform((3, 3))


def _training_step() -> Callable[[], object]:
    """Six layers, each with dropout, and one step of gradient descent."""
    width, layers, rate, learning_rate = 16, 6, 0.1, 0.01
    inputs = tf.ones((8, width))
    weights = [tf.Variable(tf.eye(width)) for _ in range(layers)]

    def step() -> None:
        with tf.GradientTape() as tape:
            hidden = inputs
            for weight in weights:
                hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(hidden, weight)), rate)
            loss = tf.reduce_mean(hidden**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(learning_rate * gradient)

    return step


def _seeded(make: Callable[[], Callable[[], object]], *names: str) -> list[Case]:
    """Returns the cases in which a program is seeded in the ways of those names, each with a tool of its own."""
    scopes = {
        "plain TensorFlow": contextlib.nullcontext,
        "detrand constant": DeterministicRandomTestTool(SEED, "constant").scope,
        "detrand num_random_ops": DeterministicRandomTestTool(SEED, "num_random_ops").scope,
        "tf.random.set_seed": _global_seed,
        "official constant": _official("constant"),
        "official num_random_ops": _official("num_random_ops"),
    }
    call = make()
    return [Case(name, call, scopes[name]) for name in names or scopes]


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


WORKLOADS = (
    Workload(
        "seeding/op",
        "tf.random.uniform((3, 3)), eager",
        lambda: _seeded(_one_random_op),
        calls=200,
        memory_calls=20_000,
    ),
    Workload(
        "seeding/training_step",
        "training step with six dropouts, eager",
        lambda: _seeded(
            _training_step, "plain TensorFlow", "detrand constant", "detrand num_random_ops", "official constant"
        ),
        calls=10,
    ),
)
