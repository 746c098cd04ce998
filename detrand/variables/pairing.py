"""The pairing of two programs' variables whose names differ, by their names, shapes and order.

`pair_in_order` pairs variables of equal role and size in the order of their creation, which ports keep even where they
rename everything. `own_prefix` finds the scope that one program puts before all of its names.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from detrand.arguments import and_more
from detrand.variables.forms import is_reshaped
from detrand.variables.spec import VariableSpec

_Shape = tuple[int | None, ...] | None

# The names of one weight in TF1's layers, tf_slim, Keras and hand-written code.
_ROLES = {
    "kernel": ("kernel", "weights", "weight", "w", "filter", "filters"),
    "bias": ("bias", "biases", "b"),
    "gamma": ("gamma", "scale", "g"),
    "beta": ("beta", "offset"),
    "mean": ("moving_mean", "mean", "running_mean"),
    "variance": ("moving_variance", "variance", "running_var", "moving_var", "var"),
    "embeddings": ("embeddings", "embedding", "embedding_table", "embed"),
    "depthwise": ("depthwise_weights", "depthwise_kernel"),
    "pointwise": ("pointwise_weights", "pointwise_kernel"),
}
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words}
# A layer's bias may be a normalization's beta, and each kind of matrix may be called a kernel.
_KIND_OF = {"bias": "shift", "beta": "shift", "gamma": "gamma", "mean": "mean", "variance": "variance"}
_SHIFTS = ("bias", "beta")


def own_prefix(names: Collection[str], others: Collection[str]) -> str:
    """Return the scope before all of the names without which more of them are among the others; ``""`` for none.

    >>> own_prefix(["port/dense/kernel", "port/dense/bias"], ["dense/kernel", "dense/bias"])
    'port/'
    """
    known = set(others)
    common = _common_scopes(names)
    prefixes = ["/".join([*common[:count], ""]) if count else "" for count in range(len(common) + 1)]
    return max(prefixes, key=lambda prefix: sum(name.removeprefix(prefix) in known for name in names))


def _common_scopes(names: Collection[str]) -> list[str]:
    """Return the scopes with which all names begin."""
    scopes = [name.split("/")[:-1] for name in names]
    return [levels[0] for levels in _while_equal(zip(*scopes, strict=False))]


def _while_equal(levels: Iterable[tuple[str, ...]]) -> Iterable[tuple[str, ...]]:
    for level in levels:
        if len(set(level)) > 1:
            return
        yield level


def size_of(shape: _Shape) -> Hashable:
    """Return the number of elements and of channels: a 1x1 convolution and a dense layer have kernels of one size.

    >>> size_of((7, 7, 512, 4096)) == size_of((25088, 4096))
    True
    """
    if shape is None or None in shape:
        return shape
    axes = [size for size in shape if size is not None and size != 1]
    return math.prod(axes), axes[-1] if axes else 1


def in_shapes_of(tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec]) -> dict[str, VariableSpec]:
    """Return the port's variables with the shapes that they are reshaped or rearranged from in TF1.

    TF1 has none of such a variable's size, and exactly one shape of which it has more than the port.

    >>> heads = {"query/kernel": VariableSpec((6, 2, 3), "float32", True)}
    >>> in_shapes_of({"query/w": VariableSpec((6, 6), "float32", True)}, heads)["query/kernel"].shape
    (6, 6)
    """
    port = {name: replace(spec, shape=spec.tf1_shape or spec.shape) for name, spec in port.items()}
    counts = [Counter(size_of(spec.shape) for spec in specs.values()) for specs in (tf1, port)]
    more = {spec.shape for spec in tf1.values() if counts[0][size_of(spec.shape)] > counts[1][size_of(spec.shape)]}

    def as_in_tf1(shape: _Shape) -> _Shape:
        found = [] if counts[0][size_of(shape)] else [other for other in more if is_reshaped(other, shape)]
        return found[0] if len(found) == 1 else shape

    return {name: replace(spec, shape=as_in_tf1(spec.shape)) for name, spec in port.items()}


def role_of(name: str) -> str:
    """Return what a variable's name says that it is, such as ``"gamma"``; empty if it could be anything.

    A layer's bias may be a normalization's beta elsewhere, so both are a ``"shift"``.
    """
    return _KIND_OF.get(_taken_apart(name)[1], "")


def exact_role_of(name: str) -> str:
    """Return what `role_of` does, with ``"bias"`` or ``"beta"`` for a ``"shift"``."""
    role = _taken_apart(name)[1]
    return role if role in _SHIFTS else role_of(name)


class Pairs(NamedTuple):
    """The pairs of two programs' variables.

    Attributes:
      names: TF1 name -> name in the port, in the order of TF1.
      in_order: the TF1 names of those pairs that only the order of creation supports, and names neither confirm nor
        contradict.
      doubts: name -> reason, for every pair that names contradict, and for every variable without a counterpart.
    """

    names: dict[str, str]
    in_order: frozenset[str]
    doubts: dict[str, str]


def pair_in_order(tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec], *, by_words: bool = True) -> Pairs:
    """Pair equal names, and then the variables of equal dtype, role and size in the order of their creation.

    Scopes whose words are clearly the most similar ones are paired first, unless `by_words` is False.
    """
    reshaped = in_shapes_of(tf1, port)
    pairs = equal_names(tf1, reshaped)
    in_order: set[str] = set()
    doubts: dict[str, str] = {}
    groups: dict[Hashable, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for position, (specs, paired) in enumerate(((tf1, set(pairs)), (reshaped, set(pairs.values())))):
        for name in _in_order_of_creation(specs):
            if name not in paired:
                groups[size_of(specs[name].shape), specs[name].dtype][position].append(name)
    for names, others in groups.values():
        for of_tf1, of_port in _split(names, others, by_words):
            found = _pair_group(of_tf1, of_port)
            pairs.update(found)
            doubtful, unconfirmed = _doubts(found, of_tf1, of_port)
            doubts.update(doubtful)
            in_order.update(unconfirmed)
    for specs, paired, where in ((tf1, set(pairs), "target"), (port, set(pairs.values()), "checkpoint")):
        for name in specs.keys() - paired:
            spec = specs[name]
            doubts.setdefault(name, f"no variable left in the {where} has shape {spec.shape} and dtype {spec.dtype}")
    return Pairs(
        {name: pairs[name] for name in tf1 if name in pairs},
        frozenset(in_order),
        {name: doubts[name] for name in dict.fromkeys([*tf1, *port]) if name in doubts},
    )


def equal_names(tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec]) -> dict[str, str]:
    """Return TF1 name -> name in the port for variables of one size whose names are equal after an own prefix."""
    port_name = with_own_prefix(tf1, port)
    pairs = {name: port_name(name) for name in tf1}
    return {
        name: other
        for name, other in pairs.items()
        if other in port
        and (size_of(tf1[name].shape), tf1[name].dtype) == (size_of(port[other].shape), port[other].dtype)
    }


def with_own_prefix(tf1: Collection[str], port: Collection[str]) -> Callable[[str], str]:
    """Return the function from TF1's names to the port's if one program has a prefix of its own, or they are equal."""
    of_tf1, of_port = own_prefix(tf1, port), own_prefix(port, tf1)
    known = set(port)
    if sum(name.removeprefix(of_tf1) in known for name in tf1) > sum(of_port + name in known for name in tf1):
        return lambda name: name.removeprefix(of_tf1)
    return lambda name: of_port + name


def _in_order_of_creation(specs: Mapping[str, VariableSpec]) -> list[str]:
    """Return names in the order of creation as far as it is known.

    A checkpoint's names are sorted as text, and say more if the numbers in them are sorted as numbers. Keras counts the
    layers that it names by itself, and keeps them in a different order.
    """
    names = list(specs)
    if names == sorted(names):
        return sorted(names, key=_natural)
    return [name for _, name in sorted(enumerate(names), key=lambda item: (_automatic_number(item[1]), item[0]))]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in names by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


# What Keras calls layers without a name: their class in snake case, which it counts.
_AUTOMATIC = re.compile(
    r"(?:^|/)(?:(?:separable_|depthwise_)?conv[123]d(?:_transpose)?|dense|embedding|(?:batch|layer|group)_normalization)"
    r"(?:_(\d+))?/[^/]+$"
)


def _automatic_number(name: str) -> int:
    """Return the number in a layer's automatic name; 0 for other names, which keep their order."""
    found = _AUTOMATIC.search(name)
    return int(found[1] or 0) if found else 0


