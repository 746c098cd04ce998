"""Measures the noise floor of a TF1 program's training: how far the numbers of each step move.

The training is repeated in the ways of `detrand.validation.noise.variants`. Left to itself, what each step adds is
there in the next ones, too, as it is for a port that is left to itself. A port that is guided begins each step with the
variables that the TF1 program had, and its optimizer gets that program's gradients: so do the repetitions then. They
compute outputs, losses and gradients of their own in one session; in another one their optimizers are fed the
gradients of the TF1 program, and have the slots that come of these. Where weights are off by an ULP, the optimizer's
settings are, too, once up and once down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.comparison.values import leaves_by_path
from detrand.seeding.callsite import describe_error
from detrand.steps.recorder import StepRecorder
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise, path_in_step
from detrand.validation.noise.measurement import Noise, remark
from detrand.validation.noise.variants import OFF_BY_AN_ULP, WAYS, Rerun, Snapshot, Variant
from detrand.validation.training.steps import Training, record_step
from detrand.validation.training.tf1 import TrainingGraph, training_graph

_OF_UPDATE = ("weights", "slots")


def measure_training_noise(
    migration: Migration, batches: Sequence[Any], mode: str, tf1: Training, *, guided: bool
) -> TrainingNoise:
    """Repeats the training of the TF1 program in several ways, and measures how far the numbers of each step move.

    Args:
      migration: the migration.
      batches: inputs and labels of each step.
      mode: of the `DeterministicRandomTestTool`.
      tf1: how training the TF1 program went: the reference.
      guided: whether each step begins with the reference's variables, and updates by its gradients.

    Raises:
      MigrationError: if the training cannot be built.
    """
    noises = [Noise(_by_path(tf1.recorder[step]), _kind_of) for step in tf1.recorder.steps]
    remarks: dict[str, str] = {}
    with training_graph(migration, batches[0], mode) as graph:
        snapshot = Snapshot.of(graph.session)
        for way, vary in WAYS.items():
            left_out: dict[str, float] = {}
            try:
                variant = vary(snapshot)
                if variant is None:
                    continue
                for towards in (-np.inf, np.inf) if way == OFF_BY_AN_ULP else (None,):
                    settings = graph.hyperparameters if towards is None else _next(graph.hyperparameters, towards)
                    repeated = _repeated(graph, snapshot, variant, batches, tf1, settings, guided)
                    for step, found in enumerate(repeated):
                        moved = noises[step].add(way, found)
                        left_out |= {f"step {step}, {path}": difference for path, difference in moved.items()}
            except Exception as error:  # one way less; the report says so
                remarks[way] = f"cannot be run: {describe_error(error)}"
                continue
            said = remark(variant.remark, left_out, sum(len(noise.outputs) for noise in noises))
            if said:
                remarks[way] = said
    return TrainingNoise(tuple(noise.outputs for noise in noises), remarks)


def _kind_of(path: str) -> str:
    """Returns the kind of a step's numbers: gradients are one, and so is each slot."""
    return path.rpartition("[")[0] if path.startswith(("gradients[", "slots[")) else path


def _repeated(
    graph: TrainingGraph,
    snapshot: Snapshot,
    variant: Variant,
    batches: Sequence[Any],
    tf1: Training,
    settings: dict[str, np.ndarray],
    guided: bool,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the numbers of each step, by their paths; the optimizer has other settings."""
    if not guided:
        with Rerun(snapshot, variant) as rerun:
            for batch in batches:
                yield _by_path(_step(graph, rerun, batch, settings))
        return
    with Rerun(snapshot, variant) as computing, Rerun(snapshot, variant) as updating:
        for step, batch in enumerate(batches):
            if step:
                former = tf1.recorder[step - 1]
                variables = _parts(graph, {**former["weights"], **former.get("moving_averages", {})})
                computing.assign(variables)
                updating.assign(variables)
            found = _by_path(_step(graph, computing, batch, {}))
            given = _given_gradients(graph, tf1.recorder[step]["gradients"])
            updated = _by_path(_step(graph, updating, batch, given | settings))
            yield {path: (updated if path.startswith(_OF_UPDATE) else found)[path] for path in found}


def _next(settings: dict[str, np.ndarray], towards: float) -> dict[str, np.ndarray]:
    """Returns the next numbers of the optimizer's settings, in one direction.

    In a port, they may be rounded to float32 later than in TF1, and ``1 - beta2`` is then 1e-5 off, in proportion. What
    TF1 keeps of powers of them is moved as weights are; in one of both directions, the settings move the other way.
    """
    return {name: np.nextafter(value, np.array(towards, value.dtype)) for name, value in settings.items()}


def _step(graph: TrainingGraph, rerun: Rerun, batch: Any, inner: dict[str, np.ndarray]) -> dict[str, Any]:
    """Runs a step, with what some tensors are taken to be; returns what is recorded of it."""
    inputs = {placeholder.op.name: array for placeholder, array in graph.feeds(batch).items()}
    before = _fetched((graph.before, graph.done), rerun, inputs, inner)[0]
    arrays, slots = _fetched(graph.after, rerun, {}, {})
    recorder = StepRecorder()
    record_step(recorder, 0, before, graph.variables, arrays, slots)
    return dict(recorder[0])


def _fetched(structure: Any, rerun: Rerun, inputs: dict[str, np.ndarray], inner: dict[str, np.ndarray]) -> Any:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    as_graph_element = tf.compat.v1.get_default_graph().as_graph_element
    names = {
        number: as_graph_element(leaf).name
        for number, leaf in enumerate(leaves)
        if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable)
    }
    # What is fed cannot be computed as well.
    found = rerun.fetch({number: name for number, name in names.items() if name not in inner}, inputs, inner)
    leaves = [found.get(number, inner.get(names.get(number, ""), leaf)) for number, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def _parts(graph: TrainingGraph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the values of variables' parts, by the names of their ops."""
    return {
        part.op.name: array
        for name, variable in graph.variables.items()
        for part, array in zip(variable.parts, variable.cut(arrays[name]), strict=True)
    }


def _given_gradients(graph: TrainingGraph, gradients: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Returns the gradients of variables' parts, by the names of the tensors that they are in the graph."""
    return {
        tensor.name: array
        for name, of_parts in graph.before["gradients"].items()
        if gradients[name] is not None
        for tensor, array in zip(of_parts, graph.variables[name].cut(gradients[name]), strict=True)
    }


def _by_path(step: Any) -> dict[str, np.ndarray]:
    return {
        path_in_step(name, path): np.asarray(leaf)
        for name, value in step.items()
        for path, leaf in leaves_by_path(value).items()
        if leaf is not None
    }
