"""Fetch the packages of the migrations into a folder, validate each migration, and print a table."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import detrand

MIGRATIONS = pathlib.Path(__file__).parent / "migrations"
PACKAGES = {
    "albert-tensorflow": "1.1",
    "baselines": "0.1.5",
    "bert-tensorflow": "1.0.4",
    "dltk": "0.2.1",
    "facenet": "1.0.5",
    "keras-hub": "0.32.0",
    "OpenNMT-tf": "1.25.0",
    "stable-baselines": "2.10.2",
    "tensorrec": "0.26.2",
    "tf_object_detection": "0.0.3",
    "tokenizers": "0.23.3",
}
VERDICTS = {0: "passed", 1: "failed", 2: "could not run"}


def fetch(folder):
    """Install the packages that the folder lacks, each into a folder of its own, and return these folders."""
    folders = [folder / package for package in PACKAGES]
    for package, target in zip(PACKAGES, folders, strict=True):
        if not target.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={target}"]
            subprocess.run([*command, f"{package}=={PACKAGES[package]}"], check=True)
    return folders


def main(folder, locations, expected):
    """Validate migrations, by name, and return whether exactly the expected checks fail in each; none by default."""
    folder.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(detrand.__file__).parents[1]
    path = os.pathsep.join(map(str, [root, root / "examples", *fetch(folder.resolve())]))
    environment = os.environ | {"PYTHONPATH": path}
    unexpected = []
    print(f"{'migration':30} {'lines':>5}  {'verdict':13} {'time':>5}  failed checks")
    for name, location in locations.items():
        source = pathlib.Path(location.partition(".py:")[0]).with_suffix(".py").read_text()
        lines = sum(bool(line.strip()) for line in source.splitlines()[1:])  # without the docstring
        report = folder / f"{name}.json"
        report.unlink(missing_ok=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "detrand", "validate", location, "--json", str(report)]
        run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        (folder / f"{name}.txt").write_text(run.stdout + run.stderr)
        verdict = VERDICTS.get(run.returncode, f"exit status {run.returncode}")
        checks = json.loads(report.read_text())["checks"] if report.exists() else []
        failed = [check["name"] for check in checks if not check["ok"]]
        wanted = expected.get(name, [])
        if (run.returncode, failed) != (int(bool(wanted)), wanted):
            unexpected.append(name)
            failed.append(f"(expected: {' '.join(wanted) or 'none'})")
        seconds = time.monotonic() - start
        print(f"{name:30} {lines:5}  {verdict:13} {seconds:3.0f} s  {' '.join(failed)}".rstrip(), flush=True)
    print(
        f"{len(locations) - len(unexpected)} of {len(locations)} verdicts are as expected; the reports are in {folder}"
    )
    return not unexpected


def run(command, locations, expected=None):
    """Run ``python -m tests.COMMAND FOLDER [--only NAME ...]``."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.{command}")
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path, help="gets the packages and the reports")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="parts of the migrations' names")
    options = parser.parse_args()
    chosen = [name for name in locations if not options.only or any(part in name for part in options.only)]
    if not chosen:
        parser.error(f"no migration has {' or '.join(options.only)} in its name. They are: {', '.join(locations)}")
    sys.exit(not main(options.folder, {name: locations[name] for name in chosen}, expected or {}))


if __name__ == "__main__":
    run("third_party", {file.stem: str(file) for file in sorted(MIGRATIONS.glob("*.py"))})
