"""The command ``detrand``, which is also ``python -m detrand``.

- ``validate FILE[:NAME] ...`` runs the checks on migrations.
- ``record FILE[:NAME] ... -o GOLDEN`` records the numbers of TF1 programs.
- ``diff STEPS STEPS`` compares two recordings of training steps.
- ``init [FILE]`` writes a migration file to begin with.
- ``explain [SYMPTOM]`` prints what a finding or an error means, and what to change.

It exits with 0 if nothing differs, 1 if something does, and 2 if it could not run, or not for each migration; then a
line on the standard error stream says why.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import detrand
from detrand.arguments import and_more
from detrand.changes import Changes
from detrand.errors import ArgumentError, DetrandError
from detrand.files import printing, written_whole
from detrand.packages import is_installed, needed_by

if TYPE_CHECKING:
    from rich.console import Console

    from detrand.validation.migration import Migration
    from detrand.validation.report import Report

PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2
_STDOUT = Path("-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments after ``python -m detrand``, and return the exit status."""
    started_as = ["detrand"] if Path(sys.argv[0]).stem == "detrand" else ["python", "-m", "detrand"]
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(" ".join(started_as)).parse_args(arguments or ["--help"])
    options.command = shlex.join([*started_as, *arguments])
    try:
        with needed_by(f"`{options.command}`"), _log_printed() if options.traceback else contextlib.nullcontext():
            return options.run(options)
    except DetrandError as error:
        _print_error(error, options)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("detrand: interrupted", file=sys.stderr)
        exec("")  # where the interrupt has ended an `exec` of text, as imports have, Python would exit with 130
        return COULD_NOT_RUN


