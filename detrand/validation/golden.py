"""Golden files: the numbers of the TF1 programs of migrations, so that ports can be checked without running TF1.

`record_golden` writes a golden file. `read_golden` makes a `Reference` of it, which needs no session: for each
migration, the file holds the outcome in every run config, the ops between inputs and outputs with their values, the
hyperparameters, and the training, with the inputs and labels of both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from detrand.checkpoints.pairing import RestoredSession
from detrand.comparison.structures import in_numpy, load_structure, save_structure
from detrand.comparison.values import compare
from detrand.errors import MigrationError, RecordingError, passing_over
from detrand.seeding.streams import RandomOp
from detrand.validation.audit.hyperparameters import Hyperparameters
from detrand.validation.batches import as_batch, as_labels, batches_of
from detrand.validation.frameworks.traces import Trace, TracedOp, Value
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, TrainingNoise
from detrand.validation.programs.activations import Activation
from detrand.validation.programs.distinct_weights import Scale
from detrand.validation.programs.outcome import Origin, Outcome, RunConfig
from detrand.validation.programs.replicas import Replicas
from detrand.validation.reference import CHECKPOINT, DISTINCT_TRAINING, MODES, Reference, run_configs_of
from detrand.validation.training.probe import ProbeOfTF1
from detrand.validation.training.steps import Training
from detrand.variables.spec import VariableSpec

_KIND = "golden outcomes of TF1 programs"
_VERSION = 18
# A file holds instances of these as named tuples; `_revived` makes them what they were.
_CLASSES = (
    *(Activation, NoiseFloor, Origin, Outcome, OutputNoise, RandomOp, RestoredSession, RunConfig),
    *(ProbeOfTF1, Scale, Trace, TracedOp, Training, TrainingNoise, Value, VariableSpec),
)
_RECORDED = {each.__name__: each for each in _CLASSES}


def record_golden(migrations: Sequence[Migration], path: str | os.PathLike[str]) -> None:
    """Run the TF1 programs of migrations in all run configs, and save what they compute; a file is replaced.

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
    train = migration.train
    recorded = {
        "seed": migration.seed,
        "seed_numpy": migration.seed_numpy,
        "replicas": Replicas(migration.name, migration.strategy).count,
        "measured": migration.measures_rounding,
        "inputs": batches_of("inputs", migration.inputs, as_batch, 1 if train is None else train.steps),
        "labels": None if train is None else batches_of("labels", train.labels, as_labels, train.steps),
        "steps": None if train is None else train.steps,
        "var_list": None if train is None else list(train.var_list or ()),
        "answers": list(_answers(migration)),
    }
    return in_numpy(recorded, migration.name)


def _answers(migration: Migration) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each question that the checks of a migration ask its reference, and the answer in the form of a file."""
    tf1 = Reference(migration)
    for asked in run_configs_of(migration):
        outcome = tf1.outcome(asked)
        config = outcome.config
        yield ("run", asked), (outcome, {})
        yield ("noise_floor", config), tf1.noise_floor(outcome)
        if config.weights != "checkpoint":
            yield ("trace", config), tf1.trace(config).sampled()
    yield ("hyperparameters",), _items(tf1.hyperparameters)
    if migration.train is not None:
        yield ("optimizer_hyperparameters",), _items(tf1.optimizer_hyperparameters)
        with passing_over():  # a loss that cannot be traced can be trained
            depends_on_step = "global_step" in tf1.trace_of_loss().ops
            for step in range(migration.train.steps if depends_on_step else 1):
                yield ("trace of loss", step), tf1.of_step(step).trace_of_loss().sampled()
            yield ("trace of loss", DISTINCT_TRAINING), tf1.of_other_outputs().trace_of_loss().sampled()
        yield ("probe",), _probe(tf1)
        for mode in MODES:
            yield ("training", mode), tf1.training(mode)
            yield ("training_noise", mode), tf1.training_noise(mode)


def _probe(tf1: Reference) -> ProbeOfTF1 | None:
    with passing_over():  # an optimizer that cannot be probed can train
        return tf1.probe()
    return None


def _items(read: Callable[[], Hyperparameters | None]) -> list[tuple[Any, Any]] | None:
    with passing_over():  # the audit reports that there are none; the outcomes are worth keeping
        return list((read() or {}).items())
    return None


class Golden(NamedTuple):
    """What a golden file holds of a migration.

    Attributes:
      migration: the migration with the inputs and labels that were recorded; functions that return them are not called.
      tf1: what the TF1 program computes.
      tensorflow: version of TensorFlow that ran the TF1 program.
    """

    migration: Migration
    tf1: Reference
    tensorflow: str


def read_golden(path: str | os.PathLike[str], migration: Migration) -> Golden:
    """Return what a golden file holds of a migration.

    Raises:
      RecordingError: if the file cannot be read, or was recorded of a different migration.
    """
    content = load_structure(path, _KIND)
    file, name, train = os.fsdecode(path), migration.name, migration.train
    if content.get("version") != _VERSION:
        raise RecordingError(f"{file} was recorded by a different version of detrand; record it again")
    if name not in content["migrations"]:
        names = ", ".join(map(repr, content["migrations"]))
        raise RecordingError(
            f"{file} does not hold the migration {name!r}; it holds {names}; record it again, or pass the name that it "
            "had as Migration(name=...)"
        )
    recorded = _revived(content["migrations"][name])
    answers = dict(recorded["answers"])
    for question in (("hyperparameters",), ("optimizer_hyperparameters",)):
        if answers.get(question) is not None:
            answers[question] = dict(answers[question])
    for difference in _differences(migration, recorded, has_checkpoint=("run", CHECKPOINT) in answers):
        raise RecordingError(
            f"{file} was recorded of the migration {name!r} {difference}; record it again, or restore what the "
            "migration had then"
        )
    if train is not None:
        train = dataclasses.replace(train, labels=_given(recorded["labels"]))
    migration = dataclasses.replace(migration, inputs=_given(recorded["inputs"]), train=train)
    return Golden(migration, Reference(migration, answers), content["tensorflow"])


def _given(batches: list[Any]) -> Any:
    """Return batches in a form that a migration accepts."""
    return batches[0] if len(batches) == 1 else lambda: batches


def _differences(migration: Migration, recorded: dict[str, Any], *, has_checkpoint: bool) -> Iterator[str]:
    """Yield how the migration that was recorded differs from a migration."""
    if migration.seed != recorded["seed"]:
        yield "with different seed"
    if migration.seed_numpy != recorded["seed_numpy"]:
        yield "with different seed_numpy"
    if not callable(migration.inputs) and not _same(as_batch(migration.inputs), recorded["inputs"][0]):
        yield "with different inputs"
    if Replicas(migration.name, migration.strategy).count != recorded["replicas"]:
        yield "with different strategy"
    if migration.checkpoint is not None and not has_checkpoint:
        yield "without the checkpoint"
    if migration.measures_rounding and not recorded["measured"]:
        yield "with tolerances, so without TF1's rounding"
    if (train := migration.train) is not None:
        if recorded["steps"] is None:
            yield "without training"
        if train.steps != recorded["steps"]:
            yield "with different train.steps"
        if list(train.var_list or ()) != recorded["var_list"]:
            yield "with a different train.var_list"
        if not callable(train.labels) and not _same(as_labels(train.labels), recorded["labels"][0]):
            yield "with different train.labels"


def _same(given: Any, recorded: Any) -> bool:
    return compare(given, recorded, rtol=0, atol=0, equal_nan=True).ok


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
