"""The tests on the releases that setup.cfg allows: ``nox`` runs all rows, ``nox -s "tests(oldest)"`` one of them.

A row that has passed writes its line of docs/versions.csv, the table of the documentation.
"""

import csv
import datetime
import os
import shutil
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import nox

ROWS = {
    "oldest": ("3.11", "2.16.2", "3.12.0", "1.26.4"),
    "tensorflow-2.17": ("3.12", "2.17.1", "3.12.0", "1.26.4"),
    "tensorflow-2.18": ("3.12", "2.18.1", "3.12.0", "2.0.2"),
    "tensorflow-2.19": ("3.12", "2.19.1", "3.12.0", "2.1.3"),
    "tensorflow-2.20": ("3.13", "2.20.0", "3.12.0", None),
    "python-3.10": ("3.10", "2.21.0", None, None),
    "newest": ("3.13", "2.21.0", None, None),
}
TABLE = Path(__file__).parent / "docs" / "versions.csv"


@nox.session
@nox.parametrize("python,tensorflow,keras,numpy", list(ROWS.values()), ids=list(ROWS))
def tests(session: nox.Session, tensorflow: str, keras: str | None, numpy: str | None) -> None:
    """Run the tests that are not slow on an installed wheel; None is the newest release that pip installs there.

    The wheel is built from the source distribution, which the tests are taken from, too.
    """
    minor = tensorflow.rpartition(".")[0]
    pins = {"tensorflow": tensorflow, "tf-keras": f"{minor}.*", "keras": keras, "numpy": numpy}
    session.install("build")
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "build", "--outdir", folder, silent=True)
        [source], [wheel] = Path(folder).glob("*.tar.gz"), Path(folder).glob("*.whl")
        session.install(f"{wheel}[test]", *(f"{name}=={version}" for name, version in pins.items() if version))
        shutil.unpack_archive(source, folder)
        results = Path(folder, "results.xml")
        with session.chdir(Path(folder, source.name.removesuffix(".tar.gz"))):
            shutil.rmtree("detrand")  # so that the installed one is imported
            # Named paths would run in one process.
            options = ["--config-file", "setup.cfg", "-n", str(os.cpu_count()), f"--junit-xml={results}"]
            paths = ["--pyargs", "detrand", "tests", "README.rst", "docs"]
            session.run("python", "-m", "pytest", *options, *session.posargs, *paths)
        if not session.posargs:
            _write_line(session.name.partition("(")[2].removesuffix(")"), _versions(session), results)


def _versions(session: nox.Session) -> list[str]:
    names = ("tensorflow", "keras", "numpy")
    code = f"from importlib.metadata import version; print(*map(version, {names}))"
    return [str(session.python), *str(session.run("python", "-c", code, silent=True)).split()]


def _write_line(row: str, versions: list[str], results: Path) -> None:
    """Write a row's line of the table: what it ran on, how many tests passed, and when."""
    suite = next(ET.parse(results).iter("testsuite")).attrib
    passed = int(suite["tests"]) - sum(int(suite[kind]) for kind in ("failures", "errors", "skipped"))
    with TABLE.open() as file:
        lines = {line[0]: line for line in csv.reader(file)}
    lines[row] = [row, *versions, f"{passed:,}", datetime.date.today().isoformat()]
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines[name] for name in ("row", *ROWS) if name in lines)
