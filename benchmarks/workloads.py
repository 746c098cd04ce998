"""All workloads, in groups, and their selection by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import philox, recorder, seeding, shim
from benchmarks.cases import Group, Workload

GROUPS = (*seeding.GROUPS, *philox.GROUPS, *shim.GROUPS, *recorder.GROUPS)


def chosen(names: Sequence[str]) -> list[Group]:
    """Return the groups, each with only the workloads of some names.

    Args:
      names: names of workloads, or beginnings of names up to a slash: ``"shim"`` selects every workload whose name
        starts with ``shim/``. Empty for all workloads.

    Raises:
      ValueError: if no workload has one of the names.
    """
    for name in names:
        if not any(_is_in(workload, name) for group in GROUPS for workload in group.workloads):
            raise ValueError(
                f"there is no workload {name!r}. Pass names from this list, or their beginnings up to a slash:\n"
                f"{listed()}"
            )
    groups = [
        replace(group, workloads=tuple(w for w in group.workloads if not names or any(_is_in(w, n) for n in names)))
        for group in GROUPS
    ]
    return [group for group in groups if group.workloads]


def listed() -> str:
    """Return the names of all workloads, a line for each group."""
    return "\n".join(
        f"  {group.name}/ {' '.join(workload.program for workload in group.workloads)}" for group in GROUPS
    )


def _is_in(workload: Workload, name: str) -> bool:
    return f"{workload.name}/".startswith(f"{name}/")
