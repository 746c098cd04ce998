"""`TF1View`: the variables of a program as TF1 has them.

Values, gradients and slots of a port are read and assigned through a view, so that both programs have them by the same
names and in the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detrand.variables.comparison import NameMap, mapped_name
from detrand.variables.sources import JoinedVariable
from detrand.variables.spec import VariableSpec


class TF1View:
    """The variables of a program, by their TF1 names and in TF1's shapes.

    Arrays of the parts (their values, gradients or slots) are dicts of a part's position in ``parts`` -> array.

    Attributes:
      specs: TF1 name -> spec. A variable without a counterpart in TF1 has the program's own name.
      parts: all variables of the program; a partitioned variable in its parts.
    """

    def __init__(
        self,
        variables: Mapping[str, JoinedVariable],
        name_map: NameMap | None = None,
        tf1_shapes: Mapping[str, tuple[int | None, ...] | None] | None = None,
    ):
        tf1_names = {mapped_name(name_map, name): name for name in tf1_shapes or ()}
        self._variables = {tf1_names.get(name, name): variable for name, variable in variables.items()}
        self.specs: dict[str, VariableSpec] = {name: variable.spec for name, variable in self._variables.items()}
        self.parts: list[Any] = []
        self._positions: dict[str, range] = {}
        for name, variable in self._variables.items():
            self._positions[name] = range(len(self.parts), len(self.parts) + len(variable.parts))
            self.parts += variable.parts

    def names_of(self, position: int) -> list[str]:
        """Return the TF1 names of the variables that have elements in a part."""
        return [name for name, positions in self._positions.items() if position in positions]

    def positions_of(self, name: str) -> Sequence[int]:
        """Return the positions of the parts that have elements of a TF1 variable."""
        return self._positions[name]

    def parts_of(self, name: str) -> list[Any]:
        """Return the parts that have elements of a TF1 variable."""
        return [self.parts[position] for position in self._positions[name]]

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of all variables, by TF1 name."""
        return self.from_parts({position: part.numpy() for position, part in enumerate(self.parts)})

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign arrays to the variables of their TF1 names; arrays of unknown names or other shapes are left out."""
        for position, array in self.to_parts(arrays).items():
            self.parts[position].assign(tf.cast(array, self.parts[position].dtype))

    def from_parts(self, of_parts: Mapping[int, Any]) -> dict[str, Any]:
        """Return arrays by TF1 name from arrays of the parts; None for None, and nothing where an array is missing."""
        found = {}
        for name, positions in self._positions.items():
            if all(position in of_parts for position in positions):
                arrays = [of_parts[position] for position in positions]
                given = [np.asarray(array) for array in arrays if array is not None]
                found[name] = self._variables[name].joined(given) if len(given) == len(arrays) else None
        return found

    def to_parts(self, arrays: Mapping[str, Any]) -> dict[int, Any]:
        """Return arrays or tensors of the parts from those by TF1 name; unknown names and other shapes are left out."""
        found: dict[int, Any] = {}
        for name, spec in self.specs.items():
            if name in arrays and tf.TensorShape(spec.shape).is_compatible_with(arrays[name].shape):
                found.update(zip(self._positions[name], self._variables[name].cut(arrays[name]), strict=True))
        return found
