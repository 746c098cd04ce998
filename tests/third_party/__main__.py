"""Fetch the packages of the migrations into a folder, validate each migration, and print a table."""

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
    "dltk": "0.2.1",
    "facenet": "1.0.5",
    "OpenNMT-tf": "1.25.0",
    "stable-baselines": "2.10.2",
    "tensorrec": "0.26.2",
    "tf_object_detection": "0.0.3",
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


def main(folder):
    """Validate all migrations, and return whether all passed."""
    folder.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(detrand.__file__).parents[1]
    path = os.pathsep.join(map(str, [root, root / "examples", *fetch(folder.resolve())]))
    environment = os.environ | {"PYTHONPATH": path}
    codes = []
    print(f"{'migration':30} {'lines':>5}  {'verdict':13} {'time':>5}")
    for file in sorted(MIGRATIONS.glob("*.py")):
        lines = sum(bool(line.strip()) for line in file.read_text().splitlines()[1:])  # without the docstring
        start = time.monotonic()
        command = [sys.executable, "-m", "detrand", "validate", str(file)]
        run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        codes.append(run.returncode)
        (folder / f"{file.stem}.txt").write_text(run.stdout + run.stderr)
        verdict = VERDICTS.get(run.returncode, f"exit status {run.returncode}")
        print(f"{file.stem:30} {lines:5}  {verdict:13} {time.monotonic() - start:3.0f} s", flush=True)
    print(f"{codes.count(0)} of {len(codes)} migrations passed; the reports are in {folder}")
    return not any(codes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.third_party FOLDER")
    sys.exit(not main(pathlib.Path(sys.argv[1])))
