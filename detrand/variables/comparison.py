"""How the variables of two programs differ, and which names belong to the same variable; no framework is imported."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from detrand.errors import ArgumentError
from detrand.variables.spec import VariableSpec

_LIKELY = 0.4  # a likeness of names from which on they may belong to one variable

NameMap = Mapping[str, str] | Callable[[str], str]


@dataclass(frozen=True)
class Pair:
    """A TF1 variable and the variable of the port under the name that belongs to it.

    Attributes:
      tf1_name: name in TF1.
      port_name: name in the port.
      tf1: what it is in TF1.
      port: what it is in the port.
    """

    tf1_name: str
    port_name: str
    tf1: VariableSpec
    port: VariableSpec

    @property
    def name(self) -> str:
        """Both names, where they differ."""
        return _names(self.tf1_name, self.port_name)


@dataclass(frozen=True)
class VariablesComparison:
    """Which variables two programs have in common, and what is different about the others.

    Attributes:
      pairs: the variables that both have.
      only_in_tf1: TF1 name -> spec, of those that the port has not.
      only_in_port: name -> spec, of those that only the port has.
      expected_names: TF1 name -> the name that the port was to have it under.
    """

    pairs: tuple[Pair, ...]
    only_in_tf1: Mapping[str, VariableSpec]
    only_in_port: Mapping[str, VariableSpec]
    expected_names: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether both have the same variables, and at least one."""
        same = not (self.shape_differs or self.dtype_differs or self.trainable_differs)
        return bool(self.pairs) and same and not self.only_in_tf1 and not self.only_in_port

    @property
    def shape_differs(self) -> tuple[Pair, ...]:
        """The pairs of unequal shape; an unknown dimension equals an unknown one alone."""
        return tuple(pair for pair in self.pairs if pair.tf1.shape != pair.port.shape)

    @property
    def dtype_differs(self) -> tuple[Pair, ...]:
        """The pairs of unequal dtype."""
        return tuple(pair for pair in self.pairs if pair.tf1.dtype != pair.port.dtype)

    @property
    def trainable_differs(self) -> tuple[Pair, ...]:
        """The pairs of which both sides say whether they are trainable, and say otherwise."""
        flags = ((pair, {pair.tf1.trainable, pair.port.trainable}) for pair in self.pairs)
        return tuple(pair for pair, values in flags if values == {True, False})

    def likely_renames(self) -> dict[str, str]:
        """Returns TF1 name -> name in the port for unpaired variables of equal shape and similar names."""
        names = {self.expected_names[name]: name for name in self.only_in_tf1}
        tf1 = {other: dataclasses.replace(self.only_in_tf1[name], dtype="") for other, name in names.items()}
        port = {name: dataclasses.replace(spec, dtype="") for name, spec in self.only_in_port.items()}
        found, _ = match_names(tf1, port)
        return {names[a]: b for a, b in found.items() if likeness(a, b) >= _LIKELY}

    def __str__(self) -> str:
        counts = (
            f"{len(self.pairs) + len(self.only_in_tf1)} in TF1, {len(self.pairs) + len(self.only_in_port)} in the port"
        )
        if self.ok:
            return f"the variables match: {counts}"
        lines = [f"the variables differ: {counts}; {self._verdict()}"]
        lines += _section(
            "only in TF1", [f"{_names(n, self.expected_names[n])}: {spec}" for n, spec in self.only_in_tf1.items()]
        )
        lines += _section("only in the port", [f"{name}: {spec}" for name, spec in self.only_in_port.items()])
        for title, pairs, field in (
            ("shape differs", self.shape_differs, "shape"),
            ("dtype differs", self.dtype_differs, "dtype"),
            ("trainable differs", self.trainable_differs, "trainable"),
        ):
            lines += _section(
                title,
                [f"{p.name}: {getattr(p.tf1, field)} in TF1, {getattr(p.port, field)} in the port" for p in pairs],
            )
        return "\n".join([*lines, *self.likely_name_map()])

    def likely_name_map(self) -> list[str]:
        """Returns lines that propose a ``name_map``; none where it is not likely that only names differ."""
        renames = self.likely_renames()
        if not renames:
            return []
        advice = "perhaps only names differ; if so, pass name_map="
        if not self.pairs and len(renames) > 1:  # a Keras model puts its own name before those of its layers
            prefixes = {_prefix(name, other) for name, other in renames.items()}
            removed = {_prefix(other, name) for name, other in renames.items()}
            if len(prefixes) == 1 and None not in prefixes:
                return [f"{advice}lambda name: {prefixes.pop()!r} + name"]
            if len(removed) == 1 and None not in removed:
                return [f"{advice}lambda name: name.removeprefix({removed.pop()!r})"]
        return [advice + "{", *(f"  {name!r}: {other!r}," for name, other in renames.items()), "}"]

    def _verdict(self) -> str:
        if not self.pairs and not self.only_in_tf1 and not self.only_in_port:
            return "there is nothing to compare. A layer has no variables before it is built or called"
        verdicts = [
            (self.only_in_tf1, "only in TF1"),
            (self.only_in_port, "only in the port"),
            (self.shape_differs, "in shape"),
            (self.dtype_differs, "in dtype"),
            (self.trainable_differs, "in whether trainable"),
        ]
        verdict = ", ".join(
            f"{len(items)} {'' if text.startswith('only') else 'differing '}{text}" for items, text in verdicts if items
        )
        if not self.pairs and not (self.only_in_tf1 and self.only_in_port):
            verdict += ". A layer has no variables before it is built or called"
        return verdict


