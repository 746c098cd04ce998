"""Runs random programs in a TF1 session and in all other ways, and prints where these disagree.

    python -m tests.random_programs [--first K] [--count N] [--seed N] [--processes N]

Program K of a seed is the same in every run. It exits with 1 if a way disagrees with the session or if not all
programs have run, and prints a script for each kind of disagreement.
"""

import argparse
import collections
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time

# Programs of one process: with and without detrand, XLA keeps each function that it has compiled, and AutoGraph a
# module for each function that it has converted.
CHUNK = 200


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs")
    parser.add_argument("--first", type=int, default=0, metavar="K")
    parser.add_argument("--count", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    arguments = parser.parse_args()
    totals = Totals(arguments.count)
    chunks = queue.SimpleQueue()
    end = arguments.first + arguments.count
    for first in range(arguments.first, end, CHUNK):
        chunks.put((first, min(first + CHUNK, end)))
    threads = [
        threading.Thread(target=run_chunks, args=(chunks, arguments.seed, totals), daemon=True)
        for _ in range(arguments.processes)
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            totals.print_progress()
    except KeyboardInterrupt:
        print("interrupted")
    totals.print_all()
    return 1 if totals.disagreements or totals.done < arguments.count else 0


class Totals:
    """What the programs gave, so far."""

    def __init__(self, count):
        self.count = count
        self.done = 0
        self.counts = collections.Counter()
        self.disagreements = collections.defaultdict(list)
        self.peak = 0
        self.start = self.printed = time.monotonic()

    def take(self, line):
        """Count one line of a worker."""
        if "disagreement" in line:
            self.disagreements[line["way"], line["category"], line["signature"]].append(line)
            print(
                f"program {line['disagreement']}, {line['way']}: {line['detail'][:200]}\n    {line['signature']}",
                flush=True,
            )
        elif "done" in line:
            self.done += 1
            self.peak = max(self.peak, line["peak"])
            for way, kind, detail in line["results"]:
                self.counts[kind, way, "" if kind in ("agreed", "disagreement") else detail] += 1

    def crashed(self, k, message):
        """Count a program that ended its process."""
        self.done += 1
        self.counts["disagreement", "process", ""] += 1
        self.take(
            {"disagreement": k, "way": "process", "category": "", "detail": message, "signature": "", "script": ""}
        )

    def print_progress(self, every=10):
        """Print a line if the last one is some seconds old."""
        now = time.monotonic()
        if now - self.printed >= every:
            self.printed = now
            rate = self.done / (now - self.start)
            disagreements = sum(map(len, self.disagreements.values()))
            print(
                f"{self.done} of {self.count} programs, {rate:.2f} a second, {disagreements} disagreements,"
                f" peak memory {self.peak} MiB",
                flush=True,
            )

    def print_all(self):
        """Print the disagreements by kind, each with a script, and the counts."""
        for (way, category, signature), lines in self.disagreements.items():
            numbers = ", ".join(str(line["disagreement"]) for line in lines)
            print(f"\n=== {way}: {category}: {signature} ({len(lines)} times: programs {numbers})")
            line = min(lines, key=lambda line: len(line["script"]))
            print(f"{line['detail']}\n\n{line['script']}")
        print()
        for (kind, way, detail), count in sorted(self.counts.items(), key=lambda item: (item[0][0], -item[1])):
            print(f"{count:7} {kind:26} {way:9} {detail}"[:200])
        self.print_progress(0)


def run_chunks(chunks, seed, totals):
    """Run chunks of programs, each in a process of its own, until none is left."""
    while True:
        try:
            first, end = chunks.get_nowait()
        except queue.Empty:
            return
        while first < end:
            first = run_worker(seed, first, end, totals)


def run_worker(seed, first, end, totals):
    """Run programs in a process, and return the number of the program to go on with."""
    command = [sys.executable, "-m", "tests.random_programs.worker", *map(str, (seed, first, end))]
    started, done = first, first - 1
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            for text in process.stdout:
                if not text.startswith("{"):
                    continue  # tf.print, or a warning of TensorFlow's
                line = json.loads(text)
                totals.take(line)
                started, done = line.get("start", started), line.get("done", done)
        if process.returncode == 0 and done == end - 1:
            return end
        errors.seek(0)
        message = errors.read()
    if process.returncode == 1 and "Timeout" not in message:
        raise RuntimeError(f"the process of programs {first} to {end - 1} failed:\n{message[-3000:]}")
    lines = [line for line in message.splitlines() if "Check failed" in line or "Timeout" in line]
    totals.crashed(started, f"exit status {process.returncode}: " + " / ".join(lines)[:600])
    return started + 1


if __name__ == "__main__":
    sys.exit(main())
