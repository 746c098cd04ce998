"""The comparison of two programs' variables, and the pairing of variables whose names differ.

`compare_variables` pairs the variables of two programs by name, after a name map, and returns a `VariablesComparison`,
whose ``str()`` is the report.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand.arguments import quote, titled_list
from detrand.errors import ArgumentError, VariableMismatchError
from detrand.variables.forms import (
    Form,
    Rearranged,
    has_same_elements,
    is_reshaped,
    kernel_entry,
    rearranged_form,
)
from detrand.variables.pairing import likeness, pair_in_order, with_own_prefix
from detrand.variables.rnn_cells import recurrent_cells
from detrand.variables.sources import specs_of
from detrand.variables.spec import VariableSpec

# A key is the name of a TF1 variable, or a tuple of names.
NameMap = Mapping[Any, str | Rearranged | None] | Callable[[str], str | Rearranged | None]
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
      If the port's variable is transposed, pass name_map={'net/w': Rearranged(['net/w'], np.transpose)}

    Args:
      tf1: the TF1 program's variables: whatever `variables_of` takes.
      port: the port's variables: whatever `variables_of` takes.
      name_map: a dict of TF1 name -> name in the port, with an entry for each variable whose names differ; or a
        function that is called with each TF1 name and returns the name in the port. Without it, a scope before all
        names of one program may be missing in the other. Variables that the port has in a different form have a
        `Rearranged` in place of a name; those that are only reshaped need no entry.

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
    same_shape: Callable[[_Shape, _Shape], bool] = has_same_elements,
) -> VariablesComparison:
    """Pair the variables of two programs by name."""
    name_map = with_own_prefix(tf1, port) if name_map is None else name_map
    _check_keys(tf1, name_map)
    shapes, port_shapes = ({name: spec.shape for name, spec in specs.items()} for specs in (tf1, port))
    pairs, port_names, only_in_tf1 = [], {}, {}
    rearranged: set[str] = set()
    for form in forms_of(shapes, port_shapes, name_map, port):
        of_form = {name: tf1[name] for name in form.tf1}
        rearranged.update(() if form.sources is None else of_form)
        port_names.update(dict.fromkeys(of_form, ", ".join(form.port)))
        if form.port.keys() <= port.keys():
            pairs += [_pair(of_form, form, name, port[name]) for name in form.port]
        else:
            only_in_tf1.update(of_form)
    paired = {pair.port_name for pair in pairs}
    only_in_port = {name: spec for name, spec in port.items() if name not in paired}
    return VariablesComparison(tuple(pairs), only_in_tf1, only_in_port, port_names, same_shape, rearranged)


def _pair(tf1: Mapping[str, VariableSpec], form: Form, port_name: str, port: VariableSpec) -> Pair:
    """Return a pair of what a form makes of TF1 variables, and the port's variable."""
    if form.sources is None:
        ((name, spec),) = tf1.items()
        return Pair((name,), port_name, spec, port)
    names = form.tf1_names[port_name] or list(tf1)
    trainable = tf1[names[0]].trainable if form.tf1_names[port_name] else None
    spec = VariableSpec(form.port[port_name], tf1[names[0]].dtype, trainable)
    return Pair(tuple(names), port_name, spec, port, rearranged=True)


def forms_of(
    tf1: Mapping[str, _Shape],
    port: Mapping[str, _Shape],
    name_map: NameMap | None,
    specs: Mapping[str, VariableSpec] | None = None,
) -> Iterator[Form]:
    """Yield the forms of TF1 variables, given the shapes of both programs' variables, and the specs of the port's.

    Raises:
      ArgumentError: for an entry of ``name_map`` that is no rearrangement.
    """
    name_map = with_own_prefix(tf1, port) if name_map is None else name_map
    rearranged = rearranged_in(name_map, tf1)
    keys = {name: key for key in rearranged for name in key}
    for name, shape in tf1.items():
        key, other = keys.get(name), mapped_name(name_map, name)
        if key is not None:
            if name == key[0] and tf1.keys() >= set(key):
                yield rearranged_form(rearranged[key], tuple((each, tf1[each]) for each in key))
        elif isinstance(other, str):
            whole = port.get(other, shape)
            spec = specs.get(other) if specs else None
            if spec is not None and spec.from_tf1 is not None and has_same_elements(shape, spec.tf1_shape):
                entry = kernel_entry(other, spec.tf1_shape, whole, spec.from_tf1)
                yield rearranged_form(entry, ((name, shape),))
                continue
            yield Form({name: shape if is_reshaped(shape, whole) else whole}, {other: whole})