def compare_specs(
    tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec], name_map: NameMap | None = None
) -> VariablesComparison:
    """Pairs the variables of two programs by name.

    Raises:
      ArgumentError: if ``name_map`` has an entry for no TF1 variable, gives two variables one name, or is no map.
    """
    expected = _expected_names(tf1, name_map)
    pairs = [Pair(name, other, tf1[name], port[other]) for name, other in expected.items() if other in port]
    paired = {pair.port_name for pair in pairs}
    return VariablesComparison(
        tuple(pairs),
        {name: spec for name, spec in tf1.items() if expected[name] not in port},
        {name: spec for name, spec in port.items() if name not in paired},
        expected,
    )


def _expected_names(tf1: Mapping[str, VariableSpec], name_map: NameMap | None) -> dict[str, str]:
    if name_map is None:
        name_map = {}
    if isinstance(name_map, Mapping):
        for name in name_map:
            if name not in tf1:
                close = difflib.get_close_matches(str(name), tf1, n=3)
                raise ArgumentError(
                    f"name_map has an entry for {name!r}, but TF1 has no variable of that name; "
                    + (f"did you mean {' or '.join(map(repr, close))}?" if close else "take the entry out")
                )
        expected = {name: name_map.get(name, name) for name in tf1}
    elif callable(name_map):
        expected = {name: _mapped(name_map, name) for name in tf1}
    else:
        raise ArgumentError(
            f"name_map must be a dict of TF1 name -> name in the port, or a function from the one to the other, but "
            f"{name_map!r} of type {type(name_map).__name__} was given; pass name_map={{'old/w': 'new/w'}}, say"
        )
    tf1_name_of: dict[str, str] = {}
    for name, other in expected.items():
        if not isinstance(other, str):
            raise ArgumentError(
                f"name_map gives {other!r} of type {type(other).__name__} for {name!r}; give a name, {name!r} "
                "itself if it is the same in the port"
            )
        if other in tf1_name_of:
            raise ArgumentError(
                f"the TF1 variables {tf1_name_of[other]!r} and {name!r} would both be {other!r} in the port, by "
                "name_map or by their own names; give each a name of its own"
            )
        tf1_name_of[other] = name
    return expected


def _mapped(name_map: Callable[[str], str], name: str) -> str:
    try:
        return name_map(name)
    except Exception as error:
        raise ArgumentError(
            f"name_map raised {type(error).__name__}({error}) for {name!r}; it is called for each TF1 variable, and "
            "must return its name in the port"
        ) from error


def _prefix(name: str, longer: str) -> str | None:
    """Returns what comes before a name in a longer one; None if that does not end in it."""
    return longer.removesuffix(name) if longer.endswith(name) else None


def _names(tf1_name: str, port_name: str) -> str:
    return tf1_name if tf1_name == port_name else f"{tf1_name} ({port_name} by name_map)"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)] if lines else []


# What the same weight is called by TF1's layers, tf_slim, Keras and hand-written code.
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
_UNLIKE, _MARGIN = 0.7, 0.03  # of a likeness


