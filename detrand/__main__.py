"""The command line: ``python -m detrand validate FILE[:NAME] ...`` and ``python -m detrand record ... -o FILE``.

It exits with 0 if no check failed, 1 if one failed, and 2 if the checks could not run; then one line on the standard
error stream says why.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from detrand.changes import Changes
from detrand.errors import ArgumentError, DetrandError
from detrand.files import written_whole
from detrand.report.progress import showing_progress

if TYPE_CHECKING:
    from detrand.validation.migration import Migration

PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments after ``python -m detrand``, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    options.command = shlex.join(["python", "-m", "detrand", *arguments])
    try:
        return options.run(options)
    except DetrandError as error:
        print(f"detrand: {' '.join(str(error).split())}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("detrand: interrupted", file=sys.stderr)
        exec("")  # where the interrupt has ended an `exec` of text, as imports have, Python would exit with 130
        return COULD_NOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m detrand", description="Prove that a TensorFlow 1 model and its port compute the same numbers."
    )
    of_both = argparse.ArgumentParser(add_help=False)
    of_both.add_argument(
        "locations",
        metavar="FILE[:NAME]",
        nargs="+",
        help="a Python file and the name of a Migration in it; without a name, `migration`, or else every one in it",
    )
    of_both.add_argument(
        "--tolerance",
        choices=["guide"],
        help="compare with the rtol 1e-6 and atol 1e-5 of TensorFlow's guide, and not with TF1's measured rounding",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    validate = commands.add_parser(
        "validate",
        parents=[of_both],
        help="run every check on migrations",
        description="Run every check on migrations. Exits with 0 if every check passed, 1 if one failed or could not "
        "compare the programs, 2 if the checks could not run.",
    )
    validate.set_defaults(run=_validate)
    for option, metavar, text in (
        ("--golden", "FILE", "use the numbers in FILE, which `record` has made, instead of running TF1"),
        ("--json", "FILE", "also write the report to FILE as JSON"),
        ("--html", "FILE", "also write the report to FILE as a page for a browser"),
        ("--markdown", "FILE", "also write a summary to FILE as Markdown, for a comment on a pull request"),
        ("--logdir", "DIR", "also write the numbers of both programs and the findings to DIR for TensorBoard"),
    ):
        validate.add_argument(option, metavar=metavar, type=Path, help=text)
    validate.add_argument(
        "--allow-inconclusive",
        action="store_true",
        help="exit with 0 if no check failed, although one could not compare the programs",
    )
    validate.add_argument("-v", "--verbose", action="store_true", help="also print the evidence of each check")
    record = commands.add_parser(
        "record",
        parents=[of_both],
        help="record the numbers of TF1 programs in a golden file",
        description="Run the TF1 programs of migrations, and record their numbers for `validate --golden`.",
    )
    record.set_defaults(run=_record)
    record.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the golden file, a .npz")
    return parser


def _load(options: argparse.Namespace) -> list[Migration]:
    from detrand.steps.comparison import Tolerance
    from detrand.validation.migration_files import load_migrations

    migrations = [migration for location in options.locations for migration in load_migrations(location)]
    if options.tolerance:
        return [dataclasses.replace(migration, tolerances=[Tolerance()]) for migration in migrations]
    return migrations


def _validate(options: argparse.Namespace) -> int:
    for file in filter(None, (options.json, options.html, options.markdown)):
        _check_writable("the report", file)
    console = _Console()
    with showing_progress(console, "loading TensorFlow"), _tensorflow_kept_quiet():
        from detrand.report import html, json, markdown
        from detrand.report.text import LiveLines, render, render_overview
        from detrand.validation.results import verdict_of
        from detrand.validation.validate import validate
    migrations = _load(options)
    reports = []
    for migration in migrations:
        logdir = options.logdir and (options.logdir / migration.name if len(migrations) > 1 else options.logdir)
        reports.append(validate(migration, progress=LiveLines(console), golden=options.golden, logdir=logdir))
        render(reports[-1], console, verbose=options.verbose)
    if len(reports) > 1:
        render_overview(reports, console)
    with contextlib.ExitStack() as stack:  # a report that cannot be written is no reason to lose the others
        for file, text in (
            (options.json, lambda: json.render(reports)),
            (options.html, lambda: html.render(reports, options.command)),
            (options.markdown, lambda: markdown.render(reports, options.command)),
        ):
            if file is not None:
                stack.callback(_write_report, file, text())
    verdicts = {"passed", "inconclusive"} if options.allow_inconclusive else {"passed"}
    return PASSED if verdict_of(reports) in verdicts else FAILED


def _record(options: argparse.Namespace) -> int:
    _check_writable("the golden file", options.output)
    console = _Console()
    with showing_progress(console, "loading TensorFlow"), _tensorflow_kept_quiet():
        from detrand.validation.golden import record_golden
    migrations = _load(options)
    names = ", ".join(migration.name for migration in migrations)
    with showing_progress(console, f"recording {names} in TF1"):
        record_golden(migrations, options.output)
    console.print(f"{options.output}: recorded {names}", highlight=False, markup=False, soft_wrap=True)
    return PASSED


class _Console(Console):
    """A console that prints no more once its pipe is closed, as `head` does: files are written nevertheless."""

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = 120  # rich assumes that a pipe is 80 columns wide, and would break most lines

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:  # of a full disk; Python would raise it again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            message = f"the report cannot be written to the standard output: {error.strerror}"
            raise ArgumentError(f"{message}; redirect it to a different disk") from error

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


def _check_writable(what: str, file: Path) -> None:
    """Raise an error if a file cannot be written, before minutes of checks."""
    folder = file.parent
    flaw = "it is a folder" if file.is_dir() else "" if folder.is_dir() else f"the folder {folder} does not exist"
    if not flaw and not os.access(file if file.exists() else folder, os.W_OK):
        flaw = "permission denied"
    if flaw:
        raise _not_writable(what, file, flaw)


def _write_report(file: Path, text: str) -> None:
    try:
        with written_whole(file) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable("the report", file, error.strerror or str(error)) from error


def _not_writable(what: str, file: Path, flaw: str) -> ArgumentError:
    return ArgumentError(f"{what} cannot be written to {file}: {flaw}; give a different file")


@contextlib.contextmanager
def _tensorflow_kept_quiet() -> Iterator[None]:
    """Hide the messages of TensorFlow's C++ code while it is loaded, unless loading fails.

    It reports missing GPU drivers and the like before any log level has an effect.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said, os.fdopen(os.dup(2), "wb", buffering=0) as kept, Changes() as changes:
        changes.on_undo(os.dup2, kept.fileno(), 2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception:
            said.seek(0)
            kept.write(said.read())
            raise
    # The Python code of TensorFlow and Keras warns of deprecated functions; a TF1 program uses little else.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(tensorflow|keras|tf_keras|tf_slim)\b")


if __name__ == "__main__":
    sys.exit(main())
