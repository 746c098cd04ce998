"""Migration files: the Python files with migrations that the command line runs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detrand.changes import Changes
from detrand.checkpoints.graph_files import GraphFile
from detrand.errors import CheckpointError, MigrationError
from detrand.packages import is_installed
from detrand.seeding.callsite import describe_error
from detrand.validation.migration import Migration
from detrand.variables.checkpoint_files import checkpoint_specs


def load_migrations(location: str) -> list[Migration]:
    """Return the migration at ``FILE:NAME``; or for ``FILE``, its variable ``migration``, or else every one in it."""
    file, _, name = location.rpartition(":")
    if not file or not name.isidentifier():
        file, name = location, ""
    path = Path(file)
    if not path.is_file():
        flaw = "is a folder" if path.is_dir() else "does not exist"
        raise MigrationError(f"the file {path} {flaw}; give the path of a Python file that defines a Migration")
    if path.suffix != ".py":
        raise MigrationError(f"the file {path} is not a Python file; its name must end in .py")
    variables = vars(_import_file(path))
    found = {key: value for key, value in variables.items() if isinstance(value, Migration)}
    if "migration" not in found:
        found = _with_distinct_names(found)
    wanted = list(found) if found and not name and "migration" not in found else [name or "migration"]
    for variable in wanted:
        if variable not in found:
            known = f"it defines {', '.join(found)}: give {path}:{next(iter(found))}" if found else ""
            hint = known or "write migration = detrand.Migration(...), or begin with `detrand init`"
            if variable not in variables:
                raise MigrationError(f"{path} does not define {variable}; {hint}")
            kind = type(variables[variable]).__name__
            raise MigrationError(f"{variable} in {path} is of type {kind}, not a Migration; {hint}")
    return [with_files_found(found[variable], path) for variable in wanted]


def _with_distinct_names(found: Mapping[str, Migration]) -> dict[str, Migration]:
    """Return migrations by variable; those that share a default name are named after their variables.

    The others keep their names, because golden files hold migrations by name.
    """
    count = Counter(migration.name for migration in found.values())
    return {
        variable: dataclasses.replace(migration, name=variable)
        if count[migration.name] > 1 and migration.name == migration.default_name
        else migration
        for variable, migration in found.items()
    }


def with_files_found(migration: Migration, file: Path) -> Migration:
    """Return the migration, graph and checkpoint looked up in the file's folder and then in the working directory."""
    if isinstance(migration.tf1, GraphFile):
        migration = dataclasses.replace(migration, tf1=migration.tf1.in_folder(file.parent))
    if migration.checkpoint is None:
        return migration
    given = os.fsdecode(migration.checkpoint)
    beside = file.parent / given
    is_beside = beside.exists() or any(any(beside.parent.glob(beside.name + end)) for end in ("", ".*"))
    found = str(beside) if is_beside else given
    try:
        if is_installed("tensorflow"):
            checkpoint_specs("checkpoint", found)
    except CheckpointError as error:
        places = "" if os.path.isabs(given) else f" (looked up in {file.parent} and in the working directory)"
        raise MigrationError(f"migration {migration.name} in {file}: {error}{places}") from error
    return dataclasses.replace(migration, checkpoint=found)


def _import_file(path: Path) -> Any:
    # As in `python FILE`: the file's folder comes first in sys.path, and the module has the file's name.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    with first_in_path(path.parent):
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise MigrationError(f"{path} cannot be imported: {describe_error(error)}") from error
    return module


@contextlib.contextmanager
def first_in_path(folder: Path) -> Iterator[None]:
    """Import from a folder first in the block, as ``python FILE`` imports from the file's folder."""
    path = str(folder.resolve())
    with Changes() as changes:
        changes.on_undo(lambda: sys.path.remove(path) if path in sys.path else None)
        sys.path.insert(0, path)
        yield