def rearranged_in(name_map: NameMap | None, names: Iterable[str]) -> dict[tuple[str, ...], Rearranged]:
    """Return the entries of a name map for variables in a different form, by the names of TF1 variables."""
    entries: Iterable[tuple[Any, Any]] = ((name, mapped_name(name_map, name)) for name in names)
    entries = name_map.items() if isinstance(name_map, Mapping) else entries
    return {each.tf1_names or as_tuple(key): each for key, each in entries if isinstance(each, Rearranged)}


@dataclass(frozen=True)
class Pair:
    """A TF1 variable, or several, and the port's variable that belongs to it."""

    tf1_names: tuple[str, ...]
    port_name: str
    tf1: VariableSpec
    port: VariableSpec
    rearranged: bool = False  # then the spec of TF1 is what the rearrangement makes of the TF1 variables

    @property
    def tf1_name(self) -> str:
        """The TF1 variables, as messages have them."""
        return " + ".join(self.tf1_names)

    @property
    def names(self) -> str:
        """The names, as messages have them."""
        return _names(f"{self.tf1_name}, rearranged" if self.rearranged else self.tf1_name, self.port_name)


class DifferingVariables(NamedTuple):
    """Variables that differ in one way.

    Attributes:
      what: ``"only in TF1"``, ``"only in port"``, ``"shape"``, ``"dtype"`` or ``"trainable"``.
      title: this in words.
      lines: the variables with what differs, a line each.
      advice: what to do.
      tf1_names: the first variable's names in TF1, or its name in the port if only the port has it.
      port_name: its name in the port.
    """

    what: str
    title: str
    lines: list[str]
    advice: list[str]
    tf1_names: tuple[str, ...]
    port_name: str


