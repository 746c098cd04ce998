"""The ways of executing a row of the table, and the numbers that each way draws.

A cell is a program, or the reason why there is none. `drawn` runs the program inside a tool of its own: its draws, a
filler, and its draws again, so that a row which takes one op seed too many or too few fails. The reference of all
columns is a TF1 session: its run k for step k and for call k of a function, its run 0 for a program that runs once.
Keras 3 runs on JAX and PyTorch in processes of their own, because a process has one backend.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand import DeterministicRandomTestTool, RandomOp, philox
from detrand.adapters import xla
from tests.support import keras3_process

v1 = tf.compat.v1
Program = Callable[[], list[Any]]
Seeds = Iterator[tuple[int, int, int]]  # (seed, op_seed, run) of one op after the other

MODES = ("constant", "num_random_ops")
FILLER_OP = "RandomUniform"

RUNS = 3
WAYS = (EAGER, STEP, FUNCTION, XLA, KERAS3, KERAS3_FUNCTION, KERAS3_JAX, KERAS3_TORCH, TF_KERAS, NUMPY) = (
    "eager",
    "eager, step k",
    "tf.function, call k",
    "XLA, call k",
    "Keras 3, step k",
    "Keras 3 in tf.function, call k",
    "Keras 3 on JAX, step k",
    "Keras 3 on PyTorch, step k",
    "tf_keras, step k",
    "NumPy, run k",
)
BACKENDS = {KERAS3_JAX: "jax", KERAS3_TORCH: "torch"}

NORMALS = {"RandomStandardNormal", "TruncatedNormal"}
ROUNDED_BY_XLA = ("random contrast", "random hue", "random saturation", "AlphaDropout layer")
NOT_IN_XLA = {"random JPEG quality": "XLA cannot encode images", "tf.data shuffle": "XLA cannot create datasets"}
REFUSED = "raises ScopeError, because XLA would draw different numbers in each process"
NO_KERAS_TWIN = "Keras has no function that draws these numbers; call TensorFlow's, as in the first columns"
NOT_IN_PHILOX = "detrand.philox has no function for it"


class Bound(NamedTuple):
    """How far a cell's numbers may be from the session's, and why."""

    limit: float
    reason: str


BY_XLA = Bound(2e-6, "XLA has its own logarithm, sine and cosine, and rounds the arithmetic after a draw differently")
ENLARGED = Bound(5e-6, "the draws are within 2e-6, and the matrix decompositions after them enlarge the difference")
BY_LAPACK = Bound(2e-6, "the draws are exact, but the backend decomposes matrices with a different library")
REGROUPED = Bound(4e-7, "the draws are exact, but a graph optimizer reorders the matrix products after them")


class Row(NamedTuple):
    """A family of random ops.

    Attributes:
      name: the name in the table.
      op_types: the types of the random ops, in order.
      tf1: TensorFlow code that draws, for a session, eager code and functions.
      port: a different program for eager code and functions, if `tf1` cannot run there.
      keras3: the same draws by Keras 3, or the reason why there are none.
      tf_keras: likewise by tf_keras.
      numpy: likewise by `detrand.philox`, from the seeds of each op.
      is_regrouped: whether a graph optimizer changes the arithmetic after the draws; the draws stay identical.
    """

    name: str
    op_types: tuple[str, ...]
    tf1: Program
    port: Program | None = None
    keras3: Program | str = NO_KERAS_TWIN
    tf_keras: Program | str = NO_KERAS_TWIN
    numpy: Callable[[Seeds], list[np.ndarray]] | str = NOT_IN_PHILOX
    is_regrouped: bool = False

    def cell(self, way: str) -> Any:
        """Return the program of a way of executing, or the reason why there is none."""
        return {
            EAGER: self.port or self.tf1,
            STEP: self.port or self.tf1,
            FUNCTION: self.port or self.tf1,
            XLA: self._in_xla(),
            KERAS3: self.keras3,
            KERAS3_FUNCTION: self.keras3,
            KERAS3_JAX: self.keras3,
            KERAS3_TORCH: self.keras3,
            TF_KERAS: self.tf_keras,
            NUMPY: self.numpy,
        }[way]

    def _in_xla(self) -> Program | str:
        if reason := NOT_IN_XLA.get(self.name):
            return reason
        return self.port or self.tf1 if xla.DRAWS.keys() >= {*self.op_types} - {""} else REFUSED

    def bound(self, way: str) -> Bound | None:
        """Return how far a cell's numbers may be from the session's; None if they must be identical."""
        if way == XLA and self.is_regrouped:
            return ENLARGED
        if way == XLA and (self.name in ROUNDED_BY_XLA or {*self.op_types} & NORMALS):
            return BY_XLA
        if way in BACKENDS and self.name == "Orthogonal initializer":
            return BY_LAPACK
        return REGROUPED if self.is_regrouped else None


class Drawn(NamedTuple):
    """The numbers of each run of a program, and the records of its ops."""

    runs: list[list[np.ndarray]]
    random_ops: tuple[RandomOp, ...]


def drawn_in_session(row: Row, seed: int, mode: str) -> Drawn:
    """Run a row's reference: a TF1 graph and session."""
    tool = DeterministicRandomTestTool(seed, mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        tensors = tf.nest.flatten(_twice(row.tf1))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        return Drawn([session.run(tensors) for _ in range(RUNS)], tool.random_ops)


def drawn(row: Row, way: str, seed: int, mode: str) -> Drawn:
    """Run the program of one cell."""
    if way in BACKENDS:
        values, random_ops, _ = _outcomes_on(BACKENDS[way], seed)[row.name, mode].checked()
        length = len(values) // RUNS
        return Drawn([values[run * length : (run + 1) * length] for run in range(RUNS)], random_ops)
    program = row.cell(way)
    if way == NUMPY:
        return Drawn([_drawn_by_numpy(program, seed, mode, run) for run in range(RUNS)], ())
    tool = DeterministicRandomTestTool(seed, mode)
    with tool.scope():
        runs = list(_runs(functools.partial(_twice, program), way, tool))
    return Drawn([[tensor.numpy() for tensor in tf.nest.flatten(tensors)] for tensors in runs], tool.random_ops)


def _drawn_by_numpy(program: Callable[[Seeds], list[np.ndarray]], seed: int, mode: str, run: int) -> list[np.ndarray]:
    seeds = ((seed, op_seed if mode == "num_random_ops" else 0, run) for op_seed in itertools.count())
    return [*program(seeds), philox.uniform((2,), *next(seeds)), *program(seeds)]


@functools.cache
def _outcomes_on(backend: str, seed: int) -> dict[tuple[str, str], keras3_process.Outcome]:
    """Return what all rows draw on a backend, by name and mode."""
    cells = [(row.name, mode) for row in _table() if not isinstance(row.keras3, str) for mode in MODES]
    programs = [keras3_process.Program(__name__, "_in_steps", (name,), seed, mode) for name, mode in cells]
    outcomes = keras3_process.run_on(backend, programs, JAX_ENABLE_X64="1")  # else JAX has no 64-bit numbers
    return dict(zip(cells, outcomes, strict=True))


def _in_steps(name: str, tool: DeterministicRandomTestTool) -> list[Any]:
    (row,) = (row for row in _table() if row.name == name)
    return list(_runs(functools.partial(_twice, row.keras3), KERAS3, tool))


def _runs(program: Program, way: str, tool: DeterministicRandomTestTool) -> Iterator[Any]:
    if way == EAGER:
        yield program()
        return
    function = tf.function(program, autograph=False, jit_compile=way == XLA)
    for _ in range(RUNS):
        if way in (FUNCTION, XLA, KERAS3_FUNCTION):
            yield function()
        else:
            with tool.step():
                yield program()


def _twice(program: Program) -> list[Any]:
    return [program(), tf.random.uniform([2]), program()]


def _table() -> tuple[Row, ...]:
    from tests.conformance import table  # imports this module

    return table.TABLE