def _split(names: list[str], others: list[str], by_words: bool) -> Iterable[tuple[list[str], list[str]]]:
    """Yield the variables of one size in groups of one role, and of like words, as far as both programs have them."""
    for key in (exact_role_of, role_of):
        by_role = _groups(names, key), _groups(others, key)
        if _counts(by_role[0]) == _counts(by_role[1]):
            break
    counts = _counts(by_role[0]), _counts(by_role[1])
    unequal = {role for role in (*counts[0], *counts[1]) if counts[0].get(role) != counts[1].get(role)}
    # A variable whose name shows no role may have one that the other program has more variables of.
    left = unequal if "" in unequal else set[Hashable]()
    known = [role for role in by_role[0] if role in by_role[1] and role not in left]
    grouped = [(by_role[0][role], by_role[1][role]) for role in known]
    used = {name for pair in grouped for group in pair for name in group}
    grouped.append(([name for name in names if name not in used], [name for name in others if name not in used]))
    for of_tf1, of_port in grouped:
        yield from split_by_words(of_tf1, of_port) if by_words else [(of_tf1, of_port)]


def _counts(groups: Mapping[Hashable, list[str]]) -> dict[Hashable, int]:
    return {key: len(group) for key, group in groups.items()}


def _groups(names: Iterable[str], key: Callable[[str], Hashable]) -> dict[Hashable, list[str]]:
    found: dict[Hashable, list[str]] = defaultdict(list)
    for name in names:
        found[key(name)].append(name)
    return found


