"""A run config, which says how either program of a migration is run, and the outcome of a run.

A program runs in the scope of a new `DeterministicRandomTestTool`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from detrand.changes import Changes
from detrand.checkpoints.pairing import RestoredSession
from detrand.random_op_diff import uncontrolled_in
from detrand.seeding.streams import RandomOp
from detrand.validation.programs.activations import Activation
from detrand.validation.programs.distinct_weights import Scale
from detrand.variables.spec import VariableSpec

ADDED_LOSS = "the loss"  # what a program adds to its loss, among the names of its variables


class UntracedPortError(NotImplementedError):
    """The ops of a port are not known, because it does not run on TensorFlow."""


@dataclass(frozen=True)
class RunConfig:
    """How a program is run.

    Attributes:
      training: passed to the program.
      mode: of the `DeterministicRandomTestTool`.
      weights: the values of the variables: TF1's initial values; all one constant; distinct weights; or from the
        migration's checkpoint.
      constant: the value of constant weights. Without it, the TF1 program runs with the first of `CONSTANTS` that shows
        something in every output, and its outcome's config has that value.
      scales: of distinct weights. Without them, the TF1 program takes them from its initial values, and its outcome's
        config has them.
      op_seeds: the op seeds of the port's random ops, in the order in which the port runs them: those of their
        counterparts in TF1.
      images: the shapes of images, with channels first, of which TF1 draws numbers with channels last.
      next_op_seed: the op seed that TF1's first random op after the model takes, such as one of the loss.
    """

    training: bool
    mode: str = "constant"
    weights: Literal["initial", "constant", "distinct", "checkpoint"] = "initial"
    constant: float | None = None
    scales: tuple[Scale, ...] = ()
    op_seeds: tuple[int, ...] = ()
    images: tuple[tuple[int | None, ...], ...] = field(default=(), compare=False)
    next_op_seed: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Outcome:
    """What a program computed.

    Attributes:
      config: how it was run, with the constant or the scales of its weights.
      outputs: what it returned, with arrays for tensors.
      regularization_loss: the sum of its regularization losses, and of the losses that the model adds; None if it has
        none.
      variables: its variables, by name.
      random_ops: the random ops that it ran.
      random_ops_before: those that it ran before: a port, when it was made and in its first call.
      positions: the positions of TF1's random ops, by op seed; see `positions_in`.
      unused: the op seeds of TF1's random ops that nothing that was run depends on.
      in_loops: the op seeds of TF1's random ops that are in loops.
      initial: the initial values of TF1's variables, by name, if the program ran with them; of TF1 only.
      changed: the values of the variables that the call changed, by their TF1 names, with distinct weights.
      of_batch: what moving averages of the variance of a sample would be with that of the batch; see
        `sample_variances`.
      keeps_losses: whether the program is of a kind that has losses: a ``tf.Module`` or a function is not.
      restored: what the TF1 program got from the checkpoint; None without one.
      origins: where each output comes from in the TF1 graph, by the output's path.
      lines: the lines that make TF1's variables, by name, and the first `ADDED_LOSS`, where they are known.
      lines_of_penalties: the lines that penalize TF1's variables in its regularization losses, by name.
      draws_numpy: whether the program drew from NumPy's global generator.
      unordered: sentences about the variables that the TF1 graph updates and reads in no defined order.
      whole_batch: why the TF1 program ran on the whole batch, although the migration has a strategy; empty if it ran in
        towers, or there is no strategy.
      activations: what the run of the TF1 program shows of its activations, with distinct weights.
      loss_with_functions: the regularization loss of TF1 and what functions such as ``tf.losses.huber_loss`` add to it.
    """

    config: RunConfig
    outputs: Any
    regularization_loss: np.ndarray | None
    variables: dict[str, VariableSpec]
    random_ops: tuple[RandomOp, ...]
    random_ops_before: tuple[RandomOp, ...] = ()
    positions: dict[int, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[int, ...] = ()
    in_loops: tuple[int, ...] = ()
    initial: dict[str, np.ndarray] = field(default_factory=dict)
    changed: dict[str, np.ndarray] = field(default_factory=dict)
    of_batch: dict[str, np.ndarray] = field(default_factory=dict)
    keeps_losses: bool = True
    restored: RestoredSession | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    lines_of_penalties: dict[str, str] = field(default_factory=dict)
    draws_numpy: bool = False
    unordered: tuple[str, ...] = ()
    whole_batch: str = ""
    activations: tuple[Activation, ...] = ()
    loss_with_functions: np.ndarray | None = None

    @property
    def uncontrolled(self) -> tuple[RandomOp, ...]:
        """The random ops that no scope could control."""
        return uncontrolled_in((*self.random_ops_before, *self.random_ops))


class Origin(NamedTuple):
    """Where a tensor comes from: the position of its op in the graph, its name, and the ``file:line`` that added it."""

    position: int
    name: str
    caller: str


@contextlib.contextmanager
def numpy_seeded(seed: int | None) -> Iterator[None]:
    """Seed NumPy's global generator and Python's ``random`` in the block, unless the seed is None."""
    if seed is None:
        yield
        return
    with Changes() as changes:
        changes.restore("NumPy's random state", np.random.get_state, np.random.set_state)
        changes.restore("Python's random state", random.getstate, random.setstate)
        np.random.seed(seed % 2**32)  # NumPy accepts no other seeds
        random.seed(seed)
        yield


def numpy_draws_from_now() -> Callable[[], bool]:
    """Return a function that returns whether anything has drawn from NumPy's global generator since."""
    before = _numpy_state()
    return lambda: _numpy_state() != before


def _numpy_state() -> tuple[Any, ...]:
    state = np.random.get_state(legacy=False)
    return state["state"]["pos"], state["state"]["key"].tobytes(), state["has_gauss"]
