"""A run config, which says how either program of a migration is run, and the outcome of a run.

A program runs in the scope of a new `DeterministicRandomTestTool`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.keras import underlying_variable
from detrand.checkpoints.loading import RestoredSession
from detrand.random_tool import DeterministicRandomTestTool, stream_of
from detrand.seeding.streams import RandomOp
from detrand.validation.migration import Migration
from detrand.validation.programs.distinct_weights import Scale
from detrand.variables.sources import JoinedVariable, VariableSpec


@dataclass(frozen=True)
class RunConfig:
    """How a program is run.

    Attributes:
      training: passed to the program.
      mode: of the `DeterministicRandomTestTool`.
      weights: the values of the variables: initialized; all one constant; distinct weights; or from the migration's
        checkpoint.
      constant: the value of constant weights. Without it, the TF1 program runs with the first of `CONSTANTS` that shows
        something in every output, and its outcome's config has that value.
      scales: of distinct weights. Without them, the TF1 program takes them from its initial values, and its outcome's
        config has them.
      op_seeds: the op seeds of the port's random ops, in the order in which the port runs them, where TF1 has a
        different order.
    """

    training: bool
    mode: str = "constant"
    weights: Literal["initial", "constant", "distinct", "checkpoint"] = "initial"
    constant: float | None = None
    scales: tuple[Scale, ...] = ()
    op_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a program computed.

    Attributes:
      config: how it was run, with the constant or the scales of its weights.
      outputs: what it returned, with arrays for tensors.
      regularization_loss: the sum of its regularization losses; None if it has none.
      variables: its variables, by name.
      random_ops: the random ops that it ran.
      initialized: the name of the variable that an op seed initialized, where that is known.
      changed: the values of the variables that the call changed, by their TF1 names, with distinct weights.
      keeps_losses: whether the program is of a kind that has losses: a ``tf.Module`` or a function is not.
      restored: what the TF1 program got from the checkpoint; None without one.
      origins: where each output comes from in the TF1 graph, by the output's path.
      whole_batch: why the TF1 program ran on the whole batch, although the migration has a strategy; empty if it ran in
        towers, or there is no strategy.
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


class Origin(NamedTuple):
    """Where a tensor comes from.

    Attributes:
      position: of its op in the graph, in the order in which ops were added.
      name: name of its op.
      caller: ``file:line`` of the user's code that added the op.
    """

    position: int
    name: str
    caller: str


def checkpoint_of(migration: Migration) -> str:
    """Return the path of the checkpoint of a migration that has one."""
    assert migration.checkpoint is not None
    return os.fsdecode(migration.checkpoint)


def tool_of(migration: Migration, config: RunConfig) -> DeterministicRandomTestTool:
    """Return a new tool for a program."""
    tool = DeterministicRandomTestTool(migration.seed, config.mode)
    if config.op_seeds:
        stream_of(tool).give_next(config.op_seeds)
    return tool


class InitialDraws:
    """The op seeds that drew the initial values of variables, in ``num_random_ops`` mode.

    An op seed that was drawn before its variable was made, as in ``tf.Variable(tf.random.normal(...))``, is missing.
    """

    def __init__(self, tool: DeterministicRandomTestTool):
        self._tool = tool
        self._drawn: list[tuple[Any, range]] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[InitialDraws]:
        """Record the variables that are made in the block, in the default graph."""

        def record(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            before = self._tool.operation_seed
            variable = next_creator(**arguments)
            self._drawn.append((underlying_variable(variable), range(before, self._tool.operation_seed)))
            return variable

        with tf.variable_creator_scope(record):
            yield self

    def by_variable(self, variables: Mapping[str, JoinedVariable]) -> dict[int, str]:
        """Return the name of the variable that each op seed initialized; a partitioned variable has none."""
        names = {id(one.parts[0]): name for name, one in variables.items() if len(one.parts) == 1}
        return {seed: names[id(variable)] for variable, seeds in self._drawn if id(variable) in names for seed in seeds}
