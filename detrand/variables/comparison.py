"""The comparison of two programs' variables, and the pairing of variables whose names differ.

`compare_variables` pairs the variables of two programs by name, after a name map, and returns a `VariablesComparison`,
whose ``str()`` is the report.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from detrand.arguments import quote, titled_list
from detrand.errors import ArgumentError, VariableMismatchError
from detrand.variables.pairing import likeness, pair_in_order, with_own_prefix
from detrand.variables.sources import specs_of
from detrand.variables.spec import VariableSpec

NameMap = Mapping[str, str | None] | Callable[[str], str | None]
_Shape = tuple[int | None, ...] | None


def assert_variables_match(tf1: Any, port: Any, name_map: NameMap | None = None) -> None:
    """Assert that a TF1 program and its port have the same variables: names, shapes, dtypes, trainable flags.

    >>> import tensorflow as tf
    >>> from detrand import VariableSpec, assert_variables_match
    >>> tf1 = {"net/w": VariableSpec((3, 2), "float32", True)}
    >>> assert_variables_match(tf1, [tf.Variable(tf.ones((3, 2)), name="net/w")])
    >>> assert_variables_match(tf1, [tf.Variable(tf.ones((2, 3)), name="net/w")])
    Traceback (most recent call last):
    detrand.errors.VariableMismatchError: the variables differ: 1 in TF1, 1 in the port; 1 with a different shape
    shape differs (1):
      net/w: (3, 2) in TF1, (2, 3) in the port

    Args:
      tf1: the TF1 program's variables: whatever `variables_of` takes.
      port: the port's variables: whatever `variables_of` takes.
      name_map: a dict of TF1 name -> name in the port, with an entry for each variable whose names differ; or a
        function that is called with each TF1 name and returns the name in the port. Without it, a scope before all
        names of one program may be missing in the other.

    Raises:
      VariableMismatchError: (an `AssertionError`) if the variables differ, or if neither program has one. The message
        lists the differences and, where only names seem to differ, a ``name_map`` to pass.
      ArgumentError: if ``tf1`` or ``port`` has no variables to read, or ``name_map`` has an entry for an unknown
        TF1 variable or maps two of them to one name.
    """
    __tracebackhide__ = True
    comparison = compare_variables(tf1, port, name_map)
    if not comparison.ok:
        raise VariableMismatchError(str(comparison))


def compare_variables(tf1: Any, port: Any, name_map: NameMap | None = None) -> VariablesComparison:
    """Compare as `assert_variables_match` does, and return the comparison."""
    return compare_specs(specs_of("tf1", tf1), specs_of("port", port), name_map)


def compare_specs(
    tf1: Mapping[str, VariableSpec],
    port: Mapping[str, VariableSpec],
    name_map: NameMap | None = None,
    same_shape: Callable[[_Shape, _Shape], bool] = operator.eq,
) -> VariablesComparison:
    """Pair the variables of two programs by name."""
    port_names = _port_names(tf1, with_own_prefix(tf1, port) if name_map is None else name_map)
    pairs = [Pair(name, other, tf1[name], port[other]) for name, other in port_names.items() if other in port]
    paired = {pair.port_name for pair in pairs}
    return VariablesComparison(
        tuple(pairs),
        {name: spec for name, spec in tf1.items() if port_names[name] not in port},
        {name: spec for name, spec in port.items() if name not in paired},
        port_names,
        same_shape,
    )


@dataclass(frozen=True)
class Pair:
    """A TF1 variable and the port's variable that belongs to it."""

    tf1_name: str
    port_name: str
    tf1: VariableSpec
    port: VariableSpec


