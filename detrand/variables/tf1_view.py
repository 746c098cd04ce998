"""`TF1View`: the variables of a program as TF1 has them.

Values, gradients and slots of a port are read and assigned through a view, so that both programs have them by the same
names and in the same form.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from detrand.packages import tf
from detrand.variables.comparison import NameMap, forms_of
from detrand.variables.forms import Form
from detrand.variables.sources import JoinedVariable, assign, is_tensorflow_variable
from detrand.variables.spec import VariableSpec, is_compatible

Shapes = Mapping[str, tuple[int | None, ...] | None]  # by TF1 name


class TF1View:
    """The variables of a program, by their TF1 names and in TF1's form.

    Arrays of the parts (their values, gradients or slots) are dicts of a part's position in ``parts`` -> array. A form
    adds constants to values only.

    Attributes:
      specs: TF1 name -> spec. A variable without a counterpart in TF1 has the program's own name.
      parts: all variables of the program; a partitioned variable in its parts.
      own_names: TF1 name -> the program's names of the variables that have elements of the variable.
      positions: TF1 name -> the positions of the parts of these variables.
    """

    def __init__(
        self,
        variables: Mapping[str, JoinedVariable],
        name_map: NameMap | None = None,
        tf1_shapes: Shapes | None = None,
    ):
        self._variables = variables
        self.parts: list[Any] = []
        self._positions: dict[str, range] = {}
        for name, variable in variables.items():
            self._positions[name] = range(len(self.parts), len(self.parts) + len(variable.parts))
            self.parts += variable.parts
        self._forms = list(self._forms_of(tf1_shapes or {}, name_map))
        self.specs: dict[str, VariableSpec] = {}
        self.own_names: dict[str, list[str]] = {}
        self.positions: dict[str, list[int]] = {}
        for form in self._forms:
            for name, shape in form.tf1.items():
                own_names = [other for other, names in form.tf1_names.items() if name in names]
                trainable = all(variables[other].spec.trainable for other in own_names)
                self.specs[name] = VariableSpec(shape, variables[own_names[0]].spec.dtype, trainable)
                self.own_names[name] = own_names
                self.positions[name] = [position for other in own_names for position in self._positions[other]]
        self._tf1_names: dict[int, list[str]] = defaultdict(list)
        for name, positions in self.positions.items():
            for position in positions:
                self._tf1_names[position].append(name)

    def _forms_of(self, tf1_shapes: Shapes, name_map: NameMap | None) -> Iterator[Form]:
        """Yield forms of all variables; those that do not fit a variable of TF1 keep their names and shapes."""
        left = {name: variable.spec.shape for name, variable in self._variables.items()}
        specs = {name: variable.spec for name, variable in self._variables.items()}
        for form in forms_of(tf1_shapes, dict(left), name_map, specs):
            if all(name in left and shape == left[name] for name, shape in form.port.items()):
                for name in form.port:
                    del left[name]
                yield form
        yield from (Form({name: shape}, {name: shape}) for name, shape in left.items())

    def names_of(self, position: int) -> list[str]:
        """Return the TF1 names of the variables that have elements in a part."""
        return self._tf1_names[position]

    def names_of_whole_parts(self) -> dict[int, str]:
        """Return the TF1 names of the parts that are one whole TF1 variable, by position."""
        names = {position: self.names_of(position) for position in range(len(self.parts))}
        return {position: of[0] for position, of in names.items() if len(of) == 1 == len(self.positions[of[0]])}

    def parts_of(self, name: str) -> list[Any]:
        """Return the parts that have elements of a TF1 variable."""
        return [self.parts[position] for position in self.positions[name]]

    def constants(self) -> dict[str, np.ndarray]:
        """Return what forms add to elements of TF1's variables, for those that the program has rearranged."""
        found: dict[str, np.ndarray] = {}
        for form in self._forms:
            if form.sources is not None:
                found |= form.to_tf1(dict(zip(form.port, form.constants, strict=True)), values=False)
        return found

    def changed_constants(self) -> list[str]:
        """Return the own names of variables whose elements beside TF1's are no longer the constants of a form."""
        changed = []
        for form in self._forms:
            for name, source, constant in zip(form.port, form.sources or (), form.constants, strict=False):
                own = source == sum(math.prod(shape) for shape in form.tf1.values())
                value = self._variables[name].joined([part.numpy() for part in self._variables[name].parts])
                if not np.array_equal(value[own], constant[own].astype(value.dtype)):
                    changed.append(name)
        return changed

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of all variables, by TF1 name."""
        return self.from_parts({position: part.numpy() for position, part in enumerate(self.parts)}, values=True)

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign arrays to the variables of their TF1 names; arrays of unknown names or other shapes are left out.

        Elements of parts that are not given keep their values.
        """
        given = dict(arrays)
        if any(0 < len(form.tf1.keys() & given.keys()) < len(form.tf1) for form in self._forms):
            known = self.values()
            for form in self._forms:
                if not form.tf1.keys().isdisjoint(arrays):
                    given = {**{name: known[name] for name in form.tf1}, **given}
        for position, array in self.to_parts(given, values=True).items():
            part = self.parts[position]
            assign(part, tf.cast(array, part.dtype) if is_tensorflow_variable(part) else np.asarray(array))

    def from_parts(self, of_parts: Mapping[int, Any], *, values: bool = False) -> dict[str, Any]:
        """Return arrays by TF1 name from arrays of the parts; None for None, and nothing where an array is missing."""
        found: dict[str, Any] = {}
        for form in self._forms:
            arrays = {}
            for name in form.port:
                given = [of_parts.get(position) for position in self._positions[name]]
                if all(array is not None for array in given):
                    arrays[name] = self._variables[name].joined(list(map(np.asarray, given)))
            known = form.to_tf1(arrays, values=values) if arrays else {}
            for name in form.tf1:
                if name in known or of_parts.keys() >= set(self.positions[name]):
                    found[name] = known.get(name)
        return found

    def to_parts(self, arrays: Mapping[str, Any], *, values: bool = False) -> dict[int, Any]:
        """Return arrays or tensors of the parts from those by TF1 name; unknown names and other shapes are left out.

        Elements of parts that are not given are 0.
        """
        found: dict[int, Any] = {}
        for form in self._forms:
            given = {
                name: arrays[name]
                for name, shape in form.tf1.items()
                if name in arrays and is_compatible(shape, arrays[name].shape)
            }
            for name, array in form.to_port(given, values=values).items() if given else ():
                if values or not given.keys().isdisjoint(form.tf1_names[name]):
                    found.update(zip(self._positions[name], self._variables[name].cut(array), strict=True))
        return found