@dataclass(frozen=True)
class VariablesComparison:
    """The variables that two programs have in common, and those that only one of them has, by the program's names."""

    pairs: tuple[Pair, ...]
    only_in_tf1: Mapping[str, VariableSpec]
    only_in_port: Mapping[str, VariableSpec]
    port_names: Mapping[str, str]  # TF1 name -> name in the port, for every TF1 variable
    same_shape: Callable[[_Shape, _Shape], bool] = has_same_elements
    rearranged: Collection[str] = ()  # names of TF1 variables for which the name map has a `Rearranged`

    @property
    def ok(self) -> bool:
        """Whether both programs have the same variables, and at least one."""
        return bool(self.pairs) and not self.counts("TF1", "the port")

    @property
    def has_all_of_tf1(self) -> bool:
        """Whether the port has a variable of the same shape for each of TF1's, and at least one."""
        return bool(self.pairs) and not self.only_in_tf1 and not self.differing_in("shape")

    @property
    def differing(self) -> tuple[str, ...]:
        """The names of all variables that differ: in TF1, or in the port if only the port has them."""
        of_pairs = (pair.tf1_name for pairs in self._differing().values() for pair in pairs)
        return tuple(dict.fromkeys([*self.only_in_tf1, *of_pairs, *self.only_in_port]))

    def differing_in(self, what: str) -> list[Pair]:
        """Return the pairs of which the shape, the dtype or the flag ``"trainable"`` differs."""
        return self._differing()[what]

    def _differing(self) -> dict[str, list[Pair]]:
        """Return the pairs that differ, by what differs; an unknown dimension equals only an unknown one."""
        return {
            "shape": [pair for pair in self.pairs if not self.same_shape(pair.tf1.shape, pair.port.shape)],
            "dtype": [pair for pair in self.pairs if pair.tf1.dtype != pair.port.dtype],
            "trainable": [pair for pair in self.pairs if {pair.tf1.trainable, pair.port.trainable} == {True, False}],
        }

    def __str__(self) -> str:
        paired = len(self.pairs)
        counts = f"{len(self.port_names)} in TF1, {paired + len(self.only_in_port)} in the port"
        if self.ok:
            forms = [line for what, of_form in self.in_another_form().items() for line in titled_list(what, of_form)]
            return "\n".join([f"the variables match: {counts}", *forms])
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
        groups = self.groups(tf1, port)
        return [
            line for each in groups for line in (*titled_list(each.title, each.lines), *map("  {}".format, each.advice))
        ]

    def groups(self, tf1: str, port: str) -> list[DifferingVariables]:
        """Return the variables that differ in each way, in words that call the programs `tf1` and `port`."""
        of_tf1 = [f"{_names(name, self.port_names[name])}: {spec}" for name, spec in self.only_in_tf1.items()]
        of_port = [f"{name}: {spec}" for name, spec in self.only_in_port.items()]
        found = []
        if of_tf1:
            name = next(iter(self.only_in_tf1))
            advice = [] if of_port else self._advice(port)
            found.append(
                DifferingVariables("only in TF1", f"only in {tf1}", of_tf1, advice, (name,), self.port_names[name])
            )
        if of_port:
            name = next(iter(self.only_in_port))
            found.append(
                DifferingVariables("only in port", f"only in {port}", of_port, self._advice(port), (name,), name)
            )
        for field, pairs in self._differing().items():
            lines = [
                f"{pair.names}: {getattr(pair.tf1, field)} in {tf1}, {getattr(pair.port, field)} in {port}"
                for pair in pairs
            ]
            for pair in pairs[:1]:
                advice = list(filter(None, [_remedy(pair)])) if field == "shape" else []
                found.append(
                    DifferingVariables(field, f"{field} differs", lines, advice, pair.tf1_names, pair.port_name)
                )
        return found

    def _advice(self, port: str) -> list[str]:
        """Return what to do about variables that only one program has, where that is known."""
        found = []
        wanted = dict.fromkeys(other for name in self.rearranged for other in self.port_names[name].split(", "))
        known = {pair.port_name for pair in self.pairs} | self.only_in_port.keys()
        for missing in (other for other in wanted if other not in known):
            close = difflib.get_close_matches(missing, self.only_in_port, n=1)
            found += [f"{port} has no {missing!r}. Did you mean {other!r}?" for other in close]
        if any(re.search(r"/(w_[fio]_diag|projection/kernel)$", name) for name in self.only_in_tf1):
            found.append(
                "Keras's LSTM has neither peepholes nor a projection. Write a cell with them for keras.layers.RNN"
            )
        return found

    def in_another_form(self) -> dict[str, list[str]]:
        """Return the variables, in words, that have TF1's elements in another shape or order, by which of the two."""
        moved = [f"{pair.names}: {pair.port.shape} in the port" for pair in self.pairs if pair.rearranged]
        pairs = [pair for pair in self.pairs if pair.tf1.shape != pair.port.shape]
        pairs = [pair for pair in pairs if is_reshaped(pair.tf1.shape, pair.port.shape)]
        reshaped = [f"{pair.names}: {pair.tf1.shape} in TF1, {pair.port.shape} in the port" for pair in pairs]
        return {what: lines for what, lines in (("reshaped", reshaped), ("rearranged", moved)) if lines}

    def likely_name_map(self) -> list[str]:
        """Return lines that propose a ``name_map``; none where it is not likely that only names differ."""
        cells = recurrent_cells(self.only_in_tf1, self.only_in_port)
        of_cells = {name for key, cell in cells.items() for name in (*key, *cell.port_names)}
        renames = {a: b for a, b in self.likely_renames().items() if of_cells.isdisjoint((a, b))}
        if not renames and not cells:
            return []
        entries = [*(f"**{cell.code}," for cell in cells.values()), *(f"{a!r}: {b!r}," for a, b in renames.items())]
        what = "names and forms" if cells else "names"
        return [f"If only the {what} differ, pass name_map={{", *(f"  {entry}" for entry in entries), "}"]

    def likely_renames(self) -> dict[str, str]:
        """Return TF1 name -> name in the port for unpaired variables of equal shape and similar names."""
        tf1_names = {self.port_names[name]: name for name in self.only_in_tf1 if name not in self.rearranged}
        # Renamed variables are proposed whatever their dtype is: a difference of dtype is reported next.
        tf1 = {other: dataclasses.replace(self.only_in_tf1[name], dtype="") for other, name in tf1_names.items()}
        port = {name: dataclasses.replace(spec, dtype="") for name, spec in self.only_in_port.items()}
        found = pair_in_order(tf1, port).names
        return {tf1_names[name]: other for name, other in found.items() if likeness(name, other) >= _LIKELY}


