"""The measurement of the noise floor of a TF1 program's training: how far the numbers of each step move.

`measure_training_noise` is for ports that differ by more than the rules of `detrand.validation.training.compare` allow,
and `measure_gradient_noise` for ports in half precision.

The training is repeated in the variants of `detrand.validation.noise.variants`, and guided, as the port is: it begins
each step with the TF1 program's variables, and its optimizer gets that program's gradients. One session computes
outputs, losses and gradients; in a second one the optimizer is fed the TF1 program's gradients, and keeps the slots
that result. Where weights are off by 1 ULP, the optimizer's hyperparameters are too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detrand.comparison.values import leaves_by_path
from detrand.packages import tf
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import TrainingNoise, path_in_step
from detrand.validation.noise.measurement import Measured, run_variants
from detrand.validation.noise.variants import VARIANTS, Rerun, Snapshot, Variant, rounded_to
from detrand.validation.precision import half_precision
from detrand.validation.training.steps import WEIGHT_AVERAGES, Training, recorded
from detrand.validation.training.tf1 import TrainingGraph, training_graph

_OF_UPDATE = ("weights", "slots", WEIGHT_AVERAGES)
# The number of variants in half precision, and the ULPs by which their weights and inputs are off: with more than 1
# ULP, more of the gradient's jumps show.
_ROUNDED, _UNITS = 8, 4.0


def measure_training_noise(migration: Migration, batches: Sequence[Any], mode: str, tf1: Training) -> TrainingNoise:
    """Return how far the numbers of each step of the TF1 program's training move when they are computed differently.

    Raises:
      MigrationError: if the training cannot be built.
    """
    # What is updated and read in no defined order jumps by itself.
    measured = [Measured(_by_path(step), _kind_of, jumps_count=not tf1.unordered) for step in tf1.steps]
    with training_graph(migration, batches[0], mode) as graph:
        snapshot = Snapshot.of(graph.session)

        def run(name: str, variant: Variant) -> dict[str, float]:
            beyond_rounding: dict[str, float] = {}
            for direction, hyperparameters in _hyperparameters(graph, variant).items():
                repeated = _repeated(graph, snapshot, variant, batches, tf1, hyperparameters)
                for step, found in enumerate(repeated):
                    beyond = measured[step].add(f"{name}{direction}", found)
                    beyond_rounding |= {f"step {step}, {path}": difference for path, difference in beyond.items()}
            return beyond_rounding

        remarks = run_variants(snapshot, VARIANTS, run, sum(len(of_step.noise) for of_step in measured))
    return TrainingNoise(tuple(of_step.noise for of_step in measured), remarks)


def measure_gradient_noise(
    migration: Migration, batches: Sequence[Any], mode: str, tf1: Training
) -> tuple[dict[str, np.ndarray], ...]:
    """Return how far each element of the gradients moves in each step when TF1 is rounded as by the dtype policy.

    That is the greatest absolute difference in any variant; infinity where one overflows.
    """
    narrow = tf.as_dtype(half_precision(migration.dtype_policy))
    gradients = [step["gradients"] for step in tf1.steps]
    exact = [{name: array for name, array in of_step.items() if array is not None} for of_step in gradients]
    noise = [{name: np.zeros_like(array) for name, array in of_step.items()} for of_step in exact]
    with training_graph(migration, batches[0], mode) as graph:
        snapshot = Snapshot.of(graph.session)
        for seed in range(_ROUNDED):
            with Rerun(snapshot, rounded_to(narrow, seed, snapshot, _UNITS)) as rerun:
                for step, batch in enumerate(batches):
                    _begin_as_tf1(graph, tf1, step, rerun)
                    found = _step(graph, rerun, batch, {})["gradients"]
                    for name, array in exact[step].items():
                        difference = np.nan_to_num(np.abs(found[name] - array), nan=np.inf, posinf=np.inf)
                        np.maximum(noise[step][name], difference, out=noise[step][name])
    return tuple(noise)


def _kind_of(path: str) -> str:
    """Return the kind of a step's numbers: all gradients are one kind, and so is each slot."""
    return path.rpartition("[")[0] if path.startswith(("gradients[", "slots[")) else path


def _repeated(
    graph: TrainingGraph,
    snapshot: Snapshot,
    variant: Variant,
    batches: Sequence[Any],
    tf1: Training,
    hyperparameters: dict[str, np.ndarray],
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the numbers of each step of a variant, by path."""
    with Rerun(snapshot, variant) as computing, Rerun(snapshot, variant) as updating:
        for step, batch in enumerate(batches):
            _begin_as_tf1(graph, tf1, step, computing, updating)
            found = _by_path(_step(graph, computing, batch, {}))
            given = _given_gradients(graph, tf1.steps[step]["gradients"])
            updated = _by_path(_step(graph, updating, batch, given | hyperparameters))
            yield {path: (updated if path.startswith(_OF_UPDATE) else found)[path] for path in found}


def _hyperparameters(graph: TrainingGraph, variant: Variant) -> dict[str, dict[str, np.ndarray]]:
    """Return the optimizer's hyperparameters by their tensors' names, for each direction that a variant moves them in.

    A port may round them to float32 later than TF1 does, and then ``1 - beta2`` differs by 1e-5 of its value. The
    powers of them that TF1 keeps in variables move as weights do; in one of both directions, the hyperparameters move
    the other way.
    """
    if not variant.moves_hyperparameters:
        return {"": graph.hyperparameters}
    return {
        f", hyperparameters {direction}": {
            name: np.nextafter(value, np.array(towards, value.dtype)) for name, value in graph.hyperparameters.items()
        }
        for direction, towards in (("down", -np.inf), ("up", np.inf))
    }


def _step(graph: TrainingGraph, rerun: Rerun, batch: Any, inner: dict[str, np.ndarray]) -> dict[str, Any]:
    """Run a step, with values in place of some tensors, and return what is recorded of it."""
    inputs = {placeholder.op.name: array for placeholder, array in graph.feeds(batch).items()}
    before = _fetched((graph.before, graph.done), rerun, inputs, inner)[0]
    return recorded(before, graph.view, *_fetched(graph.after, rerun, {}, {}))


def _fetched(structure: Any, rerun: Rerun, inputs: dict[str, np.ndarray], inner: dict[str, np.ndarray]) -> Any:
    """Return a structure of the graph with arrays for its tensors."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    names = {number: leaf.name for number, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
    found = {number: inner[name] for number, name in names.items() if name in inner}  # a fed tensor cannot be fetched
    found |= rerun.fetch({number: name for number, name in names.items() if name not in inner}, inputs, inner)
    leaves = [found.get(number, leaf) for number, leaf in enumerate(leaves)]
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def _begin_as_tf1(graph: TrainingGraph, tf1: Training, step: int, *reruns: Rerun) -> None:
    """Give reruns the variables that a training had before a step."""
    if step == 0:
        return
    arrays = graph.view.to_parts(tf1.variables_after(step - 1))
    parts = {graph.view.parts[position].op.name: array for position, array in arrays.items()}
    for rerun in reruns:
        rerun.assign(parts)


def _given_gradients(graph: TrainingGraph, gradients: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Return the gradients of the parts of variables, by the names of their tensors in the graph."""
    given = graph.view.to_parts({name: array for name, array in gradients.items() if array is not None})
    return {graph.before["gradients"][position].name: array for position, array in given.items()}


def _by_path(step: Any) -> dict[str, np.ndarray]:
    return {
        path_in_step(name, path): np.asarray(leaf)
        for name, value in step.items()
        for path, leaf in leaves_by_path(value).items()
        if leaf is not None
    }
