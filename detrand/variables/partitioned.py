"""A program's variables, the parts of a partitioned one together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detrand._patching.keras import underlying_variable
from detrand._patching.tensorflow import save_slice, slice_spec
from detrand.errors import ArgumentError
from detrand.variables.sources import named_variables, spec_of
from detrand.variables.spec import VariableSpec


@dataclass(frozen=True)
class JoinedVariable:
    """A variable, or all parts of a partitioned one.

    Attributes:
      spec: what the variable is, or what its parts are together.
      parts: the variable itself, or its parts in order.
    """

    spec: VariableSpec
    parts: list[Any]

    def joined(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Returns one array of the arrays that belong to the parts."""
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, self._axis())

    def cut(self, array: Any) -> list[Any]:
        """Returns what of an array or a tensor belongs to each part."""
        if len(self.parts) == 1:
            return [array]
        axis = self._axis()
        ends = list(itertools.accumulate(part.shape[axis] for part in self.parts))
        before = (slice(None),) * axis
        indices = [(*before, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
        return [array[index] for index in indices]

    def _axis(self) -> int:
        # TensorFlow cuts a variable along one axis.
        whole = self.spec.shape or ()
        return next(axis for axis, size in enumerate(self.parts[0].shape) if size != whole[axis])


def joined_variables(argument: str, source: Any) -> dict[str, JoinedVariable]:
    """Returns a program's variables by name.

    Args:
      argument: what the caller's argument is called.
      source: what `named_variables` takes.

    Raises:
      ArgumentError: for anything else, and for several partitioned variables of one name.
    """
    wholes: dict[str, JoinedVariable] = {}
    for name, variable in named_variables(source).items():
        part = underlying_variable(variable)
        spec, whole = spec_of(variable), save_slice(part)
        if whole is None:
            wholes[name] = JoinedVariable(spec, [part])
            continue
        known = wholes.setdefault(whole[0], JoinedVariable(VariableSpec(whole[1], spec.dtype, spec.trainable), []))
        if any(slice_spec(part) == slice_spec(other) for other in known.parts):
            raise ArgumentError(
                f"{argument} holds several partitioned variables of the name {whole[0]!r}; pass the layers that "
                "they belong to one after the other"
            )
        known.parts.append(part)
    return wholes
