"""The measurement of a noise floor: a TF1 program is run in all of its variants, and its outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.comparison.values import leaves_by_path
from detrand.packages import tf
from detrand.seeding.callsite import describe_error
from detrand.validation.noise.floor import NoiseFloor, OutputNoise, is_floating, masks_in, most_rounding
from detrand.validation.noise.variants import VARIANTS, Rerun, Snapshot, Variant, Vary, as_written
from detrand.validation.programs.tf1 import TF1Program

_UPDATE = "update of "  # before the path of a variable


def measure_noise_floor(
    program: TF1Program, updated: Iterable[str] = (), variants: Mapping[str, Vary] = VARIANTS
) -> NoiseFloor:
    """Return how far the outputs of a TF1 program, and variables that it updates, move in variants."""
    program.set_variables(program.config)
    updates = leaves_by_path(program.after_updates(updated))
    outputs = leaves_by_path(program.built.towers.outputs)
    noise = _noise_of_tensors(program, {**outputs, **{_UPDATE + path: updates[path] for path in updates}}, variants)
    of_updates = {path: noise.outputs.pop(_UPDATE + path) for path in updates if _UPDATE + path in noise.outputs}
    return replace(noise, updates=of_updates)


def _noise_of_tensors(program: TF1Program, tensors: Mapping[str, Any], variants: Mapping[str, Vary]) -> NoiseFloor:
    """Return how far tensors of a TF1 program move; its variables have their values, and it has not been run yet."""
    snapshot = Snapshot.of(program.session)
    fetches = {path: tf.convert_to_tensor(tensor).name for path, tensor in tensors.items() if tf.is_tensor(tensor)}
    inputs = {placeholder.op.name: array for placeholder, array in program.built.feeds.items()}
    with Rerun(snapshot, as_written(snapshot)) as rerun:
        measured = Measured(rerun.fetch(fetches, inputs))

    def run(name: str, variant: Variant) -> dict[str, float]:
        with Rerun(snapshot, variant) as rerun:
            return measured.add(name, rerun.fetch(fetches, inputs))

    return NoiseFloor(measured.noise, run_variants(snapshot, variants, run, len(measured.noise)))


class Measured:
    """The program's own numbers, which variants are compared with, and their noise in the variants so far, by path.

    ``kind_of`` returns the kind of the array at a path. Where terms cancel, as in the gradient of a bias before a batch
    normalization, only the rounding of the greater terms of that kind is left. By default, each array is a kind.

    If jumps count, so do differences that are too great to be only rounding: a gradient jumps where rounding moves a
    unit across the kink of a ReLU, and a port that rounds differently may jump there, too.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        kind_of: Callable[[str], str] = lambda path: path,
        *,
        jumps_count: bool = False,
    ):
        self._arrays = {path: array for path, array in arrays.items() if is_floating(array)}
        self.noise = {path: OutputNoise.of(array) for path, array in self._arrays.items()}
        self._counting = {path: ~masks_in(array) for path, array in self._arrays.items()}
        of_kinds: dict[str, float] = {}
        for path, array in self._arrays.items():
            most = np.finfo(np.float64).max if jumps_count else most_rounding(array)
            of_kinds[kind_of(path)] = max(of_kinds.get(kind_of(path), 0.0), most)
        self._most_rounding = {path: of_kinds[kind_of(path)] for path in self._arrays}

    def add(self, variant: str, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Add the arrays of a variant; return the differences that are too great to be rounding, and do not count."""
        moves = {
            path: _greatest_difference(found[path], array, self._counting[path])
            for path, array in self._arrays.items()
            if path in found
        }
        by_rounding = {path: move for path, move in moves.items() if move <= self._most_rounding[path]}
        for path, move in by_rounding.items():
            self.noise[path].differences[variant] = move
        return {path: move for path, move in moves.items() if path not in by_rounding}


def run_variants(
    snapshot: Snapshot, variants: Mapping[str, Vary], run: Callable[[str, Variant], Mapping[str, float]], count: int
) -> dict[str, str]:
    """Run variants of a program, and return what reports say of those whose numbers do not all count, by name.

    ``run`` returns the differences that are too great to be rounding, by output. There are ``count`` outputs.
    """
    remarks: dict[str, str] = {}
    for name, vary in variants.items():
        try:
            variant = vary(snapshot)
            if variant is not None:
                remarks[name] = _remark(variant.remark, run(name, variant), count)
        except Exception as error:  # the other variants count, and the report shows the reason
            remarks[name] = f"cannot be run: {describe_error(error)}"
    return {name: text for name, text in remarks.items() if text}


def _remark(of_variant: str, beyond_rounding: Mapping[str, float], count: int) -> str:
    if not beyond_rounding:
        return of_variant
    path, difference = next(iter(beyond_rounding.items()))
    beyond = (
        f"does not count for {len(beyond_rounding)} of {count} outputs: {path} differs by {difference:.2g}, which is "
        "more than rounding"
    )
    return f"{of_variant}; {beyond}" if of_variant else beyond


def _greatest_difference(found: np.ndarray, array: np.ndarray, counting: np.ndarray) -> float:
    """Return the greatest absolute difference where it counts; infinity where only one of the numbers is finite."""
    if found.shape != array.shape:
        return np.inf
    found, array = np.asarray(found, np.float64), np.asarray(array, np.float64)
    finite = np.isfinite(array)
    if (np.isfinite(found) != finite).any():
        return np.inf
    counting = counting & finite
    return float(np.abs(found[counting] - array[counting]).max(initial=0))
