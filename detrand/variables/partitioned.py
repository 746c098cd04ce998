"""Joined variables: a program's variables by name, each with all its parts if it is partitioned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detrand._patching.keras import underlying_variable
from detrand._patching.variables import save_slice, slice_spec
from detrand.errors import ArgumentError
from detrand.variables.sources import named_variables, spec_of
from detrand.variables.spec import VariableSpec


@dataclass(frozen=True)
class JoinedVariable:
    """A variable, or all parts of a partitioned one.

    Attributes:
      spec: describes the variable, or its parts joined.
      parts: the variable, or its parts in order.
    """

    spec: VariableSpec
    parts: list[Any]

    def joined(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return one array from an array for each part."""
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, self._axis())

    def cut(self, array: Any) -> list[Any]:
        """Return the slice of an array or a tensor for each part."""
        if len(self.parts) == 1:
            return [array]
        axis = self._axis()
        ends = list(itertools.accumulate(part.shape[axis] for part in self.parts))
        before = (slice(None),) * axis
        indices = [(*before, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
        return [array[index] for index in indices]

    def _axis(self) -> int:
        # TensorFlow partitions a variable along one axis.
        whole = self.spec.shape or ()
        return next(axis for axis, size in enumerate(self.parts[0].shape) if size != whole[axis])


def joined_variables(argument: str, source: Any) -> dict[str, JoinedVariable]:
    """Return the joined variables, by name, of a source that `named_variables` takes.

    Raises:
      ArgumentError: for any other source, and for several partitioned variables of one name.
    """
    joined: dict[str, JoinedVariable] = {}
    for name, variable in named_variables(source, argument).items():
        part = underlying_variable(variable)
        spec, whole = spec_of(variable), save_slice(part)
        if whole is None:
            joined[name] = JoinedVariable(spec, [part])
            continue
        known = joined.setdefault(whole[0], JoinedVariable(VariableSpec(whole[1], spec.dtype, spec.trainable), []))
        if any(slice_spec(part) == slice_spec(other) for other in known.parts):
            raise ArgumentError(
                f"{argument} holds several partitioned variables named {whole[0]!r}. Pass the layers that hold them "
                "one at a time"
            )
        known.parts.append(part)
    return joined
