"""Measures the noise floor of a TF1 program: how far its outputs move when they are computed in other ways.

The ways are those of `detrand.validation.noise.variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from detrand.comparison.values import leaves_by_path
from detrand.seeding.callsite import describe_error
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, epsilon_of, greatest_of, ulp_of
from detrand.validation.noise.variants import WAYS, Rerun, Snapshot, as_written, is_floating, ways_to_round
from detrand.validation.precision import half_precision
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.tf1 import tf1_program


def measure_noise_floor(
    migration: Migration, config: RunConfig, watch: Callable[[tf.Graph], dict[str, tf.Tensor]] | None = None
) -> NoiseFloor:
    """Runs the TF1 program in several ways, and measures how far its outputs move.

    Args:
      migration: the migration.
      config: how to run it; with mode None, with its ``constant``.
      watch: picks other tensors of the graph in place of the outputs.

    Raises:
      MigrationError: if the program cannot be run as it was written.
    """
    with tf1_program(migration, config) as program:
        program.set_variables(migration, config)
        watched = leaves_by_path(program.towers.outputs) if watch is None else watch(program.session.graph)
        snapshot = Snapshot.of(program.session)
        fetches = {path: tf.convert_to_tensor(leaf).name for path, leaf in watched.items() if tf.is_tensor(leaf)}
        inputs = {placeholder.op.name: array for placeholder, array in program.feeds.items()}
        with Rerun(snapshot, as_written(snapshot)) as rerun:
            reference = rerun.fetch(fetches, inputs)
    half = None if migration.dtype_policy is None else half_precision(migration.dtype_policy)
    noise = Noise(reference, half=half)
    remarks: dict[str, str] = {}
    for way, vary in (WAYS if half is None else ways_to_round(half)).items():
        try:
            variant = vary(snapshot)
            if variant is None:
                continue
            with Rerun(snapshot, variant) as rerun:
                found = rerun.fetch(fetches, inputs)
        except Exception as error:  # one way less; the report says so
            remarks[way] = f"cannot be run: {describe_error(error)}"
            continue
        said = remark(variant.remark, noise.add(way, found), len(noise.outputs))
        if said:
            remarks[way] = said
    return NoiseFloor(noise.outputs, remarks)


class Noise:
    """How far numbers move from a reference.

    Args:
      reference: arrays, by path.
      kind_of: says which arrays are of one kind: where terms cancel, as in the gradient of a bias before a batch
        normalization, what is left is the rounding of the greater ones. By default, each is of its own.
      half: what the numbers are rounded to, if that is less than float32; no difference is too great then.

    Attributes:
      outputs: the noise of those that are floating-point numbers.
    """

    def __init__(
        self,
        reference: Mapping[str, np.ndarray],
        kind_of: Callable[[str], str] = lambda path: path,
        half: tf.DType | None = None,
    ):
        self._reference = {path: array for path, array in reference.items() if is_floating(array)}
        self._kind_of = kind_of
        self._most_rounding: dict[str, float] = {}
        for path, array in self._reference.items():
            most = self._most_rounding.get(kind_of(path), 0.0)
            self._most_rounding[kind_of(path)] = max(most, _most_rounding(array) if half is None else np.inf)
        self.outputs = {path: OutputNoise(ulp_of(array, half)) for path, array in self._reference.items()}

    def add(self, way: str, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Adds what a way of computing has come to; returns what is no rounding, and so does not count."""
        left_out = {}
        for path, noise in self.outputs.items():
            if path in found:
                difference = _greatest_difference(found[path], self._reference[path])
                if difference <= self._most_rounding[self._kind_of(path)]:
                    noise.differences[way] = max(difference, noise.differences.get(way, 0.0))
                else:
                    left_out[path] = difference
        return left_out


def remark(of_way: str, left_out: Mapping[str, float], count: int) -> str:
    """Returns what there is to say of a way of computing; nothing if it went well.

    Args:
      of_way: what the way itself has to say.
      left_out: the outputs that it moves by more than rounding does, and by how much.
      count: how many outputs there are.
    """
    said = [of_way] if of_way else []
    if left_out:
        path, difference = next(iter(left_out.items()))
        said.append(
            f"does not count for {len(left_out)} of {count} outputs: {path} differs by {difference:.2g}, which is no "
            "rounding"
        )
    return "; ".join(said)


def _greatest_difference(found: np.ndarray, reference: np.ndarray) -> float:
    """Returns the greatest absolute difference; infinity where only one of the numbers is finite."""
    if found.shape != reference.shape:
        return np.inf
    found, reference = np.asarray(found, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(reference)
    if (np.isfinite(found) != finite).any():
        return np.inf
    return float(np.abs(found - reference, where=finite, out=np.zeros_like(reference)).max(initial=0))


def _most_rounding(array: np.ndarray) -> float:
    """Returns the greatest difference that is taken for rounding: what leaves half of the digits as they are.

    More comes of other random numbers, where iterations of a loop draw in parallel, or of a rounding that a comparison
    makes much of. A tolerance of that size would let everything pass.
    """
    return greatest_of(array) * epsilon_of(array.dtype) ** 0.5
