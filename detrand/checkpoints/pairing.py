"""The pairing of a checkpoint's variables with a program's, by names and specs, without values.

`pair_variables` decides what is loaded into what, `check_fit` raises the error that lists all that does not fit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.errors import ArgumentError, CheckpointError
from detrand.files import written_whole
from detrand.variables.comparison import (
    NameMap,
    VariablesComparison,
    as_tuple,
    compare_specs,
    mapped_name,
    rearranged_in,
)
from detrand.variables.forms import Rearranged
from detrand.variables.pairing import with_own_prefix
from detrand.variables.spec import VariableSpec, is_compatible


@dataclass(frozen=True)
class Stored:
    """A variable as a checkpoint stores it.

    Attributes:
      names: its name in the checkpoint; the names of its parts if these are stored as separate variables.
      dtype: name of its dtype.
      axis: the axis along which the separate parts are joined; None for a variable that is stored as one.
    """

    names: tuple[str, ...]
    dtype: str
    axis: int | None = None


@dataclass(frozen=True)
class Pairing:
    """A checkpoint's variables, paired with a program's.

    Attributes:
      comparison: of the checkpoint's variables, without those left over, with the program's.
      stored: name in the checkpoint -> how the variable is stored.
      left_over: the checkpoint's names of variables that only training needs, or that ``name_map`` leaves out.
      name_map: the name map of the variables in the comparison.
    """

    comparison: VariablesComparison
    stored: Mapping[str, Stored]
    left_over: tuple[str, ...]
    name_map: NameMap


@dataclass(frozen=True)
class RestoredSession:
    """The result of `restore_session` (`detrand.checkpoints.loading`).

    Attributes:
      tf1_names: name in the checkpoint -> name in the TF1 program, for everything that a variable was restored from.
      unused: the checkpoint's names that belong to no variable of the graph, and that are not there for training only.
    """

    tf1_names: Mapping[str, str]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class NameMapProposal:
    """A proposal for a ``name_map``, with the evidence for its entries.

    Attributes:
      name_map: TF1 name -> name in the port, for the variables whose names differ; and the entries of
        `lstm_cell_to_keras` and `gru_cell_to_keras` for TF1's cells that are Keras layers of their sizes in the port.
      unsure: name -> reason, for entries of ``name_map`` that the names contradict, and for names in the checkpoint or
        the port without a counterpart. Check these before use.
      in_order: the TF1 names of entries for which only the order of creation speaks. The names neither confirm nor
        contradict these.
    """

    name_map: Mapping[Any, str | Rearranged]
    unsure: Mapping[str, str] = field(default_factory=dict)
    in_order: Collection[str] = ()

    def __str__(self) -> str:
        lines = ["name_map = {"]
        for name, other in self.name_map.items():
            if isinstance(other, Rearranged):
                lines.append(f"    **{other.code},")
                continue
            remark = "  # order only" if name in self.in_order else ""
            if name in self.unsure:
                remark = f"  # guess: {self.unsure[name]}"
            lines.append(f"    {name!r}: {other!r},{remark}")
        lines.append("}")
        lines += [f"# {name}: {reason}" for name, reason in self.unsure.items() if name not in self.name_map]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``name_map`` to a JSON file that `load_tf1_checkpoint` takes.

        Raises:
          ArgumentError: if an entry is not a name, because JSON cannot hold it.
        """
        for name, other in self.name_map.items():
            if not isinstance(other, str):
                raise ArgumentError(
                    f"name_map cannot be saved as JSON, because {name!r} is {other!r}. Write the text of "
                    "the proposal, str(proposal), into a Python file"
                )
        with written_whole(path) as file:
            file.write_text(json.dumps(dict(self.name_map), indent=2) + "\n", encoding="utf-8")


def pair_variables(
    specs: Mapping[str, VariableSpec],
    program: Mapping[str, VariableSpec],
    name_map: NameMap | None,
    same_shape: Callable[[Any, Any], bool] = is_compatible,
) -> Pairing:
    """Pair a checkpoint's variables with a program's.

    Raises:
      ArgumentError: if ``name_map`` has an entry for no variable, maps two variables to one name, raises or is no map.
    """
    slots = set(optimizer_slots(specs))
    if name_map is None:
        name_map = with_own_prefix([name for name in specs if name not in slots], program)
    given = {name for key in name_map for name in as_tuple(key)} if isinstance(name_map, Mapping) else set()
    specs, stored = _joined(specs, program, name_map)
    slots.update(name for name in specs if name.endswith(AVERAGE))  # also averages whose parts were joined
    rearranged = rearranged_in(name_map, specs)
    entries = {name: entry for key, entry in rearranged.items() for name in key}
    expected = {name: entries.get(name) or mapped_name(name_map, name) for name in specs}
    wanted = {name: spec for name, spec in specs.items() if expected[name] is not None}
    for slot in slots:
        other, variable = expected.get(slot), slot.removesuffix(AVERAGE)
        if slot not in given and not (isinstance(other, str) and other in program):
            wanted.pop(slot, None)
        elif variable != slot and variable not in given and expected.get(variable) == other:
            wanted.pop(variable, None)  # its moving average is loaded in its place
    names: dict[Any, Any] = {name: expected[name] for name in wanted.keys() - entries.keys()}
    unknown = {name: name for name in given - specs.keys() - entries.keys()}
    comparison = compare_specs(wanted, program, {**names, **rearranged, **unknown}, same_shape)
    left_over = tuple(name for name in specs if name not in wanted)
    return Pairing(comparison, stored, left_over, {**names, **rearranged})