def split_by_words(names: list[str], others: list[str]) -> Iterable[tuple[list[str], list[str]]]:
    """Yield groups of names whose scopes have the most similar words, if each group is equally large in both."""
    by_words = _groups(names, _words), _groups(others, _words)
    matched: dict[Hashable, Hashable] = {}
    if 1 < len(by_words[0]) == len(by_words[1]):
        likeness = {(a, b): _ratio(str(a), str(b)) for a in by_words[0] for b in by_words[1]}
        for a in by_words[0]:
            ranked = sorted(by_words[1], key=lambda b: -likeness[a, b])
            is_clear = likeness[a, ranked[0]] > likeness[a, ranked[1]]
            if is_clear and len(by_words[1][ranked[0]]) == len(by_words[0][a]):
                matched[a] = ranked[0]
    if len(set(matched.values())) == len(by_words[0]):
        yield from ((by_words[0][a], by_words[1][b]) for a, b in matched.items())
    else:
        yield names, others


def _words(name: str) -> str:
    return _taken_apart(name)[0]


def _pair_group(names: list[str], others: list[str]) -> dict[str, str]:
    """Pair names of one role and size in order; of the longer list, the least alike names are left out."""
    if len(names) <= len(others):
        return _aligned(names, others)
    return {name: other for other, name in _aligned(others, names).items()}


def _aligned(shorter: Sequence[str], longer: Sequence[str]) -> dict[str, str]:
    """Pair each of the shorter names with one of the longer list, in order, so that they are as alike as possible."""
    spare = len(longer) - len(shorter)
    if not spare:
        return dict(zip(shorter, longer, strict=True))
    # best[i][k]: the greatest likeness of the first i pairs if k of the longer list are left out before them
    best = [[0.0] * (spare + 1)]
    chosen: list[list[int]] = []
    for i, name in enumerate(shorter):
        row, choice = [], []
        for k in range(spare + 1):
            options = [best[i][left] + likeness(name, longer[i + left]) for left in range(k + 1)]
            left = max(range(k + 1), key=lambda left: (options[left], -left))
            row.append(options[left])
            choice.append(left)
        best.append(row)
        chosen.append(choice)
    pairs, k = {}, spare
    for i in reversed(range(len(shorter))):
        k = chosen[i][k]
        pairs[shorter[i]] = longer[i + k]
    return pairs


_CLEARLY = 0.2  # a rival contradicts the order if the two pairs that it would make are more alike by this


def _doubts(found: dict[str, str], names: list[str], others: list[str]) -> tuple[dict[str, str], set[str]]:
    """Return TF1 name -> reason for the pairs that names contradict, and the TF1 names of those they do not confirm."""
    doubts, in_order = {}, set()
    spare = [name for name in names if name not in found], [other for other in others if other not in found.values()]
    partners = {other: name for name, other in found.items()}
    for name, other in found.items():
        score = likeness(name, other)
        gains = {rival: _gain_of_swap(name, rival, partners[rival], other) for rival in partners if rival != other}
        rivals = [rival for rival, gain in gains.items() if gain >= _CLEARLY]
        rivals += [rival for rival in spare[1] if likeness(name, rival) >= score]
        unpaired = [rival for rival in spare[0] if likeness(rival, other) >= score]
        if rivals:
            doubts[name] = f"by its name, it could be {and_more(map(repr, rivals), most=3)}"
        elif unpaired:
            doubts[name] = f"by their names, {and_more(map(repr, unpaired), most=3)} could be {other!r}"
        elif gains and max(gains.values()) >= 0:
            in_order.add(name)
    return doubts, in_order


def _gain_of_swap(name: str, other: str, partner: str, given_up: str) -> float:
    """Return by how much names are more alike if a name and another one's partner exchange their counterparts."""
    return likeness(name, other) + likeness(partner, given_up) - likeness(name, given_up) - likeness(partner, other)


@functools.lru_cache(maxsize=100_000)
def likeness(a: str, b: str) -> float:
    """Return how alike two names are, from 0 to 1: the roles, the words and the numbers in them."""
    (words_a, role_a, numbers_a), (words_b, role_b, numbers_b) = _taken_apart(a), _taken_apart(b)
    return 0.4 * (role_a == role_b) + 0.35 * _ratio(words_a, words_b) + 0.25 * _share(numbers_a, numbers_b)


def _share(a: Sequence[int], b: Sequence[int]) -> float:
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if a or b else 1.0


@functools.lru_cache(maxsize=10_000)  # the blocks of a network differ only in their numbers
def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


@functools.lru_cache(maxsize=10_000)
def _taken_apart(name: str) -> tuple[str, str, tuple[int, ...]]:
    """Return the letters of a name's scope, the role that its last part names, and the numbers in it."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "/")  # PyTorch and Flax have "." for "/"
    scope, _, last = name.rpartition("/")
    word = re.sub(r"_?\d+$", "", last)
    layer, _, role = word.rpartition("_")
    if word not in _ROLE_OF and role in _ROLE_OF:  # softmax_w, as in TF1 code without scopes
        scope, word = f"{scope}/{layer}", role
    numbers = tuple(int(number) for number in re.findall(r"\d+", name))
    return re.sub(r"[_\d]+", "", scope), _ROLE_OF.get(word, word), numbers
