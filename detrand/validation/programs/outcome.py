"""How either program of a migration is run, and what comes of it.

A program runs in the scope of a new `DeterministicRandomTestTool`; its variables are initialized, or all set to one
value, or come from a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.keras import underlying_variable
from detrand.checkpoints.loading import RestoredSession
from detrand.random_tool import DeterministicRandomTestTool, tool_with_op_seeds
from detrand.seeding.streams import RandomOp
from detrand.validation.migration import Migration
from detrand.validation.programs.distinct_weights import Scale
from detrand.variables.partitioned import JoinedVariable
from detrand.variables.sources import VariableSpec


@dataclass(frozen=True)
class RunConfig:
    """How a program is run.

    Attributes:
      training: passed to the program.
      mode: of the `DeterministicRandomTestTool`; None sets all variables to one value instead of initializing
        them.
      constant: that value; None lets the TF1 program find one of `CONSTANTS` that serves.
      from_checkpoint: whether variables come from the migration's checkpoint instead.
      op_seeds: what the port's random ops take, one after the other, where they come in another order than TF1's.
      distinct_weights: whether, with mode None, each variable gets weights of its own in place of that value.
      scales: of these weights, by the TF1 program's initial values; without any, it finds them.
    """

    training: bool
    mode: str | None
    constant: float | None = None
    from_checkpoint: bool = False
    op_seeds: tuple[int, ...] = ()
    distinct_weights: bool = False
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a program computed.

    Attributes:
      config: how it was run; with mode None, ``constant`` is the value that was used.
      outputs: what it returned, with arrays for tensors.
      regularization_loss: the sum of its regularization losses; None if it has none.
      variables: its variables, by name.
      random_ops: the random ops that it ran.
      initialized: the name of the variable that an op seed initialized, where that is known.
      changed: what the call has made of the variables that it changed, by their TF1 names, with weights of their own.
      keeps_losses: whether it is of a kind that has losses: a ``tf.Module`` or a function is not.
      restored: what of the checkpoint the TF1 program has; None if its variables do not come from one.
      origins: where each of the outputs comes from in the TF1 graph, by the path that `compare` calls it by.
      whole_batch: why the TF1 program ran on the whole batch, although the migration has a strategy; empty if it ran in
        towers, or there is no strategy.
      inner: what was asked for of the tensors in between, by their names.
    """

    config: RunConfig
    outputs: Any
    regularization_loss: np.ndarray | None
    variables: dict[str, VariableSpec]
    random_ops: tuple[RandomOp, ...]
    initialized: dict[int, str] = field(default_factory=dict)
    changed: dict[str, np.ndarray] = field(default_factory=dict)
    keeps_losses: bool = True
    restored: RestoredSession | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    whole_batch: str = ""
    inner: dict[str, np.ndarray] = field(default_factory=dict)


class Origin(NamedTuple):
    """Where a tensor comes from.

    Attributes:
      position: of its op among those of the graph, in the order in which they were added.
      name: name of its op.
      caller: ``file:line`` of the user's code that added it.
    """

    position: int
    name: str
    caller: str


def checkpoint_of(migration: Migration) -> str:
    """Returns the path of the checkpoint of a migration that has one."""
    assert migration.checkpoint is not None
    return os.fsdecode(migration.checkpoint)


def tool_of(migration: Migration, config: RunConfig) -> DeterministicRandomTestTool:
    """Returns a new tool for a program that runs in a config."""
    if config.op_seeds:
        return tool_with_op_seeds(migration.seed, config.op_seeds)
    return DeterministicRandomTestTool(migration.seed, config.mode or "constant")


def cached(run: Callable[[Migration, RunConfig], Outcome]) -> Callable[[Migration, RunConfig], Outcome]:
    """Lets several checks share one run of a program."""
    outcomes: dict[RunConfig, Outcome] = {}

    def run_once(migration: Migration, config: RunConfig) -> Outcome:
        if config not in outcomes:
            outcomes[config] = run(migration, config)
        return outcomes[config]

    return run_once


class InitialDraws:
    """Knows which op seeds the variables took that are made in a block, in ``num_random_ops`` mode.

    What was drawn before the variable was made, as by ``tf.Variable(tf.random.normal(...))``, is not known to be its.

    Args:
      tool: in whose scope they are made.
    """

    def __init__(self, tool: DeterministicRandomTestTool):
        self._tool = tool
        self._taken: list[tuple[Any, range]] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[InitialDraws]:
        """Notes the variables that are made in the block, in the default graph."""

        def note(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            before = self._tool.operation_seed
            variable = next_creator(**arguments)
            self._taken.append((underlying_variable(variable), range(before, self._tool.operation_seed)))
            return variable

        with tf.variable_creator_scope(note):
            yield self

    def by_variable(self, variables: Mapping[str, JoinedVariable]) -> dict[int, str]:
        """Returns which variable took an op seed, by name."""
        names = {id(part): name for name, whole in variables.items() for part in whole.parts if len(whole.parts) == 1}
        return {op_seed: names[id(made)] for made, taken in self._taken if id(made) in names for op_seed in taken}
