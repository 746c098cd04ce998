"""Changes modules at one place at a time, and prints the changes that no test notices.

    python -m tests.mutants PATH ... [--tests PATH ...] [--sample N] [--only FILE:LINE] [--seconds S]

The tests that mirror the modules run once, under coverage. Then each mutant gets the tests that reach the changed line,
the quickest first, in a forked process. Each mutant that survives needs a test, shows code to delete, or is equivalent.
"""

import argparse
import collections
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import coverage
import pytest

from tests.mutants.mutations import mutants_of

_OPTIONS = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="+", type=Path, help="modules of detrand, or folders of modules")
    parser.add_argument("--tests", nargs="+", help="tests to run in place of those that mirror the modules")
    parser.add_argument("--sample", type=int, metavar="N", help="try only N mutants, the same ones each time")
    parser.add_argument("--only", metavar="FILE:LINE", help="try only the mutants of a line")
    parser.add_argument("--seconds", type=float, default=15, help="the most time for the tests of a mutant (15)")
    options = parser.parse_args()
    files = [file for path in options.paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    mutants = [(file, mutant) for file in files for mutant in mutants_of(file.read_text())]
    if options.only:
        mutants = [(file, mutant) for file, mutant in mutants if f"{file}:{mutant.line}" == options.only]
    if options.sample is not None and options.sample < len(mutants):
        mutants = [mutants[i] for i in sorted(random.Random(0).sample(range(len(mutants)), options.sample))]

    _import_frameworks()
    reaching, seconds = _measured(options.tests or _mirrors(files), files)
    print(f"{len(mutants)} mutants, {len(seconds)} tests", flush=True)
    counts = collections.defaultdict(collections.Counter)
    for file, mutant in mutants:
        tests = _chosen(reaching[str(file)], mutant.lines, seconds, options.seconds)
        fate = "not reached" if not tests else "killed" if _is_killed(file, mutant, tests, seconds) else "survived"
        counts[file][fate] += 1
        if fate != "killed":
            source = file.read_text().splitlines()[mutant.line - 1].strip()
            print(f"{file}:{mutant.line}: {fate}: {mutant}\n    {source}", flush=True)
    for file, fates in counts.items():
        print(f"{file}: {fates.total()} mutants", *(f"{count} {fate}" for fate, count in fates.items()), sep=", ")


def _mirrors(files):
    """Return the folders of tests that mirror some modules, and the modules, which have doctests."""
    return sorted({*(str(Path("tests", *file.parts[1:-1])) for file in files), *map(str, files)})


def _import_frameworks():
    """Import what the forked processes share. No op may run before they are forked."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name in ("tensorflow", "keras", "tf_keras"):
        importlib.import_module(name)
    from hypothesis import Phase, settings

    # Examples are the same each time, and are not shrunk.
    settings.register_profile("mutants", database=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")


class _Contexts:
    """A plugin for pytest that measures the lines of each test, and its time."""

    def __init__(self, measured):
        self.measured, self.seconds = measured, collections.Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.measured.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration


def _measured(tests, files):
    """Return the tests that reach each line of each file, and the seconds of each test."""

    def run():
        measured = coverage.Coverage(data_file=None, config_file=False, include=list(map(str, files)))
        contexts = _Contexts(measured)
        measured.start()
        status = pytest.main([*_OPTIONS, *tests], [contexts])
        measured.stop()
        data = measured.get_data()
        lines = {str(file): data.contexts_by_lineno(str(file.resolve())) for file in files}
        Path(folder, "lines").write_text(json.dumps([lines, contexts.seconds]))
        return status

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        if _forked(run, 3600, output) != 0:
            sys.exit(f"a test fails without a change:\n{output.read_text()}")
        return json.loads(Path(folder, "lines").read_text())


def _chosen(reaching, lines, seconds, most):
    """Return the tests that reach some lines, the quickest first, of at most some seconds: at least one."""
    contexts = {context for line in lines for context in reaching.get(str(line), [])}
    if contexts == {""}:  # the lines run when the module is imported
        contexts = set(seconds)
    chosen = []
    for test in sorted(contexts - {""}, key=seconds.get):
        most -= seconds[test]
        if most > 0 or not chosen:
            chosen.append(test)
    return chosen


def _is_killed(file, mutant, tests, seconds):
    """Return whether one of some tests fails with a mutant, or hangs."""
    name, get_code = ".".join(file.with_suffix("").parts), SourceFileLoader.get_code

    def run():
        SourceFileLoader.get_code = lambda self, fullname: (
            mutant.code(self.path) if fullname == name else get_code(self, fullname)
        )
        importlib.import_module(name)
        return pytest.main([*_OPTIONS, *tests])

    return _forked(run, 20 + 4 * sum(seconds[test] for test in tests)) != 0


def _forked(run, limit, output=os.devnull):
    """Return the exit status of a function in a forked process; 1 if it raises, None if it exceeds some seconds."""
    pid = os.fork()
    if not pid:
        os.setsid()  # so that the processes that it starts end with it
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            status = int(run())
        finally:
            os._exit(status)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
