"""All workloads, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import seeding, shim
from benchmarks.cases import Workload

ALL = (*seeding.WORKLOADS, *shim.WORKLOADS)
NAMES = ", ".join(workload.name for workload in ALL)


def chosen(names: Sequence[str]) -> list[Workload]:
    """Returns the workloads of those names, where ``"shim"`` is every workload whose name starts with ``shim/``.

    Args:
      names: names of workloads or beginnings of them, whole up to a slash; none for all workloads.

    Raises:
      ValueError: if no workload has one of the names.
    """
    for name in names:
        if not any(_is_in(workload, name) for workload in ALL):
            raise ValueError(
                f"there is no workload {name!r}, only {NAMES}, and what these names begin with up to a slash"
            )
    return [workload for workload in ALL if not names or any(_is_in(workload, name) for name in names)]


def _is_in(workload: Workload, name: str) -> bool:
    return f"{workload.name}/".startswith(f"{name}/")