@dataclass(frozen=True)
class VariablesComparison:
    """The variables that two programs have in common, and those that only one of them has, by the program's names."""

    pairs: tuple[Pair, ...]
    only_in_tf1: Mapping[str, VariableSpec]
    only_in_port: Mapping[str, VariableSpec]
    port_names: Mapping[str, str]  # TF1 name -> name in the port, for every TF1 variable
    same_shape: Callable[[_Shape, _Shape], bool] = operator.eq

    @property
    def ok(self) -> bool:
        """Whether both programs have the same variables, and at least one."""
        return bool(self.pairs) and not self.counts("TF1", "the port")

    def _differing(self) -> dict[str, list[Pair]]:
        """Return the pairs that differ, by what differs; an unknown dimension equals only an unknown one."""
        return {
            "shape": [pair for pair in self.pairs if not self.same_shape(pair.tf1.shape, pair.port.shape)],
            "dtype": [pair for pair in self.pairs if pair.tf1.dtype != pair.port.dtype],
            "trainable": [pair for pair in self.pairs if {pair.tf1.trainable, pair.port.trainable} == {True, False}],
        }

    def __str__(self) -> str:
        paired = len(self.pairs)
        counts = f"{paired + len(self.only_in_tf1)} in TF1, {paired + len(self.only_in_port)} in the port"
        if self.ok:
            return f"the variables match: {counts}"
        differing = self.counts("TF1", "the port") or "there is nothing to compare"
        if not paired and not (self.only_in_tf1 and self.only_in_port):
            differing += ". A layer has no variables before it is built or called: call it once first"
        first = f"the variables differ: {counts}; {differing}"
        return "\n".join([first, *self.differences("TF1", "the port"), *self.likely_name_map()])

    def counts(self, tf1: str, port: str) -> str:
        """Return how many variables differ in which way, in words that call the programs `tf1` and `port`."""
        counted = {f"only in {tf1}": len(self.only_in_tf1), f"only in {port}": len(self.only_in_port)}
        for field, pairs in self._differing().items():
            counted[f"with a different {'trainable flag' if field == 'trainable' else field}"] = len(pairs)
        return ", ".join(f"{count} {text}" for text, count in counted.items() if count)

    def differences(self, tf1: str, port: str) -> list[str]:
        """Return lines that list every difference, in words that call the programs `tf1` and `port`."""
        only_in_tf1 = [f"{_names(name, self.port_names[name])}: {spec}" for name, spec in self.only_in_tf1.items()]
        only_in_port = [f"{name}: {spec}" for name, spec in self.only_in_port.items()]
        lines = [*titled_list(f"only in {tf1}", only_in_tf1), *titled_list(f"only in {port}", only_in_port)]
        for field, pairs in self._differing().items():
            values = []
            for pair in pairs:
                one, other = getattr(pair.tf1, field), getattr(pair.port, field)
                values.append(f"{_names(pair.tf1_name, pair.port_name)}: {one} in {tf1}, {other} in {port}")
            lines += titled_list(f"{field} differs", values)
        return lines

    def likely_name_map(self) -> list[str]:
        """Return lines that propose a ``name_map``; none where it is not likely that only names differ."""
        renames = self.likely_renames()
        if not renames:
            return []
        return ["If only the names differ, pass name_map={", *(f"  {a!r}: {b!r}," for a, b in renames.items()), "}"]

    def likely_renames(self) -> dict[str, str]:
        """Return TF1 name -> name in the port for unpaired variables of equal shape and similar names."""
        tf1_names = {self.port_names[name]: name for name in self.only_in_tf1}
        # Renamed variables are proposed whatever their dtype is: a difference of dtype is reported next.
        tf1 = {other: dataclasses.replace(self.only_in_tf1[name], dtype="") for other, name in tf1_names.items()}
        port = {name: dataclasses.replace(spec, dtype="") for name, spec in self.only_in_port.items()}
        found = pair_in_order(tf1, port).names
        return {tf1_names[name]: other for name, other in found.items() if likeness(name, other) >= _LIKELY}


def _names(tf1_name: str, port_name: str) -> str:
    return tf1_name if tf1_name == port_name else f"{tf1_name} (name_map: {port_name})"


def _port_names(tf1: Mapping[str, VariableSpec], name_map: NameMap | None) -> dict[str, str]:
    """Return TF1 name -> name in the port, after a name map that is checked."""
    unknown = [name for name in name_map if name not in tf1] if isinstance(name_map, Mapping) else []
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]), tf1, n=3)
        advice = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Remove the entry."
        raise ArgumentError(f"name_map has an entry for {unknown[0]!r}, but TF1 has no variable of that name. {advice}")
    tf1_names: dict[str, str] = {}
    for name in tf1:
        other = mapped_name(name_map, name)
        if not isinstance(other, str):
            raise ArgumentError(
                f"name_map maps {name!r} to {other!r} of type {type(other).__name__}. Map it to the variable's name in "
                "the port, even if that is the same"
            )
        if other in tf1_names:
            raise ArgumentError(
                f"the TF1 variables {tf1_names[other]!r} and {name!r} would both be {other!r} in the port. Change "
                "name_map so that each of them gets a different name"
            )
        tf1_names[other] = name
    return {name: other for other, name in tf1_names.items()}


def mapped_name(name_map: NameMap | None, name: str) -> str | None:
    """Return the name in the port of a TF1 variable, after a name map; None if the map leaves the variable out."""
    if name_map is None:
        return name
    if isinstance(name_map, Mapping):
        return name_map.get(name, name)
    if not callable(name_map):
        raise ArgumentError(
            "name_map must be a dict of TF1 name -> name in the port, or a function from one to the other, or for a "
            f"checkpoint the path of a JSON file with such a dict, but {quote(name_map)} of type "
            f"{type(name_map).__name__} was given. Pass, for example, name_map={{'old/w': 'new/w'}}"
        )
    try:
        return name_map(name)
    except Exception as error:
        raise ArgumentError(
            f"name_map raised {type(error).__name__}({error}) for {name!r}. It is called with each TF1 name and must "
            "return the name in the port"
        ) from error


_LIKELY = 0.4  # least likeness of two names that are proposed as names of one variable
