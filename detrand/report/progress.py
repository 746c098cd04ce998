"""The console of the command, and a progress line on it; no TensorFlow is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from detrand.files import printing


class CommandConsole(Console):
    """A console that prints no more once its pipe is closed, as `head` does: files are written nevertheless."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, emoji=False)  # rich shows ":100:" as an emoji
        if not self.is_terminal:
            self.width = 120  # rich assumes that a pipe is 80 columns wide, and would break most lines

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        with printing():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Go on without printing."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


@contextlib.contextmanager
def showing_progress(console: Console, what: str) -> Iterator[None]:
    """Show what is running, and for how long, while the block runs; nothing if the console is no terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield
