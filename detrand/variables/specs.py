"""What variables are, without their values, and how those of two programs differ; knows no framework."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from detrand.errors import ArgumentError
from detrand.variables.name_matching import likeness, match_names

_LIKELY = 0.4  # a likeness of names from which on they may belong to one variable

NameMap = Mapping[str, str] | Callable[[str], str]


@dataclass(frozen=True)
class VariableSpec:
    """What a variable is, without its value.

    >>> str(VariableSpec(shape=(3, 2), dtype="float32", trainable=True))
    'float32 (3, 2), trainable'

    Attributes:
      shape: its static shape, ``None`` for each unknown dimension, or ``None`` if not even the rank is known.
      dtype: name of its dtype, such as ``"float32"``.
      trainable: whether it is trainable; ``None`` from a checkpoint, which does not say.
    """

    shape: tuple[int | None, ...] | None
    dtype: str
    trainable: bool | None

    def __str__(self) -> str:
        shape = "of unknown shape" if self.shape is None else str(self.shape)
        return f"{self.dtype} {shape}{_TRAINABLE[self.trainable]}"


_TRAINABLE = {True: ", trainable", False: ", not trainable", None: ""}


@dataclass(frozen=True)
class Pair:
    """A TF1 variable and the variable of the port under the name that belongs to it.

    Attributes:
      tf1_name: name in TF1.
      tf2_name: name in the port.
      tf1: what it is in TF1.
      tf2: what it is in the port.
    """

    tf1_name: str
    tf2_name: str
    tf1: VariableSpec
    tf2: VariableSpec

    @property
    def name(self) -> str:
        """Both names, where they differ."""
        return _names(self.tf1_name, self.tf2_name)


@dataclass(frozen=True)
class VariablesComparison:
    """Which variables two programs have in common, and what is different about the others.

    Attributes:
      pairs: the variables that both have.
      only_in_tf1: TF1 name -> spec, of those that the port has not.
      only_in_tf2: name -> spec, of those that only the port has.
      expected_names: TF1 name -> the name that the port was to have it under.
    """

    pairs: tuple[Pair, ...]
    only_in_tf1: Mapping[str, VariableSpec]
    only_in_tf2: Mapping[str, VariableSpec]
    expected_names: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether both have the same variables, and at least one."""
        same = not (self.shape_differs or self.dtype_differs or self.trainable_differs)
        return bool(self.pairs) and same and not self.only_in_tf1 and not self.only_in_tf2

    @property
    def shape_differs(self) -> tuple[Pair, ...]:
        """The pairs of unequal shape; an unknown dimension equals an unknown one alone."""
        return tuple(pair for pair in self.pairs if pair.tf1.shape != pair.tf2.shape)

    @property
    def dtype_differs(self) -> tuple[Pair, ...]:
        """The pairs of unequal dtype."""
        return tuple(pair for pair in self.pairs if pair.tf1.dtype != pair.tf2.dtype)

    @property
    def trainable_differs(self) -> tuple[Pair, ...]:
        """The pairs of which both sides say whether they are trainable, and say otherwise."""
        flags = ((pair, {pair.tf1.trainable, pair.tf2.trainable}) for pair in self.pairs)
        return tuple(pair for pair, values in flags if values == {True, False})

    def likely_renames(self) -> dict[str, str]:
        """Returns TF1 name -> name in the port for unpaired variables of equal shape and similar names."""
        names = {self.expected_names[name]: name for name in self.only_in_tf1}
        tf1 = {other: dataclasses.replace(self.only_in_tf1[name], dtype="") for other, name in names.items()}
        port = {name: dataclasses.replace(spec, dtype="") for name, spec in self.only_in_tf2.items()}
        found, _ = match_names(tf1, port)
        return {names[a]: b for a, b in found.items() if likeness(a, b) >= _LIKELY}

    def __str__(self) -> str:
        counts = (
            f"{len(self.pairs) + len(self.only_in_tf1)} in TF1, {len(self.pairs) + len(self.only_in_tf2)} in the port"
        )
        if self.ok:
            return f"the variables match: {counts}"
        lines = [f"the variables differ: {counts}; {self._verdict()}"]
        lines += _section(
            "only in TF1", [f"{_names(n, self.expected_names[n])}: {spec}" for n, spec in self.only_in_tf1.items()]
        )
        lines += _section("only in the port", [f"{name}: {spec}" for name, spec in self.only_in_tf2.items()])
        for title, pairs, field in (
            ("shape differs", self.shape_differs, "shape"),
            ("dtype differs", self.dtype_differs, "dtype"),
            ("trainable differs", self.trainable_differs, "trainable"),
        ):
            lines += _section(
                title, [f"{p.name}: {getattr(p.tf1, field)} in TF1, {getattr(p.tf2, field)} in the port" for p in pairs]
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
        if not self.pairs and not self.only_in_tf1 and not self.only_in_tf2:
            return "there is nothing to compare. A layer has no variables before it is built or called"
        verdicts = [
            (self.only_in_tf1, "only in TF1"),
            (self.only_in_tf2, "only in the port"),
            (self.shape_differs, "in shape"),
            (self.dtype_differs, "in dtype"),
            (self.trainable_differs, "in whether trainable"),
        ]
        verdict = ", ".join(
            f"{len(items)} {'' if text.startswith('only') else 'differing '}{text}" for items, text in verdicts if items
        )
        if not self.pairs and not (self.only_in_tf1 and self.only_in_tf2):
            verdict += ". A layer has no variables before it is built or called"
        return verdict


def compare_specs(
    tf1: Mapping[str, VariableSpec], tf2: Mapping[str, VariableSpec], name_map: NameMap | None = None
) -> VariablesComparison:
    """Pairs the variables of two programs by name.

    Raises:
      ArgumentError: if ``name_map`` has an entry for no TF1 variable, gives two variables one name, or is no map.
    """
    expected = _expected_names(tf1, name_map)
    pairs = [Pair(name, other, tf1[name], tf2[other]) for name, other in expected.items() if other in tf2]
    paired = {pair.tf2_name for pair in pairs}
    return VariablesComparison(
        tuple(pairs),
        {name: spec for name, spec in tf1.items() if expected[name] not in tf2},
        {name: spec for name, spec in tf2.items() if name not in paired},
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


def _names(tf1_name: str, tf2_name: str) -> str:
    return tf1_name if tf1_name == tf2_name else f"{tf1_name} ({tf2_name} by name_map)"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)] if lines else []
