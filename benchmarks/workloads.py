"""The programs that are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Workload:
    """A program, and how much of it to run.

    Attributes:
      name: what the table calls it.
      make: builds the program; returns what is timed.
      cases: names of the cases to run it in; the first is the baseline.
      calls: how often a block of measurement calls it.
      memory_calls: over how many calls the growth of the process is measured; 0 for not at all.
    """

    name: str
    make: Callable[[], Callable[[], object]]
    cases: tuple[str, ...]
    calls: int
    memory_calls: int = 0


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


ALL = (
    Workload(
        "tf.random.uniform((3, 3)), eager",
        _one_random_op,
        (
            "plain TensorFlow",
            "detrand constant",
            "detrand num_random_ops",
            "tf.random.set_seed",
            "official constant",
            "official num_random_ops",
        ),
        calls=200,
        memory_calls=20_000,
    ),
    Workload(
        "training step with six dropouts, eager",
        _training_step,
        ("plain TensorFlow", "detrand constant", "detrand num_random_ops", "official constant"),
        calls=10,
    ),
)