def _print_error(error: DetrandError, options: argparse.Namespace) -> None:
    if options.traceback:
        traceback.print_exception(error)
    # The message of an ArgumentError says all that there is to say.
    more = "" if type(error) is ArgumentError else f" (detrand explain {type(error).__name__})"
    print(f"detrand: {' '.join(str(error).split())}{more}", file=sys.stderr)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description="Prove that a TensorFlow 1 model and its port compute the same numbers."
    )
    parser.add_argument("--version", action="version", version=f"detrand {detrand.__version__}")
    of_all = argparse.ArgumentParser(add_help=False)
    of_all.add_argument(
        "--traceback",
        action="store_true",
        help="also print tracebacks: of the error that ends the command, and of errors that a report leaves out",
    )
    of_both = argparse.ArgumentParser(add_help=False, parents=[of_all])
    of_both.add_argument(
        "locations",
        metavar="FILE[:NAME]",
        nargs="+",
        help="a Python file and the name of a Migration in it; without a name, `migration`, or else every one in it",
    )
    of_both.add_argument(
        "--tolerance",
        choices=["guide"],
        help="use the rtol 1e-6 and atol 1e-5 of TensorFlow's guide in place of TF1's measured rounding",
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
    which = validate.add_mutually_exclusive_group()
    which.add_argument(
        "--check", metavar="NAME", action="append", help="run only this check; may be given several times"
    )
    which.add_argument(
        "--last-failed",
        action="store_true",
        help="run only the checks that failed according to the FILE of --json, which an earlier run has written; all "
        "checks if none failed",
    )
    validate.add_argument("--list", action="store_true", help="print the migrations and their checks, and run none")
    validate.add_argument("-x", "--exitfirst", action="store_true", help="stop after the first check that fails")
    for option, metavar, text in (
        ("--golden", "FILE", "use the numbers in FILE, which `record` has made, instead of running TF1"),
        ("--json", "FILE", "also write the report to FILE as JSON; - is the standard output"),
        ("--html", "FILE", "also write the report to FILE as a page for a browser"),
        ("--markdown", "FILE", "also write a summary to FILE as Markdown, for a comment on a pull request"),
        ("--junit", "FILE", "also write the checks to FILE as JUnit XML, for a CI server"),
        ("--logdir", "DIR", "also write the numbers of both programs and the findings to DIR for TensorBoard"),
    ):
        validate.add_argument(option, metavar=metavar, type=Path, help=text)
    validate.add_argument(
        "--allow-inconclusive",
        action="store_true",
        help="exit with 0 if no check failed, even if one could not compare the programs",
    )
    how_much = validate.add_mutually_exclusive_group()
    how_much.add_argument("-v", "--verbose", action="store_true", help="also print the evidence of each check")
    how_much.add_argument("-q", "--quiet", action="store_true", help="print only the verdict on each migration")
    record = commands.add_parser(
        "record",
        parents=[of_both],
        help="record the numbers of TF1 programs in a golden file",
        description="Run the TF1 programs of migrations, and record their numbers for `validate --golden`.",
    )
    record.set_defaults(run=_record)
    record.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the golden file, a .npz")
    diff = commands.add_parser(
        "diff",
        parents=[of_all],
        help="compare two recordings of training steps",
        description="Compare two files that StepRecorder.save has written, step by step. Exits with 0 if they agree "
        "and with 1 if they differ.",
    )
    diff.set_defaults(run=_diff)
    diff.add_argument("actual", metavar="PORT", type=Path, help="the recording of the port, a .npz")
    diff.add_argument("desired", metavar="TF1", type=Path, help="the recording of the TF1 program, a .npz")
    init = commands.add_parser(
        "init",
        parents=[of_all],
        help="write a migration file to begin with",
        description="Write a migration file. Without --port, its port is the TF1 code in a Keras layer, so that its "
        "checks pass. Without --from, it has an example in place of a model.",
    )
    init.set_defaults(run=_init)
    init.add_argument("file", metavar="FILE", nargs="?", type=Path, default=Path("migration.py"), help="migration.py")
    init.add_argument(
        "--from",
        metavar="MODULE:NAME",
        default="",
        dest="source",
        help="a function or class that makes your TF1 model, with inputs as parameters or as placeholders; or the path "
        "of its graph: a frozen .pb, a SavedModel or a .meta file",
    )
    init.add_argument(
        "--port",
        metavar="MODULE:NAME",
        default="",
        help="a function or class that makes your port, if you have one; where its variables have other names, the "
        "file has a name_map",
    )
    explain = commands.add_parser(
        "explain",
        parents=[of_all],
        help="print what a finding or an error means",
        description="Print what a finding or an error means, why it occurs, and what to change.",
    )
    explain.set_defaults(run=_explain)
    explain.add_argument("symptom", metavar="SYMPTOM", nargs="?", help="its name, as in a report; default: list them")
    for option in ("--rtol", "--atol"):
        diff.add_argument(option, type=float, metavar="NUMBER", help="as that of numpy.allclose; give both")
    return parser


def _load(options: argparse.Namespace) -> list[Migration]:
    from detrand.steps.comparison import Tolerance
    from detrand.validation.migration_files import load_migrations

    migrations = [migration for location in options.locations for migration in load_migrations(location)]
    if options.tolerance:
        return [dataclasses.replace(migration, tolerances=[Tolerance()]) for migration in migrations]
    return migrations


def _validate(options: argparse.Namespace) -> int:
    if options.golden is None:
        _check_tensorflow()
    for file in filter(None, (options.json, options.html, options.markdown, options.junit)):
        if file != _STDOUT:
            _check_writable("the report", file)
    from detrand.report.progress import CommandConsole, showing_progress

    console = CommandConsole(stderr=options.json == _STDOUT)
    with showing_progress(console, "loading TensorFlow"), _tensorflow_kept_quiet():
        if is_installed("tensorflow"):
            import tensorflow  # noqa: F401
        from detrand.report.text import LiveLines, render, render_overview, render_verdict
        from detrand.validation.report import verdict_of
        from detrand.validation.validate import Progress, ValidationInterrupted, selected_checks, validate
    migrations = _load(options)
    selected = [selected_checks(migration, options.check) for migration in migrations]
    if options.last_failed:
        failed = _failed_checks(options.json)
        left = [
            [name for name in checks if (each.name, name) in failed]
            for each, checks in zip(migrations, selected, strict=True)
        ]
        selected = left if any(left) else selected
    if options.list:
        for migration, checks in zip(migrations, selected, strict=True):
            console.print(f"{migration.name}: {', '.join(checks)}", highlight=False, markup=False, soft_wrap=True)
        return PASSED
    reports, not_run, is_interrupted = [], list[str](), False
    for migration, checks in zip(migrations, selected, strict=True):
        if not checks:  # none of them failed before
            continue
        try:
            report = validate(
                migration,
                progress=Progress() if options.quiet else LiveLines(console),
                golden=options.golden,
                logdir=options.logdir and (options.logdir / migration.name if len(migrations) > 1 else options.logdir),
                checks=checks,
                exit_first=options.exitfirst,
            )
        except ValidationInterrupted as interrupt:
            report, is_interrupted = interrupt.report, True
        except DetrandError as error:  # which is no reason to lose the reports of the other migrations
            if len(migrations) == 1:
                raise
            _print_error(error, options)
            not_run.append(migration.name)
            if options.exitfirst:
                break
            continue
        reports.append(report)
        if options.quiet:
            render_verdict(report, console)
        else:
            render(report, console, verbose=options.verbose)
        if is_interrupted or (options.exitfirst and report.verdict == "failed"):
            break
    if len(reports) > 1 and not options.quiet:
        render_overview(reports, console)
    if reports:
        _write_reports(reports, options, console)
    if is_interrupted:
        raise KeyboardInterrupt
    if not_run:
        of_all = f"{len(not_run)} of {len(migrations)} migrations"
        print(f"detrand: the checks of {of_all} could not run: {and_more(not_run, 4)}", file=sys.stderr)
        return COULD_NOT_RUN
    verdicts = {"passed", "inconclusive"} if options.allow_inconclusive else {"passed"}
    return PASSED if verdict_of(reports) in verdicts else FAILED


def _check_tensorflow() -> None:
    """Raise an error that names TensorFlow if it is missing, before one names a package that only TensorFlow needs."""
    if not is_installed("tensorflow"):
        importlib.import_module("tensorflow")


def _failed_checks(file: Path | None) -> set[tuple[str, str]]:
    """Return the checks of an earlier run that failed, each with the name of its migration."""
    if file is None or file == _STDOUT:
        raise ArgumentError("--last-failed reads the FILE of --json; write --last-failed --json report.json")
    if not file.exists():
        return set()
    try:
        checks = json.loads(file.read_text(encoding="utf-8"))["checks"]
        return {(check["migration"], check["name"]) for check in checks if not check["ok"]}
    except (ValueError, TypeError, LookupError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{file} is no report that --json has written ({reason}); give a different file") from error


def _write_reports(reports: Sequence[Report], options: argparse.Namespace, console: Console) -> None:
    from detrand.report import annotations, html, junit, markdown
    from detrand.report.json import render as render_json

    with contextlib.ExitStack() as stack:  # a report that cannot be written is no reason to lose the others
        for file, text in (
            (options.json, lambda: render_json(reports)),
            (options.html, lambda: html.render(reports, options.command)),
            (options.markdown, lambda: markdown.render(reports, options.command)),
            (options.junit, lambda: junit.render(reports)),
        ):
            if file == _STDOUT:
                print(text(), end="")
            elif file is not None:
                stack.callback(_write_report, file, text(), console)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(annotations.render(reports), end="", file=sys.stderr if options.json == _STDOUT else sys.stdout)


def _record(options: argparse.Namespace) -> int:
    _check_tensorflow()
    from detrand.report.progress import CommandConsole, showing_progress

    _check_writable("the golden file", options.output)
    console = CommandConsole()
    with showing_progress(console, "loading TensorFlow"), _tensorflow_kept_quiet():
        import tensorflow  # noqa: F401

        from detrand.validation.golden import record_golden
    migrations = _load(options)
    names = ", ".join(migration.name for migration in migrations)
    with showing_progress(console, f"recording {names} in TF1"):
        record_golden(migrations, options.output)
    console.print(f"{options.output}: recorded {names}", highlight=False, markup=False, soft_wrap=True)
    return PASSED


def _diff(options: argparse.Namespace) -> int:
    from detrand.steps.comparison import Tolerance, compare_steps
    from detrand.steps.recorder import StepRecorder

    given = {name: getattr(options, name) for name in ("rtol", "atol") if getattr(options, name) is not None}
    actual, desired = (StepRecorder.load(file) for file in (options.actual, options.desired))
    comparison = compare_steps(actual, desired, [Tolerance(**given)] if given else ())
    _print(str(comparison))
    return PASSED if comparison.ok else FAILED


def _init(options: argparse.Namespace) -> int:
    _check_tensorflow()
    from detrand.report.progress import CommandConsole, showing_progress

    file = options.file
    if file.exists():
        raise ArgumentError(f"{file} exists already; give a different name, as in `detrand init my_migration.py`")
    _check_writable("the migration", file)
    console = CommandConsole()
    with showing_progress(console, "loading TensorFlow"), _tensorflow_kept_quiet():
        import tensorflow  # noqa: F401

        from detrand.drafts import draft
    with showing_progress(console, "running the programs"):
        written = draft(file, options.source, options.port)
    with written_whole(file) as unfinished:
        unfinished.write_text(written.text, encoding="utf-8")
    now = f"{written.to_do}, and run" if written.to_do else "now run"
    console.print(f"{file}: written; {now} detrand validate {file}", highlight=False, markup=False, soft_wrap=True)
    return PASSED


def _explain(options: argparse.Namespace) -> int:
    from detrand.report.symptoms import explanation, list_of_symptoms

    text = explanation(options.symptom) if options.symptom else list_of_symptoms()
    width = shutil.get_terminal_size((120, 0)).columns
    _print("\n".join(_wrapped(line, width) for line in text.split("\n")))
    return PASSED


def _wrapped(line: str, width: int) -> str:
    """Return a line as lines of at most a width, unless a word is longer, all with its indentation."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _print(text: str) -> None:
    with printing():
        print(text, flush=True)


def _check_writable(what: str, file: Path) -> None:
    """Raise an error if a file cannot be written, before minutes of checks."""
    folder = file.parent
    flaw = "it is a folder" if file.is_dir() else "" if folder.is_dir() else f"the folder {folder} does not exist"
    if not flaw and not os.access(file if file.exists() else folder, os.W_OK):
        flaw = "permission denied"
    if flaw:
        raise _not_writable(what, file, flaw)


def _write_report(file: Path, text: str, console: Console) -> None:
    try:
        with written_whole(file) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable("the report", file, error.strerror or str(error)) from error
    console.print(f"{file}: written", highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _log_printed() -> Iterator[None]:
    """Print the errors that a report passes over in the block."""
    log, handler = logging.getLogger("detrand"), logging.StreamHandler()
    with Changes() as changes:
        changes.on_undo(log.setLevel, log.level)
        changes.on_undo(log.removeHandler, handler)
        log.setLevel(logging.DEBUG)
        log.addHandler(handler)
        yield


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
    warnings.filterwarnings("ignore", r"`tf\.[\w.]+` is deprecated")  # of the line that calls it


if __name__ == "__main__":
    sys.exit(main())
