"""Which names of two programs belong to the same variables; knows no framework and no values."""

from __future__ import annotations

import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detrand.variables.specs import VariableSpec

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
