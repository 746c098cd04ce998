"""The comparison of two programs' variables, and the pairing of variables whose names differ.

`compare_variables` pairs the variables of two programs by name, after a name map, and returns a `VariablesComparison`,
whose ``str()`` is the report. `match_names` pairs variables of equal shape and dtype by the likeness of their names,
and says which of the pairs are doubtful.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detrand.arguments import and_more, quote, titled_list
from detrand.errors import ArgumentError, VariableMismatchError
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
        function that is called with each TF1 name and returns the name in the port.

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
    port_names = _port_names(tf1, name_map)
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
        advice = "If only the names differ, pass name_map="
        if not self.pairs and len(renames) > 1:  # a Keras model puts its own name before those of its layers
            added = {_prefix(name, other) for name, other in renames.items()}
            removed = {_prefix(other, name) for name, other in renames.items()}
            if len(added) == 1 and None not in added:
                return [f"{advice}lambda name: {added.pop()!r} + name"]
            if len(removed) == 1 and None not in removed:
                return [f"{advice}lambda name: name.removeprefix({removed.pop()!r})"]
        return [advice + "{", *(f"  {name!r}: {other!r}," for name, other in renames.items()), "}"]

    def likely_renames(self) -> dict[str, str]:
        """Return TF1 name -> name in the port for unpaired variables of equal shape and similar names."""
        tf1_names = {self.port_names[name]: name for name in self.only_in_tf1}
        # Renamed variables are proposed whatever their dtype is: a difference of dtype is reported next.
        tf1 = {other: dataclasses.replace(self.only_in_tf1[name], dtype="") for other, name in tf1_names.items()}
        port = {name: dataclasses.replace(spec, dtype="") for name, spec in self.only_in_port.items()}
        found, _ = match_names(tf1, port)
        return {tf1_names[name]: other for name, other in found.items() if likeness(name, other) >= _LIKELY}


def _names(tf1_name: str, port_name: str) -> str:
    return tf1_name if tf1_name == port_name else f"{tf1_name} (name_map: {port_name})"


def _prefix(name: str, longer: str) -> str | None:
    """Return what comes before a name in a longer one; None if the longer one does not end in the name."""
    return longer.removesuffix(name) if longer.endswith(name) else None


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
_UNLIKE = 0.7  # likeness below which a pair is doubtful
_MARGIN = 0.03  # a rival fits equally well if its likeness is less by no more than this

# The names of one weight in TF1's layers, tf_slim, Keras and hand-written code.
_ROLES = {
    "kernel": ("kernel", "weights", "weight", "w", "filter", "filters"),
    "bias": ("bias", "biases", "b"),
    "gamma": ("gamma", "scale", "g"),
    "beta": ("beta", "offset"),
    "mean": ("moving_mean", "mean", "running_mean"),
    "variance": ("moving_variance", "variance", "running_var", "moving_var"),
    "embeddings": ("embeddings", "embedding", "embedding_table", "embed"),
    "depthwise": ("depthwise_weights", "depthwise_kernel"),
    "pointwise": ("pointwise_weights", "pointwise_kernel"),
}
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words}


def match_names(
    tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec]
) -> tuple[dict[str, str], dict[str, str]]:
    """Pair variables of equal shape and dtype by their names.

    Returns:
      TF1 name -> name in the port, in the order of ``tf1``; and name -> reason for every doubtful or unpaired name.
    """
    pairs = {name: name for name, spec in tf1.items() if name in port and _kind(spec) == _kind(port[name])}
    unsure: dict[str, str] = {}
    unpaired: dict[object, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for position, specs in enumerate((tf1, port)):
        for name in sorted(specs.keys() - pairs.keys(), key=_natural):
            unpaired[_kind(specs[name])][position].append(name)
    for names, others in unpaired.values():
        found = _best_pairs(names, others)
        pairs.update(found)
        unsure.update(_doubts(found, names, others))
    for specs, paired, where in ((tf1, pairs.keys(), "target"), (port, set(pairs.values()), "checkpoint")):
        for name in specs.keys() - paired:
            spec = specs[name]
            unsure.setdefault(name, f"no variable left in the {where} has shape {spec.shape} and dtype {spec.dtype}")
    return (
        {name: pairs[name] for name in tf1 if name in pairs},
        {name: unsure[name] for name in dict.fromkeys([*tf1, *port]) if name in unsure},
    )


def _kind(spec: VariableSpec) -> tuple[object, str]:
    return spec.shape, spec.dtype


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in names by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _best_pairs(names: list[str], others: list[str]) -> dict[str, str]:
    """Pair the most alike names first; of equally alike ones, the first in order."""
    candidates = [(-likeness(a, b), abs(i - j), i, j) for i, a in enumerate(names) for j, b in enumerate(others)]
    found: dict[str, str] = {}
    taken: set[str] = set()
    for _, _, i, j in sorted(candidates):
        if names[i] not in found and others[j] not in taken:
            found[names[i]] = others[j]
            taken.add(others[j])
    return found


def _doubts(found: dict[str, str], names: list[str], others: list[str]) -> dict[str, str]:
    """Return name -> reason for every pair that is doubtful."""
    doubts = {}
    partners = {other: name for name, other in found.items()}
    for name, other in found.items():
        score = likeness(name, other)
        rivals = [rival for rival in others if rival != other and _fits_as_well(name, other, rival, partners)]
        unpaired = [rival for rival in names if rival not in found and likeness(rival, other) >= score - _MARGIN]
        if rivals:
            doubts[name] = f"{and_more(map(repr, rivals), most=3)} would fit as well"
        elif unpaired:
            doubts[name] = f"{and_more(map(repr, unpaired), most=3)} would fit {other!r} as well"
        elif score < _UNLIKE:
            doubts[name] = "only the shape fits; the names have little in common"
    return doubts


def _fits_as_well(name: str, other: str, rival: str, partners: dict[str, str]) -> bool:
    """Return whether the rival fits as well: it is free, or its partner fits what would be given up for it."""
    lost, won = likeness(name, other), likeness(name, rival)
    if rival in partners:
        lost += likeness(partners[rival], rival)
        won += likeness(partners[rival], other)
    return won >= lost - _MARGIN


@functools.lru_cache(maxsize=100_000)
def likeness(a: str, b: str) -> float:
    """Return how alike two names are, from 0 to 1."""
    (scope_a, role_a, numbers_a), (scope_b, role_b, numbers_b) = _taken_apart(a), _taken_apart(b)
    return 0.4 * (role_a == role_b) + 0.35 * _ratio(scope_a, scope_b) + 0.25 * _ratio(numbers_a, numbers_b)


@functools.lru_cache(maxsize=10_000)  # the blocks of a network differ only in their numbers
def _ratio(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


@functools.lru_cache(maxsize=10_000)
def _taken_apart(name: str) -> tuple[str, str, tuple[int, ...]]:
    """Return the letters of a name's scope, the role that its last part names, and the numbers in it."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    scope, _, last = name.rpartition("/")
    word = re.sub(r"_?\d+$", "", last)
    layer, _, role = word.rpartition("_")
    if word not in _ROLE_OF and role in _ROLE_OF:  # softmax_w, as in TF1 code without scopes
        scope, word = f"{scope}/{layer}", role
    numbers = tuple(int(number) for number in re.findall(r"\d+", name))
    return re.sub(r"[_\d]+", "", scope), _ROLE_OF.get(word, word), numbers
