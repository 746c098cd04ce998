"""`Reference`: where the numbers of a TF1 program come from, and `SessionReference`, which runs it in sessions.

The other reference is `GoldenReference` in `detrand.validation.golden`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from detrand.validation.diagnosis.hyperparameters import (
    Hyperparameters,
    hyperparameters_of_graph,
    hyperparameters_of_optimizer,
)
from detrand.validation.diagnosis.trace import Trace, trace_tf1
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, TrainingNoise
from detrand.validation.noise.measurement import measure_noise_floor
from detrand.validation.precision import half_precision
from detrand.validation.programs.outcome import Outcome, RunConfig
from detrand.validation.programs.port import Port, port_scope
from detrand.validation.programs.replicas import UnsharedVariablesError
from detrand.validation.programs.tf1 import tf1_program
from detrand.validation.training.noise import measure_gradient_noise, measure_training_noise
from detrand.validation.training.steps import Training, train_step_of
from detrand.validation.training.tf1 import train_in_session
from detrand.variables.sources import is_layer_or_module, parts_of

Ran = TypeVar("Ran")

INFERENCE = RunConfig(training=False, mode="num_random_ops")
TRAINING = RunConfig(training=True, mode="num_random_ops")
CONSTANT_WEIGHTS = RunConfig(training=False, weights="constant")
DISTINCT_WEIGHTS = RunConfig(training=False, weights="distinct")
CONSTANT_MODE = RunConfig(training=True, mode="constant")
# A port has run once before it is loaded; in constant mode the second run draws what the first one drew.
CHECKPOINT = RunConfig(training=False, mode="constant", weights="checkpoint")
MODES = ("num_random_ops", "constant")  # in which the programs may be trained


def run_configs_of(migration: Migration) -> tuple[RunConfig, ...]:
    """Return all run configs that the checks of a migration ask for."""
    configs = INFERENCE, TRAINING, CONSTANT_WEIGHTS, DISTINCT_WEIGHTS, CONSTANT_MODE
    return configs if migration.checkpoint is None else (*configs, CHECKPOINT)


class Reference(Protocol):
    """What the TF1 program computes."""

    def outcome(self, config: RunConfig) -> Outcome:
        """Return the outcome in a run config."""

    def noise_floor(self, config: RunConfig) -> NoiseFloor:
        """Return how far the outputs move in the config of an outcome."""

    def trace(self, config: RunConfig) -> Trace:
        """Return the ops and what they compute in the config of an outcome that comes from no checkpoint."""

    def training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Return the inputs and labels of each training step, and the training, in a mode of `MODES`."""

    def training_noise(self, mode: str, *, guided: bool) -> TrainingNoise:
        """Return how far the numbers of the training move, for a port that is left to itself or guided."""

    def hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters in the graphs that have been built; None if they are not known."""

    def optimizer_hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters of the optimizer; None if they are not known."""


def _synchronized(migration: Migration) -> str:
    """Return which layer of a port on replicas uses the moments of the whole batch, as no tower can; empty if none."""
    with port_scope(migration, INFERENCE):
        port = Port(migration)
    parts = parts_of(port.variables) if is_layer_or_module(port.variables) else []
    names = [part.name for part in parts if getattr(part, "synchronized", False)]
    return f"{names[0]} of the port is synchronized and uses the moments of the whole batch" if names else ""


class SessionReference:
    """The TF1 program, run in sessions: once for each run config, when a check first asks for it.

    Args:
      migration: the migration.
    """

    def __init__(self, migration: Migration):
        self._migration = migration
        self._whole_batch = ""  # why it runs on the whole batch, and not in towers
        if migration.strategy is not None and (synchronized := _synchronized(migration)):
            self._leave_towers(synchronized)
        self._outcomes: dict[RunConfig, Outcome] = {}
        self._hyperparameters: Hyperparameters = {}
        self._unread: Exception | None = None
        self._batches: list[tuple[Any, Any]] | None = None
        self._trainings: dict[str, Training] = {}
        self._noise_floors: dict[RunConfig, NoiseFloor] = {}
        self._training_noises: dict[tuple[str, bool], TrainingNoise] = {}

    def outcome(self, config: RunConfig) -> Outcome:
        """Return the outcome in a run config."""
        if config not in self._outcomes:
            self._outcomes[config] = self._in_towers(lambda: self._run(config))
        return self._outcomes[config]

    def _run(self, config: RunConfig) -> Outcome:
        with tf1_program(self._migration, config) as program:
            try:
                self._hyperparameters.update(hyperparameters_of_graph(program.session.graph))
            except Exception as error:  # the program can be run nevertheless
                self._unread = error
            outcome, _ = program.run()
        return dataclasses.replace(outcome, whole_batch=self._whole_batch)

    def _in_towers(self, run: Callable[[], Ran]) -> Ran:
        """Run the program in towers if it has a strategy, or on the whole batch if towers cannot share variables."""
        try:
            return run()
        except UnsharedVariablesError as error:
            self._leave_towers(str(error))
            return run()

    def _leave_towers(self, why: str) -> None:
        self._whole_batch = why
        self._migration = dataclasses.replace(self._migration, strategy=None)

    def noise_floor(self, config: RunConfig) -> NoiseFloor:
        """Return how far the outputs move in the config of an outcome."""
        if config not in self._noise_floors:
            self._noise_floors[config] = self._in_towers(lambda: measure_noise_floor(self._migration, config))
        return self._noise_floors[config]

    def trace(self, config: RunConfig) -> Trace:
        """Return the ops and what they compute in the config of an outcome that comes from no checkpoint."""
        return trace_tf1(self._migration, config)

    def hyperparameters(self) -> Hyperparameters:
        """Return the hyperparameters in the graphs that have been built; raise the error of reading them, if any."""
        if self._unread is not None:
            raise self._unread
        return self._hyperparameters

    def optimizer_hyperparameters(self) -> Hyperparameters:
        """Return the hyperparameters of the optimizer."""
        with tf.Graph().as_default():
            return hyperparameters_of_optimizer(train_step_of(self._migration).tf1_optimizer())

    def training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Return the inputs and labels of each training step, and the training."""
        if self._batches is None:
            self._batches = self._migration.training_batches()
        batches = self._batches
        if mode not in self._trainings:
            self._trainings[mode] = self._in_towers(lambda: self._train(batches, mode))
        return batches, self._trainings[mode]

    def _train(self, batches: list[tuple[Any, Any]], mode: str) -> Training:
        training = train_in_session(self._migration, batches, mode)
        if half_precision(self._migration.dtype_policy) is None:
            return training
        noise = measure_gradient_noise(self._migration, batches, mode, training)
        return dataclasses.replace(training, gradient_noise=noise)

    def training_noise(self, mode: str, *, guided: bool) -> TrainingNoise:
        """Return how far the numbers of the training move, for a port that is left to itself or guided."""
        if (mode, guided) not in self._training_noises:
            batches, training = self.training(mode)
            noise = measure_training_noise(self._migration, batches, mode, training, guided=guided)
            self._training_noises[mode, guided] = noise
        return self._training_noises[mode, guided]
