"""Files that are written whole, or not at all, by `written_whole`; and the standard output, by `printing`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from detrand.changes import Changes
from detrand.errors import ArgumentError


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a new file beside ``path``, which takes its place once the block has written it.

    If the block raises, or the disk is full, the file at ``path`` stays as it was. A device or a pipe, and a file in a
    folder that takes no new files, is written itself.
    """
    given = Path(os.fsdecode(path))
    place = Path(os.path.realpath(given))  # a link stays one; /dev/fd/3 of a pipe has no real path
    if (given.exists() and not given.is_file()) or not os.access(place.parent, os.W_OK):
        yield given
        return
    unfinished = place.with_name(f"{place.name}_temp_{uuid.uuid4().hex}")
    with Changes() as changes:
        changes.on_undo(_remove, unfinished)
        yield unfinished
        if place.exists():
            shutil.copymode(place, unfinished)
        os.replace(unfinished, place)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print no more once the pipe is closed, as `head` does; raise an `ArgumentError` if the disk is full."""
    try:
        yield
    except OSError as error:  # Python would raise it again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            message = f"the report cannot be written to the standard output: {error.strerror}"
            raise ArgumentError(f"{message}; redirect it to a different disk") from error


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone if all went well
        file.unlink()