def _remedy(pair: Pair) -> str:
    """Return what to do about shapes that differ in a well-known way."""
    tf1, port = pair.tf1.shape or (), pair.port.shape or ()
    if len(tf1) > 1 and tf1 == port[::-1]:
        entry = f"{{{pair.tf1_name!r}: Rearranged([{pair.port_name!r}], np.transpose)}}"
        return f"If the port's variable is transposed, pass name_map={entry}"
    if port == (2, *tf1) and pair.port_name.endswith("bias"):
        return "The port's GRU has reset_after=True, so it computes different numbers. Make it with reset_after=False"
    return ""


def _names(tf1_name: str, port_name: str) -> str:
    return tf1_name if tf1_name == port_name else f"{tf1_name} (name_map: {port_name})"


def _check_keys(tf1: Mapping[str, VariableSpec], name_map: NameMap | None) -> None:
    """Raise an `ArgumentError` for a name map that does not give each TF1 variable names of its own."""
    names = [name for key in (name_map if isinstance(name_map, Mapping) else ()) for name in as_tuple(key)]
    unknown = [name for name in names if name not in tf1]
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]), tf1, n=3)
        advice = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Remove the entry."
        raise ArgumentError(f"name_map has an entry for {unknown[0]!r}, but TF1 has no variable of that name. {advice}")
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"name_map has {names.count(name)} entries for {name!r}. Remove all but one")
    for key, entry in name_map.items() if isinstance(name_map, Mapping) else ():
        if isinstance(key, tuple) and not isinstance(entry, Rearranged):
            raise ArgumentError(f"name_map maps the names {key!r} to {entry!r}. Map them to a detrand.Rearranged")
    entries = {name: entry for key, entry in rearranged_in(name_map, tf1).items() for name in key}
    taken: dict[str, str] = {}
    seen = set()
    for name in tf1:
        entry = entries.get(name) or mapped_name(name_map, name)
        if not isinstance(entry, (str, Rearranged)):
            raise ArgumentError(
                f"name_map maps {name!r} to {entry!r} of type {type(entry).__name__}. Map it to the variable's name in "
                "the port, even if that is the same, or to a detrand.Rearranged"
            )
        for other in [entry] if isinstance(entry, str) else entry.port_names if entry not in seen else ():
            if other in taken:
                raise ArgumentError(
                    f"the TF1 variables {taken[other]!r} and {name!r} would both be {other!r} in the port. Change "
                    "name_map so that each of them gets a different name"
                )
            taken[other] = name
        seen.add(entry)


def as_tuple(key: Any) -> tuple[Any, ...]:
    """Return the TF1 names in a key of a name map."""
    return key if isinstance(key, tuple) else (key,)


def mapped_name(name_map: NameMap | None, name: str) -> str | Rearranged | None:
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
