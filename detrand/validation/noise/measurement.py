"""The measurement of a noise floor: a TF1 program is run in all of its variants, and its outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.comparison.values import leaves_by_path
from detrand.seeding.callsite import describe_error
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, epsilon_of, greatest_of, ulp_of
from detrand.validation.noise.variants import VARIANTS, Rerun, Snapshot, as_written, is_floating, rounded_variants
from detrand.validation.precision import half_precision
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.tf1 import TF1Program, tf1_program


def measure_noise_floor(migration: Migration, config: RunConfig) -> NoiseFloor:
    """Return how far the outputs of the TF1 program move when they are computed differently.

    Raises:
      MigrationError: if the program cannot be run as it was written.
    """
    with tf1_program(migration, config) as program:
        program.set_variables()
        return noise_of_tensors(program, leaves_by_path(program.towers.outputs))


def noise_of_tensors(program: TF1Program, tensors: Mapping[str, Any]) -> NoiseFloor:
    """Return how far tensors of a TF1 program move; its variables have their values, and it has not been run yet."""
    snapshot = Snapshot.of(program.session)
    fetches = {path: tf.convert_to_tensor(tensor).name for path, tensor in tensors.items() if tf.is_tensor(tensor)}
    inputs = {placeholder.op.name: array for placeholder, array in program.feeds.items()}
    half = half_precision(program.migration.dtype_policy)
    with Rerun(snapshot, as_written(snapshot)) as rerun:
        measured = Measured(rerun.fetch(fetches, inputs), half=half)
    moves: dict[str, dict[str, float]] = {}
    remarks: dict[str, str] = {}
    for name, vary in (VARIANTS if half is None else rounded_variants(half)).items():
        try:
            variant = vary(snapshot)
            if variant is None:
                continue
            with Rerun(snapshot, variant) as rerun:
                moves[name] = measured.moves(rerun.fetch(fetches, inputs))
        except Exception as error:  # the other variants count, and the report shows the reason
            remarks[name] = f"cannot be run: {describe_error(error)}"
            continue
        remarks[name] = remark(variant.remark, measured.beyond_rounding(moves[name]), len(measured.arrays))
    return NoiseFloor(measured.noise(moves), {name: text for name, text in remarks.items() if text})


class Measured:
    """The program's own numbers, which variants are compared with.

    Args:
      arrays: arrays, by path.
      kind_of: returns the kind of the array at a path. Where terms cancel, as in the gradient of a bias before a batch
        normalization, only the rounding of the greater terms of that kind is left. By default, each array is a kind.
      half: the dtype that variants round to, if it is narrower than float32; then every difference is rounding.

    Attributes:
      arrays: the floating-point arrays, by path.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        kind_of: Callable[[str], str] = lambda path: path,
        half: tf.DType | None = None,
    ):
        self.arrays = {path: array for path, array in arrays.items() if is_floating(array)}
        self._half = half
        of_kinds: dict[str, float] = {}
        for path, array in self.arrays.items():
            of_kinds[kind_of(path)] = max(of_kinds.get(kind_of(path), 0.0), _most_rounding(array))
        self._most_rounding = {path: of_kinds[kind_of(path)] if half is None else np.inf for path in self.arrays}

    def moves(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the greatest absolute difference of each array that a variant has computed."""
        return {path: _greatest_difference(found[path], array) for path, array in self.arrays.items() if path in found}

    def beyond_rounding(self, moves: Mapping[str, float]) -> dict[str, float]:
        """Return the differences that are too great to be rounding, and so do not count."""
        return {path: move for path, move in moves.items() if not move <= self._most_rounding[path]}

    def noise(self, moves: Mapping[str, Mapping[str, float]]) -> dict[str, OutputNoise]:
        """Return the noise of each array, given what `moves` returned for each variant."""
        return {
            path: OutputNoise(
                ulp_of(array, self._half),
                {
                    variant: by_path[path]
                    for variant, by_path in moves.items()
                    if path in by_path and by_path[path] <= self._most_rounding[path]
                },
            )
            for path, array in self.arrays.items()
        }


def remark(of_variant: str, beyond_rounding: Mapping[str, float], count: int) -> str:
    """Return what reports say of a variant; nothing if all its numbers count.

    Args:
      of_variant: the variant's own remark.
      beyond_rounding: the outputs that it moves by more than rounding does, with the greatest difference.
      count: how many outputs there are.
    """
    remarks = [of_variant] if of_variant else []
    if beyond_rounding:
        path, difference = next(iter(beyond_rounding.items()))
        remarks.append(
            f"does not count for {len(beyond_rounding)} of {count} outputs: {path} differs by {difference:.2g}, which "
            "is more than rounding"
        )
    return "; ".join(remarks)


def _greatest_difference(found: np.ndarray, array: np.ndarray) -> float:
    """Return the greatest absolute difference; infinity where only one of the numbers is finite."""
    if found.shape != array.shape:
        return np.inf
    found, array = np.asarray(found, np.float64), np.asarray(array, np.float64)
    finite = np.isfinite(array)
    if (np.isfinite(found) != finite).any():
        return np.inf
    return float(np.abs(found - array, where=finite, out=np.zeros_like(array)).max(initial=0))


def _most_rounding(array: np.ndarray) -> float:
    """Return the greatest difference that can be rounding: half of the digits stay as they are.

    Different random numbers, where iterations of a loop draw in parallel, and a comparison that amplifies a rounding
    differ by more. A tolerance of that size would accept everything.
    """
    return greatest_of(array) * epsilon_of(array.dtype) ** 0.5
