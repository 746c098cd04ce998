"""The cost of `detrand.StepRecorder` in a training step that records scalars: rate, loss and a metric."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

import detrand
from benchmarks.cases import Case, Group, Workload
from benchmarks.programs import TRAINING_STEP, Draw, Program


def _classifier() -> Draw:
    images, labels = tf.random.uniform((64, 784)), tf.range(64) % 10
    model = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam()
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model(images)
    optimizer.build(model.trainable_variables)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        weights = model.trainable_weights
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return step


_PROGRAMS = (TRAINING_STEP, Program("classifier", _classifier, draws_in_graph=1))
_Way = Callable[[Draw], Draw]


def _counted(program: Program, record: Callable[[tf.Variable, tf.Tensor], object]) -> Draw:
    """Return a training step that is counted and recorded."""
    train, steps = program.make(), tf.Variable(0, dtype=tf.int64)

    def step() -> tf.Tensor:
        loss = train()
        record(steps, loss)
        with tf.control_dependencies([loss]):
            steps.assign_add(1)
        return loss

    return step


def _cases(program: Program, way: _Way) -> list[Case]:
    recorder = detrand.StepRecorder()

    def record(step: tf.Variable, loss: tf.Tensor) -> None:
        recorder.record(step, learning_rate=0.01, loss=loss, metrics={"root": tf.sqrt(loss)})

    @contextlib.contextmanager
    def read_afterwards() -> Iterator[None]:
        yield
        len(recorder)  # reads the queues of functions, which a user does once, after the training

    return [
        Case("no recorder", way(_counted(program, lambda step, loss: tf.sqrt(loss)))),
        Case("detrand, 3 scalars", way(_counted(program, record)), read_afterwards),
    ]


def _group(name: str, title: str, about: str, way: _Way) -> Group:
    return Group(
        name,
        title,
        about,
        tuple(
            Workload(f"{name}/{program.name}", lambda program=program: _cases(program, way)) for program in _PROGRAMS
        ),
    )


GROUPS = (
    _group(
        "recorder/eager",
        "Recording a training step, eager",
        "A call is the training step of the eager ops, or a step of a classifier with 784 inputs, 128 hidden units, "
        "dropout, Adam and batches of 64. Each step records the learning rate, the loss and a metric. Without a "
        "recorder, the metric is computed as well.",
        lambda step: step,
    ),
    _group(
        "recorder/tf.function",
        "Recording a training step, ``tf.function``",
        "The same steps in a function that was traced before.",
        tf.function,
    ),
)
