"""The ways of executing a row of the table, and what its draws come to in each of them.

A cell is a program, or the reason why there is none. `drawn` runs it inside a tool of its own: draws, a filler, and the
draws again, so that a family which takes one op seed too many or too few is found out. The runs of a TF1 session
are the reference of all columns: of a step, of a call of a function, or of the program as it is, which is run 0.
Keras 3 runs on JAX and PyTorch in processes of their own, since a process has one backend.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand import DeterministicRandomTestTool, RandomOp, philox
from detrand.adapters import xla_draws
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
NOT_IN_XLA = {"random JPEG quality": "XLA encodes no images", "tf.data shuffle": "XLA makes no datasets"}
REFUSED = "an error: XLA's numbers would be others, in each process"
NO_KERAS_TWIN = "Keras has no function that draws the same: call TensorFlow's, as in the first columns"
NOT_IN_PHILOX = "detrand.philox has no function for it"


class Bound(NamedTuple):
    """How far a cell's numbers may be from the session's, and why."""

    limit: float
    reason: str


BY_XLA = Bound(2e-6, "XLA's own logarithm, sine and cosine, or its roundings in the arithmetic after an exact draw")
ENLARGED = Bound(5e-6, "the draws are within 2e-6; the decompositions of matrices that follow enlarge the difference")
BY_LAPACK = Bound(2e-6, "the draws are exact; the backend decomposes matrices by another library than TensorFlow")
REGROUPED = Bound(4e-7, "the draws are exact; a graph optimizer regroups the matrix products that follow them")


class Row(NamedTuple):
    """A family of random ops.

    Attributes:
      name: what a reader looks for.
      op_types: TensorFlow's names of the ops that it draws with, in order.
      tf1: TensorFlow code that draws; it runs in a session, eagerly and in a function as it is.
      port: what runs eagerly and in a function, where that is another one.
      keras3: the same draws by Keras 3, or why there are none.
      tf_keras: likewise.
      numpy: likewise, given the seeds of one op after the other.
      is_regrouped: whether a graph optimizer changes the arithmetic *after* the draws, which are always bit-equal.
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
        """The program of a way of executing, or the reason why there is none."""
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
        if not xla_draws.DRAWS.keys() >= {*self.op_types} - {""}:
            return REFUSED
        return NOT_IN_XLA.get(self.name) or self.port or self.tf1

    def bound(self, way: str) -> Bound | None:
        """How far a cell's numbers may be from the session's; None where they are equal bit for bit."""
        if way == XLA and self.is_regrouped:
            return ENLARGED
        if way == XLA and (self.name in ROUNDED_BY_XLA or {*self.op_types} & NORMALS):
            return BY_XLA
        if way in BACKENDS and self.name == "Orthogonal initializer":
            return BY_LAPACK
        return REGROUPED if self.is_regrouped else None


class Drawn(NamedTuple):
    """What a program drew in each run, and the records of its ops."""

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
    """What all rows draw on a backend, by name and mode."""
    cells = [(row.name, mode) for row in _table() if not isinstance(row.keras3, str) for mode in MODES]
    programs = [keras3_process.Program(__name__, "_in_steps", (name,), seed, mode) for name, mode in cells]
    outcomes = keras3_process.run_on(backend, programs, JAX_ENABLE_X64="1")  # without it JAX has no numbers of 64 bits
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
    from tests.conformance import table  # which is made of what is defined here

    return table.TABLE
