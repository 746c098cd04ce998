"""Golden files: the numbers of the TF1 programs of migrations, so that ports can be checked without running TF1.

`record_golden` writes a golden file, and `GoldenReference` answers from it. For each migration it holds what a
`SessionReference` answers: the outcome in every run config, the ops between inputs and outputs with their values, the
hyperparameters, and the training, with the inputs and labels of both.
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
from detrand.seeding.streams import RandomOp
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
_VERSION = 2
# A file holds instances of these as named tuples; `_revived` makes them what they were.
_CLASSES = (
    NoiseFloor,
    Origin,
    Outcome,
    OutputNoise,
    RandomOp,
    RestoredSession,
    RunConfig,
    TrainingNoise,
    VariableSpec,
)
_RECORDED = {each.__name__: each for each in _CLASSES}


def record_golden(migrations: Sequence[Migration], path: str | os.PathLike[str]) -> None:
    """Run the TF1 programs of migrations in all run configs, and save what they compute.

    Args:
      migrations: at least one, each with a name of its own.
      path: the golden file; a file that exists is replaced.

    Raises:
      MigrationError: if a TF1 program cannot be run, or two migrations have one name.
      RecordingError: if the file cannot be written.
    """
    names = [migration.name for migration in migrations]
    for name in names:
        if names.count(name) > 1:
            raise MigrationError(
                f"two migrations are named {name!r}, but a golden file holds one migration for each name; pass name="
            )
    content = {
        "version": _VERSION,
        "tensorflow": metadata.version("tensorflow"),
        "migrations": {migration.name: _recorded(migration) for migration in migrations},
    }
    save_structure(path, _KIND, content)


def _recorded(migration: Migration) -> dict[str, Any]:
    tf1 = SessionReference(migration)
    outcomes = {config: tf1.outcome(config) for config in run_configs_of(migration)}
    configs = [outcome.config for outcome in outcomes.values()]
    measured = migration.tolerances == "auto"
    # Under a dtype policy, no tensor in between has TF1's numbers.
    traced = [] if migration.dtype_policy is not None else [each for each in configs if each.weights != "checkpoint"]
    recorded = {
        "seed": migration.seed,
        "inputs": migration.first_batch(),
        "replicas": Replicas(migration.name, migration.strategy).count,
        "outcomes": list(outcomes.items()),
        # In constant mode, the same initializers draw again.
        "traces": [
            (config, tf1.trace(config).recorded(variables_in_full=config.mode == "num_random_ops")) for config in traced
        ],
        "hyperparameters": _as_triples(tf1.hyperparameters),
        "noise_floors": [(config, tf1.noise_floor(config)) for config in configs] if measured else None,
        "training": None if migration.train is None else _recorded_training(tf1, migration.train, measured),
    }
    return in_numpy(recorded, migration.name)


def _recorded_training(tf1: SessionReference, train: TrainStep, measured: bool) -> dict[str, Any]:
    batches, _ = tf1.training("constant")
    ways = [(mode, guided) for mode in MODES for guided in (False, True)]
    return {
        "batches": batches[: _period(batches)],
        "steps": len(batches),
        "var_list": list(train.var_list or ()),
        "hyperparameters": _as_triples(tf1.optimizer_hyperparameters),
        "modes": [(mode, _training_as_dict(tf1.training(mode)[1])) for mode in MODES],
        "noise_floors": [(*way, tf1.training_noise(way[0], guided=way[1])) for way in ways] if measured else None,
    }


def _period(batches: list[tuple[Any, Any]]) -> int:
    """Return after how many steps the batches start over."""
    for period in range(1, len(batches)):
        again = itertools.cycle(batches[:period])
        if all(one is other for pair in zip(batches, again, strict=False) for one, other in zip(*pair, strict=True)):
            return period
    return len(batches)


def _training_as_dict(training: Training) -> dict[str, Any]:
    return {
        "steps": {step: dict(training.recorder[step]) for step in training.recorder.steps},
        "not_exposed": sorted(training.not_exposed),
        "gradient_noise": tuple(dict(noise) for noise in training.gradient_noise),
    }


def _training_from_dict(recorded: dict[str, Any]) -> Training:
    recorder = StepRecorder()
    for step, values in recorded["steps"].items():
        recorder.record(step, **values)
    return Training(recorder, frozenset(recorded["not_exposed"]), tuple(recorded["gradient_noise"]))


def _as_triples(read: Callable[[], Hyperparameters]) -> list[tuple[str, str, Any]] | None:
    try:
        return [(of, name, value) for (of, name), value in read().items()]
    except Exception:  # the audit reports that there are none; the outcomes are worth keeping
        return None


def _from_triples(recorded: list[tuple[str, str, Any]] | None) -> Hyperparameters | None:
    return None if recorded is None else {(of, name): value for of, name, value in recorded}


def _revived(value: Any) -> Any:
    """Return a structure with the named tuples of a file as instances of the classes in `_RECORDED`."""
    if isinstance(value, dict):
        return {key: _revived(child) for key, child in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {name: _revived(getattr(value, name)) for name in value._fields}
        return _RECORDED.get(type(value).__name__, type(value))(**fields)
    if isinstance(value, (list, tuple)):
        return type(value)(_revived(child) for child in value)
    return value


class GoldenReference:
    """The TF1 program of a migration as a golden file holds it; TF1 is not run.

    Args:
      path: the golden file.
      migration: the migration. If its inputs or labels are arrays, they must be those that were recorded; functions
        that return them are not called.

    Attributes:
      migration: the migration with the inputs that were recorded.
      tensorflow: version of TensorFlow that ran the TF1 program.

    Raises:
      RecordingError: if the file cannot be read, or was recorded of a different migration.
    """

    def __init__(self, path: str | os.PathLike[str], migration: Migration):
        content = load_structure(path, _KIND)
        self._path = os.fsdecode(path)
        self._name = migration.name
        if content.get("version") != _VERSION:
            raise RecordingError(f"{self._path} was recorded by a different version of detrand; record it again")
        self.tensorflow: str = content["tensorflow"]
        if migration.name not in content["migrations"]:
            names = ", ".join(map(repr, content["migrations"]))
            raise RecordingError(
                f"{self._path} does not hold the migration {migration.name!r}; it holds {names}; record it again, or "
                "pass the name that it had as Migration(name=...)"
            )
        recorded = _revived(content["migrations"][migration.name])
        self._check_same("seed", migration.seed, recorded["seed"])
        if not callable(migration.inputs):
            self._check_same("inputs", migration.first_batch(), recorded["inputs"])
        self._check_same("strategy", Replicas(migration.name, migration.strategy).count, recorded["replicas"])
        self.migration = dataclasses.replace(migration, inputs=lambda: [recorded["inputs"]])
        self._outcomes: dict[RunConfig, Outcome] = dict(recorded["outcomes"])
        for config in run_configs_of(migration):
            if config not in self._outcomes:
                missing = "the checkpoint" if config.weights == "checkpoint" else config
                raise self._recorded(f"without {missing}")
        self._traces = {config: Trace.from_record(trace) for config, trace in recorded["traces"]}
        self._hyperparameters = _from_triples(recorded["hyperparameters"])
        if migration.tolerances == "auto" and recorded["noise_floors"] is None:
            raise self._recorded("without its noise floor, which --tolerance auto records")
        self._noise_floors: dict[RunConfig, NoiseFloor] = dict(recorded["noise_floors"] or ())
        if migration.train is not None:
            if recorded["training"] is None:
                raise self._recorded("without training")
            self._read_training(migration.train, recorded["training"])

    def _read_training(self, train: TrainStep, recorded: dict[str, Any]) -> None:
        self._check_same("train.steps", train.steps, recorded["steps"])
        if list(train.var_list or ()) != recorded["var_list"]:
            raise self._recorded("with a different train.var_list")
        self._batches = list(itertools.islice(itertools.cycle(recorded["batches"]), recorded["steps"]))
        if not callable(train.labels):
            self._check_same("train.labels", as_labels(train.labels), self._batches[0][1])
        if self.migration.tolerances == "auto" and recorded["noise_floors"] is None:
            raise self._recorded("without the noise floor of its training, which --tolerance auto records")
        self._trainings = {mode: _training_from_dict(training) for mode, training in recorded["modes"]}
        self._training_noises: dict[tuple[str, bool], TrainingNoise] = {
            (mode, guided): noise for mode, guided, noise in recorded["noise_floors"] or ()
        }
        self._optimizer_hyperparameters = _from_triples(recorded["hyperparameters"])

    def _check_same(self, what: str, given: Any, recorded: Any) -> None:
        if not compare(given, recorded, rtol=0, atol=0, equal_nan=True):
            raise self._recorded(f"with different {what}")

    def _recorded(self, how: str) -> RecordingError:
        return RecordingError(
            f"{self._path} was recorded of the migration {self._name!r} {how}; record it again, or give the migration "
            "what it had then"
        )

    def outcome(self, config: RunConfig) -> Outcome:
        """Return the outcome in a run config."""
        return self._outcomes[config]

    def noise_floor(self, config: RunConfig) -> NoiseFloor:
        """Return how far the outputs moved in the config of an outcome."""
        return self._noise_floors[config]

    def trace(self, config: RunConfig) -> Trace:
        """Return the ops and what they computed in the config of an outcome; of large tensors, some elements."""
        return self._traces[config]

    def training(self, mode: str) -> tuple[list[tuple[Any, Any]], Training]:
        """Return the inputs and labels of each training step, and the training."""
        return self._batches, self._trainings[mode]

    def training_noise(self, mode: str, *, guided: bool) -> TrainingNoise:
        """Return how far the numbers of the training moved."""
        return self._training_noises[mode, guided]

    def hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters; None if they could not be read when the file was recorded."""
        return self._hyperparameters

    def optimizer_hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters of the optimizer; None if they could not be read when the file was recorded."""
        return self._optimizer_hyperparameters
