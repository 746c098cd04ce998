"""Golden files: what the TF1 programs of migrations computed, kept, so that ports are checked without running them.

A golden file has, for each migration, what `SessionReference` would answer: the outcome in every config that a check
asks for, the ops between inputs and outputs with what they computed, the hyperparameters, and how training went, with
the inputs and labels of both.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from detrand.checkpoints.loading import RestoredSession
from detrand.comparison.structures import in_numpy, load_structure, save_structure
from detrand.comparison.values import compare
from detrand.errors import MigrationError, RecordingError
from detrand.seeding.records import RandomOp
from detrand.steps.recorder import StepRecorder
from detrand.validation.batches import as_labels
from detrand.validation.diagnosis.hyperparameters import Hyperparameters
from detrand.validation.diagnosis.trace import Trace
from detrand.validation.migration import Migration, TrainStep
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, TrainingNoise
from detrand.validation.programs.outcome import Origin, Outcome, RunConfig
from detrand.validation.programs.replicas import Replicas
from detrand.validation.reference import MODES, SessionReference, run_configs_of
from detrand.validation.training.steps import Training
from detrand.variables.spec import VariableSpec

_KIND = "golden outcomes of TF1 programs"


def record_golden(migrations: Sequence[Migration], path: str | os.PathLike[str]) -> None:
    """Runs the TF1 programs of migrations in all run configs, and saves what they compute.

    Args:
      migrations: at least one, each with a name of its own.
      path: the file; one that is there already is replaced.

    Raises:
      MigrationError: if a TF1 program cannot be run, or two migrations have one name.
      RecordingError: if the file cannot be written.
    """
    names = [migration.name for migration in migrations]
    for name in names:
        if names.count(name) > 1:
            raise MigrationError(f"two migrations are named {name!r}, and a golden file goes by names; pass name=")
    content = {
        "tensorflow": metadata.version("tensorflow"),
        "migrations": {migration.name: _recorded(migration) for migration in migrations},
    }
    save_structure(path, _KIND, content)


def _recorded(migration: Migration) -> dict[str, Any]:
    tf1 = SessionReference(migration)
    recorded: dict[str, Any] = {
        "seed": migration.seed,
        "inputs": migration.first_batch(),
        "replicas": Replicas(migration.name, migration.strategy).count,
        "outcomes": [_outcome_recorded(config, tf1.outcome(config)) for config in run_configs_of(migration)],
        "traces": [],
        "trainings": None,
        "noise_floors": None,
    }
    if migration.dtype_policy is None:  # under one, no tensor between has the numbers of TF1's
        configs = [tf1.outcome(config).config for config in run_configs_of(migration) if not config.from_checkpoint]
        recorded["traces"] = [_trace_recorded(config, tf1.trace(config)) for config in configs]
    recorded["hyperparameters"] = _hyperparameters_recorded(tf1.hyperparameters)
    if migration.tolerances == "auto":
        configs = [tf1.outcome(config).config for config in run_configs_of(migration)]
        recorded["noise_floors"] = [_floor_recorded(config, tf1.noise_floor(config)) for config in configs]
    if migration.train is not None:
        trainings = {mode: tf1.training(mode) for mode in MODES}
        batches, _ = trainings["constant"]
        recorded["batches"] = batches[: _period(batches)]
        recorded["steps"] = len(batches)
        recorded["var_list"] = list(migration.train.var_list or ())
        recorded["optimizer_hyperparameters"] = _hyperparameters_recorded(tf1.optimizer_hyperparameters)
        recorded["trainings"] = {mode: _training_recorded(training) for mode, (_, training) in trainings.items()}
        if migration.tolerances == "auto":
            recorded["training_noises"] = [
                {"mode": mode, "guided": guided, **_noise_recorded(tf1.training_noise(mode, guided=guided))}
                for mode in MODES
                for guided in (False, True)
            ]
    recorded["not_towers"] = tf1.not_towers
    return in_numpy(recorded, migration.name)


def _period(batches: list[tuple[Any, Any]]) -> int:
    """Returns after how many steps the batches start over."""
    for period in range(1, len(batches)):
        again = itertools.cycle(batches[:period])
        if all(one is other for pair in zip(batches, again, strict=False) for one, other in zip(*pair, strict=True)):
            return period
    return len(batches)


def _outcome_recorded(asked: RunConfig, outcome: Outcome) -> dict[str, Any]:
    restored = outcome.restored
    return {
        "asked": dataclasses.asdict(asked),
        "config": dataclasses.asdict(outcome.config),
        "outputs": outcome.outputs,
        "regularization_loss": outcome.regularization_loss,
        "variables": {name: dataclasses.astuple(spec) for name, spec in outcome.variables.items()},
        "random_ops": [dataclasses.astuple(op) for op in outcome.random_ops],
        "initialized": dict(outcome.initialized),
        "changed": dict(outcome.changed),
        "origins": {path: tuple(origin) for path, origin in outcome.origins.items()},
        "restored": None if restored is None else [dict(restored.port_names), restored.unused],
    }


def _outcome(recorded: dict[str, Any]) -> Outcome:
    restored = recorded["restored"]
    return Outcome(
        config=RunConfig(**recorded["config"]),
        outputs=recorded["outputs"],
        regularization_loss=recorded["regularization_loss"],
        variables={name: VariableSpec(*spec) for name, spec in recorded["variables"].items()},
        random_ops=tuple(RandomOp(*op) for op in recorded["random_ops"]),
        initialized=dict(recorded.get("initialized", {})),
        changed=dict(recorded.get("changed", {})),
        restored=None if restored is None else RestoredSession(*restored),
        origins={path: Origin(*origin) for path, origin in recorded["origins"].items()},
    )


def _floor_recorded(config: RunConfig, floor: NoiseFloor) -> dict[str, Any]:
    outputs = {path: dataclasses.asdict(noise) for path, noise in floor.outputs.items()}
    return {"config": dataclasses.asdict(config), "outputs": outputs, "remarks": floor.remarks}


def _floor(recorded: dict[str, Any]) -> NoiseFloor:
    return NoiseFloor({path: OutputNoise(**noise) for path, noise in recorded["outputs"].items()}, recorded["remarks"])


def _trace_recorded(config: RunConfig, trace: Trace) -> dict[str, Any]:
    # In constant mode, the same initializers draw again.
    recorded = trace.recorded(joined_variables=config.mode == "num_random_ops")
    return {"config": dataclasses.asdict(config), "trace": recorded}


def _hyperparameters_recorded(read: Callable[[], Hyperparameters]) -> list[tuple[str, str, Any]] | None:
    try:
        return [(of, name, value) for (of, name), value in read().items()]
    except Exception:  # the audit says that it has none; what the program computes is worth keeping
        return None


def _noise_recorded(noise: TrainingNoise) -> dict[str, Any]:
    steps = [{path: dataclasses.asdict(of_path) for path, of_path in step.items()} for step in noise.steps]
    return {"steps": steps, "remarks": noise.remarks}


def _noise(recorded: dict[str, Any]) -> TrainingNoise:
    steps = [{path: OutputNoise(**of_path) for path, of_path in step.items()} for step in recorded["steps"]]
    return TrainingNoise(tuple(steps), recorded["remarks"])


def _training_recorded(training: Training) -> dict[str, Any]:
    return {
        "steps": {step: dict(training.recorder[step]) for step in training.recorder.steps},
        "cannot_tell": sorted(training.cannot_tell),
        "variables": training.variables,
        "gradient_noise": [dict(noise) for noise in training.gradient_noise],
    }


def _training(recorded: dict[str, Any]) -> Training:
    recorder = StepRecorder()
    for step, values in recorded["steps"].items():
        recorder.record(step, **values)
    return Training(
        recorder, frozenset(recorded["cannot_tell"]), recorded["variables"], tuple(recorded["gradient_noise"])
    )


class GoldenReference:
    """The TF1 program of a migration, as a golden file has it; none is run.

    Args:
      path: the golden file.
      migration: the migration. If its inputs or labels are arrays, they must be those that were recorded; functions
        that give them are not called.

    Attributes:
      migration: the migration with the inputs that were recorded.
      not_towers: why the TF1 program ran as it is, though the migration has a strategy; empty if it did not.
      tensorflow: version of TensorFlow that the TF1 program was run by.

    Raises:
      RecordingError: if the file cannot be read, or was recorded of another migration.
    """

    def __init__(self, path: str | os.PathLike[str], migration: Migration):
        content = load_structure(path, _KIND)
        self._path = os.fsdecode(path)
        self._name = migration.name
        self.tensorflow: str = content["tensorflow"]
        if migration.name not in content["migrations"]:
            names = ", ".join(map(repr, content["migrations"]))
            raise RecordingError(f"{self._path} holds nothing of the migration {migration.name!r}; it holds {names}")
        recorded = content["migrations"][migration.name]
        self._check_same("seed", migration.seed, recorded["seed"])
        if not callable(migration.inputs):
            self._check_same("inputs", migration.first_batch(), recorded["inputs"])
        self._check_same("strategy", Replicas(migration.name, migration.strategy).count, recorded["replicas"])
        self.not_towers: str = recorded["not_towers"]
        self.migration = dataclasses.replace(migration, inputs=lambda: [recorded["inputs"]])
        self._outcomes = {RunConfig(**one["asked"]): _outcome(one) for one in recorded["outcomes"]}
        for config in run_configs_of(migration):
            if config not in self._outcomes and not config.distinct_weights:  # which are recorded later than the rest
                raise self._recorded("without the checkpoint" if config.from_checkpoint else f"without {config}")
        floors = recorded.get("noise_floors")
        if migration.tolerances == "auto" and floors is None:
            raise self._recorded("without its noise floor, which --tolerance auto records")
        self._noise_floors = {RunConfig(**one["config"]): _floor(one) for one in floors or ()}
        # What follows has been recorded later than what is above.
        traces = recorded.get("traces", ())
        self._traces = {RunConfig(**one["config"]): Trace.from_record(one["trace"]) for one in traces}
        self._hyperparameters = _hyperparameters(recorded.get("hyperparameters"))
        self._optimizer_hyperparameters = _hyperparameters(recorded.get("optimizer_hyperparameters"))
        if migration.train is not None:
            self._read_training(migration.train, recorded)

    def _read_training(self, train: TrainStep, recorded: dict[str, Any]) -> None:
        if recorded["trainings"] is None:
            raise self._recorded("without training")
        self._check_same("train.steps", train.steps, recorded["steps"])
        if list(train.var_list or ()) != list(recorded.get("var_list", ())):
            raise self._recorded("with other train.var_list")
        self._batches = list(itertools.islice(itertools.cycle(recorded["batches"]), recorded["steps"]))
        noises = recorded.get("training_noises")
        if self.migration.tolerances == "auto" and noises is None:
            raise self._recorded("without the noise floor of its training, which --tolerance auto records")
        self._training_noises = {(one["mode"], one["guided"]): _noise(one) for one in noises or ()}
        if not callable(train.labels):
            self._check_same("train.labels", as_labels(train.labels), self._batches[0][1])
        self._trainings = {mode: _training(one) for mode, one in recorded["trainings"].items()}

    def _check_same(self, what: str, given: Any, recorded: Any) -> None:
        if not compare(given, recorded, rtol=0, atol=0, equal_nan=True):
            raise self._recorded(f"with other {what}")

    def _recorded(self, how: str) -> RecordingError:
        return RecordingError(
            f"{self._path} was recorded of the migration {self._name!r} {how}; record it anew, or give the migration "
            "what it had then"
        )

    def outcome(self, config: RunConfig) -> Outcome:
        """Returns what the TF1 program did in a config."""
        return self._outcomes[config]

    def has(self, config: RunConfig) -> bool:
        """Returns whether the file has what it did in a config."""
        return config in self._outcomes

    def noise_floor(self, config: RunConfig) -> NoiseFloor:
        """Returns how far its outputs moved in a config."""
        return self._noise_floors[config]

    def training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Returns the inputs and labels of each training step, and how training the TF1 program went."""
        return self._batches, self._trainings[mode]

    def training_noise(self, mode: str, *, guided: bool) -> TrainingNoise:
        """Returns how far the numbers of its training moved."""
        return self._training_noises[mode, guided]

    def trace(self, config: RunConfig) -> Trace:
        """Returns its ops and what they computed in a config, of large tensors some elements.

        Raises:
          RecordingError: if a detrand has recorded the file that did not keep them.
        """
        if config not in self._traces:
            raise RecordingError(f"{self._path} does not hold what is between inputs and outputs; record it anew")
        return self._traces[config]

    def hyperparameters(self) -> Hyperparameters | None:
        """Returns what was set in it; None if the file does not hold that."""
        return self._hyperparameters

    def optimizer_hyperparameters(self) -> Hyperparameters | None:
        """Returns what its optimizer was set to; None if the file does not hold that."""
        return self._optimizer_hyperparameters


def _hyperparameters(recorded: list[tuple[str, str, Any]] | None) -> Hyperparameters | None:
    return None if recorded is None else {(of, name): value for of, name, value in recorded}
