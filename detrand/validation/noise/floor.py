"""The noise floor of a TF1 program and of its training: how far rounding moves each number; a port's tolerance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detrand.comparison.closeness import Closeness
from detrand.comparison.leaves import OUTPUT
from detrand.comparison.values import leaves_by_path
from detrand.steps.comparison import Tolerance

MULTIPLE, LEAST_ULPS = 4.0, 4.0
_LEAST_MASK, _DWARFS = 1e4, 1e3
_ROUNDED = "rounded to its dtype"  # what moves every number


@dataclass(frozen=True)
class OutputNoise:
    """How far one output moves when the same numbers are computed differently.

    >>> noise = OutputNoise(ulp=1.2e-7, differences={"reductions reversed": 3.6e-7, "in float64": 2.4e-7})
    >>> print(f"{noise.floor:.2g} {noise.tolerance:.3g}")
    3.6e-07 1.44e-06

    The tolerance is four times the floor: a sound port rounds as much as TF1 does, independently, and a handful of
    variants shows only part of that. It is at least four units in the last place, because a function such as ``exp`` is
    itself off by one or two. It is absolute: elements that are small because greater terms cancel are no more precise.
    Masks of an output, see `masks_in`, do not count; they must agree to four units in their own last place.
    """

    ulp: float  # of the output's greatest element, in its dtype
    differences: dict[str, float] = field(default_factory=dict)  # the greatest absolute one of each variant, by name
    rtol: float = 0.0  # of an output with masks

    @classmethod
    def of(cls, array: np.ndarray) -> OutputNoise:
        """Return the noise of an array that no variant has moved yet."""
        masks = masks_in(array)
        return cls(ulp_of(array[~masks]), rtol=LEAST_ULPS * epsilon_of(array.dtype) if masks.any() else 0.0)

    @property
    def floor(self) -> float:
        """The greatest difference of all variants."""
        return max(self.differences.values(), default=0.0)

    @property
    def tolerance(self) -> float:
        """The absolute difference that a port may have from TF1."""
        return max(MULTIPLE * self.floor, LEAST_ULPS * self.ulp)


@dataclass(frozen=True)
class NoiseFloor:
    """How far the outputs of a TF1 program, and the variables that it updates, move."""

    outputs: dict[str, OutputNoise]  # of each floating-point output, by path
    remarks: dict[str, str]  # why a variant does not count, or what it leaves as it is, by the variant's name
    updates: dict[str, OutputNoise] = field(default_factory=dict)  # of each floating-point variable, by path

    @classmethod
    def least(cls, outputs: Any, updates: Mapping[str, np.ndarray]) -> NoiseFloor:
        """Return how far numbers move at least: by being rounded to their dtype."""

        def of(structure: Any) -> dict[str, OutputNoise]:
            arrays = {path: np.asarray(leaf) for path, leaf in leaves_by_path(structure).items()}
            noise = {path: OutputNoise.of(array) for path, array in arrays.items() if is_floating(array)}
            return {path: replace(each, differences={_ROUNDED: each.ulp / 2}) for path, each in noise.items()}

        return cls(of(outputs), {}, of(updates))

    def of_variants(self, names: Collection[str]) -> NoiseFloor:
        """Return how far the numbers move in some of the variants."""

        def of(noise: Mapping[str, OutputNoise]) -> dict[str, OutputNoise]:
            return {
                path: replace(
                    each, differences={name: amount for name, amount in each.differences.items() if name in names}
                )
                for path, each in noise.items()
            }

        remarks = {name: remark for name, remark in self.remarks.items() if name in names}
        return NoiseFloor(of(self.outputs), remarks, of(self.updates))

    def closeness_of_update(self, path: str) -> Closeness:
        """Return how close the new value of the variable at a path must be."""
        return _closeness(self.updates.get(path))

    def closeness_of(self, path: str) -> Closeness:
        """Return how close the output at a path must be."""
        return _closeness(self.outputs.get(path))


@dataclass(frozen=True)
class TrainingNoise:
    """How far the numbers of a TF1 program's training move."""

    steps: tuple[dict[str, OutputNoise], ...]  # of each step's numbers, by paths such as "gradients['dense/kernel']"
    remarks: dict[str, str]  # as in `NoiseFloor`

    def closeness(self, step: int, name: str) -> Callable[[str], Closeness]:
        """Return how close the values under a name must be, by path."""
        return lambda path: _closeness(self.steps[step].get(path_in_step(name, path)))


def _closeness(noise: OutputNoise | None) -> Closeness:
    """Return how close numbers must be: equal if they are integers, as in the guide if no variant could be run."""
    if noise is not None and not noise.differences:
        return Closeness(Tolerance().rtol, Tolerance().atol, equal_nan=False)
    return Closeness(*((0.0, 0.0) if noise is None else (noise.rtol, noise.tolerance)), equal_nan=False)


def path_in_step(name: str, path: str) -> str:
    """Return the path of a value in a step, such as ``"weights['dense/kernel']"``, from its path below a name."""
    return name if path == OUTPUT else f"{name}{path}"


def ulp_of(array: np.ndarray, dtype: Any = None) -> float:
    """Return a unit in the last place of an array's greatest finite element, in a dtype; in its own dtype by default.

    >>> ulp_of(np.array([0.1, -1.5], np.float32)) == 2.0**-23
    True
    """
    greatest = greatest_of(array)
    return float(2.0 ** np.floor(np.log2(greatest)) * epsilon_of(dtype or array.dtype)) if greatest else 0.0


def is_floating(array: np.ndarray) -> bool:
    """Return whether an array holds floating-point numbers."""
    is_narrow = array.dtype.type.__module__ == "ml_dtypes" and "float" in array.dtype.name
    return array.dtype.kind == "f" or is_narrow


def greatest_of(array: np.ndarray) -> float:
    """Return the greatest absolute value of an array's finite elements; 0 if there is none."""
    wide = np.abs(np.asarray(array, np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0))


def masks_in(array: np.ndarray) -> np.ndarray:
    """Return which elements of an output are no numbers that a model computes, such as -1e9 for the score of padding.

    They are at least 1e4, and 1,000 times as great as all others.

    >>> masks_in(np.array([-1e9, 0.25, -0.5], np.float32)).tolist()
    [True, False, False]
    """
    wide = np.abs(np.asarray(array, np.float64))
    if greatest_of(array) < _LEAST_MASK:
        return np.zeros(wide.shape, bool)
    sizes = np.unique(wide[np.isfinite(wide) & (wide > 0)])
    (jumps,) = np.nonzero((sizes[1:] >= _LEAST_MASK) & (sizes[1:] >= _DWARFS * sizes[:-1]))
    return wide > (sizes[jumps[0]] if len(jumps) else np.inf)


def most_rounding(array: np.ndarray) -> float:
    """Return the greatest difference that can be rounding: half of the digits stay as they are."""
    # Different random numbers, where iterations of a loop draw in parallel, differ by more. So does a comparison that
    # amplifies a rounding. A tolerance of that size would accept everything.
    return greatest_of(array[~masks_in(array)]) * epsilon_of(array.dtype) ** 0.5


def epsilon_of(dtype: Any) -> float:
    """Return the distance from 1 to the next number of a floating-point dtype of NumPy, ml_dtypes or TensorFlow."""
    dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    # ml_dtypes is loaded if there is one of its dtypes
    finfo: Any = np.finfo if dtype.kind == "f" else sys.modules["ml_dtypes"].finfo
    return float(finfo(dtype).eps)
