"""The ways to run a program: in a TF1 session, eagerly, in functions and with XLA; and how they are compared."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand import DeterministicRandomTestTool

v1 = tf.compat.v1
INPUTS = (0.5, 0.875, 0.25)
Make = Callable[[Any, Any], Callable[[tf.Tensor], list[tf.Tensor]]]


# --- What programs call --------------------------------------------------------------------------------------


@tf.autograph.experimental.do_not_convert
def mix(x: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Change a float64 scalar by numbers that were drawn, rounded so that no sum of them needs rounding.

    A session's optimizer changes the order of sums. Whether all bits of the numbers are equal is for other tests.
    """
    if drawn.dtype.is_integer:
        drawn = drawn % 1009
    elements = drawn.shape.num_elements()
    weights = tf.range(1, tf.size(drawn) + 1) if elements is None else np.arange(1, elements + 1)
    drawn = tf.reshape(tf.cast(drawn, tf.float64), [-1])
    rounded = drawn + tf.stop_gradient(tf.round(drawn * 2**20) / 2**20 - drawn)
    return x / 2 + tf.reduce_sum(rounded * tf.cast(weights, tf.float64) / 64)


@tf.autograph.experimental.do_not_convert
def numbers(x: tf.Tensor) -> tf.Tensor:
    """Return six numbers that depend on x.

    Their gradient would be a sum of float32 numbers, which the optimizer of a session's graph computes differently.
    """
    return tf.fill([2, 3], tf.cast(tf.stop_gradient(x), tf.float32))


@tf.autograph.experimental.do_not_convert
def image(x: tf.Tensor) -> tf.Tensor:
    """Return an image that depends on x."""
    pixels = np.arange(18, dtype=np.float32).reshape(2, 3, 3) / 32
    return pixels * tf.cast(tf.clip_by_value(tf.stop_gradient(x), 0.25, 1.0), tf.float32)


@tf.autograph.experimental.do_not_convert
def rounded(gradient: tf.Tensor | None) -> tf.Tensor:
    """Return a gradient without its last bits: a tape adds up its terms in a different order than ``tf.gradients``."""
    if gradient is None:
        raise ValueError("TensorFlow has found no gradient")
    return tf.cast(gradient, tf.float32)


# --- The ways ------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a program gave: its outputs in each run and the op seeds of both tools afterwards, or its error."""

    outputs: Any = None
    op_seeds: tuple[int, int] = (0, 0)
    error: Exception | None = None

    @property
    def error_name(self) -> str:
        return type(self.error).__name__ if self.error else ""

    def __str__(self) -> str:
        if self.error:
            lines = [line for line in str(self.error).strip().splitlines() if line.strip()]
            shown = [*lines[:2], *lines[-2:]] if len(lines) > 4 else lines
            return f"{self.error_name}: " + "\n        ".join(line.strip()[:300] for line in shown)
        return f"outputs {np.array(self.outputs).tolist()}, op seeds {self.op_seeds}"


def in_session(make: Make, inputs: tuple[float, ...], tool: Any, other: Any) -> list[Any]:
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        program = make(tool, other)
        x = v1.placeholder(tf.float64, [])
        outputs = program(x)
        session.run(v1.global_variables_initializer())
        return [session.run(outputs, {x: value}) for value in inputs]


def eagerly(make: Make, inputs: tuple[float, ...], tool: Any, other: Any) -> list[Any]:
    runs = []
    with tool.scope():
        program = make(tool, other)
        for value in inputs:
            with tool.step() if len(inputs) > 1 else contextlib.nullcontext():
                runs.append([output.numpy() for output in program(tf.constant(value, tf.float64))])
    return runs


def in_function(make: Make, inputs: tuple[float, ...], tool: Any, other: Any, **kwargs: Any) -> list[Any]:
    with tool.scope():
        function = tf.function(make(tool, other), **kwargs)
        return [[output.numpy() for output in function(tf.constant(value, tf.float64))] for value in inputs]


def in_concrete_function(make: Make, inputs: tuple[float, ...], tool: Any, other: Any) -> list[Any]:
    with tool.scope():
        function = tf.function(make(tool, other), autograph=False)
        function = function.get_concrete_function(tf.TensorSpec([], tf.float64))
        return [[output.numpy() for output in function(tf.constant(value, tf.float64))] for value in inputs]


def in_xla(make: Make, inputs: tuple[float, ...], tool: Any, other: Any) -> list[Any]:
    return in_function(make, inputs, tool, other, jit_compile=True)


RUN = {
    "session": in_session,
    "eager": eagerly,
    "function": in_function,
    "concrete": in_concrete_function,
    "xla": in_xla,
}


class NoTool:
    """A tool that does nothing, to see what TensorFlow does without detrand."""

    operation_seed = 0

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    step = scope


def run(make: Make, way: str, runs: int, mode: str) -> Outcome:
    """Run a program in one way, in the scope of a new tool."""
    tool, other = DeterministicRandomTestTool(42, mode), DeterministicRandomTestTool(7, mode)
    return _outcome(make, way, runs, tool, other)


def run_without_detrand(make: Make, way: str, runs: int) -> Outcome:
    """Run a program in one way outside of every scope."""
    return _outcome(make, way, runs, NoTool(), NoTool())


def _outcome(make: Make, way: str, runs: int, tool: Any, other: Any) -> Outcome:
    try:
        outputs = RUN[way](make, INPUTS[:runs], tool, other)
    except Exception as error:  # whatever a program raises is an outcome
        error.__traceback__ = None
        return Outcome(error=error)
    return Outcome(outputs, (tool.operation_seed, other.operation_seed))


def difference(found: Outcome, expected: Outcome, tolerance: float) -> str:
    """Return how an outcome differs from the session's, or "".

    Where numbers may differ, those of a layer may by what rounds their float32 sums, however large they are.
    """
    rtol = 1e-6 if tolerance else 0.0
    for k, (outputs, expected_outputs) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        for i, (output, expected_output) in enumerate(zip(outputs, expected_outputs, strict=True)):
            if not np.allclose(output, expected_output, rtol=rtol, atol=tolerance, equal_nan=True):
                return f"output {i} of run {k} is {output}, and {expected_output} in the session"
    if found.op_seeds != expected.op_seeds:
        return f"operation_seed of both tools is {found.op_seeds}, and {expected.op_seeds} in the session"
    return ""


# --- Programs as files ---------------------------------------------------------------------------------------

_folder = tempfile.TemporaryDirectory(prefix="random_programs")
_names = itertools.count()


@contextlib.contextmanager
def loaded(source: str) -> Iterator[dict[str, Any]]:
    """Run the source of a module from a file, which AutoGraph reads, and yield its names."""
    path = os.path.join(_folder.name, f"program_{next(_names)}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    try:
        names: dict[str, Any] = {"__name__": "program", "__file__": path}
        exec(compile(source, path, "exec"), names)
        yield names
    finally:
        os.remove(path)


def compare(make_tf1: Make, make_port: Make, runs: int, mode: str, way: str) -> None:
    """Print what a session and another way make of a program, for a script; exit with 1 if they differ."""
    expected, found = run(make_tf1, "session", runs, mode), run(make_port, way, runs, mode)
    print(f"session: {expected}\n{way}: {found}")
    if found.error or expected.error:
        print(f"{way} without detrand: {run_without_detrand(make_port, way, runs)}")
        sys.exit(found.error_name != expected.error_name)
    differs = difference(found, expected, 0.0)
    print(differs or "They agree.")
    sys.exit(bool(differs))
