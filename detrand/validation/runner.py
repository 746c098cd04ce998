"""`Runner`: both programs of a migration, run once for each config however many checks ask."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from detrand.comparison.values import leaves_by_path
from detrand.errors import ArgumentError
from detrand.random_op_diff import op_seeds_of_counterparts
from detrand.validation.diagnosis.audit import audit
from detrand.validation.diagnosis.divergence import Divergence, find_divergence
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, TrainingNoise
from detrand.validation.programs.outcome import Outcome, RunConfig, cached
from detrand.validation.programs.port import run_port, run_port_from_checkpoint, run_port_in_functional_model
from detrand.validation.reference import DISTINCT_WEIGHTS, INFERENCE, TRAINING, Reference, SessionReference
from detrand.validation.results import Audit
from detrand.validation.training.port import check_trainable, make_port_optimizer
from detrand.validation.training.steps import Training


class Runner:
    """Both programs' outcomes, each computed when a check first asks for it.

    Args:
      migration: the migration.
      tf1: its TF1 side; run in sessions by default.
    """

    def __init__(self, migration: Migration, tf1: Reference | None = None):
        self.migration = migration
        self._tf1 = tf1 or SessionReference(migration)
        self._port = cached(run_port)
        self._audit: Audit | None = None

    def tf1(self, config: RunConfig) -> Outcome:
        """Returns what the TF1 program does."""
        return self._tf1.outcome(config)

    def tf1_with_distinct_weights(self) -> Outcome | None:
        """Returns what the TF1 program does with weights of its own in each variable; None if a file does not tell."""
        return self._tf1.outcome(DISTINCT_WEIGHTS) if self._tf1.has(DISTINCT_WEIGHTS) else None

    @property
    def not_towers(self) -> str:
        """Why the TF1 program has run as it is, though the port is on replicas; empty if it has not."""
        return self._tf1.not_towers

    def port(self, config: RunConfig) -> Outcome:
        """Returns what the port does, called directly.

        If it has the random ops of the TF1 program in another order, each draws what its counterpart does; the
        outcome's config has the op seeds.
        """
        outcome = self._port(self.migration, config)
        if config.mode == "num_random_ops":
            tf1 = self.tf1(config)
            tf1_names: dict[str | None, str] = {}
            with contextlib.suppress(ArgumentError):  # of name_map: to pair variables raises it again, and tells of it
                tf1_names = self.migration.tf1_names(tf1.variables)
            initialized = {seed: tf1_names.get(name, name) for seed, name in outcome.initialized.items()}
            op_seeds = op_seeds_of_counterparts(tf1.random_ops, outcome.random_ops, tf1.initialized, initialized)
            if op_seeds:
                return self._port(self.migration, replace(config, op_seeds=op_seeds))
        return outcome

    def embedded_port(self, config: RunConfig) -> Outcome | None:
        """Returns what the port does inside a Keras functional model, None if it cannot be part of one."""
        if self.migration.strategy is not None:  # such a model would be made outside of its replicas
            return None
        return run_port_in_functional_model(self.migration, config)

    def noise_floor(self, tf1: Outcome) -> NoiseFloor | None:
        """Returns how far TF1's outputs move in the config of an outcome; None if that is not asked for."""
        return self._tf1.noise_floor(tf1.config) if self.migration.tolerances == "auto" else None

    def training_noise(self, mode: str, *, guided: bool = False) -> TrainingNoise | None:
        """Returns how far the numbers of TF1's training move; None if that is not asked for."""
        return self._tf1.training_noise(mode, guided=guided) if self.migration.tolerances == "auto" else None

    def divergence(self, config: RunConfig, differing: Collection[str]) -> Divergence | None:
        """Returns where the programs part in a config; None if they do not.

        Args:
          config: how they are run.
          differing: the paths of the outputs that differ.
        """
        tf1 = self._tf1.trace(replace(config, op_seeds=()))
        if self.migration.dtype_policy is not None and tf1.noise is None:  # a golden file may not have it
            return None
        return find_divergence(self.migration, config, tf1, differing)

    def check_tolerances(self) -> None:
        """Checks that the migration's tolerances are of outputs that the TF1 program has, in inference or in training.

        Raises:
          MigrationError: if one is not.
        """
        tolerances = self.migration.output_tolerances
        if tolerances.patterns:
            outcomes = [self.tf1(config) for config in (INFERENCE, TRAINING)]
            paths = [path for outcome in outcomes for path in leaves_by_path(outcome.outputs)]
            tolerances.check_patterns(self.migration.name, list(dict.fromkeys(paths)))

    def audit(self) -> Audit:
        """Returns what is set in both programs, side by side."""
        if self._audit is None:
            for config in (
                INFERENCE,
                TRAINING,
            ):  # whose graphs tell; a check that fails may ask before either is built
                self.tf1(config)
            self._audit = audit(self.migration, self._tf1.hyperparameters, self._tf1.optimizer_hyperparameters)
        return self._audit

    def prepare_training(self) -> None:
        """Trains the TF1 program as far as that does not depend on the port, and looks whether the port can be trained.

        Raises:
          MigrationError: if that cannot be done.
        """
        make_port_optimizer(self.migration)
        _, tf1 = self.tf1_training("num_random_ops")
        check_trainable(self.migration, tf1)

    def tf1_training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Returns the batches that both programs are trained with, and how training the TF1 program went."""
        return self._tf1.training(mode)

    def port_from_checkpoint(self, tf1: Outcome) -> Outcome:
        """Returns what the port does with the weights that the TF1 program had from the checkpoint."""
        return run_port_from_checkpoint(self.migration, tf1)