def _joined(
    specs: Mapping[str, VariableSpec], program: Mapping[str, VariableSpec], name_map: NameMap | None
) -> tuple[dict[str, VariableSpec], dict[str, Stored]]:
    """Join parts that are stored as separate variables, where the program has one variable for them.

    A Saver that is given a dict of the parts stores them like that: ``w/part_0``, ``w/part_1``.
    """
    parts: dict[str, dict[int, str]] = {}
    for name in specs:
        if found := re.fullmatch(rf"(.+)/part_(\d+)({AVERAGE})?", name):
            parts.setdefault(found[1] + (found[3] or ""), {})[int(found[2])] = name
    joined_specs = dict(specs)
    stored = {name: Stored((name,), spec.dtype) for name, spec in specs.items()}
    for joined, numbered in parts.items():
        names = tuple(numbered[number] for number in sorted(numbered))
        if joined in specs or sorted(numbered) != list(range(len(names))):
            continue
        if any(mapped_name(name_map, name) in program for name in names):
            continue
        target = mapped_name(name_map, joined)
        wanted = program.get(target) if isinstance(target, str) else None
        axis = _axis_of([specs[name] for name in names], wanted) if wanted else None
        if wanted and axis is not None:
            for name in names:
                del joined_specs[name], stored[name]
            dtype = specs[names[0]].dtype
            joined_specs[joined], stored[joined] = VariableSpec(wanted.shape, dtype, None), Stored(names, dtype, axis)
    return dict(sorted(joined_specs.items())), stored


def _axis_of(parts: list[VariableSpec], whole: VariableSpec) -> int | None:
    """Return the axis along which parts make a variable of that shape, if there is exactly one."""
    shapes = [part.shape or () for part in parts]
    if len({(len(shape), part.dtype) for shape, part in zip(shapes, parts, strict=True)}) != 1:
        return None
    fitting = []
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        before, after = shapes[0][:axis], shapes[0][axis + 1 :]
        are_alike = all(shape[:axis] == before and shape[axis + 1 :] == after for shape in shapes)
        if are_alike and is_compatible((*before, sum(size or 0 for size in sizes), *after), whole.shape):
            fitting.append(axis)
    return fitting[0] if len(fitting) == 1 or (len(shapes) == 1 and fitting) else None


def read_name_map(name_map: Any) -> Any:
    """Return the dict in a JSON file if a name map is given as a path; any other name map as it is.

    Raises:
      ArgumentError: if the file holds no dict.
    """
    if not isinstance(name_map, (str, os.PathLike)):
        return name_map
    path = os.fspath(name_map)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"name_map={path!r} cannot be read as a JSON file ({error}). Pass the path of a file with a dict of "
            "TF1 name -> name in the target, or the dict itself"
        ) from error
    if not isinstance(found, dict):
        raise ArgumentError(
            f"name_map={path!r} holds a {type(found).__name__}. It must hold one dict of TF1 name -> name in the target"
        )
    return found


def check_fit(path: str, comparison: VariablesComparison, program: str = "the target") -> None:
    """Raise a `CheckpointError` that lists everything that does not fit, unless a checkpoint fits a program."""
    labels = "the checkpoint", program
    counts = comparison.counts(*labels)
    if not counts:
        return
    lines = [f"the checkpoint {path!r} does not fit {program}: {counts}. No variable was changed"]
    lines += [*comparison.differences(*labels), *comparison.likely_name_map()]
    if comparison.only_in_tf1 and not comparison.only_in_port:
        unused = next(iter(comparison.only_in_tf1))
        lines += [
            "If the target is a layer, call it once first: the layers inside it have no variables before that.",
            f"To leave out a variable that the target does not need, pass for example name_map={{{unused!r}: None}}.",
        ]
    error = CheckpointError("\n".join(lines))
    error.does_not_fit = True
    raise error