def match_names(
    tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec]
) -> tuple[dict[str, str], dict[str, str]]:
    """Pairs variables of equal shape and dtype by their names.

    Args:
      tf1: name -> spec in TF1.
      port: name -> spec in the port.

    Returns:
      TF1 name -> name in the port, in the order of ``tf1``; and name -> reason, of whatever is doubtful in it.
    """
    pairs = {name: name for name, spec in tf1.items() if name in port and _kind(spec) == _kind(port[name])}
    unsure: dict[str, str] = {}
    rest: dict[object, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, specs in enumerate((tf1, port)):
        for name in sorted(specs.keys() - pairs.keys(), key=_natural):
            rest[_kind(specs[name])][side].append(name)
    for names, others in rest.values():
        found = _best_pairs(names, others)
        pairs.update(found)
        unsure.update(_doubts(found, names, others))
    for specs, where in ((tf1, "target"), (port, "checkpoint")):
        found_names = pairs.keys() if specs is tf1 else set(pairs.values())
        for name in specs.keys() - found_names:
            spec = specs[name]
            unsure.setdefault(
                name, f"no free variable of the {where} has its shape {spec.shape} and dtype {spec.dtype}"
            )
    order = {name: position for position, name in enumerate([*tf1, *port])}
    return (
        {name: pairs[name] for name in tf1 if name in pairs},
        {name: unsure[name] for name in sorted(unsure, key=order.__getitem__)},
    )


def _best_pairs(names: list[str], others: list[str]) -> dict[str, str]:
    """Takes the most alike pair, then the most alike of the rest; of equally alike ones, the first in order."""
    places = [(-likeness(a, b), abs(i - j), i, j) for i, a in enumerate(names) for j, b in enumerate(others)]
    found: dict[str, str] = {}
    taken: set[str] = set()
    for _, _, i, j in sorted(places):
        if names[i] not in found and others[j] not in taken:
            found[names[i]] = others[j]
            taken.add(others[j])
    return found


def _doubts(found: dict[str, str], names: list[str], others: list[str]) -> dict[str, str]:
    doubts = {}
    owner = {other: name for name, other in found.items()}
    for name, other in found.items():
        score = likeness(name, other)
        rivals = [rival for rival in others if rival != other and _as_good(name, other, rival, owner)]
        unpaired = [rival for rival in names if rival not in found and likeness(rival, other) >= score - _MARGIN]
        if rivals:
            doubts[name] = f"might as well be {_listed(rivals)}"
        elif unpaired:
            doubts[name] = f"{other!r} might as well be that of {_listed(unpaired)}"
        elif score < _UNLIKE:
            doubts[name] = "the names have little in common, only the shape fits"
    return doubts


def _as_good(name: str, other: str, rival: str, owner: dict[str, str]) -> bool:
    """Whether the rival would do as well: it is free, or its partner would take what is given up for it."""
    lost, won = likeness(name, other), likeness(name, rival)
    if rival in owner:
        lost += likeness(owner[rival], rival)
        won += likeness(owner[rival], other)
    return won >= lost - _MARGIN


@functools.lru_cache(maxsize=100_000)
def likeness(a: str, b: str) -> float:
    """Returns how alike two names are, from 0 to 1."""
    (scope_a, role_a, numbers_a), (scope_b, role_b, numbers_b) = _taken_apart(a), _taken_apart(b)
    return 0.4 * (role_a == role_b) + 0.35 * _ratio(scope_a, scope_b) + 0.25 * _ratio(numbers_a, numbers_b)


@functools.lru_cache(maxsize=10_000)  # the blocks of a network differ in their numbers alone
def _ratio(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


@functools.lru_cache(maxsize=10_000)
def _taken_apart(name: str) -> tuple[str, str, tuple[int, ...]]:
    """Returns a name's letters without the last part, what that part means, and the numbers in the name."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    scope, _, last = name.rpartition("/")
    word = re.sub(r"_?\d+$", "", last)
    layer, _, role = word.rpartition("_")
    if word not in _ROLE_OF and role in _ROLE_OF:  # softmax_w, as TF1 code without scopes has it
        scope, word = f"{scope}/{layer}", role
    numbers = tuple(int(number) for number in re.findall(r"\d+", name))
    return re.sub(r"[_\d]+", "", scope), _ROLE_OF.get(word, word), numbers


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _kind(spec: VariableSpec) -> tuple[object, str]:
    return spec.shape, spec.dtype


def _listed(names: Iterable[str]) -> str:
    names = [repr(name) for name in names]
    return " or ".join(names[:3]) + (f" or one of {len(names) - 3} others" if len(names) > 3 else "")
