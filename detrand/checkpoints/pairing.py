"""Which variable of a checkpoint is which of a program, and what the two do not have in common; knows no values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detrand.checkpoints.files import Stored
from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.errors import ArgumentError, CheckpointError
from detrand.variables.comparison import Pair, VariablesComparison, compare_specs
from detrand.variables.spec import VariableSpec

NameMap = Mapping[str, str | None] | Callable[[str], str | None]


@dataclass(frozen=True)
class Pairing:
    """What of a checkpoint goes where.

    Attributes:
      comparison: of the checkpoint, without what is left over, with the program.
      stored: name in the checkpoint -> how it is stored, of what is not left over.
      left_over: the checkpoint's names of what training alone needs, and of what ``name_map`` leaves out.
    """

    comparison: VariablesComparison
    stored: Mapping[str, Stored]
    left_over: tuple[str, ...]


def pair_variables(
    specs: Mapping[str, VariableSpec], program: Mapping[str, VariableSpec], name_map: NameMap | None
) -> Pairing:
    """Pairs a checkpoint's variables with a program's.

    Args:
      specs: what the checkpoint holds.
      program: the program's variables.
      name_map: as `load_tf1_checkpoint` takes it, but no path.

    Raises:
      ArgumentError: if ``name_map`` has an entry for no variable, gives two variables one name, raises or is no map.
    """
    slots = set(optimizer_slots(specs))
    given = set(name_map) if isinstance(name_map, Mapping) else set()
    specs, stored = _joined(specs, program, name_map)
    slots.update(name for name in specs if name.endswith(AVERAGE))  # of parts joined
    expected = {name: mapped_name(name_map, name) for name in specs}
    wanted = {name: spec for name, spec in specs.items() if expected[name] is not None}
    for slot in slots:
        other, variable = expected.get(slot), slot.removesuffix(AVERAGE)
        if slot not in given and not (isinstance(other, str) and other in program):
            wanted.pop(slot, None)
        elif variable != slot and variable not in given and expected.get(variable) == other:
            wanted.pop(variable, None)  # its moving average is loaded in its place
    names: dict[str, Any] = {name: expected[name] for name in wanted}
    comparison = compare_specs(wanted, program, {**names, **{name: name for name in given - specs.keys()}})
    return Pairing(comparison, stored, tuple(name for name in specs if name not in wanted))


def mapped_name(name_map: NameMap | None, name: str) -> str | None:
    """Returns the name that a map gives for one in TF1; None if it leaves that out.

    Raises:
      ArgumentError: if it is no map, or raises.
    """
    if name_map is None:
        return name
    if isinstance(name_map, Mapping):
        return name_map.get(name, name)
    if not callable(name_map):
        raise ArgumentError(
            "name_map must be a dict of TF1 name -> name in the target, a function from the one to the other, or the "
            f"path of a JSON file with such a dict, but {name_map!r} of type {type(name_map).__name__} was given"
        )
    try:
        return name_map(name)
    except Exception as error:
        raise ArgumentError(
            f"name_map raised {type(error).__name__}({error}) for {name!r}; it is called for each name in the "
            "checkpoint and must return one, or None for what is to be left over"
        ) from error


def _joined(
    specs: Mapping[str, VariableSpec], program: Mapping[str, VariableSpec], name_map: NameMap | None
) -> tuple[dict[str, VariableSpec], dict[str, Stored]]:
    """Makes one variable of parts that are stored as if each were one, where the program has it under the one name.

    A Saver writes parts so that is given a dict of them: ``w/part_0``, ``w/part_1``.
    """
    parts: dict[str, dict[int, str]] = {}
    for name in specs:
        if found := re.fullmatch(rf"(.+)/part_(\d+)({AVERAGE})?", name):
            parts.setdefault(found[1] + (found[3] or ""), {})[int(found[2])] = name
    whole_specs = dict(specs)
    stored = {name: Stored((name,), spec.dtype) for name, spec in specs.items()}
    for whole, numbered in parts.items():
        names = tuple(numbered[number] for number in sorted(numbered))
        if whole in specs or sorted(numbered) != list(range(len(names))):
            continue
        if any(mapped_name(name_map, name) in program for name in names):
            continue
        wanted = program.get(mapped_name(name_map, whole) or "")
        axis = _axis_of([specs[name] for name in names], wanted) if wanted else None
        if wanted and axis is not None:
            for name in names:
                del whole_specs[name], stored[name]
            shape = _concatenated([specs[name].shape or () for name in names], axis)
            dtype = specs[names[0]].dtype
            whole_specs[whole], stored[whole] = VariableSpec(shape, dtype, None), Stored(names, dtype, axis)
    return {name: whole_specs[name] for name in sorted(whole_specs)}, stored


def _axis_of(parts: list[VariableSpec], whole: VariableSpec) -> int | None:
    """Returns the axis along which parts make a variable of that shape, if there is exactly one."""
    shapes = [part.shape or () for part in parts]
    if len({(len(shape), part.dtype) for shape, part in zip(shapes, parts, strict=True)}) != 1:
        return None
    fitting = [
        axis
        for axis in range(len(shapes[0]))
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1
        and tf.TensorShape(_concatenated(shapes, axis)).is_compatible_with(tf.TensorShape(whole.shape))
    ]
    return fitting[0] if len(fitting) == 1 or (len(shapes) == 1 and fitting) else None


def _concatenated(shapes: list[tuple[int | None, ...]], axis: int) -> tuple[int | None, ...]:
    first = shapes[0]
    return (*first[:axis], sum(shape[axis] or 0 for shape in shapes), *first[axis + 1 :])


def read_name_map(name_map: Any) -> Any:
    """Returns the dict in a JSON file; anything but a path as it is.

    Raises:
      ArgumentError: if the file holds none.
    """
    if not isinstance(name_map, (str, os.PathLike)):
        return name_map
    path = os.fspath(name_map)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"name_map={path!r} is no JSON file that can be read ({error}); give the path of a file with a dict of "
            "TF1 name -> name in the target, or the dict itself"
        ) from error
    if not isinstance(found, dict):
        raise ArgumentError(
            f"name_map={path!r} holds a {type(found).__name__}; it must hold one dict of TF1 name -> name in the target"
        )
    return found


def check_fit(path: str, comparison: VariablesComparison, program: str = "the target") -> None:
    """Checks that a checkpoint and a program have the same variables.

    Args:
      path: the checkpoint.
      comparison: of it with the program.
      program: what the program is called.

    Raises:
      CheckpointError: with a list of everything that does not fit.
    """
    shape_differs = [pair for pair in comparison.pairs if not _compatible(pair)]
    expected = comparison.expected_names
    missing, left_over = comparison.only_in_port, comparison.only_in_tf1
    counts = [
        f"{len(items)} {text}"
        for items, text in (
            (missing, "missing in it"),
            (left_over, "left over in it"),
            (shape_differs, "of another shape"),
            (comparison.dtype_differs, "of another dtype"),
        )
        if items
    ]
    if not counts:
        return
    lines = [f"the checkpoint {path!r} does not fit {program}: {', '.join(counts)}; no variable was changed"]
    lines += section("missing in the checkpoint", [f"{name}: {spec}" for name, spec in missing.items()])
    lines += section(
        "left over in the checkpoint",
        [f"{_both(name, expected[name])}: {spec}" for name, spec in left_over.items()],
    )
    for title, pairs in (("shape", shape_differs), ("dtype", comparison.dtype_differs)):
        found = [
            f"{pair.name}: {getattr(pair.tf1, title)} in the checkpoint, {getattr(pair.port, title)} in {program}"
            for pair in pairs
        ]
        lines += section(f"{title} differs", found)
    lines += comparison.likely_name_map()
    if left_over and not missing:
        lines += [
            "a layer has the variables of inner layers only after it was called: call the target once first",
            f"what it has no use for, leave out: name_map={{{next(iter(left_over))!r}: None}}, say",
        ]
    raise CheckpointError("\n".join(lines))


def _compatible(pair: Pair) -> bool:
    return tf.TensorShape(pair.tf1.shape).is_compatible_with(tf.TensorShape(pair.port.shape))


def _both(tf1_name: str, name: str) -> str:
    return tf1_name if tf1_name == name else f"{tf1_name} ({name} by name_map)"


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Returns the lines of a list with a title; none if there is nothing to list."""
    lines = list(lines)
    return [f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)] if lines else []
